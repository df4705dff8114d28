use crate::support::sidecar::Setup;
use crate::support::{Act, Sidecar, Upstream};

const POLICY: &str = r#"
version: 1
operations:
  comments.create:
    match: { http: "POST /comments" }
    effect:
      class: reversible
      kind: create
      inverse:
        operation: comments.delete
        arguments: { path.id: response.id }
      idempotency: { type: header, name: Idempotency-Key, retention: 24h, replay: full }
      upstream_id: { source: response_body, pointer: /id }
      verification:
        type: response_binding
        config:
          trust: gateway_observed_only
          assertions:
            - { type: equals_request, name: body, actual: { source: response_body, pointer: /body }, expected_request: /body/body }
  comments.delete:
    match: { http: "DELETE /comments/{id}" }
    effect: { class: irreversible, kind: delete }
    confirm: caller
  releases.get:
    match: { http: "GET /releases/{tag}" }
    effect: { class: read }
  releases.create:
    match: { http: "POST /releases" }
    effect:
      class: irreversible
      kind: create
      lookup:
        operation: releases.get
        by: id
        arguments: { path.tag: request.body.tag }
"#;

/// Answers a comment like the request, with an id; deletes with 204; a release with what it is told.
fn upstream() -> Upstream {
    Upstream::start(|received| match (received.method.as_str(), received.target.as_str()) {
        ("POST", "/comments") => {
            let body: serde_json::Value = serde_json::from_slice(&received.body).unwrap();
            Act::json(201, &serde_json::json!({"id": 7, "body": body["body"]}).to_string())
        }
        ("DELETE", _) => Act::Bytes(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        _ => Act::json(201, r#"{"id":1}"#),
    })
}

#[test]
fn a_reversible_write_is_recorded_keyed_verified_and_its_undo_reported() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = sidecar.agent().post("/comments", &[], r#"{"body":"hello"}"#);

    assert_eq!(answer.status, 201);
    let report = answer.report();
    assert_eq!(report["class"], "reversible");
    assert_eq!(report["outcome"], "accepted");
    assert_eq!(report["verdict"], "verified");
    assert_eq!(report["undo"]["kind"], "inverse");
    assert_eq!(report["undo"]["http"]["method"], "DELETE");
    assert_eq!(report["undo"]["http"]["path"], "/comments/7");
    assert_eq!(report["lookup"], serde_json::Value::Null);
    let key = upstream.only().header("idempotency-key").unwrap().to_owned();
    assert_eq!(report["idempotency_key"], key);
    assert_eq!(report["ledger_id"], key);
    assert_eq!(report["entry"], key);
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn the_undo_is_an_ordinary_call_and_marks_the_entry_undone() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    agent.post("/comments", &[], r#"{"body":"hello"}"#);

    let undo = agent.call("DELETE", "/comments/7", &[("effect-confirm", "true")], "");

    assert_eq!(undo.status, 204);
    assert_eq!(undo.report()["outcome"], "accepted");
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", "")]);
    let counted = "takeback_undo_calls_total{outcome=\"accepted\",kind=\"inverse\"} 1";
    assert!(sidecar.shared.metrics.render().contains(counted));
}

#[test]
fn j1_an_assertion_that_fails_contradicts_and_no_undo_is_offered() {
    let upstream = Upstream::start(|_| Act::json(201, r#"{"id":7,"body":"other"}"#));
    let sidecar = Sidecar::start(POLICY, &upstream);

    let report = sidecar.agent().post("/comments", &[], r#"{"body":"hello"}"#).report();

    assert_eq!(report["verdict"], "contradicted");
    assert_eq!(report["undo"], serde_json::Value::Null);
}

#[test]
fn an_irreversible_write_needs_the_token_of_its_own_refusal_and_the_token_works_once() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let body = r#"{"tag":"v1"}"#;

    let refused = agent.post("/releases", &[], body);
    assert_eq!(refused.status, 428);
    assert_eq!(refused.code(), "confirmation_required");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    assert_eq!(refused.report()["refused"], "confirmation_required");
    assert!(upstream.received().is_empty());
    assert!(sidecar.entries().is_empty());

    let token = refused.token();
    let word = agent.post("/releases", &[("effect-confirm", "true")], body);
    assert_eq!(word.status, 428, "the caller's word is no token");
    let other = agent.post("/releases", &[("effect-confirm", &token)], r#"{"tag":"v2"}"#);
    assert_eq!(other.status, 428);
    assert_eq!(other.code(), "confirmation_mismatch");
    assert_eq!(other.json()["error"]["details"]["mismatch"], "body");
    let forged = agent.post("/releases", &[("effect-confirm", "tbc1_AAAA")], body);
    assert_eq!(forged.json()["error"]["details"]["mismatch"], "forged");
    assert!(upstream.received().is_empty());

    let confirmed = agent.post("/releases", &[("effect-confirm", &token)], body);
    assert_eq!(confirmed.status, 201);
    assert_eq!(confirmed.report()["outcome"], "accepted");
    assert_eq!(upstream.count("POST"), 1);

    let again = agent.post("/releases", &[("effect-confirm", &token)], body);
    assert_eq!(upstream.count("POST"), 1, "g3: the token is spent");
    assert!(again.status == 428 || again.header("idempotent-replayed").is_some());
}

#[test]
fn g4_the_same_key_again_gets_the_recorded_answer_and_one_effect() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let key = [("idempotency-key", "\"k-1\"")];

    let first = agent.post("/comments", &key, r#"{"body":"hello"}"#);
    let again = agent.post("/comments", &[("idempotency-key", "k-1")], r#"{ "body" : "hello" }"#);

    assert_eq!(first.status, 201);
    assert_eq!(again.status, 201);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.text(), first.text());
    let report = again.report();
    assert_eq!(report["replayed"], true);
    assert_eq!(report["entry"], first.report()["entry"]);
    assert_eq!(report["undo"], first.report()["undo"]);
    assert_eq!(report["idempotency_key"], "k-1");
    assert_eq!(upstream.only().header("idempotency-key"), Some("k-1"));
}

#[test]
fn f2_f5_a_key_belongs_to_one_call() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let key = [("idempotency-key", "k"), ("effect-confirm", "true")];
    agent.post("/comments", &key, r#"{"body":"a"}"#);

    let other_body = agent.post("/comments", &key, r#"{"body":"b"}"#);
    let other_operation = agent.call("DELETE", "/comments/7", &key, "");

    assert_eq!(other_body.status, 422);
    assert_eq!(other_body.code(), "idempotency_key_reused");
    assert_eq!(other_operation.status, 422);
    assert!(other_operation.text().contains("comments.create"));
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn f4_keys_and_answers_are_per_credential() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let body = r#"{"body":"a"}"#;
    let ann = [("idempotency-key", "k"), ("authorization", "ann")];
    let bob = [("idempotency-key", "k"), ("authorization", "bob")];

    let first = agent.post("/comments", &ann, body);
    let second = agent.post("/comments", &bob, body);

    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!(second.header("idempotent-replayed"), None);
    assert_eq!(upstream.received().len(), 2);
}

#[test]
fn f1_fifty_identical_calls_at_once_are_one_effect() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..50)
            .map(|_| {
                scope.spawn(|| {
                    sidecar
                        .agent()
                        .post("/comments", &[("idempotency-key", "k")], r#"{"body":"a"}"#)
                        .status
                })
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });

    assert_eq!(upstream.count("POST"), 1);
    assert!(statuses.iter().all(|status| [201, 409].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&201));
}

#[test]
fn b2_b3_d15_f10_a_lost_answer_is_unknown_and_the_repeat_is_refused() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Act::Close,
        _ => Act::json(200, "{}"),
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let body = r#"{"tag":"v1"}"#;
    let token = agent.post("/releases", &[], body).token();

    let lost = agent.post("/releases", &[("effect-confirm", &token)], body);

    assert_eq!(lost.status, 502);
    assert_eq!(lost.code(), "outcome_unknown");
    let report = lost.report();
    assert_eq!(report["outcome"], "unknown");
    assert_eq!(report["undo"], serde_json::Value::Null);
    assert_eq!(report["lookup"]["http"]["path"], "/releases/v1");
    assert_eq!(upstream.count("POST"), 1, "never sent again by itself");
    sidecar.wait_entries(&[("unknown", "reset")]);

    for key in [&[][..], &[("idempotency-key", "new")][..]] {
        let repeat = agent.post("/releases", key, body);
        assert_eq!(repeat.status, 409);
        assert_eq!(repeat.code(), "outcome_unknown");
        assert_eq!(repeat.json()["error"]["details"]["entry"], report["entry"]);
        assert_eq!(repeat.json()["error"]["details"]["lookup"]["operation"], "releases.get");
    }
    assert_eq!(upstream.count("POST"), 1);

    let other = agent.post("/releases", &[], r#"{"tag":"v2"}"#);
    assert_eq!(other.status, 428);
    assert!(other.text().contains(report["entry"].as_str().unwrap()), "names the open unknown");
}

#[test]
fn a_write_that_never_left_is_not_sent_and_gives_its_confirmation_back() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let sidecar = Setup::new(POLICY).start_at(address);
    let mut agent = sidecar.agent();
    let body = r#"{"tag":"v1"}"#;
    let token = agent.post("/releases", &[], body).token();

    let unsent = agent.post("/releases", &[("effect-confirm", &token)], body);

    assert_eq!(unsent.status, 502);
    assert_eq!(unsent.code(), "not_sent");
    assert_eq!(unsent.report()["outcome"], "rejected");
    sidecar.wait_entries(&[("rejected", "not_sent")]);
}

#[test]
fn f8_a_rejected_call_may_be_made_again_under_its_key() {
    let upstream = Upstream::start(|_| Act::json(402, r#"{"error":"card"}"#));
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let key = [("idempotency-key", "k")];

    let first = agent.post("/comments", &key, r#"{"body":"a"}"#);
    let again = agent.post("/comments", &key, r#"{"body":"a"}"#);

    assert_eq!((first.status, again.status), (402, 402));
    assert_eq!(first.report()["outcome"], "rejected");
    assert_eq!(again.report()["entry"], first.report()["entry"], "the same entry, attempt 2");
    assert_eq!(upstream.received().len(), 2);
    sidecar.wait_entries(&[("rejected", "")]);
}

#[test]
fn f9_b5_a_500_is_ambiguous_passes_unchanged_and_its_repeat_is_asked_about() {
    let upstream = Upstream::start(|_| Act::json(500, r#"{"why":"x"}"#));
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let body = r#"{"tag":"v1"}"#;
    let token = agent.post("/releases", &[], body).token();

    let ambiguous = agent.post("/releases", &[("effect-confirm", &token)], body);
    assert_eq!((ambiguous.status, ambiguous.text().as_str()), (500, r#"{"why":"x"}"#));
    assert_eq!(ambiguous.report()["outcome"], "unknown");

    let repeat = agent.post("/releases", &[], body);
    assert_eq!(repeat.status, 428);
    let entry = ambiguous.report()["entry"].as_str().unwrap().to_owned();
    assert!(repeat.text().contains(&entry));
    let confirmed = agent.post("/releases", &[("effect-confirm", &repeat.token())], body);
    assert_eq!(confirmed.report()["entry"], entry, "attempt 2 of the same entry");
    assert_eq!(upstream.count("POST"), 2);
}

#[test]
fn b7_b8_an_agent_that_hangs_up_after_dispatch_finds_the_recorded_answer() {
    let (go, wait) = std::sync::mpsc::channel();
    let wait = std::sync::Mutex::new(Some(wait));
    let upstream = Upstream::start(move |_| {
        let answer = Act::json(201, r#"{"id":7,"body":"a"}"#);
        match wait.lock().unwrap().take() {
            Some(wait) => Act::After(wait, Box::new(answer)),
            None => answer,
        }
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let body = r#"{"body":"a"}"#;
    agent.send("POST", "/comments", &[("content-type", "application/json")], body);
    crate::support::wait::until("dispatch", || (upstream.count("POST") == 1).then_some(()));
    drop(agent);
    go.send(()).unwrap();
    sidecar.wait_entries(&[("accepted", "")]);

    let repeat = sidecar.agent().post("/comments", &[], body);

    assert_eq!(repeat.status, 201);
    assert_eq!(repeat.header("idempotent-replayed"), Some("true"));
    assert_eq!(upstream.count("POST"), 1);
}

#[test]
fn a_delivered_write_may_be_meant_twice() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let body = r#"{"body":"a"}"#;
    let first = agent.post("/comments", &[], body);
    // The next byte on this connection says that the answer arrived.
    assert_eq!(agent.get("/releases/x").status, 201);

    let second = agent.post("/comments", &[], body);

    assert_eq!(second.status, 201);
    assert_eq!(second.header("idempotent-replayed"), None);
    assert_eq!(second.report()["repeats"], first.report()["entry"]);
    assert_eq!(upstream.count("POST"), 2);
}

#[test]
fn a_delivered_irreversible_write_asks_before_it_is_made_twice() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let body = r#"{"tag":"v1"}"#;
    let token = agent.post("/releases", &[], body).token();
    let first = agent.post("/releases", &[("effect-confirm", &token)], body);
    assert_eq!(agent.get("/releases/x").status, 201);

    let second = agent.post("/releases", &[], body);

    assert_eq!(second.status, 428);
    assert!(second.text().contains(first.report()["entry"].as_str().unwrap()));
    let keyed = agent.post("/releases", &[("idempotency-key", "mine")], body);
    assert_eq!(
        keyed.code(),
        "confirmation_required",
        "a new key is a new intent, not a confirmation"
    );
}

#[test]
fn e2_e3_every_byte_outside_the_key_is_as_it_came() {
    let policy = r#"
version: 1
operations:
  events.send:
    match: { http: "POST /events" }
    effect:
      class: irreversible
      kind: external_side_effect
      idempotency: { type: body_pointer, pointer: /dedup_key, create: true }
    confirm: caller
"#;
    let upstream = Upstream::start(|_| Act::json(202, "{}"));
    let sidecar = Sidecar::start(policy, &upstream);
    let body = r#"{ "id":12345678901234567890,"x":9007199254740993, "y":0.1000000000000000055,"z":[1e400,-0,1E5,1.0] }"#;

    let answer = sidecar.agent().post("/events", &[("effect-confirm", "true")], body);

    let key = answer.report()["idempotency_key"].as_str().unwrap().to_owned();
    let expected = body.replace(" }", &format!(",\"dedup_key\":\"{key}\" }}"));
    assert_eq!(upstream.only().text(), expected);
    assert_eq!(upstream.only().header("content-length"), Some(expected.len().to_string().as_str()));
}

#[test]
fn no_ledger_no_write_and_reads_go_on() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    std::fs::rename(&sidecar.ledger_path, sidecar.ledger_path.with_extension("away")).unwrap();

    let write = crate::support::wait::until("the ledger is seen to be gone", || {
        let write = agent.post("/comments", &[], r#"{"body":"b"}"#);
        (write.status == 503).then_some(write)
    });
    let sent = upstream.count("POST");
    let read = agent.get("/releases/x");

    assert_eq!(write.code(), "ledger_unavailable");
    assert_eq!(read.status, 201);
    assert_eq!(agent.post("/comments", &[], r#"{"body":"c"}"#).status, 503);
    assert_eq!(upstream.count("POST"), sent);
}
