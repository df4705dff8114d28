//! What passes of an answer's head, what is said of its body, and what is put into it.

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, header};

use crate::call::has_any;
use crate::call::payload::{Body, Collected, Trailers};
use crate::contract::json::write_ascii;
use crate::contract::report::MAX_HEADER;
use crate::http::body::{essence, is_json};
use crate::http::headers::{sift_answer, sift_trailers};
use crate::ledger;
use crate::mcp::answer::Answer;
use crate::mcp::jsonrpc::Id;
use crate::pipeline::{Shared, unseen};

/// An MCP answer of ours: HTTP 200 and one JSON message.
pub fn json_response(text: String) -> Response<Body> {
    let mut response = Response::new(Body::full(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// An answer with the report spliced in; every other byte as it came.
pub(super) fn spliced(
    shared: &Shared,
    mut parts: Parts,
    answer: &Answer,
    id: &Id,
    report: &str,
    held: Collected,
) -> Response<Body> {
    let spliced = answer.with_report_as(report, shared.settings.mcp.reports);
    if let Some(reason) = spliced.unplaced {
        tracing::debug!(reason, "the report could not be put into the answer");
        let mut ascii = String::with_capacity(report.len());
        write_ascii(report, &mut ascii);
        if ascii.len() <= MAX_HEADER
            && let Ok(value) = HeaderValue::try_from(ascii)
        {
            parts.headers.insert(shared.settings.report_header.clone(), value);
        }
        return unseen::unclaimed(shared, parts, held, id);
    }
    void_old_body(&mut parts.headers);
    let body: Bytes = spliced.body;
    Response::from_parts(parts, Body::full(body).hold(held))
}

/// What was computed over a body that is rewritten is void (standards H-44).
pub fn void_old_body(headers: &mut HeaderMap) {
    let names = ["accept-ranges", "content-digest", "content-md5", "digest", "repr-digest"];
    for name in names {
        headers.remove(name);
    }
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::ETAG);
}

/// Where a caller thinks that it is.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The authority that it named.
    pub authority: Option<&'a HeaderValue>,
    /// It speaks TLS to us.
    pub is_tls: bool,
}

/// What is passed on of an answer's head.
pub fn pass_headers(shared: &Shared, parts: &mut Parts, asked: Asked<'_>) {
    let stripped = sift_answer(&mut parts.headers, shared.settings.report_header);
    if stripped > 0 {
        shared.metrics.common().stripped_upstream.increment(u64::from(stripped));
    }
    let locations = [header::LOCATION, header::CONTENT_LOCATION];
    if has_any(&parts.headers, &locations) {
        for name in locations {
            if let Some(value) = parts.headers.get(&name)
                && let Some(ours) = relocated(shared, value, asked)
            {
                parts.headers.insert(name, ours);
            }
        }
    }
    parts.version = http::Version::HTTP_11;
}

/// A location under the upstream's authority, as a location under ours (contract section 9).
fn relocated(shared: &Shared, value: &HeaderValue, asked: Asked<'_>) -> Option<HeaderValue> {
    let settings = &shared.settings;
    let text = value.to_str().ok()?;
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let path = rest.strip_prefix(settings.upstream_authority.as_str())?;
    if !(path.is_empty() || path.starts_with(['/', '?', '#'])) {
        return None;
    }
    let path = path.strip_prefix(settings.upstream_base.as_str()).unwrap_or(path);
    let scheme = if asked.is_tls { "https" } else { "http" };
    HeaderValue::from_str(&format!("{scheme}://{}{path}", asked.authority?.to_str().ok()?)).ok()
}

/// An answer's trailers are passed on, but for reports that are not ours.
pub fn passed(shared: &Shared, body: Body) -> Body {
    body.with_trailers(Trailers::Sifted(sift_trailers, shared.settings.report_header))
}

/// Whether an answer ends where its connection does: it says neither how long it is nor where it
/// ends, so that a cut looks like its end. `parts` are the upstream's own.
pub(super) fn is_open_ended(parts: &Parts, body: &Body) -> bool {
    use http_body::Body as _;
    parts.version < http::Version::HTTP_2
        && !parts.headers.contains_key(header::CONTENT_LENGTH)
        && !parts.headers.contains_key(header::TRANSFER_ENCODING)
        && !body.is_end_stream()
}

/// Whether an answer is a stream of events.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    essence(headers).eq_ignore_ascii_case("text/event-stream")
}

/// Whether an answer is a stream of events that does not say where it ends.
pub(super) fn is_endless(headers: &HeaderMap, body: &Body) -> bool {
    use http_body::Body as _;
    is_event_stream(headers) && body.size_hint().exact().is_none()
}

/// Whether an answer is in a coding, which we never read.
pub fn is_encoded(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Whether an answer that no rule reads is read all the same, to be given to a repeat: one that says
/// how long it is and is short, or JSON. Anything else may be a stream, and streams.
pub(super) fn is_worth_keeping(headers: &HeaderMap, body: &Body) -> bool {
    use http_body::Body as _;
    let limit = u64::try_from(ledger::MAX_ANSWER).unwrap_or(u64::MAX);
    match body.size_hint().exact() {
        Some(length) => length <= limit,
        None => is_json(essence(headers)),
    }
}

/// The headers that a recorded answer keeps (standards I-9); none may hold a secret.
pub(super) fn kept_headers(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    [header::CONTENT_TYPE, header::CONTENT_LANGUAGE, header::LOCATION, header::ETAG, header::LINK]
        .iter()
        .flat_map(|name| headers.get_all(name).iter().map(move |value| (name, value)))
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect()
}
