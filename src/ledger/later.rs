//! Whether another entry stands in the way of an undo: a later one of the same thing, or one that
//! was under way at the same time.
//!
//! An entry is filed under the [things](crate::contract::thing) that its call changes, and keeps
//! those that its undo would change. A store finds by its index who else is filed there, and the
//! pipeline knows who is under way; what that means is decided here, once for all.
//!
//! - One that began later stands in the way if its write was or may have been sent, whoever made
//!   it. So does one that began earlier and made a further attempt since.
//! - One that was taken back since does not, nor does the call that took it back: together they
//!   left what was there.
//! - One that began earlier and was not over when this one began does too, if the undo puts back
//!   what was read before: that may lack the other's effect, and to put it back would take that
//!   away.
//!
//! Limits: of the entries of a thing that came later [`MAX_LATER`](super::MAX_LATER) are looked at.
//! If there are more and none of those stands in the way, that is told as an obstacle too
//! ([`Obstacle::Beyond`]). Of those that came earlier as many are, the newest; nobody looks for one
//! that was open, or attempted again, from before them. Entries of a version before things were
//! noted are neither found nor answered for ([`Obstacle::Untold`]).

use std::collections::{HashMap, HashSet};

use super::Obstacle;
use super::entry::State;
use crate::contract::key::EntryId;

/// The entry whose undo is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Its place in the order of beginning.
    pub number: i64,
    /// The step in which its newest attempt began.
    pub began: i64,
    /// Whether the state before it was read.
    pub has_before: bool,
    /// Whether more came later than were looked at.
    pub is_cut: bool,
}

/// Another entry of the thing that its undo would change.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Its id.
    pub entry: EntryId,
    /// Its place in the order of beginning.
    pub number: i64,
    /// What it is.
    pub state: State,
    /// Its newest attempt, from 1.
    pub attempt: u32,
    /// The step that says what became of it.
    pub finish: i64,
    /// Its newest step, if that settled it.
    pub settled: Option<i64>,
    /// The call that took it back.
    pub undone_by: Option<EntryId>,
}

/// What a plan that takes entries back does with one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    /// It is left as it is: in the way of what came before it.
    Left(EntryId),
    /// It is taken back if nothing stands in the way of that.
    Taken(EntryId),
    /// It was taken back before.
    Undone(EntryId),
}

impl Planned {
    /// Which entry.
    pub fn entry(self) -> EntryId {
        match self {
            Self::Left(entry) | Self::Taken(entry) | Self::Undone(entry) => entry,
        }
    }
}

/// What stands in the way of what a plan, newest first, would take back. Newer writes of the plan
/// are taken back before, and the calls that do it are no obstacles; those that are not taken back
/// are.
#[derive(Debug)]
pub(super) struct Course {
    beside: HashSet<EntryId>,
    found: HashMap<EntryId, Obstacle>,
}

impl Course {
    /// Of the whole plan.
    pub(super) fn of(plan: &[Planned]) -> Self {
        let beside = plan.iter().map(|planned| planned.entry()).collect();
        Self { beside, found: HashMap::new() }
    }

    /// Goes through the next part of the plan; `obstacle` says of one entry what stands in its way,
    /// but for those that are passed over.
    pub(super) fn go<E>(
        &mut self,
        part: &[Planned],
        mut obstacle: impl FnMut(EntryId, &HashSet<EntryId>) -> Result<Option<Obstacle>, E>,
    ) -> Result<(), E> {
        for planned in part {
            match planned {
                Planned::Left(entry) => {
                    self.beside.remove(entry);
                }
                Planned::Taken(entry) => {
                    if let Some(obstacle) = obstacle(*entry, &self.beside)? {
                        self.found.insert(*entry, obstacle);
                        self.beside.remove(entry);
                    }
                }
                Planned::Undone(_) => {}
            }
        }
        Ok(())
    }

    /// What was found.
    pub(super) fn end(self) -> HashMap<EntryId, Obstacle> {
        self.found
    }
}

/// What stands in the way of the subject's undo. Candidates are entries of its things: `later`
/// began after it, and `earlier`, which is only asked if none of those stands in the way, before
/// it. Those of `beside` are passed over.
///
/// # Errors
///
/// Those of `earlier`.
pub fn obstacle<E>(
    subject: Subject,
    later: &[Candidate],
    earlier: impl FnOnce() -> Result<Vec<Candidate>, E>,
    beside: &HashSet<EntryId>,
) -> Result<Option<Obstacle>, E> {
    // What took a later one back left the thing as that one had found it.
    let pairs = later
        .iter()
        .filter(|other| other.state == State::Undone)
        .filter_map(|other| Some((other.entry, other.undone_by?)));
    let backs = backs(pairs);
    let counts = |other: &&Candidate| {
        may_have_changed(other.state)
            && !backs.contains(&other.entry)
            && !beside.contains(&other.entry)
    };
    let first = later.iter().filter(counts).min_by_key(|other| other.number);
    if let Some(first) = first {
        return Ok(Some(Obstacle::After(first.entry)));
    }
    if subject.is_cut {
        return Ok(Some(Obstacle::Beyond));
    }
    let earlier = earlier()?;
    let is_again = |other: &&Candidate| {
        other.attempt > 1 && (other.state.is_open() || other.finish > subject.began)
    };
    let again = earlier.iter().filter(is_again).filter(counts).min_by_key(|other| other.number);
    if let Some(again) = again {
        return Ok(Some(Obstacle::After(again.entry)));
    }
    let overlapping = earlier.iter().filter(|_| subject.has_before).find(|other| {
        let is_over = !other.state.is_open()
            && other.finish <= subject.began
            && other.settled.is_none_or(|settled| settled <= subject.began);
        may_have_changed(other.state) && !is_over
    });
    Ok(overlapping.map(|other| Obstacle::Beside(other.entry)))
}

/// The calls that took entries back, out of pairs of an entry and the call that took it back. One that
/// took such a call back is none: it made again what that one had taken back.
pub fn backs(pairs: impl Iterator<Item = (EntryId, EntryId)>) -> HashSet<EntryId> {
    let targets: HashMap<EntryId, EntryId> = pairs.map(|(entry, by)| (by, entry)).collect();
    let is_back = |by: &EntryId| {
        let mut steps = 0_usize;
        let mut at = by;
        // No longer than all of them, whatever the ledger holds.
        while let Some(target) = targets.get(at).filter(|_| steps <= targets.len()) {
            steps = steps.saturating_add(1);
            at = target;
        }
        steps % 2 == 1
    };
    targets.keys().filter(|by| is_back(by)).copied().collect()
}

/// Whether a write in this state was or may have been sent, and not taken back.
fn may_have_changed(state: State) -> bool {
    match state {
        State::Accepted | State::Begun | State::Unknown | State::Waiting => true,
        State::Rejected | State::Undone => false,
    }
}

/// The keyed hashes of things as they stand with an entry: one behind the other. `None`: there are
/// none.
pub(super) fn filed<const N: usize>(hashes: impl Iterator<Item = [u8; N]>) -> Option<Vec<u8>> {
    let bytes: Vec<u8> = hashes.flatten().collect();
    (!bytes.is_empty()).then_some(bytes)
}

/// Reads what [`filed`] wrote.
pub(super) fn of_filed<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}

/// What stands with a finish: 1 if the first of the hashes is of the thing that the upstream's id
/// names, else 0; then the hashes, that one before those of what the undo would change.
pub(super) fn told<const N: usize>(
    made: Option<[u8; N]>,
    undo: impl Iterator<Item = [u8; N]>,
) -> Vec<u8> {
    let mut bytes = vec![u8::from(made.is_some())];
    bytes.extend(made.into_iter().chain(undo).flatten());
    bytes
}

/// All hashes of what [`told`] wrote.
pub(super) fn of_told<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    of_filed(bytes.split_first().map_or(&[], |(_, hashes)| hashes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: i64) -> EntryId {
        EntryId::from_parts(u64::try_from(number).unwrap(), &[0; 10])
    }

    fn other(number: i64, state: State) -> Candidate {
        Candidate {
            entry: id(number),
            number,
            state,
            attempt: 1,
            finish: number * 10 + 1,
            settled: None,
            undone_by: None,
        }
    }

    /// Of the entry 5, which began in step 50.
    fn found(has_before: bool, candidates: &[Candidate], beside: &[i64]) -> Option<Obstacle> {
        let subject = Subject { number: 5, began: 50, has_before, is_cut: false };
        let (later, earlier): (Vec<_>, Vec<_>) =
            candidates.iter().partition(|other| other.number > subject.number);
        let beside = beside.iter().copied().map(id).collect();
        obstacle::<()>(subject, &later, || Ok(earlier), &beside).unwrap()
    }

    #[test]
    fn what_came_later_and_may_have_changed_the_thing_stands_in_the_way() {
        use State::{Accepted, Begun, Rejected, Undone, Unknown, Waiting};
        for state in [Accepted, Begun, Unknown, Waiting] {
            let after = Some(Obstacle::After(id(6)));
            assert_eq!(found(false, &[other(6, state)], &[]), after, "{state:?}");
            assert_eq!(found(false, &[other(6, state)], &[6]), None);
        }
        for state in [Rejected, Undone] {
            assert_eq!(found(false, &[other(6, state)], &[]), None, "{state:?}");
        }
        let both = [other(8, Accepted), other(6, Accepted)];
        assert_eq!(found(false, &both, &[]), Some(Obstacle::After(id(6))), "the first of them");
        assert_eq!(found(false, &both, &[6]), Some(Obstacle::After(id(8))));
        assert_eq!(found(true, &[other(4, Accepted)], &[]), None, "it was over");
        // A further attempt came later, though its entry did not.
        let again = Candidate { attempt: 2, finish: 70, ..other(4, Accepted) };
        assert_eq!(found(false, &[again], &[]), Some(Obstacle::After(id(4))));
        assert_eq!(found(false, &[Candidate { finish: 41, ..again }], &[]), None);
    }

    #[test]
    fn what_was_taken_back_is_none_and_what_took_it_back_neither() {
        let undone = Candidate { undone_by: Some(id(8)), ..other(6, State::Undone) };
        let back = other(8, State::Accepted);
        assert_eq!(found(true, &[back, undone], &[]), None);
        let third = other(9, State::Accepted);
        assert_eq!(found(true, &[third, back, undone], &[]), Some(Obstacle::After(id(9))));
        // What took the taker back made it again.
        let taken = Candidate { undone_by: Some(id(9)), ..other(8, State::Undone) };
        let again = other(9, State::Accepted);
        assert_eq!(found(true, &[again, taken, undone], &[]), Some(Obstacle::After(id(9))));
        // What took an earlier one back overwrote this one.
        let earlier = Candidate { undone_by: Some(id(8)), ..other(4, State::Undone) };
        assert_eq!(found(true, &[back, earlier], &[]), Some(Obstacle::After(id(8))));
    }

    #[test]
    fn what_was_under_way_stands_in_the_way_of_what_was_read_before() {
        let until = |finish| Candidate { finish, ..other(4, State::Accepted) };
        assert_eq!(found(true, &[until(51)], &[]), Some(Obstacle::Beside(id(4))));
        assert_eq!(found(true, &[until(49)], &[]), None);
        assert_eq!(found(false, &[until(51)], &[]), None, "nothing was read before");
        let open = Candidate { finish: 40, ..other(4, State::Unknown) };
        assert_eq!(found(true, &[open], &[]), Some(Obstacle::Beside(id(4))));
        let settled = Candidate { settled: Some(60), ..until(41) };
        assert_eq!(found(true, &[settled], &[]), Some(Obstacle::Beside(id(4))));
        assert_eq!(found(true, &[Candidate { settled: Some(45), ..until(41) }], &[]), None);
    }

    #[test]
    fn what_nobody_looked_at_is_not_taken_for_nothing() {
        let cut = |candidates: &[Candidate]| {
            let subject = Subject { number: 5, began: 50, has_before: false, is_cut: true };
            obstacle(subject, candidates, || Err("nobody needs these"), &HashSet::new())
        };
        assert_eq!(cut(&[other(6, State::Undone)]), Ok(Some(Obstacle::Beyond)));
        assert_eq!(cut(&[other(6, State::Accepted)]), Ok(Some(Obstacle::After(id(6)))));
    }

    #[test]
    fn a_plan_passes_over_what_it_takes_back_and_no_more() {
        let plan = [
            Planned::Left(id(9)),
            Planned::Taken(id(8)),
            Planned::Undone(id(7)),
            Planned::Taken(id(6)),
            Planned::Taken(id(5)),
        ];
        let mut asked = Vec::new();

        let mut course = Course::of(&plan);
        for part in plan.chunks(2) {
            let gone = course.go::<()>(part, |entry, beside| {
                let mut beside: Vec<EntryId> = beside.iter().copied().collect();
                beside.sort_unstable();
                asked.push((entry, beside));
                Ok((entry == id(8)).then_some(Obstacle::After(id(9))))
            });
            assert_eq!(gone, Ok(()));
        }

        assert_eq!(course.end(), HashMap::from([(id(8), Obstacle::After(id(9)))]));
        let beside = |of: &[i64]| of.iter().copied().map(id).collect::<Vec<_>>();
        let expected = [
            (id(8), beside(&[5, 6, 7, 8])),
            (id(6), beside(&[5, 6, 7])),
            (id(5), beside(&[5, 6, 7])),
        ];
        assert_eq!(asked, expected);
    }

    #[test]
    fn hashes_read_as_they_were_written() {
        assert_eq!(filed::<2>(std::iter::empty()), None);
        let bytes = filed([[1, 2], [3, 4]].into_iter()).unwrap();
        assert_eq!(of_filed::<2>(&bytes).collect::<Vec<_>>(), [[1, 2], [3, 4]]);
        for (first, undo) in [(None, vec![]), (None, vec![[1, 2]]), (Some([9, 9]), vec![[1, 2]])] {
            let bytes = told(first, undo.iter().copied());
            let all: Vec<[u8; 2]> = first.into_iter().chain(undo).collect();
            assert_eq!(of_told::<2>(&bytes).collect::<Vec<_>>(), all);
        }
        assert_eq!(of_told::<2>(&[]).count(), 0);
    }
}
