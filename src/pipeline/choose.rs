//! Which operation a call is, and as what it is served.
//!
//! `select` chooses for calls that are made, `foresee` for one that is only imagined: both ask here, so
//! that `explain` says what `run` does.

use std::sync::Arc;

use http::{HeaderMap, Method};

use super::Refused;
use super::back::Terms;
use super::live::Live;
use super::places::{
    has_key_twin, is_ambiguous, is_decided_by_readers, may_write, readers, reads_method,
};
use crate::call::refusal::Refusal;
use crate::call::{Control, Head, Oddity, Transport, effective_mode};
use crate::contract::class::{Class, Mode};
use crate::contract::json::Value;
use crate::contract::key::{Key, Place};
use crate::contract::operation::{Operation, Target, is_get};
use crate::contract::path::Scope;
use crate::contract::report::Report;
use crate::http::body::{RequestDoc, has_case_twin};
use crate::http::encode;
use crate::metrics::OperationMetrics;
use crate::policy::{Choice, Found, Group, Served, Snapshot, Undeclared, choose, choose_each};

/// What a call was matched to.
pub(super) struct Chosen {
    pub(super) served: Arc<Served>,
    pub(super) metrics: Arc<OperationMetrics>,
    pub(super) terms: Terms,
    pub(super) mode: Mode,
    /// Why it would be refused, were the rules enforced.
    pub(super) would: Option<&'static str>,
}

impl Chosen {
    /// What was chosen, as it is served; `class` is that of a call for whose target nothing is declared.
    ///
    /// # Errors
    ///
    /// [`Refusal::Undeclared`] where such calls are refused.
    pub(super) fn of(
        choice: &Choice<'_>,
        transport: Transport,
        class: Class,
        live: &Live,
        sidecar: Mode,
    ) -> Result<Self, Box<Refused>> {
        match choice {
            Choice::Declared(served) => {
                let operation = &served.operation;
                let metrics = live.metrics(served).ok_or(Refusal::PolicyChanged)?;
                Ok(Self {
                    served: Arc::clone(served),
                    metrics,
                    terms: Terms::declared(operation),
                    mode: effective_mode(sidecar, operation.mode),
                    would: None,
                })
            }
            Choice::Undeclared { strictest } => {
                let class = class_of_unmatched(choice, class);
                let (served, metrics) =
                    live.undeclared(transport, class).ok_or(Refusal::PolicyChanged)?;
                let mode = effective_mode(sidecar, live.undeclared_mode());
                let level = served.operation.confirm;
                let level = strictest.map_or(level, |strictest| level.max(strictest));
                let is_refused =
                    class.is_write() && live.snapshot.undeclared() == Undeclared::Refuse;
                let would = is_refused.then(|| Refusal::Undeclared.code());
                let terms = Terms { class, level };
                let chosen = Self { served, metrics, terms, mode, would };
                if is_refused && mode == Mode::Enforce {
                    return Err(chosen.refused(Refusal::Undeclared));
                }
                Ok(chosen)
            }
        }
    }

    /// Serves it as what nothing takes back, whatever was declared.
    pub(super) fn serve_irreversible(&mut self, live: &Live) {
        self.terms = self.terms.irreversible(&live.snapshot);
    }

    /// Refuses the call.
    pub(super) fn refused(&self, refusal: Refusal) -> Box<Refused> {
        let class = self.terms.class;
        let mut report = Report::new(class, self.served.operation.id.clone());
        report.refused = Some(refusal.code().into());
        Box::new(Refused {
            refusal,
            report: Some(report),
            metrics: Some(Arc::clone(&self.metrics)),
            class,
            question: None,
            caller: None,
        })
    }
}

/// A plain HTTP call, as far as it is matched.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
    pub(super) headers: &'a HeaderMap,
}

impl Asked<'_> {
    /// The class of the declared GET that writes, and is spelt as this one is, or nearly so. Only a GET
    /// and a HEAD are taken for it.
    pub(super) fn folds_onto_write(&self, snapshot: &Snapshot) -> Option<Class> {
        let folded = is_get(self.method).then(|| snapshot.folds_onto_write(self.path)).flatten();
        folded.map(|(class, _)| class)
    }

    /// What the call is where nothing is declared for its target.
    pub(super) fn undeclared_class(&self, snapshot: &Snapshot) -> Class {
        snapshot.undeclared_class(self.method, self.path)
    }

    /// Whether its body decides what it is, or is a part of what is recorded.
    pub(super) fn needs_body(&self, snapshot: &Snapshot, groups: &[&Group]) -> bool {
        match groups {
            [] => self.undeclared_class(snapshot).is_write(),
            groups => may_write(groups) || groups.iter().any(|group| group.reads_body),
        }
    }

    /// Which operation it is, of those that its target may be.
    pub(super) fn choose<'g>(&self, groups: &[&'g Group], doc: &RequestDoc) -> Choice<'g> {
        let scope = |doc| Scope { before: None, request: doc, response: None, key: None };
        match groups {
            [] => Choice::Undeclared { strictest: None },
            [group] => choose(&Found::One(group), &scope(doc.request())),
            groups => {
                let own = |group: &&'g Group| {
                    let params = parameters(std::slice::from_ref(group), self.path);
                    RequestDoc::new(&params, self.query, self.headers, doc.body.clone())
                };
                let docs: Vec<RequestDoc> = groups.iter().map(own).collect();
                let scopes: Vec<Scope<'_>> = docs.iter().map(|doc| scope(doc.request())).collect();
                let asked: Vec<(&'g Group, &Scope<'_>)> =
                    groups.iter().copied().zip(&scopes).collect();
                choose_each(&asked)
            }
        }
    }
}

/// The class of a call that no operation takes. `unknown` is that of one for whose target nothing is
/// declared; at a target that is declared nothing gets a milder one than irreversible (contract section
/// 2, Variants).
pub(super) fn class_of_unmatched(choice: &Choice<'_>, unknown: Class) -> Class {
    match choice {
        Choice::Undeclared { strictest: Some(_) } => Class::Irreversible,
        Choice::Declared(_) | Choice::Undeclared { strictest: None } => unknown,
    }
}

/// What is wrong with how a plain HTTP call was matched, if anything; `operation` is the declared one
/// that it is. What decides between a read and a write may not be read in two ways, whatever it decided.
pub(super) fn match_fault(
    groups: &[&Group],
    operation: Option<&Operation>,
    doc: &RequestDoc,
) -> Option<Refusal> {
    if is_decided_by_readers(groups, doc) {
        Some(Refusal::AmbiguousMember)
    } else if doc.overrides_method() && !operation.is_some_and(reads_method) {
        Some(Refusal::MethodOverride)
    } else {
        None
    }
}

/// What is wrong with the key of a plain HTTP write, or with what its rules read. A key in the carrier's
/// place goes into `control`.
pub(super) fn write_fault(
    operation: &Operation,
    head: &Head,
    doc: &RequestDoc,
    control: &mut Control,
) -> Option<Refusal> {
    let carried = encode::carried_key(&operation.carrier, head, doc.body.value());
    let is_twofold = is_ambiguous(operation, doc) || has_key_twin(operation, doc);
    keyed(control, carried).or_else(|| is_twofold.then_some(Refusal::AmbiguousMember))
}

/// As [`write_fault`], of a tool's call.
pub(super) fn tool_fault(
    operation: &Operation,
    arguments: Value<'_>,
    control: &mut Control,
) -> Option<Refusal> {
    let place = match &operation.carrier.place {
        Place::Argument(name) => Some(name.as_str()),
        Place::BodyPointer { .. } | Place::Header(_) | Place::Query(_) | Place::Unsupported => None,
    };
    let carried = place.and_then(|name| arguments.get(name)).map_or(Ok(None), encode::key_value);
    let is_twofold = readers(operation).any(|(_, names)| has_case_twin(arguments, &names))
        || place.is_some_and(|name| arguments.has_twin(name));
    keyed(control, carried).or_else(|| is_twofold.then_some(Refusal::AmbiguousMember))
}

/// The operation of a call that is refused before it is matched: the only one that its target may be.
pub(super) fn sole<'g>(groups: &[&'g Group]) -> Option<&'g Arc<Served>> {
    let mut operations = groups.iter().flat_map(|group| &group.operations);
    match (operations.next(), operations.next()) {
        (Some(served), None) => Some(served),
        (_, _) => None,
    }
}

/// A refusal before a call was matched to one operation, with what is known ([`sole`]).
pub(super) fn known(live: &Live, groups: &[&Group], refusal: Refusal) -> Box<Refused> {
    let Some(served) = sole(groups) else {
        return refusal.into();
    };
    let operation = &served.operation;
    let mut report = Report::new(operation.class, operation.id.clone());
    report.refused = Some(refusal.code().into());
    Box::new(Refused {
        refusal,
        report: Some(report),
        metrics: live.metrics(served),
        class: operation.class,
        question: None,
        caller: None,
    })
}

/// The caller's key, from wherever it came; two that differ are a conflict.
fn keyed(control: &mut Control, carried: Result<Option<Key>, Refusal>) -> Option<Refusal> {
    match (&control.key, carried) {
        (_, Err(refusal)) => Some(refusal),
        (Some(given), Ok(Some(carried))) if *given != carried => Some(Refusal::KeyConflict),
        (None, Ok(carried)) => {
            control.key = carried;
            None
        }
        (Some(_), Ok(_)) => None,
    }
}

/// The refusal of a path that is one operation's with an escape, and another's to a reader who takes it
/// off first.
pub(super) fn read_otherwise(snapshot: &Snapshot, method: &Method, path: &str) -> Option<Refusal> {
    let is_ambiguous = snapshot.is_ambiguous(method, path);
    is_ambiguous.then(|| Refusal::path("an escape, without which it is another operation's"))
}

/// Whether every operation that the path may be allows what is odd about it.
pub(super) fn is_allowed(oddity: &Oddity, groups: &[&Group]) -> bool {
    let mut operations = groups.iter().flat_map(|group| &group.operations).peekable();
    operations.peek().is_some()
        && operations.all(|served| match oddity {
            Oddity::EncodedSlash => served.operation.allow.encoded_slash,
            Oddity::EmptySegment => served.operation.allow.empty_segments,
            Oddity::Other(_) => false,
        })
}

/// The template's parameters of the first group, still encoded.
pub(super) fn parameters<'a>(groups: &[&'a Group], path: &'a str) -> Vec<(&'a str, &'a str)> {
    let first = groups.first().and_then(|group| group.operations.first());
    match first.map(|served| &served.operation.target) {
        Some(Target::Http { template, .. }) => template.matches(path).unwrap_or_default(),
        Some(Target::Tool { .. }) | None => Vec::new(),
    }
}
