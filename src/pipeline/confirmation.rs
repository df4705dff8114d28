//! The confirmation token: sealed, bound to one call, good once.
//!
//! A token is the bound facts and a keyed MAC over them (HMAC-SHA256 with a key that the ledger made
//! and keeps, so that tokens survive a restart). The facts are hashes: principal, the compiled
//! operation, the newest entry with the digest, the digest and its parts; and the class, the expiry and a
//! nonce. A call that was confirmed as one that nothing takes back is confirmed as a milder one too.
//! With the parts in it a token that does not match says what differs, and shows nothing (contract
//! section 4; standards C-4). That it is good once is the ledger's doing: the nonce is spent in the
//! transaction that begins the entry, and so it is where whoever was asked says no: a state that was
//! declined is spent for all replicas, by a row that is no entry. If that row cannot be written, the
//! client is told that the ledger is down and not that its no was heard. A no that comes while the call
//! that the same token confirmed is under way is too late for it. The caller's own word (level `caller`)
//! has no nonce: whoever can decline can also say it, as often as it likes.
//!
//! Wire form: `tbc1_` and base64url without padding, 199 characters in all.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::call::digest::RequestDigest;
use crate::call::refusal::Mismatch;
use crate::contract::class::Class;
use crate::contract::key::{Digest, EntryId};

/// How every token starts; an argument `confirm` that starts so is ours, not the tool's.
pub const PREFIX: &str = "tbc1_";

/// How every sealed state starts; a `requestState` that starts so is ours, not the upstream's.
pub const STATE_PREFIX: &str = "tbs1_";

/// How the id of every question of ours to a client starts.
const QUESTION_PREFIX: &str = "anvil-";

/// How long a token counts, in milliseconds (contract section 4).
pub const LIFE_MS: i64 = 10 * 60 * 1000;

const FACTS: usize = 16 + 8 + 8 + 8 + 16 + 8 + 8 + 8 + 32 + 1;
const MAC: usize = 32;

/// What a confirmation is bound to.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// Who calls.
    pub principal: &'a str,
    /// The compiled operation.
    pub operation: Digest,
    /// The class of the call; a token of a more severe one counts too.
    pub class: Class,
    /// The request.
    pub digest: &'a RequestDigest,
    /// The newest entry with this digest.
    pub newest: Option<EntryId>,
}

/// A token's nonce, to be spent with the entry that it confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce {
    /// Unguessable and unique.
    pub nonce: [u8; 16],
    /// When the token stops counting, in milliseconds since 1970.
    pub expires_ms: i64,
}

/// Makes and checks tokens.
#[derive(Clone)]
pub struct Sealer {
    key: [u8; 32],
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer(..)")
    }
}

impl Sealer {
    /// A sealer with the ledger's key.
    pub fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    /// A token for one call, and when it stops counting.
    pub fn seal(&self, binding: &Binding<'_>, nonce: [u8; 16], now_ms: i64) -> (String, i64) {
        let expires_ms = now_ms.saturating_add(LIFE_MS);
        let mut token = facts(binding, &Nonce { nonce, expires_ms });
        let mac = self.mac(&token).finalize().into_bytes();
        token.extend_from_slice(&mac);
        (format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(token)), expires_ms)
    }

    /// Checks a token against the call that it came with.
    ///
    /// # Errors
    ///
    /// What does not match; the first of principal, operation, target, body, headers, newer entry,
    /// class and expiry, once the token is known to be ours.
    pub fn open(&self, token: &str, binding: &Binding<'_>, now_ms: i64) -> Result<Nonce, Mismatch> {
        let (given, nonce) = self.facts_of(token).ok_or(Mismatch::Forged)?;
        let wanted = facts(binding, &nonce);
        let parts = [
            (24..32, Mismatch::Principal),
            (32..40, Mismatch::Operation),
            (56..64, Mismatch::Target),
            (72..80, Mismatch::Body),
            (64..72, Mismatch::Headers),
            (80..112, Mismatch::Body),
            (40..56, Mismatch::NewerEntry),
        ];
        for (part, mismatch) in parts {
            if given.get(part.clone()) != wanted.get(part) {
                return Err(mismatch);
            }
        }
        let class = given.last().and_then(|place| Class::ALL.get(usize::from(*place)));
        if class.is_none_or(|class| *class < binding.class) {
            return Err(Mismatch::Class);
        }
        if now_ms >= nonce.expires_ms {
            return Err(Mismatch::Expired);
        }
        Ok(nonce)
    }

    /// What a token says, and its nonce; `None` if it is not ours.
    fn facts_of(&self, token: &str) -> Option<(Vec<u8>, Nonce)> {
        let mut sealed = URL_SAFE_NO_PAD.decode(token.strip_prefix(PREFIX)?).ok()?;
        let (given, mac) = sealed.split_at_checked(FACTS)?;
        self.mac(given).verify_slice(mac).ok().filter(|()| mac.len() == MAC)?;
        let nonce = given.first_chunk::<16>().copied()?;
        let expires_ms = i64::from_be_bytes(given.get(16..24)?.try_into().ok()?);
        sealed.truncate(FACTS);
        Some((sealed, Nonce { nonce, expires_ms }))
    }

    /// The nonce of a token that is ours, whatever call it is for.
    pub fn nonce(&self, token: &str) -> Option<Nonce> {
        let (_, nonce) = self.facts_of(token)?;
        Some(nonce)
    }

    /// A state that a client keeps for us between two rounds (standards MCP-34): readable, not to be
    /// changed.
    pub fn seal_state(&self, json: &str) -> String {
        let mut sealed = self.mac(b"state\0").chain_update(json).finalize().into_bytes().to_vec();
        sealed.extend_from_slice(json.as_bytes());
        format!("{STATE_PREFIX}{}", URL_SAFE_NO_PAD.encode(sealed))
    }

    /// What [`Sealer::seal_state`] sealed; `None` for anything else.
    pub fn open_state(&self, state: &str) -> Option<String> {
        let sealed = URL_SAFE_NO_PAD.decode(state.strip_prefix(STATE_PREFIX)?).ok()?;
        let (mac, json) = sealed.split_at_checked(MAC)?;
        self.mac(b"state\0").chain_update(json).verify_slice(mac).ok()?;
        String::from_utf8(json.to_vec()).ok()
    }

    /// The id of a question to a client (standards MCP-36), of 16 random bytes: the same ledger's
    /// sidecars know it for theirs, and nobody else's is taken for one.
    pub fn question(&self, random: [u8; 16]) -> String {
        let hash = self.mac(b"question\0").chain_update(random).finalize().into_bytes();
        let half = hash.get(..16).unwrap_or_default();
        format!("{QUESTION_PREFIX}{}", URL_SAFE_NO_PAD.encode([&random, half].concat()))
    }

    /// Whether an id is one that [`Sealer::question`] made.
    pub fn is_question(&self, id: &str) -> bool {
        let sealed = id.strip_prefix(QUESTION_PREFIX).map(|sealed| URL_SAFE_NO_PAD.decode(sealed));
        let Some(Ok(sealed)) = sealed else { return false };
        let random = sealed.first_chunk::<16>();
        random.is_some_and(|random| self.question(*random) == id)
    }

    /// A weak principal's name: a keyed hash of what the caller sent as credentials, so that the
    /// ledger cannot be searched for a credential by guessing.
    pub fn principal(&self, credentials: impl IntoIterator<Item = (String, Vec<u8>)>) -> String {
        let mut mac = self.mac(b"principal\0");
        for (name, value) in credentials {
            mac.update(name.as_bytes());
            mac.update(b"\0");
            mac.update(&u64::try_from(value.len()).unwrap_or(u64::MAX).to_be_bytes());
            mac.update(&value);
        }
        let hash = mac.finalize().into_bytes();
        format!("w:{}", URL_SAFE_NO_PAD.encode(hash.get(..16).unwrap_or_default()))
    }

    fn mac(&self, bytes: &[u8]) -> Hmac<Sha256> {
        // The key as one block, padded with zeros, as HMAC itself would pad it.
        let mut block = [0; 64];
        for (place, byte) in block.iter_mut().zip(self.key) {
            *place = byte;
        }
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(bytes);
        mac
    }
}

fn facts(binding: &Binding<'_>, nonce: &Nonce) -> Vec<u8> {
    let principal = Sha256::digest(binding.principal);
    let short = |digest: &[u8]| digest.first_chunk::<8>().copied().unwrap_or_default();
    let mut facts = Vec::with_capacity(FACTS + MAC);
    facts.extend_from_slice(&nonce.nonce);
    facts.extend_from_slice(&nonce.expires_ms.to_be_bytes());
    facts.extend_from_slice(&short(&principal));
    facts.extend_from_slice(&short(&binding.operation.0));
    facts.extend_from_slice(
        binding.newest.map(|entry| *entry.as_bytes()).unwrap_or_default().as_slice(),
    );
    facts.extend_from_slice(&short(&binding.digest.target.0));
    facts.extend_from_slice(&short(&binding.digest.headers.0));
    facts.extend_from_slice(&short(&binding.digest.body.0));
    facts.extend_from_slice(&binding.digest.whole.0);
    let place = Class::ALL.iter().position(|class| *class == binding.class);
    facts.push(place.and_then(|place| u8::try_from(place).ok()).unwrap_or_default());
    facts
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};
    use proptest::prelude::*;

    use super::*;
    use crate::call::digest::{BodyForm, HeadForm};

    fn digest(path: &str, body: &[u8]) -> RequestDigest {
        let body = BodyForm::Opaque("text/plain", body);
        let headers = HeaderMap::new();
        let head = HeadForm { authority: None, headers: &headers, vary_on: &[] };
        RequestDigest::http(&Method::POST, path, head, body)
    }

    fn bound(digest: &RequestDigest) -> Binding<'_> {
        let class = Class::Compensable;
        Binding { principal: "p", operation: Digest([1; 32]), class, digest, newest: None }
    }

    #[test]
    fn a_token_opens_for_its_own_call_until_it_expires() {
        let sealer = Sealer::new([7; 32]);
        let digest = digest("/a", b"x");
        let (token, expires_ms) = sealer.seal(&bound(&digest), [3; 16], 1_000);

        assert_eq!(token.len(), PREFIX.len() + 194);
        assert_eq!(sealer.open(&token, &bound(&digest), expires_ms - 1).unwrap().nonce, [3; 16]);
        assert_eq!(sealer.open(&token, &bound(&digest), expires_ms), Err(Mismatch::Expired));
    }

    #[test]
    fn g1_g2_a_token_for_another_call_says_what_differs() {
        let sealer = Sealer::new([7; 32]);
        let plain = digest("/a", b"x");
        let (token, _) = sealer.seal(&bound(&plain), [3; 16], 0);
        let target = digest("/b", b"x");
        let body = digest("/a", b"y");
        let entry = Some(EntryId::from_bytes([9; 16]));
        let cases = [
            (bound(&target), Mismatch::Target),
            (bound(&body), Mismatch::Body),
            (Binding { principal: "q", ..bound(&plain) }, Mismatch::Principal),
            (Binding { operation: Digest([2; 32]), ..bound(&plain) }, Mismatch::Operation),
            (Binding { newest: entry, ..bound(&plain) }, Mismatch::NewerEntry),
            (Binding { class: Class::Irreversible, ..bound(&plain) }, Mismatch::Class),
        ];
        for (binding, mismatch) in cases {
            assert_eq!(sealer.open(&token, &binding, 0), Err(mismatch));
        }
        let milder = Binding { class: Class::Reversible, ..bound(&plain) };
        assert!(sealer.open(&token, &milder, 0).is_ok());
        assert_eq!(Sealer::new([8; 32]).open(&token, &bound(&plain), 0), Err(Mismatch::Forged));
    }

    #[test]
    fn mcp_34_a_state_that_was_changed_is_none() {
        let sealer = Sealer::new([7; 32]);
        let state = sealer.seal_state("{\"p\":\"a\"}");

        assert_eq!(sealer.open_state(&state).as_deref(), Some("{\"p\":\"a\"}"));
        assert_eq!(Sealer::new([8; 32]).open_state(&state), None);
        assert_eq!(sealer.open_state(&format!("{state}A")), None);
        assert_eq!(sealer.open_state(&state[..state.len() - 1]), None);
        assert_eq!(sealer.open_state("tbs1_"), None);
        assert_eq!(sealer.open_state(""), None);
    }

    proptest! {
        #[test]
        fn a_changed_token_is_forged(position in 0_usize..194, letter in "[A-Za-z0-9_-]") {
            let sealer = Sealer::new([7; 32]);
            let digest = digest("/a", b"x");
            let (token, _) = sealer.seal(&bound(&digest), [3; 16], 0);
            let mut changed = token.clone();
            let at = PREFIX.len() + position;
            changed.replace_range(at..=at, &letter);
            if changed != token {
                prop_assert_eq!(sealer.open(&changed, &bound(&digest), 0), Err(Mismatch::Forged));
            }
        }

        #[test]
        fn any_text_is_refused_without_a_panic(text in ".{0,260}") {
            let digest = digest("/a", b"x");
            prop_assert!(Sealer::new([7; 32]).open(&text, &bound(&digest), 0).is_err());
        }
    }
}
