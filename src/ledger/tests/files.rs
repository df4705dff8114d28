//! Files: locks, versions, damage, limits, and what commands and operators read.

use super::ahead::{beside, written};
use super::*;

#[tokio::test]
async fn h5_a_second_writer_is_locked_out_until_the_first_closes() {
    let bench = Bench::new(Store::Embedded);
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
    let bench = Bench::new(Store::Embedded);
    let link = bench.folder().join("link.db");
    std::os::unix::fs::symlink(bench.path(), &link).unwrap();

    let second = Embedded::open(&link, Options::default(), 1);

    assert!(matches!(second, Err(OpenError::Locked)));
}

#[tokio::test]
async fn h5_a_ledger_has_one_writer_by_whatever_name_and_without_the_lock_beside_it() {
    let bench = Bench::new(Store::Embedded);
    let link = bench.folder().join("link.db");
    std::fs::hard_link(bench.path(), &link).unwrap();
    let second = Embedded::open(&link, Options::default(), 1);
    assert!(matches!(second, Err(OpenError::Locked)), "another name");

    let mut lock = bench.path().into_os_string();
    lock.push(".lock");
    std::fs::remove_file(lock).unwrap();
    let second = Embedded::open(&bench.path(), Options::default(), 1);
    assert!(matches!(second, Err(OpenError::Locked)), "no lock beside it");
}

#[tokio::test]
async fn h6_a_ledger_whose_log_is_gone_is_not_opened_without_it() {
    let bench = Bench::new(Store::Embedded);
    bench.started(&Call::default()).await;
    // As a process leaves it that is killed.
    let copy = bench.folder().join("copy.db");
    let beside = |path: &Path, suffix: &str| {
        let mut path = path.as_os_str().to_owned();
        path.push(suffix);
        PathBuf::from(path)
    };
    std::fs::copy(bench.path(), &copy).unwrap();
    std::fs::copy(beside(&bench.path(), "-shm"), beside(&copy, "-shm")).unwrap();
    let Err(OpenError::Lost { traces }) = Embedded::open(&copy, Options::default(), 1) else {
        panic!("its entries are gone, and it was opened");
    };
    assert!(traces.contains("copy.db-shm without") && traces.contains("copy.db-wal"), "{traces}");

    std::fs::copy(beside(&bench.path(), "-wal"), beside(&copy, "-wal")).unwrap();
    assert!(Embedded::open(&copy, Options::default(), 1).is_ok());
}

#[tokio::test]
async fn folder_and_file_are_for_the_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new(Store::Embedded);
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
async fn f20_files_of_other_versions_and_kinds_are_refused() {
    let bench = Bench::new(Store::Embedded);
    bench.ledger.close().await;
    let change = |sql: &str| {
        rusqlite::Connection::open(bench.path()).unwrap().execute_batch(sql).unwrap();
    };

    change("PRAGMA user_version = 6");
    let newer = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();
    assert!(matches!(newer, OpenError::Newer { found: 6, known: 5 }));
    assert!(matches!(ReadOnly::open(bench.path()), Err(OpenError::Newer { .. })));
    change("PRAGMA user_version = 0");
    let older = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();
    assert!(matches!(older, OpenError::Older { found: 0, known: 5 }));
    change("PRAGMA application_id = 5");
    let foreign = Embedded::open(&bench.path(), Options::default(), 1).unwrap_err();
    assert!(matches!(foreign, OpenError::Foreign));
}

#[tokio::test]
async fn h6_a_damaged_file_is_refused_at_the_start() {
    use std::os::unix::fs::FileExt as _;
    let bench = Bench::new(Store::Embedded);
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
    let bench =
        Bench::with(Store::Embedded, Options { size_cap_bytes: Some(cap), ..Options::default() });
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
    let bench = Bench::new(Store::Embedded);
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
    let bench = Bench::new(Store::Embedded);
    bench.started(&Call { digest: 1, ..Call::default() }).await;
    let folder = bench.path().parent().unwrap().to_owned();
    let snapshot = folder.with_file_name("snapshot");
    std::fs::create_dir(&snapshot).unwrap();
    let copy = rusqlite::Connection::open(bench.path()).unwrap();
    let target = snapshot.join("ledger.db");
    copy.execute("VACUUM INTO ?1", [target.to_str().unwrap()]).unwrap();
    drop(copy);
    bench.started(&Call { digest: 2, ..Call::default() }).await;
    let other = Bench::new(Store::Embedded);
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
async fn h6_a_log_that_was_cut_off_under_the_writer_takes_no_writes() {
    let bench = Bench::new(Store::Embedded);
    for digest in 1..4 {
        bench.started(&Call { digest, ..Call::default() }).await;
    }
    let mut log = bench.path().into_os_string();
    log.push("-wal");
    assert!(std::fs::metadata(&log).unwrap().len() > 0);
    std::fs::File::create(&log).unwrap();

    let refused = bench.ledger.begin(Call { digest: 9, ..Call::default() }.begin()).await;

    assert_eq!(refused, Err(LedgerError::Unavailable(Reason::Corrupt)));
    let replaced = Err(LedgerError::Unavailable(Reason::Replaced));
    assert_eq!(bench.ledger.heartbeat(5_000).await, replaced, "what was in it is missing");
}

#[tokio::test]
async fn h6_a_ledger_that_is_gone_or_empty_is_not_made_anew() {
    let bench = Bench::new(Store::Embedded);
    bench.started(&Call::default()).await;
    bench.ledger.close().await;
    let open = || Embedded::open(&bench.path(), Options::default(), 1).map(|_| ());

    std::fs::File::create(bench.path()).unwrap();
    assert!(matches!(open(), Err(OpenError::Lost { .. })), "no byte");
    rusqlite::Connection::open(bench.path()).unwrap().execute_batch("VACUUM").unwrap();
    assert!(matches!(open(), Err(OpenError::Lost { .. })), "no table");
    std::fs::remove_file(bench.path()).unwrap();
    let Err(OpenError::Lost { traces }) = open() else { panic!("it was made") };
    assert!(traces.contains("ledger.db.lock"), "{traces}");

    for suffix in ["-wal", "-shm", ".lock"] {
        let mut name = bench.path().into_os_string();
        name.push(suffix);
        let gone = std::fs::remove_file(&name);
        assert!(gone.is_ok() || !Path::new(&name).exists());
    }
    assert!(open().is_ok(), "nothing is left of it");
}

#[tokio::test]
async fn a_ledger_on_a_read_only_volume_is_read_where_nobody_writes_it() {
    let bench = Bench::new(Store::Embedded);
    let entry = bench.started(&Call::default()).await;
    assert!(
        matches!(
            crate::ledger::embedded::file::open_unchanging(&bench.path()),
            Err(OpenError::ReadOnly)
        ),
        "written"
    );

    bench.ledger.close().await;
    let mut log = bench.path().into_os_string();
    log.push("-wal");
    let conn = crate::ledger::embedded::file::open_unchanging(&bench.path()).unwrap();
    let known: i64 = conn.query_row("SELECT count(*) FROM entry", [], |row| row.get(0)).unwrap();
    assert_eq!(known, 1, "{entry}");

    std::fs::write(&log, "x").unwrap();
    assert!(
        matches!(
            crate::ledger::embedded::file::open_unchanging(&bench.path()),
            Err(OpenError::ReadOnly)
        ),
        "a log"
    );
}

#[tokio::test]
async fn the_views_name_every_state_and_show_ids_and_times_as_text() {
    let bench = Bench::new(Store::Embedded);
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
    let bench = Bench::new(Store::Embedded);
    let mut sizes = Vec::new();
    // As long as somebody reads what was there before, nothing is copied out of the log.
    let reader = rusqlite::Connection::open(bench.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM entry").unwrap();
    let file = std::fs::read(bench.path()).unwrap();
    let log = beside(&bench.path(), "-wal");
    for digest in 0..4 {
        bench.started(&Call { digest, ..Call::default() }).await;
        sizes.push(written(&std::fs::read(&log).unwrap()));
    }
    assert!(sizes.is_sorted_by(|one, next| one < next));
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("ledger.db");

    let whole = std::fs::read(&log).unwrap();
    for cut in (sizes[1]..sizes[3]).step_by(797) {
        std::fs::write(&copy, &file).unwrap();
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
async fn h2_sixty_four_begins_beside_a_long_reader_are_all_there() {
    let bench = Bench::new(Store::Embedded);
    bench.accepted(&Call { digest: 200, ..Call::default() }).await;
    let reader = rusqlite::Connection::open(bench.path()).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let count = |conn: &rusqlite::Connection| -> i64 {
        conn.query_row("SELECT count(*) FROM entry", [], |row| row.get(0)).unwrap()
    };
    let seen = count(&reader);

    let begins: Vec<_> = (0..64)
        .map(|digest| {
            let ledger = bench.ledger.clone();
            let begin = Call { digest, ..Call::default() }.begin();
            async move { ledger.begin(begin).await.unwrap() }
        })
        .collect();
    let outcomes = together(begins).await;

    assert!(outcomes.iter().all(|outcome| *outcome == Begun::Started { attempt: 1 }));
    assert_eq!(count(&reader), seen, "the reader's transaction is still its own");
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(count(&reader), 65);
}

#[tokio::test]
async fn a_begin_whose_commit_failed_after_it_reached_the_disk_is_withdrawn() {
    let bench = Bench::new(Store::Embedded);
    let call = Call::default();
    let spend = Some(Spend { nonce: [5; 16], expires_ms: 600_000 });
    bench.faults().after.store(1, Ordering::SeqCst);

    let refused = bench.ledger.begin(Begin { spend, ..call.begin() }).await;
    bench.ledger.heartbeat(5_000).await.unwrap();

    assert_eq!(refused, Err(LedgerError::Unavailable(Reason::Io)));
    let prior = bench.only().prior;
    assert_eq!((prior.state, prior.cause), (State::Rejected, Some(Cause::NotSent)));
    assert_eq!(bench.state(&call).await, None, "nothing of it happened");
    let again = Begin { spend, ..bench.judged(&call).await };
    assert_eq!(bench.ledger.begin(again).await, Ok(Begun::Started { attempt: 1 }));
}
