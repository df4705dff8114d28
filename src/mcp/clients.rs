//! The client sessions that we hold with an MCP upstream for callers that do not speak MCP.
//!
//! One for each credential, never shared: what an upstream ties to a session (what was listed, what
//! was subscribed, who it is) stays with one caller. A session that the upstream forgot is made anew,
//! and one that rests too long is ended.
//!
//! Limits: [`MAX_CLIENTS`]; the one unused longest goes first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, RwLock};

use super::Era;

/// The sessions that are kept.
pub const MAX_CLIENTS: usize = 1024;

/// A session of ours, or what takes its place in an era without sessions.
#[derive(Debug)]
pub struct Client {
    /// What the upstream speaks.
    pub era: Era,
    /// The revision.
    pub version: String,
    /// The session's id, where the upstream gave one.
    pub session: Option<String>,
    /// Held for reading by every call of the session: it is ended under none.
    pub busy: Arc<RwLock<()>>,
    /// Told when the session is not kept any more.
    pub gone: Notify,
}

impl Client {
    /// What a session without an id is: whatever the era, nothing is to be ended.
    pub fn new(era: Era, version: &str) -> Self {
        Self {
            era,
            version: version.to_owned(),
            session: None,
            busy: Arc::default(),
            gone: Notify::new(),
        }
    }
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Clients {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    known: HashMap<Arc<str>, (Arc<Client>, u64, Instant)>,
    tick: u64,
}

impl Clients {
    /// The session of a principal.
    pub fn find(&self, principal: &str, at: Instant) -> Option<Arc<Client>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.tick = inner.tick.wrapping_add(1);
        let now = inner.tick;
        let (client, used, used_at) = inner.known.get_mut(principal)?;
        (*used, *used_at) = (now, at);
        Some(Arc::clone(client))
    }

    /// A session was made.
    pub fn put(&self, principal: Arc<str>, client: Client, at: Instant) -> Arc<Client> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.tick = inner.tick.wrapping_add(1);
        if inner.known.len() >= MAX_CLIENTS && !inner.known.contains_key(&principal) {
            let oldest = inner.known.iter().min_by_key(|(_, (_, used, _))| *used);
            if let Some(oldest) = oldest.map(|(name, _)| Arc::clone(name))
                && let Some((client, ..)) = inner.known.remove(&oldest)
            {
                client.gone.notify_one();
            }
        }
        let client = Arc::new(client);
        let used = inner.tick;
        if let Some((older, ..)) = inner.known.insert(principal, (Arc::clone(&client), used, at)) {
            older.gone.notify_one();
        }
        client
    }

    /// The upstream does not know this session any more. One that was made since stays.
    pub fn forget(&self, principal: &str, client: &Arc<Client>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.known.get(principal).is_some_and(|(known, ..)| Arc::ptr_eq(known, client)) {
            inner.known.remove(principal);
            client.gone.notify_one();
        }
    }

    /// Whether this is still the principal's session.
    pub fn keeps(&self, principal: &str, client: &Arc<Client>) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.known.get(principal).is_some_and(|(known, ..)| Arc::ptr_eq(known, client))
    }

    /// How long a session may rest on before it is ended; `None` if it is due, or is not kept any more.
    pub fn rest(
        &self,
        principal: &str,
        client: &Arc<Client>,
        at: Instant,
        limit: Duration,
    ) -> Option<Duration> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, _, used_at) = inner.known.get(principal)?;
        if !Arc::ptr_eq(known, client) {
            return None;
        }
        let left = limit.saturating_sub(at.saturating_duration_since(*used_at));
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(session: &str) -> Client {
        Client { session: Some(session.to_owned()), ..Client::new(Era::Legacy, "v") }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "only the distance between two times counts")]
    fn a_session_is_of_one_principal_and_a_newer_one_is_not_forgotten() {
        let clients = Clients::default();
        let now = Instant::now();
        let session = |principal| clients.find(principal, now)?.session.clone();
        let first = clients.put("a".into(), client("1"), now);

        assert_eq!(session("b"), None);
        assert_eq!(session("a").as_deref(), Some("1"));
        let second = clients.put("a".into(), client("2"), now);
        clients.forget("a", &first);
        assert_eq!(session("a").as_deref(), Some("2"));

        let limit = Duration::from_secs(10);
        let later = now + Duration::from_secs(4);
        assert_eq!(clients.rest("a", &second, later, limit), Some(Duration::from_secs(6)));
        assert_eq!(clients.rest("a", &second, now + limit, limit), None);
        assert_eq!(clients.rest("a", &first, later, limit), None);
    }
}
