//! Which operation a call is, and as what it is served.
//!
//! `select` chooses for calls that are made, `foresee` for one that is only imagined: both ask here, so
//! that `explain` says what `run` does.

use std::sync::Arc;

use http::{HeaderMap, Method};

use super::Refused;
use super::back::Terms;
use super::live::Live;
use crate::call::refusal::Refusal;
use crate::call::{Control, Oddity, Transport, effective_mode};
use crate::contract::class::{Class, Level, Mode};
use crate::contract::key::Key;
use crate::contract::operation::Target;
use crate::contract::path::Scope;
use crate::contract::report::Report;
use crate::http::body::RequestDoc;
use crate::metrics::OperationMetrics;
use crate::policy::{Choice, Found, Group, Served, Snapshot, Undeclared, choose};

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
    /// What was chosen, as it is served; `class` is that of an undeclared call.
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
    /// Whether HTTP calls its method safe.
    pub(super) fn is_safe(&self) -> bool {
        matches!(*self.method, Method::GET | Method::HEAD | Method::OPTIONS)
    }

    /// The class of the declared GET that writes, and is spelt as this one is, or nearly so.
    pub(super) fn folds_onto_write(&self, snapshot: &Snapshot) -> Option<Class> {
        let folded = self.is_safe().then(|| snapshot.folds_onto_write(self.path)).flatten();
        folded.map(|(class, _)| class)
    }

    /// What the call is where nothing is declared for its target: a safe method's is a read, unless the
    /// policy says otherwise, or the path folds onto a declared write (contract section 1).
    pub(super) fn undeclared_class(&self, snapshot: &Snapshot) -> Class {
        if !self.is_safe() {
            return Class::Irreversible;
        }
        let folded = self.folds_onto_write(snapshot);
        folded.unwrap_or_else(|| {
            if snapshot.undeclared_get_writes() { Class::Irreversible } else { Class::Read }
        })
    }

    /// Which operation it is, of those that its target may be.
    pub(super) fn choose<'g>(&self, groups: &[&'g Group], doc: &RequestDoc) -> Choice<'g> {
        match groups {
            [] => Choice::Undeclared { strictest: None },
            [group] => {
                let scope =
                    Scope { before: None, request: doc.request(), response: None, key: None };
                choose(&Found::One(group), &scope)
            }
            groups => self.choose_among(groups, doc),
        }
    }

    /// Several templates match and none is more specific: each is asked with its own parameters, and
    /// the most severe class that answers is taken (contract section 2, Variants).
    fn choose_among<'g>(&self, groups: &[&'g Group], doc: &RequestDoc) -> Choice<'g> {
        let mut declared: Option<&'g Arc<Served>> = None;
        let mut strictest: Option<Level> = None;
        for group in groups {
            let params = parameters(std::slice::from_ref(group), self.path);
            let own = RequestDoc::new(&params, self.query, self.headers, doc.body.clone());
            let scope = Scope { before: None, request: own.request(), response: None, key: None };
            match choose(&Found::One(group), &scope) {
                Choice::Declared(served) => {
                    let severity =
                        |served: &Served| (served.operation.class, served.operation.confirm);
                    if declared.is_none_or(|known| severity(known) < severity(served)) {
                        declared = Some(served);
                    }
                }
                Choice::Undeclared { strictest: level } => strictest = strictest.max(level),
            }
        }
        match declared {
            Some(served) => Choice::Declared(served),
            None => Choice::Undeclared { strictest },
        }
    }
}

/// A refusal before a call was matched to one operation, with what is known: its operation where the
/// target has only one.
pub(super) fn known(live: &Live, groups: &[&Group], refusal: Refusal) -> Box<Refused> {
    let mut operations = groups.iter().flat_map(|group| &group.operations);
    let (Some(served), None) = (operations.next(), operations.next()) else {
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
pub(super) fn merge_key(control: &mut Control, carried: Option<Key>, faults: &mut Vec<Refusal>) {
    match (&control.key, carried) {
        (Some(given), Some(carried)) if *given != carried => faults.push(Refusal::KeyConflict),
        (None, Some(carried)) => control.key = Some(carried),
        (_, _) => {}
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
