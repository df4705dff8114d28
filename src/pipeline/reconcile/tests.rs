use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::lookup::{Answer, interpret};
use super::*;
use crate::call::payload::Budget;
use crate::clock::{Clock, ManualClock};
use crate::contract::class::{Class, Disposition, Kind as EffectKind, Mode};
use crate::contract::key::{Digest, Key};
use crate::http::injected::Injected;
use crate::ledger::{
    Begin, Begun, Cause, Embedded, Expected, Finish, Guard, Ledger, Look, Options, Principal,
};
use crate::metrics::Metrics;
use crate::pipeline::confirmation::Sealer;
use crate::pipeline::live::Policies;
use crate::pipeline::under_way::UnderWay;
use crate::pipeline::{Limits, McpSettings, McpState, Settings, Shared, Timeouts};
use crate::policy;
use crate::server::Drain;
use crate::tasks::Tasks;
use crate::upstream::{self, Authority, Upstream};

/// A create whose lookup is by key, with the given further members of `lookup`.
fn policy(by: &str, more: &str) -> String {
    format!(
        r#"
version: 1
operations:
  notes.create:
    match: {{ http: "POST /notes" }}
    effect:
      class: irreversible
      kind: create
      idempotency: {{ type: header, name: Idempotency-Key, retention: 24h }}
      lookup:
        operation: notes.find
        by: {by}
        arguments: {{ query.key: idempotency_key }}
{more}
    confirm: caller
  notes.find:
    match: {{ http: "GET /notes" }}
    effect: {{ class: read, kind: read }}
"#
    )
}

fn live(text: &str, metrics: &Metrics) -> Live {
    let compiled = policy::compile(vec![("test.yaml".to_owned(), text.to_owned())]);
    assert!(!compiled.has_errors(), "{}", compiled.human());
    Live::new(compiled.snapshot.unwrap(), metrics)
}

fn operation(by: &str, more: &str) -> Operation {
    let live = live(&policy(by, more), &Metrics::new());
    let id = OperationId::new("notes.create").unwrap();
    live.snapshot.operation(&id).unwrap().operation.clone()
}

const EMPTY: &str = "        empty: response.items\n";
const MATCH: &str = "        match:\n          - { type: equals_literal, name: is_note, actual: \
                     { source: response_body, pointer: /kind }, expected: note }\n";

#[test]
fn a_lookups_answer_says_one_of_four_things() {
    let by_key = operation("idempotency_key", "");
    let by_id = operation("id", "");
    let in_items = operation("idempotency_key", EMPTY);
    let matching = operation("id", MATCH);
    let absent = Ok(Answer::Absent);
    let found = Ok(Answer::Found);
    let unsure = Err(());
    let table: &[(&Operation, u16, &str, Result<Answer, ()>)] = &[
        (&by_key, 404, "gone", absent),
        (&by_key, 410, "", absent),
        (&by_key, 200, "null", absent),
        (&by_key, 200, "[]", absent),
        (&by_key, 200, "{}", absent),
        (&by_key, 200, r#""""#, absent),
        (&by_key, 200, r#"[{"id":1}]"#, found),
        (&by_key, 200, r#"{"id":1}"#, found),
        (&by_key, 200, r#"[{"id":1},{"id":2}]"#, Ok(Answer::Many(2))),
        (&by_key, 200, "7", unsure),
        (&by_key, 200, "true", unsure),
        (&by_key, 200, "<html>", unsure),
        (&by_key, 200, "", unsure),
        (&by_key, 204, "", unsure),
        (&by_key, 302, "[]", unsure),
        (&by_key, 401, "[]", unsure),
        (&by_key, 403, "[]", unsure),
        (&by_key, 500, "[]", unsure),
        (&in_items, 200, r#"{"items":[],"total":0}"#, absent),
        (&in_items, 200, r#"{"items":null}"#, absent),
        (&in_items, 200, r#"{"items":[1]}"#, found),
        (&in_items, 200, r#"{"items":{"id":1}}"#, found),
        (&in_items, 200, r#"{"items":"n1"}"#, found),
        (&in_items, 200, r#"{"items":0}"#, unsure),
        (&in_items, 200, r#"{"error":"x"}"#, unsure),
        // A hit by the request's own data may be another call's effect.
        (&by_id, 200, r#"[{"id":1}]"#, unsure),
        (&by_id, 200, "[]", absent),
        (&matching, 200, r#"[{"kind":"note"},{"kind":"task"},{"id":3}]"#, found),
        (&matching, 200, r#"[{"kind":"note"},{"kind":"note"}]"#, Ok(Answer::Many(2))),
        (&matching, 200, r#"[{"kind":"task"}]"#, absent),
        (&matching, 200, r#"[{"kind":{"a":1}}]"#, unsure),
        (&matching, 200, r#"{"kind":"note"}"#, found),
        (&matching, 200, r#"{"kind":"task"}"#, absent),
        (&matching, 200, r#"{"message":"slow down"}"#, unsure),
    ];
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (operation, status, body, right) in table {
        let lookup = operation.lookup.as_ref().unwrap();
        let found = super::lookup::Found { status: *status, headers: &headers };
        let got = interpret(operation, lookup, &found, &Bytes::from_static(body.as_bytes()));
        assert_eq!(got.map_err(|_| ()), *right, "{status} {body}");
    }
}

#[test]
fn an_answer_that_is_not_all_there_or_not_json_cannot_tell() {
    let operation = operation("idempotency_key", "");
    let lookup = operation.lookup.as_ref().unwrap();
    let table: &[(&str, &str)] = &[
        ("content-type", "text/html"),
        ("content-encoding", "gzip"),
        ("link", r#"<https://gw/notes?page=2>; rel="next""#),
    ];
    for (name, value) in table {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        let found = super::lookup::Found { status: 200, headers: &headers };
        let got = interpret(&operation, lookup, &found, &Bytes::from_static(b"[]"));
        assert!(got.is_err(), "{name}");
    }
}

/// An upstream that gives one scripted answer per request and tells the requests' heads.
fn upstream(answers: Vec<(u16, &'static str)>) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for (status, body) in answers {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert!(reader.read_line(&mut head).unwrap() > 0);
            }
            let length = body.len();
            let mut stream = stream;
            write!(
                stream,
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
            .unwrap();
            seen.send(head).unwrap();
        }
    });
    (address, requests)
}

const BEGAN_MS: i64 = 1_800_000_000_000;
const TOTAL: Duration = Duration::from_secs(10);

struct Bench {
    shared: Arc<Shared>,
    hand: ManualClock,
    upstream: Upstream,
    entry: EntryId,
    _directory: tempfile::TempDir,
}

impl Bench {
    /// A ledger with one unknown entry that kept `lookup`, under `policy`.
    async fn new(policy: &str, lookup: Option<&str>, address: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        let (store, _) = Embedded::open(&path, Options::default(), BEGAN_MS).unwrap();
        let (clock, hand) = Clock::manual(BEGAN_MS);
        let metrics = Metrics::new();
        let tasks = Tasks::new();
        let ledger = Ledger::Embedded(store);
        let shared = Arc::new(Shared {
            policies: Policies::new(live(policy, &metrics)),
            sealer: Sealer::new(ledger.sealing_key()),
            ledger,
            metrics,
            clock,
            budget: Budget::new(1 << 20),
            settings: Settings {
                report_header: Box::leak(Box::new(crate::http::headers::REPORT)),
                mode: Mode::Enforce,
                limits: Limits {
                    request_body_bytes: 1 << 16,
                    response_body_bytes: 1 << 16,
                    request_idle: TOTAL,
                },
                timeouts: Timeouts { connect: TOTAL, head: TOTAL, idle: TOTAL, total: TOTAL },
                first_look: Duration::from_secs(5),
                pseudonym: "takeback-test".to_owned(),
                upstream_authority: "gw:80".to_owned(),
                upstream_base: "/api".to_owned(),
                upstream_headers: Injected::new(vec![(
                    header::AUTHORIZATION,
                    HeaderValue::from_static("Bearer t"),
                )]),
                principals: crate::principal::Sources::default(),
                spans: None,
                mcp: McpSettings::default(),
            },
            tasks: tasks.clone(),
            mcp: McpState::default(),
            under_way: UnderWay::default(),
        });
        let authority = Authority::new(&address.ip().to_string(), address.port()).unwrap();
        let upstream = Upstream::new(upstream::Config::new(authority), tasks);
        let entry = shared.entry_id();
        begin_unknown(&shared.ledger, entry, lookup).await;
        Self { shared, hand, upstream, entry, _directory: directory }
    }

    async fn run(&self) -> (Conclusion, String) {
        let run = reconcile_once(&self.fetch()).await.unwrap();
        assert_eq!(run.len(), 1);
        assert_eq!(run[0].entry, self.entry);
        (run[0].conclusion, run[0].why.clone())
    }

    fn fetch(&self) -> Fetch {
        let (shared, upstream) = (Arc::clone(&self.shared), self.upstream.clone());
        Fetch { shared, upstream, drain: Drain::new() }
    }

    async fn is_unknown(&self) -> bool {
        !self.shared.ledger.unknowns(10).await.unwrap().is_empty()
    }
}

async fn begin_unknown(ledger: &Ledger, entry: EntryId, lookup: Option<&str>) {
    let digest = Digest([1; 32]);
    let operation = OperationId::new("notes.create").unwrap();
    let principal = Principal { id: "p".to_owned(), weak: true };
    let look = Look { principal, key: None, digest, mark: digest, operation, staged: false };
    let begin = Begin {
        look,
        expected: Expected::default(),
        entry,
        rerun: None,
        guard: Guard::Enforced,
        fingerprint: digest,
        policy_revision: digest,
        class: Class::Irreversible,
        kind: EffectKind::Create,
        transport: "http",
        target: "POST /notes".to_owned(),
        things: Vec::new(),
        task: None,
        staged_for: None,
        ledger_id: Key::from_entry(entry),
        key_sent: true,
        lookup: lookup.map(str::to_owned),
        authorization: None,
        before: None,
        repeats: None,
        spend: None,
        now_ms: BEGAN_MS,
    };
    assert_eq!(ledger.begin(begin).await, Ok(Begun::Started { attempt: 1 }));
    let finish = Finish {
        entry,
        attempt: 1,
        state: State::Unknown,
        cause: Some(Cause::Reset),
        disposition: Disposition::Ambiguous,
        verdict: None,
        answered: false,
        upstream_status: None,
        upstream_id: None,
        made: None,
        undo: None,
        undo_things: Vec::new(),
        undo_mark: None,
        compensate: None,
        deadline_ms: None,
        undo_unavailable: None,
        answer: None,
        undoes: None,
        evidence: None,
        due_ms: Some(BEGAN_MS),
        now_ms: BEGAN_MS,
    };
    ledger.finish_durably(finish).await.unwrap();
}

const KEPT: &str = r#"{"by":"idempotency_key","operation":"notes.find","tool":null,
    "http":{"method":"GET","path":"/notes?key=k1"},"arguments":{"query.key":"k1"}}"#;

#[tokio::test]
async fn an_effect_that_is_found_once_settles_its_entry_as_accepted() {
    let (address, requests) = upstream(vec![(200, r#"[{"id":1}]"#)]);
    let bench = Bench::new(&policy("idempotency_key", ""), Some(KEPT), address).await;

    let (conclusion, why) = bench.run().await;

    assert_eq!((conclusion, why.as_str()), (Conclusion::Accepted, "notes.find found the effect"));
    assert!(!bench.is_unknown().await);
    let head = requests.recv().unwrap();
    assert!(head.starts_with("GET /api/notes?key=k1 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("host: gw:80\r\n"), "{head}");
    assert!(head.contains("authorization: Bearer t\r\n"), "{head}");
    let text = bench.shared.metrics.render();
    let line = "takeback_reconciliations_total{operation=\"notes.create\",result=\"found\"} 1";
    assert!(text.contains(line), "{text}");
}

#[tokio::test]
async fn nothing_found_settles_only_after_the_settle_time_and_only_twice() {
    let (address, _requests) =
        upstream(vec![(404, ""), (404, ""), (404, ""), (200, "[1]"), (404, ""), (200, "[]")]);
    let settle = "        settle_ms: 2000\n";
    let bench = Bench::new(&policy("idempotency_key", settle), Some(KEPT), address).await;

    assert_eq!(bench.run().await.0, Conclusion::Absent);
    bench.hand.advance(TOTAL + Duration::from_millis(5_000 + 1_999));
    let (conclusion, why) = bench.run().await;
    assert_eq!(conclusion, Conclusion::Absent);
    assert!(why.contains("counts in 1 s"), "{why}");
    bench.hand.advance(Duration::from_millis(1));
    assert_eq!(bench.run().await.0, Conclusion::Inconclusive);
    assert!(bench.is_unknown().await);
    assert_eq!(bench.run().await.0, Conclusion::Rejected);
    assert!(!bench.is_unknown().await);
}

#[tokio::test]
async fn without_a_settle_time_nothing_found_settles_nothing() {
    let (address, _requests) = upstream(vec![(404, "")]);
    let bench = Bench::new(&policy("idempotency_key", ""), Some(KEPT), address).await;
    bench.hand.advance(Duration::from_secs(1_000_000));

    let (conclusion, why) = bench.run().await;

    assert_eq!(conclusion, Conclusion::Absent);
    assert!(why.contains("settle_ms"), "{why}");
    assert!(bench.is_unknown().await);
}

#[tokio::test]
async fn an_entry_whose_lookup_cannot_be_made_stays_unknown_and_says_why() {
    // Nobody listens here: whatever is not refused before it is sent fails.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let other = KEPT.replace("notes.find", "notes.search");
    let post = KEPT.replace("GET", "POST");
    let elsewhere = KEPT.replace("/notes?", "/admin?");
    let tool = r#"{"by":"idempotency_key","operation":"notes.find","tool":"find","http":null}"#;
    let table: &[(Option<&str>, Conclusion, &str)] = &[
        (None, Conclusion::NoLookup, "left nothing"),
        (Some("{"), Conclusion::NoLookup, "cannot be read"),
        (Some(&other), Conclusion::NoLookup, "another lookup"),
        (Some(tool), Conclusion::Inconclusive, "would not be notes.find"),
        (Some(&post), Conclusion::Inconclusive, "no GET"),
        (Some(&elsewhere), Conclusion::Inconclusive, "would not be notes.find"),
        (Some(KEPT), Conclusion::Inconclusive, "refused or unreachable"),
    ];
    for (kept, right, words) in table {
        let bench = Bench::new(&policy("idempotency_key", ""), *kept, nobody).await;
        let (conclusion, why) = bench.run().await;
        assert_eq!(conclusion, *right, "{kept:?}: {why}");
        assert!(why.contains(words), "{kept:?}: {why}");
        assert!(bench.is_unknown().await, "{kept:?}");
    }
    let gone = "version: 1\noperations: {}\n";
    let bench = Bench::new(gone, Some(KEPT), nobody).await;
    assert_eq!(bench.run().await.0, Conclusion::NoLookup);
}
