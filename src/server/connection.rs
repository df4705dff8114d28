//! One connection: which protocol, hyper's driver, the clocks, the drain.
//!
//! hyper's own clock for heads makes and drops a timer per request, covers an idle connection with
//! the same time as a slow head, and does not run before the first bytes; so the clocks are here.
//! One timer per connection ticks once per head limit: a head that was begun before one tick and is
//! not done at the next is too slow; a connection that had no request for the keep-alive limit is
//! closed in order. A request costs two stores.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{rt::Executor, server::conn::http1, server::conn::http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::delivery::{DeliveryHandle, Shared, Watched};
use super::stream::Stream;
use super::{Arrival, Drain, Limits, Peer, Security};
use crate::call::payload::{Body, BodyError};
use crate::tasks::Tasks;

/// The largest head of a request, in bytes, in both protocols.
const MAX_HEAD: usize = 64 * 1024;
/// The most that hyper reads ahead or holds back for writing, per HTTP/1 connection.
const MAX_BUFFER: usize = 64 * 1024;
/// Streams of one HTTP/2 connection at the same time (H-23).
const MAX_STREAMS: u32 = 128;
/// Streams that a client may open and reset faster than they are accepted; then GOAWAY (H-23).
const MAX_RESET_STREAMS: usize = 20;
/// Streams that we may have to reset for a client's mistakes; then GOAWAY (RUSTSEC-2025-0070).
const MAX_ERROR_STREAMS: usize = 256;
/// What a client may send ahead of us, per stream and per connection.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// What one stream may hold back for a slow client.
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// How often a silent HTTP/2 client is asked whether it lives, and how long it may take.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_WITHIN: Duration = Duration::from_secs(20);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Who ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The client, hyper, or a clock.
    Closed,
    /// The end of a drain.
    Cut,
}

/// Serves one connection to its end.
pub(super) async fn serve<S, F>(
    stream: TcpStream,
    address: SocketAddr,
    limits: Arc<Limits>,
    security: Arc<Security>,
    service: Arc<S>,
    tasks: Tasks,
    drain: Drain,
) -> Ended
where
    S: Fn(Arrival) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection ended before it was served");
        return Ended::Closed;
    }
    let Some(mut stream) = secured(stream, &security, &limits, &drain).await else {
        return Ended::Closed;
    };
    let Some((version, prefix)) = first_bytes(&mut stream, &limits, &drain).await else {
        return Ended::Closed;
    };

    let shared = Arc::new(Shared::default());
    let state = Arc::new(State::default());
    let Ok(forwarded) = HeaderValue::from_maybe_shared(Bytes::from(address.ip().to_string()))
    else {
        return Ended::Closed;
    };
    let delivery = DeliveryHandle::new(Arc::clone(&shared));
    let (is_tls, name) = (stream.is_tls(), security.name(&stream));
    let peer = Arc::new(Peer { address, forwarded, delivery, is_tls, name });
    let io = Watched::new(stream, prefix, Arc::clone(&shared), Arc::clone(&state.has_read));
    let of_calls = Arc::clone(&state);
    let service = service_fn(move |request: Request<Incoming>| {
        let busy = Busy::new(&of_calls);
        let answering = service(Arrival { request, peer: Arc::clone(&peer) });
        async move {
            let mut answer = answering.await;
            // Ours, not that of whoever made the answer (H-8); hyper lowers it for older clients.
            *answer.version_mut() = http::Version::HTTP_11;
            Ok::<_, Infallible>(answer.map(|body| Served { body, _busy: busy }))
        }
    });
    let watch = Watch { version, state, shared, limits, drain };
    let ended = match version {
        Version::Http1 => {
            let connection = http1::Builder::new()
                .max_header_size(MAX_HEAD)
                .max_buf_size(MAX_BUFFER)
                // Ours; hyper's is off without a timer.
                .header_read_timeout(None)
                .serve_connection(TokioIo::new(io), service);
            watch.drive(pin!(connection)).await
        }
        Version::Http2 => {
            let connection = http2::Builder::new(Streams(tasks))
                .timer(TokioTimer::new())
                .max_concurrent_streams(MAX_STREAMS)
                .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
                .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
                .max_local_error_reset_streams(MAX_ERROR_STREAMS)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_send_buf_size(MAX_SEND_BUFFER)
                .keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_WITHIN)
                .serve_connection(TokioIo::new(io), service);
            watch.drive(pin!(connection)).await
        }
    };
    ended.unwrap_or_else(|error| {
        tracing::debug!(%error, "a connection ended");
        Ended::Closed
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// The handshake, where connections must speak TLS; `None` if it fails, takes longer than a head may,
/// or the drain begins.
async fn secured(
    stream: TcpStream,
    security: &Security,
    limits: &Limits,
    drain: &Drain,
) -> Option<Stream> {
    let Some(tls) = &security.tls else { return Some(Stream::Plain(stream)) };
    // Boxed: a plain connection's task has no room for a handshake.
    let shaking = Box::pin(tokio::time::timeout(limits.head, tls.acceptor().accept(stream)));
    tokio::select! {
        biased;
        // Lost: a handshake whose request would not be served any more.
        () = drain.begun() => None,
        shaken = shaking => match shaken {
            Ok(Ok(stream)) => Some(Stream::Tls(Box::new(stream))),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!("a TLS handshake took too long");
                None
            }
        },
    }
}

/// Reads until it is clear which protocol this is; `None` if the client says nothing in time,
/// leaves, or the drain begins.
async fn first_bytes(
    stream: &mut Stream,
    limits: &Limits,
    drain: &Drain,
) -> Option<(Version, Bytes)> {
    let read = async {
        let mut bytes = BytesMut::with_capacity(PREFACE.len());
        loop {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            // Anything read here is at most as long as the buffer, so nothing of a body gets in.
            let is_preface = PREFACE.starts_with(&bytes);
            if is_preface && bytes.len() < PREFACE.len() {
                continue;
            }
            let version = if bytes.starts_with(PREFACE) { Version::Http2 } else { Version::Http1 };
            return Ok((version, bytes.freeze()));
        }
    };
    tokio::select! {
        biased;
        // Lost: at most some bytes of a request that is not served any more.
        () = drain.begun() => None,
        read = tokio::time::timeout(limits.head, read) => read.ok()?.ok(),
    }
}

/// What is known about a connection's requests.
#[derive(Default)]
struct State {
    /// Requests that came, ever.
    arrivals: AtomicUsize,
    /// Requests whose answers are not yet handed over.
    busy: AtomicUsize,
    /// Bytes came since the last answer was handed over.
    has_read: Arc<AtomicBool>,
}

/// One request that is not yet answered.
struct Busy(Arc<State>);

impl Busy {
    fn new(state: &Arc<State>) -> Self {
        state.arrivals.fetch_add(1, Ordering::Relaxed);
        state.busy.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.0.has_read.store(false, Ordering::Relaxed);
    }
}

/// An answer's body, while which the connection is busy.
struct Served {
    body: Body,
    _busy: Busy,
}

impl http_body::Body for Served {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Both of hyper's connections.
trait Connection: Future<Output = hyper::Result<()>> {
    fn shut_down(self: Pin<&mut Self>);
}

impl<S, B> Connection for http1::Connection<TokioIo<Watched<Stream>>, S>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S, B> Connection for http2::Connection<TokioIo<Watched<Stream>>, S, Streams>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    Streams: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Spawns the task of an HTTP/2 stream.
#[derive(Clone)]
struct Streams(Tasks);

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        drop(self.0.spawn_background("stream", stream));
    }
}

/// Everything about a connection that hyper does not do.
struct Watch {
    version: Version,
    state: Arc<State>,
    shared: Arc<Shared>,
    limits: Arc<Limits>,
    drain: Drain,
}

impl Watch {
    async fn drive(self, mut connection: Pin<&mut impl Connection>) -> hyper::Result<Ended> {
        let mut tick = pin!(sleep(self.limits.head));
        let mut changed = pin!(self.drain.changed());
        let mut due: Option<Pin<Box<Sleep>>> = None;
        let mut quiet = Quiet::default();
        let mut is_draining = false;
        let mut is_registered = false;
        std::future::poll_fn(|cx| {
            if self.drain.is_cut() {
                return Poll::Ready(Ok(Ended::Cut));
            }
            if self.drain.is_begun() && !is_draining {
                is_draining = true;
                connection.as_mut().shut_down();
                changed.set(self.drain.changed());
                is_registered = false;
            }
            if tick.is_elapsed() {
                match quiet.tick(&self.state, self.version, &self.limits) {
                    Verdict::Close => return Poll::Ready(Ok(Ended::Closed)),
                    Verdict::Keep => {}
                    Verdict::ShutDown => connection.as_mut().shut_down(),
                }
                tick.as_mut().reset(Instant::now() + self.limits.head);
                is_registered = false;
            }
            // Whatever polls them once is woken by them; that is this one task, for the
            // connection's whole life. So they are polled when they are new, and otherwise only
            // looked at.
            if !is_registered {
                is_registered = true;
                let has_changed = changed.as_mut().poll(cx).is_ready();
                if has_changed {
                    changed.set(self.drain.changed());
                }
                if has_changed || tick.as_mut().poll(cx).is_ready() {
                    is_registered = false;
                    cx.waker().wake_by_ref();
                }
                // It may have come before the registration and after the look above.
                if self.drain.is_cut() {
                    return Poll::Ready(Ok(Ended::Cut));
                }
            }
            let polled = connection.as_mut().poll(cx);
            if polled.is_pending() {
                self.poll_due(cx, &mut due);
            }
            polled.map_ok(|()| Ended::Closed)
        })
        .await
    }

    /// Keeps the time after which a written answer counts as delivered.
    fn poll_due(&self, cx: &mut Context<'_>, due: &mut Option<Pin<Box<Sleep>>>) {
        let after = self.limits.delivered_after;
        while self.shared.is_watching() {
            let Some(deadline) = self.shared.next_due(after) else { return };
            let timer = due.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return;
            }
            self.shared.due(Instant::now(), after);
        }
        *due = None;
    }
}

/// What the last tick saw.
#[derive(Default)]
struct Quiet {
    arrivals: usize,
    /// Ticks without a request.
    ticks: u32,
    has_partial_head: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Close,
    Keep,
    ShutDown,
}

impl Quiet {
    fn tick(&mut self, state: &State, version: Version, limits: &Limits) -> Verdict {
        let arrivals = state.arrivals.load(Ordering::Relaxed);
        let is_busy = state.busy.load(Ordering::Relaxed) > 0;
        if is_busy || arrivals != self.arrivals {
            *self = Self { arrivals, ticks: 0, has_partial_head: false };
            return Verdict::Keep;
        }
        self.ticks = self.ticks.saturating_add(1);
        // HTTP/2 keeps talking while it is idle, and bounds its heads by itself.
        if version == Version::Http1 && state.has_read.load(Ordering::Relaxed) {
            if self.has_partial_head {
                return Verdict::Close;
            }
            self.has_partial_head = true;
        }
        if limits.head.saturating_mul(self.ticks) >= limits.keep_alive {
            return Verdict::ShutDown;
        }
        Verdict::Keep
    }
}
