//! Requests that their caller has signed, and whether a change would break the signature (standards
//! C-9). Such a change is refused before anything is sent: the upstream would take the call for one
//! that was tampered with, and so it is.
//!
//! Known: HTTP Message Signatures (RFC 9421), AWS Signature Version 4 in its header and in its query,
//! HTTP Digest, OAuth 1.0, and headers of vendors that sign the body (or all of it). Where a signature
//! says what it covers, only that counts. Digests of the body alone are no signatures: whoever changes
//! the body takes them out.

use http::{HeaderMap, HeaderName, header};

/// What is changed.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The body.
    Body,
    /// A header; one that a signature does not name may be added.
    Header(&'a HeaderName),
    /// The query.
    Query,
}

/// Headers that sign the body as the caller sent it.
const SIGN_BODIES: [&str; 6] = [
    "x-hub-signature",
    "x-hub-signature-256",
    "x-signature",
    "x-slack-signature",
    "stripe-signature",
    "webhook-signature",
];

/// The signature that a change would break; `None` if there is none.
pub fn broken_by(
    headers: &HeaderMap,
    query: Option<&str>,
    change: Change<'_>,
) -> Option<&'static str> {
    if has_message_signature(headers, change) {
        return Some("message signature (RFC 9421)");
    }
    let authorization = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
    if let Some(text) = authorization.and_then(|bytes| std::str::from_utf8(bytes).ok()) {
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("AWS4-"))
            && breaks_aws(headers, &rest.replace(' ', ""), change)
        {
            return Some("AWS signature");
        }
        let is_digest = scheme.eq_ignore_ascii_case("Digest");
        let covers_body = rest.contains("auth-int");
        match change {
            Change::Query if is_digest => return Some("HTTP Digest"),
            Change::Body if is_digest && covers_body => return Some("HTTP Digest"),
            Change::Query | Change::Body if scheme.eq_ignore_ascii_case("OAuth") => {
                return Some("OAuth signature");
            }
            Change::Body | Change::Header(_) | Change::Query => {}
        }
    }
    if query.is_some_and(|query| breaks_presigned(query, change)) {
        return Some("AWS signature");
    }
    // What it covers is said inside it; it always covers body, path and the key's header.
    if headers.contains_key("tl-signature") {
        return Some("Tl-Signature");
    }
    let signs_body = SIGN_BODIES.iter().any(|name| headers.contains_key(*name));
    (signs_body && matches!(change, Change::Body)).then_some("body signature")
}

/// RFC 9421: the components in `Signature-Input`, each in quotes, in lower case.
fn has_message_signature(headers: &HeaderMap, change: Change<'_>) -> bool {
    let names = |component: &str| {
        let quoted = format!("\"{component}\"");
        headers.get_all("signature-input").iter().any(|input| {
            String::from_utf8_lossy(input.as_bytes()).to_ascii_lowercase().contains(&quoted)
        })
    };
    match change {
        Change::Header(name) => names(name.as_str()),
        Change::Body => {
            ["content-digest", "content-length", "content-md5", "digest", "repr-digest"]
                .into_iter()
                .any(names)
        }
        Change::Query => {
            ["@query", "@query-param", "@request-target", "@target-uri"].into_iter().any(names)
        }
    }
}

fn breaks_aws(headers: &HeaderMap, credential: &str, change: Change<'_>) -> bool {
    match change {
        Change::Query => true,
        Change::Body => {
            let hash = headers.get("x-amz-content-sha256").map(|hash| hash.as_bytes());
            hash != Some(b"UNSIGNED-PAYLOAD")
        }
        Change::Header(name) => {
            let signed = credential.split(',').find_map(|part| part.strip_prefix("SignedHeaders="));
            // One that does not say what it covers covers everything.
            signed.is_none_or(|signed| {
                signed.split(';').any(|signed| signed.eq_ignore_ascii_case(name.as_str()))
            })
        }
    }
}

fn breaks_presigned(query: &str, change: Change<'_>) -> bool {
    let value = |wanted: &str| {
        query.split('&').find_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            name.eq_ignore_ascii_case(wanted).then_some(value)
        })
    };
    if value("X-Amz-Signature").is_none() {
        return false;
    }
    match change {
        Change::Query | Change::Body => true,
        Change::Header(name) => {
            let signed = value("X-Amz-SignedHeaders").map(|signed| signed.replace("%3B", ";"));
            signed.is_none_or(|signed| {
                signed.split(';').any(|signed| signed.eq_ignore_ascii_case(name.as_str()))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HeaderName = HeaderName::from_static("idempotency-key");

    fn broken(lines: &[(&'static str, &str)], query: Option<&str>) -> [bool; 3] {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        [Change::Header(&KEY), Change::Query, Change::Body]
            .map(|change| broken_by(&headers, query, change).is_some())
    }

    #[test]
    fn c_9_a_change_breaks_the_signatures_that_cover_it() {
        let aws = |signed: &str| {
            format!("AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders={signed}, Signature=00")
        };
        let (with, without) = (aws("host;idempotency-key;x-amz-date"), aws("host;x-amz-date"));
        let covering = |list: &str| format!("sig1=({list});created=1;keyid=\"k\"");
        type Row = (Vec<(&'static str, String)>, [bool; 3]);
        let table: Vec<Row> = vec![
            (vec![], [false, false, false]),
            (vec![("authorization", "Bearer a".into())], [false, false, false]),
            (vec![("signature-input", covering("\"@method\" \"@path\""))], [false, false, false]),
            (
                vec![("signature-input", covering("\"@method\" \"Idempotency-Key\""))],
                [true, false, false],
            ),
            (vec![("signature-input", covering("\"@target-uri\""))], [false, true, false]),
            (
                vec![("signature-input", covering("\"@query-param\";name=\"a\""))],
                [false, true, false],
            ),
            (vec![("signature-input", covering("\"content-digest\""))], [false, false, true]),
            (vec![("content-digest", "sha-256=:AA==:".into())], [false, false, false]),
            (vec![("authorization", with)], [true, true, true]),
            (vec![("authorization", without.clone())], [false, true, true]),
            (
                vec![
                    ("authorization", without),
                    ("x-amz-content-sha256", "UNSIGNED-PAYLOAD".into()),
                ],
                [false, true, false],
            ),
            (vec![("authorization", "AWS4-HMAC-SHA256 x".into())], [true, true, true]),
            (vec![("authorization", "Digest qop=auth".into())], [false, true, false]),
            (vec![("authorization", "Digest qop=auth-int".into())], [false, true, true]),
            (vec![("authorization", "OAuth oauth_signature=a".into())], [false, true, true]),
            (vec![("tl-signature", "a..b".into())], [true, true, true]),
            (vec![("x-hub-signature-256", "sha256=0".into())], [false, false, true]),
        ];
        for (lines, right) in table {
            let lines: Vec<_> = lines.iter().map(|(name, value)| (*name, &**value)).collect();
            assert_eq!(broken(&lines, None), right, "{lines:?}");
        }
        let presigned = "a=1&X-Amz-SignedHeaders=host%3Bidempotency-key&X-Amz-Signature=00";
        assert_eq!(broken(&[], Some(presigned)), [true, true, true]);
        let presigned = "X-Amz-SignedHeaders=host&X-Amz-Signature=00";
        assert_eq!(broken(&[], Some(presigned)), [false, true, true]);
        assert_eq!(broken(&[], Some("a=1")), [false, false, false]);
    }
}
