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
use super::choose::{
    Asked, class_of_unmatched, is_allowed, parameters, read_otherwise, sole, tool_fault,
    write_fault,
};
use super::places::{Read, is_decided_by_twins};
use crate::call::refusal::{Refusal, Twofold};
use crate::call::{Control, Head};
use crate::contract::class::{Class, Mode};
use crate::contract::json::Value;
use crate::contract::key::{Key, Place};
use crate::contract::operation::{Operation, is_safe};
use crate::contract::path::{Request, Scope};
use crate::contract::prefill::WaysBack;
use crate::contract::undo::resolve_draft;
use crate::http::body::{BodyDoc, RequestDoc, has_case_twin};
use crate::http::decode::Decoded;
use crate::http::encode;
use crate::http::signature::{Change, broken_by};
use crate::policy::{
    self, Choice, Explained, Found, Imagined, Snapshot, choose, explain, explain_unmatched,
};

/// Explains a tool's call, and the refusal that it would get under a policy that is enforced.
pub fn tool(snapshot: &Snapshot, name: &str, arguments: Value<'_>) -> Explained {
    let found = snapshot.find_tool(name).map_or(Found::None, Found::One);
    let request = Request::Arguments(arguments);
    let scope = Scope { before: None, request, response: None, key: None };
    let choice = choose(&found, &scope);
    let is_twin = |(_, names): &Read| has_case_twin(arguments, names);
    let refusal = match &choice {
        _ if mode_of(snapshot, &choice) == Mode::Observe => None,
        Choice::Undeclared { .. } if snapshot.undeclared() == policy::Undeclared::Refuse => {
            Some(Refusal::Undeclared)
        }
        _ if is_decided_by_twins(found.groups(), is_twin) => {
            Some(Refusal::AmbiguousMember(Twofold::Twice))
        }
        Choice::Declared(served) if served.operation.class.is_write() => {
            tool_fault(&served.operation, arguments, &mut Control::default())
        }
        Choice::Declared(_) | Choice::Undeclared { .. } => None,
    };
    let undeclared = Undeclared { class: Class::Irreversible, is_folded: false };
    let stage = if refusal.is_some() { Stage::Refused } else { Stage::Effect };
    refused(told(snapshot, &found, choice, request, undeclared, stage), refusal)
}

/// Explains a plain HTTP call, and the refusal that it would get under a policy that is enforced.
/// Operations that only observe refuse nothing but a draft form that is not there.
///
/// `method` and `uri` are the call as it was given, `decoded` is what was read of it.
pub fn http(
    snapshot: &Snapshot,
    method: &Method,
    uri: &Uri,
    decoded: Result<Decoded, Refusal>,
    bytes: &Bytes,
) -> Explained {
    let Decoded { head, control, oddity, .. } = match decoded {
        Ok(decoded) => decoded,
        // Nobody asks what a call is that is not read.
        Err(refusal) => return refused(explain_unmatched(None), Some(refusal)),
    };
    let (path, query) = (uri.path(), uri.query());
    let asked = Asked { method, path, query, headers: &head.headers };
    let found = snapshot.find_http(method, path);
    let groups = found.groups();
    let operations = || groups.iter().flat_map(|group| &group.operations);
    let mode = operations().map(|served| served.operation.mode).max();
    let is_enforced = mode.unwrap_or_else(|| snapshot.undeclared_mode()) == Mode::Enforce;
    let unmatched = |refusal| refused(explain_unmatched(sole(groups)), Some(refusal));
    let odd = match oddity {
        Some(oddity) if !is_allowed(&oddity, groups) => Some(oddity.into_refusal()),
        Some(_) | None => read_otherwise(snapshot, method, path),
    };
    if let Some(refusal) = odd.filter(|_| is_enforced) {
        return unmatched(refusal);
    }
    let most = operations().filter_map(|served| served.operation.max_body_bytes).max();
    let body = match most {
        _ if !asked.needs_body(snapshot, groups) => BodyDoc::None,
        Some(most) if bytes.len() > most => return unmatched(Refusal::BodyTooLarge(most)),
        Some(_) | None => match BodyDoc::read(&head.headers, bytes) {
            Ok(body) => body,
            Err(refusal) if is_enforced => return unmatched(refusal),
            Err(_) => BodyDoc::Opaque,
        },
    };
    let doc = RequestDoc::new(&parameters(groups, path), query, &head.headers, body);
    let choice = asked.choose(groups, &doc);
    let doc = match &choice {
        Choice::Declared(served) => asked.as_read_by(groups, &served.operation, doc),
        Choice::Undeclared { .. } => doc,
    };
    let undeclared = Undeclared {
        class: asked.undeclared_class(snapshot),
        is_folded: match &choice {
            Choice::Declared(served) => !asked.is_spelt_as(&served.operation),
            Choice::Undeclared { .. } => {
                groups.is_empty() && is_safe(method) && asked.folds_onto_write(snapshot).is_some()
            }
        },
    };
    let form = Form {
        snapshot,
        asked: &asked,
        found: &found,
        choice: &choice,
        class: match &choice {
            Choice::Declared(served) => served.operation.class,
            Choice::Undeclared { .. } => class_of_unmatched(&choice, undeclared.class),
        },
        doc: &doc,
        head: &head,
        control: &control,
        is_enforced,
        has_body: !bytes.is_empty(),
    };
    let (refusal, stage) = match form.refusal() {
        Some((refusal, Stage::Effect)) => (Some(refusal), Stage::Effect),
        Some((refusal, Stage::Draft | Stage::Refused)) => (Some(refusal), Stage::Refused),
        None if control.stage => (None, Stage::Draft),
        None => (None, Stage::Effect),
    };
    refused(told(snapshot, &found, choice, doc.request(), undeclared, stage), refusal)
}

/// Says first of all that it would be refused, if it would.
fn refused(mut told: Explained, refusal: Option<Refusal>) -> Explained {
    if let Some(refusal) = refusal {
        let why =
            format!("{} {}: {}", refusal.status(), refusal.envelope_code(), refusal.message());
        told.lines.insert(0, ("refused", why));
    }
    told
}

fn mode_of(snapshot: &Snapshot, choice: &Choice<'_>) -> Mode {
    match choice {
        Choice::Declared(served) => served.operation.mode,
        Choice::Undeclared { .. } => snapshot.undeclared_mode(),
    }
}

/// As what a call is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its draft form, which it asks for.
    Draft,
    /// Itself, as what its ways back leave of its class.
    Effect,
    /// Itself, refused before its ways back are asked about.
    Refused,
}

/// What a call is where nothing is declared for it.
#[derive(Clone, Copy)]
struct Undeclared {
    class: Class,
    /// Its path is not that of what it may be, but spelt nearly so.
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
        (Choice::Declared(served), Stage::Refused) => {
            (Terms::declared(&served.operation), WaysBack::default())
        }
        // The draft form is under its own operation's gates.
        (Choice::Declared(served), Stage::Draft) => {
            let draft = served.operation.draft.as_ref();
            let draft = draft.and_then(|draft| snapshot.operation(&draft.reference.operation));
            let operation = &draft.unwrap_or(served).operation;
            (Terms::declared(operation), WaysBack::default())
        }
        (Choice::Undeclared { strictest }, _) => {
            let class = class_of_unmatched(&choice, undeclared.class);
            let level = snapshot.undeclared_level();
            let level = strictest.map_or(level, |strictest| level.max(strictest));
            (Terms { class, level }, WaysBack::default())
        }
    };
    let Terms { class, level } = terms;
    let is_folded = undeclared.is_folded;
    let lost = back.lost();
    explain(snapshot, &Imagined { found, choice, request, is_folded, class, level, lost })
}

/// A plain HTTP call that was matched.
struct Form<'a> {
    snapshot: &'a Snapshot,
    asked: &'a Asked<'a>,
    found: &'a Found<'a>,
    choice: &'a Choice<'a>,
    class: Class,
    doc: &'a RequestDoc,
    head: &'a Head,
    control: &'a Control,
    /// The rules stop some call of its target.
    is_enforced: bool,
    has_body: bool,
}

impl Form<'_> {
    /// The refusal for its form, and as what it is refused; `None` if that is sound.
    fn refusal(&self) -> Option<(Refusal, Stage)> {
        let groups = self.found.groups();
        let operation = match self.choice {
            Choice::Declared(served) => Some(&served.operation),
            Choice::Undeclared { .. } => None,
        };
        let is_own_enforced = mode_of(self.snapshot, self.choice) == Mode::Enforce;
        let is_write = self.class.is_write();
        let is_undeclared = operation.is_none() && is_write && is_own_enforced;
        if is_undeclared && self.snapshot.undeclared() == policy::Undeclared::Refuse {
            return Some((Refusal::Undeclared, Stage::Refused));
        }
        if self.is_enforced && groups.is_empty() && !is_write && self.has_body {
            return Some((Refusal::UndeclaredBody, Stage::Refused));
        }
        let fault = self.asked.match_fault(groups, operation, self.doc);
        if let Some(fault) = fault.filter(|_| self.is_enforced) {
            return Some((fault, Stage::Refused));
        }
        let mut control = self.control.clone();
        let declared = operation.filter(|operation| operation.class.is_write());
        let Some(operation) = declared else {
            return control.stage.then_some((Refusal::NoDraftForm, Stage::Refused));
        };
        let fault = write_fault(operation, self.head, self.doc, &mut control);
        if let Some(fault) = fault.filter(|_| is_own_enforced) {
            return Some((fault, Stage::Refused));
        }
        if !control.stage {
            let fault = carry_fault(operation, self.head, control, self.doc);
            return fault.filter(|_| is_own_enforced).map(|fault| (fault, Stage::Effect));
        }
        let refusal = match &operation.draft {
            None => Refusal::NoDraftForm,
            Some(draft) => {
                let request = self.doc.request();
                let scope = Scope { before: None, request, response: None, key: None };
                let missing = resolve_draft(draft, &scope).err()?;
                Refusal::DraftArgumentMissing(missing.to_string())
            }
        };
        Some((refusal, Stage::Refused))
    }
}

/// What keeps the key out of its place.
fn carry_fault(
    operation: &Operation,
    head: &Head,
    control: Control,
    doc: &RequestDoc,
) -> Option<Refusal> {
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
