//! What a hop must not change or pass: signed requests, early data, codings, marks of ours.

use takeback::contract::class::Mode;

use crate::support::sidecar::Setup;
use crate::support::{Act, Sidecar, Upstream};

const POLICY: &str = r#"
version: 1
operations:
  things.get:
    match: { http: "GET /things" }
    effect: { class: read }
  things.create:
    match: { http: "POST /things" }
    effect:
      class: irreversible
      kind: create
      idempotency: { type: header, name: Idempotency-Key, retention: 24h }
    confirm: none
  notes.create:
    match: { http: "POST /notes" }
    effect:
      class: irreversible
      kind: create
      idempotency: { type: body_pointer, pointer: /key, create: true, retention: 24h }
    confirm: none
  plain.create:
    match: { http: "POST /plain" }
    effect: { class: irreversible, kind: create }
    confirm: none
"#;

const COVERS_KEY: (&str, &str) =
    ("signature-input", "sig1=(\"@method\" \"idempotency-key\");created=1;keyid=\"k\"");
const COVERS_BODY: (&str, &str) =
    ("signature-input", "sig1=(\"@method\" \"content-digest\");created=1;keyid=\"k\"");
const AWS: (&str, &str) = (
    "authorization",
    "AWS4-HMAC-SHA256 Credential=a/20261130/eu/s3/aws4_request, SignedHeaders=host;x-amz-date, \
     Signature=00",
);

#[test]
fn c_9_a_key_that_would_break_a_signature_is_refused_and_nothing_is_sent() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    for (target, signature, is_refused) in [
        ("/things", COVERS_KEY, true),
        ("/things", COVERS_BODY, false),
        ("/things", AWS, false),
        ("/notes", COVERS_KEY, false),
        ("/notes", COVERS_BODY, true),
        ("/notes", AWS, true),
        ("/plain", COVERS_KEY, false),
        ("/plain", AWS, false),
    ] {
        let before = upstream.received().len();
        let body = format!("{{\"n\":{}}}", before + usize::from(is_refused) * 100);
        let answer = agent.post(target, &[signature], &body);
        if is_refused {
            assert_eq!((answer.status, &*answer.code()), (422, "carrier_breaks_signature"));
            assert_eq!(upstream.received().len(), before, "{target} {signature:?}");
        } else {
            assert_eq!(answer.status, 201, "{target} {signature:?}: {}", answer.text());
        }
    }
    // The caller's own key, where the signature has it, changes nothing.
    let own = [COVERS_KEY, ("idempotency-key", "mine")];
    assert_eq!(agent.post("/things", &own, r#"{"own":1}"#).status, 201);
    assert_eq!(upstream.last().header("idempotency-key"), Some("mine"));
}

#[test]
fn h_25_early_data_is_refused_for_a_write_and_passed_on_for_a_read() {
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let refused = agent.post("/things", &[("early-data", "1")], "{}");
    assert_eq!((refused.status, &*refused.code()), (425, "too_early"));
    assert!(upstream.received().is_empty());

    assert_eq!(agent.call("GET", "/things", &[("early-data", "1")], "").status, 200);
    assert_eq!(upstream.last().header("early-data"), Some("1"));
}

#[test]
fn contract_2_observe_says_what_a_signature_or_early_data_would_have_met_and_sends() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let mut setup = Setup::new(POLICY);
    setup.mode = Mode::Observe;
    let sidecar = setup.start(&upstream);
    for (target, header, would) in [
        ("/things", ("early-data", "1"), Some("too_early")),
        ("/things", COVERS_KEY, Some("carrier_breaks_signature")),
        ("/notes", AWS, Some("carrier_breaks_signature")),
        ("/things", AWS, None),
    ] {
        let body = format!("{{\"n\":{}}}", upstream.received().len());
        let answer = sidecar.agent().post(target, &[header], &body);
        assert_eq!(answer.status, 201, "{target} {header:?}");
        assert_eq!(answer.report()["would"].as_str(), would, "{target} {header:?}");
        assert_eq!(upstream.last().body, body.as_bytes(), "{target} {header:?}");
    }
    assert_eq!(upstream.received().len(), 4);
}

#[test]
fn h_20c_an_answer_in_a_further_coding_is_broken_and_a_write_then_unknown() {
    let upstream = Upstream::start(|_| {
        let head = "HTTP/1.1 201 Created\r\ntransfer-encoding: gzip, chunked\r\n\r\n";
        Act::Last(format!("{head}2\r\n{{}}\r\n0\r\n\r\n").into_bytes())
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let written = agent.post("/things", &[], "{}");
    assert_eq!((written.status, &*written.code()), (502, "outcome_unknown"));
    assert_eq!(written.report()["outcome"], "unknown");
    assert_eq!(sidecar.agent().get("/things").status, 502);
}

#[test]
fn an_upstreams_own_mark_of_a_replay_does_not_pass_as_ours() {
    let upstream = Upstream::start(|_| {
        let head = "HTTP/1.1 201 Created\r\nidempotent-replayed: true\r\ncontent-length: 2\r\n\r\n";
        Act::Bytes(format!("{head}{{}}").into_bytes())
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let key = [("idempotency-key", "k")];

    assert_eq!(agent.post("/things", &key, "{}").header("idempotent-replayed"), None);
    assert_eq!(agent.post("/things", &key, "{}").header("idempotent-replayed"), Some("true"));
    assert_eq!(upstream.count("POST"), 1);
}
