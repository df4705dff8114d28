//! The store under its interface, on real files.

mod attempts;
mod faults;
mod files;
mod model;
mod notes;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use super::command::Failure;
use super::*;
use crate::contract::class::{Class, Disposition, Kind, Verdict};
use crate::contract::key::{Digest, Key, OperationId};
use crate::ledger::entry::{Cause, State};
use crate::ledger::{
    Answer, Due, Expected, Filter, Guard, Ledger, MAX_ANSWER, Noted, Principal, Spend, Stranger,
};

/// Commits that fail on purpose.
#[derive(Debug, Default)]
pub(super) struct Faults {
    before: AtomicU8,
    after: AtomicU8,
}

impl Faults {
    pub(super) fn before_commit(&self) -> Result<(), Failure> {
        take(&self.before)
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

struct Bench {
    folder: tempfile::TempDir,
    ledger: Ledger,
}

impl Bench {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (embedded, recovered) = Embedded::open(&path(&folder), options, 1_000).unwrap();
        assert_eq!(recovered, Recovered { unknown: 0 });
        Self { folder, ledger: Ledger::Embedded(embedded) }
    }

    fn path(&self) -> PathBuf {
        path(&self.folder)
    }

    fn embedded(&self) -> &Embedded {
        let Ledger::Embedded(embedded) = &self.ledger;
        embedded
    }

    fn read(&self) -> ReadOnly {
        ReadOnly::open(&self.path()).unwrap()
    }

    /// Closes as a process that dies would leave it, and opens again.
    async fn restart(&mut self) -> Recovered {
        self.ledger.close().await;
        let (embedded, recovered) =
            Embedded::open(&self.path(), Options::default(), 9_000).unwrap();
        self.ledger = Ledger::Embedded(embedded);
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

    async fn by_digest(&self, call: &Call) -> Option<super::super::Prior> {
        self.ledger.look(call.look()).await.unwrap().by_digest
    }

    /// The one entry there is, also where it is no earlier call.
    fn only(&self) -> super::super::Record {
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

fn path(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("state").join("ledger.db")
}

/// A call, by small numbers.
#[derive(Clone, Copy, Default)]
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

fn new_id() -> EntryId {
    let mut random = [0; 10];
    getrandom::fill(&mut random).unwrap();
    EntryId::from_parts(1_764_489_600_000, &random)
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
        undo: None,
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
