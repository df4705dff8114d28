//! Calls that a gateway may take for another than we do: an escape that it takes off first, a header's name
//! that it spells otherwise, a name that it finds in the query. The worse of two readings stands, or the
//! call is refused; nothing goes through as the milder one.

use serde_json::{Value, json};

use crate::support::mcp::{call, envelope, post};
use crate::support::process::Home;
use crate::support::{Act, Sidecar, Upstream};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

fn upstream() -> Upstream {
    Upstream::start(|_| Act::json(200, r#"{"id":"1"}"#))
}

#[test]
fn f17_contract_3_an_escape_in_a_path_is_no_way_around_a_declared_write() {
    const POLICY: &str = r#"
version: 1
operations:
  wipe:
    match: { http: "GET /v1/{name}:wipe" }
    effect: { class: irreversible, kind: delete }
  make:
    match: { http: "POST /v1/{name}" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: unmake, arguments: { path.name: request.path.name } }
  purge:
    match: { http: "POST /v1/{name}:purge" }
    effect: { class: irreversible, kind: delete }
  unmake:
    match: { http: "DELETE /v1/{name}" }
    effect: { class: irreversible, kind: delete }
  batch:
    match: { http: "GET /v1/$batch" }
    effect: { class: irreversible, kind: delete }
"#;
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    for (method, path) in [
        ("GET", "/v1/a%3Awipe"),
        ("HEAD", "/v1/a%3awipe"),
        ("GET", "/v1/%24batch"),
        ("POST", "/v1/a%3Apurge"),
        ("DELETE", "/v1/a%3Ab"),
    ] {
        let refused = agent.call(method, path, &[], "");
        let expected = if method == "DELETE" { 428 } else { 400 };
        assert_eq!(refused.status, expected, "{method} {path}");
        if method != "HEAD" && expected == 400 {
            assert_eq!(refused.code(), "ambiguous_path", "{path}");
        }
    }
    let folded = agent.call("GET", "/v1/a%3aWIPE/", &[], "");
    assert_eq!((folded.status, &folded.report()["class"]), (428, &json!("irreversible")));
    assert!(upstream.received().is_empty());
    let made = agent.call("POST", "/v1/a%40b", &[], "");
    assert_eq!((made.status, &made.report()["class"]), (200, &json!("reversible")));
}

#[test]
fn contract_1_a_get_that_folds_onto_a_write_is_one_where_a_wider_read_would_take_it() {
    const POLICY: &str = r#"
version: 1
operations:
  get: { match: { http: "GET /x/{id}" } }
  told:
    match: { http: "GET /y/{id}" }
    effect: { class: read }
  told.admin:
    match: { http: "GET /y/admin" }
    effect: { class: irreversible, kind: external_side_effect }
  get.admin:
    match: { http: "GET /x/admin" }
    effect: { class: irreversible, kind: external_side_effect }
  make:
    match: { http: "POST /x/{id}" }
    confirm: none
    effect:
      class: irreversible
      kind: create
      lookup: { operation: get, by: id, arguments: { path.id: request.path.id }, settle_ms: 1 }
"#;
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "GET" => Act::json(200, "{}"),
        _ => Act::Close,
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    for path in ["/x/admin", "/x/ADMIN", "/X/admin", "/x/Admin/"] {
        assert_eq!(agent.call("GET", path, &[], "").status, 428, "{path}");
    }
    assert!(upstream.received().is_empty());
    assert_eq!(agent.call("GET", "/x/1", &[], "").status, 200);
    assert_eq!(agent.call("GET", "/y/ADMIN", &[], "").status, 428, "declared a read, or not");
    assert_eq!(agent.call("GET", "/y/1", &[], "").status, 200);
    // A lookup that would be the write is not offered.
    let offered = |id: &str| {
        sidecar.agent().call("POST", &format!("/x/{id}"), &[], "").report()["lookup"].clone()
    };
    assert_eq!(offered("7")["http"]["path"], "/x/7");
    assert_eq!((offered("admin"), offered("ADMIN")), (Value::Null, Value::Null));
}

#[test]
fn contract_3_a_header_with_an_underscore_is_not_overlooked_by_a_condition_or_a_mapping() {
    const POLICY: &str = r#"
version: 1
operations:
  d.read:
    match: { http: "POST /d", where: { request.header.x-mode: { equals: read } } }
    effect: { class: read }
  d.absent:
    match: { http: "POST /e", where: { request.header.x-mode: { absent: true } } }
    effect: { class: read }
  d:
    match: { http: "POST /d" }
    effect: { class: irreversible }
  e:
    match: { http: "POST /e" }
    effect: { class: irreversible }
  f:
    match: { http: "POST /f" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: f.undo, arguments: { path.id: request.header.x-mode } }
  f.undo:
    match: { http: "DELETE /f/{id}" }
    effect: { class: irreversible }
"#;
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let (read, write) = (("x-mode", "read"), ("x_mode", "write"));
    for (path, headers) in
        [("/d", vec![read, write]), ("/e", vec![write]), ("/f", vec![read, write])]
    {
        let refused = agent.call("POST", path, &headers, "");
        assert_eq!((refused.status, refused.code().as_str()), (400, "ambiguous_member"), "{path}");
    }
    // What another reader makes of it is milder.
    assert_eq!(agent.call("POST", "/d", &[("x_mode", "read")], "").status, 428);
    assert!(upstream.received().is_empty());
    assert_eq!(agent.call("POST", "/d", &[read, ("y_mode", "x")], "").status, 200);
    assert_eq!(agent.call("POST", "/f", &[read], "").report()["class"], "reversible");
}

#[test]
fn contract_2_a_name_in_the_query_is_no_way_past_a_rule_on_a_form_without_fields() {
    const POLICY: &str = r#"
version: 1
operations:
  pay:
    match: { http: "POST /pay" }
    effect:
      class: reversible
      kind: create
      inverse: { operation: pay.cancel, arguments: { path.id: response.id } }
  pay.now:
    match: { http: "POST /pay", where: { request.body.confirm: { equals: "true" } } }
    effect: { class: irreversible, kind: create }
  pay.cancel:
    match: { http: "DELETE /pay/{id}" }
    effect: { class: irreversible }
"#;
    let upstream = upstream();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    for (target, headers, body) in [
        ("/pay?confirm=true&amount=5", vec![], ""),
        ("/pay?confirm=true", vec![FORM], ""),
        ("/pay?Confirm=true", vec![FORM], "amount=7"),
        ("/pay?amount=5;confirm=true", vec![FORM], ""),
        ("/pay", vec![FORM], "amount=5;confirm=true"),
        ("/pay", vec![FORM], "amount=5&confirm=false;x"),
        ("/pay", vec![FORM], "amount=5%3Bconfirm=true"),
    ] {
        let refused = agent.call("POST", target, &headers, body);
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (400, "ambiguous_member"),
            "{target}"
        );
    }
    let hidden = agent.call("POST", "/pay", &[FORM], "a=1;_method=DELETE");
    assert_eq!((hidden.status, hidden.code().as_str()), (400, "method_override"));
    assert!(upstream.received().is_empty());
    for (target, body) in [("/pay?amount=5", ""), ("/pay", "amount=5&note=a;b")] {
        assert_eq!(agent.call("POST", target, &[FORM], body).status, 200, "{target}");
    }
}

const MERGED: &str = r#"
version: 1
operations:
  tried:
    match: { http: "POST /q", where: { request.query.dry: { equals: "1" } } }
    effect: { class: read, kind: read }
  done:
    match: { http: "POST /q" }
    effect: { class: irreversible }
  kept:
    match: { http: "POST /b", where: { request.body.purge: { absent: true } } }
    effect: { class: read, kind: read }
  severe:
    match: { http: "POST /s" }
    effect: { class: irreversible }
  seen:
    match: { http: "POST /s", where: { request.body.dry: { equals: true } } }
    effect: { class: read, kind: read }
  made:
    match: { http: "POST /m" }
    effect:
      class: reversible
      inverse: { operation: unmade, arguments: { path.id: request.body.id } }
  unmade: { match: { http: "DELETE /m/{id}" } }
"#;

/// Frameworks merge query and body, whatever the body's type: what one reader of the two would run as
/// something more severe is not served as the milder one, and what none would is not refused.
#[test]
fn contract_2_query_and_body_are_one_to_some_readers_whatever_the_body_is() {
    let upstream = upstream();
    let sidecar = Sidecar::start(MERGED, &upstream);
    let json = ("content-type", "application/json");
    let parts = ("content-type", "multipart/form-data; boundary=b");
    let part = "--b\r\ncontent-disposition: form-data; name=dry\r\n\r\n0\r\n--b--\r\n";
    let (twice, two, elsewhere) =
        ("names a member twice", "and in the body", "stands in the query");
    for (target, kind, body, text) in [
        ("/q?dry=1", json, r#"{"dry":0}"#, two),
        ("/q?dry=1", json, r#"{"Dry":"0"}"#, two),
        ("/q?dry=1", json, r#"{"dry":null}"#, two),
        ("/q?dry=1", FORM, "dry=0", two),
        ("/q?dry=1&dry[]=0", json, "{}", twice),
        ("/b?purge=1", json, r#"{"a":1}"#, elsewhere),
        ("/b?purge=1", FORM, "a=1", elsewhere),
        ("/b?purge=1", FORM, "", elsewhere),
        ("/s?dry=false", json, r#"{"dry":true}"#, two),
        ("/m?id=2", json, r#"{"id":1}"#, two),
        ("/m", json, r#"{"id":1,"Id":2}"#, twice),
    ] {
        let refused = sidecar.agent().call("POST", target, &[kind], body);
        let code = (refused.status, refused.code());
        assert_eq!(code, (400, "ambiguous_member".to_owned()), "{target} {body}");
        assert!(refused.text().contains(text), "{target} {body}: {}", refused.text());
    }
    for (target, kind, body) in [
        ("/q?dry=1", parts, part),
        ("/q?dry=1", ("content-type", "application/xml"), "<dry>0</dry>"),
        ("/q?dry=1", ("content-type", ""), "dry=0"),
        ("/b", parts, part),
        // The other reading is milder.
        ("/q", json, r#"{"dry":"1"}"#),
        ("/s?dry=true", json, "{}"),
        ("/s?dry=true", FORM, ""),
        ("/m?id=2", json, "{}"),
    ] {
        let asked = sidecar.agent().call("POST", target, &[kind], body);
        assert_eq!(asked.status, 428, "{target} {body}: {}", asked.text());
        assert_eq!(asked.report()["class"], "irreversible", "{target} {body}");
    }
    assert!(upstream.received().is_empty());
    for (target, kind, body, class) in [
        ("/q?dry=1", json, r#"{"dry":"1"}"#, "read"),
        ("/q?dry=1", json, r#"{"dry":1}"#, "read"),
        ("/q?dry=1", json, r#"{"wet":0}"#, "read"),
        ("/q?dry=1", ("content-type", "application/yaml"), "dry: 0", "read"),
        ("/b?a=1", json, r#"{"b":1}"#, "read"),
        ("/s?dry=true", json, r#"{"dry":true}"#, "read"),
        ("/m?id=1", json, r#"{"id":1}"#, "reversible"),
    ] {
        let made = sidecar.agent().call("POST", target, &[kind], body);
        assert_eq!(made.status, 200, "{target} {body}: {}", made.text());
        assert_eq!(made.report()["class"], class, "{target} {body}");
    }
}

#[test]
fn contract_3_what_asks_for_another_path_or_method_is_refused_and_what_proxies_say_passes() {
    let upstream = upstream();
    let sidecar = Sidecar::start(MERGED, &upstream);
    for name in [
        "x-original-url",
        "x-rewrite-url",
        "x-original-method",
        "x_original_url",
        "x-original_url",
        "x_rewrite_url",
        "x_original_method",
        "x-http-method-override",
        "x-forwarded-method",
    ] {
        let refused = sidecar.agent().call("POST", "/q?dry=1", &[(name, "/s")], "");
        let code = (refused.status, refused.code());
        assert_eq!(code, (400, "method_override".to_owned()), "{name}");
    }
    let refused = sidecar.agent().call("POST", "/q?dry=1&$httpMethod=DELETE", &[], "");
    assert_eq!(refused.code(), "method_override");
    assert!(upstream.received().is_empty());
    for name in ["x-forwarded-uri", "x-original-uri", "x-envoy-original-path", "x-forwarded-prefix"]
    {
        let made = sidecar.agent().call("POST", "/q?dry=1", &[(name, "/s")], "");
        assert_eq!(made.status, 200, "{name}");
        assert_eq!(upstream.last().header(name), Some("/s"), "{name}");
    }
}

#[test]
fn contract_2_a_tools_argument_that_is_called_as_a_section_is_has_twins_too() {
    const POLICY: &str = r#"
version: 1
operations:
  file.move:
    match: { tool: move }
    effect:
      class: reversible
      kind: update
      inverse: { operation: file.back, arguments: { path: request.path, body: request.body.a } }
  file.back:
    match: { tool: back }
    effect: { class: irreversible }
"#;
    let upstream = Upstream::start(|received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap_or_default();
        let result = json!({"content": [], "structuredContent": {}});
        Act::json(
            200,
            &json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string(),
        )
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    for arguments in [
        r#"{"path":"a","Path":"b","body":{"a":1}}"#,
        r#"{"path":"a","body":{"a":1,"A":2}}"#,
        r#"{"path":"a","body":{"a":1},"BODY":{}}"#,
    ] {
        let body = call("1", "move", json!("ARGUMENTS"), None).replace("\"ARGUMENTS\"", arguments);
        let refused = post(&mut agent, &body).json();
        assert_eq!(
            envelope(&refused["result"])["error"]["code"],
            "ambiguous_member",
            "{arguments}"
        );
    }
    assert!(upstream.received().is_empty());
    let made = post(&mut agent, &call("2", "move", json!({"path": "a", "body": {"a": 1}}), None));
    assert_eq!(made.json()["result"]["_meta"]["effect"]["class"], "reversible");
}

#[test]
fn contract_4_what_asks_for_a_confirmation_is_no_read_and_a_fault_asks_for_no_less() {
    const POLICY: &str = r#"
version: 1
defaults: { irreversible: human }
operations:
  asked: { match: { http: "GET /asked" }, confirm: human }
  destroys:
    match: { http: "POST /destroys" }
    destructive: true
    effect: { class: read }
  faulty:
    match: { http: "POST /faulty" }
    effect: { class: reversible, inverse: { operation: nope } }
  sound:
    match: { http: "POST /sound" }
    effect: { class: irreversible }
"#;
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let process = home.start();
    let mut agent = process.agent();
    for (method, path) in
        [("GET", "/asked"), ("POST", "/destroys"), ("POST", "/faulty"), ("POST", "/sound")]
    {
        let refused = agent.call(method, path, &[], "");
        assert_eq!(refused.status, 428, "{path}: {}", refused.text());
        assert_eq!(refused.json()["confirm"]["level"], "human", "{path}");
        assert_eq!(refused.report()["class"], "irreversible", "{path}");
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn contract_2_what_makes_a_call_a_read_has_one_reading_where_the_write_is_undeclared() {
    let policy = r#"
version: 1
operations:
  form:
    match: { http: "POST /f", where: { request.body.dry: { equals: "1" } } }
    effect: { class: read, kind: read }
  json:
    match: { http: "POST /j", where: { request.body.dry: { equals: true } } }
    effect: { class: read, kind: read }
  query:
    match: { http: "POST /q", where: { request.query.dry: { equals: "1" } } }
    effect: { class: read, kind: read }
"#;
    let upstream = upstream();
    let sidecar = Sidecar::start(policy, &upstream);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let json = [("content-type", "application/json")];
    for (target, headers, body) in [
        ("/f", form, "dry=1&dry=0"),
        ("/f", form, "dry=1&Dry=0"),
        ("/f", form, "dry=1&dry[]=0"),
        ("/f?dry=0", form, "dry=1"),
        ("/j", json, r#"{"dry":true,"Dry":false}"#),
        ("/q?dry=1&Dry=0", json, "{}"),
        ("/q?dry=1&dry[]=0", json, "{}"),
    ] {
        let answer = sidecar.agent().call("POST", target, &headers, body);
        assert_eq!((answer.status, answer.code().as_str()), (400, "ambiguous_member"), "{body}");
    }
    assert!(upstream.received().is_empty());
    for (target, headers, body) in
        [("/f", form, "dry=1"), ("/j", json, r#"{"dry":true}"#), ("/q?dry=1", json, "{}")]
    {
        let answer = sidecar.agent().call("POST", target, &headers, body);
        assert_eq!(answer.report()["class"], "read", "{target}");
    }
}
