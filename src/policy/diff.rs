//! What changes between two policies, weakenings first.
//!
//! A change is weaker if it lets something through that the old policy would have stopped, asked
//! about, recorded as worse, or protected: a milder class, a weaker confirmation, `observe` for
//! `enforce`, a key that goes upstream no more, an undeclared call that is declared and milder.
//! Other changes are named and not judged.

use std::collections::BTreeSet;
use std::fmt;

use crate::contract::class::{Class, Level, Mode, OnUnknown, Repeat};
use crate::contract::key::{OperationId, Place};
use crate::contract::operation::{FollowUp, Operation, Target};

use super::{Served, Snapshot, Undeclared};

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
            (Some(before), Some(after)) => operation(before, after, &mut changes),
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

fn operation(before: &Served, after: &Served, changes: &mut Vec<Change>) {
    let (old, new) = (&before.operation, &after.operation);
    let mut add = |what, before: String, after: String, is_weaker| {
        if before != after {
            let operation = Some(old.id.clone());
            changes.push(Change { operation, what, before, after, is_weaker });
        }
    };
    add("target", target(old), target(new), false);
    add("class", old.class.to_string(), new.class.to_string(), new.class < old.class);
    add("confirm", old.confirm.to_string(), new.confirm.to_string(), new.confirm < old.confirm);
    add("mode", old.mode.to_string(), new.mode.to_string(), new.mode < old.mode);
    let loses_key = new.carrier.place == Place::Unsupported;
    add("carrier", carrier(old), carrier(new), loses_key);
    let lets_repeats = old.repeat != Repeat::Allow && new.repeat == Repeat::Allow;
    add("repeat", old.repeat.to_string(), new.repeat.to_string(), lets_repeats);
    let strictness = |rule| match rule {
        OnUnknown::Challenge => 0,
        OnUnknown::Human => 1,
        OnUnknown::Refuse => 2,
    };
    let is_laxer = strictness(new.on_unknown) < strictness(old.on_unknown);
    add("on_unknown", old.on_unknown.to_string(), new.on_unknown.to_string(), is_laxer);
    let follow_ups =
        [("inverse", &old.inverse, &new.inverse), ("compensate", &old.compensate, &new.compensate)];
    for (what, before, after) in follow_ups {
        add(what, follow_up(before.as_ref()), follow_up(after.as_ref()), false);
    }
    let lookup = |operation: &Operation| {
        let lookup = operation.lookup.as_ref();
        lookup.map_or_else(none, |lookup| lookup.reference.operation.to_string())
    };
    add("lookup", lookup(old), lookup(new), false);
    let draft = |operation: &Operation| {
        let draft = operation.draft.as_ref();
        draft.map_or_else(none, |draft| draft.reference.operation.to_string())
    };
    add("draft", draft(old), draft(new), false);
    let ceiling = (before.ceiling.as_str().to_owned(), after.ceiling.as_str().to_owned());
    add("evidence", ceiling.0, ceiling.1, false);
    let is_silent = changes.iter().all(|change| change.operation.as_ref() != Some(&old.id));
    if is_silent && old.fingerprint != new.fingerprint {
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
    let becomes_read = is_safe(was) && !new.undeclared_get_writes();
    let is_weaker = (becomes_read && was.class.is_write())
        || Undeclared::Confirm(was.confirm) > new.undeclared();
    changes.push(Change {
        operation: Some(was.id.clone()),
        what: "declared",
        before: summary(was),
        after: "undeclared".to_owned(),
        is_weaker,
    });
}

fn added(after: &Served, old: &Snapshot, changes: &mut Vec<Change>) {
    let is = &after.operation;
    let was_read = is_safe(is) && !old.undeclared_get_writes();
    let is_weaker = !was_read
        && (is.class < Class::Irreversible
            || Undeclared::Confirm(is.confirm) < old.undeclared()
            || is.mode < old.undeclared_mode());
    changes.push(Change {
        operation: Some(is.id.clone()),
        what: "declared",
        before: "undeclared".to_owned(),
        after: summary(is),
        is_weaker,
    });
}

fn is_safe(operation: &Operation) -> bool {
    match &operation.target {
        Target::Http { method, .. } => matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS"),
        Target::Tool { .. } => false,
    }
}

fn none() -> String {
    "none".to_owned()
}

fn summary(operation: &Operation) -> String {
    let Operation { class, confirm, mode, .. } = operation;
    match (confirm, mode) {
        (Level::None, Mode::Enforce) => class.to_string(),
        (_, Mode::Enforce) => format!("{class}, confirm {confirm}"),
        (_, Mode::Observe) => format!("{class}, confirm {confirm}, observed"),
    }
}

fn target(operation: &Operation) -> String {
    let conditions = match operation.conditions.len() {
        0 => String::new(),
        1 => " with 1 condition".to_owned(),
        count => format!(" with {count} conditions"),
    };
    match &operation.target {
        Target::Http { method, template } => format!("{method} {template}{conditions}"),
        Target::Tool { name } => format!("tool {name}{conditions}"),
    }
}

fn carrier(operation: &Operation) -> String {
    match &operation.carrier.place {
        Place::Header(name) => format!("header {name}"),
        Place::Query(name) => format!("query {name}"),
        Place::BodyPointer { pointer, .. } => format!("body {}", pointer.as_str()),
        Place::Argument(name) => format!("argument {name}"),
        Place::Unsupported => none(),
    }
}

fn follow_up(follow_up: Option<&FollowUp>) -> String {
    follow_up.map_or_else(none, |follow_up| follow_up.reference.operation.to_string())
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
                "a: confirm: challenge -> caller (weaker)",
                "a: mode: enforce -> observe (weaker)",
                "a: carrier: header k -> none (weaker)",
                "a: target: POST /a -> POST /b",
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
}
