//! A tool's answer to a write: in one piece, or on a stream of events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::response::Parts;
use http::{HeaderMap, StatusCode};

use super::head::{is_encoded, is_event_stream, spliced};
use super::notice::Notice;
use super::outcome::{Conclusion, Dispatched, conclude};
use super::{Case, Settled, waiting};
use crate::call::payload::{Body, Partial, Prefix, collect_prefix};
use crate::contract::class::Disposition;
use crate::contract::report::Report;
use crate::contract::selector::Evidence;
use crate::http::body::{essence, is_json};
use crate::ledger::{Answer, Cause, State};
use crate::mcp::Era;
use crate::mcp::answer::{self as mcp_answer, Settled as ToolSettled, Waiting};
use crate::mcp::jsonrpc::Id;
use crate::pipeline::Form;
use crate::pipeline::rounds::{Open, State as Round};
use crate::pipeline::stream::{self, Ended, Rewrite, Watched};
use crate::upstream::LostReason;

impl Case {
    pub(super) async fn tool_answer(
        self: Arc<Self>,
        parts: Parts,
        body: Body,
        elapsed: Duration,
    ) -> Settled {
        let status = parts.status.as_u16();
        let Form::Mcp { call, .. } = &self.write().form else {
            let conclusion = conclude(self.as_ref(), &Dispatched::lost(Cause::Unreadable), None);
            return self.noticed(&Notice::WriteLost(LostReason::Protocol), conclusion, elapsed);
        };
        let (id, era) = (call.id().clone(), call.era());
        let is_stream = is_event_stream(&parts.headers) && !is_encoded(&parts.headers);
        if is_stream && parts.status == StatusCode::OK {
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
                let outcome = report.outcome;
                let report = report.to_json();
                let response = spliced(&self.shared, parts, &answer, &id, &report, collected);
                self.reply(response, None, outcome, elapsed).into()
            }
            Prefix::Partial { body, why } => match why {
                Partial::Broken | Partial::Idle => {
                    drop(body);
                    self.cut_answer(why, elapsed)
                }
                // Passed on, a report in it would be taken for ours.
                Partial::Budget | Partial::TooLarge => {
                    drop(body);
                    let dispatched = Dispatched::lost(Cause::Unreadable);
                    let conclusion = conclude(self.as_ref(), &dispatched, None);
                    self.noticed(&Notice::TooLong, conclusion, elapsed)
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
            // Such an answer goes on as it came: its agent saw it.
            && answer.status() < 400
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
                    let report = case.settle_tool(&own, &headers).to_json();
                    return Rewrite::Data(own.with_report(&report).body);
                }
                if matches!(answer.kind(), mcp_answer::Kind::Unreadable(_)) {
                    let (conclusion, _) = case.conclude_tool(answer, &headers);
                    let report = case.finish(&conclusion, None).to_json();
                    let entry = Some(case.identity.entry);
                    let notice = Notice::WriteLost(LostReason::Protocol);
                    return Rewrite::Data(notice.message_of(&id, era, &report, entry).into());
                }
                let report = case.settle_tool(answer, &headers).to_json();
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
                let may_come_back =
                    !(ended.is_timeout || ended.is_too_large || ended.is_unreadable || is_cut);
                if ended.has_event_id && era == Era::Legacy && may_come_back {
                    is_elsewhere.store(true, Ordering::Release);
                    waiting::park_stream(&case, session, id, headers);
                    return None;
                }
                let (cause, notice) = match (is_cut, ended.is_timeout) {
                    (true, _) => (Cause::Shutdown, Notice::Cut),
                    (false, true) => (Cause::Timeout, Notice::WriteLost(LostReason::BodyTimeout)),
                    (false, false) if ended.is_unreadable => {
                        (Cause::Unreadable, Notice::WriteLost(LostReason::Protocol))
                    }
                    (false, false) if ended.is_too_large => (Cause::Unreadable, Notice::TooLong),
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
        let watched = Watched {
            id,
            reports: case.shared.settings.mcp.reports,
            at_answer: Box::new(at_answer),
            at_end: Box::new(at_end),
        };
        let tasks = case.shared.tasks.clone();
        let stop: stream::Stop = Box::pin(async move { tasks.hurried().await });
        let (stall, limit) =
            (case.shared.settings.mcp.stall, case.shared.settings.limits.response_body_bytes);
        let (response, tail) = stream::write_answer(parts, body, watched, limit, stall, stop);
        let mut reply = case.reply(response, None, None, elapsed);
        reply.elsewhere = Some(is_elsewhere);
        Settled { reply, tail: Some(tail) }
    }

    /// Settles a tool's answer, and gives the report.
    pub(super) fn settle_tool(
        self: &Arc<Self>,
        answer: &mcp_answer::Answer,
        headers: &HeaderMap,
    ) -> Report {
        let (conclusion, kept) = self.conclude_tool(answer, headers);
        let report = self.finish(&conclusion, kept);
        if conclusion.state == State::Waiting && !self.identity.is_unrecorded {
            waiting::park(self, answer, headers);
        }
        report
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
}
