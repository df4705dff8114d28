//! The way back: what became of a call, how it is taken back, and what the agent is told.
//!
//! A write's dispatch is classified, its evidence evaluated, its undo resolved, its entry finished and
//! its report made, in this order, inside the task that `record` spawned. A read is passed on with its
//! report. Nothing here can refuse: something may have been sent.
//!
//! The report is written once the finish is queued, not once it is durable: waiting would add a second
//! flush to every write. Its `ledger: unfinished` therefore says that the ledger is known not to take the
//! finish (it is down, or still owes earlier ones), not that a crash in the next milliseconds could leave
//! the entry begun. After such a crash the entry is unknown, and a repeat is refused until it is settled,
//! which is the safe side. So that a finish does not fail for want of room, the ledger refuses begins
//! while there is only as much left as finishes may need.

mod echo;
mod head;
mod notice;
mod outcome;
mod plain;
mod reading;
mod recorded;
mod tool;
mod waiting;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Response};

use super::audit;
use super::dispatch::Observation;
use super::image::Image;
use super::live::Metered;
use super::step::{Next, Stage, Step};
use super::under_way::Entered;
use super::{Attempt, Carried, Form, Recorded, Reply, Shared, Write};
use crate::call::payload::Body;
use crate::contract::class::{Class, Disposition, Outcome};
use crate::contract::key::{EntryId, OperationId};
use crate::contract::report::{MAX_HEADER, Report, UndoKind};
use crate::http::grpc::is_grpc;
use crate::ledger::{Answer, Cause, Finish, Finished, State};
use crate::mcp::Era;
use crate::mcp::jsonrpc::Id;
use crate::metrics::{Decision, OperationMetrics};
use crate::upstream::{LostReason, Sent};
use head::is_open_ended;
pub use head::{
    Asked, is_encoded, is_event_stream, json_response, pass_headers, passed, void_old_body,
};
use notice::Notice;
pub use outcome::IF_UNCHANGED;
use outcome::{Conclusion, Dispatched, conclude};
use reading::{About, Settling};
pub use recorded::{Obstructed, recorded_answer, recorded_report};
pub use waiting::rearm;

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Settle {
    /// What all workers share.
    pub shared: Arc<Shared>,
}

/// An answer, and what is still to do after it was given: reading a stream to its end.
pub struct Settled {
    /// The answer.
    pub reply: Reply,
    /// What the task does after the reply was handed over.
    pub tail: Option<Tail>,
}

/// See [`Settled::tail`].
pub type Tail = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a finish names.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The entry.
    pub entry: EntryId,
    /// The attempt.
    pub attempt: u32,
    /// There is no entry: the ledger was down in observe mode.
    pub is_unrecorded: bool,
}

impl Step for Settle {
    type In = Attempt;
    type Out = Attempt;
    type Below = Observation;
    type Answer = Settled;

    async fn step<N: Stage<Attempt, Answer = Observation>>(
        &self,
        attempt: Attempt,
        next: Next<'_, N>,
    ) -> Settled {
        match attempt {
            Attempt::Read(read) => {
                let about = About::of(&read);
                let observation = next.run(Attempt::Read(read)).await;
                match about.settle(&self.shared, observation) {
                    Settling::Done(reply) => reply.into(),
                    // Boxed: a plain read's future has no room for a tool's answer.
                    Settling::Tool(reading) => {
                        Box::pin(about.tool(&self.shared, *reading)).await.into()
                    }
                }
            }
            Attempt::Write(recorded) => {
                let case = Arc::new(Case {
                    shared: Arc::clone(&self.shared),
                    identity: recorded.identity(),
                    carried: Arc::clone(recorded.carried()),
                    after_unknown: recorded.is_after_unknown(),
                    undoes: recorded.undoes(),
                    before: recorded.before().cloned(),
                    entered: Arc::clone(recorded.entered()),
                    agent: recorded.agent().clone(),
                });
                let own = Arc::clone(&case);
                let settling = async {
                    let observation = next.run(Attempt::Write(recorded)).await;
                    own.settle(observation).await
                };
                // Boxed, as below: a read's future has no room for what is only a write's or a tool's.
                let mut settling = Box::pin(settling);
                // Lost at the drain's end: the connection to the upstream, and so what it would still
                // have said. The agent is told as much, instead of nothing.
                tokio::select! {
                    biased;
                    settled = settling.as_mut() => settled,
                    () = self.shared.tasks.hurried() => case.cut(),
                }
            }
        }
    }
}

/// One recorded write on its way back.
struct Case {
    shared: Arc<Shared>,
    identity: Identity,
    carried: Arc<Carried>,
    after_unknown: bool,
    undoes: Option<UndoKind>,
    before: Option<Arc<Image>>,
    entered: Arc<Entered>,
    agent: super::Agent,
}

impl Case {
    fn write(&self) -> &Write {
        &self.carried.fresh.write
    }

    async fn settle(self: Arc<Self>, observation: Observation) -> Settled {
        let Observation { sent, elapsed } = observation;
        match sent {
            Sent::NotSent(reason) => {
                let dispatched = Dispatched::not_sent();
                let conclusion = conclude(self.as_ref(), &dispatched, None);
                self.noticed(&Notice::NotSent(reason), conclusion, elapsed)
            }
            Sent::Lost(reason) => {
                let cause = match reason {
                    LostReason::BodyTimeout
                    | LostReason::HeadTimeout
                    | LostReason::TotalTimeout => Cause::Timeout,
                    LostReason::Protocol => Cause::Unreadable,
                    LostReason::RequestBody | LostReason::Reset => Cause::Reset,
                };
                let conclusion = conclude(self.as_ref(), &Dispatched::lost(cause), None);
                self.noticed(&Notice::WriteLost(reason), conclusion, elapsed)
            }
            Sent::Answer(answer) => {
                let (mut parts, body) = answer.into_parts();
                let is_open_ended = is_open_ended(&parts, &body);
                let head = &self.write().head;
                let (authority, is_tls) = (head.authority.as_ref(), head.origin.is_tls);
                pass_headers(&self.shared, &mut parts, Asked { authority, is_tls });
                let body = passed(&self.shared, body);
                match &self.write().form {
                    Form::Http { .. } if is_grpc(&parts.headers) => {
                        self.grpc_answer(parts, body, elapsed).await
                    }
                    Form::Http { .. } => {
                        self.http_answer(parts, body, is_open_ended, elapsed).await
                    }
                    Form::Mcp { .. } => self.tool_answer(parts, body, elapsed).await,
                }
            }
        }
    }

    /// The process ends before the answer came. Whatever was settled before is done: a finish and the
    /// answer that goes with it are made without a wait between them.
    fn cut(&self) -> Settled {
        let conclusion = conclude(self, &Dispatched::lost(Cause::Shutdown), None);
        self.noticed(&Notice::Cut, conclusion, Duration::ZERO)
    }

    /// Settles a call whose answer did not come.
    fn settle_lost(&self, cause: Cause) -> Report {
        let conclusion = conclude(self, &Dispatched::lost(cause), None);
        self.finish(&conclusion, None)
    }

    /// Settles a call whose task is done and whose result nobody fetched.
    fn settle_unseen(&self) -> Report {
        let dispatched = Dispatched::answered(Disposition::Accepted, 200);
        let conclusion = conclude(self, &dispatched, None);
        self.finish(&conclusion, None)
    }

    /// Finishes the entry and answers with what the upstream answered.
    fn answered(
        &self,
        response: Response<Body>,
        conclusion: Conclusion,
        answer: Option<Answer>,
        elapsed: Duration,
    ) -> Settled {
        let report = self.finish(&conclusion, answer);
        let header = report.to_header(MAX_HEADER);
        self.reply(response, Some(header), report.outcome, elapsed).into()
    }

    /// Finishes the entry and answers with what we know.
    fn noticed(&self, notice: &Notice, conclusion: Conclusion, elapsed: Duration) -> Settled {
        let report = self.finish(&conclusion, None);
        let entry = (!self.identity.is_unrecorded).then_some(self.identity.entry);
        match &self.write().form {
            Form::Http { .. } => {
                let response = if is_grpc(&self.write().head.headers) {
                    notice.grpc(entry)
                } else {
                    notice.problem(entry)
                };
                let header = report.to_header(MAX_HEADER);
                self.reply(response, Some(header), report.outcome, elapsed).into()
            }
            Form::Mcp { call, .. } => {
                let text = notice.message_of(call.id(), call.era(), &report.to_json(), entry);
                self.reply(json_response(text), None, report.outcome, elapsed).into()
            }
        }
    }

    fn reply(
        &self,
        response: Response<Body>,
        report: Option<HeaderValue>,
        outcome: Option<Outcome>,
        elapsed: Duration,
    ) -> Reply {
        let write = self.write();
        Reply {
            response,
            report,
            entry: (!self.identity.is_unrecorded).then_some(self.identity.entry),
            decision: audit::decision(write),
            metrics: Metered::Own(Arc::clone(&write.metrics)),
            class: write.class,
            upstream: elapsed,
            outcome,
            elsewhere: None,
        }
    }

    /// Hands the finish to the ledger, counts, logs the one line of this write, and gives the report.
    fn finish(&self, conclusion: &Conclusion, answer: Option<Answer>) -> Report {
        let write = self.write();
        conclusion.count(write);
        if let Some(asked) = &write.staged_for {
            let staged = self.shared.metrics.staged(&asked.served.operation.id);
            staged.count(Outcome::from(conclusion.disposition));
        }
        if let Some(kind) = self.undoes {
            let [accepted, rejected, unknown] = &self.shared.metrics.common().undo_calls;
            match Outcome::from(conclusion.disposition) {
                Outcome::Accepted => accepted.count(kind),
                Outcome::Rejected => rejected.count(kind),
                Outcome::Unknown => unknown.count(kind),
            }
        }
        let finished = if self.identity.is_unrecorded {
            None
        } else {
            let now_ms = self.shared.clock.now_ms();
            let finish = conclusion.finish(self, answer, now_ms);
            let began = write.head.span.as_ref().map(|_| self.shared.clock.instant());
            let finished = self.shared.ledger.finish(finish);
            if let (Some(span), Some(began)) = (&write.head.span, began) {
                span.step("anvil.ledger.finish", began, self.shared.clock.instant());
            }
            Some(finished)
        };
        if conclusion.state == State::Rejected {
            self.entered.changed_nothing();
        }
        let report = conclusion.report(self, finished);
        let ended = audit::Ended {
            entry: (!self.identity.is_unrecorded).then_some(self.identity.entry),
            attempt: self.identity.attempt,
            disposition: conclusion.disposition,
            state: conclusion.state,
            cause: conclusion.cause,
            verdict: conclusion.verdict,
            upstream_status: conclusion.status,
            undo: conclusion.undo_kind(),
            undo_deadline_ms: conclusion.deadline_ms,
            now: self.shared.clock.instant(),
        };
        audit::ended_later(&self.shared.tasks, Arc::clone(&self.carried), ended);
        report
    }
}

/// The task of a write saw that the agent had left before dispatch.
pub fn finish_not_sent(shared: &Shared, recorded: &Recorded) {
    let (state, disposition) = (State::Rejected, Disposition::NotSent);
    finish_bare(
        shared,
        recorded.identity(),
        recorded.carried(),
        state,
        Cause::NotSent,
        disposition,
    );
}

/// The task of a write ended after its entry was begun and before it was finished: it panicked, or the
/// process stops and drops it.
pub fn finish_panicked(shared: &Shared, identity: Identity, carried: &Carried) {
    let entry = identity.entry;
    let cause = if std::thread::panicking() {
        tracing::error!(%entry, "the task of a write died: its outcome is unknown");
        Cause::Panic
    } else {
        tracing::warn!(%entry, "the process stops under a write: its outcome is unknown");
        Cause::Shutdown
    };
    let (state, disposition) = (State::Unknown, Disposition::Ambiguous);
    finish_bare(shared, identity, carried, state, cause, disposition);
}

/// Finishes an attempt of which nothing more is known, with its line in the log.
fn finish_bare(
    shared: &Shared,
    identity: Identity,
    carried: &Carried,
    state: State,
    cause: Cause,
    disposition: Disposition,
) {
    if !identity.is_unrecorded {
        let now_ms = shared.clock.now_ms();
        let mut finish = bare_finish(identity, state, cause, disposition, now_ms);
        if state == State::Unknown {
            finish.due_ms = Some(outcome::first_look_ms(shared, now_ms));
        }
        let _kept = shared.ledger.finish(finish);
    }
    let ended = audit::Ended {
        entry: (!identity.is_unrecorded).then_some(identity.entry),
        attempt: identity.attempt,
        disposition,
        state,
        cause: Some(cause),
        verdict: None,
        upstream_status: None,
        undo: None,
        undo_deadline_ms: None,
        now: shared.clock.instant(),
    };
    audit::ended(carried, &ended);
}

/// An entry waited for something that did not come in time.
fn finish_expired(shared: &Shared, entry: EntryId, attempt: u32) {
    let identity = Identity { entry, attempt, is_unrecorded: false };
    let now_ms = shared.clock.now_ms();
    let mut finish =
        bare_finish(identity, State::Unknown, Cause::Timeout, Disposition::Ambiguous, now_ms);
    finish.due_ms = Some(outcome::first_look_ms(shared, now_ms));
    let _kept = shared.ledger.finish(finish);
    tracing::info!(
        event = "expired",
        %entry,
        attempt,
        state = %State::Unknown,
        "an entry waited for what did not come"
    );
}

fn bare_finish(
    identity: Identity,
    state: State,
    cause: Cause,
    disposition: Disposition,
    now_ms: i64,
) -> Finish {
    Finish {
        entry: identity.entry,
        attempt: identity.attempt,
        state,
        cause: Some(cause),
        disposition,
        verdict: None,
        answered: false,
        upstream_status: None,
        upstream_id: None,
        made: None,
        undo: None,
        undo_things: Vec::new(),
        undo_mark: None,
        compensate: None,
        deadline_ms: None,
        undo_unavailable: None,
        answer: None,
        undoes: None,
        evidence: None,
        due_ms: None,
        now_ms,
    }
}

/// The answer that is given when the task of a write died before it could answer: what it had begun is
/// unknown, and that is said.
pub fn died(write: &WriteIdentity) -> Reply {
    let mut report = Report::new(write.class, write.operation.clone());
    report.entry = Some(write.entry);
    report.outcome = Some(Outcome::Unknown);
    let notice = Notice::Died;
    let (response, header) = match &write.tool {
        None => (notice.problem(Some(write.entry)), Some(report.to_header(MAX_HEADER))),
        Some((id, era)) => {
            let text = notice.message_of(id, *era, &report.to_json(), Some(write.entry));
            (json_response(text), None)
        }
    };
    Reply {
        response,
        report: header,
        entry: None,
        decision: Decision::Forwarded,
        metrics: Metered::Own(Arc::clone(&write.metrics)),
        class: write.class,
        upstream: Duration::ZERO,
        outcome: report.outcome,
        elsewhere: None,
    }
}

/// What is known of a write outside its task.
#[derive(Debug)]
pub struct WriteIdentity {
    /// The entry, if it was begun.
    pub entry: EntryId,
    /// The operation.
    pub operation: OperationId,
    /// The class.
    pub class: Class,
    /// The operation's metrics.
    pub metrics: Arc<OperationMetrics>,
    /// The id and era of a tool call.
    pub tool: Option<(Id, Era)>,
}

impl WriteIdentity {
    /// Of a write.
    pub fn of(write: &Write) -> Self {
        Self {
            entry: write.id,
            operation: write.operation().id.clone(),
            class: write.class,
            metrics: Arc::clone(&write.metrics),
            tool: match &write.form {
                Form::Http { .. } => None,
                Form::Mcp { call, .. } => Some((call.id().clone(), call.era())),
            },
        }
    }
}

/// Whether a finish is not yet durable as far as anybody knows.
fn is_unfinished(finished: Option<Finished>) -> bool {
    matches!(finished, Some(Finished::Unfinished))
}
