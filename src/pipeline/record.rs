//! The sixth step: the entry, durable before the first byte; then a task that nobody cancels.
//!
//! The task is spawned before `begin`, so that begin, dispatch, settle and finish are one unit: the
//! connection's future only waits for what the task sends it. If the agent leaves before dispatch, the
//! task sees it and finishes the entry as not sent; after dispatch it reads the answer to its end and
//! records it for the repeat. The task holds the call's place in the in-flight limit.
//!
//! This is the only file that can make a [`Recorded`], and so the only way to `dispatch` for a write.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use jiff::fmt::rfc2822::DateTimePrinter;
use tokio::sync::oneshot;

use super::back::is_what_it_says;
use super::choose::Asked;
use super::confirm::after_image;
use super::fetch::Fetch;
use super::image::{self, Image};
use super::live::Live;
use super::repeat::{Judgement, judge};
use super::replay::{asked, look, prior_of, refuse_repeat, replay};
use super::settle::{Identity, Settled, WriteIdentity, died, finish_not_sent, finish_panicked};
use super::step::{Next, Stage, Step};
use super::under_way::Entered;
use super::{Admitted, Agent, Answered, Attempt, Carried, Form, Refused, Reply, Shared, things};
use crate::call::refusal::{Mismatch, Refusal};
use crate::contract::class::{Level, Mode};
use crate::contract::json::Doc;
use crate::contract::key::{EntryId, Place};
use crate::contract::path::Scope;
use crate::contract::report::{CallJson, UndoKind};
use crate::contract::undo::{check_sensitive, resolve_lookup};
use crate::ledger::{Begin, Begun, Guard, Spend};
use crate::metrics::LedgerStage;
use crate::policy::{Choice, Found, Undeclared, choose};

/// A write whose entry is durable. Only this file makes one.
#[derive(Debug)]
pub struct Recorded {
    carried: Arc<Carried>,
    entry: EntryId,
    attempt: u32,
    after_unknown: bool,
    is_unrecorded: bool,
    undoes: Option<UndoKind>,
    before: Option<Arc<Image>>,
    entered: Arc<Entered>,
    agent: Agent,
}

impl Recorded {
    /// The request that is sent.
    pub fn carried(&self) -> &Arc<Carried> {
        &self.carried
    }

    /// Whether the entry's earlier attempt was of unknown outcome.
    pub fn is_after_unknown(&self) -> bool {
        self.after_unknown
    }

    /// Which way it takes an earlier entry back, if it does.
    pub fn undoes(&self) -> Option<UndoKind> {
        self.undoes
    }

    /// The state before the call, where its operation has it read.
    pub fn before(&self) -> Option<&Arc<Image>> {
        self.before.as_ref()
    }

    /// Its standing among the writes under way.
    pub fn entered(&self) -> &Arc<Entered> {
        &self.entered
    }

    /// Whether the agent is still there.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// What a finish names.
    pub fn identity(&self) -> Identity {
        Identity { entry: self.entry, attempt: self.attempt, is_unrecorded: self.is_unrecorded }
    }
}

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Record {
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// Reads the state before a call.
    pub fetch: Fetch,
}

impl Step for Record {
    type In = Box<Admitted>;
    type Out = Attempt;
    type Below = Settled;
    type Answer = Answered;

    async fn step<N: Stage<Attempt, Answer = Settled>>(
        &self,
        mut admitted: Box<Admitted>,
        next: Next<'_, N>,
    ) -> Answered {
        let write = &admitted.carried.fresh.write;
        is_still_the_rule(&self.shared.policies.load(), &admitted.carried)?;
        let known = WriteIdentity::of(write);
        let agent = Agent::default();
        let watch = agent.watch();
        let rest = next.detach();
        let (answer, answered) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let reads_before = write.operation().before.is_some().then(|| self.fetch.clone());
        let entry = admitted.carried.fresh.standing.rerun.unwrap_or(write.id);
        let entered = self.shared.under_way.enter(entry, things::of_call(write));
        let task = async move {
            let entered = Arc::new(entered);
            let before = match reads_before {
                None => Ok(None),
                // Boxed: few calls have it.
                Some(fetch) => {
                    Box::pin(image::take(&fetch, &mut admitted.carried.fresh.write)).await
                }
            };
            let held = match &before {
                Ok(Some(image)) => after_image(&shared, &mut admitted, image),
                Ok(None) => Ok(()),
                Err(refusal) => Err(admitted.carried.fresh.write.refuse(refusal.clone())),
            };
            let begun = match held {
                Ok(()) => begin(&shared, *admitted, before.ok().flatten(), entered, agent).await,
                Err(refused) => Err(Err(refused)),
            };
            let recorded = match begun {
                Ok(recorded) => recorded,
                Err(early) => {
                    let _gone = answer.send(early);
                    return;
                }
            };
            if answer.is_closed() {
                shared.metrics.common().disconnects_before.increment(1);
                finish_not_sent(&shared, &recorded);
                return;
            }
            if shared.tasks.is_hurried() {
                // The process ends: what has not begun to be sent is not sent any more.
                finish_not_sent(&shared, &recorded);
                let refused = recorded.carried().fresh.write.refuse(Refusal::Draining);
                let _gone = answer.send(Err(refused));
                return;
            }
            let carried = Arc::clone(recorded.carried());
            let guard =
                PanicGuard { shared: &shared, recorded: Some((recorded.identity(), carried)) };
            let settled = rest.run(Attempt::Write(recorded)).await;
            guard.defuse();
            let Settled { reply, tail } = settled;
            if answer.send(Ok(reply)).is_err() {
                shared.metrics.common().disconnects_after.increment(1);
            }
            if let Some(tail) = tail {
                tail.await;
            }
        };
        // Boxed: a task is moved some ten times on its way, and this one is large.
        let _task = self.shared.tasks.spawn("write", Box::pin(task));
        let answer = answered.await;
        watch.answered();
        // The task died before it could answer: what it had begun is unknown by its guard.
        answer.unwrap_or_else(|_| Ok(died(&known)))
    }
}

/// A call that was held is refused if what it is has changed since (contract section 2, Reload): its
/// compiled operation, or which operation its request matches. One that was not held has the policy
/// that is in force.
fn is_still_the_rule(current: &Arc<Live>, carried: &Carried) -> Result<(), Box<Refused>> {
    let write = &carried.fresh.write;
    if Arc::ptr_eq(current, &write.live) {
        return Ok(());
    }
    let snapshot = &current.snapshot;
    let found = match &write.form {
        Form::Http { .. } => snapshot.find_http(&write.head.method, write.head.path()),
        Form::Mcp { call, .. } => snapshot.find_tool(call.name()).map_or(Found::None, Found::One),
    };
    let choice = match &write.form {
        Form::Http { doc, .. } => Asked::of(&write.head).choose(found.groups(), doc),
        Form::Mcp { .. } => {
            let request = write.request();
            choose(&found, &Scope { before: None, request, response: None, key: None })
        }
    };
    let is_refused = matches!(choice, Choice::Undeclared { .. })
        && snapshot.undeclared() == Undeclared::Refuse
        && write.mode == Mode::Enforce;
    if is_refused {
        return Err(write.refuse(Refusal::Undeclared));
    }
    let fingerprint = match choice {
        Choice::Declared(served) => Some(served.operation.fingerprint),
        Choice::Undeclared { .. } => current
            .undeclared(write.transport(), write.class)
            .map(|(served, _)| served.operation.fingerprint),
    };
    // A staged call is its draft's; it is promoted and discarded as the other operation says.
    let is_staged_alike = write.staged_for.as_ref().is_none_or(|asked| {
        let operation = &asked.served.operation;
        let now = snapshot.operation(&operation.id).map(|served| served.operation.fingerprint);
        now == Some(operation.fingerprint)
    });
    let has_mode = write.operation().id.as_str() != "_undeclared"
        || current.undeclared_mode() == write.live.undeclared_mode();
    if has_mode && is_staged_alike && fingerprint == Some(write.operation().fingerprint) {
        Ok(())
    } else {
        Err(write.refuse(Refusal::PolicyChanged))
    }
}

/// How often a begin is judged again when others are faster; more means that somebody floods one call.
const ATTEMPTS: usize = 4;

/// Begins the entry. `Err` is the answer that is given instead: nothing was sent.
async fn begin(
    shared: &Arc<Shared>,
    admitted: Admitted,
    before: Option<Image>,
    entered: Arc<Entered>,
    agent: Agent,
) -> Result<Recorded, Answered> {
    let Admitted { mut carried, spend } = admitted;
    let before = before.map(Arc::new);
    let began = shared.clock.instant();
    for _ in 0..ATTEMPTS {
        let fresh = &carried.fresh;
        let write = &fresh.write;
        let is_observed = write.mode == Mode::Observe;
        let now_ms = shared.clock.now_ms();
        let begin = Begin {
            look: look(write),
            expected: fresh.expected,
            entry: write.id,
            rerun: fresh.standing.rerun,
            guard: if is_observed { Guard::Observed } else { Guard::Enforced },
            fingerprint: write.operation().fingerprint,
            policy_revision: write.live.snapshot.revision(),
            class: write.class,
            kind: write.operation().kind,
            transport: write.transport().as_str(),
            target: write.target(),
            things: entered.things().to_vec(),
            task: write.control.task.clone(),
            staged_for: write.staged_for.as_ref().map(|asked| asked.served.operation.id.clone()),
            ledger_id: carried.ledger_id.clone(),
            key_sent: carried.key.is_some(),
            lookup: lookup(&carried),
            authorization: authorization(&carried),
            before: before.as_ref().map(|before| before.kept().to_owned()),
            repeats: fresh.standing.repeats,
            spend: spend.map(|nonce| Spend { nonce: nonce.nonce, expires_ms: nonce.expires_ms }),
            now_ms,
        };
        let entry = begin.subject();
        let begun = shared.ledger.begin(begin).await;
        let common = shared.metrics.common();
        let elapsed = shared.clock.instant().saturating_duration_since(began);
        common.ledger_duration.record(LedgerStage::Begin, elapsed.as_secs_f64());
        if let Some(span) = &write.head.span {
            span.step("anvil.ledger.begin", began, shared.clock.instant());
        }
        match begun {
            Ok(Begun::Started { attempt }) => {
                common.ledger_ok.count(LedgerStage::Begin);
                if let Some(waiting) = fresh.standing.rerun {
                    // The next round has come: nobody waits for it any more.
                    shared.mcp.elsewhere.forget_entry(waiting);
                }
                let after_unknown = fresh.standing.after_unknown;
                let undoes = undo_kind(shared, fresh.undoes).await;
                first_sent(&mut carried, now_ms);
                let carried = Arc::new(carried);
                return Ok(Recorded {
                    carried,
                    entry,
                    attempt,
                    after_unknown,
                    is_unrecorded: false,
                    undoes,
                    before,
                    entered,
                    agent,
                });
            }
            Ok(Begun::Spent) => {
                let mismatch = Some(Mismatch::Spent);
                return Err(Err(super::confirm::challenge(shared, &carried, mismatch)));
            }
            Ok(Begun::Changed(priors)) => {
                let asked = asked(write, shared.clock.now_ms());
                let standing = match judge(&asked, &priors) {
                    Judgement::Refuse(refusal) => return Err(Err(refuse_repeat(write, refusal))),
                    Judgement::Replay(entry) => return Err(replay(shared, write, entry).await),
                    Judgement::Go(standing) => standing,
                };
                // What was confirmed was confirmed for what was there: anything else is asked anew.
                let is_as_judged = standing == fresh.standing && spend.is_none();
                carried.fresh.expected = priors.expected();
                carried.fresh.newest = priors.by_digest.as_ref().map(|prior| prior.entry);
                let rerun = standing.rerun.and_then(|entry| prior_of(&priors, entry));
                carried.fresh.first_ms = rerun.map(|prior| prior.began_ms);
                carried.fresh.standing = standing;
                if !is_as_judged && needs_confirmation(&carried) {
                    let mismatch = spend.map(|_| Mismatch::NewerEntry);
                    return Err(Err(super::confirm::challenge(shared, &carried, mismatch)));
                }
            }
            Err(error) => {
                common.ledger_error.count(LedgerStage::Begin);
                if is_observed {
                    let carried = Arc::new(carried);
                    return Ok(Recorded {
                        carried,
                        entry,
                        attempt: 0,
                        after_unknown: false,
                        is_unrecorded: true,
                        undoes: None,
                        before,
                        entered,
                        agent,
                    });
                }
                tracing::error!(%error, "no entry, so the write was not sent");
                return Err(Err(write.refuse(Refusal::LedgerUnavailable)));
            }
        }
    }
    Err(Err(carried.fresh.write.refuse(Refusal::Overloaded)))
}

/// The companion of the key that says when it was first sent: the time of the entry's first attempt,
/// the same with every further one (OASIS Repeatable Requests). One that the caller sent stays.
fn first_sent(carried: &mut Carried, now_ms: i64) {
    const KEY: HeaderName = HeaderName::from_static("repeatability-request-id");
    const FIRST_SENT: HeaderName = HeaderName::from_static("repeatability-first-sent");
    let carrier = &carried.fresh.write.operation().carrier.place;
    let is_its_key = matches!(carrier, Place::Header(name) if *name == KEY);
    if carried.key.is_none() || !is_its_key {
        return;
    }
    let first_ms = carried.fresh.first_ms.unwrap_or(now_ms);
    let time = jiff::Timestamp::from_millisecond(first_ms).ok();
    let text = time
        .and_then(|time| DateTimePrinter::new().timestamp_to_rfc9110_string(&time).ok())
        .and_then(|text| HeaderValue::try_from(text).ok());
    if let Some(value) = text {
        carried.wire.head.headers.entry(FIRST_SENT).or_insert(value);
    }
}

/// What allowed the call, for its receipt.
fn authorization(carried: &Carried) -> Option<String> {
    let level = carried.fresh.level();
    (level != Level::None).then(|| format!("{{\"level\":\"{level}\"}}"))
}

/// Which way a call takes an entry back: as that entry's report offered it.
async fn undo_kind(shared: &Shared, entry: Option<EntryId>) -> Option<UndoKind> {
    let stored = shared.ledger.answer(entry?).await.ok()??;
    let undo = Doc::parse(stored.record.finish?.undo?).ok()?;
    let kind = undo.root().get("kind")?.as_str()?;
    UndoKind::from_name(&kind)
}

fn needs_confirmation(carried: &Carried) -> bool {
    carried.fresh.level() != Level::None
}

/// The lookup as far as the request and the key can fill it: what is left when the answer is lost.
fn lookup(carried: &Carried) -> Option<String> {
    let write = &carried.fresh.write;
    let lookup = write.operation().lookup.as_ref()?;
    let key = carried.key.as_ref().map(|key| key.as_str());
    let scope = Scope { before: None, request: write.request(), response: None, key };
    let operation = write.operation();
    if !operation.keeps_bodies() {
        check_sensitive(&lookup.arguments, &scope, &operation.sensitive).ok()?;
    }
    let resolved = resolve_lookup(lookup, &scope).ok()?;
    is_what_it_says(&write.live.snapshot, &lookup.reference, &resolved).ok()?;
    Some(CallJson::lookup(lookup.by, &resolved).as_json().to_owned())
}

/// Finishes the entry as unknown if the task dies between dispatch and finish.
struct PanicGuard<'a> {
    shared: &'a Shared,
    recorded: Option<(Identity, Arc<Carried>)>,
}

impl PanicGuard<'_> {
    fn defuse(mut self) {
        self.recorded = None;
    }
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if let Some((identity, carried)) = self.recorded.take() {
            finish_panicked(self.shared, identity, &carried);
        }
    }
}

/// The reply of a read needs nothing of an entry; kept here so that the type says it.
impl From<Reply> for Settled {
    fn from(reply: Reply) -> Self {
        Self { reply, tail: None }
    }
}
