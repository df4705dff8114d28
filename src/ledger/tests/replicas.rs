//! Several sidecars on one database, and what becomes of the attempts of the dead.

use std::time::Duration;

use super::*;

/// Another sidecar on the same database.
fn neighbour(bench: &Bench, options: Options) -> (Ledger, Recovered) {
    Ledger::open(&bench.place(), options, 2_000).unwrap()
}

fn sql(bench: &Bench, text: &str) -> Vec<String> {
    match &bench.home {
        Home::Database(database) => database.query(text),
        Home::Folder(_) => panic!("a file is no database"),
    }
}

#[tokio::test]
async fn f10_of_two_sidecars_that_begin_one_key_at_once_one_starts_each_of_a_hundred_times() {
    let bench = Bench::new(Store::Postgres);
    let (other, recovered) = neighbour(&bench, Options::default());
    assert_eq!(recovered.unknown, 0);

    for round in 0..100_u8 {
        let key: &'static str = format!("key-{round}").leak();
        // Every third time the same key comes with another request, or no key comes at all.
        let first = Call { key: Some(key), digest: round, ..Call::default() };
        let second = match round % 3 {
            0 => first,
            1 => Call { digest: round + 100, ..first },
            _ => Call { key: None, ..first },
        };
        let begins = [(&bench.ledger, first), (&other, second)];
        let (one, two) = tokio::join!(
            begins[0].0.begin(begins[0].1.begin()),
            begins[1].0.begin(begins[1].1.begin())
        );

        let outcomes = [one.unwrap(), two.unwrap()];
        let started = outcomes.iter().filter(|one| matches!(one, Begun::Started { .. })).count();
        let changed = outcomes.iter().filter(|one| matches!(one, Begun::Changed(_))).count();
        assert_eq!((started, changed), (1, 1), "round {round}: {outcomes:?}");
    }
    assert_eq!(bench.read().counts().unwrap().begun.count, 100);
}

#[tokio::test]
async fn sidecars_that_start_together_on_an_empty_database_make_its_tables_once() {
    let database = server::Database::new();
    let address = Address::parse(&database.url(), None).unwrap();
    let place = Place::Postgres(Box::new(address));
    assert!(matches!(ReadOnly::open(&place), Err(OpenError::Absent)));

    let keys: Vec<[u8; 32]> = std::thread::scope(|scope| {
        let open = || Ledger::open(&place, Options::default(), 1).unwrap().0.sealing_key();
        let opening: Vec<_> = (0..6).map(|_| scope.spawn(open)).collect();
        opening.into_iter().map(|one| one.join().unwrap()).collect()
    });

    assert!(keys.iter().all(|key| *key == keys[0]));
}

#[tokio::test]
async fn a_sidecar_that_starts_leaves_the_attempts_of_a_living_one_alone() {
    let bench = Bench::new(Store::Postgres);
    let call = Call { key: Some("k1"), ..Call::default() };
    let entry = bench.started(&call).await;

    let (other, recovered) = neighbour(&bench, Options::default());

    assert_eq!(recovered, Recovered { unknown: 0 });
    let seen = other.look(call.look()).await.unwrap().by_key.unwrap();
    assert_eq!((seen.entry, seen.state), (entry, State::Begun));
    bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await.unwrap();
    let seen = other.look(call.look()).await.unwrap().by_key.unwrap();
    assert_eq!(seen.state, State::Accepted);
}

#[tokio::test]
async fn i_11_attempts_of_a_sidecar_whose_lease_ran_out_are_unknown_and_it_knows() {
    let bench = Bench::new(Store::Postgres);
    let call = Call { key: Some("k1"), ..Call::default() };
    let entry = bench.started(&call).await;
    sql(&bench, "UPDATE takeback.owner SET lease_until = clock_timestamp()");

    let (other, recovered) = neighbour(&bench, Options::default());

    assert_eq!(recovered, Recovered { unknown: 1 });
    let seen = other.look(call.look()).await.unwrap().by_key.unwrap();
    assert_eq!((seen.state, seen.cause), (State::Unknown, Some(Cause::Crash)));
    // The one that stood still: its lease is gone, so it begins nothing before it has another.
    let next = Call { digest: 2, ..Call::default() };
    let refused = bench.ledger.begin(next.begin()).await;
    assert_eq!(refused, Err(LedgerError::Unavailable(Reason::Lease)));
    bench.ledger.heartbeat(5_000).await.unwrap();
    bench.started(&next).await;
    let late = bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await;
    assert_eq!(late, Err(LedgerError::Refused), "only a lookup or a person settles it");
    assert_eq!(bench.ledger.stats().refused, 1);
    let history = bench.read().show(entry).unwrap().unwrap().history;
    let steps: Vec<_> = history.iter().map(|step| (step.from, step.to)).collect();
    assert_eq!(steps, [(None, State::Begun), (Some(State::Begun), State::Unknown)]);
}

#[tokio::test]
async fn a_lease_that_ran_out_and_was_taken_by_nobody_is_taken_again() {
    let bench = Bench::new(Store::Postgres);
    let entry = bench.started(&Call::default()).await;
    sql(&bench, "UPDATE takeback.owner SET lease_until = clock_timestamp()");

    let next = Call { digest: 2, ..Call::default() };
    let refused = bench.ledger.begin(next.begin()).await;
    bench.ledger.heartbeat(5_000).await.unwrap();

    assert_eq!(refused, Err(LedgerError::Unavailable(Reason::Lease)));
    bench.started(&next).await;
    let done = bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await;
    assert_eq!(done, Ok(()), "its attempt is still its own");
    assert_eq!(sql(&bench, "SELECT count(*) FROM takeback.owner"), ["1"]);
}

#[tokio::test]
async fn a_sidecar_that_runs_makes_the_attempts_of_one_that_died_unknown() {
    let bench = Bench::new(Store::Postgres);
    let call = Call::default();
    bench.started(&call).await;
    // Looks each third of its lease.
    let options = Options { lease: Some(Duration::from_millis(300)), ..Options::default() };
    let (other, _) = neighbour(&bench, options);
    assert_eq!(other.stats().recovered, 0);

    sql(
        &bench,
        "UPDATE takeback.owner SET lease_until = clock_timestamp() \
         WHERE id = (SELECT owner FROM takeback.entry)",
    );

    bench.until(async || other.stats().recovered == 1).await;
    assert_eq!(bench.only().prior.state, State::Unknown);
}

#[tokio::test]
async fn f20_a_schema_of_another_version_is_refused_in_both_directions() {
    let bench = Bench::new(Store::Postgres);
    bench.ledger.close().await;
    let open = || Ledger::open(&bench.place(), Options::default(), 1).map(drop);

    sql(&bench, "UPDATE takeback.version SET version = 5");
    assert!(matches!(open(), Err(OpenError::Newer { found: 5, known: 4 })));
    assert!(matches!(ReadOnly::open(bench.place()), Err(OpenError::Newer { .. })));
    sql(&bench, "UPDATE takeback.version SET version = -1");
    assert!(matches!(open(), Err(OpenError::Older { found: -1, known: 4 })));
}

#[tokio::test]
async fn the_views_name_every_state_and_show_owners_and_secrets_stay_in_their_table() {
    let bench = Bench::new(Store::Postgres);
    let entry = bench.started(&Call { key: Some("k1"), ..Call::default() }).await;

    for state in State::ALL {
        sql(&bench, &format!("UPDATE takeback.entry SET state = {}", state.code()));
        sql(&bench, &format!("UPDATE takeback.history SET to_state = {}", state.code()));
        let row = sql(&bench, "SELECT entry, state, ledger_id FROM takeback.entries");
        assert_eq!(row, [format!("{entry}|{state}|k1")]);
        let step = sql(&bench, "SELECT entry, to_state FROM takeback.history_readable");
        assert_eq!(step, [format!("{entry}|{state}")]);
        let open = sql(&bench, "SELECT count(*) FROM takeback.open_entries");
        assert_eq!(open == ["1"], state.is_open());
    }
    let alive = sql(&bench, "SELECT is_alive, begun FROM takeback.owners");
    assert_eq!(alive, ["t|0"]);
    let began = sql(&bench, "SELECT began AT TIME ZONE 'UTC' FROM takeback.entries");
    assert_eq!(began, ["1970-01-01 00:00:02"]);
}

#[tokio::test]
async fn text_with_a_nul_is_recorded_without_it() {
    let bench = Bench::new(Store::Postgres);
    let call = Call::default();
    let begin = Begin { target: "a\0b".to_owned(), ..bench.judged(&call).await };

    assert_eq!(bench.ledger.begin(begin).await, Ok(Begun::Started { attempt: 1 }));

    assert_eq!(bench.only().target, "a\u{fffd}b");
}

#[tokio::test]
async fn a_call_that_was_never_sent_leads_on_to_the_one_before_it() {
    let bench = Bench::new(Store::Postgres);
    let call = Call::default();
    let first = bench.accepted(&call).await;
    for _ in 0..3 {
        let entry = bench.started(&call).await;
        bench.ledger.finish(finish(entry, State::Rejected, Some(Cause::NotSent)));
        assert_eq!(bench.by_digest(&call).await.unwrap().entry, first);
    }
}
