//! The audit lines: what the log says of each write, and of each refusal.
//!
//! ```json
//! {"event":"write","entry":"0199…","ledger_id":"0199…","operation":"comments.create","effect_class":"reversible",
//!  "kind":"create","transport":"http","route":"POST /repos/{owner}/comments","attempt":1,"decision":"forwarded",
//!  "disposition":"accepted","state":"accepted","verdict":"inconclusive","upstream_status":201,"undo":"inverse",
//!  "principal":"w:9f0c…","trace_id":"4bf9…","policy_revision":"5a31…","duration_ms":12}
//! ```
//!
//! A line has these members and no others, so it is a closed list of what may be logged: ids of ours,
//! closed words, what the policy declares, and times. No path, query, header, body, argument or answer
//! is among them. A caller's own key is such a value too: where it is the ledger id, the line has the
//! first 8 bytes of its SHA-256 (`printf %s KEY | sha256sum`). A principal of a strong source may be a
//! person's name, and is hashed alike; a weak one is a keyed hash already. The trace's id is the one
//! thing that a caller chooses, and is read as 16 bytes.
//!
//! | event | when |
//! |---|---|
//! | `write` | an attempt of an entry came to its end; or no more is known of it |
//! | `replay` | a repeat was answered with what the ledger has |
//! | `refusal` | a call was refused, nothing was sent |
//!
//! Refusals cost whoever makes them nothing, so their lines are bounded: [`BURST`] at once and
//! [`PER_SECOND`] after; the next line says how many were left out. Metrics count them all.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sha2::{Digest as _, Sha256};

use super::Write;
use crate::call::Principal;
use crate::call::refusal::Refusal;
use crate::call::spans::CallSpan;
use crate::call::trace::{TraceId, TraceParent};
use crate::contract::class::{Class, Disposition, Verdict};
use crate::contract::key::{EntryId, Key, OperationId};
use crate::contract::operation::{Operation, Target};
use crate::contract::report::UndoKind;
use crate::ledger::{Cause, State};
use crate::metrics::Decision;

/// Lines about refusals that come at once.
pub const BURST: u32 = 200;

/// Lines about refusals in each second after that.
pub const PER_SECOND: u32 = 20;

/// What became of one attempt.
#[derive(Debug)]
pub struct Ended<'a> {
    /// The write.
    pub write: &'a Write,
    /// Its ledger id.
    pub ledger_id: &'a Key,
    /// Its entry; `None`: the ledger was down, and it was observed.
    pub entry: Option<EntryId>,
    /// The attempt.
    pub attempt: u32,
    /// Of the dispatch.
    pub disposition: Disposition,
    /// Of the entry.
    pub state: State,
    /// The fact behind it.
    pub cause: Option<Cause>,
    /// Of the evidence.
    pub verdict: Option<Verdict>,
    /// The upstream's.
    pub upstream_status: Option<u16>,
    /// How it is taken back, if it can be.
    pub undo: Option<UndoKind>,
    /// Until when; milliseconds since 1970.
    pub undo_deadline_ms: Option<i64>,
    /// When it ended.
    pub now: Instant,
}

/// Says in a call's span what the call is.
pub fn describe(span: &CallSpan, operation: &Operation, class: Class) {
    span.say("anvil.operation.id", operation.id.as_str().to_owned());
    span.say("anvil.effect.class", class.as_str());
    if operation.id == OperationId::undeclared() {
        return;
    }
    match &operation.target {
        Target::Http { method, template } => {
            span.rename(format!("{method} {template}"));
            span.say("http.route", template.to_string());
        }
        Target::Tool { name } => {
            span.rename(format!("tools/call {name}"));
            span.say("gen_ai.tool.name", name.to_string());
        }
    }
}

/// Says in a write's span what came of it.
fn describe_end(span: &CallSpan, ended: &Ended<'_>) {
    let write = ended.write;
    let ledger_id = ShownKey::of(ended.ledger_id, write.id, ended.entry);
    span.say("anvil.ledger.id", ledger_id.to_string());
    span.say("anvil.effect.decision", decision(write).as_str());
    span.say("anvil.effect.disposition", ended.disposition.as_str());
    span.say("anvil.effect.outcome", ended.state.as_str());
    span.say("anvil.policy.revision", Revision(write).to_string());
    if let Some(verdict) = ended.verdict {
        span.say("anvil.effect.verdict", verdict.as_str());
    }
    if let (State::Unknown, Some(cause)) = (ended.state, ended.cause) {
        span.say("error.type", cause.as_str());
    }
}

/// Writes the line of an attempt.
pub fn ended(ended: &Ended<'_>) {
    let write = ended.write;
    let operation = write.operation();
    if let Some(span) = &write.head.span {
        describe_end(span, ended);
    }
    let spent = ended.now.saturating_duration_since(write.arrived);
    tracing::info!(
        event = "write",
        entry = ended.entry.map(tracing::field::display),
        ledger_id = %ShownKey::of(ended.ledger_id, write.id, ended.entry),
        operation = %operation.id,
        effect_class = %write.class,
        kind = %operation.kind,
        transport = write.transport().as_str(),
        route = %Route(operation),
        staged_for = write.staged_for.as_ref().map(|asked| asked.served.operation.id.as_str()),
        attempt = ended.attempt,
        decision = decision(write).as_str(),
        disposition = %ended.disposition,
        state = %ended.state,
        cause = ended.cause.map(|cause| cause.as_str()),
        verdict = ended.verdict.map(|verdict| verdict.as_str()),
        upstream_status = ended.upstream_status,
        undo = ended.undo.map(|undo| undo.as_str()),
        undo_deadline_ms = ended.undo_deadline_ms,
        would = write.would,
        principal = %ShownPrincipal(&write.principal),
        trace_id = trace_id(write).map(tracing::field::display),
        policy_revision = %Revision(write),
        duration_ms = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX),
        "write ended"
    );
}

/// Writes the line of a repeat that got a recorded answer.
pub fn replayed(write: &Write, entry: EntryId, now: Instant) {
    let operation = write.operation();
    let spent = now.saturating_duration_since(write.arrived);
    tracing::info!(
        event = "replay",
        entry = %entry,
        operation = %operation.id,
        effect_class = %write.class,
        transport = write.transport().as_str(),
        route = %Route(operation),
        decision = Decision::Replayed.as_str(),
        principal = %ShownPrincipal(&write.principal),
        trace_id = trace_id(write).map(tracing::field::display),
        duration_ms = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX),
        "recorded answer given"
    );
}

/// What is known of the caller of a call that is refused.
#[derive(Debug)]
pub struct Caller {
    principal: String,
    trace: Option<TraceId>,
    transport: &'static str,
    route: String,
}

impl Caller {
    /// Of a write.
    pub fn of(write: &Write) -> Self {
        Self {
            principal: ShownPrincipal(&write.principal).to_string(),
            trace: trace_id(write),
            transport: write.transport().as_str(),
            route: Route(write.operation()).to_string(),
        }
    }
}

/// Writes the line of a refusal, unless there were too many of late.
///
/// `operation` is `None` for what was refused before it was matched.
pub fn refused(
    refusal: &Refusal,
    class: Class,
    operation: Option<&OperationId>,
    decision: &'static str,
    caller: Option<&Caller>,
    now: Instant,
) {
    let Some(left_out) = BUCKET.lock().unwrap_or_else(PoisonError::into_inner).take(now) else {
        return;
    };
    tracing::info!(
        event = "refusal",
        code = refusal.code(),
        decision,
        entry = refusal.entry().map(tracing::field::display),
        operation = operation.map(OperationId::as_str),
        effect_class = operation.map(|_| class.as_str()),
        transport = caller.map(|caller| caller.transport),
        route = caller.map(|caller| caller.route.as_str()),
        principal = caller.map(|caller| caller.principal.as_str()),
        trace_id = caller.and_then(|caller| caller.trace).map(tracing::field::display),
        left_out = (left_out > 0).then_some(left_out),
        "refused, nothing was sent"
    );
}

/// What was decided of a write that was sent.
pub fn decision(write: &Write) -> Decision {
    if write.would.is_some() {
        Decision::WouldRefuse
    } else if write.staged_for.is_some() {
        Decision::Staged
    } else {
        Decision::Forwarded
    }
}

/// The trace that a write belongs to.
fn trace_id(write: &Write) -> Option<TraceId> {
    if let Some(span) = &write.head.span {
        return Some(span.trace());
    }
    let of_message = match &write.form {
        super::Form::Http { .. } => None,
        super::Form::Mcp { call, .. } => {
            call.trace_parent().and_then(|text| TraceParent::parse(text.as_bytes()))
        }
    };
    of_message.or_else(|| TraceParent::of(&write.head.headers)).map(|parent| parent.trace)
}

/// The first 8 bytes of a text's SHA-256.
fn shortened(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// A ledger id: as it is where it is ours, else hashed.
struct ShownKey<'a> {
    key: &'a Key,
    is_ours: bool,
}

impl<'a> ShownKey<'a> {
    /// `id` is what the write would be called by, `entry` what it is called by where it runs again.
    fn of(key: &'a Key, id: EntryId, entry: Option<EntryId>) -> Self {
        let is = |id: EntryId| Key::from_entry(id).as_str() == key.as_str();
        Self { key, is_ours: is(id) || entry.is_some_and(is) }
    }
}

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_ours {
            return f.write_str(self.key.as_str());
        }
        f.write_str("sha256:")?;
        shortened(self.key.as_str(), f)
    }
}

struct ShownPrincipal<'a>(&'a Principal);

impl fmt::Display for ShownPrincipal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_weak {
            return f.write_str(&self.0.id);
        }
        f.write_str("s:")?;
        shortened(&self.0.id, f)
    }
}

/// What the policy calls the target; never the target that was asked for.
struct Route<'a>(&'a Operation);

impl fmt::Display for Route<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.target {
            _ if self.0.id == OperationId::undeclared() => f.write_str("_undeclared"),
            Target::Http { method, template } => write!(f, "{method} {template}"),
            Target::Tool { name } => write!(f, "tool {name}"),
        }
    }
}

/// The policy's revision, as `takeback_policy_info` has it: 12 digits.
struct Revision<'a>(&'a Write);

impl fmt::Display for Revision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let revision = self.0.live.snapshot.revision();
        revision.0.iter().take(6).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One for the process, as the log is.
static BUCKET: Mutex<Bucket> = Mutex::new(Bucket { since: None, left: BURST, left_out: 0 });

/// How many lines may come.
struct Bucket {
    since: Option<Instant>,
    left: u32,
    left_out: u64,
}

impl Bucket {
    /// Takes a line's place; gives how many lines had none before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let seconds = now.saturating_duration_since(since).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(PER_SECOND);
            self.left = self.left.saturating_add(more).min(BURST);
            self.since = Some(now);
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out = self.left_out.saturating_add(1);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_of_refusals_writes_few_lines_and_says_how_many_it_left_out() {
        let mut bucket = Bucket { since: None, left: BURST, left_out: 0 };
        let began = crate::clock::Clock::system(0).instant();

        let taken = (0..10_000).filter(|_| bucket.take(began).is_some()).count();
        assert_eq!(taken, 200);

        let later = began + Duration::from_secs(1);
        assert_eq!(bucket.take(later), Some(9_800));
        assert_eq!(bucket.take(later), Some(0));
        let taken = (0..100).filter(|_| bucket.take(later).is_some()).count();
        assert_eq!(taken, 18);
        let much_later = later + Duration::from_secs(3600);
        let taken = (0..1_000).filter(|_| bucket.take(much_later).is_some()).count();
        assert_eq!(taken, 200, "what was saved is bounded too");
    }

    #[test]
    fn a_callers_key_and_a_strong_principal_are_hashed_and_what_is_ours_is_not() {
        let id = EntryId::from_parts(1, &[7; 10]);
        let own = Key::from_entry(id);
        let given = Key::from_text("order-4711").unwrap();
        assert_eq!(ShownKey::of(&own, id, None).to_string(), id.to_string());
        assert_eq!(ShownKey::of(&given, id, None).to_string(), "sha256:173d0ddbff034193");

        let weak = Principal::weak("w:abc".into());
        assert_eq!(ShownPrincipal(&weak).to_string(), "w:abc");
        let strong = Principal { id: "jane@example.org".into(), is_weak: false, ..weak };
        let shown = ShownPrincipal(&strong).to_string();
        assert!(shown.starts_with("s:") && !shown.contains("jane"), "{shown}");
    }
}
