//! The chain over the ledger's history, as an operator meets it: `takeback ledger verify` on the files
//! and databases of real sidecars, and the heads in their logs.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::support::postgres::Database;
use crate::support::process::{Home, Process};
use crate::support::{Act, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  notes.create:
    match: { http: "POST /notes" }
    effect: { class: reversible, kind: create, inverse: { operation: notes.delete, arguments: { path.id: response.id } } }
  notes.delete:
    match: { http: "DELETE /notes/{id}" }
    effect: { class: irreversible, kind: delete }
"#;

fn upstream() -> Upstream {
    Upstream::start(|_| Act::json(201, r#"{"id":100}"#))
}

fn keys(home: &Home) -> String {
    let path = home.folder().join("keys");
    std::fs::write(&path, "# of the test\n0123456789abcdef0123456789abcdef\n").unwrap();
    path.to_str().unwrap().to_owned()
}

/// Some calls, and the end of the sidecar in order; the newest head in its log.
fn filled(home: &Home, keys: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut process = home.start_with(&["--ledger-mac-key-file", keys]);
    let mut agent = process.agent();
    for _ in 0..5 {
        // Never the same call twice: an answer that was not seen to be delivered is given again.
        let note = NEXT.fetch_add(1, Ordering::Relaxed);
        assert_eq!(agent.post("/notes", &[], &format!("{{\"n\":{note}}}")).status, 201);
    }
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());
    heads(home).pop().expect("a head is logged at the end")
}

fn heads(home: &Home) -> Vec<String> {
    home.log()
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["event"] == "ledger_head")
        .map(|line| line["head"].as_str().unwrap().to_owned())
        .collect()
}

fn change(home: &Home, sql: &str) {
    rusqlite::Connection::open(home.ledger()).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn f15_a_ledger_verifies_until_one_byte_of_it_is_changed_and_the_row_is_named() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let keys = keys(&home);
    let head = filled(&home, &keys);
    let with_key = ["--ledger-mac-key-file", &keys];
    let verify = |more: &[&str]| home.run(&[&["ledger", "verify"], &with_key[..], more].concat());

    let (code, text) = verify(&["--head", &head]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("whole: 11 rows fit") && text.contains(&head), "{text}");
    let (code, json) = verify(&["--format", "json"]);
    assert_eq!(code, Some(0));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["ok"], &json["rows"]), (&Value::Bool(true), &11.into()), "{json}");
    assert_eq!(json["chains"][0]["head"], head.as_str());

    let (code, text) = home.run(&["ledger", "verify"]);
    assert_eq!(code, Some(78), "a keyed chain says nothing without its key: {text}");
    let (code, text) = verify(&["--head", &head.replace(":11", ":12")]);
    assert_eq!(code, Some(65), "{text}");
    assert!(text.contains("rows were cut off"), "{text}");
    let (code, text) = verify(&["--head", "4f:1"]);
    assert_eq!(code, Some(64), "{text}");

    change(&home, "UPDATE history SET upstream_status = 200 WHERE seq = 5");
    let (code, text) = verify(&[]);
    assert_eq!(code, Some(65), "{text}");
    assert!(text.contains("row 5 of entry"), "{text}");
    let (code, json) = verify(&["--format", "json"]);
    assert_eq!(code, Some(65));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["ok"], &json["first_bad"]["row"]), (&Value::Bool(false), &5.into()));
}

/// What `/readyz` says of the ledger.
fn readiness(process: &Process) -> (u16, String) {
    let ready = process.telemetry("/readyz");
    (ready.status, ready.text())
}

fn metric(process: &Process, line: &str) {
    wait::until(line, || process.telemetry("/metrics").text().contains(line).then_some(()));
}

/// Looks at a sidecar that was started on a ledger which is not what was written: reads go on, writes are
/// refused until it is acknowledged, and then it says by whom and why.
fn refused_until_acknowledged(home: &Home, process: &Process, with_key: &[&str], flaw: &str) {
    let mut agent = process.agent();
    let sent = agent.get("/notes").status;
    assert_eq!(sent, 201, "reads go on");
    let (status, text) = readiness(process);
    assert!(status == 503 && text.contains(flaw), "{status} {text}");
    let refused = agent.post("/notes", &[], "{\"refused\":true}");
    assert_eq!((refused.status, refused.code().as_str()), (503, "ledger_unavailable"));
    metric(process, "takeback_ledger_chain_broken 1\n");
    let verify = |more: &[&str]| home.run(&[&["ledger", "verify"], more].concat());
    let socket = format!("{}.sock", home.ledger().display());
    let acknowledge =
        |why: &str| verify(&["--acknowledge", "--why", why, "--admin-socket", &socket]);

    assert_eq!(acknowledge(" ").0, Some(64));
    let (code, text) = acknowledge("seen, INC-7");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("writes are taken again"), "{text}");

    assert_eq!(agent.post("/notes", &[], "{\"acknowledged\":true}").status, 201);
    assert_eq!(readiness(process).0, 200);
    metric(process, "takeback_ledger_chain_broken 0\n");
    let (code, text) = verify(with_key);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("whole but for what was acknowledged"), "{text}");
    assert!(text.contains("acknowledged by uid") && text.contains(": seen, INC-7"), "{text}");
    let (code, text) = acknowledge("once more");
    assert_eq!(code, Some(65), "{text}");
    assert!(text.contains("nothing to acknowledge"), "{text}");
}

#[test]
fn ops_3_6_a_broken_chain_refuses_writes_until_it_is_acknowledged_and_a_later_break_is_named() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let keys = keys(&home);
    filled(&home, &keys);
    let with_key = ["--ledger-mac-key-file", &keys];
    change(&home, "UPDATE history SET upstream_status = 200 WHERE seq = 5");

    let mut process = home.start_with(&with_key);
    assert!(home.log().contains("row 5 of entry"), "{}", home.log());
    refused_until_acknowledged(&home, &process, &with_key, "not what was written");
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());

    // It stays acknowledged, and covers nothing else: neither that row changed again, nor another.
    let mut process = home.start_with(&with_key);
    assert_eq!(process.agent().post("/notes", &[], "{\"again\":true}").status, 201);
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());
    let (_, json) = home.run(&["ledger", "verify", "--format", "json", with_key[0], with_key[1]]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["acknowledged"][0]["broken"]["row"], 5, "{json}");
    for (sql, row) in [
        ("UPDATE history SET upstream_status = 299 WHERE seq = 5", "row 5 of entry"),
        (
            "UPDATE history SET upstream_status = 200 WHERE seq = 5; \
             UPDATE history SET why = 'x' WHERE seq = 7",
            "row 7 of entry",
        ),
    ] {
        change(&home, sql);
        let (code, text) = home.run(&["ledger", "verify", with_key[0], with_key[1]]);
        assert_eq!(code, Some(65), "{text}");
        assert!(text.contains(row), "{text}");
    }
}

#[test]
fn an_older_copy_that_is_put_back_refuses_writes_until_it_is_acknowledged() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let keys = keys(&home);
    let with_key = ["--ledger-mac-key-file", &keys];
    filled(&home, &keys);
    let copy = home.folder().join("copy.db");
    std::fs::copy(home.ledger(), &copy).unwrap();
    let head = filled(&home, &keys);
    let newest = std::fs::read(home.ledger()).unwrap();
    let put_back = |bytes: &[u8]| {
        for suffix in ["-wal", "-shm"] {
            let mut beside = home.ledger().into_os_string();
            beside.push(suffix);
            drop(std::fs::remove_file(beside));
        }
        std::fs::write(home.ledger(), bytes).unwrap();
    };

    // The older copy is whole in itself; what tells of it is kept beside it.
    put_back(&std::fs::read(&copy).unwrap());
    let mut process = home.start_with(&with_key);
    assert_eq!(process.agent().post("/notes", &[], "{\"n\":\"old\"}").status, 503);
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());

    // The newest is back: nothing is wrong.
    put_back(&newest);
    let mut process = home.start_with(&with_key);
    assert_eq!(process.agent().post("/notes", &[], "{\"n\":\"new\"}").status, 201);
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());

    put_back(&std::fs::read(&copy).unwrap());
    let mut process = home.start_with(&with_key);
    let log = home.log();
    assert!(log.contains("ledger_outdated") && log.contains("older copy"), "{log}");
    refused_until_acknowledged(&home, &process, &with_key, "older copy");
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());
    let (code, text) = home.run(&["ledger", "verify", with_key[0], with_key[1]]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("rows behind the head") && text.contains("are lost"), "{text}");
    assert_eq!(
        home.run(&["ledger", "verify", with_key[0], with_key[1], "--head", &head]).0,
        Some(65),
        "what is lost stays lost"
    );
}

#[test]
fn ops_3_6_a_database_whose_chain_is_broken_refuses_writes_until_it_is_acknowledged() {
    let upstream = upstream();
    let database = Database::new();
    let home = Home::on_database(POLICY, upstream.address, database.url());
    let keys = keys(&home);
    let with_key = ["--ledger-mac-key-file", &keys];
    filled(&home, &keys);
    filled(&home, &keys);
    database.query("UPDATE takeback.history SET body = 'x' WHERE chain = 2 AND place = 5");

    let mut process = home.start_with(&with_key);
    refused_until_acknowledged(&home, &process, &with_key, "not what was written");
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());

    let process = home.start_with(&with_key);
    assert_eq!(process.agent().post("/notes", &[], "{\"again\":true}").status, 201);
}

#[test]
fn m8_a_ledger_that_is_cut_off_under_a_running_sidecar_refuses_writes_and_reads_go_on() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let mut process = home.start();
    let mut agent = process.agent();
    for note in 0..20 {
        assert_eq!(agent.post("/notes", &[], &format!("{{\"n\":{note}}}")).status, 201);
    }
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());
    let process = home.start();
    let mut agent = process.agent();
    assert_eq!(agent.post("/notes", &[], "{\"n\":\"before\"}").status, 201);
    let whole = std::fs::read(home.ledger()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(home.ledger()).unwrap();
    let sent = upstream.count("POST");

    file.set_len(u64::try_from(whole.len() / 2).unwrap()).unwrap();

    let refused = agent.post("/notes", &[], "{\"n\":\"cut\"}");
    assert_eq!((refused.status, refused.code().as_str()), (503, "ledger_unavailable"));
    assert_eq!(upstream.count("POST"), sent, "a refusal means that nothing was sent");
    assert_eq!(agent.get("/notes").status, 201, "reads go on");
    let (status, text) = readiness(&process);
    assert!(status == 503 && text.contains("damaged"), "{status} {text}");
    assert!(home.log().contains("its file was cut off"), "{}", home.log());
    wait::until("the metric", || {
        let metrics = process.telemetry("/metrics").text();
        // Of the begin, or of a heartbeat: whichever came upon it first.
        let mut errors = metrics.lines().filter(|line| {
            line.starts_with("takeback_ledger_writes_total{") && line.contains("\"error\"")
        });
        errors.any(|line| !line.ends_with(" 0")).then_some(())
    });

    // What was cut off is put back in place: it goes on without a restart.
    std::os::unix::fs::FileExt::write_all_at(&file, &whole, 0).unwrap();
    wait::until("writes are taken", || {
        (agent.post("/notes", &[], "{\"n\":\"back\"}").status == 201).then_some(())
    });
}

#[test]
fn f15_rows_cut_off_at_the_end_are_missed_by_the_head_in_the_log() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let keys = keys(&home);
    filled(&home, &keys);
    let copy = home.folder().join("copy.db");
    std::fs::copy(home.ledger(), &copy).unwrap();
    let head = filled(&home, &keys);
    let flags = ["ledger", "verify", "--ledger-mac-key-file", &keys, "--head", &head];
    let (code, text) = home.run(&flags);
    assert_eq!(code, Some(0), "{text}");

    // The older copy is whole in itself.
    std::fs::copy(&copy, home.ledger()).unwrap();

    let (code, text) = home.run(&flags);
    assert_eq!(code, Some(65), "{text}");
    assert!(text.contains(&format!("no chain has, or had, the head {head}")), "{text}");
    assert_eq!(home.run(&flags[..4]).0, Some(0), "without the head nothing is missed");
}

#[test]
fn the_length_of_the_chain_is_a_metric_and_a_crash_leaves_it_whole() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let keys = keys(&home);
    let mut process = home.start_with(&["--ledger-mac-key-file", &keys]);
    let metric = || process.telemetry("/metrics").text();
    wait::until("the metric", || metric().contains("takeback_ledger_chain_length 1").then_some(()));
    assert_eq!(process.agent().post("/notes", &[], "{}").status, 201);
    process.kill();

    let mut process = home.start_with(&["--ledger-mac-key-file", &keys]);
    assert_eq!(process.agent().post("/notes", &[], "{\"n\":2}").status, 201);
    process.kill();

    let (code, text) = home.run(&["ledger", "verify", "--ledger-mac-key-file", &keys]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn f15_a_database_has_a_chain_for_each_sidecar_and_a_changed_row_is_named() {
    let upstream = upstream();
    let database = Database::new();
    let home = Home::on_database(POLICY, upstream.address, database.url());
    let keys = keys(&home);
    let first = filled(&home, &keys);
    let second = filled(&home, &keys);
    let flags = ["--head", &first, "--head", &second, "--ledger-mac-key-file", &keys];
    let verify = || home.run(&[&["ledger", "verify"], &flags[..]].concat());

    let (code, text) = verify();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("chain 2: 11 rows") && text.contains("22 rows fit"), "{text}");

    database.query("UPDATE takeback.history SET body = 'x' WHERE chain = 2 AND place = 5");
    let (code, text) = verify();
    assert_eq!(code, Some(65), "{text}");
    let seq = database.query("SELECT seq FROM takeback.history WHERE chain = 2 AND place = 5");
    assert!(text.contains(&format!("row {} of entry", seq[0])), "{text}");

    database.query("DELETE FROM takeback.history WHERE chain = 2");
    let (code, text) = verify();
    assert_eq!(code, Some(65), "{text}");
}

#[test]
fn a_key_file_that_holds_no_key_is_fatal_and_a_key_is_never_shown() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let path = home.folder().join("keys");
    std::fs::write(&path, "s3cret\n").unwrap();
    let flags = ["--ledger-mac-key-file", path.to_str().unwrap()];

    assert!(home.try_start_with(&flags).is_none());

    let log = home.log();
    assert!(log.contains("line 1 is shorter than 32 characters"), "{log}");
    assert!(!log.contains("s3cret"));
}

/// An accepted note; its entry.
fn note(home: &Home, process: &crate::support::process::Process, key: &str) -> String {
    let headers = [("idempotency-key", key)];
    let answer = process.agent().post("/notes", &headers, "{\"name\":\"ann\"}");
    assert_eq!(answer.status, 201);
    let entry = answer.report()["entry"].as_str().unwrap().to_owned();
    wait::until("the finish", || {
        let sql = format!("SELECT state FROM entries WHERE entry = '{entry}'");
        (home.query(&sql) == ["accepted"]).then_some(())
    });
    entry
}

#[test]
fn a_redacted_answer_is_not_given_to_a_repeat_which_is_told_so() {
    let upstream = Upstream::start(|_| Act::json(201, r#"{"id":100,"name":"c4nary"}"#));
    let home = Home::new(POLICY, upstream.address);
    let keys = keys(&home);
    let flags = ["--ledger-mac-key-file", keys.as_str()];
    let mut process = home.start_with(&flags);
    let entry = note(&home, &process, "k-1");
    let redact = |more: &[&str]| home.run(&[&["ledger", "redact", &entry], more].concat());

    let (code, text) = redact(&["/answer/body/nobody", "--why", "asked for"]);
    assert_eq!(code, Some(65), "{text}");
    let (code, text) = redact(&["/principal", "--why", "asked for"]);
    assert_eq!(code, Some(64), "{text}");
    let (code, text) = redact(&["/answer/body/name", "/undo", "--why", "asked for"]);
    assert_eq!(code, Some(0), "{text}");

    let again = process.agent().post("/notes", &[("idempotency-key", "k-1")], "{\"name\":\"ann\"}");
    assert_eq!((again.status, again.code().as_str()), (409, "answer_not_kept"));
    assert!(again.text().contains("was redacted by an operator"), "{}", again.text());
    assert_eq!(again.report()["undo"], Value::Null);
    assert_eq!(again.report()["undo_unavailable"], "it was redacted");
    assert_eq!(upstream.count("POST"), 1, "no second effect");

    let (_, shown) = home.run(&["ledger", "show", &entry, "--format", "json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["removed"], "redacted");
    let step = shown["history"].as_array().unwrap().last().unwrap();
    assert_eq!((&step["noted"], &step["why"]), (&"redaction".into(), &"asked for".into()));
    assert!(step["who"].as_str().unwrap().starts_with("uid"), "{step}");
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());
    let (code, text) = home.run(&[&["ledger", "verify"], &flags[..]].concat());
    assert_eq!(code, Some(0), "{text}");
    let file = std::fs::read(home.ledger()).unwrap();
    assert!(!file.windows(6).any(|window| window == b"c4nary"), "it is overwritten in the file");
    assert!(!home.log().contains("c4nary"));
}

#[test]
fn a_repeat_under_a_key_whose_answer_is_older_than_what_is_kept_has_no_second_effect() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let entry = note(&home, &process, "k-1");
    drop(process);
    // Two days ago.
    change(
        &home,
        "UPDATE history SET at_ms = at_ms - 172800000; \
         UPDATE entry SET began_ms = began_ms - 172800000, attempted_ms = attempted_ms - 172800000, \
         finished_ms = finished_ms - 172800000; DELETE FROM meta WHERE name LIKE 'chain_%'; \
         UPDATE history SET seal = NULL",
    );
    // It no longer has what was written here last.
    std::fs::remove_file(home.folder().join("data/ledger.db.lock")).unwrap();

    let process = home.start_with(&["--ledger-retention", "1d"]);

    let removed = format!(
        "SELECT removed || '' FROM entry WHERE lower(hex(id)) = replace('{entry}', '-', '')"
    );
    wait::until("the removal", || (home.query(&removed) == ["2"]).then_some(()));
    let again = process.agent().post("/notes", &[("idempotency-key", "k-1")], "{\"name\":\"ann\"}");
    assert_eq!((again.status, again.code().as_str()), (409, "answer_not_kept"));
    assert!(again.text().contains("older than what the ledger keeps"), "{}", again.text());
    assert_eq!(again.report()["entry"], entry.as_str());
    assert_eq!(upstream.count("POST"), 1, "no second effect");
    let (code, text) = home.run(&["ledger", "verify"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_retention_that_is_no_time_is_fatal() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    for wrong in ["30", "30m", "0h", "d", "-1d", "1d2h"] {
        let flag = format!("--ledger-retention={wrong}");
        assert!(home.try_start_with(&[&flag]).is_none(), "{wrong}");
        assert!(home.log().contains("such as 30d or 72h"), "{}", home.log());
    }
}

const SENSITIVE: &str = r#"
version: 1
operations:
  people.get:
    match: { http: "GET /people/{name}" }
    effect: { class: read }
  people.update:
    match: { http: "PUT /people/{name}" }
    effect:
      class: reversible
      kind: update
      inverse: { operation: people.restore, arguments: { path.id: response.id } }
      lookup: { operation: people.get, by: id, arguments: { path.name: request.path.name } }
    sensitive: true
  people.restore:
    match: { http: "POST /versions/{id}" }
    effect: { class: irreversible, kind: update }
"#;

#[test]
fn a_sensitive_operation_keeps_no_value_of_its_request_and_no_answer() {
    let upstream = Upstream::start(|received| match received.target.as_str() {
        "/people/c4nary" => Act::json(200, r#"{"id":100,"secret":"c4nary"}"#),
        _ => Act::Close,
    });
    let home = Home::new(SENSITIVE, upstream.address);
    let mut process = home.start();
    let mut agent = process.agent();
    let put = |agent: &mut crate::support::Agent| {
        let headers = [("idempotency-key", "k-1")];
        agent.call("PUT", "/people/c4nary", &headers, "{\"secret\":\"c4nary\"}")
    };
    let first = put(&mut agent);
    assert_eq!(first.status, 200);
    // What the policy takes out of the answer for the undo is kept: without it there is none.
    assert_eq!(first.report()["undo"]["http"]["path"], "/versions/100");

    let again = put(&mut agent);
    assert_eq!((again.status, again.code().as_str()), (409, "answer_not_kept"));
    assert!(again.text().contains("of a kind that is not kept"), "{}", again.text());
    assert_eq!(again.report()["undo"]["http"]["path"], "/versions/100");
    assert_eq!(upstream.count("PUT"), 1, "no second effect");
    let headers = [("idempotency-key", "k-2")];
    agent.call("PUT", "/people/c4nary-lost", &headers, "{\"secret\":\"c4nary\"}");

    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());
    assert_eq!(home.query("SELECT DISTINCT target FROM entries"), ["PUT /people/{name}"]);
    let file = std::fs::read(home.ledger()).unwrap();
    assert!(!file.windows(6).any(|window| window == b"c4nary"), "no value is in the file");
    assert!(!home.log().contains("c4nary"));
}

#[test]
fn an_answer_that_repeats_what_is_sensitive_is_not_kept() {
    let upstream = Upstream::start(|received| {
        let answer = match received.text().contains("quiet") {
            true => r#"{"id":1}"#.to_owned(),
            false => format!(r#"{{"id":1,"you_said":{}}}"#, received.text()),
        };
        Act::json(201, &answer)
    });
    let policy = "version: 1\noperations:\n  people.add:\n    match: { http: \"POST /people\" }\n    \
                  effect: { class: irreversible, kind: create }\n    confirm: caller\n    \
                  sensitive: [/body/password, /body/cards/0/number]\n";
    let home = Home::new(policy, upstream.address);
    let mut process = home.start();
    let mut agent = process.agent();
    let mut add = |key: &str, body: &str| {
        agent.post("/people", &[("idempotency-key", key), ("effect-confirm", "true")], body)
    };
    for (key, body, is_kept) in [
        ("k-1", r#"{"password":"c4n\u0061ry"}"#, false),
        ("k-2", r#"{"cards":[{"number":4111111111111111}]}"#, false),
        ("k-3", r#"{"password":"c4nary","mode":"quiet"}"#, true),
        ("k-4", r#"{"name":"jane"}"#, true),
    ] {
        assert_eq!(add(key, body).status, 201);
        let again = add(key, body);
        assert_eq!(again.status, if is_kept { 201 } else { 409 }, "{body}: {}", again.text());
        assert!(is_kept || again.code() == "answer_not_kept");
    }
    assert_eq!(upstream.count("POST"), 4);

    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());
    let file = std::fs::read(home.ledger()).unwrap();
    for value in [b"c4nary".as_slice(), b"c4n\\u0061ry", b"4111111111111111"] {
        assert!(!file.windows(value.len()).any(|window| window == value));
    }
}
