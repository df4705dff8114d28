//! Rules for proxies of MCP that no other file names.

use serde_json::{Value, json};

use crate::support::mcp::{
    DONE, NOTES, SESSION, call, envelope, events, modern, post, post_modern, post_with, request,
};
use crate::support::sidecar::Setup;
use crate::support::{Act, Agent, Sidecar, Upstream};

fn upstream() -> Upstream {
    Upstream::start(|received| {
        let Ok(message) = serde_json::from_slice::<Value>(&received.body) else {
            return Act::with(405, &[("allow", "POST")], "");
        };
        let id = message["id"].clone();
        let result = json!({"content": [{"type": "text", "text": "done"}]});
        let text = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        match message["method"].as_str() {
            Some("initialize") => {
                let headers = [("content-type", "application/json"), SESSION];
                Act::with(200, &headers, &text)
            }
            _ if message.get("id").is_none() => Act::with(202, &[], ""),
            _ => Act::json(200, &text),
        }
    })
}

fn calls(upstream: &Upstream) -> usize {
    upstream.received().iter().filter(|r| r.text().contains("tools/call")).count()
}

#[test]
fn mcp_2_a_mirrored_header_decides_nothing() {
    let upstream = upstream();
    let sidecar = Sidecar::start(NOTES, &upstream);
    let headers = [("mcp-method", "ping"), ("mcp-name", "read_note")];

    let answer =
        post_with(&mut sidecar.agent(), &headers, &call("1", "delete_note", json!({}), None));

    assert_ne!(answer.status, 500);
    assert_eq!(calls(&upstream), 0, "what the body calls is what is gated");
}

#[test]
fn mcp_11_no_batch_of_any_revision_reaches_a_tool() {
    let upstream = upstream();
    let sidecar = Sidecar::start(NOTES, &upstream);
    let one = call("1", "create_note", json!({}), None);
    for version in ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"] {
        for batch in [format!("[{one}]"), format!(" [[{one}]]"), format!("[{one},{one}]")] {
            let headers = [("mcp-protocol-version", version)];
            let answer = post_with(&mut sidecar.agent(), &headers, &batch);
            assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!(-32600)));
        }
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn mcp_18_a_stream_keeps_its_headers_and_no_coding_is_added() {
    let upstream = Upstream::start(|_| {
        Act::Last(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\nconnection: close\r\n\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[]}}\n\n"
                .to_vec(),
        )
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    for tool in ["read_note", "create_note"] {
        let headers = [("accept-encoding", "gzip, zstd")];
        let body = call("1", tool, json!({}), None);
        let answer = post_with(&mut sidecar.agent(), &headers, &body);

        assert_eq!(answer.header("cache-control"), Some("no-cache, no-transform"), "{tool}");
        assert_eq!(
            (answer.count("x-accel-buffering"), answer.header("content-encoding")),
            (1, None)
        );
        assert_eq!(answer.header("content-length"), None);
    }
}

#[test]
fn mcp_25_a_refusal_has_no_structured_content_and_an_upstreams_own_stays() {
    let upstream = Upstream::start(|_| {
        Act::json(
            200,
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true,"structuredContent":{"n":1.0}}}"#,
        )
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();

    let refused = post(&mut agent, &call("1", "delete_note", json!({}), None)).json();
    let made = post(&mut agent, &call("1", "create_note", json!({}), None));

    assert_eq!(refused["result"].get("structuredContent"), None);
    assert!(made.text().contains(r#""structuredContent":{"n":1.0}"#));
}

#[test]
fn mcp_28_what_is_said_of_tools_is_the_same_on_every_connection() {
    let page = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"delete_note","inputSchema":{"type":"object"}},{"name":"other"}],"nextCursor":"","ttlMs":5}}"#;
    let upstream = Upstream::start(move |_| Act::json(200, page));
    let sidecar = Sidecar::start(NOTES, &upstream);
    let list = || post(&mut sidecar.agent(), &request("1", "tools/list", json!({}))).text();

    assert_eq!(list(), list());
    assert!(list().contains(r#""nextCursor":"","ttlMs":5"#));
}

#[test]
fn mcp_29_progress_is_the_upstreams_alone() {
    let progress = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"t\",\"progress\":0.50}}\n\n";
    let upstream = Upstream::start(move |_| {
        Act::events(&format!(
            "{progress}{progress}data: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"content\":[]}}}}\n\n"
        ))
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let meta = Some(json!({"progressToken": "t"}));

    let body = call("1", "create_note", json!({}), meta);
    let text = post(&mut sidecar.agent(), &body).text();

    assert!(text.starts_with(&format!("{progress}{progress}data: ")), "{text}");
    assert_eq!(events(&text).len(), 3);
    assert!(upstream.only().text().contains(r#""progressToken":"t""#));
}

#[test]
fn mcp_30_a_modern_client_that_leaves_after_the_dispatch_leaves_a_known_outcome() {
    let (send, next) = std::sync::mpsc::channel::<()>();
    let next = std::sync::Mutex::new(Some(next));
    let upstream = Upstream::start(move |_| {
        let answer = Act::json(
            200,
            r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[]}}"#,
        );
        Act::After(next.lock().unwrap().take().unwrap(), Box::new(answer))
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();
    let params = json!({"name": "create_note", "arguments": {}, "_meta": modern(false)});
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "create_note"),
    ];
    agent.send("POST", "/mcp", &headers, &request("1", "tools/call", params));
    crate::support::wait::until("the call", || (upstream.count("POST") == 1).then_some(()));

    drop(agent);
    drop(send);

    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn mcp_37_38_a_clients_yes_is_no_persons_decision() {
    let upstream = upstream();
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();
    let accept = json!({"anvil.confirm": {"action": "accept", "content": {"confirm": true}}});

    let params = json!({"name": "purge", "arguments": {}, "_meta": modern(true)});
    let asked = post_modern(&mut agent, "1", params).json();
    let said = post_modern(
        &mut agent,
        "2",
        json!({"name": "purge", "arguments": {}, "_meta": modern(true), "inputResponses": accept}),
    );
    let word = Some(json!({"confirm": true}));
    let told = post(&mut agent, &call("3", "purge", json!({}), word)).json();

    for answer in [asked, said.json(), told] {
        assert_ne!(answer["result"]["resultType"], "input_required", "{answer}");
        assert!(answer["result"]["isError"] == true || answer.get("error").is_some(), "{answer}");
        assert!(
            !answer.to_string().contains("tbc1_"),
            "nothing that lets the caller approve itself"
        );
    }
    assert_eq!(calls(&upstream), 0);
}

#[test]
fn mcp_41_the_trace_goes_on_untouched() {
    let upstream = upstream();
    let sidecar = Sidecar::start(NOTES, &upstream);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let meta = Some(json!({"traceparent": trace, "tracestate": "a=b", "baggage": "c=d"}));
    let headers = [("traceparent", trace), ("tracestate", "a=b")];

    post_with(&mut sidecar.agent(), &headers, &call("1", "create_note", json!({}), meta.clone()));

    let sent = upstream.only();
    assert_eq!((sent.header("traceparent"), sent.header("tracestate")), (Some(trace), Some("a=b")));
    let body: Value = serde_json::from_slice(&sent.body).unwrap();
    assert_eq!(Some(body["params"]["_meta"].clone()), meta);
}

#[test]
fn mcp_43_44_a_call_as_a_task_is_gated_like_any_and_we_make_no_tasks() {
    let upstream = upstream();
    let sidecar = Sidecar::start(NOTES, &upstream);
    let params = json!({"name": "delete_note", "arguments": {}, "task": {"ttl": 60000}});

    let answer = post(&mut sidecar.agent(), &request("1", "tools/call", params)).json();

    assert_eq!(envelope(&answer["result"])["error"]["code"], "confirmation_required");
    assert_eq!(answer["result"].get("task"), None);
    assert_eq!(calls(&upstream), 0);
}

#[test]
fn mcp_45_a_question_comes_before_the_task() {
    let upstream = Upstream::start(|received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = message["id"].clone();
        let result = if message["params"].get("inputResponses").is_none() {
            json!({"resultType": "input_required", "requestState": "u",
                   "inputRequests": {"q": {"method": "elicitation/create", "params": {}}}})
        } else {
            json!({"resultType": "task", "taskId": "t1", "status": "working", "ttlMs": 60000})
        };
        Act::json(200, &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();
    let mut params = json!({"name": "create_note", "arguments": {}, "_meta": modern(true)});

    let asked = post_modern(&mut agent, "1", params.clone()).json();
    sidecar.wait_entries(&[("waiting", "input_required")]);
    params["requestState"] = asked["result"]["requestState"].clone();
    params["inputResponses"] = json!({"q": {"action": "accept", "content": {}}});
    let handle = post_modern(&mut agent, "2", params).json();

    assert_eq!(handle["result"]["taskId"], "t1", "{handle}");
    sidecar.wait_entries(&[("waiting", "task")]);
}

#[test]
fn mcp_48_credentials_and_what_is_said_of_them_pass_as_they_are() {
    let upstream = Upstream::start(|received| match received.header("authorization") {
        _ if received.target.starts_with("/.well-known/") => Act::json(200, r#"{"resource":"r"}"#),
        Some("Bearer good") => Act::json(200, DONE),
        _ => Act::with(
            401,
            &[("www-authenticate", "Bearer resource_metadata=\"https://a/.well-known/x\"")],
            "",
        ),
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();
    let body = call("1", "create_note", json!({}), None);

    let metadata = agent.get("/.well-known/oauth-protected-resource/mcp");
    let without = post(&mut agent, &body);
    let with = post_with(&mut agent, &[("authorization", "Bearer good")], &body);

    assert_eq!((metadata.status, metadata.text().as_str()), (200, r#"{"resource":"r"}"#));
    assert_eq!(without.status, 401);
    let challenge = Some("Bearer resource_metadata=\"https://a/.well-known/x\"");
    assert_eq!(without.header("www-authenticate"), challenge);
    assert_eq!((with.status, upstream.last().header("authorization")), (200, Some("Bearer good")));
    sidecar.wait_entries(&[("rejected", ""), ("accepted", "")]);
}

#[test]
fn mcp_49_a_caller_is_its_credential_whatever_its_session() {
    let upstream = upstream();
    let sidecar = Sidecar::start(NOTES, &upstream);
    let make = |agent: &mut Agent, bearer: &str, session: &str| {
        let headers = [("authorization", bearer), ("mcp-session-id", session)];
        let meta = Some(json!({"idempotency_key": "k1"}));
        let answer = post_with(agent, &headers, &call("1", "create_note", json!({}), meta)).json();
        answer["result"]["_meta"]["effect"]["replayed"] == true
    };
    let mut agent = sidecar.agent();

    let seen = [
        make(&mut agent, "Bearer a", "s1"),
        make(&mut agent, "Bearer a", "s2"),
        make(&mut agent, "Bearer b", "s1"),
    ];

    assert_eq!(seen, [false, true, false]);
    assert_eq!(calls(&upstream), 2);
}

#[test]
fn d12_an_upstream_without_a_standing_stream_says_so_itself() {
    for status in [404, 405, 406] {
        let upstream = Upstream::start(move |_| Act::with(status, &[("allow", "POST")], "no"));
        let sidecar = Sidecar::start(NOTES, &upstream);

        let answer =
            sidecar.agent().call("GET", "/mcp", &[("accept", "text/event-stream"), SESSION], "");

        assert_eq!((answer.status, answer.text().as_str()), (status, "no"));
        assert_eq!(answer.header("allow"), Some("POST"));
    }
}

#[test]
fn d13_a_session_id_is_opaque_both_ways() {
    let id = "!\"#$%&'()*+,-./0:;<=>?@A[\\]^_`a{|}~";
    let upstream = Upstream::start(move |received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let text = json!({"jsonrpc": "2.0", "id": message["id"], "result": {}}).to_string();
        Act::with(200, &[("content-type", "application/json"), ("mcp-session-id", id)], &text)
    });
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();

    let begun = post(&mut agent, &request("1", "initialize", json!({"capabilities": {}})));
    post_with(&mut agent, &[("mcp-session-id", id)], &request("2", "ping", json!({})));

    assert_eq!((begun.header("mcp-session-id"), begun.count("mcp-session-id")), (Some(id), 1));
    assert_eq!(upstream.last().header("mcp-session-id"), Some(id));
}

#[test]
fn d16_an_unknown_version_is_the_upstreams_to_judge_and_gates_nothing_less() {
    let upstream = upstream();
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();
    let name = "mcp-protocol-version";
    for version in ["1900-01-01", "not-a-version"] {
        let headers = [(name, version)];
        let read = post_with(&mut agent, &headers, &call("1", "read_note", json!({}), None));
        assert_eq!(read.json()["result"]["_meta"]["effect"]["class"], "read");
        assert_eq!(upstream.last().header(name), Some(version));

        let sent = upstream.received().len();
        let refused = post_with(&mut agent, &headers, &call("2", "delete_note", json!({}), None));
        assert_eq!(envelope(&refused.json()["result"])["error"]["code"], "confirmation_required");
        assert_eq!(upstream.received().len(), sent);
    }

    let sent = upstream.received().len();
    let two = [(name, "2025-11-25"), (name, "2025-06-18")];
    let answer = post_with(&mut agent, &two, &call("3", "read_note", json!({}), None));
    assert_eq!(answer.status, 400);
    assert_eq!(upstream.received().len(), sent);
}

#[test]
fn d18_an_error_on_the_stream_is_the_answer() {
    let cases = [(-32602, "rejected"), (-32603, "unknown"), (7, "unknown")];
    for (code, outcome) in cases {
        let upstream = Upstream::start(move |_| {
            Act::events(&format!(
                "id: e1\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{{\"code\":{code},\"message\":\"m\"}}}}\n\n"
            ))
        });
        let sidecar = Sidecar::start(NOTES, &upstream);

        let text = post(&mut sidecar.agent(), &call("1", "create_note", json!({}), None)).text();

        let [answer] = events(&text).try_into().unwrap();
        assert_eq!(answer["error"]["code"], code);
        assert_eq!(answer["error"]["data"]["effect"]["outcome"], outcome, "{code}");
        crate::support::wait::until("the end of the entry", || {
            (sidecar.entries()[0].0 == outcome).then_some(())
        });
    }
}

/// An agent whose call is held while its client is asked.
fn held(sidecar: &Sidecar) -> Agent {
    let capabilities = json!({"capabilities": {"elicitation": {}}});
    post(&mut sidecar.agent(), &request("1", "initialize", capabilities));
    let mut agent = sidecar.agent();
    let headers = [
        SESSION,
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ];
    agent.send("POST", "/mcp", &headers, &call("7", "delete_note", json!({}), None));
    assert_eq!(agent.head().unwrap().status, 200);
    agent
}

/// What ends the stream of a held call; what is done where its question stands.
fn told(agent: &mut Agent, at_question: impl Fn(&Value)) -> Value {
    let mut lines = Vec::new();
    while let Some(line) = agent.line() {
        lines.push(line.clone());
        if let Some(question) = line.strip_prefix("data: ").filter(|line| line.contains("anvil-")) {
            at_question(&serde_json::from_str(question).unwrap());
        }
        if line == "0\r\n" {
            break;
        }
    }
    events(&lines.concat()).pop().unwrap()
}

/// What elicited answers to questions that another process asked come to: the one that hears them
/// forgets them, and the one that waits refuses in time, with the token that makes the call anywhere.
#[test]
fn mcp_36_an_answer_that_reaches_another_process_makes_no_call_and_leaves_a_way_on() {
    let upstream = upstream();
    let mut setup = Setup::new(NOTES);
    setup.mcp.question = std::time::Duration::from_millis(300);
    let asking = setup.start(&upstream);
    let mut other = Setup::new(NOTES);
    other.key = Some(asking.shared.ledger.sealing_key());
    let other = other.start(&upstream);
    let mut agent = held(&asking);
    let answer = told(&mut agent, |question| {
        let heard = json!({"jsonrpc": "2.0", "id": question["id"],
            "result": {"action": "accept", "content": {"confirm": true}}});
        let answer = post_with(&mut other.agent(), &[SESSION], &heard.to_string());
        assert_eq!((answer.status, answer.text().as_str()), (202, ""));
    });

    assert_eq!(calls(&upstream), 0);
    assert_eq!(answer["id"], 7);
    let error = &envelope(&answer["result"])["error"];
    assert_eq!(error["code"], "confirmation_required");
    let token = error["details"]["confirm"]["token"].clone();
    let meta = Some(json!({"takeback/confirm": token}));
    let made =
        post_with(&mut asking.agent(), &[SESSION], &call("8", "delete_note", json!({}), meta));
    assert_eq!(made.json()["result"]["_meta"]["effect"]["outcome"], "accepted");
    assert_eq!(calls(&upstream), 1);
}

/// What becomes of a call that waits for its client's answer when nobody can answer any more.
#[test]
fn mcp_36_a_call_whose_session_or_process_ends_is_not_made_and_its_client_is_told() {
    for is_deleted in [true, false] {
        let upstream = Upstream::start(|received| match received.method.as_str() {
            "DELETE" => Act::with(204, &[], ""),
            _ => {
                let headers = [("content-type", "application/json"), SESSION];
                Act::with(200, &headers, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)
            }
        });
        let sidecar = Sidecar::start(NOTES, &upstream);
        let mut agent = held(&sidecar);
        let answer = told(&mut agent, |question| {
            if !is_deleted {
                sidecar.shared.tasks.hurry();
                return;
            }
            let ended = sidecar.agent().call("DELETE", "/mcp", &[SESSION], "");
            assert_eq!(ended.status, 204);
            let heard = json!({"jsonrpc": "2.0", "id": question["id"],
                "result": {"action": "accept", "content": {"confirm": true}}});
            post_with(&mut sidecar.agent(), &[SESSION], &heard.to_string());
        });

        assert_eq!(answer["id"], 7, "{is_deleted}");
        let error = &envelope(&answer["result"])["error"];
        assert_eq!(error["code"], "confirmation_required", "{is_deleted}");
        assert!(error["message"].as_str().unwrap().starts_with("Nothing was sent."));
        let sent = upstream.received();
        assert!(sent.iter().all(|received| !received.text().contains("tools/call")));
    }
}
