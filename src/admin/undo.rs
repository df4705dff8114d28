//! The admin routes that `takeback undo` is made of: the plan of a task, and the word that an entry was
//! taken back by a call of another principal.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Extension, Path, RawQuery, State};
use axum::response::Response;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::value::RawValue;

use super::auth::Who;
use super::entries::time;
use super::{Admin, Failure, MAX_TEXT, answer, entry_of, read, whole};
use crate::contract::json::Doc;
use crate::contract::key::EntryId;
use crate::ledger::{self, Filter, LedgerError, ReadOnly, Record, Shown};
use crate::pipeline::reconcile::is_gone;
use crate::pipeline::undo::{
    Call, Choice, MAX_ENTRIES, MAX_READ, Planned, Standing, plan, undone_by,
};

#[derive(Serialize)]
struct PlanJson {
    task: String,
    /// Whether the task has older entries than these.
    truncated: bool,
    entries: Vec<PlannedJson>,
}

#[derive(Serialize)]
struct PlannedJson {
    entry: String,
    standing: &'static str,
    why: Option<String>,
    class: &'static str,
    operation: String,
    target: String,
    began_at: String,
    principal: String,
    key: String,
    kind: Option<&'static str>,
    deadline_ms: Option<i64>,
    undone_by: Option<String>,
    lookup: Option<Box<RawValue>>,
    call: Option<CallJson>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum CallJson {
    Http { method: String, target: String, headers: Vec<[String; 2]>, body: Option<String> },
    Tool { tool: String, arguments: Option<Box<RawValue>> },
}

impl From<Planned> for PlannedJson {
    fn from(planned: Planned) -> Self {
        let prior = &planned.record.prior;
        Self {
            entry: prior.entry.to_string(),
            standing: planned.standing.as_str(),
            why: planned.why,
            class: planned.record.class.as_str(),
            operation: prior.operation.as_str().to_owned(),
            target: planned.record.target.clone(),
            began_at: time(prior.began_ms),
            principal: prior.principal.id.clone(),
            // Standards C-12. By the entry: callers of two principals may have one key.
            key: format!("{}-undo", prior.entry),
            kind: planned.kind.map(|kind| kind.as_str()),
            deadline_ms: planned.deadline_ms,
            undone_by: planned.undone_by.map(|entry| entry.to_string()),
            lookup: prior.lookup.clone().and_then(|text| RawValue::from_string(text).ok()),
            call: planned.call.map(Into::into),
        }
    }
}

impl From<Call> for CallJson {
    fn from(call: Call) -> Self {
        match call {
            Call::Http { method, target, headers, body } => {
                // The values were JSON text of the call: what is no ASCII was refused before.
                let text = |value: &http::HeaderValue| {
                    String::from_utf8_lossy(value.as_bytes()).into_owned()
                };
                let headers =
                    headers.iter().map(|(name, value)| [name.to_string(), text(value)]).collect();
                Self::Http { method: method.to_string(), target, headers, body }
            }
            Call::Tool { name, arguments } => {
                Self::Tool { tool: name, arguments: RawValue::from_string(arguments).ok() }
            }
        }
    }
}

/// How long a plan's effects are looked for; whoever asked for the plan is waiting.
const LOOKS: Duration = Duration::from_secs(20);

/// How many of its effects are looked for, the newest.
const MAX_LOOKS: usize = 64;

/// An effect that its own lookup does not show any more is not there to be taken back.
async fn look(admin: &Admin, planned: &mut [Planned]) {
    let available = planned.iter_mut().filter(|planned| planned.standing == Standing::Available);
    for planned in available.take(MAX_LOOKS) {
        if is_gone(&admin.fetch, &planned.record).await {
            planned.supersede("its lookup does not show its effect any more".to_owned());
        }
    }
}

/// `GET /api/v1/undo?task=T`
pub(super) async fn planned(
    State(admin): State<Arc<Admin>>,
    RawQuery(query): RawQuery,
) -> Response {
    answer(of_task(&admin, query.as_deref().unwrap_or_default()).await)
}

async fn of_task(admin: &Admin, query: &str) -> Result<PlanJson, Failure> {
    let form = || Failure::request("a plan takes `task`, percent-encoded, and perhaps one `entry`");
    let (mut task, mut entry) = (None, None);
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("task", value)) if task.is_none() && !value.is_empty() => task = Some(value),
            Some(("entry", value)) if entry.is_none() => {
                entry = Some(EntryId::parse(value).ok_or_else(form)?);
            }
            _ => return Err(form()),
        }
    }
    let task = percent_decode_str(task.ok_or_else(form)?).decode_utf8().map_err(|_| form())?;
    let task = task.into_owned();
    if task.chars().count() > MAX_TEXT {
        return Err(form());
    }
    let of_it = Filter { task: Some(task.clone()), limit: PAGE, ..Filter::default() };
    let reading = move |ledger: &ReadOnly| match entry {
        None => chosen(ledger, of_it),
        Some(entry) => {
            let shown = ledger.show(entry)?.filter(|shown| shown.record.task == of_it.task);
            Ok(Some((shown.into_iter().collect(), false)))
        }
    };
    let Some((shown, truncated)) = read(admin, reading).await? else {
        return Err(Failure::request(format!(
            "the task has more than {MAX_READ} entries, too many for a plan: take them back by the \
             `undo` of their reports (`takeback ledger show`)"
        )));
    };
    let live = admin.shared.policies.load();
    let mut planned = plan(shown, &live, admin.shared.clock.now_ms());
    let obstacles = admin.shared.ledger.obstacles(planned.iter().map(as_asked).collect()).await?;
    for planned in &mut planned {
        if let Some(obstacle) = obstacles.get(&planned.record.prior.entry) {
            planned.supersede(obstacle.to_string());
        }
    }
    // Dropping what is not looked up in time leaves it as the ledger knows it.
    let _in_time = tokio::time::timeout(LOOKS, look(admin, &mut planned)).await;
    Ok(PlanJson { task, truncated, entries: planned.into_iter().map(Into::into).collect() })
}

/// Entries of a task that are read at once.
const PAGE: usize = 1000;

/// The entries of a task that its plan holds, and whether there are more; `None` if there are too many.
fn chosen(
    ledger: &ReadOnly,
    mut filter: Filter,
) -> Result<Option<(Vec<Shown>, bool)>, LedgerError> {
    let mut choice = Choice::default();
    loop {
        let page = ledger.list(&filter)?;
        for Record { prior, .. } in &page {
            let is_undone = prior.state == ledger::State::Undone;
            let shown = if is_undone { ledger.show(prior.entry)? } else { None };
            choice.add(prior.entry, prior.state, shown.as_ref().and_then(undone_by));
        }
        if choice.len() > MAX_READ {
            return Ok(None);
        }
        match page.last() {
            Some(last) if page.len() == PAGE => filter.before = Some(last.prior.entry),
            Some(_) | None => break,
        }
    }
    let (entries, is_more) = choice.newest(MAX_ENTRIES);
    let mut shown = Vec::with_capacity(entries.len());
    for entry in entries {
        // One that is gone by now was not there when the plan was made.
        shown.extend(ledger.show(entry)?);
    }
    Ok(Some((shown, is_more)))
}

/// What the ledger is asked of an entry of a plan.
fn as_asked(planned: &Planned) -> ledger::Planned {
    let entry = planned.record.prior.entry;
    match planned.standing {
        Standing::Available => ledger::Planned::Taken(entry),
        Standing::Undone => ledger::Planned::Undone(entry),
        Standing::Expired
        | Standing::Superseded
        | Standing::Unavailable
        | Standing::UnderWay
        | Standing::Unknown => ledger::Planned::Left(entry),
    }
}

#[derive(Serialize)]
struct UndoneJson {
    entry: String,
    state: &'static str,
}

/// `POST /api/v1/entries/{id}/undone` `{"by": ENTRY}`
pub(super) async fn undone(
    State(admin): State<Arc<Admin>>,
    id: Result<Path<String>, PathRejection>,
    Extension(peer): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let taken = async { took_back(&admin, &entry_of(id)?, peer, whole(body)?).await };
    answer(taken.await)
}

async fn took_back(admin: &Admin, id: &str, peer: Who, body: Bytes) -> Result<UndoneJson, Failure> {
    let entry = EntryId::parse(id).ok_or_else(Failure::not_found)?;
    let form = || Failure::request("the body is {\"by\": the entry of the call that took it back}");
    let doc = Doc::parse(body).map_err(|_| form())?;
    let by = doc.root().get("by").filter(|_| doc.root().members().count() == 1);
    let by = by.and_then(|by| EntryId::parse(&by.as_str()?)).ok_or_else(form)?;
    let who = peer.to_string();
    let shared = &admin.shared;
    let settled = shared.ledger.took_back(entry, by, &who, shared.clock.now_ms()).await?;
    tracing::info!(%entry, %by, who, "taken back by another principal's call");
    Ok(UndoneJson { entry: entry.to_string(), state: settled.state.as_str() })
}
