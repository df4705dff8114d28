//! The pipeline: what happens to a call between a codec and the upstream.
//!
//! Each step takes what the step before it earned and earns the next, so their order is a matter of
//! types:
//!
//! ```text
//! Call ─ select ─▶ Write ─ replay ─▶ Fresh ─ stage ─▶ Staged ─ carry ─▶ Carried ─ confirm ─▶
//! Admitted ─ record ─▶ Attempt ─ settle ─▶ Attempt ─▶ dispatch
//! ```
//!
//! Two invariants carry it:
//!
//! - `Err(Refused)` means that this call sent nothing upstream. Nothing below `record` can say it.
//! - A write reaches `dispatch` only as `Attempt::Write(Recorded)`, and only `record` makes a
//!   `Recorded`, after its entry is durable.
//!
//! A read leaves this way at `select` for a `settle` and `dispatch` of its own: it has no entry, is
//! not confirmed, and runs in the connection's own future. A write from `record` on runs in a task that nobody cancels, so that its
//! entry is finished even when the agent has left.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod ask;
pub mod audit;
pub mod back;
pub mod carry;
mod choose;
pub mod confirm;
pub mod confirmation;
pub mod dispatch;
pub mod elsewhere;
pub mod fetch;
pub mod foresee;
pub mod image;
pub mod live;
mod places;
pub mod proof;
pub mod reconcile;
pub mod record;
pub mod repeat;
pub mod replay;
pub mod rounds;
pub mod select;
pub mod session;
pub mod settle;
pub mod stage;
pub mod step;
pub mod stream;
pub mod things;
pub mod under_way;
pub mod undo;
pub mod unseen;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response};

use crate::call::digest::{RequestDigest, is_credential};
use crate::call::payload::{Body, Budget, Collected};
use crate::call::refusal::Refusal;
use crate::call::spans::Spans;
use crate::call::{Call, Control, Head, Payload, Permit, Principal, Transport};
use crate::clock::Clock;
use crate::contract::class::{Class, Level, Mode, Outcome, words};
use crate::contract::key::{EntryId, Key, OperationId};
use crate::contract::operation::{Operation, Target as OperationTarget};
use crate::contract::path::Request;
use crate::contract::prefill::WaysBack;
use crate::contract::report::Report;
use crate::http::body::RequestDoc;
use crate::http::injected::Injected;
use crate::ledger::{Expected, Ledger};
use crate::mcp::answer::Reports;
use crate::mcp::catalog::Catalog;
use crate::mcp::clients::Clients;
use crate::mcp::flights::Flights;
use crate::mcp::questions::Questions;
use crate::mcp::request::ToolCall;
use crate::mcp::sessions::{SESSION, SessionKey, Sessions};
use crate::metrics::{Decision, Metrics, OperationMetrics};
use crate::policy::Served;
use crate::principal::Sources;
use crate::tasks::Tasks;
use confirmation::{Nonce, Sealer};
use elsewhere::Elsewhere;
use live::{Live, Matched, Metered, Policies};
use repeat::Standing;
use rounds::Question;
use under_way::UnderWay;

/// Limits of one sidecar. Each bounds memory or time; the defaults are in `config`.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The longest request body that is read, in bytes.
    pub request_body_bytes: usize,
    /// The longest answer that is read to be settled, in bytes.
    pub response_body_bytes: usize,
    /// The longest wait for a piece of a request body.
    pub request_idle: Duration,
}

/// The upstream's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Until a connection stands.
    pub connect: Duration,
    /// From the request's end to the answer's head.
    pub head: Duration,
    /// Between two pieces of an answer.
    pub idle: Duration,
    /// The whole call.
    pub total: Duration,
}

/// What the steps are told by the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The report's header. Bodies name it too, so it lasts as long as the process.
    pub report_header: &'static HeaderName,
    /// The sidecar's own mode.
    pub mode: Mode,
    /// Limits.
    pub limits: Limits,
    /// Clocks.
    pub timeouts: Timeouts,
    /// How long after an outcome became unknown its lookup is first made.
    pub first_look: Duration,
    /// The name that this process has in `Via`.
    pub pseudonym: String,
    /// The upstream's authority, for `Host`.
    pub upstream_authority: String,
    /// The path under which the upstream's own paths lie; empty or without a trailing slash.
    pub upstream_base: String,
    /// Headers that every request to the upstream carries: its credential, where we hold it.
    pub upstream_headers: Injected,
    /// What says who calls, beside the credentials.
    pub principals: Sources,
    /// What is special to MCP.
    pub mcp: McpSettings,
    /// Where spans go, where somebody collects them.
    pub spans: Option<Spans>,
}

/// What the steps are told of MCP.
#[derive(Clone, Debug)]
pub struct McpSettings {
    /// Where the upstream speaks MCP, for calls of our own.
    pub path: String,
    /// `readOnlyHint: true` makes an undeclared tool a read (standards MCP-24).
    pub trust_annotations: bool,
    /// What becomes of the reports that the upstream sends.
    pub reports: Reports,
    /// Who serves `POST /call/<tool>`.
    pub call_route: CallRoute,
    /// How long a call is held while its client is asked (standards MCP-31).
    pub question: Duration,
    /// How long the answer to a call is waited for after its client has cancelled it (standards
    /// MCP-30): long enough for one that is on its way.
    pub cancelled: Duration,
    /// How long a session of ours with the upstream rests before it is ended.
    pub session_idle: Duration,
    /// How often the stream of a held call says that it is there: whoever stands between may end one
    /// on which nothing goes.
    pub keep_alive: Duration,
    /// How long a stream waits for an agent that takes nothing of it before that agent counts as gone.
    pub stall: Duration,
}

impl Default for McpSettings {
    fn default() -> Self {
        Self {
            path: "/mcp".to_owned(),
            trust_annotations: false,
            reports: Reports::Replace,
            call_route: CallRoute::Bridge,
            question: Duration::from_secs(45),
            cancelled: Duration::from_secs(10),
            session_idle: Duration::from_secs(10 * 60),
            keep_alive: Duration::from_secs(15),
            stall: Duration::from_secs(30),
        }
    }
}

/// What was seen of MCP and is remembered, in memory and bounded.
#[derive(Debug, Default)]
pub struct McpState {
    /// Tools, as callers were shown them.
    pub catalog: Catalog,
    /// Whoever asks for a caller's list holds one of these: the next one finds it learnt.
    pub asking: [tokio::sync::Mutex<()>; 16],
    /// What the clients of sessions can do.
    pub sessions: Sessions,
    /// Calls whose answer comes elsewhere.
    pub elsewhere: Elsewhere,
    /// Writes of sessions that are under way.
    pub flights: Flights,
    /// Questions that are put to clients of sessions.
    pub questions: Questions,
    /// Our own sessions, for callers that do not speak MCP.
    pub clients: Clients,
}

words! {
    /// Who serves `POST /call/<tool>`.
    CallRoute {
        /// We do, as a client of the MCP upstream, while the policy declares a tool.
        Bridge = "bridge",
        /// The upstream does: it is a plain HTTP call.
        Forward = "forward",
    }
}

/// What all workers share.
#[derive(Debug)]
pub struct Shared {
    /// The policy in force.
    pub policies: Policies,
    /// The ledger.
    pub ledger: Ledger,
    /// All metrics.
    pub metrics: Metrics,
    /// The time.
    pub clock: Clock,
    /// What all collected bodies may hold together.
    pub budget: Budget,
    /// The configuration.
    pub settings: Settings,
    /// Makes and checks confirmations.
    pub sealer: Sealer,
    /// Tasks that a drain waits for.
    pub tasks: Tasks,
    /// What was seen of MCP.
    pub mcp: McpState,
    /// The writes that are under way.
    pub under_way: UnderWay,
}

impl Shared {
    /// Who calls (standards MCP-49): who a strong source names, else the weak principal.
    pub fn principal(&self, head: &Head) -> Principal {
        let weak = self.weak_principal(head);
        match &head.origin.principal {
            None => weak,
            Some(id) => Principal { id: Arc::clone(id), is_weak: false, ..weak },
        }
    }

    /// A keyed hash of all credentials together, so that two at once are one principal of both
    /// (contract section 9).
    fn weak_principal(&self, head: &Head) -> Principal {
        let mut credentials: Vec<(String, Vec<u8>)> = head
            .headers
            .iter()
            .filter(|(name, _)| is_credential(name.as_str()))
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect();
        if credentials.is_empty() {
            return Principal::anonymous();
        }
        credentials.sort();
        Principal::weak(self.sealer.principal(credentials).into())
    }

    /// The session that a message belongs to.
    pub fn session(&self, head: &Head, principal: &Principal) -> SessionKey {
        let id = head.headers.get(SESSION).and_then(|id| id.to_str().ok()).unwrap_or_default();
        SessionKey::new(&principal.id, id)
    }

    /// A fresh entry id.
    pub fn entry_id(&self) -> EntryId {
        let mut random = [0; 10];
        fill_random(&mut random);
        let now_ms = u64::try_from(self.clock.now_ms()).unwrap_or(0);
        EntryId::from_parts(now_ms, &random)
    }
}

/// Fills bytes from the system's randomness.
///
/// # Panics
///
/// If the system has none: an id or a nonce that can be guessed must not be used.
pub fn fill_random(bytes: &mut [u8]) {
    #[expect(clippy::expect_used, reason = "without randomness no id is unique and no nonce safe")]
    getrandom::fill(bytes).expect("the system's random source answers");
}

/// What a step answers down to `record`.
pub type Answered = Result<Reply, Box<Refused>>;

/// A refusal with what is known of the call.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// The report; `None` before the call was matched.
    pub report: Option<Report>,
    /// The operation's metrics, once it is known.
    pub metrics: Option<Arc<OperationMetrics>>,
    /// The class, once it is known.
    pub class: Class,
    /// What a client that can be asked is asked in its place.
    pub question: Option<Box<Question>>,
    /// Who called, for the log; `None` before that is known.
    pub caller: Option<Box<audit::Caller>>,
}

impl From<Refusal> for Box<Refused> {
    fn from(refusal: Refusal) -> Self {
        Self::new(Refused {
            refusal,
            report: None,
            metrics: None,
            class: Class::Irreversible,
            question: None,
            caller: None,
        })
    }
}

/// The answer to a call that was not refused.
#[derive(Debug)]
pub struct Reply {
    /// What goes to the agent; over MCP the report is in it already.
    pub response: Response<Body>,
    /// The report's header value, over HTTP.
    pub report: Option<HeaderValue>,
    /// The entry whose delivery is watched.
    pub entry: Option<EntryId>,
    /// What was decided.
    pub decision: Decision,
    /// The operation's metrics.
    pub metrics: Metered,
    /// The class.
    pub class: Class,
    /// How long the upstream took.
    pub upstream: Duration,
    /// What became of a write, where that is known when it is answered.
    pub outcome: Option<Outcome>,
    /// Set by the end of the body if the answer was not in it, and comes elsewhere.
    pub elsewhere: Option<Arc<AtomicBool>>,
}

/// A read on its way.
#[derive(Debug)]
pub struct Read {
    /// The call, in the box that it came in; what a condition reads of its body is in memory.
    pub call: Box<Call>,
    /// The operation.
    pub matched: Arc<Matched>,
    /// What enforcement would have done.
    pub would: Option<&'static str>,
}

/// A write that was matched and read.
#[derive(Debug)]
pub struct Write {
    /// The entry's id, if it becomes one.
    pub id: EntryId,
    /// The request's head.
    pub head: Head,
    /// What was asked of us.
    pub control: Control,
    /// The place in the in-flight limit.
    pub permit: Permit,
    /// The policy snapshot that the call keeps to its end.
    pub live: Arc<Live>,
    /// The operation.
    pub served: Arc<Served>,
    /// The operation's metrics.
    pub metrics: Arc<OperationMetrics>,
    /// The class of this call.
    pub class: Class,
    /// The confirmation that this call needs by its operation.
    pub level: Level,
    /// Whether the rules stop it.
    pub mode: Mode,
    /// Who calls.
    pub principal: Principal,
    /// The request's digest.
    pub digest: RequestDigest,
    /// The request, as paths read it.
    pub form: Form,
    /// The calls that take it back, as far as they are filled before it is sent.
    pub back: WaysBack,
    /// What enforcement would have done, in observe mode.
    pub would: Option<&'static str>,
    /// Why it is served as less than it is declared: no follow-up is offered then.
    pub degraded: Option<&'static str>,
    /// The entry whose call this is a further round of (standards MCP-35).
    pub continues: Option<EntryId>,
    /// The call that was asked for, where this is its draft.
    pub staged_for: Option<Box<StagedFor>>,
    /// When it arrived.
    pub arrived: Instant,
}

/// The call that was asked for, where its draft is made.
#[derive(Debug)]
pub struct StagedFor {
    /// Its operation.
    pub served: Arc<Served>,
    /// Its request: what promotes or discards the draft is filled from it.
    pub form: Form,
}

/// A write's request.
#[derive(Debug)]
pub enum Form {
    /// A plain HTTP request.
    Http {
        /// As paths read it.
        doc: RequestDoc,
        /// Its body's bytes.
        body: Collected,
    },
    /// A tool call.
    Mcp {
        /// The call.
        call: Box<ToolCall>,
        /// Arguments that are ours: not forwarded, not part of the digest.
        ignored: Vec<String>,
    },
}

impl Form {
    /// The request as paths read it.
    pub fn request(&self) -> Request<'_> {
        match self {
            Self::Http { doc, .. } => doc.request(),
            Self::Mcp { call, .. } => Request::Arguments(call.arguments()),
        }
    }
}

impl Write {
    /// The declared operation.
    pub fn operation(&self) -> &Operation {
        &self.served.operation
    }

    /// The request as paths read it.
    pub fn request(&self) -> Request<'_> {
        self.form.request()
    }

    /// The operation that the ledger has for it: the draft's where the draft form is asked for.
    pub fn recorded_operation(&self) -> &OperationId {
        match &self.operation().draft {
            Some(draft) if self.control.stage && self.staged_for.is_none() => {
                &draft.reference.operation
            }
            Some(_) | None => &self.operation().id,
        }
    }

    /// Which transport it came in on.
    pub fn transport(&self) -> Transport {
        match &self.form {
            Form::Http { .. } => Transport::Http,
            Form::Mcp { .. } => Transport::Mcp,
        }
    }

    /// What the ledger shows as the target: method and path without the query, or the tool's name. Of
    /// an operation whose values are not kept, the template.
    pub fn target(&self) -> String {
        let operation = self.operation();
        if let OperationTarget::Http { method, template } = &operation.target
            && !operation.keeps_bodies()
        {
            return format!("{method} {template}");
        }
        match &self.form {
            Form::Http { .. } => format!("{} {}", self.head.method, self.head.path()),
            Form::Mcp { call, .. } => call.name().to_owned(),
        }
    }

    /// A report with what every report of this call says: of the effect that was asked for, where
    /// this is its draft.
    pub fn report(&self) -> Report {
        let mut report = match &self.staged_for {
            Some(asked) => {
                let operation = &asked.served.operation;
                Report::new(operation.class, operation.id.clone())
            }
            None => Report::new(self.class, self.operation().id.clone()),
        };
        report.would = self.would.map(Into::into);
        report
    }

    /// Refuses the call.
    pub fn refuse(&self, refusal: Refusal) -> Box<Refused> {
        if let Some(span) = &self.head.span {
            span.say("anvil.effect.refused", refusal.code());
        }
        let mut report = self.report();
        report.refused = Some(refusal.code().into());
        report.entry = refusal.entry();
        Box::new(Refused {
            refusal,
            report: Some(report),
            metrics: Some(Arc::clone(&self.metrics)),
            class: self.class,
            question: None,
            caller: Some(Box::new(audit::Caller::of(self))),
        })
    }
}

/// A write that is no repeat, or may be one.
#[derive(Debug)]
pub struct Fresh {
    /// The write.
    pub write: Write,
    /// How it stands to the entries before it.
    pub standing: Standing,
    /// What it was judged by.
    pub expected: Expected,
    /// The newest entry with its digest.
    pub newest: Option<EntryId>,
    /// The caller's open unknown entries of the operation.
    pub unknown: Vec<EntryId>,
    /// The id that the upstream knows it by, where it continues an entry.
    pub continued: Option<Key>,
    /// The accepted entry that it takes back.
    pub undoes: Option<EntryId>,
    /// When the entry that it continues began first; milliseconds since 1970.
    pub first_ms: Option<i64>,
}

impl Fresh {
    /// The confirmation that the call needs: the strictest of the operation's own and of what the call
    /// is to the calls before it. A further round of a call was confirmed with its first.
    pub fn level(&self) -> Level {
        if self.standing.is_round {
            return Level::None;
        }
        self.write.level.max(self.standing.level.unwrap_or(Level::None))
    }
}

/// A write in the form that will be sent: itself, or its draft.
#[derive(Debug)]
pub struct Staged(pub(in crate::pipeline) Fresh);

/// A write whose request for the upstream is built, the key in it.
#[derive(Debug)]
pub struct Carried {
    pub(in crate::pipeline) fresh: Fresh,
    pub(in crate::pipeline) wire: Wire,
    pub(in crate::pipeline) ledger_id: Key,
    pub(in crate::pipeline) key: Option<Key>,
}

/// The request for the upstream.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Everything but the body.
    pub head: http::request::Parts,
    /// The body.
    pub body: Bytes,
}

/// A write that may be made.
#[derive(Debug)]
pub struct Admitted {
    pub(in crate::pipeline) carried: Carried,
    pub(in crate::pipeline) spend: Option<Nonce>,
}

/// One dispatch.
#[derive(Debug)]
pub enum Attempt {
    /// A read: nothing is recorded.
    Read(Read),
    /// A write whose entry is durable.
    Write(Recorded),
}

pub use record::Recorded;

/// Whether the agent is still there to be answered.
#[derive(Clone, Debug, Default)]
pub struct Agent {
    gone: Arc<AtomicBool>,
}

impl Agent {
    /// Whether the connection's future was dropped, or the client has cancelled the call.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// What says so.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.gone)
    }

    /// A guard that says so when it is dropped.
    pub fn watch(&self) -> AgentWatch {
        AgentWatch { gone: Arc::clone(&self.gone), is_answered: false }
    }
}

/// See [`Agent::watch`].
#[derive(Debug)]
pub struct AgentWatch {
    gone: Arc<AtomicBool>,
    is_answered: bool,
}

impl AgentWatch {
    /// The answer was taken.
    pub fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for AgentWatch {
    fn drop(&mut self) {
        if !self.is_answered {
            self.gone.store(true, Ordering::Release);
        }
    }
}

/// Made where a payload's kind decides the transport.
impl Payload {
    /// Which transport the call came in on.
    pub fn transport(&self) -> Transport {
        match self {
            Self::Http(_) => Transport::Http,
            Self::Mcp(_) => Transport::Mcp,
        }
    }
}
