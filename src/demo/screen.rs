//! How the guide looks: wrapped to the terminal, coloured only on one.
//!
//! Everything is written through [`Screen`], so that what is shown of a call has one form. Colours
//! follow <https://no-color.org>; without a terminal the width is 100 columns.

use std::io::{self, IsTerminal as _, Write};

use http::StatusCode;
use serde_json::Value;

/// The width where there is no terminal.
const WIDTH: usize = 100;

/// The widest and narrowest text that is still easy to read.
const WIDEST: usize = 110;
const NARROWEST: usize = 50;

/// The left edge of everything but titles.
const INDENT: &str = "   ";

/// Whether escape sequences are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Off,
    On,
}

#[derive(Clone, Copy)]
enum Tint {
    Bold,
    Dim,
    Green,
    Red,
    Yellow,
}

impl Tint {
    fn code(self) -> &'static str {
        match self {
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Green => "\x1b[32m",
            Self::Red => "\x1b[31m",
            Self::Yellow => "\x1b[33m",
        }
    }
}

/// Where the guide writes.
pub(super) struct Screen<W> {
    out: W,
    width: usize,
    colour: Colour,
}

impl Screen<io::Stdout> {
    /// The standard output, as wide as its terminal.
    pub(super) fn stdout() -> Self {
        let out = io::stdout();
        let is_plain = !out.is_terminal()
            || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let width = terminal_size::terminal_size_of(&out)
            .map_or(WIDTH, |(terminal_size::Width(width), _)| usize::from(width));
        Self::new(out, width, if is_plain { Colour::Off } else { Colour::On })
    }
}

impl<W: Write> Screen<W> {
    /// A screen of this many columns.
    pub(super) fn new(out: W, width: usize, colour: Colour) -> Self {
        Self { out, width: width.clamp(NARROWEST, WIDEST), colour }
    }

    /// A chapter's title.
    pub(super) fn chapter(&mut self, number: usize, title: &str) -> io::Result<()> {
        let line = format!("{number}. {title}");
        let title = self.tinted(Tint::Bold, &line);
        writeln!(self.out, "\n{title}\n")
    }

    /// A title without a number.
    pub(super) fn title(&mut self, title: &str) -> io::Result<()> {
        let title = self.tinted(Tint::Bold, title);
        writeln!(self.out, "\n{title}\n")
    }

    /// A name and what it stands for, in two columns.
    pub(super) fn row(&mut self, name: &str, value: &str) -> io::Result<()> {
        writeln!(self.out, "{INDENT}{name:<12} {value}")
    }

    /// A line that is not wrapped: something to copy.
    pub(super) fn verbatim(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.out, "{INDENT}{line}")
    }

    /// A request as it is sent.
    pub(super) fn request(
        &mut self,
        line: &str,
        headers: &[(&'static str, String)],
        body: Option<&Value>,
    ) -> io::Result<()> {
        let line = self.tinted(Tint::Bold, &format!("> {line}"));
        writeln!(self.out, "{INDENT}{line}")?;
        for (name, value) in headers {
            self.wrapped(Tint::Dim, "  ", &format!("{name}: {}", shortened(value)))?;
        }
        match body {
            Some(body) => self.wrapped(Tint::Dim, "  ", &spaced(body)),
            None => Ok(()),
        }
    }

    /// A command as it would be typed.
    pub(super) fn command(&mut self, line: &str) -> io::Result<()> {
        let line = self.tinted(Tint::Bold, &format!("$ {line}"));
        writeln!(self.out, "{INDENT}{line}")
    }

    /// These members of each object, in columns.
    pub(super) fn table(&mut self, rows: &[Value], members: &[&str]) -> io::Result<()> {
        let cell = |row: &Value, member: &str| {
            let value = row.get(member);
            value.and_then(Value::as_str).unwrap_or("-").to_owned()
        };
        let widths: Vec<usize> = members
            .iter()
            .map(|member| rows.iter().map(|row| cell(row, member).len()).max().unwrap_or(0))
            .collect();
        for row in rows {
            let cells = members.iter().zip(&widths);
            let cells: Vec<String> =
                cells.map(|(member, width)| format!("{:<width$}", cell(row, member))).collect();
            let line = self.tinted(Tint::Dim, cells.join("  ").trim_end());
            writeln!(self.out, "{INDENT}  {line}")?;
        }
        Ok(())
    }

    /// The status of its answer.
    pub(super) fn status(&mut self, status: StatusCode) -> io::Result<()> {
        let tint = match status.as_u16() {
            0..=399 => Tint::Green,
            400..=499 => Tint::Yellow,
            _ => Tint::Red,
        };
        let line = format!("< {} {}", status.as_u16(), status.canonical_reason().unwrap_or(""));
        let line = self.tinted(tint, line.trim_end());
        writeln!(self.out, "{INDENT}{line}")
    }

    /// A part of an answer: its name, and these of its members.
    pub(super) fn part(&mut self, name: &str, value: &Value, members: &[&str]) -> io::Result<()> {
        let shown: serde_json::Map<String, Value> = members
            .iter()
            .filter_map(|member| Some(((*member).to_owned(), value.get(member)?.clone())))
            .collect();
        self.wrapped(Tint::Dim, "  ", &format!("{name} {}", spaced(&Value::Object(shown))))
    }

    /// What it means.
    pub(super) fn say(&mut self, text: &str) -> io::Result<()> {
        for line in wrap(text, self.width.saturating_sub(INDENT.len())) {
            writeln!(self.out, "{INDENT}{line}")?;
        }
        Ok(())
    }

    /// An empty line.
    pub(super) fn space(&mut self) -> io::Result<()> {
        writeln!(self.out)
    }

    /// A step that did not do what it says.
    pub(super) fn failure(&mut self, text: &str) -> io::Result<()> {
        let line = self.tinted(Tint::Red, text);
        writeln!(self.out, "\n{line}")?;
        self.flush()
    }

    /// Shows all of it now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn wrapped(&mut self, tint: Tint, hanging: &str, text: &str) -> io::Result<()> {
        let edge = INDENT.len().saturating_add(hanging.len());
        for (position, line) in wrap(text, self.width.saturating_sub(edge + 2)).iter().enumerate() {
            let deeper = if position == 0 { "" } else { "  " };
            let line = self.tinted(tint, line);
            writeln!(self.out, "{INDENT}{hanging}{deeper}{line}")?;
        }
        Ok(())
    }

    fn tinted(&self, tint: Tint, text: &str) -> String {
        match self.colour {
            Colour::Off => text.to_owned(),
            Colour::On => format!("{}{text}\x1b[0m", tint.code()),
        }
    }
}

/// A text in which long words, such as tokens, are shown by their beginning.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    const SHOWN: usize = 24;
    let words: Vec<String> = text
        .split(' ')
        .map(|word| match word.chars().count() {
            0..=LONGEST => word.to_owned(),
            _ => word.chars().take(SHOWN).chain("...".chars()).collect(),
        })
        .collect();
    words.join(" ")
}

/// JSON on one line with spaces where it may be broken.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(spaced).collect();
            format!("[{}]", elements.join(", "))
        }
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{}: {}", Value::from(name.as_str()), spaced(value)))
                .collect();
            format!("{{{}}}", members.join(", "))
        }
        Value::String(text) => Value::from(shortened(text)).to_string(),
        Value::Bool(_) | Value::Null | Value::Number(_) => value.to_string(),
    }
}

/// Lines of at most so many columns, broken at spaces. A longer word has a line of its own. Control
/// characters are left out: a terminal would obey them.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut columns: usize = 0;
    for word in text.split_whitespace() {
        let word: String = word.chars().filter(|c| !c.is_control()).collect();
        let length = word.chars().count();
        if columns > 0 && columns.saturating_add(1).saturating_add(length) > width {
            lines.push(std::mem::take(&mut line));
            columns = 0;
        }
        if columns > 0 {
            line.push(' ');
            columns += 1;
        }
        line.push_str(&word);
        columns += length;
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn written(colour: Colour, write: impl FnOnce(&mut Screen<&mut Vec<u8>>)) -> String {
        let mut out = Vec::new();
        write(&mut Screen::new(&mut out, 60, colour));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_report_is_wrapped_to_the_width_and_only_its_members_are_shown() {
        let report = json!({
            "class": "reversible", "operation": "github.comments.create", "deadline_ms": null,
            "undo": {"http": {"method": "DELETE", "path": "/repos/octo/hello/issues/comments/1"}},
        });

        let text = written(Colour::Off, |screen| {
            screen.part("effect", &report, &["class", "undo", "absent"]).unwrap();
        });

        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        let joined: String = text.split_whitespace().collect();
        assert_eq!(
            joined,
            concat!(
                r#"effect{"class":"reversible","undo":{"http":"#,
                r#"{"method":"DELETE","path":"/repos/octo/hello/issues/comments/1"}}}"#
            )
        );
    }

    #[test]
    fn no_escape_is_written_without_colour_whatever_the_text_holds() {
        let write = |screen: &mut Screen<&mut Vec<u8>>| {
            screen.chapter(1, "Title").unwrap();
            screen.say("a \x1b[31mred\x1b[0m word").unwrap();
            screen.status(StatusCode::OK).unwrap();
        };

        assert!(!written(Colour::Off, write).contains('\x1b'));
        assert!(written(Colour::On, write).contains("\x1b[32m< 200 OK\x1b[0m"));
    }

    #[test]
    fn a_token_is_shown_by_its_beginning() {
        let token = "t".repeat(200);
        let message = format!("send {token} back");

        let text = written(Colour::Off, |screen| {
            screen.request("POST /", &[("effect-confirm", token.clone())], None).unwrap();
            screen.part("confirm", &json!({"token": token}), &["token"]).unwrap();
            screen.part("error", &json!({"message": message}), &["message"]).unwrap();
        });

        assert!(!text.contains(&"t".repeat(40)));
        assert_eq!(text.matches("...").count(), 3);
        assert!(text.contains("back"), "{text}");
    }

    proptest! {
        #[test]
        fn wrapping_keeps_every_word_and_its_order(
            text in "[a-z \\n]{0,200}",
            width in 1_usize..40,
        ) {
            let lines = wrap(&text, width);

            let words = |text: &str| {
                text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
            };
            prop_assert_eq!(words(&lines.join(" ")), words(&text));
            for line in &lines {
                prop_assert!(line.chars().count() <= width || !line.contains(' '));
            }
        }
    }
}
