//! What the handles say of a call without asking the writer is what the writer would say.

use proptest::prelude::*;

use super::*;
use crate::ledger::desk::command::Command;

#[derive(Clone, Debug)]
enum Act {
    Begin { call: Call, is_rerun: bool },
    Finish { call: Call, state: State, is_not_sent: bool, undo_mark: u8 },
    Restart,
    Settle { call: Call, outcome: Outcome },
}

fn call() -> impl Strategy<Value = Call> {
    let key = proptest::sample::select(vec![None, Some("one"), Some("two")]);
    (0..2_u8, any::<bool>(), key, 0..3_u8, any::<bool>()).prop_map(
        |(principal, weak, key, digest, staged)| Call {
            principal,
            weak,
            key,
            digest,
            mark: digest,
            staged,
        },
    )
}

fn act() -> impl Strategy<Value = Act> {
    let state = proptest::sample::select(State::ALL);
    prop_oneof![
        6 => (call(), any::<bool>()).prop_map(|(call, is_rerun)| Act::Begin { call, is_rerun }),
        6 => (call(), state, any::<bool>(), 0..3_u8).prop_map(
            |(call, state, is_not_sent, undo_mark)| Act::Finish {
                call, state, is_not_sent, undo_mark
            }
        ),
        1 => Just(Act::Restart),
        2 => (call(), proptest::sample::select(Outcome::ALL))
            .prop_map(|(call, outcome)| Act::Settle { call, outcome }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_call_is_called_new_only_if_the_writer_finds_nothing(
        acts in proptest::collection::vec((act(), proptest::collection::vec(call(), 3)), 1..30),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut bench = Bench::new(Store::Embedded);
            for (act, calls) in acts {
                run(&mut bench, act).await;
                for call in calls {
                    agrees(&bench, &call).await;
                }
            }
        });
    }
}

async fn run(bench: &mut Bench, act: Act) {
    match act {
        Act::Begin { call, is_rerun } => {
            let prior = bench.by_digest(&call).await;
            let rerun = prior.filter(|_| is_rerun).map(|prior| prior.entry);
            let begin = Begin { rerun, ..bench.judged(&call).await };
            // It is looked at while it is queued, too.
            let (begun, ()) = tokio::join!(bench.ledger.begin(begin), agrees(bench, &call));
            match begun {
                Ok(Begun::Started { .. } | Begun::Changed(_)) | Err(LedgerError::Refused) => {}
                other => panic!("{other:?}"),
            }
        }
        Act::Finish { call, state, is_not_sent, undo_mark } => {
            let Some(prior) = bench.by_digest(&call).await else { return };
            let cause = is_not_sent.then_some(Cause::NotSent);
            let undo_mark = Some(Digest([undo_mark; 32]));
            let attempt = prior.attempt;
            bench.ledger.finish(Finish {
                attempt,
                undo_mark,
                undoes: Some(call.look().mark),
                ..finish(prior.entry, state, cause)
            });
        }
        Act::Restart => {
            bench.restart().await;
        }
        Act::Settle { call, outcome } => {
            let Some(prior) = bench.by_digest(&call).await else { return };
            let _settled = bench.ledger.settle(prior.entry, outcome, "ann", "why", 1).await;
        }
    }
}

async fn agrees(bench: &Bench, call: &Call) {
    let asked = bench.ledger.look(call.look()).await.unwrap();
    let told = asked_of_the_writer(bench, call).await;
    assert_eq!(asked, told, "{call:?}");
}

async fn asked_of_the_writer(bench: &Bench, call: &Call) -> Priors {
    let look = Box::new(call.look());
    let desk = bench.ledger.desk();
    desk.ask(|reply, turn| Command::Look(look, reply, turn)).await.unwrap()
}

#[tokio::test]
async fn a_new_call_needs_no_way_to_the_writer() {
    let bench = Bench::new(Store::Embedded);
    let known = bench.ledger.desk().known.clone().unwrap();
    let new = Call { digest: 9, mark: 9, key: Some("nine"), ..Call::default() };
    bench.until(async || known.is_new(&new.look())).await;
    let first = Call { digest: 1, mark: 1, key: Some("one"), ..Call::default() };
    let entry = bench.started(&first).await;

    for (call, is_new) in [
        (new, true),
        (first, false),
        (Call { key: Some("one"), ..new }, false),
        (Call { digest: 1, ..new }, false),
        (Call { digest: 1, principal: 1, ..new }, false),
        (Call { principal: 1, ..new }, true),
        (Call { mark: 77, ..new }, true),
    ] {
        assert_eq!(known.is_new(&call.look()), is_new, "{call:?}");
    }
    let undo_mark = Some(Digest([77; 32]));
    bench.ledger.finish(Finish { undo_mark, ..finish(entry, State::Accepted, None) });
    assert!(!known.is_new(&Call { mark: 77, ..new }.look()), "it takes that one back");
    assert!(known.is_new(&new.look()));
}

#[tokio::test]
async fn an_operation_with_an_unknown_outcome_has_it_named_until_it_is_settled() {
    let bench = Bench::new(Store::Embedded);
    let known = bench.ledger.desk().known.clone().unwrap();
    let new = Call { digest: 9, mark: 9, ..Call::default() };
    let entry = bench.started(&Call { digest: 1, ..Call::default() }).await;
    bench.ledger.finish(finish(entry, State::Unknown, None));

    let named = bench.ledger.look(new.look()).await.unwrap().unknown_of_operation;
    assert_eq!(named, [entry]);
    bench.ledger.settle(entry, Outcome::Rejected, "ann", "why", 1).await.unwrap();
    bench
        .until(async || {
            let named = bench.ledger.look(new.look()).await.unwrap().unknown_of_operation;
            assert_eq!(named, []);
            known.is_new(&new.look())
        })
        .await;
}

#[tokio::test]
async fn while_the_store_is_down_nothing_is_called_new() {
    let bench = Bench::new(Store::Embedded);
    let known = bench.ledger.desk().known.clone().unwrap();
    let new = Call { digest: 9, mark: 9, ..Call::default() };
    let old = Call { digest: 1, mark: 1, ..Call::default() };
    bench.started(&old).await;
    bench.until(async || known.is_new(&new.look())).await;
    let faults = bench.faults();
    faults.before.store(u8::MAX, Ordering::SeqCst);
    assert!(bench.ledger.begin(Call { digest: 2, ..Call::default() }.begin()).await.is_err());

    assert!(!known.is_new(&new.look()), "as long as nobody has read the file again");
    assert!(bench.ledger.heartbeat(4_000).await.is_err());
    assert!(!known.is_new(&new.look()), "what was read is not what is on disk, maybe");
    faults.before.store(0, Ordering::SeqCst);
    bench.ledger.heartbeat(5_000).await.unwrap();

    bench.until(async || known.is_new(&new.look())).await;
    assert!(!known.is_new(&old.look()));
    assert_eq!(bench.state(&old).await, Some(State::Begun));
}
