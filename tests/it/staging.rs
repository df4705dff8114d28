use serde_json::{Value, json};

use crate::support::mcp::{call, envelope, modern, post, post_modern, request};
use crate::support::{Act, Sidecar, Upstream};

const POLICY: &str = r#"
version: 1
operations:
  releases.create:
    match: { tool: create_release }
    effect:
      class: irreversible
      kind: create
      draft:
        operation: releases.draft
        arguments:
          tag: request.tag
          name: request.name?
          draft: { const: true }
        handle: response.id
        promote:
          operation: releases.publish
          arguments: { id: response.id, tag: request.tag }
        discard:
          operation: releases.delete
          arguments: { id: response.id }
  releases.draft:
    match:
      tool: create_release
      where: { request.draft: { equals: true } }
    effect:
      class: reversible
      kind: create
      inverse: { operation: releases.delete, arguments: { id: response.id } }
      idempotency: { type: argument, name: key }
  releases.publish:
    match: { tool: publish_release }
    effect: { class: irreversible, kind: update }
  releases.delete:
    match: { tool: delete_release }
    effect: { class: irreversible, kind: delete }
  mail.send:
    match: { tool: send_mail }
    effect:
      class: irreversible
      kind: external_side_effect
      draft:
        operation: mail.draft
        arguments: { to: request.to }
        handle: response.id
        promote: { operation: mail.send_draft, arguments: { id: response.id } }
  mail.draft:
    match: { tool: draft_mail }
    effect: { class: irreversible, kind: create }
    confirm: caller
  mail.send_draft:
    match: { tool: send_draft }
    effect: { class: irreversible, kind: external_side_effect }
  http.create:
    match: { http: "POST /releases" }
    effect:
      class: irreversible
      kind: create
      draft:
        operation: http.draft
        arguments:
          body.tag: request.body.tag
          body.draft: { const: true }
        handle: response.id
        promote: { operation: http.publish, arguments: { path.id: response.id } }
  http.draft:
    match: { http: "POST /drafts" }
    effect: { class: reversible, kind: create, inverse: { operation: http.delete, arguments: { path.id: response.id } } }
  http.delete:
    match: { http: "DELETE /drafts/{id}" }
    effect: { class: irreversible, kind: delete }
  http.publish:
    match: { http: "POST /drafts/{id}/publish" }
    effect: { class: irreversible, kind: update }
  http.plain:
    match: { http: "POST /plain" }
    effect: { class: irreversible, kind: create }
  http.read:
    match: { http: "GET /plain" }
    effect: { class: read }
"#;

const TOOLS: &str = r#"{"tools":[
{"name":"create_release","inputSchema":{"type":"object","required":["tag"],"properties":{"tag":{"type":"string"},"name":{"type":"string"},"draft":{"type":"boolean"},"key":{}},"additionalProperties":false},"outputSchema":{"type":"object"}},
{"name":"send_mail","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}},
{"name":"draft_mail","inputSchema":{"type":"object"}}]}"#;

fn upstream() -> Upstream {
    upstream_of(TOOLS.to_owned())
}

/// An upstream that shows these tools.
fn upstream_of(tools: String) -> Upstream {
    Upstream::start(move |received| {
        if received.target != "/mcp" {
            return Act::json(201, r#"{"id":"d1"}"#);
        }
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = message["id"].clone();
        let result = match message["method"].as_str() {
            Some("tools/list") => tools.as_str(),
            _ => r#"{"content":[],"structuredContent":{"id":"r1"}}"#,
        };
        Act::json(200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
    })
}

fn stage(id: &str, tool: &str, arguments: Value) -> String {
    call(id, tool, arguments, Some(json!({"stage": true, "idempotency_key": "k1"})))
}

fn calls(upstream: &Upstream) -> Vec<Value> {
    let received = upstream.received();
    let bodies = received.iter().map(|r| serde_json::from_slice::<Value>(&r.body).unwrap());
    bodies.filter(|body| body["method"] == "tools/call").collect()
}

#[test]
fn adr_0030_7_a_staged_call_performs_the_draft_and_says_how_to_go_on() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let answer = post(&mut agent, &stage("1", "create_release", json!({"tag": "v1"}))).json();

    let effect = &answer["result"]["_meta"]["effect"];
    assert_eq!(effect["class"], "irreversible", "of the staged effect: {answer}");
    assert_eq!(effect["operation"], "releases.create");
    assert_eq!(effect["undo"], Value::Null);
    assert_eq!(effect["idempotency_key"], "k1");
    assert_eq!(
        effect["staged"],
        json!({
            "draft_operation": "releases.draft",
            "handle": "r1",
            "promote": {
                "operation": "releases.publish", "tool": "publish_release",
                "arguments": {"id": "r1", "tag": "v1"}
            },
            "discard": {
                "operation": "releases.delete", "tool": "delete_release",
                "arguments": {"id": "r1"}
            }
        })
    );
    let sent = calls(&upstream);
    assert_eq!(sent.len(), 1);
    assert_eq!(
        sent[0]["params"],
        json!({"name": "create_release", "arguments": {"tag": "v1", "draft": true, "key": "k1"}})
    );
    sidecar.wait_entries(&[("accepted", "")]);

    let again = post(&mut agent, &stage("2", "create_release", json!({"tag": "v1"}))).json();
    assert_eq!(again["result"]["_meta"]["effect"]["replayed"], true);
    assert_eq!(again["result"]["_meta"]["effect"]["staged"], effect["staged"]);
    assert_eq!(calls(&upstream).len(), 1);
}

#[test]
fn mcp_14_a_staged_modern_call_names_its_draft_in_the_header_and_changes_nothing_else() {
    // Without an output schema, which what a draft gives would have to meet.
    let upstream = upstream_of(TOOLS.replace(r#","outputSchema":{"type":"object"}"#, ""));
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut meta = modern(false);
    (meta["stage"], meta["confirm"]) = (json!(true), json!(true));
    let params = json!({"name": "send_mail", "arguments": {"to": "a"}, "_meta": meta});

    let made = post_modern(&mut sidecar.agent(), "1", params).json();

    let staged = &made["result"]["_meta"]["effect"]["staged"];
    assert_eq!(staged["draft_operation"], "mail.draft", "{made}");
    let sent = upstream.received();
    let sent = sent.iter().find(|received| received.text().contains("draft_mail")).unwrap();
    assert_eq!(sent.header("mcp-name"), Some("draft_mail"));
    assert_eq!(sent.header("mcp-method"), Some("tools/call"));
    let sent: Value = serde_json::from_slice(&sent.body).unwrap();
    let version = &sent["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
    assert_eq!((&sent["params"]["name"], version), (&json!("draft_mail"), &json!("2026-07-28")));
}

#[test]
fn a_staged_call_is_neither_the_real_one_nor_a_repeat_of_it() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let meta = Some(json!({"stage": true}));
    post(&mut agent, &call("1", "create_release", json!({"tag": "v1"}), meta));

    let real = post(&mut agent, &call("2", "create_release", json!({"tag": "v1"}), None)).json();
    let reused = post(&mut agent, &stage("3", "create_release", json!({"tag": "v2"}))).json();
    let meta = Some(json!({"idempotency_key": "k1"}));
    let unstaged =
        post(&mut agent, &call("4", "create_release", json!({"tag": "v2"}), meta)).json();

    let refused = &envelope(&real["result"])["error"];
    assert_eq!(refused["code"], "confirmation_required");
    assert_eq!(reused["result"]["_meta"]["effect"]["outcome"], "accepted");
    assert_eq!(envelope(&unstaged["result"])["error"]["code"], "idempotency_key_reused");
}

#[test]
fn adr_0030_7_what_cannot_be_staged_is_refused_and_nothing_is_called() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let cases = [
        ("publish_release", json!({}), "effect/no_draft_form"),
        ("unknown_tool", json!({}), "effect/no_draft_form"),
        ("create_release", json!({"name": "x"}), "effect/draft_argument_missing"),
        ("create_release", json!({"tag": 7}), "effect/draft_input_invalid"),
        ("send_mail", json!({"to": "a"}), "effect/draft_output_schema"),
    ];
    for (tool, arguments, code) in cases {
        let answer = post(&mut agent, &stage("1", tool, arguments)).json();
        let error = &envelope(&answer["result"])["error"];
        assert_eq!(error["details"]["code"], code, "{tool}");
        let kind = match code {
            "effect/draft_argument_missing" | "effect/draft_input_invalid" => "validation_error",
            _ => "unsupported_operation",
        };
        assert_eq!(error["code"], kind, "{tool}");
        assert_eq!(answer["result"]["_meta"]["effect"]["refused"], code, "{tool}");
    }
    for stage in [json!("yes"), json!(1), Value::Null] {
        let meta = Some(json!({"stage": stage}));
        let answer = post(&mut agent, &call("1", "create_release", json!({"tag": "v"}), meta));
        let error = &envelope(&answer.json()["result"])["error"];
        assert_eq!(error["code"], "validation_error", "{stage}");
        assert_eq!(error["details"]["code"], "effect/invalid_meta", "{stage}");
    }
    assert!(calls(&upstream).is_empty());
    assert!(sidecar.entries().is_empty());
}

#[test]
fn adr_0030_7_a_draft_that_cannot_be_judged_or_is_not_there_is_not_sent() {
    let list = |tools: &str| format!(r#"{{"tools":[{tools}]}}"#);
    let pattern = r##"{"name":"create_release","inputSchema":{"type":"object","properties":{"tag":{"anyOf":[{"$ref":"#/$defs/tag"}]}},"$defs":{"tag":{"pattern":"^v"}}}}"##;
    let cases = [
        (list(pattern), "validation_error", "effect/draft_input_invalid"),
        (list(r#"{"name":"other"}"#), "unsupported_operation", "effect/draft_unavailable"),
    ];
    for (tools, kind, code) in cases {
        let upstream = Upstream::start(move |received| {
            let message: Value = serde_json::from_slice(&received.body).unwrap();
            let id = message["id"].clone();
            Act::json(200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{tools}}}"#))
        });
        let sidecar = Sidecar::start(POLICY, &upstream);
        let body = stage("1", "create_release", json!({"tag": "v1"}));

        let answer = post(&mut sidecar.agent(), &body).json();

        let error = &envelope(&answer["result"])["error"];
        assert_eq!((&error["code"], &error["details"]["code"]), (&json!(kind), &json!(code)));
        assert!(calls(&upstream).is_empty());
        assert!(sidecar.entries().is_empty());
        if kind == "validation_error" {
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("the rule `pattern`, which is not judged here"), "{message}");
        }
    }
}

#[test]
fn the_drafts_own_gates_hold_and_the_callers_confirmation_carries() {
    let tools = TOOLS.replace(
        r#""outputSchema":{"type":"object"}},
{"name":"draft_mail""#,
        r#""x":1},
{"name":"draft_mail""#,
    );
    let upstream = Upstream::start(move |received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = message["id"].clone();
        let result = match message["method"].as_str() {
            Some("tools/list") => tools.clone(),
            _ => r#"{"content":[]}"#.to_owned(),
        };
        Act::json(200, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let meta = |confirm: bool| Some(json!({"stage": true, "confirm": confirm}));
    let refused = post(&mut agent, &call("1", "send_mail", json!({"to": "a"}), meta(false))).json();
    let made = post(&mut agent, &call("2", "send_mail", json!({"to": "a"}), meta(true))).json();

    assert_eq!(envelope(&refused["result"])["error"]["code"], "confirmation_required");
    let effect = &made["result"]["_meta"]["effect"];
    assert_eq!(effect["operation"], "mail.send");
    assert_eq!(effect["staged"]["handle"], Value::Null);
    assert_eq!(effect["staged"]["promote"], Value::Null);
    assert!(effect["staged"]["unavailable"].as_str().unwrap().contains("response.id"));
    let sent = calls(&upstream);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0]["params"], json!({"name": "draft_mail", "arguments": {"to": "a"}}));
}

#[test]
fn effect_stage_does_the_same_over_http() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let staged = [("effect-stage", "true")];

    let answer = agent.post("/releases", &staged, r#"{"tag":"v1","other":1}"#);
    let plain = agent.post("/plain", &staged, "{}");
    let missing = agent.post("/releases", &staged, r#"{"other":1}"#);
    let read = agent.call("GET", "/plain", &staged, "");

    assert_eq!(answer.status, 201);
    let report = answer.report();
    assert_eq!(report["operation"], "http.create");
    assert_eq!(report["staged"]["handle"], "d1");
    assert_eq!(
        report["staged"]["promote"]["http"],
        json!({"method": "POST", "path": "/drafts/d1/publish"})
    );
    assert_eq!(report["staged"]["discard"], Value::Null);
    let sent = upstream.only();
    assert_eq!((sent.method.as_str(), sent.target.as_str()), ("POST", "/drafts"));
    assert_eq!(
        serde_json::from_slice::<Value>(&sent.body).unwrap(),
        json!({"tag": "v1", "draft": true})
    );
    let seen = [plain, missing, read].map(|answer| {
        let error = answer.json()["error"].clone();
        (answer.status, answer.code(), error["details"]["code"].as_str().unwrap().to_owned())
    });
    let expected = [
        (422, "unsupported_operation", "effect/no_draft_form"),
        (400, "validation_error", "effect/draft_argument_missing"),
        (422, "unsupported_operation", "effect/no_draft_form"),
    ];
    assert_eq!(seen, expected.map(|(status, kind, code)| (status, kind.into(), code.into())));
}

#[test]
fn mcp_27_the_declared_draft_is_listed() {
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);

    let listed = post(&mut sidecar.agent(), &request("1", "tools/list", json!({}))).json();

    let mail = &listed["result"]["tools"][1]["_meta"]["anvil/effect_contract"];
    assert_eq!(
        mail["draft"],
        json!({
            "operation": "mail.draft", "tool": "draft_mail",
            "arguments": {"to": "request.to"}, "handle": "response.id",
            "promote": {
                "operation": "mail.send_draft", "tool": "send_draft",
                "arguments": {"id": "response.id"}
            }
        })
    );
    let release = &listed["result"]["tools"][0]["_meta"];
    assert_eq!(release["anvil/effect_class"], "irreversible");
    assert_eq!(release.get("anvil/operation_id"), None, "two operations");
    assert_eq!(release["anvil/effect_contract"]["variants"][1]["operation"], "releases.draft");
}
