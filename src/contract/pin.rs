//! What a policy pins of a tool (`schema_sha256`): one hash, made here for `import`, for `check` against
//! a saved list, and for the live list that calls are held against.

use sha2::{Digest as _, Sha256};

use super::json::Value;
use super::key::Digest;

/// SHA-256 over the canonical forms of a tool's `inputSchema` and `outputSchema`, as `tools/list` gives
/// them (`null` where there is none), each with a line feed after it.
pub fn schema_digest(tool: Value<'_>) -> Digest {
    let mut hash = Sha256::new();
    for name in ["inputSchema", "outputSchema"] {
        match tool.get(name) {
            Some(schema) => schema.canonical(&mut |bytes| hash.update(bytes)),
            None => hash.update(b"null"),
        }
        hash.update(b"\n");
    }
    Digest(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::super::json::Doc;
    use super::*;

    #[test]
    fn a_pin_is_over_both_schemas_in_canonical_form() {
        let digest = |text: &str| schema_digest(Doc::parse(text.to_owned()).unwrap().root());
        let base = digest(r#"{"name":"a","inputSchema":{"type":"object","a":1}}"#);
        assert_eq!(base, digest(r#"{"inputSchema": {"a": 1, "type": "object"}, "title": "x"}"#));
        assert_ne!(base, digest(r#"{"inputSchema":{"type":"object","a":2}}"#));
        assert_ne!(base, digest(r#"{"inputSchema":{"type":"object","a":1},"outputSchema":{}}"#));
    }
}
