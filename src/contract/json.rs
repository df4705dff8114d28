//! The one JSON reader: strict, positional, and faithful to the text.
//!
//! Two parsers that read one body differently are a way around a policy, so everything in this
//! crate that looks into JSON looks through [`Doc`]: requests, answers, JSON-RPC envelopes and the
//! literals of a policy. It accepts RFC 8259 text and nothing else, and of that it refuses what
//! parsers are known to disagree about: duplicate member names (compared after unescaping), a byte
//! order mark, unpaired surrogates, invalid UTF-8, trailing data, and nesting beyond a limit
//! (standards MCP-5, H-30).
//!
//! A `Doc` is the text and a flat table of spans, in document order. Nothing is decoded before it is
//! asked for, so numbers keep their text (`1.0` is not `1`, 2^53+1 survives) and a change is a
//! splice of bytes ([`Edits`]): every byte that is not changed stays as it came.
//!
//! Limits: text up to [`MAX_TEXT`] bytes; nesting up to the depth given (64 for calls).

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;

/// The deepest nesting that a call, an answer or a policy literal may have (standards MCP-5).
pub const MAX_DEPTH: usize = 64;

/// The longest text that is read, in bytes. Spans are 32 bits wide; bodies are limited far below.
pub const MAX_TEXT: usize = 64 * 1024 * 1024;

/// The most values that one call's text may have. A value costs 16 bytes beside the text, so a text of
/// nothing but values must not cost many times its length.
pub const MAX_VALUES: usize = 256 * 1024;

/// What kind of value a [`Value`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `[...]`
    Array,
    /// `true` or `false`
    Bool,
    /// `null`
    Null,
    /// A number, kept as its text.
    Number,
    /// `{...}`
    Object,
    /// A string.
    String,
}

/// Why a text was refused, and where.
///
/// The message names the fault and the byte offset; it never quotes the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault} at byte {offset}")]
pub struct JsonError {
    /// What is wrong.
    pub fault: Fault,
    /// The zero-based offset of the byte at which it was seen.
    pub offset: usize,
}

/// The faults that [`Doc::parse`] tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The text starts with a byte order mark.
    #[error("byte order mark")]
    ByteOrderMark,
    /// Nested deeper than the limit.
    #[error("nesting too deep")]
    Depth,
    /// Two members of one object have the same name.
    #[error("duplicate member name")]
    DuplicateMember,
    /// Not UTF-8.
    #[error("invalid UTF-8")]
    InvalidUtf8,
    /// Half of a surrogate pair.
    #[error("unpaired surrogate")]
    LoneSurrogate,
    /// Not JSON.
    #[error("invalid JSON")]
    Syntax,
    /// More text after the value.
    #[error("trailing data")]
    Trailing,
    /// Longer than [`MAX_TEXT`].
    #[error("text too long")]
    TooLong,
    /// More than [`MAX_VALUES`] values.
    #[error("too many values")]
    TooMany,
}

#[derive(Clone, Copy)]
struct Node {
    kind: Kind,
    /// The string has at least one escape.
    escaped: bool,
    start: u32,
    end: u32,
    /// The index just past this value's subtree.
    next: u32,
}

/// A JSON text that was read, with the place of every value in it.
#[derive(Clone)]
pub struct Doc {
    text: Bytes,
    nodes: Vec<Node>,
}

impl Default for Doc {
    /// The document `null`.
    fn default() -> Self {
        let node = Node { kind: Kind::Null, escaped: false, start: 0, end: 4, next: 1 };
        Self { text: Bytes::from_static(b"null"), nodes: vec![node] }
    }
}

impl fmt::Debug for Doc {
    /// Shows sizes only: a document may hold what must not reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doc")
            .field("bytes", &self.text.len())
            .field("values", &self.nodes.len())
            .finish()
    }
}

impl Doc {
    /// Reads one JSON value, at most [`MAX_DEPTH`] deep and of at most [`MAX_VALUES`] values.
    ///
    /// # Errors
    ///
    /// The first fault, with its offset. An empty text is a syntax fault.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, JsonError> {
        let text: Bytes = text.into();
        let nodes = Reader::read(&text, MAX_DEPTH, MAX_VALUES)?;
        Ok(Self { text, nodes })
    }

    /// Reads one JSON value, at most `depth` containers deep.
    ///
    /// # Errors
    ///
    /// As [`Doc::parse`].
    pub fn parse_to_depth(text: impl Into<Bytes>, depth: usize) -> Result<Self, JsonError> {
        let text: Bytes = text.into();
        let nodes = Reader::read(&text, depth, usize::MAX)?;
        Ok(Self { text, nodes })
    }

    /// Reads one JSON value that is far larger than a call's, within other bounds. Its table of values
    /// has room for `room` values from the start.
    ///
    /// # Errors
    ///
    /// As [`Doc::parse`].
    pub fn parse_large(text: Bytes, bounds: Bounds) -> Result<Self, JsonError> {
        let Bounds { depth, values, room } = bounds;
        let nodes = Reader::read_into(&text, depth, values, Vec::with_capacity(room))?;
        Ok(Self { text, nodes })
    }

    /// How many bytes a value takes in a table beside the text.
    pub const VALUE_BYTES: usize = size_of::<Node>();

    /// The value that the text is.
    pub fn root(&self) -> Value<'_> {
        Value { doc: self, index: 0 }
    }

    /// The text as it came.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// The value that was marked in this document, or in a clone of it.
    pub fn marked(&self, mark: Mark) -> Value<'_> {
        Value { doc: self, index: mark.0 }
    }

    fn node(&self, index: u32) -> Node {
        self.nodes.get(to_usize(index)).copied().unwrap_or(Node {
            kind: Kind::Null,
            escaped: false,
            start: 0,
            end: 0,
            next: index.saturating_add(1),
        })
    }

    fn slice(&self, start: u32, end: u32) -> &str {
        // The reader has checked the whole text once; this only fails for spans it did not make.
        std::str::from_utf8(self.bytes(start, end)).unwrap_or_default()
    }

    fn bytes(&self, start: u32, end: u32) -> &[u8] {
        self.text.get(to_usize(start)..to_usize(end)).unwrap_or_default()
    }
}

/// How far a large text is read.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The deepest nesting.
    pub depth: usize,
    /// The most values; one more is [`Fault::TooMany`].
    pub values: usize,
    /// For how many values there is room before the table is moved.
    pub room: usize,
}

/// Where a value is in its [`Doc`], to come back to without a search.
#[derive(Clone, Copy, Debug)]
pub struct Mark(u32);

/// One value of a [`Doc`].
#[derive(Clone, Copy)]
pub struct Value<'a> {
    doc: &'a Doc,
    index: u32,
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("kind", &self.kind()).field("span", &self.span()).finish()
    }
}

impl<'a> Value<'a> {
    /// What kind of value it is.
    pub fn kind(self) -> Kind {
        self.node().kind
    }

    /// Whether it is `null`.
    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    /// Whether it is neither an object nor an array.
    pub fn is_scalar(self) -> bool {
        !matches!(self.kind(), Kind::Array | Kind::Object)
    }

    /// Its text, byte for byte, without the white space around it.
    pub fn raw(self) -> &'a str {
        let node = self.node();
        self.doc.slice(node.start, node.end)
    }

    /// Marks its place.
    pub fn mark(self) -> Mark {
        Mark(self.index)
    }

    /// Where [`Value::raw`] lies in [`Doc::text`].
    pub fn span(self) -> Range<usize> {
        let node = self.node();
        to_usize(node.start)..to_usize(node.end)
    }

    /// The document that it is part of.
    pub fn doc(self) -> &'a Doc {
        self.doc
    }

    /// A string's content, unescaped.
    pub fn as_str(self) -> Option<Cow<'a, str>> {
        let node = self.node();
        (node.kind == Kind::String).then(|| self.unquoted(node))
    }

    /// A number's text.
    pub fn as_number(self) -> Option<&'a str> {
        (self.kind() == Kind::Number).then(|| self.raw())
    }

    /// A number that is an integer written without fraction or exponent and fits 64 bits.
    pub fn as_i64(self) -> Option<i64> {
        self.as_number()?.parse().ok()
    }

    /// A truth value.
    pub fn as_bool(self) -> Option<bool> {
        match (self.kind(), self.raw()) {
            (Kind::Bool, "true") => Some(true),
            (Kind::Bool, _) => Some(false),
            _ => None,
        }
    }

    /// The member of an object with exactly this name.
    pub fn get(self, name: &str) -> Option<Value<'a>> {
        self.members().find(|member| member.has_name(name)).map(|member| member.value)
    }

    /// Whether an object has a member beside this name that a laxer reader takes for it; see [`folded`].
    pub fn has_twin(self, name: &str) -> bool {
        let fold = folded(name);
        self.members().any(|member| {
            let other = member.name();
            other != name && folds_onto(&other, &fold)
        })
    }

    /// The element of an array.
    pub fn at(self, position: usize) -> Option<Value<'a>> {
        self.elements().nth(position)
    }

    /// An object's members in document order; none for anything else.
    pub fn members(self) -> Members<'a> {
        let node = self.node();
        let end = if node.kind == Kind::Object { node.next } else { 0 };
        Members { doc: self.doc, at: self.index.saturating_add(1), end }
    }

    /// An array's elements in document order; none for anything else.
    pub fn elements(self) -> Elements<'a> {
        let node = self.node();
        let end = if node.kind == Kind::Array { node.next } else { 0 };
        Elements { doc: self.doc, at: self.index.saturating_add(1), end }
    }

    /// Feeds the canonical form to `out`: no white space, members sorted by name (code points),
    /// minimal escapes, numbers as they were written.
    ///
    /// Numbers are kept as text on purpose: a form that goes through 64-bit floats gives two
    /// different amounts one text, and a confirmation for one would hold for the other.
    pub fn canonical(self, out: &mut impl FnMut(&[u8])) {
        match self.kind() {
            Kind::Bool | Kind::Null | Kind::Number => out(self.raw().as_bytes()),
            Kind::String => self.canonical_string(out),
            Kind::Array => {
                out(b"[");
                for (position, element) in self.elements().enumerate() {
                    if position > 0 {
                        out(b",");
                    }
                    element.canonical(out);
                }
                out(b"]");
            }
            Kind::Object => {
                let mut members: Vec<Member<'a>> = self.members().collect();
                members.sort_by(|left, right| left.name().cmp(&right.name()));
                out(b"{");
                for (position, member) in members.into_iter().enumerate() {
                    if position > 0 {
                        out(b",");
                    }
                    member.key.canonical_string(out);
                    out(b":");
                    member.value.canonical(out);
                }
                out(b"}");
            }
        }
    }

    fn canonical_string(self, out: &mut impl FnMut(&[u8])) {
        let node = self.node();
        if node.escaped {
            let mut text = String::new();
            write_string(&self.unquoted(node), &mut text);
            out(text.as_bytes());
        } else {
            out(self.raw().as_bytes());
        }
    }

    fn node(self) -> Node {
        self.doc.node(self.index)
    }

    fn unquoted(self, node: Node) -> Cow<'a, str> {
        let inner = self.doc.slice(node.start.saturating_add(1), node.end.saturating_sub(1));
        if node.escaped { Cow::Owned(unescape(inner)) } else { Cow::Borrowed(inner) }
    }
}

/// A member of an object.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    key: Value<'a>,
    /// The member's value.
    pub value: Value<'a>,
}

impl<'a> Member<'a> {
    /// The member's name, unescaped.
    pub fn name(self) -> Cow<'a, str> {
        self.key.unquoted(self.key.node())
    }

    /// Whether the name is exactly this one.
    pub fn has_name(self, name: &str) -> bool {
        let node = self.key.node();
        if node.escaped {
            return self.name() == name;
        }
        // By bytes: a look-up compares many names, and needs none of them as text. Most differ in
        // length.
        let (start, end) = (node.start.saturating_add(1), node.end.saturating_sub(1));
        to_usize(end.saturating_sub(start)) == name.len()
            && self.key.doc.bytes(start, end) == name.as_bytes()
    }

    /// Where the member's name lies in the text, quotes included.
    pub fn key_span(self) -> Range<usize> {
        self.key.span()
    }
}

/// See [`Value::members`].
#[derive(Clone, Debug)]
pub struct Members<'a> {
    doc: &'a Doc,
    at: u32,
    end: u32,
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        if self.at >= self.end {
            return None;
        }
        let key = Value { doc: self.doc, index: self.at };
        let value = Value { doc: self.doc, index: self.at.saturating_add(1) };
        self.at = value.node().next;
        Some(Member { key, value })
    }
}

/// See [`Value::elements`].
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    doc: &'a Doc,
    at: u32,
    end: u32,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        if self.at >= self.end {
            return None;
        }
        let value = Value { doc: self.doc, index: self.at };
        self.at = value.node().next;
        Some(value)
    }
}

/// Changes to a text, made by position; every other byte stays as it came.
#[derive(Debug, Default)]
pub struct Edits {
    changes: Vec<(Range<usize>, String)>,
}

impl Edits {
    /// No changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Replaces a value by another JSON text.
    pub fn replace(&mut self, value: Value<'_>, json: impl Into<String>) {
        self.changes.push((value.span(), json.into()));
    }

    /// Changes members of one object: removes those in `remove`, and gives those in `set` a new
    /// value, in place where the member exists, at the end where it does not.
    ///
    /// Call it once per object: two calls on one object may place two members at one position.
    pub fn members(&mut self, object: Value<'_>, remove: &[&str], set: &[(&str, &str)]) {
        if set.is_empty() && remove.is_empty() {
            return;
        }
        let members: Vec<Member<'_>> = object.members().collect();
        let inner = object.span();
        let mut kept_end = None;
        for (position, member) in members.iter().enumerate() {
            let is_removed = remove.iter().any(|name| member.has_name(name));
            if !is_removed {
                kept_end = Some(member.value.span().end);
                if let Some((_, json)) = set.iter().find(|(name, _)| member.has_name(name)) {
                    self.replace(member.value, *json);
                }
                continue;
            }
            let range = match members.get(position.saturating_add(1)) {
                Some(following) => member.key_span().start..following.key_span().start,
                None => kept_end.unwrap_or(inner.start.saturating_add(1))..member.value.span().end,
            };
            self.changes.push((range, String::new()));
        }
        let mut added = String::new();
        for (name, json) in set {
            let is_present = members
                .iter()
                .any(|member| member.has_name(name) && !remove.iter().any(|n| n == name));
            if !is_present {
                if kept_end.is_some() || !added.is_empty() {
                    added.push(',');
                }
                write_string(name, &mut added);
                added.push(':');
                added.push_str(json);
            }
        }
        if !added.is_empty() {
            let at = kept_end.unwrap_or(inner.start.saturating_add(1));
            self.changes.push((at..at, added));
        }
    }

    /// The text with all changes made.
    ///
    /// Overlapping removals count once; a replacement inside a removal is dropped with it.
    pub fn apply(mut self, text: &[u8]) -> Vec<u8> {
        self.changes.sort_by_key(|(range, _)| (range.start, range.end));
        let grown: usize = self.changes.iter().map(|(_, json)| json.len()).sum();
        let mut out = Vec::with_capacity(text.len().saturating_add(grown));
        let mut at = 0;
        for (range, json) in self.changes {
            if range.start >= at {
                out.extend_from_slice(text.get(at..range.start).unwrap_or_default());
                out.extend_from_slice(json.as_bytes());
                at = range.end;
            } else {
                at = at.max(range.end);
            }
        }
        out.extend_from_slice(text.get(at..).unwrap_or_default());
        out
    }
}

/// Writes a JSON string, quotes included, with no more escapes than RFC 8259 asks for.
pub fn write_string(text: &str, out: &mut String) {
    write_string_with(text, out, |_| false);
}

/// Writes a JSON string in ASCII: everything outside 0x20..=0x7E is escaped (standards H-40).
pub fn write_ascii_string(text: &str, out: &mut String) {
    write_string_with(text, out, |character| !(' '..='~').contains(&character));
}

/// Rewrites a JSON text so that it holds only ASCII, by escaping inside its strings.
///
/// The text must be valid JSON; outside strings valid JSON is ASCII already.
pub fn write_ascii(json: &str, out: &mut String) {
    for character in json.chars() {
        if character.is_ascii() && character != '\x7f' {
            out.push(character);
        } else {
            escape_unicode(character, out);
        }
    }
}

fn write_string_with(text: &str, out: &mut String, escaped: impl Fn(char) -> bool) {
    out.push('"');
    // Most texts need no escape, and are copied whole.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
        out.push_str(text);
        out.push('"');
        return;
    }
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            character if character < ' ' || escaped(character) => escape_unicode(character, out),
            character => out.push(character),
        }
    }
    out.push('"');
}

fn escape_unicode(character: char, out: &mut String) {
    let mut units = [0; 2];
    for unit in character.encode_utf16(&mut units) {
        out.push_str("\\u");
        for shift in [12, 8, 4, 0] {
            let digit = u32::from(*unit >> shift) & 0xf;
            out.push(char::from_digit(digit, 16).unwrap_or('0'));
        }
    }
}

/// Unescapes the inside of a string that the reader has checked.
fn unescape(inner: &str) -> String {
    let mut out = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        match characters.next() {
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('u') => {
                let high = hex4(&mut characters);
                if (0xd800..0xdc00).contains(&high) {
                    characters.next();
                    characters.next();
                    let low = hex4(&mut characters);
                    let pair = 0x1_0000_u32
                        .saturating_add((high & 0x3ff) << 10)
                        .saturating_add(low & 0x3ff);
                    out.push(char::from_u32(pair).unwrap_or('\u{fffd}'));
                } else {
                    out.push(char::from_u32(high).unwrap_or('\u{fffd}'));
                }
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

fn hex4(characters: &mut std::str::Chars<'_>) -> u32 {
    let mut unit = 0;
    for _ in 0..4 {
        let digit = characters.next().and_then(|digit| digit.to_digit(16)).unwrap_or(0);
        unit = (unit << 4) | digit;
    }
    unit
}

/// How many bytes come before a quote, a backslash or a control character.
fn plain(bytes: &[u8]) -> usize {
    // Eight at a time: most of a call is text. A byte's high bit is set where subtraction takes from it,
    // which tells what is less; of several the lowest is right, and that is the first.
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = EACH * 0x80;
    let less = |word: u64, than: u64| word.wrapping_sub(EACH * than) & !word;
    let (words, _) = bytes.as_chunks::<8>();
    let mut at = 0_usize;
    for word in words {
        let word = u64::from_le_bytes(*word);
        let quote = less(word ^ (EACH * 0x22), 1);
        let backslash = less(word ^ (EACH * 0x5c), 1);
        let found = (quote | backslash | less(word, 0x20)) & HIGH;
        if found != 0 {
            return at.saturating_add(to_usize(found.trailing_zeros() / 8));
        }
        at = at.saturating_add(8);
    }
    let rest = bytes.get(at..).unwrap_or_default();
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    at.saturating_add(rest.iter().position(is_end).unwrap_or(rest.len()))
}

/// Keys that are open at once in most texts: there is room for them from the start.
const KEYS: usize = 16;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    most: usize,
    nodes: Vec<Node>,
    /// Keys of the objects that are open, the innermost object's last.
    keys: Vec<u32>,
}

impl<'a> Reader<'a> {
    fn read(bytes: &'a [u8], depth: usize, most: usize) -> Result<Vec<Node>, JsonError> {
        let nodes = Vec::with_capacity((bytes.len() / 16).saturating_add(4));
        Self::read_into(bytes, depth, most, nodes)
    }

    /// Reads into a table that is empty, and may have room.
    fn read_into(
        bytes: &'a [u8],
        depth: usize,
        most: usize,
        nodes: Vec<Node>,
    ) -> Result<Vec<Node>, JsonError> {
        if bytes.len() > MAX_TEXT {
            return Err(JsonError { fault: Fault::TooLong, offset: MAX_TEXT });
        }
        if bytes.starts_with(b"\xef\xbb\xbf") {
            return Err(JsonError { fault: Fault::ByteOrderMark, offset: 0 });
        }
        if let Err(error) = std::str::from_utf8(bytes) {
            return Err(JsonError { fault: Fault::InvalidUtf8, offset: error.valid_up_to() });
        }
        let mut reader =
            Reader { bytes, at: 0, depth, most, nodes, keys: Vec::with_capacity(KEYS) };
        reader.space();
        reader.value()?;
        reader.space();
        if reader.at < bytes.len() {
            return Err(reader.fault(Fault::Trailing));
        }
        Ok(reader.nodes)
    }

    fn value(&mut self) -> Result<(), JsonError> {
        if self.nodes.len() >= self.most {
            return Err(self.fault(Fault::TooMany));
        }
        match self.peek() {
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => self.string(),
            Some(b't') => self.word(b"true", Kind::Bool),
            Some(b'f') => self.word(b"false", Kind::Bool),
            Some(b'n') => self.word(b"null", Kind::Null),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) | None => Err(self.fault(Fault::Syntax)),
        }
    }

    fn object(&mut self) -> Result<(), JsonError> {
        let this = self.open(Kind::Object)?;
        let first_key = self.keys.len();
        self.space();
        if self.peek() != Some(b'}') {
            loop {
                if self.peek() != Some(b'"') {
                    return Err(self.fault(Fault::Syntax));
                }
                self.keys.push(to_u32(self.nodes.len()));
                self.string()?;
                self.space();
                self.expect(b':')?;
                self.space();
                self.value()?;
                self.space();
                match self.peek() {
                    Some(b',') => {
                        self.step();
                        self.space();
                    }
                    _ => break,
                }
            }
        }
        self.expect(b'}')?;
        self.distinct(first_key)?;
        self.keys.truncate(first_key);
        self.close(this);
        Ok(())
    }

    fn array(&mut self) -> Result<(), JsonError> {
        let this = self.open(Kind::Array)?;
        self.space();
        if self.peek() != Some(b']') {
            loop {
                self.value()?;
                self.space();
                match self.peek() {
                    Some(b',') => {
                        self.step();
                        self.space();
                    }
                    _ => break,
                }
            }
        }
        self.expect(b']')?;
        self.close(this);
        Ok(())
    }

    /// Refuses two members of one name. Few members are compared one by one; many go through a set.
    fn distinct(&self, first_key: usize) -> Result<(), JsonError> {
        const FEW: usize = 12;
        let keys = self.keys.get(first_key..).unwrap_or_default();
        let duplicate = |index: u32| {
            let node = self.nodes.get(to_usize(index));
            let offset = node.map_or(0, |node| to_usize(node.start));
            JsonError { fault: Fault::DuplicateMember, offset }
        };
        if keys.len() <= FEW {
            for (position, key) in keys.iter().enumerate() {
                let earlier = keys.get(..position).unwrap_or_default();
                if earlier.iter().any(|other| self.is_same_name(*key, *other)) {
                    return Err(duplicate(*key));
                }
            }
            return Ok(());
        }
        let mut seen = HashSet::with_capacity(keys.len());
        match keys.iter().find(|key| !seen.insert(self.name(**key))) {
            Some(key) => Err(duplicate(*key)),
            None => Ok(()),
        }
    }

    /// Whether two members have one name. Plain names of two lengths differ, which most pairs show.
    fn is_same_name(&self, one: u32, other: u32) -> bool {
        let node = |index: u32| self.nodes.get(to_usize(index));
        let (Some(left), Some(right)) = (node(one), node(other)) else { return false };
        let length = |node: &Node| node.end.saturating_sub(node.start);
        let is_plain = !left.escaped && !right.escaped;
        (!is_plain || length(left) == length(right)) && self.name(one) == self.name(other)
    }

    /// A member's name as the bytes that it stands for, to be compared.
    fn name(&self, index: u32) -> Cow<'a, [u8]> {
        let Some(node) = self.nodes.get(to_usize(index)) else {
            return Cow::Borrowed(b"");
        };
        let span = to_usize(node.start).saturating_add(1)..to_usize(node.end).saturating_sub(1);
        let inner = self.bytes.get(span).unwrap_or_default();
        if !node.escaped {
            return Cow::Borrowed(inner);
        }
        let inner = std::str::from_utf8(inner).unwrap_or_default();
        Cow::Owned(unescape(inner).into_bytes())
    }

    fn string(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        let mut escaped = false;
        self.step();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.step();
                    break;
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(0x20..) => {
                    let rest = self.bytes.get(self.at..).unwrap_or_default();
                    self.at = self.at.saturating_add(plain(rest));
                }
                Some(_) | None => return Err(self.fault(Fault::Syntax)),
            }
        }
        self.leaf(Kind::String, start, escaped);
        Ok(())
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        self.step();
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.step();
                Ok(())
            }
            Some(b'u') => {
                self.step();
                let unit = self.unit()?;
                let lone = JsonError { fault: Fault::LoneSurrogate, offset: start };
                if (0xdc00..0xe000).contains(&unit) {
                    return Err(lone);
                }
                if (0xd800..0xdc00).contains(&unit) {
                    let follows = self.bytes.get(self.at..self.at.saturating_add(2));
                    if follows != Some(b"\\u") {
                        return Err(lone);
                    }
                    self.at = self.at.saturating_add(2);
                    let low = self.unit()?;
                    if !(0xdc00..0xe000).contains(&low) {
                        return Err(lone);
                    }
                }
                Ok(())
            }
            Some(_) | None => Err(self.fault(Fault::Syntax)),
        }
    }

    fn unit(&mut self) -> Result<u32, JsonError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.fault(Fault::Syntax));
            };
            unit = (unit << 4) | digit;
            self.step();
        }
        Ok(unit)
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.step();
        }
        match self.peek() {
            Some(b'0') => self.step(),
            Some(b'1'..=b'9') => self.digits()?,
            Some(_) | None => return Err(self.fault(Fault::Syntax)),
        }
        if self.peek() == Some(b'.') {
            self.step();
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.step();
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.step();
            }
            self.digits()?;
        }
        self.leaf(Kind::Number, start, false);
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.fault(Fault::Syntax));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.step();
        }
        Ok(())
    }

    fn word(&mut self, word: &[u8], kind: Kind) -> Result<(), JsonError> {
        let start = self.at;
        let end = start.saturating_add(word.len());
        if self.bytes.get(start..end) != Some(word) {
            return Err(self.fault(Fault::Syntax));
        }
        self.at = end;
        self.leaf(kind, start, false);
        Ok(())
    }

    fn open(&mut self, kind: Kind) -> Result<usize, JsonError> {
        self.depth = match self.depth.checked_sub(1) {
            Some(depth) => depth,
            None => return Err(self.fault(Fault::Depth)),
        };
        let this = self.nodes.len();
        let start = to_u32(self.at);
        self.nodes.push(Node { kind, escaped: false, start, end: start, next: 0 });
        self.step();
        Ok(this)
    }

    fn close(&mut self, this: usize) {
        self.depth = self.depth.saturating_add(1);
        let (end, next) = (to_u32(self.at), to_u32(self.nodes.len()));
        if let Some(node) = self.nodes.get_mut(this) {
            node.end = end;
            node.next = next;
        }
    }

    fn leaf(&mut self, kind: Kind, start: usize, escaped: bool) {
        let next = to_u32(self.nodes.len().saturating_add(1));
        let (start, end) = (to_u32(start), to_u32(self.at));
        self.nodes.push(Node { kind, escaped, start, end, next });
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        if self.peek() != Some(byte) {
            return Err(self.fault(Fault::Syntax));
        }
        self.step();
        Ok(())
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.step();
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn step(&mut self) {
        self.at = self.at.saturating_add(1);
    }

    fn fault(&self, fault: Fault) -> JsonError {
        JsonError { fault, offset: self.at }
    }
}

/// Spans are bounded by [`MAX_TEXT`], which fits.
fn to_u32(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

fn to_usize(position: u32) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

/// A name as the laxest of its readers takes it: up to a `[` or a NUL, without spaces around it, `.` and
/// space as `_` (PHP reads forms and queries so), in lower case.
pub fn folded(name: &str) -> String {
    let base = name.split(['[', '\0']).next().unwrap_or_default().trim();
    base.replace(['.', ' '], "_").to_lowercase()
}

/// What a name is a member of, to readers that take `NAME.x` so; folded.
pub fn owner(name: &str) -> Option<String> {
    name.split_once('.').map(|(owner, _)| folded(owner))
}

/// Whether some reader takes a name for the folded one, or for a member of it.
pub fn folds_onto(name: &str, fold: &str) -> bool {
    folded(name) == fold || owner(name).is_some_and(|owner| owner == fold)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(text: &[u8]) -> Option<Fault> {
        Doc::parse(text.to_vec()).err().map(|error| error.fault)
    }

    fn canonical(text: &str) -> String {
        let doc = Doc::parse(text.to_owned()).unwrap();
        let mut out = Vec::new();
        doc.root().canonical(&mut |bytes| out.extend_from_slice(bytes));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn mcp_5_what_parsers_disagree_about_is_refused() {
        let cases: &[(&[u8], Fault)] = &[
            (b"", Fault::Syntax),
            (b"\xef\xbb\xbf{}", Fault::ByteOrderMark),
            (b"\"\xff\"", Fault::InvalidUtf8),
            (br#"{"a":1,"a":2}"#, Fault::DuplicateMember),
            (br#"{"name":1,"n\u0061me":2}"#, Fault::DuplicateMember),
            (br#"{"o":{"x":1,"x":1}}"#, Fault::DuplicateMember),
            (br#""\ud800""#, Fault::LoneSurrogate),
            (br#""\udc00\ud800""#, Fault::LoneSurrogate),
            (br#""\ud800\u0041""#, Fault::LoneSurrogate),
            (b"{} {}", Fault::Trailing),
            (b"01", Fault::Trailing),
            (b"1.", Fault::Syntax),
            (b".5", Fault::Syntax),
            (b"+1", Fault::Syntax),
            (b"NaN", Fault::Syntax),
            (b"{\"a\":1,}", Fault::Syntax),
            (b"[1,]", Fault::Syntax),
            (b"\"a\nb\"", Fault::Syntax),
            (b"{'a':1}", Fault::Syntax),
            (b"\"abc", Fault::Syntax),
            (b"tru", Fault::Syntax),
        ];

        for (text, expected) in cases {
            assert_eq!(fault(text), Some(*expected), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn e7_nesting_beyond_the_limit_is_refused_without_recursion_into_it() {
        assert_eq!(fault("[".repeat(100_000).as_bytes()), Some(Fault::Depth));
        assert_eq!(fault("{\"a\":".repeat(31_000).as_bytes()), Some(Fault::Depth));
        let deepest = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert_eq!(fault(deepest.as_bytes()), None);
    }

    #[test]
    fn a_text_of_nothing_but_values_is_bounded() {
        let text = format!("[0{}]", ",0".repeat(MAX_VALUES));
        assert_eq!(fault(text.as_bytes()), Some(Fault::TooMany));
    }

    #[test]
    fn many_members_are_still_distinct() {
        let mut text = String::from("{");
        for index in 0..100 {
            text.push_str(&format!("\"k{index}\":{index},"));
        }
        let distinct = format!("{}\"z\":0}}", text);
        let twice = format!("{}\"k\\u0037\":0}}", text);

        assert_eq!(fault(distinct.as_bytes()), None);
        assert_eq!(fault(twice.as_bytes()), Some(Fault::DuplicateMember));
    }

    #[test]
    fn values_are_found_by_name_and_position() {
        let doc =
            Doc::parse(r#" { "a" : [ 1, {"b": "x\u00e9\n"} ] , "c":null,"d":true } "#).unwrap();
        let root = doc.root();

        let nested = root.get("a").and_then(|a| a.at(1)).and_then(|o| o.get("b")).unwrap();
        assert_eq!(nested.as_str().as_deref(), Some("x\u{e9}\n"));
        assert!(root.get("c").unwrap().is_null());
        assert_eq!(root.get("d").unwrap().as_bool(), Some(true));
        assert!(root.get("A").is_none());
        assert!(root.get("a").unwrap().at(2).is_none());
        assert_eq!(root.members().count(), 3);
    }

    #[test]
    fn e2_numbers_keep_their_text() {
        let doc = Doc::parse("[12345678901234567890,1e400,-0,1E5,1.0]").unwrap();
        let texts: Vec<_> = doc.root().elements().filter_map(Value::as_number).collect();
        assert_eq!(texts, ["12345678901234567890", "1e400", "-0", "1E5", "1.0"]);
    }

    #[test]
    fn canonical_form_sorts_members_and_keeps_numbers() {
        let cases = [
            (r#"{"b":1, "a" : [ ] }"#, r#"{"a":[],"b":1}"#),
            (r#"{"n\u0061me":"\u0041\/"}"#, r#"{"name":"A/"}"#),
            ("12345678901234567891", "12345678901234567891"),
            ("[1.0,1,1e0]", "[1.0,1,1e0]"),
            (r#""\u0007\n""#, r#""\u0007\n""#),
        ];
        for (text, expected) in cases {
            assert_eq!(canonical(text), expected);
        }
    }

    #[test]
    fn edits_change_members_and_nothing_else() {
        type Case = (
            &'static str,
            &'static [&'static str],
            &'static [(&'static str, &'static str)],
            &'static str,
        );
        let cases: &[Case] = &[
            ("{ }", &[], &[("a", "1")], r#"{"a":1 }"#),
            (r#"{ "x" : 1.000 }"#, &[], &[("a", "1")], r#"{ "x" : 1.000,"a":1 }"#),
            (r#"{"x":1, "y":2}"#, &[], &[("x", "9")], r#"{"x":9, "y":2}"#),
            (r#"{"x":1, "y":2}"#, &["x"], &[], r#"{"y":2}"#),
            (r#"{"x":1, "y":2}"#, &["y"], &[], r#"{"x":1}"#),
            (r#"{"x":1, "y":2 }"#, &["x", "y"], &[], "{ }"),
            (r#"{"x":1, "y":2, "z":3}"#, &["y", "z"], &[("q", "0")], r#"{"x":1,"q":0}"#),
            (r#"{"x":1, "y":2, "z":3}"#, &["x", "y", "z"], &[("q", "0")], r#"{"q":0}"#),
            (r#"{"x":1,"y":2,"z":3}"#, &["x", "z"], &[], r#"{"y":2}"#),
        ];
        for (text, remove, set, expected) in cases {
            let doc = Doc::parse(*text).unwrap();
            let mut edits = Edits::new();
            edits.members(doc.root(), remove, set);
            let out = String::from_utf8(edits.apply(doc.text())).unwrap();
            assert_eq!(&out, expected, "{text}");
        }
    }

    #[test]
    fn h_40_ascii_form_escapes_what_a_header_cannot_hold() {
        let mut out = String::new();
        write_ascii_string("é\u{1f642}\u{7f}\"", &mut out);
        assert_eq!(out, r#""\u00e9\ud83d\ude42\u007f\"""#);
        let mut whole = String::new();
        write_ascii(r#"{"é":1}"#, &mut whole);
        assert_eq!(whole, r#"{"\u00e9":1}"#);
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            ".{0,12}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 48, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                prop::collection::btree_map(".{0,6}", inner, 0..16)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Bytes near the ones that end a plain run, and those whose high bit is set.
        #[test]
        fn a_plain_run_ends_where_a_look_at_each_byte_says(
            bytes in proptest::collection::vec(
                prop_oneof![
                    4 => Just(b'a'),
                    1 => any::<u8>(),
                    1 => prop_oneof![Just(b'!'), Just(b'"'), Just(b'#'), Just(b'['), Just(b'\\')],
                    1 => prop_oneof![Just(0x1f), Just(0x20), Just(0x7f), Just(0x80), Just(0xa2)],
                ],
                0..64,
            ),
        ) {
            let is_end = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < b' ';
            let naive = bytes.iter().position(is_end).unwrap_or(bytes.len());
            prop_assert_eq!(plain(&bytes), naive);
        }
    }

    proptest! {
        #[test]
        fn reads_what_another_parser_wrote(value in json()) {
            let text = serde_json::to_string_pretty(&value).unwrap();
            let again: serde_json::Value = serde_json::from_str(&canonical(&text)).unwrap();
            prop_assert_eq!(again, value);
        }

        #[test]
        fn accepts_no_more_than_another_parser(text in "[\\[\\]{}\",:0-9a-u\\\\ .+-]{0,24}") {
            if Doc::parse(text.clone()).is_ok() {
                prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
            }
        }

        #[test]
        fn never_panics_on_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let read = Doc::parse(bytes.clone());
            prop_assert!(read.is_err() || std::str::from_utf8(&bytes).is_ok());
        }
    }
}
