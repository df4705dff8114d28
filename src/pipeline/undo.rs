//! What taking a task back would be: for each of its writes whether there is a call that undoes it, and
//! that call in full.
//!
//! A plan reads and decides nothing. The calls in it are ordinary ones: whoever makes them sends them
//! through the sidecar, where each is matched, confirmed as its own class asks, recorded and reported
//! (standards C-12). So a plan may be out of date the moment it is read, and harms nothing then.
//!
//! | entry | standing |
//! |---|---|
//! | accepted, its undo can be made | `available` |
//! | accepted, the undo's deadline has come | `expired` |
//! | accepted, its undo cannot be made, or there is none | `unavailable`, with the reason |
//! | accepted, and another entry or its lookup says that its effect is not what is there | `superseded` |
//! | unknown | `unknown`, with its lookup: settle it first |
//! | begun, or waiting for more | `under_way` |
//! | undone | `undone`, with the entry of the call that did it |
//!
//! Rejected writes had no effect, and calls that took others back are those others' business: neither
//! stands in a plan. A call that took such a one back made the first effect again, and is a write as any. The order is newest first, because later writes may stand on earlier ones.
//!
//! The ledger keeps an undo as the report showed it: names and values. Where each value goes, and how a
//! body is written, is taken from the policy in force; if that declares another undo by now, the old one
//! is `unavailable` rather than guessed. The built call is matched again, as when it was offered.
//!
//! Limits: [`MAX_ENTRIES`] entries, the newest that are not taken back, and those that are as far as there
//! is room; a plan says when there were more. So a long task is taken back plan by plan. To know which
//! calls took others back all entries of the task are gone through, and of a task with more than
//! [`MAX_READ`] no plan is made: one of a part might take back what takes back.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};

use super::back::{is_what_it_says, media_type};
use super::live::Live;
use super::settle::IF_UNCHANGED;
use crate::contract::class::words;
use crate::contract::deadline::is_passed;
use crate::contract::json::{Doc, Value};
use crate::contract::key::EntryId;
use crate::contract::operation::{Argument, BodyType, FollowUp, Mapping};
use crate::contract::path::{Request, Scope};
use crate::contract::report::CallJson;
use crate::contract::report::UndoKind;
use crate::contract::undo::{Resolved, resolve};
use crate::ledger::{Cause, Record, Shown, State, backs};

/// How many entries of a task one plan holds.
pub const MAX_ENTRIES: usize = 1000;

/// How many entries of a task are gone through for a plan: some 16 bytes of memory and, of those that
/// were taken back, a look at their history each.
pub const MAX_READ: usize = 100_000;

/// Which entries of a task stand in its plan.
#[derive(Debug, Default)]
pub struct Choice {
    entries: Vec<(EntryId, State)>,
    /// Each that was taken back, and the call that did it.
    pairs: Vec<(EntryId, EntryId)>,
}

impl Choice {
    /// The next older entry of the task, and whose call took it back ([`undone_by`]).
    pub fn add(&mut self, entry: EntryId, state: State, taker: Option<EntryId>) {
        self.pairs.extend(taker.map(|taker| (entry, taker)));
        self.entries.push((entry, state));
    }

    /// How many entries there are so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// At most `max` of them, newest first, and whether some are left that are not taken back.
    pub fn newest(mut self, max: usize) -> (Vec<EntryId>, bool) {
        let backs = backs(self.pairs.iter().copied());
        self.entries.retain(|(entry, state)| *state != State::Rejected && !backs.contains(entry));
        let open = self.entries.iter().filter(|(_, state)| *state != State::Undone).count();
        let mut room = max.saturating_sub(open);
        let chosen = self.entries.iter().filter(|(_, state)| {
            let is_undone = *state == State::Undone;
            let has_room = !is_undone || room > 0;
            room = room.saturating_sub(usize::from(is_undone));
            has_room
        });
        (chosen.map(|(entry, _)| *entry).take(max).collect(), open > max)
    }
}

words! {
    /// Whether an entry can be taken back.
    Standing {
        /// Its undo can be made.
        Available = "available",
        /// Its undo could be made until its deadline.
        Expired = "expired",
        /// There is no undo, or it cannot be made.
        Unavailable = "unavailable",
        /// Something came after it: a later entry of what its undo changes, or its effect is gone.
        Superseded = "superseded",
        /// It is not finished.
        UnderWay = "under_way",
        /// It was taken back.
        Undone = "undone",
        /// Nobody knows whether there is anything to take back.
        Unknown = "unknown",
    }
}

/// The call that takes an entry back, in full.
#[derive(Clone)]
pub enum Call {
    /// An HTTP request.
    Http {
        /// Its method.
        method: Method,
        /// Path and query, without the upstream's base path.
        target: String,
        /// Its headers, `Content-Type` among them where there is a body.
        headers: Vec<(HeaderName, HeaderValue)>,
        /// Its body.
        body: Option<String>,
    },
    /// A tool's call.
    Tool {
        /// The tool.
        name: String,
        /// Its arguments, a JSON object.
        arguments: String,
    },
}

impl std::fmt::Debug for Call {
    /// Shows no value: arguments never reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Call(..)")
    }
}

/// One entry of a plan.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The entry.
    pub record: Record,
    /// Whether it can be taken back.
    pub standing: Standing,
    /// Why not, for people; holds no value of the call.
    pub why: Option<String>,
    /// How the call takes the effect back.
    pub kind: Option<UndoKind>,
    /// Until when; milliseconds since 1970.
    pub deadline_ms: Option<i64>,
    /// The call.
    pub call: Option<Call>,
    /// The entry of the call that took it back.
    pub undone_by: Option<EntryId>,
}

impl Planned {
    /// Its undo would not find what the call left.
    pub fn supersede(&mut self, why: String) {
        self.standing = Standing::Superseded;
        self.why = Some(why);
        self.call = None;
    }
}

/// Plans the entries that a [`Choice`] gave, in their order.
pub fn plan(entries: Vec<Shown>, live: &Live, now_ms: i64) -> Vec<Planned> {
    entries.into_iter().map(|shown| one(shown, live, now_ms)).collect()
}

/// The entry of the call that took this one back: what the step says in which it became undone.
pub fn undone_by(shown: &Shown) -> Option<EntryId> {
    let step = shown.history.iter().rev().find(|step| step.cause == Some(Cause::Undone))?;
    EntryId::parse(step.why.as_deref()?)
}

fn one(shown: Shown, live: &Live, now_ms: i64) -> Planned {
    let undone_by = undone_by(&shown);
    let mut planned = Planned {
        record: shown.record,
        standing: Standing::Unavailable,
        why: None,
        kind: None,
        deadline_ms: None,
        call: None,
        undone_by: None,
    };
    match planned.record.prior.state {
        State::Begun => {
            planned.standing = Standing::UnderWay;
            planned.why = Some("its answer is awaited".to_owned());
        }
        State::Waiting => {
            planned.standing = Standing::UnderWay;
            planned.why = Some("it waits for its caller or its task".to_owned());
        }
        State::Unknown => {
            planned.standing = Standing::Unknown;
            planned.why = Some(match planned.record.prior.lookup {
                Some(_) => "its answer was lost: `takeback reconcile` looks it up".to_owned(),
                None => "its answer was lost and it has no lookup: look, then `takeback settle`"
                    .to_owned(),
            });
        }
        State::Undone => {
            planned.standing = Standing::Undone;
            planned.undone_by = undone_by;
        }
        State::Accepted | State::Rejected => accepted(&mut planned, live, now_ms),
    }
    planned
}

fn accepted(planned: &mut Planned, live: &Live, now_ms: i64) {
    let record = &planned.record;
    if record.prior.staged {
        planned.why = Some("it was a draft; its report named what throws it away".to_owned());
        return;
    }
    let finish = record.finish.as_ref();
    let undo = finish.and_then(|finish| finish.undo.as_deref());
    let compensate = finish.and_then(|finish| finish.compensate.as_deref());
    let deadline_ms = finish.and_then(|finish| finish.deadline_ms);
    let no_undo = || {
        let said = finish.and_then(|finish| finish.undo_unavailable.clone());
        said.unwrap_or_else(|| match finish {
            Some(_) => format!("its class is {}, and it has no undo", record.class.as_str()),
            None => "its sidecar died under it, and noted no undo".to_owned(),
        })
    };
    // The undo as it was reported; where its time is over, the compensation that stood beside it.
    let is_expired = undo.is_some() && is_passed(deadline_ms, now_ms);
    let offered = match (undo, compensate) {
        (Some(undo), _) if !is_expired => Some((undo, deadline_ms)),
        (_, Some(compensate)) => Some((compensate, deadline_of(compensate))),
        (Some(_) | None, None) => None,
    };
    planned.deadline_ms = deadline_ms;
    let Some((kept, deadline_ms)) = offered else {
        if is_expired {
            planned.standing = Standing::Expired;
            planned.why = Some("deadline passed".to_owned());
        } else {
            planned.why = Some(no_undo());
        }
        return;
    };
    planned.deadline_ms = deadline_ms;
    if is_passed(deadline_ms, now_ms) {
        planned.standing = Standing::Expired;
        planned.why = Some("deadline passed".to_owned());
        return;
    }
    match rebuilt(kept, record, live) {
        Ok((kind, call)) => {
            planned.kind = Some(kind);
            planned.call = Some(call);
            planned.standing = Standing::Available;
        }
        Err(why) => planned.why = Some(why),
    }
}

fn deadline_of(kept: &str) -> Option<i64> {
    let doc = Doc::parse(kept.to_owned()).ok()?;
    doc.root().get("deadline_ms")?.raw().parse().ok()
}

/// Builds the call again that a report offered. `Err` says why it cannot be.
fn rebuilt(kept: &str, record: &Record, live: &Live) -> Result<(UndoKind, Call), String> {
    let unreadable = || "the undo that the entry kept cannot be read".to_owned();
    let kept = Doc::parse(kept.to_owned()).map_err(|_| unreadable())?;
    let kept = kept.root();
    let kind = match kept.get("kind").and_then(Value::as_str).as_deref() {
        Some(kind) => UndoKind::from_name(kind).ok_or_else(unreadable)?,
        None => UndoKind::Compensate,
    };
    let operation = &record.prior.operation;
    let served = live.snapshot.operation(operation);
    let served = served.ok_or_else(|| format!("{operation} is no longer declared"))?;
    let declared = match kind {
        UndoKind::Inverse => served.operation.inverse.as_ref(),
        UndoKind::Compensate => served.operation.compensate.as_ref(),
    };
    let other = || format!("{operation} declares another undo than when it was called");
    let declared = declared.ok_or_else(other)?;
    let named = kept.get("operation").and_then(Value::as_str);
    if named.as_deref() != Some(declared.reference.operation.as_str()) {
        return Err(other());
    }
    let call = filled(declared, kept, other)?;
    is_what_it_says(&live.snapshot, &declared.reference, &call).map_err(|why| why.to_string())?;
    let offered = CallJson::undo(kind, &call);
    if !goes_there(kept, &offered) {
        return Err(format!(
            "{} goes elsewhere than when the undo was offered",
            declared.reference.operation
        ));
    }
    Ok((kind, into_call(call, declared.reference.body_type)))
}

/// Whether a call has the tool, or the method and path, of the one that was offered.
fn goes_there(kept: Value<'_>, call: &CallJson) -> bool {
    let Ok(call) = Doc::parse(call.as_json().to_owned()) else { return false };
    let same = |name: &str| {
        let text = |value: Value<'_>| value.get(name).map(Value::raw).map(str::to_owned);
        text(kept) == text(call.root())
    };
    same("tool") && same("http")
}

/// The declared follow-up with the values that the entry kept.
fn filled(
    declared: &FollowUp,
    kept: Value<'_>,
    other: impl Fn() -> String,
) -> Result<Resolved, String> {
    let arguments = kept.get("arguments").ok_or_else(&other)?;
    let mut known = 0_usize;
    let mut filled = Vec::with_capacity(declared.arguments.len());
    for argument in &declared.arguments {
        let Some(value) = arguments.get(&argument.name) else { continue };
        known = known.saturating_add(1);
        let literal = Doc::parse(value.raw().to_owned()).map_err(|_| other())?;
        filled.push(Argument { mapping: Mapping::Const(Arc::new(literal)), ..argument.clone() });
    }
    // What the sidecar added to the declared arguments, where the resource names its states.
    let is_declared = declared.arguments.iter().any(|argument| argument.name == IF_UNCHANGED);
    let tag = arguments.get(IF_UNCHANGED).filter(|_| !is_declared).and_then(Value::as_str);
    known = known.saturating_add(usize::from(tag.is_some()));
    if known != arguments.members().count() {
        return Err(other());
    }
    let call = FollowUp { arguments: filled, deadline: None, ..declared.clone() };
    let scope = Scope { before: None, request: Request::Unreadable, response: None, key: None };
    let mut call = resolve(&call, &scope, 0, &[]).map_err(|why| why.to_string())?;
    if let Some(tag) = tag {
        let tag = HeaderValue::from_str(&tag).map_err(|_| other())?;
        call.headers.push((http::header::IF_MATCH, tag));
    }
    Ok(call)
}

fn into_call(call: Resolved, body_type: BodyType) -> Call {
    let arguments = call.arguments_json();
    match (call.tool, call.http) {
        (None, Some((method, target))) => {
            let mut headers = call.headers;
            if call.body.is_some() {
                let kind = HeaderValue::from_static(media_type(body_type));
                headers.push((http::header::CONTENT_TYPE, kind));
            }
            Call::Http { method, target, headers, body: call.body }
        }
        (tool, _) => Call::Tool { name: tool.unwrap_or_default(), arguments },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u8) -> EntryId {
        EntryId::from_bytes([number; 16])
    }

    /// Entries, newest first: their numbers, states and takers.
    fn newest(entries: &[(u8, State, Option<u8>)], max: usize) -> (Vec<EntryId>, bool) {
        let mut choice = Choice::default();
        for (number, state, taker) in entries {
            choice.add(entry(*number), *state, taker.map(entry));
        }
        assert_eq!(choice.len(), entries.len());
        choice.newest(max)
    }

    #[test]
    fn c_12_what_takes_back_is_no_write_of_the_task_however_many_came_between() {
        use State::{Accepted, Rejected, Undone, Unknown};
        let entries = [
            (9, Accepted, None),
            (8, Accepted, None),
            (7, Accepted, None),
            (6, Rejected, None),
            (5, Unknown, None),
            (4, Undone, Some(8)),
            (3, Undone, Some(9)),
            (2, Accepted, None),
            (1, Accepted, None),
        ];
        let of = |numbers: &[u8]| numbers.iter().copied().map(entry).collect::<Vec<_>>();
        assert_eq!(newest(&entries, 9), (of(&[7, 5, 4, 3, 2, 1]), false));
        assert_eq!(newest(&entries, 5), (of(&[7, 5, 4, 2, 1]), false));
        assert_eq!(newest(&entries, 4), (of(&[7, 5, 2, 1]), false));
        assert_eq!(newest(&entries, 3), (of(&[7, 5, 2]), true));
        assert_eq!(newest(&[], 3), (of(&[]), false));
        // Made, taken back, made again, taken back, made again.
        let again = [
            (5, Accepted, None),
            (4, Undone, Some(5)),
            (3, Undone, Some(4)),
            (2, Undone, Some(3)),
            (1, Undone, Some(2)),
        ];
        assert_eq!(newest(&again, 9), (of(&[5, 3, 1]), false));
    }
}
