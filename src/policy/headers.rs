//! Header names that a policy may not touch.
//!
//! Names are compared in lower case and with `_` as `-`, as the data plane compares them.

use crate::contract::{credential, overrides};

/// Headers of one connection, or of the message's framing and target.
const TRANSPORT: &[&str] = &[
    "connection",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// The name as it is compared.
pub(super) fn folded(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// Whether a header of this name carries a credential: it can be neither mapped nor read by a path.
pub(super) fn is_credential(name: &str) -> bool {
    let name = folded(name);
    credential::is_credential(&name) || name == "set-cookie"
}

/// Whether a header of this name cannot carry a key (standards I-6).
pub(super) fn is_refused_carrier(name: &str) -> bool {
    let name = folded(name);
    let starts = |prefix: &str| name.starts_with(prefix);
    is_credential(&name)
        || overrides::is_header(&name)
        || TRANSPORT.contains(&name.as_str())
        || starts("content-")
        || starts("x-obol-")
        || starts("x-anvil-")
        || starts("mcp-")
        || starts("effect-")
        || starts("proxy-")
        || matches!(name.as_str(), "traceparent" | "tracestate" | "forwarded")
        || starts("x-forwarded-")
}

/// Whether a mapping cannot set a header of this name: credentials and controls are the caller's,
/// the connection's headers are ours.
pub(super) fn is_refused_argument(name: &str) -> bool {
    is_refused_carrier(name) || folded(name) == "idempotency-key"
}

/// Whether a header of this name is a safety control.
pub(super) fn is_control(name: &str) -> bool {
    let name = folded(name);
    name.starts_with("effect-") || name.starts_with("x-anvil-") || name == "idempotency-key"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_6_headers_that_cannot_carry_a_key() {
        for name in [
            "Connection",
            "Transfer_Encoding",
            "Host",
            "Content-Type",
            "Authorization",
            "Cookie",
            "Set-Cookie",
            "X-Obol-Key",
            "X-Anvil-Effect",
            "Mcp-Session-Id",
            "traceparent",
            "tracestate",
            "Forwarded",
            "X-Forwarded-For",
            "X-Api-Key",
            "Private-Token",
            "X_Auth_Token",
            "X-Goog-Api-Key",
            "X-HTTP-Method-Override",
            "Effect-Confirm",
        ] {
            assert!(is_refused_carrier(name), "{name}");
        }
        for name in ["Idempotency-Key", "X-Idempotency-Key", "X-Request-Id", "PayPal-Request-Id"] {
            assert!(!is_refused_carrier(name), "{name}");
        }
        assert!(is_refused_argument("Idempotency-Key"));
        assert!(!is_refused_argument("X-Tenant"));
        assert!(is_credential("Proxy_Authorization"));
    }
}
