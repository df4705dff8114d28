//! One call's way to the upstream: hyper's sending half, its timer, and the answer being read.
//!
//! With HTTP/1.1 that is a connection, with HTTP/2 a share of one, which goes with the call. The
//! first is one box for the connection's whole life. While an answer streams the box *is* the body's
//! source; at the end it goes back to the pool, and if it is dropped before, the connection closes
//! with it, however much of its request was written. Nothing else drives it: the task that waits
//! for the answer reads and writes the socket itself, which saves each call two wakes of another
//! task and the way between them. Its timer is reset, not made anew: tokio moves a deadline that
//! only grows without taking a lock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Version;
use http_body::{Body as _, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep, sleep_until};

use super::NotSentReason;
use super::connect::{Refusal, Transport};
use super::mux::Share;
use super::pool::Place;
use super::signal::{Next, Signal};
use crate::call::payload::{Body, BodyError, PolledFrame, Source, poll_incoming};

/// The largest head of an answer, in bytes; 408 KiB is hyper's. The number of fields is hyper's
/// default, 100: any other number costs two allocations per head.
const MAX_HEAD: usize = 64 * 1024;

/// How often one poll drives the connection and looks at what it gave; then others have a turn.
const ROUNDS: usize = 8;

pub(super) struct Link {
    pub(super) way: Way,
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
}

/// What takes a request.
#[expect(clippy::large_enum_variant, reason = "the large variant is the usual one, and boxed")]
pub(super) enum Way {
    /// A connection of its own, which whoever waits drives.
    Own { sender: http1::SendRequest<Body>, wire: Wire },
    /// A share of one that has a task.
    Shared { sender: http2::SendRequest<Body>, _share: Share },
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
    ) -> Result<Box<Self>, NotSentReason> {
        let refusal = transport.refusal();
        let handshake =
            Builder::new().max_header_size(MAX_HEAD).handshake(TokioIo::new(transport)).await;
        let Ok((sender, connection)) = handshake else { return Err(NotSentReason::Closed) };
        let way = Way::Own { sender, wire: Wire::new(connection) };
        Ok(Self::new(way, refusal, generation, place))
    }

    /// A share of a connection, for one call.
    pub(super) fn shared(
        sender: http2::SendRequest<Body>,
        share: Share,
        refusal: Refusal,
        place: Place,
    ) -> Box<Self> {
        Self::new(Way::Shared { sender, _share: share }, refusal, 0, place)
    }

    fn new(way: Way, refusal: Refusal, generation: u64, place: Place) -> Box<Self> {
        let now = Instant::now();
        Box::new(Self {
            is_reusable: matches!(way, Way::Own { .. }),
            way,
            timer: Box::pin(sleep_until(now)),
            born: now,
            idle_since: now,
            generation,
            refusal,
            place: Some(place),
            answer: None,
        })
    }

    /// hyper has finished with the last call and waits for another.
    pub(super) fn is_ready(&self) -> bool {
        match &self.way {
            Way::Own { sender, .. } => sender.is_ready(),
            Way::Shared { sender, .. } => sender.is_ready(),
        }
    }

    /// Of an idle one: has the socket do what is due, and says as [`Link::is_ready`] whether it is
    /// still good. One that was closed by its peer, or got bytes nobody asked for, is not.
    pub(super) fn look(&mut self) -> bool {
        if let Way::Own { wire, .. } = &mut self.way {
            wire.look();
        }
        self.is_ready()
    }

    /// Who is told from here on of what comes on it.
    pub(super) fn tell(&self, waker: &Waker) {
        if let Way::Own { wire, .. } = &self.way {
            wire.signal.tell(waker);
        }
    }

    /// As [`Link::tell`], of one that has served its call; nobody is told without a waker.
    pub(super) fn rest(&self, waker: Option<&Waker>) {
        if let Way::Own { wire, .. } = &self.way {
            wire.signal.rest(waker);
        }
    }

    pub(super) fn occupy(&mut self, place: Place) {
        self.place = Some(place);
        // The request that it is about to get is no news for the sweeper.
        if let Way::Own { wire, .. } = &self.way {
            wire.signal.mute();
        }
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
        let version = match &self.way {
            Way::Own { .. } => Version::HTTP_11,
            Way::Shared { .. } => Version::HTTP_2,
        };
        let mut take = |cx: &mut Context<'_>| poll_incoming(&mut answer.incoming, version, cx);
        let frame = match &mut self.way {
            Way::Own { wire, .. } => wire.poll(cx, take),
            Way::Shared { .. } => take(cx),
        };
        if let Poll::Ready(frame) = frame {
            answer.waiting = None;
            return Poll::Ready(frame);
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

/// The connection's own half, which reads and writes the socket.
pub(super) struct Wire {
    /// None once it has ended: only its drop hands back a request that it had not begun to write.
    connection: Option<Connection<TokioIo<Transport>, Body>>,
    signal: Arc<Signal>,
    of_driver: Waker,
    of_taker: Waker,
}

impl Wire {
    fn new(connection: Connection<TokioIo<Transport>, Body>) -> Self {
        let signal = Signal::new();
        let (of_driver, of_taker) = (signal.of_driver(), signal.of_taker());
        Self { connection: Some(connection), signal, of_driver, of_taker }
    }

    /// Polls for what the connection gives, and drives it as far as that takes.
    pub(super) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.signal.hold(cx.waker());
        for _ in 0..ROUNDS {
            let mut own = Context::from_waker(&self.of_taker);
            if let Poll::Ready(taken) = self.signal.taking(|| take(&mut own)) {
                self.signal.let_go();
                return Poll::Ready(taken);
            }
            match self.signal.next() {
                Next::Drive => self.drive(),
                Next::Look => {}
                Next::Wait => return Poll::Pending,
            }
        }
        self.signal.let_go();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn look(&mut self) {
        if self.signal.take_due() {
            self.drive();
        }
    }

    fn drive(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let polled = Pin::new(connection).poll(&mut Context::from_waker(&self.of_driver));
        if let Poll::Ready(ended) = polled {
            self.connection = None;
            if let Err(error) = ended {
                tracing::debug!(%error, "an upstream connection ended");
            }
        }
    }
}
