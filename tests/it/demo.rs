//! `takeback demo` as a stranger runs it: the binary, its output, its ports.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::support::Agent;

const CHAPTERS: [&str; 8] = [
    "1. A read passes",
    "2. A reversible write names the call that undoes it",
    "3. A compensable write names the call that cancels it",
    "4. An irreversible write waits for a confirmation",
    "5. The same key twice is one effect",
    "6. An answer is lost",
    "7. The same over MCP",
    "8. The ledger has every write, and no read",
];

fn demo(temporary: &tempfile::TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_takeback"));
    command.arg("demo").env("TMPDIR", temporary.path()).stdin(Stdio::null());
    command
}

fn is_empty(directory: &tempfile::TempDir) -> bool {
    std::fs::read_dir(directory.path()).unwrap().next().is_none()
}

/// A child that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_guided_run_does_what_each_chapter_says_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();

    let ran = demo(&temporary).arg("--exit").output().unwrap();

    let text = String::from_utf8(ran.stdout).unwrap();
    assert!(
        ran.status.success(),
        "{}\n{text}\n{}",
        ran.status,
        String::from_utf8_lossy(&ran.stderr)
    );
    let chapters: Vec<&str> =
        text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).collect();
    assert_eq!(chapters, CHAPTERS);
    for seen in ["428 Precondition Required", "502 Bad Gateway", "409 Conflict", "undone"] {
        assert!(text.contains(seen), "{seen}\n{text}");
    }
    assert!(!text.contains('\x1b'), "no colours off a terminal");
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    assert!(is_empty(&temporary));
}

#[test]
fn it_stays_up_to_be_tried_until_it_is_interrupted() {
    let temporary = tempfile::tempdir().unwrap();
    let mut child = Running(demo(&temporary).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map(Result::unwrap);

    let mut tries = Vec::new();
    for line in lines.by_ref() {
        if line.contains("takeback ledger list --ledger ") {
            break;
        }
        tries.extend(line.trim().starts_with("curl ").then_some(line));
    }
    assert_eq!(tries.len(), 3, "three lines to try: {tries:?}");
    let address = tries[0].split("http://").nth(1).unwrap().split('/').next().unwrap();
    let mut agent = Agent::connect(address.parse().unwrap());
    let read = agent.call("GET", "/repos/octo/hello/issues", &[], "");
    assert_eq!(read.status, 200);
    let refused = agent.post("/repos/octo/hello/releases", &[], r#"{"tag_name":"v3.0"}"#);
    assert_eq!(refused.status, 428);

    let id = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();

    let rest: Vec<String> = lines.collect();
    assert_eq!(child.0.wait().unwrap().code(), Some(0), "{rest:?}");
    assert!(is_empty(&temporary));
}
