//! The hand that takes the tree apart: closed member lists, words, numbers, durations.
//!
//! Every function reports what it cannot take, at the very token, and gives `None`; the caller goes
//! on with the rest, so that one run finds everything. A member that is not in its list is an error
//! with the nearest known one (contract section 9, case I4).

use super::diagnostic::{At, Diagnostic, Findings, Severity, nearest};
use super::tree::{Data, Entry, Node, Span, is_json_number};

/// The largest integer that every JSON reader keeps (2^53-1).
pub(super) const MAX_SAFE_INTEGER: u64 = 9_007_199_254_740_991;

/// A value and the place it was read from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spanned<T> {
    pub(super) value: T,
    pub(super) span: Span,
}

/// What is read where, and where its findings go.
pub(super) struct Reading<'a> {
    pub(super) findings: &'a mut Findings,
    pub(super) at: At<'a>,
}

impl Reading<'_> {
    pub(super) fn error(
        &mut self,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        self.findings.add(self.at, Severity::Error, code, span, message)
    }

    pub(super) fn warning(
        &mut self,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        self.findings.add(self.at, Severity::Warning, code, span, message)
    }

    pub(super) fn info(
        &mut self,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        self.findings.add(self.at, Severity::Info, code, span, message)
    }

    /// The members of a mapping that has no others than these.
    pub(super) fn fields<'t>(
        &mut self,
        node: &'t Node,
        what: &'static str,
        known: &[&'static str],
    ) -> Option<Fields<'t>> {
        let fields = self.mapping(node, what)?;
        for entry in node.entries() {
            if !known.contains(&entry.name.as_str()) {
                self.unknown_member(entry, what, known);
            }
        }
        Some(fields)
    }

    pub(super) fn unknown_member(&mut self, entry: &Entry, what: &str, known: &[&'static str]) {
        let near = if self.findings.is_full() { None } else { nearest(&entry.name, known) };
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the members of {what} are {}", list(known)),
        };
        let message = format!("`{}` is no member of {what}", entry.name);
        self.error("policy/unknown_member", entry.span, message).help(help);
    }

    /// A mapping, whatever its members.
    pub(super) fn mapping<'t>(&mut self, node: &'t Node, what: &'static str) -> Option<Fields<'t>> {
        match node.data {
            Data::Mapping(_) => Some(Fields { node, what }),
            Data::Bool(_) | Data::Null | Data::Number(_) | Data::Sequence(_) | Data::String(_) => {
                self.wrong_type(node, what, "a mapping");
                None
            }
        }
    }

    pub(super) fn wrong_type(&mut self, node: &Node, what: &str, expected: &str) {
        let message = format!("{what} is {}, not {expected}", node.kind_name());
        let help = match (&node.data, expected) {
            (Data::Number(_) | Data::Bool(_) | Data::Null, "text") => "quote it if it is text",
            (Data::String(_), "true or false") => "write `true` or `false`, unquoted",
            _ => {
                return self
                    .error("policy/wrong_type", node.span, message)
                    .help(format!("give {expected} here"));
            }
        };
        self.error("policy/wrong_type", node.span, message).help(help);
    }

    pub(super) fn text<'t>(&mut self, node: &'t Node, what: &str) -> Option<&'t str> {
        let text = node.as_str();
        if text.is_none() {
            self.wrong_type(node, what, "text");
        }
        text
    }

    pub(super) fn flag(&mut self, node: &Node, what: &str) -> Option<bool> {
        if let Data::Bool(value) = node.data {
            return Some(value);
        }
        self.wrong_type(node, what, "true or false");
        None
    }

    pub(super) fn sequence<'t>(&mut self, node: &'t Node, what: &str) -> Option<&'t [Node]> {
        let elements = node.as_sequence();
        if elements.is_none() {
            self.wrong_type(node, what, "a list");
        }
        elements
    }

    /// A whole number from `least` to 2^53-1.
    pub(super) fn integer(&mut self, node: &Node, what: &str, least: u64) -> Option<u64> {
        let Data::Number(text) = &node.data else {
            self.wrong_type(node, what, "a whole number");
            return None;
        };
        match text.parse::<u64>() {
            Ok(value) if (least..=MAX_SAFE_INTEGER).contains(&value) => Some(value),
            Ok(_) | Err(_) => {
                let message = format!("{what} is {text}");
                self.error("policy/out_of_range", node.span, message)
                    .help(format!("give a whole number from {least} to {MAX_SAFE_INTEGER}"));
                None
            }
        }
    }

    /// One of a closed set of words.
    pub(super) fn word<T: Copy>(
        &mut self,
        node: &Node,
        what: &str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let known: Vec<&'static str> = words.iter().map(|(word, _)| *word).collect();
        let Some(text) = node.as_str() else {
            let message = format!("{what} is {}", node.kind_name());
            let help = format!("it is one of {}", list(&known));
            self.error("policy/wrong_type", node.span, message).help(help);
            return None;
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let help = match nearest(text, &known) {
            Some(near) => format!("did you mean `{near}`? It is one of {}", list(&known)),
            None => format!("it is one of {}", list(&known)),
        };
        self.error("policy/unknown_word", node.span, format!("`{text}` is no {what}")).help(help);
        None
    }

    /// A duration such as `24h`, `30m`, `7d`, `90s` or `5000ms`, in milliseconds.
    pub(super) fn duration_ms(&mut self, node: &Node, what: &str) -> Option<u64> {
        let milliseconds = node.as_str().and_then(|text| {
            let digits = text.trim_end_matches(|c: char| c.is_ascii_lowercase());
            let unit = match text.get(digits.len()..)? {
                "ms" => 1,
                "s" => 1_000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return None,
            };
            let is_plain = is_json_number(digits) && digits.bytes().all(|b| b.is_ascii_digit());
            let count = if is_plain { digits.parse::<u64>().ok()? } else { return None };
            count.checked_mul(unit).filter(|ms| (1..=MAX_SAFE_INTEGER).contains(ms))
        });
        if milliseconds.is_none() {
            self.error("policy/duration", node.span, format!("{what} is no duration"))
                .help("write a whole number and a unit: `5000ms`, `90s`, `30m`, `24h` or `7d`");
        }
        milliseconds
    }

    /// The place of a part of a scalar: `offset` bytes into its text. The whole scalar where its
    /// text is not written as it reads (escapes, folded lines).
    pub(super) fn inside(&self, node: &Node, offset: usize) -> Span {
        let (Some(text), Some(raw)) = (node.as_str(), self.at.source.text.get(node.span.range()))
        else {
            return node.span;
        };
        let lead = match raw.chars().next() {
            Some('"' | '\'') => 1,
            Some(_) | None => 0,
        };
        let start = node.span.start.saturating_add(lead);
        let end = start.saturating_add(text.len());
        if self.at.source.text.get(start..end) != Some(text) {
            return node.span;
        }
        let from = start.saturating_add(offset.min(text.len()));
        // A fault at the end of a text is shown at its last byte.
        if from >= end {
            Span { start: end.saturating_sub(1).max(start), end }
        } else {
            Span { start: from, end }
        }
    }
}

/// The members of one mapping.
#[derive(Clone, Copy)]
pub(super) struct Fields<'t> {
    pub(super) node: &'t Node,
    what: &'static str,
}

impl<'t> Fields<'t> {
    pub(super) fn entry(&self, name: &str) -> Option<&'t Entry> {
        self.node.entries().iter().find(|entry| entry.name == name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'t Node> {
        self.node.get(name)
    }

    /// The member, which must be there.
    pub(super) fn require(&self, reading: &mut Reading<'_>, name: &str) -> Option<&'t Node> {
        let value = self.get(name);
        if value.is_none() {
            let message = format!("{} has no `{name}`", self.what);
            reading
                .error("policy/missing_member", self.node.span, message)
                .help(format!("add `{name}`"));
        }
        value
    }
}

/// Names in a sentence: `` `a`, `b` and `c` ``.
pub(super) fn list(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        [only] => format!("`{only}`"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(|name| format!("`{name}`")).collect();
            format!("{} and `{last}`", first.join(", "))
        }
    }
}

/// The words of one of the contract's closed enums.
macro_rules! words_of {
    ($name:ty) => {
        <$name>::ALL.iter().map(|value| (value.as_str(), *value)).collect::<Vec<_>>()
    };
}
pub(super) use words_of;
