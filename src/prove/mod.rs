//! `takeback prove`: what the product promises, tried against faults and counted.
//!
//! A gateway that counts effects, the sidecar as a process of its own before it, and agents that do what
//! agents do: they make calls, and when an answer is lost they make the same call again. One fault at a
//! time is made to happen to half of the calls; then the effects of every intended call are counted at
//! the gateway and held against what the ledger says.
//!
//! Four kinds of write stand for all that a policy can declare:
//!
//! | kind | what the gateway offers | what must come out |
//! |---|---|---|
//! | `keyed` | it takes an idempotency key, and the agent gives one | exactly one effect for each call |
//! | `our-key` | it takes a key; the agent gives none, so the entry's id is it | as for `bare` |
//! | `looked-up` | no key; a read that finds the effect | exactly one effect for each call |
//! | `bare` | neither | at most one; where the answer was lost, `unknown`, and every repeat refused |
//!
//! And for every kind: an entry `accepted` has its effect, an entry `rejected` has none, and no effect
//! is without an entry. The faults are in [`Fault`]; `database-killed` is tried with a ledger in a database
//! on this machine. What cannot be made to happen from user space (an I/O error of the disk, a full volume,
//! a database that stands still) is in the tests, which use `strace`, a small volume and a database of their
//! own.
//!
//! What can go wrong here: no loopback port, no writable temporary directory, no processes. Nothing is
//! configured from the environment but the password of a ledger that is given (`PGPASSWORD`). Limits: [`AGENTS`] calls at the same time; a call that has not come
//! to its end after [`PATIENCE`] is counted as stuck, which is a failure.

mod agent;
mod database;
mod gateway;
mod sidecar;
mod streams;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use crate::contract::class::words;
use agent::{End, Truth};
use gateway::Gateway;
use sidecar::{Folder, Sidecar};

/// Calls at the same time.
pub const AGENTS: usize = 32;

/// How long a call may take with all its repeats.
pub const PATIENCE: Duration = Duration::from_secs(60);

words! {
    /// What happens to half of the calls.
    Fault {
        /// Nothing; for comparison.
        None = "none",
        /// No connection is taken for a while.
        ConnectRefused = "connect-refused",
        /// The connection is reset when the request has not been read.
        ResetBefore = "reset-before",
        /// The connection is reset when the effect is made.
        ResetAfter = "reset-after",
        /// The answer ends in its middle.
        HalfAnswer = "half-answer",
        /// The connection is closed without an answer when the effect is made.
        AnswerLost = "answer-lost",
        /// The answer comes after the sidecar stopped waiting.
        LateAnswer = "late-answer",
        /// The network delivers the request twice.
        DeliveredTwice = "delivered-twice",
        /// A 500 although the effect is made.
        ServerError = "500-after-effect",
        /// A 429 although the effect is made.
        TooMany = "429-after-effect",
        /// Over HTTP/2, a GOAWAY that leaves the call's stream out.
        GoawayBefore = "goaway-before",
        /// Over HTTP/2, a GOAWAY that includes the call's stream, whose effect is made and whose answer
        /// does not come.
        GoawayAfter = "goaway-after",
        /// The agent hangs up before its answer.
        AgentGone = "agent-gone",
        /// `kill -9` of the sidecar, again and again.
        ProxyKilled = "proxy-killed",
        /// The ledger's database dies at a commit, before it is made or when nobody was told.
        DatabaseKilled = "database-killed",
    }
}

impl Fault {
    /// Whether the gateway speaks HTTP/2 for it.
    fn is_of_streams(self) -> bool {
        matches!(self, Self::GoawayAfter | Self::GoawayBefore)
    }
}

words! {
    /// What the gateway offers for a write.
    Kind {
        /// It takes an idempotency key, and the agent gives one.
        Keyed = "keyed",
        /// It takes an idempotency key, and the agent gives none.
        OurKey = "our-key",
        /// A read finds the effect.
        LookedUp = "looked-up",
        /// Neither.
        Bare = "bare",
    }
}

/// What is to be proved.
#[derive(Clone, Debug)]
pub struct Options {
    /// Intended calls per fault, spread over the kinds.
    pub writes: u32,
    /// Only these faults; empty: all that the ledger lets happen.
    pub faults: Vec<Fault>,
    /// The sidecar's ledger; `None`: a file in the temporary folder.
    pub ledger: Option<String>,
}

/// Why nothing could be proved.
#[derive(Debug, thiserror::Error)]
pub enum ProveError {
    /// A ledger that cannot die at a commit: a file, or a database that is not on this machine.
    #[error(
        "`database-killed` needs a ledger in a database on this machine that is spoken to in plain text"
    )]
    Database,
    /// The temporary folder.
    #[error("no folder can be made in the temporary directory")]
    Folder(#[source] io::Error),
    /// The gateway or the runtime.
    #[error("the counting gateway could not start")]
    Gateway(#[source] io::Error),
    /// The sidecar's process.
    #[error("the sidecar's process could not be started")]
    Process(#[source] io::Error),
    /// The sidecar does not serve.
    #[error("the sidecar does not serve; its log says:\n{log}")]
    Silent {
        /// The end of its log.
        log: String,
    },
}

/// What came of one fault and one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// The fault's name.
    pub fault: &'static str,
    /// The kind's name.
    pub kind: &'static str,
    /// Intended calls.
    pub intended: u32,
    /// Of these with exactly one effect.
    pub once: u32,
    /// Without an effect.
    pub never: u32,
    /// With more than one effect.
    pub more: u32,
    /// Whose entry says something else than the gateway, or that have an effect and no entry.
    pub wrong: u32,
    /// Whose entry is unknown at the end.
    pub unknown: u32,
    /// Whose first answer was lost, and which came to an outcome.
    pub settled: u32,
    /// That did not come to their end in time.
    pub stuck: u32,
    /// The longest time from a call's beginning to its outcome, in milliseconds.
    pub slowest_ms: u64,
}

impl Row {
    /// Whether what must come out came out.
    pub fn holds(&self) -> bool {
        let is_complete = match Kind::from_name(self.kind) {
            Some(Kind::Keyed | Kind::LookedUp) => self.never == 0 && self.unknown == 0,
            Some(Kind::Bare | Kind::OurKey) | None => true,
        };
        is_complete && self.more == 0 && self.wrong == 0 && self.stuck == 0
    }

    fn count(&mut self, truth: &Truth, effects: u32) {
        self.intended = self.intended.saturating_add(1);
        let column = match effects {
            0 => &mut self.never,
            1 => &mut self.once,
            _ => &mut self.more,
        };
        *column = column.saturating_add(1);
        let is_wrong = match truth.state.as_deref() {
            Some("accepted") => effects == 0,
            Some("rejected") | None => effects > 0,
            Some(_) => false,
        };
        self.wrong = self.wrong.saturating_add(u32::from(is_wrong));
        self.unknown =
            self.unknown.saturating_add(u32::from(truth.state.as_deref() == Some("unknown")));
        self.stuck = self.stuck.saturating_add(u32::from(truth.end == End::Stuck));
        let is_settled = truth.was_lost && truth.end == End::Accepted;
        self.settled = self.settled.saturating_add(u32::from(is_settled));
        self.slowest_ms = self.slowest_ms.max(truth.took_ms);
    }
}

/// Proves; `tell` gets each row as it is known.
///
/// # Errors
///
/// See [`ProveError`]. A promise that does not hold is no error: it is in the rows.
pub fn prove(options: &Options, mut tell: impl FnMut(&Row)) -> Result<Vec<Row>, ProveError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(ProveError::Gateway)?;
    let mut all = Fault::ALL.to_vec();
    if sidecar::database(options.ledger.as_deref()).is_none() {
        if options.faults.contains(&Fault::DatabaseKilled) {
            return Err(ProveError::Database);
        }
        all.retain(|fault| *fault != Fault::DatabaseKilled);
    }
    let faults = if options.faults.is_empty() { &all } else { &options.faults };
    let mut rows = Vec::new();
    for fault in faults {
        let of_fault = runtime.block_on(one(*fault, options))?;
        of_fault.iter().for_each(&mut tell);
        rows.extend(of_fault);
    }
    runtime.shutdown_background();
    Ok(rows)
}

async fn one(fault: Fault, options: &Options) -> Result<Vec<Row>, ProveError> {
    let folder = Folder::new().map_err(ProveError::Folder)?;
    let gateway = Gateway::start(fault).await.map_err(ProveError::Gateway)?;
    let ledger = options.ledger.as_deref();
    let sidecar = Arc::new(Sidecar::start(&folder, gateway.address(), fault, ledger).await?);
    let mut settling = JoinSet::new();
    settling.spawn(sidecar::settle_all(Arc::clone(&sidecar)));
    let mut killing = JoinSet::new();
    if fault == Fault::ProxyKilled {
        killing.spawn(sidecar::kill_again_and_again(Arc::clone(&sidecar)));
    }
    let truths = agent::all(&sidecar, fault, options.writes).await;
    // Whether that was in the middle of a start or not: it serves from here on.
    killing.shutdown().await;
    sidecar.let_live();
    sidecar.ensure().await?;
    let truths = agent::states(&sidecar, truths).await;
    settling.shutdown().await;
    let mut rows: Vec<Row> = Kind::ALL
        .iter()
        .map(|kind| Row { fault: fault.as_str(), kind: kind.as_str(), ..Row::default() })
        .collect();
    for truth in &truths {
        let effects = gateway.effects(truth.call);
        if let Some(row) = rows.iter_mut().find(|row| row.kind == truth.kind.as_str()) {
            row.count(truth, effects);
        }
    }
    sidecar.stop().await;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(state: Option<&str>) -> Truth {
        Truth {
            call: 1,
            kind: Kind::Keyed,
            entry: None,
            end: End::Accepted,
            was_lost: false,
            took_ms: 1,
            state: state.map(str::to_owned),
        }
    }

    #[test]
    fn a_row_does_not_hold_if_the_ledger_and_the_gateway_disagree() {
        let table = [
            (Kind::Keyed, Some("accepted"), 1, true),
            (Kind::Keyed, Some("accepted"), 0, false),
            (Kind::Keyed, Some("accepted"), 2, false),
            (Kind::Keyed, Some("rejected"), 1, false),
            (Kind::Keyed, Some("unknown"), 1, false),
            (Kind::Keyed, None, 1, false),
            (Kind::Bare, Some("unknown"), 1, true),
            (Kind::Bare, Some("unknown"), 0, true),
            (Kind::Bare, Some("unknown"), 2, false),
            (Kind::Bare, Some("rejected"), 0, true),
        ];
        for (kind, state, effects, right) in table {
            let mut row = Row { kind: kind.as_str(), ..Row::default() };
            row.count(&truth(state), effects);
            assert_eq!(row.holds(), right, "{kind} {state:?} {effects}");
        }
        let mut row = Row { kind: "bare", ..Row::default() };
        row.count(&Truth { end: End::Stuck, ..truth(Some("accepted")) }, 1);
        assert!(!row.holds());
    }
}
