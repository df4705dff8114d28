//! What the pipeline would refuse of a plain HTTP call for its form alone, without a ledger, a caller or
//! an upstream: for `explain`, which must not say that a call would happen when `run` refuses it.
//!
//! The checks are `select`'s, `stage`'s and `carry`'s own, in their order; what depends on other calls (a
//! repeat, a key that is taken) or on a confirmation is not foreseen here.

use bytes::Bytes;
use http::{HeaderMap, Method};

use super::select::{
    choose_among, has_key_twin, is_allowed, is_ambiguous, is_decided_by_twins, merge_key,
    parameters, reads_method,
};
use crate::call::refusal::Refusal;
use crate::call::{Control, Head, Oddity};
use crate::contract::class::{Class, Mode};
use crate::contract::key::Key;
use crate::contract::operation::Operation;
use crate::contract::path::Scope;
use crate::http::body::{BodyDoc, RequestDoc};
use crate::http::encode;
use crate::policy::{Choice, Found, Group, Snapshot, Undeclared, choose};

/// The refusal that a call would get under a policy that is enforced; `None` if its form is sound.
/// Operations that only observe refuse nothing but a draft form that is not there.
pub fn refusal(
    snapshot: &Snapshot,
    head: &Head,
    control: Control,
    oddity: Option<Oddity>,
    bytes: &Bytes,
) -> Option<Refusal> {
    let found = snapshot.find_http(&head.method, head.path());
    let groups: Vec<&Group> = found.groups().to_vec();
    let operations = || groups.iter().flat_map(|group| &group.operations);
    let mode = operations().map(|served| served.operation.mode).max();
    let is_enforced = mode.unwrap_or_else(|| snapshot.undeclared_mode()) == Mode::Enforce;
    let odd = oddity.filter(|oddity| !is_allowed(oddity, &groups));
    if is_enforced && let Some(odd) = odd {
        return Some(odd.into_refusal());
    }
    let is_safe = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let is_undeclared_read = groups.is_empty()
        && is_safe
        && match snapshot.folds_onto_write(head.path()) {
            Some((class, _)) => class == Class::Read,
            None => !snapshot.undeclared_get_writes(),
        };
    if is_undeclared_read {
        let has_body = is_enforced && !bytes.is_empty();
        return has_body
            .then_some(Refusal::UndeclaredBody)
            .or_else(|| control.stage.then_some(Refusal::NoDraftForm));
    }
    let needs_body = groups.is_empty()
        || operations().any(|served| served.operation.class.is_write())
        || groups.iter().any(|group| group.reads_body);
    let body = if needs_body { BodyDoc::read(&head.headers, bytes) } else { Ok(BodyDoc::None) };
    let body = match body {
        Ok(body) => body,
        Err(refusal) if is_enforced => return Some(refusal),
        Err(_) => BodyDoc::Opaque,
    };
    let params = parameters(&groups, head.path());
    let doc = RequestDoc::new(&params, head.query(), &head.headers, body);
    let choice = match groups.as_slice() {
        [] => Choice::Undeclared { strictest: None },
        [group] => {
            let scope = Scope { request: doc.request(), response: None, key: None, before: None };
            choose(&Found::One(group), &scope)
        }
        several => choose_among(several, head, &doc),
    };
    let operation = match choice {
        Choice::Declared(served) => &served.operation,
        Choice::Undeclared { .. } => {
            let is_refused = is_enforced && snapshot.undeclared() == Undeclared::Refuse;
            return is_refused
                .then_some(Refusal::Undeclared)
                .or_else(|| control.stage.then_some(Refusal::NoDraftForm));
        }
    };
    let is_enforced = operation.mode == Mode::Enforce;
    if is_enforced && is_decided_by_twins(&groups, &doc) {
        return Some(Refusal::AmbiguousMember);
    }
    if is_enforced && doc.overrides_method() && !reads_method(operation) {
        return Some(Refusal::MethodOverride);
    }
    let is_staged = control.stage;
    let fault = if is_enforced && operation.class.is_write() {
        write_fault(operation, head, control, &doc)
    } else {
        None
    };
    let has_draft = operation.draft.is_some() && operation.class.is_write();
    fault.or_else(|| (is_staged && !has_draft).then_some(Refusal::NoDraftForm))
}

/// What is wrong with a write's key or its place.
fn write_fault(
    operation: &Operation,
    head: &Head,
    mut control: Control,
    doc: &RequestDoc,
) -> Option<Refusal> {
    let mut faults = Vec::new();
    match encode::carried_key(&operation.carrier, head, doc.body.value()) {
        Ok(carried) => merge_key(&mut control, carried, &mut faults),
        Err(refusal) => faults.push(refusal),
    }
    if is_ambiguous(operation, doc) || has_key_twin(operation, doc) {
        faults.push(Refusal::AmbiguousMember);
    }
    if let Some(refusal) = faults.into_iter().next() {
        return Some(refusal);
    }
    // A staged call is carried as its draft.
    if control.stage {
        return None;
    }
    let key = match control.key {
        Some(key) => key,
        // As long as an entry's id, which is what goes in where the caller gives no key.
        None => Key::from_text("00000000-0000-7000-8000-000000000000").ok()?,
    };
    let json = match &doc.body {
        BodyDoc::Json(json) => Some(json),
        BodyDoc::None | BodyDoc::Form(..) | BodyDoc::Opaque => None,
    };
    encode::carry(&operation.carrier, &key, head, &mut HeaderMap::new(), json).err()
}
