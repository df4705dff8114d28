//! Settling unknown entries by their lookups: the read that finds the effect when its answer was lost.
//!
//! A lookup's answer says one of four things: found once, absent, found more than once, could not
//! tell. Found settles the entry as accepted. Absent settles it as rejected only where the policy says
//! how long the upstream may take to show an effect (`settle_ms`), only after that time has passed
//! since the request could last act, and only if it is the answer twice. The other two settle nothing:
//! they are a person's to decide (`takeback settle`).
//!
//! ```text
//!  begin ─ LEASE, absolute time-out ─▶ last moment to act ─ settle_ms ─▶ absent counts
//!                                      (or when it became unknown)
//! ```
//!
//! Three ask for it: the [background] of a running sidecar, with a backoff and a bound on
//! tries; a repeat of the call, with its own credential; and a person (`takeback reconcile`). Each look
//! is one row of the entry's history, with when to look next, so a restart goes on where it was; and a
//! row is written only if the entry is still where it was judged, so two at once do not decide twice.
//!
//! The lookup is made from what the entry kept of the request, under the operation that is declared
//! at that moment; an entry whose operation or lookup is no longer declared so is left alone. It
//! carries the headers of `upstream.headers_file`, or the credential of the repeat that asks for it:
//! no caller's is kept. Nothing is ever sent again from here: the request is not kept, so a redispatch
//! under the same key is a repeat of the caller's (`pipeline::repeat`, I-12).

pub mod background;
mod lookup;

use std::time::Duration;

use super::fetch::{Credential, Fetch};
use super::live::Live;
use super::{Shared, Write};
use crate::contract::class::{Outcome, words};
use crate::contract::json::Doc;
use crate::contract::key::{EntryId, OperationId};
use crate::contract::operation::{Lookup, Operation};
use crate::ledger::{Due, LedgerError, Note, Noted, Pending, Record, State};
use crate::metrics::{LedgerStage, ReconcileResult};
use background::delay_ms;
use lookup::{Answer, Asked, look, target};

/// How many entries one run looks up. The next run takes the next ones only once these are settled,
/// so a run should be preceded by a look at what it said.
pub const AT_ONCE: usize = 256;

/// How long a run makes lookups; entries that it has not come to by then are told as such. Whoever
/// asked for it is waiting.
pub const RUN: Duration = Duration::from_secs(300);

/// How long after its begin a dispatch can still start, in milliseconds: one whose first byte is not
/// out by then is not sent (contract section 7), so the absolute time-out runs from here at the latest.
const LEASE_MS: i64 = 5_000;

/// The looks that the sidecar makes of itself at one attempt's outcome. With the default first delay
/// they are spread over about half a day; then a person is needed.
pub const MAX_TRIES: u32 = 20;

words! {
    /// What a look did with an entry.
    Conclusion {
        /// It was settled as accepted: the effect is there.
        Accepted = "accepted",
        /// It was settled as rejected: the effect is not there.
        Rejected = "rejected",
        /// The effect is not there, and that does not count or does not count yet.
        Absent = "absent",
        /// More than one effect is there.
        FoundMany = "found_many",
        /// The lookup could not tell.
        Inconclusive = "inconclusive",
        /// There is none to make.
        NoLookup = "no_lookup",
        /// The ledger did not take the decision.
        NotRecorded = "not_recorded",
    }
}

/// One entry that was looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconciled {
    /// The entry.
    pub entry: EntryId,
    /// Its operation.
    pub operation: OperationId,
    /// What was done.
    pub conclusion: Conclusion,
    /// Why, for people. Holds no value of the call.
    pub why: String,
}

/// Who looks.
#[derive(Clone, Copy, Debug)]
pub enum Looker<'a> {
    /// A person, who waits for the answer: a second look follows at once.
    Person,
    /// A repeat of the call, with its credential; a second look follows at once.
    Repeat(&'a Write),
    /// The sidecar itself: a second look is made later.
    Sidecar,
}

/// Looks up each unknown entry once, and settles those whose lookup can tell.
///
/// # Errors
///
/// [`LedgerError::Unavailable`] if the entries cannot be read.
///
/// # Cancel safety
///
/// Dropping it leaves the entries that it has not come to as they are.
pub async fn reconcile_once(fetch: &Fetch) -> Result<Vec<Reconciled>, LedgerError> {
    let shared = &fetch.shared;
    let began = shared.clock.instant();
    let mut run = Vec::new();
    for record in shared.ledger.unknowns(AT_ONCE).await? {
        let (entry, operation) = (record.prior.entry, record.prior.operation);
        let is_over = shared.clock.instant().saturating_duration_since(began) >= RUN;
        if is_over {
            let why = "not looked up: the time of this run was over".to_owned();
            run.push(Reconciled { entry, operation, conclusion: Conclusion::Inconclusive, why });
            continue;
        }
        // What it became since is not unknown, and nobody's business here.
        if let Some(pending) = shared.ledger.pending(entry).await?
            && pending.record.prior.state == State::Unknown
        {
            run.push(reconcile(fetch, &pending, Looker::Person).await);
        }
    }
    Ok(run)
}

/// Looks one unknown entry up, records what was learned, and settles it if that can tell.
pub async fn reconcile(fetch: &Fetch, pending: &Pending, looker: Looker<'_>) -> Reconciled {
    let shared = &fetch.shared;
    let record = &pending.record;
    let live = shared.policies.load();
    let served = live.snapshot.operation(&record.prior.operation).cloned();
    let asked = match &served {
        None => Err(Told::none("the operation is no longer declared")),
        Some(served) => {
            let repeat = match looker {
                Looker::Repeat(write) => Some(write),
                Looker::Person | Looker::Sidecar => None,
            };
            Work { fetch, pending, looker, repeat, live: &live }.ask(&served.operation).await
        }
    };
    let mut told = asked.unwrap_or_else(|told| told);
    let now_ms = shared.clock.now_ms();
    let due = told.due(shared.settings.first_look, record, looker, now_ms);
    let is_given_up = told.is_open() && due.is_none() && matches!(looker, Looker::Sidecar);
    if is_given_up {
        told.why.push_str("; it is not looked up again: a person must settle it");
    }
    if let Some(metrics) = served.and_then(|served| live.metrics(&served)) {
        metrics.reconciliations.count(told.result);
    }
    let note = Note {
        entry: record.prior.entry,
        version: record.prior.version,
        noted: Noted::Lookup,
        why: told.why.clone(),
        detail: Some(told.detail()),
        outcome: told.settle,
        verdict: None,
        due,
        now_ms,
    };
    let noted = shared.ledger.note(note).await;
    let common = shared.metrics.common();
    let (conclusion, why) = match noted {
        Ok(settled) => {
            common.ledger_ok.count(LedgerStage::Verify);
            match settled.state {
                State::Accepted => (Conclusion::Accepted, told.why),
                State::Rejected => (Conclusion::Rejected, told.why),
                State::Begun | State::Undone | State::Unknown | State::Waiting => {
                    (told.conclusion, told.why)
                }
            }
        }
        Err(error) => {
            if matches!(error, LedgerError::Unavailable(_)) {
                common.ledger_error.count(LedgerStage::Verify);
            }
            (Conclusion::NotRecorded, error.to_string())
        }
    };
    let (entry, operation) = (record.prior.entry, record.prior.operation.clone());
    let said = conclusion.as_str();
    if is_given_up {
        tracing::error!(%entry, %operation, conclusion = said, why, "an outcome stays unknown");
    } else {
        tracing::info!(%entry, %operation, conclusion = said, why, "looked up");
    }
    Reconciled { entry, operation, conclusion, why }
}

/// Whether the lookup of an accepted entry says that its effect is not there any more. What cannot be
/// told, or could not show yet, is not said to be gone. Nothing is recorded.
pub async fn is_gone(fetch: &Fetch, record: &Record) -> bool {
    let live = fetch.shared.policies.load();
    let Some(served) = live.snapshot.operation(&record.prior.operation).cloned() else {
        return false;
    };
    let operation = &served.operation;
    let (Some(lookup), Some(kept)) = (&operation.lookup, &record.prior.lookup) else {
        return false;
    };
    let Some(settle_ms) = lookup.settle_ms else { return false };
    let shown_ms = record.prior.finished_ms.unwrap_or(record.attempted_ms);
    let shown_ms = shown_ms.saturating_add(i64::try_from(settle_ms).unwrap_or(i64::MAX));
    if fetch.shared.clock.now_ms() < shown_ms {
        return false;
    }
    let Ok(kept) = Doc::parse(kept.clone()) else { return false };
    let Ok(asked) = target(kept.root(), lookup) else { return false };
    if !lookup::is_what_it_says(&live, &asked, &lookup.reference.operation) {
        return false;
    }
    let pending = Pending { record: record.clone(), last: None };
    let work = Work { fetch, pending: &pending, looker: Looker::Person, repeat: None, live: &live };
    matches!(look(&work, &asked, operation, lookup).await, Ok(Answer::Absent))
}

/// What a lookup said, and what follows.
#[derive(Debug)]
struct Told {
    conclusion: Conclusion,
    result: ReconcileResult,
    settle: Option<Outcome>,
    /// An absence that counts: a second one settles.
    counts: bool,
    /// When looking again can first say more; milliseconds since 1970.
    not_before_ms: Option<i64>,
    why: String,
}

impl Told {
    fn new(conclusion: Conclusion, result: ReconcileResult, why: impl Into<String>) -> Self {
        let (settle, counts, not_before_ms) = (None, false, None);
        Self { conclusion, result, settle, counts, not_before_ms, why: why.into() }
    }

    fn none(why: impl Into<String>) -> Self {
        Self::new(Conclusion::NoLookup, ReconcileResult::NoLookup, why)
    }

    fn inconclusive(why: impl Into<String>) -> Self {
        Self::new(Conclusion::Inconclusive, ReconcileResult::Inconclusive, why)
    }

    /// Whether the entry is as unknown as before.
    fn is_open(&self) -> bool {
        self.settle.is_none()
    }

    /// When to look next.
    fn due(
        &self,
        first: Duration,
        record: &Record,
        looker: Looker<'_>,
        now_ms: i64,
    ) -> Option<Due> {
        let is_hopeless = match self.conclusion {
            // Looking again finds no fewer.
            Conclusion::FoundMany => true,
            // A policy that is mended brings its lookup back.
            Conclusion::Absent | Conclusion::Inconclusive | Conclusion::NoLookup => false,
            Conclusion::Accepted | Conclusion::NotRecorded | Conclusion::Rejected => true,
        };
        if !self.is_open() || is_hopeless {
            return None;
        }
        // A person's or a repeat's look is not the sidecar's, and takes none of its tries.
        let tries = match looker {
            Looker::Sidecar => record.tries.saturating_add(1),
            Looker::Person | Looker::Repeat(_) => record.tries,
        };
        if tries >= MAX_TRIES {
            return None;
        }
        let delay_ms = if self.counts { delay_ms(first, 0) } else { delay_ms(first, tries) };
        let at_ms = now_ms.saturating_add(delay_ms).max(self.not_before_ms.unwrap_or(i64::MIN));
        Some(Due { at_ms, tries })
    }

    /// What stands in the history: the answer and whether it counts.
    fn detail(&self) -> String {
        format!("{{\"answer\":\"{}\",\"counts\":{}}}", self.conclusion, self.counts)
    }
}

/// One look.
struct Work<'a> {
    fetch: &'a Fetch,
    pending: &'a Pending,
    looker: Looker<'a>,
    repeat: Option<&'a Write>,
    live: &'a Live,
}

impl Work<'_> {
    fn credential(&self) -> Credential<'_> {
        match self.looker {
            Looker::Person | Looker::Sidecar => Credential::Own,
            Looker::Repeat(write) => Credential::Caller(&write.head.headers),
        }
    }

    /// Makes the entry's lookup. `Err` is what is told instead of an answer.
    async fn ask(&self, operation: &Operation) -> Result<Told, Told> {
        let lookup = operation
            .lookup
            .as_ref()
            .ok_or_else(|| Told::none("the operation declares no lookup"))?;
        let kept = self.pending.record.prior.lookup.as_deref().ok_or_else(|| {
            Told::none("the call left nothing that its lookup could be made from")
        })?;
        let kept = Doc::parse(kept.to_owned())
            .map_err(|_| Told::none("the lookup that the entry kept cannot be read"))?;
        let target = target(kept.root(), lookup)?;
        let name = &lookup.reference.operation;
        if !lookup::is_what_it_says(self.live, &target, name) {
            return Err(Told::inconclusive(format!("its call would not be {name}")));
        }
        match look(self, &target, operation, lookup).await? {
            Answer::Found => Ok(Told {
                settle: Some(Outcome::Accepted),
                ..Told::new(
                    Conclusion::Accepted,
                    ReconcileResult::Found,
                    format!("{name} found the effect"),
                )
            }),
            Answer::Many(count) => Ok(Told::new(
                Conclusion::FoundMany,
                ReconcileResult::FoundMany,
                format!("{name} found {count} effects where one was to be; a person must look"),
            )),
            Answer::Absent => self.absent(operation, lookup, &target).await,
        }
    }

    /// What follows from an answer that nothing is there.
    async fn absent(
        &self,
        operation: &Operation,
        lookup: &Lookup,
        target: &Asked,
    ) -> Result<Told, Told> {
        let name = &lookup.reference.operation;
        let told = |why: String| Told::new(Conclusion::Absent, ReconcileResult::NotFound, why);
        let Some(settle_ms) = lookup.settle_ms else {
            let why = format!("{name} found nothing, which settles nothing without `settle_ms`");
            return Ok(told(why));
        };
        let shared = &self.fetch.shared;
        let counts_from = last_moment_ms(&self.pending.record, operation, shared)
            .saturating_add(i64::try_from(settle_ms).unwrap_or(i64::MAX));
        let left_ms = counts_from.saturating_sub(shared.clock.now_ms());
        if left_ms > 0 {
            let left_s = left_ms.saturating_add(999) / 1000;
            let why = format!("{name} found nothing, which counts in {left_s} s");
            return Ok(Told { not_before_ms: Some(counts_from), ..told(why) });
        }
        let twice = || Told {
            settle: Some(Outcome::Rejected),
            counts: true,
            ..told(format!("{name} found nothing, twice, after the time it may take"))
        };
        if self.was_absent() {
            return Ok(twice());
        }
        if matches!(self.looker, Looker::Sidecar) {
            let why =
                format!("{name} found nothing, after the time it may take; once more is sure");
            return Ok(Told { counts: true, ..told(why) });
        }
        match look(self, target, operation, lookup).await? {
            Answer::Absent => Ok(twice()),
            Answer::Found | Answer::Many(_) => {
                Err(Told::inconclusive(format!("{name} found nothing, and then something")))
            }
        }
    }

    /// Whether the look before this one found nothing, and that counted.
    fn was_absent(&self) -> bool {
        let Some(last) = &self.pending.last else { return false };
        let Ok(last) = Doc::parse(last.clone()) else { return false };
        let is =
            |name: &str, wanted: &str| last.root().get(name).is_some_and(|v| v.raw() == wanted);
        is("answer", "\"absent\"") && is("counts", "true")
    }
}

/// The last moment at which an attempt could act, in milliseconds since 1970.
fn last_moment_ms(record: &Record, operation: &Operation, shared: &Shared) -> i64 {
    let total_ms = operation.timeouts.total_ms.map_or_else(
        || i64::try_from(shared.settings.timeouts.total.as_millis()).unwrap_or(i64::MAX),
        |total_ms| i64::try_from(total_ms).unwrap_or(i64::MAX),
    );
    let timed_out = record.attempted_ms.saturating_add(LEASE_MS).saturating_add(total_ms);
    // One that waited for its upstream could act until it was given up.
    timed_out.max(record.prior.finished_ms.unwrap_or(i64::MIN))
}

#[cfg(test)]
mod tests;
