//! TLS on both sides: certificates, keys and trust out of PEM files, and reading them again.
//!
//! rustls with one provider (aws-lc-rs); its types stay in this folder, the listener and the
//! connector. Both sides speak TLS 1.2 and 1.3 and offer `h2` and `http/1.1`. Early data is off on
//! both: what can be replayed by whoever saw it is no proof that somebody asked (standards H-25).
//!
//! [`ServerTls`] is what a port shows (the data port, and the admin API's on a network), [`ClientTls`] what the upstream is shown and judged
//! by. Each holds one whole configuration that is swapped at once when its files change: a handshake
//! has the old one or the new one, and connections that stand are not touched. Resumption belongs to
//! a configuration too, so a client whose authority was taken away cannot resume past it.
//!
//! What can go wrong is told with the file and what to do ([`TlsError`]): at the start it is fatal,
//! later the last good configuration stays ([`crate::reread`]). What a key or a certificate holds is
//! in no error.

mod client;
mod files;
mod peer;
mod server;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod wire;

pub use client::{ClientFiles, ClientTls, ServerNameError};
pub use files::TlsError;
pub use peer::{San, subject};
pub use server::{ServerFiles, ServerTls};
pub use wire::Wire;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// What both sides offer, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", HTTP1];

const HTTP1: &[u8] = b"http/1.1";

fn protocols() -> Vec<Vec<u8>> {
    PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
