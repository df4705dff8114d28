//! Why a call was not sent: every refusal there is, in one closed enum.
//!
//! A [`Refusal`] means that this call sent nothing upstream. It is made before dispatch only; after
//! dispatch there is an observation instead. Each variant knows its code, its HTTP status, whether
//! the same call may be sent again as it is, and whose turn it is; its text says so in one go, because
//! a model reads it. No variant holds a value of the request: names, limits and ids only.

use std::fmt::Write as _;

use crate::contract::class::{Class, Level};
use crate::contract::json::write_string;
use crate::contract::key::{EntryId, KeyError, OperationId};
use crate::ledger::Removed;

/// Who can do something about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The agent: change the call.
    AgentFix,
    /// The agent: confirm the call.
    AgentConfirm,
    /// The agent: the same call again, later.
    AgentLater,
    /// A person: decide or settle.
    Person,
    /// The operator: mend the sidecar or its policy.
    Operator,
}

/// How what a rule reads has two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twofold {
    /// Its name stands only where, or so spelt that, some readers find it and the policy does not, and to
    /// those the call would be more than it is to the policy.
    Elsewhere,
    /// Its name comes twice in one place, as some readers compare names.
    Twice,
    /// Its name stands in two places, which some readers merge.
    TwoPlaces,
}

impl Twofold {
    fn message(self) -> &'static str {
        match self {
            Self::Elsewhere => {
                "A name that a rule reads stands in the query where the rule reads the body, or in \
                 the body where it reads the query, or is a header spelt with `_`. Some gateways \
                 take it all the same, and would do more than the rule allows for. Send it where \
                 and as the API documents it, or leave it out."
            }
            Self::Twice => {
                "The body or query names a member twice, or twice but for case or spelling, and a \
                 rule reads it. Send each name once."
            }
            Self::TwoPlaces => {
                "A name that a rule reads stands in the query and in the body, or in two headers \
                 that differ in `_` and `-`, and gateways differ in which they take. Send it once, \
                 where the API documents it."
            }
        }
    }
}

/// What a challenge tells the caller (contract section 4).
#[derive(Clone, PartialEq, Eq)]
pub struct Challenge {
    /// The level that must be satisfied.
    pub level: Level,
    /// The operation.
    pub operation: OperationId,
    /// Its class.
    pub class: Class,
    /// The request digest in hexadecimal.
    pub digest: String,
    /// When the token stops counting, RFC 3339.
    pub expires_at: Option<String>,
    /// What to send back; only for [`Level::Challenge`].
    pub token: Option<String>,
    /// The argument whose `true` is the caller's word, where the policy names one.
    pub argument: Option<String>,
    /// Why more than the operation's own level is asked for.
    pub because: Option<Because>,
    /// Why nothing takes the call back, where its operation declares what does; holds no value.
    pub lost: Option<String>,
    /// The caller's open unknown entries of this operation, newest first.
    pub unknown: Vec<EntryId>,
}

impl std::fmt::Debug for Challenge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Challenge")
            .field("level", &self.level)
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}

/// What makes a repeat need a fresh confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// The same call was accepted before, and its answer delivered.
    Repeats(EntryId),
    /// The same call's outcome is unknown, and the agent saw its answer.
    Unknown(EntryId),
    /// Another caller that cannot be told apart for certain has the same call open.
    Stranger,
}

/// Why a confirmation that came did not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The body differs.
    Body,
    /// The call was confirmed as one of a milder class.
    Class,
    /// The token's time is over.
    Expired,
    /// The token was not made here, or not for anything that can be named.
    Forged,
    /// A header differs.
    Headers,
    /// Another entry of this very call was made since.
    NewerEntry,
    /// The operation or its rules differ.
    Operation,
    /// Another caller.
    Principal,
    /// The token was used.
    Spent,
    /// The target differs.
    Target,
}

impl Mismatch {
    /// The word in metrics and details.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Class => "class",
            Self::Expired => "expired",
            Self::Forged => "forged",
            Self::Headers => "headers",
            Self::NewerEntry => "newer_entry",
            Self::Operation => "operation",
            Self::Principal => "principal",
            Self::Spent => "spent",
            Self::Target => "target",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Body => "the body is not the one that was confirmed",
            Self::Class => "the call was confirmed while it could be taken back",
            Self::Expired => "the confirmation has expired",
            Self::Forged => "the confirmation is not one that this proxy gave for this call",
            Self::Headers => "a header is not as it was when the call was confirmed",
            Self::NewerEntry => "the same call was recorded again since it was confirmed",
            Self::Operation => "the operation or its rules changed since it was confirmed",
            Self::Principal => "the confirmation was given to another caller",
            Self::Spent => "the confirmation was used already",
            Self::Target => "the target is not the one that was confirmed",
        }
    }
}

/// We said no, and nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The path can be read in more than one way.
    AmbiguousPath(&'static str),
    /// An answer was recorded, and was too large to keep.
    AnswerNotKept(EntryId, Option<Removed>),
    /// What a rule reads has two readings.
    AmbiguousMember(Twofold),
    /// The state before the call could not be read or kept; why, for people.
    BeforeUnread(String),
    /// The body ended early or broke.
    BodyBroken,
    /// The body came too slowly.
    BodySlow,
    /// The body is longer than this many bytes.
    BodyTooLarge(usize),
    /// The place of the key, which is not in the request.
    CarrierAbsent(&'static str),
    /// The key does not fit its carrier.
    CarrierTooShort,
    /// Whoever was asked to confirm the call said no.
    ConfirmationDeclined,
    /// The confirmation that came does not count; a fresh challenge is enclosed.
    ConfirmationMismatch(Mismatch, Box<Challenge>),
    /// The call must be confirmed.
    ConfirmationRequired(Box<Challenge>),
    /// A request body in a coding that we do not read.
    ContentCoding,
    /// The proxy is going away.
    Draining,
    /// A header that must be single came twice.
    DuplicateHeader(&'static str),
    /// An expectation other than `100-continue`.
    Expectation,
    /// The message's framing is not plain.
    Framing(&'static str),
    /// `Host` is missing, doubled, or not the target's.
    Host(&'static str),
    /// The same call is under way: it is being made, or waits for what it asked for.
    InFlight(EntryId),
    /// A member of `_meta` that is ours is malformed.
    InvalidMeta(&'static str),
    /// The body is not the JSON that its type says.
    InvalidJson(String),
    /// The caller's key is malformed.
    InvalidKey(KeyError),
    /// Two keys that differ.
    KeyConflict,
    /// The key belongs to another call; the entry and its operation.
    KeyReused(EntryId, OperationId),
    /// The ledger cannot take the entry.
    LedgerUnavailable,
    /// The request has come through this proxy before.
    Loop,
    /// The body's type is not one that this operation takes.
    MediaType,
    /// A header, query or form member that asks for another method, or a header for another path.
    MethodOverride,
    /// A method that is not proxied.
    MethodRefused,
    /// The operation has no draft form.
    NoDraftForm,
    /// A page of another origin.
    Origin,
    /// The outcome of the same call is unknown; its lookup, as JSON.
    OutcomeUnknown(EntryId, Option<String>),
    /// Too many calls or bytes at once.
    Overloaded,
    /// The operation's rules changed while the call was held.
    PolicyChanged,
    /// A repeat of this entry, which the policy refuses.
    RepeatRefused(EntryId),
    /// A header that only this proxy may set, or one that is spelt like such a header.
    ReservedHeader(&'static str),
    /// The policy refuses what it does not declare.
    Undeclared,
    /// The entry was taken back.
    Undone(EntryId),
    /// The draft's call lacks an argument; which, and why.
    DraftArgumentMissing(String),
    /// The draft tool would not take its arguments; the fault names a place, never a value.
    DraftInputInvalid(String),
    /// The called tool declares an output schema that the draft's answer would break.
    DraftOutputSchema,
    /// The draft form cannot be used.
    DraftUnavailable(String),
    /// The body of a call of a tool over plain HTTP is not what it must be.
    CallBody(&'static str),
    /// The upstream gives this caller no session, or no list of its tools; the status to say so with.
    NoSession(u16),
    /// An argument must be changed, and the upstream shows nobody which headers mirror it.
    ToolUnseen,
    /// Who calls is not known, where it must be; why.
    Unauthenticated(&'static str),
    /// The upstream does not show this tool to this caller.
    UnknownTool,
    /// The request came as early data, which may be a replay.
    TooEarly,
    /// The key would go into what the caller has signed; by which signature.
    BreaksSignature(&'static str),
    /// A `requestState` of ours that was changed, is too old, or belongs to another caller.
    StateInvalid,
    /// An upgrade of the connection.
    Upgrade,
    /// A read with a body that nothing declares.
    UndeclaredBody,
    /// The target is longer than this many bytes.
    UriTooLong(usize),
}

impl Refusal {
    /// A path that can be read in more than one way.
    pub fn path(what: &'static str) -> Self {
        Self::AmbiguousPath(what)
    }

    /// The stable code, in the report, metrics and, mostly, `error.code`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::AmbiguousPath(_) => "ambiguous_path",
            Self::AmbiguousMember(_) => "ambiguous_member",
            Self::AnswerNotKept(..) => "answer_not_kept",
            Self::BeforeUnread(_) => "before_unread",
            Self::BodyBroken => "body_broken",
            Self::BodySlow => "body_timeout",
            Self::BodyTooLarge(_) => "body_too_large",
            Self::CarrierAbsent(_) => "idempotency_carrier_absent",
            Self::CarrierTooShort => "idempotency_key_too_long",
            Self::ConfirmationDeclined => "confirmation_declined",
            Self::ConfirmationMismatch(..) => "confirmation_mismatch",
            Self::ConfirmationRequired(_) => "confirmation_required",
            Self::ContentCoding => "content_encoding",
            Self::Draining => "draining",
            Self::DraftArgumentMissing(_) => "effect/draft_argument_missing",
            Self::DraftInputInvalid(_) => "effect/draft_input_invalid",
            Self::DraftOutputSchema => "effect/draft_output_schema",
            Self::DraftUnavailable(_) => "effect/draft_unavailable",
            Self::DuplicateHeader(_) => "duplicate_header",
            Self::Expectation => "expectation_failed",
            Self::Framing(_) => "framing",
            Self::Host(_) => "host",
            Self::InFlight(_) => "in_flight",
            Self::InvalidJson(_) => "invalid_json",
            Self::InvalidKey(_) => "idempotency_key_invalid",
            Self::InvalidMeta(_) => "effect/invalid_meta",
            Self::KeyConflict => "idempotency_key_conflict",
            Self::KeyReused(..) => "idempotency_key_reused",
            Self::LedgerUnavailable => "ledger_unavailable",
            Self::Loop => "proxy_loop",
            Self::MediaType => "media_type",
            Self::MethodOverride => "method_override",
            Self::MethodRefused => "method_refused",
            Self::NoDraftForm => "effect/no_draft_form",
            Self::Origin => "origin",
            Self::OutcomeUnknown(..) => "outcome_unknown",
            Self::Overloaded => "overloaded",
            Self::PolicyChanged => "policy_changed",
            Self::RepeatRefused(_) => "repeat_refused",
            Self::ReservedHeader(_) => "reserved_header",
            Self::CallBody(_) => "validation_error",
            Self::NoSession(401) => "auth_required",
            Self::NoSession(403) => "permission_denied",
            Self::NoSession(_) => "upstream_unavailable",
            Self::ToolUnseen => "tool_unseen",
            Self::Unauthenticated(_) => "unauthenticated",
            Self::UnknownTool => "not_found",
            Self::TooEarly => "too_early",
            Self::BreaksSignature(_) => "carrier_breaks_signature",
            Self::StateInvalid => "request_state_invalid",
            Self::Undeclared => "undeclared_refused",
            Self::UndeclaredBody => "undeclared_body",
            Self::Undone(_) => "already_undone",
            Self::Upgrade => "upgrade_unsupported",
            Self::UriTooLong(_) => "uri_too_long",
        }
    }

    /// The code in `error.code` of an envelope: the source's word for the kind of a refusal (ADR-0030
    /// section 7), where it has one; [`Refusal::code`] then stands in `error.details.code`.
    pub fn envelope_code(&self) -> &'static str {
        match self {
            Self::DraftArgumentMissing(_) | Self::DraftInputInvalid(_) | Self::InvalidMeta(_) => {
                "validation_error"
            }
            Self::DraftOutputSchema | Self::DraftUnavailable(_) | Self::NoDraftForm => {
                "unsupported_operation"
            }
            _ => self.code(),
        }
    }

    /// The status on plain HTTP (standards C-2).
    pub fn status(&self) -> u16 {
        match self {
            Self::AmbiguousPath(_)
            | Self::AmbiguousMember(_)
            | Self::BodyBroken
            | Self::CarrierAbsent(_)
            | Self::CarrierTooShort
            | Self::DraftArgumentMissing(_)
            | Self::DraftInputInvalid(_)
            | Self::DuplicateHeader(_)
            | Self::Framing(_)
            | Self::Host(_)
            | Self::InvalidJson(_)
            | Self::InvalidKey(_)
            | Self::InvalidMeta(_)
            | Self::KeyConflict
            | Self::MethodOverride
            | Self::ReservedHeader(_)
            | Self::CallBody(_)
            | Self::StateInvalid
            | Self::UndeclaredBody => 400,
            Self::NoSession(status) => *status,
            Self::Unauthenticated(_) => 401,
            Self::TooEarly => 425,
            Self::BreaksSignature(_) => 422,
            Self::ToolUnseen => 503,
            Self::UnknownTool => 404,
            Self::ConfirmationDeclined | Self::Origin | Self::Undeclared => 403,
            Self::MethodRefused => 405,
            Self::BodySlow => 408,
            Self::AnswerNotKept(..)
            | Self::InFlight(_)
            | Self::OutcomeUnknown(..)
            | Self::RepeatRefused(_)
            | Self::Undone(_) => 409,
            Self::BodyTooLarge(_) => 413,
            Self::UriTooLong(_) => 414,
            Self::ContentCoding | Self::MediaType => 415,
            Self::Expectation => 417,
            Self::DraftOutputSchema
            | Self::DraftUnavailable(_)
            | Self::KeyReused(..)
            | Self::NoDraftForm => 422,
            Self::ConfirmationMismatch(..) | Self::ConfirmationRequired(_) => 428,
            Self::Upgrade => 501,
            Self::BeforeUnread(_) => 502,
            Self::Draining | Self::LedgerUnavailable | Self::Overloaded | Self::PolicyChanged => {
                503
            }
            Self::Loop => 508,
        }
    }

    /// Whose turn it is.
    pub fn turn(&self) -> Turn {
        match self {
            Self::BreaksSignature(_)
            | Self::LedgerUnavailable
            | Self::Loop
            | Self::NoSession(401 | 403)
            | Self::Undeclared => Turn::Operator,
            Self::ConfirmationMismatch(_, challenge) | Self::ConfirmationRequired(challenge) => {
                match challenge.level {
                    Level::Human => Turn::Person,
                    Level::None | Level::Caller | Level::Challenge => Turn::AgentConfirm,
                }
            }
            Self::BeforeUnread(_)
            | Self::Draining
            | Self::InFlight(_)
            | Self::BodySlow
            | Self::TooEarly
            | Self::Overloaded
            | Self::PolicyChanged
            | Self::NoSession(_)
            | Self::ToolUnseen => Turn::AgentLater,
            Self::OutcomeUnknown(..) => Turn::Person,
            Self::AmbiguousPath(_)
            | Self::AmbiguousMember(_)
            | Self::AnswerNotKept(..)
            | Self::BodyBroken
            | Self::BodyTooLarge(_)
            | Self::CarrierAbsent(_)
            | Self::CarrierTooShort
            | Self::ConfirmationDeclined
            | Self::ContentCoding
            | Self::DraftArgumentMissing(_)
            | Self::DraftInputInvalid(_)
            | Self::DraftOutputSchema
            | Self::DraftUnavailable(_)
            | Self::DuplicateHeader(_)
            | Self::Expectation
            | Self::Framing(_)
            | Self::Host(_)
            | Self::InvalidJson(_)
            | Self::InvalidKey(_)
            | Self::InvalidMeta(_)
            | Self::KeyConflict
            | Self::KeyReused(..)
            | Self::MediaType
            | Self::MethodOverride
            | Self::MethodRefused
            | Self::NoDraftForm
            | Self::Origin
            | Self::RepeatRefused(_)
            | Self::ReservedHeader(_)
            | Self::CallBody(_)
            | Self::StateInvalid
            | Self::Unauthenticated(_)
            | Self::UndeclaredBody
            | Self::UnknownTool
            | Self::Undone(_)
            | Self::Upgrade
            | Self::UriTooLong(_) => Turn::AgentFix,
        }
    }

    /// Whether the same call may be sent again as it is, later.
    pub fn is_retryable(&self) -> bool {
        match self.turn() {
            Turn::AgentLater => true,
            Turn::Operator => matches!(self, Self::LedgerUnavailable),
            Turn::AgentFix | Turn::AgentConfirm | Turn::Person => false,
        }
    }

    /// After how many seconds a retry makes sense, where one does.
    pub fn retry_after_s(&self) -> Option<u32> {
        match self {
            Self::InFlight(_) | Self::Overloaded | Self::PolicyChanged => Some(1),
            Self::Draining | Self::LedgerUnavailable => Some(5),
            _ => None,
        }
    }

    /// The challenge, where there is one.
    pub fn challenge(&self) -> Option<&Challenge> {
        match self {
            Self::ConfirmationMismatch(_, challenge) | Self::ConfirmationRequired(challenge) => {
                Some(challenge)
            }
            _ => None,
        }
    }

    /// The entry that the refusal names, where it names one.
    pub fn entry(&self) -> Option<EntryId> {
        match self {
            Self::AnswerNotKept(entry, _)
            | Self::InFlight(entry)
            | Self::KeyReused(entry, _)
            | Self::OutcomeUnknown(entry, _)
            | Self::RepeatRefused(entry)
            | Self::Undone(entry) => Some(*entry),
            _ => None,
        }
    }

    /// A short title: the status in words (RFC 9457 `title`).
    pub fn title(&self) -> &'static str {
        match self {
            Self::ConfirmationMismatch(..) => "The confirmation does not match this call",
            Self::ConfirmationRequired(_) => "This call must be confirmed",
            Self::InFlight(_) => "The same call is in flight",
            Self::LedgerUnavailable => "The ledger is unavailable",
            Self::OutcomeUnknown(..) => "The outcome of the same call is unknown",
            Self::KeyReused(..) => "The idempotency key belongs to another call",
            _ => "The call was refused",
        }
    }

    /// What happened and what to do next, for a person or a model; starts with the fact and says that
    /// nothing was sent.
    pub fn message(&self) -> String {
        let what = match self {
            Self::ConfirmationRequired(challenge) => return challenge.message(None),
            Self::ConfirmationMismatch(mismatch, challenge) => {
                return challenge.message(Some(*mismatch));
            }
            Self::AmbiguousPath(what) => format!(
                "The path can be read in more than one way ({what}). Write it in its plain form."
            ),
            Self::AmbiguousMember(twofold) => twofold.message().to_owned(),
            Self::AnswerNotKept(entry, removed) => {
                let why = match removed {
                    None => "was lost, too large to keep, or of a kind that is not kept",
                    Some(Removed::Redacted) => "was redacted by an operator",
                    Some(Removed::Retention) => "is older than what the ledger keeps",
                };
                format!(
                    "This call was made already and accepted (entry {entry}); its answer {why}, so \
                     it cannot be shown again. Do not repeat the call; read the result."
                )
            }
            Self::BeforeUnread(why) => format!(
                "The state before this call could not be read ({why}), and without it the call \
                 could not be taken back. Send the call again; if it is refused again, tell the \
                 operator."
            ),
            Self::BodyBroken => {
                "The request's body ended early or broke. Send it again.".to_owned()
            }
            Self::BodySlow => "The request's body came too slowly. Send it again.".to_owned(),
            Self::BodyTooLarge(limit) => {
                format!("The request's body is longer than {limit} bytes, the limit here.")
            }
            Self::CarrierAbsent(what) => format!(
                "The policy puts the idempotency key into {what}. This call has no such place: send \
                 it with one."
            ),
            Self::CarrierTooShort => {
                "The idempotency key is longer than the upstream takes. Use a shorter key."
                    .to_owned()
            }
            Self::ConfirmationDeclined => "The call was put to the person in front of the client, \
                 who did not confirm it. Do not send it again unless you are told to."
                .to_owned(),
            Self::ContentCoding => "The request's body is compressed, and this call must be read \
                 here. Send it without Content-Encoding."
                .to_owned(),
            Self::Draining => "This proxy is going away. Send the call again.".to_owned(),
            Self::DraftArgumentMissing(what) => format!("The draft cannot be filled: {what}."),
            Self::DraftInputInvalid(what) => {
                format!("The draft would not be taken by the draft's own input schema: {what}.")
            }
            Self::DraftOutputSchema => "The tool declares an output schema, which the answer of its \
                 draft form would break. It cannot be staged; the real effect was not performed."
                .to_owned(),
            Self::DraftUnavailable(what) => format!("The draft form cannot be used: {what}."),
            Self::DuplicateHeader(name) => {
                format!("The header {name} may be sent once only, `_` counting as `-`.")
            }
            Self::Expectation => "Only `Expect: 100-continue` is understood.".to_owned(),
            Self::Framing(what) => format!("The message's framing is refused: {what}."),
            Self::Host(what) => format!("The request names its host badly: {what}."),
            Self::InFlight(entry) => format!(
                "The same call is under way (entry {entry}). Wait for its answer or, if it asked \
                 for input or is a task, go on with that; the same call with the same key gets \
                 what it was answered."
            ),
            Self::InvalidJson(fault) => format!("The body cannot be read as JSON: {fault}."),
            Self::InvalidKey(fault) => format!("{fault}."),
            Self::InvalidMeta(what) => format!("A control member of `_meta` is malformed: {what}."),
            Self::KeyConflict => "The call carries two idempotency keys that differ, or a key in \
                 the carrier's place that is not a string. Send one."
                .to_owned(),
            Self::KeyReused(entry, operation) => format!(
                "This idempotency key belongs to another call of {operation} (entry {entry}). Use \
                 a new key for a new intent."
            ),
            Self::LedgerUnavailable => "The ledger cannot take an entry, and without one no write \
                 is sent. Reads still work. Tell the operator; the call may be sent again later."
                .to_owned(),
            Self::Loop => "The request has come through this proxy before.".to_owned(),
            Self::MediaType => {
                "The body's Content-Type is not one that this operation takes.".to_owned()
            }
            Self::MethodOverride => "The request asks for another method or path by a header, or \
                 by a member of its query or body. Send the method and the path themselves."
                .to_owned(),
            Self::MethodRefused => "This method is not proxied.".to_owned(),
            Self::NoDraftForm => "This operation has no draft form, so it cannot be staged. The \
                 real effect was not performed."
                .to_owned(),
            Self::Origin => "Pages of another origin may not call this endpoint.".to_owned(),
            Self::OutcomeUnknown(entry, lookup) => {
                let how = if lookup.is_some() {
                    "Make the lookup given here to see whether it happened"
                } else {
                    "Find out by a read whether it happened"
                };
                format!(
                    "The same call was made before and its answer was lost, so it may have \
                     happened (entry {entry}). It is not made again until the entry is settled. \
                     {how}; a person settles it with `takeback settle {entry} accepted|rejected \
                     --why \"...\"`."
                )
            }
            Self::Overloaded => "Too many calls at once. Send the call again.".to_owned(),
            Self::PolicyChanged => {
                "The rules of this operation changed while the call was held. Send it again."
                    .to_owned()
            }
            Self::RepeatRefused(entry) => format!(
                "The same call was made before and accepted (entry {entry}), and the policy refuses \
                 repeats of it."
            ),
            Self::ReservedHeader(what) => {
                format!("A header is reserved or spelt like a reserved one ({what}). Leave it out.")
            }
            Self::CallBody(what) => {
                format!("The body is {{\"arguments\": {{...}}, \"stage\": true?}}, but {what}.")
            }
            Self::NoSession(401 | 403) => "The upstream does not let this caller in. Send the \
                 credential that it takes."
                .to_owned(),
            Self::NoSession(_) => "The upstream gave no session, or no list of its tools to call this \
                 one by. Send the call again later."
                .to_owned(),
            Self::ToolUnseen => "A key goes into an argument of this call, and the upstream does \
                 not list the tool, so that the headers which mirror its arguments are not known. \
                 The call may be sent again later."
                .to_owned(),
            Self::Unauthenticated(what) => {
                format!("Who calls must be known here, and it is not: {what}.")
            }
            Self::TooEarly => "The request came in TLS early data, which somebody else can send \
                 again. Send it once the handshake is complete."
                .to_owned(),
            Self::BreaksSignature(what) => format!(
                "The idempotency key goes into a part of this request that its {what} covers, and \
                 would break it. Send the key there yourself and sign it, or let the policy name \
                 another carrier."
            ),
            Self::UnknownTool => "The upstream does not list this tool to this caller.".to_owned(),
            Self::StateInvalid => "The requestState is not one that this proxy gave to this caller \
                 for this call, or it is too old. Send the call from the start, without requestState \
                 and inputResponses."
                .to_owned(),
            Self::Undeclared => "The policy refuses calls that it does not declare. Ask the \
                 operator to declare this one."
                .to_owned(),
            Self::UndeclaredBody => {
                "A read with a body must be declared in the policy before it is passed.".to_owned()
            }
            Self::Undone(entry) => format!(
                "The call with this key was made and then taken back (entry {entry}). Use a new \
                 key to make it anew."
            ),
            Self::Upgrade => "Upgrades of the connection are not proxied.".to_owned(),
            Self::UriTooLong(limit) => format!("The target is longer than {limit} bytes."),
        };
        format!("Nothing was sent. {what}")
    }

    /// `error.details` as JSON.
    pub fn details(&self) -> String {
        let mut json = String::from("{\"sent\":false");
        let mut put = |name: &str, value: &str| {
            json.push_str(",\"");
            json.push_str(name);
            json.push_str("\":");
            write_string(value, &mut json);
        };
        put(
            "turn",
            match self.turn() {
                Turn::AgentFix => "agent: change the call",
                Turn::AgentConfirm => "agent: confirm the call",
                Turn::AgentLater => "agent: send the call again later",
                Turn::Person => "a person: decide or settle",
                Turn::Operator => "the operator: mend the proxy or its policy",
            },
        );
        if self.envelope_code() != self.code() {
            put("code", self.code());
        }
        if let Some(entry) = self.entry() {
            put("entry", &entry.to_string());
        }
        if let Self::ConfirmationMismatch(mismatch, _) = self {
            put("mismatch", mismatch.as_str());
        }
        if let Self::OutcomeUnknown(_, Some(lookup)) = self {
            json.push_str(",\"lookup\":");
            json.push_str(lookup);
        }
        if let Some(challenge) = self.challenge() {
            if !challenge.unknown.is_empty() {
                json.push_str(",\"unknown\":[");
                for (index, entry) in challenge.unknown.iter().enumerate() {
                    if index > 0 {
                        json.push(',');
                    }
                    write_string(&entry.to_string(), &mut json);
                }
                json.push(']');
            }
            json.push_str(",\"confirm\":");
            json.push_str(&challenge.to_json());
        }
        json.push('}');
        json
    }

    /// The envelope of ADR-0030: `{"code","message","retryable","details"}`.
    pub fn envelope(&self) -> String {
        let mut json = String::from("{\"code\":");
        write_string(self.envelope_code(), &mut json);
        json.push_str(",\"message\":");
        write_string(&self.message(), &mut json);
        let _infallible = write!(json, ",\"retryable\":{}", self.is_retryable());
        json.push_str(",\"details\":");
        json.push_str(&self.details());
        json.push('}');
        json
    }
}

impl Challenge {
    /// The member `confirm`: `{"level","digest","expires_at","token"}`.
    pub fn to_json(&self) -> String {
        let mut json = String::from("{\"level\":");
        write_string(self.level.as_str(), &mut json);
        json.push_str(",\"digest\":");
        write_string(&self.digest, &mut json);
        if let Some(expires_at) = &self.expires_at {
            json.push_str(",\"expires_at\":");
            write_string(expires_at, &mut json);
        }
        if let Some(token) = &self.token {
            json.push_str(",\"token\":");
            write_string(token, &mut json);
        }
        json.push('}');
        json
    }

    /// Why more than the operation's own level is asked for, for a person or a model.
    pub fn reason(&self) -> Option<String> {
        let operation = &self.operation;
        Some(match self.because? {
            Because::Repeats(entry) => format!(
                "The same call of {operation} was made before and accepted (entry {entry}). If a \
                 second one is really meant, confirm it."
            ),
            Because::Unknown(entry) => format!(
                "The same call of {operation} was made before and nobody can say whether it \
                 happened (entry {entry}). Look first; if it must be made again, confirm it."
            ),
            Because::Stranger => format!(
                "Another caller has the same call of {operation} open or of unknown outcome. If \
                 this one is really meant, confirm it."
            ),
        })
    }

    fn message(&self, mismatch: Option<Mismatch>) -> String {
        let mut text = String::from("Nothing was sent. ");
        if let Some(mismatch) = mismatch {
            let _infallible =
                write!(text, "The confirmation does not count: {}. ", mismatch.text());
        }
        if let Some(lost) = &self.lost {
            let _infallible = write!(text, "Nothing takes this call back: {lost}. ");
        }
        match self.reason() {
            None => {
                let _infallible = write!(
                    text,
                    "{} is {}: it must be confirmed first, as this proxy's policy says.",
                    self.operation, self.class
                );
            }
            Some(reason) => text.push_str(&reason),
        }
        for entry in &self.unknown {
            if !matches!(self.because, Some(Because::Unknown(named)) if named == *entry) {
                let _infallible =
                    write!(text, " Entry {entry} of this operation is of unknown outcome.");
            }
        }
        match (self.level, &self.token) {
            (Level::Human, _) => text.push_str(
                " A person must decide it, and this proxy has no approvals yet: ask the operator.",
            ),
            (_, Some(token)) => {
                let _infallible = write!(
                    text,
                    " Send the identical call again with the token {token} as the header \
                     Effect-Confirm, as _meta[\"takeback/confirm\"], or as the argument `confirm`"
                );
                if let Some(expires_at) = &self.expires_at {
                    let _infallible = write!(text, ", before {expires_at}");
                }
                text.push('.');
            }
            (_, None) => {
                text.push_str(
                    " Send the identical call again with the header Effect-Confirm: true, or with \
                     _meta.confirm: true",
                );
                if let Some(argument) = &self.argument {
                    let _infallible = write!(text, ", or with the argument {argument}: true");
                }
                text.push('.');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::json::Doc;

    fn challenge(level: Level) -> Box<Challenge> {
        Box::new(Challenge {
            level,
            operation: OperationId::new("github.releases.create").unwrap(),
            class: Class::Irreversible,
            digest: "ab".repeat(32),
            expires_at: Some("2026-12-01T00:00:00Z".to_owned()),
            token: (level == Level::Challenge).then(|| "tbc1_abc".to_owned()),
            argument: None,
            because: None,
            lost: None,
            unknown: vec![EntryId::from_bytes([1; 16])],
        })
    }

    #[test]
    fn every_envelope_is_json_that_says_that_nothing_was_sent() {
        let entry = EntryId::from_bytes([7; 16]);
        let refusals = [
            Refusal::path("a \"quoted\" thing"),
            Refusal::ConfirmationRequired(challenge(Level::Challenge)),
            Refusal::ConfirmationMismatch(Mismatch::Body, challenge(Level::Caller)),
            Refusal::OutcomeUnknown(entry, Some("{\"by\":\"id\"}".to_owned())),
            Refusal::KeyReused(entry, OperationId::undeclared()),
            Refusal::LedgerUnavailable,
        ];
        for refusal in refusals {
            let doc = Doc::parse(refusal.envelope()).unwrap();
            let message = doc.root().get("message").unwrap().as_str().unwrap().into_owned();
            assert!(message.starts_with("Nothing was sent. "), "{message}");
            let details = doc.root().get("details").unwrap();
            assert_eq!(details.get("sent").unwrap().as_bool(), Some(false));
            assert!(refusal.status() >= 400);
        }
    }

    #[test]
    fn c_5_a_human_level_challenge_holds_nothing_that_confirms() {
        let refusal = Refusal::ConfirmationRequired(challenge(Level::Human));
        assert!(!refusal.envelope().contains("tbc1_"));
        assert_eq!(refusal.turn(), Turn::Person);
        assert!(!refusal.is_retryable());
    }
}
