//! Calls that cannot be taken back though their operation says how: known before they are sent, by what
//! their undo takes from the request, from the state before them, or would be as a call of its own.
//! `explain` says the same of them as `run`.

use std::process::Command;

use serde_json::{Value, json};
use takeback::contract::class::Mode;

use crate::support::mcp::{call, envelope, modern, post, post_modern};
use crate::support::process::Home;
use crate::support::sidecar::Setup;
use crate::support::updates::{NOTES, THINGS as UPDATE, calls, things, tools};
use crate::support::{Act, Agent, Sidecar, Upstream};

const JSON: (&str, &str) = ("content-type", "application/json");

/// What lacks a title, or has one that no body of the inverse holds.
const LACKING: [&str; 3] = [r#"{"title":null}"#, r#"{"name":"old"}"#, "[]"];

fn patch(agent: &mut Agent, token: Option<&str>) -> crate::support::agent::Answer {
    let mut headers = vec![JSON];
    headers.extend(token.map(|token| ("effect-confirm", token)));
    agent.call("PATCH", "/things/1", &headers, r#"{"title":"new"}"#)
}

#[test]
fn case_j3_a_state_without_what_the_undo_puts_back_is_asked_about_before_anything_is_sent() {
    for state in LACKING {
        let upstream = things(state);
        let sidecar = Sidecar::start(UPDATE, &upstream);
        let mut agent = sidecar.agent();

        let asked = patch(&mut agent, None);

        assert_eq!(
            (asked.status, asked.code().as_str()),
            (428, "confirmation_required"),
            "{state}"
        );
        assert_eq!(asked.report()["class"], "irreversible");
        assert!(asked.text().contains("body.title (before.title) names nothing"), "{state}");
        assert_eq!((upstream.count("GET"), upstream.count("PATCH")), (1, 0));
        assert!(sidecar.entries().is_empty());

        let token = asked.token();
        let sent = patch(&mut agent, Some(&token));

        assert_eq!((sent.status, upstream.count("PATCH")), (200, 1), "{}", sent.text());
        let report = sent.report();
        assert_eq!((&report["class"], &report["undo"]), (&json!("irreversible"), &Value::Null));
        assert!(report["undo_unavailable"].as_str().unwrap().contains("before.title"));
        sidecar.wait_entries(&[("accepted", "")]);
        assert_eq!(patch(&mut agent, Some(&token)).status, 428, "a token counts once");
    }
}

#[test]
fn g2_what_was_confirmed_as_reversible_is_not_confirmed_as_irreversible() {
    let upstream = things(r#"{"title":null}"#);
    let policy = UPDATE.replace("    before:", "    confirm: challenge\n    before:");
    let sidecar = Sidecar::start(&policy, &upstream);
    let mut agent = sidecar.agent();
    let asked = patch(&mut agent, None);
    assert_eq!((asked.report()["class"].as_str(), upstream.count("GET")), (Some("reversible"), 0));

    let again = patch(&mut agent, Some(&asked.token()));

    assert_eq!((again.status, again.code().as_str()), (428, "confirmation_mismatch"));
    assert_eq!(again.report()["class"], "irreversible");
    assert!(again.text().contains("while it could be taken back"), "{}", again.text());
    assert_eq!(upstream.count("PATCH"), 0);
    let sent = patch(&mut agent, Some(&again.token()));
    assert_eq!((sent.status, upstream.count("PATCH")), (200, 1), "{}", sent.text());
}

#[test]
fn a_call_with_another_way_back_than_the_one_that_is_lost_goes_through() {
    let upstream = things("{}");
    let compensate = "      compensate: { operation: things.close, arguments: \
                      { path.id: request.path.id } }\n  things.restore:";
    let close = "  things.close:\n    match: { http: \"POST /things/{id}/close\" }\n    effect: \
                 { class: irreversible }\n";
    let policy = UPDATE.replace("  things.restore:", compensate) + close;
    let sidecar = Sidecar::start(&policy, &upstream);

    let sent = patch(&mut sidecar.agent(), None);

    assert_eq!((sent.status, upstream.count("PATCH")), (200, 1), "{}", sent.text());
    assert_eq!(sent.report()["compensate"]["operation"], "things.close");
}

#[test]
fn an_observed_call_without_a_way_back_is_sent_and_says_what_would_have_been() {
    let observed = |upstream: &Upstream| {
        let mut setup = Setup::new(UPDATE);
        setup.mode = Mode::Observe;
        setup.start(upstream)
    };
    let upstream = things(r#"{"title":null}"#);
    let sidecar = observed(&upstream);

    let report = patch(&mut sidecar.agent(), None).report();

    assert_eq!(report["would"], "confirmation_required", "{report}");
    assert_eq!((&report["class"], upstream.count("PATCH")), (&json!("irreversible"), 1));
    let unread = Upstream::start(|received| match received.method.as_str() {
        "GET" => Act::json(500, "{}"),
        _ => Act::json(200, "{}"),
    });
    let sidecar = observed(&unread);
    let report = patch(&mut sidecar.agent(), None).report();
    assert_eq!((&report["would"], unread.count("PATCH")), (&json!("before_unread"), 1));
}

/// A gateway whose notes have no text.
fn notes() -> Upstream {
    tools(json!({"id": "n1", "text": null}))
}

#[test]
fn case_j3_a_tool_whose_state_before_lacks_the_undos_value_is_asked_about() {
    let upstream = notes();
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();
    let edit = |agent: &mut Agent, id: &str, meta: Option<Value>| {
        post(agent, &call(id, "edit_note", json!({"id": "n1", "text": "b"}), meta)).json()
    };

    let asked = edit(&mut agent, "1", None);

    let refused = envelope(&asked["result"]);
    assert_eq!(refused["error"]["code"], "confirmation_required", "{asked}");
    assert_eq!(asked["result"]["_meta"]["effect"]["class"], "irreversible");
    assert_eq!((calls(&upstream, "get_note"), calls(&upstream, "edit_note")), (1, 0));
    let token = refused["error"]["details"]["confirm"]["token"].as_str().unwrap().to_owned();
    let made = edit(&mut agent, "2", Some(json!({"takeback/confirm": token})));
    let effect = &made["result"]["_meta"]["effect"];
    assert_eq!(
        (&effect["outcome"], &effect["class"]),
        (&json!("accepted"), &json!("irreversible"))
    );
    assert_eq!(effect["undo"], Value::Null);
    assert_eq!(calls(&upstream, "edit_note"), 1);
}

#[test]
fn mcp_33_a_modern_client_is_asked_after_the_state_before_was_read() {
    let upstream = notes();
    let sidecar = Sidecar::start(NOTES, &upstream);
    let mut agent = sidecar.agent();
    let arguments = json!({"id": "n1", "text": "b"});
    let mut params = json!({"name": "edit_note", "arguments": arguments, "_meta": modern(true)});

    let asked = post_modern(&mut agent, "1", params.clone()).json();

    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let question = &asked["result"]["inputRequests"]["anvil.confirm"]["params"]["message"];
    let question = question.as_str().unwrap();
    assert!(question.contains("text (before.text) names nothing"), "{question}");
    assert_eq!(calls(&upstream, "edit_note"), 0);
    params["requestState"] = asked["result"]["requestState"].clone();
    params["inputResponses"] =
        json!({"anvil.confirm": {"action": "accept", "content": {"confirm": true}}});
    let made = post_modern(&mut agent, "2", params).json();
    assert_eq!(made["result"]["_meta"]["effect"]["outcome"], "accepted", "{made}");
    assert_eq!(calls(&upstream, "edit_note"), 1);
}

const MEMBERS: &str = r#"
version: 1
operations:
  members.add:
    match: { http: "POST /members" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: members.remove, arguments: { path.id: request.body.id } }
  members.rename:
    match: { http: "PUT /members/{id}/name" }
    effect:
      class: compensable
      kind: update
      compensate: { operation: members.note, arguments: { body.name: request.body.name } }
  members.remove:
    match: { http: "DELETE /members/{id}" }
    effect: { class: irreversible, kind: delete }
  members.note:
    match: { http: "POST /notes" }
    effect: { class: irreversible, kind: create }
  members.ban:
    match: { http: "POST /notes", where: { request.body.name: { equals: ban } } }
    effect: { class: irreversible, kind: delete }
  members.tag:
    match: { tool: tag }
    effect:
      class: reversible
      kind: update
      inverse: { operation: members.untag, arguments: { tag: request.tag } }
  members.untag:
    match: { tool: untag }
    effect: { class: irreversible, kind: update }
"#;

/// What `explain` says of a call, as JSON.
fn explained(home: &Home, arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_takeback"));
    command.arg("explain").args(arguments).args(["--format", "json", "--policies"]);
    let told = command.arg(home.policies()).output().unwrap();
    serde_json::from_slice(&told.stdout).unwrap()
}

#[test]
fn contract_8_explain_and_run_agree_on_what_cannot_be_taken_back() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = Home::new(MEMBERS, upstream.address);
    let process = home.start();
    let file = home.policies().parent().unwrap().join("body");
    let cases = [
        ("POST", "/members", r#"{"id":"jane"}"#, "reversible"),
        ("POST", "/members", r#"{"name":"joe"}"#, "irreversible"),
        ("POST", "/members", r#"{"id":null}"#, "irreversible"),
        ("POST", "/members", r#"{"id":".."}"#, "irreversible"),
        ("POST", "/members", r#"{"id":"a/b"}"#, "irreversible"),
        ("POST", "/members", "", "irreversible"),
        ("PUT", "/members/1/name", r#"{"name":"joe"}"#, "compensable"),
        // The compensation would be a call of `members.ban`.
        ("PUT", "/members/1/name", r#"{"name":"ban"}"#, "irreversible"),
        ("DELETE", "/members/1", "", "irreversible"),
        ("POST", "/elsewhere", "{}", "irreversible"),
        ("GET", "/elsewhere", "", "read"),
    ];
    for (method, target, body, class) in cases {
        std::fs::write(&file, body).unwrap();
        let told = explained(&home, &[method, target, "--body", file.to_str().unwrap()]);
        let headers = if body.is_empty() { vec![] } else { vec![JSON] };

        let answer = process.agent().call(method, target, &headers, body);

        let what = format!("{method} {target} {body}");
        assert_eq!(told["class"][0], class, "{what}");
        let confirm = told["confirm"][0].as_str().unwrap();
        let expected = if confirm == "none" { 201 } else { 428 };
        assert_eq!(answer.status, expected, "{what}: {confirm}");
        assert_eq!(answer.report()["class"], class, "{what}");
    }
    let told = |arguments: &str| explained(&home, &["--tool", "tag", "--arguments", arguments]);
    assert_eq!(told(r#"{"tag":"a"}"#)["class"][0], "reversible");
    let lost = told("{}");
    assert_eq!(
        (&lost["class"][0], &lost["confirm"][0]),
        (&json!("irreversible"), &json!("challenge"))
    );
    let rules = lost["rule"].as_array().unwrap();
    let why = rules.iter().any(|rule| rule.as_str().unwrap().contains("takes this call back"));
    assert!(why, "{rules:?}");
}

#[test]
fn contract_8_explain_tells_a_staged_call_as_the_draft_that_is_made() {
    let policy = MEMBERS.replace(
        "      inverse: { operation: members.remove, arguments: { path.id: request.body.id } }\n",
        "      inverse: { operation: members.remove, arguments: { path.id: request.body.id } }\n      \
         draft:\n        operation: members.note\n        arguments: { body.name: request.body.name }\n        \
         handle: response.id\n        promote: { operation: members.ban, arguments: { body.name: \
         { const: ban } } }\n",
    );
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = Home::new(&policy, upstream.address);
    let file = home.policies().parent().unwrap().join("body");
    std::fs::write(&file, r#"{"name":"joe"}"#).unwrap();
    let body = file.to_str().unwrap();
    let staged = ["POST", "/members", "--body", body, "--header", "effect-stage: true"];

    assert_eq!(explained(&home, &staged[..4])["class"][0], "irreversible");
    let told = explained(&home, &staged);

    assert_eq!(
        (&told["class"][0], &told["confirm"][0]),
        (&json!("irreversible"), &json!("challenge"))
    );
    assert_eq!(told["draft"][0], "members.note");
    assert_eq!(told.get("refused"), None, "{told}");
    std::fs::write(&file, r#"{"id":"joe"}"#).unwrap();
    let refused = explained(&home, &staged);
    assert!(
        refused["refused"][0].as_str().unwrap().contains("The draft cannot be filled"),
        "{refused}"
    );
}

#[test]
fn what_explain_cannot_read_has_a_help_line_and_its_own_exit_code() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = Home::new(MEMBERS, upstream.address);
    let policies = home.policies();
    let folder = policies.to_str().unwrap();
    let cases: [(&[&str], i32); 5] = [
        (&["POST", "/members", "--body", "/none/at/all"], 74),
        (&["--tool", "tag", "--arguments", "{"], 64),
        (&["--tool", "tag", "--arguments", "[]"], 64),
        (&["POST", "members"], 64),
        (&["POST", "/a b"], 64),
    ];
    for (arguments, code) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_takeback"));
        let out = command.arg("explain").args(arguments).args(["--policies", folder]).output();
        let out = out.unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains("\n  help: "), "{arguments:?}: {text}");
    }
}

/// The update that everybody writes: put back by itself, with what was there before.
#[test]
fn case_j3_an_update_takes_itself_back_with_what_was_read_before_it() {
    const POLICY: &str = r#"
version: 1
operations:
  things.get: { match: { http: "GET /things/{id}" }, effect: { class: read } }
  things.put:
    match: { http: "PUT /things/{id}" }
    before: { operation: things.get, arguments: { path.id: request.path.id } }
    effect:
      class: reversible
      kind: update
      inverse:
        operation: things.put
        arguments: { path.id: request.path.id, body.title: before.title }
"#;
    let state = std::sync::Mutex::new(r#"{"title":"old"}"#.to_owned());
    let upstream = Upstream::start(move |received| {
        let mut state = state.lock().unwrap();
        if received.method == "PUT" {
            *state = received.text();
        }
        Act::json(200, &state)
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let report = agent.call("PUT", "/things/1", &[JSON], r#"{"title":"new"}"#).report();

    let undo = &report["undo"];
    assert_eq!(
        (&undo["operation"], &undo["http"]["path"]),
        (&json!("things.put"), &json!("/things/1"))
    );
    assert_eq!(undo["arguments"]["body.title"], "old", "{report}");
    sidecar.wait_entries(&[("accepted", "")]);
    let back = agent.call("PUT", "/things/1", &[JSON], r#"{"title":"old"}"#);
    assert_eq!(back.status, 200);
    sidecar.wait_entries(&[("undone", "undone"), ("accepted", "")]);
}
