//! A database that dies, stands still, loses answers or is not who it says.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use super::server::Server;
use super::*;

fn open(url: &str) -> Result<Ledger, OpenError> {
    Ledger::open(&at(url), Options::default(), 1_000).map(|(ledger, _)| ledger)
}

fn at(url: &str) -> Place {
    Place::Postgres(Box::new(Address::parse(url, Some("s3cret")).unwrap()))
}

fn numbered(number: usize) -> Begin {
    let mut begin = Call::default().begin();
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&u64::try_from(number).unwrap().to_be_bytes());
    begin.look.digest = Digest(digest);
    begin
}

/// Waits until the store takes writes again, by itself.
async fn revived(ledger: &Ledger) {
    for _ in 0..1_000 {
        if ledger.heartbeat(5_000).await.is_ok() {
            return;
        }
    }
    panic!("the ledger stays down: {:?}", ledger.health());
}

/// Waits until a begin is taken: a server that has just thawed may be slower than a begin waits.
async fn begun(ledger: &Ledger, call: Call) {
    for digest in 4..=u8::MAX {
        match ledger.begin(Call { digest, ..call }.begin()).await {
            Ok(_) => return,
            Err(LedgerError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the ledger stays down: {:?}", ledger.health());
}

fn all(url: &str) -> Vec<Record> {
    let read = ReadOnly::open(at(url)).unwrap();
    read.list(&Filter { limit: usize::MAX, ..Filter::default() }).unwrap()
}

#[tokio::test]
async fn f9_every_begin_that_started_before_the_server_was_killed_is_there_after_it() {
    let server = Server::start(&["fsync=on"]);
    let ledger = open(&server.url()).unwrap();
    let next = AtomicUsize::new(0);
    let started = Mutex::new(BTreeSet::new());

    for round in 1..=3 {
        let enough = round * 150;
        let is_killed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    while !is_killed.load(Ordering::SeqCst) {
                        let begin = numbered(next.fetch_add(1, Ordering::SeqCst));
                        let entry = begin.entry;
                        match runtime.block_on(ledger.begin(begin)) {
                            Ok(begun) => {
                                assert_eq!(begun, Begun::Started { attempt: 1 });
                                started.lock().unwrap().insert(entry);
                            }
                            Err(LedgerError::Unavailable(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            while started.lock().unwrap().len() < enough {
                std::thread::yield_now();
            }
            server.kill();
            is_killed.store(true, Ordering::SeqCst);
        });
        server.start_again(&["fsync=on"]);
        revived(&ledger).await;
    }

    let started = started.into_inner().unwrap();
    let mut found = BTreeSet::new();
    for record in all(&server.url()) {
        let prior = record.prior;
        if started.contains(&prior.entry) {
            assert_eq!(prior.state, State::Begun);
            found.insert(prior.entry);
        } else {
            // Nobody was told that it started, so nobody dispatched it.
            let fate = (prior.state, prior.cause);
            assert_eq!(fate, (State::Rejected, Some(Cause::NotSent)), "{}", prior.entry);
        }
    }
    assert_eq!(found, started);
}

#[tokio::test]
async fn f9_a_frozen_server_refuses_begins_and_works_on_when_it_thaws() {
    let server = Server::start(&[]);
    let ledger = open(&server.url()).unwrap();
    let first = Call { digest: 1, ..Call::default() };
    let begin = first.begin();
    let entry = begin.entry;
    ledger.begin(begin).await.unwrap();

    server.freeze();
    let refused = ledger.begin(Call { digest: 2, ..first }.begin()).await;
    let again = ledger.begin(Call { digest: 3, ..first }.begin()).await;
    let unfinished = ledger.finish(finish(entry, State::Accepted, None));

    let stalled = Err(LedgerError::Unavailable(Reason::Stalled));
    assert_eq!((refused, again), (stalled.clone(), stalled));
    assert_eq!(unfinished, Finished::Unfinished);
    assert_eq!(ledger.health().down, Some(Reason::Stalled));
    server.thaw();
    revived(&ledger).await;
    begun(&ledger, first).await;
    let prior = ledger.look(first.look()).await.unwrap().by_digest.unwrap();
    assert_eq!(prior.state, State::Accepted, "its finish was kept");
    for record in all(&server.url()) {
        let is_refused = record.prior.digest == Digest([2; 32]);
        assert!(!is_refused || record.prior.state != State::Begun, "nobody dispatched it");
        assert_ne!(record.prior.digest, Digest([3; 32]));
    }
}

/// What a [`Proxy`] does with the next commit of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Lets it pass.
    Never,
    /// Breaks the connection before the server has it.
    Before,
    /// Breaks the connection when the server has made it; its answer is lost.
    After,
}

/// Stands before a server and breaks connections at commits.
struct Proxy {
    address: std::net::SocketAddr,
    cut: Arc<Mutex<Cut>>,
    is_closed: Arc<AtomicBool>,
}

impl Proxy {
    fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            cut: Arc::new(Mutex::new(Cut::Never)),
            is_closed: Arc::new(AtomicBool::new(false)),
        };
        let socket = server.folder().join(".s.PGSQL.5432");
        let (cut, is_closed) = (Arc::clone(&proxy.cut), Arc::clone(&proxy.is_closed));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if is_closed.load(Ordering::SeqCst) {
                    continue;
                }
                let client = client.unwrap();
                let server = UnixStream::connect(&socket).unwrap();
                let is_last = Arc::new(AtomicBool::new(false));
                let (back_from, back_to) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                let is_lost = Arc::clone(&is_last);
                std::thread::spawn(move || answers(back_from, back_to, &is_lost));
                let cut = Arc::clone(&cut);
                let is_closed = Arc::clone(&is_closed);
                std::thread::spawn(move || requests(client, server, &cut, &is_last, &is_closed));
            }
        });
        proxy
    }

    fn url(&self) -> String {
        format!("postgres://takeback@{}/postgres", self.address)
    }

    fn set(&self, cut: Cut) {
        *self.cut.lock().unwrap() = cut;
    }
}

/// Passes messages on, and knows the commits among them by the statement that they run.
fn requests(
    mut client: TcpStream,
    mut server: UnixStream,
    cut: &Mutex<Cut>,
    is_last: &AtomicBool,
    is_closed: &AtomicBool,
) -> Option<()> {
    let mut commit = None;
    let mut is_first = true;
    loop {
        let mut head = vec![0; if is_first { 4 } else { 5 }];
        client.read_exact(&mut head).ok()?;
        let kind = if is_first { 0 } else { head[0] };
        let length = u32::from_be_bytes(head[head.len() - 4..].try_into().unwrap());
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        client.read_exact(&mut body).ok()?;
        is_first = false;
        let mut texts = body.split(|byte| *byte == 0);
        if kind == b'P' {
            let name = texts.next().unwrap().to_vec();
            if texts.next() == Some(b"COMMIT") {
                commit = Some(name);
            }
        } else if kind == b'B' {
            let statement = texts.nth(1).map(<[u8]>::to_vec);
            if commit.is_some() && commit == statement {
                let wanted = std::mem::replace(&mut *cut.lock().unwrap(), Cut::Never);
                match wanted {
                    Cut::Never => {}
                    Cut::Before => {
                        client.shutdown(Shutdown::Both).ok()?;
                        return server.shutdown(Shutdown::Both).ok();
                    }
                    Cut::After => is_last.store(true, Ordering::SeqCst),
                }
            }
        }
        if is_closed.load(Ordering::SeqCst) && !is_last.load(Ordering::SeqCst) {
            client.shutdown(Shutdown::Both).ok()?;
            return server.shutdown(Shutdown::Both).ok();
        }
        server.write_all(&head).ok()?;
        server.write_all(&body).ok()?;
    }
}

/// Passes answers back, but for the one to a commit that is to be lost.
fn answers(mut server: UnixStream, mut client: TcpStream, is_lost: &AtomicBool) -> Option<()> {
    let mut seen = Vec::new();
    let mut buffer = [0; 16_384];
    loop {
        let read = server.read(&mut buffer).ok().filter(|read| *read > 0);
        let Some(read) = read else {
            return client.shutdown(Shutdown::Both).ok();
        };
        if !is_lost.load(Ordering::SeqCst) {
            client.write_all(&buffer[..read]).ok()?;
            continue;
        }
        seen.extend_from_slice(&buffer[..read]);
        if seen.windows(7).any(|window| window == b"COMMIT\0") {
            client.shutdown(Shutdown::Both).ok()?;
            return server.shutdown(Shutdown::Both).ok();
        }
    }
}

#[tokio::test]
async fn f9_a_commit_whose_answer_was_lost_is_read_again_and_has_started() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(&server);
    let ledger = open(&proxy.url()).unwrap();
    let call = Call { key: Some("k1"), ..Call::default() };
    let spend = Some(Spend { nonce: [5; 16], expires_ms: 600_000 });

    proxy.set(Cut::After);
    let begun = ledger.begin(Begin { spend, ..call.begin() }).await;

    assert_eq!(begun, Ok(Begun::Started { attempt: 1 }));
    let prior = ledger.look(call.look()).await.unwrap().by_key.unwrap();
    assert_eq!(prior.state, State::Begun);
    assert_eq!(server.query("SELECT count(*) FROM takeback.history_readable"), ["1"]);
    // A finish whose answer is lost is not written twice.
    proxy.set(Cut::After);
    ledger.finish(finish(prior.entry, State::Accepted, None));
    revived(&ledger).await;
    let prior = ledger.look(call.look()).await.unwrap().by_key.unwrap();
    assert_eq!(prior.state, State::Accepted);
    assert_eq!(server.query("SELECT count(*) FROM takeback.history_readable"), ["2"]);
    assert_eq!(ledger.stats().refused, 0);
}

#[tokio::test]
async fn f9_a_commit_that_never_reached_the_server_has_not_started() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(&server);
    let ledger = open(&proxy.url()).unwrap();
    let call = Call { key: Some("k1"), ..Call::default() };
    let spend = Some(Spend { nonce: [5; 16], expires_ms: 600_000 });

    proxy.set(Cut::Before);
    let refused = ledger.begin(Begin { spend, ..call.begin() }).await;

    assert_eq!(refused, Err(LedgerError::Unavailable(Reason::Unreachable)));
    assert!(all(&server.url()).is_empty());
    revived(&ledger).await;
    let again = ledger.begin(Begin { spend, ..call.begin() }).await;
    assert_eq!(again, Ok(Begun::Started { attempt: 1 }), "its confirmation is still good");
}

#[tokio::test]
async fn f9_a_commit_that_cannot_be_read_again_is_refused_and_withdrawn_later() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(&server);
    let ledger = open(&proxy.url()).unwrap();
    let call = Call::default();

    proxy.set(Cut::After);
    proxy.is_closed.store(true, Ordering::SeqCst);
    let refused = ledger.begin(call.begin()).await;

    assert!(matches!(refused, Err(LedgerError::Unavailable(_))), "{refused:?}");
    proxy.is_closed.store(false, Ordering::SeqCst);
    revived(&ledger).await;
    // Nobody dispatched it: if it was written, it says so now.
    for _ in 0..1_000 {
        let entries = all(&server.url());
        if entries.iter().all(|record| record.prior.cause == Some(Cause::NotSent)) {
            return;
        }
        ledger.heartbeat(6_000).await.unwrap();
    }
    panic!("an attempt that nobody made stays begun");
}

/// A server that takes nothing but TLS, and passwords.
struct Encrypted {
    server: Server,
    port: u16,
    roots: PathBuf,
    others: PathBuf,
}

impl Encrypted {
    fn start() -> Self {
        let server = Server::start(&[]);
        server.query("ALTER USER takeback PASSWORD 's3cret'");
        server.stop();
        let (ca, roots) = authority();
        let (_, others) = authority();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &ca).unwrap();
        let write = |name: &str, text: &str| {
            let path = server.folder().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let roots = write("roots.pem", &roots);
        let others = write("others.pem", &others);
        let cert = write("cert.pem", &cert.pem());
        let key = write("key.pem", &key.serialize_pem());
        server.own(&cert);
        server.own(&key);
        std::fs::write(
            server.data().join("pg_hba.conf"),
            "hostssl all all 127.0.0.1/32 scram-sha-256\n",
        )
        .unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        server.start_again(&[
            "listen_addresses=127.0.0.1",
            &format!("port={port}"),
            "ssl=on",
            &format!("ssl_cert_file={}", cert.display()),
            &format!("ssl_key_file={}", key.display()),
        ]);
        Self { server, port, roots, others }
    }

    fn url(&self, roots: &Path) -> String {
        let (port, roots) = (self.port, roots.display());
        format!("postgres://takeback@localhost:{port}/postgres?sslmode=require&sslrootcert={roots}")
    }
}

fn authority() -> (rcgen::Issuer<'static, rcgen::KeyPair>, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    (rcgen::Issuer::new(params, key), pem)
}

#[tokio::test]
async fn a_certificate_is_verified_and_nothing_falls_back_to_plain_text() {
    let encrypted = Encrypted::start();

    let ledger = open(&encrypted.url(&encrypted.roots)).unwrap();
    let begun = ledger.begin(Call::default().begin()).await;
    assert_eq!(begun, Ok(Begun::Started { attempt: 1 }));
    ledger.close().await;

    let wrong = open(&encrypted.url(&encrypted.others)).unwrap_err();
    assert!(matches!(&wrong, OpenError::Database(_)), "{wrong:?}");
    assert!(!wrong.is_temporary() && wrong.to_string().contains("certificate"), "{wrong}");
    // Its name is not in the certificate.
    let url = encrypted.url(&encrypted.roots).replace("localhost", "127.0.0.1");
    assert!(matches!(open(&url), Err(OpenError::Database(_))));
    let plain = encrypted.url(&encrypted.roots).replace("require", "disable");
    assert!(matches!(open(&plain), Err(OpenError::Database(_))));
    let address = Address::parse(&encrypted.url(&encrypted.roots), Some("wrong")).unwrap();
    let denied = Postgres::open(&address, Options::default(), 1).map(drop).unwrap_err();
    assert!(matches!(&denied, OpenError::Database(_)), "{denied:?}");
    assert!(!denied.to_string().contains("wrong"), "{denied}");
    drop(encrypted.server);
}

#[tokio::test]
async fn a_server_without_tls_is_not_spoken_to_in_plain_text_where_tls_is_asked_for() {
    let server = Server::start(&[]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    server.stop();
    server.start_again(&["listen_addresses=127.0.0.1", &format!("port={port}")]);
    let url = format!("postgres://takeback@127.0.0.1:{port}/postgres");
    assert!(open(&url).is_ok());

    let refused = open(&format!("{url}?sslmode=require"));

    assert!(refused.is_err(), "{refused:?}");
}

#[tokio::test]
async fn a_database_that_is_not_there_may_come() {
    let server = Server::start(&[]);
    server.stop();

    let error = open(&server.url()).unwrap_err();

    assert!(error.is_temporary(), "{error:?}");
    server.start_again(&[]);
    assert!(open(&server.url()).is_ok());
}
