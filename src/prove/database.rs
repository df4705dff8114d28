//! The database of [`prove`](super) that dies at a commit: a relay between the sidecar and the one that is
//! there.
//!
//! It reads what the sidecar sends and knows a `COMMIT`. Each [`EVERY`]th is where the database dies, in
//! turns before it has the commit, and when it has made it and nobody was told. Then all connections are
//! gone, and none is taken for [`DEAD`].
//!
//! Reads plain text alone: a database on this machine, on loopback or a Unix socket.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::ledger::{Address, Endpoint};

/// How many commits the database lives.
const EVERY: u32 = 8;

/// How long it is away.
const DEAD: Duration = Duration::from_millis(60);

/// How long the answer to a commit is waited for, which nobody will see.
const COMMIT: Duration = Duration::from_secs(2);

/// The longest message that it passes on, in bytes; those of a batch are far shorter.
const MAX: usize = 128 * 1024 * 1024;

/// A running relay, on a Unix socket in a folder.
#[derive(Debug)]
pub(super) struct Relay {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    /// Whether it dies at all.
    is_armed: AtomicBool,
    commits: AtomicU32,
    /// The number of its deaths.
    deaths: watch::Sender<u32>,
}

impl Relay {
    /// Listens in `folder` for clients of the database at `address`; `None`: it cannot be read between.
    pub(super) fn start(folder: &Path, address: &Address) -> io::Result<Option<Self>> {
        let Some(endpoint) = address.endpoint() else { return Ok(None) };
        let listener = UnixListener::bind(socket(folder))?;
        let (deaths, _) = watch::channel(0);
        let shared = Arc::new(Shared {
            endpoint,
            is_armed: AtomicBool::new(false),
            commits: AtomicU32::new(0),
            deaths,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, Arc::clone(&shared)));
        Ok(Some(Self { shared, _tasks: tasks }))
    }

    /// Whether the database dies from here on.
    pub(super) fn arm(&self, is_armed: bool) {
        self.shared.is_armed.store(is_armed, Ordering::SeqCst);
    }

    /// How often it died.
    pub(super) fn deaths(&self) -> u32 {
        *self.shared.deaths.borrow()
    }
}

/// Where clients find a server that listens in a folder.
fn socket(folder: &Path) -> PathBuf {
    folder.join(".s.PGSQL.5432")
}

async fn listen(listener: UnixListener, shared: Arc<Shared>) {
    let mut deaths = shared.deaths.subscribe();
    let mut died = None;
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let is_dead = died.is_some_and(|died: Instant| died.elapsed() < DEAD);
                // One that comes while the database is dead is dropped.
                if let Ok((client, _)) = accepted && !is_dead {
                    connections.spawn(connection(client, Arc::clone(&shared)));
                }
            }
            died_again = deaths.changed() => {
                if died_again.is_err() {
                    return;
                }
                died = Some(Instant::now());
                connections.shutdown().await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(client: UnixStream, shared: Arc<Shared>) {
    match &shared.endpoint {
        Endpoint::Tcp(host, port) => {
            if let Ok(server) = TcpStream::connect((host.as_str(), *port)).await {
                relay(client, server, &shared).await;
            }
        }
        Endpoint::Unix(path) => {
            if let Ok(server) = UnixStream::connect(path).await {
                relay(client, server, &shared).await;
            }
        }
    }
}

/// Passes on what both say until one ends, or the database dies.
async fn relay(
    client: UnixStream,
    server: impl AsyncRead + AsyncWrite,
    shared: &Shared,
) -> Option<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = tokio::io::split(server);
    // Whether what the server says is still passed on.
    let is_open = AtomicBool::new(true);
    let made = tokio::sync::Notify::new();
    let back = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let count = from_server.read(&mut bytes).await.ok().filter(|count| *count > 0)?;
            let said = bytes.get(..count)?;
            if is_open.load(Ordering::SeqCst) {
                to_client.write_all(said).await.ok()?;
            } else if said.windows(7).any(|window| window == b"COMMIT\0") {
                made.notify_one();
            }
        }
        #[expect(unreachable_code, reason = "gives the block its type")]
        Some(())
    };
    let forth = async {
        // The first message has no kind.
        let first = message(&mut from_client, 0).await?;
        to_server.write_all(&first).await.ok()?;
        let mut commits = HashSet::new();
        loop {
            let message = message(&mut from_client, 1).await?;
            let is_commit = is_commit(&message, &mut commits);
            let death = if is_commit { shared.death() } else { None };
            match death {
                None => to_server.write_all(&message).await.ok()?,
                Some(Death::BeforeCommit) => {}
                Some(Death::AfterCommit) => {
                    is_open.store(false, Ordering::SeqCst);
                    to_server.write_all(&message).await.ok()?;
                    // What comes behind it makes the server do it.
                    let passing = tokio::io::copy(&mut from_client, &mut to_server);
                    let done = async {
                        tokio::select! {
                            () = made.notified() => {}
                            _ended = passing => {}
                        }
                    };
                    drop(timeout(COMMIT, done).await);
                }
            }
            if death.is_some() {
                shared.deaths.send_modify(|deaths| *deaths = deaths.saturating_add(1));
                // It ends with the rest.
                sleep(DEAD).await;
                return Some(());
            }
        }
    };
    // Whichever ends first, the connection ends with it.
    tokio::select! {
        ended = back => ended,
        ended = forth => ended,
    }
}

/// When the database dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    AfterCommit,
    BeforeCommit,
}

impl Shared {
    /// Whether it dies at this commit.
    fn death(&self) -> Option<Death> {
        if !self.is_armed.load(Ordering::SeqCst) {
            return None;
        }
        let commits = self.commits.fetch_add(1, Ordering::SeqCst).saturating_add(1);
        match (commits.is_multiple_of(EVERY), (commits / EVERY).is_multiple_of(2)) {
            (false, _) => None,
            (true, false) => Some(Death::AfterCommit),
            (true, true) => Some(Death::BeforeCommit),
        }
    }
}

/// Reads a message: its kind, of so many bytes, its length, and the rest.
async fn message(from: &mut (impl AsyncRead + Unpin), kind: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; kind + 4];
    from.read_exact(&mut bytes).await.ok()?;
    let length = u32::from_be_bytes(bytes.get(kind..)?.try_into().ok()?);
    let length = usize::try_from(length).ok().filter(|length| (4..=MAX).contains(length))?;
    let head = bytes.len();
    bytes.resize(head + length - 4, 0);
    from.read_exact(bytes.get_mut(head..)?).await.ok()?;
    Some(bytes)
}

/// Whether a message has the server commit. Remembers the statements that do.
fn is_commit(message: &[u8], commits: &mut HashSet<Vec<u8>>) -> bool {
    let (Some(kind), Some(rest)) = (message.first(), message.get(5..)) else { return false };
    let mut texts = rest.split(|byte| *byte == 0);
    let (first, second) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
    match kind {
        // Parse: the statement's name, and its text.
        b'P' => {
            if second.starts_with(b"COMMIT") {
                commits.insert(first.to_owned());
            } else {
                commits.remove(first);
            }
            false
        }
        // Bind: the portal's name, and the statement's.
        b'B' => commits.contains(second),
        b'Q' => first.starts_with(b"COMMIT"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, rest: &[u8]) -> Vec<u8> {
        let length = u32::try_from(rest.len() + 4).unwrap().to_be_bytes();
        [&[kind][..], &length, rest].concat()
    }

    #[test]
    fn a_commit_is_known_as_a_text_and_as_a_statement_that_was_prepared() {
        let mut commits = HashSet::new();
        for (kind, rest, right) in [
            (b'Q', &b"COMMIT\0"[..], true),
            (b'Q', b"BEGIN\0", false),
            (b'B', b"\0s1\0\0\0", false),
            (b'P', b"s1\0COMMIT\0\0\0", false),
            (b'P', b"s2\0SELECT 'COMMIT'\0\0\0", false),
            (b'B', b"\0s1\0\0\0", true),
            (b'B', b"\0s2\0\0\0", false),
            (b'E', b"\0\0\0\0\0", false),
            (b'P', b"s1\0SELECT 1\0\0\0", false),
            (b'B', b"\0s1\0\0\0", false),
            (b'X', b"", false),
        ] {
            let message = message(kind, rest);
            assert_eq!(is_commit(&message, &mut commits), right, "{}", char::from(kind));
        }
        assert!(!is_commit(b"Q", &mut commits));
    }
}
