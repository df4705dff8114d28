//! The commands, in SQL. One thread owns this; nothing here waits but for the disk.
//!
//! Every write runs inside a transaction that the [writer](super::writer) opens and commits. The
//! counters and the part of the index that live in memory follow the transaction: after a roll-back
//! [`Store::reload`] reads them again.

use std::collections::{BTreeSet, HashMap};

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::contract::class::{Disposition, Outcome, Verdict};
use crate::contract::key::{Digest, EntryId, Key, OperationId};
use crate::ledger::entry::{Cause, State};
use crate::ledger::{
    Answer, Begin, Begun, Expected, Finish, Guard, Look, MAX_ANSWER, MAX_UNKNOWN_NAMED, Prior,
    Priors, Settled, Stored, Stranger,
};

use super::finder::{Finder, Trace};
use super::rows::{self, prior_columns};

/// What became of a write, before it is committed.
#[derive(Debug)]
pub(super) enum Done {
    /// A begin.
    Begun(Begun),
    /// Something, and nobody needs more.
    Written,
    /// No such entry; nothing written.
    NotFound,
    /// The entry cannot be settled; nothing written.
    NotUnknown(State),
    /// The states do not allow it; nothing written.
    Refused,
    /// A decision.
    Settled(Settled),
}

/// The decision of a lookup or of a person.
#[derive(Debug)]
pub(super) struct Settle {
    pub(super) entry: EntryId,
    pub(super) outcome: Outcome,
    pub(super) who: String,
    pub(super) why: String,
    pub(super) now_ms: i64,
}

/// The store: the connection, and what must be known without asking it.
#[derive(Debug)]
pub(super) struct Store {
    conn: Connection,
    finder_key: [u8; 32],
    finder: Finder,
    /// The highest number in use.
    newest: i64,
    /// Keys of open entries of weak principals, hashed without their principal.
    strangers: BTreeSet<(i64, i64)>,
    /// The attempts that began here and are not finished, so that their finish need not search.
    begun: HashMap<EntryId, Subject>,
    next_seq: i64,
}

impl Store {
    /// Takes over a connection to a ledger of this version.
    pub(super) fn new(conn: Connection) -> rusqlite::Result<Self> {
        let finder_key =
            conn.query_row("SELECT value FROM meta WHERE name = 'finder_key'", [], |row| {
                row.get(0)
            })?;
        let finder = Finder::new(finder_key, 0, 0);
        let mut store = Self {
            conn,
            finder_key,
            finder,
            newest: 0,
            strangers: BTreeSet::new(),
            begun: HashMap::new(),
            next_seq: 1,
        };
        store.reload()?;
        Ok(store)
    }

    /// The connection, for what is no command.
    pub(super) fn conn(&self) -> &Connection {
        &self.conn
    }

    /// The number of the newest step.
    pub(super) fn newest_seq(&self) -> i64 {
        self.next_seq - 1
    }

    /// Reads again what is kept in memory.
    pub(super) fn reload(&mut self) -> rusqlite::Result<()> {
        let one = |sql: &str| self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        self.newest = one("SELECT coalesce(max(number), 0) FROM entry")?;
        self.next_seq = one("SELECT coalesce(max(seq), 0) FROM history")? + 1;
        let indexed_to = one("SELECT value FROM meta WHERE name = 'indexed_to'")?;

        let indexed = one("SELECT value FROM meta WHERE name = 'indexed'")?;
        let rows = usize::try_from(indexed).unwrap_or(0);
        let mut finder = Finder::new(self.finder_key, indexed_to, rows);
        let mut statement = self.conn.prepare(
            "SELECT e.number, e.principal, e.staged, e.key, e.digest, \
             CASE WHEN e.state = 5 THEN f.undo_mark END \
             FROM entry e LEFT JOIN history f ON f.seq = e.finish WHERE e.number > ?1",
        )?;
        let mut rows = statement.query([indexed_to])?;
        while let Some(row) = rows.next()? {
            let number = row.get(0)?;
            let principal: String = row.get(1)?;
            let digest = Digest(row.get(4)?);
            let trace = digest_trace(&digest, row.get(2)?);
            finder.add(&self.conn, finder.hash(&principal, trace), number)?;
            if let Some(key) = row.get::<_, Option<String>>(3)? {
                finder.add(&self.conn, finder.hash(&principal, Trace::Key(&key)), number)?;
            }
            if let Some(mark) = row.get::<_, Option<[u8; 32]>>(5)? {
                let mark = Digest(mark);
                let hash = finder.hash(&principal, Trace::UndoMark(&mark));
                finder.add(&self.conn, hash, number)?;
            }
        }
        drop(rows);
        drop(statement);
        let mut statement = self.conn.prepare(
            "SELECT number, key FROM entry WHERE state <= 4 AND weak = 1 AND key IS NOT NULL",
        )?;
        let mut rows = statement.query([])?;
        self.begun.clear();
        self.strangers.clear();
        while let Some(row) = rows.next()? {
            let key = row.get_ref(1)?.as_str()?;
            self.strangers.insert((finder.hash("", Trace::AnyonesKey(key)), row.get(0)?));
        }
        drop(rows);
        drop(statement);
        self.finder = finder;
        Ok(())
    }

    /// Merges the part of the index that is due.
    pub(super) fn merge(&mut self) -> rusqlite::Result<()> {
        self.finder.merge(&self.conn, self.newest)
    }

    /// Whether there is something to do while nobody asks for anything.
    pub(super) fn is_building(&self) -> bool {
        self.finder.is_building()
    }

    /// Does some of it.
    pub(super) fn build(&mut self) -> rusqlite::Result<()> {
        self.finder.build(&self.conn)
    }

    /// What [`Ledger::look`](crate::ledger::Ledger::look) answers.
    pub(super) fn look(&self, look: &Look) -> rusqlite::Result<Priors> {
        let found = self.repeats(look)?;
        let by_key = found.by_key.map(|hit| self.prior(hit.number)).transpose()?;
        let by_digest = match found.by_digest {
            Some(hit) if found.by_key.is_some_and(|key| key.number == hit.number) => by_key.clone(),
            Some(hit) => Some(self.prior(hit.number)?),
            None => None,
        };
        let mut statement = self.conn.prepare_cached(
            "SELECT id FROM entry WHERE principal = ?1 AND operation = ?2 AND state = 4 \
             ORDER BY number DESC LIMIT ?3",
        )?;
        let named = i64::try_from(MAX_UNKNOWN_NAMED).unwrap_or(i64::MAX);
        let unknown = statement
            .query_map(params![look.principal.id, look.operation.as_str(), named], |row| {
                row.get(0).map(EntryId::from_bytes)
            })?
            .collect::<rusqlite::Result<_>>()?;
        Ok(Priors {
            by_key,
            by_digest,
            open_of_stranger: found.open_of_stranger,
            undoes: self.undone_by(&look.principal.id, &look.mark)?.map(|target| target.entry),
            unknown_of_operation: unknown,
        })
    }

    /// The recorded answer, and what its report says.
    pub(super) fn answer(&self, entry: EntryId) -> rusqlite::Result<Option<Stored>> {
        let Some(record) = rows::record_of(&self.conn, entry)? else {
            return Ok(None);
        };
        if record.prior.state == State::Begun {
            return Ok(None);
        }
        Ok(Some(Stored { answer: rows::answer(&self.conn, entry)?, record }))
    }

    /// Checks that nothing changed since the look, uses up the confirmation, writes the attempt.
    pub(super) fn begin(&mut self, begin: &Begin) -> rusqlite::Result<Done> {
        let found = self.repeats(&begin.look)?;
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
        if rerun.is_none() && self.begun.contains_key(&begin.entry) {
            return Ok(Done::Refused);
        }
        if let Some(spend) = begin.spend {
            let is_new = self
                .conn
                .prepare_cached("INSERT OR IGNORE INTO spent (expires_ms, nonce) VALUES (?1, ?2)")?
                .execute(params![spend.expires_ms, spend.nonce])?;
            if is_new == 0 {
                return Ok(Done::Begun(Begun::Spent));
            }
        }
        match rerun {
            None => self.insert(begin),
            Some(subject) => {
                let attempt = self.begin_again(begin, &subject)?;
                Ok(Done::Begun(Begun::Started { attempt }))
            }
        }
    }

    fn insert(&mut self, begin: &Begin) -> rusqlite::Result<Done> {
        let look = &begin.look;
        let own_id = look.key.clone().unwrap_or_else(|| Key::from_entry(begin.entry));
        let Some(number) = self.next_number(begin.entry)? else {
            return Ok(Done::Refused);
        };
        self.conn
            .prepare_cached(
                "INSERT INTO entry (number, id, version, finish, state, attempt, began_ms, \
                 attempted_ms, finished_ms, delivered, answered, kept, weak, staged, key_sent, \
                 twin, principal, key, ledger_id, digest, mark, operation, fingerprint, \
                 policy_revision, class, kind, transport, target, task, staged_for, repeats, \
                 spent_ms, spent_nonce, lookup) VALUES (?1, ?2, ?3, ?3, 2, 1, ?4, ?4, ?4, 0, 0, 0, \
                 ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, \
                 ?22, ?23, ?24, ?25, ?26)",
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
            ])?;
        self.newest = self.newest.max(number);
        let seq = self.step(&Step::first(number, begin.now_ms))?;
        let hash = self.finder.hash(&look.principal.id, digest_trace(&look.digest, look.staged));
        self.finder.add(&self.conn, hash, number)?;
        if let Some(key) = &look.key {
            let hash = self.finder.hash(&look.principal.id, Trace::Key(key.as_str()));
            self.finder.add(&self.conn, hash, number)?;
            if look.principal.weak {
                self.strangers.insert((self.anyones(key.as_str()), number));
            }
        }
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
        };
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
        let seq =
            self.step(&Step { attempt, ..Step::of(subject, State::Begun, None, begin.now_ms) })?;
        // What the last finish said stays: if this attempt is not sent, it still holds.
        self.conn
            .prepare_cached(
                "UPDATE entry SET state = 2, version = ?2, attempt = ?3, attempted_ms = ?4, \
                 key_sent = ?5, twin = ?6, fingerprint = ?7, policy_revision = ?8, class = ?9, \
                 kind = ?10, spent_ms = ?11, spent_nonce = ?12, lookup = ?13 WHERE number = ?1",
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
            ])?;
        if let Some(key) =
            begin.look.key.as_ref().filter(|key| subject.key.as_deref() != Some(key.as_str()))
        {
            self.conn
                .prepare_cached("INSERT OR IGNORE INTO alias (key, entry) VALUES (?1, ?2)")?
                .execute(params![key.as_str(), subject.number])?;
            let hash = self.finder.hash(&subject.principal, Trace::Key(key.as_str()));
            self.finder.add_now(&self.conn, hash, subject.number)?;
        }
        Ok(attempt)
    }

    /// Writes what became of an attempt.
    pub(super) fn finish(&mut self, finish: &Finish) -> rusqlite::Result<Done> {
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
        let step = Step::of(&subject, finish.state, finish.cause, finish.now_ms);
        let seq = self.finish_step(&step, finish, kept)?;
        self.conn
            .prepare_cached(
                "UPDATE entry SET state = ?2, version = ?3, finish = ?3, finished_ms = ?4, \
                 delivered = 0, answered = ?5, kept = ?6, cause = ?7 WHERE number = ?1",
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
        self.closed(&subject, finish.state);
        if finish.state == State::Accepted {
            if let Some(mark) = &finish.undo_mark {
                let hash = self.finder.hash(&subject.principal, Trace::UndoMark(mark));
                self.finder.add(&self.conn, hash, subject.number)?;
            }
            if let Some(mark) = &finish.undoes {
                self.undo(&subject, mark, finish)?;
            }
        }
        Ok(Done::Written)
    }

    /// An attempt whose begin was not acknowledged, or whose caller has gone, and which was
    /// therefore not dispatched.
    pub(super) fn withdraw(
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
            undo: None,
            undo_mark: None,
            compensate: None,
            deadline_ms: None,
            undo_unavailable: None,
            answer: None,
            undoes: None,
            now_ms,
        })?;
        // It may never have reached the disk.
        Ok(Done::Written)
    }

    /// Notes that the agent has the whole answer.
    pub(super) fn delivered(&mut self, entry: EntryId) -> rusqlite::Result<Done> {
        let Some(number) = rows::number_of(&self.conn, entry)? else {
            return Ok(Done::NotFound);
        };
        self.conn
            .prepare_cached("UPDATE entry SET delivered = 1 WHERE number = ?1 AND state > 2")?
            .execute([number])?;
        Ok(Done::Written)
    }

    /// Writes a decision about an unknown entry.
    pub(super) fn settle(&mut self, settle: &Settle) -> rusqlite::Result<Done> {
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
                 cause = ?5 WHERE number = ?1",
            )?
            .execute(params![
                subject.number,
                state.code(),
                seq,
                settle.now_ms,
                Cause::Settled.as_str()
            ])?;
        self.closed(&subject, state);
        Ok(Done::Settled(Settled { version: seq, state }))
    }

    /// Proves that the store takes writes, and forgets confirmations that expired long ago.
    pub(super) fn heartbeat(&mut self, now_ms: i64) -> rusqlite::Result<Done> {
        self.conn
            .prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'heartbeat_ms'")?
            .execute([now_ms])?;
        self.conn
            .prepare_cached(
                "DELETE FROM spent WHERE (expires_ms, nonce) IN \
                 (SELECT expires_ms, nonce FROM spent WHERE expires_ms < ?1 LIMIT 4096)",
            )?
            .execute([now_ms.saturating_sub(SPENT_MARGIN_MS)])?;
        Ok(Done::Written)
    }

    /// Makes every begun entry unknown: its process died. Returns how many there were.
    pub(super) fn recover(&mut self, now_ms: i64) -> rusqlite::Result<u64> {
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
            })?;
            // Whatever an earlier attempt was answered says nothing of this one.
            self.conn
                .prepare_cached(
                    "UPDATE entry SET state = 4, version = ?2, finish = ?2, finished_ms = ?3, \
                     delivered = 0, answered = 0, kept = 0, cause = ?4 WHERE number = ?1",
                )?
                .execute(params![number, seq, now_ms, Cause::Crash.as_str()])?;
            count += 1;
        }
        Ok(count)
    }

    /// Finds what a call may repeat.
    fn repeats(&self, look: &Look) -> rusqlite::Result<Repeats> {
        let principal = look.principal.id.as_str();
        let mut found = Repeats::default();

        let mut statement = self.conn.prepare_cached(
            "SELECT number, version, principal, weak, staged, twin FROM entry \
             WHERE digest = ?1 AND state <= 4",
        )?;
        let mut rows = statement.query([look.digest.0])?;
        while let Some(row) = rows.next()? {
            let hit = Hit { number: row.get(0)?, version: row.get(1)? };
            let is_mine = row.get_ref(2)?.as_str()? == principal;
            if !is_mine {
                let is_weak: bool = row.get(3)?;
                found.open_of_stranger = found.open_of_stranger.or(is_weak.then_some(Stranger));
            } else if row.get::<_, bool>(4)? == look.staged {
                if row.get::<_, i64>(5)? == 0 {
                    found.claimed = Some(hit.number);
                }
                found.by_digest = found.by_digest.max(Some(hit));
            }
        }
        drop(rows);
        drop(statement);
        if found.by_digest.is_none() {
            let hash = self.finder.hash(principal, digest_trace(&look.digest, look.staged));
            found.by_digest = self.finder.find(&self.conn, hash, |number| {
                self.conn
                    .prepare_cached(
                        "SELECT number, version FROM entry WHERE number = ?1 AND principal = ?2 \
                         AND digest = ?3 AND staged = ?4",
                    )?
                    .query_row(params![number, principal, look.digest.0, look.staged], Hit::read)
                    .optional()
            })?;
        }
        if let Some(key) = look.key.as_ref().map(Key::as_str) {
            let hash = self.finder.hash(principal, Trace::Key(key));
            found.by_key = self.finder.find(&self.conn, hash, |number| {
                self.conn
                    .prepare_cached(
                        "SELECT number, version FROM entry WHERE number = ?1 AND principal = ?2 \
                         AND (key = ?3 OR EXISTS \
                           (SELECT 1 FROM alias WHERE alias.key = ?3 AND alias.entry = ?1))",
                    )?
                    .query_row(params![number, principal, key], Hit::read)
                    .optional()
            })?;
            if found.open_of_stranger.is_none() {
                found.open_of_stranger = self.stranger(key, principal)?;
            }
        }
        Ok(found)
    }

    /// Whether a weak principal other than this one has an open entry that began under this key.
    fn stranger(&self, key: &str, principal: &str) -> rusqlite::Result<Option<Stranger>> {
        let hash = self.anyones(key);
        for (_, number) in self.strangers.range((hash, i64::MIN)..=(hash, i64::MAX)) {
            let is_one = self
                .conn
                .prepare_cached(
                    "SELECT 1 FROM entry WHERE number = ?1 AND key = ?2 AND state <= 4 \
                     AND principal <> ?3",
                )?
                .exists(params![number, key, principal])?;
            if is_one {
                return Ok(Some(Stranger));
            }
        }
        Ok(None)
    }

    fn anyones(&self, key: &str) -> i64 {
        self.finder.hash("", Trace::AnyonesKey(key))
    }

    /// Forgets an attempt that is finished. An entry that is not open is nothing to strangers.
    fn closed(&mut self, subject: &Subject, state: State) {
        self.begun.remove(&subject.entry);
        if let Some(key) = subject.key.as_ref().filter(|_| subject.weak && !state.is_open()) {
            self.strangers.remove(&(self.anyones(key), subject.number));
        }
    }

    fn prior(&self, number: i64) -> rusqlite::Result<Prior> {
        self.conn
            .prepare_cached(concat!(
                "SELECT ",
                prior_columns!(),
                " FROM entry e WHERE e.number = ?1"
            ))?
            .query_row([number], rows::prior)
    }

    fn subject(&self, entry: EntryId) -> rusqlite::Result<Option<Subject>> {
        if let Some(subject) = self.begun.get(&entry) {
            return Ok(Some(subject.clone()));
        }
        let Some(number) = rows::number_of(&self.conn, entry)? else {
            return Ok(None);
        };
        self.conn
            .prepare_cached(
                "SELECT number, version, state, attempt, principal, key, digest, spent_ms, \
                 spent_nonce, weak FROM entry WHERE number = ?1 AND id = ?2",
            )?
            .query_row(params![number, entry.as_bytes()], |row| {
                let spent_ms: Option<i64> = row.get(7)?;
                let nonce: Option<[u8; 16]> = row.get(8)?;
                Ok(Subject {
                    number: row.get(0)?,
                    entry,
                    version: row.get(1)?,
                    state: rows::state(row, 2)?,
                    attempt: row.get(3)?,
                    principal: row.get(4)?,
                    key: row.get(5)?,
                    digest: Digest(row.get(6)?),
                    spent: spent_ms.zip(nonce),
                    weak: row.get(9)?,
                })
            })
            .optional()
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
            .prepare_cached("UPDATE entry SET state = ?2, version = ?3 WHERE number = ?1")?
            .execute(params![subject.number, state.code(), seq])?;
        self.begun.remove(&subject.entry);
        Ok(())
    }

    /// Marks what the accepted call `subject` took back.
    fn undo(&mut self, subject: &Subject, mark: &Digest, finish: &Finish) -> rusqlite::Result<()> {
        let Some(target) = self.undone_by(&subject.principal, mark)? else {
            return Ok(());
        };
        if target.number == subject.number {
            return Ok(());
        }
        let seq = self.step(&Step {
            number: target.number,
            previous: Some(target.version),
            at_ms: finish.now_ms,
            from: Some(State::Accepted),
            to: State::Undone,
            attempt: target.attempt,
            cause: Some(Cause::Undone),
            who: None,
            why: Some(&finish.entry.to_string()),
        })?;
        self.conn
            .prepare_cached(
                "UPDATE entry SET state = 7, version = ?2, cause = ?3 WHERE number = ?1",
            )?
            .execute(params![target.number, seq, Cause::Undone.as_str()])?;
        let hash = self.finder.hash(&subject.principal, Trace::UndoMark(mark));
        self.finder.remove(&self.conn, hash, target.number)
    }

    /// The newest accepted entry of a principal that a call with this mark takes back.
    fn undone_by(&self, principal: &str, mark: &Digest) -> rusqlite::Result<Option<Target>> {
        let hash = self.finder.hash(principal, Trace::UndoMark(mark));
        self.finder.find(&self.conn, hash, |number| {
            self.conn
                .prepare_cached(
                    "SELECT e.id, e.version, e.attempt FROM entry e \
                     JOIN history f ON f.seq = e.finish WHERE e.number = ?1 \
                     AND e.principal = ?2 AND e.state = 5 AND f.undo_mark = ?3",
                )?
                .query_row(params![number, principal, mark.0], |row| {
                    Ok(Target {
                        number,
                        entry: EntryId::from_bytes(row.get(0)?),
                        version: row.get(1)?,
                        attempt: row.get(2)?,
                    })
                })
                .optional()
        })
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
        self.conn
            .prepare_cached(
                "INSERT INTO history (seq, entry, previous, at_ms, from_state, to_state, attempt, \
                 cause, disposition, verdict, upstream_status, upstream_id, undo, undo_mark, \
                 compensate, deadline_ms, undo_unavailable, status, headers, body) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, \
                 ?17, ?18, ?19, ?20)",
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
                kept.map(|answer| rows::headers_blob(&answer.headers)),
                kept.map(|answer| answer.body.as_slice()),
            ])?;
        Ok(seq)
    }

    /// Writes one row of the history and returns its number.
    fn step(&mut self, step: &Step<'_>) -> rusqlite::Result<i64> {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.conn
            .prepare_cached(
                "INSERT INTO history (seq, entry, previous, at_ms, from_state, to_state, attempt, \
                 cause, who, why) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
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
                step.who,
                step.why,
            ])?;
        Ok(seq)
    }
}

impl<'a> Step<'a> {
    /// The step that makes an entry.
    fn first(number: i64, at_ms: i64) -> Self {
        Self {
            number,
            previous: None,
            at_ms,
            from: None,
            to: State::Begun,
            attempt: 1,
            cause: None,
            who: None,
            why: None,
        }
    }

    /// A step of an entry, by the sidecar itself.
    fn of(subject: &Subject, to: State, cause: Option<Cause>, at_ms: i64) -> Self {
        Self {
            number: subject.number,
            previous: Some(subject.version),
            at_ms,
            from: Some(subject.state),
            to,
            attempt: subject.attempt,
            cause,
            who: None,
            why: None,
        }
    }
}

/// How long after its end a used confirmation is remembered: no clock is off by so much.
const SPENT_MARGIN_MS: i64 = 600_000;

/// An entry that was found, and the step it stood at. Ordered by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hit {
    number: i64,
    version: i64,
}

impl Hit {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { number: row.get(0)?, version: row.get(1)? })
    }
}

/// What a call may repeat.
#[derive(Debug, Default)]
struct Repeats {
    by_key: Option<Hit>,
    by_digest: Option<Hit>,
    open_of_stranger: Option<Stranger>,
    /// The entry that holds the unique claim on principal, digest and stage flag.
    claimed: Option<i64>,
}

impl Repeats {
    fn differs_from(&self, expected: &Expected) -> bool {
        let version = |hit: Option<Hit>| hit.map(|hit| hit.version);
        version(self.by_key) != expected.by_key
            || version(self.by_digest) != expected.by_digest
            || (self.open_of_stranger.is_some() && expected.open_of_stranger.is_none())
    }
}

/// An entry as a begin, a finish or a decision needs it.
#[derive(Clone, Debug)]
struct Subject {
    number: i64,
    entry: EntryId,
    version: i64,
    state: State,
    attempt: u32,
    principal: String,
    key: Option<String>,
    digest: Digest,
    spent: Option<(i64, [u8; 16])>,
    weak: bool,
}

/// An entry that is taken back.
struct Target {
    number: i64,
    entry: EntryId,
    version: i64,
    attempt: u32,
}

/// One row of the history.
struct Step<'a> {
    number: i64,
    previous: Option<i64>,
    at_ms: i64,
    from: Option<State>,
    to: State,
    attempt: u32,
    cause: Option<Cause>,
    who: Option<&'a str>,
    why: Option<&'a str>,
}

fn digest_trace(digest: &Digest, is_staged: bool) -> Trace<'_> {
    if is_staged { Trace::StagedDigest(digest) } else { Trace::Digest(digest) }
}

/// What stands in `entry.twin`: its number keeps an entry out of the unique claim.
fn twin(guard: Guard, number: i64) -> i64 {
    match guard {
        Guard::Enforced => 0,
        Guard::Observed => number,
    }
}
