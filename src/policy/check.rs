//! What only all files together show: follow-ups and the operations that they name (ADR-0030
//! section 3, standards 5.3), classes, and confirmation levels.
//!
//! Codes under `effect/` are the source's. Without a catalog only the parameters of path templates
//! are known of a target's inputs, so `mapping_unknown_argument`, `mapping_missing_required`,
//! `mapping_required_optional` and `mapping_type_mismatch` judge those and nothing else.
//! `operation_not_approved` has no counterpart: there is no approval of operations here.

use std::collections::{HashMap, HashSet};

use crate::contract::class::{Class, Kind, Level};
use crate::contract::json::{Doc, Kind as JsonKind};
use crate::contract::key::Place;
use crate::contract::operation::{Argument, LookupBy, Mapping, Slot, Target};
use crate::contract::path::{Path, Root, Segment};
use crate::contract::template::{Part, Template};

use super::diagnostic::{At, Findings, Source};
use super::effect::{
    self, Effect, Named, RawArgument, RawDraft, RawFollowUp, RawLookup, RawReference, Shape,
};
use super::effect_spec;
use super::file::{Declared, Defaults};
use super::headers;
use super::reading::{Reading, Spanned, list};

/// What an operation is, as declared; an operation with errors is served as less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolved {
    pub(super) class: Class,
    pub(super) kind: Kind,
    pub(super) confirm: Level,
}

/// A follow-up whose target and slots are known.
pub(super) struct Linked {
    /// The target's position.
    pub(super) target: usize,
    pub(super) arguments: Vec<Argument>,
}

/// An operation's follow-ups. What could not be linked is missing, and has an error.
#[derive(Default)]
pub(super) struct Links {
    pub(super) inverse: Option<Linked>,
    pub(super) compensate: Option<Linked>,
    pub(super) lookup: Option<Linked>,
    pub(super) draft: Option<Linked>,
    pub(super) promote: Option<Linked>,
    pub(super) discard: Option<Linked>,
}

/// All operations, by what names them.
pub(super) struct Index<'d> {
    pub(super) declared: &'d [Declared],
    pub(super) resolved: Vec<Resolved>,
    by_id: HashMap<&'d str, usize>,
    by_tool: HashMap<&'d str, usize>,
}

/// The class and kind that a block declares, or what holds without one (contract section 1).
pub(super) fn class_of(declared: &Declared, get_writes: bool) -> (Class, Kind) {
    let kind = declared.effect.as_ref().and_then(|effect| effect.spec.kind).map(|kind| kind.value);
    let class = match &declared.effect {
        Some(Effect { class: Some(class), .. }) => class.value,
        Some(_) if kind == Some(Kind::Read) => Class::Read,
        Some(_) => Class::Irreversible,
        None if is_safe(declared) && !get_writes => Class::Read,
        None => Class::Irreversible,
    };
    let implied = if class == Class::Read { Kind::Read } else { Kind::Mutation };
    (class, kind.unwrap_or(implied))
}

/// Whether the method is one that HTTP calls safe.
pub(super) fn is_safe(declared: &Declared) -> bool {
    match &declared.target {
        Some(Target::Http { method, .. }) => {
            matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS")
        }
        Some(Target::Tool { .. }) | None => false,
    }
}

/// The level by class that a file's defaults give.
fn level_by_class(class: Class, is_destructive: bool, defaults: &Defaults) -> Level {
    let own = |level: Option<Spanned<Level>>| level.map_or(Level::Challenge, |level| level.value);
    let by_class =
        if class == Class::Irreversible { own(defaults.irreversible) } else { Level::None };
    let by_flag = if is_destructive { own(defaults.destructive) } else { Level::None };
    by_class.max(by_flag)
}

impl<'d> Index<'d> {
    pub(super) fn new(
        findings: &mut Findings,
        sources: &[Source],
        declared: &'d [Declared],
        defaults: &[Defaults],
    ) -> Self {
        let get_writes = defaults.iter().any(|defaults| defaults.get_writes);
        let mut by_id: HashMap<&str, usize> = HashMap::new();
        let mut by_tool: HashMap<&str, usize> = HashMap::new();
        let mut resolved = Vec::with_capacity(declared.len());
        for (position, operation) in declared.iter().enumerate() {
            let Some(at) = at(sources, operation) else { continue };
            let mut reading = Reading { findings, at };
            if let Some(first) = by_id.get(operation.id.as_str()) {
                let other = declared
                    .get(*first)
                    .and_then(|first| sources.get(first.file))
                    .map_or("another file", |source| &source.name);
                let message = format!("`{}` is declared in {other} too", operation.id);
                reading
                    .error("policy/duplicate_operation", operation.id_span, message)
                    .help("an operation is declared once, in one file");
            } else {
                by_id.insert(operation.id.as_str(), position);
            }
            if let Some(Target::Tool { name }) = &operation.target {
                let known = by_tool.entry(name).or_insert(position);
                // A tool's plain form is what a reference by tool means, before its variants.
                if operation.conditions.is_empty() {
                    *known = position;
                }
            }
            let (class, kind) = class_of(operation, get_writes);
            let defaults = defaults.get(operation.file).copied().unwrap_or_default();
            let confirm = confirm_of(&mut reading, operation, class, &defaults);
            resolved.push(Resolved { class, kind, confirm });
        }
        Self { declared, resolved, by_id, by_tool }
    }

    fn find(&self, named: &Named) -> Option<usize> {
        match named {
            Named::Operation(id) => self.by_id.get(id.as_str()).copied(),
            Named::Tool(name) => self.by_tool.get(name.as_str()).copied(),
        }
    }
}

/// Where findings about an operation go.
pub(super) fn at<'a>(sources: &'a [Source], declared: &'a Declared) -> Option<At<'a>> {
    let source = sources.get(declared.file)?;
    Some(At { file: declared.file, source, operation: Some(declared.id.as_str()) })
}

fn confirm_of(
    reading: &mut Reading<'_>,
    declared: &Declared,
    class: Class,
    defaults: &Defaults,
) -> Level {
    let is_destructive = declared.destructive.is_some_and(|flag| flag.value);
    let default = level_by_class(class, is_destructive, defaults);
    let level = declared.confirm.map_or(default, |own| own.value);
    let span = declared.confirm.map_or(declared.id_span, |own| own.span);
    if level == Level::None && class == Class::Irreversible {
        reading
            .warning("policy/irreversible_unconfirmed", span, "an irreversible write asks nobody")
            .help("`confirm: challenge` stops accidents and loops; `human` stops an agent");
    } else if level < default {
        let message = format!("`{level}` is weaker than this operation's default, `{default}`");
        reading
            .warning("policy/weaker_confirmation", span, message)
            .help("remove `confirm`, or say in a comment why less will do");
    }
    level
}

/// Checks one operation against all others and links its follow-ups.
pub(super) fn operation(
    findings: &mut Findings,
    sources: &[Source],
    index: &Index<'_>,
    position: usize,
) -> Links {
    let (Some(declared), Some(resolved)) =
        (index.declared.get(position), index.resolved.get(position))
    else {
        return Links::default();
    };
    let Some(at) = at(sources, declared) else { return Links::default() };
    let mut reading = Reading { findings, at };
    method_rules(&mut reading, declared, resolved);
    let Some(effect) = &declared.effect else { return Links::default() };
    class_rules(&mut reading, effect, resolved);
    effect_spec::check(&mut reading, &effect.spec, resolved.class == Class::Read, effect.span);
    lints(&mut reading, declared, effect, resolved);

    let mut link = Linking { reading, index, own: position };
    let undo = |link: &mut Linking<'_, '_>, raw: &Option<RawFollowUp>| {
        let raw = raw.as_ref()?;
        link.follow_up(raw, None)
    };
    let inverse = undo(&mut link, &effect.inverse);
    let compensate = undo(&mut link, &effect.compensate);
    let lookup = effect.lookup.as_ref().and_then(|raw| link.lookup(raw, effect));
    let mut links = Links { inverse, compensate, lookup, ..Links::default() };
    if let Some(raw) = &effect.draft {
        link.draft(raw, resolved, &mut links);
    }
    if let (Some(raw), Some(linked)) = (&effect.inverse, &links.inverse) {
        link.restores_request(raw, linked, resolved);
    }
    if let Some(raw) = &declared.before {
        link.before(raw);
    }
    links
}

fn method_rules(reading: &mut Reading<'_>, declared: &Declared, resolved: &Resolved) {
    let Some(Target::Http { method, template }) = &declared.target else { return };
    if resolved.class == Class::Read && !is_safe(declared) {
        let has_rest = template.parts().iter().any(|part| matches!(part, Part::Rest { .. }));
        if has_rest {
            let message = format!("a {method} that is declared a read takes every path below it");
            reading
                .error("effect/read_class_wildcard", declared.match_span, message)
                .help("name each path: a spelling that the upstream folds may be a write");
        } else {
            reading
                .info(
                    "effect/read_on_unsafe_method",
                    declared.match_span,
                    format!("a {method} is declared a read"),
                )
                .help("such calls are neither recorded nor confirmed");
        }
    }
}

fn class_rules(reading: &mut Reading<'_>, effect: &Effect, resolved: &Resolved) {
    let class = resolved.class;
    let class_span = effect.class.map_or(effect.span, |class| class.span);
    let kind = effect.spec.kind;
    match kind {
        Some(kind) if kind.value == Kind::Read && class != Class::Read => {
            reading
                .error("effect/class_on_read", class_span, format!("`{class}` on `kind: read`"))
                .help("a read has no effect to undo; correct the kind or remove the class");
        }
        Some(kind) if kind.value != Kind::Read && class == Class::Read => {
            let message = format!("`class: read` on `kind: {}`", kind.value);
            reading
                .error("effect/read_class_on_mutation", class_span, message)
                .help("correct the kind, or the class");
        }
        Some(_) | None => {}
    }
    if let (Some(reversible), Some(class)) = (effect.reversible, effect.class) {
        let implied = matches!(class.value, Class::Read | Class::Reversible);
        if reversible.value != implied {
            let message =
                format!("`reversible: {}` beside `class: {}`", reversible.value, class.value);
            reading
                .error("effect/class_conflicts_reversible", reversible.span, message)
                .help("read and reversible are reversible, the others are not; remove one");
        }
    }
    match class {
        Class::Reversible if effect.inverse.is_none() => {
            reading
                .error("effect/reversible_without_inverse", class_span, "no `inverse`")
                .help("declare the call that leaves the world as it was, or another class");
        }
        Class::Compensable if effect.compensate.is_none() => {
            reading
                .error("effect/compensable_without_compensate", class_span, "no `compensate`")
                .help("declare the call that cancels the effect, or `class: irreversible`");
        }
        Class::Read | Class::Reversible | Class::Compensable | Class::Irreversible => {}
    }
    if let Some(inverse) = effect.inverse.as_ref().filter(|_| class != Class::Reversible) {
        reading
            .error(
                "effect/inverse_on_non_reversible",
                inverse.span,
                format!("an `inverse` on an operation of class `{class}`"),
            )
            .help("with an inverse the class is `reversible`");
    }
    if let Some(compensate) = effect
        .compensate
        .as_ref()
        .filter(|_| !matches!(class, Class::Compensable | Class::Reversible))
    {
        reading
            .error(
                "effect/compensate_on_class",
                compensate.span,
                format!("a `compensate` on an operation of class `{class}`"),
            )
            .help("with a compensation the class is `compensable`, or `reversible` with both");
    }
    if class == Class::Read {
        if let Some(lookup) = &effect.lookup {
            reading
                .error("effect/lookup_on_read", lookup.span, "a `lookup` on a read")
                .help("a read leaves nothing to look up");
        }
        if let Some(draft) = &effect.draft {
            reading
                .error("effect/draft_on_read", draft.span, "a `draft` on a read")
                .help("a read has no draft form");
        }
    }
}

fn lints(reading: &mut Reading<'_>, declared: &Declared, effect: &Effect, resolved: &Resolved) {
    let destructive = declared.destructive;
    match (resolved.kind, destructive) {
        (Kind::Delete, None) => {
            reading
                .warning(
                    "spec/delete_not_destructive",
                    declared.id_span,
                    "a delete, and nothing says `destructive`",
                )
                .help("say `destructive: true`, or `destructive: false` if nothing is lost");
        }
        (Kind::Read, Some(Spanned { value: true, span })) => {
            reading
                .warning("spec/destructive_read", span, "a read that is destructive")
                .help("correct the kind, or remove `destructive`");
        }
        (_, _) => {}
    }
    if resolved.kind == Kind::ExternalSideEffect && resolved.class == Class::Reversible {
        let span = effect.class.map_or(effect.span, |class| class.span);
        reading
            .warning("spec/external_reversible", span, "what left the vendor's state is taken back")
            .help("a send or a payment leaves a trace; `compensable` is the most it can be");
    }
    if resolved.class != Class::Read {
        if let Some((carrier, span)) = &effect.spec.carrier {
            if carrier.place == Place::Unsupported {
                reading
                    .info("effect/carrier_unsupported", *span, "no key goes upstream")
                    .help("a call whose answer is lost is never sent again by itself");
            }
        }
    }
}

/// Looks one operation's references up.
struct Linking<'r, 'a> {
    reading: Reading<'r>,
    index: &'a Index<'a>,
    own: usize,
}

/// What a reference must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// A write, and not the operation itself.
    Write,
    /// A write; the operation itself is fine (a draft flag).
    WriteOrItself,
    /// A read.
    Read,
}

impl<'a> Linking<'_, 'a> {
    /// `request` is the shape that its request paths are over, where it is not the operation's own
    /// and so was not known when they were read.
    fn follow_up(&mut self, raw: &RawFollowUp, request: Option<Shape<'_>>) -> Option<Linked> {
        let target = self.target(&raw.reference, Wanted::Write)?;
        self.arguments(&raw.reference, target, request)
    }

    fn lookup(&mut self, raw: &RawLookup, effect: &Effect) -> Option<Linked> {
        if raw.by.value == LookupBy::IdempotencyKey {
            let sends_key = effect
                .spec
                .carrier
                .as_ref()
                .is_some_and(|(carrier, _)| carrier.place != Place::Unsupported);
            if !sends_key {
                self.reading
                    .error(
                        "effect/lookup_without_idempotency_key",
                        raw.by.span,
                        "a lookup by key of an operation that sends none",
                    )
                    .help("declare `idempotency`, or look up `by: id`");
            }
            let is_used = raw.reference.arguments.iter().any(|argument| {
                matches!(&argument.mapping, Mapping::Path(Path { root: Root::Key, .. }))
            });
            if !is_used {
                self.reading
                    .error(
                        "effect/lookup_key_unused",
                        raw.span,
                        "a lookup by key that does not use it",
                    )
                    .help("map an argument to `idempotency_key`");
            }
        }
        let target = self.target(&raw.reference, Wanted::Read)?;
        self.arguments(&raw.reference, target, None)
    }

    fn draft(&mut self, raw: &RawDraft, resolved: &Resolved, links: &mut Links) {
        let Some(target) = self.target(&raw.reference, Wanted::WriteOrItself) else { return };
        links.draft = self.arguments(&raw.reference, target, None);
        let Some(draft) = self.index.declared.get(target) else { return };
        let shape = draft.shape();
        links.promote = self.follow_up(&raw.promote, Some(shape));
        links.discard =
            raw.discard.as_ref().and_then(|discard| self.follow_up(discard, Some(shape)));
        let promoted = links.promote.as_ref().and_then(|link| self.index.resolved.get(link.target));
        if let Some(promoted) = promoted.filter(|promoted| promoted.class < resolved.class) {
            let message = format!(
                "`promote` is {}, and what it makes real is {}",
                promoted.class, resolved.class
            );
            self.reading
                .warning("effect/promote_milder", raw.promote.reference.span, message)
                .help("promoting performs the real effect; its class is the effect's");
        }
        let needs = self.index.resolved.get(target).map_or(Level::None, |draft| draft.confirm);
        if target != self.own && needs > Level::None && resolved.confirm == Level::None {
            self.reading
                .warning(
                    "effect/confirmation_for_draft",
                    raw.reference.span,
                    format!("the draft needs `{needs}`, the operation nothing"),
                )
                .help("the operation is served with the draft's level");
        }
    }

    fn before(&mut self, raw: &RawReference) {
        if let Some(target) = self.target(raw, Wanted::Read) {
            let _linked = self.arguments(raw, target, None);
        }
    }

    fn target(&mut self, raw: &RawReference, wanted: Wanted) -> Option<usize> {
        let Some(target) = self.index.find(&raw.named) else {
            let (what, name) = match &raw.named {
                Named::Operation(id) => ("operation", id),
                Named::Tool(name) => ("tool", name),
            };
            let known: Vec<&str> = match &raw.named {
                _ if self.reading.findings.is_full() => Vec::new(),
                Named::Operation(_) => self.index.by_id.keys().copied().collect(),
                Named::Tool(_) => self.index.by_tool.keys().copied().collect(),
            };
            let help = near(name, known)
                .map_or_else(|| "declare it".to_owned(), |near| format!("did you mean `{near}`?"));
            self.reading
                .error("effect/operation_missing", raw.span, format!("no {what} `{name}`"))
                .help(help);
            return None;
        };
        if target == self.own && wanted != Wanted::WriteOrItself {
            self.reading
                .error("effect/operation_self", raw.span, "an operation that follows itself")
                .help("name the call that takes the effect back");
            return None;
        }
        let class = self.index.resolved.get(target)?.class;
        match (wanted, class) {
            (Wanted::Read, Class::Read) => {}
            (Wanted::Read, _) => {
                self.reading
                    .error("effect/lookup_not_read", raw.span, format!("it is {class}"))
                    .help("a lookup changes nothing; name a read");
                return None;
            }
            (Wanted::Write | Wanted::WriteOrItself, Class::Read) => {
                self.reading
                    .error("effect/follow_up_is_read", raw.span, "it is a read")
                    .help("what takes an effect back changes something");
                return None;
            }
            (Wanted::Write | Wanted::WriteOrItself, _) => {}
        }
        let transport = |position: usize| {
            self.index.declared.get(position).map(|declared| declared.shape().transport())
        };
        if transport(target) != transport(self.own) {
            self.reading
                .warning("effect/follow_up_other_transport", raw.span, "it is on another transport")
                .help("a caller must be able to dial both");
        }
        Some(target)
    }

    fn arguments(
        &mut self,
        raw: &RawReference,
        target: usize,
        request: Option<Shape<'_>>,
    ) -> Option<Linked> {
        let target_operation = self.index.declared.get(target)?;
        let mut arguments: Vec<Argument> = Vec::with_capacity(raw.arguments.len());
        let mut is_whole = true;
        for argument in &raw.arguments {
            let mapping = match (&argument.mapping, request) {
                (Mapping::Path(path), Some(shape)) if path.root == Root::Request => {
                    let span = argument.value_span;
                    effect::in_shape(&mut self.reading, span, path.clone(), shape)
                        .map(Mapping::Path)
                }
                (mapping, _) => Some(mapping.clone()),
            };
            let slot = self.slot(target_operation, argument);
            let (Some(mapping), Some(slot)) = (mapping, slot) else {
                is_whole = false;
                continue;
            };
            if let Some(other) = arguments.iter().find(|other| overlaps(&other.slot, &slot)) {
                let message = format!("`{}` sets what `{}` sets", argument.name, other.name);
                self.reading
                    .error("effect/mapping_conflict", argument.name_span, message)
                    .help("keep one of them");
            }
            self.value(argument, &mapping, &slot);
            arguments.push(Argument { name: argument.name.clone(), slot, mapping });
        }
        if let Some(Target::Http { template, .. }) = &target_operation.target {
            self.required(raw, template, &arguments, is_whole);
        }
        Some(Linked { target, arguments })
    }

    /// Where an argument goes.
    fn slot(&mut self, target: &Declared, argument: &RawArgument) -> Option<Slot> {
        let name = argument.name.as_str();
        let carrier = target
            .effect
            .as_ref()
            .and_then(|effect| effect.spec.carrier.as_ref())
            .map(|(carrier, _)| &carrier.place);
        let slot = match &target.target {
            Some(Target::Tool { .. }) => {
                if name == "confirm" || target.confirm_argument.as_deref() == Some(name) {
                    return self.safety_control(argument);
                }
                Slot::Argument(name.to_owned())
            }
            Some(Target::Http { template, .. }) => self.http_slot(template, argument)?,
            // Its `match` has an error of its own.
            None => return None,
        };
        let is_key = match (carrier, &slot) {
            (Some(Place::Header(key)), Slot::Header(name)) => key == name,
            (Some(Place::Query(key)), Slot::Query(name)) => key == name,
            (Some(Place::Argument(key)), Slot::Argument(name)) => key == name,
            (Some(Place::BodyPointer { pointer, .. }), Slot::Body(members)) => {
                !members.is_empty() && pointer.tokens() == members
            }
            (_, _) => false,
        };
        if is_key { self.safety_control(argument) } else { Some(slot) }
    }

    fn safety_control(&mut self, argument: &RawArgument) -> Option<Slot> {
        let message = format!("`{}` is a safety control of the target", argument.name);
        self.reading
            .error("effect/mapping_sets_safety_control", argument.name_span, message)
            .help("the confirmation and the key are the caller's to give");
        None
    }

    fn http_slot(&mut self, template: &Template, argument: &RawArgument) -> Option<Slot> {
        let name = argument.name.as_str();
        let unknown = |link: &mut Self, message: String, help: String| {
            link.reading
                .error("effect/mapping_unknown_argument", argument.name_span, message)
                .help(help);
            None
        };
        let is_parameter = |name: &str| template.names().any(|known| known == name);
        if name == "body" {
            return Some(Slot::Body(Vec::new()));
        }
        match name.split_once('.') {
            Some(("path", rest)) if is_parameter(rest) => Some(Slot::Path(rest.to_owned())),
            Some(("path", rest)) => {
                let message = format!("the target's path has no parameter `{rest}`");
                unknown(self, message, effect::parameters_help(template))
            }
            Some(("query", rest)) if !rest.is_empty() => Some(Slot::Query(rest.to_owned())),
            Some(("body", rest)) if rest.split('.').all(|member| !member.is_empty()) => {
                Some(Slot::Body(rest.split('.').map(str::to_owned).collect()))
            }
            Some(("header", rest)) => {
                let header = headers::folded(rest);
                if headers::is_control(&header) {
                    return self.safety_control(argument);
                }
                if headers::is_refused_argument(&header) {
                    self.reading
                        .error(
                            "effect/credential_mapped",
                            argument.name_span,
                            format!("a mapping cannot set the header `{rest}`"),
                        )
                        .help("credentials are the caller's, the message's own headers are ours");
                    return None;
                }
                match http::HeaderName::from_bytes(header.as_bytes()) {
                    Ok(header) => Some(Slot::Header(header)),
                    Err(_) => {
                        let message = format!("`{rest}` is no header name");
                        unknown(self, message, "use letters, digits and `-`".to_owned())
                    }
                }
            }
            _ if is_parameter(name) => Some(Slot::Path(name.to_owned())),
            _ => {
                let message = format!("the target has no input that is known as `{name}`");
                let help = format!(
                    "write `query.{name}` or `body.{name}`; without a catalog only path \
                     parameters are known by name"
                );
                unknown(self, message, help)
            }
        }
    }

    /// Whether a literal can stand in its slot; types of paths are known from catalogs only.
    fn value(&mut self, argument: &RawArgument, mapping: &Mapping, slot: &Slot) {
        let Mapping::Const(doc) = mapping else { return };
        if let Some(expected) = unfit(doc, slot) {
            let message = format!("the literal of `{}` is not {expected}", argument.name);
            self.reading
                .error("effect/mapping_type_mismatch", argument.value_span, message)
                .help(format!("give {expected}"));
        }
    }

    fn required(
        &mut self,
        raw: &RawReference,
        template: &Template,
        arguments: &[Argument],
        is_whole: bool,
    ) {
        let mut missing = Vec::new();
        for name in template.names() {
            let found = arguments
                .iter()
                .find(|argument| matches!(&argument.slot, Slot::Path(slot) if slot == name));
            match found.map(|argument| (argument, &argument.mapping)) {
                None => missing.push(name),
                Some((argument, Mapping::Path(Path { optional: true, .. }))) => {
                    let span = raw
                        .arguments
                        .iter()
                        .find(|raw| raw.name == argument.name)
                        .map_or(raw.span, |raw| raw.value_span);
                    let message = format!("`{name}` is required, and its path is optional");
                    self.reading
                        .error("effect/mapping_required_optional", span, message)
                        .help("remove the `?`; without the value there is no such call");
                }
                Some((_, Mapping::Path(_) | Mapping::Const(_))) => {}
            }
        }
        // An argument that could not be read may be the missing one.
        if is_whole && !missing.is_empty() {
            let message = format!("no value for {} of the target's path", list(&missing));
            let help = missing.first().map(|name| format!("add `path.{name}`")).unwrap_or_default();
            self.reading
                .error("effect/mapping_missing_required", raw.arguments_span, message)
                .help(help);
        }
    }

    /// Case J3: an "inverse" of an update that sends what the update sent.
    fn restores_request(&mut self, raw: &RawFollowUp, linked: &Linked, resolved: &Resolved) {
        if !matches!(resolved.kind, Kind::Update | Kind::Mutation) {
            return;
        }
        let mut copies = 0_usize;
        for argument in &linked.arguments {
            let Mapping::Path(path) = &argument.mapping else { return };
            if path.root != Root::Request {
                return;
            }
            let members: Vec<&str> = path
                .segments
                .iter()
                .filter_map(|segment| match segment {
                    Segment::Name(name) => Some(name.as_str()),
                    Segment::Index(_) => None,
                })
                .collect();
            let is_copy = match &argument.slot {
                Slot::Body(slot) => members
                    .split_first()
                    .is_some_and(|(first, rest)| *first == "body" && rest.iter().eq(slot)),
                Slot::Argument(slot) => resolved.kind == Kind::Update && members == [slot.as_str()],
                Slot::Header(_) | Slot::Path(_) | Slot::Query(_) => continue,
            };
            if !is_copy {
                return;
            }
            copies = copies.saturating_add(1);
        }
        if copies > 0 {
            self.reading
                .warning(
                    "effect/inverse_repeats_request",
                    raw.span,
                    "the inverse sends only what the call itself sent",
                )
                .help("the state before is not in the request; map it from the answer");
        }
    }
}

/// What a literal should be and is not.
fn unfit(doc: &Doc, slot: &Slot) -> Option<&'static str> {
    let value = doc.root();
    let is_scalar = value.is_scalar() && !value.is_null();
    match slot {
        Slot::Argument(_) | Slot::Body(_) => None,
        Slot::Path(_) => {
            let text = value.as_str();
            let is_fit = is_scalar && !matches!(text.as_deref(), Some("" | "." | ".."));
            (!is_fit).then_some("text or a number that can stand in a path")
        }
        Slot::Query(_) => {
            let is_list = value.kind() == JsonKind::Array
                && value.elements().all(|element| element.is_scalar() && !element.is_null());
            (!is_scalar && !is_list).then_some("a scalar or a list of scalars")
        }
        Slot::Header(_) => {
            let is_visible = value.as_str().is_some_and(|text| {
                !text.is_empty() && text.chars().all(|c| matches!(c, ' '..='~'))
            });
            (!is_visible).then_some("visible ASCII text")
        }
    }
}

/// Whether two slots write the same place, or one inside the other.
fn overlaps(left: &Slot, right: &Slot) -> bool {
    match (left, right) {
        (Slot::Body(left), Slot::Body(right)) => {
            left.iter().zip(right).all(|(left, right)| left == right)
        }
        (left, right) => left == right,
    }
}

/// The nearest of many names; bounded, because a file may name many operations that are missing.
fn near<'k>(name: &str, mut known: Vec<&'k str>) -> Option<&'k str> {
    const COMPARED: usize = 64;
    known.sort_unstable();
    let prefix = name.split('.').next().unwrap_or(name);
    let mut candidates: Vec<&str> =
        known.iter().copied().filter(|known| known.starts_with(prefix)).collect();
    if candidates.is_empty() {
        candidates = known;
    }
    candidates.truncate(COMPARED);
    super::diagnostic::nearest(name, &candidates)
}

/// The ids of operations with an error of their contract.
pub(super) fn faulty(findings: &Findings) -> HashSet<String> {
    findings
        .iter()
        .filter(|finding| finding.severity == super::diagnostic::Severity::Error)
        .filter_map(|finding| finding.operation.as_deref().map(str::to_owned))
        .collect()
}
