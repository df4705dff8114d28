//! Reads of our own: lookups, the state before a call, and what proves an effect afterwards.
//!
//! Only reads are made here: `GET` over HTTP. Each has the path and the headers that a policy's
//! operation was filled with, and one credential: that of the caller whose call it belongs to, or what
//! `upstream.headers_file` holds, which wins. Nothing else of a caller's request goes along.
//!
//! It follows no redirect and decodes nothing. Limits: [`LONGEST`]; the answer as long as any that is
//! settled. What can go wrong is told as text for people that holds no value of the call.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};

use super::Shared;
use crate::call::digest::is_credential;
use crate::call::payload::{self, Body};
use crate::upstream::{Clocks, Sent, Upstream};

/// The longest that one read takes, whatever the clocks of calls are: it is a read of one thing.
pub const LONGEST: Duration = Duration::from_secs(30);

/// Makes reads.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// The connections that reads are made on.
    pub upstream: Upstream,
}

/// What is read.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// The path and its query, without the upstream's base path.
    pub path_and_query: String,
    /// Headers that arguments became.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl std::fmt::Debug for Target {
    /// Shows no value of the call.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("headers", &self.headers.len()).finish_non_exhaustive()
    }
}

/// Whose credential a read carries.
#[derive(Clone, Copy, Debug)]
pub enum Credential<'a> {
    /// That of the caller with these headers.
    Caller(&'a HeaderMap),
    /// The sidecar's own.
    Own,
}

/// An answer.
#[derive(Debug)]
pub struct Got {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, whole.
    pub body: Bytes,
}

impl Fetch {
    /// Reads.
    ///
    /// # Errors
    ///
    /// Why there is no whole answer.
    ///
    /// # Cancel safety
    ///
    /// May be dropped; what it asks for is a read.
    pub async fn get(&self, target: &Target, credential: Credential<'_>) -> Result<Got, String> {
        let shared = &self.shared;
        let request = self
            .request(target, credential)
            .map_err(|_| "its request cannot be written".to_owned())?;
        let timeouts = &shared.settings.timeouts;
        let clocks = Clocks {
            connect: timeouts.connect,
            head: timeouts.head.min(LONGEST),
            idle: Some(timeouts.idle.min(LONGEST)),
            total: Some(timeouts.total.min(LONGEST)),
        };
        let began = shared.clock.instant();
        let sent = self.upstream.send(request, &clocks).await;
        let elapsed = shared.clock.instant().saturating_duration_since(began);
        let [_, lookups] = &shared.metrics.common().upstream_duration;
        lookups.record(elapsed.as_secs_f64());
        let answer = match sent {
            Sent::Answer(answer) => answer,
            Sent::Lost(reason) => return Err(reason.to_string()),
            Sent::NotSent(reason) => return Err(reason.to_string()),
        };
        let (parts, body) = answer.into_parts();
        let limit = shared.settings.limits.response_body_bytes;
        let body = payload::collect(body, limit, &shared.budget, timeouts.idle)
            .await
            .map_err(|error| error.to_string())?;
        let body = body.bytes().clone();
        Ok(Got { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    fn request(
        &self,
        target: &Target,
        credential: Credential<'_>,
    ) -> Result<Request<Body>, http::Error> {
        let settings = &self.shared.settings;
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
        let headers = request.headers_mut();
        if let Credential::Caller(theirs) = credential {
            for (name, value) in theirs.iter().filter(|(name, _)| is_credential(name.as_str())) {
                headers.append(name.clone(), value.clone());
            }
        }
        for (name, value) in target.headers.iter().chain(&settings.upstream_headers) {
            headers.insert(name.clone(), value.clone());
        }
        Ok(request)
    }
}
