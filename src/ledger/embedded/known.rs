//! What the handles know of the ledger without asking its writer.
//!
//! Most calls are new: no entry has their key, their digest or an undo that they make. To say so needs
//! no way to the writer's thread and back, only the part of the index that is in memory. This file is
//! what the writer shares of it: [`Known::is_new`] says yes only if a look would find nothing at all;
//! in doubt it says no, and the look goes the long way.
//!
//! It promises what a look does: whatever was queued before is seen. So a begin or a finish is noted
//! here before it is queued ([`Coming`]), and the note stays until the writer is done with it, by when
//! what it wrote is in the index. While the writer reads the index anew nothing is called new.
//!
//! It decides nothing. A call that is new here begins only if it still is in the transaction of its
//! begin.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};

use super::finder::Index;
use crate::contract::key::{Digest, Key};
use crate::contract::thing::Thing;
use crate::ledger::{Begin, Finish, Look, State};

/// What an entry can be found by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trace<'a> {
    /// The caller's key, whoever calls.
    AnyonesKey(&'a str),
    /// The request's digest.
    Digest(&'a Digest),
    /// The caller's key.
    Key(&'a str),
    /// The operation, of an entry whose outcome is unknown.
    Operation(&'a str),
    /// The digest of a request for the draft form.
    StagedDigest(&'a Digest),
    /// What it changes, whoever calls. It is a digest already and is hashed again with the secret; the rows of
    /// ledgers that are there hold hashes of that digest, so one keyed hash of its name would not find them.
    Thing(&'a Thing),
    /// The mark of the call that takes it back.
    UndoMark(&'a Digest),
}

/// The hashes of what an entry is found by. Made by whoever calls, so that the writer need not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashes {
    pub(super) digest: i64,
    pub(super) key: Option<i64>,
    pub(super) anyones: Option<i64>,
}

/// See the module's page.
#[derive(Debug)]
pub(in crate::ledger) struct Known {
    secret: [u8; 32],
    memory: Mutex<Memory>,
}

/// What the writer keeps up to date.
#[derive(Debug)]
pub(super) struct Memory {
    /// Whether all that the ledger holds is in here.
    is_complete: bool,
    pub(super) index: Index,
    /// Digests of open entries, and the entries' numbers.
    pub(super) open: Pairs,
    /// Keys of open entries of weak principals, hashed without their principal.
    pub(super) strangers: Pairs,
    /// Operations, with their principal, that may have entries of unknown outcome.
    pub(super) unknown: HashSet<i64, BuildHasherDefault<Ready>>,
    /// What queued commands add, each with how many do.
    coming: HashMap<i64, usize, BuildHasherDefault<Ready>>,
    /// Queued finishes after which an outcome may be unknown.
    unsettled: usize,
}

/// Hashes and the numbers of their entries.
#[derive(Debug, Default)]
pub(super) struct Pairs(BTreeSet<(i64, i64)>);

impl Pairs {
    pub(super) fn insert(&mut self, hash: i64, number: i64) {
        self.0.insert((hash, number));
    }

    pub(super) fn remove(&mut self, hash: i64, number: i64) {
        self.0.remove(&(hash, number));
    }

    pub(super) fn of(&self, hash: i64) -> impl Iterator<Item = i64> {
        self.0.range((hash, i64::MIN)..=(hash, i64::MAX)).map(|(_, number)| *number)
    }

    pub(super) fn has(&self, hash: i64) -> bool {
        self.of(hash).next().is_some()
    }
}

impl Known {
    /// Knows nothing yet, and calls nothing new.
    pub(super) fn new(secret: [u8; 32]) -> Self {
        Self {
            secret,
            memory: Mutex::new(Memory {
                is_complete: false,
                index: Index::new(0),
                open: Pairs::default(),
                strangers: Pairs::default(),
                unknown: HashSet::default(),
                coming: HashMap::default(),
                unsettled: 0,
            }),
        }
    }

    /// Held for moments only, and never while the file is read.
    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what the ledger holds, of which an index has about `rows` rows on disk.
    pub(super) fn forget(&self, rows: usize) {
        let mut memory = self.memory();
        memory.is_complete = false;
        memory.index = Index::new(rows);
        memory.open = Pairs::default();
        memory.strangers = Pairs::default();
        memory.unknown = HashSet::default();
    }

    /// All that the ledger holds is in here.
    pub(super) fn complete(&self) {
        self.memory().is_complete = true;
    }

    /// The hash of what a principal's entry can be found by.
    pub(super) fn hash(&self, principal: &str, trace: Trace<'_>) -> i64 {
        let (kind, value): (u8, &[u8]) = match trace {
            Trace::Key(key) => (1, key.as_bytes()),
            Trace::Digest(digest) => (2, &digest.0),
            Trace::StagedDigest(digest) => (3, &digest.0),
            Trace::UndoMark(digest) => (4, &digest.0),
            Trace::AnyonesKey(key) => (5, key.as_bytes()),
            Trace::Operation(operation) => (6, operation.as_bytes()),
            Trace::Thing(thing) => (7, &thing.0.0),
        };
        let length = u64::try_from(principal.len()).unwrap_or(u64::MAX);
        let full = Sha256::new_with_prefix(self.secret)
            .chain_update([kind])
            .chain_update(length.to_be_bytes())
            .chain_update(principal)
            .chain_update(value)
            .finalize();
        i64::from_be_bytes(full.first_chunk().copied().unwrap_or_default())
    }

    /// The hashes of what a call's entry is found by.
    pub(super) fn hashes(&self, look: &Look) -> Hashes {
        let principal = look.principal.id.as_str();
        let trace = if look.staged {
            Trace::StagedDigest(&look.digest)
        } else {
            Trace::Digest(&look.digest)
        };
        let key = look.key.as_ref().map(Key::as_str);
        Hashes {
            digest: self.hash(principal, trace),
            key: key.map(|key| self.hash(principal, Trace::Key(key))),
            anyones: key.map(|key| self.hash("", Trace::AnyonesKey(key))),
        }
    }

    /// Whether nothing is there that a look at this call would find, queued commands included.
    pub(in crate::ledger) fn is_new(&self, look: &Look) -> bool {
        let hashes = self.hashes(look);
        let mark = self.hash(&look.principal.id, Trace::UndoMark(&look.mark));
        let found = [Some(hashes.digest), hashes.key, Some(mark)];
        let open = start(&look.digest);
        let coming = [hashes.anyones, Some(open), Some(start(&look.mark))];

        let memory = self.memory();
        let is_there = !memory.is_complete
            || memory.unsettled > 0
            || memory.open.has(open)
            || hashes.anyones.is_some_and(|hash| memory.strangers.has(hash))
            || found.iter().flatten().any(|hash| memory.index.may_hold(*hash))
            || found.iter().chain(&coming).flatten().any(|hash| memory.coming.contains_key(hash));
        if is_there {
            return false;
        }
        memory.unknown.is_empty() || !memory.unknown.contains(&self.operation(look))
    }

    /// The hash of a call's operation, as [`Memory::unknown`] has it.
    pub(super) fn operation(&self, look: &Look) -> i64 {
        self.hash(&look.principal.id, Trace::Operation(look.operation.as_str()))
    }

    /// Notes a begin that is about to be queued.
    pub(in crate::ledger) fn begins(self: &Arc<Self>, begin: &Begin) -> Coming {
        let hashes = self.hashes(&begin.look);
        let open = start(&begin.look.digest);
        let added = [Some(hashes.digest), hashes.key, hashes.anyones, Some(open)];
        self.note(added, false, Some(hashes))
    }

    /// Notes a finish that is about to be queued.
    pub(in crate::ledger) fn finishes(self: &Arc<Self>, finish: &Finish) -> Option<Coming> {
        let mark = finish.undo_mark.as_ref().map(start);
        // One that was not sent leaves an entry as unknown as it was.
        let is_unsettled = match finish.state {
            State::Accepted | State::Begun | State::Undone | State::Waiting => false,
            State::Rejected | State::Unknown => true,
        };
        let is_needed = mark.is_some() || is_unsettled;
        is_needed.then(|| self.note([mark, None, None, None], is_unsettled, None))
    }

    fn note(
        self: &Arc<Self>,
        added: [Option<i64>; 4],
        is_unsettled: bool,
        hashes: Option<Hashes>,
    ) -> Coming {
        let mut memory = self.memory();
        for hash in added.iter().flatten() {
            *memory.coming.entry(*hash).or_default() += 1;
        }
        memory.unsettled += usize::from(is_unsettled);
        drop(memory);
        Coming { known: Arc::clone(self), added, is_unsettled, hashes }
    }
}

/// A command that is queued, and what it adds; forgotten when the writer is done with it.
#[derive(Debug)]
pub(in crate::ledger) struct Coming {
    known: Arc<Known>,
    added: [Option<i64>; 4],
    is_unsettled: bool,
    hashes: Option<Hashes>,
}

impl Coming {
    /// The hashes of a begin.
    pub(super) fn hashes(&self) -> Option<Hashes> {
        self.hashes
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        let mut memory = self.known.memory();
        for hash in self.added.iter().flatten() {
            if let Some(count) = memory.coming.get_mut(hash) {
                *count -= 1;
                if *count == 0 {
                    memory.coming.remove(hash);
                }
            }
        }
        memory.unsettled -= usize::from(self.is_unsettled);
    }
}

/// What stands for a digest that is looked for whoever calls: its first bytes, as random as it is.
/// Whoever makes two that begin alike makes their looks go the long way.
pub(super) fn start(digest: &Digest) -> i64 {
    i64::from_be_bytes(digest.0.first_chunk().copied().unwrap_or_default())
}

/// Hashes what is a hash already.
#[derive(Debug, Default)]
pub(super) struct Ready(u64);

impl Hasher for Ready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_i64(&mut self, hash: i64) {
        self.0 = hash.cast_unsigned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_keep_principals_and_kinds_apart() {
        let known = Known::new([7; 32]);
        let digest = Digest([1; 32]);
        let hashes = [
            known.hash("a", Trace::Digest(&digest)),
            known.hash("b", Trace::Digest(&digest)),
            known.hash("a", Trace::StagedDigest(&digest)),
            known.hash("a", Trace::UndoMark(&digest)),
            known.hash("a", Trace::Key("bc")),
            known.hash("ab", Trace::Key("c")),
            Known::new([8; 32]).hash("a", Trace::Key("bc")),
        ];
        assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), hashes.len());
    }
}
