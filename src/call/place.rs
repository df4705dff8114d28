//! Places in the in-flight limit.
//!
//! All workers share one limit. A count that two cores write costs a call more than the rest of taking a
//! place, so each worker keeps a few free places at home and takes its next one from there. The limit
//! is exact all the same: who finds none at home and none in the common stock takes one that another
//! worker has at home, so a call is refused only when no place is free.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use metrics::Gauge;

use crate::contract::class::Class;
use crate::metrics::Table;

/// How many places a worker takes at once, and keeps at least when it gives some back; fewer where few
/// are left.
const BATCH: usize = 16;

/// Which share of the free places a worker takes at once.
const SHARE: usize = 64;

/// The places of one sidecar, as one worker sees them.
#[derive(Clone, Debug)]
pub struct Places {
    home: Arc<Home>,
}

#[derive(Debug)]
struct Common {
    free: AtomicUsize,
    homes: Mutex<Vec<Weak<Home>>>,
}

/// One worker's.
#[derive(Debug)]
struct Home {
    common: Arc<Common>,
    free: AtomicUsize,
    /// Calls in flight by class; this worker's own handles.
    gauges: OnceLock<Table<Gauge>>,
}

/// Takes some of what is free, and never more than that.
fn take(free: &AtomicUsize, some: impl Fn(usize) -> usize) -> usize {
    let order = Ordering::Relaxed;
    let rest = |free: usize| (free > 0).then(|| free.saturating_sub(some(free)));
    free.fetch_update(order, order, rest).map_or(0, |free| some(free).min(free))
}

impl Places {
    /// So many places.
    pub fn new(places: usize) -> Self {
        let common = Common { free: AtomicUsize::new(places), homes: Mutex::default() };
        Self { home: Home::open(&Arc::new(common)) }
    }

    /// The same places, for a worker of its own.
    pub fn apart(&self) -> Self {
        Self { home: Home::open(&self.home.common) }
    }

    /// A place, if one is free. Nobody waits for a place, so counts are all that is shared.
    pub fn take(&self) -> Option<Permit> {
        let home = &self.home;
        let has_one = take(&home.free, |_| 1) == 1 || home.fetch() || home.borrow();
        let place = || Place { home: Arc::clone(home), counted: OnceLock::new() };
        has_one.then(|| Permit(Arc::new(place())))
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        let common = &self.home.common;
        let at_home = common.homes().into_iter().map(|home| home.free.load(Ordering::Relaxed));
        at_home.fold(common.free.load(Ordering::Relaxed), usize::saturating_add)
    }
}

impl Common {
    fn homes(&self) -> Vec<Arc<Home>> {
        let homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        homes.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Home {
    fn open(common: &Arc<Common>) -> Arc<Self> {
        let (free, gauges) = (AtomicUsize::new(0), OnceLock::new());
        let home = Arc::new(Self { common: Arc::clone(common), free, gauges });
        let mut homes = common.homes.lock().unwrap_or_else(PoisonError::into_inner);
        homes.retain(|home| home.strong_count() > 0);
        homes.push(Arc::downgrade(&home));
        home
    }

    /// Takes one, and some to keep at home.
    fn fetch(&self) -> bool {
        let taken = take(&self.common.free, |free| (free / SHARE).clamp(1, BATCH));
        self.free.fetch_add(taken.saturating_sub(1), Ordering::Relaxed);
        taken > 0
    }

    /// Takes one that another worker has at home.
    fn borrow(&self) -> bool {
        let is_found = self.common.homes().iter().any(|home| take(&home.free, |_| 1) == 1);
        // What was given back meanwhile may be in the common stock.
        is_found || take(&self.common.free, |_| 1) == 1
    }

    fn give(&self) {
        let free = self.free.fetch_add(1, Ordering::Relaxed);
        if free >= BATCH.saturating_mul(2) {
            let given = take(&self.free, |_| BATCH);
            self.common.free.fetch_add(given, Ordering::Relaxed);
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.common.free.fetch_add(*self.free.get_mut(), Ordering::Relaxed);
    }
}

/// A place in the in-flight limit: given back when the last of its clones is dropped, which is at the
/// end of the answer's body and of a write's task, whichever is later (pitfall P6).
#[derive(Clone, Debug)]
pub struct Permit(Arc<Place>);

#[derive(Debug)]
struct Place {
    home: Arc<Home>,
    counted: OnceLock<Class>,
}

impl Permit {
    /// Counts the call among those of its class until its end; the first class stays.
    pub fn count_in(&self, inflight: &Table<Gauge>, class: Class) {
        let Place { home, counted } = &*self.0;
        if counted.set(class).is_ok()
            && let Some(gauge) = home.gauges.get_or_init(|| inflight.clone()).gauge(class)
        {
            gauge.increment(1.0);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(class) = self.counted.get()
            && let Some(gauge) = self.home.gauges.get().and_then(|gauges| gauges.gauge(*class))
        {
            gauge.decrement(1.0);
        }
        self.home.give();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_place_is_found_wherever_it_lies() {
        let places = Places::new(3);
        let (own, other) = (places.apart(), places.apart());
        let held: Vec<Permit> = (0..3).filter_map(|_| own.take()).collect();

        assert_eq!(held.len(), 3);
        assert!(own.take().is_none());
        assert!(other.take().is_none());
        drop(held);

        let again: Vec<Permit> = (0..3).filter_map(|_| other.take()).collect();
        assert_eq!(again.len(), 3);
        assert_eq!(places.free(), 0);
        assert!(own.take().is_none());
    }

    #[test]
    fn a_place_is_given_back_with_the_last_clone() {
        let places = Places::new(1);
        let permit = places.take().unwrap();
        let kept = permit.clone();
        drop(permit);
        assert!(places.take().is_none());

        drop(kept);

        assert!(places.take().is_some());
    }

    #[test]
    fn workers_at_once_hold_never_more_than_there_are_and_all_come_back() {
        let places = Places::new(100);
        let held = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (own, held) = (places.apart(), &held);
                scope.spawn(move || {
                    for round in 0..200 {
                        let permits: Vec<Permit> =
                            (0..round % 40).filter_map(|_| own.take()).collect();
                        let now = held.fetch_add(permits.len(), Ordering::SeqCst) + permits.len();
                        assert!(now <= 100, "{now}");
                        held.fetch_sub(permits.len(), Ordering::SeqCst);
                        drop(permits);
                    }
                });
            }
        });

        assert_eq!(places.free(), 100);
    }

    proptest! {
        #[test]
        fn a_call_is_refused_only_when_no_place_is_free(
            limit in 0..200_usize,
            steps in proptest::collection::vec((0..3_usize, any::<bool>()), 0..400),
        ) {
            let places = Places::new(limit);
            let workers = [places.apart(), places.apart(), places.apart()];
            let mut held: [Vec<Permit>; 3] = Default::default();
            for (worker, is_taking) in steps {
                let count: usize = held.iter().map(Vec::len).sum();
                if !is_taking {
                    held[worker].pop();
                    continue;
                }
                let permit = workers[worker].take();
                prop_assert_eq!(permit.is_some(), count < limit);
                held[worker].extend(permit);
                let count: usize = held.iter().map(Vec::len).sum();
                prop_assert_eq!(places.free(), limit - count);
            }
        }
    }
}
