//! Settling unknown entries by their lookups: the read that finds the effect when its answer was lost.
//!
//! A lookup's answer says one of four things: found once, absent, found more than once, could not
//! tell. Found settles the entry as accepted. Absent settles it as rejected only where the policy says
//! how long the upstream may take to show an effect (`settle_ms`), only after that time has passed
//! since the request could last act, and only if it is the answer twice. The other two settle nothing:
//! they are a person's to decide (`takeback settle`).
//!
//! The lookup is made from what the entry kept of the request, under the operation that is declared
//! at that moment; an entry whose operation or lookup is no longer declared so is left alone. It carries the headers of
//! `upstream.headers_file` and no caller's: none are kept. Limits: [`AT_ONCE`] entries per run, oldest
//! first; HTTP lookups only; the answer as long as any that is settled. It follows no redirect.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};

use super::Shared;
use super::live::Live;
use crate::call::payload::{self, Body};
use crate::contract::assertion::{Passed, evaluate};
use crate::contract::class::{Outcome, Verdict, words};
use crate::contract::json::{Doc, Kind, Value};
use crate::contract::key::{EntryId, OperationId};
use crate::contract::operation::{Lookup, LookupBy, Operation, Slot};
use crate::contract::path::{self, Path, Segment};
use crate::contract::selector::Evidence;
use crate::http::body::{essence, is_json};
use crate::ledger::{LedgerError, Record, State};
use crate::metrics::ReconcileResult;
use crate::upstream::{Clocks, Sent, Upstream};

/// How many entries one run looks up. The next run takes the next ones only once these are settled,
/// so a run should be preceded by a look at what it said.
pub const AT_ONCE: usize = 256;

/// How long a run makes lookups; entries that it has not come to by then are told as such. Whoever
/// asked for it is waiting.
pub const RUN: Duration = Duration::from_secs(300);

/// The longest that one lookup takes, whatever the clocks of calls are: it is a read of one thing.
const LOOKUP: Duration = Duration::from_secs(30);

/// Who settles, in the history.
const WHO: &str = "lookup";

words! {
    /// What a run did with an entry.
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

/// One entry of a run.
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

/// Looks up each unknown entry once, and settles those whose lookup can tell.
///
/// # Errors
///
/// [`LedgerError::Unavailable`] if the entries cannot be read.
///
/// # Cancel safety
///
/// Dropping it leaves the entries that it has not come to as they are.
pub async fn reconcile_once(
    shared: &Shared,
    upstream: &Upstream,
) -> Result<Vec<Reconciled>, LedgerError> {
    let began = shared.clock.instant();
    let mut run = Vec::new();
    for record in shared.ledger.unknowns(AT_ONCE).await? {
        let is_over = shared.clock.instant().saturating_duration_since(began) >= RUN;
        let reconciled = if is_over {
            let (entry, operation) = (record.prior.entry, record.prior.operation);
            let why = "not looked up: the time of this run was over".to_owned();
            Reconciled { entry, operation, conclusion: Conclusion::Inconclusive, why }
        } else {
            reconcile(shared, upstream, &record).await
        };
        let Reconciled { entry, operation, conclusion, why } = &reconciled;
        tracing::info!(%entry, %operation, conclusion = conclusion.as_str(), why, "looked up");
        run.push(reconciled);
    }
    Ok(run)
}

async fn reconcile(shared: &Shared, upstream: &Upstream, record: &Record) -> Reconciled {
    let entry = record.prior.entry;
    let live = shared.policies.load();
    let served = live.snapshot.operation(&record.prior.operation).cloned();
    let asked = match &served {
        None => Err(Told::none("the operation is no longer declared")),
        Some(served) => ask(shared, upstream, &live, record, &served.operation).await,
    };
    let told = asked.unwrap_or_else(|told| told);
    if let Some(metrics) = served.and_then(|served| live.metrics(&served)) {
        metrics.reconciliations.count(told.result);
    }
    let (conclusion, why) = match told.settle {
        None => (told.conclusion, told.why),
        Some(outcome) => {
            let now_ms = shared.clock.now_ms();
            match shared.ledger.settle(entry, outcome, WHO, &told.why, now_ms).await {
                Ok(settled) if settled.state == State::Accepted => (Conclusion::Accepted, told.why),
                Ok(_) => (Conclusion::Rejected, told.why),
                Err(error) => (Conclusion::NotRecorded, error.to_string()),
            }
        }
    };
    Reconciled { entry, operation: record.prior.operation.clone(), conclusion, why }
}

/// What a lookup said, and what follows.
struct Told {
    conclusion: Conclusion,
    result: ReconcileResult,
    settle: Option<Outcome>,
    why: String,
}

impl Told {
    fn none(why: impl Into<String>) -> Self {
        let (conclusion, result) = (Conclusion::NoLookup, ReconcileResult::NoLookup);
        Self { conclusion, result, settle: None, why: why.into() }
    }

    fn inconclusive(why: impl Into<String>) -> Self {
        let (conclusion, result) = (Conclusion::Inconclusive, ReconcileResult::Inconclusive);
        Self { conclusion, result, settle: None, why: why.into() }
    }
}

/// Makes an entry's lookup. `Err` is what is told instead of an answer.
async fn ask(
    shared: &Shared,
    upstream: &Upstream,
    live: &Live,
    record: &Record,
    operation: &Operation,
) -> Result<Told, Told> {
    let lookup =
        operation.lookup.as_ref().ok_or_else(|| Told::none("the operation declares no lookup"))?;
    let kept =
        record.prior.lookup.as_deref().ok_or_else(|| {
            Told::none("the call left nothing that its lookup could be made from")
        })?;
    let kept = Doc::parse(kept.to_owned())
        .map_err(|_| Told::none("the lookup that the entry kept cannot be read"))?;
    let target = target(kept.root(), lookup)?;
    let name = &lookup.reference.operation;
    if !is_what_it_says(live, &target, name) {
        return Err(Told::inconclusive(format!("its call would not be {name}")));
    }
    match look(shared, upstream, &target, operation, lookup).await? {
        Answer::Found => Ok(Told {
            conclusion: Conclusion::Accepted,
            result: ReconcileResult::Found,
            settle: Some(Outcome::Accepted),
            why: format!("{name} found the effect"),
        }),
        Answer::Many(count) => Ok(Told {
            conclusion: Conclusion::FoundMany,
            result: ReconcileResult::Inconclusive,
            settle: None,
            why: format!("{name} found {count} effects where one was to be; a person must look"),
        }),
        Answer::Absent => absent(shared, upstream, record, operation, lookup, &target).await,
    }
}

/// What follows from an answer that nothing is there.
async fn absent(
    shared: &Shared,
    upstream: &Upstream,
    record: &Record,
    operation: &Operation,
    lookup: &Lookup,
    target: &LookupTarget,
) -> Result<Told, Told> {
    let name = &lookup.reference.operation;
    let told = |settle, why| {
        let conclusion = Conclusion::Absent;
        Told { conclusion, result: ReconcileResult::NotFound, settle, why }
    };
    let Some(settle_ms) = lookup.settle_ms else {
        let why = format!("{name} found nothing, which settles nothing without `settle_ms`");
        return Ok(told(None, why));
    };
    // The last moment at which the request could act, and then the time the upstream may take to show it.
    let total_ms = operation.timeouts.total_ms.map_or_else(
        || i64::try_from(shared.settings.timeouts.total.as_millis()).unwrap_or(i64::MAX),
        |total_ms| i64::try_from(total_ms).unwrap_or(i64::MAX),
    );
    let counts_from = record
        .attempted_ms
        .saturating_add(total_ms)
        .saturating_add(i64::try_from(settle_ms).unwrap_or(i64::MAX));
    let left_ms = counts_from.saturating_sub(shared.clock.now_ms());
    if left_ms > 0 {
        let left_s = left_ms.saturating_add(999) / 1000;
        let why = format!("{name} found nothing, which counts in {left_s} s");
        return Ok(told(None, why));
    }
    match look(shared, upstream, target, operation, lookup).await? {
        Answer::Absent => {
            let why = format!("{name} found nothing, twice, after the time it may take");
            Ok(told(Some(Outcome::Rejected), why))
        }
        Answer::Found | Answer::Many(_) => {
            Err(Told::inconclusive(format!("{name} found nothing, and then something")))
        }
    }
}

/// The request that an entry's lookup is.
#[derive(Debug)]
struct LookupTarget {
    path_and_query: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Takes the target out of what the entry kept, if the policy still means the same by it.
fn target(kept: Value<'_>, lookup: &Lookup) -> Result<LookupTarget, Told> {
    let text = |value: Option<Value<'_>>| value.and_then(Value::as_str).map(|s| s.into_owned());
    let is_same = text(kept.get("operation")).as_deref()
        == Some(lookup.reference.operation.as_str())
        && text(kept.get("by")).as_deref() == Some(lookup.by.as_str());
    if !is_same {
        return Err(Told::none("the operation declares another lookup than when the entry began"));
    }
    let Some(http) = kept.get("http").filter(|http| !http.is_null()) else {
        let why = "its lookup is a tool's call, which is not made yet";
        return Err(Told::inconclusive(why));
    };
    let is_get = text(http.get("method")).as_deref() == Some(Method::GET.as_str());
    if !is_get {
        return Err(Told::inconclusive("its lookup is no GET, and only a read is made"));
    }
    let path_and_query = text(http.get("path"))
        .ok_or_else(|| Told::none("the lookup that the entry kept cannot be read"))?;
    let mut headers = Vec::new();
    for argument in &lookup.arguments {
        let value = kept.get("arguments").and_then(|arguments| arguments.get(&argument.name));
        let Some(value) = value else { continue };
        match &argument.slot {
            Slot::Header(name) => {
                let value = value.as_str().map_or_else(|| value.raw().to_owned(), Into::into);
                let value = HeaderValue::from_str(&value)
                    .map_err(|_| Told::inconclusive("a header of its lookup cannot be written"))?;
                headers.push((name.clone(), value));
            }
            Slot::Body(_) => {
                return Err(Told::inconclusive("its lookup has a body, which a read has not"));
            }
            Slot::Argument(_) | Slot::Path(_) | Slot::Query(_) => {}
        }
    }
    Ok(LookupTarget { path_and_query, headers })
}

/// A built call is matched again: one that is another operation's is not made (contract section 2).
fn is_what_it_says(live: &Live, target: &LookupTarget, wanted: &OperationId) -> bool {
    let path = target.path_and_query.split('?').next().unwrap_or_default();
    let found = live.snapshot.find_http(&Method::GET, path);
    let mut served = found.groups().iter().flat_map(|group| &group.operations);
    served.any(|served| served.operation.id == *wanted)
}

/// Whether the effect is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Nothing.
    Absent,
    /// It, once.
    Found,
    /// It, or what looks like it, so often.
    Many(usize),
}

/// Sends the lookup once and reads its answer. `Err`: it could not tell.
async fn look(
    shared: &Shared,
    upstream: &Upstream,
    target: &LookupTarget,
    operation: &Operation,
    lookup: &Lookup,
) -> Result<Answer, Told> {
    let name = &lookup.reference.operation;
    let unsure = |what: &str| Told::inconclusive(format!("{name} could not tell: {what}"));
    let failed = |what: &str| Told {
        result: ReconcileResult::Error,
        ..Told::inconclusive(format!("{name} failed: {what}"))
    };
    let request = request(shared, target).map_err(|_| unsure("its request cannot be written"))?;
    let timeouts = &shared.settings.timeouts;
    let clocks = Clocks {
        connect: timeouts.connect,
        head: timeouts.head.min(LOOKUP),
        idle: Some(timeouts.idle.min(LOOKUP)),
        total: Some(timeouts.total.min(LOOKUP)),
    };
    let began = shared.clock.instant();
    let sent = upstream.send(request, &clocks).await;
    let elapsed = shared.clock.instant().saturating_duration_since(began);
    let [_, lookups] = &shared.metrics.common().upstream_duration;
    lookups.record(elapsed.as_secs_f64());
    let answer = match sent {
        Sent::Answer(answer) => answer,
        Sent::Lost(reason) => return Err(failed(&reason.to_string())),
        Sent::NotSent(reason) => return Err(failed(&reason.to_string())),
    };
    let (parts, body) = answer.into_parts();
    let limit = shared.settings.limits.response_body_bytes;
    let body = payload::collect(body, limit, &shared.budget, timeouts.idle)
        .await
        .map_err(|error| failed(&error.to_string()))?;
    let found = Found { status: parts.status.as_u16(), headers: &parts.headers };
    interpret(operation, lookup, &found, body.bytes()).map_err(|what| unsure(&what))
}

fn request(shared: &Shared, target: &LookupTarget) -> Result<Request<Body>, http::Error> {
    let settings = &shared.settings;
    let uri = format!("{}{}", settings.upstream_base, target.path_and_query);
    let mut request = Request::builder()
        .method(Method::GET)
        .uri(uri)
        .header(header::HOST, settings.upstream_authority.as_str())
        .header(header::ACCEPT, "application/json")
        // A coded answer would be read by nobody here.
        .header(header::ACCEPT_ENCODING, "identity")
        .header(header::USER_AGENT, concat!("takeback/", env!("CARGO_PKG_VERSION")))
        .body(Body::empty())?;
    for (name, value) in &target.headers {
        request.headers_mut().insert(name.clone(), value.clone());
    }
    settings.upstream_headers.put(request.headers_mut());
    Ok(request)
}

/// The head of a lookup's answer.
struct Found<'a> {
    status: u16,
    headers: &'a HeaderMap,
}

/// What a lookup's answer says; `Err`: it cannot tell, because.
fn interpret(
    operation: &Operation,
    lookup: &Lookup,
    found: &Found<'_>,
    body: &bytes::Bytes,
) -> Result<Answer, String> {
    match found.status {
        404 | 410 => return Ok(Answer::Absent),
        200..=299 => {}
        status => return Err(format!("the answer's status is {status}")),
    }
    if !is_json(essence(found.headers)) || found.headers.contains_key(header::CONTENT_ENCODING) {
        return Err("the answer is not JSON".to_owned());
    }
    let doc =
        Doc::parse(body.clone()).map_err(|error| format!("the answer cannot be read: {error}"))?;
    let (value, hits) = match &lookup.empty {
        None => (doc.root(), doc.root()),
        Some(path) => {
            let value = walk(path, doc.root())
                .ok_or_else(|| format!("the answer has nothing at {path}"))?;
            // What is not a list or an object only says that something is there.
            let is_container = matches!(value.kind(), Kind::Array | Kind::Object);
            (value, if is_container { value } else { doc.root() })
        }
    };
    let count = match value.kind() {
        Kind::Null => 0,
        Kind::String if value.as_str().is_some_and(|text| text.is_empty()) => 0,
        Kind::Object if value.members().next().is_none() => 0,
        Kind::Array => count(lookup, found, hits)?,
        Kind::Object | Kind::String => match judge(lookup, found, hits) {
            Hit::Is => 1,
            Hit::IsNot => 0,
            Hit::Lacks | Hit::Unreadable => {
                return Err("the answer lacks what `match` reads".to_owned());
            }
        },
        Kind::Bool | Kind::Number => return Err("the answer is no list and no object".to_owned()),
    };
    // A page that is not the last says nothing about what is not on it.
    if count <= 1 && value.kind() == Kind::Array && has_next_page(found.headers) {
        return Err("the answer is one page of several".to_owned());
    }
    match count {
        0 => Ok(Answer::Absent),
        _ if !is_proof(operation, lookup) => {
            let what = "a hit by the request's data may be another call's; \
                        declare `match` or `upstream_id`";
            Err(what.to_owned())
        }
        1 => Ok(Answer::Found),
        many => Ok(Answer::Many(many)),
    }
}

/// Whether a hit is this call's effect (contract section 9, `lookup`).
fn is_proof(operation: &Operation, lookup: &Lookup) -> bool {
    match lookup.by {
        LookupBy::IdempotencyKey => true,
        LookupBy::Id => !lookup.matches.is_empty() || operation.upstream_id.is_some(),
    }
}

/// How one value stands to `match`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hit {
    Is,
    IsNot,
    /// It has no such member.
    Lacks,
    /// It has another form than `match` can compare.
    Unreadable,
}

fn judge(lookup: &Lookup, found: &Found<'_>, value: Value<'_>) -> Hit {
    if lookup.matches.is_empty() {
        return Hit::Is;
    }
    // The value as a document of its own: pointers of `match` start at it.
    let Ok(doc) = Doc::parse(value.raw().to_owned()) else { return Hit::Unreadable };
    let evaluation = evaluate(
        &lookup.matches,
        &Evidence {
            status: found.status,
            headers: found.headers,
            response: Some(doc.root()),
            request: path::Request::Unreadable,
        },
    );
    let has = |wanted: Passed| evaluation.results.iter().any(|(_, outcome)| *outcome == wanted);
    match evaluation.verdict {
        Verdict::Verified => Hit::Is,
        Verdict::Contradicted => Hit::IsNot,
        Verdict::Inconclusive if has(Passed::Invalid) => Hit::Unreadable,
        Verdict::Inconclusive => Hit::Lacks,
    }
}

/// How many elements of a list are the effect. One that lacks what `match` reads is another thing;
/// one that cannot be compared could be it.
fn count(lookup: &Lookup, found: &Found<'_>, list: Value<'_>) -> Result<usize, String> {
    let mut count: usize = 0;
    for element in list.elements() {
        match judge(lookup, found, element) {
            Hit::Is => count = count.saturating_add(1),
            Hit::IsNot | Hit::Lacks => {}
            Hit::Unreadable => return Err("an element cannot be held against `match`".to_owned()),
        }
    }
    Ok(count)
}

/// The value at a path, `null` too; `None` if the answer has nothing there.
fn walk<'a>(path: &Path, root: Value<'a>) -> Option<Value<'a>> {
    let mut value = root;
    for segment in &path.segments {
        value = match segment {
            Segment::Index(index) => value.at(*index)?,
            Segment::Name(name) => value.get(name)?,
        };
    }
    Some(value)
}

/// Whether a `Link` header names a next page (RFC 8288).
fn has_next_page(headers: &HeaderMap) -> bool {
    headers.get_all(header::LINK).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        let value = value.to_ascii_lowercase();
        value.contains("rel=next") || value.contains("rel=\"next\"")
    })
}

#[cfg(test)]
mod tests;
