//! What the compiler found: a code, a severity, the very token, and what to do about it.
//!
//! Codes are stable and start with the book that the rule is from: `policy/` for the file itself,
//! `effect/` for ADR-0030's contract, `spec/` for EffectSpec (its variant names in snake case). A
//! finding of severity error under `effect/` or `spec/` makes its operation serve degraded; one
//! under `policy/` means that the file could not be read into operations, and no snapshot is made
//! ([`Findings::is_readable`]). Findings are reported all at once, in file order and then by
//! position, so that two runs over the same files say the same.

use std::fmt::Write as _;
use std::sync::Arc;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use super::tree::Span;
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
    /// Its text.
    pub text: Arc<str>,
    /// The offset of each line's first byte.
    lines: Vec<usize>,
}

impl Source {
    /// A file with this name and text.
    pub fn new(name: &str, text: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines =
            std::iter::once(0).chain(breaks.map(|(offset, _)| offset.saturating_add(1))).collect();
        Self { name: name.into(), text: text.into(), lines }
    }

    /// The line and column of a byte, both from 1; columns count characters.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let before = self.text.get(start..offset).unwrap_or_default();
        (line, before.chars().count().saturating_add(1))
    }

    /// The text of the line that this byte is on, its number and its first byte's offset.
    fn line(&self, offset: usize) -> (&str, usize, usize) {
        let (line, _) = self.position(offset);
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let end = self.lines.get(line).map_or(self.text.len(), |next| next.saturating_sub(1));
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
        let mut group = match source {
            // Only the line is handed over: the renderer reads all that it is given, each time.
            Some(source) if !source.text.is_empty() => {
                let (text, line, start) = source.line(self.span.start);
                let from = self.span.start.saturating_sub(start).min(text.len());
                let to = self.span.end.saturating_sub(start).clamp(from, text.len());
                title.element(
                    Snippet::source(text)
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
        Renderer::plain().decor_style(DecorStyle::Ascii).render(&[group])
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
            message: message.into(),
            help: None,
        };
        let others = self.found.len().saturating_sub(self.errors.min(MAX_KEPT));
        let is_kept = if is_error { self.errors <= MAX_KEPT } else { others < MAX_KEPT };
        if !is_kept {
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
        self.found.into_iter().map(|(_, diagnostic)| diagnostic).collect()
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
        self.help = Some(help.into());
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
        assert_eq!(source.position(999), (2, 1));
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
