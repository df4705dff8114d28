//! The end of the way: the only code that sends a call to the upstream.
//!
//! It never fails: an answer that was lost is an observation too. The one retry there is (a connection
//! that died before the first byte) is inside [`Upstream::send`], which can prove that nothing was sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, header};
use http_body::{Body as _, SizeHint};

use super::step::Stage;
use super::{Agent, Attempt, Form, Read, Shared, Write};
use crate::call::payload::{Body, BodyError, PolledFrame, Source};
use crate::call::refusal::Refusal;
use crate::call::spans::CallSpan;
use crate::call::{Call, Payload};
use crate::contract::operation::Timeouts as OwnTimeouts;
use crate::http::encode::{self, Hop};
use crate::mcp::Era;
use crate::mcp::flights::Flight;
use crate::mcp::sessions::SESSION;
use crate::metrics::{ConnectError, Purpose};
use crate::upstream::{Clocks, LostReason, NotSentReason, Sent, Upstream};

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
        let purpose = match &attempt {
            Attempt::Write(recorded) if recorded.carried().fresh.write.staged_for.is_some() => {
                Purpose::Draft
            }
            Attempt::Read(_) | Attempt::Write(_) => Purpose::Primary,
        };
        let (sending, span) = self.sending(attempt);
        let sent = match sending {
            Sending::Plain(sending) => sending.await,
            Sending::Cancellable(sending) => sending.await,
            Sending::Failed => Sent::NotSent(NotSentReason::Closed),
        };
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
        common.upstream_duration.record(purpose, elapsed.as_secs_f64());
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

/// A call on its way. Boxed, or each future around it would have room for it, some of them twice.
enum Sending<F, C> {
    Plain(Pin<Box<F>>),
    Cancellable(Pin<Box<C>>),
    /// Its request could not be made.
    Failed,
}

impl Dispatch {
    /// Makes the request and begins to send it. Not `async`: a request is large, and a future would keep
    /// it twice.
    fn sending(
        &self,
        attempt: Attempt,
    ) -> (Sending<impl Future<Output = Sent>, impl Future<Output = Sent>>, Option<Arc<CallSpan>>)
    {
        let span = match &attempt {
            Attempt::Read(read) => read.call.head.span.clone(),
            Attempt::Write(recorded) => recorded.carried().fresh.write.head.span.clone(),
        };
        let (mut request, clocks, flight) = match attempt {
            Attempt::Read(read) => {
                let clocks = self.clocks(&read.matched.served.operation.timeouts);
                match self.read_request(read) {
                    Ok(request) => (request, clocks, None),
                    Err(_) => return (Sending::Failed, span),
                }
            }
            Attempt::Write(recorded) => {
                let carried = recorded.carried();
                let clocks = self.clocks(&carried.fresh.write.operation().timeouts);
                let wire = carried.wire.clone();
                let flight = self.flight(&carried.fresh.write, recorded.agent());
                (Request::from_parts(wire.head, Body::full(wire.body)), clocks, flight)
            }
        };
        if let Some(span) = &span {
            span.put(request.headers_mut());
        }
        let sending = match flight {
            None => Sending::Plain(Box::pin(self.upstream.send(request, &clocks))),
            Some(flight) => {
                Sending::Cancellable(Box::pin(self.cancellable(request, clocks, flight)))
            }
        };
        (sending, span)
    }

    /// A write that its client can cancel: one of a session.
    fn flight(&self, write: &Write, agent: &Agent) -> Option<Flight> {
        let Form::Mcp { call, .. } = &write.form else { return None };
        if call.era() != Era::Legacy || !write.head.headers.contains_key(SESSION) {
            return None;
        }
        let session = self.shared.session(&write.head, &write.principal);
        Some(self.shared.mcp.flights.begin(session, call.id().clone(), agent.flag()))
    }

    /// Sends, and waits for a shorter time once the call was cancelled: what may have happened has an
    /// unknown outcome then, like any answer that does not come.
    async fn cancellable(&self, request: Request<Body>, clocks: Clocks, flight: Flight) -> Sent {
        let mut over = Box::pin(flight.over(self.shared.settings.mcp.cancelled));
        let sent = tokio::select! {
            sent = self.upstream.send(request, &clocks) => sent,
            // Dropped with it: an exchange whose answer nobody waits for any more.
            () = &mut over => return Sent::Lost(LostReason::TotalTimeout),
        };
        match sent {
            Sent::Answer(answer) => Sent::Answer(answer.map(|body| {
                let body = Some(body);
                Body::source(Box::new(Cancellable { body, over, _flight: flight }))
            })),
            Sent::Lost(_) | Sent::NotSent(_) => sent,
        }
    }

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
        let Read { call, matched, would } = read;
        let Call { mut head, control, payload, .. } = *call;
        let mut headers: HeaderMap = std::mem::take(&mut head.headers);
        let is_declared = matched.served.operation.id.as_str() != "_undeclared";
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

/// The answer to a call of a session: it ends as one that took too long, some time after its client has
/// cancelled the call.
struct Cancellable {
    body: Option<Body>,
    over: super::stream::Stop,
    _flight: Flight,
}

impl Source for Cancellable {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        match Pin::new(body).poll_frame(cx) {
            Poll::Pending if self.over.as_mut().poll(cx).is_ready() => {
                self.body = None;
                Poll::Ready(Some(Err(BodyError::Total)))
            }
            polled @ (Poll::Ready(_) | Poll::Pending) => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(http_body::Body::size_hint).unwrap_or_default()
    }

    fn finish(self: Box<Self>) {}
}
