//! An undo that something came after is no clean one, whoever made the later call, by whatever operation
//! and in whatever spelling.

use serde_json::{Value, json};

use crate::support::agent::Answer;
use crate::support::process::{Home, Process};
use crate::support::updates::{NOTES, THINGS, calls, things, tools};
use crate::support::{Sidecar, wait};

const JSON: (&str, &str) = ("content-type", "application/json");

const MORE_THINGS: &str = r#"
  things.delete:
    match: { http: "DELETE /things/{id}" }
    confirm: none
    effect: { class: irreversible, kind: delete }
  things.publish:
    match: { http: "POST /things/{id}:publish" }
    confirm: none
    effect: { class: irreversible, kind: update }
  things.state:
    match: { http: "PUT /things/{id}/state" }
    confirm: none
    effect: { class: irreversible, kind: update }
  things.create:
    match: { http: "POST /things" }
    confirm: none
    effect: { class: irreversible, kind: create }
"#;

fn sent(sidecar: &Sidecar, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
    let all = [&[JSON], headers].concat();
    let mut answer = sidecar.agent().call(method, target, &all, r#"{"title":"new"}"#);
    if answer.status == 428 {
        let token = answer.token();
        let all = [&all[..], &[("effect-confirm", &token)]].concat();
        answer = sidecar.agent().call(method, target, &all, r#"{"title":"new"}"#);
    }
    assert_eq!(answer.status, 200, "{method} {target}: {}", answer.text());
    answer
}

/// What the report of an update of `/things/2` says of its undo after a call by somebody else.
fn after(method: &str, target: &str) -> (String, Value) {
    let upstream = things(r#"{"title":"old"}"#);
    let sidecar = Sidecar::start(&(THINGS.to_owned() + MORE_THINGS), &upstream);
    let key = [("idempotency-key", "k1")];
    assert!(!sent(&sidecar, "PATCH", "/things/2", &key).report()["undo"].is_null());

    let later = sent(&sidecar, method, target, &[("authorization", "Bearer other")]);

    let replayed = sent(&sidecar, "PATCH", "/things/2", &key);
    assert_eq!(replayed.header("idempotent-replayed"), Some("true"));
    (later.report()["entry"].as_str().unwrap().to_owned(), replayed.report())
}

#[test]
fn case_j4_a_later_write_of_the_thing_supersedes_an_undo_in_every_spelling_and_operation() {
    for (method, target) in [
        ("PATCH", "/things/2"),
        ("PATCH", "/things/%32"),
        ("PUT", "/things/2"),
        ("DELETE", "/th%69ngs/2"),
        ("PUT", "/things/2/state"),
        ("POST", "/things/2:publish"),
        // Nobody declared it.
        ("POST", "/things/2/archive"),
    ] {
        let (by, report) = after(method, target);

        let why = format!("superseded: entry {by} came after it");
        assert_eq!(report["undo_unavailable"], why, "{method} {target}");
        assert_eq!(report["undo"], Value::Null, "{method} {target}");
    }
}

#[test]
fn case_j4_a_write_of_another_thing_supersedes_nothing() {
    for (method, target) in
        [("PATCH", "/things/3"), ("POST", "/things"), ("PATCH", "/things/22"), ("POST", "/other/2")]
    {
        let (_, report) = after(method, target);

        assert_eq!(report["undo"]["operation"], "things.restore", "{method} {target}");
    }
}

#[test]
fn case_j4_a_call_again_whose_thing_was_changed_since_is_not_answered_as_before() {
    let upstream = things(r#"{"title":"old"}"#);
    let sidecar = Sidecar::start(&(THINGS.to_owned() + MORE_THINGS), &upstream);
    let again = || sidecar.agent().call("PATCH", "/things/2", &[JSON], r#"{"title":"new"}"#);
    sent(&sidecar, "PATCH", "/things/2", &[]);
    let at_once = again();
    assert_eq!(at_once.header("idempotent-replayed"), Some("true"), "{}", at_once.text());

    sent(&sidecar, "DELETE", "/things/2", &[]);
    let after = again();

    assert_eq!(after.header("idempotent-replayed"), None);
    assert_eq!(after.report()["repeats"], at_once.report()["entry"]);
    assert_eq!((after.status, upstream.count("PATCH")), (200, 2), "{}", after.text());
}

#[test]
fn f9_an_undo_of_which_the_ledger_cannot_say_what_came_after_is_not_offered() {
    let upstream = things(r#"{"title":"old"}"#);
    let sidecar = Sidecar::start(THINGS, &upstream);
    let key = [("idempotency-key", "k1")];
    let first = sent(&sidecar, "PATCH", "/things/2", &key);
    sidecar.wait_entries(&[("accepted", "")]);
    assert!(!sent(&sidecar, "PATCH", "/things/2", &key).report()["undo"].is_null());

    let broken = rusqlite::Connection::open(&sidecar.ledger_path).unwrap();
    broken.execute_batch("DROP TABLE run").unwrap();

    // What was answered is still there, and is given.
    let replayed = sent(&sidecar, "PATCH", "/things/2", &key);
    assert_eq!(replayed.header("idempotent-replayed"), Some("true"));
    assert_eq!(replayed.text(), first.text());
    let report = replayed.report();
    assert_eq!(report["undo"], Value::Null);
    let why = "not known: the ledger could not be read for what came after it; ask again";
    assert_eq!(report["undo_unavailable"], why);
    assert_eq!(upstream.count("PATCH"), 1);
}

fn tool(home: &Home, process: &Process, call: (&str, Value), heads: &[(&str, &str)]) {
    let (name, arguments) = call;
    let body = json!({ "arguments": arguments }).to_string();
    let target = format!("/call/{name}");
    let mut agent = process.agent();
    let mut answer = agent.post(&target, heads, &body);
    if answer.status == 428 {
        let asked = answer.json();
        let token = asked["error"]["details"]["confirm"]["token"].as_str().unwrap();
        answer = agent.post(&target, &[heads, &[("effect-confirm", token)]].concat(), &body);
    }
    assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    wait::until("the finish", || {
        (home.query("SELECT count(*) || '' FROM entries WHERE state = 'begun'") == ["0"])
            .then_some(())
    });
}

#[test]
fn case_j4_undo_run_overwrites_no_later_call_of_a_tool_by_another_agent() {
    let task = [("effect-task", "m")];
    let other = [("authorization", "Bearer other")];
    for later in [
        ("edit_note", json!({"id": "n1", "text": "theirs"})),
        ("put_note", json!({"text": "theirs", "id": "n1"})),
        ("wipe_note", json!({"id": "n1", "how": "hard"})),
    ] {
        let upstream = tools(json!({"id": "n1", "text": "old"}));
        let home = Home::new(NOTES, upstream.address);
        let process = home.start();
        tool(&home, &process, ("edit_note", json!({"id": "n1", "text": "ours"})), &task);
        tool(&home, &process, ("edit_note", json!({"id": "n2", "text": "ours"})), &task);
        tool(&home, &process, later.clone(), &other);
        let before = calls(&upstream, "put_note");
        let through = format!("http://{}", process.data);

        let run =
            ["undo", "run", "--task", "m", "--through", &through, "--yes", "--format", "json"];
        let (_, text) = home.run(&run);

        let lines: Vec<Value> = text
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let results: Vec<&str> =
            lines.iter().map(|line| line["result"].as_str().unwrap()).collect();
        assert_eq!(results, ["undone", "left"], "{later:?}: {text}");
        assert!(lines[1]["why"].as_str().unwrap().contains("came after it"), "{text}");
        assert_eq!(calls(&upstream, "put_note"), before + 1, "only of the other note");
    }
}
