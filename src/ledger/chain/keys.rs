//! The keys of the chain's MACs.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// The shortest key, in characters: what 128 random bits take in hexadecimal digits.
const SHORTEST: usize = 32;

/// Names a key without telling anything of it: the first 8 bytes of a MAC made with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId(pub [u8; 8]);

impl KeyId {
    /// Reads its 16 hexadecimal digits.
    pub(in crate::ledger) fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == 16 && text.is_ascii();
        is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(|id| Self(id.to_be_bytes()))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::hex(&self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A key, ready to be used; or the constant that stands for none.
#[derive(Clone)]
pub(in crate::ledger) struct MacKey {
    mac: Hmac<Sha256>,
    id: Option<KeyId>,
}

impl MacKey {
    /// No key: the MAC is a hash that everybody can make.
    pub(in crate::ledger) fn none() -> Self {
        Self { mac: with(b"takeback ledger, no key"), id: None }
    }

    fn new(secret: &str) -> Self {
        let mac = with(secret.as_bytes());
        let name = mac.clone().chain_update(b"takeback ledger, name of this key").finalize();
        let id = name.into_bytes().first_chunk().copied().unwrap_or_default();
        Self { mac, id: Some(KeyId(id)) }
    }

    /// Its name; `None`: it is no key.
    pub(in crate::ledger) fn id(&self) -> Option<KeyId> {
        self.id
    }

    pub(super) fn mac(&self) -> Hmac<Sha256> {
        self.mac.clone()
    }
}

/// Hashed first, so that a key of any length fills the block.
fn with(secret: &[u8]) -> Hmac<Sha256> {
    let mut block = [0; 64];
    let (start, _) = block.split_at_mut(32);
    start.copy_from_slice(&Sha256::digest(secret));
    Hmac::new(&block.into())
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacKey({:?})", self.id)
    }
}

/// The keys of a ledger: the one that its links are made with, and older ones that verify what was
/// written before a change. None by default.
#[derive(Clone, Default)]
pub struct Keys {
    keys: Vec<MacKey>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(MacKey::id)).finish()
    }
}

/// Why a text holds no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// No line holds a key.
    #[error("it holds no key")]
    Empty,
    /// A key is short enough to be guessed.
    #[error("the key on line {line} is shorter than {SHORTEST} characters")]
    Short {
        /// From 1.
        line: usize,
    },
}

impl Keys {
    /// Reads the keys of a file: one to a line, the one in use first, then older ones; empty lines
    /// and lines that begin with `#` are passed over. A key is any text of 32 characters or more
    /// without white space around it, such as `openssl rand -hex 32` prints.
    ///
    /// # Errors
    ///
    /// See [`KeysError`].
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.chars().count() < SHORTEST {
                return Err(KeysError::Short { line: index + 1 });
            }
            keys.push(MacKey::new(line));
        }
        if keys.is_empty() { Err(KeysError::Empty) } else { Ok(Self { keys }) }
    }

    /// Whether there is a key.
    pub fn is_keyed(&self) -> bool {
        !self.keys.is_empty()
    }

    /// The one that links are made with.
    pub(in crate::ledger) fn current(&self) -> MacKey {
        self.keys.first().cloned().unwrap_or_else(MacKey::none)
    }

    /// Each of them, and none.
    pub(in crate::ledger) fn all(&self) -> impl Iterator<Item = MacKey> {
        self.keys.iter().cloned().chain([MacKey::none()])
    }

    /// The one of this name; `None` is the name of none.
    pub(in crate::ledger) fn named(&self, id: Option<KeyId>) -> Option<MacKey> {
        match id {
            None => Some(MacKey::none()),
            Some(_) => self.keys.iter().find(|key| key.id == id).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_read_line_by_line_and_the_first_key_is_in_use() {
        let (one, two) = ("a".repeat(32), "b".repeat(64));
        let keys = Keys::parse(&format!("# the newest\n\n  {one} \n{two}\n")).unwrap();
        let in_use = keys.current().id().unwrap();
        assert_eq!(in_use, MacKey::new(&one).id().unwrap());
        assert!(keys.named(MacKey::new(&two).id()).is_some());
        assert!(keys.named(Some(KeyId([0; 8]))).is_none());
        assert_eq!(KeyId::parse(&in_use.to_string()), Some(in_use));

        assert_eq!(Keys::parse("# none\n").unwrap_err(), KeysError::Empty);
        let short = format!("{one}\nshort\n");
        assert_eq!(Keys::parse(&short).unwrap_err(), KeysError::Short { line: 2 });
    }

    #[test]
    fn a_key_is_shown_nowhere() {
        let secret = "s3cret".repeat(8);
        let keys = Keys::parse(&secret).unwrap();
        assert!(!format!("{keys:?}{:?}", keys.current()).contains("s3cret"));
        assert!(!Keys::default().is_keyed());
        assert_eq!(Keys::default().current().id(), None);
    }
}
