//! What the probes say, and the telemetry listener's routes.
//!
//! | route | 200 when | never depends on |
//! |---|---|---|
//! | `/startupz` | the start is over: ledger open, policy in force, data port bound | the upstream |
//! | `/readyz` | started, policy in force, the ledger took a row within [`LEDGER_FRESH`], not draining | the upstream |
//! | `/livez` | every worker ran a timer within [`ALIVE`], and no task of the control thread died | ledger, policy, upstream |
//!
//! The ledger's own state is read when a probe asks, so `/readyz` fails with the first write that it
//! refuses, and not a heartbeat later.
//!
//! An upstream that is down does not make the sidecar unready: calls get a typed answer, and the
//! ledger stays reachable. Nor do newer policy files that are rejected: the last good policy is in
//! force, and the check's `note` says so. Every answer says each check, and why it fails.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

use crate::clock::Clock;
use crate::ledger::{Ledger, LedgerError};
use crate::metrics::Metrics;

/// How old the newest proof that the ledger takes writes may be: three heartbeats.
pub const LEDGER_FRESH: Duration = Duration::from_secs(15);

/// How long a worker may go without running a timer.
pub const ALIVE: Duration = Duration::from_secs(10);

/// The state of one sidecar, as probes see it; clones are the same one.
#[derive(Clone, Debug)]
pub struct Health {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    /// What the start waits for; `None` when it is over.
    waits_for: Mutex<Option<&'static str>>,
    policy: AtomicBool,
    /// Why newer policy files are not in force.
    policy_rejected: Mutex<Option<String>>,
    /// When the ledger last took a row, in the clock's milliseconds; 0 is never.
    ledger_ok_ms: AtomicI64,
    ledger_fault: Mutex<Option<LedgerError>>,
    /// The ledger, once it is open: what it knows of itself is newer than the last heartbeat.
    ledger: OnceLock<Ledger>,
    /// Its commits when it was last looked at.
    ledger_commits: AtomicU64,
    /// Tasks of the process that died.
    died: Mutex<Vec<&'static str>>,
    draining: AtomicBool,
    workers: Mutex<Vec<Pulse>>,
}

/// One worker's sign of life.
#[derive(Clone, Debug)]
pub struct Pulse {
    clock: Clock,
    beat_ms: Arc<AtomicI64>,
}

impl Pulse {
    /// The worker ran.
    pub fn beat(&self) {
        self.beat_ms.store(self.clock.now_ms(), Ordering::Relaxed);
    }
}

/// One check of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// Why it fails; `None`: it passes.
    pub fault: Option<String>,
    /// What is odd, and does not make it fail.
    pub note: Option<String>,
}

impl Check {
    fn new(name: &'static str, fault: Option<String>) -> Self {
        Self { name, fault, note: None }
    }
}

impl Health {
    /// A sidecar that starts.
    pub fn new(clock: Clock) -> Self {
        Self {
            shared: Arc::new(Shared {
                clock,
                waits_for: Mutex::new(Some("the configuration")),
                policy: AtomicBool::new(false),
                policy_rejected: Mutex::new(None),
                ledger_ok_ms: AtomicI64::new(0),
                ledger_fault: Mutex::new(None),
                ledger: OnceLock::new(),
                ledger_commits: AtomicU64::new(0),
                died: Mutex::new(Vec::new()),
                draining: AtomicBool::new(false),
                workers: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Says what the start waits for, or with `None` that it is over.
    pub fn waits_for(&self, what: Option<&'static str>) {
        *self.shared.waits_for.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// A policy is in force.
    pub fn policy_in_force(&self) {
        self.shared.policy.store(true, Ordering::Relaxed);
    }

    /// Newer policy files are rejected, with the reason; or they are no more.
    pub fn policy_rejected(&self, why: Option<String>) {
        *self.shared.policy_rejected.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// The ledger took a row, or did not.
    pub fn ledger(&self, result: Result<(), LedgerError>) {
        if result.is_ok() {
            self.shared.ledger_ok_ms.store(self.shared.clock.now_ms(), Ordering::Relaxed);
        }
        *self.shared.ledger_fault.lock().unwrap_or_else(PoisonError::into_inner) = result.err();
    }

    /// The ledger is open: from here on its state is read when a probe asks.
    pub fn watch(&self, ledger: Ledger) {
        self.ledger(Ok(()));
        // A sidecar opens one.
        let _first = self.shared.ledger.set(ledger);
    }

    /// A task that the process cannot do without died: `/livez` fails from here on, so that whoever
    /// supervises the process starts it again.
    pub fn died(&self, task: &'static str) {
        self.shared.died.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// The sidecar goes away.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    /// A further worker.
    pub fn worker(&self) -> Pulse {
        let pulse =
            Pulse { clock: self.shared.clock.clone(), beat_ms: Arc::new(AtomicI64::new(0)) };
        pulse.beat();
        self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner).push(pulse.clone());
        pulse
    }

    /// The checks of `/startupz`.
    pub fn startup(&self) -> [Check; 1] {
        let waits_for = *self.shared.waits_for.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = waits_for.map(|what| format!("waits for {what}"));
        [Check::new("startup", fault)]
    }

    /// The checks of `/readyz`: startup, policy, ledger, draining.
    pub fn readiness(&self) -> [Check; 4] {
        let shared = &self.shared;
        let [startup] = self.startup();
        let policy =
            (!shared.policy.load(Ordering::Relaxed)).then(|| "none is in force".to_owned());
        let rejected =
            shared.policy_rejected.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_draining = shared.draining.load(Ordering::Relaxed);
        [
            startup,
            Check { note: rejected, ..Check::new("policy", policy) },
            Check::new("ledger", self.ledger_fault()),
            Check::new("draining", is_draining.then(|| "going away".to_owned())),
        ]
    }

    fn ledger_fault(&self) -> Option<String> {
        let shared = &self.shared;
        if let Some(ledger) = shared.ledger.get() {
            if let Some(reason) = ledger.health().down {
                return Some(reason.to_string());
            }
            let commits = ledger.stats().commits;
            if shared.ledger_commits.swap(commits, Ordering::Relaxed) != commits {
                // Something was written since the last look, which proves as much as a heartbeat.
                self.ledger(Ok(()));
            }
        }
        let ok_ms = shared.ledger_ok_ms.load(Ordering::Relaxed);
        let fault = *shared.ledger_fault.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = fault {
            return Some(fault.to_string());
        }
        if ok_ms == 0 {
            return Some("it is not open".to_owned());
        }
        let age_ms = shared.clock.now_ms().saturating_sub(ok_ms);
        let is_fresh = age_ms < milliseconds(LEDGER_FRESH);
        (!is_fresh).then(|| format!("it took no row for {} s", age_ms / 1000))
    }

    /// The checks of `/livez`.
    pub fn liveness(&self) -> [Check; 2] {
        let shared = &self.shared;
        let now_ms = shared.clock.now_ms();
        let workers = shared.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let stuck = workers
            .iter()
            .filter(|pulse| {
                let beat_ms = pulse.beat_ms.load(Ordering::Relaxed);
                now_ms.saturating_sub(beat_ms) >= milliseconds(ALIVE)
            })
            .count();
        let fault =
            (stuck > 0).then(|| format!("{stuck} of {} workers stand still", workers.len()));
        let died = shared.died.lock().unwrap_or_else(PoisonError::into_inner);
        let dead = (!died.is_empty()).then(|| format!("dead: {}", died.join(", ")));
        [Check::new("workers", fault), Check::new("control", dead)]
    }

    /// Sets `takeback_ready`.
    pub fn show(&self, metrics: &Metrics) {
        let [_, policy, ledger, draining] = self.readiness();
        let gauges = &metrics.common().ready;
        for (gauge, check) in gauges.iter().zip([policy, ledger, draining]) {
            gauge.set(if check.fault.is_none() { 1.0 } else { 0.0 });
        }
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// What the telemetry listener serves.
pub fn router(health: Health, metrics: Metrics) -> Router {
    Router::new()
        .route(
            "/livez",
            get(|State((health, _)): Telemetry| async move { probe(&health.liveness()) }),
        )
        .route(
            "/readyz",
            get(|State((health, _)): Telemetry| async move { probe(&health.readiness()) }),
        )
        .route(
            "/startupz",
            get(|State((health, _)): Telemetry| async move { probe(&health.startup()) }),
        )
        .route(
            "/metrics",
            get(|State((health, metrics)): Telemetry| async move { exposition(&health, &metrics) }),
        )
        .with_state((health, metrics))
}

type Telemetry = State<(Health, Metrics)>;

/// `{"status": "ok" | "failing", "checks": {"ledger": {"ok": false, "why": "..."}, ...}}`; a check that
/// passes may have a `note`.
pub(super) fn shown(checks: &[Check]) -> Value {
    let mut members = Map::new();
    for check in checks {
        let value = match (&check.fault, &check.note) {
            (None, None) => json!({ "ok": true }),
            (None, Some(note)) => json!({ "ok": true, "note": note }),
            (Some(why), _) => json!({ "ok": false, "why": why }),
        };
        members.insert(check.name.to_owned(), value);
    }
    let status = if is_ok(checks) { "ok" } else { "failing" };
    json!({ "status": status, "checks": members })
}

fn is_ok(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.fault.is_none())
}

fn probe(checks: &[Check]) -> Response {
    let code = if is_ok(checks) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    super::json(code, shown(checks).to_string())
}

fn exposition(health: &Health, metrics: &Metrics) -> Response {
    health.show(metrics);
    let mut response = Response::new(axum::body::Body::from(metrics.render()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Reason;

    fn failing(checks: &[Check]) -> Vec<&'static str> {
        checks.iter().filter(|check| check.fault.is_some()).map(|check| check.name).collect()
    }

    #[test]
    fn ready_is_started_with_a_policy_and_a_fresh_ledger_and_not_draining() {
        let (clock, hand) = Clock::manual(1_800_000_000_000);
        let health = Health::new(clock);
        assert_eq!(failing(&health.readiness()), ["startup", "policy", "ledger"]);

        health.policy_in_force();
        health.ledger(Ok(()));
        health.waits_for(None);
        assert!(failing(&health.readiness()).is_empty());
        assert!(failing(&health.startup()).is_empty());

        hand.advance(LEDGER_FRESH - Duration::from_millis(1));
        assert!(failing(&health.readiness()).is_empty());
        hand.advance(Duration::from_millis(1));
        assert_eq!(failing(&health.readiness()), ["ledger"]);

        health.ledger(Ok(()));
        health.ledger(Err(LedgerError::Unavailable(Reason::Full)));
        let [_, _, ledger, _] = health.readiness();
        assert!(ledger.fault.unwrap().contains("full"));

        health.ledger(Ok(()));
        health.policy_rejected(Some("a.yaml:1:1: policy/syntax".to_owned()));
        assert!(failing(&health.readiness()).is_empty(), "the last good policy is in force");
        let [_, policy, _, _] = health.readiness();
        assert!(policy.note.unwrap().contains("a.yaml"));

        health.drain();
        assert_eq!(failing(&health.readiness()), ["draining"]);
    }

    #[test]
    fn alive_is_every_worker_running_and_nothing_else() {
        let (clock, hand) = Clock::manual(1_800_000_000_000);
        let health = Health::new(clock);
        let (first, second) = (health.worker(), health.worker());
        assert!(failing(&health.liveness()).is_empty());

        hand.advance(ALIVE);
        first.beat();

        let [workers, control] = health.liveness();
        assert_eq!(workers.fault.as_deref(), Some("1 of 2 workers stand still"));
        assert_eq!(control.fault, None);
        first.beat();
        second.beat();
        health.died("upkeep");
        assert_eq!(failing(&health.liveness()), ["control"]);
    }

    #[test]
    fn a_probe_names_each_check_and_why_it_fails() {
        let checks = [
            Check::new("policy", None),
            Check::new("ledger", Some("its volume is full".to_owned())),
        ];
        assert_eq!(probe(&checks).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(probe(&checks[..1]).status(), StatusCode::OK);
    }
}
