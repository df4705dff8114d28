//! An operation's contract as its policy declares it, for callers that list tools (ADR-0030
//! section 4; standards MCP-27).
//!
//! Paths stand as they are declared, not resolved: a reconciler fills a lookup from the call that it
//! made, when the answer never arrived.

use super::class::Class;
use super::json;
use super::operation::{
    Argument, Deadline, FollowUp, Mapping, Operation, Reference, Target, TimeUnit,
};
use super::slots::object;

/// The contract as one JSON object on one line.
///
/// ```json
/// {"class": "reversible", "inverse": {"operation": "notes.delete", "tool": "delete_note",
///  "arguments": {"id": "response.id"}, "deadline": {"within_ms": 60000}}, "evidence": "response"}
/// ```
///
/// Members that are not declared are left out; a write says what can prove it at best (`evidence`).
/// `class` is the one that the operation is served as;
/// `note` says why it is served as less than it was declared.
pub fn contract_json(operation: &Operation, note: Option<&str>) -> String {
    written(&contract(operation, note))
}

/// The contracts of a tool behind which several operations stand: `{"class", "variants": [...]}`.
pub fn variants_json<'a>(
    class: Class,
    operations: impl Iterator<Item = (&'a Operation, Option<&'a str>)>,
) -> String {
    let variants: Vec<String> = operations
        .map(|(operation, note)| {
            let mut members = contract(operation, note);
            members.insert(0, ("operation", quoted(operation.id.as_str())));
            written(&members)
        })
        .collect();
    let variants = format!("[{}]", variants.join(","));
    written(&[("class", quoted(class.as_str())), ("variants", variants)])
}

fn contract(operation: &Operation, note: Option<&str>) -> Vec<(&'static str, String)> {
    let mut members = vec![("class", quoted(operation.class.as_str()))];
    if let Some(inverse) = &operation.inverse {
        members.push(("inverse", follow_up(inverse)));
    }
    if let Some(compensate) = &operation.compensate {
        members.push(("compensate", follow_up(compensate)));
    }
    if let Some(lookup) = &operation.lookup {
        let mut call = reference(&lookup.reference);
        call.push(("by", quoted(lookup.by.as_str())));
        call.push(("arguments", arguments(&lookup.arguments)));
        members.push(("lookup", written(&call)));
    }
    if let Some(draft) = &operation.draft {
        let mut call = reference(&draft.reference);
        call.push(("arguments", arguments(&draft.arguments)));
        call.push(("handle", quoted(&draft.handle.to_string())));
        call.push(("promote", follow_up(&draft.promote)));
        if let Some(discard) = &draft.discard {
            call.push(("discard", follow_up(discard)));
        }
        members.push(("draft", written(&call)));
    }
    if operation.class.is_write() {
        let evidence = if note.is_some() { "none" } else { operation.verification.evidence() };
        members.push(("evidence", quoted(evidence)));
    }
    if let Some(note) = note {
        members.push(("note", quoted(note)));
    }
    members
}

/// What is said of a tool that is not served as it was declared.
pub fn degraded_json(class: Class, note: &str) -> String {
    written(&[("class", quoted(class.as_str())), ("note", quoted(note))])
}

fn follow_up(call: &FollowUp) -> String {
    let mut members = reference(&call.reference);
    members.push(("arguments", arguments(&call.arguments)));
    match &call.deadline {
        None => {}
        Some(Deadline::WithinMs(within_ms)) => {
            members.push(("deadline", written(&[("within_ms", within_ms.to_string())])));
        }
        Some(Deadline::At { path, unit }) => {
            let mut at = vec![("at", quoted(&path.to_string()))];
            match unit {
                TimeUnit::Either => {}
                TimeUnit::Iso8601 => at.push(("unit", quoted("iso8601"))),
                TimeUnit::Milliseconds => at.push(("unit", quoted("ms"))),
                TimeUnit::Seconds => at.push(("unit", quoted("s"))),
            }
            members.push(("deadline", written(&at)));
        }
    }
    written(&members)
}

fn reference(reference: &Reference) -> Vec<(&'static str, String)> {
    let operation = ("operation", quoted(reference.operation.as_str()));
    let target = match &reference.target {
        Target::Tool { name } => ("tool", quoted(name)),
        Target::Http { method, template } => {
            let method = ("method", quoted(method.as_str()));
            ("http", written(&[method, ("path", quoted(template.as_str()))]))
        }
    };
    vec![operation, target]
}

fn arguments(arguments: &[Argument]) -> String {
    let members: Vec<(&str, String)> = arguments
        .iter()
        .map(|argument| {
            let source = match &argument.mapping {
                Mapping::Const(value) => {
                    let text = value.root().raw().replace(['\r', '\n'], " ");
                    written(&[("const", text)])
                }
                Mapping::Path(path) => quoted(&path.to_string()),
            };
            (argument.name.as_str(), source)
        })
        .collect();
    written(&members)
}

fn quoted(text: &str) -> String {
    let mut json = String::with_capacity(text.len().saturating_add(2));
    json::write_string(text, &mut json);
    json
}

fn written(members: &[(&str, String)]) -> String {
    object(members.iter().map(|(name, json)| (*name, json.as_str())))
}
