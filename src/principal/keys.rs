//! Public keys as an issuer publishes them (RFC 7517), and signatures by them.
//!
//! A key says which algorithm it is for by its own kind; the token's word for it must be the same.
//! So a token can never choose how it is checked: there are no shared secrets, no `none`, and an RSA
//! key's text is never taken for one.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// The most keys that are taken: issuers have two or three, while they change them.
const MAX_KEYS: usize = 64;

/// How a token says that it is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    EdDsa,
    Es256,
    Ps256,
    Rs256,
}

impl Algorithm {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "EdDSA" => Some(Self::EdDsa),
            "ES256" => Some(Self::Es256),
            "PS256" => Some(Self::Ps256),
            "RS256" => Some(Self::Rs256),
            _ => None,
        }
    }
}

/// Why a document holds no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// It is not a JWK Set.
    #[error("it is no JSON Web Key Set")]
    Form,
    /// None of its keys can check a signature of ours.
    #[error("it holds no RSA (2048 bits or more), P-256 or Ed25519 key for signatures")]
    None,
    /// It holds more than anybody needs.
    #[error("it holds more than 64 keys")]
    TooMany,
}

/// An issuer's keys.
#[derive(Default)]
pub(super) struct Keys(Vec<Key>);

struct Key {
    kid: Option<String>,
    /// What it is said to be for, beyond its kind.
    algorithm: Option<Algorithm>,
    material: Material,
}

enum Material {
    Ed25519(Vec<u8>),
    /// An uncompressed point.
    P256(Vec<u8>),
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Keys {
    /// Reads a JWK Set. Keys of other kinds, for encryption, or damaged are left out.
    pub(super) fn read(text: &[u8]) -> Result<Self, KeysError> {
        let set: Set = serde_json::from_slice(text).map_err(|_| KeysError::Form)?;
        if set.keys.len() > MAX_KEYS {
            return Err(KeysError::TooMany);
        }
        let keys: Vec<Key> = set.keys.into_iter().filter_map(Key::read).collect();
        if keys.is_empty() { Err(KeysError::None) } else { Ok(Self(keys)) }
    }

    /// Whether a key that may have signed the token did. `None`: there is no such key.
    pub(super) fn verify(
        &self,
        algorithm: Algorithm,
        kid: Option<&str>,
        message: &[u8],
        signature: &[u8],
    ) -> Option<bool> {
        let mut is_there = None;
        for key in &self.0 {
            let is_named = kid.is_none() || key.kid.as_deref() == kid;
            let is_for = key.algorithm.is_none_or(|own| own == algorithm);
            if !is_named || !is_for || !key.material.fits(algorithm) {
                continue;
            }
            if key.material.verify(algorithm, message, signature) {
                return Some(true);
            }
            is_there = Some(false);
        }
        is_there
    }
}

impl Key {
    fn read(value: serde_json::Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if jwk.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        // A key that is said to be for something else is for nothing here.
        let algorithm = match &jwk.alg {
            None => None,
            Some(name) => Some(Algorithm::from_name(name)?),
        };
        let bytes = |member: &Option<String>| URL_SAFE_NO_PAD.decode(member.as_deref()?).ok();
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", None) => Material::Rsa { n: bytes(&jwk.n)?, e: bytes(&jwk.e)? },
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
                if x.len() != 32 || y.len() != 32 {
                    return None;
                }
                Material::P256([&[4], x.as_slice(), y.as_slice()].concat())
            }
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(&jwk.x)?),
            _ => return None,
        };
        Some(Self { kid: jwk.kid, algorithm, material })
    }
}

impl Material {
    fn fits(&self, algorithm: Algorithm) -> bool {
        match self {
            Self::Ed25519(_) => algorithm == Algorithm::EdDsa,
            Self::P256(_) => algorithm == Algorithm::Es256,
            Self::Rsa { .. } => matches!(algorithm, Algorithm::Ps256 | Algorithm::Rs256),
        }
    }

    /// `algorithm` fits.
    fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
            Self::P256(key) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key).verify(message, signature)
            }
            Self::Rsa { n, e } => {
                let parameters = match algorithm {
                    Algorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
                    Algorithm::EdDsa | Algorithm::Es256 | Algorithm::Rs256 => {
                        &RSA_PKCS1_2048_8192_SHA256
                    }
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
        };
        verified.is_ok()
    }
}
