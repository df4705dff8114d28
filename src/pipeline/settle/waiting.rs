//! Calls that are not over with what their own request was answered.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use super::Case;
use crate::ledger::Cause;
use crate::mcp::answer::{Answer, Kind};
use crate::mcp::jsonrpc::Id;
use crate::mcp::sessions::SessionKey;
use crate::pipeline::Shared;
use crate::pipeline::elsewhere::{Ending, Parked, TaskKey};

/// How long a client is waited for: to fetch an answer, or for its next round. An answer is not
/// waited for beyond the absolute clock of calls.
const CLIENT: Duration = Duration::from_secs(10 * 60);

/// How long a task is waited for whose handle does not say.
const TASK: Duration = Duration::from_secs(60 * 60);

/// How long a task is waited for at most.
const LONGEST_TASK: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a task's result is waited for after its time is over.
const GRACE: Duration = Duration::from_secs(60);

/// Keeps a call open whose stream ended early: its answer comes on a later GET, or never.
pub(super) fn park_stream(case: &Arc<Case>, session: SessionKey, id: Id, headers: HeaderMap) {
    let shared = Arc::clone(&case.shared);
    shared.mcp.elsewhere.park(session.clone(), id.clone(), parked(case, headers));
    let waiter = Arc::clone(&shared);
    let wait = CLIENT.min(shared.settings.timeouts.total);
    let _detached = shared.tasks.spawn_background("parked answer", async move {
        tokio::time::sleep(wait).await;
        waiter.mcp.elsewhere.expire(&session, &id);
    });
}

/// Keeps a call open that the upstream answered with a handle or a question.
pub(super) fn park(case: &Arc<Case>, answer: &Answer, headers: &HeaderMap) {
    let shared = Arc::clone(&case.shared);
    let waiter = Arc::clone(&shared);
    if let (Kind::Task, Some(task)) = (answer.kind(), answer.task_id()) {
        let key = TaskKey::new(&case.write().principal.id, &task);
        let wait = answer.task_ttl_ms().map_or(TASK, Duration::from_millis);
        let wait = wait.min(LONGEST_TASK).saturating_add(GRACE);
        shared.mcp.elsewhere.park_task(key.clone(), parked(case, headers.clone()));
        let _detached = shared.tasks.spawn_background("task", async move {
            tokio::time::sleep(wait).await;
            waiter.mcp.elsewhere.end_task(&key, Ending::Expired);
        });
        return;
    }
    let ended = Arc::clone(case);
    let entry = case.identity.entry;
    let attempt = case.identity.attempt;
    let at_end = Box::new(move || drop(ended.settle_lost(Cause::Timeout)));
    shared.mcp.elsewhere.park_entry(entry, attempt, at_end);
    let _detached = shared.tasks.spawn_background("next round", async move {
        tokio::time::sleep(CLIENT).await;
        if let Some(at_end) = waiter.mcp.elsewhere.expire_entry(entry, attempt) {
            at_end();
        }
    });
}

/// Entries that are taken up again at most.
const MAX_REARMED: usize = 8192;

/// Takes up the entries that waited when an earlier process ended: nobody can settle them with an
/// answer any more, but a client's next round may still come; what does not end in time is unknown.
pub async fn rearm(shared: &Arc<Shared>) {
    let records = match shared.ledger.waiting(MAX_REARMED).await {
        Ok(records) => records,
        Err(error) => {
            tracing::warn!(%error, "entries that wait could not be read: they wait on");
            return;
        }
    };
    for record in records {
        let prior = record.prior;
        let wait = if prior.cause == Some(Cause::Task) { TASK } else { CLIENT };
        let since_ms = prior.finished_ms.unwrap_or(prior.began_ms);
        let passed_ms = shared.clock.now_ms().saturating_sub(since_ms);
        let passed = Duration::from_millis(u64::try_from(passed_ms).unwrap_or(0));
        let (entry, attempt) = (prior.entry, prior.attempt);
        let finisher = Arc::clone(shared);
        let at_end = Box::new(move || super::finish_expired(&finisher, entry, attempt));
        let left = wait.saturating_sub(passed);
        if left.is_zero() {
            at_end();
            continue;
        }
        shared.mcp.elsewhere.park_entry(entry, attempt, at_end);
        let waiter = Arc::clone(shared);
        let _detached = shared.tasks.spawn_background("waiting entry", async move {
            tokio::time::sleep(left).await;
            if let Some(at_end) = waiter.mcp.elsewhere.expire_entry(entry, attempt) {
                at_end();
            }
        });
    }
}

fn parked(case: &Arc<Case>, headers: HeaderMap) -> Parked {
    let answered = Arc::clone(case);
    let ended = Arc::clone(case);
    Parked {
        at_answer: Box::new(move |answer| answered.settle_tool(answer, &headers).to_json()),
        at_end: Box::new(move |ending| {
            let report = match ending {
                Ending::Completed => ended.settle_unseen(),
                Ending::Expired => ended.settle_lost(Cause::Timeout),
                Ending::Cancelled | Ending::Failed => ended.settle_lost(Cause::Task),
            };
            report.to_json()
        }),
    }
}
