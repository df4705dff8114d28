//! The second step: was this call made before? Before `confirm`, because a call that is sent again with
//! a token that is already spent must get its recorded answer, not a refusal.
//!
//! `record` repeats the check inside the transaction that begins the entry, so a call that slips
//! through here beside its twin is caught there.

use std::sync::Arc;

use super::repeat::{Asked, Judgement, Standing, judge};
use super::step::{Next, Stage, Step};
use super::{Answered, Fresh, Refused, Reply, Shared, Write};
use crate::call::refusal::Refusal;
use crate::contract::class::Mode;
use crate::contract::key::EntryId;
use crate::ledger::{self, Look, Priors};
use crate::metrics::{Decision, DuplicateResult};

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Replay {
    /// What all workers share.
    pub shared: Arc<Shared>,
}

impl Step for Replay {
    type In = Box<Write>;
    type Out = Box<Fresh>;
    type Below = Answered;
    type Answer = Answered;

    async fn step<N: Stage<Box<Fresh>, Answer = Answered>>(
        &self,
        mut write: Box<Write>,
        next: Next<'_, N>,
    ) -> Answered {
        let priors = match self.shared.ledger.look(look(&write)).await {
            Ok(priors) => priors,
            Err(_) if write.mode == Mode::Observe => Priors::default(),
            Err(_) => return Err(write.refuse(Refusal::LedgerUnavailable)),
        };
        let asked = asked(&write, self.shared.clock.now_ms());
        let standing = match judge(&asked, &priors) {
            Judgement::Go(standing) => standing,
            Judgement::Replay(_) if write.mode == Mode::Observe => {
                write.would = write.would.or(Some("replayed"));
                Standing::default()
            }
            Judgement::Refuse(refusal) if write.mode == Mode::Observe => {
                write.would = write.would.or(Some(refusal.code()));
                Standing::default()
            }
            Judgement::Replay(entry) => return replay(&self.shared, &write, entry).await,
            Judgement::Refuse(Refusal::AnswerNotKept(entry)) => {
                return Err(not_kept(&self.shared, &write, entry).await);
            }
            Judgement::Refuse(refusal) => return Err(refuse_repeat(&write, refusal)),
        };
        let continued = standing.rerun.and_then(|entry| {
            [&priors.by_key, &priors.by_digest]
                .into_iter()
                .flatten()
                .find(|prior| prior.entry == entry)
                .map(|prior| prior.ledger_id.clone())
        });
        let fresh = Fresh {
            write: *write,
            expected: priors.expected(),
            newest: priors.by_digest.as_ref().map(|prior| prior.entry),
            unknown: priors.unknown_of_operation,
            undoes: priors.undoes,
            standing,
            continued,
        };
        next.run(Box::new(fresh)).await
    }
}

/// What the ledger is asked.
pub fn look(write: &Write) -> Look {
    Look {
        principal: ledger::Principal {
            id: write.principal.id.to_string(),
            weak: write.principal.is_weak,
        },
        key: write.control.key.clone(),
        digest: write.digest.whole,
        mark: write.digest.mark,
        operation: write.recorded_operation().clone(),
        staged: write.control.stage,
    }
}

/// What is judged.
pub fn asked(write: &Write, now_ms: i64) -> Asked<'_> {
    Asked {
        id: write.recorded_operation(),
        operation: write.operation(),
        class: write.class,
        digest: write.digest.whole,
        has_key: write.control.key.is_some(),
        is_staged: write.control.stage,
        continues: write.continues,
        now_ms,
    }
}

/// Counts and refuses a repeat.
pub fn refuse_repeat(write: &Write, refusal: Refusal) -> Box<Refused> {
    let result = if matches!(refusal, Refusal::InFlight(_)) {
        DuplicateResult::RefusedInFlight
    } else if matches!(refusal, Refusal::OutcomeUnknown(..)) {
        DuplicateResult::RefusedUnknown
    } else {
        DuplicateResult::RefusedMismatch
    };
    write.metrics.duplicates.count(result);
    write.refuse(refusal)
}

/// Refuses a repeat whose recorded answer is not here, with what is known of it: the effect is there,
/// and the report says how it is taken back (contract section 3).
async fn not_kept(shared: &Shared, write: &Write, entry: EntryId) -> Box<Refused> {
    let mut refused = refuse_repeat(write, Refusal::AnswerNotKept(entry));
    if let Ok(Some(stored)) = shared.ledger.answer(entry).await {
        let mut report = super::settle::recorded_report(shared, write, entry, &stored.record);
        report.refused = Some(refused.refusal.code().into());
        refused.report = Some(report);
    }
    refused
}

/// The recorded answer of an entry, with a fresh report.
pub async fn replay(shared: &Shared, write: &Write, entry: EntryId) -> Answered {
    let stored = match shared.ledger.answer(entry).await {
        Ok(Some(stored)) => stored,
        Ok(None) => return Err(refuse_repeat(write, Refusal::AnswerNotKept(entry))),
        Err(_) => return Err(write.refuse(Refusal::LedgerUnavailable)),
    };
    write.metrics.duplicates.count(DuplicateResult::Replayed);
    let (response, report) = super::settle::recorded_answer(shared, write, entry, stored);
    Ok(Reply {
        response,
        report,
        entry: Some(entry),
        decision: Decision::Replayed,
        metrics: Arc::clone(&write.metrics),
        class: write.class,
        upstream: std::time::Duration::ZERO,
        elsewhere: None,
    })
}
