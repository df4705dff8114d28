//! An entry as a [batch](super::batch) finds it, and the steps that it makes of it.

use tokio_postgres::Row;
use uuid::Uuid;

use super::chained::{Chained, Link, entry_bytes};
use super::rows::{self, code, column, text};
use super::session::{Fault, Param};
use crate::contract::class;
use crate::contract::key::Digest;
use crate::ledger::Noted;
use crate::ledger::chain::row::{Content, Row as ChainRow};
use crate::ledger::entry::State;

/// An entry as a finish, a decision or a rerun needs it.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) id: Uuid,
    pub(super) version: i64,
    pub(super) state: State,
    pub(super) attempt: u32,
    pub(super) principal: String,
    pub(super) digest: Digest,
    pub(super) spent: Option<(i64, Vec<u8>)>,
    pub(super) before: Option<State>,
    pub(super) mark: Digest,
    pub(super) undo_mark: Option<Digest>,
    /// Why it is undone, if it is.
    pub(super) why: Option<String>,
}

impl Subject {
    /// Reads the columns of [`sql::SUBJECTS`](super::sql::SUBJECTS).
    pub(super) fn read(row: &Row) -> Result<Self, Fault> {
        let spent_ms: Option<i64> = column(row, 6)?;
        let nonce: Option<Vec<u8>> = column(row, 7)?;
        Ok(Self {
            id: column(row, 0)?,
            version: column(row, 1)?,
            state: rows::state(row, 2)?,
            attempt: rows::number(row, 3)?,
            principal: column(row, 4)?,
            digest: rows::digest(row, 5)?,
            spent: spent_ms.zip(nonce),
            before: rows::state_or_none(row, 8)?,
            mark: rows::digest(row, 9)?,
            undo_mark: rows::digest_or_none(row, 10)?,
            why: column(row, 11)?,
        })
    }
}

/// A row of the history that finishes no attempt.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) id: Uuid,
    pub(super) previous: i64,
    pub(super) from: State,
    pub(super) to: State,
    pub(super) attempt: u32,
    pub(super) cause: Option<&'static str>,
    pub(super) who: Option<&'a str>,
    pub(super) why: Option<&'a str>,
    pub(super) noted: Option<Noted>,
    pub(super) verdict: Option<class::Verdict>,
    pub(super) detail: Option<&'a str>,
}

impl Step<'_> {
    pub(super) fn of(subject: &Subject, to: State) -> Self {
        Self {
            id: subject.id,
            previous: subject.version,
            from: subject.state,
            to,
            attempt: subject.attempt,
            cause: None,
            who: None,
            why: None,
            noted: None,
            verdict: None,
            detail: None,
        }
    }

    /// Links it; as [`sql::STEP`](super::sql::STEP) takes it.
    pub(super) fn params(
        &self,
        chain: &mut Chained,
        seq: i64,
        at_ms: i64,
        content: Content<'_>,
    ) -> Vec<Param> {
        let (who, why, detail) = (self.who.map(text), self.why.map(text), self.detail.map(text));
        let row = ChainRow {
            seq,
            entry: entry_bytes(&self.id),
            previous: Some(self.previous),
            at_ms,
            from: Some(self.from.code()),
            to: self.to.code(),
            attempt: self.attempt,
            cause: self.cause,
            who: who.as_deref(),
            why: why.as_deref(),
            noted: self.noted.map(Noted::as_str),
            verdict: self.verdict.map(class::Verdict::as_str),
            detail: detail.as_deref(),
            ..ChainRow::default()
        };
        let Link { place, seal } = chain.link(&row, None, content);
        vec![
            Box::new(seq),
            Box::new(self.id),
            Box::new(self.previous),
            Box::new(at_ms),
            Box::new(code(self.from)),
            Box::new(code(self.to)),
            Box::new(attempts(self.attempt)),
            Box::new(self.cause),
            Box::new(who),
            Box::new(why),
            Box::new(self.noted.map(Noted::as_str)),
            Box::new(self.verdict.map(class::Verdict::as_str)),
            Box::new(detail),
            Box::new(chain.number),
            Box::new(place),
            Box::new(seal),
        ]
    }
}

/// A number of attempts as the database has it.
pub(super) fn attempts(attempt: u32) -> i32 {
    i32::try_from(attempt).unwrap_or(i32::MAX)
}
