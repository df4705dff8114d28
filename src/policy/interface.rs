//! What a catalog says of an operation against what its contract says: types, required inputs, the
//! carrier's place, and the places that evidence is read from.

use crate::contract::assertion::{Assertion, Check};
use crate::contract::json::Value;
use crate::contract::key::Place;
use crate::contract::operation::{Deadline, Slot, Target, TimeUnit, Verification};
use crate::contract::path::{Path, Root, Segment};
use crate::contract::pointer::Pointer;
use crate::contract::selector::Selector;

use super::catalog::{InputPlace, Interface};
use super::effect::{Effect, RawFollowUp};
use super::effect_spec::Transport;
use super::file::Declared;
use super::headers;
use super::reading::Reading;
use super::schema::{Schemas, Step, Types};

/// The length of our own ids, which are keys where the caller gives none.
const ENTRY_ID: i64 = 36;

/// What the catalog says of a member of the body.
pub(super) fn body_member<'d>(interface: &Interface<'d>, members: &[String]) -> Step<'d> {
    if !interface.has_body {
        return Step::Missing;
    }
    let Some(schema) = interface.request else { return Step::Opaque };
    let segments: Vec<Segment> = members.iter().cloned().map(Segment::Name).collect();
    interface.schemas.walk(schema, &segments)
}

pub(super) fn is_missing(step: Step<'_>) -> bool {
    matches!(step, Step::Missing)
}

/// The types that a slot of the target takes.
pub(super) fn slot_types(interface: &Interface<'_>, slot: &Slot) -> Option<Types> {
    let of = |place, name: &str| {
        let schema = interface.input(place, name)?.schema?;
        interface.schemas.types(schema)
    };
    match slot {
        Slot::Argument(name) => of(InputPlace::Argument, name),
        Slot::Header(name) => of(InputPlace::Header, name.as_str()),
        Slot::Path(name) => of(InputPlace::Path, name),
        Slot::Query(name) => of(InputPlace::Query, name),
        Slot::Body(members) => match body_member(interface, members) {
            Step::Declared(schema) => interface.schemas.types(schema),
            Step::Missing | Step::Opaque => None,
        },
    }
}

/// The types of what a path names. Parts of an HTTP request's head are text by the time they are
/// mapped, whatever the catalog calls them; only where they go into a head again is their declared
/// type what counts.
pub(super) fn path_types(source: &Declared<'_>, path: &Path, slot: &Slot) -> Option<Types> {
    let interface = source.interface.as_ref()?;
    let walk = |schemas: &Schemas<'_>, schema, segments: &[Segment]| {
        // The schema is the interface's own.
        match schemas.walk(schema, segments) {
            Step::Declared(schema) => schemas.types(schema),
            Step::Missing | Step::Opaque => None,
        }
    };
    match path.root {
        // What another operation's answer has is of that operation's schema.
        Root::Before => None,
        Root::Key => Some(Types::STRING),
        Root::Response => walk(&interface.response_schemas, interface.response?, &path.segments),
        Root::Request if interface.transport == Transport::Tool => {
            walk(&interface.schemas, interface.request?, &path.segments)
        }
        Root::Request => {
            let [Segment::Name(section), rest @ ..] = path.segments.as_slice() else {
                return None;
            };
            if section == "body" {
                return walk(&interface.schemas, interface.request?, rest);
            }
            let [Segment::Name(name)] = rest else { return None };
            if !is_text(slot) {
                return Some(Types::STRING);
            }
            let place = match section.as_str() {
                "path" => InputPlace::Path,
                "query" => InputPlace::Query,
                _ => InputPlace::Header,
            };
            interface.schemas.types(interface.input(place, name)?.schema?)
        }
    }
}

/// Whether a slot's value is written as text into the head of a request.
fn is_text(slot: &Slot) -> bool {
    match slot {
        Slot::Argument(_) | Slot::Body(_) => false,
        Slot::Header(_) | Slot::Path(_) | Slot::Query(_) => true,
    }
}

/// Whether values of these types can go there. Into a text slot every scalar is written as its
/// text, so there a number is fine where text is wanted.
pub(super) fn fits(given: Types, wanted: Types, slot: &Slot) -> bool {
    if given.fit(wanted) {
        return true;
    }
    let scalars = Types::BOOLEAN.with(Types::INTEGER).with(Types::NUMBER);
    is_text(slot)
        && wanted.has(Types::STRING)
        && given.without(scalars).without(Types::STRING).without(Types::NULL).is_empty()
}

/// An input that every call of the target must have.
pub(super) struct Required {
    pub(super) name: String,
    place: InputPlace,
}

impl Required {
    pub(super) fn is_set_by(&self, slot: &Slot) -> bool {
        match (self.place, slot) {
            (InputPlace::Argument, Slot::Argument(name))
            | (InputPlace::Path, Slot::Path(name))
            | (InputPlace::Query, Slot::Query(name)) => *name == self.name,
            (InputPlace::Header, Slot::Header(name)) => name.as_str() == self.name,
            (InputPlace::Body, Slot::Body(members)) => {
                members.first().is_none_or(|first| *first == self.name)
            }
            (_, _) => false,
        }
    }
}

/// The inputs that a mapping must set: the path's parameters, and what the catalog requires but for
/// what the caller gives with each call (the key, the confirmation, credentials).
pub(super) fn required(target: &Declared<'_>) -> Vec<Required> {
    let mut all = Vec::new();
    if let Some(Target::Http { template, .. }) = &target.target {
        all.extend(
            template
                .names()
                .map(|name| Required { name: name.to_owned(), place: InputPlace::Path }),
        );
    }
    let Some(interface) = &target.interface else { return all };
    let carrier = target
        .effect
        .as_ref()
        .and_then(|effect| effect.spec.carrier.as_ref())
        .map(|(carrier, _)| &carrier.place);
    for input in interface.inputs.iter().filter(|input| input.is_required) {
        let is_callers = match (carrier, input.place) {
            (Some(Place::Header(name)), InputPlace::Header) => name.as_str() == input.name,
            (Some(Place::Query(name)), InputPlace::Query)
            | (Some(Place::Argument(name)), InputPlace::Argument) => *name == input.name,
            (Some(Place::BodyPointer { pointer, .. }), InputPlace::Body) => {
                pointer.tokens().first() == Some(&input.name)
            }
            (_, _) => false,
        };
        let is_control = match input.place {
            InputPlace::Argument => {
                input.name == "confirm"
                    || target.confirm_argument.as_deref() == Some(input.name.as_str())
            }
            InputPlace::Header => {
                headers::is_refused_argument(&input.name)
                    || matches!(input.name.as_str(), "accept" | "user-agent")
            }
            InputPlace::Body | InputPlace::Path | InputPlace::Query => false,
        };
        if !is_callers && !is_control && input.place != InputPlace::Path {
            all.push(Required { name: input.name.clone(), place: input.place });
        }
    }
    all
}

/// The carrier's place against the catalog.
pub(super) fn carrier(reading: &mut Reading<'_>, declared: &Declared<'_>, effect: &Effect) {
    let Some(interface) = &declared.interface else { return };
    let Some((carrier, span)) = &effect.spec.carrier else { return };
    let input = |place, name: &str| interface.input(place, name).map(|input| input.schema);
    let (schema, is_undeclared) = match &carrier.place {
        Place::Unsupported => return,
        // Vendors leave this header out of their documents.
        Place::Header(name) => (input(InputPlace::Header, name.as_str()).flatten(), false),
        Place::Query(name) => {
            let found = input(InputPlace::Query, name);
            (found.flatten(), found.is_none() && interface.has_parameters)
        }
        Place::Argument(name) => {
            let found = input(InputPlace::Argument, name);
            (found.flatten(), found.is_none() && !interface.is_open)
        }
        Place::BodyPointer { pointer, .. } => match body_member(interface, pointer.tokens()) {
            Step::Declared(schema) => (Some(schema), false),
            Step::Missing => (None, true),
            Step::Opaque => (None, false),
        },
    };
    if is_undeclared {
        reading
            .warning("effect/carrier_undeclared", *span, "the catalog declares no such place")
            .help("a key where the vendor does not look protects nothing");
    }
    let schema = schema.and_then(|schema| interface.schemas.deref(schema));
    if schema.is_some_and(|schema| !takes_our_ids(schema)) {
        reading
            .error("effect/carrier_too_short", *span, "the catalog's place cannot hold our ids")
            .help(
                "a call without a key of its own is keyed by its entry id, 36 characters such as \
                 01998f2e-5c3a-7b44-9d1e-0a2b4c6d8e0f",
            );
    }
}

/// Whether a schema takes the text of an entry's id (case K5). What it says in a pattern that is more than
/// one class of characters is not judged.
fn takes_our_ids(schema: Value<'_>) -> bool {
    let number = |name| schema.get(name).and_then(Value::as_i64);
    let is_text = match schema.get("type") {
        None => true,
        Some(kind) => {
            let is_string = |kind: Value<'_>| kind.as_str().is_some_and(|kind| kind == "string");
            is_string(kind) || kind.elements().any(is_string)
        }
    };
    let pattern = schema.get("pattern").and_then(Value::as_str);
    is_text
        && schema.get("enum").is_none()
        && schema.get("const").is_none()
        && number("maxLength").is_none_or(|longest| longest >= ENTRY_ID)
        && number("minLength").is_none_or(|least| least <= ENTRY_ID)
        && pattern.is_none_or(|pattern| one_class(&pattern).is_none_or(ClassPattern::takes_our_ids))
}

/// A pattern that is one class of characters from end to end: `^[a-v0-9]{5,1024}$`.
struct ClassPattern<'p> {
    class: &'p str,
    least: usize,
    most: usize,
}

fn one_class(pattern: &str) -> Option<ClassPattern<'_>> {
    let (class, count) = pattern.strip_prefix("^[")?.strip_suffix('$')?.split_once(']')?;
    if class.starts_with('^') || class.contains(['[', '&', '\\']) {
        return None;
    }
    let (least, most) = match count {
        "" => (1, 1),
        "*" => (0, usize::MAX),
        "+" => (1, usize::MAX),
        "?" => (0, 1),
        _ => {
            let counts = count.strip_prefix('{')?.strip_suffix('}')?;
            match counts.split_once(',') {
                None => (counts.parse().ok()?, counts.parse().ok()?),
                Some((least, "")) => (least.parse().ok()?, usize::MAX),
                Some((least, most)) => (least.parse().ok()?, most.parse().ok()?),
            }
        }
    };
    Some(ClassPattern { class, least, most })
}

impl ClassPattern<'_> {
    fn takes_our_ids(self) -> bool {
        let length = usize::try_from(ENTRY_ID).unwrap_or(usize::MAX);
        self.least <= length
            && length <= self.most
            && "0123456789abcdef-".chars().all(|character| self.has(character))
    }

    fn has(&self, character: char) -> bool {
        let mut rest = self.class.chars();
        while let Some(first) = rest.next() {
            let mut ahead = rest.clone();
            // A hyphen at the end stands for itself.
            if ahead.next() == Some('-')
                && let Some(last) = ahead.next()
            {
                if (first..=last).contains(&character) {
                    return true;
                }
                rest = ahead;
            } else if first == character {
                return true;
            }
        }
        false
    }
}

/// Where evidence is read from, against the catalog.
pub(super) fn evidence(reading: &mut Reading<'_>, declared: &Declared<'_>, effect: &Effect) {
    let Some(interface) = &declared.interface else { return };
    if let Some((selector, span)) = &effect.spec.upstream_id
        && is_absent(interface, selector)
    {
        reading
            .warning("spec/selector_unresolved", *span, "the catalog declares nothing there")
            .help("a selector that finds nothing proves nothing");
    }
    let Some(evidence) = &effect.spec.evidence else { return };
    let Verification::ResponseBinding { assertions, .. } = &evidence.verification else { return };
    for Assertion { name, check } in assertions {
        let (Check::Exists(actual)
        | Check::Absent(actual)
        | Check::EqualsLiteral { actual, .. }
        | Check::EqualsRequest { actual, .. }
        | Check::OneOf { actual, .. }) = check;
        if is_absent(interface, actual) {
            let message = format!("the catalog declares nothing where `{name}` looks");
            reading
                .warning("spec/selector_unresolved", evidence.span, message)
                .help("a selector that finds nothing proves nothing");
        }
    }
}

fn is_absent(interface: &Interface<'_>, selector: &Selector) -> bool {
    match selector {
        Selector::HttpStatus | Selector::ResponseHeader(_) => false,
        Selector::McpStructured(pointer) | Selector::ResponseBody(pointer) => {
            match interface.response {
                None => interface.is_response_empty,
                Some(schema) => {
                    let step = interface.response_schemas.walk(schema, &segments(pointer));
                    is_missing(step)
                }
            }
        }
        Selector::RequestBody(pointer) => match interface.request {
            None => interface.transport == Transport::Http && !interface.has_body,
            Some(schema) => is_missing(interface.schemas.walk(schema, &segments(pointer))),
        },
    }
}

/// A pointer as a path: a number is an index, for it is no name that schemas declare.
fn segments(pointer: &Pointer) -> Vec<Segment> {
    let segment = |token: &String| match token.parse::<usize>() {
        Ok(index) => Segment::Index(index),
        Err(_) => Segment::Name(token.clone()),
    };
    pointer.tokens().iter().map(segment).collect()
}

/// A deadline that the answer gives in epoch seconds, read as milliseconds: 1970.
pub(super) fn deadlines(reading: &mut Reading<'_>, declared: &Declared<'_>, effect: &Effect) {
    let Some(interface) = &declared.interface else { return };
    let follow_ups: [&Option<RawFollowUp>; 2] = [&effect.inverse, &effect.compensate];
    for raw in follow_ups.into_iter().flatten() {
        let Some(Deadline::At { path, unit }) = &raw.deadline else { continue };
        if matches!(unit, TimeUnit::Seconds | TimeUnit::Iso8601) {
            continue;
        }
        let Some(schema) = interface.response else { continue };
        let Step::Declared(schema) = interface.response_schemas.walk(schema, &path.segments) else {
            continue;
        };
        let Some(schema) = interface.response_schemas.deref(schema) else { continue };
        let format = schema.get("format").and_then(Value::as_str);
        if matches!(format.as_deref(), Some("unix-time" | "unix-timestamp" | "timestamp")) {
            reading
                .warning(
                    "effect/deadline_in_past_at_answer",
                    raw.span,
                    format!("`{path}` is in seconds; read as milliseconds it has passed"),
                )
                .help("add `unit: s` to the deadline");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::json::Doc;

    #[test]
    fn k5_a_place_takes_our_ids_if_its_type_lengths_and_alphabet_do() {
        for (schema, takes) in [
            ("{}", true),
            (r#"{"type":"string"}"#, true),
            (r#"{"type":["null","string"]}"#, true),
            (r#"{"type":"integer"}"#, false),
            (r#"{"type":["integer","null"]}"#, false),
            (r#"{"maxLength":36}"#, true),
            (r#"{"maxLength":35}"#, false),
            (r#"{"minLength":5}"#, true),
            (r#"{"minLength":40}"#, false),
            (r#"{"enum":["a","b"]}"#, false),
            (r#"{"const":"a"}"#, false),
            // Google Calendar's event ids.
            (r#"{"pattern":"^[a-v0-9]{5,1024}$"}"#, false),
            (r#"{"pattern":"^[a-v0-9-]{5,1024}$"}"#, true),
            (r#"{"pattern":"^[A-Za-z0-9_-]+$"}"#, true),
            (r#"{"pattern":"^[A-Z0-9-]+$"}"#, false),
            (r#"{"pattern":"^[-0-9a-f]{36}$"}"#, true),
            (r#"{"pattern":"^[-0-9a-f]{32}$"}"#, false),
            (r#"{"pattern":"^[-0-9a-f]{40,}$"}"#, false),
            // More than one class is not judged.
            (r#"{"pattern":"^key_[0-9]+$"}"#, true),
            (r#"{"pattern":"[0-9]"}"#, true),
        ] {
            let doc = Doc::parse(schema.to_owned()).unwrap();
            assert_eq!(takes_our_ids(doc.root()), takes, "{schema}");
        }
    }
}
