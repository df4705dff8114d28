//! The plain HTTP codec: a request into a call, a call into a request, an answer into a response.

pub mod body;
pub mod decode;
pub mod encode;
pub mod grpc;
pub mod headers;
pub mod injected;
pub mod pairs;
pub mod reply;
pub mod signature;
pub mod target;
