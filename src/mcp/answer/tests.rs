use proptest::prelude::*;

use super::*;

const ACCEPTED: Settled = Settled::Final(Disposition::Accepted);
const REJECTED: Settled = Settled::Final(Disposition::DefinitelyRejected);
const AMBIGUOUS: Settled = Settled::Final(Disposition::Ambiguous);

fn id() -> Id {
    Id::parse("42").unwrap()
}

fn read(status: u16, text: &str) -> Answer {
    Answer::read(status, text.to_owned().into(), &id())
}

fn result(json: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":42,"result":{json}}}"#)
}

fn error(code: i64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":42,"error":{{"code":{code},"message":"m"}}}}"#)
}

fn settled(status: u16, text: &str) -> (Settled, Cause) {
    read(status, text).settle(IsError::Ambiguous)
}

#[test]
fn mcp_23_results_by_their_type() {
    let cases = [
        (r#"{"content":[]}"#, ACCEPTED, Cause::Complete),
        (r#"{"content":[],"isError":false}"#, ACCEPTED, Cause::Complete),
        (r#"{"content":[],"isError":null}"#, ACCEPTED, Cause::Complete),
        (r#"{"resultType":"complete","content":[]}"#, ACCEPTED, Cause::Complete),
        (r#"{"content":[],"task":{"taskId":"t"}}"#, ACCEPTED, Cause::Complete),
        (r#"{"content":[],"isError":true}"#, AMBIGUOUS, Cause::IsError),
        (r#"{"content":[],"isError":"true"}"#, AMBIGUOUS, Cause::Unreadable),
        (r#"{"resultType":"later"}"#, AMBIGUOUS, Cause::Unreadable),
        (r#"{"resultType":7}"#, AMBIGUOUS, Cause::Unreadable),
        ("[]", AMBIGUOUS, Cause::Unreadable),
        (
            r#"{"resultType":"input_required","inputRequests":{}}"#,
            Settled::Waiting(Waiting::Input),
            Cause::InputRequired,
        ),
        (r#"{"resultType":"task","taskId":"t"}"#, Settled::Waiting(Waiting::Task), Cause::Task),
        (r#"{"task":{"taskId":"t"}}"#, Settled::Waiting(Waiting::Task), Cause::Task),
    ];
    for (json, expected, cause) in cases {
        for status in [200, 202] {
            assert_eq!(settled(status, &result(json)), (expected, cause), "{status} {json}");
        }
    }
    // A success that its own HTTP status denies proves neither.
    let denied = settled(500, &result(r#"{"content":[]}"#));
    assert_eq!(denied, (AMBIGUOUS, Cause::HttpStatus));
    let failed = read(200, &result(r#"{"isError":true}"#));
    assert_eq!(failed.settle(IsError::Rejected), (REJECTED, Cause::IsError));
}

#[test]
fn mcp_23_errors_by_their_code_first_and_their_status_second() {
    let waiting = Settled::Waiting(Waiting::UrlElicitation);
    let cases = [
        (400, -32020, REJECTED, Cause::ErrorCode),
        (400, -32021, REJECTED, Cause::ErrorCode),
        (400, -32022, REJECTED, Cause::ErrorCode),
        (400, -32700, REJECTED, Cause::ErrorCode),
        (400, -32600, REJECTED, Cause::ErrorCode),
        (200, -32600, AMBIGUOUS, Cause::ErrorCode),
        (400, -32000, AMBIGUOUS, Cause::ErrorCode),
        (404, -32601, REJECTED, Cause::ErrorCode),
        (200, -32601, AMBIGUOUS, Cause::ErrorCode),
        (200, -32602, REJECTED, Cause::ErrorCode),
        (400, -32602, REJECTED, Cause::ErrorCode),
        (200, -32042, waiting, Cause::UrlElicitation),
        (200, -32603, AMBIGUOUS, Cause::ErrorCode),
        (404, -32603, AMBIGUOUS, Cause::ErrorCode),
        (404, -32001, REJECTED, Cause::HttpStatus),
        (401, -32001, REJECTED, Cause::HttpStatus),
        (200, 7, AMBIGUOUS, Cause::ErrorCode),
        (503, -32001, AMBIGUOUS, Cause::ErrorCode),
    ];
    for (status, code, expected, cause) in cases {
        assert_eq!(settled(status, &error(code)), (expected, cause), "{status} {code}");
    }
    let odd = r#"{"jsonrpc":"2.0","id":42,"error":{"code":-32602.5}}"#;
    assert_eq!(settled(200, odd), (AMBIGUOUS, Cause::ErrorCode));
}

#[test]
fn mcp_23_answers_without_json_by_their_status() {
    for status in [401, 403, 404, 405, 406, 413, 415, 421, 431] {
        for text in ["", "<html>", r#"{"error":"no"}"#] {
            assert_eq!(settled(status, text), (REJECTED, Cause::HttpStatus), "{status} {text}");
        }
    }
    for status in [200, 202, 302, 400, 408, 409, 425, 429, 500, 502, 503, 504] {
        for text in ["", "<html>", r#"{"jsonrpc":"2.0","id":42,"resu"#] {
            assert_eq!(settled(status, text), (AMBIGUOUS, Cause::Unreadable), "{status} {text}");
        }
    }
    let long = Answer::unread(200, Bytes::new(), "the answer is over the limit");
    assert_eq!(long.settle(IsError::Ambiguous), (AMBIGUOUS, Cause::Unreadable));
}

#[test]
fn d2_a_result_under_another_id_is_no_answer() {
    for their in ["0", "\"42\"", "null", "42.0", "[42]"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{their},"result":{{"content":[]}}}}"#);
        let answer = read(200, &text);

        assert_eq!(answer.kind(), Kind::WrongId { code: None, is_result: true }, "{their}");
        assert_eq!(answer.settle(IsError::Ambiguous), (AMBIGUOUS, Cause::WrongId));
        assert!(answer.evidence(ResponseSource::TextJson).is_none());
        assert!(answer.result_json().is_none());
        let spliced = answer.with_report("{}");
        assert_eq!(spliced.body, text);
        assert!(spliced.unplaced.is_some());
    }
    assert_eq!(settled(404, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#).0, AMBIGUOUS);
}

#[test]
fn errors_of_servers_that_could_not_read_the_id_count_by_their_status() {
    let text = |id: &str, code: i64| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"m"}}}}"#)
    };
    assert_eq!(settled(400, &text("\"server-error\"", -32600)).0, REJECTED);
    assert_eq!(settled(404, &text("\"server-error\"", -32600)).0, REJECTED);
    assert_eq!(settled(200, &text("\"server-error\"", -32602)), (AMBIGUOUS, Cause::WrongId));
    assert_eq!(settled(400, &text("null", -32700)), (REJECTED, Cause::ErrorCode));
    assert_eq!(read(400, &text("null", -32700)).kind(), Kind::Error { code: Some(-32700) });
    let absent = r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"m"}}"#;
    assert_eq!(settled(400, absent), (REJECTED, Cause::ErrorCode));
}

#[test]
fn what_is_no_response_is_not_taken_for_one() {
    let cases = [
        r#"[{"jsonrpc":"2.0","id":42,"result":{}}]"#,
        r#"{"jsonrpc":"2.0","id":42,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":42,"method":"ping","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":42}"#,
        r#"{"jsonrpc":"2.0","id":42,"result":{},"error":{}}"#,
        r#"{"id":42,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":42,"result":{},"result":{}}"#,
        "null",
    ];
    for text in cases {
        assert!(matches!(read(200, text).kind(), Kind::Unreadable(_)), "{text}");
    }
}

#[test]
fn the_evidence_is_structured_content_or_the_first_text_block_where_asked() {
    let value = |json: &str, source| {
        let answer = read(200, &result(json));
        answer.evidence(source).map(|evidence| evidence.value().raw().to_owned())
    };
    let (json, text) = (ResponseSource::Json, ResponseSource::TextJson);
    let both = r#"{"content":[{"type":"text","text":"{\"a\":2}"}],"structuredContent":{"a":1.0}}"#;
    let only_text = r#"{"content":[{"type":"image","text":"7"},{"type":"text","text":"{\"a\":2}"},
        {"type":"text","text":"3"}],"structuredContent":null}"#;
    let prose = r#"{"content":[{"type":"text","text":"done"},{"type":"text","text":"3"}]}"#;

    assert_eq!(value(both, json).as_deref(), Some(r#"{"a":1.0}"#));
    assert_eq!(value(both, text).as_deref(), Some(r#"{"a":1.0}"#));
    assert_eq!(value(only_text, json), None);
    assert_eq!(value(only_text, text).as_deref(), Some(r#"{"a":2}"#));
    assert_eq!(value(prose, text), None);
    assert_eq!(value(r#"{"structuredContent":[1]}"#, json).as_deref(), Some("[1]"));
    assert_eq!(value(r#"{"content":{}}"#, text), None);
}

#[test]
fn mcp_42_a_task_handle_names_its_task() {
    let task = |json: &str| read(200, &result(json)).task_id().map(Cow::into_owned);
    assert_eq!(task(r#"{"resultType":"task","taskId":"t1"}"#).as_deref(), Some("t1"));
    assert_eq!(task(r#"{"task":{"taskId":"t2"}}"#).as_deref(), Some("t2"));
    assert_eq!(task(r#"{"content":[],"taskId":"t3"}"#), None);
}

#[test]
fn d4_d5_the_report_goes_into_meta_and_every_other_byte_stays() {
    let cases = [
        (
            r#"{ "content" : [ ] , "structuredContent":{"n":1e400} }"#,
            r#"{ "content" : [ ] , "structuredContent":{"n":1e400},"_meta":{"effect":R} }"#,
        ),
        (r#"{"_meta":{"vendor/x":1}}"#, r#"{"_meta":{"vendor/x":1,"effect":R}}"#),
        (r#"{"_meta":{},"content":[]}"#, r#"{"_meta":{"effect":R},"content":[]}"#),
        (r#"{"_meta":{"effect":{"class":"read"}, "z":2}}"#, r#"{"_meta":{"effect":R, "z":2}}"#),
        (r#"{"_meta":{"eff\u0065ct":1}}"#, r#"{"_meta":{"eff\u0065ct":R}}"#),
        (r#"{"_meta":null}"#, r#"{"_meta":{"effect":R}}"#),
        (
            r#"{"resultType":"input_required","requestState":"s"}"#,
            r#"{"resultType":"input_required","requestState":"s","_meta":{"effect":R}}"#,
        ),
        ("{}", r#"{"_meta":{"effect":R}}"#),
    ];
    let report = r#"{"class":"irreversible"}"#;
    for (before, after) in cases {
        let spliced = read(200, &result(before)).with_report(report);
        assert_eq!(spliced.body, result(&after.replace('R', report)), "{before}");
        assert_eq!(spliced.unplaced, None);
    }
    for json in [r#"{"_meta":[1]}"#, r#"{"_meta":"x"}"#, "[]", "null"] {
        let spliced = read(200, &result(json)).with_report(report);
        assert_eq!(spliced.body, result(json));
        assert!(spliced.unplaced.is_some(), "{json}");
    }
}

#[test]
fn an_error_carries_the_report_where_its_data_has_room() {
    let text = |data: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":42,"error":{{"code":1,"message":"m"{data}}}}}"#)
    };
    let cases = [
        ("", Some(r#","data":{"effect":{}}"#)),
        (r#","data":{"a":1}"#, Some(r#","data":{"a":1,"effect":{}}"#)),
        (r#","data":"text""#, None),
        (r#","data":null"#, None),
    ];
    for (before, after) in cases {
        let spliced = read(200, &text(before)).with_report("{}");
        assert_eq!(spliced.body, text(after.unwrap_or(before)));
        assert_eq!(spliced.unplaced.is_none(), after.is_some());
    }
}

#[test]
fn e4_e7_an_answer_that_cannot_be_read_passes_as_it_came() {
    let deep = result(&format!("{{\"content\":{}{}}}", "[".repeat(31_000), "]".repeat(31_000)));
    let lone = result(r#"{"content":[{"type":"text","text":"\ud800"}]}"#);
    for text in [deep, lone, "not json".to_owned(), String::new()] {
        let answer = read(200, &text);
        let spliced = answer.with_report("{}");

        assert_eq!(spliced.body, text);
        assert!(spliced.unplaced.is_some());
        assert_eq!(answer.settle(IsError::Ambiguous), (AMBIGUOUS, Cause::Unreadable));
    }
}

#[test]
fn mcp_19_only_the_response_to_our_id_is_an_event_of_ours() {
    let event = |text: &str| Answer::from_event(&text.to_owned().into(), &id()).map(|a| a.kind());
    let done = Kind::Result { has_effect: false, is_error: false };

    assert_eq!(event(&result("{}")), Some(done));
    assert_eq!(event(&error(-32603)), Some(Kind::Error { code: Some(-32603) }));
    let others = [
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"id":42}}"#,
        r#"{"jsonrpc":"2.0","id":42,"method":"elicitation/create","params":{}}"#,
        r#"{"jsonrpc":"2.0","id":"42","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#,
        r#"{"jsonrpc":"2.0","id":42}"#,
        r#"[{"jsonrpc":"2.0","id":42,"result":{}}]"#,
        "42",
        "",
    ];
    for text in others {
        assert_eq!(event(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn reading_and_splicing_never_panic(
        status in 100_u16..600,
        text in "\\{[\\[\\]{}\":,0-9a-t_\\\\ ]{0,60}\\}",
    ) {
        let answer = read(status, &text);
        answer.settle(IsError::Ambiguous);
        let spliced = answer.with_report("{}");
        prop_assert!(spliced.unplaced.is_none() || spliced.body == text);
    }

    #[test]
    fn mcp_19_splicing_only_inserts(
        members in prop::collection::btree_map("[a-z]{1,5}", any::<i64>(), 0..6),
        space in "[ \t\n]{0,3}",
    ) {
        let members: Vec<String> =
            members.iter().map(|(name, n)| format!("{name:?}{space}:{n}.0")).collect();
        let before = result(&format!("{space}{{{}{space}}}", members.join(",")));

        let after = read(200, &before).with_report("{}").body;

        let after = String::from_utf8(after.to_vec()).unwrap();
        let comma = if members.is_empty() { "" } else { "," };
        let inserted = format!("{comma}\"_meta\":{{\"effect\":{{}}}}");
        prop_assert_eq!(after.replacen(&inserted, "", 1), before);
    }
}

#[test]
fn mcp_39_an_upstreams_own_report_is_replaced_trusted_or_ignored() {
    let before = result(r#"{"content":[],"_meta":{"effect":{"class":"read"},"v":1}}"#);
    let cases = [
        (Reports::Ignore, r#"{"effect":R,"v":1}"#),
        (Reports::Replace, r#"{"effect":R,"v":1,"anvil/upstream_effect":{"class":"read"}}"#),
        (Reports::Trust, r#"{"effect":{"class":"read"},"v":1,"takeback/effect":R}"#),
    ];
    for (reports, meta) in cases {
        let spliced = read(200, &before).with_report_as("{}", reports);
        let meta = meta.replace('R', "{}");
        assert_eq!(spliced.body, result(&format!(r#"{{"content":[],"_meta":{meta}}}"#)));
    }
    for reports in Reports::ALL {
        let none = read(200, &result("{}")).with_report_as("{}", *reports);
        assert_eq!(none.body, result(r#"{"_meta":{"effect":{}}}"#));
    }
}
