//! The store under its interface, on real files.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use proptest::prelude::*;

use super::writer::Failure;
use super::*;
use crate::contract::class::{Class, Disposition, Kind, Verdict};
use crate::contract::key::{Digest, Key, OperationId};
use crate::ledger::entry::{Cause, State};
use crate::ledger::{
    Answer, Expected, Filter, Guard, Ledger, MAX_ANSWER, Principal, Spend, Stranger,
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
        now_ms: 3_000,
    }
}

#[tokio::test]
async fn a_finish_queued_before_a_look_is_seen_by_it() {
    let bench = Bench::new();
    let call = Call { key: Some("k1"), ..Call::default() };
    let entry = bench.started(&call).await;

    let mut done = finish(entry, State::Accepted, None);
    let answer = Answer {
        status: 201,
        headers: vec![("content-type".to_owned(), b"application/json".to_vec())],
        body: b"{\"id\":100}".to_vec(),
    };
    done.answer = Some(answer.clone());
    done.undo = Some("{\"operation\":\"comments.delete\"}".to_owned());
    done.deadline_ms = Some(5_000);
    bench.ledger.finish(done);
    bench.ledger.delivered(entry);
    let prior = bench.ledger.look(call.look()).await.unwrap().by_key.unwrap();

    assert_eq!((prior.entry, prior.state, prior.cause), (entry, State::Accepted, None));
    assert!(prior.delivered && prior.answered && prior.is_answer_kept);
    assert_eq!((prior.began_ms, prior.finished_ms, prior.attempt), (2_000, Some(3_000), 1));
    let stored = bench.ledger.answer(entry).await.unwrap().unwrap();
    assert_eq!(stored.answer, Some(answer));
    let said = stored.record.finish.unwrap();
    assert_eq!(said.undo.as_deref(), Some("{\"operation\":\"comments.delete\"}"));
    assert_eq!((said.deadline_ms, said.verdict), (Some(5_000), Some(Verdict::Verified)));
}

#[tokio::test]
async fn an_answer_above_the_limit_is_not_kept() {
    let bench = Bench::new();
    for (digest, size, is_kept) in [(1, MAX_ANSWER, true), (2, MAX_ANSWER + 1, false)] {
        let call = Call { digest, ..Call::default() };
        let entry = bench.started(&call).await;
        let mut done = finish(entry, State::Accepted, None);
        done.answer = Some(Answer { status: 200, headers: Vec::new(), body: vec![0; size] });

        bench.ledger.finish(done);

        assert_eq!(bench.by_digest(&call).await.unwrap().is_answer_kept, is_kept);
        let stored = bench.ledger.answer(entry).await.unwrap().unwrap();
        assert_eq!(stored.answer.is_some(), is_kept);
    }
}

#[tokio::test]
async fn f1_of_fifty_begins_with_one_key_one_starts() {
    let bench = Bench::new();
    let call = Call { key: Some("k1"), ..Call::default() };

    let begins: Vec<_> = (0..50)
        .map(|_| {
            let ledger = bench.ledger.clone();
            let begin = call.begin();
            async move { ledger.begin(begin).await.unwrap() }
        })
        .collect();
    let outcomes = together(begins).await;

    let started = outcomes.iter().filter(|o| **o == Begun::Started { attempt: 1 }).count();
    let changed = outcomes
        .iter()
        .filter(|outcome| match outcome {
            Begun::Changed(priors) => priors.by_key.as_ref().unwrap().state == State::Begun,
            Begun::Spent | Begun::Started { .. } => false,
        })
        .count();
    assert_eq!((started, changed), (1, 49));
    assert_eq!(bench.read().counts().unwrap().begun.count, 1);
}

#[tokio::test]
async fn h2_sixty_four_begins_beside_a_long_reader_are_all_there() {
    let bench = Bench::new();
    bench.accepted(&Call { digest: 200, ..Call::default() }).await;
    let reader = rusqlite::Connection::open(bench.path()).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let count = |conn: &rusqlite::Connection| -> i64 {
        conn.query_row("SELECT count(*) FROM entry", [], |row| row.get(0)).unwrap()
    };
    let seen = count(&reader);

    let begins: Vec<_> = (0..64)
        .map(|digest| {
            let ledger = bench.ledger.clone();
            let begin = Call { digest, ..Call::default() }.begin();
            async move { ledger.begin(begin).await.unwrap() }
        })
        .collect();
    let outcomes = together(begins).await;

    assert!(outcomes.iter().all(|outcome| *outcome == Begun::Started { attempt: 1 }));
    assert_eq!(count(&reader), seen, "the reader's transaction is still its own");
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(count(&reader), 65);
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

#[tokio::test]
async fn f4_one_principal_never_finds_another_ones_entry() {
    let bench = Bench::new();
    let mine = Call { principal: 1, key: Some("k1"), ..Call::default() };
    let theirs = Call { principal: 2, ..mine };
    bench.accepted(&mine).await;

    let priors = bench.ledger.look(theirs.look()).await.unwrap();

    assert_eq!(priors, Priors::default());
}

#[tokio::test]
async fn an_open_entry_of_a_weak_stranger_shows_by_digest_and_by_key_and_says_nothing() {
    let bench = Bench::new();
    let theirs = Call { principal: 1, weak: true, key: Some("k1"), digest: 1, ..Call::default() };
    let entry = bench.started(&theirs).await;
    let same_digest = Call { principal: 2, key: None, ..theirs };
    let same_key = Call { principal: 2, digest: 2, ..theirs };

    for call in [same_digest, same_key] {
        let priors = bench.ledger.look(call.look()).await.unwrap();
        let only = Priors { open_of_stranger: Some(Stranger), ..Priors::default() };
        assert_eq!(priors, only);
        let unjudged = bench.ledger.begin(call.begin()).await.unwrap();
        assert!(matches!(unjudged, Begun::Changed(_)));
    }
    bench.ledger.finish(finish(entry, State::Accepted, None));
    for call in [same_digest, same_key] {
        assert_eq!(bench.ledger.look(call.look()).await.unwrap(), Priors::default());
    }
}

#[tokio::test]
async fn an_open_entry_of_a_strong_principal_shows_to_nobody_else() {
    let bench = Bench::new();
    let theirs = Call { principal: 1, key: Some("k1"), ..Call::default() };
    bench.started(&theirs).await;

    let priors = bench.ledger.look(Call { principal: 2, ..theirs }.look()).await.unwrap();

    assert_eq!(priors, Priors::default());
}

#[tokio::test]
async fn a_staged_call_and_the_real_one_are_no_repeats_of_each_other() {
    let bench = Bench::new();
    let staged = Call { staged: true, ..Call::default() };
    let draft = bench.started(&staged).await;

    let real = bench.started(&Call::default()).await;

    assert_eq!(bench.by_digest(&staged).await.unwrap().entry, draft);
    assert_eq!(bench.by_digest(&Call::default()).await.unwrap().entry, real);
}

#[tokio::test]
async fn a_confirmation_is_used_once_and_survives_a_restart() {
    let mut bench = Bench::new();
    let spend = Some(Spend { nonce: [5; 16], expires_ms: 600_000 });
    let first = Begin { spend, ..Call::default().begin() };
    assert_eq!(bench.ledger.begin(first).await, Ok(Begun::Started { attempt: 1 }));
    bench.restart().await;

    let other = Call { digest: 2, ..Call::default() };
    let second = bench.ledger.begin(Begin { spend, ..other.begin() }).await;

    assert_eq!(second, Ok(Begun::Spent));
    assert_eq!(bench.by_digest(&other).await, None, "nothing was written");
}

#[tokio::test]
async fn not_sent_gives_the_confirmation_back() {
    let bench = Bench::new();
    let call = Call { key: Some("k1"), ..Call::default() };
    let spend = Some(Spend { nonce: [5; 16], expires_ms: 600_000 });
    let first = Begin { spend, ..call.begin() };
    let entry = first.entry;
    bench.ledger.begin(first).await.unwrap();
    bench.ledger.finish(finish(entry, State::Rejected, Some(Cause::NotSent)));

    let again = Begin { spend, rerun: Some(entry), ..bench.judged(&call).await };

    assert_eq!(bench.ledger.begin(again).await, Ok(Begun::Started { attempt: 2 }));
}

#[tokio::test]
async fn f8_a_rejected_entry_runs_again_as_its_next_attempt() {
    let bench = Bench::new();
    let call = Call { key: Some("k1"), ..Call::default() };
    let entry = bench.started(&call).await;
    bench.ledger.finish(finish(entry, State::Rejected, None));

    let again = Begin { rerun: Some(entry), ..bench.judged(&call).await };
    let begun = bench.ledger.begin(again.clone()).await;

    assert_eq!(begun, Ok(Begun::Started { attempt: 2 }));
    let prior = bench.by_digest(&call).await.unwrap();
    assert_eq!((prior.entry, prior.attempt, prior.state), (entry, 2, State::Begun));
    assert_eq!((prior.began_ms, prior.finished_ms), (2_000, None));
    let late = bench.ledger.begin(again).await.unwrap();
    assert!(matches!(late, Begun::Changed(_)), "the second of two reruns");
}

#[tokio::test]
async fn a_rerun_under_another_key_is_found_by_both() {
    let mut bench = Bench::new();
    let first = Call { key: Some("k1"), ..Call::default() };
    let entry = bench.started(&first).await;
    bench.ledger.finish(finish(entry, State::Unknown, Some(Cause::AmbiguousStatus)));
    let second = Call { key: Some("k2"), ..first };
    let again = Begin { rerun: Some(entry), ..bench.judged(&second).await };
    assert_eq!(bench.ledger.begin(again).await, Ok(Begun::Started { attempt: 2 }));

    for _ in 0..2 {
        for call in [first, second] {
            let priors = bench.ledger.look(call.look()).await.unwrap();
            assert_eq!(priors.by_key.unwrap().entry, entry);
        }
        bench.restart().await;
    }
}

#[tokio::test]
async fn an_attempt_that_was_not_sent_leaves_an_unknown_entry_as_it_was() {
    let bench = Bench::new();
    let call = Call::default();
    let entry = bench.started(&call).await;
    let mut ambiguous = finish(entry, State::Unknown, Some(Cause::AmbiguousStatus));
    ambiguous.answered = true;
    bench.ledger.finish(ambiguous);
    let again = Begin { rerun: Some(entry), ..bench.judged(&call).await };
    bench.ledger.begin(again).await.unwrap();

    let not_sent = finish(entry, State::Rejected, Some(Cause::NotSent));
    bench.ledger.finish(Finish { attempt: 2, ..not_sent });

    let prior = bench.by_digest(&call).await.unwrap();
    assert_eq!((prior.state, prior.cause), (State::Unknown, Some(Cause::AmbiguousStatus)));
    assert!(prior.answered);
    assert_eq!(prior.attempt, 2);
}

#[tokio::test]
async fn a_finish_of_another_attempt_or_of_an_illegal_step_is_refused_and_counted() {
    let bench = Bench::new();
    let entry = bench.started(&Call::default()).await;
    let mut stale = finish(entry, State::Accepted, None);
    stale.attempt = 2;
    assert_eq!(bench.ledger.finish_durably(stale).await, Err(LedgerError::Refused));
    for state in [State::Begun, State::Undone] {
        let illegal = finish(entry, state, None);
        assert_eq!(bench.ledger.finish_durably(illegal).await, Err(LedgerError::Refused));
    }
    let nobody = finish(new_id(), State::Accepted, None);
    assert_eq!(bench.ledger.finish_durably(nobody).await, Err(LedgerError::NotFound));
    bench.ledger.finish_durably(finish(entry, State::Unknown, None)).await.unwrap();

    let late = bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await;

    assert_eq!(late, Err(LedgerError::Refused), "only a lookup or a person settles");
    assert_eq!(bench.ledger.stats().refused, 5);
    let history = bench.read().show(entry).unwrap().unwrap().history;
    let steps: Vec<_> = history.iter().map(|step| (step.from, step.to)).collect();
    assert_eq!(steps, [(None, State::Begun), (Some(State::Begun), State::Unknown)]);
}

#[tokio::test]
async fn the_same_finish_twice_is_written_once() {
    let bench = Bench::new();
    let entry = bench.started(&Call::default()).await;
    for _ in 0..2 {
        let done = finish(entry, State::Accepted, None);
        assert_eq!(bench.ledger.finish_durably(done).await, Ok(()));
    }
    assert_eq!(bench.read().show(entry).unwrap().unwrap().history.len(), 2);
    assert_eq!(bench.ledger.stats().refused, 0);
}

#[tokio::test]
async fn an_accepted_undo_makes_the_newest_entry_with_its_mark_undone() {
    let bench = Bench::new();
    let create = Call { digest: 1, mark: 1, ..Call::default() };
    let undo = Call { digest: 2, mark: 2, ..Call::default() };
    let mut created = Vec::new();
    for _ in 0..2 {
        let entry = bench.started(&create).await;
        let mut done = finish(entry, State::Accepted, None);
        done.undo_mark = Some(Digest([2; 32]));
        bench.ledger.finish(done);
        created.push(entry);
    }
    let stranger = Call { principal: 7, ..undo };
    assert_eq!(bench.ledger.look(stranger.look()).await.unwrap().undoes, None);

    for expected in [created[1], created[0]] {
        let seen = bench.ledger.look(undo.look()).await.unwrap().undoes;
        assert_eq!(seen, Some(expected));
        let entry = bench.started(&undo).await;
        let mut done = finish(entry, State::Accepted, None);
        done.undoes = Some(undo.look().mark);
        bench.ledger.finish_durably(done).await.unwrap();
        let shown = bench.read().show(expected).unwrap().unwrap();
        assert_eq!(shown.record.prior.state, State::Undone);
        assert_eq!(shown.record.prior.finished_ms, Some(3_000));
        let last = shown.history.last().unwrap();
        assert_eq!(last.why.as_deref(), Some(entry.to_string().as_str()));
    }
    assert_eq!(bench.ledger.look(undo.look()).await.unwrap().undoes, None);
}

#[tokio::test]
async fn a_decision_settles_an_unknown_entry_once() {
    let bench = Bench::new();
    let call = Call::default();
    let entry = bench.started(&call).await;
    let settle = async |outcome| {
        bench.ledger.settle(entry, outcome, "ann", "seen in the console", 4_000).await
    };
    let early = settle(Outcome::Accepted).await;
    assert_eq!(early, Err(LedgerError::NotUnknown { state: State::Begun }));
    bench.ledger.finish(finish(entry, State::Unknown, Some(Cause::Timeout)));
    let named = bench.ledger.look(call.look()).await.unwrap().unknown_of_operation;
    assert_eq!(named, [entry]);
    assert_eq!(settle(Outcome::Unknown).await, Err(LedgerError::Refused));

    let settled = settle(Outcome::Accepted).await.unwrap();

    assert_eq!(settled.state, State::Accepted);
    let late = settle(Outcome::Rejected).await;
    assert_eq!(late, Err(LedgerError::NotUnknown { state: State::Accepted }));
    let shown = bench.read().show(entry).unwrap().unwrap();
    assert_eq!(shown.record.prior.version, settled.version);
    let last = shown.history.last().unwrap();
    assert_eq!(last.who.as_deref(), Some("ann"));
    assert_eq!(last.why.as_deref(), Some("seen in the console"));
    assert_eq!(last.cause, Some(Cause::Settled));
    let nobody = bench.ledger.settle(new_id(), Outcome::Accepted, "a", "b", 1).await;
    assert_eq!(nobody, Err(LedgerError::NotFound));
}

#[tokio::test]
async fn i_11_begun_entries_are_unknown_after_a_crash() {
    let mut bench = Bench::new();
    let call = Call { key: Some("k1"), ..Call::default() };
    let entry = bench.started(&call).await;
    bench.accepted(&Call { digest: 2, ..Call::default() }).await;
    let waiting = Call { digest: 3, ..Call::default() };
    let task = bench.started(&waiting).await;
    bench.ledger.finish(finish(task, State::Waiting, Some(Cause::Task)));

    let recovered = bench.restart().await;

    assert_eq!(recovered, Recovered { unknown: 1 });
    let prior = bench.ledger.look(call.look()).await.unwrap().by_key.unwrap();
    assert_eq!((prior.state, prior.cause), (State::Unknown, Some(Cause::Crash)));
    assert_eq!(prior.finished_ms, Some(9_000));
    assert!(!prior.answered);
    assert_eq!(bench.state(&waiting).await, Some(State::Waiting));
    let unknowns = bench.ledger.unknowns(10).await.unwrap();
    assert_eq!(unknowns.len(), 1);
    assert_eq!(unknowns[0].prior.entry, entry);
    assert!(unknowns[0].prior.lookup.is_some());
    assert_eq!(bench.restart().await, Recovered { unknown: 0 });
}

#[tokio::test]
async fn a_crash_of_a_second_attempt_forgets_what_the_first_was_answered() {
    let mut bench = Bench::new();
    let call = Call::default();
    let entry = bench.started(&call).await;
    let mut ambiguous = finish(entry, State::Unknown, Some(Cause::AmbiguousStatus));
    ambiguous.answered = true;
    bench.ledger.finish(ambiguous);
    let again = Begin { rerun: Some(entry), ..bench.judged(&call).await };
    bench.ledger.begin(again).await.unwrap();

    bench.restart().await;

    let prior = bench.by_digest(&call).await.unwrap();
    assert_eq!((prior.state, prior.cause), (State::Unknown, Some(Cause::Crash)));
    assert!(!prior.answered, "nobody saw the answer of the second attempt");
}

#[tokio::test]
async fn h5_a_second_writer_is_locked_out_until_the_first_closes() {
    let bench = Bench::new();
    let second = Embedded::open(&bench.path(), Options::default(), 1);
    assert!(matches!(second, Err(OpenError::Locked)));

    bench.ledger.close().await;

    assert!(Embedded::open(&bench.path(), Options::default(), 1).is_ok());
    let late = bench.ledger.begin(Call::default().begin()).await;
    assert_eq!(late, Err(LedgerError::Unavailable(Reason::Closed)));
    assert_eq!(bench.ledger.health().down, Some(Reason::Closed));
}

#[tokio::test]
async fn folder_and_file_are_for_the_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    bench.started(&Call::default()).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(bench.path().parent().unwrap()), 0o700);
    for suffix in ["", "-wal", ".lock"] {
        let mut name = bench.path().into_os_string();
        name.push(suffix);
        assert_eq!(mode(Path::new(&name)), 0o600, "{suffix}");
    }
}

#[tokio::test]
async fn the_sealing_key_is_made_once() {
    let mut bench = Bench::new();
    let key = bench.ledger.sealing_key();
    assert_ne!(key, [0; 32]);
    bench.restart().await;
    assert_eq!(bench.ledger.sealing_key(), key);
    assert_ne!(Bench::new().ledger.sealing_key(), key);
}

#[tokio::test]
async fn files_of_other_versions_and_kinds_are_refused() {
    let bench = Bench::new();
    bench.ledger.close().await;
    let change = |sql: &str| {
        rusqlite::Connection::open(bench.path()).unwrap().execute_batch(sql).unwrap();
    };

    change("PRAGMA user_version = 2");
    let newer = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();
    assert!(matches!(newer, OpenError::Newer { found: 2, known: 1 }));
    assert!(matches!(ReadOnly::open(&bench.path()), Err(OpenError::Newer { .. })));
    change("PRAGMA user_version = 0");
    let older = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();
    assert!(matches!(older, OpenError::Older { found: 0, known: 1 }));
    change("PRAGMA application_id = 5");
    let foreign = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();
    assert!(matches!(foreign, OpenError::Foreign));
}

#[tokio::test]
async fn h6_a_damaged_file_is_refused_at_the_start() {
    use std::os::unix::fs::FileExt as _;
    let bench = Bench::new();
    for digest in 0..100 {
        bench.accepted(&Call { digest, ..Call::default() }).await;
    }
    bench.ledger.close().await;
    let file = std::fs::OpenOptions::new().write(true).open(bench.path()).unwrap();
    let length = file.metadata().unwrap().len();
    assert!(length > 3 * 4096);
    file.write_all_at(&[0xa5; 4096], length / 2 / 4096 * 4096).unwrap();

    let damaged = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();

    assert!(matches!(damaged, OpenError::Damaged(_) | OpenError::Sql(_)), "{damaged:?}");
}

#[tokio::test]
async fn h1_begins_are_refused_before_finishes_when_the_limit_is_near() {
    let cap = 1024 * 1024;
    let bench = Bench::with(Options { size_cap_bytes: Some(cap) });
    let open = bench.started(&Call { digest: 255, ..Call::default() }).await;
    let mut refused = None;
    for round in 0..5_000_u64 {
        let mut begin = Call::default().begin();
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&round.to_be_bytes());
        begin.look.digest = Digest(digest);
        begin.target = "x".repeat(2_000);
        match bench.ledger.begin(begin).await {
            Ok(begun) => assert_eq!(begun, Begun::Started { attempt: 1 }),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    assert_eq!(refused, Some(LedgerError::Unavailable(Reason::Full)));
    assert_eq!(bench.ledger.health().down, Some(Reason::Full));

    let finished = bench.ledger.finish_durably(finish(open, State::Accepted, None)).await;

    assert_eq!(finished, Ok(()));
    assert_eq!(bench.ledger.health().down, Some(Reason::Full), "begins are still refused");
    assert!(std::fs::metadata(bench.path()).unwrap().len() <= cap);
}

#[tokio::test]
async fn h1_a_failed_commit_fails_its_begins_and_keeps_its_finishes() {
    let bench = Bench::new();
    let done = Call { digest: 1, ..Call::default() };
    let entry = bench.started(&done).await;
    let faults = &bench.embedded().shared.faults;
    faults.before.store(1, Ordering::SeqCst);

    let kept = bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await;
    let refused = bench.ledger.begin(Call { digest: 2, ..Call::default() }.begin()).await;

    let down = LedgerError::Unavailable(Reason::Io);
    assert_eq!(kept, Err(down));
    // Either it met the store while it was down, or after it came back of itself.
    assert!(refused == Err(down) || refused == Ok(Begun::Started { attempt: 1 }));
    bench.ledger.heartbeat(5_000).await.unwrap();
    assert!(bench.ledger.health().is_ok());
    assert_eq!(bench.state(&done).await, Some(State::Accepted));
}

#[tokio::test]
async fn while_the_store_is_down_everything_that_waits_is_refused_at_once() {
    let bench = Bench::new();
    let faults = &bench.embedded().shared.faults;
    faults.before.store(u8::MAX, Ordering::SeqCst);
    let down = LedgerError::Unavailable(Reason::Io);
    let entry = new_id();

    let call = Call::default();
    assert_eq!(bench.ledger.begin(call.begin()).await, Err(down));
    assert_eq!(bench.ledger.health().down, Some(Reason::Io));
    assert_eq!(bench.ledger.look(call.look()).await, Err(down));
    assert_eq!(bench.ledger.answer(entry).await, Err(down));
    assert_eq!(bench.ledger.heartbeat(1).await, Err(down));
    assert_eq!(bench.ledger.settle(entry, Outcome::Accepted, "a", "b", 1).await, Err(down));
    let unfinished = bench.ledger.finish(finish(entry, State::Accepted, None));
    assert_eq!(unfinished, Finished::Unfinished);

    faults.before.store(0, Ordering::SeqCst);
    bench.ledger.heartbeat(2).await.unwrap();
    assert_eq!(bench.ledger.look(call.look()).await, Ok(Priors::default()));
}

#[tokio::test]
async fn a_begin_whose_commit_failed_after_it_reached_the_disk_is_withdrawn() {
    let bench = Bench::new();
    let call = Call::default();
    let spend = Some(Spend { nonce: [5; 16], expires_ms: 600_000 });
    bench.embedded().shared.faults.after.store(1, Ordering::SeqCst);

    let refused = bench.ledger.begin(Begin { spend, ..call.begin() }).await;
    bench.ledger.heartbeat(5_000).await.unwrap();

    assert_eq!(refused, Err(LedgerError::Unavailable(Reason::Io)));
    let prior = bench.by_digest(&call).await.unwrap();
    assert_eq!((prior.state, prior.cause), (State::Rejected, Some(Cause::NotSent)));
    let again = Begin { spend, rerun: Some(prior.entry), ..bench.judged(&call).await };
    assert_eq!(bench.ledger.begin(again).await, Ok(Begun::Started { attempt: 2 }));
}

#[tokio::test]
async fn a_begin_whose_caller_has_gone_is_withdrawn_or_never_written() {
    let bench = Bench::new();
    for digest in 0..20 {
        let call = Call { digest, ..Call::default() };
        let mut begin = Box::pin(bench.ledger.begin(call.begin()));
        // Polled once: it is in the queue, and the answer, if it is there, is not taken.
        let first = std::future::poll_fn(|cx| std::task::Poll::Ready(begin.as_mut().poll(cx)));
        let is_pending = first.await.is_pending();

        drop(begin);

        if is_pending {
            bench
                .until(async || {
                    bench.ledger.heartbeat(5_000).await.unwrap();
                    matches!(bench.state(&call).await, None | Some(State::Rejected))
                })
                .await;
        }
    }
}

#[tokio::test]
async fn a_removed_file_refuses_writes_until_it_is_back() {
    let bench = Bench::new();
    let call = Call { digest: 1, ..Call::default() };
    let kept = bench.started(&call).await;
    let folder = bench.path().parent().unwrap().to_owned();
    let aside = folder.with_file_name("aside");
    std::fs::rename(&folder, &aside).unwrap();

    let other = Call { digest: 2, ..Call::default() };
    let refused = bench.ledger.begin(other.begin()).await;
    bench.ledger.finish(finish(kept, State::Accepted, None));
    let down = bench.ledger.heartbeat(5_000).await;

    let removed = LedgerError::Unavailable(Reason::Removed);
    assert_eq!((refused, down), (Err(removed), Err(removed)));
    assert!(!folder.exists(), "no empty ledger in its place");
    std::fs::rename(&aside, &folder).unwrap();
    bench.ledger.heartbeat(5_000).await.unwrap();
    assert_eq!(bench.state(&call).await, Some(State::Accepted), "its finish was kept");
    assert_ne!(bench.state(&other).await, Some(State::Begun), "nobody dispatched it");
    bench.started(&call).await;
}

#[tokio::test]
async fn another_ledger_or_an_older_copy_at_the_path_is_refused() {
    let bench = Bench::new();
    bench.started(&Call { digest: 1, ..Call::default() }).await;
    let folder = bench.path().parent().unwrap().to_owned();
    let snapshot = folder.with_file_name("snapshot");
    std::fs::create_dir(&snapshot).unwrap();
    let copy = rusqlite::Connection::open(bench.path()).unwrap();
    let target = snapshot.join("ledger.db");
    copy.execute("VACUUM INTO ?1", [target.to_str().unwrap()]).unwrap();
    drop(copy);
    bench.started(&Call { digest: 2, ..Call::default() }).await;
    let other = Bench::new();
    other.ledger.close().await;
    let replaced = Err(LedgerError::Unavailable(Reason::Replaced));

    let aside = folder.with_file_name("aside");
    std::fs::rename(&folder, &aside).unwrap();
    std::fs::rename(&snapshot, &folder).unwrap();
    assert!(bench.ledger.heartbeat(5_000).await.is_err());
    assert_eq!(bench.ledger.heartbeat(5_000).await, replaced, "an older copy");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::rename(other.path().parent().unwrap(), &folder).unwrap();
    assert_eq!(bench.ledger.heartbeat(5_000).await, replaced, "another ledger");

    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    assert_eq!(bench.ledger.heartbeat(5_000).await, Ok(()));
}

#[tokio::test]
async fn a_command_that_fails_in_sql_fails_alone() {
    let bench = Bench::new();
    let mut bad = Call { digest: 2, ..Call::default() }.begin();
    bad.target = POISON.to_owned();
    let mut begins = vec![bad];
    begins.extend((3..20).map(|digest| Call { digest, ..Call::default() }.begin()));
    let begins: Vec<_> = begins
        .into_iter()
        .map(|begin| {
            let ledger = bench.ledger.clone();
            async move { ledger.begin(begin).await }
        })
        .collect();

    let outcomes = together(begins).await;

    assert_eq!(outcomes[0], Err(LedgerError::Refused));
    assert!(outcomes[1..].iter().all(|o| *o == Ok(Begun::Started { attempt: 1 })));
    assert!(bench.ledger.health().is_ok());
}

#[tokio::test]
async fn an_id_that_is_taken_is_refused() {
    let bench = Bench::new();
    let entry = bench.started(&Call { digest: 1, ..Call::default() }).await;
    let second = Begin { entry, ..Call { digest: 2, ..Call::default() }.begin() };

    assert_eq!(bench.ledger.begin(second).await, Err(LedgerError::Refused));
}

#[tokio::test]
async fn ids_of_one_millisecond_and_of_earlier_ones_are_told_apart() {
    let bench = Bench::new();
    let mut entries = Vec::new();
    for digest in 0..4 {
        let entry = EntryId::from_bytes([9 - digest; 16]);
        let call = Call { digest, ..Call::default() };
        let begun = bench.ledger.begin(Begin { entry, ..call.begin() }).await;
        assert_eq!(begun, Ok(Begun::Started { attempt: 1 }));
        entries.push((call, entry));
    }

    for (call, entry) in entries {
        bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await.unwrap();
        let shown = bench.read().show(entry).unwrap().unwrap();
        assert_eq!((shown.record.prior.entry, shown.record.prior.state), (entry, State::Accepted));
        assert_eq!(bench.by_digest(&call).await.unwrap().entry, entry);
    }
}

#[tokio::test]
async fn a_begin_that_ignores_an_open_entry_is_refused_but_for_observe_mode() {
    let bench = Bench::new();
    let call = Call::default();
    bench.started(&call).await;

    assert_eq!(bench.ledger.begin(bench.judged(&call).await).await, Err(LedgerError::Refused));
    let observed = Begin { guard: Guard::Observed, ..call.begin() };
    assert_eq!(bench.ledger.begin(observed).await, Ok(Begun::Started { attempt: 1 }));
    assert_eq!(bench.read().counts().unwrap().begun.count, 2);
}

#[tokio::test]
async fn deliveries_and_finishes_reach_the_disk_without_a_begin() {
    let bench = Bench::new();
    let entry = bench.accepted(&Call::default()).await;
    bench.ledger.delivered(entry);

    bench
        .until(async || {
            let prior = bench.read().show(entry).unwrap().unwrap().record.prior;
            prior.state == State::Accepted && prior.delivered
        })
        .await;

    assert_eq!(bench.ledger.stats().pending, 0);
}

#[tokio::test]
async fn lists_are_newest_first_filtered_and_paged() {
    let bench = Bench::new();
    let mut entries = Vec::new();
    for digest in 0..6 {
        let entry = bench.started(&Call { digest, ..Call::default() }).await;
        if digest % 2 == 0 {
            bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await.unwrap();
        }
        entries.insert(0, entry);
    }
    let read = bench.read();
    let ids = |filter: Filter| -> Vec<EntryId> {
        read.list(&filter).unwrap().into_iter().map(|record| record.prior.entry).collect()
    };
    let all = Filter { limit: 100, ..Filter::default() };

    assert_eq!(ids(all.clone()), entries);
    assert_eq!(ids(Filter { limit: 2, before: Some(entries[1]), ..all.clone() }), entries[2..4]);
    let begun = Filter { state: Some(State::Begun), ..all.clone() };
    assert_eq!(ids(begun), [entries[0], entries[2], entries[4]]);
    let other = Filter { operation: OperationId::new("other"), ..all };
    assert_eq!(ids(other), []);
    let counts = bench.ledger.counts().await.unwrap();
    assert_eq!((counts.begun.count, counts.begun.oldest_ms), (3, Some(2_000)));
    assert_eq!(counts.unknown.oldest_ms, None);
}

#[tokio::test]
async fn the_views_name_every_state_and_show_ids_and_times_as_text() {
    let bench = Bench::new();
    let entry = bench.started(&Call { key: Some("k1"), ..Call::default() }).await;
    let conn = rusqlite::Connection::open(bench.path()).unwrap();
    for state in State::ALL {
        conn.execute("UPDATE entry SET state = ?1", [state.code()]).unwrap();
        conn.execute("UPDATE history SET from_state = ?1, to_state = ?1", [state.code()]).unwrap();
        let seen: (String, String) = conn
            .query_row("SELECT entry, state FROM entries", [], |r| Ok((r.get(0)?, r.get(1)?)))
            .unwrap();
        assert_eq!(seen, (entry.to_string(), state.as_str().to_owned()));
        let step: (String, String, String) = conn
            .query_row("SELECT entry, from_state, to_state FROM history_readable", [], |r| {
                Ok((r.get(0)?, r.get(1)?, r.get(2)?))
            })
            .unwrap();
        let word = state.as_str().to_owned();
        assert_eq!(step, (entry.to_string(), word.clone(), word));
        let open: i64 =
            conn.query_row("SELECT count(*) FROM open_entries", [], |r| r.get(0)).unwrap();
        assert_eq!(open == 1, state.is_open());
    }
    let began: (String, String) = conn
        .query_row("SELECT began, ledger_id FROM entries", [], |r| Ok((r.get(0)?, r.get(1)?)))
        .unwrap();
    assert_eq!(began, ("1970-01-01T00:00:02.000Z".to_owned(), "k1".to_owned()));
}

#[derive(Clone, Debug)]
enum Act {
    Begin { digest: u8, is_rerun: bool },
    Finish { digest: u8, attempt: u32, state: State, is_not_sent: bool },
    Settle { digest: u8, outcome: Outcome },
    Undo { digest: u8 },
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let digest = 0..3_u8;
    let state = proptest::sample::select(State::ALL);
    prop_oneof![
        4 => (digest.clone(), any::<bool>())
            .prop_map(|(digest, is_rerun)| Act::Begin { digest, is_rerun }),
        6 => (digest.clone(), 1..4_u32, state, any::<bool>()).prop_map(
            |(digest, attempt, state, is_not_sent)| Act::Finish {
                digest, attempt, state, is_not_sent
            }
        ),
        2 => (digest.clone(), proptest::sample::select(Outcome::ALL))
            .prop_map(|(digest, outcome)| Act::Settle { digest, outcome }),
        1 => digest.prop_map(|digest| Act::Undo { digest }),
        1 => Just(Act::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn only_legal_steps_are_ever_written(acts in proptest::collection::vec(act(), 1..30)) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut bench = Bench::new();
            for act in acts {
                run(&mut bench, act).await;
            }
            bench.ledger.heartbeat(1).await.unwrap();
            let read = bench.read();
            let all = Filter { limit: usize::MAX, ..Filter::default() };
            let mut open = std::collections::BTreeSet::new();
            for record in read.list(&all).unwrap() {
                let prior = record.prior;
                let history = read.show(prior.entry).unwrap().unwrap().history;
                let mut state = None;
                for step in &history {
                    assert_eq!(step.from, state, "each step starts where the last one ended");
                    match state {
                        None => assert_eq!(step.to, State::Begun),
                        Some(from) => assert!(from.may_become(step.to), "{from} {}", step.to),
                    }
                    state = Some(step.to);
                }
                assert_eq!(state, Some(prior.state));
                assert_eq!(history.last().unwrap().seq, prior.version);
                let begins = history.iter().filter(|step| step.to == State::Begun).count();
                assert_eq!(u32::try_from(begins).unwrap(), prior.attempt);
                assert!(!prior.state.is_open() || open.insert(prior.digest), "two open");
            }
        });
    }
}

async fn run(bench: &mut Bench, act: Act) {
    let call = |digest| Call { digest, mark: digest, ..Call::default() };
    match act {
        Act::Begin { digest, is_rerun } => {
            let prior = bench.by_digest(&call(digest)).await;
            let rerun = prior.filter(|_| is_rerun).map(|prior| prior.entry);
            let begin = Begin { rerun, ..bench.judged(&call(digest)).await };
            match bench.ledger.begin(begin).await {
                Ok(Begun::Started { .. }) | Err(LedgerError::Refused) => {}
                other => panic!("{other:?}"),
            }
        }
        Act::Finish { digest, attempt, state, is_not_sent } => {
            let Some(prior) = bench.by_digest(&call(digest)).await else { return };
            let cause = is_not_sent.then_some(Cause::NotSent);
            let mut done = finish(prior.entry, state, cause);
            done.attempt = attempt;
            done.undo_mark = Some(Digest([digest + 100; 32]));
            bench.ledger.finish(done);
        }
        Act::Settle { digest, outcome } => {
            let Some(prior) = bench.by_digest(&call(digest)).await else { return };
            let settled = bench.ledger.settle(prior.entry, outcome, "ann", "why", 1).await;
            assert_eq!(
                settled.is_ok(),
                prior.state == State::Unknown && outcome != Outcome::Unknown
            );
        }
        Act::Undo { digest } => {
            let undo = Call { digest: digest + 50, mark: digest + 100, ..Call::default() };
            if bench.state(&undo).await.is_some_and(State::is_open) {
                return;
            }
            let entry = bench.started(&undo).await;
            let mut done = finish(entry, State::Accepted, None);
            done.undoes = Some(undo.look().mark);
            bench.ledger.finish(done);
        }
        Act::Restart => {
            bench.restart().await;
        }
    }
}
