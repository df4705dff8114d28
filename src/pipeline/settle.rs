//! The way back: what became of a call, how it is taken back, and what the agent is told.
//!
//! A write's dispatch is classified, its evidence evaluated, its undo resolved, its entry finished and
//! its report made, in this order, inside the task that `record` spawned. A read is passed on with its
//! report. Nothing here can refuse: something may have been sent.
//!
//! The report is written once the finish is queued, not once it is durable: waiting would add a second
//! flush to every write. Its `ledger: unfinished` therefore says that the ledger is known not to take the
//! finish (it is down, or still owes earlier ones), not that a crash in the next milliseconds could leave
//! the entry begun. After such a crash the entry is unknown, and a repeat is refused until it is settled,
//! which is the safe side. So that a finish does not fail for want of room, the ledger refuses begins
//! while there is only as much left as finishes may need.

mod notice;
mod outcome;
mod waiting;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::audit;
use super::dispatch::Observation;
use super::image::Image;
use super::rounds::{Open, State as Round};
use super::step::{Next, Stage, Step};
use super::stream::{self, Ended, Rewrite, Watched};
use super::{Attempt, Carried, Form, Read, Recorded, Reply, Shared, Write};
use crate::call::Payload;
use crate::call::payload::{Body, Collected, Partial, Prefix, Trailers, collect_prefix};
use crate::contract::class::{Class, Disposition, Outcome, Verdict};
use crate::contract::json::{Doc, write_ascii};
use crate::contract::key::{EntryId, OperationId};
use crate::contract::path::Scope;
use crate::contract::report::{CallJson, MAX_HEADER, Report, Staged, UndoKind};
use crate::contract::selector::Evidence;
use crate::http::body::{essence, is_json};
use crate::http::grpc::{self, is_grpc};
use crate::http::headers::{REPLAYED, sift_answer, sift_trailers};
use crate::ledger::{self, Answer, Cause, Finish, Finished, Record, State, Stored};
use crate::mcp::Era;
use crate::mcp::answer::{self as mcp_answer, Reports, Settled as ToolSettled, Waiting};
use crate::mcp::jsonrpc::Id;
use crate::mcp::reply as mcp_reply;
use crate::metrics::{Decision, OperationMetrics};
use crate::policy::Served;
use crate::upstream::{LostReason, Sent};
use notice::Notice;
use outcome::{Conclusion, Dispatched, conclude};
pub use outcome::{IF_UNCHANGED, is_what_it_says};
pub use waiting::rearm;

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Settle {
    /// What all workers share.
    pub shared: Arc<Shared>,
}

/// An answer, and what is still to do after it was given: reading a stream to its end.
pub struct Settled {
    /// The answer.
    pub reply: Reply,
    /// What the task does after the reply was handed over.
    pub tail: Option<Tail>,
}

/// See [`Settled::tail`].
pub type Tail = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a finish names.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The entry.
    pub entry: EntryId,
    /// The attempt.
    pub attempt: u32,
    /// There is no entry: the ledger was down in observe mode.
    pub is_unrecorded: bool,
}

impl Step for Settle {
    type In = Attempt;
    type Out = Attempt;
    type Below = Observation;
    type Answer = Settled;

    async fn step<N: Stage<Attempt, Answer = Observation>>(
        &self,
        attempt: Attempt,
        next: Next<'_, N>,
    ) -> Settled {
        match attempt {
            Attempt::Read(read) => {
                let about = About::of(&read);
                let observation = next.run(Attempt::Read(read)).await;
                about.settle(&self.shared, observation).await.into()
            }
            Attempt::Write(recorded) => {
                let case = Arc::new(Case {
                    shared: Arc::clone(&self.shared),
                    identity: recorded.identity(),
                    carried: Arc::clone(recorded.carried()),
                    after_unknown: recorded.is_after_unknown(),
                    undoes: recorded.undoes(),
                    before: recorded.before().cloned(),
                    agent: recorded.agent().clone(),
                });
                let own = Arc::clone(&case);
                let settling = async {
                    let observation = next.run(Attempt::Write(recorded)).await;
                    own.settle(observation).await
                };
                // Boxed, as below: a read's future has no room for what is only a write's or a tool's.
                let mut settling = Box::pin(settling);
                // Lost at the drain's end: the connection to the upstream, and so what it would still
                // have said. The agent is told as much, instead of nothing.
                tokio::select! {
                    biased;
                    settled = settling.as_mut() => settled,
                    () = self.shared.tasks.hurried() => case.cut(),
                }
            }
        }
    }
}

/// What the report of a read needs once the read itself is sent.
struct About {
    served: Arc<Served>,
    metrics: Arc<OperationMetrics>,
    would: Option<&'static str>,
    tool: Option<(Id, Era)>,
    authority: Option<HeaderValue>,
    is_tls: bool,
    is_grpc: bool,
}

impl About {
    fn of(read: &Read) -> Self {
        let tool = match &read.call.payload {
            Payload::Mcp(call) => Some((call.id().clone(), call.era())),
            Payload::Http(_) => None,
        };
        Self {
            served: Arc::clone(&read.served),
            metrics: Arc::clone(&read.metrics),
            would: read.would,
            tool,
            authority: read.call.head.authority.clone(),
            is_tls: read.call.head.origin.is_tls,
            is_grpc: is_grpc(&read.call.head.headers),
        }
    }

    fn report(&self) -> Report {
        let mut report = Report::for_read(self.served.operation.id.clone());
        report.would = self.would.map(Into::into);
        report
    }

    /// The report as JSON: the header's text, which is made once per operation.
    fn json(&self) -> String {
        match (self.would, self.served.read_header.to_str()) {
            (None, Ok(made)) => made.to_owned(),
            (Some(_), _) | (None, Err(_)) => self.report().to_json(),
        }
    }

    fn header(&self) -> HeaderValue {
        match self.would {
            None => self.served.read_header.clone(),
            Some(_) => self.report().to_header(MAX_HEADER),
        }
    }

    async fn settle(self, shared: &Shared, observation: Observation) -> Reply {
        let Observation { sent, elapsed } = observation;
        let (response, report) = match sent {
            Sent::Answer(answer) => {
                let (mut parts, body) = answer.into_parts();
                let asked = Asked { authority: self.authority.as_ref(), is_tls: self.is_tls };
                pass_headers(shared, &mut parts, asked);
                let body = passed(shared, body);
                match &self.tool {
                    None if is_endless(&parts.headers, &body) => {
                        let tasks = shared.tasks.clone();
                        let stop: stream::Stop = Box::pin(async move { tasks.hurried().await });
                        (stream::until(parts, body, stop), Some(self.header()))
                    }
                    None => (Response::from_parts(parts, body), Some(self.header())),
                    Some((id, era)) => {
                        let answering = self.tool_answer(shared, parts, body, id, *era);
                        let response = Box::pin(answering).await;
                        (response, None)
                    }
                }
            }
            Sent::NotSent(reason) => self.notice(&Notice::NotSent(reason)),
            Sent::Lost(reason) => self.notice(&Notice::ReadLost(reason)),
        };
        Reply {
            response,
            report,
            entry: None,
            decision: if self.would.is_some() {
                Decision::WouldRefuse
            } else {
                Decision::Forwarded
            },
            metrics: self.metrics,
            class: Class::Read,
            upstream: elapsed,
            elsewhere: None,
        }
    }

    fn notice(&self, notice: &Notice) -> (Response<Body>, Option<HeaderValue>) {
        match &self.tool {
            None if self.is_grpc => (notice.grpc(None), Some(self.header())),
            None => (notice.problem(None), Some(self.header())),
            Some((id, era)) => (notice.result(id, *era, &self.json()), None),
        }
    }

    /// A read tool's answer with its report in it. What cannot be read passes untouched.
    async fn tool_answer(
        &self,
        shared: &Shared,
        parts: Parts,
        body: Body,
        id: &Id,
        era: Era,
    ) -> Response<Body> {
        let report = self.json();
        let reports = shared.settings.mcp.reports;
        if is_event_stream(&parts.headers) {
            let lost = Notice::ReadLost(LostReason::Reset).message(id, era, &report);
            let watched = Watched {
                id: id.clone(),
                at_answer: Box::new(move |_, _| Rewrite::Report(report, reports)),
                // The client may come back for the rest of a stream with ids (2025-11-25).
                at_end: Box::new(move |ended| {
                    (era == Era::Modern || !ended.has_event_id).then_some(lost)
                }),
            };
            let tasks = shared.tasks.clone();
            let stop: stream::Stop = Box::pin(async move { tasks.hurried().await });
            return stream::read_answer(parts, body, watched, stop);
        }
        let in_header = |mut parts: Parts| {
            let name = shared.settings.report_header.clone();
            parts.headers.insert(name, self.report().to_header(MAX_HEADER));
            parts
        };
        if !is_json(essence(&parts.headers)) || is_encoded(&parts.headers) {
            return Response::from_parts(in_header(parts), body);
        }
        let limit = shared.settings.limits.response_body_bytes;
        match collect_prefix(body, limit, &shared.budget, None).await {
            Prefix::Partial { body, .. } => Response::from_parts(in_header(parts), body),
            Prefix::Whole(collected) => {
                let bytes = collected.bytes().clone();
                let answer = mcp_answer::Answer::read(parts.status.as_u16(), bytes, id);
                let is_unread = matches!(
                    answer.kind(),
                    mcp_answer::Kind::Unreadable(_) | mcp_answer::Kind::WrongId { .. }
                );
                // A report in there would pass as ours to a laxer reader.
                if is_unread && stream::names(collected.bytes(), "effect") {
                    return Notice::ReadLost(LostReason::Protocol).result(id, era, &report);
                }
                spliced(shared, parts, &answer, &report, reports, collected)
            }
        }
    }
}

/// One recorded write on its way back.
struct Case {
    shared: Arc<Shared>,
    identity: Identity,
    carried: Arc<Carried>,
    after_unknown: bool,
    undoes: Option<UndoKind>,
    before: Option<Arc<Image>>,
    agent: super::Agent,
}

impl Case {
    fn write(&self) -> &Write {
        &self.carried.fresh.write
    }

    async fn settle(self: Arc<Self>, observation: Observation) -> Settled {
        let Observation { sent, elapsed } = observation;
        match sent {
            Sent::NotSent(reason) => {
                let dispatched = Dispatched::not_sent();
                let conclusion = conclude(self.as_ref(), &dispatched, None);
                self.noticed(&Notice::NotSent(reason), conclusion, elapsed)
            }
            Sent::Lost(reason) => {
                let cause = match reason {
                    LostReason::HeadTimeout | LostReason::TotalTimeout => Cause::Timeout,
                    LostReason::Protocol => Cause::Unreadable,
                    LostReason::RequestBody | LostReason::Reset => Cause::Reset,
                };
                let conclusion = conclude(self.as_ref(), &Dispatched::lost(cause), None);
                self.noticed(&Notice::WriteLost(reason), conclusion, elapsed)
            }
            Sent::Answer(answer) => {
                let (mut parts, body) = answer.into_parts();
                let head = &self.write().head;
                let (authority, is_tls) = (head.authority.as_ref(), head.origin.is_tls);
                pass_headers(&self.shared, &mut parts, Asked { authority, is_tls });
                let body = passed(&self.shared, body);
                match &self.write().form {
                    Form::Http { .. } if is_grpc(&parts.headers) => {
                        self.grpc_answer(parts, body, elapsed).await
                    }
                    Form::Http { .. } => self.http_answer(parts, body, elapsed).await,
                    Form::Mcp { .. } => self.tool_answer(parts, body, elapsed).await,
                }
            }
        }
    }

    /// The process ends before the answer came. Whatever was settled before is done: a finish and the
    /// answer that goes with it are made without a wait between them.
    fn cut(&self) -> Settled {
        let conclusion = conclude(self, &Dispatched::lost(Cause::Shutdown), None);
        self.noticed(&Notice::Cut, conclusion, Duration::ZERO)
    }

    async fn http_answer(self: Arc<Self>, parts: Parts, body: Body, elapsed: Duration) -> Settled {
        let operation = self.write().operation();
        let status = parts.status.as_u16();
        let disposition = operation.statuses.classify(status);
        let reads = operation.reads_answer();
        if !reads && !is_worth_keeping(&parts.headers, &body) {
            let dispatched = Dispatched::answered(disposition, status);
            let conclusion = conclude(self.as_ref(), &dispatched, None);
            return self.answered(Response::from_parts(parts, body), conclusion, None, elapsed);
        }
        let limit = if reads {
            self.shared.settings.limits.response_body_bytes
        } else {
            ledger::MAX_ANSWER
        };
        match collect_prefix(body, limit, &self.shared.budget, None).await {
            Prefix::Whole(collected) => {
                let is_readable = is_json(essence(&parts.headers)) && !is_encoded(&parts.headers);
                // Range answers are a part of something: never evidence (standards H-18).
                let is_partial = parts.status == StatusCode::PARTIAL_CONTENT;
                let doc = (is_readable && !is_partial)
                    .then(|| Doc::parse(collected.bytes().clone()).ok())
                    .flatten();
                let dispatched = Dispatched::answered(disposition, status);
                let evidence = Evidence {
                    status,
                    headers: &parts.headers,
                    response: doc.as_ref().map(Doc::root),
                    request: self.write().request(),
                };
                let conclusion = conclude(self.as_ref(), &dispatched, Some(&evidence));
                let answer = Answer {
                    status,
                    headers: kept_headers(&parts.headers),
                    body: collected.bytes().to_vec(),
                };
                let bytes = collected.bytes().clone();
                let response = Response::from_parts(parts, Body::full(bytes).hold(collected));
                self.answered(response, conclusion, Some(answer), elapsed)
            }
            Prefix::Partial { body, why } => {
                let is_cut = matches!(why, Partial::Broken | Partial::Idle);
                if is_cut && disposition == Disposition::Accepted {
                    let cause = match why {
                        Partial::Idle => Cause::Timeout,
                        Partial::Broken | Partial::Budget | Partial::TooLarge => {
                            Cause::TruncatedBody
                        }
                    };
                    drop(body);
                    let conclusion = conclude(self.as_ref(), &Dispatched::lost(cause), None);
                    return self.noticed(
                        &Notice::WriteLost(LostReason::Reset),
                        conclusion,
                        elapsed,
                    );
                }
                // A call that worked is not turned into an error because its proof is long.
                let evidence = Evidence {
                    status,
                    headers: &parts.headers,
                    response: None,
                    request: self.write().request(),
                };
                let dispatched = Dispatched::answered(disposition, status);
                let conclusion = conclude(self.as_ref(), &dispatched, Some(&evidence));
                self.answered(Response::from_parts(parts, body), conclusion, None, elapsed)
            }
        }
    }

    /// Over gRPC the answer is held up to its end, which says what came of the call. One that is too
    /// long is passed on, and its outcome is unknown.
    async fn grpc_answer(self: Arc<Self>, parts: Parts, body: Body, elapsed: Duration) -> Settled {
        let status = parts.status.as_u16();
        let limit = self.shared.settings.limits.response_body_bytes;
        let (body, end) = match collect_prefix(body, limit, &self.shared.budget, None).await {
            Prefix::Whole(collected) => {
                let bytes = collected.bytes().clone();
                let end = collected.trailers().cloned();
                let body = match end.clone() {
                    Some(trailers) => Body::trailed(bytes, trailers),
                    None => Body::full(bytes),
                };
                (body.hold(collected), end)
            }
            Prefix::Partial { why: Partial::Broken, .. } => {
                let conclusion =
                    conclude(self.as_ref(), &Dispatched::lost(Cause::TruncatedBody), None);
                let notice = Notice::WriteLost(LostReason::Reset);
                return self.noticed(&notice, conclusion, elapsed);
            }
            Prefix::Partial { why: Partial::Idle, .. } => {
                let conclusion = conclude(self.as_ref(), &Dispatched::lost(Cause::Timeout), None);
                let notice = Notice::WriteLost(LostReason::TotalTimeout);
                return self.noticed(&notice, conclusion, elapsed);
            }
            Prefix::Partial { body, why: Partial::Budget | Partial::TooLarge } => (body, None),
        };
        let disposition = match end {
            Some(end) => grpc::disposition(&end),
            None if grpc::ends(&parts.headers) => grpc::disposition(&parts.headers),
            // A proxy on the way answered, by a status of HTTP's.
            None if !parts.status.is_success() => {
                self.write().operation().statuses.classify(status)
            }
            None => Disposition::Ambiguous,
        };
        let conclusion = conclude(self.as_ref(), &Dispatched::answered(disposition, status), None);
        self.answered(Response::from_parts(parts, body), conclusion, None, elapsed)
    }

    async fn tool_answer(self: Arc<Self>, parts: Parts, body: Body, elapsed: Duration) -> Settled {
        let status = parts.status.as_u16();
        let Form::Mcp { call, .. } = &self.write().form else {
            let conclusion = conclude(self.as_ref(), &Dispatched::lost(Cause::Unreadable), None);
            return self.noticed(&Notice::WriteLost(LostReason::Protocol), conclusion, elapsed);
        };
        let (id, era) = (call.id().clone(), call.era());
        if is_event_stream(&parts.headers) && parts.status == StatusCode::OK {
            return self.streamed(parts, body, id, era, elapsed);
        }
        let limit = self.shared.settings.limits.response_body_bytes;
        match collect_prefix(body, limit, &self.shared.budget, None).await {
            Prefix::Whole(collected) => {
                let bytes = collected.bytes().clone();
                let is_readable = is_json(essence(&parts.headers)) && !is_encoded(&parts.headers);
                let answer = if is_readable {
                    mcp_answer::Answer::read(status, bytes, &id)
                } else {
                    mcp_answer::Answer::unread(status, bytes, "the answer is not plain JSON")
                };
                let answer = self.with_own_state(&answer, &id).unwrap_or(answer);
                let is_for_the_agent = match answer.kind() {
                    mcp_answer::Kind::Error { .. }
                    | mcp_answer::Kind::InputRequired
                    | mcp_answer::Kind::Result { .. }
                    | mcp_answer::Kind::Task => true,
                    // What the upstream says of the session or the credential is for the client.
                    mcp_answer::Kind::Unreadable(_) | mcp_answer::Kind::WrongId { .. } => {
                        status >= 400
                    }
                };
                if !is_for_the_agent {
                    let (conclusion, _) = self.conclude_tool(&answer, &parts.headers);
                    let notice = Notice::WriteLost(LostReason::Protocol);
                    return self.noticed(&notice, conclusion, elapsed);
                }
                let report = self.settle_tool(&answer, &parts.headers);
                let reports = self.shared.settings.mcp.reports;
                let shared = &self.shared;
                let response = spliced(shared, parts, &answer, &report, reports, collected);
                self.reply(response, None, elapsed).into()
            }
            Prefix::Partial { body, why } => match why {
                Partial::Broken | Partial::Idle => {
                    drop(body);
                    let dispatched = Dispatched::lost(Cause::TruncatedBody);
                    let conclusion = conclude(self.as_ref(), &dispatched, None);
                    self.noticed(&Notice::WriteLost(LostReason::Reset), conclusion, elapsed)
                }
                Partial::Budget | Partial::TooLarge => {
                    let dispatched = Dispatched::lost(Cause::Unreadable);
                    let conclusion = conclude(self.as_ref(), &dispatched, None);
                    let report = self.finish(&conclusion, None).to_header(MAX_HEADER);
                    self.reply(Response::from_parts(parts, body), Some(report), elapsed).into()
                }
            },
        }
    }

    /// Evaluates a tool's answer: table MCP-23, then the evidence.
    fn conclude_tool(
        &self,
        answer: &mcp_answer::Answer,
        headers: &HeaderMap,
    ) -> (Conclusion, Option<Answer>) {
        let operation = self.write().operation();
        let (settled, why) = answer.settle(operation.is_error);
        let mut dispatched = match settled {
            ToolSettled::Final(disposition) => Dispatched::answered(disposition, answer.status()),
            ToolSettled::Waiting(Waiting::Input) => {
                Dispatched::waiting(Cause::InputRequired, answer.status())
            }
            ToolSettled::Waiting(Waiting::UrlElicitation) => {
                Dispatched::waiting(Cause::UrlElicitation, answer.status())
            }
            ToolSettled::Waiting(Waiting::Task) => {
                Dispatched::waiting(Cause::Task, answer.status())
            }
        };
        if why == mcp_answer::Cause::IsError {
            dispatched.cause = Some(Cause::IsError);
        }
        if matches!(why, mcp_answer::Cause::Unreadable | mcp_answer::Cause::WrongId)
            && dispatched.disposition == Disposition::Ambiguous
        {
            dispatched.cause = Some(Cause::Unreadable);
            dispatched.is_answer = false;
        }
        let response = answer.evidence(operation.response);
        let evidence = Evidence {
            status: answer.status(),
            headers,
            response: response.as_ref().map(mcp_answer::Evidence::value),
            request: self.write().request(),
        };
        let conclusion = conclude(self, &dispatched, Some(&evidence));
        let kept = answer.result_json().map(|result| Answer {
            status: 200,
            headers: Vec::new(),
            body: result.as_bytes().to_vec(),
        });
        (conclusion, kept)
    }

    /// The answer comes on a stream: the reply is the stream, and the task pumps it.
    fn streamed(
        self: Arc<Self>,
        parts: Parts,
        body: Body,
        id: Id,
        era: Era,
        elapsed: Duration,
    ) -> Settled {
        let headers = parts.headers.clone();
        let case = self;
        let session = case.shared.session(&case.write().head, &case.write().principal);
        let at_answer = {
            let (case, headers) = (Arc::clone(&case), headers.clone());
            let (session, id) = (session.clone(), id.clone());
            move |answer: &mcp_answer::Answer, has_event_id: bool| {
                if let Some(own) = case.with_own_state(answer, &id) {
                    let report = case.settle_tool(&own, &headers);
                    return Rewrite::Data(own.with_report(&report).body);
                }
                let report = case.settle_tool(answer, &headers);
                if has_event_id && era == Era::Legacy {
                    // The client may have the event sent again (2025-11-25): it shows the same.
                    case.shared.mcp.elsewhere.tell(session, id, report.clone());
                }
                Rewrite::Report(report, case.shared.settings.mcp.reports)
            }
        };
        let is_elsewhere = Arc::new(AtomicBool::new(false));
        let at_end = {
            let case = Arc::clone(&case);
            let (id, is_elsewhere) = (id.clone(), Arc::clone(&is_elsewhere));
            move |ended: Ended| {
                let is_cut = case.shared.tasks.is_hurried();
                let may_come_back = !ended.is_timeout && !is_cut;
                if ended.has_event_id && era == Era::Legacy && may_come_back {
                    is_elsewhere.store(true, Ordering::Release);
                    waiting::park_stream(&case, session, id, headers);
                    return None;
                }
                let (cause, notice) = match (is_cut, ended.is_timeout) {
                    (true, _) => (Cause::Shutdown, Notice::Cut),
                    (false, true) => (Cause::Timeout, Notice::WriteLost(LostReason::Reset)),
                    (false, false) => (Cause::TruncatedBody, Notice::WriteLost(LostReason::Reset)),
                };
                let conclusion = conclude(case.as_ref(), &Dispatched::lost(cause), None);
                let report = case.finish(&conclusion, None).to_json();
                let entry = Some(case.identity.entry);
                if ended.has_event_id && era == Era::Legacy {
                    case.shared.mcp.elsewhere.tell(session, id.clone(), report.clone());
                }
                Some(notice.message_of(&id, era, &report, entry))
            }
        };
        let watched = Watched { id, at_answer: Box::new(at_answer), at_end: Box::new(at_end) };
        let tasks = case.shared.tasks.clone();
        let stop: stream::Stop = Box::pin(async move { tasks.hurried().await });
        let (response, tail) = stream::write_answer(parts, body, watched, stop);
        let mut reply = case.reply(response, None, elapsed);
        reply.elsewhere = Some(is_elsewhere);
        Settled { reply, tail: Some(tail) }
    }

    /// Settles a tool's answer, and gives the report's JSON.
    fn settle_tool(self: &Arc<Self>, answer: &mcp_answer::Answer, headers: &HeaderMap) -> String {
        let (conclusion, kept) = self.conclude_tool(answer, headers);
        let report = self.finish(&conclusion, kept).to_json();
        if conclusion.state == State::Waiting && !self.identity.is_unrecorded {
            waiting::park(self, answer, headers);
        }
        report
    }

    /// Settles a call whose answer did not come.
    fn settle_lost(&self, cause: Cause) {
        let conclusion = conclude(self, &Dispatched::lost(cause), None);
        self.finish(&conclusion, None);
    }

    /// Settles a call whose task is done and whose result nobody fetched.
    fn settle_unseen(&self) {
        let dispatched = Dispatched::answered(Disposition::Accepted, 200);
        let conclusion = conclude(self, &dispatched, None);
        self.finish(&conclusion, None);
    }

    /// The upstream asks for more before it answers: the state that the client keeps for it is put
    /// into one of ours, which knows the entry (standards MCP-35).
    fn with_own_state(&self, answer: &mcp_answer::Answer, id: &Id) -> Option<mcp_answer::Answer> {
        if answer.kind() != mcp_answer::Kind::InputRequired || self.identity.is_unrecorded {
            return None;
        }
        let write = self.write();
        let upstream = answer.result()?.get("requestState").and_then(|state| state.as_str());
        let open = Open {
            entry: self.identity.entry,
            digest: write.digest.whole,
            operation: write.operation().fingerprint,
        };
        let state =
            Round { asked: None, upstream: upstream.map(|u| u.into_owned()), open: Some(open) };
        let now_ms = self.shared.clock.now_ms();
        answer.with_state(&state.seal(&self.shared.sealer, &write.principal.id, now_ms), id)
    }

    /// Finishes the entry and answers with what the upstream answered.
    fn answered(
        &self,
        response: Response<Body>,
        conclusion: Conclusion,
        answer: Option<Answer>,
        elapsed: Duration,
    ) -> Settled {
        let report = self.finish(&conclusion, answer).to_header(MAX_HEADER);
        self.reply(response, Some(report), elapsed).into()
    }

    /// Finishes the entry and answers with what we know.
    fn noticed(&self, notice: &Notice, conclusion: Conclusion, elapsed: Duration) -> Settled {
        let report = self.finish(&conclusion, None);
        let entry = (!self.identity.is_unrecorded).then_some(self.identity.entry);
        match &self.write().form {
            Form::Http { .. } => {
                let response = if is_grpc(&self.write().head.headers) {
                    notice.grpc(entry)
                } else {
                    notice.problem(entry)
                };
                self.reply(response, Some(report.to_header(MAX_HEADER)), elapsed).into()
            }
            Form::Mcp { call, .. } => {
                let text = notice.message_of(call.id(), call.era(), &report.to_json(), entry);
                self.reply(json_response(text), None, elapsed).into()
            }
        }
    }

    fn reply(
        &self,
        response: Response<Body>,
        report: Option<HeaderValue>,
        elapsed: Duration,
    ) -> Reply {
        let write = self.write();
        Reply {
            response,
            report,
            entry: (!self.identity.is_unrecorded).then_some(self.identity.entry),
            decision: audit::decision(write),
            metrics: Arc::clone(&write.metrics),
            class: write.class,
            upstream: elapsed,
            elsewhere: None,
        }
    }

    /// Hands the finish to the ledger, counts, logs the one line of this write, and gives the report.
    fn finish(&self, conclusion: &Conclusion, answer: Option<Answer>) -> Report {
        let write = self.write();
        conclusion.count(write);
        if let Some(kind) = self.undoes {
            let [accepted, rejected, unknown] = &self.shared.metrics.common().undo_calls;
            match Outcome::from(conclusion.disposition) {
                Outcome::Accepted => accepted.count(kind),
                Outcome::Rejected => rejected.count(kind),
                Outcome::Unknown => unknown.count(kind),
            }
        }
        let finished = if self.identity.is_unrecorded {
            None
        } else {
            let now_ms = self.shared.clock.now_ms();
            let finish = conclusion.finish(self, answer, now_ms);
            let began = write.head.span.as_ref().map(|_| self.shared.clock.instant());
            let finished = self.shared.ledger.finish(finish);
            if let (Some(span), Some(began)) = (&write.head.span, began) {
                span.step("anvil.ledger.finish", began, self.shared.clock.instant());
            }
            Some(finished)
        };
        let report = conclusion.report(self, finished);
        audit::ended(&audit::Ended {
            write,
            ledger_id: &self.carried.ledger_id,
            entry: (!self.identity.is_unrecorded).then_some(self.identity.entry),
            attempt: self.identity.attempt,
            disposition: conclusion.disposition,
            state: conclusion.state,
            cause: conclusion.cause,
            verdict: conclusion.verdict,
            upstream_status: conclusion.status,
            undo: conclusion.undo_kind(),
            undo_deadline_ms: conclusion.deadline_ms,
            now: self.shared.clock.instant(),
        });
        report
    }
}

/// The task of a write saw that the agent had left before dispatch.
pub fn finish_not_sent(shared: &Shared, recorded: &Recorded) {
    let (state, disposition) = (State::Rejected, Disposition::NotSent);
    finish_bare(
        shared,
        recorded.identity(),
        recorded.carried(),
        state,
        Cause::NotSent,
        disposition,
    );
}

/// The task of a write ended after its entry was begun and before it was finished: it panicked, or the
/// process stops and drops it.
pub fn finish_panicked(shared: &Shared, identity: Identity, carried: &Carried) {
    let entry = identity.entry;
    let cause = if std::thread::panicking() {
        tracing::error!(%entry, "the task of a write died: its outcome is unknown");
        Cause::Panic
    } else {
        tracing::warn!(%entry, "the process stops under a write: its outcome is unknown");
        Cause::Shutdown
    };
    let (state, disposition) = (State::Unknown, Disposition::Ambiguous);
    finish_bare(shared, identity, carried, state, cause, disposition);
}

/// Finishes an attempt of which nothing more is known, with its line in the log.
fn finish_bare(
    shared: &Shared,
    identity: Identity,
    carried: &Carried,
    state: State,
    cause: Cause,
    disposition: Disposition,
) {
    if !identity.is_unrecorded {
        let now_ms = shared.clock.now_ms();
        let mut finish = bare_finish(identity, state, cause, disposition, now_ms);
        if state == State::Unknown {
            finish.due_ms = Some(outcome::first_look_ms(shared, now_ms));
        }
        let _kept = shared.ledger.finish(finish);
    }
    audit::ended(&audit::Ended {
        write: &carried.fresh.write,
        ledger_id: &carried.ledger_id,
        entry: (!identity.is_unrecorded).then_some(identity.entry),
        attempt: identity.attempt,
        disposition,
        state,
        cause: Some(cause),
        verdict: None,
        upstream_status: None,
        undo: None,
        undo_deadline_ms: None,
        now: shared.clock.instant(),
    });
}

/// An entry waited for something that did not come in time.
fn finish_expired(shared: &Shared, entry: EntryId, attempt: u32) {
    let identity = Identity { entry, attempt, is_unrecorded: false };
    let now_ms = shared.clock.now_ms();
    let mut finish =
        bare_finish(identity, State::Unknown, Cause::Timeout, Disposition::Ambiguous, now_ms);
    finish.due_ms = Some(outcome::first_look_ms(shared, now_ms));
    let _kept = shared.ledger.finish(finish);
    tracing::info!(
        event = "expired",
        %entry,
        attempt,
        state = %State::Unknown,
        "an entry waited for what did not come"
    );
}

fn bare_finish(
    identity: Identity,
    state: State,
    cause: Cause,
    disposition: Disposition,
    now_ms: i64,
) -> Finish {
    Finish {
        entry: identity.entry,
        attempt: identity.attempt,
        state,
        cause: Some(cause),
        disposition,
        verdict: None,
        answered: false,
        upstream_status: None,
        upstream_id: None,
        undo: None,
        undo_mark: None,
        compensate: None,
        deadline_ms: None,
        undo_unavailable: None,
        answer: None,
        undoes: None,
        evidence: None,
        due_ms: None,
        now_ms,
    }
}

/// The answer that is given when the task of a write died before it could answer: what it had begun is
/// unknown, and that is said.
pub fn died(write: &WriteIdentity) -> Reply {
    let mut report = Report::new(write.class, write.operation.clone());
    report.entry = Some(write.entry);
    report.outcome = Some(Outcome::Unknown);
    let notice = Notice::Died;
    let (response, header) = match &write.tool {
        None => (notice.problem(Some(write.entry)), Some(report.to_header(MAX_HEADER))),
        Some((id, era)) => {
            let text = notice.message_of(id, *era, &report.to_json(), Some(write.entry));
            (json_response(text), None)
        }
    };
    Reply {
        response,
        report: header,
        entry: None,
        decision: Decision::Forwarded,
        metrics: Arc::clone(&write.metrics),
        class: write.class,
        upstream: Duration::ZERO,
        elsewhere: None,
    }
}

/// What is known of a write outside its task.
#[derive(Debug)]
pub struct WriteIdentity {
    /// The entry, if it was begun.
    pub entry: EntryId,
    /// The operation.
    pub operation: OperationId,
    /// The class.
    pub class: Class,
    /// The operation's metrics.
    pub metrics: Arc<OperationMetrics>,
    /// The id and era of a tool call.
    pub tool: Option<(Id, Era)>,
}

impl WriteIdentity {
    /// Of a write.
    pub fn of(write: &Write) -> Self {
        Self {
            entry: write.id,
            operation: write.operation().id.clone(),
            class: write.class,
            metrics: Arc::clone(&write.metrics),
            tool: match &write.form {
                Form::Http { .. } => None,
                Form::Mcp { call, .. } => Some((call.id().clone(), call.era())),
            },
        }
    }
}

/// What a recorded entry's report says now: its undo's deadline may have passed since, or another
/// entry come in its way.
pub fn recorded_report(
    shared: &Shared,
    write: &Write,
    entry: EntryId,
    record: &Record,
    superseded: Option<EntryId>,
) -> Report {
    let mut report = write.report();
    report.entry = Some(entry);
    report.ledger_id = Some(record.prior.ledger_id.clone());
    report.idempotency_key = record.key_sent.then(|| record.prior.ledger_id.clone());
    report.outcome = (record.prior.state == State::Accepted).then_some(Outcome::Accepted);
    if let Some(finish) = &record.finish {
        report.verdict = finish.verdict;
        let now_ms = shared.clock.now_ms();
        let is_passed = crate::contract::undo::is_passed(finish.deadline_ms, now_ms);
        report.deadline_ms = finish.deadline_ms;
        report.undo_unavailable = finish.undo_unavailable.clone();
        if is_passed && finish.undo.is_some() {
            report.undo_unavailable = Some("deadline passed".to_owned());
        } else if let Some(later) = superseded {
            report.undo_unavailable = Some(format!("superseded by entry {later}"));
        } else if finish.verdict != Some(Verdict::Contradicted) {
            report.undo = finish.undo.as_deref().and_then(CallJson::from_json);
        }
        report.compensate = finish.compensate.as_deref().and_then(CallJson::from_json);
    }
    report
}

/// A recorded answer, for a repeat: as it was, with a report of now (standards I-9, MCP-47).
pub fn recorded_answer(
    shared: &Shared,
    write: &Write,
    entry: EntryId,
    stored: Stored,
    superseded: Option<EntryId>,
) -> (Response<Body>, Option<HeaderValue>) {
    let mut report = recorded_report(shared, write, entry, &stored.record, superseded);
    report.replayed = true;
    let answer =
        stored.answer.unwrap_or(Answer { status: 200, headers: Vec::new(), body: Vec::new() });
    report.staged = staged_again(shared, write, &answer);
    match &write.form {
        Form::Http { .. } => {
            let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
            let mut response = Response::new(Body::full(answer.body));
            *response.status_mut() = status;
            let headers = response.headers_mut();
            for (name, value) in answer.headers {
                if let (Ok(name), Ok(value)) =
                    (http::HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&value))
                {
                    headers.append(name, value);
                }
            }
            headers.insert(REPLAYED, HeaderValue::from_static("true"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            (response, Some(report.to_header(MAX_HEADER)))
        }
        Form::Mcp { call, .. } => {
            let recorded = String::from_utf8_lossy(&answer.body);
            let report = report.to_json();
            let text =
                mcp_reply::replay(call.id(), call.era(), &recorded, &report).unwrap_or_else(|_| {
                    Notice::Unreplayable.message_of(call.id(), call.era(), &report, Some(entry))
                });
            (json_response(text), None)
        }
    }
}

/// What the report of a staged call's recorded answer says of its draft.
fn staged_again(shared: &Shared, write: &Write, answer: &Answer) -> Option<Staged> {
    let operation = write.operation();
    let draft = operation.draft.as_ref().filter(|_| write.control.stage)?;
    let now_ms = shared.clock.now_ms();
    let of = |response| {
        let scope = Scope { before: None, request: write.request(), response, key: None };
        outcome::staged(&write.live, operation, draft, &scope, now_ms)
    };
    let doc = Doc::parse(answer.body.clone()).ok();
    Some(match &write.form {
        Form::Http { .. } => of(doc.as_ref().map(Doc::root)),
        Form::Mcp { .. } => {
            let result = doc.as_ref().map(|doc| mcp_answer::Answer::of_result(doc.root()));
            let served = write.live.snapshot.operation(&draft.reference.operation)?;
            let source = served.operation.response;
            let evidence = result.as_ref().and_then(|result| result.evidence(source));
            of(evidence.as_ref().map(mcp_answer::Evidence::value))
        }
    })
}

/// An MCP answer of ours: HTTP 200 and one JSON message.
pub fn json_response(text: String) -> Response<Body> {
    let mut response = Response::new(Body::full(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// An answer with the report spliced in; every other byte as it came.
fn spliced(
    shared: &Shared,
    mut parts: Parts,
    answer: &mcp_answer::Answer,
    report: &str,
    reports: Reports,
    held: Collected,
) -> Response<Body> {
    let spliced = answer.with_report_as(report, reports);
    if let Some(reason) = spliced.unplaced {
        tracing::debug!(reason, "the report could not be put into the answer");
        let mut ascii = String::with_capacity(report.len());
        write_ascii(report, &mut ascii);
        if ascii.len() <= MAX_HEADER
            && let Ok(value) = HeaderValue::try_from(ascii)
        {
            parts.headers.insert(shared.settings.report_header.clone(), value);
        }
    } else {
        void_old_body(&mut parts.headers);
    }
    let body: Bytes = spliced.body;
    Response::from_parts(parts, Body::full(body).hold(held))
}

/// What was computed over a body that is rewritten is void (standards H-44).
pub fn void_old_body(headers: &mut HeaderMap) {
    let names = ["accept-ranges", "content-digest", "content-md5", "digest", "repr-digest"];
    for name in names {
        headers.remove(name);
    }
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::ETAG);
}

/// Where a caller thinks that it is.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The authority that it named.
    pub authority: Option<&'a HeaderValue>,
    /// It speaks TLS to us.
    pub is_tls: bool,
}

/// What is passed on of an answer's head.
pub fn pass_headers(shared: &Shared, parts: &mut Parts, asked: Asked<'_>) {
    let stripped = sift_answer(&mut parts.headers, &shared.settings.report_header);
    if stripped > 0 {
        shared.metrics.common().stripped_upstream.increment(u64::from(stripped));
    }
    for name in [header::LOCATION, header::CONTENT_LOCATION] {
        if let Some(value) = parts.headers.get(&name)
            && let Some(ours) = relocated(shared, value, asked)
        {
            parts.headers.insert(name, ours);
        }
    }
    parts.version = http::Version::HTTP_11;
}

/// A location under the upstream's authority, as a location under ours (contract section 9).
fn relocated(shared: &Shared, value: &HeaderValue, asked: Asked<'_>) -> Option<HeaderValue> {
    let settings = &shared.settings;
    let text = value.to_str().ok()?;
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let path = rest.strip_prefix(settings.upstream_authority.as_str())?;
    if !(path.is_empty() || path.starts_with(['/', '?', '#'])) {
        return None;
    }
    let path = path.strip_prefix(settings.upstream_base.as_str()).unwrap_or(path);
    let scheme = if asked.is_tls { "https" } else { "http" };
    HeaderValue::from_str(&format!("{scheme}://{}{path}", asked.authority?.to_str().ok()?)).ok()
}

/// An answer's trailers are passed on, but for reports that are not ours.
pub fn passed(shared: &Shared, body: Body) -> Body {
    body.with_trailers(Trailers::Sifted(sift_trailers, shared.settings.report_header.clone()))
}

/// Whether an answer is a stream of events.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    essence(headers).eq_ignore_ascii_case("text/event-stream")
}

/// Whether an answer is a stream of events that does not say where it ends.
fn is_endless(headers: &HeaderMap, body: &Body) -> bool {
    use http_body::Body as _;
    is_event_stream(headers) && body.size_hint().exact().is_none()
}

/// Whether an answer is in a coding, which we never read.
pub fn is_encoded(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Whether an answer that no rule reads is read all the same, to be given to a repeat: one that says
/// how long it is and is short, or JSON. Anything else may be a stream, and streams.
fn is_worth_keeping(headers: &HeaderMap, body: &Body) -> bool {
    use http_body::Body as _;
    let limit = u64::try_from(ledger::MAX_ANSWER).unwrap_or(u64::MAX);
    match body.size_hint().exact() {
        Some(length) => length <= limit,
        None => is_json(essence(headers)),
    }
}

/// The headers that a recorded answer keeps (standards I-9); none may hold a secret.
fn kept_headers(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    [header::CONTENT_TYPE, header::CONTENT_LANGUAGE, header::LOCATION, header::ETAG, header::LINK]
        .iter()
        .flat_map(|name| headers.get_all(name).iter().map(move |value| (name, value)))
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect()
}

/// Whether a finish is not yet durable as far as anybody knows.
fn is_unfinished(finished: Option<Finished>) -> bool {
    matches!(finished, Some(Finished::Unfinished))
}
