//! Serving a small router on a bounded number of connections.
//!
//! Telemetry is reachable from the network and admin answers can be slow, so both bound what a client
//! can hold: connections at a time, the time for a head, the time of a whole connection. More clients
//! wait in the kernel's queue. Everything runs on the runtime of the caller and ends with it.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use super::Failure;
use super::auth::{Gate, Who, check_origin};
use crate::tasks::Tasks;
use crate::tls::ServerTls;

/// The rest after an accept that failed for want of descriptors or memory.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What clients of one listener may hold.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at a time.
    pub connections: usize,
    /// From the first byte of a head to its last; for a handshake too.
    pub head: Duration,
    /// A connection as a whole, however many requests come on it.
    pub whole: Duration,
}

impl Bounds {
    /// Probes and scrapes send their heads at once and take milliseconds. Clients that connect and say
    /// nothing are gone before a probe that waits behind them has failed often enough to matter.
    pub const TELEMETRY: Self =
        Self { connections: 256, head: Duration::from_secs(2), whole: Duration::from_secs(30) };

    /// A run of lookups is slow; whoever may open the socket owns the ledger.
    pub const ADMIN: Self =
        Self { connections: 16, head: Duration::from_secs(5), whole: Duration::from_secs(900) };

    /// The admin API on a network address: somebody without a token holds a place for its head only.
    pub const ADMIN_NETWORK: Self =
        Self { connections: 64, head: Duration::from_secs(2), whole: Duration::from_secs(900) };
}

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    /// On the network, for the admin API: a gate stands before it, and a certificate where there is one.
    Admin(TcpListener, Arc<Gate>, Option<Arc<ServerTls>>),
    /// On the network, for telemetry.
    Telemetry(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

/// What stands before the routes of one connection.
#[derive(Clone, Debug)]
enum Door {
    /// Nothing: telemetry.
    Open,
    /// The kernel said who it is.
    Socket(Who),
    /// A token is asked for.
    Tokens(Arc<Gate>),
}

impl Door {
    fn admit(&self, req: &http::Request<Incoming>) -> Result<Who, Failure> {
        match self {
            Self::Open => Ok(Who::Unknown),
            Self::Socket(who) => check_origin(req.headers(), None).map(|()| who.clone()),
            Self::Tokens(gate) => gate.admit(req.method(), req.headers()),
        }
    }
}

/// Serves until it is dropped.
pub async fn serve(listener: Listener, router: Router, bounds: Bounds, tasks: Tasks) {
    let places = Arc::new(Semaphore::new(bounds.connections));
    loop {
        // Never closed, so it cannot fail; if it did, nothing more would be served.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let router = router.clone();
        let accepted = match &listener {
            Listener::Admin(tcp, gate, tls) => {
                let door = Door::Tokens(Arc::clone(gate));
                let tls = tls.as_ref().map(|tls| tls.acceptor());
                tcp.accept().await.map(|(stream, _)| {
                    tasks.spawn_background("admin", async move {
                        let _place = place;
                        let Some(tls) = tls else {
                            return connection(stream, router, door, bounds).await;
                        };
                        match tokio::time::timeout(bounds.head, tls.accept(stream)).await {
                            Ok(Ok(stream)) => connection(stream, router, door, bounds).await,
                            Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                            Err(_) => tracing::debug!("a handshake took too long and was cut"),
                        }
                    })
                })
            }
            Listener::Telemetry(tcp) => tcp.accept().await.map(|(stream, _)| {
                tasks.spawn_background("telemetry", async move {
                    let _place = place;
                    connection(stream, router, Door::Open, bounds).await;
                })
            }),
            Listener::Unix(unix) => unix.accept().await.map(|(stream, _)| {
                let uid = stream.peer_cred().map(|cred| Who::Uid(cred.uid()));
                let door = Door::Socket(uid.unwrap_or(Who::Unknown));
                tasks.spawn_background("admin", async move {
                    let _place = place;
                    connection(stream, router, door, bounds).await;
                })
            }),
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "accepting a telemetry or admin connection failed");
            tokio::time::sleep(ACCEPT_REST).await;
        }
    }
}

async fn connection<I>(stream: I, router: Router, door: Door, bounds: Bounds)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |req: http::Request<Incoming>| {
        let admitted = door.admit(&req);
        let mut req = req.map(axum::body::Body::new);
        let router = router.clone();
        async move {
            match admitted {
                Ok(who) => req.extensions_mut().insert(who),
                Err(failure) => return Ok::<_, Infallible>(failure.into_response()),
            };
            match router.oneshot(req).await {
                Ok(response) => Ok(response),
                Err(never) => match never {},
            }
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(bounds.head);
    let serving = http.serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(bounds.whole, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a telemetry or admin connection ended badly"),
        Err(_) => tracing::debug!("a telemetry or admin connection took too long and was cut"),
    }
}

/// Binds a Unix socket that only its owner may open (mode 0600). One that a dead process left there is
/// replaced; one that answers is not.
///
/// # Errors
///
/// `AddrInUse` if another process serves it; else what the system says.
pub fn bind_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::from(io::ErrorKind::AddrInUse));
    }
    if let Ok(there) = std::fs::symlink_metadata(path)
        && !std::os::unix::fs::FileTypeExt::is_socket(&there.file_type())
    {
        return Err(io::Error::from(io::ErrorKind::AlreadyExists));
    }
    // Made under another name and moved, so that nobody connects before its mode is set.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = Path::new(&fresh);
    match std::fs::remove_file(fresh) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = std::os::unix::net::UnixListener::bind(fresh)?;
    std::fs::set_permissions(fresh, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(fresh, path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_nobody_serves_is_replaced_and_one_that_answers_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");

        let first = bind_unix(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(bind_unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);

        drop(first);
        bind_unix(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "mine").unwrap();

        assert_eq!(bind_unix(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
