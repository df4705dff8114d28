//! Answers that come elsewhere than where the call was made.
//!
//! An upstream may end the stream of a call early, after an event with an id; the client fetches the
//! rest with a GET (2025-11-25, standards MCP-20). Or it answers with the handle of a task, and the
//! result comes with a later `tasks/get`, `tasks/result` or notification (MCP-42). The entry stays open
//! meanwhile, and how it is settled is kept here. An answer that was settled stays known for a while,
//! so that an event which is sent again shows the same report.
//!
//! All these tasks are the upstream's. None of ours stands for a call that waits for a person: hardly a
//! client could take one (MCP-44), and a call that is refused until then holds nothing here.
//!
//! Limits: [`MAX_SESSIONS`] sessions with [`MAX_ANSWERS`] answers each, [`MAX_TASKS`] tasks. What has
//! to go is settled as unknown, and so is what nobody asks for in time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::contract::key::EntryId;
use crate::mcp::answer::Answer;
use crate::mcp::jsonrpc::Id;
use crate::mcp::sessions::SessionKey;

/// Sessions with answers to come, or to come again.
pub const MAX_SESSIONS: usize = 1024;

/// Answers of one session.
pub const MAX_ANSWERS: usize = 128;

/// Tasks that are under way, and calls that wait for their next round.
pub const MAX_TASKS: usize = 8192;

/// How an answer that does not come ends a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The task was cancelled; its work may go on.
    Cancelled,
    /// The task is done, and its result was not seen.
    Completed,
    /// Nobody came for it in time.
    Expired,
    /// The task failed.
    Failed,
}

/// Settles a call whose next round did not come.
pub type AtEnd = Box<dyn FnOnce() + Send + Sync>;

/// An open call.
pub struct Parked {
    /// Settles the answer, and gives the report.
    pub at_answer: Box<dyn FnOnce(&Answer) -> String + Send + Sync>,
    /// Settles a call without one, and gives the report.
    pub at_end: Box<dyn FnOnce(Ending) -> String + Send + Sync>,
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parked(..)")
    }
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Elsewhere {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    answers: HashMap<SessionKey, VecDeque<(Id, Slot)>>,
    /// Sessions in the order in which they first had an answer.
    order: VecDeque<SessionKey>,
    tasks: HashMap<TaskKey, Slot>,
    entries: HashMap<EntryId, (u32, AtEnd)>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("answers", &self.answers.len()).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Slot {
    /// More than one call had this id.
    Ambiguous,
    Parked(Parked),
    /// The report of an answer that was settled.
    Told(String),
}

/// A task of a principal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaskKey(String);

impl TaskKey {
    /// The task with this id.
    pub fn new(principal: &str, task: &str) -> Self {
        Self(format!("{principal}\0{task}"))
    }
}

impl Elsewhere {
    /// Keeps a call open whose stream ended before its answer.
    pub fn park(&self, session: SessionKey, id: Id, parked: Parked) {
        self.put(session, id, Slot::Parked(parked));
    }

    /// Remembers the report of an answer on a stream that can be sent again.
    pub fn tell(&self, session: SessionKey, id: Id, report: String) {
        self.put(session, id, Slot::Told(report));
    }

    fn put(&self, session: SessionKey, id: Id, slot: Slot) {
        let mut dropped = Vec::new();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.answers.contains_key(&session) {
            if inner.order.len() >= MAX_SESSIONS
                && let Some(oldest) = inner.order.pop_front()
            {
                dropped.extend(inner.answers.remove(&oldest).into_iter().flatten());
            }
            inner.order.push_back(session.clone());
        }
        let slots = inner.answers.entry(session).or_default();
        // An id that is used again, against the protocol: nobody can tell whose an answer is that comes
        // elsewhere, so neither call gets one.
        let slot = match slots.iter().position(|(known, _)| *known == id) {
            None => slot,
            Some(twin) => {
                dropped.extend(slots.remove(twin));
                dropped.push((id.clone(), slot));
                Slot::Ambiguous
            }
        };
        if slots.len() >= MAX_ANSWERS {
            dropped.extend(slots.pop_front());
        }
        slots.push_back((id, slot));
        drop(inner);
        // Outside of the lock: to settle is to call the ledger.
        for (_, slot) in dropped {
            end(slot);
        }
    }

    /// An answer came: settles it if its call is open, and gives the report that belongs into it;
    /// `None` for an answer of which nothing is known.
    pub fn answer(&self, session: &SessionKey, id: &Id, answer: &Answer) -> Option<String> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = inner.answers.get_mut(session)?;
        let position = slots.iter().position(|(known, _)| known == id)?;
        let (id, slot) = slots.remove(position)?;
        drop(inner);
        let report = match slot {
            Slot::Ambiguous => {
                self.put(session.clone(), id, Slot::Ambiguous);
                return None;
            }
            Slot::Parked(parked) => (parked.at_answer)(answer),
            Slot::Told(report) => report,
        };
        self.tell(session.clone(), id, report.clone());
        Some(report)
    }

    /// The session is over: nobody can come for its answers any more.
    pub fn end_session(&self, session: &SessionKey) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = inner.answers.remove(session);
        inner.order.retain(|known| known != session);
        drop(inner);
        for (_, slot) in dropped.into_iter().flatten() {
            end(slot);
        }
    }

    /// Settles a parked call that nobody came for.
    pub fn expire(&self, session: &SessionKey, id: &Id) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slots) = inner.answers.get_mut(session) else { return };
        let is_it = |(known, slot): &(Id, Slot)| known == id && matches!(slot, Slot::Parked(_));
        let Some(position) = slots.iter().position(is_it) else { return };
        let slot = slots.remove(position);
        drop(inner);
        if let Some((id, Slot::Parked(parked))) = slot {
            // An answer that comes all the same shows what its call was settled as.
            self.tell(session.clone(), id, (parked.at_end)(Ending::Expired));
        }
    }

    /// Keeps a call open that a task goes on with.
    pub fn park_task(&self, task: TaskKey, parked: Parked) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.tasks.len() >= MAX_TASKS {
            inner.tasks.retain(|_, slot| matches!(slot, Slot::Parked(_)));
        }
        let is_full = inner.tasks.len() >= MAX_TASKS && !inner.tasks.contains_key(&task);
        let slot = Slot::Parked(parked);
        let dropped = if is_full { Some(slot) } else { inner.tasks.insert(task, slot) };
        drop(inner);
        if let Some(slot) = dropped {
            end(slot);
        }
    }

    /// The result of a task came: settles its call, and gives the report that belongs into it.
    pub fn task_answer(&self, task: &TaskKey, answer: &Answer) -> Option<String> {
        let slot = self.take_task(task)?;
        let report = match slot {
            Slot::Ambiguous => return None,
            Slot::Parked(parked) => (parked.at_answer)(answer),
            Slot::Told(report) => report,
        };
        self.tell_task(task, report.clone());
        Some(report)
    }

    /// A task ended without a result that was seen; gives the report of its call, which its answer
    /// shows if it comes all the same.
    pub fn end_task(&self, task: &TaskKey, ending: Ending) -> Option<String> {
        let report = match self.take_task(task)? {
            Slot::Ambiguous => return None,
            Slot::Parked(parked) => (parked.at_end)(ending),
            Slot::Told(report) => report,
        };
        self.tell_task(task, report.clone());
        Some(report)
    }

    fn tell_task(&self, task: &TaskKey, report: String) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.tasks.insert(task.clone(), Slot::Told(report));
    }

    /// Whether a task's call is open.
    pub fn has_open_task(&self, task: &TaskKey) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(inner.tasks.get(task), Some(Slot::Parked(_)))
    }

    fn take_task(&self, task: &TaskKey) -> Option<Slot> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).tasks.remove(task)
    }

    /// Keeps a call open that waits for its client's next round. `at_end` settles it.
    pub fn park_entry(&self, entry: EntryId, attempt: u32, at_end: AtEnd) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = inner.entries.len() >= MAX_TASKS && !inner.entries.contains_key(&entry);
        if is_full {
            drop(inner);
            at_end();
        } else {
            // One of an earlier round is void: this round's settles the entry.
            let _void = inner.entries.insert(entry, (attempt, at_end));
        }
    }

    /// The next round of a waiting call has come.
    pub fn forget_entry(&self, entry: EntryId) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).entries.remove(&entry);
    }

    /// The time of a waiting call is over; gives what settles it, if this attempt still waits.
    pub fn expire_entry(&self, entry: EntryId, attempt: u32) -> Option<AtEnd> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.entries.get(&entry)?.0 != attempt {
            return None;
        }
        inner.entries.remove(&entry).map(|(_, at_end)| at_end)
    }
}

fn end(slot: Slot) {
    match slot {
        Slot::Parked(parked) => drop((parked.at_end)(Ending::Expired)),
        Slot::Ambiguous | Slot::Told(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn id(token: &str) -> Id {
        Id::parse(token).unwrap()
    }

    fn parked(ends: &Arc<AtomicUsize>) -> Parked {
        let ends = Arc::clone(ends);
        Parked {
            at_answer: Box::new(|_| "report".to_owned()),
            at_end: Box::new(move |_| {
                ends.fetch_add(1, Ordering::Relaxed);
                "ended".to_owned()
            }),
        }
    }

    fn told(elsewhere: &Elsewhere, session: &SessionKey, token: &str) -> Option<String> {
        let data = format!(r#"{{"jsonrpc":"2.0","id":{token},"result":{{}}}}"#);
        let answer = Answer::from_event(&data.into(), &id(token)).unwrap();
        elsewhere.answer(session, &id(token), &answer)
    }

    #[test]
    fn mcp_20_an_answer_is_settled_once_and_a_replay_shows_the_same_report() {
        let (elsewhere, ends) = (Elsewhere::default(), Arc::new(AtomicUsize::new(0)));
        let session = SessionKey::new("p", "s");
        elsewhere.park(session.clone(), id("7"), parked(&ends));

        assert!(told(&elsewhere, &session, "8").is_none());
        assert!(told(&elsewhere, &SessionKey::new("q", "s"), "7").is_none());
        assert_eq!(told(&elsewhere, &session, "7").unwrap(), "report");
        assert_eq!(told(&elsewhere, &session, "7").unwrap(), "report");
        elsewhere.expire(&session, &id("7"));
        assert_eq!(ends.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn mcp_7_an_id_that_is_used_twice_settles_neither_call_by_an_answer_elsewhere() {
        let (elsewhere, ends) = (Elsewhere::default(), Arc::new(AtomicUsize::new(0)));
        let session = SessionKey::new("p", "s");
        elsewhere.park(session.clone(), id("7"), parked(&ends));
        elsewhere.park(session.clone(), id("7"), parked(&ends));
        elsewhere.tell(session.clone(), id("8"), "of the first".to_owned());
        elsewhere.park(session.clone(), id("8"), parked(&ends));

        assert_eq!(ends.load(Ordering::Relaxed), 3);
        for token in ["7", "7", "8"] {
            assert_eq!(told(&elsewhere, &session, token), None);
        }
    }

    #[test]
    fn a_session_that_is_over_leaves_nothing_open() {
        let (elsewhere, ends) = (Elsewhere::default(), Arc::new(AtomicUsize::new(0)));
        let session = SessionKey::new("p", "s");
        elsewhere.park(session.clone(), id("7"), parked(&ends));

        elsewhere.end_session(&SessionKey::new("q", "s"));
        assert_eq!(ends.load(Ordering::Relaxed), 0);
        elsewhere.end_session(&session);
        assert_eq!(ends.load(Ordering::Relaxed), 1);
        assert_eq!(told(&elsewhere, &session, "7"), None);
    }

    #[test]
    fn what_has_to_go_is_settled() {
        let (elsewhere, ends) = (Elsewhere::default(), Arc::new(AtomicUsize::new(0)));
        for number in 0..=MAX_ANSWERS {
            let session = SessionKey::new("p", "s");
            elsewhere.park(session, id(&number.to_string()), parked(&ends));
        }
        assert_eq!(ends.load(Ordering::Relaxed), 1);
        elsewhere.expire(&SessionKey::new("p", "s"), &id("1"));
        assert_eq!(ends.load(Ordering::Relaxed), 2);
    }
}
