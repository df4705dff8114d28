//! What we say ourselves after a dispatch: that nothing was sent after all, or that the answer is lost.
//!
//! These are answers, not refusals. On plain HTTP they are 502 or 504 with a problem body; over MCP a
//! result with `isError` (standards MCP-22). The text says whether anything may have happened and what to
//! do next; `details.reason` is `timeout` where HTTP says 504, and `shutdown` where it says 503.

use http::{HeaderValue, Response, StatusCode, header};

use super::json_response;
use crate::call::payload::Body;
use crate::contract::json::write_string;
use crate::contract::key::EntryId;
use crate::http::grpc::{self, Again};
use crate::mcp::Era;
use crate::mcp::jsonrpc::Id;
use crate::mcp::reply::{self, Envelope};
use crate::upstream::{LostReason, NotSentReason};

/// Said in the details where a clock ran out: over MCP there is no status that would say it.
const TIMEOUT: &str = ",\"reason\":\"timeout\"";

/// Said in the details where the process ends first.
const SHUTDOWN: &str = ",\"reason\":\"shutdown\"";

/// See the module's page.
#[derive(Debug)]
pub(super) enum Notice {
    /// The process ends, and does not wait for the answer.
    Cut,
    /// A task of ours died.
    Died,
    /// Not a byte was sent.
    NotSent(NotSentReason),
    /// A read's answer was lost.
    ReadLost(LostReason),
    /// A write's answer is too long to be looked into.
    TooLong,
    /// A recorded answer cannot be shown.
    Unreplayable,
    /// A write's answer was lost.
    WriteLost(LostReason),
}

impl Notice {
    fn code(&self) -> &'static str {
        match self {
            Self::NotSent(_) => "not_sent",
            Self::ReadLost(_) => "answer_lost",
            Self::Unreplayable => "answer_not_kept",
            Self::Cut | Self::Died | Self::TooLong | Self::WriteLost(_) => "outcome_unknown",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Cut => StatusCode::SERVICE_UNAVAILABLE,
            Self::Died => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unreplayable => StatusCode::CONFLICT,
            Self::NotSent(NotSentReason::ConnectTimeout | NotSentReason::PoolTimeout) => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::ReadLost(reason) | Self::WriteLost(reason) => match reason {
                LostReason::BodyTimeout | LostReason::HeadTimeout | LostReason::TotalTimeout => {
                    StatusCode::GATEWAY_TIMEOUT
                }
                LostReason::Protocol | LostReason::RequestBody | LostReason::Reset => {
                    StatusCode::BAD_GATEWAY
                }
            },
            Self::NotSent(_) | Self::TooLong => StatusCode::BAD_GATEWAY,
        }
    }

    fn is_retryable(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::ReadLost(_) => true,
            Self::Cut | Self::Died | Self::TooLong | Self::Unreplayable | Self::WriteLost(_) => {
                false
            }
        }
    }

    fn text(&self, entry: Option<EntryId>) -> String {
        let named = entry.map(|entry| format!(" (entry {entry})")).unwrap_or_default();
        match self {
            Self::NotSent(reason) => {
                format!("The upstream could not be reached: {reason}. Nothing was sent{named}.")
            }
            Self::ReadLost(reason) => {
                format!("The answer of the read was lost: {reason}. It may be sent again.")
            }
            Self::Unreplayable => format!(
                "This call was made already and accepted{named}; its recorded answer cannot be \
                 shown again. Do not repeat it."
            ),
            Self::WriteLost(reason) => format!(
                "The call was sent and its answer was lost: {reason}. It may have happened, and its \
                 outcome is unknown{named}. Do not repeat it; look first, with the lookup of the \
                 report if there is one."
            ),
            Self::TooLong => format!(
                "The call was sent, and its answer is longer than this proxy looks into \
                 (`limits.response_body_bytes`), so that it is not passed on and its outcome is \
                 unknown{named}. Do not repeat it; look first, with the lookup of the report if \
                 there is one."
            ),
            Self::Cut => format!(
                "This proxy ends, and the answer of the call had not come. It may have happened, and \
                 its outcome is unknown{named}. Do not repeat it; look first, with the lookup of the \
                 report if there is one."
            ),
            Self::Died => format!(
                "This proxy failed while it made the call. It may have happened, and its outcome \
                 is unknown{named}. Do not repeat it; look first."
            ),
        }
    }

    fn details(&self, entry: Option<EntryId>) -> String {
        let sent = match self {
            Self::NotSent(_) => "false",
            Self::Cut
            | Self::Died
            | Self::ReadLost(_)
            | Self::TooLong
            | Self::Unreplayable
            | Self::WriteLost(_) => "true",
        };
        let mut json = format!("{{\"sent\":{sent}");
        if let Some(entry) = entry {
            json.push_str(",\"entry\":");
            write_string(&entry.to_string(), &mut json);
        }
        match self.status() {
            StatusCode::GATEWAY_TIMEOUT => json.push_str(TIMEOUT),
            StatusCode::SERVICE_UNAVAILABLE => json.push_str(SHUTDOWN),
            _ => {}
        }
        json.push('}');
        json
    }

    /// The answer on plain HTTP.
    pub(super) fn problem(&self, entry: Option<EntryId>) -> Response<Body> {
        let text = self.text(entry);
        let status = self.status();
        let mut envelope = String::from("{\"code\":");
        write_string(self.code(), &mut envelope);
        envelope.push_str(",\"message\":");
        write_string(&text, &mut envelope);
        envelope.push_str(if self.is_retryable() {
            ",\"retryable\":true"
        } else {
            ",\"retryable\":false"
        });
        envelope.push_str(",\"details\":");
        envelope.push_str(&self.details(entry));
        envelope.push('}');
        let instance = entry.map(|entry| format!("urn:uuid:{entry}"));
        let title = status.canonical_reason().unwrap_or("Error");
        let json = crate::http::reply::problem_json(
            self.code(),
            title,
            status.as_u16(),
            &text,
            instance.as_deref(),
            &envelope,
            None,
        );
        let mut response = Response::new(Body::full(json));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// The answer over gRPC.
    pub(super) fn grpc(&self, entry: Option<EntryId>) -> Response<Body> {
        let again = if self.is_retryable() { Again::Safe } else { Again::Unsafe };
        grpc::notice(self.status(), again, &self.text(entry))
    }

    /// The answer over MCP.
    pub(super) fn result(&self, id: &Id, era: Era, report: &str) -> Response<Body> {
        json_response(self.message(id, era, report))
    }

    /// The message over MCP.
    pub(super) fn message(&self, id: &Id, era: Era, report: &str) -> String {
        self.message_of(id, era, report, None)
    }

    /// The message over MCP, with the entry named.
    pub(super) fn message_of(
        &self,
        id: &Id,
        era: Era,
        report: &str,
        entry: Option<EntryId>,
    ) -> String {
        let text = self.text(entry);
        let details = self.details(entry);
        let envelope = Envelope {
            code: self.code(),
            message: &text,
            retryable: self.is_retryable(),
            details: &details,
        };
        reply::refusal(id, era, &envelope, report)
    }
}
