//! A client on a raw socket: it sends exactly the bytes it is told, and reads whole answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer, read whole.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case, in order.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn count(&self, name: &str) -> usize {
        self.headers.iter().filter(|(n, _)| n == name).count()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The report in the header.
    pub fn report(&self) -> serde_json::Value {
        let header = self.header("x-anvil-effect").expect("a report");
        assert_eq!(self.count("x-anvil-effect"), 1, "one report");
        serde_json::from_str(header).unwrap()
    }

    /// The token of a refusal.
    pub fn token(&self) -> String {
        self.json()["confirm"]["token"].as_str().expect("a token").to_owned()
    }

    /// The code of a problem.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().expect("a code").to_owned()
    }
}

/// One connection.
pub struct Agent {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Agent {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        let writer = stream.try_clone().unwrap();
        Self { reader: BufReader::new(stream), writer }
    }

    /// Sends a request and reads its answer.
    pub fn call(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        self.send(method, target, headers, body);
        self.answer(method)
    }

    pub fn get(&mut self, target: &str) -> Answer {
        self.call("GET", target, &[], "")
    }

    pub fn post(&mut self, target: &str, headers: &[(&str, &str)], json: &str) -> Answer {
        let mut all = vec![("content-type", "application/json")];
        all.extend_from_slice(headers);
        self.call("POST", target, &all, json)
    }

    pub fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) {
        let mut text = format!("{method} {target} HTTP/1.1\r\nhost: proxy\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method == "POST" {
            text.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        text.push_str(body);
        self.raw(text.as_bytes());
    }

    /// Sends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).unwrap();
    }

    /// Reads an answer to a request with this method.
    pub fn answer(&mut self, method: &str) -> Answer {
        self.try_answer(method).expect("an answer")
    }

    /// Reads an answer; `None` if the connection ends first.
    pub fn try_answer(&mut self, method: &str) -> Option<Answer> {
        loop {
            let answer = self.head()?;
            if answer.status != 100 {
                return self.body(method, answer);
            }
        }
    }

    /// Reads the head of the next answer, `100` too.
    pub fn head(&mut self) -> Option<Answer> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let status = line.split_whitespace().nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':')?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some(Answer { status, headers, body: Vec::new() })
    }

    fn body(&mut self, method: &str, mut answer: Answer) -> Option<Answer> {
        if method == "HEAD" || answer.status == 204 || answer.status == 304 {
            return Some(answer);
        }
        if let Some(length) = answer.header("content-length") {
            answer.body = vec![0; length.parse().ok()?];
            self.reader.read_exact(&mut answer.body).ok()?;
        } else if answer.header("transfer-encoding").is_some() {
            answer.body = read_chunked(&mut self.reader)?;
        } else {
            self.reader.read_to_end(&mut answer.body).ok()?;
        }
        Some(answer)
    }

    /// Reads one line.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.reader.read_line(&mut line).ok()? > 0).then_some(line)
    }

    /// Whether the other end has closed.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.reader.fill_buf(), Ok([]))
    }
}

pub fn read_chunked(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let size = usize::from_str_radix(line.trim().split(';').next()?, 16).ok()?;
        let mut chunk = vec![0; size + 2];
        if size == 0 {
            loop {
                let mut trailer = String::new();
                reader.read_line(&mut trailer).ok()?;
                if trailer.trim().is_empty() {
                    return Some(body);
                }
            }
        }
        reader.read_exact(&mut chunk).ok()?;
        body.extend_from_slice(&chunk[..size]);
    }
}
