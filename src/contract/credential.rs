//! Which headers hold a credential: one list for the digest, the log and the policies.

/// Whether a header holds a credential: it names the caller, and never reaches a digest, a mapping or
/// a log. The name is in lower case.
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
