//! Which operation a call is, where an agent has a say in how it is spelt: a declared write is never
//! reached as something milder, and `explain` says of each call what `run` makes of it.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::process::Home;
use crate::support::{Act, Sidecar, Upstream, noted};

const JSON: (&str, &str) = ("content-type", "application/json");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const TEXT: (&str, &str) = ("content-type", "text/plain");

fn upstream() -> Upstream {
    Upstream::start(|_| Act::json(200, r#"{"id":"1"}"#))
}

/// Method, target, headers, body.
type Asked<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str);

/// What `explain` says of a call.
fn explained(home: &Home, (method, target, headers, body): &Asked<'_>) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_takeback"));
    command.args(["explain", method, target, "--format", "json", "--policies"]);
    command.arg(home.policies());
    for (name, value) in *headers {
        command.args(["--header", &format!("{name}: {value}")]);
    }
    if !body.is_empty() {
        command.arg("--body").arg(home.file("body", body));
    }
    let out = command.output().unwrap();
    serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{method} {target}: {out:?}"))
}

/// Holds what `explain` says of each call against what `run` answers and reports; returns the classes.
fn alike(policy: &str, calls: &[Asked<'_>]) -> Vec<String> {
    let upstream = upstream();
    let home = Home::new(policy, upstream.address);
    let process = home.start();
    let mut classes = Vec::new();
    for asked in calls {
        let told = explained(&home, asked);
        let (method, target, headers, body) = asked;
        let answer = process.agent().call(method, target, headers, body);
        let report = answer.report();

        assert_eq!(told["operation"][0], report["operation"], "{asked:?}: {told}");
        assert_eq!(told["class"][0], report["class"], "{asked:?}: {told}");
        let expected = match (answer.status, told["confirm"][0].as_str()) {
            (200, _) => Value::Null,
            (428, level) => {
                let is_told =
                    *method == "HEAD" || answer.json()["confirm"]["level"] == level.unwrap();
                assert!(is_told, "{asked:?}");
                Value::Null
            }
            (status, _) => json!(format!("{status} {}", answer.code())),
        };
        let refused = told["refused"][0].as_str().map(|text| {
            let mut parts = text.splitn(3, ' ');
            let (status, code) = (parts.next().unwrap(), parts.next().unwrap());
            json!(format!("{status} {}", code.trim_end_matches(':')))
        });
        assert_eq!(refused.unwrap_or_default(), expected, "{asked:?}: {told}");
        if answer.status == 200 {
            assert_eq!(told["confirm"][0], "none", "{asked:?}");
        }
        classes.push(report["class"].as_str().unwrap().to_owned());
    }
    classes
}

const PLAIN: &str = noted!(
    r#"  tag:
    match: { http: "POST /tags" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: unnote, arguments: { path.id: request.body.id } }
      idempotency: { type: body_pointer, pointer: /key, retention: 24h }
  run:
    match: { http: "GET /run" }
    effect: { class: compensable, compensate: { operation: unnote, arguments: { path.id: response.id } } }
  list:
    match: { http: "GET /notes" }
"#
);

#[test]
fn contract_8_explain_and_run_say_the_same_of_refused_calls() {
    let websocket: &[_] = &[("connection", "upgrade"), ("upgrade", "websocket")];
    let classes = alike(
        PLAIN,
        &[
            ("GET", "/other", &[JSON], "{}"),
            ("OPTIONS", "/other", &[JSON], "{}"),
            ("POST", "/notes", websocket, ""),
            ("GET", "/notes", websocket, ""),
            ("TRACE", "/notes", &[], ""),
            ("POST", "/notes/../a", &[], ""),
            ("DELETE", "/notes/a%2Fb", &[], ""),
            ("POST", "/other", &[JSON], r#"{"_method":"DELETE"}"#),
            ("POST", "/notes", &[JSON], r#"{"_method":"DELETE"}"#),
            ("POST", "/notes", &[JSON], r#"{"a":1,"a":2}"#),
            ("POST", "/notes", &[("effect-stage", "true")], ""),
            ("POST", "/other", &[("effect-stage", "true")], ""),
            ("GET", "/notes", &[("effect-stage", "true")], ""),
            ("POST", "/tags", &[JSON], r#"{"id":"1","ID":"2"}"#),
            ("POST", "/tags", &[JSON], r#"{"x":"1"}"#),
            ("POST", "/tags", &[JSON], r#"{"id":"1","key":7}"#),
        ],
    );
    assert_eq!(classes[..2], ["read", "read"], "a body does not change a class");
    assert_eq!(classes[2..4], ["irreversible", "irreversible"], "nothing was asked about it");
}

#[test]
fn contract_1_only_a_get_and_a_head_are_taken_for_a_get_that_writes() {
    let preflight: &[_] =
        &[("origin", "http://a.example"), ("access-control-request-method", "GET")];
    let classes = alike(
        PLAIN,
        &[
            ("GET", "/run", &[], ""),
            ("GET", "/RUN/", &[], ""),
            ("HEAD", "/Run", &[], ""),
            ("OPTIONS", "/run", preflight, ""),
            ("OPTIONS", "/run", &[], ""),
            ("OPTIONS", "/RUN/", &[], ""),
        ],
    );
    assert_eq!(classes[1..3], ["compensable", "compensable"]);
    assert_eq!(classes[3..], ["read", "read", "read"]);
    let strict =
        PLAIN.replace("version: 1", "version: 1\ndefaults: { undeclared_get: irreversible }");
    let classes = alike(&strict, &[("OPTIONS", "/run", &[], ""), ("OPTIONS", "/x", &[], "")]);
    assert_eq!(classes, ["irreversible", "irreversible"], "as any undeclared OPTIONS is");
    let declared = format!("{PLAIN}  ask: {{ match: {{ http: \"OPTIONS /{{x}}\" }} }}\n");
    assert_eq!(alike(&declared, &[("OPTIONS", "/RUN", &[], "")]), ["read"]);
}

const FOLDED: &str = r#"
version: 1
operations:
  get: { match: { http: "GET /s/{id}" }, effect: { class: read, kind: read } }
  fire: { match: { http: "GET /s/fire" }, confirm: human, effect: { class: irreversible } }
  rest: { match: { http: "GET /s/{*id}" }, effect: { class: read, kind: read } }
  item:
    match: { http: "POST /items/{id}" }
    effect: { class: compensable, compensate: { operation: drop, arguments: { path.id: request.path.id } } }
  purge: { match: { http: "POST /items/purge" }, confirm: human, effect: { class: irreversible } }
  drop: { match: { http: "DELETE /items/{id}" } }
  ask: { match: { http: "OPTIONS /wipe" }, effect: { class: irreversible } }
"#;

/// The way a call is spelt never makes it milder than what it may be to a lenient upstream.
#[test]
fn contract_1_a_call_that_folds_onto_a_more_severe_one_is_served_as_that() {
    let severe = [
        ("GET", "/s/fire", &[][..], ""),
        ("GET", "/s/Fire", &[], ""),
        ("GET", "/s/fire/", &[], ""),
        ("GET", "/s/fire%20", &[], ""),
        ("GET", "/s/FIRE.", &[], ""),
        ("HEAD", "/s/Fire", &[], ""),
        ("POST", "/items/purge", &[JSON], "{}"),
        ("POST", "/items/Purge", &[JSON], "{}"),
        ("POST", "/items/purge%20", &[], ""),
        ("POST", "/items/purge.", &[], ""),
        ("OPTIONS", "/Wipe", &[], ""),
    ];
    let classes = alike(FOLDED, &severe);
    assert!(classes.iter().all(|class| class == "irreversible"), "{classes:?}");
    let upstream = upstream();
    let sidecar = Sidecar::start(FOLDED, &upstream);
    for (method, target, headers, body) in severe {
        let answer = sidecar.agent().call(method, target, headers, body);
        assert_eq!(answer.status, 428, "{method} {target}");
    }
    let refused = sidecar.agent().call("POST", "/items/Purge", &[], "");
    assert_eq!(refused.report()["operation"], "purge");
    assert_eq!(sidecar.agent().call("POST", "/items/%20", &[], "").status, 400);
    assert!(upstream.received().is_empty());
    let mild =
        [("GET", "/s/1", &[][..], ""), ("GET", "/s/1/2", &[], ""), ("POST", "/items/5", &[], "")];
    assert_eq!(alike(FOLDED, &mild), ["read", "read", "compensable"]);
}

const READS: &str = r#"
version: 1
operations:
  seen:
    match: { http: "GET /q", where: { request.query.dry: { equals: "1" } } }
    effect: { class: read, kind: read }
  tried:
    match: { http: "POST /q", where: { request.query.dry: { equals: "1" } } }
    effect: { class: read, kind: read }
"#;

#[test]
fn contract_2_a_get_whose_variants_are_all_reads_has_one_reading() {
    let strict =
        READS.replace("version: 1", "version: 1\ndefaults: { undeclared_get: irreversible }");
    for policy in [READS, &strict] {
        let classes = alike(
            policy,
            &[
                ("GET", "/q?dry=1", &[], ""),
                ("GET", "/q?dry=0", &[], ""),
                ("GET", "/q?dry=1&Dry=0", &[], ""),
                ("POST", "/q?dry=1", &[FORM], "dry=0"),
                ("POST", "/q?dry=1", &[FORM], "wet=0"),
            ],
        );
        // A refused call is reported as what it was matched to.
        assert_eq!(classes, ["read", "irreversible", "read", "read", "read"]);
    }
    let upstream = upstream();
    let sidecar = Sidecar::start(READS, &upstream);
    for (method, target, body) in [
        ("GET", "/q?dry=1&Dry=0", ""),
        ("HEAD", "/q?dry=1&dry[]=0", ""),
        ("POST", "/q?dry=1", "dry=0"),
    ] {
        assert_eq!(sidecar.agent().call(method, target, &[FORM], body).status, 400, "{target}");
    }
    assert!(upstream.received().is_empty());
}

const MILD: &str = r#"
version: 1
operations:
  search:
    match: { http: "POST /search" }
    effect: { class: read, kind: read }
  send:
    match: { http: "POST /search", where: { request.body.send: { equals: true } } }
    effect: { class: irreversible, kind: create }
  trash:
    match: { http: "DELETE /files/{id}" }
    effect: { class: compensable, compensate: { operation: restore } }
  restore:
    match: { http: "POST /restored" }
  purge:
    match: { http: "DELETE /files/{id}", where: { request.query.purge: { equals: "true" } } }
    effect: { class: irreversible, kind: delete }
"#;

/// A milder plain form beside a severe variant: what an upstream may take for the variant is not mild.
#[test]
fn contract_2_what_may_be_a_severe_variant_is_not_its_milder_plain_form() {
    let json = r#"{"send":true}"#;
    let parts: &[_] = &[("content-type", "multipart/form-data; boundary=b")];
    let severe = [
        ("POST", "/search", &[TEXT][..], json),
        ("POST", "/search", &[("content-type", "application/jsonx")], json),
        ("POST", "/search", &[("content-type", "")], json),
        (
            "POST",
            "/search",
            parts,
            "--b\r\ncontent-disposition: form-data; name=send\r\n\r\ntrue\r\n--b--\r\n",
        ),
        ("POST", "/search", &[FORM], json),
        ("POST", "/search", &[FORM], "send=true"),
        ("POST", "/search", &[JSON], r#"[{"send":true}]"#),
        ("POST", "/search", &[JSON], r#"{"send":"true"}"#),
        ("POST", "/search", &[JSON], r#"{"send":1}"#),
        ("POST", "/search", &[JSON], r#"{"send":[true]}"#),
        ("POST", "/search", &[JSON], r#"{"send":true}"#),
        ("POST", "/search", &[("content-type", "application/vnd.a+json; charset=\"UTF-8\"")], json),
        ("DELETE", "/files/1?purge=true", &[], ""),
        ("DELETE", "/files/1?purge=TRUE", &[], ""),
        ("DELETE", "/files/1?purge=true%20", &[], ""),
        ("DELETE", "/files/1?purge=true&purge=false", &[], ""),
        ("DELETE", "/files/1?purge=false&purge=true", &[], ""),
    ];
    let classes = alike(MILD, &severe);
    assert!(classes.iter().all(|class| class == "irreversible"), "{classes:?}");
    let upstream = upstream();
    let sidecar = Sidecar::start(MILD, &upstream);
    for (method, target, headers, body) in severe {
        let answer = sidecar.agent().call(method, target, headers, body);
        assert_eq!(answer.status, 428, "{target} {body}: {}", answer.text());
    }
    assert!(upstream.received().is_empty());
    let mild = [
        ("POST", "/search", &[JSON][..], "{}"),
        ("POST", "/search", &[JSON], r#"{"send":false}"#),
        ("POST", "/search", &[JSON], r#"{"send":null}"#),
        ("POST", "/search", &[], ""),
        ("POST", "/search", &[FORM], "sent=true"),
        ("DELETE", "/files/1", &[], ""),
        ("DELETE", "/files/2?purge=no", &[], ""),
        ("DELETE", "/files/3?purgex=true", &[], ""),
    ];
    let classes = alike(MILD, &mild);
    assert_eq!(classes[..5], ["read"; 5]);
    assert_eq!(classes[5..], ["compensable"; 3]);
}

#[test]
fn e6_contract_2_a_body_in_another_charset_or_coding_is_refused() {
    alike(
        MILD,
        &[
            ("POST", "/search", &[("content-type", "application/json; charset=utf-16")], "{}"),
            ("POST", "/search", &[("content-type", "application/x+json;charset=latin1")], "{}"),
            (
                "POST",
                "/search",
                &[("content-type", "application/x-www-form-urlencoded; charset=ebcdic-cp-us")],
                "send=1",
            ),
            ("POST", "/search", &[JSON, ("content-encoding", "gzip")], "{}"),
            ("POST", "/search", &[JSON, TEXT], "{}"),
        ],
    );
}

/// Two templates, neither more specific: what no variant of the one takes is not the other's milder call.
#[test]
fn contract_2_of_two_templates_that_no_rule_separates_the_more_severe_answer_stands() {
    const POLICY: &str = r#"
version: 1
operations:
  report:
    match: { http: "POST /{team}/run" }
    effect: { class: read, kind: read }
  start:
    match: { http: "POST /jobs/{name}", where: { request.body.mode: { equals: all } } }
    effect: { class: irreversible, kind: create }
  same.try:
    match: { http: "POST /same/{a}", where: { request.query.dry: { equals: "1" } } }
    effect: { class: read, kind: read }
  same.real:
    match: { http: "POST /same/{b}" }
    effect: { class: compensable, compensate: { operation: stop } }
  stop:
    match: { http: "POST /stop" }
"#;
    let classes = alike(
        POLICY,
        &[
            ("POST", "/jobs/run", &[JSON], r#"{"mode":"all"}"#),
            ("POST", "/jobs/run", &[JSON], r#"{"mode":"one"}"#),
            ("POST", "/jobs/run", &[TEXT], r#"{"mode":"all"}"#),
            ("POST", "/teams/run", &[JSON], r#"{"mode":"all"}"#),
            ("POST", "/same/x?dry=1", &[], ""),
            ("POST", "/same/x", &[], ""),
        ],
    );
    assert_eq!(classes[..3], ["irreversible"; 3]);
    assert_eq!(classes[3..], ["read", "read", "compensable"]);
}
