//! The signal to stop: begun once, with an end that nothing outlasts.

use std::future::Future;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// A drain that has begun or not; clones are the same drain, on all threads.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Only grows, so that a connection can look at it without a lock.
    stage: AtomicU8,
    changed: Notify,
    end: Mutex<Option<Instant>>,
}

const BEGUN: u8 = 1;
const CUT: u8 = 2;

impl Drain {
    /// One that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins it: nothing more is accepted, and each connection closes after the answers that it
    /// owes, or is cut when `grace` is over. A second call can only bring the end nearer.
    pub fn begin(&self, grace: Duration) {
        let end = Instant::now() + grace;
        let mut current = self.shared.end.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(current.map_or(end, |current| current.min(end)));
        drop(current);
        self.move_to(BEGUN);
    }

    /// True from [`Drain::begin`] on.
    pub fn is_begun(&self) -> bool {
        self.stage() >= BEGUN
    }

    /// Waits until it has begun: for streams that have no end of their own.
    ///
    /// Cancel safe.
    pub async fn begun(&self) {
        self.reached(BEGUN).await;
    }

    /// Ends what is left now.
    pub(super) fn cut(&self) {
        self.move_to(CUT);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.stage() >= CUT
    }

    /// Waits for the next stage after the current one; for a connection that looks by itself.
    pub(super) fn changed(&self) -> impl Future<Output = ()> + Send + use<'_> {
        self.shared.changed.notified()
    }

    /// Runs `work` until the end of a drain that has begun; false if it was not done by then.
    pub(super) async fn until_end(&self, work: impl Future<Output = ()>) -> bool {
        let mut work = std::pin::pin!(work);
        loop {
            let end = *self.shared.end.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(end) = end else { return true };
            tokio::select! {
                biased;
                // Lost: nothing, it is polled again or no longer wanted.
                done = timeout_at(end, work.as_mut()) => return done.is_ok(),
                // Lost: nothing, the end is read anew.
                () = self.changed() => {}
            }
        }
    }

    fn stage(&self) -> u8 {
        self.shared.stage.load(Ordering::Acquire)
    }

    fn move_to(&self, stage: u8) {
        self.shared.stage.fetch_max(stage, Ordering::AcqRel);
        self.shared.changed.notify_waiters();
    }

    async fn reached(&self, stage: u8) {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            // Registered before the stage is read, or the change could fall between the two.
            changed.as_mut().enable();
            if self.stage() >= stage {
                return;
            }
            changed.await;
        }
    }
}
