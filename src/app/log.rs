//! The process's log: one line per event on standard error, JSON unless a person looks or it is asked
//! for as text (`--log-format`).
//!
//! `TAKEBACK_LOG` is a filter as `tracing-subscriber` reads it (`info`, `debug`,
//! `takeback::pipeline=debug`). Default `info`. Some libraries stay silent whatever it says: their
//! debug lines hold header values and parameters of statements.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The variable of the filter.
pub const VARIABLE: &str = "TAKEBACK_LOG";

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
    let (filter, fault) = match EnvFilter::builder().parse(&asked) {
        Ok(filter) if !asked.trim().is_empty() => (filter, None),
        Ok(_) => (EnvFilter::new("info"), None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let filter = SILENT.iter().fold(filter, |filter, target| {
        match format!("{target}=off").parse() {
            Ok(directive) => filter.add_directive(directive),
            // Constants of ours that parse; the test reads them all.
            Err(_) => filter,
        }
    });
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let by_reader = || if std::io::stderr().is_terminal() { Format::Text } else { Format::Json };
    let started = match format.unwrap_or_else(by_reader) {
        Format::Text => registry.with(lines.with_target(false)).try_init(),
        Format::Json => {
            registry.with(lines.json().flatten_event(true).with_current_span(false)).try_init()
        }
    };
    match (started, fault) {
        // Somebody started one before: theirs holds.
        (Err(_), _) | (Ok(()), None) => {}
        (Ok(()), Some(error)) => {
            tracing::warn!(%error, "{VARIABLE} is no filter; logging at info");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_everything_still_leaves_the_http_libraries_silent() {
        for target in SILENT {
            let directive: Result<tracing_subscriber::filter::Directive, _> =
                format!("{target}=off").parse();
            assert!(directive.is_ok(), "{target}");
        }
    }
}
