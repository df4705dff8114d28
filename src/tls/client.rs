//! How the upstream is judged, and what it is shown.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use rustls::ClientConfig;
use rustls::client::ResolvesClientCert;
use rustls::sign::SingleCertAndKey;
use rustls_pki_types::{ServerName, UnixTime};
use tokio_rustls::TlsConnector;

use super::files::{TlsError, not_after, pair, roots, system_roots};
use super::{protocols, provider};
use crate::reread::Contents;

/// The files of the way to the upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The authorities that may speak for the upstream; the system's without it.
    pub ca: Option<PathBuf>,
    /// The client certificate that the upstream is shown, and its key.
    pub pair: Option<(PathBuf, PathBuf)>,
}

impl ClientFiles {
    /// All of them, in the order in which [`ClientTls::replace`] wants their contents.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = self.ca.iter().cloned().collect();
        if let Some((cert, key)) = &self.pair {
            paths.extend([cert.clone(), key.clone()]);
        }
        paths
    }
}

/// A text that is neither a DNS name nor an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a server name is a DNS name or an IP address")]
pub struct ServerNameError;

/// Our side of handshakes with the upstream.
pub struct ClientTls {
    name: ServerName<'static>,
    has_ca: bool,
    config: ArcSwap<ClientConfig>,
    /// Grows with each configuration, so that connections under an older one are not used again.
    generation: AtomicU64,
    not_after: AtomicU64,
}

impl ClientTls {
    /// Checks a name for [`ClientTls::new`]: what the upstream's certificate must be for, and is
    /// asked for by SNI.
    ///
    /// # Errors
    ///
    /// [`ServerNameError`].
    pub fn server_name(text: &str) -> Result<ServerName<'static>, ServerNameError> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        ServerName::try_from(bare.to_owned()).map_err(|_| ServerNameError)
    }

    /// Out of the contents of [`ClientFiles::paths`]; `files` says which of them there are.
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub fn new(
        name: ServerName<'static>,
        files: &ClientFiles,
        contents: &Contents,
    ) -> Result<Self, TlsError> {
        let has_ca = files.ca.is_some();
        let (config, end) = configure(has_ca, contents)?;
        Ok(Self {
            name,
            has_ca,
            config: ArcSwap::from_pointee(config),
            generation: AtomicU64::new(0),
            not_after: AtomicU64::new(end),
        })
    }

    /// Takes other contents for the connections that come.
    ///
    /// # Errors
    ///
    /// See [`TlsError`]; what was in force stays.
    pub fn replace(&self, contents: &Contents) -> Result<(), TlsError> {
        let (config, end) = configure(self.has_ca, contents)?;
        self.config.store(Arc::new(config));
        self.not_after.store(end, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// When the client certificate's time ends, in seconds since 1970; 0 without one.
    pub fn not_after(&self) -> u64 {
        self.not_after.load(Ordering::Relaxed)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// For one handshake.
    pub(crate) fn connector(&self) -> (TlsConnector, ServerName<'static>) {
        (TlsConnector::from(self.config.load_full()), self.name.clone())
    }
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls").field("name", &self.name).finish_non_exhaustive()
    }
}

fn configure(has_ca: bool, contents: &Contents) -> Result<(ClientConfig, u64), TlsError> {
    let provider = provider();
    let first = usize::from(has_ca);
    let roots = if has_ca { roots(contents.at(0))? } else { system_roots()? };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unusable)?
        .with_root_certificates(roots);
    let mut end = 0;
    let mut config = if contents.len() > first {
        let (cert, key) = (contents.at(first), contents.at(first.saturating_add(1)));
        let pair = pair(cert, key, UnixTime::now(), &provider)?;
        end = pair.cert.first().and_then(not_after).unwrap_or_default();
        let shown: Arc<dyn ResolvesClientCert> = Arc::new(SingleCertAndKey::from(pair));
        builder.with_client_cert_resolver(shown)
    } else {
        builder.with_no_client_auth()
    };
    config.alpn_protocols = protocols();
    config.enable_early_data = false;
    Ok((config, end))
}
