use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use serde_json::{Value, json};

use crate::support::mcp::{call, events, post_with, request};
use crate::support::sidecar::Setup;
use crate::support::{Act, Sidecar, Upstream, noted_by_tools};

const POLICY: &str = noted_by_tools!();

const SESSION: (&str, &str) = ("mcp-session-id", "s1");

/// A POST gets a priming event only; a GET that comes back for the rest gets the answer.
fn polling() -> Upstream {
    Upstream::start(|received| {
        if received.method == "POST" {
            return Act::events("id: e0\nretry: 10\ndata:\n\n");
        }
        if received.header("last-event-id") != Some("e0") {
            return Act::events(": keep\n\n");
        }
        Act::events(
            "id: e1\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n\
             : keep\n\n\
             id: e2\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"content\":[],\"structuredContent\":{\"id\":\"n1\"}}}\n\n",
        )
    })
}

fn resume(sidecar: &Sidecar) -> String {
    let headers = [("accept", "text/event-stream"), ("last-event-id", "e0"), SESSION];
    sidecar.agent().call("GET", "/mcp", &headers, "").text()
}

#[test]
fn mcp_20_an_answer_that_comes_on_a_later_get_finishes_the_entry() {
    let upstream = polling();
    let sidecar = Sidecar::start(POLICY, &upstream);

    let posted =
        post_with(&mut sidecar.agent(), &[SESSION], &call("7", "create_note", json!({}), None));
    sidecar.wait_entries(&[("begun", "")]);
    let first = resume(&sidecar);
    sidecar.wait_entries(&[("accepted", "")]);
    let again = resume(&sidecar);

    assert_eq!(posted.text(), "id: e0\nretry: 10\ndata:\n\n", "no answer of ours");
    assert!(first.starts_with("id: e1\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\""));
    assert!(first.contains("\n\n: keep\n\nid: e2\nevent: message\ndata: {"));
    let answer = events(&first).pop().unwrap();
    let effect = &answer["result"]["_meta"]["effect"];
    assert_eq!(effect["outcome"], "accepted");
    assert_eq!(effect["undo"]["arguments"], json!({"id": "n1"}));
    assert_eq!(first, again, "a replay shows the same report");
}

#[test]
fn mcp_20_an_answer_that_nobody_fetches_within_the_time_of_a_call_is_lost() {
    let upstream = polling();
    let mut setup = Setup::new(POLICY);
    setup.timeouts.total = std::time::Duration::from_millis(200);
    let sidecar = setup.start(&upstream);

    post_with(&mut sidecar.agent(), &[SESSION], &call("7", "create_note", json!({}), None));

    sidecar.wait_entries(&[("unknown", "timeout")]);
    let body = call("8", "create_note", json!({}), None);
    let again = post_with(&mut sidecar.agent(), &[SESSION], &body).json();
    assert_eq!(again["result"]["_meta"]["effect"]["refused"], "outcome_unknown");
}

#[test]
fn mcp_20_an_answer_of_another_session_finishes_nothing() {
    let upstream = polling();
    let sidecar = Sidecar::start(POLICY, &upstream);
    post_with(&mut sidecar.agent(), &[SESSION], &call("7", "create_note", json!({}), None));

    let headers = [("last-event-id", "e0"), ("mcp-session-id", "s2")];
    let other = sidecar.agent().call("GET", "/mcp", &headers, "").text();

    assert!(!other.contains("_meta"));
    sidecar.wait_entries(&[("begun", "")]);
}

#[test]
fn mcp_20_an_event_that_is_sent_again_after_the_post_shows_the_same_report() {
    let answer = "id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"content\":[],\"structuredContent\":{\"id\":\"n1\"}}}\n\n";
    let upstream = Upstream::start(move |_| Act::events(answer));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let posted =
        post_with(&mut sidecar.agent(), &[SESSION], &call("7", "create_note", json!({}), None));
    let again = resume(&sidecar);

    assert!(posted.text().contains("\"outcome\":\"accepted\""));
    assert_eq!(posted.text(), again);
}

#[test]
fn mcp_21_a_modern_stream_has_no_rest_to_come_back_for() {
    let upstream = polling();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let params = json!({"name": "create_note", "_meta": crate::support::mcp::modern(false)});

    let posted = crate::support::mcp::post_modern(&mut sidecar.agent(), "7", params);

    let message = events(&posted.text()).pop().unwrap();
    assert_eq!(message["result"]["_meta"]["effect"]["outcome"], "unknown");
    sidecar.wait_entries(&[("unknown", "truncated_body")]);
}

#[test]
fn mcp_17_what_the_upstream_says_of_sessions_and_credentials_passes() {
    let upstream =
        Upstream::start(|received| match (received.method.as_str(), received.header("x-test")) {
            ("GET", _) => Act::with(405, &[("allow", "POST")], ""),
            ("DELETE", _) => Act::with(404, &[], "gone"),
            (_, Some("401")) => Act::with(401, &[("www-authenticate", "Bearer x=\"y\"")], ""),
            _ => Act::with(406, &[], "no"),
        });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let get = agent.call("GET", "/mcp", &[SESSION], "");
    let delete = agent.call("DELETE", "/mcp", &[SESSION], "");
    let ping = request("1", "ping", json!({}));
    let unauthorized = post_with(&mut agent, &[("x-test", "401")], &ping);
    let unacceptable = post_with(&mut agent, &[("x-test", "406")], &ping);

    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
    assert_eq!((delete.status, delete.text().as_str()), (404, "gone"));
    assert_eq!(unauthorized.status, 401);
    assert_eq!(unauthorized.header("www-authenticate"), Some("Bearer x=\"y\""));
    assert_eq!(unacceptable.status, 406);
}

#[test]
fn d11_a_standing_stream_stays_open_and_events_come_through_at_once() {
    let (send, next) = channel::<()>();
    let (send, next): (Mutex<Option<Sender<()>>>, _) =
        (Mutex::new(Some(send)), Mutex::new(Some(next)));
    let upstream = Upstream::start(move |_| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: one\n\n";
        let wait = next.lock().unwrap().take().unwrap();
        Act::Waits(head.into(), wait, b"data: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n".to_vec())
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    agent.send("GET", "/mcp", &[("accept", "text/event-stream"), SESSION], "");

    let head = agent.head().unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(agent.line().as_deref(), Some("6\r\n"), "the comment is there");
    assert_eq!(agent.line().as_deref(), Some(": one\n"));
    drop(send.lock().unwrap().take());
    let mut rest = String::new();
    while let Some(line) = agent.line() {
        if line.starts_with("data:") {
            rest = line;
            break;
        }
    }
    assert_eq!(rest.trim(), r#"data: {"jsonrpc":"2.0","method":"x"}"#);
    let _: Value = serde_json::from_str(rest.trim().strip_prefix("data: ").unwrap()).unwrap();
}

#[test]
fn d11_a_drain_ends_a_standing_stream_between_two_events() {
    let (_send, next) = channel::<()>();
    let next = Mutex::new(Some(next));
    let upstream = Upstream::start(move |_| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: one\n\n";
        let wait = next.lock().unwrap().take().unwrap();
        Act::Waits(head.into(), wait, Vec::new())
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    agent.send("GET", "/mcp", &[("accept", "text/event-stream"), SESSION], "");
    assert_eq!(agent.head().unwrap().status, 200);
    assert_eq!(agent.line().as_deref(), Some("6\r\n"));

    sidecar.drain.begin(std::time::Duration::from_secs(60));

    let mut lines = Vec::new();
    while let Some(line) = agent.line() {
        lines.push(line);
    }
    assert_eq!(&lines[lines.len() - 2..], ["0\r\n", "\r\n"], "a whole body: {lines:?}");
}

#[test]
fn b8_an_agent_that_takes_nothing_of_a_stream_counts_as_gone_and_its_call_is_finished() {
    let notice = format!(
        "data: {{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{{\"text\":\"{}\"}}}}\n\n",
        "x".repeat(64 << 10)
    );
    // More than what lies between them can hold.
    let events = notice.repeat(512)
        + "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"content\":[],\"structuredContent\":{\"id\":\"n1\"}}}\n\n";
    let upstream = Upstream::start(move |_| Act::events(&events));
    let mut setup = Setup::new(POLICY);
    setup.mcp.stall = std::time::Duration::from_millis(20);
    let sidecar = setup.start(&upstream);
    let mut agent = sidecar.agent();
    let headers = [("content-type", "application/json"), ("accept", "text/event-stream"), SESSION];
    agent.send("POST", "/mcp", &headers, &call("7", "create_note", json!({}), None));

    sidecar.wait_entries(&[("accepted", "")]);
    drop(agent);

    let again =
        post_with(&mut sidecar.agent(), &[SESSION], &call("8", "create_note", json!({}), None));
    let result = &again.json()["result"];
    assert_eq!(result["structuredContent"], json!({"id": "n1"}), "what nobody had is given");
    assert_eq!(result["_meta"]["effect"]["replayed"], true);
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn mcp_27_news_of_a_list_that_changed_passes_on_every_stream_as_it_came() {
    let news = "event: message\nid: 4\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "GET" => Act::events(news),
        _ => Act::events(&format!(
            "{news}data: {{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{{\"content\":[]}}}}\n\n"
        )),
    });
    let sidecar = Sidecar::start(POLICY, &upstream);

    let standing = sidecar.agent().call("GET", "/mcp", &[SESSION], "").text();
    let call = call("7", "create_note", json!({}), None);
    let posted = post_with(&mut sidecar.agent(), &[SESSION], &call).text();

    assert_eq!(standing, news);
    assert!(posted.starts_with(news), "{posted}");
}
