//! What is due, what is noted, and ledgers of older versions.

use super::*;
use crate::contract::class::Outcome;

on_both_stores!(
    an_entry_is_due_from_its_time_on_and_a_note_says_when_next,
    what_is_due_survives_a_restart_and_so_do_its_tries,
    i_11_an_entry_that_died_begun_is_due_at_once,
    a_note_of_another_step_is_refused_and_writes_nothing,
    a_note_settles_an_unknown_entry_and_frees_its_call,
    a_verdict_that_comes_later_takes_the_place_of_the_finishs,
    the_state_before_a_call_is_kept_with_its_newest_attempt,
    what_allowed_a_call_stands_in_its_history_and_so_does_what_became_of_it,
    a_decision_and_an_undo_end_what_is_due,
);

fn note(entry: EntryId, version: i64) -> Note {
    Note {
        entry,
        version,
        noted: Noted::Lookup,
        why: "nothing is there".to_owned(),
        detail: Some("{\"answer\":\"absent\"}".to_owned()),
        outcome: None,
        verdict: None,
        due: Some(Due { at_ms: 7_000, tries: 1 }),
        now_ms: 5_000,
    }
}

async fn unknown(bench: &Bench, call: &Call) -> EntryId {
    let entry = bench.started(call).await;
    let mut lost = finish(entry, State::Unknown, Some(Cause::Reset));
    lost.due_ms = Some(4_000);
    bench.ledger.finish_durably(lost).await.unwrap();
    entry
}

async fn due(bench: &Bench, now_ms: i64) -> Vec<EntryId> {
    let due = bench.ledger.due(now_ms, 10).await.unwrap();
    due.iter().map(|pending| pending.record.prior.entry).collect()
}

async fn an_entry_is_due_from_its_time_on_and_a_note_says_when_next(store: Store) {
    let bench = Bench::new(store);
    let entry = unknown(&bench, &Call::default()).await;
    assert_eq!(due(&bench, 3_999).await, []);
    assert_eq!(due(&bench, 4_000).await, [entry]);
    let version = bench.only().prior.version;

    let noted = bench.ledger.note(note(entry, version)).await.unwrap();

    assert_eq!(noted.state, State::Unknown);
    assert!(noted.version > version);
    assert_eq!(due(&bench, 6_999).await, []);
    let pending = bench.ledger.due(7_000, 10).await.unwrap().remove(0);
    assert_eq!((pending.record.tries, pending.record.due_ms), (1, Some(7_000)));
    assert_eq!(pending.last.as_deref(), Some("{\"answer\":\"absent\"}"));
    let shown = bench.read().show(entry).unwrap().unwrap();
    let last = shown.history.last().unwrap();
    assert_eq!(
        (last.from, last.to, last.noted),
        (Some(State::Unknown), State::Unknown, Some(Noted::Lookup))
    );
    assert_eq!(
        (last.who.as_deref(), last.why.as_deref()),
        (Some("lookup"), Some("nothing is there"))
    );
}

async fn what_is_due_survives_a_restart_and_so_do_its_tries(store: Store) {
    let mut bench = Bench::new(store);
    let entry = unknown(&bench, &Call::default()).await;
    let version = bench.only().prior.version;
    bench.ledger.note(note(entry, version)).await.unwrap();

    bench.restart().await;

    let pending = bench.ledger.due(7_000, 10).await.unwrap().remove(0);
    assert_eq!((pending.record.prior.entry, pending.record.tries), (entry, 1));
}

async fn i_11_an_entry_that_died_begun_is_due_at_once(store: Store) {
    let mut bench = Bench::new(store);
    let entry = bench.started(&Call::default()).await;

    assert_eq!(bench.restart().await, Recovered { unknown: 1 });

    assert_eq!(due(&bench, 9_000).await, [entry]);
}

async fn a_note_of_another_step_is_refused_and_writes_nothing(store: Store) {
    let bench = Bench::new(store);
    let entry = unknown(&bench, &Call::default()).await;
    let version = bench.only().prior.version;
    let settled = Note { outcome: Some(Outcome::Rejected), ..note(entry, version - 1) };

    assert_eq!(bench.ledger.note(settled).await, Err(LedgerError::Changed));
    assert_eq!(bench.ledger.note(note(new_id(), 1)).await, Err(LedgerError::NotFound));
    assert_eq!(bench.only().prior.version, version);

    // A further attempt began: what was learned of the first says nothing of it.
    let call = Call::default();
    let begin = Begin { rerun: Some(entry), ..bench.judged(&call).await };
    assert_eq!(bench.ledger.begin(begin).await, Ok(Begun::Started { attempt: 2 }));
    assert_eq!(bench.ledger.note(note(entry, version)).await, Err(LedgerError::Refused));
    assert_eq!(due(&bench, i64::MAX).await, []);
    let mut unsent = finish(entry, State::Rejected, Some(Cause::NotSent));
    unsent.attempt = 2;
    bench.ledger.finish_durably(unsent).await.unwrap();
    assert_eq!(due(&bench, i64::MAX).await, [entry], "it is as unknown as before");
}

async fn a_note_settles_an_unknown_entry_and_frees_its_call(store: Store) {
    let bench = Bench::new(store);
    let call = Call { key: Some("k"), weak: true, ..Call::default() };
    let entry = unknown(&bench, &call).await;
    let version = bench.only().prior.version;
    let decided = Note { outcome: Some(Outcome::Accepted), due: None, ..note(entry, version) };

    let settled = bench.ledger.note(decided.clone()).await.unwrap();

    assert_eq!(settled.state, State::Accepted);
    assert_eq!(bench.state(&call).await, Some(State::Accepted));
    assert_eq!(bench.only().prior.cause, Some(Cause::Settled));
    let again = Note { version: settled.version, ..decided };
    let refused = bench.ledger.note(again).await;
    assert_eq!(refused, Err(LedgerError::NotUnknown { state: State::Accepted }));
    let stranger = Call { principal: 1, ..call };
    assert_eq!(bench.ledger.look(stranger.look()).await.unwrap().open_of_stranger, None);
}

async fn a_verdict_that_comes_later_takes_the_place_of_the_finishs(store: Store) {
    let bench = Bench::new(store);
    let entry = bench.started(&Call::default()).await;
    let mut done = finish(entry, State::Accepted, None);
    done.verdict = Some(Verdict::Inconclusive);
    done.evidence = Some("{\"method\":\"plan\"}".to_owned());
    done.due_ms = Some(4_000);
    bench.ledger.finish_durably(done).await.unwrap();
    let pending = bench.ledger.due(4_000, 1).await.unwrap().remove(0);
    let evidence = pending.record.finish.unwrap().evidence;
    assert_eq!(evidence.as_deref(), Some("{\"method\":\"plan\"}"));
    assert_eq!(pending.last, None, "a finish is no note");

    let verdict = Note {
        noted: Noted::Readback,
        verdict: Some(Verdict::Contradicted),
        due: None,
        ..note(entry, pending.record.prior.version)
    };
    bench.ledger.note(verdict).await.unwrap();

    let record = bench.only();
    assert_eq!(record.finish.unwrap().verdict, Some(Verdict::Contradicted));
    assert_eq!(record.due_ms, None);
    let stored = bench.ledger.answer(entry).await.unwrap().unwrap();
    assert_eq!(stored.record.finish.unwrap().verdict, Some(Verdict::Contradicted));
    if store == Store::Embedded {
        let sql = rusqlite::Connection::open(bench.path()).unwrap();
        let seen: String =
            sql.query_row("SELECT verdict FROM entries", [], |row| row.get(0)).unwrap();
        assert_eq!(seen, "contradicted");
    }
}

async fn the_state_before_a_call_is_kept_with_its_newest_attempt(store: Store) {
    let bench = Bench::new(store);
    let call = Call::default();
    let before = Some("{\"title\":\"old\"}".to_owned());
    let begin = Begin { before: before.clone(), ..bench.judged(&call).await };
    let entry = begin.entry;
    bench.ledger.begin(begin).await.unwrap();
    assert_eq!(bench.read().show(entry).unwrap().unwrap().before, before);

    bench
        .ledger
        .finish_durably(finish(entry, State::Rejected, Some(Cause::AmbiguousStatus)))
        .await
        .unwrap();
    let begin = Begin { rerun: Some(entry), ..bench.judged(&call).await };
    bench.ledger.begin(begin).await.unwrap();

    assert_eq!(bench.read().show(entry).unwrap().unwrap().before, None);
}

async fn what_allowed_a_call_stands_in_its_history_and_so_does_what_became_of_it(store: Store) {
    let bench = Bench::new(store);
    let call = Call::default();
    let allowed = |by: &str| Some(format!("{{\"by\":\"{by}\"}}"));
    let begin = Begin { authorization: allowed("first"), ..bench.judged(&call).await };
    let entry = begin.entry;
    bench.ledger.begin(begin).await.unwrap();
    let lost = finish(entry, State::Unknown, Some(Cause::Reset));
    bench.ledger.finish_durably(lost).await.unwrap();
    let spend = Some(Spend { nonce: [7; 16], expires_ms: 90_000 });
    let judged = bench.judged(&call).await;
    let begin = Begin { authorization: allowed("second"), spend, rerun: Some(entry), ..judged };
    bench.ledger.begin(begin).await.unwrap();
    assert!(bench.only().confirmed);
    let mut done = finish(entry, State::Accepted, None);
    (done.attempt, done.evidence) = (2, Some("{\"method\":\"plan\"}".to_owned()));
    bench.ledger.finish_durably(done).await.unwrap();

    let shown = bench.read().show(entry).unwrap().unwrap();

    let steps: Vec<_> = shown.history.iter().map(|step| step.detail.as_deref()).collect();
    let plan = Some("{\"method\":\"plan\"}");
    assert_eq!(steps, [Some("{\"by\":\"first\"}"), None, Some("{\"by\":\"second\"}"), plan]);
    let last = shown.history.last().unwrap();
    assert_eq!((last.verdict, last.upstream_status), (Some(Verdict::Verified), Some(201)));
    assert_eq!(last.disposition, Some(Disposition::Accepted));
    assert_eq!(shown.record.finish.unwrap().evidence.as_deref(), plan);
}

async fn a_decision_and_an_undo_end_what_is_due(store: Store) {
    let bench = Bench::new(store);
    let entry = unknown(&bench, &Call::default()).await;
    assert_eq!(bench.ledger.pending(entry).await.unwrap().unwrap().record.due_ms, Some(4_000));
    bench.ledger.settle(entry, Outcome::Rejected, "ann", "looked", 5_000).await.unwrap();
    assert_eq!(bench.ledger.pending(entry).await.unwrap(), None);
    assert_eq!(bench.only().due_ms, None);

    let call = Call { digest: 1, ..Call::default() };
    let entry = bench.started(&call).await;
    let mut done = finish(entry, State::Accepted, None);
    (done.undo_mark, done.due_ms) = (Some(Digest([5; 32])), Some(4_000));
    bench.ledger.finish_durably(done).await.unwrap();
    assert_eq!(due(&bench, 4_000).await, [entry]);
    let by = bench.started(&Call { digest: 2, mark: 5, ..Call::default() }).await;
    let mut undo = finish(by, State::Accepted, None);
    undo.undoes = Some(Digest([5; 32]));
    bench.ledger.finish_durably(undo).await.unwrap();

    assert_eq!(due(&bench, i64::MAX).await, []);
    assert_eq!(bench.read().show(entry).unwrap().unwrap().record.due_ms, None);
}

#[tokio::test]
async fn f20_a_database_of_version_1_is_brought_up_to_date_and_keeps_what_it_has() {
    let database = server::Database::new();
    let entry = new_id();
    database.query(
        "CREATE SCHEMA takeback; CREATE TABLE takeback.version (\
         one boolean PRIMARY KEY DEFAULT true CHECK (one), version bigint NOT NULL); \
         INSERT INTO takeback.version (one, version) VALUES (true, 1)",
    );
    database.query(include_str!("postgres_1.sql"));
    database.query(
        "INSERT INTO takeback.meta (name, value) SELECT name, decode(repeat('00', 32), 'hex') \
         FROM unnest(ARRAY['store', 'sealing_key', 'finder_key']) AS t(name); \
         INSERT INTO takeback.owner (id, lease_until, heartbeat_ms) \
         VALUES ('00000000-0000-0000-0000-000000000001', clock_timestamp(), 500)",
    );
    let blob = "decode(repeat('00', 32), 'hex')";
    database.query(&format!(
        "INSERT INTO takeback.entry (id, number, version, finish, state, attempt, owner, began_ms, \
         attempted_ms, finished_ms, delivered, answered, kept, weak, staged, key_sent, twin, \
         principal, digest, mark, operation, fingerprint, policy_revision, class, kind, transport, \
         target, lookup) VALUES ('{entry}', nextval('takeback.step'), 1, 1, 2, 1, \
         '00000000-0000-0000-0000-000000000001', 500, 500, 500, false, false, false, false, false, \
         true, '00000000-0000-0000-0000-000000000000', 'p', {blob}, {blob}, 'a.b', {blob}, {blob}, \
         'irreversible', 'create', 'http', 'POST /x', '{{}}')"
    ));
    database.query(&format!(
        "INSERT INTO takeback.history (seq, entry, at_ms, to_state, attempt) \
         VALUES (1, '{entry}', 500, 2, 1)"
    ));
    let home = Home::Database(database);
    let place = place(&home);
    assert!(matches!(ReadOnly::open(&place), Err(OpenError::Older { found: 1, known: 4 })));
    assert_eq!(ReadOnly::newest_ms(&place).unwrap(), 500);

    let (ledger, recovered) = Ledger::open(&place, Options::default(), 1_000).unwrap();

    assert_eq!(recovered, Recovered { unknown: 1 });
    let pending = ledger.due(1_000, 1).await.unwrap().remove(0);
    assert_eq!(pending.record.prior.entry, entry);
    let version = pending.record.prior.version;
    assert!(ledger.note(note(entry, version)).await.is_ok());
    ledger.close().await;
    // The row that was there stands before the chain, and the entry's later steps are in it.
    let verified = ReadOnly::open(&place).unwrap().verify(&Keys::default(), &[]).unwrap().unwrap();
    assert_eq!((verified.before, verified.rows), (1, 3));
    assert!(Ledger::open(&place, Options::default(), 1_000).is_ok(), "once is enough");
    let columns = |home: &Home| match home {
        Home::Database(database) => database.query(
            "SELECT table_name, column_name, data_type, is_nullable, column_default \
             FROM information_schema.columns WHERE table_schema = 'takeback' \
             ORDER BY table_name, ordinal_position",
        ),
        Home::Folder(_) => Vec::new(),
    };
    assert_eq!(columns(&home), columns(&Bench::new(Store::Postgres).home));
}

#[tokio::test]
async fn f10_of_two_sidecars_that_note_the_same_step_one_is_told_that_it_changed() {
    let bench = Bench::new(Store::Postgres);
    let (other, _) = Ledger::open(&bench.place(), Options::default(), 1_000).unwrap();
    let entry = unknown(&bench, &Call::default()).await;
    let version = bench.only().prior.version;
    let decided = Note { outcome: Some(Outcome::Rejected), due: None, ..note(entry, version) };

    let (one, two) = tokio::join!(bench.ledger.note(decided.clone()), other.note(decided));

    // One that comes after the other's commit finds another step.
    let won = [&one, &two].into_iter().filter(|noted| noted.is_ok()).count();
    assert_eq!(won, 1, "{one:?} {two:?}");
    assert!([one, two].contains(&Err(LedgerError::Changed)));
    let shown = bench.read().show(entry).unwrap().unwrap();
    assert_eq!(shown.history.iter().filter(|step| step.noted.is_some()).count(), 1);
}

#[tokio::test]
async fn f20_a_ledger_of_version_1_is_brought_up_to_date_and_keeps_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ledger.db");
    let entry = new_id();
    {
        let old = rusqlite::Connection::open(&file).unwrap();
        old.execute_batch(include_str!("schema_1.sql")).unwrap();
        let ms = entry.as_bytes().iter().take(6).fold(0, |ms, byte| ms << 8 | i64::from(*byte));
        let first = ms << 20;
        old.execute_batch(
            "INSERT INTO meta (name, value) VALUES ('store', zeroblob(16)), \
             ('sealing_key', zeroblob(32)), ('finder_key', zeroblob(32)), ('indexed_to', 0), \
             ('indexed', 0), ('heartbeat_ms', 0); \
             PRAGMA application_id = 1953194603; PRAGMA user_version = 1;",
        )
        .unwrap();
        old.execute(
            "INSERT INTO entry (number, id, version, finish, state, attempt, began_ms, \
             attempted_ms, finished_ms, delivered, answered, kept, weak, staged, key_sent, twin, \
             principal, digest, mark, operation, fingerprint, policy_revision, class, kind, \
             transport, target, lookup) VALUES (?1, ?2, 1, 1, 2, 1, 500, 500, 500, 0, 0, 0, 0, 0, \
             1, 0, 'p', zeroblob(32), zeroblob(32), 'a.b', zeroblob(32), zeroblob(32), \
             'irreversible', 'create', 'http', 'POST /x', '{}')",
            (first, entry.as_bytes()),
        )
        .unwrap();
        old.execute(
            "INSERT INTO history (seq, entry, at_ms, to_state, attempt) VALUES (1, ?1, 500, 2, 1)",
            [first],
        )
        .unwrap();
    }
    assert!(matches!(ReadOnly::open(file.clone()), Err(OpenError::Older { found: 1, known: 5 })));
    assert_eq!(ReadOnly::newest_ms(&Place::File(file.clone())).unwrap(), 500);

    let (embedded, recovered) = Embedded::open(&file, Options::default(), 1_000).unwrap();

    assert_eq!(recovered, Recovered { unknown: 1 });
    let ledger = Ledger::Embedded(embedded);
    let pending = ledger.due(1_000, 1).await.unwrap().remove(0);
    assert_eq!(pending.record.prior.entry, entry);
    let version = pending.record.prior.version;
    assert!(ledger.note(note(entry, version)).await.is_ok());
    ledger.close().await;
    // The row that was there stands before the chain, and the entry's later steps are in it.
    let read = ReadOnly::open(file.clone()).unwrap();
    let verified = read.verify(&Keys::default(), &[]).unwrap().unwrap();
    assert_eq!((verified.before, verified.rows), (1, 3));
    assert!(Embedded::open(&file, Options::default(), 1_000).is_ok(), "once is enough");
    let columns = |path: &Path, table: &str| -> Vec<String> {
        let sql = rusqlite::Connection::open(path).unwrap();
        let mut statement =
            sql.prepare(&format!("SELECT name FROM pragma_table_info('{table}')")).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let fresh = Bench::new(Store::Embedded);
    for table in ["entry", "history", "image", "run", "touched", "entries", "history_readable"] {
        assert_eq!(columns(&file, table), columns(&fresh.path(), table), "{table}");
    }
}
