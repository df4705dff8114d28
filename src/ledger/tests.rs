//! Both stores under their interface: on real files, and in a real PostgreSQL.
//!
//! A test that takes a [`Store`] runs on both; [`on_both_stores`] makes one of each.

mod ahead;
mod attempts;
mod chained;
mod faults;
mod files;
mod known;
mod later;
mod model;
mod notes;
mod reads;
mod removal;
mod replicas;
#[path = "../../tests/it/support/postgres.rs"]
mod server;
mod servers;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::desk::command::Failure;
use super::desk::{PENDING, PENDING_BYTES};
use super::*;
use crate::contract::class::{Class, Disposition, Kind, Verdict};
use crate::contract::key::{Digest, Key, OperationId};
use crate::contract::thing::Thing;

/// Commits that fail on purpose.
#[derive(Debug, Default)]
pub(super) struct Faults {
    before: AtomicU8,
    after: AtomicU8,
    nearly_full: AtomicU8,
}

impl Faults {
    pub(super) fn before_commit(&self) -> Result<(), Failure> {
        take(&self.before)
    }

    pub(super) fn is_nearly_full(&self) -> bool {
        self.nearly_full.load(Ordering::SeqCst) > 0
    }

    pub(super) fn after_commit(&self) -> Result<(), Failure> {
        take(&self.after)
    }
}

fn take(left: &AtomicU8) -> Result<(), Failure> {
    let had = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    if had.is_ok() { Err(Failure::new(Reason::Io, "injected")) } else { Ok(()) }
}

/// The target of a begin that fails in SQL.
pub(super) const POISON: &str = "poison";

/// Makes a test for each store of functions that take one.
macro_rules! on_both_stores {
    ($($name:ident),+ $(,)?) => {
        mod embedded {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Store::Embedded).await;
            })+
        }

        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Store::Postgres).await;
            })+
        }
    };
}
use on_both_stores;

/// Which store a test is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Embedded,
    Postgres,
}

/// What a ledger lies in; goes with it.
enum Home {
    Database(server::Database),
    Folder(tempfile::TempDir),
}

struct Bench {
    ledger: Ledger,
    home: Home,
    options: Options,
}

impl Bench {
    fn new(store: Store) -> Self {
        Self::with(store, Options::default())
    }

    fn with(store: Store, options: Options) -> Self {
        let home = match store {
            Store::Embedded => Home::Folder(tempfile::tempdir().unwrap()),
            Store::Postgres => Home::Database(server::Database::new()),
        };
        let place = place(&home);
        let (ledger, recovered) = Ledger::open(&place, options.clone(), 1_000).unwrap();
        assert_eq!(recovered, Recovered { unknown: 0 });
        Self { ledger, home, options }
    }

    fn place(&self) -> Place {
        place(&self.home)
    }

    /// The file.
    fn path(&self) -> PathBuf {
        self.place().file().unwrap().to_owned()
    }

    fn folder(&self) -> &Path {
        match &self.home {
            Home::Database(_) => panic!("a database has no folder"),
            Home::Folder(folder) => folder.path(),
        }
    }

    fn faults(&self) -> &Faults {
        &self.ledger.desk().shared.faults
    }

    fn read(&self) -> ReadOnly {
        ReadOnly::open(self.place()).unwrap()
    }

    /// Closes, and opens again: what was begun then is unknown.
    async fn restart(&mut self) -> Recovered {
        self.ledger.close().await;
        let opened = Ledger::open(&self.place(), self.options.clone(), 9_000);
        let (ledger, recovered) = opened.unwrap();
        self.ledger = ledger;
        recovered
    }

    /// Looks, judges what it finds as no obstacle, and begins.
    async fn started(&self, call: &Call) -> EntryId {
        let begin = self.judged(call).await;
        let entry = begin.entry;
        assert_eq!(self.ledger.begin(begin).await, Ok(Begun::Started { attempt: 1 }));
        entry
    }

    async fn judged(&self, call: &Call) -> Begin {
        let priors = self.ledger.look(call.look()).await.unwrap();
        Begin { expected: priors.expected(), ..call.begin() }
    }

    async fn accepted(&self, call: &Call) -> EntryId {
        let entry = self.started(call).await;
        assert_eq!(self.ledger.finish(finish(entry, State::Accepted, None)), Finished::Queued);
        entry
    }

    async fn by_digest(&self, call: &Call) -> Option<Prior> {
        self.ledger.look(call.look()).await.unwrap().by_digest
    }

    /// The one entry there is, also where it is no earlier call.
    fn only(&self) -> Record {
        let mut all = self.read().list(&Filter { limit: 2, ..Filter::default() }).unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    async fn state(&self, call: &Call) -> Option<State> {
        self.by_digest(call).await.map(|prior| prior.state)
    }

    /// Waits for what another thread does of itself.
    async fn until(&self, what: impl AsyncFn() -> bool) {
        for _ in 0..1_000_000 {
            if what().await {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("it never happened");
    }
}

fn place(home: &Home) -> Place {
    match home {
        Home::Database(database) => {
            let address = Address::parse(&database.url(), None).unwrap();
            Place::Postgres(Box::new(address))
        }
        Home::Folder(folder) => Place::File(folder.path().join("state").join("ledger.db")),
    }
}

/// A call, by small numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    principal: u8,
    weak: bool,
    key: Option<&'static str>,
    digest: u8,
    mark: u8,
    staged: bool,
}

impl Call {
    fn look(&self) -> Look {
        Look {
            principal: Principal { id: format!("agent-{}", self.principal), weak: self.weak },
            key: self.key.map(|key| Key::from_text(key).unwrap()),
            digest: Digest([self.digest; 32]),
            mark: Digest([self.mark; 32]),
            operation: OperationId::new("comments.create").unwrap(),
            staged: self.staged,
        }
    }

    fn begin(&self) -> Begin {
        let entry = new_id();
        let look = self.look();
        Begin {
            ledger_id: look.key.clone().unwrap_or_else(|| Key::from_entry(entry)),
            look,
            expected: Expected::default(),
            entry,
            rerun: None,
            guard: Guard::Enforced,
            fingerprint: Digest([8; 32]),
            policy_revision: Digest([9; 32]),
            class: Class::Reversible,
            kind: Kind::Create,
            transport: "http",
            target: "POST /comments".to_owned(),
            things: vec![thing(self.digest)],
            task: Some("task-1".to_owned()),
            staged_for: None,
            key_sent: true,
            lookup: Some("{\"operation\":\"comments.list\"}".to_owned()),
            authorization: None,
            before: None,
            repeats: None,
            spend: None,
            now_ms: 2_000,
        }
    }
}

/// A thing, by a small number.
fn thing(number: u8) -> Thing {
    Thing(Digest([number; 32]))
}

fn new_id() -> EntryId {
    static NEXT: AtomicU64 = AtomicU64::new(1_764_489_600_000);
    let mut random = [0; 10];
    getrandom::fill(&mut random).unwrap();
    EntryId::from_parts(NEXT.fetch_add(1, Ordering::Relaxed), &random)
}

fn finish(entry: EntryId, state: State, cause: Option<Cause>) -> Finish {
    Finish {
        entry,
        attempt: 1,
        state,
        cause,
        disposition: match state {
            State::Accepted => Disposition::Accepted,
            State::Rejected if cause == Some(Cause::NotSent) => Disposition::NotSent,
            State::Rejected => Disposition::DefinitelyRejected,
            State::Begun | State::Undone | State::Unknown | State::Waiting => {
                Disposition::Ambiguous
            }
        },
        verdict: (state == State::Accepted).then_some(Verdict::Verified),
        answered: state == State::Accepted,
        upstream_status: Some(201),
        upstream_id: Some("100".to_owned()),
        made: None,
        undo: None,
        undo_things: Vec::new(),
        undo_mark: None,
        compensate: None,
        deadline_ms: None,
        undo_unavailable: None,
        answer: None,
        undoes: None,
        evidence: None,
        due_ms: None,
        now_ms: 3_000,
    }
}

/// Runs futures at the same time on this thread.
async fn together<F>(futures: Vec<F>) -> Vec<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let local = tokio::task::LocalSet::new();
    let tasks: Vec<_> = futures.into_iter().map(|future| local.spawn_local(future)).collect();
    local.await;
    let mut outputs = Vec::new();
    for task in tasks {
        outputs.push(task.await.unwrap());
    }
    outputs
}
