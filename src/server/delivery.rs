//! Whether an answer was delivered (contract 3): written whole, and then a later byte on that
//! connection, a minute with it open, or its end in order by the client.
//!
//! The socket is wrapped ([`Watched`]). The layer above asks for a watch when the body of an answer
//! was handed over whole ([`DeliveryHandle::follow`] does it). From then on: a flush that the
//! socket took means "written"; a byte read after that means delivered; so does the time limit,
//! which the connection's task keeps; the end of the connection before either means undelivered.
//!
//! Many clients make a connection for one call and close it. A system whose program closes with an
//! answer unread, or that gets one after the close, says so with a reset; one whose program has read
//! all of it closes in order. So the client's close, after all was written, is not passed on at once:
//! if a second later ([`LINGER`]) no reset has followed it, the answers were delivered. Where we close
//! first (`Connection: close`), we wait as long for the client's own close. Through TLS the end must be
//! one in order too (`close_notify`). Only a connection with an answer that is watched waits.
//!
//! HTTP/1 writes answers in order and flushes only when all that hyper buffered is written, so
//! "written" is exact. With HTTP/2 a part of a large answer may still wait for the client's window
//! when the flush is seen; the later byte may be that window. The error is bounded by what hyper
//! buffers for a stream, and a delivered answer is only a reason to believe that a repeat is meant.
//!
//! Costs nothing but one relaxed load per read and flush while no answer is watched.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::call::payload::{Body, End};

/// Answers of one connection that may be watched at the same time; as many as it may have streams.
const MAX_WATCHES: usize = 128;

/// How long after a client's close a reset of its system may come; also, how long it has for its close
/// after ours. A round trip of the slowest network, several times over.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// A connection that can say whether it was reset.
pub(super) trait Resettable {
    /// Whether the other end, or the system, has broken it.
    fn is_reset(&self) -> bool;
}

/// What became of a watched answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Written whole, and the connection was alive afterwards, or closed by a client that had it.
    Delivered,
    /// Cut, or the connection ended before more was known.
    Undelivered,
}

type Hook = Box<dyn FnOnce(Delivery) + Send>;

/// Watches the answers of one connection.
#[derive(Clone)]
pub struct DeliveryHandle {
    shared: Arc<Shared>,
}

impl DeliveryHandle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Calls `hook` once, when it is known whether the bytes handed over so far were delivered. To
    /// be called when the last frame of an answer is handed over, from where that happens.
    ///
    /// The hook runs on the connection's task: it must be quick and must not block. It is called at
    /// once, with [`Delivery::Undelivered`], if the connection has ended or 128 answers are
    /// watched.
    pub fn watch(&self, hook: impl FnOnce(Delivery) + Send + 'static) {
        let mut watches = self.shared.lock();
        if watches.is_closed || watches.list.len() >= MAX_WATCHES {
            drop(watches);
            hook(Delivery::Undelivered);
            return;
        }
        watches.list.push(Watch { hook: Box::new(hook), written: None });
        self.shared.count.store(watches.list.len(), Ordering::Release);
    }

    /// An answer's body that is watched from its end on; `hook` is called once, also when the body
    /// is cut or dropped.
    pub fn follow(&self, body: Body, hook: impl FnOnce(Delivery) + Send + Sync + 'static) -> Body {
        let handle = self.clone();
        body.on_end(move |end| match end {
            End::Cut => hook(Delivery::Undelivered),
            End::Whole => handle.watch(hook),
        })
    }
}

impl fmt::Debug for DeliveryHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeliveryHandle")
    }
}

/// What the socket, the connection's task and its calls know together.
#[derive(Default)]
pub(super) struct Shared {
    /// The length of the list, to be read without the lock.
    count: AtomicUsize,
    watches: Mutex<Watches>,
}

#[derive(Default)]
struct Watches {
    list: Vec<Watch>,
    is_closed: bool,
}

struct Watch {
    hook: Hook,
    /// When the socket had taken all of it.
    written: Option<Instant>,
}

impl Shared {
    pub(super) fn is_watching(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// When the oldest written answer counts as delivered.
    pub(super) fn next_due(&self, after: Duration) -> Option<Instant> {
        self.lock().list.iter().filter_map(|watch| watch.written).min().map(|at| at + after)
    }

    /// The connection is open at `now`: what was written so long before is delivered.
    pub(super) fn due(&self, now: Instant, after: Duration) {
        self.resolve(|written| now.saturating_duration_since(written) >= after);
    }

    fn flushed(&self) {
        let now = Instant::now();
        for watch in &mut self.lock().list {
            watch.written.get_or_insert(now);
        }
    }

    /// Everything that is watched has been written.
    fn is_all_written(&self) -> bool {
        self.lock().list.iter().all(|watch| watch.written.is_some())
    }

    /// A byte came, or an end in order: what was written before it is delivered.
    fn read(&self) {
        self.resolve(|_| true);
    }

    fn resolve(&self, is_delivered: impl Fn(Instant) -> bool) {
        let mut watches = self.lock();
        let delivered: Vec<Watch> =
            watches.list.extract_if(.., |watch| watch.written.is_some_and(&is_delivered)).collect();
        self.count.store(watches.list.len(), Ordering::Release);
        drop(watches);
        for watch in delivered {
            (watch.hook)(Delivery::Delivered);
        }
    }

    fn close(&self) {
        let mut watches = self.lock();
        watches.is_closed = true;
        let left = std::mem::take(&mut watches.list);
        self.count.store(0, Ordering::Release);
        drop(watches);
        for watch in left {
            (watch.hook)(Delivery::Undelivered);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watches> {
        // Hooks run outside of the lock, so a panic of theirs leaves it in order.
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket that tells what became of its answers, and that gives back the first bytes that were
/// read to find out the protocol.
pub(super) struct Watched<T> {
    inner: T,
    prefix: Bytes,
    shared: Arc<Shared>,
    /// Any byte came since the flag was last taken.
    has_read: Arc<AtomicBool>,
    ending: Ending,
}

/// How far the end of a connection with watched answers is.
enum Ending {
    /// Nobody has closed it.
    No,
    /// We have, and the client has until then.
    Ours(Pin<Box<Sleep>>),
    /// The client has, and its system may still take it back.
    Theirs(Pin<Box<Sleep>>),
    /// What could be learned was.
    Known,
}

impl<T> Watched<T> {
    pub(super) fn new(
        inner: T,
        prefix: Bytes,
        shared: Arc<Shared>,
        has_read: Arc<AtomicBool>,
    ) -> Self {
        Self { inner, prefix, shared, has_read, ending: Ending::No }
    }

    /// The system tells an error once; after it no end is in order any more.
    fn noted<V>(&mut self, result: io::Result<V>) -> io::Result<V> {
        if result.is_err() {
            self.ending = Ending::Known;
        }
        result
    }
}

impl<T> Drop for Watched<T> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<T: AsyncRead + Resettable + Unpin> Watched<T> {
    /// Waits, after the client's close, whether a reset follows it.
    fn poll_theirs(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Ending::No | Ending::Ours(_) = &self.ending {
            self.ending = Ending::Theirs(Box::pin(sleep(LINGER)));
        }
        if let Ending::Theirs(timer) = &mut self.ending {
            ready!(timer.as_mut().poll(cx));
            self.ending = Ending::Known;
            if !self.inner.is_reset() {
                self.shared.read();
            }
        }
        Poll::Ready(())
    }

    /// Waits, after our close, for the client's; what it still says is nobody's.
    fn poll_ours(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Ending::No = &self.ending {
            self.ending = Ending::Ours(Box::pin(sleep(LINGER)));
        }
        while let Ending::Ours(timer) = &mut self.ending {
            if timer.as_mut().poll(cx).is_ready() {
                self.ending = Ending::Known;
                return Poll::Ready(());
            }
            let mut bytes = [std::mem::MaybeUninit::uninit(); 1024];
            let mut buffer = ReadBuf::uninit(&mut bytes);
            match ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buffer)) {
                Ok(()) if buffer.filled().is_empty() => break,
                Ok(()) => self.shared.read(),
                Err(_) => self.ending = Ending::Known,
            }
        }
        self.poll_theirs(cx)
    }
}

impl<T: AsyncRead + Resettable + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.prefix.is_empty() {
            let count = this.prefix.len().min(buffer.remaining());
            buffer.put_slice(&this.prefix.split_to(count));
            this.has_read.store(true, Ordering::Relaxed);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut this.inner).poll_read(cx, buffer));
        this.noted(read)?;
        if buffer.filled().len() > before {
            this.has_read.store(true, Ordering::Relaxed);
            if this.shared.is_watching() {
                this.shared.read();
            }
        } else if this.shared.is_watching() && this.shared.is_all_written() {
            ready!(this.poll_theirs(cx));
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Resettable + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, bytes));
        Poll::Ready(this.noted(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, slices));
        Poll::Ready(this.noted(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// Both of hyper's protocols flush the socket only when they have written all they hold.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = ready!(Pin::new(&mut this.inner).poll_flush(cx));
        this.noted(flushed)?;
        if this.shared.is_watching() {
            this.shared.flushed();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Ending::No = &this.ending {
            let shut = ready!(Pin::new(&mut this.inner).poll_shutdown(cx));
            this.noted(shut)?;
        }
        if this.shared.is_watching() && this.shared.is_all_written() {
            ready!(this.poll_ours(cx));
        }
        Poll::Ready(Ok(()))
    }
}
