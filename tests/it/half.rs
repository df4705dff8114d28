//! Answers that are cut, too long or odd: what becomes of the call, and what its agent is told.

use serde_json::{Value, json};

use crate::support::mcp::{call, envelope, events, post};
use crate::support::{Act, Sidecar, Upstream};

const POLICY: &str = r#"
version: 1
operations:
  things.create:
    match: { http: "POST /things" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: things.delete, arguments: { path.id: response.id } }
      idempotency: { type: header, name: Idempotency-Key, retention: 24h }
  things.delete:
    match: { http: "DELETE /things/{id}" }
    effect: { class: irreversible, kind: delete }
  plain.create:
    match: { http: "POST /plain" }
    effect: { class: irreversible, kind: create }
    confirm: none
  notes.create:
    match: { tool: create_note }
    effect: { class: irreversible, kind: create }
    confirm: none
  notes.read:
    match: { tool: read_note }
    effect: { class: read }
"#;

/// An answer without a length, and then the end of the connection.
fn open_ended(version: &str, status: u16, kind: &str, body: &str) -> Act {
    let head = format!("HTTP/{version} {status} Status\r\ncontent-type: {kind}\r\n");
    Act::Last(format!("{head}connection: close\r\n\r\n{body}").into_bytes())
}

#[test]
fn m9_json_that_breaks_off_at_the_end_of_its_connection_is_a_lost_answer() {
    let whole = r#"{"id":7,"name":"x"}"#;
    for target in ["/things", "/plain"] {
        for version in ["1.1", "1.0"] {
            for end in [0, 1, 7, whole.len() - 1] {
                let upstream = Upstream::start(move |_| {
                    open_ended(version, 201, "application/json; charset=utf-8", &whole[..end])
                });
                let sidecar = Sidecar::start(POLICY, &upstream);
                let mut agent = sidecar.agent();
                let key = [("idempotency-key", "k")];

                let answer = agent.post(target, &key, "{}");
                let again = agent.post(target, &key, "{}");

                let case = format!("{target} HTTP/{version} cut at {end}");
                assert_eq!((answer.status, &*answer.code()), (502, "outcome_unknown"), "{case}");
                assert_eq!(answer.report()["outcome"], "unknown", "{case}");
                assert_eq!(answer.report()["undo"], json!(null), "{case}");
                assert_eq!((again.status, &*again.code()), (409, "outcome_unknown"), "{case}");
                sidecar.wait_entries(&[("unknown", "truncated_body")]);
                assert_eq!(upstream.received().len(), 1, "{case}");
            }
        }
    }
}

#[test]
fn m9_what_is_whole_or_cannot_be_judged_counts_by_its_status() {
    let cut = r#"{"id":7,"na"#;
    let framed = |body: &str| Act::json(201, body);
    for (case, act, outcome) in [
        ("whole", open_ended("1.1", 201, "application/json", r#"{"id":7}"#), "accepted"),
        ("of a suffix", open_ended("1.1", 201, "application/vnd.x+json", cut), "unknown"),
        ("no JSON", open_ended("1.1", 201, "text/plain", cut), "accepted"),
        ("lines", open_ended("1.1", 201, "application/json", "{}\n{}\n"), "accepted"),
        ("its length is reached", framed(cut), "accepted"),
        ("rejected", open_ended("1.1", 422, "application/json", cut), "rejected"),
    ] {
        let act = std::sync::Mutex::new(Some(act));
        let upstream = Upstream::start(move |_| act.lock().unwrap().take().unwrap());
        let sidecar = Sidecar::start(POLICY, &upstream);

        let answer = sidecar.agent().post("/things", &[], "{}");

        assert_eq!(answer.report()["outcome"], outcome, "{case}: {}", answer.text());
    }
}

#[test]
fn m9_a_tools_answer_that_breaks_off_at_the_end_of_its_connection_is_a_lost_answer() {
    let whole = r#"{"jsonrpc":"2.0","id":7,"result":{"content":[]}}"#;
    for end in [0, 20, whole.len() - 1] {
        let upstream =
            Upstream::start(move |_| open_ended("1.1", 200, "application/json", &whole[..end]));
        let sidecar = Sidecar::start(POLICY, &upstream);
        let mut agent = sidecar.agent();

        let answer = post(&mut agent, &call("7", "create_note", json!({}), None)).json();
        let again = post(&mut agent, &call("8", "create_note", json!({}), None)).json();

        assert_eq!(answer["id"], 7, "cut at {end}");
        assert_eq!(answer["result"]["isError"], true, "cut at {end}");
        assert_eq!(answer["result"]["_meta"]["effect"]["outcome"], "unknown", "cut at {end}");
        assert_eq!(again["result"]["_meta"]["effect"]["refused"], "outcome_unknown");
        assert_eq!(upstream.received().len(), 1, "cut at {end}");
    }
}

/// A stream of events in chunks, which ends as its length says it does, or without an end.
fn chunked(events: &str, is_whole: bool) -> Act {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = match events.len() {
        0 => String::new(),
        length => format!("{length:x}\r\n{events}\r\n"),
    };
    Act::Last(format!("{head}{chunk}{}", if is_whole { "0\r\n\r\n" } else { "" }).into_bytes())
}

/// The one message of an answer, in JSON or on a stream of whole events.
fn message(answer: &crate::support::agent::Answer) -> Value {
    let text = answer.text();
    if answer.header("content-type") == Some("application/json") {
        return answer.json();
    }
    assert!(text.ends_with("\n\n"), "no event is cut: {text:?}");
    let [message] = events(&text).try_into().unwrap_or_else(|_| panic!("one message: {text:?}"));
    message
}

#[test]
fn mcp_21_an_event_that_was_cut_does_not_swallow_the_answer_that_says_so() {
    let result =
        r#"{"jsonrpc": "2.0", "id": 7, "result": {"content": [], "_meta": {"effect": 1}}}"#;
    for (case, head, is_chunked, is_whole) in [
        ("closed", "event: message\n", false, true),
        ("ended", "event: message\nid: 5\n", true, true),
        ("broken", "event: message\n", true, false),
    ] {
        let event = format!("{head}data: {result}\n\n");
        let complete = event.len() - 2;
        for end in 1..complete {
            // Each byte where something new begins, and some of those between.
            if !event.is_char_boundary(end) || (end % 7 != 0 && end + 9 < complete && end > 20) {
                continue;
            }
            let cut = event[..end].to_owned();
            let upstream = Upstream::start(move |_| match is_chunked {
                true => chunked(&cut, is_whole),
                false => Act::events(&cut),
            });
            let sidecar = Sidecar::start(POLICY, &upstream);
            let mut agent = sidecar.agent();

            let write = message(&post(&mut agent, &call("7", "create_note", json!({}), None)));
            let read = message(&post(&mut agent, &call("7", "read_note", json!({}), None)));

            let case = format!("{case} at {end}");
            assert_eq!(envelope(&write["result"])["error"]["code"], "outcome_unknown", "{case}");
            assert_eq!(write["result"]["_meta"]["effect"]["outcome"], "unknown", "{case}");
            assert_eq!(envelope(&read["result"])["error"]["code"], "answer_lost", "{case}");
            assert_eq!(read["result"]["_meta"]["effect"]["class"], "read", "{case}");
            sidecar.wait_entries(&[("unknown", "truncated_body")]);
        }
        // Complete but for its blank line it is the answer.
        let upstream = Upstream::start(move |_| match is_chunked {
            true => chunked(&event[..complete], is_whole),
            false => Act::events(&event[..complete]),
        });
        let sidecar = Sidecar::start(POLICY, &upstream);
        let write = post(&mut sidecar.agent(), &call("7", "create_note", json!({}), None));
        assert_eq!(message(&write)["result"]["_meta"]["effect"]["outcome"], "accepted", "{case}");
    }
}

#[test]
fn a_read_whose_answer_breaks_off_below_its_length_is_told_so() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n";
    let cut = format!(r#"{head}{{"jsonrpc":"2.0","id":7,"result":{{"con"#);
    let upstream = Upstream::start(move |_| Act::Last(cut.clone().into_bytes()));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = post(&mut sidecar.agent(), &call("7", "read_note", json!({}), None));

    let result = &message(&answer)["result"];
    assert_eq!(envelope(result)["error"]["code"], "answer_lost");
    assert_eq!(result["_meta"]["effect"]["operation"], "notes.read");
}

#[test]
fn contract_6_a_result_whose_meta_is_no_object_is_none_and_its_agent_has_a_report() {
    for meta in ["[1]", "\"effect\"", "7", "true", "null"] {
        for is_stream in [false, true] {
            let result =
                format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"content":[],"_meta":{meta}}}}}"#);
            let upstream = Upstream::start(move |_| match is_stream {
                true => Act::events(&format!("data: {result}\n\n")),
                false => Act::json(200, &result),
            });
            let sidecar = Sidecar::start(POLICY, &upstream);
            let mut agent = sidecar.agent();

            let write = post(&mut agent, &call("7", "create_note", json!({}), None));
            let read = post(&mut sidecar.agent(), &call("7", "read_note", json!({}), None));

            let case = format!("{meta}, stream {is_stream}");
            let (write, read) = (message(&write), message(&read));
            let told = &write["result"]["_meta"]["effect"];
            assert_eq!(read["result"]["_meta"]["effect"]["class"], "read", "{case}");
            if meta == "null" {
                assert_eq!(told["outcome"], "accepted", "{case}");
                assert_eq!(read["result"]["content"], json!([]), "{case}");
                continue;
            }
            assert_eq!(told["outcome"], "unknown", "{case}");
            assert_eq!(envelope(&write["result"])["error"]["code"], "outcome_unknown", "{case}");
            assert_eq!(envelope(&read["result"])["error"]["code"], "answer_lost", "{case}");
            sidecar.wait_entries(&[("unknown", "unreadable")]);
        }
    }
}

#[test]
fn contract_6_an_answer_to_a_write_that_is_too_long_is_not_passed_as_one() {
    let forged = r#"{"class":"read","operation":"x"}"#;
    for is_stream in [false, true] {
        let result = format!(
            r#"{{"jsonrpc":"2.0","id":7,"result":{{"content":[],"_meta":{{"effect":{forged}}},"x":"{}"}}}}"#,
            "y".repeat(2 << 20)
        );
        let length = result.len();
        let upstream = Upstream::start(move |_| match is_stream {
            true => Act::events(&format!("id: 1\ndata: {result}\n\n")),
            false => Act::json(200, &result),
        });
        let sidecar = Sidecar::start(POLICY, &upstream);
        let mut agent = sidecar.agent();

        let write = post(&mut agent, &call("7", "create_note", json!({}), None));
        let again = post(&mut sidecar.agent(), &call("8", "create_note", json!({}), None));
        let read = post(&mut sidecar.agent(), &call("7", "read_note", json!({}), None));

        let result = message(&write)["result"].clone();
        let error = envelope(&result)["error"].clone();
        assert_eq!(error["code"], "outcome_unknown");
        assert!(error["message"].as_str().unwrap().contains("limits.response_body_bytes"));
        assert_eq!(result["_meta"]["effect"]["outcome"], "unknown");
        sidecar.wait_entries(&[("unknown", "unreadable")]);
        assert_eq!(again.json()["result"]["_meta"]["effect"]["refused"], "outcome_unknown");
        assert!(read.body.len() >= length, "a read's passes");
    }
}

#[test]
fn an_event_that_is_too_long_does_not_hide_the_answer_behind_it() {
    let notice = format!(
        "data: {{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{{\"t\":\"{}\"}}}}\r\n\r\n",
        "y".repeat(2 << 20)
    );
    let answer = "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"content\":[]}}\n\n";
    let upstream = Upstream::start(move |_| Act::events(&format!("{notice}{answer}")));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let write = post(&mut sidecar.agent(), &call("7", "create_note", json!({}), None));
    let read = post(&mut sidecar.agent(), &call("7", "read_note", json!({}), None));

    assert_eq!(message(&write)["result"]["_meta"]["effect"]["outcome"], "accepted");
    sidecar.wait_entries(&[("accepted", "")]);
    let answer = events(&read.text()).pop().unwrap();
    assert_eq!(answer["result"]["_meta"]["effect"]["class"], "read");
    assert!(read.body.len() > 2 << 20, "all of it passes");
}

#[test]
fn mcp_11_mcp_39_each_message_of_a_batch_on_a_stream_is_treated_as_if_it_were_alone() {
    let forged = r#"{"class":"read"}"#;
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"_meta":{"effect":1}}}"#;
    let batch = format!(
        r#" [{progress}, {{"jsonrpc":"2.0","id":7,"result":{{"content":[],"_meta":{{"effect":{forged}}}}}}}]"#
    );
    let upstream = Upstream::start(move |_| Act::events(&format!("id: 1\ndata: {batch}\n\n")));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let write = post(&mut sidecar.agent(), &call("7", "create_note", json!({}), None));
    let get = sidecar.agent().call("GET", "/mcp", &[("accept", "text/event-stream")], "");

    let [messages] = events(&write.text()).try_into().unwrap();
    let theirs = json!({"anvil/upstream_effect": 1});
    assert_eq!(messages[0]["params"]["_meta"], theirs);
    assert_eq!(messages[1]["result"]["_meta"]["effect"]["outcome"], "accepted");
    assert!(write.text().starts_with("id: 1\n"));
    sidecar.wait_entries(&[("accepted", "")]);
    let [messages] = events(&get.text()).try_into().unwrap();
    assert_eq!(messages[0]["params"]["_meta"], theirs);
    let meta = &messages[1]["result"]["_meta"];
    assert_eq!(meta["effect"]["outcome"], "accepted", "a replay shows the same report");
    assert_eq!(meta["anvil/upstream_effect"], json!({"class": "read"}));
}

#[test]
fn an_event_that_a_laxer_reader_takes_for_the_answer_does_not_pass_as_a_success() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for odd in [
        br#""q":1,"q":2"#.as_slice(),
        br#""t":"\ud800""#,
        b"\"t\":\"\xff\"",
        format!(r#""d":{deep}"#).as_bytes(),
    ] {
        let mut event =
            br#"data: {"jsonrpc":"2.0","id":7,"result":{"content":[],"isError":false,"#.to_vec();
        event.extend_from_slice(odd);
        event.extend_from_slice(b"}}\n\n");
        let passed = event.clone();
        let upstream = Upstream::start(move |_| {
            let head =
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            Act::Last([head.as_slice(), &event].concat())
        });
        let sidecar = Sidecar::start(POLICY, &upstream);

        let write = post(&mut sidecar.agent(), &call("7", "create_note", json!({}), None));
        let read = post(&mut sidecar.agent(), &call("7", "read_note", json!({}), None));

        let result = message(&write)["result"].clone();
        let odd = String::from_utf8_lossy(odd).into_owned();
        assert_eq!(envelope(&result)["error"]["code"], "outcome_unknown", "{odd:.40}");
        assert_eq!(result["_meta"]["effect"]["outcome"], "unknown", "{odd:.40}");
        sidecar.wait_entries(&[("unknown", "unreadable")]);
        assert_eq!(read.body, passed, "a read's passes as it came");
        assert_eq!(read.report()["operation"], "notes.read", "with its report in the header");
    }
}
