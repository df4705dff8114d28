//! A log that is longer than what was written to it.

use super::*;
use crate::ledger::embedded::ahead;

/// What a process that is killed leaves: its file, and what it wrote to its log.
fn left(path: &Path, to: &Path) {
    std::fs::copy(path, to).unwrap();
    let log = std::fs::read(beside(path, "-wal")).unwrap();
    let written = usize::try_from(written(&log)).unwrap();
    std::fs::write(beside(to, "-wal"), &log[..written]).unwrap();
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// How much of a log is written: a header, and pages with one each that begins with the page's number.
pub(super) fn written(log: &[u8]) -> u64 {
    let pages = log[32..].chunks(4096 + 24).take_while(|page| page[..4] != [0; 4]).count();
    32 + u64::try_from(pages).unwrap() * (4096 + 24)
}

fn log_bytes(path: &Path) -> u64 {
    std::fs::metadata(beside(path, "-wal")).unwrap().len()
}

#[tokio::test]
async fn h4_zeros_behind_the_end_of_a_log_are_no_commits_and_cost_none() {
    let bench = Bench::new(Store::Embedded);
    for digest in 0..4 {
        bench.started(&Call { digest, ..Call::default() }).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut path = folder.path().join("0.db");
    left(&bench.path(), &path);

    for round in 1..4 {
        let length = log_bytes(&path);
        let longer = length + 300_000;
        ahead::append(&path, length, longer).unwrap();
        assert_eq!(log_bytes(&path), longer);

        let (embedded, recovered) = Embedded::open(&path, Options::default(), 1).unwrap();
        let ledger = Ledger::Embedded(embedded);
        // Those of before; then the one that began over zeros.
        assert_eq!(recovered.unknown, if round == 1 { 4 } else { 1 });
        let next = Call { digest: 10 + round, ..Call::default() };
        assert_eq!(ledger.begin(next.begin()).await, Ok(Begun::Started { attempt: 1 }));

        let read = ReadOnly::open(Place::File(path.clone())).unwrap();
        let all = read.list(&Filter { limit: 100, ..Filter::default() }).unwrap();
        assert_eq!(all.len(), 4 + usize::from(round));
        read.verify(&bench.options.keys, &[]).unwrap().unwrap();
        let killed = folder.path().join(format!("{round}.db"));
        left(&path, &killed);
        ledger.close().await;
        path = killed;
    }
}

#[tokio::test]
async fn h6_a_log_that_was_cut_off_is_not_made_longer() {
    let bench = Bench::new(Store::Embedded);
    bench.started(&Call::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    left(&bench.path(), &path);
    let length = log_bytes(&path);
    let log = std::fs::File::options().write(true).open(beside(&path, "-wal")).unwrap();
    log.set_len(length - 1).unwrap();

    assert!(ahead::append(&path, length, length + 300_000).is_err());
    assert_eq!(log_bytes(&path), length - 1);
}
