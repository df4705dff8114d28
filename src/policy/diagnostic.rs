//! What the compiler found: a code, a severity, the very token, and what to do about it.
//!
//! Codes are stable and start with the book that the rule is from: `policy/` for the file itself,
//! `effect/` for ADR-0030's contract, `spec/` for EffectSpec (its variant names in snake case). A
//! finding of severity error under `effect/` or `spec/` makes its operation serve degraded; one
//! under `policy/` means that the file could not be read into operations, and no snapshot is made
//! ([`Findings::is_readable`]). Findings are reported all at once, in file order and then by
//! position, so that two runs over the same files say the same.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use bytes::Bytes;

use super::tree::{Span, is_unseen};
use crate::contract::json::write_string;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The policy does not say what it means to say.
    Error,
    /// It may not.
    Warning,
    /// A limit that a reviewer should know of.
    Info,
}

impl Severity {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// A file as it was read.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name, relative to the policy directory.
    pub name: Arc<str>,
    /// Its text. Shared with what reads it: a catalog is too large to be there twice.
    pub text: Arc<String>,
    /// Made for the first finding.
    index: OnceLock<Index>,
}

/// How far apart [`Index::marks`] are, in bytes.
const APART: usize = 1024;

/// Where lines and characters are in a text. A catalog may be one line of some megabytes with thousands
/// of findings, none of which may cost that line again.
#[derive(Clone, Debug)]
struct Index {
    /// The offset of each line's first byte.
    lines: Vec<usize>,
    /// How many characters begin before every so many bytes.
    marks: Vec<usize>,
}

impl Index {
    fn of(text: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = breaks.map(|(offset, _)| offset.saturating_add(1));
        let lines = std::iter::once(0).chain(starts).collect();
        let mut marks = Vec::with_capacity(text.len() / APART + 1);
        let mut count: usize = 0;
        for piece in text.as_bytes().chunks(APART) {
            marks.push(count);
            count = count.saturating_add(characters(piece));
        }
        marks.push(count);
        Self { lines, marks }
    }

    /// How many characters begin before this byte.
    fn before(&self, text: &str, offset: usize) -> usize {
        let offset = offset.min(text.len());
        let mark = offset / APART;
        let rest = text.as_bytes().get(mark.saturating_mul(APART)..offset).unwrap_or_default();
        self.marks.get(mark).copied().unwrap_or(0).saturating_add(characters(rest))
    }
}

/// How many characters begin in these bytes of a text.
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

impl Source {
    /// A file with this name and text.
    pub fn new(name: &str, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: Arc::new(text.into()), index: OnceLock::new() }
    }

    /// Its text as bytes, without a copy.
    pub(super) fn bytes(&self) -> Bytes {
        struct Shared(Arc<String>);
        impl AsRef<[u8]> for Shared {
            fn as_ref(&self) -> &[u8] {
                self.0.as_bytes()
            }
        }
        Bytes::from_owner(Shared(Arc::clone(&self.text)))
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::of(&self.text))
    }

    /// The line and column of a byte, both from 1; columns count characters.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let index = self.index();
        let line = index.lines.partition_point(|start| *start <= offset).max(1);
        let start = index.lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let before = |offset| index.before(&self.text, offset);
        let column = before(offset).saturating_sub(before(start));
        (line, column.saturating_add(1))
    }

    /// The text of the line that this byte is on, its number and its first byte's offset.
    fn line(&self, offset: usize) -> (&str, usize, usize) {
        let (line, _) = self.position(offset);
        let lines = &self.index().lines;
        let start = lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let end = lines.get(line).map_or(self.text.len(), |next| next.saturating_sub(1));
        (self.text.get(start..end).unwrap_or_default(), line, start)
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The stable code.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The file's name.
    pub file: Arc<str>,
    /// The place in the file, in bytes.
    pub span: Span,
    /// The line of the place, from 1.
    pub line: usize,
    /// The column of the place, from 1, in characters.
    pub column: usize,
    /// The operation that it is about, if it is about one.
    pub operation: Option<Arc<str>>,
    /// What was found.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl Diagnostic {
    /// For people: the message, the file with line and column, the token underlined, and one line
    /// of help. Plain text without colours.
    pub fn human(&self, source: Option<&Source>) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Info => Level::INFO,
        };
        let title = level.primary_title(self.message.as_str()).id(self.code);
        let mut drawn_at = self.column.saturating_sub(1);
        let mut group = match source {
            // Only the line is handed over: the renderer reads all that it is given, each time.
            Some(source) if !source.text.is_empty() => {
                let (text, line, start) = source.line(self.span.start);
                let from = self.span.start.saturating_sub(start).min(text.len());
                let to = self.span.end.saturating_sub(start).clamp(from, text.len());
                let (text, from, to) = window(text, from, to);
                let until = |end: usize| text.get(..end).map_or(0, |text| seen(text).len());
                let (from, to) = (until(from), until(to));
                drawn_at = text.get(..from).map_or(0, |text| text.chars().count());
                title.element(
                    Snippet::source(seen(text).into_owned())
                        .line_start(line)
                        .path(&*self.file)
                        .annotation(AnnotationKind::Primary.span(from..to)),
                )
            }
            Some(_) | None => title.element(annotate_snippets::Origin::path(&*self.file)),
        };
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        let drawn = Renderer::plain().decor_style(DecorStyle::Ascii).render(&[group]);
        let at = |column: usize| format!("{}:{}:{column}\n", self.file, self.line);
        let shown = drawn_at.saturating_add(1);
        // Of a very long line only a part is drawn, and the place is counted in that.
        if shown == self.column { drawn } else { drawn.replacen(&at(shown), &at(self.column), 1) }
    }

    /// For programs: one JSON object on one line.
    pub fn json(&self) -> String {
        let mut out = String::from("{");
        let mut text = |name: &str, value: Option<&str>| {
            if out.len() > 1 {
                out.push(',');
            }
            write_string(name, &mut out);
            out.push(':');
            match value {
                Some(value) => write_string(value, &mut out),
                None => out.push_str("null"),
            }
        };
        text("code", Some(self.code));
        text("severity", Some(self.severity.as_str()));
        text("file", Some(&self.file));
        text("operation", self.operation.as_deref());
        text("message", Some(&self.message));
        text("help", self.help.as_deref());
        // Writing to a string cannot fail.
        let written = write!(
            out,
            ",\"line\":{},\"column\":{},\"start\":{},\"end\":{}}}",
            self.line, self.column, self.span.start, self.span.end
        );
        debug_assert!(written.is_ok());
        out
    }
}

/// The part of a line that is drawn: what is around the place, as far as a terminal shows it. The
/// renderer reads all that it is given, each time.
fn window(text: &str, from: usize, to: usize) -> (&str, usize, usize) {
    const AROUND: usize = 200;
    // A place may be a byte, inside a character.
    let up = |mut offset: usize| {
        while !text.is_char_boundary(offset) {
            offset = offset.saturating_add(1);
        }
        offset
    };
    let down = |mut offset: usize| {
        while !text.is_char_boundary(offset) {
            offset = offset.saturating_sub(1);
        }
        offset
    };
    let from = down(from.min(text.len()));
    let start = down(from.saturating_sub(AROUND));
    let end = up(from.saturating_add(2 * AROUND).min(text.len()));
    let to = up(to.clamp(from, end));
    let part = text.get(start..end).unwrap_or_default();
    (part, from.saturating_sub(start), to.saturating_sub(start))
}

/// As [`seen`]; the usual text costs nothing.
fn clean(text: String) -> String {
    match seen(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(text) => text,
    }
}

/// A text as it may be written to a terminal: what is not shown, or moves the rest, is replaced.
fn seen(text: &str) -> Cow<'_, str> {
    let is_odd = |c: char| (c.is_control() && c != '\t') || is_unseen(c);
    if !text.contains(is_odd) {
        return Cow::Borrowed(text);
    }
    text.chars().map(|c| if is_odd(c) { '\u{fffd}' } else { c }).collect()
}

/// How many errors, and how many other findings, are kept: a file with more is broken as a whole,
/// and time stays linear in its size.
const MAX_KEPT: usize = 2_000;

/// For how many errors the nearest known name is looked for.
const MAX_HELPED: usize = 200;

/// Gathers findings, file by file.
#[derive(Debug, Default)]
pub(super) struct Findings {
    found: Vec<(usize, Diagnostic)>,
    errors: usize,
    unreadable: bool,
    /// How many of the files are policy files; the rest are catalogs, whose faults make no file
    /// unreadable. `None` while all are policy files.
    policies: Option<usize>,
    /// How many are not kept.
    left_out: usize,
    /// Where findings beyond the limit are written.
    spare: Option<Diagnostic>,
}

/// Where a finding is, and about what.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    /// Which file, by position.
    pub(super) file: usize,
    /// The file.
    pub(super) source: &'a Source,
    /// The operation, if one is read.
    pub(super) operation: Option<&'a str>,
}

impl Findings {
    /// For files of which the first so many are policy files, the others catalogs.
    pub(super) fn with_policies(count: usize) -> Self {
        Self { policies: Some(count), ..Self::default() }
    }

    /// Adds a finding; gives it back so that help can be added.
    pub(super) fn add(
        &mut self,
        at: At<'_>,
        severity: Severity,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        let is_error = severity == Severity::Error;
        if is_error {
            self.errors = self.errors.saturating_add(1);
            // With errors that are not kept, nobody knows which operations they are about.
            let is_policy = self.policies.is_none_or(|count| at.file < count);
            self.unreadable |= (is_policy && code.starts_with("policy/")) || self.errors > MAX_KEPT;
        }
        let (line, column) = at.source.position(span.start);
        let diagnostic = Diagnostic {
            code,
            severity,
            file: Arc::clone(&at.source.name),
            span,
            line,
            column,
            operation: at.operation.map(Arc::from),
            message: clean(message.into()),
            help: None,
        };
        let others = self.found.len().saturating_sub(self.errors.min(MAX_KEPT));
        let is_kept = if is_error { self.errors <= MAX_KEPT } else { others < MAX_KEPT };
        if !is_kept {
            self.left_out = self.left_out.saturating_add(1);
            return self.spare.insert(diagnostic);
        }
        self.found.push((at.file, diagnostic));
        match self.found.last_mut() {
            Some((_, diagnostic)) => diagnostic,
            // Something was pushed the line before.
            None => self.spare.insert(Diagnostic::nothing()),
        }
    }

    /// Whether there are so many errors that looking for what each may mean costs too much.
    pub(super) fn is_full(&self) -> bool {
        self.errors >= MAX_HELPED
    }

    /// Whether every file could be read into operations.
    pub(super) fn is_readable(&self) -> bool {
        !self.unreadable
    }

    /// All that were kept, as they were found.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.found.iter().map(|(_, diagnostic)| diagnostic)
    }

    /// All of them, in file order and then by position, each once.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        self.found.sort_by(|(left_file, left), (right_file, right)| {
            (left_file, left.span, left.severity, left.code).cmp(&(
                right_file,
                right.span,
                right.severity,
                right.code,
            ))
        });
        self.found.dedup();
        let mut all: Vec<Diagnostic> =
            self.found.into_iter().map(|(_, diagnostic)| diagnostic).collect();
        if let Some(last) = all.last().filter(|_| self.left_out > 0) {
            let message = format!("{} more findings are not listed", self.left_out);
            let help =
                Some(format!("mend these first: {MAX_KEPT} errors and as many others are kept"));
            let file = Arc::clone(&last.file);
            let code = "policy/findings_left_out";
            all.push(Diagnostic { code, file, message, help, ..Diagnostic::nothing() });
        }
        all
    }
}

impl Diagnostic {
    fn nothing() -> Self {
        Self {
            code: "",
            severity: Severity::Info,
            file: Arc::from(""),
            span: Span::default(),
            line: 1,
            column: 1,
            operation: None,
            message: String::new(),
            help: None,
        }
    }

    /// Says what to do.
    pub(super) fn help(&mut self, help: impl Into<String>) {
        self.help = Some(clean(help.into()));
    }
}

/// The known name that a misspelt one most likely means (case I4): the nearest by edit distance,
/// if it is near enough to be more than a guess.
pub(super) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let limit = name.chars().count().max(3).div_ceil(3);
    known
        .iter()
        .map(|candidate| (distance(name, candidate), *candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edit distance; a swap of two neighbours counts as one edit.
fn distance(left: &str, right: &str) -> usize {
    // Names beyond this are no misspelling of ours, and the table is quadratic.
    const LONGEST: usize = 64;
    let left: Vec<char> = left.chars().take(LONGEST).collect();
    let right: Vec<char> = right.chars().take(LONGEST).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=right.len()).collect();
    for (row, from) in left.iter().enumerate() {
        let mut current = vec![row.saturating_add(1)];
        for (column, to) in right.iter().enumerate() {
            let cell =
                |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX);
            let substituted = cell(&previous, column).saturating_add(usize::from(from != to));
            let removed = cell(&previous, column.saturating_add(1)).saturating_add(1);
            let added = cell(&current, column).saturating_add(1);
            let mut least = substituted.min(removed).min(added);
            let is_swap = row > 0
                && column > 0
                && left.get(row.wrapping_sub(1)) == Some(to)
                && right.get(column.wrapping_sub(1)) == Some(from);
            if is_swap {
                least = least.min(cell(&before, column.wrapping_sub(1)).saturating_add(1));
            }
            current.push(least);
        }
        before = std::mem::replace(&mut previous, current);
    }
    previous.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_when_it_is_near() {
        let known = ["class", "confirm", "inverse", "verification"];
        assert_eq!(nearest("clas", &known), Some("class"));
        assert_eq!(nearest("confrim", &known), Some("confirm"));
        assert_eq!(nearest("verifcation", &known), Some("verification"));
        assert_eq!(nearest("zzz", &known), None);
        assert_eq!(nearest("", &known), None);
        assert_eq!(distance("confrim", "confirm"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn positions_count_characters_from_one() {
        let source = Source::new("a.yaml", "é: x\nb: y");
        assert_eq!(source.position(0), (1, 1));
        assert_eq!(source.position(4), (1, 4));
        assert_eq!(source.position(6), (2, 1));
        assert_eq!(source.position(10), (2, 5));
        assert_eq!(source.position(999), (2, 5), "the end");
    }

    #[test]
    fn a_finding_is_one_json_object_and_one_drawing() {
        let source = Source::new("a.yaml", "version: 1\nclas: read\n");
        let mut findings = Findings::default();
        let at = At { file: 0, source: &source, operation: None };
        let span = Span { start: 11, end: 15 };
        let code = "policy/unknown_member";
        findings
            .add(at, Severity::Error, code, span, "`clas` is not a member")
            .help("did you mean `class`?");
        assert!(!findings.is_readable());
        let found = findings.finish();

        assert_eq!(
            found[0].human(Some(&source)),
            "error[policy/unknown_member]: `clas` is not a member\n \
             --> a.yaml:2:1\n  \
             |\n\
             2 | clas: read\n  \
             | ^^^^\n  \
             |\n  \
             = help: did you mean `class`?"
        );
        assert_eq!(
            found[0].json(),
            "{\"code\":\"policy/unknown_member\",\"severity\":\"error\",\"file\":\"a.yaml\",\
             \"operation\":null,\"message\":\"`clas` is not a member\",\
             \"help\":\"did you mean `class`?\",\"line\":2,\"column\":1,\"start\":11,\"end\":15}"
        );
    }

    #[test]
    fn a_place_in_a_very_long_line_is_drawn_with_what_is_around_it() {
        let text = format!("a\n{}here{}", "\u{e9}".repeat(3_000), "x".repeat(3_000));
        let source = Source::new("a.yaml", text.as_str());
        let start = text.find("here").unwrap();
        let mut findings = Findings::default();
        let at = At { file: 0, source: &source, operation: None };
        findings.add(at, Severity::Error, "policy/syntax", Span { start, end: start + 4 }, "m");
        let found = findings.finish();
        assert_eq!((found[0].line, found[0].column), (2, 3_001));

        let drawn = found[0].human(Some(&source));

        assert!(drawn.contains("--> a.yaml:2:3001\n"), "{drawn}");
        assert!(drawn.len() < 1_000);
        let lines: Vec<&str> = drawn.lines().collect();
        let column = |line: &str, wanted: char| line.chars().position(|c| c == wanted).unwrap();
        assert_eq!(column(lines[3], 'h'), column(lines[4], '^'), "{drawn}");
        assert_eq!(lines[4].matches('^').count(), 4, "{drawn}");
        for offset in (0..text.len()).filter(|offset| text.is_char_boundary(*offset)) {
            let line = text[..offset].matches('\n').count() + 1;
            let column = text[..offset].rsplit('\n').next().unwrap().chars().count() + 1;
            assert_eq!(source.position(offset), (line, column), "{offset}");
        }
    }

    #[test]
    fn a_place_inside_a_character_is_drawn_as_the_character() {
        let source = Source::new("a.json", "é\n");
        let mut findings = Findings::default();
        let at = At { file: 0, source: &source, operation: None };
        findings.add(at, Severity::Error, "policy/syntax", Span { start: 0, end: 1 }, "m");
        findings.add(at, Severity::Error, "policy/syntax", Span { start: 1, end: 2 }, "m");

        for found in findings.finish() {
            assert!(found.human(Some(&source)).contains("1 | é\n  | ^"), "{found:?}");
        }
    }

    #[test]
    fn nothing_of_a_file_moves_the_terminal_that_it_is_drawn_on() {
        let text = "a: \u{202e}x\u{85} \u{1b}[2J b";
        let source = Source::new("a.yaml", text);
        let mut findings = Findings::default();
        let at = At { file: 0, source: &source, operation: None };
        let span = Span { start: text.find('b').unwrap(), end: text.len() };
        let message = "`\u{1b}[31m` is odd";
        findings.add(at, Severity::Error, "policy/syntax", span, message).help("\u{200b}?");

        let drawn = findings.finish()[0].human(Some(&source));

        assert!(
            !drawn.contains(|c: char| (c.is_control() && c != '\n') || is_unseen(c)),
            "{drawn:?}"
        );
        let lines: Vec<&str> = drawn.lines().collect();
        let column = |line: &str, wanted: char| line.chars().position(|c| c == wanted).unwrap();
        assert_eq!(column(lines[3], 'b'), column(lines[4], '^'), "{drawn}");
    }

    #[test]
    fn findings_come_in_file_order_then_by_position() {
        let source = Source::new("a", "abc");
        let mut findings = Findings::default();
        for (file, start) in [(1, 0), (0, 2), (0, 1), (0, 1)] {
            let at = At { file, source: &source, operation: None };
            let span = Span { start, end: 3 };
            findings.add(at, Severity::Warning, "effect/path_invalid", span, "m");
        }
        assert!(findings.is_readable());
        let starts: Vec<_> = findings.finish().iter().map(|found| found.span.start).collect();
        assert_eq!(starts, [1, 2, 0]);
    }
}
