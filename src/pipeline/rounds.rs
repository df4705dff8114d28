//! The rounds of a call that is asked about before it is answered (2026-07-28, standards MCP-32 to
//! MCP-35).
//!
//! A client keeps one opaque `requestState` for us between two rounds. Ours holds what was asked (a
//! confirmation of ours), and stands around the upstream's own state together with the entry that the
//! call began, so that the next round goes on with that entry and not with a second effect. It is
//! sealed with the ledger's key and bound to the principal; an upstream that asks of its own accord
//! sees its own state and nothing else.

use super::confirmation::Sealer;
use crate::call::Confirmation;
use crate::contract::json::{Doc, Value, write_string};
use crate::contract::key::{Digest, EntryId, from_hex};
use crate::contract::operation::Operation;

/// How long a round is waited for, in milliseconds (standards MCP-34).
pub const LIFE_MS: i64 = 10 * 60 * 1000;

/// What our state holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// We asked for a confirmation; this is what a yes stands for.
    pub asked: Option<Confirmation>,
    /// The upstream's own state.
    pub upstream: Option<String>,
    /// The entry that the call began.
    pub open: Option<Open>,
}

/// An entry that waits for the next round of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The entry.
    pub entry: EntryId,
    /// The digest of its call: the next round is the same call.
    pub digest: Digest,
    /// The compiled operation.
    pub operation: Digest,
}

impl State {
    /// Seals it for one principal.
    pub fn seal(&self, sealer: &Sealer, principal: &str, now_ms: i64) -> String {
        let mut json = format!("{{\"x\":{}", now_ms.saturating_add(LIFE_MS));
        let mut put = |name: &str, value: &str| {
            json.push_str(",\"");
            json.push_str(name);
            json.push_str("\":");
            write_string(value, &mut json);
        };
        put("p", principal);
        match &self.asked {
            None => {}
            Some(Confirmation::Word) => put("t", ""),
            Some(Confirmation::Token(token)) => put("t", token),
        }
        if let Some(upstream) = &self.upstream {
            put("u", upstream);
        }
        if let Some(open) = &self.open {
            put("e", &open.entry.to_string());
            put("d", &open.digest.to_hex());
            put("o", &open.operation.to_hex());
        }
        json.push('}');
        sealer.seal_state(&json)
    }

    /// Opens a state that this principal brings; `None` if it is not ours, of another principal, or
    /// too old.
    pub fn open(sealer: &Sealer, text: &str, principal: &str, now_ms: i64) -> Option<Self> {
        let doc = Doc::parse(sealer.open_state(text)?).ok()?;
        let root = doc.root();
        let member =
            |name: &str| root.get(name).and_then(Value::as_str).map(|text| text.into_owned());
        let is_ours = member("p").as_deref() == Some(principal);
        let is_fresh = root.get("x").and_then(Value::as_i64).is_some_and(|end| now_ms < end);
        if !is_ours || !is_fresh {
            return None;
        }
        let asked = member("t").map(|token| {
            if token.is_empty() { Confirmation::Word } else { Confirmation::Token(token) }
        });
        let open = match member("e") {
            None => None,
            Some(entry) => Some(Open {
                entry: EntryId::parse(&entry)?,
                digest: Digest(from_hex(member("d")?.as_bytes())?),
                operation: Digest(from_hex(member("o")?.as_bytes())?),
            }),
        };
        Some(Self { asked, upstream: member("u"), open })
    }
}

/// A question to the client, in place of a refusal.
#[derive(Clone, Debug)]
pub struct Question {
    /// What is asked.
    pub message: String,
    /// What a yes stands for.
    pub answer: Confirmation,
    /// The state that a modern client keeps; `None` where its next round would lose something.
    pub state: Option<String>,
}

/// The longest value that a question shows, in characters.
const SHOWN: usize = 60;

/// The arguments that a question shows.
const MAX_SHOWN: usize = 6;

/// What a person is asked about a call: the class, the operation, and a bounded and escaped summary of
/// what the call would do. Values with an address in them are not shown (standards MCP-32), nor is what
/// the policy calls sensitive.
pub fn question(operation: &Operation, class: &str, tool: &str, arguments: Value<'_>) -> String {
    let mut text = format!("{class}: {} (tool ", operation.id);
    text.push_str(&shown_text(tool));
    text.push(')');
    let mut count = 0_usize;
    for member in arguments.members() {
        let name = member.name();
        let is_sensitive = operation
            .sensitive
            .iter()
            .any(|pointer| pointer.tokens().first().is_none_or(|first| **first == *name));
        if is_sensitive {
            continue;
        }
        count = count.saturating_add(1);
        if count > MAX_SHOWN {
            text.push_str(", …");
            break;
        }
        text.push_str(if count == 1 { " with " } else { ", " });
        text.push_str(&shown_text(&name));
        text.push_str(" = ");
        text.push_str(&shown_text(member.value.raw()));
    }
    text.push_str(". Confirm?");
    text
}

fn shown_text(text: &str) -> String {
    if text.contains("://") {
        return "…".to_owned();
    }
    let is_plain = |character: &char| !character.is_control() && !is_format(*character);
    let mut short: String = text.chars().filter(is_plain).take(SHOWN).collect();
    if text.chars().count() > SHOWN {
        short.push('…');
    }
    short
}

/// Characters that are not seen and change how others are: directions, joiners, tags.
fn is_format(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcp_34_a_state_is_of_one_principal_and_has_an_end() {
        let sealer = Sealer::new([7; 32]);
        let states = [
            State::default(),
            State { asked: Some(Confirmation::Word), ..State::default() },
            State {
                asked: Some(Confirmation::Token("tbc1_x".to_owned())),
                upstream: Some("their \"state\"".to_owned()),
                open: Some(Open {
                    entry: EntryId::from_bytes([3; 16]),
                    digest: Digest([1; 32]),
                    operation: Digest([254; 32]),
                }),
            },
        ];
        for state in states {
            let sealed = state.seal(&sealer, "p", 1000);
            assert_eq!(State::open(&sealer, &sealed, "p", 1000 + LIFE_MS - 1), Some(state));
            assert_eq!(State::open(&sealer, &sealed, "p", 1000 + LIFE_MS), None);
            assert_eq!(State::open(&sealer, &sealed, "q", 1000), None);
        }
    }

    #[test]
    fn mcp_32_a_question_shows_a_bounded_and_plain_summary() {
        let operation = Operation::undeclared(
            crate::contract::class::Class::Irreversible,
            crate::contract::class::Level::Challenge,
            crate::contract::class::Mode::Enforce,
        );
        let long = "x".repeat(100);
        let doc = Doc::parse(format!(
            "{{\"a\":\"b\\u202e\u{202e}c\",\"long\":\"{long}\",\"link\":\"https://evil\",\"n\":1}}"
        ))
        .unwrap();
        let text = question(&operation, "irreversible", "send\u{200b}_mail", doc.root());

        assert!(text.starts_with("irreversible: _undeclared (tool send_mail) with a = "), "{text}");
        assert!(!text.contains('\u{202e}') && !text.contains("evil"), "{text}");
        assert!(text.contains(", n = 1. Confirm?"), "{text}");
        assert!(text.chars().count() < 400);
    }
}
