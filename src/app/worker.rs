//! One worker: a thread with its own listener, runtime, connections and stack.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tower::Service as _;

use crate::admin::health::Pulse;
use crate::admit::Places;
use crate::mcp::Methods;
use crate::metrics;
use crate::pipeline::Shared;
use crate::pipeline::settle::rearm;
use crate::proxy::{Context, stack};
use crate::server::{Drain, Listener};
use crate::upstream::{self, Upstream};

/// How often a worker shows that it runs.
const BEAT: Duration = Duration::from_secs(1);

/// What one worker is made from.
pub(super) struct Worker {
    pub(super) listener: Listener,
    pub(super) shared: Arc<Shared>,
    pub(super) upstream: upstream::Config,
    pub(super) places: Places,
    pub(super) mcp_paths: Arc<[String]>,
    pub(super) methods: Arc<Methods>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) drain: Drain,
    pub(super) pulse: Pulse,
    /// True when the worker may end: its writes are done, or are cut.
    pub(super) ending: watch::Receiver<bool>,
}

/// A worker that runs.
pub(super) struct Started {
    /// Tells when its connections are closed.
    pub(super) closed: oneshot::Receiver<()>,
    pub(super) thread: JoinHandle<()>,
}

impl Worker {
    /// Starts its thread; its runtime is made here, so that a failure is told.
    pub(super) fn start(self, index: usize) -> io::Result<Started> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (closing, closed) = oneshot::channel();
        let thread =
            std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                metrics::enter(index);
                runtime.block_on(self.run(index, closing));
                // Dropping the runtime drops what is left of the writes: each finishes its entry as unknown.
                drop(runtime);
            })?;
        Ok(Started { closed, thread })
    }

    async fn run(self, index: usize, closing: oneshot::Sender<()>) {
        let Self { listener, shared, pulse, mut ending, drain, .. } = self;
        let tasks = shared.tasks.clone();
        let upstream = Upstream::new(self.upstream, tasks.clone());
        let cx = Context {
            shared,
            upstream: upstream.clone(),
            places: self.places.apart(),
            mcp_paths: self.mcp_paths,
            methods: self.methods,
            draining: self.draining,
            drain: drain.clone(),
        };
        if index == 0 {
            let shared = Arc::clone(&cx.shared);
            drop(tasks.spawn_background("waiting entries", async move { rearm(&shared).await }));
        }
        drop(tasks.spawn_background("pulse", async move {
            loop {
                pulse.beat();
                tokio::time::sleep(BEAT).await;
            }
        }));
        let stack = stack(&cx);
        let service = move |arrival| {
            let answering = stack.clone().call(arrival);
            async move {
                match answering.await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
        };
        match listener.serve(service, tasks, drain).await {
            Ok(served) if served.cut > 0 => {
                tracing::warn!(connections = served.cut, "connections were cut at the drain's end");
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "a worker could not serve its listener"),
        }
        // Nobody waits for it if the start failed.
        let _nobody_waits = closing.send(());
        // Fails only if the sender is gone, which means the same.
        drop(ending.wait_for(|may_end| *may_end).await);
        upstream.close();
    }
}
