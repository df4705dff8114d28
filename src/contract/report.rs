//! The effect report: what became of a call and how to take it back (contract section 6).
//!
//! On HTTP it is the value of the `X-Anvil-Effect` header, on MCP `_meta.effect`. The six members
//! of ADR-0030 come first, in its order, and are always there; ours follow where they say
//! something.
//!
//! A header holds the report as ASCII. Above the limit it drops the arguments of every call as a
//! whole, because a shortened argument is a wrong undo, and says `truncated`; if that is still too
//! long, it keeps only what finds the entry and how it ended. The whole report stays readable by entry.

use std::borrow::Cow;
use std::fmt;

use http::HeaderValue;

use super::class::{Class, Outcome, Verdict, words};
use super::json::{self, Doc, Edits, Kind, Value};
use super::key::{EntryId, Key, OperationId};
use super::operation::LookupBy;
use super::undo::Resolved;

/// The longest header value by default, in bytes.
pub const MAX_HEADER: usize = 4096;

words! {
    /// How an undo takes the effect back.
    UndoKind {
        /// It leaves the world as it was.
        Inverse = "inverse",
        /// It cancels the effect and leaves a trace.
        Compensate = "compensate",
    }
}

words! {
    /// What the report says of the ledger when it is not well.
    LedgerNote {
        /// There is none; the entry was not recorded (observe mode).
        Down = "down",
        /// The call's finish is not yet durable.
        Unfinished = "unfinished",
    }
}

/// One call in a report, as JSON text on one line: an undo, a compensation, a lookup, a promotion
/// or a discard.
///
/// It is text so that the ledger can keep it and a replay can report it without its operation.
#[derive(Clone, PartialEq, Eq)]
pub struct CallJson(String);

impl fmt::Debug for CallJson {
    /// Shows the size only: arguments never reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallJson({} bytes)", self.0.len())
    }
}

impl CallJson {
    /// `{"kind", "operation", "tool", "http", "arguments"}`
    pub fn undo(kind: UndoKind, call: &Resolved) -> Self {
        let mut members = Members::new();
        members.text("kind", kind.as_str());
        Self(members.call(call).finish())
    }

    /// `{"operation", "tool", "http", "arguments", "deadline_ms"}`
    pub fn compensate(call: &Resolved) -> Self {
        let mut members = Members::new().call(call);
        members.raw("deadline_ms", &number_or_null(call.deadline_ms));
        Self(members.finish())
    }

    /// `{"by", "operation", "tool", "http", "arguments"}`
    pub fn lookup(by: LookupBy, call: &Resolved) -> Self {
        let mut members = Members::new();
        members.text("by", by.as_str());
        Self(members.call(call).finish())
    }

    /// `{"operation", "tool", "http", "arguments"}`, and `deadline_ms` where there is one: a
    /// promotion or a discard.
    pub fn follow_up(call: &Resolved) -> Self {
        let mut members = Members::new().call(call);
        if call.deadline_ms.is_some() {
            members.raw("deadline_ms", &number_or_null(call.deadline_ms));
        }
        Self(members.finish())
    }

    /// Takes text that [`CallJson::as_json`] gave; `None` if it is no JSON object.
    pub fn from_json(text: &str) -> Option<Self> {
        parse_object(text)?;
        let mut out = String::with_capacity(text.len());
        write_compact(text, &mut out);
        Some(Self(out))
    }

    /// Its JSON text.
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// The same call with `"arguments_omitted": true` instead of its arguments, so that a reader
    /// that overlooks `truncated` does not make a call with a gap.
    fn without_arguments(&self) -> Self {
        self.without(&["arguments"])
    }

    /// As [`without_arguments`](Self::without_arguments), and without the path, which is made of them.
    fn without_path(&self) -> Self {
        self.without(&["arguments", "http"])
    }

    fn without(&self, names: &[&str]) -> Self {
        let Some(doc) = parse_object(&self.0) else {
            return Self("null".to_owned());
        };
        let mut edits = Edits::new();
        edits.members(doc.root(), names, &[("arguments_omitted", "true")]);
        Self(String::from_utf8_lossy(&edits.apply(doc.text())).into_owned())
    }
}

/// What a staged call's report says (ADR-0030 section 7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The operation that made the draft.
    pub draft_operation: OperationId,
    /// The draft's handle, as JSON text.
    pub handle: Option<HandleJson>,
    /// Makes the draft real.
    pub promote: Option<CallJson>,
    /// Throws the draft away.
    pub discard: Option<CallJson>,
    /// Why one of the calls is not there.
    pub unavailable: Option<String>,
}

/// A draft's handle as JSON text.
#[derive(Clone, PartialEq, Eq)]
pub struct HandleJson(String);

impl fmt::Debug for HandleJson {
    /// Shows the size only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleJson({} bytes)", self.0.len())
    }
}

impl HandleJson {
    /// Takes a JSON text; `None` if it is none.
    pub fn new(text: &str) -> Option<Self> {
        Doc::parse(text.to_owned()).ok()?;
        let mut out = String::with_capacity(text.len());
        write_compact(text, &mut out);
        Some(Self(out))
    }

    /// Its JSON text.
    pub fn as_json(&self) -> &str {
        &self.0
    }
}

/// A report. What a call has nothing to say of stays at its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What can become of the effect.
    pub class: Class,
    /// The operation.
    pub operation: OperationId,
    /// What went upstream as the key.
    pub idempotency_key: Option<Key>,
    /// The call that takes the effect back.
    pub undo: Option<CallJson>,
    /// Until when, in milliseconds since 1970.
    pub deadline_ms: Option<i64>,
    /// The read that finds the effect.
    pub lookup: Option<CallJson>,
    /// The compensation of a reversible effect, for after the deadline.
    pub compensate: Option<CallJson>,
    /// Why there is no undo.
    pub undo_unavailable: Option<String>,
    /// The draft that the call made.
    pub staged: Option<Staged>,
    /// The caller's key, or else the entry's id.
    pub ledger_id: Option<Key>,
    /// The entry.
    pub entry: Option<EntryId>,
    /// What became of the entry.
    pub outcome: Option<Outcome>,
    /// What the evidence says.
    pub verdict: Option<Verdict>,
    /// The code of the refusal; nothing was sent.
    pub refused: Option<Cow<'static, str>>,
    /// The entry of an earlier call that was the same.
    pub repeats: Option<EntryId>,
    /// Whether the answer is a recorded one.
    pub replayed: bool,
    /// What enforcement would have done (observe mode).
    pub would: Option<Cow<'static, str>>,
    /// What is wrong with the ledger.
    pub ledger: Option<LedgerNote>,
}

impl Default for Report {
    /// An undeclared write of which nothing is known.
    fn default() -> Self {
        Self::new(Class::Irreversible, OperationId::undeclared())
    }
}

/// How much of a report is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Full,
    WithoutArguments,
    WithoutPaths,
}

impl Report {
    /// A report that says no more than its class and operation.
    pub fn new(class: Class, operation: OperationId) -> Self {
        Self {
            class,
            operation,
            idempotency_key: None,
            undo: None,
            deadline_ms: None,
            lookup: None,
            compensate: None,
            undo_unavailable: None,
            staged: None,
            ledger_id: None,
            entry: None,
            outcome: None,
            verdict: None,
            refused: None,
            repeats: None,
            replayed: false,
            would: None,
            ledger: None,
        }
    }

    /// A read's report.
    pub fn for_read(operation: OperationId) -> Self {
        Self::new(Class::Read, operation)
    }

    /// The report as compact JSON: the value of `_meta.effect`.
    pub fn to_json(&self) -> String {
        self.write(Extent::Full)
    }

    /// The report as a header value of visible ASCII and inner spaces, at most `limit` bytes long
    /// (standards H-40, H-41). Above it the calls lose their arguments, then their paths, then the report
    /// all but what finds the entry. A limit below 64 bytes counts as 64.
    pub fn to_header(&self, limit: usize) -> HeaderValue {
        let limit = limit.max(64);
        let minimal = || {
            let mut members = Members::new();
            members.text("class", self.class.as_str());
            members.text("operation", self.operation.as_str());
            members.nullable("idempotency_key", self.idempotency_key.as_ref().map(Key::as_str));
            members.optional("ledger_id", self.ledger_id.as_ref().map(Key::as_str));
            members.optional("entry", self.entry.map(|entry| entry.to_string()).as_deref());
            members.optional("outcome", self.outcome.map(Outcome::as_str));
            members.optional("verdict", self.verdict.map(Verdict::as_str));
            members.raw("truncated", "true");
            members.finish()
        };
        let forms: [&dyn Fn() -> String; 4] = [
            &|| self.write(Extent::Full),
            &|| self.write(Extent::WithoutArguments),
            &|| self.write(Extent::WithoutPaths),
            &minimal,
        ];
        for form in forms {
            let json = form();
            let mut ascii = String::with_capacity(json.len());
            json::write_ascii(&json, &mut ascii);
            if ascii.len() <= limit
                && let Ok(value) = HeaderValue::try_from(ascii)
            {
                return value;
            }
        }
        smallest(self.class)
    }

    fn write(&self, extent: Extent) -> String {
        let call = |call: &Option<CallJson>| match (call, extent) {
            (None, _) => "null".to_owned(),
            (Some(call), Extent::Full) => call.0.clone(),
            (Some(call), Extent::WithoutArguments) => call.without_arguments().0,
            (Some(call), Extent::WithoutPaths) => call.without_path().0,
        };
        let mut members = Members::new();
        members.text("class", self.class.as_str());
        members.text("operation", self.operation.as_str());
        members.nullable("idempotency_key", self.idempotency_key.as_ref().map(Key::as_str));
        members.raw("undo", &call(&self.undo));
        members.raw("deadline_ms", &number_or_null(self.deadline_ms));
        members.raw("lookup", &call(&self.lookup));
        if self.compensate.is_some() {
            members.raw("compensate", &call(&self.compensate));
        }
        members.optional("undo_unavailable", self.undo_unavailable.as_deref());
        if let Some(staged) = &self.staged {
            let mut inner = Members::new();
            inner.text("draft_operation", staged.draft_operation.as_str());
            let handle = staged.handle.as_ref().map_or("null", HandleJson::as_json);
            inner.raw("handle", handle);
            inner.raw("promote", &call(&staged.promote));
            inner.raw("discard", &call(&staged.discard));
            inner.optional("unavailable", staged.unavailable.as_deref());
            members.raw("staged", &inner.finish());
        }
        members.optional("ledger_id", self.ledger_id.as_ref().map(Key::as_str));
        members.optional("entry", self.entry.map(|entry| entry.to_string()).as_deref());
        members.optional("outcome", self.outcome.map(Outcome::as_str));
        members.optional("verdict", self.verdict.map(Verdict::as_str));
        members.optional("refused", self.refused.as_deref());
        members.optional("repeats", self.repeats.map(|entry| entry.to_string()).as_deref());
        if self.replayed {
            members.raw("replayed", "true");
        }
        members.optional("would", self.would.as_deref());
        members.optional("ledger", self.ledger.map(LedgerNote::as_str));
        if extent != Extent::Full {
            members.raw("truncated", "true");
        }
        members.finish()
    }
}

/// The header for a report that is there as JSON only: what [`Report::to_header`] gives for it.
pub fn header_of(json: &str, limit: usize) -> HeaderValue {
    let limit = limit.max(64);
    let ascii = |json: &str| {
        let (mut compact, mut ascii) = (String::new(), String::new());
        write_compact(json, &mut compact);
        json::write_ascii(&compact, &mut ascii);
        (ascii.len() <= limit).then(|| HeaderValue::try_from(ascii).ok()).flatten()
    };
    if let Some(value) = ascii(json) {
        return value;
    }
    let Some(doc) = parse_object(json) else { return smallest(Class::Irreversible) };
    let root = doc.root();
    let staged = root.get("staged");
    let staged = ["promote", "discard"].iter().filter_map(|name| staged?.get(name));
    let calls = ["undo", "lookup", "compensate"].iter().filter_map(|name| root.get(name));
    let calls: Vec<Value<'_>> = calls.chain(staged).collect();
    let shortened = |shorten: fn(&CallJson) -> CallJson| {
        let mut edits = Edits::new();
        for value in &calls {
            if let Some(call) = CallJson::from_json(value.raw()) {
                edits.replace(*value, shorten(&call).0);
            }
        }
        edits.members(root, &[], &[("truncated", "true")]);
        String::from_utf8_lossy(&edits.apply(doc.text())).into_owned()
    };
    let least = || {
        let mut least = Members::new();
        for name in
            ["class", "operation", "idempotency_key", "ledger_id", "entry", "outcome", "verdict"]
        {
            if let Some(value) = root.get(name) {
                least.raw(name, value.raw());
            }
        }
        least.raw("truncated", "true");
        least.finish()
    };
    let class = root.get("class").and_then(Value::as_str);
    let class = Class::ALL.iter().find(|known| class.as_deref() == Some(known.as_str()));
    ascii(&shortened(CallJson::without_arguments))
        .or_else(|| ascii(&shortened(CallJson::without_path)))
        .or_else(|| ascii(&least()))
        .unwrap_or_else(|| smallest(class.copied().unwrap_or(Class::Irreversible)))
}

/// What is left of a report for which there is no room.
fn smallest(class: Class) -> HeaderValue {
    HeaderValue::from_static(match class {
        Class::Read => r#"{"class":"read","truncated":true}"#,
        Class::Reversible => r#"{"class":"reversible","truncated":true}"#,
        Class::Compensable => r#"{"class":"compensable","truncated":true}"#,
        Class::Irreversible => r#"{"class":"irreversible","truncated":true}"#,
    })
}

/// The header of every read of one operation; made once, because it says nothing of the call.
pub fn static_read_header(operation: &OperationId) -> HeaderValue {
    Report::for_read(operation.clone()).to_header(MAX_HEADER)
}

fn number_or_null(number: Option<i64>) -> String {
    number.map_or_else(|| "null".to_owned(), |number| number.to_string())
}

/// An object while it is written.
struct Members(String);

impl Members {
    fn new() -> Self {
        Self("{".to_owned())
    }

    fn raw(&mut self, name: &str, json: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        json::write_string(name, &mut self.0);
        self.0.push(':');
        self.0.push_str(json);
    }

    fn text(&mut self, name: &str, text: &str) {
        let mut json = String::with_capacity(text.len().saturating_add(2));
        json::write_string(text, &mut json);
        self.raw(name, &json);
    }

    fn nullable(&mut self, name: &str, text: Option<&str>) {
        match text {
            Some(text) => self.text(name, text),
            None => self.raw(name, "null"),
        }
    }

    fn optional(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    fn call(mut self, call: &Resolved) -> Self {
        self.text("operation", call.operation.as_str());
        self.nullable("tool", call.tool.as_deref());
        if let Some((method, path)) = &call.http {
            let mut http = Self::new();
            http.text("method", method.as_str());
            http.text("path", path);
            self.raw("http", &http.finish());
        }
        let mut arguments = String::new();
        write_compact(&call.arguments_json(), &mut arguments);
        self.raw("arguments", &arguments);
        self
    }

    fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// Writes a JSON text without the white space between its tokens. Values are copied out of calls as
/// they were written, and a line feed between two members must not end a header.
fn write_compact(json: &str, out: &mut String) {
    let mut is_string = false;
    let mut is_escaped = false;
    for character in json.chars() {
        if is_string {
            out.push(character);
            is_string = is_escaped || character != '"';
            is_escaped = !is_escaped && character == '\\';
        } else if !matches!(character, ' ' | '\t' | '\n' | '\r') {
            out.push(character);
            is_string = character == '"';
        }
    }
}

fn parse_object(text: &str) -> Option<Doc> {
    Doc::parse(text.to_owned()).ok().filter(|doc| doc.root().kind() == Kind::Object)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(text: &str) -> OperationId {
        OperationId::new(text).unwrap()
    }

    fn key(text: &str) -> Key {
        Key::from_text(text).unwrap()
    }

    fn entry(byte: u8) -> EntryId {
        EntryId::from_bytes([byte; 16])
    }

    fn deletion(arguments: &[(&str, &str)]) -> Resolved {
        let path = "/repos/octo/hello/issues/comments/100".to_owned();
        Resolved {
            operation: id("github.comments.delete"),
            tool: None,
            http: Some((http::Method::DELETE, path)),
            headers: Vec::new(),
            arguments: arguments
                .iter()
                .map(|(name, json)| ((*name).to_owned(), (*json).to_owned()))
                .collect(),
            body: None,
            deadline_ms: Some(1_764_489_600_000),
        }
    }

    fn created(arguments: &[(&str, &str)]) -> Report {
        Report {
            idempotency_key: Some(key("01JB")),
            undo: Some(CallJson::undo(UndoKind::Inverse, &deletion(arguments))),
            deadline_ms: Some(1_764_489_600_000),
            ledger_id: Some(key("01JB")),
            entry: Some(entry(1)),
            outcome: Some(Outcome::Accepted),
            verdict: Some(Verdict::Verified),
            ..Report::new(Class::Reversible, id("github.comments.create"))
        }
    }

    fn header(report: &Report) -> String {
        report.to_header(MAX_HEADER).to_str().unwrap().to_owned()
    }

    #[test]
    fn the_report_has_the_members_of_the_contract_in_order() {
        let report = created(&[("path.owner", "\"octo\""), ("path.comment_id", "100")]);

        let expected = concat!(
            r#"{"class":"reversible","operation":"github.comments.create","#,
            r#""idempotency_key":"01JB","#,
            r#""undo":{"kind":"inverse","operation":"github.comments.delete","tool":null,"#,
            r#""http":{"method":"DELETE","path":"/repos/octo/hello/issues/comments/100"},"#,
            r#""arguments":{"path.owner":"octo","path.comment_id":100}},"#,
            r#""deadline_ms":1764489600000,"lookup":null,"ledger_id":"01JB","#,
            r#""entry":"01010101-0101-0101-0101-010101010101","#,
            r#""outcome":"accepted","verdict":"verified"}"#
        );
        assert_eq!(report.to_json(), expected);
        assert_eq!(header(&report), expected);
    }

    #[test]
    fn a_read_has_the_six_members_and_one_header_for_all() {
        let expected = concat!(
            r#"{"class":"read","operation":"notes.get","idempotency_key":null,"#,
            r#""undo":null,"deadline_ms":null,"lookup":null}"#
        );
        assert_eq!(Report::for_read(id("notes.get")).to_json(), expected);
        assert_eq!(static_read_header(&id("notes.get")), expected);
    }

    #[test]
    fn an_undeclared_write_is_the_default() {
        let json = Report::default().to_json();
        assert!(json.starts_with(r#"{"class":"irreversible","operation":"_undeclared","#));
    }

    #[test]
    fn every_optional_member_is_written_once_and_in_order() {
        let tool = Resolved {
            tool: Some("gh__close".to_owned()),
            http: None,
            deadline_ms: None,
            ..deletion(&[("n", "1")])
        };
        let report = Report {
            lookup: Some(CallJson::lookup(LookupBy::IdempotencyKey, &tool)),
            compensate: Some(CallJson::compensate(&tool)),
            undo_unavailable: Some("deadline passed".to_owned()),
            staged: Some(Staged {
                draft_operation: id("releases.create"),
                handle: HandleJson::new("\"d 1\""),
                promote: Some(CallJson::follow_up(&tool)),
                discard: None,
                unavailable: Some("operation x is not served here".to_owned()),
            }),
            refused: Some("confirmation_required".into()),
            repeats: Some(entry(2)),
            replayed: true,
            would: Some("refuse".into()),
            ledger: Some(LedgerNote::Unfinished),
            outcome: Some(Outcome::Unknown),
            ..Report::new(Class::Compensable, id("issues.create"))
        };

        let expected = concat!(
            r#"{"class":"compensable","operation":"issues.create","idempotency_key":null,"#,
            r#""undo":null,"deadline_ms":null,"#,
            r#""lookup":{"by":"idempotency_key","operation":"github.comments.delete","#,
            r#""tool":"gh__close","arguments":{"n":1}},"#,
            r#""compensate":{"operation":"github.comments.delete","tool":"gh__close","#,
            r#""arguments":{"n":1},"deadline_ms":null},"#,
            r#""undo_unavailable":"deadline passed","#,
            r#""staged":{"draft_operation":"releases.create","handle":"d 1","#,
            r#""promote":{"operation":"github.comments.delete","tool":"gh__close","#,
            r#""arguments":{"n":1}},"discard":null,"#,
            r#""unavailable":"operation x is not served here"},"#,
            r#""outcome":"unknown","refused":"confirmation_required","#,
            r#""repeats":"02020202-0202-0202-0202-020202020202","replayed":true,"#,
            r#""would":"refuse","ledger":"unfinished"}"#
        );
        assert_eq!(report.to_json(), expected);
    }

    #[test]
    fn h_40_above_the_limit_the_header_drops_arguments_as_a_whole() {
        let long = format!("\"{}\"", "x".repeat(MAX_HEADER));
        let report = Report {
            lookup: Some(CallJson::lookup(LookupBy::Id, &deletion(&[("path.id", &long)]))),
            ..created(&[("path.id", &long), ("query.q", "1")])
        };

        let written = header(&report);

        let read: serde_json::Value = serde_json::from_str(&written).unwrap();
        assert_eq!(read["truncated"], true);
        for call in [&read["undo"], &read["lookup"]] {
            assert_eq!(call.get("arguments"), None);
            assert_eq!(call["arguments_omitted"], true);
            assert_eq!(call["http"]["method"], "DELETE");
        }
        assert_eq!(read["entry"], "01010101-0101-0101-0101-010101010101");
        assert_eq!(read["verdict"], "verified");
        assert!(report.to_json().contains(&long));
        assert!(!report.to_json().contains("truncated"));
    }

    #[test]
    fn h_40_a_path_that_is_too_long_leaves_the_undo_its_deadline_and_the_lookup() {
        let path = format!("/notes/{}", "a".repeat(MAX_HEADER));
        let call = format!(
            r#"{{"kind":"inverse","operation":"notes.delete","tool":null,
                "http":{{"method":"DELETE","path":"{path}"}},"arguments":{{}}}}"#
        );
        let report = Report { undo: CallJson::from_json(&call), ..created(&[]) };

        let read: serde_json::Value = serde_json::from_str(&header(&report)).unwrap();

        assert_eq!(read["undo"]["operation"], "notes.delete");
        assert_eq!(read["undo"]["arguments_omitted"], true);
        assert_eq!(read["undo"].get("http"), None);
        assert_eq!(read["deadline_ms"].as_i64(), report.deadline_ms);
        assert_eq!(read["truncated"], true);
    }

    #[test]
    fn h_40_a_header_that_is_still_too_long_keeps_what_finds_the_entry() {
        let report = Report {
            undo_unavailable: Some("é".repeat(MAX_HEADER / 6)),
            undo: None,
            ..created(&[])
        };

        let expected = concat!(
            r#"{"class":"reversible","operation":"github.comments.create","idempotency_key":"01JB","#,
            r#""ledger_id":"01JB","entry":"01010101-0101-0101-0101-010101010101","#,
            r#""outcome":"accepted","verdict":"verified","truncated":true}"#
        );
        assert_eq!(header(&report), expected);
        assert_eq!(report.to_header(0), r#"{"class":"reversible","truncated":true}"#);
    }

    #[test]
    fn h_40_the_limit_is_the_longest_length_that_is_kept() {
        let report = created(&[("path.id", "\"é\"")]);
        let full = header(&report);
        assert!(!full.contains("truncated"));

        assert_eq!(report.to_header(full.len()), full.as_str());
        assert!(report.to_header(full.len() - 1).to_str().unwrap().contains("truncated"));
    }

    #[test]
    fn h_41_white_space_between_tokens_never_reaches_a_header() {
        let report = created(&[("body", "{\n\t\"a b\" :\r\n [ 1.0 , \"\\n \\\" x\" ] }")]);
        let written = header(&report);
        assert!(written.contains(r#""arguments":{"body":{"a b":[1.0,"\n \" x"]}}"#), "{written}");
    }

    #[test]
    fn stored_calls_come_back_as_they_were() {
        let call = CallJson::undo(UndoKind::Compensate, &deletion(&[("path.id", "\"é\"")]));

        assert_eq!(CallJson::from_json(call.as_json()), Some(call.clone()));
        let spaced = format!(" {} ", call.as_json().replace(',', " ,\n "));
        assert_eq!(CallJson::from_json(&spaced), Some(call));
        for text in ["", "null", "[]", "{", "{}x", "{\"a\":1,\"a\":2}"] {
            assert_eq!(CallJson::from_json(text), None, "{text}");
        }
        assert_eq!(HandleJson::new("{"), None);
    }

    #[test]
    fn debug_texts_hold_no_value() {
        let report = Report {
            staged: Some(Staged {
                draft_operation: id("d"),
                handle: HandleJson::new("\"canary\""),
                promote: None,
                discard: None,
                unavailable: None,
            }),
            idempotency_key: Some(key("canary")),
            ..created(&[("path.id", "\"canary\"")])
        };
        assert!(report.to_json().contains("canary"));
        assert!(!format!("{report:?}").contains("canary"));
    }

    /// A string argument with this content, as a report has it.
    fn with_text(text: &str) -> Report {
        let mut json = String::new();
        json::write_string(text, &mut json);
        Report { undo_unavailable: Some(text.to_owned()), ..created(&[(text, &json)]) }
    }

    #[test]
    fn h_41_every_scalar_value_can_stand_in_a_header() {
        let scalars: Vec<char> = ('\0'..=char::MAX).collect();
        // Blocks small enough that nothing is dropped: 24 bytes for a character that is escaped.
        let mut count = 0;
        for block in scalars.chunks(64) {
            let text: String = block.iter().collect();
            let value = with_text(&text).to_header(64 * 1024);
            let written = value.to_str().unwrap();
            assert!(written.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            let read: serde_json::Value = serde_json::from_str(written).unwrap();
            assert_eq!(read["undo_unavailable"], text.as_str());
            assert_eq!(read["undo"]["arguments"][&text], text.as_str());
            count += block.len();
        }
        assert_eq!(count, 0x11_0000 - 0x800);
    }

    proptest! {
        /// Where only the JSON is there, as behind the bridge, nothing else is dropped.
        #[test]
        fn h_40_a_report_has_one_header_whatever_it_is_made_of(
            text in any::<String>(), repeat in 0_usize..40, limit in 0_usize..6_000,
        ) {
            let mut report = with_text(&text.repeat(repeat));
            let call = report.undo.clone();
            report.lookup = call.clone();
            report.compensate = call.clone();
            report.staged = Some(Staged {
                draft_operation: report.operation.clone(),
                handle: None,
                promote: call.clone(),
                discard: call,
                unavailable: None,
            });

            prop_assert_eq!(header_of(&report.to_json(), limit), report.to_header(limit));
        }

        #[test]
        fn h_40_headers_are_ascii_json_within_the_limit(
            text in any::<String>(), repeat in 0_usize..40, limit in 0_usize..6_000,
        ) {
            let value = with_text(&text.repeat(repeat)).to_header(limit);

            let written = value.to_str().unwrap();
            prop_assert!(written.len() <= limit.max(64));
            prop_assert!(written.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            let read: serde_json::Value = serde_json::from_str(written).unwrap();
            prop_assert_eq!(&read["class"], "reversible");
            let is_whole = read["undo"].get("arguments").is_some();
            prop_assert_eq!(read.get("truncated").is_none(), is_whole);
        }

        #[test]
        fn compact_text_is_the_same_json(text in any::<String>()) {
            let value = serde_json::json!({ &text: [&text, 1, null, { "k": &text }] });
            let mut compact = String::new();

            write_compact(&serde_json::to_string_pretty(&value).unwrap(), &mut compact);

            prop_assert_eq!(compact, value.to_string());
        }
    }
}
