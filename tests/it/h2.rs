use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::{Act, Sidecar, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.get:
    match: { http: "GET /things" }
    effect: { class: read }
  things.create:
    match: { http: "POST /things" }
    effect: { class: irreversible, kind: create }
    confirm: caller
"#;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

#[expect(clippy::disallowed_methods, reason = "the client's own connection task")]
async fn connect(address: std::net::SocketAddr) -> Sender {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    sender
}

fn request(method: &str, body: &'static str) -> http::Request<Full<Bytes>> {
    http::Request::builder()
        .method(method)
        .uri("http://proxy/things")
        .header("content-type", "application/json")
        .header("effect-confirm", "true")
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .unwrap()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "an answer of the test's own upstream")]
fn http_2_with_prior_knowledge_is_served_like_http_1() {
    let upstream = Upstream::start(|_| Act::json(201, r#"{"id":1}"#));
    let sidecar = Sidecar::start(POLICY, &upstream);

    runtime().block_on(async {
        let mut sender = connect(sidecar.address).await;
        let read = sender.send_request(request("GET", "")).await.unwrap();
        assert_eq!(read.status(), 201);
        let write = sender.send_request(request("POST", "{}")).await.unwrap();
        assert!(write.headers().contains_key("x-anvil-effect"));
        let body = write.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&body[..], br#"{"id":1}"#);
    });

    assert!(
        upstream
            .received()
            .iter()
            .all(|received| { received.header("via") == Some("2.0 takeback-test") })
    );
    sidecar.wait_entries(&[("accepted", "")]);
}

#[test]
fn p11_a_reset_stream_does_not_stop_a_write_that_was_dispatched() {
    let (go, hold) = std::sync::mpsc::channel();
    let hold = std::sync::Mutex::new(Some(hold));
    let upstream = Upstream::start(move |_| match hold.lock().unwrap().take() {
        Some(hold) => Act::After(hold, Box::new(Act::json(201, "{}"))),
        None => Act::json(201, "{}"),
    });
    let sidecar = Sidecar::start(POLICY, &upstream);

    runtime().block_on(async {
        let mut sender = connect(sidecar.address).await;
        let call = sender.send_request(request("POST", "{}"));
        // Dropping the call resets its stream.
        tokio::select! {
            _ = call => panic!("nothing answers yet"),
            () = async {
                while upstream.count("POST") == 0 {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
        go.send(()).unwrap();
        while sidecar.entries() != [("accepted".to_owned(), String::new())] {
            tokio::task::yield_now().await;
        }
    });

    wait::until("its place", || (sidecar.places.free() == 256).then_some(()));
}
