//! The process around the stack: built out of a [`Config`], started in order, ended in order.
//!
//! Start (each step is named by `/startupz` while it lasts):
//!
//! 1. The telemetry listener, so that probes can say what the start waits for.
//! 2. The ledger: its lock, a look at the end of its chain, its recovery.
//! 3. The policy; a first one that is bad is fatal, for nothing is served under no policy.
//! 4. Every metric series, at 0.
//! 5. The admin socket; then the data port, last: before it, agents are refused and never passed on.
//!
//! Threads: one worker per processor, each with its own listener on the data port, its own runtime, its
//! own connections to the upstream and its own stack; the ledger's writer; and one control thread for
//! telemetry, admin, signals and upkeep, so that none of them waits for a call.
//!
//! End, from SIGTERM (or [`Running::stop`]): `/readyz` fails at once; calls are served for `drain.min`
//! longer; then no call is taken and connections close after the answers they owe; writes under way are
//! waited for until `drain.grace`. What is left is cut, recorded as unknown in one batch, and counted;
//! then the ledger is closed. `POST /api/v1/drain` begins the same. A second signal goes to the cut. A SIGKILL at any moment is safe too: an
//! entry that was begun is unknown at the next start.

mod control;
mod descriptors;
mod files;
mod keys;
pub mod log;
mod reload;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::admin::auth::{Gate, Tokens, TokensError};
use crate::admin::health::Health;
use crate::admin::listen::bind_unix;
use crate::admin::{Admin, policy as admin_policy};
use crate::admit::Places;
use crate::call::payload::Budget;
use crate::call::spans::{Spans, SpansError};
use crate::clock::Clock;
use crate::config::{AdminNetwork, Config};
use crate::ledger::{Ledger, OpenError, Options, Place, ReadOnly, Recovered};
use crate::mcp::Methods;
use crate::metrics::Metrics;
use crate::pipeline::confirmation::Sealer;
use crate::pipeline::fetch::Fetch;
use crate::pipeline::live::{Live, Policies};
use crate::pipeline::under_way::UnderWay;
use crate::pipeline::{Limits, McpSettings, McpState, Settings, Shared, Timeouts, fill_random};
use crate::policy::{self, Faulty, Watch};
use crate::server::{self, BindError, Drain, Security};
use crate::tasks::Tasks;
use crate::upstream::{self, Upstream};

use control::{AdminListener, Parts, Stop};
use worker::Worker;

/// Why a sidecar could not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The admin socket.
    #[error("the admin socket {} cannot be made: {}", path.display(), reason(source))]
    Admin {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The admin API's network address.
    #[error("the admin address {address} cannot be listened on")]
    AdminAddress {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The data port.
    #[error("the data port cannot be opened")]
    Bind(#[source] BindError),
    /// The ledger.
    #[error("the ledger {place} cannot be opened")]
    Ledger {
        /// Its path or address.
        place: Place,
        /// Why.
        source: OpenError,
    },
    /// The policy, with its findings.
    #[error("{findings}the policy in {} cannot be served", path.display())]
    Policy {
        /// The folder.
        path: PathBuf,
        /// For people; ends with an empty line.
        findings: String,
    },
    /// A thread or a runtime could not be made.
    #[error("a thread of the process could not be started")]
    Runtime(#[source] io::Error),
    /// The collector of spans.
    #[error("spans cannot be sent")]
    Spans(#[source] SpansError),
    /// The telemetry port.
    #[error("the telemetry address {address} cannot be listened on")]
    Telemetry {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The admin API's tokens.
    #[error("the admin API's tokens cannot be used")]
    Tokens(#[source] TokensError),
    /// A thread of the process panicked; its message is in the log.
    #[error("a thread of the process died; this is a defect of takeback")]
    Thread,
}

fn reason(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another sidecar answers there",
        io::ErrorKind::AlreadyExists => "there is a file that is no socket",
        io::ErrorKind::NotFound => "its folder is not there",
        io::ErrorKind::PermissionDenied => "its folder may not be written",
        _ => "the system refuses",
    }
}

/// How a sidecar ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Writes that were cut by the end of the drain; their entries are unknown.
    pub forced: usize,
}

/// Who asks a sidecar to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signals {
    /// Only [`Running::stop`]: for a sidecar inside another program.
    Ignored,
    /// SIGTERM and SIGINT too.
    Obeyed,
}

/// A sidecar that serves. Dropping it without [`Running::join`] cuts what is under way.
#[derive(Debug)]
pub struct Running {
    /// Where agents connect.
    pub data: SocketAddr,
    /// Where probes and metrics are read.
    pub telemetry: SocketAddr,
    /// The admin socket.
    pub admin: PathBuf,
    stop: Arc<watch::Sender<Stop>>,
    control: Option<JoinHandle<Ended>>,
}

impl Running {
    /// Asks it to stop, as SIGTERM does; a second time: to stop at once.
    pub fn stop(&self) {
        control::ask(&self.stop, Stop::Drain);
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    ///
    /// [`AppError::Thread`].
    pub fn join(mut self) -> Result<Ended, AppError> {
        match self.control.take().map(JoinHandle::join) {
            Some(Ok(ended)) => Ok(ended),
            Some(Err(_)) | None => Err(AppError::Thread),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(control) = self.control.take() {
            control::ask(&self.stop, Stop::Now);
            // The ledger's lock is free when this returns. A panic was logged where it happened.
            drop(control.join());
        }
    }
}

/// Starts a sidecar and serves until a signal ends it.
///
/// # Errors
///
/// See [`AppError`].
pub fn run(config: Config) -> Result<Ended, AppError> {
    start(config, Signals::Obeyed)?.join()
}

/// Starts a sidecar in this process; returns when it serves. Blocks for the start.
///
/// # Errors
///
/// See [`AppError`].
pub fn start(config: Config, signals: Signals) -> Result<Running, AppError> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let clock = Clock::system(newest_ms(&config.ledger));
    // The bucket lists are constants, and a test makes them.
    let metrics = Metrics::new();
    let health = Health::new(clock.clone());
    let tasks = Tasks::new();

    let address = config.telemetry_listen;
    let failed = |source| AppError::Telemetry { address, source };
    let telemetry = std::net::TcpListener::bind(address).map_err(failed)?;
    telemetry.set_nonblocking(true).map_err(failed)?;
    let telemetry_address = telemetry.local_addr().map_err(failed)?;
    let (stop, stopping) = watch::channel(Stop::No);
    let stop = Arc::new(stop);
    let (parts_in, parts) = oneshot::channel();
    let control = control::Control {
        telemetry,
        health: health.clone(),
        metrics: metrics.clone(),
        tasks: tasks.clone(),
        parts,
        stop: Arc::clone(&stop),
        stopping,
        signals,
    };
    let control = std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || control.run())
        .map_err(AppError::Runtime)?;
    // From here on a failure ends the control thread: it is told by the drop of `parts_in`.
    let running = |data, admin| Running {
        data,
        telemetry: telemetry_address,
        admin,
        stop: Arc::clone(&stop),
        control: Some(control),
    };
    match build(config, clock, metrics, &health, tasks, &stop) {
        Ok(built) => {
            let Built { parts, data, admin } = built;
            let running = running(data, admin);
            if parts_in.send(parts).is_err() {
                return Err(AppError::Thread);
            }
            health.waits_for(None);
            tracing::info!(
                listen = %running.data,
                telemetry = %running.telemetry,
                admin = %running.admin.display(),
                "serving"
            );
            Ok(running)
        }
        Err(error) => {
            drop(parts_in);
            drop(running(address, PathBuf::new()));
            Err(error)
        }
    }
}

struct Built {
    parts: Parts,
    data: SocketAddr,
    admin: PathBuf,
}

/// Steps 2 to 5 of the start.
fn build(
    config: Config,
    clock: Clock,
    metrics: Metrics,
    health: &Health,
    tasks: Tasks,
    stop: &watch::Sender<Stop>,
) -> Result<Built, AppError> {
    health.waits_for(Some("the ledger"));
    let options = Options {
        keys: config.ledger_keys.clone(),
        retention: config.ledger_retention,
        ..Options::default()
    };
    let (ledger, recovered) = open_ledger(&config.ledger, &options, &clock, stop)?;
    health.watch(ledger.clone());
    if let Some(file) = config.ledger.file() {
        metrics.watch_volume(file);
    }
    metrics.common().ledger_recovered.increment(recovered.unknown);
    if recovered.unknown > 0 {
        let entries = recovered.unknown;
        tracing::warn!(entries, "writes of an earlier run are of unknown outcome");
    }

    let built = build_on(ledger.clone(), config, clock, metrics, health, tasks);
    if built.is_err() {
        // Another start may follow at once: its lock is free then.
        ledger.close_blocking();
    }
    built
}

/// Opens the ledger. A database that cannot be reached is waited for: it may start later than its
/// clients, and a restart of this process would not bring it nearer.
fn open_ledger(
    place: &Place,
    options: &Options,
    clock: &Clock,
    stop: &watch::Sender<Stop>,
) -> Result<(Ledger, Recovered), AppError> {
    let mut pause = OPEN_AGAIN.0;
    loop {
        match Ledger::open(place, options.clone(), clock.now_ms()) {
            Ok(opened) => return Ok(opened),
            Err(error) if error.is_temporary() && *stop.borrow() == Stop::No => {
                tracing::warn!(%place, %error, "the start waits for the ledger");
                std::thread::sleep(pause);
                pause = (pause * 2).min(OPEN_AGAIN.1);
            }
            Err(source) => return Err(AppError::Ledger { place: place.clone(), source }),
        }
    }
}

/// Between two attempts to reach the ledger's database: from the first, doubling, to the second.
const OPEN_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Steps 3 to 5 of the start.
fn build_on(
    ledger: Ledger,
    config: Config,
    clock: Clock,
    metrics: Metrics,
    health: &Health,
    tasks: Tasks,
) -> Result<Built, AppError> {
    health.waits_for(Some("the policy"));
    let faulty = if config.is_strict { Faulty::Rejected } else { Faulty::Served };
    let mut watch = Watch::new(&config.policies).with_faulty(faulty).with_grace(config.drain.grace);
    let (snapshot, findings) = load_policy(&config, &mut watch)?;
    let live = Live::new(snapshot, &metrics);
    let status = admin_policy::Status::default();
    status.applied(findings, clock.now_ms());
    let common = metrics.common();
    let [applied, ..] = &common.reloads;
    applied.increment(1);
    common.last_reload_ok.set(1.0);
    common.last_reload_seconds.set(seconds(clock.now_ms()));
    health.policy_in_force();

    let spans = Spans::from_environment(clock.clone()).map_err(AppError::Spans)?;
    health.waits_for(Some("the listeners"));
    let drain = Drain::new();
    let shared = Arc::new(Shared {
        policies: Policies::new(live),
        sealer: Sealer::new(ledger.sealing_key()),
        ledger,
        metrics,
        clock,
        budget: Budget::new(config.limits.body_budget_bytes),
        settings: Settings { spans, ..settings(&config) },
        tasks: tasks.clone(),
        mcp: McpState::default(),
        under_way: UnderWay::default(),
    });
    if config.ledger.file().is_none() {
        make_folder(&config.admin_listen)
            .map_err(|source| AppError::Admin { path: config.admin_listen.clone(), source })?;
    }
    let admin_socket = bind_unix(&config.admin_listen)
        .map_err(|source| AppError::Admin { path: config.admin_listen.clone(), source })?;
    let admin_network =
        config.admin_network.as_ref().map(|network| open_admin(network, &shared.clock));
    let admin_network = admin_network.transpose()?;
    let mut upstream = upstream::Config {
        protocol: config.upstream.protocol.clone(),
        ..upstream::Config::new(config.upstream.authority.clone())
    };
    let wanted = descriptors::Shares {
        connections: config.limits.connections,
        inflight: config.limits.inflight,
        idle: upstream.idle_connections,
    };
    let shares = descriptors::share(wanted, config.limits.workers.get());
    let limits = server::Limits {
        connections: shares.connections,
        head: config.timeouts.request_head,
        keep_alive: config.timeouts.keep_alive,
        ..server::Limits::default()
    };
    // A stream keeps its connection while it rests, and all of them may be with one worker.
    upstream.connections = upstream.connections.max(shares.inflight);
    upstream.idle_connections = shares.idle;
    let security = Security {
        tls: config.tls.as_ref().map(|tls| Arc::clone(&tls.value)),
        san: config.principal.san,
    };
    let listeners =
        server::bind(config.listen, config.limits.workers, &limits).map_err(AppError::Bind)?;
    let data = listeners.first().map_or(config.listen, server::Listener::address);
    let places = Places::new(shares.inflight);
    let mcp_paths: Arc<[String]> = config.mcp.paths.clone().into();
    let methods = Arc::new(Methods::new(config.mcp.allow_methods.clone()));
    let draining = Arc::new(AtomicBool::new(false));
    let (end, ending) = watch::channel(false);
    let mut workers = Vec::with_capacity(listeners.len());
    for (index, listener) in listeners.into_iter().enumerate() {
        let worker = Worker {
            listener: listener.with_security(security.clone()),
            shared: Arc::clone(&shared),
            upstream: upstream.clone(),
            places: places.clone(),
            mcp_paths: Arc::clone(&mcp_paths),
            methods: Arc::clone(&methods),
            draining: Arc::clone(&draining),
            drain: drain.clone(),
            pulse: health.worker(),
            ending: ending.clone(),
        };
        match worker.start(index) {
            Ok(started) => workers.push(started),
            Err(error) => {
                // Those that run already would serve on.
                drain.begin(Duration::ZERO);
                return Err(AppError::Runtime(error));
            }
        }
    }
    let (reloads, asks) = mpsc::channel(admin_policy::ASKS);
    let (drains, drain_asks) = mpsc::channel(1);
    let parts = Parts {
        watch,
        asks,
        files: files::watched(&config, &shared.metrics),
        admin: Admin {
            fetch: Fetch {
                shared: Arc::clone(&shared),
                upstream: Upstream::new(upstream, tasks),
                drain: drain.clone(),
            },
            shared,
            ledger: config.ledger.clone(),
            keys: config.ledger_keys.clone(),
            reconciling: tokio::sync::Mutex::new(()),
            policy: status,
            reloads,
            health: health.clone(),
            drains,
            grace: config.drain.grace,
        },
        drain_asks,
        admin_socket,
        admin_network,
        admin_path: config.admin_listen.clone(),
        workers,
        draining,
        drain,
        end,
        times: config.drain,
        source: config.source,
    };
    Ok(Built { parts, data, admin: config.admin_listen })
}

/// Makes the folder of a socket that lies beside no ledger, for the owner alone.
fn make_folder(socket: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    match socket.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
        }
        Some(_) | None => Ok(()),
    }
}

/// The admin API's listener on a network address, and what stands before it.
fn open_admin(network: &AdminNetwork, clock: &Clock) -> Result<AdminListener, AppError> {
    let tokens = Tokens::open(&network.tokens_file).map_err(AppError::Tokens)?;
    let failed = |source| AppError::AdminAddress { address: network.address, source };
    let listener = std::net::TcpListener::bind(network.address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let tls = network.tls.as_ref().map(|tls| Arc::clone(&tls.value));
    let is_tls = tls.is_some();
    tracing::info!(%address, tls = is_tls, "the admin API is on the network too, with tokens");
    let gate = match tls {
        Some(_) => Gate::behind_tls(tokens, clock.clone()),
        None => Gate::new(tokens, address, clock.clone()),
    };
    Ok(AdminListener { socket: listener, gate, tls })
}

/// The newest time that the ledger knows, or 0: time does not start before it.
fn newest_ms(ledger: &Place) -> i64 {
    // A ledger that does not read is told when it is opened.
    ReadOnly::newest_ms(ledger).unwrap_or(0)
}

/// Loads the first policy.
fn load_policy(
    config: &Config,
    watch: &mut Watch,
) -> Result<(policy::Snapshot, Vec<policy::Diagnostic>), AppError> {
    let compiled = watch.first();
    let is_refused = config.is_strict && compiled.has_errors();
    let findings = compiled.human_errors();
    match compiled.snapshot.filter(|_| !is_refused) {
        Some(snapshot) => {
            reload::announce(&snapshot, &compiled.diagnostics);
            Ok((snapshot, compiled.diagnostics))
        }
        None => Err(AppError::Policy { path: config.policies.clone(), findings }),
    }
}

fn settings(config: &Config) -> Settings {
    // Unique, so that two sidecars on one way do not take each other for a loop.
    let mut random = [0; 4];
    fill_random(&mut random);
    let limits = &config.limits;
    let timeouts = &config.timeouts;
    Settings {
        // Once for each process.
        report_header: Box::leak(Box::new(config.report_header.clone())),
        mode: config.mode,
        limits: Limits {
            request_body_bytes: limits.request_body_bytes,
            response_body_bytes: limits.response_body_bytes,
            request_idle: timeouts.request_idle,
        },
        timeouts: Timeouts {
            connect: timeouts.connect,
            head: timeouts.head,
            idle: timeouts.idle,
            total: timeouts.total,
        },
        first_look: timeouts.lookup,
        pseudonym: format!("takeback-{:08x}", u32::from_be_bytes(random)),
        upstream_authority: config.upstream.host.clone(),
        upstream_base: config.upstream.base.clone(),
        upstream_headers: config
            .upstream
            .headers
            .as_ref()
            .map(|headers| headers.value.clone())
            .unwrap_or_default(),
        principals: config.principal.sources.clone(),
        spans: None,
        mcp: McpSettings {
            path: config.mcp.paths.first().cloned().unwrap_or_else(|| "/mcp".to_owned()),
            trust_annotations: config.mcp.trust_annotations,
            reports: config.mcp.reports,
            call_route: config.mcp.call_route,
            ..McpSettings::default()
        },
    }
}

/// Milliseconds as the seconds that metrics count in.
fn seconds(at_ms: i64) -> f64 {
    // Exact below 2^32 s; metrics need no more.
    let whole = u32::try_from(at_ms / 1000).unwrap_or(u32::MAX);
    let rest = u32::try_from(at_ms % 1000).unwrap_or(0);
    f64::from(whole) + f64::from(rest) / 1000.0
}

#[cfg(test)]
mod tests;
