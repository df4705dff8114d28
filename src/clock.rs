//! The one source of time.
//!
//! Expiries, deadlines and ledger timestamps are compared across a process's whole life, so a wall
//! clock that is set back must not lengthen any of them (case G6). [`Clock::now_ms`] is therefore
//! "the greatest offset between wall and monotonic time seen so far, plus monotonic time": it
//! follows a wall clock that is set forward, ignores one that is set back, and never stands still.
//!
//! Every other file takes time from here; `.clippy.toml` disallows the standard library's `now`
//! elsewhere. Timers of the runtime (`tokio::time`) are not time in this sense.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock; cloning it is cheap and all clones agree.
#[derive(Clone)]
pub struct Clock {
    source: Arc<Source>,
}

enum Source {
    Manual(Manual),
    System { start: Instant, steady: Steady },
}

impl Clock {
    /// The machine's clock. `floor_ms` is the latest time that the ledger knows, in Unix
    /// milliseconds, or 0: time does not start before it, even if the machine was set back between
    /// two runs.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn system(floor_ms: i64) -> Self {
        let steady = Steady { offset_ms: AtomicI64::new(floor_ms) };
        Self { source: Arc::new(Source::System { start: Instant::now(), steady }) }
    }

    /// A clock that moves only when it is told to, for tests.
    pub fn manual(now_ms: i64) -> (Self, ManualClock) {
        #[expect(clippy::disallowed_methods, reason = "this is the clock")]
        let origin = Instant::now();
        let manual = Manual { elapsed_ms: AtomicI64::new(0), origin, start_ms: now_ms };
        let source = Arc::new(Source::Manual(manual));
        (Self { source: Arc::clone(&source) }, ManualClock { source })
    }

    /// The time in Unix milliseconds; never less than an earlier answer of any clone.
    pub fn now_ms(&self) -> i64 {
        match &*self.source {
            Source::Manual(manual) => manual.start_ms.saturating_add(manual.elapsed_ms()),
            Source::System { start, steady } => {
                let elapsed = milliseconds(self.instant().saturating_duration_since(*start));
                steady.now_ms(system_ms(), elapsed)
            }
        }
    }

    /// The monotonic time, for durations.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn instant(&self) -> Instant {
        match &*self.source {
            Source::Manual(manual) => {
                let elapsed = u64::try_from(manual.elapsed_ms()).unwrap_or(0);
                let instant = manual.origin.checked_add(Duration::from_millis(elapsed));
                instant.unwrap_or(manual.origin)
            }
            Source::System { .. } => Instant::now(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// The hand of a clock made by [`Clock::manual`].
#[derive(Clone)]
pub struct ManualClock {
    source: Arc<Source>,
}

impl ManualClock {
    /// Moves the clock forward, in whole milliseconds.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(manual) = &*self.source {
            manual.elapsed_ms.fetch_add(milliseconds(by), Ordering::AcqRel);
        }
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ManualClock")
    }
}

struct Manual {
    elapsed_ms: AtomicI64,
    origin: Instant,
    start_ms: i64,
}

impl Manual {
    fn elapsed_ms(&self) -> i64 {
        self.elapsed_ms.load(Ordering::Acquire)
    }
}

/// Turns a wall clock that jumps and a monotonic one that does not into time that only goes on.
struct Steady {
    /// The greatest wall time minus monotonic time seen so far.
    offset_ms: AtomicI64,
}

impl Steady {
    /// `elapsed_ms` must not decrease from call to call.
    fn now_ms(&self, system_ms: i64, elapsed_ms: i64) -> i64 {
        let seen = system_ms.saturating_sub(elapsed_ms);
        let before = self.offset_ms.fetch_max(seen, Ordering::AcqRel);
        before.max(seen).saturating_add(elapsed_ms)
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn system_ms() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => milliseconds(since),
        // A machine set before 1970 has no usable wall clock; the floor and monotonic time remain.
        Err(_) => 0,
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steady(floor_ms: i64) -> Steady {
        Steady { offset_ms: AtomicI64::new(floor_ms) }
    }

    #[test]
    fn g6_a_wall_clock_set_back_does_not_move_time_back_nor_stop_it() {
        let steady = steady(0);
        let hour = 3_600_000;

        assert_eq!(steady.now_ms(1_000_000_000, 0), 1_000_000_000);
        assert_eq!(steady.now_ms(1_000_000_000 - hour, 5), 1_000_000_005);
        assert_eq!(steady.now_ms(1_000_000_000 - hour, 9), 1_000_000_009);
    }

    #[test]
    fn a_wall_clock_set_forward_is_followed_and_time_goes_on_when_it_returns() {
        let steady = steady(0);

        assert_eq!(steady.now_ms(1_000, 0), 1_000);
        assert_eq!(steady.now_ms(61_000, 10), 61_000);
        assert_eq!(steady.now_ms(1_020, 20), 61_010);
    }

    #[test]
    fn time_does_not_start_before_the_floor() {
        let steady = steady(5_000);

        assert_eq!(steady.now_ms(100, 0), 5_000);
        assert_eq!(steady.now_ms(110, 10), 5_010);
    }

    #[test]
    fn the_system_clock_is_at_or_after_its_floor() {
        let far = system_ms() + 86_400_000;

        assert!(Clock::system(far).now_ms() >= far);
        assert!(Clock::system(0).now_ms() > 1_600_000_000_000);
    }

    #[test]
    fn a_manual_clock_moves_wall_and_monotonic_time_together() {
        let (clock, hand) = Clock::manual(7);
        let before = clock.instant();

        hand.advance(Duration::from_millis(40));

        assert_eq!(clock.clone().now_ms(), 47);
        assert_eq!(clock.instant() - before, Duration::from_millis(40));
    }

    proptest! {
        #[test]
        fn time_never_goes_back(
            floor in 0..1_000_000_i64,
            steps in proptest::collection::vec((-1_000_000..1_000_000_i64, 0..1_000_i64), 0..50),
        ) {
            let steady = steady(floor);
            let (mut elapsed, mut last) = (0, floor);
            for (wall, step) in steps {
                elapsed += step;
                let now = steady.now_ms(wall, elapsed);
                prop_assert!(now >= last + step || now >= last);
                prop_assert!(now >= wall.max(floor + elapsed));
                last = now;
            }
        }
    }
}
