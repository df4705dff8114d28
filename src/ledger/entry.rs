//! The states of an entry and the steps between them (contract section 7).
//!
//! ```text
//!            ┌──────────────────────────────┐
//!            ▼                              │ attempt n+1
//!   ─────▶ begun ──▶ accepted ──▶ undone    │
//!           │ ▲ ├──▶ rejected ──────────────┤
//!           │ │ └──▶ unknown ───────────────┘
//!           ▼ │        └──▶ accepted | rejected   by a lookup or by a person
//!         waiting ──▶ accepted | rejected | unknown
//! ```
//!
//! Pure, and the only place that knows which steps are legal. Both stores ask [`State::may_become`]
//! before they write, so no history holds another step.

use crate::contract::class::words;

words! {
    /// What an entry is.
    State {
        /// Done, as far as anybody can say.
        Accepted = "accepted",
        /// An attempt is under way, or died with its process.
        Begun = "begun",
        /// Not done.
        Rejected = "rejected",
        /// Done, and taken back since.
        Undone = "undone",
        /// Nobody can say.
        Unknown = "unknown",
        /// The upstream took it and will answer later, or asks for more input first.
        Waiting = "waiting",
    }
}

impl State {
    /// Whether the entry still claims its digest: no second entry of this principal may begin with
    /// it (begun, waiting, unknown).
    pub fn is_open(self) -> bool {
        match self {
            Self::Begun | Self::Unknown | Self::Waiting => true,
            Self::Accepted | Self::Rejected | Self::Undone => false,
        }
    }

    /// Whether an attempt is under way (begun, waiting).
    pub fn is_in_flight(self) -> bool {
        match self {
            Self::Begun | Self::Waiting => true,
            Self::Accepted | Self::Rejected | Self::Undone | Self::Unknown => false,
        }
    }

    /// Whether the step from this state to `next` is legal. A step to `begun` is attempt n+1.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Begun => match next {
                Self::Accepted | Self::Rejected | Self::Unknown | Self::Waiting => true,
                Self::Begun | Self::Undone => false,
            },
            Self::Waiting => match next {
                Self::Accepted | Self::Begun | Self::Rejected | Self::Unknown => true,
                Self::Undone | Self::Waiting => false,
            },
            Self::Unknown => match next {
                Self::Accepted | Self::Begun | Self::Rejected => true,
                Self::Undone | Self::Unknown | Self::Waiting => false,
            },
            Self::Rejected => next == Self::Begun,
            Self::Accepted => next == Self::Undone,
            Self::Undone => false,
        }
    }

    /// The number in the embedded store. Never changed: files hold it. Every number takes one byte
    /// on disk, so that a step overwrites its row in place, and the open states are the lowest, so
    /// that one comparison finds them.
    pub(super) fn code(self) -> i64 {
        match self {
            Self::Begun => 2,
            Self::Waiting => 3,
            Self::Unknown => 4,
            Self::Accepted => 5,
            Self::Rejected => 6,
            Self::Undone => 7,
        }
    }

    /// The state with this number.
    pub(super) fn from_code(code: i64) -> Option<Self> {
        Self::ALL.iter().copied().find(|state| state.code() == code)
    }
}

words! {
    /// The fact behind a state.
    Cause {
        /// The upstream answered with a status that settles nothing, such as 500 or 409.
        AmbiguousStatus = "ambiguous_status",
        /// The process died between the begin and the finish.
        Crash = "crash",
        /// The upstream asks for more input before it acts.
        InputRequired = "input_required",
        /// The tool answered `isError: true`.
        IsError = "is_error",
        /// The ledger could not take the finish.
        Ledger = "ledger",
        /// Not a byte of this attempt was sent.
        NotSent = "not_sent",
        /// A task of ours panicked.
        Panic = "panic",
        /// The connection broke after the first byte was sent.
        Reset = "reset",
        /// A lookup or a person decided; the history says who and why.
        Settled = "settled",
        /// The process stopped before the answer came.
        Shutdown = "shutdown",
        /// The upstream answered with a task that it finishes later.
        Task = "task",
        /// The answer did not come in time.
        Timeout = "timeout",
        /// The answer broke off in its body.
        TruncatedBody = "truncated_body",
        /// A later call took the effect back; the history names it.
        Undone = "undone",
        /// The answer is not of a form that says what happened.
        Unreadable = "unreadable",
        /// The upstream wants a page visited first, and did nothing.
        UrlElicitation = "url_elicitation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_steps_are_those_of_the_contract() {
        let table = [
            (State::Begun, &[State::Accepted, State::Rejected, State::Unknown, State::Waiting][..]),
            (State::Waiting, &[State::Accepted, State::Begun, State::Rejected, State::Unknown][..]),
            (State::Unknown, &[State::Accepted, State::Begun, State::Rejected][..]),
            (State::Rejected, &[State::Begun][..]),
            (State::Accepted, &[State::Undone][..]),
            (State::Undone, &[][..]),
        ];
        assert_eq!(table.len(), State::ALL.len());
        for (from, legal) in table {
            for next in State::ALL {
                assert_eq!(from.may_become(*next), legal.contains(next), "{from} -> {next}");
            }
        }
    }

    #[test]
    fn codes_are_one_byte_distinct_and_order_open_states_first() {
        for state in State::ALL {
            assert!((2..128).contains(&state.code()), "0 and 1 take no byte on disk");
            assert_eq!(State::from_code(state.code()), Some(*state));
            assert_eq!(state.is_open(), state.code() <= 4);
        }
        assert_eq!(State::from_code(0), None);
    }

    #[test]
    fn an_entry_in_flight_is_open() {
        assert!(State::ALL.iter().all(|state| state.is_open() || !state.is_in_flight()));
    }
}
