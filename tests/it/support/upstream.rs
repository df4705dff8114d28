//! An upstream on a raw socket: it records every request, byte for byte, and does what its script says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: String,
    pub target: String,
    /// Names in lower case, in order.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

/// What is done with a request.
pub enum Act {
    /// These bytes, then the connection is kept.
    Bytes(Vec<u8>),
    /// These bytes, then the connection is closed.
    Last(Vec<u8>),
    /// The connection is closed without an answer.
    Close,
    /// Waits for the sender to be used or dropped, then does that.
    After(std::sync::mpsc::Receiver<()>, Box<Act>),
    /// Pieces, each flushed by itself; then the connection is closed.
    Pieces(Vec<Vec<u8>>),
    /// These bytes; then, once the sender is used or dropped, those; then the connection is closed.
    Waits(Vec<u8>, std::sync::mpsc::Receiver<()>, Vec<u8>),
}

impl Act {
    /// A JSON answer.
    pub fn json(status: u16, body: &str) -> Self {
        Self::with(status, &[("content-type", "application/json")], body)
    }

    /// An answer with headers.
    pub fn with(status: u16, headers: &[(&str, &str)], body: &str) -> Self {
        let mut text = format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        text.push_str(body);
        Self::Bytes(text.into_bytes())
    }

    /// A stream of events.
    pub fn events(events: &str) -> Self {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        Self::Last(format!("{head}{events}").into_bytes())
    }
}

type Script = dyn Fn(&Received) -> Act + Send + Sync;

pub struct Upstream {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Upstream {
    pub fn start(script: impl Fn(&Received) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let script: Arc<Script> = Arc::new(script);
        let list = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let (script, list) = (Arc::clone(&script), Arc::clone(&list));
                std::thread::spawn(move || serve(stream, &*script, &list));
            }
        });
        Self { address, received }
    }

    /// Everything that arrived so far.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// How many requests arrived with this method.
    pub fn count(&self, method: &str) -> usize {
        self.received.lock().unwrap().iter().filter(|r| r.method == method).count()
    }

    /// The request that arrived last.
    pub fn last(&self) -> Received {
        self.received().pop().expect("nothing arrived")
    }

    /// The only request that arrived.
    pub fn only(&self) -> Received {
        let received = self.received();
        assert_eq!(received.len(), 1, "{received:#?}");
        received.into_iter().next().unwrap()
    }
}

fn serve(stream: TcpStream, script: &Script, list: &Mutex<Vec<Received>>) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(received) = read_request(&mut reader) {
        list.lock().unwrap().push(received.clone());
        let mut act = script(&received);
        while let Act::After(wait, next) = act {
            let _dropped_is_a_go_too = wait.recv();
            act = *next;
        }
        match act {
            Act::Bytes(bytes) => {
                if writer.write_all(&bytes).is_err() {
                    return;
                }
            }
            Act::Last(bytes) => {
                let _gone = writer.write_all(&bytes);
                let _gone = writer.shutdown(Shutdown::Write);
                return;
            }
            Act::Pieces(pieces) => {
                for piece in pieces {
                    if writer.write_all(&piece).and_then(|()| writer.flush()).is_err() {
                        return;
                    }
                }
                let _gone = writer.shutdown(Shutdown::Write);
                return;
            }
            Act::Waits(first, wait, second) => {
                let _gone = writer.write_all(&first).and_then(|()| writer.flush());
                let _dropped_is_a_go_too = wait.recv();
                let _gone = writer.write_all(&second);
                let _gone = writer.shutdown(Shutdown::Write);
                return;
            }
            Act::Close | Act::After(..) => return,
        }
    }
}

/// The next request on a connection; `None` at its end.
pub fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let header = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let mut body = Vec::new();
    if let Some(length) = header("content-length") {
        body = vec![0; length.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
    } else if header("transfer-encoding").is_some() {
        body = super::agent::read_chunked(reader)?;
    }
    Some(Received { method, target, headers, body })
}
