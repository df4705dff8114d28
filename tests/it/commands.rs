use serde_json::Value;

use crate::support::process::Home;
use crate::support::{Act, Upstream, wait};

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
        settle_ms: 1
        match:
          - { type: exists, name: tag, actual: { source: response_body, pointer: /tag } }
    confirm: caller
"#;

/// Loses every answer of a write; finds only the release `v1`.
fn upstream() -> Upstream {
    Upstream::start(|received| match (received.method.as_str(), received.target.as_str()) {
        ("POST", _) => Act::Close,
        (_, "/releases/v1") => Act::json(200, r#"{"tag":"v1"}"#),
        _ => Act::json(404, "{}"),
    })
}

fn lose(home: &Home, agent: &mut crate::support::Agent, tag: &str) -> String {
    let lost =
        agent.post("/releases", &[("effect-confirm", "true")], &format!("{{\"tag\":\"{tag}\"}}"));
    assert_eq!(lost.report()["outcome"], "unknown");
    let entry = lost.report()["entry"].as_str().unwrap().to_owned();
    wait::until("the finish", || {
        let sql = format!("SELECT state FROM entries WHERE entry = '{entry}'");
        (home.query(&sql) == ["unknown"]).then_some(())
    });
    entry
}

#[test]
fn unknown_entries_are_listed_shown_reconciled_and_settled_while_the_sidecar_runs() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let mut agent = process.agent();
    let found = lose(&home, &mut agent, "v1");
    let lost = lose(&home, &mut agent, "v2");

    let (code, listed) = home.run(&["ledger", "list", "--state", "unknown", "--format", "json"]);
    assert_eq!(code, Some(0), "{listed}");
    let lines: Vec<Value> =
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{listed}");
    assert_eq!(lines[0]["entry"], lost, "newest first");

    let (code, text) = home.run(&["reconcile", "--once"]);
    assert_eq!(code, Some(0), "{text}");
    let state =
        |entry: &str| home.query(&format!("SELECT state FROM entries WHERE entry = '{entry}'"));
    assert_eq!(state(&found), ["accepted"], "{text}");
    assert_eq!(state(&lost), ["unknown"], "absent counts only after the last moment to act");

    let (code, text) = home.run(&["settle", &lost, "rejected", "--why", "it is not there"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(state(&lost), ["rejected"]);
    let (code, shown) = home.run(&["ledger", "show", &lost]);
    assert_eq!(code, Some(0));
    assert!(shown.contains("it is not there"), "{shown}");

    let (code, text) = home.run(&["settle", &lost, "accepted", "--why", "again"]);
    assert_eq!(code, Some(65), "{text}");
    assert!(text.contains("rejected"), "{text}");
    let (code, _) = home.run(&["ledger", "show", "01999999-9999-7999-8999-999999999999"]);
    assert_eq!(code, Some(65));
    assert_eq!(upstream.count("POST"), 2);
}

#[test]
fn commands_without_a_sidecar_say_so() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    drop(home.start());

    let (code, text) = home.run(&["reconcile", "--once"]);
    assert_eq!(code, Some(69), "{text}");
    let (code, text) = home.run(&["ledger", "list"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn probes_and_metrics_are_on_their_own_port_and_get_only() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();

    wait::until("ready", || (process.telemetry("/readyz").status == 200).then_some(()));
    assert_eq!(process.telemetry("/startupz").status, 200);
    assert_eq!(process.telemetry("/livez").status, 200);
    let metrics = process.telemetry("/metrics");
    assert_eq!(metrics.status, 200);
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let zero = "takeback_requests_total{transport=\"http\",operation=\"releases.create\",\
                class=\"irreversible\",decision=\"confirmation_required\"} 0";
    assert!(metrics.text().contains(zero), "every series that can occur exists at 0");
    let mut post = crate::support::Agent::connect(process.telemetry);
    assert_eq!(post.post("/metrics", &[], "{}").status, 405);
    assert_eq!(process.agent().get("/metrics").report()["operation"], "_undeclared");
}

#[test]
fn a_bad_policy_or_setting_is_fatal_and_says_where() {
    let upstream = upstream();
    let home = Home::new(
        "version: 1\noperations:\n  a:\n    match: { http: \"GET /a\" }\n    effect: { clas: read }\n",
        upstream.address,
    );
    assert!(home.start_under(&[]).is_none());
    let log = home.log();
    assert!(log.contains("5:15") || log.contains("clas"), "{log}");
}

#[test]
fn a_repeat_of_a_settled_call_is_told_what_became_of_it_although_there_is_no_answer_to_give() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let mut agent = process.agent();
    let entry = lose(&home, &mut agent, "v1");
    let (code, text) = home.run(&["settle", &entry, "accepted", "--why", "it is there"]);
    assert_eq!(code, Some(0), "{text}");

    let again = agent.post("/releases", &[("effect-confirm", "true")], r#"{"tag":"v1"}"#);

    assert_eq!((again.status, again.code().as_str()), (409, "answer_not_kept"));
    let report = again.report();
    assert_eq!(report["entry"], entry);
    assert_eq!(report["outcome"], "accepted");
    assert_eq!(report["refused"], "answer_not_kept");
    assert_eq!(upstream.count("POST"), 1);
}

#[test]
fn a_ledger_is_exported_whole_goes_on_where_it_was_cut_and_starts_where_the_last_one_did() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let mut agent = process.agent();
    let headers = [("effect-confirm", "true"), ("effect-task", "=1+1")];
    for tag in ["a", "b", "c"] {
        let body = format!("{{\"tag\":\"{tag}\"}}");
        assert_eq!(agent.post("/releases", &headers, &body).status, 201);
    }
    wait::until("the finishes", || {
        let begun = home.query("SELECT count(*) || '' FROM entries WHERE state = 'accepted'");
        (begun == ["3"]).then_some(())
    });
    let entries = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|line| {
                assert_eq!(line["history"].as_array().unwrap().len(), 2);
                line["entry"].as_str().unwrap().to_owned()
            })
            .collect()
    };

    let (code, whole) = home.run(&["ledger", "export"]);
    assert_eq!(code, Some(0), "{whole}");
    let whole = entries(&whole);
    assert_eq!(whole.len(), 3);
    let (_, rest) = home.run(&["ledger", "export", "--before", &whole[0]]);
    assert_eq!(entries(&rest), whole[1..]);
    let (_, newer) = home.run(&["ledger", "export", "--since", &whole[1]]);
    assert_eq!(entries(&newer), whole[..1]);
    let (code, csv) = home.run(&["ledger", "export", "--format", "csv"]);
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = csv.split("\r\n").collect();
    assert_eq!((lines.len(), lines[4]), (5, ""));
    assert!(lines[1].starts_with(&whole[0]) && lines[1].contains(",'=1+1,"), "{csv}");
    let (code, text) =
        home.run(&["ledger", "export", "--since", "01999999-9999-7999-8999-999999999999"]);
    assert_eq!(code, Some(65), "{text}");
}
