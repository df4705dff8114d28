//! What is learned of an entry after its finish: a row of the history, and what follows from it.

use rusqlite::params;

use crate::contract::class::{Outcome, Verdict};
use crate::ledger::chain::row::{Content, Row};
use crate::ledger::entry::{Cause, State};
use crate::ledger::{Note, Noted, Settled};

use super::{Done, Store, Subject};

impl Store {
    /// Writes a note, and settles the entry or replaces its verdict where the note says so.
    pub(in crate::ledger::embedded) fn note(&mut self, note: &Note) -> rusqlite::Result<Done> {
        let Some(subject) = self.subject(note.entry)? else {
            return Ok(Done::NotFound);
        };
        if subject.state == State::Begun {
            // The newest step of a begun entry is its begin, which a finish relies on.
            return Ok(Done::Refused);
        }
        if subject.version != note.version {
            return Ok(Done::Changed);
        }
        let state = match note.outcome {
            None => subject.state,
            Some(_) if subject.state != State::Unknown => {
                return Ok(Done::NotUnknown(subject.state));
            }
            Some(Outcome::Accepted) => State::Accepted,
            Some(Outcome::Rejected) => State::Rejected,
            Some(Outcome::Unknown) => return Ok(Done::Refused),
        };
        if note.verdict.is_some() && state != State::Accepted {
            return Ok(Done::Refused);
        }
        let seq = self.note_step(&subject, state, note)?;
        let (due_ms, tries) = (note.due.map(|due| due.at_ms), note.due.map(|due| due.tries));
        self.conn
            .prepare_cached(
                "UPDATE entry SET version = ?2, due_ms = ?3, tries = coalesce(?4, tries + 1), \
                 verdict = coalesce(?5, verdict) WHERE number = ?1",
            )?
            .execute(params![
                subject.number,
                seq,
                due_ms,
                tries,
                note.verdict.map(Verdict::as_str)
            ])?;
        if note.outcome.is_some() {
            // An answer kept of the unknown attempt is no answer to a settled one.
            self.conn
                .prepare_cached(
                    "UPDATE entry SET state = ?2, finished_ms = ?3, kept = 0, cause = ?4 \
                     WHERE number = ?1",
                )?
                .execute(params![
                    subject.number,
                    state.code(),
                    note.now_ms,
                    Cause::Settled.as_str()
                ])?;
            self.closed(&subject, state);
            self.settled(&subject, state, note.now_ms)?;
        }
        Ok(Done::Settled(Settled { version: seq, state }))
    }

    /// Writes that a person did something to what an entry holds.
    pub(super) fn noted_step(
        &mut self,
        subject: &Subject,
        noted: Noted,
        (who, why, detail): (&str, &str, &str),
        now_ms: i64,
    ) -> rusqlite::Result<i64> {
        let row = Row {
            at_ms: now_ms,
            who: Some(who),
            why: Some(why),
            noted: Some(noted.as_str()),
            detail: Some(detail),
            ..Row::default()
        };
        self.insert_note(subject, subject.state, row)
    }

    fn note_step(&mut self, subject: &Subject, state: State, note: &Note) -> rusqlite::Result<i64> {
        let row = Row {
            at_ms: note.now_ms,
            cause: note.outcome.map(|_| Cause::Settled.as_str()),
            who: Some(note.noted.as_str()),
            why: Some(&note.why),
            noted: Some(note.noted.as_str()),
            verdict: note.verdict.map(Verdict::as_str),
            detail: note.detail.as_deref(),
            ..Row::default()
        };
        self.insert_note(subject, state, row)
    }

    fn insert_note(
        &mut self,
        subject: &Subject,
        state: State,
        row: Row<'_>,
    ) -> rusqlite::Result<i64> {
        let seq = self.next_seq;
        self.next_seq += 1;
        let entry = subject.number.to_be_bytes();
        let row = Row {
            seq,
            entry: &entry,
            previous: Some(subject.version),
            from: Some(subject.state.code()),
            to: state.code(),
            attempt: subject.attempt,
            ..row
        };
        let seal = self.chain.seal(&row, None, Content::None);
        self.conn
            .prepare_cached(
                "INSERT INTO history (seq, entry, previous, at_ms, from_state, to_state, attempt, \
                 cause, who, why, verdict, noted, detail, seal) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
            )?
            .execute(params![
                seq,
                subject.number,
                row.previous,
                row.at_ms,
                row.from,
                row.to,
                row.attempt,
                row.cause,
                row.who,
                row.why,
                row.verdict,
                row.noted,
                row.detail,
                seal.to_bytes(),
            ])?;
        Ok(seq)
    }
}
