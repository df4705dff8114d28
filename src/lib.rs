//! takeback: a sidecar reverse proxy that enforces effect reporting.

pub mod call;
pub mod clock;
pub mod contract;
pub mod server;
pub mod tasks;
pub mod upstream;
