//! A sidecar in this process: the real stack on a real socket with a real ledger file.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use takeback::admit::Places;
use takeback::call::payload::Budget;
use takeback::clock::{Clock, ManualClock};
use takeback::contract::class::Mode;
use takeback::http::injected::Injected;
use takeback::ledger::{Embedded, Ledger, Options};
use takeback::mcp::Methods;
use takeback::metrics::Metrics;
use takeback::pipeline::confirmation::Sealer;
use takeback::pipeline::fetch::Fetch;
use takeback::pipeline::live::{Live, Policies};
use takeback::pipeline::reconcile::background;
use takeback::pipeline::under_way::UnderWay;
use takeback::pipeline::{Limits, McpSettings, McpState, Settings, Shared, Timeouts};
use takeback::policy;
use takeback::principal::Sources;
use takeback::proxy::{Context, stack};
use takeback::server::{self, Drain};
use takeback::tasks::Tasks;
use takeback::upstream::{self, Authority};
use tower::Service;

use super::{Agent, Upstream};

pub struct Sidecar {
    pub address: SocketAddr,
    pub shared: Arc<Shared>,
    pub drain: Drain,
    pub places: Places,
    pub ledger_path: PathBuf,
    upstream: SocketAddr,
    _directory: tempfile::TempDir,
}

/// How a sidecar is made.
pub struct Setup {
    pub policy: String,
    /// A folder of policy files and catalogs, instead of `policy`.
    pub folder: Option<PathBuf>,
    pub mode: Mode,
    pub timeouts: Timeouts,
    pub limits: Limits,
    pub base: &'static str,
    pub places: usize,
    pub clock: Option<Clock>,
    pub mcp: McpSettings,
    pub delivered_after: Duration,
    pub report_header: &'static str,
    pub pseudonym: &'static str,
    /// The key of a ledger that this one is to share; its own otherwise.
    pub key: Option<[u8; 32]>,
}

impl Setup {
    pub fn new(policy: &str) -> Self {
        let long = Duration::from_secs(60);
        Self {
            policy: policy.to_owned(),
            folder: None,
            mode: Mode::Enforce,
            timeouts: Timeouts { connect: long, head: long, idle: long, total: long },
            limits: Limits {
                request_body_bytes: 1 << 20,
                response_body_bytes: 1 << 20,
                request_idle: long,
            },
            base: "",
            places: 256,
            clock: None,
            mcp: McpSettings::default(),
            delivered_after: long,
            report_header: "x-anvil-effect",
            pseudonym: "takeback-test",
            key: None,
        }
    }

    /// Serves a folder of policies.
    pub fn of_folder(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()), ..Self::new("") }
    }

    /// A clock that the test moves.
    pub fn manual_clock(mut self) -> (Self, ManualClock) {
        let (clock, hand) = Clock::manual(1_800_000_000_000);
        self.clock = Some(clock);
        (self, hand)
    }

    pub fn start(self, upstream: &Upstream) -> Sidecar {
        self.start_at(upstream.address)
    }

    pub fn start_at(self, upstream: SocketAddr) -> Sidecar {
        let directory = tempfile::tempdir().unwrap();
        let ledger_path = directory.path().join("ledger.db");
        let (store, _) = Embedded::open(&ledger_path, Options::default(), 0).unwrap();
        let ledger = Ledger::Embedded(store);
        let compiled = match &self.folder {
            Some(folder) => policy::load(folder),
            None => policy::compile(vec![("test.yaml".to_owned(), self.policy.clone())]),
        };
        assert!(!compiled.has_errors(), "{}", compiled.human());
        let metrics = Metrics::new();
        let live = Live::new(compiled.snapshot.unwrap(), &metrics);
        let tasks = Tasks::new();
        let shared = Arc::new(Shared {
            policies: Policies::new(live),
            sealer: Sealer::new(self.key.unwrap_or(ledger.sealing_key())),
            ledger,
            metrics,
            clock: self.clock.clone().unwrap_or_else(|| Clock::system(0)),
            budget: Budget::new(64 << 20),
            settings: Settings {
                report_header: Box::leak(Box::new(http::HeaderName::from_static(
                    self.report_header,
                ))),
                mode: self.mode,
                limits: self.limits.clone(),
                timeouts: self.timeouts,
                first_look: Duration::from_secs(5),
                pseudonym: self.pseudonym.to_owned(),
                upstream_authority: upstream.to_string(),
                upstream_base: self.base.to_owned(),
                upstream_headers: Injected::default(),
                principals: Sources::default(),
                spans: None,
                mcp: self.mcp.clone(),
            },
            tasks: tasks.clone(),
            mcp: McpState::default(),
            under_way: UnderWay::default(),
        });
        let limits = server::Limits { delivered_after: self.delivered_after, ..Default::default() };
        let one = NonZeroUsize::new(1).unwrap();
        let listener =
            server::bind("127.0.0.1:0".parse().unwrap(), one, &limits).unwrap().pop().unwrap();
        let address = listener.address();
        let drain = Drain::new();
        let places = Places::new(self.places);
        let (cx_shared, cx_drain, cx_places) = (Arc::clone(&shared), drain.clone(), places.clone());
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let authority = Authority::new(&upstream.ip().to_string(), upstream.port()).unwrap();
            runtime.block_on(async move {
                let cx = Context {
                    shared: cx_shared,
                    upstream: upstream::Upstream::new(
                        upstream::Config::new(authority),
                        tasks.clone(),
                    ),
                    places: cx_places,
                    mcp_paths: vec!["/mcp".to_owned()].into(),
                    methods: Arc::new(Methods::new([])),
                    draining: Arc::new(AtomicBool::new(false)),
                    drain: cx_drain.clone(),
                };
                let stack = stack(&cx);
                let serve = move |arrival| {
                    let mut stack = stack.clone();
                    async move {
                        match stack.call(arrival).await {
                            Ok(response) => response,
                            Err(never) => match never {},
                        }
                    }
                };
                listener.serve(serve, tasks.clone(), cx_drain).await.unwrap();
                tasks.wait_idle().await;
            });
        });
        Sidecar { address, shared, drain, places, ledger_path, upstream, _directory: directory }
    }
}

impl Sidecar {
    pub fn start(policy: &str, upstream: &Upstream) -> Self {
        Setup::new(policy).start(upstream)
    }

    /// Reads as the running sidecar makes them of itself.
    pub fn fetch(&self) -> Fetch {
        let authority =
            Authority::new(&self.upstream.ip().to_string(), self.upstream.port()).unwrap();
        let config = upstream::Config::new(authority);
        let upstream = upstream::Upstream::new(config, self.shared.tasks.clone());
        Fetch { shared: Arc::clone(&self.shared), upstream, drain: self.drain.clone() }
    }

    /// Looks at what is due, as the running sidecar does of itself; says how many entries that were.
    pub fn look(&self) -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { background::tick(&self.fetch()).await.unwrap() })
    }

    pub fn agent(&self) -> Agent {
        Agent::connect(self.address)
    }

    /// The state and cause of every entry, oldest first, as a ledger reader sees them once nothing is
    /// queued any more.
    pub fn entries(&self) -> Vec<(String, String)> {
        let connection = rusqlite::Connection::open_with_flags(
            &self.ledger_path,
            rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY,
        )
        .unwrap();
        let mut rows = connection
            .prepare("SELECT state, coalesce(cause, '') FROM entries ORDER BY entry")
            .unwrap();
        rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap()
    }

    /// Waits until the entries are these.
    pub fn wait_entries(&self, expected: &[(&str, &str)]) {
        let expected: Vec<(String, String)> =
            expected.iter().map(|(s, c)| ((*s).to_owned(), (*c).to_owned())).collect();
        let mut seen = Vec::new();
        let reached = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            super::wait::until("entries", || {
                seen = self.entries();
                (seen == expected).then_some(())
            });
        }));
        assert!(reached.is_ok(), "expected {expected:?}, the ledger has {seen:?}");
    }
}
