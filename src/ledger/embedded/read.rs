//! Reading a ledger without its writer: for commands, for metrics, for the reconciler.

use std::path::Path;

use rusqlite::Connection;

use crate::contract::key::EntryId;
use crate::ledger::entry::State;
use crate::ledger::{Counts, Filter, LedgerError, Reason, Record, Shown, Tally};

use super::super::desk::command::Failure;
use super::{OpenError, file, rows};

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
            Ok(Some(Shown { record, history }))
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
