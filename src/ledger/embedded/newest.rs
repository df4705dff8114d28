//! Where the chain ended last, kept beside the file: an older copy that is put back is noticed.
//!
//! A copy of the ledger from last week is whole in itself, and a sidecar that went on with it would send
//! again what it knows nothing of. So the lock file, which nobody copies back with the ledger, holds the
//! ledger's id and the newest [head](Head):
//!
//! ```text
//! 0198f2e4c1a27f0a8d1e5b6a7c8d9e0f 4f0c…:00000000000000001042
//! ```
//!
//! It is written over in place after a commit, at most each [`REMEMBER`], and not flushed: what it says is
//! on disk in the ledger. It may lag, after a crash above all, and then a copy that is as old as that is
//! missed; it never runs ahead. A file that holds nothing, or that is gone, says nothing.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::ledger::chain::{Head, hex};

use super::store::chained;
use super::writer::now;

/// At most how often it is written while calls go on: a small part of a commit, and far below the age of
/// any backup.
const REMEMBER: Duration = Duration::from_secs(1);

/// The length of what is kept: always the same, so that it is written over in place.
const LENGTH: usize = 32 + 1 + 64 + 1 + 20 + 1;

/// When it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// If it was not lately.
    Due,
    /// At once.
    Now,
}

/// What is kept, and whether the ledger lacks it.
#[derive(Debug)]
pub(super) struct Newest {
    /// What was written last here and is not in the ledger.
    lost: Option<Head>,
    written: Option<(Instant, Head)>,
}

impl Newest {
    pub(super) fn new(lost: Option<Head>) -> Self {
        Self { lost, written: None }
    }

    /// What the ledger lacks, as long as nobody knows of it.
    pub(super) fn lost(&self) -> Option<Head> {
        self.lost
    }

    /// A person knows that it is lost.
    pub(super) fn is_known(&mut self) {
        self.lost = None;
    }

    /// Keeps where the chain ends on disk. Not before somebody knows what was lost: that is all that tells
    /// of it.
    pub(super) fn remember(&mut self, lock: &File, store: &[u8; 16], head: Head, when: When) {
        let is_due = match self.written {
            None => true,
            Some((_, last)) if last == head => false,
            Some((at, _)) => when == When::Now || now().saturating_duration_since(at) >= REMEMBER,
        };
        if self.lost.is_some() || !is_due {
            return;
        }
        self.written = Some((now(), head));
        let text = format!("{} {}:{:020}\n", hex(store), hex(&head.link), head.length);
        if let Err(error) = lock.write_all_at(text.as_bytes(), 0) {
            tracing::debug!(%error, "where the ledger ends could not be kept beside it");
        }
    }
}

/// What was written last here, if the ledger that is here lacks it.
pub(super) fn lost(
    lock: &File,
    conn: &Connection,
    store: &[u8; 16],
) -> rusqlite::Result<Option<Head>> {
    let Some((id, head)) = kept(lock) else { return Ok(None) };
    // A link that does not read was changed where it stands: the chain says so.
    let is_there = id == hex(store)
        && chained::link_at(conn, head.length)?
            .is_some_and(|link| link.is_none_or(|link| link == head.link));
    if !is_there {
        tracing::error!(
            event = "ledger_outdated",
            %head,
            is_another = id != hex(store),
            "the ledger lacks what was written here last: an older copy, or another ledger, was put \
             in its place; writes are refused until the newest is back or `takeback ledger verify \
             --acknowledge --why` says that it is lost"
        );
    }
    Ok((!is_there).then_some(head))
}

/// The ledger's id, as text, and the head.
fn kept(lock: &File) -> Option<(String, Head)> {
    let mut bytes = [0; LENGTH];
    lock.read_exact_at(&mut bytes, 0).ok()?;
    let (id, head) = std::str::from_utf8(&bytes).ok()?.trim_end().split_once(' ')?;
    Some((id.to_owned(), Head::parse(head)?))
}
