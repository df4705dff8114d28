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

/// The report's name.
pub const EFFECT: &str = "effect";

/// Its name beside a report of the upstream's that is trusted.
const OWN_EFFECT: &str = "takeback/effect";

/// Under which a report of the upstream's goes on.
const UPSTREAM_EFFECT: &str = "anvil/upstream_effect";

/// What only this proxy says in `_meta` of an answer: the report, under either of its names, and that
/// the answer is a recorded one (standards MCP-47).
pub const OURS: [&str; 3] = [EFFECT, OWN_EFFECT, "anvil/replayed"];

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

/// Looks for a claim in a message, or in each of a batch.
pub fn claim(message: &Bytes, reports: Reports) -> Claim {
    // Most messages hold none; a name may be spelt with escapes.
    if reports == Reports::Trust || !may_claim(message) {
        return Claim::None;
    }
    let Ok(doc) = Doc::parse(message.clone()) else { return Claim::Unread };
    let mut edits = Edits::new();
    match doc.root() {
        batch if batch.kind() == Kind::Array => {
            batch.elements().for_each(|message| disown_all(message, reports, &mut edits));
        }
        message => disown_all(message, reports, &mut edits),
    }
    if edits.is_empty() { Claim::None } else { Claim::Taken(edits.apply(message).into()) }
}

/// Takes out all that a message claims.
fn disown_all(message: Value<'_>, reports: Reports, edits: &mut Edits) {
    for (outer, inner) in PLACES {
        let holder = message.get(outer).and_then(|outer| outer.get(inner));
        if let Some(holder) = holder.filter(|holder| holder.kind() == Kind::Object) {
            disown(holder, reports, None, edits);
        }
    }
}

/// Takes the upstream's claims out of the object where a report stands, and puts ours there, if there
/// is one for it.
pub fn disown(holder: Value<'_>, reports: Reports, report: Option<&str>, edits: &mut Edits) {
    let claimed = holder.get(EFFECT).map(Value::raw);
    let is_claimed = OURS.iter().any(|name| holder.get(name).is_some());
    let mut set = Vec::with_capacity(2);
    let mut remove: &[&str] = &[];
    match reports {
        Reports::Trust => {
            let name = if claimed.is_some() { OWN_EFFECT } else { EFFECT };
            set.extend(report.map(|report| (name, report)));
        }
        Reports::Ignore | Reports::Replace => {
            if report.is_none() && !is_claimed {
                return;
            }
            remove = if report.is_none() { &OURS } else { OURS.get(1..).unwrap_or_default() };
            set.extend(report.map(|report| (EFFECT, report)));
            if reports == Reports::Replace {
                set.extend(claimed.map(|claimed| (UPSTREAM_EFFECT, claimed)));
            }
        }
    }
    edits.members(holder, remove, &set);
}

/// Whether a text may hold one of our names, spelt plainly or with escapes.
pub fn may_claim(text: &[u8]) -> bool {
    ["effect\"", "replayed\"", "\\u00"].iter().any(|needle| holds(text, needle))
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
                r#"{"id":1,"result":{"_meta":{"anvil/replayed":true,"takeback\/effect":1,"x":1}}}"#,
                r#"{"id":1,"result":{"_meta":{"x":1}}}"#,
                r#"{"id":1,"result":{"_meta":{"x":1}}}"#,
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
