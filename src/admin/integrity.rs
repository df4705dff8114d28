//! The admin route by which a person says that what is wrong with the ledger's chain is known.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, State};
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;

use super::auth::Who;
use super::{Admin, Failure, answer, read, reason, whole};
use crate::contract::json::{Doc, Kind};
use crate::ledger::Reason;

/// `POST /api/v1/ledger/acknowledge`
#[derive(Serialize)]
struct AcknowledgedJson {
    /// The rows that do not fit.
    breaks: Vec<BreakJson>,
    /// Whether the ledger lacked what was written here last.
    outdated: bool,
}

#[derive(Serialize)]
struct BreakJson {
    chain: i64,
    /// Its number in the history; 0 for a row that is gone.
    row: i64,
    entry: Option<String>,
    why: String,
}

/// Follows the whole chain, and records who knows of what does not fit in it. Writes are taken from then
/// on.
pub(super) async fn acknowledge(
    State(admin): State<Arc<Admin>>,
    Extension(peer): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let acknowledged = async { acknowledged(&admin, peer, whole(body)?).await };
    answer(acknowledged.await)
}

async fn acknowledged(admin: &Admin, peer: Who, body: Bytes) -> Result<AcknowledgedJson, Failure> {
    let why = word(body)?;
    let keys = admin.keys.clone();
    let breaks = read(admin, move |ledger| ledger.breaks(&keys)).await?.map_err(|broken| {
        let message = format!("the chain cannot be followed: {broken}");
        Failure::new(StatusCode::CONFLICT, "unverifiable", message)
    })?;
    let shared = &admin.shared;
    let flaw = shared.ledger.integrity().flaw;
    if breaks.is_empty() && flaw.is_none() {
        let message = "the chain is whole: there is nothing to acknowledge";
        return Err(Failure::new(StatusCode::CONFLICT, "nothing_there", message));
    }
    let who = peer.to_string();
    let shown = breaks
        .iter()
        .map(|broken| BreakJson {
            chain: broken.chain,
            row: broken.row,
            entry: broken.entry.map(|entry| entry.to_string()),
            why: broken.why.clone(),
        })
        .collect();
    let count = breaks.len();
    shared.ledger.acknowledge(breaks, &who, &why, shared.clock.now_ms()).await?;
    let outdated = flaw == Some(Reason::Outdated);
    tracing::warn!(
        event = "ledger_acknowledged",
        breaks = count,
        outdated,
        who,
        "what is wrong with the ledger's chain was acknowledged by a person"
    );
    Ok(AcknowledgedJson { breaks: shown, outdated })
}

/// Reads `{"why": "..."}`.
fn word(body: Bytes) -> Result<String, Failure> {
    let form = || Failure::request("the body is {\"why\": text}");
    let doc = Doc::parse(body).map_err(|_| form())?;
    let root = doc.root();
    if root.kind() != Kind::Object || root.members().count() != 1 {
        return Err(form());
    }
    reason(root.get("why").and_then(|why| why.as_str()).ok_or_else(form)?.as_ref())
}
