//! The ways back from a call, as far as they are known before it is sent, and what follows from them.
//!
//! A class says how an operation's calls can be taken back; whether this one can be depends on its
//! values. One whose every way back lacks something of the request, or of the state that was read before
//! it, or would be another operation's call, is irreversible for all that its class says (contract
//! section 1), and is asked about as such before it is sent. What only the answer gives is not foreseen.
//!
//! `select` asks after the request is read, `record` again after the state before the call is, and
//! `explain` for a call that nobody makes: all three ask here.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};

use super::choose::parameters;
use crate::contract::class::{Class, Level};
use crate::contract::json::Doc;
use crate::contract::operation::{BodyType, Operation, Reference};
use crate::contract::path::{Request, Scope};
use crate::contract::prefill::WaysBack;
use crate::contract::undo::{Resolved, Unavailable};
use crate::http::body::{BodyDoc, RequestDoc};
use crate::policy::{Choice, Found, Group, Snapshot, choose};

/// What one call is served as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The class of this call.
    pub class: Class,
    /// The confirmation that it needs by its operation.
    pub level: Level,
}

impl Terms {
    /// As the operation declares.
    pub fn declared(operation: &Operation) -> Self {
        Self { class: operation.class, level: operation.confirm }
    }

    /// As what nothing takes back, whatever was declared: with the level of what nobody declared, if
    /// that is stricter.
    pub fn irreversible(self, snapshot: &Snapshot) -> Self {
        let level = self.level.max(snapshot.undeclared_level());
        Self { class: Class::Irreversible, level }
    }

    /// As what the ways back leave of it.
    pub fn with(self, ways: &WaysBack, snapshot: &Snapshot) -> Self {
        match self.class {
            Class::Compensable | Class::Reversible if ways.lost().is_some() => {
                self.irreversible(snapshot)
            }
            Class::Compensable | Class::Irreversible | Class::Read | Class::Reversible => self,
        }
    }
}

/// The ways back as far as the request gives them.
pub fn ways_back(snapshot: &Snapshot, operation: &Operation, request: Request<'_>) -> WaysBack {
    if matches!(operation.class, Class::Irreversible | Class::Read) {
        return WaysBack::default();
    }
    let scope = Scope { before: None, request, response: None, key: None };
    let mut ways = WaysBack::begin(operation, &scope);
    reject_others(snapshot, operation, &mut ways, &scope);
    ways
}

/// The same, once the state before the call is read: `scope` is over both.
pub fn with_before(
    snapshot: &Snapshot,
    operation: &Operation,
    ways: &mut WaysBack,
    scope: &Scope<'_>,
) {
    ways.read_before(operation, scope);
    reject_others(snapshot, operation, ways, scope);
}

/// A way that nothing more is needed for is matched as it will be when it is offered.
fn reject_others(
    snapshot: &Snapshot,
    operation: &Operation,
    ways: &mut WaysBack,
    scope: &Scope<'_>,
) {
    for (call, way) in ways.each(operation) {
        if !way.is_whole() || way.fault().is_some() {
            continue;
        }
        let resolved = way.finish(&call.reference, &call.arguments, scope, &[]);
        let checked = resolved.and_then(|it| is_what_it_says(snapshot, &call.reference, &it));
        if let Err(why) = checked {
            way.reject(why);
        }
    }
}

/// A built follow-up is matched again: if it selects another operation, it is not offered (contract
/// section 2, Variants).
///
/// # Errors
///
/// [`Unavailable::NotServed`] and [`Unavailable::OtherOperation`].
pub fn is_what_it_says(
    snapshot: &Snapshot,
    reference: &Reference,
    resolved: &Resolved,
) -> Result<(), Unavailable> {
    let wanted = &reference.operation;
    let other = || Unavailable::OtherOperation { operation: wanted.clone() };
    let is_wanted = |choice: Choice<'_>| match choice {
        Choice::Declared(served) => served.operation.id == *wanted,
        Choice::Undeclared { .. } => false,
    };
    if let Some(tool) = &resolved.tool {
        let group = snapshot
            .find_tool(tool)
            .ok_or_else(|| Unavailable::NotServed { operation: wanted.clone() })?;
        let arguments = Doc::parse(resolved.arguments_json()).map_err(|_| other())?;
        let request = Request::Arguments(arguments.root());
        let scope = Scope { before: None, request, response: None, key: None };
        return is_wanted(choose(&Found::One(group), &scope)).then_some(()).ok_or_else(other);
    }
    let Some((method, target)) = &resolved.http else {
        return Err(other());
    };
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target.as_str(), None),
    };
    let mut headers = HeaderMap::new();
    for (name, value) in &resolved.headers {
        headers.append(name.clone(), value.clone());
    }
    let kind = HeaderValue::from_static(media_type(reference.body_type));
    headers.insert(header::CONTENT_TYPE, kind);
    let bytes = Bytes::from(resolved.body.clone().unwrap_or_default());
    let body = BodyDoc::read(&headers, &bytes).map_err(|_| other())?;
    let found = snapshot.find_http(method, path);
    if matches!(found, Found::None) {
        return Err(Unavailable::NotServed { operation: wanted.clone() });
    }
    let is_it = found.groups().iter().all(|group: &&Group| {
        let groups = std::slice::from_ref(group);
        let doc = RequestDoc::new(&parameters(groups, path), query, &headers, body.clone());
        let scope = Scope { before: None, request: doc.request(), response: None, key: None };
        is_wanted(choose(&Found::One(group), &scope))
    });
    is_it.then_some(()).ok_or_else(other)
}

/// The content type of a follow-up's body.
pub fn media_type(body_type: BodyType) -> &'static str {
    match body_type {
        BodyType::Form => "application/x-www-form-urlencoded",
        BodyType::Json => "application/json",
    }
}
