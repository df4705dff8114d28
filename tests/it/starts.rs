//! Starts on a ledger that was left in a bad way: full of what is begun, or with no room.

use rustix::process::Signal;
use takeback::contract::class::{Class, Kind};
use takeback::contract::key::{Digest, EntryId, Key, OperationId};
use takeback::ledger::{Begin, Begun, Embedded, Expected, Guard, Ledger, Look, Options, Principal};

use crate::support::process::{Home, Process};
use crate::support::{Act, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.create:
    match: { http: "POST /things" }
    effect: { class: irreversible, kind: create }
    confirm: none
"#;

/// Creates a thing; the status.
fn create(process: &Process, thing: &str) -> u16 {
    process.agent().post("/things", &[], &format!("{{\"thing\":\"{thing}\"}}")).status
}

/// Waits until the start is said to be over, which may be a moment after the port takes connections.
fn wait_started(process: &Process) {
    let is_over = || (process.telemetry("/startupz").status == 200).then_some(());
    wait::until("the start is over", is_over);
}

/// A begin of the call of a number.
fn begin(number: u64) -> Begin {
    let entry = EntryId::from_parts(1_764_489_600_000 + number, &[7; 10]);
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&number.to_be_bytes());
    Begin {
        ledger_id: Key::from_entry(entry),
        look: Look {
            principal: Principal { id: "agent".to_owned(), weak: true },
            key: None,
            digest: Digest(digest),
            mark: Digest(digest),
            operation: OperationId::new("things.create").unwrap(),
            staged: false,
        },
        expected: Expected::default(),
        entry,
        rerun: None,
        guard: Guard::Enforced,
        fingerprint: Digest([8; 32]),
        policy_revision: Digest([9; 32]),
        class: Class::Irreversible,
        kind: Kind::Create,
        transport: "http",
        target: "POST /things".to_owned(),
        things: Vec::new(),
        task: None,
        staged_for: None,
        key_sent: false,
        lookup: None,
        authorization: None,
        before: None,
        repeats: None,
        spend: None,
        now_ms: 1_764_489_600_000,
    }
}

#[test]
fn f19_ten_thousand_entries_that_were_begun_are_unknown_before_anything_is_served() {
    const ENTRIES: u64 = 10_000;
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = Home::new(POLICY, upstream.address);
    let (store, _) = Embedded::open(&home.ledger(), Options::default(), 1).unwrap();
    let ledger = Ledger::Embedded(store);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut begins = tokio::task::JoinSet::new();
        for number in 0..ENTRIES {
            let ledger = ledger.clone();
            begins.spawn(async move { ledger.begin(begin(number)).await });
            // As many as may wait in line.
            if begins.len() == 512 {
                let begun = begins.join_next().await.unwrap().unwrap();
                assert_eq!(begun, Ok(Begun::Started { attempt: 1 }));
            }
        }
        begins.join_all().await;
        ledger.close().await;
    });
    drop(ledger);

    let process = home.start();

    let unknown = "SELECT count(*) || '' FROM entries WHERE state = 'unknown'";
    assert_eq!(home.query(unknown), [ENTRIES.to_string()]);
    wait_started(&process);
    assert!(home.log().contains("10000"), "it says how many: {}", home.log());
    assert_eq!(create(&process, "next"), 201);
    let (code, text) = home.run(&["ledger", "verify"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn h1_a_start_without_room_serves_reads_and_takes_writes_when_there_is_some() {
    let (go, hold) = std::sync::mpsc::channel::<()>();
    let hold = std::sync::Mutex::new(Some(hold));
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "POST" => match hold.lock().unwrap().take() {
            Some(hold) => Act::After(hold, Box::new(Act::json(201, "{}"))),
            None => Act::json(201, "{}"),
        },
        _ => Act::json(200, "[]"),
    });
    let home = Home::new(POLICY, upstream.address);
    let mut process = home.start();
    // Checkpointed, so that what a start reads is in the file. One that is ready hears signals.
    wait::until("it is ready", || (process.telemetry("/readyz").status == 200).then_some(()));
    process.signal(Signal::TERM);
    assert!(process.wait().success());
    let mut process = home.start();
    let data = process.data;
    let cut = std::thread::spawn(move || {
        let mut agent = crate::support::Agent::connect(data);
        agent.send(
            "POST",
            "/things",
            &[("content-type", "application/json")],
            "{\"thing\":\"cut\"}",
        );
        agent
    });
    wait::until("dispatch", || (upstream.count("POST") == 1).then_some(()));
    process.kill();
    drop((cut.join(), go));
    let strace = |when: &str| {
        let inject = format!("inject=pwrite64:error=ENOSPC:when={when}");
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e"]
            .map(str::to_owned)
            .into_iter()
            .chain([inject])
            .collect::<Vec<_>>()
    };
    let start = |when: &str| {
        let wrapper = strace(when);
        home.start_under(&wrapper.iter().map(String::as_str).collect::<Vec<_>>())
    };

    // There is an entry to make unknown, and no room for that.
    let mut process = start("1+").expect("it serves");
    assert_eq!(create(&process, "refused"), 503);
    assert_eq!(process.agent().get("/things").status, 200, "reads are served");
    wait_started(&process);
    let ready = process.telemetry("/readyz");
    assert!(ready.status == 503 && ready.text().contains("full"), "{}", ready.text());
    assert!(home.log().contains("volume is full"), "{}", home.log());
    assert_eq!(home.query("SELECT state FROM entries"), ["begun"]);
    process.kill();

    let process = start("1..3").expect("it serves");
    wait::until("there is room", || (create(&process, "taken") == 201).then_some(()));
    assert_eq!(home.query("SELECT state FROM entries WHERE cause = 'crash'"), ["unknown"]);
    wait::until("it is ready", || (process.telemetry("/readyz").status == 200).then_some(()));
    assert_eq!(create(&process, "cut"), 409, "what was under way is known");
    assert_eq!(upstream.count("POST"), 2, "what was refused was not sent");
}

#[test]
fn a_new_ledger_that_cannot_be_made_is_an_end_that_says_so() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = Home::new(POLICY, upstream.address);
    let inject = "inject=pwrite64:error=ENOSPC:when=1+";
    let strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", inject];

    assert!(home.start_under(&strace).is_none());

    let log = home.log();
    assert!(log.contains("make room on the ledger's volume"), "{log}");

    // Nothing of it is left, that would be taken for a ledger that was lost.
    let process = home.start();
    assert_eq!(create(&process, "first"), 201);
}

#[test]
fn a_start_on_a_file_that_another_program_holds_says_so() {
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let home = Home::new(POLICY, upstream.address);
    drop(home.start());
    let holder = rusqlite::Connection::open(home.ledger()).unwrap();
    holder.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();

    let (code, text) = home.fails_configured("");

    assert_eq!(code, Some(75), "{text}");
    assert!(text.contains("another program holds it"), "{text}");
}
