//! The fourth step: the request for the upstream, the key in it. Before `confirm` and `record`, because
//! building it may refuse, and a begun entry must always be sendable.

use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::ask::Ask;
use super::step::{Next, Stage, Step};
use super::{Answered, Carried, Form, Fresh, Refused, Staged, Wire};
use crate::call::refusal::Refusal;
use crate::contract::class::Mode;
use crate::contract::json::{Doc, Kind};
use crate::contract::key::{Carrier, Key, Place};
use crate::http::encode::{self, Hop};
use crate::http::signature::{Change, broken_by};
use crate::mcp::Era;
use crate::mcp::catalog::Mirrored;
use crate::mcp::headers::mirrored_value;
use crate::mcp::request::Changes;
use crate::metrics::KeyResult;

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Carry {
    /// What every request to the upstream says.
    pub hop: Arc<Hop>,
    /// Reads the upstream's tools, where a changed argument may be mirrored in a header.
    pub ask: Ask,
}

impl Step for Carry {
    type In = Box<Staged>;
    type Out = Box<Carried>;
    type Below = Answered;
    type Answer = Answered;

    async fn step<N: Stage<Box<Carried>, Answer = Answered>>(
        &self,
        staged: Box<Staged>,
        next: Next<'_, N>,
    ) -> Answered {
        let Staged(fresh) = *staged;
        let mirrored = self.mirrored(&fresh).await?;
        let carried = self.carry(fresh, &mirrored)?;
        next.run(Box::new(carried)).await
    }
}

impl Carry {
    /// The arguments that the tool mirrors in headers, where we change arguments of a modern call
    /// (standards MCP-15). A tool that nobody can see is not called: its upstream would take the call
    /// for one that was tampered with, and so it is.
    async fn mirrored(&self, fresh: &Fresh) -> Result<Vec<Mirrored>, Box<Refused>> {
        let write = &fresh.write;
        let Form::Mcp { call, .. } = &write.form else { return Ok(Vec::new()) };
        let is_keyed = write.mode == Mode::Enforce
            && matches!(write.operation().carrier.place, Place::Argument(_));
        if call.era() != Era::Modern || !(is_keyed || write.staged_for.is_some()) {
            return Ok(Vec::new());
        }
        match self.ask.tool(&write.head, call, &write.principal).await {
            Some(tool) => Ok(tool.mirrored.clone()),
            None => Err(write.refuse(Refusal::ToolUnseen)),
        }
    }

    fn carry(&self, mut fresh: Fresh, mirrored: &[Mirrored]) -> Result<Carried, Box<Refused>> {
        // Early data can be sent again by whoever saw it (RFC 8470; standards H-25).
        let early = fresh.write.head.headers.get("early-data");
        let is_early = early.is_some_and(|early| early == "1");
        if is_early && fresh.write.mode == Mode::Enforce {
            return Err(fresh.write.refuse(Refusal::TooEarly));
        }
        let ledger_id = fresh
            .continued
            .clone()
            .or_else(|| fresh.write.control.key.clone())
            .unwrap_or_else(|| Key::from_entry(fresh.write.id));
        if fresh.write.mode == Mode::Observe {
            // What enforcement would have refused is said, and never written as allowed.
            let carrier = &fresh.write.operation().carrier;
            let refused = match is_early {
                true => Some(Refusal::TooEarly),
                false => self.wire(&fresh, carrier, &ledger_id, mirrored, Mode::Enforce).err(),
            };
            let refused = refused.map(|refusal| refusal.code());
            fresh.write.would = fresh.write.would.or(refused);
        }
        let write = &fresh.write;
        // Observing injects nothing: what would have passed without us passes as it came.
        let unsupported = Carrier::unsupported();
        let carrier = match write.mode {
            Mode::Enforce => &write.operation().carrier,
            Mode::Observe => &unsupported,
        };
        let is_sent = !matches!(carrier.place, Place::Unsupported);
        let result = match (is_sent, &write.control.key) {
            (false, _) => KeyResult::Unsupported,
            (true, Some(_)) => KeyResult::CallerSupplied,
            (true, None) => KeyResult::Injected,
        };
        let mode = write.mode;
        let wire = self.wire(&fresh, carrier, &ledger_id, mirrored, mode).map_err(|refusal| {
            if refusal == Refusal::KeyConflict {
                write.metrics.keys.count(KeyResult::Conflict);
            }
            write.refuse(refusal)
        })?;
        write.metrics.keys.count(result);
        let key = is_sent.then(|| ledger_id.clone());
        Ok(Carried { fresh, wire, ledger_id, key })
    }

    fn wire(
        &self,
        fresh: &Fresh,
        carrier: &Carrier,
        key: &Key,
        mirrored: &[Mirrored],
        mode: Mode,
    ) -> Result<Wire, Refusal> {
        let write = &fresh.write;
        let is_declared =
            write.operation().id.as_str() != "_undeclared" && write.mode == Mode::Enforce;
        let mut headers = encode::forwarded_headers(&write.head.headers, carrier, is_declared);
        let mut target = None;
        let body = match &write.form {
            Form::Http { doc, body } => {
                let json = match &doc.body {
                    crate::http::body::BodyDoc::Json(doc) => Some(doc),
                    crate::http::body::BodyDoc::None
                    | crate::http::body::BodyDoc::Form(..)
                    | crate::http::body::BodyDoc::Opaque => None,
                };
                let carriage = encode::carry(carrier, key, &write.head, &mut headers, json)?;
                target = carriage.path_and_query;
                match carriage.body {
                    Some(rewritten) => {
                        encode::mark_rewritten(&mut headers);
                        rewritten
                    }
                    None => body.bytes().clone(),
                }
            }
            Form::Mcp { call, ignored } => {
                let written = carrier.written(key).ok_or(Refusal::CarrierTooShort)?;
                let mut changes = Changes::default();
                let stripped: Vec<&str> = ignored.iter().map(String::as_str).collect();
                changes.strip_arguments = &stripped;
                let parent = write.head.span.as_ref().map(|span| span.outgoing().to_string());
                changes.trace_parent = parent.as_deref();
                if let Place::Argument(argument) = &carrier.place {
                    changes.key = Some((argument, &written));
                }
                if let Place::Header(name) = &carrier.place {
                    let value =
                        HeaderValue::from_str(&written).map_err(|_| Refusal::CarrierTooShort)?;
                    headers.insert(name.clone(), value);
                }
                let rewritten = call.forwarded(&changes);
                if rewritten != *call.message().body() {
                    encode::mark_rewritten(&mut headers);
                    mirror(mirrored, &rewritten, &mut headers);
                }
                rewritten
            }
        };
        ask_for_identity(&mut headers);
        if mode == Mode::Enforce {
            is_signed(fresh, carrier, &headers, target.as_deref(), &body)?;
        }
        set_length(&mut headers, &write.head.method, body.len());
        let head = encode::request_head(&write.head, headers, target.as_deref(), &self.hop)?;
        Ok(Wire { head, body })
    }
}

/// Refuses what would break a signature of the caller's (standards C-9).
fn is_signed(
    fresh: &Fresh,
    carrier: &Carrier,
    headers: &HeaderMap,
    target: Option<&str>,
    body: &Bytes,
) -> Result<(), Refusal> {
    let write = &fresh.write;
    let (head, came) = (&write.head, &write.head.headers);
    let is_changed = |name: &HeaderName| headers.get(name) != came.get(name);
    let asked = head.uri.path_and_query().map(PathAndQuery::as_str);
    let is_rewritten = match &write.form {
        Form::Http { body: sent, .. } => body != sent.bytes(),
        Form::Mcp { call, .. } => body != call.message().body(),
    };
    let mut changes = Vec::new();
    if let Place::Header(name) = &carrier.place
        && is_changed(name)
    {
        changes.push(Change::Header(name));
    }
    if target.is_some() && target != asked {
        changes.push(Change::Query);
    }
    if is_rewritten {
        changes.push(Change::Body);
    }
    if is_changed(&header::ACCEPT_ENCODING) {
        changes.push(Change::Header(&header::ACCEPT_ENCODING));
    }
    let broken = changes.into_iter().find_map(|change| broken_by(came, head.query(), change));
    broken.map_or(Ok(()), |signature| Err(Refusal::BreaksSignature(signature)))
}

/// Keeps the headers equal to the arguments that they mirror (standards MCP-15).
fn mirror(mirrored: &[Mirrored], body: &Bytes, headers: &mut HeaderMap) {
    if mirrored.is_empty() {
        return;
    }
    let Ok(doc) = Doc::parse(body.clone()) else { return };
    let arguments = doc.root().get("params").and_then(|params| params.get("arguments"));
    for Mirrored { path, header } in mirrored {
        let named = path.iter().try_fold(arguments, |value, name| Some(value?.get(name)));
        let text = named.flatten().and_then(|value| match value.kind() {
            Kind::String => value.as_str().map(|text| mirrored_value(&text)),
            Kind::Bool | Kind::Number => HeaderValue::from_str(value.raw()).ok(),
            Kind::Array | Kind::Null | Kind::Object => None,
        });
        match text {
            Some(value) => headers.insert(header.clone(), value),
            None => headers.remove(header),
        };
    }
}

/// We never decode; what must be read is asked for plain (contract section 9).
pub fn ask_for_identity(headers: &mut HeaderMap) {
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// A buffered body has one framing: its length. A bodiless `POST` says 0, as servers expect.
fn set_length(headers: &mut HeaderMap, method: &http::Method, length: usize) {
    headers.remove(header::CONTENT_LENGTH);
    let expects_body =
        matches!(*method, http::Method::POST | http::Method::PUT | http::Method::PATCH);
    if length > 0 || expects_body {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
}
