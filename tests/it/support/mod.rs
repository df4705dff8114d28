//! What the tests stand on.

pub mod agent;
#[path = "../../../src/tls/testing.rs"]
pub mod certs;
pub mod mcp;
pub mod port;
pub mod postgres;
pub mod process;
pub mod secure;
pub mod sidecar;
pub mod upstream;
pub mod wait;

pub use agent::Agent;
pub use sidecar::Sidecar;
pub use upstream::{Act, Upstream};
