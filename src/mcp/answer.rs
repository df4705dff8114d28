//! What an upstream answered to a `tools/call`, and what became of the effect.
//!
//! Not every result is a result: a tool's error, a JSON-RPC error, `input_required`, a task handle
//! and an HTTP error of a gateway in front are different dispositions. The JSON-RPC body is read
//! first and the HTTP status second, since SDKs differ in the status that they give one error
//! (standards MCP-23).
//!
//! An answer is changed in one place, `_meta.effect` (or `error.data.effect`), by splicing; every
//! other byte stays. An answer that cannot be read goes to the agent as it came, and so does
//! whatever it claims under that name; the caller then has a reason to report elsewhere.

use std::borrow::Cow;

use bytes::Bytes;

use crate::contract::class::{Disposition, IsError, ResponseSource, words};
use crate::contract::json::{Doc, Edits, Kind as JsonKind, Value, write_string};

use super::claims::disown;
use super::jsonrpc::{Id, code};

/// Statuses that say that the call never reached a tool, unless a result came with them.
const REFUSING: &[u16] = &[401, 403, 404, 405, 406, 413, 415, 421, 431];

/// Codes that say the same of a request that was answered with 400.
const REFUSING_CODES: &[i64] = &[
    code::HEADER_MISMATCH,
    code::INVALID_REQUEST,
    code::MISSING_CAPABILITY,
    code::PARSE_ERROR,
    code::UNSUPPORTED_VERSION,
];

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A JSON-RPC error, under our id or, as servers do that could not read it, under none.
    Error {
        /// `None` if it is no 64-bit integer.
        code: Option<i64>,
    },
    /// The upstream asks the client for more before it answers (2026-07-28).
    InputRequired,
    /// What the tool gave.
    Result {
        /// The upstream put a report of its own into `_meta.effect`.
        has_effect: bool,
        /// The tool says that it failed.
        is_error: bool,
    },
    /// A handle of a task that gives the result later, in the form of either era.
    Task,
    /// No answer that can be understood, and why.
    Unreadable(&'static str),
    /// A response to some other id (case D2).
    WrongId {
        /// The code, if it is an error.
        code: Option<i64>,
        /// It is a result.
        is_result: bool,
    },
}

words! {
    /// What decided a disposition.
    Cause {
        /// A result without `isError`.
        Complete = "complete",
        /// The code of a JSON-RPC error.
        ErrorCode = "error_code",
        /// The HTTP status.
        HttpStatus = "http_status",
        /// `input_required`.
        InputRequired = "input_required",
        /// A result with `isError`.
        IsError = "is_error",
        /// A task handle.
        Task = "task",
        /// No answer that can be understood.
        Unreadable = "unreadable",
        /// -32042.
        UrlElicitation = "url_elicitation",
        /// A response to some other id.
        WrongId = "wrong_id",
    }
}

words! {
    /// What becomes of a report that the upstream sends as its own (standards MCP-39). Whatever it
    /// is, nothing is decided from it.
    Reports {
        /// It is dropped for ours.
        Ignore = "ignore",
        /// Ours takes its place, and it goes on as `_meta["anvil/upstream_effect"]`.
        Replace = "replace",
        /// It stays, and ours goes on as `_meta["takeback/effect"]`: for a gateway that reports
        /// effects itself and is believed.
        Trust = "trust",
    }
}

/// What an answer means for the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The call is over.
    Final(Disposition),
    /// The answer is yet to come.
    Waiting(Waiting),
}

/// What an open call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The client's retry with its input. Part of the work may be done already.
    Input,
    /// The end of the task. The upstream has accepted the call.
    Task,
    /// The client's retry after a person has visited a page. Nothing was executed.
    UrlElicitation,
}

/// The evidence that an operation's selectors and paths read as the response.
#[derive(Clone, Debug)]
pub enum Evidence<'a> {
    /// `structuredContent`.
    Structured(Value<'a>),
    /// The JSON in the first text block.
    Text(Doc),
}

impl Evidence<'_> {
    /// The value.
    pub fn value(&self) -> Value<'_> {
        match self {
            Self::Structured(value) => *value,
            Self::Text(doc) => doc.root(),
        }
    }
}

/// An answer with the report in it.
#[derive(Clone, Debug)]
pub struct Spliced {
    /// The body, or the data of the event.
    pub body: Bytes,
    /// Why the report is not in it; the body is then as it came.
    pub unplaced: Option<&'static str>,
}

/// An answer that was read.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    body: Bytes,
    doc: Option<Doc>,
    kind: Kind,
}

impl Answer {
    /// Reads a JSON answer to the request with this id. Never fails: what cannot be read is
    /// [`Kind::Unreadable`].
    pub fn read(status: u16, body: Bytes, id: &Id) -> Self {
        match Doc::parse(body.clone()) {
            Ok(doc) => {
                let kind = kind_of(doc.root(), id);
                Self { status, body, doc: Some(doc), kind }
            }
            Err(_) => Self::unread(status, body, "the answer is not JSON that can be read"),
        }
    }

    /// Reads the data of an event, if it is the response to the request with this id; `None` for
    /// notifications, requests, other responses, and what cannot be read.
    pub fn from_event(data: &Bytes, id: &Id) -> Option<Self> {
        match Told::by(data, id) {
            Told::Answer(answer) => Some(answer),
            Told::Other | Told::Stray { .. } => None,
        }
    }

    /// An answer that is not looked into: not JSON, encoded, cut short or over the limit.
    pub fn unread(status: u16, body: Bytes, reason: &'static str) -> Self {
        Self { status, body, doc: None, kind: Kind::Unreadable(reason) }
    }

    /// An answer whose result stands inside another message: what a task gave (standards MCP-42).
    pub fn of_result(result: Value<'_>) -> Self {
        let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}}", result.raw());
        match Id::parse("0") {
            Some(id) => Self::read(200, text.into(), &id),
            None => Self::unread(200, Bytes::new(), "the result could not be read"),
        }
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The HTTP status that it came with; 200 for an event.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The body, or the event's data, as it came.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The document, where it could be read.
    pub fn doc(&self) -> Option<&Doc> {
        self.doc.as_ref()
    }

    /// What became of the effect, by table MCP-23, and what decided it.
    ///
    /// `is_error` is how a result with `isError: true` counts for this operation.
    pub fn settle(&self, is_error: IsError) -> (Settled, Cause) {
        let accepted = Settled::Final(Disposition::Accepted);
        let rejected = Settled::Final(Disposition::DefinitelyRejected);
        let ambiguous = Settled::Final(Disposition::Ambiguous);
        match self.kind {
            Kind::Result { is_error: false, .. } if matches!(self.status, 200..=299) => {
                (accepted, Cause::Complete)
            }
            Kind::Result { is_error: false, .. } => (ambiguous, Cause::HttpStatus),
            Kind::Result { is_error: true, .. } => match is_error {
                IsError::Ambiguous => (ambiguous, Cause::IsError),
                IsError::Rejected => (rejected, Cause::IsError),
            },
            Kind::InputRequired => (Settled::Waiting(Waiting::Input), Cause::InputRequired),
            Kind::Task => (Settled::Waiting(Waiting::Task), Cause::Task),
            Kind::Error { code: Some(code::URL_ELICITATION) } => {
                (Settled::Waiting(Waiting::UrlElicitation), Cause::UrlElicitation)
            }
            Kind::Error { code: Some(code::INVALID_PARAMS) } => (rejected, Cause::ErrorCode),
            Kind::Error { code } => self.settle_error(code, Cause::ErrorCode),
            Kind::Unreadable(_) => self.settle_error(None, Cause::Unreadable),
            Kind::WrongId { is_result: true, .. } => (ambiguous, Cause::WrongId),
            // Servers that refuse a request before they read it answer under an id of their own;
            // the status then says that it is this request which they refused.
            Kind::WrongId { is_result: false, code } => self.settle_error(code, Cause::WrongId),
        }
    }

    /// Of an answer that holds no result.
    fn settle_error(&self, code: Option<i64>, otherwise: Cause) -> (Settled, Cause) {
        let rejected = Settled::Final(Disposition::DefinitelyRejected);
        let ambiguous = Settled::Final(Disposition::Ambiguous);
        match (self.status, code) {
            (_, Some(code::INTERNAL_ERROR)) => (ambiguous, otherwise),
            (400, Some(code)) if REFUSING_CODES.contains(&code) => (rejected, Cause::ErrorCode),
            (404, Some(code::METHOD_NOT_FOUND)) => (rejected, Cause::ErrorCode),
            (status, _) if REFUSING.contains(&status) => (rejected, Cause::HttpStatus),
            (_, _) => (ambiguous, otherwise),
        }
    }

    /// The response that the operation's evidence is read from (contract section 2, Bodies):
    /// `structuredContent`; else, where the operation says so, the JSON in the first text block. A
    /// `structuredContent` of `null` counts as absent.
    pub fn evidence(&self, source: ResponseSource) -> Option<Evidence<'_>> {
        let result = self.result()?;
        let structured = result.get("structuredContent").filter(|value| !value.is_null());
        match (structured, source) {
            (Some(value), _) => Some(Evidence::Structured(value)),
            (None, ResponseSource::TextJson) => {
                let text = self.text()?.into_owned();
                Doc::parse(text).ok().map(Evidence::Text)
            }
            (None, ResponseSource::Json) => None,
        }
    }

    /// The first text block of the content.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        let is_text = |block: &Value<'_>| {
            block.get("type").and_then(Value::as_str).as_deref() == Some("text")
        };
        self.result()?.get("content")?.elements().find(is_text)?.get("text")?.as_str()
    }

    /// The id of the task, where the answer is a handle.
    pub fn task_id(&self) -> Option<Cow<'_, str>> {
        if self.kind != Kind::Task {
            return None;
        }
        let result = self.result()?;
        let handle = result.get("task").unwrap_or(result);
        handle.get("taskId")?.as_str()
    }

    /// How long the task's result is kept at least, in milliseconds, where the handle says so.
    pub fn task_ttl_ms(&self) -> Option<u64> {
        let result = self.result()?;
        let ttl = match result.get("task") {
            Some(task) => task.get("ttl"),
            None => result.get("ttlMs"),
        };
        ttl.and_then(Value::as_i64).and_then(|ttl| u64::try_from(ttl).ok())
    }

    /// An `input_required` with another `requestState`; `None` if it is none.
    pub fn with_state(&self, state: &str, id: &Id) -> Option<Self> {
        if self.kind != Kind::InputRequired {
            return None;
        }
        let mut text = String::new();
        write_string(state, &mut text);
        let mut edits = Edits::new();
        edits.members(self.result()?, &[], &[("requestState", &text)]);
        Some(Self::read(self.status, edits.apply(&self.body).into(), id))
    }

    /// The `result` object's text, to be recorded and given to
    /// [`reply::replay`](super::reply::replay).
    pub fn result_json(&self) -> Option<&str> {
        self.result().map(Value::raw)
    }

    /// The result, under our id.
    pub fn result(&self) -> Option<Value<'_>> {
        match self.kind {
            Kind::WrongId { .. } => None,
            Kind::Error { .. }
            | Kind::InputRequired
            | Kind::Result { .. }
            | Kind::Task
            | Kind::Unreadable(_) => self.doc.as_ref()?.root().get("result"),
        }
    }

    /// The body with a report in a holder that it has not.
    fn with_holder(&self, object: Value<'_>, holder: &str, report: &str) -> Bytes {
        let last = object.members().last().map(|member| member.value.span().end);
        let at = last.unwrap_or_else(|| object.span().start.saturating_add(1));
        let (before, after) = self.body.split_at_checked(at).unwrap_or((&self.body, &[]));
        let parts: [&[u8]; 7] = [
            before,
            if last.is_some() { b",\"" } else { b"\"" },
            holder.as_bytes(),
            b"\":{\"effect\":",
            report.as_bytes(),
            b"}",
            after,
        ];
        parts.concat().into()
    }

    /// Whether it answers another request than the one with this id, however its client reads ids:
    /// that client would wait for its own answer for ever.
    pub fn is_foreign_to(&self, id: &Id) -> bool {
        let theirs = self.doc.as_ref().and_then(|doc| doc.root().get("id"));
        matches!(self.kind, Kind::WrongId { .. }) && !theirs.is_some_and(|theirs| id.may_be(theirs))
    }

    /// Whether its result has a `_meta` that is no object, so that it is no result of any revision
    /// and a report has no place in it.
    pub fn has_odd_meta(&self) -> bool {
        match self.kind {
            // It was looked at, and would be no result.
            Kind::Result { .. } => false,
            Kind::Error { .. }
            | Kind::InputRequired
            | Kind::Task
            | Kind::Unreadable(_)
            | Kind::WrongId { .. } => self.result().is_some_and(is_odd_meta),
        }
    }

    /// The answer with our report in it, as [`Answer::with_report_as`] with [`Reports::Ignore`].
    pub fn with_report(&self, report: &str) -> Spliced {
        self.with_report_as(report, Reports::Ignore)
    }

    /// The answer with our report in it: in a result as `_meta.effect`, beside its other members
    /// and in place of the upstream's own (standards MCP-39); in an error as `data.effect`, if it
    /// has no `data` or an object. `report` is a JSON text; `reports` says what becomes of one that
    /// the upstream sent.
    pub fn with_report_as(&self, report: &str, reports: Reports) -> Spliced {
        let keep = |reason| Spliced { body: self.body.clone(), unplaced: Some(reason) };
        let doc = match (self.kind, &self.doc) {
            (Kind::WrongId { .. }, _) => return keep("the answer is to another id"),
            (Kind::Unreadable(reason), None) => return keep(reason),
            (_, None) => return keep("the answer was not read"),
            (_, Some(doc)) => doc,
        };
        let root = doc.root();
        let (object, holder) = match (root.get("result"), root.get("error")) {
            (Some(result), None) => (result, "_meta"),
            (None, Some(error)) => (error, "data"),
            (Some(_), Some(_)) | (None, None) => return keep("the answer is no response"),
        };
        if object.kind() != JsonKind::Object {
            return keep("the answer's result is not an object");
        }
        let mut edits = Edits::new();
        match object.get(holder).map(|held| (held, held.kind())) {
            // Most answers, and so without a detour.
            None => {
                return Spliced { body: self.with_holder(object, holder, report), unplaced: None };
            }
            Some((held, JsonKind::Object)) => disown(held, reports, Some(report), &mut edits),
            // `null` is how some servers write an absent `_meta`; in `data` it may be the message.
            Some((held, JsonKind::Null)) if holder == "_meta" => {
                edits.replace(held, format!("{{\"effect\":{report}}}"));
            }
            Some(_) => return keep("the place for the report is taken by another value"),
        }
        Spliced { body: edits.apply(&self.body).into(), unplaced: None }
    }
}

/// What the data of an event is for the request whose stream it stands on.
#[derive(Clone, Debug)]
pub enum Told {
    /// Its response.
    Answer(Answer),
    /// Another message, or what cannot be read.
    Other,
    /// A response with another id, which has no place on this stream.
    Stray {
        /// A reader that is not strict about ids takes it for the response.
        is_near: bool,
    },
}

impl Told {
    /// What this data is for the request with this id. An error without an id is another message:
    /// servers tell so that they could not read one.
    pub fn by(data: &Bytes, id: &Id) -> Self {
        let Ok(doc) = Doc::parse(data.clone()) else { return Self::Other };
        let root = doc.root();
        let has_outcome = root.get("result").is_some() || root.get("error").is_some();
        if !has_outcome || root.get("method").is_some() {
            return Self::Other;
        }
        match root.get("id") {
            Some(theirs) if id.is(theirs) => {
                let kind = kind_of(root, id);
                Self::Answer(Answer { status: 200, body: data.clone(), doc: Some(doc), kind })
            }
            Some(theirs) if !theirs.is_null() => Self::Stray { is_near: id.may_be(theirs) },
            Some(_) | None if root.get("result").is_some() => Self::Stray { is_near: false },
            Some(_) | None => Self::Other,
        }
    }
}

/// Puts a report into a result that stands inside a message.
pub fn put_report(result: Value<'_>, report: &str, edits: &mut Edits) {
    match result.get("_meta") {
        Some(meta) if meta.kind() == JsonKind::Object => {
            disown(meta, Reports::Ignore, Some(report), edits);
        }
        Some(_) | None => {
            let meta = format!("{{\"effect\":{report}}}");
            edits.members(result, &[], &[("_meta", &meta)]);
        }
    }
}

/// Takes what claims to be a report out of a result that stands inside a message.
pub fn take_report(result: Value<'_>, reports: Reports, edits: &mut Edits) {
    if let Some(meta) = result.get("_meta").filter(|meta| meta.kind() == JsonKind::Object) {
        disown(meta, reports, None, edits);
    }
}

fn kind_of(root: Value<'_>, id: &Id) -> Kind {
    if root.kind() != JsonKind::Object || root.get("method").is_some() {
        return Kind::Unreadable("the answer is no JSON-RPC response");
    }
    if root.get("jsonrpc").and_then(Value::as_str).as_deref() != Some("2.0") {
        return Kind::Unreadable("the answer is not JSON-RPC 2.0");
    }
    let their_id = root.get("id");
    let is_ours = their_id.is_some_and(|value| id.is(value));
    match (root.get("result"), root.get("error")) {
        (Some(_), None) if !is_ours => Kind::WrongId { code: None, is_result: true },
        (Some(result), None) => result_kind(result),
        (None, Some(error)) => {
            let code = error.get("code").and_then(Value::as_i64);
            if is_ours || their_id.is_none_or(Value::is_null) {
                Kind::Error { code }
            } else {
                Kind::WrongId { code, is_result: false }
            }
        }
        (Some(_), Some(_)) => Kind::Unreadable("the answer has both a result and an error"),
        (None, None) => Kind::Unreadable("the answer has neither a result nor an error"),
    }
}

/// A `_meta` is an object; `null` is how some servers write that there is none.
fn is_odd_meta(result: Value<'_>) -> bool {
    let kind = result.get("_meta").map(Value::kind);
    !matches!(kind, None | Some(JsonKind::Object | JsonKind::Null))
}

fn result_kind(result: Value<'_>) -> Kind {
    if result.kind() != JsonKind::Object {
        return Kind::Unreadable("the answer's result is not an object");
    }
    match result.get("resultType").map(Value::as_str) {
        None => {}
        Some(Some(word)) if word == "complete" => {}
        Some(Some(word)) if word == "input_required" => return Kind::InputRequired,
        Some(Some(word)) if word == "task" => return Kind::Task,
        Some(_) => return Kind::Unreadable("the answer's resultType is unknown"),
    }
    // A legacy handle has no content; a tool's result that happens to have a `task` does.
    let is_handle = result.get("content").is_none()
        && result.get("task").and_then(|task| task.get("taskId")).is_some();
    if is_handle {
        return Kind::Task;
    }
    let is_error = match result.get("isError") {
        None => false,
        Some(value) if value.is_null() => false,
        Some(value) => match value.as_bool() {
            Some(is_error) => is_error,
            None => return Kind::Unreadable("the answer's isError is not true or false"),
        },
    };
    if is_odd_meta(result) {
        return Kind::Unreadable("the answer's _meta is not an object");
    }
    let has_effect = result.get("_meta").and_then(|meta| meta.get("effect")).is_some();
    Kind::Result { has_effect, is_error }
}

#[cfg(test)]
mod tests;
