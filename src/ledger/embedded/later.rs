//! Who else changed what an undo would change, by the [index](super::touched) of things, read
//! beside the writer.
//!
//! A [`Reading`] is one reading transaction: what the writer files meanwhile is neither missed nor
//! seen twice. It reads what is not filed yet once, whatever is asked of it then.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension as _, Transaction};

use super::rows;
use super::touched::{Pair, hash, of_block, unfiled};
use crate::contract::key::EntryId;
use crate::ledger::entry::{Cause, State};
use crate::ledger::later::{Candidate, Subject, obstacle, of_told};
use crate::ledger::{MAX_LATER, Obstacle};

/// The row of a run in which a pair would be, or the one before: where to begin.
pub(super) const START: &str = "SELECT thing, entry FROM touched \
    WHERE run = ?1 AND (thing, entry) <= (?2, ?3) ORDER BY thing DESC, entry DESC LIMIT 1";

pub(super) const ONWARD: &str = "SELECT pairs FROM touched \
    WHERE run = ?1 AND (thing, entry) BETWEEN (?2, ?3) AND (?4, ?5) ORDER BY thing, entry";

pub(super) const BACK: &str = "SELECT pairs FROM touched \
    WHERE run = ?1 AND (thing, entry) <= (?2, ?3) ORDER BY thing DESC, entry DESC";

const SUBJECT: &str = "SELECT e.version, f.things, \
    EXISTS (SELECT 1 FROM image i WHERE i.entry = e.number) \
    FROM entry e JOIN history f ON f.seq = e.finish \
    WHERE e.number = ?1 AND e.state = 5 AND f.undo IS NOT NULL";

const CANDIDATE: &str = "SELECT e.id, e.state, e.attempt, e.finish, e.version, e.cause, \
    CASE WHEN e.state = 7 THEN (SELECT why FROM history WHERE seq = e.version) END \
    FROM entry e WHERE e.number = ?1";

/// Which entries of a thing are looked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Half {
    /// Those that began before this one, newest first.
    Before(i64),
    /// Those that began after this one, oldest first.
    After(i64),
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Reading<'c> {
    conn: Transaction<'c>,
    runs: Vec<i64>,
    /// What is not filed, by thing, oldest first.
    unfiled: HashMap<i64, Vec<i64>>,
    /// Entries that were read: those of a plan are often of one thing.
    read: RefCell<HashMap<i64, Option<Candidate>>>,
}

/// How many entries are kept once they were read; when there are more they are all forgotten.
const KEPT: usize = 16 * MAX_LATER;

impl<'c> Reading<'c> {
    /// Begins to read.
    pub(super) fn begin(conn: &'c Connection) -> rusqlite::Result<Self> {
        let conn = conn.unchecked_transaction()?;
        let filed_to = conn
            .prepare_cached("SELECT value FROM meta WHERE name = 'filed_to'")?
            .query_row([], |row| row.get(0))?;
        let mut by_thing: HashMap<i64, Vec<i64>> = HashMap::new();
        for (thing, number) in unfiled(&conn, filed_to)? {
            by_thing.entry(thing).or_default().push(number);
        }
        let mut runs = vec![0];
        for run in conn.prepare_cached("SELECT number FROM run")?.query_map([], |row| row.get(0))? {
            runs.push(run?);
        }
        Ok(Self { conn, runs, unfiled: by_thing, read: RefCell::default() })
    }

    /// See [`Ledger::superseded`](crate::ledger::Ledger::superseded).
    pub(super) fn superseded(
        &self,
        entry: EntryId,
        beside: &HashSet<EntryId>,
    ) -> rusqlite::Result<Option<Obstacle>> {
        let Some(number) = rows::number_of(&self.conn, entry)? else { return Ok(None) };
        let found: Option<(i64, Option<Vec<u8>>, bool)> = self
            .conn
            .prepare_cached(SUBJECT)?
            .query_row([number], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        let Some((version, told, has_before)) = found else { return Ok(None) };
        let Some(told) = told else { return Ok(Some(Obstacle::Untold)) };
        let things: HashSet<i64> = of_told(&told).map(hash).collect();
        if things.is_empty() {
            return Ok(None);
        }
        let steps = rows::history(&self.conn, version)?;
        let began = steps.iter().rev().find(|step| step.to == State::Begun);
        let Some(began) = began.map(|step| step.seq) else { return Ok(None) };
        let (later, is_cut) = self.candidates(&things, Half::After(number))?;
        let subject = Subject { number, began, has_before, is_cut };
        let earlier = || Ok(self.candidates(&things, Half::Before(number))?.0);
        obstacle(subject, &later, earlier, beside)
    }

    /// The entries that change one of these things, as far as they are looked at, and whether there
    /// are more.
    fn candidates(
        &self,
        things: &HashSet<i64>,
        half: Half,
    ) -> rusqlite::Result<(Vec<Candidate>, bool)> {
        let mut numbers: Vec<i64> = Vec::new();
        for thing in things {
            self.find(*thing, half, &mut numbers)?;
        }
        numbers.sort_unstable();
        numbers.dedup();
        if matches!(half, Half::Before(_)) {
            numbers.reverse();
        }
        let is_cut = numbers.len() >= MAX_LATER;
        let mut candidates = Vec::with_capacity(numbers.len().min(MAX_LATER));
        for number in numbers.into_iter().take(MAX_LATER) {
            candidates.extend(self.candidate(number)?);
        }
        Ok((candidates, is_cut))
    }

    fn candidate(&self, number: i64) -> rusqlite::Result<Option<Candidate>> {
        let mut read = self.read.borrow_mut();
        if let Some(known) = read.get(&number) {
            return Ok(*known);
        }
        if read.len() >= KEPT {
            read.clear();
        }
        let found = candidate(&self.conn, number)?;
        read.insert(number, found);
        Ok(found)
    }

    /// Adds the entries that change a thing, of each run not more than are looked at.
    pub(super) fn find(
        &self,
        thing: i64,
        half: Half,
        numbers: &mut Vec<i64>,
    ) -> rusqlite::Result<()> {
        let new = self.unfiled.get(&thing).into_iter().flatten().copied();
        match half {
            Half::After(number) => {
                numbers.extend(new.filter(|new| *new > number).take(MAX_LATER));
            }
            Half::Before(number) => {
                numbers.extend(new.rev().filter(|new| *new < number).take(MAX_LATER));
            }
        }
        for run in &self.runs {
            match half {
                Half::After(number) => self.onward(*run, (thing, number), numbers)?,
                Half::Before(number) => self.back(*run, (thing, number), numbers)?,
            }
        }
        Ok(())
    }

    fn onward(&self, run: i64, from: Pair, numbers: &mut Vec<i64>) -> rusqlite::Result<()> {
        let (thing, number) = from;
        let start = self
            .conn
            .prepare_cached(START)?
            .query_row((run, thing, number), |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let (first, entry): Pair = start.unwrap_or(from);
        let mut statement = self.conn.prepare_cached(ONWARD)?;
        let mut rows = statement.query((run, first, entry, thing, i64::MAX))?;
        let mut room = MAX_LATER;
        while let Some(row) = rows.next()?
            && room > 0
        {
            for (_, other) in of_block(row.get_ref(0)?.as_blob()?)
                .filter(|pair| pair.0 == thing && pair.1 > number)
                .take(room)
            {
                numbers.push(other);
                room = room.saturating_sub(1);
            }
        }
        Ok(())
    }

    fn back(&self, run: i64, from: Pair, numbers: &mut Vec<i64>) -> rusqlite::Result<()> {
        let (thing, number) = from;
        let mut statement = self.conn.prepare_cached(BACK)?;
        let mut rows = statement.query((run, thing, number))?;
        let mut room = MAX_LATER;
        while let Some(row) = rows.next()? {
            let block = row.get_ref(0)?.as_blob()?;
            for (_, other) in
                of_block(block).rev().filter(|pair| pair.0 == thing && pair.1 < number).take(room)
            {
                numbers.push(other);
                room = room.saturating_sub(1);
            }
            // What stands before is of things that sort before.
            if room == 0 || of_block(block).next().is_none_or(|first| first.0 < thing) {
                break;
            }
        }
        Ok(())
    }
}

fn candidate(conn: &Connection, number: i64) -> rusqlite::Result<Option<Candidate>> {
    conn.prepare_cached(CANDIDATE)?
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
