//! What is taken out of a ledger, by a person and by retention: it is gone, the chain verifies, and what
//! an entry is known by stays.

use std::time::Duration;

use super::chained::keys;
use super::*;

on_both_stores!(
    a_redacted_value_is_gone_and_the_chain_still_verifies,
    a_redaction_is_a_row_of_the_chain_that_nobody_can_add,
    a_redaction_of_nothing_or_of_an_open_entry_is_refused_and_changes_nothing,
    retention_removes_what_old_calls_held_and_keeps_what_they_are_known_by,
    retention_leaves_open_entries_and_comes_back_to_them,
    retention_comes_by_again_after_a_further_attempt,
    without_a_retention_everything_is_kept,
);

const CANARY: &str = "canary-7f3a";

fn held(entry: EntryId) -> Finish {
    Finish {
        upstream_id: Some(format!("id-{CANARY}")),
        undo: Some(format!("{{\"arguments\":{{\"a\":\"{CANARY}\"}}}}")),
        undo_mark: Some(Digest([9; 32])),
        answer: Some(Answer {
            status: 201,
            headers: vec![("etag".to_owned(), b"\"1\"".to_vec())],
            body: format!("{{\"id\":100,\"name\":\"{CANARY}\"}}").into_bytes(),
        }),
        ..finish(entry, State::Accepted, None)
    }
}

impl Bench {
    /// An accepted call that holds a value in every place.
    async fn canary(&self, call: &Call) -> EntryId {
        let begin = Begin {
            target: format!("POST /{CANARY}"),
            lookup: Some(format!("{{\"a\":\"{CANARY}\"}}")),
            before: Some(format!("{{\"etag\":null,\"body\":{{\"name\":\"{CANARY}\",\"n\":1}}}}")),
            ..self.judged(call).await
        };
        let entry = begin.entry;
        assert_eq!(self.ledger.begin(begin).await, Ok(Begun::Started { attempt: 1 }));
        self.ledger.finish_durably(held(entry)).await.unwrap();
        entry
    }

    async fn redacted(&self, entry: EntryId, parts: &[&str]) -> Result<Settled, LedgerError> {
        let parts = parts.iter().map(|part| Part::parse(part).unwrap()).collect();
        self.ledger.redact(entry, parts, "ann", "asked for", 4_000).await
    }

    fn record(&self, entry: EntryId) -> Record {
        self.read().show(entry).unwrap().unwrap().record
    }

    /// Whether the store holds the value anywhere; it must be closed.
    fn holds_canary(&self) -> bool {
        match &self.home {
            Home::Folder(_) => ["", "-wal"].iter().any(|suffix| {
                let mut path = self.path().into_os_string();
                path.push(suffix);
                let bytes = std::fs::read(path).unwrap_or_default();
                bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes())
            }),
            Home::Database(database) => {
                let rows = |table: &str| {
                    let sql = format!("SELECT t::text FROM takeback.{table} t");
                    database.query(&sql).join("\n")
                };
                let hex: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
                let all = ["entry", "history", "image"].map(rows).join("\n");
                all.contains(CANARY) || all.contains(&hex)
            }
        }
    }
}

fn pruning(store: Store) -> Bench {
    let retention = Some(Duration::from_secs(1));
    Bench::with(store, Options { keys: keys(&["some"]), retention, ..Options::default() })
}

const EVERYTHING: [&str; 6] =
    ["/target", "/before/body/name", "/answer/body/name", "/undo", "/lookup", "/upstream_id"];

async fn a_redacted_value_is_gone_and_the_chain_still_verifies(store: Store) {
    let bench = Bench::with(store, Options { keys: keys(&["some"]), ..Options::default() });
    let call = Call { key: Some("k1"), ..Call::default() };
    let entry = bench.canary(&call).await;
    let other = bench.accepted(&Call { digest: 5, ..Call::default() }).await;

    let settled = bench.redacted(entry, &EVERYTHING).await.unwrap();

    assert_eq!(settled.state, State::Accepted);
    let shown = bench.read().show(entry).unwrap().unwrap();
    assert_eq!(shown.record.target, REDACTED);
    let before = shown.before.unwrap();
    assert_eq!(before, "{\"etag\":null,\"body\":{\"name\":\"[redacted]\",\"n\":1}}");
    let finish = shown.record.finish.unwrap();
    assert_eq!((finish.undo, finish.upstream_id), (None, None));
    assert_eq!(finish.undo_unavailable.as_deref(), Some("it was redacted"));
    let step = shown.history.last().unwrap();
    assert_eq!(
        (step.noted, step.from, step.to),
        (Some(Noted::Redaction), Some(State::Accepted), State::Accepted)
    );
    assert_eq!((step.who.as_deref(), step.why.as_deref()), (Some("ann"), Some("asked for")));
    assert!(step.detail.as_ref().unwrap().contains("/before/body/name"));
    // A repeat is known, and gets no answer that is not the upstream's any more.
    let prior = bench.ledger.look(call.look()).await.unwrap().by_key.unwrap();
    assert_eq!((prior.entry, prior.removed), (entry, Some(Removed::Redacted)));
    assert!(!prior.is_answer_kept);
    assert_eq!(bench.ledger.answer(entry).await.unwrap().unwrap().answer, None);
    assert!(bench.ledger.answer(other).await.unwrap().is_some());
    let verified = bench.read().verify(&bench.options.keys, &[]).unwrap().unwrap();
    assert_eq!(verified.redacted, 2, "the begin's row and the finish's");

    // Once more, something else.
    bench.redacted(entry, &["/answer"]).await.unwrap();
    let again = bench.read().verify(&bench.options.keys, &[]).unwrap().unwrap();
    assert_eq!(again.redacted, 2);
    bench.ledger.close().await;
    assert!(!bench.holds_canary());
}

async fn a_redaction_is_a_row_of_the_chain_that_nobody_can_add(store: Store) {
    let bench = Bench::with(store, Options { keys: keys(&["some"]), ..Options::default() });
    let entry = bench.canary(&Call::default()).await;
    bench.redacted(entry, &EVERYTHING).await.unwrap();
    bench.ledger.close().await;
    let verify = || bench.read().verify(&bench.options.keys, &[]).unwrap();
    assert!(verify().is_ok());

    bench.change("UPDATE history SET upstream_id = 'theirs' WHERE status IS NOT NULL");
    let broken = verify().unwrap_err();
    assert!(broken.why.contains("no redaction says so"), "{broken}");
    bench.change("UPDATE history SET upstream_id = NULL WHERE status IS NOT NULL");
    assert!(verify().is_ok());
    bench.change("UPDATE image SET before = '{}'");
    assert!(verify().is_err());
}

async fn a_redaction_of_nothing_or_of_an_open_entry_is_refused_and_changes_nothing(store: Store) {
    let bench = Bench::new(store);
    let entry = bench.canary(&Call::default()).await;
    let version = bench.record(entry).prior.version;
    let nothing = bench.redacted(entry, &["/answer/body/name", "/answer/body/nobody"]).await;
    assert_eq!(nothing, Err(LedgerError::NothingThere));
    assert_eq!(bench.redacted(entry, &["/compensate"]).await, Err(LedgerError::NothingThere));
    assert_eq!(bench.record(entry).prior.version, version);
    assert!(bench.ledger.answer(entry).await.unwrap().unwrap().answer.is_some());

    let open = bench.started(&Call { digest: 5, ..Call::default() }).await;
    assert_eq!(bench.redacted(open, &["/target"]).await, Err(LedgerError::StillOpen));
    assert_eq!(bench.redacted(new_id(), &["/target"]).await, Err(LedgerError::NotFound));
}

async fn retention_removes_what_old_calls_held_and_keeps_what_they_are_known_by(store: Store) {
    let mut bench = pruning(store);
    let call = Call { key: Some("k1"), ..Call::default() };
    let entry = bench.canary(&call).await;

    // 9 seconds after the call.
    bench.restart().await;
    bench.until(async || bench.record(entry).prior.removed == Some(Removed::Retention)).await;

    let record = bench.record(entry);
    assert_eq!(record.prior.state, State::Accepted);
    assert_eq!((record.target.as_str(), &record.prior.lookup), ("", &None));
    let finish = record.finish.unwrap();
    assert_eq!((finish.undo, finish.upstream_id), (None, None));
    assert!(finish.undo_unavailable.unwrap().contains("older than what the ledger keeps"));
    assert_eq!(finish.verdict, Some(Verdict::Verified));
    // A repeat under its key is still known: no second effect.
    let priors = bench.ledger.look(call.look()).await.unwrap();
    assert_eq!(priors.by_key.unwrap().entry, entry);
    let prior = priors.by_digest.unwrap();
    assert!(!prior.is_answer_kept);
    let stored = bench.ledger.answer(entry).await.unwrap().unwrap();
    assert_eq!(stored.answer, None);
    // So is the call that takes it back.
    let undoing = Look { mark: Digest([9; 32]), ..Call { digest: 6, ..call }.look() };
    assert_eq!(bench.ledger.look(undoing).await.unwrap().undoes, Some(entry));
    let verified = bench.read().verify(&bench.options.keys, &[]).unwrap().unwrap();
    assert_eq!(verified.removed, 2, "the begin's row and the finish's");
    bench.ledger.close().await;
    assert!(!bench.holds_canary());

    // What is left of it is protected as before.
    bench.change("UPDATE entry SET key = 'other'");
    assert!(bench.read().verify(&bench.options.keys, &[]).unwrap().is_err());
}

async fn retention_leaves_open_entries_and_comes_back_to_them(store: Store) {
    let mut bench = pruning(store);
    let unknown = bench.started(&Call { digest: 1, ..Call::default() }).await;
    let lost = finish(unknown, State::Unknown, Some(Cause::Reset));
    bench.ledger.finish_durably(lost).await.unwrap();
    let old = bench.canary(&Call { digest: 2, ..Call::default() }).await;

    bench.restart().await;
    bench.until(async || bench.record(old).prior.removed.is_some()).await;

    assert_eq!(bench.record(unknown).prior.removed, None);
    assert!(bench.record(unknown).prior.lookup.is_some(), "its lookup still finds it");
    bench.ledger.settle(unknown, Outcome::Accepted, "ann", "seen", 3_500).await.unwrap();
    bench.restart().await;
    bench.until(async || bench.record(unknown).prior.removed.is_some()).await;
    assert!(bench.read().verify(&bench.options.keys, &[]).unwrap().is_ok());
}

async fn retention_comes_by_again_after_a_further_attempt(store: Store) {
    let mut bench = pruning(store);
    let call = Call { key: Some("k1"), ..Call::default() };
    let entry = bench.started(&call).await;
    let rejected = finish(entry, State::Rejected, None);
    bench.ledger.finish_durably(rejected).await.unwrap();
    bench.restart().await;
    bench.until(async || bench.record(entry).prior.removed.is_some()).await;

    // Nothing happened, so the call may be made again under its key.
    let priors = bench.ledger.look(call.look()).await.unwrap();
    let begin = Begin { expected: priors.expected(), rerun: Some(entry), ..call.begin() };
    assert_eq!(bench.ledger.begin(begin).await, Ok(Begun::Started { attempt: 2 }));
    let accepted = Finish { attempt: 2, ..held(entry) };
    bench.ledger.finish_durably(accepted).await.unwrap();
    let record = bench.record(entry);
    assert_eq!((record.prior.removed, record.target.as_str()), (None, "POST /comments"));
    assert!(bench.read().verify(&bench.options.keys, &[]).unwrap().is_ok());

    bench.restart().await;
    bench.until(async || bench.record(entry).prior.removed.is_some()).await;
    assert!(bench.read().verify(&bench.options.keys, &[]).unwrap().is_ok());
    bench.ledger.close().await;
    assert!(!bench.holds_canary());
}

async fn without_a_retention_everything_is_kept(store: Store) {
    let mut bench = Bench::new(store);
    let entry = bench.canary(&Call::default()).await;
    bench.restart().await;
    bench.ledger.heartbeat(i64::MAX / 2).await.unwrap();
    assert_eq!(bench.record(entry).prior.removed, None);
    assert!(bench.ledger.answer(entry).await.unwrap().unwrap().answer.is_some());
}

#[tokio::test]
async fn more_old_entries_than_one_batch_holds_are_removed_while_calls_go_on() {
    let mut bench = pruning(Store::Embedded);
    let call = |digest| Call { digest, ..Call::default() };
    let mut entries = Vec::new();
    for digest in 0..150 {
        entries.push(bench.accepted(&call(digest)).await);
    }
    bench.restart().await;

    for digest in 150..200 {
        let entry = bench.started(&call(digest)).await;
        bench.ledger.finish(finish(entry, State::Accepted, None));
    }

    for entry in entries {
        bench.until(async || bench.record(entry).prior.removed.is_some()).await;
    }
    let verified = bench.read().verify(&bench.options.keys, &[]).unwrap().unwrap();
    assert!(verified.removed >= 300, "{}", verified.removed);
}
