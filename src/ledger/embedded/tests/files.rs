//! Files: locks, versions, damage, limits, and what commands and operators read.

use super::*;

#[tokio::test]
async fn h5_a_second_writer_is_locked_out_until_the_first_closes() {
    let bench = Bench::new();
    let second = Embedded::open(&bench.path(), Options::default(), 1);
    assert!(matches!(second, Err(OpenError::Locked)));

    bench.ledger.close().await;

    assert!(Embedded::open(&bench.path(), Options::default(), 1).is_ok());
    let late = bench.ledger.begin(Call::default().begin()).await;
    assert_eq!(late, Err(LedgerError::Unavailable(Reason::Closed)));
    assert_eq!(bench.ledger.health().down, Some(Reason::Closed));
}

#[tokio::test]
async fn h5_a_link_to_a_ledger_is_the_same_ledger() {
    let bench = Bench::new();
    let link = bench.folder.path().join("link.db");
    std::os::unix::fs::symlink(bench.path(), &link).unwrap();

    let second = Embedded::open(&link, Options::default(), 1);

    assert!(matches!(second, Err(OpenError::Locked)));
}

#[tokio::test]
async fn folder_and_file_are_for_the_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    bench.started(&Call::default()).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(bench.path().parent().unwrap()), 0o700);
    for suffix in ["", "-wal", ".lock"] {
        let mut name = bench.path().into_os_string();
        name.push(suffix);
        assert_eq!(mode(Path::new(&name)), 0o600, "{suffix}");
    }
}

#[tokio::test]
async fn the_sealing_key_is_made_once() {
    let mut bench = Bench::new();
    let key = bench.ledger.sealing_key();
    assert_ne!(key, [0; 32]);
    bench.restart().await;
    assert_eq!(bench.ledger.sealing_key(), key);
    assert_ne!(Bench::new().ledger.sealing_key(), key);
}

#[tokio::test]
async fn files_of_other_versions_and_kinds_are_refused() {
    let bench = Bench::new();
    bench.ledger.close().await;
    let change = |sql: &str| {
        rusqlite::Connection::open(bench.path()).unwrap().execute_batch(sql).unwrap();
    };

    change("PRAGMA user_version = 3");
    let newer = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();
    assert!(matches!(newer, OpenError::Newer { found: 3, known: 2 }));
    assert!(matches!(ReadOnly::open(&bench.path()), Err(OpenError::Newer { .. })));
    change("PRAGMA user_version = 0");
    let older = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();
    assert!(matches!(older, OpenError::Older { found: 0, known: 2 }));
    change("PRAGMA application_id = 5");
    let foreign = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();
    assert!(matches!(foreign, OpenError::Foreign));
}

#[tokio::test]
async fn h6_a_damaged_file_is_refused_at_the_start() {
    use std::os::unix::fs::FileExt as _;
    let bench = Bench::new();
    for digest in 0..100 {
        bench.accepted(&Call { digest, ..Call::default() }).await;
    }
    bench.ledger.close().await;
    let file = std::fs::OpenOptions::new().write(true).open(bench.path()).unwrap();
    let length = file.metadata().unwrap().len();
    assert!(length > 3 * 4096);
    file.write_all_at(&[0xa5; 4096], length / 2 / 4096 * 4096).unwrap();

    let damaged = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();

    assert!(matches!(damaged, OpenError::Damaged(_) | OpenError::Sql(_)), "{damaged:?}");
}

#[tokio::test]
async fn h1_begins_are_refused_before_finishes_when_the_limit_is_near() {
    let cap = 1024 * 1024;
    let bench = Bench::with(Options { size_cap_bytes: Some(cap) });
    let open = bench.started(&Call { digest: 255, ..Call::default() }).await;
    let mut refused = None;
    for round in 0..5_000_u64 {
        let mut begin = Call::default().begin();
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&round.to_be_bytes());
        begin.look.digest = Digest(digest);
        begin.target = "x".repeat(2_000);
        match bench.ledger.begin(begin).await {
            Ok(begun) => assert_eq!(begun, Begun::Started { attempt: 1 }),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    assert_eq!(refused, Some(LedgerError::Unavailable(Reason::Full)));
    assert_eq!(bench.ledger.health().down, Some(Reason::Full));

    let finished = bench.ledger.finish_durably(finish(open, State::Accepted, None)).await;

    assert_eq!(finished, Ok(()));
    assert_eq!(bench.ledger.health().down, Some(Reason::Full), "begins are still refused");
    assert!(std::fs::metadata(bench.path()).unwrap().len() <= cap);
}

#[tokio::test]
async fn a_removed_file_refuses_writes_until_it_is_back() {
    let bench = Bench::new();
    let call = Call { digest: 1, ..Call::default() };
    let kept = bench.started(&call).await;
    let folder = bench.path().parent().unwrap().to_owned();
    let aside = folder.with_file_name("aside");
    std::fs::rename(&folder, &aside).unwrap();

    let other = Call { digest: 2, ..Call::default() };
    let refused = bench.ledger.begin(other.begin()).await;
    bench.ledger.finish(finish(kept, State::Accepted, None));
    let down = bench.ledger.heartbeat(5_000).await;

    let removed = LedgerError::Unavailable(Reason::Removed);
    assert_eq!((refused, down), (Err(removed), Err(removed)));
    assert!(!folder.exists(), "no empty ledger in its place");
    std::fs::rename(&aside, &folder).unwrap();
    bench.ledger.heartbeat(5_000).await.unwrap();
    assert_eq!(bench.state(&call).await, Some(State::Accepted), "its finish was kept");
    assert_ne!(bench.state(&other).await, Some(State::Begun), "nobody dispatched it");
    bench.started(&call).await;
}

#[tokio::test]
async fn another_ledger_or_an_older_copy_at_the_path_is_refused() {
    let bench = Bench::new();
    bench.started(&Call { digest: 1, ..Call::default() }).await;
    let folder = bench.path().parent().unwrap().to_owned();
    let snapshot = folder.with_file_name("snapshot");
    std::fs::create_dir(&snapshot).unwrap();
    let copy = rusqlite::Connection::open(bench.path()).unwrap();
    let target = snapshot.join("ledger.db");
    copy.execute("VACUUM INTO ?1", [target.to_str().unwrap()]).unwrap();
    drop(copy);
    bench.started(&Call { digest: 2, ..Call::default() }).await;
    let other = Bench::new();
    other.ledger.close().await;
    let replaced = Err(LedgerError::Unavailable(Reason::Replaced));

    let aside = folder.with_file_name("aside");
    std::fs::rename(&folder, &aside).unwrap();
    std::fs::rename(&snapshot, &folder).unwrap();
    assert!(bench.ledger.heartbeat(5_000).await.is_err());
    assert_eq!(bench.ledger.heartbeat(5_000).await, replaced, "an older copy");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::rename(other.path().parent().unwrap(), &folder).unwrap();
    assert_eq!(bench.ledger.heartbeat(5_000).await, replaced, "another ledger");

    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    assert_eq!(bench.ledger.heartbeat(5_000).await, Ok(()));
}

#[tokio::test]
async fn lists_are_newest_first_filtered_and_paged() {
    let bench = Bench::new();
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
    let other = Filter { operation: OperationId::new("other"), ..all };
    assert_eq!(ids(other), []);
    let counts = bench.ledger.counts().await.unwrap();
    assert_eq!((counts.begun.count, counts.begun.oldest_ms), (3, Some(2_000)));
    assert_eq!(counts.unknown.oldest_ms, None);
}

#[tokio::test]
async fn the_views_name_every_state_and_show_ids_and_times_as_text() {
    let bench = Bench::new();
    let entry = bench.started(&Call { key: Some("k1"), ..Call::default() }).await;
    let conn = rusqlite::Connection::open(bench.path()).unwrap();
    for state in State::ALL {
        conn.execute("UPDATE entry SET state = ?1", [state.code()]).unwrap();
        conn.execute("UPDATE history SET from_state = ?1, to_state = ?1", [state.code()]).unwrap();
        let seen: (String, String) = conn
            .query_row("SELECT entry, state FROM entries", [], |r| Ok((r.get(0)?, r.get(1)?)))
            .unwrap();
        assert_eq!(seen, (entry.to_string(), state.as_str().to_owned()));
        let step: (String, String, String) = conn
            .query_row("SELECT entry, from_state, to_state FROM history_readable", [], |r| {
                Ok((r.get(0)?, r.get(1)?, r.get(2)?))
            })
            .unwrap();
        let word = state.as_str().to_owned();
        assert_eq!(step, (entry.to_string(), word.clone(), word));
        let open: i64 =
            conn.query_row("SELECT count(*) FROM open_entries", [], |r| r.get(0)).unwrap();
        assert_eq!(open == 1, state.is_open());
    }
    let began: (String, String) = conn
        .query_row("SELECT began, ledger_id FROM entries", [], |r| Ok((r.get(0)?, r.get(1)?)))
        .unwrap();
    assert_eq!(began, ("1970-01-01T00:00:02.000Z".to_owned(), "k1".to_owned()));
}

#[tokio::test]
async fn h4_a_log_cut_anywhere_keeps_all_that_was_committed_before_the_cut() {
    let bench = Bench::new();
    let mut sizes = Vec::new();
    let beside = |path: &Path, suffix: &str| -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    };
    let log = beside(&bench.path(), "-wal");
    for digest in 0..4 {
        bench.started(&Call { digest, ..Call::default() }).await;
        sizes.push(std::fs::metadata(&log).unwrap().len());
    }
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("ledger.db");

    let whole = std::fs::read(&log).unwrap();
    for cut in (sizes[1]..sizes[3]).step_by(797) {
        std::fs::copy(bench.path(), &copy).unwrap();
        let kept = usize::try_from(cut).unwrap();
        std::fs::write(beside(&copy, "-wal"), &whole[..kept]).unwrap();
        let (embedded, recovered) = Embedded::open(&copy, Options::default(), 1).unwrap();
        let ledger = Ledger::Embedded(embedded);
        let committed = sizes.iter().filter(|size| **size <= cut).count();
        assert_eq!(recovered.unknown, u64::try_from(committed).unwrap(), "cut at {cut}");
        let next = Call { digest: 9, ..Call::default() };
        assert_eq!(ledger.begin(next.begin()).await, Ok(Begun::Started { attempt: 1 }));
        ledger.close().await;
        let read = ReadOnly::open(&copy).unwrap();
        let all = read.list(&Filter { limit: 100, ..Filter::default() }).unwrap();
        assert_eq!(all.len(), committed + 1);
        drop(read);
        for suffix in ["-wal", "-shm", ".lock"] {
            // A closed ledger may have left them or not.
            let gone = std::fs::remove_file(beside(&copy, suffix));
            assert!(gone.is_ok() || !beside(&copy, suffix).exists());
        }
    }
}

#[tokio::test]
async fn a_reader_beside_the_writer_sees_what_is_on_disk() {
    let bench = Bench::new();
    let read = bench.read();
    let entry = bench.started(&Call::default()).await;

    assert_eq!(read.show(entry).unwrap().unwrap().record.prior.state, State::Begun);
    bench.ledger.finish_durably(finish(entry, State::Accepted, None)).await.unwrap();
    assert_eq!(read.show(entry).unwrap().unwrap().record.prior.state, State::Accepted);
    assert_eq!(read.show(new_id()).unwrap(), None);
}
