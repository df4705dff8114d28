use serde_json::{Value, json};

use crate::support::mcp::{envelope, events, modern, post, post_modern, request};
use crate::support::sidecar::Setup;
use crate::support::{Act, Sidecar, Upstream};
use takeback::mcp::answer::Reports;

const POLICY: &str = r#"
version: 1
operations:
  mail.send:
    match: { tool: send_mail }
    effect:
      class: irreversible
      kind: external_side_effect
      idempotency: { type: argument, name: key }
    confirm: none
  mail.hidden:
    match: { tool: hidden }
    effect:
      class: irreversible
      kind: external_side_effect
      idempotency: { type: argument, name: key }
    confirm: none
  mail.list:
    match: { tool: list_mail }
    effect: { class: read }
"#;

const TOOLS: &str = r#"{"tools":[{"name":"send_mail","inputSchema":{"type":"object","properties":{
"key":{"type":"string","x-mcp-header":"Idempotency-Key"},"to":{"type":"string","x-mcp-header":"To"},
"n":{"type":"integer","x-mcp-header":"N"},"none":{"type":"string","x-mcp-header":"None"}}}}]}"#;

fn upstream(as_events: bool) -> Upstream {
    Upstream::start(move |received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap();
        let id = message["id"].clone();
        let result = match message["method"].as_str() {
            Some("tools/list") if message["params"]["cursor"] == "next" => TOOLS.replace('\n', ""),
            Some("tools/list") => r#"{"tools":[],"nextCursor":"next"}"#.to_owned(),
            _ => r#"{"content":[],"_meta":{"effect":{"class":"read"}}}"#.to_owned(),
        };
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        if as_events { Act::events(&format!("data: {text}\n\n")) } else { Act::json(200, &text) }
    })
}

#[test]
fn mcp_15_a_key_in_an_argument_is_mirrored_in_its_header() {
    for as_events in [false, true] {
        let upstream = upstream(as_events);
        let sidecar = Sidecar::start(POLICY, &upstream);
        let arguments = json!({"to": "é", "n": 42, "key": null});
        let params = json!({"name": "send_mail", "arguments": arguments, "_meta": modern(false)});

        let answer = post_modern(&mut sidecar.agent(), "1", params);

        let message = if as_events { events(&answer.text())[0].clone() } else { answer.json() };
        assert_eq!(message["result"]["_meta"]["effect"]["outcome"], "accepted");
        let sent = upstream.last();
        let body: Value = serde_json::from_slice(&sent.body).unwrap();
        let key = body["params"]["arguments"]["key"].as_str().unwrap();
        assert_eq!(sent.header("mcp-param-idempotency-key"), Some(key));
        assert_eq!(sent.header("mcp-param-to"), Some("=?base64?w6k=?="));
        assert_eq!(sent.header("mcp-param-n"), Some("42"));
        assert_eq!(sent.header("mcp-param-none"), None);
        let listed: Vec<_> = upstream
            .received()
            .into_iter()
            .filter(|received| received.header("mcp-method") == Some("tools/list"))
            .collect();
        assert_eq!(listed.len(), 2, "both pages, and no more");
    }
}

#[test]
fn mcp_15_a_tool_that_nobody_can_see_is_not_called_with_a_changed_argument() {
    let upstream = upstream(false);
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let params = json!({"name": "hidden", "arguments": {}, "_meta": modern(false)});

    let refused = post_modern(&mut agent, "1", params).json();
    let legacy = request("2", "tools/call", json!({"name": "hidden", "arguments": {}}));
    let called = post(&mut agent, &legacy).json();

    assert_eq!(envelope(&refused["result"])["error"]["code"], "tool_unseen");
    assert_eq!(called["result"]["_meta"]["effect"]["outcome"], "accepted", "{called}");
}

#[test]
fn mcp_39_what_becomes_of_an_upstreams_report_is_the_operators_choice() {
    for reports in Reports::ALL {
        let upstream = upstream(false);
        let mut setup = Setup::new(POLICY);
        setup.mcp.reports = *reports;
        let sidecar = setup.start(&upstream);
        for tool in ["list_mail", "hidden"] {
            let call = request("1", "tools/call", json!({"name": tool, "arguments": {}}));
            let meta = post(&mut sidecar.agent(), &call).json()["result"]["_meta"].clone();
            let ours = match reports {
                Reports::Ignore | Reports::Replace => &meta["effect"],
                Reports::Trust => &meta["takeback/effect"],
            };
            assert_eq!(
                ours["operation"],
                if tool == "hidden" { "mail.hidden" } else { "mail.list" }
            );
            let theirs = json!({"class": "read"});
            match reports {
                Reports::Ignore => assert_eq!(meta.as_object().unwrap().len(), 1),
                Reports::Replace => assert_eq!(meta["anvil/upstream_effect"], theirs),
                Reports::Trust => assert_eq!(meta["effect"], theirs),
            }
        }
    }
}

#[test]
fn callers_that_come_together_ask_for_the_list_once() {
    let upstream = upstream(false);
    let sidecar = Sidecar::start(POLICY, &upstream);
    let threads: Vec<_> = (0..6)
        .map(|number| {
            let mut agent = sidecar.agent();
            std::thread::spawn(move || {
                let arguments = json!({"to": number.to_string()});
                let params =
                    json!({"name": "send_mail", "arguments": arguments, "_meta": modern(false)});
                post_modern(&mut agent, "1", params).json()
            })
        })
        .collect();

    for thread in threads {
        let answer = thread.join().unwrap();
        assert_eq!(answer["result"]["_meta"]["effect"]["outcome"], "accepted", "{answer}");
    }
    let received = upstream.received();
    let listed = received.iter().filter(|r| r.header("mcp-method") == Some("tools/list"));
    assert_eq!(listed.count(), 2, "both pages once");
}
