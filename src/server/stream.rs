//! An accepted connection's bytes: plain, or through TLS.

use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::delivery::Resettable;
use crate::tls::Wire;

/// An accepted connection.
pub(super) type Stream = Wire<TlsStream<TcpStream>>;

impl Stream {
    /// The client's own certificate, which a handshake has verified.
    pub(super) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.get_ref().1.peer_certificates()?.first(),
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    pub(super) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

impl Resettable for Stream {
    fn is_reset(&self) -> bool {
        // What cannot be told is taken for the worse.
        !matches!(self.socket().take_error(), Ok(None))
    }
}
