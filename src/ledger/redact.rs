//! Taking a part of what an entry holds of its call out of the ledger, by pointer.
//!
//! | pointer | what it takes out |
//! |---|---|
//! | `/target` | method and path, or the tool |
//! | `/before/...` | that value of the state before the call; `/before`: all of it |
//! | `/answer/body/...` | that value of the kept answer's body |
//! | `/answer` | the kept answer |
//! | `/upstream_id` | the upstream's id of what was made |
//! | `/undo`, `/compensate`, `/lookup`, and anything in them | the whole of it |
//!
//! A call that was resolved is taken out whole, because one with a gap in it would be another call; and
//! an answer of which a part is gone is not given to a repeat, which is told so instead. What an entry
//! is known by (principal, key, digests, keyed hashes of what it changes) and who decided what and why stay:
//! they are what a repeat, the undo of an earlier call and an inquiry need.
//!
//! Pure; the stores read the rows, write what is left, and note it in the history.

use super::Removed;
use super::chain::line::Line;
use crate::contract::json::{Doc, Edits};
use crate::contract::pointer::Pointer;

/// What stands in the place of a value that was taken out.
pub const REDACTED: &str = "[redacted]";

/// The most pointers of one redaction.
pub const MAX_POINTERS: usize = 64;

/// A part of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    text: String,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Answer,
    AnswerBody(Pointer),
    Before(Pointer),
    Compensate,
    Lookup,
    Target,
    Undo,
    UpstreamId,
}

impl Part {
    /// Reads a JSON pointer over an entry; `None` if no such part can be taken out.
    pub fn parse(text: &str) -> Option<Self> {
        let pointer = Pointer::parse(text).ok()?;
        let tokens: Vec<&str> = pointer.tokens().iter().map(String::as_str).collect();
        let below = |head: &str| Pointer::parse(text.strip_prefix(head).unwrap_or_default()).ok();
        let place = match tokens[..] {
            ["answer"] | ["answer", "body" | "headers" | "status"] => Place::Answer,
            ["answer", "headers", _] => Place::Answer,
            ["answer", "body", ..] => Place::AnswerBody(below("/answer/body")?),
            ["before", ..] => Place::Before(below("/before")?),
            ["compensate", ..] => Place::Compensate,
            ["lookup", ..] => Place::Lookup,
            ["target"] => Place::Target,
            ["undo", ..] => Place::Undo,
            ["upstream_id"] => Place::UpstreamId,
            _ => return None,
        };
        Some(Self { text: text.to_owned(), place })
    }

    /// The pointer, as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// What a redaction took out of the rows of an entry.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Whether each part was somewhere.
    pub(super) found: Vec<bool>,
    /// Whether a kept answer lost something.
    pub(super) of_answer: bool,
}

/// Takes parts out of one row and the entry that it belongs to; whether anything changed in it.
pub(super) fn take_out(line: &mut Line, parts: &[Part], taken: &mut Taken) -> bool {
    taken.found.resize(parts.len(), false);
    let is_begin = line.is_begin();
    let mut is_changed = false;
    for (part, found) in parts.iter().zip(&mut taken.found) {
        let is_there = match (&part.place, is_begin) {
            (Place::Answer, false) => {
                let is_there = line.status.is_some() || line.body.is_some();
                taken.of_answer |= is_there;
                (line.status, line.headers, line.body) = (None, None, None);
                is_there
            }
            (Place::AnswerBody(pointer), false) => {
                let is_there = line.body.as_mut().is_some_and(|body| within(body, pointer));
                taken.of_answer |= is_there;
                is_there
            }
            (Place::Undo, false) => gone(&mut line.undo, &mut line.undo_unavailable),
            (Place::Compensate, false) => line.compensate.take().is_some(),
            (Place::UpstreamId, false) => line.upstream_id.take().is_some(),
            (Place::Before(pointer), true) => {
                let before = line.holder.as_mut().map(|holder| &mut holder.before);
                before.is_some_and(|before| within_text(before, pointer))
            }
            (Place::Lookup, true) => {
                line.holder.as_mut().is_some_and(|holder| holder.lookup.take().is_some())
            }
            (Place::Target, true) => line.holder.as_mut().is_some_and(|holder| {
                let is_there = holder.target != REDACTED;
                REDACTED.clone_into(&mut holder.target);
                is_there
            }),
            (
                Place::Answer
                | Place::AnswerBody(_)
                | Place::Compensate
                | Place::Undo
                | Place::UpstreamId,
                true,
            )
            | (Place::Before(_) | Place::Lookup | Place::Target, false) => false,
        };
        *found |= is_there;
        is_changed |= is_there;
    }
    is_changed
}

/// Takes an undo out; why there is none any more is said.
fn gone(undo: &mut Option<String>, unavailable: &mut Option<String>) -> bool {
    let is_there = undo.take().is_some();
    if is_there {
        *unavailable = Some(Removed::Redacted.of_undo());
    }
    is_there
}

/// Takes a value out of a JSON text; whether it was there.
fn within(text: &mut Vec<u8>, pointer: &Pointer) -> bool {
    let Ok(doc) = Doc::parse(text.clone()) else { return false };
    let Some(value) = pointer.resolve(doc.root()) else { return false };
    let put = format!("\"{REDACTED}\"");
    if value.raw() == put {
        return false;
    }
    let mut edits = Edits::new();
    edits.replace(value, put);
    *text = edits.apply(text);
    true
}

fn within_text(text: &mut Option<String>, pointer: &Pointer) -> bool {
    let Some(whole) = text else { return false };
    if pointer.tokens().is_empty() {
        *text = None;
        return true;
    }
    let mut bytes = whole.clone().into_bytes();
    match within(&mut bytes, pointer).then(|| String::from_utf8(bytes)) {
        Some(Ok(changed)) => {
            *whole = changed;
            true
        }
        Some(Err(_)) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::chain::line::Holder;
    use crate::ledger::entry::State;

    fn begun() -> Line {
        let holder = Holder {
            target: "POST /people/ann".to_owned(),
            lookup: Some("{}".to_owned()),
            before: Some("{\"etag\":null,\"body\":{\"name\":\"ann\",\"n\":1e400}}".to_owned()),
            ..Holder::default()
        };
        let to = State::Begun.code();
        Line { entry: vec![1], to, holder: Some(Box::new(holder)), ..Line::default() }
    }

    fn finished() -> Line {
        Line {
            entry: vec![1],
            to: State::Accepted.code(),
            disposition: Some("accepted".to_owned()),
            undo: Some("{\"arguments\":{\"a\":1}}".to_owned()),
            compensate: Some("{}".to_owned()),
            upstream_id: Some("7".to_owned()),
            status: Some(201),
            headers: Some(Vec::new()),
            body: Some(b"{\"id\":7,\"who\":{\"name\":\"ann\"}}".to_vec()),
            ..Line::default()
        }
    }

    fn parts(texts: &[&str]) -> Vec<Part> {
        texts.iter().map(|text| Part::parse(text).unwrap()).collect()
    }

    #[test]
    fn pointers_name_parts_that_can_be_taken_out_and_nothing_else() {
        for text in [
            "/target",
            "/before",
            "/before/body/name",
            "/answer",
            "/answer/body",
            "/answer/body/who/name",
            "/answer/headers/location",
            "/undo",
            "/undo/arguments/path.id",
            "/compensate",
            "/lookup/arguments",
            "/upstream_id",
        ] {
            assert_eq!(Part::parse(text).unwrap().as_str(), text);
        }
        for text in
            ["", "/", "/key", "/principal", "/digest", "/history/0/why", "target", "/undo~2"]
        {
            assert_eq!(Part::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_named_is_taken_out_and_the_rest_stays_as_it_was() {
        let mut taken = Taken::default();
        let mut begun = begun();
        let some = parts(&["/before/body/name", "/target", "/answer/body/who/name", "/undo/x"]);
        assert!(take_out(&mut begun, &some, &mut taken));
        assert_eq!(taken.found, [true, true, false, false]);
        assert!(!taken.of_answer);
        let mut finished = finished();
        assert!(take_out(&mut finished, &some, &mut taken));
        assert_eq!(taken.found, [true; 4]);
        assert!(taken.of_answer);

        let holder = begun.holder.unwrap();
        assert_eq!(holder.target, REDACTED);
        let before = holder.before.unwrap();
        assert_eq!(before, "{\"etag\":null,\"body\":{\"name\":\"[redacted]\",\"n\":1e400}}");
        assert_eq!(holder.lookup.as_deref(), Some("{}"));
        let body = String::from_utf8(finished.body.unwrap()).unwrap();
        assert_eq!(body, "{\"id\":7,\"who\":{\"name\":\"[redacted]\"}}");
        assert_eq!(finished.undo, None, "a call with a gap would be another call");
        assert_eq!(finished.undo_unavailable.as_deref(), Some("it was redacted"));
        assert_eq!(finished.upstream_id.as_deref(), Some("7"));
    }

    #[test]
    fn a_pointer_to_nothing_changes_nothing_and_is_told() {
        let mut taken = Taken::default();
        let mut line = finished();
        assert!(!take_out(&mut line, &parts(&["/answer/body/nobody", "/before/x"]), &mut taken));
        assert_eq!(taken.found, [false, false]);
        let mut whole = finished();
        assert!(take_out(&mut whole, &parts(&["/answer"]), &mut taken));
        assert_eq!((&whole.status, &whole.headers, &whole.body), (&None, &None, &None));
        // Once more, there is nothing left of it.
        assert!(!take_out(&mut whole, &parts(&["/answer"]), &mut taken));
    }
}
