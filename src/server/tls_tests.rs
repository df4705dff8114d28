//! TLS on the data port, against rustls clients.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::reread::Contents;
use crate::tls::ServerFiles;
use crate::tls::testing::{Authority, Pair, written};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(20);
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n";

struct Server {
    address: SocketAddr,
    drain: Drain,
    connections: Connections,
    tls: Arc<ServerTls>,
    serving: JoinHandle<io::Result<Served>>,
}

impl Server {
    async fn stop(self) {
        self.drain.begin(Duration::ZERO);
        self.serving.await.unwrap().unwrap();
    }
}

fn contents(pair: &Pair, ca: Option<&str>) -> Contents {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str, text: &str| written(directory.path(), name, text);
    let files = ServerFiles {
        cert: at("cert", &pair.cert),
        key: at("key", &pair.key),
        client_ca: ca.map(|ca| at("ca", ca)),
    };
    let paths: Vec<PathBuf> = files.paths();
    Contents::read(&paths).unwrap()
}

/// Answers with the name in the client's certificate.
fn serving(head: Duration, contents: &Contents, san: Option<San>) -> Server {
    let limits = Limits { connections: 100, head, keep_alive: LONG, delivered_after: LONG };
    let one = NonZeroUsize::new(1).unwrap();
    let listener = bind("127.0.0.1:0".parse().unwrap(), one, &limits).unwrap().pop().unwrap();
    let tls = Arc::new(ServerTls::new(contents).unwrap());
    let listener = listener.with_security(Security { tls: Some(Arc::clone(&tls)), san });
    let (address, connections, drain) = (listener.address(), listener.connections(), Drain::new());
    let tasks = Tasks::new();
    let answer = async |arrival: Arrival| {
        assert!(arrival.peer.is_tls);
        let name = arrival.peer.name.as_deref().unwrap_or("nobody").to_owned();
        Response::new(Body::full(name))
    };
    let serve = listener.serve(answer, tasks.clone(), drain.clone());
    Server { address, drain, connections, tls, serving: tasks.spawn_background("server", serve) }
}

fn connector(ca: &str, protocols: &[&str], own: Option<&Pair>) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = vec![CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

async fn connected(server: &Server, connector: &TlsConnector) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server.address).await?;
    connector.connect(ServerName::try_from("proxy.test").unwrap(), stream).await
}

/// One request on a connection that ends with it; an empty text if it is refused.
async fn get(server: &Server, connector: &TlsConnector) -> String {
    let asked = async {
        let mut stream = connected(server, connector).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = asked.await.unwrap_or_default();
    answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn alpn_chooses_between_http_2_and_http_1() {
    let authority = Authority::new();
    let server = serving(LONG, &contents(&authority.pair(&["proxy.test"]), None), None);

    let lists: [&[&str]; 2] = [&["http/1.1"], &[]];
    for protocols in lists {
        assert_eq!(get(&server, &connector(&authority.pem, protocols, None)).await, "nobody");
    }
    let both = connector(&authority.pem, &["h2", "http/1.1"], None);
    let stream = connected(&server, &both).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    drop(Tasks::new().spawn_background("client", async move { drop(connection.await) }));
    let request = Request::builder().uri("https://proxy.test/").body(Body::empty()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    let none = connector(&authority.pem, &["h3"], None);
    assert!(connected(&server, &none).await.is_err(), "there is no protocol in common");
    server.stop().await;
}

#[tokio::test]
async fn mcp_49_the_name_is_that_of_a_verified_certificate_and_nobody_else_is_let_in() {
    let authority = Authority::new();
    let pair = authority.pair(&["proxy.test"]);
    let server = serving(LONG, &contents(&pair, Some(&authority.pem)), Some(San::Spiffe));

    let known = authority.pair(&["spiffe://mesh/agent"]);
    let unnamed = authority.pair(&["agent.test"]);
    let stranger = Authority::new().pair(&["spiffe://mesh/agent"]);
    let expired = authority.pair_with(&["spiffe://mesh/agent"], |params| {
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    let answer = |own| {
        let connector = connector(&authority.pem, &["http/1.1"], own);
        let server = &server;
        async move { get(server, &connector).await }
    };
    assert_eq!(answer(Some(&known)).await, "spiffe://mesh/agent");
    assert_eq!(answer(Some(&unnamed)).await, "nobody");
    for refused in [None, Some(&stranger), Some(&expired)] {
        assert_eq!(answer(refused).await, "");
    }
    server.stop().await;
}

#[tokio::test]
async fn plain_bytes_and_silence_end_a_connection_and_give_its_place_back() {
    let authority = Authority::new();
    let server = serving(SHORT, &contents(&authority.pair(&["proxy.test"]), None), None);
    for bytes in [GET, b"", &[22, 3, 1, 0, 5, 1]] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut rest = Vec::new();
        drop(stream.read_to_end(&mut rest).await);
        assert!(!rest.starts_with(b"HTTP"), "{}", rest.escape_ascii());
    }
    while server.connections.taken() > 1 {
        tokio::task::yield_now().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_hundred_certificates_are_swapped_under_load_without_a_failed_call() {
    let authority = Authority::new();
    let server = serving(LONG, &contents(&authority.pair(&["proxy.test"]), None), None);
    let connector = connector(&authority.pem, &["http/1.1"], None);
    let mut standing = connected(&server, &connector).await.unwrap();
    let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let load = async {
        while !stop.load(Ordering::Relaxed) {
            assert_eq!(get(&server, &connector).await, "nobody");
            calls.fetch_add(1, Ordering::Relaxed);
        }
    };
    let swaps = async {
        for _ in 0..100 {
            let pair = authority.pair(&["proxy.test"]);
            server.tls.replace(&contents(&pair, None)).unwrap();
            let shown = connected(&server, &connector).await.unwrap();
            let shown = shown.get_ref().1.peer_certificates().unwrap()[0].clone();
            assert_eq!(shown, CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap());
            standing.write_all(GET).await.unwrap();
            let mut answer = [0; 4096];
            let count = standing.read(&mut answer).await.unwrap();
            assert!(answer[..count].starts_with(b"HTTP/1.1 200"));
        }
        stop.store(true, Ordering::Relaxed);
    };
    tokio::join!(load, swaps);
    assert!(calls.load(Ordering::Relaxed) > 10);
    drop(standing);
    server.stop().await;
}
