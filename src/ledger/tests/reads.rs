//! What is read beside the writer.

use super::*;

async fn the_sealing_key_is_made_once(store: Store) {
    let mut bench = Bench::new(store);
    let key = bench.ledger.sealing_key();
    assert_ne!(key, [0; 32]);
    bench.restart().await;
    assert_eq!(bench.ledger.sealing_key(), key);
    assert_ne!(Bench::new(store).ledger.sealing_key(), key);
}

async fn lists_are_newest_first_filtered_and_paged(store: Store) {
    let bench = Bench::new(store);
    let mut entries = Vec::new();
    for digest in 0..6 {
        let entry = bench.started(&Call { digest, ..Call::default() }).await;
        if digest % 2 == 0 {
            bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await.unwrap();
        }
        entries.insert(0, entry);
    }
    let read = bench.read();
    let ids = |filter: Filter| -> Vec<EntryId> {
        read.list(&filter).unwrap().into_iter().map(|record| record.prior.entry).collect()
    };
    let all = Filter { limit: 100, ..Filter::default() };

    assert_eq!(ids(all.clone()), entries);
    assert_eq!(ids(Filter { limit: 2, before: Some(entries[1]), ..all.clone() }), entries[2..4]);
    let begun = Filter { state: Some(State::Begun), ..all.clone() };
    assert_eq!(ids(begun), [entries[0], entries[2], entries[4]]);
    let other = Filter { operation: OperationId::new("other"), ..all.clone() };
    assert_eq!(ids(other), []);
    let own = Filter { principal: Some("agent-0".to_owned()), ..all.clone() };
    assert_eq!(ids(own.clone()), entries);
    let strangers = Filter { principal: Some("agent-1".to_owned()), ..own };
    assert_eq!(ids(strangers.clone()), []);
    assert_eq!(ids(Filter { state: Some(State::Begun), ..strangers }), []);
    let ms = entries[2].as_bytes().iter().take(6).fold(0, |ms, byte| ms << 8 | i64::from(*byte));
    let since = Filter { since_ms: Some(ms), ..all };
    assert_eq!(ids(since.clone()), entries[..3]);
    let since_and_begun = Filter { state: Some(State::Begun), ..since };
    assert_eq!(ids(since_and_begun), [entries[0], entries[2]]);
    let counts = bench.ledger.counts().await.unwrap();
    assert_eq!((counts.begun.count, counts.begun.oldest_ms), (3, Some(2_000)));
    assert_eq!(counts.unknown.oldest_ms, None);
}

async fn a_reader_beside_the_writer_sees_what_is_on_disk(store: Store) {
    let bench = Bench::new(store);
    let read = bench.read();
    let entry = bench.started(&Call::default()).await;

    assert_eq!(read.show(entry).unwrap().unwrap().record.prior.state, State::Begun);
    bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await.unwrap();
    assert_eq!(read.show(entry).unwrap().unwrap().record.prior.state, State::Accepted);
    assert_eq!(read.show(new_id()).unwrap(), None);
}

on_both_stores! {
    the_sealing_key_is_made_once,
    lists_are_newest_first_filtered_and_paged,
    a_reader_beside_the_writer_sees_what_is_on_disk,
}
