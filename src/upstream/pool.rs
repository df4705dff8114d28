//! The connections of one worker to the upstream.
//!
//! Last in, first out, so that under light load few connections stay warm and the rest expire. One
//! lock, never held across a wait, and contended by nobody but the worker itself.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

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
    /// A sweeper runs.
    is_swept: bool,
}

impl Pool {
    pub(super) fn new(config: Config, tasks: Tasks) -> Self {
        let free = Semaphore::new(config.connections.clamp(1, Semaphore::MAX_PERMITS));
        let idle = Mutex::new(Idle::default());
        Self { config, tasks, free, idle, is_closed: AtomicBool::new(false) }
    }

    /// A connection that is ready for a request, an idle one if `may_reuse`.
    pub(super) async fn checkout(
        self: &Arc<Self>,
        deadline: Instant,
        now: Instant,
        may_reuse: bool,
    ) -> Result<Box<Link>, NotSentReason> {
        let place = self.place(deadline).await?;
        if may_reuse && let Some(mut link) = self.take_idle(now) {
            link.occupy(place);
            return Ok(link);
        }
        // Boxed: a call that finds an idle connection has no room for making one.
        Box::pin(async {
            let transport = connect(&self.config.authority, deadline).await?;
            Link::open(transport, place, &self.tasks).await
        })
        .await
    }

    async fn place(self: &Arc<Self>, deadline: Instant) -> Result<Place, NotSentReason> {
        let permit = match self.free.try_acquire() {
            Ok(permit) => permit,
            // The semaphore is never closed.
            Err(_) => match timeout_at(deadline, self.free.acquire()).await {
                Ok(Ok(permit)) => permit,
                Ok(Err(_)) | Err(_) => return Err(NotSentReason::PoolTimeout),
            },
        };
        permit.forget();
        Ok(Place { pool: Arc::clone(self) })
    }

    fn take_idle(&self, now: Instant) -> Option<Box<Link>> {
        let mut idle = self.lock();
        while let Some(link) = idle.links.pop() {
            // A link that is not ready has been closed by its peer, or got bytes nobody asked for.
            if link.is_ready() && now.saturating_duration_since(link.idle_since) < self.config.idle
            {
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
        idle.links.push(link);
        if !idle.is_swept {
            idle.is_swept = true;
            drop(idle);
            let sweep = sweep(Arc::downgrade(self));
            drop(self.tasks.spawn_background("upstream idle sweep", sweep));
        }
    }

    /// Closes what has been idle for too long; false if none is left.
    fn expire(&self, now: Instant) -> bool {
        let mut idle = self.lock();
        let limit = self.config.idle;
        idle.links.retain(|link| {
            link.is_ready() && now.saturating_duration_since(link.idle_since) < limit
        });
        idle.is_swept = !idle.links.is_empty();
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
    loop {
        let Some(every) = pool.upgrade().map(|pool| pool.config.idle) else { return };
        tokio::time::sleep(every).await;
        let Some(pool) = pool.upgrade() else { return };
        if !pool.expire(Instant::now()) {
            return;
        }
    }
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
