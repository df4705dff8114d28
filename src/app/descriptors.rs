//! File descriptors: what the data port may take of them.
//!
//! Connections that agents open cost a descriptor each, and so do those to the upstream; a process that
//! has none left answers no probe, opens no ledger and reads no policy, and an agent that does nothing
//! but connect could bring it there. So a part is kept back ([`RESERVE`]), and what is left is shared
//! out between the two sides. Connections beyond their share wait in the kernel's queue, as they do
//! beyond `limits.connections`; calls beyond theirs are refused at once, as beyond `limits.inflight`.
//!
//! The soft limit is raised first, as far as the hard one lets: 1,024 is a habit of `select`, which
//! nothing here uses.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for everything but calls: the standard streams, the ledger and its log (up to 8), a database's
/// connections, the admin socket and its callers, probes and scrapes (the telemetry port), the folder of
/// policies while it is read, and what each runtime needs to wait with.
const RESERVE: usize = 96;

/// Of which each worker needs: its listener, what it waits with, and what wakes it.
const PER_WORKER: usize = 8;

/// How the descriptors are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// Connections of agents.
    pub(super) connections: usize,
    /// Calls under way, each of which may have a connection to the upstream.
    pub(super) inflight: usize,
    /// Connections to the upstream that each worker keeps while nothing uses them.
    pub(super) idle: usize,
}

/// What of the wanted shares there are descriptors for; says in the log if that is less.
pub(super) fn share(wanted: Shares, workers: usize) -> Shares {
    let limit = raised(needed(wanted, workers));
    let shares = fit(wanted, workers, limit);
    if shares != wanted {
        let Shares { connections, inflight, .. } = shares;
        tracing::warn!(
            descriptors = limit,
            connections,
            inflight,
            "the limit of open files allows fewer connections and calls than are set; raise it \
             (ulimit -n, LimitNOFILE), or lower limits.connections and limits.inflight"
        );
    }
    shares
}

/// How many descriptors the shares need at most.
fn needed(shares: Shares, workers: usize) -> usize {
    let idle = shares.idle.saturating_mul(workers);
    let calls = shares.connections.saturating_add(shares.inflight).saturating_add(idle);
    calls.saturating_add(reserve(workers))
}

fn reserve(workers: usize) -> usize {
    RESERVE.saturating_add(PER_WORKER.saturating_mul(workers))
}

/// The shares that a number of descriptors is enough for: half of what is not kept back for each side,
/// and an eighth of it for connections that rest. One of each always: a limit that is smaller than the
/// reserve is the operator's to see in the log.
fn fit(wanted: Shares, workers: usize, limit: usize) -> Shares {
    if needed(wanted, workers) <= limit {
        return wanted;
    }
    let free = limit.saturating_sub(reserve(workers));
    let idle = wanted.idle.min(free / 8 / workers.max(1)).max(1);
    let free = free.saturating_sub(idle.saturating_mul(workers));
    let inflight = wanted.inflight.min((free / 2).max(free.saturating_sub(wanted.connections)));
    let connections = wanted.connections.min(free.saturating_sub(inflight));
    Shares { connections: connections.max(1), inflight: inflight.max(1), idle }
}

/// The soft limit of open files, raised to `wanted` where the hard limit lets it.
fn raised(wanted: usize) -> usize {
    let known = |limit: Option<u64>| {
        limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
    };
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (known(limit.current), known(limit.maximum));
    if soft >= wanted {
        return soft;
    }
    let most = wanted.min(hard);
    let current = u64::try_from(most).ok();
    match setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum }) {
        Ok(()) => most,
        Err(_) => soft,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WANTED: Shares = Shares { connections: 1_024, inflight: 1_024, idle: 128 };

    #[test]
    fn enough_descriptors_change_nothing_and_too_few_are_halved() {
        assert_eq!(fit(WANTED, 2, 4_096), WANTED);
        let few = fit(WANTED, 1, 200);
        assert_eq!(few, Shares { connections: 42, inflight: 42, idle: 12 });
        let few_calls = Shares { inflight: 10, ..WANTED };
        assert_eq!(fit(few_calls, 1, 200), Shares { connections: 74, inflight: 10, idle: 12 });
        let few_connections = Shares { connections: 10, ..WANTED };
        assert_eq!(
            fit(few_connections, 1, 200),
            Shares { connections: 10, inflight: 74, idle: 12 }
        );
        assert_eq!(fit(WANTED, 2, 64), Shares { connections: 1, inflight: 1, idle: 1 });
    }

    proptest! {
        #[test]
        fn shares_leave_the_reserve_and_are_never_more_than_wanted(
            connections in 1_usize..3_000,
            inflight in 1_usize..3_000,
            idle in 1_usize..300,
            workers in 1_usize..8,
            limit in 0_usize..5_000,
        ) {
            let wanted = Shares { connections, inflight, idle };
            let shares = fit(wanted, workers, limit);
            prop_assert!(shares.connections <= connections && shares.connections > 0);
            prop_assert!(shares.inflight <= inflight && shares.inflight > 0);
            prop_assert!(shares.idle <= idle && shares.idle > 0);
            if limit > reserve(workers) + workers + 2 {
                prop_assert!(needed(shares, workers) <= limit.max(reserve(workers) + workers + 2));
            }
        }
    }
}
