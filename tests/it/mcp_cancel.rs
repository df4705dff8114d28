//! A client that cancels, or ends its session, under a write: nobody is told that nothing happened.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::mcp::{NOTES, SESSION, call, envelope, events, post_with, request};
use crate::support::sidecar::Setup;
use crate::support::wait::until;
use crate::support::{Act, Agent, Sidecar, Upstream};

const OTHER: (&str, &str) = ("mcp-session-id", "s2");

fn cancelled(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
    )
}

/// An upstream that holds what it says to a call until the sender is dropped.
fn holding(first: &'static str, then: &str) -> (Upstream, Mutex<Option<Sender<()>>>) {
    let then = then.to_owned();
    let (send, next) = channel::<()>();
    let next = Mutex::new(Some(next));
    let upstream = Upstream::start(move |received| {
        if !received.text().contains("tools/call") {
            return Act::with(202, &[], "");
        }
        let wait = next.lock().unwrap().take().unwrap();
        Act::Waits(first.into(), wait, then.clone().into())
    });
    (upstream, Mutex::new(Some(send)))
}

fn start(upstream: &Upstream, grace: Duration) -> Sidecar {
    let mut setup = Setup::new(NOTES);
    setup.mcp.cancelled = grace;
    setup.start(upstream)
}

/// An agent whose call is with the upstream.
fn called(upstream: &Upstream, sidecar: &Sidecar) -> Agent {
    let mut agent = sidecar.agent();
    let body = call("7", "create_note", json!({}), None);
    agent.send("POST", "/mcp", &[SESSION, ("content-type", "application/json")], &body);
    until("the call is there", || (upstream.count("POST") == 1).then_some(()));
    agent
}

/// An answer that comes after the call was cancelled, and what its agent is told.
fn answered_late(answer: &str) -> (Upstream, Sidecar, Value) {
    let (upstream, send) = holding("", &format!("{JSON_HEAD}{answer}"));
    let sidecar = start(&upstream, Duration::from_secs(60));
    let mut agent = called(&upstream, &sidecar);
    post_with(&mut sidecar.agent(), &[SESSION], &cancelled("7"));
    drop(send.lock().unwrap().take());
    let told = agent.answer("POST").json();
    (upstream, sidecar, told)
}

const JSON_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
const EVENTS_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: open\n\n";

#[test]
fn mcp_30_d14_a_cancelled_write_that_is_not_answered_is_unknown_before_its_time() {
    // Before the answer's head, within its body, and on its stream.
    for first in ["", JSON_HEAD, EVENTS_HEAD] {
        let (upstream, send) = holding(first, "");
        let sidecar = start(&upstream, Duration::ZERO);
        let mut agent = called(&upstream, &sidecar);

        let notice = post_with(&mut sidecar.agent(), &[SESSION], &cancelled("7"));
        let answer = agent.answer("POST");

        assert_eq!(notice.status, 202);
        assert_eq!(upstream.last().text(), cancelled("7"), "forwarded as it came");
        let text = answer.text();
        let message = events(&text).pop().unwrap_or_else(|| answer.json());
        let error = &envelope(&message["result"])["error"];
        assert_eq!(error["code"], "outcome_unknown", "{first}");
        assert_eq!(message["id"], 7);
        let entries = sidecar.entries();
        until("the end of the entry", || (sidecar.entries()[0].0 == "unknown").then_some(()));
        assert_eq!(entries.len(), 1, "no second attempt");
        assert_eq!(upstream.count("POST"), 2, "the call, and that it is cancelled");
        drop(send.lock().unwrap().take());
    }
}

#[test]
fn mcp_30_an_answer_that_comes_after_all_counts() {
    let then = r#"{"jsonrpc":"2.0","id":7,"result":{"content":[]}}"#;
    let (_upstream, sidecar, told) = answered_late(then);

    assert_eq!(told["result"]["_meta"]["effect"]["outcome"], "accepted");
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn mcp_30_an_error_that_answers_a_cancelled_write_was_not_seen_by_its_client() {
    let then = r#"{"jsonrpc":"2.0","id":7,"error":{"code":0,"message":"Request cancelled"}}"#;
    let (upstream, sidecar, told) = answered_late(then);
    assert_eq!(told["error"]["data"]["effect"]["outcome"], "unknown");
    until("the end of the entry", || (sidecar.entries()[0].0 == "unknown").then_some(()));
    let body = call("8", "create_note", json!({}), None);
    let again = post_with(&mut sidecar.agent(), &[SESSION], &body).json();

    // Not a question that a client may answer with yes: it has seen nothing of what it would repeat.
    assert_eq!(again["result"]["_meta"]["effect"]["refused"], "outcome_unknown", "{again}");
    assert_eq!(upstream.count("POST"), 2);
}

#[test]
fn mcp_30_nobody_cancels_what_is_not_theirs() {
    let then = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"content\":[]}}";
    let (upstream, send) = holding("", then);
    let sidecar = start(&upstream, Duration::ZERO);
    let mut agent = called(&upstream, &sidecar);

    let stranger = [SESSION, ("authorization", "Bearer other")];
    for (headers, id) in [
        (&[OTHER][..], "7"),
        (&stranger[..], "7"),
        (&[SESSION][..], "\"7\""),
        (&[SESSION][..], "8"),
    ] {
        let answer = post_with(&mut sidecar.agent(), headers, &cancelled(id));
        assert_eq!(answer.status, 202);
    }
    let deleted = sidecar.agent().call("DELETE", "/mcp", &[OTHER], "");
    assert_eq!(deleted.status, 202);
    drop(send.lock().unwrap().take());

    assert_eq!(agent.answer("POST").json()["result"]["_meta"]["effect"]["outcome"], "accepted");
}

#[test]
fn mcp_30_a_session_that_ends_under_a_write_leaves_its_outcome_unknown() {
    let (upstream, send) = holding(EVENTS_HEAD, "");
    let sidecar = start(&upstream, Duration::ZERO);
    let mut agent = called(&upstream, &sidecar);

    let deleted = sidecar.agent().call("DELETE", "/mcp", &[SESSION], "");

    assert_eq!(deleted.status, 202);
    assert_eq!(upstream.last().method, "DELETE");
    let message = events(&agent.answer("POST").text()).pop().unwrap();
    assert_eq!(envelope(&message["result"])["error"]["code"], "outcome_unknown");
    sidecar.wait_entries(&[("unknown", "timeout")]);
    drop(send.lock().unwrap().take());
}

#[test]
fn mcp_20_a_session_that_ends_leaves_no_call_open_whose_answer_was_to_be_fetched() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Act::events("id: e0\ndata:\n\n"),
        _ => Act::with(200, &[], ""),
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let body = call("7", "create_note", json!({}), None);
    post_with(&mut sidecar.agent(), &[SESSION], &body);
    sidecar.wait_entries(&[("begun", "")]);

    sidecar.agent().call("DELETE", "/mcp", &[SESSION], "");

    sidecar.wait_entries(&[("unknown", "timeout")]);
}

#[test]
fn mcp_30_36_a_call_that_is_cancelled_while_its_client_is_asked_is_not_made() {
    let upstream = Upstream::start(|received| {
        let message: serde_json::Value = serde_json::from_slice(&received.body).unwrap();
        if message["method"] == "initialize" {
            let headers = [("content-type", "application/json"), SESSION];
            return Act::with(200, &headers, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        }
        Act::with(202, &[], "")
    });
    let policy = NOTES.replace("    confirm: none\n", "");
    let sidecar = Sidecar::start(&policy, &upstream);
    let begin = json!({"capabilities": {"elicitation": {}}});
    post_with(&mut sidecar.agent(), &[], &request("1", "initialize", begin));
    let mut agent = sidecar.agent();
    let headers = [
        SESSION,
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ];
    agent.send("POST", "/mcp", &headers, &call("7", "create_note", json!({}), None));
    assert_eq!(agent.head().unwrap().status, 200);
    let question = loop {
        let line = agent.line().unwrap();
        if let Some(data) = line.strip_prefix("data: ") {
            break serde_json::from_str::<serde_json::Value>(data).unwrap();
        }
    };

    post_with(&mut sidecar.agent(), &[SESSION], &cancelled("7"));
    let yes = json!({"jsonrpc": "2.0", "id": question["id"],
        "result": {"action": "accept", "content": {"confirm": true}}});
    let mut rest = Vec::new();
    while let Some(line) = agent.line() {
        let is_last = line == "0\r\n";
        rest.push(line);
        if is_last {
            break;
        }
    }
    let late = post_with(&mut sidecar.agent(), &[SESSION], &yes.to_string());

    assert!(!rest.concat().contains("data:"), "no answer is owed: {rest:?}");
    assert_eq!(late.status, 202);
    let calls = upstream.received().iter().filter(|r| r.text().contains("tools/call")).count();
    assert_eq!((calls, sidecar.entries().len()), (0, 0));
}
