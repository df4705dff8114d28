use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::agent::Answer;
use crate::support::process::{Home, Process};
use crate::support::{Act, Agent, Upstream, port};

const POLICY: &str = r#"
version: 1
operations:
  things.create:
    match: { http: "POST /things" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: things.delete, arguments: { path.id: response.id } }
  things.delete:
    match: { http: "DELETE /things/{id}" }
    effect: { class: irreversible, kind: delete }
    confirm: caller
"#;

const READER: &str = "reader-0123456789-0123456789-0123456789";
const OPERATOR: &str = "operator-0123456789-0123456789-012345";

/// A sidecar whose admin API is on the network too, and its address.
fn networked(home: &Home) -> (Process, SocketAddr) {
    let tokens = home.folder().join("tokens");
    std::fs::write(&tokens, format!("r read {READER}\no operate {OPERATOR}\n")).unwrap();
    let address = port::free();
    let process = home.start_set(&[
        ("ADMIN_LISTEN", &address.to_string()),
        ("ADMIN_TOKENS_FILE", tokens.to_str().unwrap()),
    ]);
    (process, address)
}

fn ask(address: SocketAddr, method: &str, path: &str, token: &str, body: &str) -> Answer {
    let mut agent = Agent::connect(address);
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    agent.raw(text.as_bytes());
    agent.answer(method)
}

fn upstream() -> Upstream {
    Upstream::start(|_| Act::json(201, r#"{"id":"9"}"#))
}

#[test]
fn on_the_network_each_request_needs_a_token_of_the_role() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let (_process, address) = networked(&home);

    let none = ask(address, "GET", "/api/v1/policy", "", "");
    assert_eq!(none.status, 401);
    assert!(none.header("www-authenticate").unwrap().starts_with("Bearer"));
    assert_eq!(none.header("content-type"), Some("application/problem+json"));
    assert_eq!(none.code(), "unauthorized");
    assert_eq!(ask(address, "GET", "/api/v1/openapi.json", "x", "").status, 401);
    assert_eq!(ask(address, "GET", "/api/v1/policy", READER, "").status, 200);
    assert_eq!(ask(address, "POST", "/api/v1/reload", READER, "").code(), "forbidden");
    assert_eq!(ask(address, "POST", "/api/v1/reload", OPERATOR, "").status, 200);

    let mut rebound = Agent::connect(address);
    rebound.raw(
        format!(
            "GET /api/v1/policy HTTP/1.1\r\nhost: evil\r\nauthorization: Bearer {READER}\r\n\r\n"
        )
        .as_bytes(),
    );
    assert_eq!(rebound.answer("GET").status, 421);
    let mut page = Agent::connect(address);
    page.raw(
        format!(
            "POST /api/v1/reload HTTP/1.1\r\nhost: {address}\r\norigin: http://evil.example\r\n\
             authorization: Bearer {OPERATOR}\r\ncontent-length: 0\r\n\r\n"
        )
        .as_bytes(),
    );
    assert_eq!(page.answer("POST").code(), "wrong_origin");
    // The commands go by the socket, which stays.
    assert_eq!(home.admin("GET", "/api/v1/health").0, 200);
    assert!(!home.log().contains(READER) && !home.log().contains(OPERATOR));
}

#[test]
fn a_network_address_without_tokens_or_beyond_this_host_is_refused_at_the_start() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    assert!(home.try_start_with(&["--admin-listen", "127.0.0.1:0"]).is_none());
    assert!(home.log().contains("there are no tokens"), "{}", home.log());
    assert!(home.try_start_with(&["--admin-listen", "0.0.0.0:0"]).is_none());
    assert!(home.log().contains("there is no certificate"), "{}", home.log());
}

#[test]
fn entries_are_filtered_paged_and_shown_with_their_whole_report() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let mut reports: Vec<Value> = Vec::new();
    for (index, who) in [(0, "a"), (1, "a"), (2, "b")] {
        let credential = format!("Bearer {who}");
        let task = format!("task {who}");
        let headers = [("authorization", credential.as_str()), ("effect-task", task.as_str())];
        let body = format!("{{\"n\":{index}}}");
        reports.push(process.agent().post("/things", &headers, &body).report());
    }
    let ids = |path: &str| {
        let (status, listed) = home.admin("GET", path);
        assert_eq!(status, 200, "{path}: {listed}");
        let entries = listed["entries"].as_array().unwrap();
        let ids: Vec<Value> = entries.iter().map(|entry| entry["entry"].clone()).collect();
        (ids, listed["next"].clone())
    };
    let newest_first: Vec<Value> =
        reports.iter().rev().map(|report| report["entry"].clone()).collect();
    crate::support::wait::until("the finishes", || {
        let (listed, _) = ids("/api/v1/entries?state=accepted");
        (listed == newest_first).then_some(())
    });

    let (first, next) = ids("/api/v1/entries?limit=2");
    assert_eq!(first, newest_first[..2]);
    let (rest, end) = ids(&format!("/api/v1/entries?limit=2&before={}", next.as_str().unwrap()));
    assert_eq!((rest, end), (newest_first[2..].to_vec(), Value::Null));
    assert_eq!(ids("/api/v1/entries?task=task%20b").0, newest_first[..1]);
    assert_eq!(ids("/api/v1/entries?operation=things.delete").0, Vec::<Value>::new());
    assert_eq!(ids("/api/v1/entries?since=9999-01-01T00:00:00Z").0, Vec::<Value>::new());
    assert_eq!(ids("/api/v1/entries?since=0").0.len(), 3);

    let entry = newest_first[0].as_str().unwrap();
    let (_, shown) = home.admin("GET", &format!("/api/v1/entries/{entry}"));
    for member in ["class", "operation", "undo", "entry", "ledger_id", "outcome", "verdict"] {
        assert_eq!(shown["report"][member], reports[2][member], "{member}");
    }
    assert_eq!(shown["history"].as_array().unwrap().len(), 2);
    let principal = shown["principal"].as_str().unwrap();
    let (own, _) = ids(&format!("/api/v1/entries?principal={principal}"));
    assert_eq!(own, newest_first[..1]);

    for wrong in ["state=odd", "limit=0", "limit=1001", "who=x", "since=soon", "limit=1&limit=2"] {
        let (status, problem) = home.admin("GET", &format!("/api/v1/entries?{wrong}"));
        assert_eq!(
            (status, &problem["error"]["code"]),
            (400, &json!("invalid_request")),
            "{wrong}"
        );
    }
    let (status, problem) = home.admin("GET", "/api/v1/elsewhere");
    assert_eq!((status, &problem["status"]), (404, &json!(404)));
    assert_eq!(home.admin("PUT", "/api/v1/policy").0, 405);
}

#[test]
fn the_api_describes_itself_and_a_policy_says_what_its_reviewer_should_know() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let _process = home.start();

    let (status, described) = home.admin("GET", "/api/v1/openapi.json");
    assert_eq!((status, &described["openapi"]), (200, &json!("3.1.0")));
    for (path, methods) in described["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "019b0000-0000-7000-8000-000000000000");
        for method in ["GET", "POST"] {
            if path.ends_with("drain") && method == "POST" {
                continue;
            }
            let status = home.admin(method, &path).0;
            let is_described = methods.get(method.to_lowercase()).is_some();
            assert_eq!(status != 405, is_described, "{method} {path}: {status}");
        }
    }
    let (_, policy) = home.admin("GET", "/api/v1/policy");
    let findings = policy["findings"].as_array().unwrap();
    assert!(findings.iter().any(|found| found["code"] == "spec/unverified"), "{policy}");
}
