//! What becomes of an attempt: its finish, a decision, its undo, and a crash.

use rusqlite::{OptionalExtension as _, params};

use crate::contract::class::{Disposition, Outcome, Verdict};
use crate::contract::key::{Digest, EntryId};
use crate::ledger::chain::row::{Content, Row};
use crate::ledger::entry::{Cause, State};
use crate::ledger::{Answer, Finish, MAX_ANSWER, Settled, later};

use super::super::known::{Trace, start};
use super::super::{rows, touched};
use super::{Done, Settle, Step, Store, Subject, Target, TookBack};

impl Store {
    /// Writes what became of an attempt.
    pub(in crate::ledger::embedded) fn finish(
        &mut self,
        finish: &Finish,
    ) -> rusqlite::Result<Done> {
        let Some(subject) = self.subject(finish.entry)? else {
            return Ok(Done::NotFound);
        };
        let is_outcome = match finish.state {
            State::Accepted | State::Rejected | State::Unknown | State::Waiting => true,
            State::Begun | State::Undone => false,
        };
        if is_outcome && finish.attempt == subject.attempt && finish.state == subject.state {
            // Its commit was reported as failed and had worked.
            return Ok(Done::Written);
        }
        if finish.attempt != subject.attempt
            || !is_outcome
            || !subject.state.is_in_flight()
            || !subject.state.may_become(finish.state)
        {
            return Ok(Done::Refused);
        }
        let is_not_sent = finish.state == State::Rejected && finish.cause == Some(Cause::NotSent);
        if is_not_sent {
            self.give_back(&subject)?;
            if let Some(before) = self.state_before(&subject)? {
                self.restore(&subject, before, finish.now_ms)?;
                return Ok(Done::Written);
            }
        }
        let kept = finish.answer.as_ref().filter(|answer| answer.body.len() <= MAX_ANSWER);
        if let Some(made) = &finish.made {
            let hash = self.known.hash("", Trace::Thing(made));
            touched::add_alone(&self.conn, subject.number, std::iter::once(hash.to_be_bytes()))?;
        }
        let step = Step::of(&subject, finish.state, finish.cause, finish.now_ms);
        let seq = self.finish_step(&step, finish, kept)?;
        self.conn
            .prepare_cached(
                "UPDATE entry SET state = ?2, version = ?3, finish = ?3, finished_ms = ?4, \
                 delivered = 0, answered = ?5, kept = ?6, cause = ?7, verdict = NULL \
                 WHERE number = ?1",
            )?
            .execute(params![
                subject.number,
                finish.state.code(),
                seq,
                finish.now_ms,
                finish.answered,
                kept.is_some(),
                finish.cause.map(Cause::as_str),
            ])?;
        if let Some(due_ms) = finish.due_ms {
            // A statement of its own: most finishes leave the index of what is due alone.
            self.conn
                .prepare_cached(
                    "UPDATE entry SET due_ms = ?2, tries = 0 \
                     WHERE number = ?1 AND (state <> 4 OR lookup IS NOT NULL)",
                )?
                .execute([subject.number, due_ms])?;
        }
        self.closed(&subject, finish.state);
        if finish.state == State::Unknown {
            self.note_unknown(subject.number)?;
        }
        if finish.state == State::Accepted {
            if let Some(mark) = &finish.undo_mark {
                let hash = self.known.hash(&subject.principal, Trace::UndoMark(mark));
                self.finder.add(&self.conn, hash, subject.number)?;
            }
            if let Some(mark) = &finish.undoes {
                self.undo(&subject, mark, finish.entry, finish.now_ms)?;
            }
        }
        Ok(Done::Written)
    }

    /// An attempt whose begin was not acknowledged, or whose caller has gone, and which was
    /// therefore not dispatched.
    pub(in crate::ledger::embedded) fn withdraw(
        &mut self,
        entry: EntryId,
        attempt: u32,
        now_ms: i64,
    ) -> rusqlite::Result<Done> {
        self.finish(&Finish {
            entry,
            attempt,
            state: State::Rejected,
            cause: Some(Cause::NotSent),
            disposition: Disposition::NotSent,
            verdict: None,
            answered: false,
            upstream_status: None,
            upstream_id: None,
            made: None,
            undo: None,
            undo_things: Vec::new(),
            undo_mark: None,
            compensate: None,
            deadline_ms: None,
            undo_unavailable: None,
            answer: None,
            undoes: None,
            evidence: None,
            due_ms: None,
            now_ms,
        })?;
        // It may never have reached the disk.
        Ok(Done::Written)
    }

    /// Notes that the agent has the whole answer.
    pub(in crate::ledger::embedded) fn delivered(
        &mut self,
        entry: EntryId,
    ) -> rusqlite::Result<Done> {
        let (first, last) = rows::numbers(entry);
        let noted = self
            .conn
            .prepare_cached(
                "UPDATE entry SET delivered = 1 \
                 WHERE number BETWEEN ?1 AND ?2 AND id = ?3 AND state > 2",
            )?
            .execute(params![first, last, entry.as_bytes()])?;
        // Nothing is to be noted of one that is begun again, or that is not there.
        Ok(if noted == 0 { Done::NotFound } else { Done::Written })
    }

    /// Writes a decision about an unknown entry.
    pub(in crate::ledger::embedded) fn settle(
        &mut self,
        settle: &Settle,
    ) -> rusqlite::Result<Done> {
        let Some(subject) = self.subject(settle.entry)? else {
            return Ok(Done::NotFound);
        };
        if subject.state != State::Unknown {
            return Ok(Done::NotUnknown(subject.state));
        }
        let state = match settle.outcome {
            Outcome::Accepted => State::Accepted,
            Outcome::Rejected => State::Rejected,
            Outcome::Unknown => return Ok(Done::Refused),
        };
        let seq = self.step(&Step {
            who: Some(&settle.who),
            why: Some(&settle.why),
            ..Step::of(&subject, state, Some(Cause::Settled), settle.now_ms)
        })?;
        // An answer kept of the unknown attempt is no answer to a settled one.
        self.conn
            .prepare_cached(
                "UPDATE entry SET state = ?2, version = ?3, finished_ms = ?4, kept = 0, \
                 cause = ?5, due_ms = NULL WHERE number = ?1",
            )?
            .execute(params![
                subject.number,
                state.code(),
                seq,
                settle.now_ms,
                Cause::Settled.as_str()
            ])?;
        self.closed(&subject, state);
        self.settled(&subject, state, settle.now_ms)?;
        Ok(Done::Settled(Settled { version: seq, state }))
    }

    /// Of an entry that turned out to be accepted: marks what it took back, and makes what takes it
    /// back be recognised from now on.
    pub(super) fn settled(
        &mut self,
        subject: &Subject,
        state: State,
        now_ms: i64,
    ) -> rusqlite::Result<()> {
        if state != State::Accepted {
            return Ok(());
        }
        let (undo_mark, mark): (Option<[u8; 32]>, [u8; 32]) = self
            .conn
            .prepare_cached(
                "SELECT f.undo_mark, e.mark FROM entry e LEFT JOIN history f ON f.seq = e.finish \
                 WHERE e.number = ?1",
            )?
            .query_row([subject.number], |row| Ok((row.get(0)?, row.get(1)?)))?;
        // One whose undo is the same call repeats what it found, and took nothing back.
        if undo_mark != Some(mark) {
            self.undo(subject, &Digest(mark), subject.entry, now_ms)?;
        }
        if let Some(mark) = undo_mark {
            let hash = self.known.hash(&subject.principal, Trace::UndoMark(&Digest(mark)));
            self.finder.add(&self.conn, hash, subject.number)?;
        }
        Ok(())
    }

    /// Makes every begun entry unknown: its process died. Returns how many there were.
    pub(in crate::ledger::embedded) fn recover(&mut self, now_ms: i64) -> rusqlite::Result<u64> {
        let begun: Vec<(i64, i64, u32)> = self
            .conn
            .prepare("SELECT number, version, attempt FROM entry WHERE state <= 4 AND state = 2")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let mut count = 0;
        for (number, version, attempt) in begun {
            let seq = self.step(&Step {
                number,
                previous: Some(version),
                at_ms: now_ms,
                from: Some(State::Begun),
                to: State::Unknown,
                attempt,
                cause: Some(Cause::Crash),
                who: None,
                why: None,
                detail: None,
            })?;
            // Whatever an earlier attempt was answered says nothing of this one.
            self.conn
                .prepare_cached(
                    "UPDATE entry SET state = 4, version = ?2, finish = ?2, finished_ms = ?3, \
                     delivered = 0, answered = 0, kept = 0, cause = ?4, verdict = NULL, \
                     due_ms = CASE WHEN lookup IS NOT NULL THEN ?3 END, tries = 0 \
                     WHERE number = ?1",
                )?
                .execute(params![number, seq, now_ms, Cause::Crash.as_str()])?;
            count += 1;
        }
        self.reload_unknown()?;
        Ok(count)
    }

    /// Forgets an attempt that is finished. An entry that is not open is nothing to strangers.
    pub(super) fn closed(&mut self, subject: &Subject, state: State) {
        self.begun.remove(&subject.entry);
        if state.is_open() {
            return;
        }
        let key = subject.key.as_ref().filter(|_| subject.weak);
        let stranger = key.map(|key| subject.anyones.unwrap_or_else(|| self.anyones(key)));
        let mut memory = self.known.memory();
        memory.open.remove(start(&subject.digest), subject.number);
        if let Some(hash) = stranger {
            memory.strangers.remove(hash, subject.number);
        }
    }

    /// The confirmation of an attempt that was not sent is good again.
    fn give_back(&self, subject: &Subject) -> rusqlite::Result<()> {
        if let Some((expires_ms, nonce)) = subject.spent {
            self.conn
                .prepare_cached("DELETE FROM spent WHERE expires_ms = ?1 AND nonce = ?2")?
                .execute(params![expires_ms, nonce])?;
        }
        Ok(())
    }

    /// The state before this attempt, if it was one that an attempt which was not sent leaves as
    /// it was: unknown or waiting.
    fn state_before(&self, subject: &Subject) -> rusqlite::Result<Option<State>> {
        let before = self
            .conn
            .prepare_cached(
                "SELECT from_state FROM history WHERE seq = ?1 AND from_state IS NOT NULL",
            )?
            .query_row([subject.version], |row| rows::state(row, 0))
            .optional()?;
        Ok(before.filter(|state| match state {
            State::Unknown | State::Waiting => subject.state == State::Begun,
            State::Accepted | State::Begun | State::Rejected | State::Undone => false,
        }))
    }

    /// Puts an entry back into the state before its attempt; what its last finish said still holds.
    fn restore(&mut self, subject: &Subject, state: State, now_ms: i64) -> rusqlite::Result<()> {
        let seq = self.step(&Step::of(subject, state, Some(Cause::NotSent), now_ms))?;
        self.conn
            .prepare_cached(
                "UPDATE entry SET state = ?2, version = ?3, \
                 due_ms = CASE WHEN ?2 = 4 AND lookup IS NOT NULL THEN ?4 END WHERE number = ?1",
            )?
            .execute(params![subject.number, state.code(), seq, now_ms])?;
        self.begun.remove(&subject.entry);
        if state == State::Unknown {
            self.note_unknown(subject.number)?;
        }
        Ok(())
    }

    /// Marks what the accepted call `subject` took back.
    fn undo(
        &mut self,
        subject: &Subject,
        mark: &Digest,
        by: EntryId,
        now_ms: i64,
    ) -> rusqlite::Result<()> {
        let Some(target) = self.undone_by(&subject.principal, mark)? else {
            return Ok(());
        };
        if target.number == subject.number {
            return Ok(());
        }
        self.undone(&target, &subject.principal, mark, by, None, now_ms)?;
        Ok(())
    }

    /// Marks what a call of another principal took back.
    pub(in crate::ledger::embedded) fn took_back(
        &mut self,
        took_back: &TookBack,
    ) -> rusqlite::Result<Done> {
        let (Some(subject), Some(by)) =
            (self.subject(took_back.entry)?, self.subject(took_back.by)?)
        else {
            return Ok(Done::NotFound);
        };
        let why: Option<String> = self
            .conn
            .prepare_cached("SELECT why FROM history WHERE seq = ?1")?
            .query_row([subject.version], |row| row.get(0))?;
        let is_again = subject.state == State::Undone
            && why.as_deref() == Some(took_back.by.to_string().as_str());
        if is_again {
            return Ok(Done::Settled(Settled { version: subject.version, state: State::Undone }));
        }
        let marks: Option<(Option<[u8; 32]>, [u8; 32])> = self
            .conn
            .prepare_cached(
                "SELECT f.undo_mark, b.mark FROM entry e JOIN history f ON f.seq = e.finish \
                 JOIN entry b ON b.number = ?2 WHERE e.number = ?1",
            )?
            .query_row([subject.number, by.number], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let mark = match marks {
            Some((Some(undo), mark)) if undo == mark => Digest(mark),
            Some(_) | None => return Ok(Done::Refused),
        };
        let is_accepted = subject.state == State::Accepted && by.state == State::Accepted;
        // What was there before cannot have taken it back.
        if !is_accepted || by.number <= subject.number {
            return Ok(Done::Refused);
        }
        let target = Target {
            number: subject.number,
            entry: subject.entry,
            version: subject.version,
            attempt: subject.attempt,
        };
        let (who, now_ms) = (Some(took_back.who.as_str()), took_back.now_ms);
        let seq = self.undone(&target, &subject.principal, &mark, took_back.by, who, now_ms)?;
        Ok(Done::Settled(Settled { version: seq, state: State::Undone }))
    }

    /// Writes that an entry was taken back; the reason names the call that did it.
    fn undone(
        &mut self,
        target: &Target,
        principal: &str,
        mark: &Digest,
        by: EntryId,
        who: Option<&str>,
        now_ms: i64,
    ) -> rusqlite::Result<i64> {
        let seq = self.step(&Step {
            number: target.number,
            previous: Some(target.version),
            at_ms: now_ms,
            from: Some(State::Accepted),
            to: State::Undone,
            attempt: target.attempt,
            cause: Some(Cause::Undone),
            who,
            why: Some(&by.to_string()),
            detail: None,
        })?;
        self.conn
            .prepare_cached(
                "UPDATE entry SET state = 7, version = ?2, cause = ?3, due_ms = NULL \
                 WHERE number = ?1",
            )?
            .execute(params![target.number, seq, Cause::Undone.as_str()])?;
        let hash = self.known.hash(principal, Trace::UndoMark(mark));
        self.finder.remove(&self.conn, hash, target.number)?;
        Ok(seq)
    }

    /// Writes the row of the history that says what became of an attempt.
    fn finish_step(
        &mut self,
        step: &Step<'_>,
        finish: &Finish,
        kept: Option<&Answer>,
    ) -> rusqlite::Result<i64> {
        let seq = self.next_seq;
        self.next_seq += 1;
        let headers = kept.map(|answer| rows::headers_blob(&answer.headers));
        let entry = step.number.to_be_bytes();
        let things = self.told(finish);
        let row = finish.as_linked(step.row(seq, &entry));
        let row = Row { things: things.as_deref(), ..row };
        let told = finish.as_told(kept, headers.as_deref());
        let seal = self.chain.seal(&row, None, Content::Told(&told));
        self.conn
            .prepare_cached(
                "INSERT INTO history (seq, entry, previous, at_ms, from_state, to_state, attempt, \
                 cause, disposition, verdict, upstream_status, upstream_id, undo, undo_mark, \
                 compensate, deadline_ms, undo_unavailable, status, headers, body, detail, seal, \
                 things) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, \
                 ?17, ?18, ?19, ?20, ?21, ?22, ?23)",
            )?
            .execute(params![
                seq,
                step.number,
                step.previous,
                step.at_ms,
                step.from.map(State::code),
                step.to.code(),
                step.attempt,
                step.cause.map(Cause::as_str),
                finish.disposition.as_str(),
                finish.verdict.map(Verdict::as_str),
                finish.upstream_status,
                finish.upstream_id,
                finish.undo,
                finish.undo_mark.map(|mark| mark.0),
                finish.compensate,
                finish.deadline_ms,
                finish.undo_unavailable,
                kept.map(|answer| answer.status),
                headers,
                kept.map(|answer| answer.body.as_slice()),
                finish.evidence,
                seal.compact().to_bytes(),
                things,
            ])?;
        Ok(seq)
    }

    /// How what a finish's undo would change, and what it made, stand with it.
    fn told(&self, finish: &Finish) -> Option<Vec<u8>> {
        if finish.undo.is_none() && finish.made.is_none() {
            return None;
        }
        let hash = |thing| self.known.hash("", Trace::Thing(thing)).to_be_bytes();
        Some(later::told(finish.made.as_ref().map(hash), finish.undo_things.iter().map(hash)))
    }
}
