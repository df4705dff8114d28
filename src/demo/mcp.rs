//! MCP over streamable HTTP as `github-mini` speaks it, both eras on one path, answers as JSON.
//!
//! Up to 2025-11-25: `initialize` gives a session id, which every later message carries.
//! 2026-07-28: no session; each request has its envelope in `params._meta`, mirrored in headers.
//! Pure: a POST in, an answer out.
//!
//! Limits: [`MAX_SESSIONS`] sessions, the oldest is forgotten first; no streams (GET is 405), no
//! batches, no resources, no prompts.

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use serde_json::{Map, Value, json};

use super::tools::{self, Outcome};
use super::world::World;

/// How many sessions are known.
const MAX_SESSIONS: usize = 1_000;

const MODERN: &str = "2026-07-28";
const LEGACY: &[&str] = &["2025-11-25", "2025-06-18", "2025-03-26"];

const INVALID_REQUEST: i64 = -32600;
const UNKNOWN_METHOD: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const PARSE_ERROR: i64 = -32700;
const HEADER_MISMATCH: i64 = -32020;
const UNSUPPORTED_VERSION: i64 = -32022;

/// The sessions of older clients.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    ids: VecDeque<String>,
}

impl Sessions {
    fn open(&mut self, id: &str) {
        if self.ids.len() >= MAX_SESSIONS {
            self.ids.pop_front();
        }
        self.ids.push_back(id.to_owned());
    }

    fn is_open(&self, id: &str) -> bool {
        self.ids.iter().any(|known| known == id)
    }

    /// Ends a session; `false` if there is none.
    pub(super) fn close(&mut self, id: &str) -> bool {
        let held = self.ids.len();
        self.ids.retain(|known| known != id);
        self.ids.len() < held
    }
}

/// What becomes of a POST.
#[derive(Debug, PartialEq)]
pub(super) enum Reply {
    /// An answer; `body` is absent for notifications.
    Answer {
        status: u16,
        body: Option<Value>,
        /// The id of the session that this answer opens.
        session: Option<String>,
    },
    /// It was performed, and the connection ends without an answer.
    Lost,
}

impl Reply {
    fn result(id: &Value, result: Value) -> Self {
        let body = json!({"jsonrpc": "2.0", "id": id, "result": result});
        Self::Answer { status: 200, body: Some(body), session: None }
    }

    fn error(status: u16, id: Option<&Value>, code: i64, message: &str, data: Value) -> Self {
        let mut error = Map::new();
        error.insert("code".to_owned(), code.into());
        error.insert("message".to_owned(), message.into());
        if !data.is_null() {
            error.insert("data".to_owned(), data);
        }
        let mut body = Map::new();
        body.insert("jsonrpc".to_owned(), "2.0".into());
        if let Some(id) = id {
            body.insert("id".to_owned(), id.clone());
        }
        body.insert("error".to_owned(), error.into());
        Self::Answer { status, body: Some(body.into()), session: None }
    }

    fn accepted() -> Self {
        Self::Answer { status: 202, body: None, session: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Era {
    Legacy,
    Modern,
}

/// Answers one POST. `fresh` is the id of a session, should this open one.
pub(super) fn post(
    world: &mut World,
    sessions: &mut Sessions,
    headers: &HeaderMap,
    body: &[u8],
    fresh: &str,
) -> Reply {
    let message = match serde_json::from_slice(body) {
        Ok(Value::Object(message)) => message,
        Ok(_) => {
            return Reply::error(400, None, INVALID_REQUEST, "not one message", Value::Null);
        }
        Err(_) => return Reply::error(400, None, PARSE_ERROR, "not JSON", Value::Null),
    };
    let Some(method) = message.get("method").and_then(Value::as_str) else {
        let is_response = message.contains_key("result") || message.contains_key("error");
        return if is_response {
            Reply::accepted()
        } else {
            Reply::error(400, None, INVALID_REQUEST, "no method", Value::Null)
        };
    };
    let empty = Map::new();
    let params = message.get("params").and_then(Value::as_object).unwrap_or(&empty);
    let era = if version(params).is_some() || header(headers, "mcp-protocol-version") == MODERN {
        Era::Modern
    } else {
        Era::Legacy
    };
    let Some(id) = message.get("id") else { return Reply::accepted() };
    if !(id.is_string() || id.is_number()) {
        return Reply::error(400, None, INVALID_REQUEST, "an id that is none", Value::Null);
    }
    let refused = match era {
        Era::Legacy if method == "initialize" => return initialize(sessions, id, params, fresh),
        Era::Legacy => session(sessions, headers, id),
        Era::Modern => envelope(headers, id, method, params),
    };
    match refused {
        Some(reply) => reply,
        None => perform(world, id, method, params, era),
    }
}

fn initialize(
    sessions: &mut Sessions,
    id: &Value,
    params: &Map<String, Value>,
    fresh: &str,
) -> Reply {
    let asked = params.get("protocolVersion").and_then(Value::as_str);
    let newest = LEGACY.first().copied();
    let version = LEGACY.iter().copied().find(|known| asked == Some(known)).or(newest);
    sessions.open(fresh);
    let result = json!({
        "protocolVersion": version,
        "capabilities": {"tools": {}},
        "serverInfo": server_info(),
    });
    let body = json!({"jsonrpc": "2.0", "id": id, "result": result});
    Reply::Answer { status: 200, body: Some(body), session: Some(fresh.to_owned()) }
}

/// What is wrong with the session of an older client's request.
fn session(sessions: &Sessions, headers: &HeaderMap, id: &Value) -> Option<Reply> {
    let session = header(headers, "mcp-session-id");
    if session.is_empty() {
        let message = "a session is needed: send `initialize` first";
        return Some(Reply::error(400, Some(id), INVALID_REQUEST, message, Value::Null));
    }
    if sessions.is_open(session) {
        return None;
    }
    Some(Reply::error(404, Some(id), INVALID_REQUEST, "no such session", Value::Null))
}

/// What is wrong with the envelope of a 2026-07-28 request, and with the headers that mirror it.
fn envelope(
    headers: &HeaderMap,
    id: &Value,
    method: &str,
    params: &Map<String, Value>,
) -> Option<Reply> {
    let capabilities = meta(params, "clientCapabilities").is_some_and(Value::is_object);
    let Some(version) = version(params).filter(|_| capabilities) else {
        let message = "the envelope in `_meta` is not whole";
        return Some(Reply::error(400, Some(id), INVALID_PARAMS, message, Value::Null));
    };
    let name = params.get("name").and_then(Value::as_str);
    let is_equal = header(headers, "mcp-protocol-version") == version
        && header(headers, "mcp-method") == method
        && (method != "tools/call" || decoded(header(headers, "mcp-name")).as_deref() == name);
    if !is_equal {
        let message = "a header is not what the body says";
        return Some(Reply::error(400, Some(id), HEADER_MISMATCH, message, Value::Null));
    }
    if version == MODERN {
        return None;
    }
    let data = json!({"supported": [MODERN], "requested": version});
    let message = "this version is not spoken here";
    Some(Reply::error(400, Some(id), UNSUPPORTED_VERSION, message, data))
}

fn perform(
    world: &mut World,
    id: &Value,
    method: &str,
    params: &Map<String, Value>,
    era: Era,
) -> Reply {
    let mut result = match method {
        "ping" => json!({}),
        "server/discover" if era == Era::Modern => json!({
            "supportedVersions": [MODERN],
            "capabilities": {"tools": {}},
        }),
        "tools/list" => json!({"tools": tools::list()}),
        "tools/call" => match call(world, params) {
            Ok(result) => result,
            Err(Uncalled::Invalid(reason)) => {
                let status = if era == Era::Modern { 400 } else { 200 };
                return Reply::error(status, Some(id), INVALID_PARAMS, reason, Value::Null);
            }
            Err(Uncalled::Lost) => return Reply::Lost,
        },
        _ => {
            let status = if era == Era::Modern { 404 } else { 200 };
            return Reply::error(status, Some(id), UNKNOWN_METHOD, "no such method", Value::Null);
        }
    };
    if let (Era::Modern, Some(members)) = (era, result.as_object_mut()) {
        members.insert("resultType".to_owned(), "complete".into());
        if matches!(method, "server/discover" | "tools/list") {
            members.insert("ttlMs".to_owned(), 0.into());
            members.insert("cacheScope".to_owned(), "private".into());
        }
        let info = json!({"io.modelcontextprotocol/serverInfo": server_info()});
        members.insert("_meta".to_owned(), info);
    }
    Reply::result(id, result)
}

enum Uncalled {
    Invalid(&'static str),
    Lost,
}

fn call(world: &mut World, params: &Map<String, Value>) -> Result<Value, Uncalled> {
    let name = params.get("name").and_then(Value::as_str);
    let name = name.ok_or(Uncalled::Invalid("a call names its tool"))?;
    let empty = Map::new();
    let arguments = match params.get("arguments") {
        None => &empty,
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Err(Uncalled::Invalid("`arguments` is no object")),
    };
    match tools::call(world, name, arguments) {
        Outcome::Done(value) => Ok(json!({
            "content": [{"type": "text", "text": value.to_string()}],
            "structuredContent": value,
            "isError": false,
        })),
        Outcome::Failed(text) => Ok(json!({
            "content": [{"type": "text", "text": text}],
            "isError": true,
        })),
        Outcome::Invalid(reason) => Err(Uncalled::Invalid(reason)),
        Outcome::Lost => Err(Uncalled::Lost),
    }
}

fn server_info() -> Value {
    json!({"name": "github-mini", "version": env!("CARGO_PKG_VERSION")})
}

fn meta<'a>(params: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    params.get("_meta")?.get(format!("io.modelcontextprotocol/{name}"))
}

fn version(params: &Map<String, Value>) -> Option<&str> {
    meta(params, "protocolVersion")?.as_str()
}

/// A header's only value; what is absent, repeated or not text equals nothing that a body says.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().unwrap_or_default(),
        _ => "",
    }
}

/// The value that `=?base64?...?=` stands for.
fn decoded(value: &str) -> Option<String> {
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        None => Some(value.to_owned()),
        Some(coded) => String::from_utf8(STANDARD.decode(coded).ok()?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMENT: &str = "github__create_comment";

    struct Server {
        world: World,
        sessions: Sessions,
    }

    impl Server {
        fn new() -> Self {
            Self { world: World::new(), sessions: Sessions::default() }
        }

        fn post(&mut self, headers: &[(&'static str, &str)], body: &str) -> (u16, Value) {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, value.parse().unwrap());
            }
            match post(&mut self.world, &mut self.sessions, &map, body.as_bytes(), "s1") {
                Reply::Answer { status, body, .. } => (status, body.unwrap_or_default()),
                Reply::Lost => (0, Value::Null),
            }
        }

        fn legacy(&mut self, method: &str, params: Value) -> (u16, Value) {
            let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
            self.post(&[("mcp-session-id", "s1")], &body.to_string())
        }

        fn modern(&mut self, method: &str, mut params: Value) -> (u16, Value) {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            let name = params["name"].as_str().unwrap_or_default().to_owned();
            let body = json!({"jsonrpc": "2.0", "id": "a", "method": method, "params": params});
            let headers = [
                ("mcp-protocol-version", MODERN),
                ("mcp-method", method),
                ("mcp-name", name.as_str()),
            ];
            self.post(&headers, &body.to_string())
        }
    }

    fn comment() -> Value {
        json!({"name": COMMENT, "arguments": {
            "owner": "octo", "repo": "hello", "issue_number": 1, "body": "c"}})
    }

    #[test]
    fn an_older_client_gets_a_session_and_calls_in_it() {
        let mut server = Server::new();
        let hello = json!({"protocolVersion": "2025-06-18"});

        let (_, opened) = server.legacy("initialize", hello);
        let (status, listed) = server.legacy("tools/list", json!({}));
        let (_, called) = server.legacy("tools/call", comment());

        assert_eq!(opened["result"]["protocolVersion"], "2025-06-18");
        assert_eq!(status, 200);
        assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 11);
        assert_eq!(called["id"], 7);
        assert_eq!(called["result"]["structuredContent"]["id"], 100);
        assert_eq!(called["result"]["isError"], false);
        assert!(called["result"].get("resultType").is_none());
    }

    #[test]
    fn a_version_that_is_not_known_is_answered_with_the_newest_of_its_era() {
        let mut server = Server::new();

        let (_, opened) = server.legacy("initialize", json!({"protocolVersion": "1999-01-01"}));

        assert_eq!(opened["result"]["protocolVersion"], "2025-11-25");
    }

    #[test]
    fn a_session_that_is_not_open_is_refused() {
        let mut server = Server::new();
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

        assert_eq!(server.legacy("tools/list", json!({})).0, 404);
        assert_eq!(server.post(&[], body).0, 400);
        server.legacy("initialize", json!({}));
        assert_eq!(server.legacy("ping", json!({})).0, 200);
        assert!(server.sessions.close("s1"));
        assert_eq!(server.legacy("ping", json!({})).0, 404);
    }

    #[test]
    fn a_client_of_2026_07_28_needs_no_session() {
        let mut server = Server::new();

        let (_, discovered) = server.modern("server/discover", json!({}));
        let (_, listed) = server.modern("tools/list", json!({}));
        let (status, called) = server.modern("tools/call", comment());

        assert_eq!(discovered["result"]["supportedVersions"], json!([MODERN]));
        assert_eq!(listed["result"]["cacheScope"], "private");
        assert_eq!(status, 200);
        assert_eq!(called["id"], "a");
        assert_eq!(called["result"]["resultType"], "complete");
        assert_eq!(called["result"]["structuredContent"]["body"], "c");
    }

    #[test]
    fn mcp_1_a_header_that_differs_from_the_body_is_refused_without_effect() {
        let mut server = Server::new();
        let mut params = comment();
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let version = ("mcp-protocol-version", MODERN);
        let method = ("mcp-method", "tools/call");
        let cases = [
            vec![version, method, ("mcp-name", "github__get_issue")],
            vec![version, ("mcp-method", "tools/list"), ("mcp-name", COMMENT)],
            vec![method, ("mcp-name", COMMENT)],
            vec![version, method],
            vec![version, method, ("mcp-name", COMMENT), ("mcp-name", COMMENT)],
        ];

        for headers in cases {
            let (status, answer) = server.post(&headers, &body.to_string());
            assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32020)), "{headers:?}");
        }
        assert_eq!(server.world.effects(), 0);
        let coded = format!("=?base64?{}?=", STANDARD.encode(COMMENT));
        let (status, _) = server.post(&[version, method, ("mcp-name", &coded)], &body.to_string());
        assert_eq!((status, server.world.effects()), (200, 1));
    }

    #[test]
    fn protocol_faults_have_their_codes() {
        let mut server = Server::new();
        server.legacy("initialize", json!({}));

        let code = |answer: (u16, Value)| (answer.0, answer.1["error"]["code"].as_i64());
        assert_eq!(code(server.legacy("tools/nothing", json!({}))), (200, Some(-32601)));
        assert_eq!(code(server.modern("tools/nothing", json!({}))), (404, Some(-32601)));
        let unknown = json!({"name": "github__nothing"});
        assert_eq!(code(server.legacy("tools/call", unknown.clone())), (200, Some(-32602)));
        assert_eq!(code(server.modern("tools/call", unknown)), (400, Some(-32602)));
        assert_eq!(code(server.post(&[], "{")), (400, Some(-32700)));
        assert_eq!(code(server.post(&[], "[]")), (400, Some(-32600)));
        let null = r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#;
        assert_eq!(code(server.post(&[("mcp-session-id", "s1")], null)), (400, Some(-32600)));
        let notice = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(server.post(&[("mcp-session-id", "s1")], notice).0, 202);
    }

    #[test]
    fn what_a_tool_cannot_do_is_an_error_result() {
        let mut server = Server::new();
        let mut params = comment();
        params["arguments"]["issue_number"] = json!(9);

        let (status, answer) = server.modern("tools/call", params);

        assert_eq!(status, 200);
        assert_eq!(answer["result"]["isError"], true);
        assert_eq!(answer["result"]["content"][0]["text"], "not found");
    }
}
