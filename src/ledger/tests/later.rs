//! What stands in the way of an undo, as a store finds it. What it makes of that has its tests
//! beside it.

use std::collections::{HashMap, HashSet};

use super::*;

on_both_stores!(
    case_j4_a_later_entry_of_the_resource_stands_in_the_way_of_an_undo,
    case_j4_a_later_entry_is_found_whatever_it_is_called_and_whoever_made_it,
    case_j4_a_later_entry_is_found_after_a_restart_and_after_its_target_was_redacted,
    later_entries_are_found_before_and_after_they_are_filed_with_many_others,
    a_later_entry_of_the_same_thing_stands_in_the_way_of_a_tools_undo,
    what_took_a_later_entry_back_is_no_obstacle,
    a_call_that_is_settled_as_accepted_took_back_what_it_says,
    an_undo_that_an_older_version_recorded_is_not_taken_for_a_clean_one,
    a_further_attempt_of_an_earlier_entry_stands_in_the_way,
    an_undo_kept_of_an_unknown_entry_is_shown_and_recognised_once_it_is_settled,
    a_plan_is_answered_in_one_go_as_each_of_its_entries_is,
    of_a_long_plan_each_entry_that_is_left_stands_in_the_way_of_the_one_before_it,
);

impl Bench {
    async fn obstacle(&self, entry: EntryId, beside: &[EntryId]) -> Option<Obstacle> {
        let beside: HashSet<EntryId> = beside.iter().copied().collect();
        self.ledger.superseded(entry, &beside).await.unwrap()
    }

    /// Begins a call that changes a thing.
    async fn changes(&self, digest: u8, number: u8) -> EntryId {
        let call = Call { digest, ..Call::default() };
        let begin = Begin { things: vec![thing(number)], ..self.judged(&call).await };
        let entry = begin.entry;
        assert_eq!(self.ledger.begin(begin).await, Ok(Begun::Started { attempt: 1 }));
        entry
    }

    /// As [`changes`](Self::changes), accepted, with an undo that would change it too.
    async fn changed(&self, digest: u8, number: u8) -> EntryId {
        let entry = self.changes(digest, number).await;
        self.ledger.finish_durably(undoable(entry, number)).await.unwrap();
        entry
    }
}

fn undoable(entry: EntryId, number: u8) -> Finish {
    Finish {
        undo: Some("{}".to_owned()),
        undo_things: vec![thing(number)],
        ..finish(entry, State::Accepted, None)
    }
}

async fn case_j4_a_later_entry_of_the_resource_stands_in_the_way_of_an_undo(store: Store) {
    let bench = Bench::new(store);
    let before = bench.changed(1, 7).await;
    let first = bench.changes(2, 7).await;
    assert_eq!(bench.obstacle(first, &[]).await, None, "it is not accepted");
    bench.ledger.finish_durably(undoable(first, 7)).await.unwrap();
    // Another thing; and a rejected call changed nothing.
    bench.changed(3, 8).await;
    let failed = bench.changes(4, 7).await;
    let rejected = finish(failed, State::Rejected, Some(Cause::NotSent));
    bench.ledger.finish_durably(rejected).await.unwrap();
    assert_eq!(bench.obstacle(first, &[]).await, None);

    let second = bench.changes(5, 7).await;
    let third = bench.changes(6, 7).await;

    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(second)));
    assert_eq!(bench.obstacle(first, &[second]).await, Some(Obstacle::After(third)));
    assert_eq!(bench.obstacle(first, &[second, third]).await, None);
    assert_eq!(bench.obstacle(before, &[]).await, Some(Obstacle::After(first)));
}

async fn case_j4_a_later_entry_is_found_whatever_it_is_called_and_whoever_made_it(store: Store) {
    let bench = Bench::new(store);
    let first = bench.changed(1, 7).await;
    let call = Call { principal: 9, weak: true, digest: 2, ..Call::default() };
    let things = vec![thing(3), thing(7)];
    let target = "DELETE /elsewhere".to_owned();
    let begin = Begin { things, target, transport: "mcp", ..bench.judged(&call).await };
    let second = begin.entry;
    bench.ledger.begin(begin).await.unwrap();

    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(second)));
    let lost = finish(second, State::Unknown, Some(Cause::Reset));
    bench.ledger.finish_durably(lost).await.unwrap();
    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(second)));
}

async fn case_j4_a_later_entry_is_found_after_a_restart_and_after_its_target_was_redacted(
    store: Store,
) {
    let mut bench = Bench::new(store);
    let first = bench.changed(1, 7).await;
    let second = bench.changed(2, 7).await;

    bench.restart().await;

    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(second)));
    let parts = vec![Part::parse("/target").unwrap(), Part::parse("/undo").unwrap()];
    bench.ledger.redact(second, parts, "ann", "asked for", 4_000).await.unwrap();
    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(second)));
    assert!(bench.read().verify(&Keys::default(), &[]).unwrap().is_ok());
}

async fn later_entries_are_found_before_and_after_they_are_filed_with_many_others(store: Store) {
    let mut bench = Bench::new(store);
    let first = bench.changed(1, 7).await;
    let second = bench.changes(2, 7).await;
    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(second)));

    for principal in 1..=3 {
        for digest in 0..200 {
            let call = Call { principal, digest, ..Call::default() };
            let begin = Begin { things: vec![thing(8)], ..bench.judged(&call).await };
            assert_eq!(bench.ledger.begin(begin).await, Ok(Begun::Started { attempt: 1 }));
        }
    }
    let last = bench.changes(3, 7).await;

    let both = [Some(Obstacle::After(second)), Some(Obstacle::After(last)), None];
    let found = async |bench: &Bench| {
        [
            bench.obstacle(first, &[]).await,
            bench.obstacle(first, &[second]).await,
            bench.obstacle(first, &[second, last]).await,
        ]
    };
    assert_eq!(found(&bench).await, both);
    bench.restart().await;
    assert_eq!(found(&bench).await, both);
}

async fn a_later_entry_of_the_same_thing_stands_in_the_way_of_a_tools_undo(store: Store) {
    let mut bench = Bench::new(store);
    let accepted = async |bench: &Bench, digest, number| {
        let entry = bench.changes(digest, digest).await;
        let made = Some(thing(number));
        let done = Finish { made, ..undoable(entry, digest) };
        bench.ledger.finish_durably(done).await.unwrap();
        entry
    };
    let first = accepted(&bench, 1, 100).await;
    accepted(&bench, 2, 101).await;
    assert_eq!(bench.obstacle(first, &[]).await, None);

    let later = accepted(&bench, 3, 100).await;

    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(later)));
    bench.restart().await;
    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(later)));
}

async fn what_took_a_later_entry_back_is_no_obstacle(store: Store) {
    let bench = Bench::new(store);
    let first = bench.changed(1, 7).await;
    let second = bench.changes(2, 7).await;
    let mark = Some(Digest([5; 32]));
    let done = Finish { undo_mark: mark, ..undoable(second, 7) };
    bench.ledger.finish_durably(done).await.unwrap();
    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(second)));

    let back = bench.changes(3, 7).await;
    let done = Finish { undoes: mark, ..undoable(back, 7) };
    bench.ledger.finish_durably(done).await.unwrap();

    assert_eq!(bench.obstacle(first, &[]).await, None, "it is as the first left it");
    let third = bench.changes(4, 7).await;
    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(third)));
}

async fn a_call_that_is_settled_as_accepted_took_back_what_it_says(store: Store) {
    let bench = Bench::new(store);
    let first = bench.changed(1, 7).await;
    let second = bench.changes(2, 7).await;
    let done = Finish { undo_mark: Some(Digest([5; 32])), ..undoable(second, 7) };
    bench.ledger.finish_durably(done).await.unwrap();
    let call = Call { digest: 3, mark: 5, ..Call::default() };
    let begin = Begin { things: vec![thing(7)], ..bench.judged(&call).await };
    let back = begin.entry;
    bench.ledger.begin(begin).await.unwrap();
    let lost = finish(back, State::Unknown, Some(Cause::Reset));
    bench.ledger.finish_durably(lost).await.unwrap();
    let state = || bench.read().show(second).unwrap().unwrap().record.prior.state;
    assert_eq!(state(), State::Accepted);

    bench.ledger.settle(back, Outcome::Accepted, "ann", "seen", 7).await.unwrap();

    assert_eq!(state(), State::Undone);
    assert_eq!(bench.obstacle(first, &[]).await, None, "it is as the first left it");
}

async fn an_undo_that_an_older_version_recorded_is_not_taken_for_a_clean_one(store: Store) {
    let mut bench = Bench::new(store);
    let first = bench.changed(1, 7).await;
    bench.ledger.close().await;
    bench.change("UPDATE history SET things = NULL");
    bench.restart().await;

    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::Untold));
}

async fn a_further_attempt_of_an_earlier_entry_stands_in_the_way(store: Store) {
    let bench = Bench::new(store);
    let call = Call { digest: 1, ..Call::default() };
    let begin = Begin { things: vec![thing(7)], ..bench.judged(&call).await };
    let again = begin.entry;
    bench.ledger.begin(begin).await.unwrap();
    bench.ledger.finish_durably(finish(again, State::Rejected, None)).await.unwrap();
    let first = bench.changed(2, 7).await;
    assert_eq!(bench.obstacle(first, &[]).await, None);

    let begin = Begin { things: vec![thing(7)], rerun: Some(again), ..bench.judged(&call).await };
    assert_eq!(bench.ledger.begin(begin).await, Ok(Begun::Started { attempt: 2 }));

    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(again)));
    let done = Finish { attempt: 2, ..undoable(again, 7) };
    bench.ledger.finish_durably(done).await.unwrap();
    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(again)));
}

async fn an_undo_kept_of_an_unknown_entry_is_shown_and_recognised_once_it_is_settled(store: Store) {
    let bench = Bench::new(store);
    let entry = bench.changes(1, 7).await;
    let lost = Finish {
        undo: Some("{}".to_owned()),
        undo_things: vec![thing(7)],
        undo_mark: Some(Digest([5; 32])),
        deadline_ms: Some(9),
        ..finish(entry, State::Unknown, Some(Cause::Reset))
    };
    bench.ledger.finish_durably(lost).await.unwrap();
    let undo = || bench.read().show(entry).unwrap().unwrap().record.finish.unwrap();
    assert_eq!((undo().undo, undo().deadline_ms), (None, None));
    let back = Call { digest: 2, mark: 5, ..Call::default() };
    assert_eq!(bench.ledger.look(back.look()).await.unwrap().undoes, None);

    bench.ledger.settle(entry, Outcome::Accepted, "ann", "seen", 7).await.unwrap();

    assert_eq!((undo().undo.as_deref(), undo().deadline_ms), (Some("{}"), Some(9)));
    assert_eq!(bench.ledger.look(back.look()).await.unwrap().undoes, Some(entry));
    let later = bench.changes(3, 7).await;
    assert_eq!(bench.obstacle(entry, &[]).await, Some(Obstacle::After(later)));
}

#[tokio::test]
async fn f20_what_version_4_filed_is_found_by_the_index_of_later_versions() {
    let mut bench = Bench::new(Store::Embedded);
    let first = bench.changed(1, 7).await;
    let second = bench.changes(2, 7).await;
    let other = bench.changed(3, 8).await;
    bench.ledger.close().await;
    bench.change(
        "DROP TABLE run; DROP TABLE touched; \
         CREATE TABLE touched (entry INTEGER PRIMARY KEY, things BLOB NOT NULL) STRICT; \
         INSERT INTO touched SELECT number, things FROM entry; \
         UPDATE meta SET value = (SELECT max(number) FROM entry) WHERE name = 'filed_to'; \
         PRAGMA user_version = 4",
    );

    bench.restart().await;

    assert_eq!(bench.obstacle(first, &[]).await, Some(Obstacle::After(second)));
    assert_eq!(bench.obstacle(other, &[]).await, None);
    let last = bench.changes(4, 8).await;
    assert_eq!(bench.obstacle(other, &[]).await, Some(Obstacle::After(last)));
}

async fn a_plan_is_answered_in_one_go_as_each_of_its_entries_is(store: Store) {
    let bench = Bench::new(store);
    let lowest = bench.changed(1, 7).await;
    let left = bench.changes(2, 7).await;
    let middle = bench.changed(3, 7).await;
    let newest = bench.changed(4, 7).await;
    let stranger = bench.changes(5, 8).await;
    let alone = bench.changed(6, 9).await;
    let plan = vec![
        Planned::Taken(alone),
        Planned::Taken(stranger),
        Planned::Taken(newest),
        Planned::Taken(middle),
        Planned::Left(left),
        Planned::Taken(lowest),
    ];

    let found = bench.ledger.obstacles(plan).await.unwrap();

    // Those that are taken back before are no obstacles; the one that is left is.
    assert_eq!(found, HashMap::from([(lowest, Obstacle::After(left))]));
    let found = bench.ledger.obstacles(vec![Planned::Left(newest), Planned::Taken(middle)]).await;
    assert_eq!(found, Ok(HashMap::from([(middle, Obstacle::After(newest))])));
}

async fn of_a_long_plan_each_entry_that_is_left_stands_in_the_way_of_the_one_before_it(
    store: Store,
) {
    let bench = Bench::new(store);
    let mut entries = Vec::new();
    for digest in 0..40 {
        entries.push(bench.changed(digest, 7).await);
    }
    let taken = |entry: &EntryId| Planned::Taken(*entry);
    let whole: Vec<Planned> = entries.iter().rev().map(taken).collect();
    assert_eq!(bench.ledger.obstacles(whole.clone()).await, Ok(HashMap::new()));

    let [_, rest @ ..] = whole.as_slice() else { panic!("a plan") };
    let newest = entries[39];
    let plan = [&[Planned::Left(newest)], rest].concat();
    let found = bench.ledger.obstacles(plan).await.unwrap();

    let next = entries.iter().zip(&entries[1..]);
    let expected = next.map(|(entry, next)| (*entry, Obstacle::After(*next))).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn later_writes_are_found_by_the_database_s_index_in_its_order() {
    let bench = Bench::new(Store::Postgres);
    bench.changed(1, 7).await;
    let Home::Database(database) = &bench.home else { panic!("a database") };
    let id = "'00000000-0000-0000-0000-000000000001'";
    let asked = crate::ledger::postgres::TOUCHED.replace("$1", id).replace("$2", "1024");

    let plan = database.query(&format!(
        "SET enable_seqscan = off; SET enable_bitmapscan = off; EXPLAIN (COSTS off) {asked}"
    ));

    let plan = plan.concat();
    assert!(plan.contains("Index Only Scan Backward using touched_pkey on touched"), "{plan}");
    assert!(plan.contains("Index Cond: (thing = "), "{plan}");
    assert!(!plan.contains("Sort") && !plan.contains("Seq Scan"), "{plan}");
}
