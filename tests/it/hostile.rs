//! F12 and F16: a network that parts, and clients that try to make the sidecar hold more than it may.
//!
//! Memory is the process's own, and what it may grow by is far below what an
//! attack sends and far above what an allocator keeps.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::process::{Home, Process};
use crate::support::{Act, THINGS, Upstream, wait};

const CONFIRM: (&str, &str) = ("effect-confirm", "true");

fn serves(process: &Process) {
    assert_eq!(process.agent().get("/things").status, 200);
}

fn upstream() -> Upstream {
    Upstream::start(|_| Act::json(200, r#"{"id":1}"#))
}

/// A listener whose queue is full, so that the system drops what would connect: what a partition looks
/// like before a connection stands.
struct Parted {
    listener: Socket,
    address: SocketAddr,
    queued: Vec<Socket>,
}

impl Parted {
    fn new() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut queued = Vec::new();
        loop {
            let next = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            if next.connect_timeout(&address.into(), Duration::from_millis(300)).is_err() {
                return Self { listener, address, queued };
            }
            assert!(queued.len() < 16, "the system has a queue where none was asked for");
            queued.push(next);
        }
    }

    /// The network is whole again: the answers of an upstream.
    fn heal(self) {
        drop(self.queued);
        let listener = TcpListener::from(self.listener);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || answers(stream));
            }
        });
    }
}

fn answers(mut stream: TcpStream) {
    let mut seen = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        seen.extend_from_slice(&chunk[..count]);
        if seen.ends_with(b"{}") {
            seen.clear();
            let answer = "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\n\
                          content-length: 2\r\n\r\n{}";
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

#[test]
fn f12_a_partition_before_the_connection_sends_nothing_and_the_same_key_is_free_after_it() {
    let parted = Parted::new();
    let home = Home::new(THINGS, parted.address);
    let process = home.start_configured("timeouts: { connect_ms: 200 }\n");
    let key = ("idempotency-key", "order-1");
    let mut agent = process.agent();

    let lost = agent.post("/things", &[CONFIRM, key], "{}");
    assert_eq!((lost.status, lost.code().as_str()), (504, "not_sent"), "{}", lost.text());
    assert_eq!(lost.report()["outcome"], "rejected");
    assert_eq!(lost.json()["error"]["details"]["sent"], false);

    parted.heal();
    let again = wait::until("the network is whole", || {
        let again = agent.post("/things", &[CONFIRM, key], "{}");
        (again.status == 201).then_some(again)
    });
    assert_eq!(again.report()["outcome"], "accepted");
    let accepted = "SELECT count(*) || '' FROM entries WHERE state = 'accepted'";
    wait::until("the finish", || (home.query(accepted) == ["1"]).then_some(()));
}

#[test]
fn f12_a_partition_after_the_request_is_unknown_and_its_key_is_not_sent_again() {
    let (_cut, never) = std::sync::mpsc::channel();
    let never = std::sync::Mutex::new(Some(never));
    let upstream = Upstream::start(move |_| match never.lock().unwrap().take() {
        Some(never) => Act::After(never, Box::new(Act::Close)),
        None => Act::json(201, "{}"),
    });
    let home = Home::new(THINGS, upstream.address);
    let process = home.start_configured("timeouts: { head_ms: 300 }\n");
    let key = ("idempotency-key", "order-1");
    let mut agent = process.agent();

    let lost = agent.post("/things", &[CONFIRM, key], "{}");
    assert_eq!(lost.status, 504, "{}", lost.text());
    assert_eq!(lost.report()["outcome"], "unknown");
    let entry = lost.report()["entry"].clone();

    let repeat = agent.post("/things", &[CONFIRM, key], "{}");
    assert_eq!(repeat.status, 409, "{}", repeat.text());
    assert!(repeat.text().contains(entry.as_str().unwrap()));
    assert_eq!(upstream.count("POST"), 1);
}

#[test]
fn f16_heads_and_bodies_that_never_end_hold_little_and_nobody_else_up() {
    let upstream = upstream();
    let home = Home::new(THINGS, upstream.address);
    let process = home.start();
    serves(&process);
    let before = process.resident_mib();
    let mut held: Vec<TcpStream> = Vec::new();
    for index in 0..600 {
        let mut stream = TcpStream::connect(process.data).unwrap();
        let begun: &[u8] = if index % 2 == 0 {
            b"GET /things HTTP/1.1\r\nhost: p\r\nx-slow: "
        } else {
            b"POST /things HTTP/1.1\r\nhost: p\r\ncontent-length: 1000000\r\n\r\n{"
        };
        stream.write_all(begun).unwrap();
        held.push(stream);
    }
    serves(&process);
    assert_eq!(process.telemetry("/livez").status, 200);
    let grown = process.resident_mib() - before;
    assert!(grown < 48, "600 slow clients hold {grown} MiB");
    assert_eq!(upstream.count("POST"), 0);
}

#[test]
fn f16_what_is_larger_or_deeper_than_may_be_is_refused_and_not_held() {
    let upstream = upstream();
    let home = Home::new(THINGS, upstream.address);
    let process = home.start();
    serves(&process);
    let before = process.resident_mib();

    // 100 MiB in chunks, as long as anybody takes them.
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 65536], b"\r\n"].concat();
    let mut sending = TcpStream::connect(process.data).unwrap();
    sending
        .write_all(
            b"POST /things HTTP/1.1\r\nhost: p\r\neffect-confirm: true\r\n\
              content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .unwrap();
    let taken = (0..1600).take_while(|_| sending.write_all(&chunk).is_ok()).count();
    assert!(taken < 1600, "all of 100 MiB was taken");

    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let refused = process.agent().post("/things", &[CONFIRM], &deep);
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (400, "invalid_json"),
        "{}",
        refused.text()
    );
    let message = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"a","arguments":{deep}}}}}"#
    );
    let accept = ("accept", "application/json, text/event-stream");
    let refused = process.agent().post("/mcp", &[accept], &message);
    assert_eq!(refused.status, 400, "{}", refused.text());
    let coded = [CONFIRM, ("content-encoding", "gzip")];
    assert_eq!(process.agent().post("/things", &coded, "\u{1f}bomb").status, 415);

    for header in ["a: b\r\n", "aaaaaaaaaaaaaaaaaaaaaaaa: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n"] {
        let mut stream = TcpStream::connect(process.data).unwrap();
        stream.write_all(b"GET /things HTTP/1.1\r\nhost: p\r\n").unwrap();
        let block = header.repeat(1000);
        // It ends where the head is too large: by an answer, by a reset, or by both.
        let taken = (0..1000).take_while(|_| stream.write_all(block.as_bytes()).is_ok()).count();
        let mut answer = String::new();
        let _gone = stream.read_to_string(&mut answer);
        assert!(taken < 1000, "a million headers were taken");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    serves(&process);
    let grown = process.resident_mib() - before;
    assert!(grown < 48, "{grown} MiB stay");
    assert_eq!(upstream.count("POST"), 0);
}

#[test]
fn f16_streams_that_are_reset_as_they_open_end_their_connection_and_no_other() {
    let upstream = upstream();
    let home = Home::new(THINGS, upstream.address);
    let process = home.start();
    serves(&process);
    let before = process.resident_mib();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(process.data).unwrap();
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            .unwrap();
        let mut frames = Vec::new();
        for id in (1_u32..20_000).step_by(2) {
            // :method GET, :scheme http, :path /things, :authority p
            let block = b"\x82\x86\x04\x07/things\x01\x01p";
            frames.extend_from_slice(&[0, 0, u8::try_from(block.len()).unwrap(), 1, 5]);
            frames.extend_from_slice(&id.to_be_bytes());
            frames.extend_from_slice(block);
            frames.extend_from_slice(&[0, 0, 4, 3, 0]);
            frames.extend_from_slice(&id.to_be_bytes());
            frames.extend_from_slice(&[0, 0, 0, 8]);
        }
        // Cut by the server in the middle.
        let _cut = stream.write_all(&frames);
        let _half = stream.shutdown(Shutdown::Write);
        let mut told = Vec::new();
        let _gone = stream.read_to_end(&mut told);
        // GOAWAY with ENHANCE_YOUR_CALM is the last that it says, if the reset has not overtaken it.
        let is_calmed = told.windows(4).any(|four| four == [0, 0, 0, 11]);
        assert!(is_calmed || told.len() < 64, "{} bytes of answers", told.len());
    }
    serves(&process);
    let grown = process.resident_mib() - before;
    assert!(grown < 32, "{grown} MiB stay");
}
