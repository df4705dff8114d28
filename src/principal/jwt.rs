//! Tokens that say who calls (RFC 7519), of one issuer.
//!
//! Checked: the signature by one of the issuer's keys, with RS256, PS256, ES256 or EdDSA and what
//! the key itself is for; `iss` and `aud`; `exp`, which must be there, and `nbf`, with half a minute
//! of leeway. `crit` is refused, for nothing critical is understood. The name is made of `iss`, `sub`
//! and `client_id` (or `azp`), so a refreshed token is the same principal.
//!
//! Keys come from a file that is read again when it changes, or from a URL: fetched at the start and
//! every five minutes, and at once when a token names a key that is not known, but not more often
//! than every half minute, so that made-up names cost the issuer nothing. Fetched by whoever waits on
//! [`Jwt::wanted`]; nothing runs here.
//!
//! A token that was verified is remembered by its hash until it expires, so that a caller's next call
//! costs a lookup. What is remembered is forgotten when the keys change.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

pub use super::keys::KeysError;
use super::keys::{Algorithm, Keys};

/// Clocks may differ by this much.
const LEEWAY_S: f64 = 30.0;
/// The longest token, in bytes; a head has no room for a much longer one.
const MAX_TOKEN: usize = 16 * 1024;
/// The longest `sub` or `client_id`, in bytes; OpenID Connect's limit for `sub`.
const MAX_NAME: usize = 255;
/// Verified tokens that are remembered; then all are forgotten at once.
const MAX_KNOWN: usize = 4_096;
/// The least time between two fetches of keys.
pub const FLOOR: Duration = Duration::from_secs(30);
/// How long a call waits for keys that are fetched for its sake.
const WAIT: Duration = Duration::from_secs(2);

/// What stays as it is in a name.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b':').remove(b'@').remove(b'_').remove(b'|');

/// Why a token names nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub enum JwtError {
    /// It is for somebody else.
    Audience,
    /// Its time is over.
    Expired,
    /// It is no token, or lacks what it must have.
    Form,
    /// It is another issuer's.
    Issuer,
    /// There is none.
    Missing,
    /// Its time has not come.
    NotYet,
    /// Its signature is not one by the issuer's keys.
    Signature,
    /// It names a key that the issuer does not have.
    UnknownKey,
}

impl JwtError {
    /// For whoever sent it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Audience => "the token is for another audience",
            Self::Expired => "the token has expired",
            Self::Form => "the token is malformed, or signed in a way that is not taken here",
            Self::Issuer => "the token is of another issuer",
            Self::Missing => "a bearer token is required",
            Self::NotYet => "the token is not valid yet",
            Self::Signature => "the token's signature is not the issuer's",
            Self::UnknownKey => "the token names a key that its issuer does not have",
        }
    }
}

/// Whether calls without a valid token are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    /// They are weak principals.
    No,
    /// They are refused.
    Yes,
}

/// Checks tokens of one issuer.
pub struct Jwt {
    issuer: String,
    audiences: Vec<String>,
    required: Required,
    keys: ArcSwap<Keys>,
    known: Mutex<HashMap<[u8; 32], Known>>,
    source: Source,
}

struct Known {
    id: Arc<str>,
    expires_s: f64,
}

/// Where keys come from.
enum Source {
    File,
    Url(Fetching),
}

#[derive(Default)]
struct Fetching {
    wanted: Notify,
    changed: Notify,
    /// No earlier than this is fetched again, in milliseconds since 1970.
    not_before_ms: AtomicI64,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Audience,
    exp: f64,
    nbf: Option<f64>,
    client_id: Option<String>,
    azp: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Jwt {
    /// With keys out of a file's content.
    ///
    /// # Errors
    ///
    /// [`KeysError`].
    pub fn with_keys(
        issuer: String,
        audiences: Vec<String>,
        required: Required,
        set: &[u8],
    ) -> Result<Self, KeysError> {
        let keys = ArcSwap::from_pointee(Keys::read(set)?);
        let known = Mutex::default();
        Ok(Self { issuer, audiences, required, keys, known, source: Source::File })
    }

    /// With keys that will be fetched; until they are, no token is valid.
    pub fn with_url(issuer: String, audiences: Vec<String>, required: Required) -> Self {
        let source = Source::Url(Fetching::default());
        let (keys, known) = (ArcSwap::default(), Mutex::default());
        Self { issuer, audiences, required, keys, known, source }
    }

    /// Takes other keys, and forgets the tokens that were verified by those before.
    ///
    /// # Errors
    ///
    /// [`KeysError`]; the keys in force stay.
    pub fn replace(&self, set: &[u8]) -> Result<(), KeysError> {
        self.keys.store(Arc::new(Keys::read(set)?));
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Source::Url(fetching) = &self.source {
            fetching.changed.notify_waiters();
        }
        Ok(())
    }

    /// Calls without a valid token are refused.
    pub fn is_required(&self) -> bool {
        self.required == Required::Yes
    }

    /// Waits until a token names a key that is not known; for ever where keys come from a file.
    pub async fn wanted(&self) {
        match &self.source {
            Source::File => std::future::pending().await,
            Source::Url(fetching) => fetching.wanted.notified().await,
        }
    }

    /// Who a token names.
    ///
    /// # Errors
    ///
    /// [`JwtError`].
    pub async fn verify(&self, token: Option<&str>, now_ms: i64) -> Result<Arc<str>, JwtError> {
        let token = token.ok_or(JwtError::Missing)?;
        match self.check(token, now_ms) {
            Err(JwtError::UnknownKey) => {}
            checked => return checked,
        }
        let Source::Url(fetching) = &self.source else { return Err(JwtError::UnknownKey) };
        let mut changed = std::pin::pin!(fetching.changed.notified());
        // Registered before it is asked for, or the change could fall between the two.
        changed.as_mut().enable();
        if !fetching.may_ask(now_ms) {
            return Err(JwtError::UnknownKey);
        }
        fetching.wanted.notify_one();
        // Out of time: the token is checked against what there is.
        drop(tokio::time::timeout(WAIT, changed).await);
        self.check(token, now_ms)
    }

    fn check(&self, token: &str, now_ms: i64) -> Result<Arc<str>, JwtError> {
        if token.len() > MAX_TOKEN {
            return Err(JwtError::Form);
        }
        let now_s = f64::from(u32::try_from(now_ms / 1000).unwrap_or(u32::MAX));
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.lock().get(&hash)
            && now_s < known.expires_s + LEEWAY_S
        {
            return Ok(Arc::clone(&known.id));
        }
        let keys = self.keys.load_full();
        let claims = read(token, &keys)?;
        let (id, expires_s) = self.judge(&claims, now_s)?;
        let mut known = self.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        // Keys that changed meanwhile have emptied this, and would not see it again.
        if Arc::ptr_eq(&keys, &self.keys.load_full()) {
            known.insert(hash, Known { id: Arc::clone(&id), expires_s });
        }
        Ok(id)
    }

    fn judge(&self, claims: &Claims, now_s: f64) -> Result<(Arc<str>, f64), JwtError> {
        if claims.iss != self.issuer {
            return Err(JwtError::Issuer);
        }
        let is_ours = |audience: &String| self.audiences.contains(audience);
        let is_for_us = match &claims.aud {
            Audience::One(audience) => is_ours(audience),
            Audience::Several(audiences) => audiences.iter().any(is_ours),
        };
        if !is_for_us {
            return Err(JwtError::Audience);
        }
        if now_s >= claims.exp + LEEWAY_S {
            return Err(JwtError::Expired);
        }
        if claims.nbf.is_some_and(|nbf| now_s + LEEWAY_S < nbf) {
            return Err(JwtError::NotYet);
        }
        let client = claims.client_id.as_ref().or(claims.azp.as_ref());
        let is_name = |name: &String| !name.is_empty() && name.len() <= MAX_NAME;
        if !is_name(&claims.sub) || !client.is_none_or(is_name) {
            return Err(JwtError::Form);
        }
        let part = |text: &str| utf8_percent_encode(text, PLAIN).to_string();
        let mut id = format!("jwt:{}/{}", part(&claims.iss), part(&claims.sub));
        if let Some(client) = client {
            id.push('/');
            id.push_str(&part(client));
        }
        Ok((id.into(), claims.exp))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fetching {
    /// One asker per [`FLOOR`].
    fn may_ask(&self, now_ms: i64) -> bool {
        let floor = i64::try_from(FLOOR.as_millis()).unwrap_or(i64::MAX);
        let order = Ordering::Relaxed;
        let next = |not_before| (now_ms >= not_before).then(|| now_ms.saturating_add(floor));
        self.not_before_ms.fetch_update(order, order, next).is_ok()
    }
}

impl std::fmt::Debug for Jwt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

/// The claims of a token that one of the keys has signed.
fn read(token: &str, keys: &Keys) -> Result<Claims, JwtError> {
    let form = || JwtError::Form;
    let (signed, signature) = token.rsplit_once('.').ok_or_else(form)?;
    let (header, claims) = signed.split_once('.').ok_or_else(form)?;
    let bytes = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| JwtError::Form);
    let header: Header = serde_json::from_slice(&bytes(header)?).map_err(|_| JwtError::Form)?;
    let algorithm = Algorithm::from_name(&header.alg).ok_or_else(form)?;
    if header.crit.is_some() {
        return Err(JwtError::Form);
    }
    let claims = bytes(claims)?;
    let signature = bytes(signature)?;
    match keys.verify(algorithm, header.kid.as_deref(), signed.as_bytes(), &signature) {
        None => return Err(JwtError::UnknownKey),
        Some(false) => return Err(JwtError::Signature),
        Some(true) => {}
    }
    serde_json::from_slice(&claims).map_err(|_| JwtError::Form)
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
