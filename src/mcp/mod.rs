//! MCP over streamable HTTP: what a message is, what an answer means, and how both are written.
//!
//! Everything here is a function over bytes and header maps; sockets and bodies belong to the codec
//! that calls it. [`jsonrpc`] reads one message, [`headers`] holds the mirrored headers against it,
//! [`Methods`] says whether it is a call or passes, [`request`] reads a `tools/call` and writes the
//! body for the upstream, [`answer`] reads what came back, [`reply`] makes the answers that are
//! ours, and [`sse`] finds the one event of a stream that is an answer. [`list`] writes what a policy
//! says of tools into `tools/list`, and [`claims`] takes an upstream's own reports out of what is no
//! answer to a call, [`renaming`] out of what is too long to be held; [`catalog`] and [`sessions`] remember, bounded, what was seen of
//! tools and of clients, [`flights`] which calls are under way, and [`questions`] what clients were
//! asked.
//!
//! Two eras live on one path (standards MCP-9): the revisions 2025-03-26 to 2025-11-25 with
//! sessions, and 2026-07-28 without, whose requests carry their version in `_meta`. A decision is
//! always taken from the body; the headers that mirror it are checked against it and never
//! believed.

pub mod answer;
pub mod catalog;
pub mod claims;
pub mod clients;
pub mod flights;
pub mod headers;
pub mod jsonrpc;
pub mod list;
pub mod questions;
pub mod renaming;
pub mod reply;
pub mod request;
pub mod schema;
pub mod sessions;
pub mod sse;

use std::collections::HashSet;

use http::HeaderMap;

use crate::contract::json::Kind as JsonKind;

use jsonrpc::{Kind, Message, Rejection, code};

/// The revision without sessions. Later ones, as long as they are unknown here, are recognised by
/// their `_meta` alone.
pub const MODERN_REVISION: &str = "2026-07-28";

/// Names the revision that a modern request speaks, in `_meta`.
pub const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// What the client of a modern request can do, in `_meta`.
pub const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// The one method that runs a tool.
pub const TOOLS_CALL: &str = "tools/call";

/// Requests of the five revisions, 2024-11-05 to 2026-07-28, that a client sends and that run no
/// tool.
const REQUESTS: &[&str] = &[
    "completion/complete",
    "initialize",
    "logging/setLevel",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "server/discover",
    "subscriptions/listen",
    "tasks/cancel",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tasks/update",
    "tools/list",
];

/// Notifications of the five revisions, of both directions: one that a client has no business to
/// send is the upstream's to ignore.
const NOTIFICATIONS: &[&str] = &[
    "notifications/cancelled",
    "notifications/elicitation/complete",
    "notifications/initialized",
    "notifications/message",
    "notifications/progress",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/resources/updated",
    "notifications/roots/list_changed",
    "notifications/subscriptions/acknowledged",
    "notifications/tasks",
    "notifications/tasks/status",
    "notifications/tools/list_changed",
];

/// Which of the two protocols a message speaks (standards MCP-9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// 2025-03-26 to 2025-11-25: sessions, and a version header after `initialize`.
    Legacy,
    /// 2026-07-28: every request carries its version in `_meta`.
    Modern,
}

impl Era {
    /// Modern if `_meta` names a version, or if the version header names the modern revision.
    ///
    /// Two version headers that differ name nothing.
    pub fn of(headers: &HeaderMap, message: &Message) -> Self {
        let is_enveloped = message.meta().and_then(|meta| meta.get(META_VERSION)).is_some();
        if is_enveloped || headers::version(headers) == Some(MODERN_REVISION) {
            Self::Modern
        } else {
            Self::Legacy
        }
    }
}

/// What is done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It calls a tool: it goes through the pipeline.
    Call,
    /// It goes upstream as it came.
    Pass,
}

/// The methods that are let through: those of the protocol and those that the operator adds.
///
/// Names are compared exactly (standards MCP-12). Anything else is refused (standards 8.8): an
/// upstream's own method could run what the policy stops under `tools/call`.
#[derive(Clone, Debug, Default)]
pub struct Methods {
    allowed: HashSet<String>,
}

impl Methods {
    /// The protocol's methods and `allowed`, which is `mcp.allow_methods`.
    pub fn new(allowed: impl IntoIterator<Item = String>) -> Self {
        Self { allowed: allowed.into_iter().collect() }
    }

    /// Says what is done with a message.
    ///
    /// A client's answer to an upstream's request passes. So does a request in the shape of a
    /// notification and the reverse, except a `tools/call` without an id: nobody would be told what
    /// it did.
    ///
    /// # Errors
    ///
    /// 404 and -32601 for an unknown method; 400 and -32600 for a `tools/call` without an id; 400
    /// and -32602 where a known method has `params` that are not an object.
    pub fn route(&self, message: &Message) -> Result<Route, Rejection> {
        let (method, id) = match message.kind() {
            Kind::Notification { method } => (method, None),
            Kind::Request { id, method } => (method, Some(id)),
            Kind::Response { .. } => return Ok(Route::Pass),
        };
        let is_call = method == TOOLS_CALL;
        let is_known = is_call
            || REQUESTS.contains(&method.as_str())
            || NOTIFICATIONS.contains(&method.as_str());
        if !is_known {
            if self.allowed.contains(method) {
                return Ok(Route::Pass);
            }
            let message = "this method is not let through; nothing was sent \
                           (an operator can add it to mcp.allow_methods)";
            return Err(Rejection::new(404, code::METHOD_NOT_FOUND, message, id));
        }
        if message.params().is_some_and(|params| params.kind() != JsonKind::Object) {
            let message = "params is not an object; nothing was sent";
            return Err(Rejection::new(400, code::INVALID_PARAMS, message, id));
        }
        if !is_call {
            return Ok(Route::Pass);
        }
        if id.is_none() {
            let message = "tools/call has no id; nothing was sent";
            return Err(Rejection::new(400, code::INVALID_REQUEST, message, None));
        }
        Ok(Route::Call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(text: &str) -> Result<Route, (u16, i64)> {
        let methods = Methods::new(["vendor/run".to_owned()]);
        let message = Message::read(text.to_owned().into()).unwrap();
        methods.route(&message).map_err(|rejection| (rejection.http_status, rejection.code))
    }

    #[test]
    fn mcp_12_only_tools_call_is_a_call_and_unknown_methods_are_refused() {
        let request = |method: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        let notice = |method: &str| format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);

        assert_eq!(route(&request("tools/call")), Ok(Route::Call));
        for method in REQUESTS {
            assert_eq!(route(&request(method)), Ok(Route::Pass), "{method}");
        }
        for method in NOTIFICATIONS {
            assert_eq!(route(&notice(method)), Ok(Route::Pass), "{method}");
        }
        assert_eq!(route(&request("vendor/run")), Ok(Route::Pass));
        for method in ["Tools/call", "tools/call ", "tools/callTool", "sampling/createMessage", ""]
        {
            assert_eq!(route(&request(method)), Err((404, -32601)), "{method}");
            assert_eq!(route(&notice(method)), Err((404, -32601)), "{method}");
        }
    }

    #[test]
    fn a_tools_call_that_nobody_could_answer_is_refused() {
        assert_eq!(route(r#"{"jsonrpc":"2.0","method":"tools/call"}"#), Err((400, -32600)));
    }

    #[test]
    fn a_method_hidden_in_escapes_is_the_method_it_spells() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools\u002fcall"}"#;
        assert_eq!(route(text), Ok(Route::Call));
    }

    #[test]
    fn an_array_of_params_is_refused_for_known_methods() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["x"]}"#;
        assert_eq!(route(text), Err((400, -32602)));
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"vendor/run","params":["x"]}"#;
        assert_eq!(route(text), Ok(Route::Pass));
    }

    #[test]
    fn the_answer_of_a_client_passes() {
        assert_eq!(route(r#"{"jsonrpc":"2.0","id":"s-1","result":{}}"#), Ok(Route::Pass));
    }
}
