//! Answers that come elsewhere than where the call was made.
//!
//! An upstream may end the stream of a call early, after an event with an id; the client fetches the
//! rest with a GET (2025-11-25, standards MCP-20). Or it answers with the handle of a task, and the
//! result comes with a later `tasks/get`, `tasks/result` or notification (MCP-42). The entry stays open
//! meanwhile, and how it is settled is kept here. An answer that was settled stays known for a while,
//! so that an event which is sent again shows the same report.
//!
//! Limits: [`MAX_SESSIONS`] sessions with [`MAX_ANSWERS`] answers each, [`MAX_TASKS`] tasks. What has
//! to go is settled as unknown, and so is what nobody asks for in time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::mcp::answer::Answer;
use crate::mcp::jsonrpc::Id;
use crate::mcp::sessions::SessionKey;

/// Sessions with answers to come, or to come again.
pub const MAX_SESSIONS: usize = 1024;

/// Answers of one session.
pub const MAX_ANSWERS: usize = 128;

/// Tasks that are under way.
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

/// An open call.
pub struct Parked {
    /// Settles the answer, and gives the report.
    pub at_answer: Box<dyn FnOnce(&Answer) -> String + Send + Sync>,
    /// Settles a call without one.
    pub at_end: Box<dyn FnOnce(Ending) + Send + Sync>,
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

#[derive(Debug, Default)]
struct Inner {
    answers: HashMap<SessionKey, VecDeque<(Id, Slot)>>,
    /// Sessions in the order in which they first had an answer.
    order: VecDeque<SessionKey>,
    tasks: HashMap<TaskKey, Parked>,
}

#[derive(Debug)]
enum Slot {
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
            Slot::Parked(parked) => (parked.at_answer)(answer),
            Slot::Told(report) => report,
        };
        self.tell(session.clone(), id, report.clone());
        Some(report)
    }

    /// Settles a parked call that nobody came for.
    pub fn expire(&self, session: &SessionKey, id: &Id) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slots) = inner.answers.get_mut(session) else { return };
        let is_it = |(known, slot): &(Id, Slot)| known == id && matches!(slot, Slot::Parked(_));
        let Some(position) = slots.iter().position(is_it) else { return };
        let slot = slots.remove(position);
        drop(inner);
        if let Some((_, slot)) = slot {
            end(slot);
        }
    }

    /// Keeps a call open that a task goes on with.
    pub fn park_task(&self, task: TaskKey, parked: Parked) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = inner.tasks.len() >= MAX_TASKS && !inner.tasks.contains_key(&task);
        let dropped = if is_full { Some(parked) } else { inner.tasks.insert(task, parked) };
        drop(inner);
        if let Some(parked) = dropped {
            (parked.at_end)(Ending::Expired);
        }
    }

    /// Takes the call of a task out, to settle it.
    pub fn take_task(&self, task: &TaskKey) -> Option<Parked> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).tasks.remove(task)
    }
}

fn end(slot: Slot) {
    match slot {
        Slot::Parked(parked) => (parked.at_end)(Ending::Expired),
        Slot::Told(_) => {}
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
