//! Who else changed what an undo would change: by the index, and so on the writer's thread, for a part of
//! the index is in its memory.

use std::collections::HashSet;

use rusqlite::OptionalExtension as _;

use crate::contract::key::EntryId;
use crate::ledger::entry::{Cause, State};
use crate::ledger::later::{Candidate, Subject, obstacle, of_told};
use crate::ledger::{MAX_LATER, Obstacle};

use super::super::rows;
use super::Store;

impl Store {
    /// See [`Ledger::superseded`](crate::ledger::Ledger::superseded).
    pub(in crate::ledger::embedded) fn superseded(
        &self,
        entry: EntryId,
        beside: &HashSet<EntryId>,
    ) -> rusqlite::Result<Option<Obstacle>> {
        let Some(number) = rows::number_of(&self.conn, entry)? else { return Ok(None) };
        let found: Option<(i64, Option<Vec<u8>>)> = self
            .conn
            .prepare_cached(
                "SELECT e.version, f.things FROM entry e JOIN history f ON f.seq = e.finish \
                 WHERE e.number = ?1 AND e.state = 5 AND f.undo IS NOT NULL",
            )?
            .query_row([number], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((version, told)) = found else { return Ok(None) };
        let Some(told) = told else { return Ok(Some(Obstacle::Untold)) };
        let mut numbers = Vec::new();
        for hash in of_told(&told).map(i64::from_be_bytes) {
            let mut looked: usize = 0;
            self.finder.find(&self.conn, hash, |other| {
                looked = looked.saturating_add(1);
                numbers.push(other);
                Ok((looked > MAX_LATER).then_some(()))
            })?;
        }
        numbers.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
        numbers.dedup();
        numbers.retain(|other| *other != number);
        numbers.truncate(MAX_LATER);
        if numbers.is_empty() {
            return Ok(None);
        }
        let mut candidates = Vec::with_capacity(numbers.len());
        for number in numbers {
            // One whose begin was rolled back is in memory until it is read again.
            candidates.extend(self.candidate(number)?);
        }
        let steps = rows::history(&self.conn, version)?;
        let began = steps.iter().rev().find(|step| step.to == State::Begun);
        let Some(began) = began.map(|step| step.seq) else { return Ok(None) };
        let has_before = rows::before(&self.conn, entry)?.is_some();
        Ok(obstacle(Subject { number, began, has_before }, &candidates, beside))
    }

    fn candidate(&self, number: i64) -> rusqlite::Result<Option<Candidate>> {
        self.conn
            .prepare_cached(
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
}
