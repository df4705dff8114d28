use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::mcp::{call, post, post_with};
use crate::support::process::Home;
use crate::support::{Act, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.create:
    match: { http: "POST /things/{box}" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: things.delete, arguments: { path.box: request.path.box, path.id: response.id } }
      idempotency: { type: header, name: Idempotency-Key, replay: full, retention: 24h }
  things.delete:
    match: { http: "DELETE /things/{box}/{id}" }
    effect: { class: irreversible, kind: delete }
  notes.create:
    match: { tool: create_note }
    effect: { class: irreversible, kind: create }
    confirm: none
"#;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const OTHER_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn parent(trace: &str) -> String {
    format!("00-{trace}-00f067aa0ba902b7-01")
}

/// The lines with this event, once there are so many.
fn lines(home: &Home, event: &str, count: usize) -> Vec<Value> {
    wait::until(event, || {
        let log = home.log();
        let all: Vec<Value> = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["event"] == event)
            .collect();
        (all.len() >= count).then_some(all)
    })
}

fn members(line: &Value) -> BTreeSet<&str> {
    line.as_object().unwrap().keys().map(String::as_str).collect()
}

const EVERY_LINE: [&str; 5] = ["timestamp", "level", "target", "message", "event"];

#[test]
fn each_write_has_one_line_with_a_closed_list_of_members() {
    let upstream = Upstream::start(|_| Act::json(201, r#"{"id":"9"}"#));
    let home = Home::new(POLICY, upstream.address);
    let process = home.start_with(&["--log-format", "json"]);

    let headers = [("traceparent", parent(TRACE)), ("authorization", "Bearer s".to_owned())];
    let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let answer = process.agent().post("/things/red?x=1", &headers, "{\"a\":1}");
    assert_eq!(answer.status, 201);

    let [line] = &lines(&home, "write", 1)[..] else { panic!("one line") };
    let report = answer.report();
    assert_eq!(line["entry"], report["entry"]);
    assert_eq!(line["ledger_id"], report["ledger_id"]);
    for (member, value) in [
        ("operation", "things.create"),
        ("effect_class", "reversible"),
        ("kind", "create"),
        ("transport", "http"),
        ("route", "POST /things/{box}"),
        ("decision", "forwarded"),
        ("disposition", "accepted"),
        ("state", "accepted"),
        ("verdict", "inconclusive"),
        ("undo", "inverse"),
        ("trace_id", TRACE),
    ] {
        assert_eq!(line[member], value, "{member} in {line}");
    }
    assert_eq!((&line["attempt"], &line["upstream_status"]), (&json!(1), &json!(201)));
    assert!(line["principal"].as_str().unwrap().starts_with("w:"), "{line}");
    let allowed: BTreeSet<&str> = [
        "entry",
        "ledger_id",
        "operation",
        "effect_class",
        "kind",
        "transport",
        "route",
        "staged_for",
        "attempt",
        "decision",
        "disposition",
        "state",
        "cause",
        "verdict",
        "upstream_status",
        "undo",
        "undo_deadline_ms",
        "would",
        "principal",
        "trace_id",
        "policy_revision",
        "duration_ms",
    ]
    .into_iter()
    .chain(EVERY_LINE)
    .collect();
    assert!(members(line).is_subset(&allowed), "{line}");
}

#[test]
fn a_write_over_mcp_belongs_to_the_trace_of_its_message() {
    let upstream =
        Upstream::start(|_| Act::json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#));
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let headers = [("traceparent", parent(OTHER_TRACE))];
    let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let meta = json!({ "traceparent": parent(TRACE) });

    let body = call("1", "create_note", json!({}), Some(meta));
    post_with(&mut process.agent(), &headers, &body);

    let line = &lines(&home, "write", 1)[0];
    assert_eq!(line["trace_id"], TRACE);
    assert_eq!(line["route"], "tool create_note");
    // Without an exporter the context passes as it came, in both places.
    let sent = upstream.last();
    assert_eq!(sent.header("traceparent"), Some(parent(OTHER_TRACE).as_str()));
    assert!(sent.text().contains(&parent(TRACE)), "{}", sent.text());
}

#[test]
fn a_repeat_and_a_refusal_have_their_lines_too() {
    let upstream = Upstream::start(|_| Act::json(201, r#"{"id":"9"}"#));
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let mut agent = process.agent();
    let key = [("idempotency-key", "canary-key-1")];
    agent.post("/things/red", &key, "{}");
    agent.post("/things/red", &key, "{}");
    agent.call("DELETE", "/things/red/9", &[], "");
    agent.call("GET", "/things/../red", &[], "");

    let write = &lines(&home, "write", 1)[0];
    assert!(write["ledger_id"].as_str().unwrap().starts_with("sha256:"), "{write}");
    let replay = &lines(&home, "replay", 1)[0];
    assert_eq!((&replay["entry"], &replay["decision"]), (&write["entry"], &json!("replayed")));
    let refusals = lines(&home, "refusal", 2);
    assert_eq!(refusals[0]["code"], "confirmation_required");
    assert_eq!(refusals[0]["operation"], "things.delete");
    assert_eq!(refusals[0]["route"], "DELETE /things/{box}/{id}");
    assert_eq!(refusals[0]["principal"], write["principal"]);
    assert_eq!(refusals[1]["decision"], "ambiguous_path");
    assert_eq!(refusals[1].get("operation"), None);
    assert_eq!(upstream.count("POST"), 1);
}

/// Every place of a call that an agent or an upstream fills has a value of its own, and none of them
/// may be found in what the process says of itself.
#[test]
fn no_value_of_a_call_or_an_answer_is_in_the_log_or_the_metrics() {
    let upstream = Upstream::start(|received| match received.target.as_str() {
        "/mcp" => Act::json(
            200,
            r#"{"jsonrpc":"2.0","id":"canary-id","result":{"content":[{"type":"text","text":"canary-tool-answer"}]}}"#,
        ),
        target if target.contains("lost") => Act::Close,
        target if target.contains("odd") => Act::Bytes(b"canary-no-http\r\n\r\n".to_vec()),
        _ => Act::with(
            201,
            &[("x-answer", "canary-answer-header"), ("set-cookie", "canary-cookie-back")],
            r#"{"id":"canary-answer-id","text":"canary-answer-body"}"#,
        ),
    });
    let home = Home::new(POLICY, upstream.address);
    let process = home.start_logging("trace");
    let mut agent = process.agent();
    let headers = [
        ("authorization", "Bearer canary-bearer"),
        ("cookie", "a=canary-cookie"),
        ("x-api-key", "canary-api-key"),
        ("x-other", "canary-header"),
        ("user-agent", "canary-agent"),
        ("effect-task", "canary-task"),
        ("idempotency-key", "canary-idempotency-key"),
        ("tracestate", "vendor=canary-state"),
    ];
    let body = r#"{"canary-name":"canary-value"}"#;
    let made = agent.post("/things/canary-segment?canary-query=canary-query-value", &headers, body);
    assert_eq!(made.status, 201);
    let other = [("idempotency-key", "canary-second-key"), ("authorization", "canary-basic")];
    for target in ["/things/canary-lost?lost=canary-a", "/things/canary-odd", "/canary-undeclared"]
    {
        process.agent().post(target, &other[1..], body);
    }
    process.agent().post("/things/canary-segment", &headers[..7], r#"{"canary":"changed"}"#);
    process.agent().post(
        "/things/x",
        &[("idempotency-key", "canary key that is none, \u{1}")],
        "{}",
    );
    process.agent().post("/things/x", &[], r#"{"canary-twice":1,"canary-twice":2}"#);
    process.agent().call("GET", "/canary-a/../canary-b", &[], "");
    process.agent().call("CANARY", "/canary-method", &[], "");
    process.agent().post("/things/x", &[("x-anvil-effect", "canary-forged")], "{}");
    process.agent().post("/things/x", &[("effect-confirm", "canary-token")], "{}");
    let meta = json!({"idempotency_key": "canary-meta-key", "takeback/task": "canary-meta-task"});
    let message = call("\"canary-id\"", "create_note", json!({"a": "canary-argument"}), Some(meta));
    post(&mut process.agent(), &message);
    post(&mut process.agent(), &call("2", "canary_tool", json!({"a": "canary-argument"}), None));
    post(&mut process.agent(), "{\"jsonrpc\":\"2.0\",\"method\":\"canary/method\",\"id\":3}");
    lines(&home, "write", 4);

    let metrics = process.telemetry("/metrics").text();
    let ready = process.telemetry("/readyz").text();
    let (_, health) = home.admin("GET", "/api/v1/health");
    for (what, text) in [
        ("log", home.log()),
        ("metrics", metrics),
        ("readyz", ready),
        ("health", health.to_string()),
    ] {
        let found = text.lines().find(|line| line.to_ascii_lowercase().contains("canary"));
        assert_eq!(found, None, "in the {what}");
    }
    assert!(home.log().lines().count() > 5, "the log was on");
}
