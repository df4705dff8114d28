//! Names under which gateways take another method or another path from a request than it has.
//!
//! A call with one of them could be another than the one that is matched, so it is refused (standards
//! H-32; contract section 3.1). Names that proxies set in ordinary operation to say what they were asked
//! (`X-Forwarded-Uri`, `X-Original-URI`, `X-Envoy-Original-Path`, `X-Forwarded-Prefix`) are no such names.

/// Headers, in lower case and with `-` for `_`; the first is how `_method` is compared.
const HEADERS: [&str; 8] = [
    "-method",
    "x-forwarded-method",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-method",
    "x-original-url",
    "x-rewrite-url",
];

/// Members of a query or a form, folded.
const MEMBERS: [&str; 6] = [
    "$httpheaders",
    "$httpmethod",
    "_method",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

/// Whether a header asks for another method or path; its name in lower case and with `-` for `_`.
pub fn is_header(name: &str) -> bool {
    // Most names start otherwise.
    (name.starts_with("x-") || name.starts_with('-')) && HEADERS.contains(&name)
}

/// Whether a member of a query or a form does; its name folded as readers fold it.
pub fn is_member(folded: &str) -> bool {
    MEMBERS.contains(&folded)
}
