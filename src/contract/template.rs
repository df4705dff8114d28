//! Path templates: `/repos/{owner}/files/{name}.json`, `/v1/{id}:cancel`, `/git/refs/{*ref}`.
//!
//! A segment is a literal, or one `{name}` with text beside it on either side; `{*name}` may be the
//! last segment and takes one or more. Paths are matched as they came, still encoded, and compared on
//! a form in which only unreserved characters are decoded and hexadecimal case does not matter, so
//! `%7Eu` is `~u` and `%3a` is `%3A`, but neither is `:`. A trailing slash is significant.
//!
//! Limits: [`MAX_TEMPLATE`] bytes, [`MAX_SEGMENTS`] segments, distinct names. Ambiguous paths (dot or
//! empty segments, encoded slashes) are the caller's to refuse before.

use std::fmt;

/// The longest template that is read, in bytes.
pub const MAX_TEMPLATE: usize = 1024;

/// How many segments a template may have.
pub const MAX_SEGMENTS: usize = 64;

/// A template that was read.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

/// One segment of a template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Fixed text; empty for a trailing slash.
    Literal(String),
    /// `prefix{name}suffix`
    Parameter {
        /// Fixed text before the value.
        prefix: String,
        /// The parameter's name.
        name: String,
        /// Fixed text after the value.
        suffix: String,
    },
    /// `{*name}`: this segment and all that follow; last.
    Rest {
        /// The parameter's name.
        name: String,
    },
}

/// Why a text is no template, and at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at byte {offset}")]
pub struct TemplateError {
    /// The zero-based offset of the byte that cannot be.
    pub offset: usize,
    /// What is wrong there.
    pub reason: &'static str,
}

/// How one template compares with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specificity {
    /// Neither takes every path that the other takes.
    Incomparable,
    /// Takes every path that the other takes, and more.
    Less,
    /// Takes only paths that the other takes, and not all.
    More,
    /// Takes the same paths.
    Same,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    ///
    /// The first byte that cannot be, and why.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let fault = |offset, reason| Err(TemplateError { offset, reason });
        if text.len() > MAX_TEMPLATE {
            return fault(MAX_TEMPLATE, "a template is at most 1024 bytes long");
        }
        let Some(rest) = text.strip_prefix('/') else {
            return fault(0, "a template starts with `/`");
        };
        let mut parts: Vec<Part> = Vec::new();
        let mut offset: usize = 1;
        let mut segments = rest.split('/').peekable();
        while let Some(segment) = segments.next() {
            let is_last = segments.peek().is_none();
            if parts.len() == MAX_SEGMENTS {
                return fault(offset, "a template has at most 64 segments");
            }
            if segment.is_empty() && !is_last {
                return fault(offset, "only a trailing segment may be empty");
            }
            let part = Part::parse(segment, offset)?;
            if matches!(part, Part::Rest { .. }) && !is_last {
                return fault(offset, "`{*name}` must be the last segment");
            }
            if part.name().is_some_and(|name| parts.iter().any(|p| p.name() == Some(name))) {
                return fault(offset, "a parameter's name is used twice");
            }
            parts.push(part);
            offset = offset.saturating_add(segment.len()).saturating_add(1);
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// Its segments in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The names of its parameters in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(Part::name)
    }

    /// The template as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The values of its parameters in this path, still encoded, in order; `None` if the path is
    /// another. The path is without query and fragment.
    pub fn matches<'p>(&self, path: &'p str) -> Option<Vec<(&str, &'p str)>> {
        let mut rest = Some(path.strip_prefix('/')?);
        let mut values = Vec::new();
        for part in &self.parts {
            let remainder = rest?;
            if let Part::Rest { name } = part {
                let is_some = !remainder.is_empty() && !remainder.starts_with('/');
                if !is_some {
                    return None;
                }
                values.push((name.as_str(), remainder));
                return Some(values);
            }
            let segment = match remainder.split_once('/') {
                Some((segment, following)) => {
                    rest = Some(following);
                    segment
                }
                None => {
                    rest = None;
                    remainder
                }
            };
            match part {
                Part::Literal(literal) if is_same(literal, segment) => {}
                Part::Literal(_) | Part::Rest { .. } => return None,
                Part::Parameter { prefix, name, suffix } => {
                    values.push((name.as_str(), value_between(segment, prefix, suffix)?));
                }
            }
        }
        rest.is_none().then_some(values)
    }

    /// The path with these values, which must be encoded already; `None` if one is missing.
    pub fn build(&self, value: impl Fn(&str) -> Option<String>) -> Option<String> {
        let mut path = String::with_capacity(self.text.len());
        for part in &self.parts {
            path.push('/');
            match part {
                Part::Literal(literal) => path.push_str(literal),
                Part::Parameter { prefix, name, suffix } => {
                    path.push_str(prefix);
                    path.push_str(&value(name)?);
                    path.push_str(suffix);
                }
                Part::Rest { name } => path.push_str(&value(name)?),
            }
        }
        Some(path)
    }

    /// How this template compares with another, segment by segment: a literal is more specific than
    /// a parameter with text, that than a bare parameter, that than `{*rest}`.
    ///
    /// Templates that no path satisfies together, and those of which one is more specific in one
    /// segment and less in another, are incomparable. So are different numbers of segments, except
    /// where a `{*rest}` takes the difference.
    pub fn specificity(&self, other: &Self) -> Specificity {
        let mut total = Specificity::Same;
        let mut left = self.parts.iter();
        let mut right = other.parts.iter();
        loop {
            let (step, is_end) = match (left.next(), right.next()) {
                (None, None) => return total,
                (None, Some(_)) | (Some(_), None) => return Specificity::Incomparable,
                (Some(Part::Rest { .. }), Some(Part::Rest { .. })) => (Specificity::Same, true),
                (Some(Part::Rest { .. }), Some(part)) => (rest_against(part).reversed(), true),
                (Some(part), Some(Part::Rest { .. })) => (rest_against(part), true),
                (Some(left), Some(right)) => (left.specificity(right), false),
            };
            total = match (total, step) {
                (Specificity::Same, step) => step,
                (total, Specificity::Same) => total,
                (total, step) if total == step => total,
                (_, _) => return Specificity::Incomparable,
            };
            if is_end {
                return total;
            }
        }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({:?})", self.text)
    }
}

impl Specificity {
    /// The comparison seen from the other side.
    pub fn reversed(self) -> Self {
        match self {
            Self::Less => Self::More,
            Self::More => Self::Less,
            Self::Incomparable | Self::Same => self,
        }
    }
}

impl Part {
    /// The parameter's name, if it is one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::Parameter { name, .. } | Self::Rest { name } => Some(name),
        }
    }

    fn parse(segment: &str, offset: usize) -> Result<Self, TemplateError> {
        let fault =
            |at: usize, reason| Err(TemplateError { offset: offset.saturating_add(at), reason });
        let Some((prefix, rest)) = segment.split_once('{') else {
            check_text(segment, offset)?;
            if is_same(segment, ".") || is_same(segment, "..") {
                return fault(0, "a dot segment is no literal");
            }
            return Ok(Self::Literal(segment.to_owned()));
        };
        check_text(prefix, offset)?;
        let name_at = prefix.len().saturating_add(1);
        let Some((name, suffix)) = rest.split_once('}') else {
            return fault(prefix.len(), "`{` is not closed in its segment");
        };
        let suffix_at = name_at.saturating_add(name.len()).saturating_add(1);
        if let Some(at) = suffix.find('{') {
            return fault(suffix_at.saturating_add(at), "a segment has at most one parameter");
        }
        check_text(suffix, offset.saturating_add(suffix_at))?;
        let (name, is_rest) = match name.strip_prefix('*') {
            Some(name) => (name, true),
            None => (name, false),
        };
        let is_name_byte =
            |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'$' | b'~');
        if name.is_empty() || !name.bytes().all(is_name_byte) {
            return fault(name_at, "a parameter's name is letters, digits and any of `_-.$~`");
        }
        if !is_rest {
            let (prefix, suffix) = (prefix.to_owned(), suffix.to_owned());
            return Ok(Self::Parameter { prefix, name: name.to_owned(), suffix });
        }
        if !prefix.is_empty() || !suffix.is_empty() {
            return fault(0, "`{*name}` takes its whole segment");
        }
        Ok(Self::Rest { name: name.to_owned() })
    }

    fn specificity(&self, other: &Self) -> Specificity {
        match (self, other) {
            (Self::Literal(left), Self::Literal(right)) => {
                if is_same(left, right) {
                    Specificity::Same
                } else {
                    Specificity::Incomparable
                }
            }
            (Self::Literal(literal), Self::Parameter { prefix, suffix, .. }) => {
                match value_between(literal, prefix, suffix) {
                    Some(_) => Specificity::More,
                    None => Specificity::Incomparable,
                }
            }
            (Self::Parameter { .. } | Self::Rest { .. }, Self::Literal(_)) => {
                other.specificity(self).reversed()
            }
            (
                Self::Parameter { prefix: prefix_a, suffix: suffix_a, .. },
                Self::Parameter { prefix: prefix_b, suffix: suffix_b, .. },
            ) => {
                let is_narrower = starts_with(prefix_a, prefix_b) && ends_with(suffix_a, suffix_b);
                let is_wider = starts_with(prefix_b, prefix_a) && ends_with(suffix_b, suffix_a);
                match (is_narrower, is_wider) {
                    (true, true) => Specificity::Same,
                    (true, false) => Specificity::More,
                    (false, true) => Specificity::Less,
                    (false, false) => Specificity::Incomparable,
                }
            }
            (Self::Rest { .. }, Self::Rest { .. }) => Specificity::Same,
            (part, Self::Rest { .. }) => rest_against(part),
            (Self::Rest { .. }, part) => rest_against(part).reversed(),
        }
    }
}

/// How a part that is no rest compares with a rest. A trailing slash is what a rest never takes.
fn rest_against(part: &Part) -> Specificity {
    match part {
        Part::Literal(literal) if literal.is_empty() => Specificity::Incomparable,
        Part::Literal(_) | Part::Parameter { .. } => Specificity::More,
        Part::Rest { .. } => Specificity::Same,
    }
}

/// Fixed text is what can stand in a path: visible ASCII without `?`, `#`, braces or `\`, with `%`
/// only before two hexadecimal digits.
fn check_text(text: &str, offset: usize) -> Result<(), TemplateError> {
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        let reason = match byte {
            b'{' | b'}' => "a brace that opens or closes nothing",
            b'?' | b'#' => "a template has no query or fragment",
            b'%' => {
                let digits = bytes.get(at.saturating_add(1)..at.saturating_add(3));
                if digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    continue;
                }
                "`%` must be followed by two hexadecimal digits"
            }
            b'\\' => "a backslash cannot stand in a path",
            0x21..=0x7e => continue,
            _ => "only visible ASCII can stand in a path; encode the rest",
        };
        return Err(TemplateError { offset: offset.saturating_add(at), reason });
    }
    Ok(())
}

/// A character as paths are compared: a byte, or an encoded byte that is not unreserved.
type Unit = u16;

/// The characters of a text, each with the offset just past it.
fn units(text: &str) -> impl Iterator<Item = (Unit, usize)> {
    let bytes = text.as_bytes();
    let mut at: usize = 0;
    std::iter::from_fn(move || {
        let byte = *bytes.get(at)?;
        let encoded = if byte == b'%' { encoded_byte(bytes, at) } else { None };
        let (unit, length) = match encoded {
            Some(byte) if is_unreserved(byte) => (Unit::from(byte), 3),
            Some(byte) => (Unit::from(byte) | 0x100, 3),
            None => (Unit::from(byte), 1),
        };
        at = at.saturating_add(length);
        Some((unit, at))
    })
}

fn encoded_byte(bytes: &[u8], at: usize) -> Option<u8> {
    let digit = |offset: usize| {
        let byte = bytes.get(at.saturating_add(offset)).copied()?;
        u8::try_from(char::from(byte).to_digit(16)?).ok()
    };
    Some((digit(1)? << 4) | digit(2)?)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn is_same(left: &str, right: &str) -> bool {
    left == right || units(left).map(|(unit, _)| unit).eq(units(right).map(|(unit, _)| unit))
}

fn starts_with(text: &str, prefix: &str) -> bool {
    let mut text = units(text);
    units(prefix).all(|(wanted, _)| text.next().is_some_and(|(unit, _)| unit == wanted))
}

fn ends_with(text: &str, suffix: &str) -> bool {
    let extra = units(text).count().checked_sub(units(suffix).count());
    extra.is_some_and(|extra| {
        let tail = units(text).skip(extra).map(|(unit, _)| unit);
        tail.eq(units(suffix).map(|(unit, _)| unit))
    })
}

/// What stands between a prefix and a suffix in a segment; at least one character.
fn value_between<'p>(segment: &'p str, prefix: &str, suffix: &str) -> Option<&'p str> {
    if prefix.is_empty() && suffix.is_empty() {
        return (!segment.is_empty()).then_some(segment);
    }
    let before = units(prefix).count();
    let after = units(suffix).count();
    let value = units(segment).count().checked_sub(before)?.checked_sub(after)?;
    if value == 0 || !starts_with(segment, prefix) || !ends_with(segment, suffix) {
        return None;
    }
    let past = |count: usize| match count.checked_sub(1) {
        None => Some(0),
        Some(last) => units(segment).nth(last).map(|(_, end)| end),
    };
    segment.get(past(before)?..past(before.saturating_add(value))?)
}
