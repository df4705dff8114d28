//! The client sessions that we hold with an MCP upstream for callers that do not speak MCP.
//!
//! One for each credential, never shared: what an upstream ties to a session (what was listed, what
//! was subscribed, who it is) stays with one caller. A session that the upstream forgot is made anew.
//!
//! Limits: [`MAX_CLIENTS`]; the one unused longest goes first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Era;

/// The sessions that are kept.
pub const MAX_CLIENTS: usize = 1024;

/// A session of ours, or what takes its place in an era without sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// What the upstream speaks.
    pub era: Era,
    /// The revision.
    pub version: String,
    /// The session's id, where the upstream gave one.
    pub session: Option<String>,
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Clients {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    known: HashMap<Arc<str>, (Arc<Client>, u64)>,
    tick: u64,
}

impl Clients {
    /// The session of a principal.
    pub fn find(&self, principal: &str) -> Option<Arc<Client>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.tick = inner.tick.wrapping_add(1);
        let now = inner.tick;
        let (client, used) = inner.known.get_mut(principal)?;
        *used = now;
        Some(Arc::clone(client))
    }

    /// A session was made.
    pub fn put(&self, principal: Arc<str>, client: Client) -> Arc<Client> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.tick = inner.tick.wrapping_add(1);
        if inner.known.len() >= MAX_CLIENTS && !inner.known.contains_key(&principal) {
            let oldest = inner.known.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(name, _)| Arc::clone(name)) {
                inner.known.remove(&oldest);
            }
        }
        let client = Arc::new(client);
        let used = inner.tick;
        inner.known.insert(principal, (Arc::clone(&client), used));
        client
    }

    /// The upstream does not know this session any more. One that was made since stays.
    pub fn forget(&self, principal: &str, client: &Arc<Client>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.known.get(principal).is_some_and(|(known, _)| Arc::ptr_eq(known, client)) {
            inner.known.remove(principal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(session: &str) -> Client {
        Client { era: Era::Legacy, version: "v".to_owned(), session: Some(session.to_owned()) }
    }

    #[test]
    fn a_session_is_of_one_principal_and_a_newer_one_is_not_forgotten() {
        let clients = Clients::default();
        let first = clients.put("a".into(), client("1"));

        assert_eq!(clients.find("b"), None);
        assert_eq!(clients.find("a").as_deref(), Some(&client("1")));
        clients.put("a".into(), client("2"));
        clients.forget("a", &first);
        assert_eq!(clients.find("a").as_deref(), Some(&client("2")));
    }
}
