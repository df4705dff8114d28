//! EffectSpec: what is dispatched how, and what proves it (source 002; standards 5.8).
//!
//! The same members are read in two strictnesses. A block with `schema_version` is a whole
//! EffectSpec: its members are required and its cross rules hold, as that project's validator has
//! them. Without it each member stands alone beside ADR-0030's, and what is missing takes the
//! default. Codes are the validator's variant names in snake case under `spec/`
//! (`MutationWithoutAssertions` is `spec/mutation_without_assertions`); what its deserialiser would
//! refuse is refused as `policy/wrong_type`, `policy/unknown_member`, `policy/unknown_word` or
//! `policy/missing_member`. The rules that no validator checks are findings here too.
//!
//! Plans are validated whole and not evaluated: the verdict of such an operation is inconclusive,
//! and a warning says so.

use std::collections::HashSet;
use std::sync::Arc;

use crate::contract::assertion::{Assertion, Check};
use crate::contract::class::Kind;
use crate::contract::json::{Doc, Value};
use crate::contract::key::{Carrier, Format, OnMismatch, Place, ReplayRule};
use crate::contract::operation::{Trust, Verification};
use crate::contract::pointer::{Pointer, PointerError};
use crate::contract::selector::Selector;
use crate::contract::status::{MAX_STATUS, MIN_STATUS, Matcher, Statuses};

use super::headers;
use super::reading::{Fields, Reading, Spanned};
use super::tree::{Data, Node, Span};

/// The most assertions in one binding or stage.
const MAX_ASSERTIONS: usize = 32;
/// The longest assertion name, in characters.
const MAX_NAME: usize = 256;
/// The most values that `one_of` allows.
const MAX_ALLOWED: usize = 32;
/// The longest literal as compact JSON, in bytes; ours, the source gives no number.
const MAX_LITERAL: usize = 4096;
/// The deepest literal; ours, the source gives no number.
const MAX_LITERAL_DEPTH: usize = 8;
/// The most stages of a plan.
const MAX_STAGES: usize = 8;
/// The most parameters of a probe.
const MAX_PARAMETERS: usize = 8;
/// The length of our own ids, which are keys where the caller gives none.
const ENTRY_ID: usize = 36;

/// The best evidence that an operation can reach (its ceiling).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ceiling {
    /// Nothing proves it.
    None,
    /// The answer itself.
    Response,
    /// A read afterwards.
    Readback,
    /// A signed event.
    Webhook,
}

impl Ceiling {
    /// The word in `check`, `explain` and `tools/list`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Response => "response",
            Self::Readback => "readback",
            Self::Webhook => "webhook",
        }
    }
}

/// What is proven how, as it was read.
pub(super) struct Evidence {
    pub(super) verification: Verification,
    pub(super) span: Span,
    pub(super) ceiling: Ceiling,
    /// It is `none`, or has no assertion.
    pub(super) is_empty: bool,
    /// It is written `{type: none}`.
    pub(super) is_none: bool,
}

/// The EffectSpec members of one `effect` block.
#[derive(Default)]
pub(super) struct Spec {
    /// The block is a whole EffectSpec.
    pub(super) is_whole: bool,
    pub(super) kind: Option<Spanned<Kind>>,
    pub(super) carrier: Option<(Carrier, Span)>,
    pub(super) statuses: Option<Statuses>,
    pub(super) upstream_id: Option<Selector>,
    pub(super) evidence: Option<Evidence>,
    pub(super) no_evidence: Option<Span>,
}

/// Whether the operation is an HTTP request or an MCP tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Http,
    Tool,
}

/// Reads the EffectSpec members out of an `effect` block.
pub(super) fn read(reading: &mut Reading<'_>, fields: &Fields<'_>, transport: Transport) -> Spec {
    let version = fields.get("schema_version");
    read_as(reading, fields, transport, version.is_some())
}

/// As [`read`], with the strictness given: `x-obol-effect` is whole even without a version.
pub(super) fn read_as(
    reading: &mut Reading<'_>,
    fields: &Fields<'_>,
    transport: Transport,
    is_whole: bool,
) -> Spec {
    let member = |reading: &mut Reading<'_>, name: &str| {
        if is_whole { fields.require(reading, name) } else { fields.get(name) }
    };
    if let Some(node) = member(reading, "schema_version") {
        if reading.integer(node, "`schema_version`", 0).is_some_and(|version| version != 1) {
            reading
                .error("spec/unsupported_spec_version", node.span, "an unknown EffectSpec version")
                .help("this reads `schema_version: 1`");
        }
    }
    let kind = member(reading, "kind").and_then(|node| {
        let words: Vec<(&str, Kind)> = Kind::ALL
            .iter()
            .filter(|kind| !is_whole || **kind != Kind::Mutation)
            .map(|kind| (kind.as_str(), *kind))
            .collect();
        let value = reading.word(node, "kind", &words)?;
        Some(Spanned { value, span: node.span })
    });
    let carrier = member(reading, "idempotency")
        .and_then(|node| Some((carrier(reading, node, transport)?, node.span)));
    let statuses = member(reading, "dispatch_statuses").and_then(|node| statuses(reading, node));
    let upstream_id = member(reading, "upstream_id")
        .filter(|node| !node.is_null())
        .and_then(|node| selector(reading, node, "`upstream_id`"));
    let evidence = member(reading, "verification")
        .and_then(|node| verification(reading, node, kind.map(|kind| kind.value), transport));
    let no_evidence = fields.get("no_evidence").filter(|node| !node.is_null()).and_then(|node| {
        let words = [
            ("empty_response_body", ()),
            ("no_readback_endpoint", ()),
            ("effect_leaves_vendor_state", ()),
            ("write_only_transport", ()),
        ];
        reading.word(node, "reason for no evidence", &words)?;
        Some(node.span)
    });
    Spec { is_whole, kind, carrier, statuses, upstream_id, evidence, no_evidence }
}

/// The rules across members, once it is known whether the operation is a read.
pub(super) fn check(reading: &mut Reading<'_>, spec: &Spec, is_read: bool, at: Span) {
    if let Some(span) = spec.no_evidence {
        if is_read {
            reading
                .error("spec/no_evidence_on_read", span, "`no_evidence` on a read")
                .help("a read has no effect to prove; remove it");
        }
        if spec.evidence.as_ref().is_some_and(|evidence| !evidence.is_none) {
            reading
                .error(
                    "spec/no_evidence_with_verification",
                    span,
                    "`no_evidence` beside a verification",
                )
                .help("keep one: `verification: {type: none}` goes with `no_evidence`");
        }
    }
    if !is_read && spec.no_evidence.is_none() {
        match &spec.evidence {
            Some(evidence) if evidence.is_empty && (spec.is_whole || !evidence.is_none) => {
                reading
                    .error(
                        "spec/mutation_without_assertions",
                        evidence.span,
                        "a write whose verification asserts nothing",
                    )
                    .help("assert something of the answer, or say why not with `no_evidence`");
            }
            Some(evidence) if evidence.is_empty => unverified(reading, evidence.span),
            Some(_) => {}
            None if spec.is_whole => {}
            None => unverified(reading, at),
        }
    }
    if !is_read {
        if let Some(statuses) = &spec.statuses {
            lint_statuses(reading, statuses, at);
        }
    }
}

fn unverified(reading: &mut Reading<'_>, span: Span) {
    reading
        .info("spec/unverified", span, "nothing proves this effect; its verdict is inconclusive")
        .help("add a `verification`, or say why there is none with `no_evidence`");
}

fn lint_statuses(reading: &mut Reading<'_>, statuses: &Statuses, at: Span) {
    let matches = |list: &[Matcher], status| list.iter().any(|matcher| matcher.matches(status));
    if (300..=499).any(|status| matches(&statuses.accepted, status)) {
        reading
            .warning("spec/accepted_not_success", at, "a 3xx or 4xx status counts as accepted")
            .help("a redirect or a client error proves no effect; leave it ambiguous");
    }
    for status in [408, 409, 425, 429] {
        if matches(&statuses.definitely_rejected, status) {
            let message = format!("{status} counts as definitely rejected for a write");
            reading
                .warning("spec/rejected_not_definite", at, message)
                .help("part of the work may have been done; leave it in neither list");
            break;
        }
    }
}

/// Reads the carrier of the key.
pub(super) fn carrier(
    reading: &mut Reading<'_>,
    node: &Node,
    transport: Transport,
) -> Option<Carrier> {
    #[derive(Clone, Copy)]
    enum Type {
        Header,
        Query,
        BodyPointer,
        Argument,
        Unsupported,
    }
    let what = "`idempotency`";
    let fields = reading.mapping(node, what)?;
    let type_node = fields.require(reading, "type")?;
    let words = [
        ("header", Type::Header),
        ("query", Type::Query),
        ("body_pointer", Type::BodyPointer),
        ("argument", Type::Argument),
        ("unsupported", Type::Unsupported),
    ];
    let kind = reading.word(type_node, "carrier type", &words)?;
    let own: &[&'static str] = match kind {
        Type::Header | Type::Query | Type::Argument => &["name"],
        Type::BodyPointer => &["pointer", "create"],
        Type::Unsupported => &[],
    };
    let shared: &[&'static str] = match kind {
        Type::Unsupported => &["type"],
        Type::Header | Type::Query | Type::Argument | Type::BodyPointer => {
            &["type", "format", "max_len", "retention", "replay", "on_mismatch"]
        }
    };
    let known: Vec<&'static str> = shared.iter().chain(own).copied().collect();
    reading.fields(node, what, &known)?;
    let is_right_transport = match kind {
        Type::Header | Type::Query | Type::BodyPointer => transport == Transport::Http,
        Type::Argument => transport == Transport::Tool,
        Type::Unsupported => true,
    };
    if !is_right_transport {
        let (message, help) = match transport {
            Transport::Http => {
                ("an HTTP request has no arguments", "use `header`, `query` or `body_pointer`")
            }
            Transport::Tool => ("a tool takes its key as an argument", "use `argument`"),
        };
        reading.error("effect/carrier_transport", type_node.span, message).help(help);
        return None;
    }
    let place = match kind {
        Type::Header => Place::Header(carrier_header(reading, &fields)?),
        Type::Query => Place::Query(carrier_name(reading, &fields)?),
        Type::Argument => Place::Argument(carrier_name(reading, &fields)?),
        Type::BodyPointer => {
            let node = fields.require(reading, "pointer")?;
            let pointer = pointer(reading, node, "`idempotency.pointer`")?;
            if pointer.tokens().is_empty() || pointer.tokens().iter().any(|token| token == "-") {
                reading
                    .error("effect/carrier_pointer", node.span, "the pointer names no member")
                    .help("name the member that holds the key, such as `/dedup_key`");
                return None;
            }
            let create = fields.get("create").and_then(|node| reading.flag(node, "`create`"));
            Place::BodyPointer { pointer, create: create.unwrap_or(false) }
        }
        Type::Unsupported => Place::Unsupported,
    };
    Some(Carrier { place, ..carrier_rules(reading, &fields) })
}

/// The members that every carrier may have; the place is filled in by the caller.
fn carrier_rules(reading: &mut Reading<'_>, fields: &Fields<'_>) -> Carrier {
    let mut carrier = Carrier::unsupported();
    if let Some(node) = fields.get("format") {
        let words = [("raw", Format::Raw), ("sf_string", Format::SfString)];
        carrier.format = reading.word(node, "key format", &words).unwrap_or(Format::Raw);
    }
    if let Some(node) = fields.get("max_len") {
        carrier.max_len =
            reading.integer(node, "`max_len`", 1).and_then(|length| usize::try_from(length).ok());
        if carrier.max_len.is_some_and(|length| length < ENTRY_ID) {
            reading
                .error("effect/carrier_too_short", node.span, "the carrier cannot hold our ids")
                .help("a call without a key of its own is keyed by its entry id of 36 characters");
        }
    }
    if let Some(node) = fields.get("retention") {
        carrier.retention_ms = reading.duration_ms(node, "`retention`");
    }
    if let Some(node) = fields.get("replay") {
        let words = [
            ("full", ReplayRule::Full),
            ("latest", ReplayRule::Latest),
            ("success_only", ReplayRule::SuccessOnly),
            ("dedup_only", ReplayRule::DedupOnly),
        ];
        carrier.replay = reading.word(node, "replay rule", &words);
    }
    if let Some(node) = fields.get("on_mismatch") {
        let words = [
            ("error", OnMismatch::Error),
            ("replay", OnMismatch::Replay),
            ("new_operation", OnMismatch::NewOperation),
        ];
        carrier.on_mismatch = reading.word(node, "mismatch rule", &words);
    }
    carrier
}

fn carrier_name(reading: &mut Reading<'_>, fields: &Fields<'_>) -> Option<String> {
    let node = fields.require(reading, "name")?;
    let name = reading.text(node, "`idempotency.name`")?;
    if name.is_empty() {
        reading
            .error("effect/carrier_name", node.span, "the carrier's name is empty")
            .help("name the parameter that holds the key");
        return None;
    }
    Some(name.to_owned())
}

fn carrier_header(reading: &mut Reading<'_>, fields: &Fields<'_>) -> Option<http::HeaderName> {
    let node = fields.require(reading, "name")?;
    let name = header_name(reading, node, "`idempotency.name`")?;
    if headers::is_refused_carrier(name.as_str()) {
        reading
            .error(
                "spec/protected_header",
                node.span,
                format!("`{name}` cannot carry a key (standards I-6)"),
            )
            .help("name the header in which this API takes an idempotency key");
        return None;
    }
    Some(name)
}

/// A header name in any case; kept in lower case.
pub(super) fn header_name(
    reading: &mut Reading<'_>,
    node: &Node,
    what: &str,
) -> Option<http::HeaderName> {
    let text = reading.text(node, what)?;
    let name = http::HeaderName::from_bytes(text.as_bytes()).ok();
    if name.is_none() {
        reading
            .error("spec/invalid_header_name", node.span, format!("{what} is no header name"))
            .help("a header name is letters, digits and `-`");
    }
    name
}

/// A JSON pointer.
pub(super) fn pointer(reading: &mut Reading<'_>, node: &Node, what: &str) -> Option<Pointer> {
    let text = reading.text(node, what)?;
    match Pointer::parse(text) {
        Ok(pointer) => Some(pointer),
        Err(PointerError::TooLong) => {
            reading
                .error("spec/pointer_too_long", node.span, format!("{what} is over 512 bytes"))
                .help("point at a member that is nearer");
            None
        }
        Err(error @ (PointerError::Escape(_) | PointerError::Start)) => {
            let span = match error {
                PointerError::Escape(offset) => reading.inside(node, offset),
                PointerError::Start | PointerError::TooLong => node.span,
            };
            reading
                .error("spec/invalid_pointer", span, format!("{what}: {error}"))
                .help("a JSON pointer is written `/member/0/other`");
            None
        }
    }
}

/// `{ source, pointer?, header? }`
pub(super) fn selector(reading: &mut Reading<'_>, node: &Node, what: &str) -> Option<Selector> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Source {
        HttpStatus,
        McpStructured,
        RequestBody,
        ResponseBody,
        ResponseHeader,
    }
    let fields = reading.fields(node, "a selector", &["source", "pointer", "header"])?;
    let source_node = fields.require(reading, "source")?;
    let words = [
        ("request_body", Source::RequestBody),
        ("response_body", Source::ResponseBody),
        ("mcp_structured", Source::McpStructured),
        ("response_header", Source::ResponseHeader),
        ("http_status", Source::HttpStatus),
    ];
    let source = reading.word(source_node, "selector source", &words)?;
    let given = |name| fields.get(name).filter(|node| !node.is_null());
    let (pointer_node, header_node) = (given("pointer"), given("header"));
    let wanted = match source {
        Source::HttpStatus => (false, false),
        Source::ResponseHeader => (false, true),
        Source::McpStructured | Source::RequestBody | Source::ResponseBody => (true, false),
    };
    if (pointer_node.is_some(), header_node.is_some()) != wanted {
        let help = match wanted {
            (true, _) => "this source takes a `pointer` and no `header`",
            (false, true) => "this source takes a `header` and no `pointer`",
            (false, false) => "this source takes neither a `pointer` nor a `header`",
        };
        reading
            .error(
                "spec/invalid_selector_fields",
                node.span,
                format!("{what}: members that do not go with its source"),
            )
            .help(help);
        return None;
    }
    let at = |reading: &mut Reading<'_>| pointer(reading, pointer_node?, "`pointer`");
    match source {
        Source::HttpStatus => Some(Selector::HttpStatus),
        Source::McpStructured => at(reading).map(Selector::McpStructured),
        Source::RequestBody => at(reading).map(Selector::RequestBody),
        Source::ResponseBody => at(reading).map(Selector::ResponseBody),
        Source::ResponseHeader => {
            header_name(reading, header_node?, "`header`").map(Selector::ResponseHeader)
        }
    }
}

fn statuses(reading: &mut Reading<'_>, node: &Node) -> Option<Statuses> {
    let known = ["accepted", "definitely_rejected"];
    let fields = reading.fields(node, "`dispatch_statuses`", &known)?;
    let mut spans = Vec::new();
    let mut list = |reading: &mut Reading<'_>, name: &'static str| {
        let node = fields.require(reading, name)?;
        let mut matchers = Vec::new();
        for element in reading.sequence(node, name)? {
            if let Some(matcher) = matcher(reading, element) {
                matchers.push(matcher);
                spans.push((matcher, element.span));
            }
        }
        Some(matchers)
    };
    let accepted = list(reading, "accepted");
    let definitely_rejected = list(reading, "definitely_rejected");
    let statuses = Statuses { accepted: accepted?, definitely_rejected: definitely_rejected? };
    if let Some(status) = statuses.first_overlap() {
        let span = spans
            .iter()
            .filter(|(matcher, _)| matcher.matches(status))
            .nth(1)
            .map_or(node.span, |(_, span)| *span);
        reading
            .error("spec/overlapping_status", span, format!("{status} is matched twice"))
            .help("no status may be matched by two entries, across the lists or within one");
        return None;
    }
    Some(statuses)
}

fn matcher(reading: &mut Reading<'_>, node: &Node) -> Option<Matcher> {
    let what = "a status matcher";
    let fields = reading.mapping(node, what)?;
    let type_node = fields.require(reading, "type")?;
    let is_range = reading.word(type_node, what, &[("exact", false), ("range", true)])?;
    let known: &[&'static str] =
        if is_range { &["type", "start", "end"] } else { &["type", "status"] };
    reading.fields(node, what, known)?;
    let status = |reading: &mut Reading<'_>, name: &str| {
        let node = fields.require(reading, name)?;
        let Data::Number(text) = &node.data else {
            reading.wrong_type(node, &format!("`{name}`"), "a status");
            return None;
        };
        // What no status can be is out of range however it is written.
        Some((text.parse::<u16>().unwrap_or(0), node.span))
    };
    let is_status = |status: u16| (MIN_STATUS..=MAX_STATUS).contains(&status);
    if is_range {
        let start = status(reading, "start");
        let end = status(reading, "end");
        let ((start, _), (end, _)) = (start?, end?);
        if start > end || !is_status(start) || !is_status(end) {
            reading
                .error("spec/invalid_status_range", node.span, "not a range of statuses")
                .help("`start` and `end` are from 100 to 599, `start` not above `end`");
            return None;
        }
        return Some(Matcher::Range(start, end));
    }
    let (status, span) = status(reading, "status")?;
    if !is_status(status) {
        reading.error("spec/invalid_status", span, "not a status").help("it is from 100 to 599");
        return None;
    }
    Some(Matcher::Exact(status))
}

/// Where a list of assertions stands, which decides what they may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A response binding: four variants.
    Binding,
    /// `rejected_if` and a lookup's `match`: all five, over the answer at hand.
    Own,
    /// A plan's stage: five variants, with rules.
    Stage { is_immediate: bool, is_delete: bool },
}

/// Assertions of our own members (`rejected_if`, a lookup's `match`).
pub(super) fn own_assertions(reading: &mut Reading<'_>, node: &Node) -> Vec<Assertion> {
    assertions(reading, node, Form::Own)
}

fn assertions(reading: &mut Reading<'_>, node: &Node, form: Form) -> Vec<Assertion> {
    let Some(elements) = reading.sequence(node, "`assertions`") else { return Vec::new() };
    if let Some(first_over) = elements.get(MAX_ASSERTIONS) {
        let message = format!("{} assertions in one list", elements.len());
        reading
            .error("spec/too_many_assertions", first_over.span, message)
            .help("at most 32; assert what proves the effect");
    }
    let mut names = HashSet::new();
    let mut all = Vec::new();
    for element in elements.iter().take(MAX_ASSERTIONS) {
        if let Some(assertion) = assertion(reading, element, form, &mut names) {
            all.push(assertion);
        }
    }
    if !all.is_empty()
        && form != Form::Own
        && all.iter().all(|assertion| *actual(&assertion.check) == Selector::HttpStatus)
    {
        reading
            .warning("spec/tautology", node.span, "every assertion only repeats the status")
            .help("assert something of the answer, or say why not with `no_evidence`");
    }
    all
}

fn actual(check: &Check) -> &Selector {
    match check {
        Check::Absent(actual)
        | Check::Exists(actual)
        | Check::EqualsLiteral { actual, .. }
        | Check::EqualsRequest { actual, .. }
        | Check::OneOf { actual, .. } => actual,
    }
}

fn assertion<'t>(
    reading: &mut Reading<'_>,
    node: &'t Node,
    form: Form,
    names: &mut HashSet<&'t str>,
) -> Option<Assertion> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Type {
        Absent,
        EqualsLiteral,
        EqualsRequest,
        Exists,
        OneOf,
    }
    let what = "an assertion";
    let fields = reading.mapping(node, what)?;
    let type_node = fields.require(reading, "type")?;
    let mut words = vec![
        ("exists", Type::Exists),
        ("equals_request", Type::EqualsRequest),
        ("equals_literal", Type::EqualsLiteral),
        ("one_of", Type::OneOf),
    ];
    if form != Form::Binding {
        words.push(("absent", Type::Absent));
    }
    let kind = reading.word(type_node, "assertion here", &words)?;
    let own: &[&'static str] = match kind {
        Type::Absent | Type::Exists => &["type", "name", "actual"],
        Type::EqualsLiteral => &["type", "name", "actual", "expected"],
        Type::EqualsRequest => &["type", "name", "actual", "expected_request"],
        Type::OneOf => &["type", "name", "actual", "allowed"],
    };
    reading.fields(node, what, own)?;
    let name = fields.require(reading, "name").and_then(|node| {
        let name = reading.text(node, "`name`")?;
        if name.is_empty() {
            reading
                .error("spec/empty_assertion_name", node.span, "an assertion without a name")
                .help("results carry the name and nothing else; give it one");
        } else if name.chars().count() > MAX_NAME {
            reading
                .error("spec/assertion_name_too_long", node.span, "a name over 256 characters")
                .help("give it a short name");
        } else if !names.insert(name) {
            let message = format!("a second assertion is named `{name}`");
            reading
                .error("spec/duplicate_assertion_name", node.span, message)
                .help("names are unique within one list");
        }
        Some((name, node.span))
    });
    let actual =
        fields.require(reading, "actual").and_then(|node| selector(reading, node, "`actual`"));
    let check = match kind {
        Type::Absent => actual.map(Check::Absent),
        Type::Exists => actual.map(Check::Exists),
        Type::EqualsLiteral => {
            let expected =
                fields.require(reading, "expected").and_then(|node| literal(reading, node));
            actual.zip(expected).map(|(actual, expected)| Check::EqualsLiteral { actual, expected })
        }
        Type::EqualsRequest => {
            let expected = fields
                .require(reading, "expected_request")
                .and_then(|node| pointer(reading, node, "`expected_request`"));
            actual.zip(expected).map(|(actual, expected)| Check::EqualsRequest { actual, expected })
        }
        Type::OneOf => {
            let allowed =
                fields.require(reading, "allowed").and_then(|node| allowed(reading, node));
            actual.zip(allowed).map(|(actual, allowed)| Check::OneOf { actual, allowed })
        }
    };
    let (name, span) = name?;
    let check = check?;
    if let Form::Stage { is_immediate, is_delete } = form {
        placement(reading, &check, name, span, is_immediate, is_delete);
    }
    Some(Assertion { name: name.to_owned(), check })
}

/// What an assertion may read in its stage.
fn placement(
    reading: &mut Reading<'_>,
    check: &Check,
    name: &str,
    span: Span,
    is_immediate: bool,
    is_delete: bool,
) {
    if !is_immediate {
        if matches!(check, Check::EqualsRequest { .. }) {
            let message = format!("`{name}` compares with the request in a later stage");
            reading
                .error("spec/equals_request_outside_immediate", span, message)
                .help("the request is no longer in memory then; compare in an immediate stage");
        }
        if matches!(actual(check), Selector::RequestBody(_)) {
            let message = format!("`{name}` reads the request in a later stage");
            reading
                .error("spec/request_selector_outside_immediate", span, message)
                .help("read the stage's own answer");
        }
    }
    if matches!(check, Check::Absent(_)) && !is_delete {
        let message = format!("`{name}` asserts absence of something that is not deleted");
        reading
            .error("spec/absent_requires_delete", span, message)
            .help("`absent` goes with `kind: delete` only");
    }
}

fn allowed(reading: &mut Reading<'_>, node: &Node) -> Option<Vec<Arc<Doc>>> {
    let elements = reading.sequence(node, "`allowed`")?;
    if elements.len() > MAX_ALLOWED {
        reading
            .error("spec/too_many_allowed_values", node.span, "over 32 allowed values")
            .help("at most 32");
    }
    if elements.is_empty() {
        reading
            .warning("spec/never_passes", node.span, "no value is allowed; this can never pass")
            .help("list the values that prove the effect");
    }
    elements.iter().take(MAX_ALLOWED).map(|element| literal(reading, element)).collect()
}

/// A literal within the bounds.
pub(super) fn literal(reading: &mut Reading<'_>, node: &Node) -> Option<Arc<Doc>> {
    let doc = node.to_doc()?;
    if doc.text().len() > MAX_LITERAL || depth(doc.root()) > MAX_LITERAL_DEPTH {
        reading
            .error("spec/verification_value_out_of_bounds", node.span, "the literal is too large")
            .help("at most 4096 bytes as JSON, and 8 levels");
        return None;
    }
    if !doc.root().is_scalar() {
        reading
            .warning("spec/never_passes", node.span, "a composite literal; this can never pass")
            .help("only scalars compare; assert each member by itself");
    }
    Some(Arc::new(doc))
}

fn depth(value: Value<'_>) -> usize {
    if value.is_scalar() {
        return 0;
    }
    let elements = value.elements().map(depth).max();
    let members = value.members().map(|member| depth(member.value)).max();
    elements.max(members).unwrap_or(0).saturating_add(1)
}

fn verification(
    reading: &mut Reading<'_>,
    node: &Node,
    kind: Option<Kind>,
    transport: Transport,
) -> Option<Evidence> {
    let what = "`verification`";
    let fields = reading.mapping(node, what)?;
    if fields.get("stages").is_some() {
        return plan(reading, node, kind);
    }
    let type_node = fields.require(reading, "type")?;
    let words = [("none", false), ("response_binding", true)];
    let is_binding = reading.word(type_node, "verification type", &words)?;
    if !is_binding {
        reading.fields(node, what, &["type"])?;
        return Some(Evidence {
            verification: Verification::None,
            span: node.span,
            ceiling: Ceiling::None,
            is_empty: true,
            is_none: true,
        });
    }
    reading.fields(node, what, &["type", "config"])?;
    let config = fields.require(reading, "config")?;
    let config_fields = reading.fields(config, "`config`", &["trust", "assertions"])?;
    let trust = config_fields.require(reading, "trust").and_then(|node| {
        let words = [
            ("gateway_observed_only", Trust::GatewayObservedOnly),
            ("allow_connector_attested", Trust::AllowConnectorAttested),
        ];
        let trust = reading.word(node, "trust", &words)?;
        if trust == Trust::AllowConnectorAttested && transport == Transport::Tool {
            reading
                .error(
                    "spec/remote_mcp_cannot_attest",
                    node.span,
                    "a remote MCP server's own claim cannot prove an effect",
                )
                .help("use `gateway_observed_only`");
        }
        Some(trust)
    });
    let list = config_fields.require(reading, "assertions")?;
    let assertions = assertions(reading, list, Form::Binding);
    let is_empty = list.as_sequence().is_some_and(<[Node]>::is_empty);
    Some(Evidence {
        verification: Verification::ResponseBinding { trust: trust?, assertions },
        span: node.span,
        ceiling: if is_empty { Ceiling::None } else { Ceiling::Response },
        is_empty,
        is_none: false,
    })
}

const PLAN: &[&str] = &["schema_version", "deadline_s", "stages", "completion"];

fn plan(reading: &mut Reading<'_>, node: &Node, kind: Option<Kind>) -> Option<Evidence> {
    let fields = reading.fields(node, "a verification plan", PLAN)?;
    if let Some(node) = fields.require(reading, "schema_version") {
        if reading.integer(node, "`schema_version`", 0).is_some_and(|version| version != 1) {
            reading
                .error("spec/unsupported_plan_version", node.span, "an unknown plan version")
                .help("this reads `schema_version: 1`");
        }
    }
    let deadline = fields
        .require(reading, "deadline_s")
        .and_then(|node| Some((reading.integer(node, "`deadline_s`", 0)?, node.span)));
    if let Some((0, span)) = deadline {
        reading
            .warning("spec/deadline_zero", span, "the plan's deadline has passed when it starts")
            .help("give the seconds that the last stage may need");
    }
    let stages_node = fields.require(reading, "stages")?;
    let stages = reading.sequence(stages_node, "`stages`")?;
    if stages.is_empty() {
        reading
            .error("spec/plan_without_stages", stages_node.span, "a plan without stages")
            .help("write `verification: {type: none}`");
    }
    if let Some(first_over) = stages.get(MAX_STAGES) {
        reading.error("spec/too_many_stages", first_over.span, "over 8 stages").help("at most 8");
    }
    let mut ids = HashSet::new();
    let read: Vec<Stage<'_>> = stages
        .iter()
        .take(MAX_STAGES)
        .filter_map(|node| stage(reading, node, kind, deadline.map(|(at, _)| at), &mut ids))
        .collect();
    let completion = fields.require(reading, "completion");
    let accepted_claims = completion.map(|node| completion_claims(reading, node));
    if let Some(claims) = accepted_claims.filter(|claims| !claims.is_empty()) {
        if !read.is_empty() && !read.iter().any(|stage| claims.contains(&stage.claim)) {
            reading
                .warning(
                    "spec/claim_unreachable",
                    stages_node.span,
                    "no stage makes a claim that `completion` accepts; the plan never completes",
                )
                .help("let a stage claim what `completion.acceptable` names");
        }
    }
    reading
        .warning("spec/plan_not_evaluated", node.span, "plans are checked and not evaluated here")
        .help("the verdict is inconclusive; use a `response_binding` for what the answer shows");
    Some(Evidence {
        verification: Verification::Plan,
        span: node.span,
        ceiling: read.iter().map(|stage| stage.ceiling).max().unwrap_or(Ceiling::None),
        // A plan without stages has its own error.
        is_empty: !stages.is_empty() && read.iter().all(|stage| stage.is_empty),
        is_none: false,
    })
}

struct Stage<'t> {
    claim: &'t str,
    ceiling: Ceiling,
    is_empty: bool,
}

fn stage<'t>(
    reading: &mut Reading<'_>,
    node: &'t Node,
    kind: Option<Kind>,
    deadline_s: Option<u64>,
    ids: &mut HashSet<&'t str>,
) -> Option<Stage<'t>> {
    let what = "a stage";
    let fields = reading.mapping(node, what)?;
    let kind_node = fields.require(reading, "kind")?;
    let words = [
        ("immediate", Ceiling::Response),
        ("readback", Ceiling::Readback),
        ("webhook", Ceiling::Webhook),
    ];
    let ceiling = reading.word(kind_node, "stage kind", &words)?;
    let known: &[&'static str] = match ceiling {
        Ceiling::None | Ceiling::Response => &["stage_id", "claim", "kind", "assertions"],
        Ceiling::Readback => &["stage_id", "claim", "kind", "after_s", "probe", "assertions"],
        Ceiling::Webhook => {
            &["stage_id", "claim", "kind", "event_types", "signature_profile", "assertions"]
        }
    };
    reading.fields(node, what, known)?;
    let id = fields.require(reading, "stage_id").and_then(|node| {
        let id = reading.text(node, "`stage_id`")?;
        if id.is_empty() {
            reading
                .error("spec/empty_stage_id", node.span, "a stage without an id")
                .help("give it one");
        } else if !ids.insert(id) {
            reading
                .error("spec/duplicate_stage_id", node.span, format!("a second stage `{id}`"))
                .help("ids are unique within a plan");
        }
        Some(id)
    });
    let claim = fields.require(reading, "claim").and_then(|node| reading.text(node, "`claim`"));
    if let Some(node) = fields.get("after_s") {
        let after_s = reading.integer(node, "`after_s`", 0);
        if let (Some(after_s), Some(deadline_s)) = (after_s, deadline_s) {
            if after_s > deadline_s {
                reading
                    .warning("spec/stage_after_deadline", node.span, "later than the deadline")
                    .help("`after_s` is at most the plan's `deadline_s`");
            }
        }
    }
    match ceiling {
        Ceiling::Readback => {
            if let Some(node) = fields.require(reading, "probe") {
                probe(reading, node);
            }
        }
        Ceiling::Webhook => event_types(reading, &fields, id),
        Ceiling::None | Ceiling::Response => {}
    }
    let list = fields.require(reading, "assertions")?;
    let form = Form::Stage {
        is_immediate: ceiling == Ceiling::Response,
        is_delete: kind == Some(Kind::Delete),
    };
    let _checked = assertions(reading, list, form);
    let is_empty = list.as_sequence().is_some_and(<[Node]>::is_empty);
    Some(Stage { claim: claim?, ceiling, is_empty })
}

fn event_types(reading: &mut Reading<'_>, fields: &Fields<'_>, id: Option<&str>) {
    let types = fields.get("event_types");
    let is_empty = match types {
        Some(node) => reading.sequence(node, "`event_types`").is_some_and(<[Node]>::is_empty),
        None => true,
    };
    if is_empty {
        let span = types.map_or(fields.node.span, |node| node.span);
        let message = format!("webhook stage `{}` has no event types", id.unwrap_or_default());
        reading
            .error("spec/webhook_without_event_types", span, message)
            .help("list the events that carry the evidence");
    }
}

/// The claims that complete a plan.
fn completion_claims<'t>(reading: &mut Reading<'_>, node: &'t Node) -> Vec<&'t str> {
    let mut claims = Vec::new();
    let Some(fields) = reading.fields(node, "`completion`", &["acceptable"]) else {
        return claims;
    };
    let Some(list) = fields.require(reading, "acceptable") else { return claims };
    let Some(elements) = reading.sequence(list, "`acceptable`") else { return claims };
    if elements.is_empty() {
        reading
            .error("spec/empty_completion_predicate", list.span, "the plan can never complete")
            .help("name at least one acceptable claim and its trust");
    }
    for element in elements {
        let Some(pair) = reading.fields(element, "an acceptable pair", &["claim", "trust"]) else {
            continue;
        };
        if let Some(node) = pair.require(reading, "claim") {
            claims.extend(reading.text(node, "`claim`"));
        }
        if let Some(node) = pair.require(reading, "trust") {
            if reading.text(node, "`trust`") == Some("untrusted") {
                reading
                    .error("spec/untrusted_cannot_verify", node.span, "`untrusted` proves nothing")
                    .help("name a source that can be trusted, such as `gateway_observed`");
            }
        }
    }
    claims
}

fn probe(reading: &mut Reading<'_>, node: &Node) {
    let what = "a probe";
    let Some(fields) = reading.mapping(node, what) else { return };
    let Some(transport_node) = fields.require(reading, "transport") else { return };
    let words = [("http", Transport::Http), ("mcp", Transport::Tool)];
    let Some(transport) = reading.word(transport_node, "probe transport", &words) else { return };
    let known: &[&'static str] = match transport {
        Transport::Http => &[
            "transport",
            "probe_target_id",
            "method",
            "path_template",
            "path_params",
            "query_params",
            "decisive_negative",
        ],
        Transport::Tool => {
            &["transport", "probe_target_id", "tool", "arguments", "decisive_negative"]
        }
    };
    if reading.fields(node, what, known).is_none() {
        return;
    }
    if let Some(node) = fields.require(reading, "probe_target_id") {
        let is_slug = reading.text(node, "`probe_target_id`").is_none_or(|id| {
            id.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && id.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
        });
        if !is_slug {
            probe_error(reading, node.span, "`probe_target_id` is no slug", "use `a-z0-9_-`");
        }
    }
    let lists: &[&str] = match transport {
        Transport::Http => {
            if let Some(node) = fields.require(reading, "method") {
                let _ = reading.text(node, "`method`");
            }
            if let Some(node) = fields.require(reading, "path_template") {
                if reading.text(node, "`path_template`").is_some_and(|path| !path.starts_with('/'))
                {
                    let help = "a probe stays on its target: write the path only";
                    probe_error(reading, node.span, "`path_template` must start with `/`", help);
                }
            }
            &["path_params", "query_params"]
        }
        Transport::Tool => {
            if let Some(node) = fields.require(reading, "tool") {
                let _ = reading.text(node, "`tool`");
            }
            &["arguments"]
        }
    };
    let mut count = 0_usize;
    for list in lists {
        let Some(node) = fields.get(list) else { continue };
        let Some(elements) = reading.sequence(node, "the parameters") else { continue };
        let mut names = HashSet::new();
        for element in elements {
            count = count.saturating_add(1);
            parameter(reading, element, transport, &mut names);
        }
    }
    if count > MAX_PARAMETERS {
        probe_error(reading, node.span, "over 8 parameters", "at most 8");
    }
    if let Some(node) = fields.get("decisive_negative") {
        for element in reading.sequence(node, "`decisive_negative`").unwrap_or_default() {
            let is_known =
                matches!(&element.data, Data::Number(text) if text == "404" || text == "410");
            if !is_known {
                let message = "only 404 and 410 say that something is not there";
                probe_error(reading, element.span, message, "remove it");
            }
        }
    }
}

fn parameter<'t>(
    reading: &mut Reading<'_>,
    node: &'t Node,
    transport: Transport,
    names: &mut HashSet<&'t str>,
) {
    let Some(fields) = reading.fields(node, "a probe parameter", &["name", "input"]) else {
        return;
    };
    if let Some(node) = fields.require(reading, "name") {
        if reading.text(node, "`name`").is_some_and(|name| !names.insert(name)) {
            probe_error(reading, node.span, "a parameter given twice", "keep one of them");
        }
    }
    let Some(input) = fields.require(reading, "input") else { return };
    let Some(input_fields) = reading.fields(input, "`input`", &["from", "pointer", "value"]) else {
        return;
    };
    let Some(from) = input_fields.require(reading, "from") else { return };
    let words = [("request_pointer", true), ("upstream_id", false), ("literal", false)];
    if reading.word(from, "parameter source", &words) == Some(true) {
        if transport == Transport::Tool {
            let help = "use `upstream_id`; the request is not kept for it";
            probe_error(reading, from.span, "an MCP probe argument fed from the request", help);
        }
        let text = input_fields
            .require(reading, "pointer")
            .and_then(|node| Some((reading.text(node, "`pointer`")?, node.span)));
        if let Some((text, span)) = text {
            if Pointer::parse(text).is_err() {
                probe_error(reading, span, "not a JSON pointer", "write `/path/name`");
            }
        }
    }
}

fn probe_error(reading: &mut Reading<'_>, span: Span, message: &str, help: &str) {
    reading.error("spec/probe", span, message).help(help);
}
