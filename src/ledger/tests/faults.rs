//! A store that fails, and callers that leave.

use super::*;

async fn h1_a_failed_commit_fails_its_begins_and_keeps_its_finishes(store: Store) {
    let bench = Bench::new(store);
    let done = Call { digest: 1, ..Call::default() };
    let entry = bench.started(&done).await;
    let faults = bench.faults();
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
async fn contract_6_a_finish_while_the_store_owes_another_is_unfinished() {
    let bench = Bench::new(Store::Embedded);
    let (first, second) = (
        bench.started(&Call { digest: 1, ..Call::default() }).await,
        Call { digest: 2, ..Call::default() },
    );
    let second = bench.started(&second).await;
    let faults = bench.faults();
    faults.before.store(u8::MAX, Ordering::SeqCst);
    assert!(bench.ledger.finish_durably(finish(first, State::Accepted, None)).await.is_err());

    let unfinished = bench.ledger.finish(finish(second, State::Accepted, None));

    assert_eq!(unfinished, Finished::Unfinished);
    faults.before.store(0, Ordering::SeqCst);
    bench.ledger.heartbeat(5_000).await.unwrap();
    assert!(bench.ledger.health().is_ok());
    for entry in [first, second] {
        let shown = bench.read().show(entry).unwrap().unwrap();
        assert_eq!(shown.record.prior.state, State::Accepted);
    }
}

#[tokio::test]
async fn h1_a_volume_that_is_nearly_full_takes_finishes_and_no_begins() {
    let bench = Bench::new(Store::Embedded);
    let entry = bench.started(&Call { digest: 1, ..Call::default() }).await;
    let faults = bench.faults();
    faults.nearly_full.store(1, Ordering::SeqCst);
    bench.ledger.heartbeat(5_000).await.unwrap();

    let refused = bench.ledger.begin(Call { digest: 2, ..Call::default() }.begin()).await;
    let finished = bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await;

    assert_eq!(refused, Err(LedgerError::Unavailable(Reason::Full)));
    assert_eq!(finished, Ok(()));
    faults.nearly_full.store(0, Ordering::SeqCst);
    bench.ledger.heartbeat(6_000).await.unwrap();
    bench.started(&Call { digest: 3, ..Call::default() }).await;
}

async fn while_the_store_is_down_everything_that_waits_is_refused_at_once(store: Store) {
    let bench = Bench::new(store);
    let faults = bench.faults();
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

async fn a_begin_whose_caller_left_before_it_ran_is_never_written(store: Store) {
    let bench = Bench::new(store);
    let call = Call::default();
    let mut begin = Box::pin(bench.ledger.begin(call.begin()));
    let never_polled = bench.ledger.begin(Call { digest: 2, ..call }.begin());
    // Busy with a look, so that the begin waits its turn behind it.
    let look = bench.ledger.look(call.look());
    let (queued, _) = tokio::join!(poll_once(&mut begin), look);

    drop(begin);
    drop(never_polled);

    if queued {
        bench
            .until(async || {
                bench.ledger.heartbeat(5_000).await.unwrap();
                bench.state(&call).await.is_none()
            })
            .await;
    }
    assert_eq!(bench.state(&Call { digest: 2, ..call }).await, None);
}

async fn a_begin_whose_caller_left_with_its_answer_on_the_way_is_withdrawn(store: Store) {
    let bench = Bench::new(store);
    let call = Call::default();
    let spend = Some(Spend { nonce: [5; 16], expires_ms: 600_000 });
    let mut begin = Box::pin(bench.ledger.begin(Begin { spend, ..call.begin() }));
    assert!(poll_once(&mut begin).await, "it is in the queue");
    // It is on disk, and its answer was sent or is about to be; nobody takes it.
    bench.ledger.heartbeat(5_000).await.unwrap();
    assert_eq!(bench.state(&call).await, Some(State::Begun));

    drop(begin);

    bench.until(async || bench.only().prior.state == State::Rejected).await;
    let prior = bench.only().prior;
    assert_eq!((prior.state, prior.cause), (State::Rejected, Some(Cause::NotSent)));
    let again = Begin { spend, ..bench.judged(&call).await };
    assert_eq!(bench.ledger.begin(again).await, Ok(Begun::Started { attempt: 1 }));
}

/// Polls a future once; whether it waits.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_pending())
    })
    .await
}

async fn a_command_that_fails_in_sql_fails_alone(store: Store) {
    let bench = Bench::new(store);
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

async fn what_waits_while_the_store_is_down_is_bounded(store: Store) {
    let bench = Bench::new(store);
    let entry = bench.started(&Call::default()).await;
    let faults = bench.faults();
    faults.before.store(u8::MAX, Ordering::SeqCst);
    assert!(bench.ledger.heartbeat(1).await.is_err());

    let mut large = finish(entry, State::Accepted, None);
    let body = vec![0; MAX_ANSWER];
    large.answer = Some(Answer { status: 200, headers: Vec::new(), body });
    let fitting = PENDING_BYTES / MAX_ANSWER;
    for _ in 0..fitting + 2 {
        assert_eq!(bench.ledger.finish(large.clone()), Finished::Unfinished);
    }
    for _ in fitting + 2..PENDING + 3 {
        bench.ledger.finish(finish(entry, State::Accepted, None));
    }

    let stats = bench.ledger.stats();
    assert_eq!((stats.shortened, stats.lost), (2, 3));
    assert_eq!(stats.pending, u64::try_from(PENDING).unwrap());
    faults.before.store(0, Ordering::SeqCst);
    // A loaded machine may take longer to write all of it than a heartbeat waits.
    bench.until(async || bench.ledger.heartbeat(2).await.is_ok()).await;
    assert_eq!(bench.state(&Call::default()).await, Some(State::Accepted));
    assert_eq!(bench.ledger.stats().pending, 0);
}

on_both_stores! {
    h1_a_failed_commit_fails_its_begins_and_keeps_its_finishes,
    while_the_store_is_down_everything_that_waits_is_refused_at_once,
    a_begin_whose_caller_left_before_it_ran_is_never_written,
    a_begin_whose_caller_left_with_its_answer_on_the_way_is_withdrawn,
    a_command_that_fails_in_sql_fails_alone,
    what_waits_while_the_store_is_down_is_bounded,
}
