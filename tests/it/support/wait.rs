//! Waiting for a level, with a bound, never for a time.

use std::time::{Duration, Instant};

/// Waits until `level` gives something; fails the test after a minute, which a loaded machine may need.
#[expect(clippy::disallowed_methods, reason = "the bound of a wait is real time")]
pub fn until<T>(what: &str, mut level: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(reached) = level() {
            return reached;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::yield_now();
    }
}
