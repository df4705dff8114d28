//! The gateway of [`prove`](super): it makes effects, counts them, and fails as it is told.
//!
//! It speaks just enough HTTP/1.1 for the sidecar's requests, on raw sockets, because a fault is about
//! bytes: a reset, half an answer. Every even call meets the fault, once; the same call later is served.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Fault;

/// How long no connection is taken, and how long they are taken, in turns.
const REFUSING: (Duration, Duration) = (Duration::from_millis(60), Duration::from_millis(90));

/// How long a late answer takes; the policy's clock for the answer's head is shorter.
const LATE: Duration = Duration::from_millis(900);

/// How long an answer takes whose agent hangs up meanwhile; the policy's clock is longer.
const SLOW: Duration = Duration::from_millis(150);

/// The longest head and the longest body that it reads, in bytes.
const MAX: usize = 64 * 1024;

#[derive(Debug, Default)]
struct World {
    /// Effects by call.
    effects: HashMap<u32, u32>,
    /// Keys that were served, with their call.
    keys: HashMap<String, u32>,
    /// Calls that have met the fault.
    met: HashSet<u32>,
}

impl World {
    /// One delivery of a call: an effect, unless its key was served.
    fn deliver(&mut self, call: u32, key: Option<&String>) {
        if let Some(key) = key
            && self.keys.insert(key.clone(), call).is_some()
        {
            return;
        }
        let effects = self.effects.entry(call).or_default();
        *effects = effects.saturating_add(1);
    }
}

/// A running gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    address: SocketAddr,
    world: Arc<Mutex<World>>,
    _tasks: JoinSet<()>,
}

impl Gateway {
    pub(super) async fn start(fault: Fault) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let world = Arc::new(Mutex::new(World::default()));
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, address, fault, Arc::clone(&world)));
        Ok(Self { address, world, _tasks: tasks })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many effects a call had.
    pub(super) fn effects(&self, call: u32) -> u32 {
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.effects.get(&call).copied().unwrap_or(0)
    }
}

async fn listen(
    listener: TcpListener,
    address: SocketAddr,
    fault: Fault,
    world: Arc<Mutex<World>>,
) {
    let mut listener = Some(listener);
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        let Some(open) = &listener else {
            sleep(REFUSING.0).await;
            // Its port may be held for a moment by what is still closing.
            listener = TcpListener::bind(address).await.ok();
            continue;
        };
        let accepting = async {
            loop {
                let Ok((stream, _)) = open.accept().await else { continue };
                connections.spawn(connection(stream, fault, Arc::clone(&world)));
                while connections.try_join_next().is_some() {}
            }
        };
        if fault == Fault::ConnectRefused {
            tokio::select! {
                () = accepting => {}
                () = sleep(REFUSING.1) => {}
            }
            connections.shutdown().await;
            listener = None;
        } else {
            accepting.await;
        }
    }
}

/// A request, as far as it is looked at.
struct Asked {
    method: String,
    path: String,
    key: Option<String>,
    call: Option<u32>,
}

async fn connection(stream: TcpStream, fault: Fault, world: Arc<Mutex<World>>) {
    let mut stream = BufReader::new(stream);
    while let Some(asked) = read(&mut stream).await {
        match serve(&asked, fault, &world) {
            Served::Answer(bytes) => {
                if stream.get_mut().write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Served::After(time, bytes) => {
                sleep(time).await;
                if stream.get_mut().write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Served::Half(bytes) => {
                let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
                // Either way there is no whole answer.
                drop(stream.get_mut().write_all(half).await);
                return;
            }
            Served::Close => return,
            Served::Reset => {
                // No time to linger makes the close a reset; if it cannot be set, it is a close.
                let stream = stream.into_inner().into_std();
                if let Ok(stream) = stream {
                    let socket = socket2::SockRef::from(&stream);
                    drop(socket.set_linger(Some(Duration::ZERO)));
                }
                return;
            }
        }
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut head = Vec::new();
    loop {
        let before = head.len();
        stream.read_until(b'\n', &mut head).await.ok()?;
        if head.len() == before || head.len() > MAX {
            return None;
        }
        if head.get(before..) == Some(b"\r\n") {
            break;
        }
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let mut length = 0_usize;
    let mut key = None;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        } else if name.eq_ignore_ascii_case("idempotency-key") {
            key = Some(value.trim().trim_matches('"').to_owned());
        }
    }
    if length > MAX {
        return None;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let call = match method.as_str() {
        "GET" => path.rsplit('/').next()?.parse().ok(),
        _ => body.get("call").and_then(|call| call.as_u64()?.try_into().ok()),
    };
    Some(Asked { method, path, key, call })
}

enum Served {
    After(Duration, Vec<u8>),
    Answer(Vec<u8>),
    Close,
    Half(Vec<u8>),
    Reset,
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    format!("{head}{body}").into_bytes()
}

fn serve(asked: &Asked, fault: Fault, world: &Mutex<World>) -> Served {
    let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(call) = asked.call else {
        return Served::Answer(answer("404 Not Found", "{}"));
    };
    if asked.method == "GET" {
        return Served::Answer(match world.effects.get(&call) {
            Some(_) => answer("200 OK", &format!("{{\"call\":{call}}}")),
            None => answer("404 Not Found", "{}"),
        });
    }
    let is_hit = call.is_multiple_of(2) && world.met.insert(call);
    if is_hit && fault == Fault::ResetBefore {
        return Served::Reset;
    }
    // Only the kind that takes a key looks at it.
    let key = asked.key.as_ref().filter(|_| asked.path == "/keyed");
    world.deliver(call, key);
    if is_hit && fault == Fault::DeliveredTwice && asked.path == "/keyed" {
        // Without a key the network alone would double the effect, so only this kind meets it.
        world.deliver(call, key);
    }
    let made = answer("201 Created", &format!("{{\"call\":{call}}}"));
    if !is_hit {
        return Served::Answer(made);
    }
    match fault {
        Fault::ResetAfter => Served::Reset,
        Fault::HalfAnswer => Served::Half(made),
        Fault::AnswerLost => Served::Close,
        Fault::LateAnswer => Served::After(LATE, made),
        Fault::AgentGone => Served::After(SLOW, made),
        Fault::ServerError => Served::Answer(answer("500 Internal Server Error", "{}")),
        Fault::TooMany => Served::Answer(answer("429 Too Many Requests", "{}")),
        Fault::ConnectRefused
        | Fault::DeliveredTwice
        | Fault::None
        | Fault::ProxyKilled
        | Fault::ResetBefore => Served::Answer(made),
    }
}
