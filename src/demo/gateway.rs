//! `github-mini`: the example gateway, a real HTTP server on a loopback port of the system's
//! choice.
//!
//! Thin: it reads a request whole, gives it to `rest` or `mcp`, and writes the
//! answer. A lost answer is a connection that ends before its answer; to whoever called, it looks
//! like a gateway that died.
//!
//! Limits: bodies of [`MAX_BODY`] bytes; HTTP/1.1 and h2 with prior knowledge; no TLS, no
//! credentials. It listens on loopback only, and refuses browsers' pages from elsewhere by their
//! `Origin`. All state is in memory and gone at the end.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};

use super::mcp::{self, Sessions};
use super::rest;
use super::world::World;
use crate::tasks::Tasks;

/// The longest request body, in bytes, inclusive.
pub const MAX_BODY: usize = 64 * 1024;

/// The path on which MCP is spoken.
pub const MCP_PATH: &str = "/mcp";

/// A gateway that is being served. It serves until its runtime ends.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
}

impl Gateway {
    /// Starts one with fresh state.
    ///
    /// # Errors
    ///
    /// When no loopback port can be had.
    pub async fn start(tasks: &Tasks) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = accept(listener, Arc::new(Shared::new()), tasks.clone());
        drop(tasks.spawn_background("github_mini", accepting));
        Ok(Self { address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

struct Shared {
    state: Mutex<State>,
}

struct State {
    world: World,
    sessions: Sessions,
}

impl Shared {
    fn new() -> Self {
        let state = State { world: World::new(), sessions: Sessions::default() };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, tasks: Tasks) {
    loop {
        // An error of one connection (it was reset before it was accepted, no descriptor is left)
        // ends no other; the pause keeps a lasting one from spinning.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        drop(tasks.spawn_background("github_mini_connection", serve(stream, Arc::clone(&shared))));
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { answer(&shared, request).await }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    // A lost answer ends here as an error of the service, and so does a peer that leaves; neither
    // is news to anybody.
    drop(builder.serve_connection(TokioIo::new(stream), service).await);
}

/// The connection is to be cut: the effect is there, the answer is not.
#[derive(Debug, thiserror::Error)]
#[error("the answer is lost on request")]
struct Lost;

async fn answer(
    shared: &Shared,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Lost> {
    let (head, body) = request.into_parts();
    if !is_from_here(&head.headers) {
        return Ok(plain(StatusCode::FORBIDDEN));
    }
    let Some(body) = read(body).await else {
        return Ok(plain(StatusCode::PAYLOAD_TOO_LARGE));
    };
    if head.uri.path() == MCP_PATH {
        return speak_mcp(shared, &head, &body);
    }
    let key = head.headers.get("idempotency-key").and_then(|value| value.to_str().ok());
    let call = rest::Call { method: &head.method, path: head.uri.path(), key, body: body.as_ref() };
    match rest::answer(&mut shared.lock().world, &call) {
        rest::Reply::Answer(answer) => Ok(json(answer.status, &answer.body)),
        rest::Reply::Lost => Err(Lost),
    }
}

fn speak_mcp(
    shared: &Shared,
    head: &http::request::Parts,
    body: &[u8],
) -> Result<Response<Full<Bytes>>, Lost> {
    let session = head.headers.get("mcp-session-id").and_then(|value| value.to_str().ok());
    if head.method == Method::DELETE {
        let is_closed = session.is_some_and(|id| shared.lock().sessions.close(id));
        return Ok(plain(if is_closed { StatusCode::OK } else { StatusCode::NOT_FOUND }));
    }
    if head.method != Method::POST {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST, DELETE"));
        return Ok(response);
    }
    let fresh = uuid::Uuid::now_v7().to_string();
    let mut state = shared.lock();
    let State { world, sessions } = &mut *state;
    match mcp::post(world, sessions, &head.headers, body, &fresh) {
        mcp::Reply::Lost => Err(Lost),
        mcp::Reply::Answer { status, body, session } => {
            let mut response = json(status, &body.unwrap_or_default());
            if let Some(id) = session.and_then(|id| HeaderValue::from_str(&id).ok()) {
                response.headers_mut().insert("mcp-session-id", id);
            }
            Ok(response)
        }
    }
}

/// `false` for a page of another site, whose requests a browser marks (DNS rebinding).
fn is_from_here(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let host = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.parse::<http::Uri>().ok())
        .and_then(|origin| origin.host().map(str::to_owned));
    matches!(host.as_deref(), Some("127.0.0.1" | "localhost" | "[::1]"))
}

/// The body whole; `None` if it is longer than it may be, or is cut.
async fn read(mut body: Incoming) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            if whole.len().saturating_add(data.len()) > MAX_BODY {
                return None;
            }
            whole.extend_from_slice(&data);
        }
    }
    Some(whole.freeze())
}

fn plain(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// An answer with a JSON body; `Null` is none.
fn json(status: u16, body: &Value) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if body.is_null() {
        return plain(status);
    }
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::client::{Ask, Client, ClientError};
    use serde_json::json;

    const ISSUES: &str = "/repos/octo/hello/issues";

    async fn started() -> (Gateway, Client) {
        let tasks = Tasks::new();
        let gateway = Gateway::start(&tasks).await.unwrap();
        let client = Client::new(gateway.address(), &tasks);
        (gateway, client)
    }

    #[tokio::test]
    async fn a_lost_answer_is_a_cut_connection_and_its_effect_is_there() {
        let (_gateway, mut client) = started().await;
        let lose = Ask::new(Method::POST, "/_demo/lose-next-answer");
        assert_eq!(client.send(&lose).await.unwrap().status, 204);

        let body = json!({"title": "t"});
        let lost = client.send(&Ask::post(ISSUES, &body)).await;

        assert!(matches!(lost, Err(ClientError::Exchange(_))), "{lost:?}");
        let counts = client.send(&Ask::new(Method::GET, "/_demo/counts")).await.unwrap();
        assert_eq!(counts.body["issues"]["created"], 1);
        assert_eq!(client.send(&Ask::post(ISSUES, &body)).await.unwrap().status, 201);
    }

    #[tokio::test]
    async fn a_key_in_the_header_is_honoured() {
        let (_gateway, mut client) = started().await;
        let body = json!({"title": "t"});
        let ask = Ask::post(ISSUES, &body).with("idempotency-key", "k");

        let first = client.send(&ask).await.unwrap();
        let again = client.send(&ask).await.unwrap();

        assert_eq!(first.body, again.body);
        assert_eq!(first.body["number"], 2);
    }

    #[tokio::test]
    async fn mcp_16_a_page_of_another_site_is_refused_before_anything_else() {
        let (_gateway, mut client) = started().await;
        let body = json!({"title": "t"});

        for (origin, status) in [
            ("http://evil.example", 403),
            ("null", 403),
            ("http://localhost:1234", 201),
            ("http://[::1]", 201),
        ] {
            let ask = Ask::post(ISSUES, &body).with("origin", origin);
            assert_eq!(client.send(&ask).await.unwrap().status, status, "{origin}");
        }
    }

    #[tokio::test]
    async fn a_session_is_opened_used_and_ended_over_http() {
        let (_gateway, mut client) = started().await;
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}});
        let opened = client.send(&Ask::post(MCP_PATH, &hello)).await.unwrap();
        let session = opened.headers["mcp-session-id"].to_str().unwrap().to_owned();
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});

        let ask = Ask::post(MCP_PATH, &ping).with("mcp-session-id", &session);
        assert_eq!(client.send(&ask).await.unwrap().status, 200);
        let get = Ask::new(Method::GET, MCP_PATH).with("mcp-session-id", &session);
        assert_eq!(client.send(&get).await.unwrap().status, 405);
        let end = Ask::new(Method::DELETE, MCP_PATH).with("mcp-session-id", &session);
        assert_eq!(client.send(&end).await.unwrap().status, 200);
        assert_eq!(client.send(&ask).await.unwrap().status, 404);
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_has_no_effect() {
        let (_gateway, mut client) = started().await;
        let body = json!({"title": "t".repeat(MAX_BODY)});

        let answer = client.send(&Ask::post(ISSUES, &body)).await.unwrap();

        assert_eq!(answer.status, 413);
        let counts = client.send(&Ask::new(Method::GET, "/_demo/counts")).await.unwrap();
        assert_eq!(counts.body["issues"]["created"], 0);
    }
}
