//! The front of every store: puts commands into the store's queue and waits for their answers.
//!
//! A store is one task that takes [commands](command) in order, many to a commit; what stands here
//! is the same for all of them: the bounds, the waits, the counters, and what becomes of a begin
//! whose caller leaves.
//!
//! Limits: [`QUEUE`] commands wait in line, [`PENDING`] finishes and [`PENDING_BYTES`] of their
//! answers wait for a commit; nothing waits longer than [`ANSWER_WITHIN`]. When the store stands
//! still, that is when begins are refused.

pub(super) mod command;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::contract::class::Outcome;
use crate::contract::key::EntryId;

use super::embedded::{Coming, Known};
use super::{
    Begin, Begun, Broken, Finish, Finished, Head, Health, Integrity, LedgerError, Look, Note, Part,
    Priors, Reason, Settled, Spend, Stats, Stored,
};
use command::{Acknowledge, Command, Home, Inbox, Redact, Reply, Settle, TookBack, Write};

/// How many commands that somebody waits for may be queued: above the calls in flight at once.
pub(super) const QUEUE: usize = 1024;

/// How many finishes and deliveries may wait for a commit, while the store is down above all.
pub(super) const PENDING: usize = 16_384;

/// How many bytes of their answers.
pub(super) const PENDING_BYTES: usize = 64 * 1024 * 1024;

/// The longest that a command waits, for its turn and for its answer each.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The way to a store's queue. Clones share it.
#[derive(Clone)]
pub(super) struct Desk {
    pub(super) commands: Inbox,
    pub(super) shared: Arc<Shared>,
    /// What is known without asking the store; `None`: others may write it too.
    pub(super) known: Option<Arc<Known>>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("health", &self.health()).finish_non_exhaustive()
    }
}

impl Desk {
    pub(super) async fn look(&self, look: Look) -> Result<Priors, LedgerError> {
        if let Some(known) = &self.known
            && self.health().is_ok()
            && known.is_new(&look)
        {
            return Ok(Priors::default());
        }
        self.ask(|reply, turn| Command::Look(Box::new(look), reply, turn)).await
    }

    pub(super) async fn answer(&self, entry: EntryId) -> Result<Option<Stored>, LedgerError> {
        self.ask(|reply, turn| Command::Answer(entry, reply, turn)).await
    }

    pub(super) async fn begin(&self, begin: Begin) -> Result<Begun, LedgerError> {
        let coming = self.known.as_ref().map(|known| known.begins(&begin));
        let home = Home { inbox: self.commands.clone(), coming };
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

    pub(super) async fn acknowledge(
        &self,
        breaks: Vec<Broken>,
        who: &str,
        why: &str,
        now_ms: i64,
    ) -> Result<(), LedgerError> {
        let (who, why) = (who.to_owned(), why.to_owned());
        let word = Acknowledge { breaks, who, why, now_ms };
        self.ask(|reply, turn| {
            Command::Write(Write::Acknowledge(Box::new(word), reply), Some(turn))
        })
        .await
    }

    pub(super) async fn note(&self, note: Note) -> Result<Settled, LedgerError> {
        self.ask(|reply, turn| Command::Write(Write::Note(Box::new(note), reply), Some(turn))).await
    }

    pub(super) async fn spend(&self, spend: Spend) -> Result<(), LedgerError> {
        self.ask(|reply, turn| Command::Write(Write::Spend(spend, reply), Some(turn))).await
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

    pub(super) async fn redact(
        &self,
        entry: EntryId,
        parts: Vec<Part>,
        who: &str,
        why: &str,
        now_ms: i64,
    ) -> Result<Settled, LedgerError> {
        let redact = Redact { entry, parts, who: who.to_owned(), why: why.to_owned(), now_ms };
        self.ask(|reply, turn| Command::Write(Write::Redact(Box::new(redact), reply), Some(turn)))
            .await
    }

    pub(super) async fn heartbeat(&self, now_ms: i64) -> Result<(), LedgerError> {
        self.ask(|reply, turn| Command::Write(Write::Heartbeat(now_ms, reply), Some(turn))).await
    }

    pub(super) fn sealing_key(&self) -> [u8; 32] {
        self.shared.sealing_key
    }

    pub(super) fn health(&self) -> Health {
        self.shared.health()
    }

    pub(super) fn head(&self) -> Option<Head> {
        self.shared.head()
    }

    pub(super) fn stats(&self) -> Stats {
        let shared = &self.shared;
        Stats {
            commits: shared.commits.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
            lost: shared.lost.load(Ordering::Relaxed),
            shortened: shared.shortened.load(Ordering::Relaxed),
            recovered: shared.recovered.load(Ordering::Relaxed),
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
        pending.coming = self.known.as_ref().and_then(|known| known.finishes(&finish));
        let write = Write::Finish(Box::new(finish), reply, pending);
        self.commands.send(Command::Write(write, None)).map_err(|_| {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            LedgerError::Unavailable(Reason::Closed)
        })
    }

    /// Waits for a turn, queues a command and waits for its answer.
    pub(super) async fn ask<T>(
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
pub(super) struct Shared {
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
    recovered: AtomicU64,
    pending: AtomicUsize,
    pending_bytes: AtomicUsize,
    /// Where the chain ends, as far as it is on disk.
    head: Mutex<Option<Head>>,
    integrity: ArcSwap<Integrity>,
    #[cfg(test)]
    pub(super) faults: super::tests::Faults,
}

impl Shared {
    pub(super) fn new(sealing_key: [u8; 32], now_ms: i64) -> Self {
        Self {
            sealing_key,
            turns: Arc::new(Semaphore::new(QUEUE)),
            health: ArcSwap::from_pointee(Health { down: None, since_ms: now_ms }),
            is_reserved: AtomicBool::new(false),
            now_ms: AtomicI64::new(now_ms),
            commits: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            shortened: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            pending_bytes: AtomicUsize::new(0),
            head: Mutex::new(None),
            integrity: ArcSwap::from_pointee(Integrity::default()),
            #[cfg(test)]
            faults: super::tests::Faults::default(),
        }
    }

    pub(super) fn count_recovered(&self, entries: u64) {
        self.recovered.fetch_add(entries, Ordering::Relaxed);
    }

    pub(super) fn health(&self) -> Health {
        **self.health.load()
    }

    pub(super) fn set_down(&self, down: Option<Reason>) {
        let down = down.or_else(|| self.refusal());
        if self.health().down != down {
            self.health.store(Arc::new(Health { down, since_ms: self.time() }));
        }
    }

    /// Why begins are refused though the store takes writes.
    pub(super) fn refusal(&self) -> Option<Reason> {
        let is_reserved = self.is_reserved.load(Ordering::Relaxed);
        self.integrity.load().flaw.or(is_reserved.then_some(Reason::Full))
    }

    pub(super) fn integrity(&self) -> Integrity {
        **self.integrity.load()
    }

    pub(super) fn set_integrity(&self, integrity: Integrity) {
        self.integrity.store(Arc::new(integrity));
        self.set_down(None);
    }

    pub(super) fn set_reserved(&self, is_reserved: bool) {
        self.is_reserved.store(is_reserved, Ordering::Relaxed);
        self.set_down(None);
    }

    pub(super) fn time(&self) -> i64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    pub(super) fn note_time(&self, now_ms: i64) {
        self.now_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    pub(super) fn set_commits(&self, commits: u64) {
        self.commits.store(commits, Ordering::Relaxed);
    }

    pub(super) fn head(&self) -> Option<Head> {
        *self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_head(&self, head: Head) {
        *self.head.lock().unwrap_or_else(PoisonError::into_inner) = Some(head);
    }

    pub(super) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// A place among the finishes that wait for a commit; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Pending {
    shared: Arc<Shared>,
    bytes: usize,
    coming: Option<Coming>,
}

impl Pending {
    pub(super) fn new(shared: &Arc<Shared>) -> Option<Self> {
        let pending = Self { shared: Arc::clone(shared), bytes: 0, coming: None };
        let before = shared.pending.fetch_add(1, Ordering::Relaxed);
        (before < PENDING).then_some(pending)
    }

    /// Asks for room for an answer.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
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
