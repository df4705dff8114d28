//! The ledger: every write's entry, durable before the write leaves, and what became of it.
//!
//! What it promises (contract sections 3 and 7):
//!
//! - [`Ledger::begin`] returns `Started` only after the entry is on disk. The check that nobody was
//!   faster, the use of the confirmation and the entry are one transaction.
//! - A finish that was queued before a caller saw its answer is visible to that caller's next
//!   [`Ledger::look`], though it may reach the disk later.
//! - Only the steps of [`State::may_become`] are ever written, each with one row of an append-only
//!   history. An entry found begun when the store is opened becomes unknown.
//! - There is at most one open entry per principal and digest.
//! - When the store cannot take writes, every begin says so and nothing is recorded by half;
//!   finishes are kept in memory, bounded, and written when it can. No restart is needed.
//!
//! What it does not do: decide. Whether a repeat is replayed, refused or challenged, and which
//! answers may be kept, is the pipeline's business. It reads no clock either: every command brings
//! its time.
//!
//! This file is the interface of every store. There are two: [`Embedded`], a SQLite file for one
//! sidecar, and [`Postgres`], a database for one sidecar or many.

mod chain;
mod command;
mod desk;
mod embedded;
mod entry;
mod health;
mod later;
mod place;
mod postgres;
mod read;
mod record;
mod redact;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use crate::contract::class::Outcome;
use crate::contract::key::EntryId;

use desk::Desk;

pub use chain::{Acknowledged, Broken, ChainState, Flaw, Head, KeyId, Keys, KeysError, Verified};
pub use command::{
    Answer, Begin, Begun, Due, Expected, Finish, Finished, Guard, LedgerError, Look, MAX_ANSWER,
    MAX_BEFORE, MAX_LATER, MAX_UNKNOWN_NAMED, Note, Noted, Obstacle, Principal, Prior, Priors,
    Removed, Settled, Spend, Stranger,
};
pub use embedded::{Embedded, OpenError, Options, Recovered};
pub use entry::{Cause, State};
pub use health::{Health, Integrity, Reason, Stats};
pub use later::{Candidate, Planned, Subject, backs, obstacle};
pub use place::{Address, AddressError, Endpoint, Place};
pub use postgres::Postgres;
pub use read::ReadOnly;
pub use record::{Counts, Filter, FinishRecord, Pending, Record, Shown, Step, Stored, Tally};
pub use redact::{MAX_POINTERS, Part, REDACTED};

/// A ledger. Clones are handles to the same store; the last one to go closes it.
#[derive(Clone, Debug)]
pub enum Ledger {
    /// A SQLite file, with one writer.
    Embedded(Embedded),
    /// A PostgreSQL database, with as many writers as there are sidecars.
    Postgres(Postgres),
}

impl Ledger {
    /// Opens the ledger at `place`; makes it where there is none. Blocks; for the start.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]; after one that [is temporary](OpenError::is_temporary) it may be tried
    /// again.
    pub fn open(
        place: &Place,
        options: Options,
        now_ms: i64,
    ) -> Result<(Self, Recovered), OpenError> {
        match place {
            Place::File(path) => {
                let (store, recovered) = Embedded::open(path, options, now_ms)?;
                Ok((Self::Embedded(store), recovered))
            }
            Place::Postgres(address) => {
                let (store, recovered) = Postgres::open(address, options, now_ms)?;
                Ok((Self::Postgres(store), recovered))
            }
        }
    }

    fn desk(&self) -> &Desk {
        match self {
            Self::Embedded(embedded) => embedded.desk(),
            Self::Postgres(postgres) => postgres.desk(),
        }
    }

    /// What is already there that this call may repeat. Sees every begin and finish that was queued
    /// before it, whether on disk or not.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    ///
    /// # Cancel safety
    ///
    /// Reads only; may be dropped.
    pub async fn look(&self, look: Look) -> Result<Priors, LedgerError> {
        self.desk().look(look).await
    }

    /// Records that an attempt begins. After `Started` the entry is on disk.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`]: the write must not be sent. [`LedgerError::Refused`]: the
    /// rerun is not one of the priors, or its state does not allow it.
    ///
    /// # Cancel safety
    ///
    /// When this future is dropped, either nothing was written, or the ledger itself finishes the
    /// attempt as not sent and gives its confirmation back. So `Started` must be taken out of the
    /// future before anything is sent, and whoever takes it owes a finish.
    pub async fn begin(&self, begin: Begin) -> Result<Begun, LedgerError> {
        self.desk().begin(begin).await
    }

    /// Records what became of an attempt, in a later commit. Never blocks. While the store is down
    /// it is kept in memory, bounded, and written when it can be.
    pub fn finish(&self, finish: Finish) -> Finished {
        self.desk().finish(finish)
    }

    /// Records what became of an attempt, and returns when that is on disk.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Refused`] for a step that is not legal, [`LedgerError::NotFound`], and
    /// [`LedgerError::Unavailable`], after which it is still kept and retried as by
    /// [`Ledger::finish`].
    ///
    /// # Cancel safety
    ///
    /// Dropping this future leaves a finish as [`Ledger::finish`] queues it.
    pub async fn finish_durably(&self, finish: Finish) -> Result<(), LedgerError> {
        self.desk().finish_durably(finish).await
    }

    /// Records that the agent has the whole answer, in a later commit. If that is lost, a repeat
    /// gets the recorded answer once more.
    pub fn delivered(&self, entry: EntryId) {
        self.desk().delivered(entry)
    }

    /// The recorded answer of an entry and the parts of its report; `None` if there is no such
    /// entry or an attempt is under way. Sees what [`Ledger::look`] sees.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn answer(&self, entry: EntryId) -> Result<Option<Stored>, LedgerError> {
        self.desk().answer(entry).await
    }

    /// Records the decision of a lookup or of a person about an unknown entry; durable when it
    /// returns. `who` and `why` stand in the history.
    ///
    /// # Errors
    ///
    /// [`LedgerError::NotFound`], [`LedgerError::NotUnknown`], [`LedgerError::Refused`] for the
    /// outcome `unknown`, [`LedgerError::Unavailable`].
    ///
    /// # Cancel safety
    ///
    /// Dropping this future does not take the decision back once it is queued.
    pub async fn settle(
        &self,
        entry: EntryId,
        outcome: Outcome,
        who: &str,
        why: &str,
        now_ms: i64,
    ) -> Result<Settled, LedgerError> {
        self.desk().settle(entry, outcome, who, why, now_ms).await
    }

    /// Records what was learned of an entry that is finished, and what follows from it; durable when
    /// it returns.
    ///
    /// # Errors
    ///
    /// [`LedgerError::NotFound`]; [`LedgerError::Changed`] if the entry is no longer where it was
    /// judged; [`LedgerError::NotUnknown`] for an outcome of one that is not unknown;
    /// [`LedgerError::Refused`] for a begun entry, for the outcome `unknown`, and for a verdict of one
    /// that is not accepted; [`LedgerError::Unavailable`].
    ///
    /// # Cancel safety
    ///
    /// Dropping this future does not take the note back once it is queued.
    pub async fn note(&self, note: Note) -> Result<Settled, LedgerError> {
        self.desk().note(note).await
    }

    /// The entries that are due at `now_ms`, unknown or accepted, the one due longest first, at most
    /// `limit`; only what is on disk.
    ///
    /// An entry becomes due by its finish or its note; one that is found begun when the store is
    /// opened, and has a lookup, is due at once; and one whose rerun was not sent is due again. A
    /// begin and a decision end it.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Pending>, LedgerError> {
        match self {
            Self::Embedded(embedded) => embedded.due(now_ms, limit).await,
            Self::Postgres(postgres) => postgres.due(now_ms, limit).await,
        }
    }

    /// As [`Ledger::due`], one entry whether it is due or not; `None` if it is neither unknown nor
    /// accepted.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn pending(&self, entry: EntryId) -> Result<Option<Pending>, LedgerError> {
        match self {
            Self::Embedded(embedded) => embedded.pending(entry).await,
            Self::Postgres(postgres) => postgres.pending(entry).await,
        }
    }

    /// What stands in the way of an accepted entry's undo: another entry of what the undo would change, that
    /// came after or was under way; `None` too for one without an undo, and for one of which nobody knows
    /// what it would change. Those of `beside` are passed over as later ones. Only what
    /// is on disk; looks at [`MAX_LATER`] entries of a thing and no further.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn superseded(
        &self,
        entry: EntryId,
        beside: &HashSet<EntryId>,
    ) -> Result<Option<Obstacle>, LedgerError> {
        match self {
            Self::Embedded(embedded) => embedded.superseded(entry, beside.clone()).await,
            Self::Postgres(postgres) => postgres.superseded(entry, beside.clone()).await,
        }
    }

    /// What stands in the way of the undo of each entry that a plan would take back, as
    /// [`superseded`](Self::superseded) says it of one. The plan is newest first; its newer writes are taken
    /// back before, and are no obstacles unless they are left.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn obstacles(
        &self,
        plan: Vec<Planned>,
    ) -> Result<HashMap<EntryId, Obstacle>, LedgerError> {
        match self {
            Self::Embedded(embedded) => embedded.obstacles(plan).await,
            Self::Postgres(postgres) => postgres.obstacles(plan).await,
        }
    }

    /// Uses a confirmation up without a begin, because whoever was asked said no; durable when it
    /// returns. No entry is made. One that was used before stays used, and so does one whose attempt is
    /// under way: if that is not sent, it gives the confirmation back all the same.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`]: it may still count.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future does not take it back once it is queued.
    pub async fn spend(&self, spend: Spend) -> Result<(), LedgerError> {
        self.desk().spend(spend).await
    }

    /// Records that the accepted call `by` took an accepted entry back; durable when it returns. For
    /// an undo that another principal made: one that the entry's own makes is recognised by itself.
    /// Asked again it changes nothing.
    ///
    /// # Errors
    ///
    /// [`LedgerError::NotFound`] for either, [`LedgerError::Refused`] if one of them is not accepted
    /// or `by` is not the call that the entry's undo names, [`LedgerError::Unavailable`].
    ///
    /// # Cancel safety
    ///
    /// Dropping this future does not take it back once it is queued.
    pub async fn took_back(
        &self,
        entry: EntryId,
        by: EntryId,
        who: &str,
        now_ms: i64,
    ) -> Result<Settled, LedgerError> {
        self.desk().took_back(entry, by, who, now_ms).await
    }

    /// Takes parts out of what an entry holds of its call; durable when it returns. `who` and `why`
    /// stand in the history with the pointers, the values nowhere. The chain still verifies.
    ///
    /// # Errors
    ///
    /// [`LedgerError::NotFound`], [`LedgerError::StillOpen`], [`LedgerError::NothingThere`]: then
    /// nothing is taken out; [`LedgerError::Unavailable`].
    ///
    /// # Cancel safety
    ///
    /// Dropping this future does not take it back once it is queued.
    pub async fn redact(
        &self,
        entry: EntryId,
        parts: Vec<Part>,
        who: &str,
        why: &str,
        now_ms: i64,
    ) -> Result<Settled, LedgerError> {
        self.desk().redact(entry, parts, who, why, now_ms).await
    }

    /// The entries that wait for more, newest first, at most `limit`; only what is on disk.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn waiting(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        match self {
            Self::Embedded(embedded) => embedded.waiting(limit).await,
            Self::Postgres(postgres) => postgres.waiting(limit).await,
        }
    }

    /// The unknown entries, oldest first, at most `limit`; only what is on disk.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn unknowns(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        match self {
            Self::Embedded(embedded) => embedded.unknowns(limit).await,
            Self::Postgres(postgres) => postgres.unknowns(limit).await,
        }
    }

    /// Open entries by state; only what is on disk.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn counts(&self) -> Result<Counts, LedgerError> {
        match self {
            Self::Embedded(embedded) => embedded.counts().await,
            Self::Postgres(postgres) => postgres.counts().await,
        }
    }

    /// Writes a durable row that proves the store takes writes. While it is down this tries it at
    /// once.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn heartbeat(&self, now_ms: i64) -> Result<(), LedgerError> {
        self.desk().heartbeat(now_ms).await
    }

    /// The secret that seals confirmations: made once, kept in the ledger, so that they survive a
    /// restart.
    pub fn sealing_key(&self) -> [u8; 32] {
        self.desk().sealing_key()
    }

    /// Whether the store takes writes.
    pub fn health(&self) -> Health {
        self.desk().health()
    }

    /// Where the chain that this ledger writes ends, as far as it is on disk; `None` while there is
    /// no link. To be kept elsewhere: see [`Head`].
    pub fn head(&self) -> Option<Head> {
        self.desk().head()
    }

    /// What is known of the chain over the history. Its end is verified when the ledger is opened; a
    /// flaw refuses begins until it is [acknowledged](Self::acknowledge).
    pub fn integrity(&self) -> Integrity {
        self.desk().shared.integrity()
    }

    /// Records that a person knows of these breaks, which [`ReadOnly::breaks`] found, and of an older
    /// copy that was put back, and takes begins again; durable when it returns. `who` and `why` stand in
    /// the chain.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Refused`] if there are more than a person can have looked at, and
    /// [`LedgerError::Unavailable`].
    ///
    /// # Cancel safety
    ///
    /// Dropping this future does not take it back once it is queued.
    pub async fn acknowledge(
        &self,
        breaks: Vec<Broken>,
        who: &str,
        why: &str,
        now_ms: i64,
    ) -> Result<(), LedgerError> {
        if breaks.len() > chain::breaks::MAX_ACKNOWLEDGED {
            return Err(LedgerError::Refused);
        }
        self.desk().acknowledge(breaks, who, why, now_ms).await
    }

    /// What it counted since it was opened.
    pub fn stats(&self) -> Stats {
        self.desk().stats()
    }

    /// Writes what is queued, lets go of the file and its lock, and refuses all later commands.
    /// Entries still begun stay so, and are unknown at the next start.
    pub async fn close(&self) {
        self.desk().close().await;
        self.stop_reading();
    }

    /// As [`close`](Self::close), for a thread without a runtime.
    pub fn close_blocking(&self) {
        self.desk().close_blocking();
        self.stop_reading();
    }

    fn stop_reading(&self) {
        match self {
            Self::Embedded(embedded) => embedded.stop_reading(),
            Self::Postgres(_) => {}
        }
    }
}
