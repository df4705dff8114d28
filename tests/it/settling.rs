use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::support::process::{Home, Process};
use crate::support::sidecar::Setup;
use crate::support::{Act, Agent, Sidecar, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
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
        settle_ms: 1000
        match:
          - { type: exists, name: tag, actual: { source: response_body, pointer: /tag } }
    confirm: caller
"#;

/// Loses every answer of a write, and shows what was written while `shows` says so.
fn upstream(shows: &Arc<AtomicBool>) -> Upstream {
    let shows = Arc::clone(shows);
    Upstream::start(move |received| match received.method.as_str() {
        "POST" => Act::Close,
        _ if shows.load(Ordering::Relaxed) => Act::json(200, r#"{"tag":"v1"}"#),
        _ => Act::json(404, "{}"),
    })
}

fn lose(agent: &mut Agent) -> String {
    let lost = agent.post("/releases", &[("effect-confirm", "true")], r#"{"tag":"v1"}"#);
    assert_eq!(lost.report()["outcome"], "unknown");
    lost.report()["entry"].as_str().unwrap().to_owned()
}

fn flag(is_set: bool) -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(is_set))
}

#[test]
fn case_b3_a_running_sidecar_settles_a_lost_answer_by_its_lookup_without_being_asked() {
    let upstream = upstream(&flag(true));
    let home = Home::new(POLICY, upstream.address);
    let config = home.policies().with_file_name("takeback.yaml");
    std::fs::write(&config, "timeouts: { lookup_ms: 50 }\n").unwrap();
    let process = home.start_with(&["--config", config.to_str().unwrap()]);

    let entry = lose(&mut process.agent());

    wait::until("the lookup", || {
        let sql = format!("SELECT state FROM entries WHERE entry = '{entry}'");
        (home.query(&sql) == ["accepted"]).then_some(())
    });
    assert_eq!((upstream.count("POST"), upstream.count("GET")), (1, 1));
    let (code, shown) = home.run(&["ledger", "show", &entry, "--format", "json"]);
    assert_eq!(code, Some(0), "{shown}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let last = shown["history"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["from"], &last["to"]), (&Value::from("unknown"), &Value::from("accepted")));
    assert_eq!((&last["who"], &last["noted"]), (&Value::from("lookup"), &Value::from("lookup")));
    let metrics = process.telemetry("/metrics").text();
    let found = "takeback_reconciliations_total{operation=\"releases.create\",result=\"found\"} 1";
    assert!(metrics.contains(found), "{metrics}");
}

#[test]
fn an_absence_counts_only_after_the_last_moment_to_act_and_only_twice() {
    let shows = flag(false);
    let upstream = upstream(&shows);
    let (setup, hand) = Setup::new(POLICY).manual_clock();
    let sidecar = setup.start(&upstream);
    lose(&mut sidecar.agent());
    sidecar.wait_entries(&[("unknown", "reset")]);

    assert_eq!(sidecar.look(), 0, "it is not due yet");
    hand.advance(Duration::from_secs(5));
    assert_eq!(sidecar.look(), 1);
    assert_eq!(upstream.count("GET"), 1);
    hand.advance(Duration::from_secs(60));
    assert_eq!(sidecar.look(), 0, "looking before an absence counts is idle");
    // 5 s until the first byte, 60 s for the whole call, 1 s to show the effect.
    hand.advance(Duration::from_secs(1));
    assert_eq!(sidecar.look(), 1);
    assert_eq!(sidecar.entries(), [("unknown".to_owned(), "reset".to_owned())]);
    assert_eq!(sidecar.look(), 0, "the second look comes later");
    hand.advance(Duration::from_secs(5));
    assert_eq!(sidecar.look(), 1);

    assert_eq!(sidecar.entries(), [("rejected".to_owned(), "settled".to_owned())]);
    assert_eq!((upstream.count("POST"), upstream.count("GET")), (1, 3));
    hand.advance(Duration::from_secs(1_000_000));
    assert_eq!(sidecar.look(), 0, "what is settled is not due");
    let again = sidecar.agent().post("/releases", &[("effect-confirm", "true")], r#"{"tag":"v1"}"#);
    assert_eq!(again.report()["outcome"], "unknown", "it may run again");
    assert_eq!(upstream.count("POST"), 2);
}

#[test]
fn an_absence_between_two_hits_settles_nothing_and_a_late_effect_is_found() {
    let shows = flag(false);
    let upstream = upstream(&shows);
    let (setup, hand) = Setup::new(POLICY).manual_clock();
    let sidecar = setup.start(&upstream);
    lose(&mut sidecar.agent());
    sidecar.wait_entries(&[("unknown", "reset")]);

    hand.advance(Duration::from_secs(67));
    assert_eq!(sidecar.look(), 1);
    shows.store(true, Ordering::Relaxed);
    hand.advance(Duration::from_secs(5));
    assert_eq!(sidecar.look(), 1);

    assert_eq!(sidecar.entries(), [("accepted".to_owned(), "settled".to_owned())]);
}

#[test]
fn what_cannot_tell_is_tried_less_and_less_often_and_given_up_loudly() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Act::Close,
        _ => Act::json(503, "{}"),
    });
    let (setup, hand) = Setup::new(POLICY).manual_clock();
    let sidecar = setup.start(&upstream);
    let entry = lose(&mut sidecar.agent());
    sidecar.wait_entries(&[("unknown", "reset")]);

    let mut looks = 0;
    for _ in 0..100 {
        hand.advance(Duration::from_secs(3_600));
        looks += sidecar.look();
    }

    assert_eq!(looks, 20);
    assert_eq!(upstream.count("GET"), 20);
    assert_eq!(sidecar.entries(), [("unknown".to_owned(), "reset".to_owned())]);
    let ledger = takeback::ledger::ReadOnly::open(&sidecar.ledger_path).unwrap();
    let entry = takeback::contract::key::EntryId::parse(&entry).unwrap();
    let history = ledger.show(entry).unwrap().unwrap().history;
    let why = history.last().unwrap().why.clone().unwrap();
    assert!(why.contains("a person must settle it"), "{why}");
}

#[test]
fn what_was_found_twice_stays_unknown_and_is_counted() {
    let by_key = POLICY
        .replace("GET /releases/{tag}", "GET /releases")
        .replace("by: id", "by: idempotency_key")
        .replace("path.tag: request.body.tag", "query.key: idempotency_key")
        .replace(
            "      lookup:",
            "      idempotency: { type: header, name: Idempotency-Key }\n      lookup:",
        );
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Act::Close,
        _ => Act::json(200, r#"[{"tag":"v1"},{"tag":"v1"}]"#),
    });
    let (setup, hand) = Setup::new(&by_key).manual_clock();
    let sidecar = setup.start(&upstream);
    lose(&mut sidecar.agent());
    sidecar.wait_entries(&[("unknown", "reset")]);

    hand.advance(Duration::from_secs(5));
    assert_eq!(sidecar.look(), 1);
    hand.advance(Duration::from_secs(1_000_000));
    assert_eq!(sidecar.look(), 0, "looking again finds no fewer");

    assert_eq!(sidecar.entries(), [("unknown".to_owned(), "reset".to_owned())]);
    let many =
        "takeback_reconciliations_total{operation=\"releases.create\",result=\"found_many\"} 1";
    assert!(sidecar.shared.metrics.render().contains(many));
}

#[test]
fn the_wait_for_the_next_look_survives_the_process() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Act::Close,
        _ => Act::json(503, "{}"),
    });
    let home = Home::new(POLICY, upstream.address);
    let config = home.policies().with_file_name("takeback.yaml");
    std::fs::write(&config, "timeouts: { lookup_ms: 50 }\n").unwrap();
    let flags = ["--config", config.to_str().unwrap()];
    let mut process = home.start_with(&flags);
    let entry = lose(&mut process.agent());
    let tries = || -> u32 {
        let sql = format!("SELECT CAST(tries AS TEXT) FROM entries WHERE entry = '{entry}'");
        home.query(&sql).first().and_then(|tries| tries.parse().ok()).unwrap_or(0)
    };
    wait::until("two looks", || (tries() >= 2).then_some(()));

    process.kill();
    let before = tries();
    let _process = home.start_with(&flags);

    wait::until("a further look", || (tries() > before).then_some(()));
    assert_eq!(upstream.count("POST"), 1);
}

#[test]
fn nothing_is_looked_up_while_the_answer_could_not_be_recorded() {
    let upstream = upstream(&flag(true));
    let (setup, hand) = Setup::new(POLICY).manual_clock();
    let sidecar: Sidecar = setup.start(&upstream);
    lose(&mut sidecar.agent());
    sidecar.wait_entries(&[("unknown", "reset")]);
    hand.advance(Duration::from_secs(5));
    sidecar.shared.ledger.close_blocking();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let looked = runtime.block_on(async {
        takeback::pipeline::reconcile::background::tick(&sidecar.fetch()).await
    });

    assert!(looked.is_err());
    assert_eq!(upstream.count("GET"), 0);
}

#[test]
fn case_f10_a_repeat_has_its_lost_attempt_looked_up_with_its_own_credential() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Act::Close,
        _ if received.header("authorization") == Some("Bearer agent") => {
            Act::json(200, r#"{"tag":"v1"}"#)
        }
        _ => Act::json(401, "{}"),
    });
    let (setup, hand) = Setup::new(POLICY).manual_clock();
    let sidecar = setup.start(&upstream);
    let headers = [("effect-confirm", "true"), ("authorization", "Bearer agent")];
    let call = || sidecar.agent().post("/releases", &headers, r#"{"tag":"v1"}"#);
    assert_eq!(call().report()["outcome"], "unknown");
    sidecar.wait_entries(&[("unknown", "reset")]);
    hand.advance(Duration::from_secs(5));
    assert_eq!(sidecar.look(), 1);
    assert_eq!(sidecar.entries(), [("unknown".to_owned(), "reset".to_owned())]);

    let again = call();

    assert_eq!(again.code(), "answer_not_kept", "it was made, and its answer was lost");
    assert_eq!(sidecar.entries(), [("accepted".to_owned(), "settled".to_owned())]);
    assert_eq!((upstream.count("POST"), upstream.count("GET")), (1, 2));
}

#[test]
fn i_12_the_first_sent_time_of_a_key_is_that_of_its_first_attempt() {
    let policy = r#"
version: 1
operations:
  mails.send:
    match: { http: "POST /mails" }
    confirm: none
    effect:
      class: irreversible
      kind: create
      idempotency: { type: header, name: Repeatability-Request-ID, retention: 5m, replay: full }
"#;
    let upstream = Upstream::start(|_| Act::Close);
    let (setup, hand) = Setup::new(policy).manual_clock();
    let sidecar = setup.start(&upstream);
    let call = || sidecar.agent().post("/mails", &[("idempotency-key", "k1")], r#"{"to":"a"}"#);
    call();
    sidecar.wait_entries(&[("unknown", "reset")]);

    hand.advance(Duration::from_secs(30));
    call();

    let received = upstream.received();
    assert_eq!(received.len(), 2, "its retention allows it");
    for received in received {
        assert_eq!(received.header("repeatability-request-id"), Some("k1"));
        let first = received.header("repeatability-first-sent");
        assert_eq!(first, Some("Fri, 15 Jan 2027 08:00:00 GMT"));
    }
}

#[test]
fn a_tool_that_lost_its_answer_is_looked_up_by_a_tool() {
    let policy = r#"
version: 1
operations:
  notes.find:
    match: { tool: find_note }
    effect: { class: read }
  notes.create:
    match: { tool: create_note }
    confirm: none
    effect:
      class: irreversible
      kind: create
      lookup:
        operation: notes.find
        by: idempotency_key
        arguments: { key: idempotency_key }
        empty: response.notes
      idempotency: { type: argument, name: key }
"#;
    let upstream = Upstream::start(|received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let answer = |result: Value| {
            let text = serde_json::json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            Act::json(200, &text.to_string())
        };
        match (message["method"].as_str().unwrap(), message["params"]["name"].as_str()) {
            ("server/discover", _) => answer(serde_json::json!({})),
            ("tools/call", Some("find_note")) => {
                let key = message["params"]["arguments"]["key"].as_str().unwrap();
                let notes = serde_json::json!({"notes": [{"key": key}]});
                answer(serde_json::json!({"content": [], "structuredContent": notes}))
            }
            _ => Act::Close,
        }
    });
    let (setup, hand) = Setup::new(policy).manual_clock();
    let sidecar = setup.start(&upstream);
    let arguments = serde_json::json!({"text": "x"});
    let call = crate::support::mcp::call("1", "create_note", arguments, None);
    crate::support::mcp::post(&mut sidecar.agent(), &call);
    sidecar.wait_entries(&[("unknown", "reset")]);

    hand.advance(Duration::from_secs(5));
    assert_eq!(sidecar.look(), 1);

    assert_eq!(sidecar.entries(), [("accepted".to_owned(), "settled".to_owned())]);
    let looked = upstream.last();
    assert_eq!(looked.header("mcp-name"), Some("find_note"));
}

#[test]
fn case_j4_an_undo_whose_effect_its_lookup_does_not_show_is_superseded_in_the_plan() {
    let policy = r#"
version: 1
operations:
  things.find:
    match: { http: "GET /find" }
    effect: { class: read }
  things.create:
    match: { http: "POST /things" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: things.delete, arguments: { path.id: response.id } }
      lookup:
        operation: things.find
        by: id
        arguments: { query.name: request.body.name }
        settle_ms: 1
        match: [{ type: exists, name: id, actual: { source: response_body, pointer: /id } }]
  things.delete:
    match: { http: "DELETE /things/{id}" }
    effect: { class: irreversible, kind: delete }
"#;
    let shows = flag(true);
    let seen = Arc::clone(&shows);
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "POST" => Act::json(201, r#"{"id":7}"#),
        _ if seen.load(Ordering::Relaxed) => Act::json(200, r#"[{"id":7}]"#),
        _ => Act::json(200, "[]"),
    });
    let home = Home::new(policy, upstream.address);
    let process = home.start();
    let headers = [("effect-task", "t1")];
    let made = process.agent().post("/things", &headers, r#"{"name":"a"}"#);
    assert_eq!(made.status, 201);
    let standing = || -> Value {
        let (code, text) = home.run(&["ledger", "list", "--format", "json"]);
        assert_eq!(code, Some(0), "{text}");
        let (status, plan) = home.admin("GET", "/api/v1/undo?task=t1");
        assert_eq!(status, 200, "{plan}");
        plan["entries"][0].clone()
    };
    wait::until("the entry", || (standing()["standing"] == "available").then_some(()));

    shows.store(false, Ordering::Relaxed);

    wait::until("the lookup counts", || {
        let entry = standing();
        (entry["standing"] == "superseded").then(|| assert_eq!(entry["call"], Value::Null))
    });
}

#[test]
fn case_g5_a_decision_lasts_once_it_is_told_and_one_that_was_not_stored_is_an_error() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Act::Close,
        _ => Act::json(200, "[]"),
    });
    let home = Home::new(
        "version: 1\noperations:\n  things.create:\n    match: { http: \"POST /things\" }\n    \
         effect: { class: irreversible, kind: create }\n    confirm: none\n",
        upstream.address,
    );
    let lose = |process: &Process, thing: &str| {
        let body = format!("{{\"thing\":\"{thing}\"}}");
        let lost = process.agent().post("/things", &[], &body);
        assert_eq!(lost.code(), "outcome_unknown");
        lost.report()["entry"].as_str().unwrap().to_owned()
    };
    let state = |entry: &str| {
        home.query(&format!("SELECT state FROM entries WHERE entry = '{entry}'")).remove(0)
    };
    let mut process = home.start();
    let first = lose(&process, "first");
    wait::until("the entry", || (state(&first) == "unknown").then_some(()));

    let (code, text) = home.run(&["settle", &first, "accepted", "--why", "seen"]);
    assert_eq!(code, Some(0), "{text}");
    process.kill();
    assert_eq!(state(&first), "accepted", "whatever became of the process");

    let process = home.start();
    let second = lose(&process, "second");
    wait::until("the entry", || (state(&second) == "unknown").then_some(()));
    let whole = std::fs::read(home.ledger()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(home.ledger()).unwrap();
    file.set_len(u64::try_from(whole.len() / 2).unwrap()).unwrap();
    let (code, text) = home.run(&["settle", &second, "accepted", "--why", "seen"]);
    assert_eq!(code, Some(69), "{text}");
    std::os::unix::fs::FileExt::write_all_at(&file, &whole, 0).unwrap();
    wait::until("it is ready", || (process.telemetry("/readyz").status == 200).then_some(()));
    assert_eq!(state(&second), "unknown");
    let (code, text) = home.run(&["settle", &second, "rejected", "--why", "not there"]);
    assert_eq!(code, Some(0), "{text}");
}
