//! A request into its forwardable head: one reading, or a refusal.
//!
//! What is checked here holds for every request, whatever it turns out to be: method, target, host,
//! loop, headers. What depends on the operation (an encoded slash that it allows) is left to `select`
//! as an [`Oddity`].

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, header};

use super::headers::{self, Sifted};
use super::target;
use crate::call::refusal::Refusal;
use crate::call::{Control, Head, Oddity, Origin};

/// What decoding gives.
#[derive(Debug)]
pub struct Decoded {
    /// What is forwarded.
    pub head: Head,
    /// What was asked of us.
    pub control: Control,
    /// What is odd.
    pub oddity: Option<Oddity>,
    /// How many reserved headers were removed.
    pub stripped: u32,
}

/// Decodes a request's head. `peer` is the address of who sent it.
///
/// # Errors
///
/// A refusal for what is malformed in any mode.
pub fn decode(
    parts: Parts,
    peer: HeaderValue,
    report: &HeaderName,
    pseudonym: &str,
) -> Result<Decoded, Refusal> {
    let Parts { method, uri, version, mut headers, .. } = parts;
    if method == Method::CONNECT {
        return Err(Refusal::Upgrade);
    }
    if method == Method::TRACE {
        return Err(Refusal::MethodRefused);
    }
    let length = uri.path().len().saturating_add(uri.query().map_or(0, str::len));
    if length > target::MAX_TARGET {
        return Err(Refusal::UriTooLong(target::MAX_TARGET));
    }
    let authority = target::authority(&uri, &headers, version)?;
    let sifted = headers::sift(&mut headers, report)?;
    let Sifted { control, nominated, stripped, upgrade, expects_continue, oddity, has_via, .. } =
        sifted;
    if upgrade {
        return Err(Refusal::Upgrade);
    }
    if has_via && is_looped(&headers, pseudonym) {
        return Err(Refusal::Loop);
    }
    headers.remove(header::HOST);
    let oddity = match oddity {
        Some(refusal) => Some(Oddity::Other(refusal)),
        None if target::overrides_method(uri.query()) => {
            Some(Oddity::Other(Refusal::MethodOverride))
        }
        None => target::oddity(uri.path()),
    };
    let head = Head {
        method,
        uri,
        version,
        headers,
        authority,
        peer,
        nominated,
        expects_continue,
        origin: Origin::default(),
        span: None,
    };
    Ok(Decoded { head, control, oddity, stripped })
}

/// Whether the request has come through this process before (standards H-5).
fn is_looped(headers: &http::HeaderMap, pseudonym: &str) -> bool {
    headers.get_all(header::VIA).iter().any(|via| {
        via.to_str().is_ok_and(|via| {
            via.split(',').any(|hop| hop.split_whitespace().nth(1) == Some(pseudonym))
        })
    })
}
