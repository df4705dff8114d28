//! The connections of one worker to the upstream.
//!
//! Last in, first out, so that under light load few connections stay warm and the rest expire. One
//! lock, never held across a wait, and contended by nobody but the worker itself.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};

use super::connect::connect;
use super::link::Link;
use super::{Config, NotSentReason, Usage};
use crate::tasks::Tasks;

pub(super) struct Pool {
    config: Config,
    tasks: Tasks,
    /// One permit per connection that may be in use; fair, so waiting calls are served in order.
    free: Semaphore,
    idle: Mutex<Idle>,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct Idle {
    /// Oldest first.
    #[expect(clippy::vec_box, reason = "the box is the answer's body, not this list's")]
    links: Vec<Box<Link>>,
    /// A sweeper runs, or is about to.
    is_swept: bool,
    /// It, once it has begun: told of what comes on an idle connection.
    sweeper: Option<Waker>,
}

impl Pool {
    pub(super) fn new(config: Config, tasks: Tasks) -> Self {
        let free = Semaphore::new(config.connections.clamp(1, Semaphore::MAX_PERMITS));
        let idle = Mutex::new(Idle::default());
        Self { config, tasks, free, idle, is_closed: AtomicBool::new(false) }
    }

    /// A connection that is ready for a request, an idle one if `may_reuse`; and the time, which is
    /// still `now` for one that was not waited for.
    pub(super) async fn checkout(
        self: &Arc<Self>,
        deadline: Instant,
        now: Instant,
        may_reuse: bool,
    ) -> Result<(Box<Link>, Instant), NotSentReason> {
        let (place, now) = match self.free.try_acquire() {
            Ok(permit) => (self.place(permit), now),
            Err(_) => (self.wait_for_place(deadline).await?, Instant::now()),
        };
        if may_reuse && let Some(mut link) = self.take_idle(now) {
            link.occupy(place);
            return Ok((link, now));
        }
        // Boxed: a call that finds an idle connection has no room for making one.
        Box::pin(async {
            let transport = connect(&self.config.authority, deadline).await?;
            Ok((Link::open(transport, place).await?, Instant::now()))
        })
        .await
    }

    async fn wait_for_place(self: &Arc<Self>, deadline: Instant) -> Result<Place, NotSentReason> {
        match timeout_at(deadline, self.free.acquire()).await {
            Ok(Ok(permit)) => Ok(self.place(permit)),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(NotSentReason::PoolTimeout),
        }
    }

    fn place(self: &Arc<Self>, permit: SemaphorePermit<'_>) -> Place {
        permit.forget();
        Place { pool: Arc::clone(self) }
    }

    fn take_idle(&self, now: Instant) -> Option<Box<Link>> {
        let mut idle = self.lock();
        while let Some(mut link) = idle.links.pop() {
            // A link that is not ready has been closed by its peer, or got bytes nobody asked for.
            if link.look() && now.saturating_duration_since(link.idle_since) < self.config.idle {
                return Some(link);
            }
        }
        None
    }

    /// Takes back a connection whose answer was read to its end.
    fn put(self: &Arc<Self>, mut link: Box<Link>) {
        let now = Instant::now();
        let is_old = now.saturating_duration_since(link.born) >= self.config.max_age;
        if is_old || !link.is_ready() || self.is_closed.load(Ordering::Acquire) {
            return;
        }
        link.idle_since = now;
        let mut idle = self.lock();
        if idle.links.len() >= self.config.idle_connections.max(1) {
            return;
        }
        // Without a sweeper nobody is told; it looks at them all when it begins.
        link.wire.signal.rest(idle.sweeper.as_ref());
        idle.links.push(link);
        if !idle.is_swept {
            idle.is_swept = true;
            drop(idle);
            let sweep = sweep(Arc::downgrade(self));
            drop(self.tasks.spawn_background("upstream idle sweep", sweep));
        }
    }

    /// Closes what has been idle for too long, was closed by its peer, or got bytes nobody asked
    /// for; false if none is left. Whoever polls is told of the next such connection.
    fn sweep(&self, now: Instant, cx: &Context<'_>) -> bool {
        let mut idle = self.lock();
        let limit = self.config.idle;
        idle.links.retain_mut(|link| {
            link.wire.signal.tell(cx.waker());
            link.look() && now.saturating_duration_since(link.idle_since) < limit
        });
        idle.is_swept = !idle.links.is_empty();
        idle.sweeper = idle.is_swept.then(|| cx.waker().clone());
        idle.is_swept
    }

    pub(super) fn usage(&self) -> Usage {
        let places = self.config.connections.clamp(1, Semaphore::MAX_PERMITS);
        Usage {
            idle: self.lock().links.len(),
            in_use: places.saturating_sub(self.free.available_permits()),
        }
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.lock().links.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

/// Runs while there are idle connections: one timer for all of them, none when there are none.
async fn sweep(pool: Weak<Pool>) {
    let Some(idle) = pool.upgrade().map(|pool| pool.config.idle) else { return };
    // A timer that is always due would never let the thread go.
    let every = idle.max(Duration::from_millis(1));
    let mut timer = pin!(sleep(every));
    poll_fn(|cx| {
        let Some(pool) = pool.upgrade() else { return Poll::Ready(()) };
        let now = Instant::now();
        if !pool.sweep(now, cx) {
            return Poll::Ready(());
        }
        while timer.as_mut().poll(cx).is_ready() {
            timer.as_mut().reset(now + every);
        }
        Poll::Pending
    })
    .await;
}

/// The right to have one connection in use; its drop gives it back.
pub(super) struct Place {
    pool: Arc<Pool>,
}

impl Place {
    /// Gives a connection back, and then the place itself, so that whoever waits finds it idle.
    pub(super) fn put(self, link: Box<Link>) {
        self.pool.put(link);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pool.free.add_permits(1);
    }
}
