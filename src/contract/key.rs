//! Identifiers: operation, entry, idempotency key, principal, digest; and the key's carrier.

use std::fmt;
use std::sync::Arc;

use super::pointer::Pointer;

/// The longest key that is taken, in characters (standards I-1).
pub const MAX_KEY: usize = 255;

/// The id of a declared operation, such as `github.comments.create`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(Arc<str>);

impl OperationId {
    /// An id; any non-empty text without white space or control characters, at most 200 bytes.
    pub fn new(id: &str) -> Option<Self> {
        let is_fine = !id.is_empty()
            && id.len() <= 200
            && !id.chars().any(|c| c.is_whitespace() || c.is_control());
        is_fine.then(|| Self(id.into()))
    }

    /// What an undeclared call is reported as (contract section 6).
    pub fn undeclared() -> Self {
        Self("_undeclared".into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The unique id of an entry: a UUIDv7, so that ids sort by time and suit carriers that want a UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(uuid::Uuid);

impl EntryId {
    /// The id with these 16 bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(uuid::Uuid::from_bytes(bytes))
    }

    /// An id from its time and ten random bytes; the caller has the clock and the randomness.
    pub fn from_parts(unix_ms: u64, random: &[u8; 10]) -> Self {
        Self(uuid::Builder::from_unix_timestamp_millis(unix_ms, random).into_uuid())
    }

    /// Reads the hyphenated form.
    pub fn parse(text: &str) -> Option<Self> {
        uuid::Uuid::try_parse(text).ok().map(Self)
    }

    /// When it was made; milliseconds since 1970.
    pub fn unix_ms(&self) -> i64 {
        self.as_bytes().iter().take(6).fold(0, |ms, byte| ms * 256 + i64::from(*byte))
    }

    /// The id's bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An idempotency key: 1 to [`MAX_KEY`] visible ASCII characters and inner spaces.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Arc<str>);

/// A key that cannot be taken. Names the rule; never quotes the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Nothing between the quotes, or nothing at all.
    #[error("the idempotency key is empty")]
    Empty,
    /// Longer than [`MAX_KEY`].
    #[error("the idempotency key is longer than 255 characters")]
    TooLong,
    /// A character that neither form allows, or an unclosed or decorated quoted form.
    #[error("the idempotency key is neither a quoted string nor a plain token")]
    Malformed,
}

impl Key {
    /// Reads a header value: a quoted string of RFC 9651 without parameters, or the bare characters
    /// that every vendor sends. Both spellings of the same characters are one key (standards I-1).
    ///
    /// # Errors
    ///
    /// See [`KeyError`].
    pub fn from_header(value: &[u8]) -> Result<Self, KeyError> {
        let value = std::str::from_utf8(value).map_err(|_| KeyError::Malformed)?;
        let value = value.trim_matches([' ', '\t']);
        let Some(quoted) = value.strip_prefix('"') else {
            let is_bare = value
                .bytes()
                .all(|byte| matches!(byte, 0x21..=0x7e) && !matches!(byte, b'"' | b',' | b'\\'));
            return if is_bare { Self::checked(value) } else { Err(KeyError::Malformed) };
        };
        let mut key = String::with_capacity(quoted.len());
        let mut characters = quoted.chars();
        loop {
            match characters.next() {
                Some('"') => break,
                Some('\\') => match characters.next() {
                    Some(escaped @ ('"' | '\\')) => key.push(escaped),
                    Some(_) | None => return Err(KeyError::Malformed),
                },
                Some(character @ ' '..='~') => key.push(character),
                Some(_) | None => return Err(KeyError::Malformed),
            }
        }
        if characters.next().is_some() {
            return Err(KeyError::Malformed);
        }
        Self::checked(&key)
    }

    /// Takes a key given as a JSON string, such as `_meta.idempotency_key`.
    ///
    /// # Errors
    ///
    /// See [`KeyError`].
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        if text.chars().all(|character| matches!(character, ' '..='~')) {
            Self::checked(text)
        } else {
            Err(KeyError::Malformed)
        }
    }

    /// The entry's own id as its key.
    pub fn from_entry(entry: EntryId) -> Self {
        Self(entry.to_string().into())
    }

    /// The key's characters, unquoted.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn checked(text: &str) -> Result<Self, KeyError> {
        match text.len() {
            0 => Err(KeyError::Empty),
            1..=MAX_KEY => Ok(Self(text.into())),
            _ => Err(KeyError::TooLong),
        }
    }
}

impl fmt::Debug for Key {
    /// A key may be guessable and is a claim to an answer: it never reaches a log in clear.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} characters)", self.0.len())
    }
}

/// A SHA-256 value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The value as 64 hexadecimal digits.
    pub fn to_hex(self) -> String {
        to_hex(&self.0)
    }
}

/// Bytes as hexadecimal digits in lower case, two for each.
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| DIGITS.get(usize::from(half)).copied().map_or('0', char::from);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// So many bytes out of their hexadecimal digits in either case; `None` for anything else, a sign or a
/// blank included.
pub fn from_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = [0; N];
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    for ([high, low], byte) in pairs.iter().zip(&mut bytes) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_hex().get(..16).unwrap_or_default())
    }
}

/// Where the upstream takes the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A request header; the name in lower case.
    Header(http::HeaderName),
    /// A query parameter.
    Query(String),
    /// A member of a JSON body.
    BodyPointer {
        /// Which member; never the whole document.
        pointer: Pointer,
        /// Whether a missing last member is made; its parent must exist.
        create: bool,
    },
    /// An argument of an MCP tool.
    Argument(String),
    /// Nowhere: the key is not sent.
    Unsupported,
}

impl Place {
    /// The word in policy files and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Header(_) => "header",
            Self::Query(_) => "query",
            Self::BodyPointer { .. } => "body_pointer",
            Self::Argument(_) => "argument",
            Self::Unsupported => "unsupported",
        }
    }
}

/// How the key is written in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As it is: what vendors take.
    Raw,
    /// A quoted string of RFC 9651: what the IETF draft says.
    SfString,
}

/// What the upstream answers when a key comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayRule {
    /// The first answer, whatever it was.
    Full,
    /// The state as it is now.
    Latest,
    /// The first answer, if it was a success.
    SuccessOnly,
    /// It only drops the duplicate, and only while the first one lives.
    DedupOnly,
}

/// What the upstream does when a key comes again with another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMismatch {
    /// It refuses.
    Error,
    /// It answers as the first time.
    Replay,
    /// It ignores the key and runs the request.
    NewOperation,
}

/// The declared carrier of the key (contract section 9; standards I-12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Where the key goes.
    pub place: Place,
    /// How it is written.
    pub format: Format,
    /// The longest key that the upstream takes, in characters.
    pub max_len: Option<usize>,
    /// How long the upstream remembers a key, in milliseconds.
    pub retention_ms: Option<u64>,
    /// What it answers when the key comes again.
    pub replay: Option<ReplayRule>,
    /// What it does when the key comes again with another request.
    pub on_mismatch: Option<OnMismatch>,
}

impl Carrier {
    /// A carrier that sends nothing.
    pub fn unsupported() -> Self {
        Self {
            place: Place::Unsupported,
            format: Format::Raw,
            max_len: None,
            retention_ms: None,
            replay: None,
            on_mismatch: None,
        }
    }

    /// The key as it is written in its place; `None` if it does not fit.
    pub fn written(&self, key: &Key) -> Option<String> {
        if self.max_len.is_some_and(|longest| key.as_str().len() > longest) {
            return None;
        }
        Some(match self.format {
            Format::Raw => key.as_str().to_owned(),
            Format::SfString => {
                let escaped = key.as_str().replace('\\', "\\\\").replace('"', "\\\"");
                format!("\"{escaped}\"")
            }
        })
    }

    /// Whether an unknown entry may be sent once more under the same key (standards I-12): the
    /// upstream remembers the key, answers a repeat from memory, and does not take another request
    /// for a new one. A tenth of the retention is kept back for clocks that differ.
    pub fn allows_redispatch(&self, first_sent_ms: i64, now_ms: i64) -> bool {
        let Some(retention_ms) = self.retention_ms else {
            return false;
        };
        let usable = i64::try_from(retention_ms - retention_ms / 10).unwrap_or(i64::MAX);
        !matches!(self.place, Place::Unsupported)
            && !matches!(self.replay, None | Some(ReplayRule::DedupOnly))
            && !matches!(self.on_mismatch, Some(OnMismatch::NewOperation))
            && now_ms.saturating_sub(first_sent_ms) < usable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_1_both_spellings_are_one_key() {
        type Case<'a> = (&'a [u8], Result<&'a str, KeyError>);
        let long = "k".repeat(256);
        let cases: &[Case<'_>] = &[
            (b"01JBRANCHYARDLEDGER00000001", Ok("01JBRANCHYARDLEDGER00000001")),
            (b"\"01JBRANCHYARDLEDGER00000001\"", Ok("01JBRANCHYARDLEDGER00000001")),
            (b" \t\"a\\\"b\" ", Ok("a\"b")),
            (b"\"a b\"", Ok("a b")),
            (b"?1", Ok("?1")),
            (b":YQ==:", Ok(":YQ==:")),
            (b"\"a", Err(KeyError::Malformed)),
            (b"\"a\";x=1", Err(KeyError::Malformed)),
            (b"\"a\" \"b\"", Err(KeyError::Malformed)),
            (b"a,b", Err(KeyError::Malformed)),
            (b"a b", Err(KeyError::Malformed)),
            (b"a\\b", Err(KeyError::Malformed)),
            (b"", Err(KeyError::Empty)),
            (b"\"\"", Err(KeyError::Empty)),
            ("\"é\"".as_bytes(), Err(KeyError::Malformed)),
            (long.as_bytes(), Err(KeyError::TooLong)),
        ];
        for (value, expected) in cases {
            let key = Key::from_header(value);
            assert_eq!(key.as_ref().map(Key::as_str).map_err(|e| *e), *expected);
        }
    }

    #[test]
    fn i_2_quoted_form_escapes() {
        let key = Key::from_text("a\"b\\c").unwrap();
        let carrier = Carrier { format: Format::SfString, ..Carrier::unsupported() };
        assert_eq!(carrier.written(&key).as_deref(), Some("\"a\\\"b\\\\c\""));
        let short = Carrier { max_len: Some(2), ..Carrier::unsupported() };
        assert_eq!(short.written(&key), None);
    }

    #[test]
    fn i_12_redispatch_only_within_the_declared_retention() {
        let carrier = Carrier {
            place: Place::Header(http::HeaderName::from_static("idempotency-key")),
            retention_ms: Some(1_000),
            replay: Some(ReplayRule::Full),
            ..Carrier::unsupported()
        };
        assert!(carrier.allows_redispatch(0, 899));
        assert!(!carrier.allows_redispatch(0, 900));
        assert!(!Carrier { retention_ms: None, ..carrier.clone() }.allows_redispatch(0, 1));
        assert!(!Carrier { replay: None, ..carrier.clone() }.allows_redispatch(0, 1));
        let dedup = Carrier { replay: Some(ReplayRule::DedupOnly), ..carrier.clone() };
        assert!(!dedup.allows_redispatch(0, 1));
        let fresh = Carrier { on_mismatch: Some(OnMismatch::NewOperation), ..carrier };
        assert!(!fresh.allows_redispatch(0, 1));
    }

    #[test]
    fn debug_shows_no_key() {
        let key = Key::from_text("secret-key").unwrap();
        assert!(!format!("{key:?}").contains("secret"));
    }
}
