//! Talking to the upstream: one authority, a small pool, and the proof of what was sent.
//!
//! [`Upstream::send`] answers with one of three things, decided here once: an answer,
//! [`Sent::NotSent`] (no byte of the request left this process: the only case that may be tried
//! again), or [`Sent::Lost`] (it may have arrived, and we do not know what came of it). The proof
//! is hyper's: a connection that fails gives a request back only if it never began to write it; over
//! HTTP/2 also the upstream's, which says that it did not look at a stream (standards H-24). Such a
//! request is sent again on a fresh connection right here; nothing else is ever sent twice.
//!
//! [`Protocol`] says how it is spoken to: plain HTTP/1.1; TLS, with HTTP/2 if the upstream takes it
//! and HTTP/1.1 else; or plain HTTP/2 by prior knowledge.
//!
//! The pool belongs to one worker thread ([`Upstream`] is made once per worker). It costs a call no
//! task, and one allocation for what waits for the answer: a `Link` is one box that moves from the
//! idle list into the answer's body and back, with its timer. A link returns to the list only when its answer was read to the
//! end and hyper says at that moment that it is ready for another request. So half-read answers,
//! answers that came before their request was written, and connections with bytes nobody asked for
//! are closed instead (H-20q). The idle limit (3 s) is below what servers use, which keeps the race
//! between our request and their close rare (pitfall P18); a maximum age lets new replicas be found
//! (P40).
//!
//! Retries, redirects, decompression, cookies: none. 1xx answers are skipped (H-10), 101 is
//! [`LostReason::Protocol`] (H-11).

mod connect;
mod link;
mod mux;
mod pool;
#[cfg(test)]
mod secure_tests;
mod signal;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{
    CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING, WWW_AUTHENTICATE,
};
use http::uri::{Authority as UriAuthority, PathAndQuery, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::{Instant, Sleep};

use crate::call::has_any;
use crate::call::payload::Body;
use crate::contract::operation::is_safe;
use crate::tasks::Tasks;
use crate::tls::ClientTls;

pub use connect::{Authority, AuthorityError};
use link::{Link, Way};
use mux::was_never_processed;
use pool::Pool;

/// How often one call of [`Upstream::send`] may be handed back unsent before it gives up. The first
/// attempt may use an idle connection; the others make their own.
const ATTEMPTS: usize = 3;

/// What an upstream is made from.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it is; a name is looked up at each connect.
    pub authority: Authority,
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Connections, or streams of shared ones, in use at the same time; a call beyond them waits
    /// under the connect clock.
    pub connections: usize,
    /// Connections kept for later calls.
    pub idle_connections: usize,
    /// How long a connection is kept without a call.
    pub idle: Duration,
    /// How old a connection may be when it is used again.
    pub max_age: Duration,
}

impl Config {
    /// The defaults: plain, 512 connections, 128 kept, for 3 s, up to 5 minutes old.
    pub fn new(authority: Authority) -> Self {
        Self {
            authority,
            protocol: Protocol::Clear,
            connections: 512,
            idle_connections: 128,
            idle: Duration::from_secs(3),
            max_age: Duration::from_secs(300),
        }
    }
}

/// How the upstream is spoken to.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// Plain HTTP/1.1.
    Clear,
    /// Plain HTTP/2, by prior knowledge.
    ClearHttp2,
    /// Through TLS; HTTP/2 if the upstream takes it, else HTTP/1.1.
    Tls(Arc<ClientTls>),
}

impl Protocol {
    /// Grows when connections of before should not be used again.
    fn generation(&self) -> u64 {
        match self {
            Self::Clear | Self::ClearHttp2 => 0,
            Self::Tls(tls) => tls.generation(),
        }
    }

    fn scheme(&self) -> Scheme {
        match self {
            Self::Clear | Self::ClearHttp2 => Scheme::HTTP,
            Self::Tls(_) => Scheme::HTTPS,
        }
    }
}

/// The four clocks of a call (standards H-26). They start with [`Upstream::send`], except `idle`.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// From the start until the request is given to a connection: waiting for the pool, looking up
    /// the name, connecting. Running out means not sent.
    pub connect: Duration,
    /// From then until the answer's head. Running out means lost.
    pub head: Duration,
    /// The longest wait for a part of the answer's body; `None` for a stream that may rest.
    pub idle: Option<Duration>,
    /// From the start to the end of the answer's body; `None` for a stream that may last.
    pub total: Option<Duration>,
}

/// What came of a dispatch.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the large variant is the usual one")]
pub enum Sent {
    /// A final answer. Its body gives the connection back when it is read to the end, and closes it
    /// when it is dropped before.
    Answer(Response<Body>),
    /// The request may have arrived; what came of it is unknown.
    Lost(LostReason),
    /// No byte of the request left this process.
    NotSent(NotSentReason),
}

/// Why an answer is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LostReason {
    /// A clock ran out within the answer.
    #[error("the rest of the answer did not come in time")]
    BodyTimeout,
    /// The head clock ran out.
    #[error("no answer came in time")]
    HeadTimeout,
    /// The answer cannot be understood, is too large in its head, or switches protocols.
    #[error("the answer breaks the protocol")]
    Protocol,
    /// The request's own body failed on its way: whoever sends it stopped.
    #[error("the request's body ended before its end")]
    RequestBody,
    /// The connection was closed or reset after a part of the request was written.
    #[error("the connection ended before an answer")]
    Reset,
    /// The absolute clock ran out.
    #[error("the time limit of the whole call ran out")]
    TotalTimeout,
}

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSentReason {
    /// Fresh connections ended before the request was written.
    #[error("the connection ended before the request was written")]
    Closed,
    /// No address took a connection.
    #[error("the connection was refused or unreachable")]
    Connect,
    /// The connect clock ran out on the way to a connection.
    #[error("no connection was made in time")]
    ConnectTimeout,
    /// The name could not be looked up.
    #[error("the upstream's name could not be looked up")]
    Dns,
    /// The connect clock ran out while all connections were in use.
    #[error("all connections stayed in use")]
    PoolTimeout,
    /// The upstream said that it did not look at the request, each time.
    #[error("the upstream refused to look at the request")]
    Refused,
    /// The TLS handshake failed, on either side.
    #[error("the TLS handshake failed")]
    Tls,
}

/// How many connections a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Kept for later calls.
    pub idle: usize,
    /// Serving a call or its answer's body.
    pub in_use: usize,
}

/// One upstream as one worker sees it. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Upstream {
    pool: Arc<Pool>,
}

impl Upstream {
    /// An upstream without connections; they are made by calls.
    pub fn new(config: Config, tasks: Tasks) -> Self {
        Self { pool: Arc::new(Pool::new(config, tasks)) }
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// The request's URI goes out as it is (origin form), with its `Host`. Its version becomes 1.1,
    /// and its framing headers are replaced by what its body says, whatever they were (H-8, case
    /// A1).
    ///
    /// Cancel safety: dropping this future before it resolves closes the connection; the upstream
    /// may have received all, a part or nothing of the request.
    pub fn send<'a>(
        &'a self,
        mut request: Request<Body>,
        clocks: &Clocks,
    ) -> impl Future<Output = Sent> + Send + use<'a> {
        frame(&mut request);
        let times = Times::new(Instant::now(), clocks);
        // Not `async`: a request is large, and a future would keep it until its end.
        let begun = match self.pool.at_hand(times.began) {
            Some(link) => Begun::Trial(self.trial(link, request, times.began, &times)),
            None => Begun::Search(Box::pin(self.search(request, times, 0, NotSentReason::Closed))),
        };
        async move {
            let trial = match begun {
                Begun::Search(search) => return search.await,
                Begun::Trial(trial) => trial,
            };
            match trial.outcome(&times).await {
                Outcome::Known(sent) => sent,
                Outcome::Again(request, reason) => {
                    Box::pin(self.search(*request, times, 1, reason)).await
                }
            }
        }
    }

    /// Sends on connections that are yet to be found; `tried` attempts were made before, of which the
    /// last ended as `reason` says.
    async fn search(
        &self,
        request: Request<Body>,
        times: Times,
        tried: usize,
        mut reason: NotSentReason,
    ) -> Sent {
        let mut unsent = request;
        for attempt in tried..ATTEMPTS {
            let connect_by = times.connect_by();
            let checkout = self.pool.checkout(connect_by, times.began, attempt == 0);
            let (link, now) = match checkout.await {
                Ok(ready) => ready,
                Err(reason) => return Sent::NotSent(reason),
            };
            match self.trial(link, unsent, now, &times).outcome(&times).await {
                Outcome::Known(sent) => return sent,
                Outcome::Again(request, why) => {
                    unsent = *request;
                    reason = why;
                }
            }
        }
        Sent::NotSent(reason)
    }

    /// Gives a request to a connection.
    fn trial(
        &self,
        mut link: Box<Link>,
        mut request: Request<Body>,
        now: Instant,
        times: &Times,
    ) -> Trial {
        let head_by = earlier(now + times.clocks.head, times.total());
        link.timer.as_mut().reset(head_by);
        let mut again = None;
        let sending: Pin<Box<Answering>> = match &mut link.way {
            Way::Own { sender, .. } => {
                into_http1(&mut request);
                Box::pin(sender.try_send_request(request))
            }
            Way::Shared { sender, .. } => {
                into_http2(&mut request, self.pool.protocol());
                again = copy(&request);
                Box::pin(sender.try_send_request(request))
            }
        };
        Trial { link, sending, again, head_by }
    }

    /// How many connections there are.
    pub fn usage(&self) -> Usage {
        self.pool.usage()
    }

    /// Closes the idle connections and keeps no more: for the end of a drain.
    pub fn close(&self) {
        self.pool.close();
    }
}

/// The clocks of one call, and when they began.
#[derive(Clone, Copy)]
struct Times {
    began: Instant,
    clocks: Clocks,
}

impl Times {
    fn new(began: Instant, clocks: &Clocks) -> Self {
        Self { began, clocks: *clocks }
    }

    fn total(&self) -> Option<Instant> {
        self.clocks.total.map(|total| self.began + total)
    }

    fn connect_by(&self) -> Instant {
        earlier(self.began + self.clocks.connect, self.total())
    }
}

/// A call, from its first step on.
enum Begun<F> {
    /// Boxed: a call that finds an idle connection has no room for the search of one.
    Search(Pin<Box<F>>),
    Trial(Trial),
}

type Answering =
    dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<Body>>>> + Send;

/// A request that was given to a connection.
struct Trial {
    link: Box<Link>,
    sending: Pin<Box<Answering>>,
    /// To be sent again, where the upstream says that it did not look at it.
    again: Option<Box<Request<Body>>>,
    head_by: Instant,
}

/// What came of a trial.
enum Outcome {
    /// Nothing was sent, for this reason; the request may be tried again.
    Again(Box<Request<Body>>, NotSentReason),
    Known(Sent),
}

impl Trial {
    async fn outcome(self, times: &Times) -> Outcome {
        let Self { mut link, mut sending, again, head_by } = self;
        let answered = {
            let Link { way, timer, .. } = &mut *link;
            let answer = |cx: &mut Context<'_>| match way {
                Way::Own { wire, .. } => wire.poll(cx, |cx| sending.as_mut().poll(cx)),
                Way::Shared { .. } => sending.as_mut().poll(cx),
            };
            until(timer.as_mut(), answer).await
        };
        let total = times.total();
        Outcome::Known(match answered {
            // Leaving by the timer drops the link, which closes the connection, or resets
            // the stream: an answer that comes late can reach nobody (case B3).
            None if total == Some(head_by) => Sent::Lost(LostReason::TotalTimeout),
            None => Sent::Lost(LostReason::HeadTimeout),
            Some(Ok(answer)) => received(link, answer, times.clocks.idle, total),
            Some(Err(_)) if link.refusal.has_come() => Sent::NotSent(NotSentReason::Tls),
            Some(Err(mut error)) => match error.take_message() {
                Some(message) => return Outcome::Again(Box::new(message), NotSentReason::Closed),
                None if !was_never_processed(error.error()) => {
                    Sent::Lost(lost_reason(error.error()))
                }
                None => match again {
                    Some(again) => return Outcome::Again(again, NotSentReason::Refused),
                    None => Sent::NotSent(NotSentReason::Refused),
                },
            },
        })
    }
}

/// A head that came, as an answer whose body keeps the connection.
fn received(
    mut link: Box<Link>,
    answer: Response<Incoming>,
    idle: Option<Duration>,
    total: Option<Instant>,
) -> Sent {
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS || is_framed_oddly(answer.headers()) {
        return Sent::Lost(LostReason::Protocol);
    }
    if answer.status() == StatusCode::UNAUTHORIZED && binds_connection(answer.headers()) {
        link.forbid_reuse();
    }
    let (head, incoming) = answer.into_parts();
    Sent::Answer(Response::from_parts(head, link.into_body(incoming, idle, total)))
}

/// What comes of `answer` before the timer runs out.
async fn until<T>(
    mut timer: Pin<&mut Sleep>,
    mut answer: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    poll_fn(|cx| match answer(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}

fn earlier(deadline: Instant, other: Option<Instant>) -> Instant {
    other.map_or(deadline, |other| other.min(deadline))
}

/// Gives a request HTTP/1.1's form, whatever form an earlier attempt gave it.
fn into_http1(request: &mut Request<Body>) {
    if request.version() == Version::HTTP_11 {
        return;
    }
    *request.version_mut() = Version::HTTP_11;
    let target = request.uri().path_and_query().cloned();
    let authority = request.uri().authority();
    let host = authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    *request.uri_mut() = Uri::from(target.unwrap_or_else(|| PathAndQuery::from_static("/")));
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    frame(request);
}

/// Gives a request HTTP/2's form: an absolute target in place of `Host`, and no framing of its own.
fn into_http2(request: &mut Request<Body>, protocol: &Protocol) {
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(TRANSFER_ENCODING);
    let host = request.headers_mut().remove(HOST);
    let authority = host.and_then(|host| UriAuthority::try_from(host.as_bytes()).ok());
    if let Some(authority) = authority {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(protocol.scheme());
        parts.authority = Some(authority);
        parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    }
}

/// A copy to send again; none of a body that is not in memory.
fn copy(request: &Request<Body>) -> Option<Box<Request<Body>>> {
    let body = request.body().copy()?;
    let mut again = Request::new(body);
    again.method_mut().clone_from(request.method());
    again.uri_mut().clone_from(request.uri());
    *again.version_mut() = request.version();
    again.headers_mut().clone_from(request.headers());
    Some(Box::new(again))
}

fn lost_reason(error: &hyper::Error) -> LostReason {
    if error.is_parse() {
        LostReason::Protocol
    } else if error.is_user() && !error.is_canceled() {
        LostReason::RequestBody
    } else {
        LostReason::Reset
    }
}

/// hyper reads an answer with both framings as chunked and keeps the length; the next reader may not
/// (H-20r). One in a further coding, such as `gzip, chunked`, it would pass on as if it were plain.
fn is_framed_oddly(headers: &HeaderMap) -> bool {
    if !has_any(headers, &[TRANSFER_ENCODING]) {
        return false;
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return false };
    let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    !is_chunked || codings.next().is_some() || headers.contains_key(CONTENT_LENGTH)
}

/// Authentication that belongs to the connection: a pooled one would lend one caller's identity to
/// the next (standards 4.2).
fn binds_connection(headers: &HeaderMap) -> bool {
    headers.get_all(WWW_AUTHENTICATE).iter().any(|value| {
        value.as_bytes().split(|byte| *byte == b',').any(|challenge| {
            let scheme = challenge.trim_ascii().split(|byte| *byte == b' ').next().unwrap_or(&[]);
            scheme.eq_ignore_ascii_case(b"NTLM") || scheme.eq_ignore_ascii_case(b"Negotiate")
        })
    })
}

/// Gives the request exactly one framing, from its body. hyper believes framing headers over the
/// body, and sends no body of unknown length with GET unless they say so.
fn frame(request: &mut Request<Body>) {
    *request.version_mut() = Version::HTTP_11;
    let body = request.body();
    let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
    // A safe method asks for nothing by its content, so that none needs to be told of.
    let has_meaning = !is_safe(request.method());
    let headers = request.headers_mut();
    if has_any(headers, &[TRANSFER_ENCODING, CONTENT_LENGTH]) {
        headers.remove(TRANSFER_ENCODING);
        headers.remove(CONTENT_LENGTH);
    }
    match length {
        Some(0) if !has_meaning => {}
        Some(length) => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        None => {
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
}
