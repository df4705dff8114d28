//! Against a scripted upstream on a raw socket, which sees what was really sent.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::call::payload::BodyError;

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(2);
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

const PATIENT: Clocks = Clocks { connect: LONG, head: LONG, idle: None, total: None };

/// Waits for a level; fails instead of hanging.
async fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let waiting = async {
        while !is_there() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    assert!(waited.is_ok(), "waited in vain for: {what}");
}

/// What the scripted upstream saw.
#[derive(Clone)]
struct Seen {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// Connections whose client side is closed.
    closed: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Seen {
    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn closed(&self) -> usize {
        self.closed.load(Ordering::SeqCst)
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    fn upstream(&self) -> Upstream {
        self.upstream_with(|_| {})
    }

    fn upstream_with(&self, change: impl FnOnce(&mut Config)) -> Upstream {
        let authority = self.address.to_string().parse().unwrap();
        let mut config = Config::new(authority);
        config.idle = LONG;
        change(&mut config);
        Upstream::new(config, Tasks::new())
    }
}

/// One connection as a script sees it.
struct Line {
    stream: TcpStream,
    number: usize,
    seen: Seen,
}

impl Line {
    /// The next head; `None` when the client has closed.
    async fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match self.stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return None,
            }
        }
        let head = String::from_utf8(head).unwrap();
        self.seen.heads.lock().unwrap().push(head.clone());
        Some(head)
    }

    async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        // The client may have closed: that is what some of the tests are about.
        drop(self.stream.write_all(bytes.as_ref()).await);
    }

    /// Reads until the client closes.
    async fn closed(mut self) {
        let mut rest = Vec::new();
        drop(self.stream.read_to_end(&mut rest).await);
        self.seen.closed.fetch_add(1, Ordering::SeqCst);
    }
}

async fn scripted<F>(script: impl Fn(Line) -> F + Send + 'static) -> Seen
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let seen = Seen {
        address: listener.local_addr().unwrap(),
        connections: Arc::default(),
        closed: Arc::default(),
        heads: Arc::default(),
    };
    let mine = seen.clone();
    drop(Tasks::new().spawn_background("scripted upstream", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let number = mine.connections.fetch_add(1, Ordering::SeqCst);
            let line = Line { stream, number, seen: mine.clone() };
            drop(Tasks::new().spawn_background("script", script(line)));
        }
    }));
    seen
}

/// Answers every request with these bytes and keeps the connection.
async fn answering(answer: impl AsRef<[u8]> + Clone + Send + Sync + 'static) -> Seen {
    scripted(move |mut line| {
        let answer = answer.clone();
        async move {
            while line.head().await.is_some() {
                line.write(&answer).await;
            }
            line.closed().await;
        }
    })
    .await
}

fn request(method: Method) -> Request<Body> {
    let request = Request::builder().method(method).uri("/path?query").header("host", "here");
    request.body(Body::empty()).unwrap()
}

fn get() -> Request<Body> {
    request(Method::GET)
}

fn post(body: Body) -> Request<Body> {
    request(Method::POST).map(|_| body)
}

async fn answer(sent: impl Future<Output = Sent>) -> Response<Body> {
    match sent.await {
        Sent::Answer(answer) => answer,
        other => panic!("no answer: {other:?}"),
    }
}

async fn lost(sent: impl Future<Output = Sent>) -> LostReason {
    match sent.await {
        Sent::Lost(reason) => reason,
        other => panic!("not lost: {other:?}"),
    }
}

async fn not_sent(sent: impl Future<Output = Sent>) -> NotSentReason {
    match sent.await {
        Sent::NotSent(reason) => reason,
        other => panic!("not unsent: {other:?}"),
    }
}

/// The body's text, its trailers, and the error that cut it.
async fn read(mut body: Body) -> (String, Option<HeaderMap>, Option<BodyError>) {
    let (mut text, mut trailers) = (String::new(), None);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) if frame.is_trailers() => trailers = frame.into_trailers().ok(),
            Ok(frame) => {
                text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
            }
            Err(error) => return (text, trailers, Some(error)),
        }
    }
    (text, trailers, None)
}

#[tokio::test]
async fn answers_that_were_read_share_one_connection() {
    let answers = [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 77\r\n\r\n",
    ];
    for bytes in answers {
        let seen = answering(bytes).await;
        let upstream = seen.upstream();

        for _ in 0..3 {
            let got = answer(upstream.send(get(), &PATIENT)).await;
            assert!(read(got.into_body()).await.2.is_none());
        }

        assert_eq!((seen.connections(), seen.heads().len()), (1, 3), "{bytes}");
        assert_eq!(upstream.usage(), Usage { idle: 1, in_use: 0 });
    }
}

#[tokio::test]
async fn h_24_a_pooled_connection_that_died_before_the_first_byte_costs_no_second_arrival() {
    let seen = scripted(|mut line| async move {
        line.head().await;
        line.write(OK).await;
    })
    .await;
    let upstream = seen.upstream();

    for _ in 0..5 {
        let got = answer(upstream.send(post(Body::full("write")), &PATIENT)).await;
        assert_eq!(read(got.into_body()).await.0, "ok");
    }

    assert_eq!(seen.heads().len(), 5, "one arrival for each");
}

#[tokio::test]
async fn b2_a_connection_closed_after_the_head_is_lost_and_arrives_once() {
    let seen = scripted(|mut line| async move {
        line.head().await;
    })
    .await;
    let upstream = seen.upstream();

    let reason = lost(upstream.send(post(Body::full("write")), &PATIENT)).await;

    assert_eq!(reason, LostReason::Reset);
    assert_eq!((seen.connections(), seen.heads().len()), (1, 1));
    assert_eq!(upstream.usage(), Usage { idle: 0, in_use: 0 });
}

#[tokio::test]
async fn b1_a_pooled_connection_closed_after_the_head_is_lost_and_arrives_once() {
    let seen = scripted(|mut line| async move {
        line.head().await;
        line.write(OK).await;
        line.head().await;
    })
    .await;
    let upstream = seen.upstream();
    read(answer(upstream.send(get(), &PATIENT)).await.into_body()).await;

    let reason = lost(upstream.send(post(Body::full("write")), &PATIENT)).await;

    assert_eq!(reason, LostReason::Reset);
    assert_eq!((seen.connections(), seen.heads().len()), (1, 2));
}

#[tokio::test]
async fn b3_an_answer_after_the_head_clock_is_lost_and_reaches_no_other_call() {
    let seen = scripted(|mut line| async move {
        line.head().await;
        if line.number == 0 {
            line.closed().await;
        } else {
            line.write(OK).await;
        }
    })
    .await;
    let upstream = seen.upstream();

    let slow = Clocks { head: SHORT, ..PATIENT };
    assert_eq!(lost(upstream.send(get(), &slow)).await, LostReason::HeadTimeout);
    wait_for("the connection is closed", || seen.closed() == 1).await;
    let next = answer(upstream.send(get(), &PATIENT)).await;

    assert_eq!(read(next.into_body()).await.0, "ok");
    assert_eq!(seen.connections(), 2);
}

#[tokio::test]
async fn the_absolute_clock_ends_a_wait_for_the_head() {
    let seen = scripted(|mut line| async move {
        line.head().await;
        line.closed().await;
    })
    .await;

    let clocks = Clocks { total: Some(Duration::from_millis(50)), ..PATIENT };
    let reason = lost(seen.upstream().send(get(), &clocks)).await;

    assert_eq!(reason, LostReason::TotalTimeout);
}

#[tokio::test]
async fn h_24_refused_unreachable_in_time_and_unknown_are_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let refused = Upstream::new(Config::new(address.to_string().parse().unwrap()), Tasks::new());
    assert_eq!(not_sent(refused.send(get(), &PATIENT)).await, NotSentReason::Connect);
    assert_eq!(refused.usage(), Usage { idle: 0, in_use: 0 });

    // A full queue drops what wants in.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap();
    let queue: Vec<_> = (0..8)
        .map(|_| {
            let domain = socket2::Domain::IPV4;
            let queued = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
            queued.set_nonblocking(true).unwrap();
            drop(queued.connect(&address));
            queued
        })
        .collect();
    let authority = address.as_socket().unwrap().to_string();
    let swallowed = Upstream::new(Config::new(authority.parse().unwrap()), Tasks::new());
    let impatient = Clocks { connect: SHORT, ..PATIENT };
    let late = not_sent(swallowed.send(get(), &impatient)).await;
    assert_eq!(late, NotSentReason::ConnectTimeout);
    drop(queue);

    // A label of 64 characters cannot be looked up anywhere.
    let name = format!("{}.invalid:80", "a".repeat(64));
    let unknown = Upstream::new(Config::new(name.parse().unwrap()), Tasks::new());
    assert_eq!(not_sent(unknown.send(get(), &PATIENT)).await, NotSentReason::Dns);
}

#[tokio::test]
async fn a_name_is_looked_up_and_an_address_that_refuses_is_passed_over() {
    // The name may stand for ::1 too, where nobody listens.
    let seen = answering(OK).await;
    let authority = format!("localhost:{}", seen.address.port());
    let upstream = Upstream::new(Config::new(authority.parse().unwrap()), Tasks::new());

    let got = answer(upstream.send(get(), &PATIENT)).await;

    assert_eq!(read(got.into_body()).await.0, "ok");
}

#[tokio::test]
async fn calls_beyond_the_connection_limit_wait_and_are_not_sent_when_the_wait_is_too_long() {
    let seen = answering(OK).await;
    let upstream = seen.upstream_with(|config| config.connections = 1);
    let held = answer(upstream.send(get(), &PATIENT)).await;

    let impatient = Clocks { connect: SHORT, ..PATIENT };
    assert_eq!(not_sent(upstream.send(get(), &impatient)).await, NotSentReason::PoolTimeout);
    let waiting = upstream.send(get(), &PATIENT);
    let reading = read(held.into_body());
    let (waited, _) = tokio::join!(answer(waiting), reading);

    assert_eq!(read(waited.into_body()).await.0, "ok");
    assert_eq!((seen.connections(), seen.heads().len()), (1, 2));
}

#[tokio::test]
async fn a_half_read_answer_closes_its_connection() {
    let seen = answering("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok").await;
    let upstream = seen.upstream();
    let mut body = answer(upstream.send(get(), &PATIENT)).await.into_body();
    body.frame().await.unwrap().unwrap();

    drop(body);

    wait_for("the connection is closed", || seen.closed() == 1).await;
    assert_eq!(upstream.usage(), Usage { idle: 0, in_use: 0 });
}

#[tokio::test]
async fn a_call_that_is_dropped_closes_its_connection_and_frees_its_place() {
    let seen = scripted(|mut line| async move {
        line.head().await;
        line.closed().await;
    })
    .await;
    let upstream = seen.upstream();

    tokio::select! {
        sent = upstream.send(get(), &PATIENT) => panic!("{sent:?}"),
        () = wait_for("the head has arrived", || seen.heads().len() == 1) => {}
    }

    wait_for("the connection is closed", || seen.closed() == 1).await;
    assert_eq!(upstream.usage(), Usage { idle: 0, in_use: 0 });
}

#[tokio::test]
async fn h_20q_bytes_that_nobody_asked_for_close_the_connection() {
    for late in [false, true] {
        let seen = scripted(move |mut line| async move {
            while line.head().await.is_some() {
                if late {
                    line.write(OK).await;
                    line.write("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil").await;
                } else {
                    line.write([OK, b"HTTP/1.1 200 OK\r\n"].concat()).await;
                }
            }
            line.closed().await;
        })
        .await;
        let upstream = seen.upstream();

        let first = answer(upstream.send(get(), &PATIENT)).await;
        assert_eq!(read(first.into_body()).await.0, "ok");
        wait_for("the connection is closed", || seen.closed() == 1).await;
        let second = answer(upstream.send(get(), &PATIENT)).await;

        assert_eq!(read(second.into_body()).await.0, "ok");
        assert_eq!(seen.connections(), 2, "late: {late}");
    }
}

#[tokio::test]
async fn a_connection_that_its_peer_closes_while_it_is_idle_is_let_go_without_a_call() {
    let seen = scripted(|mut line| async move {
        line.head().await;
        line.write(OK).await;
    })
    .await;
    let upstream = seen.upstream();

    read(answer(upstream.send(get(), &PATIENT)).await.into_body()).await;

    wait_for("the connection is let go", || upstream.usage().idle == 0).await;
}

#[tokio::test]
async fn a_call_of_a_task_that_has_used_up_its_turn_goes_on_in_the_next() {
    let seen = answering(OK).await;
    let upstream = seen.upstream();
    read(answer(upstream.send(get(), &PATIENT)).await.into_body()).await;

    let mut sending = std::pin::pin!(upstream.send(get(), &PATIENT));
    let mut has_used_it_up = false;
    let sent = poll_fn(|cx| {
        while !has_used_it_up {
            has_used_it_up =
                std::pin::pin!(tokio::task::coop::consume_budget()).poll(cx).is_pending();
        }
        sending.as_mut().poll(cx)
    });

    assert_eq!(read(answer(sent).await.into_body()).await.0, "ok");
    assert_eq!(seen.connections(), 1);
}

#[tokio::test]
async fn bodies_of_every_framing_are_read_and_what_is_cut_says_so() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let table = [
        ("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody".to_owned(), "body", false),
        (format!("{chunked}2\r\nbo\r\n2;x=y\r\ndy\r\n0\r\n\r\n"), "body", false),
        ("HTTP/1.1 200 OK\r\n\r\nbody".to_owned(), "body", false),
        ("HTTP/1.0 200 OK\r\n\r\nbody".to_owned(), "body", false),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbody".to_owned(), "body", true),
        (format!("{chunked}4\r\nbody\r\n"), "body", true),
        (format!("{chunked}9\r\nbody"), "body", true),
        (format!("{chunked}4\r\nbody\r\nxyz\r\n"), "body", true),
    ];
    for (bytes, right, is_cut) in table {
        let seen = scripted({
            let bytes = bytes.clone();
            move |mut line| {
                let bytes = bytes.clone();
                async move {
                    line.head().await;
                    line.write(bytes).await;
                }
            }
        })
        .await;

        let got = answer(seen.upstream().send(get(), &PATIENT)).await;
        let (text, _, error) = read(got.into_body()).await;

        assert_eq!(text, right, "{bytes}");
        assert_eq!(matches!(error, Some(BodyError::Truncated(_))), is_cut, "{bytes} {error:?}");
    }
}

#[tokio::test]
async fn h_13_trailers_of_an_answer_are_passed() {
    let seen = answering(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\ngrpc-status: 0\r\n\r\n",
    )
    .await;
    let upstream = seen.upstream();

    let got = answer(upstream.send(get(), &PATIENT)).await;
    let (text, trailers, _) = read(got.into_body()).await;

    assert_eq!(text, "ok");
    assert_eq!(trailers.unwrap()["grpc-status"], "0");
    assert_eq!(upstream.usage(), Usage { idle: 1, in_use: 0 });
}

#[tokio::test]
async fn h_12_answers_without_a_body_keep_their_length_header() {
    let head = answering("HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n").await;
    let unchanged = answering("HTTP/1.1 304 Not Modified\r\ncontent-length: 77\r\n\r\n").await;
    for (seen, method, right) in [(head, Method::HEAD, "1234"), (unchanged, Method::GET, "77")] {
        let got = answer(seen.upstream().send(request(method), &PATIENT)).await;

        assert_eq!(got.headers()[CONTENT_LENGTH], right);
        assert_eq!(read(got.into_body()).await.0, "");
    }
}

#[tokio::test]
async fn h_10_interim_answers_are_skipped_however_many() {
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(1000);
    let seen = answering(format!("{interim}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")).await;

    let got = answer(seen.upstream().send(get(), &PATIENT)).await;

    assert_eq!(got.status(), 200);
    assert!(got.headers().get("link").is_none());
    assert_eq!(read(got.into_body()).await.0, "ok");
}

#[tokio::test]
async fn interim_answers_without_end_run_into_the_head_clock() {
    let seen = scripted(|mut line| async move {
        line.head().await;
        while line.stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n").await.is_ok() {}
        line.closed().await;
    })
    .await;

    let clocks = Clocks { head: Duration::from_millis(20), ..PATIENT };

    assert_eq!(lost(seen.upstream().send(get(), &clocks)).await, LostReason::HeadTimeout);
}

#[tokio::test]
async fn answers_that_break_the_protocol_are_lost() {
    let many = (0..101).map(|i| format!("x-{i}: y\r\n")).collect::<String>();
    let table = [
        ("switching protocols (H-11)", "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned()),
        ("not HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n".to_owned()),
        ("HTTP/0.9", "hello\r\n\r\n".to_owned()),
        (
            "two lengths (H-20r)",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n".to_owned(),
        ),
        (
            "a length and chunked (H-20r)",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
                .to_owned(),
        ),
        ("a length that is none", "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n".to_owned()),
        ("a space before the colon (H-20g)", "HTTP/1.1 200 OK\r\nx-y : z\r\n\r\n".to_owned()),
        ("a folded line (H-20h)", "HTTP/1.1 200 OK\r\nx-y: z\r\n z\r\n\r\n".to_owned()),
        ("a NUL in a value (H-20j)", "HTTP/1.1 200 OK\r\nx-y: \0\r\n\r\n".to_owned()),
        ("too many fields (H-20m)", format!("HTTP/1.1 200 OK\r\n{many}\r\n")),
        (
            "too large a head (H-20m)",
            format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(65536)),
        ),
    ];
    for (name, bytes) in table {
        let seen = answering(bytes).await;
        let upstream = seen.upstream();

        assert_eq!(lost(upstream.send(get(), &PATIENT)).await, LostReason::Protocol, "{name}");
        assert_eq!(seen.heads().len(), 1, "{name}");
        assert_eq!(upstream.usage(), Usage { idle: 0, in_use: 0 }, "{name}");
    }
}

#[tokio::test]
async fn a_head_of_just_under_64_kib_is_taken() {
    let seen = answering(format!(
        "HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 2\r\n\r\nok",
        "y".repeat(65000)
    ))
    .await;

    let got = answer(seen.upstream().send(get(), &PATIENT)).await;

    assert_eq!(got.headers()["x"].len(), 65000);
}

#[tokio::test]
async fn idle_connections_are_closed_after_a_while_without_any_call() {
    let seen = answering(OK).await;
    let upstream = seen.upstream_with(|config| config.idle = SHORT);

    read(answer(upstream.send(get(), &PATIENT)).await.into_body()).await;

    wait_for("the connection is closed", || seen.closed() == 1).await;
    assert_eq!(upstream.usage(), Usage { idle: 0, in_use: 0 });
    // The sweeper has ended with the last connection; another call starts it again.
    read(answer(upstream.send(get(), &PATIENT)).await.into_body()).await;
    wait_for("the connection is closed", || seen.closed() == 2).await;
}

#[tokio::test]
async fn p_40_a_connection_beyond_its_age_is_not_used_again() {
    let seen = answering(OK).await;
    let upstream = seen.upstream_with(|config| config.max_age = Duration::ZERO);

    for _ in 0..2 {
        read(answer(upstream.send(get(), &PATIENT)).await.into_body()).await;
    }

    assert_eq!(seen.connections(), 2);
}

#[tokio::test]
async fn no_more_connections_are_kept_than_allowed_and_none_after_close() {
    let seen = answering(OK).await;
    let upstream = seen.upstream_with(|config| config.idle_connections = 1);
    let bodies = [
        answer(upstream.send(get(), &PATIENT)).await.into_body(),
        answer(upstream.send(get(), &PATIENT)).await.into_body(),
    ];
    assert_eq!(upstream.usage(), Usage { idle: 0, in_use: 2 });

    for body in bodies {
        read(body).await;
    }
    assert_eq!(upstream.usage(), Usage { idle: 1, in_use: 0 });
    upstream.close();
    read(answer(upstream.send(get(), &PATIENT)).await.into_body()).await;

    assert_eq!(upstream.usage(), Usage { idle: 0, in_use: 0 });
}

#[tokio::test]
async fn a_body_that_stalls_ends_by_the_idle_or_the_absolute_clock() {
    let soon = Duration::from_millis(30);
    let table = [
        (Clocks { idle: Some(SHORT), ..PATIENT }, "idle"),
        (Clocks { idle: Some(LONG), total: Some(soon), ..PATIENT }, "total"),
        (Clocks { total: Some(soon), ..PATIENT }, "total"),
    ];
    for (clocks, right) in table {
        let seen = answering("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok").await;
        let upstream = seen.upstream();

        let got = answer(upstream.send(get(), &clocks)).await;
        let (text, _, error) = read(got.into_body()).await;

        assert_eq!(text, "ok");
        let is_right = match error {
            Some(BodyError::Idle) => right == "idle",
            Some(BodyError::Total) => right == "total",
            _ => false,
        };
        assert!(is_right, "{error:?} for {right}");
        wait_for("the connection is closed", || seen.closed() == 1).await;
    }
}

#[tokio::test]
async fn authentication_that_binds_a_connection_closes_it() {
    let table =
        [("NTLM", 2), ("Negotiate abc", 2), ("Basic realm=\"x\", negotiate", 2), ("Bearer", 1)];
    for (challenge, right) in table {
        let seen = answering(format!(
            "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: {challenge}\r\ncontent-length: 0\r\n\r\n"
        ))
        .await;
        let upstream = seen.upstream();

        for _ in 0..2 {
            answer(upstream.send(get(), &PATIENT)).await;
        }

        assert_eq!(seen.connections(), right, "{challenge}");
    }
}

#[tokio::test]
async fn a1_a_request_has_exactly_the_framing_of_its_body() {
    let channel = || {
        let (sender, body) = Body::channel(1);
        sender.finish();
        body
    };
    let stale = |mut request: Request<Body>| {
        request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("99"));
        request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("gzip"));
        *request.version_mut() = Version::HTTP_10;
        request
    };
    let table = [
        (stale(get()), None, None),
        (stale(request(Method::HEAD)), None, None),
        (stale(request(Method::POST)), Some("0"), None),
        (stale(request(Method::DELETE)), Some("0"), None),
        (stale(post(Body::full("abc"))), Some("3"), None),
        (stale(get().map(|_| Body::full("abc"))), Some("3"), None),
        (stale(post(channel())), None, Some("chunked")),
        (stale(get().map(|_| channel())), None, Some("chunked")),
    ];
    for (mut request, length, coding) in table {
        let name = format!("{request:?}");

        frame(&mut request);

        let text = |name| {
            let values: Vec<_> = request.headers().get_all(name).iter().collect();
            assert!(values.len() < 2);
            values.first().map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(request.version(), Version::HTTP_11);
        assert_eq!(text(CONTENT_LENGTH).as_deref(), length, "{name}");
        assert_eq!(text(TRANSFER_ENCODING).as_deref(), coding, "{name}");
    }
}

#[tokio::test]
async fn a_streamed_request_arrives_and_one_that_stops_half_way_is_lost() {
    let seen = scripted(|mut line| async move {
        line.head().await;
        let mut body = [0; 13];
        if line.stream.read_exact(&mut body).await.is_ok() {
            assert_eq!(&body, b"3\r\nabc\r\n0\r\n\r\n");
            line.write(OK).await;
        }
        line.closed().await;
    })
    .await;
    let upstream = seen.upstream();

    let (sender, body) = Body::channel(1);
    let feeding = async move {
        sender.reserve().await.unwrap().send(Bytes::from_static(b"abc"));
        sender.finish();
    };
    let (got, ()) = tokio::join!(answer(upstream.send(post(body), &PATIENT)), feeding);
    assert_eq!(read(got.into_body()).await.0, "ok");

    let (sender, body) = Body::channel(1);
    let stopping = async move {
        sender.reserve().await.unwrap().send(Bytes::from_static(b"abc"));
        drop(sender);
    };
    let (reason, ()) = tokio::join!(lost(upstream.send(post(body), &PATIENT)), stopping);
    assert_eq!(reason, LostReason::RequestBody);
}

#[tokio::test]
async fn an_answer_that_comes_before_its_request_is_written_closes_the_connection() {
    let seen = scripted(|mut line| async move {
        line.head().await;
        line.write(OK).await;
        line.closed().await;
    })
    .await;
    let upstream = seen.upstream();

    let (_sender, body) = Body::channel(1);
    let got = answer(upstream.send(post(body), &PATIENT)).await;
    assert_eq!(read(got.into_body()).await.0, "ok");

    assert_eq!(upstream.usage(), Usage { idle: 0, in_use: 0 });
    wait_for("the connection is closed", || seen.closed() == 1).await;
}

#[tokio::test]
async fn the_last_connection_used_is_the_first_used_again() {
    let seen = scripted(|mut line| async move {
        let number = line.number;
        while line.head().await.is_some() {
            line.write(format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}")).await;
        }
        line.closed().await;
    })
    .await;
    let upstream = seen.upstream();
    let first = answer(upstream.send(get(), &PATIENT)).await.into_body();
    let second = answer(upstream.send(get(), &PATIENT)).await.into_body();
    read(first).await;
    read(second).await;

    for _ in 0..3 {
        let got = answer(upstream.send(get(), &PATIENT)).await;
        assert_eq!(read(got.into_body()).await.0, "1");
    }
}
