use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use takeback::contract::key::EntryId;
use takeback::ledger::ReadOnly;

use crate::support::process::Home;
use crate::support::sidecar::Setup;
use crate::support::updates::THINGS;
use crate::support::upstream::Received;
use crate::support::{Act, Sidecar, Upstream, wait};

/// A create whose effect is proven in stages; `more` goes into the readback's probe.
fn policy(kind: &str, more: &str, assertions: &str) -> String {
    format!(
        r#"
version: 1
probe_targets: {{ here: {{ type: http }} }}
operations:
  things.read:
    match: {{ http: "GET /boxes/{{box}}/things/{{id}}" }}
    effect: {{ class: read }}
  things.change:
    match: {{ http: "POST /boxes/{{box}}/things" }}
    confirm: none
    effect:
      class: irreversible
      kind: {kind}
      upstream_id: {{ source: response_body, pointer: /id }}
      verification:
        schema_version: 1
        deadline_s: 600
        stages:
          - stage_id: answer
            claim: accepted
            kind: immediate
            assertions:
              - {{ type: exists, name: has_id, actual: {{ source: response_body, pointer: /id }} }}
          - stage_id: later
            claim: persisted
            kind: readback
            after_s: 15
            probe:
              transport: http
              probe_target_id: here
              method: GET
              path_template: "/boxes/{{box}}/things/{{id}}"
              path_params:
                - {{ name: box, input: {{ from: request_pointer, pointer: /path/box }} }}
                - {{ name: id, input: {{ from: upstream_id }} }}
{more}
            assertions:
{assertions}
          - stage_id: hook
            claim: told
            kind: webhook
            event_types: [made]
            assertions:
              - {{ type: exists, name: event, actual: {{ source: response_body, pointer: /id }} }}
        completion: {{ acceptable: [{{ claim: persisted, trust: gateway_observed }}] }}
"#
    )
}

const EQUALS: &str = "              - { type: equals_literal, name: is_open, expected: open, \
                      actual: { source: response_body, pointer: /state } }";
const ABSENT: &str = "              - { type: absent, name: is_gone, \
                      actual: { source: response_body, pointer: /id } }";

/// Answers every write with an id, and reads with the next of these.
fn upstream(reads: Vec<(u16, &'static str)>) -> Upstream {
    let next = AtomicUsize::new(0);
    Upstream::start(move |received| match received.method.as_str() {
        "POST" => Act::json(201, r#"{"id":"a/../7"}"#),
        _ => {
            let (status, body) = reads[next.fetch_add(1, Ordering::Relaxed).min(reads.len() - 1)];
            match status {
                302 => Act::with(302, &[("location", "/elsewhere")], body),
                status => Act::json(status, body),
            }
        }
    })
}

fn change(sidecar: &Sidecar) -> (EntryId, Value) {
    let answer = sidecar.agent().post("/boxes/b%20x/things", &[], r#"{"n":1}"#);
    assert_eq!(answer.status, 201, "{}", answer.text());
    let report = answer.report();
    sidecar.wait_entries(&[("accepted", "")]);
    (EntryId::parse(report["entry"].as_str().unwrap()).unwrap(), report)
}

/// The verdict that the ledger has.
fn verdict(sidecar: &Sidecar, entry: EntryId) -> String {
    let shown = ReadOnly::open(&sidecar.ledger_path).unwrap().show(entry).unwrap().unwrap();
    shown.record.finish.unwrap().verdict.unwrap().as_str().to_owned()
}

fn last_detail(sidecar: &Sidecar, entry: EntryId) -> Value {
    let shown = ReadOnly::open(&sidecar.ledger_path).unwrap().show(entry).unwrap().unwrap();
    serde_json::from_str(shown.history.last().unwrap().detail.as_ref().unwrap()).unwrap()
}

#[test]
fn a_readback_proves_an_accepted_effect_after_its_answer() {
    let upstream = upstream(vec![(200, r#"{"state":"open"}"#)]);
    let (setup, hand) = Setup::new(&policy("create", "", EQUALS)).manual_clock();
    let sidecar = setup.start(&upstream);
    let (entry, report) = change(&sidecar);
    assert_eq!(report["verdict"], "inconclusive", "the answer alone completes nothing");
    assert_eq!(sidecar.look(), 0);

    hand.advance(Duration::from_secs(15));
    assert_eq!(sidecar.look(), 1);

    assert_eq!(verdict(&sidecar, entry), "verified");
    let probe = upstream.last();
    assert_eq!(
        (probe.method.as_str(), probe.target.as_str()),
        ("GET", "/boxes/b%20x/things/a%2F..%2F7")
    );
    let detail = last_detail(&sidecar, entry);
    let stages = detail["stages"].as_array().unwrap();
    assert_eq!(stages[0]["verdict"], "verified");
    assert_eq!(stages[1]["assertions"], json!([{"name": "is_open", "outcome": "passed"}]));
    assert_eq!(stages[2]["not_evaluated"], "events are not heard here");
    hand.advance(Duration::from_secs(100_000));
    assert_eq!(sidecar.look(), 0, "a verdict is final");
    let counted =
        "takeback_verifications_total{operation=\"things.change\",verdict=\"verified\"} 1";
    assert!(sidecar.shared.metrics.render().contains(counted));
}

/// A probe is made for what it reads: a path that a lenient upstream takes for a GET that writes is not.
#[test]
fn contract_1_a_readback_whose_path_folds_onto_a_writing_get_is_not_made() {
    let next = Arc::new(Mutex::new("7"));
    let id = Arc::clone(&next);
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "POST" => Act::json(201, &json!({"id": *id.lock().unwrap()}).to_string()),
        _ => Act::json(200, r#"{"state":"open"}"#),
    });
    let wipe = "  wipe:\n    match: { http: \"GET /boxes/{box}/things/wipe\" }\n    effect: { class: \
                irreversible, kind: delete }\n";
    let text = policy("create", "", EQUALS) + wipe;
    let (setup, hand) = Setup::new(&text).manual_clock();
    let sidecar = setup.start(&upstream);
    for (position, id) in ["Wipe", "wipe", "wipe.", "WIPE "].into_iter().enumerate() {
        *next.lock().unwrap() = id;
        let body = json!({"n": position}).to_string();
        let made = sidecar.agent().post("/boxes/b/things", &[], &body);
        assert_eq!(made.status, 201, "{}", made.text());
    }
    sidecar.wait_entries(&[("accepted", ""); 4]);

    hand.advance(Duration::from_secs(15));
    sidecar.look();

    assert_eq!(upstream.count("GET"), 0);
    *next.lock().unwrap() = "7";
    assert_eq!(sidecar.agent().post("/boxes/b/things", &[], r#"{"n":9}"#).status, 201);
    sidecar.wait_entries(&[("accepted", ""); 5]);
    hand.advance(Duration::from_secs(15));
    sidecar.look();
    assert_eq!(upstream.count("GET"), 1);
}

#[test]
fn case_j1_a_readback_that_shows_otherwise_contradicts_and_the_repeat_is_told() {
    let upstream = upstream(vec![(200, r#"{"state":"gone"}"#)]);
    let (setup, hand) = Setup::new(&policy("create", "", EQUALS)).manual_clock();
    let sidecar = setup.start(&upstream);
    let key = [("idempotency-key", "k1")];
    let body = r#"{"n":1}"#;
    let first = sidecar.agent().post("/boxes/b/things", &key, body);
    sidecar.wait_entries(&[("accepted", "")]);
    assert_eq!(first.report()["verdict"], "inconclusive");

    hand.advance(Duration::from_secs(15));
    assert_eq!(sidecar.look(), 1);

    let again = sidecar.agent().post("/boxes/b/things", &key, body);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.report()["verdict"], "contradicted");
    assert_eq!(upstream.count("POST"), 1);
}

#[test]
fn what_cannot_tell_is_read_again_until_the_deadline_and_then_no_more() {
    let upstream = upstream(vec![(404, "{}"), (503, "{}"), (302, "{}"), (200, "{}")]);
    let (setup, hand) = Setup::new(&policy("create", "", EQUALS)).manual_clock();
    let sidecar = setup.start(&upstream);
    let (entry, _) = change(&sidecar);

    let mut looks = 0;
    for _ in 0..700 {
        hand.advance(Duration::from_secs(1));
        looks += sidecar.look();
    }

    assert!((4..=12).contains(&looks), "{looks}");
    assert_eq!(upstream.count("GET"), looks, "no redirect was followed");
    assert_eq!(verdict(&sidecar, entry), "inconclusive");
    hand.advance(Duration::from_secs(100_000));
    assert_eq!(sidecar.look(), 0);
}

#[test]
fn a_decisive_negative_contradicts_a_creation_and_proves_a_deletion() {
    let decisive = "              decisive_negative: [404]";
    for (kind, assertions, right) in
        [("create", EQUALS, "contradicted"), ("delete", ABSENT, "verified")]
    {
        let upstream = upstream(vec![(404, "{}")]);
        let (setup, hand) = Setup::new(&policy(kind, decisive, assertions)).manual_clock();
        let sidecar = setup.start(&upstream);
        let (entry, _) = change(&sidecar);
        hand.advance(Duration::from_secs(15));
        assert_eq!(sidecar.look(), 1);
        assert_eq!(verdict(&sidecar, entry), right, "{kind}");
    }
}

#[test]
fn a_probe_whose_target_is_not_declared_or_whose_path_is_a_write_is_not_made() {
    let reads = || upstream(vec![(200, r#"{"state":"open"}"#)]);
    let undeclared = policy("create", "", EQUALS).replace("{ here:", "{ there:");
    let upstream = reads();
    let (setup, hand) = Setup::new(&undeclared).manual_clock();
    let sidecar = setup.start(&upstream);
    let (entry, _) = change(&sidecar);
    hand.advance(Duration::from_secs(1_000));
    assert_eq!(sidecar.look(), 0);
    assert_eq!((upstream.count("GET"), verdict(&sidecar, entry).as_str()), (0, "inconclusive"));

    let writes = policy("create", "", EQUALS).replace(
        "effect: { class: read }",
        "effect: { class: irreversible, kind: update }\n    confirm: none",
    );
    let upstream = reads();
    let (setup, hand) = Setup::new(&writes).manual_clock();
    let sidecar = setup.start(&upstream);
    let (entry, _) = change(&sidecar);
    hand.advance(Duration::from_secs(1_000));
    assert_eq!(sidecar.look(), 1);
    assert_eq!((upstream.count("GET"), verdict(&sidecar, entry).as_str()), (0, "inconclusive"));
}

/// An upstream with things that have a title, a secret and a version.
fn things(log: &Arc<Mutex<Vec<String>>>) -> Upstream {
    let log = Arc::clone(log);
    let version = AtomicUsize::new(1);
    Upstream::start(move |received: &Received| {
        log.lock().unwrap().push(format!("{} {}", received.method, received.target));
        match received.method.as_str() {
            "GET" => {
                let etag = format!("\"v{}\"", version.load(Ordering::Relaxed));
                let headers = [("content-type", "application/json"), ("etag", &*etag)];
                Act::with(200, &headers, r#"{"title":"canary-old","secret":"canary-hidden"}"#)
            }
            _ => {
                let etag = format!("\"v{}\"", version.fetch_add(1, Ordering::Relaxed) + 1);
                let headers = [("content-type", "application/json"), ("etag", &*etag)];
                Act::with(200, &headers, r#"{"title":"new"}"#)
            }
        }
    })
}

/// Things with a secret.
fn updates() -> String {
    THINGS.replace("    before:", "    sensitive: [/body/secret]\n    before:")
}

fn patch(sidecar: &Sidecar, id: &str) -> crate::support::agent::Answer {
    let json = [("content-type", "application/json"), ("authorization", "Bearer agent")];
    sidecar.agent().call("PATCH", &format!("/things/{id}"), &json, r#"{"title":"new"}"#)
}

#[test]
fn case_j3_an_update_is_taken_back_with_what_was_there_before_it() {
    let log = Arc::default();
    let upstream = things(&log);
    let sidecar = Sidecar::start(&updates(), &upstream);

    let answer = patch(&sidecar, "1");

    assert_eq!(*log.lock().unwrap(), ["GET /things/1", "PATCH /things/1"], "the read is last");
    let read = &upstream.received()[0];
    assert_eq!(read.header("authorization"), Some("Bearer agent"), "as the caller sees it");
    let report = answer.report();
    let undo = &report["undo"];
    assert_eq!(undo["http"], json!({"method": "PUT", "path": "/things/1"}));
    assert_eq!(undo["arguments"]["body.title"], "canary-old");
    assert_eq!(undo["arguments"]["header.if-match"], "\"v2\"", "only over what the call left");
    let entry = EntryId::parse(report["entry"].as_str().unwrap()).unwrap();
    wait::until("the entry", || {
        let shown = ReadOnly::open(&sidecar.ledger_path).unwrap().show(entry).unwrap().unwrap();
        let before: Value = serde_json::from_str(&shown.before.unwrap()).unwrap();
        assert_eq!(
            before,
            json!({"etag": "\"v1\"", "body": {"title": "canary-old", "secret": null}}),
            "what is sensitive is not kept"
        );
        shown.record.finish.is_some().then_some(())
    });

    let headers = [("content-type", "application/json"), ("authorization", "Bearer agent")];
    let back = sidecar.agent().call("PUT", "/things/1", &headers, r#"{"title":"canary-old"}"#);
    assert_eq!(back.status, 200);
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", "")]);
}

#[test]
fn a_call_whose_state_before_cannot_be_read_is_not_sent() {
    let table: [(u16, &str, &str); 4] = [
        (404, "application/json", "{}"),
        (200, "text/html", "<p>"),
        (200, "application/json", "{"),
        (500, "application/json", "{}"),
    ];
    for (status, kind, body) in table {
        let upstream = Upstream::start(move |received| match received.method.as_str() {
            "GET" => Act::with(status, &[("content-type", kind)], body),
            _ => Act::json(200, "{}"),
        });
        let sidecar = Sidecar::start(&updates(), &upstream);

        let answer = patch(&sidecar, "1");

        assert_eq!((answer.status, answer.code().as_str()), (502, "before_unread"), "{status}");
        assert!(answer.text().contains("Nothing was sent"), "{}", answer.text());
        assert_eq!(answer.json()["error"]["retryable"], true);
        assert_eq!((upstream.count("GET"), upstream.count("PATCH")), (1, 0));
        assert!(sidecar.entries().is_empty());
    }
    let long = format!(r#"{{"title":"{}"}}"#, "x".repeat(64 * 1024));
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "GET" => Act::json(200, &long),
        _ => Act::json(200, "{}"),
    });
    let sidecar = Sidecar::start(&updates(), &upstream);
    assert_eq!(patch(&sidecar, "1").code(), "before_unread", "what cannot be kept");
    assert_eq!(upstream.count("PATCH"), 0);
}

#[test]
fn g3_the_state_before_is_read_after_the_confirmation_and_a_failed_read_spends_none() {
    let fails = Arc::new(AtomicUsize::new(1));
    let left = Arc::clone(&fails);
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "GET"
            if left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok() =>
        {
            Act::json(503, "{}")
        }
        _ => Act::json(200, r#"{"title":"old"}"#),
    });
    let confirmed = THINGS.replace("    before:", "    confirm: challenge\n    before:");
    let sidecar = Sidecar::start(&confirmed, &upstream);
    let json = ("content-type", "application/json");
    let mut agent = sidecar.agent();
    let refused = agent.call("PATCH", "/things/1", &[json], r#"{"title":"new"}"#);
    let token = refused.token();
    assert_eq!(upstream.count("GET"), 0, "nothing is read before it is confirmed");

    let headers = [json, ("effect-confirm", token.as_str())];
    let unread = agent.call("PATCH", "/things/1", &headers, r#"{"title":"new"}"#);
    assert_eq!(unread.code(), "before_unread");
    let done = agent.call("PATCH", "/things/1", &headers, r#"{"title":"new"}"#);

    assert_eq!(done.status, 200, "the confirmation was not used up");
    assert_eq!((upstream.count("GET"), upstream.count("PATCH")), (2, 1));
}

#[test]
fn an_undo_whose_resource_has_a_later_entry_is_superseded() {
    let log = Arc::default();
    let upstream = things(&log);
    let sidecar = Sidecar::start(&updates(), &upstream);
    let json = [("content-type", "application/json"), ("idempotency-key", "k1")];
    let call = |id: &str, headers: &[(&str, &str)]| {
        sidecar.agent().call("PATCH", &format!("/things/{id}"), headers, r#"{"title":"new"}"#)
    };
    assert!(!call("1", &json).report()["undo"].is_null());
    sidecar.wait_entries(&[("accepted", "")]);
    call("2", &[("content-type", "application/json")]);
    sidecar.wait_entries(&[("accepted", ""), ("accepted", "")]);
    assert!(!call("1", &json).report()["undo"].is_null(), "another thing is no obstacle");

    let later = sidecar.agent().call("PUT", "/things/1", &[json[0]], r#"{"title":"other"}"#);
    sidecar.wait_entries(&[("accepted", ""), ("accepted", ""), ("accepted", "")]);

    let replayed = call("1", &json).report();
    assert_eq!(replayed["undo"], Value::Null);
    let by = later.report()["entry"].as_str().unwrap().to_owned();
    assert_eq!(replayed["undo_unavailable"], format!("superseded: entry {by} came after it"));
}

#[test]
fn compared_values_appear_nowhere_and_a_receipt_says_the_rest_in_three_parts() {
    let later = policy(
        "create",
        "",
        "              - { type: equals_literal, name: is_open, \
         expected: canary-want, actual: { source: response_body, pointer: /state } }",
    )
    .replace("after_s: 15", "after_s: 0");
    let bound = r#"
  notes.create:
    match: { http: "POST /notes" }
    confirm: caller
    effect:
      class: irreversible
      kind: create
      verification:
        type: response_binding
        config:
          trust: gateway_observed_only
          assertions:
            - { type: equals_request, name: same_text, expected_request: /body/text,
                actual: { source: response_body, pointer: /text } }
"#;
    let upstream =
        Upstream::start(|received| match (received.method.as_str(), &*received.target) {
            ("POST", "/notes") => Act::json(201, r#"{"text":"another"}"#),
            ("POST", _) => Act::json(201, r#"{"id":"7"}"#),
            _ => Act::json(200, r#"{"state":"canary-read"}"#),
        });
    let home = Home::new(&format!("{later}{bound}"), upstream.address);
    let config = home.policies().with_file_name("takeback.yaml");
    std::fs::write(&config, "timeouts: { lookup_ms: 50 }\n").unwrap();
    let process = home.start_with(&["--config", config.to_str().unwrap()]);
    let mut agent = process.agent();

    let read = agent.post("/boxes/b/things", &[], r#"{"n":1}"#);
    let headers = [("effect-confirm", "true")];
    let note = agent.post("/notes", &headers, r#"{"text":"canary-asked"}"#);
    assert_eq!(note.report()["verdict"], "contradicted");
    let entry = |report: Value| report["entry"].as_str().unwrap().to_owned();
    let (read, note) = (entry(read.report()), entry(note.report()));
    wait::until("the readback", || {
        let sql = format!("SELECT verdict FROM entries WHERE entry = '{read}'");
        (home.query(&sql) == ["contradicted"]).then_some(())
    });

    let (code, text) = home.run(&["ledger", "show", &note, "--receipt"]);
    assert_eq!(code, Some(0), "{text}");
    for words in [
        "authorization",
        "caller",
        "dispatch",
        "status 201",
        "verification",
        "contradicted",
        "same_text: failed",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (code, json) = home.run(&["ledger", "show", &read, "--receipt", "--format", "json"]);
    assert_eq!(code, Some(0), "{json}");
    let receipt: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(receipt["authorization"]["level"], "none");
    assert_eq!(receipt["dispatch"]["attempts"][0]["disposition"], "accepted");
    assert_eq!(receipt["verification"]["verdict"], "contradicted");
    assert_eq!(receipt["verification"]["evidence"]["stages"][1]["probe"], Value::Null);
    let (status, same) = home.admin("GET", &format!("/api/v1/entries/{read}/receipt"));
    assert_eq!((status, &same), (200, &receipt));

    let file = |suffix: &str| {
        let mut name = home.ledger().into_os_string();
        name.push(suffix);
        String::from_utf8_lossy(&std::fs::read(name).unwrap_or_default()).into_owned()
    };
    let (_, shown) = home.run(&["ledger", "show", &read]);
    let places = [
        ("log", home.log()),
        ("metrics", process.telemetry("/metrics").text()),
        ("ledger", file("")),
        ("ledger's log", file("-wal")),
        ("receipts", format!("{text}{json}{shown}")),
    ];
    assert!(places.iter().all(|(_, text)| !text.is_empty()));
    for (place, text) in places {
        for canary in ["canary-want", "canary-read", "canary-asked"] {
            assert!(!text.contains(canary), "{canary} in the {place}");
        }
    }
}
