//! The store in PostgreSQL, beside what the server itself can do.

use std::path::Path;
use std::process::Command;

use takeback::ledger::{Address, Ledger, Options, Place};

use super::server::{Server, programs};
use super::{CALLERS, Calls, Ratios, begin_together, median, now_ms};

/// How long `pgbench` inserts in each round, in seconds.
const SECONDS: u32 = 5;

const COPIES: &str = "CREATE SCHEMA IF NOT EXISTS bench; \
    CREATE TABLE bench.entry (LIKE takeback.entry INCLUDING ALL); \
    CREATE TABLE bench.history (LIKE takeback.history INCLUDING ALL); \
    CREATE TABLE bench.finder (LIKE takeback.finder INCLUDING ALL); \
    CREATE TABLE bench.touched (LIKE takeback.touched INCLUDING ALL); \
    CREATE SEQUENCE bench.step";

/// What 64 begins write.
const BATCH: &str = "BEGIN;
    INSERT INTO bench.finder SELECT gen_random_uuid(), gen_random_uuid()
      FROM generate_series(1, 128);
    INSERT INTO bench.touched SELECT gen_random_uuid(), gen_random_uuid()
      FROM generate_series(1, 64);
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
    let mut of_one = Ratios::default();
    let mut of_best = Ratios::default();
    let mut rates = Vec::new();
    for _ in 0..rounds {
        let [one, four] = [1, 4].map(|clients| inserts(&server, &script, clients));
        let only = runtime.block_on(begin_together(&ledger, begins, Calls::OnlyBegins));
        let begun = runtime.block_on(begin_together(&ledger, begins, Calls::Begins));
        let whole = runtime.block_on(begin_together(&ledger, begins, Calls::Whole));
        println!(
            "pgbench with one client {one:.0}/s, with four {four:.0}/s; {CALLERS} callers: begin \
             {:.0}/s p99 {:?}, begin and finish {:.0}/s, with its look {:.0}/s",
            only.rate, only.p99, begun.rate, whole.rate
        );
        of_one.add(only.rate, one);
        of_best.add(only.rate, four.max(one));
        rates.push(only.rate);
    }
    let one = runtime.block_on(super::one_by_one(&ledger, 1_000));
    println!("1 caller: begin p50 {one:?}");
    runtime.block_on(ledger.close());
    let rate = median(&mut rates);
    println!("begins, {CALLERS} callers: {rate:.0}/s (goal >= 20000)");
    println!("begins / batched inserts of one client of pgbench: {of_one} (or >= 0.7)");
    println!("begins / batched inserts of as many clients as are best: {of_best}");
}

/// Rows of begins that so many clients of `pgbench` insert each second.
fn inserts(server: &Server, script: &Path, clients: u32) -> f64 {
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
}
