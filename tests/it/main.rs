//! Behaviour over real sockets: a real sidecar, a scripted upstream, a client that sends what it likes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "helpers of tests fail the test, and are used within this binary"
)]

mod support;

/// The admin API, on its socket and on a network address.
mod admin;
/// What the log says of writes, and what it must not hold.
mod audit;
/// Tools called over plain HTTP.
mod bridge;
/// What an adversary found.
mod broken;
/// What an adversary found about calls: digest, controls, trailers.
mod broken_calls;
/// What an adversary found about ways around: paths out of values, folded names, odd files.
mod broken_ways;
/// Cases from public bug reports that no other file names.
mod cases;
/// Which operation a call is, however it is spelt.
mod choosing;
/// Time: expiry, late answers, delivery.
mod clocks;
/// The commands beside a running sidecar.
mod commands;
/// Processes that die, disks that fail, and the end.
mod crash;
/// Ledgers in a database.
mod database;
/// The guided run of the binary.
mod demo;
/// What a hop must not change or pass.
mod edges;
/// Evidence after the answer, and states before the call.
mod evidence;
/// The example's policy, and Stripe's variants.
mod examples;
/// Readers of foreign bytes, on bytes that are not what they expect.
mod fuzzed;
/// gRPC, by path.
mod grpc;
/// HTTP/2 in front.
mod h2;
/// Answers of which nothing but their text says whether they are whole.
mod half;
/// Agents that leave.
mod hangup;
/// A network that parts, and clients that want more than they may have.
mod hostile;
/// Plain HTTP: reads, refusals, headers, bodies.
mod http;
/// The chain over the ledger's history, and what is removed from it.
mod integrity;
/// The layers of the sources, and what no file may hold.
mod layers;
/// Probes, the drain, and the commands for images without a shell.
mod lifecycle;
/// MCP over streamable HTTP.
mod mcp;
/// Clients that cancel, and sessions that end, under a write.
mod mcp_cancel;
/// Reports that an upstream forges, and pages of other origins.
mod mcp_claims;
/// Confirmation in the protocol: rounds, and questions on a call's stream.
mod mcp_confirm;
/// Agents and upstreams that break the protocol on purpose.
mod mcp_hostile;
/// Keys in arguments and the headers that mirror them; the upstream's own reports.
mod mcp_keys;
/// `tools/list`: what is said of tools, pins, hints.
mod mcp_list;
/// Results that are none: the upstream's own rounds, pages to visit, tasks.
mod mcp_rounds;
/// Rules for proxies of MCP that no other file names.
mod mcp_rules;
/// Streams of MCP: polling, resumption, standing streams.
mod mcp_streams;
/// Agents that are slower than their upstream.
mod pressure;
/// Policies that change under calls, and the commands about them.
mod prove;
mod reload;
/// Unknown outcomes that settle of themselves.
mod settling;
/// The policies for real APIs.
mod shipped;
/// Draft forms, over MCP and over HTTP.
mod staging;
mod starts;
/// Undos that something came after.
mod superseded;
/// TLS on both sides, and who calls by certificate, token or header.
mod tls;
/// Spans, as a collector gets them.
mod traces;
/// Calls that two readers take for two.
mod two_readers;
/// What of a task is taken back.
mod undo;
mod wall_clock;
/// Calls that cannot be taken back though their operation says how.
mod ways_back;
/// Writes: confirmation, keys, repeats, unknown outcomes, undo.
mod writes;
