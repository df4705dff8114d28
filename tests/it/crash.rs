use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;

use crate::support::process::Home;
use crate::support::{Act, Agent, THINGS, Upstream, wait};

fn upstream() -> Upstream {
    Upstream::start(|_| Act::json(201, "{}"))
}

/// Sends one write; `None` if the sidecar died under it.
fn write(address: std::net::SocketAddr, key: &str) -> Option<u16> {
    let body = format!("{{\"k\":\"{key}\"}}");
    let call = std::panic::catch_unwind(|| {
        let mut agent = Agent::connect(address);
        let headers = [
            ("content-type", "application/json"),
            ("effect-confirm", "true"),
            ("idempotency-key", key),
        ];
        agent.send("POST", "/things", &headers, &body);
        agent.try_answer("POST").map(|answer| answer.status)
    });
    call.ok().flatten()
}

/// Everything that the upstream saw has an entry, and no key was seen twice.
fn assert_recorded_once(home: &Home, upstream: &Upstream) {
    let recorded: Vec<String> = home.query("SELECT ledger_id FROM entries");
    let mut seen: HashMap<String, usize> = HashMap::new();
    for received in upstream.received().iter().filter(|received| received.method == "POST") {
        let key = received.header("idempotency-key").expect("a key").to_owned();
        *seen.entry(key).or_default() += 1;
    }
    for (key, count) in seen {
        assert!(recorded.contains(&key), "{key} reached the upstream without an entry");
        assert_eq!(count, 1, "{key} reached the upstream twice");
    }
}

#[test]
fn f5_h3_kill_9_at_any_moment_leaves_no_effect_without_an_entry_and_no_second_effect() {
    let upstream = upstream();
    let home = Home::new(THINGS, upstream.address);
    let next = AtomicUsize::new(0);
    for round in 0..6 {
        let mut process = home.start();
        assert!(
            home.query("SELECT entry FROM entries WHERE state = 'begun'").is_empty(),
            "recovery settles what was begun"
        );
        let address = process.data;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let key = format!("key-{}", next.fetch_add(1, Ordering::Relaxed));
                        if write(address, &key).is_none() {
                            return;
                        }
                    }
                });
            }
            let goal = upstream.count("POST") + 5 + 7 * round;
            wait::until("writes", || (upstream.count("POST") >= goal).then_some(()));
            process.kill();
            stop.store(true, Ordering::Relaxed);
        });
        assert_recorded_once(&home, &upstream);
    }

    // Every key again, on a fresh process: what was done is replayed or refused, never done again.
    let process = home.start();
    let before = upstream.count("POST");
    let seen: Vec<String> = upstream
        .received()
        .iter()
        .filter_map(|received| received.header("idempotency-key").map(str::to_owned))
        .collect();
    for key in &seen {
        let status = write(process.data, key).unwrap();
        assert!([201, 409].contains(&status), "{key}: {status}");
    }
    assert_eq!(upstream.count("POST"), before);
}

#[test]
fn f1_a_death_at_each_durable_write_leaves_no_effect_without_an_entry() {
    let upstream = upstream();
    let home = Home::new(THINGS, upstream.address);
    drop(home.start());
    for nth in 1..=10 {
        let inject = format!("inject=fsync,fdatasync:signal=SIGKILL:when={nth}");
        let trace = [
            "strace",
            // The tracer is a grandchild: a kill hits the sidecar itself.
            "-D",
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "trace=fsync,fdatasync",
            "-e",
            &inject,
        ];
        if let Some(process) = home.start_under(&trace) {
            for index in 0..6 {
                if write(process.data, &format!("sync-{nth}-{index}")).is_none() {
                    break;
                }
            }
        }
        // A fresh process recovers what the dead one left.
        drop(home.start());
        assert_recorded_once(&home, &upstream);
        assert!(home.query("SELECT entry FROM entries WHERE state = 'begun'").is_empty());
    }
    assert!(upstream.count("POST") > 0, "some writes were made");
}

#[test]
fn f2_h1_a_disk_that_fails_refuses_writes_and_serves_reads() {
    let upstream = upstream();
    let home = Home::new(THINGS, upstream.address);
    drop(home.start());
    let inject = "inject=fsync,fdatasync:error=EIO:when=40+";
    let trace = [
        "strace",
        // The tracer is a grandchild: a kill hits the sidecar itself.
        "-D",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=fsync,fdatasync,pwrite64",
        "-e",
        inject,
    ];
    let process = home.start_under(&trace).expect("it starts while the disk still works");

    let mut index = 0;
    wait::until("the disk's fault", || {
        index += 1;
        (write(process.data, &format!("eio-{index}")) == Some(503)).then_some(())
    });
    let sent = upstream.count("POST");

    assert_eq!(write(process.data, "eio-after"), Some(503));
    assert_eq!(upstream.count("POST"), sent, "nothing is sent without an entry");
    assert_eq!(process.agent().get("/things").status, 201, "reads go on");
    wait::until("not ready", || (process.telemetry("/readyz").status == 503).then_some(()));
    assert_eq!(process.telemetry("/livez").status, 200);
}

#[test]
fn f3_a_full_volume_refuses_writes_until_there_is_room_again() {
    let upstream = upstream();
    let home = Home::new(THINGS, upstream.address);
    drop(home.start());
    // A file may not grow beyond this many KiB: what a full volume is to one file.
    let limited = ["bash", "-c", "trap '' XFSZ; ulimit -f 400; exec \"$@\"", "limited"];
    let process = home.start_under(&limited).expect("it starts while there is room");
    let filler = "x".repeat(60_000);
    let mut agent = process.agent();
    let mut index = 0;
    wait::until("the volume's end", || {
        index += 1;
        let headers = [("effect-confirm", "true")];
        let body = format!("{{\"n\":{index},\"filler\":\"{filler}\"}}");
        let target = format!("/things?{}", "y".repeat(15_000));
        let answer = agent.post(&target, &headers, &body);
        let _undeclared_too = answer.status;
        (write(process.data, &format!("full-{index}")) == Some(503)).then_some(())
    });
    let sent = upstream.count("POST");

    assert_eq!(write(process.data, "full-after"), Some(503));
    assert_eq!(upstream.count("POST"), sent);
    assert_eq!(process.agent().get("/things").status, 201);
}

#[test]
fn h5_f8_a_second_process_on_one_ledger_does_not_start() {
    let upstream = upstream();
    let home = Home::new(THINGS, upstream.address);
    let _first = home.start();

    let second = home.start_under(&[]);

    assert!(second.is_none());
    assert!(home.log().contains("lock") || home.log().contains("another"), "{}", home.log());
}

#[test]
fn p35_f4_sigterm_ends_calls_in_order_and_leaves_nothing_begun() {
    let (go, hold) = std::sync::mpsc::channel();
    let hold = std::sync::Mutex::new(Some(hold));
    let upstream = Upstream::start(move |_| match hold.lock().unwrap().take() {
        Some(hold) => Act::After(hold, Box::new(Act::json(201, "{}"))),
        None => Act::json(201, "{}"),
    });
    let home = Home::new(THINGS, upstream.address);
    let mut process = home.start();
    let address = process.data;
    let call = std::thread::spawn(move || write(address, "slow"));
    wait::until("dispatch", || (upstream.count("POST") == 1).then_some(()));

    process.signal(Signal::TERM);
    wait::until("not ready", || (process.telemetry("/readyz").status == 503).then_some(()));
    assert!(process.is_running(), "a write in flight holds the end back");
    go.send(()).unwrap();

    assert_eq!(call.join().unwrap(), Some(201));
    assert_eq!(process.wait().code(), Some(0));
    assert_eq!(home.query("SELECT state FROM entries"), ["accepted"]);
}

#[test]
fn f4_a_second_sigterm_does_not_wait_and_marks_what_is_left_unknown() {
    let (go, hold) = std::sync::mpsc::channel::<()>();
    let hold = std::sync::Mutex::new(Some(hold));
    let upstream = Upstream::start(move |_| match hold.lock().unwrap().take() {
        Some(hold) => Act::After(hold, Box::new(Act::json(201, "{}"))),
        None => Act::json(201, "{}"),
    });
    let home = Home::new(THINGS, upstream.address);
    let mut process = home.start();
    let address = process.data;
    let call = std::thread::spawn(move || write(address, "slow"));
    wait::until("dispatch", || (upstream.count("POST") == 1).then_some(()));

    process.signal(Signal::TERM);
    wait::until("not ready", || (process.telemetry("/readyz").status == 503).then_some(()));
    process.signal(Signal::TERM);

    assert_eq!(process.wait().code(), Some(0));
    let _cut = call.join();
    drop(go);
    drop(home.start());
    assert_eq!(home.query("SELECT state FROM entries"), ["unknown"]);
}
