//! HTTP/2 to the upstream: connections that many calls share.
//!
//! A worker has one such connection, and another only when the upstream's limit of streams is
//! reached. Each call takes a [`super::link::Link`] of its own that holds a share of it.
//!
//! What HTTP/2 can prove that HTTP/1.1 cannot (standards H-24): a stream that the upstream refused
//! (`RST_STREAM` with `REFUSED_STREAM`), or whose number is above the last one that its GOAWAY
//! names, was never looked at. h2 gives such a stream the peer's GOAWAY as its error, whatever the
//! code; a stream that the GOAWAY does include gets none, and fails only with its connection, as a
//! lost call. So the kind of the error is the proof ([`was_never_processed`]).
//!
//! A new connection takes its first call when the upstream's SETTINGS have come, which say how many
//! streams it allows: a request that h2 held back for want of one would be sent whenever there is one,
//! long after its call had ended.
//!
//! A connection that the upstream is leaving takes no new call. One that rests is closed after a
//! while, and is asked in between whether it lives, so that a path that broke in silence does not
//! swallow the next write.

use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{Instant, sleep, sleep_until};

use super::NotSentReason;
use super::connect::{Refusal, Transport};
use crate::call::payload::Body;
use crate::tasks::Tasks;

/// The largest list of an answer's header fields, in bytes; h2's default of 16 KiB would refuse
/// answers after their writes have happened (standards H-22).
const MAX_HEAD: u32 = 64 * 1024;
/// What the upstream may send ahead of a slow agent, per stream and per connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// How often a connection is asked whether it lives, and how long it may take.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether SETTINGS that have begun to come are in force: a frame may be
/// cut, and what reads them may run on another thread.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How long a connection rests before it is closed. Longer than HTTP/1.1's, because GOAWAY says what
/// a close in the same moment leaves open there.
const REST: Duration = Duration::from_secs(30);

/// A connection that calls share.
pub(super) struct Shared {
    sender: SendRequest<Body>,
    streams: Arc<Streams>,
    pub(super) born: Instant,
    pub(super) generation: u64,
    last_taken: Instant,
    refusal: Refusal,
}

/// What is known about a connection's streams.
struct Streams {
    open: AtomicUsize,
    /// What the upstream allows.
    most: AtomicUsize,
}

/// One call's part of a connection; its drop gives it back.
pub(super) struct Share(Arc<Streams>);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    pub(super) async fn open(
        mut transport: Transport,
        generation: u64,
        tasks: &Tasks,
        deadline: Instant,
    ) -> Result<Self, NotSentReason> {
        let refusal = transport.refusal();
        let heard = transport.heard();
        let handshake = Builder::new(Background(tasks.clone()))
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEAD)
            .initial_max_send_streams(0)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_WITHIN)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(transport))
            .await;
        let Ok((sender, connection)) = handshake else { return Err(NotSentReason::Closed) };
        let mut connection = Box::pin(connection);
        // The upstream's first bytes are its SETTINGS; nobody else is told when they come.
        let mut has_begun = false;
        let most = loop {
            match connection.current_max_send_streams() {
                0 if Instant::now() >= deadline => return Err(NotSentReason::ConnectTimeout),
                0 => {}
                most => break most,
            }
            tokio::select! {
                // Lost: nothing, no request was given to it.
                _ = connection.as_mut() => return Err(match refusal.has_come() {
                    true => NotSentReason::Tls,
                    false => NotSentReason::Closed,
                }),
                () = heard.notified(), if !has_begun => has_begun = true,
                () = sleep(LOOK_EVERY), if has_begun => {}
                () = sleep_until(deadline) => {}
            }
        };
        let streams = Arc::new(Streams { open: AtomicUsize::new(0), most: AtomicUsize::new(most) });
        let seen = Arc::clone(&streams);
        drop(tasks.spawn_background("upstream connection", async move {
            let ended = std::future::poll_fn(|cx| {
                let polled = connection.as_mut().poll(cx);
                seen.most.store(connection.current_max_send_streams(), Ordering::Relaxed);
                polled
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "an upstream connection ended");
            }
        }));
        let now = Instant::now();
        Ok(Self { sender, streams, born: now, generation, last_taken: now, refusal })
    }

    /// It takes new calls.
    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed() && self.sender.is_ready()
    }

    /// It has no call, and has had none for a while.
    pub(super) fn is_resting(&self, now: Instant) -> bool {
        self.open_streams() == 0 && now.saturating_duration_since(self.last_taken) >= REST
    }

    pub(super) fn open_streams(&self) -> usize {
        self.streams.open.load(Ordering::Acquire)
    }

    /// A share of it for one call; none if it has as many as the upstream allows.
    pub(super) fn share(&mut self, now: Instant) -> Option<(SendRequest<Body>, Share, Refusal)> {
        let order = Ordering::AcqRel;
        let most = self.streams.most.load(Ordering::Relaxed);
        let more = |open: usize| (open < most).then(|| open.saturating_add(1));
        self.streams.open.fetch_update(order, Ordering::Acquire, more).ok()?;
        self.last_taken = now;
        Some((self.sender.clone(), Share(Arc::clone(&self.streams)), self.refusal.clone()))
    }
}

/// The upstream says that it has not looked at the request.
pub(super) fn was_never_processed(error: &hyper::Error) -> bool {
    let error = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    error.is_some_and(|error| {
        let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (error.is_go_away() || is_refused)
    })
}

/// Runs hyper's tasks.
#[derive(Clone)]
struct Background(Tasks);

impl<F> Executor<F> for Background
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        drop(self.0.spawn_background("upstream stream", work));
    }
}
