//! From what was seen to what is concluded: disposition, verdict, undo, and the finish and report that
//! say it.

use http::HeaderValue;

use super::echo::echoes;
use super::{Case, is_unfinished};
use crate::call::digest::{BodyForm, http_mark, tool_mark};
use crate::contract::assertion::evaluate;
use crate::contract::class::{Class, Disposition, Outcome, Verdict};
use crate::contract::json::{Doc, write_string};
use crate::contract::key::Digest;
use crate::contract::operation::{Draft, FollowUp, Operation};
use crate::contract::path::{Found, Scope};
use crate::contract::prefill::Prefill;
use crate::contract::report::{CallJson, HandleJson, LedgerNote, Report, Staged, UndoKind};
use crate::contract::selector::Evidence;
use crate::contract::thing::Thing;
use crate::contract::undo::{
    Resolved, Unavailable, check_sensitive, complete, resolve, resolve_lookup,
};
use crate::ledger::{Answer, Cause, Finish, Finished, Obstacle, State};
use crate::metrics::Availability;
use crate::pipeline::back::is_what_it_says;
use crate::pipeline::image::{Image, is_strong};
use crate::pipeline::live::Live;
use crate::pipeline::proof::prove;
use crate::pipeline::{Shared, Write, things};

/// What a dispatch came to, before the evidence is looked at.
#[derive(Debug)]
pub(super) struct Dispatched {
    /// By the status, or by table MCP-23.
    pub(super) disposition: Disposition,
    /// The fact behind it, where it is no plain answer.
    pub(super) cause: Option<Cause>,
    /// The upstream's status.
    pub(super) status: Option<u16>,
    /// The upstream wants more, or answers later.
    pub(super) is_waiting: bool,
    /// The agent is given an answer of the upstream.
    pub(super) is_answer: bool,
}

impl Dispatched {
    /// Nothing was sent.
    pub(super) fn not_sent() -> Self {
        Self {
            disposition: Disposition::NotSent,
            cause: Some(Cause::NotSent),
            status: None,
            is_waiting: false,
            is_answer: false,
        }
    }

    /// The answer was lost.
    pub(super) fn lost(cause: Cause) -> Self {
        Self {
            disposition: Disposition::Ambiguous,
            cause: Some(cause),
            status: None,
            is_waiting: false,
            is_answer: false,
        }
    }

    /// There is an answer.
    pub(super) fn answered(disposition: Disposition, status: u16) -> Self {
        let cause = (disposition == Disposition::Ambiguous).then_some(Cause::AmbiguousStatus);
        Self { disposition, cause, status: Some(status), is_waiting: false, is_answer: true }
    }

    /// The upstream has not answered yet.
    pub(super) fn waiting(cause: Cause, status: u16) -> Self {
        Self {
            disposition: Disposition::Ambiguous,
            cause: Some(cause),
            status: Some(status),
            is_waiting: true,
            is_answer: true,
        }
    }
}

/// What is concluded of one write.
#[derive(Debug)]
pub(super) struct Conclusion {
    /// Of the dispatch.
    pub(super) disposition: Disposition,
    /// Of the entry.
    pub(super) state: State,
    /// The fact behind it.
    pub(super) cause: Option<Cause>,
    /// Of the evidence; only for an accepted write.
    pub(super) verdict: Option<Verdict>,
    proof: Option<String>,
    proof_due_ms: Option<i64>,
    /// The upstream's.
    pub(super) status: Option<u16>,
    is_answer: bool,
    upstream_id: Option<String>,
    undo: Option<(CallJson, UndoKind)>,
    undo_things: Vec<Thing>,
    undo_mark: Option<Digest>,
    compensate: Option<CallJson>,
    /// Until when the undo can be made.
    pub(super) deadline_ms: Option<i64>,
    unavailable: Option<String>,
    inverse_report: Option<Availability>,
    compensate_report: Option<Availability>,
    lookup: Option<CallJson>,
    staged: Option<Staged>,
}

/// What the report says of a draft that was made: its handle, and the calls that make it real or throw
/// it away. `scope` is over the request that was asked for and the draft's answer.
pub(super) fn staged(
    live: &Live,
    operation: &Operation,
    draft: &Draft,
    scope: &Scope<'_>,
    now_ms: i64,
) -> Staged {
    let mut staged = Staged {
        draft_operation: draft.reference.operation.clone(),
        handle: None,
        promote: None,
        discard: None,
        unavailable: None,
    };
    let handle = match draft.handle.resolve(scope) {
        Some(Found::Value(value)) => HandleJson::new(value.raw()),
        Some(Found::Key(_)) | None => None,
    };
    if handle.is_none() {
        staged.unavailable = Some(format!("handle ({}) names nothing in this call", draft.handle));
        return staged;
    }
    staged.handle = handle;
    let mut call = |follow_up: &FollowUp| {
        let resolved = resolve(follow_up, scope, now_ms, &operation.sensitive).and_then(|call| {
            is_what_it_says(&live.snapshot, &follow_up.reference, &call)
                .map(|()| CallJson::follow_up(&call))
        });
        match resolved {
            Ok(call) => Some(call),
            Err(unavailable) => {
                staged.unavailable.get_or_insert_with(|| unavailable.to_string());
                None
            }
        }
    };
    let promote = call(&draft.promote);
    let discard = draft.discard.as_ref().and_then(&mut call);
    staged.promote = promote;
    staged.discard = discard;
    staged
}

/// Concludes a write from its dispatch and its evidence.
pub(super) fn conclude(
    case: &Case,
    dispatched: &Dispatched,
    evidence: Option<&Evidence<'_>>,
) -> Conclusion {
    let write = case.write();
    let operation = write.operation();
    let began = write.head.span.as_ref().map(|_| case.shared.clock.instant());
    let mut disposition = dispatched.disposition;
    if disposition == Disposition::Accepted
        && !operation.rejected_if.is_empty()
        && let Some(evidence) = evidence
        && evaluate(&operation.rejected_if, evidence).verdict == Verdict::Verified
    {
        disposition = Disposition::DefinitelyRejected;
    }
    // A rejection that follows an unknown attempt says nothing of that attempt, unless the upstream
    // answers a key as it did the first time (contract section 3).
    let is_silent_of_the_first = case.after_unknown
        && disposition == Disposition::DefinitelyRejected
        && operation.carrier.replay != Some(crate::contract::key::ReplayRule::Full);
    let state = if dispatched.is_waiting {
        State::Waiting
    } else if is_silent_of_the_first {
        State::Unknown
    } else {
        match Outcome::from(disposition) {
            Outcome::Accepted => State::Accepted,
            Outcome::Rejected => State::Rejected,
            Outcome::Unknown => State::Unknown,
        }
    };
    let mut conclusion = Conclusion {
        disposition,
        state,
        cause: dispatched.cause,
        verdict: None,
        proof: None,
        proof_due_ms: None,
        status: dispatched.status,
        is_answer: dispatched.is_answer && !case.agent.is_gone(),
        upstream_id: None,
        undo: None,
        undo_things: Vec::new(),
        undo_mark: None,
        compensate: None,
        deadline_ms: None,
        unavailable: None,
        inverse_report: None,
        compensate_report: None,
        lookup: None,
        staged: None,
    };
    let key = case.carried.key.as_ref().map(|key| key.as_str());
    if state == State::Accepted {
        if let Some(evidence) = evidence {
            conclusion.upstream_id =
                operation.upstream_id.as_ref().and_then(|selector| selector.identifier(evidence));
        }
        let id = conclusion.upstream_id.as_deref();
        let proof = prove(operation, evidence, id, case.shared.clock.now_ms());
        conclusion.verdict = Some(proof.verdict);
        conclusion.proof = proof.record;
        conclusion.proof_due_ms = proof.due_ms;
        let etag = evidence.and_then(|evidence| evidence.headers.get(http::header::ETAG));
        let scope = Scope {
            before: case.before.as_ref().map(|image| image.root()),
            request: write.request(),
            response: evidence.and_then(|evidence| evidence.response),
            key,
        };
        if let Some(asked) = &write.staged_for {
            let scope = Scope { request: asked.form.request(), ..scope };
            let operation = &asked.served.operation;
            let now_ms = case.shared.clock.now_ms();
            conclusion.staged = operation
                .draft
                .as_ref()
                .map(|draft| staged(&write.live, operation, draft, &scope, now_ms));
        } else if let Some(why) = write.degraded {
            conclusion.unavailable = Some(why.to_owned());
        } else if conclusion.verdict != Some(Verdict::Contradicted) {
            let now_ms = case.shared.clock.now_ms();
            conclusion.undo(case, operation, &scope, etag, now_ms);
        }
    } else if let Some(lookup) = &operation.lookup {
        let scope = Scope { before: None, request: write.request(), response: None, key };
        let is_sensitive =
            check_sensitive(&lookup.arguments, &scope, &operation.sensitive).is_err();
        let snapshot = &write.live.snapshot;
        if !is_sensitive
            && let Ok(resolved) = resolve_lookup(lookup, &scope)
            && is_what_it_says(snapshot, &lookup.reference, &resolved).is_ok()
        {
            conclusion.lookup = Some(CallJson::lookup(lookup.by, &resolved));
        }
    }
    if state == State::Unknown && write.staged_for.is_none() && write.degraded.is_none() {
        conclusion.undo_if_settled(case, operation, key);
    }
    if let (Some(span), Some(began)) = (&write.head.span, began) {
        span.step("anvil.verify", began, case.shared.clock.instant());
    }
    conclusion
}

impl Conclusion {
    /// What the undo is if the call turns out to have been accepted: by its request and the state before it
    /// alone. Nothing that came as an answer says what was done, and nobody else has the request later.
    fn undo_if_settled(&mut self, case: &Case, operation: &Operation, key: Option<&str>) {
        let scope = Scope {
            before: case.before.as_ref().map(|image| image.root()),
            request: case.write().request(),
            response: None,
            key,
        };
        // When it was accepted nobody knows: not before it was made. So a deadline is rather too early.
        let made_ms = case.identity.entry.unix_ms();
        self.undo(case, operation, &scope, None, made_ms);
        (self.inverse_report, self.compensate_report) = (None, None);
    }

    /// `etag` is that of the state that the call left; a deadline counts from `answered_ms`.
    fn undo(
        &mut self,
        case: &Case,
        operation: &Operation,
        scope: &Scope<'_>,
        etag: Option<&HeaderValue>,
        answered_ms: i64,
    ) {
        let now_ms = case.shared.clock.now_ms();
        let snapshot = &case.write().live.snapshot;
        let resolved = |call: &FollowUp, known: Option<&Prefill>| {
            let resolved = match known {
                Some(known) => complete(call, known, scope, answered_ms, &operation.sensitive)?,
                None => resolve(call, scope, answered_ms, &operation.sensitive)?,
            };
            if crate::contract::undo::is_passed(resolved.deadline_ms, now_ms) {
                return Err(Unavailable::DeadlinePassed);
            }
            is_what_it_says(snapshot, &call.reference, &resolved).map(|()| resolved)
        };
        let back = &case.write().back;
        match operation.class {
            Class::Read | Class::Irreversible => {}
            Class::Reversible => {
                if let Some(inverse) = &operation.inverse {
                    let mut inverse = resolved(inverse, back.inverse());
                    if let (Ok(call), Some(image)) = (&mut inverse, &case.before) {
                        only_if_unchanged(call, image, etag);
                    }
                    self.inverse_report = Some(availability(&inverse));
                    self.offer(case, inverse, UndoKind::Inverse);
                } else {
                    self.inverse_report = Some(Availability::NotDeclared);
                }
                if let Some(compensate) = &operation.compensate {
                    let compensate = resolved(compensate, back.compensate());
                    self.compensate_report = Some(availability(&compensate));
                    self.compensate = compensate.ok().map(|call| CallJson::compensate(&call));
                }
            }
            Class::Compensable => match &operation.compensate {
                Some(compensate) => {
                    let compensate = resolved(compensate, back.compensate());
                    self.compensate_report = Some(availability(&compensate));
                    self.offer(case, compensate, UndoKind::Compensate);
                }
                None => self.compensate_report = Some(Availability::NotDeclared),
            },
        }
    }

    fn offer(&mut self, case: &Case, call: Result<Resolved, Unavailable>, kind: UndoKind) {
        match call {
            Ok(call) => {
                self.deadline_ms = call.deadline_ms;
                self.undo_mark = mark(&call);
                self.undo_things = things::of_resolved(&case.write().live.snapshot, &call);
                self.undo = Some((CallJson::undo(kind, &call), kind));
            }
            Err(unavailable) => self.unavailable = Some(unavailable.to_string()),
        }
    }

    /// How the effect is taken back, if it can be.
    pub(super) fn undo_kind(&self) -> Option<UndoKind> {
        let undo = self.undo.as_ref().filter(|_| self.state == State::Accepted);
        undo.map(|(_, kind)| *kind)
    }

    /// What the ledger records.
    pub(super) fn finish(&self, case: &Case, answer: Option<Answer>, now_ms: i64) -> Finish {
        let is_accepted = self.state == State::Accepted;
        // A handle or a question is given to whoever repeats the key meanwhile.
        let write = case.write();
        let is_echo = |answer: &Answer| echoes(write.operation(), write.request(), &answer.body);
        let is_kept = (is_accepted || self.state == State::Waiting)
            && write.operation().keeps_bodies()
            && !answer.as_ref().is_some_and(is_echo);
        Finish {
            entry: case.identity.entry,
            attempt: case.identity.attempt,
            state: self.state,
            cause: self.cause,
            disposition: self.disposition,
            verdict: self.verdict,
            answered: self.is_answer,
            upstream_status: self.status,
            upstream_id: self.upstream_id.clone(),
            made: things::made(write.transport(), self.upstream_id.as_deref()),
            undo: self.undo.as_ref().map(|(call, _)| call.as_json().to_owned()),
            undo_things: self.undo_things.clone(),
            undo_mark: self.undo_mark,
            compensate: self.compensate.as_ref().map(|call| call.as_json().to_owned()),
            deadline_ms: self.deadline_ms,
            undo_unavailable: self.unavailable.clone(),
            answer: if is_kept { answer } else { None },
            // What repeats a call takes nothing back, though that one's undo would be the same call.
            undoes: (is_accepted
                && self.verdict != Some(Verdict::Contradicted)
                && case.carried.fresh.standing.repeats.is_none())
            .then_some(case.write().digest.mark),
            evidence: self.proof.clone(),
            due_ms: match self.state {
                State::Unknown => Some(first_look_ms(&case.shared, now_ms)),
                State::Accepted => self.proof_due_ms,
                State::Begun | State::Rejected | State::Undone | State::Waiting => None,
            },
            now_ms,
        }
    }

    /// What the agent is told.
    pub(super) fn report(&self, case: &Case, finished: Option<Finished>) -> Report {
        let mut report = case.write().report();
        report.idempotency_key = case.carried.key.clone();
        report.ledger_id = Some(case.carried.ledger_id.clone());
        report.entry = Some(case.identity.entry);
        // A further attempt that was not sent says nothing of the first one.
        let is_still_unknown = case.after_unknown && self.disposition == Disposition::NotSent;
        report.outcome = match self.state {
            State::Rejected if is_still_unknown => Some(Outcome::Unknown),
            State::Accepted | State::Undone => Some(Outcome::Accepted),
            State::Rejected => Some(Outcome::Rejected),
            State::Unknown => Some(Outcome::Unknown),
            State::Begun | State::Waiting => None,
        };
        report.verdict = self.verdict;
        if self.state == State::Accepted {
            report.undo = self.undo.as_ref().map(|(call, _)| call.clone());
            report.deadline_ms = self.deadline_ms;
            report.compensate = self.compensate.clone();
            report.undo_unavailable = self.unavailable.clone();
        }
        if let (Some(_), Some(obstacle)) =
            (&report.undo, case.entered.obstacle(&self.undo_things, case.before.is_some()))
        {
            report.undo = None;
            report.undo_unavailable = Some(superseded(obstacle));
        }
        report.lookup = self.lookup.clone();
        report.staged = self.staged.clone();
        report.repeats = case.carried.fresh.standing.repeats;
        if case.identity.is_unrecorded {
            report.entry = None;
            report.ledger = Some(LedgerNote::Down);
        } else if is_unfinished(finished) {
            report.ledger = Some(LedgerNote::Unfinished);
        }
        report
    }

    /// Counts what was concluded.
    pub(super) fn count(&self, write: &Write) {
        write.metrics.outcomes.count(self.disposition);
        if let Some(verdict) = self.verdict {
            write.metrics.verdicts.count(verdict);
        }
        if let Some(availability) = self.inverse_report {
            write.metrics.undo_inverse.count(availability);
        }
        if let Some(availability) = self.compensate_report {
            write.metrics.undo_compensate.count(availability);
        }
    }
}

/// Why a report offers no undo that something stands in the way of.
pub(super) fn superseded(obstacle: Obstacle) -> String {
    format!("superseded: {obstacle}")
}

/// The argument that makes an inverse one for the very state that its call left.
pub const IF_UNCHANGED: &str = "header.if-match";

/// An inverse that puts a state back must not overwrite what came after the call: where the resource
/// names its states, the inverse asks for the one that the call left. The tag of the state before would
/// be the wrong one, for that is not there any more.
fn only_if_unchanged(call: &mut Resolved, image: &Image, etag: Option<&HeaderValue>) {
    let Some((_, target)) = &call.http else { return };
    let Some(etag) = etag.filter(|etag| is_strong(etag)) else { return };
    let is_set = call.headers.iter().any(|(name, _)| *name == http::header::IF_MATCH);
    let Ok(text) = etag.to_str() else { return };
    if is_set || !image.takes_if_match(target) {
        return;
    }
    let mut json = String::new();
    write_string(text, &mut json);
    call.arguments.push((IF_UNCHANGED.to_owned(), json));
    call.headers.push((http::header::IF_MATCH, etag.clone()));
}

/// When an entry that became unknown is first looked up.
pub(super) fn first_look_ms(shared: &Shared, now_ms: i64) -> i64 {
    let after_ms = i64::try_from(shared.settings.first_look.as_millis()).unwrap_or(i64::MAX);
    now_ms.saturating_add(after_ms)
}

fn availability(call: &Result<Resolved, Unavailable>) -> Availability {
    match call {
        Ok(_) => Availability::Available,
        Err(Unavailable::DeadlinePassed | Unavailable::DeadlineUnreadable) => {
            Availability::DeadlinePassed
        }
        Err(_) => Availability::ArgumentMissing,
    }
}

/// What the follow-up will be recognised by when the agent makes it.
fn mark(call: &Resolved) -> Option<Digest> {
    if let Some(tool) = &call.tool {
        let arguments = Doc::parse(call.arguments_json()).ok()?;
        return Some(tool_mark(tool, arguments.root()));
    }
    let (method, target) = call.http.as_ref()?;
    let Some(body) = &call.body else {
        return Some(http_mark(method, target, BodyForm::None));
    };
    match Doc::parse(body.clone()) {
        Ok(doc) => {
            let form = BodyForm::Json("application/json", doc.root());
            Some(http_mark(method, target, form))
        }
        Err(_) => {
            let form = BodyForm::Opaque("application/x-www-form-urlencoded", body.as_bytes());
            Some(http_mark(method, target, form))
        }
    }
}
