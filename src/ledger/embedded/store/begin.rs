//! The begin: the check that nobody was faster, the confirmation, the attempt's row.

use rusqlite::params;

use crate::contract::key::{EntryId, Key, OperationId};
use crate::ledger::chain::row::{Attempt, Content, First};
use crate::ledger::entry::State;
use crate::ledger::{Begin, Begun, Guard, Spend, later};

use super::super::known::{Hashes, Trace, start};
use super::super::rows;
use super::{Done, Step, Store, Subject};

impl Store {
    /// Checks that nothing changed since the look, uses up the confirmation, writes the attempt.
    pub(in crate::ledger::embedded) fn begin(
        &mut self,
        begin: &Begin,
        hashes: Hashes,
    ) -> rusqlite::Result<Done> {
        let found = self.repeats(&begin.look, hashes)?;
        if begin.guard == Guard::Enforced && found.differs_from(&begin.expected) {
            return Ok(Done::Begun(Begun::Changed(Box::new(self.look(&begin.look)?))));
        }
        let rerun = match begin.rerun {
            None => None,
            Some(entry) => {
                let Some(subject) = self.subject(entry)? else {
                    return Ok(Done::NotFound);
                };
                let is_judged = [found.by_key, found.by_digest]
                    .iter()
                    .flatten()
                    .any(|hit| hit.number == subject.number);
                let is_same = subject.principal == begin.look.principal.id
                    && subject.digest == begin.look.digest;
                if !is_judged || !is_same || !subject.state.may_become(State::Begun) {
                    return Ok(Done::Refused);
                }
                Some(subject)
            }
        };
        // The unique index would refuse it too; an answer is kinder than a broken batch.
        let subject = rerun.as_ref().map(|subject| subject.number);
        let is_claimed = found.claimed.is_some_and(|number| Some(number) != subject);
        if begin.guard == Guard::Enforced && is_claimed {
            return Ok(Done::Refused);
        }
        // Ids are ours and random; only a defect of the caller brings one twice, and at once.
        if rerun.is_none() && self.begun.contains_key(&begin.entry) {
            return Ok(Done::Refused);
        }
        if let Some(spend) = begin.spend
            && !self.spend(spend)?
        {
            return Ok(Done::Begun(Begun::Spent));
        }
        match rerun {
            None => self.insert(begin, hashes),
            Some(subject) => {
                let attempt = self.begin_again(begin, &subject)?;
                Ok(Done::Begun(Begun::Started { attempt }))
            }
        }
    }

    /// Uses a confirmation up; whether it was not before.
    pub(in crate::ledger::embedded) fn spend(&mut self, spend: Spend) -> rusqlite::Result<bool> {
        let changed = self
            .conn
            .prepare_cached("INSERT OR IGNORE INTO spent (expires_ms, nonce) VALUES (?1, ?2)")?
            .execute(params![spend.expires_ms, spend.nonce])?;
        Ok(changed > 0)
    }

    fn insert(&mut self, begin: &Begin, hashes: Hashes) -> rusqlite::Result<Done> {
        let look = &begin.look;
        let own_id = look.key.clone().unwrap_or_else(|| Key::from_entry(begin.entry));
        let Some(number) = self.next_number(begin.entry)? else {
            return Ok(Done::Refused);
        };
        let filed = self.filed(begin);
        self.conn
            .prepare_cached(
                "INSERT INTO entry (number, id, version, finish, state, attempt, began_ms, \
                 attempted_ms, finished_ms, delivered, answered, kept, weak, staged, key_sent, \
                 twin, principal, key, ledger_id, digest, mark, operation, fingerprint, \
                 policy_revision, class, kind, transport, target, task, staged_for, repeats, \
                 spent_ms, spent_nonce, lookup, things) VALUES (?1, ?2, ?3, ?3, 2, 1, ?4, ?4, ?4, 0, 0, 0, \
                 ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, \
                 ?22, ?23, ?24, ?25, ?26, ?27)",
            )?
            .execute(params![
                number,
                begin.entry.as_bytes(),
                self.next_seq,
                begin.now_ms,
                look.principal.weak,
                look.staged,
                begin.key_sent,
                twin(begin.guard, number),
                look.principal.id,
                look.key.as_ref().map(Key::as_str),
                (begin.ledger_id != own_id).then(|| begin.ledger_id.as_str()),
                look.digest.0,
                look.mark.0,
                look.operation.as_str(),
                begin.fingerprint.0,
                begin.policy_revision.0,
                begin.class.as_str(),
                begin.kind.as_str(),
                begin.transport,
                begin.target,
                begin.task,
                begin.staged_for.as_ref().map(OperationId::as_str),
                begin.repeats.as_ref().map(EntryId::as_bytes),
                begin.spend.map(|spend| spend.expires_ms),
                begin.spend.map(|spend| spend.nonce),
                begin.lookup,
                filed,
            ])?;
        self.newest = self.newest.max(number);
        let ledger_id = (begin.ledger_id != own_id).then(|| begin.ledger_id.as_str());
        let first = First {
            id: begin.entry.as_bytes(),
            began_ms: begin.now_ms,
            weak: look.principal.weak,
            staged: look.staged,
            principal: &look.principal.id,
            key: look.key.as_ref().map(Key::as_str),
            ledger_id,
            digest: &look.digest.0,
            mark: &look.mark.0,
            operation: look.operation.as_str(),
            transport: begin.transport,
            task: begin.task.as_deref(),
            staged_for: begin.staged_for.as_ref().map(OperationId::as_str),
            repeats: begin.repeats.as_ref().map(|entry| &entry.as_bytes()[..]),
        };
        let step = Step::first(number, begin.now_ms, begin.authorization.as_deref());
        let attempt = Attempt { things: filed.as_deref(), ..begin.as_linked() };
        let seq = self.step_with(&step, Some(&first), Content::Attempt(&attempt))?;
        self.keep_before(number, begin)?;
        self.touched.begun(&self.conn, number, filed.as_deref(), self.newest)?;
        self.finder.add(&self.conn, hashes.digest, number)?;
        if let Some(hash) = hashes.key {
            self.finder.add(&self.conn, hash, number)?;
        }
        let anyones = hashes.anyones.filter(|_| look.principal.weak);
        let subject = Subject {
            number,
            entry: begin.entry,
            version: seq,
            state: State::Begun,
            attempt: 1,
            principal: look.principal.id.clone(),
            weak: look.principal.weak,
            key: look.key.as_ref().map(|key| key.as_str().to_owned()),
            digest: look.digest,
            spent: begin.spend.map(|spend| (spend.expires_ms, spend.nonce)),
            anyones,
        };
        self.opened(&subject);
        self.begun.insert(begin.entry, subject);
        Ok(Done::Begun(Begun::Started { attempt: 1 }))
    }

    /// The number of a new entry: the next one within its id's millisecond.
    fn next_number(&self, entry: EntryId) -> rusqlite::Result<Option<i64>> {
        let (first, last) = rows::numbers(entry);
        if first > self.newest {
            return Ok(Some(first));
        }
        if (first..last).contains(&self.newest) {
            return Ok(Some(self.newest + 1));
        }
        let taken: Option<i64> = self
            .conn
            .prepare_cached("SELECT max(number) FROM entry WHERE number BETWEEN ?1 AND ?2")?
            .query_row([first, last], |row| row.get(0))?;
        let next = taken.map_or(first, |taken| taken + 1);
        Ok((next <= last).then_some(next))
    }

    fn begin_again(&mut self, begin: &Begin, subject: &Subject) -> rusqlite::Result<u32> {
        let attempt = subject.attempt.saturating_add(1);
        let step = Step {
            attempt,
            detail: begin.authorization.as_deref(),
            ..Step::of(subject, State::Begun, None, begin.now_ms)
        };
        self.keep_commitment(subject)?;
        let filed = self.filed(begin);
        let content = Attempt { things: filed.as_deref(), ..begin.as_linked() };
        let seq = self.step_with(&step, None, Content::Attempt(&content))?;
        self.keep_before(subject.number, begin)?;
        self.touched.begins_again(&self.conn, subject.number, filed.as_deref())?;
        // It will have a content again, which retention must come by once more.
        self.conn
            .prepare_cached(
                "INSERT OR IGNORE INTO unpruned (entry) \
                 SELECT number FROM entry WHERE number = ?1 AND removed = 2",
            )?
            .execute([subject.number])?;
        // What the last finish said stays: if this attempt is not sent, it still holds.
        self.conn
            .prepare_cached(
                "UPDATE entry SET state = 2, version = ?2, attempt = ?3, attempted_ms = ?4, \
                 key_sent = ?5, twin = ?6, fingerprint = ?7, policy_revision = ?8, class = ?9, \
                 kind = ?10, spent_ms = ?11, spent_nonce = ?12, lookup = ?13, target = ?14, \
                 removed = 0, due_ms = NULL, tries = 0, things = ?15 WHERE number = ?1",
            )?
            .execute(params![
                subject.number,
                seq,
                attempt,
                begin.now_ms,
                begin.key_sent,
                twin(begin.guard, subject.number),
                begin.fingerprint.0,
                begin.policy_revision.0,
                begin.class.as_str(),
                begin.kind.as_str(),
                begin.spend.map(|spend| spend.expires_ms),
                begin.spend.map(|spend| spend.nonce),
                begin.lookup,
                begin.target,
                filed,
            ])?;
        if let Some(key) =
            begin.look.key.as_ref().filter(|key| subject.key.as_deref() != Some(key.as_str()))
        {
            self.conn
                .prepare_cached("INSERT OR IGNORE INTO alias (key, entry) VALUES (?1, ?2)")?
                .execute(params![key.as_str(), subject.number])?;
            let hash = self.known.hash(&subject.principal, Trace::Key(key.as_str()));
            self.finder.add_now(&self.conn, hash, subject.number)?;
        }
        self.opened(subject);
        Ok(attempt)
    }

    /// How what a call changes stands with its entry.
    fn filed(&self, begin: &Begin) -> Option<Vec<u8>> {
        let hash = |thing| self.known.hash("", Trace::Thing(thing)).to_be_bytes();
        later::filed(begin.things.iter().map(hash))
    }

    /// Notes that an entry is open.
    fn opened(&self, subject: &Subject) {
        let stranger = match (&subject.key, subject.anyones) {
            (Some(_), Some(hash)) => Some(hash),
            (Some(key), None) if subject.weak => Some(self.anyones(key)),
            (Some(_) | None, _) => None,
        };
        let mut memory = self.known.memory();
        memory.open.insert(start(&subject.digest), subject.number);
        if let Some(hash) = stranger {
            memory.strangers.insert(hash, subject.number);
        }
    }
}

impl Store {
    /// Keeps the state before the newest attempt. An attempt without one leaves none of an earlier
    /// attempt's: it would pass for its own.
    fn keep_before(&self, number: i64, begin: &Begin) -> rusqlite::Result<()> {
        if let Some(before) = &begin.before {
            self.conn
                .prepare_cached("INSERT OR REPLACE INTO image (entry, before) VALUES (?1, ?2)")?
                .execute(params![number, before])?;
        } else if begin.rerun.is_some() {
            self.conn.prepare_cached("DELETE FROM image WHERE entry = ?1")?.execute([number])?;
        }
        Ok(())
    }
}

/// What stands in `entry.twin`: its number keeps an entry out of the unique claim.
fn twin(guard: Guard, number: i64) -> i64 {
    match guard {
        Guard::Enforced => 0,
        Guard::Observed => number,
    }
}
