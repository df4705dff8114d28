//! What one call costs inside the proxy, piece by piece.
//!
//! ```text
//! cargo bench --bench micro [-- FILTER]
//! ```
//!
//! Times say what to look at; what counts is the proxy's own CPU against nginx's (`benches/proxy/run`).

#![expect(clippy::expect_used, reason = "a bench may stop")]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use takeback::call::digest::{BodyForm, HeadForm, RequestDigest};
use takeback::contract::class::{Class, Verdict};
use takeback::contract::json::{Doc, Edits};
use takeback::contract::key::{EntryId, Key, OperationId};
use takeback::contract::report::{CallJson, Report, UndoKind};
use takeback::contract::undo::Resolved;
use takeback::http::headers::{REPORT, sift, sift_answer};
use takeback::http::target::oddity;
use takeback::policy::{self, Snapshot};

/// A policy of `count` operations, in families as real APIs have them: a list, an item, an action.
fn snapshot(count: usize) -> Snapshot {
    let mut text = String::from("version: 1\noperations:\n");
    for index in 0..count {
        let (family, form) = (index / 4, index % 4);
        let (method, path) = match form {
            0 => ("GET", format!("/v1/kind{family}/{{id}}")),
            1 => ("GET", format!("/v1/kind{family}")),
            2 => ("GET", format!("/v1/kind{family}/{{id}}/part{family}/{{part}}.json")),
            _ => ("GET", format!("/v1/kind{family}/{{id}}:check")),
        };
        text.push_str(&format!(
            "  op{index}:\n    match: {{ http: \"{method} {path}\" }}\n    effect: {{ class: read }}\n"
        ));
    }
    let compiled = policy::compile(vec![("bench.yaml".to_owned(), text)]);
    assert!(!compiled.has_errors(), "{}", compiled.human());
    compiled.snapshot.expect("a policy without errors")
}

/// A JSON object of about `size` bytes, as APIs answer: nested, with texts and numbers.
fn json(size: usize) -> Bytes {
    let mut text = String::from(r#"{"id":104729,"kind":"issue","items":["#);
    let mut index = 0;
    while text.len() < size {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&format!(
            r#"{{"id":{index},"title":"a title that is usual \u00e9","open":true,"score":{index}.5e1,"user":{{"login":"octo{index}","url":"https://api.example/users/octo{index}"}}}}"#
        ));
        index += 1;
    }
    text.push_str("]}");
    Bytes::from(text)
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let line = |(name, value): &(&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    lines.iter().map(line).collect()
}

fn request_headers() -> HeaderMap {
    headers(&[
        ("host", "gateway.example:8080"),
        ("user-agent", "agent/1.0"),
        ("accept", "application/json"),
        ("accept-encoding", "gzip, deflate, br"),
        ("authorization", "Bearer abcdefghijklmnopqrstuvwxyz"),
        ("content-type", "application/json"),
        ("connection", "keep-alive"),
        ("x-request-id", "0b9d9bb5-0a6e-4e0c-8d6f-0f2f6a1b1a11"),
    ])
}

fn answer_headers() -> HeaderMap {
    headers(&[
        ("content-type", "application/json; charset=utf-8"),
        ("content-length", "2048"),
        ("date", "Mon, 30 Nov 2026 12:00:00 GMT"),
        ("etag", "\"33a64df551425fcc55e4d42a148795d9f25f89d4\""),
        ("cache-control", "no-store"),
        ("x-request-id", "0b9d9bb5-0a6e-4e0c-8d6f-0f2f6a1b1a11"),
    ])
}

fn routing(criterion: &mut Criterion) {
    let snapshot = snapshot(1000);
    let mut group = criterion.benchmark_group("route among 1,000");
    for (name, path) in [
        ("literal and parameter", "/v1/kind120/8f14e45f"),
        ("text beside a parameter", "/v1/kind120/8f14e45f/part120/7.json"),
        ("undeclared", "/v2/elsewhere/8f14e45f"),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| snapshot.find_http(&Method::GET, black_box(path)).groups().len());
        });
    }
    group.bench_function("oddity", |bencher| {
        bencher.iter(|| oddity(black_box("/v1/kind120/8f14e45f/part120/7.json")).is_none());
    });
    group.finish();
}

/// A policy of `count` operations as they are written: writes with keys, statuses, evidence and undo.
fn written(count: usize) -> String {
    let mut text = String::from("version: 1\noperations:\n");
    for index in 0..count / 2 {
        text.push_str(&format!(
            "  kind{index}.create:
    match: {{ http: \"POST /v1/kind{index}\" }}
    effect:
      class: compensable
      kind: create
      compensate: {{ operation: kind{index}.cancel, arguments: {{ path.id: response.id }} }}
      idempotency: {{ type: header, name: Idempotency-Key, retention: 24h }}
      dispatch_statuses:
        accepted: [{{ type: exact, status: 201 }}]
        definitely_rejected: [{{ type: range, start: 400, end: 404 }}]
      upstream_id: {{ source: response_body, pointer: /id }}
      verification:
        type: response_binding
        config:
          trust: gateway_observed_only
          assertions:
            - {{ type: exists, name: id, actual: {{ source: response_body, pointer: /id }} }}
  kind{index}.cancel:
    match: {{ http: \"POST /v1/kind{index}/{{id}}/cancel\" }}
    effect: {{ class: irreversible, kind: update }}
"
        ));
    }
    text
}

/// An OpenAPI document of `count` operations and about `size` bytes, with shared schemas as vendors'
/// documents have them.
fn catalog(count: usize, size: usize) -> String {
    let each = size / (count + 1);
    let mut members = String::new();
    let mut index = 0;
    while members.len() + 300 < each {
        members.push_str(&format!(
            r#""member{index}":{{"type":"string","description":"what a vendor says of a member","nullable":true,"example":"octo"}},"#
        ));
        index += 1;
    }
    let mut text = String::from(r#"{"openapi":"3.0.3","paths":{"#);
    for index in 0..count {
        let comma = if index == 0 { "" } else { "," };
        text.push_str(&format!(
            r##"{comma}"/v1/kind{index}/{{id}}":{{"post":{{"operationId":"kind{index}/update","parameters":[{{"name":"id","in":"path","required":true,"schema":{{"type":"string"}}}}],"requestBody":{{"content":{{"application/json":{{"schema":{{"type":"object","properties":{{{members}"id":{{"type":"string"}}}}}}}}}}}},"responses":{{"200":{{"content":{{"application/json":{{"schema":{{"$ref":"#/components/schemas/kind"}}}}}}}}}}}}}}"##
        ));
    }
    text.push_str(r#"},"components":{"schemas":{"kind":{"type":"object","properties":{"id":{"type":"string"}}}}}}"#);
    text
}

/// A policy over a catalog, with one operation for each of its.
fn over(count: usize) -> String {
    let mut text = String::from("version: 1\ncatalog: { openapi: api.json }\noperations:\n");
    for index in 0..count {
        text.push_str(&format!(
            "  kind{index}: {{ match: {{ operation_id: kind{index}/update }}, effect: {{ class: \
             irreversible, kind: update }} }}\n"
        ));
    }
    text
}

fn compiling(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("compile");
    group.sample_size(10);
    let text = written(1000);
    group.bench_function("1,000 operations", |bencher| {
        let files = || vec![("a.yaml".to_owned(), text.clone())];
        bencher.iter_batched(files, policy::compile, BatchSize::PerIteration);
    });
    let (api, policy) = (catalog(1223, 13_000_000), over(1223));
    group.bench_function("1,223 operations with a catalog of 13 MB", |bencher| {
        let files =
            || vec![("a.yaml".to_owned(), policy.clone()), ("api.json".to_owned(), api.clone())];
        bencher.iter_batched(files, policy::compile, BatchSize::PerIteration);
    });
    let compiled = policy::compile(vec![("a.yaml".to_owned(), text)]);
    assert!(!compiled.has_errors(), "{}", compiled.human());
    group.finish();
}

fn reading(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("json");
    for (name, size) in [("2 KB", 2_000), ("64 KB", 64_000)] {
        let text = json(size);
        group.throughput(Throughput::Bytes(u64::try_from(text.len()).unwrap_or(0)));
        group.bench_function(format!("read {name}"), |bencher| {
            bencher.iter(|| Doc::parse(black_box(text.clone())).is_ok());
        });
        let doc = Doc::parse(text.clone()).expect("JSON");
        group.bench_function(format!("splice {name}"), |bencher| {
            bencher.iter(|| {
                let mut edits = Edits::new();
                edits.members(doc.root(), &[], &[("_meta", r#"{"effect":{"class":"read"}}"#)]);
                edits.apply(black_box(&text))
            });
        });
        group.bench_function(format!("digest {name}"), |bencher| {
            let headers = request_headers();
            let target = "/v1/kind120/8f14e45f?q=1";
            bencher.iter(|| {
                let form = BodyForm::Json("application/json", black_box(doc.root()));
                let head = HeadForm { authority: None, headers: &headers, vary_on: &[] };
                RequestDigest::http(&Method::POST, target, head, form)
            });
        });
    }
    group.finish();
}

fn reporting(criterion: &mut Criterion) {
    let operation = || OperationId::new("github.comments.create").expect("an id");
    let undo = Resolved {
        operation: OperationId::new("github.comments.delete").expect("an id"),
        tool: None,
        http: Some((Method::DELETE, "/repos/octo/hello/issues/comments/100".to_owned())),
        headers: Vec::new(),
        arguments: vec![
            ("path.owner".to_owned(), "\"octo\"".to_owned()),
            ("path.repo".to_owned(), "\"hello\"".to_owned()),
            ("path.id".to_owned(), "100".to_owned()),
        ],
        body: None,
        deadline_ms: None,
    };
    let entry = EntryId::from_parts(1_764_500_000_000, &[7; 10]);
    let mut report = Report::new(Class::Reversible, operation());
    report.idempotency_key = Some(Key::from_entry(entry));
    report.ledger_id = Some(Key::from_entry(entry));
    report.entry = Some(entry);
    report.undo = Some(CallJson::undo(UndoKind::Inverse, &undo));
    report.verdict = Some(Verdict::Verified);
    let mut group = criterion.benchmark_group("report");
    group.bench_function("of a write, as a header", |bencher| {
        bencher.iter(|| black_box(&report).to_header(4096));
    });
    group.bench_function("of a write, as JSON", |bencher| {
        bencher.iter(|| black_box(&report).to_json());
    });
    group.bench_function("undo", |bencher| {
        bencher.iter(|| CallJson::undo(UndoKind::Inverse, black_box(&undo)));
    });
    group.finish();
}

fn sifting(criterion: &mut Criterion) {
    let (request, answer) = (request_headers(), answer_headers());
    let mut group = criterion.benchmark_group("headers");
    group.bench_function("sift a request", |bencher| {
        let sift = |mut headers: HeaderMap| (sift(&mut headers, &REPORT).is_ok(), headers);
        bencher.iter_batched(|| request.clone(), sift, BatchSize::SmallInput);
    });
    group.bench_function("sift an answer", |bencher| {
        let sift = |mut headers: HeaderMap| (sift_answer(&mut headers, &REPORT), headers);
        bencher.iter_batched(|| answer.clone(), sift, BatchSize::SmallInput);
    });
    group.finish();
}

criterion_group!(benches, routing, compiling, reading, reporting, sifting);
criterion_main!(benches);
