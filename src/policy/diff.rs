//! What changes between two policies, weakenings first.
//!
//! A change is weaker if it lets something through that the old policy would have stopped, asked
//! about, recorded as worse, or protected: a milder class, a weaker confirmation, `observe` for
//! `enforce`, a key that goes upstream no more, an undeclared call that is declared and milder, more
//! that lets a repeat be sent again by itself, less that is kept from reports, a pin that is gone.
//! Other changes are named and not judged. What is compared of a contract is in `terms`.
//!
//! An operation whose calls are its own before and after is compared by its id. Where a target moves,
//! narrows, widens, comes or goes, the calls are asked about (`calls`): it is weaker if some call is
//! another operation's afterwards, or nobody's, and milder. Both have a line, the operation for what it
//! is and the calls for where they go.

use std::collections::BTreeSet;
use std::fmt;

use crate::contract::class::{Class, Level, Mode, OnUnknown, Repeat};
use crate::contract::key::OperationId;
use crate::contract::operation::{Operation, Target};

use super::explain::words;
use super::{Served, Snapshot, Undeclared};

mod calls;
mod paths;
mod samples;
mod terms;

use calls::Moved;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The operation; `None` for what holds for undeclared calls.
    pub operation: Option<OperationId>,
    /// What changed: `class`, `confirm`, `carrier`, `target`, a follow-up, ...; `calls` where the calls of
    /// a target are another operation's.
    pub what: &'static str,
    /// The target whose calls they are, as [`explain`](super::explain()) writes it; `None` unless what
    /// changed is `calls`.
    pub calls_of: Option<String>,
    /// What it was.
    pub before: String,
    /// What it is.
    pub after: String,
    /// The new policy protects less here.
    pub is_weaker: bool,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = self.operation.as_ref().map_or("undeclared calls", OperationId::as_str);
        match &self.calls_of {
            Some(target) => write!(f, "calls of {target}: {} -> {}", self.before, self.after)?,
            None => write!(f, "{operation}: {}: {} -> {}", self.what, self.before, self.after)?,
        }
        f.write_str(if self.is_weaker { " (weaker)" } else { "" })
    }
}

/// Every change from one policy to another: weakenings first, then by operation.
pub fn diff(old: &Snapshot, new: &Snapshot) -> Vec<Change> {
    let mut changes = Vec::new();
    undeclared(old, new, &mut changes);
    let compared = calls::compare(old, new);
    if compared.is_in_part {
        changes.push(Change {
            operation: None,
            what: "calls",
            calls_of: None,
            before: "compared in part".to_owned(),
            after: "too many templates or values to ask what becomes of every call".to_owned(),
            is_weaker: true,
        });
    }
    let moved = &compared.moved;
    let ids: BTreeSet<&OperationId> = [old, new]
        .iter()
        .flat_map(|snapshot| snapshot.operations())
        .map(|served| &served.operation.id)
        .collect();
    for id in ids {
        match (old.operation(id), new.operation(id)) {
            (Some(before), Some(after)) => operation(before, after, moved, &mut changes),
            (Some(before), None) => changes.push(removed(before, moved)),
            (None, Some(after)) => changes.push(added(after, moved)),
            (None, None) => {}
        }
    }
    changes.extend(
        compared.moved.iter().filter_map(|moved| told(moved, &changes)).collect::<Vec<_>>(),
    );
    // Stable: within each half the order of operations stays.
    changes.sort_by_key(|change| !change.is_weaker);
    changes
}

fn undeclared(old: &Snapshot, new: &Snapshot, changes: &mut Vec<Change>) {
    let words = |undeclared: Undeclared| match undeclared {
        Undeclared::Confirm(level) => level.to_string(),
        Undeclared::Refuse => "refuse".to_owned(),
    };
    let mut add = |what, before: String, after: String, is_weaker| {
        if before != after {
            changes.push(Change {
                operation: None,
                what,
                calls_of: None,
                before,
                after,
                is_weaker,
            });
        }
    };
    let is_weaker = new.undeclared() < old.undeclared();
    add("confirm", words(old.undeclared()), words(new.undeclared()), is_weaker);
    let (before, after) = (old.undeclared_mode(), new.undeclared_mode());
    add("mode", before.to_string(), after.to_string(), after < before);
    let class = |writes| if writes { Class::Irreversible } else { Class::Read }.to_string();
    let (before, after) = (old.undeclared_get_writes(), new.undeclared_get_writes());
    add("class of reads", class(before), class(after), before && !after);
}

fn operation(before: &Served, after: &Served, moved: &[Moved], changes: &mut Vec<Change>) {
    let (old, new) = (&before.operation, &after.operation);
    let known = changes.len();
    let mut add = |what, before: String, after: String, is_weaker| {
        if before != after {
            let operation = Some(old.id.clone());
            changes.push(Change { operation, what, calls_of: None, before, after, is_weaker });
        }
    };
    let is_of = |moved: &Moved| moved.was.as_ref() == Some(&old.id) || takes(moved, new);
    add("target", target(old), target(new), moved.iter().any(is_of));
    add("class", old.class.to_string(), new.class.to_string(), new.class < old.class);
    add("confirm", old.confirm.to_string(), new.confirm.to_string(), new.confirm < old.confirm);
    add("mode", old.mode.to_string(), new.mode.to_string(), new.mode < old.mode);
    let lets_repeats = old.repeat != Repeat::Allow && new.repeat == Repeat::Allow;
    add("repeat", old.repeat.to_string(), new.repeat.to_string(), lets_repeats);
    let strictness = |rule| match rule {
        OnUnknown::Challenge => 0,
        OnUnknown::Human => 1,
        OnUnknown::Refuse => 2,
    };
    let is_laxer = strictness(new.on_unknown) < strictness(old.on_unknown);
    add("on_unknown", old.on_unknown.to_string(), new.on_unknown.to_string(), is_laxer);
    for term in terms::all(before, after) {
        add(term.what, term.before, term.after, term.is_weaker);
    }
    if changes.len() == known && old.fingerprint != new.fingerprint {
        changes.push(Change {
            operation: Some(old.id.clone()),
            what: "contract",
            calls_of: None,
            before: "as it was".to_owned(),
            after: "written otherwise".to_owned(),
            is_weaker: false,
        });
    }
}

fn removed(before: &Served, moved: &[Moved]) -> Change {
    let id = &before.operation.id;
    Change {
        operation: Some(id.clone()),
        what: "declared",
        calls_of: None,
        before: summary(before),
        after: "undeclared".to_owned(),
        is_weaker: moved.iter().any(|moved| moved.was.as_ref() == Some(id)),
    }
}

fn added(after: &Served, moved: &[Moved]) -> Change {
    Change {
        operation: Some(after.operation.id.clone()),
        what: "declared",
        calls_of: None,
        before: "undeclared".to_owned(),
        after: summary(after),
        is_weaker: moved.iter().any(|moved| takes(moved, &after.operation)),
    }
}

/// Whether calls that moved are this operation's.
fn takes(moved: &Moved, operation: &Operation) -> bool {
    moved.is.as_ref() == Some(&operation.id)
}

/// Calls that moved, as a change of the operation that they were; `None` where `known` says all of it: a
/// call that nothing took is of an operation that came or moved.
fn told(moved: &Moved, known: &[Change]) -> Option<Change> {
    let is_told = moved.was.is_none()
        && known.iter().any(|change| {
            let is_of_target = matches!(change.what, "declared" | "target");
            is_of_target && change.is_weaker && change.operation == moved.is && moved.is.is_some()
        });
    (!is_told).then(|| Change {
        operation: moved.was.clone().or_else(|| moved.is.clone()),
        what: "calls",
        calls_of: Some(moved.calls.clone()),
        before: moved.before.clone(),
        after: moved.after.clone(),
        is_weaker: true,
    })
}

fn summary(served: &Served) -> String {
    let Operation { class, confirm, mode, .. } = &served.operation;
    let mut text = match (confirm, mode) {
        (Level::None, Mode::Enforce) => class.to_string(),
        (_, Mode::Enforce) => format!("{class}, confirm {confirm}"),
        (_, Mode::Observe) => format!("{class}, confirm {confirm}, observed"),
    };
    if served.is_degraded() {
        text.push_str(", its contract has errors");
    }
    text
}

fn target(operation: &Operation) -> String {
    let mut text = match &operation.target {
        Target::Http { method, template } => format!("{method} {template}"),
        Target::Tool { name } => format!("tool {name}"),
    };
    for (position, condition) in operation.conditions.iter().enumerate() {
        text.push_str(if position == 0 { " where " } else { " and " });
        text.push_str(&words(condition));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::compile;

    fn snapshot(text: &str) -> Snapshot {
        let text = format!("version: 1\n{text}");
        compile(vec![("a.yaml".to_owned(), text)]).snapshot.unwrap()
    }

    fn changes(old: &str, new: &str) -> Vec<String> {
        diff(&snapshot(old), &snapshot(new)).iter().map(ToString::to_string).collect()
    }

    const A: &str = "operations: { a: { match: { http: POST /a }, effect: { class: irreversible, \
        idempotency: { type: header, name: K } } } }";

    #[test]
    fn the_same_policy_has_no_changes() {
        assert!(changes(A, A).is_empty());
        assert!(changes(A, &format!("{A} # a comment")).is_empty());
    }

    #[test]
    fn weakenings_come_first_and_are_said() {
        let new = "operations: { a: { match: { http: POST /b }, confirm: caller, mode: observe } }";
        assert_eq!(
            changes(A, new),
            [
                "a: target: POST /a -> POST /b (weaker)",
                "a: confirm: challenge -> caller (weaker)",
                "a: mode: enforce -> observe (weaker)",
                "a: carrier: header k -> none (weaker)",
                "calls of POST /a: a (irreversible, challenge, keyed) -> undeclared (irreversible, \
                 challenge, no key) (weaker)",
            ]
        );
    }

    #[test]
    fn a_milder_class_is_weaker_and_a_stricter_one_is_not() {
        let read = "operations: { a: { match: { http: POST /a }, effect: { class: read } } }";
        let write = "operations: { a: { match: { http: POST /a } } }";
        assert_eq!(
            changes(write, read),
            [
                "a: class: irreversible -> read (weaker)",
                "a: confirm: challenge -> none (weaker)",
                "a: repeat: confirm -> allow (weaker)",
            ]
        );
        assert!(changes(read, write).iter().all(|change| !change.contains("weaker")));
    }

    #[test]
    fn declaring_a_call_is_weaker_than_leaving_it_undeclared_when_it_is_milder() {
        let none = "operations: {}";
        let cases = [
            ("{ match: { http: POST /a } }", false),
            ("{ match: { http: POST /a }, confirm: caller }", true),
            ("{ match: { http: POST /a }, effect: { class: read } }", true),
            ("{ match: { http: GET /a } }", false),
            ("{ match: { tool: a }, mode: observe }", true),
        ];
        for (body, is_weaker) in cases {
            let new = format!("operations: {{ a: {body} }}");
            let found = changes(none, &new);
            let added = found.iter().find(|change| change.starts_with("a: declared")).unwrap();
            assert_eq!(added.contains("weaker"), is_weaker, "{added}");
        }
        // A GET that was declared a write is a read again when its declaration goes.
        let write =
            "operations: { a: { match: { http: GET /a }, effect: { class: irreversible } } }";
        assert!(changes(write, none).iter().any(|change| change.contains("undeclared (weaker)")));
    }

    #[test]
    fn what_holds_for_undeclared_calls_is_compared() {
        let old = "defaults: { undeclared: refuse, undeclared_get: irreversible }";
        let new = "defaults: { undeclared: human, mode: observe }";
        assert_eq!(
            changes(old, new),
            [
                "undeclared calls: confirm: refuse -> human (weaker)",
                "undeclared calls: mode: enforce -> observe (weaker)",
                "undeclared calls: class of reads: irreversible -> read (weaker)",
            ]
        );
    }

    #[test]
    fn a_contract_that_is_written_otherwise_is_named() {
        let new = A.replace("idempotency: {", "no_evidence: empty_response_body, idempotency: {");
        assert_eq!(changes(A, &new), ["a: contract: as it was -> written otherwise"]);
    }

    #[test]
    fn an_operation_that_takes_calls_of_a_stricter_one_is_weaker() {
        let old = "a: { match: { http: \"GET /a/{id}\" }, effect: { class: irreversible } }";
        let new = format!("operations: {{ {old}, b: {{ match: {{ http: GET /a/b }} }} }}");
        let old = format!("operations: {{ {old} }}");
        assert_eq!(
            changes(&old, &new),
            [
                "b: declared: undeclared -> read (weaker)",
                "calls of GET /a/{id}: a (irreversible, challenge) -> b (read, none) (weaker)",
            ]
        );
        let tool = "operations: { a: { match: { tool: t } } }";
        let variant = "operations: { a: { match: { tool: t } }, b: { match: { tool: t, where: { \
            request.dry: { equals: true } } }, effect: { class: read } } }";
        assert_eq!(
            changes(tool, variant),
            [
                "b: declared: undeclared -> read (weaker)",
                "calls of tool t: a (irreversible, challenge) -> b (read, none) (weaker)",
            ]
        );
        assert!(changes(variant, tool).iter().all(|change| !change.contains("weaker")));
        let narrower = tool.replace("tool: t", "tool: t, where: { request.dry: { exists: true } }");
        assert_eq!(
            changes(tool, &narrower),
            ["a: target: tool t -> tool t where request.dry exists"]
        );
    }

    #[test]
    fn a_target_that_takes_calls_which_were_stopped_is_weaker() {
        let policy = |matched: &str| {
            format!(
                "operations: {{ a: {{ match: {{ {matched} }}, effect: {{ class: read, kind: read }} }} }}"
            )
        };
        let dry = "http: POST /n, where: { request.body.dry: { equals: true } }";
        for (old, new, is_weaker) in [
            (dry, "http: POST /n", true),
            (dry, "http: POST /n, where: { request.body.dry: { exists: true } }", true),
            ("http: POST /n", dry, false),
            ("http: POST /n/x", "http: \"POST /n/{id}\"", true),
            ("http: \"POST /n/{id}\"", "http: POST /n/x", false),
            ("http: POST /n", "http: POST /payments", true),
            ("tool: a", "tool: delete_all", true),
            ("http: GET /n", "http: GET /m", false),
        ] {
            let found = changes(&policy(old), &policy(new));
            let target = found.iter().find(|change| change.starts_with("a: target")).unwrap();
            assert_eq!(target.ends_with("(weaker)"), is_weaker, "{target}");
        }
    }

    /// Each: two policies, and which calls are milder, as they are told.
    #[test]
    fn calls_that_a_severe_operation_had_and_a_milder_one_gets_are_weaker() {
        let op = |id: &str, matched: &str, rest: &str| {
            format!("  {id}: {{ match: {{ {matched} }}, {rest} }}\n")
        };
        let policy = |operations: &[String]| format!("operations:\n{}", operations.concat());
        let read = "effect: { class: read, kind: read }";
        let human = "confirm: human, effect: { class: irreversible, kind: delete }";
        let write = "effect: { class: irreversible, kind: update }";
        let soft = op("soft", "http: \"POST /i/{id}\"", read);
        let plain = op("s", "http: POST /m", read);
        let given = |test: &str| format!("http: POST /m, where: {{ request.query.p: {test} }}");
        let tool = |test: &str| format!("tool: t, where: {{ request.p: {test} }}");
        let h = |matched: String, rest: &str| op("h", &matched, rest);
        let cases: Vec<(String, String, &[&str])> = vec![
            (
                policy(&[soft.clone(), op("purge", "http: POST /i/purge", human)]),
                policy(&[soft.clone(), op("purge", "http: POST /i/purged", human)]),
                &["calls of POST /i/purge: purge (irreversible, human) -> soft (read, none)"],
            ),
            // In another spelling of what it shares with the milder one, too.
            (
                policy(&[
                    op("soft", "http: \"GET /i/{id}\"", "mode: enforce"),
                    op("w", "http: GET /I/w", write),
                ]),
                policy(&[op("soft", "http: \"GET /i/{id}\"", "mode: enforce")]),
                &[
                    "calls of GET /I/w: w (irreversible, challenge) -> undeclared (read, none)",
                    "calls of GET /I/w: w (irreversible, challenge) -> soft (read, none)",
                ],
            ),
            (
                policy(&[op("fire", "http: \"GET /fire/{id}\"", write)]),
                policy(&[op("fire", "http: \"GET /fired/{id}\"", write)]),
                &[
                    "calls of GET /fire/{id}: fire (irreversible, challenge) -> undeclared (read, none)",
                ],
            ),
            (
                policy(&[plain.clone(), h(given("{ exists: true }"), human)]),
                policy(&[plain.clone(), h(given("{ equals: \"1\" }"), human)]),
                &[
                    "calls of POST /m where request.query.p exists: h (irreversible, human) -> s (read, none)",
                ],
            ),
            (
                policy(&[plain.clone(), h(given("{ exists: true }"), write)]),
                policy(std::slice::from_ref(&plain)),
                &[
                    "calls of POST /m where request.query.p exists: h (irreversible, challenge) -> s (read, none)",
                ],
            ),
            (
                policy(&[op("s", "tool: t", read), h(tool("{ one_of: [1, 2] }"), human)]),
                policy(&[op("s", "tool: t", read), h(tool("{ equals: 1 }"), human)]),
                &[
                    "calls of tool t where request.p is one of 1, 2: h (irreversible, human) -> s (read, none)",
                ],
            ),
            // A parameter's value decides, and a rest takes what is deeper.
            (
                policy(&[
                    soft.clone(),
                    op(
                        "all",
                        "http: \"POST /i/{id}\", where: { request.path.id: { equals: all } }",
                        human,
                    ),
                ]),
                policy(&[
                    soft.clone(),
                    op(
                        "all",
                        "http: \"POST /i/{id}\", where: { request.path.id: { equals: every } }",
                        human,
                    ),
                ]),
                &[
                    "calls of POST /i/{id} where request.path.id equals \"all\": all (irreversible, human) -> soft (read, none)",
                ],
            ),
            (
                policy(&[
                    op("any", "http: \"POST /{*any}\"", human),
                    op("one", "http: POST /a", read),
                ]),
                policy(&[
                    op("any", "http: \"POST /{*any}\"", human),
                    op(
                        "one",
                        "http: \"POST /{*all}\", where: { request.query.dry: { equals: \"1\" } }",
                        read,
                    ),
                ]),
                &[
                    "calls of POST /{*any}: any (irreversible, human) -> one (irreversible, challenge)",
                ],
            ),
            // Under another id, or narrowed with the plain form as severe, nothing is milder.
            (
                policy(&[soft.clone(), op("purge", "http: POST /i/purge", human)]),
                policy(&[soft.clone(), op("wipe", "http: POST /i/purge", human)]),
                &[],
            ),
            (
                policy(&[op("s", "http: POST /m", human), h(given("{ exists: true }"), human)]),
                policy(&[op("s", "http: POST /m", human), h(given("{ equals: \"1\" }"), human)]),
                &[],
            ),
        ];
        for (old, new, expected) in cases {
            let found = changes(&old, &new);
            let expected: Vec<String> =
                expected.iter().map(|calls| format!("{calls} (weaker)")).collect();
            let calls: Vec<String> =
                found.iter().filter(|change| change.starts_with("calls of")).cloned().collect();
            assert_eq!(calls, expected, "{old}{new}{found:#?}");
            let is_weaker = found.iter().any(|change| change.ends_with("(weaker)"));
            assert_eq!(is_weaker, !expected.is_empty(), "{old}{new}{found:#?}");
            assert!(changes(&old, &old).is_empty() && changes(&new, &new).is_empty());
        }
    }

    #[test]
    fn what_cannot_all_be_asked_is_in_doubt_and_so_weaker() {
        let values: Vec<String> =
            (0..9).map(|at| format!("request.p{at}: {{ exists: true }}")).collect();
        let policy = |rest: &str| {
            format!(
                "operations: {{ s: {{ match: {{ tool: t }}, effect: {{ class: read }} }}, h: {{ match: {{ \
                 tool: t, where: {{ {} }} }}, {rest} }} }}",
                values.join(", ")
            )
        };
        let found = changes(&policy("confirm: human"), &policy("confirm: human, mode: observe"));
        assert!(
            found.iter().any(|change| change.starts_with("calls of tool t where")),
            "{found:?}"
        );
        assert!(changes(&policy("confirm: human"), &policy("confirm: human")).is_empty());
    }

    #[test]
    fn a_contract_with_an_error_is_told() {
        let policy = |operation: &str| {
            format!(
                "operations: {{ a: {{ match: {{ http: POST /a }}, effect: {{ class: reversible, \
                 inverse: {{ operation: {operation}, arguments: {{ path.id: response.id }} }} }} }}, \
                 c: {{ match: {{ http: \"POST /c/{{id}}\" }} }} }}"
            )
        };
        let found = changes(&policy("c"), &policy("nope"));
        let served = "a: served: as declared -> degraded, its contract has errors";
        assert!(found.contains(&served.to_owned()), "{found:?}");
        let added = changes("operations: {}", &policy("nope"));
        assert!(
            added.iter().any(|change| change.contains(", its contract has errors")),
            "{added:?}"
        );
    }

    /// Each: what is said, and what is written before and after.
    #[test]
    fn each_term_of_a_contract_is_named_and_what_protects_less_is_judged() {
        let policy = |effect: &str, beside: &str| {
            format!(
                "operations: {{ a: {{ match: {{ http: POST /a }}, {beside} effect: {{ class: \
                 compensable, compensate: {{ operation: c, arguments: {{ path.id: response.id }} }}, \
                 {effect} }} }}, c: {{ match: {{ http: \"POST /c/{{id}}\" }} }}, \
                 r: {{ match: {{ http: \"GET /c/{{id}}\" }} }} }}"
            )
        };
        let key = "idempotency: { type: header, name: K";
        let lookup = "lookup: { operation: r, by: id, arguments: { path.id: response.id }";
        let cases = [
            (
                "carrier: header k -> header k, kept 86400000 ms, replay full (weaker)",
                format!("{key} }}"),
                format!("{key}, retention: 24h, replay: full }}"),
            ),
            (
                "lookup: r (path.id: response.id) -> r (path.id: response.id), settles after 5 ms \
                 (weaker)",
                format!("{lookup} }}"),
                format!("{lookup}, settle_ms: 5 }}"),
            ),
            (
                "lookup: r (path.id: response.id) -> none",
                format!("{lookup} }}"),
                String::new(),
            ),
            (
                "rejected statuses: 400-407, 410-424, 426-428, 430-499 -> 409, 500 (weaker)",
                String::new(),
                "dispatch_statuses: { accepted: [{ type: exact, status: 201 }], \
                 definitely_rejected: [{ type: exact, status: 409 }, { type: exact, status: 500 }] }"
                    .to_owned(),
            ),
            (
                "evidence: response -> none (weaker)",
                "verification: { type: response_binding, config: { trust: gateway_observed_only, \
                 assertions: [{ type: exists, name: id, actual: { source: response_body, pointer: \
                 /id } }] } }"
                    .to_owned(),
                String::new(),
            ),
        ];
        let bound = |trust: &str, checks: &str| {
            format!(
                "verification: {{ type: response_binding, config: {{ trust: {trust}, assertions: \
                 [{checks}] }} }}"
            )
        };
        let check = |name: &str, pointer: &str| {
            format!(
                "{{ type: exists, name: {name}, actual: {{ source: response_body, pointer: \
                 {pointer} }} }}"
            )
        };
        let both = format!("{}, {}", check("id", "/id"), check("by", "/by"));
        let verified = [
            (
                "trust: gateway_observed_only -> allow_connector_attested (weaker)",
                bound("gateway_observed_only", &both),
                bound("allow_connector_attested", &both),
            ),
            (
                "assertions: id, by -> id (weaker)",
                bound("gateway_observed_only", &both),
                bound("gateway_observed_only", &check("id", "/id")),
            ),
            (
                "assertion: id: response_body /id exists -> id: response_body /key exists",
                bound("gateway_observed_only", &check("id", "/id")),
                bound("gateway_observed_only", &check("id", "/key")),
            ),
            ("kind: create -> delete", "kind: create".to_owned(), "kind: delete".to_owned()),
        ];
        for (expected, old, new) in cases.into_iter().chain(verified) {
            let found = changes(&policy(&old, ""), &policy(&new, ""));
            assert!(found.contains(&format!("a: {expected}")), "{expected}: {found:?}");
        }
        let beside = [
            ("sensitive: [/x, /y],", "sensitive: [/x],", "sensitive: /x, /y -> /x (weaker)"),
            ("sensitive: [/x],", "sensitive: true,", "sensitive: /x -> all of it"),
            ("sensitive: true,", "sensitive: [/x],", "sensitive: all of it -> /x (weaker)"),
            ("vary_on: [X-A],", "", "vary_on: x-a -> none (weaker)"),
            ("", "allow: { encoded_slash: true },", "allow: none -> encoded_slash (weaker)"),
            ("", "is_error: rejected,", "is_error: ambiguous -> rejected (weaker)"),
            ("", "timeout: { total_ms: 5 },", "timeout: none -> total_ms 5"),
            ("", "max_body_bytes: 5,", "max_body_bytes: none -> 5"),
        ];
        for (old, new, expected) in beside {
            let found = changes(&policy("", old), &policy("", new));
            assert_eq!(found, [format!("a: {expected}")]);
        }
        let other = policy("", "").replace("path.id: response.id", "path.id: response.key");
        assert_eq!(
            changes(&policy("", ""), &other),
            ["a: compensate: c (path.id: response.id) -> c (path.id: response.key)"]
        );
    }
}
