//! An entry's receipt: who allowed the call, how it was sent, and what proves its effect, apart.
//!
//! The three summaries answer different questions and may differ: a call that was allowed may not have
//! been sent, and one that was accepted may not have happened. A receipt holds names, outcomes and
//! times, and neither arguments nor compared values.

use serde::Serialize;
use serde_json::Value;

use super::entries::time;
use crate::ledger::{Noted, Shown, State, Step};

/// A receipt.
#[derive(Debug, Serialize)]
pub struct Receipt {
    /// The entry.
    pub entry: String,
    /// The operation.
    pub operation: String,
    /// Its class.
    pub class: &'static str,
    /// Who allowed it.
    pub authorization: Authorization,
    /// How it was sent.
    pub dispatch: Dispatch,
    /// What proves it.
    pub verification: Verification,
}

/// Who allowed a call.
#[derive(Debug, Serialize)]
pub struct Authorization {
    /// Who called.
    pub principal: String,
    /// Known by its credential alone.
    pub principal_is_weak: bool,
    /// The level of confirmation that was asked for; `none` where nothing was.
    pub level: String,
    /// Whether a confirmation was used up.
    pub confirmed: bool,
    /// The compiled operation that allowed it.
    pub fingerprint: String,
    /// The policy files.
    pub policy_revision: String,
    /// The earlier entry that it repeats on purpose.
    pub repeats: Option<String>,
}

/// How a call was sent.
#[derive(Debug, Serialize)]
pub struct Dispatch {
    /// `http` or `mcp`.
    pub transport: String,
    /// Method and path, or the tool.
    pub target: String,
    /// What went upstream as the key.
    pub idempotency_key: Option<String>,
    /// What the entry is.
    pub state: &'static str,
    /// The fact behind it.
    pub cause: Option<&'static str>,
    /// Each dispatch, oldest first.
    pub attempts: Vec<Attempt>,
    /// Whether the state before the call is kept.
    pub before_kept: bool,
}

/// One dispatch.
#[derive(Debug, Serialize)]
pub struct Attempt {
    /// Its number, from 1.
    pub attempt: u32,
    /// When it was finished.
    pub finished_at: String,
    /// What it came to.
    pub disposition: &'static str,
    /// The upstream's status.
    pub upstream_status: Option<u16>,
}

/// What proves an effect.
#[derive(Debug, Serialize)]
pub struct Verification {
    /// The verdict; none where nothing was accepted.
    pub verdict: Option<&'static str>,
    /// `none`, `response_binding` or `plan`, with what was evaluated: names and outcomes.
    pub evidence: Value,
    /// Looks after the call, oldest first.
    pub looks: Vec<Look>,
    /// When the next one is.
    pub next_look_at: Option<String>,
    /// Who settled it, and why, where the answer did not.
    pub settled: Option<Look>,
}

/// A look, or a decision.
#[derive(Debug, Serialize)]
pub struct Look {
    /// When.
    pub at: String,
    /// Who looked or decided.
    pub who: Option<String>,
    /// What it said.
    pub why: Option<String>,
    /// The verdict that it gave.
    pub verdict: Option<&'static str>,
}

impl Look {
    fn of(step: &Step) -> Self {
        Self {
            at: time(step.at_ms),
            who: step.who.clone(),
            why: step.why.clone(),
            verdict: step.verdict.map(|verdict| verdict.as_str()),
        }
    }
}

impl Receipt {
    /// From what the ledger has.
    pub fn of(shown: &Shown) -> Self {
        let record = &shown.record;
        let prior = &record.prior;
        let begins = shown.history.iter().rev().filter(|step| step.to == State::Begun);
        let level = begins
            .filter_map(|step| parsed(step.detail.as_deref()))
            .find_map(|detail| Some(detail.get("level")?.as_str()?.to_owned()));
        let attempt = |step: &Step| {
            Some(Attempt {
                attempt: step.attempt,
                finished_at: time(step.at_ms),
                disposition: step.disposition?.as_str(),
                upstream_status: step.upstream_status,
            })
        };
        let is_settled = |step: &&Step| {
            step.from == Some(State::Unknown) && !step.to.is_open() && step.disposition.is_none()
        };
        Self {
            entry: prior.entry.to_string(),
            operation: prior.operation.as_str().to_owned(),
            class: record.class.as_str(),
            authorization: Authorization {
                principal: prior.principal.id.clone(),
                principal_is_weak: prior.principal.weak,
                level: level.unwrap_or_else(|| "none".to_owned()),
                confirmed: record.confirmed,
                fingerprint: record.fingerprint.to_hex(),
                policy_revision: record.policy_revision.to_hex(),
                repeats: record.repeats.map(|entry| entry.to_string()),
            },
            dispatch: Dispatch {
                transport: record.transport.clone(),
                target: record.target.clone(),
                idempotency_key: record.key_sent.then(|| prior.ledger_id.as_str().to_owned()),
                state: prior.state.as_str(),
                cause: prior.cause.map(|cause| cause.as_str()),
                attempts: shown.history.iter().filter_map(attempt).collect(),
                before_kept: shown.before.is_some(),
            },
            verification: Verification {
                verdict: record.finish.as_ref().and_then(|f| f.verdict).map(|v| v.as_str()),
                evidence: evidence(shown),
                looks: shown
                    .history
                    .iter()
                    .filter(|step| step.noted.is_some_and(|noted| noted != Noted::Redaction))
                    .map(Look::of)
                    .collect(),
                next_look_at: record.due_ms.map(time),
                settled: shown.history.iter().rev().find(is_settled).map(Look::of),
            },
        }
    }
}

/// What was evaluated last, without what is only needed to read on.
fn evidence(shown: &Shown) -> Value {
    let steps = shown.history.iter().rev();
    let mut evidence = steps
        .filter(|step| step.noted == Some(Noted::Readback) || step.disposition.is_some())
        .find_map(|step| parsed(step.detail.as_deref()))
        .unwrap_or_else(|| serde_json::json!({ "method": "none" }));
    if let Some(stages) = evidence.get_mut("stages").and_then(Value::as_array_mut) {
        for stage in stages.iter_mut().filter_map(Value::as_object_mut) {
            // It holds values of the call.
            stage.remove("probe");
        }
    }
    evidence
}

fn parsed(detail: Option<&str>) -> Option<Value> {
    serde_json::from_str(detail?).ok()
}
