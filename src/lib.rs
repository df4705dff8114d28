//! takeback: a sidecar reverse proxy that enforces effect reporting.

pub mod admit;
pub mod call;
pub mod clock;
pub mod config;
pub mod contract;
pub mod http;
pub mod ledger;
pub mod mcp;
pub mod metrics;
pub mod pipeline;
pub mod policy;
pub mod proxy;
pub mod server;
pub mod tasks;
pub mod upstream;
