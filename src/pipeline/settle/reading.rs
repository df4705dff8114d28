//! A read on its way back: it is passed on with its report.

use std::sync::Arc;
use std::time::Duration;

use http::response::Parts;
use http::{HeaderValue, Response};

use super::head::{Asked, is_encoded, is_endless, is_events, pass_headers, passed, spliced};
use super::notice::Notice;
use super::plain::lost_by;
use crate::call::Payload;
use crate::call::payload::{Body, Partial, Prefix, collect_prefix};
use crate::contract::class::Class;
use crate::contract::report::{MAX_HEADER, Report};
use crate::http::body::{essence, is_cut_json, is_json};
use crate::http::grpc::is_grpc;
use crate::mcp::Era;
use crate::mcp::answer::{Answer, Kind};
use crate::mcp::jsonrpc::Id;
use crate::metrics::Decision;
use crate::pipeline::dispatch::Observation;
use crate::pipeline::live::{Matched, Metered};
use crate::pipeline::stream::{self, Rewrite, Watched};
use crate::pipeline::{Read, Reply, Shared, unseen};
use crate::upstream::{LostReason, Sent};

/// What the report of a read needs once the read itself is sent.
pub(super) struct About {
    matched: Arc<Matched>,
    would: Option<&'static str>,
    tool: Option<(Id, Era)>,
    authority: Option<HeaderValue>,
    is_tls: bool,
    is_grpc: bool,
}

/// How far a read is settled.
#[expect(clippy::large_enum_variant, reason = "the large variant is the usual one")]
pub(super) enum Settling {
    Done(Reply),
    Tool(Box<Reading>),
}

/// A tool's answer that is yet to be read.
pub(super) struct Reading {
    parts: Parts,
    body: Body,
    id: Id,
    era: Era,
    elapsed: Duration,
}

impl About {
    pub(super) fn of(read: &Read) -> Self {
        let tool = match &read.call.payload {
            Payload::Mcp(call) => Some((call.id().clone(), call.era())),
            Payload::Http(_) => None,
        };
        Self {
            matched: Arc::clone(&read.matched),
            would: read.would,
            tool,
            authority: read.call.head.authority.clone(),
            is_tls: read.call.head.origin.is_tls,
            is_grpc: is_grpc(&read.call.head.headers),
        }
    }

    fn report(&self) -> Report {
        let mut report = Report::for_read(self.matched.served.operation.id.clone());
        report.would = self.would.map(Into::into);
        report
    }

    /// The report as JSON: the header's text, which is made once per operation.
    fn json(&self) -> String {
        match (self.would, self.matched.header.to_str()) {
            (None, Ok(made)) => made.to_owned(),
            (Some(_), _) | (None, Err(_)) => self.report().to_json(),
        }
    }

    fn header(&self) -> HeaderValue {
        match self.would {
            None => self.matched.header.clone(),
            Some(_) => self.report().to_header(MAX_HEADER),
        }
    }

    /// The reply, or the answer of a tool, which is yet to be read.
    pub(super) fn settle(&self, shared: &Shared, observation: Observation) -> Settling {
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
                        let (id, era) = (id.clone(), *era);
                        let reading = Reading { parts, body, id, era, elapsed };
                        return Settling::Tool(Box::new(reading));
                    }
                }
            }
            Sent::NotSent(reason) => self.notice(&Notice::NotSent(reason)),
            Sent::Lost(reason) => self.notice(&Notice::ReadLost(reason)),
        };
        Settling::Done(self.reply(response, report, elapsed))
    }

    /// The reply with a tool's answer.
    pub(super) async fn tool(&self, shared: &Shared, reading: Reading) -> Reply {
        let elapsed = reading.elapsed;
        let response = self.tool_answer(shared, reading).await;
        self.reply(response, None, elapsed)
    }

    fn reply(
        &self,
        response: Response<Body>,
        report: Option<HeaderValue>,
        elapsed: Duration,
    ) -> Reply {
        Reply {
            response,
            report,
            entry: None,
            decision: if self.would.is_some() {
                Decision::WouldRefuse
            } else {
                Decision::Forwarded
            },
            metrics: Metered::Matched(Arc::clone(&self.matched)),
            class: Class::Read,
            upstream: elapsed,
            outcome: None,
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

    /// A read tool's answer with its report in it. What refuses and is no message, and what is too long
    /// to be held, passes with the report in a header.
    async fn tool_answer(&self, shared: &Shared, reading: Reading) -> Response<Body> {
        let Reading { parts, body, id, era, .. } = reading;
        let id = &id;
        let report = self.json();
        let reports = shared.settings.mcp.reports;
        let in_header = |mut parts: Parts| {
            let name = shared.settings.report_header.clone();
            parts.headers.insert(name, self.report().to_header(MAX_HEADER));
            parts
        };
        let kind = essence(&parts.headers);
        let is_stream = is_events(kind);
        let is_message = (is_stream || is_json(kind)) && !is_encoded(&parts.headers);
        if !is_message && parts.status.is_success() {
            // No revision has such an answer; a client that reads it all the same would find in it
            // what we have not seen.
            return Notice::ReadLost(LostReason::Protocol).result(id, era, &report);
        }
        if !is_message {
            return unseen::untold(shared, in_header(parts), body, id).await;
        }
        if is_stream {
            // An event that cannot be read passes, and the head is out by then.
            let parts = in_header(parts);
            let lost = |reason| Notice::ReadLost(reason).message(id, era, &report);
            let (cut, late) = (lost(LostReason::Reset), lost(LostReason::BodyTimeout));
            let odd = Notice::ReadLost(LostReason::Protocol).message(id, era, &report);
            let watched = Watched {
                id: id.clone(),
                reports,
                at_answer: Box::new(move |answer, _| match is_odd(answer) {
                    true => Rewrite::Data(odd.into()),
                    false => Rewrite::Report(report, reports),
                }),
                // The client may come back for the rest of a stream with ids (2025-11-25).
                at_end: Box::new(move |ended| {
                    let lost = if ended.is_timeout { late } else { cut };
                    (era == Era::Modern || !ended.has_event_id).then_some(lost)
                }),
            };
            let tasks = shared.tasks.clone();
            let stop: stream::Stop = Box::pin(async move { tasks.hurried().await });
            let limit = shared.settings.limits.response_body_bytes;
            return stream::read_answer(parts, body, watched, limit, stop);
        }
        let limit = shared.settings.limits.response_body_bytes;
        match collect_prefix(body, limit, &shared.budget, None).await {
            // Nothing of it has gone out, so that it can still be said.
            Prefix::Partial { why: why @ (Partial::Broken | Partial::Idle), .. } => {
                let (_, reason) = lost_by(why);
                Notice::ReadLost(reason).result(id, era, &report)
            }
            Prefix::Partial { body, why: Partial::Budget | Partial::TooLarge } => {
                unseen::renamed(shared, in_header(parts), body)
            }
            Prefix::Whole(collected) => {
                let bytes = collected.bytes().clone();
                let answer = Answer::read(parts.status.as_u16(), bytes, id);
                // Its client would wait for ever.
                let is_none = answer.is_foreign_to(id)
                    || answer.doc().is_none() && is_cut_json(collected.bytes());
                if is_odd(&answer) || is_none && parts.status.is_success() {
                    return Notice::ReadLost(LostReason::Protocol).result(id, era, &report);
                }
                spliced(shared, parts, &answer, id, &report, collected)
            }
        }
    }
}

/// Whether a report in an answer would pass as ours to a laxer reader, or finds no place in it.
fn is_odd(answer: &Answer) -> bool {
    let is_unread = matches!(answer.kind(), Kind::Unreadable(_) | Kind::WrongId { .. });
    answer.has_odd_meta() || is_unread && stream::names(answer.body(), "effect")
}
