//! One transaction: many commands, few round trips.
//!
//! 1. `BEGIN`; the owner's lease, checked, renewed and locked by one statement; the entries that
//!    finishes, decisions and reruns are about, locked; the confirmations, used; and the
//!    [finder's](super::look) rows of the begins, inserted. Whoever else begins one of these calls
//!    at this moment, in whatever sidecar, waits at those rows until this transaction is over.
//! 2. What became of attempts is written. Then the begins whose calls were here before are judged by
//!    what is there after that; the others have no earlier call.
//! 3. The new entries and their steps, and `COMMIT`.
//!
//! What stands in one batch does not touch the same entry twice ([`super::queue`] sees to that), and
//! of begins that meet, only the first is judged by the database.
//!
//! Every step has a number of the database's sequence, and none is used twice. So a number of this
//! batch that stands in the history proves that its transaction was committed, and if none does
//! after the owner's row could be locked again, it was not.

use std::collections::HashSet;

use tokio_postgres::Row;
use uuid::Uuid;

use super::chained::Chained;
use super::look::{self, Finder, Search, number};
use super::plan::{self, Plan};
use super::rows::column;
use super::session::{Answers, Fault, Session, whole};
use super::sql;
use super::step::Subject;
use crate::ledger::Reason;
use crate::ledger::desk::command::{Done, Failure, Write};

/// Who writes, and how.
#[derive(Debug)]
pub(super) struct Hand<'a> {
    pub(super) session: &'a Session,
    pub(super) finder: &'a Finder,
    pub(super) owner: Uuid,
    pub(super) lease_ms: f64,
    /// The newest time that a command brought.
    pub(super) now_ms: i64,
    #[cfg(test)]
    pub(super) shared: &'a crate::ledger::desk::Shared,
}

/// What became of a command, if its transaction was committed.
#[derive(Debug)]
pub(super) enum Fate {
    /// It is done, or refused.
    Done(Done),
    /// A begin found another state of things than it was judged by.
    Changed,
    /// It met another begin of this batch: once more, after it.
    Deferred,
}

/// A transaction that was committed, or may have been.
#[derive(Debug)]
pub(super) struct Ran {
    /// What became of each command, in their order.
    pub(super) fates: Vec<Fate>,
    /// The numbers of its steps.
    pub(super) steps: Vec<i64>,
    /// `None`: it was committed. Else it is not known whether it was.
    pub(super) doubt: Option<Failure>,
}

impl Hand<'_> {
    /// Runs commands in one transaction.
    ///
    /// # Errors
    ///
    /// Nothing was written: the transaction was not committed, and will not be.
    pub(super) async fn run(&self, chained: &mut Chained, writes: &[Write]) -> Result<Ran, Fault> {
        let mut plan = Plan::of(self.finder, chained, writes);
        let mut pipe = self.session.pipe();
        pipe.add(sql::BEGIN, Vec::new());
        let lease = pipe.add(
            sql::LEASE,
            vec![Box::new(self.owner), Box::new(self.lease_ms), Box::new(self.now_ms)],
        );
        let subjects = (!plan.named.is_empty())
            .then(|| pipe.add(sql::SUBJECTS, vec![Box::new(plan.named.clone())]));
        let looks: Vec<_> = plan.judged.iter().map(|judged| &judged.begin.look).collect();
        let strangers = (!looks.is_empty()).then(|| look::ask_strangers(&looks, &mut pipe));
        let spent = plan.ask_spent(&mut pipe);
        let claimed = plan.ask_claims(&mut pipe);
        let steps =
            (plan.steps > 0).then(|| pipe.add(sql::STEPS, vec![Box::new(number(plan.steps))]));
        let answers = pipe.run_all().await?;
        let rows = |index: Option<usize>| -> &[Row] {
            index.and_then(|index| answers.get(index)).map_or(&[], Vec::as_slice)
        };
        if rows(Some(lease)).is_empty() {
            self.session.run("ROLLBACK").await?;
            return Err(Fault::Down(Failure::new(Reason::Lease, "its lease has run out")));
        }
        #[cfg(test)]
        if plan.judged.iter().any(|judged| judged.begin.target == crate::ledger::tests::POISON) {
            self.session.run("ROLLBACK").await?;
            return Err(Fault::Refused("poison".to_owned()));
        }
        for row in rows(subjects) {
            let subject = Subject::read(row)?;
            plan.add_subject(subject);
        }
        for row in rows(steps) {
            plan.numbers.push(column(row, 0)?);
        }
        plan.numbers.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
        for place in look::named(rows(strangers))? {
            if let Some(judged) = plan.judged.get_mut(place) {
                judged.is_stranger_open = true;
            }
        }
        let spent: HashSet<Vec<u8>> =
            rows(spent).iter().map(|row| column(row, 0)).collect::<Result<_, _>>()?;
        plan.note_spent(&spent);
        let fresh: HashSet<Uuid> =
            rows(claimed).iter().map(|row| column(row, 0)).collect::<Result<_, _>>()?;
        plan.note_claims(&fresh);

        self.second(&mut plan, writes).await?;
        self.third(plan, writes).await
    }

    /// Writes what became of attempts, and judges the begins whose calls were here before.
    async fn second(&self, plan: &mut Plan<'_>, writes: &[Write]) -> Result<(), Fault> {
        let mut pipe = self.session.pipe();
        plan.write_outcomes(writes, &mut pipe, self.now_ms)?;
        let undoing = plan::ask_targets(&plan.outcomes.undoing, &mut pipe);
        let known: Vec<usize> = plan
            .judged
            .iter()
            .enumerate()
            .filter(|(_, judged)| judged.is_known)
            .map(|(place, _)| place)
            .collect();
        let mut search = None;
        if !known.is_empty() {
            let hashes = plan.known_hashes();
            pipe.add(sql::LOCK, vec![Box::new(hashes)]);
            let looks: Vec<_> = known
                .iter()
                .filter_map(|place| plan.judged.get(*place))
                .map(|judged| &judged.begin.look)
                .collect();
            search = Some(Search::add(self.finder, looks, &mut pipe));
        }
        if pipe.is_empty() {
            return Ok(());
        }
        let answers = pipe.run_all().await?;
        if let Some(search) = search {
            let found = search.read(self.session, &answers).await?;
            for (place, repeats) in known.into_iter().zip(found) {
                if let Some(judged) = plan.judged.get_mut(place) {
                    judged.repeats = repeats;
                }
            }
        }
        if let Some(undoing) = undoing {
            plan.note_targets(answers.get(undoing).map_or(&[], Vec::as_slice))?;
        }
        Ok(())
    }

    /// Writes the begins, and commits.
    async fn third(&self, mut plan: Plan<'_>, writes: &[Write]) -> Result<Ran, Fault> {
        let mut pipe = self.session.pipe();
        plan.write_undone(&mut pipe)?;
        plan.judge()?;
        plan.write_begins(&mut pipe, self.owner)?;
        #[cfg(test)]
        if let Err(failure) = self.shared.faults.before_commit() {
            return Err(Fault::Down(failure));
        }
        let commit = pipe.add(sql::COMMIT, Vec::new());
        let answers = pipe.run().await;
        #[cfg(test)]
        let answers = match self.shared.faults.after_commit() {
            Ok(()) => answers,
            Err(failure) => Err(Fault::Down(failure)),
        };
        let doubt = is_committed(answers, commit)?;
        let (fates, steps) = plan.fates(writes);
        Ok(Ran { fates, steps, doubt })
    }
}

/// Whether the statements before a commit, and the commit, succeeded. `Some`: it is not known.
fn is_committed(answers: Result<Answers, Fault>, commit: usize) -> Result<Option<Failure>, Fault> {
    let mut answers = match answers {
        Ok(answers) => answers,
        Err(fault) => return Ok(Some(fault.into_failure())),
    };
    let committed = answers.split_off(commit.min(answers.len()));
    // What the server refused before the commit made a roll-back of it, and it says so.
    if let Err(fault) = whole(answers) {
        return match &fault {
            Fault::Met | Fault::Refused(_) => Err(fault),
            Fault::Down(failure) if failure.reason == Reason::Unreachable => {
                Ok(Some(fault.into_failure()))
            }
            Fault::Down(_) => Err(fault),
        };
    }
    match committed.into_iter().next() {
        Some(Ok(_)) => Ok(None),
        Some(Err(error)) => {
            // 40003: the server itself does not know.
            let is_known = error.code().is_some_and(|code| {
                code.code() != "40003"
                    && !code.code().starts_with("08")
                    && !code.code().starts_with("57P")
            });
            let fault = Fault::from(error);
            if is_known { Err(fault) } else { Ok(Some(fault.into_failure())) }
        }
        None => Ok(Some(Failure::new(Reason::Failed, "a commit had no answer"))),
    }
}
