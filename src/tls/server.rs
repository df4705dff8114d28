//! What a port shows, and whom it believes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use rustls_pki_types::UnixTime;
use tokio_rustls::TlsAcceptor;

use super::files::{TlsError, not_after, pair, roots};
use super::{HTTP1, protocols, provider};
use crate::reread::Contents;

/// The files of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, and after it those of its issuers.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities whose clients are let in; with them, a client without a certificate is not.
    pub client_ca: Option<PathBuf>,
}

impl ServerFiles {
    /// All of them, in the order in which [`ServerTls::replace`] wants their contents.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.cert.clone(), self.key.clone()];
        paths.extend(self.client_ca.clone());
        paths
    }
}

/// A port's side of handshakes.
pub struct ServerTls {
    protocols: Vec<Vec<u8>>,
    config: ArcSwap<ServerConfig>,
    not_after: AtomicU64,
}

impl ServerTls {
    /// Out of the contents of [`ServerFiles::paths`].
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub fn new(contents: &Contents) -> Result<Self, TlsError> {
        Self::speaking(protocols(), contents)
    }

    /// As [`ServerTls::new`], for a port that speaks HTTP/1.1 only.
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub fn http1(contents: &Contents) -> Result<Self, TlsError> {
        Self::speaking(vec![HTTP1.to_vec()], contents)
    }

    fn speaking(protocols: Vec<Vec<u8>>, contents: &Contents) -> Result<Self, TlsError> {
        let (config, end) = configure(protocols.clone(), contents)?;
        let config = ArcSwap::from_pointee(config);
        Ok(Self { protocols, config, not_after: AtomicU64::new(end) })
    }

    /// Takes other contents for the handshakes that come; connections that stand keep theirs.
    ///
    /// # Errors
    ///
    /// See [`TlsError`]; what was in force stays.
    pub fn replace(&self, contents: &Contents) -> Result<(), TlsError> {
        let (config, end) = configure(self.protocols.clone(), contents)?;
        self.config.store(Arc::new(config));
        self.not_after.store(end, Ordering::Relaxed);
        Ok(())
    }

    /// When the certificate's time ends, in seconds since 1970.
    pub fn not_after(&self) -> u64 {
        self.not_after.load(Ordering::Relaxed)
    }

    /// For one handshake.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerTls")
    }
}

fn configure(
    protocols: Vec<Vec<u8>>,
    contents: &Contents,
) -> Result<(ServerConfig, u64), TlsError> {
    let provider = provider();
    let pair = pair(contents.at(0), contents.at(1), UnixTime::now(), &provider)?;
    let end = pair.cert.first().and_then(not_after).unwrap_or_default();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unusable)?;
    let builder = if contents.len() > 2 {
        let file = contents.at(2);
        let roots = Arc::new(roots(file)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|_| TlsError::BadCertificate(file.0.to_owned()))?;
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = protocols;
    config.max_early_data_size = 0;
    Ok((config, end))
}
