use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::sidecar::Setup;
use crate::support::{Act, Sidecar, Upstream, noted_by_tools};
use takeback::pipeline::CallRoute;

const POLICY: &str = noted_by_tools!(
    r#"      idempotency: { type: argument, name: key }
  files.put:
    match: { tool: "files/put ä" }
    effect: { class: reversible, kind: update, inverse: { operation: notes.delete, arguments: {} } }
"#
);

/// An upstream of one era. The first session is forgotten after its second call where `forgets` says.
fn upstream(is_modern: bool, forgets: bool) -> Upstream {
    let sessions = AtomicUsize::new(0);
    let calls = AtomicUsize::new(0);
    Upstream::start(move |received| {
        if received.target != "/mcp" {
            return Act::json(200, r#"{"plain":true}"#);
        }
        if received.method == "DELETE" {
            return Act::with(200, &[], "");
        }
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = message["id"].clone();
        let answer =
            |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        let unknown =
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}});
        if received.header("authorization") == Some("Bearer bad") {
            return Act::with(401, &[("www-authenticate", "Bearer")], "");
        }
        match message["method"].as_str().unwrap() {
            "server/discover" if is_modern => Act::json(200, &answer(json!({}))),
            "server/discover" => Act::json(404, &unknown.to_string()),
            "initialize" if is_modern => Act::json(404, &unknown.to_string()),
            "initialize" => {
                let session = format!("s{}", sessions.fetch_add(1, Ordering::Relaxed));
                let headers = [("content-type", "application/json"), ("mcp-session-id", &*session)];
                Act::with(200, &headers, &answer(json!({"protocolVersion": "2025-06-18"})))
            }
            "notifications/initialized" => Act::with(202, &[], ""),
            "tools/list" => Act::json(
                200,
                &answer(json!({"tools": [
                    {"name": "read_note"}, {"name": "create_note"}, {"name": "delete_note"},
                    {"name": "files/put ä"}, {"name": "broken"}
                ]})),
            ),
            _ if forgets && calls.fetch_add(1, Ordering::Relaxed) == 1 => {
                Act::with(404, &[("content-type", "text/plain")], "no such session")
            }
            _ => {
                let result = match message["params"]["name"].as_str() {
                    Some("read_note") => json!({"content": [{"type": "text", "text": "[1, 2]"}]}),
                    Some("broken") => {
                        let text = r#"{"error":{"code":"not_found","message":"gone"}}"#;
                        json!({"content": [{"type": "text", "text": text}], "isError": true})
                    }
                    _ => json!({"content": [], "structuredContent": {"id": "n1"}}),
                };
                Act::json(200, &answer(result))
            }
        }
    })
}

fn methods(upstream: &Upstream) -> Vec<String> {
    let received = upstream.received();
    let posts = received.iter().filter(|r| r.method == "POST");
    let bodies = posts.map(|r| serde_json::from_slice::<Value>(&r.body).unwrap());
    bodies.map(|body| body["method"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn adr_0030_8_a_tool_is_called_over_rest_in_both_eras_through_the_same_gates() {
    for is_modern in [true, false] {
        let upstream = upstream(is_modern, false);
        let sidecar = Sidecar::start(POLICY, &upstream);
        let mut agent = sidecar.agent();

        let read = agent.post("/call/read_note", &[], r#"{"arguments":{"id":"x"}}"#);
        let key = [("idempotency-key", "k1")];
        let created = agent.post("/call/create_note", &key, r#"{"arguments":{"text":"x"}}"#);
        let again = agent.post("/call/create_note", &key, r#"{"arguments":{"text":"x"}}"#);
        let refused = agent.post("/call/delete_note", &[], r#"{"arguments":{"id":"n1"}}"#);

        assert_eq!((read.status, read.text().as_str()), (200, "[1, 2]"));
        assert_eq!(read.report()["class"], "read");
        assert_eq!((created.status, created.json()), (200, json!({"id": "n1"})));
        assert_eq!(created.report()["undo"]["arguments"], json!({"id": "n1"}));
        assert_eq!(created.report()["idempotency_key"], "k1");
        assert_eq!((again.status, again.json()), (200, json!({"id": "n1"})));
        assert_eq!(again.report()["replayed"], true);
        assert_eq!((refused.status, refused.code().as_str()), (428, "confirmation_required"));
        assert_eq!(refused.report()["refused"], "confirmation_required");
        let token = refused.json()["error"]["details"]["confirm"]["token"].clone();
        let confirm = [("effect-confirm", token.as_str().unwrap())];
        let deleted = agent.post("/call/delete_note", &confirm, r#"{"arguments":{"id":"n1"}}"#);
        assert_eq!(deleted.report()["outcome"], "accepted");

        let calls: Vec<_> =
            upstream.received().into_iter().filter(|r| r.text().contains("tools/call")).collect();
        assert_eq!(calls.len(), 3);
        let sent: Value = serde_json::from_slice(&calls[1].body).unwrap();
        assert_eq!(sent["params"]["arguments"], json!({"text": "x", "key": "k1"}));
        if is_modern {
            assert_eq!(calls[1].header("mcp-protocol-version"), Some("2026-07-28"));
            assert_eq!(calls[1].header("mcp-name"), Some("create_note"));
            assert_eq!(calls[1].header("mcp-session-id"), None);
        } else {
            assert_eq!(calls[1].header("mcp-protocol-version"), Some("2025-06-18"));
            assert_eq!(calls[1].header("mcp-session-id"), Some("s0"));
        }
        let made = methods(&upstream);
        assert_eq!(made.iter().filter(|m| *m == "server/discover").count(), 1, "{made:?}");
    }
}

#[test]
fn a_session_is_of_one_credential_and_is_made_anew_when_it_is_forgotten() {
    let upstream = upstream(false, true);
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let call = |agent: &mut crate::support::Agent, bearer: &str| {
        agent.post("/call/read_note", &[("authorization", bearer)], "{}").status
    };

    let statuses =
        [call(&mut agent, "Bearer a"), call(&mut agent, "Bearer a"), call(&mut agent, "Bearer b")];

    assert_eq!(statuses, [200, 200, 200]);
    let sent: Vec<_> =
        upstream.received().into_iter().filter(|r| r.text().contains("tools/call")).collect();
    let seen: Vec<_> = sent
        .iter()
        .map(|r| (r.header("authorization").unwrap(), r.header("mcp-session-id").unwrap()))
        .collect();
    let expected = [("Bearer a", "s0"), ("Bearer a", "s0"), ("Bearer a", "s1"), ("Bearer b", "s2")];
    assert_eq!(seen, expected);
}

#[test]
fn a_write_is_not_sent_again_when_the_session_is_said_to_be_forgotten() {
    let upstream = upstream(false, true);
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let mut call = |text: &str| {
        agent.post("/call/create_note", &[], &json!({"arguments": {"text": text}}).to_string())
    };
    let dispatched =
        || upstream.received().iter().filter(|r| r.text().contains("tools/call")).count();

    assert_eq!(call("1").status, 200);
    let forgotten = call("2");
    assert_eq!((forgotten.status, dispatched()), (404, 2));
    let report = forgotten.report();
    assert_eq!((&report["class"], &report["outcome"]), (&json!("reversible"), &json!("rejected")));
    assert!(!forgotten.text().contains("Nothing was sent"), "{}", forgotten.text());
    assert_eq!((call("2").status, dispatched()), (200, 3), "in a new session");
    let last = upstream.last();
    assert_eq!(last.header("mcp-session-id"), Some("s1"));
}

#[test]
fn a_write_that_was_sent_is_never_refused_after_a_404_that_has_an_answer() {
    let upstream = Upstream::start(|received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = &message["id"];
        let answer =
            |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        match message["method"].as_str().unwrap() {
            "server/discover" => Act::json(400, "{}"),
            "initialize" => {
                let headers = [("content-type", "application/json"), ("mcp-session-id", "s")];
                Act::with(200, &headers, &answer(json!({"protocolVersion": "2025-06-18"})))
            }
            "tools/list" => Act::json(200, &answer(json!({"tools": [{"name": "create_note"}]}))),
            "tools/call" => Act::json(404, &answer(json!({"content": []}))),
            _ => Act::with(202, &[], ""),
        }
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let answer = agent.post("/call/create_note", &[], r#"{"arguments":{"text":"x"}}"#);

    let calls = upstream.received().iter().filter(|r| r.text().contains("tools/call")).count();
    assert_eq!(calls, 1);
    assert!(!answer.text().contains("Nothing was sent"), "{}", answer.text());
    assert_eq!(answer.report()["refused"], Value::Null, "{}", answer.report());
    assert_eq!(answer.report()["class"], "reversible");
    assert!(answer.report()["entry"].is_string());
}

#[test]
fn adr_0030_8_errors_have_a_status_for_their_code() {
    let upstream = upstream(true, false);
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let large = format!("{{\"arguments\":{{\"text\":\"{}\"}}}}", "x".repeat(64 * 1024));
    let cases = [
        ("/call/none", "{}", 404, "not_found"),
        ("/call/create_note", "[]", 400, "validation_error"),
        ("/call/create_note", r#"{"arguments":[]}"#, 400, "validation_error"),
        ("/call/create_note", r#"{"argument":{}}"#, 400, "validation_error"),
        ("/call/create_note", r#"{"stage":"yes"}"#, 400, "validation_error"),
        ("/call/create_note", r#"{"stage":true}"#, 422, "unsupported_operation"),
        ("/call/create_note", "{", 400, "invalid_json"),
        ("/call/create_note", large.as_str(), 413, "body_too_large"),
        ("/call/broken", "{}", 428, "confirmation_required"),
    ];
    for (path, body, status, code) in cases {
        let answer = agent.post(path, &[], body);
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{path} {body:.40}");
        assert!(answer.header("x-anvil-effect").is_some());
        if status == 413 {
            agent = sidecar.agent();
        }
    }
    let refused = agent.post("/call/broken", &[], "{}");
    let token = refused.json()["error"]["details"]["confirm"]["token"].clone();
    let confirm = [("effect-confirm", token.as_str().unwrap())];
    let broken = agent.post("/call/broken", &confirm, "{}");
    assert_eq!((broken.status, broken.code().as_str()), (404, "not_found"));
    assert_eq!(broken.report()["outcome"], "unknown");
    let bad = agent.post("/call/read_note", &[("authorization", "Bearer bad")], "{}");
    assert_eq!((bad.status, bad.code().as_str()), (401, "auth_required"));
    let odd = agent.post("/call/files%2Fput%20%C3%A4", &[], "{}");
    assert_eq!(odd.status, 400, "an encoded slash is ambiguous");
}

#[test]
fn the_route_is_the_upstreams_where_the_operator_says_so_or_no_tool_is_declared() {
    let upstream = upstream(true, false);
    let mut setup = Setup::new(POLICY);
    setup.mcp.call_route = CallRoute::Forward;
    let forwarding = setup.start(&upstream);
    let plain = "version: 1\noperations:\n  a:\n    match: { http: \"POST /call/{x}\" }\n    effect: { class: read }\n";
    let bare = Sidecar::start(plain, &upstream);

    let forwarded = forwarding.agent().post("/call/read_note", &[], "{}");
    let passed = bare.agent().post("/call/read_note", &[], "{}");

    assert_eq!((forwarded.status, forwarded.code().as_str()), (428, "confirmation_required"));
    assert_eq!((passed.status, passed.json()), (200, json!({"plain": true})));
}

/// Gives each call's answer to a later GET only, the second time that it is asked for.
fn polling() -> Upstream {
    let gets = AtomicUsize::new(0);
    Upstream::start(move |received| {
        if received.method == "DELETE" {
            return Act::with(200, &[], "");
        }
        if received.method == "GET" {
            assert_eq!(received.header("mcp-session-id"), Some("s0"));
            return match gets.fetch_add(1, Ordering::Relaxed) {
                0 => {
                    assert_eq!(received.header("last-event-id"), Some("e0"));
                    Act::events("id: e1\nretry: 0\ndata:\n\n")
                }
                _ => {
                    assert_eq!(received.header("last-event-id"), Some("e1"));
                    let id = received.header("x-call").unwrap_or("0").to_owned();
                    Act::events(&format!(
                        "id: e2\ndata: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[],\"structuredContent\":{{\"id\":\"n1\"}}}}}}\n\n"
                    ))
                }
            };
        }
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = message["id"].clone();
        let answer =
            |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        match message["method"].as_str().unwrap() {
            "initialize" => {
                let headers = [("content-type", "application/json"), ("mcp-session-id", "s0")];
                Act::with(200, &headers, &answer(json!({"protocolVersion": "2025-11-25"})))
            }
            "notifications/initialized" => Act::with(202, &[], ""),
            "tools/list" => Act::json(200, &answer(json!({"tools": [{"name": "create_note"}]}))),
            "tools/call" => Act::events("id: e0\nretry: 0\ndata:\n\n"),
            _ => Act::with(404, &[], ""),
        }
    })
}

#[test]
fn mcp_20_the_answer_of_a_call_over_rest_is_fetched_when_its_stream_ends_early() {
    // The id of a call is ours: the upstream learns it from the call and gives it back on the GET.
    let called = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let inner = polling();
    let relay = {
        let called = std::sync::Arc::clone(&called);
        let address = inner.address;
        Upstream::start(move |received| {
            if received.text().contains("tools/call") {
                let message: Value = serde_json::from_slice(&received.body).unwrap();
                *called.lock().unwrap() = message["id"].to_string();
            }
            let id = called.lock().unwrap().clone();
            let mut headers: Vec<(&str, &str)> = received
                .headers
                .iter()
                .filter(|(name, _)| !["content-length", "host"].contains(&name.as_str()))
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            headers.push(("x-call", &id));
            let mut agent = crate::support::Agent::connect(address);
            let answer = agent.call(&received.method, &received.target, &headers, &received.text());
            let kept: Vec<(&str, &str)> = answer
                .headers
                .iter()
                .filter(|(name, _)| name != "content-length" && name != "connection")
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            Act::with(answer.status, &kept, &answer.text())
        })
    };
    let sidecar = Sidecar::start(POLICY, &relay);

    let created = sidecar.agent().post("/call/create_note", &[], r#"{"arguments":{"text":"x"}}"#);

    assert_eq!((created.status, created.json()), (200, json!({"id": "n1"})));
    assert_eq!(created.report()["outcome"], "accepted");
    assert_eq!(created.report()["undo"]["arguments"], json!({"id": "n1"}));
    sidecar.wait_entries(&[("accepted", "")]);
    let calls = relay.received().iter().filter(|r| r.text().contains("tools/call")).count();
    assert_eq!(calls, 1);

    sidecar.drain.begin(std::time::Duration::from_secs(20));
    crate::support::wait::until("the end of our session", || {
        let received = relay.received();
        let deleted = received.iter().find(|r| r.method == "DELETE")?;
        assert_eq!(deleted.header("mcp-session-id"), Some("s0"));
        Some(())
    });
}

#[test]
fn an_answer_that_cannot_be_fetched_leaves_the_outcome_unknown() {
    let upstream = Upstream::start(|received| {
        if received.method != "POST" {
            return Act::with(405, &[], "");
        }
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = message["id"].clone();
        let answer =
            |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        match message["method"].as_str().unwrap() {
            "initialize" => {
                let headers = [("content-type", "application/json"), ("mcp-session-id", "s0")];
                Act::with(200, &headers, &answer(json!({"protocolVersion": "2025-11-25"})))
            }
            "tools/list" => Act::json(200, &answer(json!({"tools": [{"name": "create_note"}]}))),
            "tools/call" => Act::events("id: e0\nretry: 0\ndata:\n\n"),
            _ => Act::with(202, &[], ""),
        }
    });
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = sidecar.agent().post("/call/create_note", &[], r#"{"arguments":{"text":"x"}}"#);

    assert_eq!((answer.status, answer.code().as_str()), (502, "outcome_unknown"));
    sidecar.wait_entries(&[("unknown", "timeout")]);
}

#[test]
fn a_session_of_ours_that_rests_is_ended_and_made_anew_for_the_next_call() {
    let upstream = upstream(false, false);
    let mut setup = Setup::new(POLICY);
    setup.mcp.session_idle = std::time::Duration::from_millis(1);
    let sidecar = setup.start(&upstream);
    let headers = [("authorization", "Bearer a")];

    let first = sidecar.agent().post("/call/read_note", &headers, "{}");
    crate::support::wait::until("the end of the session", || {
        let received = upstream.received();
        let deleted = received.into_iter().find(|r| r.method == "DELETE")?;
        assert_eq!(deleted.header("mcp-session-id"), Some("s0"));
        assert_eq!(deleted.header("authorization"), Some("Bearer a"));
        Some(())
    });
    let second = sidecar.agent().post("/call/read_note", &headers, "{}");

    assert_eq!((first.status, second.status), (200, 200));
}

#[test]
fn an_answer_that_cannot_be_read_keeps_its_report() {
    for (tool, class, code) in
        [("create_note", "reversible", "outcome_unknown"), ("read_note", "read", "upstream_error")]
    {
        let upstream = Upstream::start(|received| {
            let message: Value = serde_json::from_slice(&received.body).unwrap();
            let id = &message["id"];
            let answer =
                |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
            match message["method"].as_str().unwrap() {
                "server/discover" => Act::json(200, &answer(json!({}))),
                "tools/list" => {
                    let tools = [json!({"name": "create_note"}), json!({"name": "read_note"})];
                    Act::json(200, &answer(json!({"tools": tools})))
                }
                _ => Act::json(200, &answer(json!({"content": [], "pad": "x".repeat(2 << 20)}))),
            }
        });
        let sidecar = Sidecar::start(POLICY, &upstream);

        let answer = sidecar.agent().post(&format!("/call/{tool}"), &[], "{}");

        assert_eq!((answer.status, answer.code().as_str()), (502, code), "{tool}");
        assert_eq!(answer.report()["class"], class);
        assert_ne!(answer.report()["operation"], "_undeclared", "{}", answer.report());
        if class != "read" {
            assert_eq!(answer.report()["outcome"], "unknown");
            assert!(answer.report()["entry"].is_string());
        }
    }
}

#[test]
fn adr_0030_8_a_body_that_cannot_be_read_is_refused_as_the_operation_that_the_path_names() {
    let upstream = upstream(false, false);
    let sidecar = Sidecar::start(POLICY, &upstream);
    let cases = [
        ("/call/read_note", "notes.read", "read"),
        ("/call/create_note", "notes.create", "reversible"),
        ("/call/nobodys", "_undeclared", "irreversible"),
    ];
    for (target, operation, class) in cases {
        for body in ["{", "[]", r#"{"arguments":1}"#, r#"{"other":1}"#, r#"{"stage":1}"#] {
            let refused = sidecar.agent().post(target, &[], body);

            assert_eq!(refused.status, 400, "{target} {body}");
            let report = refused.report();
            assert_eq!(report["operation"], operation, "{target} {body}");
            assert_eq!(report["class"], class, "{target} {body}");
            assert!(report["refused"].is_string(), "{target} {body}");
        }
    }
    assert!(upstream.received().is_empty());
}
