//! The one thread that writes: takes commands in order, many to a commit.
//!
//! A batch is a transaction. It opens with the first write, takes what is queued, up to [`BATCH`]
//! commands, and is committed as soon as the queue is empty and somebody waits for it. Finishes and
//! deliveries alone do not make it commit: they wait up to [`LAZY`] for a begin to ride with. Reads
//! are answered at once, out of the open transaction, so that they see what was queued before them.
//!
//! A finish is acknowledged when it is queued, and durable a commit later: a crash between the two
//! leaves the entry begun, unknown at the next start, and its repeat is refused until it is settled. What
//! must not happen is that a finish finds no room. So begins are refused while the volume, or the
//! ledger's own limit, has only as much room left as finishes may need; and a store that failed counts as
//! down until everything that it owed is on disk.
//!
//! If one command fails in SQL, the batch is rolled back and its commands run one by one. If the
//! store fails, everybody who waits is told so, finishes go to a backlog, and the file is opened
//! again and tried from time to time. A begin that was told so may have reached the disk all the
//! same: its withdrawal is the first thing written when the store is back.

use std::collections::VecDeque;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::ledger::{Begun, Integrity, LedgerError, Reason};

use super::super::chain;
use super::super::desk::Shared;
use super::super::desk::command::{
    Command, Done, Failure, PAGES, Write, acknowledge, is_empty, is_urgent, pages, refuse, tell,
};
use super::file::{self, Identity};
use super::known::{Coming, Known};
use super::newest::{Newest, When};
use super::store::Store;
use super::{Options, TakenUp, ahead};

/// Commands in one commit: enough that the flush costs little for each, few enough that a commit
/// stays short.
const BATCH: usize = 256;

/// How long finishes wait for a begin to ride with.
const LAZY: Duration = Duration::from_millis(4);

/// Between two batches of removals: while there is more to remove, and when there is not.
const PRUNE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(60));

/// Between two attempts to get a failed store back: from the first, doubling, to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Pages that may be written before the log is copied into the file: a bound on the log's size and
/// on how long one copy takes.
const CHECKPOINT: usize = 4096;

/// How long nothing must come before what is left of the log is copied.
const IDLE: Duration = Duration::from_millis(500);

/// The part of the size limit that is kept for finishes, in percent.
const RESERVE_PERCENT: u64 = 15;

/// Commits between two looks at the file's size.
const SIZE_CHECK: u64 = 64;

/// The thread's state.
pub(super) struct Writer {
    pub(super) path: PathBuf,
    pub(super) options: Options,
    pub(super) shared: Arc<Shared>,
    pub(super) known: Arc<Known>,
    pub(super) commands: Receiver<Command>,
    /// `None` while the store is down.
    pub(super) store: Option<Store>,
    pub(super) identity: Identity,
    /// Whether what an earlier process left was taken up; not if there was no room for that.
    pub(super) is_taken_up: bool,
    /// The newest step that is on disk: a file that lacks it is not this ledger.
    pub(super) durable_seq: i64,
    /// How long the log was after the last commit.
    pub(super) log_bytes: u64,
    /// The size of a page.
    pub(super) page_bytes: u64,
    /// Whether the log is to be made longer; `None`: it is left as it is.
    pub(super) is_log_short: Option<bool>,
    /// How long the file was, at most.
    pub(super) file_bytes: u64,
    /// What is kept beside the file of where its chain ends.
    pub(super) newest: Newest,
    /// Whether the ledger's own size limit leaves room for finishes only.
    pub(super) is_over_cap: bool,
    /// Held until the thread ends.
    pub(super) lock: File,
    /// The lock on the file itself; closed after the connection.
    pub(super) claim: File,
    pub(super) batch: Batch,
    /// Finishes and withdrawals for when the store is back.
    pub(super) backlog: VecDeque<Write>,
    pub(super) retry: Retry,
    /// When the next batch is removed; `None`: everything is kept.
    pub(super) prune_at: Option<Instant>,
    /// Pages since the log was last copied.
    pub(super) dirt: usize,
    pub(super) commits: u64,
}

/// When to try a failed store again.
#[derive(Debug)]
pub(super) struct Retry {
    at: Instant,
    pause: Duration,
}

impl Retry {
    pub(super) fn new() -> Self {
        Self { at: now(), pause: RETRY.0 }
    }

    fn again(&mut self) {
        self.at = now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY.1);
    }
}

/// The open transaction's commands, and when they must be committed at the latest.
#[derive(Debug, Default)]
pub(super) struct Batch {
    writes: Vec<(Write, Done)>,
    is_urgent: bool,
    /// Whether each command has its own transaction.
    is_single: bool,
    due: Option<Instant>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.set_down(Some(Reason::Closed));
    }
}

impl Writer {
    /// Runs until the ledger is closed or its last handle is gone.
    pub(super) fn run(mut self) {
        self.check_size();
        self.check_room();
        self.check_ahead();
        loop {
            let wait = match self.batch.due {
                Some(due) => due.saturating_duration_since(now()),
                None if self.store.is_none() => self.retry.at.saturating_duration_since(now()),
                None if self.is_log_short == Some(true) => Duration::ZERO,
                None if self.is_building() => Duration::ZERO,
                None => {
                    let idle = if self.dirt > 0 { IDLE } else { Duration::MAX };
                    let prune = self.prune_at.map(|at| at.saturating_duration_since(now()));
                    idle.min(prune.unwrap_or(Duration::MAX))
                }
            };
            let next = if wait == Duration::MAX {
                self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.commands.recv_timeout(wait)
            };
            match next {
                Ok(command) => {
                    if let Some(closed) = self.take_queued(command) {
                        self.end();
                        tell(closed, ());
                        return;
                    }
                    let is_due = self.batch.due.is_some_and(|due| due <= now());
                    let is_full = self.batch.writes.len() >= BATCH;
                    // An empty batch may have opened a transaction for a begin that wrote nothing.
                    let is_empty = self.batch.writes.is_empty();
                    if self.batch.is_urgent || is_full || is_due || is_empty {
                        self.commit();
                    }
                    if self.store.is_none() && self.retry.at <= now() {
                        self.revive();
                    }
                    if self.batch.writes.is_empty() && self.is_prune_due() {
                        self.prune();
                    }
                }
                Err(RecvTimeoutError::Timeout) if self.store.is_none() => self.revive(),
                Err(RecvTimeoutError::Timeout) if self.batch.due.is_some() => self.commit(),
                Err(RecvTimeoutError::Timeout) if self.is_log_short == Some(true) => {
                    self.lengthen();
                }
                Err(RecvTimeoutError::Timeout) if self.is_building() => self.build(),
                Err(RecvTimeoutError::Timeout) if self.is_prune_due() => self.prune(),
                Err(RecvTimeoutError::Timeout) => self.checkpoint("PRAGMA wal_checkpoint(PASSIVE)"),
                Err(RecvTimeoutError::Disconnected) => return self.end(),
            }
        }
    }

    fn is_prune_due(&self) -> bool {
        self.store.is_some() && self.prune_at.is_some_and(|at| at <= now())
    }

    /// Removes a batch of what is older than what is kept.
    fn prune(&mut self) {
        let Some(retention) = self.options.retention else { return };
        let now_ms = self.shared.time();
        let retention_ms = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
        let before_ms = now_ms.saturating_sub(retention_ms);
        self.take(Write::Prune { before_ms, now_ms });
        let is_more = !self.batch.writes.is_empty();
        self.commit();
        self.prune_at = Some(now() + if is_more { PRUNE.0 } else { PRUNE.1 });
    }

    fn is_building(&self) -> bool {
        self.store.as_ref().is_some_and(Store::is_building)
    }

    fn build(&mut self) {
        if let Some(store) = &mut self.store
            && let Err(error) = store.build()
        {
            self.fail(error.into());
        }
    }

    /// Takes a command and those behind it. Returns who asked to close.
    fn take_queued(&mut self, first: Command) -> Option<oneshot::Sender<()>> {
        let mut next = Some(first);
        for _ in 0..BATCH {
            match next.take().or_else(|| self.commands.try_recv().ok())? {
                Command::Answer(entry, reply, permit) => {
                    drop(permit);
                    let answer = self.read(|store| store.answer(entry));
                    tell(reply, answer);
                }
                Command::Close(closed) => return Some(closed),
                Command::Look(look, reply, permit) => {
                    drop(permit);
                    let priors = self.read(|store| store.look(&look));
                    tell(reply, priors);
                }
                Command::Write(write, permit) => {
                    drop(permit);
                    self.take(write);
                    if self.batch.writes.len() >= BATCH {
                        return None;
                    }
                }
            }
        }
        None
    }

    fn read<T>(
        &mut self,
        read: impl FnOnce(&Store) -> rusqlite::Result<T>,
    ) -> Result<T, LedgerError> {
        let Some(store) = &self.store else {
            return Err(self.unavailable());
        };
        read(store).map_err(|error| {
            let failure = Failure::from(error);
            let reason = failure.reason;
            self.fail(failure);
            LedgerError::Unavailable(reason)
        })
    }

    /// Runs one write in the batch's transaction.
    fn take(&mut self, write: Write) {
        if let Write::Begin(_, reply, _) = &write {
            if reply.is_closed() {
                return;
            }
            if self.store.is_some()
                && let Some(reason) = self.shared.refusal()
            {
                refuse(write, LedgerError::Unavailable(reason));
                return;
            }
        }
        if self.store.is_none() {
            if let Write::Heartbeat(now_ms, _) = &write {
                self.shared.note_time(*now_ms);
                self.revive();
            }
            if self.store.is_none() {
                let error = self.unavailable();
                self.put_off(write, error);
                return;
            }
        }
        match self.run_one(&write) {
            Ok(done) if is_empty(&done) => acknowledge(write, done, &self.shared),
            Ok(done) => {
                self.batch.is_urgent |= is_urgent(&write);
                self.dirt += pages(&write);
                self.batch.writes.push((write, done));
                if self.batch.due.is_none() {
                    self.batch.due = Some(now() + LAZY);
                }
            }
            Err(error) => match Failure::of(&error) {
                Some(failure) => {
                    self.batch.writes.push((write, Done::Written));
                    self.fail(failure);
                }
                None if self.batch.is_single => {
                    tracing::error!(%error, "a ledger command failed");
                    if let Err(error) = self.roll_back() {
                        self.batch.writes.push((write, Done::Written));
                        self.fail(error.into());
                    } else {
                        self.shared.count_refused();
                        refuse(write, LedgerError::Refused);
                    }
                }
                None => self.take_singly(write),
            },
        }
    }

    /// Rolls the batch back and runs its commands and `last` each in its own transaction, so that
    /// the one that is at fault fails alone.
    fn take_singly(&mut self, last: Write) {
        let rolled_back = self.roll_back();
        let mut writes: Vec<Write> =
            std::mem::take(&mut self.batch).writes.into_iter().map(|(write, _)| write).collect();
        writes.push(last);
        if let Err(error) = rolled_back {
            self.batch.writes = writes.into_iter().map(|write| (write, Done::Written)).collect();
            self.fail(error.into());
            return;
        }
        for write in writes {
            self.batch.is_single = true;
            self.take(write);
            self.commit();
        }
        self.batch = Batch::default();
    }

    fn run_one(&mut self, write: &Write) -> rusqlite::Result<Done> {
        let Some(store) = &mut self.store else {
            return Ok(Done::Refused);
        };
        if store.conn().is_autocommit() {
            store.conn().prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        }
        match write {
            Write::Acknowledge(word, _) => store.acknowledge(word, self.newest.lost()),
            Write::Begin(begin, _, home) => {
                self.shared.note_time(begin.now_ms);
                let made = home.coming.as_ref().and_then(Coming::hashes);
                let hashes = made.unwrap_or_else(|| self.known.hashes(&begin.look));
                #[cfg(test)]
                if begin.target == crate::ledger::tests::POISON {
                    store.begin(begin, hashes)?;
                    return Err(rusqlite::Error::QueryReturnedNoRows);
                }
                store.begin(begin, hashes)
            }
            Write::Delivered { entry, .. } => store.delivered(*entry),
            Write::Finish(finish, ..) => store.finish(finish),
            Write::Heartbeat(now_ms, _) => {
                self.shared.note_time(*now_ms);
                store.heartbeat(*now_ms)
            }
            Write::Note(note, _) => store.note(note),
            Write::Prune { before_ms, now_ms } => store.prune(*before_ms, *now_ms),
            Write::Redact(redact, _) => store.redact(redact),
            Write::Settle(settle, _) => store.settle(settle),
            Write::Spend(spend, _) => store.spend(*spend).map(|_is_first| Done::Written),
            Write::TookBack(took_back, _) => store.took_back(took_back),
            Write::Withdraw { entry, attempt, now_ms } => store.withdraw(*entry, *attempt, *now_ms),
        }
    }

    /// Commits the batch and tells everybody who waits.
    fn commit(&mut self) {
        if self.batch.writes.is_empty() {
            self.close_transaction();
            self.batch = Batch::default();
            return;
        }
        if let Err(failure) = self.try_commit() {
            self.fail(failure);
            return;
        }
        self.commits += 1;
        self.shared.set_commits(self.commits);
        let mut has_redacted = false;
        for (write, done) in std::mem::take(&mut self.batch).writes {
            has_redacted |= matches!(write, Write::Redact(..));
            if let Write::Acknowledge(word, _) = &write {
                self.newest.is_known();
                self.remember(When::Now);
                let verified_ms = Some(word.now_ms);
                self.shared.set_integrity(Integrity { flaw: None, verified_ms });
            }
            acknowledge(write, done, &self.shared);
        }
        if has_redacted {
            // The log holds older copies of the pages that were overwritten.
            self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)");
            self.log_bytes = file::log_bytes(&self.path);
            if self.store.is_none() {
                return;
            }
        }
        self.shared.set_down(None);
        if self.commits.is_multiple_of(SIZE_CHECK) {
            self.check_size();
        }
        self.check_room();
        if self.dirt >= CHECKPOINT {
            // That was a guess, and too high where many commands share a page: the log itself knows.
            self.dirt = self.store.as_ref().map_or(0, |store| file::uncopied(store.conn()));
        }
        if self.dirt >= CHECKPOINT {
            self.checkpoint("PRAGMA wal_checkpoint(PASSIVE)");
        }
        self.check_ahead();
    }

    fn try_commit(&mut self) -> Result<(), Failure> {
        let Some(store) = &mut self.store else {
            return Err(Failure::new(Reason::Failed, "no store"));
        };
        store.merge()?;
        // Before the commit, which would write on behind what was cut off.
        file::check_log(&self.path, self.log_bytes)?;
        file::check_length(&self.path, self.file_bytes)?;
        #[cfg(test)]
        self.shared.faults.before_commit()?;
        store.conn().prepare_cached("COMMIT")?.execute([])?;
        #[cfg(test)]
        self.shared.faults.after_commit()?;
        // After the commit: what was written to a file that is no longer at its path is not kept.
        self.log_bytes = self.identity.check(&self.path)?;
        self.durable_seq = store.newest_seq();
        self.shared.set_head(store.head());
        self.remember(When::Due);
        Ok(())
    }

    /// Keeps beside the file where its chain ends on disk.
    pub(super) fn remember(&mut self, when: When) {
        if let Some(head) = self.shared.head() {
            self.newest.remember(&self.lock, &self.identity.store(), head, when);
        }
    }

    /// Ends a transaction in which nothing was written.
    fn close_transaction(&mut self) {
        let Some(store) = &self.store else { return };
        if !store.conn().is_autocommit()
            && let Err(error) = store.conn().execute_batch("COMMIT")
        {
            self.fail(error.into());
        }
    }

    fn roll_back(&mut self) -> rusqlite::Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        if !store.conn().is_autocommit() {
            store.conn().execute_batch("ROLLBACK")?;
        }
        store.reload()
    }

    /// The store is down: tells everybody who waits, keeps what can wait.
    fn fail(&mut self, failure: Failure) {
        tracing::error!(
            reason = failure.reason.as_str(),
            detail = failure.detail,
            "the ledger takes no writes"
        );
        if let Some(store) = self.store.take()
            && !store.conn().is_autocommit()
            && let Err(error) = store.conn().execute_batch("ROLLBACK")
        {
            // The connection is dropped here, which rolls back as well.
            tracing::debug!(%error, "a roll-back failed");
        }
        // What the file holds now is not known before it is read again.
        self.known.forget(0);
        self.shared.set_down(Some(failure.reason));
        for (write, done) in std::mem::take(&mut self.batch).writes {
            if let (Write::Begin(begin, ..), Done::Begun(Begun::Started { attempt })) =
                (&write, &done)
            {
                self.backlog.push_back(Write::Withdraw {
                    entry: begin.subject(),
                    attempt: *attempt,
                    now_ms: begin.now_ms,
                });
            }
            self.put_off(write, LedgerError::Unavailable(failure.reason));
        }
        self.retry = Retry::new();
        self.retry.again();
    }

    /// Answers a write that cannot be done now, and keeps what is owed.
    fn put_off(&mut self, write: Write, error: LedgerError) {
        match write {
            Write::Delivered { .. } | Write::Withdraw { .. } => self.backlog.push_back(write),
            Write::Finish(finish, reply, pending) => {
                if let Some(reply) = reply {
                    tell(reply, Err(error));
                }
                self.backlog.push_back(Write::Finish(finish, None, pending));
            }
            Write::Acknowledge(..)
            | Write::Begin(..)
            | Write::Heartbeat(..)
            | Write::Note(..)
            | Write::Prune { .. }
            | Write::Redact(..)
            | Write::Settle(..)
            | Write::Spend(..)
            | Write::TookBack(..) => {
                refuse(write, error);
            }
        }
    }

    /// Tries to get the store back, and writes the backlog.
    fn revive(&mut self) {
        match self.try_revive() {
            Ok(store) => {
                tracing::info!(backlog = self.backlog.len(), "the ledger takes writes again");
                self.dirt += PAGES;
                self.store = Some(store);
                self.check_size();
                for write in std::mem::take(&mut self.backlog) {
                    self.take(write);
                    if self.batch.writes.len() >= BATCH {
                        self.commit();
                    }
                }
                self.commit();
                // Not before: what the backlog holds is what reports call unfinished.
                if self.store.is_some() {
                    self.shared.set_down(None);
                    self.check_room();
                }
            }
            Err(failure) => {
                tracing::debug!(
                    reason = failure.reason.as_str(),
                    detail = failure.detail,
                    "the ledger is still down"
                );
                self.known.forget(0);
                self.shared.set_down(Some(failure.reason));
                self.retry.again();
            }
        }
    }

    /// Opens the file again, makes sure that it is this ledger and not an older copy, and proves
    /// with a row on disk that it takes writes.
    fn try_revive(&mut self) -> Result<Store, Failure> {
        file::check_length(&self.path, self.file_bytes)?;
        let (conn, identity) = file::reopen(&self.path, &self.options, &self.identity)?;
        if self.shared.health().down == Some(Reason::Full) {
            // The log may be what fills the volume, and most of it is older copies of pages.
            let cut = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            tracing::debug!(is_cut = cut.is_ok(), "tried to cut the log of a full ledger");
        }
        let seed = chain::seed().map_err(|_| Failure::new(Reason::Failed, "no random bytes"))?;
        let mut store = Store::new(conn, &self.options.keys, seed, Arc::clone(&self.known))?;
        if store.newest_seq() < self.durable_seq {
            return Err(Failure::new(Reason::Replaced, "an older copy is at its path"));
        }
        if !self.is_taken_up {
            let now_ms = self.shared.time();
            let taken = TakenUp::of(&mut store, &identity, &self.options, &self.lock, now_ms)?;
            self.is_taken_up = true;
            self.newest = Newest::new(taken.lost);
            self.shared.count_recovered(taken.unknown);
            self.shared.set_head(store.head());
            self.shared.set_integrity(taken.integrity);
        }
        store.conn().execute_batch("BEGIN IMMEDIATE")?;
        store.heartbeat(self.shared.time())?;
        #[cfg(test)]
        self.shared.faults.before_commit()?;
        store.conn().execute_batch("COMMIT")?;
        self.log_bytes = identity.check(&self.path)?;
        self.identity = identity;
        self.is_log_short = Some(false);
        self.durable_seq = store.newest_seq();
        Ok(store)
    }

    /// Copies the log into the file as far as readers allow. What fails is tried again later; the
    /// log itself keeps what was committed.
    fn checkpoint(&mut self, pragma: &str) {
        self.dirt = 0;
        let Some(store) = &self.store else { return };
        // Copying into a file that was cut off would fill it with gaps.
        if let Err(failure) = file::check_length(&self.path, self.file_bytes) {
            return self.fail(failure);
        }
        if let Err(error) = store.conn().query_row(pragma, [], |_| Ok(())) {
            tracing::warn!(%error, "copying the ledger's log failed");
        }
        self.file_bytes = self.file_bytes.max(file::length(&self.path));
        self.remember(When::Now);
    }

    /// Compares what the file takes with its limit: begins are refused before finishes are, once
    /// [`check_room`](Self::check_room) says so.
    fn check_size(&mut self) {
        let (Some(cap), Some(store)) = (self.options.size_cap_bytes, &self.store) else { return };
        match file::used_bytes(store.conn(), &self.path) {
            Ok(used) => self.is_over_cap = used >= cap - cap / 100 * RESERVE_PERCENT,
            Err(error) => self.fail(error.into()),
        }
    }

    /// Says whether begins are still taken. One look at the volume, which costs nothing beside a commit.
    fn check_room(&self) {
        if self.store.is_some() {
            let is_nearly_full = file::is_nearly_full(&self.path);
            #[cfg(test)]
            let is_nearly_full = is_nearly_full || self.shared.faults.is_nearly_full();
            self.shared.set_reserved(self.is_over_cap || is_nearly_full);
        }
    }

    /// Says whether the log is to be made longer.
    fn check_ahead(&mut self) {
        if self.is_log_short.is_some() && self.store.is_some() {
            self.is_log_short = Some(ahead::is_short(&self.path, self.log_bytes, self.page_bytes));
        }
    }

    /// Makes the log longer, while nobody waits.
    fn lengthen(&mut self) {
        let cap_bytes = self.options.size_cap_bytes;
        self.is_log_short = match ahead::lengthen(&self.path, self.log_bytes, cap_bytes) {
            Ok(length) => {
                self.log_bytes = length;
                Some(false)
            }
            Err(error) => {
                tracing::debug!(%error, "the ledger's log is not made longer ahead");
                None
            }
        };
    }

    /// Writes what is queued and lets the file go.
    fn end(&mut self) {
        self.commit();
        self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)");
        self.remember(When::Now);
        self.store = None;
        self.shared.set_down(Some(Reason::Closed));
        for lock in [&self.claim, &self.lock] {
            if let Err(error) = lock.unlock() {
                tracing::debug!(%error, "the lock went with its file");
            }
        }
    }

    fn unavailable(&self) -> LedgerError {
        LedgerError::Unavailable(self.shared.health().down.unwrap_or(Reason::Failed))
    }
}

/// For this thread's own waits only; the times that are recorded come with the commands.
#[expect(clippy::disallowed_methods, reason = "measures waits of a thread without a runtime")]
pub(super) fn now() -> Instant {
    Instant::now()
}
