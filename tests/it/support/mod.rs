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
pub mod updates;
pub mod upstream;
pub mod wait;

/// A read, and a write with a key that needs its caller's word.
pub const THINGS: &str = r#"
version: 1
operations:
  things.get:
    match: { http: "GET /things" }
    effect: { class: read }
  things.create:
    match: { http: "POST /things" }
    effect:
      class: irreversible
      kind: create
      idempotency: { type: header, name: Idempotency-Key }
    confirm: caller
"#;

pub use agent::Agent;
pub use sidecar::Sidecar;
pub use upstream::{Act, Upstream};
