use std::net::TcpStream;
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use rustix::process::Signal;

use crate::support::process::{Home, Process};
use crate::support::{Act, Agent, THINGS, Upstream, wait};

/// [`THINGS`], found by a lookup instead of a key.
fn policy() -> String {
    THINGS.replace(
        "idempotency: { type: header, name: Idempotency-Key }",
        "lookup: { operation: things.get, by: id, arguments: {} }",
    )
}

/// Answers the first write only when it is told to.
fn slow() -> (Upstream, Sender<()>) {
    let (go, hold) = channel();
    let hold = Mutex::new(Some(hold));
    let upstream = Upstream::start(move |received| {
        let held = (received.method == "POST").then(|| hold.lock().unwrap().take()).flatten();
        match held {
            Some(hold) => Act::After(hold, Box::new(Act::json(201, "{}"))),
            None => Act::json(201, "{}"),
        }
    });
    (upstream, go)
}

/// Sends a write and leaves its answer to be read.
fn begin_write(process: &Process, upstream: &Upstream) -> Agent {
    let mut agent = process.agent();
    let headers = [("content-type", "application/json"), ("effect-confirm", "true")];
    agent.send("POST", "/things", &headers, "{}");
    wait::until("dispatch", || (upstream.count("POST") == 1).then_some(()));
    agent
}

fn takeback(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_takeback")).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn until_not_ready(process: &Process) {
    wait::until("not ready", || (process.telemetry("/readyz").status == 503).then_some(()));
}

#[test]
fn the_drain_command_ends_calls_in_order_and_a_sigterm_after_it_cuts_nothing() {
    let (upstream, go) = slow();
    let home = Home::new(&policy(), upstream.address);
    let mut process = home.start();
    let mut agent = begin_write(&process, &upstream);
    let ledger = home.ledger();

    let (code, text) = home.run(&["drain", "--no-wait"]);
    assert_eq!((code, text.trim()), (Some(0), "draining"));
    until_not_ready(&process);
    let waiting =
        std::thread::spawn(move || takeback(&["drain", "--ledger", ledger.to_str().unwrap()]));
    // What a kubelet does after its drain hook.
    process.signal(Signal::TERM);
    assert!(process.is_running(), "a write in flight holds the end back");
    go.send(()).unwrap();

    assert_eq!(agent.answer("POST").status, 201);
    assert_eq!(process.wait().code(), Some(0));
    let (code, text) = waiting.join().unwrap();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(home.query("SELECT state FROM entries"), ["accepted"]);
    assert_eq!(home.run(&["drain"]).0, Some(69), "nobody is there any more");
}

#[test]
fn a_health_check_needs_no_shell_and_says_what_fails() {
    let (upstream, go) = slow();
    let home = Home::new(&policy(), upstream.address);
    let mut process = home.start();
    let address = process.telemetry.to_string();
    let check = |probe: &str| takeback(&["healthcheck", probe, "--telemetry-listen", &address]);
    wait::until("ready", || (check("ready").0 == Some(0)).then_some(()));
    assert_eq!(check("live"), (Some(0), String::new()));
    assert_eq!(check("startup"), (Some(0), String::new()));

    let mut agent = begin_write(&process, &upstream);
    process.signal(Signal::TERM);
    until_not_ready(&process);
    let (code, text) = check("ready");
    assert_eq!(code, Some(1));
    assert!(text.contains("draining: going away"), "{text}");
    assert_eq!(check("live").0, Some(0), "draining is no reason to be killed");

    go.send(()).unwrap();
    agent.answer("POST");
    process.wait();
    let (code, text) = check("live");
    assert_eq!(code, Some(1));
    assert!(text.contains("nothing answers"), "{text}");
}

#[test]
fn health_is_told_by_the_admin_api_too() {
    let (upstream, _go) = slow();
    let home = Home::new(&policy(), upstream.address);
    let process = home.start();
    wait::until("ready", || (process.telemetry("/readyz").status == 200).then_some(()));

    let (status, health) = home.admin("GET", "/api/v1/health");

    assert_eq!(status, 200);
    assert_eq!(health["version"], env!("CARGO_PKG_VERSION"));
    for probe in ["startup", "ready", "live"] {
        assert_eq!(health[probe]["status"], "ok", "{health}");
    }
}

/// Sends one write that nobody answers, and gives the connection.
fn cut_write(process: &Process, upstream: &Upstream, path: &str, body: &str) -> Agent {
    let before = upstream.count("POST");
    let mut agent = process.agent();
    let headers = [("content-type", "application/json"), ("effect-confirm", "true")];
    agent.send("POST", path, &headers, body);
    wait::until("dispatch", || (upstream.count("POST") > before).then_some(()));
    agent
}

#[test]
fn f4_a_write_that_the_end_cuts_is_answered_with_its_entry_and_its_lookup() {
    let (upstream, _go) = slow();
    let home = Home::new(&policy(), upstream.address);
    let mut process = home.start();
    let mut agent = cut_write(&process, &upstream, "/things", "{}");

    process.signal(Signal::TERM);
    until_not_ready(&process);
    process.signal(Signal::TERM);

    let answer = agent.answer("POST");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.code(), "outcome_unknown");
    let report = answer.report();
    assert_eq!(report["outcome"], "unknown");
    assert_eq!(report["lookup"]["operation"], "things.get");
    assert_eq!(process.wait().code(), Some(0));
    let entry = report["entry"].as_str().unwrap();
    let cause = format!("SELECT cause FROM entries WHERE entry = '{entry}' AND state = 'unknown'");
    assert_eq!(home.query(&cause), ["shutdown"]);
    assert!(answer.text().contains(entry), "{}", answer.text());
}

#[test]
fn f4_a_grace_of_one_second_ends_with_everything_recorded() {
    let (upstream, _go) = slow();
    let home = Home::new(&policy(), upstream.address);
    let mut process = home.start_set(&[("DRAIN_MIN_MS", "0"), ("DRAIN_GRACE_MS", "1000")]);
    let mut agent = cut_write(&process, &upstream, "/things", "{}");

    process.signal(Signal::TERM);

    assert_eq!(agent.answer("POST").code(), "outcome_unknown");
    assert_eq!(process.wait().code(), Some(0));
    assert_eq!(home.query("SELECT state || ' ' || cause FROM entries"), ["unknown shutdown"]);
    assert!(home.log().contains("drain_forced"), "{}", home.log());
}

#[test]
fn f4_streams_end_between_two_events_when_the_process_ends() {
    let event =
        "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\n";
    let holds: Mutex<Vec<Sender<()>>> = Mutex::new(Vec::new());
    let upstream = Upstream::start(move |_| {
        let (go, hold) = channel();
        holds.lock().unwrap().push(go);
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        Act::Waits(format!("{head}{event}").into_bytes(), hold, Vec::new())
    });
    let policy = format!(
        "{}  notes.create:\n    match: {{ tool: create_note }}\n    effect: {{ class: irreversible, kind: create }}\n    confirm: none\n",
        policy()
    );
    let home = Home::new(&policy, upstream.address);
    let mut process = home.start();
    let mut read = process.agent();
    read.send("GET", "/things", &[("accept", "text/event-stream")], "");
    let mut call = process.agent();
    let message = crate::support::mcp::call("7", "create_note", serde_json::json!({}), None);
    let headers =
        [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    call.send("POST", "/mcp", &headers, &message);
    wait::until("both", || (upstream.received().len() == 2).then_some(()));
    // What has not begun has no end between two events.
    assert!(!read.is_closed() && !call.is_closed(), "both streams have begun");

    process.signal(Signal::TERM);
    until_not_ready(&process);
    process.signal(Signal::TERM);

    // A chunked body that was cut is no answer at all.
    let read = read.answer("GET");
    assert_eq!((read.status, read.text().as_str()), (200, event));
    let called = call.answer("POST");
    let messages = crate::support::mcp::events(&called.text());
    let answer = messages.iter().find(|message| message["id"] == 7).expect("an answer of ours");
    assert_eq!(answer["result"]["_meta"]["effect"]["outcome"], "unknown");
    assert_eq!(process.wait().code(), Some(0));
    assert_eq!(home.query("SELECT state || ' ' || cause FROM entries"), ["unknown shutdown"]);
}

#[test]
fn settings_that_change_are_named_and_hold_from_the_next_start() {
    let (upstream, _go) = slow();
    let home = Home::new(&policy(), upstream.address);
    let file = home.folder().join("config.yaml");
    std::fs::write(&file, "limits: { inflight: 5 }\n").unwrap();
    let process = home.start_with(&["--config", file.to_str().unwrap()]);

    let (status, told) = home.admin("POST", "/api/v1/reload");
    assert_eq!((status, &told["restart_needed"]), (200, &serde_json::json!([])));
    // A flag wins over the file, so that one is no change.
    let changed = "listen: 127.0.0.1:1\nlimits: { inflight: 6 }\ndrain: { min_ms: 1 }\n";
    std::fs::write(&file, changed).unwrap();
    let (_, told) = home.admin("POST", "/api/v1/reload");
    assert_eq!(told["restart_needed"], serde_json::json!(["drain.min_ms", "limits.inflight"]));
    assert_eq!(told.get("next_start_fails"), None);

    process.signal(Signal::HUP);
    wait::until("the log", || {
        let needed = home.log().matches("restart_needed").count();
        (needed >= 2 && home.log().contains("drain.min_ms, limits.inflight")).then_some(())
    });
    std::fs::write(&file, "limits: { inflght: 6 }\n").unwrap();
    let (_, told) = home.admin("POST", "/api/v1/reload");
    assert_eq!(told["restart_needed"], serde_json::json!([]));
    let fault = told["next_start_fails"].as_str().unwrap();
    assert!(fault.contains("config.yaml:1:") && fault.contains("inflght"), "{fault}");
    assert!(home.log().contains("config_rejected"), "{}", home.log());
    assert!(home.log().contains("limits.inflight"), "{}", home.log());
}

#[test]
fn h1_f2_readiness_fails_with_the_first_write_that_the_ledger_refuses() {
    let (upstream, _go) = slow();
    let home = Home::new(&policy(), upstream.address);
    let process = home.start();
    wait::until("ready", || (process.telemetry("/readyz").status == 200).then_some(()));
    // What another program's write lock does to it.
    let lock = rusqlite::Connection::open(home.ledger()).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();

    let headers = [("content-type", "application/json"), ("effect-confirm", "true")];
    let refused = process.agent().call("POST", "/things", &headers, "{}");

    assert_eq!((refused.status, refused.code().as_str()), (503, "ledger_unavailable"));
    let ready = process.telemetry("/readyz");
    assert_eq!(ready.status, 503, "at once, and not with the next heartbeat");
    assert_eq!(ready.json()["checks"]["ledger"]["ok"], false);
    lock.execute_batch("ROLLBACK").unwrap();
    wait::until("ready again", || (process.telemetry("/readyz").status == 200).then_some(()));
    assert_eq!(upstream.count("POST"), 0);
}

#[test]
fn i6_calls_that_come_after_sigterm_are_served_for_the_minimum_and_a_signal_ends_it_well() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = Home::new(&policy(), upstream.address);
    let hour = "3600000";
    let mut process = home.start_set(&[("DRAIN_MIN_MS", hour), ("DRAIN_GRACE_MS", hour)]);

    process.signal(Signal::TERM);
    until_not_ready(&process);
    // An agent whose pod ends too goes on for a while.
    let headers = [("content-type", "application/json"), ("effect-confirm", "true")];
    for _ in 0..3 {
        let body = format!("{{\"n\":{}}}", upstream.count("POST"));
        assert_eq!(process.agent().call("POST", "/things", &headers, &body).status, 201);
    }
    process.signal(Signal::TERM);

    assert_eq!(process.wait().code(), Some(0));
    assert_eq!(home.query("SELECT state FROM entries"), ["accepted", "accepted", "accepted"]);
}

#[test]
fn idle_connections_leave_descriptors_for_probes_and_for_calls() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = Home::new(&policy(), upstream.address);
    let limited = ["bash", "-c", "ulimit -n 200; exec \"$@\"", "limited"];
    let process = home.start_under(&limited).expect("it starts with few descriptors");
    let mut early = process.agent();
    assert_eq!(early.get("/things").status, 201);

    let before = process.open_files();

    // More than there are descriptors; those that are not accepted wait in the kernel's queue.
    let idle: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(process.data).unwrap()).collect();
    wait::until("connections", || (process.open_files() >= before + 30).then_some(()));

    for probe in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(process.telemetry(probe).status, 200, "{probe}");
    }
    assert_eq!(early.post("/things", &[("effect-confirm", "true")], "{}").status, 201);
    let (status, reloaded) = home.admin("POST", "/api/v1/reload");
    assert_eq!(status, 200, "{reloaded}");
    let log = home.log();
    assert!(log.contains("the limit of open files allows fewer"), "{log}");
    drop(idle);
    assert_eq!(process.agent().get("/things").status, 201);
}
