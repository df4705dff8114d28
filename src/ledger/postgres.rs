//! The store in PostgreSQL: one database for one sidecar or many.
//!
//! ```text
//! takeback run --ledger postgres://takeback@db.example/takeback …
//! ```
//!
//! The password stands in the URL, or in `PGPASSWORD`. The tables are in the schema `takeback`, which
//! the first sidecar makes; `psql` may read its views ([`schema.sql`](schema)).
//!
//! A sidecar has two connections: the [writer]'s, which runs one transaction after the other with
//! all that came meanwhile ([batch]), and the [reader]'s. Both live on one thread of their own.
//!
//! What holds between sidecars:
//!
//! - Of two that begin the same call at the same time, one waits for the other's commit and then
//!   finds its entry: by key and by digest, through rows of the table `finder` that both lock. The
//!   unique index on open entries stands behind it.
//! - An attempt belongs to the sidecar that began it while its [lease](owner) lasts. A sidecar that
//!   starts, or looks later, touches only the attempts of those whose lease has run out.
//! - What one has committed the others see at their next look, and a sidecar that starts takes up
//!   the entries that wait. Nothing else is told from one to the other. Policies and MCP sessions are
//!   each sidecar's own, so a client of a session must meet the same sidecar.
//! - Two *weak* principals that send the same call in the same few milliseconds to two sidecars may
//!   both begin: that a stranger has an open entry is looked up, not locked.
//!
//! What a client can do for durability it does: `synchronous_commit` is switched on if it is off. A
//! connection pooler must be in session mode: statements are prepared, and settings are a session's.
//!
//! Frozen or slow: a statement may take 3 s, a caller waits 5 s, then the begin is refused; while it
//! is down, begins are refused at once. It is tried again at least each second, without a restart.
//!
//! Run on: PostgreSQL 15 (the tests start their own). The SQL is plain, with no extension, procedure,
//! trigger or advisory lock, and transactions that meet (40001, 40P01) are run again, so that
//! CockroachDB and YugabyteDB are possible; neither was run. Known to need care there: `SKIP LOCKED`
//! and `FOR UPDATE` in a lateral subquery, and READ COMMITTED, which CockroachDB may turn into
//! SERIALIZABLE (correct, with more retries).

mod batch;
mod begun;
mod chained;
mod later;
mod look;
mod outcome;
mod owner;
mod plan;
mod queue;
mod reader;
mod removal;
mod rows;
mod schema;
mod session;
mod sql;
mod step;
mod verify;
mod word;
mod writer;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use super::desk::command::{Failure, Inbox};
use super::desk::{Desk, Shared};
use super::place::Address;
use super::{
    Counts, Filter, LedgerError, Obstacle, OpenError, Options, Pending, Planned, Reason, Record,
    Recovered, State,
};
use crate::contract::key::EntryId;
use chained::Chained;
#[cfg(test)]
pub(super) use later::TOUCHED;
use look::Finder;
use queue::Queue;
use reader::Ask;
use session::{Connector, Fault, Session};
use writer::{Retry, Writer};

pub(super) use reader::DatabaseReader;

/// How long a lease lasts, if the options do not say: several missed renewals and a failover of the
/// database, and no longer than an agent waits for its entry to be settled.
const LEASE: Duration = Duration::from_secs(30);

/// A handle to a ledger in a database. Clones share it; when the last one goes, what is queued is
/// written and the lease is given up.
#[derive(Clone)]
pub struct Postgres {
    desk: Desk,
    asks: mpsc::UnboundedSender<Ask>,
    address: Arc<Address>,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("address", &self.address)
            .field("health", &self.desk.health())
            .finish_non_exhaustive()
    }
}

impl Postgres {
    /// Opens the ledger in the database at `address`, and makes its tables where there are none.
    /// Takes a lease, makes the begun entries of those whose lease has run out unknown, and starts
    /// the thread. Blocks; for the start.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(
        address: &Address,
        options: Options,
        now_ms: i64,
    ) -> Result<(Self, Recovered), OpenError> {
        let connector = Connector::new(address)?;
        let (opened, is_opened) = std::sync::mpsc::channel();
        // Bounded by the desk's turns and places; the channels themselves need not block anybody.
        let (commands, inbox) = mpsc::unbounded_channel();
        let (asks, asked) = mpsc::unbounded_channel();
        let writers_asks = asks.clone();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(opened.send(Err(OpenError::Io(error)))),
            };
            runtime.block_on(async move {
                let queue = Queue::new(writers_asks);
                match open(&connector, options, now_ms, inbox, queue).await {
                    Ok((writer, recovered)) => {
                        let (shared, finder) = (Arc::clone(&writer.shared), writer.finder.clone());
                        if opened.send(Ok((shared, recovered))).is_ok() {
                            tokio::join!(writer.run(), reader::run(connector, finder, asked));
                        }
                    }
                    // Whoever opens it waits for this.
                    Err(error) => drop(opened.send(Err(error))),
                }
            });
        };
        std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(serve)
            .map_err(OpenError::Io)?;
        let gone = |_| OpenError::Unusable(Reason::Failed);
        let (shared, recovered) = is_opened.recv().map_err(gone)??;
        let desk = Desk { commands: Inbox::Task(commands), shared, known: None };
        Ok((Self { desk, asks, address: Arc::new(address.clone()) }, recovered))
    }

    pub(super) async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Pending>, LedgerError> {
        let read =
            move |session: Arc<Session>| async move { rows::due(&session, now_ms, limit).await };
        reader::ask(&self.asks, read).await
    }

    pub(super) async fn pending(&self, entry: EntryId) -> Result<Option<Pending>, LedgerError> {
        let read =
            move |session: Arc<Session>| async move { rows::pending_of(&session, entry).await };
        reader::ask(&self.asks, read).await
    }

    pub(super) async fn superseded(
        &self,
        entry: EntryId,
        beside: HashSet<EntryId>,
    ) -> Result<Option<Obstacle>, LedgerError> {
        let read = move |session: Arc<Session>| async move {
            later::superseded(&session, entry, &beside).await
        };
        reader::ask(&self.asks, read).await
    }

    pub(super) async fn obstacles(
        &self,
        plan: Vec<Planned>,
    ) -> Result<HashMap<EntryId, Obstacle>, LedgerError> {
        let read =
            move |session: Arc<Session>| async move { later::obstacles(&session, &plan).await };
        reader::ask(&self.asks, read).await
    }

    pub(super) async fn unknowns(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        reader::ask(&self.asks, move |session| async move { rows::unknowns(&session, limit).await })
            .await
    }

    pub(super) async fn waiting(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        let filter = Filter { state: Some(State::Waiting), limit, ..Filter::default() };
        reader::ask(&self.asks, move |session| async move { rows::list(&session, &filter).await })
            .await
    }

    pub(super) async fn counts(&self) -> Result<Counts, LedgerError> {
        reader::ask(&self.asks, |session| async move { rows::counts(&session).await }).await
    }

    /// The front.
    pub(super) fn desk(&self) -> &Desk {
        &self.desk
    }
}

async fn open(
    connector: &Connector,
    options: Options,
    now_ms: i64,
    commands: mpsc::UnboundedReceiver<super::desk::command::Command>,
    queue: Queue,
) -> Result<(Writer, Recovered), OpenError> {
    let first = connector.connect(&[]).await?;
    schema::bring_up(&first).await?;
    drop(first);
    let session = connector.connect(&writer::statements()).await?;
    schema::insist_on_durability(&session).await?;
    let store = schema::secret(&session, "store").await?;
    let sealing_key = schema::secret(&session, "sealing_key").await?;
    let finder = Finder::new(&schema::secret(&session, "finder_key").await?);
    let lease = options.lease.unwrap_or(LEASE);
    let lease_ms = lease.as_secs_f64() * 1000.0;
    let owner = owner::enter(&session, Uuid::nil(), lease_ms, now_ms).await?;
    let keys = options.keys;
    let tail = verify::tail(&session, &keys, &store).await?;
    let mut chained = Chained::begin(&session, owner, &keys, &store, now_ms).await?;
    let mut unknown = owner::bury(&session, owner, &mut chained, now_ms).await;
    while let Err(Fault::Met) = unknown {
        unknown = owner::bury(&session, owner, &mut chained, now_ms).await;
    }
    let recovered = Recovered { unknown: unknown? };
    let shared = Arc::new(Shared::new(sealing_key, now_ms));
    shared.set_head(chained.head());
    shared.set_integrity(tail.integrity(None, now_ms));
    let writer = Writer {
        connector: connector.clone(),
        shared,
        commands,
        queue,
        finder,
        store,
        owner,
        keys,
        chained,
        lease,
        session: Some(session),
        doubt: None,
        retry: Retry::new(),
        retention: options.retention,
        prune_at: options.retention.map(|_| Instant::now()),
        renewed: Instant::now(),
        buried: Instant::now(),
        commits: 0,
    };
    Ok((writer, recovered))
}

impl From<Fault> for OpenError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Down(Failure { reason: Reason::Stalled | Reason::Unreachable, detail }) => {
                Self::Unreachable(detail)
            }
            Fault::Down(Failure { reason, detail }) => {
                tracing::error!(reason = reason.as_str(), detail, "the ledger cannot be used");
                Self::Unusable(reason)
            }
            Fault::Met => Self::Unreachable("it met others again and again".to_owned()),
            Fault::Refused(detail) => Self::Database(detail),
        }
    }
}
