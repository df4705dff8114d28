//! Reading a body whole: with a limit, out of a budget, under an idle clock.
//!
//! The limit is an argument, so that no caller can forget it; a declared length above it fails
//! before a byte is read (and before hyper sends `100 Continue`). The budget is what all calls
//! together may hold in memory: each body takes what it has read, not what it declares, so a sender
//! that declares much and sends nothing holds nothing. A body that came in one frame is not copied.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body as _;

use super::{Body, BodyError, Kind};

/// The bytes that all collected bodies of the process may hold together.
#[derive(Clone, Debug)]
pub struct Budget {
    free: Arc<AtomicUsize>,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { free: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// How many bytes nobody holds.
    pub fn free_bytes(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    fn share(&self) -> Share {
        Share { budget: Arc::clone(&self.free), bytes: 0 }
    }
}

/// A part of a budget; its drop gives it back.
#[derive(Debug)]
struct Share {
    budget: Arc<AtomicUsize>,
    bytes: usize,
}

impl Share {
    /// Takes so many more bytes, or none. It never waits: bodies that wait for each other's bytes
    /// while they hold some would wait for ever.
    fn grow(&mut self, bytes: usize) -> bool {
        let taken = self
            .budget
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |free| free.checked_sub(bytes));
        if taken.is_ok() {
            self.bytes += bytes;
        }
        taken.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.fetch_add(self.bytes, Ordering::AcqRel);
    }
}

/// A body that was read whole. Its share of the budget is held until it is dropped.
#[derive(Debug)]
pub struct Collected {
    bytes: Bytes,
    share: Share,
    trailers: Option<Box<HeaderMap>>,
}

impl Collected {
    /// What was read.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The fields that came after it.
    pub fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_deref()
    }

    pub(super) fn into_parts(self) -> (Bytes, impl Send + Sync + 'static) {
        (self.bytes, self.share)
    }
}

/// Why a body could not be read whole.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The peer cut it, or its producer stopped.
    #[error("the body could not be read to its end")]
    Broken(#[source] BodyError),
    /// All calls together hold as much as they may; a later attempt may work.
    #[error("the memory for bodies is used up")]
    Budget,
    /// The sender stalled.
    #[error("no part of the body came within the idle limit")]
    Idle,
    /// It is, or says it is, longer than the limit.
    #[error("the body is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The limit, inclusive.
        limit_bytes: usize,
    },
}

/// Reads a body whole. Trailers are kept beside it (standards H-13).
///
/// `limit_bytes` is inclusive; `idle` is the longest wait for a frame. On an error the body is
/// gone, and with it the connection's hope of reuse, if more of it was to come.
///
/// Cancel safety: dropping it before it resolves drops the body and gives the budget back.
pub async fn collect(
    body: Body,
    limit_bytes: usize,
    budget: &Budget,
    idle: Duration,
) -> Result<Collected, CollectError> {
    match read(body.with_idle(idle), limit_bytes, budget).await {
        Read::Whole(collected) => Ok(collected),
        Read::Stopped { why: Stop::Error(BodyError::Idle), .. } => Err(CollectError::Idle),
        Read::Stopped { why: Stop::Error(error), .. } => Err(CollectError::Broken(error)),
        Read::Stopped { why: Stop::Budget, .. } => Err(CollectError::Budget),
        Read::Stopped { why: Stop::TooLarge, .. } => Err(CollectError::TooLarge { limit_bytes }),
    }
}

/// As [`collect`], and the whole of it within `total`: an idle clock alone lets a sender drip one byte at
/// a time and hold a place for hours. Too late is [`CollectError::Idle`].
pub async fn collect_within(
    body: Body,
    limit_bytes: usize,
    budget: &Budget,
    idle: Duration,
    total: Duration,
) -> Result<Collected, CollectError> {
    let collecting = collect(body, limit_bytes, budget, idle);
    tokio::time::timeout(total, collecting).await.unwrap_or(Err(CollectError::Idle))
}

/// Reads what is left of a body that nobody wants, and forgets it: at most `limit_bytes` more, for
/// at most `within`. True if it came to its end, so that the connection can be used again.
///
/// To be called before a refusal is answered: a client that is still writing when its connection is
/// closed may never read the refusal (pitfall P22). Not for a request that expects `100 Continue`:
/// to read is to ask for the body.
pub async fn discard(mut body: Body, limit_bytes: usize, within: Duration) -> bool {
    let limit = u64::try_from(limit_bytes).unwrap_or(u64::MAX);
    if body.is_end_stream() {
        return true;
    }
    if body.size_hint().lower() > limit {
        return false;
    }
    let reading = async {
        let mut seen: usize = 0;
        while seen <= limit_bytes {
            match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => {
                    seen = seen.saturating_add(frame.data_ref().map_or(0, Bytes::len));
                }
            }
        }
        false
    };
    tokio::time::timeout(within, reading).await.unwrap_or(false)
}

/// What [`collect_prefix`] gives.
#[derive(Debug)]
pub enum Prefix {
    /// A body that reads as the original would have: what was read, then the rest (or its error).
    Partial {
        /// What was read and what follows.
        body: Body,
        /// Why it was not read whole.
        why: Partial,
    },
    /// All of it.
    Whole(Collected),
}

/// Why a body was not read whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partial {
    /// It was cut.
    Broken,
    /// All calls together hold as much as they may.
    Budget,
    /// Its sender stalled.
    Idle,
    /// It is, or says it is, longer than the limit.
    TooLarge,
}

/// Reads a body whole if that is possible, and gives it back as a stream if it is not: an answer
/// that is too long to look at is still an answer. Bytes that were read stay counted until they are
/// handed over. Limits as [`collect`]; the body's own idle clock goes on unless `idle` replaces it.
///
/// Cancel safety: dropping it before it resolves drops the body.
pub async fn collect_prefix(
    body: Body,
    limit_bytes: usize,
    budget: &Budget,
    idle: Option<Duration>,
) -> Prefix {
    let body = match idle {
        Some(idle) => body.with_idle(idle),
        None => body,
    };
    let (gathered, share, body, why) = match read(body, limit_bytes, budget).await {
        Read::Whole(collected) => return Prefix::Whole(collected),
        Read::Stopped { gathered, share, body, why } => (gathered, share, body, why),
    };
    let (body, why) = match why {
        Stop::Budget => (body, Partial::Budget),
        Stop::TooLarge => (body, Partial::TooLarge),
        Stop::Error(error) => {
            let why = match error {
                BodyError::Idle | BodyError::Total => Partial::Idle,
                BodyError::Left | BodyError::Stopped | BodyError::Truncated(_) => Partial::Broken,
            };
            (Body::of(Kind::Failed(error)), why)
        }
    };
    Prefix::Partial { body: body.after(gathered).hold(share), why }
}

enum Read {
    Stopped { gathered: Bytes, share: Share, body: Body, why: Stop },
    Whole(Collected),
}

enum Stop {
    Budget,
    Error(BodyError),
    TooLarge,
}

async fn read(mut body: Body, limit_bytes: usize, budget: &Budget) -> Read {
    let mut share = budget.share();
    let mut gathered = Gathered::Nothing;
    let mut trailers = None;
    let declared = body.size_hint();
    let limit = u64::try_from(limit_bytes).unwrap_or(u64::MAX);
    if declared.lower() > limit {
        return Read::Stopped { gathered: Bytes::new(), share, body, why: Stop::TooLarge };
    }
    let expected = declared.exact().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);

    let why = loop {
        let polled = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let frame = match polled {
            None => {
                let bytes = gathered.into_bytes();
                return Read::Whole(Collected { bytes, share, trailers });
            }
            Some(Err(error)) => break Stop::Error(error),
            Some(Ok(frame)) => frame,
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                trailers = frame.into_trailers().ok().map(Box::new);
                continue;
            }
        };
        let is_budgeted = share.grow(data.len());
        gathered.push(data, expected);
        if gathered.len() > limit_bytes {
            break Stop::TooLarge;
        }
        if !is_budgeted {
            break Stop::Budget;
        }
    };
    Read::Stopped { gathered: gathered.into_bytes(), share, body, why }
}

enum Gathered {
    Many(BytesMut),
    Nothing,
    One(Bytes),
}

impl Gathered {
    fn len(&self) -> usize {
        match self {
            Self::Many(bytes) => bytes.len(),
            Self::Nothing => 0,
            Self::One(bytes) => bytes.len(),
        }
    }

    fn push(&mut self, data: Bytes, expected_bytes: usize) {
        if data.is_empty() {
            return;
        }
        *self = match std::mem::replace(self, Self::Nothing) {
            Self::Nothing => Self::One(data),
            Self::One(first) => {
                let needed = first.len().saturating_add(data.len());
                let mut bytes = BytesMut::with_capacity(expected_bytes.max(needed));
                bytes.extend_from_slice(&first);
                bytes.extend_from_slice(&data);
                Self::Many(bytes)
            }
            Self::Many(mut bytes) => {
                bytes.extend_from_slice(&data);
                Self::Many(bytes)
            }
        };
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Many(bytes) => bytes.freeze(),
            Self::Nothing => Bytes::new(),
            Self::One(bytes) => bytes,
        }
    }
}
