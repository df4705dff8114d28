use std::sync::Mutex;

use rustix::process::Signal;
use serde_json::json;

use crate::support::mcp::{call, envelope, modern, post, post_modern, post_with, request};
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

const TOOLS: &str = r#"
version: 1
operations:
  notes.delete:
    match: { tool: delete_note }
    effect: { class: irreversible, kind: delete }
  notes.create:
    match: { tool: asks_first }
    effect: { class: irreversible, kind: create }
    confirm: none
"#;

/// A tool that asks until it is answered with its own state, and one that does not.
fn tools() -> Upstream {
    Upstream::start(|received| {
        let message: serde_json::Value = serde_json::from_slice(&received.body).unwrap();
        let asks = message["params"]["name"] == "asks_first"
            && message["params"]["requestState"] != "theirs";
        let result = match asks {
            true => json!({"resultType": "input_required", "requestState": "theirs",
                "inputRequests": {"q": {"method": "elicitation/create", "params": {}}}}),
            false => json!({"content": [], "capabilities": {}}),
        };
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
        match message["method"] == "initialize" {
            true => {
                let headers = [("content-type", "application/json"), ("mcp-session-id", "s1")];
                Act::with(200, &headers, &answer)
            }
            false => Act::json(200, &answer),
        }
    })
}

#[test]
fn mcp_34_mcp_36_what_a_client_answers_at_another_sidecar_is_never_taken_for_more_than_it_is() {
    let database = Database::new();
    let upstream = tools();
    let homes: Vec<Home> =
        (0..2).map(|_| Home::on_database(TOOLS, upstream.address, database.url())).collect();
    let [one, other] = [homes[0].start(), homes[1].start()];
    let session = ("mcp-session-id", "s1");
    let made = || {
        let received = upstream.received();
        received.iter().filter(|received| received.text().contains("tools/call")).count()
    };

    // A question of one sidecar whose answer reaches the other: it confirms nothing there.
    let capabilities =
        json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}});
    let initialize = request("1", "initialize", capabilities);
    post(&mut one.agent(), &initialize);
    let mut asked = one.agent();
    let headers = [
        session,
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ];
    asked.send("POST", "/mcp", &headers, &call("7", "delete_note", json!({}), None));
    assert_eq!(asked.head().unwrap().status, 200);
    let question = std::iter::from_fn(|| asked.line())
        .find_map(|line| line.strip_prefix("data: ").map(str::to_owned))
        .expect("a question");
    let question: serde_json::Value = serde_json::from_str(&question).unwrap();
    let yes = json!({"jsonrpc": "2.0", "id": question["id"],
        "result": {"action": "accept", "content": {"confirm": true}}});
    let heard = post_with(&mut other.agent(), &[session], &yes.to_string());
    assert_eq!((heard.status, heard.text().as_str()), (202, ""));
    assert_eq!(made(), 0);
    drop(asked);

    // The other did not see the session begin and asks nobody: its refusal's token counts once,
    // anywhere.
    let delete = |meta| call("8", "delete_note", json!({}), meta);
    let refused = post_with(&mut other.agent(), &[session], &delete(None)).json();
    let error = envelope(&refused["result"])["error"].clone();
    assert_eq!((error["code"].as_str(), made()), (Some("confirmation_required"), 0));
    let token = json!({"takeback/confirm": error["details"]["confirm"]["token"]});
    let done = post_with(&mut one.agent(), &[session], &delete(Some(token.clone()))).json();
    assert_eq!(done["result"]["_meta"]["effect"]["outcome"], "accepted", "{done}");
    let again = post_with(&mut other.agent(), &[session], &delete(Some(token))).json();
    let again = &again["result"]["_meta"]["effect"];
    assert!(again["replayed"] == true || again["refused"].is_string(), "{again}");
    assert_eq!(made(), 1);

    // An upstream's own round goes on with the entry that another sidecar began, and once.
    let round = json!({"name": "asks_first", "arguments": {"a": 1}, "_meta": modern(false)});
    let first = post_modern(&mut one.agent(), "2", round.clone()).json();
    // Until that is durable the other one only knows that the call was begun.
    wait::until("the entry to wait", || {
        let waiting = "SELECT count(*) FROM takeback.entries WHERE state = 'waiting'";
        (database.query(waiting) == ["1"]).then_some(())
    });
    let mut next = round;
    next["requestState"] = first["result"]["requestState"].clone();
    next["inputResponses"] = json!({"q": {"action": "accept", "content": {}}});
    let second = post_modern(&mut other.agent(), "3", next).json();
    let entry = |answer: &serde_json::Value| answer["result"]["_meta"]["effect"]["entry"].clone();
    assert_eq!(second["result"]["_meta"]["effect"]["outcome"], "accepted", "{second}");
    assert_eq!((entry(&first), made()), (entry(&second), 3));
}
