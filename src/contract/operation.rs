//! The validated form of one declared operation.
//!
//! `policy::compile` makes these out of policy files and is the only maker; everything after it can
//! rely on what the types say: references point at operations that exist, mappings parse and read
//! only the roots that their place allows, deadlines have exactly one form, statuses do not overlap.

use std::sync::Arc;

use super::assertion::Assertion;
use super::class::{Class, IsError, Kind, Level, Mode, OnUnknown, Repeat, ResponseSource};
use super::json::Doc;
use super::key::{Carrier, Digest, OperationId};
use super::path::{Path, Segment};
use super::plan::{Plan, Source};
use super::pointer::Pointer;
use super::selector::Selector;
use super::status::Statuses;
use super::template::Template;

/// What a call must be to be this operation.
#[derive(Clone, Debug)]
pub enum Target {
    /// An HTTP request.
    Http {
        /// The method; exact, case-sensitive.
        method: http::Method,
        /// The path's template, without the upstream's base path.
        template: Template,
    },
    /// An MCP `tools/call` of exactly this name.
    Tool {
        /// The tool's name on this gateway.
        name: Arc<str>,
    },
}

impl Target {
    /// Whether it is an HTTP request whose method [`is_safe`]. What a tool does its name does not say.
    pub fn is_safe(&self) -> bool {
        match self {
            Self::Http { method, .. } => is_safe(method),
            Self::Tool { .. } => false,
        }
    }
}

/// Whether HTTP calls a method safe, so that what nothing declares under it is a read (contract section
/// 1; RFC 9110 section 9.2.1). `TRACE`, which is safe too, is refused before anybody asks; what other
/// documents call safe (`QUERY`, `PROPFIND`) is a write until it is declared.
pub fn is_safe(method: &http::Method) -> bool {
    is_get(method) || *method == http::Method::OPTIONS
}

/// Whether a method is GET, or HEAD, which asks for what a GET would do. `OPTIONS` is safe and is neither:
/// it asks what may be done with a path, and no upstream runs a GET for it.
pub fn is_get(method: &http::Method) -> bool {
    matches!(*method, http::Method::GET | http::Method::HEAD)
}

/// One condition of `match.where`: what is read, and what it must be.
#[derive(Clone, Debug)]
pub struct Condition {
    /// A path of the request.
    pub path: Path,
    /// What it must be.
    pub test: Test,
}

impl Condition {
    /// Whether it reads this section of an HTTP request.
    pub fn reads(&self, section: &str) -> bool {
        matches!(self.path.segments.first(), Some(Segment::Name(name)) if name == section)
    }
}

/// The closed predicates of `match.where`.
#[derive(Clone, Debug)]
pub enum Test {
    /// Names nothing, in a request that could be read.
    Absent,
    /// Equals this literal (numbers by value).
    Equals(Arc<Doc>),
    /// Names something.
    Exists,
    /// Equals one of these literals.
    OneOf(Vec<Arc<Doc>>),
}

/// Another operation, as a follow-up names it.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Its id.
    pub operation: OperationId,
    /// What to dial.
    pub target: Target,
    /// Its class, for the confirmation that the follow-up itself will need.
    pub class: Class,
    /// How its body is written, if it has one.
    pub body_type: BodyType,
    /// What its own path may hold.
    pub allow: Allow,
}

/// The media type in which a target takes its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyType {
    /// `application/x-www-form-urlencoded`
    Form,
    /// `application/json`
    Json,
}

/// Where an argument goes in the follow-up call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A tool's argument.
    Argument(String),
    /// The body (no members), or a member of it (`body.a.b`).
    Body(Vec<String>),
    /// A request header.
    Header(http::HeaderName),
    /// A parameter of the path template.
    Path(String),
    /// A query parameter.
    Query(String),
}

/// Where an argument's value comes from (ADR-0030 section 2).
#[derive(Clone, Debug)]
pub enum Mapping {
    /// `{const: value}`
    Const(Arc<Doc>),
    /// A path of the original call.
    Path(Path),
}

/// One mapped argument.
#[derive(Clone, Debug)]
pub struct Argument {
    /// The name as the policy wrote it; the report repeats it.
    pub name: String,
    /// Where it goes.
    pub slot: Slot,
    /// Where its value comes from.
    pub mapping: Mapping,
}

/// Until when a follow-up can be made.
#[derive(Clone, Debug)]
pub enum Deadline {
    /// At the time that the answer names.
    At {
        /// A path of the response.
        path: Path,
        /// How the time is written.
        unit: TimeUnit,
    },
    /// So many milliseconds after the answer arrived.
    WithinMs(u64),
}

/// How a deadline's time is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// RFC 3339 text with a zone, or a number of milliseconds since 1970 (ADR-0030).
    Either,
    /// RFC 3339 text with a zone.
    Iso8601,
    /// A number of milliseconds since 1970.
    Milliseconds,
    /// A number of seconds since 1970.
    Seconds,
}

/// A call that takes an effect back: `inverse`, `compensate`, `promote` or `discard`.
#[derive(Clone, Debug)]
pub struct FollowUp {
    /// What is called.
    pub reference: Reference,
    /// With what, in declaration order.
    pub arguments: Vec<Argument>,
    /// Until when; `None` is for ever.
    pub deadline: Option<Deadline>,
}

/// What a lookup finds the effect by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupBy {
    /// An identifier in the call.
    Id,
    /// The key that went upstream.
    IdempotencyKey,
}

impl LookupBy {
    /// The word in policy files and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::IdempotencyKey => "idempotency_key",
        }
    }
}

/// A read that finds the effect when its answer was lost.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// What is called.
    pub reference: Reference,
    /// With what.
    pub arguments: Vec<Argument>,
    /// What it finds the effect by.
    pub by: LookupBy,
    /// How long after the last moment at which the request could act "absent" starts to count, in
    /// milliseconds. Without it "absent" settles nothing.
    pub settle_ms: Option<u64>,
    /// The part of the answer that is empty when nothing was found; a path of the response.
    pub empty: Option<Path>,
    /// What a hit must satisfy to be this effect.
    pub matches: Vec<Assertion>,
}

/// A read that is made last before the call, and kept: what an update replaces.
#[derive(Clone, Debug)]
pub struct Before {
    /// What is called.
    pub reference: Reference,
    /// With what.
    pub arguments: Vec<Argument>,
}

/// The form that can be thrown away (ADR-0030 section 7).
#[derive(Clone, Debug)]
pub struct Draft {
    /// What is called instead.
    pub reference: Reference,
    /// With what.
    pub arguments: Vec<Argument>,
    /// The draft's handle; a path of the draft's response.
    pub handle: Path,
    /// Makes the draft real.
    pub promote: FollowUp,
    /// Throws the draft away.
    pub discard: Option<FollowUp>,
}

/// Who may attest evidence (EffectSpec `trust`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Only what this sidecar saw.
    GatewayObservedOnly,
    /// Also what a connector claims.
    AllowConnectorAttested,
}

/// What proves that the effect happened.
#[derive(Clone, Debug)]
pub enum Verification {
    /// Nothing.
    None,
    /// Assertions on the answer itself.
    ResponseBinding {
        /// Who may attest.
        trust: Trust,
        /// All must pass.
        assertions: Vec<Assertion>,
    },
    /// Evidence in stages, some of which comes after the answer.
    Plan(Arc<Plan>),
}

impl Verification {
    /// The best evidence that it can give: `none`, `response`, `readback` or `webhook`.
    pub fn evidence(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ResponseBinding { assertions, .. } if assertions.is_empty() => "none",
            Self::ResponseBinding { .. } => "response",
            Self::Plan(plan) => {
                let is = |wanted: fn(&Source) -> bool| {
                    plan.stages.iter().any(|stage| wanted(&stage.source))
                };
                if is(|source| matches!(source, Source::Webhook)) {
                    "webhook"
                } else if is(|source| matches!(source, Source::Readback { .. })) {
                    "readback"
                } else {
                    "response"
                }
            }
        }
    }
}

/// What paths a call may have that are refused by default (contract section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// `%2F` inside a segment.
    pub encoded_slash: bool,
    /// Empty segments (`//`).
    pub empty_segments: bool,
}

/// An operation's own clocks, in milliseconds; `None` takes the sidecar's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// From the request's end to the answer's head.
    pub head_ms: Option<u64>,
    /// Between two pieces of a body.
    pub idle_ms: Option<u64>,
    /// The whole call.
    pub total_ms: Option<u64>,
}

/// One declared operation.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// What a call must be.
    pub target: Target,
    /// What the call must also satisfy; all of them.
    pub conditions: Vec<Condition>,
    /// What can become of its effect.
    pub class: Class,
    /// What it does.
    pub kind: Kind,
    /// Whether it destroys; beside the effect, for confirmation only.
    pub destructive: bool,
    /// The confirmation that it needs.
    pub confirm: Level,
    /// The argument whose `true` is the caller's word.
    pub confirm_argument: Option<String>,
    /// What a repeat does.
    pub repeat: Repeat,
    /// What a repeat does while the outcome is unknown.
    pub on_unknown: OnUnknown,
    /// Whether the rules stop calls.
    pub mode: Mode,
    /// Where an MCP answer's evidence is.
    pub response: ResponseSource,
    /// How an MCP `isError` counts.
    pub is_error: IsError,
    /// All passed on an accepted status: definitely rejected.
    pub rejected_if: Vec<Assertion>,
    /// The call that leaves the world as it was.
    pub inverse: Option<FollowUp>,
    /// The call that cancels the effect and leaves a trace.
    pub compensate: Option<FollowUp>,
    /// The read that finds the effect.
    pub lookup: Option<Lookup>,
    /// The form that can be thrown away.
    pub draft: Option<Draft>,
    /// Where the key goes.
    pub carrier: Carrier,
    /// What a status means.
    pub statuses: Statuses,
    /// The effect's identifier in the answer.
    pub upstream_id: Option<Selector>,
    /// What proves the effect.
    pub verification: Verification,
    /// The read of the state before the call.
    pub before: Option<Before>,
    /// Request parts that are never kept or reported. The pointer to the whole request means more:
    /// see [`Operation::keeps_bodies`].
    pub sensitive: Vec<Pointer>,
    /// Headers that belong to the digest although the fixed list leaves them out.
    pub vary_on: Vec<http::HeaderName>,
    /// Odd paths that are allowed.
    pub allow: Allow,
    /// Its own clocks.
    pub timeouts: Timeouts,
    /// Its own limit on a request body, in bytes.
    pub max_body_bytes: Option<usize>,
    /// How its own body is declared.
    pub body_type: BodyType,
    /// SHA-256 over everything above as the policy wrote it: a confirmation is bound to it.
    pub fingerprint: Digest,
}

impl Operation {
    /// Whether the ledger may hold what the request and its answer hold. If not (`sensitive: true`),
    /// it has neither the answer, so that a repeat is told that the call was made and not what it
    /// was answered, nor a value of the request: the target is the template, and a lookup that is
    /// filled from the request is not kept. What the policy takes out of the answer for an undo, and
    /// the upstream's id, is.
    pub fn keeps_bodies(&self) -> bool {
        !self.sensitive.iter().any(|pointer| pointer.tokens().is_empty())
    }

    /// Whether the answer's body must be read to settle a call.
    pub fn reads_answer(&self) -> bool {
        let is_plain = self.rejected_if.is_empty()
            && self.inverse.is_none()
            && self.compensate.is_none()
            && self.upstream_id.is_none()
            && match &self.verification {
                Verification::None => true,
                Verification::ResponseBinding { assertions, .. } => assertions.is_empty(),
                Verification::Plan(_) => false,
            };
        !is_plain
    }
}
