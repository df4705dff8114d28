//! An HTTP answer to a write, and one over gRPC.
//!
//! An answer that ends where its connection does may have been cut, and only what it holds can
//! tell: JSON that breaks off is a lost answer, as one whose length is not reached. Of other types
//! nothing can tell.

use std::sync::Arc;
use std::time::Duration;

use http::response::Parts;
use http::{Response, StatusCode};

use super::head::{is_encoded, is_worth_keeping, kept_headers};
use super::notice::Notice;
use super::outcome::{Dispatched, conclude};
use super::{Case, Settled};
use crate::call::payload::{Body, Partial, Prefix, collect_prefix};
use crate::contract::class::Disposition;
use crate::contract::json::Doc;
use crate::contract::selector::Evidence;
use crate::http::body::{essence, is_cut_json, is_json};
use crate::http::grpc;
use crate::ledger::{self, Answer, Cause};
use crate::upstream::LostReason;

impl Case {
    pub(super) async fn http_answer(
        self: Arc<Self>,
        parts: Parts,
        body: Body,
        is_open_ended: bool,
        elapsed: Duration,
    ) -> Settled {
        let operation = self.write().operation();
        let status = parts.status.as_u16();
        let disposition = operation.statuses.classify(status);
        let reads = operation.reads_answer();
        if !reads && !is_worth_keeping(&parts.headers, &body) {
            let dispatched = Dispatched::answered(disposition, status);
            let conclusion = conclude(self.as_ref(), &dispatched, None);
            return self.answered(Response::from_parts(parts, body), conclusion, None, elapsed);
        }
        let limit = if reads {
            self.shared.settings.limits.response_body_bytes
        } else {
            ledger::MAX_ANSWER
        };
        match collect_prefix(body, limit, &self.shared.budget, None).await {
            Prefix::Whole(collected) => {
                let is_readable = is_json(essence(&parts.headers)) && !is_encoded(&parts.headers);
                // Range answers are a part of something: never evidence (standards H-18).
                let is_partial = parts.status == StatusCode::PARTIAL_CONTENT;
                if is_open_ended
                    && is_readable
                    && disposition == Disposition::Accepted
                    && is_cut_json(collected.bytes())
                {
                    return self.cut_answer(Partial::Broken, elapsed);
                }
                let doc = (is_readable && !is_partial)
                    .then(|| Doc::parse(collected.bytes().clone()).ok())
                    .flatten();
                let dispatched = Dispatched::answered(disposition, status);
                let evidence = Evidence {
                    status,
                    headers: &parts.headers,
                    response: doc.as_ref().map(Doc::root),
                    request: self.write().request(),
                };
                let conclusion = conclude(self.as_ref(), &dispatched, Some(&evidence));
                let answer = Answer {
                    status,
                    headers: kept_headers(&parts.headers),
                    body: collected.bytes().to_vec(),
                };
                let bytes = collected.bytes().clone();
                let response = Response::from_parts(parts, Body::full(bytes).hold(collected));
                self.answered(response, conclusion, Some(answer), elapsed)
            }
            Prefix::Partial { body, why } => {
                let is_cut = matches!(why, Partial::Broken | Partial::Idle);
                if is_cut && disposition == Disposition::Accepted {
                    drop(body);
                    return self.cut_answer(why, elapsed);
                }
                // A call that worked is not turned into an error because its proof is long.
                let evidence = Evidence {
                    status,
                    headers: &parts.headers,
                    response: None,
                    request: self.write().request(),
                };
                let dispatched = Dispatched::answered(disposition, status);
                let conclusion = conclude(self.as_ref(), &dispatched, Some(&evidence));
                self.answered(Response::from_parts(parts, body), conclusion, None, elapsed)
            }
        }
    }

    /// An answer broke off, or a clock ended it.
    pub(super) fn cut_answer(&self, why: Partial, elapsed: Duration) -> Settled {
        let (cause, reason) = lost_by(why);
        let conclusion = conclude(self, &Dispatched::lost(cause), None);
        self.noticed(&Notice::WriteLost(reason), conclusion, elapsed)
    }

    /// Over gRPC the answer is held up to its end, which says what came of the call. One that is too
    /// long is passed on, and its outcome is unknown.
    pub(super) async fn grpc_answer(
        self: Arc<Self>,
        parts: Parts,
        body: Body,
        elapsed: Duration,
    ) -> Settled {
        let status = parts.status.as_u16();
        let limit = self.shared.settings.limits.response_body_bytes;
        let (body, end) = match collect_prefix(body, limit, &self.shared.budget, None).await {
            Prefix::Whole(collected) => {
                let bytes = collected.bytes().clone();
                let end = collected.trailers().cloned();
                let body = match end.clone() {
                    Some(trailers) => Body::trailed(bytes, trailers),
                    None => Body::full(bytes),
                };
                (body.hold(collected), end)
            }
            Prefix::Partial { why: why @ (Partial::Broken | Partial::Idle), .. } => {
                return self.cut_answer(why, elapsed);
            }
            Prefix::Partial { body, why: Partial::Budget | Partial::TooLarge } => (body, None),
        };
        let disposition = match end {
            Some(end) => grpc::disposition(&end),
            None if grpc::ends(&parts.headers) => grpc::disposition(&parts.headers),
            // A proxy on the way answered, by a status of HTTP's.
            None if !parts.status.is_success() => {
                self.write().operation().statuses.classify(status)
            }
            None => Disposition::Ambiguous,
        };
        let conclusion = conclude(self.as_ref(), &Dispatched::answered(disposition, status), None);
        self.answered(Response::from_parts(parts, body), conclusion, None, elapsed)
    }
}

/// How an answer that was not read to its end was lost: for the ledger, and for the agent.
pub(super) fn lost_by(why: Partial) -> (Cause, LostReason) {
    match why {
        Partial::Idle => (Cause::Timeout, LostReason::BodyTimeout),
        Partial::Broken | Partial::Budget | Partial::TooLarge => {
            (Cause::TruncatedBody, LostReason::Reset)
        }
    }
}
