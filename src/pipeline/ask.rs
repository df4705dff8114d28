//! Requests of our own to an MCP upstream: reads of its tools, with the caller's credentials and in
//! the caller's session.
//!
//! A call that has to be changed needs its tool's schema (standards MCP-15), and a policy may pin one.
//! What `tools/list` showed before is remembered; what was not seen is asked for here, before anything
//! of the call is sent. No call is ever made from here.
//!
//! Limits: [`MAX_PAGES`] pages; a caller's list is not asked for again within [`RESTS`] after it was
//! asked for in vain.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};

use super::{McpState, Shared};
use crate::call::payload::{Body, Prefix, collect_prefix};
use crate::call::{Head, Principal};
use crate::contract::json::{Value, write_string};
use crate::http::body::{essence, is_json};
use crate::http::encode::{self, Hop};
use crate::mcp::answer::Answer;
use crate::mcp::catalog::Tool;
use crate::mcp::jsonrpc::Id;
use crate::mcp::request::ToolCall;
use crate::mcp::sse::Splitter;
use crate::mcp::{Era, META_CAPABILITIES, META_VERSION};
use crate::server::Drain;
use crate::upstream::{Clocks, Sent, Upstream};

/// The pages of a list that are read.
pub const MAX_PAGES: usize = 64;

/// How long what was listed counts; then it is asked for again.
pub const COUNTS: Duration = Duration::from_secs(5 * 60);

/// How long a list that could not be had is not asked for again.
pub const RESTS: Duration = Duration::from_secs(5);

/// How long the end of a session may take.
const ENDING: Duration = Duration::from_secs(2);

const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Ask {
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// This worker's connections.
    pub upstream: Upstream,
    /// What every request to the upstream says.
    pub hop: Arc<Hop>,
    /// The end of the process: sessions of ours end with it.
    pub drain: Drain,
}

impl Ask {
    /// The tool of a call as its caller is shown it: remembered, or asked for. `None` if the upstream
    /// does not list it, or does not answer.
    pub async fn tool(
        &self,
        head: &Head,
        call: &ToolCall,
        principal: &Principal,
    ) -> Option<Arc<Tool>> {
        self.tool_named(head, call, principal, call.name()).await
    }

    /// Another tool, as the caller of a call is shown it.
    pub async fn tool_named(
        &self,
        head: &Head,
        call: &ToolCall,
        principal: &Principal,
        name: &str,
    ) -> Option<Arc<Tool>> {
        if let Some(tool) = self.known(principal, name) {
            return Some(tool);
        }
        // Boxed, or every call's future would have room for this rare one.
        Box::pin(self.learn_tool(head, call, principal, name)).await
    }

    /// A tool that was listed not too long ago.
    fn known(&self, principal: &Principal, name: &str) -> Option<Arc<Tool>> {
        let (tool, seen) = self.shared.mcp.catalog.tool(&principal.credential, name)?;
        let now = self.shared.clock.instant();
        (now.saturating_duration_since(seen) < COUNTS).then_some(tool)
    }

    async fn learn_tool(
        &self,
        head: &Head,
        call: &ToolCall,
        principal: &Principal,
        name: &str,
    ) -> Option<Arc<Tool>> {
        let McpState { asking, catalog, .. } = &self.shared.mcp;
        let mut hasher = DefaultHasher::new();
        principal.credential.hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % 16).unwrap_or(0);
        // One at a time for each caller; the others find what the first has learnt.
        let _turn = match asking.get(place) {
            Some(asking) => Some(asking.lock().await),
            None => None,
        };
        if let Some(tool) = self.known(principal, name) {
            return Some(tool);
        }
        let known = catalog.tool(&principal.credential, name);
        let is_learnt = self.learn(head, call, principal).await.is_some();
        // An upstream that does not list its tools right now has not changed them as far as is known.
        let learnt = if is_learnt { catalog.tool(&principal.credential, name) } else { known };
        learnt.map(|(tool, _)| tool)
    }

    /// Asks for all pages of a caller's list.
    async fn learn(&self, head: &Head, call: &ToolCall, principal: &Principal) -> Option<()> {
        let catalog = &self.shared.mcp.catalog;
        let now = self.shared.clock.instant();
        if !catalog.may_ask(&principal.credential, now, RESTS) {
            return None;
        }
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let answer = self.page(head, call, cursor.as_deref()).await?;
            let result = answer.result()?;
            catalog.learn(&principal.credential, result, now);
            cursor = result.get("nextCursor").and_then(Value::as_str).map(|text| text.into_owned());
            if cursor.is_none() {
                break;
            }
        }
        Some(())
    }

    async fn page(&self, head: &Head, call: &ToolCall, cursor: Option<&str>) -> Option<Answer> {
        let id = Id::parse("\"anvil-list\"")?;
        let mut params = String::from("{");
        if let (Era::Modern, Some(meta)) = (call.era(), call.meta()) {
            params.push_str("\"_meta\":{");
            let kept = meta.members().filter(|member| {
                let name = member.name();
                let is_kept = [META_VERSION, META_CAPABILITIES].contains(&&*name);
                is_kept || name == "io.modelcontextprotocol/clientInfo"
            });
            for (position, member) in kept.enumerate() {
                if position > 0 {
                    params.push(',');
                }
                write_string(&member.name(), &mut params);
                params.push(':');
                params.push_str(member.value.raw());
            }
            params.push('}');
        }
        if let Some(cursor) = cursor {
            if params.len() > 1 {
                params.push(',');
            }
            params.push_str("\"cursor\":");
            write_string(cursor, &mut params);
        }
        params.push('}');
        let token = id.as_token();
        let body = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{token},\"method\":\"tools/list\",\"params\":{params}}}"
        );
        let mut headers = head.headers.clone();
        if call.era() == Era::Modern {
            headers.insert(METHOD, HeaderValue::from_static("tools/list"));
        } else {
            headers.remove(METHOD);
        }
        let (parts, body) = self.post(head, headers, body.into()).await?;
        whole_answer(&self.shared, &parts, body, &id).await
    }

    /// Fetches the rest of a stream; `None` if there is no answer.
    pub async fn resume(&self, head: &Head, event: HeaderValue) -> Option<(Parts, Body)> {
        let mut headers = head.headers.clone();
        headers.insert("last-event-id", event);
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        self.bare(Method::GET, head, headers).await
    }

    /// Ends a session of ours. An upstream that does not let its clients do that says so, and that is
    /// all right.
    pub async fn end_session(&self, head: &Head) {
        let ending = self.bare(Method::DELETE, head, head.headers.clone());
        // What is lost by the end of the time is a courtesy.
        drop(tokio::time::timeout(ENDING, ending).await);
    }

    async fn bare(
        &self,
        method: Method,
        head: &Head,
        mut headers: HeaderMap,
    ) -> Option<(Parts, Body)> {
        for name in [METHOD, NAME, header::CONTENT_TYPE, header::CONTENT_LENGTH] {
            headers.remove(name);
        }
        super::carry::ask_for_identity(&mut headers);
        let head = Head { method, ..head.clone() };
        let parts = encode::request_head(&head, headers, None, &self.hop).ok()?;
        let timeouts = &self.shared.settings.timeouts;
        let clocks = Clocks {
            connect: timeouts.connect,
            head: timeouts.head,
            idle: Some(timeouts.idle),
            total: Some(timeouts.total),
        };
        match self.upstream.send(Request::from_parts(parts, Body::empty()), &clocks).await {
            Sent::Answer(answer) => Some(answer.into_parts()),
            Sent::Lost(_) | Sent::NotSent(_) => None,
        }
    }

    /// Posts a message of ours that calls no tool; `None` if there is no answer.
    pub async fn post(
        &self,
        head: &Head,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Option<(Parts, Body)> {
        headers.remove(NAME);
        self.post_named(head, headers, body).await
    }

    /// As [`post`](Self::post), with the name of a tool as the headers have it.
    pub async fn post_named(
        &self,
        head: &Head,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Option<(Parts, Body)> {
        let settings = &self.shared.settings;
        headers.remove(&crate::http::headers::IDEMPOTENCY_KEY);
        headers.remove("last-event-id");
        let params: Vec<HeaderName> = headers
            .keys()
            .filter(|name| name.as_str().starts_with("mcp-param-"))
            .cloned()
            .collect();
        for name in params {
            headers.remove(name);
        }
        headers.insert(header::ACCEPT, BOTH);
        headers.insert(header::CONTENT_TYPE, JSON);
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        super::carry::ask_for_identity(&mut headers);
        let head = Head { method: Method::POST, ..head.clone() };
        let parts = encode::request_head(&head, headers, None, &self.hop).ok()?;
        let clocks = Clocks {
            connect: settings.timeouts.connect,
            head: settings.timeouts.head,
            idle: Some(settings.timeouts.idle),
            total: Some(settings.timeouts.total),
        };
        match self.upstream.send(Request::from_parts(parts, Body::full(body)), &clocks).await {
            Sent::Answer(answer) => Some(answer.into_parts()),
            Sent::NotSent(reason) => {
                tracing::debug!(%reason, "a read of the tools was not sent");
                None
            }
            Sent::Lost(reason) => {
                tracing::debug!(%reason, "a read of the tools was not answered");
                None
            }
        }
    }
}

/// What a body held.
pub enum Whole {
    /// The answer.
    Answer(Answer),
    /// Nothing that could be read as one.
    Nothing,
    /// The start of a stream whose rest is to be fetched (2025-11-25, standards MCP-20).
    Rest(Cursor),
}

/// Where a stream goes on.
pub struct Cursor {
    /// The last event's id.
    pub event: HeaderValue,
    /// How long to wait before.
    pub retry: Duration,
}

/// The wait before the rest of a stream that does not say.
const RETRY: Duration = Duration::from_secs(1);

/// The longest wait that an upstream can ask for.
const MAX_RETRY: Duration = Duration::from_secs(10);

/// Reads the answer to the message with this id, from JSON or from a stream.
pub async fn whole_answer(shared: &Shared, parts: &Parts, body: Body, id: &Id) -> Option<Answer> {
    match whole(shared, parts, body, id).await {
        Whole::Answer(answer) => Some(answer),
        Whole::Nothing | Whole::Rest(_) => None,
    }
}

/// Reads the answer to the message with this id, or where its stream goes on.
pub async fn whole(shared: &Shared, parts: &Parts, body: Body, id: &Id) -> Whole {
    let limit = shared.settings.limits.response_body_bytes;
    let kind = essence(&parts.headers);
    if kind.eq_ignore_ascii_case("text/event-stream") {
        return streamed(body, id, limit).await;
    }
    if !is_json(kind) {
        return Whole::Nothing;
    }
    match collect_prefix(body, limit, &shared.budget, None).await {
        Prefix::Whole(collected) => {
            Whole::Answer(Answer::read(parts.status.as_u16(), collected.bytes().clone(), id))
        }
        Prefix::Partial { .. } => Whole::Nothing,
    }
}

async fn streamed(mut body: Body, id: &Id, limit: usize) -> Whole {
    use http_body::Body as _;
    let mut splitter = Splitter::with_limit(limit);
    let mut cursor: Option<HeaderValue> = None;
    let mut retry = RETRY;
    loop {
        let frame = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await;
        let is_over = !matches!(frame, Some(Ok(_)));
        if let Some(Ok(frame)) = frame
            && let Ok(bytes) = frame.into_data()
        {
            splitter.push(bytes);
        }
        while let Some(frame) = splitter.next_frame() {
            if let Some(answer) = frame.answer_to(id) {
                return Whole::Answer(answer);
            }
            if let Some(event) = frame.event_id() {
                cursor = HeaderValue::from_bytes(event).ok();
            }
            retry = frame.retry_ms().map_or(retry, Duration::from_millis).min(MAX_RETRY);
        }
        if is_over {
            if let Some(answer) = splitter.finish().and_then(|frame| frame.answer_to(id)) {
                return Whole::Answer(answer);
            }
            return match cursor.filter(|event| !event.is_empty()) {
                Some(event) => Whole::Rest(Cursor { event, retry }),
                None => Whole::Nothing,
            };
        }
    }
}
