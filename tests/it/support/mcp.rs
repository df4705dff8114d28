//! MCP messages, as an agent sends them and a test reads them.

use serde_json::{Value, json};

use super::agent::{Agent, Answer};

/// A tool that reads, one that may write unasked, one that needs a challenge and one that needs a
/// person.
pub const NOTES: &str = r#"
version: 1
operations:
  notes.read:
    match: { tool: read_note }
    effect: { class: read }
  notes.create:
    match: { tool: create_note }
    effect: { class: irreversible, kind: create }
    confirm: none
  notes.delete:
    match: { tool: delete_note }
    effect: { class: irreversible, kind: delete }
  notes.purge:
    match: { tool: purge }
    effect: { class: irreversible, kind: delete }
    confirm: human
"#;

/// The session that an upstream of these tests gives.
pub const SESSION: (&str, &str) = ("mcp-session-id", "s1");

/// An answer to the message 1.
pub const DONE: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#;

/// A `tools/call`; `id` is the JSON token.
pub fn call(id: &str, name: &str, arguments: Value, meta: Option<Value>) -> String {
    let mut params = json!({"name": name, "arguments": arguments});
    if let Some(meta) = meta {
        params["_meta"] = meta;
    }
    request(id, "tools/call", params)
}

/// Any request; `id` is the JSON token.
pub fn request(id: &str, method: &str, params: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// Posts a message to `/mcp`.
pub fn post(agent: &mut Agent, body: &str) -> Answer {
    post_with(agent, &[], body)
}

/// Posts a message to `/mcp` with further headers.
pub fn post_with(agent: &mut Agent, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut all = vec![("accept", "application/json, text/event-stream")];
    all.extend_from_slice(headers);
    agent.post("/mcp", &all, body)
}

/// The `_meta` of a modern request whose client can show forms, or not.
pub fn modern(can_elicit: bool) -> Value {
    let capabilities = if can_elicit { json!({"elicitation": {"form": {}}}) } else { json!({}) };
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities
    })
}

/// Posts a modern `tools/call` with its mirrored headers.
pub fn post_modern(agent: &mut Agent, id: &str, params: Value) -> Answer {
    let name = params["name"].as_str().unwrap().to_owned();
    let headers = [
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", name.as_str()),
    ];
    post_with(agent, &headers, &request(id, "tools/call", params))
}

/// The envelope in the text of an error result.
pub fn envelope(result: &Value) -> Value {
    assert_eq!(result["isError"], true, "{result}");
    assert_eq!(result.get("structuredContent"), None);
    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
}

/// The data of a stream's events, those that have any, as JSON.
pub fn events(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| line.strip_prefix("data: ").or_else(|| line.strip_prefix("data:")))
        .filter(|data| !data.is_empty())
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}
