//! How entries are written as JSON, for the admin API and the command line.
//!
//! Undo, compensation and lookup hold arguments of the call: they are shown here because whoever reads
//! the ledger's file or its socket has them anyway, and needs them to act.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::contract::class::Outcome;
use crate::contract::report::{CallJson, Report};
use crate::ledger::{Record, Shown, State, Step};

/// One entry.
#[derive(Debug, Serialize)]
pub struct EntryJson {
    entry: String,
    state: &'static str,
    cause: Option<&'static str>,
    class: &'static str,
    kind: &'static str,
    operation: String,
    target: String,
    transport: String,
    staged: bool,
    staged_for: Option<String>,
    task: Option<String>,
    principal: String,
    principal_is_weak: bool,
    ledger_id: String,
    idempotency_key: Option<String>,
    attempt: u32,
    began_at: String,
    attempted_at: String,
    finished_at: Option<String>,
    answered: bool,
    delivered: bool,
    answer_kept: bool,
    removed: Option<&'static str>,
    repeats: Option<String>,
    policy_revision: String,
    disposition: Option<&'static str>,
    verdict: Option<&'static str>,
    upstream_status: Option<u16>,
    upstream_id: Option<String>,
    undo: Option<Box<RawValue>>,
    compensate: Option<Box<RawValue>>,
    deadline_ms: Option<i64>,
    undo_unavailable: Option<String>,
    lookup: Option<Box<RawValue>>,
    due_at: Option<String>,
    tries: u32,
}

impl EntryJson {
    /// From what the ledger has.
    pub fn of(record: &Record) -> Self {
        let prior = &record.prior;
        let finish = record.finish.as_ref();
        let raw = |text: Option<&String>| RawValue::from_string(text?.clone()).ok();
        Self {
            entry: prior.entry.to_string(),
            state: prior.state.as_str(),
            cause: prior.cause.map(|cause| cause.as_str()),
            class: record.class.as_str(),
            kind: record.kind.as_str(),
            operation: prior.operation.as_str().to_owned(),
            target: record.target.clone(),
            transport: record.transport.clone(),
            staged: prior.staged,
            staged_for: record.staged_for.as_ref().map(|id| id.as_str().to_owned()),
            task: record.task.clone(),
            principal: prior.principal.id.clone(),
            principal_is_weak: prior.principal.weak,
            ledger_id: prior.ledger_id.as_str().to_owned(),
            idempotency_key: record.key_sent.then(|| prior.ledger_id.as_str().to_owned()),
            attempt: prior.attempt,
            began_at: time(prior.began_ms),
            attempted_at: time(record.attempted_ms),
            finished_at: prior.finished_ms.map(time),
            answered: prior.answered,
            delivered: prior.delivered,
            answer_kept: prior.is_answer_kept,
            removed: prior.removed.map(|removed| removed.as_str()),
            repeats: record.repeats.map(|entry| entry.to_string()),
            policy_revision: record.policy_revision.to_hex(),
            disposition: finish.map(|finish| finish.disposition.as_str()),
            verdict: finish.and_then(|finish| finish.verdict).map(|verdict| verdict.as_str()),
            upstream_status: finish.and_then(|finish| finish.upstream_status),
            upstream_id: finish.and_then(|finish| finish.upstream_id.clone()),
            undo: finish.and_then(|finish| raw(finish.undo.as_ref())),
            compensate: finish.and_then(|finish| raw(finish.compensate.as_ref())),
            deadline_ms: finish.and_then(|finish| finish.deadline_ms),
            undo_unavailable: finish.and_then(|finish| finish.undo_unavailable.clone()),
            lookup: raw(prior.lookup.as_ref()),
            due_at: record.due_ms.map(time),
            tries: record.tries,
        }
    }
}

/// One entry, its history, and the report that its agent gets of it today.
#[derive(Debug, Serialize)]
pub struct ShownJson {
    #[serde(flatten)]
    entry: EntryJson,
    report: Option<Box<RawValue>>,
    history: Vec<StepJson>,
}

impl ShownJson {
    /// From what the ledger has.
    pub fn of(shown: &Shown) -> Self {
        let history = shown.history.iter().map(StepJson::of).collect();
        let report = RawValue::from_string(report(&shown.record).to_json()).ok();
        Self { entry: EntryJson::of(&shown.record), report, history }
    }
}

/// The whole report of an entry, by what the ledger has of it: a header may have been too short for it.
fn report(record: &Record) -> Report {
    let prior = &record.prior;
    let mut report = Report::new(record.class, prior.operation.clone());
    report.entry = Some(prior.entry);
    report.ledger_id = Some(prior.ledger_id.clone());
    report.idempotency_key = record.key_sent.then(|| prior.ledger_id.clone());
    report.repeats = record.repeats;
    report.outcome = match prior.state {
        State::Accepted | State::Undone => Some(Outcome::Accepted),
        State::Rejected => Some(Outcome::Rejected),
        State::Unknown => Some(Outcome::Unknown),
        State::Begun | State::Waiting => None,
    };
    let call = |text: &Option<String>| text.as_deref().and_then(CallJson::from_json);
    if prior.state != State::Accepted && prior.state != State::Undone {
        report.lookup = call(&prior.lookup);
    }
    if let Some(finish) = &record.finish {
        report.verdict = finish.verdict;
        report.undo = call(&finish.undo);
        report.compensate = call(&finish.compensate);
        report.deadline_ms = finish.deadline_ms;
        report.undo_unavailable = finish.undo_unavailable.clone();
    }
    report
}

#[derive(Debug, Serialize)]
struct StepJson {
    at: String,
    from: Option<&'static str>,
    to: &'static str,
    attempt: u32,
    cause: Option<&'static str>,
    who: Option<String>,
    why: Option<String>,
    noted: Option<&'static str>,
    verdict: Option<&'static str>,
    detail: Option<Box<RawValue>>,
}

impl StepJson {
    fn of(step: &Step) -> Self {
        Self {
            at: time(step.at_ms),
            from: step.from.map(|state| state.as_str()),
            to: step.to.as_str(),
            attempt: step.attempt,
            cause: step.cause.map(|cause| cause.as_str()),
            who: step.who.clone(),
            why: step.why.clone(),
            noted: step.noted.map(|noted| noted.as_str()),
            verdict: step.verdict.map(|verdict| verdict.as_str()),
            detail: step.detail.clone().and_then(|text| RawValue::from_string(text).ok()),
        }
    }
}

/// A time as RFC 3339 text with milliseconds, in UTC.
pub fn time(at_ms: i64) -> String {
    match Timestamp::from_millisecond(at_ms) {
        Ok(at) => format!("{at:.3}"),
        // Beyond the year 9999: nothing of ours makes it.
        Err(_) => format!("{at_ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_text_that_sorts() {
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(1_764_489_600_001), "2025-11-30T08:00:00.001Z");
        assert_eq!(time(i64::MAX), "9223372036854775807 ms");
    }
}
