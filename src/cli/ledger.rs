//! `takeback ledger`: reading a ledger, beside a running sidecar or without one.

use super::exit::{self, Failure, chain, open_error, with_help};
use super::out::{self, Cell, Colour};
use super::{Format, entry_id};
use crate::admin::entries::{EntryJson, ShownJson, time};
use crate::admin::receipt::{Attempt, Receipt};
use crate::contract::key::OperationId;
use crate::ledger::{
    Filter, LedgerError, OpenError, Place, ReadOnly, Reason, Record, Shown, State,
};

/// What `ledger list` shows.
#[derive(Clone, Debug)]
pub(super) struct List<'a> {
    pub(super) state: Option<&'a str>,
    pub(super) operation: Option<&'a str>,
    pub(super) task: Option<&'a str>,
    pub(super) limit: usize,
    pub(super) format: Format,
}

pub(super) fn open(place: &Place) -> Result<ReadOnly, Failure> {
    if let Some(path) = place.file()
        && let Err(error) = std::fs::metadata(path)
        && error.kind() == std::io::ErrorKind::NotFound
    {
        let message = format!("there is no ledger at {place}");
        let help = "a sidecar makes one when it starts; point at it with --ledger FILE, \
                    TAKEBACK_LEDGER or --config FILE";
        return Err(Failure::new(exit::DATA, with_help(&message, help)));
    }
    if place.file().is_some_and(std::path::Path::is_dir) {
        let message = format!("{place} is a folder");
        let help = "give the ledger's file in it: --ledger FOLDER/ledger.db";
        return Err(Failure::new(exit::DATA, with_help(&message, help)));
    }
    ReadOnly::open(place).map_err(|error| {
        let (code, help) = match &error {
            OpenError::Io(source) if source.kind() == std::io::ErrorKind::PermissionDenied => {
                (exit::PERMISSION, "the ledger belongs to the user that the sidecar runs as")
            }
            _ => open_error(&error),
        };
        let message = format!("the ledger {place} cannot be read: {}", chain(&error));
        Failure::new(code, with_help(&message, help))
    })
}

/// A ledger that opened and then could not be read.
pub(super) fn unreadable(error: crate::ledger::LedgerError) -> Failure {
    let help = match error {
        LedgerError::Unavailable(Reason::Corrupt) => {
            "keep the file for an inquiry, and restore one from its backup"
        }
        LedgerError::Unavailable(_) => {
            "is its volume there, or does its database answer? try again, or read a copy of the \
             file with its -wal"
        }
        LedgerError::Changed
        | LedgerError::NotFound
        | LedgerError::NothingThere
        | LedgerError::NotUnknown { .. }
        | LedgerError::StillOpen
        | LedgerError::Refused => "",
    };
    Failure::new(exit::IO, with_help(&chain(&error), help))
}

/// Lists entries, newest first.
pub(super) fn list(place: &Place, asked: &List<'_>) -> Result<u8, Failure> {
    if asked.limit == 0 {
        let message = with_help("--limit 0 lists nothing", "give 1 or more");
        return Err(Failure::new(exit::USAGE, message));
    }
    let state = asked.state.map(|state| {
        State::from_name(state).ok_or_else(|| {
            let states: Vec<&str> = State::ALL.iter().map(|state| state.as_str()).collect();
            let message = format!("there is no state `{state}`");
            Failure::new(exit::USAGE, with_help(&message, &format!("give {}", states.join(", "))))
        })
    });
    let operation = asked.operation.map(|id| {
        let message = format!("`{id}` is no operation id");
        OperationId::new(id).ok_or_else(|| Failure::new(exit::USAGE, message))
    });
    let filter = Filter {
        state: state.transpose()?,
        operation: operation.transpose()?,
        task: asked.task.map(str::to_owned),
        limit: asked.limit,
        ..Filter::default()
    };
    let records = open(place)?.list(&filter).map_err(unreadable)?;
    match asked.format {
        Format::Json => {
            for record in &records {
                out::print(&json(&EntryJson::of(record))?)?;
            }
        }
        Format::Text if records.is_empty() => out::complain("no entries"),
        Format::Text => {
            let names = ["ENTRY", "BEGAN", "STATE", "CAUSE", "CLASS", "OPERATION", "TARGET"];
            let rows: Vec<Vec<Cell>> = records.iter().map(row).collect();
            out::print(&out::table(&names, &rows, out::is_coloured()))?;
        }
    }
    Ok(exit::OK)
}

fn row(record: &Record) -> Vec<Cell> {
    let prior = &record.prior;
    vec![
        Cell::plain(prior.entry.to_string()),
        Cell::plain(time(prior.began_ms)),
        Cell::coloured(prior.state.as_str(), colour(prior.state)),
        Cell::plain(prior.cause.map_or("-", |cause| cause.as_str())),
        Cell::plain(record.class.as_str()),
        Cell::plain(prior.operation.as_str()),
        Cell::plain(&record.target),
    ]
}

fn colour(state: State) -> Colour {
    match state {
        State::Accepted => Colour::Green,
        State::Begun | State::Unknown | State::Waiting => Colour::Yellow,
        State::Rejected => Colour::Red,
        State::Undone => Colour::Plain,
    }
}

/// Shows one entry and its history.
pub(super) fn show(place: &Place, entry: &str, what: What, format: Format) -> Result<u8, Failure> {
    let id = entry_id(entry)?;
    let shown = open(place)?.show(id).map_err(unreadable)?;
    let shown = shown.ok_or_else(|| {
        let message = format!("the ledger {place} has no entry {id}");
        Failure::new(exit::DATA, with_help(&message, "`takeback ledger list` shows those it has"))
    })?;
    match (format, what) {
        (Format::Json, What::Entry) => out::print(&json(&ShownJson::of(&shown))?)?,
        (Format::Json, What::Receipt) => out::print(&json(&Receipt::of(&shown))?)?,
        (Format::Text, What::Receipt) => {
            out::print(&receipt(&Receipt::of(&shown), out::is_coloured()))?;
        }
        (Format::Text, What::Entry) => {
            out::print(&text(&shown, out::is_coloured()))?;
        }
    }
    Ok(exit::OK)
}

/// What `ledger show` shows of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// All of it.
    Entry,
    /// Its receipt.
    Receipt,
}

fn receipt(receipt: &Receipt, is_coloured: bool) -> String {
    let Receipt { authorization, dispatch, verification, .. } = receipt;
    let word = |is_so: bool| if is_so { "yes" } else { "no" }.to_owned();
    let mut text = String::new();
    let mut part = |title: &str, lines: Vec<(&str, Option<String>)>| {
        text.push_str(&out::paint(title, Colour::Green, is_coloured));
        text.push('\n');
        for (name, value) in lines {
            if let Some(value) = value {
                text.push_str(&format!("  {name:<12} {}\n", out::clean(&value)));
            }
        }
    };
    part(
        "authorization",
        vec![
            ("principal", Some(authorization.principal.clone())),
            ("level", Some(authorization.level.clone())),
            ("confirmed", Some(word(authorization.confirmed))),
            ("policy", Some(authorization.policy_revision.clone())),
            ("repeats", authorization.repeats.clone()),
        ],
    );
    let mut lines = vec![
        ("operation", Some(format!("{} ({})", receipt.operation, receipt.class))),
        ("target", Some(dispatch.target.clone())),
        ("key", dispatch.idempotency_key.clone()),
        ("state", Some(dispatch.state.to_owned())),
        ("cause", dispatch.cause.map(str::to_owned)),
        ("before kept", Some(word(dispatch.before_kept))),
    ];
    lines.extend(dispatch.attempts.iter().map(|attempt| {
        let status = attempt.upstream_status.map_or("-".to_owned(), |status| status.to_string());
        let Attempt { attempt: number, finished_at, disposition, .. } = attempt;
        ("attempt", Some(format!("{number}: {disposition}, status {status}, {finished_at}")))
    }));
    part("dispatch", lines);
    let named = |value: &serde_json::Value, name: &str| {
        value.get(name).and_then(|value| value.as_str()).unwrap_or("-").to_owned()
    };
    let evidence = &verification.evidence;
    let mut lines = vec![
        ("verdict", verification.verdict.map(str::to_owned)),
        ("method", Some(named(evidence, "method"))),
    ];
    let list = |value: &serde_json::Value, name: &str| -> Vec<serde_json::Value> {
        value.get(name).and_then(|value| value.as_array()).cloned().unwrap_or_default()
    };
    for stage in list(evidence, "stages") {
        let verdict = match stage.get("not_evaluated").and_then(|why| why.as_str()) {
            Some(why) => format!("not evaluated: {why}"),
            None => named(&stage, "verdict"),
        };
        let (id, claim) = (named(&stage, "id"), named(&stage, "claim"));
        lines.push(("stage", Some(format!("{id} ({claim}): {verdict}"))));
        for assertion in list(&stage, "assertions") {
            let (name, outcome) = (named(&assertion, "name"), named(&assertion, "outcome"));
            lines.push(("  asserts", Some(format!("{name}: {outcome}"))));
        }
    }
    for assertion in list(evidence, "assertions") {
        let (name, outcome) = (named(&assertion, "name"), named(&assertion, "outcome"));
        lines.push(("asserts", Some(format!("{name}: {outcome}"))));
    }
    for look in &verification.looks {
        let why = look.why.as_deref().unwrap_or("-");
        lines.push(("looked", Some(format!("{}: {why}", look.at))));
    }
    if let Some(settled) = &verification.settled {
        let who = settled.who.as_deref().unwrap_or("-");
        let why = settled.why.as_deref().unwrap_or("-");
        lines.push(("settled by", Some(format!("{who}: {why}"))));
    }
    lines.push(("next look", verification.next_look_at.clone()));
    part("verification", lines);
    text.truncate(text.trim_end().len());
    text
}

fn text(shown: &Shown, is_coloured: bool) -> String {
    let record = &shown.record;
    let prior = &record.prior;
    let finish = record.finish.as_ref();
    let state = out::paint(prior.state.as_str(), colour(prior.state), is_coloured);
    let mut lines: Vec<(&str, Option<String>)> = vec![
        ("entry", Some(prior.entry.to_string())),
        ("state", Some(state)),
        ("cause", prior.cause.map(|cause| cause.as_str().to_owned())),
        ("class", Some(record.class.as_str().to_owned())),
        ("kind", Some(record.kind.as_str().to_owned())),
        ("operation", Some(prior.operation.as_str().to_owned())),
        ("target", Some(out::clean(&record.target))),
        ("transport", Some(out::clean(&record.transport))),
        ("task", record.task.as_deref().map(out::clean)),
        ("staged for", record.staged_for.as_ref().map(|id| id.as_str().to_owned())),
        ("principal", Some(out::clean(&prior.principal.id))),
        ("ledger id", Some(prior.ledger_id.as_str().to_owned())),
        ("key sent", Some(if record.key_sent { "yes" } else { "no" }.to_owned())),
        ("attempts", Some(prior.attempt.to_string())),
        ("began", Some(time(prior.began_ms))),
        ("finished", prior.finished_ms.map(time)),
        ("delivered", Some(if prior.delivered { "yes" } else { "no" }.to_owned())),
        ("repeats", record.repeats.map(|entry| entry.to_string())),
        ("removed", prior.removed.map(|removed| removed.as_str().to_owned())),
    ];
    if let Some(finish) = finish {
        lines.extend([
            ("disposition", Some(finish.disposition.as_str().to_owned())),
            ("verdict", finish.verdict.map(|verdict| verdict.as_str().to_owned())),
            ("status", finish.upstream_status.map(|status| status.to_string())),
            ("upstream id", finish.upstream_id.as_deref().map(out::clean)),
            ("undo", finish.undo.as_deref().map(out::clean)),
            ("undo until", finish.deadline_ms.map(time)),
            ("compensate", finish.compensate.as_deref().map(out::clean)),
            ("no undo", finish.undo_unavailable.as_deref().map(out::clean)),
        ]);
    }
    lines.push(("lookup", prior.lookup.as_deref().map(out::clean)));
    lines.push(("before", shown.before.as_deref().map(out::clean)));
    lines.push(("next look", record.due_ms.map(time)));
    let mut text = String::new();
    for (name, value) in lines {
        if let Some(value) = value {
            text.push_str(&format!("{name:<12} {value}\n"));
        }
    }
    text.push('\n');
    let rows: Vec<Vec<Cell>> = shown
        .history
        .iter()
        .map(|step| {
            vec![
                Cell::plain(time(step.at_ms)),
                Cell::plain(step.from.map_or("-", |state| state.as_str())),
                Cell::coloured(step.to.as_str(), colour(step.to)),
                Cell::plain(step.attempt.to_string()),
                Cell::plain(step.cause.map_or("-", |cause| cause.as_str())),
                Cell::plain(step.who.as_deref().unwrap_or("-")),
                Cell::plain(step.why.as_deref().unwrap_or("-")),
            ]
        })
        .collect();
    let names = ["AT", "FROM", "TO", "ATTEMPT", "CAUSE", "WHO", "WHY"];
    text.push_str(&out::table(&names, &rows, is_coloured));
    text
}

pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value)
        .map_err(|error| Failure::new(exit::SOFTWARE, format!("no JSON could be written: {error}")))
}
