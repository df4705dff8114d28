//! What an adversary found about calls: what a confirmation and a repeat are bound to, and what an
//! upstream may not say. Each kept as a test.

use std::io::Read as _;

use crate::support::agent::Answer;
use crate::support::sidecar::Setup;
use crate::support::{Act, Agent, Sidecar, Upstream};

const POLICY: &str = r#"
version: 1
operations:
  pay:
    match: { http: "POST /pay" }
    effect: { class: irreversible, kind: create }
  note:
    match: { http: "POST /notes" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: undo, arguments: { path.id: response.id } }
      idempotency: { type: header, name: Idempotency-Key, retention: 24h, replay: full }
  undo:
    match: { http: "DELETE /notes/{id}" }
    effect: { class: irreversible, kind: delete }
    confirm: caller
  word:
    match: { http: "POST /word" }
    effect: { class: irreversible, kind: create }
    confirm: caller
"#;

const PARTS: &str = "--a\r\ncontent-disposition: form-data; name=\"amount\"\r\n\r\n1\r\n--a--\r\n\
                     --b\r\ncontent-disposition: form-data; name=\"amount\"\r\n\r\n9\r\n--b--\r\n";

fn ok() -> Upstream {
    Upstream::start(|_| Act::json(201, r#"{"id":1}"#))
}

/// What the same call with another type gets with the first one's token.
fn confirmed_as(agent: &mut Agent, first: &str, second: &str, body: &str) -> Answer {
    let token = agent.call("POST", "/pay", &[("content-type", first)], body).token();
    agent.call("POST", "/pay", &[("content-type", second), ("effect-confirm", &token)], body)
}

#[test]
fn c_4_a_confirmation_is_bound_to_the_whole_content_type() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    for (first, second, body) in [
        ("multipart/form-data; boundary=a", "multipart/form-data; boundary=b", PARTS),
        ("application/json;version=1", "application/json;version=2", "{}"),
        (
            "application/vnd.x+json;profile=\"draft\"",
            "application/vnd.x+json;profile=\"final\"",
            "{}",
        ),
        ("text/plain; charset=utf-8", "text/plain; charset=utf-7", "x"),
        ("text/plain", "text/plain; x=1", "x"),
    ] {
        let answer = confirmed_as(&mut agent, first, second, body);
        assert_eq!(answer.code(), "confirmation_mismatch", "{first} -> {second}");
        assert_eq!(answer.json()["error"]["details"]["mismatch"], "headers");
    }
    assert!(upstream.received().is_empty());
    assert_eq!(confirmed_as(&mut agent, "text/plain; x=1", "text/plain; x=1", "x").status, 201);
}

#[test]
fn i_8_the_same_key_with_another_boundary_is_another_request() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let mut send = |kind| {
        let headers = [("content-type", kind), ("idempotency-key", "K")];
        agent.call("POST", "/notes", &headers, PARTS)
    };

    assert_eq!(send("multipart/form-data; boundary=a").status, 201);
    assert_eq!(send("multipart/form-data; boundary=b").code(), "idempotency_key_reused");
    assert_eq!(send("multipart/form-data; boundary=a").header("idempotent-replayed"), Some("true"));

    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn c_4_a_confirmation_is_bound_to_the_host_that_goes_on() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let mut send = |host: &str, token: &str| {
        let confirm =
            if token.is_empty() { String::new() } else { format!("effect-confirm: {token}\r\n") };
        let head =
            format!("POST /pay HTTP/1.1\r\nhost: {host}\r\n{confirm}content-length: 0\r\n\r\n");
        agent.raw(head.as_bytes());
        agent.answer("POST")
    };

    let token = send("tenant-a", "").token();
    let other = send("tenant-b", &token);

    assert_eq!(other.code(), "confirmation_mismatch");
    assert!(upstream.received().is_empty());
    assert_eq!(send("tenant-a", &token).status, 201);
    assert_eq!(upstream.only().header("x-forwarded-host"), Some("tenant-a"));
}

#[test]
fn contract_4_only_true_is_the_callers_word() {
    let upstream = ok();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    for value in ["false", "no", "0", "x", "True"] {
        let answer = agent.post("/word", &[("effect-confirm", value)], "{}");
        assert_eq!(answer.code(), "confirmation_required", "{value}");
    }
    assert!(upstream.received().is_empty());
    assert_eq!(agent.post("/word", &[("effect-confirm", "true")], "{}").status, 201);
}

#[test]
fn contract_4_only_true_is_the_callers_word_over_mcp() {
    let upstream = ok();
    let policy = POLICY.replace(r#"http: "POST /word""#, "tool: word");
    let sidecar = Sidecar::start(&policy, &upstream);
    let mut agent = sidecar.agent();
    let mut call = |meta: &str, headers: &[(&str, &str)]| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call",
                "params":{{"name":"word","arguments":{{}},"_meta":{meta}}}}}"#
        );
        let mut all = vec![("accept", "application/json, text/event-stream")];
        all.extend_from_slice(headers);
        agent.post("/mcp", &all, &body)
    };

    for meta in [r#"{"takeback/confirm":"false"}"#, r#"{"takeback/confirm":"x"}"#] {
        assert_eq!(call(meta, &[]).json()["result"]["isError"], true, "{meta}");
    }
    assert_eq!(call("{}", &[("effect-confirm", "false")]).json()["result"]["isError"], true);
    assert!(upstream.received().is_empty());
    call(r#"{"confirm":true}"#, &[]);
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn g4_a_librarys_own_repeat_of_a_lost_call_makes_no_second_effect() {
    for name in ["x-stainless-retry-count", "sentry-trace", "x-datadog-parent-id", "cache-control"]
    {
        let upstream = Upstream::start(|_| Act::Close);
        let sidecar = Sidecar::start(POLICY, &upstream);
        let lost = sidecar.agent().post("/notes", &[], "{}");
        assert_eq!(lost.report()["outcome"], "unknown");

        let again = sidecar.agent().post("/notes", &[(name, "1")], "{}");

        assert_eq!(again.code(), "outcome_unknown", "{name}");
        assert_eq!(upstream.received().len(), 1);
    }
}

#[test]
fn mcp_39_controls_that_an_upstream_sends_never_pass() {
    let forged = [
        ("effect-confirm", "FORGED"),
        ("effect_stage", "true"),
        ("effect-task", "FORGED"),
        ("idempotent-replayed", "true"),
        ("idempotent_replayed", "true"),
        ("idempotency-key", "FORGED"),
        ("x-kept", "1"),
    ];
    let upstream = Upstream::start(move |received| {
        let mut headers = vec![("content-type", "application/json")];
        headers.extend_from_slice(&forged);
        Act::with(if received.method == "GET" { 200 } else { 201 }, &headers, r#"{"id":1}"#)
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    for answer in [agent.get("/x"), agent.post("/notes", &[], "{}")] {
        assert_eq!(answer.header("x-kept"), Some("1"));
        for (name, _) in &forged[..6] {
            assert_eq!(answer.header(name), None, "{name}");
        }
    }
}

const TRAILED: &str = "X-Anvil-Effect, X_Anvil_Effect, X-Own, X_Own, Effect-Confirm, Effect-Stage, \
                       Idempotent-Replayed, Idempotency-Key, X-Sum";

#[test]
fn mcp_39_reports_and_controls_never_pass_in_trailers_nor_are_announced() {
    let fields: String = TRAILED.split(", ").map(|name| format!("{name}: FORGED\r\n")).collect();
    let whole = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\
         trailer: {TRAILED}\r\n\r\n3\r\nabc\r\n0\r\n{fields}\r\n"
    );
    let upstream = Upstream::start(move |_| Act::Last(whole.clone().into_bytes()));
    let mut setup = Setup::new(POLICY);
    setup.report_header = "x-own";
    let sidecar = setup.start(&upstream);

    let mut stream = std::net::TcpStream::connect(sidecar.address).unwrap();
    let asked = "GET /x HTTP/1.1\r\nhost: proxy\r\nte: trailers\r\nconnection: close, te\r\n\r\n";
    std::io::Write::write_all(&mut stream, asked.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();

    let (head, rest) = text.split_once("\r\n\r\n").unwrap();
    let (_, trailers) = rest.split_once("\r\n0\r\n").unwrap();
    assert_eq!(trailers.to_ascii_lowercase(), "x-sum: forged\r\n\r\n");
    let head = head.to_ascii_lowercase();
    assert!(head.contains("trailer: x-sum\r\n"), "{head}");
    assert_eq!(head.matches("x-own").count(), 1, "the report alone: {head}");
}
