//! The calls of sessions that are under way, so that a client that cancels one is heard.
//!
//! `notifications/cancelled` (2025-03-26 to 2025-11-25) goes upstream as it came. It says nothing of
//! what happened: the upstream may ignore it, may have acted, may still answer (standards MCP-30). So
//! the call stays open, but nobody waits for it as long as for others, since most upstreams give no
//! answer to what was cancelled. The same holds for a session that its client ends. An answer that comes
//! all the same is one that its client does not look at.
//!
//! Limits: one place for each write that is under way, which the in-flight limit bounds.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::jsonrpc::Id;
use super::sessions::SessionKey;

/// See the module's page.
#[derive(Debug, Default)]
pub struct Flights {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    calls: HashMap<SessionKey, Vec<Call>>,
    next: u64,
}

#[derive(Debug)]
struct Call {
    id: Id,
    number: u64,
    cancelled: watch::Sender<bool>,
    gone: Arc<AtomicBool>,
}

/// One call; it is under way until this is dropped.
#[derive(Debug)]
pub struct Flight {
    inner: Arc<Mutex<Inner>>,
    session: SessionKey,
    number: u64,
    cancelled: watch::Receiver<bool>,
}

impl Flights {
    /// A call is under way; `gone` is set when nobody looks at its answer any more.
    pub fn begin(&self, session: SessionKey, id: Id, gone: Arc<AtomicBool>) -> Flight {
        let (sender, cancelled) = watch::channel(false);
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.next = inner.next.wrapping_add(1);
        let number = inner.next;
        let call = Call { id, number, cancelled: sender, gone };
        inner.calls.entry(session.clone()).or_default().push(call);
        drop(inner);
        Flight { inner: Arc::clone(&self.inner), session, number, cancelled }
    }

    /// Whether a request of a session is under way: its answer comes where it was made.
    pub fn has(&self, session: &SessionKey, id: &Id) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.calls.get(session).is_some_and(|calls| calls.iter().any(|call| call.id == *id))
    }

    /// The client is about to cancel a request of its session: it looks at no answer any more. Said
    /// before the upstream hears of it, which may answer before its word to us is through.
    pub fn leave(&self, session: &SessionKey, id: &Id) {
        self.each(session, |call| call.id == *id, |_| {});
    }

    /// The client has cancelled a request of its session, whatever it is.
    pub fn cancel(&self, session: &SessionKey, id: &Id) {
        self.each(session, |call| call.id == *id, Call::cancel);
    }

    /// The session is over.
    pub fn end(&self, session: &SessionKey) {
        self.each(session, |_| true, Call::cancel);
    }

    /// Whatever becomes of these calls, their client looks at no answer any more.
    fn each(&self, session: &SessionKey, is_meant: impl Fn(&Call) -> bool, what: impl Fn(&Call)) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        for call in inner.calls.get(session).into_iter().flatten().filter(|call| is_meant(call)) {
            call.gone.store(true, Ordering::Release);
            what(call);
        }
    }
}

impl Call {
    fn cancel(&self) {
        self.cancelled.send_replace(true);
    }
}

impl Flight {
    /// Ends when the call was cancelled and this time has passed since; never if it is not cancelled.
    pub fn over(
        &self,
        grace: Duration,
    ) -> impl Future<Output = ()> + Send + Sync + 'static + use<> {
        let mut cancelled = self.cancelled.clone();
        async move {
            if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(grace).await;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = inner.calls.get_mut(&self.session) {
            calls.retain(|call| call.number != self.number);
            if calls.is_empty() {
                inner.calls.remove(&self.session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(token: &str) -> Id {
        Id::parse(token).unwrap()
    }

    #[tokio::test]
    async fn mcp_30_only_the_call_that_is_meant_is_given_up() {
        let flights = Flights::default();
        let (own, other) = (SessionKey::new("p", "s"), SessionKey::new("q", "s"));
        let gone = Arc::new(AtomicBool::new(false));
        let meant = flights.begin(own.clone(), id("1"), Arc::clone(&gone));
        let text = flights.begin(own.clone(), id("\"1\""), Arc::default());
        let foreign = flights.begin(other.clone(), id("1"), Arc::default());
        let is_cancelled = |flight: &Flight| *flight.cancelled.borrow();

        flights.leave(&own, &id("1"));
        assert!(gone.load(Ordering::Acquire) && !is_cancelled(&meant));
        flights.cancel(&own, &id("1"));
        flights.cancel(&own, &id("7"));
        assert!(is_cancelled(&meant) && gone.load(Ordering::Acquire));
        assert!(!is_cancelled(&text));
        meant.over(Duration::ZERO).await;
        flights.end(&own);
        assert!(is_cancelled(&text));
        assert!(!is_cancelled(&foreign));

        drop((meant, text, foreign));
        assert!(flights.inner.lock().unwrap().calls.is_empty());
    }
}
