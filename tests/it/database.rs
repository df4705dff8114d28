use std::sync::Mutex;

use rustix::process::Signal;

use crate::support::postgres::{Database, Server};
use crate::support::process::Home;
use crate::support::{Act, Agent, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.create:
    match: { http: "POST /things" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: things.delete, arguments: { path.id: response.id } }
      idempotency: { type: header, name: Idempotency-Key }
  things.delete:
    match: { http: "DELETE /things/{id}" }
    effect: { class: irreversible, kind: delete }
"#;

fn upstream() -> Upstream {
    Upstream::start(|received| match received.method.as_str() {
        "GET" => Act::json(200, "[]"),
        _ => Act::json(201, "{\"id\":7}"),
    })
}

fn write(address: std::net::SocketAddr, key: &str) -> crate::support::agent::Answer {
    let body = format!("{{\"a\":\"{key}\"}}");
    Agent::connect(address).post("/things", &[("idempotency-key", key)], &body)
}

#[test]
fn a_write_recorded_in_a_database_is_replayed_after_a_restart_and_shown_by_the_commands() {
    let database = Database::new();
    let upstream = upstream();
    let home = Home::on_database(POLICY, upstream.address, database.url());
    let mut process = home.start();

    let answer = write(process.data, "k1");
    assert_eq!(answer.status, 201, "{}", answer.text());
    let entry = answer.report()["entry"].as_str().unwrap().to_owned();
    assert_eq!(process.telemetry("/readyz").status, 200);
    wait::until("the finish", || {
        let (status, shown) = home.admin("GET", &format!("/api/v1/entries/{entry}"));
        assert_eq!(status, 200);
        (shown["state"] == "accepted").then_some(())
    });
    process.signal(Signal::TERM);
    assert!(process.wait().success(), "{}", home.log());

    let process = home.start();
    let again = write(process.data, "k1");
    assert_eq!(again.status, 201);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(upstream.count("POST"), 1);
    let (code, listed) = home.run(&["ledger", "list"]);
    assert!(code == Some(0) && listed.contains(&entry), "{listed}");
    let (code, shown) = home.run(&["ledger", "show", &entry]);
    assert!(code == Some(0) && shown.contains("things.create"), "{shown}");
    let rows = database.query("SELECT entry, state, class FROM takeback.entries");
    assert_eq!(rows, [format!("{entry}|accepted|reversible")]);
}

#[test]
fn f10_one_key_at_three_sidecars_at_once_is_dispatched_once() {
    let database = Database::new();
    let upstream = upstream();
    let homes: Vec<Home> =
        (0..3).map(|_| Home::on_database(POLICY, upstream.address, database.url())).collect();
    let processes: Vec<_> = homes.iter().map(Home::start).collect();

    for round in 0..20 {
        let key = format!("key-{round}");
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let calls: Vec<_> = processes
                .iter()
                .map(|process| scope.spawn(|| write(process.data, &key).status))
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });

        // The others met it on its way, or were given its answer.
        assert!(statuses.contains(&201), "{statuses:?}");
        assert!(statuses.iter().all(|status| [201, 409].contains(status)), "{statuses:?}");
        assert_eq!(upstream.count("POST"), round + 1);
    }
}

#[test]
fn a_killed_sidecars_write_is_unknown_to_the_next_one_when_its_lease_has_run_out() {
    let database = Database::new();
    let open = Mutex::new(Vec::new());
    let upstream = Upstream::start(move |_| {
        let (sender, answer) = std::sync::mpsc::channel();
        open.lock().unwrap().push(sender);
        Act::After(answer, Box::new(Act::Close))
    });
    let home = Home::on_database(POLICY, upstream.address, database.url());
    let mut process = home.start();
    std::thread::scope(|scope| {
        let address = process.data;
        // Its answer never comes.
        scope.spawn(move || std::panic::catch_unwind(|| write(address, "k1")).is_err());
        wait::until("the dispatch", || (upstream.count("POST") == 1).then_some(()));
        process.kill();
    });

    let other = home.start();
    let begun = write(other.data, "k1");
    assert_eq!((begun.status, begun.code().as_str()), (409, "in_flight"), "it may still live");
    database.query(
        "UPDATE takeback.owner SET lease_until = clock_timestamp() \
                    WHERE id = (SELECT owner FROM takeback.entry)",
    );
    drop(other);

    let other = home.start();
    let unknown = write(other.data, "k1");
    assert_eq!((unknown.status, unknown.code().as_str()), (409, "outcome_unknown"));
    let metrics = other.telemetry("/metrics").text();
    assert!(metrics.contains("takeback_ledger_recovered_total{to=\"unknown\"} 1"), "{metrics}");
}

#[test]
fn a_database_that_comes_late_is_waited_for_and_one_that_goes_stops_writes_alone() {
    let server = Server::start(&[]);
    server.stop();
    let upstream = upstream();
    let home = Home::on_database(POLICY, upstream.address, server.url());
    let process = home.launch();
    wait::until("the start to wait", || {
        let stream = std::net::TcpStream::connect(process.telemetry).ok()?;
        drop(stream);
        let answer = process.telemetry("/startupz");
        (answer.status == 503 && answer.text().contains("ledger")).then_some(())
    });
    server.start_again(&[]);
    wait::until("the sidecar's port", || std::net::TcpStream::connect(process.data).ok());
    assert_eq!(write(process.data, "k1").status, 201);

    server.stop();
    let refused = write(process.data, "k2");
    assert_eq!((refused.status, refused.code().as_str()), (503, "ledger_unavailable"));
    assert_eq!(process.agent().get("/things").status, 200, "reads go on");
    server.start_again(&[]);
    wait::until("writes", || (write(process.data, "k3").status == 201).then_some(()));
    assert_eq!(upstream.count("POST"), 2);
}

#[test]
fn what_is_wrong_with_a_database_is_said_and_its_password_is_not() {
    let upstream = upstream();
    let plain = "postgres://ann:s3cret@db.example/l?sslmode=disable";
    let home = Home::on_database(POLICY, upstream.address, plain.to_owned());
    let (code, text) = home.run(&["ledger", "list"]);
    assert_eq!(code, Some(78));
    assert!(text.contains("in plain text") && !text.contains("s3cret"), "{text}");

    let database = Database::new();
    let home = Home::on_database(POLICY, upstream.address, database.url());
    let (code, text) = home.run(&["ledger", "list"]);
    assert_eq!(code, Some(65), "{text}");
    assert!(text.contains("holds no ledger"), "{text}");
}
