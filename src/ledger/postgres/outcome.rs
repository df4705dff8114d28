//! What a [batch](super::batch) writes of attempts that are over, of decisions and of deliveries.

use tokio_postgres::Row;
use uuid::Uuid;

use super::batch::Fate;
use super::chained::{Chained, Link, entry_bytes};
use super::look::Finder;
use super::plan::Plan;
use super::rows::{self, code, column, text};
use super::session::{Fault, Param, Pipe};
use super::sql;
use super::step::{Step, Subject, attempts};
use crate::contract::class::{Disposition, Outcome, Verdict};
use crate::contract::key::{Digest, EntryId};
use crate::ledger::chain::row::{Content, Row as ChainRow, Told};
use crate::ledger::desk::command::{Done, Settle, TookBack, Write};
use crate::ledger::entry::{Cause, State};
use crate::ledger::{Answer, Finish, MAX_ANSWER, Note, Settled, later};

/// How long after its end a used confirmation is remembered: no clock is off by so much.
const SPENT_MARGIN_MS: i64 = 600_000;

/// An accepted call that may take an earlier one back.
#[derive(Debug)]
pub(super) struct Undoing {
    entry: EntryId,
    pub(super) principal: String,
    pub(super) mark: Digest,
    at_ms: i64,
}

/// What is written of finishes, column by column.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    pub(super) undoing: Vec<Undoing>,
    delivered: Vec<Uuid>,
    unspent_ms: Vec<i64>,
    unspent: Vec<Vec<u8>>,
    seqs: Vec<i64>,
    ids: Vec<Uuid>,
    previous: Vec<i64>,
    times: Vec<i64>,
    from: Vec<i16>,
    to: Vec<i16>,
    attempts: Vec<i32>,
    causes: Vec<Option<&'static str>>,
    answered: Vec<bool>,
    kept: Vec<bool>,
    dispositions: Vec<&'static str>,
    verdicts: Vec<Option<&'static str>>,
    statuses: Vec<Option<i32>>,
    upstream_ids: Vec<Option<String>>,
    undos: Vec<Option<String>>,
    undo_marks: Vec<Option<Vec<u8>>>,
    compensates: Vec<Option<String>>,
    deadlines: Vec<Option<i64>>,
    unavailable: Vec<Option<String>>,
    answer_statuses: Vec<Option<i32>>,
    answer_headers: Vec<Option<Vec<u8>>>,
    answer_bodies: Vec<Option<Vec<u8>>>,
    evidence: Vec<Option<String>>,
    due: Vec<Option<i64>>,
    places: Vec<i64>,
    seals: Vec<Vec<u8>>,
    things: Vec<Option<Vec<u8>>>,
    made: Vec<Uuid>,
    made_by: Vec<Uuid>,
}

impl Plan<'_> {
    /// Adds what the commands that are no begins write.
    pub(super) fn write_outcomes(
        &mut self,
        writes: &[Write],
        pipe: &mut Pipe<'_>,
        now_ms: i64,
    ) -> Result<(), Fault> {
        for (place, write) in writes.iter().enumerate() {
            let done = match write {
                Write::Begin(..) => continue,
                Write::Delivered { entry, .. } => {
                    self.outcomes.delivered.push(rows::uuid(*entry));
                    Some(Done::Written)
                }
                Write::Finish(finish, ..) => self.finish(finish, pipe)?,
                Write::Heartbeat(..) => {
                    let before: Param = Box::new(now_ms.saturating_sub(SPENT_MARGIN_MS));
                    pipe.add(sql::FORGET, vec![before]);
                    Some(Done::Written)
                }
                // They have transactions of their own.
                Write::Acknowledge(..) | Write::Prune { .. } | Write::Redact(..) => {
                    Some(Done::Refused)
                }
                Write::Note(note, _) => Some(self.note(note, pipe)?),
                Write::Settle(settle, _) => Some(self.settle(settle, pipe)?),
                Write::Spend(spend, _) => {
                    let (ends, nonces) = (vec![spend.expires_ms], vec![spend.nonce.to_vec()]);
                    pipe.add(sql::SPEND, vec![Box::new(ends), Box::new(nonces)]);
                    Some(Done::Written)
                }
                Write::TookBack(took_back, _) => Some(self.took_back(took_back, pipe)?),
                Write::Withdraw { entry, attempt, now_ms } => {
                    // It may never have been written.
                    self.finish(&not_sent(*entry, *attempt, *now_ms), pipe)?;
                    Some(Done::Written)
                }
            };
            let fate = done.map_or(Fate::Deferred, Fate::Done);
            self.fates.insert(place, fate);
        }
        let outcomes = std::mem::take(&mut self.outcomes);
        self.outcomes.undoing = outcomes.write(pipe, self.chain.number);
        Ok(())
    }

    /// `None`: it must wait for a step of its entry in this batch.
    fn finish(&mut self, finish: &Finish, pipe: &mut Pipe<'_>) -> Result<Option<Done>, Fault> {
        let Some(subject) = self.subject(finish.entry).cloned() else {
            return Ok(Some(Done::NotFound));
        };
        if self.deferred.contains(&subject.id) {
            return Ok(None);
        }
        let is_outcome = match finish.state {
            State::Accepted | State::Rejected | State::Unknown | State::Waiting => true,
            State::Begun | State::Undone => false,
        };
        if is_outcome && finish.attempt == subject.attempt && finish.state == subject.state {
            // Its commit was reported as failed and had worked.
            return Ok(Some(Done::Written));
        }
        if finish.attempt != subject.attempt
            || !is_outcome
            || !subject.state.is_in_flight()
            || !subject.state.may_become(finish.state)
        {
            return Ok(Some(Done::Refused));
        }
        if self.stepped.contains(&subject.id) {
            self.deferred.insert(subject.id);
            return Ok(None);
        }
        if finish.state == State::Rejected && finish.cause == Some(Cause::NotSent) {
            if let Some((expires_ms, nonce)) = &subject.spent {
                self.outcomes.unspent_ms.push(*expires_ms);
                self.outcomes.unspent.push(nonce.clone());
            }
            if let Some(before) = state_before(&subject) {
                // What its last finish said still holds.
                let seq = self.next_number()?;
                let restored: Vec<Param> = vec![
                    Box::new(subject.id),
                    Box::new(code(before)),
                    Box::new(seq),
                    Box::new(finish.now_ms),
                ];
                pipe.add(sql::RESTORE, restored);
                let cause = Some(Cause::NotSent.as_str());
                let step = Step { cause, ..Step::of(&subject, before) };
                pipe.add(sql::STEP, step.params(self.chain, seq, finish.now_ms, Content::None));
                self.note_step(subject.id, before, seq);
                return Ok(Some(Done::Written));
            }
        }
        let seq = self.next_number()?;
        self.outcomes.add(self.finder, self.chain, finish, &subject, seq);
        self.note_step(subject.id, finish.state, seq);
        Ok(Some(Done::Written))
    }

    fn settle(&mut self, settle: &Settle, pipe: &mut Pipe<'_>) -> Result<Done, Fault> {
        let Some(subject) = self.subject(settle.entry).cloned() else {
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
        let seq = self.next_number()?;
        let cause = Cause::Settled.as_str();
        // An answer kept of the unknown attempt is no answer to a settled one.
        pipe.add(
            sql::SETTLE,
            vec![
                Box::new(subject.id),
                Box::new(code(state)),
                Box::new(seq),
                Box::new(settle.now_ms),
                Box::new(cause),
            ],
        );
        let step = Step {
            cause: Some(cause),
            who: Some(&settle.who),
            why: Some(&settle.why),
            ..Step::of(&subject, state)
        };
        pipe.add(sql::STEP, step.params(self.chain, seq, settle.now_ms, Content::None));
        self.settled(&subject, state, settle.entry, settle.now_ms);
        Ok(Done::Settled(Settled { version: seq, state }))
    }

    /// An entry that turned out to be accepted may have taken another one back. One whose undo is the
    /// same call repeats what it found, and did not.
    fn settled(&mut self, subject: &Subject, state: State, entry: EntryId, at_ms: i64) {
        if state == State::Accepted && subject.undo_mark != Some(subject.mark) {
            self.outcomes.undoing.push(Undoing {
                entry,
                principal: subject.principal.clone(),
                mark: subject.mark,
                at_ms,
            });
        }
    }

    /// Writes a note, and settles the entry or replaces its verdict where the note says so.
    fn note(&mut self, note: &Note, pipe: &mut Pipe<'_>) -> Result<Done, Fault> {
        let Some(subject) = self.subject(note.entry).cloned() else {
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
        let seq = self.next_number()?;
        pipe.add(
            sql::NOTE,
            vec![
                Box::new(subject.id),
                Box::new(seq),
                Box::new(note.due.map(|due| due.at_ms)),
                Box::new(note.due.map(|due| attempts(due.tries))),
                Box::new(note.verdict.map(Verdict::as_str)),
            ],
        );
        let cause = note.outcome.map(|_| Cause::Settled.as_str());
        if cause.is_some() {
            pipe.add(
                sql::NOTE_SETTLES,
                vec![
                    Box::new(subject.id),
                    Box::new(code(state)),
                    Box::new(note.now_ms),
                    Box::new(cause),
                ],
            );
        }
        let step = Step {
            cause,
            who: Some(note.noted.as_str()),
            why: Some(&note.why),
            noted: Some(note.noted),
            verdict: note.verdict,
            detail: note.detail.as_deref(),
            ..Step::of(&subject, state)
        };
        pipe.add(sql::STEP, step.params(self.chain, seq, note.now_ms, Content::None));
        if note.outcome.is_some() {
            self.settled(&subject, state, note.entry, note.now_ms);
        }
        Ok(Done::Settled(Settled { version: seq, state }))
    }

    fn took_back(&mut self, took_back: &TookBack, pipe: &mut Pipe<'_>) -> Result<Done, Fault> {
        let pair = (self.subject(took_back.entry), self.subject(took_back.by));
        let (Some(subject), Some(by)) = pair else {
            return Ok(Done::NotFound);
        };
        let why = took_back.by.to_string();
        if subject.state == State::Undone && subject.why.as_deref() == Some(why.as_str()) {
            let (version, state) = (subject.version, State::Undone);
            return Ok(Done::Settled(Settled { version, state }));
        }
        let is_accepted = subject.state == State::Accepted && by.state == State::Accepted;
        // What was there before cannot have taken it back; ids are in the order of time.
        if !is_accepted || by.id <= subject.id || subject.undo_mark != Some(by.mark) {
            return Ok(Done::Refused);
        }
        let subject = subject.clone();
        let seq = self.next_number()?;
        let cause = Cause::Undone.as_str();
        pipe.add(sql::UNDONE, vec![Box::new(subject.id), Box::new(seq), Box::new(cause)]);
        let step = Step {
            cause: Some(cause),
            who: Some(&took_back.who),
            why: Some(&why),
            ..Step::of(&subject, State::Undone)
        };
        pipe.add(sql::STEP, step.params(self.chain, seq, took_back.now_ms, Content::None));
        Ok(Done::Settled(Settled { version: seq, state: State::Undone }))
    }

    /// Notes which entries the accepted calls of this batch take back.
    pub(super) fn note_targets(&mut self, found: &[Row]) -> Result<(), Fault> {
        for row in found {
            let place: i32 = column(row, 0)?;
            let place = usize::try_from(place).map_err(|_| rows::damaged())?;
            let target = (place, column(row, 1)?, column(row, 2)?, rows::number(row, 3)?);
            self.targets.push(target);
        }
        Ok(())
    }

    /// Adds what marks the entries that were taken back.
    pub(super) fn write_undone(&mut self, pipe: &mut Pipe<'_>) -> Result<(), Fault> {
        for (place, id, version, attempt) in std::mem::take(&mut self.targets) {
            let Some(undoing) = self.outcomes.undoing.get(place) else { continue };
            let (entry, at_ms) = (undoing.entry, undoing.at_ms);
            if rows::uuid(entry) == id {
                continue;
            }
            let seq = self.next_number()?;
            let cause = Cause::Undone.as_str();
            pipe.add(sql::UNDONE, vec![Box::new(id), Box::new(seq), Box::new(cause)]);
            let why = entry.to_string();
            let step = Step {
                id,
                previous: version,
                from: State::Accepted,
                to: State::Undone,
                attempt,
                cause: Some(cause),
                who: None,
                why: Some(&why),
                noted: None,
                verdict: None,
                detail: None,
            };
            pipe.add(sql::STEP, step.params(self.chain, seq, at_ms, Content::None));
        }
        Ok(())
    }
}

/// The state that an attempt which was not sent leaves as it was: unknown or waiting.
fn state_before(subject: &Subject) -> Option<State> {
    subject.before.filter(|before| match before {
        State::Unknown | State::Waiting => subject.state == State::Begun,
        State::Accepted | State::Begun | State::Rejected | State::Undone => false,
    })
}

/// The finish of an attempt that nobody dispatched.
fn not_sent(entry: EntryId, attempt: u32, now_ms: i64) -> Finish {
    Finish {
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
    }
}

impl Outcomes {
    fn add(
        &mut self,
        finder: &Finder,
        chain: &mut Chained,
        finish: &Finish,
        subject: &Subject,
        seq: i64,
    ) {
        let kept = finish.answer.as_ref().filter(|answer| answer.body.len() <= MAX_ANSWER);
        let is_accepted = finish.state == State::Accepted;
        let upstream_id = finish.upstream_id.as_deref().map(text);
        let undo = finish.undo.as_deref().map(text);
        let compensate = finish.compensate.as_deref().map(text);
        let unavailable = finish.undo_unavailable.as_deref().map(text);
        let evidence = finish.evidence.as_deref().map(text);
        let headers = kept.map(headers_blob);
        let row = finish.as_linked(ChainRow {
            seq,
            entry: entry_bytes(&subject.id),
            previous: Some(subject.version),
            at_ms: finish.now_ms,
            from: Some(subject.state.code()),
            to: finish.state.code(),
            attempt: subject.attempt,
            cause: finish.cause.map(Cause::as_str),
            ..ChainRow::default()
        });
        let made = finish.made.as_ref().map(|thing| finder.thing(thing));
        let hashes = finish.undo_things.iter().map(|thing| *finder.thing(thing).as_bytes());
        let things = (finish.undo.is_some() || made.is_some())
            .then(|| later::told(made.map(|hash| *hash.as_bytes()), hashes));
        let row = ChainRow { detail: evidence.as_deref(), things: things.as_deref(), ..row };
        let told = Told {
            upstream_id: upstream_id.as_deref(),
            undo: undo.as_deref(),
            compensate: compensate.as_deref(),
            undo_unavailable: unavailable.as_deref(),
            ..finish.as_told(kept, headers.as_deref())
        };
        let Link { place, seal } = chain.link(&row, None, Content::Told(&told));
        self.places.push(place);
        self.seals.push(seal);
        self.things.push(things);
        if let Some(made) = made {
            self.made.push(made);
            self.made_by.push(subject.id);
        }
        self.seqs.push(seq);
        self.ids.push(subject.id);
        self.previous.push(subject.version);
        self.times.push(finish.now_ms);
        self.from.push(code(subject.state));
        self.to.push(code(finish.state));
        self.attempts.push(attempts(subject.attempt));
        self.causes.push(finish.cause.map(Cause::as_str));
        self.answered.push(finish.answered);
        self.kept.push(kept.is_some());
        self.dispositions.push(finish.disposition.as_str());
        self.verdicts.push(finish.verdict.map(Verdict::as_str));
        self.statuses.push(finish.upstream_status.map(i32::from));
        self.upstream_ids.push(upstream_id);
        self.undos.push(undo);
        self.undo_marks.push(finish.undo_mark.map(|mark| mark.0.to_vec()));
        self.compensates.push(compensate);
        self.deadlines.push(finish.deadline_ms);
        self.unavailable.push(unavailable);
        self.answer_statuses.push(kept.map(|answer| i32::from(answer.status)));
        self.answer_headers.push(headers);
        self.answer_bodies.push(kept.map(|answer| answer.body.clone()));
        self.evidence.push(evidence);
        self.due.push(finish.due_ms);
        if let Some(mark) = finish.undoes.filter(|_| is_accepted) {
            self.undoing.push(Undoing {
                entry: finish.entry,
                principal: subject.principal.clone(),
                mark,
                at_ms: finish.now_ms,
            });
        }
    }

    /// Adds the statements; what the accepted calls may take back is left.
    fn write(self, pipe: &mut Pipe<'_>, chain: i64) -> Vec<Undoing> {
        if !self.ids.is_empty() {
            pipe.add(
                sql::FINISH,
                vec![
                    Box::new(self.ids.clone()),
                    Box::new(self.seqs.clone()),
                    Box::new(self.to.clone()),
                    Box::new(self.times.clone()),
                    Box::new(self.answered),
                    Box::new(self.kept),
                    Box::new(self.causes.clone()),
                    Box::new(self.undo_marks.clone()),
                    Box::new(self.due),
                ],
            );
            pipe.add(
                sql::FINISH_STEPS,
                vec![
                    Box::new(self.seqs),
                    Box::new(self.ids),
                    Box::new(self.previous),
                    Box::new(self.times),
                    Box::new(self.from),
                    Box::new(self.to),
                    Box::new(self.attempts),
                    Box::new(self.causes),
                    Box::new(self.dispositions),
                    Box::new(self.verdicts),
                    Box::new(self.statuses),
                    Box::new(self.upstream_ids),
                    Box::new(self.undos),
                    Box::new(self.undo_marks),
                    Box::new(self.compensates),
                    Box::new(self.deadlines),
                    Box::new(self.unavailable),
                    Box::new(self.answer_statuses),
                    Box::new(self.answer_headers),
                    Box::new(self.answer_bodies),
                    Box::new(self.evidence),
                    Box::new(chain),
                    Box::new(self.places),
                    Box::new(self.seals),
                    Box::new(self.things),
                ],
            );
        }
        if !self.made.is_empty() {
            pipe.add(sql::TOUCH, vec![Box::new(self.made), Box::new(self.made_by)]);
        }
        if !self.delivered.is_empty() {
            pipe.add(sql::DELIVERED, vec![Box::new(self.delivered)]);
        }
        if !self.unspent.is_empty() {
            pipe.add(sql::UNSPEND, vec![Box::new(self.unspent_ms), Box::new(self.unspent)]);
        }
        self.undoing
    }
}

/// Headers as they stand in `history.headers`: name, NUL, value, NUL; neither can hold a NUL.
fn headers_blob(answer: &Answer) -> Vec<u8> {
    let mut blob = Vec::new();
    for (name, value) in &answer.headers {
        blob.extend_from_slice(name.as_bytes());
        blob.push(0);
        blob.extend_from_slice(value);
        blob.push(0);
    }
    blob
}
