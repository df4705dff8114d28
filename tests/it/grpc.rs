//! gRPC by path, over HTTP/2 in front and behind.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};

use crate::support::process::{Home, Process};
use crate::support::secure::runtime;

const POLICY: &str = r#"
version: 1
operations:
  things.create:
    match: { http: "POST /test.Things/Create" }
    effect: { class: irreversible, kind: create, idempotency: { type: header, name: x-request-id, retention: 24h } }
    confirm: caller
  things.watch:
    match: { http: "POST /test.Things/Watch" }
    effect: { class: read }
"#;

/// A message in gRPC's framing.
fn message(text: &str) -> Bytes {
    let mut bytes = vec![0, 0, 0, 0, u8::try_from(text.len()).unwrap()];
    bytes.extend_from_slice(text.as_bytes());
    bytes.into()
}

/// What a server answers: messages, and the fields after them; without messages they are in the head.
#[derive(Clone)]
struct Script {
    messages: Vec<&'static str>,
    status: Option<&'static str>,
}

/// A request's headers, its body, and the fields after it.
type Arrived = (HeaderMap, Bytes, Option<HeaderMap>);

struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Arrived>>>,
}

impl Server {
    #[expect(clippy::disallowed_methods, reason = "tasks of the test's own server")]
    fn start(script: impl Fn(usize) -> Script + Send + Sync + 'static) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<_>>> = Arc::default();
        let list = Arc::clone(&seen);
        let script = Arc::new(script);
        std::thread::spawn(move || {
            runtime().block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    let (list, script) = (Arc::clone(&list), Arc::clone(&script));
                    tokio::spawn(async move {
                        let service = service_fn(move |request: Request<Incoming>| {
                            let (list, script) = (Arc::clone(&list), Arc::clone(&script));
                            async move {
                                let (parts, body) = request.into_parts();
                                let body = body.collect().await.unwrap();
                                let trailers = body.trailers().cloned();
                                let number = {
                                    let mut list = list.lock().unwrap();
                                    list.push((parts.headers, body.to_bytes(), trailers));
                                    list.len() - 1
                                };
                                Ok::<_, Infallible>(answer(&script(number)))
                            }
                        });
                        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        drop(server.serve_connection(TokioIo::new(stream), service).await);
                    });
                }
            });
        });
        Self { address, seen }
    }

    fn seen(&self) -> Vec<Arrived> {
        self.seen.lock().unwrap().clone()
    }

    fn home(&self) -> Home {
        let mut home = Home::new(POLICY, self.address);
        home.upstream = format!("h2c://{}", self.address);
        home
    }
}

fn answer(script: &Script) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::builder().header("content-type", "application/grpc");
    let mut end = HeaderMap::new();
    if let Some(status) = script.status {
        end.insert("grpc-status", HeaderValue::from_static(status));
        end.insert("x-anvil-effect", HeaderValue::from_static("{}"));
    }
    if script.messages.is_empty() {
        for (name, value) in &end {
            response = response.header(name, value);
        }
        return response.body(Full::default().boxed()).unwrap();
    }
    let mut frames: Vec<Result<Frame<Bytes>, Infallible>> =
        script.messages.iter().map(|text| Ok(Frame::data(message(text)))).collect();
    if !end.is_empty() {
        frames.push(Ok(Frame::trailers(end)));
    }
    response.body(Frames(frames.into()).boxed()).unwrap()
}

/// Frames that are there.
struct Frames(std::collections::VecDeque<Result<Frame<Bytes>, Infallible>>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

struct Got {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

#[expect(clippy::disallowed_methods, reason = "the client's own connection task and body")]
fn call(process: &Process, method: &str, headers: &[(&str, &str)], text: &str) -> Got {
    runtime().block_on(async {
        let stream = TcpStream::connect(process.data).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method("POST")
            .uri(format!("http://proxy/test.Things/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("7"));
        let body = Full::new(message(text)).with_trailers(std::future::ready(Some(Ok(trailers))));
        let answer = sender.send_request(request.body(body).unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        let (status, headers) = (parts.status.as_u16(), parts.headers);
        Got { status, headers, body: body.to_bytes(), trailers }
    })
}

#[test]
fn h_14_a_read_streams_with_its_trailers_both_ways() {
    let server = Server::start(|_| Script { messages: vec!["one", "two"], status: Some("0") });
    let home = server.home();
    let process = home.start();

    let got = call(&process, "Watch", &[], "ask");

    assert_eq!(got.status, 200);
    assert_eq!(got.body, [message("one"), message("two")].concat());
    let trailers = got.trailers.unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    assert!(!trailers.contains_key("x-anvil-effect"), "a report in trailers is not ours");
    assert!(got.headers["x-anvil-effect"].to_str().unwrap().contains("things.watch"));
    let (headers, body, trailers) = server.seen().pop().unwrap();
    assert_eq!((headers["te"].to_str().unwrap(), body), ("trailers", message("ask")));
    assert_eq!(trailers.unwrap()["x-checksum"], "7");
    assert!(home.query("SELECT operation FROM entry").is_empty());
}

#[test]
fn h_14_the_status_of_grpc_is_the_outcome_of_a_write() {
    let table: [(&[&'static str], Option<&'static str>, &str); 7] = [
        (&["made"], Some("0"), "accepted"),
        (&[], Some("5"), "rejected"),
        (&[], Some("14"), "unknown"),
        (&["half"], Some("13"), "unknown"),
        (&["half"], None, "unknown"),
        (&[], None, "unknown"),
        (&[], Some("99"), "unknown"),
    ];
    let script = table;
    let server = Server::start(move |number| {
        let (messages, status, _) = script[number];
        Script { messages: messages.to_vec(), status }
    });
    let home = server.home();
    let process = home.start();
    for (number, (messages, status, outcome)) in table.into_iter().enumerate() {
        let got = call(&process, "Create", &[("effect-confirm", "true")], &format!("{number}"));
        let report: serde_json::Value =
            serde_json::from_slice(got.headers["x-anvil-effect"].as_bytes()).unwrap();
        assert_eq!(report["outcome"], outcome, "{messages:?} {status:?}: {report}");
        assert_eq!(report["operation"], "things.create");
        let all: Vec<u8> = messages.iter().flat_map(|text| message(text)).collect();
        assert_eq!(got.body, all, "the answer passes as it came");
        let end = if messages.is_empty() { Some(&got.headers) } else { got.trailers.as_ref() };
        let passed = end.and_then(|end| end.get("grpc-status")).map(|s| s.to_str().unwrap());
        assert_eq!(passed, status);
    }
    for (headers, ..) in server.seen() {
        assert!(headers.contains_key("x-request-id"), "the key is in its header");
    }
}

#[test]
fn a_refused_call_of_grpc_is_told_in_its_own_form_and_not_sent() {
    let server = Server::start(|_| Script { messages: vec!["made"], status: Some("0") });
    let home = server.home();
    let process = home.start();

    let refused = call(&process, "Create", &[], "a");

    assert_eq!((refused.status, refused.body.len()), (428, 0));
    assert_eq!(refused.headers["content-type"], "application/grpc");
    assert_eq!(refused.headers["grpc-status"], "9");
    let told = refused.headers["grpc-message"].to_str().unwrap();
    assert!(told.starts_with("Nothing was sent."), "{told}");
    let unknown = call(&process, "Unheard", &[("effect-confirm", "true")], "a");
    assert_eq!(unknown.status, 428, "what is not declared is an irreversible write");
    assert!(server.seen().is_empty());
}
