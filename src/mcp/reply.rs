//! The answers that are ours: refusals, recorded answers, errors.
//!
//! A refusal of a tool call, and what we say after a dispatch whose answer is lost, is a *result*
//! with `isError: true` inside HTTP 200 (standards MCP-22): it is the one form that every client
//! measured hands to its caller, and the session lives on. Its first text is the envelope
//! `{"error":{"code","message","retryable","details"}}`; the report stands in `_meta.effect`. It
//! has no `structuredContent`, which clients would hold against the tool's output schema.
//!
//! Each function gives the text of one JSON-RPC message without line breaks outside its strings,
//! fit for a body and for one `data:` line of a stream.

use crate::contract::json::{Doc, Edits, JsonError, Kind as JsonKind, Value, write_string};

use super::Era;
use super::answer::Reports;
use super::claims::disown;
use super::jsonrpc::Id;
use super::request::QUESTION;

/// What a refusal says, in the form of ADR-0030.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'a> {
    /// The code, such as `confirmation_required`.
    pub code: &'a str,
    /// Whether anything ran, and what to do next; a model reads this.
    pub message: &'a str,
    /// Whether the same call may succeed later as it is.
    pub retryable: bool,
    /// A JSON object with more; `{}` where there is none.
    pub details: &'a str,
}

impl Envelope<'_> {
    /// The JSON text: `{"error":{"code":…,"message":…,"retryable":…,"details":{…}}}`.
    pub fn to_json(&self) -> String {
        let mut out = String::from("{\"error\":{\"code\":");
        write_string(self.code, &mut out);
        out.push_str(",\"message\":");
        write_string(self.message, &mut out);
        out.push_str(",\"retryable\":");
        out.push_str(if self.retryable { "true" } else { "false" });
        out.push_str(",\"details\":");
        out.push_str(self.details);
        out.push_str("}}");
        out
    }
}

/// The result that says that a call was refused, or that its outcome is unknown.
///
/// `report` is the JSON text of the report.
pub fn refusal(id: &Id, era: Era, envelope: &Envelope<'_>, report: &str) -> String {
    let mut result = String::from("{");
    if era == Era::Modern {
        result.push_str("\"resultType\":\"complete\",");
    }
    result.push_str("\"content\":[{\"type\":\"text\",\"text\":");
    write_string(&envelope.to_json(), &mut result);
    result.push_str("}],\"isError\":true,\"_meta\":{\"effect\":");
    result.push_str(report);
    result.push_str("}}");
    message(id, "result", &result)
}

/// The result that asks a modern client instead of refusing its call (standards MCP-33).
///
/// `params` are those of an `elicitation/create`; `state` comes back with the client's answer.
pub fn input_required(id: &Id, params: &str, state: &str, report: &str) -> String {
    let mut result = String::from("{\"resultType\":\"input_required\",\"inputRequests\":{");
    write_string(QUESTION, &mut result);
    result.push_str(":{\"method\":\"elicitation/create\",\"params\":");
    result.push_str(params);
    result.push_str("}},\"requestState\":");
    write_string(state, &mut result);
    result.push_str(",\"_meta\":{\"effect\":");
    result.push_str(report);
    result.push_str("}}");
    message(id, "result", &result)
}

/// A recorded result under a new id, in the era of the new request, with a fresh report
/// (standards MCP-47).
///
/// `resultType: complete` is added or left out as the era wants it; `_meta.effect` is replaced; all
/// else is as it was recorded.
///
/// # Errors
///
/// A recorded text that is not JSON. A value that is no object comes back as it is: there was no
/// place for a report when it was recorded either.
pub fn replay(id: &Id, era: Era, recorded: &str, report: &str) -> Result<String, JsonError> {
    let doc = Doc::parse(recorded.to_owned())?;
    let result = doc.root();
    if result.kind() != JsonKind::Object {
        return Ok(message(id, "result", result.raw()));
    }
    let kind = result.get("resultType");
    let is_complete = kind.and_then(Value::as_str).as_deref() == Some("complete");
    let mut edits = Edits::new();
    let mut set = Vec::new();
    let mut remove: &[&str] = &[];
    match era {
        Era::Modern if kind.is_none() => set.push(("resultType", "\"complete\"")),
        Era::Legacy if is_complete => remove = &["resultType"],
        Era::Legacy | Era::Modern => {}
    }
    let meta = format!("{{\"effect\":{report}}}");
    match result.get("_meta") {
        Some(old) if old.kind() == JsonKind::Object => {
            disown(old, Reports::Ignore, Some(report), &mut edits);
        }
        Some(_) | None => set.push(("_meta", &meta)),
    }
    edits.members(result, remove, &set);
    let text = String::from_utf8(edits.apply(doc.text())).unwrap_or_default();
    Ok(message(id, "result", &single_line(&text)))
}

/// A JSON-RPC error. `data` is a JSON text.
pub fn error(id: &Id, code: i64, text: &str, data: Option<&str>) -> String {
    let mut error = format!("{{\"code\":{code},\"message\":");
    write_string(text, &mut error);
    if let Some(data) = data {
        error.push_str(",\"data\":");
        error.push_str(data);
    }
    error.push('}');
    message(id, "error", &error)
}

/// The JSON text without its line breaks, which stand between its tokens: inside a string they are
/// escapes.
pub(super) fn single_line(json: &str) -> String {
    json.replace(['\r', '\n'], " ")
}

fn message(id: &Id, member: &str, json: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"{member}\":{json}}}", id.as_token())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REPORT: &str = r#"{"class":"irreversible","undo":null}"#;

    fn id() -> Id {
        Id::parse("\"a\\u0062\"").unwrap()
    }

    fn envelope() -> Envelope<'static> {
        Envelope {
            code: "confirmation_required",
            message: "The tool did not run. Say \"yes\".",
            retryable: false,
            details: r#"{"confirm":{"level":"challenge"}}"#,
        }
    }

    #[test]
    fn mcp_22_a_refusal_is_an_error_result_with_the_envelope_as_its_text() {
        let text = refusal(&id(), Era::Modern, &envelope(), REPORT);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();

        assert!(text.starts_with(r#"{"jsonrpc":"2.0","id":"a\u0062","result":"#));
        let result = &json["result"];
        assert_eq!(result["isError"], true);
        assert_eq!(result["resultType"], "complete");
        assert_eq!(result["_meta"]["effect"]["class"], "irreversible");
        assert!(result.get("structuredContent").is_none());
        let inner = result["content"][0]["text"].as_str().unwrap();
        let inner: serde_json::Value = serde_json::from_str(inner).unwrap();
        assert_eq!(inner["error"]["code"], "confirmation_required");
        assert_eq!(inner["error"]["message"], envelope().message);
        assert_eq!(inner["error"]["retryable"], false);
        assert_eq!(inner["error"]["details"]["confirm"]["level"], "challenge");
    }

    #[test]
    fn mcp_22_a_legacy_refusal_has_no_result_type() {
        let text = refusal(&id(), Era::Legacy, &envelope(), REPORT);

        assert!(!text.contains("resultType"));
    }

    #[test]
    fn mcp_47_a_replay_has_the_new_id_the_new_era_and_a_fresh_report() {
        let cases = [
            (
                Era::Modern,
                r#"{"structuredContent":{"n":1.0} }"#,
                r#"{"structuredContent":{"n":1.0},"resultType":"complete","_meta":{"effect":R} }"#,
            ),
            (
                Era::Legacy,
                r#"{"resultType":"complete","content":[]}"#,
                r#"{"content":[],"_meta":{"effect":R}}"#,
            ),
            (
                Era::Modern,
                r#"{"resultType":"complete","_meta":{"effect":{"class":"read"},"v/x":1e2}}"#,
                r#"{"resultType":"complete","_meta":{"effect":R,"v/x":1e2}}"#,
            ),
            (
                Era::Legacy,
                "{\"content\":[],\r\n \"_meta\":{\"v/x\":1}}",
                "{\"content\":[],   \"_meta\":{\"v/x\":1,\"effect\":R}}",
            ),
            (
                Era::Legacy,
                r#"{"resultType":"task","taskId":"t","_meta":null}"#,
                r#"{"resultType":"task","taskId":"t","_meta":{"effect":R}}"#,
            ),
            (Era::Modern, "7", "7"),
        ];
        for (era, recorded, expected) in cases {
            let text = replay(&Id::parse("2").unwrap(), era, recorded, REPORT).unwrap();
            let expected = expected.replace('R', REPORT);
            assert_eq!(text, format!(r#"{{"jsonrpc":"2.0","id":2,"result":{expected}}}"#));
        }
        assert!(replay(&id(), Era::Modern, "{", REPORT).is_err());
    }

    #[test]
    fn an_error_carries_its_data() {
        let text = error(&id(), -32603, "a\nb", Some("{\"effect\":{}}"));
        assert_eq!(
            text,
            "{\"jsonrpc\":\"2.0\",\"id\":\"a\\u0062\",\"error\":{\"code\":-32603,\
             \"message\":\"a\\nb\",\"data\":{\"effect\":{}}}}"
        );
    }

    proptest! {
        #[test]
        fn every_text_that_we_write_reads_back_and_fits_one_line(code in ".*", message in ".*") {
            let envelope =
                Envelope { code: &code, message: &message, retryable: true, details: "{}" };
            let text = refusal(&id(), Era::Modern, &envelope, REPORT);

            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            let inner = json["result"]["content"][0]["text"].as_str().unwrap();
            let inner: serde_json::Value = serde_json::from_str(inner).unwrap();
            prop_assert_eq!(inner["error"]["message"].as_str(), Some(message.as_str()));
            prop_assert!(!text.contains(['\r', '\n']));
        }
    }
}
