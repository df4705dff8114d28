//! Any sequence of commands against the states' own rules.

use proptest::prelude::*;

use super::*;

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
        holds(Store::Embedded, acts);
    }
}

proptest! {
    // Each case has a database of its own.
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn only_legal_steps_are_ever_written_in_a_database(
        acts in proptest::collection::vec(act(), 1..30),
    ) {
        holds(Store::Postgres, acts);
    }
}

fn holds(store: Store, acts: Vec<Act>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut bench = Bench::new(store);
        for act in acts {
            run(&mut bench, act).await;
        }
        bench.ledger.heartbeat(1).await.unwrap();
        let read = bench.read();
        let verified = read.verify(&Keys::default(), &[]).unwrap();
        assert!(verified.is_ok(), "{verified:?}");
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
