//! One call's way to the upstream: hyper's sending half, its timer, and the answer being read.
//!
//! With HTTP/1.1 that is a connection, with HTTP/2 a share of one, which goes with the call. The
//! first is one box for the connection's whole life. While an answer streams the box *is* the body's
//! source; at the end it goes back to the pool, and if it is dropped before, the connection's task
//! is aborted: hyper by itself would go on writing a request whose answer came early. Its timer is
//! reset, not made anew: tokio moves a deadline that only grows without taking a lock.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body as _, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::Builder;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::NotSentReason;
use super::connect::{Refusal, Transport};
use super::mux::Share;
use super::pool::Place;
use crate::call::payload::{Body, BodyError, PolledFrame, Source};
use crate::tasks::Tasks;

/// The largest head of an answer, in bytes; 408 KiB is hyper's. The number of fields is hyper's
/// default, 100: any other number costs two allocations per head.
const MAX_HEAD: usize = 64 * 1024;

pub(super) struct Link {
    pub(super) sender: Sender,
    pub(super) timer: Pin<Box<Sleep>>,
    pub(super) born: Instant,
    pub(super) idle_since: Instant,
    /// Of the TLS configuration that it was made under.
    pub(super) generation: u64,
    pub(super) refusal: Refusal,
    /// None while it is idle.
    place: Option<Place>,
    answer: Option<Answer>,
    is_reusable: bool,
    /// Its drop ends the connection, or gives the share back.
    _end: Ending,
}

/// What takes a request.
pub(super) enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

/// What goes with a link.
#[expect(dead_code, reason = "their drops are what they are for")]
enum Ending {
    Connection(Driver),
    Share(Share),
}

/// The task of a connection.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether a link serves another call after its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IsReusable {
    No,
    Yes,
}

struct Answer {
    incoming: Incoming,
    idle: Option<Duration>,
    total: Option<Instant>,
    /// What the timer stands for while a frame is waited for.
    waiting: Option<Waiting>,
}

#[derive(Clone, Copy)]
enum Waiting {
    Frame,
    Total,
    Unlimited,
}

impl Link {
    pub(super) async fn open(
        transport: Transport,
        generation: u64,
        place: Place,
        tasks: &Tasks,
    ) -> Result<Box<Self>, NotSentReason> {
        let refusal = transport.refusal();
        let handshake =
            Builder::new().max_header_size(MAX_HEAD).handshake(TokioIo::new(transport)).await;
        let Ok((sender, connection)) = handshake else { return Err(NotSentReason::Closed) };
        let driver = tasks.spawn_background("upstream connection", async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an upstream connection ended");
            }
        });
        let ending = Ending::Connection(Driver(driver));
        let sender = Sender::Http1(sender);
        Ok(Self::new(sender, ending, refusal, generation, place, IsReusable::Yes))
    }

    /// A share of a connection, for one call.
    pub(super) fn shared(
        sender: http2::SendRequest<Body>,
        share: Share,
        refusal: Refusal,
        place: Place,
    ) -> Box<Self> {
        let sender = Sender::Http2(sender);
        Self::new(sender, Ending::Share(share), refusal, 0, place, IsReusable::No)
    }

    fn new(
        sender: Sender,
        ending: Ending,
        refusal: Refusal,
        generation: u64,
        place: Place,
        is_reusable: IsReusable,
    ) -> Box<Self> {
        let now = Instant::now();
        Box::new(Self {
            sender,
            timer: Box::pin(sleep_until(now)),
            born: now,
            idle_since: now,
            generation,
            refusal,
            place: Some(place),
            answer: None,
            is_reusable: is_reusable == IsReusable::Yes,
            _end: ending,
        })
    }

    /// hyper has finished with the last call and waits for another.
    pub(super) fn is_ready(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(sender) => sender.is_ready(),
        }
    }

    pub(super) fn occupy(&mut self, place: Place) {
        self.place = Some(place);
    }

    pub(super) fn set_timer(&mut self, deadline: Instant) {
        self.timer.as_mut().reset(deadline);
    }

    pub(super) fn forbid_reuse(&mut self) {
        self.is_reusable = false;
    }

    /// The body of the answer that this connection gives.
    pub(super) fn into_body(
        mut self: Box<Self>,
        incoming: Incoming,
        idle: Option<Duration>,
        total: Option<Instant>,
    ) -> Body {
        if incoming.is_end_stream() {
            self.finish();
            return Body::empty();
        }
        self.answer = Some(Answer { incoming, idle, total, waiting: None });
        Body::source(self)
    }
}

impl Answer {
    /// Starts the clocks of one wait; the deadline, if there is one.
    fn wait(&mut self) -> Option<Instant> {
        let frame_by = self.idle.map(|idle| Instant::now() + idle);
        let (waiting, deadline) = match (frame_by, self.total) {
            (None, None) => (Waiting::Unlimited, None),
            (Some(frame_by), Some(total)) if total <= frame_by => (Waiting::Total, Some(total)),
            (None, Some(total)) => (Waiting::Total, Some(total)),
            (Some(frame_by), _) => (Waiting::Frame, Some(frame_by)),
        };
        self.waiting = Some(waiting);
        deadline
    }
}

impl Source for Link {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let Some(answer) = &mut self.answer else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(&mut answer.incoming).poll_frame(cx) {
            answer.waiting = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Truncated)));
        }
        if answer.waiting.is_none()
            && let Some(deadline) = answer.wait()
        {
            self.timer.as_mut().reset(deadline);
        }
        let error = match answer.waiting {
            None | Some(Waiting::Unlimited) => return Poll::Pending,
            Some(Waiting::Frame) => BodyError::Idle,
            Some(Waiting::Total) => BodyError::Total,
        };
        self.timer.as_mut().poll(cx).map(|()| Some(Err(error)))
    }

    fn is_end_stream(&self) -> bool {
        self.answer.as_ref().is_none_or(|answer| answer.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.answer.as_ref().map(|answer| answer.incoming.size_hint());
        hint.unwrap_or_else(|| SizeHint::with_exact(0))
    }

    fn finish(mut self: Box<Self>) {
        self.answer = None;
        if let Some(place) = self.place.take()
            && self.is_reusable
        {
            place.put(self);
        }
    }
}
