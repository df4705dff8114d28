use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;

use rustix::process::Signal;
use serde_json::Value;
use takeback::pipeline::live::Live;
use takeback::policy;

use crate::support::agent::Answer;
use crate::support::process::{Home, Process};
use crate::support::{Act, Agent, Sidecar, Upstream, wait};

/// The one policy: compensable.
const ONE: &str = "version: 1
operations:
  notes.create:
    match: { http: \"POST /notes\" }
    effect:
      class: compensable
      kind: create
      compensate: { operation: notes.cancel, arguments: { id: response.id } }
  notes.cancel:
    match: { http: \"POST /notes/{id}/cancel\" }
    effect: { class: irreversible, kind: update }
";

/// The other: reversible.
const OTHER: &str = "version: 1
operations:
  notes.create:
    match: { http: \"POST /notes\" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: notes.delete, arguments: { id: response.id } }
  notes.delete:
    match: { http: \"DELETE /notes/{id}\" }
    effect: { class: irreversible, kind: delete }
";

const BROKEN: &str = "version: 1\noperations:\n  notes.create: [\n";

fn upstream() -> Upstream {
    Upstream::start(|_| Act::json(201, r#"{"id":7}"#))
}

/// A directory as the kubelet mounts a ConfigMap: its files are links through `..data`.
struct Mounted {
    path: PathBuf,
    count: AtomicU32,
}

impl Mounted {
    fn over(home: &Home, text: &str) -> Self {
        let path = home.policies();
        std::fs::remove_file(path.join("test.yaml")).unwrap();
        symlink("..data/test.yaml", path.join("test.yaml")).unwrap();
        let mounted = Self { path, count: AtomicU32::new(0) };
        mounted.swap(text);
        mounted
    }

    /// The kubelet's atomic writer, step for step: a new folder, a new link, one rename over the old
    /// link, and the old folder is removed.
    fn swap(&self, text: &str) {
        let name = format!("..{}", self.count.fetch_add(1, Ordering::Relaxed));
        let (data, new) = (self.path.join("..data"), self.path.join("..data_tmp"));
        std::fs::create_dir(self.path.join(&name)).unwrap();
        std::fs::write(self.path.join(&name).join("test.yaml"), text).unwrap();
        symlink(&name, &new).unwrap();
        let old = std::fs::read_link(&data).ok();
        std::fs::rename(&new, &data).unwrap();
        if let Some(old) = old {
            std::fs::remove_dir_all(self.path.join(old)).unwrap();
        }
    }
}

fn class(agent: &mut Agent, body: &str) -> String {
    agent.post("/notes", &[], body).report()["class"].as_str().unwrap().to_owned()
}

/// Waits until new calls have this class. Each call is another one, so that none is a repeat.
fn wait_class(process: &Process, wanted: &str) {
    let mut agent = process.agent();
    let mut count = 0;
    wait::until(wanted, || {
        count += 1;
        (class(&mut agent, &format!("{{\"{wanted}\":{count}}}")) == wanted).then_some(())
    });
}

fn metric(process: &Process, name: &str) -> f64 {
    let text = process.telemetry("/metrics").text();
    let line =
        text.lines().find(|line| line.strip_prefix(name).is_some_and(|r| r.starts_with(' ')));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .rsplit(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn events(home: &Home, event: &str) -> Vec<Value> {
    let log = home.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["event"] == event).collect()
}

#[test]
fn i1_a_link_that_is_swapped_twice_in_a_row_is_followed() {
    let upstream = upstream();
    let home = Home::new(ONE, upstream.address);
    let mounted = Mounted::over(&home, ONE);
    let process = home.start();
    wait_class(&process, "compensable");

    mounted.swap(OTHER);
    wait_class(&process, "reversible");
    mounted.swap(OTHER);
    mounted.swap(ONE);
    wait_class(&process, "compensable");

    let revisions: BTreeSet<String> =
        home.query("SELECT DISTINCT hex(policy_revision) FROM entry").into_iter().collect();
    assert_eq!(revisions.len(), 2, "each entry names the policy that it was made under");
}

#[test]
fn i2_a_file_that_is_deleted_and_made_again_is_read_and_the_old_policy_holds_meanwhile() {
    let upstream = upstream();
    let home = Home::new(ONE, upstream.address);
    let process = home.start();
    let file = home.policies().join("test.yaml");

    std::fs::remove_file(&file).unwrap();
    wait::until("the rejection", || {
        (metric(&process, "takeback_policy_last_reload_successful") == 0.0).then_some(())
    });
    assert_eq!(class(&mut process.agent(), "{}"), "compensable");
    let ready = process.telemetry("/readyz");
    assert_eq!(ready.status, 200);
    assert!(ready.text().contains("policy/empty"), "{}", ready.text());

    std::fs::write(&file, OTHER).unwrap();
    wait_class(&process, "reversible");
    assert!(!process.telemetry("/readyz").text().contains("note"));
}

#[test]
fn i3_a_syntax_error_keeps_the_last_good_policy_and_the_corrected_file_is_read() {
    let upstream = upstream();
    let home = Home::new(ONE, upstream.address);
    let process = home.start();
    let file = home.policies().join("test.yaml");
    let rejected = "takeback_policy_reloads_total{result=\"rejected\"}";
    let before = metric(&process, "takeback_policy_last_reload_success_timestamp_seconds");
    assert!(before > 0.0);
    assert_eq!(metric(&process, rejected), 0.0);

    std::fs::write(&file, BROKEN).unwrap();
    wait::until("the rejection", || (metric(&process, rejected) >= 1.0).then_some(()));
    assert_eq!(metric(&process, "takeback_policy_last_reload_successful"), 0.0);
    assert_eq!(class(&mut process.agent(), "{}"), "compensable");
    let ready = process.telemetry("/readyz");
    assert_eq!(ready.status, 200, "the last good policy is in force");
    let policy = &ready.json()["checks"]["policy"];
    assert_eq!(policy["ok"], true);
    assert!(policy["note"].as_str().unwrap().contains("test.yaml:"), "{policy}");
    let told = events(&home, "policy_rejected");
    assert!(told.iter().any(|line| {
        line["at"]
            .as_str()
            .is_some_and(|at| at.starts_with("test.yaml:") && line["level"] == "ERROR")
    }));
    let (status, shown) = home.admin("GET", "/api/v1/policy");
    assert_eq!(status, 200);
    assert_eq!(shown["rejected"]["findings"][0]["file"], "test.yaml");
    let (status, refused) = home.admin("POST", "/api/v1/reload");
    assert_eq!((status, &refused["error"]["code"]), (422, &Value::from("policy_rejected")));
    assert_eq!(class(&mut process.agent(), "{\"a\":1}"), "compensable");

    std::fs::write(&file, OTHER).unwrap();
    wait_class(&process, "reversible");
    assert_eq!(metric(&process, "takeback_policy_last_reload_successful"), 1.0);
    let (_, shown) = home.admin("GET", "/api/v1/policy");
    assert!(shown["rejected"].is_null());
    let series = "takeback_requests_total{transport=\"http\",operation=\"notes.delete\",\
                  class=\"irreversible\",decision=\"forwarded\"}";
    assert_eq!(metric(&process, series), 0.0, "counters of new operations start at 0");
}

#[test]
fn a_rejected_file_that_is_put_back_leaves_no_alarm() {
    let upstream = upstream();
    let home = Home::new(ONE, upstream.address);
    let process = home.start();
    let file = home.policies().join("test.yaml");
    std::fs::write(&file, BROKEN).unwrap();
    wait::until("the rejection", || {
        (metric(&process, "takeback_policy_last_reload_successful") == 0.0).then_some(())
    });

    std::fs::write(&file, ONE).unwrap();

    wait::until("the end of the alarm", || {
        (metric(&process, "takeback_policy_last_reload_successful") == 1.0).then_some(())
    });
    assert!(!process.telemetry("/readyz").text().contains("note"));
}

#[test]
fn a_weaker_policy_is_applied_at_once_when_asked_and_named() {
    let upstream = upstream();
    let home = Home::new(ONE, upstream.address);
    let mut process = home.start();
    let file = home.policies().join("test.yaml");
    let (status, same) = home.admin("POST", "/api/v1/reload");
    assert_eq!((status, &same["result"]), (200, &Value::from("unchanged")));

    std::fs::write(&file, OTHER).unwrap();
    let (status, told) = home.admin("POST", "/api/v1/reload");

    // The poll may have been faster.
    assert_eq!(status, 200, "{told}");
    assert_eq!(class(&mut process.agent(), "{}"), "reversible");
    let weakened = events(&home, "policy_weakened");
    assert_eq!(weakened.len(), 1, "{}", home.log());
    assert_eq!(weakened[0]["level"], "WARN");
    assert!(weakened[0]["operations"].as_str().unwrap().contains("notes.create"));
    assert_eq!(metric(&process, "takeback_policy_reloads_total{result=\"weakened\"}"), 1.0);
    let revision = told["revision"].as_str().unwrap();
    assert_eq!(home.admin("GET", "/api/v1/policy").1["revision"], revision);
    let info = format!("takeback_policy_info{{revision=\"{}\"}}", &revision[..12]);
    assert_eq!(metric(&process, &info), 1.0);

    std::fs::write(&file, ONE).unwrap();
    process.signal(Signal::HUP);
    wait_class(&process, "compensable");
    assert!(process.is_running());
    assert_eq!(events(&home, "policy_applied").len(), 3, "{}", home.log());
}

#[test]
fn a_degraded_operation_is_irreversible_without_follow_ups_and_says_so() {
    let upstream = upstream();
    let home = Home::new(ONE, upstream.address);
    let process = home.start();
    let mut agent = process.agent();
    let undo = agent.post("/notes", &[], "{}").report()["undo"].clone();
    assert_eq!(undo["kind"], "compensate");

    let faulty = ONE.replace("{ id: response.id }", "{ id: response.id, none: response.id }");
    std::fs::write(home.policies().join("test.yaml"), faulty).unwrap();
    let (status, told) = home.admin("POST", "/api/v1/reload");

    assert_eq!(status, 200, "{told}");
    let refused = agent.post("/notes", &[], r#"{"a":1}"#);
    assert_eq!((refused.status, refused.code()), (428, "confirmation_required".to_owned()));
    let token = refused.token();
    let done = agent.post("/notes", &[("effect-confirm", &token)], r#"{"a":1}"#);
    assert_eq!(done.status, 201);
    assert_eq!(done.report()["class"], "irreversible");
    assert_eq!(done.report()["operation"], "notes.create", "never dropped to undeclared");
    assert!(done.report()["undo"].is_null());
    let (_, shown) = home.admin("GET", "/api/v1/policy");
    let notes = shown["operations"][0]["notes"].to_string();
    assert!(notes.contains("test.yaml:8:") && notes.contains("effect/mapping_unknown_argument"));
    let logged = events(&home, "operation_degraded");
    assert_eq!(logged.len(), 1);
    assert_eq!(logged[0]["operation"], "notes.create");
    let checked = takeback(&["check", home.policies().to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(text(&checked).contains("note: notes.create: served as irreversible"));
}

#[test]
fn a_sidecar_that_is_strict_rejects_what_it_would_serve_degraded() {
    let upstream = upstream();
    let home = Home::new(ONE, upstream.address);
    let process = home.start_with(&["--strict"]);
    let faulty = ONE.replace("{ id: response.id }", "{ id: response.id, none: response.id }");
    std::fs::write(home.policies().join("test.yaml"), faulty).unwrap();

    let (status, told) = home.admin("POST", "/api/v1/reload");

    assert_eq!(status, 422, "{told}");
    assert_eq!(class(&mut process.agent(), "{}"), "compensable");
}

/// One call's answer, as far as it tells the two policies apart.
fn judge(report: &Value) -> &'static str {
    let class = report["class"].as_str().unwrap();
    let undo = (report["undo"]["kind"].as_str(), report["undo"]["operation"].as_str());
    match (class, undo) {
        ("compensable", (Some("compensate"), Some("notes.cancel"))) => "compensable",
        ("reversible", (Some("inverse"), Some("notes.delete"))) => "reversible",
        _ => panic!("a mixture of two policies: {report}"),
    }
}

#[test]
fn f11_i1_a_thousand_swaps_under_load_lose_no_call_and_mix_none() {
    const SWAPS: u32 = 1_000;
    let upstream = upstream();
    let home = Home::new(ONE, upstream.address);
    let mounted = Mounted::over(&home, ONE);
    let process = home.start();
    let revision = |text: &str| {
        let files = vec![("test.yaml".to_owned(), text.to_owned())];
        policy::compile(files).snapshot.unwrap().revision().to_hex()
    };
    let is_over = AtomicBool::new(false);

    let (answered, refused) = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..3)
            .map(|caller| {
                let (is_over, process) = (&is_over, &process);
                scope.spawn(move || {
                    let mut agent = process.agent();
                    let (mut answered, mut refused) = (Vec::new(), 0_usize);
                    let mut count = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        count += 1;
                        let answer = agent.post("/notes", &[], &format!("[{caller},{count}]"));
                        let report = answer.report();
                        if answer.status == 201 {
                            let entry = report["entry"].as_str().unwrap().to_owned();
                            answered.push((entry, judge(&report)));
                        } else {
                            // Held while the policy changed: refused, and nothing was sent.
                            assert_eq!(answer.code(), "policy_changed");
                            refused += 1;
                        }
                    }
                    (answered, refused)
                })
            })
            .collect();
        let mut swaps = 0;
        while swaps < SWAPS {
            // Bursts of one to three, then what is there last is read.
            for _ in 0..=swaps % 3 {
                swaps += 1;
                mounted.swap(if swaps % 2 == 0 { ONE } else { OTHER });
            }
            let (status, told) = home.admin("POST", "/api/v1/reload");
            assert_eq!(status, 200, "{told}");
            let right = if swaps % 2 == 0 { ONE } else { OTHER };
            assert_eq!(told["revision"], revision(right));
        }
        is_over.store(true, Ordering::Relaxed);
        let mut all = (Vec::new(), 0);
        for caller in callers {
            let (answered, refused) = caller.join().unwrap();
            all.0.extend(answered);
            all.1 += refused;
        }
        all
    });

    let classes: BTreeSet<&str> = answered.iter().map(|(_, class)| *class).collect();
    assert_eq!(classes.len(), 2, "both policies answered");
    assert_eq!(upstream.count("POST"), answered.len(), "refused: {refused}");
    wait::until("every entry", || {
        let open = home.query("SELECT entry FROM entries WHERE state <> 'accepted'");
        open.is_empty().then_some(())
    });
    let recorded: BTreeSet<String> = home
        .query(
            "SELECT entry || ' ' || e.class || ' ' || lower(hex(policy_revision)) \
             FROM entry e JOIN entries USING (number)",
        )
        .into_iter()
        .collect();
    let expected: BTreeSet<String> = answered
        .iter()
        .map(|(entry, class)| {
            let text = if *class == "compensable" { ONE } else { OTHER };
            format!("{entry} {class} {}", revision(text))
        })
        .collect();
    assert_eq!(recorded.len(), expected.len());
    assert!(recorded == expected, "each entry has the class of the revision that it names");
}

fn swap(sidecar: &Sidecar, text: &str) {
    let compiled = policy::compile(vec![("test.yaml".to_owned(), text.to_owned())]);
    let live = Live::new(compiled.snapshot.unwrap(), &sidecar.shared.metrics);
    sidecar.shared.policies.swap(live);
}

#[test]
fn a_call_in_flight_keeps_the_policy_that_it_began_with() {
    let (go, wait) = mpsc::channel();
    let wait = std::sync::Mutex::new(Some(wait));
    let upstream = Upstream::start(move |_| match wait.lock().unwrap().take() {
        Some(wait) => Act::After(wait, Box::new(Act::json(201, r#"{"id":7}"#))),
        None => Act::json(201, r#"{"id":7}"#),
    });
    let sidecar = Sidecar::start(ONE, &upstream);
    let mut agent = sidecar.agent();
    agent.send("POST", "/notes", &[("content-type", "application/json")], "{}");
    wait::until("the dispatch", || (upstream.count("POST") == 1).then_some(()));

    swap(&sidecar, OTHER);
    assert_eq!(judge(&sidecar.agent().post("/notes", &[], r#"{"a":1}"#).report()), "reversible");
    go.send(()).unwrap();

    assert_eq!(judge(&agent.answer("POST").report()), "compensable");
}

/// Sends all of a call but its last byte, changes the policy, and sends the rest.
fn held(sidecar: &Sidecar, path: &str, text: &str) -> (u16, String) {
    let answer = held_with(sidecar, path, "", text);
    let code = if answer.status < 300 { String::new() } else { answer.code() };
    (answer.status, code)
}

/// As [`held`], with more header lines.
fn held_with(sidecar: &Sidecar, path: &str, more: &str, text: &str) -> Answer {
    let mut agent = sidecar.agent();
    let head =
        "host: a\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 2";
    agent.raw(format!("POST {path} HTTP/1.1\r\n{more}{head}\r\n\r\n").as_bytes());
    // It is asked for the body only when its operation is known.
    assert_eq!(agent.head().unwrap().status, 100);
    agent.raw(b"{");
    swap(sidecar, text);
    agent.raw(b"}");
    agent.answer("POST")
}

#[test]
fn a_held_call_is_refused_if_its_operation_changed_and_goes_on_if_it_did_not() {
    let upstream = upstream();
    let sidecar = Sidecar::start(ONE, &upstream);

    assert_eq!(held(&sidecar, "/notes", OTHER), (503, "policy_changed".to_owned()));
    assert!(upstream.received().is_empty());
    assert!(sidecar.entries().is_empty());

    let more = format!("{OTHER}  more: {{ match: {{ tool: more }} }}\n");
    assert_eq!(
        held(&sidecar, "/notes", &more).0,
        201,
        "another operation is no change of this one"
    );
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn a_held_call_is_refused_if_it_is_another_operation_by_the_new_policy() {
    let upstream = upstream();
    let sidecar = Sidecar::start(ONE, &upstream);
    let variant = format!(
        "{ONE}  notes.try:\n    match: {{ http: \"POST /notes\", where: {{ request.body.a: {{ absent: \
         true }} }} }}\n    effect: {{ class: irreversible }}\n"
    );

    assert_eq!(held(&sidecar, "/notes", &variant).1, "policy_changed");
    assert!(upstream.received().is_empty());
}

#[test]
fn a_held_undeclared_call_is_refused_once_the_policy_refuses_such_calls() {
    let upstream = upstream();
    let sidecar = Sidecar::start(ONE, &upstream);
    let refusing = format!("{ONE}defaults: {{ undeclared: refuse }}\n");
    let confirmed = |path: &str, text: &str| {
        let token = held_with(&sidecar, path, "", ONE).token();
        held_with(&sidecar, path, &format!("effect-confirm: {token}\r\n"), text)
    };

    assert_eq!(confirmed("/unknown", ONE).status, 201);
    let refused = confirmed("/another", &refusing);

    assert_eq!((refused.status, refused.code().as_str()), (403, "undeclared_refused"));
    assert_eq!(upstream.received().len(), 1);
}

fn takeback(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_takeback")).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let all = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&all).into_owned()
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    directory
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn i4_misspelt_names_are_refused_with_place_and_the_nearest_name() {
    let directory = folder(&[(
        "a.yaml",
        "version: 1\noperatoins: {}\noperations:\n  a:\n    match: { tool: a }\n    confrim: human\n    \
         effect: { clas: read }\n",
    )]);

    let output = takeback(&["check", shown(directory.path())]);

    assert_eq!(output.status.code(), Some(1));
    let told = text(&output);
    let path = directory.path().join("a.yaml");
    for (place, help) in [("2:1", "operations"), ("6:5", "confirm"), ("7:15", "class")] {
        assert!(told.contains(&format!("{}:{place}\n", path.display())), "{place} in {told}");
        assert!(told.contains(&format!("did you mean `{help}`?")), "{help} in {told}");
    }
    assert!(told.contains("cannot be served"), "the whole file is refused: {told}");
}

#[test]
fn i5_doubled_names_are_refused() {
    let twice = "version: 1\noperations:\n  a:\n    match: { tool: a }\n    effect:\n      class: \
                 irreversible\n      class: read\n";
    let one = "version: 1\noperations: { a: { match: { tool: a } } }\n";
    for (files, place) in [
        (vec![("a.yaml", twice)], "a.yaml:7:7"),
        (vec![("a.yaml", one), ("b.yaml", one)], "b.yaml:2:15"),
    ] {
        let directory = folder(&files);
        let output = takeback(&["check", shown(directory.path())]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output).contains(place), "{}", text(&output));
    }
}

#[test]
fn check_walks_into_folders_and_each_is_a_policy_of_its_own() {
    let directory = folder(&[("a/x.yaml", ONE), ("b/x.yaml", OTHER), ("b/deep/notes.txt", "")]);
    let root = directory.path();

    let output = takeback(&["check", shown(root)]);

    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for name in ["a", "b"] {
        let line = format!("{}: 2 operations, 0 errors", root.join(name).display());
        assert!(text(&output).contains(&line), "{}", text(&output));
    }
    assert!(text(&output).contains("evidence of its writes, at best: 2 none"));
    let empty = folder(&[]);
    let output = takeback(&["check", shown(empty.path())]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("policy/empty"));
    assert_eq!(takeback(&["check"]).status.code(), Some(2));
    let sarif = takeback(&["check", shown(root), "--format", "sarif"]);
    let log: Value = serde_json::from_slice(&sarif.stdout).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let more = takeback(&["check", "--explain", "effect/operation_missing"]);
    assert_eq!(more.status.code(), Some(0));
    assert!(text(&more).len() > 60);
    assert_eq!(takeback(&["check", "--explain", "effect/nothing"]).status.code(), Some(2));
}

#[test]
fn diff_names_weakenings_first_and_ends_with_1_if_anything_changed() {
    let directory = folder(&[("old/a.yaml", ONE), ("new/a.yaml", OTHER), ("bad/a.yaml", BROKEN)]);
    let [old, new, bad] = ["old", "new", "bad"].map(|name| directory.path().join(name));

    let same = takeback(&["diff", shown(&old), shown(&old)]);
    let changed = takeback(&["diff", shown(&old), shown(&new)]);
    let lines = takeback(&["diff", shown(&old), shown(&new), "--format", "json"]);

    assert_eq!(same.status.code(), Some(0));
    assert_eq!(changed.status.code(), Some(1));
    let told = text(&changed);
    let first = told.lines().nth(1).unwrap();
    assert!(first.starts_with("weaker") && first.contains("notes.create"), "{told}");
    let first: Value = serde_json::from_str(text(&lines).lines().next().unwrap()).unwrap();
    assert_eq!(first["weaker"], true);
    assert_eq!(takeback(&["diff", shown(&old), shown(&bad)]).status.code(), Some(2));
}

#[test]
fn explain_tells_the_operation_its_class_and_its_undo() {
    let directory = folder(&[("a.yaml", ONE), ("body.json", "{}")]);
    std::fs::remove_file(directory.path().join("body.json")).unwrap();
    let policies = shown(directory.path());

    let http = takeback(&["explain", "POST", "/notes", "--policies", policies]);
    let json = takeback(&["explain", "POST", "/notes", "--policies", policies, "--format", "json"]);
    let tool = takeback(&["explain", "--tool", "t", "--policies", policies]);

    assert_eq!(http.status.code(), Some(0), "{}", text(&http));
    let told = text(&http);
    assert!(told.contains("operation     notes.create\n"), "{told}");
    assert!(told.contains("undo          compensate notes.cancel"), "{told}");
    let value: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(value["class"][0], "compensable");
    assert!(text(&tool).contains("_undeclared"));
    assert_eq!(takeback(&["explain", "POST", "/notes"]).status.code(), Some(64));
}

#[test]
fn import_writes_a_skeleton_that_check_reads_and_schema_is_json() {
    let openapi = r#"{"openapi":"3.0.0","paths":{
        "/notes":{"post":{"operationId":"notes/create"},"get":{"operationId":"notes/list"}},
        "/notes/{id}":{"delete":{"operationId":"notes/delete"}}}}"#;
    let tools = r#"{"tools":[{"name":"send","inputSchema":{"type":"object"}}]}"#;
    for (kind, name, catalog) in [("openapi", "api.json", openapi), ("tools", "tools.json", tools)]
    {
        let directory = folder(&[(name, catalog)]);
        let skeleton = takeback(&["import", kind, shown(&directory.path().join(name))]);
        assert_eq!(skeleton.status.code(), Some(0), "{}", text(&skeleton));
        assert!(!text(&skeleton).lines().any(|line| line.trim_start().starts_with("class:")));
        std::fs::write(directory.path().join("mine.yaml"), &skeleton.stdout).unwrap();
        let checked = takeback(&["check", shown(directory.path())]);
        assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
    }
    let schema = takeback(&["schema"]);
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    assert!(schema["properties"]["operations"].is_object());
}
