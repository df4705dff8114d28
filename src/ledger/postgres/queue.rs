//! What waits to be written, in order, and the reads that wait behind it.
//!
//! A batch is taken from the front. It ends before a command that touches an entry which one in it
//! touches already, so that within a batch no command depends on what another wrote. A read sees
//! every finish and delivery that was queued before it: it is held until they are written.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::reader::Ask;
use crate::contract::key::{Digest, EntryId};
use crate::ledger::desk::Shared;
use crate::ledger::desk::command::{Command, Write, is_urgent, refuse, tell};
use crate::ledger::{LedgerError, Reason};

/// Commands in one transaction: enough that the round trips and the flush cost little for each, few
/// enough that it stays short.
const BATCH: usize = 256;

/// How long finishes wait for a begin to ride with.
const LAZY: Duration = Duration::from_millis(4);

/// The queue of a writer.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<Write>,
    /// Redactions and acknowledgements, each of which has a transaction of its own.
    pub(super) words: VecDeque<Write>,
    /// Proofs of life that were asked for while the store was down.
    pub(super) beats: Vec<Write>,
    /// Reads, and how many lazy writes must be done before each.
    held: VecDeque<(u64, Ask)>,
    asks: mpsc::UnboundedSender<Ask>,
    /// Lazy writes that came, and that are done.
    came: u64,
    done: u64,
    /// When what waits must be written at the latest.
    due: Option<Instant>,
    /// How many of the next batches hold one command each, because one of them is at fault.
    singly: usize,
    pub(super) closing: Option<oneshot::Sender<()>>,
    pub(super) is_closed: bool,
}

impl Queue {
    pub(super) fn new(asks: mpsc::UnboundedSender<Ask>) -> Self {
        Self {
            waiting: VecDeque::new(),
            words: VecDeque::new(),
            beats: Vec::new(),
            held: VecDeque::new(),
            asks,
            came: 0,
            done: 0,
            due: None,
            singly: 0,
            closing: None,
            is_closed: false,
        }
    }

    /// Takes a command; `down` is why the store takes no writes.
    pub(super) fn take(&mut self, command: Option<Command>, down: Option<Reason>, shared: &Shared) {
        match command {
            None => self.is_closed = true,
            Some(Command::Close(closed)) => {
                self.closing = Some(closed);
                self.is_closed = true;
            }
            Some(Command::Answer(entry, reply, turn)) => {
                drop(turn);
                match down {
                    Some(reason) => tell(reply, Err(LedgerError::Unavailable(reason))),
                    None => self.read(Ask::answer(entry, reply)),
                }
            }
            Some(Command::Look(look, reply, turn)) => {
                drop(turn);
                match down {
                    Some(reason) => tell(reply, Err(LedgerError::Unavailable(reason))),
                    None => {
                        let told = Box::new(move |priors| tell(reply, priors));
                        self.read(Ask::Look(look, told));
                    }
                }
            }
            Some(Command::Write(write, turn)) => {
                drop(turn);
                self.write(write, down, shared);
            }
        }
    }

    fn write(&mut self, write: Write, down: Option<Reason>, shared: &Shared) {
        match &write {
            Write::Begin(begin, ..) => shared.note_time(begin.now_ms),
            Write::Heartbeat(now_ms, _) => shared.note_time(*now_ms),
            Write::Acknowledge(..)
            | Write::Delivered { .. }
            | Write::Finish(..)
            | Write::Note(..)
            | Write::Prune { .. }
            | Write::Redact(..)
            | Write::Settle(..)
            | Write::Spend(..)
            | Write::TookBack(..)
            | Write::Withdraw { .. } => {}
        }
        if let Some(reason) = down {
            match write {
                Write::Heartbeat(..) => self.beats.push(write),
                write => self.put_off(write, LedgerError::Unavailable(reason)),
            }
            return;
        }
        if matches!(&write, Write::Acknowledge(..) | Write::Redact(..)) {
            self.words.push_back(write);
            return;
        }
        if let (Write::Begin(..), Some(reason)) = (&write, shared.refusal()) {
            refuse(write, LedgerError::Unavailable(reason));
            return;
        }
        let now = Instant::now();
        let due = if is_urgent(&write) { now } else { now + LAZY };
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
        self.came += u64::from(is_lazy(&write));
        self.waiting.push_back(write);
    }

    /// Answers a write that cannot be done now, and keeps what is owed.
    pub(super) fn put_off(&mut self, write: Write, error: LedgerError) {
        match write {
            Write::Delivered { .. } | Write::Withdraw { .. } => {
                self.came += 1;
                self.waiting.push_back(write);
            }
            Write::Finish(finish, reply, pending) => {
                if let Some(reply) = reply {
                    tell(reply, Err(error));
                }
                self.came += 1;
                self.waiting.push_back(Write::Finish(finish, None, pending));
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

    /// Asks the reader, after the lazy writes that came before.
    fn read(&mut self, ask: Ask) {
        if self.done >= self.came {
            self.pass(ask);
        } else {
            self.held.push_back((self.came, ask));
            self.due = Some(Instant::now());
        }
    }

    /// Hands a read to the reader.
    pub(super) fn pass(&self, ask: Ask) {
        if self.asks.send(ask).is_err() {
            tracing::debug!("the reader of the ledger has ended");
        }
    }

    /// Notes that so many lazy writes are done, and lets go the reads that waited for them.
    pub(super) fn note_done(&mut self, lazy: u64) {
        self.done += lazy;
        while self.held.front().is_some_and(|(after, _)| *after <= self.done) {
            if let Some((_, ask)) = self.held.pop_front() {
                self.pass(ask);
            }
        }
    }

    /// Tells everybody who waits that the store is down; what is owed stays.
    pub(super) fn fail(&mut self, reason: Reason) {
        let error = LedgerError::Unavailable(reason);
        for (_, ask) in std::mem::take(&mut self.held) {
            // A read that is dropped tells its asker so.
            if let Ask::Look(_, told) = ask {
                told(Err(error));
            }
        }
        let (came, done) = (self.came, self.done);
        for write in std::mem::take(&mut self.words) {
            refuse(write, error);
        }
        for write in std::mem::take(&mut self.waiting) {
            self.put_off(write, error);
        }
        // They were counted when they came.
        (self.came, self.done) = (came, done);
    }

    /// Puts commands that were taken back to the front, in their order.
    pub(super) fn put_back(&mut self, writes: Vec<Write>) {
        for write in writes.into_iter().rev() {
            self.waiting.push_front(write);
        }
        if !self.waiting.is_empty() {
            self.due = Some(Instant::now());
        }
    }

    /// Runs the next commands one by one.
    pub(super) fn take_singly(&mut self, commands: usize) {
        self.singly = commands;
    }

    pub(super) fn due(&self) -> Option<Instant> {
        if self.waiting.is_empty() { None } else { self.due }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The commands of the next batch.
    pub(super) fn batch(&mut self) -> Vec<Write> {
        let limit = if self.singly > 0 { 1 } else { BATCH };
        self.singly = self.singly.saturating_sub(1);
        let mut writes = Vec::new();
        let mut touched: HashMap<EntryId, bool> = HashMap::new();
        let mut marks: HashSet<Digest> = HashSet::new();
        while writes.len() < limit {
            let Some(write) = self.waiting.front() else { break };
            let mut is_free = true;
            for entry in touches(write).into_iter().flatten() {
                let is_finish = matches!(write, Write::Finish(..));
                // Of several finishes of an entry at most one is more than a repetition.
                let was = touched.insert(entry, is_finish);
                is_free &= was.is_none_or(|was| was && is_finish);
            }
            // What is settled may have taken back what another one of the batch did.
            let is_alone = settles(write);
            if (!is_free || is_alone) && !writes.is_empty() {
                break;
            }
            if let Write::Finish(finish, ..) = write
                && let Some(mark) = finish.undoes
                && !marks.insert(mark)
            {
                break;
            }
            let Some(write) = self.waiting.pop_front() else { break };
            // Whoever began it has gone.
            if !matches!(&write, Write::Begin(_, reply, _) if reply.is_closed()) {
                writes.push(write);
            }
            if is_alone {
                break;
            }
        }
        if !self.waiting.is_empty() {
            self.due = Some(Instant::now());
        }
        writes
    }
}

/// Whether a write settles an unknown entry.
fn settles(write: &Write) -> bool {
    matches!(write, Write::Settle(..))
        || matches!(write, Write::Note(note, _) if note.outcome.is_some())
}

/// Whether nobody waits for a write, but later reads do.
pub(super) fn is_lazy(write: &Write) -> bool {
    match write {
        Write::Delivered { .. } | Write::Finish(..) | Write::Withdraw { .. } => true,
        Write::Acknowledge(..)
        | Write::Begin(..)
        | Write::Heartbeat(..)
        | Write::Note(..)
        | Write::Prune { .. }
        | Write::Redact(..)
        | Write::Settle(..)
        | Write::Spend(..)
        | Write::TookBack(..) => false,
    }
}

/// The entries whose steps a command depends on.
fn touches(write: &Write) -> [Option<EntryId>; 2] {
    match write {
        Write::Begin(begin, ..) => [begin.rerun, None],
        Write::Finish(finish, ..) => [Some(finish.entry), None],
        Write::Note(note, _) => [Some(note.entry), None],
        Write::Settle(settle, _) => [Some(settle.entry), None],
        Write::TookBack(took_back, _) => [Some(took_back.entry), Some(took_back.by)],
        Write::Withdraw { entry, .. } => [Some(*entry), None],
        Write::Redact(redact, _) => [Some(redact.entry), None],
        Write::Acknowledge(..)
        | Write::Delivered { .. }
        | Write::Heartbeat(..)
        | Write::Prune { .. }
        | Write::Spend(..) => [None, None],
    }
}
