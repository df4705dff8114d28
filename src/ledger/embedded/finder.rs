//! Finds entries by key, digest and undo mark: a log-structured index over SQLite.
//!
//! All three are random to a B-tree, so that an index on them dirties one page per row once it is
//! larger than the cache, and each commit has to write those pages: with a million entries that
//! costs more than everything else in a begin. Here a row's hashes are first kept in memory, and
//! merged into the table `finder` in the order of their hashes, many rows to a page.
//!
//! - `fresh` takes the newest. At [`FRESH`] pairs it becomes `frozen`, and is merged slice by slice
//!   in the transactions of later batches; only then `meta.indexed_to` advances.
//! - After a crash the pairs above `indexed_to` are read again from the entries themselves, at most
//!   about twice [`FRESH`] of them. Merging twice does no harm.
//! - A hash is 8 bytes of a keyed SHA-256, so nobody can make rows collide; whoever looks still
//!   compares the whole value.

use std::collections::BTreeSet;

use rusqlite::Connection;
use sha2::{Digest as _, Sha256};

use crate::contract::key::Digest;

/// How many pairs are collected before they are merged; about 2 MiB of memory.
const FRESH: usize = 32_768;

/// How many pairs one slice merges: enough that neighbours share pages, few enough that a batch
/// does not wait for it.
const SLICE: usize = 256;

/// Pairs merged for each pair added, while there are frozen ones: well above 1, so that `frozen`
/// is empty long before `fresh` is full.
const PACE: usize = 3;

/// What an entry can be found by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trace<'a> {
    /// The caller's key.
    Key(&'a str),
    /// The request's digest.
    Digest(&'a Digest),
    /// The digest of a request for the draft form.
    StagedDigest(&'a Digest),
    /// The mark of the call that takes it back.
    UndoMark(&'a Digest),
}

/// The index: the part in memory, and how far the table goes.
#[derive(Debug)]
pub(super) struct Finder {
    secret: [u8; 32],
    fresh: BTreeSet<(i64, i64)>,
    frozen: BTreeSet<(i64, i64)>,
    /// Entries up to here are in the table or in `frozen`.
    frozen_to: i64,
    /// Pairs that the pace owes.
    owed: usize,
    is_merging: bool,
}

impl Finder {
    /// An index that has merged all entries up to the number `indexed_to`.
    pub(super) fn new(secret: [u8; 32], indexed_to: i64) -> Self {
        Self {
            secret,
            fresh: BTreeSet::new(),
            frozen: BTreeSet::new(),
            frozen_to: indexed_to,
            owed: 0,
            is_merging: false,
        }
    }

    /// The hash of what a principal's entry can be found by.
    pub(super) fn hash(&self, principal: &str, trace: Trace<'_>) -> i64 {
        let (kind, value): (u8, &[u8]) = match trace {
            Trace::Key(key) => (1, key.as_bytes()),
            Trace::Digest(digest) => (2, &digest.0),
            Trace::StagedDigest(digest) => (3, &digest.0),
            Trace::UndoMark(digest) => (4, &digest.0),
        };
        let length = u64::try_from(principal.len()).unwrap_or(u64::MAX);
        let full = Sha256::new_with_prefix(self.secret)
            .chain_update([kind])
            .chain_update(length.to_be_bytes())
            .chain_update(principal)
            .chain_update(value)
            .finalize();
        i64::from_be_bytes(full.first_chunk().copied().unwrap_or_default())
    }

    /// Adds a pair, inside the transaction that writes the entry.
    pub(super) fn add(&mut self, conn: &Connection, hash: i64, entry: i64) -> rusqlite::Result<()> {
        if entry <= self.frozen_to {
            // Nobody reads entries up to there again after a crash: into the table at once.
            return insert(conn, hash, entry);
        }
        self.fresh.insert((hash, entry));
        self.owed += PACE;
        Ok(())
    }

    /// Adds a pair that the entry's own row does not show, so that a crash would lose it.
    pub(super) fn add_now(&self, conn: &Connection, hash: i64, entry: i64) -> rusqlite::Result<()> {
        insert(conn, hash, entry)
    }

    /// Takes a pair out, inside a transaction.
    pub(super) fn remove(
        &mut self,
        conn: &Connection,
        hash: i64,
        entry: i64,
    ) -> rusqlite::Result<()> {
        self.fresh.remove(&(hash, entry));
        self.frozen.remove(&(hash, entry));
        conn.prepare_cached("DELETE FROM finder WHERE hash = ?1 AND entry = ?2")?
            .execute((hash, entry))?;
        Ok(())
    }

    /// The first entry with this hash, newest first, that `check` takes.
    pub(super) fn find<T>(
        &self,
        conn: &Connection,
        hash: i64,
        mut check: impl FnMut(i64) -> rusqlite::Result<Option<T>>,
    ) -> rusqlite::Result<Option<T>> {
        // Three sources, each newest first. An entry is in one of them, or in two while it moves.
        let range = (hash, i64::MIN)..=(hash, i64::MAX);
        let mut fresh = self.fresh.range(range.clone()).rev().map(|pair| pair.1).peekable();
        let mut frozen = self.frozen.range(range).rev().map(|pair| pair.1).peekable();
        let mut statement =
            conn.prepare_cached("SELECT entry FROM finder WHERE hash = ?1 ORDER BY entry DESC")?;
        let mut rows = statement.query([hash])?;
        let mut merged: Option<i64> = rows.next()?.map(|row| row.get(0)).transpose()?;
        loop {
            let heads = [fresh.peek().copied(), frozen.peek().copied(), merged];
            let Some(entry) = heads.into_iter().flatten().max() else {
                return Ok(None);
            };
            fresh.next_if_eq(&entry);
            frozen.next_if_eq(&entry);
            if merged == Some(entry) {
                merged = rows.next()?.map(|row| row.get(0)).transpose()?;
            }
            if let Some(found) = check(entry)? {
                return Ok(Some(found));
            }
        }
    }

    /// Merges what the pace asks for, inside the batch's transaction. `newest` is the highest entry
    /// number in use.
    pub(super) fn merge(&mut self, conn: &Connection, newest: i64) -> rusqlite::Result<()> {
        if self.frozen.is_empty() && self.fresh.len() >= FRESH {
            self.frozen = std::mem::take(&mut self.fresh);
            self.frozen_to = newest;
            self.owed = 0;
            self.is_merging = true;
        }
        if !self.is_merging || self.owed < SLICE {
            return Ok(());
        }
        let count = self.owed;
        self.owed = 0;
        for _ in 0..count {
            let Some((hash, entry)) = self.frozen.pop_first() else { break };
            insert(conn, hash, entry)?;
        }
        if self.frozen.is_empty() {
            conn.prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'indexed_to'")?
                .execute([self.frozen_to])?;
            self.is_merging = false;
        }
        Ok(())
    }
}

fn insert(conn: &Connection, hash: i64, entry: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR IGNORE INTO finder (hash, entry) VALUES (?1, ?2)")?
        .execute((hash, entry))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("schema.sql")).unwrap();
        conn.execute("INSERT INTO meta VALUES ('indexed_to', 0)", []).unwrap();
        conn
    }

    fn all(finder: &Finder, conn: &Connection, hash: i64) -> Vec<i64> {
        let mut seen = Vec::new();
        let none = finder.find(conn, hash, |entry| {
            seen.push(entry);
            Ok(None::<()>)
        });
        assert_eq!(none.unwrap(), None);
        seen
    }

    #[test]
    fn finds_newest_first_before_while_and_after_merging() {
        let conn = table();
        let mut finder = Finder::new([7; 32], 0);
        let pairs = i64::try_from(FRESH).unwrap() + 20_000;
        for entry in 1..=pairs {
            finder.add(&conn, entry % 100, entry).unwrap();
            finder.merge(&conn, entry).unwrap();
            if entry % 7_919 == 0 {
                let expected: Vec<i64> = (1..=entry).rev().filter(|n| n % 100 == 42).collect();
                assert_eq!(all(&finder, &conn, 42), expected);
            }
        }
        let indexed: i64 = conn
            .query_row("SELECT value FROM meta WHERE name = 'indexed_to'", [], |row| row.get(0))
            .unwrap();
        assert_eq!(indexed, i64::try_from(FRESH).unwrap());
    }

    #[test]
    fn a_pair_of_an_old_entry_is_in_the_table_at_once() {
        let conn = table();
        let mut finder = Finder::new([7; 32], 10);

        finder.add(&conn, 5, 9).unwrap();

        assert_eq!(all(&Finder::new([7; 32], 10), &conn, 5), [9]);
        finder.remove(&conn, 5, 9).unwrap();
        assert!(all(&finder, &conn, 5).is_empty());
    }

    #[test]
    fn hashes_keep_principals_and_kinds_apart() {
        let finder = Finder::new([7; 32], 0);
        let digest = Digest([1; 32]);
        let hashes = [
            finder.hash("a", Trace::Digest(&digest)),
            finder.hash("b", Trace::Digest(&digest)),
            finder.hash("a", Trace::StagedDigest(&digest)),
            finder.hash("a", Trace::UndoMark(&digest)),
            finder.hash("a", Trace::Key("bc")),
            finder.hash("ab", Trace::Key("c")),
            Finder::new([8; 32], 0).hash("a", Trace::Key("bc")),
        ];
        assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), hashes.len());
    }
}
