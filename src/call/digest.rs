//! The digest of a request: what a confirmation is bound to and a repeat is known by.
//!
//! It covers the target, the body and every end-to-end header but a fixed list that cannot change
//! the meaning (contract section 4); all of it as the caller meant it, before a key is put in. JSON
//! counts by its canonical form, so that another order of members is the same call; numbers count
//! as they were written, so that `1` and `1.0` are two calls (the safe side: a needless question).
//! `Content-Type` counts whole: another `boundary` or `profile` makes another body of the same bytes. So
//! does the authority that the caller named, because it goes on as `X-Forwarded-Host` and may choose a
//! tenant: the same call under another name of this proxy is another call. The mark leaves both out, for
//! it has to know a follow-up that was resolved and not yet made.
//!
//! The parts are kept beside the whole, so that a confirmation that does not match can say which part
//! differs without showing it.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use sha2::{Digest as _, Sha256};

use crate::contract::json::{Doc, Edits, Value};
use crate::contract::key::Digest;

/// The digest of one request, and of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDigest {
    /// Everything.
    pub whole: Digest,
    /// Target and body only: what a follow-up of another entry is recognised by.
    pub mark: Digest,
    /// Method, path and query, or the tool's name.
    pub target: Digest,
    /// The headers that count, and the authority that the caller named.
    pub headers: Digest,
    /// The body.
    pub body: Digest,
}

/// A head, as the digest sees it.
#[derive(Clone, Copy, Debug)]
pub struct HeadForm<'a> {
    /// The authority that the caller named, which the upstream is told of.
    pub authority: Option<&'a HeaderValue>,
    /// End-to-end headers, the carrier of the key taken out.
    pub headers: &'a HeaderMap,
    /// Those that count whatever they are called (`vary_on`).
    pub vary_on: &'a [HeaderName],
}

/// A body, as the digest sees it.
#[derive(Clone, Copy, Debug)]
pub enum BodyForm<'a> {
    /// No body, or an empty one.
    None,
    /// JSON, by its type's essence and its canonical form.
    Json(&'a str, Value<'a>),
    /// Any other type, by its essence and bytes.
    Opaque(&'a str, &'a [u8]),
}

impl RequestDigest {
    /// The digest of a plain HTTP request. `path_and_query` is without the upstream's base path.
    pub fn http(
        method: &Method,
        path_and_query: &str,
        head: HeadForm<'_>,
        body: BodyForm<'_>,
    ) -> Self {
        let target = http_target(method, path_and_query);
        Self::of(target, headers_part(head), body_part(body))
    }

    /// The digest of a tool call to this path and query. `feed` gives everything of `params` that
    /// counts; arguments in `ignored` are ours and count nowhere.
    pub fn tool(
        path_and_query: &str,
        name: &str,
        head: HeadForm<'_>,
        arguments: Value<'_>,
        ignored: &[&str],
        feed: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Self {
        let mut sha = Sha256::new_with_prefix(b"params\0");
        feed(&mut |bytes| sha.update(bytes));
        let target = endpoint(path_and_query, name);
        let mut digest = Self::of(target, headers_part(head), finish(sha));
        digest.mark = match without(arguments, ignored) {
            Some(doc) => tool_mark(name, doc.root()),
            None => tool_mark(name, arguments),
        };
        digest
    }

    /// The digest of the same request in its draft form: another call, which takes nothing back.
    pub fn staged(self) -> Self {
        let again = |digest: Digest| {
            let mut sha = Sha256::new_with_prefix(b"takeback/1 staged\0");
            sha.update(digest.0);
            finish(sha)
        };
        Self { whole: again(self.whole), mark: again(self.mark), ..self }
    }

    fn of(target: Digest, headers: Digest, body: Digest) -> Self {
        let mut sha = Sha256::new_with_prefix(b"takeback/1 call\0");
        for part in [target, headers, body] {
            sha.update(part.0);
        }
        Self { whole: finish(sha), mark: mark(target, body), target, headers, body }
    }
}

/// An object without some of its members; `None` where it has none of them.
fn without(object: Value<'_>, names: &[&str]) -> Option<Doc> {
    if !names.iter().any(|name| object.get(name).is_some()) {
        return None;
    }
    let own = Doc::parse(object.raw().to_owned()).ok()?;
    let mut edits = Edits::new();
    edits.members(own.root(), names, &[]);
    Doc::parse(edits.apply(own.text())).ok()
}

/// The mark of an HTTP follow-up call that was resolved but not made.
pub fn http_mark(method: &Method, path_and_query: &str, body: BodyForm<'_>) -> Digest {
    mark(http_target(method, path_and_query), body_part(body))
}

/// The mark of a tool call that was resolved but not made.
pub fn tool_mark(name: &str, arguments: Value<'_>) -> Digest {
    let mut sha = Sha256::new_with_prefix(b"json\0");
    arguments.canonical(&mut |bytes| sha.update(bytes));
    mark(tool_target(name), finish(sha))
}

fn mark(target: Digest, body: Digest) -> Digest {
    let mut sha = Sha256::new_with_prefix(b"takeback/1 mark\0");
    sha.update(target.0);
    sha.update(body.0);
    finish(sha)
}

fn http_target(method: &Method, path_and_query: &str) -> Digest {
    let mut sha = Sha256::new_with_prefix(b"http\0");
    sha.update(method.as_str());
    sha.update(b"\0");
    sha.update(normal(path_and_query));
    finish(sha)
}

/// The target of a tool call: the tool, behind this path and query.
fn endpoint(path_and_query: &str, name: &str) -> Digest {
    let mut sha = Sha256::new_with_prefix(b"endpoint\0");
    sha.update(normal(path_and_query));
    sha.update(b"\0");
    sha.update(tool_target(name).0);
    finish(sha)
}

fn tool_target(name: &str) -> Digest {
    let mut sha = Sha256::new_with_prefix(b"tool\0");
    sha.update(name);
    finish(sha)
}

fn body_part(body: BodyForm<'_>) -> Digest {
    let mut sha = Sha256::new();
    match body {
        BodyForm::None => {}
        BodyForm::Json(essence, value) => {
            sha.update(b"json\0");
            sha.update(essence.to_ascii_lowercase());
            sha.update(b"\0");
            value.canonical(&mut |bytes| sha.update(bytes));
        }
        BodyForm::Opaque(essence, bytes) => {
            sha.update(essence.to_ascii_lowercase());
            sha.update(b"\0");
            sha.update(bytes);
        }
    }
    finish(sha)
}

fn headers_part(head: HeadForm<'_>) -> Digest {
    let HeadForm { authority, headers, vary_on } = head;
    let mut counted: Vec<(&str, &[u8])> = headers
        .iter()
        .filter(|(name, _)| vary_on.contains(name) || counts(name.as_str()))
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .chain(authority.map(|authority| ("host", authority.as_bytes())))
        .collect();
    counted.sort_by_key(|(name, _)| *name);
    let mut sha = Sha256::new();
    for (name, value) in counted {
        sha.update(name);
        sha.update(b"\0");
        sha.update(u64::try_from(value.len()).unwrap_or(u64::MAX).to_be_bytes());
        sha.update(value);
    }
    finish(sha)
}

/// Whether a header can change what a call means. What is of one hop and what is ours is gone before
/// this is asked; the rest of the fixed list is here, each group with its reason. A name that is missing
/// costs a needless question, or a second effect where an agent's own library repeats a lost call with
/// another value of it; one too many lets a confirmation stand for another call.
fn counts(name: &str) -> bool {
    if is_credential(name) {
        return false;
    }
    // What the digest has from elsewhere: the body, the authority (see [`RequestDigest::http`]), the key.
    let is_known_otherwise = matches!(
        name,
        "content-digest"
            | "content-length"
            | "content-md5"
            | "digest"
            | "host"
            | "idempotency-key"
            | "repr-digest"
            | "x-forwarded-host"
    );
    // How the message travels, and when it was sent; replaced or dropped on the way as it is.
    let is_of_the_way = matches!(
        name,
        "cache-control"
            | "date"
            | "expect"
            | "forwarded"
            | "grpc-timeout"
            | "last-event-id"
            | "pragma"
            | "priority"
            | "via"
            | "x-amz-date"
            | "x-forwarded-for"
            | "x-forwarded-port"
            | "x-forwarded-proto"
            | "x-ms-date"
            | "x-real-ip"
            | "x-request-start"
    );
    // Which attempt it is: what a library changes when it sends the same call again.
    let is_attempt = matches!(
        name,
        "amz-sdk-invocation-id"
            | "amz-sdk-request"
            | "grpc-previous-rpc-attempts"
            | "retry-attempt"
            | "retry-count"
            | "x-attempt"
            | "x-envoy-attempt-count"
            | "x-request-attempt"
            | "x-retry-attempt"
            | "x-retry-count"
    );
    // Which program and library sends it; some count their own requests in there.
    let is_sender = matches!(
        name,
        "user-agent"
            | "x-amz-user-agent"
            | "x-goog-api-client"
            | "sec-fetch-dest"
            | "sec-fetch-mode"
            | "sec-fetch-site"
            | "sec-fetch-user"
            | "x-stripe-client-telemetry"
            | "x-stripe-client-user-agent"
    );
    // What ties it to a trace: new for every attempt.
    let is_trace = matches!(
        name,
        "b3" | "baggage"
            | "client-request-id"
            | "correlation-id"
            | "elastic-apm-traceparent"
            | "grpc-trace-bin"
            | "newrelic"
            | "request-id"
            | "sentry-trace"
            | "traceparent"
            | "tracestate"
            | "uber-trace-id"
            | "x-amzn-trace-id"
            | "x-client-request-id"
            | "x-cloud-trace-context"
            | "x-correlation-id"
            | "x-ms-client-request-id"
            | "x-ot-span-context"
            | "x-request-id"
            | "x-span-id"
            | "x-trace-id"
    );
    let is_family = ["accept", "mcp-", "x-b3-", "x-datadog-", "x-instana-", "x-stainless-"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    !(is_known_otherwise || is_of_the_way || is_attempt || is_sender || is_trace || is_family)
}

/// Whether a header holds a credential: it names the caller, and never reaches a digest, a mapping or
/// a log.
pub fn is_credential(name: &str) -> bool {
    matches!(
        name,
        "api-key"
            | "apikey"
            | "authorization"
            | "cookie"
            | "ocp-apim-subscription-key"
            | "private-token"
            | "proxy-authorization"
            | "x-access-token"
            | "x-amz-security-token"
            | "x-api-key"
            | "x-auth-token"
            | "x-functions-key"
            | "x-gitlab-token"
            | "x-goog-api-key"
            | "x-vault-token"
    )
}

/// Percent-encodings that mean the same written one way: unreserved characters plain, digits in upper
/// case (RFC 3986 section 6.2.2).
fn normal(path_and_query: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(path_and_query.len());
    let mut rest = path_and_query.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = match (first, after) {
            (b'%', [high, low, ..]) => char::from(*high)
                .to_digit(16)
                .zip(char::from(*low).to_digit(16))
                .and_then(|(high, low)| u8::try_from(high * 16 + low).ok()),
            _ => None,
        };
        match escape {
            Some(byte) => {
                if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                    out.push(byte);
                } else {
                    out.push(b'%');
                    let digits = after.get(..2).unwrap_or_default();
                    out.extend(digits.iter().map(u8::to_ascii_uppercase));
                }
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

fn finish(sha: Sha256) -> Digest {
    Digest(sha.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::json::Doc;

    fn digest(path: &str, headers: &[(&'static str, &str)], body: &str) -> RequestDigest {
        let map: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        let doc = Doc::parse(body.to_owned()).unwrap();
        RequestDigest::http(
            &Method::POST,
            path,
            HeadForm {
                authority: Some(&HeaderValue::from_static("proxy")),
                headers: &map,
                vary_on: &[],
            },
            BodyForm::Json("application/json", doc.root()),
        )
    }

    #[test]
    fn i_7_what_cannot_change_the_meaning_does_not_count() {
        let plain = digest("/a?x=1", &[("x-tenant", "t")], r#"{"a":1,"b":[1.0]}"#);
        let dressed = digest(
            "/%61?x=1",
            &[("x-tenant", "t"), ("user-agent", "u"), ("authorization", "s"), ("accept", "*/*")],
            r#"{ "b" : [ 1.0 ], "\u0061": 1 }"#,
        );
        assert_eq!(plain, dressed);
    }

    #[test]
    fn g2_what_can_change_the_meaning_counts_and_its_part_is_told() {
        let plain = digest("/a?x=1", &[("x-tenant", "t")], r#"{"a":1}"#);
        let path = digest("/A?x=1", &[("x-tenant", "t")], r#"{"a":1}"#);
        let header = digest("/a?x=1", &[("x-tenant", "u")], r#"{"a":1}"#);
        let number = digest("/a?x=1", &[("x-tenant", "t")], r#"{"a":1.0}"#);

        for other in [path, header, number] {
            assert_ne!(plain.whole, other.whole);
        }
        assert_ne!(plain.target, path.target);
        assert_eq!(plain.body, path.body);
        assert_ne!(plain.headers, header.headers);
        assert_eq!(plain.mark, header.mark);
        assert_ne!(plain.body, number.body);
    }

    #[test]
    fn c_4_the_whole_content_type_and_the_authority_count_and_the_mark_leaves_them_out() {
        let of = |host: &'static str, kind: &'static str| {
            let mut map = HeaderMap::new();
            map.insert("content-type", kind.parse().unwrap());
            let body = BodyForm::Opaque("multipart/form-data", b"--a\r\n");
            let host = HeaderValue::from_static(host);
            let head = HeadForm { authority: Some(&host), headers: &map, vary_on: &[] };
            RequestDigest::http(&Method::POST, "/a", head, body)
        };
        let plain = of("a", "multipart/form-data; boundary=a");
        for other in [
            of("a", "multipart/form-data; boundary=b"),
            of("a", "multipart/form-data"),
            of("b", "multipart/form-data; boundary=a"),
        ] {
            assert_ne!(plain.whole, other.whole);
            assert_ne!(plain.headers, other.headers);
            assert_eq!(plain.mark, other.mark);
        }
    }

    #[test]
    fn g4_a_librarys_own_repeat_is_the_same_call() {
        let first = digest("/a", &[("x-stainless-retry-count", "0")], "{}");
        for (name, value) in [
            ("x-stainless-retry-count", "1"),
            ("sentry-trace", "1-2-1"),
            ("baggage", "a=1"),
            ("x-datadog-parent-id", "5"),
            ("x-b3-spanid", "5"),
            ("b3", "0"),
            ("x-client-request-id", "5"),
            ("x-request-attempt", "2"),
            ("amz-sdk-invocation-id", "5"),
            ("amz-sdk-request", "attempt=2"),
            ("x-goog-api-client", "gl-python/3 gccl-attempt-count/2"),
            ("cache-control", "no-cache"),
            ("pragma", "no-cache"),
            ("content-md5", "5"),
            ("content-digest", "5"),
            ("repr-digest", "5"),
            ("x-stripe-client-telemetry", "{}"),
        ] {
            assert_eq!(first, digest("/a", &[(name, value)], "{}"), "{name}");
        }
        for name in
            ["x-goog-request-params", "x-goog-user-project", "x-github-api-version", "prefer"]
        {
            assert_ne!(first.whole, digest("/a", &[(name, "5")], "{}").whole, "{name}");
        }
    }

    #[test]
    fn numbers_beyond_64_bits_are_told_apart() {
        let left = digest("/a", &[], "12345678901234567890");
        let right = digest("/a", &[], "12345678901234567891");
        assert_ne!(left.whole, right.whole);
    }
}
