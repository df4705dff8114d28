//! What SQLite costs by itself, with the ledger's settings: one caller's bare commits, and a group
//! commit of one thread.
//!
//! The group commit does a begin's work and a finish's, each in one row: inserted durably before its
//! caller goes on, updated with the answer in a later commit. With a unique key, a row can be found by
//! what its caller called it, as a ledger must; without one nothing finds it, which is the least.

use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc;

use rusqlite::{CachedStatement, Connection};
use tokio::sync::oneshot;

use super::{RECORD, Rate, callers};

/// What a finish adds: about what the ledger writes of one.
const ANSWER: usize = 600;

/// Rows in one commit at the most, as in the ledger.
const BATCH: usize = 256;

/// Whether rows can be found by their key.
#[derive(Clone, Copy)]
pub(super) enum Table {
    Plain,
    Keyed,
}

/// A database with nothing of the ledger in it.
pub(super) struct Bare {
    conn: Connection,
}

impl Bare {
    pub(super) fn open(path: &Path) -> Self {
        let conn = Connection::open(path).expect("a database");
        conn.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -16384; \
             PRAGMA wal_autocheckpoint = 4096; PRAGMA temp_store = MEMORY; \
             CREATE TABLE plain (number INTEGER PRIMARY KEY, state INTEGER, record BLOB, \
             answer BLOB) STRICT; \
             CREATE TABLE keyed (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, \
             state INTEGER, record BLOB, answer BLOB) STRICT",
        )
        .expect("tables");
        Self { conn }
    }

    /// One record in a transaction of its own.
    pub(super) fn commit_one(&self) {
        self.insert(Table::Plain);
    }

    /// Fills a table with finished rows.
    pub(super) fn fill(&self, table: Table, rows: usize) {
        self.conn.execute_batch("BEGIN").expect("begun");
        for _ in 0..rows {
            let number = self.insert(table);
            self.update(table, number);
        }
        self.conn.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)").expect("committed");
    }

    fn insert(&self, table: Table) -> i64 {
        let record = [7_u8; RECORD];
        let mut key = [0_u8; 32];
        getrandom::fill(&mut key).expect("random bytes");
        match table {
            Table::Plain => self
                .statement("INSERT INTO plain (state, record) VALUES (2, ?1)")
                .execute([record.as_slice()]),
            Table::Keyed => self
                .statement("INSERT INTO keyed (state, record, key) VALUES (2, ?1, ?2)")
                .execute([record.as_slice(), key.as_slice()]),
        }
        .expect("inserted");
        self.conn.last_insert_rowid()
    }

    fn update(&self, table: Table, number: i64) {
        let update = match table {
            Table::Plain => "UPDATE plain SET state = 5, answer = ?2 WHERE number = ?1",
            Table::Keyed => "UPDATE keyed SET state = 5, answer = ?2 WHERE number = ?1",
        };
        self.statement(update).execute((number, [8_u8; ANSWER].as_slice())).expect("updated");
    }

    fn statement(&self, sql: &str) -> CachedStatement<'_> {
        self.conn.prepare_cached(sql).expect("a statement")
    }

    /// Gives it to a thread that commits together what comes together.
    pub(super) fn share(self, table: Table) -> Shared {
        let (queue, asked) = mpsc::channel();
        // It ends with the last sender.
        drop(std::thread::spawn(move || self.serve(table, &asked)));
        Shared { queue: Rc::new(queue) }
    }

    fn serve(&self, table: Table, asked: &mpsc::Receiver<Ask>) {
        while let Ok(first) = asked.recv() {
            self.conn.execute_batch("BEGIN IMMEDIATE").expect("begun");
            let mut waiting = Vec::new();
            // Finishes alone make no commit; those that came ride with the next begin.
            let mut next = Some(first);
            let mut count = 0;
            while let Some(ask) = next {
                count += 1;
                match ask {
                    Ask::Insert(reply) => waiting.push((reply, self.insert(table))),
                    Ask::Update(number) => self.update(table, number),
                }
                next = if count == BATCH {
                    None
                } else if waiting.is_empty() {
                    asked.recv().ok()
                } else {
                    asked.try_recv().ok()
                };
            }
            self.conn.execute_batch("COMMIT").expect("committed");
            for (reply, number) in waiting {
                reply.send(number).expect("somebody waits");
            }
        }
    }
}

enum Ask {
    Insert(oneshot::Sender<i64>),
    Update(i64),
}

/// The way to the thread.
pub(super) struct Shared {
    queue: Rc<mpsc::Sender<Ask>>,
}

impl Shared {
    /// Rows of many callers, each of which waits for its own.
    pub(super) async fn commit_together(&self, count: usize) -> Rate {
        let queue = Rc::clone(&self.queue);
        callers(count, move || {
            let queue = Rc::clone(&queue);
            async move {
                let (reply, is_done) = oneshot::channel();
                queue.send(Ask::Insert(reply)).expect("a thread");
                let number = is_done.await.expect("committed");
                queue.send(Ask::Update(number)).expect("a thread");
            }
        })
        .await
    }
}
