//! Behaviour over real sockets: a real sidecar, a scripted upstream, a client that sends what it likes.

mod support;

/// MCP over streamable HTTP.
mod mcp;
/// Plain HTTP: reads, refusals, headers, bodies.
mod http;
/// Writes: confirmation, keys, repeats, unknown outcomes, undo.
mod writes;
