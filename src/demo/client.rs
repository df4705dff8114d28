//! The guide's HTTP client: one connection, kept open, as an agent's is.
//!
//! Small on purpose: HTTP/1.1, JSON, no redirects, no second attempt. A request that is sent and
//! not answered is an error here; whether it had an effect is what the proxy is for.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::tasks::Tasks;

/// The longest answer that is read, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;

/// How long one exchange may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Ask<'a> {
    pub(super) method: Method,
    /// Path and query.
    pub(super) path: &'a str,
    /// Beside those that every request has.
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Option<&'a Value>,
}

impl<'a> Ask<'a> {
    /// A request without a body.
    pub(super) fn new(method: Method, path: &'a str) -> Self {
        Self { method, path, headers: Vec::new(), body: None }
    }

    /// A POST of this body.
    pub(super) fn post(path: &'a str, body: &'a Value) -> Self {
        Self { body: Some(body), ..Self::new(Method::POST, path) }
    }

    /// The same with one more header.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// An answer, read whole.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// `Null` if there is none, or if it is not JSON.
    pub(super) body: Value,
}

impl Answer {
    /// The report in this header; `Null` if there is none.
    pub(super) fn report(&self, name: &str) -> Value {
        let header = self.headers.get(name).map(|value| value.as_bytes());
        header.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default()
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// No connection.
    #[error("the connection to {0} failed")]
    Connect(SocketAddr, #[source] io::Error),
    /// The exchange broke off.
    #[error("the request got no answer")]
    Exchange(#[source] hyper::Error),
    /// A value that the guide made cannot be sent.
    #[error("the request cannot be written")]
    Request(#[source] http::Error),
    /// It took longer than [`PATIENCE`].
    #[error("no answer in {} seconds", PATIENCE.as_secs())]
    TooLate,
    /// It is longer than [`MAX_ANSWER`].
    #[error("the answer is over {MAX_ANSWER} bytes")]
    TooLong,
}

/// A client of one server.
pub(super) struct Client {
    address: SocketAddr,
    tasks: Tasks,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// Connects when it is first used.
    pub(super) fn new(address: SocketAddr, tasks: &Tasks) -> Self {
        Self { address, tasks: tasks.clone(), connection: None }
    }

    /// Sends one request and reads the answer.
    pub(super) async fn send(&mut self, ask: &Ask<'_>) -> Result<Answer, ClientError> {
        let exchange = tokio::time::timeout(PATIENCE, self.exchange(ask));
        exchange.await.unwrap_or(Err(ClientError::TooLate))
    }

    async fn exchange(&mut self, ask: &Ask<'_>) -> Result<Answer, ClientError> {
        let mut request = Request::builder()
            .method(&ask.method)
            .uri(ask.path)
            .header(HOST, self.address.to_string())
            .header(ACCEPT, "application/json, text/event-stream");
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        if ask.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = ask.body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::from(body)).map_err(ClientError::Request)?;
        let mut kept = self.connection.take();
        let is_open = match &mut kept {
            Some(connection) => connection.ready().await.is_ok(),
            None => false,
        };
        let mut connection = match kept.filter(|_| is_open) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let response = connection.send_request(request).await.map_err(ClientError::Exchange)?;
        let (head, mut body) = response.into_parts();
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(ClientError::Exchange)?.into_data() {
                if whole.len().saturating_add(data.len()) > MAX_ANSWER {
                    return Err(ClientError::TooLong);
                }
                whole.extend_from_slice(&data);
            }
        }
        self.connection = Some(connection);
        let body = serde_json::from_slice(&whole).unwrap_or_default();
        Ok(Answer { status: head.status, headers: head.headers, body })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let stream = TcpStream::connect(self.address)
            .await
            .map_err(|error| ClientError::Connect(self.address, error))?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(ClientError::Exchange)?;
        let driver = async move {
            // Its error is the exchange's error too.
            drop(connection.await);
        };
        drop(self.tasks.spawn_background("demo_client", driver));
        Ok(sender)
    }
}
