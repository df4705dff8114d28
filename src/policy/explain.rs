//! What would happen to one call: which operation it is and why, what it needs, and how it would be
//! taken back. Nothing is sent.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::contract::class::{Class, Level};
use crate::contract::json::write_string;
use crate::contract::key::Place;
use crate::contract::operation::{Argument, Condition, Deadline, Mapping, Target, Test};
use crate::contract::path::{Path, Request, Root, Scope, Segment};
use crate::contract::report::Report;
use crate::contract::undo::Unavailable;

use super::route::{Choice, Found, is_satisfied};
use super::{Served, Snapshot, Undeclared};

/// A call as somebody imagines it, as far as it is matched.
#[derive(Clone, Debug)]
pub struct Imagined<'a> {
    /// What is declared for its target.
    pub found: &'a Found<'a>,
    /// Which of that it is.
    pub choice: Choice<'a>,
    /// The request, as paths read it.
    pub request: Request<'a>,
    /// Its path is not that of what it may be, but spelt nearly so.
    pub is_folded: bool,
    /// The class that it is served as.
    pub class: Class,
    /// The confirmation that it needs.
    pub level: Level,
    /// Why it is served as worse than its operation declares: what its ways back lack.
    pub lost: Option<&'a Unavailable>,
}

/// The answer, as lines of a name and a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explained {
    /// In the order in which they are told.
    pub lines: Vec<(&'static str, String)>,
}

impl Explained {
    fn add(&mut self, name: &'static str, text: impl Into<String>) {
        self.lines.push((name, text.into()));
    }

    /// For people.
    pub fn human(&self) -> String {
        let mut out = String::new();
        for (name, text) in &self.lines {
            // Writing to a string cannot fail.
            let written = writeln!(out, "{name:<13} {text}");
            debug_assert!(written.is_ok());
        }
        out
    }

    /// For programs: a JSON object; names that come several times are lists.
    pub fn json(&self) -> String {
        let mut out = String::from("{");
        let mut done: Vec<&str> = Vec::new();
        for (name, _) in &self.lines {
            if done.contains(name) {
                continue;
            }
            if !done.is_empty() {
                out.push(',');
            }
            done.push(name);
            write_string(name, &mut out);
            out.push_str(":[");
            let texts = self.lines.iter().filter(|(other, _)| other == name);
            for (position, (_, text)) in texts.enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write_string(text, &mut out);
            }
            out.push(']');
        }
        out.push('}');
        out
    }
}

/// Explains one call.
pub fn explain(snapshot: &Snapshot, call: &Imagined<'_>) -> Explained {
    let mut told = Explained::default();
    let scope = Scope { before: None, request: call.request, response: None, key: None };
    match &call.choice {
        Choice::Declared(served) => {
            reasons(call, served, &scope, &mut told);
            if let Some(lost) = call.lost {
                told.add("rule", format!("nothing takes this call back: {lost}"));
            }
            declared(served, call, &scope, &mut told);
        }
        Choice::Undeclared { strictest } => {
            told.add("operation", "_undeclared");
            if call.is_folded {
                let rule = "what writes is declared for its method and this path, or for one that \
                            differs in case, a `/` at the end, or the like";
                told.add("rule", rule);
            }
            match strictest {
                Some(_) => told.add("rule", "its target is declared, and it satisfies no variant"),
                None => told.add("rule", "nothing is declared for it"),
            }
            told.add("class", call.class.as_str());
            let level = match snapshot.undeclared() {
                _ if call.class == Class::Read => Level::None.to_string(),
                Undeclared::Refuse => "refused".to_owned(),
                Undeclared::Confirm(_) => call.level.to_string(),
            };
            told.add("confirm", level);
            told.add("mode", snapshot.undeclared_mode().as_str());
            told.add("undo", "none");
        }
    }
    told
}

/// Explains a call that is refused before it is matched: `sole` is the only operation that its target may
/// be. Without one it is what is reported of a call of which nothing is known.
pub fn explain_unmatched(sole: Option<&Arc<Served>>) -> Explained {
    let mut told = Explained::default();
    let report = match sole {
        Some(served) => Report::new(served.operation.class, served.operation.id.clone()),
        None => Report::default(),
    };
    told.add("operation", report.operation.as_str());
    if let Some(served) = sole {
        told.add("declared", format!("{}:{}", served.file, served.line));
    }
    told.add("rule", "it is refused before it is matched");
    told.add("class", report.class.as_str());
    told
}

fn reasons(call: &Imagined<'_>, served: &Served, scope: &Scope<'_>, told: &mut Explained) {
    let operation = &served.operation;
    told.add("operation", operation.id.as_str());
    told.add("declared", format!("{}:{}", served.file, served.line));
    let target = match &operation.target {
        Target::Http { method, template } => format!("{method} {template}"),
        Target::Tool { name } => format!("tool {name}"),
    };
    told.add(
        "rule",
        if call.is_folded {
            format!(
                "it may be {target} to an upstream for which case, a `/` at the end, an escape, or \
                 dots and spaces at the end of a segment do not count"
            )
        } else {
            format!("it matches {target}")
        },
    );
    for condition in &operation.conditions {
        told.add("rule", format!("and {}", words(condition)));
    }
    let others = call
        .found
        .groups()
        .iter()
        .flat_map(|group| &group.operations)
        .filter(|other| other.index != served.index);
    for other in others {
        let failed = other.operation.conditions.iter().find(|test| !is_satisfied(test, scope));
        let why = match failed {
            Some(condition) => format!("it does not satisfy {}", words(condition)),
            None => "it is less specific, or milder".to_owned(),
        };
        told.add("not", format!("{}: {why}", other.operation.id));
    }
}

/// A condition as it is told.
pub(super) fn words(condition: &Condition) -> String {
    let path = &condition.path;
    // Only JSON has a null, which names nothing (standards P-2).
    let is_json = !matches!(path.segments.first(), Some(Segment::Name(section))
        if matches!(section.as_str(), "header" | "path" | "query"));
    match &condition.test {
        Test::Absent if is_json => format!("{path} is absent or null"),
        Test::Absent => format!("{path} is absent"),
        Test::Exists => format!("{path} exists"),
        Test::Equals(literal) => format!("{path} equals {}", literal.root().raw()),
        Test::OneOf(literals) => {
            let all: Vec<&str> = literals.iter().map(|literal| literal.root().raw()).collect();
            format!("{path} is one of {}", all.join(", "))
        }
    }
}

fn declared(served: &Served, call: &Imagined<'_>, scope: &Scope<'_>, told: &mut Explained) {
    let operation = &served.operation;
    told.add("class", call.class.as_str());
    told.add("kind", operation.kind.as_str());
    told.add("confirm", call.level.as_str());
    told.add("mode", operation.mode.as_str());
    for note in &served.notes {
        told.add("note", note.as_str());
    }
    if operation.class == Class::Read {
        return;
    }
    let carrier = match &operation.carrier.place {
        Place::Header(name) => format!("header {name}"),
        Place::Query(name) => format!("query parameter {name}"),
        Place::BodyPointer { pointer, .. } => format!("body member {}", pointer.as_str()),
        Place::Argument(name) => format!("argument {name}"),
        Place::Unsupported => "none; a lost answer is never sent again by itself".to_owned(),
    };
    told.add("key", carrier);
    told.add("evidence", served.ceiling.as_str());
    if let Some(before) = &operation.before {
        let call = self::call(&before.reference.target, &before.arguments, scope);
        told.add("before", format!("{}: {call}", before.reference.operation));
    }
    let follow_ups = [("inverse", &operation.inverse), ("compensate", &operation.compensate)];
    let mut has_undo = false;
    for (kind, follow_up) in follow_ups {
        let Some(follow_up) = follow_up else { continue };
        has_undo = true;
        let call = self::call(&follow_up.reference.target, &follow_up.arguments, scope);
        let until = match &follow_up.deadline {
            None => String::new(),
            Some(Deadline::WithinMs(ms)) => format!(", within {ms} ms of the answer"),
            Some(Deadline::At { path, .. }) => format!(", until {path}"),
        };
        let id = &follow_up.reference.operation;
        told.add("undo", format!("{kind} {id}: {call}{until}"));
    }
    if !has_undo {
        told.add("undo", "none");
    }
    if let Some(lookup) = &operation.lookup {
        let call = self::call(&lookup.reference.target, &lookup.arguments, scope);
        told.add("lookup", format!("{}: {call}", lookup.reference.operation));
    }
    if let Some(draft) = &operation.draft {
        told.add("draft", draft.reference.operation.as_str());
    }
}

/// A follow-up's call, with what is known of its arguments; the answer's are named by their path.
fn call(target: &Target, arguments: &[Argument], scope: &Scope<'_>) -> String {
    let target = match target {
        Target::Http { method, template } => format!("{method} {template}"),
        Target::Tool { name } => format!("tool {name}"),
    };
    if arguments.is_empty() {
        return target;
    }
    let texts: Vec<String> = arguments
        .iter()
        .map(|argument| {
            let value = match &argument.mapping {
                Mapping::Const(doc) => doc.root().raw().to_owned(),
                Mapping::Path(path) => value_of(path, scope),
            };
            format!("{} = {value}", argument.name)
        })
        .collect();
    format!("{target} with {}", texts.join(", "))
}

fn value_of(path: &Path, scope: &Scope<'_>) -> String {
    match (path.root, path.resolve(scope)) {
        (Root::Request, Some(found)) => found.to_json().into_owned(),
        (Root::Request, None) if path.optional => format!("left out ({path} names nothing)"),
        (Root::Request, None) => format!("unavailable ({path} names nothing)"),
        (Root::Before | Root::Key | Root::Response, _) => path.to_string(),
    }
}
