//! The control thread: telemetry, admin, reload, signals, upkeep, and the end of the process.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::reload::Reload;
use super::worker::Started;
use super::{Ended, seconds};
use crate::admin::health::{self, Health};
use crate::admin::listen::{Bounds, Listener, serve};
use crate::admin::policy::Ask;
use crate::admin::{self, Admin};
use crate::config::DrainConfig;
use crate::ledger::Tally;
use crate::metrics::{LedgerStage, Metrics};
use crate::pipeline::Shared;
use crate::policy::Watch;
use crate::server::Drain;
use crate::tasks::Tasks;

/// How often the ledger is asked whether it takes rows, and gauges and histograms are brought up.
const UPKEEP: Duration = Duration::from_secs(5);

/// What the process was asked; only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stop {
    /// Nothing.
    No,
    /// To end well.
    Drain,
    /// To end well, without the time that load balancers need.
    DrainSoon,
    /// To end at once.
    Now,
}

/// Asks for an end; whoever asks a second time wants it at once.
pub(super) fn ask(stop: &watch::Sender<Stop>, wanted: Stop) {
    stop.send_modify(|stop| *stop = if *stop == Stop::No { wanted } else { Stop::Now });
}

/// What the control thread starts with.
pub(super) struct Control {
    pub(super) telemetry: std::net::TcpListener,
    pub(super) health: Health,
    pub(super) metrics: Metrics,
    pub(super) tasks: Tasks,
    pub(super) parts: oneshot::Receiver<Parts>,
    pub(super) stopping: watch::Receiver<Stop>,
}

/// What it gets when the rest is built.
pub(super) struct Parts {
    pub(super) admin: Admin,
    pub(super) watch: Watch,
    pub(super) asks: mpsc::Receiver<Ask>,
    pub(super) admin_socket: std::os::unix::net::UnixListener,
    pub(super) admin_path: PathBuf,
    pub(super) workers: Vec<Started>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) drain: Drain,
    pub(super) end: watch::Sender<bool>,
    pub(super) times: DrainConfig,
}

impl Control {
    /// Runs until the process ends. With `signals` SIGTERM and SIGINT ask for it.
    pub(super) fn run(self, signals: Option<Arc<watch::Sender<Stop>>>) -> Ended {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "the control thread could not start");
                return Ended { forced: 0 };
            }
        };
        let ended = runtime.block_on(self.serve(signals));
        // A thread that still reads policy files, from a volume that hangs, holds nothing back.
        runtime.shutdown_background();
        ended
    }

    async fn serve(self, signals: Option<Arc<watch::Sender<Stop>>>) -> Ended {
        let Self { telemetry, health, metrics, tasks, parts, stopping } = self;
        match TcpListener::from_std(telemetry) {
            Ok(listener) => {
                let router = health::router(health.clone(), metrics);
                let listener = Listener::Tcp(listener);
                let serving = serve(listener, router, Bounds::TELEMETRY, tasks.clone());
                drop(tasks.spawn_background("telemetry listener", serving));
            }
            Err(error) => tracing::error!(%error, "telemetry could not be served"),
        }
        let mut hangup = None;
        if let Some(stop) = signals {
            // Before the rest: unheard, a SIGHUP would end the process.
            hangup = signal(SignalKind::hangup()).ok();
            drop(tasks.spawn_background("signals", obey(stop)));
        }
        // Its sender is dropped when the start fails.
        let Ok(parts) = parts.await else { return Ended { forced: 0 } };
        let Parts { admin, watch, asks, admin_socket, admin_path, .. } = parts;
        let Parts { workers, draining, drain, end, times, .. } = parts;
        let shared = Arc::clone(&admin.shared);
        let reload = Reload {
            shared: Arc::clone(&shared),
            health: health.clone(),
            status: admin.policy.clone(),
            watch,
            asks,
            hangup,
        };
        drop(tasks.spawn_background("reload", reload.run()));
        match UnixListener::from_std(admin_socket) {
            Ok(listener) => {
                let router = admin::router(Arc::new(admin));
                let listener = Listener::Unix(listener);
                let serving = serve(listener, router, Bounds::ADMIN, tasks.clone());
                drop(tasks.spawn_background("admin listener", serving));
            }
            Err(error) => tracing::error!(%error, "the admin API could not be served"),
        }
        let upkeep = upkeep(Arc::clone(&shared), health.clone());
        drop(tasks.spawn_background("upkeep", upkeep));
        let ending = Ending { health, tasks, stopping, workers, draining, drain, end, times };
        let ended = ending.run(&shared).await;
        shared.ledger.close().await;
        if let Err(error) = std::fs::remove_file(&admin_path) {
            tracing::debug!(%error, "the admin socket could not be removed");
        }
        tracing::info!(forced = ended.forced, "stopped");
        ended
    }
}

/// The end of a process, from the first signal on.
struct Ending {
    health: Health,
    tasks: Tasks,
    stopping: watch::Receiver<Stop>,
    workers: Vec<Started>,
    draining: Arc<AtomicBool>,
    drain: Drain,
    end: watch::Sender<bool>,
    times: DrainConfig,
}

impl Ending {
    async fn run(mut self, shared: &Shared) -> Ended {
        // Its sender lives as long as `Running`, which outlives this thread; without it, stop.
        drop(self.stopping.wait_for(|stop| *stop != Stop::No).await);
        let began = Instant::now();
        let end = began + self.times.grace;
        self.health.drain();
        self.health.show(&shared.metrics);
        tracing::info!("draining; a second signal stops at once");
        if *self.stopping.borrow() == Stop::Drain {
            // Losing either loses nothing.
            tokio::select! {
                () = sleep_until(end.min(began + self.times.min)) => {}
                () = asked_for(&mut self.stopping, Stop::DrainSoon) => {}
            }
        }
        self.draining.store(true, Ordering::Relaxed);
        self.drain.begin(end.saturating_duration_since(Instant::now()));
        let (closed, threads): (Vec<_>, Vec<_>) =
            self.workers.into_iter().map(|worker| (worker.closed, worker.thread)).unzip();
        let mut tasks = std::pin::pin!(async {
            for worker in closed {
                // A worker that is gone has closed its connections too.
                drop(worker.await);
            }
            self.tasks.wait_idle().await;
        });
        // Lost: the wait; what is not done is cut below.
        tokio::select! {
            biased;
            () = tasks.as_mut() => {}
            () = sleep_until(end) => {}
            () = asked_for(&mut self.stopping, Stop::Now) => {}
        }
        let forced = self.tasks.awaited();
        if forced > 0 {
            let counted = u64::try_from(forced).unwrap_or(u64::MAX);
            shared.metrics.common().drain_forced.increment(counted);
            tracing::warn!(writes = forced, "writes are cut; their outcome is unknown");
        }
        self.drain.begin(Duration::ZERO);
        self.end.send_replace(true);
        for thread in threads {
            // The workers' last act is to give the ledger what they have not finished.
            if thread.join().is_err() {
                tracing::error!("a worker's thread died");
            }
        }
        Ended { forced }
    }
}

async fn asked_for(stopping: &mut watch::Receiver<Stop>, least: Stop) {
    if stopping.wait_for(|stop| *stop >= least).await.is_err() {
        // Nobody can ask any more.
        std::future::pending::<()>().await;
    }
}

/// Turns signals into what they ask for.
async fn obey(stop: Arc<watch::Sender<Stop>>) {
    let made = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = made else {
        tracing::error!("signals cannot be received; only SIGKILL stops this process");
        return;
    };
    loop {
        // Losing one loses nothing: both are received again.
        tokio::select! {
            _ = terminate.recv() => ask(&stop, Stop::Drain),
            _ = interrupt.recv() => ask(&stop, Stop::DrainSoon),
        }
    }
}

/// Keeps what probes and metrics show fresh, off the path of calls and of scrapes.
async fn upkeep(shared: Arc<Shared>, health: Health) {
    let common = shared.metrics.common();
    let mut ticks = tokio::time::interval(UPKEEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut commits = None;
    let mut recovered = 0;
    loop {
        ticks.tick().await;
        shared.metrics.upkeep();
        // Detached, and not of the runtime's pool: a volume that hangs must not keep the process.
        let metrics = shared.metrics.clone();
        let sampler = std::thread::Builder::new().name("sample".to_owned());
        if let Err(error) = sampler.spawn(move || metrics.sample()) {
            tracing::debug!(%error, "the process could not be sampled");
        }
        let seen = shared.ledger.stats().commits;
        if commits.is_some_and(|commits| commits != seen) && shared.ledger.health().is_ok() {
            // Something was written since, which proves as much.
            health.ledger(Ok(()));
        } else {
            let began = shared.clock.instant();
            let result = shared.ledger.heartbeat(shared.clock.now_ms()).await;
            let elapsed = shared.clock.instant().saturating_duration_since(began);
            common.ledger_duration.record(LedgerStage::Heartbeat, elapsed.as_secs_f64());
            match &result {
                Ok(()) => common.ledger_ok.count(LedgerStage::Heartbeat),
                Err(error) => {
                    common.ledger_error.count(LedgerStage::Heartbeat);
                    tracing::error!(%error, "the ledger takes no rows; writes are refused");
                }
            }
            health.ledger(result);
        }
        let stats = shared.ledger.stats();
        commits = Some(stats.commits);
        common.ledger_recovered.increment(stats.recovered.saturating_sub(recovered));
        recovered = stats.recovered;
        match shared.ledger.counts().await {
            Ok(counts) => {
                let tallies = [counts.begun, counts.unknown, counts.waiting];
                for (index, tally) in tallies.iter().enumerate() {
                    show(common.ledger_entries.get(index), common.ledger_oldest.get(index), tally);
                }
            }
            Err(error) => tracing::debug!(%error, "the ledger's entries could not be counted"),
        }
        health.show(&shared.metrics);
    }
}

fn show(entries: Option<&metrics::Gauge>, oldest: Option<&metrics::Gauge>, tally: &Tally) {
    if let (Some(entries), Some(oldest)) = (entries, oldest) {
        entries.set(f64::from(u32::try_from(tally.count).unwrap_or(u32::MAX)));
        oldest.set(tally.oldest_ms.map_or(0.0, seconds));
    }
}
