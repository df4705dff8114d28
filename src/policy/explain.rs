//! What would happen to one call: which operation it is and why, what it needs, and how it would be
//! taken back. Nothing is sent.

use std::fmt::Write as _;

use percent_encoding::percent_decode_str;

use crate::contract::class::{Class, Level};
use crate::contract::json::{Doc, write_string};
use crate::contract::key::Place;
use crate::contract::operation::{Argument, Condition, Deadline, Mapping, Target, Test};
use crate::contract::path::{Path, Request, Root, Scope};

use super::route::{Choice, Found, choose, is_satisfied};
use super::{Served, Snapshot, Undeclared};

/// A call as somebody imagines it.
#[derive(Clone, Debug)]
pub enum Imagined<'a> {
    /// A plain HTTP request.
    Http {
        /// The method.
        method: &'a http::Method,
        /// The path with its query.
        target: &'a str,
        /// Headers by name.
        headers: &'a [(String, String)],
        /// The body, if it is JSON.
        body: Option<&'a Doc>,
    },
    /// A tool call.
    Tool {
        /// The tool's name.
        name: &'a str,
        /// Its arguments.
        arguments: &'a Doc,
    },
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
    match call {
        Imagined::Tool { name, arguments } => {
            let found = snapshot.find_tool(name).map_or(Found::None, Found::One);
            let request = Request::Arguments(arguments.root());
            tell(snapshot, &found, request, false, &mut told);
        }
        Imagined::Http { method, target, headers, body } => {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let found = snapshot.find_http(method, path);
            let template = found.groups().iter().find_map(|group| {
                let first = group.operations.first()?;
                match &first.operation.target {
                    Target::Http { template, .. } => Some(template),
                    Target::Tool { .. } => None,
                }
            });
            let parameters = template.and_then(|template| template.matches(path));
            let head = head(&parameters.unwrap_or_default(), query, headers);
            let Ok(head) = Doc::parse(head) else {
                told.add("error", "the request cannot be read");
                return told;
            };
            let request =
                Request::Http { head: head.root(), body: body.map(Doc::root), is_opaque: false };
            let is_safe = matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS");
            let folds = if is_safe { snapshot.folds_onto_write(path) } else { None };
            let is_read = is_safe && !snapshot.undeclared_get_writes() && folds.is_none();
            if folds.is_some() && matches!(found, Found::None) {
                told.add(
                    "rule",
                    "it is spelt like a declared GET that writes, but for case or `/`",
                );
            }
            tell(snapshot, &found, request, is_read, &mut told);
        }
    }
    told
}

/// `{"path": {...}, "query": {...}, "header": {...}}`
fn head(parameters: &[(&str, &str)], query: &str, headers: &[(String, String)]) -> String {
    let mut values: Vec<(String, Vec<String>)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |text: &str| {
            percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
        };
        let name = decode(name);
        match values.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => all.push(decode(value)),
            None => values.push((name, vec![decode(value)])),
        }
    }
    let mut out = String::from("{\"path\":");
    let decoded = parameters.iter().map(|(name, value)| {
        let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
        ((*name).to_owned(), vec![value])
    });
    object(decoded, &mut out);
    out.push_str(",\"query\":");
    object(values.into_iter(), &mut out);
    out.push_str(",\"header\":");
    let mut folded: Vec<(String, Vec<String>)> = Vec::new();
    for (name, value) in headers {
        let name = super::headers::folded(name);
        if !folded.iter().any(|(known, _)| *known == name) {
            folded.push((name, vec![value.clone()]));
        }
    }
    object(folded.into_iter(), &mut out);
    out.push('}');
    out
}

fn object(members: impl Iterator<Item = (String, Vec<String>)>, out: &mut String) {
    out.push('{');
    for (position, (name, values)) in members.enumerate() {
        if position > 0 {
            out.push(',');
        }
        write_string(&name, out);
        out.push(':');
        match values.as_slice() {
            [only] => write_string(only, out),
            all => {
                out.push('[');
                for (position, value) in all.iter().enumerate() {
                    if position > 0 {
                        out.push(',');
                    }
                    write_string(value, out);
                }
                out.push(']');
            }
        }
    }
    out.push('}');
}

fn tell(
    snapshot: &Snapshot,
    found: &Found<'_>,
    request: Request<'_>,
    is_undeclared_read: bool,
    told: &mut Explained,
) {
    let scope = Scope { before: None, request, response: None, key: None };
    match choose(found, &scope) {
        Choice::Declared(served) => {
            reasons(found, served, &scope, told);
            declared(served, &scope, told);
        }
        Choice::Undeclared { strictest } => {
            told.add("operation", "_undeclared");
            match strictest {
                Some(_) => told.add("rule", "its target is declared, and it satisfies no variant"),
                None => told.add("rule", "nothing is declared for it"),
            }
            let is_read = is_undeclared_read && strictest.is_none();
            let class = if is_read { Class::Read } else { Class::Irreversible };
            told.add("class", class.as_str());
            let level = match snapshot.undeclared() {
                _ if is_read => Level::None.to_string(),
                Undeclared::Refuse => "refused".to_owned(),
                Undeclared::Confirm(level) => {
                    level.max(strictest.unwrap_or(Level::None)).to_string()
                }
            };
            told.add("confirm", level);
            told.add("mode", snapshot.undeclared_mode().as_str());
            told.add("undo", "none");
        }
    }
}

fn reasons(found: &Found<'_>, served: &Served, scope: &Scope<'_>, told: &mut Explained) {
    let operation = &served.operation;
    told.add("operation", operation.id.as_str());
    told.add("declared", format!("{}:{}", served.file, served.line));
    let target = match &operation.target {
        Target::Http { method, template } => format!("{method} {template}"),
        Target::Tool { name } => format!("tool {name}"),
    };
    told.add("rule", format!("it matches {target}"));
    for condition in &operation.conditions {
        told.add("rule", format!("and {}", words(condition)));
    }
    let others = found
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
    match &condition.test {
        Test::Absent => format!("{path} is absent"),
        Test::Exists => format!("{path} exists"),
        Test::Equals(literal) => format!("{path} equals {}", literal.root().raw()),
        Test::OneOf(literals) => {
            let all: Vec<&str> = literals.iter().map(|literal| literal.root().raw()).collect();
            format!("{path} is one of {}", all.join(", "))
        }
    }
}

fn declared(served: &Served, scope: &Scope<'_>, told: &mut Explained) {
    let operation = &served.operation;
    told.add("class", operation.class.as_str());
    told.add("kind", operation.kind.as_str());
    told.add("confirm", operation.confirm.as_str());
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
    let follow_ups = [("inverse", &operation.inverse), ("compensate", &operation.compensate)];
    let mut has_undo = false;
    for (kind, follow_up) in follow_ups {
        let Some(follow_up) = follow_up else { continue };
        has_undo = true;
        let call = call(&follow_up.reference.target, &follow_up.arguments, scope);
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
        let call = call(&lookup.reference.target, &lookup.arguments, scope);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::compile;

    const POLICY: &str = "version: 1\n\
        operations:\n\
        \x20 pods.create:\n\
        \x20   match: { http: \"POST /ns/{ns}/pods\", where: { request.query.dryRun: \
        { absent: true } } }\n\
        \x20   effect:\n\
        \x20     class: compensable\n\
        \x20     compensate: { operation: pods.delete, arguments: \
        { ns: request.ns, name: response.name, query.note: request.body.note? } }\n\
        \x20 pods.try:\n\
        \x20   match: { http: \"POST /ns/{ns}/pods\", where: { request.query.dryRun: \
        { equals: All } } }\n\
        \x20   effect: { class: read }\n\
        \x20 pods.delete: { match: { http: \"DELETE /ns/{ns}/pods/{name}\" } }\n\
        \x20 run: { match: { http: GET /Run }, effect: { class: irreversible } }\n\
        \x20 tool: { match: { tool: t } }\n";

    fn http(method: &str, target: &str, body: Option<&str>) -> String {
        let compiled = compile(vec![("a.yaml".to_owned(), POLICY.to_owned())]);
        let snapshot = compiled.snapshot.unwrap();
        let method = http::Method::from_bytes(method.as_bytes()).unwrap();
        let body = body.map(|text| Doc::parse(text.to_owned()).unwrap());
        let call = Imagined::Http { method: &method, target, headers: &[], body: body.as_ref() };
        let told = explain(&snapshot, &call);
        assert!(Doc::parse(told.json()).is_ok());
        told.human()
    }

    #[test]
    fn a_write_is_told_with_its_undo_and_the_rule_that_decided() {
        assert_eq!(
            http("POST", "/ns/a%20b/pods", Some("{}")),
            "operation     pods.create\n\
             declared      a.yaml:3\n\
             rule          it matches POST /ns/{ns}/pods\n\
             rule          and request.query.dryRun is absent\n\
             not           pods.try: it does not satisfy request.query.dryRun equals \"All\"\n\
             class         compensable\n\
             kind          mutation\n\
             confirm       none\n\
             mode          enforce\n\
             key           none; a lost answer is never sent again by itself\n\
             evidence      none\n\
             undo          compensate pods.delete: DELETE /ns/{ns}/pods/{name} with ns = \"a b\", \
             name = response.name, query.note = left out (request.body.note? names nothing)\n"
        );
    }

    #[test]
    fn a_variant_and_what_matches_none_are_told_apart() {
        assert!(http("POST", "/ns/a/pods?dryRun=All", None).contains("operation     pods.try"));
        let neither = http("POST", "/ns/a/pods?dryRun=All&dryRun=x", None);
        assert!(neither.contains("satisfies no variant"), "{neither}");
        assert!(neither.contains("class         irreversible"));
    }

    #[test]
    fn undeclared_calls_are_read_or_irreversible_by_method() {
        assert!(http("GET", "/other", None).contains("class         read"));
        assert!(http("POST", "/other", None).contains("confirm       challenge"));
        let folded = http("GET", "/run/", None);
        assert!(folded.contains("class         irreversible"), "{folded}");
    }

    #[test]
    fn a_tool_call_is_explained() {
        let compiled = compile(vec![("a.yaml".to_owned(), POLICY.to_owned())]);
        let arguments = Doc::parse("{}").unwrap();
        let call = Imagined::Tool { name: "t", arguments: &arguments };
        let told = explain(&compiled.snapshot.unwrap(), &call);
        assert!(told.human().starts_with("operation     tool\n"));
    }
}
