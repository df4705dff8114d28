//! The compiler as a whole: what is found where, and what is served.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::contract::class::{Kind, OnUnknown, Repeat};
use crate::contract::json::Doc;
use crate::contract::operation::{Deadline, Mapping, Slot, Target, Verification};

fn vectors() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

fn one(text: &str) -> Compiled {
    compile(vec![("a.yaml".to_owned(), text.to_owned())])
}

fn snapshot(text: &str) -> Snapshot {
    let compiled = one(text);
    assert!(!compiled.has_errors(), "{}", compiled.human());
    compiled.snapshot.unwrap()
}

fn served<'s>(snapshot: &'s Snapshot, id: &str) -> &'s Served {
    snapshot.operation(&OperationId::new(id).unwrap()).unwrap()
}

/// The files of one case, and what is expected of them.
fn case(text: &str) -> (Vec<(String, String)>, String) {
    let mut files = Vec::new();
    let mut expected = String::new();
    for section in text.split("== ").skip(1) {
        let (name, content) = section.split_once('\n').unwrap();
        if name == "expected" {
            content.clone_into(&mut expected);
        } else {
            files.push((name.to_owned(), content.to_owned()));
        }
    }
    (files, expected)
}

/// Each case is named for the code that it shows. `UPDATE_GOLDEN=1` writes what was found; the
/// difference is for a reviewer.
#[test]
fn every_code_is_drawn_at_its_token() {
    let is_update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut wrong = String::new();
    for entry in std::fs::read_dir(vectors().join("findings")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let (files, expected) = case(&text);
        let code = path.file_stem().unwrap().to_str().unwrap().replacen('.', "/", 1);

        let compiled = compile(files);

        let without = compiled.diagnostics.iter().find(|found| found.help.is_none());
        assert!(without.is_none(), "no help: {without:?}");
        let found = compiled.diagnostics.iter().find(|found| found.code == code);
        if found.is_none() {
            writeln!(wrong, "{code} is not found:\n{}", compiled.human()).unwrap();
        }
        if is_update {
            let (input, _) = text.split_once("== expected\n").unwrap();
            let updated = format!("{input}== expected\n{}", compiled.human());
            std::fs::write(&path, updated).unwrap();
        } else if compiled.human() != expected {
            writeln!(wrong, "{code} is drawn otherwise:\n{}", compiled.human()).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Codes that no small file can show.
const WITHOUT_CASE: &[&str] = &[
    "policy/empty",
    "policy/findings_left_out",
    "policy/overlap_unchecked",
    "policy/timeout_beyond_grace",
    "policy/too_large",
    "policy/too_many_operations",
    "policy/too_many_variants",
    "policy/unreadable",
];

#[test]
fn every_code_in_the_source_has_a_case() {
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/policy");
    let mut codes = BTreeSet::new();
    for entry in std::fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") || path.ends_with("tests.rs")
        {
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        for quoted in text.split('"') {
            let is_code = ["policy/", "effect/", "spec/"].iter().any(|book| {
                quoted.strip_prefix(book).is_some_and(|name| {
                    !name.is_empty()
                        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
                })
            });
            if is_code {
                codes.insert(quoted.to_owned());
            }
        }
    }
    let missing: Vec<&String> = codes
        .iter()
        .filter(|code| {
            let file = format!("{}.txt", code.replacen('/', ".", 1));
            !vectors().join("findings").join(file).exists()
                && !WITHOUT_CASE.contains(&code.as_str())
        })
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    let explained: BTreeSet<String> =
        super::codes().iter().map(|(code, _)| (*code).to_owned()).collect();
    assert_eq!(explained, codes);
    assert!(super::codes().is_sorted());
    assert!(explain_code("effect/operation_missing").is_some());
    assert!(explain_code("effect/nothing").is_none());
}

#[test]
fn a_time_out_beyond_the_drain_is_told_where_it_stands() {
    let directory = tempfile::tempdir().unwrap();
    let text = "version: 1\noperations:\n  a:\n    match: { tool: a }\n    timeout: { head_ms: \
                25000, total_ms: 25001 }\n";
    std::fs::write(directory.path().join("a.yaml"), text).unwrap();
    let grace = std::time::Duration::from_secs(25);

    let compiled = load_within(directory.path(), Some(grace));

    let [found] = compiled.diagnostics.as_slice() else { panic!("{}", compiled.human()) };
    assert_eq!(found.code, "policy/timeout_beyond_grace");
    assert_eq!((found.line, found.column, found.severity), (5, 42, Severity::Warning));
    assert!(load(directory.path()).diagnostics.is_empty());
}

#[test]
fn a_lookup_cannot_compare_with_the_request() {
    let text = |assertion: &str| {
        format!(
            "version: 1\noperations:\n  get: {{ match: {{ http: \"GET /c/{{id}}\" }} }}\n  a:\n    \
             match: {{ http: \"POST /c\" }}\n    effect:\n      class: irreversible\n      lookup:\n        \
             operation: get\n        by: id\n        arguments: {{ id: request.body.id }}\n        \
             match:\n          - {assertion}\n"
        )
    };
    let codes = |assertion: &str| -> Vec<&str> {
        let compiled = one(&text(assertion));
        let errors = compiled.diagnostics.iter();
        errors.filter(|found| found.severity == Severity::Error).map(|found| found.code).collect()
    };
    let equals = "{ type: equals_request, name: n, actual: { source: response_body, pointer: /n }, \
                  expected_request: /body/n }";
    assert_eq!(codes(equals), ["spec/equals_request_outside_immediate"]);
    let request = "{ type: exists, name: n, actual: { source: request_body, pointer: /n } }";
    assert_eq!(codes(request), ["spec/request_selector_outside_immediate"]);
    let exists = "{ type: exists, name: n, actual: { source: response_body, pointer: /n } }";
    assert!(codes(exists).is_empty());
}

#[test]
fn the_editors_schema_has_the_closed_lists() {
    let doc = Doc::parse(JSON_SCHEMA).unwrap();
    let names = |schema: crate::contract::json::Value<'_>| -> BTreeSet<String> {
        assert_eq!(schema.get("additionalProperties").unwrap().as_bool(), Some(false));
        let members = schema.get("properties").unwrap().members();
        members.map(|member| member.name().into_owned()).collect()
    };
    let set = |list: &[&str]| -> BTreeSet<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    };
    let root = doc.root();
    let definition = |name: &str| root.get("$defs").unwrap().get(name).unwrap();
    assert_eq!(names(root), set(file::FILE));
    let defaults = root.get("properties").unwrap().get("defaults").unwrap();
    assert_eq!(names(defaults), set(file::DEFAULTS));
    assert_eq!(names(definition("operation")), set(file::OPERATION));
    assert_eq!(names(definition("effect")), set(effect::MEMBERS));
    // An editor shows what it completes.
    let mut open = vec![root];
    let mut count = 0;
    while let Some(value) = open.pop() {
        // What only holds between members has nothing to show.
        for member in value.members().filter(|member| !member.has_name("allOf")) {
            if member.has_name("properties") {
                for property in member.value.members() {
                    let is_shown = property.value.get("description").is_some()
                        || property.value.get("$ref").is_some();
                    assert!(is_shown, "{}", property.name());
                    count += 1;
                }
            }
            open.push(member.value);
        }
        open.extend(value.elements());
    }
    assert!(count > 100, "{count}");
}

/// `MutationWithoutAssertions` is `spec/mutation_without_assertions`.
fn code_of(variant: &str) -> String {
    let mut code = String::from("spec/");
    for (position, character) in variant.char_indices() {
        if character.is_ascii_uppercase() && position > 0 {
            code.push('_');
        }
        code.push(character.to_ascii_lowercase());
    }
    code
}

/// Compiles an EffectSpec as an operation's effect block.
fn spec_findings(spec: &str) -> Vec<(Severity, &'static str)> {
    let operation = format!(r#"{{"match":{{"http":"POST /a"}},"effect":{spec}}}"#);
    let text = format!(r#"{{"version":1,"operations":{{"a":{operation}}}}}"#);
    let compiled = compile(vec![("a.json".to_owned(), text)]);
    compiled.diagnostics.iter().map(|found| (found.severity, found.code)).collect()
}

#[test]
fn effectspec_vectors_find_their_variant() {
    let text = std::fs::read(vectors().join("effectspec.json")).unwrap();
    let doc = Doc::parse(text).unwrap();
    let mut count = 0;
    for (list, member) in [("invalid", "variant"), ("invalid_no_variant_in_seed", "our_variant")] {
        for case in doc.root().get(list).unwrap().elements() {
            let code = code_of(&case.get(member).unwrap().as_str().unwrap());
            let found = spec_findings(case.get("spec").unwrap().raw());
            assert!(
                found
                    .iter()
                    .any(|(severity, found)| *found == code && *severity == Severity::Error),
                "{code}: {found:?}"
            );
            count += 1;
        }
    }
    for case in doc.root().get("valid").unwrap().elements() {
        let found = spec_findings(case.get("spec").unwrap().raw());
        let name = case.get("name").unwrap().raw();
        assert!(found.iter().all(|(severity, _)| *severity != Severity::Error), "{name} {found:?}");
        if name.contains("tautology") {
            assert!(found.contains(&(Severity::Warning, "spec/tautology")));
        }
        if name.contains("plan") {
            assert!(found.contains(&(Severity::Warning, "spec/probe_target_undeclared")));
        }
        count += 1;
    }
    assert!(count > 35);
}

#[test]
fn effectspec_vectors_that_do_not_deserialise_are_refused() {
    let text = std::fs::read(vectors().join("effectspec.json")).unwrap();
    let doc = Doc::parse(text).unwrap();
    for case in doc.root().get("deserialization_errors").unwrap().elements() {
        let why = case.get("why").unwrap().as_str().unwrap();
        let spec = case.get("spec").unwrap();
        if why == "missing schema_version" {
            // Without it a block is no whole EffectSpec; read as one, as a catalog's is, it is
            // refused.
            let source = Source::new("a.json", spec.raw());
            let node = tree::read(spec.raw(), tree::Format::Json).unwrap();
            let mut findings = Findings::default();
            let at = super::diagnostic::At { file: 0, source: &source, operation: None };
            let mut reading = reading::Reading { findings: &mut findings, at };
            let fields = reading.mapping(&node, "the spec").unwrap();
            let transport = effect_spec::Transport::Http;
            effect_spec::read_as(&mut reading, &fields, transport, true);
            assert_eq!(findings.finish()[0].code, "policy/missing_member");
            continue;
        }
        let found = spec_findings(spec.raw());
        assert!(
            found.iter().any(|(severity, code)| *severity == Severity::Error
                && code.starts_with("policy/")),
            "{why}: {found:?}"
        );
    }
}

const COMMENTS: &str = r#"
version: 1
defaults: { irreversible: challenge, destructive: human, undeclared: refuse }
operations:
  github.comments.create:
    match: { http: "POST /repos/{owner}/{repo}/issues/{issue_number}/comments" }
    effect:
      class: reversible
      kind: create
      inverse:
        operation: github.comments.delete
        arguments:
          path.owner: request.path.owner
          repo: request.repo
          path.comment_id: response.id
          body.note: { const: 1.0 }
        deadline: { within_ms: 86400000 }
      lookup:
        operation: github.comments.list
        by: id
        arguments: { owner: request.owner, repo: request.repo, issue_number: request.issue_number }
        settle_ms: 5000
        empty: response.items
      idempotency: { type: header, name: Idempotency-Key, retention: 24h, replay: full }
      dispatch_statuses:
        accepted: [{ type: exact, status: 201 }]
        definitely_rejected: [{ type: range, start: 400, end: 404 }]
      upstream_id: { source: response_body, pointer: /id }
      verification:
        type: response_binding
        config:
          trust: gateway_observed_only
          assertions:
            - { type: exists, name: id, actual: { source: response_body, pointer: /id } }
    confirm: none
  github.comments.delete:
    match: { http: "DELETE /repos/{owner}/{repo}/issues/comments/{comment_id}" }
    destructive: true
    effect: { class: irreversible, kind: delete, no_evidence: empty_response_body }
  github.comments.list:
    match: { http: "GET /repos/{owner}/{repo}/issues/{issue_number}/comments" }
"#;

#[test]
fn the_contracts_example_compiles_to_what_it_says() {
    let snapshot = snapshot(COMMENTS);
    let create = served(&snapshot, "github.comments.create");
    let operation = &create.operation;

    assert_eq!(operation.class, Class::Reversible);
    assert_eq!(operation.kind, Kind::Create);
    assert_eq!(operation.confirm, Level::None);
    assert_eq!(operation.repeat, Repeat::Allow);
    assert_eq!(operation.on_unknown, OnUnknown::Challenge);
    assert_eq!(operation.carrier.retention_ms, Some(86_400_000));
    assert_eq!(create.ceiling, Ceiling::Response);
    assert!(matches!(operation.verification, Verification::ResponseBinding { .. }));
    let inverse = operation.inverse.as_ref().unwrap();
    assert_eq!(inverse.reference.operation.as_str(), "github.comments.delete");
    assert_eq!(inverse.reference.class, Class::Irreversible);
    assert!(matches!(inverse.deadline, Some(Deadline::WithinMs(86_400_000))));
    let arguments: Vec<(String, Slot, String)> = inverse
        .arguments
        .iter()
        .map(|argument| {
            let mapping = match &argument.mapping {
                Mapping::Const(doc) => doc.root().raw().to_owned(),
                Mapping::Path(path) => path.to_string(),
            };
            (argument.name.clone(), argument.slot.clone(), mapping)
        })
        .collect();
    let path = |name: &str| Slot::Path(name.to_owned());
    assert_eq!(
        arguments,
        [
            ("path.owner".to_owned(), path("owner"), "request.path.owner".to_owned()),
            ("repo".to_owned(), path("repo"), "request.path.repo".to_owned()),
            ("path.comment_id".to_owned(), path("comment_id"), "response.id".to_owned()),
            ("body.note".to_owned(), Slot::Body(vec!["note".to_owned()]), "1.0".to_owned()),
        ]
    );
    let delete = &served(&snapshot, "github.comments.delete").operation;
    assert_eq!(delete.confirm, Level::Human);
    assert_eq!(delete.repeat, Repeat::Confirm);
    let list = served(&snapshot, "github.comments.list");
    assert_eq!(list.operation.class, Class::Read);
    assert!(list.read_header.to_str().unwrap().contains("github.comments.list"));
    assert_eq!(snapshot.undeclared(), Undeclared::Refuse);
    let indexes: Vec<usize> = snapshot.operations().iter().map(|served| served.index).collect();
    assert_eq!(indexes, [0, 1, 2]);
}

#[test]
fn class_without_a_declaration_follows_the_contracts_table() {
    let cases = [
        ("match: { http: GET /a }", Class::Read),
        ("match: { http: HEAD /a }", Class::Read),
        ("match: { http: OPTIONS /a }", Class::Read),
        ("match: { http: POST /a }", Class::Irreversible),
        ("match: { http: QUERY /a }", Class::Irreversible),
        ("match: { tool: a }", Class::Irreversible),
        (
            "match: { http: GET /a }, effect: { idempotency: { type: unsupported } }",
            Class::Irreversible,
        ),
        ("match: { http: POST /a }, effect: { kind: read }", Class::Read),
        ("match: { http: POST /a }, effect: { kind: mutation }", Class::Irreversible),
        ("match: { http: GET /a }, effect: { class: irreversible }", Class::Irreversible),
        ("match: { tool: a }, effect: { class: read }", Class::Read),
    ];
    for (body, class) in cases {
        let snapshot = snapshot(&format!("version: 1\noperations: {{ a: {{ {body} }} }}"));
        assert_eq!(served(&snapshot, "a").operation.class, class, "{body}");
    }
    let writes = "version: 1\ndefaults: { undeclared_get: irreversible }\n\
                  operations: { a: { match: { http: GET /a } } }";
    let writes = snapshot(writes);
    assert_eq!(served(&writes, "a").operation.class, Class::Irreversible);
    assert!(writes.undeclared_get_writes());
}

#[test]
fn the_strictest_default_holds_and_an_own_level_replaces_it() {
    let text = "version: 1\n\
        defaults: { irreversible: caller, destructive: human }\n\
        operations:\n\
        \x20 plain: { match: { http: POST /a } }\n\
        \x20 destructive: { match: { http: POST /b }, destructive: true }\n\
        \x20 own: { match: { http: POST /c }, destructive: true, confirm: caller }\n\
        \x20 read: { match: { http: GET /d } }\n";
    let compiled = one(text);
    let snapshot = compiled.snapshot.unwrap();
    let level = |id| served(&snapshot, id).operation.confirm;
    assert_eq!(level("plain"), Level::Caller);
    assert_eq!(level("destructive"), Level::Human);
    assert_eq!(level("own"), Level::Caller);
    assert_eq!(level("read"), Level::None);
    assert_eq!(snapshot.undeclared(), Undeclared::Confirm(Level::Human));
}

#[test]
fn undeclared_calls_need_a_challenge_when_nothing_is_declared() {
    let empty = compile(Vec::new());
    let snapshot = empty.snapshot.unwrap();
    assert_eq!(snapshot.undeclared(), Undeclared::Confirm(Level::Challenge));
    assert_eq!(snapshot.undeclared_mode(), Mode::Enforce);
    assert!(empty.diagnostics.is_empty());
}

#[test]
fn of_all_files_the_strictest_default_holds_for_undeclared_calls() {
    let file = |name: &str, defaults: &str| {
        (name.to_owned(), format!("version: 1\ndefaults: {defaults}\n"))
    };
    let compiled = compile(vec![
        file("a.yaml", "{ undeclared: human, mode: observe }"),
        file("b.yaml", "{ undeclared: caller, undeclared_get: irreversible }"),
    ]);
    let snapshot = compiled.snapshot.unwrap();
    assert_eq!(snapshot.undeclared(), Undeclared::Confirm(Level::Human));
    assert!(snapshot.undeclared_get_writes());
    assert_eq!(snapshot.undeclared_mode(), Mode::Enforce);
    let all =
        compile(vec![file("a.yaml", "{ mode: observe }"), file("b.yaml", "{ mode: observe }")]);
    assert_eq!(all.snapshot.unwrap().undeclared_mode(), Mode::Observe);
}

#[test]
fn a_faulty_contract_is_served_as_irreversible_without_follow_ups() {
    let text = COMMENTS.replace("github.comments.list\n        by: id", "nowhere\n        by: id");
    let compiled = one(&text);
    assert!(compiled.has_errors());
    let snapshot = compiled.snapshot.unwrap();
    let create = served(&snapshot, "github.comments.create");

    assert!(create.is_degraded());
    assert_eq!(create.operation.class, Class::Irreversible);
    assert_eq!(create.operation.confirm, Level::Challenge);
    assert!(create.operation.inverse.is_none());
    assert!(create.operation.lookup.is_none());
    assert_eq!(create.ceiling, Ceiling::None);
    assert!(create.notes[1].contains("effect/operation_missing"), "{:?}", create.notes);
    assert!(create.notes[1].starts_with("a.yaml:"));
    assert!(!served(&snapshot, "github.comments.delete").is_degraded());
}

#[test]
fn a_fault_never_asks_for_less_than_the_class_that_it_is_served_as() {
    let compiled = one("version: 1\ndefaults: { irreversible: human }\noperations:\n  \
         a: { match: { http: POST /a }, effect: { class: reversible, inverse: { operation: nope, \
         arguments: { id: response.id } } } }\n  \
         b: { match: { http: POST /b }, effect: { class: irreversible }, confirm: none }\n");
    let snapshot = compiled.snapshot.unwrap();
    let confirm = |id: &str| served(&snapshot, id).operation.confirm;
    assert!(served(&snapshot, "a").is_degraded());
    assert_eq!((confirm("a"), confirm("b")), (Level::Human, Level::None));
}

#[test]
fn a_read_that_asks_for_a_confirmation_is_served_as_a_write_under_it() {
    let compiled = one("version: 1\ndefaults: { destructive: human }\noperations:\n  \
         a: { match: { http: GET /a }, confirm: caller }\n  \
         b: { match: { http: GET /b }, confirm: human }\n  \
         c: { match: { http: GET /c }, destructive: true, effect: { class: read } }\n  \
         d: { match: { http: GET /d }, destructive: true, confirm: none, effect: { class: read } }\n  \
         e: { match: { http: GET /e }, confirm: none }\n");
    let snapshot = compiled.snapshot.unwrap();
    let found = |id: &str| {
        let operation = &served(&snapshot, id).operation;
        (operation.class, operation.confirm)
    };
    assert_eq!(found("a"), (Class::Irreversible, Level::Challenge));
    assert_eq!(found("b"), (Class::Irreversible, Level::Human));
    assert_eq!(found("c"), (Class::Irreversible, Level::Human));
    assert_eq!(found("d"), (Class::Read, Level::None));
    assert_eq!(found("e"), (Class::Read, Level::None));
}

#[test]
fn j_5_a_read_with_an_inverse_is_an_error_and_no_read() {
    let text = "version: 1\noperations:\n\
        \x20 a: { match: { tool: a }, effect: { class: read, inverse: { operation: b } } }\n\
        \x20 b: { match: { tool: b } }\n";
    let compiled = one(text);
    assert!(compiled.has_errors());
    let snapshot = compiled.snapshot.unwrap();
    assert_eq!(served(&snapshot, "a").operation.class, Class::Irreversible);
    assert_eq!(served(&snapshot, "a").operation.confirm, Level::Challenge);
}

#[test]
fn a_read_whose_evidence_is_wrong_stays_a_read() {
    let text = "version: 1\noperations:\n\
        \x20 a: { match: { http: GET /a }, effect: { class: read, \
        no_evidence: empty_response_body } }\n";
    let compiled = one(text);
    assert!(compiled.has_errors());
    let snapshot = compiled.snapshot.unwrap();
    assert_eq!(served(&snapshot, "a").operation.class, Class::Read);
    assert_eq!(served(&snapshot, "a").operation.confirm, Level::None);
}

#[test]
fn i_4_and_i_5_files_that_cannot_be_read_give_no_snapshot() {
    let cases = [
        "version: 1\noperations: { a: { match: { tool: a }, effect: { clas: read } } }",
        "version: 1\noperations: { a: { match: { tool: a }, confrim: human } }",
        "version: 1\nunknown: {}",
        "version: 1\noperations:\n  a: { match: { tool: a } }\n  a: { match: { tool: b } }\n",
        "operations: {}",
    ];
    for text in cases {
        let compiled = one(text);
        assert!(compiled.has_errors() && compiled.snapshot.is_none(), "{text}");
    }
}

#[test]
fn all_findings_of_all_files_come_at_once() {
    let bad = "version: 1\noperations: { NAME: { match: { tool: NAME }, confirm: x, mode: y } }";
    let compiled = compile(vec![
        ("b.yaml".to_owned(), bad.replace("NAME", "b")),
        ("a.yaml".to_owned(), bad.replace("NAME", "a")),
        ("c.yaml".to_owned(), "a: [".to_owned()),
    ]);
    let found: Vec<(&str, &str)> =
        compiled.diagnostics.iter().map(|found| (&*found.file, found.code)).collect();
    let word = "policy/unknown_word";
    assert_eq!(
        found,
        [
            ("a.yaml", word),
            ("a.yaml", word),
            ("b.yaml", word),
            ("b.yaml", word),
            ("c.yaml", "policy/syntax"),
        ]
    );
}

#[test]
fn the_fingerprint_changes_with_all_that_decides_an_operation() {
    let fingerprint = |text: &str| {
        let compiled = one(text);
        let snapshot = compiled.snapshot.unwrap();
        served(&snapshot, "github.comments.create").operation.fingerprint
    };
    let base = fingerprint(COMMENTS);
    assert_eq!(base, fingerprint(&format!("# a comment\n{COMMENTS}")));
    for (from, to) in [
        ("settle_ms: 5000", "settle_ms: 5001"),
        ("confirm: none", "confirm: caller"),
        // What the inverse dials is part of what is confirmed.
        ("DELETE /repos", "DELETE /v2/repos"),
        ("undeclared: refuse", "undeclared: refuse, mode: observe"),
    ] {
        assert_ne!(base, fingerprint(&COMMENTS.replace(from, to)), "{to}");
    }
}

#[test]
fn the_revision_names_files_and_contents() {
    let revision = |name: &str, text: &str| {
        compile(vec![(name.to_owned(), text.to_owned())]).snapshot.unwrap().revision()
    };
    let base = revision("a.yaml", "version: 1");
    assert_eq!(base, revision("a.yaml", "version: 1"));
    assert_ne!(base, revision("b.yaml", "version: 1"));
    assert_ne!(base, revision("a.yaml", "version: 1 "));
}

#[test]
fn car_irs_compensation_is_a_compensate_with_literals() {
    let text = "version: 1\noperations:\n\
        \x20 insert:\n\
        \x20   match: { tool: db.insert }\n\
        \x20   effect:\n\
        \x20     reversibility: compensable\n\
        \x20     compensation: { type: tool, tool: db.delete, parameters: { id: 7.0 } }\n\
        \x20 delete: { match: { tool: db.delete } }\n";
    let snapshot = snapshot(text);
    let insert = &served(&snapshot, "insert").operation;
    assert_eq!(insert.class, Class::Compensable);
    let compensate = insert.compensate.as_ref().unwrap();
    assert_eq!(compensate.reference.operation.as_str(), "delete");
    assert!(
        matches!(&compensate.reference.target, Target::Tool { name } if &**name == "db.delete")
    );
    assert!(
        matches!(&compensate.arguments[0].mapping, Mapping::Const(doc) if doc.root().raw() == "7.0")
    );
}

#[test]
fn a_drafts_follow_ups_read_the_draft_call() {
    let text = "version: 1\noperations:\n\
        \x20 release:\n\
        \x20   match: { http: \"POST /r/{owner}/releases\" }\n\
        \x20   effect:\n\
        \x20     class: irreversible\n\
        \x20     draft:\n\
        \x20       operation: release\n\
        \x20       arguments: { owner: request.owner, body: request.body, \
        query.draft: { const: yes } }\n\
        \x20       handle: response.id\n\
        \x20       promote:\n\
        \x20         operation: update\n\
        \x20         arguments: { owner: request.owner, id: response.id, \
        body.draft: { const: false } }\n\
        \x20       discard: { operation: delete, arguments: { owner: request.owner, \
        id: response.id } }\n\
        \x20 update: { match: { http: \"PATCH /r/{owner}/releases/{id}\" } }\n\
        \x20 delete: { match: { http: \"DELETE /r/{owner}/releases/{id}\" } }\n";
    let snapshot = snapshot(text);
    let draft = served(&snapshot, "release").operation.draft.as_ref().unwrap();
    assert_eq!(draft.reference.operation.as_str(), "release");
    let path = |mapping: &Mapping| match mapping {
        Mapping::Path(path) => path.to_string(),
        Mapping::Const(_) => String::new(),
    };
    assert_eq!(path(&draft.promote.arguments[0].mapping), "request.path.owner");
    assert_eq!(path(&draft.discard.as_ref().unwrap().arguments[0].mapping), "request.path.owner");
}

#[test]
fn a_call_that_exchanges_its_arguments_undoes_itself() {
    let with = |arguments: &str| {
        one(&format!(
            "version: 1\noperations: {{ move: {{ match: {{ tool: move_file }}, effect: {{ \
             class: reversible, inverse: {{ operation: move, arguments: {arguments} }} }} }} }}"
        ))
    };
    let swap = with("{ source: request.destination, destination: request.source }");
    assert!(!swap.has_errors(), "{}", swap.human());
    for arguments in [
        "{}",
        "{ source: request.source }",
        "{ source: request.destination }",
        "{ id: response.id }",
        "{ source: request.destination, destination: request.source? }",
    ] {
        let compiled = with(arguments);
        let is_found =
            compiled.diagnostics.iter().any(|found| found.code == "effect/operation_self");
        assert!(is_found, "{arguments}");
    }
}

#[test]
fn an_update_takes_itself_back_with_what_was_there_before() {
    let with = |value: &str| {
        one(&format!(
            "version: 1\noperations:\n  get: {{ match: {{ http: \"GET /t/{{id}}\" }} }}\n  \
             put: {{ match: {{ http: \"PUT /t/{{id}}\" }}, before: {{ operation: get, arguments: {{ \
             path.id: request.path.id }} }}, effect: {{ class: reversible, kind: update, inverse: {{ \
             operation: put, arguments: {{ path.id: request.path.id, body.name: {value} }} }} }} }}\n"
        ))
    };
    let whole = with("before.name");
    assert!(!whole.has_errors(), "{}", whole.human());
    assert!(with("request.body.name").has_errors());
}

#[test]
fn an_operation_id_that_two_catalogs_have_names_none() {
    let api = |path: &str| {
        format!(
            r#"{{"openapi":"3.1.0","info":{{}},"paths":{{"{path}":{{"post":{{"operationId":"b"}}}}}}}}"#
        )
    };
    let text = "version: 1\ncatalog: { openapi: [c.json, d.json] }\noperations: { b: { match: { \
                operation_id: b } } }\n";
    let compiled = compile(vec![
        ("a.yaml".to_owned(), text.to_owned()),
        ("c.json".to_owned(), api("/c")),
        ("d.json".to_owned(), api("/d")),
    ]);
    assert!(compiled.human().contains("more than one catalog has"), "{}", compiled.human());
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let mut text = String::from("version: 1\noperations:\n");
    for count in 0..2_500 {
        text.push_str(&format!(
            "  a{count}: {{ match: {{ http: POST /a{count} }}, effect: {{ class: irreversible }} }}\n"
        ));
    }
    let compiled = one(&text);
    let last = compiled.diagnostics.last().unwrap();
    assert_eq!(compiled.diagnostics.len(), 2_001);
    assert_eq!(last.message, "500 more findings are not listed");
    assert!(!compiled.has_errors());
}

#[test]
fn undeclared_writes_are_asked_about_unless_a_file_says_otherwise() {
    let undeclared = |defaults: &str| {
        let text = "operations: { a: { match: { http: GET /a } } }";
        snapshot(&format!("version: 1\ndefaults: {defaults}\n{text}\n")).undeclared()
    };
    assert_eq!(undeclared("{ irreversible: none }"), Undeclared::Confirm(Level::Challenge));
    assert_eq!(undeclared("{ irreversible: caller }"), Undeclared::Confirm(Level::Caller));
    let said = undeclared("{ irreversible: none, undeclared: none }");
    assert_eq!(said, Undeclared::Confirm(Level::None));
}

#[test]
fn k_6_a_body_carrier_may_be_made() {
    let text = "version: 1\noperations:\n\
        \x20 a: { match: { http: POST /v2/enqueue }, effect: { idempotency: \
        { type: body_pointer, pointer: /dedup_key, create: true, max_len: 255 } } }\n";
    let snapshot = snapshot(text);
    let carrier = &served(&snapshot, "a").operation.carrier;
    assert!(matches!(
        &carrier.place,
        crate::contract::key::Place::BodyPointer { pointer, create: true }
            if pointer.as_str() == "/dedup_key"
    ));
}

#[test]
fn load_reads_a_directory_as_kubernetes_mounts_it() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).unwrap();
    };
    std::fs::create_dir(directory.path().join("..2026_11_30")).unwrap();
    write("..2026_11_30/a.yaml", "version: 1\noperations: { a: { match: { tool: a } } }");
    std::os::unix::fs::symlink("..2026_11_30", directory.path().join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/a.yaml", directory.path().join("a.yaml")).unwrap();
    write("b.json", "{\"version\": 1, \"operations\": {\"b\": {\"match\": {\"tool\": \"b\"}}}}");
    write("notes.txt", "not a policy");
    write(".hidden.yaml", "not: [read");

    let compiled = load(directory.path());

    let snapshot = compiled.snapshot.unwrap();
    let ids: Vec<&str> =
        snapshot.operations().iter().map(|served| served.operation.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
}

#[test]
fn what_cannot_be_read_is_said_and_gives_no_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let missing = load(&directory.path().join("none"));
    assert!(missing.snapshot.is_none());
    assert_eq!(missing.diagnostics[0].code, "policy/unreadable");
    std::fs::write(directory.path().join("a.yaml"), b"a: \xff").unwrap();
    let compiled = load(directory.path());
    assert!(compiled.snapshot.is_none());
    assert!(compiled.human().contains("not UTF-8"), "{}", compiled.human());
}

#[test]
fn a_file_that_is_broken_everywhere_costs_no_more_than_its_size() {
    let mut text = String::from("version: 1\noperations:\n");
    for position in 0..20_000 {
        writeln!(text, "  op{position}: {{ macth: 1 }}").unwrap();
    }
    let compiled = one(&text);
    assert!(compiled.snapshot.is_none());
    assert!(compiled.diagnostics.len() <= 4_000);
}

/// Shapes of policies whose parts could be compared with each other, each near the largest size. What
/// costs more than its size does not come to an end here.
#[test]
fn a_policy_of_very_many_operations_costs_no_more_than_its_size() {
    type Shape = fn(usize) -> String;
    let shapes: &[Shape] = &[
        |at| format!("  o{at}: {{ match: {{ http: POST /p{at} }} }}\n"),
        |at| format!("  o{at}: {{ match: {{ http: \"POST /p{at}-{{a}}\" }} }}\n"),
        |at| format!("  o{at}: {{ match: {{ http: \"POST /{{a}}/p{at}/{{*r}}\" }} }}\n"),
        |at| format!("  o{at}: {{ match: {{ tool: t{at} }} }}\n"),
    ];
    for shape in shapes {
        let mut text = String::from("version: 1\noperations:\n");
        (0..21_000).for_each(|at| text.push_str(&shape(at)));
        assert!(text.len() <= MAX_FILE + 100_000, "{}", text.len());
        let lines: Vec<&str> = text.lines().collect();
        let (first, second) = lines.split_at(10_000);
        let head = "version: 1\noperations:\n";
        let files = vec![
            ("a.yaml".to_owned(), first.join("\n")),
            ("b.yaml".to_owned(), format!("{head}{}", second.join("\n"))),
        ];

        let compiled = compile(files);

        let errors: Vec<&str> = compiled
            .diagnostics
            .iter()
            .filter(|found| found.severity == Severity::Error)
            .map(|found| found.code)
            .collect();
        assert_eq!(errors, ["policy/too_many_operations"], "{}", lines[2]);
    }
}

/// One schema that very many operations refer to, and a catalog that very many files name.
#[test]
fn a_catalog_costs_no_more_than_its_size_however_often_it_is_used() {
    let members: Vec<String> =
        (0..20_000).map(|at| format!("\"m{at}\":{{\"type\":\"string\"}}")).collect();
    let body = r##"{"requestBody":{"required":true,"content":{"application/json":{"schema":
        {"$ref":"#/components/schemas/s"}}}}}"##;
    let paths: Vec<String> =
        (0..1_000).map(|at| format!("\"/p{at}\":{{\"post\":{body}}}")).collect();
    let api = format!(
        "{{\"openapi\":\"3.0.0\",\"paths\":{{{}}},\"components\":{{\"schemas\":{{\"s\":\
         {{\"type\":\"object\",\"properties\":{{{}}}}}}}}}}}",
        paths.join(","),
        members.join(",")
    );
    let mut files = vec![("api.json".to_owned(), api)];
    files.extend((0..1_000).map(|at| {
        let text = format!(
            "version: 1\ncatalog: {{ openapi: api.json }}\noperations:\n  \
             o{at}: {{ match: {{ http: POST /p{at} }} }}\n"
        );
        (format!("f{at}.yaml"), text)
    }));

    let compiled = compile(files);

    assert_eq!(compiled.snapshot.unwrap().operations().len(), 1_000);
}

#[test]
fn targets_that_crowd_one_path_are_refused() {
    let mut names = String::from("version: 1\noperations:\n");
    let mut variants = names.clone();
    for position in 0..3_000 {
        writeln!(names, "  op{position}: {{ match: {{ http: 'POST /{{p{position}}}' }} }}")
            .unwrap();
        writeln!(
            variants,
            "  op{position}: {{ match: {{ tool: t, where: \
             {{ request.n: {{ equals: {position} }} }} }} }}"
        )
        .unwrap();
    }
    for text in [names, variants] {
        let compiled = one(&text);
        let is_found =
            compiled.diagnostics.iter().any(|found| found.code == "policy/too_many_variants");
        assert!(is_found && compiled.snapshot.is_none());
    }
}

fn fragments() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![
            Just("null"),
            Just("[]"),
            Just("{}"),
            Just("'x'"),
            Just("request.a?"),
            Just("-1"),
            Just("\n"),
            Just("  "),
            Just(": "),
            Just("- "),
            Just("{"),
            Just("}"),
            Just("\""),
            Just("effect"),
            Just("class"),
            Just("stages"),
            Just("type"),
            Just("\u{e9}"),
        ],
        1..6,
    )
    .prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Cuts and pastes inside a policy that has everything in it.
    #[test]
    fn compiling_never_panics(
        edits in proptest::collection::vec((0.0..1.0f64, 0..40usize, fragments()), 1..4)
    ) {
        let mut text = COMMENTS.to_owned();
        for (place, cut, paste) in edits {
            #[expect(clippy::as_conversions, reason = "a fraction of a length is a position")]
            let mut from = (place * text.len() as f64) as usize;
            while !text.is_char_boundary(from) {
                from -= 1;
            }
            let mut to = (from + cut).min(text.len());
            while !text.is_char_boundary(to) {
                to -= 1;
            }
            text.replace_range(from..to.max(from), &paste);
        }
        let compiled = one(&text);
        prop_assert!(compiled.snapshot.is_some() || compiled.has_errors());
        for found in &compiled.diagnostics {
            prop_assert!(found.span.end <= text.len());
        }
        prop_assert!(compiled.human().len() >= compiled.diagnostics.len());
        for line in compiled.json_lines().lines() {
            prop_assert!(Doc::parse(line.to_owned()).is_ok());
        }
    }
}

const API: &str = r##"{
  "openapi": "3.1.0",
  "paths": {
    "/v1/refunds": { "post": {
      "operationId": "PostRefunds",
      "requestBody": { "content": { "application/x-www-form-urlencoded": { "schema": {
        "type": "object", "properties": { "charge": { "type": "string" } } } } } },
      "responses": { "200": { "content": { "application/json": { "schema": {
        "$ref": "#/components/schemas/Refund" } } } } } } },
    "/v1/charges/{id}": {
      "parameters": [ { "$ref": "#/components/parameters/Id" } ],
      "get": { "operationId": "GetCharge", "responses": { "200": { "description": "" } } },
      "delete": { "operationId": "DropCharge", "x-obol-effect": {
        "schema_version": 1, "kind": "delete", "idempotency": { "type": "unsupported" },
        "dispatch_statuses": { "accepted": [ { "type": "exact", "status": 200 } ],
          "definitely_rejected": [] },
        "upstream_id": null, "verification": { "type": "none" },
        "no_evidence": "empty_response_body" } },
      "post": { "operationId": "ReadCharge", "x-anvil-effect": "read",
        "responses": {} } },
    "/v1/charges": { "post": {
      "operationId": "PostCharges",
      "requestBody": { "content": { "application/x-www-form-urlencoded": { "schema": {
        "type": "object", "properties": { "amount": { "type": "integer" } } } } } },
      "responses": { "200": { "content": { "application/json": { "schema": {
        "$ref": "#/components/schemas/Charge" } } } } } } }
  },
  "components": {
    "parameters": { "Id": { "name": "id", "in": "path", "required": true,
      "schema": { "type": "string" } } },
    "schemas": {
      "Charge": { "type": "object", "properties": { "id": { "type": "string" } } },
      "Refund": { "type": "object", "properties": { "id": { "type": "string" } } } }
  }
}"##;

const CHARGES: &str = "version: 1\n\
    catalog: { openapi: api.json }\n\
    operations:\n\
    \x20 charges.create:\n\
    \x20   match: { operation_id: PostCharges }\n\
    \x20   effect:\n\
    \x20     class: compensable\n\
    \x20     compensate: { operation: refunds.create, arguments: { charge: response.id } }\n\
    \x20 refunds.create: { match: { http: POST /v1/refunds } }\n";

fn with_api(policy: &str) -> Compiled {
    compile(vec![("a.yaml".to_owned(), policy.to_owned()), ("api.json".to_owned(), API.to_owned())])
}

#[test]
fn a_catalog_gives_targets_places_and_body_types() {
    let compiled = with_api(CHARGES);
    assert!(!compiled.has_errors(), "{}", compiled.human());
    let snapshot = compiled.snapshot.unwrap();
    let create = &served(&snapshot, "charges.create").operation;
    assert!(matches!(&create.target, Target::Http { method, template }
        if method == http::Method::POST && template.as_str() == "/v1/charges"));
    let compensate = create.compensate.as_ref().unwrap();
    // A flat name goes where exactly one input has it.
    assert_eq!(compensate.arguments[0].slot, Slot::Body(vec!["charge".to_owned()]));
    assert_eq!(compensate.reference.body_type, crate::contract::operation::BodyType::Form);
}

#[test]
fn a_catalog_declares_effects_and_a_policy_wins_over_it() {
    let compiled = with_api(CHARGES);
    let snapshot = compiled.snapshot.unwrap();
    let dropped = served(&snapshot, "DropCharge");
    assert_eq!(dropped.operation.class, Class::Irreversible);
    assert_eq!(dropped.operation.kind, Kind::Delete);
    assert!(dropped.operation.destructive);
    assert_eq!(&*dropped.file, "api.json");
    assert_eq!(served(&snapshot, "ReadCharge").operation.class, Class::Read);
    assert!(snapshot.operation(&OperationId::new("GetCharge").unwrap()).is_none());

    let own = format!(
        "{CHARGES}\x20 mine: {{ match: {{ operation_id: DropCharge }}, \
         effect: {{ kind: update }} }}\n\
         \x20 theirs: {{ match: {{ http: \"POST /v1/charges/{{charge}}\" }} }}\n"
    );
    let compiled = with_api(&own);
    let snapshot = compiled.snapshot.unwrap();
    assert_eq!(served(&snapshot, "mine").operation.kind, Kind::Update);
    assert_eq!(served(&snapshot, "theirs").operation.class, Class::Read);
    assert!(snapshot.operation(&OperationId::new("DropCharge").unwrap()).is_none());
}

#[test]
fn a_faulty_effect_in_a_catalog_degrades_its_operation_only() {
    let api = API.replace("\"kind\": \"delete\"", "\"kind\": \"remove\"");
    let compiled =
        compile(vec![("a.yaml".to_owned(), CHARGES.to_owned()), ("api.json".to_owned(), api)]);
    assert!(compiled.has_errors());
    let snapshot = compiled.snapshot.unwrap();
    assert!(served(&snapshot, "DropCharge").is_degraded());
    assert_eq!(served(&snapshot, "DropCharge").operation.class, Class::Irreversible);
    assert!(!served(&snapshot, "charges.create").is_degraded());
}

#[test]
fn tools_lists_come_bare_in_envelopes_and_in_pages() {
    let tools = |name: &str| {
        format!(
            r#"{{"tools":[{{"name":"{name}","inputSchema":{{"type":"object","properties":
            {{"id":{{"type":"integer"}}}},"required":["id"]}}}}]}}"#
        )
    };
    let policy = "version: 1\n\
        catalog: { tools: [one.json, two.json] }\n\
        operations:\n\
        \x20 make: { match: { tool: make }, effect: { class: reversible, inverse: \
        { operation: drop, arguments: { id: { const: x } } } } }\n\
        \x20 drop: { match: { tool: drop } }\n";
    let pages = format!("[{},{{\"result\":{}}}]", tools("drop"), tools("other"));
    let compiled = compile(vec![
        ("a.yaml".to_owned(), policy.to_owned()),
        ("one.json".to_owned(), tools("make")),
        ("two.json".to_owned(), pages),
    ]);
    let codes: Vec<&str> = compiled.diagnostics.iter().map(|found| found.code).collect();
    assert_eq!(codes, ["spec/unverified", "effect/mapping_type_mismatch"]);
}

#[test]
fn a_catalogs_path_stays_below_the_policies() {
    let directory = tempfile::tempdir().unwrap();
    let policies = directory.path().join("policies");
    std::fs::create_dir_all(policies.join("catalog")).unwrap();
    std::fs::write(directory.path().join("api.json"), API).unwrap();
    std::fs::write(policies.join("catalog/api.json"), API).unwrap();
    let named = |name: &str| {
        let text = CHARGES.replace("api.json", name);
        std::fs::write(policies.join("a.yaml"), text).unwrap();
        load(&policies)
    };
    assert!(named("catalog/api.json").snapshot.is_some());
    for name in ["../api.json", "/etc/hostname", "catalog/../../api.json"] {
        let compiled = named(name);
        assert!(compiled.snapshot.is_none());
        assert!(compiled.human().contains("not below the policy directory"), "{name}");
    }
}
