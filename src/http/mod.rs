//! The plain HTTP codec: a request into a call, a call into a request, an answer into a response.

pub mod body;
pub mod decode;
pub mod encode;
pub mod headers;
pub mod reply;
pub mod target;
