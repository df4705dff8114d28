use std::sync::Mutex;
use std::sync::mpsc::channel;

use crate::support::{Act, Sidecar, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.get:
    match: { http: "GET /things" }
    effect: { class: read }
  things.create:
    match: { http: "POST /things" }
    effect: { class: irreversible, kind: create }
    confirm: caller
  tool.write:
    match: { tool: write }
    effect: { class: irreversible, kind: create }
    confirm: caller
"#;

#[test]
fn an_agent_that_leaves_while_its_body_is_read_leaves_no_entry() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    agent.raw(
        b"POST /things HTTP/1.1\r\nhost: proxy\r\neffect-confirm: true\r\n\
          content-type: application/json\r\ncontent-length: 100\r\n\r\n{\"half\":",
    );
    wait::until("the call", || (sidecar.places.free() == 255).then_some(()));

    drop(agent);

    wait::until("its place", || (sidecar.places.free() == 256).then_some(()));
    assert!(sidecar.entries().is_empty());
    assert!(upstream.received().is_empty());
}

#[test]
fn a_read_is_dropped_with_its_agent() {
    let (go, hold) = channel();
    let hold = Mutex::new(Some(hold));
    let upstream = Upstream::start(move |_| match hold.lock().unwrap().take() {
        Some(hold) => Act::After(hold, Box::new(Act::json(200, "{}"))),
        None => Act::json(200, "{}"),
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    agent.send("GET", "/things", &[], "");
    wait::until("dispatch", || (upstream.count("GET") == 1).then_some(()));

    drop(agent);

    wait::until("its place", || (sidecar.places.free() == 256).then_some(()));
    drop(go);
}

#[test]
fn a_write_keeps_its_place_until_its_task_ends_though_its_agent_left() {
    let (go, hold) = channel();
    let hold = Mutex::new(Some(hold));
    let upstream = Upstream::start(move |_| match hold.lock().unwrap().take() {
        Some(hold) => Act::After(hold, Box::new(Act::json(201, "{}"))),
        None => Act::json(201, "{}"),
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let headers = [("content-type", "application/json"), ("effect-confirm", "true")];
    agent.send("POST", "/things", &headers, "{}");
    wait::until("dispatch", || (upstream.count("POST") == 1).then_some(()));

    drop(agent);
    let repeat = sidecar.agent().post("/things", &[("effect-confirm", "true")], "{}");
    assert_eq!(repeat.status, 409);
    assert_eq!(repeat.code(), "in_flight");
    go.send(()).unwrap();

    sidecar.wait_entries(&[("accepted", "")]);
    wait::until("its place", || (sidecar.places.free() == 256).then_some(()));
    assert_eq!(upstream.count("POST"), 1);
}

#[test]
fn a_stream_is_read_to_its_answer_though_its_agent_left() {
    let (go, hold) = channel();
    let hold = Mutex::new(Some(hold));
    let upstream = Upstream::start(move |_| {
        let events =
            Act::events("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[]}}\n\n");
        match hold.lock().unwrap().take() {
            Some(hold) => Act::After(hold, Box::new(events)),
            None => events,
        }
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write","_meta":{"confirm":true}}}"#;
    agent.send("POST", "/mcp", &[("content-type", "application/json")], body);
    wait::until("dispatch", || (upstream.count("POST") == 1).then_some(()));

    drop(agent);
    go.send(()).unwrap();

    sidecar.wait_entries(&[("accepted", "")]);
}
