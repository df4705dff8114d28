//! Who else changed what an undo would change.
//!
//! What an entry changes is random to a B-tree, and an index by it would cost each begin more than all else
//! in it (see [`finder`](super::finder)), while it is asked for as seldom as an undo. So the table
//! `touched` is in the order of entries, and holds nothing but what is compared: some millions of rows are
//! read in a second. [`MAX_READ`] are, each way.
//!
//! Even a row appended would be one more page in the log of each commit. An entry has its things in its own
//! row anyway, so `touched` gets [`BATCH`] of them in one go, and up to where is in `meta.filed_to`; what came
//! after that is read from the entries. Only what an entry's own row does not hold (things of an earlier
//! attempt, or that only the answer told) is put there at once.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension as _, Params};

use super::rows;
use crate::contract::key::EntryId;
use crate::ledger::entry::{Cause, State};
use crate::ledger::later::{Candidate, Subject, obstacle, of_filed, of_told};
use crate::ledger::{MAX_LATER, Obstacle};

/// How many rows of the index are read: less than a tenth of a second.
const MAX_READ: usize = 200_000;

/// How many begins are filed in one go: few enough that to read their entries takes well below a millisecond,
/// and so many that they share their pages.
pub(super) const BATCH: usize = 512;

const LATER: &str = "SELECT entry, things FROM touched WHERE entry > ?1 UNION ALL \
    SELECT number, e.things FROM entry e WHERE e.things IS NOT NULL \
      AND number > max(?1, (SELECT value FROM meta WHERE name = 'filed_to')) \
      AND NOT EXISTS (SELECT 1 FROM touched t WHERE t.entry = e.number) \
    ORDER BY 1 LIMIT ?2";

const EARLIER: &str = "SELECT entry, things FROM touched WHERE entry < ?1 UNION ALL \
    SELECT number, e.things FROM entry e WHERE e.things IS NOT NULL AND number < ?1 \
      AND number > (SELECT value FROM meta WHERE name = 'filed_to') \
      AND NOT EXISTS (SELECT 1 FROM touched t WHERE t.entry = e.number) \
    ORDER BY 1 DESC LIMIT ?2";

/// Files what began up to the number `newest` and is not filed yet.
pub(super) fn file_all(conn: &Connection, newest: i64) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT OR IGNORE INTO touched (entry, things) SELECT number, things FROM entry \
         WHERE things IS NOT NULL AND number <= ?1 \
         AND number > (SELECT value FROM meta WHERE name = 'filed_to')",
    )?
    .execute([newest])?;
    conn.prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'filed_to'")?.execute([newest])?;
    Ok(())
}

/// Files an entry under more things than its row holds, or will hold.
pub(super) fn file(conn: &Connection, number: i64, things: &[u8]) -> rusqlite::Result<()> {
    let one = |sql: &str| {
        let found = conn.prepare_cached(sql)?.query_row([number], |row| row.get(0)).optional()?;
        Ok::<Option<Vec<u8>>, rusqlite::Error>(found.flatten())
    };
    let filed = match one("SELECT things FROM touched WHERE entry = ?1")? {
        Some(filed)
            if of_filed::<8>(things).all(|thing| of_filed(&filed).any(|it| it == thing)) =>
        {
            return Ok(());
        }
        Some(filed) => filed,
        None => one("SELECT things FROM entry WHERE number = ?1")?.unwrap_or_default(),
    };
    let new = of_filed::<8>(things).filter(|thing| of_filed(&filed).all(|there| there != *thing));
    let all = [filed.as_slice(), &new.flatten().collect::<Vec<u8>>()].concat();
    conn.prepare_cached("INSERT OR REPLACE INTO touched (entry, things) VALUES (?1, ?2)")?
        .execute((number, all))?;
    Ok(())
}

/// See [`Ledger::superseded`](crate::ledger::Ledger::superseded).
pub(super) fn superseded(
    conn: &Connection,
    entry: EntryId,
    beside: &HashSet<EntryId>,
) -> rusqlite::Result<Option<Obstacle>> {
    let Some(number) = rows::number_of(conn, entry)? else { return Ok(None) };
    let found: Option<(i64, Option<Vec<u8>>)> = conn
        .prepare_cached(
            "SELECT e.version, f.things FROM entry e JOIN history f ON f.seq = e.finish \
             WHERE e.number = ?1 AND e.state = 5 AND f.undo IS NOT NULL",
        )?
        .query_row([number], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((version, told)) = found else { return Ok(None) };
    let Some(told) = told else { return Ok(Some(Obstacle::Untold)) };
    let things: HashSet<[u8; 8]> = of_told(&told).collect();
    if things.is_empty() {
        return Ok(None);
    }
    let limit = i64::try_from(MAX_READ).unwrap_or(i64::MAX);
    let (later, is_cut) = touching(conn, LATER, (number, limit), &things)?;
    let (earlier, _) = touching(conn, EARLIER, (number, limit), &things)?;
    let mut candidates = Vec::with_capacity(later.len().saturating_add(earlier.len()));
    for number in later.into_iter().rev().chain(earlier) {
        candidates.extend(candidate(conn, number)?);
    }
    let steps = rows::history(conn, version)?;
    let began = steps.iter().rev().find(|step| step.to == State::Begun);
    let Some(began) = began.map(|step| step.seq) else { return Ok(None) };
    let has_before = rows::before(conn, entry)?.is_some();
    Ok(obstacle(Subject { number, began, has_before, is_cut }, &candidates, beside))
}

/// The entries that change one of these things, as far as they are looked at, and whether there are more.
fn touching(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    things: &HashSet<[u8; 8]>,
) -> rusqlite::Result<(Vec<i64>, bool)> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut numbers = Vec::new();
    let mut read: usize = 0;
    while let Some(row) = rows.next()? {
        read = read.saturating_add(1);
        if of_filed(row.get_ref(1)?.as_blob()?).any(|thing| things.contains(&thing)) {
            numbers.push(row.get(0)?);
        }
        if numbers.len() >= MAX_LATER {
            return Ok((numbers, true));
        }
    }
    Ok((numbers, read >= MAX_READ))
}

fn candidate(conn: &Connection, number: i64) -> rusqlite::Result<Option<Candidate>> {
    conn.prepare_cached(
        "SELECT e.id, e.state, e.attempt, e.finish, e.version, e.cause, \
         CASE WHEN e.state = 7 THEN (SELECT why FROM history WHERE seq = e.version) END \
         FROM entry e WHERE e.number = ?1",
    )?
    .query_row([number], |row| {
        let is_settled = row.get_ref(5)?.as_str_or_null()? == Some(Cause::Settled.as_str());
        let why: Option<String> = row.get(6)?;
        Ok(Candidate {
            entry: EntryId::from_bytes(row.get(0)?),
            number,
            state: rows::state(row, 1)?,
            attempt: row.get(2)?,
            finish: row.get(3)?,
            settled: is_settled.then_some(row.get(4)?),
            undone_by: why.and_then(|why| EntryId::parse(&why)),
        })
    })
    .optional()
}
