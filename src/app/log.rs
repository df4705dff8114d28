//! The process's log: one line per event on standard error, JSON unless a person looks or it is asked
//! for as text (`--log-format`).
//!
//! `TAKEBACK_LOG` is a filter as `tracing-subscriber` reads it (`info`, `debug`,
//! `takeback::pipeline=debug`). Default `info`. Some libraries stay silent whatever it says: their
//! debug lines hold header values and parameters of statements.
//!
//! A reader of standard error that takes nothing any more (a collector that hangs, a full pipe) holds
//! no call up and no end: a line that cannot be written at once is left out, and the first line after
//! says how many were. The ledger has what the log has not.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The variable of the filter.
pub const VARIABLE: &str = "TAKEBACK_LOG";

/// The levels that a filter may be, alone.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Libraries whose lines hold what must not be logged: header values, a statement's parameters.
const SILENT: [&str; 6] =
    ["axum", "h2", "hyper", "hyper_util", "postgres_protocol", "tokio_postgres"];

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object on each line, for collectors
    Json,
    /// One line of text each, for people
    Text,
}

/// Starts the log of the process, once; a second call does nothing. Without a format it is JSON, and
/// text where standard error is a terminal.
pub fn init(format: Option<Format>) {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let (filter, fault) = match filter(&asked) {
        Ok(filter) => (filter, None),
        Err(fault) => (EnvFilter::new("info"), Some(fault)),
    };
    let filter = SILENT.iter().fold(filter, |filter, target| {
        match format!("{target}=off").parse() {
            Ok(directive) => filter.add_directive(directive),
            // Constants of ours that parse; the test reads them all.
            Err(_) => filter,
        }
    });
    let registry = tracing_subscriber::registry().with(filter);
    let by_reader = || if io::stderr().is_terminal() { Format::Text } else { Format::Json };
    let format = format.unwrap_or_else(by_reader);
    let lines = Lines { format, state: Mutex::new(State::default()), to: io::stderr() };
    let lines = tracing_subscriber::fmt::layer().with_writer(lines).with_ansi(false);
    let started = match format {
        Format::Text => registry.with(lines.with_target(false)).try_init(),
        Format::Json => {
            registry.with(lines.json().flatten_event(true).with_current_span(false)).try_init()
        }
    };
    match (started, fault) {
        // Somebody started one before: theirs holds.
        (Err(_), _) | (Ok(()), None) => {}
        (Ok(()), Some(fault)) => {
            tracing::warn!(fault, "{VARIABLE} is no filter; logging at info");
        }
    }
}

fn filter(asked: &str) -> Result<EnvFilter, String> {
    let asked = asked.trim();
    if asked.is_empty() {
        return Ok(EnvFilter::new("info"));
    }
    let is_bare = !asked.contains(['=', ',', '[', ':']);
    if is_bare && !LEVELS.iter().any(|level| asked.eq_ignore_ascii_case(level)) {
        // The library takes it for a part of some program, and all others would be silent.
        return Err(format!("it is none of {}", LEVELS.join(", ")));
    }
    EnvFilter::builder().parse(asked).map_err(|error| error.to_string())
}

/// What a pipe takes whole where it takes anything (`PIPE_BUF` of Linux), in bytes.
const PIECE: usize = 4096;

/// Whole lines for a reader that may hang.
struct Lines<W> {
    format: Format,
    state: Mutex<State>,
    to: W,
}

#[derive(Debug, Default)]
struct State {
    /// Lines that were left out since the last that was written.
    lost: u64,
    /// The last line stopped in its middle.
    is_torn: bool,
}

impl<W: std::os::fd::AsFd> Lines<W>
where
    for<'a> &'a W: Write,
{
    /// Writes a line as far as that does not wait.
    fn put(&self, line: &[u8]) {
        // One at a time: what one has seen of the room must not be another's.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !has_room(&self.to) {
            state.lost = state.lost.saturating_add(1);
            return;
        }
        let mut text = Vec::with_capacity(line.len());
        if state.is_torn {
            text.push(b'\n');
        }
        if state.lost > 0 {
            text.extend_from_slice(said(self.format, state.lost).as_bytes());
        }
        text.extend_from_slice(line);
        *state = State::default();
        for (index, piece) in text.chunks(PIECE).enumerate() {
            let is_first = index == 0;
            if (!is_first && !has_room(&self.to)) || (&self.to).write_all(piece).is_err() {
                *state = State { lost: 1, is_torn: !is_first };
                return;
            }
        }
    }
}

/// The line that says how many are missing.
fn said(format: Format, lost: u64) -> String {
    let now = jiff::Timestamp::now();
    match format {
        Format::Json => format!(
            "{{\"timestamp\":\"{now}\",\"level\":\"WARN\",\"event\":\"log_lines_lost\",\"lost\":{lost},\
             \"message\":\"the reader of the log took nothing; lines were left out\"}}\n"
        ),
        Format::Text => {
            format!(
                "{now}  WARN the reader of the log took nothing; lines were left out lost={lost}\n"
            )
        }
    }
}

/// Whether it takes a piece at once; what cannot say so is taken at its word.
fn has_room(to: &impl std::os::fd::AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut asked = [PollFd::new(to, PollFlags::OUT)];
    match poll(&mut asked, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(count) => count > 0,
        Err(_) => true,
    }
}

impl<'a, W: std::os::fd::AsFd + 'a> tracing_subscriber::fmt::MakeWriter<'a> for Lines<W>
where
    for<'b> &'b W: Write,
{
    type Writer = Line<'a, W>;

    fn make_writer(&'a self) -> Line<'a, W> {
        Line(self)
    }
}

/// Writes one line, which comes in one piece.
struct Line<'a, W>(&'a Lines<W>);

impl<W: std::os::fd::AsFd> Write for Line<'_, W>
where
    for<'b> &'b W: Write,
{
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_no_filter() {
        for asked in ["", "info", "DEBUG", "off", "takeback=debug", "warn,takeback::pipeline=trace"]
        {
            assert!(filter(asked).is_ok(), "{asked}");
        }
        for asked in ["verbose", "all", "takeback=loud", "nonsense=="] {
            assert!(filter(asked).is_err(), "{asked}");
        }
    }

    #[test]
    fn a_reader_that_takes_nothing_holds_nobody_up_and_learns_what_it_missed() {
        for format in [Format::Json, Format::Text] {
            let (mut reader, writer) = io::pipe().unwrap();
            let lines = Lines { format, state: Mutex::default(), to: writer };
            let line = [b"x".repeat(1000).as_slice(), b"\n"].concat();
            for _ in 0..1000 {
                lines.put(&line);
            }
            let lost = lines.state.lock().unwrap().lost;
            assert!((1..1000).contains(&lost), "{lost}");

            let mut taken = vec![0; usize::try_from(1000 - lost).unwrap() * line.len()];
            reader.read_exact(&mut taken).unwrap();
            assert!(taken.chunks(line.len()).all(|one| one == line), "no line is torn");
            lines.put(b"next\n");
            drop(lines);
            let mut rest = String::new();
            reader.read_to_string(&mut rest).unwrap();
            let (said, next) = rest.split_once('\n').unwrap();
            assert!(said.contains("lost") && said.contains(&lost.to_string()), "{said}");
            assert_eq!(next, "next\n");
        }
    }

    #[test]
    fn a_line_that_is_torn_does_not_run_into_the_next() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = Lines { format: Format::Text, state: Mutex::default(), to: writer };
        lines.put(&b"x".repeat(1 << 20));
        assert!(lines.state.lock().unwrap().is_torn);
        let mut taken = vec![0; 60_000];
        reader.read_exact(&mut taken).unwrap();
        lines.put(b"next\n");
        drop(lines);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("x\n") && rest.ends_with("\nnext\n"));
    }

    #[test]
    fn a_filter_of_everything_still_leaves_the_http_libraries_silent() {
        for target in SILENT {
            let directive: Result<tracing_subscriber::filter::Directive, _> =
                format!("{target}=off").parse();
            assert!(directive.is_ok(), "{target}");
        }
    }
}
