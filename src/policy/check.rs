//! What only all files together show: what each operation is, which level it needs, and whether its
//! class, kind and follow-ups agree (ADR-0030 section 3).
//!
//! Codes under `effect/` are the source's. `operation_not_approved` has no counterpart: there is no
//! approval of operations here.

use std::collections::{HashMap, HashSet};

use crate::contract::class::{Class, Kind, Level};
use crate::contract::key::Place;
use crate::contract::operation::{Argument, Target, Verification};
use crate::contract::plan::Source;
use crate::contract::template::Part;

use super::diagnostic::{At, Findings, Severity, Source as File};
use super::effect::{Effect, Named, RawFollowUp};
use super::effect_spec;
use super::file::{Declared, Defaults};
use super::interface;
use super::link::Linking;
use super::never;
use super::reading::{Reading, Spanned};

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
    pub(super) before: Option<Linked>,
}

/// All operations, by what names them.
pub(super) struct Index<'d> {
    pub(super) declared: &'d [Declared<'d>],
    pub(super) resolved: Vec<Resolved>,
    /// The ids of probe targets that are this upstream.
    pub(super) probe_targets: HashSet<String>,
    by_id: HashMap<&'d str, usize>,
    by_tool: HashMap<&'d str, usize>,
}

/// The class and kind that a block declares, or what holds without one (contract section 1).
pub(super) fn class_of(declared: &Declared<'_>, get_writes: bool) -> (Class, Kind) {
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

/// Whether it is a request whose method HTTP calls safe.
fn is_safe(declared: &Declared<'_>) -> bool {
    declared.target.as_ref().is_some_and(Target::is_safe)
}

/// The level by class that a file's defaults give.
pub(super) fn level_by_class(class: Class, is_destructive: bool, defaults: &Defaults) -> Level {
    let own = |level: Option<Spanned<Level>>| level.map_or(Level::Challenge, |level| level.value);
    let by_class =
        if class == Class::Irreversible { own(defaults.irreversible) } else { Level::None };
    let by_flag = if is_destructive { own(defaults.destructive) } else { Level::None };
    by_class.max(by_flag)
}

impl<'d> Index<'d> {
    pub(super) fn new(
        findings: &mut Findings,
        sources: &[File],
        declared: &'d [Declared<'d>],
        defaults: &[Defaults],
        probe_targets: HashSet<String>,
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
            let defaults = defaults.get(operation.defaults).copied().unwrap_or_default();
            let confirm = confirm_of(&mut reading, operation, class, &defaults);
            resolved.push(Resolved { class, kind, confirm });
        }
        Self { declared, resolved, probe_targets, by_id, by_tool }
    }

    /// Every id.
    pub(super) fn ids(&self) -> Vec<&'d str> {
        self.by_id.keys().copied().collect()
    }

    /// Every tool.
    pub(super) fn tools(&self) -> Vec<&'d str> {
        self.by_tool.keys().copied().collect()
    }

    pub(super) fn find(&self, named: &Named) -> Option<usize> {
        match named {
            Named::Operation(id) => self.by_id.get(id.as_str()).copied(),
            Named::Tool(name) => self.by_tool.get(name.as_str()).copied(),
        }
    }
}

/// Where findings about an operation's effect block go.
fn effect_at<'a>(sources: &'a [File], declared: &'a Declared<'_>) -> Option<At<'a>> {
    let source = sources.get(declared.effect_file)?;
    Some(At { file: declared.effect_file, source, operation: Some(declared.id.as_str()) })
}

/// Where findings about an operation go.
pub(super) fn at<'a>(sources: &'a [File], declared: &'a Declared<'_>) -> Option<At<'a>> {
    let source = sources.get(declared.file)?;
    Some(At { file: declared.file, source, operation: Some(declared.id.as_str()) })
}

fn confirm_of(
    reading: &mut Reading<'_>,
    declared: &Declared<'_>,
    class: Class,
    defaults: &Defaults,
) -> Level {
    let is_destructive = declared.destructive.is_some_and(|flag| flag.value);
    let default = level_by_class(class, is_destructive, defaults);
    let level = declared.confirm.map_or(default, |own| own.value);
    let span = declared.confirm.map_or(declared.id_span, |own| own.span);
    if level > Level::None && class == Class::Read {
        let by_flag = declared.destructive.filter(|flag| flag.value && declared.confirm.is_none());
        let (span, why) = match by_flag {
            Some(flag) => (flag.span, "`destructive`"),
            None => (span, "`confirm`"),
        };
        reading
            .error(
                "effect/read_confirmed",
                span,
                format!("{why} on a read, which nobody is asked about"),
            )
            .help(
                "declare the class of write that it is, or remove it: reads are sent as they come",
            );
    } else if level == Level::None && class == Class::Irreversible {
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
    sources: &[File],
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
    never::check(&mut reading, declared);
    let Some(effect) = &declared.effect else { return Links::default() };
    let Some(at) = effect_at(sources, declared) else { return Links::default() };
    let mut reading = Reading { findings: reading.findings, at };
    class_rules(&mut reading, effect, resolved);
    effect_spec::check(&mut reading, &effect.spec, resolved.class == Class::Read, effect.anchor);
    lints(&mut reading, declared, effect, resolved);
    probe_targets(&mut reading, effect, index);
    interface::carrier(&mut reading, declared, effect);
    interface::evidence(&mut reading, declared, effect);
    interface::deadlines(&mut reading, declared, effect);

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
    for raw in effect.inverse.iter().chain(&effect.compensate) {
        link.hidden(raw, Severity::Error);
    }
    if let Some(draft) = &effect.draft {
        link.hidden(&draft.promote, Severity::Warning);
    }
    links.before = declared.before.as_ref().and_then(|raw| link.before(raw));
    links
}

/// A stage whose probe goes nowhere proves nothing.
fn probe_targets(reading: &mut Reading<'_>, effect: &Effect, index: &Index<'_>) {
    let Some(evidence) = &effect.spec.evidence else { return };
    let Verification::Plan(plan) = &evidence.verification else { return };
    for stage in &plan.stages {
        if let Source::Readback { probe, .. } = &stage.source
            && !index.probe_targets.contains(&probe.target)
        {
            let message = format!("no probe target `{}` is declared", probe.target);
            reading
                .warning("spec/probe_target_undeclared", evidence.span, message)
                .help("add it to `probe_targets`; until then the stage is not evaluated");
        }
    }
}

fn method_rules(reading: &mut Reading<'_>, declared: &Declared<'_>, resolved: &Resolved) {
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
        Class::Reversible if !effect.has_inverse => {
            reading
                .error("effect/reversible_without_inverse", class_span, "no `inverse`")
                .help("declare the call that leaves the world as it was, or another class");
        }
        Class::Compensable if !effect.has_compensate => {
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

fn lints(reading: &mut Reading<'_>, declared: &Declared<'_>, effect: &Effect, resolved: &Resolved) {
    let destructive = declared.destructive;
    match (resolved.kind, destructive) {
        (Kind::Delete, None) => {
            reading
                .warning(
                    "spec/delete_not_destructive",
                    effect.anchor,
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
    if resolved.class != Class::Read
        && let Some((carrier, span)) = &effect.spec.carrier
        && carrier.place == Place::Unsupported
    {
        reading
            .info("effect/carrier_unsupported", *span, "no key goes upstream")
            .help("a call whose answer is lost is never sent again by itself");
    }
}

/// The ids of operations with an error of their contract.
pub(super) fn faulty(findings: &Findings) -> HashSet<String> {
    findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .filter_map(|finding| finding.operation.as_deref().map(str::to_owned))
        .collect()
}
