//! The policy in force, with the metrics of its operations; swapped whole.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, Guard};
use http::HeaderValue;

use crate::call::Transport;
use crate::contract::class::{Class, Mode};
use crate::contract::key::Place;
use crate::contract::operation::{Operation, Target};
use crate::contract::report::static_read_header;
use crate::metrics::{self, Metrics, OperationMetrics};
use crate::policy::{Ceiling, Served, Snapshot};

/// A handle to the policy in force.
#[derive(Debug)]
pub struct Policies {
    current: ArcSwap<Live>,
}

impl Policies {
    /// Serves a first policy.
    pub fn new(live: Live) -> Self {
        Self { current: ArcSwap::from_pointee(live) }
    }

    /// The policy in force, for the time that it takes to find out what a call is. It costs no count
    /// that all workers share, as [`Policies::load`] does.
    pub fn peek(&self) -> Guard<Arc<Live>> {
        self.current.load()
    }

    /// The policy in force; a call that takes it keeps it to its end.
    pub fn load(&self) -> Arc<Live> {
        self.current.load_full()
    }

    /// Puts another policy in force for calls that come from now on.
    pub fn swap(&self, live: Live) {
        self.current.store(Arc::new(live));
    }
}

/// What a read is served as. Each worker has its own, so that a read that takes it to its end counts
/// nothing that workers share: a count that two cores write costs more than the rest of a look-up.
#[derive(Debug)]
pub struct Matched {
    /// The operation.
    pub served: Arc<Served>,
    /// Its metrics.
    pub metrics: Arc<OperationMetrics>,
    /// The report of a read, as a header; a copy, whose count is no other's.
    pub header: HeaderValue,
}

impl Matched {
    /// Of an operation.
    pub fn new(served: Arc<Served>, metrics: Arc<OperationMetrics>) -> Self {
        let header = &served.read_header;
        // A copy of a value is a value, so this cannot fail.
        let copy = HeaderValue::from_bytes(header.as_bytes()).unwrap_or_else(|_| header.clone());
        Self { served, metrics, header: copy }
    }
}

/// An operation's metrics, however they are held.
#[derive(Debug)]
pub enum Metered {
    /// A read's.
    Matched(Arc<Matched>),
    /// Themselves.
    Own(Arc<OperationMetrics>),
}

impl Deref for Metered {
    type Target = OperationMetrics;

    fn deref(&self) -> &OperationMetrics {
        match self {
            Self::Matched(matched) => &matched.metrics,
            Self::Own(metrics) => metrics,
        }
    }
}

/// One policy in force.
pub struct Live {
    /// The compiled files.
    pub snapshot: Snapshot,
    /// Metrics by [`Served::index`].
    metrics: Vec<Arc<OperationMetrics>>,
    /// By worker, and by [`Served::index`]; made when it is first asked for.
    matched: Vec<Vec<OnceLock<Arc<Matched>>>>,
    undeclared: Vec<Undeclared>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("revision", &self.snapshot.revision()).finish_non_exhaustive()
    }
}

/// The position of what is no operation of the policy.
pub const UNDECLARED: usize = usize::MAX;

/// What an undeclared call of one class is served as.
struct Undeclared {
    class: Class,
    transport: Transport,
    served: Arc<Served>,
    metrics: Arc<OperationMetrics>,
}

impl Live {
    /// Prepares a policy: every series that can occur exists from here on.
    pub fn new(snapshot: Snapshot, metrics: &Metrics) -> Self {
        let of = |served: &Arc<Served>| {
            let operation = &served.operation;
            if operation.draft.is_some() {
                metrics.staged(&operation.id);
            }
            let transport = match &operation.target {
                Target::Http { .. } => Transport::Http,
                Target::Tool { .. } => Transport::Mcp,
            };
            metrics.operation(
                &operation.id,
                operation.class,
                transport.as_str(),
                &operation.carrier.place,
            )
        };
        let by_index: Vec<_> = snapshot.operations().iter().map(of).collect();
        let none = || by_index.iter().map(|_| OnceLock::new()).collect();
        let matched = (0..metrics::workers()).map(|_| none()).collect();
        let level = snapshot.undeclared_level();
        let mut undeclared = Vec::new();
        for transport in [Transport::Http, Transport::Mcp] {
            for class in Class::ALL.iter().copied() {
                let is_possible = match transport {
                    Transport::Http => true,
                    // A read only where the upstream's annotations are trusted.
                    Transport::Mcp => matches!(class, Class::Irreversible | Class::Read),
                };
                if !is_possible {
                    continue;
                }
                let operation = Operation::undeclared(class, level, snapshot.undeclared_mode());
                let metrics = metrics.operation(
                    &operation.id,
                    class,
                    transport.as_str(),
                    &Place::Unsupported,
                );
                let served = Arc::new(stand_in(operation));
                undeclared.push(Undeclared { class, transport, served, metrics });
            }
        }
        for class in Class::ALL {
            let count =
                snapshot.operations().iter().filter(|s| s.operation.class == *class).count();
            if let Some(gauge) = metrics.common().policy_operations.gauge(*class) {
                gauge.set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
            }
        }
        metrics.policy_in_force(&snapshot.revision().to_hex());
        Self { snapshot, metrics: by_index, matched, undeclared }
    }

    /// A declared operation's metrics.
    pub fn metrics(&self, served: &Served) -> Option<Arc<OperationMetrics>> {
        self.metrics.get(served.index).cloned()
    }

    /// What a declared read is served as on this worker.
    pub fn matched(&self, served: &Arc<Served>) -> Option<Arc<Matched>> {
        let worker = metrics::own().checked_rem(self.matched.len())?;
        let metrics = self.metrics.get(served.index)?;
        let make = || Arc::new(Matched::new(Arc::clone(served), Arc::clone(metrics)));
        let matched = self.matched.get(worker)?.get(served.index)?.get_or_init(make);
        Some(Arc::clone(matched))
    }

    /// What an undeclared call is served as.
    pub fn undeclared(
        &self,
        transport: Transport,
        class: Class,
    ) -> Option<(Arc<Served>, Arc<OperationMetrics>)> {
        self.undeclared
            .iter()
            .find(|undeclared| undeclared.class == class && undeclared.transport == transport)
            .map(|found| (Arc::clone(&found.served), Arc::clone(&found.metrics)))
    }

    /// The mode of undeclared calls.
    pub fn undeclared_mode(&self) -> Mode {
        self.snapshot.undeclared_mode()
    }
}

/// What an undeclared call is served as.
fn stand_in(operation: Operation) -> Served {
    Served {
        read_header: static_read_header(&operation.id),
        operation,
        index: UNDECLARED,
        notes: Vec::new(),
        ceiling: Ceiling::None,
        schema_sha256: None,
        file: "".into(),
        line: 0,
    }
}
