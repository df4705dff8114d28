//! Our own sessions with an MCP upstream: for callers that do not speak MCP, and for our own reads.
//!
//! One for each principal ([`Clients`](crate::mcp::clients::Clients)). What the upstream speaks is asked
//! once: the revision without sessions first, then one with. A session that has rested too long, whose
//! place another takes, or whose process ends, is ended as the protocol has it, but not under a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use tokio::sync::OwnedRwLockReadGuard;

use super::ask::{Ask, whole_answer};
use crate::call::refusal::Refusal;
use crate::call::{Head, Principal};
use crate::contract::json::Value;
use crate::mcp::clients::Client;
use crate::mcp::jsonrpc::Id;
use crate::mcp::sessions::SESSION;
use crate::mcp::{Era, MODERN_REVISION};

/// The revision that we offer an upstream with sessions.
const LEGACY_REVISION: &str = "2025-11-25";

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// Ids of our requests: none is used twice in a session.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A session that is in use; it is not ended before this is dropped.
#[derive(Debug)]
pub struct InUse {
    /// The session.
    pub client: Arc<Client>,
    _busy: OwnedRwLockReadGuard<()>,
}

/// A principal's session with the upstream, made if there is none.
///
/// # Errors
///
/// [`Refusal::NoSession`].
pub async fn client(
    ask: &Ask,
    head: &Head,
    principal: &Principal,
    path: &str,
) -> Result<InUse, Refusal> {
    let shared = &ask.shared;
    let clients = &shared.mcp.clients;
    while let Some(client) = clients.find(&principal.credential, shared.clock.instant()) {
        let busy = Arc::clone(&client.busy).read_owned().await;
        // Whoever ends a session forgets it first.
        if clients.keeps(&principal.credential, &client) {
            return Ok(InUse { client, _busy: busy });
        }
    }
    let made = introduce(ask, head, path).await?;
    let client = clients.put(Arc::clone(&principal.credential), made, shared.clock.instant());
    let busy = Arc::clone(&client.busy).read_owned().await;
    if client.session.is_some()
        && let Some(mut head) = mcp_head(head, path)
    {
        head.headers = headers_of(&head.headers, &client);
        end_after_rest(ask, head, Arc::clone(&principal.credential), Arc::clone(&client));
    }
    Ok(InUse { client, _busy: busy })
}

/// Ends a session of ours when it has rested too long, when another takes its place, or when this
/// process ends; not under a call.
fn end_after_rest(ask: &Ask, head: Head, principal: Arc<str>, client: Arc<Client>) {
    let ask = ask.clone();
    let tasks = ask.shared.tasks.clone();
    let _detached = tasks.spawn("session of ours", async move {
        let shared = Arc::clone(&ask.shared);
        let clients = &shared.mcp.clients;
        let limit = shared.settings.mcp.session_idle;
        let left = || clients.rest(&principal, &client, shared.clock.instant(), limit);
        while let Some(left) = left() {
            tokio::select! {
                // Nothing is lost: the time is looked at again.
                () = tokio::time::sleep(left) => {}
                () = client.gone.notified() => {}
                () = ask.drain.begun() => break,
            }
        }
        clients.forget(&principal, &client);
        let _no_call = client.busy.write().await;
        ask.end_session(&head).await;
    });
}

/// Asks what the upstream speaks: the revision without sessions first.
async fn introduce(ask: &Ask, head: &Head, path: &str) -> Result<Client, Refusal> {
    let lost = || Refusal::NoSession(StatusCode::BAD_GATEWAY.as_u16());
    let head = mcp_head(head, path).ok_or_else(lost)?;
    let modern = Client::new(Era::Modern, MODERN_REVISION);
    let id = next_id().ok_or_else(lost)?;
    let mut headers = headers_of(&head.headers, &modern);
    headers.insert(METHOD, HeaderValue::from_static("server/discover"));
    let params = format!("{{\"_meta\":{}}}", modern_meta());
    let body = request(&id, "server/discover", &params);
    let (parts, body) = ask.post(&head, headers, body.into()).await.ok_or_else(lost)?;
    refused_by(parts.status)?;
    let answer = whole_answer(&ask.shared, &parts, body, &id).await;
    if answer.is_some_and(|answer| answer.result().is_some()) {
        return Ok(modern);
    }
    let id = next_id().ok_or_else(lost)?;
    let mut legacy = Client::new(Era::Legacy, LEGACY_REVISION);
    let mut headers = headers_of(&head.headers, &legacy);
    headers.remove(VERSION);
    let version = env!("CARGO_PKG_VERSION");
    let params = format!(
        "{{\"protocolVersion\":\"{LEGACY_REVISION}\",\"capabilities\":{{}},\
         \"clientInfo\":{{\"name\":\"takeback\",\"version\":\"{version}\"}}}}"
    );
    let body = request(&id, "initialize", &params);
    let (parts, body) = ask.post(&head, headers, body.into()).await.ok_or_else(lost)?;
    refused_by(parts.status)?;
    let session = parts.headers.get(SESSION).and_then(|id| id.to_str().ok());
    legacy.session = session.map(str::to_owned);
    let answer = whole_answer(&ask.shared, &parts, body, &id).await.ok_or_else(lost)?;
    let result = answer.result().ok_or_else(lost)?;
    if let Some(version) = result.get("protocolVersion").and_then(Value::as_str) {
        legacy.version = version.into_owned();
    }
    let notice = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}";
    let headers = headers_of(&head.headers, &legacy);
    drop(ask.post(&head, headers, Bytes::from_static(notice.as_bytes())).await);
    Ok(legacy)
}

/// The head of a message of ours on the upstream's MCP path, with the caller's credentials.
pub fn mcp_head(head: &Head, path: &str) -> Option<Head> {
    let path: Uri = path.parse().ok()?;
    Some(Head { method: Method::POST, uri: path, ..head.clone() })
}

/// What an upstream says that does not let the caller in.
fn refused_by(status: StatusCode) -> Result<(), Refusal> {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(Refusal::NoSession(status.as_u16()))
        }
        _ => Ok(()),
    }
}

/// The id of our next request.
pub fn next_id() -> Option<Id> {
    Id::parse(&NEXT_ID.fetch_add(1, Ordering::Relaxed).to_string())
}

/// A request of ours.
pub fn request(id: &Id, method: &str, params: &str) -> String {
    let id = id.as_token();
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}")
}

/// The `_meta` of a request without a session.
pub fn modern_meta() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{{\"io.modelcontextprotocol/protocolVersion\":\"{MODERN_REVISION}\",\
         \"io.modelcontextprotocol/clientCapabilities\":{{}},\
         \"io.modelcontextprotocol/clientInfo\":{{\"name\":\"takeback\",\"version\":\"{version}\"}}}}"
    )
}

/// The caller's headers with what the upstream's protocol wants.
pub fn headers_of(own: &HeaderMap, client: &Client) -> HeaderMap {
    let mut headers = own.clone();
    let theirs: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("mcp-")).cloned().collect();
    for name in theirs {
        headers.remove(name);
    }
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let both = HeaderValue::from_static("application/json, text/event-stream");
    headers.insert(header::ACCEPT, both);
    if let Ok(version) = HeaderValue::from_str(&client.version) {
        headers.insert(VERSION, version);
    }
    if let Some(session) = client.session.as_deref().and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert(SESSION, session);
    }
    headers
}
