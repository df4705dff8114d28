//! The second step: was this call made before? Before `confirm`, because a call that is sent again with
//! a token that is already spent must get its recorded answer, not a refusal.
//!
//! `record` repeats the check inside the transaction that begins the entry, so a call that slips
//! through here beside its twin is caught there.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::fetch::Fetch;
use super::live::Metered;
use super::reconcile::{Conclusion, Looker, reconcile};
use super::repeat::{Asked, Judgement, Standing, judge};
use super::settle::Obstructed;
use super::step::{Next, Stage, Step};
use super::{Answered, Fresh, Refused, Reply, Shared, Write};
use crate::call::refusal::{Because, Refusal};
use crate::contract::class::{Mode, Outcome};
use crate::contract::key::EntryId;
use crate::ledger::{self, Look, Obstacle, Prior, Priors, State, Stored};
use crate::metrics::{Decision, DuplicateResult};

/// How long a repeat waits for the lookup of its first attempt; then it is answered as if there were
/// none.
const REPEAT_WAITS: Duration = Duration::from_secs(10);

/// How often repeats may have one entry looked up: an agent that repeats in a loop asks the upstream
/// no more often than this.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// How many entries repeats may have looked up within that time, on one worker.
const MAX_LOOKS: usize = 1024;

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Replay {
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// Makes the lookup of an attempt whose outcome is unknown.
    pub fetch: Fetch,
    /// What was looked up lately.
    pub looks: Looks,
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
        let (mut priors, mut judgement) = self.judged(&write, priors).await;
        if priors.by_key.is_none()
            && self.is_overtaken(&judgement).await
            && let Some(prior) = &mut priors.by_digest
        {
            (prior.delivered, prior.answered) = (true, true);
            judgement = judge(&asked(&write, self.shared.clock.now_ms()), &priors);
        }
        let standing = match judgement {
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
            Judgement::Refuse(refusal @ Refusal::AnswerNotKept(entry, _)) => {
                return Err(not_kept(&self.shared, &write, entry, refusal).await);
            }
            Judgement::Refuse(refusal) => return Err(refuse_repeat(&write, refusal)),
        };
        let continued = standing.rerun.and_then(|entry| prior_of(&priors, entry));
        let first_ms = continued.map(|prior| prior.began_ms);
        let continued = continued.map(|prior| prior.ledger_id.clone());
        let fresh = Fresh {
            write: *write,
            expected: priors.expected(),
            newest: priors.by_digest.as_ref().map(|prior| prior.entry),
            unknown: priors.unknown_of_operation,
            undoes: priors.undoes.filter(|undone| standing.repeats != Some(*undone)),
            standing,
            continued,
            first_ms,
        };
        next.run(Box::new(fresh)).await
    }
}

impl Replay {
    /// Judges a call. One whose earlier attempt is of unknown outcome has that looked up first, with
    /// its own credential: the sidecar may hold none of its own (contract section 7).
    async fn judged(&self, write: &Write, priors: Priors) -> (Priors, Judgement) {
        let judgement = judge(&asked(write, self.shared.clock.now_ms()), &priors);
        let entry = match &judgement {
            Judgement::Refuse(Refusal::OutcomeUnknown(entry, Some(_))) => *entry,
            Judgement::Go(Standing { because: Some(Because::Unknown(entry)), .. }) => *entry,
            Judgement::Go(_) | Judgement::Refuse(_) | Judgement::Replay(_) => {
                return (priors, judgement);
            }
        };
        if write.mode == Mode::Observe || !self.looks.may_look(entry, self.shared.clock.instant()) {
            return (priors, judgement);
        }
        // Boxed, or every write's future would have room for this rare one.
        let looking = Box::pin(self.look_up(write, entry));
        let is_settled = tokio::time::timeout(REPEAT_WAITS, looking).await.unwrap_or(false);
        if !is_settled {
            return (priors, judgement);
        }
        match self.shared.ledger.look(look(write)).await {
            Ok(priors) => {
                let judgement = judge(&asked(write, self.shared.clock.now_ms()), &priors);
                (priors, judgement)
            }
            Err(_) => (priors, judgement),
        }
    }

    /// Whether a call would be given the answer of an earlier one whose effect another write has
    /// changed since: that answer is no longer true, whether or not it was delivered.
    async fn is_overtaken(&self, judgement: &Judgement) -> bool {
        let Judgement::Replay(entry) = judgement else { return false };
        let superseded = self.shared.ledger.superseded(*entry, &HashSet::new()).await;
        matches!(superseded, Ok(Some(Obstacle::After(_))))
    }

    /// Looks an entry up for a repeat of it; says whether that settled it.
    async fn look_up(&self, write: &Write, entry: EntryId) -> bool {
        let Ok(Some(pending)) = self.shared.ledger.pending(entry).await else { return false };
        let record = &pending.record;
        if record.prior.state != State::Unknown || record.prior.lookup.is_none() {
            return false;
        }
        let reconciled = reconcile(&self.fetch, &pending, Looker::Repeat(write)).await;
        match reconciled.conclusion {
            Conclusion::Accepted | Conclusion::Rejected => true,
            Conclusion::Absent
            | Conclusion::FoundMany
            | Conclusion::Inconclusive
            | Conclusion::NoLookup
            | Conclusion::NotRecorded => false,
        }
    }
}

/// When repeats last had an entry looked up; bounded.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    last: Arc<Mutex<HashMap<EntryId, Instant>>>,
}

impl Looks {
    /// Whether an entry may be looked up now; if so, not again for a while.
    fn may_look(&self, entry: EntryId, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= MAX_LOOKS {
            last.retain(|_, at| now.saturating_duration_since(*at) < BETWEEN_LOOKS);
        }
        let is_free =
            last.get(&entry).is_none_or(|at| now.saturating_duration_since(*at) >= BETWEEN_LOOKS);
        if is_free && last.len() < MAX_LOOKS {
            last.insert(entry, now);
            return true;
        }
        false
    }
}

/// The entry that a call continues, as it was found.
pub fn prior_of(priors: &Priors, entry: EntryId) -> Option<&Prior> {
    [&priors.by_key, &priors.by_digest].into_iter().flatten().find(|prior| prior.entry == entry)
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

/// What stands in the way of an entry's undo.
async fn obstructed(shared: &Shared, entry: EntryId, stored: &Stored) -> Obstructed {
    if stored.record.finish.as_ref().is_none_or(|finish| finish.undo.is_none()) {
        return Obstructed::No;
    }
    match shared.ledger.superseded(entry, &HashSet::new()).await {
        Ok(None) => Obstructed::No,
        Ok(Some(obstacle)) => Obstructed::By(obstacle),
        // An undo that nobody knows to be clean may overwrite what came after it.
        Err(error) => {
            tracing::warn!(%error, %entry, "what came after an entry could not be read");
            Obstructed::Unknown
        }
    }
}

/// Refuses a repeat whose recorded answer is not here, with what is known of it: the effect is there,
/// and the report says how it is taken back (contract section 3).
async fn not_kept(
    shared: &Shared,
    write: &Write,
    entry: EntryId,
    refusal: Refusal,
) -> Box<Refused> {
    let mut refused = refuse_repeat(write, refusal);
    if let Ok(Some(stored)) = shared.ledger.answer(entry).await {
        let obstructed = obstructed(shared, entry, &stored).await;
        let record = &stored.record;
        let mut report = super::settle::recorded_report(shared, write, entry, record, obstructed);
        report.refused = Some(refused.refusal.code().into());
        refused.report = Some(report);
    }
    refused
}

/// The recorded answer of an entry, with a fresh report.
pub async fn replay(shared: &Shared, write: &Write, entry: EntryId) -> Answered {
    let stored = match shared.ledger.answer(entry).await {
        Ok(Some(stored)) => stored,
        Ok(None) => return Err(refuse_repeat(write, Refusal::AnswerNotKept(entry, None))),
        Err(_) => return Err(write.refuse(Refusal::LedgerUnavailable)),
    };
    write.metrics.duplicates.count(DuplicateResult::Replayed);
    super::audit::replayed(write, entry, shared.clock.instant());
    let obstructed = obstructed(shared, entry, &stored).await;
    let is_accepted = stored.record.prior.state == State::Accepted;
    let (response, report) =
        super::settle::recorded_answer(shared, write, entry, stored, obstructed);
    Ok(Reply {
        response,
        report,
        entry: Some(entry),
        decision: Decision::Replayed,
        metrics: Metered::Own(Arc::clone(&write.metrics)),
        class: write.class,
        upstream: std::time::Duration::ZERO,
        outcome: is_accepted.then_some(Outcome::Accepted),
        elsewhere: None,
    })
}
