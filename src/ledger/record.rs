//! What the ledger shows of its entries: to replays, to commands, to the reconciler, to metrics.

use super::{Answer, Cause, Noted, Prior, State};
use crate::contract::class::{Class, Disposition, Kind, Verdict};
use crate::contract::key::{Digest, EntryId, OperationId};

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
    /// Whether the newest attempt used up a confirmation.
    pub confirmed: bool,
    /// When it is looked at next of itself; `None`: not, or not again.
    pub due_ms: Option<i64>,
    /// How often it was looked at since its newest attempt.
    pub tries: u32,
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
    /// Of the evidence: of that dispatch, or of what was read since.
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
    /// [`Finish::evidence`](super::Finish::evidence).
    pub evidence: Option<String>,
}

impl FinishRecord {
    /// As it is shown of an entry in this state: what takes a call back belongs to one that is accepted. Of
    /// one that may still turn out to be, it is kept and not offered.
    pub(super) fn shown_in(self, state: State) -> Self {
        match state {
            State::Accepted | State::Undone => self,
            State::Begun | State::Rejected | State::Unknown | State::Waiting => Self {
                undo: None,
                compensate: None,
                deadline_ms: None,
                undo_unavailable: None,
                ..self
            },
        }
    }
}

/// An entry that is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The entry: unknown, or accepted with evidence still to be read.
    pub record: Record,
    /// The detail of its newest step, if that is a note.
    pub last: Option<String>,
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
    /// What was looked at, if the step is a note.
    pub noted: Option<Noted>,
    /// The step's own JSON: [`Begin::authorization`](super::Begin::authorization),
    /// [`Finish::evidence`](super::Finish::evidence) or [`Note::detail`](super::Note::detail).
    pub detail: Option<String>,
    /// The verdict that the step recorded.
    pub verdict: Option<Verdict>,
    /// The disposition, if the step finished an attempt.
    pub disposition: Option<Disposition>,
    /// The upstream's status, if the step finished an attempt.
    pub upstream_status: Option<u16>,
}

/// An entry and its history, oldest step first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The entry.
    pub record: Record,
    /// Its steps.
    pub history: Vec<Step>,
    /// The state before the call ([`Begin::before`](super::Begin::before)), JSON.
    pub before: Option<String>,
}

/// Which entries [`ReadOnly::list`](super::ReadOnly::list) shows, newest first.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only these.
    pub state: Option<State>,
    /// Only of this operation.
    pub operation: Option<OperationId>,
    /// Only with this label of the caller. No index has it: as many rows are read as it takes to fill
    /// the page.
    pub task: Option<String>,
    /// Only of this principal.
    pub principal: Option<String>,
    /// Only those that were asked for since then; milliseconds since 1970.
    pub since_ms: Option<i64>,
    /// Only older than this entry: the last of the page before.
    pub before: Option<EntryId>,
    /// At most so many; 0 is none.
    pub limit: usize,
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
