//! Every metric there is: names, labels, buckets, help; in one place.
//!
//! Labels are closed words or ids that the policy declares, never a value from a request, so the
//! number of series is bounded by the policy (standards M-4). A series that can occur exists at 0 from
//! the moment the policy loads: a counter that is born at 1 never fires an `increase` alert. Handles are
//! looked up once, at load; the request path only adds to them.
//!
//! The recorder is owned, not global: two sidecars in one process (the tests) do not share counts. It
//! cannot drop a series, so what has a value that passes (the policy's revision) is not in it but
//! written beside it, as is what the system says of the process (`host`). What each call adds to is kept
//! apart for each worker (`cells`): counts and levels are brought into the recorder when it is asked,
//! histograms are written beside it.

mod cells;
mod host;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::contract::class::{Class, Disposition, Outcome, Verdict, words};
use crate::contract::key::{OperationId, Place};
use crate::contract::report::UndoKind;
use cells::{Buckets, Cells, Count, Level as Depth};
pub use cells::{enter, own, workers};

/// How many declared operations get series of their own; the rest share `_other`.
pub const MAX_OPERATIONS: usize = 500;

const DURATION_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0];
const OVERHEAD_BUCKETS: &[f64] =
    &[0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25];
const LEDGER_BUCKETS: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];
const BODY_BUCKETS: &[f64] =
    &[256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0];

words! {
    /// What the proxy decided of a call.
    Decision {
        /// It was sent.
        Forwarded = "forwarded",
        /// The recorded answer was given.
        Replayed = "replayed",
        /// The draft form was sent.
        Staged = "staged",
        /// It must be confirmed first.
        ConfirmationRequired = "confirmation_required",
        /// A repeat was refused.
        DuplicateRefused = "duplicate_refused",
        /// A rule refused it.
        PolicyRefused = "policy_refused",
        /// The ledger could not take the entry.
        LedgerUnavailable = "ledger_unavailable",
        /// It was sent, and enforcement would have refused it (observe mode).
        WouldRefuse = "would_refuse",
    }
}

words! {
    /// What became of the key.
    KeyResult {
        /// It was put in.
        Injected = "injected",
        /// It was there.
        CallerSupplied = "caller_supplied",
        /// Two keys differed.
        Conflict = "conflict",
        /// The upstream takes none.
        Unsupported = "unsupported",
    }
}

words! {
    /// What became of a repeat.
    DuplicateResult {
        /// Got the recorded answer.
        Replayed = "replayed",
        /// Refused: the first is in flight.
        RefusedInFlight = "refused_in_flight",
        /// Refused: the first is of unknown outcome.
        RefusedUnknown = "refused_unknown",
        /// Refused: the key belongs to another call, or the repeat is not allowed.
        RefusedMismatch = "refused_mismatch",
    }
}

words! {
    /// What became of a confirmation.
    ConfirmationResult {
        /// One was asked for.
        Required = "required",
        /// It counted.
        Accepted = "accepted",
        /// It was given for another call.
        Mismatched = "mismatched",
        /// It came too late.
        Expired = "expired",
        /// It was used before.
        Reused = "reused",
        /// It was not ours.
        Forged = "forged",
    }
}

words! {
    /// Whether an undo could be reported.
    Availability {
        /// It was.
        Available = "available",
        /// An argument named nothing.
        ArgumentMissing = "argument_missing",
        /// Its time is over.
        DeadlinePassed = "deadline_passed",
        /// None is declared.
        NotDeclared = "not_declared",
    }
}

words! {
    /// Why a request was refused before it was classified.
    Rejected {
        /// A path with more than one reading.
        AmbiguousPath = "ambiguous_path",
        /// Odd framing.
        Framing = "framing",
        /// A member named twice.
        DuplicateJsonKey = "duplicate_json_key",
        /// JSON that cannot be read, for another reason.
        InvalidJson = "invalid_json",
        /// A body over the limit.
        BodyTooLarge = "body_too_large",
        /// A body that broke or came too slowly.
        BodyBroken = "body_broken",
        /// A body in a coding that is not read.
        ContentEncoding = "content_encoding",
        /// MCP headers that differ from the body.
        HeaderMismatch = "header_mismatch",
        /// A header that is ours, or spelt like one.
        ReservedHeader = "reserved_header",
        /// A bad host.
        Host = "host",
        /// Nesting beyond the limit.
        Depth = "depth",
        /// A method override, an upgrade, a loop, an expectation.
        Method = "method",
        /// An MCP message that is refused: a batch, an unknown method.
        Message = "message",
        /// No principal where one is required.
        Unauthenticated = "unauthenticated",
        /// Too many calls or bytes at once.
        Overloaded = "overloaded",
        /// The proxy is going away.
        Draining = "draining",
    }
}

words! {
    /// Why no connection to the upstream was made.
    ConnectError {
        /// The name does not resolve.
        Dns = "dns",
        /// Refused, unreachable or reset while connecting.
        Refused = "refused",
        /// Too slow.
        Timeout = "timeout",
        /// All connections are in use.
        Pool = "pool",
        /// The upstream did not look at the request, and said so.
        RefusedStream = "refused_stream",
        /// The TLS handshake failed.
        Tls = "tls",
        /// Anything else before the request was written.
        Other = "other",
    }
}

words! {
    /// Files that are read again when they change.
    ServedFile {
        /// The data port's certificate and key.
        ServerCertificate = "server_certificate",
        /// The admin API's certificate and key, on a network address.
        AdminCertificate = "admin_certificate",
        /// The upstream's authorities, and our certificate for it.
        UpstreamCertificate = "upstream_certificate",
        /// The headers that every request to the upstream carries.
        UpstreamHeaders = "upstream_headers",
        /// The keys of the tokens' issuer, out of a file or fetched.
        TokenKeys = "token_keys",
    }
}

words! {
    /// What an upstream call is for.
    Purpose {
        /// The state before a call is read.
        Before = "before",
        /// A call in its draft form.
        Draft = "draft",
        /// An effect is looked for.
        Lookup = "lookup",
        /// The agent's call; an undo is one like any other.
        Primary = "primary",
        /// An effect is read back, as its verification asks.
        Readback = "readback",
    }
}

words! {
    /// A stage of the ledger's work.
    LedgerStage {
        /// An entry is begun.
        Begin = "begin",
        /// An entry is finished.
        Finish = "finish",
        /// A heartbeat row.
        Heartbeat = "heartbeat",
        /// What was learned of a finished entry.
        Verify = "verify",
    }
}

words! {
    /// What a lookup found.
    ReconcileResult {
        /// The effect, once.
        Found = "found",
        /// The effect, more than once: a person must look.
        FoundMany = "found_many",
        /// Nothing, and that counts.
        NotFound = "not_found",
        /// It could not tell.
        Inconclusive = "inconclusive",
        /// The lookup failed.
        Error = "error",
        /// None is declared.
        NoLookup = "no_lookup",
    }
}

/// All metrics of one sidecar.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics(..)")
    }
}

/// What tells the series of operations apart: id, class, transport and the key's carrier.
type Series = (OperationId, Class, &'static str, &'static str);

struct Inner {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    apart: Apart,
    common: Common,
    operations: Mutex<HashMap<Series, Arc<OperationMetrics>>>,
    /// Of operations that have a draft form.
    staged: Mutex<HashMap<OperationId, Arc<Table<Counter>>>>,
    /// The revision in force, shortened.
    revision: Mutex<Option<String>>,
    host: host::Host,
}

/// Labels as they are written, and what they are of.
type Labelled = (String, Arc<Buckets>);

/// What is kept apart for each worker.
#[derive(Default)]
struct Apart {
    counts: Mutex<Vec<(Counter, Arc<Count>)>>,
    levels: Mutex<Vec<(Gauge, Arc<Depth>)>>,
    /// By name.
    histograms: Mutex<BTreeMap<&'static str, Vec<Labelled>>>,
    /// The cells of a counter's series, by name and labels: several operations may share them.
    tables: Mutex<HashMap<Key, Arc<Cells>>>,
}

impl Apart {
    /// Brings the recorder up.
    fn bring(&self) {
        for (counter, count) in locked(&self.counts).iter() {
            counter.absolute(count.value());
        }
        for (gauge, level) in locked(&self.levels).iter() {
            gauge.set(level.value());
        }
    }

    fn write(&self, text: &mut String) {
        for (name, series) in locked(&self.histograms).iter() {
            let help = HELP.iter().find(|(known, _, _)| known == name);
            let help = help.map(|(_, _, help)| *help).unwrap_or_default();
            text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} histogram\n"));
            for (labels, buckets) in series {
                buckets.write(name, labels, text);
            }
            text.push('\n');
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The metrics that belong to no operation.
pub struct Common {
    /// `takeback_ready` by check: policy, ledger, draining.
    pub ready: [Gauge; 3],
    /// Time of calls, by class.
    pub duration_http: Table<Histogram>,
    /// As `duration_http`, over MCP.
    pub duration_mcp: Table<Histogram>,
    /// Time in the proxy alone, by class.
    pub overhead: Table<Histogram>,
    /// Sizes of request bodies, http and mcp.
    pub body_bytes: [Histogram; 2],
    /// Calls in flight, by class.
    pub inflight: Table<Gauge>,
    /// Time of upstream calls, by what they are for.
    pub upstream_duration: Table<Histogram>,
    /// Connections that failed, by reason.
    pub connect_errors: Table<Counter>,
    /// Requests refused before classification, by reason.
    pub rejected: Table<Counter>,
    /// Reserved headers removed from callers' requests.
    pub stripped_caller: Counter,
    /// Reserved headers removed from upstreams' answers.
    pub stripped_upstream: Counter,
    /// Callers that hung up before dispatch.
    pub disconnects_before: Counter,
    /// Callers that hung up after dispatch.
    pub disconnects_after: Counter,
    /// Calls cut off by the end of a drain.
    pub drain_forced: Counter,
    /// Ledger writes that worked, by stage.
    pub ledger_ok: Table<Counter>,
    /// Ledger writes that did not, by stage.
    pub ledger_error: Table<Counter>,
    /// Time of ledger writes, by stage.
    pub ledger_duration: Table<Histogram>,
    /// Entries in an open state: begun, unknown, waiting.
    pub ledger_entries: [Gauge; 3],
    /// When the oldest of them was begun.
    pub ledger_oldest: [Gauge; 3],
    /// Entries that recovery moved to unknown.
    pub ledger_recovered: Counter,
    /// Links of the chain that this sidecar writes.
    pub ledger_chain_length: Gauge,
    /// Whether writes are refused for what is wrong with the chain, until somebody acknowledges it.
    pub ledger_chain_broken: Gauge,
    /// When the end of the chain last verified; 0 for never.
    pub ledger_chain_verified: Gauge,
    /// Undo calls by kind and outcome: accepted, rejected, unknown.
    pub undo_calls: [Table<Counter>; 3],
    /// Policy loads: applied, rejected, unchanged, weakened.
    pub reloads: [Counter; 4],
    /// Readings of changed files, by [`ServedFile`]: applied, rejected.
    pub file_reloads: Vec<[Counter; 2]>,
    /// When the certificates expire: the data port's, that which the upstream is shown; 0 for none.
    pub certificate_expiry: [Gauge; 3],
    /// Whether the newest policy is in force.
    pub last_reload_ok: Gauge,
    /// When a policy last came into force.
    pub last_reload_seconds: Gauge,
    /// Declared operations, by class.
    pub policy_operations: Table<Gauge>,
}

/// The metrics of one operation, on one transport.
pub struct OperationMetrics {
    /// Calls by decision.
    pub requests: Table<Counter>,
    /// Answers by disposition.
    pub outcomes: Table<Counter>,
    /// Verdicts.
    pub verdicts: Table<Counter>,
    /// Keys by result, for the operation's carrier.
    pub keys: Table<Counter>,
    /// Repeats by result.
    pub duplicates: Table<Counter>,
    /// Confirmations by result.
    pub confirmations: Table<Counter>,
    /// Inverse reports by availability.
    pub undo_inverse: Table<Counter>,
    /// Compensation reports by availability.
    pub undo_compensate: Table<Counter>,
    /// Lookups by result.
    pub reconciliations: Table<Counter>,
}

impl<H> std::fmt::Debug for Table<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({})", self.0.len())
    }
}

impl std::fmt::Debug for OperationMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OperationMetrics(..)")
    }
}

/// One handle for each value of a closed word, in order.
#[derive(Clone)]
pub struct Table<H>(Vec<H>);

impl<H> Table<H> {
    /// The handle of a value, by its position among all values.
    fn at(&self, position: Option<usize>) -> Option<&H> {
        position.and_then(|position| self.0.get(position))
    }
}

/// A closed word that a [`Table`] is indexed by.
pub trait Word: Copy + PartialEq + 'static {
    /// Every value, in order.
    const WORDS: &'static [Self];
    /// The label's value.
    fn word(self) -> &'static str;
}

macro_rules! word {
    ($($name:ident),+) => {
        $(impl Word for $name {
            const WORDS: &'static [Self] = $name::ALL;
            fn word(self) -> &'static str {
                self.as_str()
            }
        })+
    };
}
word!(
    Availability,
    Class,
    ConfirmationResult,
    ConnectError,
    Decision,
    Disposition,
    DuplicateResult,
    KeyResult,
    LedgerStage,
    Outcome,
    Purpose,
    ReconcileResult,
    Rejected,
    UndoKind,
    Verdict
);

fn position<W: Word>(word: W) -> Option<usize> {
    W::WORDS.iter().position(|other| *other == word)
}

impl Table<Counter> {
    /// Adds one.
    pub fn count<W: Word>(&self, word: W) {
        if let Some(counter) = self.at(position(word)) {
            counter.increment(1);
        }
    }
}

impl Table<Histogram> {
    /// Records a value in base units.
    pub fn record<W: Word>(&self, word: W, value: f64) {
        if let Some(histogram) = self.at(position(word)) {
            histogram.record(value);
        }
    }
}

impl Table<Gauge> {
    /// The gauge of a value.
    pub fn gauge<W: Word>(&self, word: W) -> Option<&Gauge> {
        self.at(position(word))
    }
}

struct Maker<'a>(&'a PrometheusRecorder, &'a Apart);

const METADATA: Metadata<'static> = Metadata::new("takeback", Level::INFO, None);

impl Maker<'_> {
    fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
        let labels: Vec<Label> =
            labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
        Key::from_parts(name, labels)
    }

    fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        let counter = self.0.register_counter(&Self::key(name, labels), &METADATA);
        counter.increment(0);
        counter
    }

    fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        let gauge = self.0.register_gauge(&Self::key(name, labels), &METADATA);
        gauge.set(0.0);
        gauge
    }

    fn histogram(
        &self,
        name: &'static str,
        bounds: &'static [f64],
        labels: &[(&'static str, &str)],
    ) -> Histogram {
        let buckets = Arc::new(Buckets::new(bounds));
        // Values are closed words of ours: nothing in them is to be escaped.
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{value}\",")).collect();
        let mut histograms = locked(&self.1.histograms);
        histograms.entry(name).or_default().push((labels, Arc::clone(&buckets)));
        Histogram::from_arc(buckets)
    }

    /// A gauge for each class that is kept apart for each worker.
    fn levels(&self, name: &'static str) -> Table<Gauge> {
        let cells = Cells::new(Class::ALL.len());
        let level = |(number, class): (usize, &Class)| {
            let level = Arc::new(Depth::new(&cells, number));
            let shown = self.gauge(name, &[("class", class.as_str())]);
            locked(&self.1.levels).push((shown, Arc::clone(&level)));
            Gauge::from_arc(level)
        };
        Table(Class::ALL.iter().enumerate().map(level).collect())
    }

    /// Like `counters_for`, kept apart for each worker.
    fn counters_apart<W: Word>(
        &self,
        name: &'static str,
        label: &'static str,
        fixed: &[(&'static str, &str)],
        occurs: impl Fn(W) -> bool,
    ) -> Table<Counter> {
        let words = || W::WORDS.iter().enumerate();
        let mut tables = locked(&self.1.tables);
        let known = tables.contains_key(&Self::key(name, fixed));
        let cells = tables.entry(Self::key(name, fixed));
        let cells = Arc::clone(cells.or_insert_with(|| Cells::new(W::WORDS.len())));
        drop(tables);
        let count = |(number, word): (usize, &W)| {
            if !occurs(*word) {
                return Counter::noop();
            }
            let count = Arc::new(Count::new(&cells, number));
            if !known {
                let shown = self.counter(name, &with(fixed, label, word.word()));
                locked(&self.1.counts).push((shown, Arc::clone(&count)));
            }
            Counter::from_arc(count)
        };
        Table(words().map(count).collect())
    }

    fn counters<W: Word>(
        &self,
        name: &'static str,
        label: &'static str,
        fixed: &[(&'static str, &str)],
    ) -> Table<Counter> {
        Table(
            W::WORDS
                .iter()
                .map(|word| self.counter(name, &with(fixed, label, word.word())))
                .collect(),
        )
    }

    /// Like `counters`, with a handle that counts nowhere for values that cannot occur.
    fn counters_for<W: Word>(
        &self,
        name: &'static str,
        label: &'static str,
        fixed: &[(&'static str, &str)],
        occurs: impl Fn(W) -> bool,
    ) -> Table<Counter> {
        Table(
            W::WORDS
                .iter()
                .map(|word| {
                    if occurs(*word) {
                        self.counter(name, &with(fixed, label, word.word()))
                    } else {
                        Counter::noop()
                    }
                })
                .collect(),
        )
    }
}

fn with<'a>(
    fixed: &[(&'static str, &'a str)],
    label: &'static str,
    value: &'a str,
) -> Vec<(&'static str, &'a str)> {
    let mut labels = fixed.to_vec();
    labels.push((label, value));
    labels
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A fresh set.
    pub fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let apart = Apart::default();
        describe(&recorder);
        let maker = Maker(&recorder, &apart);
        let common = Common::new(&maker);
        let version = env!("CARGO_PKG_VERSION");
        let revision = option_env!("TAKEBACK_REVISION").unwrap_or("unknown");
        let rustc = option_env!("TAKEBACK_RUSTC").unwrap_or("1.95");
        let labels = [("version", version), ("revision", revision), ("rustc", rustc)];
        maker.gauge("takeback_build_info", &labels).set(1.0);
        Self {
            inner: Arc::new(Inner {
                recorder,
                handle,
                apart,
                common,
                operations: Mutex::new(HashMap::new()),
                staged: Mutex::new(HashMap::new()),
                revision: Mutex::new(None),
                host: host::Host::default(),
            }),
        }
    }

    /// What came of calls in an operation's draft form, by outcome; made at 0 the first time.
    pub fn staged(&self, id: &OperationId) -> Arc<Table<Counter>> {
        let mut staged = self.inner.staged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = staged.get(id) {
            return Arc::clone(known);
        }
        let label = if staged.len() < MAX_OPERATIONS { id.as_str() } else { "_other" };
        let maker = Maker(&self.inner.recorder, &self.inner.apart);
        let fixed = [("operation", label)];
        let made = maker.counters::<Outcome>("takeback_staged_total", "result", &fixed);
        Arc::clone(staged.entry(id.clone()).or_insert(Arc::new(made)))
    }

    /// The metrics that belong to no operation.
    pub fn common(&self) -> &Common {
        &self.inner.common
    }

    /// The metrics of an operation; made at 0 the first time, and kept until the process ends.
    pub fn operation(
        &self,
        id: &OperationId,
        class: Class,
        transport: &'static str,
        place: &Place,
    ) -> Arc<OperationMetrics> {
        let mut operations = self.inner.operations.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (id.clone(), class, transport, place.as_str());
        if let Some(known) = operations.get(&key) {
            return Arc::clone(known);
        }
        let label = if operations.len() < MAX_OPERATIONS { id.as_str() } else { "_other" };
        let made = Arc::new(OperationMetrics::new(
            &Maker(&self.inner.recorder, &self.inner.apart),
            label,
            class,
            transport,
            place,
        ));
        operations.insert(key, Arc::clone(&made));
        made
    }

    /// Shows which policy is in force. Only this revision has a series: earlier ones are gone, however
    /// often policies are read again.
    pub fn policy_in_force(&self, revision: &str) {
        let short = revision.get(..12).unwrap_or(revision).to_owned();
        *self.inner.revision.lock().unwrap_or_else(PoisonError::into_inner) = Some(short);
    }

    /// Shows the room on the volume that the ledger's file lies on.
    pub fn watch_volume(&self, file: &Path) {
        self.inner.host.watch_volume(file);
    }

    /// Reads what the process and the volume take. It may hang with the volume; call it on a thread
    /// of its own.
    pub fn sample(&self) {
        self.inner.host.sample();
    }

    /// The exposition, text format 0.0.4.
    pub fn render(&self) -> String {
        self.inner.apart.bring();
        let mut text = self.inner.handle.render();
        self.inner.apart.write(&mut text);
        let revision = self.inner.revision.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(revision) = revision {
            let series = format!("{{revision=\"{revision}\"}} 1");
            host::family(
                &mut text,
                POLICY_INFO,
                "gauge",
                "The policy in force; always 1.",
                &series,
            );
        }
        text.push_str(&self.inner.host.text());
        text
    }
}

impl Common {
    fn new(maker: &Maker<'_>) -> Self {
        let histograms =
            |name: &'static str, bounds: &'static [f64], fixed: &[(&'static str, &str)]| {
                let of = |class: &Class| {
                    maker.histogram(name, bounds, &with(fixed, "class", class.as_str()))
                };
                Table(Class::ALL.iter().map(of).collect())
            };
        let duration = "takeback_request_duration_seconds";
        let oldest = "takeback_ledger_oldest_entry_timestamp_seconds";
        let ledger = |result| {
            let fixed = [("result", result)];
            maker.counters::<LedgerStage>("takeback_ledger_writes_total", "stage", &fixed)
        };
        let open =
            |name| ["begun", "unknown", "waiting"].map(|s| maker.gauge(name, &[("state", s)]));
        Self {
            ready: ["policy", "ledger", "draining"]
                .map(|check| maker.gauge("takeback_ready", &[("check", check)])),
            duration_http: histograms(duration, DURATION_BUCKETS, &[("transport", "http")]),
            duration_mcp: histograms(duration, DURATION_BUCKETS, &[("transport", "mcp")]),
            overhead: histograms("takeback_proxy_overhead_seconds", OVERHEAD_BUCKETS, &[]),
            body_bytes: ["http", "mcp"].map(|transport| {
                let labels = [("transport", transport)];
                maker.histogram("takeback_request_body_bytes", BODY_BUCKETS, &labels)
            }),
            inflight: maker.levels("takeback_inflight_requests"),
            upstream_duration: Table(
                Purpose::ALL
                    .iter()
                    .map(|purpose| {
                        let name = "takeback_upstream_request_duration_seconds";
                        maker.histogram(name, DURATION_BUCKETS, &[("kind", purpose.as_str())])
                    })
                    .collect(),
            ),
            connect_errors: maker.counters::<ConnectError>(
                "takeback_upstream_connect_errors_total",
                "reason",
                &[],
            ),
            rejected: maker.counters::<Rejected>("takeback_rejected_requests_total", "reason", &[]),
            stripped_caller: maker
                .counter("takeback_stripped_headers_total", &[("from", "caller")]),
            stripped_upstream: maker
                .counter("takeback_stripped_headers_total", &[("from", "upstream")]),
            disconnects_before: maker
                .counter("takeback_client_disconnects_total", &[("phase", "before_dispatch")]),
            disconnects_after: maker
                .counter("takeback_client_disconnects_total", &[("phase", "after_dispatch")]),
            drain_forced: maker.counter("takeback_drain_forced_calls_total", &[]),
            ledger_ok: ledger("ok"),
            ledger_error: ledger("error"),
            ledger_duration: Table(
                LedgerStage::ALL
                    .iter()
                    .map(|stage| {
                        let labels = [("stage", stage.as_str())];
                        let name = "takeback_ledger_write_duration_seconds";
                        maker.histogram(name, LEDGER_BUCKETS, &labels)
                    })
                    .collect(),
            ),
            ledger_entries: open("takeback_ledger_entries"),
            ledger_oldest: open(oldest),
            ledger_recovered: maker
                .counter("takeback_ledger_recovered_total", &[("to", "unknown")]),
            ledger_chain_length: maker.gauge("takeback_ledger_chain_length", &[]),
            ledger_chain_broken: maker.gauge("takeback_ledger_chain_broken", &[]),
            ledger_chain_verified: maker
                .gauge("takeback_ledger_chain_verified_timestamp_seconds", &[]),
            undo_calls: ["accepted", "rejected", "unknown"].map(|outcome| {
                let fixed = [("outcome", outcome)];
                maker.counters::<UndoKind>("takeback_undo_calls_total", "kind", &fixed)
            }),
            reloads: ["applied", "rejected", "unchanged", "weakened"].map(|result| {
                maker.counter("takeback_policy_reloads_total", &[("result", result)])
            }),
            last_reload_ok: maker.gauge("takeback_policy_last_reload_successful", &[]),
            last_reload_seconds: maker
                .gauge("takeback_policy_last_reload_success_timestamp_seconds", &[]),
            file_reloads: ServedFile::ALL
                .iter()
                .map(|file| {
                    ["applied", "rejected"].map(|result| {
                        let labels = [("file", file.as_str()), ("result", result)];
                        maker.counter("takeback_file_reloads_total", &labels)
                    })
                })
                .collect(),
            certificate_expiry: ["server", "admin", "upstream"].map(|certificate| {
                let labels = [("certificate", certificate)];
                maker.gauge("takeback_certificate_expiry_timestamp_seconds", &labels)
            }),
            policy_operations: Table(
                Class::ALL
                    .iter()
                    .map(|class| {
                        maker.gauge("takeback_policy_operations", &[("class", class.as_str())])
                    })
                    .collect(),
            ),
        }
    }
}

impl OperationMetrics {
    fn new(
        maker: &Maker<'_>,
        id: &str,
        class: Class,
        transport: &'static str,
        place: &Place,
    ) -> Self {
        let is_write = class.is_write();
        let fixed = [("operation", id)];
        let classed = [("operation", id), ("class", class.as_str())];
        let requests = [("transport", transport), ("operation", id), ("class", class.as_str())];
        let keyed = [("operation", id), ("carrier", place.as_str())];
        let is_unsupported = matches!(place, Place::Unsupported);
        let undo = |kind, occurs| {
            let fixed = [("operation", id), ("kind", kind)];
            let name = "takeback_undo_reports_total";
            maker.counters_for::<Availability>(name, "availability", &fixed, |_| occurs)
        };
        Self {
            requests: maker.counters_apart::<Decision>(
                "takeback_requests_total",
                "decision",
                &requests,
                |decision| match decision {
                    Decision::Forwarded | Decision::PolicyRefused | Decision::WouldRefuse => true,
                    Decision::Replayed
                    | Decision::Staged
                    | Decision::ConfirmationRequired
                    | Decision::DuplicateRefused
                    | Decision::LedgerUnavailable => is_write,
                },
            ),
            outcomes: maker.counters_for::<Disposition>(
                "takeback_upstream_outcomes_total",
                "outcome",
                &classed,
                |_| is_write,
            ),
            verdicts: maker.counters_for::<Verdict>(
                "takeback_verifications_total",
                "verdict",
                &fixed,
                |_| is_write,
            ),
            keys: maker.counters_for::<KeyResult>(
                "takeback_idempotency_keys_total",
                "result",
                &keyed,
                |result| is_write && (result == KeyResult::Unsupported) == is_unsupported,
            ),
            duplicates: maker.counters_for::<DuplicateResult>(
                "takeback_duplicates_total",
                "result",
                &fixed,
                |_| is_write,
            ),
            confirmations: maker.counters_for::<ConfirmationResult>(
                "takeback_confirmations_total",
                "result",
                &fixed,
                |_| is_write,
            ),
            undo_inverse: undo("inverse", class == Class::Reversible),
            undo_compensate: undo(
                "compensate",
                matches!(class, Class::Reversible | Class::Compensable),
            ),
            reconciliations: maker.counters_for::<ReconcileResult>(
                "takeback_reconciliations_total",
                "result",
                &fixed,
                |_| is_write,
            ),
        }
    }
}

const POLICY_INFO: &str = "takeback_policy_info";

/// Names and help texts of what the recorder holds.
const HELP: &[(&str, char, &str)] = &[
    ("takeback_build_info", 'g', "Build information; always 1."),
    (
        "takeback_certificate_expiry_timestamp_seconds",
        'g',
        "When a certificate in force expires; 0 when there is none.",
    ),
    ("takeback_client_disconnects_total", 'c', "Callers that hung up."),
    ("takeback_confirmations_total", 'c', "Confirmations asked for, accepted and refused."),
    ("takeback_drain_forced_calls_total", 'c', "Calls cut off by the end of a drain."),
    ("takeback_duplicates_total", 'c', "Calls whose key was already in the ledger."),
    ("takeback_file_reloads_total", 'c', "Certificates, keys and credentials read again."),
    ("takeback_idempotency_keys_total", 'c', "What became of the idempotency key."),
    ("takeback_inflight_requests", 'g', "Calls being handled."),
    (
        "takeback_ledger_chain_broken",
        'g',
        "1 while writes are refused for a broken chain or an older copy that nobody acknowledged.",
    ),
    (
        "takeback_ledger_chain_length",
        'g',
        "Rows in the hash chain that this sidecar writes; it never falls.",
    ),
    (
        "takeback_ledger_chain_verified_timestamp_seconds",
        'g',
        "When the end of the chain last verified; 0 when it could not be followed.",
    ),
    ("takeback_ledger_entries", 'g', "Entries in a state that is not final."),
    (
        "takeback_ledger_oldest_entry_timestamp_seconds",
        'g',
        "When the oldest entry in this state was begun; 0 when there is none.",
    ),
    ("takeback_ledger_recovered_total", 'c', "Entries that start-up recovery moved out of begun."),
    ("takeback_ledger_write_duration_seconds", 'h', "Time of one durable ledger write."),
    ("takeback_ledger_writes_total", 'c', "Ledger writes."),
    (
        "takeback_policy_last_reload_success_timestamp_seconds",
        'g',
        "When a policy last came into force.",
    ),
    ("takeback_policy_last_reload_successful", 'g', "1 when the newest policy is in force."),
    ("takeback_policy_operations", 'g', "Declared operations."),
    ("takeback_policy_reloads_total", 'c', "Policy reloads."),
    (
        "takeback_proxy_overhead_seconds",
        'h',
        "Time a call spent in the proxy, the upstream's time left out.",
    ),
    ("takeback_ready", 'g', "1 when this readiness check passes."),
    ("takeback_reconciliations_total", 'c', "Lookups of unknown effects."),
    ("takeback_rejected_requests_total", 'c', "Requests refused before classification."),
    ("takeback_request_body_bytes", 'h', "Size of request bodies."),
    (
        "takeback_request_duration_seconds",
        'h',
        "Time from the first byte of a call to the last byte of its answer.",
    ),
    ("takeback_requests_total", 'c', "Calls received, by what the proxy decided."),
    ("takeback_staged_total", 'c', "Calls in an operation's draft form."),
    (
        "takeback_stripped_headers_total",
        'c',
        "Reserved headers removed from callers' requests and upstreams' answers.",
    ),
    ("takeback_undo_calls_total", 'c', "Calls that undo an earlier entry."),
    ("takeback_undo_reports_total", 'c', "Undo calls reported."),
    (
        "takeback_upstream_connect_errors_total",
        'c',
        "Upstream connections that failed before a request was sent.",
    ),
    ("takeback_upstream_outcomes_total", 'c', "Upstream answers by dispatch class."),
    ("takeback_upstream_request_duration_seconds", 'h', "Time of one call to the upstream."),
    ("takeback_verifications_total", 'c', "Verdicts of response assertions and readbacks."),
];

fn describe(recorder: &PrometheusRecorder) {
    for (name, kind, help) in HELP {
        let name = metrics::KeyName::from_const_str(name);
        let help = metrics::SharedString::const_str(help);
        match kind {
            'c' => recorder.describe_counter(name, None, help),
            'g' => recorder.describe_gauge(name, None, help),
            // Histograms are not in it.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_help_and_starts_at_zero() {
        let metrics = Metrics::new();
        let id = OperationId::new("a.b").unwrap();
        metrics.operation(&id, Class::Irreversible, "http", &Place::Unsupported);
        metrics.operation(&id, Class::Reversible, "http", &Place::Unsupported);
        metrics.staged(&id);
        metrics.policy_in_force("0123456789abcdef");

        let text = metrics.render();

        let families: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .filter_map(|line| line.split(' ').next())
            .collect();
        for family in &families {
            assert!(text.contains(&format!("# HELP {family} ")), "{family} has no help");
            let is_known = *family == POLICY_INFO || HELP.iter().any(|(name, _, _)| name == family);
            assert!(is_known, "{family} is unknown");
        }
        for (name, _, _) in HELP {
            assert!(families.contains(name), "{name} has no series");
        }
        let line = "takeback_requests_total{transport=\"http\",operation=\"a.b\",\
                    class=\"irreversible\",decision=\"confirmation_required\"} 0";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("takeback_policy_info{revision=\"0123456789ab\"} 1"));
    }

    #[test]
    fn policy_revisions_do_not_pile_up() {
        let metrics = Metrics::new();
        for revision in 0..1000 {
            metrics.policy_in_force(&format!("{revision:012}0123456789"));
        }

        let text = metrics.render();

        let series = text.lines().filter(|line| line.starts_with("takeback_policy_info"));
        let only = "takeback_policy_info{revision=\"000000000999\"} 1";
        assert_eq!(series.collect::<Vec<_>>(), [only]);
    }

    #[test]
    fn i9_operations_beyond_the_cap_share_one_series() {
        let metrics = Metrics::new();
        for index in 0..MAX_OPERATIONS + 5 {
            let id = OperationId::new(&format!("op{index}")).unwrap();
            metrics.operation(&id, Class::Read, "http", &Place::Unsupported);
        }
        let text = metrics.render();
        assert!(text.contains("operation=\"_other\""));
        assert!(!text.contains(&format!("op{}\"", MAX_OPERATIONS + 1)));
    }
}
