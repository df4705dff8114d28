//! What would become of one call, without a ledger, a caller or an upstream: for `explain`, which must
//! not say that a call would happen when `run` refuses it, nor that it is what `run` takes for worse.
//!
//! The choice of the operation and what the ways back leave of its class are those of calls that are made
//! (`choose`, `back`); the checks of its form are `select`'s, `stage`'s and `carry`'s own, in their order.
//! What depends on other calls (a repeat, a key that is taken), on the state before the call or on a
//! confirmation is not foreseen here.

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};

use super::back::{Terms, ways_back};
use super::choose::{Asked, is_allowed, merge_key, parameters, read_otherwise};
use super::places::{has_key_twin, is_ambiguous, is_decided_by_readers, reads_method};
use crate::call::refusal::Refusal;
use crate::call::{Control, Head};
use crate::contract::class::{Class, Mode};
use crate::contract::json::Value;
use crate::contract::key::{Key, Place};
use crate::contract::operation::Operation;
use crate::contract::path::{Request, Scope};
use crate::contract::prefill::WaysBack;
use crate::contract::undo::resolve_draft;
use crate::http::body::{BodyDoc, RequestDoc};
use crate::http::decode::Decoded;
use crate::http::encode;
use crate::http::signature::{Change, broken_by};
use crate::policy::{self, Choice, Explained, Found, Imagined, Snapshot, choose, explain};

/// Explains a tool's call.
pub fn tool(snapshot: &Snapshot, name: &str, arguments: Value<'_>) -> Explained {
    let found = snapshot.find_tool(name).map_or(Found::None, Found::One);
    let request = Request::Arguments(arguments);
    let scope = Scope { before: None, request, response: None, key: None };
    let choice = choose(&found, &scope);
    let undeclared = Undeclared { class: Class::Irreversible, is_folded: false };
    told(snapshot, &found, choice, request, undeclared, Stage::Effect)
}

/// Explains a plain HTTP call, and the refusal that it would get under a policy that is enforced.
/// Operations that only observe refuse nothing but a draft form that is not there.
///
/// `method`, `uri` and `headers` are the call as it was given, `decoded` is what was read of it.
pub fn http(
    snapshot: &Snapshot,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    decoded: Result<Decoded, Refusal>,
    bytes: &Bytes,
) -> Explained {
    let headers = decoded.as_ref().map_or(headers, |decoded| &decoded.head.headers);
    let (path, query) = (uri.path(), uri.query());
    let asked = Asked { method, path, query, headers };
    let found = snapshot.find_http(method, path);
    let groups = found.groups();
    let operations = || groups.iter().flat_map(|group| &group.operations);
    let undeclared = asked.undeclared_class(snapshot);
    let needs_body = match groups {
        [] => undeclared != Class::Read,
        groups => {
            operations().any(|served| served.operation.class.is_write())
                || groups.iter().any(|group| group.reads_body)
        }
    };
    let most = operations().filter_map(|served| served.operation.max_body_bytes).max();
    let body = match most {
        _ if !needs_body => Ok(BodyDoc::None),
        Some(most) if bytes.len() > most => Err(Refusal::BodyTooLarge(most)),
        Some(_) | None => BodyDoc::read(headers, bytes),
    };
    let (body, unread) = match body {
        Ok(body) => (body, None),
        Err(refusal) => (BodyDoc::Opaque, Some(refusal)),
    };
    let doc = RequestDoc::new(&parameters(groups, path), query, headers, body);
    let choice = asked.choose(groups, &doc);
    let stage = match &decoded {
        Ok(decoded) if decoded.control.stage => Stage::Draft,
        Ok(_) | Err(_) => Stage::Effect,
    };
    let refusal = match &decoded {
        Err(refusal) => Some(refusal.clone()),
        Ok(decoded) => {
            let form = Form { snapshot, found: &found, choice: &choice, undeclared, doc: &doc };
            form.refusal(decoded, unread, bytes)
        }
    };
    let is_folded = asked.folds_onto_write(snapshot).is_some();
    let undeclared = Undeclared { class: undeclared, is_folded };
    let mut told = told(snapshot, &found, choice, doc.request(), undeclared, stage);
    if let Some(refusal) = refusal {
        let why =
            format!("{} {}: {}", refusal.status(), refusal.envelope_code(), refusal.message());
        told.lines.insert(0, ("refused", why));
    }
    told
}

/// Which form is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Draft,
    Effect,
}

/// What a call is where nothing is declared for it.
#[derive(Clone, Copy)]
struct Undeclared {
    class: Class,
    /// It is spelt nearly like a declared GET that writes.
    is_folded: bool,
}

fn told(
    snapshot: &Snapshot,
    found: &Found<'_>,
    choice: Choice<'_>,
    request: Request<'_>,
    undeclared: Undeclared,
    stage: Stage,
) -> Explained {
    let (terms, back) = match (&choice, stage) {
        (Choice::Declared(served), Stage::Effect) => {
            let back = ways_back(snapshot, &served.operation, request);
            (Terms::declared(&served.operation).with(&back, snapshot), back)
        }
        // The draft form is under its own operation's gates.
        (Choice::Declared(served), Stage::Draft) => {
            let draft = served.operation.draft.as_ref();
            let draft = draft.and_then(|draft| snapshot.operation(&draft.reference.operation));
            let operation = &draft.unwrap_or(served).operation;
            (Terms::declared(operation), WaysBack::default())
        }
        (Choice::Undeclared { strictest }, _) => {
            let class = if strictest.is_some() { Class::Irreversible } else { undeclared.class };
            let level = snapshot.undeclared_level();
            let level = strictest.map_or(level, |strictest| level.max(strictest));
            (Terms { class, level }, WaysBack::default())
        }
    };
    let Terms { class, level } = terms;
    let is_folded = undeclared.is_folded && matches!(found, Found::None);
    let lost = back.lost();
    explain(snapshot, &Imagined { found, choice, request, is_folded, class, level, lost })
}

/// A plain HTTP call that was matched.
struct Form<'a> {
    snapshot: &'a Snapshot,
    found: &'a Found<'a>,
    choice: &'a Choice<'a>,
    /// What it is where nothing is declared for it.
    undeclared: Class,
    doc: &'a RequestDoc,
}

impl Form<'_> {
    /// The refusal for its form; `None` if that is sound. `unread` says why its body is not read.
    fn refusal(
        &self,
        decoded: &Decoded,
        unread: Option<Refusal>,
        bytes: &Bytes,
    ) -> Option<Refusal> {
        let Decoded { head, control, oddity, .. } = decoded;
        let groups = self.found.groups();
        let operations = || groups.iter().flat_map(|group| &group.operations);
        let mode = operations().map(|served| served.operation.mode).max();
        let is_enforced = mode.unwrap_or_else(|| self.snapshot.undeclared_mode()) == Mode::Enforce;
        let odd = match oddity {
            Some(oddity) if !is_allowed(oddity, groups) => Some(oddity.clone().into_refusal()),
            Some(_) | None => read_otherwise(self.snapshot, &head.method, head.path()),
        };
        if is_enforced && odd.is_some() {
            return odd;
        }
        let no_draft = || control.stage.then_some(Refusal::NoDraftForm);
        if groups.is_empty() && self.undeclared == Class::Read {
            let has_body = is_enforced && !bytes.is_empty();
            return has_body.then_some(Refusal::UndeclaredBody).or_else(no_draft);
        }
        let is_too_large = matches!(unread, Some(Refusal::BodyTooLarge(_)));
        if (is_enforced || is_too_large) && unread.is_some() {
            return unread;
        }
        let operation = match self.choice {
            Choice::Declared(served) => &served.operation,
            Choice::Undeclared { .. } => {
                let is_refused =
                    is_enforced && self.snapshot.undeclared() == policy::Undeclared::Refuse;
                return is_refused.then_some(Refusal::Undeclared).or_else(no_draft);
            }
        };
        let is_enforced = operation.mode == Mode::Enforce;
        if is_enforced && is_decided_by_readers(groups, self.doc) {
            return Some(Refusal::AmbiguousMember);
        }
        if is_enforced && self.doc.overrides_method() && !reads_method(operation) {
            return Some(Refusal::MethodOverride);
        }
        let fault = if is_enforced && operation.class.is_write() {
            write_fault(operation, head, control.clone(), self.doc)
        } else {
            None
        };
        fault.or_else(|| match &operation.draft {
            _ if !control.stage => None,
            Some(draft) if operation.class.is_write() => {
                let request = self.doc.request();
                let scope = Scope { before: None, request, response: None, key: None };
                let missing = resolve_draft(draft, &scope).err()?;
                Some(Refusal::DraftArgumentMissing(missing.to_string()))
            }
            Some(_) | None => Some(Refusal::NoDraftForm),
        })
    }
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
    let carried = encode::carry(&operation.carrier, &key, head, &mut HeaderMap::new(), json);
    carried.err().or_else(|| {
        let change = match &operation.carrier.place {
            Place::Header(name) => Change::Header(name),
            Place::Query(_) => Change::Query,
            Place::BodyPointer { .. } => Change::Body,
            Place::Argument(_) | Place::Unsupported => return None,
        };
        broken_by(&head.headers, head.query(), change).map(Refusal::BreaksSignature)
    })
}
