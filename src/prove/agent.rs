//! The agents of [`prove`](super): each makes a call until it knows what became of it, as agents do.
//!
//! Some calls carry a key of the agent's own; the others leave the sidecar to recognise a repeat by what
//! it says. An agent never confirms a second effect: a challenge that names an earlier entry is
//! answered by asking again later.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, header};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::sidecar::Sidecar;
use super::{AGENTS, Fault, Kind, PATIENCE};
use crate::admin::client::exchange;
use crate::call::payload::Body;

/// How long an agent waits before it asks again.
const AGAIN: Duration = Duration::from_millis(100);

/// How often a call is repeated whose loss nothing can settle, to see that each repeat is refused.
const BARE_TRIES: u32 = 4;

/// The time between two calls where the fault is one of the time.
const EVERY: Duration = Duration::from_millis(10);

/// How long an agent waits before it hangs up on a slow answer.
const HANG_UP: Duration = Duration::from_millis(50);

/// How a call ended for its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was told that the call was accepted.
    Accepted,
    /// It gave up; for a bare call that is right where the answer was lost.
    GaveUp,
    /// Neither, in all the time it had.
    Stuck,
}

/// What an agent, and then the ledger, know of a call.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    pub(super) call: u32,
    pub(super) kind: Kind,
    /// The entry that the agent was told last.
    pub(super) entry: Option<String>,
    pub(super) end: End,
    /// Whether its first answer did not say what became of it.
    pub(super) was_lost: bool,
    pub(super) took_ms: u64,
    /// The entry's state at the end.
    pub(super) state: Option<String>,
}

/// Makes so many calls, spread over the kinds.
pub(super) async fn all(sidecar: &Arc<Sidecar>, fault: Fault, writes: u32) -> Vec<Truth> {
    let places = Arc::new(Semaphore::new(AGENTS));
    let mut calls = JoinSet::new();
    for call in 0..writes {
        let kind = match call / 2 % 4 {
            0 => Kind::Keyed,
            1 => Kind::LookedUp,
            2 => Kind::OurKey,
            _ => Kind::Bare,
        };
        let (sidecar, places) = (Arc::clone(sidecar), Arc::clone(&places));
        let comes_at = match fault {
            // These faults come and go, so the calls come over some time.
            Fault::ConnectRefused | Fault::DatabaseKilled | Fault::ProxyKilled => {
                EVERY.saturating_mul(call)
            }
            _ => Duration::ZERO,
        };
        calls.spawn(async move {
            sleep(comes_at).await;
            // The semaphore is never closed.
            let _place = places.acquire_owned().await;
            one(&sidecar, fault, kind, call).await
        });
    }
    let mut truths = Vec::new();
    while let Some(truth) = calls.join_next().await {
        truths.extend(truth.ok());
    }
    truths
}

async fn one(sidecar: &Sidecar, fault: Fault, kind: Kind, call: u32) -> Truth {
    let began = Instant::now();
    let mut truth = Truth {
        call,
        kind,
        entry: None,
        end: End::Stuck,
        was_lost: false,
        took_ms: 0,
        state: None,
    };
    let mut tries = 0_u32;
    while began.elapsed() < PATIENCE {
        tries = tries.saturating_add(1);
        let is_hanging_up = fault == Fault::AgentGone && tries == 1;
        // Without an answer the sidecar is away, or the agent hung up: it asks again.
        if let Some(told) = told(sidecar, kind, call, is_hanging_up).await {
            truth.entry = told.entry.or(truth.entry);
            if told.is_accepted {
                truth.end = End::Accepted;
                break;
            }
        }
        truth.was_lost = true;
        if matches!(kind, Kind::Bare | Kind::OurKey) && tries >= BARE_TRIES && truth.entry.is_some()
        {
            truth.end = End::GaveUp;
            break;
        }
        sleep(AGAIN).await;
    }
    truth.took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    truth
}

/// What an answer told.
struct Told {
    entry: Option<String>,
    is_accepted: bool,
}

async fn told(sidecar: &Sidecar, kind: Kind, call: u32, is_hanging_up: bool) -> Option<Told> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(match kind {
            Kind::Keyed | Kind::OurKey => "/keyed",
            Kind::LookedUp => "/looked-up",
            Kind::Bare => "/bare",
        })
        .header(header::HOST, sidecar.data().to_string())
        .header(header::CONTENT_TYPE, "application/json")
        .header("effect-task", "prove");
    let has_own_key = match kind {
        Kind::Keyed => true,
        Kind::OurKey => false,
        // Where the gateway takes none, a key of the agent's own changes nothing upstream.
        Kind::LookedUp | Kind::Bare => call.is_multiple_of(3),
    };
    if has_own_key {
        request = request.header("idempotency-key", format!("{}-{call}", sidecar.run()));
    }
    let body = format!("{{\"call\":{call},\"run\":\"{}\"}}", sidecar.run());
    let request = request.body(Body::full(body)).ok()?;
    let stream = TcpStream::connect(sidecar.data()).await.ok()?;
    let patience = if is_hanging_up { HANG_UP } else { PATIENCE };
    let (head, body) = timeout(patience, exchange(stream, request)).await.ok()??;
    let report = head.headers.get("x-anvil-effect");
    let report = report.and_then(|report| serde_json::from_slice::<Value>(report.as_bytes()).ok());
    let report = report.unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let earlier = text(body.pointer("/error/details/entry"));
    Some(Told {
        entry: text(report.get("entry")).or(earlier),
        is_accepted: report.get("outcome").and_then(Value::as_str) == Some("accepted"),
    })
}

/// Asks the ledger for the state of each call's entry, when all of them have come to rest.
pub(super) async fn states(sidecar: &Sidecar, mut truths: Vec<Truth>) -> Vec<Truth> {
    for truth in &mut truths {
        let Some(entry) = truth.entry.clone() else { continue };
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            truth.state = state(sidecar, &entry).await;
            let is_open = match truth.state.as_deref() {
                Some("begun") | None => true,
                // Its lookup is still to come.
                Some("unknown") if truth.kind == Kind::LookedUp => true,
                // Killed between the answer and its finish: whoever has the key may ask again.
                Some("unknown") if truth.kind == Kind::Keyed => {
                    drop(told(sidecar, truth.kind, truth.call, false).await);
                    true
                }
                Some(_) => false,
            };
            if !is_open {
                break;
            }
            sleep(AGAIN).await;
        }
    }
    truths
}

async fn state(sidecar: &Sidecar, entry: &str) -> Option<String> {
    let path = format!("/api/v1/entries/{entry}");
    let (_, body) = sidecar.admin(Method::GET, &path, None).await?;
    let shown: Value = serde_json::from_slice(&body).ok()?;
    shown.get("state")?.as_str().map(str::to_owned)
}
