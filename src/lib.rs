//! takeback: a sidecar reverse proxy that enforces effect reporting.

pub mod contract;
pub mod policy;
