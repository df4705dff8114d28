//! What changes between two policies, weakenings first.
//!
//! A change is weaker if it lets something through that the old policy would have stopped, asked
//! about, recorded as worse, or protected: a milder class, a weaker confirmation, `observe` for
//! `enforce`, a key that goes upstream no more, an undeclared call that is declared and milder, more
//! that lets a repeat be sent again by itself, less that is kept from reports, a pin that is gone.
//! Other changes are named and not judged. What is compared of a contract is in `terms`.

use std::collections::BTreeSet;
use std::fmt;

use crate::contract::class::{Class, Level, Mode, OnUnknown, Repeat};
use crate::contract::key::OperationId;
use crate::contract::operation::{Operation, Target};
use crate::contract::template::Specificity;

use super::explain::words;
use super::route::Group;
use super::{Served, Snapshot, Undeclared};

mod terms;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The operation; `None` for what holds for undeclared calls.
    pub operation: Option<OperationId>,
    /// What changed: `class`, `confirm`, `carrier`, `target`, a follow-up, ...
    pub what: &'static str,
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
        write!(f, "{operation}: {}: {} -> {}", self.what, self.before, self.after)?;
        f.write_str(if self.is_weaker { " (weaker)" } else { "" })
    }
}

/// Every change from one policy to another: weakenings first, then by operation.
pub fn diff(old: &Snapshot, new: &Snapshot) -> Vec<Change> {
    let mut changes = Vec::new();
    undeclared(old, new, &mut changes);
    let ids: BTreeSet<&OperationId> = [old, new]
        .iter()
        .flat_map(|snapshot| snapshot.operations())
        .map(|served| &served.operation.id)
        .collect();
    for id in ids {
        match (old.operation(id), new.operation(id)) {
            (Some(before), Some(after)) => operation(before, after, old, &mut changes),
            (Some(before), None) => removed(before, new, &mut changes),
            (None, Some(after)) => added(after, old, &mut changes),
            (None, None) => {}
        }
    }
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
            changes.push(Change { operation: None, what, before, after, is_weaker });
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

fn operation(before: &Served, after: &Served, old_policy: &Snapshot, changes: &mut Vec<Change>) {
    let (old, new) = (&before.operation, &after.operation);
    let known = changes.len();
    let mut add = |what, before: String, after: String, is_weaker| {
        if before != after {
            let operation = Some(old.id.clone());
            changes.push(Change { operation, what, before, after, is_weaker });
        }
    };
    let takes_over = target(old) != target(new)
        && (shadows(new, old_policy)
            || (!is_narrower(new, old) && is_milder_than_undeclared(new, old_policy)));
    add("target", target(old), target(new), takes_over);
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
            before: "as it was".to_owned(),
            after: "written otherwise".to_owned(),
            is_weaker: false,
        });
    }
}

fn removed(before: &Served, new: &Snapshot, changes: &mut Vec<Change>) {
    let was = &before.operation;
    // What is not declared is irreversible, or a read by its method.
    let becomes_read = was.target.is_safe() && !new.undeclared_get_writes();
    let is_weaker = (becomes_read && was.class.is_write())
        || Undeclared::Confirm(was.confirm) > new.undeclared();
    changes.push(Change {
        operation: Some(was.id.clone()),
        what: "declared",
        before: summary(before),
        after: "undeclared".to_owned(),
        is_weaker,
    });
}

fn added(after: &Served, old: &Snapshot, changes: &mut Vec<Change>) {
    let is = &after.operation;
    let is_weaker = shadows(is, old) || is_milder_than_undeclared(is, old);
    changes.push(Change {
        operation: Some(is.id.clone()),
        what: "declared",
        before: "undeclared".to_owned(),
        after: summary(after),
        is_weaker,
    });
}

/// Whether calls that were undeclared are judged milder as this operation's.
fn is_milder_than_undeclared(is: &Operation, old: &Snapshot) -> bool {
    let was_read = is.target.is_safe() && !old.undeclared_get_writes();
    !was_read
        && (is.class < Class::Irreversible
            || Undeclared::Confirm(is.confirm) < old.undeclared()
            || is.mode < old.undeclared_mode())
}

/// Whether an operation takes no call that it did not take before.
fn is_narrower(new: &Operation, old: &Operation) -> bool {
    let is_within = match (&new.target, &old.target) {
        (
            Target::Http { method, template },
            Target::Http { method: old_method, template: old_template },
        ) => {
            let specificity = template.specificity(old_template);
            method == old_method && matches!(specificity, Specificity::Same | Specificity::More)
        }
        (Target::Tool { name }, Target::Tool { name: old_name }) => name == old_name,
        (_, _) => false,
    };
    is_within
        && old.conditions.iter().all(|was| new.conditions.iter().any(|is| words(is) == words(was)))
}

/// Whether some of the calls that it takes were declared before, by an operation that is more severe or
/// stricter. Asked of one path: the template with a value that no other template names.
fn shadows(operation: &Operation, old: &Snapshot) -> bool {
    let was: Vec<&Group> = match &operation.target {
        Target::Tool { name } => old.find_tool(name).into_iter().collect(),
        Target::Http { method, template } => {
            let sample = template.build(|_| Some("x-sample-x".to_owned())).unwrap_or_default();
            old.find_http(method, &sample).groups().to_vec()
        }
    };
    was.iter().flat_map(|group| &group.operations).any(|was| {
        let was = &was.operation;
        let is_milder =
            |is: &Operation| is.class < was.class || is.confirm < was.confirm || is.mode < was.mode;
        was.id != operation.id && is_milder(operation)
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
        assert_eq!(changes(&old, &new), ["b: declared: undeclared -> read (weaker)"]);
        let tool = "operations: { a: { match: { tool: t } } }";
        let variant = "operations: { a: { match: { tool: t } }, b: { match: { tool: t, where: { \
            request.dry: { equals: true } } }, effect: { class: read } } }";
        assert_eq!(changes(tool, variant), ["b: declared: undeclared -> read (weaker)"]);
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
