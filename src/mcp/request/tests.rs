use proptest::prelude::*;

use super::*;

const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

fn read(params: &str) -> Result<ToolCall, Rejection> {
    let text = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{params}}}"#);
    ToolCall::read(Message::read(text.into()).unwrap(), Era::Legacy)
}

fn call(params: &str) -> ToolCall {
    read(params).unwrap()
}

fn forwarded(params: &str, changes: &Changes<'_>) -> String {
    let body = call(params).forwarded(changes);
    let text = String::from_utf8(body.to_vec()).unwrap();
    let inner = text.strip_prefix(r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":"#);
    inner.and_then(|rest| rest.strip_suffix('}')).unwrap().to_owned()
}

fn canonical(params: &str, ignored: &[&str]) -> String {
    let mut out = Vec::new();
    call(params).canonical_call(ignored, Rounds::Count, &mut |bytes| out.extend_from_slice(bytes));
    String::from_utf8(out).unwrap()
}

#[test]
fn mcp_13_undecidable_calls_are_refused_with_their_id() {
    let cases = [
        "{}",
        r#"{"name":null}"#,
        r#"{"name":""}"#,
        r#"{"name":["x"]}"#,
        r#"{"name":"x","arguments":null}"#,
        r#"{"name":"x","arguments":[]}"#,
        r#"{"name":"x","arguments":"{}"}"#,
        r#"{"name":"x","_meta":null}"#,
        r#"{"name":"x","_meta":[]}"#,
        r#"{"name":"x","Name":"y"}"#,
        r#"{"name":"x","argument\u017f":{}}"#,
        r#"{"name":"x","_META":{}}"#,
    ];
    for params in cases {
        let rejection = read(params).unwrap_err();
        assert_eq!((rejection.http_status, rejection.code), (400, -32602), "{params}");
        assert_eq!(rejection.id.as_ref().map(Id::as_token), Some("5"));
    }
    let text = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call"}"#;
    let message = Message::read(text.into()).unwrap();
    assert_eq!(ToolCall::read(message, Era::Legacy).unwrap_err().code, -32602);
}

#[test]
fn the_view_shows_what_was_asked() {
    let call = call(&format!(
        r#"{{"name":"\u0061dd","task":{{"ttl":1}},"requestState":"s","inputResponses":{{"k":1}},
            "arguments":{{"n":1.0}},"_meta":{{"progressToken":1,
            "{META_VERSION}":"2026-07-28","{CAPABILITIES}":{{"elicitation":{{}}}}}}}}"#
    ));

    assert_eq!(call.name(), "add");
    assert_eq!(call.argument("n").and_then(Value::as_number), Some("1.0"));
    assert!(call.has_task());
    assert_eq!(call.request_state().as_deref(), Some("s"));
    assert!(call.input_responses().is_some());
    assert_eq!(call.version().as_deref(), Some("2026-07-28"));
    assert_eq!(call.elicitation(), Elicitation { form: true, url: false });
}

#[test]
fn elicitation_is_what_the_client_declares() {
    let cases = [
        ("{}", false, false),
        (r#"{"elicitation":null}"#, false, false),
        (r#"{"elicitation":{}}"#, true, false),
        (r#"{"elicitation":{"form":{}}}"#, true, false),
        (r#"{"elicitation":{"url":{}}}"#, false, true),
        (r#"{"elicitation":{"form":{},"url":{}}}"#, true, true),
    ];
    for (capabilities, form, url) in cases {
        let doc = Doc::parse(capabilities).unwrap();
        let expected = Elicitation { form, url };
        assert_eq!(Elicitation::from_capabilities(doc.root()), expected, "{capabilities}");
    }
}

#[test]
fn absent_arguments_are_an_empty_object() {
    let call = call(r#"{"name":"x"}"#);

    assert_eq!(call.arguments().kind(), JsonKind::Object);
    assert!(call.argument("a").is_none());
}

#[test]
fn controls_are_read() {
    let controls = call(
        r#"{"name":"x","_meta":{"idempotency_key":"01J","stage":true,"confirm":true,
            "takeback/confirm":"t0k","takeback/task":"job 7"}}"#,
    )
    .controls()
    .unwrap();

    assert_eq!(controls.key.as_ref().map(Key::as_str), Some("01J"));
    assert!(controls.stage && controls.confirm);
    assert_eq!(controls.token.as_deref(), Some("t0k"));
    assert_eq!(controls.task.as_deref(), Some("job 7"));
    let shown = format!("{controls:?}");
    assert!(!shown.contains("t0k") && !shown.contains("01J"));

    assert_eq!(call(r#"{"name":"x"}"#).controls(), Ok(Controls::default()));
    let no = r#"{"name":"x","_meta":{"stage":false,"confirm":false}}"#;
    assert_eq!(call(no).controls(), Ok(Controls::default()));
}

#[test]
fn mcp_40_malformed_controls_are_invalid_meta() {
    let long = format!(r#"{{"takeback/task":"{}"}}"#, "é".repeat(201));
    let cases = [
        (r#"{"idempotency_key":""}"#, KEY),
        (r#"{"idempotency_key":7}"#, KEY),
        (r#"{"idempotency_key":null}"#, KEY),
        (r#"{"idempotency_key":"a\u0000"}"#, KEY),
        (r#"{"stage":"true"}"#, STAGE),
        (r#"{"stage":null}"#, STAGE),
        (r#"{"confirm":1}"#, CONFIRM),
        (r#"{"takeback/confirm":true}"#, TOKEN),
        (r#"{"takeback/confirm":""}"#, TOKEN),
        (r#"{"takeback/task":""}"#, TASK),
        (r#"{"takeback/task":"a\nb"}"#, TASK),
        (long.as_str(), TASK),
    ];
    for (meta, member) in cases {
        let fault = call(&format!(r#"{{"name":"x","_meta":{meta}}}"#)).controls().unwrap_err();
        assert_eq!(fault.member, member, "{meta}");
    }
    let fits = format!(r#"{{"name":"x","_meta":{{"takeback/task":"{}"}}}}"#, "é".repeat(200));
    assert!(call(&fits).controls().is_ok());
}

#[test]
fn mcp_6_an_unchanged_call_is_forwarded_as_the_bytes_that_came() {
    let text = r#" {"params" : {"name":"x","_meta":{"progressToken":1},"arguments":{"n":1e400}},
        "id":12345678901234567890,"jsonrpc":"2.0","method":"tools/call","x":0.10} "#;
    let body = Bytes::from_static(text.as_bytes());
    let call = ToolCall::read(Message::read(body.clone()).unwrap(), Era::Legacy).unwrap();

    let changes = Changes { strip_arguments: &["confirm"], ..Changes::default() };
    let forwarded = call.forwarded(&changes);

    assert_eq!(forwarded.as_ptr(), body.as_ptr());
    assert_eq!(forwarded, body);
}

#[test]
fn e2_everything_but_the_key_stays_byte_for_byte() {
    let params = r#"{ "name" : "x", "arguments" : {"id":12345678901234567890,"x":9007199254740993,
        "y":0.1000000000000000055, "z" : [1e400,-0,1E5,1.0] } , "other":{} }"#;
    let changes = Changes { key: Some(("key", "a\"b")), ..Changes::default() };

    let expected = params.replace("1.0] }", r#"1.0],"key":"a\"b" }"#);
    assert_eq!(forwarded(params, &changes), expected);
}

#[test]
fn d4_only_our_own_meta_members_are_consumed() {
    let cases = [
        (
            r#"{"name":"x","_meta":{"progressToken":1,"idempotency_key":"k","traceparent":"00"}}"#,
            r#"{"name":"x","_meta":{"progressToken":1,"traceparent":"00"}}"#,
        ),
        (
            r#"{"name":"x","_meta":{"stage":true,"confirm":true, "a" : 1.0}}"#,
            r#"{"name":"x","_meta":{"a" : 1.0}}"#,
        ),
        (r#"{"_meta":{"takeback/confirm":"t","takeback/task":"j"},"name":"x"}"#, r#"{"name":"x"}"#),
        (r#"{"name":"x","_meta":{"idempotency\u005fkey":"k"}}"#, r#"{"name":"x"}"#),
        (r#"{"name":"x","_meta":{ }}"#, r#"{"name":"x","_meta":{ }}"#),
    ];
    for (params, expected) in cases {
        assert_eq!(forwarded(params, &Changes::default()), expected);
    }
    let keep = Changes { controls: ControlsFate::Keep, ..Changes::default() };
    let params = r#"{"name":"x","_meta":{"stage":true}}"#;
    assert_eq!(forwarded(params, &keep), params);
}

#[test]
fn a_key_goes_into_its_argument_and_our_confirm_goes_out() {
    let cases = [
        (r#"{"name":"x"}"#, r#"{"name":"x","arguments":{"k":"v"}}"#),
        (r#"{"name":"x","arguments":{}}"#, r#"{"name":"x","arguments":{"k":"v"}}"#),
        (r#"{"name":"x","arguments":{"k":null}}"#, r#"{"name":"x","arguments":{"k":"v"}}"#),
        (
            r#"{"arguments":{"k":"","a":1},"name":"x"}"#,
            r#"{"arguments":{"k":"v","a":1},"name":"x"}"#,
        ),
        (
            r#"{"name":"x","arguments":{"a":1,"confirm":"t"},"_meta":{"stage":true}}"#,
            r#"{"name":"x","arguments":{"a":1,"k":"v"}}"#,
        ),
        (r#"{"name":"x","_meta":{"stage":true}}"#, r#"{"name":"x","arguments":{"k":"v"}}"#),
        (
            r#"{"name":"x","_meta":{"stage":true,"p":1}}"#,
            r#"{"name":"x","_meta":{"p":1},"arguments":{"k":"v"}}"#,
        ),
    ];
    let changes =
        Changes { key: Some(("k", "v")), strip_arguments: &["confirm"], ..Changes::default() };
    for (params, expected) in cases {
        assert_eq!(forwarded(params, &changes), expected);
    }
    let strip = Changes { strip_arguments: &["confirm"], ..Changes::default() };
    let emptied = forwarded(r#"{"name":"x","arguments":{"confirm":"t"}}"#, &strip);
    assert_eq!(emptied, r#"{"name":"x","arguments":{}}"#);
}

#[test]
fn mcp_46_the_digest_text_says_what_is_asked_and_nothing_else() {
    let same = [
        r#"{"name":"x","arguments":{"a":1,"b":[2]}}"#,
        r#"{"arguments" : {"b":[ 2 ],"\u0061":1},"name":"\u0078"}"#,
        r#"{"name":"x","arguments":{"a":1,"b":[2]},"_meta":{"progressToken":9,"confirm":true}}"#,
        r#"{"name":"x","arguments":{"a":1,"b":[2],"confirm":"t"},"_meta":{"stage":false}}"#,
    ];
    for params in same {
        let expected = r#"["x",{"a":1,"b":[2]},false,{}]"#;
        assert_eq!(canonical(params, &["confirm"]), expected, "{params}");
    }
    assert_eq!(canonical(r#"{"name":"x"}"#, &[]), canonical(r#"{"name":"x","arguments":{}}"#, &[]));

    let others = [
        r#"{"name":"y","arguments":{"a":1,"b":[2]}}"#,
        r#"{"name":"x","arguments":{"a":1.0,"b":[2]}}"#,
        r#"{"name":"x","arguments":{"a":1,"b":[2]},"_meta":{"stage":true}}"#,
        r#"{"name":"x","arguments":{"a":1,"b":[2]},"requestState":"s"}"#,
        r#"{"name":"x","arguments":{"a":1,"b":[2]},"inputResponses":{}}"#,
        r#"{"name":"x","arguments":{"a":1,"b":[2]},"vendor":{"dryRun":true}}"#,
    ];
    let first = canonical(same[0], &["confirm"]);
    for params in others {
        assert_ne!(canonical(params, &["confirm"]), first, "{params}");
    }
}

#[test]
fn a_quote_in_the_name_cannot_make_two_calls_one_text() {
    let quoted = canonical(r#"{"name":"x\",{\"a\":1}"}"#, &[]);
    assert_eq!(quoted, r#"["x\",{\"a\":1}",{},false,{}]"#);
}

proptest! {
    #[test]
    fn mcp_6_splicing_keeps_every_other_member_and_its_text(
        arguments in prop::collection::btree_map("[a-z]{1,4}", any::<i64>(), 0..6),
        meta in prop::collection::btree_map("[a-zé]{1,4}", any::<i64>(), 0..6),
        controls in prop::sample::subsequence(CONTROLS.to_vec(), 0..=5),
        at in 0_usize..6,
        key in ".{1,12}",
    ) {
        let arguments: Vec<String> =
            arguments.iter().map(|(name, n)| format!("{name:?} : {n}.50")).collect();
        let vendor: Vec<String> = meta.iter().map(|(name, n)| format!("{name:?}: {n}e1")).collect();
        let mut all = vendor.clone();
        for control in &controls {
            all.insert(at.min(all.len()), format!("{control:?}:true"));
        }
        let params = format!(
            r#"{{"name":"x","arguments":{{{}}},"_meta":{{{}}}}}"#,
            arguments.join(" , "),
            all.join(","),
        );
        let changes = Changes { key: Some(("KEY", &key)), ..Changes::default() };

        let out = forwarded(&params, &changes);

        let doc = Doc::parse(out.clone()).unwrap();
        let sent = doc.root().get("arguments").unwrap();
        prop_assert_eq!(sent.get("KEY").unwrap().as_str().unwrap(), key.as_str());
        prop_assert_eq!(sent.members().count(), arguments.len() + 1);
        prop_assert!(out.contains(&arguments.join(" , ")));
        let left = doc.root().get("_meta");
        let dropped = vendor.is_empty() && !controls.is_empty();
        prop_assert_eq!(left.is_none(), dropped);
        if let Some(left) = left {
            let texts: Vec<String> = left
                .members()
                .map(|m| format!("{:?}: {}", m.name(), m.value.raw()))
                .collect();
            prop_assert_eq!(texts, vendor);
        }
    }

    #[test]
    fn reading_a_call_never_panics(params in "\\{[\\[\\]{}\":,a-e_\\\\ ]{0,40}\\}") {
        let text = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{params}}}"#);
        if let Ok(message) = Message::read(text.into())
            && let Ok(call) = ToolCall::read(message, Era::Modern)
        {
            drop(call.controls());
            call.forwarded(&Changes::default());
        }
    }
}
