//! Where the upstream is, and getting a connection to it, through TLS where it wants that.
//!
//! A name is looked up for each connection, so a moved upstream is found without a restart. The
//! addresses are tried in the order of the lookup, each with a fair part of the time that is left,
//! so that one that swallows packets does not use up the time of one that works. A failed handshake
//! is not tried at another address: it is the upstream that answered.
//!
//! With TLS 1.3 a server judges our certificate after we have begun to send; its refusal is an alert
//! that comes in place of the first byte. [`Refusal`] remembers it: a server that never finished its
//! handshake has read no request.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::client::TlsStream;

use super::{NotSentReason, Protocol};
use crate::tls::{ClientTls, Wire};

/// A host and a port, such as `gateway.example:8080`, `10.0.0.7:80` or `[::1]:8080`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    Name(String),
}

/// Why a text is not an [`Authority`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an upstream is `host:port`, without a user, a path or a scheme")]
pub struct AuthorityError;

impl Authority {
    /// From its parts; `host` is a name, an address, or an IPv6 address in brackets.
    pub fn new(host: &str, port: u16) -> Result<Self, AuthorityError> {
        if port == 0 {
            return Err(AuthorityError);
        }
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(inner) = bracketed {
            let address = inner.parse().map_err(|_| AuthorityError)?;
            return Ok(Self { host: Host::Address(IpAddr::V6(address)), port });
        }
        if let Ok(address) = host.parse() {
            return Ok(Self { host: Host::Address(address), port });
        }
        let is_name = !host.is_empty()
            && host.len() <= 253
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        if !is_name {
            return Err(AuthorityError);
        }
        Ok(Self { host: Host::Name(host.to_ascii_lowercase()), port })
    }
}

impl FromStr for Authority {
    type Err = AuthorityError;

    fn from_str(text: &str) -> Result<Self, AuthorityError> {
        let (host, port) = text.rsplit_once(':').ok_or(AuthorityError)?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(AuthorityError);
        }
        let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port = if is_number { port.parse().ok() } else { None };
        Self::new(host, port.ok_or(AuthorityError)?)
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            Host::Address(IpAddr::V4(address)) => write!(f, "{address}:{}", self.port),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// A connection before HTTP.
pub(super) struct Transport {
    wire: Wire<TlsStream<TcpStream>>,
    refusal: Refusal,
    has_read: bool,
    heard: Option<Arc<Notify>>,
}

/// Whether the upstream refused our certificate in place of an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusal(Arc<AtomicBool>);

impl Refusal {
    pub(super) fn has_come(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Transport {
    fn new(wire: Wire<TlsStream<TcpStream>>) -> Self {
        Self { wire, refusal: Refusal::default(), has_read: false, heard: None }
    }

    /// Looks at an error: an alert about certificates before any byte of the upstream's is a refusal.
    fn look(&self, error: &io::Error) {
        let inner = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        let Some(rustls::Error::AlertReceived(alert)) = inner else { return };
        let is_about_us = matches!(
            alert,
            AlertDescription::AccessDenied
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRequired
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateUnknown
                // Of the handshake: a signature in it is wrong. A record that is gets another.
                | AlertDescription::DecryptError
                | AlertDescription::HandshakeFailure
                | AlertDescription::UnknownCA
                | AlertDescription::UnsupportedCertificate
        );
        if is_about_us && !self.has_read {
            tracing::warn!(?alert, "the upstream refuses the client certificate");
            self.refusal.0.store(true, Ordering::Release);
        }
    }
}

impl Transport {
    /// Both sides speak HTTP/2.
    pub(super) fn is_http2(&self, protocol: &Protocol) -> bool {
        match (&self.wire, protocol) {
            (Wire::Plain(_), Protocol::ClearHttp2) => true,
            (Wire::Plain(_), Protocol::Clear | Protocol::Tls(_)) => false,
            (Wire::Tls(stream), _) => stream.get_ref().1.alpn_protocol() == Some(b"h2".as_slice()),
        }
    }

    /// Tells later whether our certificate was refused.
    pub(super) fn refusal(&self) -> Refusal {
        self.refusal.clone()
    }

    /// Is told once, when the first bytes of the upstream's have come.
    pub(super) fn heard(&mut self) -> Arc<Notify> {
        Arc::clone(self.heard.get_or_insert_default())
    }
}

/// Connects before `deadline`, through TLS if the protocol says so.
pub(super) async fn connect(
    to: &Authority,
    protocol: &Protocol,
    deadline: Instant,
) -> Result<Transport, NotSentReason> {
    let stream = connect_any(to, deadline).await?;
    match protocol {
        Protocol::Clear | Protocol::ClearHttp2 => Ok(Transport::new(Wire::Plain(stream))),
        Protocol::Tls(tls) => secure(stream, tls, deadline).await,
    }
}

async fn secure(
    stream: TcpStream,
    tls: &ClientTls,
    deadline: Instant,
) -> Result<Transport, NotSentReason> {
    let (connector, name) = tls.connector();
    match timeout_at(deadline, connector.connect(name, stream)).await {
        Ok(Ok(stream)) => Ok(Transport::new(Wire::Tls(Box::new(stream)))),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the TLS handshake with the upstream failed");
            Err(NotSentReason::Tls)
        }
        Err(_) => Err(NotSentReason::ConnectTimeout),
    }
}

async fn connect_any(to: &Authority, deadline: Instant) -> Result<TcpStream, NotSentReason> {
    let addresses = match &to.host {
        Host::Address(address) => vec![SocketAddr::new(*address, to.port)],
        Host::Name(name) => look_up(name, to.port, deadline).await?,
    };
    connect_first(addresses, deadline).await
}

/// Connects to the first address that takes it. Nothing of a call is touched before one does.
async fn connect_first(
    addresses: Vec<SocketAddr>,
    deadline: Instant,
) -> Result<TcpStream, NotSentReason> {
    let mut reason = NotSentReason::Dns;
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let now = Instant::now();
        let share = deadline.saturating_duration_since(now) / left.max(1);
        left = left.saturating_sub(1);
        match timeout_at(now + share, connect_tcp(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => {
                tracing::debug!(%address, %error, "connecting to the upstream failed");
                reason = NotSentReason::Connect;
            }
            Err(_) => reason = NotSentReason::ConnectTimeout,
        }
    }
    Err(reason)
}

async fn look_up(
    name: &str,
    port: u16,
    deadline: Instant,
) -> Result<Vec<SocketAddr>, NotSentReason> {
    match timeout_at(deadline, tokio::net::lookup_host((name, port))).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => {
            tracing::debug!(name, %error, "looking up the upstream failed");
            Err(NotSentReason::Dns)
        }
        Err(_) => Err(NotSentReason::ConnectTimeout),
    }
}

async fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.wire).poll_read(cx, buffer);
        match &polled {
            Poll::Ready(Err(error)) => this.look(error),
            Poll::Ready(Ok(())) if !this.has_read && buffer.filled().len() > before => {
                this.has_read = true;
                if let Some(heard) = this.heard.take() {
                    heard.notify_one();
                }
            }
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        polled
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().wire).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().wire).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_a_host_and_a_port() {
        let table = [
            ("127.0.0.1:80", Some("127.0.0.1:80")),
            ("[::1]:8080", Some("[::1]:8080")),
            ("[0:0::1]:8080", Some("[::1]:8080")),
            ("Gateway.Example:443", Some("gateway.example:443")),
            ("a_b-c:1", Some("a_b-c:1")),
            ("::1:8080", None),
            ("[::1]", None),
            ("[127.0.0.1]:80", None),
            ("host", None),
            ("host:", None),
            ("host:0", None),
            ("host:+1", None),
            ("host:65536", None),
            (":80", None),
            ("user@host:80", None),
            ("http://host:80", None),
            ("host/path:80", None),
            ("ho st:80", None),
        ];
        for (text, right) in table {
            let got = text.parse::<Authority>().ok().map(|authority| authority.to_string());
            assert_eq!(got.as_deref(), right, "{text}");
        }
    }
    #[tokio::test]
    async fn b4_an_address_that_refuses_is_passed_over_before_a_call_is_touched() {
        let healthy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = healthy.local_addr().unwrap();
        // Bound and not listened on: it refuses, and nobody else gets the port meanwhile.
        let closed = tokio::net::TcpSocket::new_v4().unwrap();
        closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let bad = closed.local_addr().unwrap();
        let deadline = Instant::now() + std::time::Duration::from_secs(60);

        let stream = connect_first(vec![bad, bad, good], deadline).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
        let (_accepted, from) = healthy.accept().await.unwrap();
        assert_eq!(from, stream.local_addr().unwrap());

        let refused = connect_first(vec![bad, bad], deadline).await;
        assert!(matches!(refused, Err(NotSentReason::Connect)));
    }
}
