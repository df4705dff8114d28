//! The agent side of the wire: listeners, connections, and what is known about their ends.
//!
//! Nothing here knows about effects. Each worker has a listener of its own on the same address
//! (`SO_REUSEPORT`) and serves what it accepts on its own runtime, HTTP/1.1 or HTTP/2, plain (with
//! prior knowledge) or through TLS ([`Security`]; by ALPN). A connection is one task (`connection.rs`); its socket is watched (`delivery.rs`), so
//! that the layers above learn whether an answer was delivered.
//!
//! Limits: [`Limits`] per process, heads of 64 KiB and 100 fields (hyper answers 431 above them),
//! 128 streams per HTTP/2 connection. Upgrades are not served: hyper hands the head over and the
//! layer above refuses it.
//!
//! What can go wrong: an accept fails (logged, and tried again after a rest if it is for want of
//! descriptors: P38); a client sends its head slowly or not at all (closed by the head clock or the
//! keep-alive clock: P29); a client leaves while its call is served (hyper drops the service's
//! future at the next poll: P11); a connection outlasts a drain (cut at the drain's end and
//! counted: P35).

mod connection;
mod delivery;
mod drain;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::call::payload::Body;
use crate::tasks::Tasks;
use crate::tls::{San, ServerTls, subject};

use connection::Ended;
pub use delivery::{Delivery, DeliveryHandle};
pub use drain::Drain;

/// Connections that wait in the kernel while all places are taken.
const BACKLOG: i32 = 1024;

/// The rest after an accept that failed for want of descriptors or memory.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What one connection may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at the same time, over all workers; more wait in the kernel's queue.
    pub connections: usize,
    /// From the first byte of a request's head to its last; an HTTP/1 connection is closed between
    /// once and twice this. It also bounds the wait for a connection's very first bytes.
    pub head: Duration,
    /// How long a connection is kept without a request. Above `delivered_after`, or answers to
    /// clients that say nothing more are never counted as delivered.
    pub keep_alive: Duration,
    /// How long a connection must stay open after an answer for it to count as delivered.
    pub delivered_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            head: Duration::from_secs(10),
            keep_alive: Duration::from_secs(75),
            delivered_after: Duration::from_secs(60),
        }
    }
}

/// A request as it came off a connection.
#[derive(Debug)]
pub struct Arrival {
    /// The request; its body has not been read.
    pub request: Request<Incoming>,
    /// Who sent it.
    pub peer: Arc<Peer>,
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its IP address as a header's value.
    pub forwarded: HeaderValue,
    /// Tells whether answers on this connection were delivered.
    pub delivery: DeliveryHandle,
    /// It speaks TLS.
    pub is_tls: bool,
    /// The name in its verified certificate, if [`Security::san`] asks for one.
    pub name: Option<Arc<str>>,
}

/// What connections must speak and show.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// Every connection speaks TLS, with this certificate.
    pub tls: Option<Arc<ServerTls>>,
    /// Which name of a client's certificate is looked at.
    pub san: Option<San>,
}

impl Security {
    /// The name in the certificate of whoever connected.
    fn name(&self, stream: &stream::Stream) -> Option<Arc<str>> {
        subject(stream.certificate()?, self.san?).map(Arc::from)
    }
}

/// A bound socket that one worker will accept from.
#[derive(Debug)]
pub struct Listener {
    socket: std::net::TcpListener,
    address: SocketAddr,
    limits: Limits,
    places: Arc<Places>,
    security: Security,
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{address} cannot be listened on")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// Binds one listener per worker to the same address, before anything is served. With port 0 the
/// first one chooses the port.
pub fn bind(
    address: SocketAddr,
    workers: NonZeroUsize,
    limits: &Limits,
) -> Result<Vec<Listener>, BindError> {
    let bound = || -> io::Result<Vec<Listener>> {
        if address.port() != 0 {
            // `SO_REUSEPORT` would share the port with another process of this user in silence.
            drop(open(address, Sharing::Alone)?);
        }
        let places = Arc::new(Places::new(limits.connections));
        let mut listeners: Vec<Listener> = Vec::with_capacity(workers.get());
        let sharing = if workers.get() > 1 { Sharing::Workers } else { Sharing::Alone };
        for _ in 0..workers.get() {
            let address = listeners.first().map_or(address, |first| first.address);
            let socket = open(address, sharing)?;
            socket.listen(BACKLOG)?;
            let socket = std::net::TcpListener::from(socket);
            let address = socket.local_addr()?;
            let (limits, places) = (limits.clone(), Arc::clone(&places));
            let security = Security::default();
            listeners.push(Listener { socket, address, limits, places, security });
        }
        Ok(listeners)
    };
    bound().map_err(|source| BindError { address, source })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Alone,
    Workers,
}

fn open(address: SocketAddr, sharing: Sharing) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(sharing == Sharing::Workers)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// How a listener's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Connections that were still open at the drain's end and were cut.
    pub cut: usize,
}

impl Listener {
    /// The address that it is bound to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says what connections must speak; without it they are plain.
    pub fn with_security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// Counts the connections of all listeners that were bound with this one.
    pub fn connections(&self) -> Connections {
        Connections(Arc::clone(&self.places))
    }

    /// Accepts and serves until `drain` begins; then waits for the connections until its end and
    /// cuts the rest.
    ///
    /// `service` is called once per request, on the connection's task for HTTP/1 (which drops its
    /// future when the client leaves) and on a task per stream for HTTP/2 (which drops it when the
    /// stream is reset). Fails only if the socket cannot be given to the runtime.
    pub async fn serve<S, F>(self, service: S, tasks: Tasks, drain: Drain) -> io::Result<Served>
    where
        S: Fn(Arrival) -> F + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = TcpListener::from_std(self.socket)?;
        let open = Arc::new(Open::default());
        let service = Arc::new(service);
        let limits = Arc::new(self.limits);
        let security = Arc::new(self.security);
        while let Some((stream, address, permit)) = next(&listener, &self.places, &drain).await {
            let here = Here { _open: open.enter(), _permit: permit };
            // Boxed: the block below would keep it twice.
            let connection = Box::pin(connection::serve(
                stream,
                address,
                Arc::clone(&limits),
                Arc::clone(&security),
                Arc::clone(&service),
                tasks.clone(),
                drain.clone(),
            ));
            let counted = Arc::clone(&open);
            drop(tasks.spawn_background("connection", async move {
                let _here = here;
                if connection.await == Ended::Cut {
                    counted.cut.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        // Closed before the wait: nobody is to queue for a listener that will not accept.
        drop(listener);
        if !drain.until_end(open.wait_empty()).await {
            drain.cut();
            open.wait_empty().await;
        }
        Ok(Served { cut: open.cut.load(Ordering::Relaxed) })
    }
}

/// The next connection, or `None` when the drain has begun. Losing either `select!` loses nothing:
/// a permit that is waited for is given back, and tokio's accept is cancel safe.
async fn next(
    listener: &TcpListener,
    places: &Places,
    drain: &Drain,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = tokio::select! {
        biased;
        () = drain.begun() => return None,
        permit = Arc::clone(&places.free).acquire_owned() => permit.ok()?,
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = drain.begun() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => return Some((stream, address, permit)),
            Err(error) if concerns_one_connection(&error) => {
                tracing::debug!(%error, "a connection ended before it was accepted");
            }
            Err(error) => {
                tracing::warn!(%error, "accepting connections failed");
                // Lost: a part of a rest.
                tokio::select! {
                    () = drain.begun() => return None,
                    () = tokio::time::sleep(ACCEPT_REST) => {}
                }
            }
        }
    }
}

/// The error is about the connection that would have been accepted; the next one may be fine.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// The connections of the process.
#[derive(Debug)]
struct Places {
    free: Arc<Semaphore>,
    all: usize,
}

impl Places {
    fn new(connections: usize) -> Self {
        let all = connections.clamp(1, Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(all)), all }
    }
}

/// How many connections are open, over all listeners of one [`bind`].
#[derive(Clone, Debug)]
pub struct Connections(Arc<Places>);

impl Connections {
    /// Open connections; one more per listener that waits in `accept`.
    pub fn taken(&self) -> usize {
        self.0.all.saturating_sub(self.0.free.available_permits())
    }
}

/// The connections of one listener.
#[derive(Default)]
struct Open {
    count: AtomicUsize,
    cut: AtomicUsize,
    empty: Notify,
}

impl Open {
    fn enter(self: &Arc<Self>) -> Entered {
        self.count.fetch_add(1, Ordering::AcqRel);
        Entered(Arc::clone(self))
    }

    async fn wait_empty(&self) {
        loop {
            let mut empty = std::pin::pin!(self.empty.notified());
            empty.as_mut().enable();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            empty.await;
        }
    }
}

struct Entered(Arc<Open>);

impl Drop for Entered {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.empty.notify_waiters();
        }
    }
}

/// What a connection's task holds while it lives.
struct Here {
    _open: Entered,
    _permit: OwnedSemaphorePermit,
}
