//! How paths are spelt: the form in which they are compared, how another reader may read one, and the form
//! in which lenient upstreams compare them.

use std::borrow::Cow;

use crate::contract::key::to_hex;
use crate::contract::template::{Part, Template};

/// A segment as paths are compared: unreserved characters decoded, the other escapes in upper case.
pub(in crate::policy) fn normal(segment: &str) -> Cow<'_, str> {
    if !segment.contains('%') {
        return Cow::Borrowed(segment);
    }
    let mut out = String::with_capacity(segment.len());
    let mut rest = segment;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let digits = after.get(..2).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(digits) = digits else {
            out.push('%');
            rest = after;
            continue;
        };
        let byte = u8::from_str_radix(digits, 16).unwrap_or(b'%');
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&digits.to_ascii_uppercase());
        }
        rest = after.get(2..).unwrap_or_default();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Which escapes a path is read with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Escapes {
    /// None of a character that can be seen, but for those that would change the path's shape.
    Less,
    /// Each reserved character's.
    More,
}

/// The characters that a path may hold as they are or escaped, and that readers take for the same or for
/// two (RFC 3986 section 2.2).
fn is_reserved(byte: u8) -> bool {
    byte.is_ascii_punctuation()
        && !matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/' | b'%' | b'?' | b'#' | b'\\' | b';')
}

/// A path as another reader reads it, who takes escapes off before he looks, or never does.
pub(super) fn escaped(path: &str, escapes: Escapes) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(character) = rest.chars().next() {
        let byte = rest.as_bytes().first().copied().unwrap_or_default();
        let digits = rest.get(1..3).filter(|_| byte == b'%');
        let escape = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (length, known) = match escape {
            Some(escape) => (3, Some(escape).filter(|escape| is_reserved(*escape))),
            None => (character.len_utf8(), Some(byte).filter(|byte| is_reserved(*byte))),
        };
        match (known, escapes) {
            (Some(known), Escapes::Less) => out.push(char::from(known)),
            (Some(known), Escapes::More) => {
                out.push('%');
                out.push_str(&to_hex(&[known]).to_ascii_uppercase());
            }
            (None, _) => out.push_str(rest.get(..length).unwrap_or_default()),
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    out
}

/// Whether a template's fixed text has an escape of a character that may stand as it is.
pub(super) fn has_escape(part: &Part) -> bool {
    let is_escaped = |text: &str| text.contains('%') && escaped(text, Escapes::Less) != text;
    match part {
        Part::Literal(text) => is_escaped(text),
        Part::Parameter { prefix, suffix, .. } => is_escaped(prefix) || is_escaped(suffix),
        Part::Rest { .. } => false,
    }
}

/// A segment as lenient upstreams compare it.
fn lenient(segment: &str) -> String {
    let text = escaped(&normal(segment), Escapes::Less).to_ascii_lowercase();
    // As a template would write them.
    text.replace('{', "%7b").replace('}', "%7d")
}

/// A path in the form in which lenient upstreams compare it.
pub(super) fn folded(path: &str) -> String {
    let segments: Vec<String> = path.split('/').map(lenient).collect();
    let text = segments.join("/");
    let trimmed = text.trim_end_matches('/');
    if trimmed.is_empty() { "/".to_owned() } else { trimmed.to_owned() }
}

/// A template whose fixed text is folded.
pub(super) fn folded_template(template: &Template) -> Template {
    let mut text = String::new();
    for part in template.parts() {
        text.push('/');
        match part {
            Part::Literal(literal) => text.push_str(&lenient(literal)),
            Part::Parameter { prefix, name, suffix } => {
                text.push_str(&lenient(prefix));
                text.push('{');
                text.push_str(name);
                text.push('}');
                text.push_str(&lenient(suffix));
            }
            Part::Rest { name } => {
                text.push_str("{*");
                text.push_str(name);
                text.push('}');
            }
        }
    }
    let trimmed = text.trim_end_matches('/');
    Template::parse(if trimmed.is_empty() { "/" } else { trimmed })
        .unwrap_or_else(|_| template.clone())
}
