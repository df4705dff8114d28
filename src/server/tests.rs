//! Against raw client sockets, and hyper's own client for HTTP/2.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::delivery::{Resettable, Shared, Watched};
use super::*;
use crate::call::payload::{BodyError, Budget, collect};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(2);
const GET: &str = "GET / HTTP/1.1\r\nhost: here\r\n\r\n";

fn patient() -> Limits {
    Limits { connections: 100, head: LONG, keep_alive: LONG, delivered_after: LONG }
}

async fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let waiting = async {
        while !is_there() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    assert!(waited.is_ok(), "waited in vain for: {what}");
}

struct Server {
    address: SocketAddr,
    drain: Drain,
    connections: Connections,
    serving: JoinHandle<io::Result<Served>>,
}

fn serving<S, F>(limits: Limits, service: S) -> Server
where
    S: Fn(Arrival) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let one = NonZeroUsize::new(1).unwrap();
    let listener = bind("127.0.0.1:0".parse().unwrap(), one, &limits).unwrap().pop().unwrap();
    let (address, connections, drain) = (listener.address(), listener.connections(), Drain::new());
    let tasks = Tasks::new();
    let serve = listener.serve(service, tasks.clone(), drain.clone());
    Server { address, drain, connections, serving: tasks.spawn_background("server", serve) }
}

fn ok(body: Body) -> Response<Body> {
    Response::new(body)
}

/// Answers with the request's body.
async fn echo(arrival: Arrival) -> Response<Body> {
    let body = {
        let version = arrival.request.version();
        Body::incoming(arrival.request.into_body(), version)
    };
    match collect(body, 1 << 20, &Budget::new(1 << 20), LONG).await {
        Ok(collected) => ok(Body::full(format!("[{}]", collected.bytes().escape_ascii()))),
        Err(error) => {
            let mut answer = ok(Body::full(error.to_string()));
            *answer.status_mut() = http::StatusCode::BAD_REQUEST;
            answer
        }
    }
}

struct Client {
    stream: TcpStream,
}

impl Client {
    async fn new(server: &Server) -> Self {
        Self { stream: TcpStream::connect(server.address).await.unwrap() }
    }

    async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Reads one answer that says its length, or has none.
    async fn answer(&mut self) -> Option<String> {
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(self.stream.read_u8().await.ok()?);
        }
        let mut answer = String::from_utf8(answer).unwrap();
        let length = answer.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split('\r').next()?.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.ok()?;
        answer.push_str(std::str::from_utf8(&body).unwrap());
        Some(answer)
    }

    /// Breaks the connection, as a system does whose program has gone.
    fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// All that comes until the server closes.
    async fn rest(mut self) -> String {
        let mut rest = Vec::new();
        drop(self.stream.read_to_end(&mut rest).await);
        String::from_utf8(rest).unwrap()
    }
}

type Http2 = hyper::client::conn::http2::SendRequest<Body>;

async fn http2(server: &Server) -> (Http2, JoinHandle<()>) {
    http2_over(TcpStream::connect(server.address).await.unwrap()).await
}

async fn http2_over(stream: TcpStream) -> (Http2, JoinHandle<()>) {
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let driver = Tasks::new().spawn_background("client", async move { drop(connection.await) });
    (sender, driver)
}

fn request2() -> Request<Body> {
    Request::builder().uri("http://here/").body(Body::empty()).unwrap()
}

#[test]
fn listeners_of_several_workers_share_a_port_and_others_may_not_have_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    for workers in [1, 3] {
        let workers = NonZeroUsize::new(workers).unwrap();
        let listeners = bind("127.0.0.1:0".parse().unwrap(), workers, &patient()).unwrap();
        let address = listeners[0].address();

        assert!(listeners.iter().all(|listener| listener.address() == address));
        assert_ne!(address.port(), 0);
        let again = bind(address, workers, &patient());
        assert_eq!(again.unwrap_err().to_string(), format!("{address} cannot be listened on"));

        drop(listeners);
        assert!(bind(address, workers, &patient()).is_ok());
    }
}

#[test]
fn p_38_only_errors_about_one_connection_are_passed_over_without_a_rest() {
    for kind in [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset] {
        assert!(concerns_one_connection(&kind.into()));
    }
    let out_of_descriptors = io::Error::from_raw_os_error(24);
    assert!(!concerns_one_connection(&out_of_descriptors));
}

#[tokio::test]
async fn requests_of_one_connection_are_answered_in_order() {
    let server = serving(patient(), echo);
    let mut client = Client::new(&server).await;

    client.write("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n1").await;
    assert!(client.answer().await.unwrap().ends_with("[1]"));
    client.write(format!("{GET}POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n2")).await;

    assert!(client.answer().await.unwrap().ends_with("[]"));
    assert!(client.answer().await.unwrap().ends_with("[2]"));
}

#[tokio::test]
async fn the_peer_of_an_arrival_is_the_other_end_of_its_connection() {
    let server = serving(patient(), |arrival: Arrival| async move {
        ok(Body::full(arrival.peer.address.to_string()))
    });
    let mut client = Client::new(&server).await;

    client.write(GET).await;

    let right = client.stream.local_addr().unwrap().to_string();
    assert!(client.answer().await.unwrap().ends_with(&right));
}

#[tokio::test]
async fn http_2_is_served_with_prior_knowledge() {
    let server = serving(patient(), echo);
    let (mut sender, _driver) = http2(&server).await;

    let (first, second) =
        tokio::join!(sender.clone().send_request(request2()), sender.send_request(request2()));

    for answer in [first.unwrap(), second.unwrap()] {
        assert_eq!(answer.version(), http::Version::HTTP_2);
        let body = Body::incoming(answer.into_body(), http::Version::HTTP_2);
        let collected = collect(body, 100, &Budget::new(100), LONG).await.unwrap();
        assert_eq!(collected.bytes(), "[]");
    }
}

#[tokio::test]
async fn p_29_clients_that_are_slow_or_silent_are_closed() {
    let brief = Limits { head: SHORT, ..patient() };
    let begun_heads = ["", "G", "PRI * HTTP/2", "GET / HTTP/1.1\r\nhost: here\r\n"];
    for begun in begun_heads {
        let server = serving(brief.clone(), echo);
        let mut client = Client::new(&server).await;
        client.write(begun).await;
        assert_eq!(client.rest().await, "", "{begun}");
    }

    let server = serving(brief.clone(), echo);
    let mut client = Client::new(&server).await;
    client.write(GET).await;
    client.answer().await.unwrap();
    client.write("GET / HT").await;
    assert_eq!(client.rest().await, "", "the head of a later request");

    let server = serving(Limits { head: SHORT, keep_alive: SHORT, ..patient() }, echo);
    let mut client = Client::new(&server).await;
    client.write(GET).await;
    client.answer().await.unwrap();
    assert_eq!(client.rest().await, "", "no later request");

    let (sender, driver) = http2(&server).await;
    driver.await.unwrap();
    assert!(sender.is_closed(), "no request on HTTP/2");
}

#[tokio::test]
async fn the_clocks_of_a_connection_do_not_touch_a_call_that_takes_its_time() {
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = Arc::new(tokio::sync::Mutex::new(Some(stopped)));
    let ticks = Arc::new(AtomicUsize::new(0));
    let limits = Limits { head: SHORT, keep_alive: SHORT, ..patient() };
    let server = serving(limits, move |_| {
        let stopped = Arc::clone(&stopped);
        async move {
            let stopped = stopped.lock().await.take().unwrap();
            stopped.await.unwrap();
            ok(Body::full("late"))
        }
    });
    let mut client = Client::new(&server).await;
    client.write(GET).await;

    // Far more than one head limit.
    let mut pause = tokio::time::interval(SHORT);
    while ticks.fetch_add(1, Ordering::SeqCst) < 10 {
        pause.tick().await;
    }
    stop.send(()).unwrap();

    assert!(client.answer().await.unwrap().ends_with("late"));
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_one_ends() {
    let server = serving(Limits { connections: 1, ..patient() }, echo);
    let mut first = Client::new(&server).await;
    first.write(GET).await;
    first.answer().await.unwrap();
    let mut second = Client::new(&server).await;
    second.write(GET).await;
    assert_eq!(server.connections.taken(), 1);
    let early = tokio::time::timeout(SHORT, second.answer()).await;
    assert!(early.is_err());

    drop(first);

    assert!(second.rest_of_answer().await.ends_with("[]"));
}

impl Client {
    /// An answer whose first bytes a wait that was given up may have taken.
    async fn rest_of_answer(&mut self) -> String {
        let mut seen = Vec::new();
        while !seen.ends_with(b"]") {
            seen.push(self.stream.read_u8().await.unwrap());
        }
        String::from_utf8(seen).unwrap()
    }
}

/// Answers when it is told to.
struct Held {
    /// Calls that wait.
    waiting: Arc<AtomicUsize>,
    /// Calls that were dropped while they waited.
    dropped: Arc<AtomicUsize>,
    go: Arc<Notify>,
    may_go: Arc<AtomicBool>,
}

impl Held {
    fn new() -> Self {
        Self {
            waiting: Arc::default(),
            dropped: Arc::default(),
            go: Arc::default(),
            may_go: Arc::default(),
        }
    }

    fn service(&self) -> impl Fn(Arrival) -> JoinedAnswer + Send + Sync + 'static + use<> {
        let (waiting, dropped) = (Arc::clone(&self.waiting), Arc::clone(&self.dropped));
        let (go, may_go) = (Arc::clone(&self.go), Arc::clone(&self.may_go));
        move |_| {
            let guard = CountDrop(Some(Arc::clone(&dropped)));
            waiting.fetch_add(1, Ordering::SeqCst);
            let (go, may_go) = (Arc::clone(&go), Arc::clone(&may_go));
            Box::pin(async move {
                let mut guard = guard;
                loop {
                    let mut going = std::pin::pin!(go.notified());
                    going.as_mut().enable();
                    if may_go.load(Ordering::SeqCst) {
                        break;
                    }
                    going.await;
                }
                guard.0 = None;
                ok(Body::full("held"))
            })
        }
    }

    fn go(&self) {
        self.may_go.store(true, Ordering::SeqCst);
        self.go.notify_waiters();
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    fn dropped(&self) -> usize {
        self.dropped.load(Ordering::SeqCst)
    }
}

type JoinedAnswer = std::pin::Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

struct CountDrop(Option<Arc<AtomicUsize>>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn p_36_a_drain_answers_what_has_begun_closes_what_is_idle_and_takes_nothing_new() {
    let held = Held::new();
    let server = serving(patient(), held.service());
    let mut busy = Client::new(&server).await;
    busy.write(GET).await;
    wait_for("the call is held", || held.waiting() == 1).await;
    let idle = Client::new(&server).await;
    let (mut sender, _driver) = http2(&server).await;
    let stream = sender.send_request(request2());
    wait_for("the stream is held", || held.waiting() == 2).await;

    server.drain.begin(LONG);
    assert!(server.drain.is_begun());
    server.drain.begun().await;

    assert_eq!(idle.rest().await, "", "an idle connection is closed at once");
    wait_for("nothing is accepted", || {
        std::net::TcpStream::connect_timeout(&server.address, Duration::from_secs(5)).is_err()
    })
    .await;
    held.go();
    let answer = busy.answer().await.unwrap();
    assert!(answer.contains("connection: close\r\n") && answer.ends_with("held"), "{answer}");
    assert_eq!(busy.rest().await, "");
    let body = Body::incoming(stream.await.unwrap().into_body(), http::Version::HTTP_2);
    let collected = collect(body, 100, &Budget::new(100), LONG).await.unwrap();
    assert_eq!(collected.bytes(), "held", "a stream is not cut by GOAWAY");
    assert_eq!(server.serving.await.unwrap().unwrap(), Served { cut: 0 });
}

#[tokio::test]
async fn p_35_a_drain_has_an_end_and_counts_what_it_cuts() {
    let held = Held::new();
    let server = serving(patient(), held.service());
    let mut busy = Client::new(&server).await;
    busy.write(GET).await;
    let (mut sender, _driver) = http2(&server).await;
    let stream = sender.send_request(request2());
    wait_for("the calls are held", || held.waiting() == 2).await;

    server.drain.begin(LONG);
    server.drain.begin(SHORT);

    assert_eq!(server.serving.await.unwrap().unwrap(), Served { cut: 2 });
    assert_eq!(busy.rest().await, "");
    assert!(stream.await.is_err());
    wait_for("the calls are dropped", || held.dropped() == 2).await;
}

#[tokio::test]
async fn a_connection_that_a_drain_finds_silent_is_closed() {
    let server = serving(patient(), echo);
    let silent = Client::new(&server).await;
    wait_for("it is accepted", || server.connections.taken() == 2).await;

    server.drain.begin(LONG);

    assert_eq!(silent.rest().await, "");
    assert_eq!(server.serving.await.unwrap().unwrap(), Served { cut: 0 });
}

#[tokio::test]
async fn p_11_a_client_that_leaves_drops_the_future_of_its_call() {
    let held = Held::new();
    let server = serving(patient(), held.service());

    let mut client = Client::new(&server).await;
    client.write(GET).await;
    wait_for("the call is held", || held.waiting() == 1).await;
    drop(client);
    wait_for("closing drops it", || held.dropped() == 1).await;

    let mut client = Client::new(&server).await;
    client.write(GET).await;
    wait_for("the call is held", || held.waiting() == 2).await;
    client.stream.shutdown().await.unwrap();
    wait_for("closing one half drops it", || held.dropped() == 2).await;

    let (mut sender, _driver) = http2(&server).await;
    let stream = Box::pin(sender.send_request(request2()));
    wait_for("the stream is held", || held.waiting() == 3).await;
    drop(stream);
    wait_for("a reset drops it", || held.dropped() == 3).await;

    let stream = std::net::TcpStream::connect(server.address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let socket = stream.try_clone().unwrap();
    let (mut sender, _driver) = http2_over(TcpStream::from_std(stream).unwrap()).await;
    let _stream = Box::pin(sender.send_request(request2()));
    wait_for("the stream is held", || held.waiting() == 4).await;
    socket.shutdown(std::net::Shutdown::Both).unwrap();
    wait_for("closing drops its streams", || held.dropped() == 4).await;
}

#[tokio::test]
async fn a_client_that_leaves_is_not_noticed_while_its_body_is_unread() {
    // hyper reads ahead no further than its buffer, so it does not see the end behind it. Whoever
    // holds a call for long without reading its body does not learn that the agent has left.
    let held = Held::new();
    let server = serving(patient(), held.service());
    let mut client = Client::new(&server).await;
    client.write("POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\n123").await;
    wait_for("the call is held", || held.waiting() == 1).await;
    drop(client);
    // Accepted after the end of the first connection was there to be seen.
    let _later = Client::new(&server).await;
    wait_for("a later connection is accepted", || server.connections.taken() == 3).await;
    assert_eq!(held.dropped(), 0);

    held.go();
    wait_for("the connection ends", || server.connections.taken() == 2).await;
}

/// Collects what became of watched answers.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Delivery>>>);

impl Told {
    fn hook(&self) -> impl FnOnce(Delivery) + Send + Sync + 'static + use<> {
        let told = Arc::clone(&self.0);
        move |delivery| told.lock().unwrap().push(delivery)
    }

    fn all(&self) -> Vec<Delivery> {
        self.0.lock().unwrap().clone()
    }

    fn service(&self, body: fn() -> Body) -> impl Fn(Arrival) -> JoinedAnswer + use<> {
        let told = self.clone();
        move |arrival| {
            let body = arrival.peer.delivery.follow(body(), told.hook());
            Box::pin(async move { ok(body) })
        }
    }
}

const BODIES: [fn() -> Body; 3] = [Body::empty, || Body::full("abc"), two_frames];

fn two_frames() -> Body {
    let (sender, body) = Body::channel(2);
    drop(Tasks::new().spawn_background("pump", async move {
        for bytes in ["abc", "def"] {
            let Some(slot) = sender.reserve().await else { return };
            slot.send(Bytes::from(bytes));
        }
        sender.finish();
    }));
    body
}

#[tokio::test]
async fn an_answer_is_delivered_when_a_later_byte_comes() {
    for body in BODIES {
        let told = Told::default();
        let server = serving(patient(), told.service(body));
        let mut client = Client::new(&server).await;
        client.write(GET).await;
        let whole = match body().is_in_memory() {
            true => "\r\n\r\n",
            false => "\r\n0\r\n\r\n",
        };
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(whole) {
            seen.push(client.stream.read_u8().await.unwrap());
        }
        assert_eq!(told.all(), [], "written is not delivered");

        client.write("G").await;

        wait_for("it is delivered", || told.all() == [Delivery::Delivered]).await;
    }
}

#[tokio::test]
async fn an_answer_is_delivered_when_its_connection_stays_open_long_enough() {
    for body in BODIES {
        let told = Told::default();
        let server = serving(Limits { delivered_after: SHORT, ..patient() }, told.service(body));
        let mut client = Client::new(&server).await;
        client.write(GET).await;
        wait_for("it is delivered", || told.all() == [Delivery::Delivered]).await;
    }
}

#[tokio::test]
async fn an_answer_is_not_delivered_when_its_connection_ends_before() {
    for body in BODIES {
        let told = Told::default();
        let server = serving(patient(), told.service(body));
        let mut client = Client::new(&server).await;
        client.write(GET).await;
        client.stream.read_u8().await.unwrap();
        assert_eq!(told.all(), []);

        drop(client);

        wait_for("it is undelivered", || told.all() == [Delivery::Undelivered]).await;
    }
}

#[tokio::test]
async fn an_answer_is_delivered_when_its_reader_closes_in_order_and_not_when_its_system_breaks() {
    for body in BODIES {
        for (request, closes) in [(GET, false), (GET_AND_CLOSE, true)] {
            let told = Told::default();
            let server = serving(patient(), told.service(body));
            let mut client = Client::new(&server).await;
            client.write(request).await;
            if closes {
                client.rest().await;
            } else {
                read_whole(&mut client, body).await;
                drop(client);
            }
            wait_for("it is delivered", || told.all() == [Delivery::Delivered]).await;

            let told = Told::default();
            let server = serving(patient(), told.service(body));
            let mut client = Client::new(&server).await;
            client.write(request).await;
            read_whole(&mut client, body).await;
            client.reset();
            wait_for("it is undelivered", || told.all() == [Delivery::Undelivered]).await;
        }
    }
}

const GET_AND_CLOSE: &str = "GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";

async fn read_whole(client: &mut Client, body: fn() -> Body) {
    let whole = if body().is_in_memory() { "\r\n\r\n" } else { "\r\n0\r\n\r\n" };
    let mut seen = String::new();
    while !seen.contains(whole) {
        seen.push(char::from(client.stream.read_u8().await.unwrap()));
    }
    if seen.contains("content-length: 3") {
        client.stream.read_exact(&mut [0; 3]).await.unwrap();
    }
}

/// A socket whose client closed, and whose system may have taken that back.
struct Closed(bool);

impl Resettable for Closed {
    fn is_reset(&self) -> bool {
        self.0
    }
}

impl AsyncRead for Closed {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Closed {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_reset_that_follows_the_close_takes_the_delivery_back() {
    for (is_reset, is_written, becomes) in [
        (false, true, Delivery::Delivered),
        (true, true, Delivery::Undelivered),
        (false, false, Delivery::Undelivered),
    ] {
        let told = Told::default();
        let shared = Arc::new(Shared::default());
        DeliveryHandle::new(Arc::clone(&shared)).watch(told.hook());
        let mut socket =
            Watched::new(Closed(is_reset), Bytes::new(), shared, Arc::new(AtomicBool::new(false)));
        if is_written {
            socket.flush().await.unwrap();
        }
        assert_eq!(socket.read(&mut [0; 8]).await.unwrap(), 0);
        drop(socket);
        assert_eq!(told.all(), [becomes]);
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_or_never_taken_is_not_delivered() {
    let told = Told::default();
    let server = serving(patient(), told.service(cut));
    let mut client = Client::new(&server).await;
    client.write(GET).await;
    client.rest().await;
    wait_for("it is undelivered", || told.all() == [Delivery::Undelivered]).await;

    // Larger than what the sockets between take; the client reads nothing.
    let told = Told::default();
    let server = serving(patient(), told.service(|| Body::full(vec![0; 64 << 20])));
    let mut client = Client::new(&server).await;
    client.write(GET).await;
    client.stream.readable().await.unwrap();
    client.write("G").await;
    client.stream.read_u8().await.unwrap();
    assert_eq!(told.all(), [], "a byte before all is written says nothing");
    drop(client);
    wait_for("it is undelivered", || told.all() == [Delivery::Undelivered]).await;
}

fn cut() -> Body {
    let (sender, body) = Body::channel(2);
    drop(Tasks::new().spawn_background("pump", async move {
        sender.reserve().await.unwrap().send(Bytes::from_static(b"abc"));
        sender.reserve().await.unwrap().fail(BodyError::Idle);
    }));
    body
}

impl Resettable for tokio::io::DuplexStream {
    fn is_reset(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn the_first_bytes_are_read_together_with_what_came_behind_them() {
    let first = || Bytes::from_static(b"GET / ");
    let mut buffer = [0; 64];
    let (mut client, socket) = tokio::io::duplex(64);
    client.write_all(b"HTTP/1.1").await.unwrap();
    let mut watched = delivery::Watched::new(socket, first(), Arc::default(), Arc::default());
    let count = watched.read(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..count], b"GET / HTTP/1.1");

    let (client, socket) = tokio::io::duplex(64);
    let mut watched = delivery::Watched::new(socket, first(), Arc::default(), Arc::default());
    let count = watched.read(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..count], b"GET / ", "nothing came behind them");
    drop(client);
    assert_eq!(watched.read(&mut buffer).await.unwrap(), 0);
}

#[tokio::test]
async fn a_byte_that_came_before_the_answer_does_not_deliver_it() {
    let told = Told::default();
    let server = serving(patient(), told.service(|| Body::full("abc")));
    let mut client = Client::new(&server).await;

    // Both requests are there before the first is answered.
    client.write([GET, GET].concat()).await;
    client.answer().await.unwrap();
    client.answer().await.unwrap();
    assert_eq!(told.all(), []);
    client.write("G").await;

    wait_for("both are delivered", || told.all() == [Delivery::Delivered; 2]).await;
}

#[tokio::test]
async fn answers_on_http_2_are_delivered_or_not() {
    for body in BODIES {
        let told = Told::default();
        let server = serving(patient(), told.service(body));
        let (mut sender, _driver) = http2(&server).await;
        let answer = sender.send_request(request2()).await.unwrap();
        answer.into_body().collect_all().await;
        let again = sender.send_request(request2()).await.unwrap();
        again.into_body().collect_all().await;
        wait_for("the first is delivered", || told.all().contains(&Delivery::Delivered)).await;
    }

    let told = Told::default();
    let server = serving(patient(), told.service(cut));
    let (mut sender, _driver) = http2(&server).await;
    // The reset may overtake the head.
    if let Ok(answer) = sender.send_request(request2()).await {
        answer.into_body().collect_all().await;
    }
    wait_for("a cut one is undelivered", || told.all() == [Delivery::Undelivered]).await;
}

trait CollectAll {
    async fn collect_all(self);
}

impl CollectAll for Incoming {
    async fn collect_all(mut self) {
        while let Some(Ok(_)) = self.frame().await {}
    }
}

#[tokio::test]
async fn watches_are_bounded_and_none_outlives_its_connection() {
    let told = Told::default();
    let kept = Arc::new(Mutex::new(None));
    let (hooks, handle) = (told.clone(), Arc::clone(&kept));
    let server = serving(patient(), move |arrival: Arrival| {
        for _ in 0..130 {
            arrival.peer.delivery.watch(hooks.hook());
        }
        *handle.lock().unwrap() = Some(arrival.peer.delivery.clone());
        async { ok(Body::empty()) }
    });
    let mut client = Client::new(&server).await;

    client.write(GET).await;
    client.answer().await.unwrap();
    assert_eq!(told.all(), [Delivery::Undelivered; 2]);
    client.reset();
    wait_for("all are told", || told.all() == [Delivery::Undelivered; 130]).await;
    kept.lock().unwrap().take().unwrap().watch(told.hook());

    assert_eq!(told.all().len(), 131);
}

#[tokio::test]
async fn h_9_continue_is_sent_only_when_the_body_is_read() {
    let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n";

    let server = serving(patient(), echo);
    let mut client = Client::new(&server).await;
    client.write(head).await;
    assert_eq!(client.answer().await.unwrap(), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write("abc").await;
    assert!(client.answer().await.unwrap().ends_with("[abc]"));

    let server = serving(patient(), |_| async { ok(Body::full("no")) });
    let mut client = Client::new(&server).await;
    client.write(head).await;
    let rest = client.rest().await;
    assert!(rest.starts_with("HTTP/1.1 200 OK\r\n") && rest.ends_with("no"), "{rest}");
}

#[tokio::test]
async fn h_12_lengths_of_answers_without_a_body_are_kept_and_others_follow_the_body() {
    let server = serving(patient(), |arrival: Arrival| async move {
        let (status, length, body) = match arrival.request.uri().path() {
            "/none" => (204, None, Body::empty()),
            "/same" => (304, Some("77"), Body::empty()),
            "/head" => (200, Some("1234"), Body::empty()),
            "/empty" => (200, None, Body::empty()),
            _ => (200, None, Body::full("abc")),
        };
        let mut answer = Response::builder().status(status);
        if let Some(length) = length {
            answer = answer.header("content-length", length);
        }
        answer.body(body).unwrap()
    });
    let table = [
        ("GET /none", None, ""),
        // hyper leaves out what a 304 may say; it does not say something else.
        ("GET /same", None, ""),
        ("HEAD /head", Some("1234"), ""),
        ("GET /empty", Some("0"), ""),
        ("HEAD /full", Some("3"), ""),
        ("GET /full", Some("3"), "abc"),
    ];
    for (line, length, body) in table {
        let mut client = Client::new(&server).await;

        client.write(format!("{line} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).await;
        let answer = client.rest().await;

        let (head, got) = answer.split_once("\r\n\r\n").unwrap();
        let lengths: Vec<_> =
            head.lines().filter_map(|line| line.strip_prefix("content-length: ")).collect();
        assert_eq!((lengths, got), (length.into_iter().collect(), body), "{line}");
        assert!(!head.contains("transfer-encoding"), "{line}");
    }
}

#[test]
fn each_worker_serves_what_it_accepts_on_its_own_thread_until_the_drain() {
    let workers = NonZeroUsize::new(2).unwrap();
    let listeners = bind("127.0.0.1:0".parse().unwrap(), workers, &patient()).unwrap();
    let (address, drain) = (listeners[0].address(), Drain::new());
    let threads: Vec<_> = listeners
        .into_iter()
        .map(|listener| {
            let drain = drain.clone();
            std::thread::spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(listener.serve(echo, Tasks::new(), drain)).unwrap()
            })
        })
        .collect();

    for _ in 0..20 {
        use std::io::{Read as _, Write as _};
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("[]"));
    }
    drain.begin(LONG);

    for thread in threads {
        assert_eq!(thread.join().unwrap(), Served { cut: 0 });
    }
}

#[tokio::test]
async fn h_8_the_version_of_an_answer_is_ours() {
    let server = serving(patient(), |_| async {
        let mut answer = ok(Body::full("abc"));
        *answer.version_mut() = http::Version::HTTP_10;
        answer
    });
    let mut client = Client::new(&server).await;

    client.write(GET).await;

    assert!(client.answer().await.unwrap().starts_with("HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn a5_a_body_that_was_not_read_is_never_taken_for_a_request() {
    let arrivals = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&arrivals);
    let server = serving(patient(), move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
        async { ok(Body::full("refused")) }
    });
    let mut client = Client::new(&server).await;

    let rest = "DELETE /v1/x HTTP/1.1\r\nhost: a\r\n\r\n";
    let length = rest.len() + 10;
    client.write(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n")).await;
    client.answer().await.unwrap();
    drop(client.stream.write_all(rest.as_bytes()).await);
    client.rest().await;

    assert_eq!(arrivals.load(Ordering::SeqCst), 1);
}

/// What hyper does with each input of standards 4.2 and some of 4.4: the status that it answers by
/// itself, or what it hands over; and whether it keeps the connection. What is handed over and
/// should not be is for the HTTP codec to refuse.
#[tokio::test]
async fn h_20_what_becomes_of_odd_requests() {
    const CHUNK: &str = "3\r\nabc\r\n0\r\n\r\n";
    let chunked = |coding: &str| post(&format!("transfer-encoding: {coding}"), CHUNK);
    let length = |length: &str| post(&format!("content-length: {length}"), "abc");
    let chunks = |chunks: &str| post("transfer-encoding: chunked", chunks);
    let field = |field: &str| format!("GET / HTTP/1.1\r\nhost: a\r\n{field}\r\n\r\n");
    let line = |line: &str| format!("{line}\r\nhost: a\r\n\r\n");
    let both = "passed / transfer-encoding=chunked [abc] close";
    let broken = "passed / transfer-encoding=chunked broken close";
    let plain = "passed / [] keep";
    let table = [
        ("a", post("content-length: 3\r\ntransfer-encoding: chunked", CHUNK), both),
        ("a", post("transfer-encoding: chunked\r\ncontent-length: 3", CHUNK), both),
        ("b", chunked("gzip"), "400 close"),
        ("b", chunked("chunked, gzip"), "400 close"),
        ("c", chunked("gzip, chunked"), "passed / transfer-encoding=gzip, chunked [abc] keep"),
        ("d", chunked("xchunked"), "400 close"),
        (
            "d",
            chunked("chunked, chunked"),
            "passed / transfer-encoding=chunked, chunked [abc] keep",
        ),
        (
            "d",
            chunked("chunked\r\ntransfer-encoding: chunked"),
            "passed / transfer-encoding=chunked transfer-encoding=chunked [abc] keep",
        ),
        ("d", chunked("\x0bchunked"), "400 close"),
        ("d", chunked("\"chunked\""), "400 close"),
        ("d", chunked("chunked\t"), "passed / transfer-encoding=chunked [abc] keep"),
        ("d", chunked("chunked,"), "400 close"),
        ("d", chunked("Chunked"), "passed / transfer-encoding=Chunked [abc] keep"),
        ("e", chunked("chunked").replace("HTTP/1.1", "HTTP/1.0"), "400 close"),
        ("f", length("3\r\ncontent-length: 3"), "passed / content-length=3 [abc] keep"),
        ("f", length("3, 3"), "400 close"),
        ("f", length("3\r\ncontent-length: 4"), "400 close"),
        ("f", length("+3"), "400 close"),
        ("f", length("0x3"), "400 close"),
        ("f", length("-1"), "400 close"),
        ("f", length("99999999999999999999"), "400 close"),
        ("g", field("x-y : z"), "400 close"),
        ("h", field("x-y: z\r\n z"), "400 close"),
        ("i", field("").replace("host", " host"), "400 close"),
        ("j", field("x-y: a\0b"), "400 close"),
        ("j", field("x-y: a\rb"), "400 close"),
        ("j", field("x-y: a\x7fb"), "400 close"),
        ("j", "GET / HTTP/1.1\nhost: a\n\n".to_owned(), plain),
        ("k", chunks("FFFFFFFFFFFFFFFFF\r\n"), broken),
        ("k", chunks(&format!("1;{}\r\n", "x".repeat(20000))), broken),
        ("k", chunks("3\r\nabcd0\r\n\r\n"), broken),
        ("k", chunks("0x3\r\nabc\r\n0\r\n\r\n"), broken),
        ("k", chunks("3 \r\nabc\r\n0\r\n\r\n"), "passed / transfer-encoding=chunked [abc] keep"),
        ("k", chunks("3\nabc\n0\n\n"), broken),
        (
            "k",
            chunks("3\r\nabc\r\n0\r\nx: y\r\n\r\n"),
            "passed / transfer-encoding=chunked [abc] keep",
        ),
        ("m", field(&"x: y\r\n".repeat(99)).replace("\r\n\r\n\r\n", "\r\n\r\n"), plain),
        ("m", field(&"x: y\r\n".repeat(100)).replace("\r\n\r\n\r\n", "\r\n\r\n"), "431 close"),
        ("m", field(&format!("x: {}", "y".repeat(65536))), "431 close"),
        ("o", line(&format!("GET /{} HTTP/1.1", "y".repeat(20000))), "passed (long) [] keep"),
        ("p", length("3").replace("POST", "GET"), "passed / content-length=3 [abc] keep"),
        ("H-15", "GET / HTTP/1.1\r\n\r\n".to_owned(), plain),
        ("H-15", field("host: b"), plain),
        ("H-34", line("GET http://b/x HTTP/1.1"), "passed http://b/x [] keep"),
        ("H-34", line("OPTIONS * HTTP/1.1"), "passed * [] keep"),
        // A 2xx to CONNECT has no body and ends HTTP: it must never be given.
        ("H-11", line("CONNECT b:443 HTTP/1.1"), "200 close"),
        ("H-11", field("connection: upgrade\r\nupgrade: websocket"), plain),
        // The http crate cuts a fragment off without a word.
        ("H-33", line("GET /a#b HTTP/1.1"), "passed /a [] keep"),
        ("H-33", line("GET /\u{e9} HTTP/1.1"), "passed /\u{e9} [] keep"),
        ("H-33", line("GET /a\\b HTTP/1.1"), "passed /a\\b [] keep"),
        ("", line("GET  / HTTP/1.1"), "400 close"),
        ("", line("\r\n\r\nGET / HTTP/1.1"), plain),
        ("", line("GET / HTTP/1.2"), "400 close"),
        ("", line("GET / HTTP/2.0"), "400 close"),
        ("", "GET / HTTP/1.0\r\n\r\n".to_owned(), "passed / [] close"),
    ];
    for (rule, bytes, right) in table {
        let server = serving(patient(), describe);
        let mut client = Client::new(&server).await;

        client.write(&bytes).await;
        let answer = client.answer().await.unwrap();
        drop(client.stream.write_all(GET.as_bytes()).await);
        let is_kept = client.answer().await.is_some();

        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let what = if body.is_empty() { head.get(9..12).unwrap() } else { body };
        let got = format!("{what} {}", if is_kept { "keep" } else { "close" });
        assert_eq!(got, right, "{rule}: {:?}", &bytes[..bytes.len().min(200)]);
    }
}

#[tokio::test]
async fn h_20l_a_body_that_ends_early_is_broken() {
    let server = serving(patient(), describe);
    let mut client = Client::new(&server).await;

    client.write(post("content-length: 9", "abc")).await;
    client.stream.shutdown().await.unwrap();

    assert!(client.rest().await.ends_with("passed / content-length=9 broken"));
}

fn post(headers: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: a\r\n{headers}\r\n\r\n{body}")
}

/// Answers with what arrived.
async fn describe(arrival: Arrival) -> Response<Body> {
    let (head, body) = arrival.request.into_parts();
    let mut told = "passed".to_owned();
    if head.uri.path().len() < 100 {
        told.push_str(&format!(" {}", head.uri));
    } else {
        told.push_str(" (long)");
    }
    for name in ["content-length", "transfer-encoding"] {
        for value in head.headers.get_all(name) {
            told.push_str(&format!(" {name}={}", value.as_bytes().escape_ascii()));
        }
    }
    match collect(Body::incoming(body, head.version), 1 << 20, &Budget::new(1 << 20), LONG).await {
        Ok(collected) => told.push_str(&format!(" [{}]", collected.bytes().escape_ascii())),
        Err(_) => told.push_str(" broken"),
    }
    ok(Body::full(told))
}
