use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rusqlite::StatementStatus;

use super::super::later::{BACK, Half, ONWARD, Reading, START};
use super::*;

/// A ledger in memory of which runs are small.
struct Bench {
    conn: Connection,
    touched: Touched,
    newest: i64,
    /// What each thing's entries are.
    model: BTreeMap<u64, BTreeSet<i64>>,
}

impl Bench {
    fn new() -> Self {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("../schema.sql")).unwrap();
        conn.execute("INSERT INTO meta (name, value) VALUES ('filed_to', 0)", []).unwrap();
        let mut bench =
            Self { conn, touched: Touched::default(), newest: 0, model: BTreeMap::new() };
        bench.reopen();
        bench
    }

    fn reopen(&mut self) {
        self.touched = Touched::read(&self.conn).unwrap();
        self.touched.batch = 4;
    }

    fn begin(&mut self, things: &[u64]) -> i64 {
        self.newest += 1;
        let number = self.newest;
        let filed = filed(things);
        self.conn
            .execute(
                "INSERT INTO entry (number, id, version, finish, state, attempt, began_ms, \
                 attempted_ms, finished_ms, delivered, answered, kept, weak, staged, key_sent, \
                 twin, principal, digest, mark, operation, fingerprint, policy_revision, class, \
                 kind, transport, target, things) VALUES (?1, x'', 1, 1, 6, 1, 1, 1, 1, 0, 0, 0, \
                 0, 0, 0, 0, 'p', x'', x'', 'o', x'', x'', 'c', 'k', 't', 't', ?2)",
                (number, &filed),
            )
            .unwrap();
        self.touched.begun(&self.conn, number, filed.as_deref(), self.newest).unwrap();
        self.knows(number, things);
        number
    }

    fn begin_again(&mut self, number: i64, things: &[u64]) {
        let filed = filed(things);
        self.touched.begins_again(&self.conn, number, filed.as_deref()).unwrap();
        self.conn
            .execute("UPDATE entry SET things = ?2 WHERE number = ?1", (number, filed))
            .unwrap();
        self.knows(number, things);
    }

    fn finish(&mut self, number: i64, thing: u64) {
        add_alone(&self.conn, number, std::iter::once(bytes(thing))).unwrap();
        self.knows(number, &[thing]);
    }

    fn knows(&mut self, number: i64, things: &[u64]) {
        for thing in things {
            self.model.entry(*thing).or_default().insert(number);
        }
    }

    fn found(&self, thing: u64, half: Half) -> BTreeSet<i64> {
        let mut found = Vec::new();
        let reading = Reading::begin(&self.conn).unwrap();
        reading.find(hash(bytes(thing)), half, &mut found).unwrap();
        found.into_iter().collect()
    }

    /// Every thing is found in both halves, whatever entry is asked about.
    fn check(&self) {
        for (thing, entries) in &self.model {
            for number in [0, 1, self.newest / 2, self.newest, self.newest + 1] {
                let after = entries.range(number + 1..).copied().collect();
                assert_eq!(self.found(*thing, Half::After(number)), after, "{thing}");
                let before = entries.range(..number).copied().collect();
                assert_eq!(self.found(*thing, Half::Before(number)), before, "{thing}");
            }
        }
        assert_eq!(self.found(u64::MAX, Half::After(0)), BTreeSet::new());
    }

    fn count(&self, sql: &str) -> i64 {
        self.conn.query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

/// Spread as hashes are, whatever their number.
fn bytes(thing: u64) -> [u8; 8] {
    thing.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn filed(things: &[u64]) -> Option<Vec<u8>> {
    crate::ledger::later::filed(things.iter().map(|thing| bytes(*thing)))
}

#[derive(Clone, Debug)]
enum Done {
    Again(usize, Vec<u64>),
    Begin(Vec<u64>),
    Finish(usize, u64),
    Reopen,
}

fn done() -> impl Strategy<Value = Done> {
    let things = || prop::collection::vec(0..12_u64, 0..3);
    prop_oneof![
        8 => things().prop_map(Done::Begin),
        1 => (0..100_usize, things()).prop_map(|(back, things)| Done::Again(back, things)),
        2 => (0..100_usize, 0..12_u64).prop_map(|(back, thing)| Done::Finish(back, thing)),
        1 => Just(Done::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_entry_is_found_by_its_things_whatever_was_filed_and_merged(
        all in prop::collection::vec(done(), 0..600),
    ) {
        let mut bench = Bench::new();
        for one in all {
            let at = |back: usize| bench.newest - i64::try_from(back).unwrap();
            match one {
                Done::Begin(things) => drop(bench.begin(&things)),
                Done::Again(back, things) if at(back) > 0 => bench.begin_again(at(back), &things),
                Done::Finish(back, thing) if at(back) > 0 => bench.finish(at(back), thing),
                Done::Again(..) | Done::Finish(..) => {}
                Done::Reopen => bench.reopen(),
            }
        }
        bench.check();
    }
}

#[test]
fn runs_are_merged_so_that_there_are_few_and_each_pair_stands_in_one_or_two() {
    let mut bench = Bench::new();

    for number in 0..20_000 {
        bench.begin(&[number % 7_000]);
    }

    let runs = bench.count("SELECT count(*) FROM run");
    // Runs of 4, 32, 256, 2,048 and 16,384.
    assert!((2..=5 * 16).contains(&runs), "{runs}");
    assert!(bench.count("SELECT max(level) FROM run") >= 3);
    let pairs = bench.count("SELECT sum(length(pairs)) / 16 FROM touched");
    assert!((20_000 - 4..=40_000).contains(&pairs), "{pairs}");
    assert_eq!(bench.found(3, Half::After(4)), BTreeSet::from([7_004, 14_004]));
    assert_eq!(bench.found(3, Half::Before(14_004)), BTreeSet::from([4, 7_004]));
    let strays =
        "SELECT count(*) FROM touched WHERE run <> 0 AND run NOT IN (SELECT number FROM run)";
    assert_eq!(bench.count(strays), 0, "what was merged is gone");
}

#[test]
fn of_a_thing_that_changes_always_no_more_is_read_than_is_looked_at() {
    let mut bench = Bench::new();
    for _ in 0..6_000 {
        bench.begin(&[1]);
    }
    let most = crate::ledger::MAX_LATER;

    let later = bench.found(1, Half::After(10));
    let earlier = bench.found(1, Half::Before(5_990));

    // The nearest are there, and of each run there are so many at most.
    assert!(later.iter().copied().take(most).eq(11..=10 + i64::try_from(most).unwrap()));
    assert!(earlier.iter().rev().copied().take(most).eq((0..5_990).rev().take(most)));
}

#[test]
fn to_find_a_thing_costs_no_more_in_a_large_ledger_than_a_seek_in_each_run() {
    // What reading one thing costs in steps of the database's machine, for each run.
    let cost = |entries: u64| {
        let mut bench = Bench::new();
        for number in 0..entries {
            bench.begin(&[number]);
        }
        let statements = [START, ONWARD, BACK];
        let cost = |status| -> i32 {
            let one = |sql| bench.conn.prepare_cached(sql).unwrap().reset_status(status);
            statements.iter().map(|sql| one(*sql)).sum()
        };
        cost(StatementStatus::VmStep);
        assert_eq!(bench.found(7, Half::After(7)).len(), 1);
        assert_eq!(bench.found(7, Half::Before(9)).len(), 1);
        assert_eq!(cost(StatementStatus::FullscanStep), 0);
        let runs = bench.count("SELECT count(*) FROM run") + 1;
        i64::from(cost(StatementStatus::VmStep)) / runs
    };

    let (small, large) = (cost(400), cost(12_000));

    assert!(small > 0 && large <= 2 * small, "{small} {large}");
}

#[test]
fn the_index_is_used() {
    let bench = Bench::new();
    let unfiled = "SELECT number, things FROM entry WHERE number > ?1 AND things IS NOT NULL";
    for sql in [START, ONWARD, BACK, NEXT, LAST, unfiled] {
        let mut statement = bench.conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let plan: Vec<String> =
            statement.raw_query().mapped(|row| row.get(3)).map(Result::unwrap).collect();
        let [only] = plan.as_slice() else { panic!("{sql}: {plan:?}") };
        assert!(only.starts_with("SEARCH "), "{sql}: {only}");
    }
}
