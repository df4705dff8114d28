//! Reports that an upstream puts where none of ours belongs: into the answer to a message that is no
//! call, into a notification, or into a response that nobody asked for (standards MCP-39).
//!
//! A reader who trusts `_meta.effect` because this proxy writes it must not find one here that it did
//! not write. Unless the operator trusts the upstream's reports, such a claim is dropped, or goes on
//! under the name that says whose it is. All other bytes stay.

use bytes::Bytes;

use super::answer::Reports;
use super::jsonrpc::holds;
use crate::contract::json::{Doc, Edits, Kind, Value};

/// Where a message may hold a report, as the member and its own member.
const PLACES: [(&str, &str); 3] = [("error", "data"), ("params", "_meta"), ("result", "_meta")];

/// What a message claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nothing: it goes on as it came.
    None,
    /// Something: this goes on in its place.
    Taken(Bytes),
    /// It cannot be read here, and a laxer reader may find a report in it.
    Unread,
}

/// Looks for a claim in a message.
pub fn claim(message: &Bytes, reports: Reports) -> Claim {
    // Most messages hold none; a name may be spelt with escapes.
    if reports == Reports::Trust || !(holds(message, "\"effect\"") || holds(message, "\\u00")) {
        return Claim::None;
    }
    let Ok(doc) = Doc::parse(message.clone()) else { return Claim::Unread };
    let mut edits = Edits::new();
    for (outer, inner) in PLACES {
        let holder = doc.root().get(outer).and_then(|outer| outer.get(inner));
        if let Some(holder) = holder.filter(|holder| holder.kind() == Kind::Object)
            && let Some(claimed) = holder.get("effect").map(Value::raw)
        {
            match reports {
                Reports::Ignore | Reports::Trust => edits.members(holder, &["effect"], &[]),
                Reports::Replace => {
                    let set = [("anvil/upstream_effect", claimed)];
                    edits.members(holder, &["effect"], &set);
                }
            }
        }
    }
    if edits.is_empty() { Claim::None } else { Claim::Taken(edits.apply(message).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(message: &str, reports: Reports) -> Claim {
        claim(&message.to_owned().into(), reports)
    }

    #[test]
    fn mcp_39_a_claim_is_taken_out_wherever_a_report_can_stand() {
        let cases = [
            (
                r#"{"id":1,"result":{"a":1.0,"_meta":{"effect":{"class":"read"},"x":1}}}"#,
                r#"{"id":1,"result":{"a":1.0,"_meta":{"x":1,"anvil/upstream_effect":{"class":"read"}}}}"#,
                r#"{"id":1,"result":{"a":1.0,"_meta":{"x":1}}}"#,
            ),
            (
                r#"{"method":"n","params":{"_meta":{"\u0065ffect":7}}}"#,
                r#"{"method":"n","params":{"_meta":{"anvil/upstream_effect":7}}}"#,
                r#"{"method":"n","params":{"_meta":{}}}"#,
            ),
            (
                r#"{"id":1,"error":{"code":1,"data":{"effect":null}}}"#,
                r#"{"id":1,"error":{"code":1,"data":{"anvil/upstream_effect":null}}}"#,
                r#"{"id":1,"error":{"code":1,"data":{}}}"#,
            ),
        ];
        for (message, replaced, ignored) in cases {
            let expected = |text: &'static str| Claim::Taken(Bytes::from_static(text.as_bytes()));
            assert_eq!(taken(message, Reports::Replace), expected(replaced));
            assert_eq!(taken(message, Reports::Ignore), expected(ignored));
            assert_eq!(taken(message, Reports::Trust), Claim::None);
        }
    }

    #[test]
    fn what_claims_nothing_stays_and_what_cannot_be_read_is_said() {
        for message in [
            r#"{"result":{"content":[{"type":"text","text":"\"effect\""}]}}"#,
            r#"{"result":{"effect":1,"content":[{"_meta":{"effect":1}}]}}"#,
            r#"{"result":{"_meta":["effect"]}}"#,
            "[]",
            "no JSON",
        ] {
            assert_eq!(taken(message, Reports::Replace), Claim::None, "{message}");
        }
        let twice = r#"{"result":{"_meta":{},"_meta":{"effect":1}}}"#;
        assert_eq!(taken(twice, Reports::Replace), Claim::Unread);
    }
}
