//! A row of the history as a store hands it over, with the entry that it belongs to.

use super::row::{Attempt, Content, First, Row, Told};
use crate::ledger::entry::{Cause, State};

/// The columns of a [`Line`] in either store, in their order: of `history` as `h`, `entry` as `e` and `image`
/// as `i`. A store adds its own behind them.
macro_rules! line_columns {
    () => {
        "h.seq, h.entry, h.previous, h.at_ms, h.from_state, h.to_state, h.attempt, \
         h.cause, h.who, h.why, h.noted, h.disposition, h.verdict, h.upstream_status, \
         h.undo_mark, h.deadline_ms, h.detail, h.upstream_id, h.undo, h.compensate, \
         h.undo_unavailable, h.status, h.headers, h.body, h.seal, \
         e.id, e.version, e.finish, e.state, e.attempt, e.cause, e.began_ms, e.weak, \
         e.staged, e.principal, e.key, e.ledger_id, e.digest, e.mark, e.operation, \
         e.transport, e.task, e.staged_for, e.repeats, e.key_sent, e.fingerprint, \
         e.policy_revision, e.class, e.kind, e.spent_ms, e.spent_nonce, e.target, e.lookup, \
         i.before, h.things, e.things"
    };
}
pub(in crate::ledger) use line_columns;

/// A row of the history, with the entry that it belongs to, as they stand in the store.
#[derive(Clone, Debug, Default)]
pub(in crate::ledger) struct Line {
    /// Which chain and where in it; `None`: the row has no link.
    pub(in crate::ledger) link: Option<Linked>,
    pub(in crate::ledger) seq: i64,
    pub(in crate::ledger) entry: Vec<u8>,
    pub(in crate::ledger) previous: Option<i64>,
    pub(in crate::ledger) at_ms: i64,
    pub(in crate::ledger) from: Option<i64>,
    pub(in crate::ledger) to: i64,
    pub(in crate::ledger) attempt: u32,
    pub(in crate::ledger) cause: Option<String>,
    pub(in crate::ledger) who: Option<String>,
    pub(in crate::ledger) why: Option<String>,
    pub(in crate::ledger) noted: Option<String>,
    pub(in crate::ledger) disposition: Option<String>,
    pub(in crate::ledger) verdict: Option<String>,
    pub(in crate::ledger) upstream_status: Option<i64>,
    pub(in crate::ledger) undo_mark: Option<Vec<u8>>,
    pub(in crate::ledger) deadline_ms: Option<i64>,
    pub(in crate::ledger) detail: Option<String>,
    pub(in crate::ledger) things: Option<Vec<u8>>,
    pub(in crate::ledger) upstream_id: Option<String>,
    pub(in crate::ledger) undo: Option<String>,
    pub(in crate::ledger) compensate: Option<String>,
    pub(in crate::ledger) undo_unavailable: Option<String>,
    pub(in crate::ledger) status: Option<i64>,
    pub(in crate::ledger) headers: Option<Vec<u8>>,
    pub(in crate::ledger) body: Option<Vec<u8>>,
    /// `None`: it is not there.
    pub(in crate::ledger) holder: Option<Box<Holder>>,
}

/// Where a row stands, and its [`Seal`](super::Seal).
#[derive(Clone, Debug, Default)]
pub(in crate::ledger) struct Linked {
    pub(in crate::ledger) chain: i64,
    pub(in crate::ledger) place: u64,
    pub(in crate::ledger) seal: Vec<u8>,
}

/// The entry of a row.
#[derive(Clone, Debug, Default)]
pub(in crate::ledger) struct Holder {
    pub(in crate::ledger) id: Vec<u8>,
    pub(in crate::ledger) version: i64,
    pub(in crate::ledger) finish: i64,
    pub(in crate::ledger) state: i64,
    pub(in crate::ledger) attempt: u32,
    pub(in crate::ledger) cause: Option<String>,
    pub(in crate::ledger) began_ms: i64,
    pub(in crate::ledger) weak: bool,
    pub(in crate::ledger) staged: bool,
    pub(in crate::ledger) principal: String,
    pub(in crate::ledger) key: Option<String>,
    pub(in crate::ledger) ledger_id: Option<String>,
    pub(in crate::ledger) digest: Vec<u8>,
    pub(in crate::ledger) mark: Vec<u8>,
    pub(in crate::ledger) operation: String,
    pub(in crate::ledger) transport: String,
    pub(in crate::ledger) task: Option<String>,
    pub(in crate::ledger) staged_for: Option<String>,
    pub(in crate::ledger) repeats: Option<Vec<u8>>,
    pub(in crate::ledger) key_sent: bool,
    pub(in crate::ledger) fingerprint: Vec<u8>,
    pub(in crate::ledger) policy_revision: Vec<u8>,
    pub(in crate::ledger) class: String,
    pub(in crate::ledger) kind: String,
    pub(in crate::ledger) spent_ms: Option<i64>,
    pub(in crate::ledger) spent_nonce: Option<Vec<u8>>,
    pub(in crate::ledger) things: Option<Vec<u8>>,
    pub(in crate::ledger) target: String,
    pub(in crate::ledger) lookup: Option<String>,
    pub(in crate::ledger) before: Option<String>,
}

impl Line {
    pub(super) fn row(&self) -> Row<'_> {
        Row {
            seq: self.seq,
            entry: &self.entry,
            previous: self.previous,
            at_ms: self.at_ms,
            from: self.from,
            to: self.to,
            attempt: self.attempt,
            cause: self.cause.as_deref(),
            who: self.who.as_deref(),
            why: self.why.as_deref(),
            noted: self.noted.as_deref(),
            disposition: self.disposition.as_deref(),
            verdict: self.verdict.as_deref(),
            upstream_status: self.upstream_status,
            undo_mark: self.undo_mark.as_deref(),
            deadline_ms: self.deadline_ms,
            detail: self.detail.as_deref(),
            things: self.things.as_deref(),
        }
    }

    pub(in crate::ledger) fn told(&self) -> Told<'_> {
        Told {
            upstream_id: self.upstream_id.as_deref(),
            undo: self.undo.as_deref(),
            compensate: self.compensate.as_deref(),
            undo_unavailable: self.undo_unavailable.as_deref(),
            status: self.status,
            headers: self.headers.as_deref(),
            body: self.body.as_deref(),
        }
    }

    /// What it holds of the call. `None`: the entry holds what a later attempt was made with.
    pub(in crate::ledger) fn held<T>(&self, with: impl FnOnce(Content<'_>) -> T) -> Option<T> {
        let holder = self.holder.as_deref();
        if self.is_begin() {
            let holder = holder.filter(|holder| holder.attempt <= self.attempt)?;
            Some(with(Content::Attempt(&holder.attempt())))
        } else if self.disposition.is_some() {
            Some(with(Content::Told(&self.told())))
        } else {
            Some(with(Content::None))
        }
    }

    /// Takes out all that can be taken out.
    pub(in crate::ledger) fn empty(&mut self) {
        (self.upstream_id, self.undo, self.compensate) = (None, None, None);
        (self.undo_unavailable, self.status) = (None, None);
        (self.headers, self.body) = (None, None);
        if let Some(holder) = &mut self.holder {
            holder.target = String::new();
            (holder.lookup, holder.before) = (None, None);
        }
    }

    /// Whether it begins an attempt.
    pub(in crate::ledger) fn is_begin(&self) -> bool {
        !self.entry.is_empty() && self.to == State::Begun.code()
    }

    /// Whether it says what became of an attempt.
    pub(super) fn is_finish(&self) -> bool {
        self.disposition.is_some() || self.cause.as_deref() == Some(Cause::Crash.as_str())
    }
}

impl Holder {
    pub(super) fn first(&self) -> First<'_> {
        First {
            id: &self.id,
            began_ms: self.began_ms,
            weak: self.weak,
            staged: self.staged,
            principal: &self.principal,
            key: self.key.as_deref(),
            ledger_id: self.ledger_id.as_deref(),
            digest: &self.digest,
            mark: &self.mark,
            operation: &self.operation,
            transport: &self.transport,
            task: self.task.as_deref(),
            staged_for: self.staged_for.as_deref(),
            repeats: self.repeats.as_deref(),
        }
    }

    pub(in crate::ledger) fn attempt(&self) -> Attempt<'_> {
        Attempt {
            key_sent: self.key_sent,
            fingerprint: &self.fingerprint,
            policy_revision: &self.policy_revision,
            class: &self.class,
            kind: &self.kind,
            spent_ms: self.spent_ms,
            spent_nonce: self.spent_nonce.as_deref(),
            things: self.things.as_deref(),
            target: &self.target,
            lookup: self.lookup.as_deref(),
            before: self.before.as_deref(),
        }
    }
}
