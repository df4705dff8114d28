//! What a durable begin costs, against the least that any durable record can cost on this disk.
//!
//! ```text
//! cargo bench --bench ledger [-- --entries 1000000] [-- --rounds 5]
//! cargo bench --bench ledger -- --postgres
//! ```
//!
//! Two limits, hand-written here: one caller appending a record and flushing it (`fdatasync`), and
//! 64 callers whose records one thread appends and flushes together. Each round runs the limit and
//! the ledger in the same folder, by turns; the medians of the rounds' ratios are printed.
//! With `--entries`, the ledger is filled first and the rate at 64 callers compared with an empty
//! one. Set `TMPDIR` to choose the file system.
//!
//! With `--postgres` it starts a PostgreSQL of its own with its default durability, and compares begins
//! at 64 callers over a Unix socket with `pgbench` inserting, 64 to a transaction, the rows that begins
//! write into copies of the tables that they write them to.

#![expect(clippy::disallowed_methods, reason = "a bench measures time")]
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::as_conversions,
    reason = "a bench may stop"
)]

#[path = "../tests/it/support/postgres.rs"]
mod server;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use takeback::contract::class::{Class, Disposition, Kind, Verdict};
use takeback::contract::key::{Digest, EntryId, Key, OperationId};
use takeback::ledger::{
    Answer, Begin, Begun, Embedded, Expected, Finish, Guard, Ledger, Look, Options, Principal,
    State,
};

const CALLERS: usize = 64;
/// What one record of the group commit takes, in bytes: about what a begin writes of its own.
const RECORD: usize = 512;

/// What one record of a single caller takes: a block, which is the least that a disk writes.
const BLOCK: usize = 4096;

fn main() {
    let number = |flag: &str, default: usize| {
        let mut args = std::env::args();
        args.find(|arg| arg == flag).and_then(|_| args.next()?.parse().ok()).unwrap_or(default)
    };
    let rounds = number("--rounds", 5);
    let entries = number("--entries", 0);
    let begins = number("--begins", 20_000);
    if std::env::args().any(|arg| arg == "--postgres") {
        return postgres::run(rounds, begins);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");

    let mut one = Vec::new();
    let mut many = Vec::new();
    let mut rates = Vec::new();
    for round in 0..rounds {
        let path = folder.path().join(format!("one-{round}.db"));
        let ledger = open(&path);
        let append = folder.path().join("append");
        let (limit, begin) = runtime.block_on(alone(&append, &ledger, 1_000));
        runtime.block_on(ledger.close());
        println!("1 caller: append p50 {limit:?}, begin p50 {begin:?}");
        one.push(begin.as_secs_f64() / limit.as_secs_f64());

        let limit = runtime.block_on(append_together(&folder.path().join("group"), begins * 4));
        let ledger = open(&folder.path().join(format!("many-{round}.db")));
        let begun = runtime.block_on(begin_together(&ledger, begins, Calls::Begins));
        let whole = runtime.block_on(begin_together(&ledger, begins, Calls::Whole));
        runtime.block_on(ledger.close());
        println!(
            "{CALLERS} callers: append {:.0}/s, begin and finish {:.0}/s p99 {:?}, \
             with its look {:.0}/s",
            limit.rate, begun.rate, begun.p99, whole.rate
        );
        many.push(begun.rate / limit.rate);
        rates.push(begun.rate);
    }
    println!("begin p50 / append p50, 1 caller: {:.2} (goal <= 1.8)", median(&mut one));
    println!("begins / appends, {CALLERS} callers: {:.3} (goal >= 0.15)", median(&mut many));

    if entries > 0 {
        let path = folder.path().join("filled.db");
        let filled = open(&path);
        let filling = runtime.block_on(begin_together(&filled, entries, Calls::Begins));
        println!("filled with {entries} entries at {:.0}/s", filling.rate);
        runtime.block_on(filled.close());
        let opening = Instant::now();
        let filled = open(&path);
        println!("opened in {:?}", opening.elapsed());
        let mut full = Vec::new();
        let mut ratios = Vec::new();
        for round in 0..rounds {
            let empty = open(&folder.path().join(format!("empty-{round}.db")));
            let base = runtime.block_on(begin_together(&empty, begins, Calls::Begins));
            runtime.block_on(empty.close());
            let rate = runtime.block_on(begin_together(&filled, begins, Calls::Begins));
            println!(
                "empty {:.0}/s p99 {:?}, filled {:.0}/s p99 {:?}",
                base.rate, base.p99, rate.rate, rate.p99
            );
            full.push(rate.rate);
            ratios.push(rate.rate / base.rate);
        }
        runtime.block_on(filled.close());
        println!("filled / empty: {:.2} (goal >= 0.8)", median(&mut ratios));
    }
}

struct Rate {
    rate: f64,
    p99: Duration,
}

#[derive(Clone, Copy)]
enum Calls {
    /// A begin alone.
    OnlyBegins,
    /// A begin and its finish.
    Begins,
    /// A look, a begin, its finish and its delivery.
    Whole,
}

fn open(path: &Path) -> Ledger {
    let (embedded, _) = Embedded::open(path, Options::default(), now_ms()).expect("a ledger");
    Ledger::Embedded(embedded)
}

/// Appends and begins by turns, so that both meet the same moments of the machine.
async fn alone(append: &Path, ledger: &Ledger, count: usize) -> (Duration, Duration) {
    let mut file = appender(append);
    let mut appends = Vec::new();
    let mut begins = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        file.write_all(&[7; BLOCK]).expect("written");
        file.sync_data().expect("flushed");
        appends.push(start.elapsed());

        let begin = call();
        let entry = begin.entry;
        let start = Instant::now();
        let begun = ledger.begin(begin).await.expect("begun");
        begins.push(start.elapsed());
        assert_eq!(begun, Begun::Started { attempt: 1 });
        ledger.finish(finish(entry));
    }
    (percentile(&mut appends, 50), percentile(&mut begins, 50))
}

/// The least that a group commit can be: one thread appends what has come and flushes it.
async fn append_together(path: &Path, count: usize) -> Rate {
    let mut file = appender(path);
    let (queue, records) = mpsc::channel::<tokio::sync::oneshot::Sender<()>>();
    let thread = std::thread::spawn(move || {
        while let Ok(first) = records.recv() {
            let mut waiting = vec![first];
            waiting.extend(records.try_iter().take(255));
            file.write_all(&vec![7; RECORD * waiting.len()]).expect("written");
            file.sync_data().expect("flushed");
            for done in waiting {
                done.send(()).expect("somebody waits");
            }
        }
    });
    let rate = callers(count, move || {
        let queue = queue.clone();
        async move {
            let (done, is_done) = tokio::sync::oneshot::channel();
            queue.send(done).expect("a thread");
            is_done.await.expect("done");
        }
    })
    .await;
    // The last sender went with the callers.
    thread.join().expect("it ended");
    rate
}

/// The median of begins of one caller, each with its finish.
async fn one_by_one(ledger: &Ledger, count: usize) -> Duration {
    let mut begins = Vec::new();
    for _ in 0..count {
        let begin = call();
        let entry = begin.entry;
        let start = Instant::now();
        let begun = ledger.begin(begin).await.expect("begun");
        begins.push(start.elapsed());
        assert_eq!(begun, Begun::Started { attempt: 1 });
        ledger.finish(finish(entry));
    }
    percentile(&mut begins, 50)
}

async fn begin_together(ledger: &Ledger, count: usize, calls: Calls) -> Rate {
    let ledger = ledger.clone();
    callers(count, move || {
        let ledger = ledger.clone();
        async move {
            let mut begin = call();
            if let Calls::Whole = calls {
                let priors = ledger.look(begin.look.clone()).await.expect("looked");
                begin.expected = priors.expected();
            }
            let entry = begin.entry;
            let begun = ledger.begin(begin).await.expect("begun");
            assert_eq!(begun, Begun::Started { attempt: 1 });
            if let Calls::OnlyBegins = calls {
                return;
            }
            ledger.finish(finish(entry));
            if let Calls::Whole = calls {
                ledger.delivered(entry);
            }
        }
    })
    .await
}

/// Runs `count` calls by [`CALLERS`] callers, each of which waits for its own.
async fn callers<F: Future<Output = ()> + 'static>(
    count: usize,
    call: impl Fn() -> F + Clone + 'static,
) -> Rate {
    let local = tokio::task::LocalSet::new();
    let start = Instant::now();
    let tasks: Vec<_> = (0..CALLERS)
        .map(|_| {
            let call = call.clone();
            local.spawn_local(async move {
                let mut times = Vec::new();
                for _ in 0..count / CALLERS {
                    let start = Instant::now();
                    call().await;
                    times.push(start.elapsed());
                }
                times
            })
        })
        .collect();
    local.await;
    let elapsed = start.elapsed();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("it ended"));
    }
    let rate = times.len() as f64 / elapsed.as_secs_f64();
    Rate { rate, p99: percentile(&mut times, 99) }
}

fn call() -> Begin {
    let mut random = [0; 74];
    getrandom::fill(&mut random).expect("random bytes");
    let (id, digests) = random.split_first_chunk::<10>().expect("enough");
    let (digest, mark) = digests.split_at(32);
    let digest: &[u8; 32] = digest.try_into().expect("32 bytes");
    let mark: &[u8; 32] = mark.try_into().expect("32 bytes");
    let entry = EntryId::from_parts(u64::try_from(now_ms()).expect("after 1970"), id);
    // A caller's key is random to the ledger.
    let key = Key::from_text(&Digest(*digest).to_hex()).expect("a key");
    Begin {
        look: Look {
            principal: Principal { id: "agent:3f9a2c7710be4d51".to_owned(), weak: true },
            key: Some(key.clone()),
            digest: Digest(*digest),
            mark: Digest(*mark),
            operation: OperationId::new("github.comments.create").expect("an id"),
            staged: false,
        },
        expected: Expected::default(),
        entry,
        rerun: None,
        guard: Guard::Enforced,
        fingerprint: Digest([3; 32]),
        policy_revision: Digest([4; 32]),
        class: Class::Reversible,
        kind: Kind::Create,
        transport: "http",
        target: "POST /repos/octo/hello/issues/1/comments".to_owned(),
        task: None,
        staged_for: None,
        ledger_id: key,
        key_sent: true,
        lookup: None,
        authorization: None,
        before: None,
        repeats: None,
        spend: None,
        now_ms: now_ms(),
    }
}

fn finish(entry: EntryId) -> Finish {
    let undo = "{\"kind\":\"inverse\",\"operation\":\"github.comments.delete\",\"http\":{\"method\"\
                :\"DELETE\",\"path\":\"/repos/octo/hello/issues/comments/100\"}}";
    Finish {
        entry,
        attempt: 1,
        state: State::Accepted,
        cause: None,
        disposition: Disposition::Accepted,
        verdict: Some(Verdict::Verified),
        answered: true,
        upstream_status: Some(201),
        upstream_id: Some("100".to_owned()),
        undo: Some(undo.to_owned()),
        undo_mark: Some(Digest({
            let mut mark = [0; 32];
            mark[..16].copy_from_slice(entry.as_bytes());
            mark
        })),
        compensate: None,
        deadline_ms: Some(now_ms() + 86_400_000),
        undo_unavailable: None,
        answer: Some(Answer {
            status: 201,
            headers: vec![("content-type".to_owned(), b"application/json".to_vec())],
            body: vec![b'x'; 300],
        }),
        evidence: None,
        due_ms: None,
        undoes: None,
        now_ms: now_ms(),
    }
}

fn appender(path: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(path).expect("a file")
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as i64)
}

mod postgres {
    //! The store in PostgreSQL, beside what the server itself can do.

    use std::process::Command;

    use takeback::ledger::{Address, Ledger, Options, Place};

    use super::server::{Server, programs};
    use super::{CALLERS, Calls, begin_together, median, now_ms};

    /// How long `pgbench` inserts in each round, in seconds.
    const SECONDS: u32 = 5;

    const COPIES: &str = "CREATE SCHEMA IF NOT EXISTS bench; \
        CREATE TABLE bench.entry (LIKE takeback.entry INCLUDING ALL); \
        CREATE TABLE bench.history (LIKE takeback.history INCLUDING ALL); \
        CREATE TABLE bench.finder (LIKE takeback.finder INCLUDING ALL); \
        CREATE SEQUENCE bench.step";

    /// What 64 begins write.
    const BATCH: &str = "BEGIN;
        INSERT INTO bench.finder SELECT gen_random_uuid(), gen_random_uuid()
          FROM generate_series(1, 128);
        INSERT INTO bench.entry (id, number, version, finish, state, attempt, owner, began_ms,
          attempted_ms, finished_ms, delivered, answered, kept, weak, staged, key_sent, twin,
          principal, key, digest, mark, operation, fingerprint, policy_revision, class, kind,
          transport, target)
          SELECT gen_random_uuid(), g, g, g, 2, 1, '00000000-0000-0000-0000-000000000001', 1, 1, 1,
          false, false, false, true, false, true, '00000000-0000-0000-0000-000000000000',
          'agent:3f9a2c7710be4d51', md5(random()::text) || md5(g::text),
          decode(md5(random()::text) || md5(random()::text), 'hex'),
          decode(md5(random()::text) || md5(random()::text), 'hex'), 'github.comments.create',
          decode(md5('f') || md5('f'), 'hex'), decode(md5('p') || md5('p'), 'hex'), 'reversible',
          'create', 'http', 'POST /repos/octo/hello/issues/1/comments'
          FROM generate_series(1, 64) g;
        INSERT INTO bench.history (seq, entry, at_ms, to_state, attempt)
          SELECT nextval('bench.step'), gen_random_uuid(), 1, 2, 1 FROM generate_series(1, 64);
        COMMIT;
";

    pub(super) fn run(rounds: usize, begins: usize) {
        let server = Server::start(&["shared_buffers=512MB", "max_wal_size=4GB"]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let address = Address::parse(&server.url(), None).expect("an address");
        let place = Place::Postgres(Box::new(address));
        let (ledger, _) = Ledger::open(&place, Options::default(), now_ms()).expect("a ledger");
        server.query(COPIES);
        let script = server.folder().join("batch.sql");
        std::fs::write(&script, BATCH).expect("written");
        let mut ratios = Vec::new();
        let mut rates = Vec::new();
        for _ in 0..rounds {
            let limit = inserts(&server, &script);
            let only = runtime.block_on(begin_together(&ledger, begins, Calls::OnlyBegins));
            let begun = runtime.block_on(begin_together(&ledger, begins, Calls::Begins));
            let whole = runtime.block_on(begin_together(&ledger, begins, Calls::Whole));
            println!(
                "{CALLERS} callers: pgbench {limit:.0}/s, begin {:.0}/s p99 {:?}, begin and finish \
                 {:.0}/s, with its look {:.0}/s",
                only.rate, only.p99, begun.rate, whole.rate
            );
            ratios.push(only.rate / limit);
            rates.push(only.rate);
        }
        let one = runtime.block_on(super::one_by_one(&ledger, 1_000));
        println!("1 caller: begin p50 {one:?}");
        runtime.block_on(ledger.close());
        let rate = median(&mut rates);
        println!("begins, {CALLERS} callers: {rate:.0}/s (goal >= 20000)");
        println!("begins / pgbench's batched inserts: {:.2} (or >= 0.7)", median(&mut ratios));
    }

    /// Rows of begins that `pgbench` inserts each second: the better of one and of four clients.
    fn inserts(server: &Server, script: &std::path::Path) -> f64 {
        let rates = [1_u32, 4].map(|clients| {
            let output = Command::new(programs().join("pgbench"))
                .args(["-n", "-M", "prepared", "-U", "takeback", "-j", "1"])
                .args(["-c", &clients.to_string(), "-T", &SECONDS.to_string(), "-h"])
                .arg(server.folder())
                .arg("-f")
                .arg(script)
                .arg("postgres")
                .output()
                .expect("pgbench runs");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let tps = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next());
            tps.and_then(|tps| tps.parse::<f64>().ok()).expect("a rate") * 64.0
        });
        rates.into_iter().fold(0.0, f64::max)
    }
}
