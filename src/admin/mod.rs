//! The two listeners that agents never reach: telemetry, and the admin API.
//!
//! | listener | who reaches it | what it serves |
//! |---|---|---|
//! | telemetry | the kubelet and Prometheus, on the pod's address | `GET` `/livez`, `/readyz`, `/startupz`, `/metrics` |
//! | admin | whoever may open its Unix socket (mode 0600) | `/api/v1/...`, below |
//!
//! | admin route | what it does |
//! |---|---|
//! | `GET /api/v1/entries?state=&operation=&before=&limit=` | lists entries, newest first |
//! | `GET /api/v1/entries/{id}` | one entry and its history |
//! | `GET /api/v1/entries/{id}/receipt` | who allowed it, how it was sent, what proves it |
//! | `POST /api/v1/entries/{id}/settle` `{"outcome", "why"}` | records a person's decision about an unknown entry |
//! | `POST /api/v1/entries/{id}/undone` `{"by"}` | records that another principal's call took an entry back |
//! | `GET /api/v1/undo?task=` | what taking a task back would be |
//! | `POST /api/v1/reconcile` | looks up each unknown entry once |
//! | `GET /api/v1/policy` | the policy in force, what of it is degraded, and newer files that are rejected |
//! | `POST /api/v1/reload` | reads the policy's files; 422 with the place of the first error if they are rejected |
//!
//! Both run on the control thread, off the path of calls. Who settles is the user id that the kernel
//! gives for the other end of the socket. Bodies are limited to 64 KiB, connections by [`listen`].

pub mod client;
pub mod entries;
pub mod health;
pub mod listen;
pub mod policy;
pub mod receipt;
mod undo;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Extension, Path, RawQuery, State};
use axum::response::Response;
use axum::routing::{get, post};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use tokio::sync::{Mutex, mpsc};

use crate::contract::class::Outcome;
use crate::contract::json::{Doc, Kind};
use crate::contract::key::{EntryId, OperationId};
use crate::ledger::{Filter, LedgerError, OpenError, ReadOnly, State as EntryState};
use crate::pipeline::Shared;
use crate::pipeline::fetch::Fetch;
use crate::pipeline::reconcile::{Reconciled, reconcile_once};

use entries::{EntryJson, ShownJson};
use listen::PeerId;
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
    /// The ledger's file, for reading beside its writer.
    pub ledger: PathBuf,
    /// One run of lookups at a time: two would ask everything twice.
    pub reconciling: Mutex<()>,
    /// What is known of the policy's files.
    pub policy: policy::Status,
    /// Where the reading of the policy's files is asked for.
    pub reloads: mpsc::Sender<policy::Ask>,
}

/// The admin API.
pub fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/api/v1/entries", get(list))
        .route("/api/v1/entries/{id}", get(show))
        .route("/api/v1/entries/{id}/receipt", get(receipt))
        .route("/api/v1/entries/{id}/settle", post(settle))
        .route("/api/v1/entries/{id}/undone", post(undo::undone))
        .route("/api/v1/undo", get(undo::planned))
        .route("/api/v1/reconcile", post(reconcile))
        .route("/api/v1/policy", get(policy::show))
        .route("/api/v1/reload", post(policy::reload))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(admin)
}

/// An answer that is not the one asked for.
struct Failure {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Failure {
    fn request(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "invalid_request", message: message.into() }
    }

    fn not_found() -> Self {
        let message = LedgerError::NotFound.to_string();
        Self { status: StatusCode::NOT_FOUND, code: "not_found", message }
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        let (status, code) = match error {
            LedgerError::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            LedgerError::Changed => (StatusCode::CONFLICT, "changed"),
            LedgerError::NotUnknown { .. } => (StatusCode::CONFLICT, "not_unknown"),
            LedgerError::Refused => (StatusCode::CONFLICT, "refused"),
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
    let (status, text) = match result {
        Ok(value) => (StatusCode::OK, serde_json::to_string(&value)),
        Err(failure) => {
            let Failure { status, code, message } = failure;
            let error = serde_json::json!({ "error": { "code": code, "message": message } });
            (status, serde_json::to_string(&error))
        }
    };
    json(status, text.unwrap_or_default())
}

/// A JSON answer.
fn json(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[derive(Serialize)]
struct Listed {
    entries: Vec<EntryJson>,
}

async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Response {
    answer(listed(&admin, query.as_deref().unwrap_or_default()).await)
}

async fn listed(admin: &Admin, query: &str) -> Result<Listed, Failure> {
    let filter = filter(query)?;
    let records = read(admin, move |ledger| ledger.list(&filter)).await?;
    Ok(Listed { entries: records.iter().map(EntryJson::of).collect() })
}

/// Reads the query of a list; none of its values needs escapes.
fn filter(query: &str) -> Result<Filter, Failure> {
    let mut filter = Filter { limit: LIST.0, ..Filter::default() };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let wrong = || Failure::request(format!("`{name}` has a value that it cannot have"));
        match name {
            "before" => filter.before = Some(EntryId::parse(value).ok_or_else(wrong)?),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=LIST.1).contains(limit));
                filter.limit = limit.ok_or_else(wrong)?;
            }
            "operation" => {
                filter.operation = Some(OperationId::new(value).ok_or_else(wrong)?);
            }
            "state" => filter.state = Some(EntryState::from_name(value).ok_or_else(wrong)?),
            _ => return Err(Failure::request("a list takes before, limit, operation and state")),
        }
    }
    Ok(filter)
}

async fn show(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> Response {
    answer(shown(&admin, &id).await)
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
    let path = admin.ledger.clone();
    let reading = tokio::task::spawn_blocking(move || -> Result<T, Failure> {
        Ok(read(&ReadOnly::open(&path)?)?)
    });
    reading.await.map_err(|_| Failure {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        code: "internal",
        message: "reading the ledger failed".to_owned(),
    })?
}

async fn settle(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    Extension(peer): Extension<PeerId>,
    body: Bytes,
) -> Response {
    answer(settled(&admin, &id, peer, body).await)
}

#[derive(Serialize)]
struct Decided {
    entry: String,
    state: &'static str,
}

async fn settled(admin: &Admin, id: &str, peer: PeerId, body: Bytes) -> Result<Decided, Failure> {
    let entry = EntryId::parse(id).ok_or_else(Failure::not_found)?;
    let (outcome, why) = decision(body)?;
    let who = peer.to_string();
    let shared = &admin.shared;
    let now_ms = shared.clock.now_ms();
    let settled = shared.ledger.settle(entry, outcome, &who, &why, now_ms).await?;
    tracing::info!(%entry, %outcome, who, "settled by a person");
    Ok(Decided { entry: entry.to_string(), state: settled.state.as_str() })
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
    let why = why.trim();
    if why.is_empty() || why.chars().count() > MAX_WHY {
        let message = format!("`why` says why, in 1 to {MAX_WHY} characters");
        return Err(Failure::request(message));
    }
    Ok((outcome.ok_or_else(form)?, why.to_owned()))
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
        return answer::<Run>(Err(Failure {
            status: StatusCode::CONFLICT,
            code: "in_progress",
            message: "another run of lookups is under way".to_owned(),
        }));
    };
    let run = reconcile_once(&admin.fetch).await;
    answer(match run {
        Ok(run) => Ok(Run { reconciled: run.into_iter().map(Into::into).collect() }),
        Err(error) => Err(error.into()),
    })
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

        assert_eq!(read.state, Some(EntryState::Unknown));
        assert_eq!(read.operation.unwrap().as_str(), "a.b");
        assert_eq!((read.limit, read.before.unwrap().to_string().as_str()), (5, entry));
        assert_eq!(filter("").unwrap().limit, LIST.0);
        for query in ["state=odd", "limit=0", "limit=1001", "before=x", "who=me", "operation="] {
            assert!(filter(query).is_none(), "{query}");
        }
    }
}
