//! The lookups, and the reads that prove an effect, that a running sidecar makes of itself.
//!
//! Every `TICK` it takes what is due in the ledger, at most `PER_TICK` entries, the one due longest
//! first, and looks at `LANES` of them at a time. What is due, and how often it was looked at, stands
//! in the ledger: nothing is lost with the process, and nothing is kept here.
//!
//! An entry is first due `timeouts.lookup_ms` after its outcome became unknown; then after twice that,
//! and so on up to `MAX_DELAY_MS`, each delay shortened by up to a half at random, so that what was
//! lost together is not looked up together. An absence that does not count yet is looked up again when
//! it does. While the ledger takes no writes nothing is looked up: it could not be recorded.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Looker, reconcile};
use crate::ledger::{LedgerError, Pending, State};
use crate::pipeline::fetch::Fetch;
use crate::pipeline::fill_random;
use crate::pipeline::proof::readback;

/// How often the ledger is asked what is due.
const TICK: Duration = Duration::from_secs(1);

/// How many entries are taken at once. More than this are left for the next tick, so that one tick
/// holds a bounded part of the ledger in memory.
const PER_TICK: usize = 64;

/// How many reads are under way at once: one slow answer keeps few others waiting, and an upstream
/// that comes back is not met by a crowd.
const LANES: usize = 4;

/// The longest delay between two looks, in milliseconds.
const MAX_DELAY_MS: u64 = 3_600_000;

/// Looks at what is due until the process ends.
pub async fn run(fetch: Fetch) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // A full batch is followed by the next at once.
        while tick(&fetch).await.is_ok_and(|looked| looked == PER_TICK) {}
    }
}

/// Looks at what is due now, and says how many entries that were.
///
/// # Errors
///
/// [`LedgerError::Unavailable`] if the ledger does not read, or takes no writes.
///
/// # Cancel safety
///
/// Dropping it leaves the entries that it has not come to due.
pub async fn tick(fetch: &Fetch) -> Result<usize, LedgerError> {
    let ledger = &fetch.shared.ledger;
    if let Some(reason) = ledger.health().down {
        return Err(LedgerError::Unavailable(reason));
    }
    let due = ledger.due(fetch.shared.clock.now_ms(), PER_TICK).await?;
    let count = due.len();
    let due = Mutex::new(VecDeque::from(due));
    const { assert!(LANES == 4) }
    tokio::join!(lane(fetch, &due), lane(fetch, &due), lane(fetch, &due), lane(fetch, &due));
    Ok(count)
}

async fn lane(fetch: &Fetch, due: &Mutex<VecDeque<Pending>>) {
    let next = || due.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    while let Some(pending) = next() {
        match pending.record.prior.state {
            State::Unknown => {
                reconcile(fetch, &pending, Looker::Sidecar).await;
            }
            State::Accepted => readback(fetch, &pending).await,
            State::Begun | State::Rejected | State::Undone | State::Waiting => {}
        }
    }
}

/// The delay after so many looks, in milliseconds.
pub(crate) fn delay_ms(first: Duration, tries: u32) -> i64 {
    let mut random = [0; 8];
    fill_random(&mut random);
    spread_ms(first, tries, u64::from_be_bytes(random))
}

fn spread_ms(first: Duration, tries: u32, random: u64) -> i64 {
    let first_ms = u64::try_from(first.as_millis()).unwrap_or(u64::MAX).max(1);
    let doubled = first_ms.saturating_mul(1_u64.checked_shl(tries.min(32)).unwrap_or(u64::MAX));
    let whole_ms = doubled.min(MAX_DELAY_MS.max(first_ms));
    let delay_ms = whole_ms - random % (whole_ms / 2 + 1);
    i64::try_from(delay_ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn delays_grow_to_an_hour_and_are_spread_over_their_second_half(
            first_ms in 1_u64..100_000, tries in 0_u32..=u32::MAX, random: u64
        ) {
            let delay = u64::try_from(spread_ms(Duration::from_millis(first_ms), tries, random));
            let delay = delay.unwrap();
            let whole = (0..tries.min(40)).fold(first_ms, |ms, _| (ms * 2).min(MAX_DELAY_MS));
            prop_assert!(delay <= whole && delay >= whole / 2, "{delay} of {whole}");
        }
    }
}
