//! Agents and upstreams that break the protocol on purpose.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::mcp::{DONE, NOTES, SESSION, call, envelope, events, post, post_with, request};
use crate::support::wait::until;
use crate::support::{Act, Agent, Sidecar, Upstream};

fn answers(events: &'static str) -> (Upstream, Sidecar) {
    let upstream = Upstream::start(move |_| Act::events(events));
    let sidecar = Sidecar::start(NOTES, &upstream);
    (upstream, sidecar)
}

#[test]
fn the_first_answer_to_an_id_is_the_answer() {
    let (_upstream, sidecar) = answers(
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[],\"isError\":false}}\n\n\
         data: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32602,\"message\":\"did not run\"}}\n\n",
    );

    let text = post(&mut sidecar.agent(), &call("1", "create_note", json!({}), None)).text();

    let [answer] = events(&text).try_into().unwrap();
    assert_eq!(answer["result"]["_meta"]["effect"]["outcome"], "accepted");
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn mcp_7_answers_to_ids_that_were_not_asked_settle_nothing() {
    let (_upstream, sidecar) = answers(
        "data: {\"jsonrpc\":\"2.0\",\"id\":\"1\",\"result\":{\"content\":[]}}\n\n\
         data: {\"jsonrpc\":\"2.0\",\"id\":1.0,\"result\":{\"content\":[]}}\n\n\
         data: {\"jsonrpc\":\"2.0\",\"id\":null,\"result\":{\"content\":[]}}\n\n\
         data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[]}}\n\n\
         data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n\
         data: {\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"m\"}}\n\n\
         data: [{\"jsonrpc\":\"2.0\",\"id\":\"1\",\"result\":{\"content\":[]}}]\n\n",
    );

    let text = post(&mut sidecar.agent(), &call("1", "create_note", json!({}), None)).text();

    let [ping, unread, ours] = events(&text).try_into().unwrap();
    assert_eq!(ping["method"], "ping");
    assert_eq!(unread["error"]["code"], -32700);
    assert_eq!(envelope(&ours["result"])["error"]["code"], "outcome_unknown");
    assert_eq!(ours["id"], 1);
    sidecar.wait_entries(&[("unknown", "unreadable")]);
}

#[test]
fn mcp_7_an_event_that_a_laxer_client_takes_for_the_answer_to_a_write_does_not_pass() {
    for id in ["\"1\"", "1.0", "1e0", "\"0x1\"", "\" 1\""] {
        let answer = format!(
            "id: e1\ndata: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[]}}}}\n\n"
        );
        let upstream = Upstream::start(move |_| Act::events(&answer));
        let sidecar = Sidecar::start(NOTES, &upstream);

        let body = call("1", "create_note", json!({}), None);
        let text = post_with(&mut sidecar.agent(), &[SESSION], &body).text();

        let [ours] = events(&text).try_into().unwrap();
        assert_eq!(ours["id"], 1, "{id}");
        assert_eq!(envelope(&ours["result"])["error"]["code"], "outcome_unknown", "{id}");
        sidecar.wait_entries(&[("unknown", "unreadable")]);
    }
}

#[test]
fn mcp_7_a_read_whose_answer_has_its_id_in_other_words_passes_once() {
    let answer = r#"{"jsonrpc":"2.0","id":"1","result":{"content":[]}}"#;
    for is_stream in [false, true] {
        let upstream = Upstream::start(move |_| match is_stream {
            true => Act::events(&format!("data: {answer}\n\n")),
            false => Act::json(200, answer),
        });
        let sidecar = Sidecar::start(NOTES, &upstream);

        let text = post(&mut sidecar.agent(), &call("1", "read_note", json!({}), None)).text();

        assert_eq!(text.trim().trim_start_matches("data: "), answer);
    }
}

#[test]
fn mcp_7_a_read_whose_client_would_wait_for_ever_is_said_to_be_lost() {
    const PART: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"jsonrpc\":";
    let answers: [fn() -> Act; 4] = [
        || Act::json(200, r#"{"jsonrpc":"2.0","id":9,"result":{"content":[]}}"#),
        || Act::json(200, ""),
        || Act::json(202, ""),
        // Its length is where the connection ends.
        || Act::Last(PART.as_bytes().to_vec()),
    ];
    for act in answers {
        let upstream = Upstream::start(move |_| act());
        let sidecar = Sidecar::start(NOTES, &upstream);

        let answer = post(&mut sidecar.agent(), &call("1", "read_note", json!({}), None)).json();

        assert_eq!(answer["id"], 1);
        assert_eq!(envelope(&answer["result"])["error"]["code"], "answer_lost");
    }
}

#[test]
fn mcp_20_an_answer_on_a_standing_stream_does_not_stand_for_that_of_a_call_whose_own_stream_is_open()
 {
    let (send, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(Some(wait));
    let astray = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[]}}\n\n\
                  data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n";
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "GET" => Act::events(astray),
        _ => Act::After(wait.lock().unwrap().take().unwrap(), Box::new(Act::json(200, DONE))),
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();
    let headers = [SESSION, ("content-type", "application/json")];
    agent.send("POST", "/mcp", &headers, &call("1", "create_note", json!({}), None));
    until("the call", || (upstream.count("POST") == 1).then_some(()));

    let standing = [("accept", "text/event-stream"), SESSION];
    let told = sidecar.agent().call("GET", "/mcp", &standing, "").text();
    drop(send);
    let answer = agent.answer("POST").json();

    assert_eq!(events(&told).len(), 1, "{told}");
    assert_eq!(events(&told)[0]["method"], "notifications/message");
    assert_eq!(answer["result"]["_meta"]["effect"]["outcome"], "accepted");
}

#[test]
fn mcp_5_an_answer_with_two_meanings_settles_nothing_as_accepted() {
    let answers = [
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]},"error":{"code":1,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{"content":[]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true,"isError":false,"content":[]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]},"method":"tools/call"}"#,
        r#"{"jsonrpc":"1.0","id":1,"result":{"content":[]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":"no"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"resultType":"done"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":[]}"#,
    ];
    for answer in answers {
        let upstream = Upstream::start(move |_| Act::json(200, answer));
        let sidecar = Sidecar::start(NOTES, &upstream);

        post(&mut sidecar.agent(), &call("1", "create_note", json!({}), None));

        until("the end of the entry", || (sidecar.entries()[0].0 != "begun").then_some(()));
        assert_eq!(sidecar.entries()[0].0, "unknown", "{answer}");
    }
}

#[test]
fn mcp_7_an_id_used_twice_in_flight_gives_each_call_its_own_answer() {
    let number = AtomicUsize::new(0);
    let (send, next) = std::sync::mpsc::channel::<()>();
    let next = std::sync::Mutex::new(Some(next));
    let upstream = Upstream::start(move |_| {
        let number = number.fetch_add(1, Ordering::Relaxed);
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[],"structuredContent":{{"n":{number}}}}}}}"#
        );
        match next.lock().unwrap().take() {
            Some(wait) => Act::After(wait, Box::new(Act::json(200, &text))),
            None => Act::json(200, &text),
        }
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut first = sidecar.agent();
    let headers = [SESSION, ("content-type", "application/json")];
    first.send("POST", "/mcp", &headers, &call("1", "create_note", json!({"a": 1}), None));
    until("the first call", || (upstream.count("POST") == 1).then_some(()));

    let body = call("1", "create_note", json!({"a": 2}), None);
    let second = post_with(&mut sidecar.agent(), &[SESSION], &body).json();
    drop(send);
    let first = first.answer("POST").json();

    assert_eq!(first["result"]["structuredContent"]["n"], 0);
    assert_eq!(second["result"]["structuredContent"]["n"], 1);
    assert_ne!(
        first["result"]["_meta"]["effect"]["entry"],
        second["result"]["_meta"]["effect"]["entry"]
    );
}

#[test]
fn mcp_7_an_old_answer_that_is_sent_again_is_not_the_answer_to_a_later_call_with_its_id() {
    let posts = AtomicUsize::new(0);
    let upstream = Upstream::start(move |received| {
        let old = "id: e1\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[],\"structuredContent\":{\"old\":true}}}\n\n";
        match (received.method.as_str(), posts.fetch_add(1, Ordering::Relaxed)) {
            ("GET", _) | (_, 0) => Act::events(old),
            _ => Act::events("id: e2\ndata:\n\n"),
        }
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let make = |n: i32| {
        let body = call("1", "create_note", json!({"n": n}), None);
        post_with(&mut sidecar.agent(), &[SESSION], &body).text()
    };

    make(1);
    make(2);
    let headers = [("accept", "text/event-stream"), SESSION, ("last-event-id", "e0")];
    let again = sidecar.agent().call("GET", "/mcp", &headers, "").text();

    assert!(!again.contains("\"effect\""), "nobody can tell whose it is: {again}");
    sidecar.wait_entries(&[("accepted", ""), ("unknown", "timeout")]);
}

#[test]
fn mcp_19_an_event_without_end_is_not_held_and_tells_nothing() {
    let upstream = Upstream::start(|_| {
        let mut pieces = vec![
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: ".to_vec(),
        ];
        pieces.extend((0..80).map(|_| vec![b'x'; 64 * 1024]));
        Act::Pieces(pieces)
    });
    let sidecar = Sidecar::start(NOTES, &upstream);

    let read = post(&mut sidecar.agent(), &call("1", "read_note", json!({}), None));
    let write = post(&mut sidecar.agent(), &call("2", "create_note", json!({}), None));

    assert_eq!(read.body.len(), 6 + 80 * 64 * 1024, "nothing is held back for ever");
    let [ours] = events(&write.text()).try_into().unwrap();
    assert_eq!(envelope(&ours["result"])["error"]["code"], "outcome_unknown");
    sidecar.wait_entries(&[("unknown", "unreadable")]);
    let next = post(&mut sidecar.agent(), &call("3", "create_note", json!({"n": 2}), None));
    assert_eq!(next.status, 200, "the sidecar serves on");
}

#[test]
fn standing_streams_take_a_place_each_and_give_it_back() {
    let (send, next) = std::sync::mpsc::channel::<()>();
    let next = std::sync::Arc::new(std::sync::Mutex::new(next));
    let upstream = {
        let next = std::sync::Arc::clone(&next);
        Upstream::start(move |received| {
            if received.method == "GET" {
                let (hold, wait) = std::sync::mpsc::channel::<()>();
                let next = std::sync::Arc::clone(&next);
                std::thread::spawn(move || {
                    let _end = next.lock().unwrap().recv();
                    drop(hold);
                });
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: open\n\n";
                return Act::Waits(head.into(), wait, Vec::new());
            }
            Act::json(200, DONE)
        })
    };
    let mut setup = crate::support::sidecar::Setup::new(NOTES);
    setup.places = 300;
    let sidecar = setup.start(&upstream);
    let mut streams = Vec::new();
    let mut refused = 0;
    for _ in 0..320 {
        let mut agent = sidecar.agent();
        agent.send("GET", "/mcp", &[("accept", "text/event-stream"), SESSION], "");
        match agent.head().unwrap().status {
            200 => streams.push(agent),
            503 => refused += 1,
            other => panic!("{other}"),
        }
    }

    let said = post(&mut sidecar.agent(), &call("1", "read_note", json!({}), None));

    assert_eq!((streams.len(), refused, said.status), (300, 20, 503), "a place each, and no more");
    drop(streams);
    until("the places are free again", || {
        let answer = post(&mut sidecar.agent(), &call("1", "read_note", json!({}), None));
        (answer.status == 200).then_some(())
    });
    drop(send);
}

#[test]
fn mcp_26_a_list_that_changes_under_a_call_makes_nothing_milder() {
    let lists = AtomicUsize::new(0);
    let upstream = Upstream::start(move |received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = message["id"].clone();
        let result = match message["method"].as_str() {
            Some("tools/list") => {
                // Endless pages, and a tool that calls itself a read on the second.
                let page = lists.fetch_add(1, Ordering::Relaxed);
                let tool = json!({"name": "delete_note", "annotations": {"readOnlyHint": page > 0},
                    "_meta": {"anvil/effect_class": "read"}});
                json!({"tools": [tool], "nextCursor": format!("p{page}")})
            }
            _ => json!({"content": []}),
        };
        Act::json(200, &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();

    let pages: Vec<Value> =
        (0..2).map(|_| post(&mut agent, &request("1", "tools/list", json!({}))).json()).collect();
    let refused = post(&mut agent, &call("2", "delete_note", json!({}), None)).json();

    for page in pages {
        let tool = &page["result"]["tools"][0];
        assert_eq!(tool["_meta"]["anvil/effect_class"], "irreversible", "{tool}");
        assert_eq!(tool["annotations"]["readOnlyHint"], false, "{tool}");
    }
    assert_eq!(envelope(&refused["result"])["error"]["code"], "confirmation_required");
    let rest = sidecar.agent().post("/call/delete_note", &[], "{}");
    assert_eq!(rest.status, 428, "endless pages are read to a limit: {}", rest.text());
}

#[test]
fn mcp_8_bytes_that_are_no_message_are_refused_and_the_connection_lives() {
    let upstream = Upstream::start(|_| Act::json(200, DONE));
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent: Agent = sidecar.agent();
    let one = call("1", "create_note", json!({}), None);
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies = [
        String::new(),
        " ".to_owned(),
        "null".to_owned(),
        "\"tools/call\"".to_owned(),
        format!("{one}{one}"),
        format!("{one}\n{one}"),
        one.replace("\"id\":1", "\"id\":null"),
        one.replace("\"id\":1", "\"id\":{}"),
        one.replace("\"id\":1", "\"id\":1.5"),
        one.replace("\"id\":1", "\"id\":true"),
        one.replace("\"id\":1,", ""),
        one.replace("\"method\":", "\"method\":\"ping\",\"method\":"),
        one.replace("\"method\":", "\"Method\":\"ping\",\"\\u006dethod\":\"ping\",\"method\":"),
        one.replace("\"name\":", "\"name\":\"read_note\",\"name\":"),
        one.replace("\"2.0\"", "\"2.1\""),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{deep}}}"#),
    ];
    for body in &bodies {
        let answer = post(&mut agent, body);
        assert_eq!(answer.status, 400, "{body:.80}");
        assert!(answer.json()["error"]["code"].is_i64(), "{body:.80}");
    }
    assert!(upstream.received().is_empty());
    assert_eq!(post(&mut agent, &one).status, 200);
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn mcp_23_an_answer_that_is_no_message_was_seen_by_its_agent_and_a_repeat_is_asked_about() {
    for (status, kind, body) in [
        (500, "text/plain", "oops"),
        (500, "application/json", r#"{"message":"oops"}"#),
        (503, "text/html", ""),
    ] {
        let upstream = Upstream::start(move |_| Act::with(status, &[("content-type", kind)], body));
        let sidecar = Sidecar::start(NOTES, &upstream);
        let body_of = |id| call(id, "create_note", json!({}), None);

        let seen = post(&mut sidecar.agent(), &body_of("1"));
        sidecar.wait_entries(&[("unknown", "ambiguous_status")]);
        let again = post(&mut sidecar.agent(), &body_of("2")).json();

        assert_eq!((seen.status, seen.text().as_str()), (status, body));
        let error = &envelope(&again["result"])["error"];
        assert_eq!(error["code"], "confirmation_required", "{again}");
        assert_eq!(upstream.received().len(), 1);
    }
}
