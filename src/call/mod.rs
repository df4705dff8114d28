//! The values that travel from a codec through the pipeline: neutral as to transport.
//!
//! A codec makes a [`Call`] out of a request; the pipeline answers it with a reply or a
//! [`refusal::Refusal`]; the codec writes either. Nothing in here knows a policy or a ledger.

pub mod digest;
pub mod payload;
pub mod place;
pub mod refusal;
pub mod spans;
pub mod trace;

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use crate::contract::class::Mode;
use crate::contract::key::Key;
use payload::Body;
pub use place::Permit;
use refusal::Refusal;
use spans::CallSpan;

/// Who calls (standards MCP-49): the scope of keys, repeats and confirmations.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// A stable name: `w:` and a keyed hash of the credentials, `anonymous`, or what a strong source
    /// says.
    pub id: Arc<str>,
    /// The keyed hash of the credentials that came, or `anonymous`: what the upstream shows or keeps
    /// for a credential is no other credential's, though one strong principal may bring several.
    pub credential: Arc<str>,
    /// Known only by what it sent, so that two of them may be one.
    pub is_weak: bool,
}

impl Principal {
    /// A caller known by its credentials only.
    pub fn weak(credential: Arc<str>) -> Self {
        Self { id: Arc::clone(&credential), credential, is_weak: true }
    }

    /// A caller without any credential.
    pub fn anonymous() -> Self {
        Self::weak("anonymous".into())
    }
}

impl std::fmt::Debug for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.id)
    }
}

/// What the caller asked of us rather than of the upstream. Taken out of the request; never
/// forwarded under these names.
#[derive(Clone, Debug, Default)]
pub struct Control {
    /// The caller's idempotency key.
    pub key: Option<Key>,
    /// The caller's confirmation.
    pub confirm: Option<Confirmation>,
    /// Perform the draft form instead.
    pub stage: bool,
    /// The task that the call belongs to: a label, it decides nothing.
    pub task: Option<String>,
}

/// A confirmation as the caller sent it.
#[derive(Clone, PartialEq, Eq)]
pub enum Confirmation {
    /// The caller's word.
    Word,
    /// The token out of a refusal.
    Token(String),
}

impl std::fmt::Debug for Confirmation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Word => "Word",
            Self::Token(_) => "Token(..)",
        })
    }
}

/// The part of an HTTP request that is forwarded, with what is ours or of one hop taken out.
#[derive(Clone, Debug)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// Path and query as they came.
    pub uri: Uri,
    /// The version that it was received with, for `Via`.
    pub version: Version,
    /// End-to-end headers.
    pub headers: HeaderMap,
    /// The authority that the caller named.
    pub authority: Option<HeaderValue>,
    /// The peer's address, as it is forwarded.
    pub peer: HeaderValue,
    /// What `Connection` named, and is gone: a carrier among it is refused (standards H-3).
    pub nominated: Vec<HeaderName>,
    /// It waits for `100 Continue` before it sends its body.
    pub expects_continue: bool,
    /// What is known of whoever sent it, beyond what it says.
    pub origin: Origin,
    /// The call's spans, where somebody collects them.
    pub span: Option<Arc<CallSpan>>,
}

/// Whether one of these names is there. To look along the few names that a message has costs less than
/// to hash one, and what is asked for this way is seldom there.
pub fn has_any(headers: &HeaderMap, names: &[HeaderName]) -> bool {
    headers.keys().any(|name| names.contains(name))
}

/// What a connection says of a request (standards H-6, MCP-49).
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// It came through TLS.
    pub is_tls: bool,
    /// It came from a listed peer, which is believed about those before it.
    pub is_listed: bool,
    /// Who calls, where a strong source says so.
    pub principal: Option<Arc<str>>,
}

impl Head {
    /// The path.
    pub fn path(&self) -> &str {
        self.uri.path()
    }

    /// The query, without the question mark.
    pub fn query(&self) -> Option<&str> {
        self.uri.query()
    }
}

/// One thing that an agent asked for, whatever it came in on. Made by a codec's `decode`.
#[derive(Debug)]
pub struct Call {
    /// The request's head.
    pub head: Head,
    /// What was asked of us.
    pub control: Control,
    /// The request's body, or what a transport made of it.
    pub payload: Payload,
    /// What is odd about it: refused where the rules are enforced, passed where they are observed.
    pub oddity: Option<Oddity>,
    /// The place in the in-flight limit; held to the end of the answer's body and of a write's task.
    pub permit: Permit,
}

/// What a call is about, and its body.
#[derive(Debug)]
pub enum Payload {
    /// A plain HTTP request's body, not read yet.
    Http(Body),
    /// An MCP `tools/call`, read whole.
    Mcp(Box<crate::mcp::request::ToolCall>),
}

impl Payload {
    /// The request's body, as it came.
    pub fn into_body(self) -> Body {
        match self {
            Self::Http(body) => body,
            Self::Mcp(call) => Body::full(call.message().body().clone()),
        }
    }
}

/// Which transport a call came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Plain HTTP.
    Http,
    /// MCP over streamable HTTP.
    Mcp,
}

impl Transport {
    /// The word in metrics, logs and the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Mcp => "mcp",
        }
    }
}

/// An odd path: refused, unless the operation that it matches allows just this.
#[derive(Clone, Debug)]
pub enum Oddity {
    /// `%2F` inside a segment.
    EncodedSlash,
    /// An empty segment.
    EmptySegment,
    /// Something that no operation can allow.
    Other(Refusal),
}

impl Oddity {
    /// The refusal that it is where nothing allows it.
    pub fn into_refusal(self) -> Refusal {
        match self {
            Self::EncodedSlash => Refusal::path("an encoded slash"),
            Self::EmptySegment => Refusal::path("an empty segment"),
            Self::Other(refusal) => refusal,
        }
    }
}

/// How strictly the sidecar as a whole applies its rules; an operation may only be as strict.
pub fn effective_mode(sidecar: Mode, operation: Mode) -> Mode {
    sidecar.min(operation)
}
