//! Behaviour over real sockets: a real sidecar, a scripted upstream, a client that sends what it likes.

mod support;

/// Readers of foreign bytes, on bytes that are not what they expect.
mod fuzzed;
/// The layers of the sources, and what no file may hold.
mod layers;
/// MCP over streamable HTTP.
mod mcp;
/// Plain HTTP: reads, refusals, headers, bodies.
mod http;
/// Writes: confirmation, keys, repeats, unknown outcomes, undo.
mod writes;
