//! Reading a ledger without its writer: for commands, for metrics, for the reconciler.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use rusqlite::Connection;

use crate::contract::key::EntryId;
use crate::ledger::entry::State;
use crate::ledger::later::Course;
use crate::ledger::{
    Broken, Counts, Filter, Head, Keys, LedgerError, Obstacle, Pending, Planned, Reason, Record,
    Shown, Tally, Verified,
};

use super::super::desk::command::Failure;
use super::{OpenError, file, later, rows, verify};

/// A ledger opened for reading, beside a running sidecar or without one. Sees what is on disk, and
/// never keeps the writer waiting.
#[derive(Debug)]
pub(in crate::ledger) struct FileReader {
    conn: Connection,
}

impl FileReader {
    /// Opens the ledger at `path`; makes nothing.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]; never [`OpenError::Locked`].
    pub(in crate::ledger) fn open(path: &Path) -> Result<Self, OpenError> {
        Ok(Self { conn: file::open_read_only(path)? })
    }

    /// The newest time in the history of the ledger at `path`, in milliseconds since 1970, or 0;
    /// of an older version too, before its writer brings it up to date.
    ///
    /// # Errors
    ///
    /// [`OpenError::Sql`] if there is none or it does not read, [`OpenError::Foreign`].
    pub(in crate::ledger) fn newest_ms(path: &Path) -> Result<i64, OpenError> {
        file::newest_ms(path)
    }

    /// The entries that `filter` takes, newest first. A `before` that is not there takes none.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the file does not read.
    pub(in crate::ledger) fn list(&self, filter: &Filter) -> Result<Vec<Record>, LedgerError> {
        rows::list(&self.conn, filter).map_err(unreadable)
    }

    /// One entry and its history; `None` if it is not there.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the file does not read.
    pub(in crate::ledger) fn show(&self, entry: EntryId) -> Result<Option<Shown>, LedgerError> {
        let read = || {
            let Some(record) = rows::record_of(&self.conn, entry)? else {
                return Ok(None);
            };
            let history = rows::history(&self.conn, record.prior.version)?;
            let before = rows::before(&self.conn, entry)?;
            Ok(Some(Shown { record, history, before }))
        };
        read().map_err(unreadable)
    }

    /// The unknown entries, oldest first, at most `limit`.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the file does not read.
    pub(in crate::ledger) fn unknowns(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        rows::unknowns(&self.conn, limit).map_err(unreadable)
    }

    /// The entries that are due at `now_ms`, the one due longest first, at most `limit`.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the file does not read.
    pub(in crate::ledger) fn due(
        &self,
        now_ms: i64,
        limit: usize,
    ) -> Result<Vec<Pending>, LedgerError> {
        rows::due(&self.conn, now_ms, limit).map_err(unreadable)
    }

    /// An entry that is unknown or accepted, as [`ReadOnly::due`] gives it.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the file does not read.
    pub(in crate::ledger) fn pending(
        &self,
        entry: EntryId,
    ) -> Result<Option<Pending>, LedgerError> {
        rows::pending_of(&self.conn, entry).map_err(unreadable)
    }

    /// See [`Ledger::superseded`](crate::ledger::Ledger::superseded).
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the file does not read.
    pub(super) fn superseded(
        &self,
        entry: EntryId,
        beside: &HashSet<EntryId>,
    ) -> Result<Option<Obstacle>, LedgerError> {
        let read = || later::Reading::begin(&self.conn)?.superseded(entry, beside);
        read().map_err(unreadable)
    }

    /// See [`Ledger::obstacles`](crate::ledger::Ledger::obstacles).
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the file does not read.
    pub(super) fn obstacles(
        &self,
        plan: &[Planned],
    ) -> Result<HashMap<EntryId, Obstacle>, LedgerError> {
        let read = || {
            let reading = later::Reading::begin(&self.conn)?;
            let mut course = Course::of(plan);
            course.go(plan, |entry, beside| reading.superseded(entry, beside))?;
            Ok(course.end())
        };
        read().map_err(unreadable)
    }

    /// Follows the chain over the history; looks for `heads` on the way.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the file does not read.
    pub(in crate::ledger) fn verify(
        &self,
        keys: &Keys,
        heads: &[Head],
    ) -> Result<Result<Verified, Broken>, LedgerError> {
        verify::whole(&self.conn, keys, heads).map_err(unreadable)
    }

    /// All that does not fit and that nobody acknowledged; see
    /// [`ReadOnly::breaks`](crate::ledger::ReadOnly::breaks).
    pub(in crate::ledger) fn breaks(
        &self,
        keys: &Keys,
    ) -> Result<Result<Vec<Broken>, Broken>, LedgerError> {
        verify::breaks(&self.conn, keys).map_err(unreadable)
    }

    /// Open entries by state.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the file does not read.
    pub(in crate::ledger) fn counts(&self) -> Result<Counts, LedgerError> {
        self.read_counts().map_err(unreadable)
    }

    fn read_counts(&self) -> rusqlite::Result<Counts> {
        let mut counts = Counts::default();
        let mut statement = self.conn.prepare_cached(
            "SELECT state, count(*), min(began_ms) FROM entry WHERE state <= 4 GROUP BY state",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let count = row.get::<_, i64>(1)?;
            let tally =
                Tally { count: count.try_into().unwrap_or(0), oldest_ms: Some(row.get(2)?) };
            match rows::state(row, 0)? {
                State::Begun => counts.begun = tally,
                State::Unknown => counts.unknown = tally,
                State::Waiting => counts.waiting = tally,
                State::Accepted | State::Rejected | State::Undone => {}
            }
        }
        Ok(counts)
    }
}

fn unreadable(error: rusqlite::Error) -> LedgerError {
    let failure = Failure::of(&error);
    LedgerError::Unavailable(failure.map_or(Reason::Failed, |failure| failure.reason))
}
