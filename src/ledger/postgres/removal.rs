//! What is taken out of the ledger: by a person, a part of one entry; by retention, what all entries of
//! a certain age held of their calls. Each in a transaction of its own, between two batches.
//!
//! Rows of the history are never removed, so that the chains can be followed, and entries neither, so
//! that a repeat under an old key is still known. Of several sidecars one removes at a time: it holds
//! the row that says how far it has come. What is gone from the tables is still in the database's log
//! and in dead rows until it is vacuumed, and in backups.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::chained::{self, Chained};
use super::rows::{self, column, damaged};
use super::session::{Fault, Pipe, Session};
use super::step::Step;
use super::{sql, verify};
use crate::ledger::chain::Seal;
use crate::ledger::chain::line::Line;
use crate::ledger::chain::row::{Content, Row};
use crate::ledger::chain::verify::{RETENTION, redaction, retention};
use crate::ledger::desk::command::{Done, Failure, PRUNED, Redact};
use crate::ledger::redact::{Taken, take_out};
use crate::ledger::{Noted, Reason, Settled};

/// How many of the entries that could not be removed are tried again with each batch.
const AGAIN: i64 = 16;

const SUBJECT: &str = "SELECT version, state, attempt, due_ms IS NOT NULL \
     FROM takeback.entry WHERE id = $1 FOR UPDATE";

const CURSOR: &str = "SELECT pruned_to, unpruned_to FROM takeback.retention FOR UPDATE SKIP LOCKED";

const MOVE: &str = "UPDATE takeback.retention SET pruned_to = $1, unpruned_to = $2";

const NEXT: &str = "SELECT x.id FROM (SELECT id, began_ms FROM takeback.entry WHERE id > $1 \
     ORDER BY id LIMIT $3) x WHERE x.began_ms < $2 ORDER BY x.id";

const UNPRUNED: &str =
    "SELECT entry FROM takeback.unpruned WHERE entry > $1 ORDER BY entry LIMIT $2";

/// Those that can be removed, locked; what another transaction is at is left for later.
const READY: &str = "SELECT version FROM takeback.entry WHERE id = ANY($1) AND state > 4 \
     AND due_ms IS NULL AND finished_ms < $2 AND attempted_ms < $2 ORDER BY id \
     FOR UPDATE SKIP LOCKED";

const LEAVE: &str = "INSERT INTO takeback.unpruned (entry) SELECT unnest($1::uuid[]) \
     ON CONFLICT DO NOTHING";

const DONE: &str = "DELETE FROM takeback.unpruned WHERE entry = ANY($1)";

const REMOVED: &str = "UPDATE takeback.entry SET removed = 2, kept = false WHERE id = ANY($1)";

const REDACTED: &str = "UPDATE takeback.entry SET version = $2, \
     removed = greatest(removed, 1::int2), kept = kept AND NOT $3 WHERE id = $1";

const LINE: &str = "UPDATE takeback.history SET upstream_id = $2, undo = $3, compensate = $4, \
     undo_unavailable = $5, status = $6, headers = $7, body = $8, seal = $9 WHERE seq = $1";

const HELD: &str = "UPDATE takeback.entry SET target = $2, lookup = $3 WHERE id = $1";

const IMAGE: &str = "UPDATE takeback.image SET before = $2 WHERE entry = $1";

/// What a connection that writes prepares.
pub(super) const STATEMENTS: &[&str] = &[
    SUBJECT,
    CURSOR,
    MOVE,
    NEXT,
    UNPRUNED,
    READY,
    LEAVE,
    DONE,
    REMOVED,
    REDACTED,
    LINE,
    HELD,
    IMAGE,
    verify::LINES_OF,
];

/// Who writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hand<'a> {
    pub(super) session: &'a Session,
    pub(super) owner: Uuid,
    pub(super) lease_ms: f64,
    pub(super) now_ms: i64,
}

impl<'a> Hand<'a> {
    /// Takes parts out of an entry.
    pub(super) async fn redact(
        &self,
        chained: &mut Chained,
        redact: &Redact,
    ) -> Result<Done, Fault> {
        self.in_transaction(chained, async |chained| self.try_redact(chained, redact).await).await
    }

    /// Removes a batch of what is older than a time; whether there may be more.
    pub(super) async fn prune(&self, chained: &mut Chained, before_ms: i64) -> Result<bool, Fault> {
        self.in_transaction(chained, async |chained| self.try_prune(chained, before_ms).await).await
    }

    /// Runs work that adds its statements to a pipe; they and the commit are sent at once.
    pub(super) async fn in_transaction<T>(
        &self,
        chained: &mut Chained,
        work: impl AsyncFnOnce(&mut Chained) -> Result<(T, Pipe<'a>), Fault>,
    ) -> Result<T, Fault> {
        let mark = chained.mark();
        let done = async {
            self.session.run(sql::BEGIN).await?;
            let lease: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
                &[&self.owner, &self.lease_ms, &self.now_ms];
            if self.session.query(sql::LEASE, lease).await?.is_empty() {
                return Err(Fault::Down(Failure::new(Reason::Lease, "its lease has run out")));
            }
            let (value, mut pipe) = work(chained).await?;
            // If its answer is lost, the chain is read again with the next connection.
            pipe.add(sql::COMMIT, Vec::new());
            pipe.run_all().await?;
            Ok(value)
        };
        match done.await {
            Ok(value) => {
                chained.committed();
                Ok(value)
            }
            Err(fault) => {
                chained.go_back(mark);
                // The connection may be gone; the roll-back then came of itself.
                drop(self.session.run("ROLLBACK").await);
                Err(fault)
            }
        }
    }

    async fn try_redact(
        &self,
        chained: &mut Chained,
        redact: &Redact,
    ) -> Result<(Done, Pipe<'a>), Fault> {
        let id = rows::uuid(redact.entry);
        let found = self.session.query(SUBJECT, &[&id]).await?;
        let nothing = |done: Done| Ok((done, self.session.pipe()));
        let Some(row) = found.first() else { return nothing(Done::NotFound) };
        let (version, state): (i64, _) = (column(row, 0)?, rows::state(row, 1)?);
        if state.is_open() || column(row, 3)? {
            return nothing(Done::StillOpen);
        }
        let mut taken = Taken::default();
        let mut changed = Vec::new();
        let mut left = Vec::new();
        for mut line in verify::lines_of(self.session, &[version]).await? {
            let before = line.clone();
            if before.held(|_| ()).is_none() || !take_out(&mut line, &redact.parts, &mut taken) {
                continue;
            }
            let seal = line.link.as_ref().and_then(|linked| Seal::from_bytes(&linked.seal));
            let seal = seal.map(|seal| {
                let (salt, now) = line.held(|content| chained.commit(content)).unwrap_or_default();
                left.push((line.seq, now));
                before.held(|content| seal.redacted(content, salt)).unwrap_or(seal)
            });
            changed.push((line, seal));
        }
        if taken.found.is_empty() || taken.found.iter().any(|found| !found) {
            return nothing(Done::NothingThere);
        }
        let mut pipe = self.session.pipe();
        for (line, seal) in changed {
            write_line(id, line, seal, &mut pipe);
        }
        let pointers: Vec<String> =
            redact.parts.iter().map(|part| part.as_str().to_owned()).collect();
        let detail = redaction(&pointers, &left);
        let step = Step {
            id,
            previous: version,
            from: state,
            to: state,
            attempt: rows::number(row, 2)?,
            cause: None,
            who: Some(&redact.who),
            why: Some(&redact.why),
            noted: Some(Noted::Redaction),
            verdict: None,
            detail: Some(&detail),
        };
        let seq = chained.next_seq(self.session).await?;
        pipe.add(sql::STEP, step.params(chained, seq, redact.now_ms, Content::None));
        pipe.add(REDACTED, vec![Box::new(id), Box::new(seq), Box::new(taken.of_answer)]);
        Ok((Done::Settled(Settled { version: seq, state }), pipe))
    }

    async fn try_prune(
        &self,
        chained: &mut Chained,
        before_ms: i64,
    ) -> Result<(bool, Pipe<'a>), Fault> {
        let session = self.session;
        let mut pipe = session.pipe();
        let found = session.query(CURSOR, &[]).await?;
        // Another sidecar is at it.
        let Some(row) = found.first() else { return Ok((false, pipe)) };
        let (pruned_to, unpruned_to): (Uuid, Uuid) = (column(row, 0)?, column(row, 1)?);
        let limit = rows::limit_of(PRUNED);
        let ids = |rows: Vec<tokio_postgres::Row>| -> Result<Vec<Uuid>, Fault> {
            rows.iter().map(|row| column(row, 0)).collect()
        };
        let next = ids(session.query(NEXT, &[&pruned_to, &before_ms, &limit]).await?)?;
        let again = ids(session.query(UNPRUNED, &[&unpruned_to, &AGAIN]).await?)?;
        let both: Vec<Uuid> = next.iter().chain(&again).copied().collect();
        let ready = session.query(READY, &[&both, &before_ms]).await?;
        let versions: Vec<i64> =
            ready.iter().map(|row| column(row, 0)).collect::<Result<_, _>>()?;
        let mut entries: BTreeMap<Vec<u8>, Vec<Line>> = BTreeMap::new();
        for line in verify::lines_of(session, &versions).await? {
            entries.entry(line.entry.clone()).or_default().push(line);
        }
        // A row of the chain says that what is older was removed; these are not.
        entries.retain(|_, lines| lines.iter().all(|line| line.at_ms < before_ms));
        let mut removed = Vec::new();
        for (entry, lines) in entries {
            let id = Uuid::from_slice(&entry).map_err(|_| damaged())?;
            for mut line in lines {
                let seal = line.link.as_ref().and_then(|linked| Seal::from_bytes(&linked.seal));
                let seal = seal.map(|seal| match line.held(|content| seal.removed(content)) {
                    Some(seal) => seal,
                    None => seal.replaced(),
                });
                line.empty();
                write_line(id, line, seal, &mut pipe);
            }
            removed.push(id);
        }
        let left: Vec<Uuid> = next.iter().filter(|id| !removed.contains(id)).copied().collect();
        let is_over = again.len() < usize::try_from(AGAIN).unwrap_or(usize::MAX);
        // Round and round: one that is open for long keeps no other from its turn.
        let on = again.last().copied().filter(|_| !is_over).unwrap_or(Uuid::nil());
        let is_idle = next.is_empty() && removed.is_empty() && on == unpruned_to;
        if is_idle {
            return Ok((false, pipe));
        }
        if !removed.is_empty() {
            let seq = chained.next_seq(session).await?;
            let detail = retention(before_ms, removed.len());
            let row = Row {
                seq,
                at_ms: self.now_ms,
                noted: Some(RETENTION),
                detail: Some(&detail),
                ..Row::default()
            };
            pipe.add(chained::STEP, chained.own(&row));
            pipe.add(DONE, vec![Box::new(removed.clone())]);
            pipe.add(REMOVED, vec![Box::new(removed)]);
        }
        if !left.is_empty() {
            pipe.add(LEAVE, vec![Box::new(left)]);
        }
        let pruned_to = next.last().copied().unwrap_or(pruned_to);
        pipe.add(MOVE, vec![Box::new(pruned_to), Box::new(on)]);
        Ok((true, pipe))
    }
}

/// Adds what writes what is left of a row.
fn write_line(id: Uuid, line: Line, seal: Option<Seal>, pipe: &mut Pipe<'_>) {
    // The entry holds the newest attempt's.
    let held = line.is_begin() && line.held(|_| ()).is_some();
    if let Some(holder) = line.holder.filter(|_| held) {
        pipe.add(HELD, vec![Box::new(id), Box::new(holder.target), Box::new(holder.lookup)]);
        match holder.before {
            Some(before) => pipe.add(IMAGE, vec![Box::new(id), Box::new(before)]),
            None => pipe.add(sql::UNIMAGE, vec![Box::new(id)]),
        };
    }
    let status = line.status.map(|status| i32::try_from(status).unwrap_or_default());
    pipe.add(
        LINE,
        vec![
            Box::new(line.seq),
            Box::new(line.upstream_id),
            Box::new(line.undo),
            Box::new(line.compensate),
            Box::new(line.undo_unavailable),
            Box::new(status),
            Box::new(line.headers),
            Box::new(line.body),
            Box::new(seal.map(Seal::to_bytes)),
        ],
    );
}
