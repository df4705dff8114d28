//! Answers that repeat what the policy calls sensitive.
//!
//! Many APIs answer a write with what it said. What of the request is never kept must not come into the
//! ledger by that way either, so an answer in which such a value is found is not kept as a whole: taking
//! it out would leave an answer that nobody gave. A repeat is told that the call was made, and not what it
//! was answered (`answer_not_kept`).
//!
//! Found is a text of at least four characters, or a number of at least six digits, as it stands in the
//! request or in the JSON of it: shorter ones are in any answer by chance, and tell little.

use crate::contract::json::{Kind, Value};
use crate::contract::operation::Operation;
use crate::contract::path::{Found, HTTP_SECTIONS, Path, Request, Root, Scope, Segment};
use crate::contract::pointer::Pointer;

const LEAST_TEXT: usize = 4;
const LEAST_NUMBER: usize = 6;

/// Whether an answer's body holds what is sensitive of its request.
pub(super) fn echoes(operation: &Operation, request: Request<'_>, body: &[u8]) -> bool {
    if operation.sensitive.is_empty() || body.is_empty() {
        return false;
    }
    let body = String::from_utf8_lossy(body);
    let scope = Scope { before: None, request, response: None, key: None };
    operation.sensitive.iter().any(|pointer| {
        let (section, tokens) = sectioned(pointer, request);
        let root = match (section, request) {
            (None, Request::Arguments(arguments)) => Some(arguments),
            (None, Request::Http { .. } | Request::Unreadable) => None,
            (Some(section), _) => {
                let segments = vec![Segment::Name(section.to_owned())];
                match (Path { root: Root::Request, segments, optional: true }).resolve(&scope) {
                    Some(Found::Value(value)) => Some(value),
                    Some(Found::Key(_)) | None => None,
                }
            }
        };
        let named = tokens.iter().try_fold(root, |at, token| {
            let at = at?;
            let position = token.parse().ok();
            Some(at.get(token).or_else(|| position.and_then(|position| at.at(position))))
        });
        named.flatten().is_some_and(|value| holds(&body, value))
    })
}

/// A pointer's section of an HTTP request, and the rest of it; without a section it is one into the body.
fn sectioned<'a>(pointer: &'a Pointer, request: Request<'_>) -> (Option<&'a str>, &'a [String]) {
    let tokens = pointer.tokens();
    match (request, tokens.split_first()) {
        (Request::Arguments(_), _) => (None, tokens),
        (_, Some((first, rest))) if HTTP_SECTIONS.contains(&first.as_str()) => (Some(first), rest),
        (_, _) => (Some("body"), tokens),
    }
}

fn holds(body: &str, value: Value<'_>) -> bool {
    let raw = value.raw();
    match value.kind() {
        Kind::String => {
            let quoted = raw.trim_matches('"');
            let is_found = |text: &str| text.chars().count() >= LEAST_TEXT && body.contains(text);
            is_found(quoted) || value.as_str().is_some_and(|text| is_found(&text))
        }
        Kind::Number => raw.len() >= LEAST_NUMBER && body.contains(raw),
        Kind::Object => value.members().any(|member| holds(body, member.value)),
        Kind::Array => value.elements().any(|item| holds(body, item)),
        Kind::Bool | Kind::Null => false,
    }
}
