//! What proves an effect: the answer itself, and reads made after it (EffectSpec, standards 5.8).
//!
//! An accepted answer is evaluated at once, by a response binding or by a plan's `immediate` stages. A
//! plan's `readback` stages are made later, by [`readback`], when the ledger says that they are due:
//! each probe was filled when the call was answered, goes to the upstream only, and only where
//! `probe_targets` names its target and the policy takes its path for a read. The plan ends
//!
//! - contradicted, as soon as one assertion of any stage fails;
//! - verified, as soon as a proven stage makes a claim that completes the plan;
//! - inconclusive, at its deadline. Until then a probe that cannot tell is made again, less and less
//!   often.
//!
//! A status that `decisive_negative` names says that the resource is not there: `absent` holds and
//! nothing else does. Any other answer that is not 2xx can prove, as a `404` proves a deletion that is
//! asserted so, and cannot contradict: it may be the answer of a replica that does not know yet.
//!
//! What is recorded holds stages, assertions' names and outcomes, and never a compared value.

use serde::{Deserialize, Serialize};

use super::Shared;
use super::fetch::{Credential, Fetch, Got, Target};
use super::live::Live;
use super::reconcile::background::delay_ms;
use crate::contract::assertion::{Assertion, Check, Evaluation, Passed, evaluate};
use crate::contract::class::{Class, Verdict};
use crate::contract::json::Doc;
use crate::contract::operation::{Operation, Trust, Verification};
use crate::contract::path::Request;
use crate::contract::plan::{Filled, OBSERVED, Plan, Probe, Source, Stage};
use crate::contract::selector::Evidence;
use crate::http::body::{essence, is_json};
use crate::ledger::{Due, LedgerError, Note, Noted, Pending};
use crate::metrics::{LedgerStage, Purpose};

/// What is known of an effect when its answer has come.
#[derive(Debug)]
pub struct Proof {
    /// The verdict so far.
    pub verdict: Verdict,
    /// What was evaluated, and what is still to be read, JSON, for the ledger.
    pub record: Option<String>,
    /// When there is more to read; milliseconds since 1970.
    pub due_ms: Option<i64>,
}

#[derive(Serialize)]
struct BindingRecord<'a> {
    method: &'a str,
    trust: &'a str,
    assertions: Vec<AssertionRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PlanRecord {
    method: String,
    deadline_ms: i64,
    stages: Vec<StageRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StageRecord {
    id: String,
    claim: String,
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    assertions: Vec<AssertionRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    not_evaluated: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    probe: Option<ProbeRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AssertionRecord {
    name: String,
    outcome: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum ProbeRecord {
    Http { path: String },
    Tool { tool: String, arguments: String },
}

/// Evaluates an accepted answer. `id` is the effect's identifier in it.
pub fn prove(
    operation: &Operation,
    evidence: Option<&Evidence<'_>>,
    id: Option<&str>,
    now_ms: i64,
) -> Proof {
    let nothing = Proof { verdict: Verdict::Inconclusive, record: None, due_ms: None };
    match (&operation.verification, evidence) {
        (Verification::None, _) | (_, None) => nothing,
        (Verification::ResponseBinding { trust, assertions }, Some(evidence)) => {
            let evaluation = evaluate(assertions, evidence);
            let record = BindingRecord {
                method: "response_binding",
                trust: match trust {
                    Trust::AllowConnectorAttested => "allow_connector_attested",
                    Trust::GatewayObservedOnly => "gateway_observed_only",
                },
                assertions: outcomes(&evaluation),
            };
            let record = serde_json::to_string(&record).ok();
            Proof { verdict: evaluation.verdict, record, due_ms: None }
        }
        (Verification::Plan(plan), Some(evidence)) => planned(plan, evidence, id, now_ms),
    }
}

fn planned(plan: &Plan, evidence: &Evidence<'_>, id: Option<&str>, now_ms: i64) -> Proof {
    let after = |ms: u64| now_ms.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX));
    let stage = |stage: &Stage| {
        let mut record = StageRecord {
            id: stage.id.clone(),
            claim: stage.claim.clone(),
            kind: stage.source.as_str().to_owned(),
            verdict: None,
            assertions: Vec::new(),
            not_evaluated: None,
            due_ms: None,
            probe: None,
        };
        match &stage.source {
            Source::Immediate => record.put(&evaluate(&stage.assertions, evidence)),
            Source::Readback { after_ms, probe } => match fill(probe, evidence.request, id) {
                Ok(filled) => {
                    record.probe = Some(filled);
                    record.due_ms = Some(after(*after_ms));
                }
                Err(why) => record.not_evaluated = Some(why),
            },
            Source::Webhook => {
                record.not_evaluated = Some("events are not heard here".to_owned());
            }
        }
        record
    };
    let mut record = PlanRecord {
        method: "plan".to_owned(),
        deadline_ms: after(plan.deadline_ms),
        stages: plan.stages.iter().map(stage).collect(),
    };
    let ended = record.ended(plan);
    if ended.is_some() {
        record.close();
    }
    Proof {
        verdict: ended.unwrap_or(Verdict::Inconclusive),
        due_ms: record.next_ms(),
        record: serde_json::to_string(&record).ok(),
    }
}

fn fill(probe: &Probe, request: Request<'_>, id: Option<&str>) -> Result<ProbeRecord, String> {
    if !probe.is_declared {
        return Err("its probe target is not declared".to_owned());
    }
    match probe.fill(request, id).map_err(|why| why.to_string())? {
        Filled::Http(path) => Ok(ProbeRecord::Http { path }),
        Filled::Tool(tool, arguments) => Ok(ProbeRecord::Tool { tool, arguments }),
    }
}

fn outcomes(evaluation: &Evaluation) -> Vec<AssertionRecord> {
    let record = |(name, outcome): &(String, Passed)| AssertionRecord {
        name: name.clone(),
        outcome: outcome.as_str().to_owned(),
    };
    evaluation.results.iter().map(record).collect()
}

impl StageRecord {
    fn put(&mut self, evaluation: &Evaluation) {
        self.assertions = outcomes(evaluation);
        self.verdict = Some(evaluation.verdict.as_str().to_owned());
    }

    fn is(&self, verdict: Verdict) -> bool {
        self.verdict.as_deref() == Some(verdict.as_str())
    }
}

impl PlanRecord {
    /// The verdict that ends the plan, if one does.
    fn ended(&self, plan: &Plan) -> Option<Verdict> {
        if self.stages.iter().any(|stage| stage.is(Verdict::Contradicted)) {
            return Some(Verdict::Contradicted);
        }
        let completes = |stage: &StageRecord| {
            let is_it =
                |(claim, trust): &(String, String)| *claim == stage.claim && trust == OBSERVED;
            stage.is(Verdict::Verified) && plan.acceptable.iter().any(is_it)
        };
        self.stages.iter().any(completes).then_some(Verdict::Verified)
    }

    /// Nothing more is read.
    fn close(&mut self) {
        for stage in &mut self.stages {
            stage.due_ms = None;
        }
    }

    fn next_ms(&self) -> Option<i64> {
        self.stages.iter().filter_map(|stage| stage.due_ms).min()
    }
}

/// What one look made of a stage.
enum Looked {
    /// It was evaluated.
    Told(Evaluation),
    /// It could not tell; why, for people.
    Unsure(String),
}

/// Makes the probes of an accepted entry that are due, and records what they say.
pub async fn readback(fetch: &Fetch, pending: &Pending) {
    let shared = &fetch.shared;
    let record = &pending.record;
    let live = shared.policies.load();
    let served = live.snapshot.operation(&record.prior.operation).cloned();
    let plan = served.as_ref().and_then(|served| match &served.operation.verification {
        Verification::Plan(plan) => Some(plan.as_ref()),
        Verification::None | Verification::ResponseBinding { .. } => None,
    });
    let kept = pending.last.as_ref().or_else(|| record.finish.as_ref()?.evidence.as_ref());
    let kept = kept.and_then(|kept| serde_json::from_str::<PlanRecord>(kept).ok());
    let (Some(plan), Some(mut proof)) = (plan, kept) else {
        let why = "the operation declares another verification than when it was called";
        write(shared, pending, why.to_owned(), None, None, None).await;
        return;
    };
    let now_ms = shared.clock.now_ms();
    let tries = record.tries.saturating_add(1);
    let mut said = Vec::new();
    for stage in &mut proof.stages {
        if stage.due_ms.is_none_or(|due_ms| due_ms > now_ms) {
            continue;
        }
        let id = stage.id.clone();
        match look(fetch, &live, plan, stage).await {
            Looked::Told(evaluation) => {
                stage.put(&evaluation);
                stage.due_ms = match evaluation.verdict {
                    Verdict::Contradicted | Verdict::Verified => None,
                    Verdict::Inconclusive => Some(again_ms(shared, tries, now_ms)),
                };
                said.push(format!("{id} is {}", evaluation.verdict));
            }
            Looked::Unsure(why) => {
                stage.due_ms = Some(again_ms(shared, tries, now_ms));
                said.push(format!("{id} could not tell: {why}"));
            }
        }
    }
    let ended = proof.ended(plan);
    let is_over = now_ms >= proof.deadline_ms;
    if ended.is_some() || is_over {
        proof.close();
    }
    if is_over && ended.is_none() {
        said.push("the plan's deadline has passed".to_owned());
    }
    // The last look is at the deadline.
    let next_ms = proof.next_ms().map(|next_ms| next_ms.min(proof.deadline_ms));
    for stage in &mut proof.stages {
        stage.due_ms = stage.due_ms.map(|due_ms| due_ms.min(proof.deadline_ms));
    }
    let due = next_ms.map(|at_ms| Due { at_ms, tries });
    let detail = serde_json::to_string(&proof).ok();
    if write(shared, pending, said.join("; "), detail, ended, due).await
        && let (Some(verdict), Some(served)) = (ended, &served)
        && let Some(metrics) = live.metrics(served)
    {
        metrics.verdicts.count(verdict);
    }
}

fn again_ms(shared: &Shared, tries: u32, now_ms: i64) -> i64 {
    now_ms.saturating_add(delay_ms(shared.settings.first_look, tries))
}

/// Records a look; false if it was not recorded.
async fn write(
    shared: &Shared,
    pending: &Pending,
    why: String,
    detail: Option<String>,
    verdict: Option<Verdict>,
    due: Option<Due>,
) -> bool {
    let prior = &pending.record.prior;
    let (entry, operation) = (prior.entry, &prior.operation);
    let note = Note {
        entry,
        version: prior.version,
        noted: Noted::Readback,
        why: why.clone(),
        detail,
        outcome: None,
        verdict,
        due,
        now_ms: shared.clock.now_ms(),
    };
    let common = shared.metrics.common();
    match shared.ledger.note(note).await {
        Ok(_) => {
            common.ledger_ok.count(LedgerStage::Verify);
            match verdict {
                Some(Verdict::Contradicted) => {
                    tracing::error!(%entry, %operation, why, "an accepted effect is contradicted");
                }
                Some(verdict) => tracing::info!(%entry, %operation, %verdict, why, "read back"),
                None => tracing::debug!(%entry, %operation, why, "read back"),
            }
            true
        }
        Err(error) => {
            if matches!(error, LedgerError::Unavailable(_)) {
                common.ledger_error.count(LedgerStage::Verify);
            }
            tracing::debug!(%entry, %error, "a look at the evidence was not recorded");
            false
        }
    }
}

/// Makes one stage's probe.
async fn look(fetch: &Fetch, live: &Live, plan: &Plan, record: &StageRecord) -> Looked {
    let stage = plan.stages.iter().find(|s| s.id == record.id && s.claim == record.claim);
    let (Some(stage), Some(filled)) = (stage, &record.probe) else {
        return Looked::Unsure("the plan has no such stage any more".to_owned());
    };
    let Source::Readback { probe, .. } = &stage.source else {
        return Looked::Unsure("the plan has no such stage any more".to_owned());
    };
    if !probe.is_declared {
        return Looked::Unsure("its probe target is not declared any more".to_owned());
    }
    let got = match filled {
        ProbeRecord::Http { path } => {
            if !is_read(live, path) {
                return Looked::Unsure("the policy takes its path for a write".to_owned());
            }
            let target = Target { path_and_query: path.clone(), headers: Vec::new() };
            fetch.get(&target, Credential::Own, Purpose::Readback).await
        }
        ProbeRecord::Tool { tool, arguments } => fetch.call(live, tool, arguments).await,
    };
    match got {
        Err(why) => Looked::Unsure(why),
        Ok(got) => judge(probe, &stage.assertions, &got),
    }
}

/// Whether a `GET` of this path changes nothing, as far as the policy knows.
fn is_read(live: &Live, path_and_query: &str) -> bool {
    let path = path_and_query.split('?').next().unwrap_or_default();
    let found = live.snapshot.find_http(&http::Method::GET, path);
    let mut served = found.groups().iter().flat_map(|group| &group.operations).peekable();
    if served.peek().is_none() {
        let is_folded = live.snapshot.folds_onto_write(&http::Method::GET, path).is_some();
        return !is_folded && !live.snapshot.undeclared_get_writes();
    }
    served.all(|served| served.operation.class == Class::Read)
}

fn judge(probe: &Probe, assertions: &[Assertion], got: &Got) -> Looked {
    if probe.decisive_negative.contains(&got.status) {
        return Looked::Told(not_there(assertions));
    }
    let is_readable =
        is_json(essence(&got.headers)) && !got.headers.contains_key(http::header::CONTENT_ENCODING);
    let doc = is_readable.then(|| Doc::parse(got.body.clone()).ok()).flatten();
    let evidence = Evidence {
        status: got.status,
        headers: &got.headers,
        response: doc.as_ref().map(Doc::root),
        request: Request::Unreadable,
    };
    let evaluation = evaluate(assertions, &evidence);
    match got.status {
        200..=299 => Looked::Told(evaluation),
        _ if evaluation.verdict == Verdict::Verified => Looked::Told(evaluation),
        status => Looked::Unsure(format!("the answer's status is {status}")),
    }
}

/// What assertions say of a resource that is certainly not there.
fn not_there(assertions: &[Assertion]) -> Evaluation {
    let outcome = |assertion: &Assertion| match &assertion.check {
        Check::Absent(_) => Passed::Passed,
        Check::EqualsLiteral { .. }
        | Check::EqualsRequest { .. }
        | Check::Exists(_)
        | Check::OneOf { .. } => Passed::Failed,
    };
    let results: Vec<(String, Passed)> =
        assertions.iter().map(|assertion| (assertion.name.clone(), outcome(assertion))).collect();
    let verdict = if results.iter().any(|(_, outcome)| *outcome == Passed::Failed) {
        Verdict::Contradicted
    } else if results.is_empty() {
        Verdict::Inconclusive
    } else {
        Verdict::Verified
    };
    Evaluation { results, verdict }
}
