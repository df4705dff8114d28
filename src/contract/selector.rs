//! Selectors: which value of the evidence an assertion or an `upstream_id` reads (EffectSpec).
//!
//! The sources are a closed set. `mcp_structured` reads the same evidence as `response_body`: both
//! are the answer's JSON. What a selector finds is a scalar, nothing, or something that proves
//! nothing either way ([`Selected::Invalid`]).

use std::borrow::Cow;

use super::json::{Kind, Value};
use super::path::Request;
use super::pointer::Pointer;

/// A place in the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// `http_status`
    HttpStatus,
    /// `mcp_structured`
    McpStructured(Pointer),
    /// `request_body`: the body of a plain call, the arguments of an MCP call.
    RequestBody(Pointer),
    /// `response_body`
    ResponseBody(Pointer),
    /// `response_header`
    ResponseHeader(http::HeaderName),
}

/// What was observed of one call.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The answer's status.
    pub status: u16,
    /// The answer's headers as the upstream sent them.
    pub headers: &'a http::HeaderMap,
    /// The answer's JSON; absent where there is none, or none that can be read.
    pub response: Option<Value<'a>>,
    /// The request as the caller meant it.
    pub request: Request<'a>,
}

/// What a selector found.
#[derive(Clone)]
pub enum Selected<'a> {
    /// An object or array, several header lines, or a body that cannot be read.
    Invalid,
    /// Nothing.
    Missing,
    /// The status.
    Status(u16),
    /// A header's one line.
    Text(Cow<'a, str>),
    /// A scalar, `null` included.
    Value(Value<'a>),
}

impl std::fmt::Debug for Selected<'_> {
    /// Shows which it is; compared values never reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Invalid => "Invalid",
            Self::Missing => "Missing",
            Self::Status(_) => "Status",
            Self::Text(_) => "Text",
            Self::Value(_) => "Value",
        })
    }
}

impl Selector {
    /// Reads its place.
    pub fn select<'a>(&'a self, evidence: &Evidence<'a>) -> Selected<'a> {
        match self {
            Self::HttpStatus => Selected::Status(evidence.status),
            Self::McpStructured(pointer) | Self::ResponseBody(pointer) => {
                from_body(evidence.response, pointer)
            }
            Self::RequestBody(pointer) => from_body(evidence.request.body(), pointer),
            Self::ResponseHeader(name) => {
                let mut lines = evidence.headers.get_all(name).iter();
                match (lines.next(), lines.next()) {
                    (None, _) => Selected::Missing,
                    (Some(_), Some(_)) => Selected::Invalid,
                    (Some(line), None) => match line.to_str() {
                        Ok(text) => Selected::Text(Cow::Borrowed(text)),
                        Err(_) => Selected::Invalid,
                    },
                }
            }
        }
    }

    /// The identifier that it selects: a non-empty string, or an integer as its text.
    ///
    /// Anything else is no identifier: a fraction, `true` or `null` there is a wrong declaration,
    /// and a wrong identifier is worse than none.
    pub fn identifier(&self, evidence: &Evidence<'_>) -> Option<String> {
        let text = match self.select(evidence) {
            Selected::Invalid | Selected::Missing => return None,
            Selected::Status(status) => status.to_string(),
            Selected::Text(text) => text.into_owned(),
            Selected::Value(value) => match value.kind() {
                Kind::String => value.as_str()?.into_owned(),
                Kind::Number => {
                    let number = value.as_number()?;
                    let is_integer = !number.contains(['.', 'e', 'E']);
                    return is_integer.then(|| number.to_owned());
                }
                Kind::Array | Kind::Bool | Kind::Null | Kind::Object => return None,
            },
        };
        (!text.is_empty()).then_some(text)
    }
}

fn from_body<'a>(body: Option<Value<'a>>, pointer: &Pointer) -> Selected<'a> {
    let Some(body) = body else {
        return Selected::Invalid;
    };
    match pointer.resolve(body) {
        None => Selected::Missing,
        Some(value) if value.is_scalar() => Selected::Value(value),
        Some(_) => Selected::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::super::json::Doc;
    use super::*;

    fn pointer(text: &str) -> Pointer {
        Pointer::parse(text).unwrap()
    }

    fn header(name: &'static str) -> Selector {
        Selector::ResponseHeader(http::HeaderName::from_static(name))
    }

    #[test]
    fn identifiers_are_non_empty_strings_and_integers_only() {
        let response = Doc::parse(
            r#"{"s":"c_1","empty":"","int":9007199254740993,"neg":-4,"frac":1.0,"exp":1e2,
                "yes":true,"nul":null,"list":[1],"obj":{},"esc":"\u00e9"}"#,
        )
        .unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-id", "h_1".parse().unwrap());
        headers.insert("x-empty", "".parse().unwrap());
        let arguments = Doc::parse(r#"{"id":"from-request"}"#).unwrap();
        let evidence = Evidence {
            status: 201,
            headers: &headers,
            response: Some(response.root()),
            request: Request::Arguments(arguments.root()),
        };
        let body = |text: &str| Selector::ResponseBody(pointer(text));
        let cases = [
            (body("/s"), Some("c_1")),
            (body("/esc"), Some("é")),
            (body("/int"), Some("9007199254740993")),
            (body("/neg"), Some("-4")),
            (body("/empty"), None),
            (body("/frac"), None),
            (body("/exp"), None),
            (body("/yes"), None),
            (body("/nul"), None),
            (body("/list"), None),
            (body("/obj"), None),
            (body("/none"), None),
            (Selector::McpStructured(pointer("/s")), Some("c_1")),
            (Selector::RequestBody(pointer("/id")), Some("from-request")),
            (Selector::HttpStatus, Some("201")),
            (header("x-id"), Some("h_1")),
            (header("x-empty"), None),
            (header("x-none"), None),
        ];
        for (selector, expected) in cases {
            assert_eq!(selector.identifier(&evidence).as_deref(), expected, "{selector:?}");
        }
    }

    #[test]
    fn header_lines_that_prove_nothing_are_invalid() {
        let mut headers = HeaderMap::new();
        headers.append("x-twice", "a".parse().unwrap());
        headers.append("x-twice", "a".parse().unwrap());
        headers.insert("x-bytes", http::HeaderValue::from_bytes(b"\xe9").unwrap());
        let evidence = Evidence {
            status: 200,
            headers: &headers,
            response: None,
            request: Request::Unreadable,
        };

        assert!(matches!(header("x-twice").select(&evidence), Selected::Invalid));
        assert!(matches!(header("x-bytes").select(&evidence), Selected::Invalid));
        assert!(matches!(header("x-none").select(&evidence), Selected::Missing));
    }

    #[test]
    fn bodies_that_cannot_be_read_are_invalid_and_not_missing() {
        let headers = HeaderMap::new();
        let evidence = Evidence {
            status: 200,
            headers: &headers,
            response: None,
            request: Request::Unreadable,
        };
        let selectors = [
            Selector::ResponseBody(pointer("/id")),
            Selector::McpStructured(pointer("/id")),
            Selector::RequestBody(pointer("/id")),
        ];
        for selector in selectors {
            assert!(matches!(selector.select(&evidence), Selected::Invalid), "{selector:?}");
        }
    }
}
