//! TLS and HTTP/2 for tests: a client, and an upstream that is not scripted.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::certs::Pair;

fn chain(pair: &Pair) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap();
    (vec![chain], PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap())
}

fn trusting(ca: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    roots
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A client's side of TLS, for `proxy.test`.
pub struct Client {
    connector: TlsConnector,
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
    /// The certificate that was shown.
    pub shown: CertificateDer<'static>,
}

impl Client {
    pub fn new(ca: &str, own: Option<&Pair>, protocols: &[&str]) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusting(ca));
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let (chain, key) = chain(pair);
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Self { connector: TlsConnector::from(Arc::new(config)) }
    }

    /// One request on a connection of its own; `None` if that fails.
    #[expect(clippy::disallowed_methods, reason = "the client's own connection task")]
    pub async fn call(
        &self,
        address: SocketAddr,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<Got> {
        let name = ServerName::try_from("proxy.test").unwrap();
        let stream = TcpStream::connect(address).await.ok()?;
        let stream = self.connector.connect(name, stream).await.ok()?;
        let session = stream.get_ref().1;
        let shown = session.peer_certificates()?.first()?.clone();
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        let mut request = Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::from(body.to_owned()));
        let answer = if is_http2 {
            let request = request.uri(format!("https://proxy.test{path}")).body(body).unwrap();
            let io = TokioIo::new(stream);
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.ok()?;
            tokio::spawn(connection);
            sender.send_request(request).await.ok()?
        } else {
            let request = request.uri(path).header("host", "proxy.test").body(body).unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
            tokio::spawn(connection);
            sender.send_request(request).await.ok()?
        };
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await.ok()?.to_bytes();
        let body = String::from_utf8_lossy(&bytes).into_owned();
        Some(Got { status: parts.status.as_u16(), headers: parts.headers, body, shown })
    }
}

/// What an upstream received.
#[derive(Clone, Debug)]
pub struct Seen {
    pub version: http::Version,
    pub target: String,
    pub headers: HeaderMap,
    /// The client certificate.
    pub certificate: Option<CertificateDer<'static>>,
}

/// An upstream behind TLS that answers every request with 201 and `{"id":1}`.
pub struct Upstream {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Upstream {
    #[expect(clippy::disallowed_methods, reason = "tasks and bodies of the test's own server")]
    pub fn start(pair: &Pair, client_ca: Option<&str>, protocols: &[&str]) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(trusting(ca));
                let verifier =
                    rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let (chain, key) = chain(pair);
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let list = Arc::clone(&seen);
        std::thread::spawn(move || {
            runtime().block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    let (acceptor, list) = (acceptor.clone(), Arc::clone(&list));
                    tokio::spawn(async move {
                        let Ok(stream) = acceptor.accept(stream).await else { return };
                        let certificate =
                            stream.get_ref().1.peer_certificates().map(|list| list[0].clone());
                        let service = service_fn(move |request: Request<Incoming>| {
                            answer(request, Arc::clone(&list), certificate.clone())
                        });
                        let server = auto::Builder::new(TokioExecutor::new());
                        drop(server.serve_connection(TokioIo::new(stream), service).await);
                    });
                }
            });
        });
        Self { address, seen }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

#[expect(clippy::disallowed_methods, reason = "a body of the test's own server")]
async fn answer(
    request: Request<Incoming>,
    list: Arc<Mutex<Vec<Seen>>>,
    certificate: Option<CertificateDer<'static>>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    drop(body.collect().await?);
    let target = parts.uri.to_string();
    let (version, headers) = (parts.version, parts.headers);
    list.lock().unwrap().push(Seen { version, target, headers, certificate });
    let answer = Response::builder()
        .status(201)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from_static(br#"{"id":1}"#)));
    Ok(answer.unwrap())
}
