//! `takeback healthcheck`: a probe for images that have no shell and no `curl`.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;

use super::exit::{self, Failure};
use super::out;

/// How long one step of the exchange may take: below the second that the kubelet and Docker's own
/// checks commonly wait, twice.
const STEP: Duration = Duration::from_millis(800);

/// The longest answer that is read, in bytes.
const MAX_ANSWER: u64 = 64 * 1024;

/// Which probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Probe {
    /// Its threads run
    Live,
    /// It takes calls: policy in force, ledger writable, not draining
    Ready,
    /// Its start is over
    Startup,
}

impl Probe {
    fn path(self) -> &'static str {
        match self {
            Self::Live => "/livez",
            Self::Ready => "/readyz",
            Self::Startup => "/startupz",
        }
    }
}

/// Asks, says what fails, and ends with 0 or 1: what Docker takes for healthy and unhealthy.
pub(super) fn run(address: SocketAddr, probe: Probe) -> Result<u8, Failure> {
    let address = reachable(address);
    match ask(address, probe.path()) {
        Ok((200, _)) => Ok(exit::OK),
        Ok((status, body)) => {
            out::complain(&format!("takeback: {} is {status}{}", probe.path(), faults(&body)));
            Ok(exit::FINDINGS)
        }
        Err(error) => {
            let text = format!("takeback: nothing answers on {address}: {error}");
            out::complain(&text);
            Ok(exit::FINDINGS)
        }
    }
}

/// Where a listener on all addresses is reached from its own host.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn ask(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, STEP)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    let no_http = || io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(no_http)?;
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    Ok((status.ok_or_else(no_http)?, body.to_owned()))
}

/// The checks that fail, and why.
fn faults(body: &str) -> String {
    let answer: Value = serde_json::from_str(body).unwrap_or_default();
    let checks = answer.get("checks").and_then(Value::as_object);
    let failing = checks
        .into_iter()
        .flatten()
        .filter_map(|(name, check)| Some(format!("; {name}: {}", check.get("why")?.as_str()?)));
    out::clean(&failing.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_asked_on_loopback() {
        for (given, asked) in [
            ("0.0.0.0:9464", "127.0.0.1:9464"),
            ("[::]:9464", "[::1]:9464"),
            ("10.1.2.3:80", "10.1.2.3:80"),
        ] {
            assert_eq!(reachable(given.parse().unwrap()), asked.parse().unwrap());
        }
    }

    #[test]
    fn what_fails_is_told_with_its_reason() {
        let body = r#"{"checks":{"policy":{"ok":true},"ledger":{"ok":false,"why":"full"}}}"#;
        assert_eq!(faults(body), "; ledger: full");
        assert_eq!(faults("no json"), "");
    }
}
