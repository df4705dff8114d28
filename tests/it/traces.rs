use std::collections::HashMap;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as AnyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::json;

use crate::support::mcp::{call, post_with};
use crate::support::process::{Home, Process};
use crate::support::{Act, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.list:
    match: { http: "GET /things/{box}" }
    effect: { class: read }
  things.create:
    match: { http: "POST /things/{box}" }
    effect: { class: irreversible, kind: create }
    confirm: none
  notes.create:
    match: { tool: create_note }
    effect: { class: irreversible, kind: create }
    confirm: none
"#;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const OTHER_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn upstream() -> Upstream {
    Upstream::start(|received| match received.target.as_str() {
        "/mcp" => Act::json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#),
        _ => Act::json(200, r#"{"canary-answer":1}"#),
    })
}

/// What a collector was sent: a receiver of ours that reads the protocol with the official decoder.
struct Collector(Upstream);

impl Collector {
    fn start() -> Self {
        Self(Upstream::start(|_| {
            Act::Last(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec())
        }))
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let received = self.0.received();
        let decode = |body: &[u8]| ExportTraceServiceRequest::decode(body).unwrap();
        received.iter().map(|received| decode(&received.body)).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.requests();
        let resources = requests.into_iter().flat_map(|request| request.resource_spans);
        resources.flat_map(|one| one.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// The spans of a trace, once its server span is there.
    fn trace(&self, trace: &str) -> HashMap<String, Span> {
        wait::until("the spans", || {
            let spans: Vec<Span> =
                self.spans().into_iter().filter(|span| hex(&span.trace_id) == trace).collect();
            let key = |span: &Span| match span.kind {
                2 => "server".to_owned(),
                3 => "client".to_owned(),
                _ => span.name.clone(),
            };
            spans
                .iter()
                .any(|span| span.kind == 2)
                .then(|| spans.iter().map(|span| (key(span), span.clone())).collect())
        })
    }
}

fn start(home: &Home, collector: &Collector) -> Process {
    home.start_env(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", collector.0.address)),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ])
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let of = |known: &KeyValue| match known.value.clone()?.value? {
        AnyValue::StringValue(text) => Some(text),
        AnyValue::IntValue(number) => Some(number.to_string()),
        other => panic!("{name}: {other:?}"),
    };
    span.attributes.iter().find(|known| known.key == name).and_then(of)
}

#[test]
fn a_write_is_a_trace_of_its_caller_whose_dispatch_is_the_upstreams_parent() {
    let (upstream, collector) = (upstream(), Collector::start());
    let home = Home::new(POLICY, upstream.address);
    let process = start(&home, &collector);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [
        ("traceparent", parent.as_str()),
        ("tracestate", "vendor=canary-state"),
        ("authorization", "Bearer canary-bearer"),
        ("idempotency-key", "canary-key"),
    ];
    let answer = process.agent().post(
        "/things/canary-box?q=canary-query",
        &headers,
        r#"{"canary":"value"}"#,
    );
    assert_eq!(answer.status, 200);

    let spans = collector.trace(TRACE);
    let (server, client) = (&spans["server"], &spans["client"]);
    assert_eq!(server.name, "POST /things/{box}");
    assert_eq!(hex(&server.parent_span_id), PARENT);
    assert_eq!(client.parent_span_id, server.span_id);
    let sent = upstream.only();
    let outgoing = format!("00-{TRACE}-{}-01", hex(&client.span_id));
    assert_eq!(sent.header("traceparent"), Some(outgoing.as_str()));
    assert_eq!(sent.header("tracestate"), Some("vendor=canary-state"));
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/things/{box}"),
        ("http.response.status_code", "200"),
        ("url.scheme", "http"),
        ("anvil.operation.id", "things.create"),
        ("anvil.effect.class", "irreversible"),
        ("anvil.effect.decision", "forwarded"),
        ("anvil.effect.outcome", "accepted"),
        ("anvil.effect.verdict", "inconclusive"),
    ] {
        assert_eq!(attribute(server, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(attribute(client, "http.response.status_code").as_deref(), Some("200"));
    for step in ["anvil.classify", "anvil.ledger.begin", "anvil.verify", "anvil.ledger.finish"] {
        assert_eq!(spans[step].parent_span_id, server.span_id, "{step}");
        assert!(spans[step].start_time_unix_nano >= server.start_time_unix_nano, "{step}");
        assert!(spans[step].end_time_unix_nano <= server.end_time_unix_nano, "{step}");
    }
    let request = &collector.requests()[0];
    let resource = request.resource_spans[0].resource.as_ref().unwrap();
    let name = resource.attributes.iter().find(|known| known.key == "service.name").unwrap();
    assert!(format!("{name:?}").contains("takeback"), "{name:?}");
    let received = collector.0.received();
    assert_eq!(received[0].target, "/v1/traces");
    assert_eq!(received[0].header("content-type"), Some("application/x-protobuf"));
    let all: Vec<u8> = received.iter().flat_map(|received| received.body.clone()).collect();
    assert!(!all.windows(6).any(|window| window == b"canary"), "no value of a call is in a span");
    let line = wait::until("the line", || {
        home.log().lines().find(|line| line.contains("\"event\":\"write\"")).map(str::to_owned)
    });
    assert!(line.contains(TRACE), "{line}");
}

#[test]
fn a_call_without_a_context_begins_a_trace_and_one_that_is_not_sampled_makes_none() {
    let (upstream, collector) = (upstream(), Collector::start());
    let home = Home::new(POLICY, upstream.address);
    let process = start(&home, &collector);

    let unsampled = format!("00-{OTHER_TRACE}-{PARENT}-00");
    let headers = [("traceparent", unsampled.as_str())];
    process.agent().call("GET", "/things/red", &headers, "");
    assert_eq!(upstream.last().header("traceparent"), Some(unsampled.as_str()));
    process.agent().get("/things/red");
    let sent = upstream.last();
    let made = sent.header("traceparent").expect("a context of ours");

    let spans = collector.trace(&made[3..35]);
    assert_eq!(spans["server"].name, "GET /things/{box}");
    assert_eq!(spans["server"].parent_span_id, Vec::<u8>::new());
    assert_eq!(hex(&spans["client"].span_id), made[36..52]);
    assert!(collector.spans().iter().all(|span| hex(&span.trace_id) != OTHER_TRACE));
}

#[test]
fn a_message_has_its_context_in_meta_and_the_headers_becomes_a_link() {
    let (upstream, collector) = (upstream(), Collector::start());
    let home = Home::new(POLICY, upstream.address);
    let process = start(&home, &collector);
    let of_header = format!("00-{OTHER_TRACE}-{PARENT}-01");
    let of_message = format!("00-{TRACE}-{PARENT}-01");
    let meta = json!({ "traceparent": of_message, "other": 1 });

    let body = call("1", "create_note", json!({}), Some(meta));
    post_with(&mut process.agent(), &[("traceparent", of_header.as_str())], &body);

    let spans = collector.trace(TRACE);
    let (server, client) = (&spans["server"], &spans["client"]);
    assert_eq!(server.name, "tools/call create_note");
    assert_eq!(attribute(server, "gen_ai.tool.name").as_deref(), Some("create_note"));
    assert_eq!(attribute(server, "mcp.method.name").as_deref(), Some("tools/call"));
    assert_eq!(attribute(client, "gen_ai.operation.name").as_deref(), Some("execute_tool"));
    assert_eq!(hex(&server.links[0].trace_id), OTHER_TRACE);
    let outgoing = format!("00-{TRACE}-{}-01", hex(&client.span_id));
    let sent: serde_json::Value = serde_json::from_slice(&upstream.last().body).unwrap();
    assert_eq!(sent["params"]["_meta"], json!({ "traceparent": outgoing, "other": 1 }));
    assert_eq!(upstream.last().header("traceparent"), Some(outgoing.as_str()));
}

#[test]
fn a_collector_that_is_gone_or_cannot_be_spoken_to_stops_no_call() {
    let upstream = upstream();
    let home = Home::new(POLICY, upstream.address);
    let mut process = home.start_env(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
    ]);
    for _ in 0..3 {
        assert_eq!(process.agent().get("/things/red").status, 200);
    }
    process.signal(rustix::process::Signal::INT);
    assert_eq!(process.wait().code(), Some(0));

    assert!(home.try_start_env(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://a:4318")]).is_none());
    assert!(home.log().contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{}", home.log());
}
