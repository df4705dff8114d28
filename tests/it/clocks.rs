use std::time::Duration;

use crate::support::sidecar::Setup;
use crate::support::{Act, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.create:
    match: { http: "POST /things" }
    effect: { class: irreversible, kind: create }
  things.touch:
    match: { http: "POST /touch" }
    effect: { class: irreversible, kind: update }
    confirm: caller
    timeout: { head_ms: 50 }
"#;

#[test]
fn g6_a_confirmation_expires_and_a_clock_that_goes_back_does_not_lengthen_it() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let (setup, hand) = Setup::new(POLICY).manual_clock();
    let sidecar = setup.start(&upstream);
    let mut agent = sidecar.agent();
    let token = agent.post("/things", &[], "{}").token();

    hand.advance(Duration::from_secs(601));
    let late = agent.post("/things", &[("effect-confirm", &token)], "{}");

    assert_eq!(late.status, 428);
    assert_eq!(late.json()["error"]["details"]["mismatch"], "expired");
    let fresh = late.token();
    hand.advance(Duration::from_secs(599));
    assert_eq!(agent.post("/things", &[("effect-confirm", &fresh)], "{}").status, 201);
    assert_eq!(upstream.count("POST"), 1);
}

#[test]
fn b3_a_write_whose_head_comes_too_late_is_unknown_and_its_late_answer_goes_to_nobody() {
    let (go, wait) = std::sync::mpsc::channel();
    let wait = std::sync::Mutex::new(Some(wait));
    let upstream = Upstream::start(move |_| match wait.lock().unwrap().take() {
        Some(wait) => Act::After(wait, Box::new(Act::json(201, r#"{"late":true}"#))),
        None => Act::json(201, r#"{"late":false}"#),
    });
    let sidecar = Setup::new(POLICY).start(&upstream);
    let mut agent = sidecar.agent();

    let late = agent.post("/touch", &[("effect-confirm", "true")], r#"{"n":1}"#);
    go.send(()).unwrap();
    let next = agent.post("/touch", &[("effect-confirm", "true")], r#"{"n":2}"#);

    assert_eq!(late.status, 504);
    assert_eq!(late.code(), "outcome_unknown");
    assert_eq!(next.text(), r#"{"late":false}"#);
    sidecar.wait_entries(&[("unknown", "timeout"), ("accepted", "")]);
}

#[test]
fn an_answer_counts_as_delivered_when_its_connection_stays_open_long_enough() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let mut setup = Setup::new(POLICY);
    setup.delivered_after = Duration::from_millis(1);
    let sidecar = setup.start(&upstream);
    let mut agent = sidecar.agent();
    let first = agent.post("/touch", &[("effect-confirm", "true")], "{}");

    // Once delivered, the same call again is a second intent and is asked about.
    let asked = wait::until("delivery", || {
        let again = sidecar.agent().post("/touch", &[("effect-confirm", "true")], "{}");
        (again.status == 428).then_some(again)
    });

    assert!(asked.text().contains(first.report()["entry"].as_str().unwrap()));
    assert_eq!(upstream.count("POST"), 1);
}
