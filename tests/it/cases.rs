use std::time::Duration;

use serde_json::json;

use crate::support::mcp::{call, envelope, post};
use crate::support::process::Home;
use crate::support::sidecar::Setup;
use crate::support::{Act, Agent, Sidecar, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.get:
    match: { http: "GET /things/{id}" }
    effect: { class: read }
  things.put:
    match: { http: "PUT /things/{id}" }
    effect:
      class: reversible
      kind: update
      inverse:
        operation: things.restore
        arguments: { path.id: request.path.id, body.value: response.old }
  things.restore:
    match: { http: "POST /things/{id}/restore" }
    effect: { class: irreversible, kind: update }
  things.create:
    match: { http: "POST /things" }
    effect: { class: irreversible, kind: create }
    confirm: caller
  messages.get:
    match: { http: "GET /2010-04-01/Accounts/{AccountSid}/Messages/{Sid}.json" }
    effect: { class: read }
  keypairs.disable:
    match: { http: "POST /keypairs/{id}:disable" }
    effect: { class: irreversible, kind: update }
    confirm: caller
  forms.send:
    match: { http: "POST /forms" }
    effect:
      class: compensable
      kind: create
      compensate:
        operation: forms.cancel
        arguments: { path.id: response.id, body.amount: request.body.amount }
  forms.cancel:
    match: { http: "POST /forms/{id}/cancel" }
    effect: { class: irreversible, kind: update }
  tool.write:
    match: { tool: write }
    effect: { class: irreversible, kind: create }
    confirm: caller
"#;

const CONFIRM: (&str, &str) = ("effect-confirm", "true");

#[test]
fn a2_a_coding_that_is_not_plainly_chunked_is_refused() {
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let sidecar = Sidecar::start(POLICY, &upstream);
    for coding in ["chunked,", "chunked, gzip", "xchunked", "\tchunked\u{b}"] {
        let mut agent = sidecar.agent();
        agent.raw(
            format!(
                "POST /things HTTP/1.1\r\nhost: proxy\r\neffect-confirm: true\r\n\
                 transfer-encoding: {coding}\r\ncontent-length: 60\r\n\r\n0\r\n\r\n"
            )
            .as_bytes(),
        );
        let answer = agent.answer("POST");
        assert_eq!(answer.status, 400, "{coding:?}");
        assert!(agent.is_closed(), "{coding:?}");
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn a6_a_body_that_stalls_is_given_up_and_its_tail_is_no_request() {
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let mut setup = Setup::new(POLICY);
    setup.limits.request_idle = Duration::from_millis(50);
    let sidecar = setup.start(&upstream);
    let mut agent = sidecar.agent();
    agent.raw(
        b"POST /things HTTP/1.1\r\nhost: proxy\r\neffect-confirm: true\r\n\
          content-length: 100\r\n\r\nhalf",
    );
    assert_eq!(agent.answer("POST").status, 408);

    let _refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        agent.raw(b"GET /things/1 HTTP/1.1\r\nhost: proxy\r\n\r\n");
    }));

    assert!(agent.try_answer("GET").is_none());
    assert!(upstream.received().is_empty());
}

#[test]
fn a9_what_describes_the_body_agrees_with_the_body_that_is_sent() {
    let upstream = Upstream::start(|_| {
        Act::with(
            200,
            &[
                ("content-type", "application/json"),
                ("etag", "\"old\""),
                ("content-digest", "sha-256=:x:"),
            ],
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#,
        )
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write","_meta":{"confirm":true}}}"#;

    let answer = sidecar.agent().post("/mcp", &[("accept-encoding", "gzip")], body);

    assert!(answer.json()["result"]["_meta"]["effect"].is_object());
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
    assert_eq!(answer.header("etag"), None);
    assert_eq!(answer.header("content-digest"), None);
    assert_eq!(upstream.only().header("accept-encoding"), Some("identity"));
}

#[test]
fn a10_h_40_a_report_that_does_not_fit_a_header_is_shortened_and_the_answer_kept() {
    let old = "x".repeat(6000);
    let answered = format!("{{\"old\":\"{old}\"}}");
    let upstream = Upstream::start(move |_| Act::json(200, &answered));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let mut agent = sidecar.agent();
    agent.raw(
        b"PUT /things/2 HTTP/1.1\r\nhost: proxy\r\ncontent-type: application/json\r\n\
          content-length: 13\r\n\r\n{\"value\":\"n\"}",
    );
    let answer = agent.answer("PUT");

    assert_eq!(answer.status, 200);
    assert_eq!(answer.body.len(), 6010);
    assert!(answer.header("x-anvil-effect").unwrap().len() <= 4096);
    let report = answer.report();
    assert_eq!(report["truncated"], true);
    assert_eq!(report["outcome"], "accepted");
    assert!(report["entry"].is_string());
}

#[test]
fn b1_a_pooled_connection_that_dies_under_a_write_makes_one_arrival_at_most() {
    // Each answer is the last of its connection, without a word: the pool holds dead connections.
    let upstream = Upstream::start(|_| {
        Act::Last(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}".to_vec())
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    for index in 0..20 {
        let before = upstream.count("POST");
        let answer = agent.post("/things", &[CONFIRM], &format!("{{\"n\":{index}}}"));
        let arrived = upstream.count("POST") - before;
        match answer.status {
            201 => assert_eq!(arrived, 1),
            502 => assert!(arrived <= 1, "never sent twice"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn c4_text_beside_a_parameter_matches_exactly() {
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let operation = |agent: &mut Agent, target: &str| {
        agent.get(target).report()["operation"].as_str().unwrap().to_owned()
    };

    let path = "/2010-04-01/Accounts/AC1/Messages/SM1.json";
    assert_eq!(operation(&mut agent, path), "messages.get");
    assert_eq!(operation(&mut agent, &path.replace(".json", "")), "_undeclared");
    assert_eq!(operation(&mut agent, &path.replace("SM1", "")), "_undeclared");
    assert_eq!(operation(&mut agent, "/things/1-delete"), "things.get");
    assert_eq!(operation(&mut agent, "/things-delete"), "_undeclared");
    let disable = agent.post("/keypairs/k1:disable", &[CONFIRM], "{}");
    assert_eq!(disable.report()["operation"], "keypairs.disable");
    assert_eq!(agent.post("/keypairs/k1:enable", &[CONFIRM], "{}").status, 428);
}

#[test]
fn e4_e7_an_answer_that_cannot_be_read_passes_and_its_effect_is_still_reported() {
    for body in ["{\"t\":\"\\ud800\"}".to_owned(), "[".repeat(1000) + &"]".repeat(1000)] {
        let answered = body.clone();
        let upstream = Upstream::start(move |_| Act::json(200, &answered));
        let sidecar = Sidecar::start(POLICY, &upstream);

        let answer = sidecar.agent().post("/forms", &[], "{\"amount\":1}");

        assert_eq!(answer.text(), body);
        let report = answer.report();
        assert_eq!(report["outcome"], "accepted");
        assert_eq!(report["undo"], serde_json::Value::Null);
        assert!(report["undo_unavailable"].is_string());
    }
}

#[test]
fn e8_k1_forms_keep_their_bytes_and_doubled_fields_that_are_mapped_are_refused() {
    let upstream = Upstream::start(|_| Act::json(200, r#"{"id":"f1"}"#));
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let form = [("content-type", "application/x-www-form-urlencoded")];

    let body = "amount=100&currency=usd&metadata[key]=v&x=%41+b";
    let sent = agent.call("POST", "/forms", &form, body);
    let doubled = agent.call("POST", "/forms", &form, "amount=100&amount=1");
    let elsewhere = agent.call("POST", "/forms", &form, "amount=1&other=1&other=2");

    assert_eq!(sent.status, 200);
    assert_eq!(sent.report()["undo"]["arguments"]["body.amount"], "100");
    assert_eq!(upstream.received()[0].text(), body);
    assert_eq!(doubled.status, 400);
    assert_eq!(doubled.code(), "ambiguous_member");
    assert_eq!(elsewhere.status, 200);
    assert_eq!(upstream.received().len(), 2);
}

#[test]
fn f3_a_409_is_ambiguous() {
    let upstream = Upstream::start(|_| Act::json(409, "{}"));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = sidecar.agent().post("/things", &[CONFIRM], "{}");

    assert_eq!(answer.status, 409);
    assert_eq!(answer.report()["outcome"], "unknown");
    sidecar.wait_entries(&[("unknown", "ambiguous_status")]);
}

#[test]
fn f6_a_write_without_a_key_is_never_repeated_by_the_proxy() {
    let upstream = Upstream::start(|_| Act::json(502, "{}"));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = sidecar.agent().post("/things", &[CONFIRM], "{}");

    assert_eq!(answer.status, 502);
    assert_eq!(answer.report()["idempotency_key"], serde_json::Value::Null);
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn f7_h_20l_an_answer_that_is_cut_is_unknown() {
    let upstream = Upstream::start(|_| {
        Act::Last(
            b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"id\""
                .to_vec(),
        )
    });
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = sidecar.agent().post("/things", &[CONFIRM], "{}");

    assert_eq!(answer.status, 502);
    assert_eq!(answer.code(), "outcome_unknown");
    sidecar.wait_entries(&[("unknown", "truncated_body")]);
}

#[test]
fn case_g7_a_caller_that_approves_by_itself_does_not_outweigh_the_policy_which_is_named() {
    let policy = "version: 1\noperations:\n  things.create:\n    match: { http: \"POST /things\" }\n    \
                  effect: { class: irreversible, kind: create }\n    confirm: LEVEL\n";
    for level in ["challenge", "human"] {
        let upstream = Upstream::start(|_| Act::json(200, "{}"));
        let sidecar = Sidecar::start(&policy.replace("LEVEL", level), &upstream);

        let refused = sidecar.agent().post("/things", &[CONFIRM], "{}");

        assert_eq!(refused.status, 428, "{level}");
        assert_eq!(refused.json()["confirm"]["level"], level);
        let text = refused.text();
        assert!(text.contains("things.create is irreversible"), "{text}");
        assert!(text.contains("as this proxy's policy says"), "{text}");
        assert!(upstream.received().is_empty(), "{level}");
    }
}

#[test]
fn human_level_calls_are_refused_with_a_clear_message_and_no_token() {
    let policy = POLICY.replace(
        "    effect: { class: irreversible, kind: create }\n    confirm: caller\n  messages",
        "    effect: { class: irreversible, kind: create }\n    confirm: human\n  messages",
    );
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let sidecar = Sidecar::start(&policy, &upstream);

    let refused = sidecar.agent().post("/things", &[CONFIRM], "{}");

    assert_eq!(refused.status, 428);
    assert_eq!(refused.json()["confirm"]["level"], "human");
    assert_eq!(refused.json()["confirm"].get("token"), None);
    assert!(refused.text().contains("A person must decide it"));
    assert!(upstream.received().is_empty());
}

#[test]
fn another_weak_callers_open_entry_is_asked_about_and_shows_nothing() {
    let (go, hold) = std::sync::mpsc::channel();
    let hold = std::sync::Mutex::new(Some(hold));
    let upstream = Upstream::start(move |_| match hold.lock().unwrap().take() {
        Some(hold) => Act::After(hold, Box::new(Act::json(201, "{}"))),
        None => Act::json(201, "{}"),
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut first = sidecar.agent();
    let ann = [("content-type", "application/json"), CONFIRM, ("authorization", "ann")];
    first.send("POST", "/things", &ann, "{}");
    wait::until("dispatch", || (upstream.count("POST") == 1).then_some(()));
    let entry = sidecar.entries();
    assert_eq!(entry.len(), 1);

    let other = sidecar.agent().post("/things", &[CONFIRM, ("authorization", "bob")], "{}");
    go.send(()).unwrap();

    assert_eq!(other.status, 428);
    assert!(other.text().contains("Another caller"));
    assert_eq!(other.json()["error"]["details"].get("entry"), None);
    assert_eq!(first.answer("POST").status, 201);
}

/// A job's sidecar: nothing holds it when its work is done.
#[test]
fn case_i7_a_sidecar_whose_job_is_done_ends_at_a_sigterm_with_code_0() {
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let home = Home::new(POLICY, upstream.address);
    let mut process = home.start();
    let mut agent = process.agent();
    assert_eq!(agent.post("/things", &[CONFIRM], "{}").status, 200);

    // The agent's connection stays open, as a pooled one does.
    process.signal(rustix::process::Signal::TERM);

    assert_eq!(process.wait().code(), Some(0), "{}", home.log());
    drop(agent);
    assert_eq!(home.query("SELECT state FROM entries"), ["accepted"], "nothing is left open");
}

#[test]
fn case_i8_whoever_is_answered_first_is_answered_by_the_policy_and_with_a_ledger() {
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let home = Home::new(POLICY, upstream.address);
    let process = home.launch();
    // From its first moment on: no connection, or the whole of it.
    let mut agent = wait::until("a first connection", || {
        std::net::TcpStream::connect(process.data).ok().map(|_| Agent::connect(process.data))
    });

    let asked = agent.post("/undeclared", &[], "{}");
    let made = agent.post("/things", &[CONFIRM], "{}");

    assert_eq!((asked.status, asked.report()["class"].as_str()), (428, Some("irreversible")));
    assert_eq!((made.status, made.report()["outcome"].as_str()), (200, Some("accepted")));
    assert_eq!(upstream.count("POST"), 1);
    drop(process);
    std::fs::write(home.policies().join("test.yaml"), "version: 1\noperations: [").unwrap();
    assert!(home.start_under(&[]).is_none(), "without a policy nothing listens");
}

#[test]
fn case_k3_k4_k7_what_an_undo_cannot_be_made_of_is_said_and_no_wrong_call_is_offered() {
    const REFS: &str = r#"
version: 1
operations:
  ref.create:
    match: { http: "POST /git/refs" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: ref.delete, arguments: { path.ref: response.ref } }
  ref.delete:
    match: { http: "DELETE /git/refs/{*ref}" }
    effect: { class: irreversible, kind: delete }
  link.create:
    match: { http: "POST /links" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: link.delete, arguments: { path.id: response.id } }
  link.delete:
    match: { http: "DELETE /links/{id}" }
    effect: { class: irreversible, kind: delete }
  contents.get:
    match: { http: "GET /contents/{*path}" }
    effect: { class: read }
  one.get:
    match: { http: "POST /one/{path}" }
    effect: { class: read }
"#;
    let upstream = Upstream::start(|received| match received.target.as_str() {
        "/git/refs" => Act::json(201, r#"{"ref":"refs/heads/x"}"#),
        "/links" => Act::with(201, &[], ""),
        _ => Act::json(200, "{}"),
    });
    let sidecar = Sidecar::start(REFS, &upstream);
    let mut agent = sidecar.agent();
    for (path, reason) in [
        ("/git/refs", "path.ref (response.ref) holds a slash"),
        ("/links", "path.id (response.id) names nothing in this call: the answer has no body"),
    ] {
        let report = agent.post(path, &[], "{}").report();
        assert_eq!((&report["outcome"], &report["undo"]), (&json!("accepted"), &json!(null)));
        let said = report["undo_unavailable"].as_str().unwrap();
        assert!(said.starts_with(reason), "{path}: {said}");
    }
    assert_eq!(agent.get("/contents/a/b/c").report()["operation"], "contents.get");
    assert_eq!(agent.call("POST", "/one/a", &[], "").report()["operation"], "one.get");
    let beyond = agent.call("POST", "/one/a/b", &[], "");
    assert_eq!((beyond.status, &beyond.report()["operation"]), (428, &json!("_undeclared")));
}

#[test]
fn case_g7_the_policy_demands_whatever_the_client_grants_itself_and_the_refusal_says_who_asks() {
    let policy = POLICY.replace("confirm: caller\n  messages", "confirm: challenge\n  messages");
    let policy = policy.replace(
        "    effect: { class: irreversible, kind: create }\n    confirm: caller\n",
        "    effect: { class: irreversible, kind: create }\n    confirm: human\n",
    );
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let sidecar = Sidecar::start(&policy, &upstream);
    let mut agent = sidecar.agent();

    let asked = agent.post("/things", &[CONFIRM], "{}");
    let body = call("1", "write", json!({"confirm": true}), Some(json!({"confirm": true})));
    let demanded = post(&mut agent, &body).json();

    assert_eq!(asked.status, 428);
    assert!(asked.text().contains("things.create is irreversible"), "{}", asked.text());
    assert!(asked.text().contains("Send the identical call again with the token"));
    let demanded = envelope(&demanded["result"]);
    assert_eq!(demanded["error"]["code"], "confirmation_required");
    let message = demanded["error"]["message"].as_str().unwrap();
    assert!(message.contains("A person must decide it, and this proxy"), "{message}");
    assert!(upstream.received().is_empty());
}

#[test]
fn b11_an_event_stream_passes_event_by_event_and_is_not_compressed() {
    let (go, hold) = std::sync::mpsc::channel();
    let hold = std::sync::Mutex::new(Some(hold));
    let upstream = Upstream::start(move |_| {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        let hold = hold.lock().unwrap().take().expect("one call");
        Act::Waits(format!("{head}data: 1\n\n").into_bytes(), hold, b"data: 2\n\n".to_vec())
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    agent.send("GET", "/things/1", &[("accept-encoding", "gzip, br")], "");
    let head = agent.head().unwrap();
    assert_eq!((head.status, head.header("content-encoding")), (200, None));
    assert_eq!(head.header("transfer-encoding"), Some("chunked"));
    // The second event is not written before the first has been read here.
    let first: String = (0..4).map(|_| agent.line().unwrap()).collect();
    assert_eq!(first, "9\r\ndata: 1\n\n\r\n");
    go.send(()).unwrap();
    let second: String = (0..5).map(|_| agent.line().unwrap()).collect();
    assert_eq!(second, "9\r\ndata: 2\n\n\r\n0\r\n");
}

const ORDERS: &str = r#"
version: 1
operations:
  orders.complete:
    match: { http: "POST /orders/{id}/complete" }
    effect:
      class: irreversible
      kind: update
      verification:
        type: response_binding
        config:
          trust: gateway_observed_only
          assertions:
            - type: equals_literal
              name: completed_by_this_call
              actual: { source: response_body, pointer: /completed_by }
              expected: agent
    confirm: caller
"#;

#[test]
fn f7_an_order_that_another_way_completed_is_contradicted_and_never_called_exactly_once() {
    let upstream = Upstream::start(|_| Act::json(200, r#"{"completed_by":"webhook"}"#));
    let sidecar = Sidecar::start(ORDERS, &upstream);

    let answer = sidecar.agent().post("/orders/7/complete", &[CONFIRM], "{}");

    let report = answer.report();
    assert_eq!(report["outcome"], "accepted");
    assert_eq!(report["verdict"], "contradicted");
    assert_eq!(report["undo"], serde_json::Value::Null);
    assert!(!answer.header("x-anvil-effect").unwrap().contains("once"));
}

const COMMENTS: &str = r#"
version: 1
operations:
  comments.create:
    match: { http: "POST /comments" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: comments.delete, arguments: { path.id: response.id } }
  comments.delete:
    match: { http: "DELETE /comments/{id}" }
    effect: { class: irreversible, kind: delete }
    confirm: challenge
"#;

#[test]
fn j2_the_undo_is_judged_by_its_own_class_and_offers_no_undo_of_itself() {
    let upstream = Upstream::start(|_| Act::json(200, r#"{"id":7}"#));
    let sidecar = Sidecar::start(COMMENTS, &upstream);
    let mut agent = sidecar.agent();
    let undo = agent.post("/comments", &[], "{}").report()["undo"]["http"].clone();
    let path = undo["path"].as_str().unwrap();

    let asked = agent.call("DELETE", path, &[], "");
    assert_eq!(asked.status, 428);
    assert_eq!(upstream.count("DELETE"), 0);
    let undone = agent.call("DELETE", path, &[("effect-confirm", &asked.token())], "");

    assert_eq!(undone.status, 200);
    assert_eq!(undone.report()["class"], "irreversible");
    assert_eq!(undone.report()["undo"], serde_json::Value::Null);
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", "")]);
}

const REFS: &str = r#"
version: 1
operations:
  refs.create:
    match: { http: "POST /git/refs" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: refs.delete, arguments: { path.branch: response.ref } }
  refs.delete:
    match: { http: "DELETE /git/refs/heads/{branch}" }
    effect: { class: irreversible, kind: delete }
"#;

#[test]
fn k4_a_name_that_the_inverse_writes_otherwise_makes_no_undo() {
    let upstream = Upstream::start(|_| Act::json(201, r#"{"ref":"refs/heads/x"}"#));
    let sidecar = Sidecar::start(REFS, &upstream);

    let report = sidecar.agent().post("/git/refs", &[], r#"{"ref":"refs/heads/x"}"#).report();

    assert_eq!(report["outcome"], "accepted");
    assert_eq!(report["undo"], serde_json::Value::Null);
    assert!(report["undo_unavailable"].as_str().unwrap().starts_with("path.branch"), "{report}");
}
