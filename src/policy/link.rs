//! Follow-ups and the operations that they name: looks references up, and puts each mapped argument
//! into a slot of its target (ADR-0030 section 3, standards 5.3).
//!
//! Without a catalog only the parameters of path templates are known of a target's inputs, so
//! `mapping_unknown_argument`, `mapping_missing_required`, `mapping_required_optional` and
//! `mapping_type_mismatch` judge those and nothing else; with one they judge what it declares.

use std::collections::BTreeSet;

use crate::contract::class::{Class, Kind, Level};
use crate::contract::json::{Doc, Kind as JsonKind};
use crate::contract::key::Place;
use crate::contract::operation::{Argument, LookupBy, Mapping, Slot, Target};
use crate::contract::path::{Path, Root, Segment};
use crate::contract::template::Template;

use super::catalog::{InputPlace, Interface};
use super::check::{Index, Linked, Links, Resolved};
use super::effect::{Effect, Named, RawArgument, RawDraft, RawFollowUp, RawLookup, RawReference};
use super::file::Declared;
use super::headers;
use super::interface;
use super::paths;
use super::reading::{Reading, list};
use super::schema::Types;
use super::tree::Span;

/// Looks one operation's references up.
pub(super) struct Linking<'r, 'a> {
    pub(super) reading: Reading<'r>,
    pub(super) index: &'a Index<'a>,
    pub(super) own: usize,
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
    /// `source` is the operation whose request and answer its paths read, where that is not this
    /// one and so was not known when they were read.
    pub(super) fn follow_up(&mut self, raw: &RawFollowUp, source: Option<usize>) -> Option<Linked> {
        let target = self.target(&raw.reference, Wanted::Write)?;
        self.arguments(&raw.reference, target, source)
    }

    pub(super) fn lookup(&mut self, raw: &RawLookup, effect: &Effect) -> Option<Linked> {
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
        if let Some(empty) = &raw.empty {
            let shape = self.index.declared.get(target)?.shape();
            let _checked = paths::in_shape(&mut self.reading, raw.span, empty.clone(), shape);
        }
        self.arguments(&raw.reference, target, None)
    }

    pub(super) fn draft(&mut self, raw: &RawDraft, resolved: &Resolved, links: &mut Links) {
        let Some(target) = self.target(&raw.reference, Wanted::WriteOrItself) else { return };
        links.draft = self.arguments(&raw.reference, target, None);
        let Some(draft) = self.index.declared.get(target) else { return };
        let handle = raw.handle.clone();
        let _checked = paths::in_shape(&mut self.reading, raw.span, handle, draft.shape());
        links.promote = self.follow_up(&raw.promote, Some(target));
        links.discard =
            raw.discard.as_ref().and_then(|discard| self.follow_up(discard, Some(target)));
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

    pub(super) fn before(&mut self, raw: &RawReference) -> Option<Linked> {
        let target = self.target(raw, Wanted::Read)?;
        self.arguments(raw, target, None)
    }

    /// A path into the state before the call: it must be read, and its answer must have it.
    fn before_path(&mut self, span: Span, path: &Path) -> Option<Path> {
        let declared = self.index.declared.get(self.own)?;
        let Some(before) = &declared.before else {
            self.reading
                .error("effect/before_missing", span, "the state before the call is not read")
                .help("declare `before: { operation: ..., arguments: ... }` beside `effect`");
            return None;
        };
        // A target that is not there has an error of its own.
        let Some(target) = self.index.find(&before.named) else { return Some(path.clone()) };
        let shape = self.index.declared.get(target)?.shape();
        paths::in_answer(&mut self.reading, span, path.clone(), shape)
    }

    fn target(&mut self, raw: &RawReference, wanted: Wanted) -> Option<usize> {
        let Some(target) = self.index.find(&raw.named) else {
            let (what, name) = match &raw.named {
                Named::Operation(id) => ("operation", id),
                Named::Tool(name) => ("tool", name),
            };
            let known: Vec<&str> = match &raw.named {
                _ if self.reading.findings.is_full() => Vec::new(),
                Named::Operation(_) => self.index.ids(),
                Named::Tool(_) => self.index.tools(),
            };
            let help = near(name, known)
                .map_or_else(|| "declare it".to_owned(), |near| format!("did you mean `{near}`?"));
            self.reading
                .error("effect/operation_missing", raw.span, format!("no {what} `{name}`"))
                .help(help);
            return None;
        };
        // Without a target of its own it has another error, and nothing about it is known.
        self.index.declared.get(target)?.target.as_ref()?;
        let takes_itself_back = is_swap(&raw.arguments) || puts_back(&raw.arguments);
        if target == self.own && wanted != Wanted::WriteOrItself && !takes_itself_back {
            self.reading
                .error("effect/operation_self", raw.span, "an operation that follows itself")
                .help(
                    "name the call that takes the effect back, or what was there before (`before`)",
                );
            return None;
        }
        let class = self.index.resolved.get(target)?.class;
        let id = &self.index.declared.get(target)?.id;
        match (wanted, class) {
            (Wanted::Read, Class::Read) => {}
            (Wanted::Read, _) => {
                self.reading
                    .error("effect/lookup_not_read", raw.span, format!("`{id}` is {class}"))
                    .help("a lookup changes nothing; name a read");
                return None;
            }
            (Wanted::Write | Wanted::WriteOrItself, Class::Read) => {
                self.reading
                    .error("effect/follow_up_is_read", raw.span, format!("`{id}` is a read"))
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
                .warning(
                    "effect/follow_up_other_transport",
                    raw.span,
                    format!("`{id}` is on another transport"),
                )
                .help("a caller must be able to dial both");
        }
        Some(target)
    }

    fn arguments(
        &mut self,
        raw: &RawReference,
        target: usize,
        source: Option<usize>,
    ) -> Option<Linked> {
        let target_operation = self.index.declared.get(target)?;
        let source_operation = self.index.declared.get(source.unwrap_or(self.own))?;
        let mut arguments: Vec<Argument> = Vec::with_capacity(raw.arguments.len());
        let mut is_whole = raw.is_whole;
        for argument in &raw.arguments {
            let mapping = match (&argument.mapping, source) {
                (Mapping::Path(path), _) if path.root == Root::Before => {
                    self.before_path(argument.value_span, path).map(Mapping::Path)
                }
                (Mapping::Path(path), Some(_)) => {
                    let (span, shape) = (argument.value_span, source_operation.shape());
                    paths::in_shape(&mut self.reading, span, path.clone(), shape).map(Mapping::Path)
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
            self.types(argument, &mapping, &slot, source_operation, target_operation);
            arguments.push(Argument { name: argument.name.clone(), slot, mapping });
        }
        self.required(raw, target_operation, &arguments, is_whole);
        Some(Linked { target, arguments })
    }

    /// Where an argument goes.
    fn slot(&mut self, target: &Declared<'_>, argument: &RawArgument) -> Option<Slot> {
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
                let is_unknown = target.interface.as_ref().is_some_and(|interface| {
                    !interface.is_open && interface.input(InputPlace::Argument, name).is_none()
                });
                if is_unknown {
                    return self.unknown_argument(
                        argument,
                        format!("the tool has no argument `{name}`"),
                        "see its input schema".to_owned(),
                    );
                }
                Slot::Argument(name.to_owned())
            }
            Some(Target::Http { template, .. }) => {
                self.http_slot(template, target.interface.as_ref(), argument)?
            }
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

    fn unknown_argument(
        &mut self,
        argument: &RawArgument,
        message: String,
        help: String,
    ) -> Option<Slot> {
        self.reading
            .error("effect/mapping_unknown_argument", argument.name_span, message)
            .help(help);
        None
    }

    fn http_slot(
        &mut self,
        template: &Template,
        interface: Option<&Interface<'_>>,
        argument: &RawArgument,
    ) -> Option<Slot> {
        let name = argument.name.as_str();
        let is_parameter = |name: &str| template.names().any(|known| known == name);
        let see = || "see the catalog for the target's inputs".to_owned();
        if name == "body" {
            if interface.is_some_and(|interface| !interface.has_body) {
                let message = "the target takes no body".to_owned();
                return self.unknown_argument(argument, message, see());
            }
            return Some(Slot::Body(Vec::new()));
        }
        match name.split_once('.') {
            Some(("path", rest)) if is_parameter(rest) => Some(Slot::Path(rest.to_owned())),
            Some(("path", rest)) => {
                let message = format!("the target's path has no parameter `{rest}`");
                self.unknown_argument(argument, message, paths::parameters_help(template))
            }
            Some(("query", rest)) if !rest.is_empty() => {
                let is_declared = interface.is_none_or(|interface| {
                    !interface.has_parameters || interface.input(InputPlace::Query, rest).is_some()
                });
                if !is_declared {
                    let message = format!("the target has no query parameter `{rest}`");
                    return self.unknown_argument(argument, message, see());
                }
                Some(Slot::Query(rest.to_owned()))
            }
            Some(("body", rest)) if rest.split('.').all(|member| !member.is_empty()) => {
                let members: Vec<String> = rest.split('.').map(str::to_owned).collect();
                let step = interface.map(|interface| interface::body_member(interface, &members));
                if step.is_some_and(interface::is_missing) {
                    let message = format!("the target's body has no member `{rest}`");
                    return self.unknown_argument(argument, message, see());
                }
                Some(Slot::Body(members))
            }
            Some(("header", rest)) => self.header_slot(rest, argument),
            _ if is_parameter(name) => Some(Slot::Path(name.to_owned())),
            _ => {
                let found = interface.map(|interface| interface.named(name)).unwrap_or_default();
                match found.as_slice() {
                    [only] => match only.place {
                        InputPlace::Path => Some(Slot::Path(name.to_owned())),
                        InputPlace::Query => Some(Slot::Query(name.to_owned())),
                        InputPlace::Header => self.header_slot(name, argument),
                        InputPlace::Argument | InputPlace::Body => {
                            Some(Slot::Body(vec![name.to_owned()]))
                        }
                    },
                    [] => {
                        let message = format!("the target has no input that is known as `{name}`");
                        let help = format!("write `query.{name}` or `body.{name}`");
                        self.unknown_argument(argument, message, help)
                    }
                    [_, _, ..] => {
                        let message = format!("`{name}` is the name of several inputs");
                        let help = format!("write `query.{name}` or `body.{name}`");
                        self.unknown_argument(argument, message, help)
                    }
                }
            }
        }
    }

    fn header_slot(&mut self, name: &str, argument: &RawArgument) -> Option<Slot> {
        let header = headers::folded(name);
        if headers::is_control(&header) {
            return self.safety_control(argument);
        }
        if headers::is_refused_argument(&header) {
            self.reading
                .error(
                    "effect/credential_mapped",
                    argument.name_span,
                    format!("a mapping cannot set the header `{name}`"),
                )
                .help("credentials are the caller's, the message's own headers are ours");
            return None;
        }
        match http::HeaderName::from_bytes(header.as_bytes()) {
            Ok(header) => Some(Slot::Header(header)),
            Err(_) => {
                let message = format!("`{name}` is no header name");
                self.unknown_argument(argument, message, "use letters, digits and `-`".to_owned())
            }
        }
    }

    /// Whether a value's declared type fits its slot's.
    fn types(
        &mut self,
        argument: &RawArgument,
        mapping: &Mapping,
        slot: &Slot,
        source: &Declared<'_>,
        target: &Declared<'_>,
    ) {
        let Some(wanted) = target.interface.as_ref().and_then(|i| interface::slot_types(i, slot))
        else {
            return;
        };
        let given = match mapping {
            Mapping::Const(doc) => Some(Types::of(doc.root())),
            Mapping::Path(path) => interface::path_types(source, path, slot),
        };
        let Some(given) = given else { return };
        if !interface::fits(given, wanted, slot) {
            let message = format!(
                "`{}` takes {}, and this is {}",
                argument.name,
                wanted.words(),
                given.words()
            );
            self.reading
                .error("effect/mapping_type_mismatch", argument.value_span, message)
                .help("an integer is a number; nothing else converts");
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
        target: &Declared<'_>,
        arguments: &[Argument],
        is_whole: bool,
    ) {
        let mut missing = Vec::new();
        for wanted in interface::required(target) {
            let found = arguments.iter().find(|argument| wanted.is_set_by(&argument.slot));
            match found.map(|argument| (argument, &argument.mapping)) {
                None => missing.push(wanted.name),
                Some((argument, Mapping::Path(Path { optional: true, .. }))) => {
                    let span = raw
                        .arguments
                        .iter()
                        .find(|raw| raw.name == argument.name)
                        .map_or(raw.span, |raw| raw.value_span);
                    let message =
                        format!("`{}` is required, and its path is optional", wanted.name);
                    self.reading
                        .error("effect/mapping_required_optional", span, message)
                        .help("remove the `?`; without the value there is no such call");
                }
                Some((_, Mapping::Path(_) | Mapping::Const(_))) => {}
            }
        }
        // An argument that could not be read may be the missing one.
        if is_whole && !missing.is_empty() {
            let names: Vec<&str> = missing.iter().map(String::as_str).collect();
            let message = format!("no value for {}, which the target requires", list(&names));
            let help = names.first().map(|name| format!("add `{name}`")).unwrap_or_default();
            self.reading.error("effect/mapping_missing_required", raw.span, message).help(help);
        }
    }

    /// Case J3: an "inverse" of an update that sends what the update sent.
    pub(super) fn restores_request(
        &mut self,
        raw: &RawFollowUp,
        linked: &Linked,
        resolved: &Resolved,
    ) {
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
                .help("declare `before`, and map the old values from `before.<path>`");
        }
    }
}

/// Whether a call with these arguments is the same call with its own arguments exchanged among
/// themselves, as a move is undone by moving back. Only then can an operation undo itself.
fn is_swap(arguments: &[RawArgument]) -> bool {
    let pairs: Option<Vec<(&str, String)>> = arguments
        .iter()
        .map(|argument| match &argument.mapping {
            Mapping::Path(path) if path.root == Root::Request && !path.optional => {
                let path = path.to_string();
                Some((argument.name.as_str(), path.strip_prefix("request.")?.to_owned()))
            }
            Mapping::Path(_) | Mapping::Const(_) => None,
        })
        .collect();
    let Some(pairs) = pairs else { return false };
    let names: BTreeSet<&str> = pairs.iter().map(|(name, _)| *name).collect();
    let sources: BTreeSet<&str> = pairs.iter().map(|(_, source)| source.as_str()).collect();
    names == sources && pairs.iter().any(|(name, source)| name != source)
}

/// Whether a call puts back what was there before: an update takes itself back so.
fn puts_back(arguments: &[RawArgument]) -> bool {
    arguments.iter().any(|argument| match &argument.mapping {
        Mapping::Path(path) => path.root == Root::Before,
        Mapping::Const(_) => false,
    })
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
pub(super) fn near<'k>(name: &str, mut known: Vec<&'k str>) -> Option<&'k str> {
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
