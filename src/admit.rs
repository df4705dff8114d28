//! The in-flight limit: the one place where back-pressure lives.
//!
//! A call that finds no place is answered at once; it never waits, so nothing queues without a bound. The
//! place is given back at the end of the answer's body and of a write's task, not at the answer's head,
//! as tower's own limit would (pitfalls P5, P6).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::call::Permit;

/// The places of one sidecar, over all workers.
#[derive(Clone, Debug)]
pub struct Places {
    free: Arc<AtomicUsize>,
}

impl Places {
    /// So many places.
    pub fn new(places: usize) -> Self {
        Self { free: Arc::new(AtomicUsize::new(places)) }
    }

    /// A place, if one is free.
    pub fn take(&self) -> Option<Permit> {
        Permit::take(&self.free)
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }
}
