//! The `effect` block: ADR-0030's contract, EffectSpec's members, and car-ir's two words for them.
//!
//! Read here: what one block says by itself. Whether the operations that it names exist, and
//! whether the mapped arguments are theirs, is for [`super::check`], which knows all files.
//!
//! `reversibility` and `compensation` of car-ir are read as `class` and `compensate`. Its
//! `reversible` means that restoring a scope undoes the effect, which no call does; without an
//! `inverse` it is therefore an error here, as `class: reversible` is.

use std::sync::Arc;

use crate::contract::class::Class;
use crate::contract::operation::{Deadline, LookupBy, Mapping, TimeUnit};
use crate::contract::path::Path;

use super::assertions;
use super::effect_spec::{self, Spec};
use super::paths::{self, Roots, Shape};
use super::reading::{Fields, Reading, Spanned, words_of};
use super::tree::{Data, Entry, Node, Span};

/// The members of an `effect` block (contract section 2).
pub(super) const MEMBERS: &[&str] = &[
    "class",
    "kind",
    "reversible",
    "inverse",
    "compensate",
    "lookup",
    "draft",
    "schema_version",
    "idempotency",
    "dispatch_statuses",
    "upstream_id",
    "verification",
    "no_evidence",
    "reversibility",
    "compensation",
];

/// The most arguments of one call that follows. The widest request of the vendors' documents has 55
/// inputs; arguments are held against each other here, and filled one by one with every call.
pub(super) const MAX_ARGUMENTS: usize = 256;

/// One `effect` block as it was read.
#[derive(Default)]
pub(super) struct Effect {
    pub(super) span: Span,
    /// What findings about the block as a whole point at.
    pub(super) anchor: Span,
    pub(super) class: Option<Spanned<Class>>,
    pub(super) reversible: Option<Spanned<bool>>,
    pub(super) inverse: Option<RawFollowUp>,
    /// An inverse is written, even if it could not be read.
    pub(super) has_inverse: bool,
    pub(super) compensate: Option<RawFollowUp>,
    /// A compensation is written, even if it could not be read.
    pub(super) has_compensate: bool,
    pub(super) lookup: Option<RawLookup>,
    pub(super) draft: Option<RawDraft>,
    pub(super) spec: Spec,
}

/// How a follow-up names its operation.
#[derive(Clone, Debug)]
pub(super) enum Named {
    /// By id.
    Operation(String),
    /// By the tool that it calls (car-ir).
    Tool(String),
}

/// Another operation, named and not yet looked up.
#[derive(Clone, Debug)]
pub(super) struct RawReference {
    pub(super) named: Named,
    pub(super) span: Span,
    pub(super) arguments: Vec<RawArgument>,
    /// Every argument could be read; if not, one that is missing may be among the others.
    pub(super) is_whole: bool,
}

/// One mapped argument, its place in the target not yet known.
#[derive(Clone, Debug)]
pub(super) struct RawArgument {
    pub(super) name: String,
    pub(super) name_span: Span,
    pub(super) value_span: Span,
    pub(super) mapping: Mapping,
}

/// `inverse`, `compensate`, `promote`, `discard`.
pub(super) struct RawFollowUp {
    pub(super) span: Span,
    pub(super) reference: RawReference,
    pub(super) deadline: Option<Deadline>,
}

/// `lookup`.
pub(super) struct RawLookup {
    pub(super) span: Span,
    pub(super) reference: RawReference,
    pub(super) by: Spanned<LookupBy>,
    pub(super) settle_ms: Option<u64>,
    pub(super) empty: Option<Path>,
    pub(super) matches: Vec<crate::contract::assertion::Assertion>,
}

/// `draft`.
pub(super) struct RawDraft {
    pub(super) span: Span,
    pub(super) reference: RawReference,
    pub(super) handle: Path,
    pub(super) promote: RawFollowUp,
    pub(super) discard: Option<RawFollowUp>,
}

/// Reads an `effect` block.
pub(super) fn read(
    reading: &mut Reading<'_>,
    node: &Node,
    shape: Shape<'_>,
    anchor: Span,
) -> Option<Effect> {
    let fields = reading.fields(node, "`effect`", MEMBERS)?;
    let spec = effect_spec::read(reading, &fields, shape.transport());
    Some(contract(reading, &fields, shape, spec, anchor))
}

/// Reads what a catalog declares: `x-obol-effect`, a whole EffectSpec, and `x-anvil-effect`, our
/// contract or the word `read`.
pub(super) fn read_catalog(
    reading: &mut Reading<'_>,
    spec: Option<&Node>,
    contract_node: Option<&Node>,
    shape: Shape<'_>,
) -> Option<Effect> {
    let spec_node = spec;
    let spec = match spec_node {
        Some(node) => {
            let fields = reading.fields(node, "`x-obol-effect`", effect_spec::MEMBERS)?;
            effect_spec::read_as(reading, &fields, shape.transport(), true)
        }
        None => Spec::default(),
    };
    let anchor = contract_node.or(spec_node)?.span;
    match contract_node {
        None => Some(Effect { span: anchor, anchor, spec, ..Effect::default() }),
        Some(node) if node.as_str() == Some("read") => Some(Effect {
            span: anchor,
            anchor,
            class: Some(Spanned { value: Class::Read, span: node.span }),
            spec,
            ..Effect::default()
        }),
        Some(node) => {
            let fields = reading.fields(node, "`x-anvil-effect`", MEMBERS)?;
            let spec = match spec_node {
                Some(_) => spec,
                None => effect_spec::read(reading, &fields, shape.transport()),
            };
            Some(contract(reading, &fields, shape, spec, anchor))
        }
    }
}

fn contract(
    reading: &mut Reading<'_>,
    fields: &Fields<'_>,
    shape: Shape<'_>,
    spec: Spec,
    anchor: Span,
) -> Effect {
    let class = fields.get("class").and_then(|node| {
        let value = reading.word(node, "class", &words_of!(Class))?;
        Some(Spanned { value, span: node.span })
    });
    let reversible = fields.get("reversible").and_then(|node| {
        Some(Spanned { value: reading.flag(node, "`reversible`")?, span: node.span })
    });
    let mut follow_up = |name: &'static str| {
        let node = fields.get(name)?;
        follow_up(reading, node, name, shape)
    };
    let inverse = follow_up("inverse");
    let compensate = follow_up("compensate");
    let lookup = fields.get("lookup").and_then(|node| lookup(reading, node, shape));
    let draft = fields.get("draft").and_then(|node| draft(reading, node, shape));
    let (class, compensate) = car(reading, fields, class, compensate);
    let is_given = |name| fields.get(name).is_some_and(|node| !node.is_null());
    Effect {
        span: fields.node.span,
        anchor,
        class,
        reversible,
        inverse,
        has_inverse: is_given("inverse"),
        compensate,
        has_compensate: is_given("compensate") || is_given("compensation"),
        lookup,
        draft,
        spec,
    }
}

/// Car-ir's words beside ours.
fn car(
    reading: &mut Reading<'_>,
    fields: &Fields<'_>,
    class: Option<Spanned<Class>>,
    compensate: Option<RawFollowUp>,
) -> (Option<Spanned<Class>>, Option<RawFollowUp>) {
    let reversibility = fields.get("reversibility").and_then(|node| {
        let words = [
            ("reversible", Class::Reversible),
            ("compensable", Class::Compensable),
            ("irreversible", Class::Irreversible),
        ];
        let value = reading.word(node, "reversibility", &words)?;
        Some(Spanned { value, span: node.span })
    });
    if let (Some(class), Some(other)) = (class, reversibility)
        && class.value != other.value
    {
        reading
            .error("effect/class_conflicts_reversible", other.span, "two different classes")
            .help("`reversibility` is car-ir's word for `class`; keep one");
    }
    let compensation = fields
        .get("compensation")
        .filter(|node| !node.is_null())
        .and_then(|node| compensation(reading, node));
    let compensate = match (compensate, compensation) {
        (Some(own), Some(other)) => {
            reading
                .error("effect/compensate_twice", other.span, "a second compensation")
                .help("`compensation` is car-ir's word for `compensate`; keep one");
            Some(own)
        }
        (own, other) => own.or(other),
    };
    (class.or(reversibility), compensate)
}

/// `{type: tool, tool, parameters}`
fn compensation(reading: &mut Reading<'_>, node: &Node) -> Option<RawFollowUp> {
    let what = "`compensation`";
    let fields = reading.mapping(node, what)?;
    let type_node = fields.require(reading, "type")?;
    let words = [("tool", true), ("action_ref", false)];
    if !reading.word(type_node, "compensation type", &words)? {
        reading.fields(node, what, &["type", "action_id"])?;
        reading
            .error("effect/action_ref_outside_flow", type_node.span, "there is no action to name")
            .help("`action_ref` names an action of the same flow; use `type: tool` here");
        return None;
    }
    reading.fields(node, what, &["type", "tool", "parameters"])?;
    let tool_node = fields.require(reading, "tool")?;
    let tool = reading.text(tool_node, "`tool`")?;
    let mut arguments = Vec::new();
    let mut is_whole = true;
    if let Some(parameters) = fields.get("parameters") {
        let parameters = reading.mapping(parameters, "`parameters`")?.node.entries();
        is_whole = is_few(reading, parameters);
        for entry in parameters.iter().take(MAX_ARGUMENTS) {
            arguments.push(RawArgument {
                name: entry.name.clone(),
                name_span: entry.span,
                value_span: entry.value.span,
                mapping: Mapping::Const(Arc::new(entry.value.to_doc()?)),
            });
        }
    }
    let reference = RawReference {
        named: Named::Tool(tool.to_owned()),
        span: tool_node.span,
        arguments,
        is_whole,
    };
    Some(RawFollowUp { span: node.span, reference, deadline: None })
}

fn follow_up(
    reading: &mut Reading<'_>,
    node: &Node,
    name: &'static str,
    shape: Shape<'_>,
) -> Option<RawFollowUp> {
    let fields = reading.fields(node, name, &["operation", "arguments", "deadline"])?;
    let roots = match name {
        "promote" | "discard" => Roots::BRANCH,
        _ => Roots::FOLLOW_UP,
    };
    let reference = reference(reading, &fields, shape, roots);
    let deadline = fields.get("deadline").and_then(|node| deadline(reading, node, shape));
    Some(RawFollowUp { span: node.span, reference: reference?, deadline })
}

fn lookup(reading: &mut Reading<'_>, node: &Node, shape: Shape<'_>) -> Option<RawLookup> {
    let known = ["operation", "by", "arguments", "settle_ms", "empty", "match"];
    let fields = reading.fields(node, "`lookup`", &known)?;
    let by = fields.require(reading, "by").and_then(|node| {
        let words = [
            (LookupBy::IdempotencyKey.as_str(), LookupBy::IdempotencyKey),
            (LookupBy::Id.as_str(), LookupBy::Id),
        ];
        Some(Spanned { value: reading.word(node, "kind of lookup", &words)?, span: node.span })
    });
    let roots = match by.map(|by| by.value) {
        Some(LookupBy::IdempotencyKey) => Roots::LOOKUP_BY_KEY,
        Some(LookupBy::Id) | None => Roots::LOOKUP_BY_ID,
    };
    let reference = reference(reading, &fields, shape, roots);
    let settle_ms =
        fields.get("settle_ms").and_then(|node| reading.integer(node, "`settle_ms`", 1));
    let empty = fields
        .get("empty")
        .and_then(|node| paths::read(reading, node, Shape::Unknown, Roots::RESPONSE));
    let matches = fields
        .get("match")
        .map(|node| assertions::assertions(reading, node, assertions::Form::Lookup))
        .unwrap_or_default();
    Some(RawLookup { span: node.span, reference: reference?, by: by?, settle_ms, empty, matches })
}

fn draft(reading: &mut Reading<'_>, node: &Node, shape: Shape<'_>) -> Option<RawDraft> {
    let known = ["operation", "arguments", "handle", "promote", "discard"];
    let fields = reading.fields(node, "`draft`", &known)?;
    let reference = reference(reading, &fields, shape, Roots::DRAFT);
    let handle = fields.require(reading, "handle").and_then(|node| {
        let path = paths::read_with(
            reading,
            node,
            Shape::Unknown,
            Roots::RESPONSE,
            "effect/draft_handle",
        )?;
        if path.optional {
            reading
                .error("effect/draft_handle", node.span, "the handle of a draft cannot be optional")
                .help("without its handle a draft can be neither promoted nor discarded");
            return None;
        }
        Some(path)
    });
    // What `promote` and `discard` read is the draft call: its request is the draft operation's,
    // whose shape is not known here.
    let mut branch = |name: &'static str| {
        let node = fields.get(name)?;
        follow_up(reading, node, name, Shape::Unknown)
    };
    let promote = branch("promote");
    let discard = branch("discard");
    if fields.get("promote").is_none() {
        let _ = fields.require(reading, "promote");
    }
    Some(RawDraft {
        span: node.span,
        reference: reference?,
        handle: handle?,
        promote: promote?,
        discard,
    })
}

/// `operation` and `arguments` of a follow-up.
pub(super) fn reference(
    reading: &mut Reading<'_>,
    fields: &Fields<'_>,
    shape: Shape<'_>,
    roots: Roots,
) -> Option<RawReference> {
    let node = fields.require(reading, "operation");
    let named = node.and_then(|node| Some((reading.text(node, "`operation`")?, node.span)));
    let mut arguments = Vec::new();
    let mut is_whole = true;
    let arguments_node = fields.get("arguments");
    if let Some(mapping) = arguments_node.and_then(|node| reading.mapping(node, "`arguments`")) {
        let entries = mapping.node.entries();
        is_whole = is_few(reading, entries);
        for entry in entries.iter().take(MAX_ARGUMENTS) {
            match self::mapping(reading, &entry.value, shape, roots) {
                Some(mapping) => arguments.push(RawArgument {
                    name: entry.name.clone(),
                    name_span: entry.span,
                    value_span: entry.value.span,
                    mapping,
                }),
                None => is_whole = false,
            }
        }
    }
    let (name, span) = named?;
    Some(RawReference { named: Named::Operation(name.to_owned()), span, arguments, is_whole })
}

/// Whether there are no more than [`MAX_ARGUMENTS`]; the first that is over is told.
fn is_few(reading: &mut Reading<'_>, arguments: &[Entry]) -> bool {
    let Some(first_over) = arguments.get(MAX_ARGUMENTS) else { return true };
    let message = format!("{} arguments of one call", arguments.len());
    reading.error("effect/too_many_arguments", first_over.span, message).help(format!(
        "at most {MAX_ARGUMENTS}; map a whole object in one argument, such as `body`"
    ));
    false
}

/// A path, or `{const: value}`.
fn mapping(
    reading: &mut Reading<'_>,
    node: &Node,
    shape: Shape<'_>,
    roots: Roots,
) -> Option<Mapping> {
    match &node.data {
        Data::String(_) => paths::read(reading, node, shape, roots).map(Mapping::Path),
        Data::Mapping(_) => {
            let fields = reading.fields(node, "a literal", &["const"])?;
            let value = fields.require(reading, "const")?;
            Some(Mapping::Const(Arc::new(value.to_doc()?)))
        }
        Data::Bool(_) | Data::Null | Data::Number(_) | Data::Sequence(_) => {
            let mut json = String::new();
            node.write_json(&mut json);
            reading
                .error("effect/path_invalid", node.span, "a mapping is a path or a literal")
                .help(format!("write `{{ const: {json} }}` for a literal"));
            None
        }
    }
}

/// `{ within_ms }` or `{ at, unit? }`
fn deadline(reading: &mut Reading<'_>, node: &Node, shape: Shape<'_>) -> Option<Deadline> {
    let fields = reading.fields(node, "`deadline`", &["within_ms", "at", "unit"])?;
    match (fields.get("within_ms"), fields.get("at")) {
        (Some(within), None) => {
            if let Some(unit) = fields.entry("unit") {
                reading
                    .error("effect/deadline_shape", unit.span, "`unit` goes with `at`")
                    .help("`within_ms` is in milliseconds");
            }
            let Data::Number(text) = &within.data else {
                reading
                    .error("effect/deadline_shape", within.span, "`within_ms` is no number")
                    .help("give milliseconds, such as 86400000");
                return None;
            };
            let value = text.parse::<u64>().ok();
            let in_range = value.filter(|ms| (1..=super::reading::MAX_SAFE_INTEGER).contains(ms));
            if in_range.is_none() {
                reading
                    .error("effect/deadline_shape", within.span, format!("`within_ms` is {text}"))
                    .help("give a whole number of milliseconds from 1 to 2^53-1");
            }
            in_range.map(Deadline::WithinMs)
        }
        (None, Some(at)) => {
            let unit = match fields.get("unit") {
                None => TimeUnit::Either,
                Some(node) => {
                    let words = [
                        ("iso8601", TimeUnit::Iso8601),
                        ("ms", TimeUnit::Milliseconds),
                        ("s", TimeUnit::Seconds),
                    ];
                    reading.word(node, "time unit", &words)?
                }
            };
            let path =
                paths::read_with(reading, at, shape, Roots::RESPONSE, "effect/deadline_path")?;
            if path.optional {
                reading
                    .error("effect/deadline_path", at.span, "a deadline's path cannot be optional")
                    .help("an undo without its deadline would be offered for ever");
                return None;
            }
            Some(Deadline::At { path, unit })
        }
        (Some(_), Some(_)) | (None, None) => {
            reading
                .error("effect/deadline_shape", node.span, "a deadline has exactly one form")
                .help("give `within_ms` or `at`");
            None
        }
    }
}
