//! What the tests stand on.

pub mod agent;
pub mod mcp;
pub mod postgres;
pub mod process;
pub mod sidecar;
pub mod upstream;
pub mod wait;

pub use agent::Agent;
pub use sidecar::Sidecar;
pub use upstream::{Act, Upstream};
