//! Updates that can be taken back: a policy over HTTP and one over MCP, and upstreams for them.

use serde_json::{Value, json};

use super::{Act, Upstream};

/// Things that are read before they are changed.
pub const THINGS: &str = r#"
version: 1
operations:
  things.get:
    match: { http: "GET /things/{id}" }
    effect: { class: read }
  things.update:
    match: { http: "PATCH /things/{id}" }
    before: { operation: things.get, arguments: { path.id: request.path.id } }
    effect:
      class: reversible
      kind: update
      inverse:
        operation: things.restore
        arguments: { path.id: request.path.id, body.title: before.title }
  things.restore:
    match: { http: "PUT /things/{id}" }
    confirm: none
    effect: { class: irreversible, kind: update }
"#;

/// The same as tools.
pub const NOTES: &str = r#"
version: 1
operations:
  note.get:
    match: { tool: get_note }
    effect: { class: read }
  note.edit:
    match: { tool: edit_note }
    before: { operation: note.get, arguments: { id: request.id } }
    effect:
      class: reversible
      kind: update
      inverse: { operation: note.put, arguments: { id: request.id, text: before.text } }
  note.put:
    match: { tool: put_note }
    effect: { class: irreversible, kind: update }
"#;

/// An upstream whose things read as `state`.
pub fn things(state: &'static str) -> Upstream {
    Upstream::start(move |received| match received.method.as_str() {
        "GET" => Act::json(200, state),
        _ => Act::json(200, r#"{"title":"new"}"#),
    })
}

/// A gateway that answers every call of a tool with this.
pub fn tools(structured: Value) -> Upstream {
    Upstream::start(move |received| {
        let Ok(message) = serde_json::from_slice::<Value>(&received.body) else {
            return Act::with(405, &[], "");
        };
        let Some(id) = message.get("id") else { return Act::with(202, &[], "") };
        let names = ["get_note", "edit_note", "put_note", "wipe_note"];
        let result = match message["method"].as_str() {
            Some("server/discover") => json!({}),
            Some("tools/list") => json!({"tools": names.map(|name| json!({"name": name}))}),
            _ => json!({
                "content": [{"type": "text", "text": "done"}],
                "structuredContent": structured,
            }),
        };
        Act::json(200, &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
    })
}

/// How often a tool was called.
pub fn calls(upstream: &Upstream, tool: &str) -> usize {
    let of_tool = |body: &[u8]| {
        let message: Value = serde_json::from_slice(body).unwrap_or_default();
        message["params"]["name"] == tool
    };
    upstream.received().iter().filter(|received| of_tool(&received.body)).count()
}
