//! What the commands print: text for people, JSON for programs.
//!
//! Everything that comes out of a ledger or a policy may have been chosen by an agent, so control
//! characters are shown and not sent to the terminal. A reader that goes away (`| head`) ends the
//! output quietly.

use std::io::{self, IsTerminal as _, Write as _};

use super::exit::{self, Failure};

/// Prints text and ends the line.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    match written {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::new(exit::IO, format!("the output cannot be written: {error}"))),
    }
}

/// Says on standard error what went wrong. Where even that is closed, nobody can be told.
pub(super) fn complain(text: &str) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// Whether people with a colour terminal read the output.
pub(super) fn is_coloured() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A colour of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Green,
    Plain,
    Red,
    Yellow,
}

/// One cell of a table.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) colour: Colour,
}

impl Cell {
    pub(super) fn plain(text: impl AsRef<str>) -> Self {
        Self::coloured(text, Colour::Plain)
    }

    pub(super) fn coloured(text: impl AsRef<str>, colour: Colour) -> Self {
        Self { text: clean(text.as_ref()), colour }
    }
}

/// A table with aligned columns; the last column is as long as it is.
pub(super) fn table(names: &[&str], rows: &[Vec<Cell>], is_coloured: bool) -> String {
    let width = |index: usize| {
        let cells = rows.iter().filter_map(|row| row.get(index)).map(|cell| length(&cell.text));
        cells.chain(names.get(index).map(|name| length(name))).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let head: Vec<Cell> = names.iter().map(Cell::plain).collect();
    let mut lines = Vec::with_capacity(rows.len().saturating_add(1));
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let space = width.saturating_sub(length(&cell.text)).saturating_add(2);
            line.push_str(&paint(&cell.text, cell.colour, is_coloured));
            line.extend(std::iter::repeat_n(' ', space));
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}

/// Text in a colour.
pub(super) fn paint(text: &str, colour: Colour, is_coloured: bool) -> String {
    let code = match colour {
        Colour::Green => "32",
        Colour::Plain => return text.to_owned(),
        Colour::Red => "31",
        Colour::Yellow => "33",
    };
    if is_coloured { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// Text without control characters: they are shown as escapes.
pub(super) fn clean(text: &str) -> String {
    let is_odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if is_odd(character) {
            out.extend(character.escape_unicode());
        } else {
            out.push(character);
        }
    }
    out
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_what_is_seen() {
        let rows = [
            vec![Cell::coloured("accepted", Colour::Green), Cell::plain("a")],
            vec![Cell::plain("ü"), Cell::plain("long text")],
        ];
        let plain = "STATE     OPERATION\naccepted  a\nü         long text";
        assert_eq!(table(&["STATE", "OPERATION"], &rows, false), plain);
        let painted = table(&["STATE", "OPERATION"], &rows, true);
        assert_eq!(painted.replace("\u{1b}[32m", "").replace("\u{1b}[0m", ""), plain);
        assert_ne!(painted, plain);
    }

    #[test]
    fn what_an_agent_chose_cannot_steer_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\nc"), r"a\u{1b}[2Jb\u{a}c");
        assert_eq!(clean("x\u{202e}y"), r"x\u{202e}y");
        assert_eq!(clean("grün"), "grün");
    }
}
