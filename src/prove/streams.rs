//! The gateway of [`prove`](super) over HTTP/2, which says GOAWAY at either side of a stream.
//!
//! Requests are served by hyper. Between it and the network stands a relay that reads frames and passes
//! them on whole. When a call that is to meet the fault has come, its stream is known, and the relay ends
//! the connection: with a GOAWAY whose last stream is the one before, and the call is never handed over
//! ([`Fault::GoawayBefore`]); or with one that includes it, when its effect is made and its answer is not
//! passed on ([`Fault::GoawayAfter`]). The headers of a request are compressed, but its body, which names
//! the call, is not.
//!
//! A GOAWAY must not lie: where a later stream was handed over already, the earlier one is served.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::Fault;
use super::gateway::{Asked, MAX, Served, World, call_of, lock, serve};
use crate::call::payload::{self, Body, Budget};

/// What a client of HTTP/2 sends first.
const PREFACE: usize = 24;

/// The largest frame that is announced by default; none is larger here.
const FRAME: usize = 16 * 1024;

/// What lies between relay and server at most.
const PIPE: usize = 64 * 1024;

/// How long what is under way may go on after a GOAWAY, and an effect be waited for.
const GRACE: Duration = Duration::from_millis(200);

/// How long a body is waited for.
const BODY: Duration = Duration::from_secs(5);

/// Serves one connection until it ends, or is ended.
pub(super) async fn connection(stream: TcpStream, fault: Fault, world: Arc<Mutex<World>>) {
    let (near, far) = tokio::io::duplex(PIPE);
    let served = Arc::clone(&world);
    let service = service_fn(move |request| {
        let world = Arc::clone(&served);
        async move { Ok::<_, Infallible>(answer(request, fault, &world).await) }
    });
    let serving =
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(far), service);
    // A connection that breaks is what this is about; whichever half ends, the other is dropped.
    tokio::select! {
        ended = serving => drop(ended),
        () = relay(stream, near, fault, &world) => {}
    }
}

async fn answer(
    request: Request<Incoming>,
    fault: Fault,
    world: &Mutex<World>,
) -> Response<http_body_util::Full<Bytes>> {
    let (head, body) = request.into_parts();
    let budget = Budget::new(MAX);
    let body = Body::incoming(body, http::Version::HTTP_2);
    let body = payload::collect(body, MAX, &budget, BODY).await;
    let key = head.headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let asked = body.ok().and_then(|body| {
        let call = call_of(head.method.as_str(), head.uri.path(), body.bytes());
        Some(Asked {
            method: head.method.as_str().to_owned(),
            path: head.uri.path().to_owned(),
            key: key.map(|key| key.trim_matches('"').to_owned()),
            call: Some(call?),
        })
    });
    let (status, body) = match asked.map(|asked| serve(&asked, fault, world)) {
        Some(Served::Answer(made)) => (made.status, made.body),
        // The faults of bytes are HTTP/1.1's.
        Some(Served::After(..) | Served::Close | Served::Half(_) | Served::Reset) | None => {
            (404, "{}".to_owned())
        }
    };
    let mut response = Response::new(http_body_util::Full::new(Bytes::from(body)));
    *response.status_mut() =
        http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::NOT_FOUND);
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// One frame, with its head.
struct Frame {
    bytes: Vec<u8>,
}

/// DATA.
const DATA: u8 = 0;

/// HEADERS.
const HEADERS: u8 = 1;

/// GOAWAY.
const GOAWAY: u8 = 7;

impl Frame {
    async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head).await.ok()?;
        let [a, b, c, ..] = head;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).ok()?;
        if length > FRAME {
            return None;
        }
        let mut bytes = head.to_vec();
        bytes.resize(9 + length, 0);
        from.read_exact(bytes.get_mut(9..)?).await.ok()?;
        Some(Self { bytes })
    }

    /// A GOAWAY without an error.
    fn goaway(last: u32) -> Self {
        let mut bytes = vec![0, 0, 8, GOAWAY, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&last.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        Self { bytes }
    }

    fn kind(&self) -> u8 {
        self.bytes.get(3).copied().unwrap_or(u8::MAX)
    }

    fn ends_stream(&self) -> bool {
        matches!(self.kind(), DATA | HEADERS)
            && self.bytes.get(4).is_some_and(|flags| flags & 1 > 0)
    }

    fn stream(&self) -> u32 {
        let id = self.bytes.get(5..9).and_then(|id| id.try_into().ok());
        id.map_or(0, u32::from_be_bytes) & 0x7fff_ffff
    }

    /// The call that a body names.
    fn call(&self) -> Option<u32> {
        if self.kind() != DATA {
            return None;
        }
        call_of("POST", "/", self.bytes.get(9..)?)
    }

    async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> Option<()> {
        to.write_all(&self.bytes).await.ok()
    }
}

/// Passes frames on in both directions, until the connection ends or is ended by the fault.
async fn relay(stream: TcpStream, near: DuplexStream, fault: Fault, world: &Mutex<World>) {
    let (mut from_client, to_client) = stream.into_split();
    let (mut from_server, mut to_server) = tokio::io::split(near);
    // Frames are written whole: whoever writes has it.
    let to_client = tokio::sync::Mutex::new(to_client);
    // Whether answers are still passed on.
    let is_open = AtomicBool::new(true);
    let back = async {
        while let Some(frame) = Frame::read(&mut from_server).await {
            let mut to_client = to_client.lock().await;
            if is_open.load(Ordering::SeqCst) && frame.write(&mut *to_client).await.is_none() {
                return;
            }
        }
    };
    let forth = async {
        let mut preface = vec![0; PREFACE];
        from_client.read_exact(&mut preface).await.ok()?;
        to_server.write_all(&preface).await.ok()?;
        let mut handed_over = 0;
        loop {
            let frame = Frame::read(&mut from_client).await?;
            let stream = frame.stream();
            let call = frame.call().filter(|_| frame.ends_stream() && stream > handed_over);
            if let Some(call) = call
                && lock(world).meets(call)
            {
                if fault == Fault::GoawayBefore {
                    let goaway = Frame::goaway(stream.saturating_sub(2));
                    goaway.write(&mut *to_client.lock().await).await?;
                    // What came before it is served to its end.
                    sleep(GRACE).await;
                    return None;
                }
                is_open.store(false, Ordering::SeqCst);
                frame.write(&mut to_server).await?;
                let made = async {
                    while lock(world).effects_of(call) == 0 {
                        sleep(Duration::from_millis(1)).await;
                    }
                };
                // An effect that is not made by then is not made: the server goes with the connection.
                drop(timeout(GRACE, made).await);
                return Frame::goaway(stream).write(&mut *to_client.lock().await).await;
            }
            if frame.ends_stream() {
                handed_over = handed_over.max(stream);
            }
            frame.write(&mut to_server).await?;
        }
    };
    // Whichever ends first, the connection ends with it.
    tokio::select! {
        () = back => {}
        _ended = forth => {}
    }
}
