//! The commands, in SQL. One thread owns this; nothing here waits but for the disk.
//!
//! Every write runs inside a transaction that the [writer](super::writer) opens and commits. The
//! counters and the part of the index that live in memory follow the transaction: after a roll-back
//! [`Store::reload`] reads them again.

mod begin;
pub(super) mod chained;
mod finish;
mod note;
mod removal;

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::contract::key::{Digest, EntryId, Key};
use crate::ledger::chain::Chain;
use crate::ledger::chain::row::{Content, First, Row as ChainRow};
use crate::ledger::entry::{Cause, State};
use crate::ledger::{Expected, Keys, Look, MAX_UNKNOWN_NAMED, Prior, Priors, Stored, Stranger};

use super::super::desk::command::{Done, Settle, TookBack};
use super::finder::Finder;
use super::known::{Hashes, Known, Trace, start};
use super::rows::{self, prior_columns};
use super::touched::Touched;

/// The store: the connection, and what must be known without asking it.
#[derive(Debug)]
pub(super) struct Store {
    conn: Connection,
    known: Arc<Known>,
    finder: Finder,
    /// The highest number in use.
    newest: i64,
    /// The attempts that began here and are not finished, so that their finish need not search.
    begun: HashMap<EntryId, Subject>,
    next_seq: i64,
    touched: Touched,
    chain: Chain,
}

impl Store {
    /// Takes over a connection to a ledger of this version, and fills `known` from it.
    pub(super) fn new(
        conn: Connection,
        keys: &Keys,
        seed: [u8; 32],
        known: Arc<Known>,
    ) -> rusqlite::Result<Self> {
        let mut store = Self {
            conn,
            finder: Finder::new(Arc::clone(&known), 0),
            known,
            newest: 0,
            begun: HashMap::new(),
            next_seq: 1,
            touched: Touched::default(),
            chain: Chain::new(keys.current(), None, seed),
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
        self.touched = Touched::read(&self.conn)?;
        self.chain.set_head(chained::newest(&self.conn)?);

        let indexed = one("SELECT value FROM meta WHERE name = 'indexed'")?;
        self.known.forget(usize::try_from(indexed).unwrap_or(0));
        let known = &self.known;
        let mut finder = Finder::new(Arc::clone(known), indexed_to);
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
            finder.add(&self.conn, known.hash(&principal, trace), number)?;
            if let Some(key) = row.get::<_, Option<String>>(3)? {
                finder.add(&self.conn, known.hash(&principal, Trace::Key(&key)), number)?;
            }
            if let Some(mark) = row.get::<_, Option<[u8; 32]>>(5)? {
                let hash = known.hash(&principal, Trace::UndoMark(&Digest(mark)));
                finder.add(&self.conn, hash, number)?;
            }
        }
        drop(rows);
        drop(statement);
        self.finder = finder;
        self.begun.clear();
        self.reload_open()?;
        self.known.complete();
        Ok(())
    }

    /// Reads again which entries are open.
    fn reload_open(&self) -> rusqlite::Result<()> {
        let mut statement =
            self.conn.prepare("SELECT number, digest, key, weak FROM entry WHERE state <= 4")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let number = row.get(0)?;
            let stranger = match row.get_ref(2)?.as_str_or_null()? {
                Some(key) if row.get(3)? => Some(self.anyones(key)),
                Some(_) | None => None,
            };
            let mut memory = self.known.memory();
            memory.open.insert(start(&Digest(row.get(1)?)), number);
            if let Some(stranger) = stranger {
                memory.strangers.insert(stranger, number);
            }
        }
        self.reload_unknown()
    }

    /// Reads again which operations have entries of unknown outcome.
    pub(super) fn reload_unknown(&self) -> rusqlite::Result<()> {
        let mut statement =
            self.conn.prepare("SELECT DISTINCT principal, operation FROM entry WHERE state = 4")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let operation = Trace::Operation(row.get_ref(1)?.as_str()?);
            let hash = self.known.hash(row.get_ref(0)?.as_str()?, operation);
            self.known.memory().unknown.insert(hash);
        }
        Ok(())
    }

    /// Notes that an entry's outcome is unknown.
    fn note_unknown(&self, number: i64) -> rusqlite::Result<()> {
        let hash = self
            .conn
            .prepare_cached("SELECT principal, operation FROM entry WHERE number = ?1")?
            .query_row([number], |row| {
                let operation = Trace::Operation(row.get_ref(1)?.as_str()?);
                Ok(self.known.hash(row.get_ref(0)?.as_str()?, operation))
            })?;
        self.known.memory().unknown.insert(hash);
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
        let found = self.repeats(look, self.known.hashes(look))?;
        let by_key = found.by_key.map(|hit| self.prior(hit.number)).transpose()?;
        let by_digest = match found.by_digest {
            Some(hit) if found.by_key.is_some_and(|key| key.number == hit.number) => by_key.clone(),
            Some(hit) => Some(self.prior(hit.number)?),
            None => None,
        };
        let unknown_of_operation = self.unknown_of(look)?;
        Ok(Priors {
            by_key,
            by_digest,
            open_of_stranger: found.open_of_stranger,
            undoes: self.undone_by(&look.principal.id, &look.mark)?.map(|target| target.entry),
            unknown_of_operation,
        })
    }

    fn unknown_of(&self, look: &Look) -> rusqlite::Result<Vec<EntryId>> {
        let hash = self.known.operation(look);
        if !self.known.memory().unknown.contains(&hash) {
            return Ok(Vec::new());
        }
        let named = i64::try_from(MAX_UNKNOWN_NAMED).unwrap_or(i64::MAX);
        let unknown: Vec<EntryId> = self
            .conn
            .prepare_cached(
                "SELECT id FROM entry WHERE principal = ?1 AND operation = ?2 AND state = 4 \
                 ORDER BY number DESC LIMIT ?3",
            )?
            .query_map(params![look.principal.id, look.operation.as_str(), named], |row| {
                row.get(0).map(EntryId::from_bytes)
            })?
            .collect::<rusqlite::Result<_>>()?;
        if unknown.is_empty() {
            // Settled since.
            self.known.memory().unknown.remove(&hash);
        }
        Ok(unknown)
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

    /// Finds what a call may repeat.
    fn repeats(&self, look: &Look, hashes: Hashes) -> rusqlite::Result<Repeats> {
        let principal = look.principal.id.as_str();
        let mut found = Repeats::default();
        let is_open = self.known.memory().open.has(start(&look.digest));
        if is_open {
            self.find_open(look, &mut found)?;
        }
        if found.by_digest.is_none() {
            found.by_digest = self.finder.find(&self.conn, hashes.digest, |number| {
                self.conn
                    .prepare_cached(
                        // An attempt that was not sent is no earlier call: nothing of it happened.
                        "SELECT number, version FROM entry WHERE number = ?1 AND principal = ?2 \
                         AND digest = ?3 AND staged = ?4 \
                         AND NOT (state = 6 AND cause IS 'not_sent')",
                    )?
                    .query_row(params![number, principal, look.digest.0, look.staged], Hit::read)
                    .optional()
            })?;
        }
        if let (Some(key), Some(hash), Some(anyones)) =
            (look.key.as_ref().map(Key::as_str), hashes.key, hashes.anyones)
        {
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
                found.open_of_stranger = self.stranger(anyones, key, principal)?;
            }
        }
        Ok(found)
    }

    /// Finds the open entries of a call's digest.
    fn find_open(&self, look: &Look, found: &mut Repeats) -> rusqlite::Result<()> {
        let mut statement = self.conn.prepare_cached(
            "SELECT number, version, principal, weak, staged, twin FROM entry \
             WHERE digest = ?1 AND state <= 4",
        )?;
        let mut rows = statement.query([look.digest.0])?;
        while let Some(row) = rows.next()? {
            let hit = Hit { number: row.get(0)?, version: row.get(1)? };
            let is_mine = row.get_ref(2)?.as_str()? == look.principal.id;
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
        Ok(())
    }

    /// Whether a weak principal other than this one has an open entry that began under this key.
    fn stranger(
        &self,
        hash: i64,
        key: &str,
        principal: &str,
    ) -> rusqlite::Result<Option<Stranger>> {
        let numbers: Vec<i64> = self.known.memory().strangers.of(hash).collect();
        for number in numbers {
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
        self.known.hash("", Trace::AnyonesKey(key))
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
                    anyones: None,
                })
            })
            .optional()
    }

    /// The newest accepted entry of a principal that a call with this mark takes back.
    fn undone_by(&self, principal: &str, mark: &Digest) -> rusqlite::Result<Option<Target>> {
        let hash = self.known.hash(principal, Trace::UndoMark(mark));
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

    /// Writes one row of the history and returns its number.
    fn step(&mut self, step: &Step<'_>) -> rusqlite::Result<i64> {
        self.step_with(step, None, Content::None)
    }

    /// As [`step`](Self::step), of a step that makes the entry, or that holds something of the call.
    fn step_with(
        &mut self,
        step: &Step<'_>,
        first: Option<&First<'_>>,
        content: Content<'_>,
    ) -> rusqlite::Result<i64> {
        let seq = self.next_seq;
        self.next_seq += 1;
        let entry = step.number.to_be_bytes();
        let seal = self.chain.seal(&step.row(seq, &entry), first, content);
        self.conn
            .prepare_cached(
                "INSERT INTO history (seq, entry, previous, at_ms, from_state, to_state, attempt, \
                 cause, who, why, detail, seal) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
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
                step.detail,
                seal.compact().to_bytes(),
            ])?;
        Ok(seq)
    }
}

impl<'a> Step<'a> {
    /// The step that makes an entry.
    fn first(number: i64, at_ms: i64, detail: Option<&'a str>) -> Self {
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
            detail,
        }
    }

    /// As the chain takes it.
    fn row<'b>(&'b self, seq: i64, entry: &'b [u8]) -> ChainRow<'b> {
        ChainRow {
            seq,
            entry,
            previous: self.previous,
            at_ms: self.at_ms,
            from: self.from.map(State::code),
            to: self.to.code(),
            attempt: self.attempt,
            cause: self.cause.map(Cause::as_str),
            who: self.who,
            why: self.why,
            detail: self.detail,
            ..ChainRow::default()
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
            detail: None,
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
    /// The hash of its key among the strangers', if it was made.
    anyones: Option<i64>,
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
    detail: Option<&'a str>,
}

fn digest_trace(digest: &Digest, is_staged: bool) -> Trace<'_> {
    if is_staged { Trace::StagedDigest(digest) } else { Trace::Digest(digest) }
}
