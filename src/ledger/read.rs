//! Reading a ledger without writing it: for commands, for the admin API.

use crate::contract::key::EntryId;

use super::embedded::FileReader;
use super::postgres::DatabaseReader;
use super::{
    Broken, Counts, Filter, Head, Keys, LedgerError, OpenError, Place, Record, Shown, Verified,
};

/// A ledger opened for reading, beside running sidecars or without one. Sees what is on disk, and
/// never keeps a writer waiting. Its calls block.
#[derive(Debug)]
pub struct ReadOnly {
    store: Store,
}

#[derive(Debug)]
enum Store {
    File(FileReader),
    Postgres(DatabaseReader),
}

impl ReadOnly {
    /// Opens the ledger at a place; makes nothing.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]; never [`OpenError::Locked`].
    pub fn open(place: impl Into<Place>) -> Result<Self, OpenError> {
        let store = match place.into() {
            Place::File(path) => Store::File(FileReader::open(&path)?),
            Place::Postgres(address) => Store::Postgres(DatabaseReader::open(&address)?),
        };
        Ok(Self { store })
    }

    /// The newest time in the history of the ledger at a place, in milliseconds since 1970, or 0; of
    /// an older version too, before a sidecar brings it up to date.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn newest_ms(place: &Place) -> Result<i64, OpenError> {
        match place {
            Place::File(path) => FileReader::newest_ms(path),
            Place::Postgres(address) => DatabaseReader::newest_ms(address),
        }
    }

    /// The entries that `filter` takes, newest first. A `before` that is not there takes none.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the store does not read.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Record>, LedgerError> {
        match &self.store {
            Store::File(reader) => reader.list(filter),
            Store::Postgres(reader) => reader.list(filter),
        }
    }

    /// One entry and its history; `None` if it is not there.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the store does not read.
    pub fn show(&self, entry: EntryId) -> Result<Option<Shown>, LedgerError> {
        match &self.store {
            Store::File(reader) => reader.show(entry),
            Store::Postgres(reader) => reader.show(entry),
        }
    }

    /// The unknown entries, oldest first, at most `limit`.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the store does not read.
    pub fn unknowns(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        match &self.store {
            Store::File(reader) => reader.unknowns(limit),
            Store::Postgres(reader) => reader.unknowns(limit),
        }
    }

    /// Follows the chains over the history from their first row; looks for `heads` on the way.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the store does not read. The answer holds the first row that
    /// does not fit.
    pub fn verify(
        &self,
        keys: &Keys,
        heads: &[Head],
    ) -> Result<Result<Verified, Broken>, LedgerError> {
        match &self.store {
            Store::File(reader) => reader.verify(keys, heads),
            Store::Postgres(reader) => reader.verify(keys, heads),
        }
    }

    /// As [`verify`](Self::verify), all that does not fit and that nobody acknowledged.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the store does not read. The answer holds the row from which on
    /// nothing can be said, because a key is missing or too much does not fit.
    pub fn breaks(&self, keys: &Keys) -> Result<Result<Vec<Broken>, Broken>, LedgerError> {
        match &self.store {
            Store::File(reader) => reader.breaks(keys),
            Store::Postgres(reader) => reader.breaks(keys),
        }
    }

    /// Open entries by state.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Unavailable`] if the store does not read.
    pub fn counts(&self) -> Result<Counts, LedgerError> {
        match &self.store {
            Store::File(reader) => reader.counts(),
            Store::Postgres(reader) => reader.counts(),
        }
    }
}
