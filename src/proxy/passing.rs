//! MCP messages that run no tool: they pass, and what they show is looked at on the way.
//!
//! Lists of tools get what the policy says of them; `initialize` tells what a client can do; a GET
//! stream, or one of `subscriptions/listen`, may hold the answer to a call whose own stream ended
//! early, or news of a task. Bytes that are not concerned pass as they came, and so do 401, 404, 405
//! and 406 with their headers: clients' state machines hang on them (standards MCP-17).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};

use super::{Edge, Voice, plain};
use crate::call::payload::{Body, Prefix, collect_prefix};
use crate::call::{Head, Oddity, Permit, Principal};
use crate::contract::class::{Class, Level, Mode};
use crate::contract::declared;
use crate::contract::json::{Doc, Edits, Kind as JsonKind, Value};
use crate::http::body::{essence, is_json};
use crate::http::encode;
use crate::http::headers as http_headers;
use crate::mcp::answer::{Answer, Kind as AnswerKind, Reports, put_report, take_report};
use crate::mcp::catalog::Tool;
use crate::mcp::claims::{Claim, claim};
use crate::mcp::jsonrpc::{Id, Kind, Message, holds};
use crate::mcp::list::{Said, decorate};
use crate::mcp::renaming::EventRenamer;
use crate::mcp::request::Elicitation;
use crate::mcp::sessions::{SESSION, SessionKey};
use crate::mcp::sse::Frame;
use crate::pipeline::carry::ask_for_identity;
use crate::pipeline::elsewhere::{Ending, TaskKey};
use crate::pipeline::live::Live;
use crate::pipeline::select::UNPINNED;
use crate::pipeline::settle::{is_encoded, is_event_stream, passed, void_old_body};
use crate::pipeline::stream::{
    End, Goes, Rewrite, Stop, Watch, Watched, each_message, read_answer, renamer, watched_stream,
};
use crate::pipeline::{Shared, unseen};
use crate::policy::Group;
use crate::upstream::{Clocks, Sent};

impl<P> Edge<P> {
    /// Passes a message that is no call.
    pub(super) async fn pass_message(
        &self,
        head: Head,
        oddity: Option<Oddity>,
        message: &Message,
        body: Body,
        permit: Permit,
    ) -> Response<Body> {
        let shared = Arc::clone(&self.cx.shared);
        let principal = shared.principal(&head);
        let (method, id) = match message.kind() {
            Kind::Request { id, method } => (method.as_str(), id.clone()),
            Kind::Notification { method } if method == "notifications/cancelled" => {
                let params = message.params();
                let id = params.and_then(|params| params.get("requestId")).and_then(Id::from_value);
                let session = shared.session(&head, &principal);
                if let Some(id) = &id {
                    shared.mcp.flights.leave(&session, id);
                }
                let response = self.pass(head, oddity, body, permit).await;
                if let Some(id) = id {
                    shared.mcp.flights.cancel(&session, &id);
                }
                return response;
            }
            Kind::Response { id } => {
                let question = id.as_ref().and_then(Id::text);
                let Some(question) = question.filter(|id| shared.sealer.is_question(id)) else {
                    return self.pass(head, oddity, body, permit).await;
                };
                // The answer to one of ours stays here, whether anybody waits for it or not.
                let session = shared.session(&head, &principal);
                shared.mcp.questions.hear(&session, &question, message.doc().root());
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::ACCEPTED;
                return response;
            }
            Kind::Notification { .. } => return self.pass(head, oddity, body, permit).await,
        };
        match method {
            "initialize" => {
                let capabilities = message.params().and_then(|params| params.get("capabilities"));
                let elicitation =
                    capabilities.map(Elicitation::from_capabilities).unwrap_or_default();
                let response = self.pass_plain(head, oddity, body, permit).await;
                if let Some(session) = response.headers().get(SESSION)
                    && let Ok(session) = session.to_str()
                {
                    let key = SessionKey::new(&principal.id, session);
                    shared.mcp.sessions.learn(key, elicitation);
                }
                observed(&shared, response, id, |_| Rewrite::Keep).await
            }
            "tools/list" => {
                let response = self.pass_plain(head, oddity, body, permit).await;
                let live = shared.policies.load();
                let rewrite = {
                    let shared = Arc::clone(&shared);
                    move |answer: &Answer| decorated(&shared, &live, &principal, answer)
                };
                observed(&shared, response, id, rewrite).await
            }
            "subscriptions/listen" => {
                let session = shared.session(&head, &principal);
                let response = self.pass_plain(head, oddity, body, permit).await;
                if is_event_stream(response.headers()) {
                    return self.watched(response, principal, session, false);
                }
                observed(&shared, response, id, |_| Rewrite::Keep).await
            }
            "tasks/cancel" | "tasks/get" | "tasks/list" => {
                let response = self.pass_plain(head, oddity, body, permit).await;
                let rewrite = {
                    let shared = Arc::clone(&shared);
                    move |answer: &Answer| news(&shared, &principal, answer)
                };
                observed(&shared, response, id, rewrite).await
            }
            "tasks/result" => {
                let task = message.params().and_then(|params| params.get("taskId"));
                let key =
                    task.and_then(Value::as_str).map(|task| TaskKey::new(&principal.id, &task));
                let response = self.pass_plain(head, oddity, body, permit).await;
                let rewrite = {
                    let shared = Arc::clone(&shared);
                    move |answer: &Answer| result_of(&shared, key.as_ref(), answer)
                };
                observed(&shared, response, id, rewrite).await
            }
            _ => {
                let response = self.pass_plain(head, oddity, body, permit).await;
                observed(&shared, response, id, |_| Rewrite::Keep).await
            }
        }
    }

    /// Passes a GET or DELETE, or whatever else comes without a message.
    pub(super) async fn pass_bare(
        &self,
        head: Head,
        oddity: Option<Oddity>,
        body: Body,
        permit: Permit,
    ) -> Response<Body> {
        let shared = Arc::clone(&self.cx.shared);
        let principal = shared.principal(&head);
        let session = shared.session(&head, &principal);
        match head.method {
            Method::GET => {
                let is_resumed = head.headers.contains_key("last-event-id");
                let response = self.pass_plain(head, oddity, body, permit).await;
                self.watched(response, principal, session, is_resumed)
            }
            Method::DELETE => {
                let response = self.pass(head, oddity, body, permit).await;
                if response.status().is_success() {
                    shared.mcp.sessions.forget(&session);
                    // Before its calls: the one that waits for an answer is told that it was not
                    // made.
                    shared.mcp.questions.end(&session);
                    shared.mcp.flights.end(&session);
                    shared.mcp.elsewhere.end_session(&session);
                }
                response
            }
            _ => self.pass(head, oddity, body, permit).await,
        }
    }

    /// A stream of many messages: answers that are still owed, and news of tasks. It has no end of its
    /// own, so the drain ends it.
    fn watched(
        &self,
        response: Response<Body>,
        principal: Principal,
        session: SessionKey,
        is_resumed: bool,
    ) -> Response<Body> {
        let (parts, body) = response.into_parts();
        if parts.status != StatusCode::OK
            || !is_event_stream(&parts.headers)
            || is_encoded(&parts.headers)
        {
            return Response::from_parts(parts, body);
        }
        let shared = Arc::clone(&self.cx.shared);
        let renamer = renamer(shared.settings.mcp.reports);
        let watch = Standing { shared, principal, session, is_resumed, renamer };
        let drain = self.cx.drain.clone();
        let stop = async move { drain.begun().await };
        let limit = self.cx.shared.settings.limits.response_body_bytes;
        watched_stream(parts, body, Box::new(watch), limit, Some(Box::pin(stop)))
    }

    /// Passes a message whose answer is read: it is asked for without a coding.
    async fn pass_plain(
        &self,
        mut head: Head,
        oddity: Option<Oddity>,
        body: Body,
        permit: Permit,
    ) -> Response<Body> {
        ask_for_identity(&mut head.headers);
        self.pass(head, oddity, body, permit).await
    }

    /// Passes a message: it streams both ways, without a report and without our clocks on its length,
    /// because it may be a stream that rests.
    async fn pass(
        &self,
        head: Head,
        oddity: Option<Oddity>,
        body: Body,
        permit: Permit,
    ) -> Response<Body> {
        let shared = &self.cx.shared;
        let settings = &shared.settings;
        if let Some(oddity) = oddity
            && settings.mode == Mode::Enforce
        {
            return self.refuse(oddity.into_refusal().into(), Voice::Http);
        }
        let headers = head.headers.clone();
        let parts = match encode::request_head(&head, headers, None, &self.hop) {
            Ok(parts) => parts,
            Err(refusal) => return self.refuse(refusal.into(), Voice::Http),
        };
        let clocks = Clocks {
            connect: settings.timeouts.connect,
            head: settings.timeouts.head,
            idle: None,
            total: None,
        };
        match self.cx.upstream.send(Request::from_parts(parts, body), &clocks).await {
            Sent::Answer(answer) => {
                let (mut parts, body) = answer.into_parts();
                let stripped =
                    http_headers::sift_answer(&mut parts.headers, settings.report_header);
                shared.metrics.common().stripped_upstream.increment(u64::from(stripped));
                Response::from_parts(parts, passed(shared, body).hold(permit))
            }
            Sent::NotSent(reason) => plain(StatusCode::BAD_GATEWAY, &reason.to_string()),
            Sent::Lost(reason) => plain(StatusCode::BAD_GATEWAY, &reason.to_string()),
        }
    }
}

/// Looks at the one answer of a message, in JSON or on a stream, and rewrites it. A report that the
/// upstream claims in it is taken out (standards MCP-39).
async fn observed(
    shared: &Shared,
    response: Response<Body>,
    id: Id,
    rewrite: impl FnOnce(&Answer) -> Rewrite + Send + Sync + 'static,
) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if is_encoded(&parts.headers) {
        return Response::from_parts(parts, body);
    }
    let reports = shared.settings.mcp.reports;
    if is_event_stream(&parts.headers) && parts.status == StatusCode::OK {
        let own_id = id.clone();
        let watched = Watched {
            id,
            reports,
            at_answer: Box::new(move |answer, _| {
                without_claim(rewrite(answer), answer, &own_id, reports)
            }),
            at_end: Box::new(|_| None),
        };
        let tasks = shared.tasks.clone();
        let stop: Stop = Box::pin(async move { tasks.hurried().await });
        let limit = shared.settings.limits.response_body_bytes;
        return read_answer(parts, body, watched, limit, stop);
    }
    if !is_json(essence(&parts.headers)) {
        return unseen::untold(shared, parts, body, &id).await;
    }
    let limit = shared.settings.limits.response_body_bytes;
    match collect_prefix(body, limit, &shared.budget, None).await {
        Prefix::Partial { body, .. } => unseen::renamed(shared, parts, body),
        Prefix::Whole(collected) => {
            let answer = Answer::read(parts.status.as_u16(), collected.bytes().clone(), &id);
            let rewrite = match parts.status {
                StatusCode::OK => rewrite(&answer),
                _ => Rewrite::Keep,
            };
            match without_claim(rewrite, &answer, &id, reports).apply(&answer) {
                None => Response::from_parts(parts, Body::from(collected)),
                Some(bytes) => {
                    void_old_body(&mut parts.headers);
                    Response::from_parts(parts, Body::full(bytes).hold(collected))
                }
            }
        }
    }
}

/// An answer to a message that is no call has no report but one of ours (standards MCP-39).
fn without_claim(rewrite: Rewrite, answer: &Answer, id: &Id, reports: Reports) -> Rewrite {
    let message = match &rewrite {
        Rewrite::Data(data) => data,
        Rewrite::Keep => answer.body(),
        Rewrite::Report(..) => return rewrite,
    };
    match claim(message, reports) {
        Claim::None => rewrite,
        Claim::Taken(message) => Rewrite::Data(message),
        Claim::Unread => Rewrite::Data(unseen::unreadable(id).into()),
    }
}

/// A page of tools with what the policy says of them.
fn decorated(shared: &Shared, live: &Live, principal: &Principal, answer: &Answer) -> Rewrite {
    let Some(result) = answer.result() else { return Rewrite::Keep };
    shared.mcp.catalog.learn(&principal.credential, result, shared.clock.instant());
    let edits = decorate(result, |tool| {
        let name = tool.get("name")?.as_str()?;
        let group = live.snapshot.find_tool(&name)?;
        Some(said(live, group, tool))
    });
    if edits.is_empty() {
        return Rewrite::Keep;
    }
    Rewrite::Data(edits.apply(answer.body()).into())
}

/// What is said of a declared tool.
fn said(live: &Live, group: &Group, tool: Value<'_>) -> Said {
    let live_tool = Tool::read(tool).map(|(_, tool)| tool);
    let is_off_pin = group.operations.iter().any(|served| {
        let matches = |pin: &String| live_tool.as_ref().is_some_and(|tool| tool.matches(pin));
        served.schema_sha256.as_ref().is_some_and(|pin| !matches(pin))
    });
    let undeclared = live.undeclared(crate::call::Transport::Mcp, Class::Irreversible);
    let undeclared = undeclared.map_or(Level::Challenge, |(served, _)| served.operation.confirm);
    let single = match group.operations.as_slice() {
        [served] if served.operation.conditions.is_empty() => Some(served),
        _ => None,
    };
    let covers_all = group.operations.iter().any(|served| served.operation.conditions.is_empty());
    let worst = group.operations.iter().map(|served| served.operation.class).max();
    let class = match worst {
        Some(class) if covers_all && !is_off_pin => class,
        Some(_) | None => Class::Irreversible,
    };
    let note = |served: &crate::policy::Served| served.notes.first().cloned();
    let contract = match (is_off_pin, single) {
        (true, _) => declared::degraded_json(class, UNPINNED),
        (false, Some(served)) => {
            declared::contract_json(&served.operation, note(served).as_deref())
        }
        (false, None) => {
            let variants = group
                .operations
                .iter()
                .map(|served| (&served.operation, served.notes.first().map(String::as_str)));
            declared::variants_json(class, variants)
        }
    };
    let level =
        if is_off_pin || !covers_all { group.strictest.max(undeclared) } else { group.strictest };
    let confirm = match level {
        Level::Caller | Level::Challenge => Some(level),
        Level::Human | Level::None => None,
    };
    let operation = single.map(|served| served.operation.id.as_str().to_owned());
    Said { class, contract, operation, confirm }
}

/// See [`Edge::watched`].
struct Standing {
    shared: Arc<Shared>,
    principal: Principal,
    session: SessionKey,
    /// It goes on with a stream that broke off, so that it may hold an answer (standards MCP-20).
    is_resumed: bool,
    renamer: Option<EventRenamer>,
}

impl Watch for Standing {
    fn frame(&mut self, frame: Frame) -> Bytes {
        if let Some(renamer) = self.renamer.as_mut().filter(|_| frame.is_unseen()) {
            return renamer.push(frame.raw());
        }
        let Some(data) = frame.data() else { return frame.into_raw() };
        let reports = self.shared.settings.mcp.reports;
        each_message(frame, &data, |message| {
            self.message(message).unwrap_or_else(|| Goes::unclaimed(message, reports))
        })
    }

    fn is_answered(&self) -> bool {
        true
    }

    fn end(&mut self, cut: Option<Frame>, _: bool) -> End {
        End { bytes: cut.map(|frame| self.frame(frame)), is_whole: true }
    }
}

impl Standing {
    /// What becomes of a message that concerns a call.
    fn message(&self, data: &Bytes) -> Option<Goes> {
        // Most events concern nobody; a name may be spelt with escapes.
        let concerning = ["\"result\"", "\"error\"", "notifications/t", "\\u"];
        if !concerning.iter().any(|needle| holds(data, needle)) {
            return None;
        }
        let doc = Doc::parse(data.clone()).ok()?;
        let root = doc.root();
        let elsewhere = &self.shared.mcp.elsewhere;
        if let Some(method) = root.get("method").and_then(Value::as_str) {
            if method == "notifications/tools/list_changed" {
                self.shared.mcp.catalog.forget(&self.principal.credential);
            }
            let is_news = ["notifications/tasks", "notifications/tasks/status"].contains(&&*method);
            let params = root.get("params").filter(|_| is_news)?;
            let mut edits = Edits::new();
            task_news(&self.shared, &self.principal, params, &mut edits);
            if edits.is_empty() {
                return None;
            }
            let message = edits.apply(data).into();
            return Some(Goes::Anew(match claim(&message, self.shared.settings.mcp.reports) {
                Claim::Taken(message) => message,
                Claim::None | Claim::Unread => message,
            }));
        }
        let id = root.get("id").and_then(Id::from_value)?;
        let answer = Answer::from_event(data, &id)?;
        let Some(report) = elsewhere.answer(&self.session, &id, &answer) else {
            // Its own stream stands, and is where its client is told what became of it.
            let is_astray = !self.is_resumed && self.shared.mcp.flights.has(&self.session, &id);
            return is_astray.then_some(Goes::Nowhere);
        };
        Rewrite::Report(report, self.shared.settings.mcp.reports).apply(&answer).map(Goes::Anew)
    }
}

/// News of tasks in the result of a message about them.
fn news(shared: &Arc<Shared>, principal: &Principal, answer: &Answer) -> Rewrite {
    let Some(result) = answer.result() else { return Rewrite::Keep };
    let mut edits = Edits::new();
    task_news(shared, principal, result, &mut edits);
    for task in result.get("tasks").into_iter().flat_map(Value::elements) {
        task_news(shared, principal, task, &mut edits);
    }
    if edits.is_empty() { Rewrite::Keep } else { Rewrite::Data(edits.apply(answer.body()).into()) }
}

/// How long the result of a task that is done is waited for, before its call is settled without it.
const RESULT: Duration = Duration::from_secs(60);

/// News of one task: its call is settled when it is over, and its result gets the report (standards
/// MCP-42). A cancelled task may go on all the same.
fn task_news(shared: &Arc<Shared>, principal: &Principal, task: Value<'_>, edits: &mut Edits) {
    let text = |name: &str| task.get(name).and_then(Value::as_str);
    let (Some(id), Some(status)) = (text("taskId"), text("status")) else { return };
    let key = TaskKey::new(&principal.id, &id);
    let elsewhere = &shared.mcp.elsewhere;
    match &*status {
        "completed" => {
            match task.get("result").filter(|result| result.kind() == JsonKind::Object) {
                Some(result) => {
                    let answer = Answer::of_result(result);
                    match elsewhere.task_answer(&key, &answer) {
                        Some(report) => put_report(result, &report, edits),
                        None => take_report(result, shared.settings.mcp.reports, edits),
                    }
                }
                // The result itself comes with `tasks/result` (2025-11-25), or never.
                None if elsewhere.has_open_task(&key) => {
                    let waiter = Arc::clone(shared);
                    let _detached = shared.tasks.spawn_background("task result", async move {
                        tokio::time::sleep(RESULT).await;
                        waiter.mcp.elsewhere.end_task(&key, Ending::Completed);
                    });
                }
                None => {}
            }
        }
        "failed" => drop(elsewhere.end_task(&key, Ending::Failed)),
        "cancelled" => drop(elsewhere.end_task(&key, Ending::Cancelled)),
        _ => {}
    }
}

/// The answer to `tasks/result`: what the call would have been answered with.
fn result_of(shared: &Shared, key: Option<&TaskKey>, answer: &Answer) -> Rewrite {
    let Some(key) = key else { return Rewrite::Keep };
    match answer.kind() {
        AnswerKind::Result { .. } => match shared.mcp.elsewhere.task_answer(key, answer) {
            Some(report) => Rewrite::Report(report, shared.settings.mcp.reports),
            None => Rewrite::Keep,
        },
        // An error of the task itself; one of the question about it says nothing of the task.
        AnswerKind::Error { code: Some(code) } if !(-32602..=-32600).contains(&code) => {
            match shared.mcp.elsewhere.end_task(key, Ending::Failed) {
                Some(report) => Rewrite::Report(report, shared.settings.mcp.reports),
                None => Rewrite::Keep,
            }
        }
        AnswerKind::Error { .. }
        | AnswerKind::InputRequired
        | AnswerKind::Task
        | AnswerKind::Unreadable(_)
        | AnswerKind::WrongId { .. } => Rewrite::Keep,
    }
}
