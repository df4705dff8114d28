//! takeback: a sidecar reverse proxy that enforces effect reporting.
//!
//! It stands between an AI agent and an existing gateway (an HTTP API, or an MCP gateway over streamable
//! HTTP). Each call is matched to a declared operation and classified; a call that cannot be taken back
//! is confirmed first; a write is recorded durably before it is sent and finished after; its idempotency
//! key is put where the upstream takes one; and the answer says what became of the call, how to take it
//! back, until when, and how to find its effect if the answer is lost.
//!
//! # The two invariants
//!
//! - **A refusal means that nothing was sent.** `Err(Refused)` is made before dispatch only. Once a byte
//!   of a write may have left, there is an answer instead, and its report says what is known, `unknown`
//!   included.
//! - **A write is sent only after its entry is durable.** A write reaches `pipeline::dispatch` only as a
//!   `Recorded`, and only `pipeline::record` makes one. (The one exception is the operator's: in `observe`
//!   mode a ledger that is down is reported instead of refused.)
//!
//! # The one way through
//!
//! ```text
//!  agent ─ TCP ─▶ server     accept, HTTP/1.1 and h2, drain          (knows nothing of effects)
//!                   │ Arrival
//!                 proxy      the stack and the codec at its edge: a request becomes a Call
//!                   │ Call
//!    pipeline::select        policy snapshot pinned, operation matched, a write's body read
//!    pipeline::replay        same key or same call seen before? its answer, or a refusal
//!    pipeline::stage         the form that will be sent
//!    pipeline::carry         the request for the upstream, key in it; may refuse
//!    pipeline::confirm       a confirmation bound to this exact call
//!    pipeline::record        entry begun durably, then a task that nobody cancels
//!    pipeline::settle        ...and on the way back: classify, verify, undo, finish, report
//!    pipeline::dispatch      the only code that sends a call to the upstream
//!                   │ Reply | Refused
//!  agent ◀──────────┘        + X-Anvil-Effect | _meta.effect
//! ```
//!
//! Beside the way: `pipeline::reconcile` settles unknown entries by their lookups and `pipeline::proof`
//! reads what proves an effect afterwards, both in the background; `pipeline::image` reads the state before
//! a call. All their reads are made by `pipeline::fetch`, which can send nothing else.
//!
//! # Layers
//!
//! A module imports from lower layers and its own folder; a test keeps it so.
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `contract` (pure), `clock`, `files`, `tasks` |
//! | 1 | `policy`, `ledger`, `mcp`, `metrics` |
//! | 2 | `call` |
//! | 3 | `http`, `upstream`, `server`, `admit` |
//! | 4 | `pipeline` |
//! | 5 | `proxy` |
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | agent, upstream | the caller in front; the gateway behind |
//! | operation | a declared call; its target is a method and path template, or a tool's name |
//! | class | read < reversible < compensable < irreversible, by severity |
//! | entry | one recorded write |
//! | ledger id | the caller's key where it gave one, else the entry's id; what goes upstream |
//! | key, carrier | the idempotency key, and the place where the upstream takes it |
//! | principal | who calls |
//! | confirmation, approval | the caller's word; a person's word |
//! | attempt | one dispatch of an entry |
//! | disposition | of a dispatch: not_sent, accepted, definitely_rejected, ambiguous |
//! | outcome | of an entry: accepted, rejected, unknown |
//! | verdict | of the evidence: verified, contradicted, inconclusive |
//! | undo | the follow-up call, resolved: `inverse` or `compensate` |
//! | lookup | a declared read that finds the effect when its answer was lost |
//! | probe | a read of a verification plan, made after the answer |
//! | image | the state before a call, as an operation's `before` reads it |
//! | refusal | we said no and nothing was sent |

pub mod admin;
pub mod admit;
pub mod app;
pub mod call;
pub mod cli;
pub mod clock;
pub mod config;
pub mod contract;
pub mod demo;
pub mod files;
pub mod http;
pub mod ledger;
pub mod mcp;
pub mod metrics;
pub mod pipeline;
pub mod policy;
pub mod principal;
pub mod prove;
pub mod proxy;
pub mod reread;
pub mod server;
pub mod tasks;
pub mod tls;
pub mod upstream;
