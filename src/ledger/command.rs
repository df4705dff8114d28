//! What the ledger is asked to record, and what it answers.

use super::chain::row::{Attempt, Row, Told};
use super::{Cause, Reason, State};
use crate::contract::class::{Class, Disposition, Kind, Outcome, Verdict, words};
use crate::contract::key::{Digest, EntryId, Key, OperationId};
use crate::contract::thing::Thing;

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
    /// Whether the answer is here for a repeat; [`Ledger::answer`](super::Ledger::answer) reads it.
    pub is_answer_kept: bool,
    /// The resolved read that finds the effect, JSON.
    pub lookup: Option<String>,
    /// Who called.
    pub principal: Principal,
    /// What of it was taken out since.
    pub removed: Option<Removed>,
}

impl Prior {
    /// Why there is no undo, if that is because it was removed with all else.
    pub(super) fn undo_gone(&self) -> Option<String> {
        self.removed.filter(|removed| *removed == Removed::Retention).map(Removed::of_undo)
    }
}

words! {
    /// Why something that an entry held of its call is gone.
    Removed {
        /// A person took a part out.
        Redacted = "redacted",
        /// It was older than what is kept.
        Retention = "retention",
    }
}

impl Removed {
    /// The number in the stores; 0 is nothing.
    pub(super) fn from_code(code: i64) -> Option<Self> {
        match code {
            1 => Some(Self::Redacted),
            2 => Some(Self::Retention),
            _ => None,
        }
    }

    /// Why there is no undo any more.
    pub(super) fn of_undo(self) -> String {
        match self {
            Self::Redacted => "it was redacted".to_owned(),
            Self::Retention => "it is older than what the ledger keeps".to_owned(),
        }
    }
}

/// Another weak principal has an open entry with this digest or key. Says nothing else of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stranger;

/// What [`Ledger::look`](super::Ledger::look) found.
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
    /// What the call changes, as far as that is known before it is made. The entry is filed under them;
    /// of each a keyed hash is kept for as long as the entry is.
    pub things: Vec<Thing>,
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
    /// Who or what allowed it, JSON, for its receipt; `None` where nothing had to. Holds no value of
    /// the call. Stands in the history with this attempt.
    pub authorization: Option<String>,
    /// The state before the call, JSON, where the operation declares that it be read; at most
    /// [`MAX_BEFORE`] bytes. The newest attempt's is kept, beside the entry.
    pub before: Option<String>,
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

    /// What the attempt is made with, as the chain takes it.
    pub(super) fn as_linked(&self) -> Attempt<'_> {
        Attempt {
            key_sent: self.key_sent,
            fingerprint: &self.fingerprint.0,
            policy_revision: &self.policy_revision.0,
            class: self.class.as_str(),
            kind: self.kind.as_str(),
            spent_ms: self.spend.map(|spend| spend.expires_ms),
            spent_nonce: self.spend.as_ref().map(|spend| &spend.nonce[..]),
            // Hashed with what each store has for it.
            things: None,
            target: &self.target,
            lookup: self.lookup.as_deref(),
            before: self.before.as_deref(),
        }
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
    /// What that id names, if the call changed it and nothing else says so. The entry is filed under it.
    pub made: Option<Thing>,
    /// The resolved inverse, JSON.
    pub undo: Option<String>,
    /// What the undo would change.
    pub undo_things: Vec<Thing>,
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
    /// What was evaluated as evidence, and what is still to be read for it, JSON; names and outcomes,
    /// never a compared value. Stands in the history with this attempt.
    pub evidence: Option<String>,
    /// When the entry is to be looked at next (see [`Ledger::due`](super::Ledger::due)); milliseconds
    /// since 1970. `None`, or unknown without a lookup: not of itself.
    pub due_ms: Option<i64>,
    /// Milliseconds since 1970.
    pub now_ms: i64,
}

impl Finish {
    /// The row of its step, as the chain takes it.
    pub(super) fn as_linked<'a>(&'a self, row: Row<'a>) -> Row<'a> {
        Row {
            disposition: Some(self.disposition.as_str()),
            verdict: self.verdict.map(Verdict::as_str),
            upstream_status: self.upstream_status.map(i64::from),
            undo_mark: self.undo_mark.as_ref().map(|mark| &mark.0[..]),
            deadline_ms: self.deadline_ms,
            detail: self.evidence.as_deref(),
            ..row
        }
    }

    /// What it holds of the call, as the chain takes it.
    pub(super) fn as_told<'a>(
        &'a self,
        kept: Option<&'a Answer>,
        headers: Option<&'a [u8]>,
    ) -> Told<'a> {
        Told {
            upstream_id: self.upstream_id.as_deref(),
            undo: self.undo.as_deref(),
            compensate: self.compensate.as_deref(),
            undo_unavailable: self.undo_unavailable.as_deref(),
            status: kept.map(|answer| i64::from(answer.status)),
            headers,
            body: kept.map(|answer| answer.body.as_slice()),
        }
    }
}

words! {
    /// What a note is of.
    Noted {
        /// A lookup of an unknown entry.
        Lookup = "lookup",
        /// A stage of an accepted entry's verification.
        Readback = "readback",
        /// What a person took out of what it holds of its call.
        Redaction = "redaction",
    }
}

/// When an entry is to be looked at next, and how often it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Milliseconds since 1970.
    pub at_ms: i64,
    /// The looks so far.
    pub tries: u32,
}

/// What was learned of an entry that is finished: one more row of its history, and perhaps a decision.
///
/// It is written only if the entry is still where it was judged ([`Note::version`]), and never to one
/// that is begun: what was learned of an attempt says nothing of the next.
#[derive(Clone, Debug)]
pub struct Note {
    /// The entry.
    pub entry: EntryId,
    /// The step at which it was judged: its [`Prior::version`].
    pub version: i64,
    /// What was looked at.
    pub noted: Noted,
    /// What it said, for people; holds no value of the call.
    pub why: String,
    /// What it said, JSON; names and outcomes, never a compared value.
    pub detail: Option<String>,
    /// Settles an unknown entry: accepted or rejected.
    pub outcome: Option<Outcome>,
    /// Takes the place of the verdict of an accepted entry.
    pub verdict: Option<Verdict>,
    /// When to look next; `None`: not again of itself.
    pub due: Option<Due>,
    /// Milliseconds since 1970.
    pub now_ms: i64,
}

/// The longest image of a state before a call that is kept, in bytes, inclusive. It is a row of the
/// ledger, written before the call: what is larger is no resource that one call puts back.
pub const MAX_BEFORE: usize = 64 * 1024;

/// How many entries of a thing are looked through for one that stands in the way of an undo: some
/// milliseconds. An undo is taken soon or not at all.
pub const MAX_LATER: usize = 1_024;

/// What stands in the way of an undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// An entry of what the undo would change, which came after.
    After(EntryId),
    /// An entry of it that was not over when the undo's own began: what was read before may lack its
    /// effect.
    Beside(EntryId),
    /// More entries came after than are looked through.
    Beyond,
    /// The entry was recorded by a version that did not note what its undo would change.
    Untold,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::After(by) => write!(f, "entry {by} came after it"),
            Self::Beside(by) => write!(
                f,
                "entry {by} was under way when it began, and what it put in the other's place is not \
                 known"
            ),
            Self::Beyond => f.write_str("more came after it than can be looked through"),
            Self::Untold => {
                f.write_str("an older version recorded it and did not note what its undo changes")
            }
        }
    }
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

/// What a decision about an unknown entry recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The number of the step.
    pub version: i64,
    /// What the entry is.
    pub state: State,
}

/// Why a command was not done. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// There is no such entry.
    #[error("the ledger has no such entry")]
    NotFound,
    /// Another step was written since the entry was judged.
    #[error("the entry has changed meanwhile")]
    Changed,
    /// Only unknown entries can be settled.
    #[error("the entry is {state}, not unknown")]
    NotUnknown {
        /// What it is.
        state: State,
    },
    /// Nothing that can be taken out stands at one of the pointers.
    #[error("nothing that can be redacted stands at one of the pointers")]
    NothingThere,
    /// The entry still needs what it holds of its call.
    #[error("the entry is open or still looked at; settle it first")]
    StillOpen,
    /// The states do not allow the step, or it belongs to another attempt: a defect of the caller.
    #[error("the ledger does not allow this step")]
    Refused,
    /// The store takes no writes; the write must not be sent.
    #[error("the ledger is unavailable: {0}")]
    Unavailable(Reason),
}
