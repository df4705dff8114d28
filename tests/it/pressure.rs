//! A slow agent slows its upstream: nothing is held for it without bound.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::support::mcp::{NOTES, SESSION, call, events, post, request};
use crate::support::sidecar::Setup;
use crate::support::upstream::read_request;
use crate::support::{Agent, Sidecar};

const ANSWER: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"content\":[]}}\n\n";
/// All that a stream has to give.
const ALL: usize = 40 << 20;
/// What may lie between an upstream and an agent that takes nothing: 16 pieces as large as what is
/// read at once, and the buffers of four sockets.
const MOST: usize = 24 << 20;

/// An upstream that streams as much as is taken, and answers everything else at once.
struct Flood {
    address: SocketAddr,
    taken: Arc<AtomicUsize>,
}

impl Flood {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let count = Arc::clone(&count);
                std::thread::spawn(move || serve(stream.unwrap(), &count));
            }
        });
        Self { address, taken }
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

fn notice() -> String {
    let text = "x".repeat(32 << 10);
    let params = json!({"level": "info", "data": text});
    let message = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
    format!("data: {message}\n\n")
}

fn serve(stream: TcpStream, count: &AtomicUsize) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(received) = read_request(&mut reader) {
        if received.text().contains("\"ping\"") {
            let pong = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
            writer.write_all(format!("{head} {}\r\n\r\n{pong}", pong.len()).as_bytes()).unwrap();
            continue;
        }
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        writer.write_all(head.as_bytes()).unwrap();
        let notice = notice();
        while count.load(Ordering::Acquire) < ALL {
            if writer.write_all(notice.as_bytes()).is_err() {
                return;
            }
            count.fetch_add(notice.len(), Ordering::AcqRel);
        }
        let _gone = writer.write_all(ANSWER.as_bytes());
        return;
    }
}

/// What the upstream got rid of once it gets rid of nothing more, while other calls of the same
/// sidecar are answered: they are the clock, and they show that one slow agent holds nobody else
/// up.
fn settled(upstream: &Flood, sidecar: &Sidecar) -> usize {
    let mut agent = sidecar.agent();
    let (mut taken, mut calls_since) = (upstream.taken(), 0);
    while calls_since < 100 && taken < ALL {
        let pong = post(&mut agent, &request("1", "ping", json!({})));
        assert_eq!(pong.status, 200);
        calls_since += 1;
        if upstream.taken() != taken {
            (taken, calls_since) = (upstream.taken(), 0);
        }
    }
    taken
}

fn ask(sidecar: &Sidecar, method: &str, body: &str) -> Agent {
    let mut agent = sidecar.agent();
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        SESSION,
    ];
    agent.send(method, "/mcp", &headers, body);
    agent
}

#[test]
fn architecture_2_5_a_slow_agent_slows_the_upstream_of_every_kind_of_stream() {
    for (case, method, body) in [
        ("a read", "POST", call("7", "read_note", json!({}), None)),
        ("a write", "POST", call("7", "create_note", json!({}), None)),
        ("a standing stream", "GET", String::new()),
    ] {
        let upstream = Flood::start();
        let mut setup = Setup::new(NOTES);
        // A write's agent does not count as gone before this test is over.
        setup.mcp.stall = std::time::Duration::from_secs(3600);
        let sidecar = setup.start_at(upstream.address);
        let mut agent = ask(&sidecar, method, &body);
        assert_eq!(agent.head().unwrap().status, 200, "{case}");

        let taken = settled(&upstream, &sidecar);

        assert!(taken < MOST, "{case}: {} MiB were taken for nobody", taken >> 20);
        if case == "a write" {
            sidecar.wait_entries(&[("begun", "")]);
        }

        let mut length = 0;
        let mut last = String::new();
        while let Some(line) = agent.line() {
            length += line.len();
            if line.starts_with("data: {\"jsonrpc\":\"2.0\",\"id\":7") {
                last = line;
                break;
            }
        }
        assert!(length > ALL, "{case}: all of it came, {length} bytes");
        let answer = events(&last).pop().expect("the answer");
        match case {
            "a read" => assert_eq!(answer["result"]["_meta"]["effect"]["class"], "read"),
            "a write" => {
                assert_eq!(answer["result"]["_meta"]["effect"]["outcome"], "accepted");
                sidecar.wait_entries(&[("accepted", "")]);
            }
            _ => assert_eq!(answer["result"], json!({"content": []})),
        }
    }
}
