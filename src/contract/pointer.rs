//! JSON Pointer (RFC 6901), read only.
//!
//! `""` is the whole document and `/` the member with the empty name. An array is entered by `0` or
//! a number without leading zero or sign; `-` names nothing. The URI fragment form (`#/a`) is
//! refused. Nothing is normalised. At most [`MAX_POINTER`] bytes.

use std::fmt;

use super::json::{Kind, Value};

/// The longest pointer that is read, in bytes (EffectSpec's limit).
pub const MAX_POINTER: usize = 512;

/// A pointer that was read.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

/// Why a text is no pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// `~` is followed by neither `0` nor `1`; the offset is the `~`'s, in bytes.
    #[error("`~` must be followed by `0` or `1`, at byte {0}")]
    Escape(usize),
    /// The first byte is not `/`.
    #[error("a pointer is empty or starts with `/`")]
    Start,
    /// Longer than [`MAX_POINTER`].
    #[error("the pointer is longer than 512 bytes")]
    TooLong,
}

impl Pointer {
    /// Reads a pointer.
    ///
    /// # Errors
    ///
    /// See [`PointerError`].
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        if text.len() > MAX_POINTER {
            return Err(PointerError::TooLong);
        }
        let mut tokens = Vec::new();
        if !text.is_empty() {
            let rest = text.strip_prefix('/').ok_or(PointerError::Start)?;
            for (offset, _) in text.match_indices('~') {
                let following = text.as_bytes().get(offset.saturating_add(1));
                if !matches!(following, Some(b'0' | b'1')) {
                    return Err(PointerError::Escape(offset));
                }
            }
            // `~1` first: `~01` is the name `~1`.
            tokens.extend(rest.split('/').map(|t| t.replace("~1", "/").replace("~0", "~")));
        }
        Ok(Self { text: text.to_owned(), tokens })
    }

    /// The unescaped reference tokens; none for the whole document.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// The pointer as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The value that it names, `null` included; `None` if it names nothing.
    pub fn resolve<'a>(&self, value: Value<'a>) -> Option<Value<'a>> {
        walk(&self.tokens, value)
    }
}

/// Follows tokens from a value on.
pub(super) fn walk<'a>(tokens: &[String], value: Value<'a>) -> Option<Value<'a>> {
    tokens.iter().try_fold(value, |at, token| match at.kind() {
        Kind::Object => at.get(token),
        Kind::Array => at.at(index(token)?),
        Kind::Bool | Kind::Null | Kind::Number | Kind::String => None,
    })
}

fn index(token: &str) -> Option<usize> {
    let is_canonical = token == "0"
        || (!token.starts_with('0')
            && !token.is_empty()
            && token.bytes().all(|byte| byte.is_ascii_digit()));
    if is_canonical { token.parse().ok() } else { None }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pointer({:?})", self.text)
    }
}
