//! Asking a running sidecar: a request over its admin socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::call::payload::{self, Body, Budget};

/// The longest answer, in bytes.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// How long a command waits for its answer; longer than a run of lookups takes.
const ANSWER: Duration = Duration::from_secs(600);

/// Why a running sidecar could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection broke, or the answer is no HTTP.
    #[error("the sidecar at {} did not answer", socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket is there, and this user may not open it.
    #[error("{} may not be opened by this user", socket.display())]
    Denied {
        /// The socket.
        socket: PathBuf,
    },
    /// Nobody is there.
    #[error("no sidecar is running at {}", socket.display())]
    NotRunning {
        /// The socket.
        socket: PathBuf,
    },
    /// No answer in time.
    #[error("the sidecar at {} did not answer in time", socket.display())]
    Slow {
        /// The socket.
        socket: PathBuf,
    },
}

/// Sends one request to the sidecar behind a socket and reads its answer whole.
///
/// # Errors
///
/// See [`ClientError`]. An answer of any status is no error.
pub async fn ask(
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<(StatusCode, Bytes), ClientError> {
    let socket = socket.to_owned();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "takeback")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.map_or_else(Body::empty, Body::full));
    let Ok(request) = request else {
        return Err(ClientError::Broken { socket });
    };
    let stream = match UnixStream::connect(&socket).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(ClientError::Denied { socket });
        }
        Err(_) => return Err(ClientError::NotRunning { socket }),
    };
    match timeout(ANSWER, exchange(stream, request)).await {
        Ok(Some((head, body))) => Ok((head.status, body)),
        Ok(None) => Err(ClientError::Broken { socket }),
        Err(_) => Err(ClientError::Slow { socket }),
    }
}

/// One request on a connection of its own, and its whole answer; `None` if there is none. Sends at
/// most once.
pub async fn exchange<S>(stream: S, request: Request<Body>) -> Option<(Parts, Bytes)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.ok()?;
    let answering = async {
        let answer = sender.send_request(request).await.ok()?;
        let (head, body) = answer.into_parts();
        let budget = Budget::new(MAX_ANSWER);
        let body = Body::incoming(body, http::Version::HTTP_11);
        let body = payload::collect(body, MAX_ANSWER, &budget, ANSWER).await.ok()?;
        Some((head, body.bytes().clone()))
    };
    // The connection is driven beside the answer and dropped with it. Losing it loses nothing that is
    // not in the answer already: it ends only after the answer, or because there will be none.
    let mut answering = std::pin::pin!(answering);
    tokio::select! {
        biased;
        answer = answering.as_mut() => answer,
        _ended = connection => answering.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_without_a_sidecar_is_told_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("none.sock");

        let error = ask(&socket, Method::GET, "/", None).await.unwrap_err();

        assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
        assert!(error.to_string().contains("none.sock"));
    }
}
