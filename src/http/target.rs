//! The request's target: one reading of the path, or a refusal; one host, or a refusal.
//!
//! The path that is matched is the path that is forwarded, byte for byte. What a lenient gateway could
//! read as another path (dot segments, empty segments, encoded slashes, `\`, `;` parameters, broken
//! escapes) is refused rather than normalised: the quiet failure would be a write matched as a read
//! (standards H-33; contract section 3.1).

use http::{HeaderMap, HeaderValue, Uri, Version, header};

use super::pairs;
use crate::call::Oddity;
use crate::call::refusal::Refusal;
use crate::contract::json::folded;
use crate::contract::overrides;

/// The longest target that is taken, in bytes (standards H-20o).
pub const MAX_TARGET: usize = 16 * 1024;

/// Checks a path. `None` is a plain one.
pub fn oddity(path: &str) -> Option<Oddity> {
    let bytes = path.as_bytes();
    if bytes.first() != Some(&b'/') {
        return Some(Oddity::Other(Refusal::path("no leading slash")));
    }
    // The usual path has none of these bytes. No branch, so that several are compared at once.
    let has_odd_byte = bytes.iter().fold(false, |is_odd, byte| {
        is_odd | matches!(byte, b'%' | b'\\' | b';' | b'#' | 0..=b' ' | 0x7f..)
    });
    let has_odd_start = bytes.iter().zip(bytes.iter().skip(1)).fold(false, |is_odd, pair| {
        is_odd | ((*pair.0 == b'/') & ((*pair.1 == b'/') | (*pair.1 == b'.')))
    });
    if !has_odd_byte && !has_odd_start {
        return None;
    }
    let other = |what| Some(Oddity::Other(Refusal::path(what)));
    let mut has_encoded_slash = false;
    let mut has_empty_segment = false;
    let inner = path.strip_prefix('/').unwrap_or_default();
    let count = inner.split('/').count();
    for (index, segment) in inner.split('/').enumerate() {
        let is_last = index.saturating_add(1) == count;
        if segment.is_empty() && !is_last {
            has_empty_segment = true;
        }
        let Some(decoded) = decode(segment) else {
            return other("a broken percent-encoding");
        };
        for byte in &decoded {
            match byte {
                b'/' => has_encoded_slash = true,
                b'\\' => return other("a backslash"),
                0 => return other("a NUL"),
                b';' => return other("a `;` parameter"),
                1..=0x1f | 0x7f => return other("a control character"),
                _ => {}
            }
        }
        if segment.bytes().any(|byte| matches!(byte, b'#' | b' ' | 0x80..)) {
            return other("a character that must be percent-encoded");
        }
        if std::str::from_utf8(&decoded).is_err() {
            return other("a percent-encoding that is not UTF-8");
        }
        if decoded.split(|byte| *byte == b'/').any(|part| matches!(part, b"." | b"..")) {
            return other("a dot segment");
        }
        // Readers that take these off, or off a segment's end, find an empty one.
        let text = std::str::from_utf8(&decoded).unwrap_or_default();
        let is_padding = |character: char| character == '.' || character.is_whitespace();
        if !text.is_empty() && text.chars().all(is_padding) {
            return other("a segment of nothing but dots and spaces");
        }
    }
    if has_encoded_slash {
        return Some(Oddity::EncodedSlash);
    }
    has_empty_segment.then_some(Oddity::EmptySegment)
}

/// Decodes percent-encodings once; `None` for a broken one.
fn decode(segment: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let high = char::from(bytes.next()?).to_digit(16)?;
        let low = char::from(bytes.next()?).to_digit(16)?;
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    Some(out)
}

/// The one authority that the request names (standards H-15).
///
/// # Errors
///
/// `Host` missing (HTTP/1.1), or not the authority of the target.
pub fn authority(
    uri: &Uri,
    headers: &HeaderMap,
    version: Version,
) -> Result<Option<HeaderValue>, Refusal> {
    let host = match headers.get(header::HOST) {
        Some(value) if uri.authority().is_none() && is_plain_authority(value.as_bytes()) => {
            return Ok(Some(value.clone()));
        }
        Some(value) => {
            let host = value.to_str().map_err(|_| Refusal::Host("not readable"))?.trim();
            let is_sound = host
                .parse::<http::uri::Authority>()
                .is_ok_and(|authority| !host.contains('@') && !authority.host().is_empty());
            if !is_sound {
                return Err(Refusal::Host("not a host"));
            }
            Some((host, value))
        }
        None => None,
    };
    let unreadable = |_| Refusal::Host("not readable");
    match (uri.authority(), host) {
        (Some(authority), _) if authority.as_str().contains('@') => {
            Err(Refusal::Host("user information in the target"))
        }
        (Some(authority), Some((host, _))) if !authority.as_str().eq_ignore_ascii_case(host) => {
            Err(Refusal::Host("`Host` differs from the target"))
        }
        (Some(authority), _) => {
            HeaderValue::from_str(authority.as_str()).map(Some).map_err(unreadable)
        }
        (None, Some((_, value))) => Ok(Some(value.clone())),
        (None, None) if version == Version::HTTP_10 => Ok(None),
        (None, None) => Err(Refusal::Host("it is missing")),
    }
}

/// Whether this is a name or an IPv4 address, with a port or without: what nearly every host is, and
/// what needs no parser to be one.
fn is_plain_authority(host: &[u8]) -> bool {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let name = host.iter().position(|byte| !is_of_name(byte)).unwrap_or(host.len());
    match host.get(name..) {
        Some([]) => name > 0,
        Some([b':', port @ ..]) => {
            name > 0 && !port.is_empty() && port.iter().all(u8::is_ascii_digit)
        }
        Some(_) | None => false,
    }
}

/// Whether a reader takes a decoded name of a query, a form or a JSON body for one that asks for another
/// method: PHP reads `.method`, ` _method` and `_method[` so.
pub fn is_override(name: &str) -> bool {
    overrides::is_member(&folded(name))
}

/// Whether the query asks for another method (standards H-32).
pub fn overrides_method(query: Option<&str>) -> bool {
    query.is_some_and(|query| {
        let query = query.as_bytes();
        pairs::parted(query)
            .chain(pairs::further(query))
            .any(|pair| is_override(&pairs::name(pair)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn verdict(path: &str) -> &'static str {
        match oddity(path) {
            None => "plain",
            Some(Oddity::EncodedSlash) => "encoded slash",
            Some(Oddity::EmptySegment) => "empty segment",
            Some(Oddity::Other(_)) => "refused",
        }
    }

    #[test]
    fn c1_c2_c3_h_33_a_path_has_one_reading_or_none() {
        let cases = [
            ("/", "plain"),
            ("/v1/customers/c1", "plain"),
            ("/v1/customers/", "plain"),
            ("/a/.well-known/x", "plain"),
            ("/a/..b", "plain"),
            ("/a/%20b/...c", "plain"),
            ("/a/%20", "refused"),
            ("/a/.../b", "refused"),
            ("/a/%2e%C2%A0/b", "refused"),
            ("/v1/%252e%252e/charges", "plain"),
            ("/a%20b", "plain"),
            ("/caf%C3%A9", "plain"),
            ("/keypairs/x:disable", "plain"),
            ("/public/../v1/customers/c1", "refused"),
            ("/v1/./customers/c1", "refused"),
            ("/v1/customers/..", "refused"),
            ("/api/public/%2e%2e/admin", "refused"),
            ("/api/public/.%2E/admin", "refused"),
            ("/a%2f..%2fb", "refused"),
            ("/v1/charges;x=1", "refused"),
            ("/v1/charges%3Bx", "refused"),
            ("/a\\b", "refused"),
            ("/a%5Cb", "refused"),
            ("/a%00", "refused"),
            ("/a%0ab", "refused"),
            ("/a%", "refused"),
            ("/a%2", "refused"),
            ("/a%zz", "refused"),
            ("/%ff", "refused"),
            ("/%c0%af", "refused"),
            ("/\u{e9}", "refused"),
            ("a", "refused"),
            ("", "refused"),
            ("*", "refused"),
            ("/v1%2Fcharges", "encoded slash"),
            ("/v1//customers/c1", "empty segment"),
            ("//a", "empty segment"),
        ];
        for (path, expected) in cases {
            assert_eq!(verdict(path), expected, "{path}");
        }
    }

    #[test]
    fn h_15_one_host_and_it_is_the_targets() {
        let name = |target: &str, host: Option<&str>, version| {
            let mut headers = HeaderMap::new();
            if let Some(host) = host {
                headers.insert(header::HOST, host.parse().unwrap());
            }
            authority(&target.parse().unwrap(), &headers, version).map_err(|r| r.code())
        };
        assert_eq!(name("/a", Some("h:1"), Version::HTTP_11), Ok(Some("h:1".parse().unwrap())));
        assert_eq!(
            name("http://h:1/a", Some("H:1"), Version::HTTP_11),
            Ok(Some("h:1".parse().unwrap()))
        );
        assert_eq!(name("http://h/a", None, Version::HTTP_2), Ok(Some("h".parse().unwrap())));
        assert_eq!(name("/a", None, Version::HTTP_10), Ok(None));
        for (target, host) in [
            ("/a", None),
            ("http://h/a", Some("g")),
            ("/a", Some("u@h")),
            ("/a", Some("a b")),
            ("/a", Some("")),
            ("http://u@h/a", Some("h")),
        ] {
            assert_eq!(name(target, host, Version::HTTP_11), Err("host"), "{target} {host:?}");
        }
    }

    #[test]
    fn h_32_an_overriding_query_member_is_seen() {
        assert!(overrides_method(Some("a=1&_method=DELETE")));
        assert!(overrides_method(Some("_Method=DELETE")));
        assert!(overrides_method(Some("%5fmethod=DELETE")));
        assert!(overrides_method(Some("%24httpMethod=DELETE")));
        for name in
            [".method", "+_method", "%20.method", "_method%00", "_method%5B%5D", "%FF;_method"]
        {
            assert!(overrides_method(Some(&format!("a=1&{name}=DELETE"))), "{name}");
        }
        assert!(overrides_method(Some("a=1;_method=DELETE")));
        assert!(!overrides_method(Some("a_method=1&method=2")));
        assert!(!overrides_method(Some("a=_method")));
        assert!(!overrides_method(None));
    }

    /// The compiler knows these rules too: a template that they always refuse is a finding.
    #[test]
    fn a_template_is_told_as_never_matched_exactly_where_its_paths_are_refused() {
        let literals = [
            "a",
            "a%2Fb",
            "a%2fb",
            "a%5Cb",
            "a%00",
            "a;b",
            "a%3Bb",
            "a%0a",
            "%7F",
            "%ff",
            "%C3%A9",
            "%2e%2e%2fa",
            "a%2F%2e",
            "a%2F..b",
            "a:b",
            "..a",
            ".a",
            "%2ea",
            "a%20b",
            "%252F",
            "%20.",
            "...",
            "...a",
        ];
        for literal in literals {
            for template in [format!("/{literal}"), format!("/x/{literal}{{id}}/y")] {
                for allow in ["", ", allow: { encoded_slash: true }"] {
                    let text = format!(
                        "version: 1\noperations: {{ a: {{ match: {{ http: \"POST {template}\" }}{allow} }} }}"
                    );
                    let compiled = crate::policy::compile(vec![("a.yaml".to_owned(), text)]);
                    let is_told =
                        compiled.diagnostics.iter().any(|found| found.code == "policy/unreachable");
                    let is_refused = match oddity(&template.replace("{id}", "1")) {
                        None | Some(Oddity::EmptySegment) => false,
                        Some(Oddity::EncodedSlash) => allow.is_empty(),
                        Some(Oddity::Other(_)) => true,
                    };
                    assert!(compiled.snapshot.is_some(), "{}", compiled.human());
                    assert_eq!(is_told, is_refused, "{template}{allow}: {}", compiled.human());
                }
            }
        }
    }

    proptest! {
        /// The quick pass and the careful one agree that a path is plain.
        #[test]
        fn plain_paths_have_no_second_reading(path in "/[a-z./%;\\\\25eEfF~:@-]{0,16}") {
            if oddity(&path).is_none() {
                let decoded = decode(&path).unwrap();
                let decoded = String::from_utf8(decoded).unwrap();
                let inner = decoded.strip_prefix('/').unwrap();
                let segments: Vec<&str> = inner.split('/').collect();
                for (index, segment) in segments.iter().enumerate() {
                    prop_assert!(!matches!(*segment, "." | ".."));
                    prop_assert!(!segment.is_empty() || index + 1 == segments.len());
                }
                prop_assert_eq!(decoded.matches('/').count(), path.matches('/').count());
            }
        }
    }
}
