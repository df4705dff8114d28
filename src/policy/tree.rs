//! One policy file as a tree that keeps the place of every name and value.
//!
//! The source forms load verbatim, and several of them are tagged from inside (`{type: header,
//! name: ...}`) or not at all (a bare verification plan). Deriving such types loses positions, so a
//! file is read into this tree first and the tree is parsed by hand ([`super::file`]). Everything
//! that two YAML readers are known to disagree about is refused here: names given twice, anchors,
//! aliases, tags, merge keys, directives, several documents, a byte order mark, and plain scalars
//! that YAML 1.2 reads otherwise than JSON does (`True`, `0x1F`, `01`). What remains is JSON's
//! data: plain `true`, `false`, `null` (or nothing, or `~`), JSON's numbers, whose text is kept,
//! and strings; `yes` and `01JB` are strings.
//!
//! Limits: [`MAX_FILE`] bytes and [`MAX_DEPTH`] levels; time is linear in the text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use serde_saphyr::granit_parser::{self, ErrorKind, Event, Parser, ScalarStyle};

use crate::contract::json::{Doc, Fault as JsonFault, Kind, Value, write_string};

/// The longest policy file, in bytes. A catalog has a limit of its own.
pub const MAX_FILE: usize = 1024 * 1024;

/// The deepest nesting of a policy file.
pub(super) const MAX_DEPTH: usize = 64;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// JSON; read by [`Doc`].
    Json,
    /// YAML.
    Yaml,
}

impl Format {
    /// The format of a file with this name: JSON if it ends in `.json`, else YAML.
    pub(super) fn of(name: &str) -> Self {
        if name.ends_with(".json") { Self::Json } else { Self::Yaml }
    }
}

/// A place in a file: byte offsets, the end exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last one.
    pub end: usize,
}

impl Span {
    /// The place as a range.
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Where it stands. A block mapping or sequence runs to its last token.
    pub span: Span,
    /// What it is.
    pub data: Data,
}

/// What a [`Node`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Data {
    /// `true` or `false`.
    Bool(bool),
    /// A mapping, in file order.
    Mapping(Vec<Entry>),
    /// `null`, `~`, or nothing.
    Null,
    /// A number as JSON writes it; its text.
    Number(String),
    /// A list.
    Sequence(Vec<Node>),
    /// A string.
    String(String),
}

/// One member of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The name.
    pub name: String,
    /// Where the name stands.
    pub span: Span,
    /// The value.
    pub value: Node,
}

impl Node {
    /// A mapping's members in file order; none for anything else.
    pub(super) fn entries(&self) -> &[Entry] {
        match &self.data {
            Data::Mapping(entries) => entries,
            Data::Bool(_) | Data::Null | Data::Number(_) | Data::Sequence(_) | Data::String(_) => {
                &[]
            }
        }
    }

    /// The member of a mapping with exactly this name.
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        self.entries().iter().find(|entry| entry.name == name).map(|entry| &entry.value)
    }

    /// A list's elements.
    pub(super) fn as_sequence(&self) -> Option<&[Node]> {
        match &self.data {
            Data::Sequence(elements) => Some(elements),
            Data::Bool(_) | Data::Mapping(_) | Data::Null | Data::Number(_) | Data::String(_) => {
                None
            }
        }
    }

    /// A string's text.
    pub(super) fn as_str(&self) -> Option<&str> {
        match &self.data {
            Data::String(text) => Some(text),
            Data::Bool(_) | Data::Mapping(_) | Data::Null | Data::Number(_) | Data::Sequence(_) => {
                None
            }
        }
    }

    /// Whether it is `null`.
    pub(super) fn is_null(&self) -> bool {
        self.data == Data::Null
    }

    /// What kind of value it is, for messages.
    pub(super) fn kind_name(&self) -> &'static str {
        match self.data {
            Data::Bool(_) => "a truth value",
            Data::Mapping(_) => "a mapping",
            Data::Null => "null",
            Data::Number(_) => "a number",
            Data::Sequence(_) => "a list",
            Data::String(_) => "text",
        }
    }

    /// Writes the value as JSON; numbers keep their text.
    pub(super) fn write_json(&self, out: &mut String) {
        match &self.data {
            Data::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Data::Null => out.push_str("null"),
            Data::Number(text) => out.push_str(text),
            Data::String(text) => write_string(text, out),
            Data::Sequence(elements) => {
                out.push('[');
                for (position, element) in elements.iter().enumerate() {
                    if position > 0 {
                        out.push(',');
                    }
                    element.write_json(out);
                }
                out.push(']');
            }
            Data::Mapping(entries) => {
                out.push('{');
                for (position, entry) in entries.iter().enumerate() {
                    if position > 0 {
                        out.push(',');
                    }
                    write_string(&entry.name, out);
                    out.push(':');
                    entry.value.write_json(out);
                }
                out.push('}');
            }
        }
    }

    /// The value as a document of its own; `None` only for text beyond the reader's limits.
    pub(super) fn to_doc(&self) -> Option<Doc> {
        let mut json = String::new();
        self.write_json(&mut json);
        // A tree is at most `MAX_DEPTH` deep, so its parts are too.
        Doc::parse_to_depth(json, MAX_DEPTH).ok()
    }
}

/// Why a file cannot be read, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// A stable code, such as `policy/syntax`.
    pub code: &'static str,
    /// Where.
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<&'static str>,
}

impl Fault {
    fn new(code: &'static str, span: Span, message: impl Into<String>) -> Self {
        Self { code, span, message: message.into(), help: None }
    }

    fn help(mut self, help: &'static str) -> Self {
        self.help = Some(help);
        self
    }

    /// The file's text is not there.
    pub(super) fn unreadable(why: &str) -> Self {
        Self::new("policy/unreadable", Span::default(), format!("the file cannot be read: {why}"))
            .help("a policy is a directory of .yaml, .yml and .json files")
    }

    fn duplicate(name: &str, span: Span) -> Self {
        Self::new("policy/duplicate_member", span, format!("`{name}` is given twice"))
            .help("keep one of them; the reader of a policy must not guess which one holds")
    }

    fn deep(span: Span) -> Self {
        Self::new("policy/too_deep", span, "nested deeper than 64 levels")
            .help("no member of a policy is that deep: look for a bracket or an indent too many")
    }
}

/// Reads one file.
///
/// # Errors
///
/// The first fault. An empty YAML file is a null.
pub(super) fn read(text: &str, format: Format) -> Result<Node, Fault> {
    if text.len() > MAX_FILE {
        return Err(Fault::new(
            "policy/too_large",
            Span::default(),
            format!("the file has {} bytes; {MAX_FILE} are read", text.len()),
        )
        .help("split it: every file of the directory is read"));
    }
    if text.starts_with('\u{feff}') {
        let span = Span { start: 0, end: '\u{feff}'.len_utf8() };
        return Err(Fault::new("policy/syntax", span, "the file starts with a byte order mark")
            .help("save it as UTF-8 without one"));
    }
    if let Some((start, character)) = text.char_indices().find(|(_, c)| is_unseen(*c)) {
        let span = Span { start, end: start.saturating_add(character.len_utf8()) };
        let message =
            format!("U+{:04X} shows nothing, or shows text in another order", u32::from(character));
        return Err(Fault::new("policy/unseen_character", span, message)
            .help("a reviewer must see what holds; write it as an escape in a quoted text"));
    }
    match format {
        Format::Json => read_json(text),
        Format::Yaml => Reader::new(text).read(),
    }
}

/// Whether a character hides text from whoever reads the file, or shows it otherwise than it is read:
/// the ones that turn the direction, that have no width, and that only some readers take for the end of
/// a line. The two joiners, without which some scripts cannot be written, are none. (Control characters
/// are no text in either format.)
pub(super) fn is_unseen(character: char) -> bool {
    matches!(
        character,
        '\u{85}' | '\u{ad}' | '\u{61c}' | '\u{180e}'
            | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

/// Reads YAML that is no policy file: a catalog, which may be larger and `depth` levels deep. It is
/// somebody else's, so that a word that YAML readers read differently is text in it and no fault.
///
/// # Errors
///
/// As [`read`], without its limit of size.
pub(super) fn read_large(text: &str, depth: usize) -> Result<Node, Fault> {
    Reader { depth, is_lenient: true, ..Reader::new(text) }.read()
}

fn read_json(text: &str) -> Result<Node, Fault> {
    let doc = Doc::parse_to_depth(text.to_owned(), MAX_DEPTH).map_err(|error| {
        let end = text.len().min(error.offset.saturating_add(1));
        let span = Span { start: error.offset.min(end), end };
        match error.fault {
            JsonFault::DuplicateMember => {
                Fault::new("policy/duplicate_member", span, "this member is given twice")
                    .help("keep one of them; the reader of a policy must not guess which one holds")
            }
            JsonFault::Depth => Fault::deep(span),
            JsonFault::ByteOrderMark
            | JsonFault::InvalidUtf8
            | JsonFault::LoneSurrogate
            | JsonFault::Syntax
            | JsonFault::TooLong
            | JsonFault::TooMany
            | JsonFault::Trailing => Fault::new("policy/syntax", span, error.fault.to_string())
                .help("JSON has no comments, no comma after the last member, and one value"),
        }
    })?;
    Ok(from_value(doc.root()))
}

/// A JSON value as a tree; spans are those of its document.
pub(super) fn from_value(value: Value<'_>) -> Node {
    let data = match value.kind() {
        Kind::Null => Data::Null,
        Kind::Bool => Data::Bool(value.as_bool().unwrap_or_default()),
        Kind::Number => Data::Number(value.raw().to_owned()),
        Kind::String => Data::String(value.as_str().map(Cow::into_owned).unwrap_or_default()),
        Kind::Array => Data::Sequence(value.elements().map(from_value).collect()),
        Kind::Object => Data::Mapping(
            value
                .members()
                .map(|member| Entry {
                    name: member.name().into_owned(),
                    span: member.key_span().into(),
                    value: from_value(member.value),
                })
                .collect(),
        ),
    };
    Node { span: value.span().into(), data }
}

/// Builds the tree out of YAML events with a stack of its own, so that no text can exhaust ours.
struct Reader<'t> {
    text: &'t str,
    depth: usize,
    is_lenient: bool,
    open: Vec<Open>,
    root: Option<Node>,
}

/// A collection whose end has not been seen.
struct Open {
    start: usize,
    end: usize,
    items: Items,
}

enum Items {
    Mapping { entries: Vec<Entry>, names: HashSet<String>, key: Option<(String, Span)> },
    Sequence(Vec<Node>),
}

impl<'t> Reader<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, depth: MAX_DEPTH, is_lenient: false, open: Vec::new(), root: None }
    }

    fn read(mut self) -> Result<Node, Fault> {
        let options = granit_parser::options! {
            disallow_directives: true,
            emit_comments: false,
            emit_unresolved_aliases: true,
            flow_nesting_limit: self.depth,
            block_nesting_limit: self.depth,
        };
        let mut documents = 0_usize;
        for event in Parser::new_from_str_with_options(self.text, options) {
            let (event, span) = event.map_err(|error| self.scan_fault(&error))?;
            let at = self.span(&span);
            match event {
                Event::DocumentStart(..) => {
                    documents = documents.saturating_add(1);
                    if documents > 1 {
                        return Err(Fault::new("policy/syntax", at, "a second document")
                            .help("one file is one document; put the other into its own file"));
                    }
                }
                Event::Alias(_) | Event::UnresolvedAlias(_) => {
                    return Err(unsupported(at, "an alias"));
                }
                Event::Scalar(text, style, anchor, tag) => {
                    refuse_properties(at, anchor, tag.is_some())?;
                    self.scalar(text, style, at)?;
                }
                Event::SequenceStart(_, anchor, tag) => {
                    refuse_properties(at, anchor, tag.is_some())?;
                    self.start(at, Items::Sequence(Vec::new()))?;
                }
                Event::MappingStart(_, anchor, tag) => {
                    refuse_properties(at, anchor, tag.is_some())?;
                    let items =
                        Items::Mapping { entries: Vec::new(), names: HashSet::new(), key: None };
                    self.start(at, items)?;
                }
                Event::SequenceEnd | Event::MappingEnd => self.end(at)?,
                // Stream and document ends; comments and anchors are not emitted.
                _ => {}
            }
        }
        Ok(self.root.unwrap_or(Node { span: Span::default(), data: Data::Null }))
    }

    fn span(&self, span: &granit_parser::Span) -> Span {
        let start = span.start.byte_offset().unwrap_or(0).min(self.text.len());
        let end = span.end.byte_offset().unwrap_or(start).clamp(start, self.text.len());
        Span { start, end }
    }

    fn scan_fault(&self, error: &granit_parser::ScanError) -> Fault {
        let start = error.marker().byte_offset().unwrap_or(0).min(self.text.len());
        let end = self
            .text
            .get(start..)
            .and_then(|rest| rest.chars().next())
            .filter(|character| *character != '\n')
            .map_or(start, |character| start.saturating_add(character.len_utf8()));
        let span = Span { start, end };
        match error.kind() {
            ErrorKind::RecursionLimitExceeded => Fault::deep(span),
            ErrorKind::DirectiveDisallowed => unsupported(span, "a directive"),
            ErrorKind::TabInBlockIndentation | ErrorKind::TabInIndentation => {
                Fault::new("policy/syntax", span, "a tab in the indentation")
                    .help("indent with spaces")
            }
            kind => Fault::new("policy/syntax", span, kind.to_string())
                .help("look at the brackets, quotes and indentation up to here"),
        }
    }

    fn scalar(&mut self, text: Cow<'_, str>, style: ScalarStyle, at: Span) -> Result<(), Fault> {
        let is_key =
            matches!(self.open.last(), Some(Open { items: Items::Mapping { key: None, .. }, .. }));
        if is_key {
            return self.name(text.into_owned(), style, at);
        }
        let data = match style {
            ScalarStyle::Plain => match plain(&text, at) {
                Err(_) if self.is_lenient => quoted(text),
                read => read?,
            },
            _ => quoted(text),
        };
        self.place(Node { span: at, data })
    }

    fn name(&mut self, name: String, style: ScalarStyle, at: Span) -> Result<(), Fault> {
        if name == "<<" && style == ScalarStyle::Plain {
            return Err(unsupported(at, "a merge key"));
        }
        if let Some(Open { items: Items::Mapping { names, key, .. }, .. }) = self.open.last_mut() {
            if !names.insert(name.clone()) {
                return Err(Fault::duplicate(&name, at));
            }
            *key = Some((name, at));
        }
        Ok(())
    }

    fn start(&mut self, at: Span, items: Items) -> Result<(), Fault> {
        if self.open.len() >= self.depth {
            return Err(Fault::deep(at));
        }
        if let Some(Open { items: Items::Mapping { key: None, .. }, .. }) = self.open.last() {
            return Err(Fault::new("policy/syntax", at, "a collection as a name")
                .help("a name is text; quote it if it starts with `{`, `[` or `?`"));
        }
        self.open.push(Open { start: at.start, end: at.end, items });
        Ok(())
    }

    fn end(&mut self, at: Span) -> Result<(), Fault> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let data = match open.items {
            Items::Mapping { entries, .. } => Data::Mapping(entries),
            Items::Sequence(elements) => Data::Sequence(elements),
        };
        // The end of a block collection is where the next token starts; what belongs to it ends
        // with its last value. A flow collection ends with its bracket, which lies behind that.
        let is_flow = self.text.get(at.range()).is_some_and(|text| text == "}" || text == "]");
        let end = if is_flow { at.end } else { open.end };
        self.place(Node { span: Span { start: open.start, end: end.max(open.start) }, data })
    }

    fn place(&mut self, node: Node) -> Result<(), Fault> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        open.end = open.end.max(node.span.end);
        match &mut open.items {
            Items::Sequence(elements) => elements.push(node),
            Items::Mapping { entries, key, .. } => match key.take() {
                Some((name, span)) => {
                    open.end = open.end.max(span.end);
                    entries.push(Entry { name, span, value: node });
                }
                None => {
                    return Err(Fault::new("policy/syntax", node.span, "a value without a name")
                        .help("write `name: value`"));
                }
            },
        }
        Ok(())
    }
}

fn refuse_properties(at: Span, anchor: usize, is_tagged: bool) -> Result<(), Fault> {
    if anchor != 0 {
        return Err(unsupported(at, "an anchor"));
    }
    if is_tagged {
        return Err(unsupported(at, "a tag"));
    }
    Ok(())
}

fn unsupported(at: Span, what: &str) -> Fault {
    Fault::new("policy/yaml_feature", at, format!("{what} is not read in a policy"))
        .help("write the value out: a reviewer must see what holds where it stands")
}

fn quoted(text: Cow<'_, str>) -> Data {
    Data::String(text.into_owned())
}

/// What a plain scalar is: JSON's words and numbers are themselves, YAML's other spellings of them
/// are refused, all else is text.
fn plain(text: &str, at: Span) -> Result<Data, Fault> {
    Ok(match text {
        "" | "~" | "null" => Data::Null,
        "true" => Data::Bool(true),
        "false" => Data::Bool(false),
        _ if is_json_number(text) => Data::Number(text.to_owned()),
        _ if is_yaml_only(text) => {
            let message = format!("`{text}` is read differently by different YAML readers");
            return Err(Fault::new("policy/ambiguous_scalar", at, message)
                .help("quote it if it is text, else write it as JSON does"));
        }
        _ => Data::String(text.to_owned()),
    })
}

/// Whether the text is a number by RFC 8259.
pub(super) fn is_json_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|text| digits(text.strip_prefix(['+', '-']).unwrap_or(text)))
}

/// Whether YAML 1.2's core schema reads the text as something else than text.
fn is_yaml_only(text: &str) -> bool {
    if matches!(text, "True" | "TRUE" | "False" | "FALSE" | "Null" | "NULL") {
        return true;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let all = |text: &str, is_digit: fn(&u8) -> bool| {
        !text.is_empty() && text.as_bytes().iter().all(is_digit)
    };
    if matches!(unsigned, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    if let Some(rest) = unsigned.strip_prefix("0x") {
        return all(rest, u8::is_ascii_hexdigit);
    }
    if let Some(rest) = unsigned.strip_prefix("0o") {
        return all(rest, |byte| matches!(byte, b'0'..=b'7'));
    }
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let is_exponent = exponent
        .is_none_or(|text| all(text.strip_prefix(['+', '-']).unwrap_or(text), u8::is_ascii_digit));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let has_digit = !whole.is_empty() || !fraction.is_empty();
    let is_digits = whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit());
    has_digit && is_digits && is_exponent
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn yaml(text: &str) -> Result<Node, Fault> {
        read(text, Format::Yaml)
    }

    fn json_of(text: &str) -> String {
        let mut out = String::new();
        yaml(text).unwrap().write_json(&mut out);
        out
    }

    #[test]
    fn scalars_are_jsons_and_everything_else_is_text() {
        let cases = [
            ("a: yes", r#"{"a":"yes"}"#),
            ("a: 1.0", r#"{"a":1.0}"#),
            ("a: 01JBRANCHYARDLEDGER", r#"{"a":"01JBRANCHYARDLEDGER"}"#),
            ("a: 9007199254740993", r#"{"a":9007199254740993}"#),
            ("a: -1.5e+3", r#"{"a":-1.5e+3}"#),
            ("a: 24h", r#"{"a":"24h"}"#),
            ("a: ~", r#"{"a":null}"#),
            ("a:", r#"{"a":null}"#),
            ("a: 'null'", r#"{"a":"null"}"#),
            ("a: \"\\u00e9\"", "{\"a\":\"\u{e9}\"}"),
            ("a: on", r#"{"a":"on"}"#),
            ("a: 2026-12-01", r#"{"a":"2026-12-01"}"#),
            ("a: 1:30", r#"{"a":"1:30"}"#),
            ("a: 1_000", r#"{"a":"1_000"}"#),
            ("404: x", r#"{"404":"x"}"#),
            ("a: [1, {b: c}]", r#"{"a":[1,{"b":"c"}]}"#),
            ("a: |\n  x\n  y\n", r#"{"a":"x\ny\n"}"#),
        ];
        for (text, expected) in cases {
            assert_eq!(json_of(text), expected, "{text}");
        }
    }

    #[test]
    fn spellings_that_readers_disagree_about_are_refused() {
        for text in
            ["True", "FALSE", "NULL", "01", "+1", "0x1F", "0o17", ".5", "1.", ".inf", "-.INF", "1e"]
        {
            let result = yaml(&format!("a: {text}"));
            if text == "1e" {
                assert!(result.is_ok());
                continue;
            }
            let fault = result.unwrap_err();
            assert_eq!(fault.code, "policy/ambiguous_scalar", "{text}");
            assert_eq!(fault.span, Span { start: 3, end: 3 + text.len() });
        }
    }

    #[test]
    fn i_5_duplicate_names_are_refused_where_the_second_stands() {
        let fault = yaml("a: 1\nb: {c: 1, \"c\": 2}\n").unwrap_err();
        assert_eq!(fault.code, "policy/duplicate_member");
        assert_eq!(fault.span, Span { start: 15, end: 18 });
        let fault = read(r#"{"a": 1, "\u0061": 2}"#, Format::Json).unwrap_err();
        assert_eq!(fault.code, "policy/duplicate_member");
    }

    #[test]
    fn a_catalog_may_be_deeper_and_write_its_words_as_it_likes() {
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        assert!(read_large(&deep, 256).is_ok());
        assert_eq!(read_large(&deep, 64).unwrap_err().code, "policy/too_deep");
        let mut json = String::new();
        read_large("a: [True, 0x1F, +1, 1.0]", 64).unwrap().write_json(&mut json);
        assert_eq!(json, r#"{"a":["True","0x1F","+1",1.0]}"#);
        assert!(read_large("a: &x 1", 64).is_err());
    }

    #[test]
    fn a_character_that_a_reviewer_does_not_see_is_refused_where_it_stands() {
        for character in
            ['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{85}', '\u{2028}', '\u{e0041}']
        {
            let fault = yaml(&format!("a: x # {character}y")).unwrap_err();
            assert_eq!(fault.code, "policy/unseen_character");
            assert_eq!(fault.span, Span { start: 7, end: 7 + character.len_utf8() });
            assert!(read(&format!("{{\"a\":\"{character}\"}}"), Format::Json).is_err());
        }
        assert_eq!(json_of("a: \"\\u202e\""), "{\"a\":\"\u{202e}\"}");
        assert_eq!(json_of("a: é日本😀\u{200d}"), "{\"a\":\"é日本😀\u{200d}\"}");
    }

    #[test]
    fn what_hides_a_value_from_a_reviewer_is_refused() {
        let cases = [
            "a: &x 1",
            "a: *x",
            "a: &x [1]\nb: *x",
            "a: !!str 1",
            "a: !x {b: 1}",
            "<<: {a: 1}",
            "%YAML 1.2\n---\na: 1",
        ];
        for text in cases {
            assert_eq!(yaml(text).unwrap_err().code, "policy/yaml_feature", "{text}");
        }
    }

    #[test]
    fn what_is_no_single_document_is_refused() {
        for text in
            ["a: 1\n---\nb: 2", "\u{feff}a: 1", "a: [", "{a: 1}: 2", "? [a]\n: 1", "a: b: c"]
        {
            assert_eq!(yaml(text).unwrap_err().code, "policy/syntax", "{text}");
        }
        assert_eq!(yaml("a:\n\t- 1").unwrap_err().code, "policy/syntax");
    }

    #[test]
    fn depth_and_size_are_bounded() {
        let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
        assert_eq!(yaml(&deep).unwrap_err().code, "policy/too_deep");
        assert_eq!(read(&deep, Format::Json).unwrap_err().code, "policy/too_deep");
        let fine = format!("{}{}", "[".repeat(64), "]".repeat(64));
        assert!(yaml(&fine).is_ok());
        let large = format!("a: {}", "x".repeat(MAX_FILE));
        assert_eq!(yaml(&large).unwrap_err().code, "policy/too_large");
    }

    #[test]
    fn spans_name_the_very_token() {
        let text = "a:\n  é: \"x y\"\n  list: [1, {k: v}]\nb:\n  - p: q\nz: 1\n";
        let tree = yaml(text).unwrap();
        let slice = |span: Span| text.get(span.range()).unwrap();
        let a = tree.get("a").unwrap();
        assert_eq!(slice(a.span), "é: \"x y\"\n  list: [1, {k: v}]");
        assert_eq!(slice(a.get("é").unwrap().span), "\"x y\"");
        assert_eq!(slice(a.entries()[0].span), "é");
        let list = a.get("list").unwrap();
        assert_eq!(slice(list.span), "[1, {k: v}]");
        assert_eq!(slice(list.as_sequence().unwrap()[1].span), "{k: v}");
        assert_eq!(slice(tree.get("b").unwrap().span), "- p: q");
    }

    #[test]
    fn json_files_have_the_same_tree() {
        let text = r#"{"a": [1.0, null, true, "x"], "b": {}}"#;
        let json = read(text, Format::Json).unwrap();
        let yaml = yaml(text).unwrap();
        assert_eq!(json, yaml);
    }

    #[test]
    fn literals_keep_their_number_text() {
        let tree = yaml("const: {amount: 1.000, big: 123456789012345678901234567890}").unwrap();
        let doc = tree.get("const").unwrap().to_doc().unwrap();
        assert_eq!(doc.root().get("amount").unwrap().raw(), "1.000");
        assert_eq!(doc.root().get("big").unwrap().raw(), "123456789012345678901234567890");
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "[ -~\n]{0,200}") {
            for format in [Format::Yaml, Format::Json] {
                if let Err(fault) = read(&text, format) {
                    prop_assert!(fault.span.end <= text.len());
                }
            }
        }

        #[test]
        fn json_numbers_are_what_the_json_reader_takes(text in "[-+0-9.eE]{1,8}") {
            prop_assert_eq!(is_json_number(&text), Doc::parse(text.clone()).is_ok());
        }
    }
}
