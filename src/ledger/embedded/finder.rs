//! Finds entries by key, digest and undo mark: a log-structured index over SQLite.
//!
//! All three are random to a B-tree, so that an index on them dirties one page per row once it is
//! larger than the cache, and each commit has to write those pages: with a million entries that
//! costs more than everything else in a begin. Here a row's hashes are first kept in memory, and
//! merged into the table `finder` in the order of their hashes, many rows to a page.
//!
//! - `fresh` takes the newest. At [`FRESH`] pairs it is sorted into `frozen`, which is merged slice
//!   by slice in the transactions of later batches; only then `meta.indexed_to` advances.
//! - After a crash the pairs above `indexed_to` are read again from the entries themselves, at most
//!   about twice [`FRESH`] of them. Merging twice does no harm.
//! - A Bloom filter over the table's hashes answers most lookups of what was never there without a
//!   read. It is built while nothing else is
//!   to do and while batches go by, and until it is complete it says "perhaps" to all.
//! - A hash is 8 bytes of a keyed SHA-256, so nobody can make rows collide; whoever looks still
//!   compares the whole value.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use rusqlite::Connection;

use super::known::{Known, Ready};

/// How many pairs are collected before they are merged. With `frozen` about 10 MiB when it is full,
/// and then some thirteen pairs to a page of a table of a million entries.
const FRESH: usize = 229_376;

/// How many pairs one slice merges: enough that neighbours share pages, few enough that a batch
/// does not wait for it.
const SLICE: usize = 256;

/// Pairs merged for so many added, while there are frozen ones: more, so that `frozen` is empty before
/// `fresh` is full; not many more, for a merge is what calls wait for most.
const PACE: (usize, usize) = (5, 4);

/// Rows in one statement of a slice.
const ROWS: usize = 8;

/// See [`ROWS`].
const INSERT_ROWS: &str = "INSERT OR IGNORE INTO finder (hash, entry) VALUES \
    (?1, ?2), (?3, ?4), (?5, ?6), (?7, ?8), (?9, ?10), (?11, ?12), (?13, ?14), (?15, ?16)";

/// How many rows of the table a batch adds to a filter that is not complete.
const FILTERED: usize = 2_048;

/// The part of the index that is in memory.
#[derive(Debug)]
pub(super) struct Index {
    fresh: Fresh,
    /// What was collected and is being sorted, which takes too long to keep anybody waiting.
    full: Arc<Fresh>,
    /// Sorted; merged from its end.
    frozen: Vec<(i64, i64)>,
    filter: Filter,
}

impl Index {
    /// An empty one, before a table of about `rows` rows.
    pub(super) fn new(rows: usize) -> Self {
        let filter = Filter::new(rows.max(Filter::LEAST));
        let full = Arc::default();
        Self { fresh: Fresh::default(), full, frozen: Vec::new(), filter }
    }

    /// Whether an entry may have this hash.
    pub(super) fn may_hold(&self, hash: i64) -> bool {
        self.filter.may_hold(hash) || self.newest_first(hash).next().is_some()
    }

    fn newest_first(&self, hash: i64) -> impl Iterator<Item = i64> {
        let newest = self.fresh.newest_first(hash);
        newest.chain(self.full.newest_first(hash)).chain(self.frozen(hash))
    }

    fn frozen(&self, hash: i64) -> impl Iterator<Item = i64> {
        let end = self.frozen.partition_point(|pair| pair.0 <= hash);
        let pairs = self.frozen.get(..end).unwrap_or_default().iter().rev();
        pairs.take_while(move |pair| pair.0 == hash).map(|pair| pair.1)
    }
}

/// The index: the part in memory, which its handles see, and how far the table goes.
#[derive(Debug)]
pub(super) struct Finder {
    known: Arc<Known>,
    /// Entries up to here are in the table or frozen.
    frozen_to: i64,
    /// How many pairs are collected.
    room: usize,
    /// Pairs that the pace owes, [`PACE`]`.1` times.
    owed: usize,
    /// Frozen pairs that are merged.
    merged: i64,
    is_merging: bool,
}

impl Finder {
    /// An index that has merged all entries up to the number `indexed_to`.
    pub(super) fn new(known: Arc<Known>, indexed_to: i64) -> Self {
        Self { known, frozen_to: indexed_to, room: FRESH, merged: 0, owed: 0, is_merging: false }
    }

    /// Adds a pair, inside the transaction that writes the entry.
    pub(super) fn add(&mut self, conn: &Connection, hash: i64, entry: i64) -> rusqlite::Result<()> {
        if entry <= self.frozen_to {
            // Nobody reads entries up to there again after a crash: into the table at once.
            return self.insert(conn, hash, entry);
        }
        self.known.memory().index.fresh.add(hash, entry);
        self.owed += PACE.0;
        Ok(())
    }

    /// Adds a pair that the entry's own row does not show, so that a crash would lose it.
    pub(super) fn add_now(&self, conn: &Connection, hash: i64, entry: i64) -> rusqlite::Result<()> {
        self.insert(conn, hash, entry)
    }

    /// Takes a pair out, inside a transaction. One that is frozen stays until it is merged; whoever
    /// looks compares the entry anyway.
    pub(super) fn remove(&self, conn: &Connection, hash: i64, entry: i64) -> rusqlite::Result<()> {
        let may_be_there = {
            let mut memory = self.known.memory();
            memory.index.fresh.remove(hash, entry);
            memory.index.filter.may_hold(hash)
        };
        if may_be_there {
            conn.prepare_cached("DELETE FROM finder WHERE hash = ?1 AND entry = ?2")?
                .execute((hash, entry))?;
        }
        Ok(())
    }

    /// The first entry with this hash, newest first, that `check` takes.
    pub(super) fn find<T>(
        &self,
        conn: &Connection,
        hash: i64,
        mut check: impl FnMut(i64) -> rusqlite::Result<Option<T>>,
    ) -> rusqlite::Result<Option<T>> {
        let (in_memory, may_be_merged) = {
            let memory = self.known.memory();
            let in_memory: Vec<i64> = memory.index.newest_first(hash).collect();
            (in_memory, memory.index.filter.may_hold(hash))
        };
        let mut in_memory = in_memory.into_iter().peekable();
        if !may_be_merged {
            for entry in in_memory {
                if let Some(found) = check(entry)? {
                    return Ok(Some(found));
                }
            }
            return Ok(None);
        }
        // The table holds older entries than memory does, but for those that `add` puts there.
        let mut statement =
            conn.prepare_cached("SELECT entry FROM finder WHERE hash = ?1 ORDER BY entry DESC")?;
        let mut rows = statement.query([hash])?;
        let mut merged: Option<i64> = rows.next()?.map(|row| row.get(0)).transpose()?;
        loop {
            let Some(entry) = in_memory.peek().copied().max(merged) else {
                return Ok(None);
            };
            // After a crash it may be in both.
            in_memory.next_if_eq(&entry);
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
        self.build(conn)?;
        self.freeze(newest);
        let Some(slice) = self.slice() else { return Ok(()) };
        let mut insert_rows = conn.prepare_cached(INSERT_ROWS)?;
        let (chunks, rest) = slice.as_chunks::<ROWS>();
        for rows in chunks {
            insert_rows.execute(rusqlite::params_from_iter(
                rows.iter().flat_map(|(hash, entry)| [hash, entry]),
            ))?;
        }
        for (hash, entry) in rest {
            insert(conn, *hash, *entry)?;
        }
        self.merged += i64::try_from(slice.len()).unwrap_or(0);
        let is_merged = {
            let mut memory = self.known.memory();
            let is_merged = memory.index.frozen.is_empty();
            if is_merged {
                memory.index.frozen = Vec::new();
            }
            is_merged
        };
        if is_merged {
            conn.prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'indexed_to'")?
                .execute([self.frozen_to])?;
            conn.prepare_cached("UPDATE meta SET value = value + ?1 WHERE name = 'indexed'")?
                .execute([std::mem::take(&mut self.merged)])?;
            self.is_merging = false;
        }
        Ok(())
    }

    /// Sorts what was collected, once it is enough and what was collected before it is merged.
    fn freeze(&mut self, newest: i64) {
        let full = {
            let mut memory = self.known.memory();
            let index = &mut memory.index;
            if !index.frozen.is_empty() || index.fresh.len() < self.room {
                return;
            }
            index.full = Arc::new(index.fresh.take());
            Arc::clone(&index.full)
        };
        let mut frozen = full.pairs();
        frozen.sort_unstable();
        let mut memory = self.known.memory();
        memory.index.frozen = frozen;
        memory.index.full = Arc::default();
        self.frozen_to = newest;
        self.owed = 0;
        self.is_merging = true;
    }

    /// Takes out what is merged now. The filter has it at once, so that nobody misses it meanwhile.
    fn slice(&mut self) -> Option<Vec<(i64, i64)>> {
        if !self.is_merging || self.owed < SLICE * PACE.1 {
            return None;
        }
        let owed = (std::mem::take(&mut self.owed) / PACE.1).next_multiple_of(ROWS);
        let mut memory = self.known.memory();
        let index = &mut memory.index;
        let slice = index.frozen.split_off(index.frozen.len().saturating_sub(owed));
        for (hash, _) in &slice {
            index.filter.add(*hash);
        }
        Some(slice)
    }

    /// Whether some of the filter is still to be built.
    pub(super) fn is_building(&self) -> bool {
        self.known.memory().index.filter.cursor.is_some()
    }

    /// Builds some of the filter.
    pub(super) fn build(&self, conn: &Connection) -> rusqlite::Result<()> {
        let cursor = self.known.memory().index.filter.cursor;
        let Some(cursor) = cursor else { return Ok(()) };
        let mut statement =
            conn.prepare_cached("SELECT hash FROM finder WHERE hash >= ?1 ORDER BY hash LIMIT ?2")?;
        let limit = i64::try_from(FILTERED).unwrap_or(i64::MAX);
        let hashes: Vec<i64> = statement
            .query_map([cursor, limit], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        self.known.memory().index.filter.build(cursor, &hashes);
        Ok(())
    }

    fn insert(&self, conn: &Connection, hash: i64, entry: i64) -> rusqlite::Result<()> {
        self.known.memory().index.filter.add(hash);
        insert(conn, hash, entry)
    }
}

fn insert(conn: &Connection, hash: i64, entry: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR IGNORE INTO finder (hash, entry) VALUES (?1, ?2)")?
        .execute((hash, entry))?;
    Ok(())
}

/// The newest pairs: one entry for most hashes, and the older ones of the few that have more.
#[derive(Debug, Default)]
struct Fresh {
    newest: HashMap<i64, i64, BuildHasherDefault<Ready>>,
    older: BTreeSet<(i64, i64)>,
}

impl Fresh {
    fn len(&self) -> usize {
        self.newest.len() + self.older.len()
    }

    fn add(&mut self, hash: i64, entry: i64) {
        let newest = self.newest.entry(hash).or_insert(entry);
        if *newest == entry {
            return;
        }
        let older = entry.min(*newest);
        *newest = entry.max(*newest);
        self.older.insert((hash, older));
    }

    fn remove(&mut self, hash: i64, entry: i64) {
        if self.older.remove(&(hash, entry)) || self.newest.get(&hash) != Some(&entry) {
            return;
        }
        let next = self.older(hash).next();
        match next {
            Some(next) => {
                self.older.remove(&(hash, next));
                self.newest.insert(hash, next);
            }
            None => {
                self.newest.remove(&hash);
            }
        }
    }

    fn newest_first(&self, hash: i64) -> impl Iterator<Item = i64> {
        let newest = self.newest.get(&hash).copied();
        // Most hashes have no older entry, and need no second search.
        let older = newest.filter(|_| !self.older.is_empty()).map(|_| self.older(hash));
        newest.into_iter().chain(older.into_iter().flatten())
    }

    fn older(&self, hash: i64) -> impl Iterator<Item = i64> {
        self.older.range((hash, i64::MIN)..=(hash, i64::MAX)).rev().map(|pair| pair.1)
    }

    /// Leaves an empty one with as much room.
    fn take(&mut self) -> Self {
        let room = self.newest.capacity();
        let empty = HashMap::with_capacity_and_hasher(room, BuildHasherDefault::default());
        std::mem::replace(self, Self { newest: empty, older: BTreeSet::new() })
    }

    fn pairs(&self) -> Vec<(i64, i64)> {
        let newest = self.newest.iter().map(|(hash, entry)| (*hash, *entry));
        newest.chain(self.older.iter().copied()).collect()
    }
}

/// A Bloom filter over the table's hashes: 8 bits to a row, so that about one in fifty lookups of
/// what is not there reads the table for nothing.
#[derive(Debug)]
struct Filter {
    bits: Vec<u64>,
    rows: usize,
    /// Where its building stands; `None`: it is complete.
    cursor: Option<i64>,
}

impl Filter {
    /// Rows that the smallest one has room for.
    const LEAST: usize = 65_536;

    /// Bits set for a row.
    const PROBES: u64 = 5;

    fn new(room: usize) -> Self {
        Self { bits: vec![0; room.next_power_of_two() / 8], rows: 0, cursor: Some(i64::MIN) }
    }

    fn may_hold(&self, hash: i64) -> bool {
        self.cursor.is_some()
            || self
                .probes(hash)
                .all(|(word, bit)| self.bits.get(word).is_some_and(|word| word & bit != 0))
    }

    fn add(&mut self, hash: i64) {
        for (word, bit) in self.probes(hash) {
            if let Some(word) = self.bits.get_mut(word) {
                *word |= bit;
            }
        }
        self.rows += 1;
        if self.rows > self.bits.len() * 8 {
            *self = Self::new(self.bits.len() * 16);
        }
    }

    /// Adds the table's next rows, from `cursor` on.
    fn build(&mut self, cursor: i64, hashes: &[i64]) {
        let bytes = self.bits.len();
        for hash in hashes {
            self.add(*hash);
            if self.bits.len() != bytes {
                // It was too small, and starts anew.
                return;
            }
        }
        self.cursor = match hashes.last() {
            Some(last) if hashes.len() == FILTERED && *last > cursor => Some(*last),
            // One hash fills the slice: go past it.
            Some(last) if hashes.len() == FILTERED => last.checked_add(1),
            Some(_) | None => None,
        };
    }

    fn probes(&self, hash: i64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let bits = u64::try_from(self.bits.len()).unwrap_or(0) * 64;
        let hash = hash.cast_unsigned();
        let step = (hash >> 32) | 1;
        (0..Self::PROBES).map(move |probe| {
            let bit = hash.wrapping_add(probe.wrapping_mul(step)) & bits.wrapping_sub(1);
            (usize::try_from(bit / 64).unwrap_or(0), 1 << (bit % 64))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("schema.sql")).unwrap();
        conn.execute("INSERT INTO meta VALUES ('indexed_to', 0), ('indexed', 0)", []).unwrap();
        conn
    }

    fn finder(indexed_to: i64) -> Finder {
        Finder::new(Arc::new(Known::new([7; 32])), indexed_to)
    }

    /// Hashes as spread as real ones are.
    fn spread(number: i64) -> i64 {
        number.wrapping_mul(0x5851_f42d_4c95_7f2d)
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
        let mut finder = finder(0);
        finder.room = 4_000;
        let pairs = 11_500;
        for entry in 1..=pairs {
            finder.add(&conn, spread(entry % 100), entry).unwrap();
            finder.merge(&conn, entry).unwrap();
            if entry % 793 == 0 || entry == pairs {
                let expected: Vec<i64> = (1..=entry).rev().filter(|n| n % 100 == 42).collect();
                assert_eq!(all(&finder, &conn, spread(42)), expected);
            }
        }
        let indexed: i64 = conn
            .query_row("SELECT value FROM meta WHERE name = 'indexed_to'", [], |row| row.get(0))
            .unwrap();
        assert_eq!(indexed, 8_000);
    }

    #[test]
    fn a_pair_of_an_old_entry_is_in_the_table_at_once() {
        let conn = table();
        let mut old = finder(10);

        old.add(&conn, 5, 9).unwrap();

        assert_eq!(all(&finder(10), &conn, 5), [9]);
        old.remove(&conn, 5, 9).unwrap();
        assert!(all(&old, &conn, 5).is_empty());
    }

    #[test]
    fn a_filter_never_denies_a_row_and_is_built_anew_for_a_table_that_outgrew_it() {
        let conn = table();
        let rows = i64::try_from(Filter::LEAST).unwrap() * 3;
        let mut insert = conn.prepare("INSERT INTO finder VALUES (?1, ?2)").unwrap();
        conn.execute_batch("BEGIN").unwrap();
        for row in 0..rows {
            // Some hashes have many rows, and one fills more than a slice.
            insert.execute([if row < 5_000 { 7 } else { spread(row / 3) }, row]).unwrap();
        }
        let mut filter = Filter::new(Filter::LEAST);
        assert!(filter.may_hold(1), "until it is complete");

        let finder = finder(0);
        std::mem::swap(&mut finder.known.memory().index.filter, &mut filter);
        while finder.is_building() {
            finder.build(&conn).unwrap();
        }
        std::mem::swap(&mut finder.known.memory().index.filter, &mut filter);

        assert!(filter.may_hold(7));
        assert!((5_000..rows).all(|row| filter.may_hold(spread(row / 3))));
        let misses = (rows..2 * rows).filter(|row| filter.may_hold(spread(*row))).count();
        assert!(misses * 10 < usize::try_from(rows).unwrap(), "{misses} of {rows}");
        filter.add(spread(-5));
        assert!(filter.may_hold(spread(-5)));
    }

    #[test]
    fn a_pair_that_is_taken_out_is_not_found_again() {
        let conn = table();
        let mut finder = finder(0);
        for entry in [3, 1, 2, 2] {
            finder.add(&conn, 5, entry).unwrap();
        }

        assert_eq!(all(&finder, &conn, 5), [3, 2, 1]);
        finder.remove(&conn, 5, 3).unwrap();
        assert_eq!(all(&finder, &conn, 5), [2, 1]);
        finder.remove(&conn, 5, 1).unwrap();
        assert_eq!(all(&finder, &conn, 5), [2]);
        finder.remove(&conn, 5, 2).unwrap();
        assert!(all(&finder, &conn, 5).is_empty());
    }
}
