use super::{
    client::Client,
    gateway::Gateway,
    guide::Guide,
    screen::{Colour, Screen},
};
use crate::admit::Places;
use crate::call::payload::Budget;
use crate::clock::Clock;
use crate::contract::class::Mode;
use crate::ledger::{Embedded, Ledger, Options};
use crate::mcp::Methods;
use crate::metrics::Metrics;
use crate::pipeline::confirmation::Sealer;
use crate::pipeline::live::{Live, Policies};
use crate::pipeline::{Limits, Settings, Shared, Timeouts};
use crate::policy;
use crate::proxy::{Context, stack};
use crate::server::{self, Drain};
use crate::tasks::Tasks;
use crate::upstream::{self, Authority};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tower::Service;
#[test]
fn scratch() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = Embedded::open(&directory.path().join("l.db"), Options::default(), 0).unwrap();
    let ledger = Ledger::Embedded(store);
    let compiled = policy::load(std::path::Path::new("policies/github-mini"));
    let metrics = Metrics::new().unwrap();
    let live = Live::new(compiled.snapshot.unwrap(), &metrics);
    let tasks = Tasks::new();
    let long = Duration::from_secs(60);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let gateway = Gateway::start(&tasks).await.unwrap();
        let upstream = gateway.address();
        let shared = Arc::new(Shared {
            policies: Policies::new(live),
            sealer: Sealer::new(ledger.sealing_key()),
            ledger,
            metrics,
            clock: Clock::system(0),
            budget: Budget::new(64 << 20),
            settings: Settings {
                report_header: crate::http::headers::REPORT,
                mode: Mode::Enforce,
                limits: Limits {
                    request_body_bytes: 1 << 20,
                    response_body_bytes: 1 << 20,
                    request_idle: long,
                },
                timeouts: Timeouts { connect: long, head: long, idle: long, total: long },
                pseudonym: "x".into(),
                upstream_authority: upstream.to_string(),
                upstream_base: String::new(),
                upstream_headers: Vec::new(),
            },
            tasks: tasks.clone(),
        });
        let limits = server::Limits::default();
        let listener =
            server::bind("127.0.0.1:0".parse().unwrap(), NonZeroUsize::new(1).unwrap(), &limits)
                .unwrap()
                .pop()
                .unwrap();
        let address = listener.address();
        let cx = Context {
            shared,
            upstream: upstream::Upstream::new(
                upstream::Config::new(
                    Authority::new(&upstream.ip().to_string(), upstream.port()).unwrap(),
                ),
                tasks.clone(),
            ),
            places: Places::new(256),
            mcp_paths: vec!["/mcp".to_owned()].into(),
            methods: Arc::new(Methods::new([])),
            draining: Arc::new(AtomicBool::new(false)),
        };
        let admin = directory.path().join("a.sock"); { let a = Arc::new(crate::admin::Admin { shared: Arc::clone(&cx.shared), upstream: cx.upstream.clone(), ledger: directory.path().join("l.db"), reconciling: tokio::sync::Mutex::new(()) });
        let l = crate::admin::listen::bind_unix(&admin).unwrap(); l.set_nonblocking(true).unwrap(); let l = tokio::net::UnixListener::from_std(l).unwrap();
        let t3 = tasks.clone(); let _h = tasks.spawn_background("y", async move { crate::admin::listen::serve(crate::admin::listen::Listener::Unix(l), crate::admin::router(a), crate::admin::listen::Bounds::ADMIN, t3).await }); }
        let stack = stack(&cx);
        let serve = move |arrival| {
            let mut stack = stack.clone();
            async move {
                match stack.call(arrival).await {
                    Ok(r) => r,
                    Err(never) => match never {},
                }
            }
        };
        let t2 = tasks.clone();
        let _h = tasks.spawn_background("x", async move {
            listener.serve(serve, t2, Drain::new()).await.unwrap();
        });
        let mut guide = Guide {
            agent: Client::new(address, &tasks),
            gateway: Client::new(upstream, &tasks), admin,
            screen: Screen::new(std::io::stdout(), 100, Colour::Off),
        };
        guide.read().await.unwrap();
        guide.reversible().await.unwrap();
        guide.compensable().await.unwrap();
        guide.irreversible().await.unwrap();
        guide.repeated().await.unwrap();
        guide.lost().await.unwrap();
        guide.mcp().await.unwrap(); guide.ledger().await.unwrap();
    });
}
