//! The gateway of [`prove`](super): it makes effects, counts them, and fails as it is told.
//!
//! It speaks just enough HTTP/1.1 for the sidecar's requests, on raw sockets, because a fault is about
//! bytes: a reset, half an answer. For those that are about streams it speaks [HTTP/2](super::streams).
//! Every even call meets the fault, once; the same call later is served.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Fault, streams};

/// How long no connection is taken, and how long they are taken, in turns.
const REFUSING: (Duration, Duration) = (Duration::from_millis(60), Duration::from_millis(90));

/// How long a late answer takes; the policy's clock for the answer's head is shorter.
const LATE: Duration = Duration::from_millis(900);

/// How long an answer takes whose agent hangs up meanwhile; the policy's clock is longer.
const SLOW: Duration = Duration::from_millis(150);

/// The longest head and the longest body that it reads, in bytes.
pub(super) const MAX: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct World {
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

    /// Whether a call meets the fault now: every other one does, once.
    pub(super) fn meets(&mut self, call: u32) -> bool {
        call.is_multiple_of(2) && self.met.insert(call)
    }

    /// How many effects a call had.
    pub(super) fn effects_of(&self, call: u32) -> u32 {
        self.effects.get(&call).copied().unwrap_or(0)
    }
}

/// A panic of another connection is none of this one's.
pub(super) fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
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
        lock(&self.world).effects_of(call)
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
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) key: Option<String>,
    pub(super) call: Option<u32>,
}

/// The call that a request is about.
pub(super) fn call_of(method: &str, path: &str, body: &[u8]) -> Option<u32> {
    if method == "GET" {
        return path.rsplit('/').next()?.parse().ok();
    }
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    body.get("call")?.as_u64()?.try_into().ok()
}

async fn connection(stream: TcpStream, fault: Fault, world: Arc<Mutex<World>>) {
    if fault.is_of_streams() {
        return streams::connection(stream, fault, world).await;
    }
    let mut stream = BufReader::new(stream);
    while let Some(asked) = read(&mut stream).await {
        match serve(&asked, fault, &world) {
            Served::Answer(made) => {
                if stream.get_mut().write_all(&made.to_bytes()).await.is_err() {
                    return;
                }
            }
            Served::After(time, made) => {
                sleep(time).await;
                if stream.get_mut().write_all(&made.to_bytes()).await.is_err() {
                    return;
                }
            }
            Served::Half(made) => {
                let bytes = made.to_bytes();
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
    let call = call_of(&method, &path, &body);
    Some(Asked { method, path, key, call })
}

pub(super) enum Served {
    After(Duration, Made),
    Answer(Made),
    Close,
    Half(Made),
    Reset,
}

/// An answer.
pub(super) struct Made {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Made {
    fn new(status: u16, body: impl Into<String>) -> Self {
        Self { status, body: body.into() }
    }

    /// As HTTP/1.1 has it.
    fn to_bytes(&self) -> Vec<u8> {
        let Self { status, body } = self;
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        format!("{head}{body}").into_bytes()
    }
}

/// What becomes of a request.
pub(super) fn serve(asked: &Asked, fault: Fault, world: &Mutex<World>) -> Served {
    let mut world = lock(world);
    let Some(call) = asked.call else {
        return Served::Answer(Made::new(404, "{}"));
    };
    if asked.method == "GET" {
        return Served::Answer(match world.effects.get(&call) {
            Some(_) => Made::new(200, format!("{{\"call\":{call}}}")),
            None => Made::new(404, "{}"),
        });
    }
    let is_hit = world.meets(call);
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
    let made = Made::new(201, format!("{{\"call\":{call}}}"));
    if !is_hit {
        return Served::Answer(made);
    }
    match fault {
        Fault::ResetAfter => Served::Reset,
        Fault::HalfAnswer => Served::Half(made),
        Fault::AnswerLost => Served::Close,
        Fault::LateAnswer => Served::After(LATE, made),
        Fault::AgentGone => Served::After(SLOW, made),
        Fault::ServerError => Served::Answer(Made::new(500, "{}")),
        Fault::TooMany => Served::Answer(Made::new(429, "{}")),
        Fault::ConnectRefused
        | Fault::DatabaseKilled
        | Fault::DeliveredTwice
        // What the relay could not do without a lie.
        | Fault::GoawayAfter
        | Fault::GoawayBefore
        | Fault::None
        | Fault::ProxyKilled
        | Fault::ResetBefore => Served::Answer(made),
    }
}
