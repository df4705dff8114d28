//! The end of the way: the only code that sends a call to the upstream.
//!
//! It never fails: an answer that was lost is an observation too. The one retry there is (a connection
//! that died before the first byte) is inside [`Upstream::send`], which can prove that nothing was sent.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, header};

use super::step::Stage;
use super::{Attempt, Read, Shared};
use crate::call::payload::Body;
use crate::call::refusal::Refusal;
use crate::call::{Call, Payload};
use crate::contract::operation::Timeouts as OwnTimeouts;
use crate::http::encode::{self, Hop};
use crate::metrics::ConnectError;
use crate::upstream::{Clocks, NotSentReason, Sent, Upstream};

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// This worker's connections.
    pub upstream: Upstream,
    /// What every request says.
    pub hop: Arc<Hop>,
}

/// What came of a dispatch, and how long it took until the answer's head.
#[derive(Debug)]
pub struct Observation {
    /// What came of it.
    pub sent: Sent,
    /// Until the head of the answer.
    pub elapsed: Duration,
}

impl Stage<Attempt> for Dispatch {
    type Answer = Observation;

    async fn run(&self, attempt: Attempt) -> Observation {
        let began = self.shared.clock.instant();
        let span = match &attempt {
            Attempt::Read(read) => read.call.head.span.clone(),
            Attempt::Write(recorded) => recorded.carried().fresh.write.head.span.clone(),
        };
        let (mut request, clocks) = match attempt {
            Attempt::Read(read) => {
                let clocks = self.clocks(&read.served.operation.timeouts);
                match self.read_request(read) {
                    Ok(request) => (request, clocks),
                    Err(_) => {
                        let sent = Sent::NotSent(NotSentReason::Closed);
                        return Observation { sent, elapsed: Duration::ZERO };
                    }
                }
            }
            Attempt::Write(recorded) => {
                let carried = recorded.carried();
                let clocks = self.clocks(&carried.fresh.write.operation().timeouts);
                let wire = carried.wire.clone();
                (Request::from_parts(wire.head, Body::full(wire.body)), clocks)
            }
        };
        if let Some(span) = &span {
            span.put(request.headers_mut());
        }
        let sent = self.upstream.send(request, &clocks).await;
        if let Some(span) = &span {
            let (status, error) = match &sent {
                Sent::Answer(answer) => (Some(answer.status().as_u16()), None),
                Sent::Lost(_) => (None, Some("lost")),
                Sent::NotSent(_) => (None, Some("not_sent")),
            };
            span.dispatched(began, self.shared.clock.instant(), status, error);
        }
        let elapsed = self.shared.clock.instant().saturating_duration_since(began);
        let common = self.shared.metrics.common();
        let [primary, _] = &common.upstream_duration;
        primary.record(elapsed.as_secs_f64());
        if let Sent::NotSent(reason) = &sent {
            common.connect_errors.count(match reason {
                NotSentReason::Closed => ConnectError::Other,
                NotSentReason::Connect => ConnectError::Refused,
                NotSentReason::ConnectTimeout => ConnectError::Timeout,
                NotSentReason::Dns => ConnectError::Dns,
                NotSentReason::PoolTimeout => ConnectError::Pool,
                NotSentReason::Refused => ConnectError::RefusedStream,
                NotSentReason::Tls => ConnectError::Tls,
            });
        }
        Observation { sent, elapsed }
    }
}

impl Dispatch {
    fn clocks(&self, own: &OwnTimeouts) -> Clocks {
        let common = &self.shared.settings.timeouts;
        let or = |own: Option<u64>, common: Duration| own.map_or(common, Duration::from_millis);
        Clocks {
            connect: common.connect,
            head: or(own.head_ms, common.head),
            idle: Some(or(own.idle_ms, common.idle)),
            total: Some(or(own.total_ms, common.total)),
        }
    }

    fn read_request(&self, read: Read) -> Result<Request<Body>, Refusal> {
        let Read { call, served, would, .. } = read;
        let Call { mut head, control, payload, .. } = *call;
        let mut headers: HeaderMap = std::mem::take(&mut head.headers);
        let is_declared = served.operation.id.as_str() != "_undeclared";
        // One that is no key was an oddity, which only observe mode lets pass.
        if is_declared && (control.key.is_some() || would.is_some()) {
            // A read takes no key; whoever sends one to a declared read sends it to us (I-5).
            headers.remove(&crate::http::headers::IDEMPOTENCY_KEY);
        }
        let body = match payload {
            Payload::Http(body) => body,
            Payload::Mcp(call) => {
                let parent = head.span.as_ref().map(|span| span.outgoing().to_string());
                let trace_parent = parent.as_deref();
                let changes = crate::mcp::request::Changes { trace_parent, ..Default::default() };
                let forwarded = call.forwarded(&changes);
                if forwarded != *call.message().body() {
                    encode::mark_rewritten(&mut headers);
                }
                super::carry::ask_for_identity(&mut headers);
                headers.remove(header::CONTENT_LENGTH);
                Body::full(forwarded)
            }
        };
        let head = encode::request_head(&head, headers, None, &self.hop)?;
        Ok(Request::from_parts(head, body))
    }
}
