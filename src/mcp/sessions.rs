//! What the clients of sessions can do: seen at `initialize`, used by the calls that come after
//! (standards 1.9).
//!
//! A session is known by its principal and its id together. What was not seen, or was forgotten, can
//! do nothing: a client is never sent a request that it did not declare.
//!
//! Limits: [`MAX_SESSIONS`]; the one unused longest goes first.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::request::Elicitation;

/// The sessions that are remembered.
pub const MAX_SESSIONS: usize = 4096;

/// The header that names a session.
pub const SESSION: &str = "mcp-session-id";

/// A session of a principal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey(String);

impl SessionKey {
    /// The session with this id; empty where the upstream gives none.
    pub fn new(principal: &str, session: &str) -> Self {
        Self(format!("{principal}\0{session}"))
    }
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Sessions {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    known: HashMap<SessionKey, (Elicitation, u64)>,
    tick: u64,
}

impl Sessions {
    /// A session began with these capabilities.
    pub fn learn(&self, key: SessionKey, elicitation: Elicitation) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.tick = inner.tick.wrapping_add(1);
        if inner.known.len() >= MAX_SESSIONS && !inner.known.contains_key(&key) {
            let oldest = inner.known.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                inner.known.remove(&oldest);
            }
        }
        let used = inner.tick;
        inner.known.insert(key, (elicitation, used));
    }

    /// What the client of a session can do.
    pub fn elicitation(&self, key: &SessionKey) -> Elicitation {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.tick = inner.tick.wrapping_add(1);
        let now = inner.tick;
        match inner.known.get_mut(key) {
            None => Elicitation::default(),
            Some((elicitation, used)) => {
                *used = now;
                *elicitation
            }
        }
    }

    /// The session is over.
    pub fn forget(&self, key: &SessionKey) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).known.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcp_36_a_session_that_was_not_seen_can_do_nothing() {
        let sessions = Sessions::default();
        let form = Elicitation { form: true, url: false };
        sessions.learn(SessionKey::new("a", "s"), form);

        assert_eq!(sessions.elicitation(&SessionKey::new("a", "s")), form);
        assert_eq!(sessions.elicitation(&SessionKey::new("b", "s")), Elicitation::default());
        sessions.forget(&SessionKey::new("a", "s"));
        assert_eq!(sessions.elicitation(&SessionKey::new("a", "s")), Elicitation::default());
    }

    #[test]
    fn the_table_is_bounded() {
        let sessions = Sessions::default();
        let form = Elicitation { form: true, url: false };
        for number in 0..=MAX_SESSIONS {
            sessions.learn(SessionKey::new("a", &number.to_string()), form);
            sessions.elicitation(&SessionKey::new("a", "0"));
        }
        assert_eq!(sessions.elicitation(&SessionKey::new("a", "0")), form);
        assert_eq!(sessions.elicitation(&SessionKey::new("a", "1")), Elicitation::default());
    }
}
