//! What is fuzzed: one function per reader of foreign bytes, each with what must hold beside "no panic".
//!
//! The fuzz targets and `tests/it/fuzzed.rs` both call these, so that CI and the fuzzer try the same.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use takeback::call::digest::{BodyForm, HeadForm, RequestDigest};
use takeback::contract::class::Class;
use takeback::contract::json::{Doc, Edits, Kind, write_ascii};
use takeback::contract::key::{Digest, Key};
use takeback::contract::operation::Target;
use takeback::contract::path::{Path, Request as Asked, Scope};
use takeback::contract::pointer::Pointer;
use takeback::contract::report::CallJson;
use takeback::contract::template::Template;
use takeback::http::body::{BodyDoc, RequestDoc};
use takeback::http::headers::{REPORT, sift, sift_answer};
use takeback::http::{decode, target};
use takeback::mcp::Era;
use takeback::mcp::answer::Reports;
use takeback::mcp::claims::{Claim, claim};
use takeback::mcp::jsonrpc::{Id, Message};
use takeback::mcp::renaming::{EventRenamer, Renamer};
use takeback::mcp::request::{Changes, Rounds, ToolCall};
use takeback::mcp::sse::Splitter;
use takeback::pipeline::confirmation::{Binding, PREFIX, Sealer};
use takeback::policy;

/// A name, a function, and a text that it reads in part.
pub type Function = (&'static str, fn(&[u8]), &'static str);

/// All of them, with a text that each reads in part, to mutate from.
pub const ALL: &[Function] = &[
    ("json", json, r#"{"a":[1,-0.5e+3,"\u00e9\ud83d\ude00",null,true],"b":{"c":""}}"#),
    ("path", path, "request.body.items[0].name?"),
    ("pointer", pointer, "/items/0/a~1b~0c"),
    ("template", template, "/repos/{owner}/issues/{n}.json/{rest...}"),
    ("policy", policy, POLICY),
    ("openapi", openapi, OPENAPI),
    ("tools", tools, TOOLS),
    (
        "settings",
        settings,
        "listen: 127.0.0.1:0\nlimits: { inflight: 7 }\nmcp: { paths: [/a, /b] }\n",
    ),
    ("message", message, TOOL_CALL),
    ("sse", sse, ": hi\r\nid: 1\r\ndata: {\"jsonrpc\":\"2.0\",\rdata: \"id\":1}\n\n"),
    ("answer", answer, r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"_meta":{"effect":1}}}"#),
    (
        "renaming",
        renaming,
        "data: {\"result\":{\"_meta\":{\"effect\":1}},\n\rdata:\"error\":{\"data\":{\"\\u0065ffect\":1}}}\n\n",
    ),
    ("oddity", oddity, "/a/b%2Fc/../d;x=1//e%zz"),
    ("head", head, "POST /a?b=c\nhost: a\nconnection: close, x\nx_a: 1\nte: trailers\nx: 2"),
    ("body", body, "a=1&b=%C3%A9&a=2&c[]=+"),
    ("key", key, "\"8e03978e-40d5-43dd-bc93-6894a57f9324\""),
    ("token", token, "tbc1_AAAA"),
    ("schema", schema, SCHEMA),
    ("call_json", call_json, r#"{"operation":"a","arguments":{"id":1.0}, "deadline_ms":null}"#),
];

const TOOL_CALL: &str = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"create",
    "arguments":{"title":"a","confirm":"tbc1_x"},"_meta":{"idempotency_key":"k","x":1}}}"#;

// A schema, and on the next line a value to judge.
const SCHEMA: &str = "{\"type\":\"object\",\"$defs\":{\"n\":{\"anyOf\":[{\"type\":\"integer\",\"minimum\":1},\
    {\"$ref\":\"#/$defs/n\"}]}},\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"},\"b\":{\"type\":\"array\",\
    \"uniqueItems\":true,\"items\":{\"enum\":[1,\"x\"]}}},\"required\":[\"a\"],\"additionalProperties\":false}\n\
    {\"a\":1,\"b\":[1,\"x\"]}";

const POLICY: &str = r#"
version: 1
operations:
  issues.get:
    match: { http: "GET /repos/{owner}/issues/{n}" }
    effect: { class: read }
  issues.create:
    match: { http: "POST /repos/{owner}/issues" }
    effect:
      class: irreversible
      kind: create
    confirm: caller
  notes.create:
    match: { tool: create_note }
    where: [{ path: request.body.kind, equals: note }]
    effect: { class: irreversible }
"#;

const OPENAPI: &str = r##"{"openapi":"3.1.0","servers":[{"url":"https://a/v1"}],"paths":{
    "/a/{id}":{"parameters":[{"$ref":"#/components/parameters/id"}],
        "post":{"operationId":"a/b","x-obol-effect":{"kind":"create"},"requestBody":{"content":
            {"application/json":{"schema":{"$ref":"#/components/schemas/s"}}}},
            "responses":{"2XX":{"$ref":"#/components/responses/r"}}},
        "delete":{"operationId":"a/c"}}},
    "components":{"parameters":{"id":{"name":"id","in":"path","required":true,"schema":{}}},
        "schemas":{"s":{"allOf":[{"$ref":"#/components/schemas/s"},{"type":["object","null"],
            "properties":{"draft":{"type":"boolean"}},"required":["draft"]}]}},
        "responses":{"r":{"content":{"application/json":{"schema":true}}}}}}"##;

const TOOLS: &str = r##"[{"result":{"tools":[{"name":"t","inputSchema":{"type":"object","$defs":{"x":
    {"$ref":"#/$defs/x"}},"properties":{"a":{"$ref":"#/$defs/x"}}},"annotations":{"readOnlyHint":
    true},"outputSchema":{}}]}},{"tools":[]}]"##;

/// The JSON reader: what it reads, it reads again; spans lie in the text; an edit of nothing is nothing.
pub fn json(bytes: &[u8]) {
    let Ok(doc) = Doc::parse(Bytes::copy_from_slice(bytes)) else { return };
    assert!(std::str::from_utf8(bytes).is_ok(), "only UTF-8 is JSON");
    assert_eq!(Edits::new().apply(bytes), bytes);

    let mut canonical = Vec::new();
    doc.root().canonical(&mut |part| canonical.extend_from_slice(part));
    let again = Doc::parse(canonical.clone()).expect("the canonical form is JSON");
    let mut twice = Vec::new();
    again.root().canonical(&mut |part| twice.extend_from_slice(part));
    assert_eq!(canonical, twice, "the canonical form of a canonical form is itself");

    let mut ascii = String::new();
    write_ascii(doc.root().raw(), &mut ascii);
    assert!(ascii.is_ascii());
    for member in doc.root().members() {
        assert!(doc.text().get(member.value.span()).is_some());
        assert!(member.has_name(&member.name()));
    }
}

/// A path: its canonical text is the same path; resolving it finds something or nothing.
pub fn path(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Path::parse(&text) {
        Ok(path) => {
            assert_eq!(Path::parse(&path.to_string()).as_ref(), Ok(&path));
            let doc = Doc::parse(r#"{"body":{"items":[{"name":"n"}]},"id":1}"#).expect("JSON");
            let request = Asked::Arguments(doc.root());
            path.resolve(&Scope {
                request,
                before: None,
                response: Some(doc.root()),
                key: Some("k"),
            });
        }
        Err(error) => assert!(error.offset <= text.len(), "a fault lies in its text"),
    }
}

/// A JSON pointer: its text is kept.
pub fn pointer(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(pointer) = Pointer::parse(&text) {
        assert_eq!(pointer.as_str(), text);
        let doc = Doc::parse(r#"{"items":[{"a/b~c":1}],"":0}"#).expect("JSON");
        pointer.resolve(doc.root());
    }
}

/// A template, of a line, against the path on the next line: a path that it builds is one it matches.
pub fn template(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (template, path) = text.split_once('\n').unwrap_or((&text, "/repos/o/issues/1.json/x/y"));
    match Template::parse(template) {
        Ok(template) => {
            template.matches(path);
            let built = template.build(|_| Some("v1".to_owned())).expect("every part has a value");
            assert!(template.matches(&built).is_some(), "{template:?} matches {built:?}");
        }
        Err(error) => assert!(error.offset <= text.len(), "a fault lies in its text"),
    }
}

/// The policy compiler: a snapshot exactly where the file can be read; its findings can be shown, and
/// each says what to do.
pub fn policy(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let compiled = policy::compile(vec![("fuzzed.yaml".to_owned(), text)]);
    let is_unreadable = compiled.diagnostics.iter().any(|found| {
        found.severity == policy::Severity::Error && found.code.starts_with("policy/")
    });
    assert_eq!(is_unreadable, compiled.snapshot.is_none());
    assert!(compiled.diagnostics.iter().all(|found| found.help.is_some()));
    let lines = compiled.json_lines();
    for line in lines.lines() {
        assert!(Doc::parse(line.to_owned()).is_ok(), "{line}");
    }
    compiled.human();
}

/// An OpenAPI document as a catalog, and what is imported of it.
pub fn openapi(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    catalog("openapi", &text, policy::import_openapi("c.json", text.clone()));
}

/// A saved `tools/list` answer as a catalog, and what is imported of it.
pub fn tools(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    catalog("tools", &text, policy::import_tools("c.json", text.clone()));
}

/// A policy over the catalog compiles if the catalog can be read; so does the skeleton, with errors in
/// what the catalog itself declares at most, and no write in it is milder than irreversible.
fn catalog(member: &str, text: &str, imported: Result<policy::Imported, String>) {
    let compile = |policy: String| {
        let files = [("a.yaml".to_owned(), policy), ("c.json".to_owned(), text.to_owned())];
        policy::compile(files.to_vec())
    };
    let over = format!(
        "version: 1\ncatalog: {{ {member}: c.json }}\noperations:\n  a: {{ match: {{ http: \"POST \
         /a/{{id}}\" }}, effect: {{ class: reversible, inverse: {{ operation: b, arguments: {{ id: \
         response.id }} }} }} }}\n  b: {{ match: {{ http: \"DELETE /a/{{id}}\" }} }}\n  \
         t: {{ match: {{ tool: t }}, effect: {{ idempotency: {{ type: argument, name: a }} }} }}\n"
    );
    let compiled = compile(over);
    compiled.human();
    assert!(compiled.snapshot.is_none() || imported.is_ok(), "both read the same");
    let Ok(imported) = imported else { return };
    let compiled = compile(imported.skeleton.clone());
    for found in &compiled.diagnostics {
        let is_error = found.severity == policy::Severity::Error;
        assert!(!is_error || &*found.file == "c.json", "{}\n{found:?}", imported.skeleton);
    }
    let Some(snapshot) = compiled.snapshot else { return };
    for served in snapshot.operations() {
        let operation = &served.operation;
        let is_get = matches!(&operation.target, Target::Http { method, .. }
            if matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS"));
        let is_mild = operation.class != Class::Irreversible;
        assert!(!is_mild || is_get || text.contains("x-"), "{}", imported.skeleton);
    }
}

/// A file of settings: its members, or where it is wrong.
pub fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for name in ["a.yaml", "a.json"] {
        match policy::settings::leaves(name, &text) {
            Ok(leaves) => assert!(leaves.iter().all(|leaf| leaf.line >= 1)),
            Err(unreadable) => assert!(unreadable.line >= 1 && unreadable.column >= 1),
        }
    }
}

/// A message and the tool call in it: forwarding without changes is forwarding the bytes, and what is
/// forwarded is a message.
pub fn message(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    let Ok(message) = Message::read(body.clone()) else { return };
    let era = Era::of(&HeaderMap::new(), &message);
    let Ok(call) = ToolCall::read(message, era) else { return };
    let _controls = call.controls();
    call.elicitation();
    let changes = Changes {
        key: Some(("idempotency_key", "k")),
        strip_arguments: &["confirm"],
        ..Changes::default()
    };
    let forwarded = call.forwarded(&changes);
    let again = Message::read(forwarded).expect("what is forwarded is a message");
    assert_eq!(again.id(), Some(call.id()));
    let mut canonical = Vec::new();
    call.canonical_call(&["confirm"], Rounds::Count, &mut |part| canonical.extend_from_slice(part));
}

/// An event stream, cut anywhere: every byte comes out once and in order. The first byte says how it is
/// cut.
pub fn sse(bytes: &[u8]) {
    let size = bytes.first().map_or(1, |byte| usize::from(*byte % 16)).max(1);
    let mut splitter = Splitter::with_limit(256);
    let id = Id::parse("1").expect("an id");
    let mut out = Vec::new();
    for chunk in bytes.chunks(size) {
        splitter.push(Bytes::copy_from_slice(chunk));
        while let Some(frame) = splitter.next_frame() {
            frame.answer_to(&id);
            frame.retry_ms();
            assert!(frame.without_data().len() <= frame.raw().len());
            frame.event_id();
            out.extend_from_slice(frame.raw());
        }
    }
    if let Some(frame) = splitter.finish() {
        out.extend_from_slice(frame.raw());
    }
    assert_eq!(out, bytes, "the stream's bytes are kept");
}

/// A long answer or event on its way: what is JSON goes on whole, and claims nothing.
pub fn renaming(bytes: &[u8]) {
    let size = bytes.first().map_or(1, |byte| usize::from(*byte % 16)).max(1);
    let chunks = || bytes.chunks(size).map(Bytes::copy_from_slice);
    let (mut renamer, mut out) = (Renamer::default(), VecDeque::new());
    let is_passed = chunks().all(|chunk| renamer.push(&chunk, &mut out).is_ok());
    if Doc::parse(bytes.to_vec()).is_ok() {
        assert!(is_passed, "names that have one meaning are passed on");
        let seen: Vec<u8> = out.into_iter().flatten().collect();
        assert!(seen.len() >= bytes.len().min(1), "nothing is held back");
        assert!(!matches!(claim(&seen.into(), Reports::Replace), Claim::Taken(_)));
    }
    let mut events = EventRenamer::default();
    for chunk in chunks() {
        drop(events.push(&chunk));
    }
}

/// An upstream's MCP answer: with a report in it, it is JSON still.
pub fn answer(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    let id = Id::parse("1").expect("an id");
    let answer = takeback::mcp::answer::Answer::read(200, body.clone(), &id);
    answer.text();
    answer.task_id();
    let spliced = answer.with_report("{\"class\":\"read\"}");
    if Doc::parse(body.clone()).is_ok() {
        assert!(Doc::parse(spliced.body).is_ok(), "what was JSON is JSON with the report");
    }
    if let Claim::Taken(message) = claim(&body, Reports::Replace) {
        assert!(Doc::parse(message.clone()).is_ok(), "what was JSON is JSON without the claim");
        assert_eq!(claim(&message, Reports::Replace), Claim::None, "no claim is left");
    }
    if let Ok(doc) = Doc::parse(body) {
        takeback::mcp::schema::fault(doc.root(), doc.root());
    }
}

/// A request's path: one that has nothing odd holds none of the bytes that have two readings.
pub fn oddity(bytes: &[u8]) {
    let path = String::from_utf8_lossy(bytes);
    let is_odd = target::oddity(&path).is_some();
    let lower = path.to_ascii_lowercase();
    let is_plain = !["%2f", "%5c", "%2e%2e", "//", "/../", "/./", "\\"]
        .iter()
        .any(|read_twice| lower.contains(read_twice));
    assert!(is_odd || is_plain, "{path:?}");
    target::overrides_method(Some(&path));
}

/// A request's head, given as lines: after the sifting no field of one hop and none of ours is left.
pub fn head(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let request_line = lines.next().unwrap_or_default();
    let mut words = request_line.split(|byte| *byte == b' ');
    let method = words.next().and_then(|method| Method::from_bytes(method).ok());
    let uri = words.next().and_then(|target| Uri::try_from(target).ok());
    let mut headers = HeaderMap::new();
    for line in lines.take(100) {
        let (name, value) = line.split_at(line.iter().position(|b| *b == b':').unwrap_or(0));
        let name = HeaderName::from_bytes(name);
        let value = HeaderValue::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let mut answer = headers.clone();
    sift_answer(&mut answer, &REPORT);
    assert!(!answer.contains_key(&REPORT));

    let mut sifted = headers.clone();
    if sift(&mut sifted, &REPORT).is_ok() {
        for name in ["connection", "te", "transfer-encoding", "upgrade", "effect-confirm"] {
            assert!(!sifted.contains_key(name), "{name} is left");
        }
        assert!(!sifted.contains_key(&REPORT));
    }
    let mut request = Request::new(());
    *request.method_mut() = method.unwrap_or(Method::GET);
    *request.uri_mut() = uri.unwrap_or_default();
    *request.headers_mut() = headers;
    let peer = HeaderValue::from_static("127.0.0.1");
    let _decoded = decode::decode(request.into_parts().0, peer, &REPORT, "fuzzed");
}

/// A body as a form and as JSON, made into the request that paths read, and into a digest.
pub fn body(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    for kind in ["application/x-www-form-urlencoded", "application/json", "text/plain"] {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static(kind));
        let Ok(body) = BodyDoc::read(&headers, &bytes) else { continue };
        let form = body.form(kind, &bytes);
        let head = HeadForm { authority: None, headers: &headers, vary_on: &[] };
        RequestDigest::http(&Method::POST, "/a", head, form);
        let query = std::str::from_utf8(&bytes).ok();
        let doc = RequestDoc::new(&[("id", "a%20b")], query, &headers, body);
        if let Asked::Http { head, .. } = doc.request() {
            assert_eq!(head.kind(), Kind::Object);
        }
    }
}

/// An idempotency key: what is taken is printable and short.
pub fn key(bytes: &[u8]) {
    if let Ok(key) = Key::from_header(bytes) {
        assert!(!key.as_str().is_empty() && key.as_str().len() <= 255);
        assert!(key.as_str().bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    }
    let _key = Key::from_text(&String::from_utf8_lossy(bytes));
}

/// A confirmation token: nobody but the sealer makes one.
pub fn token(bytes: &[u8]) {
    let headers = HeaderMap::new();
    let head = HeadForm { authority: None, headers: &headers, vary_on: &[] };
    let digest = RequestDigest::http(&Method::POST, "/a", head, BodyForm::None);
    let operation = Digest([7; 32]);
    let class = Class::Irreversible;
    let binding = Binding { principal: "p", operation, class, digest: &digest, newest: None };
    let sealer = Sealer::new([1; 32]);
    let text = String::from_utf8_lossy(bytes);
    assert!(sealer.open(&text, &binding, 0).is_err());
    assert!(sealer.open(&format!("{PREFIX}{text}"), &binding, 0).is_err());
}

/// A recorded call's text: what it is taken as is one line of JSON, and is taken again.
pub fn call_json(bytes: &[u8]) {
    let Some(call) = CallJson::from_json(&String::from_utf8_lossy(bytes)) else { return };
    assert!(!call.as_json().contains('\n'));
    assert_eq!(CallJson::from_json(call.as_json()), Some(call));
}

/// A schema, of a line, and the value on the next line: a judgement ends, and shows no value.
pub fn schema(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (rules, value) = text.split_once('\n').unwrap_or((&text, "{\"a\":\"s3cr3t\"}"));
    let (Ok(rules), Ok(value)) = (Doc::parse(rules.to_owned()), Doc::parse(value.to_owned()))
    else {
        return;
    };
    if let Some(fault) = takeback::mcp::schema::fault(rules.root(), value.root()) {
        assert!(!fault.contains("s3cr3t"), "a fault names the place and the rule");
    }
}
