use serde_json::{Value, json};

use crate::support::{Act, Agent, Sidecar, Upstream, noted_by_tools};

const POLICY: &str = noted_by_tools!(
    r#"      idempotency: { type: argument, name: request_key }
  mail.send:
    match: { tool: send_mail }
    effect: { class: irreversible, kind: external_side_effect }
"#
);

/// Answers `tools/call` by the tool's name; everything else with an empty result.
fn upstream() -> Upstream {
    Upstream::start(|received| {
        let Ok(message) = serde_json::from_slice::<Value>(&received.body) else {
            return Act::Bytes(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n".to_vec());
        };
        let id = message["id"].clone();
        let result = match message["params"]["name"].as_str() {
            Some("create_note") => json!({
                "content": [], "structuredContent": {"id": "n1"}, "_meta": {"vendor/x": 1}
            }),
            Some("broken") => json!({"content": [{"type":"text","text":"no"}], "isError": true}),
            Some(_) => json!({"content": [{"type":"text","text":"done"}]}),
            None => json!({}),
        };
        Act::json(200, &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
    })
}

fn call(id: &str, name: &str, arguments: Value, meta: Option<Value>) -> String {
    let mut params = json!({"name": name, "arguments": arguments});
    if let Some(meta) = meta {
        params["_meta"] = meta;
    }
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#)
}

fn post(agent: &mut Agent, body: &str) -> crate::support::agent::Answer {
    let accept = [("accept", "application/json, text/event-stream")];
    agent.post("/mcp", &accept, body)
}

fn envelope(result: &Value) -> Value {
    assert_eq!(result["isError"], true, "{result}");
    assert_eq!(result.get("structuredContent"), None);
    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
}

#[test]
fn d1_ids_come_back_as_the_same_token() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    for id in ["0", "\"0\"", "\"a-b\"", "-7"] {
        for name in ["read_note", "send_mail"] {
            let answer = post(&mut agent, &call(id, name, json!({}), None));
            assert_eq!(answer.status, 200);
            assert!(answer.text().contains(&format!("\"id\":{id}")), "{}", answer.text());
        }
    }
}

#[test]
fn d4_d5_the_report_goes_into_meta_and_every_other_byte_stays() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = post(&mut sidecar.agent(), &call("1", "create_note", json!({"text": "x"}), None));

    let result = &answer.json()["result"];
    assert_eq!(result["structuredContent"], json!({"id": "n1"}));
    assert_eq!(result["_meta"]["vendor/x"], 1);
    let effect = &result["_meta"]["effect"];
    assert_eq!(effect["class"], "reversible");
    assert_eq!(effect["outcome"], "accepted");
    assert_eq!(effect["undo"]["tool"], "delete_note");
    assert_eq!(effect["undo"]["arguments"], json!({"id": "n1"}));
    assert_eq!(answer.header("x-anvil-effect"), None);
    let sent: Value = serde_json::from_slice(&upstream.only().body).unwrap();
    assert_eq!(sent["params"]["arguments"]["request_key"], effect["idempotency_key"]);
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn d6_d9_mcp_22_a_refusal_is_a_result_that_a_model_can_act_on() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let refused = post(&mut agent, &call("1", "send_mail", json!({"to": "a"}), None));

    assert_eq!(refused.status, 200);
    let result = refused.json()["result"].clone();
    let error = envelope(&result)["error"].clone();
    assert_eq!(error["code"], "confirmation_required");
    assert_eq!(result["_meta"]["effect"]["refused"], "confirmation_required");
    let token = error["details"]["confirm"]["token"].as_str().unwrap().to_owned();
    assert!(error["message"].as_str().unwrap().contains(&token));
    assert!(error["message"].as_str().unwrap().starts_with("Nothing was sent."));
    assert!(upstream.received().is_empty());

    let meta = json!({"takeback/confirm": token});
    let confirmed = post(&mut agent, &call("2", "send_mail", json!({"to": "a"}), Some(meta)));
    assert_eq!(confirmed.json()["result"]["_meta"]["effect"]["outcome"], "accepted");
    let sent: Value = serde_json::from_slice(&upstream.only().body).unwrap();
    assert_eq!(sent["params"].get("_meta"), None, "our control stays here");
}

#[test]
fn a_model_that_can_only_set_arguments_confirms_with_one() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let refused = post(&mut agent, &call("1", "send_mail", json!({"to": "a"}), None));
    let error = envelope(&refused.json()["result"])["error"].clone();
    let token = error["details"]["confirm"]["token"].as_str().unwrap().to_owned();

    let arguments = json!({"to": "a", "confirm": token});
    let confirmed = post(&mut agent, &call("2", "send_mail", arguments, None));

    assert_eq!(confirmed.json()["result"]["_meta"]["effect"]["outcome"], "accepted");
    let sent: Value = serde_json::from_slice(&upstream.only().body).unwrap();
    assert_eq!(sent["params"]["arguments"], json!({"to": "a"}));
}

#[test]
fn d3_e1_what_parsers_disagree_about_is_refused_and_nothing_is_sent() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let send = call("1", "send_mail", json!({}), None);
    let bodies = [
        format!("[{send}]"),
        format!("  [{send}]"),
        "[]".to_owned(),
        send.replace("\"params\"", "\"params\":{\"name\":\"read_note\"},\"params\""),
        send.replace("\"name\"", "\"name\":\"read_note\",\"name\""),
        send.replace("\"method\"", "\"method\":\"ping\",\"m\\u0065thod\""),
        format!("\u{feff}{send}"),
        send.replace("tools/call", "Tools/Call"),
        send.replace("\"id\":1,", ""),
        send.replace("\"id\":1", "\"id\":1.5"),
        send.replace("\"id\":1", "\"id\":null"),
        send.replace("\"arguments\":{}", "\"arguments\":[]"),
    ];
    for body in bodies {
        let answer = post(&mut agent, &body);
        assert!([400, 404].contains(&answer.status), "{body}: {}", answer.status);
        assert!(answer.json()["error"]["code"].is_i64(), "{body}");
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn c6_c7_d17_only_the_exact_name_is_declared() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    for name in
        ["read-note", "READ_NOTE", "read_note ", "files/read_note", "rеad_note", "ｒead_note"]
    {
        let answer = post(&mut agent, &call("1", name, json!({}), None));
        let effect = &answer.json()["result"]["_meta"]["effect"];
        assert_eq!(effect["operation"], "_undeclared", "{name}");
        assert_eq!(effect["class"], "irreversible", "{name}");
        assert_eq!(effect["refused"], "confirmation_required", "{name}");
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn mcp_1_9_10_14_mirrored_headers_must_equal_the_body() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}
    });
    let body = call("1", "read_note", json!({}), Some(meta));
    let headers = |name: &'static str, method: &'static str| {
        [("mcp-protocol-version", "2026-07-28"), ("mcp-method", method), ("mcp-name", name)]
    };

    let equal = agent.post("/mcp", &headers("read_note", "tools/call"), &body);
    let name = agent.post("/mcp", &headers("send_mail", "tools/call"), &body);
    let method = agent.post("/mcp", &headers("read_note", "ping"), &body);
    let missing = agent.post("/mcp", &[("mcp-protocol-version", "2026-07-28")], &body);

    assert_eq!(equal.status, 200);
    assert_eq!(equal.json()["result"]["_meta"]["effect"]["class"], "read");
    for answer in [name, method, missing] {
        assert_eq!(answer.status, 400);
        assert_eq!(answer.json()["error"]["code"], -32020);
    }
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn other_methods_pass_and_unknown_ones_do_not() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let body = |method: &str| format!(r#"{{"jsonrpc":"2.0","id":1, "method":"{method}"}}"#);

    let listed = post(&mut agent, &body("tools/list"));
    let unknown = post(&mut agent, &body("vendor/run"));
    let stream = agent.call("GET", "/mcp", &[("accept", "text/event-stream")], "");

    assert_eq!(listed.status, 200);
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["error"]["code"], -32601);
    assert_eq!(stream.status, 405, "d12: the upstream's own answer");
    let received = upstream.received();
    assert_eq!(received.len(), 2);
    assert_eq!(received[0].text(), body("tools/list"), "untouched");
}

#[test]
fn d2_an_answer_to_another_id_is_no_answer() {
    let upstream =
        Upstream::start(|_| Act::json(200, r#"{"jsonrpc":"2.0","id":0,"result":{"content":[]}}"#));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = post(&mut sidecar.agent(), &call("42", "create_note", json!({}), None));

    assert_eq!(answer.json()["id"], 42);
    assert_eq!(envelope(&answer.json()["result"])["error"]["code"], "outcome_unknown");
    sidecar.wait_entries(&[("unknown", "unreadable")]);
}

#[test]
fn mcp_23_an_error_result_is_ambiguous_and_passes() {
    let policy = format!(
        "{POLICY}  broken:\n    match: {{ tool: broken }}\n    effect: {{ class: irreversible, kind: update }}\n    confirm: caller\n"
    );
    let upstream = upstream();
    let sidecar = Sidecar::start(&policy, &upstream);
    let meta = json!({"confirm": true});

    let answer = post(&mut sidecar.agent(), &call("1", "broken", json!({}), Some(meta)));

    let result = &answer.json()["result"];
    assert_eq!(result["content"][0]["text"], "no");
    assert_eq!(result["_meta"]["effect"]["outcome"], "unknown");
    sidecar.wait_entries(&[("unknown", "is_error")]);
}

#[test]
fn mcp_23_an_error_result_is_a_rejection_where_the_policy_says_so() {
    let policy = format!(
        "{POLICY}  broken:\n    match: {{ tool: broken }}\n    effect: {{ class: irreversible, kind: update }}\n    confirm: caller\n    is_error: rejected\n"
    );
    let upstream = upstream();
    let sidecar = Sidecar::start(&policy, &upstream);
    let made = || {
        let meta = json!({"confirm": true});
        post(&mut sidecar.agent(), &call("1", "broken", json!({}), Some(meta))).json()
    };

    let answer = made();
    let again = made();

    for answer in [answer, again] {
        let result = &answer["result"];
        assert_eq!(result["content"][0]["text"], "no", "the upstream's own words");
        assert_eq!(result["_meta"]["effect"]["outcome"], "rejected");
        assert_eq!(result["_meta"]["effect"]["undo"], Value::Null);
    }
    sidecar.wait_entries(&[("rejected", "is_error"), ("rejected", "is_error")]);
    assert_eq!(upstream.received().len(), 2, "what was rejected may be tried again");
}

#[test]
fn d10_a_stale_session_passes_and_the_entry_is_rejected() {
    let upstream = Upstream::start(|_| {
        Act::json(
            404,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#,
        )
    });
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = post(&mut sidecar.agent(), &call("1", "create_note", json!({}), None));

    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["error"]["message"], "Session not found");
    sidecar.wait_entries(&[("rejected", "")]);
}

#[test]
fn d15_the_same_key_under_a_new_id_gets_the_recorded_result() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let meta = || Some(json!({"idempotency_key": "k"}));

    let first = post(&mut agent, &call("1", "create_note", json!({"a": 1}), meta()));
    let again = post(&mut agent, &call("\"two\"", "create_note", json!({"a": 1}), meta()));

    assert_eq!(first.json()["result"]["_meta"]["effect"]["idempotency_key"], "k");
    let again = again.json();
    assert_eq!(again["id"], "two");
    assert_eq!(again["result"]["structuredContent"], json!({"id": "n1"}));
    assert_eq!(again["result"]["_meta"]["effect"]["replayed"], true);
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn mcp_19_d7_d8_the_answer_event_is_rewritten_and_all_other_bytes_pass() {
    let before = ": hello\n\nid: 1\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"t\":\"\u{4f60}\u{597d} \u{1f642}\"}}\n\n";
    let events = format!(
        "{before}id: 2\r\nevent: message\r\nretry: 5\r\ndata:{{\"jsonrpc\":\"2.0\",\"id\":9,\r\n\
         data: \"result\":{{\"content\":[],\"structuredContent\":{{\"id\":\"n1\"}}}}}}\r\n\r\n"
    );
    let pieces: Vec<Vec<u8>> = std::iter::once(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_vec(),
    )
    .chain(events.bytes().map(|byte| vec![byte]))
    .collect();
    let upstream = Upstream::start(move |_| Act::Pieces(pieces.clone()));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = post(&mut sidecar.agent(), &call("9", "create_note", json!({}), None));

    let text = answer.text();
    assert!(text.starts_with(before), "{text}");
    let rest = &text[before.len()..];
    assert!(rest.starts_with("id: 2\r\nevent: message\r\nretry: 5\r\ndata: {"), "{rest}");
    assert!(rest.ends_with("\r\n\r\n"));
    let data = rest.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let message: Value = serde_json::from_str(data).unwrap();
    assert_eq!(message["result"]["_meta"]["effect"]["undo"]["arguments"], json!({"id": "n1"}));
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn mcp_21_a_stream_that_ends_without_the_answer_gets_one_from_us() {
    let upstream = Upstream::start(|_| Act::events(": nothing\n\n"));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = post(&mut sidecar.agent(), &call("9", "create_note", json!({}), None));

    let text = answer.text();
    let data = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let message: Value = serde_json::from_str(data).unwrap();
    assert_eq!(message["id"], 9);
    let error = envelope(&message["result"])["error"].clone();
    assert_eq!(error["code"], "outcome_unknown");
    assert!(error["message"].as_str().unwrap().contains("Do not repeat it"));
    sidecar.wait_entries(&[("unknown", "truncated_body")]);
}

#[test]
fn mcp_is_spoken_only_on_its_own_paths_and_never_guessed_from_a_body() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let body = call("1", "read_note", json!({}), None);

    let answer = sidecar.agent().post("/mcp/", &[], &body);

    assert_eq!(answer.status, 428, "an undeclared POST");
    assert!(upstream.received().is_empty());
}

#[test]
fn mcp_16_pages_of_another_origin_are_refused() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let body = call("1", "read_note", json!({}), None);

    let foreign = sidecar.agent().post("/mcp", &[("origin", "https://evil.example")], &body);
    let own = sidecar.agent().post("/mcp", &[("origin", "https://proxy")], &body);

    assert_eq!(foreign.status, 403);
    assert_eq!(own.status, 200);
    assert_eq!(upstream.received().len(), 1);
}
