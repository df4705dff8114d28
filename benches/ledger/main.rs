//! What a durable begin costs, against the least that any durable record can cost on this disk.
//!
//! ```text
//! cargo bench --bench ledger [-- --entries 1000000] [-- --rounds 5]
//! cargo bench --bench ledger -- --postgres
//! ```
//!
//! Two limits, hand-written here: one caller appending a record and flushing it (`fdatasync`), and
//! 64 callers whose records one thread appends and flushes together. Two peers ([`sqlite`]): one
//! caller's bare commits, and the same group commit into a table of SQLite's. Each round runs them and
//! the ledger in the same folder, by turns; the medians of the rounds' ratios are printed.
//!
//! Then ledger and peers are filled with a million entries (`--entries 0`: they are not), and the rates
//! compared again, also with an empty ledger; the ledger is opened with one entry in a hundred unknown,
//! and asked for entries that it has. Set `TMPDIR` to choose the file system.
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

mod postgres;
#[path = "../../tests/it/support/postgres.rs"]
mod server;
mod sqlite;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use takeback::contract::class::{Class, Disposition, Kind, Verdict};
use takeback::contract::key::{Digest, EntryId, Key, OperationId};
use takeback::contract::thing::Thing;
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
    let entries = number("--entries", 1_000_000);
    let begins = number("--begins", 20_000);
    if std::env::args().any(|arg| arg == "--postgres") {
        return postgres::run(rounds, begins);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(empty(folder.path(), rounds, begins));
    if entries > 0 {
        runtime.block_on(full(folder.path(), rounds, begins, entries));
    }
}

/// The limits, the peers and the ledger, all empty at first.
async fn empty(folder: &Path, rounds: usize, begins: usize) {
    let mut one = Ratios::default();
    let mut one_bare = Ratios::default();
    let mut many = Ratios::default();
    for round in 0..rounds {
        let ledger = open(&folder.join(format!("one-{round}.db")));
        let append = folder.join("append");
        let bare = sqlite::Bare::open(&folder.join(format!("bare-{round}.db")));
        let [limit, commit, begin] = alone(&append, &bare, &ledger, 1_000).await;
        ledger.close().await;
        println!(
            "1 caller: append p50 {limit:?}, SQLite's commit p50 {commit:?}, begin p50 {begin:?}"
        );
        one.add(begin.as_secs_f64(), limit.as_secs_f64());
        one_bare.add(begin.as_secs_f64(), commit.as_secs_f64());

        let limit = append_together(&folder.join("group"), begins * 4).await;
        let ledger = open(&folder.join(format!("many-{round}.db")));
        let begun = begin_together(&ledger, begins, Calls::Begins).await;
        let whole = begin_together(&ledger, begins, Calls::Whole).await;
        ledger.close().await;
        println!(
            "{CALLERS} callers: append {:.0}/s, begin and finish {:.0}/s p99 {:?}, \
             with its look {:.0}/s",
            limit.rate, begun.rate, begun.p99, whole.rate
        );
        many.add(begun.rate, limit.rate);
    }
    println!("begin p50 / append p50, 1 caller: {one} (goal <= 1.8)");
    println!("begin p50 / a bare SQLite commit's p50, 1 caller: {one_bare} (goal <= 1.3)");
    println!("begins / appends, {CALLERS} callers: {many} (goal >= 0.15)");
}

/// The peers and the ledger with so many entries in them, of which one in a hundred was cut off.
async fn full(folder: &Path, rounds: usize, begins: usize, entries: usize) {
    let path = folder.join("filled.db");
    let ledger = open(&path);
    let (filling, known) = fill(&ledger, entries).await;
    println!("filled with {entries} entries at {filling:.0}/s");
    ledger.close().await;
    // What was begun and never finished becomes unknown at the first opening, and is so at the second.
    for _ in 0..2 {
        let opening = Instant::now();
        let (opened, recovered) =
            Embedded::open(&path, Options::default(), now_ms()).expect("a ledger");
        println!(
            "opened in {:?} (goal < 1s), {} entries made unknown",
            opening.elapsed(),
            recovered.unknown
        );
        Ledger::Embedded(opened).close().await;
    }
    let ledger = open(&path);
    for look in &known {
        let found = ledger.look(look.clone()).await.expect("looked");
        assert!(found.by_key.is_some() && found.by_digest.is_some());
    }
    let new: Vec<Look> = known.iter().map(|_| call().look).collect();
    for (what, asked) in [("a new call", &new), ("a repeat", &known)] {
        let [one, together] = looks(&ledger, asked).await;
        println!("check of {what}: p50 {one:?} (goal < 20us), {CALLERS} at once {together:?} each");
    }

    let plain = sqlite::Bare::open(&folder.join("plain.db"));
    let keyed = sqlite::Bare::open(&folder.join("keyed.db"));
    plain.fill(sqlite::Table::Plain, entries);
    keyed.fill(sqlite::Table::Keyed, entries);
    let (plain, keyed) = (plain.share(sqlite::Table::Plain), keyed.share(sqlite::Table::Keyed));
    let mut against_empty = Ratios::default();
    let mut against_plain = Ratios::default();
    let mut against_keyed = Ratios::default();
    for round in 0..rounds {
        let empty = open(&folder.join(format!("empty-{round}.db")));
        let base = begin_together(&empty, begins, Calls::Begins).await;
        empty.close().await;
        let plain = plain.commit_together(begins).await;
        let keyed = keyed.commit_together(begins).await;
        let begun = begin_together(&ledger, begins, Calls::Begins).await;
        println!(
            "{entries} entries, {CALLERS} callers: begin and finish {:.0}/s p99 {:?}, empty \
             {:.0}/s p99 {:?}; SQLite plain {:.0}/s p99 {:?}, with a unique key {:.0}/s p99 {:?}",
            begun.rate,
            begun.p99,
            base.rate,
            base.p99,
            plain.rate,
            plain.p99,
            keyed.rate,
            keyed.p99
        );
        against_empty.add(begun.rate, base.rate);
        against_plain.add(begun.rate, plain.rate);
        against_keyed.add(begun.rate, keyed.rate);
    }
    ledger.close().await;
    println!("filled / empty: {against_empty} (goal >= 0.8)");
    println!("begins / SQLite's rows with a unique key: {against_keyed} (goal >= 0.8)");
    println!("begins / SQLite's rows that nothing finds: {against_plain}");
}

/// The ratios of the rounds; shown as their median and their bounds.
#[derive(Default)]
struct Ratios(Vec<f64>);

impl Ratios {
    fn add(&mut self, mine: f64, theirs: f64) {
        self.0.push(mine / theirs);
    }
}

impl fmt::Display for Ratios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.0.clone();
        let middle = median(&mut sorted);
        let bound = |bound: Option<&f64>| bound.copied().unwrap_or_default();
        write!(f, "{middle:.2} [{:.2}-{:.2}]", bound(sorted.first()), bound(sorted.last()))
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

/// Appends, SQLite's commits and begins by turns, so that all meet the same moments of the machine:
/// their medians.
async fn alone(append: &Path, bare: &sqlite::Bare, ledger: &Ledger, count: usize) -> [Duration; 3] {
    let mut file = appender(append);
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..count {
        let [appends, commits, begins] = &mut times;
        let start = Instant::now();
        file.write_all(&[7; BLOCK]).expect("written");
        file.sync_data().expect("flushed");
        appends.push(start.elapsed());

        let start = Instant::now();
        bare.commit_one();
        commits.push(start.elapsed());

        let begin = call();
        let entry = begin.entry;
        let start = Instant::now();
        let begun = ledger.begin(begin).await.expect("begun");
        begins.push(start.elapsed());
        assert_eq!(begun, Begun::Started { attempt: 1 });
        ledger.finish(finish(entry));
    }
    times.map(|mut times| percentile(&mut times, 50))
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

/// Fills a ledger; one in a hundred entries is never finished. Gives the rate, and what to ask for
/// some of the finished ones.
async fn fill(ledger: &Ledger, entries: usize) -> (f64, Vec<Look>) {
    let known = Rc::new(RefCell::new(Vec::new()));
    let count = Rc::new(Cell::new(0_usize));
    let (ledger, looks) = (ledger.clone(), Rc::clone(&known));
    let rate = callers(entries, move || {
        let (ledger, looks, count) = (ledger.clone(), Rc::clone(&looks), Rc::clone(&count));
        async move {
            let number = count.replace(count.get() + 1);
            let is_cut_off = number % 100 == 50;
            let mut begin = call();
            if is_cut_off {
                // Of their own, for a look names what is unknown of its operation.
                begin.look.operation = OperationId::new("github.issues.create").expect("an id");
            }
            let (entry, look) = (begin.entry, begin.look.clone());
            assert_eq!(ledger.begin(begin).await.expect("begun"), Begun::Started { attempt: 1 });
            if is_cut_off {
                return;
            }
            ledger.finish(finish(entry));
            if number % 1_000 == 0 {
                looks.borrow_mut().push(look);
            }
        }
    })
    .await;
    (rate.rate, known.take())
}

/// How long the check of a repeat takes: one caller's median, and the mean of many at once.
async fn looks(ledger: &Ledger, known: &[Look]) -> [Duration; 2] {
    let mut times = Vec::new();
    for look in known {
        let look = look.clone();
        let start = Instant::now();
        ledger.look(look).await.expect("looked");
        times.push(start.elapsed());
    }
    let (ledger, known) = (ledger.clone(), Rc::new(known.to_vec()));
    let next = Rc::new(Cell::new(0));
    let rate = callers(200 * CALLERS, move || {
        let (ledger, known, next) = (ledger.clone(), Rc::clone(&known), Rc::clone(&next));
        async move {
            let number = next.replace(next.get() + 1);
            if let Some(look) = known.get(number % known.len()) {
                ledger.look(look.clone()).await.expect("looked");
            }
        }
    })
    .await;
    [percentile(&mut times, 50), Duration::from_secs_f64(1.0 / rate.rate)]
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
        // Each its own: what is written to once is what an index has most of.
        things: vec![Thing(Digest(*mark))],
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
        made: None,
        undo: Some(undo.to_owned()),
        undo_things: vec![Thing(Digest([5; 32]))],
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
