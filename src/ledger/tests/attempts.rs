//! Looks, begins, finishes, decisions and undoes.

use super::*;

async fn a_finish_queued_before_a_look_is_seen_by_it(store: Store) {
    let bench = Bench::new(store);
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

async fn an_answer_above_the_limit_is_not_kept(store: Store) {
    let bench = Bench::new(store);
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

async fn f1_of_fifty_begins_with_one_key_one_starts(store: Store) {
    let bench = Bench::new(store);
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

async fn f4_one_principal_never_finds_another_ones_entry(store: Store) {
    let bench = Bench::new(store);
    let mine = Call { principal: 1, key: Some("k1"), ..Call::default() };
    let theirs = Call { principal: 2, ..mine };
    bench.accepted(&mine).await;

    let priors = bench.ledger.look(theirs.look()).await.unwrap();

    assert_eq!(priors, Priors::default());
}

async fn an_open_entry_of_a_weak_stranger_shows_by_digest_and_by_key_and_says_nothing(
    store: Store,
) {
    let bench = Bench::new(store);
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

async fn an_open_entry_of_a_strong_principal_shows_to_nobody_else(store: Store) {
    let bench = Bench::new(store);
    let theirs = Call { principal: 1, key: Some("k1"), ..Call::default() };
    bench.started(&theirs).await;

    let priors = bench.ledger.look(Call { principal: 2, ..theirs }.look()).await.unwrap();

    assert_eq!(priors, Priors::default());
}

async fn a_staged_call_and_the_real_one_are_no_repeats_of_each_other(store: Store) {
    let bench = Bench::new(store);
    let staged = Call { staged: true, ..Call::default() };
    let draft = bench.started(&staged).await;

    let real = bench.started(&Call::default()).await;

    assert_eq!(bench.by_digest(&staged).await.unwrap().entry, draft);
    assert_eq!(bench.by_digest(&Call::default()).await.unwrap().entry, real);
}

async fn a_confirmation_is_used_once_and_survives_a_restart(store: Store) {
    let mut bench = Bench::new(store);
    let spend = Some(Spend { nonce: [5; 16], expires_ms: 600_000 });
    let first = Begin { spend, ..Call::default().begin() };
    assert_eq!(bench.ledger.begin(first).await, Ok(Begun::Started { attempt: 1 }));
    bench.restart().await;

    let other = Call { digest: 2, ..Call::default() };
    let second = bench.ledger.begin(Begin { spend, ..other.begin() }).await;

    assert_eq!(second, Ok(Begun::Spent));
    assert_eq!(bench.by_digest(&other).await, None, "nothing was written");
}

async fn a_confirmation_that_was_declined_confirms_nothing_after_a_restart_either(store: Store) {
    let mut bench = Bench::new(store);
    let spend = Spend { nonce: [5; 16], expires_ms: 600_000 };
    for _ in 0..2 {
        assert_eq!(bench.ledger.spend(spend).await, Ok(()));
    }
    let begin = || Begin { spend: Some(spend), ..Call::default().begin() };
    assert_eq!(bench.ledger.begin(begin()).await, Ok(Begun::Spent));
    bench.restart().await;

    assert_eq!(bench.ledger.begin(begin()).await, Ok(Begun::Spent));
    assert_eq!(bench.by_digest(&Call::default()).await, None, "no entry was made");
    let other = Some(Spend { nonce: [6; 16], ..spend });
    let made = bench.ledger.begin(Begin { spend: other, ..Call::default().begin() }).await;
    assert_eq!(made, Ok(Begun::Started { attempt: 1 }));
}

async fn not_sent_gives_the_confirmation_back(store: Store) {
    let bench = Bench::new(store);
    let call = Call { key: Some("k1"), ..Call::default() };
    let spend = Some(Spend { nonce: [5; 16], expires_ms: 600_000 });
    let first = Begin { spend, ..call.begin() };
    let entry = first.entry;
    bench.ledger.begin(first).await.unwrap();
    bench.ledger.finish(finish(entry, State::Rejected, Some(Cause::NotSent)));

    let again = Begin { spend, rerun: Some(entry), ..bench.judged(&call).await };

    assert_eq!(bench.ledger.begin(again).await, Ok(Begun::Started { attempt: 2 }));
}

async fn f8_a_rejected_entry_runs_again_as_its_next_attempt(store: Store) {
    let bench = Bench::new(store);
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

async fn a_rerun_under_another_key_is_found_by_both(store: Store) {
    let mut bench = Bench::new(store);
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

async fn an_attempt_that_was_not_sent_leaves_an_unknown_entry_as_it_was(store: Store) {
    let bench = Bench::new(store);
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

async fn a_finish_of_another_attempt_or_of_an_illegal_step_is_refused_and_counted(store: Store) {
    let bench = Bench::new(store);
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

async fn the_same_finish_twice_is_written_once(store: Store) {
    let bench = Bench::new(store);
    let entry = bench.started(&Call::default()).await;
    for _ in 0..2 {
        let done = finish(entry, State::Accepted, None);
        assert_eq!(bench.ledger.finish_durably(done).await, Ok(()));
    }
    assert_eq!(bench.read().show(entry).unwrap().unwrap().history.len(), 2);
    assert_eq!(bench.ledger.stats().refused, 0);
}

async fn an_accepted_undo_makes_the_newest_entry_with_its_mark_undone(store: Store) {
    let bench = Bench::new(store);
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

async fn another_principals_undo_is_linked_only_if_it_is_the_call_that_the_entry_names(
    store: Store,
) {
    let bench = Bench::new(store);
    let entry = bench.started(&Call { digest: 1, mark: 1, ..Call::default() }).await;
    let mut done = finish(entry, State::Accepted, None);
    done.undo_mark = Some(Digest([2; 32]));
    bench.ledger.finish(done);
    let other = bench.started(&Call { digest: 3, mark: 3, principal: 7, ..Call::default() }).await;
    bench.ledger.finish(finish(other, State::Accepted, None));
    let undo = bench.started(&Call { digest: 2, mark: 2, principal: 7, ..Call::default() }).await;

    let link = |by| bench.ledger.took_back(entry, by, "uid 1", 4_000);
    assert_eq!(link(undo).await, Err(LedgerError::Refused), "it is not finished");
    bench.ledger.finish(finish(undo, State::Accepted, None));
    assert_eq!(link(other).await, Err(LedgerError::Refused), "it is another call");
    assert_eq!(link(entry).await, Err(LedgerError::Refused));
    let nobody = EntryId::parse("01999999-9999-7999-8999-999999999999").unwrap();
    assert_eq!(link(nobody).await, Err(LedgerError::NotFound));
    let linked = link(undo).await.unwrap();
    assert_eq!(linked.state, State::Undone);
    assert_eq!(link(undo).await, Ok(linked), "asked again it changes nothing");
    assert_eq!(link(other).await, Err(LedgerError::Refused));

    let shown = bench.read().show(entry).unwrap().unwrap();
    let last = shown.history.last().unwrap();
    assert_eq!(last.who.as_deref(), Some("uid 1"));
    assert_eq!(last.why.as_deref(), Some(undo.to_string().as_str()));
}

async fn a_decision_settles_an_unknown_entry_once(store: Store) {
    let bench = Bench::new(store);
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

async fn i_11_begun_entries_are_unknown_after_a_crash(store: Store) {
    let mut bench = Bench::new(store);
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

async fn a_crash_of_a_second_attempt_forgets_what_the_first_was_answered(store: Store) {
    let mut bench = Bench::new(store);
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

async fn an_id_that_is_taken_is_refused(store: Store) {
    let bench = Bench::new(store);
    let entry = bench.started(&Call { digest: 1, ..Call::default() }).await;
    let second = Begin { entry, ..Call { digest: 2, ..Call::default() }.begin() };

    assert_eq!(bench.ledger.begin(second).await, Err(LedgerError::Refused));
}

async fn ids_of_one_millisecond_and_of_earlier_ones_are_told_apart(store: Store) {
    let bench = Bench::new(store);
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

async fn a_begin_that_ignores_an_open_entry_is_refused_but_for_observe_mode(store: Store) {
    let bench = Bench::new(store);
    let call = Call::default();
    bench.started(&call).await;

    assert_eq!(bench.ledger.begin(bench.judged(&call).await).await, Err(LedgerError::Refused));
    let observed = Begin { guard: Guard::Observed, ..call.begin() };
    assert_eq!(bench.ledger.begin(observed).await, Ok(Begun::Started { attempt: 1 }));
    assert_eq!(bench.read().counts().unwrap().begun.count, 2);
}

async fn deliveries_and_finishes_reach_the_disk_without_a_begin(store: Store) {
    let bench = Bench::new(store);
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

async fn f2_a_key_that_somebody_took_for_another_call_changes_what_was_judged(store: Store) {
    let bench = Bench::new(store);
    let first = Call { key: Some("k1"), digest: 1, ..Call::default() };
    let other = Call { digest: 2, ..first };
    let judged = bench.judged(&other).await;
    let entry = bench.started(&first).await;

    let begun = bench.ledger.begin(judged).await;

    let Ok(Begun::Changed(priors)) = begun else { panic!("{begun:?}") };
    assert_eq!(priors.by_key.unwrap().entry, entry);
    assert_eq!(priors.by_digest, None);
    assert_eq!(bench.state(&other).await, None, "nothing was written");
}

on_both_stores! {
    a_finish_queued_before_a_look_is_seen_by_it,
    an_answer_above_the_limit_is_not_kept,
    f1_of_fifty_begins_with_one_key_one_starts,
    f4_one_principal_never_finds_another_ones_entry,
    an_open_entry_of_a_weak_stranger_shows_by_digest_and_by_key_and_says_nothing,
    an_open_entry_of_a_strong_principal_shows_to_nobody_else,
    a_staged_call_and_the_real_one_are_no_repeats_of_each_other,
    a_confirmation_is_used_once_and_survives_a_restart,
    a_confirmation_that_was_declined_confirms_nothing_after_a_restart_either,
    not_sent_gives_the_confirmation_back,
    f8_a_rejected_entry_runs_again_as_its_next_attempt,
    a_rerun_under_another_key_is_found_by_both,
    an_attempt_that_was_not_sent_leaves_an_unknown_entry_as_it_was,
    a_finish_of_another_attempt_or_of_an_illegal_step_is_refused_and_counted,
    the_same_finish_twice_is_written_once,
    an_accepted_undo_makes_the_newest_entry_with_its_mark_undone,
    another_principals_undo_is_linked_only_if_it_is_the_call_that_the_entry_names,
    a_decision_settles_an_unknown_entry_once,
    i_11_begun_entries_are_unknown_after_a_crash,
    a_crash_of_a_second_attempt_forgets_what_the_first_was_answered,
    an_id_that_is_taken_is_refused,
    ids_of_one_millisecond_and_of_earlier_ones_are_told_apart,
    a_begin_that_ignores_an_open_entry_is_refused_but_for_observe_mode,
    deliveries_and_finishes_reach_the_disk_without_a_begin,
    f2_a_key_that_somebody_took_for_another_call_changes_what_was_judged,
}
