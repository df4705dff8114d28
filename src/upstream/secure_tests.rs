//! TLS and HTTP/2 to the upstream, against servers that do what a script says.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::Reason;
use h2::server::{Connection, SendResponse};
use http::Method;
use http_body_util::BodyExt as _;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::reread::Contents;
use crate::tls::testing::{Authority as TestAuthority, Pair, written};
use crate::tls::{ClientFiles, ClientTls};

const LONG: Duration = Duration::from_secs(3600);
const PATIENT: Clocks = Clocks { connect: LONG, head: LONG, idle: None, total: None };

async fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let waiting = async {
        while !is_there() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    assert!(waited.is_ok(), "waited in vain for: {what}");
}

/// A server's side: its certificate, what it offers, whom it lets in.
fn acceptor(pair: &Pair, protocols: &[&str], client_ca: Option<&str>) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
            let roots = Arc::new(roots);
            let verifier =
                rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let chain = vec![CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

#[derive(Clone)]
struct Server {
    address: std::net::SocketAddr,
    connections: Arc<AtomicUsize>,
    /// Requests that a script looked at.
    seen: Arc<AtomicUsize>,
}

impl Server {
    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }

    fn upstream(&self, protocol: Protocol) -> Upstream {
        let mut config = Config::new(self.address.to_string().parse().unwrap());
        config.idle = LONG;
        config.protocol = protocol;
        Upstream::new(config, Tasks::new())
    }
}

/// Accepts, and runs `serve` for each connection with its number, from 0.
async fn listening<F>(serve: impl Fn(TcpStream, usize, Server) -> F + Send + 'static) -> Server
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server {
        address: listener.local_addr().unwrap(),
        connections: Arc::default(),
        seen: Arc::default(),
    };
    let own = server.clone();
    drop(Tasks::new().spawn_background("server", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let number = own.connections.fetch_add(1, Ordering::SeqCst);
            drop(Tasks::new().spawn_background("script", serve(stream, number, own.clone())));
        }
    }));
    server
}

fn tls(ca: &str, pair: Option<&Pair>, name: &str) -> Protocol {
    let directory = tempfile::tempdir().unwrap();
    let at = |file: &str, text: &str| written(directory.path(), file, text);
    let files = ClientFiles {
        ca: Some(at("ca.pem", ca)),
        pair: pair.map(|pair| (at("cert.pem", &pair.cert), at("key.pem", &pair.key))),
    };
    let contents = Contents::read(&files.paths()).unwrap();
    let name = ClientTls::server_name(name).unwrap();
    Protocol::Tls(Arc::new(ClientTls::new(name, &files, &contents).unwrap()))
}

fn post() -> Request<Body> {
    Request::builder()
        .method(Method::POST)
        .uri("/path?query")
        .header("host", "gateway.test")
        .body(Body::full("hello"))
        .unwrap()
}

async fn text(sent: Sent) -> String {
    match sent {
        Sent::Answer(answer) => {
            let version = answer.version();
            let body = collect(answer.into_body()).await;
            format!("{version:?} {body}")
        }
        Sent::Lost(reason) => format!("lost: {reason:?}"),
        Sent::NotSent(reason) => format!("not sent: {reason:?}"),
    }
}

#[expect(clippy::disallowed_methods, reason = "an answer of the test's own server")]
async fn collect(body: Body) -> String {
    String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Answers requests over HTTP/1.1 until the client leaves.
async fn serve_http1(mut stream: TlsStream<TcpStream>, server: Server) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\nhello") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        server.seen.fetch_add(1, Ordering::SeqCst);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}

async fn answer(mut respond: SendResponse<Bytes>, text: String) {
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    drop(body.send_data(Bytes::from(text), true));
}

type Http2<T> = Connection<T, Bytes>;

/// Answers each request over HTTP/2 with what arrived.
async fn serve_http2<T>(mut connection: Http2<T>, server: Server)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    while let Some(Ok((request, respond))) = connection.accept().await {
        server.seen.fetch_add(1, Ordering::SeqCst);
        let has_host = request.headers().contains_key("host");
        answer(respond, format!("{} host:{has_host}", request.uri())).await;
    }
}

#[tokio::test]
async fn an_upstream_that_takes_http_2_gets_it_over_one_connection() {
    let authority = TestAuthority::new();
    let pair = authority.pair(&["gateway.test"]);
    let acceptor = acceptor(&pair, &["h2", "http/1.1"], None);
    let server = listening(move |stream, _, server| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await.unwrap();
            serve_http2(h2::server::handshake(stream).await.unwrap(), server).await;
        }
    })
    .await;
    let upstream = server.upstream(tls(&authority.pem, None, "gateway.test"));

    let calls: Vec<_> = (0..20).map(|_| upstream.send(post(), &PATIENT)).collect();
    for sent in futures(calls).await {
        assert_eq!(text(sent).await, "HTTP/2.0 https://gateway.test/path?query host:false");
    }

    assert_eq!(server.connections(), 1);
    wait_for("the streams to be given back", || upstream.usage().in_use == 0).await;
    assert_eq!(upstream.usage(), Usage { idle: 1, in_use: 0 });
}

/// Polls futures together.
async fn futures<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut pinned: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = pinned.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, slot) in pinned.iter_mut().zip(&mut done) {
            if slot.is_none()
                && let Poll::Ready(output) = future.as_mut().poll(cx)
            {
                *slot = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().map(Option::unwrap).collect()
}

#[tokio::test]
async fn an_upstream_without_http_2_gets_http_1_and_keeps_its_connection() {
    let authority = TestAuthority::new();
    let pair = authority.pair(&["gateway.test"]);
    let lists: [&[&str]; 2] = [&["http/1.1"], &[]];
    for protocols in lists {
        let acceptor = acceptor(&pair, protocols, None);
        let server = listening(move |stream, _, server| {
            let acceptor = acceptor.clone();
            async move { serve_http1(acceptor.accept(stream).await.unwrap(), server).await }
        })
        .await;
        let upstream = server.upstream(tls(&authority.pem, None, "gateway.test"));
        for _ in 0..3 {
            assert_eq!(text(upstream.send(post(), &PATIENT).await).await, "HTTP/1.1 ok");
        }
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_the_upstreams_is_not_sent_to() {
    let authority = TestAuthority::new();
    let pair = authority.pair(&["gateway.test"]);
    let old = authority.pair_with(&["gateway.test"], |params| {
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    let stranger = TestAuthority::new();
    for (pair, ca, name) in [
        (&pair, &stranger.pem, "gateway.test"),
        (&pair, &authority.pem, "other.test"),
        (&old, &authority.pem, "gateway.test"),
    ] {
        let acceptor = acceptor(pair, &["h2"], None);
        let server = listening(move |stream, _, server| {
            let acceptor = acceptor.clone();
            async move {
                if acceptor.accept(stream).await.is_ok() {
                    server.seen.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
        .await;
        let upstream = server.upstream(tls(ca, None, name));
        assert_eq!(text(upstream.send(post(), &PATIENT).await).await, "not sent: Tls");
        assert_eq!(upstream.usage().in_use, 0);
    }
}

#[tokio::test]
async fn h_24_a_refused_client_certificate_is_not_sent_and_a_right_one_is_let_in() {
    let authority = TestAuthority::new();
    let pair = authority.pair(&["gateway.test"]);
    let own = authority.pair(&["spiffe://mesh/sidecar"]);
    let foreign = TestAuthority::new().pair(&["spiffe://mesh/sidecar"]);
    let lists: [&[&str]; 2] = [&["h2"], &["http/1.1"]];
    for protocols in lists {
        let acceptor = acceptor(&pair, protocols, Some(&authority.pem));
        let is_http2 = protocols == ["h2"];
        let server = listening(move |stream, _, server| {
            let acceptor = acceptor.clone();
            async move {
                // Read on after a refusal, so that the alert is not lost to a reset.
                let accepted = acceptor.accept(stream).into_fallible().await;
                match accepted {
                    Ok(stream) if is_http2 => {
                        serve_http2(h2::server::handshake(stream).await.unwrap(), server).await;
                    }
                    Ok(stream) => serve_http1(stream, server).await,
                    Err((_, mut stream)) => {
                        let mut rest = Vec::new();
                        drop(stream.read_to_end(&mut rest).await);
                    }
                }
            }
        })
        .await;
        for refused in [None, Some(&foreign)] {
            let upstream = server.upstream(tls(&authority.pem, refused, "gateway.test"));
            let sent = text(upstream.send(post(), &PATIENT).await).await;
            assert_eq!(sent, "not sent: Tls", "{protocols:?}");
        }
        assert_eq!(server.seen(), 0);
        let upstream = server.upstream(tls(&authority.pem, Some(&own), "gateway.test"));
        assert!(text(upstream.send(post(), &PATIENT).await).await.starts_with("HTTP/"));
    }
}

#[tokio::test]
async fn h_24_a_refused_stream_is_sent_again_and_then_not_sent() {
    let refusing = |times: usize| {
        listening(move |stream, _, server| async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                if server.seen.fetch_add(1, Ordering::SeqCst) < times {
                    respond.send_reset(Reason::REFUSED_STREAM);
                } else {
                    answer(respond, request.uri().to_string()).await;
                }
            }
        })
    };

    let server = refusing(2).await;
    let upstream = server.upstream(Protocol::ClearHttp2);
    let sent = text(upstream.send(post(), &PATIENT).await).await;
    assert_eq!(sent, "HTTP/2.0 http://gateway.test/path?query");
    assert_eq!(server.seen(), 3);

    let server = refusing(100).await;
    let upstream = server.upstream(Protocol::ClearHttp2);
    assert_eq!(text(upstream.send(post(), &PATIENT).await).await, "not sent: Refused");
    assert_eq!(server.seen(), ATTEMPTS);
}

#[tokio::test]
async fn h_24_any_other_reset_is_a_lost_answer_and_never_sent_again() {
    for reason in [
        Reason::CANCEL,
        Reason::INTERNAL_ERROR,
        Reason::NO_ERROR,
        Reason::ENHANCE_YOUR_CALM,
        Reason::PROTOCOL_ERROR,
    ] {
        let server = listening(move |stream, _, server| async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                server.seen.fetch_add(1, Ordering::SeqCst);
                respond.send_reset(reason);
            }
        })
        .await;
        let upstream = server.upstream(Protocol::ClearHttp2);
        assert_eq!(text(upstream.send(post(), &PATIENT).await).await, "lost: Reset", "{reason}");
        assert_eq!(server.seen(), 1);
    }
}

/// Reads frames off a raw connection until a whole request has come on `stream`.
async fn request_on(socket: &mut TcpStream, stream: u32) {
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        socket.read_exact(&mut payload).await.unwrap();
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let (kind, flags) = (head[3], head[4]);
        if kind == 0 && flags & 1 == 1 && id == stream {
            return;
        }
    }
}

/// GOAWAY with this last stream and code.
fn go_away(last: u32, code: u32) -> Vec<u8> {
    let mut frame = vec![0, 0, 8, 7, 0, 0, 0, 0, 0];
    frame.extend_from_slice(&last.to_be_bytes());
    frame.extend_from_slice(&code.to_be_bytes());
    frame
}

/// Our half of a raw connection: the preface is read, settings are exchanged.
async fn raw_http2(socket: &mut TcpStream) {
    let mut preface = [0; 24];
    socket.read_exact(&mut preface).await.unwrap();
    socket.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
}

#[tokio::test]
async fn b10_h_24_go_away_below_a_stream_proves_that_it_was_not_looked_at() {
    for code in [0, 1, 2, 11] {
        let server = listening(move |mut socket, number, server| async move {
            if number > 0 {
                serve_http2(h2::server::handshake(socket).await.unwrap(), server).await;
                return;
            }
            raw_http2(&mut socket).await;
            request_on(&mut socket, 1).await;
            socket.write_all(&go_away(0, code)).await.unwrap();
            let mut rest = Vec::new();
            drop(socket.read_to_end(&mut rest).await);
        })
        .await;
        let upstream = server.upstream(Protocol::ClearHttp2);
        let sent = text(upstream.send(post(), &PATIENT).await).await;
        assert!(sent.starts_with("HTTP/2.0 "), "code {code}: {sent}");
        assert_eq!((server.connections(), server.seen()), (2, 1));
    }
}

#[tokio::test]
async fn b10_h_24_a_stream_that_go_away_includes_is_lost_with_its_connection() {
    for (last, code) in [(1, 0), (1, 2), (0x7fff_ffff, 0), (3, 11)] {
        let server = listening(move |mut socket, _, server| async move {
            raw_http2(&mut socket).await;
            request_on(&mut socket, 1).await;
            server.seen.fetch_add(1, Ordering::SeqCst);
            socket.write_all(&go_away(last, code)).await.unwrap();
            drop(socket.shutdown().await);
            let mut rest = Vec::new();
            drop(socket.read_to_end(&mut rest).await);
        })
        .await;
        let upstream = server.upstream(Protocol::ClearHttp2);
        let sent = text(upstream.send(post(), &PATIENT).await).await;
        assert_eq!(sent, "lost: Reset", "last {last}, code {code}");
        assert_eq!((server.connections(), server.seen()), (1, 1));
    }
}

#[tokio::test]
async fn a_call_under_way_ends_well_on_a_connection_that_goes_away_and_the_next_gets_a_new_one() {
    let (go, held) = tokio::sync::oneshot::channel::<()>();
    let held = std::sync::Mutex::new(Some(held));
    let server = listening(move |stream, _, server| {
        let held = held.lock().unwrap().take();
        async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let Some(held) = held else { return serve_http2(connection, server).await };
            let (_, respond) = connection.accept().await.unwrap().unwrap();
            server.seen.fetch_add(1, Ordering::SeqCst);
            connection.graceful_shutdown();
            drop(Tasks::new().spawn_background("answer", async move {
                drop(held.await);
                answer(respond, "late".to_owned()).await;
            }));
            while let Some(Ok(_)) = connection.accept().await {}
        }
    })
    .await;
    let upstream = server.upstream(Protocol::ClearHttp2);
    let mut first = std::pin::pin!(upstream.send(post(), &PATIENT));
    let second = async {
        wait_for("the first request", || server.seen() == 1).await;
        // GOAWAY may still be under way: a call on the old connection is refused and sent again.
        text(upstream.send(post(), &PATIENT).await).await
    };
    let second = tokio::select! {
        _ = first.as_mut() => panic!("the first answer is held"),
        second = second => second,
    };
    assert_eq!(second, "HTTP/2.0 http://gateway.test/path?query host:false");
    go.send(()).unwrap();
    assert_eq!(text(first.await).await, "HTTP/2.0 late");
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn more_calls_than_the_upstream_allows_streams_get_another_connection() {
    let server = listening(move |stream, _, server| async move {
        let mut builder = h2::server::Builder::new();
        let mut connection =
            builder.max_concurrent_streams(2).handshake::<_, Bytes>(stream).await.unwrap();
        let mut waiting = Vec::new();
        while let Some(Ok((_, respond))) = connection.accept().await {
            server.seen.fetch_add(1, Ordering::SeqCst);
            waiting.push(respond);
            if waiting.len() == 2 {
                for respond in waiting.drain(..) {
                    answer(respond, "ok".to_owned()).await;
                }
            }
        }
    })
    .await;
    let upstream = server.upstream(Protocol::ClearHttp2);
    let pair = futures(vec![upstream.send(post(), &PATIENT), upstream.send(post(), &PATIENT)]);
    assert_eq!(pair.await.len(), 2);

    let calls: Vec<_> = (0..8).map(|_| upstream.send(post(), &PATIENT)).collect();
    for sent in futures(calls).await {
        assert_eq!(text(sent).await, "HTTP/2.0 ok");
    }

    assert!(server.connections() <= 5, "{} connections", server.connections());
}

#[tokio::test]
async fn a_new_client_certificate_is_shown_by_the_next_call() {
    let authority = TestAuthority::new();
    let pair = authority.pair(&["gateway.test"]);
    let acceptor = acceptor(&pair, &["h2"], Some(&authority.pem));
    let (shown, names) = std::sync::mpsc::channel();
    let server = listening(move |stream, _, server| {
        let (acceptor, shown) = (acceptor.clone(), shown.clone());
        async move {
            let stream = acceptor.accept(stream).await.unwrap();
            let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
            shown.send(crate::tls::subject(&certificate, crate::tls::San::Spiffe)).unwrap();
            serve_http2(h2::server::handshake(stream).await.unwrap(), server).await;
        }
    })
    .await;
    let first = authority.pair(&["spiffe://mesh/one"]);
    let protocol = tls(&authority.pem, Some(&first), "gateway.test");
    let upstream = server.upstream(protocol.clone());
    for _ in 0..2 {
        assert!(text(upstream.send(post(), &PATIENT).await).await.starts_with("HTTP/2.0"));
    }

    let second = authority.pair(&["spiffe://mesh/two"]);
    let directory = tempfile::tempdir().unwrap();
    let at = |file: &str, text: &str| written(directory.path(), file, text);
    let paths = [at("ca", &authority.pem), at("cert", &second.cert), at("key", &second.key)];
    let Protocol::Tls(tls) = &protocol else { unreachable!() };
    tls.replace(&Contents::read(&paths).unwrap()).unwrap();
    assert!(text(upstream.send(post(), &PATIENT).await).await.starts_with("HTTP/2.0"));

    let names: Vec<_> = names.try_iter().flatten().collect();
    assert_eq!(names, ["spiffe://mesh/one", "spiffe://mesh/two"]);
}

/// SETTINGS that allow so many streams.
fn settings(streams: u32) -> Vec<u8> {
    let mut frame = vec![0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3];
    frame.extend_from_slice(&streams.to_be_bytes());
    frame
}

async fn raw_http2_with(socket: &mut TcpStream, streams: u32) {
    let mut preface = [0; 24];
    socket.read_exact(&mut preface).await.unwrap();
    socket.write_all(&settings(streams)).await.unwrap();
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "an answer of the test's own server")]
async fn a8_an_answer_that_is_left_without_its_end_is_no_whole_one() {
    // RST_STREAM with NO_ERROR; GOAWAY of a number below; the end of the connection after a GOAWAY.
    let reset = [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 0].to_vec();
    for (last_words, is_closed) in [(reset, false), (go_away(0, 0), true), (go_away(1, 0), true)] {
        let server = listening(move |mut socket, _, server| {
            let last_words = last_words.clone();
            async move {
                raw_http2(&mut socket).await;
                request_on(&mut socket, 1).await;
                server.seen.fetch_add(1, Ordering::SeqCst);
                // :status 200, and three bytes of a longer body.
                socket.write_all(&[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88]).await.unwrap();
                socket.write_all(&[0, 0, 3, 0, 0, 0, 0, 0, 1, b'{', b'"', b'a']).await.unwrap();
                socket.write_all(&last_words).await.unwrap();
                if is_closed {
                    drop(socket.shutdown().await);
                }
                let mut rest = Vec::new();
                drop(socket.read_to_end(&mut rest).await);
            }
        })
        .await;
        let upstream = server.upstream(Protocol::ClearHttp2);
        match upstream.send(post(), &PATIENT).await {
            Sent::Answer(answer) => {
                use http_body_util::BodyExt as _;
                assert!(answer.into_body().collect().await.is_err(), "closed: {is_closed}");
            }
            // The end may overtake the head.
            Sent::Lost(reason) => assert_eq!(reason, LostReason::Reset),
            Sent::NotSent(reason) => assert_eq!(reason, NotSentReason::Refused),
        }
        assert!(server.seen() >= 1);
    }
}

#[tokio::test]
async fn a_request_waits_for_a_stream_before_it_is_given_away_and_not_after() {
    let server = listening(move |mut socket, _, server| async move {
        raw_http2_with(&mut socket, 0).await;
        request_on(&mut socket, 1).await;
        server.seen.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    let upstream = server.upstream(Protocol::ClearHttp2);
    let brief = Clocks { connect: Duration::from_millis(100), ..PATIENT };
    assert_eq!(text(upstream.send(post(), &brief).await).await, "not sent: ConnectTimeout");
    assert_eq!(server.seen(), 0);

    // One stream each: the second call has a connection of its own from the start.
    let server = listening(move |mut socket, _, server| async move {
        raw_http2_with(&mut socket, 1).await;
        request_on(&mut socket, 1).await;
        server.seen.fetch_add(1, Ordering::SeqCst);
        wait_for("both requests", || server.seen() == 2).await;
        socket.write_all(&[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88]).await.unwrap();
        let mut rest = Vec::new();
        drop(socket.read_to_end(&mut rest).await);
    })
    .await;
    let upstream = server.upstream(Protocol::ClearHttp2);
    let both = [upstream.send(post(), &PATIENT), upstream.send(post(), &PATIENT)];
    let [first, second] = both;
    let (first, second) = tokio::join!(first, second);
    assert_eq!(text(first).await, "HTTP/2.0 ");
    assert_eq!(text(second).await, "HTTP/2.0 ");
    assert_eq!(server.connections(), 2);
}
