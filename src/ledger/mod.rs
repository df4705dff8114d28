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
//! This file is the interface of every store. There is one: [`Embedded`], a SQLite file.

mod embedded;
mod entry;

use crate::contract::class::{Class, Disposition, Kind, Outcome, Verdict};
use crate::contract::key::{Digest, EntryId, Key, OperationId};

pub use embedded::{Embedded, OpenError, Options, ReadOnly, Recovered};
pub use entry::{Cause, State};

/// The largest answer body that is kept for a repeat, in bytes, inclusive (standards I-9).
pub const MAX_ANSWER: usize = 256 * 1024;

/// Who calls (standards MCP-49).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The principal's name, or the hash of its credential; never a credential.
    pub id: String,
    /// Whether only the credential says who it is, so that a rotated one looks like a stranger.
    pub weak: bool,
}

/// What is asked before a write: has this been here before?
#[derive(Clone, Debug)]
pub struct Look {
    /// Who calls.
    pub principal: Principal,
    /// The caller's idempotency key.
    pub key: Option<Key>,
    /// The request's digest.
    pub digest: Digest,
    /// The digest of operation and arguments, as an earlier entry's undo names them.
    pub mark: Digest,
    /// The operation called.
    pub operation: OperationId,
    /// Whether the draft form is asked for. A staged call and the real one with the same digest are
    /// no repeats of each other.
    pub staged: bool,
}

/// An earlier entry, as much of it as the rules for repeats need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prior {
    /// Its id.
    pub entry: EntryId,
    /// The number of its newest step; no two steps of a ledger share one.
    pub version: i64,
    /// What it is.
    pub state: State,
    /// The fact behind the state; `None` while begun.
    pub cause: Option<Cause>,
    /// The operation called.
    pub operation: OperationId,
    /// Its request's digest.
    pub digest: Digest,
    /// Whether it was performed in its draft form.
    pub staged: bool,
    /// The caller's key with which it began first.
    pub key: Option<Key>,
    /// The caller's key where it gave one, else the entry's id; goes upstream as the key.
    pub ledger_id: Key,
    /// Dispatches so far, from 1.
    pub attempt: u32,
    /// When the first attempt began; milliseconds since 1970.
    pub began_ms: i64,
    /// When the newest attempt was finished; `None` while begun.
    pub finished_ms: Option<i64>,
    /// Whether the agent has the whole answer.
    pub delivered: bool,
    /// Whether the agent was given an answer of the upstream.
    pub answered: bool,
    /// Whether the answer is here for a repeat; [`Ledger::answer`] reads it.
    pub is_answer_kept: bool,
    /// The resolved read that finds the effect, JSON.
    pub lookup: Option<String>,
    /// Who called.
    pub principal: Principal,
}

/// Another weak principal has an open entry with this digest or key. Says nothing else of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stranger;

/// What [`Ledger::look`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Priors {
    /// This principal's entry under this key.
    pub by_key: Option<Prior>,
    /// This principal's entry with this digest and stage flag: the open one if there is one, else
    /// the newest.
    pub by_digest: Option<Prior>,
    /// Whether a stranger's open entry looks like this call.
    pub open_of_stranger: Option<Stranger>,
    /// This principal's newest accepted entry that this call takes back.
    pub undoes: Option<EntryId>,
    /// This principal's unknown entries of the operation, newest first, at most
    /// [`MAX_UNKNOWN_NAMED`].
    pub unknown_of_operation: Vec<EntryId>,
}

/// How many unknown entries of an operation a look names.
pub const MAX_UNKNOWN_NAMED: usize = 8;

impl Priors {
    /// What a begin that was judged on these expects to find unchanged.
    pub fn expected(&self) -> Expected {
        Expected {
            by_key: self.by_key.as_ref().map(|prior| prior.version),
            by_digest: self.by_digest.as_ref().map(|prior| prior.version),
            open_of_stranger: self.open_of_stranger,
        }
    }
}

/// What the caller judged before its begin; versions of the two priors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Of [`Priors::by_key`].
    pub by_key: Option<i64>,
    /// Of [`Priors::by_digest`].
    pub by_digest: Option<i64>,
    /// Whether a stranger's open entry was seen; one that went away since changes nothing.
    pub open_of_stranger: Option<Stranger>,
}

/// Whether the rules for repeats hold for this begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// They do: what was judged must still be so, and no other open entry may have the digest.
    Enforced,
    /// Observe mode: the call is recorded whatever was there before, beside an open entry too.
    Observed,
}

/// A confirmation that this begin uses up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spend {
    /// The confirmation's random bytes.
    pub nonce: [u8; 16],
    /// When it expires; milliseconds since 1970. Until then it is remembered as used.
    pub expires_ms: i64,
}

/// What a begin records.
#[derive(Clone, Debug)]
pub struct Begin {
    /// The call, as it was looked up.
    pub look: Look,
    /// What that look showed.
    pub expected: Expected,
    /// The new entry's id; unused by a rerun.
    pub entry: EntryId,
    /// The prior whose attempt n+1 this is; one of the two that the look showed.
    pub rerun: Option<EntryId>,
    /// Whether the rules for repeats hold.
    pub guard: Guard,
    /// Of the compiled operation.
    pub fingerprint: Digest,
    /// Of the policy files.
    pub policy_revision: Digest,
    /// The operation's class.
    pub class: Class,
    /// The operation's kind.
    pub kind: Kind,
    /// `http` or `mcp`.
    pub transport: &'static str,
    /// Method and path, or the tool's name.
    pub target: String,
    /// The caller's label.
    pub task: Option<String>,
    /// The operation whose draft this call is.
    pub staged_for: Option<OperationId>,
    /// The caller's key where it gave one, else the entry's id.
    pub ledger_id: Key,
    /// Whether the ledger id goes upstream.
    pub key_sent: bool,
    /// The resolved read that finds the effect, JSON.
    pub lookup: Option<String>,
    /// The earlier entry that this call repeats on purpose.
    pub repeats: Option<EntryId>,
    /// The confirmation that it uses up.
    pub spend: Option<Spend>,
    /// Milliseconds since 1970.
    pub now_ms: i64,
}

impl Begin {
    /// The id of the entry that this begin is an attempt of.
    pub fn subject(&self) -> EntryId {
        self.rerun.unwrap_or(self.entry)
    }
}

/// What became of a begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Somebody was faster: nothing was written, and this is what is there.
    Changed(Box<Priors>),
    /// The confirmation was used before: nothing was written.
    Spent,
    /// The entry is on disk, and the attempt may be dispatched.
    Started {
        /// Which attempt it is, from 1; its finish must name it.
        attempt: u32,
    },
}

/// An answer kept for a repeat. The caller chooses the headers; none may hold a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Names and values.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body, as it came.
    pub body: Vec<u8>,
}

/// What a finish records of one attempt.
#[derive(Clone, Debug)]
pub struct Finish {
    /// The entry.
    pub entry: EntryId,
    /// The attempt, as [`Begun::Started`] named it. A finish for another one is refused.
    pub attempt: u32,
    /// Accepted, rejected, unknown or waiting.
    ///
    /// Rejected with [`Cause::NotSent`] gives the confirmation back; an entry that was unknown or
    /// waiting before this attempt becomes that again, because nothing was learned of it.
    pub state: State,
    /// The fact behind it; `None` where the answer speaks for itself.
    pub cause: Option<Cause>,
    /// Of this dispatch.
    pub disposition: Disposition,
    /// Of the evidence.
    pub verdict: Option<Verdict>,
    /// Whether the agent was given an answer of the upstream.
    pub answered: bool,
    /// The upstream's status.
    pub upstream_status: Option<u16>,
    /// The upstream's id of what was made.
    pub upstream_id: Option<String>,
    /// The resolved inverse, JSON.
    pub undo: Option<String>,
    /// The [`Look::mark`] of the call that takes this one back.
    pub undo_mark: Option<Digest>,
    /// The resolved compensation, JSON.
    pub compensate: Option<String>,
    /// Until when the undo can be made; milliseconds since 1970.
    pub deadline_ms: Option<i64>,
    /// Why there is no undo.
    pub undo_unavailable: Option<String>,
    /// The answer, for repeats; not kept if its body is above [`MAX_ANSWER`].
    pub answer: Option<Answer>,
    /// This call's own mark, where a success of it takes an earlier one back: if the entry ends
    /// accepted, this principal's newest accepted entry with that undo mark becomes undone.
    pub undoes: Option<Digest>,
    /// Milliseconds since 1970.
    pub now_ms: i64,
}

/// What became of a queued finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It rides in a later commit.
    Queued,
    /// The store is known to take no writes: the finish waits in memory, or, where even that is
    /// full, the entry stays begun. The report says `"ledger": "unfinished"`.
    Unfinished,
}

/// All that the ledger has of one entry but the answer's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The part that the rules for repeats read.
    pub prior: Prior,
    /// When the newest attempt began; milliseconds since 1970.
    pub attempted_ms: i64,
    /// The operation's class when it began.
    pub class: Class,
    /// The operation's kind when it began.
    pub kind: Kind,
    /// `http` or `mcp`.
    pub transport: String,
    /// Method and path, or the tool's name.
    pub target: String,
    /// The caller's label.
    pub task: Option<String>,
    /// The operation whose draft it is.
    pub staged_for: Option<OperationId>,
    /// Whether the ledger id went upstream.
    pub key_sent: bool,
    /// The earlier entry that it repeats on purpose.
    pub repeats: Option<EntryId>,
    /// Digest of operation and arguments.
    pub mark: Digest,
    /// Of the compiled operation.
    pub fingerprint: Digest,
    /// Of the policy files.
    pub policy_revision: Digest,
    /// What the newest finish said; `None` before the first.
    pub finish: Option<FinishRecord>,
}

/// What the newest finish of an entry said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishRecord {
    /// The attempt that it finished.
    pub attempt: u32,
    /// Of that dispatch.
    pub disposition: Disposition,
    /// Of the evidence.
    pub verdict: Option<Verdict>,
    /// The upstream's status.
    pub upstream_status: Option<u16>,
    /// The upstream's id of what was made.
    pub upstream_id: Option<String>,
    /// The resolved inverse, JSON.
    pub undo: Option<String>,
    /// The resolved compensation, JSON.
    pub compensate: Option<String>,
    /// Until when the undo can be made; milliseconds since 1970.
    pub deadline_ms: Option<i64>,
    /// Why there is no undo.
    pub undo_unavailable: Option<String>,
}

/// A recorded answer and the parts of its report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The entry.
    pub record: Record,
    /// The answer; `None` if it was not kept.
    pub answer: Option<Answer>,
}

/// One step of an entry's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The step's number in the ledger.
    pub seq: i64,
    /// Milliseconds since 1970.
    pub at_ms: i64,
    /// The state before; `None`: it did not exist.
    pub from: Option<State>,
    /// The state after.
    pub to: State,
    /// The attempt.
    pub attempt: u32,
    /// The fact behind it.
    pub cause: Option<Cause>,
    /// The person or reconciler that decided; `None`: the sidecar itself.
    pub who: Option<String>,
    /// Their reason.
    pub why: Option<String>,
}

/// An entry and its history, oldest step first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The entry.
    pub record: Record,
    /// Its steps.
    pub history: Vec<Step>,
}

/// Which entries [`ReadOnly::list`] shows, newest first.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only these.
    pub state: Option<State>,
    /// Only of this operation.
    pub operation: Option<OperationId>,
    /// Only older than this entry: the last of the page before.
    pub before: Option<EntryId>,
    /// At most so many; 0 is none.
    pub limit: usize,
}

/// What a decision about an unknown entry recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The number of the step.
    pub version: i64,
    /// What the entry is.
    pub state: State,
}

/// Open entries by state, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Under way.
    pub begun: Tally,
    /// To be settled.
    pub unknown: Tally,
    /// Answered later.
    pub waiting: Tally,
}

/// How many entries, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// When the oldest began; milliseconds since 1970.
    pub oldest_ms: Option<i64>,
}

/// What the ledger counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits made.
    pub commits: u64,
    /// Finishes for another attempt, or of a step that is not legal; not written.
    pub refused: u64,
    /// Finishes that found no room in memory while the store was down: those entries stay begun
    /// and become unknown at the next start.
    pub lost: u64,
    /// Finishes whose answer found no room in memory; the rest of them was kept.
    pub shortened: u64,
    /// Finishes that wait for a commit.
    pub pending: u64,
}

/// Whether the store takes writes. Cheap to read; no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// `None`: it does.
    pub down: Option<Reason>,
    /// Since when, by the newest time that a command brought; milliseconds since 1970.
    pub since_ms: i64,
}

impl Health {
    /// Whether the store takes writes, as far as anybody knows.
    pub fn is_ok(&self) -> bool {
        self.down.is_none()
    }
}

/// Why the store takes no writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The ledger was closed.
    #[error("it is closed")]
    Closed,
    /// The file does not read as what was written.
    #[error("its file is damaged")]
    Corrupt,
    /// The volume, or the ledger's own size limit, is full.
    #[error("its volume or its size limit is full")]
    Full,
    /// The device reported an error.
    #[error("its device reports an error")]
    Io,
    /// Another program holds a write lock on the file.
    #[error("another program holds a lock on its file")]
    Locked,
    /// The path holds a file that is not this ledger, or an older copy of it.
    #[error("its file was replaced")]
    Replaced,
    /// The file is not at its path.
    #[error("its file is not at its path")]
    Removed,
    /// No answer in time: the device stands still, or the queue does not move.
    #[error("it did not answer in time")]
    Stalled,
    /// Something else; the log has the words.
    #[error("it failed")]
    Failed,
}

impl Reason {
    /// The name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Corrupt => "corrupt",
            Self::Failed => "failed",
            Self::Full => "full",
            Self::Io => "io",
            Self::Locked => "locked",
            Self::Removed => "removed",
            Self::Replaced => "replaced",
            Self::Stalled => "stalled",
        }
    }
}

/// Why a command was not done. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// There is no such entry.
    #[error("the ledger has no such entry")]
    NotFound,
    /// Only unknown entries can be settled.
    #[error("the entry is {state}, not unknown")]
    NotUnknown {
        /// What it is.
        state: State,
    },
    /// The states do not allow the step, or it belongs to another attempt: a defect of the caller.
    #[error("the ledger does not allow this step")]
    Refused,
    /// The store takes no writes; the write must not be sent.
    #[error("the ledger is unavailable: {0}")]
    Unavailable(Reason),
}

/// A ledger. Clones are handles to the same store; the last one to go closes it.
#[derive(Clone, Debug)]
pub enum Ledger {
    /// A SQLite file, with one writer.
    Embedded(Embedded),
}

impl Ledger {
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
        match self {
            Self::Embedded(embedded) => embedded.look(look).await,
        }
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
        match self {
            Self::Embedded(embedded) => embedded.begin(begin).await,
        }
    }

    /// Records what became of an attempt, in a later commit. Never blocks. While the store is down
    /// it is kept in memory, bounded, and written when it can be.
    pub fn finish(&self, finish: Finish) -> Finished {
        match self {
            Self::Embedded(embedded) => embedded.finish(finish),
        }
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
        match self {
            Self::Embedded(embedded) => embedded.finish_durably(finish).await,
        }
    }

    /// Records that the agent has the whole answer, in a later commit. If that is lost, a repeat
    /// gets the recorded answer once more.
    pub fn delivered(&self, entry: EntryId) {
        match self {
            Self::Embedded(embedded) => embedded.delivered(entry),
        }
    }

    /// The recorded answer of an entry and the parts of its report; `None` if there is no such
    /// entry or an attempt is under way. Sees what [`Ledger::look`] sees.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn answer(&self, entry: EntryId) -> Result<Option<Stored>, LedgerError> {
        match self {
            Self::Embedded(embedded) => embedded.answer(entry).await,
        }
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
        match self {
            Self::Embedded(embedded) => embedded.settle(entry, outcome, who, why, now_ms).await,
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
        }
    }

    /// Writes a durable row that proves the store takes writes. While it is down this tries it at
    /// once.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`].
    pub async fn heartbeat(&self, now_ms: i64) -> Result<(), LedgerError> {
        match self {
            Self::Embedded(embedded) => embedded.heartbeat(now_ms).await,
        }
    }

    /// The secret that seals confirmations: made once, kept in the ledger, so that they survive a
    /// restart.
    pub fn sealing_key(&self) -> [u8; 32] {
        match self {
            Self::Embedded(embedded) => embedded.sealing_key(),
        }
    }

    /// Whether the store takes writes.
    pub fn health(&self) -> Health {
        match self {
            Self::Embedded(embedded) => embedded.health(),
        }
    }

    /// What it counted since it was opened.
    pub fn stats(&self) -> Stats {
        match self {
            Self::Embedded(embedded) => embedded.stats(),
        }
    }

    /// Writes what is queued, lets go of the file and its lock, and refuses all later commands.
    /// Entries still begun stay so, and are unknown at the next start.
    pub async fn close(&self) {
        match self {
            Self::Embedded(embedded) => embedded.close().await,
        }
    }
}
