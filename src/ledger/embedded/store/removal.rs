//! What is taken out of the ledger: by a person, a part of one entry; by retention, what all entries of
//! a certain age held of their calls.
//!
//! Rows of the history are never removed, so that the chain can be followed, and entries neither, so that
//! a repeat under an old key is still known. What is gone is overwritten in the file, not only unlinked.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::ledger::Noted;
use crate::ledger::chain::Seal;
use crate::ledger::chain::line::Line;
use crate::ledger::chain::row::{Content, Row};
use crate::ledger::chain::verify::{RETENTION, redaction, retention};
use crate::ledger::redact::{Taken, take_out};

use super::super::super::desk::command::{PRUNED, Redact};
use super::super::verify;
use super::{Done, Store, Subject};

/// How many of the entries that could not be removed are tried again with each batch.
const AGAIN: i64 = 16;

impl Store {
    /// Takes parts out of an entry.
    pub(in crate::ledger::embedded) fn redact(
        &mut self,
        redact: &Redact,
    ) -> rusqlite::Result<Done> {
        let Some(subject) = self.subject(redact.entry)? else {
            return Ok(Done::NotFound);
        };
        let is_due: bool = self
            .conn
            .prepare_cached("SELECT due_ms IS NOT NULL FROM entry WHERE number = ?1")?
            .query_row([subject.number], |row| row.get(0))?;
        if subject.state.is_open() || is_due {
            return Ok(Done::StillOpen);
        }
        let mut taken = Taken::default();
        let mut changed: Vec<(Line, Option<Seal>)> = Vec::new();
        let mut left = Vec::new();
        for mut line in verify::lines_of(&self.conn, subject.version)? {
            let before = line.clone();
            if before.held(|_| ()).is_none() || !take_out(&mut line, &redact.parts, &mut taken) {
                continue;
            }
            let seal = line.link.as_ref().and_then(|linked| Seal::from_bytes(&linked.seal));
            let seal = seal.map(|seal| {
                let commit = |content: Content<'_>| self.chain.commit(content);
                let (salt, now) = line.held(commit).unwrap_or_default();
                left.push((line.seq, now));
                before.held(|content| seal.redacted(content, salt)).unwrap_or(seal)
            });
            changed.push((line, seal));
        }
        if taken.found.is_empty() || taken.found.iter().any(|found| !found) {
            return Ok(Done::NothingThere);
        }
        self.overwriting(|store| {
            for (line, seal) in &changed {
                store.write_line(subject.number, line, *seal)?;
            }
            Ok(())
        })?;
        let pointers: Vec<String> =
            redact.parts.iter().map(|part| part.as_str().to_owned()).collect();
        let detail = redaction(&pointers, &left);
        let seq = self.noted_step(
            &subject,
            Noted::Redaction,
            (&redact.who, &redact.why, &detail),
            redact.now_ms,
        )?;
        // An answer of which a part is gone is not the upstream's any more.
        self.conn
            .prepare_cached(
                "UPDATE entry SET version = ?2, removed = max(removed, 1), \
                 kept = CASE WHEN ?3 THEN 0 ELSE kept END WHERE number = ?1",
            )?
            .execute(params![subject.number, seq, taken.of_answer])?;
        Ok(Done::Settled(crate::ledger::Settled { version: seq, state: subject.state }))
    }

    /// Removes what entries held of their calls that were over before a time; a batch of them.
    /// [`Done::Refused`]: there was none.
    pub(in crate::ledger::embedded) fn prune(
        &mut self,
        before_ms: i64,
        now_ms: i64,
    ) -> rusqlite::Result<Done> {
        let limit = i64::try_from(PRUNED).unwrap_or(i64::MAX);
        let pruned_to = self.cursor("pruned_to")?;
        let next: Vec<i64> = self
            .conn
            .prepare_cached(
                "SELECT number FROM (SELECT number, began_ms FROM entry WHERE number > ?1 \
                 ORDER BY number LIMIT ?3) WHERE began_ms < ?2 ORDER BY number",
            )?
            .query_map([pruned_to, before_ms, limit], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let unpruned_to = self.cursor("unpruned_to")?;
        let again: Vec<i64> = self
            .conn
            .prepare_cached("SELECT entry FROM unpruned WHERE entry > ?1 ORDER BY entry LIMIT ?2")?
            .query_map([unpruned_to, AGAIN], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut removed = 0;
        for number in &again {
            if self.remove(*number, before_ms)? {
                removed += 1;
                self.conn
                    .prepare_cached("DELETE FROM unpruned WHERE entry = ?1")?
                    .execute([number])?;
            }
        }
        for number in &next {
            if self.remove(*number, before_ms)? {
                removed += 1;
            } else {
                self.conn
                    .prepare_cached("INSERT OR IGNORE INTO unpruned (entry) VALUES (?1)")?
                    .execute([number])?;
            }
        }
        if removed > 0 {
            let detail = retention(before_ms, removed);
            self.ledger_step(&Row {
                at_ms: now_ms,
                noted: Some(RETENTION),
                detail: Some(&detail),
                ..Row::default()
            })?;
        }
        if let Some(last) = next.last() {
            self.set_cursor("pruned_to", *last)?;
        }
        // Round and round: one that is open for long keeps no other from its turn.
        let is_round_over = again.len() < usize::try_from(AGAIN).unwrap_or(usize::MAX);
        let on = again.last().copied().filter(|_| !is_round_over).unwrap_or(0);
        if on != unpruned_to {
            self.set_cursor("unpruned_to", on)?;
        }
        let is_idle = next.is_empty() && removed == 0 && on == unpruned_to;
        Ok(if is_idle { Done::Refused } else { Done::Written })
    }

    /// Removes what one entry held of its call; `false` if it is too young, or still needed.
    fn remove(&self, number: i64, before_ms: i64) -> rusqlite::Result<bool> {
        let version: Option<i64> = self
            .conn
            .prepare_cached(
                "SELECT version FROM entry WHERE number = ?1 AND state > 4 AND due_ms IS NULL \
                 AND finished_ms < ?2 AND attempted_ms < ?2",
            )?
            .query_row([number, before_ms], |row| row.get(0))
            .optional()?;
        let Some(version) = version else {
            return Ok(false);
        };
        let lines = verify::lines_of(&self.conn, version)?;
        // A row of the chain says that what is older was removed; this one is not.
        if lines.iter().any(|line| line.at_ms >= before_ms) {
            return Ok(false);
        }
        self.overwriting(|store| {
            for mut line in lines {
                let seal = line.link.as_ref().and_then(|linked| Seal::from_bytes(&linked.seal));
                let seal = seal.map(|seal| match line.held(|content| seal.removed(content)) {
                    Some(seal) => seal,
                    None => seal.replaced(),
                });
                line.empty();
                store.write_line(number, &line, seal)?;
            }
            store
                .conn
                .prepare_cached("UPDATE entry SET removed = 2, kept = 0 WHERE number = ?1")?
                .execute([number])?;
            Ok(true)
        })
    }

    /// Writes what is left of a row.
    fn write_line(&self, number: i64, line: &Line, seal: Option<Seal>) -> rusqlite::Result<()> {
        self.conn
            .prepare_cached(
                "UPDATE history SET upstream_id = ?2, undo = ?3, compensate = ?4, \
                 undo_unavailable = ?5, status = ?6, headers = ?7, body = ?8, seal = ?9 \
                 WHERE seq = ?1",
            )?
            .execute(params![
                line.seq,
                line.upstream_id,
                line.undo,
                line.compensate,
                line.undo_unavailable,
                line.status,
                line.headers,
                line.body,
                seal.map(Seal::to_bytes),
            ])?;
        // The entry holds the newest attempt's.
        let held = line.is_begin() && line.held(|_| ()).is_some();
        let Some(holder) = line.holder.as_ref().filter(|_| held) else {
            return Ok(());
        };
        self.conn
            .prepare_cached("UPDATE entry SET target = ?2, lookup = ?3 WHERE number = ?1")?
            .execute(params![number, holder.target, holder.lookup])?;
        match &holder.before {
            Some(before) => self
                .conn
                .prepare_cached("UPDATE image SET before = ?2 WHERE entry = ?1")?
                .execute(params![number, before])?,
            None => {
                self.conn.prepare_cached("DELETE FROM image WHERE entry = ?1")?.execute([number])?
            }
        };
        Ok(())
    }

    /// Keeps what an attempt's row commits to, before the next attempt takes the place of what it was
    /// made with.
    pub(super) fn keep_commitment(&self, subject: &Subject) -> rusqlite::Result<()> {
        for line in verify::lines_of(&self.conn, subject.version)? {
            if !line.is_begin() || line.attempt != subject.attempt {
                continue;
            }
            let seal = line.link.as_ref().and_then(|linked| Seal::from_bytes(&linked.seal));
            let seal = seal.and_then(|seal| line.held(|content| seal.complete(content)));
            if let Some(seal) = seal {
                self.conn
                    .prepare_cached("UPDATE history SET seal = ?2 WHERE seq = ?1")?
                    .execute(params![line.seq, seal.to_bytes()])?;
            }
        }
        Ok(())
    }

    /// Runs what is to leave no trace in the pages that it frees.
    fn overwriting<T>(
        &self,
        work: impl FnOnce(&Self) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        secure_delete(&self.conn, true)?;
        let done = work(self);
        secure_delete(&self.conn, false)?;
        done
    }

    fn cursor(&self, name: &str) -> rusqlite::Result<i64> {
        let value = self
            .conn
            .prepare_cached("SELECT value FROM meta WHERE name = ?1")?
            .query_row([name], |row| row.get(0))
            .optional()?;
        Ok(value.unwrap_or(0))
    }

    fn set_cursor(&self, name: &str, value: i64) -> rusqlite::Result<()> {
        self.conn
            .prepare_cached(
                "INSERT INTO meta (name, value) VALUES (?1, ?2) \
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            )?
            .execute(params![name, value])?;
        Ok(())
    }
}

fn secure_delete(conn: &Connection, is_on: bool) -> rusqlite::Result<()> {
    let sql = if is_on { "PRAGMA secure_delete = 1" } else { "PRAGMA secure_delete = 0" };
    conn.prepare_cached(sql)?.query_row([], |_| Ok(()))
}
