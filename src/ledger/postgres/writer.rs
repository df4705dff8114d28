//! The task that writes: takes what is queued, a batch to a transaction, one transaction at a time.
//!
//! While a batch is on its way, what comes is queued; so batches grow with the load. When the
//! database is down everybody who waits is told so, finishes are kept, and it is tried again from
//! time to time. When the answer to a commit was lost, nobody is told anything until the database
//! has said whether it was made, or the wait is over: then the begin is refused, and if it turns out
//! that it was written, withdrawn.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use super::batch::{Fate, Hand, Ran};
use super::chained::{self, Chained};
use super::look::Finder;
use super::owner;
use super::queue::{Queue, is_lazy};
use super::reader::Ask;
use super::session::{Connector, Fault, Session};
use super::{removal, schema, sql};
use crate::ledger::desk::Shared;
use crate::ledger::desk::command::{Command, Done, Failure, Write, acknowledge, refuse, tell};
use crate::ledger::{Begun, Integrity, Keys, LedgerError, Reason};

/// Between two attempts to get a failed store back: from the first, doubling, to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Between two batches of removals: while there is more to remove, and when there is not.
const PRUNE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(60));

/// How often a batch that met another sidecar's is tried.
const MEETINGS: usize = 8;

/// How long the end waits for what is still to be written.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A writer of one ledger, and all that it needs.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) connector: Connector,
    pub(super) shared: Arc<Shared>,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) queue: Queue,
    pub(super) finder: Finder,
    /// The ledger's own id: a database that has another is not this ledger.
    pub(super) store: [u8; 32],
    pub(super) owner: Uuid,
    pub(super) keys: Keys,
    /// The chain of this owner.
    pub(super) chained: Chained,
    pub(super) lease: Duration,
    /// `None` while the store is down.
    pub(super) session: Option<Session>,
    /// A batch of which nobody knows whether it was committed.
    pub(super) doubt: Option<Doubt>,
    pub(super) retry: Retry,
    pub(super) retention: Option<Duration>,
    /// When the next batch is removed; `None`: everything is kept.
    pub(super) prune_at: Option<Instant>,
    pub(super) renewed: Instant,
    pub(super) buried: Instant,
    pub(super) commits: u64,
}

/// See [`Writer::doubt`].
#[derive(Debug)]
pub(super) struct Doubt {
    writes: Vec<Write>,
    fates: Vec<Fate>,
    steps: Vec<i64>,
}

/// When to try a failed store again.
#[derive(Debug)]
pub(super) struct Retry {
    at: Instant,
    pause: Duration,
}

impl Retry {
    pub(super) fn new() -> Self {
        Self { at: Instant::now(), pause: RETRY.0 }
    }

    fn again(&mut self) {
        self.at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY.1);
    }
}

/// What a connection that writes prepares.
pub(super) fn statements() -> Vec<&'static str> {
    // What judges a begin is looked up in its own transaction.
    [
        sql::STATEMENTS,
        owner::STATEMENTS,
        chained::STATEMENTS,
        removal::STATEMENTS,
        super::look::STATEMENTS,
    ]
    .concat()
}

/// Does some work of the database's, and takes commands meanwhile.
async fn taking<T>(
    work: impl Future<Output = T>,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    queue: &mut Queue,
    shared: &Shared,
    down: Option<Reason>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        // A command that is not taken now stays in its channel.
        tokio::select! {
            biased;
            done = &mut work => return done,
            command = commands.recv(), if !queue.is_closed => queue.take(command, down, shared),
        }
    }
}

impl Writer {
    /// Runs until the ledger is closed or its last handle is gone.
    pub(super) async fn run(mut self) {
        loop {
            self.wait().await;
            while let Ok(command) = self.commands.try_recv() {
                self.queue.take(Some(command), self.down(), &self.shared);
            }
            if self.queue.is_closed {
                break;
            }
            self.step().await;
        }
        let ending = tokio::time::timeout(END_WITHIN, self.end()).await;
        if ending.is_err() {
            tracing::warn!("the ledger was closed before all was written");
        }
        self.session = None;
        self.shared.set_down(Some(Reason::Closed));
        self.queue.fail(Reason::Closed);
        if let Some(closed) = self.queue.closing.take() {
            tell(closed, ());
        }
    }

    /// Why the store takes no writes.
    fn down(&self) -> Option<Reason> {
        let reason = || self.shared.health().down.unwrap_or(Reason::Failed);
        self.session.is_none().then(reason)
    }

    /// Waits for a command, or for the next thing to do.
    async fn wait(&mut self) {
        let next = match &self.session {
            None if self.queue.beats.is_empty() => self.retry.at,
            None => return,
            Some(_) => {
                if !self.queue.words.is_empty() {
                    return;
                }
                let tick = (self.renewed + self.lease / 6).min(self.buried + self.lease / 3);
                let tick = self.prune_at.map_or(tick, |at| at.min(tick));
                self.queue.due().map_or(tick, |due| due.min(tick))
            }
        };
        if next <= Instant::now() {
            return;
        }
        let down = self.down();
        // A command that is not taken now stays in its channel.
        tokio::select! {
            command = self.commands.recv() => self.queue.take(command, down, &self.shared),
            () = tokio::time::sleep_until(next) => {}
        }
    }

    /// Does what is due.
    async fn step(&mut self) {
        let now = Instant::now();
        if self.session.is_none() {
            if self.retry.at <= now || !self.queue.beats.is_empty() {
                self.revive().await;
            }
            return;
        }
        if self.queue.due().is_some_and(|due| due <= now) {
            self.batch().await;
        } else if let Some(write) = self.queue.words.pop_front() {
            self.record(write).await;
        } else if self.renewed + self.lease / 6 <= now {
            self.renew().await;
        } else if self.buried + self.lease / 3 <= now {
            self.bury().await;
        } else if self.prune_at.is_some_and(|at| at <= now) {
            self.prune().await;
        }
    }

    /// Does what a person asked for, and tells them.
    async fn record(&mut self, write: Write) {
        let Self { session, commands, queue, shared, chained, .. } = self;
        let Some(session) = session.as_ref() else {
            return refuse(write, LedgerError::Unavailable(Reason::Failed));
        };
        let lease_ms = self.lease.as_secs_f64() * 1000.0;
        let (owner, now_ms) = (self.owner, shared.time());
        let hand = removal::Hand { session, owner, lease_ms, now_ms };
        let mut done = Err(Fault::Met);
        for _ in 0..MEETINGS {
            let work = async {
                match &write {
                    Write::Acknowledge(word, _) => hand.acknowledge(chained, word).await,
                    Write::Redact(redact, _) => hand.redact(chained, redact).await,
                    _ => Ok(Done::Refused),
                }
            };
            done = taking(work, commands, queue, shared, None).await;
            if !matches!(&done, Err(Fault::Met)) {
                break;
            }
        }
        match done {
            Ok(done) => {
                self.shared.set_head(self.chained.head());
                if let Write::Acknowledge(word, _) = &write {
                    let verified_ms = Some(word.now_ms);
                    self.shared.set_integrity(Integrity { flaw: None, verified_ms });
                }
                acknowledge(write, done, &self.shared);
            }
            Err(Fault::Refused(detail)) => {
                tracing::error!(detail, "what a person asked for failed");
                refuse(write, LedgerError::Refused);
            }
            Err(fault) => {
                let failure = fault.into_failure();
                refuse(write, LedgerError::Unavailable(failure.reason));
                self.fail(failure);
            }
        }
    }

    /// Removes a batch of what is older than what is kept.
    async fn prune(&mut self) {
        let Some(retention) = self.retention else { return };
        let Self { session, commands, queue, shared, chained, .. } = self;
        let Some(session) = session.as_ref() else { return };
        let lease_ms = self.lease.as_secs_f64() * 1000.0;
        let (owner, now_ms) = (self.owner, shared.time());
        let retention_ms = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
        let before_ms = now_ms.saturating_sub(retention_ms);
        let hand = removal::Hand { session, owner, lease_ms, now_ms };
        let pruned = taking(hand.prune(chained, before_ms), commands, queue, shared, None).await;
        let pause = match &pruned {
            Ok(true) => PRUNE.0,
            Ok(false) | Err(_) => PRUNE.1,
        };
        self.prune_at = Some(Instant::now() + pause);
        match pruned {
            Ok(_) => self.shared.set_head(self.chained.head()),
            // It met another transaction; the next turn does it.
            Err(Fault::Met) => {}
            Err(Fault::Refused(detail)) => {
                tracing::error!(detail, "what is older than the retention could not be removed");
            }
            Err(fault) => self.fail(fault.into_failure()),
        }
    }

    /// Runs one batch and tells everybody who waits.
    async fn batch(&mut self) {
        let writes = self.queue.batch();
        if writes.is_empty() {
            return;
        }
        let Self { session, commands, queue, shared, finder, chained, .. } = self;
        let Some(open) = session.as_ref() else {
            self.queue.put_back(writes);
            return;
        };
        let hand = Hand {
            session: open,
            finder,
            owner: self.owner,
            lease_ms: self.lease.as_secs_f64() * 1000.0,
            now_ms: shared.time(),
            #[cfg(test)]
            shared,
        };
        let mark = chained.mark();
        let mut ran = Err(Fault::Met);
        for _ in 0..MEETINGS {
            chained.go_back(mark);
            ran = taking(hand.run(chained, &writes), commands, queue, shared, None).await;
            let is_over = matches!(&ran, Ok(_) | Err(Fault::Down(_)));
            if is_over || open.run("ROLLBACK").await.is_err() || !matches!(&ran, Err(Fault::Met)) {
                break;
            }
        }
        if ran.is_err() {
            self.chained.go_back(mark);
        }
        match ran {
            Ok(Ran { fates, doubt: None, .. }) => {
                self.chained.committed();
                self.acknowledged(writes, fates);
            }
            Ok(Ran { fates, steps, doubt: Some(failure) }) => {
                self.doubt = Some(Doubt { writes, fates, steps });
                self.fail(failure);
            }
            Err(Fault::Refused(detail)) if writes.len() == 1 => {
                tracing::error!(detail, "a ledger command failed");
                self.shared.count_refused();
                self.queue.note_done(lazies(&writes));
                for write in writes {
                    refuse(write, LedgerError::Refused);
                }
            }
            Err(Fault::Refused(detail)) => {
                tracing::debug!(detail, "a batch failed; its commands are run one by one");
                self.queue.take_singly(writes.len());
                self.queue.put_back(writes);
            }
            Err(fault) => {
                self.queue.put_back(writes);
                self.fail(fault.into_failure());
            }
        }
    }

    /// Tells everybody who waits for a batch that it was committed.
    fn acknowledged(&mut self, writes: Vec<Write>, fates: Vec<Fate>) {
        self.commits += 1;
        self.shared.set_commits(self.commits);
        self.shared.set_head(self.chained.head());
        self.renewed = Instant::now();
        self.shared.set_down(None);
        let mut deferred = Vec::new();
        let mut lazy = 0;
        for (write, fate) in writes.into_iter().zip(fates) {
            match fate {
                Fate::Done(done) => {
                    lazy += u64::from(is_lazy(&write));
                    acknowledge(write, done, &self.shared);
                }
                Fate::Changed => self.changed(write),
                Fate::Deferred => deferred.push(write),
            }
        }
        self.queue.note_done(lazy);
        self.queue.put_back(deferred);
    }

    /// Tells a begin what was there before it.
    fn changed(&self, write: Write) {
        let look = match &write {
            Write::Begin(begin, ..) => Box::new(begin.look.clone()),
            _ => return,
        };
        let shared = Arc::clone(&self.shared);
        self.queue.pass(Ask::Look(
            look,
            Box::new(move |priors| match priors {
                Ok(priors) => {
                    let done = Done::Begun(Begun::Changed(Box::new(priors)));
                    acknowledge(write, done, &shared);
                }
                Err(error) => refuse(write, error),
            }),
        ));
    }

    /// Renews the lease when nothing else did.
    async fn renew(&mut self) {
        let Self { session, commands, queue, shared, chained, keys, store, .. } = self;
        let Some(open) = session.as_ref() else { return };
        let lease_ms = self.lease.as_secs_f64() * 1000.0;
        let before = self.owner;
        let renewing = async {
            let owner = owner::enter(open, before, lease_ms, shared.time()).await?;
            if owner != before {
                *chained = Chained::begin(open, owner, keys, store, shared.time()).await?;
            }
            Ok::<_, Fault>(owner)
        };
        match taking(renewing, commands, queue, shared, None).await {
            Ok(owner) => {
                self.note_owner(owner);
                self.renewed = Instant::now();
            }
            Err(fault) => self.fail(fault.into_failure()),
        }
    }

    fn note_owner(&mut self, owner: Uuid) {
        if owner != self.owner {
            tracing::error!(
                "this sidecar was taken for dead while it stood still: writes that it had under way \
                 are of unknown outcome"
            );
            self.owner = owner;
        }
    }

    /// Makes what the dead had begun unknown.
    async fn bury(&mut self) {
        let Self { session, commands, queue, shared, chained, .. } = self;
        let Some(open) = session.as_ref() else { return };
        let burying = owner::bury(open, self.owner, chained, shared.time());
        let buried = taking(burying, commands, queue, shared, None).await;
        self.buried = Instant::now();
        match buried {
            Ok(0) => {}
            Ok(entries) => {
                self.shared.count_recovered(entries);
                tracing::warn!(entries, "writes of a sidecar that died are of unknown outcome");
            }
            // Two sidecars met over it; the other does it.
            Err(Fault::Met) => {}
            Err(fault) => self.fail(fault.into_failure()),
        }
    }

    /// The store is down: tells everybody who waits, keeps what can wait.
    fn fail(&mut self, failure: Failure) {
        tracing::error!(
            reason = failure.reason.as_str(),
            detail = failure.detail,
            "the ledger takes no writes"
        );
        self.session = None;
        self.shared.set_down(Some(failure.reason));
        self.queue.fail(failure.reason);
        self.retry = Retry::new();
        // What broke may be one connection: the first attempt is made at once.
        if failure.reason == Reason::Stalled {
            self.retry.again();
        }
    }

    /// Tries to get the store back.
    async fn revive(&mut self) {
        let beats = std::mem::take(&mut self.queue.beats);
        let reason = self.down();
        let Self { commands, queue, shared, connector, store, keys, chained, .. } = self;
        let lease_ms = self.lease.as_secs_f64() * 1000.0;
        let steps = self.doubt.as_ref().map(|doubt| doubt.steps.clone());
        let dead = Dead { connector, store, shared, owner: self.owner, lease_ms, keys };
        let reviving = dead.revive(chained, steps);
        match taking(reviving, commands, queue, shared, reason).await {
            Ok(Revived { session, owner, was_committed }) => {
                self.session = Some(session);
                self.shared.set_head(self.chained.head());
                self.renewed = Instant::now();
                let is_same = owner == self.owner;
                self.note_owner(owner);
                if let Some(doubt) = self.doubt.take() {
                    self.decide(doubt, was_committed, is_same);
                }
                self.shared.set_down(None);
                tracing::info!(backlog = self.queue.len(), "the ledger takes writes again");
                self.queue.put_back(Vec::new());
                // Those that came meanwhile too.
                let more = std::mem::take(&mut self.queue.beats);
                for beat in beats.into_iter().chain(more) {
                    let beat = Some(Command::Write(beat, None));
                    self.queue.take(beat, None, &self.shared);
                }
            }
            Err(failure) => {
                tracing::debug!(
                    reason = failure.reason.as_str(),
                    detail = failure.detail,
                    "the ledger is still down"
                );
                self.shared.set_down(Some(failure.reason));
                self.retry.again();
                for beat in beats {
                    refuse(beat, LedgerError::Unavailable(failure.reason));
                }
            }
        }
    }

    /// Does with a batch in doubt what the database says of it.
    fn decide(&mut self, doubt: Doubt, was_committed: bool, is_same: bool) {
        tracing::warn!(was_committed, "the answer to a commit was lost and read again");
        if was_committed && is_same {
            self.acknowledged(doubt.writes, doubt.fates);
            return;
        }
        let error = LedgerError::Unavailable(Reason::Unreachable);
        let mut kept = Vec::new();
        for write in doubt.writes {
            match write {
                // Their attempts are nobody's, or were made unknown with the rest of ours.
                Write::Acknowledge(..)
                | Write::Begin(..)
                | Write::Heartbeat(..)
                | Write::Note(..)
                | Write::Prune { .. }
                | Write::Redact(..)
                | Write::Settle(..)
                | Write::Spend(..)
                | Write::TookBack(..) => refuse(write, error),
                Write::Delivered { .. } | Write::Finish(..) | Write::Withdraw { .. } => {
                    kept.push(write);
                }
            }
        }
        self.queue.put_back(kept);
    }

    /// Writes what is queued and lets the lease go.
    async fn end(&mut self) {
        while self.session.is_some() && !self.queue.is_empty() {
            self.batch().await;
        }
        if let Some(session) = &self.session
            && let Err(fault) = owner::leave(session, self.owner).await
        {
            let detail = fault.into_failure().detail;
            tracing::warn!(detail, "the lease could not be given up: it runs out by itself");
        }
    }
}

fn lazies(writes: &[Write]) -> u64 {
    u64::try_from(writes.iter().filter(|write| is_lazy(write)).count()).unwrap_or(u64::MAX)
}

/// A store that is back.
struct Revived {
    session: Session,
    owner: Uuid,
    /// Of the batch in doubt.
    was_committed: bool,
}

/// A store that is to be had back.
struct Dead<'a> {
    connector: &'a Connector,
    store: &'a [u8; 32],
    shared: &'a Shared,
    owner: Uuid,
    lease_ms: f64,
    keys: &'a Keys,
}

impl Dead<'_> {
    /// Connects, makes sure that it is this ledger, and takes the lease, which proves that it can be
    /// written. Reads again where the chain ends, or begins that of a new owner.
    async fn revive(
        &self,
        chained: &mut Chained,
        steps: Option<Vec<i64>>,
    ) -> Result<Revived, Failure> {
        let Self { connector, store, shared, owner, lease_ms, keys } = *self;
        let session = connector.connect(&statements()).await.map_err(Fault::into_failure)?;
        let replaced = || Failure::new(Reason::Replaced, "another ledger is in the database");
        schema::check(&session).await.map_err(|_| replaced())?;
        let found = schema::secret(&session, "store").await.map_err(Fault::into_failure)?;
        if found != *store {
            return Err(replaced());
        }
        schema::insist_on_durability(&session).await.map_err(Fault::into_failure)?;
        // Waits for a transaction of ours that is still under way there.
        let before = owner;
        let entered = owner::enter(&session, before, lease_ms, shared.time()).await;
        let owner = entered.map_err(Fault::into_failure)?;
        let chain = async {
            if owner == before {
                chained.read_again(&session).await
            } else {
                let begun = Chained::begin(&session, owner, keys, store, shared.time()).await;
                begun.map(|begun| *chained = begun)
            }
        };
        chain.await.map_err(Fault::into_failure)?;
        let was_committed = match steps.filter(|steps| !steps.is_empty()) {
            None => false,
            Some(steps) => {
                let committed = owner::was_committed(&session, &steps).await;
                committed.map_err(Fault::into_failure)?
            }
        };
        #[cfg(test)]
        shared.faults.before_commit()?;
        Ok(Revived { session, owner, was_committed })
    }
}
