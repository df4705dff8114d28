//! The chain over the history, in both stores: what was written verifies, and what was changed since
//! by somebody with the store open is found.

use rusqlite::Connection;

use super::*;

on_both_stores!(
    what_was_written_verifies_from_the_first_row_to_the_head,
    f15_a_changed_row_is_named,
    f15_a_dropped_row_is_named,
    f15_rows_that_changed_places_are_named,
    f15_rows_cut_off_at_the_end_are_missed_by_the_head_in_the_log,
    f15_an_entry_that_no_row_made_is_named,
    a_chain_goes_on_after_a_restart_and_a_crash,
    a_wrong_key_verifies_nothing_and_the_key_is_named,
    a_change_of_the_key_is_a_row_of_the_chain,
    ops_3_6_a_break_at_the_end_refuses_begins_until_it_is_acknowledged,
    ops_3_6_the_end_of_a_long_chain_is_followed_and_its_beginning_is_not,
);

pub(super) fn keys(secrets: &[&str]) -> Keys {
    let lines: Vec<String> = secrets.iter().map(|secret| secret.repeat(8)).collect();
    Keys::parse(&lines.join("\n")).unwrap()
}

fn keyed(store: Store) -> Bench {
    Bench::with(store, Options { keys: keys(&["some"]), ..Options::default() })
}

impl Bench {
    /// Runs SQL on the store as somebody who can write it; `history` and `entry` are its tables.
    pub(super) fn change(&self, sql: &str) {
        match &self.home {
            Home::Folder(_) => {
                Connection::open(self.path()).unwrap().execute_batch(sql).unwrap();
            }
            Home::Database(database) => {
                database.query(&format!("SET search_path = takeback; {sql}"));
            }
        }
    }

    /// Keeps the history and the entries as they are.
    fn save(&self) {
        self.change(
            "DROP TABLE IF EXISTS saved_history; DROP TABLE IF EXISTS saved_entry; \
             CREATE TABLE saved_history AS SELECT * FROM history; \
             CREATE TABLE saved_entry AS SELECT * FROM entry",
        );
    }

    /// Puts back what was kept.
    fn restore(&self) {
        self.change(
            "DELETE FROM history; DELETE FROM entry; \
             INSERT INTO history SELECT * FROM saved_history; \
             INSERT INTO entry SELECT * FROM saved_entry",
        );
    }

    fn verify(&self) -> Result<Verified, Broken> {
        self.read().verify(&self.options.keys, &[]).unwrap()
    }

    /// Some of every step.
    async fn fill(&self) -> Vec<EntryId> {
        let call = |digest| Call { digest, mark: digest, ..Call::default() };
        let mut entries = Vec::new();
        entries.push(self.accepted(&call(1)).await);
        let keyed = Call { key: Some("k-1"), weak: true, ..call(2) };
        let rejected = self.started(&keyed).await;
        let finish = finish(rejected, State::Rejected, None);
        self.ledger.finish_durably(finish).await.unwrap();
        // The same call again: attempt 2.
        let priors = self.ledger.look(keyed.look()).await.unwrap();
        let begin = Begin {
            expected: priors.expected(),
            rerun: Some(rejected),
            lookup: Some("{\"a\":2}".to_owned()),
            before: Some("{\"title\":\"old\"}".to_owned()),
            ..keyed.begin()
        };
        assert_eq!(self.ledger.begin(begin).await, Ok(Begun::Started { attempt: 2 }));
        entries.push(rejected);
        let unknown = self.started(&call(3)).await;
        let lost = super::finish(unknown, State::Unknown, Some(Cause::Reset));
        self.ledger.finish_durably(lost).await.unwrap();
        let settled = self.ledger.settle(unknown, Outcome::Accepted, "ann", "seen", 7).await;
        settled.unwrap();
        entries.push(unknown);
        let undone = self.started(&call(4)).await;
        let accepted = Finish {
            undo: Some("{\"operation\":\"x\"}".to_owned()),
            undo_mark: Some(Digest([9; 32])),
            undo_things: vec![thing(4)],
            answer: Some(Answer {
                status: 201,
                headers: vec![("etag".to_owned(), b"\"1\"".to_vec())],
                body: b"{\"id\":100}".to_vec(),
            }),
            ..super::finish(undone, State::Accepted, None)
        };
        self.ledger.finish_durably(accepted).await.unwrap();
        let undo = self.started(&call(9)).await;
        let undoes =
            Finish { undoes: Some(Digest([9; 32])), ..super::finish(undo, State::Accepted, None) };
        self.ledger.finish_durably(undoes).await.unwrap();
        entries.extend([undone, undo]);
        entries
    }
}

async fn what_was_written_verifies_from_the_first_row_to_the_head(store: Store) {
    let bench = keyed(store);
    bench.fill().await;

    let verified = bench.verify().unwrap();

    let head = bench.ledger.head().unwrap();
    assert_eq!(verified.chains.len(), 1);
    let [chain] = &verified.chains[..] else { panic!() };
    assert_eq!((chain.chain, chain.head), (1, head));
    assert_eq!(chain.key, bench.options.keys.current().id());
    // Begin and finish five times, one begin more, a decision, an undo, and the chain's own.
    assert_eq!((verified.rows, verified.before), (14, 0));
    assert_eq!(head.length, 14);
    assert_eq!(bench.read().verify(&bench.options.keys, &[head]).unwrap().unwrap().missing, []);
}

async fn f15_a_changed_row_is_named(store: Store) {
    let bench = keyed(store);
    let entries = bench.fill().await;
    bench.ledger.close().await;
    let history = bench.read().show(entries[3]).unwrap().unwrap().history;
    let (first, finish, last) = (history[0].seq, history[1].seq, history[2].seq);
    let id = entries[3].to_string();
    let entry = match store {
        Store::Embedded => format!("hex(id) = upper('{}')", id.replace('-', "")),
        Store::Postgres => format!("id = '{id}'"),
    };
    // What an attempt of a file was made with is committed to by what is there alone.
    let other_attempt = if store == Store::Embedded { first } else { last };
    // What is changed, and the row that is named.
    let table = [
        (format!("UPDATE history SET at_ms = at_ms + 1 WHERE seq = {finish}"), finish),
        (format!("UPDATE history SET why = 'so' WHERE seq = {last}"), last),
        (format!("UPDATE history SET verdict = 'contradicted' WHERE seq = {finish}"), finish),
        (format!("UPDATE history SET undo = '{{}}' WHERE seq = {finish}"), finish),
        (format!("UPDATE history SET undo = NULL WHERE seq = {finish}"), finish),
        (format!("UPDATE history SET detail = '{{}}' WHERE seq = {first}"), first),
        (format!("UPDATE entry SET operation = 'other' WHERE {entry}"), first),
        (format!("UPDATE entry SET key = 'other' WHERE {entry}"), first),
        (format!("UPDATE entry SET principal = 'other' WHERE {entry}"), first),
        (format!("UPDATE entry SET target = 'other' WHERE {entry}"), first),
        (format!("UPDATE entry SET class = 'read' WHERE {entry}"), first),
        (format!("UPDATE entry SET things = NULL WHERE {entry}"), first),
        (format!("UPDATE history SET things = NULL WHERE seq = {finish}"), finish),
        (format!("UPDATE entry SET lookup = '{{}}' WHERE {entry}"), first),
        (format!("UPDATE entry SET state = 5 WHERE {entry}"), last),
        (format!("UPDATE entry SET version = {finish} WHERE {entry}"), finish),
        (format!("UPDATE entry SET finish = {first} WHERE {entry}"), finish),
        (format!("UPDATE entry SET attempt = 2 WHERE {entry}"), other_attempt),
        (format!("UPDATE history SET seal = NULL WHERE seq = {finish}"), finish),
    ];
    for (sql, row) in table {
        bench.save();
        bench.change(&sql);
        let broken = bench.verify().expect_err(&sql);
        assert_eq!(broken.row, row, "{sql}: {broken}");
        assert_eq!(broken.entry, Some(entries[3]), "{sql}");
        bench.restore();
        bench.verify().expect("as it was");
    }
}

async fn f15_a_dropped_row_is_named(store: Store) {
    let bench = keyed(store);
    let entries = bench.fill().await;
    bench.ledger.close().await;
    let history = bench.read().show(entries[3]).unwrap().unwrap().history;
    let dropped = history[1].seq;

    bench.change(&format!("DELETE FROM history WHERE seq = {dropped}"));

    let broken = bench.verify().unwrap_err();
    assert!(broken.row > dropped, "{broken}");
    assert!(broken.why.contains("a row before it is gone"), "{broken}");
}

async fn f15_rows_that_changed_places_are_named(store: Store) {
    let bench = keyed(store);
    let entries = bench.fill().await;
    bench.ledger.close().await;
    let seq = |step: usize| bench.read().show(entries[3]).unwrap().unwrap().history[step].seq;
    let (one, two) = (seq(1), seq(2));

    bench.change(&format!(
        "UPDATE history SET seq = -1 WHERE seq = {one}; \
         UPDATE history SET seq = {one} WHERE seq = {two}; \
         UPDATE history SET seq = {two} WHERE seq = -1"
    ));

    assert_eq!(bench.verify().unwrap_err().row, one);
}

async fn f15_rows_cut_off_at_the_end_are_missed_by_the_head_in_the_log(store: Store) {
    let mut bench = keyed(store);
    bench.fill().await;
    let early = bench.ledger.head().unwrap();
    bench.ledger.close().await;
    bench.save();
    bench.restart().await;
    bench.accepted(&Call { digest: 77, ..Call::default() }).await;
    bench.ledger.heartbeat(8).await.unwrap();
    let late = bench.ledger.head().unwrap();
    bench.ledger.close().await;
    let both = bench.read().verify(&bench.options.keys, &[early, late]).unwrap().unwrap();
    assert_eq!(both.missing, []);

    bench.restore();

    let cut = bench.read().verify(&bench.options.keys, &[early, late]).unwrap().unwrap();
    assert_eq!(cut.missing, [late], "the rest is whole, and only the head is missed");
}

async fn f15_an_entry_that_no_row_made_is_named(store: Store) {
    let bench = keyed(store);
    let entries = bench.fill().await;
    bench.ledger.close().await;
    bench.change("UPDATE entry SET version = version + 1000");
    let broken = bench.verify().unwrap_err();
    // Somebody who puts them back can still not have rows of the history that are not there.
    assert!(broken.entry.is_some_and(|entry| entries.contains(&entry)), "{broken}");
    assert!(broken.why.contains("no row of the history is its newest step"), "{broken}");
}

async fn a_chain_goes_on_after_a_restart_and_a_crash(store: Store) {
    let mut bench = keyed(store);
    bench.fill().await;
    // The second attempt of an entry is under way: a crash makes it unknown.
    let recovered = bench.restart().await;
    assert_eq!(recovered.unknown, 1);
    bench.accepted(&Call { digest: 78, ..Call::default() }).await;
    bench.ledger.heartbeat(8).await.unwrap();

    let verified = bench.verify().unwrap();

    let expected = match store {
        // One chain of the file, and one for each sidecar of a database.
        Store::Embedded => 1,
        Store::Postgres => 2,
    };
    assert_eq!(verified.chains.len(), expected);
    assert_eq!(verified.chains.last().unwrap().head, bench.ledger.head().unwrap());
}

async fn a_wrong_key_verifies_nothing_and_the_key_is_named(store: Store) {
    let bench = keyed(store);
    bench.fill().await;
    let with = |keys: &Keys| bench.read().verify(keys, &[]).unwrap();

    let missing = with(&keys(&["other"])).unwrap_err();
    assert_eq!(missing.needs, bench.options.keys.current().id());
    assert!(with(&Keys::default()).unwrap_err().needs.is_some());
    assert!(with(&keys(&["other", "some"])).is_ok(), "an older key verifies too");
}

async fn a_change_of_the_key_is_a_row_of_the_chain(store: Store) {
    let mut bench = Bench::new(store);
    bench.fill().await;
    assert_eq!(bench.verify().unwrap().chains[0].key, None);

    bench.options.keys = keys(&["some"]);
    bench.restart().await;
    bench.accepted(&Call { digest: 78, ..Call::default() }).await;
    bench.options.keys = keys(&["next", "some"]);
    bench.restart().await;
    bench.accepted(&Call { digest: 79, ..Call::default() }).await;
    bench.ledger.heartbeat(8).await.unwrap();

    let verified = bench.verify().unwrap();
    let last = verified.chains.last().unwrap();
    assert_eq!(last.key, bench.options.keys.current().id());
    assert!(!last.was_weakened);
    let weakened = bench.options.keys.clone();
    bench.options.keys = Keys::default();
    bench.restart().await;
    let verified = bench.read().verify(&weakened, &[]).unwrap().unwrap();
    let last = verified.chains.last().unwrap();
    assert!(last.was_weakened || last.key.is_none());
}

async fn ops_3_6_a_break_at_the_end_refuses_begins_until_it_is_acknowledged(store: Store) {
    for sql in [
        "UPDATE history SET why = 'so' WHERE seq = {}",
        "DELETE FROM history WHERE seq = {}",
        "UPDATE history SET seal = NULL WHERE seq = {}",
        "UPDATE history SET seal = decode_seal WHERE seq = {}",
        "UPDATE history SET why = 'so', seal = decode_seal WHERE seq >= {}",
    ] {
        let mut bench = keyed(store);
        let entries = bench.fill().await;
        bench.ledger.close().await;
        let finish = bench.read().show(entries[3]).unwrap().unwrap().history[1].seq;
        let other = match store {
            Store::Embedded => "x'00'",
            Store::Postgres => "'\\x00'",
        };
        bench.change(&sql.replace("{}", &finish.to_string()).replace("decode_seal", other));

        bench.restart().await;

        let integrity = bench.ledger.integrity();
        let broken = Integrity { flaw: Some(Reason::Broken), verified_ms: None };
        assert_eq!(integrity, broken, "{sql}");
        let (first, second) =
            (Call { digest: 80, ..Call::default() }, Call { digest: 81, ..Call::default() });
        let begin = bench.judged(&first).await;
        let down = LedgerError::Unavailable(Reason::Broken);
        assert_eq!(bench.ledger.begin(begin).await, Err(down), "{sql}");
        bench.ledger.heartbeat(9_500).await.unwrap();
        assert_eq!(bench.ledger.health().down, Some(Reason::Broken));
        assert!(bench.verify().is_err(), "{sql}");

        let breaks = bench.read().breaks(&bench.options.keys).unwrap().unwrap();
        let known: Vec<_> = breaks.iter().map(|broken| broken.row).collect();
        bench.ledger.acknowledge(breaks, "ann", "seen", 9_600).await.unwrap();

        bench.started(&first).await;
        assert!(bench.ledger.health().is_ok());
        let verified = bench.verify().unwrap_or_else(|broken| panic!("{sql}: {broken}"));
        let said: Vec<_> = verified
            .acknowledged
            .iter()
            .map(|known| match &known.what {
                Flaw::Broken(broken) => (broken.row, known.who.as_str(), known.at_ms),
                Flaw::Lost(_) => panic!("nothing is lost"),
            })
            .collect();
        assert_eq!(said, known.iter().map(|row| (*row, "ann", 9_600)).collect::<Vec<_>>(), "{sql}");
        bench.restart().await;
        assert_eq!(bench.ledger.integrity(), Integrity { flaw: None, verified_ms: Some(9_000) });
        bench.started(&second).await;
    }
}

async fn ops_3_6_the_end_of_a_long_chain_is_followed_and_its_beginning_is_not(store: Store) {
    let mut bench = keyed(store);
    let mut call = Call::default();
    let mut first = None;
    for digest in 0..=255 {
        for principal in 0..3 {
            call = Call { digest, mark: digest, principal, ..Call::default() };
            let entry = bench.accepted(&call).await;
            first.get_or_insert(entry);
        }
    }
    bench.restart().await;
    assert_eq!(bench.ledger.integrity(), Integrity { flaw: None, verified_ms: Some(9_000) });
    let seq =
        |bench: &Bench, entry: EntryId| bench.read().show(entry).unwrap().unwrap().history[0].seq;
    let (first, last) = (first.unwrap(), bench.by_digest(&call).await.unwrap().entry);
    let early = format!("UPDATE history SET why = 'so' WHERE seq = {}", seq(&bench, first));
    bench.change(&early);
    bench.restart().await;
    assert_eq!(bench.ledger.integrity().flaw, None, "it is bounded");
    assert!(bench.verify().is_err(), "and the whole chain tells");

    bench.change(&format!("UPDATE history SET why = 'so' WHERE seq = {}", seq(&bench, last)));
    bench.restart().await;
    assert_eq!(bench.ledger.integrity().flaw, Some(Reason::Broken));
}
