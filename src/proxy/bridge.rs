//! `POST /call/<tool>`: a tool call for callers that do not speak MCP (ADR-0030 section 8).
//!
//! The body is `{"arguments": {...}, "stage": true?}`, the key is `Idempotency-Key`, and the other
//! controls are the headers of plain HTTP. The call goes through the same pipeline as one on `/mcp`,
//! with the caller's own credentials, in a session of ours with the upstream that is this caller's
//! alone. The answer is the tool's data, or `{"error": envelope}` with a status for its code; the
//! report is in the header.
//!
//! Limits: [`MAX_BODY`] bytes. The route is there while the policy declares a tool, unless
//! `mcp.call_route` is `forward`: then the upstream serves it, and it is a plain HTTP call.

use std::sync::Arc;
use std::time::Instant;

use http::response::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use percent_encoding::percent_decode_str;

use super::{Edge, Voice};
use crate::call::payload::{self, Body, CollectError};
use crate::call::refusal::Refusal;
use crate::call::{Call, Control, Head, Oddity, Payload, Permit, Principal};
use crate::contract::class::{Class, Outcome};
use crate::contract::json::{Doc, Kind as JsonKind, Value, write_string};
use crate::contract::operation::Target;
use crate::contract::report::{MAX_HEADER, Report, header_of};
use crate::mcp::Era;
use crate::mcp::answer::{Answer, Kind as AnswerKind};
use crate::mcp::clients::Client;
use crate::mcp::headers::mirrored_value;
use crate::mcp::jsonrpc::{Id, Message, code};
use crate::mcp::request::ToolCall;
use crate::pipeline::ask::{Cursor, Whole, whole};
use crate::pipeline::select::refused_tool;
use crate::pipeline::session;
use crate::pipeline::settle::json_response;
use crate::pipeline::step::Stage;
use crate::pipeline::{Answered, CallRoute};
use crate::server::Peer;

/// The longest body, in bytes.
pub(super) const MAX_BODY: usize = 64 * 1024;

/// How often the rest of a stream is fetched.
const MAX_FETCHES: usize = 64;

/// What stands before the tool's name.
const ROUTE: &str = "/call/";

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// What a caller asked for.
struct Asked {
    tool: String,
    arguments: String,
}

impl<P: Stage<Box<Call>, Answer = Answered>> Edge<P> {
    /// The tool that a request calls on this route.
    pub(super) fn bridged_tool(&self, head: &Head) -> Option<String> {
        let shared = &self.cx.shared;
        if head.method != Method::POST || shared.settings.mcp.call_route != CallRoute::Bridge {
            return None;
        }
        let name = head.path().strip_prefix(ROUTE)?;
        if name.is_empty() || name.contains('/') {
            return None;
        }
        let live = shared.policies.load();
        let mut operations = live.snapshot.operations().iter();
        let has_tools =
            operations.any(|served| matches!(served.operation.target, Target::Tool { .. }));
        let name = percent_decode_str(name).decode_utf8().ok()?;
        has_tools.then(|| name.into_owned())
    }

    /// Answers a call on this route.
    #[expect(clippy::too_many_arguments, reason = "the parts of one request, each named once")]
    pub(super) async fn bridge(
        &self,
        tool: String,
        head: Head,
        mut control: Control,
        oddity: Option<Oddity>,
        body: Body,
        permit: Permit,
        peer: Arc<Peer>,
        began: Instant,
    ) -> Response<Body> {
        let live = self.cx.shared.policies.load();
        let named = tool.clone();
        let refuse = |refusal| self.refuse(refused_tool(&live, &named, refusal), Voice::Rest);
        if let Some(oddity) = oddity {
            return refuse(oddity.into_refusal());
        }
        let asked = match self.asked_for(tool, body, &mut control).await {
            Ok(asked) => asked,
            Err(refusal) => return refuse(refusal),
        };
        let principal = self.cx.shared.principal(&head);
        let clients = &self.cx.shared.mcp.clients;
        // A second time only before anything was sent, or for a read: whoever says by a 404 that it has
        // forgotten the session may have run the call all the same.
        for is_last in [false, true] {
            let in_use = session::client(&self.ask, &head, &principal, self.mcp_path()).await;
            let in_use = match in_use {
                Ok(in_use) => in_use,
                Err(refusal) => return refuse(refusal),
            };
            let client = &in_use.client;
            let Some((mcp_head, call)) = self.call_of(&head, client, &asked) else {
                return refuse(Refusal::CallBody("the call cannot be written"));
            };
            if self.ask.tool(&mcp_head, &call, &principal).await.is_none() {
                let is_known = self.cx.shared.mcp.catalog.knows(&principal.credential);
                if client.session.is_some() && !is_known && !is_last {
                    clients.forget(&principal.credential, client);
                    continue;
                }
                return refuse(if is_known {
                    Refusal::UnknownTool
                } else {
                    Refusal::NoSession(StatusCode::BAD_GATEWAY.as_u16())
                });
            }
            let id = call.id().clone();
            let own_head = mcp_head.clone();
            let payload = Payload::Mcp(Box::new(call));
            let call = Call {
                head: mcp_head,
                control: control.clone(),
                payload,
                oddity: None,
                permit: permit.clone(),
            };
            let answered = self.pipeline.run(Box::new(call)).await;
            let is_forgotten = matches!(&answered, Ok(reply)
                if client.session.is_some() && reply.response.status() == StatusCode::NOT_FOUND);
            if is_forgotten {
                clients.forget(&principal.credential, client);
                if !is_last && matches!(&answered, Ok(reply) if reply.class == Class::Read) {
                    continue;
                }
            }
            let told = self.told(answered, &own_head, &principal, &id, permit, peer, began);
            return told.await;
        }
        refuse(Refusal::NoSession(StatusCode::BAD_GATEWAY.as_u16()))
    }

    async fn asked_for(
        &self,
        tool: String,
        body: Body,
        control: &mut Control,
    ) -> Result<Asked, Refusal> {
        let shared = &self.cx.shared;
        let settings = &shared.settings;
        let (idle, total) = (settings.limits.request_idle, settings.timeouts.total);
        let collected = payload::collect_within(body, MAX_BODY, &shared.budget, idle, total).await;
        let collected = collected.map_err(|error| match error {
            CollectError::Broken(_) => Refusal::BodyBroken,
            CollectError::Budget => Refusal::Overloaded,
            CollectError::Idle => Refusal::BodySlow,
            CollectError::TooLarge { limit_bytes } => Refusal::BodyTooLarge(limit_bytes),
        })?;
        if collected.bytes().is_empty() {
            return Ok(Asked { tool, arguments: "{}".to_owned() });
        }
        let doc = Doc::parse(collected.bytes().clone())
            .map_err(|error| Refusal::InvalidJson(error.to_string()))?;
        let root = doc.root();
        if root.kind() != JsonKind::Object {
            return Err(Refusal::CallBody("the body is not an object"));
        }
        if root.members().any(|member| !["arguments", "stage"].contains(&&*member.name())) {
            return Err(Refusal::CallBody("only `arguments` and `stage` are taken"));
        }
        match root.get("stage").map(Value::as_bool) {
            None => {}
            Some(Some(stage)) => control.stage = control.stage || stage,
            Some(None) => return Err(Refusal::CallBody("`stage` is neither true nor false")),
        }
        let arguments = match root.get("arguments") {
            None => "{}".to_owned(),
            Some(arguments) if arguments.kind() == JsonKind::Object => arguments.raw().to_owned(),
            Some(_) => return Err(Refusal::CallBody("`arguments` is not an object")),
        };
        Ok(Asked { tool, arguments })
    }

    /// Fetches the answer of a call whose stream ended early, as a client of the upstream does that has
    /// a session with it (standards MCP-20).
    async fn fetched(&self, head: &Head, id: &Id, mut cursor: Cursor) -> Option<Answer> {
        for _ in 0..MAX_FETCHES {
            tokio::time::sleep(cursor.retry).await;
            let (parts, body) = self.ask.resume(head, cursor.event).await?;
            if parts.status != StatusCode::OK {
                return None;
            }
            match whole(&self.cx.shared, &parts, body, id).await {
                Whole::Answer(answer) => return Some(answer),
                Whole::Nothing => return None,
                Whole::Rest(next) => cursor = next,
            }
        }
        None
    }

    /// The answer that a response holds, or that is fetched after it. What is fetched is settled here.
    async fn read_whole(
        &self,
        head: &Head,
        principal: &Principal,
        parts: &Parts,
        body: Body,
        id: &Id,
    ) -> Option<Answer> {
        let shared = &self.cx.shared;
        let cursor = match whole(shared, parts, body, id).await {
            Whole::Answer(answer) => return Some(answer),
            Whole::Nothing => return None,
            Whole::Rest(cursor) => cursor,
        };
        let session = shared.session(head, principal);
        let limit = shared.settings.timeouts.total;
        // At the end of the time the fetch is given up, and the outcome is unknown.
        let fetched = tokio::time::timeout(limit, self.fetched(head, id, cursor)).await;
        let Some(answer) = fetched.ok().flatten() else {
            shared.mcp.elsewhere.expire(&session, id);
            return None;
        };
        match shared.mcp.elsewhere.answer(&session, id, &answer) {
            None => Some(answer),
            Some(report) => Some(Answer::read(200, answer.with_report(&report).body, id)),
        }
    }

    /// Where tools are called.
    fn mcp_path(&self) -> &str {
        self.cx.mcp_paths.first().map_or("/mcp", String::as_str)
    }

    fn call_of(&self, head: &Head, client: &Client, asked: &Asked) -> Option<(Head, ToolCall)> {
        let mut head = session::mcp_head(head, self.mcp_path())?;
        head.headers = session::headers_of(&head.headers, client);
        let mut params = String::from("{\"name\":");
        write_string(&asked.tool, &mut params);
        params.push_str(",\"arguments\":");
        params.push_str(&asked.arguments);
        if client.era == Era::Modern {
            params.push_str(",\"_meta\":");
            params.push_str(&session::modern_meta());
            head.headers.insert(METHOD, HeaderValue::from_static("tools/call"));
            head.headers.insert(NAME, mirrored_value(&asked.tool));
        }
        params.push('}');
        let body = session::request(&session::next_id()?, "tools/call", &params);
        let message = Message::read(body.into()).ok()?;
        Some((head, ToolCall::read(message, client.era).ok()?))
    }

    /// Writes the pipeline's answer as this route does.
    #[expect(clippy::too_many_arguments, reason = "the parts of one request, each named once")]
    async fn told(
        &self,
        answered: Answered,
        head: &Head,
        principal: &Principal,
        id: &Id,
        permit: Permit,
        peer: Arc<Peer>,
        began: Instant,
    ) -> Response<Body> {
        let answered = match answered {
            Err(refused) => Err(refused),
            Ok(mut reply) => {
                let response = std::mem::take(&mut reply.response);
                let (parts, body) = response.into_parts();
                let status = parts.status;
                let answer = self.read_whole(head, principal, &parts, body, id).await;
                // What cannot be read has its report in a header, as the pipeline gave it.
                let kept = reply.report.take();
                let kept = kept
                    .or_else(|| parts.headers.get(self.cx.shared.settings.report_header).cloned());
                let report = report_of(answer.as_ref()).or(kept).unwrap_or_else(|| {
                    Report { class: reply.class, ..Report::default() }.to_header(MAX_HEADER)
                });
                reply.response = match &answer {
                    Some(answer) => rest_answer(status, answer),
                    None => unread(status, reply.class, reply.outcome),
                };
                reply.report = Some(report);
                Ok(reply)
            }
        };
        self.written(answered, Voice::Rest, permit, peer, began)
    }
}

/// The report in an answer, as a header.
fn report_of(answer: Option<&Answer>) -> Option<HeaderValue> {
    let root = answer.and_then(Answer::doc).map(Doc::root);
    let result = root.and_then(|root| root.get("result")).and_then(|result| result.get("_meta"));
    let error = root.and_then(|root| root.get("error")).and_then(|error| error.get("data"));
    let report = result.or(error).and_then(|holder| holder.get("effect"));
    Some(header_of(report?.raw(), MAX_HEADER))
}

/// What is said of an answer that cannot be read: unknown, unless its report knows better.
fn unread(status: StatusCode, class: Class, outcome: Option<Outcome>) -> Response<Body> {
    let status = if status.is_success() { StatusCode::BAD_GATEWAY } else { status };
    let is_known = matches!(outcome, Some(Outcome::Accepted | Outcome::Rejected));
    if class == Class::Read || is_known {
        let text = "The upstream's answer could not be read.";
        return error_response(status, "upstream_error", text);
    }
    error_response(
        status,
        "outcome_unknown",
        "The upstream's answer could not be read. What became of the write stands in the report: do \
         not send it again before its entry is settled.",
    )
}

/// The tool's data, or the error, with a status for its code.
fn rest_answer(status: StatusCode, answer: &Answer) -> Response<Body> {
    let result = answer.result();
    match answer.kind() {
        AnswerKind::Result { is_error: false, .. } => json_response(data_of(answer)),
        AnswerKind::Result { is_error: true, .. } => {
            let text = answer.text().unwrap_or_default();
            let doc = Doc::parse(text.clone().into_owned()).ok();
            let envelope = doc
                .as_ref()
                .and_then(|doc| doc.root().get("error"))
                .filter(|error| error.get("code").is_some());
            match envelope {
                Some(envelope) => {
                    let code = envelope.get("code").and_then(Value::as_str).unwrap_or_default();
                    let reason = envelope.get("details").and_then(|details| details.get("reason"));
                    let reason = reason.and_then(Value::as_str).unwrap_or_default();
                    let mut response = json_response(format!("{{\"error\":{}}}", envelope.raw()));
                    *response.status_mut() = status_of(&code, &reason);
                    response
                }
                None => error_response(StatusCode::BAD_GATEWAY, "upstream_error", &text),
            }
        }
        AnswerKind::Task => {
            let handle = result.map_or("{}", Value::raw).to_owned();
            let mut response = json_response(handle);
            *response.status_mut() = StatusCode::ACCEPTED;
            response
        }
        AnswerKind::InputRequired => error_response(
            StatusCode::CONFLICT,
            "input_required",
            "The tool asks for more input, which only an MCP client can give.",
        ),
        AnswerKind::Error { code } => {
            let status = match code {
                Some(code::INVALID_PARAMS) => StatusCode::BAD_REQUEST,
                Some(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
                _ if status.is_client_error() => status,
                _ => StatusCode::BAD_GATEWAY,
            };
            let error = answer.doc().and_then(|doc| doc.root().get("error"));
            let text = error.and_then(|error| error.get("message")).and_then(Value::as_str);
            error_response(status, "upstream_error", &text.unwrap_or_default())
        }
        AnswerKind::Unreadable(_) | AnswerKind::WrongId { .. } => {
            let status = if status.is_client_error() { status } else { StatusCode::BAD_GATEWAY };
            error_response(status, "upstream_error", "The upstream's answer is no result.")
        }
    }
}

/// The response data: what is structured; else the one text, if it is JSON; else the content.
fn data_of(answer: &Answer) -> String {
    let result = answer.result();
    if let Some(data) = result.and_then(|result| result.get("structuredContent")) {
        return data.raw().to_owned();
    }
    let content = result.and_then(|result| result.get("content"));
    let count = content.map_or(0, |content| content.elements().count());
    if let (1, Some(text)) = (count, answer.text())
        && Doc::parse(text.clone().into_owned()).is_ok()
    {
        return text.into_owned();
    }
    format!("{{\"content\":{}}}", content.map_or("[]", Value::raw))
}

/// The status for an envelope's code (ADR-0030 section 8). What we say after a dispatch gives its
/// reason too, and has the status of plain HTTP.
fn status_of(code: &str, reason: &str) -> StatusCode {
    match code {
        "answer_lost" | "not_sent" | "outcome_unknown" if reason == "timeout" => {
            StatusCode::GATEWAY_TIMEOUT
        }
        "outcome_unknown" if reason == "shutdown" => StatusCode::SERVICE_UNAVAILABLE,
        "validation_error" => StatusCode::BAD_REQUEST,
        "auth_required" | "authentication_error" | "unauthorized" => StatusCode::UNAUTHORIZED,
        "policy_denied" | "permission_denied" | "forbidden" => StatusCode::FORBIDDEN,
        "not_found" => StatusCode::NOT_FOUND,
        "answer_not_kept" | "conflict" => StatusCode::CONFLICT,
        "unsupported_operation" => StatusCode::UNPROCESSABLE_ENTITY,
        "confirmation_required" | "idempotency_required" => StatusCode::PRECONDITION_REQUIRED,
        "rate_limited" => StatusCode::TOO_MANY_REQUESTS,
        "timeout" | "upstream_timeout" => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    }
}

fn error_response(status: StatusCode, code: &str, text: &str) -> Response<Body> {
    let mut json = String::from("{\"error\":{\"code\":");
    write_string(code, &mut json);
    json.push_str(",\"message\":");
    write_string(text, &mut json);
    json.push_str(",\"retryable\":false,\"details\":{}}}");
    let mut response = json_response(json);
    *response.status_mut() = status;
    response
}

/// A refusal as this route writes it.
pub(super) fn refusal_response(refusal: &Refusal) -> Response<Body> {
    let mut response = json_response(format!("{{\"error\":{}}}", refusal.envelope()));
    *response.status_mut() =
        StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::BAD_REQUEST);
    if let Some(after) = refusal.retry_after_s() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after));
    }
    response
}
