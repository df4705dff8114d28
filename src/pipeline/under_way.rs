//! The writes of this process that are under way, by what they change: so that a report does not offer the
//! undo of an update that another one overlapped.
//!
//! The ledger says the same from its rows whenever it is asked, of all processes. A report is written
//! together with the finish, between which nothing may be waited for, and so it asks here. A write stands
//! here from before the state that it replaces is read until it is finished.
//!
//! | the other write | stands in the way of the undo |
//! |---|---|
//! | came later | always |
//! | was there before | if the undo puts back what was read before |
//! | was rejected or not sent, by the time of the report | never |
//!
//! Not seen: writes of other sidecars, and one that its upstream answers later (`waiting`). A plan and a
//! replay see those.
//!
//! Limits: of each write the first eight others are known by name; when there were more, one that changed
//! nothing is not taken out again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::contract::key::EntryId;
use crate::contract::thing::Thing;
use crate::ledger::Obstacle;

/// How many others are kept of one write.
const MET: usize = 8;

/// See the module's page. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct UnderWay {
    writes: Arc<Mutex<HashMap<Thing, Vec<Standing>>>>,
}

/// A write that stands here.
#[derive(Debug)]
struct Standing {
    entry: EntryId,
    met: Vec<(EntryId, Came)>,
}

/// When another write came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    After,
    Before,
}

/// A write stands here for as long as this lives.
#[derive(Debug)]
pub struct Entered {
    under_way: UnderWay,
    entry: EntryId,
    things: Vec<Thing>,
}

impl UnderWay {
    /// Notes a write that is about to be made.
    pub fn enter(&self, entry: EntryId, things: Vec<Thing>) -> Entered {
        let mut writes = self.writes();
        for thing in &things {
            let standing = writes.entry(*thing).or_default();
            let mut met = Vec::new();
            for other in standing.iter_mut() {
                add(&mut met, other.entry, Came::Before);
                add(&mut other.met, entry, Came::After);
            }
            standing.push(Standing { entry, met });
        }
        drop(writes);
        Entered { under_way: self.clone(), entry, things }
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<Thing, Vec<Standing>>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(met: &mut Vec<(EntryId, Came)>, entry: EntryId, came: Came) {
    if met.len() < MET {
        met.push((entry, came));
    }
}

impl Entered {
    /// What the write changes, as far as that is known before it is made.
    pub fn things(&self) -> &[Thing] {
        &self.things
    }

    /// What overlapped this write on what its undo would change.
    pub fn obstacle(&self, undo: &[Thing], has_before: bool) -> Option<Obstacle> {
        let writes = self.under_way.writes();
        let mut found = None;
        for thing in undo {
            let standing = writes.get(thing).into_iter().flatten();
            let own = standing.filter(|standing| standing.entry == self.entry);
            for (other, came) in own.flat_map(|own| &own.met) {
                match came {
                    Came::After => return Some(Obstacle::After(*other)),
                    Came::Before if has_before => found = Some(Obstacle::Beside(*other)),
                    Came::Before => {}
                }
            }
        }
        found
    }

    /// This write changed nothing: it stood in nobody's way.
    pub fn changed_nothing(&self) {
        let mut writes = self.under_way.writes();
        for thing in &self.things {
            for other in writes.get_mut(thing).into_iter().flatten() {
                if other.met.len() < MET {
                    other.met.retain(|(entry, _)| *entry != self.entry);
                }
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut writes = self.under_way.writes();
        for thing in &self.things {
            if let Some(standing) = writes.get_mut(thing) {
                standing.retain(|standing| standing.entry != self.entry);
                if standing.is_empty() {
                    writes.remove(thing);
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
        assert!(all.writes().is_empty(), "nothing is left behind");
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
        assert_eq!(first.obstacle(&[thing(1)], true), Some(Obstacle::After(id(10))));
    }
}
