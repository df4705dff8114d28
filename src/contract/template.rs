//! Path templates: `/repos/{owner}/files/{name}.json`, `/v1/{id}:cancel`, `/git/refs/{*ref}`.
//!
//! A segment is a literal, or one `{name}` with text beside it on either side; `{*name}` may be the
//! last segment and takes one or more. Paths are matched as they came, still encoded, and compared
//! on a form in which only unreserved characters are decoded and hexadecimal case does not matter,
//! so `%7Eu` is `~u` and `%3a` is `%3A`, but neither is `:`. A trailing slash is significant.
//!
//! Limits: [`MAX_TEMPLATE`] bytes, [`MAX_SEGMENTS`] segments, distinct names. Ambiguous paths (dot
//! or empty segments, encoded slashes) are the caller's to refuse before.

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn template(text: &str) -> Template {
        Template::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn matched(text: &str, path: &str) -> Option<String> {
        let template = template(text);
        let values = template.matches(path)?;
        let texts: Vec<String> = values.iter().map(|(name, v)| format!("{name}={v}")).collect();
        Some(texts.join(" "))
    }

    #[test]
    fn c_4_text_beside_a_parameter_is_no_part_of_its_value() {
        let twilio = "/2010-04-01/Accounts/{AccountSid}/Messages/{Sid}.json";
        let cases = [
            (twilio, "/2010-04-01/Accounts/AC1/Messages/SM2.json", Some("AccountSid=AC1 Sid=SM2")),
            (twilio, "/2010-04-01/Accounts/AC1/Messages/SM2", None),
            (twilio, "/2010-04-01/Accounts/AC1/Messages/.json", None),
            (
                twilio,
                "/2010-04-01/Accounts/AC1/Messages/a.json.json",
                Some("AccountSid=AC1 Sid=a.json"),
            ),
            ("/keypairs/{id}:disable", "/keypairs/k1:disable", Some("id=k1")),
            ("/keypairs/{id}:disable", "/keypairs/k1:enable", None),
            ("/keypairs/{id}:disable", "/keypairs/k1%3Adisable", None),
            ("/v{version}", "/v2", Some("version=2")),
        ];
        for (text, path, expected) in cases {
            assert_eq!(matched(text, path).as_deref(), expected, "{text} {path}");
        }
    }

    #[test]
    fn c_8_segments_match_as_a_whole() {
        let cases = [
            ("/v1/reports", "/v1/reports", Some("")),
            ("/v1/reports", "/v1/reports-delete", None),
            ("/v1/reports", "/v1/report", None),
            ("/v1/reports", "/v1/reports/../x", None),
            ("/v1/reports", "/v1/reports/", None),
            ("/v1/reports/", "/v1/reports/", Some("")),
            ("/v1/reports/", "/v1/reports", None),
            ("/v1/reports", "/v1/Reports", None),
            ("/v1/reports", "v1/reports", None),
            ("/v1/reports", "/v1//reports", None),
            ("/{a}", "/", None),
            ("/{a}", "/x", Some("a=x")),
            ("/{a}", "/x/y", None),
            ("/{a}/{b}", "//x", None),
            ("/", "/", Some("")),
            ("/", "", None),
            ("/", "//", None),
        ];
        for (text, path, expected) in cases {
            assert_eq!(matched(text, path).as_deref(), expected, "{text} {path}");
        }
    }

    #[test]
    fn k_7_a_rest_takes_one_or_more_segments() {
        let cases = [
            ("/contents/{*path}", "/contents/a", Some("path=a")),
            ("/contents/{*path}", "/contents/a/b/c", Some("path=a/b/c")),
            ("/contents/{*path}", "/contents/a%2Fb", Some("path=a%2Fb")),
            ("/contents/{*path}", "/contents/", None),
            ("/contents/{*path}", "/contents", None),
            ("/contents/{*path}", "/contents//a", None),
            ("/{*all}", "/a/", Some("all=a/")),
        ];
        for (text, path, expected) in cases {
            assert_eq!(matched(text, path).as_deref(), expected, "{text} {path}");
        }
    }

    #[test]
    fn encoded_unreserved_characters_are_the_same_and_others_are_not() {
        let cases = [
            ("/a~b", "/%61%7Eb", Some("")),
            ("/a~b", "/%61%7eb", Some("")),
            ("/%7Eu", "/~u", Some("")),
            ("/a%3ab", "/a%3Ab", Some("")),
            ("/a:b", "/a%3Ab", None),
            ("/a%3Ab", "/a:b", None),
            ("/{id}.json", "/x%2Ejson", Some("id=x")),
            ("/{id}.json", "/%78%2ejson", Some("id=%78")),
            ("/{id}A", "/x%3A", None),
            ("/%3A{id}", "/%3ax", Some("id=x")),
            ("/{id}", "/%zz", Some("id=%zz")),
            ("/{id}", "/é", Some("id=é")),
            ("/{id}x", "/éx", Some("id=é")),
        ];
        for (text, path, expected) in cases {
            assert_eq!(matched(text, path).as_deref(), expected, "{text} {path}");
        }
    }

    #[test]
    fn texts_that_are_no_templates_say_where() {
        let deep = "/a".repeat(MAX_SEGMENTS);
        let long = format!("/{}", "a".repeat(MAX_TEMPLATE - 1));
        let cases = [
            ("", Some(0)),
            ("a", Some(0)),
            ("//a", Some(1)),
            ("/a//", Some(3)),
            ("/a/{", Some(3)),
            ("/a/{b", Some(3)),
            ("/a/b}", Some(4)),
            ("/a/{b}}", Some(6)),
            ("/a/{}", Some(4)),
            ("/a/{*}", Some(4)),
            ("/a/{b/c}", Some(3)),
            ("/a/{b c}", Some(4)),
            ("/a/{b=c}", Some(4)),
            ("/{a}{b}", Some(4)),
            ("/{a}-{b}", Some(5)),
            ("/{a}/{a}", Some(5)),
            ("/{a}/{*a}", Some(5)),
            ("/{*a}/b", Some(1)),
            ("/{*a}/", Some(1)),
            ("/x{*a}", Some(1)),
            ("/{*a}x", Some(1)),
            ("/a?b", Some(2)),
            ("/a#b", Some(2)),
            ("/a b", Some(2)),
            ("/é", Some(1)),
            ("/a%2", Some(2)),
            ("/a%zz", Some(2)),
            ("/a\\b", Some(2)),
            ("/a/./b", Some(3)),
            ("/a/..", Some(3)),
            ("/a/%2e%2E", Some(3)),
            (&format!("{deep}/a"), Some(deep.len() + 1)),
            (&format!("{long}a"), Some(MAX_TEMPLATE)),
            (&deep, None),
            (&long, None),
            ("/a/", None),
            ("/{a.b}/{c-d}/{$e}", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Template::parse(text).err().map(|e| e.offset), expected, "{text}");
        }
    }

    #[test]
    fn built_paths_hold_every_value_or_are_not_built() {
        let template = template("/a/{b}:x/{*c}");
        let build = |values: &[(&str, &str)]| {
            template.build(|name| {
                values.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
            })
        };

        assert_eq!(build(&[("b", "1"), ("c", "2%2F3")]).as_deref(), Some("/a/1:x/2%2F3"));
        assert_eq!(build(&[("b", "1")]), None);
        assert_eq!(template.names().collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn specificity_is_decided_segment_by_segment() {
        use Specificity::{Incomparable, Less, More, Same};
        let cases = [
            ("/a/b", "/a/b", Same),
            ("/a/{x}", "/a/{y}", Same),
            ("/a/b", "/a/{x}", More),
            ("/a/b.json", "/a/{x}.json", More),
            ("/a/b", "/a/{x}.json", Incomparable),
            ("/a/.json", "/a/{x}.json", Incomparable),
            ("/a/{x}.json", "/a/{x}", More),
            ("/a/p{x}.json", "/a/{x}.json", More),
            ("/a/p{x}", "/a/{x}.json", Incomparable),
            ("/a/{x}", "/a/{*x}", More),
            ("/a/b/c", "/a/{*x}", More),
            ("/{*x}", "/a/{*x}", Less),
            ("/{y}/{*x}", "/a/{*x}", Less),
            ("/a/", "/a/{*x}", Incomparable),
            ("/a/{x}/", "/a/{*x}", More),
            ("/a", "/a/{*x}", Incomparable),
            ("/a/{x}", "/{y}/b", Incomparable),
            ("/a/{x}", "/a/{x}/c", Incomparable),
            ("/a/{x}", "/b/{x}", Incomparable),
            ("/a/%7Eu", "/a/~u", Same),
        ];
        for (left, right, expected) in cases {
            assert_eq!(template(left).specificity(&template(right)), expected, "{left} {right}");
            let reversed = template(right).specificity(&template(left));
            assert_eq!(reversed, expected.reversed(), "{right} {left}");
        }
    }

    /// The characters of a text, each as its own text, in the form in which they are compared.
    fn characters(mut text: &str) -> Vec<String> {
        let same = [("%41", "A"), ("%61", "a"), ("%2e", "."), ("%3a", "%3A"), ("%3A", "%3A")];
        let mut all = Vec::new();
        while !text.is_empty() {
            let known = same.iter().find(|(written, _)| text.starts_with(written));
            let (length, character) = match known {
                Some((written, character)) => (written.len(), (*character).to_owned()),
                None => (1, text[..1].to_owned()),
            };
            all.push(character);
            text = &text[length..];
        }
        all
    }

    /// Matching by splitting both at every slash.
    fn matches_naively(template: &str, path: &str) -> bool {
        let wanted: Vec<&str> = template.split('/').collect();
        let given: Vec<&str> = path.split('/').collect();
        for (position, segment) in wanted.iter().enumerate() {
            if segment.starts_with("{*") {
                return given.get(position).is_some_and(|first| !first.is_empty());
            }
            let Some(value) = given.get(position).map(|segment| characters(segment)) else {
                return false;
            };
            let is_match = match segment.split_once('{') {
                None => value == characters(segment),
                Some((prefix, rest)) => {
                    let prefix = characters(prefix);
                    let suffix = characters(rest.split_once('}').unwrap().1);
                    value.starts_with(&prefix)
                        && value.ends_with(&suffix)
                        && value.len() > prefix.len() + suffix.len()
                }
            };
            if !is_match {
                return false;
            }
        }
        wanted.len() == given.len()
    }

    const TEXT: &str = "(a|A|\\.|:|%41|%61|%2e|%3a|%3A){0,2}";

    fn template_text() -> impl Strategy<Value = String> {
        let segment = prop_oneof![
            2 => TEXT.prop_filter("empty", |text| !text.is_empty()),
            2 => (TEXT, TEXT).prop_map(|(prefix, suffix)| format!("{prefix}{{NAME}}{suffix}")),
        ];
        let last = prop_oneof![
            4 => Just(None),
            1 => Just(Some(String::new())),
            1 => Just(Some("{*rest}".to_owned())),
        ];
        (prop::collection::vec(segment, 1..4), last)
            .prop_map(|(segments, last)| {
                let named = segments.iter().enumerate();
                let mut text: String = named
                    .map(|(n, segment)| format!("/{}", segment.replace("NAME", &format!("p{n}"))))
                    .collect();
                if let Some(last) = last {
                    text.push('/');
                    text.push_str(&last);
                }
                text
            })
            .prop_filter("dot segment", |text| Template::parse(text).is_ok())
    }

    fn path_text() -> impl Strategy<Value = String> {
        prop::collection::vec("(a|A|\\.|:|%41|%61|%2e|%3a|%3A|%){0,4}", 1..5)
            .prop_map(|segments| segments.iter().map(|segment| format!("/{segment}")).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn matching_agrees_with_splitting_both(text in template_text(), path in path_text()) {
            let found = template(&text).matches(&path).is_some();
            prop_assert_eq!(found, matches_naively(&text, &path), "{} {}", text, path);
        }

        #[test]
        fn built_paths_match_their_template(
            text in template_text(), value in "(a|%3A|%2F){1,3}",
        ) {
            let template = template(&text);
            let path = template.build(|_| Some(value.clone())).unwrap();

            let values = template.matches(&path).unwrap();

            prop_assert_eq!(values.len(), template.names().count());
            prop_assert!(values.iter().all(|(_, found)| *found == value));
        }

        #[test]
        fn the_more_specific_of_two_takes_no_path_of_its_own(
            left in template_text(), right in template_text(), path in path_text(),
        ) {
            let (left, right) = (template(&left), template(&right));
            let is_left = left.matches(&path).is_some();
            let is_right = right.matches(&path).is_some();
            match left.specificity(&right) {
                Specificity::More => prop_assert!(!is_left || is_right),
                Specificity::Less => prop_assert!(!is_right || is_left),
                Specificity::Same => prop_assert_eq!(is_left, is_right),
                Specificity::Incomparable => {}
            }
            prop_assert_eq!(right.specificity(&left), left.specificity(&right).reversed());
        }

        #[test]
        fn any_text_is_read_or_refused(
            text in "/?[a{}*/.%é?4 ]{0,16}", path in "/?[a/.%é4 ]{0,16}",
        ) {
            match Template::parse(&text) {
                Ok(template) => {
                    prop_assert_eq!(template.as_str(), text.as_str());
                    let values = template.matches(&path);
                    prop_assert!(values.is_none_or(|v| v.len() == template.names().count()));
                }
                Err(error) => prop_assert!(error.offset <= text.len()),
            }
        }
    }
}
