//! `policies/`: every folder compiles, the golden operations have their classes, and four of the
//! policies are driven through the sidecar.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};
use takeback::contract::json::Doc;
use takeback::contract::path::{Request, Scope};
use takeback::policy::{self, Choice, Found, Severity, Snapshot};

use crate::support::agent::Answer;
use crate::support::sidecar::Setup;
use crate::support::{Act, Agent, Sidecar, Upstream};

/// `id, api, operation, call, body, class, declared`: the call is made concrete; `-` is no body.
const GOLDEN: &str = include_str!("../vectors/golden.tsv");

/// Findings that a policy may have. Each of them states a limit and leaves the operation as it is.
const LIMITS: &[&str] = &[
    "effect/carrier_unsupported",
    "effect/read_on_unsafe_method",
    "policy/overlap",
    "spec/unverified",
];

/// Warnings that are meant: the folder, the operation, the code.
const MEANT: &[(&str, &str, &str)] =
    &[("kubernetes", "kubernetes.pods.evict", "spec/rejected_not_definite")];

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("policies").join(name)
}

fn folders() -> Vec<String> {
    let entries = std::fs::read_dir(folder("")).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_folder_compiles_clean() {
    let names = folders();

    let readme = std::fs::read_to_string(folder("README.md")).unwrap();
    assert!(names.len() >= 11, "{names:?}");
    for name in &names {
        assert!(readme.contains(&format!("[`{name}`]({name})")), "{name} is not in the README");
        let compiled = policy::load(&folder(name));
        let mut meant: Vec<_> = MEANT.iter().filter(|(folder, ..)| folder == name).collect();
        for found in &compiled.diagnostics {
            let is_limit = found.severity == Severity::Info && LIMITS.contains(&found.code);
            let operation = found.operation.as_deref().unwrap_or_default();
            let known =
                meant.iter().position(|(_, id, code)| *id == operation && *code == found.code);
            if let Some(known) = known {
                meant.remove(known);
            } else {
                assert!(is_limit, "{name}\n{}", compiled.human());
            }
        }
        assert!(meant.is_empty(), "{name} has no such finding any more: {meant:?}");
        let snapshot = compiled.snapshot.unwrap();
        assert!(snapshot.operations().iter().all(|served| !served.is_degraded()), "{name}");
    }
}

/// A call's operation, with its class.
fn chosen(snapshot: &Snapshot, call: &str, body: Option<&Doc>) -> String {
    let (method, target) = call.split_once(' ').unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query: serde_json::Map<String, Value> =
        pairs.map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let head = json!({"path": {}, "query": query, "header": {}});
    let head = Doc::parse(head.to_string()).unwrap();
    let (found, request) = if method == "tool" {
        let group = snapshot.find_tool(target).map_or(Found::None, Found::One);
        (group, Request::Arguments(body.expect("arguments").root()))
    } else {
        let found = snapshot.find_http(&method.parse().unwrap(), path);
        (found, Request::Http { head: head.root(), body: body.map(Doc::root), is_opaque: false })
    };
    match policy::choose(&found, &Scope { before: None, request, response: None, key: None }) {
        Choice::Undeclared { .. } => "undeclared".to_owned(),
        Choice::Declared(served) => {
            format!("{} {}", served.operation.class, served.operation.id)
        }
    }
}

#[test]
fn every_golden_operation_is_declared_with_its_class() {
    let mut lines = GOLDEN.lines();
    let header = lines.next().unwrap();
    assert_eq!(header, "id\tapi\toperation\tcall\tbody\tclass\tdeclared");
    let mut apis = BTreeSet::new();
    let mut ids = BTreeSet::new();

    for line in lines {
        let [id, api, operation, call, body, class, declared] =
            line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let compiled = policy::load(&folder(api));
        let body = (body != "-").then(|| Doc::parse(body.to_owned()).unwrap());

        let chosen = chosen(&compiled.snapshot.unwrap(), call, body.as_ref());

        assert_eq!(chosen, format!("{class} {declared}"), "{id} {operation}: {call}");
        apis.insert(api.to_owned());
        ids.insert(id.to_owned());
    }

    assert_eq!(ids.len(), 38);
    let without: Vec<String> =
        folders().into_iter().filter(|name| !apis.contains(name.as_str())).collect();
    assert_eq!(without, ["github-mini", "memory"]);
}

#[test]
fn an_undo_by_a_variant_of_the_same_call_selects_that_variant() {
    let snapshot = policy::load(&folder("pagerduty")).snapshot.unwrap();
    for (action, expected) in [
        ("trigger", "compensable pagerduty.events.trigger"),
        ("acknowledge", "irreversible pagerduty.events.acknowledge"),
        ("resolve", "irreversible pagerduty.events.resolve"),
        ("Trigger", "undeclared"),
    ] {
        let body = Doc::parse(json!({"event_action": action}).to_string()).unwrap();
        assert_eq!(chosen(&snapshot, "POST /enqueue", Some(&body)), expected);
    }
}

#[test]
fn slack_declares_no_get_that_writes_and_every_other_get_is_one() {
    let snapshot = policy::load(&folder("slack")).snapshot.unwrap();

    assert!(snapshot.undeclared_get_writes());
    assert_eq!(chosen(&snapshot, "GET /chat.postMessage?text=hi", None), "undeclared");
    assert_eq!(chosen(&snapshot, "GET /conversations.list", None), "read slack.conversations.list");
}

/// A policy of ours before an upstream that answers so.
fn driven(
    name: &str,
    script: impl Fn(&crate::support::upstream::Received) -> Act + Send + Sync + 'static,
) -> (Sidecar, Upstream) {
    let upstream = Upstream::start(script);
    (Setup::of_folder(&folder(name)).start(&upstream), upstream)
}

/// Makes a call that needs the token out of its own refusal.
fn confirmed(
    agent: &mut Agent,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let refused = agent.call(method, target, headers, body);
    assert_eq!(refused.status, 428, "{}", refused.text());
    let token = refused.token();
    let mut headers = headers.to_vec();
    headers.push(("effect-confirm", &token));
    agent.call(method, target, &headers, body)
}

#[test]
fn kubernetes_only_the_body_of_a_delete_makes_it_a_dry_run() {
    let (sidecar, upstream) = driven("kubernetes", |_| Act::json(200, r#"{"kind":"Status"}"#));
    let json = [("content-type", "application/json")];
    let yaml = [("content-type", "application/yaml")];
    for kind in ["pods", "configmaps"] {
        for path in [format!("{kind}/a"), kind.to_owned()] {
            let path = format!("/api/v1/namespaces/default/{path}");
            let query = format!("{path}?dryRun=All");
            for (target, headers, body) in [
                (&path, json, ""),
                (&query, json, ""),
                (&query, json, "{}"),
                (&query, json, r#"{"dryRun":[]}"#),
                (&path, json, r#"{"dryRun":["None"]}"#),
                (&path, json, r#"{"dryRun":["All","None"]}"#),
                (&path, json, r#"{"dryRun":"All"}"#),
                (&path, json, r#"[{"dryRun":["All"]}]"#),
                (&path, yaml, r#"{"dryRun":["All"]}"#),
            ] {
                let asked = sidecar.agent().call("DELETE", target, &headers, body);
                assert_eq!(asked.status, 428, "{target} {body}: {}", asked.text());
                assert_eq!(asked.report()["class"], "irreversible", "{target} {body}");
            }
            // A query that says otherwise than the body may be what is obeyed.
            let other = format!("{path}?dryRun=None");
            for (target, body, code) in [
                (&other, r#"{"dryRun":["All"]}"#, "ambiguous_member"),
                (&path, r#"{"dryRun":["All"],"DryRun":[]}"#, "ambiguous_member"),
                (&path, r#"{"dryRun":["All"],"dryRun":[]}"#, "invalid_json"),
            ] {
                let refused = sidecar.agent().call("DELETE", target, &json, body);
                assert_eq!((refused.status, refused.code().as_str()), (400, code), "{body}");
            }
        }
    }
    assert!(upstream.received().is_empty());

    for target in ["pods/a", "pods/a?dryRun=All", "pods", "configmaps/a", "configmaps"] {
        let target = format!("/api/v1/namespaces/default/{target}");
        let tried = sidecar.agent().call("DELETE", &target, &json, r#"{"dryRun":["All"]}"#);
        assert_eq!((tried.status, &tried.report()["class"]), (200, &json!("read")), "{target}");
        assert_eq!(upstream.last().text(), r#"{"dryRun":["All"]}"#);
    }
}

#[test]
fn kubernetes_any_call_through_a_proxy_is_irreversible() {
    let (sidecar, upstream) = driven("kubernetes", |_| Act::json(200, "{}"));
    let of = "/api/v1/namespaces/d";
    let proxies =
        [format!("{of}/pods/p"), format!("{of}/services/s"), "/api/v1/nodes/n".to_owned()];
    for proxy in proxies {
        for rest in ["proxy", "proxy/", "proxy/admin/wipe", "Proxy/admin"] {
            for method in ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"] {
                let target = format!("{proxy}/{rest}");
                let asked = sidecar.agent().call(method, &target, &[], "");
                assert_eq!(asked.status, 428, "{method} {target}");
                assert_eq!(asked.report()["class"], "irreversible", "{method} {target}");
            }
        }
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn github_a_comment_is_taken_back_by_the_call_that_its_report_names() {
    let (sidecar, upstream) = driven("github", |received| match received.method.as_str() {
        "POST" => Act::json(201, r#"{"id":100,"body":"hi"}"#),
        _ => Act::Bytes(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
    });
    let mut agent = sidecar.agent();

    let made = agent.post(
        "/repos/octo/hello/issues/1/comments",
        &[("idempotency-key", "mine")],
        r#"{"body":"hi"}"#,
    );

    let report = made.report();
    assert_eq!(report["class"], "reversible");
    assert_eq!(report["operation"], "github.comments.create");
    assert_eq!(report["outcome"], "accepted");
    assert_eq!(report["verdict"], "verified");
    assert_eq!(report["ledger_id"], "mine");
    // GitHub reads no key, so none goes there and none is claimed.
    assert_eq!(report["idempotency_key"], Value::Null);
    assert_eq!(upstream.only().header("idempotency-key"), None);
    let undo = &report["undo"];
    assert_eq!(undo["kind"], "inverse");
    assert_eq!(undo["operation"], "github.comments.delete");
    assert_eq!(undo["http"]["path"], "/repos/octo/hello/issues/comments/100");

    let (method, path) = (&undo["http"]["method"], &undo["http"]["path"]);
    let undone = confirmed(&mut agent, method.as_str().unwrap(), path.as_str().unwrap(), &[], "");

    assert_eq!(undone.status, 204);
    assert_eq!(undone.report()["outcome"], "accepted");
    assert_eq!(upstream.count("DELETE"), 1);
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", "")]);
}

#[test]
fn stripe_a_form_goes_through_byte_for_byte_with_the_key_in_the_header() {
    let (sidecar, upstream) = driven("stripe", |received| match received.target.as_str() {
        "/v1/charges" => {
            Act::json(200, r#"{"id":"ch_1","object":"charge","status":"succeeded","amount":2000}"#)
        }
        _ => Act::json(200, r#"{"id":"re_1","object":"refund","status":"succeeded"}"#),
    });
    let mut agent = sidecar.agent();
    let form = [("content-type", "application/x-www-form-urlencoded")];
    // Spelt as no serializer would spell it again.
    let body = "amount=2000&currency=usd&metadata[order]=6735&description=a+b%20c%2bd&source=tok";

    let charged = agent.call("POST", "/v1/charges", &form, body);

    let report = charged.report();
    assert_eq!(report["class"], "compensable");
    assert_eq!(report["operation"], "stripe.charges.create");
    assert_eq!(report["verdict"], "verified");
    let sent = upstream.only();
    assert_eq!(sent.text(), body);
    assert_eq!(sent.header("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(report["idempotency_key"], sent.header("idempotency-key").unwrap());
    let undo = &report["undo"];
    assert_eq!(undo["kind"], "compensate");
    assert_eq!(undo["http"], json!({"method": "POST", "path": "/v1/refunds"}));
    assert_eq!(undo["arguments"], json!({"body.charge": "ch_1"}));

    let refunded = confirmed(&mut agent, "POST", "/v1/refunds", &form, "charge=ch_1");

    assert_eq!(refunded.report()["outcome"], "accepted");
    let received = upstream.received();
    let keys: BTreeSet<_> = received.iter().map(|sent| sent.header("idempotency-key")).collect();
    assert_eq!(received.len(), 2);
    assert_eq!(keys.len(), 2, "the refund has a key of its own: {keys:?}");
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", "")]);
}

#[test]
fn slack_a_failure_inside_a_200_is_a_rejection_where_nothing_was_done() {
    let (sidecar, upstream) = driven("slack", |received| {
        let body: Value = serde_json::from_slice(&received.body).unwrap();
        match body["text"].as_str() {
            Some("no channel") => Act::json(200, r#"{"ok":false,"error":"channel_not_found"}"#),
            Some("crash") => Act::json(200, r#"{"ok":false,"error":"fatal_error"}"#),
            _ => Act::json(200, r#"{"ok":true,"channel":"C1","ts":"1.2"}"#),
        }
    });
    let mut agent = sidecar.agent();
    let mut post = |text: &str| {
        let body = json!({"channel": "C1", "text": text}).to_string();
        let answer = agent.post("/chat.postMessage", &[], &body);
        assert_eq!(answer.status, 200);
        answer.report()
    };

    let rejected = post("no channel");
    let crashed = post("crash");
    let posted = post("hello");

    assert_eq!(rejected["outcome"], "rejected");
    assert_eq!(rejected["undo"], Value::Null);
    // Part of the work may have been done: no rejection, and nothing to take back by.
    assert_eq!(crashed["outcome"], "accepted");
    assert_eq!(crashed["verdict"], "contradicted");
    assert_eq!(crashed["undo"], Value::Null);
    assert_eq!(posted["class"], "compensable");
    assert_eq!(posted["outcome"], "accepted");
    assert_eq!(posted["verdict"], "verified");
    assert_eq!(posted["undo"]["http"]["path"], "/chat.delete");
    assert_eq!(posted["undo"]["arguments"], json!({"body.channel": "C1", "body.ts": "1.2"}));
    assert_eq!(post("no channel")["outcome"], "rejected", "what was rejected may run again");
    assert_eq!(upstream.count("POST"), 4);
}

#[test]
fn slack_a_reaction_is_taken_back_and_a_schedule_has_its_deadline_in_seconds() {
    let (sidecar, upstream) = driven("slack", |received| match received.target.as_str() {
        "/chat.scheduleMessage" => Act::json(
            200,
            r#"{"ok":true,"channel":"C1","scheduled_message_id":"Q1","post_at":4000000000}"#,
        ),
        _ => Act::json(200, r#"{"ok":true}"#),
    });
    let mut agent = sidecar.agent();

    // A form and a JSON body are read alike.
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let body = "channel=C1&name=eyes&timestamp=1.2";
    let reacted = agent.call("POST", "/reactions.add", &form, body).report();
    assert_eq!(reacted["class"], "reversible");
    let arguments = json!({"body.channel": "C1", "body.name": "eyes", "body.timestamp": "1.2"});
    assert_eq!(reacted["undo"]["arguments"], arguments);
    let undone = json!({"channel": "C1", "name": "eyes", "timestamp": "1.2"}).to_string();
    assert_eq!(agent.post("/reactions.remove", &[], &undone).report()["outcome"], "accepted");

    let message = r#"{"channel":"C1","text":"hi","post_at":4000000000}"#;
    let scheduled = agent.post("/chat.scheduleMessage", &[], message).report();
    assert_eq!(scheduled["deadline_ms"], 4_000_000_000_000_i64);
    assert_eq!(scheduled["undo"]["operation"], "slack.scheduled.delete");
    assert_eq!(upstream.count("POST"), 3);
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", ""), ("accepted", "")]);
}

#[test]
fn filesystem_a_move_is_taken_back_by_the_same_tool_with_its_arguments_exchanged() {
    let (sidecar, upstream) = driven("filesystem", |received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let result = json!({
            "content": [{"type": "text", "text": "moved"}],
            "structuredContent": {"content": "moved"}
        });
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        Act::json(200, &answer.to_string())
    });
    let mut agent = sidecar.agent();
    let mut call = |id: u32, tool: &str, arguments: &Value| {
        let params = json!({"name": tool, "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let accept = [("accept", "application/json, text/event-stream")];
        agent.post("/mcp", &accept, &body.to_string()).json()["result"]["_meta"]["effect"].clone()
    };

    let moved = call(1, "move_file", &json!({"source": "/a", "destination": "/b"}));

    assert_eq!(moved["class"], "reversible");
    assert_eq!(moved["verdict"], "verified");
    let undo = &moved["undo"];
    assert_eq!(undo["tool"], "move_file");
    assert_eq!(undo["arguments"], json!({"source": "/b", "destination": "/a"}));

    let back = call(2, undo["tool"].as_str().unwrap(), &undo["arguments"]);

    assert_eq!(back["outcome"], "accepted");
    let sent: Value = serde_json::from_slice(&upstream.received()[1].body).unwrap();
    assert_eq!(sent["params"]["arguments"], json!({"source": "/b", "destination": "/a"}));
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", "")]);

    let shown = call(3, "edit_file", &json!({"path": "/a", "edits": [], "dryRun": true}));
    assert_eq!(shown["class"], "read");
    let edited = call(4, "edit_file", &json!({"path": "/a", "edits": []}));
    assert_eq!(edited["refused"], "confirmation_required");
    assert_eq!(upstream.count("POST"), 3);
}

#[test]
fn pagerduty_a_key_is_made_at_the_top_of_the_body_and_the_resolve_names_it() {
    let (sidecar, upstream) = driven("pagerduty", |received| {
        let body: Value = serde_json::from_slice(&received.body).unwrap();
        let answer = json!({"status": "success", "dedup_key": body["dedup_key"]});
        Act::json(202, &answer.to_string())
    });
    let mut agent = sidecar.agent();
    let json = [("content-type", "application/json")];
    let event = r#"{"routing_key":"r","event_action":"trigger","payload":{"summary":"s"}}"#;

    let report = agent.post("/enqueue", &[], event).report();

    assert_eq!(report["operation"], "pagerduty.events.trigger");
    let sent: Value = serde_json::from_slice(&upstream.only().body).unwrap();
    let key = &report["idempotency_key"];
    assert!(key.is_string());
    assert_eq!(sent["dedup_key"], *key);
    assert_eq!(sent["payload"], json!({"summary": "s"}));
    let resolve = json!({"routing_key": "r", "event_action": "resolve", "dedup_key": key});
    let arguments = json!({
        "body.routing_key": "r", "body.event_action": "resolve", "body.dedup_key": key
    });
    assert_eq!(report["undo"]["operation"], "pagerduty.events.resolve");
    assert_eq!(report["undo"]["arguments"], arguments);

    let resolved = confirmed(&mut agent, "POST", "/enqueue", &json, &resolve.to_string());

    assert_eq!(resolved.report()["outcome"], "accepted");
    let sent: Value = serde_json::from_slice(&upstream.received()[1].body).unwrap();
    assert_eq!(sent, resolve, "the alert's key passes as it came");
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", "")]);
}

#[test]
fn square_a_refund_goes_under_a_key_of_its_own() {
    let (sidecar, upstream) = driven("square", |received| match received.target.as_str() {
        "/v2/payments" => Act::json(
            200,
            r#"{"payment":{"id":"p1","status":"COMPLETED",
                "amount_money":{"amount":5,"currency":"USD"},
                "total_money":{"amount":6,"currency":"USD"}}}"#,
        ),
        _ => Act::json(200, r#"{"refund":{"id":"f1","status":"PENDING","payment_id":"p1"}}"#),
    });
    let mut agent = sidecar.agent();
    let json = [("content-type", "application/json")];
    let payment = r#"{"source_id":"s","idempotency_key":"mine",
        "amount_money":{"amount":5,"currency":"USD"}}"#;

    let paid = agent.post("/v2/payments", &[], payment).report();
    assert_eq!(paid["idempotency_key"], "mine");
    assert_eq!(paid["verdict"], "verified");
    // With the tip.
    let money = json!({"amount": 6, "currency": "USD"});
    let arguments = json!({"body.payment_id": "p1", "body.amount_money": money});
    assert_eq!(paid["undo"]["arguments"], arguments);
    let refund = json!({"payment_id": "p1", "amount_money": money}).to_string();
    let refunded = confirmed(&mut agent, "POST", "/v2/refunds", &json, &refund).report();

    assert_eq!(refunded["verdict"], "verified");
    let sent: Value = serde_json::from_slice(&upstream.received()[1].body).unwrap();
    assert_eq!(sent["idempotency_key"], refunded["idempotency_key"]);
    assert_ne!(sent["idempotency_key"], "mine");
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", "")]);
}

#[test]
fn gmail_a_send_is_staged_as_a_draft_that_wraps_the_message() {
    let (sidecar, upstream) =
        driven("gmail", |_| Act::json(200, r#"{"id":"d1","message":{"id":"m1"}}"#));
    let staged = [("effect-stage", "true")];

    let answer =
        sidecar.agent().post("/gmail/v1/users/me/messages/send", &staged, r#"{"raw":"eA=="}"#);

    let report = answer.report();
    assert_eq!(report["operation"], "gmail.messages.send");
    assert_eq!(report["staged"]["handle"], "d1");
    let promote = json!({"method": "POST", "path": "/gmail/v1/users/me/drafts/send"});
    assert_eq!(report["staged"]["promote"]["http"], promote);
    let discard = json!({"method": "DELETE", "path": "/gmail/v1/users/me/drafts/d1"});
    assert_eq!(report["staged"]["discard"]["http"], discard);
    let sent = upstream.only();
    assert_eq!(sent.target, "/gmail/v1/users/me/drafts");
    assert_eq!(sent.text(), r#"{"message":{"raw":"eA=="}}"#);
}
