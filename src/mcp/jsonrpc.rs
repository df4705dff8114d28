//! One JSON-RPC 2.0 message: its kind, its id, and why it is refused.
//!
//! The envelope is where two readers that differ become a way around a policy, so it is read
//! strictly (standards MCP-5, MCP-7, MCP-8): everything that [`Doc`] refuses, arrays, ids that are
//! not a string or an integer, a `method` beside a `result`, and members such as `Method` that a
//! reader which ignores case takes for the real one. Other unknown members pass.
//!
//! An id is kept as the text that came, so that `0`, `"0"` and 9007199254740993 go back as they
//! are.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::contract::json::{Doc, Fault, JsonError, Kind as JsonKind, Mark, Value, write_string};

/// The JSON-RPC error codes that are used here; none of them is our own (contract section 5).
pub mod code {
    /// The text is not JSON, or not UTF-8.
    pub const PARSE_ERROR: i64 = -32700;
    /// The JSON is not one well-formed message.
    pub const INVALID_REQUEST: i64 = -32600;
    /// The method is unknown.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// `params` does not fit the method.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Something broke.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// A mirrored header does not equal the body (2026-07-28).
    pub const HEADER_MISMATCH: i64 = -32020;
    /// The client did not declare what the server needs (2026-07-28).
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// The version is not spoken (2026-07-28).
    pub const UNSUPPORTED_VERSION: i64 = -32022;
    /// The client must visit a page first (2025-11-25).
    pub const URL_ELICITATION: i64 = -32042;
}

/// Whether a text holds this one, to see without parsing that a message cannot concern us.
pub fn holds(text: &[u8], needle: &str) -> bool {
    memchr::memmem::find(text, needle.as_bytes()).is_some()
}

/// The members of an envelope that have a meaning.
const ENVELOPE: &[&str] = &["jsonrpc", "id", "method", "params", "result", "error"];

/// The id of a request: a JSON string or integer, kept as it was written.
///
/// Two ids are equal if they have one JSON type and one value (standards MCP-7): `1` is not `"1"`,
/// `"a"` is `"\u0061"`.
#[derive(Clone)]
pub struct Id(Arc<str>);

impl Id {
    /// The id that a JSON value is. Fractions, exponents, `null` and everything else are none.
    pub fn from_value(value: Value<'_>) -> Option<Self> {
        let is_id = match value.kind() {
            JsonKind::String => true,
            JsonKind::Number => !value.raw().contains(['.', 'e', 'E']),
            JsonKind::Array | JsonKind::Bool | JsonKind::Null | JsonKind::Object => false,
        };
        is_id.then(|| Self(value.raw().into()))
    }

    /// Reads a stored token.
    pub fn parse(token: &str) -> Option<Self> {
        let doc = Doc::parse(token.to_owned()).ok()?;
        Self::from_value(doc.root())
    }

    /// The JSON text, quotes included.
    pub fn as_token(&self) -> &str {
        &self.0
    }

    /// Whether a JSON value is this id.
    pub fn is(&self, value: Value<'_>) -> bool {
        *self.0 == *value.raw() || Self::from_value(value).is_some_and(|other| *self == other)
    }

    /// Whether a reader that is not strict about types takes a JSON value for this id: one that makes
    /// a number of it first, or a text.
    ///
    /// Numbers are compared as ECMAScript reads them, at its precision: `2`, `2.0`, `"2"`, `" 0x2"`.
    pub fn may_be(&self, value: Value<'_>) -> bool {
        let theirs = || Self(value.raw().into());
        self.is(value)
            || matches!(value.kind(), JsonKind::String | JsonKind::Number)
                && self.number().is_some_and(|ours| theirs().number() == Some(ours))
    }

    fn number(&self) -> Option<f64> {
        if self.0.starts_with('"') { number_in(&self.text()?) } else { self.0.parse().ok() }
    }

    /// The text of an id that is a string.
    pub fn text(&self) -> Option<String> {
        let doc = Doc::parse(self.0.to_string()).ok()?;
        doc.root().as_str().map(Cow::into_owned)
    }
}

/// The number that ECMAScript makes of a text (ECMA-262, StringToNumber).
fn number_in(text: &str) -> Option<f64> {
    let text = text.trim();
    let radix = match text.get(..2) {
        Some("0b" | "0B") => 2,
        Some("0o" | "0O") => 8,
        Some("0x" | "0X") => 16,
        _ if text.is_empty() => return Some(0.0),
        _ => return text.parse().ok(),
    };
    let digits = text.get(2..).filter(|digits| !digits.is_empty())?;
    digits.chars().try_fold(0.0, |sum, digit| {
        let digit = f64::from(digit.to_digit(radix)?);
        Some(f64::from(radix).mul_add(sum, digit))
    })
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        if self.0 == other.0 {
            return true;
        }
        match (self.0.starts_with('"'), other.0.starts_with('"')) {
            (true, true) => {
                let is_escaped = self.0.contains('\\') || other.0.contains('\\');
                is_escaped && self.text() == other.text()
            }
            (false, false) => matches!((&*self.0, &*other.0), ("0", "-0") | ("-0", "0")),
            (true, false) | (false, true) => false,
        }
    }
}

impl Eq for Id {}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a message is (standards MCP-8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A method and no id: nobody answers it.
    Notification {
        /// The method, unescaped.
        method: String,
    },
    /// A method and an id.
    Request {
        /// Comes back in the answer.
        id: Id,
        /// The method, unescaped.
        method: String,
    },
    /// A client's answer to a request of the server.
    Response {
        /// Of the request; `None` in an error about a request whose id could not be read.
        id: Option<Id>,
    },
}

/// A message that was read.
#[derive(Clone, Debug)]
pub struct Message {
    doc: Doc,
    kind: Kind,
    /// `params`, and `_meta` in it: every rule asks for one of the two.
    params: Option<Mark>,
    meta: Option<Mark>,
}

impl Message {
    /// Reads the body of a POST.
    ///
    /// # Errors
    ///
    /// 400 and -32700 for what is not JSON (also a byte order mark, invalid UTF-8, half a surrogate
    /// pair); 400 and -32600 for duplicate members, too deep nesting, an array (batches are
    /// refused, contract section 5), and what is not a message. The id is the message's where it
    /// can be read.
    pub fn read(body: Bytes) -> Result<Self, Rejection> {
        let doc = Doc::parse(body).map_err(Rejection::unreadable)?;
        let (kind, params) = envelope(doc.root())?;
        let meta = params.and_then(|params| params.get("_meta")).map(Value::mark);
        let params = params.map(Value::mark);
        Ok(Self { doc, kind, params, meta })
    }

    /// What it is.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The method of a request or notification.
    pub fn method(&self) -> Option<&str> {
        match &self.kind {
            Kind::Notification { method } | Kind::Request { method, .. } => Some(method),
            Kind::Response { .. } => None,
        }
    }

    /// The id of a request or response.
    pub fn id(&self) -> Option<&Id> {
        match &self.kind {
            Kind::Notification { .. } => None,
            Kind::Request { id, .. } => Some(id),
            Kind::Response { id } => id.as_ref(),
        }
    }

    /// `params`: an object, or an array in methods of the upstream's own.
    pub fn params(&self) -> Option<Value<'_>> {
        self.params.map(|mark| self.doc.marked(mark))
    }

    /// `params._meta`, of whatever kind.
    pub fn meta(&self) -> Option<Value<'_>> {
        self.meta.map(|mark| self.doc.marked(mark))
    }

    /// The document.
    pub fn doc(&self) -> &Doc {
        &self.doc
    }

    /// The body, as it came: what is forwarded when nothing is changed (standards MCP-6).
    pub fn body(&self) -> &Bytes {
        self.doc.text()
    }
}

/// The members of an envelope.
#[derive(Default)]
struct Members<'a> {
    version: Option<Value<'a>>,
    id: Option<Value<'a>>,
    method: Option<Value<'a>>,
    params: Option<Value<'a>>,
    result: Option<Value<'a>>,
    error: Option<Value<'a>>,
    /// A reader that ignores case takes another one for one of these.
    has_disguised: bool,
}

impl<'a> Members<'a> {
    fn of(root: Value<'a>) -> Self {
        let mut found = Self::default();
        for member in root.members() {
            let name = member.name();
            let place = match &*name {
                "jsonrpc" => &mut found.version,
                "id" => &mut found.id,
                "method" => &mut found.method,
                "params" => &mut found.params,
                "result" => &mut found.result,
                "error" => &mut found.error,
                other => {
                    found.has_disguised |= ENVELOPE.iter().any(|known| folds_onto(other, known));
                    continue;
                }
            };
            *place = Some(member.value);
        }
        found
    }
}

/// What a message is, and its `params`.
fn envelope(root: Value<'_>) -> Result<(Kind, Option<Value<'_>>), Rejection> {
    match root.kind() {
        JsonKind::Object => {}
        JsonKind::Array => {
            let message = "batches are not taken: send one message in each request; \
                           nothing was sent";
            return Err(Rejection::new(400, code::INVALID_REQUEST, message, None));
        }
        JsonKind::Bool | JsonKind::Null | JsonKind::Number | JsonKind::String => {
            let message = "the body is not a JSON-RPC message; nothing was sent";
            return Err(Rejection::new(400, code::INVALID_REQUEST, message, None));
        }
    }
    let members = Members::of(root);
    let (id_value, params) = (members.id, members.params);
    let id = id_value.and_then(Id::from_value);
    let refuse = |message: &'static str| {
        Err(Rejection::new(400, code::INVALID_REQUEST, message, id.as_ref()))
    };
    if members.has_disguised {
        return refuse(
            "a member of the message differs from a JSON-RPC one only by case; nothing was sent",
        );
    }
    if members.version.and_then(Value::as_str).as_deref() != Some("2.0") {
        return refuse("jsonrpc is not \"2.0\"; nothing was sent");
    }
    let outcomes = [members.result, members.error].into_iter().flatten().count();
    let Some(method) = members.method else {
        let is_error_about_nothing = id_value.is_none_or(Value::is_null) && members.error.is_some();
        return if outcomes != 1 {
            refuse("the message is neither a request nor a response; nothing was sent")
        } else if id.is_none() && !is_error_about_nothing {
            refuse("id is neither a string nor an integer; nothing was sent")
        } else {
            Ok((Kind::Response { id }, params))
        };
    };
    let Some(method) = method.as_str().map(Cow::into_owned) else {
        return refuse("method is not a string; nothing was sent");
    };
    if outcomes > 0 {
        return refuse("the message is both a request and a response; nothing was sent");
    }
    if params.is_some_and(Value::is_scalar) {
        return refuse("params is not an object; nothing was sent");
    }
    match (id_value.is_some(), id) {
        (false, _) => Ok((Kind::Notification { method }, params)),
        (true, Some(id)) => Ok((Kind::Request { id, method }, params)),
        (true, None) => {
            let message = "id is neither a string nor an integer; nothing was sent";
            Err(Rejection::new(400, code::INVALID_REQUEST, message, None))
        }
    }
}

/// Whether an object has a member that is not one of `names` but that a reader which ignores case
/// takes for one. Some such readers keep the last of the two, whichever its case.
pub(super) fn has_disguised_member(object: Value<'_>, names: &[&str]) -> bool {
    object.members().any(|member| {
        let name = member.name();
        !names.contains(&&*name) && names.iter().any(|known| folds_onto(&name, known))
    })
}

/// Whether `name` is `known` (lower-case ASCII apart from its capitals) but for case. Two
/// characters outside ASCII have an ASCII letter as their lower case or fold.
fn folds_onto(name: &str, known: &str) -> bool {
    // Each character outside ASCII is longer than the letter that it folds onto.
    if name.len() < known.len() || (name.len() > known.len() && name.is_ascii()) {
        return false;
    }
    let fold = |character: char| match character {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        character => character.to_ascii_lowercase(),
    };
    name.chars().map(fold).eq(known.chars().map(fold))
}

/// A message that is refused before anything was sent: a protocol fault, or an unknown method.
///
/// Policy never refuses in this form (standards MCP-22): several clients take it for a broken
/// connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// The status of the HTTP answer.
    pub http_status: u16,
    /// The JSON-RPC error code.
    pub code: i64,
    /// What is wrong; holds nothing that came from the message.
    pub message: Cow<'static, str>,
    /// The id of the request; `None` is written as `null`.
    pub id: Option<Id>,
}

impl Rejection {
    /// A refusal of the message with this id.
    pub fn new(http_status: u16, code: i64, message: &'static str, id: Option<&Id>) -> Self {
        Self { http_status, code, message: message.into(), id: id.cloned() }
    }

    /// A body that [`Doc`] refuses.
    pub(super) fn unreadable(error: JsonError) -> Self {
        let code = match error.fault {
            Fault::Depth | Fault::DuplicateMember | Fault::TooLong | Fault::TooMany => {
                code::INVALID_REQUEST
            }
            Fault::ByteOrderMark
            | Fault::InvalidUtf8
            | Fault::LoneSurrogate
            | Fault::Syntax
            | Fault::Trailing => code::PARSE_ERROR,
        };
        let message = Cow::Owned(format!("the body cannot be read: {error}; nothing was sent"));
        Self { http_status: 400, code, message, id: None }
    }

    /// The body of the answer: `{"jsonrpc":"2.0","id":…,"error":{"code":…,"message":…}}`.
    pub fn to_json(&self) -> String {
        let id = self.id.as_ref().map_or("null", Id::as_token);
        let mut out = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":{},\"message\":",
            self.code
        );
        write_string(&self.message, &mut out);
        out.push_str("}}");
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: impl AsRef<[u8]>) -> Result<Message, Rejection> {
        Message::read(Bytes::copy_from_slice(text.as_ref()))
    }

    /// Status, code and id token of the refusal.
    fn refused(text: impl AsRef<[u8]>) -> (u16, i64, String) {
        let rejection = read(text).unwrap_err();
        let json = serde_json::from_str::<serde_json::Value>(&rejection.to_json()).unwrap();
        assert_eq!(json["error"]["code"], rejection.code);
        let id = rejection.id.map_or("null".to_owned(), |id| id.as_token().to_owned());
        (rejection.http_status, rejection.code, id)
    }

    #[test]
    fn d1_ids_keep_their_token_and_their_type() {
        for token in ["\"0\"", "0", "\"a-b\"", "9007199254740993", "\"\"", "-7", "\"\\u0061\""] {
            let text = format!(r#"{{"jsonrpc":"2.0","id": {token} ,"method":"ping"}}"#);
            let message = read(&text).unwrap();
            assert_eq!(message.id().map(Id::as_token), Some(token));
            assert_eq!(Id::parse(token).as_ref(), message.id());
        }
        let id = |token| Id::parse(token).unwrap();
        assert_ne!(id("0"), id("\"0\""));
        assert_ne!(id("9007199254740993"), id("9007199254740992"));
        assert_ne!(id("\"a\""), id("\"b\""));
        assert_eq!(id("\"a\""), id("\"\\u0061\""));
        assert_eq!(id("0"), id("-0"));
    }

    #[test]
    fn mcp_7_other_ids_are_refused_and_are_no_notifications() {
        for token in ["null", "1.0", "1e3", "true", "[1]", "{}"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{token},"method":"tools/call"}}"#);
            assert_eq!(refused(&text), (400, -32600, "null".to_owned()), "{token}");
            assert!(Id::parse(token).is_none(), "{token}");
        }
    }

    #[test]
    fn d3_batches_are_refused_with_id_null() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#;
        for text in ["[]".to_owned(), format!("[{call}]"), format!(" \r\n\t [ {call} , {call}]")] {
            assert_eq!(refused(&text), (400, -32600, "null".to_owned()), "{text}");
        }
    }

    #[test]
    fn mcp_5_what_readers_disagree_about_is_refused() {
        let parse_errors: &[&[u8]] = &[
            b"",
            b"{",
            b"\xef\xbb\xbf{}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\xff\"}",
            br#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"t":"\ud800"}}"#,
            br#"{"jsonrpc":"2.0","id":1,"method":"ping"} {}"#,
        ];
        for text in parse_errors {
            assert_eq!(refused(text), (400, -32700, "null".to_owned()));
        }
        let duplicates = [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","\u006dethod":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"x","name":"y"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{"n":1,"n":2}}}"#,
        ];
        for text in duplicates {
            assert_eq!(refused(text), (400, -32600, "null".to_owned()), "{text}");
        }
    }

    #[test]
    fn e7_deep_nesting_is_refused() {
        for text in ["[".repeat(100_000), "{\"a\":".repeat(31_000)] {
            assert_eq!(refused(text), (400, -32600, "null".to_owned()));
        }
    }

    #[test]
    fn members_that_differ_by_case_are_refused_with_the_id() {
        let cases = [
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","Method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":7,"METHOD":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","param\u017f":{}}"#,
        ];
        for text in cases {
            assert_eq!(refused(text), (400, -32600, "7".to_owned()), "{text}");
        }
    }

    #[test]
    fn mcp_8_what_is_no_message_is_refused_with_the_id() {
        let cases = [
            r#"{"id":"x","method":"ping"}"#,
            r#"{"jsonrpc":"1.0","id":"x","method":"ping"}"#,
            r#"{"jsonrpc":2.0,"id":"x","method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":"x"}"#,
            r#"{"jsonrpc":"2.0","id":"x","method":1}"#,
            r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":null}"#,
            r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":"a"}"#,
            r#"{"jsonrpc":"2.0","id":"x","method":"ping","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"x","result":{},"error":{}}"#,
        ];
        for text in cases {
            assert_eq!(refused(text), (400, -32600, "\"x\"".to_owned()), "{text}");
        }
        for text in ["null", "1", "\"a\"", r#"{"jsonrpc":"2.0","result":{}}"#] {
            assert_eq!(refused(text), (400, -32600, "null".to_owned()), "{text}");
        }
    }

    #[test]
    fn mcp_8_kinds_are_told_apart_and_unknown_members_pass() {
        let text = r#"{"jsonrpc":"2.0","method":"ping","vendor":{"x":[1]}}"#;
        assert_eq!(read(text).unwrap().kind(), &Kind::Notification { method: "ping".to_owned() });
        let text = r#"{"jsonrpc":"2.0","id":1,"result":null}"#;
        assert_eq!(read(text).unwrap().kind(), &Kind::Response { id: Id::parse("1") });
        for text in [r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, r#"{"jsonrpc":"2.0","error":{}}"#]
        {
            assert_eq!(read(text).unwrap().kind(), &Kind::Response { id: None }, "{text}");
        }
    }

    #[test]
    fn refusals_quote_nothing_of_the_message() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"hunter2":1,"hunter2":1}}"#;
        let rejection = read(text).unwrap_err();
        assert!(!rejection.to_json().contains("hunter2"));
        assert!(rejection.message.contains("duplicate member name at byte "));
    }

    proptest! {
        #[test]
        fn reading_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            drop(read(bytes));
        }

        #[test]
        fn d1_every_string_and_integer_comes_back_as_its_token(
            token in prop_oneof![
                ".*".prop_map(|text| serde_json::to_string(&text).unwrap()),
                "-?(0|[1-9][0-9]{0,30})",
            ],
        ) {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"nope","id":{token}}}"#);
            let message = read(text).unwrap();
            let rejection = crate::mcp::Methods::default().route(&message).unwrap_err();
            let expected = format!(r#"{{"jsonrpc":"2.0","id":{token},"error":"#);
            prop_assert!(rejection.to_json().starts_with(&expected));
        }
    }
}
