use serde_json::{Value, json};

use crate::support::mcp::{call, envelope, events, modern, post, post_modern, post_with, request};
use crate::support::{Act, Sidecar, Upstream};

const POLICY: &str = r#"
version: 1
operations:
  things.ask:
    match: { tool: asks_first }
    effect:
      class: irreversible
      kind: create
      idempotency: { type: argument, name: key }
  things.job:
    match: { tool: job }
    effect:
      class: reversible
      kind: create
      inverse:
        operation: things.ask
        arguments: { id: response.id }
  things.page:
    match: { tool: page }
    effect: { class: reversible, kind: create, inverse: { operation: things.ask, arguments: {} } }
"#;

/// `asks_first` asks until it is answered with its own state; `page` wants a page visited once; `job`
/// gives a handle in the form of the caller's era.
fn upstream() -> Upstream {
    Upstream::start(|received| {
        let Ok(message) = serde_json::from_slice::<Value>(&received.body) else {
            let news = r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"t1","status":"failed"}}"#;
            return Act::events(&format!("data: {news}\n\n"));
        };
        let id = message["id"].clone();
        let params = &message["params"];
        let done = json!({"content": [], "structuredContent": {"id": "n1"}});
        let is_modern = params["_meta"]["io.modelcontextprotocol/protocolVersion"].is_string();
        let result = match (message["method"].as_str().unwrap(), params["name"].as_str()) {
            ("tools/call", Some("asks_first")) if params["requestState"] == "theirs" => done,
            ("tools/call", Some("asks_first")) => json!({
                "resultType": "input_required",
                "inputRequests": {"q": {"method": "elicitation/create", "params": {}}},
                "requestState": "theirs"
            }),
            ("tools/call", Some("page")) if params["_meta"]["visited"] != true => {
                let error =
                    json!({"code": -32042, "message": "visit", "data": {"elicitations": []}});
                let body = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
                return Act::json(200, &body);
            }
            ("tools/call", Some("job")) if is_modern => {
                json!({"resultType": "task", "taskId": "t1", "status": "working", "ttlMs": 1000})
            }
            ("tools/call", Some("job")) => json!({"task": {"taskId": "t1", "status": "working"}}),
            ("tasks/get", _) if is_modern => {
                json!({"resultType": "complete", "taskId": "t1", "status": "completed", "result": done})
            }
            ("tasks/get", _) => json!({"taskId": "t1", "status": "working"}),
            ("tools/list", _) => json!({"tools": [{"name": "asks_first", "inputSchema": {}}]}),
            ("tasks/cancel", _) => json!({"taskId": "t1", "status": "cancelled"}),
            _ => done,
        };
        Act::json(200, &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
    })
}

/// The tool calls that arrived.
fn calls(upstream: &Upstream) -> Vec<Value> {
    let received = upstream.received();
    let bodies = received.iter().map(|r| serde_json::from_slice::<Value>(&r.body).unwrap());
    bodies.filter(|body| body["method"] == "tools/call").collect()
}

fn confirmed(tool: &str, agent: &mut crate::support::Agent) -> Value {
    let params = json!({"name": tool, "arguments": {"a": 1}, "_meta": modern(false)});
    let refused = post_modern(agent, "1", params.clone()).json();
    let error = envelope(&refused["result"])["error"].clone();
    let token = error["details"]["confirm"]["token"].as_str().unwrap().to_owned();
    let mut params = params;
    params["_meta"]["takeback/confirm"] = json!(token);
    params
}

#[test]
fn mcp_35_an_upstreams_own_round_goes_on_with_the_same_entry_and_key() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let params = confirmed("asks_first", &mut agent);

    let asked = post_modern(&mut agent, "2", params).json();
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required");
    assert_eq!(result["inputRequests"]["q"]["method"], "elicitation/create", "untouched");
    sidecar.wait_entries(&[("waiting", "input_required")]);
    let state = result["requestState"].as_str().unwrap();
    assert!(state.starts_with("tbs1_"));

    let again = json!({
        "name": "asks_first", "arguments": {"a": 1}, "_meta": modern(false),
        "requestState": state, "inputResponses": {"q": {"action": "accept", "content": {}}}
    });
    let made = post_modern(&mut agent, "3", again).json();

    assert_eq!(made["result"]["_meta"]["effect"]["outcome"], "accepted", "{made}");
    sidecar.wait_entries(&[("accepted", "")]);
    let bodies = calls(&upstream);
    assert_eq!(bodies.len(), 2);
    assert_eq!(bodies[1]["params"]["requestState"], "theirs");
    assert_eq!(bodies[1]["params"]["inputResponses"]["q"]["action"], "accept");
    assert_eq!(bodies[0]["params"]["arguments"]["key"], bodies[1]["params"]["arguments"]["key"]);
}

#[test]
fn mcp_34_mcp_35_a_state_that_belongs_to_another_call_sends_nothing() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let params = confirmed("asks_first", &mut agent);
    let asked = post_modern(&mut agent, "2", params).json();

    for (name, arguments) in [("asks_first", json!({"a": 2})), ("page", json!({"a": 1}))] {
        let again = json!({
            "name": name, "arguments": arguments, "_meta": modern(false),
            "requestState": asked["result"]["requestState"],
            "inputResponses": {"q": {"action": "accept", "content": {}}}
        });
        let refused = post_modern(&mut agent, "3", again).json();
        assert_eq!(envelope(&refused["result"])["error"]["code"], "request_state_invalid");
    }

    assert_eq!(calls(&upstream).len(), 1);
    sidecar.wait_entries(&[("waiting", "input_required")]);
}

#[test]
fn i_8_the_same_key_gets_the_recorded_question_while_it_waits() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let mut params = confirmed("asks_first", &mut agent);
    params["_meta"]["idempotency_key"] = json!("k");
    let asked = post_modern(&mut agent, "2", params.clone()).json();
    sidecar.wait_entries(&[("waiting", "input_required")]);

    let again = post_modern(&mut agent, "3", params).json();
    let mut keyless = json!({"name": "asks_first", "arguments": {"a": 1}, "_meta": modern(false)});
    keyless["_meta"]["takeback/task"] = json!("t");
    let keyless = post_modern(&mut agent, "4", keyless).json();

    assert_eq!(again["id"], 3);
    assert_eq!(again["result"]["requestState"], asked["result"]["requestState"]);
    assert_eq!(again["result"]["_meta"]["effect"]["replayed"], true);
    assert_eq!(envelope(&keyless["result"])["error"]["code"], "in_flight");
    assert_eq!(calls(&upstream).len(), 1);
}

#[test]
fn mcp_23_a_page_to_visit_is_no_outcome_and_the_call_goes_on_after_it() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let asked = post(&mut agent, &call("1", "page", json!({}), None)).json();
    sidecar.wait_entries(&[("waiting", "url_elicitation")]);
    let meta = Some(json!({"visited": true}));
    let made = post(&mut agent, &call("2", "page", json!({}), meta)).json();

    assert_eq!(asked["error"]["code"], -32042);
    assert_eq!(asked["error"]["data"]["elicitations"], json!([]));
    assert_eq!(made["result"]["_meta"]["effect"]["outcome"], "accepted");
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn mcp_42_a_task_of_the_modern_era_is_settled_by_what_is_got() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let params = json!({"name": "job", "arguments": {}, "_meta": modern(false)});

    let handle = post_modern(&mut agent, "1", params).json();
    assert_eq!(handle["result"]["taskId"], "t1");
    assert_eq!(handle["result"]["_meta"]["effect"].get("outcome"), None);
    sidecar.wait_entries(&[("waiting", "task")]);
    let get = || {
        let headers = [
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tasks/get"),
            ("mcp-name", "t1"),
        ];
        let params = json!({"taskId": "t1", "_meta": modern(false)});
        post_with(&mut sidecar.agent(), &headers, &request("2", "tasks/get", params)).json()
    };
    let first = get();
    let again = get();

    let effect = &first["result"]["result"]["_meta"]["effect"];
    assert_eq!(effect["outcome"], "accepted");
    assert_eq!(effect["undo"]["arguments"], json!({"id": "n1"}));
    assert_eq!(first, again);
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn mcp_42_a_task_of_the_legacy_era_is_settled_by_its_result() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    post(&mut agent, &call("1", "job", json!({}), None));
    post(&mut agent, &request("2", "tasks/get", json!({"taskId": "t1"})));
    sidecar.wait_entries(&[("waiting", "task")]);
    let stranger = request("3", "tasks/result", json!({"taskId": "t1"}));
    post_with(&mut agent, &[("authorization", "Bearer x")], &stranger);
    sidecar.wait_entries(&[("waiting", "task")]);
    let result = post(&mut agent, &request("3", "tasks/result", json!({"taskId": "t1"}))).json();

    assert_eq!(result["result"]["_meta"]["effect"]["outcome"], "accepted");
    assert_eq!(result["result"]["structuredContent"], json!({"id": "n1"}));
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn mcp_42_d14_a_task_that_is_cancelled_or_fails_is_unknown() {
    for way in ["cancel", "news"] {
        let upstream = upstream();
        let sidecar = Sidecar::start(POLICY, &upstream);
        let mut agent = sidecar.agent();
        post(&mut agent, &call("1", "job", json!({}), None));
        sidecar.wait_entries(&[("waiting", "task")]);

        if way == "cancel" {
            post(&mut agent, &request("2", "tasks/cancel", json!({"taskId": "t1"})));
        } else {
            let stream = agent.call("GET", "/mcp", &[("accept", "text/event-stream")], "");
            assert_eq!(events(&stream.text()).len(), 1);
        }

        sidecar.wait_entries(&[("unknown", "task")]);
        let late = post(&mut agent, &request("3", "tasks/result", json!({"taskId": "t1"}))).json();
        assert_eq!(late["result"]["_meta"]["effect"]["outcome"], "unknown", "{late}");
    }
}

#[test]
fn d14_a_cancelled_call_is_never_said_not_to_have_happened() {
    let upstream = Upstream::start(|received| {
        if received.text().contains("notifications/cancelled") {
            return Act::with(202, &[], "");
        }
        Act::events(": cancelled, no answer\n\n")
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let notice = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;

    let cancelled = post(&mut sidecar.agent(), notice);
    let called = post(&mut sidecar.agent(), &call("1", "job", json!({}), None));

    assert_eq!(cancelled.status, 202);
    assert_eq!(upstream.received()[0].text(), notice);
    let answer = events(&called.text()).pop().unwrap();
    assert_eq!(envelope(&answer["result"])["error"]["code"], "outcome_unknown");
    sidecar.wait_entries(&[("unknown", "truncated_body")]);
}

#[test]
fn what_waited_when_a_process_ended_is_unknown_in_time() {
    let upstream = upstream();
    let (setup, hand) = crate::support::sidecar::Setup::new(POLICY).manual_clock();
    let sidecar = setup.start(&upstream);
    post(&mut sidecar.agent(), &call("1", "job", json!({}), None));
    sidecar.wait_entries(&[("waiting", "task")]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

    runtime.block_on(takeback::pipeline::settle::rearm(&sidecar.shared));
    assert_eq!(sidecar.entries(), [("waiting".to_owned(), "task".to_owned())]);
    hand.advance(std::time::Duration::from_secs(60 * 60));
    runtime.block_on(takeback::pipeline::settle::rearm(&sidecar.shared));

    sidecar.wait_entries(&[("unknown", "timeout")]);
}
