//! The chain over the history: each row's link holds a MAC of the row and of the link before it.
//!
//! ```text
//!   link n = HMAC-SHA256(key, link n-1 ‖ place ‖ the row ‖ commitment to its content)
//! ```
//!
//! So a row that is changed, dropped, moved or put in between is found by
//! [verifying](verify::Verifier), and by nobody else: nothing is read again while writes go on. The
//! link is made in memory and written with its row, in the same transaction and the same statement.
//!
//! **One chain per writer.** A file has one writer at a time, and so one chain, which goes on at the
//! next start. A database has a chain for each sidecar that ever wrote it: a chain that they shared
//! would make each wait for the commit of the one before. Chains are numbered without gaps, so that
//! one that is gone is missed.
//!
//! **Keyed or not.** With a key, that whoever can write the store does not have, no link can be made
//! by anybody else. Without one the links are plain hashes under a constant: they show accidents, and
//! an editor who does not know of them, but whoever can write the store can write the chain anew.
//! [`Keys`] says which; the first row of a chain, and each at which the key changes, names it.
//!
//! **What a link covers.** All that a row says of a step goes in as it stands, keyed hashes of what the
//! call changes among it. What a call and its answer held (the
//! target, lookup and state before it; undo, compensation and answer) is only committed to, by a salted
//! hash, so that it can be removed without breaking the chain: then the salt goes too, and the hash that
//! is left tells nothing, however few values there might be. Removal is a row of the chain itself, so
//! that none passes for it.
//!
//! What ends a chain cannot be missed from inside it: rows cut off at the end are found only by a
//! [head](Head) that was kept elsewhere. The sidecar writes it to its log, and a file's writer keeps it
//! beside the file, so that an older copy is noticed at the start.
//!
//! What does not fit at the end of a chain when it is opened refuses begins, and nothing else, until a
//! person [acknowledges](breaks) it.
//!
//! Not covered, because it is no history: whether an answer was delivered, and when an entry is next
//! looked at.

pub(super) mod breaks;
mod keys;
pub(super) mod line;
pub(super) mod row;
pub(super) mod verify;

use hmac::Mac as _;
use sha2::{Digest as _, Sha256};

use super::OpenError;
use crate::contract::key::{from_hex, to_hex};

pub use breaks::{Acknowledged, Broken, Flaw};
pub use keys::{KeyId, Keys, KeysError};
pub use verify::{ChainState, Verified};

pub(super) use keys::MacKey;
use row::{Content, First, Row};

/// A link, or a commitment.
pub(super) type Hash = [u8; 32];

/// A salt.
pub(super) type Salt = [u8; 16];

/// What stands before the first link of a chain.
pub(super) const NOTHING: Hash = [0; 32];

/// Where a chain ends: its newest link, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The newest link.
    pub link: [u8; 32],
    /// How many links the chain has.
    pub length: u64,
}

impl Head {
    /// Reads what [`Display`](std::fmt::Display) writes: 64 hexadecimal digits, a colon, the length.
    pub fn parse(text: &str) -> Option<Self> {
        let (link, length) = text.split_once(':')?;
        Some(Self {
            link: from_hex(link.as_bytes())?,
            length: length.parse().ok().filter(|n| *n > 0)?,
        })
    }
}

impl std::fmt::Display for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", to_hex(&self.link), self.length)
    }
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// What salts are made of.
///
/// # Errors
///
/// [`OpenError::Random`].
pub(super) fn seed() -> Result<Hash, OpenError> {
    let mut seed = NOTHING;
    getrandom::fill(&mut seed).map_err(|_| OpenError::Random)?;
    Ok(seed)
}

/// The end of a chain that is being written.
#[derive(Debug)]
pub(super) struct Chain {
    key: MacKey,
    link: Hash,
    length: u64,
    salts: Salts,
    scratch: Vec<u8>,
}

impl Chain {
    /// A chain that ends at `head`; `None`: it has no link yet.
    pub(super) fn new(key: MacKey, head: Option<Head>, seed: Hash) -> Self {
        let Head { link, length } = head.unwrap_or(Head { link: NOTHING, length: 0 });
        Self { key, link, length, salts: Salts::new(seed), scratch: Vec::new() }
    }

    /// Where it ends.
    pub(super) fn head(&self) -> Head {
        Head { link: self.link, length: self.length }
    }

    /// The key that the next link is made with.
    pub(super) fn key(&self) -> &MacKey {
        &self.key
    }

    /// Goes back, or on, to another end: after a roll-back.
    pub(super) fn set_head(&mut self, head: Option<Head>) {
        let Head { link, length } = head.unwrap_or(Head { link: NOTHING, length: 0 });
        self.link = link;
        self.length = length;
    }

    /// Links a row; what is stored with it.
    pub(super) fn seal(
        &mut self,
        row: &Row<'_>,
        first: Option<&First<'_>>,
        content: Content<'_>,
    ) -> Seal {
        let committed = match content {
            Content::None => None,
            Content::Attempt(_) | Content::Told(_) => {
                let salt = self.salts.next();
                let inner = inner(&mut self.scratch, &salt, content);
                Some((outer(&mut self.scratch, &inner, content), salt))
            }
        };
        self.length += 1;
        let commitment = committed.map(|(commitment, _)| commitment);
        let scratch = &mut self.scratch;
        self.link = link(&self.key, scratch, &self.link, self.length, row, first, commitment);
        Seal { link: self.link, commitment, rest: committed.map(|(_, salt)| Rest::Intact(salt)) }
    }

    /// Commits to what is left of a row's content after a redaction: the new salt, and the commitment.
    pub(super) fn commit(&mut self, content: Content<'_>) -> (Salt, Hash) {
        let salt = self.salts.next();
        (salt, inner(&mut self.scratch, &salt, content))
    }
}

/// The MAC of a row in its place.
fn link(
    key: &MacKey,
    scratch: &mut Vec<u8>,
    before: &Hash,
    place: u64,
    row: &Row<'_>,
    first: Option<&First<'_>>,
    commitment: Option<Hash>,
) -> Hash {
    scratch.clear();
    scratch.extend_from_slice(before);
    scratch.extend_from_slice(&place.to_be_bytes());
    row.write(scratch);
    match first {
        None => scratch.push(0),
        Some(first) => first.write(scratch),
    }
    if let Some(commitment) = commitment {
        scratch.extend_from_slice(&commitment);
    }
    let mut mac = key.mac();
    mac.update(scratch);
    mac.finalize().into_bytes().into()
}

/// The commitment to the part of a content that can be removed.
fn inner(scratch: &mut Vec<u8>, salt: &Salt, content: Content<'_>) -> Hash {
    scratch.clear();
    scratch.extend_from_slice(salt);
    match content {
        Content::None => {}
        Content::Attempt(attempt) => attempt.write_removable(scratch),
        Content::Told(told) => told.write(scratch),
    }
    Sha256::digest(&*scratch).into()
}

/// The commitment to a content, out of that to its removable part: what stays goes in as it is.
fn outer(scratch: &mut Vec<u8>, inner: &Hash, content: Content<'_>) -> Hash {
    match content {
        Content::None | Content::Told(_) => *inner,
        Content::Attempt(attempt) => {
            scratch.clear();
            scratch.extend_from_slice(inner);
            attempt.write_lasting(scratch);
            Sha256::digest(&*scratch).into()
        }
    }
}

/// Salts out of a seed that lives in memory only: as good as random, and none has to be asked of the
/// system while writes wait.
struct Salts {
    seed: Hash,
    count: u64,
}

impl Salts {
    fn new(seed: Hash) -> Self {
        Self { seed, count: 0 }
    }

    fn next(&mut self) -> Salt {
        self.count += 1;
        let full: Hash = Sha256::new_with_prefix(self.seed)
            .chain_update(self.count.to_be_bytes())
            .finalize()
            .into();
        full.first_chunk().copied().unwrap_or_default()
    }
}

impl std::fmt::Debug for Salts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salts")
    }
}

/// What stands beside a row: its link, and what is needed to check its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) link: Hash,
    /// Of a row that has a content; left out where it can be made again out of what is there.
    pub(super) commitment: Option<Hash>,
    pub(super) rest: Option<Rest>,
}

/// What is known of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It is there, with this salt.
    Intact(Salt),
    /// A part of it was redacted: what was committed to at first, and the salt of what is left.
    Redacted(Hash, Salt),
    /// It was removed: what was committed to.
    Removed(Hash),
}

impl Seal {
    /// Without the commitment, while the content is there: a third less to write with each row.
    pub(super) fn compact(self) -> Self {
        match self.rest {
            Some(Rest::Intact(_)) => Self { commitment: None, ..self },
            Some(Rest::Redacted(..) | Rest::Removed(_)) | None => self,
        }
    }

    /// With the commitment, out of the content.
    pub(super) fn complete(self, content: Content<'_>) -> Self {
        if self.commitment.is_some() {
            return self;
        }
        let commitment = self.inner(content).map(|inner| outer(&mut Vec::new(), &inner, content));
        Self { commitment, ..self }
    }

    /// As it is stored: the link, 32 bytes; then, of a row with a content, the commitment, 32 bytes or
    /// none, and the salt, 16, or what took its place.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(112);
        bytes.extend_from_slice(&self.link);
        bytes.extend_from_slice(self.commitment.as_ref().map_or(&[], |hash| &hash[..]));
        match self.rest {
            None => {}
            Some(Rest::Intact(salt)) => bytes.extend_from_slice(&salt),
            Some(Rest::Redacted(inner, salt)) => {
                bytes.extend_from_slice(&inner);
                bytes.extend_from_slice(&salt);
            }
            Some(Rest::Removed(inner)) => bytes.extend_from_slice(&inner),
        }
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (link, bytes) = bytes.split_first_chunk()?;
        if bytes.is_empty() {
            return Some(Self { link: *link, commitment: None, rest: None });
        }
        if let Ok(salt) = bytes.try_into() {
            return Some(Self { link: *link, commitment: None, rest: Some(Rest::Intact(salt)) });
        }
        let (commitment, bytes) = bytes.split_first_chunk()?;
        if bytes.is_empty() {
            return Some(Self { link: *link, commitment: Some(*commitment), rest: None });
        }
        let rest = match bytes.len() {
            16 => Rest::Intact(bytes.try_into().ok()?),
            32 => Rest::Removed(bytes.try_into().ok()?),
            48 => {
                let (inner, salt) = bytes.split_first_chunk()?;
                Rest::Redacted(*inner, salt.try_into().ok()?)
            }
            _ => return None,
        };
        Some(Self { link: *link, commitment: Some(*commitment), rest: Some(rest) })
    }

    /// The seal of a row whose content is gone because a later attempt has its place: without the salt,
    /// nothing can be guessed.
    pub(super) fn replaced(self) -> Self {
        Self { rest: None, ..self }
    }

    /// The seal of a row whose content is being removed.
    pub(super) fn removed(self, content: Content<'_>) -> Self {
        let rest = self.inner(content).map(Rest::Removed);
        Self { rest, ..self.complete(content) }
    }

    /// The seal of a row of whose content a part is being redacted; `salt` is that of what is left.
    pub(super) fn redacted(self, content: Content<'_>, salt: Salt) -> Self {
        let rest = self.inner(content).map(|inner| Rest::Redacted(inner, salt));
        Self { rest, ..self.complete(content) }
    }

    /// What was committed to at first.
    fn inner(self, content: Content<'_>) -> Option<Hash> {
        self.rest.map(|rest| match rest {
            Rest::Intact(salt) => inner(&mut Vec::new(), &salt, content),
            Rest::Redacted(inner, _) | Rest::Removed(inner) => inner,
        })
    }
}

#[cfg(test)]
mod tests;
