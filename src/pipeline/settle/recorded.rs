//! What the ledger kept of a call, for a repeat of it: as it was, with a report of now.

use http::{HeaderName, HeaderValue, Response, StatusCode, header};

use super::head::json_response;
use super::notice::Notice;
use super::outcome::staged;
use crate::call::payload::Body;
use crate::contract::class::{Outcome, Verdict};
use crate::contract::json::Doc;
use crate::contract::key::EntryId;
use crate::contract::path::Scope;
use crate::contract::report::{CallJson, MAX_HEADER, Report, Staged};
use crate::http::headers::REPLAYED;
use crate::ledger::{Answer, Obstacle, Record, State, Stored};
use crate::mcp::answer::{Answer as ToolAnswer, Evidence as ToolEvidence};
use crate::mcp::reply;
use crate::pipeline::{Form, Shared, Write};

/// What the ledger says of what stands in the way of a recorded entry's undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstructed {
    /// This does.
    By(Obstacle),
    /// Nothing does, or there is no undo.
    No,
    /// It could not be read.
    Unknown,
}

impl Obstructed {
    /// Why the undo is not offered.
    fn why(self) -> Option<String> {
        match self {
            Self::By(obstacle) => Some(super::outcome::superseded(obstacle)),
            Self::No => None,
            Self::Unknown => Some(UNREAD.to_owned()),
        }
    }
}

/// See [`Obstructed::Unknown`]. The recorded answer is given all the same.
const UNREAD: &str = "not known: the ledger could not be read for what came after it; ask again";

/// What a recorded entry's report says now: its undo's deadline may have passed since, or another
/// entry come in its way.
pub fn recorded_report(
    shared: &Shared,
    write: &Write,
    entry: EntryId,
    record: &Record,
    obstructed: Obstructed,
) -> Report {
    let mut report = write.report();
    report.entry = Some(entry);
    report.ledger_id = Some(record.prior.ledger_id.clone());
    report.idempotency_key = record.key_sent.then(|| record.prior.ledger_id.clone());
    report.outcome = (record.prior.state == State::Accepted).then_some(Outcome::Accepted);
    if let Some(finish) = &record.finish {
        report.verdict = finish.verdict;
        let now_ms = shared.clock.now_ms();
        let is_passed = crate::contract::undo::is_passed(finish.deadline_ms, now_ms);
        report.deadline_ms = finish.deadline_ms;
        report.undo_unavailable = finish.undo_unavailable.clone();
        if is_passed && finish.undo.is_some() {
            report.undo_unavailable = Some("deadline passed".to_owned());
        } else if let Some(why) = obstructed.why() {
            report.undo_unavailable = Some(why);
        } else if finish.verdict != Some(Verdict::Contradicted) {
            report.undo = finish.undo.as_deref().and_then(CallJson::from_json);
        }
        report.compensate = finish.compensate.as_deref().and_then(CallJson::from_json);
    }
    report
}

/// A recorded answer, for a repeat: as it was, with a report of now (standards I-9, MCP-47).
pub fn recorded_answer(
    shared: &Shared,
    write: &Write,
    entry: EntryId,
    stored: Stored,
    obstructed: Obstructed,
) -> (Response<Body>, Option<HeaderValue>) {
    let mut report = recorded_report(shared, write, entry, &stored.record, obstructed);
    report.replayed = true;
    let answer =
        stored.answer.unwrap_or(Answer { status: 200, headers: Vec::new(), body: Vec::new() });
    report.staged = staged_again(shared, write, &answer);
    match &write.form {
        Form::Http { .. } => {
            let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
            let mut response = Response::new(Body::full(answer.body));
            *response.status_mut() = status;
            let headers = response.headers_mut();
            for (name, value) in answer.headers {
                if let (Ok(name), Ok(value)) =
                    (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&value))
                {
                    headers.append(name, value);
                }
            }
            headers.insert(REPLAYED, HeaderValue::from_static("true"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            (response, Some(report.to_header(MAX_HEADER)))
        }
        Form::Mcp { call, .. } => {
            let recorded = String::from_utf8_lossy(&answer.body);
            let report = report.to_json();
            let text =
                reply::replay(call.id(), call.era(), &recorded, &report).unwrap_or_else(|_| {
                    Notice::Unreplayable.message_of(call.id(), call.era(), &report, Some(entry))
                });
            (json_response(text), None)
        }
    }
}

/// What the report of a staged call's recorded answer says of its draft.
fn staged_again(shared: &Shared, write: &Write, answer: &Answer) -> Option<Staged> {
    let operation = write.operation();
    let draft = operation.draft.as_ref().filter(|_| write.control.stage)?;
    let now_ms = shared.clock.now_ms();
    let of = |response| {
        let scope = Scope { before: None, request: write.request(), response, key: None };
        staged(&write.live, operation, draft, &scope, now_ms)
    };
    let doc = Doc::parse(answer.body.clone()).ok();
    Some(match &write.form {
        Form::Http { .. } => of(doc.as_ref().map(Doc::root)),
        Form::Mcp { .. } => {
            let result = doc.as_ref().map(|doc| ToolAnswer::of_result(doc.root()));
            let served = write.live.snapshot.operation(&draft.reference.operation)?;
            let source = served.operation.response;
            let evidence = result.as_ref().and_then(|result| result.evidence(source));
            of(evidence.as_ref().map(ToolEvidence::value))
        }
    })
}
