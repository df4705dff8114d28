//! Templates whose paths are all refused before they are matched (contract section 3.1).
//!
//! The path rules hold for what an agent asks; a template that is written against them is an operation
//! that no call ever is, while its author takes it for a rule that holds. The rules are those of
//! `http/target.rs`, which lies above this layer; a test there holds the two against each other.

use crate::contract::operation::{Allow, Target};
use crate::contract::template::Part;

use super::file::Declared;
use super::reading::Reading;

/// Why no path that is fixed in this way is ever matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Never {
    /// Nothing allows it.
    Always(&'static str),
    /// `allow: { encoded_slash: true }` does.
    EncodedSlash,
}

/// Says that the operation is never a call's, if its template is so written.
pub(super) fn check(reading: &mut Reading<'_>, declared: &Declared<'_>) {
    let Some(Target::Http { method, template }) = &declared.target else { return };
    if *method == http::Method::TRACE {
        reading
            .warning(
                "policy/unreachable",
                declared.match_span,
                "no call can be this: TRACE is refused",
            )
            .help("remove it");
        return;
    }
    if template.parts().iter().any(is_a_pattern_elsewhere) {
        reading
            .warning(
                "policy/literal_pattern",
                declared.match_span,
                "`*` and `:name` are text here, which only a path with that text is",
            )
            .help("a parameter is `{name}`, the rest of a path `{*name}`");
    }
    let Some(never) = template.parts().iter().find_map(|part| of(part, declared.allow)) else {
        return;
    };
    let (what, help) = match never {
        Never::Always(what) => (what, "write the path as the gateway takes it without that"),
        Never::EncodedSlash => {
            ("an encoded slash", "say `allow: { encoded_slash: true }`, if the gateway takes it")
        }
    };
    let message = format!("no call can be this: a path with {what} is refused");
    reading.warning("policy/unreachable", declared.match_span, message).help(help);
}

/// Whether a segment's text is what other programs write for a parameter.
fn is_a_pattern_elsewhere(part: &Part) -> bool {
    match part {
        Part::Literal(text) => text.contains('*') || (text.starts_with(':') && text.len() > 1),
        Part::Parameter { .. } | Part::Rest { .. } => false,
    }
}

/// What is wrong with every path that this segment is a part of.
fn of(part: &Part, allow: Allow) -> Option<Never> {
    let text = match part {
        Part::Literal(text) => text.clone(),
        // A value that is wrong nowhere.
        Part::Parameter { prefix, suffix, .. } => format!("{prefix}x{suffix}"),
        Part::Rest { .. } => return None,
    };
    let decoded: Vec<u8> = percent_encoding::percent_decode_str(&text).collect();
    for byte in &decoded {
        let what = match byte {
            0 => "a NUL",
            b';' => "a `;` parameter",
            b'\\' => "a backslash",
            1..=0x1f | 0x7f => "a control character",
            _ => continue,
        };
        return Some(Never::Always(what));
    }
    if std::str::from_utf8(&decoded).is_err() {
        return Some(Never::Always("a percent-encoding that is not UTF-8"));
    }
    if decoded.split(|byte| *byte == b'/').any(|part| matches!(part, b"." | b"..")) {
        return Some(Never::Always("a dot segment"));
    }
    let whole = std::str::from_utf8(&decoded).unwrap_or_default();
    let is_padding = |character: char| character == '.' || character.is_whitespace();
    if !whole.is_empty() && whole.chars().all(is_padding) {
        return Some(Never::Always("a segment of nothing but dots and spaces"));
    }
    (decoded.contains(&b'/') && !allow.encoded_slash).then_some(Never::EncodedSlash)
}
