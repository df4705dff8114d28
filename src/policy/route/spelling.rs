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

/// A piece of a path as lenient upstreams compare it, its spaces and letters beyond ASCII as they are.
fn lenient(text: &str) -> String {
    let text = escaped(&normal(text), Escapes::Less);
    let text = if text.contains('%') { unescaped(text) } else { text };
    if text.is_ascii() {
        text.to_ascii_lowercase()
    } else {
        text.chars().flat_map(caseless).collect()
    }
}

/// A text without the escapes of spaces and of letters beyond ASCII, if they are UTF-8.
fn unescaped(text: String) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let escape = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .filter(|escape| *escape == b' ' || !escape.is_ascii());
        out.push(escape.unwrap_or(*first));
        rest = if escape.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8(out).unwrap_or(text)
}

/// A letter without its case: readers compare by the capital, by the small one, or by both.
fn caseless(letter: char) -> impl Iterator<Item = char> {
    // The one capital whose small form is two characters.
    let letter = if letter == '\u{130}' { 'i' } else { letter };
    letter.to_uppercase().flat_map(char::to_lowercase)
}

/// As a template would write it.
fn written(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() && !matches!(character, ' ' | '{' | '}') {
            out.push(character);
            continue;
        }
        for byte in character.encode_utf8(&mut [0; 4]).bytes() {
            out.push('%');
            out.push_str(&to_hex(&[byte]));
        }
    }
    out
}

/// What some upstreams take off a segment's start.
fn started(text: &str) -> &str {
    text.trim_start()
}

/// What some upstreams take off its end: the file names of some systems have no dots and spaces there.
fn ended(text: &str) -> &str {
    text.trim_end_matches(|character: char| character == '.' || character.is_whitespace())
}

/// A path in the form in which lenient upstreams compare it: without case, escapes that may be taken off,
/// spaces around a segment, dots at its end, and a slash at the path's.
pub(super) fn folded(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for segment in path.strip_prefix('/').unwrap_or(path).split('/') {
        text.push('/');
        text.push_str(&written(ended(started(&lenient(segment)))));
    }
    text.truncate(text.trim_end_matches('/').len());
    if text.is_empty() { "/".to_owned() } else { text }
}

/// A template that takes the [`folded`] form of the paths that this one takes; `is_wide`: of all of them,
/// and of more. Without it, of those whose parameters stand where its text says.
pub(super) fn folded_template(template: &Template, is_wide: bool) -> Template {
    let parts = template.parts().iter().map(|part| match part {
        Part::Literal(literal) => written(ended(started(&lenient(literal)))),
        Part::Parameter { name, .. } if is_wide => format!("{{{name}}}"),
        Part::Parameter { prefix, name, suffix } => {
            let (prefix, suffix) = (lenient(prefix), lenient(suffix));
            format!("{}{{{name}}}{}", written(started(&prefix)), written(ended(&suffix)))
        }
        Part::Rest { name } => format!("{{*{name}}}"),
    });
    let text: String = parts.flat_map(|part| ["/".to_owned(), part]).collect();
    let trimmed = text.trim_end_matches('/');
    Template::parse(if trimmed.is_empty() { "/" } else { trimmed })
        .unwrap_or_else(|_| template.clone())
}
