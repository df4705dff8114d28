//! Reads of our own: lookups, the state before a call, and what proves an effect afterwards.
//!
//! Only reads are made here: `GET` over HTTP, and calls of tools that the policy declares as reads, in
//! the session of the caller's call or in one of our own. Each has the path and the headers that a policy's
//! operation was filled with, and one credential: that of the caller whose call it belongs to, or what
//! `upstream.headers_file` holds, which wins. Nothing else of a caller's request goes along.
//!
//! It follows no redirect and decodes nothing. Limits: [`LONGEST`]; the answer as long as any that is
//! settled. What can go wrong is told as text for people that holds no value of the call.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header};

use super::ask::{Ask, whole_answer};
use super::live::Live;
use super::{Form, Shared, Write, session};
use crate::call::digest::is_credential;
use crate::call::payload::{self, Body};
use crate::call::{Head, Origin, Principal};
use crate::contract::class::{Class, ResponseSource};
use crate::contract::json::{Doc, Value, write_string};
use crate::http::encode::Hop;
use crate::mcp::Era;
use crate::mcp::answer::{Answer, Kind};
use crate::mcp::headers::mirrored_value;
use crate::mcp::jsonrpc::Id;
use crate::metrics::Purpose;
use crate::server::Drain;
use crate::upstream::{Clocks, Sent, Upstream};

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// The name under which our own session is kept; no caller has it.
const OWN: &str = "_takeback";

/// The longest that one read takes, whatever the clocks of calls are: it is a read of one thing.
pub const LONGEST: Duration = Duration::from_secs(30);

/// Makes reads.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// The connections that reads are made on.
    pub upstream: Upstream,
    /// The end of the process: a session of our own ends with it.
    pub drain: Drain,
}

/// What is read.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// The path and its query, without the upstream's base path.
    pub path_and_query: String,
    /// Headers that arguments became.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl std::fmt::Debug for Target {
    /// Shows no value of the call.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("headers", &self.headers.len()).finish_non_exhaustive()
    }
}

/// Whose credential a read carries.
#[derive(Clone, Copy, Debug)]
pub enum Credential<'a> {
    /// That of the caller with these headers.
    Caller(&'a HeaderMap),
    /// The sidecar's own.
    Own,
}

/// An answer.
#[derive(Debug)]
pub struct Got {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, whole.
    pub body: Bytes,
}

impl Fetch {
    /// Reads.
    ///
    /// # Errors
    ///
    /// Why there is no whole answer.
    ///
    /// # Cancel safety
    ///
    /// May be dropped; what it asks for is a read.
    pub async fn get(
        &self,
        target: &Target,
        credential: Credential<'_>,
        purpose: Purpose,
    ) -> Result<Got, String> {
        let shared = &self.shared;
        let request = self
            .request(target, credential)
            .map_err(|_| "its request cannot be written".to_owned())?;
        let timeouts = &shared.settings.timeouts;
        let clocks = Clocks {
            connect: timeouts.connect,
            head: timeouts.head.min(LONGEST),
            idle: Some(timeouts.idle.min(LONGEST)),
            total: Some(timeouts.total.min(LONGEST)),
        };
        let began = shared.clock.instant();
        let sent = self.upstream.send(request, &clocks).await;
        let elapsed = shared.clock.instant().saturating_duration_since(began);
        let durations = &shared.metrics.common().upstream_duration;
        durations.record(purpose, elapsed.as_secs_f64());
        let answer = match sent {
            Sent::Answer(answer) => answer,
            Sent::Lost(reason) => return Err(reason.to_string()),
            Sent::NotSent(reason) => return Err(reason.to_string()),
        };
        let (parts, body) = answer.into_parts();
        let limit = shared.settings.limits.response_body_bytes;
        let body = payload::collect(body, limit, &shared.budget, timeouts.idle)
            .await
            .map_err(|error| error.to_string())?;
        let body = body.bytes().clone();
        Ok(Got { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    /// Calls a tool that the policy declares as a read, in a session of our own.
    ///
    /// # Errors
    ///
    /// Why there is no answer that can be read.
    ///
    /// # Cancel safety
    ///
    /// As [`Fetch::get`].
    pub async fn call(&self, live: &Live, tool: &str, arguments: &str) -> Result<Got, String> {
        let source = read_tool(live, tool)?;
        let ask = self.ask();
        let principal = Principal { id: OWN.into(), credential: OWN.into(), is_weak: false };
        let path = &self.shared.settings.mcp.path;
        let head = Head {
            method: Method::POST,
            uri: Uri::default(),
            version: Version::HTTP_11,
            headers: HeaderMap::new(),
            authority: None,
            peer: HeaderValue::from_static("unknown"),
            nominated: Vec::new(),
            expects_continue: false,
            origin: Origin::default(),
            span: None,
        };
        let head = session::mcp_head(&head, path).ok_or("the MCP path is none")?;
        // A second time only if the upstream has forgotten the session.
        for is_last in [false, true] {
            let in_use = session::client(&ask, &head, &principal, path)
                .await
                .map_err(|_| "no session could be had with the upstream".to_owned())?;
            let client = &in_use.client;
            let headers = session::headers_of(&head.headers, client);
            let meta = (client.era == Era::Modern).then(session::modern_meta);
            let asking = told(&ask, &head, headers, meta.as_deref(), tool, arguments);
            let (status, answer) = timed(asking).await?;
            if status == StatusCode::NOT_FOUND && client.session.is_some() && !is_last {
                self.shared.mcp.clients.forget(OWN, client);
                continue;
            }
            return got(answer.as_ref(), source);
        }
        Err("the upstream forgets its sessions".to_owned())
    }

    /// Calls a tool that the policy declares as a read, in the session and with the credential of a
    /// caller's tool call.
    ///
    /// # Errors
    ///
    /// Why there is no answer that can be read.
    ///
    /// # Cancel safety
    ///
    /// As [`Fetch::get`].
    pub async fn call_for(
        &self,
        write: &Write,
        tool: &str,
        arguments: &str,
    ) -> Result<Got, String> {
        let source = read_tool(&write.live, tool)?;
        let Form::Mcp { call, .. } = &write.form else {
            return Err("a tool is read for calls of tools only".to_owned());
        };
        let ask = self.ask();
        let meta = (call.era() == Era::Modern).then(|| call.meta().map(Value::raw)).flatten();
        let meta = meta.and_then(shown_meta);
        let headers = write.head.headers.clone();
        let asking = told(&ask, &write.head, headers, meta.as_deref(), tool, arguments);
        let (_, answer) = timed(asking).await?;
        got(answer.as_ref(), source)
    }

    fn ask(&self) -> Ask {
        let settings = &self.shared.settings;
        let hop = Hop::new(
            &settings.upstream_authority,
            &settings.upstream_base,
            &settings.pseudonym,
            &settings.upstream_headers,
        );
        let (shared, upstream) = (Arc::clone(&self.shared), self.upstream.clone());
        Ask { shared, upstream, hop: Arc::new(hop), drain: self.drain.clone() }
    }

    fn request(
        &self,
        target: &Target,
        credential: Credential<'_>,
    ) -> Result<Request<Body>, http::Error> {
        let settings = &self.shared.settings;
        let uri = format!("{}{}", settings.upstream_base, target.path_and_query);
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(uri)
            .header(header::HOST, settings.upstream_authority.as_str())
            .header(header::ACCEPT, "application/json")
            // A coded answer would be read by nobody here.
            .header(header::ACCEPT_ENCODING, "identity")
            .header(header::USER_AGENT, concat!("takeback/", env!("CARGO_PKG_VERSION")))
            .body(Body::empty())?;
        let headers = request.headers_mut();
        if let Credential::Caller(theirs) = credential {
            for (name, value) in theirs.iter().filter(|(name, _)| is_credential(name.as_str())) {
                headers.append(name.clone(), value.clone());
            }
        }
        for (name, value) in &target.headers {
            headers.insert(name.clone(), value.clone());
        }
        settings.upstream_headers.put(headers);
        Ok(request)
    }
}

/// Where a tool's answer is read, if the policy declares all that the tool can be as reads.
fn read_tool(live: &Live, tool: &str) -> Result<ResponseSource, String> {
    let group = live.snapshot.find_tool(tool).ok_or("its tool is not declared")?;
    let mut sources = group.operations.iter().map(|served| {
        let operation = &served.operation;
        (operation.class == Class::Read).then_some(operation.response)
    });
    let first = sources.next().flatten();
    let is_read = first.is_some() && sources.all(|source| source.is_some());
    first.filter(|_| is_read).ok_or_else(|| "the policy takes its tool for a write".to_owned())
}

/// What a modern call's `_meta` says of its client, and nothing else of it.
fn shown_meta(meta: &str) -> Option<String> {
    let doc = Doc::parse(meta.to_owned()).ok()?;
    let mut text = String::from("{");
    let kept =
        doc.root().members().filter(|member| member.name().starts_with("io.modelcontextprotocol/"));
    for (position, member) in kept.enumerate() {
        if position > 0 {
            text.push(',');
        }
        write_string(&member.name(), &mut text);
        text.push(':');
        text.push_str(member.value.raw());
    }
    text.push('}');
    Some(text)
}

async fn timed<T>(asking: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| "no answer came in time".to_owned();
    tokio::time::timeout(LONGEST, asking).await.map_err(late)?
}

/// Posts a tool's call and reads its answer.
async fn told(
    ask: &Ask,
    head: &Head,
    mut headers: HeaderMap,
    meta: Option<&str>,
    tool: &str,
    arguments: &str,
) -> Result<(StatusCode, Option<Answer>), String> {
    let id: Id = session::next_id().ok_or("no request can be written")?;
    let mut params = String::from("{\"name\":");
    write_string(tool, &mut params);
    params.push_str(",\"arguments\":");
    params.push_str(arguments);
    headers.remove(METHOD);
    headers.remove(NAME);
    if let Some(meta) = meta {
        params.push_str(",\"_meta\":");
        params.push_str(meta);
        headers.insert(METHOD, HeaderValue::from_static("tools/call"));
        headers.insert(NAME, mirrored_value(tool));
    }
    params.push('}');
    let body = session::request(&id, "tools/call", &params);
    let answered = ask.post_named(head, headers, body.into()).await;
    let (parts, body) = answered.ok_or("the upstream did not answer")?;
    let answer = whole_answer(&ask.shared, &parts, body, &id).await;
    Ok((parts.status, answer))
}

/// A tool's answer as that of a read over HTTP: what it gives with 200, what is not there with 404.
fn got(answer: Option<&Answer>, source: ResponseSource) -> Result<Got, String> {
    let answer = answer.ok_or("the answer cannot be read")?;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match answer.kind() {
        Kind::Result { is_error: false, .. } => {
            let evidence = answer.evidence(source).ok_or("the answer has no data to read")?;
            let body = Bytes::from(evidence.value().raw().to_owned());
            Ok(Got { status: 200, headers, body })
        }
        Kind::Result { is_error: true, .. } => {
            if is_not_found(answer) {
                return Ok(Got { status: 404, headers, body: Bytes::new() });
            }
            Err("the tool answered that it failed".to_owned())
        }
        Kind::Error { .. } => Err("the upstream answered with an error".to_owned()),
        Kind::InputRequired | Kind::Task => Err("the tool did not answer at once".to_owned()),
        Kind::Unreadable(_) | Kind::WrongId { .. } => Err("the answer cannot be read".to_owned()),
    }
}

/// Whether a failed result's envelope has the code `not_found` (standards 5.7).
fn is_not_found(answer: &Answer) -> bool {
    let text = answer.text().map(|text| text.into_owned()).unwrap_or_default();
    let Ok(doc) = Doc::parse(text) else { return false };
    let root = doc.root();
    let code = root.get("error").unwrap_or(root).get("code").and_then(Value::as_str);
    code.as_deref() == Some("not_found")
}
