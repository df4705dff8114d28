//! A wall clock that jumps under a real process, and between two of them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::process::{Home, Process};
use crate::support::{Act, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.create:
    match: { http: "POST /things" }
    effect: { class: irreversible, kind: create }
  holds.create:
    match: { http: "POST /holds" }
    effect:
      class: reversible
      kind: create
      inverse:
        operation: holds.delete
        arguments: { path.id: response.id }
        deadline: { within_ms: 1800000 }
  holds.delete:
    match: { http: "DELETE /holds/{id}" }
    effect: { class: irreversible, kind: delete }
"#;

const TASK: (&str, &str) = ("effect-task", "t1");

/// The clock of a home's processes.
struct WallClock {
    library: PathBuf,
    off: PathBuf,
}

impl WallClock {
    fn new(home: &Home) -> Self {
        let library = home.folder().join("wall_clock.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/wall_clock.c");
        // The compiler that links every Rust program here.
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
        assert!(compiler.status().unwrap().success());
        let clock = Self { library, off: home.folder().join("off") };
        clock.set(0);
        clock
    }

    /// Sets it off from the machine's clock, in seconds.
    fn set(&self, seconds: i64) {
        // Whole, so that none reads the half of it.
        let next = self.off.with_extension("next");
        std::fs::write(&next, seconds.to_string()).unwrap();
        std::fs::rename(&next, &self.off).unwrap();
    }

    fn start(&self, home: &Home) -> Process {
        home.start_env(&[
            ("LD_PRELOAD", self.library.to_str().unwrap()),
            ("WALL_CLOCK_OFF", self.off.to_str().unwrap()),
        ])
    }
}

/// What the plan says of the only hold.
fn standing(home: &Home) -> String {
    let (status, plan) = home.admin("GET", "/api/v1/undo?task=t1");
    assert_eq!(status, 200, "{plan}");
    plan["entries"][0]["standing"].as_str().unwrap().to_owned()
}

/// No step of the history is of a time before the one before it.
fn goes_on(home: &Home) {
    let back = "SELECT count(*) || '' FROM history h JOIN history p ON p.seq = h.seq - 1 \
                WHERE h.at_ms < p.at_ms";
    assert_eq!(home.query(back), ["0"]);
}

#[test]
fn f14_a_clock_that_jumps_lengthens_no_token_and_no_deadline_and_makes_no_step_older() {
    let upstream = Upstream::start(|_| Act::json(201, r#"{"id":7}"#));
    let home = Home::new(POLICY, upstream.address);
    let clock = WallClock::new(&home);
    let mut process = clock.start(&home);
    let mut agent = process.agent();
    let token = agent.post("/things", &[], "{}").token();
    assert_eq!(agent.post("/holds", &[TASK], "{}").status, 201);
    wait::until("the entry", || (standing(&home) == "available").then_some(()));

    clock.set(3600);
    let late = agent.post("/things", &[("effect-confirm", &token)], "{}");
    assert_eq!(late.status, 428);
    assert_eq!(late.json()["error"]["details"]["mismatch"], "expired");
    assert_eq!(standing(&home), "expired");

    clock.set(-7200);
    let late = agent.post("/things", &[("effect-confirm", &token)], "{}");
    assert_eq!(late.json()["error"]["details"]["mismatch"], "expired", "time does not go back");
    assert_eq!(standing(&home), "expired");
    let other = r#"{"n":1}"#;
    let fresh = agent.post("/things", &[], other).token();
    assert_eq!(agent.post("/things", &[("effect-confirm", &fresh)], other).status, 201);
    goes_on(&home);

    // Nor between two processes: the ledger knows what time it was.
    process.kill();
    let process = clock.start(&home);
    let mut agent = process.agent();
    let late = agent.post("/things", &[("effect-confirm", &token)], "{}");
    assert_eq!(late.json()["error"]["details"]["mismatch"], "expired");
    assert_eq!(agent.post("/holds", &[TASK], r#"{"n":2}"#).status, 201);
    goes_on(&home);
    let (status, plan) = home.admin("GET", "/api/v1/undo?task=t1");
    assert_eq!(status, 200);
    let entries = plan["entries"].as_array().unwrap();
    let standings: Vec<&Value> = entries.iter().map(|entry| &entry["standing"]).collect();
    assert_eq!(standings.last(), Some(&&Value::from("expired")), "{plan}");
}
