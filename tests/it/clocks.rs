use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::mcp::{call, envelope, events, post};
use crate::support::sidecar::Setup;
use crate::support::{Act, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.create:
    match: { http: "POST /things" }
    effect: { class: irreversible, kind: create }
  things.touch:
    match: { http: "POST /touch" }
    effect: { class: irreversible, kind: update }
    confirm: caller
    timeout: { head_ms: 50 }
  things.slow:
    match: { http: "POST /slow" }
    effect: { class: irreversible, kind: update }
    confirm: none
    timeout: { idle_ms: 100 }
  notes.read:
    match: { tool: read_note }
    effect: { class: read }
    timeout: { idle_ms: 100 }
  notes.create:
    match: { tool: create_note }
    effect: { class: irreversible, kind: create }
    confirm: none
    timeout: { idle_ms: 100 }
"#;

#[test]
fn g6_a_confirmation_expires_and_a_clock_that_goes_back_does_not_lengthen_it() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let (setup, hand) = Setup::new(POLICY).manual_clock();
    let sidecar = setup.start(&upstream);
    let mut agent = sidecar.agent();
    let token = agent.post("/things", &[], "{}").token();

    hand.advance(Duration::from_secs(601));
    let late = agent.post("/things", &[("effect-confirm", &token)], "{}");

    assert_eq!(late.status, 428);
    assert_eq!(late.json()["error"]["details"]["mismatch"], "expired");
    let fresh = late.token();
    hand.advance(Duration::from_secs(599));
    assert_eq!(agent.post("/things", &[("effect-confirm", &fresh)], "{}").status, 201);
    assert_eq!(upstream.count("POST"), 1);
}

#[test]
fn b3_a_write_whose_head_comes_too_late_is_unknown_and_its_late_answer_goes_to_nobody() {
    let (go, wait) = std::sync::mpsc::channel();
    let wait = std::sync::Mutex::new(Some(wait));
    let upstream = Upstream::start(move |_| match wait.lock().unwrap().take() {
        Some(wait) => Act::After(wait, Box::new(Act::json(201, r#"{"late":true}"#))),
        None => Act::json(201, r#"{"late":false}"#),
    });
    let sidecar = Setup::new(POLICY).start(&upstream);
    let mut agent = sidecar.agent();

    let late = agent.post("/touch", &[("effect-confirm", "true")], r#"{"n":1}"#);
    go.send(()).unwrap();
    let next = agent.post("/touch", &[("effect-confirm", "true")], r#"{"n":2}"#);

    assert_eq!(late.status, 504);
    assert_eq!(late.code(), "outcome_unknown");
    assert_eq!(next.text(), r#"{"late":false}"#);
    sidecar.wait_entries(&[("unknown", "timeout"), ("accepted", "")]);
}

#[test]
fn an_answer_counts_as_delivered_when_its_connection_stays_open_long_enough() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let mut setup = Setup::new(POLICY);
    setup.delivered_after = Duration::from_millis(1);
    let sidecar = setup.start(&upstream);
    let mut agent = sidecar.agent();
    let first = agent.post("/touch", &[("effect-confirm", "true")], "{}");

    // Once delivered, the same call again is a second intent and is asked about.
    let asked = wait::until("delivery", || {
        let again = sidecar.agent().post("/touch", &[("effect-confirm", "true")], "{}");
        (again.status == 428).then_some(again)
    });

    assert!(asked.text().contains(first.report()["entry"].as_str().unwrap()));
    assert_eq!(upstream.count("POST"), 1);
}

/// An upstream that begins its answer so, and says no more.
fn stalling(kind: &'static str, part: &'static str) -> Upstream {
    let held = Mutex::new(Vec::new());
    Upstream::start(move |received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        if received.target == "/mcp" && message["method"] != "tools/call" {
            let tools = json!([{"name": "read_note"}, {"name": "create_note"}]);
            let result = json!({"protocolVersion": "2025-06-18", "tools": tools});
            let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            return Act::json(200, &answer.to_string());
        }
        let (send, wait) = std::sync::mpsc::channel::<()>();
        held.lock().unwrap().push(send);
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 900\r\ncontent-type: ";
        Act::Waits(format!("{head}{kind}\r\n\r\n{part}").into(), wait, Vec::new())
    })
}

#[test]
fn b3_an_answer_that_stops_coming_is_told_as_a_time_out_on_every_way() {
    for (kind, part) in [("application/json", "{\"id\":"), ("text/event-stream", ": open\n\n")] {
        let upstream = stalling(kind, part);
        let sidecar = Setup::new(POLICY).start(&upstream);
        let mut expected = Vec::new();

        if kind == "application/json" {
            let slow = sidecar.agent().post("/slow", &[], "{}");
            assert_eq!((slow.status, slow.code().as_str()), (504, "outcome_unknown"));
            assert_eq!(slow.json()["error"]["details"]["reason"], "timeout");
            expected.push(("unknown", "timeout"));
        }
        for (tool, code) in [("read_note", "answer_lost"), ("create_note", "outcome_unknown")] {
            let said = post(&mut sidecar.agent(), &call("7", tool, json!({}), None));
            let text = said.text();
            let message = events(&text).pop().unwrap_or_else(|| said.json());
            let error = &envelope(&message["result"])["error"];
            assert_eq!(error["code"], code, "{kind}");
            assert_eq!(error["details"]["reason"], "timeout", "{kind}: {error}");

            let rest =
                sidecar.agent().post(&format!("/call/{tool}"), &[], r#"{"arguments":{"n":1}}"#);
            assert_eq!((rest.status, rest.code().as_str()), (504, code), "{kind}");
        }
        expected.extend([("unknown", "timeout"); 2]);
        sidecar.wait_entries(&expected);
    }
}
