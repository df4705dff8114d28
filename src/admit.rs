//! The in-flight limit: the one place where back-pressure lives.
//!
//! A call that finds no place is answered at once; it never waits, so nothing queues without a bound. The
//! place is given back at the end of the answer's body and of a write's task, not at the answer's head,
//! as tower's own limit would (pitfalls P5, P6).

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::call::Permit;

/// The places of one sidecar, over all workers.
#[derive(Clone, Debug)]
pub struct Places {
    free: Arc<Semaphore>,
}

impl Places {
    /// So many places.
    pub fn new(places: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))) }
    }

    /// A place, if one is free.
    pub fn take(&self) -> Option<Permit> {
        Arc::clone(&self.free).try_acquire_owned().ok().map(Permit::new)
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.free.available_permits()
    }
}
