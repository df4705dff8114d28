use serde_json::{Value, json};

use crate::support::mcp::{call, envelope, events, modern, post, post_modern, post_with, request};
use crate::support::sidecar::Setup;
use crate::support::{Act, Agent, Sidecar, Upstream};

const POLICY: &str = r#"
version: 1
operations:
  mail.send:
    match: { tool: send_mail }
    effect: { class: irreversible, kind: external_side_effect }
  mail.move:
    match: { tool: move_mail }
    effect: { class: irreversible, kind: update }
    confirm: caller
  mail.purge:
    match: { tool: purge }
    effect: { class: irreversible, kind: delete }
    confirm: human
"#;

fn upstream() -> Upstream {
    Upstream::start(|received| {
        let Ok(message) = serde_json::from_slice::<Value>(&received.body) else {
            return Act::with(405, &[], "");
        };
        let id = message["id"].clone();
        let result = json!({"content": [{"type": "text", "text": "done"}]});
        let text = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        if message["method"] == "initialize" {
            let headers = [("content-type", "application/json"), ("mcp-session-id", "s1")];
            return Act::with(200, &headers, &text);
        }
        if message.get("id").is_none() {
            return Act::with(202, &[], "");
        }
        Act::json(200, &text)
    })
}

fn accept(confirm: bool) -> Value {
    json!({"anvil.confirm": {"action": "accept", "content": {"confirm": confirm}}})
}

fn params(tool: &str, can_elicit: bool) -> Value {
    json!({"name": tool, "arguments": {"to": "a"}, "_meta": modern(can_elicit)})
}

#[test]
fn mcp_33_a_modern_client_is_asked_and_its_next_round_makes_the_call() {
    for tool in ["send_mail", "move_mail"] {
        let upstream = upstream();
        let sidecar = Sidecar::start(POLICY, &upstream);
        let mut agent = sidecar.agent();

        let asked = post_modern(&mut agent, "1", params(tool, true)).json();

        let result = &asked["result"];
        assert_eq!(result["resultType"], "input_required");
        assert_eq!(result["_meta"]["effect"]["refused"], "confirmation_required");
        let question = &result["inputRequests"]["anvil.confirm"];
        assert_eq!(question["method"], "elicitation/create");
        assert_eq!(question["params"]["mode"], "form");
        assert_eq!(question["params"]["requestedSchema"]["required"], json!(["confirm"]));
        let text = question["params"]["message"].as_str().unwrap();
        assert!(text.contains(tool) && text.contains("to = \"a\""), "{text}");
        assert!(upstream.received().is_empty());
        assert!(sidecar.entries().is_empty(), "no entry while a confirmation is awaited");

        let mut again = params(tool, true);
        again["requestState"] = result["requestState"].clone();
        again["inputResponses"] = accept(true);
        let made = post_modern(&mut agent, "2", again.clone()).json();

        assert_eq!(made["result"]["_meta"]["effect"]["outcome"], "accepted", "{made}");
        let sent: Value = serde_json::from_slice(&upstream.only().body).unwrap();
        assert_eq!(sent["params"].get("requestState"), None);
        assert_eq!(sent["params"].get("inputResponses"), None);
        assert_eq!(sent["params"]["arguments"], json!({"to": "a"}));
    }
}

#[test]
fn mcp_34_a_state_counts_for_its_own_call_and_once() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let asked = post_modern(&mut agent, "1", params("send_mail", true)).json();
    let state = asked["result"]["requestState"].as_str().unwrap().to_owned();
    let with = |state: &str, arguments: Value| {
        let mut params = params("send_mail", true);
        params["arguments"] = arguments;
        params["requestState"] = json!(state);
        params["inputResponses"] = accept(true);
        params
    };

    let other = post_modern(&mut agent, "2", with(&state, json!({"to": "b"}))).json();
    let forged =
        post_modern(&mut agent, "3", with(&format!("{state}x"), json!({"to": "a"}))).json();
    let mut stranger = with(&state, json!({"to": "a"}));
    stranger["_meta"] = modern(true);
    let headers = [
        ("authorization", "Bearer other"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "send_mail"),
    ];
    let stranger = post_with(&mut agent, &headers, &request("4", "tools/call", stranger)).json();
    assert!(upstream.received().is_empty());
    let made = post_modern(&mut agent, "5", with(&state, json!({"to": "a"}))).json();

    assert_eq!(envelope(&other["result"])["error"]["code"], "confirmation_mismatch");
    assert_eq!(envelope(&forged["result"])["error"]["code"], "request_state_invalid");
    assert_eq!(envelope(&stranger["result"])["error"]["code"], "request_state_invalid");
    assert_eq!(made["result"]["_meta"]["effect"]["outcome"], "accepted");
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn mcp_33_no_is_no_and_a_client_without_forms_gets_the_refusal() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let asked = post_modern(&mut agent, "1", params("send_mail", true)).json();
    let answers = [
        json!({"anvil.confirm": {"action": "decline"}}),
        json!({"anvil.confirm": {"action": "cancel", "content": {"confirm": true}}}),
        accept(false),
    ];
    for answer in answers {
        let mut again = params("send_mail", true);
        again["requestState"] = asked["result"]["requestState"].clone();
        again["inputResponses"] = answer;
        let refused = post_modern(&mut agent, "2", again).json();
        assert_eq!(envelope(&refused["result"])["error"]["code"], "confirmation_declined");
    }

    let plain = post_modern(&mut agent, "3", params("send_mail", false)).json();
    let human = post_modern(&mut agent, "4", params("purge", true)).json();

    let error = &envelope(&plain["result"])["error"];
    assert_eq!(error["code"], "confirmation_required");
    assert!(error["message"].as_str().unwrap().contains("tbc1_"));
    assert_eq!(human["result"]["isError"], true, "no client satisfies `human`");
    assert!(upstream.received().is_empty());
}

#[test]
fn mcp_34_a_state_that_was_declined_confirms_nothing_afterwards() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let answered = |agent: &mut Agent, state: &Value, answer: Value| {
        let mut again = params("send_mail", true);
        again["requestState"] = state.clone();
        again["inputResponses"] = answer;
        post_modern(agent, "2", again).json()
    };
    for no in [json!({"anvil.confirm": {"action": "decline"}}), accept(false)] {
        let asked = post_modern(&mut agent, "1", params("send_mail", true)).json();
        let state = &asked["result"]["requestState"];
        let declined = answered(&mut agent, state, no.clone());
        assert_eq!(envelope(&declined["result"])["error"]["code"], "confirmation_declined");

        let late = answered(&mut agent, state, accept(true));

        let error = &envelope(&late["result"])["error"];
        assert_eq!(error["code"], "confirmation_mismatch", "{no}");
        assert_eq!(error["details"]["mismatch"], "spent", "{no}");
        assert!(upstream.received().is_empty());
        assert!(sidecar.entries().is_empty(), "a refusal leaves no entry");
    }
    let asked = post_modern(&mut agent, "1", params("send_mail", true)).json();
    let made = answered(&mut agent, &asked["result"]["requestState"], accept(true));
    assert_eq!(made["result"]["_meta"]["effect"]["outcome"], "accepted", "a fresh one counts");
}

/// Begins a session whose client can show forms, or not.
fn initialize(agent: &mut Agent, capabilities: Value) {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities});
    let answer = post(agent, &request("0", "initialize", params));
    assert_eq!(answer.header("mcp-session-id"), Some("s1"));
}

const SESSION: [(&str, &str); 2] =
    [("mcp-session-id", "s1"), ("mcp-protocol-version", "2025-11-25")];

fn hear(sidecar: &Sidecar, asked: &Value, result: Value) {
    let id = &asked["id"];
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
    let heard = post_with(&mut sidecar.agent(), &SESSION, &answer);
    assert_eq!((heard.status, heard.body.len()), (202, 0));
}

/// Sends a call and reads the question on its stream.
fn held(agent: &mut Agent, id: &str, tool: &str) -> Value {
    let mut headers = vec![
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ];
    headers.extend(SESSION);
    agent.send("POST", "/mcp", &headers, &call(id, tool, json!({"to": "a"}), None));
    let head = agent.head().unwrap();
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    next_event(agent)
}

fn next_event(agent: &mut Agent) -> Value {
    loop {
        let line = agent.line().expect("a line");
        if let Some(data) = line.trim().strip_prefix("data: ") {
            return serde_json::from_str(data).unwrap();
        }
    }
}

#[test]
fn mcp_36_a_session_is_asked_on_the_stream_of_its_call() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    initialize(&mut agent, json!({"elicitation": {}}));
    let before = upstream.received().len();

    let asked = held(&mut agent, "7", "send_mail");
    assert_eq!(asked["method"], "elicitation/create");
    assert_eq!(asked["params"]["mode"], "form");
    assert!(asked["id"].as_str().unwrap().starts_with("anvil-"));
    assert_eq!(upstream.received().len(), before, "nothing was sent");
    hear(&sidecar, &asked, json!({"action": "accept", "content": {"confirm": true}}));
    let answer = next_event(&mut agent);

    assert_eq!(answer["id"], 7);
    assert_eq!(answer["result"]["_meta"]["effect"]["outcome"], "accepted");
    assert_eq!(upstream.received().len(), before + 1, "the client's answer stayed here");
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn mcp_29_36_a_held_call_keeps_its_stream_open_with_comments() {
    let upstream = upstream();
    let mut setup = Setup::new(POLICY);
    setup.mcp.keep_alive = std::time::Duration::from_millis(2);
    let sidecar = setup.start(&upstream);
    let mut agent = sidecar.agent();
    initialize(&mut agent, json!({"elicitation": {}}));

    let asked = held(&mut agent, "7", "send_mail");
    let mut comments = 0;
    while comments < 3 {
        comments += usize::from(agent.line().expect("a line") == ": held\n");
    }
    hear(&sidecar, &asked, json!({"action": "accept", "content": {"confirm": true}}));
    let answer = next_event(&mut agent);

    assert_eq!(answer["result"]["_meta"]["effect"]["outcome"], "accepted");
}

#[test]
fn mcp_36_what_is_not_a_yes_in_its_own_session_sends_nothing() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    initialize(&mut agent, json!({"elicitation": {"form": {}}}));
    let before = upstream.received().len();

    let asked = held(&mut agent, "7", "send_mail");
    let yes = json!({"action": "accept", "content": {"confirm": true}});
    let forged = json!({"jsonrpc": "2.0", "id": "anvil-0000", "result": yes}).to_string();
    post_with(&mut sidecar.agent(), &SESSION, &forged);
    assert_eq!(upstream.received().last().unwrap().text(), forged, "it may be the upstream's own");
    let before = before + 1;
    let id = &asked["id"];
    let elsewhere = json!({"jsonrpc": "2.0", "id": id, "result": yes}).to_string();
    let other = [("mcp-session-id", "s2")];
    assert_eq!(post_with(&mut sidecar.agent(), &other, &elsewhere).status, 202);
    hear(&sidecar, &asked, json!({"action": "decline"}));
    let answer = next_event(&mut agent);

    assert_eq!(envelope(&answer["result"])["error"]["code"], "confirmation_declined");
    assert_eq!(upstream.received().len(), before);
    let mut again = sidecar.agent();
    let listed = post_with(&mut again, &SESSION, &request("8", "ping", json!({})));
    assert_eq!(listed.status, 200, "the session is usable");
}

#[test]
fn mcp_36_two_sidecars_in_a_row_each_hear_the_answers_to_their_own_questions() {
    let upstream = upstream();
    let inner = Sidecar::start(POLICY, &upstream);
    let unasked =
        POLICY.replace("external_side_effect }", "external_side_effect }\n    confirm: none");
    let outer = Setup { pseudonym: "outer", ..Setup::new(&unasked) }.start_at(inner.address);
    let mut agent = outer.agent();
    initialize(&mut agent, json!({"elicitation": {}}));

    let asked = held(&mut agent, "7", "send_mail");
    hear(&outer, &asked, json!({"action": "accept", "content": {"confirm": true}}));
    let answer = next_event(&mut agent);

    assert_eq!(answer["result"]["_meta"]["effect"]["outcome"], "accepted", "{answer}");
    outer.wait_entries(&[("accepted", "")]);
    inner.wait_entries(&[("accepted", "")]);
}

#[test]
fn mcp_31_36_a_client_that_does_not_answer_in_time_gets_the_refusal() {
    let upstream = upstream();
    let mut setup = Setup::new(POLICY);
    setup.mcp.question = std::time::Duration::from_millis(20);
    let sidecar = setup.start(&upstream);
    let mut agent = sidecar.agent();
    initialize(&mut agent, json!({"elicitation": {}}));

    let asked = held(&mut agent, "7", "send_mail");
    let answer = next_event(&mut agent);
    hear(&sidecar, &asked, json!({"action": "accept", "content": {"confirm": true}}));

    let error = &envelope(&answer["result"])["error"];
    assert_eq!(error["code"], "confirmation_required");
    assert!(error["details"]["confirm"]["token"].is_string());
    assert!(sidecar.entries().is_empty());
}

#[test]
fn mcp_36_a_client_that_cannot_be_asked_gets_the_refusal_at_once() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    initialize(&mut agent, json!({}));

    let refused = post_with(&mut agent, &SESSION, &call("7", "send_mail", json!({}), None));

    assert_eq!(refused.header("content-type"), Some("application/json"));
    assert_eq!(envelope(&refused.json()["result"])["error"]["code"], "confirmation_required");
    assert!(events(&refused.text()).is_empty());
}
