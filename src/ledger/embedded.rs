//! The embedded store: one SQLite file, one thread that writes it.
//!
//! What a caller meets is [`Embedded`], a handle: it puts [commands](command) into the writer's
//! queue and waits for the answer. The [writer] runs them in order, many to a commit; the [store] is
//! the SQL, the [finder] the index for keys and digests, [the file](mod@file) what makes a path into
//! a ledger.
//!
//! Limits: [`QUEUE`] commands wait in line, [`PENDING`] finishes and [`PENDING_BYTES`] of their
//! answers wait for a commit; nothing waits longer than [`ANSWER_WITHIN`]. When the disk stands
//! still, that is when begins are refused.

mod command;
mod file;
mod finder;
mod later;
mod read;
mod rows;
mod store;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::contract::class::Outcome;
use crate::contract::key::EntryId;

use super::{
    Begin, Begun, Counts, Finish, Finished, Health, LedgerError, Look, Note,
    Pending as PendingEntry, Priors, Reason, Record, Settled, Stats, Stored,
};
use command::{Command, Failure, Reply, Write};
use store::{Settle, Store, TookBack};
use writer::{Batch, Retry, Writer};

pub use read::ReadOnly;

/// How many commands that somebody waits for may be queued: above the calls in flight at once.
const QUEUE: usize = 1024;

/// How many finishes and deliveries may wait for a commit, while the store is down above all.
const PENDING: usize = 16_384;

/// How many bytes of their answers.
const PENDING_BYTES: usize = 64 * 1024 * 1024;

/// The longest that a command waits, for its turn and for its answer each.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How the embedded ledger is set up.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The most that the file may take, in bytes. Begins are refused at 85 % of it, the rest is for
    /// finishes. Should be below the volume's size.
    pub size_cap_bytes: Option<u64>,
}

/// What opening found to repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Entries that were begun when their process died, and are unknown since.
    pub unknown: u64,
}

/// Why a ledger could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file does not read as what was written.
    #[error("the ledger is damaged: {0}")]
    Damaged(String),
    /// The file is something else.
    #[error("the file is not a takeback ledger")]
    Foreign,
    /// The folder or file could not be made or read.
    #[error("the ledger's file could not be opened")]
    Io(#[source] std::io::Error),
    /// Another process has it open.
    #[error("another takeback process has the ledger open")]
    Locked,
    /// A later version of takeback wrote it.
    #[error(
        "the ledger has version {found}, and this takeback knows up to {known}: use a newer one"
    )]
    Newer {
        /// The file's version.
        found: i64,
        /// The newest that this program knows.
        known: i64,
    },
    /// It has a version that this takeback can no longer bring up to date.
    #[error("the ledger has version {found}, and this takeback needs {known}")]
    Older {
        /// The file's version.
        found: i64,
        /// The version that this program needs.
        known: i64,
    },
    /// The system gave no random bytes for the ledger's secrets.
    #[error("the system gave no random bytes")]
    Random,
    /// SQLite refused.
    #[error("the ledger could not be read")]
    Sql(#[source] rusqlite::Error),
    /// The ledger's files are not as they were left, or cannot be written.
    #[error("the ledger cannot be used: {0}")]
    Unusable(Reason),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Failure> for OpenError {
    fn from(failure: Failure) -> Self {
        Self::Unusable(failure.reason)
    }
}

/// A handle to an open ledger file. Clones share it; when the last one goes, what is queued is
/// written and the file is let go.
#[derive(Clone)]
pub struct Embedded {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded")
            .field("path", &self.shared.path)
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

impl Embedded {
    /// Opens the ledger at `path` and makes it where there is none: the folder with mode 0700, the
    /// file with 0600. Takes the lock `<path>.lock`, checks the file within bounds, makes every
    /// entry that it finds begun unknown, and starts the writer's thread. Blocks; for the start.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(
        path: &Path,
        options: Options,
        now_ms: i64,
    ) -> Result<(Self, Recovered), OpenError> {
        // One file has one lock, whatever link it is reached by.
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let lock = file::lock(path)?;
        let (conn, identity) = file::open(path, &options)?;
        let sealing_key = file::secret(&conn, "sealing_key")?;
        let mut store = Store::new(conn)?;
        store.conn().execute_batch("BEGIN IMMEDIATE")?;
        let recovered = Recovered { unknown: store.recover(now_ms)? };
        store.conn().execute_batch("COMMIT")?;

        let shared = Arc::new(Shared {
            path: path.to_owned(),
            sealing_key,
            turns: Arc::new(Semaphore::new(QUEUE)),
            health: ArcSwap::from_pointee(Health { down: None, since_ms: now_ms }),
            is_reserved: AtomicBool::new(false),
            now_ms: AtomicI64::new(now_ms),
            commits: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            shortened: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            pending_bytes: AtomicUsize::new(0),
            #[cfg(test)]
            faults: tests::Faults::default(),
        });
        // Bounded by `turns` and `PENDING`; the channel itself need not block anybody.
        let (commands, queue) = mpsc::channel();
        let writer = Writer {
            path: path.to_owned(),
            options,
            shared: Arc::clone(&shared),
            commands: queue,
            durable_seq: store.newest_seq(),
            store: Some(store),
            identity,
            lock,
            batch: Batch::default(),
            backlog: VecDeque::new(),
            retry: Retry::new(),
            dirt: 0,
            commits: 0,
        };
        std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || writer.run())
            .map_err(OpenError::Io)?;
        Ok((Self { commands, shared }, recovered))
    }

    pub(super) async fn look(&self, look: Look) -> Result<Priors, LedgerError> {
        self.ask(|reply, turn| Command::Look(Box::new(look), reply, turn)).await
    }

    pub(super) async fn answer(&self, entry: EntryId) -> Result<Option<Stored>, LedgerError> {
        self.ask(|reply, turn| Command::Answer(entry, reply, turn)).await
    }

    pub(super) async fn begin(&self, begin: Begin) -> Result<Begun, LedgerError> {
        let home = self.commands.clone();
        let receipt = self
            .ask(|reply, turn| {
                Command::Write(Write::Begin(Box::new(begin), reply, home), Some(turn))
            })
            .await?;
        receipt.take().ok_or(LedgerError::Unavailable(Reason::Failed))
    }

    pub(super) fn finish(&self, finish: Finish) -> Finished {
        match self.put(finish, None) {
            Ok(()) if self.health().is_ok() => Finished::Queued,
            Ok(()) | Err(_) => Finished::Unfinished,
        }
    }

    pub(super) async fn finish_durably(&self, finish: Finish) -> Result<(), LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.put(finish, Some(reply))?;
        self.wait(answer).await
    }

    pub(super) fn delivered(&self, entry: EntryId) {
        let Some(place) = Pending::new(&self.shared) else { return };
        let write = Write::Delivered { entry, _place: place };
        if self.commands.send(Command::Write(write, None)).is_err() {
            tracing::debug!(%entry, "a delivery came after the ledger was closed");
        }
    }

    pub(super) async fn settle(
        &self,
        entry: EntryId,
        outcome: Outcome,
        who: &str,
        why: &str,
        now_ms: i64,
    ) -> Result<Settled, LedgerError> {
        let settle = Settle { entry, outcome, who: who.to_owned(), why: why.to_owned(), now_ms };
        self.ask(|reply, turn| Command::Write(Write::Settle(Box::new(settle), reply), Some(turn)))
            .await
    }

    pub(super) async fn note(&self, note: Note) -> Result<Settled, LedgerError> {
        self.ask(|reply, turn| Command::Write(Write::Note(Box::new(note), reply), Some(turn))).await
    }

    pub(super) async fn due(
        &self,
        now_ms: i64,
        limit: usize,
    ) -> Result<Vec<PendingEntry>, LedgerError> {
        self.read_beside(move |ledger| ledger.due(now_ms, limit)).await
    }

    pub(super) async fn pending(
        &self,
        entry: EntryId,
    ) -> Result<Option<PendingEntry>, LedgerError> {
        self.read_beside(move |ledger| ledger.pending(entry)).await
    }

    pub(super) async fn superseded(&self, entry: EntryId) -> Result<Option<EntryId>, LedgerError> {
        self.read_beside(move |ledger| ledger.superseded(entry, &HashSet::new())).await
    }

    pub(super) async fn took_back(
        &self,
        entry: EntryId,
        by: EntryId,
        who: &str,
        now_ms: i64,
    ) -> Result<Settled, LedgerError> {
        let took_back = TookBack { entry, by, who: who.to_owned(), now_ms };
        let command =
            |reply, turn| Command::Write(Write::TookBack(Box::new(took_back), reply), Some(turn));
        self.ask(command).await
    }

    pub(super) async fn heartbeat(&self, now_ms: i64) -> Result<(), LedgerError> {
        self.ask(|reply, turn| Command::Write(Write::Heartbeat(now_ms, reply), Some(turn))).await
    }

    pub(super) async fn unknowns(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        self.read_beside(move |ledger| ledger.unknowns(limit)).await
    }

    pub(super) async fn waiting(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        let state = Some(super::State::Waiting);
        let filter = super::Filter { state, limit, ..super::Filter::default() };
        self.read_beside(move |ledger| ledger.list(&filter)).await
    }

    pub(super) async fn counts(&self) -> Result<Counts, LedgerError> {
        self.read_beside(|ledger| ledger.counts()).await
    }

    pub(super) fn sealing_key(&self) -> [u8; 32] {
        self.shared.sealing_key
    }

    pub(super) fn health(&self) -> Health {
        self.shared.health()
    }

    pub(super) fn stats(&self) -> Stats {
        let shared = &self.shared;
        Stats {
            commits: shared.commits.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
            lost: shared.lost.load(Ordering::Relaxed),
            shortened: shared.shortened.load(Ordering::Relaxed),
            pending: u64::try_from(shared.pending.load(Ordering::Relaxed)).unwrap_or(u64::MAX),
        }
    }

    pub(super) async fn close(&self) {
        let (closed, is_closed) = oneshot::channel();
        if self.commands.send(Command::Close(closed)).is_ok() {
            let answer = is_closed.await;
            // Without an answer the thread has ended too.
            debug_assert!(answer.is_ok() || self.health().down == Some(Reason::Closed));
        }
    }

    /// As [`close`](Self::close), for a thread without a runtime.
    pub(super) fn close_blocking(&self) {
        let (closed, is_closed) = oneshot::channel();
        if self.commands.send(Command::Close(closed)).is_ok() {
            let answer = is_closed.blocking_recv();
            debug_assert!(answer.is_ok() || self.health().down == Some(Reason::Closed));
        }
    }

    /// Reads on a connection of its own, so that a long read keeps nobody waiting.
    async fn read_beside<T: Send + 'static>(
        &self,
        read: impl FnOnce(&ReadOnly) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let path = self.shared.path.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let ledger =
                ReadOnly::open(&path).map_err(|_| LedgerError::Unavailable(Reason::Failed))?;
            read(&ledger)
        });
        reading.await.unwrap_or(Err(LedgerError::Unavailable(Reason::Failed)))
    }

    fn put(&self, mut finish: Finish, reply: Option<Reply<()>>) -> Result<(), LedgerError> {
        let Some(mut pending) = Pending::new(&self.shared) else {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return Err(LedgerError::Unavailable(Reason::Full));
        };
        if let Some(answer) = &finish.answer
            && !pending.hold(answer.body.len())
        {
            self.shared.shortened.fetch_add(1, Ordering::Relaxed);
            finish.answer = None;
        }
        let write = Write::Finish(Box::new(finish), reply, pending);
        self.commands.send(Command::Write(write, None)).map_err(|_| {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            LedgerError::Unavailable(Reason::Closed)
        })
    }

    /// Waits for a turn, queues a command and waits for its answer.
    async fn ask<T>(
        &self,
        command: impl FnOnce(Reply<T>, OwnedSemaphorePermit) -> Command,
    ) -> Result<T, LedgerError> {
        let turns = Arc::clone(&self.shared.turns);
        let turn = match turns.try_acquire_owned() {
            Ok(turn) => turn,
            Err(_) => {
                let turns = Arc::clone(&self.shared.turns);
                match tokio::time::timeout(ANSWER_WITHIN, turns.acquire_owned()).await {
                    Ok(Ok(turn)) => turn,
                    Ok(Err(_)) => return Err(LedgerError::Unavailable(Reason::Closed)),
                    Err(_) => return Err(self.stalled()),
                }
            }
        };
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply, turn))
            .map_err(|_| LedgerError::Unavailable(Reason::Closed))?;
        self.wait(answer).await
    }

    async fn wait<T>(
        &self,
        answer: oneshot::Receiver<Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(LedgerError::Unavailable(Reason::Closed)),
            Err(_) => Err(self.stalled()),
        }
    }

    fn stalled(&self) -> LedgerError {
        self.shared.set_down(Some(Reason::Stalled));
        LedgerError::Unavailable(Reason::Stalled)
    }
}

/// What the handles and the writer share.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    sealing_key: [u8; 32],
    /// Places in the queue.
    turns: Arc<Semaphore>,
    health: ArcSwap<Health>,
    /// Whether only finishes are still taken.
    is_reserved: AtomicBool,
    /// The newest time that a command brought.
    now_ms: AtomicI64,
    commits: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    shortened: AtomicU64,
    pending: AtomicUsize,
    pending_bytes: AtomicUsize,
    #[cfg(test)]
    faults: tests::Faults,
}

impl Shared {
    fn health(&self) -> Health {
        **self.health.load()
    }

    fn set_down(&self, down: Option<Reason>) {
        let down = down.or(self.is_reserved().then_some(Reason::Full));
        if self.health().down != down {
            self.health.store(Arc::new(Health { down, since_ms: self.time() }));
        }
    }

    fn is_reserved(&self) -> bool {
        self.is_reserved.load(Ordering::Relaxed)
    }

    fn set_reserved(&self, is_reserved: bool) {
        self.is_reserved.store(is_reserved, Ordering::Relaxed);
        self.set_down(None);
    }

    fn time(&self) -> i64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn note_time(&self, now_ms: i64) {
        self.now_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    fn set_commits(&self, commits: u64) {
        self.commits.store(commits, Ordering::Relaxed);
    }

    fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// A place among the finishes that wait for a commit; given back when it is dropped.
#[derive(Debug)]
struct Pending {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Pending {
    fn new(shared: &Arc<Shared>) -> Option<Self> {
        let pending = Self { shared: Arc::clone(shared), bytes: 0 };
        let before = shared.pending.fetch_add(1, Ordering::Relaxed);
        (before < PENDING).then_some(pending)
    }

    /// Asks for room for an answer.
    fn hold(&mut self, bytes: usize) -> bool {
        let before = self.shared.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        before + bytes <= PENDING_BYTES
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.pending.fetch_sub(1, Ordering::Relaxed);
        self.shared.pending_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
