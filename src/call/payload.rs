//! Bodies: the one body type of requests and answers, and the one way to read one whole.
//!
//! A [`Body`] is whatever is sent or received after a head: nothing, bytes in memory, what an agent
//! sends, what an upstream answers, the receiving end of a bounded channel (a pump's), or bytes
//! that were already read followed by the rest. It streams; nothing here buffers unless [`collect`]
//! is asked to, with a limit and out of the process-wide [`Budget`].
//!
//! A body may carry an idle clock ([`Body::with_idle`]) and things to do at its end
//! ([`Body::on_end`], [`Body::hold`]). The end is known exactly once: [`End::Whole`] when the last
//! frame was handed over, [`End::Cut`] when it failed or was dropped before. "Handed over" is not
//! "written": the server's delivery watch knows the rest.
//!
//! What can go wrong: the peer cuts the body ([`BodyError::Truncated`], [`BodyError::Left`]), stalls
//! ([`BodyError::Idle`]), or a pump stops without finishing ([`BodyError::Stopped`]); each of them
//! makes hyper break the framing, so that the receiver cannot take a part for the whole.

mod collect;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Version};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

pub use collect::{
    Budget, CollectError, Collected, Partial, Prefix, collect, collect_prefix, collect_within,
    discard,
};

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// No frame came within the idle limit.
    #[error("no part of the body came within the idle limit")]
    Idle,
    /// Whatever produced the body in this process gave up.
    #[error("the producer of the body stopped before its end")]
    Stopped,
    /// The absolute time limit of the call ran out while the body was read.
    #[error("the time limit of the whole call ran out")]
    Total,
    /// The peer left it without the mark of its end.
    #[error("the body was left without its end")]
    Left,
    /// The peer cut or garbled it.
    #[error("the body ended before its framing said")]
    Truncated(#[source] hyper::Error),
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It failed, or was dropped before its last frame.
    Cut,
    /// Its last frame was handed over.
    Whole,
}

/// A body that another layer provides: the answer of an upstream, which gives its connection back
/// when it is read to the end.
pub trait Source: Send + Sync {
    /// The next frame, as [`http_body::Body::poll_frame`].
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame;

    /// True if no frame is left, as [`http_body::Body::is_end_stream`].
    fn is_end_stream(&self) -> bool;

    /// How many bytes are left, as [`http_body::Body::size_hint`].
    fn size_hint(&self) -> SizeHint;

    /// Called at most once, after the last frame, in place of a plain drop.
    fn finish(self: Box<Self>);
}

/// What [`Source::poll_frame`] gives.
pub type PolledFrame = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

type EndHook = Box<dyn FnOnce(End) + Send + Sync>;

/// The body of a request or an answer.
pub struct Body {
    kind: Kind,
    on_end: Option<EndHook>,
    trailers: Trailers,
    /// Boxed: few bodies have it, and all are moved from hand to hand.
    extra: Option<Box<Extra>>,
}

/// What few bodies have.
#[derive(Default)]
struct Extra {
    /// Bytes that come before what `kind` gives.
    prefix: Bytes,
    idle: Option<IdleClock>,
}

enum Kind {
    Channel(Receiver),
    Empty,
    Failed(BodyError),
    Full(Bytes),
    Incoming(Incoming, Version),
    Source(Box<dyn Source>),
    /// Bytes, and fields after them.
    Trailed(Bytes, Option<Box<HeaderMap>>),
}

/// What happens to trailer fields (standards H-13).
#[derive(Clone, Debug)]
pub enum Trailers {
    /// They end here.
    Drop,
    /// They are passed on.
    Pass,
    /// They are passed on without what the function takes out, which is given this name.
    Sifted(fn(&mut HeaderMap, &HeaderName), &'static HeaderName),
}

impl Body {
    /// No bytes.
    pub fn empty() -> Self {
        Self::of(Kind::Empty)
    }

    /// These bytes, which are not copied.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::of(if bytes.is_empty() { Kind::Empty } else { Kind::Full(bytes) })
    }

    /// These bytes, and these fields after them.
    pub fn trailed(bytes: Bytes, trailers: HeaderMap) -> Self {
        Self::of(Kind::Trailed(bytes, Some(Box::new(trailers))))
    }

    /// What a peer sends over a connection that hyper serves.
    pub fn incoming(incoming: Incoming, version: Version) -> Self {
        use http_body::Body as _;
        let is_empty = incoming.is_end_stream();
        Self::of(if is_empty { Kind::Empty } else { Kind::Incoming(incoming, version) })
    }

    /// What another layer provides.
    pub fn source(source: Box<dyn Source>) -> Self {
        Self::of(Kind::Source(source))
    }

    /// The two ends of a body that is made bit by bit. At most `frames` (at least one) wait in it.
    pub fn channel(frames: usize) -> (BodySender, Self) {
        let (frames, receiver) = mpsc::channel(frames.max(1));
        let finished = Arc::new(AtomicBool::new(false));
        let receiver = Receiver { frames: receiver, finished: Arc::clone(&finished) };
        (BodySender { frames, finished }, Self::of(Kind::Channel(receiver)))
    }

    fn of(kind: Kind) -> Self {
        Self { kind, on_end: None, trailers: Trailers::Pass, extra: None }
    }

    /// The same body after these bytes, which count for neither clock.
    fn after(mut self, prefix: Bytes) -> Self {
        debug_assert!(!self.has_prefix(), "a body has one prefix");
        self.extra.get_or_insert_default().prefix = prefix;
        self
    }

    fn has_prefix(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| !extra.prefix.is_empty())
    }

    fn idle(&mut self) -> Option<&mut IdleClock> {
        self.extra.as_mut()?.idle.as_mut()
    }

    /// Fails with [`BodyError::Idle`] when a reader waits longer than this for the next frame. Time
    /// in which nobody asks for a frame does not count: a slow reader is not a stalled sender.
    pub fn with_idle(mut self, limit: Duration) -> Self {
        let clock = IdleClock { limit, timer: None, is_waiting: false };
        self.extra.get_or_insert_default().idle = Some(clock);
        self
    }

    /// Passes or drops trailers; they pass unless this says otherwise.
    pub fn with_trailers(mut self, trailers: Trailers) -> Self {
        self.trailers = trailers;
        self
    }

    /// Calls `hook` once, at the end; after the hooks that were set before it.
    ///
    /// It is called by whoever reads or drops the body, often hyper's connection task, so it must
    /// be quick and must not block.
    pub fn on_end(mut self, hook: impl FnOnce(End) + Send + Sync + 'static) -> Self {
        self.on_end = Some(match self.on_end.take() {
            None => Box::new(hook),
            Some(first) => Box::new(move |end| {
                first(end);
                hook(end);
            }),
        });
        self
    }

    /// Keeps `held` (a permit, a share of a budget) until the end (pitfall P6).
    pub fn hold(self, held: impl Send + Sync + 'static) -> Self {
        self.on_end(move |_| drop(held))
    }

    /// True if all of it is in memory, so that it can be given away without waiting.
    pub fn is_in_memory(&self) -> bool {
        match self.kind {
            Kind::Empty | Kind::Full(_) => true,
            Kind::Channel(_)
            | Kind::Failed(_)
            | Kind::Incoming(..)
            | Kind::Source(_)
            | Kind::Trailed(..) => false,
        }
    }

    /// The same bytes again, without what is done at the end; `None` unless all of them are in memory.
    pub fn copy(&self) -> Option<Self> {
        match &self.kind {
            Kind::Empty => {
                let prefix = self.extra.as_ref().map(|extra| extra.prefix.clone());
                Some(Self::full(prefix.unwrap_or_default()))
            }
            Kind::Full(bytes) if !self.has_prefix() => Some(Self::full(bytes.clone())),
            Kind::Full(_)
            | Kind::Channel(_)
            | Kind::Failed(_)
            | Kind::Incoming(..)
            | Kind::Source(_)
            | Kind::Trailed(..) => None,
        }
    }

    fn poll_kind(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        match &mut self.kind {
            Kind::Channel(receiver) => receiver.poll_frame(cx),
            Kind::Empty => Poll::Ready(None),
            Kind::Failed(_) => match std::mem::replace(&mut self.kind, Kind::Empty) {
                Kind::Failed(error) => Poll::Ready(Some(Err(error))),
                _ => Poll::Ready(None),
            },
            Kind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.kind = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::Incoming(incoming, version) => poll_incoming(incoming, *version, cx),
            Kind::Source(source) => source.poll_frame(cx),
            Kind::Trailed(bytes, trailers) => {
                if !bytes.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))));
                }
                Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(*trailers))))
            }
        }
    }

    /// Whatever comes after the prefix has no frame left.
    fn is_kind_ended(&self) -> bool {
        match &self.kind {
            Kind::Channel(_) | Kind::Failed(_) => false,
            Kind::Empty => true,
            Kind::Full(bytes) => bytes.is_empty(),
            Kind::Incoming(incoming, _) => http_body::Body::is_end_stream(incoming),
            Kind::Source(source) => source.is_end_stream(),
            Kind::Trailed(bytes, trailers) => bytes.is_empty() && trailers.is_none(),
        }
    }

    fn kind_hint(&self) -> SizeHint {
        match &self.kind {
            // A known length would leave no room for trailers.
            Kind::Channel(_) | Kind::Failed(_) | Kind::Trailed(..) => SizeHint::default(),
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(length(bytes)),
            Kind::Incoming(incoming, _) => http_body::Body::size_hint(incoming),
            Kind::Source(source) => source.size_hint(),
        }
    }

    /// The last frame is out: gives back what was lent and says so. The body is empty after it.
    fn finish(&mut self) {
        if let Kind::Source(source) = std::mem::replace(&mut self.kind, Kind::Empty) {
            source.finish();
        }
        self.end(End::Whole);
    }

    fn fail(&mut self, error: BodyError) -> PolledFrame {
        self.kind = Kind::Empty;
        self.end(End::Cut);
        Poll::Ready(Some(Err(error)))
    }

    fn end(&mut self, end: End) {
        if let Some(extra) = &mut self.extra {
            extra.idle = None;
        }
        if let Some(hook) = self.on_end.take() {
            hook(end);
        }
    }
}

/// The next frame of what came over a connection.
///
/// hyper takes a stream of HTTP/2 that is reset, or whose connection ends, with `NO_ERROR` for one that
/// is whole (it may mean that its receiver has heard enough). What was sent is whole only if it has the
/// mark of its end; a trailer frame is one.
pub fn poll_incoming(
    incoming: &mut Incoming,
    version: Version,
    cx: &mut Context<'_>,
) -> PolledFrame {
    use http_body::Body as _;
    match Pin::new(&mut *incoming).poll_frame(cx) {
        Poll::Ready(None) if version == Version::HTTP_2 && !incoming.is_end_stream() => {
            Poll::Ready(Some(Err(BodyError::Left)))
        }
        polled => polled.map_err(BodyError::Truncated),
    }
}

fn length(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let this = self.get_mut();
        if let Some(extra) = &mut this.extra
            && !extra.prefix.is_empty()
        {
            let prefix = std::mem::take(&mut extra.prefix);
            if this.is_kind_ended() {
                this.finish();
            }
            return Poll::Ready(Some(Ok(Frame::data(prefix))));
        }
        match this.poll_kind(cx) {
            Poll::Pending => {
                let is_expired = this.idle().is_some_and(|idle| idle.poll_expired(cx));
                if is_expired { this.fail(BodyError::Idle) } else { Poll::Pending }
            }
            Poll::Ready(None) => {
                this.finish();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => this.fail(error),
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(idle) = this.idle() {
                    idle.is_waiting = false;
                }
                // Trailers come last, so there is no need to ask for another frame.
                if frame.is_trailers() {
                    this.finish();
                    match &this.trailers {
                        Trailers::Drop => return Poll::Ready(None),
                        Trailers::Pass => {}
                        Trailers::Sifted(sift, name) => {
                            if let Ok(mut trailers) = frame.into_trailers() {
                                sift(&mut trailers, name);
                                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                            }
                            return Poll::Ready(None);
                        }
                    }
                } else if this.is_kind_ended() {
                    // hyper does not ask again once `is_end_stream` is true.
                    this.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        !self.has_prefix() && self.is_kind_ended()
    }

    fn size_hint(&self) -> SizeHint {
        let prefix = self.extra.as_ref().map_or(0, |extra| length(&extra.prefix));
        let rest = self.kind_hint();
        if prefix == 0 {
            return rest;
        }
        let mut hint = SizeHint::new();
        let upper = rest.upper().map(|upper| upper.saturating_add(prefix));
        hint.set_lower(rest.lower().saturating_add(prefix));
        if let Some(upper) = upper {
            hint.set_upper(upper);
        }
        hint
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.on_end.is_some() {
            // A body without frames is never asked for one.
            let is_whole = http_body::Body::is_end_stream(self);
            self.end(if is_whole { End::Whole } else { End::Cut });
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::full(bytes)
    }
}

/// Its bytes, with their share of the budget held until they are handed over.
impl From<Collected> for Body {
    fn from(collected: Collected) -> Self {
        let (bytes, share) = collected.into_parts();
        let body = Self::full(bytes);
        if body.is_in_memory() && http_body::Body::is_end_stream(&body) {
            return body;
        }
        body.hold(share)
    }
}

/// Never the bytes: they are somebody's request or answer.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Channel(_) => "channel",
            Kind::Empty => "empty",
            Kind::Failed(_) => "failed",
            Kind::Full(_) => "full",
            Kind::Incoming(..) => "incoming",
            Kind::Source(_) => "source",
            Kind::Trailed(..) => "trailed",
        };
        f.debug_struct("Body").field("kind", &kind).finish_non_exhaustive()
    }
}

/// The time between two frames.
struct IdleClock {
    limit: Duration,
    /// Made at the first wait: most bodies are there when they are read.
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl IdleClock {
    fn poll_expired(&mut self, cx: &mut Context<'_>) -> bool {
        let fresh_deadline = (!self.is_waiting).then(|| Instant::now() + self.limit);
        self.is_waiting = true;
        let timer = match (&mut self.timer, fresh_deadline) {
            (Some(timer), Some(deadline)) => {
                timer.as_mut().reset(deadline);
                timer
            }
            (Some(timer), None) => timer,
            (none, deadline) => {
                let deadline = deadline.unwrap_or_else(|| Instant::now() + self.limit);
                none.insert(Box::pin(tokio::time::sleep_until(deadline)))
            }
        };
        timer.as_mut().poll(cx).is_ready()
    }
}

struct Receiver {
    frames: mpsc::Receiver<Result<Frame<Bytes>, BodyError>>,
    finished: Arc<AtomicBool>,
}

impl Receiver {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        match self.frames.poll_recv(cx) {
            // The flag is set before the last sender is dropped, so it can be read after.
            Poll::Ready(None) if !self.finished.load(Ordering::Acquire) => {
                Poll::Ready(Some(Err(BodyError::Stopped)))
            }
            polled => polled,
        }
    }
}

/// The end of a [`Body::channel`] that frames go into.
///
/// Dropping it without [`BodySender::finish`] makes the body fail: a pump that dies must not look
/// like one that came to its end.
#[derive(Debug)]
pub struct BodySender {
    frames: mpsc::Sender<Result<Frame<Bytes>, BodyError>>,
    finished: Arc<AtomicBool>,
}

impl BodySender {
    /// Waits for room for one frame; `None` when nobody reads the body any more. Reserve before
    /// reading what will be sent (pitfall P27).
    ///
    /// Cancel safe: a reservation that is dropped is free again.
    pub async fn reserve(&self) -> Option<Slot<'_>> {
        self.frames.reserve().await.ok().map(Slot)
    }

    /// Waits until nobody reads the body any more.
    pub async fn closed(&self) {
        self.frames.closed().await;
    }

    /// True if nobody reads the body any more.
    pub fn is_closed(&self) -> bool {
        self.frames.is_closed()
    }

    /// Ends the body as whole. Frames that wait in it are still handed over.
    pub fn finish(self) {
        self.finished.store(true, Ordering::Release);
    }
}

/// Room for one frame.
#[derive(Debug)]
pub struct Slot<'a>(mpsc::Permit<'a, Result<Frame<Bytes>, BodyError>>);

impl Slot<'_> {
    /// Sends bytes.
    pub fn send(self, bytes: Bytes) {
        self.0.send(Ok(Frame::data(bytes)));
    }

    /// Sends the trailer fields, which end the body.
    pub fn send_trailers(self, trailers: HeaderMap) {
        self.0.send(Ok(Frame::trailers(trailers)));
    }

    /// Ends the body with an error.
    pub fn fail(self, error: BodyError) {
        self.0.send(Err(error));
    }
}
