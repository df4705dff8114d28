use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use rustix::process::Signal;

use crate::support::process::{Home, Process};
use crate::support::{Act, Agent, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.get:
    match: { http: "GET /things" }
    effect: { class: read }
  things.create:
    match: { http: "POST /things" }
    effect:
      class: irreversible
      kind: create
      lookup: { operation: things.get, by: id, arguments: {} }
    confirm: caller
"#;

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
    let home = Home::new(POLICY, upstream.address);
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
    let home = Home::new(POLICY, upstream.address);
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
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    wait::until("ready", || (process.telemetry("/readyz").status == 200).then_some(()));

    let (status, health) = home.admin("GET", "/api/v1/health");

    assert_eq!(status, 200);
    assert_eq!(health["version"], env!("CARGO_PKG_VERSION"));
    for probe in ["startup", "ready", "live"] {
        assert_eq!(health[probe]["status"], "ok", "{health}");
    }
}
