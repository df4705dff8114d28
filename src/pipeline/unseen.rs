//! What passes of MCP and is not looked into: answers that are too long to be held, and those that are
//! no messages.
//!
//! They pass as they came, but for members that stand where a report of ours does (contract sections
//! 3.2 and 6, standards MCP-39): in what is long these go on under another name while it streams, and
//! what is short is read to see whether there are any. An answer in a coding is for whoever can
//! read it: only one that refuses gets this far.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderValue, Response, header};
use http_body::{Body as _, Frame, SizeHint};

use super::Shared;
use super::settle::{is_encoded, void_old_body};
use crate::call::payload::{
    Body, BodyError, Collected, PolledFrame, Prefix, Source, collect_prefix,
};
use crate::mcp::answer::Reports;
use crate::mcp::claims::{Claim, claim};
use crate::mcp::jsonrpc::{Id, code};
use crate::mcp::renaming::Renamer;
use crate::mcp::reply;

/// An answer that is too long to be held.
pub fn renamed(shared: &Shared, mut parts: Parts, body: Body) -> Response<Body> {
    if shared.settings.mcp.reports == Reports::Trust {
        return Response::from_parts(parts, body);
    }
    void_old_body(&mut parts.headers);
    let source = Renamed { inner: Some(body), renamer: Renamer::default(), ready: VecDeque::new() };
    Response::from_parts(parts, Body::source(Box::new(source)))
}

/// An answer that is no message, to a request with this id.
pub async fn untold(shared: &Shared, parts: Parts, body: Body, id: &Id) -> Response<Body> {
    if is_encoded(&parts.headers) || body.is_end_stream() {
        return Response::from_parts(parts, body);
    }
    let limit = shared.settings.limits.response_body_bytes;
    match collect_prefix(body, limit, &shared.budget, None).await {
        Prefix::Partial { body, .. } => renamed(shared, parts, body),
        Prefix::Whole(collected) => unclaimed(shared, parts, collected, id),
    }
}

/// An answer that no report can be put into, without one that it claims.
pub fn unclaimed(
    shared: &Shared,
    mut parts: Parts,
    collected: Collected,
    id: &Id,
) -> Response<Body> {
    let bytes = collected.bytes();
    let instead = match claim(bytes, shared.settings.mcp.reports) {
        Claim::Taken(message) => message,
        Claim::Unread if may_be_read(bytes) => {
            let kind = HeaderValue::from_static("application/json");
            parts.headers.insert(header::CONTENT_TYPE, kind);
            unreadable(id).into()
        }
        Claim::None | Claim::Unread => return Response::from_parts(parts, Body::from(collected)),
    };
    void_old_body(&mut parts.headers);
    Response::from_parts(parts, Body::full(instead))
}

/// What is said in the place of an answer that readers disagree about.
pub fn unreadable(id: &Id) -> String {
    let text = "the upstream's answer cannot be read as JSON that has one meaning";
    reply::error(id, code::INTERNAL_ERROR, text, None)
}

/// Whether some reader may take a text for JSON.
pub fn may_be_read(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).trim_ascii_start();
    text.starts_with(b"{") || text.starts_with(b"[")
}

/// A body in which claims are renamed as it is read.
struct Renamed {
    inner: Option<Body>,
    renamer: Renamer,
    ready: VecDeque<Bytes>,
}

impl Source for Renamed {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
            let frame = match ready!(Pin::new(inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                other => {
                    self.inner = None;
                    return Poll::Ready(other);
                }
            };
            match frame.into_data() {
                // Trailers.
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
                Ok(bytes) => {
                    if self.renamer.push(&bytes, &mut self.ready).is_err() {
                        (self.inner, self.ready) = (None, VecDeque::new());
                        return Poll::Ready(Some(Err(BodyError::Stopped)));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_none() && self.ready.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }

    fn finish(self: Box<Self>) {}
}
