use serde_json::{Value, json};

use crate::support::mcp::{call, envelope, events, post, request};
use crate::support::sidecar::Setup;
use crate::support::{Act, Sidecar, Upstream, noted_by_tools};

const POLICY: &str = noted_by_tools!(
    r#"        deadline: { within_ms: 60000 }
  notes.rename:
    match: { tool: rename_note }
    effect: { class: irreversible, kind: update }
    confirm: caller
  notes.lock:
    match: { tool: lock_note }
    effect: { class: irreversible, kind: update }
    confirm: caller
"#
);

const TOOLS: &str = r#"{"tools":[ {"name":"other","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},
{"name":"read_note","inputSchema":{"type":"object"}},
{"name":"create_note","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}},"annotations":{"readOnlyHint":true,"title":"T"},"_meta":{"v/x":1}},
{"name":"delete_note","inputSchema":{"type":"object","properties":{"id":{}},"required":["id"]}},
{"name":"rename_note","inputSchema":{"type":"object"}},
{"name":"lock_note","inputSchema":{"type":"object","properties":{"confirm":{"type":"boolean"}}}}
],"nextCursor":"","ttlMs":7}"#;

/// Lists the tools, and answers every call.
fn upstream(as_events: bool) -> Upstream {
    Upstream::start(move |received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = message["id"].clone();
        let result = match message["method"].as_str() {
            Some("tools/list") if message["params"]["cursor"] == "" => "{\"tools\":[]}".to_owned(),
            Some("tools/list") => TOOLS.to_owned(),
            _ => r#"{"content":[],"structuredContent":{"id":"n1"}}"#.to_owned(),
        };
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        if as_events {
            Act::events(&format!("event: message\ndata: {}\n\n", text.replace('\n', "")))
        } else {
            Act::json(200, &text)
        }
    })
}

fn tool<'a>(result: &'a Value, name: &str) -> &'a Value {
    let tools = result["tools"].as_array().unwrap();
    tools.iter().find(|tool| tool["name"] == name).unwrap()
}

#[test]
fn mcp_24_26_27_declared_tools_say_what_they_do_and_the_rest_is_as_it_came() {
    let upstream = upstream(false);
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = post(&mut sidecar.agent(), &request("1", "tools/list", json!({})));

    assert!(answer.text().contains(
        r#"{"name":"other","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}"#
    ));
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
    let result = &answer.json()["result"];
    assert_eq!((&result["nextCursor"], &result["ttlMs"]), (&json!(""), &json!(7)));
    let created = tool(result, "create_note");
    assert_eq!(
        created["_meta"],
        json!({
            "v/x": 1,
            "anvil/effect_class": "reversible",
            "anvil/effect_contract": {
                "class": "reversible",
                "inverse": {
                    "operation": "notes.delete",
                    "tool": "delete_note",
                    "arguments": {"id": "response.id"},
                    "deadline": {"within_ms": 60000}
                },
                "evidence": "none"
            },
            "anvil/operation_id": "notes.create"
        })
    );
    assert_eq!(
        created["annotations"],
        json!({"readOnlyHint": false, "title": "T", "destructiveHint": false})
    );
    assert_eq!(tool(result, "read_note")["annotations"]["readOnlyHint"], true);
    assert_eq!(tool(result, "delete_note")["annotations"]["destructiveHint"], true);
    assert_eq!(created["inputSchema"]["properties"].get("confirm"), None);
    let deleted = &tool(result, "delete_note")["inputSchema"];
    assert_eq!(deleted["properties"]["confirm"]["type"], "string");
    assert_eq!(deleted["required"], json!(["id"]));
    let renamed = &tool(result, "rename_note")["inputSchema"]["properties"]["confirm"];
    assert_eq!(renamed["type"], json!(["boolean", "string"]));
    let locked = &tool(result, "lock_note")["inputSchema"]["properties"]["confirm"];
    assert_eq!(*locked, json!({"type": "boolean"}), "its own");
}

#[test]
fn mcp_27_a_list_on_a_stream_is_decorated_too() {
    let upstream = upstream(true);
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = post(&mut sidecar.agent(), &request("1", "tools/list", json!({})));

    let message = events(&answer.text()).pop().unwrap();
    let meta = &tool(&message["result"], "delete_note")["_meta"];
    assert_eq!(meta["anvil/effect_class"], "irreversible");
}

#[test]
fn a_confirm_that_we_added_is_the_callers_word_and_stays_here() {
    for is_listed in [true, false] {
        let upstream = upstream(false);
        let sidecar = Sidecar::start(POLICY, &upstream);
        let mut agent = sidecar.agent();
        if is_listed {
            post(&mut agent, &request("1", "tools/list", json!({})));
        }

        let arguments = json!({"to": "x", "confirm": true});
        let answer = post(&mut agent, &call("2", "rename_note", arguments, None));

        assert_eq!(answer.json()["result"]["_meta"]["effect"]["outcome"], "accepted");
        let sent: Value = serde_json::from_slice(&upstream.last().body).unwrap();
        assert_eq!(sent["params"]["arguments"], json!({"to": "x"}));
    }
}

#[test]
fn a_confirm_of_the_tool_itself_is_the_tools_and_no_word_for_us() {
    let upstream = upstream(false);
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let refused = post(&mut agent, &call("1", "lock_note", json!({"confirm": true}), None));
    let meta = Some(json!({"confirm": true}));
    post(&mut agent, &call("2", "lock_note", json!({"confirm": true}), meta));

    let error = envelope(&refused.json()["result"])["error"].clone();
    assert_eq!(error["code"], "confirmation_required");
    let sent: Value = serde_json::from_slice(&upstream.last().body).unwrap();
    assert_eq!(sent["params"]["arguments"], json!({"confirm": true}));
}

#[test]
fn a_word_is_no_answer_to_a_challenge() {
    let upstream = upstream(false);
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let refused = post(&mut agent, &call("1", "delete_note", json!({"confirm": true}), None));

    let error = envelope(&refused.json()["result"])["error"].clone();
    assert_eq!(error["code"], "confirmation_required");
    assert!(upstream.received().iter().all(|received| received.text().contains("tools/list")));
}

fn pinned(pin: &str) -> String {
    format!(
        "{POLICY}  notes.file:\n    match: {{ tool: create_note_2 }}\n    effect: {{ class: read }}\n    schema_sha256: \"{pin}\"\n"
    )
}

#[test]
fn a_tool_that_is_not_as_it_was_pinned_is_irreversible() {
    let schema = r#"{"type":"object","properties":{"text":{"type":"string"}}}"#;
    for (pin, is_kept) in [(as_imported(schema), true), ("00".repeat(32), false)] {
        let upstream = Upstream::start(move |received| {
            let message: Value = serde_json::from_slice(&received.body).unwrap();
            let id = message["id"].clone();
            let result = match message["method"].as_str() {
                Some("tools/list") => {
                    format!(r#"{{"tools":[{{"name":"create_note_2","inputSchema":{schema}}}]}}"#)
                }
                _ => r#"{"content":[]}"#.to_owned(),
            };
            Act::json(200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
        });
        let sidecar = Sidecar::start(&pinned(&pin), &upstream);
        let mut agent = sidecar.agent();

        let called = post(&mut agent, &call("1", "create_note_2", json!({}), None)).json();
        let listed = post(&mut agent, &request("2", "tools/list", json!({}))).json();

        let effect = &called["result"]["_meta"]["effect"];
        let meta = &tool(&listed["result"], "create_note_2")["_meta"];
        if is_kept {
            assert_eq!(effect["class"], "read");
            assert_eq!(meta["anvil/effect_class"], "read");
        } else {
            assert_eq!(effect["class"], "irreversible");
            assert_eq!(effect["refused"], "confirmation_required");
            assert_eq!(meta["anvil/effect_class"], "irreversible");
            let note = meta["anvil/effect_contract"]["note"].as_str().unwrap();
            assert!(note.contains("schema_sha256"), "{note}");
        }
    }
}

/// The pin that `import` writes for the tool.
fn as_imported(schema: &str) -> String {
    let list = format!(r#"{{"tools":[{{"name":"create_note_2","inputSchema":{schema}}}]}}"#);
    let skeleton = takeback::policy::import_tools("tools.json", list).unwrap().skeleton;
    let (_, rest) = skeleton.split_once("schema_sha256: \"").unwrap();
    rest.split_once('"').unwrap().0.to_owned()
}

#[test]
fn d17_mcp_24_hints_are_trusted_only_where_the_operator_says_so() {
    for is_trusted in [false, true] {
        let upstream = upstream(false);
        let mut setup = Setup::new(POLICY);
        setup.mcp.trust_annotations = is_trusted;
        let sidecar = setup.start(&upstream);

        let answer = post(&mut sidecar.agent(), &call("1", "other", json!({}), None));

        let effect = &answer.json()["result"]["_meta"]["effect"];
        assert_eq!(effect["operation"], "_undeclared");
        assert_eq!(effect["class"], if is_trusted { "read" } else { "irreversible" });
    }
}
