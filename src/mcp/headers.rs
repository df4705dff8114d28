//! The headers that mirror the body, held against it (standards MCP-1, MCP-9, MCP-10).
//!
//! Nothing is decided from them, but an upstream, or anything between, may decide from them: a
//! request whose headers say one thing and whose body says another is refused. Names count with `_`
//! as `-`, as gateways of some kinds read them. `Mcp-Param-` headers are left alone (MCP-3).

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::contract::json::{Kind as JsonKind, Value};

use super::jsonrpc::{Message, Rejection, code};
use super::{Era, META_CAPABILITIES, META_VERSION, TOOLS_CALL};

const VERSION: &str = "mcp-protocol-version";
const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";

const DIFFERENT: &str = "a mirrored MCP header does not equal the body; nothing was sent";
const MISSING: &str = "a mirrored MCP header is missing; nothing was sent";
const REPEATED: &str = "a mirrored MCP header is there more than once; nothing was sent";

/// Holds the mirrored headers against the body.
///
/// A modern `tools/call` must have all three, each once; what any other message has must equal its
/// body. A legacy request may have none. A version that nobody knows passes: it is the upstream's
/// to refuse (case D16).
///
/// # Errors
///
/// 400: -32602 if the `_meta` of a modern `tools/call` lacks what the revision demands; -32020 for
/// a mismatch in a modern request; -32600 in a legacy one, which must not be told that the server
/// is modern (MCP-9), and for two versions that differ.
pub fn check_headers(headers: &HeaderMap, message: &Message) -> Result<(), Rejection> {
    let era = Era::of(headers, message);
    let is_strict = era == Era::Modern && message.method() == Some(TOOLS_CALL);
    if is_strict && !has_required_meta(message) {
        let text = "params._meta lacks io.modelcontextprotocol/protocolVersion or \
                    clientCapabilities; nothing was sent";
        return Err(Rejection::new(400, code::INVALID_PARAMS, text, message.id()));
    }
    compare(headers, message, era, is_strict).map_err(|text| {
        let code = match era {
            Era::Modern => code::HEADER_MISMATCH,
            Era::Legacy => code::INVALID_REQUEST,
        };
        Rejection::new(400, code, text, message.id())
    })
}

/// Holds what the headers say of the body's form against what is read: JSON in UTF-8, not encoded
/// (case E6). A reader that believes another charset reads another call.
///
/// # Errors
///
/// 415 and -32600 for a `charset` that is not UTF-8 or ASCII, or a `Content-Encoding` that is not
/// `identity`.
pub fn check_form(headers: &HeaderMap) -> Result<(), Rejection> {
    let refuse = |text| Err(Rejection::new(415, code::INVALID_REQUEST, text, None));
    for value in headers.get_all(CONTENT_TYPE) {
        let is_readable = value.to_str().is_ok_and(|value| charsets(value).all(is_utf_8));
        if !is_readable {
            return refuse("the body's charset is not UTF-8; nothing was sent");
        }
    }
    // Few have it, and a look-up hashes its name.
    if !headers.keys().any(|name| *name == CONTENT_ENCODING) {
        return Ok(());
    }
    for value in headers.get_all(CONTENT_ENCODING) {
        if !value.as_bytes().eq_ignore_ascii_case(b"identity") {
            return refuse("the body is encoded; nothing was sent");
        }
    }
    Ok(())
}

/// The value of the version header, if there is one and no other differs from it.
pub(super) fn version(headers: &HeaderMap) -> Option<&str> {
    let field = Field::of(headers, VERSION);
    let value = field.first.filter(|_| field.is_uniform)?;
    value.to_str().ok()
}

/// The values of the `charset` parameters of a content type.
fn charsets(content_type: &str) -> impl Iterator<Item = &str> {
    let parameters = content_type.split(';').skip(1).filter_map(|text| text.split_once('='));
    parameters
        .filter(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))
        .map(|(_, value)| value.trim().trim_matches('"'))
}

/// Whether the charset is UTF-8, or ASCII, which is part of it.
fn is_utf_8(charset: &str) -> bool {
    ["utf-8", "utf8", "us-ascii"].iter().any(|name| charset.eq_ignore_ascii_case(name))
}

fn has_required_meta(message: &Message) -> bool {
    let Some(meta) = message.meta() else {
        return false;
    };
    let has = |name, kind| meta.get(name).is_some_and(|value| value.kind() == kind);
    has(META_VERSION, JsonKind::String) && has(META_CAPABILITIES, JsonKind::Object)
}

fn compare(
    headers: &HeaderMap,
    message: &Message,
    era: Era,
    is_strict: bool,
) -> Result<(), &'static str> {
    let version = Field::of(headers, VERSION);
    if !version.is_uniform || has_differing_twins(headers) {
        return Err(REPEATED);
    }
    let named = message.meta().and_then(|meta| meta.get(META_VERSION));
    version.check(era, is_strict, named.and_then(Value::as_str).as_deref(), Encoding::Plain)?;
    let Some(method) = message.method() else {
        return Ok(());
    };
    Field::of(headers, METHOD).check(era, is_strict, Some(method), Encoding::Plain)?;
    let name = mirrored_name(method, message);
    Field::of(headers, NAME).check(era, is_strict, name.as_deref(), Encoding::Sentinel)
}

/// Whether a header of MCP's own, such as the session's id, is there twice with values that differ:
/// whoever reads the last one reads another message.
fn has_differing_twins(headers: &HeaderMap) -> bool {
    let is_ours = |name: &&HeaderName| {
        name.as_str().starts_with("mcp-") && !name.as_str().starts_with("mcp-param-")
    };
    headers.keys().filter(is_ours).any(|name| {
        let mut values = headers.get_all(name).iter();
        let first = values.next();
        values.any(|value| Some(value) != first)
    })
}

/// The member that `Mcp-Name` mirrors (standards 1.1).
fn mirrored_name<'a>(method: &str, message: &'a Message) -> Option<Cow<'a, str>> {
    let member = match method {
        TOOLS_CALL | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/cancel" | "tasks/get" | "tasks/result" | "tasks/update" => "taskId",
        _ => return None,
    };
    message.params()?.get(member)?.as_str()
}

#[derive(Clone, Copy)]
enum Encoding {
    Plain,
    /// `=?base64?…?=` stands for what it holds.
    Sentinel,
}

/// The values of one header.
struct Field<'a> {
    first: Option<&'a HeaderValue>,
    count: usize,
    is_uniform: bool,
}

impl<'a> Field<'a> {
    fn of(headers: &'a HeaderMap, wanted: &str) -> Self {
        let mut field = Self { first: None, count: 0, is_uniform: true };
        for (_, value) in headers.iter().filter(|(name, _)| is_named(name, wanted)) {
            let first = *field.first.get_or_insert(value);
            field.count = field.count.saturating_add(1);
            field.is_uniform = field.is_uniform && first == value;
        }
        field
    }

    /// `expected` is the body's value; where the body has none there is nothing to compare.
    fn check(
        &self,
        era: Era,
        is_strict: bool,
        expected: Option<&str>,
        encoding: Encoding,
    ) -> Result<(), &'static str> {
        let Some(value) = self.first else {
            return if is_strict { Err(MISSING) } else { Ok(()) };
        };
        if !self.is_uniform || (era == Era::Modern && self.count > 1) {
            return Err(REPEATED);
        }
        let Some(expected) = expected else {
            return Ok(());
        };
        let value = value.to_str().map_err(|_| DIFFERENT)?;
        let is_equal = match encoding {
            Encoding::Plain => value == expected,
            Encoding::Sentinel => {
                decoded(value).is_some_and(|bytes| *bytes == *expected.as_bytes())
            }
        };
        if is_equal { Ok(()) } else { Err(DIFFERENT) }
    }
}

fn is_named(name: &HeaderName, wanted: &str) -> bool {
    let name = name.as_str();
    name.len() == wanted.len()
        && name
            .bytes()
            .zip(wanted.bytes())
            .all(|(byte, wanted)| byte == wanted || (byte == b'_' && wanted == b'-'))
}

/// A text as the value of a mirrored header: itself, or behind the sentinel where a header could not
/// hold it or a reader would take it for a sentinel (standards MCP-14).
pub fn mirrored_value(text: &str) -> HeaderValue {
    let is_plain = text.bytes().all(|byte| matches!(byte, 0x20..=0x7e))
        && text.trim() == text
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    let encoded = || format!("=?base64?{}?=", STANDARD.encode(text));
    let value =
        if is_plain { HeaderValue::from_str(text) } else { HeaderValue::try_from(encoded()) };
    // Both alphabets are visible ASCII, which a header always holds.
    value.unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The value behind the sentinel, whose markers are case-sensitive; other values stand for
/// themselves. `None` if what it holds is not base64.
fn decoded(value: &str) -> Option<Cow<'_, [u8]>> {
    let inner = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    match inner {
        None => Some(Cow::Borrowed(value.as_bytes())),
        Some(inner) => STANDARD.decode(inner).ok().map(Cow::Owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(method: &str, params: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"{method}","params":{params}}}"#);
        Message::read(text.into()).unwrap()
    }

    fn modern(version: &str, rest: &str) -> String {
        format!(
            r#"{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"{version}",
                "io.modelcontextprotocol/clientCapabilities":{{}}}}{rest}}}"#
        )
    }

    /// Code of the refusal, 0 for none.
    fn check(headers: &[(&str, &str)], message: &Message) -> i64 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        match check_headers(&map, message) {
            Ok(()) => 0,
            Err(rejection) => {
                assert_eq!(rejection.http_status, 400);
                assert_eq!(rejection.id.as_ref().map(|id| id.as_token()), Some("5"));
                rejection.code
            }
        }
    }

    #[test]
    fn mcp_10_a_modern_call_needs_every_mirrored_header_once_and_equal() {
        let call = message("tools/call", &modern("2026-07-28", r#","name":"send_mail""#));
        let version = ("MCP-Protocol-Version", "2026-07-28");
        let method = ("Mcp-Method", "tools/call");
        let name = ("Mcp-Name", "send_mail");
        let cases: &[(&[(&str, &str)], i64)] = &[
            (&[version, method, name], 0),
            (&[version, method, name, ("Mcp-Param-To", "x"), ("Mcp-Param-To", "y")], 0),
            (&[version, method, name, ("Mcp-Session-Id", "a"), ("Mcp-Session-Id", "b")], -32020),
            (&[method, name], -32020),
            (&[version, name], -32020),
            (&[version, method], -32020),
            (&[], -32020),
            (&[version, version, method, name], -32020),
            (&[version, method, method, name], -32020),
            (&[version, method, name, name], -32020),
            (&[version, method, name, ("mcp_name", "get_mail")], -32020),
            (&[version, method, ("mcp_name", "send_mail")], 0),
            (&[version, method, ("Mcp-Name", "get_mail")], -32020),
            (&[version, method, ("Mcp-Name", "Send_mail")], -32020),
            (&[version, ("Mcp-Method", "tools/list"), name], -32020),
            (&[version, ("Mcp-Method", "Tools/Call"), name], -32020),
            (&[("MCP-Protocol-Version", "2025-11-25"), method, name], -32020),
        ];
        for (headers, expected) in cases {
            assert_eq!(check(headers, &call), *expected, "{headers:?}");
        }
    }

    #[test]
    fn mcp_3_the_base64_sentinel_is_decoded_and_its_markers_are_case_sensitive() {
        let named = |name: &str| {
            message("tools/call", &modern("2026-07-28", &format!(r#","name":"{name}""#)))
        };
        let check_name = |header: &str, message: &Message| {
            let headers = [
                ("MCP-Protocol-Version", "2026-07-28"),
                ("Mcp-Method", "tools/call"),
                ("Mcp-Name", header),
            ];
            check(&headers, message)
        };

        assert_eq!(check_name("=?base64?w6k=?=", &named("é")), 0);
        assert_eq!(check_name("=?base64?w6k=?=", &named("e")), -32020);
        assert_eq!(check_name("=?BASE64?w6k=?=", &named("é")), -32020);
        assert_eq!(check_name("=?base64?!!?=", &named("!!")), -32020);
        assert_eq!(check_name("=?base64?w6k=?=", &named("=?base64?w6k=?=")), -32020);
        assert_eq!(check_name("=?base64?PT9iYXNlNjQ/dzZrPT89?=", &named("=?base64?w6k=?=")), 0);
        assert_eq!(check_name("é", &named("é")), -32020);
    }

    #[test]
    fn mcp_10_a_modern_call_without_its_required_meta_is_refused() {
        let header = [
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", "x"),
        ];
        let version = "io.modelcontextprotocol/protocolVersion";
        let capabilities = "io.modelcontextprotocol/clientCapabilities";
        let cases = [
            r#"{"name":"x"}"#.to_owned(),
            r#"{"name":"x","_meta":{}}"#.to_owned(),
            format!(r#"{{"name":"x","_meta":{{"{version}":"2026-07-28"}}}}"#),
            format!(r#"{{"name":"x","_meta":{{"{capabilities}":{{}}}}}}"#),
            format!(r#"{{"name":"x","_meta":{{"{version}":1,"{capabilities}":{{}}}}}}"#),
            format!(r#"{{"name":"x","_meta":{{"{version}":"2026-07-28","{capabilities}":1}}}}"#),
        ];
        for params in cases {
            assert_eq!(check(&header, &message("tools/call", &params)), -32602, "{params}");
        }
    }

    #[test]
    fn mcp_9_legacy_requests_are_never_told_of_a_modern_server() {
        let call = message("tools/call", r#"{"name":"x"}"#);
        let cases: &[(&[(&str, &str)], i64)] = &[
            (&[], 0),
            (&[("MCP-Protocol-Version", "2025-11-25")], 0),
            (&[("MCP-Protocol-Version", "2025-11-25"), ("Mcp-Method", "tools/call")], 0),
            (&[("Mcp-Method", "tools/list")], -32600),
            (&[("Mcp-Name", "y")], -32600),
            (&[("Mcp-Name", "x"), ("Mcp-Name", "y")], -32600),
            (&[("Mcp-Name", "x"), ("Mcp-Name", "x")], 0),
        ];
        for (headers, expected) in cases {
            assert_eq!(check(headers, &call), *expected, "{headers:?}");
        }
    }

    #[test]
    fn d16_unknown_versions_pass_and_two_different_ones_are_refused() {
        let call = message("tools/call", r#"{"name":"x"}"#);
        for version in ["1900-01-01", "not-a-version", ""] {
            assert_eq!(check(&[("MCP-Protocol-Version", version)], &call), 0, "{version}");
        }
        let two = [("MCP-Protocol-Version", "2025-11-25"), ("MCP-Protocol-Version", "2026-07-28")];
        assert_eq!(check(&two, &call), -32600);

        let unknown = message("tools/call", &modern("1900-01-01", r#","name":"x""#));
        let headers = [
            ("MCP-Protocol-Version", "1900-01-01"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", "x"),
        ];
        assert_eq!(check(&headers, &unknown), 0);
    }

    #[test]
    fn e6_a_body_in_another_charset_or_encoding_is_refused() {
        let check = |name: HeaderName, value: &'static str| {
            let map = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            check_form(&map).map_err(|rejection| rejection.http_status)
        };
        let fine = [
            "application/json",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "text/plain; charset=us-ascii",
            "application/json; profile=x",
        ];
        for value in fine {
            assert_eq!(check(CONTENT_TYPE, value), Ok(()), "{value}");
        }
        let odd = [
            "application/json; charset=utf-16",
            "application/json; Charset = iso-8859-1",
            "application/json; charset=utf-8; charset=utf-7",
            "application/json; charset=",
        ];
        for value in odd {
            assert_eq!(check(CONTENT_TYPE, value), Err(415), "{value}");
        }
        assert_eq!(check(CONTENT_ENCODING, "identity"), Ok(()));
        for value in ["gzip", "identity, br", ""] {
            assert_eq!(check(CONTENT_ENCODING, value), Err(415), "{value}");
        }
    }

    #[test]
    fn mcp_1_other_modern_requests_may_lack_headers_but_not_contradict_the_body() {
        let discover = message("server/discover", &modern("2026-07-28", ""));
        assert_eq!(check(&[], &discover), 0);
        assert_eq!(check(&[("Mcp-Method", "server/discover")], &discover), 0);
        assert_eq!(check(&[("Mcp-Method", "ping")], &discover), -32020);

        for (method, member) in
            [("prompts/get", "name"), ("resources/read", "uri"), ("tasks/get", "taskId")]
        {
            let params = modern("2026-07-28", &format!(r#","{member}":"a b""#));
            let request = message(method, &params);
            assert_eq!(check(&[("Mcp-Name", "a b")], &request), 0, "{method}");
            assert_eq!(check(&[("Mcp-Name", "b")], &request), -32020, "{method}");
        }
    }
}
