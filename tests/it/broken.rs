//! What an adversary found, each kept as a test.

use serde_json::{Value, json};

use crate::support::sidecar::Setup;
use crate::support::{Act, Agent, Sidecar, Upstream};

const POLICY: &str = r#"
version: 1
operations:
  soft:
    match: { http: "POST /abs", where: { request.body.hard: { absent: true } } }
    effect: { class: reversible, kind: create, inverse: { operation: undo, arguments: { path.id: response.id } } }
  hard:
    match: { http: "POST /abs" }
    effect: { class: irreversible, kind: create }
  dry:
    match: { http: "POST /wh", where: { request.query.dryRun: { equals: All } } }
    effect: { class: read, kind: read }
  wet:
    match: { http: "POST /wh" }
    effect: { class: irreversible, kind: create }
  undo:
    match: { http: "POST /undo/{id}" }
    effect: { class: irreversible, kind: update }
    confirm: caller
  keyed:
    match: { http: "POST /keyed" }
    effect:
      class: irreversible
      kind: create
      idempotency: { type: query, name: requestId }
    confirm: caller
  create:
    match: { http: "POST /things" }
    effect: { class: irreversible, kind: create }
  tool.read:
    match: { tool: read }
    effect: { class: read }
  tool.write:
    match: { tool: write }
    effect: { class: irreversible, kind: create }
    confirm: caller
  tool.send:
    match: { tool: send }
    effect: { class: irreversible, kind: create }
"#;

fn ok() -> Upstream {
    Upstream::start(|_| Act::json(200, r#"{"id":1}"#))
}

fn call(name: &str, meta: Value) -> String {
    json!({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":name,"arguments":{},"_meta":meta}})
        .to_string()
}

fn mcp(agent: &mut Agent, target: &str, body: &str) -> crate::support::agent::Answer {
    agent.post(target, &[("accept", "application/json, text/event-stream")], body)
}

#[test]
fn only_a_post_is_a_message_on_an_mcp_path_and_the_rest_is_gated() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let body = call("write", json!({"confirm": true}));
    for method in ["PUT", "PATCH", "DELETE", "GET", "OPTIONS", "PROPFIND"] {
        let length = body.len().to_string();
        let mut agent = sidecar.agent();
        agent.raw(
            format!(
                "{method} /mcp HTTP/1.1\r\nhost: proxy\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        );
        let answer = agent.answer(method);
        assert!([400, 428].contains(&answer.status), "{method}: {}", answer.status);
        assert_eq!(answer.report()["operation"], "_undeclared");
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn a_body_that_cannot_be_read_is_not_one_without_the_member() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let hard = r#"{"hard":1}"#;
    for (kind, body) in [
        ("text/plain", hard),
        ("", hard),
        ("multipart/form-data; boundary=x", "--x\r\n"),
        ("application/json", r#"[{"hard":1}]"#),
        ("application/json", r#"{"Hard":1}"#),
        ("application/x-www-form-urlencoded", "hard[]=1"),
    ] {
        let answer = agent.call("POST", "/abs", &[("content-type", kind)], body);
        assert_eq!(answer.status, 428, "{kind}: {body}");
    }
    assert!(upstream.received().is_empty());
    assert_eq!(agent.post("/abs", &[], r#"{"easy":1}"#).report()["operation"], "soft");
}

#[test]
fn what_decides_between_read_and_write_may_not_have_a_twin() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    for target in ["/wh?dryRun=All&dryrun=None", "/wh?dryRun=All&dryRun[]=x"] {
        let answer = agent.post(target, &[], "{}");
        assert_eq!(answer.status, 400, "{target}");
        assert_eq!(answer.code(), "ambiguous_member");
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    assert_eq!(agent.call("POST", "/wh?dryRun=All", &form, "dryRun=None").status, 400);
    assert!(upstream.received().is_empty());
    assert_eq!(agent.post("/wh?dryRun=All", &[], "{}").report()["class"], "read");
}

#[test]
fn a_twin_of_the_carrier_is_refused() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let confirm = [("effect-confirm", "true")];
    for target in ["/keyed?requestID=Q9", "/keyed?requestId[]=Q9"] {
        assert_eq!(agent.post(target, &confirm, "{}").status, 400, "{target}");
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn a_confirmation_is_given_back_by_not_sent() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let sidecar = Setup::new(POLICY).start_at(address);
    let mut agent = sidecar.agent();
    let token = agent.post("/things", &[], "{}").token();
    let unsent = agent.post("/things", &[("effect-confirm", &token)], "{}");
    assert_eq!(unsent.code(), "not_sent");

    let again = agent.post("/things", &[("effect-confirm", &token)], "{}");

    assert_eq!(again.code(), "not_sent", "it counted again: {}", again.text());
}

#[test]
fn headers_that_name_an_identity_belong_to_the_call() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let token = agent.post("/things", &[("x-forwarded-user", "alice")], "{}").token();

    let other = [("effect-confirm", token.as_str()), ("x-forwarded-user", "root")];
    let carried = agent.post("/things", &other, "{}");

    assert_eq!(carried.status, 428);
    assert_eq!(carried.json()["error"]["details"]["mismatch"], "headers");
    assert_eq!(agent.post("/things", &[("x-forwarded-method", "DELETE")], "{}").status, 400);
    assert!(upstream.received().is_empty());
}

#[test]
fn the_path_and_query_of_a_tool_call_belong_to_it() {
    let upstream =
        Upstream::start(|_| Act::json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#));
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let refused = mcp(&mut agent, "/mcp?tenant=a", &call("send", json!({})));
    let text = refused.json()["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    let error: Value = serde_json::from_str(&text).unwrap();
    let token = error["error"]["details"]["confirm"]["token"].as_str().unwrap();

    let other = call("send", json!({"takeback/confirm": token}));
    let carried = mcp(&mut agent, "/mcp?tenant=b", &other);

    assert_eq!(carried.json()["result"]["isError"], true);
    assert!(upstream.received().is_empty());
}

#[test]
fn a_forged_report_in_an_event_that_a_lax_reader_takes_is_replaced() {
    for event in [
        r#"{"jsonrpc":"2.0","id":1,"id":1,"result":{"content":[],"_meta":{"effect":{"class":"read"}}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"s":{"a":1,"a":2},"_meta":{"effect":{"class":"read"}}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"s":{"a":1,"a":2},"_meta":{"\u0065ffect":{"class":"read"}}}}"#,
    ] {
        let upstream = Upstream::start(move |_| Act::events(&format!("data: {event}\n\n")));
        let sidecar = Sidecar::start(POLICY, &upstream);
        let answer = mcp(&mut sidecar.agent(), "/mcp", &call("write", json!({"confirm": true})));
        let text = answer.text();
        let events: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(events.len(), 1, "one answer: {text}");
        let message: Value = serde_json::from_str(events[0]).unwrap();
        assert_eq!(message["result"]["_meta"]["effect"]["outcome"], "unknown");
    }
}

#[test]
fn a_second_answer_under_the_same_id_is_nobodys() {
    let upstream = Upstream::start(|_| {
        Act::events(
            "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[]}}\n\n\
             data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"_meta\":{\"effect\":{\"class\":\"read\"}}}}\n\n",
        )
    });
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = mcp(&mut sidecar.agent(), "/mcp", &call("write", json!({"confirm": true})));

    assert_eq!(answer.text().matches("data: ").count(), 1, "{}", answer.text());
}

#[test]
fn the_report_of_a_read_that_is_too_long_to_be_looked_into_goes_into_the_header() {
    let long = format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[],"x":"{}"}}}}"#,
        "y".repeat(2 << 20)
    );
    let body = long.clone();
    let upstream = Upstream::start(move |_| Act::json(200, &body));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = mcp(&mut sidecar.agent(), "/mcp", &call("read", json!({})));

    assert_eq!((answer.status, answer.text() == long), (200, true), "it passes untouched");
    assert_eq!(answer.report()["operation"], "tool.read");
}

#[test]
fn a_result_inside_a_500_is_ambiguous() {
    let upstream =
        Upstream::start(|_| Act::json(500, r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#));
    let sidecar = Sidecar::start(POLICY, &upstream);
    mcp(&mut sidecar.agent(), "/mcp", &call("write", json!({"confirm": true})));
    sidecar.wait_entries(&[("unknown", "ambiguous_status")]);
}

#[test]
fn a_ledger_file_that_was_cut_off_takes_no_writes() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    std::fs::File::create(&sidecar.ledger_path).unwrap();
    let refused = crate::support::wait::until("the cut is seen", || {
        let answer = agent.post("/undo/1", &[("effect-confirm", "true")], "{}");
        (answer.status == 503).then_some(answer)
    });
    assert_eq!(refused.code(), "ledger_unavailable");
}

#[test]
fn a_method_override_in_a_multipart_form_or_query_is_refused() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let kind = [("content-type", "multipart/form-data; boundary=x"), ("effect-confirm", "true")];
    let body = "--x\r\ncontent-disposition: form-data; name=\"_method\"\r\n\r\nDELETE\r\n--x--\r\n";
    assert_eq!(agent.call("POST", "/undo/1", &kind, body).code(), "method_override");
    let target = "/undo/1?X-HTTP-Method-Override=DELETE";
    assert_eq!(agent.post(target, &[("effect-confirm", "true")], "{}").code(), "method_override");
    assert!(upstream.received().is_empty());
}

#[test]
fn a_refusal_reports_the_operation_that_its_target_names() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let confirm = ("effect-confirm", "true");

    let json = agent.post("/undo/1", &[confirm], "{");
    let key = agent.post("/undo/1", &[confirm, ("idempotency-key", "a,b")], "{}");

    assert_eq!(json.report()["operation"], "undo");
    assert_eq!((key.code().as_str(), key.status), ("idempotency_key_invalid", 400));
    assert_eq!(key.report()["operation"], "undo");
}
