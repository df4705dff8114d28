//! The policy in force, as the admin API shows it, and reading its files again on request.
//!
//! Files are read and compiled by one task of the process, which polls them too; a request here only
//! asks it ([`Ask`]), so that two readings never race for which policy comes into force.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use tokio::sync::oneshot;

use super::entries::time;
use super::{Admin, Failure, answer};
use crate::contract::class::Class;
use crate::contract::operation::{Operation, Target};
use crate::policy::{Change, Diagnostic, Served, Severity, Snapshot, Undeclared};

/// How many requests to reload wait for the one under way; more are told so.
pub const ASKS: usize = 4;

/// A request to read the files again; where what came of it is told.
pub type Ask = oneshot::Sender<Told>;

/// What came of a request to read the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Of the policy's.
    pub reloaded: Reloaded,
    /// Settings of the process that changed, and hold from its next start; or why that would fail.
    pub settings: Result<Vec<&'static str>, String>,
}

/// What came of reading the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// Another policy is in force.
    Applied {
        /// Its revision.
        revision: String,
        /// How many operations it declares.
        operations: usize,
        /// What it protects less than the one before.
        weakened: Vec<Change>,
    },
    /// The files cannot be served; the last good policy stays in force.
    Rejected(Vec<Diagnostic>),
    /// The files changed whenever they were read.
    Restless,
    /// They are those of the policy in force.
    Unchanged {
        /// Its revision.
        revision: String,
    },
}

/// What is known of the policy's files beside the snapshot; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Status {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    applied_ms: i64,
    /// What the check says of the policy in force.
    findings: Vec<Diagnostic>,
    rejected: Option<(i64, Vec<Diagnostic>)>,
}

impl Status {
    /// A policy came into force, with what the check says of it; whatever was rejected before is over.
    pub fn applied(&self, findings: Vec<Diagnostic>, now_ms: i64) {
        *self.lock() = Inner { applied_ms: now_ms, findings, rejected: None };
    }

    /// The files are those of the policy in force again.
    pub fn restored(&self) {
        self.lock().rejected = None;
    }

    /// The files cannot be served.
    pub fn rejected(&self, findings: Vec<Diagnostic>, now_ms: i64) {
        self.lock().rejected = Some((now_ms, findings));
    }

    /// Whether the newest files are rejected.
    pub fn is_rejected(&self) -> bool {
        self.lock().rejected.is_some()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `GET /api/v1/policy`
#[derive(Serialize)]
struct PolicyJson {
    revision: String,
    applied_at: String,
    undeclared: UndeclaredJson,
    operations: Vec<OperationJson>,
    /// What a reviewer should know of it: each with its place.
    findings: Vec<FindingJson>,
    rejected: Option<RejectedJson>,
}

#[derive(Serialize)]
struct UndeclaredJson {
    confirm: String,
    mode: &'static str,
    get: &'static str,
}

#[derive(Serialize)]
struct OperationJson {
    operation: String,
    target: String,
    class: &'static str,
    kind: &'static str,
    confirm: &'static str,
    mode: &'static str,
    evidence: &'static str,
    file: String,
    line: usize,
    /// Why it is served as less than it was declared.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct RejectedJson {
    at: String,
    findings: Vec<FindingJson>,
}

/// One finding; the members are those of `takeback check --format json`.
#[derive(Serialize)]
struct FindingJson {
    code: &'static str,
    severity: &'static str,
    file: String,
    line: usize,
    column: usize,
    operation: Option<String>,
    message: String,
    help: Option<String>,
}

/// One change between two policies.
#[derive(Debug, Serialize)]
pub struct ChangeJson {
    operation: Option<String>,
    what: &'static str,
    /// The target of calls that are another operation's.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    before: String,
    after: String,
    weaker: bool,
}

impl ChangeJson {
    /// From the change.
    pub fn of(change: &Change) -> Self {
        let Change { operation, what, calls_of, before, after, is_weaker } = change;
        Self {
            operation: operation.as_ref().map(|id| id.as_str().to_owned()),
            what,
            target: calls_of.clone(),
            before: before.clone(),
            after: after.clone(),
            weaker: *is_weaker,
        }
    }
}

impl FindingJson {
    fn of(found: &Diagnostic) -> Self {
        Self {
            code: found.code,
            severity: found.severity.as_str(),
            file: found.file.to_string(),
            line: found.line,
            column: found.column,
            operation: found.operation.as_deref().map(str::to_owned),
            message: found.message.clone(),
            help: found.help.clone(),
        }
    }
}

impl OperationJson {
    fn of(served: &Served) -> Self {
        let Operation { id, class, kind, confirm, mode, target, .. } = &served.operation;
        let target = match target {
            Target::Http { method, template } => format!("{method} {template}"),
            Target::Tool { name } => format!("tool {name}"),
        };
        Self {
            operation: id.as_str().to_owned(),
            target,
            class: class.as_str(),
            kind: kind.as_str(),
            confirm: confirm.as_str(),
            mode: mode.as_str(),
            evidence: served.ceiling.as_str(),
            file: served.file.to_string(),
            line: served.line,
            notes: served.notes.clone(),
        }
    }
}

impl PolicyJson {
    fn of(snapshot: &Snapshot, status: &Status) -> Self {
        let Inner { applied_ms, findings, rejected } = &*status.lock();
        let get = if snapshot.undeclared_get_writes() { Class::Irreversible } else { Class::Read };
        let confirm = match snapshot.undeclared() {
            Undeclared::Confirm(level) => level.to_string(),
            Undeclared::Refuse => "refuse".to_owned(),
        };
        Self {
            revision: snapshot.revision().to_hex(),
            applied_at: time(*applied_ms),
            undeclared: UndeclaredJson {
                confirm,
                mode: snapshot.undeclared_mode().as_str(),
                get: get.as_str(),
            },
            operations: snapshot.operations().iter().map(|own| OperationJson::of(own)).collect(),
            findings: findings.iter().map(FindingJson::of).collect(),
            rejected: rejected.as_ref().map(|(at_ms, findings)| RejectedJson {
                at: time(*at_ms),
                findings: findings.iter().map(FindingJson::of).collect(),
            }),
        }
    }
}

pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Response {
    let live = admin.shared.policies.load();
    answer(Ok(PolicyJson::of(&live.snapshot, &admin.policy)))
}

/// `POST /api/v1/reload`
#[derive(Serialize)]
struct ReloadedJson {
    result: &'static str,
    revision: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<usize>,
    weakened: Vec<ChangeJson>,
    restart_needed: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_start_fails: Option<String>,
}

pub(super) async fn reload(State(admin): State<Arc<Admin>>) -> Response {
    answer(reloaded(&admin).await)
}

async fn reloaded(admin: &Admin) -> Result<ReloadedJson, Failure> {
    let busy = |message: &str| Failure::new(StatusCode::CONFLICT, "in_progress", message);
    let (ask, answered) = oneshot::channel();
    let sent = admin.reloads.try_send(ask);
    sent.map_err(|_| busy("other requests to reload are under way"))?;
    let told = answered.await.map_err(|_| busy("the sidecar is going away"))?;
    let (restart_needed, next_start_fails) = match told.settings {
        Ok(changed) => (changed, None),
        Err(fault) => (Vec::new(), Some(fault)),
    };
    match told.reloaded {
        Reloaded::Applied { revision, operations, weakened } => Ok(ReloadedJson {
            result: if weakened.is_empty() { "applied" } else { "weakened" },
            revision,
            operations: Some(operations),
            weakened: weakened.iter().map(ChangeJson::of).collect(),
            restart_needed,
            next_start_fails,
        }),
        Reloaded::Rejected(findings) => Err(Failure {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            code: "policy_rejected",
            message: summary(&findings),
        }),
        Reloaded::Restless => Err(busy("the files changed while they were read; try again")),
        Reloaded::Unchanged { revision } => Ok(ReloadedJson {
            result: "unchanged",
            revision,
            operations: None,
            weakened: Vec::new(),
            restart_needed,
            next_start_fails,
        }),
    }
}

/// Why files are rejected, on one line: the place and code of the first error, and how many more.
pub fn summary(findings: &[Diagnostic]) -> String {
    let mut errors = findings.iter().filter(|found| found.severity == Severity::Error);
    let Some(first) = errors.next() else {
        return "the newest files are rejected".to_owned();
    };
    let place = format!("{}:{}:{}: {}", first.file, first.line, first.column, first.code);
    match errors.count() {
        0 => format!("the newest files are rejected: {place}"),
        more => format!("the newest files are rejected: {place}, and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::compile;

    fn one(text: &str) -> crate::policy::Compiled {
        compile(vec![("a.yaml".to_owned(), text.to_owned())])
    }

    #[test]
    fn the_policy_is_shown_with_what_it_was_degraded_for_and_what_is_rejected() {
        let compiled = one(
            "version: 1\noperations:\n  a: { match: { http: GET /a } }\n  b: { match: { tool: b }, \
             effect: { class: reversible } }\n",
        );
        let snapshot = compiled.snapshot.as_ref().unwrap();
        let broken = one("version: 1\noperation: {}\ndefault: {}\n");
        let status = Status::default();
        status.applied(compiled.diagnostics.clone(), 1_764_489_600_000);
        status.rejected(broken.diagnostics.clone(), 1_764_489_600_000);

        let shown = serde_json::to_value(PolicyJson::of(snapshot, &status)).unwrap();

        assert_eq!(shown["operations"][0]["target"], "GET /a");
        assert_eq!(shown["operations"][0]["notes"].as_array().unwrap().len(), 0);
        assert_eq!(shown["operations"][1]["class"], "irreversible");
        assert!(shown["operations"][1]["notes"].to_string().contains("a.yaml:4"), "{shown}");
        assert_eq!(shown["rejected"]["findings"][0]["line"], 2);
        assert!(shown["findings"].to_string().contains("effect/"), "{shown}");
        assert_eq!(
            summary(&broken.diagnostics),
            "the newest files are rejected: a.yaml:2:1: policy/unknown_member, and 1 more"
        );
        status.restored();
        let shown = serde_json::to_value(PolicyJson::of(snapshot, &status)).unwrap();
        assert!(shown["rejected"].is_null());
    }
}
