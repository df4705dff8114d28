//! The writes of this process that are under way, by what they change: so that a report does not
//! offer the undo of an update that another one overlapped.
//!
//! The ledger says the same from its rows whenever it is asked, of all processes, and what it means
//! is decided in one place for both ([`obstacle`]). A report is written together with the finish,
//! between which nothing may be waited for, and so it asks here. A write stands here from before
//! the state that it replaces is read until it is finished. One that was rejected or not sent by
//! the time of the report changed nothing.
//!
//! Not seen: writes of other sidecars, and one that its upstream answers later (`waiting`). A plan
//! and a replay see those.
//!
//! Limits: of each write the first eight that came after it are known, and eight of those that were
//! there before; of more nobody knows whether they changed nothing. So many are looked at when one
//! comes, however many stand on its thing: all workers share the lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::contract::key::EntryId;
use crate::contract::thing::Thing;
use crate::ledger::{Candidate, Obstacle, State, Subject, obstacle};

/// How many others are kept of one write, of those before it and of those after it.
const MET: usize = 8;

/// See the module's page. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct UnderWay {
    all: Arc<Mutex<All>>,
}

#[derive(Debug, Default)]
struct All {
    /// Those that stand on a thing, in the order in which they came.
    writes: HashMap<Thing, BTreeMap<i64, Standing>>,
    /// The number of the newest.
    newest: i64,
}

/// A write, as those know it that met it.
#[derive(Debug)]
struct Came {
    entry: EntryId,
    number: i64,
    changed_nothing: AtomicBool,
}

/// A write that stands here.
#[derive(Debug)]
struct Standing {
    own: Arc<Came>,
    /// Those that were there: the oldest.
    before: Vec<Arc<Came>>,
    /// Those that came: the first.
    after: Vec<Arc<Came>>,
}

/// A write stands here for as long as this lives.
#[derive(Debug)]
pub struct Entered {
    under_way: UnderWay,
    own: Arc<Came>,
    things: Vec<Thing>,
}

impl UnderWay {
    /// Notes a write that is about to be made.
    pub fn enter(&self, entry: EntryId, things: Vec<Thing>) -> Entered {
        let mut all = self.all();
        all.newest = all.newest.saturating_add(1);
        let number = all.newest;
        let own = Arc::new(Came { entry, number, changed_nothing: AtomicBool::new(false) });
        for thing in &things {
            let standing = all.writes.entry(*thing).or_default();
            if standing.contains_key(&number) {
                continue;
            }
            let before = standing.values().take(MET).map(|other| Arc::clone(&other.own)).collect();
            // Whoever came earlier has met whoever a later one met: those with room are the newest.
            let has_room = |other: &&mut Standing| other.after.len() < MET;
            for other in standing.values_mut().rev().take_while(has_room) {
                other.after.push(Arc::clone(&own));
            }
            standing.insert(number, Standing { own: Arc::clone(&own), before, after: Vec::new() });
        }
        drop(all);
        Entered { under_way: self.clone(), own, things }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entered {
    /// What the write changes, as far as that is known before it is made.
    pub fn things(&self) -> &[Thing] {
        &self.things
    }

    /// What overlapped this write on what its undo would change.
    pub fn obstacle(&self, undo: &[Thing], has_before: bool) -> Option<Obstacle> {
        let number = self.own.number;
        let mut subject = Subject { number, began: number, has_before, is_cut: false };
        let (mut later, mut earlier) = (Vec::new(), Vec::new());
        let all = self.under_way.all();
        for thing in undo {
            let standing = all.writes.get(thing);
            let Some(own) = standing.and_then(|standing| standing.get(&number)) else { continue };
            subject.is_cut |= own.after.len() >= MET;
            later.extend(own.after.iter().map(|other| other.as_candidate()));
            let is_cut = own.before.len() >= MET;
            earlier.extend(own.before.iter().map(|other| {
                let mut candidate = other.as_candidate();
                if is_cut {
                    candidate.state = State::Begun;
                }
                candidate
            }));
        }
        drop(all);
        let Ok(found) = obstacle::<Infallible>(subject, &later, || Ok(earlier), &HashSet::new());
        found
    }

    /// This write changed nothing: it stood in nobody's way.
    pub fn changed_nothing(&self) {
        self.own.changed_nothing.store(true, Ordering::Relaxed);
    }
}

impl Came {
    /// As the ledger would have it: in its first attempt, or rejected.
    fn as_candidate(&self) -> Candidate {
        let changed_nothing = self.changed_nothing.load(Ordering::Relaxed);
        Candidate {
            entry: self.entry,
            number: self.number,
            state: if changed_nothing { State::Rejected } else { State::Begun },
            attempt: 1,
            finish: self.number,
            settled: None,
            undone_by: None,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut all = self.under_way.all();
        for thing in &self.things {
            if let Some(standing) = all.writes.get_mut(thing) {
                standing.remove(&self.own.number);
                if standing.is_empty() {
                    all.writes.remove(thing);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::key::Digest;

    fn thing(number: u8) -> Thing {
        Thing(Digest([number; 32]))
    }

    fn id(number: u64) -> EntryId {
        EntryId::from_parts(number, &[0; 10])
    }

    #[test]
    fn writes_that_overlap_on_a_thing_stand_in_the_way_of_each_others_undo() {
        let all = UnderWay::default();
        let over = all.enter(id(9), vec![thing(1)]);
        drop(over);
        let first = all.enter(id(1), vec![thing(1)]);
        assert_eq!(first.obstacle(&[thing(1)], true), None);
        let second = all.enter(id(2), vec![thing(2), thing(1)]);
        let other = all.enter(id(3), vec![thing(3)]);

        assert_eq!(first.obstacle(&[thing(1)], false), Some(Obstacle::After(id(2))));
        assert_eq!(second.obstacle(&[thing(1)], true), Some(Obstacle::Beside(id(1))));
        assert_eq!(second.obstacle(&[thing(1)], false), None, "it puts nothing back");
        assert_eq!(second.obstacle(&[thing(7)], true), None, "its undo changes another thing");
        assert_eq!(other.obstacle(&[thing(3)], true), None);
        // What came and went is still known.
        drop(first);
        assert_eq!(second.obstacle(&[thing(1)], true), Some(Obstacle::Beside(id(1))));
        drop((second, other));
        assert!(all.all().writes.is_empty(), "nothing is left behind");
    }

    #[test]
    fn one_that_changed_nothing_stands_in_nobodys_way() {
        let all = UnderWay::default();
        let first = all.enter(id(1), vec![thing(1)]);
        let second = all.enter(id(2), vec![thing(1)]);

        second.changed_nothing();

        assert_eq!(first.obstacle(&[thing(1)], true), None);
        assert_eq!(second.obstacle(&[thing(1)], true), Some(Obstacle::Beside(id(1))));
        // Of too many nobody knows who did.
        let many: Vec<Entered> = (10..20).map(|n| all.enter(id(n), vec![thing(1)])).collect();
        many.iter().for_each(Entered::changed_nothing);
        assert_eq!(first.obstacle(&[thing(1)], true), Some(Obstacle::Beyond));
        let [.., last] = many.as_slice() else { panic!("many") };
        assert_eq!(last.obstacle(&[thing(1)], true), Some(Obstacle::Beside(id(1))));
    }

    #[test]
    fn one_that_came_later_is_seen_however_many_were_there_before() {
        let all = UnderWay::default();
        let many: Vec<Entered> =
            (10..30).map(|n| all.enter(id(n), vec![thing(1), thing(1)])).collect();
        let own = all.enter(id(1), vec![thing(1)]);
        assert_eq!(own.obstacle(&[thing(1)], false), None);

        let later = all.enter(id(2), vec![thing(1)]);

        assert_eq!(own.obstacle(&[thing(1)], false), Some(Obstacle::After(id(2))));
        later.changed_nothing();
        assert_eq!(own.obstacle(&[thing(1)], false), None);
        many.iter().for_each(Entered::changed_nothing);
        let beside = Some(Obstacle::Beside(id(10)));
        assert_eq!(own.obstacle(&[thing(1)], true), beside, "there were more than are known");
    }

    #[test]
    fn on_a_hot_thing_no_write_knows_more_than_a_few_others() {
        let all = UnderWay::default();

        let many: Vec<Entered> = (0..500).map(|n| all.enter(id(n), vec![thing(1)])).collect();

        let writes = &all.all().writes[&thing(1)];
        assert_eq!(writes.len(), many.len());
        let most = writes.values().map(|one| one.before.len().max(one.after.len())).max();
        assert_eq!(most, Some(MET));
        // So many are looked at when the next one comes.
        assert!(writes.values().filter(|one| one.after.len() < MET).count() <= MET);
    }
}
