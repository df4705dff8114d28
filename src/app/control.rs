//! The control thread: telemetry, admin, reload, signals, upkeep, and the end of the process.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::files::Files;
use super::reload::Reload;
use super::worker::Started;
use super::{Ended, Signals, seconds};
use crate::admin::auth::Gate;
use crate::admin::health::{self, Health};
use crate::admin::listen::{Bounds, Listener, serve};
use crate::admin::policy::Ask;
use crate::admin::{self, Admin};
use crate::config::{DrainConfig, Source};
use crate::ledger::{Head, Ledger, Tally};
use crate::metrics::{LedgerStage, Metrics};
use crate::pipeline::Shared;
use crate::pipeline::reconcile::background;
use crate::policy::Watch;
use crate::server::Drain;
use crate::tasks::Tasks;
use crate::tls::ServerTls;

/// How many of those ticks lie between two heads of the ledger in the log: a minute's rows at most can be
/// cut off unseen.
const HEAD_EVERY: u32 = 12;

/// SIGXFSZ, on every architecture that Linux has but MIPS and PA-RISC.
const FILE_TOO_LARGE: std::ffi::c_int = 25;

/// How often the ledger is asked whether it takes rows, and gauges are brought up.
const UPKEEP: Duration = Duration::from_secs(5);

/// How long agents whose writes are cut have to take the answer that says so; at most a quarter of the
/// grace, so that a grace of a second still ends in time.
const LAST_WORDS: Duration = Duration::from_millis(250);

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

/// Asks for an end of at least this kind; asking again changes nothing.
fn raise(stop: &watch::Sender<Stop>, wanted: Stop) {
    stop.send_modify(|stop| *stop = (*stop).max(wanted));
}

/// What the control thread starts with.
pub(super) struct Control {
    pub(super) telemetry: std::net::TcpListener,
    pub(super) health: Health,
    pub(super) metrics: Metrics,
    pub(super) tasks: Tasks,
    pub(super) parts: oneshot::Receiver<Parts>,
    pub(super) stop: Arc<watch::Sender<Stop>>,
    pub(super) stopping: watch::Receiver<Stop>,
    pub(super) signals: Signals,
}

/// The admin API's place on the network, and what stands before it.
pub(super) struct AdminListener {
    pub(super) socket: std::net::TcpListener,
    pub(super) gate: Gate,
    pub(super) tls: Option<Arc<ServerTls>>,
}

/// What it gets when the rest is built.
pub(super) struct Parts {
    pub(super) admin: Admin,
    pub(super) watch: Watch,
    pub(super) asks: mpsc::Receiver<Ask>,
    pub(super) files: Files,
    pub(super) drain_asks: mpsc::Receiver<()>,
    pub(super) admin_socket: std::os::unix::net::UnixListener,
    /// The admin API's listener on a network address, where one is asked for.
    pub(super) admin_network: Option<AdminListener>,
    pub(super) admin_path: PathBuf,
    pub(super) workers: Vec<Started>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) drain: Drain,
    pub(super) end: watch::Sender<bool>,
    pub(super) times: DrainConfig,
    pub(super) source: Source,
}

impl Control {
    /// Runs until the process ends.
    pub(super) fn run(self) -> Ended {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "the control thread could not start");
                return Ended { forced: 0 };
            }
        };
        let ended = runtime.block_on(self.serve());
        // A thread that still reads policy files, from a volume that hangs, holds nothing back.
        runtime.shutdown_background();
        ended
    }

    async fn serve(self) -> Ended {
        let Self { telemetry, health, metrics, tasks, parts, stop, stopping, signals } = self;
        match TcpListener::from_std(telemetry) {
            Ok(listener) => {
                let router = health::router(health.clone(), metrics);
                let listener = Listener::Telemetry(listener);
                let serving = serve(listener, router, Bounds::TELEMETRY, tasks.clone());
                vital(&tasks, &health, "telemetry listener", serving);
            }
            Err(error) => tracing::error!(%error, "telemetry could not be served"),
        }
        // A file that has reached the process's size limit is an error of its write, as a full disk is;
        // unheard, the signal that comes with it would end the process.
        let _heard = signal(SignalKind::from_raw(FILE_TOO_LARGE)).ok();
        let mut hangup = None;
        if signals == Signals::Obeyed {
            // Before the rest: unheard, a SIGHUP would end the process.
            hangup = signal(SignalKind::hangup()).ok();
            drop(tasks.spawn_background("signals", obey(Arc::clone(&stop))));
        }
        // Its sender is dropped when the start fails.
        let Ok(parts) = parts.await else { return Ended { forced: 0 } };
        let Parts { admin, watch, asks, mut drain_asks, files, .. } = parts;
        let Parts { admin_socket, admin_network, admin_path, .. } = parts;
        let Parts { workers, draining, drain, end, times, source, .. } = parts;
        let shared = Arc::clone(&admin.shared);
        let fetch = admin.fetch.clone();
        let reload = Reload {
            shared: Arc::clone(&shared),
            health: health.clone(),
            status: admin.policy.clone(),
            watch,
            asks,
            hangup,
            source,
        };
        vital(&tasks, &health, "reload", reload.run());
        vital(&tasks, &health, "files", files.run(tasks.clone()));
        let router = admin::router(Arc::new(admin));
        match UnixListener::from_std(admin_socket) {
            Ok(listener) => {
                let listener = Listener::Unix(listener);
                let serving = serve(listener, router.clone(), Bounds::ADMIN, tasks.clone());
                vital(&tasks, &health, "admin listener", serving);
            }
            Err(error) => tracing::error!(%error, "the admin API could not be served"),
        }
        if let Some(AdminListener { socket, gate, tls }) = admin_network {
            match TcpListener::from_std(socket) {
                Ok(socket) => {
                    let listener = Listener::Admin(socket, Arc::new(gate), tls);
                    let serving = serve(listener, router, Bounds::ADMIN_NETWORK, tasks.clone());
                    vital(&tasks, &health, "admin network listener", serving);
                }
                Err(error) => tracing::error!(%error, "the admin API could not be served"),
            }
        }
        drop(tasks.spawn_background("drain requests", async move {
            while drain_asks.recv().await.is_some() {
                raise(&stop, Stop::Drain);
            }
        }));
        let upkeep = upkeep(Arc::clone(&shared), health.clone());
        vital(&tasks, &health, "upkeep", upkeep);
        vital(&tasks, &health, "lookups", background::run(fetch));
        let ending = Ending { health, tasks, stopping, workers, draining, drain, end, times };
        let ended = ending.run(&shared).await;
        shared.ledger.close().await;
        // The last word on where the history ends: rows that are cut off later are missed by it.
        log_head(&shared.ledger, &mut None);
        if let Some(spans) = &shared.settings.spans {
            // Nothing else runs any more, so it may block.
            spans.shut_down();
        }
        if let Err(error) = std::fs::remove_file(&admin_path) {
            tracing::debug!(%error, "the admin socket could not be removed");
        }
        tracing::info!(forced = ended.forced, "stopped");
        ended
    }
}

/// Spawns what the process cannot do without. If it panics, that is an error in the log and `/livez`
/// fails: nothing else would tell that the process only looks well.
fn vital<F>(tasks: &Tasks, health: &Health, name: &'static str, work: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let working = tasks.spawn_background(name, work);
    let health = health.clone();
    drop(tasks.spawn_background("guard", async move {
        if working.await.is_err_and(|error| error.is_panic()) {
            tracing::error!(event = "task_died", task = name, "a task died; this is a defect");
            health.died(name);
        }
    }));
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
        tracing::info!(event = "draining", "draining; a second signal stops at once");
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
        let last = LAST_WORDS.min(self.times.grace / 4);
        let is_done = tokio::select! {
            biased;
            () = tasks.as_mut() => true,
            () = sleep_until(end.checked_sub(last).unwrap_or(end)) => false,
            () = asked_for(&mut self.stopping, Stop::Now) => false,
        };
        let forced = self.tasks.awaited();
        if forced > 0 {
            let counted = u64::try_from(forced).unwrap_or(u64::MAX);
            shared.metrics.common().drain_forced.increment(counted);
            tracing::warn!(
                event = "drain_forced",
                writes = forced,
                "writes are cut; their outcome is unknown"
            );
        }
        // Each write tells its agent that its outcome is unknown, and streams end between two events.
        self.tasks.hurry();
        if !is_done {
            // Lost: the wait; who has not taken that answer by then finds its connection closed.
            tokio::select! {
                biased;
                () = tasks.as_mut() => {}
                () = sleep(last) => {}
            }
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

/// Turns signals into what they ask for: the first to an end in order, the second to one at once. What
/// began by the admin API is no first one: a supervisor's SIGTERM follows its drain hook.
async fn obey(stop: Arc<watch::Sender<Stop>>) {
    let made = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = made else {
        tracing::error!("signals cannot be received; only SIGKILL stops this process");
        return;
    };
    let mut heard = 0_u32;
    loop {
        // Losing one loses nothing: both are received again.
        let wanted = tokio::select! {
            _ = terminate.recv() => Stop::Drain,
            _ = interrupt.recv() => Stop::DrainSoon,
        };
        raise(&stop, if heard == 0 { wanted } else { Stop::Now });
        heard = heard.saturating_add(1);
    }
}

/// Keeps what probes and metrics show fresh, off the path of calls and of scrapes.
async fn upkeep(shared: Arc<Shared>, health: Health) {
    let common = shared.metrics.common();
    let mut ticks = tokio::time::interval(UPKEEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut commits = None;
    let mut recovered = 0;
    let mut logged = None;
    let mut ticked = 0_u32;
    loop {
        ticks.tick().await;
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
        if let Some(head) = shared.ledger.head() {
            common
                .ledger_chain_length
                .set(f64::from(u32::try_from(head.length).unwrap_or(u32::MAX)));
        }
        let integrity = shared.ledger.integrity();
        common.ledger_chain_broken.set(f64::from(u8::from(integrity.flaw.is_some())));
        common.ledger_chain_verified.set(integrity.verified_ms.map_or(0.0, seconds));
        if ticked.is_multiple_of(HEAD_EVERY) {
            log_head(&shared.ledger, &mut logged);
        }
        ticked = ticked.wrapping_add(1);
        health.show(&shared.metrics);
    }
}

/// Writes where the ledger's chain ends to the log, unless it was the last that was written:
/// `takeback ledger verify --head` finds rows that were cut off behind it.
fn log_head(ledger: &Ledger, logged: &mut Option<Head>) {
    let head = ledger.head();
    if let Some(head) = head.filter(|_| head != *logged) {
        tracing::info!(event = "ledger_head", %head, "the ledger's chain ends here");
    }
    *logged = head;
}

fn show(entries: Option<&metrics::Gauge>, oldest: Option<&metrics::Gauge>, tally: &Tally) {
    if let (Some(entries), Some(oldest)) = (entries, oldest) {
        entries.set(f64::from(u32::try_from(tally.count).unwrap_or(u32::MAX)));
        oldest.set(tally.oldest_ms.map_or(0.0, seconds));
    }
}
