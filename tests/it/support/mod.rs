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

/// Policies that start alike: a note is made and taken back over HTTP. What is given goes on where the
/// operation `unnote` ends.
macro_rules! noted {
    ($($more:expr),*) => {
        concat!(
            r#"
version: 1
operations:
  note:
    match: { http: "POST /notes" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: unnote, arguments: { path.id: response.id } }
  unnote:
    match: { http: "DELETE /notes/{id}" }
    effect: { class: irreversible, kind: delete }
"#,
            $($more),*
        )
    };
}
pub(crate) use noted;

/// Policies that start alike: a tool reads notes, one deletes them, and one makes them, which the other
/// takes back. What is given goes on in the effect of `notes.create`, after its inverse's arguments.
macro_rules! noted_by_tools {
    ($($more:expr),*) => {
        concat!(
            r#"
version: 1
operations:
  notes.read:
    match: { tool: read_note }
    effect: { class: read }
  notes.delete:
    match: { tool: delete_note }
    effect: { class: irreversible, kind: delete }
  notes.create:
    match: { tool: create_note }
    effect:
      class: reversible
      kind: create
      inverse:
        operation: notes.delete
        arguments: { id: response.id }
"#,
            $($more),*
        )
    };
}
pub(crate) use noted_by_tools;

pub use agent::Agent;
pub use sidecar::Sidecar;
pub use upstream::{Act, Upstream};
