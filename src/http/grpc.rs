//! gRPC over HTTP/2: what its status says of a write, and refusals in its own form.
//!
//! A call is matched by its path, `POST /package.Service/Method`, like any other; bodies are opaque.
//! What came of it is in `grpc-status`, in the trailers or, without a body, in the head; the HTTP
//! status says nothing (standards H-14).
//!
//! | status | a write is |
//! |---|---|
//! | 0 | accepted |
//! | 3, 5, 6, 7, 9, 11, 12, 16 | definitely rejected: the arguments, the state or the caller |
//! | 1, 2, 4, 8, 10, 13, 14, 15, none, any other | unknown: it may have run, or a proxy said so |
//!
//! A refusal keeps its HTTP status, and says the same in `grpc-status` and `grpc-message`, which
//! clients prefer, as an answer without a body.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use crate::call::payload::Body;
use crate::call::refusal::Refusal;
use crate::contract::class::Disposition;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The longest message, in bytes before it is encoded; a head has room for it three times over.
const MAX_MESSAGE: usize = 4096;

/// A request or an answer is gRPC's; gRPC-Web, which has its trailers in its body, is not.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return false };
    let rest = kind.as_bytes().strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"+") || rest.starts_with(b";"))
}

/// What came of a write, by the fields that end its answer.
pub fn disposition(end: &HeaderMap) -> Disposition {
    let mut codes = end.get_all(&STATUS).iter();
    let (Some(code), None) = (codes.next(), codes.next()) else { return Disposition::Ambiguous };
    match code.as_bytes() {
        b"0" => Disposition::Accepted,
        b"3" | b"5" | b"6" | b"7" | b"9" | b"11" | b"12" | b"16" => Disposition::DefinitelyRejected,
        _ => Disposition::Ambiguous,
    }
}

/// Whether these fields end an answer.
pub fn ends(fields: &HeaderMap) -> bool {
    fields.contains_key(&STATUS)
}

/// The answer that a refusal is.
pub fn refusal(refusal: &Refusal) -> Response<Body> {
    let message = refusal.challenge().and_then(|challenge| challenge.token.as_ref()).map_or_else(
        || refusal.message(),
        |token| format!("{} The token: {token}", refusal.message()),
    );
    let status = StatusCode::from_u16(refusal.status());
    let code = code_of(refusal.status());
    answer(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), code, &message)
}

/// An answer of ours after the call was sent, or was not.
pub fn notice(status: StatusCode, again: Again, message: &str) -> Response<Body> {
    let code = match again {
        Again::Safe => "14",
        Again::Unsafe => "2",
    };
    answer(status, code, message)
}

/// Whether a call may be sent again by a client that does so on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It may.
    Safe,
    /// It may have happened.
    Unsafe,
}

fn answer(status: StatusCode, code: &'static str, message: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(STATUS, HeaderValue::from_static(code));
    if let Ok(message) = HeaderValue::from_str(&encoded(message)) {
        headers.insert(MESSAGE, message);
    }
    response
}

/// The code for an HTTP status of ours. None of those that clients send again on their own, but for
/// what may be sent again.
fn code_of(status: u16) -> &'static str {
    match status {
        400 | 405 | 413 | 414 | 415 | 417 | 422 => "3",
        401 => "16",
        403 => "7",
        404 | 501 => "12",
        409 => "10",
        425 | 503 => "14",
        428 => "9",
        _ => "2",
    }
}

/// `grpc-message` is percent-encoded, beyond visible ASCII and the percent sign itself.
fn encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes().take(MAX_MESSAGE) {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _infallible = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in lines {
            fields.append(*name, HeaderValue::from_static(value));
        }
        fields
    }

    #[test]
    fn h_14_grpc_is_known_by_its_type() {
        let table = [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=x", true),
            ("application/grpc-web", false),
            ("application/grpcx", false),
            ("application/json", false),
        ];
        for (kind, right) in table {
            assert_eq!(is_grpc(&fields(&[("content-type", kind)])), right, "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn h_14_the_status_of_grpc_says_what_came_of_a_write() {
        let rejected = ["3", "5", "6", "7", "9", "11", "12", "16"];
        for code in 0..=17_u8 {
            let code = code.to_string();
            let mut end = HeaderMap::new();
            end.insert(STATUS, code.parse().unwrap());
            let right = if code == "0" {
                Disposition::Accepted
            } else if rejected.contains(&code.as_str()) {
                Disposition::DefinitelyRejected
            } else {
                Disposition::Ambiguous
            };
            assert_eq!(disposition(&end), right, "{code}");
        }
        let unclear: [&[(&'static str, &'static str)]; 3] =
            [&[], &[("grpc-status", "0"), ("grpc-status", "0")], &[("grpc-status", "00")]];
        for end in unclear {
            assert_eq!(disposition(&fields(end)), Disposition::Ambiguous, "{end:?}");
        }
    }

    #[test]
    fn a_refusal_says_the_same_in_both_forms_and_never_success() {
        let refused = refusal(&Refusal::NoDraftForm);
        assert_eq!(refused.status(), 422);
        assert_eq!(refused.headers()[STATUS], "3");
        assert!(refused.headers()[MESSAGE].to_str().unwrap().starts_with("Nothing was sent."));
        assert_eq!(encoded("a%é\n"), "a%25%C3%A9%0A");
    }
}
