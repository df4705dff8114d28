//! `takeback ledger export`: the whole ledger as a stream, for an archive or another tool.
//!
//! Newest first, in pages, so that neither this nor the ledger holds it whole, and a sidecar that writes
//! meanwhile is not kept waiting. To go on after an interruption, give the last line's entry as
//! `--before`; to fetch only what came since the last export, its first entry as `--since`.
//!
//! JSON lines hold the entry and its history. CSV (RFC 4180) holds one row per entry. A value that a
//! spreadsheet would take for a formula gets an apostrophe before it, because the caller chose it.

use std::io::{self, BufWriter};

use super::exit::{self, Failure};
use super::ledger::{open, unreadable};
use super::{ExportFormat, entry_id};
use crate::admin::entries::{ShownJson, time};
use crate::contract::key::EntryId;
use crate::ledger::{Filter, Place, Record};

/// Entries per page.
const PAGE: usize = 500;

/// What `ledger export` writes.
#[derive(Clone, Debug)]
pub(super) struct Export<'a> {
    pub(super) since: Option<&'a str>,
    pub(super) before: Option<&'a str>,
    pub(super) format: ExportFormat,
}

const COLUMNS: [&str; 22] = [
    "entry",
    "state",
    "cause",
    "class",
    "kind",
    "operation",
    "transport",
    "target",
    "task",
    "principal",
    "ledger_id",
    "key_sent",
    "attempt",
    "began_at",
    "finished_at",
    "delivered",
    "staged",
    "disposition",
    "verdict",
    "upstream_status",
    "upstream_id",
    "policy_revision",
];

/// Writes the ledger to the standard output.
pub(super) fn run(place: &Place, asked: &Export<'_>) -> Result<u8, Failure> {
    let since = asked.since.map(entry_id).transpose()?;
    let mut before = asked.before.map(entry_id).transpose()?;
    let ledger = open(place)?;
    for entry in [since, before].into_iter().flatten() {
        if ledger.show(entry).map_err(unreadable)?.is_none() {
            let message = format!("the ledger has no entry {entry}");
            return Err(Failure::new(exit::DATA, message));
        }
    }
    let mut out = BufWriter::new(io::stdout().lock());
    if asked.format == ExportFormat::Csv && !line(&mut out, &COLUMNS.join(","), "\r\n")? {
        return Ok(exit::OK);
    }
    loop {
        let filter = Filter { before, limit: PAGE, ..Filter::default() };
        let page = ledger.list(&filter).map_err(unreadable)?;
        let is_last = page.len() < PAGE;
        for record in &page {
            if since == Some(record.prior.entry) {
                return flushed(out);
            }
            let text = match asked.format {
                ExportFormat::Csv => row(record),
                ExportFormat::Jsonl => {
                    // One that was pruned meanwhile is none any more.
                    let Some(shown) = ledger.show(record.prior.entry).map_err(unreadable)? else {
                        continue;
                    };
                    super::ledger::json(&ShownJson::of(&shown))?
                }
            };
            let end = if asked.format == ExportFormat::Csv { "\r\n" } else { "\n" };
            if !line(&mut out, &text, end)? {
                return Ok(exit::OK);
            }
        }
        before = page.last().map(|record| record.prior.entry);
        if is_last {
            return flushed(out);
        }
    }
}

fn flushed(mut out: impl io::Write) -> Result<u8, Failure> {
    out.flush().map_err(unwritten)?;
    Ok(exit::OK)
}

/// Writes one line; `false` if the reader has enough.
fn line(out: &mut impl io::Write, text: &str, end: &str) -> Result<bool, Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(end.as_bytes())) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(unwritten(error)),
    }
}

fn unwritten(error: io::Error) -> Failure {
    Failure::new(exit::IO, format!("the export cannot be written: {error}"))
}

fn row(record: &Record) -> String {
    let prior = &record.prior;
    let finish = record.finish.as_ref();
    let yes = |is: bool| if is { "true" } else { "false" }.to_owned();
    let or_empty = |text: Option<String>| text.unwrap_or_default();
    let entry: EntryId = prior.entry;
    let fields = [
        entry.to_string(),
        prior.state.as_str().to_owned(),
        or_empty(prior.cause.map(|cause| cause.as_str().to_owned())),
        record.class.as_str().to_owned(),
        record.kind.as_str().to_owned(),
        prior.operation.as_str().to_owned(),
        record.transport.clone(),
        record.target.clone(),
        or_empty(record.task.clone()),
        prior.principal.id.clone(),
        prior.ledger_id.as_str().to_owned(),
        yes(record.key_sent),
        prior.attempt.to_string(),
        time(prior.began_ms),
        or_empty(prior.finished_ms.map(time)),
        yes(prior.delivered),
        yes(prior.staged),
        or_empty(finish.map(|finish| finish.disposition.as_str().to_owned())),
        or_empty(finish.and_then(|f| f.verdict).map(|verdict| verdict.as_str().to_owned())),
        or_empty(finish.and_then(|f| f.upstream_status).map(|status| status.to_string())),
        or_empty(finish.and_then(|f| f.upstream_id.clone())),
        record.policy_revision.to_hex(),
    ];
    fields.map(|text| field(&text)).join(",")
}

fn field(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_quoted_where_it_must_be_and_is_never_a_formula() {
        let table = [
            ("plain", "plain"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("two\r\nlines", "\"two\r\nlines\""),
            ("=1+1", "'=1+1"),
            ("@sum(a,b)", "\"'@sum(a,b)\""),
            ("POST /a?b=-1", "POST /a?b=-1"),
        ];
        for (text, right) in table {
            assert_eq!(field(text), right, "{text}");
        }
    }
}
