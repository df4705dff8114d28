//! `takeback undo`: what of a task can be taken back, and taking it back by ordinary calls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::Value;

use crate::support::process::{Home, Process};
use crate::support::updates::THINGS;
use crate::support::{Act, Agent, Upstream, wait};

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
  comments.delete:
    match: { http: "DELETE /comments/{id}" }
    effect: { class: irreversible, kind: delete }
  issues.create:
    match: { http: "POST /issues" }
    effect:
      class: compensable
      kind: create
      compensate:
        operation: issues.close
        arguments:
          path.number: response.number
          body.state: { const: closed }
          header.if-match: { const: "*" }
  issues.close:
    match: { http: "PATCH /issues/{number}" }
    effect: { class: irreversible, kind: update }
    confirm: none
  holds.create:
    match: { http: "POST /holds" }
    effect:
      class: reversible
      kind: create
      inverse:
        operation: holds.delete
        arguments: { path.id: response.id }
        deadline: { at: response.until, unit: ms }
  holds.delete:
    match: { http: "DELETE /holds/{id}" }
    effect: { class: irreversible, kind: delete }
    confirm: none
  mails.send:
    match: { http: "POST /mails" }
    effect:
      class: irreversible
      kind: external_side_effect
      lookup: { operation: mails.find, by: id, arguments: { query.to: request.body.to } }
    confirm: none
  mails.find:
    match: { http: "GET /mails" }
    effect: { class: read }
"#;

fn upstream() -> Upstream {
    Upstream::start(|received| {
        let body = String::from_utf8_lossy(&received.body).into_owned();
        match (received.method.as_str(), received.target.as_str()) {
            ("POST", "/comments") => Act::json(201, r#"{"id":7}"#),
            ("POST", "/issues") => Act::json(201, r#"{"number":3}"#),
            ("POST", "/holds") => Act::json(201, r#"{"id":9,"until":1000}"#),
            ("POST", "/mails") if body.contains("lost") => Act::Close,
            ("POST", "/mails") if body.contains("bad") => Act::json(422, "{}"),
            ("POST", "/mails") => Act::json(202, "{}"),
            ("DELETE", "/comments/8") => Act::json(404, "{}"),
            ("PATCH", "/issues/3") if !body.contains("closed") => Act::json(400, "{}"),
            _ => Act::json(200, "{}"),
        }
    })
}

const TASK: (&str, &str) = ("effect-task", "release 42");

/// Everything that a task can hold, oldest first.
fn work(process: &Process, credential: (&'static str, &'static str)) {
    let mut agent = process.agent();
    let heads = [TASK, credential];
    for (path, body, status) in [
        ("/mails", r#"{"to":"a"}"#, 202),
        ("/mails", r#"{"to":"bad"}"#, 422),
        ("/comments", r#"{"body":"hello"}"#, 201),
        ("/issues", r#"{"title":"it"}"#, 201),
        ("/holds", r#"{"room":1}"#, 201),
    ] {
        assert_eq!(agent.post(path, &heads, body).status, status, "{path}");
    }
    let lost = process.agent().post("/mails", &heads, r#"{"to":"lost"}"#);
    assert_eq!(lost.report()["outcome"], "unknown");
    let other = [("effect-task", "other"), credential];
    assert_eq!(agent.post("/comments", &other, r#"{"body":"not ours"}"#).status, 201);
}

fn json(home: &Home, arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--format", "json"]).collect();
    let (code, text) = home.run(&arguments);
    let lines = text.lines().filter(|line| line.starts_with('{'));
    (code, lines.map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn words<'a>(lines: &'a [Value], member: &str) -> Vec<(&'a str, &'a str)> {
    lines
        .iter()
        .map(|line| (line["operation"].as_str().unwrap(), line[member].as_str().unwrap_or("")))
        .collect()
}

/// Waits until the ledger's file shows all that has happened.
fn settled(home: &Home) {
    wait::until("the finishes", || {
        let begun = home.query("SELECT count(*) || '' FROM entries WHERE state = 'begun'");
        (begun == ["0"]).then_some(())
    });
}

#[test]
fn c_12_a_tasks_plan_is_newest_first_and_says_of_each_write_whether_it_can_be_taken_back() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    work(&process, ("authorization", "Bearer agent"));
    settled(&home);
    let sent = upstream.received().len();

    let (code, lines) = json(&home, &["undo", "plan", "--task", "release 42"]);

    assert_eq!(code, Some(0));
    let right = [
        ("mails.send", "unknown"),
        ("holds.create", "unavailable"),
        ("issues.create", "available"),
        ("comments.create", "available"),
        ("mails.send", "unavailable"),
    ];
    assert_eq!(words(&lines, "standing"), right);
    assert_eq!(lines[0]["lookup"]["http"]["path"], "/mails?to=lost");
    assert_eq!(lines[1]["why"], "deadline passed");
    assert_eq!(lines[2]["call"]["target"], "/issues/3");
    assert_eq!(lines[2]["call"]["body"], r#"{"state":"closed"}"#);
    assert_eq!(lines[4]["why"], "its class is irreversible, and it has no undo");
    assert_eq!(upstream.received().len(), sent, "a plan sends nothing");
    let (code, text) = home.run(&["undo", "plan", "--task", "release 42"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("compensate: PATCH /issues/3"), "{text}");
    let (code, text) = home.run(&["undo", "plan", "--task", "nothing"]);
    assert_eq!((code, text.contains("no writes")), (Some(0), true), "{text}");
}

#[test]
fn c_12_a_tasks_undo_makes_ordinary_calls_each_confirmed_as_its_own_class_asks() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    work(&process, ("authorization", "Bearer agent"));
    settled(&home);
    let sent = upstream.received().len();
    let through = format!("http://{}", process.data);
    let run = ["undo", "run", "--task", "release 42", "--through", &through];

    // Without a terminal nobody is asked, and an irreversible call is not confirmed by itself.
    let (code, lines) = json(&home, &run);
    assert_eq!(code, Some(1));
    let right = [
        ("mails.send", "left"),
        ("holds.create", "left"),
        ("issues.create", "undone"),
        ("comments.create", "not confirmed"),
        ("mails.send", "left"),
    ];
    assert_eq!(words(&lines, "result"), right);
    assert_eq!(lines[2]["why"], Value::Null, "another principal's undo is linked");

    let (code, lines) = json(&home, &[run.as_slice(), &["--yes"]].concat());
    assert_eq!(code, Some(0), "{lines:?}");
    let right = [
        ("mails.send", "left"),
        ("holds.create", "left"),
        ("issues.create", "undone"),
        ("comments.create", "undone"),
        ("mails.send", "left"),
    ];
    assert_eq!(words(&lines, "result"), right);

    let received = upstream.received();
    let calls: Vec<(&str, &str)> = received[sent..]
        .iter()
        .map(|received| (received.method.as_str(), received.target.as_str()))
        .collect();
    assert_eq!(calls, [("PATCH", "/issues/3"), ("DELETE", "/comments/7")]);
    assert_eq!(received[sent].header("if-match"), Some("*"));
    let mut undone =
        home.query("SELECT operation FROM entries WHERE state = 'undone' ORDER BY operation");
    assert_eq!(undone, ["comments.create", "issues.create"]);
    let (_, lines) = json(&home, &["undo", "plan", "--task", "release 42"]);
    let standings: Vec<&str> =
        lines.iter().map(|line| line["standing"].as_str().unwrap()).collect();
    assert_eq!(standings, ["unknown", "unavailable", "undone", "undone", "unavailable"]);
    undone = home.query("SELECT key FROM entries WHERE operation = 'comments.delete'");
    let entry = home.query(
        "SELECT entry FROM entries WHERE operation = 'comments.create' AND task = 'release 42'",
    );
    assert_eq!(undone, [format!("{}-undo", entry[0])]);
}

#[test]
fn c_12_an_undo_that_the_agent_makes_itself_is_recognised_and_one_failure_stops_no_other() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" if received.target == "/comments" => {
            let id = match received.text().as_str() {
                r#"{"body":"a"}"# => 8,
                r#"{"body":"b"}"# => 7,
                _ => 9,
            };
            Act::json(201, &format!("{{\"id\":{id}}}"))
        }
        "DELETE" if received.target == "/comments/8" => Act::json(404, "{}"),
        _ => Act::json(200, "{}"),
    });
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let mut agent = process.agent();
    for body in ["b", "c", "a"] {
        let body = format!("{{\"body\":\"{body}\"}}");
        assert_eq!(agent.post("/comments", &[TASK], &body).status, 201);
    }
    settled(&home);
    let headers = home.policies().join("../credential");
    std::fs::write(&headers, "X-Trace: one\n").unwrap();
    let through = format!("http://{}", process.data);
    let headers = headers.to_str().unwrap();
    let run = ["undo", "run", "--task", "release 42", "--through", &through, "--yes"];

    let (code, lines) = json(&home, &[run.as_slice(), &["--headers-file", headers]].concat());

    assert_eq!(code, Some(1));
    let results: Vec<&str> = lines.iter().map(|line| line["result"].as_str().unwrap()).collect();
    assert_eq!(results[0], "failed", "{lines:?}");
    assert!(results[1..].iter().all(|result| *result == "undone"), "{lines:?}");
    assert!(upstream.received().iter().any(|received| received.header("x-trace") == Some("one")));
    let (code, text) = home.run(&["undo", "run", "--task", "x", "--entry", "nonsense"]);
    assert_eq!(code, Some(64), "{text}");
    let (code, text) = home.run(&["undo", "run", "--task", "x", "--through", "ftp://x"]);
    assert_eq!(code, Some(64), "{text}");
}

/// Things whose updates can be looked up.
fn updates() -> String {
    let lookup = "      lookup: { operation: things.get, by: id, \
                  arguments: { path.id: request.path.id } }\n  things.restore:";
    THINGS.replace("  things.restore:", lookup)
}

/// Standings and their reasons, newest first.
fn standings(home: &Home) -> Vec<(String, String)> {
    let (code, lines) = json(home, &["undo", "plan", "--task", "release 42"]);
    assert_eq!(code, Some(0));
    let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    lines.iter().map(|line| (text(line, "standing"), text(line, "why"))).collect()
}

/// Two updates of one thing at the same time, and then two of another one after the other.
fn updated_at_once_and_in_turn(
    home: &Home,
    process: &Process,
    upstream: &Upstream,
    go: std::sync::mpsc::Sender<()>,
) {
    let patch = |target: &str, title: &str| {
        let headers = [TASK, ("content-type", "application/json")];
        let body = format!("{{\"title\":\"{title}\"}}");
        let answer = process.agent().call("PATCH", target, &headers, &body);
        assert_eq!(answer.status, 200);
        answer.report()
    };
    let unavailable = |report: Value, why: &str| {
        assert_eq!(report["undo"], Value::Null);
        let said = report["undo_unavailable"].as_str().unwrap();
        assert!(said.starts_with("superseded: entry ") && said.contains(why), "{said}");
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| patch("/things/1", "a"));
        wait::until("dispatch", || (upstream.count("PATCH") == 1).then_some(()));
        unavailable(patch("/things/1", "b"), "was under way when it began");
        go.send(()).unwrap();
        unavailable(first.join().unwrap(), "came after it");
    });
    for title in ["c", "d"] {
        assert_eq!(patch("/things/2", title)["undo"]["operation"], "things.restore");
    }
    let (_, lines) = json(home, &["ledger", "list"]);
    assert_eq!(lines.len(), 4);
}

fn held() -> (Upstream, std::sync::mpsc::Sender<()>) {
    let (go, hold) = std::sync::mpsc::channel::<()>();
    let hold = std::sync::Mutex::new(Some(hold));
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "PATCH" => match hold.lock().unwrap().take() {
            Some(hold) => Act::After(hold, Box::new(Act::json(200, "{}"))),
            None => Act::json(200, "{}"),
        },
        _ => Act::json(200, r#"{"title":"old"}"#),
    });
    (upstream, go)
}

/// Waits for the finishes, and says what stands in the way of what.
fn obstacles(home: &Home) {
    let standings = wait::until("the finishes", || {
        let standings = standings(home);
        let is_over = standings
            .iter()
            .all(|(standing, _)| standing != "under-way" && standing != "under_way");
        is_over.then_some(standings)
    });
    let words: Vec<&str> = standings.iter().map(|(standing, _)| standing.as_str()).collect();
    assert_eq!(words, ["available", "available", "superseded", "superseded"], "{standings:?}");
    assert!(standings[2].1.contains("was under way when it began"), "{standings:?}");
    assert!(standings[3].1.contains("came after it"), "{standings:?}");
}

#[test]
fn two_updates_of_one_thing_at_once_are_no_clean_undo_of_each_other_and_two_in_turn_are() {
    let (upstream, go) = held();
    let home = Home::new(&updates(), upstream.address);
    let process = home.start();

    updated_at_once_and_in_turn(&home, &process, &upstream, go);

    obstacles(&home);
}

#[test]
fn two_updates_of_one_thing_at_once_in_a_database_are_no_clean_undo_of_each_other() {
    let (upstream, go) = held();
    let database = crate::support::postgres::Database::new();
    let home = Home::on_database(&updates(), upstream.address, database.url());
    let process = home.start();

    updated_at_once_and_in_turn(&home, &process, &upstream, go);

    wait_for_finishes(&database);
    let (status, plan) = home.admin("GET", "/api/v1/undo?task=release%2042");
    assert_eq!(status, 200, "{plan}");
    let standings: Vec<&str> = plan["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["standing"].as_str().unwrap())
        .collect();
    assert_eq!(standings, ["available", "available", "superseded", "superseded"], "{plan}");
}

fn wait_for_finishes(database: &crate::support::postgres::Database) {
    wait::until("the finishes", || {
        let open = database.query("SELECT count(*) FROM takeback.entry WHERE state = 2");
        (open == ["0"]).then_some(())
    });
}

/// An upstream that answers no write but a move back.
fn losing() -> Upstream {
    Upstream::start(|received| match received.method.as_str() {
        "GET" | "PUT" => Act::json(200, r#"{"title":"old"}"#),
        _ => Act::Close,
    })
}

/// An update whose answer is lost; its entry.
fn lost_update(process: &Process) -> String {
    let headers = [TASK, ("content-type", "application/json")];
    let lost = process.agent().call("PATCH", "/things/1", &headers, "{\"title\":\"new\"}");
    assert_eq!((lost.code().as_str(), &lost.report()["undo"]), ("outcome_unknown", &Value::Null));
    lost.report()["entry"].as_str().unwrap().to_owned()
}

#[test]
fn an_entry_that_was_settled_is_taken_back_by_what_its_request_and_the_state_before_it_say() {
    let upstream = losing();
    let home = Home::new(&updates(), upstream.address);
    let process = home.start();
    let entry = lost_update(&process);
    settled(&home);
    let unknown = standings(&home).remove(0);
    assert_eq!(unknown.0, "unknown");
    let (_, shown) = home.admin("GET", &format!("/api/v1/entries/{entry}"));
    assert_eq!(shown["entry"]["undo"].as_str(), None, "{shown}");

    let (code, text) = home.run(&["settle", &entry, "accepted", "--why", "seen"]);
    assert_eq!(code, Some(0), "{text}");

    assert_eq!(standings(&home), [("available".to_owned(), String::new())]);
    let through = format!("http://{}", process.data);
    let run = ["undo", "run", "--task", "release 42", "--through", &through, "--yes"];
    let (code, lines) = json(&home, &run);
    assert_eq!((code, words(&lines, "result")), (Some(0), vec![("things.update", "undone")]));
    assert_eq!(
        (upstream.last().method.as_str(), upstream.last().text().as_str()),
        ("PUT", r#"{"title":"old"}"#)
    );
    settled(&home);
    assert_eq!(standings(&home)[0].0, "undone");
}

#[test]
fn an_entry_that_was_settled_says_what_of_its_undo_only_the_answer_had() {
    let upstream = losing();
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let lost = process.agent().post("/comments", &[TASK], r#"{"body":"b"}"#);
    assert_eq!(lost.code(), "outcome_unknown");
    let entry = lost.report()["entry"].as_str().unwrap().to_owned();
    settled(&home);

    let (code, text) = home.run(&["settle", &entry, "accepted", "--why", "seen"]);
    assert_eq!(code, Some(0), "{text}");

    let why = "path.id (response.id) names nothing in this call: \
               the answer has no body that can be read";
    assert_eq!(standings(&home), [("unavailable".to_owned(), why.to_owned())]);
}

#[test]
fn an_entry_whose_sidecar_died_under_it_says_that_no_undo_was_noted() {
    let (_go, hold) = std::sync::mpsc::channel();
    let hold = std::sync::Mutex::new(Some(hold));
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "PATCH" => match hold.lock().unwrap().take() {
            Some(hold) => Act::After(hold, Box::new(Act::Close)),
            None => Act::Close,
        },
        _ => Act::json(200, r#"{"title":"old"}"#),
    });
    let home = Home::new(&updates(), upstream.address);
    let mut process = home.start();
    let headers = [TASK, ("content-type", "application/json")];
    let mut agent = process.agent();
    agent.send("PATCH", "/things/1", &headers, "{\"title\":\"new\"}");
    wait::until("dispatch", || (upstream.count("PATCH") == 1).then_some(()));
    process.kill();
    let _process = home.start();
    let (_, lines) = json(&home, &["ledger", "list"]);
    let entry = lines[0]["entry"].as_str().unwrap().to_owned();

    let (code, text) = home.run(&["settle", &entry, "accepted", "--why", "seen"]);
    assert_eq!(code, Some(0), "{text}");

    let why = "its sidecar died under it, and noted no undo";
    assert_eq!(standings(&home), [("unavailable".to_owned(), why.to_owned())]);
}

#[test]
fn an_undo_whose_target_a_newer_policy_moved_is_not_made() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let task = ("effect-task", "moved");
    assert_eq!(process.agent().post("/comments", &[task], r#"{"body":"b"}"#).status, 201);
    settled(&home);
    let plan = ["undo", "plan", "--task", "moved"];
    assert_eq!(words(&json(&home, &plan).1, "standing"), [("comments.create", "available")]);

    let moved = POLICY.replace("DELETE /comments/{id}", "DELETE /other/{id}");
    assert_ne!(moved, POLICY);
    let file = std::fs::read_dir(home.policies()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(file, moved).unwrap();
    let (status, told) = home.admin("POST", "/api/v1/reload");
    assert_eq!(status, 200, "{told}");

    let (_, lines) = json(&home, &plan);
    assert_eq!(words(&lines, "standing"), [("comments.create", "unavailable")]);
    let why = lines[0]["why"].as_str().unwrap();
    assert!(why.contains("goes elsewhere"), "{why}");
    let through = format!("http://{}", process.data);
    let run = ["undo", "run", "--task", "moved", "--through", &through, "--yes"];
    assert_eq!(words(&json(&home, &run).1, "result"), [("comments.create", "left")]);
    assert_eq!(upstream.count("DELETE"), 0);
}

const TOOLS: &str = r#"
version: 1
operations:
  notes.create:
    match: { tool: create_note }
    effect:
      class: reversible
      kind: create
      inverse: { operation: notes.delete, arguments: { id: response.id } }
  notes.delete:
    match: { tool: delete_note }
    effect: { class: irreversible, kind: delete }
"#;

#[test]
fn c_12_a_write_that_a_tool_takes_back_is_planned_and_undone_with_its_numbers_as_they_were() {
    let upstream = Upstream::start(|received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = &message["id"];
        let result = match message["method"].as_str().unwrap() {
            "server/discover" => "{}",
            "tools/list" => r#"{"tools":[{"name":"create_note"},{"name":"delete_note"}]}"#,
            _ => r#"{"content":[],"structuredContent":{"id":184467440737095516160}}"#,
        };
        Act::json(200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
    });
    let home = Home::new(TOOLS, upstream.address);
    let process = home.start();
    let body = r#"{"arguments":{"text":"a"}}"#;
    let made = process.agent().post("/call/create_note", &[("effect-task", "m")], body);
    assert_eq!(made.status, 200, "{}", made.text());
    settled(&home);

    let (code, lines) = json(&home, &["undo", "plan", "--task", "m"]);
    assert_eq!((code, words(&lines, "standing")), (Some(0), vec![("notes.create", "available")]));
    let (code, text) = home.run(&["undo", "plan", "--task", "m"]);
    assert!(code == Some(0) && text.contains("delete_note"), "{text}");
    let (_, text) = home.run(&["undo", "plan", "--task", "m", "--format", "json"]);
    assert!(text.contains("184467440737095516160"), "{text}");
    let through = format!("http://{}", process.data);
    let (code, lines) =
        json(&home, &["undo", "run", "--task", "m", "--through", &through, "--yes"]);

    assert_eq!(code, Some(0), "{lines:?}");
    assert_eq!(words(&lines, "result"), [("notes.create", "undone")]);
    let sent = upstream.last().text();
    assert!(sent.contains("delete_note") && sent.contains("184467440737095516160"), "{sent}");
}

#[test]
fn a_run_that_meets_a_write_under_way_does_not_end_as_if_all_were_taken_back() {
    let (go, hold) = std::sync::mpsc::channel();
    let hold = std::sync::Mutex::new(Some(hold));
    let upstream = Upstream::start(move |_| match hold.lock().unwrap().take() {
        Some(hold) => Act::After(hold, Box::new(Act::json(201, r#"{"id":7}"#))),
        None => Act::json(200, "{}"),
    });
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let mut agent = process.agent();
    let headers = [("content-type", "application/json"), ("effect-task", "now")];
    agent.send("POST", "/comments", &headers, r#"{"body":"b"}"#);
    wait::until("the call", || (upstream.count("POST") == 1).then_some(()));
    let through = format!("http://{}", process.data);
    let run = ["undo", "run", "--task", "now", "--through", &through, "--yes"];

    let (code, lines) = json(&home, &run);

    assert_eq!(code, Some(1), "{lines:?}");
    assert_eq!(words(&lines, "result"), [("comments.create", "under way")]);
    go.send(()).unwrap();
    assert_eq!(agent.answer("POST").status, 201);
    settled(&home);
    let (code, lines) = json(&home, &run);
    assert_eq!((code, words(&lines, "result")), (Some(0), vec![("comments.create", "undone")]));
}

#[test]
fn c_12_a_long_task_that_was_taken_back_stays_so_whoever_asks_again() {
    // With the calls that take back, more than one plan holds.
    const WRITES: usize = 510;
    let number = AtomicUsize::new(0);
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "POST" => {
            let id = number.fetch_add(1, Ordering::Relaxed);
            Act::json(201, &format!("{{\"id\":{id}}}"))
        }
        _ => Act::json(200, "{}"),
    });
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let mut agent = process.agent();
    for number in 0..WRITES {
        let body = format!("{{\"body\":\"{number}\"}}");
        assert_eq!(agent.post("/comments", &[TASK], &body).status, 201);
    }
    settled(&home);
    let through = format!("http://{}", process.data);
    let run = ["undo", "run", "--task", "release 42", "--through", &through, "--yes"];

    let (code, lines) = json(&home, &run);
    assert_eq!((code, lines.len()), (Some(0), WRITES));
    assert_eq!(upstream.count("DELETE"), WRITES);
    settled(&home);
    let (code, lines) = json(&home, &run);

    assert_eq!(code, Some(0));
    assert!(lines.iter().all(|line| line["operation"] == "comments.create"));
    assert_eq!((lines.len(), upstream.received().len()), (WRITES, 2 * WRITES));
}

/// Things that are put back by the call that changed them.
const PUTS: &str = r#"
version: 1
operations:
  things.get:
    match: { http: "GET /things/{id}" }
    effect: { class: read }
  things.put:
    match: { http: "PUT /things/{id}" }
    confirm: none
    before: { operation: things.get, arguments: { path.id: request.path.id } }
    effect:
      class: reversible
      kind: update
      inverse:
        operation: things.put
        arguments: { path.id: request.path.id, body.v: before.v }
"#;

/// Things that hold what is put there, at first 0; `at_put` is called with each put before it is done.
fn puts(at_put: impl Fn(&str, &str) + Send + Sync + 'static) -> Upstream {
    let things = Mutex::new(HashMap::<String, String>::new());
    Upstream::start(move |received| {
        if received.method == "PUT" {
            at_put(&received.target, &received.text());
            things.lock().unwrap().insert(received.target.clone(), received.text());
        }
        let things = things.lock().unwrap();
        Act::json(200, things.get(&received.target).map_or("{\"v\":0}", String::as_str))
    })
}

const KIND: (&str, &str) = ("content-type", "application/json");
const OTHER: (&str, &str) = ("authorization", "Bearer other");

fn put(agent: &mut Agent, thing: &str, value: u8, headers: &[(&str, &str)]) -> u16 {
    let headers = [&[KIND], headers].concat();
    agent.call("PUT", &format!("/things/{thing}"), &headers, &format!("{{\"v\":{value}}}")).status
}

fn now(process: &Process, thing: &str) -> String {
    process.agent().call("GET", &format!("/things/{thing}"), &[], "").text()
}

#[test]
fn c_12_an_undo_is_sent_though_an_older_call_of_another_was_the_same() {
    let upstream = puts(|_, _| {});
    let home = Home::new(PUTS, upstream.address);
    let process = home.start();
    assert_eq!(put(&mut process.agent(), "a", 1, &[]), 200);
    assert_eq!(put(&mut process.agent(), "a", 2, &[TASK, OTHER]), 200);
    settled(&home);
    let through = format!("http://{}", process.data);
    let run = ["undo", "run", "--task", "release 42", "--through", &through, "--yes"];

    let (code, lines) = json(&home, &run);

    assert_eq!((code, words(&lines, "result")), (Some(0), vec![("things.put", "undone")]));
    assert_eq!((now(&process, "a").as_str(), upstream.count("PUT")), ("{\"v\":1}", 3));
}

#[test]
fn c_12_two_callers_with_one_key_have_their_undos_under_keys_of_their_own() {
    let upstream = puts(|_, _| {});
    let home = Home::new(PUTS, upstream.address);
    let process = home.start();
    let key = ("idempotency-key", "job");
    let through = format!("http://{}", process.data);
    for (sent, headers) in [(2, &[TASK, key][..]), (4, &[TASK, key, OTHER])] {
        assert_eq!(put(&mut process.agent(), "a", 1, headers), 200);
        settled(&home);
        let run = ["undo", "run", "--task", "release 42", "--through", &through, "--yes"];
        assert_eq!(json(&home, &run).0, Some(0));
        assert_eq!((now(&process, "a").as_str(), upstream.count("PUT")), ("{\"v\":0}", sent));
        settled(&home);
    }
}

#[test]
fn c_12_a_write_that_comes_while_a_task_is_taken_back_is_not_overwritten() {
    let port = Arc::new(OnceLock::<std::net::SocketAddr>::new());
    let at = Arc::clone(&port);
    let upstream = puts(move |target, body| {
        if target == "/things/e" && body == "{\"v\":0}" {
            let mut other = Agent::connect(*at.get().unwrap());
            assert_eq!(put(&mut other, "d", 7, &[OTHER]), 200);
        }
    });
    let home = Home::new(PUTS, upstream.address);
    let process = home.start();
    port.set(process.data).unwrap();
    let mut agent = process.agent();
    assert_eq!(put(&mut agent, "d", 1, &[TASK]), 200);
    assert_eq!(put(&mut agent, "e", 1, &[TASK]), 200);
    settled(&home);
    let through = format!("http://{}", process.data);
    let run = ["undo", "run", "--task", "release 42", "--through", &through, "--yes"];

    let (_, lines) = json(&home, &run);

    assert_eq!(words(&lines, "result"), [("things.put", "undone"), ("things.put", "left")]);
    assert!(lines[1]["why"].as_str().unwrap().contains("came after it"), "{lines:?}");
    assert_eq!(now(&process, "d"), "{\"v\":7}");
}

#[test]
fn c_12_what_is_made_again_after_it_was_taken_back_is_taken_back_again() {
    let upstream = puts(|_, _| {});
    let home = Home::new(PUTS, upstream.address);
    let process = home.start();
    let through = format!("http://{}", process.data);
    let run = ["undo", "run", "--task", "release 42", "--through", &through, "--yes"];
    let mut agent = process.agent();
    for sent in [2, 4] {
        assert_eq!(put(&mut agent, "a", 1, &[TASK]), 200);
        settled(&home);
        assert_eq!(json(&home, &run).0, Some(0));
        assert_eq!((now(&process, "a").as_str(), upstream.count("PUT")), ("{\"v\":0}", sent));
        settled(&home);
    }
    assert_eq!(standings(&home).len(), 2);
    // What another made again stands in the way of what came before.
    assert_eq!(put(&mut agent, "b", 1, &[TASK]), 200);
    for value in [2, 1, 2] {
        assert_eq!(put(&mut agent, "b", value, &[OTHER]), 200);
    }
    settled(&home);
    assert_eq!(standings(&home)[0].0, "superseded");
}
