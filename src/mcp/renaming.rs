//! Claims in messages that are too long to be held, renamed while they go by.
//!
//! An answer or an event above the limit passes as it comes (contract section 3.2), and nothing in
//! it is a report of ours (section 6). So of what goes by only the names of members are looked at,
//! and only where a report can stand: `_meta` of a result or of a notification's parameters, `data`
//! of an error. One of our names there goes on under a name that says whose it is. Every other byte
//! stays, and no more than one name is held.
//!
//! A name that strict readers refuse and a laxer one may take for ours cannot be passed on honestly:
//! the message is [torn](Torn) there, so that no reader takes it for a whole one.
//!
//! Limits: `MAX_NAME` bytes of a name. What does not begin as JSON passes unseen.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

use super::claims::{EFFECT, OURS};
use crate::contract::json::Doc;

/// The longest name that can be one of ours, with its quotes and with every letter as an escape.
const MAX_NAME: usize = 2 + 6 * 15;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A name of a member that readers disagree about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a member's name has no single meaning")]
pub struct Torn;

/// What a container means for what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    /// An error: a report stands in its `data`.
    Error,
    /// Where a report stands.
    Holder,
    /// A result, or parameters: a report stands in its `_meta`.
    Outcome,
    /// A JSON-RPC message.
    Message,
    /// A batch of them.
    Messages,
    /// What a task gave, inside a result.
    TaskOutcome,
    /// Anything else; nothing in it is looked at.
    Other,
}

impl Node {
    /// What an object is that is a member of this one.
    fn inside(self, name: &str) -> Self {
        match (self, name) {
            (Self::Message, "error") => Self::Error,
            (Self::Message, "params" | "result") => Self::Outcome,
            (Self::Outcome, "result") => Self::TaskOutcome,
            (Self::Error, "data") | (Self::Outcome | Self::TaskOutcome, "_meta") => Self::Holder,
            _ => Self::Other,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    /// Inside a name that is held.
    Name,
    Outside,
    /// Inside any other string.
    Passing,
}

/// Renames claims in JSON that comes in pieces. See the module's page.
#[derive(Debug)]
pub struct Renamer {
    /// The open containers that are looked at; five at most.
    path: Vec<Node>,
    /// How many are open inside the first that is not.
    deeper: u64,
    /// What an object that opens here is.
    next: Node,
    expects_name: bool,
    text: Text,
    is_escaped: bool,
    /// A name, as far as it has come.
    name: Vec<u8>,
    /// `None` until something but white space has come.
    is_json: Option<bool>,
}

impl Default for Renamer {
    fn default() -> Self {
        Self {
            path: Vec::new(),
            deeper: 0,
            next: Node::Other,
            expects_name: false,
            text: Text::Outside,
            is_escaped: false,
            name: Vec::new(),
            is_json: None,
        }
    }
}

impl Renamer {
    /// Takes the next piece, and puts into `out` what goes on of it and of what was held.
    ///
    /// # Errors
    ///
    /// [`Torn`]; nothing more may go on then.
    pub fn push(&mut self, piece: &Bytes, out: &mut VecDeque<Bytes>) -> Result<(), Torn> {
        let mut at = if self.is_json.is_none() { self.begin(piece) } else { 0 };
        if self.is_json == Some(false) {
            give(piece, 0..piece.len(), out);
            return Ok(());
        }
        // What stands before `kept` has gone on. A held name without a start began in an earlier
        // piece.
        let (mut kept, mut start) = (0, None);
        while let Some(byte) = piece.get(at).copied() {
            let end = at.saturating_add(1);
            match self.text {
                Text::Passing => match self.passing(piece.get(at..).unwrap_or_default()) {
                    Some(length) => at = at.saturating_add(length),
                    None => break,
                },
                Text::Outside if byte == b'"' && self.expects_name && self.deeper == 0 => {
                    self.text = Text::Name;
                    self.name.push(byte);
                    start = Some(at);
                    at = end;
                }
                Text::Outside => {
                    self.outside(byte);
                    at = end;
                }
                Text::Name => {
                    at = end;
                    match (self.named(byte)?, start) {
                        (Named::Unfinished, _) => continue,
                        (Named::Ours(other), _) => {
                            give(piece, kept..start.unwrap_or(kept), out);
                            out.push_back(Bytes::from_static(other));
                            kept = end;
                        }
                        (Named::Other, Some(_)) => {}
                        (Named::Other, None) => {
                            out.push_back(Bytes::copy_from_slice(&self.name));
                            kept = end;
                        }
                    }
                    self.name.clear();
                    start = None;
                }
            }
        }
        let end = match (self.text, start) {
            (Text::Name, Some(start)) => start,
            (Text::Name, None) => kept,
            (Text::Outside | Text::Passing, _) => piece.len(),
        };
        give(piece, kept..end, out);
        Ok(())
    }

    /// Whether a name is held, so that not all that came has gone on.
    fn is_held(&self) -> bool {
        self.text == Text::Name
    }

    /// Where the text begins, and whether it is one that is looked at.
    fn begin(&mut self, piece: &[u8]) -> usize {
        let is_blank = |byte: &u8| byte.is_ascii_whitespace() || BYTE_ORDER_MARK.contains(byte);
        let first = piece.iter().position(|byte| !is_blank(byte));
        self.is_json = first.and_then(|at| piece.get(at)).map(|byte| b"{[".contains(byte));
        first.unwrap_or(piece.len())
    }

    /// How far a string goes that is not looked at, as far as anything in it matters; `None`: to the
    /// end of the piece.
    fn passing(&mut self, rest: &[u8]) -> Option<usize> {
        if self.is_escaped {
            self.is_escaped = false;
            return Some(1);
        }
        let offset = memchr2(b'"', b'\\', rest)?;
        match rest.get(offset) {
            Some(b'\\') => self.is_escaped = true,
            Some(_) | None => self.text = Text::Outside,
        }
        Some(offset.saturating_add(1))
    }

    fn outside(&mut self, byte: u8) {
        match byte {
            b'"' => self.text = Text::Passing,
            b'{' | b'[' if self.deeper > 0 => self.deeper = self.deeper.saturating_add(1),
            b'{' | b'[' => {
                let node = match (self.path.last(), byte) {
                    (None, b'[') => Node::Messages,
                    (None | Some(Node::Messages), b'{') => Node::Message,
                    (Some(_), b'{') => self.next,
                    (Some(_) | None, _) => Node::Other,
                };
                if node == Node::Other {
                    self.deeper = 1;
                } else {
                    self.path.push(node);
                    self.expects_name = byte == b'{';
                }
            }
            b'}' | b']' if self.deeper > 0 => self.deeper = self.deeper.saturating_sub(1),
            b'}' | b']' => {
                self.path.pop();
                self.expects_name = false;
            }
            b',' if self.deeper == 0 => {
                self.expects_name = self.path.last().is_some_and(|node| *node != Node::Messages);
            }
            _ => {}
        }
    }

    /// Takes the next byte of a name.
    fn named(&mut self, byte: u8) -> Result<Named, Torn> {
        self.name.push(byte);
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => {
                (self.text, self.expects_name) = (Text::Outside, false);
                // A name is a JSON text of its own.
                let doc = Doc::parse(Bytes::copy_from_slice(&self.name)).map_err(|_| Torn)?;
                let name = doc.root().as_str().ok_or(Torn)?;
                let node = self.path.last().copied().unwrap_or(Node::Other);
                self.next = node.inside(&name);
                return Ok(match node {
                    Node::Holder => other_name(&name).map_or(Named::Other, Named::Ours),
                    Node::Error
                    | Node::Message
                    | Node::Messages
                    | Node::Other
                    | Node::Outcome
                    | Node::TaskOutcome => Named::Other,
                });
            }
            _ => {}
        }
        if self.name.len() < MAX_NAME {
            return Ok(Named::Unfinished);
        }
        (self.text, self.expects_name, self.next) = (Text::Passing, false, Node::Other);
        Ok(Named::Other)
    }
}

/// What a name has come to.
enum Named {
    Other,
    /// It is one of ours; this goes on in its place.
    Ours(&'static [u8]),
    Unfinished,
}

/// Under which name one of ours goes on.
fn other_name(name: &str) -> Option<&'static [u8]> {
    match name {
        EFFECT => Some(b"\"anvil/upstream_effect\""),
        name if OURS.contains(&name) => Some(b"\"anvil/upstream_claim\""),
        _ => None,
    }
}

fn give(piece: &Bytes, range: Range<usize>, out: &mut VecDeque<Bytes>) {
    if !range.is_empty() {
        out.push_back(piece.slice(range));
    }
}

/// Renames claims in events that are too long to be held, the pieces of which are no frames by
/// themselves ([`Frame::is_unseen`](super::sse::Frame::is_unseen)).
#[derive(Debug, Default)]
pub struct EventRenamer {
    json: Renamer,
    line: Line,
    is_after_cr: bool,
    is_torn: bool,
}

/// How far in a line of a stream the reading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// In data.
    Data,
    /// Behind the colon of data: one space is no part of it.
    Colon,
    /// In its name, which is the beginning of `data` so far.
    Name(usize),
    /// In anything else.
    Other,
}

impl Default for Line {
    fn default() -> Self {
        Self::Name(0)
    }
}

impl EventRenamer {
    /// What goes on of the next piece. Of an event that is torn nothing more goes on, and no client
    /// reads what did as an answer.
    pub fn push(&mut self, piece: &Bytes) -> Bytes {
        let mut out = VecDeque::new();
        let mut at = match self.line {
            Line::Name(0) if piece.starts_with(BYTE_ORDER_MARK) => BYTE_ORDER_MARK.len(),
            Line::Colon | Line::Data | Line::Name(_) | Line::Other => 0,
        };
        give(piece, 0..at, &mut out);
        while let Some(byte) = piece.get(at).copied() {
            let rest = piece.get(at..).unwrap_or_default();
            let line_end = || memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            let (length, is_data) = match (self.line, byte) {
                (line, b'\r' | b'\n') => {
                    self.end_line(line, byte, &mut out);
                    (1, false)
                }
                (Line::Name(4), b':') => {
                    self.line = Line::Colon;
                    (1, false)
                }
                (Line::Name(matched), _) if b"data".get(matched) == Some(&byte) => {
                    self.line = Line::Name(matched.saturating_add(1));
                    (1, false)
                }
                (Line::Name(_) | Line::Other, _) => {
                    self.line = Line::Other;
                    (line_end(), false)
                }
                (Line::Colon, b' ') => {
                    self.line = Line::Data;
                    (1, false)
                }
                (Line::Colon | Line::Data, _) => {
                    self.line = Line::Data;
                    (line_end(), true)
                }
            };
            self.is_after_cr = byte == b'\r';
            let end = at.saturating_add(length);
            if self.is_torn {
                // Its rest is for nobody.
            } else if !is_data {
                give(piece, at..end, &mut out);
            } else if self.json.push(&piece.slice(at..end), &mut out).is_err() {
                self.tear(&mut out);
            }
            at = end;
        }
        match (out.pop_front(), out.is_empty()) {
            (None, _) => Bytes::new(),
            (Some(only), true) => only,
            (Some(first), false) => {
                let mut all = BytesMut::from(first);
                out.iter().for_each(|bytes| all.extend_from_slice(bytes));
                all.freeze()
            }
        }
    }

    /// Whether the event that goes by is torn.
    pub fn is_torn(&self) -> bool {
        self.is_torn
    }

    fn end_line(&mut self, line: Line, end: u8, out: &mut VecDeque<Bytes>) {
        if end == b'\n' && self.is_after_cr {
            return;
        }
        self.line = Line::Name(0);
        if line == Line::Name(0) {
            (self.json, self.is_torn) = (Renamer::default(), false);
        } else if self.json.is_held() && !self.is_torn {
            // No name has a line break in it.
            self.tear(out);
        }
    }

    /// Ends the event: a client dispatches what there is of it, and cannot read it.
    fn tear(&mut self, out: &mut VecDeque<Bytes>) {
        self.is_torn = true;
        out.push_back(Bytes::from_static(b"\n\n"));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::contract::json::Value;

    /// What goes on of a text that comes in pieces of this length.
    fn renamed(text: &str, length: usize) -> Result<String, Torn> {
        let mut renamer = Renamer::default();
        let mut out = VecDeque::new();
        for piece in text.as_bytes().chunks(length) {
            renamer.push(&Bytes::copy_from_slice(piece), &mut out)?;
        }
        Ok(String::from_utf8(out.into_iter().flatten().collect()).unwrap())
    }

    fn events(text: &str, length: usize) -> String {
        let mut renamer = EventRenamer::default();
        let pieces = text.as_bytes().chunks(length).map(Bytes::copy_from_slice);
        let out: Vec<u8> = pieces.flat_map(|piece| renamer.push(&piece)).collect();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn mcp_39_a_claim_goes_on_under_another_name_wherever_a_report_can_stand() {
        let cases = [
            (
                r#"{"result":{"_meta":{"effect":1}}}"#,
                r#"{"result":{"_meta":{"anvil/upstream_effect":1}}}"#,
            ),
            (
                r#" {"id":1, "result":{"content":[{"_meta":{"effect":1}}], "_meta":{"x":{"effect":1},"effect":{"a":"}"}}}}"#,
                r#" {"id":1, "result":{"content":[{"_meta":{"effect":1}}], "_meta":{"x":{"effect":1},"anvil/upstream_effect":{"a":"}"}}}}"#,
            ),
            (
                r#"{"\u0072esult":{"_m\u0065ta":{"\u0065ffect":1,"effect":2}}}"#,
                r#"{"\u0072esult":{"_m\u0065ta":{"anvil/upstream_effect":1,"anvil/upstream_effect":2}}}"#,
            ),
            (
                r#"{"error":{"data":{"effect":1}}}"#,
                r#"{"error":{"data":{"anvil/upstream_effect":1}}}"#,
            ),
            (
                r#"{"params":{"_meta":{"effect":1}}}"#,
                r#"{"params":{"_meta":{"anvil/upstream_effect":1}}}"#,
            ),
            (
                r#"{"result":{"result":{"_meta":{"takeback\/effect":1,"anvil/replayed":true}}}}"#,
                r#"{"result":{"result":{"_meta":{"anvil/upstream_claim":1,"anvil/upstream_claim":true}}}}"#,
            ),
            (
                r#"[{"id":1},{"result":{"_meta":{"effect":1}}}]"#,
                r#"[{"id":1},{"result":{"_meta":{"anvil/upstream_effect":1}}}]"#,
            ),
            (
                r#"{"result":{}}{"result":{"_meta":{"effect":1}}}"#,
                r#"{"result":{}}{"result":{"_meta":{"anvil/upstream_effect":1}}}"#,
            ),
        ];
        for (text, expected) in cases {
            for length in [1, 2, 3, 5, 8, 1000] {
                assert_eq!(renamed(text, length).as_deref(), Ok(expected), "{length}");
                let text = renamed(&format!("\u{feff}{text}"), length).unwrap();
                assert_eq!(text, format!("\u{feff}{expected}"), "{length}");
            }
        }
    }

    #[test]
    fn what_claims_nothing_and_what_is_no_json_stays() {
        let long =
            format!(r#"{{"result":{{"_meta":{{"{}":1,"b":"\"effect\""}}}}}}"#, "x".repeat(500));
        let texts = [
            long.as_str(),
            r#"{"result":{"effect":1,"meta":{"effect":1},"_meta":["effect",{"effect":1}]}}"#,
            r#"{"result":"_meta","x":{"_meta":{"effect":1}}}"#,
            r#"[[{"result":{"_meta":{"effect":1}}}]]"#,
            r#"<p>{"result":{"_meta":{"effect":1}}}</p>"#,
            "",
            "  ",
        ];
        for text in texts {
            for length in [1, 3, 1000] {
                assert_eq!(renamed(text, length).as_deref(), Ok(text), "{length}");
            }
        }
    }

    #[test]
    fn mcp_5_a_name_that_readers_disagree_about_is_not_passed_on() {
        for name in [r"eff\ect", r"\u00zzeffect", "eff\nect"] {
            let text = format!(r#"{{"result":{{"_meta":{{"{name}":1}}}}}}"#);
            assert_eq!(renamed(&text, 4), Err(Torn), "{name}");
        }
    }

    #[test]
    fn mcp_39_a_claim_in_a_long_event_is_renamed_and_the_rest_of_the_stream_stays() {
        let text = "\u{feff}id: 1\r\ndata: {\"result\":{\r\ndata:\"_meta\":{\"effect\":1\r\ndata\r\ndata: ,\"x\":\"effect\"}}}\r\nretry: 1\r\n\r\n\
                    : data: {\"result\":{\"_meta\":{\"effect\":1}}}\ndatas: {\n\ndata: {\"error\":{\"data\":{\"effect\":1}}}\n\n";
        let expected = text
            .replace("\"_meta\":{\"effect\":1\r", "\"_meta\":{\"anvil/upstream_effect\":1\r")
            .replace("\"data\":{\"effect\":1", "\"data\":{\"anvil/upstream_effect\":1");
        for length in [1, 2, 3, 7, 1000] {
            assert_eq!(events(text, length), expected, "{length}");
        }
    }

    #[test]
    fn an_event_that_is_torn_ends_and_the_next_goes_on() {
        let text = "data: {\"result\":{\"_meta\":{\"eff\\ect\":1}}}\nid: 7\n\ndata: {\"id\":1}\n\n";
        for length in [1, 5, 1000] {
            let seen = events(text, length);
            let (torn, next) = seen.split_once("\n\n").unwrap();
            assert!(
                !torn.contains("ect")
                    && serde_json::from_str::<serde_json::Value>(&torn[6..]).is_err(),
                "{torn}"
            );
            assert!(next.trim_start().starts_with("data: {\"id\":1}"), "{next}");
        }
        assert!(events("data: {\"result\n\n", 3).ends_with("\n\n"));
    }

    /// JSON texts whose members have the names that matter, at every depth.
    fn json() -> impl Strategy<Value = String> {
        let names = [
            "data",
            "effect",
            r"\u0065ffect",
            "error",
            "params",
            "result",
            r"r\u0065sult",
            "_meta",
            "x",
        ];
        let leaf = prop::sample::select(vec!["1", "null", r#""effect""#, r#""a\"{""#, "[]", "{}"]);
        leaf.prop_map(str::to_owned).prop_recursive(6, 48, 5, move |inner| {
            let name = prop::sample::select(names.to_vec());
            let object =
                prop::collection::btree_map(name, inner.clone(), 0..5).prop_map(|members| {
                    let members =
                        members.iter().map(|(name, value)| format!("\"{name}\": {value}"));
                    format!("{{{}}}", members.collect::<Vec<_>>().join(" ,"))
                });
            let array = prop::collection::vec(inner, 0..3)
                .prop_map(|items| format!("[{}]", items.join(",")));
            prop_oneof![8 => object, 1 => array]
        })
    }

    /// What is renamed, by a reader that has the whole.
    fn has_claim(value: Value<'_>) -> bool {
        let places = [
            vec!["error", "data"],
            vec!["params", "_meta"],
            vec!["params", "result", "_meta"],
            vec!["result", "_meta"],
            vec!["result", "result", "_meta"],
        ];
        let at = |value: Value<'_>, place: &[&str]| {
            let held = place.iter().try_fold(value, |value, name| value.get(name));
            held.is_some_and(|held| held.get("effect").is_some())
        };
        places.iter().any(|place| at(value, place))
            || value.elements().any(|item| places.iter().any(|place| at(item, place)))
    }

    proptest! {
        #[test]
        fn mcp_39_a_claim_is_found_in_pieces_wherever_the_whole_has_it(
            text in json(), length in 1_usize..9,
        ) {
            let seen = renamed(&text, length).unwrap();
            let plain = |text: &str| text.replace(r"\u0065", "e").replace("anvil/upstream_effect", "effect");
            prop_assert_eq!(plain(&seen), plain(&text));
            let Ok(doc) = Doc::parse(text.clone()) else { return Ok(()) };
            prop_assert_eq!(seen != text, has_claim(doc.root()), "{}", seen);
        }

        #[test]
        fn no_bytes_are_lost_or_held_but_a_name(
            text in r#"[\[\]{}:,"\\a-z \n]{0,60}"#, length in 1_usize..9,
        ) {
            let mut renamer = Renamer::default();
            let mut out = VecDeque::new();
            for piece in text.as_bytes().chunks(length) {
                if renamer.push(&Bytes::copy_from_slice(piece), &mut out).is_err() {
                    return Ok(());
                }
            }
            let seen: Vec<u8> = out.into_iter().flatten().collect();
            prop_assert_eq!([seen, renamer.name].concat(), text.into_bytes());
        }
    }
}
