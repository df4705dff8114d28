//! What the handles ask the writer, and how it answers.

use std::sync::mpsc::Sender;

use rusqlite::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::contract::class::Outcome;
use crate::contract::key::EntryId;
use crate::ledger::entry::State;
use crate::ledger::{
    Begin, Begun, Broken, Finish, LedgerError, Look, Note, Part, Priors, Reason, Settled, Spend,
    Stored,
};

use super::{Pending, Shared};
use crate::ledger::embedded::Coming;

/// What a write is guessed to add to the log, in pages.
pub(in crate::ledger) const PAGES: usize = 2;

/// Entries in one batch of removals: a few milliseconds, so that no call waits for it.
pub(in crate::ledger) const PRUNED: usize = 64;

pub(in crate::ledger) type Reply<T> = oneshot::Sender<Result<T, LedgerError>>;

/// A queue of commands: of a store with a thread, or with a task.
#[derive(Clone, Debug)]
pub(in crate::ledger) enum Inbox {
    Task(mpsc::UnboundedSender<Command>),
    Thread(Sender<Command>),
}

impl Inbox {
    /// Queues a command, or hands it back if the store is closed.
    pub(in crate::ledger) fn send(&self, command: Command) -> Result<(), Box<Command>> {
        match self {
            Self::Task(sender) => sender.send(command).map_err(|error| Box::new(error.0)),
            Self::Thread(sender) => sender.send(command).map_err(|error| Box::new(error.0)),
        }
    }
}

/// What became of a write, before it is committed.
#[derive(Debug)]
pub(in crate::ledger) enum Done {
    /// A begin.
    Begun(Begun),
    /// The entry is no longer where it was judged; nothing written.
    Changed,
    /// Something, and nobody needs more.
    Written,
    /// No such entry; nothing written.
    NotFound,
    /// Nothing to be taken out at one of the pointers; nothing written.
    NothingThere,
    /// The entry cannot be settled; nothing written.
    NotUnknown(State),
    /// The states do not allow it; nothing written.
    Refused,
    /// A decision.
    Settled(Settled),
    /// The entry still needs what it holds; nothing written.
    StillOpen,
}

/// The decision of a lookup or of a person.
#[derive(Debug)]
pub(in crate::ledger) struct Settle {
    pub(in crate::ledger) entry: EntryId,
    pub(in crate::ledger) outcome: Outcome,
    pub(in crate::ledger) who: String,
    pub(in crate::ledger) why: String,
    pub(in crate::ledger) now_ms: i64,
}

/// What a person takes out of an entry.
#[derive(Debug)]
pub(in crate::ledger) struct Redact {
    pub(in crate::ledger) entry: EntryId,
    pub(in crate::ledger) parts: Vec<Part>,
    pub(in crate::ledger) who: String,
    pub(in crate::ledger) why: String,
    pub(in crate::ledger) now_ms: i64,
}

/// A person's word that it is known what is wrong with the ledger.
#[derive(Debug)]
pub(in crate::ledger) struct Acknowledge {
    pub(in crate::ledger) breaks: Vec<Broken>,
    pub(in crate::ledger) who: String,
    pub(in crate::ledger) why: String,
    pub(in crate::ledger) now_ms: i64,
}

/// A call that was made to take an entry back, and did.
#[derive(Debug)]
pub(in crate::ledger) struct TookBack {
    pub(in crate::ledger) entry: EntryId,
    pub(in crate::ledger) by: EntryId,
    pub(in crate::ledger) who: String,
    pub(in crate::ledger) now_ms: i64,
}

/// What the writer is asked.
#[derive(Debug)]
pub(in crate::ledger) enum Command {
    Answer(EntryId, Reply<Option<Stored>>, OwnedSemaphorePermit),
    Close(oneshot::Sender<()>),
    Look(Box<Look>, Reply<Priors>, OwnedSemaphorePermit),
    Write(Write, Option<OwnedSemaphorePermit>),
}

/// What is written, and who waits for it.
#[derive(Debug)]
pub(in crate::ledger) enum Write {
    Acknowledge(Box<Acknowledge>, Reply<()>),
    Begin(Box<Begin>, Reply<Receipt>, Home),
    Delivered {
        entry: EntryId,
        _place: Pending,
    },
    Finish(Box<Finish>, Option<Reply<()>>, Pending),
    Heartbeat(i64, Reply<()>),
    Note(Box<Note>, Reply<Settled>),
    /// Removes what is older than this time.
    Prune {
        before_ms: i64,
        now_ms: i64,
    },
    Redact(Box<Redact>, Reply<Settled>),
    Settle(Box<Settle>, Reply<Settled>),
    /// Uses a confirmation up for nothing.
    Spend(Spend, Reply<()>),
    TookBack(Box<TookBack>, Reply<Settled>),
    Withdraw {
        entry: EntryId,
        attempt: u32,
        now_ms: i64,
    },
}

/// Where a begin came from.
#[derive(Debug)]
pub(in crate::ledger) struct Home {
    pub(in crate::ledger) inbox: Inbox,
    /// What its handles know of it while it is queued; `None` where they look nothing up themselves.
    pub(in crate::ledger) coming: Option<Coming>,
}

/// A begin's answer on its way. If nobody takes it, its attempt is withdrawn.
#[derive(Debug)]
pub(in crate::ledger) struct Receipt {
    begun: Option<Begun>,
    entry: EntryId,
    now_ms: i64,
    home: Inbox,
}

impl Receipt {
    /// The answer; from here its attempt is the caller's.
    pub(in crate::ledger) fn take(mut self) -> Option<Begun> {
        self.begun.take()
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(Begun::Started { attempt }) = self.begun {
            let withdraw = Write::Withdraw { entry: self.entry, attempt, now_ms: self.now_ms };
            // A ledger that is closed makes the entry unknown at its next start.
            drop(self.home.send(Command::Write(withdraw, None)));
        }
    }
}

/// A failure of the store, not of one command.
#[derive(Debug)]
pub(in crate::ledger) struct Failure {
    pub(in crate::ledger) reason: Reason,
    pub(in crate::ledger) detail: String,
}

impl Failure {
    pub(in crate::ledger) fn new(reason: Reason, detail: &str) -> Self {
        Self { reason, detail: detail.to_owned() }
    }

    /// Tells a failure of the store from a failure of one command.
    pub(in crate::ledger) fn of(error: &rusqlite::Error) -> Option<Self> {
        let reason = match error {
            rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
                ErrorCode::DiskFull => Reason::Full,
                // The index beside the log could not grow: it lies on the same volume.
                _ if failure.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE => Reason::Full,
                ErrorCode::SystemIoFailure | ErrorCode::ReadOnly | ErrorCode::CannotOpen => {
                    Reason::Io
                }
                ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Reason::Locked,
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Reason::Corrupt,
                ErrorCode::OutOfMemory => Reason::Failed,
                _ => return None,
            },
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..) => Reason::Corrupt,
            _ => return None,
        };
        Some(Self { reason, detail: error.to_string() })
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::of(&error).unwrap_or_else(|| Self::new(Reason::Failed, &error.to_string()))
    }
}

/// Tells whoever waits for a write what became of it.
pub(in crate::ledger) fn acknowledge(write: Write, done: Done, shared: &Shared) {
    let error = match done {
        Done::Changed => Some(LedgerError::Changed),
        Done::NotFound => Some(LedgerError::NotFound),
        Done::NothingThere => Some(LedgerError::NothingThere),
        Done::StillOpen => Some(LedgerError::StillOpen),
        Done::NotUnknown(state) => Some(LedgerError::NotUnknown { state }),
        Done::Refused => Some(LedgerError::Refused),
        Done::Begun(_) | Done::Written | Done::Settled(_) => None,
    };
    if let Some(error) = error {
        if let Write::Finish(finish, ..) = &write {
            tracing::error!(entry = %finish.entry, %error, "a finish was not written");
            shared.count_refused();
        }
        refuse(write, error);
        return;
    }
    match (write, done) {
        (Write::Begin(begin, reply, home), Done::Begun(begun)) => {
            let entry = begin.subject();
            let home = home.inbox;
            let receipt = Receipt { begun: Some(begun), entry, now_ms: begin.now_ms, home };
            tell(reply, Ok(receipt));
        }
        (
            Write::Acknowledge(_, reply)
            | Write::Finish(_, Some(reply), _)
            | Write::Heartbeat(_, reply)
            | Write::Spend(_, reply),
            _,
        ) => {
            tell(reply, Ok(()));
        }
        (
            Write::Note(_, reply)
            | Write::Redact(_, reply)
            | Write::Settle(_, reply)
            | Write::TookBack(_, reply),
            Done::Settled(settled),
        ) => {
            tell(reply, Ok(settled));
        }
        _ => {}
    }
}

/// Tells whoever waits for a write that it was not done.
pub(in crate::ledger) fn refuse(write: Write, error: LedgerError) {
    match write {
        Write::Begin(_, reply, _) => tell(reply, Err(error)),
        Write::Acknowledge(_, reply)
        | Write::Finish(_, Some(reply), _)
        | Write::Heartbeat(_, reply)
        | Write::Spend(_, reply) => {
            tell(reply, Err(error));
        }
        Write::Note(_, reply)
        | Write::Redact(_, reply)
        | Write::Settle(_, reply)
        | Write::TookBack(_, reply) => {
            tell(reply, Err(error));
        }
        Write::Delivered { .. }
        | Write::Finish(_, None, _)
        | Write::Prune { .. }
        | Write::Withdraw { .. } => {}
    }
}

/// Answers whoever waits. One who has gone gave up waiting; a receipt that finds nobody withdraws
/// its attempt.
pub(in crate::ledger) fn tell<T>(reply: oneshot::Sender<T>, answer: T) {
    if reply.send(answer).is_err() {
        tracing::trace!("nobody waits for this answer of the ledger");
    }
}

/// Whether nothing was written, so that nobody need wait for the commit.
pub(in crate::ledger) fn is_empty(done: &Done) -> bool {
    match done {
        Done::Begun(Begun::Changed(_) | Begun::Spent)
        | Done::Changed
        | Done::NotFound
        | Done::NotUnknown(_)
        | Done::NothingThere
        | Done::Refused
        | Done::StillOpen => true,
        Done::Begun(Begun::Started { .. }) | Done::Written | Done::Settled(_) => false,
    }
}

/// Whether somebody waits for the commit.
pub(in crate::ledger) fn is_urgent(write: &Write) -> bool {
    match write {
        Write::Acknowledge(..)
        | Write::Begin(..)
        | Write::Heartbeat(..)
        | Write::Note(..)
        | Write::Prune { .. }
        | Write::Redact(..)
        | Write::Settle(..)
        | Write::Spend(..)
        | Write::TookBack(..) => true,
        Write::Finish(_, reply, _) => reply.is_some(),
        Write::Delivered { .. } | Write::Withdraw { .. } => false,
    }
}

/// What a write adds to the log, in pages; a guess.
pub(in crate::ledger) fn pages(write: &Write) -> usize {
    match write {
        Write::Finish(finish, ..) => {
            PAGES + finish.answer.as_ref().map_or(0, |answer| answer.body.len() / 4096)
        }
        Write::Begin(begin, ..) => {
            PAGES + begin.before.as_ref().map_or(0, |before| before.len() / 4096 + 1)
        }
        Write::Prune { .. } => PAGES * PRUNED,
        Write::Acknowledge(..)
        | Write::Delivered { .. }
        | Write::Heartbeat(..)
        | Write::Note(..)
        | Write::Redact(..)
        | Write::Settle(..)
        | Write::Spend(..)
        | Write::TookBack(..)
        | Write::Withdraw { .. } => PAGES,
    }
}
