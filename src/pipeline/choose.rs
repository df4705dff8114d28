//! Which operation a call is, and as what it is served.
//!
//! `select` chooses for calls that are made, `foresee` for one that is only imagined: both ask here, so
//! that `explain` says what `run` does.

use std::sync::Arc;

use http::{HeaderMap, Method};

use super::Refused;
use super::back::Terms;
use super::live::{Live, UNDECLARED};
use super::places::{
    decided_by_readers, elsewhere, has_key_twin, is_in_two_places, may_write, readers,
    reads_method, twofold,
};
use crate::call::refusal::{Refusal, Twofold};
use crate::call::{Control, Head, Oddity, Transport, effective_mode};
use crate::contract::class::{Class, Mode};
use crate::contract::json::Value;
use crate::contract::key::{Key, Place};
use crate::contract::operation::{Operation, Target};
use crate::contract::path::Scope;
use crate::contract::report::Report;
use crate::http::body::{RequestDoc, has_case_twin};
use crate::http::encode;
use crate::metrics::OperationMetrics;
use crate::policy::{
    Choice, Elsewhere, Found, Group, Served, Snapshot, Undeclared, choose, choose_each,
    is_worse_elsewhere,
};

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

    /// The operation, if it is a declared one.
    pub(super) fn declared(&self) -> Option<&Operation> {
        (self.served.index != UNDECLARED).then_some(&self.served.operation)
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

impl<'h> Asked<'h> {
    /// The call with this head.
    pub(super) fn of(head: &'h Head) -> Self {
        Self {
            method: &head.method,
            path: head.path(),
            query: head.query(),
            headers: &head.headers,
        }
    }

    /// The class of what is declared for its method, writes, and is spelt as this one is, or nearly so. Only
    /// a GET and a HEAD are taken for a GET.
    pub(super) fn folds_onto_write(&self, snapshot: &Snapshot) -> Option<Class> {
        snapshot.folds_onto_write(self.method, self.path).map(|(class, _)| class)
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

    /// Whether its path is one of the operation's own.
    pub(super) fn is_spelt_as(&self, operation: &Operation) -> bool {
        match &operation.target {
            Target::Http { template, .. } => template.matches(self.path).is_some(),
            Target::Tool { .. } => false,
        }
    }

    /// The request as the rules of the operation read it that was chosen: its template's parameters are
    /// its own, and not those of another that its target may be.
    pub(super) fn as_read_by(
        &self,
        groups: &[&Group],
        operation: &Operation,
        doc: RequestDoc,
    ) -> RequestDoc {
        match groups {
            [] | [_] => doc,
            _ => {
                let params = parameters_of(operation, self.path);
                RequestDoc::new(&params, self.query, self.headers, doc.body)
            }
        }
    }

    /// Which operation it is, of those that its target may be. A body that is not read here, and of which
    /// gateways make parameters, may say something else than the query that a condition reads.
    pub(super) fn choose<'g>(&self, groups: &[&'g Group], doc: &RequestDoc) -> Choice<'g> {
        let choice = match groups {
            [] => return Choice::Undeclared { strictest: None },
            [group] => choose(&Found::One(group), &scope_of(doc)),
            groups => self.asking(groups, doc, choose_each),
        };
        let Choice::Declared(served) = &choice else { return choice };
        let is_worse = doc.has_unread_parameters()
            && self.asking(groups, doc, |asked| {
                is_worse_elsewhere(asked, &served.operation, |_, condition| {
                    if condition.reads("query") { Elsewhere::Unknown } else { Elsewhere::Nowhere }
                })
            });
        if is_worse {
            Choice::Undeclared { strictest: groups.iter().map(|group| group.strictest).max() }
        } else {
            choice
        }
    }

    /// Asks each group with the request as its own parameters read it.
    fn asking<'g, T>(
        &self,
        groups: &[&'g Group],
        doc: &RequestDoc,
        ask: impl FnOnce(&[(&'g Group, &Scope<'_>)]) -> T,
    ) -> T {
        if let [group] = groups {
            return ask(&[(*group, &scope_of(doc))]);
        }
        let own = |group: &&'g Group| {
            let params = parameters(std::slice::from_ref(group), self.path);
            RequestDoc::new(&params, self.query, self.headers, doc.body.clone())
        };
        let docs: Vec<RequestDoc> = groups.iter().map(own).collect();
        let scopes: Vec<Scope<'_>> = docs.iter().map(scope_of).collect();
        let asked: Vec<(&'g Group, &Scope<'_>)> = groups.iter().copied().zip(&scopes).collect();
        ask(&asked)
    }

    /// What is wrong with how the call was matched, if anything; `operation` is the declared one that it
    /// is. What decides between a read and a write may not be read in two ways, whatever it decided; what
    /// stands elsewhere than it is read may not be more to a reader who finds it there.
    pub(super) fn match_fault(
        &self,
        groups: &[&Group],
        operation: Option<&Operation>,
        doc: &RequestDoc,
    ) -> Option<Refusal> {
        let is_worse = || {
            let operation = operation?;
            let is_worse = self.asking(groups, doc, |asked| {
                is_worse_elsewhere(asked, operation, |other, condition| {
                    elsewhere(other, condition, doc)
                })
            });
            let is_in_two = || {
                let mut conditions = groups.iter().flat_map(|group| &group.operations);
                conditions.any(|served| is_in_two_places(&served.operation, doc))
            };
            is_worse.then(|| if is_in_two() { Twofold::TwoPlaces } else { Twofold::Elsewhere })
        };
        if let Some(twofold) = decided_by_readers(groups, doc).or_else(is_worse) {
            Some(Refusal::AmbiguousMember(twofold))
        } else if doc.overrides_method() && !operation.is_some_and(reads_method) {
            Some(Refusal::MethodOverride)
        } else {
            None
        }
    }
}

fn scope_of(doc: &RequestDoc) -> Scope<'_> {
    Scope { before: None, request: doc.request(), response: None, key: None }
}

/// The template's parameters of the operation, still encoded; none where the path is another's, that a
/// lenient upstream takes for its own.
fn parameters_of<'a>(operation: &'a Operation, path: &'a str) -> Vec<(&'a str, &'a str)> {
    match &operation.target {
        Target::Http { template, .. } => template.matches(path).unwrap_or_default(),
        Target::Tool { .. } => Vec::new(),
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

/// What is wrong with the key of a plain HTTP write, or with what its rules read. A key in the carrier's
/// place goes into `control`.
pub(super) fn write_fault(
    operation: &Operation,
    head: &Head,
    doc: &RequestDoc,
    control: &mut Control,
) -> Option<Refusal> {
    let carried = encode::carried_key(&operation.carrier, head, doc.body.value());
    let key_twin = || has_key_twin(operation, doc).then_some(Twofold::Twice);
    let twofold = || twofold(operation, doc).or_else(key_twin).map(Refusal::AmbiguousMember);
    keyed(control, carried).or_else(twofold)
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
    keyed(control, carried)
        .or_else(|| is_twofold.then_some(Refusal::AmbiguousMember(Twofold::Twice)))
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
    first.map(|served| parameters_of(&served.operation, path)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::http::body::BodyDoc;
    use crate::policy::compile;

    /// Query and body as one reader takes them: each as it is, or merged, the one or the other first.
    fn merged<'v>(
        own: &[(&'v str, &'v str)],
        other: &[(&'v str, &'v str)],
        reader: u8,
    ) -> Vec<(&'v str, &'v str)> {
        let (first, second) = match reader {
            0 => return own.to_vec(),
            1 => (own, other),
            _ => (other, own),
        };
        let mut all = first.to_vec();
        for (name, value) in second {
            if !all.iter().any(|(known, _)| known == name) {
                all.push((name, value));
            }
        }
        all
    }

    fn members() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
        let value = prop_oneof![Just("0"), Just("1")];
        let pairs = proptest::collection::btree_map(prop_oneof![Just("a"), Just("b")], value, 0..3);
        pairs.prop_map(|pairs| pairs.into_iter().collect())
    }

    proptest! {
        #[test]
        fn contract_2_no_call_is_served_as_milder_than_a_reader_who_merges_would_run_it(
            variants in proptest::collection::btree_map(
                proptest::collection::btree_map(
                    (prop_oneof![Just("query"), Just("body")], prop_oneof![Just("a"), Just("b")]),
                    prop_oneof![
                        Just("equals: \"1\""),
                        Just("exists: true"),
                        Just("absent: true"),
                        Just("one_of: [\"0\", \"1\"]"),
                    ],
                    0..3,
                ),
                0_usize..3,
                1..4,
            ),
            query in members(),
            body in members(),
        ) {
            const CLASSES: [&str; 3] = ["read", "compensable", "irreversible"];
            let mut text = String::from(
                "version: 1\noperations:\n  way_back: { match: { http: \"DELETE /zz\" } }\n",
            );
            for (position, (conditions, class)) in variants.iter().enumerate() {
                let conditions: Vec<String> = conditions
                    .iter()
                    .map(|((section, name), test)| {
                        format!("request.{section}.{name}: {{ {test} }}")
                    })
                    .collect();
                let conditions = conditions.join(", ");
                let conditions = match conditions.as_str() {
                    "" => String::new(),
                    some => format!(", where: {{ {some} }}"),
                };
                let back = if *class == 1 { ", compensate: { operation: way_back }" } else { "" };
                writeln!(
                    text,
                    "  v{position}: {{ match: {{ http: \"POST /x\"{conditions} }}, effect: {{ \
                     class: {}{back} }} }}",
                    CLASSES[*class],
                )
                .unwrap();
            }
            let compiled = compile(vec![("a.yaml".to_owned(), text.clone())]);
            let human = compiled.human();
            let snapshot = compiled.snapshot.unwrap_or_else(|| panic!("{human}"));
            let mut headers = HeaderMap::new();
            headers.insert("content-type", "application/json".parse().unwrap());
            let found = snapshot.find_http(&Method::POST, "/x");
            let groups = found.groups();
            let judged = |query: &[(&str, &str)], body: &[(&str, &str)]| {
                let pairs = |(name, value): &(&str, &str)| format!("{name}={value}");
                let query: Vec<String> = query.iter().map(pairs).collect();
                let query = query.join("&");
                let members = |(name, value): &(&str, &str)| format!("\"{name}\":\"{value}\"");
                let body: Vec<String> = body.iter().map(members).collect();
                let body = Bytes::from(format!("{{{}}}", body.join(",")));
                let body = BodyDoc::read(&headers, &body).unwrap();
                let asked = Asked {
                    method: &Method::POST,
                    path: "/x",
                    query: Some(&query),
                    headers: &headers,
                };
                let doc = RequestDoc::new(&[], Some(&query), &headers, body);
                match asked.choose(groups, &doc) {
                    Choice::Declared(served) => {
                        let fault = asked.match_fault(groups, Some(&served.operation), &doc);
                        (served.operation.class, fault.is_some())
                    }
                    Choice::Undeclared { .. } => (Class::Irreversible, false),
                }
            };
            let (class, is_refused) = judged(&query, &body);
            let mut worst = class;
            for reader in 0..9 {
                let (of_query, of_body) = (reader / 3, reader % 3);
                let (read, _) =
                    judged(&merged(&query, &body, of_query), &merged(&body, &query, of_body));
                worst = worst.max(read);
            }
            prop_assert!(is_refused || class >= worst, "{} {:?} {:?}: {}", text, query, body, worst);
            // Without a body, or a query, that another could take for more, nothing is refused.
            let is_sole = query.is_empty() && body.is_empty();
            prop_assert!(!(is_refused && is_sole));
        }
    }
}
