//! What an adversary found about ways around: values that become paths, forms that fold, files that are
//! none, what is only observed, and what `explain` says. Each kept as a test.

use std::process::Command;

use serde_json::Value;
use takeback::contract::class::Mode;

use crate::support::process::Home;
use crate::support::sidecar::Setup;
use crate::support::{Act, Sidecar, Upstream, noted, wait};

const POLICY: &str = noted!(
    r#"    confirm: caller
  file:
    match: { http: "POST /files" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: file.undo, arguments: { path.id: response.id } }
  file.undo:
    match: { http: "DELETE /files/{id}" }
    effect: { class: irreversible, kind: delete }
    confirm: caller
    allow: { encoded_slash: true }
  found:
    match: { http: "POST /found" }
    effect:
      class: irreversible
      kind: create
      lookup:
        operation: find
        by: id
        arguments: { path.name: request.body.name }
        settle_ms: 1
        match: [{ type: exists, name: id, actual: { source: response_body, pointer: /id } }]
    confirm: caller
  find:
    match: { http: "GET /found/{name}" }
    effect: { class: read }
  keyed:
    match: { http: "POST /keyed" }
    effect:
      class: irreversible
      kind: create
      idempotency: { type: body_pointer, pointer: /key, retention: 24h, replay: full }
    confirm: none
  form:
    match: { http: "POST /form", where: { request.body.mode: { equals: safe } } }
    effect: { class: reversible, kind: create, inverse: { operation: unnote, arguments: { path.id: response.id } } }
  form.other:
    match: { http: "POST /form" }
    effect: { class: irreversible, kind: create }
  try:
    match: { http: "POST /try", where: { request.query.dryRun: { equals: All } } }
    effect: { class: read, kind: read }
  try.really:
    match: { http: "POST /try" }
    effect: { class: irreversible, kind: create }
"#
);

fn answering(id: &str) -> Upstream {
    let body = format!("{{\"id\":{id}}}");
    Upstream::start(move |_| Act::json(201, &body))
}

#[test]
fn contract_2_an_undo_that_would_be_refused_is_not_offered() {
    for id in [r#""feature/x""#, r#""..""#, r#""a\\b""#, r#""a\u0000""#, r#""a;b=1""#, r#""\n""#] {
        let upstream = answering(id);
        let sidecar = Sidecar::start(POLICY, &upstream);

        let report = sidecar.agent().post("/notes", &[], "{}").report();

        assert_eq!(report["undo"], Value::Null, "{id}");
        assert!(report["undo_unavailable"].as_str().unwrap().starts_with("path.id"), "{report}");
    }
}

#[test]
fn contract_2_an_undo_with_a_slash_that_its_target_allows_is_offered_and_taken() {
    let upstream = answering(r#""feature/x""#);
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let undo = agent.post("/files", &[], "{}").report()["undo"]["http"].clone();
    assert_eq!(undo["path"], "/files/feature%2Fx");
    let path = undo["path"].as_str().unwrap();
    let undone = agent.call("DELETE", path, &[("effect-confirm", "true")], "");

    assert_eq!(undone.status, 201);
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", "")]);
}

#[test]
fn contract_3_a_lookup_goes_to_no_path_that_the_caller_may_not_ask_for() {
    let upstream = Upstream::start(|_| Act::Close);
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let mut agent = process.agent();
    for name in [r"../../admin/delete?x=1", r"a\\..\\b", r"a\u0000b", "x;y=1"] {
        let body = format!("{{\"name\":\"{name}\"}}");
        let lost = agent.post("/found", &[("effect-confirm", "true")], &body);
        assert_eq!(lost.report()["outcome"], "unknown", "{name}");
        assert_eq!(lost.report()["lookup"], Value::Null, "{name}");
    }
    wait::until("the finishes", || {
        let states = home.query("SELECT state FROM entries");
        (states == ["unknown"; 4]).then_some(())
    });

    let (_, text) = home.run(&["reconcile", "--once"]);

    assert_eq!(upstream.count("GET"), 0, "{text}");
}

#[test]
fn standards_h_32_a_method_override_in_a_header_or_a_json_body_is_refused() {
    let upstream = answering("1");
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    assert_eq!(agent.post("/notes", &[("_method", "DELETE")], "{}").code(), "method_override");
    assert_eq!(agent.post("/notes", &[], r#"{"_method":"DELETE"}"#).code(), "method_override");
    assert!(upstream.received().is_empty());
    assert_eq!(agent.post("/notes", &[], r#"{"a":{"_method":"DELETE"}}"#).status, 201);
}

#[test]
fn contract_2_a_form_name_that_folds_onto_one_that_decides_is_its_twin() {
    let upstream = answering("1");
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    for twin in ["+mode", "mode+", "mode%00", "mode%00x", "mode.x", "MODE"] {
        let body = format!("mode=safe&{twin}=hard");
        let answer = agent.call("POST", "/form", &kind, &body);
        assert_eq!((answer.status, answer.code().as_str()), (400, "ambiguous_member"), "{twin}");
    }
    assert!(upstream.received().is_empty());
    assert_eq!(agent.call("POST", "/form", &kind, "mode=safe&other.x=1").status, 201);
}

#[test]
fn standards_h_20_a_body_that_drips_is_held_no_longer_than_the_whole_call() {
    let upstream = answering("1");
    let mut setup = Setup::new(POLICY);
    setup.timeouts.total = std::time::Duration::from_millis(300);
    let sidecar = setup.start(&upstream);
    let mut agent = sidecar.agent();
    let head = "POST /notes HTTP/1.1\r\nhost: proxy\r\ncontent-type: application/json\r\n\
                content-length: 1000000\r\n\r\n{";
    agent.raw(head.as_bytes());

    let answer = agent.answer("POST");

    assert_eq!((answer.status, answer.code().as_str()), (408, "body_timeout"));
    assert!(upstream.received().is_empty());
}

/// Observes what the policy would refuse.
fn observing(upstream: &Upstream) -> Sidecar {
    let mut setup = Setup::new(POLICY);
    setup.mode = Mode::Observe;
    setup.start(upstream)
}

#[test]
fn contract_2_observe_never_writes_a_refusal_as_an_allowance() {
    let upstream = answering("1");
    let sidecar = observing(&upstream);
    let mut agent = sidecar.agent();

    let keyless = agent.post("/keyed", &[], r#"{"z":1}"#);
    let with_body = agent.call("GET", "/zz", &[("content-length", "2")], "{}");
    let twins = agent.post("/try?dryRun=All&dryrun=x", &[], "{}");

    assert_eq!(keyless.report()["would"], "idempotency_carrier_absent");
    assert_eq!(with_body.report()["would"], "undeclared_body");
    assert_eq!(twins.report()["would"], "ambiguous_member");
    assert_eq!(upstream.received().len(), 3);
    let metrics = sidecar.shared.metrics.render();
    let counted = metrics.lines().filter(|line| {
        line.starts_with("takeback_requests_total") && line.contains("would_refuse")
    });
    let count: u32 =
        counted.map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum();
    assert_eq!(count, 3, "{metrics}");
}

#[test]
fn contract_2_observe_refuses_nothing_that_would_have_passed() {
    let upstream = answering("1");
    let sidecar = observing(&upstream);
    let long = "a".repeat(5_000);
    for (name, value, would) in [
        ("effect-task", long.as_str(), "effect/invalid_meta"),
        ("effect-stage", "maybe", "effect/invalid_meta"),
        ("expect", "foo", "expectation_failed"),
    ] {
        let answer = sidecar.agent().post(&format!("/notes?{name}"), &[(name, value)], "{}");
        assert_eq!(answer.status, 201, "{name}");
        assert_eq!(answer.report()["would"], would, "{name}");
    }
    let enforced = Sidecar::start(POLICY, &upstream);
    for (name, status) in [("effect-task", 400), ("expect", 417)] {
        let answer = enforced.agent().post("/notes", &[(name, &long)], "{}");
        assert_eq!(answer.status, status, "{name}");
    }
}

#[test]
fn contract_2_a_pipe_in_a_policy_is_a_finding_and_holds_nothing_up() {
    let upstream = answering("1");
    let home = Home::new(POLICY, upstream.address);
    let mut process = home.start();
    let catalog = home.policies().join("catalog");
    std::fs::create_dir(&catalog).unwrap();
    let pipe = catalog.join("c.json");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let more = "version: 1\ncatalog: { openapi: catalog/c.json }\noperations: {}\n";
    std::fs::write(home.policies().join("more.yaml"), more).unwrap();

    let checked = Command::new(env!("CARGO_BIN_EXE_takeback"))
        .arg("check")
        .arg(home.policies())
        .output()
        .unwrap();
    let text = [checked.stdout, checked.stderr].concat();
    assert_eq!(checked.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&text).contains("not a regular file"), "a finding");

    std::fs::remove_file(home.policies().join("more.yaml")).unwrap();
    let moved = POLICY.replace("POST /notes\"", "POST /moved\"");
    std::fs::write(home.policies().join("test.yaml"), moved).unwrap();
    process.signal(rustix::process::Signal::HUP);
    let mut count = 0;
    wait::until("the next policy", || {
        // Another call each time: one whose agent left gets its recorded answer, whatever the policy.
        count += 1;
        let body = format!("{{\"count\":{count}}}");
        (process.agent().post("/notes", &[], &body).status == 428).then_some(())
    });
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn contract_3_a_lost_ledger_is_not_replaced_and_its_help_says_what_to_do() {
    let upstream = answering("1");
    let home = Home::new(POLICY, upstream.address);
    drop(home.start());
    std::fs::remove_file(home.ledger()).unwrap();

    assert!(home.start_under(&[]).is_none(), "{}", home.log());

    assert!(home.log().contains("restore it from a backup"), "{}", home.log());
    assert!(!home.ledger().exists());
    let (code, text) = home.run(&["ledger", "list", "--limit", "0"]);
    assert_eq!(code, Some(64), "{text}");
}

#[test]
fn contract_8_explain_says_what_run_answers() {
    let upstream = answering("1");
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let body = home.policies().parent().unwrap().join("body.json");
    std::fs::write(&body, r#"{"mode":"safe"}"#).unwrap();
    let json = ("content-type", "application/json");
    type Asked<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], bool);
    let calls: [Asked<'_>; 9] = [
        ("POST", "/notes", &[("x-http-method-override", "DELETE")], false),
        ("POST", "/notes?_method=DELETE", &[], false),
        ("POST", "/try?dryRun=All&DryRun=x", &[], false),
        ("GET", "/zz", &[json], true),
        ("POST", "/keyed", &[json], true),
        ("POST", "/notes", &[("effect-stage", "true")], false),
        ("TRACE", "/x", &[], false),
        ("DELETE", "/notes/a%2Fb", &[], false),
        ("POST", "/form", &[json], true),
    ];
    for (method, target, headers, has_body) in calls {
        let mut command = Command::new(env!("CARGO_BIN_EXE_takeback"));
        command.args(["explain", method, target, "--format", "json", "--policies"]);
        command.arg(home.policies());
        for (name, value) in headers {
            command.args(["--header", &format!("{name}: {value}")]);
        }
        if has_body {
            command.arg("--body").arg(&body);
        }
        let told = command.output().unwrap();
        let told: Value = serde_json::from_slice(&told.stdout).unwrap();
        let text = if has_body { r#"{"mode":"safe"}"# } else { "" };
        let length = text.len().to_string();
        let mut all = headers.to_vec();
        if has_body && method == "GET" {
            all.push(("content-length", &length));
        }
        let answer = process.agent().call(method, target, &all, text);

        let said = told["refused"][0].as_str().unwrap_or("201");
        let expected = match answer.status {
            201 => "201".to_owned(),
            status => format!("{status} {}: ", answer.code()),
        };
        assert!(said.starts_with(&expected), "{method} {target}: {said} / {expected}");
    }
}

/// An agent may not choose that a write is sent unconfirmed and cannot be taken back.
#[test]
fn a_write_that_lacks_what_its_undo_takes_from_the_request_is_asked_about_as_irreversible() {
    const POLICY: &str = r#"
version: 1
operations:
  members.add:
    match: { http: "POST /members" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: members.remove, arguments: { path.id: request.body.id } }
  members.remove:
    match: { http: "DELETE /members/{id}" }
    effect: { class: irreversible, kind: delete }
"#;
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let whole = agent.post("/members", &[], r#"{"id":"jane"}"#);
    assert_eq!((whole.status, upstream.count("POST")), (201, 1));
    assert_eq!(whole.report()["class"], "reversible");

    let text = [("content-type", "text/plain")];
    for (headers, body) in [
        (text.as_slice(), r#"{"id":"joe"}"#),
        (&[], r#"{"name":"joe"}"#),
        (&[], r#"{"id":null}"#),
        (&[], r#"{"id":".."}"#),
    ] {
        let asked = match headers {
            [] => agent.post("/members", &[], body),
            headers => agent.call("POST", "/members", headers, body),
        };
        assert_eq!(asked.status, 428, "{body}: {}", asked.text());
        assert_eq!(asked.report()["class"], "irreversible");
    }
    assert_eq!(upstream.count("POST"), 1);

    let token = agent.post("/members", &[], r#"{"name":"joe"}"#).token();
    let sent = agent.post("/members", &[("effect-confirm", &token)], r#"{"name":"joe"}"#);
    assert_eq!(sent.status, 201);
    assert_eq!(sent.report()["undo"], serde_json::Value::Null);
    assert!(sent.report()["undo_unavailable"].as_str().unwrap().contains("request.body.id"));
}
