//! Refusals and problems on plain HTTP, and the report's header.

use http::{HeaderName, HeaderValue, Response, StatusCode, header};

use crate::call::has_any;
use crate::call::payload::Body;
use crate::call::refusal::Refusal;
use crate::contract::json::write_string;

/// Where problem types are explained.
const PROBLEMS: &str = "https://takeback.dev/problems/";

/// A problem document of RFC 9457 with ADR-0030's envelope inside (contract section 5; standards C-3).
pub fn problem_json(
    code: &str,
    title: &str,
    status: u16,
    detail: &str,
    instance: Option<&str>,
    envelope: &str,
    confirm: Option<&str>,
) -> String {
    let mut json = String::from("{\"type\":");
    let slug = code.replace(['_', '/'], "-");
    write_string(&format!("{PROBLEMS}{slug}"), &mut json);
    json.push_str(",\"title\":");
    write_string(title, &mut json);
    json.push_str(&format!(",\"status\":{status},\"detail\":"));
    write_string(detail, &mut json);
    if let Some(instance) = instance {
        json.push_str(",\"instance\":");
        write_string(instance, &mut json);
    }
    json.push_str(",\"error\":");
    json.push_str(envelope);
    if let Some(confirm) = confirm {
        json.push_str(",\"confirm\":");
        json.push_str(confirm);
    }
    json.push('}');
    json
}

/// The answer that a refusal is on plain HTTP. Never 2xx.
pub fn refusal(refusal: &Refusal) -> Response<Body> {
    let instance = refusal.entry().map(|entry| format!("urn:uuid:{entry}"));
    let confirm = refusal.challenge().map(|challenge| challenge.to_json());
    let json = problem_json(
        refusal.code(),
        refusal.title(),
        refusal.status(),
        &refusal.message(),
        instance.as_deref(),
        &refusal.envelope(),
        confirm.as_deref(),
    );
    let mut response = Response::new(Body::full(json));
    *response.status_mut() =
        StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("application/problem+json");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = refusal.retry_after_s() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Refusal::ContentCoding = refusal {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    if let Refusal::Unauthenticated(_) = refusal {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Refusal::MethodRefused = refusal {
        let allowed = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE";
        headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
    }
    response
}

/// Puts the report on an answer: exactly one line, ours, and readable for a page where the answer is
/// for one (standards H-40).
pub fn put_report(response: &mut Response<Body>, name: &HeaderName, report: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(name.clone(), report);
    if has_any(headers, &[header::ACCESS_CONTROL_ALLOW_ORIGIN])
        && let Ok(value) = HeaderValue::from_str(name.as_str())
    {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, value);
    }
}
