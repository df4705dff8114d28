//! The stack, and the codec at its edge.
//!
//! [`stack`] is the whole request path in one function. Outside the pipeline there is only the codec: it
//! takes a request apart (plain HTTP, or MCP on the configured paths), has the pipeline answer it, and
//! writes the answer. From there out the error is `Infallible`: an error that reached hyper would close
//! the connection without an answer (pitfall P8).

mod asking;
mod bridge;
mod passing;

use std::any::Any;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use pin_project_lite::pin_project;
use tower::{Layer, Service, ServiceBuilder};

use crate::admit::Places;
use crate::call::payload::{self, Body, Budget, CollectError, Collected, Trailers};
use crate::call::refusal::Refusal;
use crate::call::spans::CallSpan;
use crate::call::trace::TraceParent;
use crate::call::{Call, Confirmation, Control, Head, Oddity, Payload, Permit, Transport, has_any};
use crate::contract::class::Level;
use crate::contract::report::{MAX_HEADER, Report};
use crate::http::decode::{Decoded, decode};
use crate::http::encode::Hop;
use crate::http::grpc;
use crate::http::reply as http_reply;
use crate::ledger::Ledger;
use crate::mcp::headers::{check_form, check_headers};
use crate::mcp::jsonrpc::{Id, Message, Rejection};
use crate::mcp::questions::{self, Modes};
use crate::mcp::reply::{Envelope, input_required, refusal as mcp_refusal};
use crate::mcp::request::ToolCall;
use crate::mcp::{Era, Methods, Route};
use crate::metrics::{Decision, Rejected};
use crate::pipeline::ask::Ask;
use crate::pipeline::audit;
use crate::pipeline::carry::Carry;
use crate::pipeline::confirm::Confirm;
use crate::pipeline::dispatch::Dispatch;
use crate::pipeline::fetch::Fetch;
use crate::pipeline::record::Record;
use crate::pipeline::replay::{Looks, Replay};
use crate::pipeline::select::Select;
use crate::pipeline::settle::{Settle, json_response};
use crate::pipeline::stage::StageForm;
use crate::pipeline::step::{Stage, step};
use crate::pipeline::{Answered, Refused, Reply, Shared};
use crate::principal;
use crate::server::{Arrival, Delivery, Drain, Peer};
use crate::upstream::Upstream;
use asking::Held;

/// What one worker's stack is made from.
#[derive(Clone, Debug)]
pub struct Context {
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// This worker's connections.
    pub upstream: Upstream,
    /// The in-flight limit.
    pub places: Places,
    /// Paths that speak MCP; exact.
    pub mcp_paths: Arc<[String]>,
    /// MCP methods that pass.
    pub methods: Arc<Methods>,
    /// The proxy takes no more calls.
    pub draining: Arc<AtomicBool>,
    /// Ends streams that have no end of their own.
    pub drain: Drain,
}

/// The request path, outermost first. All that can happen to a call is in this function and in
/// `pipeline`.
pub fn stack(
    cx: &Context,
) -> impl Service<
    Arrival,
    Response = Response<Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send + use<>,
>
+ Clone
+ Send
+ Sync
+ 'static
+ use<> {
    let settings = &cx.shared.settings;
    let hop = Arc::new(Hop::new(
        &settings.upstream_authority,
        &settings.upstream_base,
        &settings.pseudonym,
        &settings.upstream_headers,
    ));
    // Reads of the upstream's tools, for the steps that must know one.
    let (upstream, drain) = (cx.upstream.clone(), cx.drain.clone());
    let ask = Ask { shared: Arc::clone(&cx.shared), upstream, hop: Arc::clone(&hop), drain };
    let pipeline = pipeline(cx, &hop, &ask);
    ServiceBuilder::new()
        // A panic is answered, not hung up on.
        .layer(CatchLayer)
        .service(Codec { edge: Arc::new(Edge { cx: Arc::new(cx.clone()), hop, ask, pipeline }) })
}

/// The way of a call between the codec and the upstream.
fn pipeline(
    cx: &Context,
    hop: &Arc<Hop>,
    ask: &Ask,
) -> impl Stage<Box<Call>, Answer = Answered> + use<> {
    let shared = || Arc::clone(&cx.shared);
    // Reads of our own: what became of a lost call, what was there before a call.
    let (upstream, drain) = (cx.upstream.clone(), cx.drain.clone());
    let fetch = Fetch { shared: shared(), upstream, drain };
    let dispatch =
        Dispatch { shared: shared(), upstream: cx.upstream.clone(), hop: Arc::clone(hop) };
    // What a read is past `select`: no entry, no confirmation, the same settling and sending.
    let reads =
        ServiceBuilder::new().layer(step(Settle { shared: shared() })).service(dispatch.clone());
    // One type per stage of a call's life: a step that is moved, dropped or doubled no longer has the
    // type that its neighbour wants, and this does not compile.
    ServiceBuilder::new()
        // Pins one policy snapshot: a reload cannot change a call between its confirmation and its undo.
        .layer(step(Select { shared: shared(), ask: ask.clone(), reads }))
        // Before confirm: a call sent again with a spent token gets its recorded answer.
        .layer(step(Replay { shared: shared(), fetch: fetch.clone(), looks: Looks::default() }))
        // Before confirm: what is confirmed is what is sent, the draft.
        .layer(step(StageForm { shared: shared(), ask: ask.clone() }))
        // Before record: building the request may refuse, and a begun entry is always sendable.
        .layer(step(Carry { hop: Arc::clone(hop), ask: ask.clone() }))
        // Before record: a refused call leaves no entry.
        .layer(step(Confirm { shared: shared() }))
        // From here on a write is not cancelled: it runs in its own task.
        .layer(step(Record { shared: shared(), fetch }))
        // Inside record's task: an outcome is settled even if the agent has left.
        .layer(step(Settle { shared: shared() }))
        // Never fails: a lost answer is an observation.
        .service(dispatch)
}

/// The edge: a request into a call, a reply or a refusal into an answer.
struct Codec<P> {
    edge: Arc<Edge<P>>,
}

impl<P> Clone for Codec<P> {
    fn clone(&self) -> Self {
        Self { edge: Arc::clone(&self.edge) }
    }
}

/// What all calls of one worker use.
struct Edge<P> {
    cx: Arc<Context>,
    hop: Arc<Hop>,
    ask: Ask,
    pipeline: P,
}

type EdgeFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<P: Stage<Box<Call>, Answer = Answered>> Service<Arrival> for Codec<P> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = EdgeFuture;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, arrival: Arrival) -> EdgeFuture {
        let edge = Arc::clone(&self.edge);
        let spans = edge.cx.shared.settings.spans.as_ref();
        let span = spans.and_then(|spans| spans.begin(arrival.request.headers()));
        // What needs no waiting is done before there is a future: what passes through its hands is large,
        // and a future would keep room for each form of it.
        let opened = edge.open(arrival);
        // The one box of a read.
        Box::pin(edge.answering(opened, span))
    }
}

/// A request that was taken apart.
struct Opened {
    /// The call, as if it were a plain one. One box from here to the upstream: its parts are large, and
    /// each step would move them.
    call: Box<Call>,
    peer: Arc<Peer>,
    began: Instant,
    stripped: u32,
    is_grpc: bool,
    is_mcp: bool,
    /// Its `Origin` may not speak MCP.
    is_foreign: bool,
}

/// What an answer of ours is written in.
enum Voice {
    Grpc,
    Http,
    /// `POST /call/<tool>`.
    Rest,
    Mcp(Id, Era, Asks),
}

/// What becomes of a message.
enum Routed {
    /// It calls a tool; what is kept, if its client may be asked on a held stream.
    Call(Voice, Option<Box<Held>>),
    /// It passes.
    Pass(Message),
}

/// Whether a client can be asked in the answer to its call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// It cannot, or a held stream does it.
    No,
    /// Its answer to `input_required` is a further call (2026-07-28).
    Round,
}

impl<P: Stage<Box<Call>, Answer = Answered>> Edge<P> {
    async fn answering(
        self: Arc<Self>,
        opened: Result<Opened, Box<Response<Body>>>,
        span: Option<Arc<CallSpan>>,
    ) -> Result<Response<Body>, Infallible> {
        let Some(span) = span else { return Ok(self.answer(opened, None).await) };
        // Boxed: nobody collects the spans of most sidecars.
        let mut response = Box::pin(self.answer(opened, Some(Arc::clone(&span)))).await;
        span.answered(response.status().as_u16());
        let body = std::mem::take(response.body_mut());
        *response.body_mut() = body.hold(span);
        Ok(response)
    }

    /// Takes a request apart, or answers it at once.
    fn open(&self, arrival: Arrival) -> Result<Opened, Box<Response<Body>>> {
        let shared = &self.cx.shared;
        let began = shared.clock.instant();
        let Arrival { request, peer } = arrival;
        let refused = |refusal: Refusal, voice| Err(Box::new(self.refuse(refusal.into(), voice)));
        let Some(permit) = self.cx.places.take() else {
            return refused(Refusal::Overloaded, Voice::Http);
        };
        if self.cx.draining.load(Ordering::Relaxed) {
            return refused(Refusal::Draining, Voice::Http);
        }
        let (parts, body) = request.into_parts();
        let body = Body::incoming(body, parts.version);
        // Trailers of requests end here, but for gRPC's (contract section 3).
        let is_grpc = grpc::is_grpc(&parts.headers);
        let body = if is_grpc { body } else { body.with_trailers(Trailers::Drop) };
        // Only a POST holds a message there, and GET and DELETE are of its sessions; anything else is a
        // plain call, matched and gated as such.
        let is_bare =
            matches!(parts.method, Method::GET | Method::DELETE | Method::HEAD | Method::OPTIONS)
                && body.is_in_memory();
        let is_mcp = (parts.method == Method::POST || is_bare)
            && self.cx.mcp_paths.iter().any(|path| path == parts.uri.path());
        let settings = &shared.settings;
        let origin = check_origin(&parts.headers, &parts.uri);
        let decoded = if is_mcp { origin.clone() } else { Ok(()) }.and_then(|()| {
            decode(parts, peer.forwarded.clone(), settings.report_header, &settings.pseudonym)
        });
        let Decoded { mut head, control, oddity, stripped } = match decoded {
            Ok(decoded) => decoded,
            Err(refusal) => {
                return refused(refusal, if is_grpc { Voice::Grpc } else { Voice::Http });
            }
        };
        head.origin.is_tls = peer.is_tls;
        let call = Box::new(Call { head, control, payload: Payload::Http(body), oddity, permit });
        let is_foreign = origin.is_err();
        Ok(Opened { call, peer, began, stripped, is_grpc, is_mcp, is_foreign })
    }

    async fn answer(
        self: &Arc<Self>,
        opened: Result<Opened, Box<Response<Body>>>,
        span: Option<Arc<CallSpan>>,
    ) -> Response<Body> {
        let shared = &self.cx.shared;
        let Opened { mut call, peer, began, stripped, is_grpc, is_mcp, is_foreign } = match opened {
            Ok(opened) => opened,
            Err(response) => return *response,
        };
        let voice = || if is_grpc { Voice::Grpc } else { Voice::Http };
        if !shared.settings.principals.is_empty() {
            // Boxed: most sidecars have no such source.
            let identified = Box::pin(self.identify(&mut call.head, &peer)).await;
            if let Err(refusal) = identified {
                return self.refuse(refusal.into(), voice());
            }
        }
        if let Some(span) = span {
            let method = method_name(&call.head.method);
            span.rename(method.to_owned());
            span.say("http.request.method", method);
            span.say("url.scheme", "http");
            call.head.span = Some(span);
        }
        if stripped > 0 {
            shared.metrics.common().stripped_caller.increment(u64::from(stripped));
        }
        if is_mcp {
            // Boxed, so that a plain read's future has no room for a message's.
            return Box::pin(self.mcp(call, peer, began)).await;
        }
        if let Some(tool) = self.bridged_tool(&call.head) {
            if is_foreign {
                return self.refuse(Refusal::Origin.into(), Voice::Rest);
            }
            let Call { head, control, payload, oddity, permit } = *call;
            let body = payload.into_body();
            let answering = self.bridge(tool, head, control, oddity, body, permit, peer, began);
            return Box::pin(answering).await;
        }
        if call.head.method == Method::OPTIONS && ends_here(&call.head) {
            return Response::new(Body::empty());
        }
        let permit = call.permit.clone();
        let answered = self.pipeline.run(call).await;
        self.written(answered, voice(), permit, peer, began)
    }

    /// Asks the configured sources who calls.
    async fn identify(&self, head: &mut Head, peer: &Peer) -> Result<(), Refusal> {
        let shared = &self.cx.shared;
        let sources = &shared.settings.principals;
        let address = peer.address.ip();
        let at = principal::Peer { address, name: peer.name.as_ref() };
        let now_ms = shared.clock.now_ms();
        head.origin.is_listed = sources.lists(address);
        head.origin.principal = sources.identify(&mut head.headers, at, now_ms).await?;
        Ok(())
    }

    async fn mcp(
        self: &Arc<Self>,
        mut call: Box<Call>,
        peer: Arc<Peer>,
        began: Instant,
    ) -> Response<Body> {
        let none = Payload::Http(Body::empty());
        let body = std::mem::replace(&mut call.payload, none).into_body();
        if call.head.method != Method::POST {
            let Call { head, oddity, permit, .. } = *call;
            // Boxed, as a message that runs no tool: a tool's call has no room for it.
            return Box::pin(self.pass_bare(head, oddity, body, permit)).await;
        }
        let (message, collected) = match self.read_message(&call.head, body).await {
            Ok(read) => read,
            Err(early) => return *early,
        };
        let (voice, held) = match self.routed(&mut call, message) {
            Ok(Routed::Call(voice, held)) => (voice, held),
            Ok(Routed::Pass(message)) => {
                let bytes = message.body().clone();
                let body = Body::full(bytes).hold(collected);
                let Call { head, oddity, permit, .. } = *call;
                let passing = self.pass_message(head, oddity, &message, body, permit);
                return Box::pin(passing).await;
            }
            Err(rejection) => return self.reject(&rejection),
        };
        let permit = call.permit.clone();
        let answered = self.pipeline.run(call).await;
        match (answered, held) {
            (Err(mut refused), Some(held)) if refused.question.is_some() => {
                match refused.question.take() {
                    Some(question) => self.hold(*held, *question, refused, collected, peer),
                    None => self.refuse(refused, voice),
                }
            }
            (answered, _) => {
                drop(collected);
                self.written(answered, voice, permit, peer, began)
            }
        }
    }

    /// What becomes of a message: a tool's call is put into the call.
    fn routed(&self, call: &mut Call, message: Message) -> Result<Routed, Box<Rejection>> {
        let route = self.cx.methods.route(&message)?;
        check_headers(&call.head.headers, &message)?;
        match route {
            Route::Call => {}
            Route::Pass => return Ok(Routed::Pass(message)),
        }
        let era = Era::of(&call.head.headers, &message);
        let tool = ToolCall::read(message, era)?;
        let asks = match era {
            Era::Modern if tool.elicitation().form => Asks::Round,
            Era::Modern | Era::Legacy => Asks::No,
        };
        if let Some(span) = &call.head.span {
            span.rename("tools/call".to_owned());
            span.say("mcp.method.name", "tools/call");
            span.say("gen_ai.operation.name", "execute_tool");
            let parent = tool.trace_parent();
            let parent = parent.and_then(|text| TraceParent::parse(text.as_bytes()));
            if let Some(parent) = parent.filter(|parent| parent.is_sampled) {
                span.of_message(parent);
            }
        }
        let voice = Voice::Mcp(tool.id().clone(), era, asks);
        if let Err(refusal) = tool_control(&mut call.control, &tool) {
            call.oddity.get_or_insert(Oddity::Other(refusal));
        }
        // Kept to make the call once its client has confirmed it.
        let held = self.may_hold(&call.head, &tool).map(|session| {
            let id = tool.id().clone();
            let call = Call {
                head: call.head.clone(),
                control: call.control.clone(),
                payload: Payload::Mcp(Box::new(tool.clone())),
                oddity: None,
                permit: call.permit.clone(),
            };
            Box::new(Held { call, id, session })
        });
        call.payload = Payload::Mcp(Box::new(tool));
        Ok(Routed::Call(voice, held))
    }

    async fn read_message(
        &self,
        head: &Head,
        body: Body,
    ) -> Result<(Message, Collected), Box<Response<Body>>> {
        let shared = &self.cx.shared;
        let limits = &shared.settings.limits;
        if let Err(rejection) = check_form(&head.headers) {
            return Err(Box::new(self.reject(&rejection)));
        }
        let budget: &Budget = &shared.budget;
        let limit = limits.request_body_bytes;
        let (idle, total) = (limits.request_idle, shared.settings.timeouts.total);
        let collected = payload::collect_within(body, limit, budget, idle, total).await;
        let collected = collected.map_err(|error| {
            let refusal = match error {
                CollectError::Broken(_) => Refusal::BodyBroken,
                CollectError::Budget => Refusal::Overloaded,
                CollectError::Idle => Refusal::BodySlow,
                CollectError::TooLarge { limit_bytes } => Refusal::BodyTooLarge(limit_bytes),
            };
            Box::new(self.refuse(refusal.into(), Voice::Http))
        })?;
        let [_, mcp] = &shared.metrics.common().body_bytes;
        mcp.record(f64::from(u32::try_from(collected.bytes().len()).unwrap_or(u32::MAX)));
        match Message::read(collected.bytes().clone()) {
            Ok(message) => Ok((message, collected)),
            Err(rejection) => Err(Box::new(self.reject(&rejection))),
        }
    }
}

impl<P> Edge<P> {
    /// Writes the pipeline's answer, counts it, and watches its delivery.
    fn written(
        &self,
        answered: Answered,
        voice: Voice,
        permit: Permit,
        peer: Arc<Peer>,
        began: Instant,
    ) -> Response<Body> {
        let shared = &self.cx.shared;
        let transport = match &voice {
            Voice::Grpc | Voice::Http => Transport::Http,
            Voice::Mcp(..) | Voice::Rest => Transport::Mcp,
        };
        let (mut response, class, upstream, entry, elsewhere) = match answered {
            Ok(reply) => {
                let Reply {
                    mut response,
                    report,
                    entry,
                    decision,
                    metrics,
                    class,
                    upstream,
                    elsewhere,
                    ..
                } = reply;
                metrics.requests.count(decision);
                if let Some(report) = report {
                    http_reply::put_report(&mut response, shared.settings.report_header, report);
                }
                (response, class, upstream, entry, elsewhere)
            }
            Err(refused) => {
                let class = refused.class;
                (self.refuse(refused, voice), class, Duration::ZERO, None, None)
            }
        };
        let common = shared.metrics.common();
        let spent = shared.clock.instant().saturating_duration_since(began);
        common.overhead.record(class, spent.saturating_sub(upstream).as_secs_f64());
        // This worker's own handle: its count is no other worker's business.
        let cx = Arc::clone(&self.cx);
        let body = std::mem::take(response.body_mut());
        let body = body.on_end(move |_| {
            let shared = &cx.shared;
            let elapsed = shared.clock.instant().saturating_duration_since(began).as_secs_f64();
            let common = shared.metrics.common();
            let table = match transport {
                Transport::Http => &common.duration_http,
                Transport::Mcp => &common.duration_mcp,
            };
            table.record(class, elapsed);
            drop(permit);
        });
        *response.body_mut() = match entry {
            None => body,
            Some(entry) => {
                let ledger: Ledger = shared.ledger.clone();
                peer.delivery.follow(body, move |delivery| {
                    let is_in_it =
                        elsewhere.is_none_or(|elsewhere| !elsewhere.load(Ordering::Acquire));
                    if delivery == Delivery::Delivered && is_in_it {
                        ledger.delivered(entry);
                    }
                })
            }
        };
        response
    }

    /// Writes a refusal, and counts it.
    fn refuse(&self, refused: Box<Refused>, voice: Voice) -> Response<Body> {
        let shared = &self.cx.shared;
        let Refused { refusal, report, metrics, class, question, caller } = *refused;
        let decided = match &metrics {
            Some(metrics) => {
                let decision = decision(&refusal);
                metrics.requests.count(decision);
                decision.as_str()
            }
            None => {
                let rejected = rejected(&refusal);
                shared.metrics.common().rejected.count(rejected);
                rejected.as_str()
            }
        };
        let operation = report.as_ref().map(|report| &report.operation);
        let now = shared.clock.instant();
        audit::refused(&refusal, class, operation, decided, caller.as_deref(), now);
        let report = report.unwrap_or_else(|| Report {
            refused: Some(refusal.code().into()),
            ..Report::default()
        });
        let is_grpc = matches!(voice, Voice::Grpc);
        match voice {
            Voice::Grpc | Voice::Http => {
                let mut response =
                    if is_grpc { grpc::refusal(&refusal) } else { http_reply::refusal(&refusal) };
                let value = report.to_header(MAX_HEADER);
                http_reply::put_report(&mut response, shared.settings.report_header, value);
                response
            }
            Voice::Rest => {
                let mut response = bridge::refusal_response(&refusal);
                let value = report.to_header(MAX_HEADER);
                http_reply::put_report(&mut response, shared.settings.report_header, value);
                response
            }
            Voice::Mcp(id, _, Asks::Round)
                if let Some((message, state)) = question
                    .as_ref()
                    .and_then(|question| Some((&question.message, question.state.as_ref()?))) =>
            {
                let params = questions::params(message, Modes::Named);
                json_response(input_required(&id, &params, state, &report.to_json()))
            }
            Voice::Mcp(id, era, Asks::No | Asks::Round) => {
                let (message, details) = (refusal.message(), refusal.details());
                let envelope = Envelope {
                    code: refusal.envelope_code(),
                    message: &message,
                    retryable: refusal.is_retryable(),
                    details: &details,
                };
                json_response(mcp_refusal(&id, era, &envelope, &report.to_json()))
            }
        }
    }

    /// Writes a protocol fault as a JSON-RPC error (contract section 5).
    fn reject(&self, rejection: &Rejection) -> Response<Body> {
        self.cx.shared.metrics.common().rejected.count(match rejection.code {
            -32020 => Rejected::HeaderMismatch,
            _ => Rejected::Message,
        });
        let mut response = json_response(rejection.to_json());
        *response.status_mut() =
            StatusCode::from_u16(rejection.http_status).unwrap_or(StatusCode::BAD_REQUEST);
        response
    }
}

/// The controls of a tool call: those in `_meta`, and those that came as headers. A control that is
/// malformed is an oddity: refused where the rules are enforced.
fn tool_control(control: &mut Control, call: &ToolCall) -> Result<(), Refusal> {
    let meta = match call.controls() {
        Ok(meta) => meta,
        Err(fault) => {
            let what = match fault.member {
                "idempotency_key" => "idempotency_key is 1 to 255 visible ASCII characters",
                "stage" => "stage is true or false",
                "confirm" => "confirm is true or false",
                "takeback/task" => "takeback/task is a label of 1 to 200 characters",
                _ => "takeback/confirm is a token",
            };
            return Err(Refusal::InvalidMeta(what));
        }
    };
    if let (Some(header), Some(member)) = (&control.key, &meta.key)
        && header != member
    {
        return Err(Refusal::KeyConflict);
    }
    if meta.key.is_some() && control.key.is_none() {
        control.key = meta.key;
    }
    control.stage = control.stage || meta.stage;
    if meta.task.is_some() {
        control.task = meta.task;
    }
    match (meta.token, meta.confirm) {
        (Some(token), _) => control.confirm = Some(Confirmation::Token(token)),
        (None, true) => control.confirm = Some(Confirmation::Word),
        (None, false) => {}
    }
    Ok(())
}

/// A page of another origin may not speak MCP through us (standards MCP-16): an `Origin` must be the
/// host that the request names.
///
/// That is not enough for a name: a page of `evil.example` whose name is made to resolve to this
/// machine has itself as its origin and as its host (DNS rebinding). So over plain HTTP the host must be
/// an address or `localhost`, which no name server can turn; with `https` the browser has checked that
/// whoever answers holds the name's certificate.
fn check_origin(headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    if !has_any(headers, &[header::ORIGIN]) {
        return Ok(());
    }
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else {
        return Ok(());
    };
    let authority = uri.authority().map(|authority| authority.as_str().to_owned());
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let own = authority.or_else(|| host.map(str::to_owned));
    let named = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    match (named, own, origins.next()) {
        (Some((scheme, named)), Some(own), None)
            if named.eq_ignore_ascii_case(&own)
                && (scheme.eq_ignore_ascii_case("https") || is_no_name(named)) =>
        {
            Ok(())
        }
        _ => Err(Refusal::Origin),
    }
}

/// Whether an authority is an address or `localhost`: nothing that a name server resolves.
fn is_no_name(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        Some(_) | None => authority,
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

/// A method by the standard's words; a span's attribute takes no other.
fn method_name(method: &Method) -> &'static str {
    let known = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];
    known.into_iter().find(|known| *known == method.as_str()).unwrap_or("_OTHER")
}

/// `Max-Forwards: 0` on `OPTIONS`: we are the last recipient (standards H-7).
fn ends_here(head: &Head) -> bool {
    head.headers.get(header::MAX_FORWARDS).is_some_and(|hops| hops.as_bytes() == b"0")
}

fn decision(refusal: &Refusal) -> Decision {
    match refusal {
        Refusal::ConfirmationMismatch(_, challenge) | Refusal::ConfirmationRequired(challenge) => {
            match challenge.level {
                Level::None | Level::Caller | Level::Challenge | Level::Human => {
                    Decision::ConfirmationRequired
                }
            }
        }
        Refusal::AnswerNotKept(..)
        | Refusal::InFlight(_)
        | Refusal::KeyReused(..)
        | Refusal::OutcomeUnknown(..)
        | Refusal::RepeatRefused(_)
        | Refusal::Undone(_) => Decision::DuplicateRefused,
        Refusal::LedgerUnavailable => Decision::LedgerUnavailable,
        _ => Decision::PolicyRefused,
    }
}

fn rejected(refusal: &Refusal) -> Rejected {
    match refusal {
        Refusal::AmbiguousPath(_) | Refusal::UriTooLong(_) => Rejected::AmbiguousPath,
        Refusal::BodyTooLarge(_) => Rejected::BodyTooLarge,
        Refusal::BodyBroken | Refusal::BodySlow | Refusal::UndeclaredBody => Rejected::BodyBroken,
        Refusal::ContentCoding | Refusal::MediaType => Rejected::ContentEncoding,
        Refusal::Host(_) | Refusal::Origin => Rejected::Host,
        Refusal::Framing(_) => Rejected::Framing,
        Refusal::InvalidJson(fault) if fault.starts_with("duplicate") => Rejected::DuplicateJsonKey,
        Refusal::InvalidJson(fault) if fault.starts_with("nesting") => Rejected::Depth,
        Refusal::InvalidJson(_) | Refusal::AmbiguousMember(_) => Rejected::InvalidJson,
        Refusal::DuplicateHeader(_)
        | Refusal::ReservedHeader(_)
        | Refusal::InvalidKey(_)
        | Refusal::InvalidMeta(_)
        | Refusal::KeyConflict => Rejected::ReservedHeader,
        Refusal::Draining => Rejected::Draining,
        Refusal::Unauthenticated(_) => Rejected::Unauthenticated,
        Refusal::Overloaded => Rejected::Overloaded,
        _ => Rejected::Method,
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::full(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Turns a panic into an answer. tower-http has such a layer too; it boxes every body, which every read
/// would pay for.
#[derive(Clone, Copy, Debug)]
struct CatchLayer;

impl<S> Layer<S> for CatchLayer {
    type Service = Catch<S>;

    fn layer(&self, inner: S) -> Catch<S> {
        Catch { inner }
    }
}

#[derive(Clone, Debug)]
struct Catch<S> {
    inner: S,
}

impl<S> Service<Arrival> for Catch<S>
where
    S: Service<Arrival, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = CatchFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, arrival: Arrival) -> Self::Future {
        match catch_unwind(AssertUnwindSafe(|| self.inner.call(arrival))) {
            Ok(inner) => CatchFuture { inner: Some(inner), panicked: None },
            Err(panic) => CatchFuture { inner: None, panicked: Some(Box::new(panicked(&panic))) },
        }
    }
}

pin_project! {
    /// See [`CatchLayer`].
    struct CatchFuture<F> {
        #[pin]
        inner: Option<F>,
        panicked: Option<Box<Response<Body>>>,
    }
}

impl<F: Future<Output = Result<Response<Body>, Infallible>>> Future for CatchFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Some(inner) = this.inner.as_pin_mut() else {
            let response = this.panicked.take();
            return response.map_or(Poll::Pending, |response| Poll::Ready(Ok(*response)));
        };
        match catch_unwind(AssertUnwindSafe(|| inner.poll(cx))) {
            Ok(polled) => polled,
            Err(panic) => Poll::Ready(Ok(panicked(&panic))),
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Response<Body> {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    // The text is a constant of ours or of a library: our own panics never format a request's values.
    tracing::error!(text, "a call panicked; this is a defect of the proxy");
    plain(StatusCode::INTERNAL_SERVER_ERROR, "the proxy failed; the outcome of a write is unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How large what a function returns is.
    fn returned<A, R>(_: impl Fn(A) -> R) -> usize {
        size_of::<R>()
    }

    /// The futures of a call and of a message, of an edge with this pipeline.
    fn futures<P: Stage<Box<Call>, Answer = Answered>>(
        _: impl Fn(&'static Context, &'static Arc<Hop>, &'static Ask) -> P,
    ) -> [usize; 2] {
        type Parts<P> = (&'static Arc<Edge<P>>, Box<Call>, Arc<Peer>, Instant);
        type Taken<P> = (Arc<Edge<P>>, Result<Opened, Box<Response<Body>>>);
        let call = |(edge, opened): Taken<P>| edge.answering(opened, None);
        let message = |(edge, call, peer, began): Parts<P>| edge.mcp(call, peer, began);
        [returned(call), returned(message)]
    }

    /// A call's future is made, filled and freed for each call, and what it holds is moved through the
    /// cache. The system's allocator keeps blocks of up to 1,032 bytes at hand and searches for larger
    /// ones. One that has grown has room for what only some calls wait for: box that, or do it in a
    /// function that is not `async`, which keeps nothing.
    #[test]
    fn the_future_of_a_read_is_small() {
        let [call, message] = futures(pipeline);
        assert!(call <= 1_032 && message <= 2_048, "a call's {call}, a message's {message} bytes");
    }
}
