//! The two listeners that agents never reach: telemetry, and the admin API.
//!
//! | listener | who reaches it | what it serves |
//! |---|---|---|
//! | telemetry | the kubelet and Prometheus, on the pod's address | `GET` `/livez`, `/readyz`, `/startupz`, `/metrics` |
//! | admin | whoever may open its Unix socket (mode 0600); on a network address whoever has a token | `/api/v1/...`, below |
//!
//! | admin route | what it does |
//! |---|---|
//! | `GET /api/v1/openapi.json` | all this, as OpenAPI 3.1 |
//! | `GET /api/v1/entries?state=&operation=&principal=&task=&since=&before=&limit=` | lists entries, newest first; `next` is the next page's `before` |
//! | `GET /api/v1/entries/{id}` | one entry, its history and its whole report |
//! | `GET /api/v1/entries/{id}/receipt` | who allowed it, how it was sent, what proves it |
//! | `POST /api/v1/entries/{id}/settle` `{"outcome", "why"}` | records a person's decision about an unknown entry |
//! | `POST /api/v1/entries/{id}/redact` `{"pointers", "why"}` | takes parts out of what an entry holds of its call |
//! | `POST /api/v1/entries/{id}/undone` `{"by"}` | records that another principal's call took an entry back |
//! | `POST /api/v1/ledger/acknowledge` `{"why"}` | records that a person knows of what does not fit in the chain |
//! | `GET /api/v1/undo?task=` | what taking a task back would be |
//! | `POST /api/v1/reconcile` | looks up each unknown entry once |
//! | `GET /api/v1/policy` | the policy in force, what of it is degraded, and newer files that are rejected |
//! | `POST /api/v1/reload` | reads the policy's files; 422 with the place of the first error if they are rejected |
//! | `GET /api/v1/health` | what the probes say, and the version |
//! | `POST /api/v1/drain` | ends the process in order, as SIGTERM does |
//!
//! Both run on the control thread, off the path of calls. Who settles is the user id that the kernel
//! gives for the other end of the socket, or the name of the token ([`auth`]). Bodies are limited to 64 KiB, connections by [`listen`].

pub mod auth;
pub mod client;
pub mod entries;
pub mod health;
mod integrity;
pub mod listen;
pub mod policy;
pub mod receipt;
mod undo;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Extension, Path, RawQuery, State};
use axum::response::Response;
use axum::routing::{get, post};
use http::{HeaderValue, StatusCode, header};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::sync::{Mutex, mpsc};

use crate::contract::class::Outcome;
use crate::contract::json::{Doc, Kind, write_string};
use crate::contract::key::{EntryId, OperationId};
use crate::http::reply::problem_json;
use crate::ledger::{
    Filter, Keys, LedgerError, MAX_POINTERS, OpenError, Part, Place, ReadOnly, State as EntryState,
};
use crate::pipeline::Shared;
use crate::pipeline::fetch::Fetch;
use crate::pipeline::reconcile::{Reconciled, reconcile_once};

use auth::Who;
use entries::{EntryJson, ShownJson};
use health::Health;
use receipt::Receipt;

/// The longest body of a request.
const MAX_BODY: usize = 64 * 1024;

/// The longest reason for a decision, in characters.
pub const MAX_WHY: usize = 1000;

/// How many entries a list shows unless it is asked otherwise, and at most.
pub const LIST: (usize, usize) = (100, 1000);

/// What the admin API works on.
#[derive(Debug)]
pub struct Admin {
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// Makes lookups, on connections of its own; those of calls belong to the workers.
    pub fetch: Fetch,
    /// Where the ledger is, for reading beside its writer.
    pub ledger: Place,
    /// The keys of its chain.
    pub keys: Keys,
    /// One run of lookups at a time: two would ask everything twice.
    pub reconciling: Mutex<()>,
    /// What is known of the policy's files.
    pub policy: policy::Status,
    /// Where the reading of the policy's files is asked for.
    pub reloads: mpsc::Sender<policy::Ask>,
    /// What the probes say.
    pub health: Health,
    /// Where the end of the process is asked for; one place is enough for any number of requests.
    pub drains: mpsc::Sender<()>,
    /// From the request to drain until the rest is cut.
    pub grace: Duration,
}

/// The admin API.
pub fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/api/v1/entries", get(list))
        .route("/api/v1/entries/{id}", get(show))
        .route("/api/v1/entries/{id}/receipt", get(receipt))
        .route("/api/v1/entries/{id}/redact", post(redact))
        .route("/api/v1/entries/{id}/settle", post(settle))
        .route("/api/v1/entries/{id}/undone", post(undo::undone))
        .route("/api/v1/ledger/acknowledge", post(integrity::acknowledge))
        .route("/api/v1/undo", get(undo::planned))
        .route("/api/v1/reconcile", post(reconcile))
        .route("/api/v1/policy", get(policy::show))
        .route("/api/v1/reload", post(policy::reload))
        .route("/api/v1/health", get(show_health))
        .route("/api/v1/drain", post(drain))
        .route("/api/v1/openapi.json", get(describe))
        .fallback(elsewhere)
        .method_not_allowed_fallback(not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(admin)
}

/// What the API is, as OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("openapi.json");

async fn describe() -> Response {
    json(StatusCode::OK, OPENAPI.to_owned())
}

async fn elsewhere() -> Response {
    let message =
        "there is no such route; `GET /api/v1/openapi.json` describes those that there are";
    Failure::new(StatusCode::NOT_FOUND, "not_found", message).into_response()
}

async fn not_allowed() -> Response {
    let message = "this route takes another method";
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).into_response()
}

/// The body of a request; one that cannot be read is the client's fault.
fn whole(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Failure> {
    body.map_err(|rejection| {
        let status = rejection.status();
        let (status, code) = match status {
            StatusCode::PAYLOAD_TOO_LARGE => (status, "body_too_large"),
            _ => (StatusCode::BAD_REQUEST, "invalid_request"),
        };
        Failure::new(status, code, format!("the body cannot be read, or has over {MAX_BODY} bytes"))
    })
}

/// An answer that is not the one asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Failure {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", LedgerError::NotFound.to_string())
    }

    /// A problem document of RFC 9457, with the code and the message for programs in `error`.
    fn into_response(self) -> Response {
        let Self { status, code, message } = self;
        let mut envelope = String::from("{\"code\":");
        write_string(code, &mut envelope);
        envelope.push_str(",\"message\":");
        write_string(&message, &mut envelope);
        envelope.push('}');
        let title = status.canonical_reason().unwrap_or("Error");
        let text = problem_json(code, title, status.as_u16(), &message, None, &envelope, None);
        let mut response = json(status, text);
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if status == StatusCode::UNAUTHORIZED {
            let asked = HeaderValue::from_static("Bearer realm=\"takeback\"");
            headers.insert(header::WWW_AUTHENTICATE, asked);
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        let (status, code) = match error {
            LedgerError::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            LedgerError::Changed => (StatusCode::CONFLICT, "changed"),
            LedgerError::NotUnknown { .. } => (StatusCode::CONFLICT, "not_unknown"),
            LedgerError::NothingThere => (StatusCode::CONFLICT, "nothing_there"),
            LedgerError::Refused => (StatusCode::CONFLICT, "refused"),
            LedgerError::StillOpen => (StatusCode::CONFLICT, "still_open"),
            LedgerError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "ledger_unavailable"),
        };
        Self { status, code, message: error.to_string() }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let (status, code) = (StatusCode::SERVICE_UNAVAILABLE, "ledger_unavailable");
        Self { status, code, message: error.to_string() }
    }
}

fn answer<T: Serialize>(result: Result<T, Failure>) -> Response {
    let written = result.and_then(|value| {
        serde_json::to_string(&value).map_err(|_| {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Failure::new(status, "internal", "the answer could not be written")
        })
    });
    match written {
        Ok(text) => json(StatusCode::OK, text),
        Err(failure) => failure.into_response(),
    }
}

/// A JSON answer.
fn json(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[derive(Serialize)]
struct Listed {
    entries: Vec<EntryJson>,
    /// What `before` is for the next page; `null`: this was the last one.
    next: Option<String>,
}

async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Response {
    answer(listed(&admin, query.as_deref().unwrap_or_default()).await)
}

async fn listed(admin: &Admin, query: &str) -> Result<Listed, Failure> {
    let mut filter = filter(query)?;
    let limit = filter.limit;
    // One more than is shown tells whether there is a next page.
    filter.limit = limit.saturating_add(1);
    let mut records = read(admin, move |ledger| ledger.list(&filter)).await?;
    let has_more = records.len() > limit;
    records.truncate(limit);
    let next = records.last().filter(|_| has_more).map(|record| record.prior.entry.to_string());
    Ok(Listed { entries: records.iter().map(EntryJson::of).collect(), next })
}

/// Reads the query of a list.
fn filter(query: &str) -> Result<Filter, Failure> {
    let mut filter = Filter { limit: LIST.0, ..Filter::default() };
    let mut seen: Vec<&str> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let wrong = || {
            let name: String = name.chars().take(20).collect();
            Failure::request(format!("`{name}` has a value that it cannot have"))
        };
        if seen.contains(&name) {
            return Err(Failure::request("each name of the query is given once"));
        }
        seen.push(name);
        let value = value.replace('+', " ");
        let value = percent_decode_str(&value).decode_utf8().map_err(|_| wrong())?;
        let text = || {
            let is_right = (1..=MAX_TEXT).contains(&value.chars().count());
            is_right.then(|| value.clone().into_owned()).ok_or_else(wrong)
        };
        match name {
            "before" => filter.before = Some(EntryId::parse(&value).ok_or_else(wrong)?),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=LIST.1).contains(limit));
                filter.limit = limit.ok_or_else(wrong)?;
            }
            "operation" => {
                filter.operation = Some(OperationId::new(&value).ok_or_else(wrong)?);
            }
            "principal" => filter.principal = Some(text()?),
            "since" => filter.since_ms = Some(since(&value).ok_or_else(wrong)?),
            "state" => filter.state = Some(EntryState::from_name(&value).ok_or_else(wrong)?),
            "task" => filter.task = Some(text()?),
            _ => {
                let names = "before, limit, operation, principal, since, state and task";
                return Err(Failure::request(format!("a list takes {names}")));
            }
        }
    }
    Ok(filter)
}

/// The longest text that a list is filtered by, in characters.
const MAX_TEXT: usize = 300;

/// A time as RFC 3339 text, or in milliseconds since 1970; what is before 1970 is its beginning.
fn since(text: &str) -> Option<i64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse::<i64>().ok().filter(|since| *since <= MAX_SINCE);
    }
    let since = text.parse::<jiff::Timestamp>().ok()?.as_millisecond();
    Some(since.clamp(0, MAX_SINCE))
}

/// The end of the year 9999.
const MAX_SINCE: i64 = 253_402_300_799_999;

/// The text that stands for an entry in a path; what is no text stands for none.
fn entry_of(id: Result<Path<String>, PathRejection>) -> Result<String, Failure> {
    id.map(|Path(id)| id).map_err(|_| Failure::not_found())
}

async fn show(
    State(admin): State<Arc<Admin>>,
    id: Result<Path<String>, PathRejection>,
) -> Response {
    let shown = async { shown(&admin, &entry_of(id)?).await };
    answer(shown.await)
}

async fn shown(admin: &Admin, id: &str) -> Result<ShownJson, Failure> {
    let entry = EntryId::parse(id).ok_or_else(Failure::not_found)?;
    let shown = read(admin, move |ledger| ledger.show(entry)).await?;
    shown.as_ref().map(ShownJson::of).ok_or_else(Failure::not_found)
}

async fn receipt(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> Response {
    let receipt = async || -> Result<Receipt, Failure> {
        let entry = EntryId::parse(&id).ok_or_else(Failure::not_found)?;
        let shown = read(&admin, move |ledger| ledger.show(entry)).await?;
        shown.as_ref().map(Receipt::of).ok_or_else(Failure::not_found)
    };
    answer(receipt().await)
}

/// Reads the ledger on a connection and a thread of their own.
async fn read<T: Send + 'static>(
    admin: &Admin,
    read: impl FnOnce(&ReadOnly) -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, Failure> {
    let place = admin.ledger.clone();
    let reading = tokio::task::spawn_blocking(move || -> Result<T, Failure> {
        Ok(read(&ReadOnly::open(place)?)?)
    });
    reading.await.map_err(|_| {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Failure::new(status, "internal", "reading the ledger failed")
    })?
}

async fn settle(
    State(admin): State<Arc<Admin>>,
    id: Result<Path<String>, PathRejection>,
    Extension(peer): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let settled = async { settled(&admin, &entry_of(id)?, peer, whole(body)?).await };
    answer(settled.await)
}

#[derive(Serialize)]
struct Decided {
    entry: String,
    state: &'static str,
}

async fn settled(admin: &Admin, id: &str, peer: Who, body: Bytes) -> Result<Decided, Failure> {
    let entry = EntryId::parse(id).ok_or_else(Failure::not_found)?;
    let (outcome, why) = decision(body)?;
    let who = peer.to_string();
    let shared = &admin.shared;
    let now_ms = shared.clock.now_ms();
    let settled = shared.ledger.settle(entry, outcome, &who, &why, now_ms).await?;
    tracing::info!(%entry, %outcome, who, "settled by a person");
    Ok(Decided { entry: entry.to_string(), state: settled.state.as_str() })
}

async fn redact(
    State(admin): State<Arc<Admin>>,
    id: Result<Path<String>, PathRejection>,
    Extension(peer): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let redacted = async { redacted(&admin, &entry_of(id)?, peer, whole(body)?).await };
    answer(redacted.await)
}

async fn redacted(admin: &Admin, id: &str, peer: Who, body: Bytes) -> Result<Decided, Failure> {
    let entry = EntryId::parse(id).ok_or_else(Failure::not_found)?;
    let (parts, why) = redaction(body)?;
    let who = peer.to_string();
    let shared = &admin.shared;
    let (now_ms, count) = (shared.clock.now_ms(), parts.len());
    let settled = shared.ledger.redact(entry, parts, &who, &why, now_ms).await?;
    tracing::info!(%entry, parts = count, who, "redacted by a person");
    Ok(Decided { entry: entry.to_string(), state: settled.state.as_str() })
}

/// Reads `{"pointers": ["..."], "why": "..."}`.
fn redaction(body: Bytes) -> Result<(Vec<Part>, String), Failure> {
    let form = || {
        let message =
            format!("the body is {{\"pointers\": [1 to {MAX_POINTERS} texts], \"why\": text}}");
        Failure::request(message)
    };
    let doc = Doc::parse(body).map_err(|_| form())?;
    let root = doc.root();
    let pointers = root.get("pointers").filter(|pointers| pointers.kind() == Kind::Array);
    let pointers = pointers.ok_or_else(form)?;
    let count = pointers.elements().count();
    if root.kind() != Kind::Object
        || root.members().count() != 2
        || !(1..=MAX_POINTERS).contains(&count)
    {
        return Err(form());
    }
    let mut parts = Vec::new();
    for pointer in pointers.elements() {
        let text = pointer.as_str().ok_or_else(form)?;
        let part = Part::parse(&text).ok_or_else(|| {
            let help = "/target, /before/..., /answer/body/..., /answer, /upstream_id, /undo, \
                        /compensate and /lookup can be redacted";
            Failure::request(format!("a pointer names no part of an entry: {help}"))
        })?;
        parts.push(part);
    }
    Ok((parts, reason(root.get("why").and_then(|why| why.as_str()).ok_or_else(form)?.as_ref())?))
}

/// A person's reason.
fn reason(why: &str) -> Result<String, Failure> {
    let why = why.trim();
    if why.is_empty() || why.chars().count() > MAX_WHY {
        let message = format!("`why` says why, in 1 to {MAX_WHY} characters");
        return Err(Failure::request(message));
    }
    Ok(why.to_owned())
}

/// Reads `{"outcome": "accepted" | "rejected", "why": "..."}`.
fn decision(body: Bytes) -> Result<(Outcome, String), Failure> {
    let form = || {
        Failure::request("the body is {\"outcome\": \"accepted\" or \"rejected\", \"why\": text}")
    };
    let doc = Doc::parse(body).map_err(|_| form())?;
    let root = doc.root();
    if root.kind() != Kind::Object || root.members().count() != 2 {
        return Err(form());
    }
    let text = |name: &str| root.get(name)?.as_str();
    let outcome = text("outcome").and_then(|outcome| match Outcome::from_name(&outcome)? {
        outcome @ (Outcome::Accepted | Outcome::Rejected) => Some(outcome),
        Outcome::Unknown => None,
    });
    let why = text("why").ok_or_else(form)?;
    Ok((outcome.ok_or_else(form)?, reason(&why)?))
}

#[derive(Serialize)]
struct Run {
    reconciled: Vec<ReconciledJson>,
}

#[derive(Serialize)]
struct ReconciledJson {
    entry: String,
    operation: String,
    result: &'static str,
    why: String,
}

impl From<Reconciled> for ReconciledJson {
    fn from(reconciled: Reconciled) -> Self {
        let Reconciled { entry, operation, conclusion, why } = reconciled;
        Self {
            entry: entry.to_string(),
            operation: operation.as_str().to_owned(),
            result: conclusion.as_str(),
            why,
        }
    }
}

async fn reconcile(State(admin): State<Arc<Admin>>) -> Response {
    let Ok(_one) = admin.reconciling.try_lock() else {
        let message = "another run of lookups is under way";
        return Failure::new(StatusCode::CONFLICT, "in_progress", message).into_response();
    };
    let run = reconcile_once(&admin.fetch).await;
    answer(match run {
        Ok(run) => Ok(Run { reconciled: run.into_iter().map(Into::into).collect() }),
        Err(error) => Err(error.into()),
    })
}

/// `GET /api/v1/health`
#[derive(Serialize)]
struct HealthJson {
    version: &'static str,
    startup: serde_json::Value,
    ready: serde_json::Value,
    live: serde_json::Value,
}

async fn show_health(State(admin): State<Arc<Admin>>) -> Response {
    let health = &admin.health;
    answer(Ok(HealthJson {
        version: env!("CARGO_PKG_VERSION"),
        startup: health::shown(&health.startup()),
        ready: health::shown(&health.readiness()),
        live: health::shown(&health.liveness()),
    }))
}

/// `POST /api/v1/drain`
#[derive(Serialize)]
struct Draining {
    draining: bool,
    grace_ms: u64,
    in_flight: usize,
}

async fn drain(State(admin): State<Arc<Admin>>, Extension(peer): Extension<Who>) -> Response {
    // Full: it was asked before, and is draining already.
    if admin.drains.try_send(()).is_ok() {
        tracing::info!(event = "drain_asked", who = %peer, "asked to drain by the admin API");
    }
    answer(Ok(Draining {
        draining: true,
        grace_ms: u64::try_from(admin.grace.as_millis()).unwrap_or(u64::MAX),
        in_flight: admin.shared.tasks.awaited(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_an_outcome_and_a_reason() {
        let table = [
            (r#"{"outcome":"accepted","why":"seen in the shop"}"#, Some(Outcome::Accepted)),
            (r#"{"why":"x","outcome":"rejected"}"#, Some(Outcome::Rejected)),
            (r#"{"outcome":"unknown","why":"x"}"#, None),
            (r#"{"outcome":"accepted","why":"  "}"#, None),
            (r#"{"outcome":"accepted"}"#, None),
            (r#"{"outcome":"accepted","why":"x","who":"me"}"#, None),
            (r#"{"outcome":"accepted","outcome":"rejected"}"#, None),
            ("[]", None),
            ("", None),
        ];
        for (body, right) in table {
            let got = decision(Bytes::from_static(body.as_bytes())).ok();
            assert_eq!(got.map(|(outcome, _)| outcome), right, "{body}");
        }
        let long = format!(r#"{{"outcome":"accepted","why":"{}"}}"#, "x".repeat(MAX_WHY + 1));
        assert!(decision(long.into()).is_err());
    }

    #[test]
    fn a_lists_query_is_held_to_its_four_names() {
        let filter = |query: &str| filter(query).ok();
        let entry = "019b0000-0000-7000-8000-000000000000";

        let read = filter(&format!("state=unknown&operation=a.b&limit=5&before={entry}")).unwrap();
        let more = filter("principal=w%3Aab&task=a+b&since=2025-11-30T08:00:00Z").unwrap();

        assert_eq!(read.state, Some(EntryState::Unknown));
        assert_eq!(read.operation.unwrap().as_str(), "a.b");
        assert_eq!((read.limit, read.before.unwrap().to_string().as_str()), (5, entry));
        assert_eq!((more.principal.as_deref(), more.task.as_deref()), (Some("w:ab"), Some("a b")));
        assert_eq!(more.since_ms, Some(1_764_489_600_000));
        assert_eq!(filter("since=5").unwrap().since_ms, Some(5));
        assert_eq!(filter("").unwrap().limit, LIST.0);
        for query in [
            "state=odd",
            "limit=0",
            "limit=1001",
            "before=x",
            "who=me",
            "operation=",
            "since=soon",
            "since=-1",
            "task=",
            "limit=1&limit=2",
            "task=%ff",
        ] {
            assert!(filter(query).is_none(), "{query}");
        }
    }
}
