//! Spans: what a call did, for somebody's traces, sent by OTLP.
//!
//! Off unless a standard variable names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT` or
//! `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`); then no span is made, no time is read, and a call's trace context
//! passes as it came. With one, a call that is sampled has
//!
//! | span | kind | name |
//! |---|---|---|
//! | the call, towards the agent | SERVER | `POST /repos/{owner}/comments`, `tools/call create_note` |
//! | the dispatch, towards the upstream | CLIENT | the same |
//! | a step of the stack | INTERNAL | `anvil.classify`, `anvil.confirm`, `anvil.ledger.begin`, `anvil.ledger.finish`, `anvil.verify` |
//!
//! and the id of its CLIENT span goes upstream as the parent, in `traceparent` and, where a message has a
//! `_meta`, in there too. Names of attributes are those of the semantic conventions of HTTP (stable) and
//! of generative AI and MCP (development; repository `semantic-conventions-genai`, July 2026); ours begin
//! with `anvil.`. No attribute holds a value of a request: no path, query, header, argument or answer. A
//! name holds what the policy declares, and `_undeclared` for the rest.
//!
//! Sampling is the caller's: a `traceparent` that is not sampled makes no span, a call without one begins
//! a trace. The SDK batches on a thread of its own (2048 spans wait at most; more are dropped), which posts
//! with a blocking socket: nothing here waits for a collector. `OTEL_SERVICE_NAME`,
//! `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_BSP_*` are read by the SDK. Only
//! `http://` collectors are spoken to.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use opentelemetry::trace::{
    Link, SpanContext, SpanId as OtelSpan, SpanKind, Status, TraceFlags, TraceId as OtelTrace,
    TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor as _,
};

use super::trace::{SpanId, TRACEPARENT, TraceId, TraceParent};
use crate::clock::Clock;

/// The variables that name a collector, by precedence.
pub const ENDPOINTS: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// How long one step of a post may take.
const STEP: Duration = Duration::from_secs(5);

/// The longest answer of a collector that is read, in bytes.
const MAX_ANSWER: u64 = 64 * 1024;

/// Steps of one call that are kept; a call has fewer.
const MAX_STEPS: usize = 32;

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum SpansError {
    /// The collector's address is none that is spoken to.
    #[error("{variable} is no http:// address; other schemes are not supported yet")]
    Endpoint {
        /// The variable that names it.
        variable: &'static str,
    },
    /// The SDK refuses its settings.
    #[error("the exporter of spans cannot be made")]
    Exporter(#[source] opentelemetry_otlp::ExporterBuildError),
}

/// Sends spans; clones are the same one.
#[derive(Clone)]
pub struct Spans {
    shared: Arc<Sender>,
}

struct Sender {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    clock: Clock,
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spans")
    }
}

impl Spans {
    /// By the environment; `None`: no collector is named, or `OTEL_SDK_DISABLED` is `true`.
    ///
    /// # Errors
    ///
    /// See [`SpansError`].
    pub fn from_environment(clock: Clock) -> Result<Option<Self>, SpansError> {
        let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let is_disabled =
            of("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let named = ENDPOINTS.iter().find_map(|name| Some((*name, of(name)?)));
        let Some((variable, endpoint)) = named.filter(|_| !is_disabled) else {
            return Ok(None);
        };
        if !endpoint.starts_with("http://") {
            return Err(SpansError::Endpoint { variable });
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Poster)
            .with_protocol(Protocol::HttpBinary)
            .build()
            .map_err(SpansError::Exporter)?;
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        let mut resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if of("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("takeback");
        }
        processor.set_resource(&resource.build());
        let scope = InstrumentationScope::builder("takeback")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        Ok(Some(Self { shared: Arc::new(Sender { processor, scope, clock }) }))
    }

    /// A call begins; `None`: its caller does not want it in a trace.
    pub fn begin(&self, headers: &HeaderMap) -> Option<Arc<CallSpan>> {
        let parent = TraceParent::of(headers);
        if parent.is_some_and(|parent| !parent.is_sampled) {
            return None;
        }
        let clock = &self.shared.clock;
        let now = UNIX_EPOCH
            .checked_add(Duration::from_millis(u64::try_from(clock.now_ms()).unwrap_or(0)))?;
        let parts = Parts {
            trace: match parent {
                Some(parent) => parent.trace,
                None => TraceId(random()?),
            },
            parent: parent.map(|parent| parent.span),
            link: None,
            name: Cow::Borrowed("HTTP"),
            attributes: Vec::new(),
            dispatch: Vec::new(),
            dispatched: None,
            steps: Vec::new(),
            error: None,
        };
        Some(Arc::new(CallSpan {
            spans: self.clone(),
            server: SpanId(random()?),
            client: SpanId(random()?),
            began: (now, clock.instant()),
            parts: Mutex::new(parts),
        }))
    }

    /// Sends what waits; blocks for some seconds at most.
    pub fn shut_down(&self) {
        if let Err(error) = self.shared.processor.shutdown_with_timeout(STEP) {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }
}

/// The spans of one call; they are sent when it is dropped, which is at the end of the answer's body and
/// of a write's task, whichever is later.
pub struct CallSpan {
    spans: Spans,
    server: SpanId,
    client: SpanId,
    began: (SystemTime, Instant),
    parts: Mutex<Parts>,
}

struct Parts {
    trace: TraceId,
    parent: Option<SpanId>,
    link: Option<TraceParent>,
    name: Cow<'static, str>,
    attributes: Vec<KeyValue>,
    dispatch: Vec<KeyValue>,
    dispatched: Option<(Instant, Instant, Option<&'static str>)>,
    steps: Vec<(&'static str, Instant, Instant)>,
    error: Option<&'static str>,
}

impl fmt::Debug for CallSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallSpan({})", self.server)
    }
}

impl CallSpan {
    fn parts(&self) -> std::sync::MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message's own parent, which is nearer than the header's: that becomes a link.
    pub fn of_message(&self, parent: TraceParent) {
        let mut parts = self.parts();
        parts.link =
            parts.parent.map(|span| TraceParent { trace: parts.trace, span, is_sampled: true });
        parts.trace = parent.trace;
        parts.parent = Some(parent.span);
    }

    /// What goes upstream.
    pub fn outgoing(&self) -> TraceParent {
        TraceParent { trace: self.parts().trace, span: self.client, is_sampled: true }
    }

    /// Puts what goes upstream into a request's headers.
    pub fn put(&self, headers: &mut HeaderMap) {
        if let Ok(value) = HeaderValue::from_str(&self.outgoing().to_string()) {
            headers.insert(TRACEPARENT, value);
        }
    }

    /// The trace that the call belongs to.
    pub fn trace(&self) -> TraceId {
        self.parts().trace
    }

    /// What the call is, once it is known: closed words and what the policy declares.
    pub fn rename(&self, name: String) {
        self.parts().name = Cow::Owned(name);
    }

    /// Says something of the call; a later value of the same name wins.
    pub fn say(&self, name: &'static str, value: impl Into<Value>) {
        let mut parts = self.parts();
        parts.attributes.retain(|known| known.key.as_str() != name);
        parts.attributes.push(KeyValue::new(name, value));
    }

    /// A step of the stack was taken.
    pub fn step(&self, name: &'static str, began: Instant, ended: Instant) {
        let mut parts = self.parts();
        if parts.steps.len() < MAX_STEPS {
            parts.steps.push((name, began, ended));
        }
    }

    /// The call was sent; `error` is why there is no answer.
    pub fn dispatched(
        &self,
        began: Instant,
        ended: Instant,
        status: Option<u16>,
        error: Option<&'static str>,
    ) {
        let mut parts = self.parts();
        parts.dispatched = Some((began, ended, error));
        if let Some(status) = status {
            parts.dispatch.push(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        if let Some(error) = error {
            parts.dispatch.push(KeyValue::new("error.type", error));
        }
    }

    /// The call is answered with this status.
    pub fn answered(&self, status: u16) {
        self.say("http.response.status_code", i64::from(status));
        if status >= 500 {
            self.parts().error = Some("the answer is an error of this proxy or of its upstream");
        }
    }

    fn at(&self, instant: Instant) -> SystemTime {
        let (time, began) = self.began;
        time.checked_add(instant.saturating_duration_since(began)).unwrap_or(time)
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        let sender = Arc::clone(&self.spans.shared);
        let now = sender.clock.instant();
        let mut parts = self.parts();
        let trace = OtelTrace::from_bytes(parts.trace.0);
        let context = |span: SpanId, is_remote| {
            let span = OtelSpan::from_bytes(span.0);
            SpanContext::new(trace, span, TraceFlags::SAMPLED, is_remote, TraceState::default())
        };
        let server = context(self.server, false);
        let common = std::mem::take(&mut parts.attributes);
        let name = parts.name.clone();
        let span = |span_context, parent, kind, name, began, ended, attributes, status| SpanData {
            span_context,
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: kind,
            name,
            start_time: self.at(began),
            end_time: self.at(ended),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: sender.scope.clone(),
        };
        let failed = |error: Option<&'static str>| error.map_or(Status::Unset, Status::error);
        let own = server.span_id();
        for (step, began, ended) in std::mem::take(&mut parts.steps) {
            let Some(id) = random() else { continue };
            let (context, name) = (context(SpanId(id), false), Cow::Borrowed(step));
            let kind = SpanKind::Internal;
            let data = span(context, own, kind, name, began, ended, Vec::new(), Status::Unset);
            sender.processor.on_end(data);
        }
        if let Some((began, ended, error)) = parts.dispatched.take() {
            let mut attributes: Vec<KeyValue> =
                common.iter().filter(|known| is_of_both(known.key.as_str())).cloned().collect();
            attributes.append(&mut parts.dispatch);
            let (context, kind) = (context(self.client, false), SpanKind::Client);
            let status = failed(error);
            let data = span(context, own, kind, name.clone(), began, ended, attributes, status);
            sender.processor.on_end(data);
        }
        let parent = parts.parent.map_or(OtelSpan::INVALID, |span| OtelSpan::from_bytes(span.0));
        let (_, began) = self.began;
        let status = failed(parts.error);
        let mut data = span(server, parent, SpanKind::Server, name, began, now, common, status);
        data.parent_span_is_remote = parts.parent.is_some();
        if let Some(link) = parts.link {
            let linked = SpanContext::new(
                OtelTrace::from_bytes(link.trace.0),
                OtelSpan::from_bytes(link.span.0),
                TraceFlags::SAMPLED,
                true,
                TraceState::default(),
            );
            let mut links = SpanLinks::default();
            links.links.push(Link::with_context(linked));
            data.links = links;
        }
        sender.processor.on_end(data);
    }
}

/// An id that is not all zero; `None` if the system has no randomness: then there is no span.
fn random<const N: usize>() -> Option<[u8; N]> {
    let mut id = [0; N];
    getrandom::fill(&mut id).ok()?;
    (id != [0; N]).then_some(id)
}

/// Whether an attribute says something of the dispatch too.
fn is_of_both(name: &str) -> bool {
    name.starts_with("http.request.")
        || name.starts_with("gen_ai.")
        || name.starts_with("mcp.")
        || name == "http.route"
}

/// Posts a batch with a blocking socket: the SDK calls it on its own thread.
#[derive(Debug)]
struct Poster;

impl HttpClient for Poster {
    fn send_bytes<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(std::future::ready(post(&request).map_err(Into::into)))
    }
}

fn post(request: &Request<Bytes>) -> io::Result<Response<Bytes>> {
    let odd = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let uri = request.uri();
    let host = uri.host().ok_or_else(|| odd("the collector's address has no host"))?;
    let authority = uri.authority().map_or(host, |authority| authority.as_str());
    let place = (host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(80));
    let address = place.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| odd("the collector's name has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, STEP)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\ncontent-length: {}\r\n",
        request.body().len()
    )
    .into_bytes();
    for (name, value) in request.headers() {
        if *name == http::header::CONTENT_LENGTH || *name == http::header::HOST {
            continue;
        }
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    stream.write_all(&head)?;
    stream.write_all(request.body())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    let status = answer
        .strip_prefix(b"HTTP/1.1 ")
        .or_else(|| answer.strip_prefix(b"HTTP/1.0 "))
        .and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok()?.parse::<u16>().ok());
    let status = status.ok_or_else(|| odd("the collector's answer is no HTTP"))?;
    // What it says beside the status is not read: a partial success is the collector's to log.
    let mut response = Response::new(Bytes::new());
    *response.status_mut() =
        http::StatusCode::from_u16(status).map_err(|_| odd("the collector's status is none"))?;
    Ok(response)
}
