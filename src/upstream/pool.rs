//! The connections of one worker to the upstream.
//!
//! HTTP/1.1: last in, first out, so that under light load few connections stay warm and the rest
//! expire. One lock, never held across a wait, and contended by nobody but the worker itself.
//!
//! HTTP/2: calls share what there is (`mux.rs`). Which of the two it is, TLS tells at the first
//! connection; until then, and while it is HTTP/2, connections are made one at a time, and whoever
//! waited for one looks first whether it has room.

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
use super::mux::Shared;
use super::{Config, NotSentReason, Protocol, Usage};
use crate::tasks::Tasks;

pub(super) struct Pool {
    config: Config,
    tasks: Tasks,
    /// One permit per connection that may be in use; fair, so waiting calls are served in order.
    free: Semaphore,
    /// One permit, for whoever makes a connection that calls may share.
    making: Semaphore,
    /// The upstream was seen to speak HTTP/1.1: connections are not shared.
    is_http1: AtomicBool,
    idle: Mutex<Idle>,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct Idle {
    /// Oldest first.
    #[expect(clippy::vec_box, reason = "the box is the answer's body, not this list's")]
    links: Vec<Box<Link>>,
    /// Connections that calls share, in use or not.
    shared: Vec<Shared>,
    /// A sweeper runs, or is about to.
    is_swept: bool,
    /// It, once it has begun: told of what comes on an idle connection.
    sweeper: Option<Waker>,
}

impl Pool {
    pub(super) fn new(config: Config, tasks: Tasks) -> Self {
        let free = Semaphore::new(config.connections.clamp(1, Semaphore::MAX_PERMITS));
        let is_http1 = matches!(config.protocol, Protocol::Clear);
        Self {
            config,
            tasks,
            free,
            making: Semaphore::new(1),
            is_http1: AtomicBool::new(is_http1),
            idle: Mutex::new(Idle::default()),
            is_closed: AtomicBool::new(false),
        }
    }

    /// A connection that is ready for a request, an idle one if `may_reuse`; and the time, which is
    /// still `now` for one that was not waited for.
    pub(super) async fn checkout(
        self: &Arc<Self>,
        deadline: Instant,
        now: Instant,
        may_reuse: bool,
    ) -> Result<(Box<Link>, Instant), NotSentReason> {
        let (mut place, now) = match self.free.try_acquire() {
            Ok(permit) => (self.place(permit), now),
            Err(_) => (self.wait_for_place(deadline).await?, Instant::now()),
        };
        if may_reuse {
            if let Some(mut link) = self.take_idle(now) {
                link.occupy(place);
                return Ok((link, now));
            }
            place = match self.share(place, now, None) {
                Ok(link) => return Ok((link, now)),
                Err(place) => place,
            };
        }
        // Boxed: a call that finds an idle connection has no room for making one.
        let link = Box::pin(self.make(place, deadline)).await?;
        Ok((link, Instant::now()))
    }

    /// A connection that is ready for a request and that nobody has to wait for.
    pub(super) fn at_hand(self: &Arc<Self>, now: Instant) -> Option<Box<Link>> {
        let place = self.place(self.free.try_acquire().ok()?);
        match self.take_idle(now) {
            Some(mut link) => {
                link.occupy(place);
                Some(link)
            }
            None => self.share(place, now, None).ok(),
        }
    }

    /// Makes a connection, or finds that another call has made one meanwhile that has room.
    async fn make(
        self: &Arc<Self>,
        mut place: Place,
        deadline: Instant,
    ) -> Result<Box<Link>, NotSentReason> {
        let asked = Instant::now();
        let _turn = self.turn(deadline).await?;
        place = match self.share(place, asked, Some(asked)) {
            Ok(link) => return Ok(link),
            Err(place) => place,
        };
        let Config { authority, protocol, .. } = &self.config;
        let generation = protocol.generation();
        let transport = connect(authority, protocol, deadline).await?;
        if !transport.is_http2(protocol) {
            self.is_http1.store(true, Ordering::Relaxed);
            return Link::open(transport, generation, place).await;
        }
        self.is_http1.store(false, Ordering::Relaxed);
        let shared = Shared::open(transport, generation, &self.tasks, deadline).await?;
        self.keep(shared);
        // A connection that allows no stream at all serves nobody.
        self.share(place, asked, Some(asked)).map_err(|_| NotSentReason::Closed)
    }

    /// The turn to make a connection; none is needed where connections are not shared.
    async fn turn(&self, deadline: Instant) -> Result<Option<SemaphorePermit<'_>>, NotSentReason> {
        if self.is_http1.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match timeout_at(deadline, self.making.acquire()).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            Ok(Err(_)) | Err(_) => Err(NotSentReason::ConnectTimeout),
        }
    }

    /// A share of a connection that has room, one that was made after `since` if that is given; gives
    /// the place back if there is none.
    fn share(
        &self,
        place: Place,
        now: Instant,
        since: Option<Instant>,
    ) -> Result<Box<Link>, Place> {
        let generation = self.config.protocol.generation();
        let max_age = self.config.max_age;
        let mut idle = self.lock();
        if idle.shared.is_empty() {
            return Err(place);
        }
        // Calls under way keep what they need of one that takes no more.
        idle.shared.retain(|shared| {
            let is_young = now.saturating_duration_since(shared.born) < max_age;
            is_young && shared.generation == generation && shared.is_open()
        });
        let mut fitting =
            idle.shared.iter_mut().filter(|shared| since.is_none_or(|since| shared.born >= since));
        match fitting.find_map(|shared| shared.share(now)) {
            Some((sender, share, refusal)) => Ok(Link::shared(sender, share, refusal, place)),
            None => Err(place),
        }
    }

    fn keep(self: &Arc<Self>, shared: Shared) {
        if self.is_closed.load(Ordering::Acquire) {
            return;
        }
        let mut idle = self.lock();
        idle.shared.push(shared);
        self.sweep_from_now(idle);
    }

    pub(super) fn protocol(&self) -> &Protocol {
        &self.config.protocol
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
            if link.look()
                && now.saturating_duration_since(link.idle_since) < self.config.idle
                && link.generation == self.config.protocol.generation()
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
        // Without a sweeper nobody is told; it looks at them all when it begins.
        link.rest(idle.sweeper.as_ref());
        idle.links.push(link);
        self.sweep_from_now(idle);
    }

    fn sweep_from_now(self: &Arc<Self>, mut idle: MutexGuard<'_, Idle>) {
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
            link.tell(cx.waker());
            link.look() && now.saturating_duration_since(link.idle_since) < limit
        });
        idle.shared.retain(|shared| shared.is_open() && !shared.is_resting(now));
        idle.is_swept = !idle.links.is_empty() || !idle.shared.is_empty();
        idle.sweeper = idle.is_swept.then(|| cx.waker().clone());
        idle.is_swept
    }

    pub(super) fn usage(&self) -> Usage {
        let places = self.config.connections.clamp(1, Semaphore::MAX_PERMITS);
        let idle = self.lock();
        let resting = idle.shared.iter().filter(|shared| shared.open_streams() == 0).count();
        Usage {
            idle: idle.links.len().saturating_add(resting),
            in_use: places.saturating_sub(self.free.available_permits()),
        }
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let mut idle = self.lock();
        idle.links.clear();
        idle.shared.clear();
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
