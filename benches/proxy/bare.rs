//! What the proxy is measured against, beside nginx: hyper and nothing else, and an upstream for all.
//!
//! ```text
//! bare upstream 127.0.0.1:9000 [cert.pem key.pem]
//! bare proxy 127.0.0.1:9001 127.0.0.1:9000
//! bare parsing 127.0.0.1:9001 127.0.0.1:9000
//! bare authz 127.0.0.1:9002
//! ```
//!
//! The proxy is one current-thread runtime per core with `SO_REUSEPORT` and a list of idle upstream
//! connections for each. It forwards the request with its headers as they are, and the answer as it
//! comes. The parsing one reads a request's body whole and parses its JSON once before it forwards it.
//!
//! `authz` is what Envoy's ext_authz filter asks: it allows every call, over gRPC or HTTP/1.1, and does
//! nothing else, so that Envoy with it costs the least that any policy hop can.

#![expect(clippy::disallowed_methods, reason = "its tasks are nobody's to await")]
#![expect(clippy::expect_used, reason = "a bench may stop")]

use std::cell::RefCell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let role = arguments.next();
    let mut next = move || arguments.next();
    let address = |text: Option<String>| -> SocketAddr {
        text.and_then(|text| text.parse().ok()).expect("an address")
    };
    match role.as_deref() {
        Some("upstream") => {
            let listen = address(next());
            let tls = next().map(|cert| acceptor(&cert, &next().expect("a key")));
            on_every_core(move || serve_upstream(listen, tls.clone()));
        }
        Some("authz") => {
            let listen = address(next());
            on_every_core(move || serve_authz(listen));
        }
        Some(role @ ("parsing" | "proxy")) => {
            let (listen, upstream) = (address(next()), address(next()));
            let is_parsing = role == "parsing";
            on_every_core(move || serve_proxy(listen, upstream, is_parsing));
        }
        _ => std::process::exit(64),
    }
}

fn on_every_core<F: Future<Output = ()> + 'static>(serve: impl Fn() -> F + Send + Sync + 'static) {
    let serve = Arc::new(serve);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let run = |_| {
        let serve = Arc::clone(&serve);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            LocalSet::new().block_on(&runtime.expect("a runtime"), serve());
        })
    };
    for thread in (0..cores).map(run).collect::<Vec<_>>() {
        thread.join().expect("a thread that does not panic");
    }
}

fn listen(address: SocketAddr) -> TcpListener {
    let bound = || -> std::io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        TcpListener::from_std(socket.into())
    };
    bound().expect("an address that is free")
}

/// Of TLS with this certificate.
fn acceptor(cert: &str, key: &str) -> TlsAcceptor {
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let key = PrivateKeyDer::from_pem_file(key).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(chain.expect("a certificate"), key));
    TlsAcceptor::from(Arc::new(config.expect("a certificate and its key")))
}

async fn serve_upstream(address: SocketAddr, tls: Option<TlsAcceptor>) {
    let listener = listen(address);
    let read = Bytes::from(format!(r#"{{"id":1,"title":"{}"}}"#, "x".repeat(480)));
    while let Ok((stream, _)) = listener.accept().await {
        let read = read.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let read = read.clone();
            async move {
                let is_read = request.method() == Method::GET;
                let is_stream = request
                    .headers()
                    .get(header::ACCEPT)
                    .is_some_and(|accept| is_read && accept.as_bytes() == b"text/event-stream");
                let asked = request
                    .into_body()
                    .collect()
                    .await
                    .map_or(Bytes::new(), |body| body.to_bytes());
                // A tool call is answered under its id, which the driver keeps at 1.
                let body = if asked.starts_with(br#"{"jsonrpc""#) {
                    let text = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#;
                    Bytes::from_static(text.as_bytes())
                } else if is_read {
                    read
                } else {
                    Bytes::from_static(br#"{"id":1}"#)
                };
                let said = if is_stream { Said::stream() } else { Said::Once(Some(body)) };
                let mut response = Response::new(said);
                let kind = if is_stream { "text/event-stream" } else { "application/json" };
                let kind = HeaderValue::from_static(kind);
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
                Ok::<_, Infallible>(response)
            }
        });
        let _unset = stream.set_nodelay(true);
        if let Some(tls) = tls.clone() {
            spawn_local(async move {
                if let Ok(stream) = tls.accept(stream).await {
                    drop(Builder::new().serve_connection(TokioIo::new(stream), answer).await);
                }
            });
            continue;
        }
        spawn_local(Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// What the upstream says: a body of known length, or one event of a stream that then rests.
enum Said {
    Once(Option<Bytes>),
    Event(Option<Bytes>),
}

impl Said {
    fn stream() -> Self {
        Self::Event(Some(Bytes::from_static(b": here\n\n")))
    }
}

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Once(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Event(bytes) => match bytes.take() {
                Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                // Nobody is to be woken: the connection's end drops it.
                None => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Once(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Once(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            Self::Event(_) => SizeHint::default(),
        }
    }
}

/// `envoy.service.auth.v3.CheckResponse { status: {} }`, which allows, as the one message of a gRPC
/// answer: not compressed, two bytes.
const ALLOWED: &[u8] = &[0, 0, 0, 0, 2, 0x0a, 0];

async fn serve_authz(address: SocketAddr) {
    let listener = listen(address);
    while let Ok((stream, _)) = listener.accept().await {
        let allow = service_fn(async |request: Request<Incoming>| {
            let is_grpc = request.version() == Version::HTTP_2;
            let _whole = request.into_body().collect().await;
            let (message, trailers) =
                if is_grpc { (ALLOWED, Some(ended())) } else { (&b""[..], None) };
            let body = Full::new(Bytes::from_static(message));
            let body = body.with_trailers(std::future::ready(trailers.map(Ok)));
            let mut response = Response::new(body);
            if is_grpc {
                let kind = HeaderValue::from_static("application/grpc");
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
            }
            Ok::<_, Infallible>(response)
        });
        let _unset = stream.set_nodelay(true);
        spawn_local(async move {
            let builder = auto::Builder::new(Here);
            builder.serve_connection(TokioIo::new(stream), allow).await
        });
    }
}

/// gRPC's way to say that it went well.
fn ended() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers
}

/// Runs what hyper spawns on this thread.
#[derive(Clone, Copy)]
struct Here;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Here {
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}

type Idle<B> = Rc<RefCell<Vec<SendRequest<B>>>>;

async fn serve_proxy(address: SocketAddr, upstream: SocketAddr, is_parsing: bool) {
    let listener = listen(address);
    let (idle, parsed) = (Idle::default(), Idle::default());
    while let Ok((stream, _)) = listener.accept().await {
        if is_parsing {
            let idle = Rc::clone(&parsed);
            let forward = service_fn(move |request: Request<Incoming>| {
                let idle = Rc::clone(&idle);
                async move {
                    let (head, body) = request.into_parts();
                    let bytes = body.collect().await?.to_bytes();
                    let value: serde_json::Value = serde_json::from_slice(&bytes)?;
                    std::hint::black_box(&value);
                    let request = Request::from_parts(head, Full::new(bytes));
                    forward(request, upstream, idle).await
                }
            });
            let _unset = stream.set_nodelay(true);
            spawn_local(Builder::new().serve_connection(TokioIo::new(stream), forward));
            continue;
        }
        let idle = Rc::clone(&idle);
        let forward = service_fn(move |request| forward(request, upstream, Rc::clone(&idle)));
        let _unset = stream.set_nodelay(true);
        spawn_local(Builder::new().serve_connection(TokioIo::new(stream), forward));
    }
}

async fn forward<B>(
    mut request: Request<B>,
    upstream: SocketAddr,
    idle: Idle<B>,
) -> Result<Response<Answer<B>>, Box<dyn std::error::Error + Send + Sync>>
where
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let taken = idle.borrow_mut().pop();
    let mut sender = match taken {
        Some(sender) => sender,
        None => connect(upstream).await?,
    };
    sender.ready().await?;
    if let Some(target) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(target);
    }
    let (head, incoming) = sender.send_request(request).await?.into_parts();
    let mut answer = Answer { incoming, connection: Some((sender, idle)) };
    if answer.incoming.is_end_stream() {
        answer.give_back();
    }
    Ok(Response::from_parts(head, answer))
}

async fn connect<B>(upstream: SocketAddr) -> Result<SendRequest<B>, hyper::Error>
where
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let stream = TcpStream::connect(upstream).await.expect("an upstream that listens");
    let _unset = stream.set_nodelay(true);
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    spawn_local(connection);
    Ok(sender)
}

/// An answer's body; at its end the connection is idle again.
struct Answer<B> {
    incoming: Incoming,
    connection: Option<(SendRequest<B>, Idle<B>)>,
}

impl<B> Answer<B> {
    fn give_back(&mut self) {
        if let Some((sender, idle)) = self.connection.take() {
            idle.borrow_mut().push(sender);
        }
    }
}

impl<B> Body for Answer<B> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if frame.is_none() || self.incoming.is_end_stream() {
            self.give_back();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
