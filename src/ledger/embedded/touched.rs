//! The index of entries by what they change: sorted runs over SQLite, written many pairs at once.
//!
//! What an entry changes is random to a B-tree. An index by it in which each begin puts a row
//! dirties a page of its own for each, in the log of every commit (see [`finder`](super::finder)),
//! and is asked as seldom as an undo. So it is written in order instead, as a log-structured tree:
//!
//! - An entry has its things in its own row, where the newest [`BATCH`] of them are read. That many
//!   at once become a *run*: pairs of thing and entry, sorted, [`BLOCK`] to a row of `touched`.
//!   `meta.filed_to` says up to where entries are in runs.
//! - A pair that no entry's own row holds (things of an earlier attempt, or that only the answer
//!   told) is a row of its own in run 0, until the next run takes it in.
//! - [`RUNS`] runs of a level are merged into one of the next. That goes on slice by slice with
//!   each filing, at the pace of what is filed; a slice moves what it merges, in one transaction,
//!   so that a pair stands in one run or in two and never in none.
//!
//! To find a thing is a seek in each run: below [`RUNS`] times two for each level, of which a
//! ledger of a million entries has five. A pair is written once for each level, and shares its page
//! with some two hundred.
//!
//! [`later`](super::later) reads it, on another connection.

use std::collections::BTreeSet;

use rusqlite::Connection;
use rusqlite::types::Type;

use super::super::later::of_filed;

/// How many begins, of one thing each, are filed in one go: few enough that to read their entries
/// takes well below a millisecond, and so many that they share their pages.
const BATCH: usize = 512;

/// How many runs of a level are merged into one: with more a thing is sought in more of them, with
/// fewer each pair is written more often.
const RUNS: usize = 8;

/// Pairs in a row. Four such rows fill a page, as many as a table by its key takes without
/// overflow.
const BLOCK: usize = 56;

/// Rows of each run that a slice reads.
const AHEAD: i64 = 2;

/// Pairs merged on each level for so many filed: more, so that a merge is over before the next is
/// due.
const PACE: (usize, usize) = (5, 4);

/// A thing's keyed hash, and the number of an entry that changes it.
pub(super) type Pair = (i64, i64);

const INSERT: &str =
    "INSERT OR IGNORE INTO touched (run, thing, entry, pairs) VALUES (?1, ?2, ?3, ?4)";

const NEXT: &str = "SELECT pairs FROM touched WHERE run = ?1 ORDER BY thing, entry LIMIT ?2";

const LAST: &str =
    "SELECT pairs FROM touched WHERE run = ?1 ORDER BY thing DESC, entry DESC LIMIT 1";

/// The writer's side of the index.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Entries up to here are in runs.
    filed_to: i64,
    /// How many begins are not, each by its things.
    unfiled: usize,
    /// How many are filed in one go.
    batch: usize,
    runs: Vec<Run>,
}

/// A run, as the table `run` has it.
#[derive(Clone, Copy, Debug)]
struct Run {
    number: i64,
    level: i64,
    /// The run that it is being merged into.
    target: Option<i64>,
}

impl Touched {
    /// Reads how far it goes.
    pub(super) fn read(conn: &Connection) -> rusqlite::Result<Self> {
        let one = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let filed_to = one("SELECT value FROM meta WHERE name = 'filed_to'")?;
        let unfiled = one("SELECT count(*) FROM entry \
             WHERE number > (SELECT value FROM meta WHERE name = 'filed_to')")?;
        let runs = conn
            .prepare("SELECT number, level, target FROM run ORDER BY number")?
            .query_map([], |row| {
                Ok(Run { number: row.get(0)?, level: row.get(1)?, target: row.get(2)? })
            })?
            .collect::<rusqlite::Result<_>>()?;
        Ok(Self { filed_to, unfiled: usize::try_from(unfiled).unwrap_or(0), batch: BATCH, runs })
    }

    /// Has a new entry, whose row holds its things, found by them: it and those that are not filed
    /// yet, once they are enough. `newest` is the highest entry number in use.
    pub(super) fn begun(
        &mut self,
        conn: &Connection,
        number: i64,
        things: Option<&[u8]>,
        newest: i64,
    ) -> rusqlite::Result<()> {
        if number <= self.filed_to {
            // Nobody reads entries up to there again.
            return things.map_or(Ok(()), |things| add_alone(conn, number, of_filed(things)));
        }
        // One that changes many things counts as so many, or all at once would take long; one of
        // which nobody knows what it changes counts too, for each reading passes over it.
        let count = things.map_or(0, |things| of_filed::<8>(things).count());
        self.unfiled = self.unfiled.saturating_add(count.max(1));
        if self.unfiled < self.batch { Ok(()) } else { self.file(conn, newest) }
    }

    /// Has an entry found by the things of a further attempt, before they take the place of those
    /// in its row.
    pub(super) fn begins_again(
        &self,
        conn: &Connection,
        number: i64,
        things: Option<&[u8]>,
    ) -> rusqlite::Result<()> {
        let before: Option<Vec<u8>> = conn
            .prepare_cached("SELECT things FROM entry WHERE number = ?1")?
            .query_row([number], |row| row.get(0))?;
        let before = before.as_deref().unwrap_or_default();
        let things = things.unwrap_or_default();
        // What will be filed from the row is what stands there then.
        let (lost, kept) = if number > self.filed_to { (before, things) } else { (things, before) };
        let lost = of_filed(lost).filter(|thing| of_filed(kept).all(|other| other != *thing));
        add_alone(conn, number, lost)
    }

    /// Files what began up to the number `newest` and is not filed yet, and merges as much.
    fn file(&mut self, conn: &Connection, newest: i64) -> rusqlite::Result<()> {
        let mut pairs = unfiled(conn, self.filed_to)?;
        pairs.extend(alone(conn)?);
        let filed = pairs.len();
        conn.prepare_cached("DELETE FROM touched WHERE run = 0")?.execute([])?;
        self.add(conn, pairs)?;
        conn.prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'filed_to'")?
            .execute([newest])?;
        self.filed_to = newest;
        self.unfiled = 0;
        self.merge(conn, filed)
    }

    /// Writes pairs as a run.
    fn add(&mut self, conn: &Connection, mut pairs: Vec<Pair>) -> rusqlite::Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut level = 0;
        let mut size = self.batch.max(1);
        while size.saturating_mul(RUNS) <= pairs.len() {
            size = size.saturating_mul(RUNS);
            level += 1;
        }
        let run = self.make(conn, level)?;
        append(conn, run, &pairs)
    }

    fn make(&mut self, conn: &Connection, level: i64) -> rusqlite::Result<i64> {
        let number = self.runs.iter().map(|run| run.number).max().unwrap_or(0).saturating_add(1);
        conn.prepare_cached("INSERT INTO run (number, level) VALUES (?1, ?2)")?
            .execute((number, level))?;
        self.runs.push(Run { number, level, target: None });
        Ok(number)
    }

    /// Starts the merges that are due, and goes on with all for as many pairs as `filed` asks for.
    fn merge(&mut self, conn: &Connection, filed: usize) -> rusqlite::Result<()> {
        while let Some((level, sources)) = self.due() {
            let target = self.make(conn, level.saturating_add(1))?;
            for source in sources {
                conn.prepare_cached("UPDATE run SET target = ?2 WHERE number = ?1")?
                    .execute((source, target))?;
                let mut runs = self.runs.iter_mut();
                if let Some(run) = runs.find(|run| run.number == source) {
                    run.target = Some(target);
                }
            }
        }
        let targets: BTreeSet<i64> = self.runs.iter().filter_map(|run| run.target).collect();
        for target in targets {
            let mut owed = filed.saturating_mul(PACE.0) / PACE.1;
            while owed > 0 {
                match self.slice(conn, target)? {
                    Some(merged) => owed = owed.saturating_sub(merged.max(1)),
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// A level of which enough runs are there, and those: the oldest.
    fn due(&self) -> Option<(i64, Vec<i64>)> {
        let is_whole = |run: &&Run| {
            run.target.is_none() && self.runs.iter().all(|other| other.target != Some(run.number))
        };
        self.runs.iter().map(|run| run.level).find_map(|level| {
            let whole = self.runs.iter().filter(is_whole).filter(|run| run.level == level);
            let sources: Vec<i64> = whole.take(RUNS).map(|run| run.number).collect();
            (sources.len() == RUNS).then_some((level, sources))
        })
    }

    /// Moves the next pairs of a merge, and says how many; `None`: it is over.
    fn slice(&mut self, conn: &Connection, target: i64) -> rusqlite::Result<Option<usize>> {
        let sources = self.runs.iter().filter(|run| run.target == Some(target));
        let sources: Vec<i64> = sources.map(|run| run.number).collect();
        let merged = conn
            .prepare_cached(LAST)?
            .query_map([target], |row| Ok(last(row.get_ref(0)?.as_blob()?)))?
            .next()
            .transpose()?
            .flatten();
        let mut pairs = Vec::new();
        let mut read: Vec<(i64, Pair, Pair)> = Vec::new();
        // Up to where all is read that the sources have.
        let mut end: Option<Pair> = None;
        for source in sources {
            let mut statement = conn.prepare_cached(NEXT)?;
            let mut rows = statement.query((source, AHEAD))?;
            let mut count = 0;
            let mut newest = None;
            while let Some(row) = rows.next()? {
                let block = row.get_ref(0)?.as_blob()?;
                let (Some(first), Some(final_one)) = (of_block(block).next(), last(block)) else {
                    // What stands behind it would be taken for merged.
                    return Err(rusqlite::Error::InvalidColumnType(0, "pairs".into(), Type::Blob));
                };
                pairs.extend(of_block(block).filter(|pair| Some(*pair) > merged));
                read.push((source, first, final_one));
                newest = Some(final_one);
                count += 1;
            }
            if count == AHEAD {
                end = [end, newest].into_iter().flatten().min();
            }
        }
        if read.is_empty() {
            conn.prepare_cached("DELETE FROM run WHERE target = ?1")?.execute([target])?;
            self.runs.retain(|run| run.target != Some(target));
            return Ok(None);
        }
        pairs.retain(|pair| end.is_none_or(|end| *pair <= end));
        pairs.sort_unstable();
        pairs.dedup();
        append(conn, target, &pairs)?;
        for (source, (thing, entry), last) in read {
            // One that reaches further stays: what of it is merged is passed over.
            if end.is_none_or(|end| last <= end) {
                conn.prepare_cached(
                    "DELETE FROM touched WHERE run = ?1 AND thing = ?2 AND entry = ?3",
                )?
                .execute((source, thing, entry))?;
            }
        }
        Ok(Some(pairs.len()))
    }
}

/// How many pairs of an older version become one run: what can be sorted in memory, 4 MiB.
const MOVED: usize = 262_144;

/// Moves what an older version filed, a row for each entry in the order of entries, into runs.
pub(super) fn move_rows(conn: &Connection) -> rusqlite::Result<()> {
    let mut touched = Touched::read(conn)?;
    let mut statement = conn.prepare("SELECT entry, things FROM touched_4 ORDER BY entry")?;
    let mut rows = statement.query([])?;
    let mut pairs: Vec<Pair> = Vec::new();
    while let Some(row) = rows.next()? {
        let number = row.get(0)?;
        pairs.extend(of_filed(row.get_ref(1)?.as_blob()?).map(|thing| (hash(thing), number)));
        if pairs.len() >= MOVED {
            touched.add(conn, std::mem::take(&mut pairs))?;
        }
    }
    drop(rows);
    drop(statement);
    touched.add(conn, pairs)?;
    conn.execute_batch("DROP TABLE touched_4")
}

/// What began after `filed_to`, by what it changes.
pub(super) fn unfiled(conn: &Connection, filed_to: i64) -> rusqlite::Result<Vec<Pair>> {
    let mut statement = conn.prepare_cached(
        "SELECT number, things FROM entry WHERE number > ?1 AND things IS NOT NULL",
    )?;
    let mut rows = statement.query([filed_to])?;
    let mut pairs = Vec::new();
    while let Some(row) = rows.next()? {
        let number = row.get(0)?;
        pairs.extend(of_filed(row.get_ref(1)?.as_blob()?).map(|thing| (hash(thing), number)));
    }
    Ok(pairs)
}

/// Has an entry found by things that its row does not hold, or will not.
pub(super) fn add_alone(
    conn: &Connection,
    number: i64,
    things: impl Iterator<Item = [u8; 8]>,
) -> rusqlite::Result<()> {
    for thing in things {
        append(conn, 0, &[(hash(thing), number)])?;
    }
    Ok(())
}

fn alone(conn: &Connection) -> rusqlite::Result<Vec<Pair>> {
    conn.prepare_cached("SELECT thing, entry FROM touched WHERE run = 0")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Appends sorted pairs to a run.
fn append(conn: &Connection, run: i64, pairs: &[Pair]) -> rusqlite::Result<()> {
    let mut insert = conn.prepare_cached(INSERT)?;
    for block in pairs.chunks(BLOCK) {
        let Some((thing, entry)) = block.first() else { continue };
        let bytes: Vec<u8> = block
            .iter()
            .flat_map(|(thing, entry)| [thing.to_be_bytes(), entry.to_be_bytes()])
            .flatten()
            .collect();
        insert.execute((run, thing, entry, bytes))?;
    }
    Ok(())
}

/// The pairs of a row.
pub(super) fn of_block(block: &[u8]) -> impl DoubleEndedIterator<Item = Pair> {
    let numbers = block.as_chunks::<8>().0.as_chunks::<2>().0.iter();
    numbers.map(|[thing, entry]| (hash(*thing), i64::from_be_bytes(*entry)))
}

fn last(block: &[u8]) -> Option<Pair> {
    of_block(block).next_back()
}

/// A thing's hash as it is compared.
pub(super) fn hash(thing: [u8; 8]) -> i64 {
    i64::from_be_bytes(thing)
}

#[cfg(test)]
mod tests;
