//! PEM files into certificates, keys and roots, with errors that an operator can act on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{Error as PemError, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use crate::reread::FileError;

/// Why certificates, keys or roots cannot be used. Paths are named; contents never are.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate that is damaged, or of a form that is not supported.
    #[error("{} holds a certificate that cannot be read", .0.display())]
    BadCertificate(PathBuf),
    /// A key that is damaged, or of a kind that is not supported.
    #[error("{} holds a private key that cannot be used", .0.display())]
    BadKey(PathBuf),
    /// Sections that are no PEM.
    #[error("{} is damaged: its PEM cannot be read", .0.display())]
    BadPem(PathBuf),
    /// There is nothing in it.
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
    /// The key asks for a pass phrase.
    #[error("{} holds a private key that is encrypted", .0.display())]
    EncryptedKey(PathBuf),
    /// The certificate's time is over.
    #[error("the certificate in {} has expired", .0.display())]
    Expired(PathBuf),
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The key is another certificate's.
    #[error("the key in {} is not that of the certificate in {}", key.display(), cert.display())]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// No certificate is in it.
    #[error("{} holds no certificate in PEM form", .0.display())]
    NoCertificate(PathBuf),
    /// No private key is in it.
    #[error("{} holds no private key in PEM form", .0.display())]
    NoKey(PathBuf),
    /// The system has no certificates to trust.
    #[error("the system has no root certificates")]
    NoRoots,
    /// The certificate's time has not come.
    #[error("the certificate in {} is not valid yet", .0.display())]
    NotYetValid(PathBuf),
    /// rustls takes the parts, and not the whole.
    #[error("the TLS settings do not fit together")]
    Unusable(#[source] rustls::Error),
}

impl TlsError {
    /// What to do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::BadCertificate(_) | Self::NoCertificate(_) => {
                "give a PEM file with the certificate first and then those of its issuers"
            }
            Self::BadKey(_) | Self::NoKey(_) => {
                "give a PEM file with an RSA (2048 bits or more), ECDSA (P-256, P-384, P-521) or \
                 Ed25519 key"
            }
            Self::BadPem(_) | Self::Empty(_) => "write the file again, in PEM form",
            Self::EncryptedKey(_) => {
                "give the key without a pass phrase: `openssl pkey -in KEY -out PLAIN`"
            }
            Self::Expired(_) | Self::NotYetValid(_) => {
                "give a certificate that is valid now, and look at this machine's clock"
            }
            Self::File(error) => error.help(),
            Self::Mismatch { .. } => "give the certificate and the key of one pair",
            Self::NoRoots => {
                "give `upstream.ca_file`, install the system's ca-certificates, or set SSL_CERT_FILE"
            }
            Self::Unusable(_) => "look at the certificates that these settings name",
        }
    }
}

/// What is known of one file: its path and its bytes.
pub(super) type Pem<'a> = (&'a Path, &'a [u8]);

/// A certificate's chain and its key, which belong together and are valid at `now`.
pub(super) fn pair(
    cert: Pem<'_>,
    key: Pem<'_>,
    now: UnixTime,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(cert)?;
    let key_der = private_key(key)?;
    let first = chain.first().ok_or_else(|| TlsError::NoCertificate(cert.0.to_owned()))?;
    is_valid(first, now, cert.0)?;
    let signing = provider
        .key_provider
        .load_private_key(key_der)
        .map_err(|_| TlsError::BadKey(key.0.to_owned()))?;
    let pair = CertifiedKey::new(chain, signing);
    match pair.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(pair)
        }
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(TlsError::Mismatch { cert: cert.0.to_owned(), key: key.0.to_owned() })
        }
        Err(_) => Err(TlsError::BadCertificate(cert.0.to_owned())),
    }
}

/// The authorities in a file.
pub(super) fn roots(file: Pem<'_>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        let added = roots.add(certificate);
        added.map_err(|_| TlsError::BadCertificate(file.0.to_owned()))?;
    }
    Ok(roots)
}

/// The authorities that the system trusts; those that cannot be read are left out.
pub(super) fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "a root certificate of the system cannot be read");
    }
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 { Err(TlsError::NoRoots) } else { Ok(roots) }
}

/// When a certificate's time ends, in seconds since 1970.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Option<u64> {
    // Asked for a time after all others, the check answers with the end that it has passed.
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::from(u32::MAX) << 20));
    match validity(certificate, end_of_time) {
        Err(webpki::Error::CertExpired { not_after, .. }) => Some(not_after.as_secs()),
        _ => None,
    }
}

fn certificates((path, bytes): Pem<'_>) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    is_filled(path, bytes)?;
    let read: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(bytes).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => {
            Err(TlsError::NoCertificate(path.to_owned()))
        }
        Ok(certificates) => Ok(certificates),
        Err(_) => Err(TlsError::BadPem(path.to_owned())),
    }
}

fn private_key((path, bytes): Pem<'_>) -> Result<PrivateKeyDer<'static>, TlsError> {
    is_filled(path, bytes)?;
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| {
        let is_encrypted = holds(bytes, b"ENCRYPTED");
        match error {
            PemError::NoItemsFound if is_encrypted => TlsError::EncryptedKey(path.to_owned()),
            PemError::NoItemsFound => TlsError::NoKey(path.to_owned()),
            _ => TlsError::BadPem(path.to_owned()),
        }
    })
}

fn is_filled(path: &Path, bytes: &[u8]) -> Result<(), TlsError> {
    if bytes.trim_ascii().is_empty() { Err(TlsError::Empty(path.to_owned())) } else { Ok(()) }
}

fn holds(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

fn is_valid(certificate: &CertificateDer<'_>, now: UnixTime, path: &Path) -> Result<(), TlsError> {
    match validity(certificate, now) {
        Err(webpki::Error::CertExpired { .. }) => Err(TlsError::Expired(path.to_owned())),
        Err(webpki::Error::CertNotValidYet { .. }) => Err(TlsError::NotYetValid(path.to_owned())),
        Err(webpki::Error::BadDer) => Err(TlsError::BadCertificate(path.to_owned())),
        // Who trusts it is not for us to say.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Checks a certificate's own time. No root is given, so this never succeeds; the time is looked at
/// before the issuer is looked for.
fn validity(certificate: &CertificateDer<'_>, at: UnixTime) -> Result<(), webpki::Error> {
    let end = EndEntityCert::try_from(certificate)?;
    let usage = KeyUsage::server_auth();
    end.verify_for_usage(webpki::ALL_VERIFICATION_ALGS, &[], &[], at, usage, None, None).map(drop)
}
