//! Routing against a linear scan, and the choice among variants.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::contract::json::Doc;
use crate::policy::{Snapshot, compile};

fn snapshot(operations: &str) -> Snapshot {
    let text = format!("version: 1\noperations:\n{operations}");
    let compiled = compile(vec![("a.yaml".to_owned(), text)]);
    let human = compiled.human();
    compiled.snapshot.unwrap_or_else(|| panic!("{human}"))
}

fn found<'s>(snapshot: &'s Snapshot, method: &str, path: &str) -> Vec<&'s str> {
    let method = http::Method::from_bytes(method.as_bytes()).unwrap();
    let found = snapshot.find_http(&method, path);
    let served = found.groups().iter().flat_map(|group| &group.operations);
    served.map(|served| served.operation.id.as_str()).collect()
}

#[test]
fn c_4_text_beside_a_parameter_is_matched_exactly() {
    let snapshot = snapshot(
        "  message: { match: { http: \"GET /2010-04-01/Accounts/{a}/Messages/{Sid}.json\" } }\n\
         \x20 disable: { match: { http: \"POST /keypairs/{id}:disable\" } }\n\
         \x20 keypair: { match: { http: \"POST /keypairs/{id}\" } }\n",
    );
    let cases: &[(&str, &str, &[&str])] = &[
        ("GET", "/2010-04-01/Accounts/AC1/Messages/SM1.json", &["message"]),
        ("GET", "/2010-04-01/Accounts/AC1/Messages/SM1", &[]),
        ("GET", "/2010-04-01/Accounts/AC1/Messages/.json", &[]),
        ("POST", "/keypairs/k1:disable", &["disable"]),
        ("POST", "/keypairs/k1", &["keypair"]),
        // Some readers take the escape off before they look.
        ("POST", "/keypairs/k1%3Adisable", &["keypair", "disable"]),
        ("POST", "/keypairs/k1%3aother", &["keypair"]),
        ("POST", "/keypairs/k1/", &[]),
        ("DELETE", "/keypairs/k1", &[]),
    ];
    for (method, path, expected) in cases {
        assert_eq!(found(&snapshot, method, path), *expected, "{method} {path}");
    }
}

#[test]
fn c_3_an_escape_that_some_readers_take_off_is_read_both_ways() {
    let snapshot = snapshot(
        "  wipe: { match: { http: \"GET /v1/{name}:wipe\" }, effect: { class: irreversible } }\n\
         \x20 try: { match: { http: \"POST /v1/{name}:try\" }, effect: { class: read } }\n\
         \x20 batch: { match: { http: \"GET /v1/$batch\" }, effect: { class: irreversible } }\n\
         \x20 count: { match: { http: \"POST /w/%24count\" } }\n\
         \x20 bar: { match: { http: \"GET /h/a|b\" }, effect: { class: irreversible } }\n\
         \x20 brace: { match: { http: \"GET /e/%7Bx%7D\" }, effect: { class: irreversible } }\n\
         \x20 call: { match: { http: \"GET /f(a,b)/{id}\" }, effect: { class: irreversible } }\n",
    );
    let cases: &[(&str, &str, &[&str])] = &[
        ("GET", "/v1/a:wipe", &["wipe"]),
        ("GET", "/v1/a%3Awipe", &["wipe"]),
        ("HEAD", "/v1/a%3awipe", &["wipe"]),
        ("GET", "/v1/%24batch", &["batch"]),
        ("GET", "/f%28a%2Cb%29/1", &["call"]),
        ("GET", "/f(a%2cb)/1", &["call"]),
        ("GET", "/v1/a%253Awipe", &[]),
        // A read to one reader and undeclared to the other is undeclared: irreversible.
        ("POST", "/v1/a:try", &["try"]),
        ("POST", "/v1/a%3Atry", &[]),
        ("POST", "/w/%24count", &["count"]),
        ("POST", "/w/$count", &[]),
        ("GET", "/h/a%7Cb", &["bar"]),
        ("GET", "/h/a|b", &["bar"]),
        ("GET", "/e/%7Bx%7D", &["brace"]),
        ("GET", "/e/{x}", &["brace"]),
    ];
    for (method, path, expected) in cases {
        assert_eq!(found(&snapshot, method, path), *expected, "{method} {path}");
    }
    let is_ambiguous = |method: &str, path: &str| {
        snapshot.is_ambiguous(&http::Method::from_bytes(method.as_bytes()).unwrap(), path)
    };
    for (method, path, expected) in [
        ("GET", "/v1/a%3Awipe", true),
        ("GET", "/v1/a:wipe", false),
        ("GET", "/v1/a%3Bwipe", false),
        ("GET", "/v1/%24batch", true),
        // Undeclared, so irreversible: no other reading is worse.
        ("POST", "/v1/a%3Atry", false),
        ("POST", "/v1/a%40b:try", false),
        ("POST", "/w/%24count", false),
        ("POST", "/w/$count", false),
        ("GET", "/f(a,b)/%31", false),
    ] {
        assert_eq!(is_ambiguous(method, path), expected, "{method} {path}");
    }
    assert_eq!(
        snapshot.folds_onto_write(&http::Method::GET, "/v1/a%3aWIPE/").unwrap().0,
        Class::Irreversible
    );
    assert_eq!(
        snapshot.folds_onto_write(&http::Method::HEAD, "/V1/%24Batch").unwrap().0,
        Class::Irreversible
    );
}

#[test]
fn c_8_a_get_that_folds_onto_a_write_is_that_write_where_a_wider_read_takes_it() {
    let snapshot = snapshot(
        "  get: { match: { http: \"GET /x/{id}\" } }\n\
         \x20 admin: { match: { http: \"GET /x/admin\" }, effect: { class: irreversible } }\n\
         \x20 other: { match: { http: \"GET /x/Admin2\" } }\n\
         \x20 admin2: { match: { http: \"GET /x/admin2\" }, effect: { class: irreversible } }\n\
         \x20 below: { match: { http: \"GET /y/{*rest}\" } }\n\
         \x20 run: { match: { http: \"GET /y/run\" }, effect: { class: irreversible } }\n\
         \x20 told: { match: { http: \"GET /t/{id}\" }, effect: { class: read } }\n\
         \x20 told.admin: { match: { http: \"GET /t/admin\" }, effect: { class: irreversible } }\n\
         \x20 wide: { match: { http: \"GET /z/{id}\" }, effect: { class: irreversible } }\n\
         \x20 me: { match: { http: \"GET /z/me\" } }\n",
    );
    let cases: &[(&str, &str, &[&str])] = &[
        ("GET", "/x/1", &["get"]),
        ("GET", "/x/admin", &["admin"]),
        ("GET", "/x/ADMIN", &["get", "admin"]),
        ("HEAD", "/x/Admin", &["get", "admin"]),
        ("GET", "/x/%41dmin", &["get", "admin"]),
        // Declared by itself, whatever it folds onto.
        ("GET", "/x/Admin2", &["other"]),
        ("GET", "/t/ADMIN", &["told", "told.admin"]),
        ("GET", "/t/admin.", &["told", "told.admin"]),
        ("GET", "/t/%C3%A4dmin", &["told"]),
        ("GET", "/y/a/b", &["below"]),
        ("GET", "/y/RUN", &["below", "run"]),
        ("GET", "/y/run/", &["below", "run"]),
        ("GET", "/z/me", &["me"]),
        ("GET", "/z/ME", &["wide"]),
        ("GET", "/X/ADMIN", &[]),
    ];
    for (method, path, expected) in cases {
        assert_eq!(found(&snapshot, method, path), *expected, "{method} {path}");
    }
}

#[test]
fn c_8_whole_segments_are_compared_and_case_counts() {
    let snapshot = snapshot(
        "  reports: { match: { http: \"GET /v1/reports\" } }\n\
         \x20 tilde: { match: { http: \"GET /~u/{x}\" } }\n",
    );
    for path in ["/v1/reports-delete", "/v1/reports/x", "/V1/reports", "/v1/reports/", "v1/reports"]
    {
        assert_eq!(found(&snapshot, "GET", path), [""; 0], "{path}");
    }
    assert_eq!(found(&snapshot, "GET", "/%7Eu/a%2Fb"), ["tilde"]);
    assert_eq!(found(&snapshot, "GET", "/v1/re%70orts"), ["reports"]);
}

#[test]
fn c_6_and_c_7_tool_names_are_exact() {
    let snapshot = snapshot("  read: { match: { tool: read_file } }\n");
    assert!(snapshot.find_tool("read_file").is_some());
    for name in ["read-file", "READ_FILE", "read_file ", "files/read_file", "r\u{435}ad_file"] {
        assert!(snapshot.find_tool(name).is_none(), "{name}");
    }
}

#[test]
fn the_most_specific_template_wins_and_equals_are_all_given() {
    let snapshot = snapshot(
        "  rest: { match: { http: \"POST /x/{*all}\" } }\n\
         \x20 left: { match: { http: \"POST /x/{a}\" } }\n\
         \x20 right: { match: { http: \"POST /{b}/y\" } }\n\
         \x20 exact: { match: { http: \"POST /x/z\" } }\n",
    );
    assert_eq!(found(&snapshot, "POST", "/x/z"), ["exact"]);
    assert_eq!(found(&snapshot, "POST", "/x/q"), ["left"]);
    assert_eq!(found(&snapshot, "POST", "/x/q/r"), ["rest"]);
    assert_eq!(found(&snapshot, "POST", "/x/y"), ["left", "right"]);
    assert_eq!(found(&snapshot, "POST", "/w/y"), ["right"]);
}

#[test]
fn head_matches_as_get_unless_it_is_declared() {
    let snapshot = snapshot(
        "  get: { match: { http: \"GET /a\" } }\n\
         \x20 other: { match: { http: \"GET /b\" } }\n\
         \x20 head: { match: { http: \"HEAD /b\" } }\n",
    );
    assert_eq!(found(&snapshot, "HEAD", "/a"), ["get"]);
    assert_eq!(found(&snapshot, "HEAD", "/b"), ["head"]);
    assert_eq!(found(&snapshot, "OPTIONS", "/a"), [""; 0]);
}

#[test]
fn a_get_that_folds_onto_a_declared_write_is_known() {
    let snapshot = snapshot(
        "  read: { match: { http: \"GET /items\" } }\n\
         \x20 run: { match: { http: \"GET /Jobs/{id}/run\" }, effect: { class: irreversible } }\n",
    );
    let write = Some((Class::Irreversible, Level::Challenge));
    for path in ["/jobs/1/run", "/JOBS/1/RUN/", "/Jobs/1/run//", "/jobs/1/r%75n"] {
        assert_eq!(snapshot.folds_onto_write(&http::Method::GET, path), write, "{path}");
    }
    for path in ["/jobs/1", "/ITEMS", "/jobs/1/running", "/"] {
        assert_eq!(snapshot.folds_onto_write(&http::Method::GET, path), None, "{path}");
    }
}

#[test]
fn a_get_whose_rest_is_empty_is_that_write_too() {
    let snapshot = snapshot(
        "  run: { match: { http: \"GET /run/{*path}\" }, effect: { class: irreversible } }\n\
         \x20 go: { match: { http: \"GET /go/{id}\" }, effect: { class: irreversible } }\n",
    );
    let write = Some((Class::Irreversible, Level::Challenge));
    for path in ["/run/", "/run", "/RUN/"] {
        assert_eq!(snapshot.folds_onto_write(&http::Method::GET, path), write, "{path}");
    }
    for path in ["/go/", "/go", "/", "/runs/"] {
        assert_eq!(snapshot.folds_onto_write(&http::Method::GET, path), None, "{path}");
    }
}

/// The call of a choice: a head, and a body that may be missing or unreadable.
enum Body<'t> {
    None,
    Json(&'t str),
    Unreadable,
}

fn chosen(snapshot: &Snapshot, path: &str, head: &str, body: Body<'_>) -> String {
    let head = Doc::parse(head.to_owned()).unwrap();
    let body_doc = match body {
        Body::Json(text) => Some(Doc::parse(text.to_owned()).unwrap()),
        Body::None | Body::Unreadable => None,
    };
    let request = match body {
        Body::Unreadable => Request::Unreadable,
        Body::None | Body::Json(_) => Request::Http {
            head: head.root(),
            body: body_doc.as_ref().map(Doc::root),
            is_opaque: false,
        },
    };
    let scope = Scope { before: None, request, response: None, key: None };
    let found = snapshot.find_http(&http::Method::POST, path);
    match choose(&found, &scope) {
        Choice::Declared(served) => served.operation.id.to_string(),
        Choice::Undeclared { strictest } => {
            format!("undeclared {}", strictest.map_or("-", Level::as_str))
        }
    }
}

const HEAD: &str = r#"{"path":{},"query":{},"header":{}}"#;

fn query(query: &str) -> String {
    format!(r#"{{"path":{{}},"query":{query},"header":{{}}}}"#)
}

const VARIANTS: &str = "  dry: { match: { http: \"POST /a\", where: { request.query.dryRun: \
    { equals: All } } }, effect: { class: read } }\n\
    \x20 real: { match: { http: \"POST /a\", where: { request.query.dryRun: { absent: true } } }, \
    confirm: human }\n";

#[test]
fn a_repeated_query_name_must_satisfy_with_every_value() {
    let snapshot = snapshot(VARIANTS);
    let cases = [
        (r#"{"dryRun":"All"}"#, "dry"),
        ("{}", "real"),
        (r#"{"dryRun":["All","All"]}"#, "dry"),
        (r#"{"dryRun":["All","None"]}"#, "undeclared human"),
        (r#"{"dryRun":"all"}"#, "undeclared human"),
        (r#"{"dryRun":[]}"#, "undeclared human"),
    ];
    for (text, expected) in cases {
        assert_eq!(chosen(&snapshot, "/a", &query(text), Body::None), expected, "{text}");
    }
    assert_eq!(chosen(&snapshot, "/b", HEAD, Body::None), "undeclared -");
}

#[test]
fn a_body_that_cannot_be_read_satisfies_no_condition() {
    let snapshot = snapshot(
        "  draft: { match: { http: \"POST /a\", where: { request.body.draft: { equals: true } } }, \
         effect: { class: read } }\n\
         \x20 plain: { match: { http: \"POST /a\", where: { request.body.draft: \
         { absent: true } } } }\n",
    );
    assert_eq!(chosen(&snapshot, "/a", HEAD, Body::Json(r#"{"draft":true}"#)), "draft");
    assert_eq!(chosen(&snapshot, "/a", HEAD, Body::Json("{}")), "plain");
    assert_eq!(chosen(&snapshot, "/a", HEAD, Body::Json(r#"{"draft":null}"#)), "plain");
    assert_eq!(
        chosen(&snapshot, "/a", HEAD, Body::Json(r#"{"draft":"true"}"#)),
        "undeclared challenge"
    );
    assert_eq!(chosen(&snapshot, "/a", HEAD, Body::None), "plain");
    assert_eq!(chosen(&snapshot, "/a", HEAD, Body::Unreadable), "undeclared challenge");
    let group = snapshot.find_http(&http::Method::POST, "/a");
    assert!(group.groups()[0].reads_body && group.groups()[0].has_conditions);
}

#[test]
fn an_unreadable_body_is_no_way_to_a_milder_plain_form() {
    let mild = snapshot(
        "  plain: { match: { http: \"POST /a\" }, effect: { class: read } }\n\
         \x20 send: { match: { http: \"POST /a\", where: { request.body.send: \
         { exists: true } } } }\n",
    );
    assert_eq!(chosen(&mild, "/a", HEAD, Body::Json("{}")), "plain");
    assert_eq!(chosen(&mild, "/a", HEAD, Body::Json(r#"{"send":1}"#)), "send");
    assert_eq!(chosen(&mild, "/a", HEAD, Body::Unreadable), "undeclared challenge");
    let severe = snapshot(
        "  plain: { match: { http: \"POST /a\" } }\n\
         \x20 draft: { match: { http: \"POST /a\", where: { request.body.draft: \
         { exists: true } } }, \
         effect: { class: read } }\n",
    );
    assert_eq!(chosen(&severe, "/a", HEAD, Body::Unreadable), "plain");
}

#[test]
fn more_conditions_win_and_equal_ones_leave_the_more_severe() {
    let snapshot = snapshot(
        "  a: { match: { http: \"POST /a\", where: { request.query.a: { exists: true } } }, \
         effect: { class: read } }\n\
         \x20 b: { match: { http: \"POST /a\", where: { request.query.b: { one_of: [x, y] } } } }\n\
         \x20 ab: { match: { http: \"POST /a\", where: { request.query.a: { equals: x }, \
         request.query.b: { equals: x } } }, effect: { class: read } }\n",
    );
    let cases = [
        (r#"{"a":"1"}"#, "a"),
        (r#"{"b":"y"}"#, "b"),
        (r#"{"a":"1","b":"x"}"#, "b"),
        (r#"{"a":"x","b":"x"}"#, "ab"),
        (r#"{"b":"z"}"#, "undeclared challenge"),
    ];
    for (text, expected) in cases {
        assert_eq!(chosen(&snapshot, "/a", &query(text), Body::None), expected, "{text}");
    }
}

#[test]
fn conditions_separate_no_templates_that_overlap() {
    let snapshot = snapshot(
        "  a: { match: { http: \"POST /{x}/b\", where: { request.query.q: { exists: true } } }, \
         effect: { class: read } }\n\
         \x20 b: { match: { http: \"POST /{y}/b\" } }\n\
         \x20 c: { match: { http: \"POST /a/{z}\" }, effect: { class: compensable, compensate: \
         { operation: b, arguments: { y: request.path.z } } } }\n",
    );
    let with = query(r#"{"q":"1"}"#);

    assert_eq!(chosen(&snapshot, "/a/b", &with, Body::None), "c", "not the milder variant");
    assert_eq!(chosen(&snapshot, "/a/b", HEAD, Body::None), "b");
    assert_eq!(chosen(&snapshot, "/x/b", &with, Body::None), "a", "a parameter by another name");
    assert_eq!(chosen(&snapshot, "/x/b", HEAD, Body::None), "b");
}

#[test]
fn tools_have_variants_by_their_arguments() {
    let snapshot = snapshot(
        "  a: { match: { tool: t, where: { request.mode: { equals: 1 } } }, \
         effect: { class: read } }\n",
    );
    let group = snapshot.find_tool("t").unwrap();
    let one = |text: &str| {
        let doc = Doc::parse(text.to_owned()).unwrap();
        let request = Request::Arguments(doc.root());
        let scope = Scope { before: None, request, response: None, key: None };
        matches!(choose(&Found::One(group), &scope), Choice::Declared(_))
    };
    assert!(one(r#"{"mode":1}"#));
    assert!(one(r#"{"mode":1.0}"#));
    assert!(!one(r#"{"mode":"1"}"#));
    assert!(!one(r#"{"mode":[1]}"#));
    assert!(!group.reads_body);
}

#[test]
fn a_tools_milder_plain_form_is_not_what_its_variant_may_be() {
    let snapshot = snapshot(
        "  list: { match: { tool: t }, effect: { class: read } }\n\
         \x20 wipe: { match: { tool: t, where: { request.mode: { equals: wipe }, request.force: \
         { exists: true } } } }\n",
    );
    let group = snapshot.find_tool("t").unwrap();
    let is_declared = |text: &str| {
        let doc = Doc::parse(text.to_owned()).unwrap();
        let request = Request::Arguments(doc.root());
        let scope = Scope { before: None, request, response: None, key: None };
        matches!(choose(&Found::One(group), &scope), Choice::Declared(_))
    };
    for (text, expected) in [
        (r#"{"mode":"list","force":1}"#, true),
        (r#"{"mode":"Wipe"}"#, true),
        (r#"{"force":1}"#, true),
        (r#"{"mode":"wipe","force":1}"#, true),
        (r#"{"mode":"Wipe","force":1}"#, false),
        (r#"{"mode":" wipe","force":1}"#, false),
        (r#"{"mode":["wipe"],"force":1}"#, false),
        (r#"{"mode":"wipe","Force":1}"#, false),
    ] {
        assert_eq!(is_declared(text), expected, "{text}");
    }
}

fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop_oneof![Just("a"), Just("b"), Just("ab"), Just("%7E"), Just("x.json")]
            .prop_map(str::to_owned),
        2 => Just("{P}".to_owned()),
        1 => prop_oneof![Just("{P}.json"), Just("a{P}"), Just("{P}b"), Just("a{P}b")]
            .prop_map(str::to_owned),
    ]
}

fn template() -> impl Strategy<Value = String> {
    let rest = prop_oneof![3 => Just(""), 1 => Just("/{*rest}"), 1 => Just("/")];
    (proptest::collection::vec(part(), 1..4), rest).prop_map(|(parts, rest)| {
        let mut text = String::new();
        for (position, part) in parts.iter().enumerate() {
            text.push('/');
            text.push_str(&part.replace('P', &format!("p{position}")));
        }
        text + rest
    })
}

fn path() -> impl Strategy<Value = String> {
    let segment = prop_oneof![
        Just("a"),
        Just("b"),
        Just("ab"),
        Just("aab"),
        Just("~"),
        Just("%7e"),
        Just("x.json"),
        Just("%61b"),
        Just("a%2Fb"),
        Just("q%3A"),
        Just("a%42"),
    ];
    let end = prop_oneof![4 => Just(""), 1 => Just("/")];
    (proptest::collection::vec(segment, 1..5), end)
        .prop_map(|(segments, end)| format!("/{}{end}", segments.join("/")))
}

#[test]
fn contract_1_a_spelling_that_folds_onto_something_more_severe_is_that_too() {
    let snapshot = snapshot(
        "  item: { match: { http: \"POST /items/{id}\" }, effect: { class: read } }\n\
         \x20 purge: { match: { http: \"POST /items/purge\" }, effect: { class: irreversible } }\n\
         \x20 any: { match: { http: \"PUT /s/{*rest}\" }, effect: { class: read } }\n\
         \x20 fire: { match: { http: \"PUT /s/fire\" }, confirm: human }\n\
         \x20 team: { match: { http: \"PUT /{team}/run\" }, effect: { class: read } }\n\
         \x20 job: { match: { http: \"PUT /jobs/{name}\" } }\n\
         \x20 strict: { match: { http: \"DELETE /a/Me\" }, effect: { class: read } }\n\
         \x20 me: { match: { http: \"DELETE /a/me\" } }\n\
         \x20 severe: { match: { http: \"PATCH /c/{id}\" } }\n\
         \x20 mild: { match: { http: \"PATCH /c/me\" }, effect: { class: read } }\n\
         \x20 head: { match: { http: \"HEAD /h/admin\" }, effect: { class: irreversible } }\n\
         \x20 get: { match: { http: \"GET /h/{id}\" } }\n\
         \x20 close: { match: { http: \"POST /b/{id}:close\" } }\n\
         \x20 b: { match: { http: \"POST /b/{id}\" }, effect: { class: read } }\n",
    );
    let cases: &[(&str, &str, &[&str])] = &[
        ("POST", "/items/5", &["item"]),
        ("POST", "/items/purge", &["purge"]),
        ("POST", "/items/Purge", &["item", "purge"]),
        ("POST", "/items/purge%20", &["item", "purge"]),
        ("POST", "/items/%20purge", &["item", "purge"]),
        ("POST", "/items/purge%C2%A0", &["item", "purge"]),
        ("POST", "/items/purge.", &["item", "purge"]),
        ("POST", "/items/PURGE.%20.", &["item", "purge"]),
        ("POST", "/items/purge.x", &["item"]),
        ("PUT", "/s/fire/", &["any", "fire"]),
        ("PUT", "/s/f%C4%B1re", &["any", "fire"]),
        ("PUT", "/s/f%C4%B0re", &["any", "fire"]),
        ("PUT", "/s/fire/x", &["any"]),
        ("PUT", "/Jobs/run", &["team", "job"]),
        ("PUT", "/Jobs/walk", &[]),
        // Declared for this very spelling, or for less of it.
        ("DELETE", "/a/Me", &["strict"]),
        ("DELETE", "/a/ME", &[]),
        ("PATCH", "/c/me", &["mild"]),
        ("PATCH", "/c/ME", &["severe"]),
        ("HEAD", "/h/Admin", &["get", "head"]),
        ("GET", "/h/Admin", &["get"]),
        ("POST", "/b/5:Close", &["b", "close"]),
        ("POST", "/b/5:close.", &["b", "close"]),
        ("POST", "/b/5:open", &["b"]),
    ];
    for (method, path, expected) in cases {
        assert_eq!(found(&snapshot, method, path), *expected, "{method} {path}");
    }
}

#[test]
fn contract_1_of_two_spellings_one_more_severe_and_one_stricter_neither_alone_is_enough() {
    let snapshot = snapshot(
        "  item: { match: { http: \"POST /items/{id}\" }, confirm: challenge }\n\
         \x20 pay: { match: { http: \"POST /items/pay\" }, confirm: human, effect: { class: \
         compensable, compensate: { operation: item, arguments: { path.id: { const: x } } } } }\n",
    );
    assert_eq!(chosen(&snapshot, "/items/pay", HEAD, Body::None), "pay");
    assert_eq!(chosen(&snapshot, "/items/Pay", HEAD, Body::None), "undeclared human");
    assert_eq!(chosen(&snapshot, "/items/x", HEAD, Body::None), "item");
}

/// Spells a path otherwise, as one lenient reader or another takes for the same.
fn respelt() -> impl Strategy<Value = String> {
    let letter = prop_oneof![Just("a"), Just("A"), Just("%61"), Just("%41"), Just("b"), Just("B")];
    let text = proptest::collection::vec(letter, 1..3).prop_map(|letters| letters.concat());
    let end = prop_oneof![3 => Just(""), 1 => Just("."), 1 => Just("%20"), 1 => Just("%20.")];
    let segment = (text, end).prop_map(|(text, end)| text + end);
    let slash = prop_oneof![3 => Just(""), 1 => Just("/")];
    (proptest::collection::vec(segment, 1..4), slash)
        .prop_map(|(segments, slash)| format!("/{}{slash}", segments.join("/")))
}

/// The path as one reader takes it, who does some of this and leaves the rest: case, a slash at the end,
/// dots and spaces at a segment's end.
fn read_by(path: &str, reader: u8) -> String {
    let decoded = path.replace("%61", "a").replace("%41", "A");
    let cased = if reader & 1 == 0 { decoded } else { decoded.to_ascii_lowercase() };
    let slashed = match cased.strip_suffix('/') {
        Some(rest) if reader & 2 != 0 => rest.to_owned(),
        Some(_) | None => cased,
    };
    if reader & 4 == 0 {
        return slashed.replace("%20", " ");
    }
    let ends = slashed.split('/').map(|segment| {
        let decoded = segment.replace("%20", " ");
        decoded.trim_end_matches(['.', ' ']).to_owned()
    });
    ends.collect::<Vec<String>>().join("/")
}

proptest! {
    #[test]
    fn contract_1_no_spelling_is_served_as_milder_than_any_reader_would_run_it(
        templates in proptest::collection::btree_map(
            proptest::collection::vec(
                prop_oneof![3 => "[ab]{1,2}", 2 => Just("{P}".to_owned())],
                1..4,
            ),
            (0_usize..3, any::<bool>()),
            1..8,
        ),
        paths in proptest::collection::vec(respelt(), 1..8),
    ) {
        const CLASSES: [&str; 3] = ["read", "compensable", "irreversible"];
        let mut text = String::from("  way_back: { match: { http: \"DELETE /zz\" } }\n");
        let mut parsed = Vec::new();
        for (position, (parts, (class, is_rest))) in templates.iter().enumerate() {
            let named = parts.iter().enumerate();
            let parts = named.map(|(at, part)| part.replace('P', &format!("p{at}")));
            let mut template = format!("/{}", parts.collect::<Vec<String>>().join("/"));
            if *is_rest {
                template += "/{*rest}";
            }
            let template_of = Template::parse(&template).unwrap();
            if parsed.iter().any(|(known, _): &(Template, usize)| {
                known.specificity(&template_of) == Specificity::Same
            }) {
                continue;
            }
            let back = if *class == 1 { ", compensate: { operation: way_back }" } else { "" };
            writeln!(
                text,
                "  op{position}: {{ match: {{ http: \"POST {template}\" }}, effect: {{ class: {}{back} }} }}",
                CLASSES[*class],
            )
            .unwrap();
            parsed.push((template_of, *class));
        }
        let snapshot = snapshot(&text);
        for path in &paths {
            let found = snapshot.find_http(&http::Method::POST, path);
            let scope = Scope {
                before: None,
                request: Request::Unreadable,
                response: None,
                key: None,
            };
            let own = match choose(&found, &scope) {
                Choice::Declared(served) => served.operation.class,
                Choice::Undeclared { .. } => Class::Irreversible,
            };
            let is_own = parsed.iter().any(|(template, _)| template.matches(path).is_some());
            for reader in 0..8 {
                let read = read_by(path, reader);
                let taking: Vec<&(Template, usize)> = parsed
                    .iter()
                    .filter(|(template, _)| template.matches(&read).is_some())
                    .collect();
                let best = taking.iter().filter(|(own, _)| {
                    taking.iter().all(|(other, _)| other.specificity(own) != Specificity::More)
                });
                // What he runs nothing for does no harm.
                if let Some(class) = best.map(|(_, class)| CLASSES[*class]).max_by_key(|name| {
                    Class::from_name(name)
                }) {
                    let class = Class::from_name(class).unwrap();
                    prop_assert!(
                        own >= class,
                        "{} read as {}: {} for {} ({})", path, read, own, class, is_own
                    );
                }
            }
        }
    }

    #[test]
    fn the_router_finds_what_a_linear_scan_finds(
        templates in proptest::collection::vec(template(), 1..12),
        paths in proptest::collection::vec(path(), 1..8),
    ) {
        let unique: BTreeSet<String> = templates.into_iter().collect();
        let mut text = String::new();
        for (position, template) in unique.iter().enumerate() {
            writeln!(text, "  op{position}: {{ match: {{ http: \"POST {template}\" }} }}").unwrap();
        }
        let snapshot = snapshot(&text);
        let parsed: Vec<Template> =
            unique.iter().map(|text| Template::parse(text).unwrap()).collect();
        for path in &paths {
            let matching: Vec<usize> = (0..parsed.len())
                .filter(|position| parsed[*position].matches(path).is_some())
                .collect();
            let expected: BTreeSet<String> = matching
                .iter()
                .filter(|own| {
                    !matching.iter().any(|other| {
                        parsed[*other].specificity(&parsed[**own]) == Specificity::More
                    })
                })
                .map(|position| format!("op{position}"))
                .collect();
            let actual: BTreeSet<String> =
                found(&snapshot, "POST", path).into_iter().map(str::to_owned).collect();
            prop_assert_eq!(actual, expected, "{} among {:?}", path, unique);
        }
    }

    #[test]
    fn every_overlap_that_a_path_shows_is_found(
        templates in proptest::collection::vec(template(), 2..8),
        paths in proptest::collection::vec(path(), 1..8),
    ) {
        let unique: BTreeSet<String> = templates.into_iter().collect();
        let mut text = String::new();
        for (position, template) in unique.iter().enumerate() {
            writeln!(text, "  op{position}: {{ match: {{ http: \"POST {template}\" }} }}").unwrap();
        }
        let text = format!("version: 1\noperations:\n{text}");
        let compiled = compile(vec![("a.yaml".to_owned(), text)]);
        let codes = ["policy/overlap", "policy/unreachable"];
        let has_finding = compiled.diagnostics.iter().any(|found| codes.contains(&found.code));
        let snapshot = compiled.snapshot.unwrap();
        for path in &paths {
            if let Found::Several(_) = snapshot.find_http(&http::Method::POST, path) {
                prop_assert!(has_finding, "{} among {:?}", path, unique);
            }
        }
    }
}
