//! Reload: one task that reads the policy's files when they change, and puts what can be served in
//! force.
//!
//! It polls, as `policy::Watch` says; SIGHUP and the admin API make it read at once. Files are read and
//! compiled on one thread of their own, off the path of calls (and always the same one: the usual allocator
//! keeps what each thread has freed for that thread), and the whole policy is swapped in one
//! step: a call has the one or the other, and one under way keeps the one it began with. Files that
//! cannot be served leave the last good policy in force; that is said in the log, in
//! `takeback_policy_last_reload_successful` and in `/readyz`'s body, and makes nothing unready.
//!
//! | event in the log | level | when |
//! |---|---|---|
//! | `policy_applied` | info | a policy came into force, the first one too |
//! | `policy_weakened` | warn | it protects less than the one before; the operations are named |
//! | `policy_rejected` | error | files cannot be served; one line for each error, with its place |
//! | `operation_degraded` | warn | an operation is served as less than it was declared |
//! | `restart_needed` | warn | settings of the process changed; they are named, and hold from its next start |
//! | `config_rejected` | error | the file of settings has an error: the next start would fail |
//!
//! A SIGHUP or a request reads the file of settings too. None of its settings is changed under way: they
//! are ports, limits and places, which what is under way was promised.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};

use super::seconds;
use crate::admin::health::Health;
use crate::admin::policy::{Ask, Reloaded, Status, Told, summary};
use crate::config::Source;
use crate::pipeline::Shared;
use crate::pipeline::live::Live;
use crate::policy::{Change, Compiled, Diagnostic, Poll, Severity, Snapshot, Watch};

/// How often the files are looked at. A look at unchanged files is one listing of a directory.
const POLL: Duration = Duration::from_secs(1);

/// How often a directory that keeps changing is read again for somebody who waits for the answer.
const ATTEMPTS: u32 = 5;

/// The most lines that one rejected policy writes to the log.
const MAX_LINES: usize = 100;

/// What the task works on.
pub(super) struct Reload {
    pub(super) shared: Arc<Shared>,
    pub(super) health: Health,
    pub(super) status: Status,
    pub(super) watch: Watch,
    pub(super) asks: mpsc::Receiver<Ask>,
    /// SIGHUP, where signals are obeyed.
    pub(super) hangup: Option<Signal>,
    /// Where the process's own settings came from.
    pub(super) source: Source,
}

/// Why the files are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Asked,
    Polled,
}

impl Reload {
    /// Runs until its task is dropped.
    pub(super) async fn run(self) {
        let Self { shared, health, status, watch, mut asks, mut hangup, source } = self;
        let reader = Reader { shared, health, status, watch, source };
        let jobs = match reader.start() {
            Ok(jobs) => jobs,
            Err(error) => {
                tracing::error!(%error, "no thread for reading the policy files; they are not read again");
                return;
            }
        };
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut ask = None;
            // Losing a tick, a signal or a request loses nothing: each is received again, or read
            // whole before the next.
            let why = tokio::select! {
                _ = ticks.tick() => Why::Polled,
                () = hung_up(&mut hangup) => Why::Asked,
                Some(asked) = asks.recv() => {
                    ask = Some(asked);
                    Why::Asked
                }
            };
            let (done, told) = oneshot::channel();
            // There is room: one is asked for at a time.
            if jobs.send((why, done)).is_err() {
                return;
            }
            let Ok(told) = told.await else { return };
            if let Some(ask) = ask {
                // Whoever asked may have left.
                let _gone = ask.send(told);
            }
        }
    }
}

async fn hung_up(hangup: &mut Option<Signal>) {
    let heard = match hangup {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if heard.is_none() {
        // Nobody will ever signal.
        std::future::pending::<()>().await;
    }
}

/// Runs what must not take the task with it; `None` if it panicked, which is in the log.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

struct Reader {
    shared: Arc<Shared>,
    health: Health,
    status: Status,
    watch: Watch,
    source: Source,
}

/// What is read for, and who waits for it.
type Job = (Why, oneshot::Sender<Told>);

impl Reader {
    /// Starts the thread that reads. It ends when nobody can ask it any more, and nobody waits for it:
    /// a file system that stands still must not hold the end of the process back.
    fn start(mut self) -> std::io::Result<SyncSender<Job>> {
        let (jobs, asked) = std::sync::mpsc::sync_channel::<Job>(1);
        let thread = std::thread::Builder::new().name("policies".to_owned());
        thread.spawn(move || {
            while let Ok((why, done)) = asked.recv() {
                let reloaded = guarded(|| self.read(why)).unwrap_or_else(|| self.failed());
                let settings = match why {
                    Why::Asked => self.settings(),
                    Why::Polled => Ok(Vec::new()),
                };
                // The runtime may have ended.
                let _gone = done.send(Told { reloaded, settings });
            }
        })?;
        Ok(jobs)
    }

    /// Reading panicked: the policy in force stays, that is said, and the next poll tries again.
    fn failed(&self) -> Reloaded {
        tracing::error!(
            event = "policy_rejected",
            "reading the policy files failed; this is a defect of takeback"
        );
        let common = self.shared.metrics.common();
        let [_, rejected, ..] = &common.reloads;
        rejected.increment(1);
        common.last_reload_ok.set(0.0);
        self.health.policy_rejected(Some("reading the newest files failed".to_owned()));
        self.status.rejected(Vec::new(), self.shared.clock.now_ms());
        Reloaded::Rejected(Vec::new())
    }

    /// Says which settings of the process changed since it started.
    fn settings(&self) -> Result<Vec<&'static str>, String> {
        match self.source.changed() {
            Ok(changed) if changed.is_empty() => Ok(changed),
            Ok(changed) => {
                let settings = changed.join(", ");
                tracing::warn!(
                    event = "restart_needed",
                    settings,
                    "settings changed; they hold from the next start"
                );
                Ok(changed)
            }
            Err(errors) => {
                for error in errors.0.iter().take(MAX_LINES) {
                    tracing::error!(
                        event = "config_rejected",
                        at = %error.origin,
                        "{}; the next start would fail",
                        error.message
                    );
                }
                let first = errors.0.first();
                Err(first.map_or_else(String::new, |e| format!("{}: {}", e.origin, e.message)))
            }
        }
    }

    /// Reads once, and puts in force what can be. Blocks.
    fn read(&mut self, why: Why) -> Reloaded {
        let current = self.shared.policies.load();
        let was_rejected = self.status.is_rejected();
        let mut poll = match why {
            Why::Asked => self.watch.reread(&current.snapshot),
            Why::Polled => self.watch.poll(&current.snapshot),
        };
        for _ in 1..ATTEMPTS {
            if !(why == Why::Asked && matches!(poll, Poll::Restless)) {
                break;
            }
            poll = self.watch.reread(&current.snapshot);
        }
        let [applied, rejected, unchanged, weaker] = &self.shared.metrics.common().reloads;
        match poll {
            Poll::Changed { compiled, weakened } => {
                let counter = if weakened.is_empty() { applied } else { weaker };
                let reloaded = self.apply(compiled, weakened);
                // Last: whoever sees it counted finds the gauges set.
                counter.increment(1);
                reloaded
            }
            Poll::Rejected(compiled) => {
                let reloaded = self.reject(compiled);
                rejected.increment(1);
                reloaded
            }
            Poll::Restless => Reloaded::Restless,
            Poll::Unchanged => {
                let revision = current.snapshot.revision().to_hex();
                let is_restored = was_rejected && !self.watch.is_rejected();
                if is_restored {
                    self.shared.metrics.common().last_reload_ok.set(1.0);
                    self.status.restored();
                    self.health.policy_rejected(None);
                    tracing::info!(
                        event = "policy_applied",
                        revision,
                        "the files are those of the policy in force again"
                    );
                }
                if is_restored || why == Why::Asked {
                    unchanged.increment(1);
                }
                Reloaded::Unchanged { revision }
            }
        }
    }

    fn apply(&self, compiled: Compiled, weakened: Vec<Change>) -> Reloaded {
        let Compiled { snapshot, diagnostics, .. } = compiled;
        // A changed policy has one.
        let Some(snapshot) = snapshot else { return Reloaded::Rejected(diagnostics) };
        let Shared { policies, metrics, clock, .. } = &*self.shared;
        announce(&snapshot, &diagnostics);
        warn_of(&weakened);
        let revision = snapshot.revision().to_hex();
        let operations = snapshot.operations().len();
        policies.swap(Live::new(snapshot, metrics));
        let now_ms = clock.now_ms();
        let common = metrics.common();
        common.last_reload_ok.set(1.0);
        common.last_reload_seconds.set(seconds(now_ms));
        self.status.applied(diagnostics, now_ms);
        self.health.policy_rejected(None);
        Reloaded::Applied { revision, operations, weakened }
    }

    fn reject(&self, compiled: Compiled) -> Reloaded {
        let findings = compiled.diagnostics;
        let errors: Vec<&Diagnostic> =
            findings.iter().filter(|found| found.severity == Severity::Error).collect();
        for found in errors.iter().take(MAX_LINES) {
            tracing::error!(
                event = "policy_rejected",
                at = %format_args!("{}:{}:{}", found.file, found.line, found.column),
                code = found.code,
                "{}",
                found.message
            );
        }
        tracing::error!(
            event = "policy_rejected",
            errors = errors.len(),
            "the newest policy files are rejected; the last good policy stays in force"
        );
        self.shared.metrics.common().last_reload_ok.set(0.0);
        self.health.policy_rejected(Some(summary(&findings)));
        self.status.rejected(findings.clone(), self.shared.clock.now_ms());
        Reloaded::Rejected(findings)
    }
}

/// Says in the log that a policy comes into force, and what of it is degraded.
pub(super) fn announce(snapshot: &Snapshot, diagnostics: &[Diagnostic]) {
    let degraded: Vec<_> =
        snapshot.operations().iter().filter(|served| served.is_degraded()).collect();
    for served in &degraded {
        let notes = served.notes.join("; ");
        let operation = &served.operation.id;
        tracing::warn!(
            event = "operation_degraded",
            %operation,
            notes,
            "served as less than it was declared"
        );
    }
    let about_process =
        diagnostics.iter().filter(|found| found.code == "policy/timeout_beyond_grace");
    for found in about_process.take(MAX_LINES) {
        let operation = found.operation.as_deref().unwrap_or_default();
        tracing::warn!(
            at = %format_args!("{}:{}:{}", found.file, found.line, found.column),
            code = found.code,
            operation,
            "{}",
            found.message
        );
    }
    tracing::info!(
        event = "policy_applied",
        revision = snapshot.revision().to_hex(),
        operations = snapshot.operations().len(),
        degraded = degraded.len(),
        "policy in force"
    );
}

fn warn_of(weakened: &[Change]) {
    if weakened.is_empty() {
        return;
    }
    for change in weakened.iter().take(MAX_LINES) {
        tracing::info!(%change, "a weaker rule");
    }
    let name = |change: &Change| {
        change.operation.as_ref().map_or_else(|| "_undeclared".to_owned(), ToString::to_string)
    };
    let names: BTreeSet<String> = weakened.iter().map(name).collect();
    let operations = names.into_iter().collect::<Vec<_>>().join(", ");
    tracing::warn!(event = "policy_weakened", operations, "the policy in force protects less");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_panics_is_told_and_does_not_end_the_reading() {
        assert_eq!(guarded(|| 1), Some(1));
        assert_eq!(guarded(|| -> u32 { panic!("planted") }), None);
    }
}
