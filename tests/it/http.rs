use takeback::contract::class::Mode;

use crate::support::sidecar::Setup;
use crate::support::{Act, Sidecar, Upstream};

const POLICY: &str = r#"
version: 1
operations:
  things.get:
    match: { http: "GET /things/{id}" }
    effect: { class: read }
  things.search:
    match: { http: "POST /things/search" }
    effect: { class: read, kind: read }
  things.create:
    match: { http: "POST /things" }
    effect:
      class: irreversible
      kind: create
    confirm: caller
"#;

fn echo() -> Upstream {
    Upstream::start(|_| Act::json(200, r#"{"ok":true}"#))
}

#[test]
fn a_read_streams_and_is_reported() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);

    let answer = sidecar.agent().get("/things/1?q=%20x");

    assert_eq!(answer.status, 200);
    assert_eq!(answer.text(), r#"{"ok":true}"#);
    let report = answer.report();
    assert_eq!(report["class"], "read");
    assert_eq!(report["operation"], "things.get");
    assert_eq!(report["undo"], serde_json::Value::Null);
    let received = upstream.only();
    assert_eq!(received.target, "/things/1?q=%20x");
    assert_eq!(received.header("via"), Some("1.1 takeback-test"));
    assert_eq!(received.header("host"), Some(upstream.address.to_string().as_str()));
    assert!(sidecar.entries().is_empty());
}

#[test]
fn k2_a_post_that_is_declared_a_read_needs_no_entry_and_keeps_its_bytes() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let body = r#"{"q": 1.000, "q2" : [ 12345678901234567890 ]}"#;

    let answer = sidecar.agent().post("/things/search", &[], body);

    assert_eq!(answer.status, 200);
    assert_eq!(answer.report()["operation"], "things.search");
    assert_eq!(upstream.only().text(), body);
    assert!(sidecar.entries().is_empty());
}

#[test]
fn undeclared_reads_pass_and_say_so_and_undeclared_writes_are_asked_about() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let read = agent.get("/other");
    let write = agent.call("DELETE", "/other", &[], "");

    assert_eq!(read.status, 200);
    assert_eq!(read.report()["operation"], "_undeclared");
    assert_eq!(read.report()["class"], "read");
    assert_eq!(write.status, 428);
    assert_eq!(write.report()["class"], "irreversible");
    assert_eq!(upstream.count("DELETE"), 0);
}

#[test]
fn c1_c2_c3_c8_odd_paths_are_refused_and_nothing_is_sent() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);
    for target in [
        "/things/../admin",
        "/things/%2e%2e/admin",
        "/things//1",
        "/things%2F1",
        "/things;x=1",
        "/things/1%00",
        "/things\\1",
        "//things/1",
    ] {
        let answer = sidecar.agent().get(target);
        assert_eq!(answer.status, 400, "{target}");
        assert_eq!(answer.code(), "ambiguous_path", "{target}");
        assert_eq!(answer.report()["refused"], "ambiguous_path");
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn c5_method_overrides_are_refused() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    for name in ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "x_http_method"] {
        assert_eq!(agent.call("GET", "/things/1", &[(name, "DELETE")], "").status, 400);
    }
    assert_eq!(agent.get("/things/1?_method=DELETE").status, 400);
    assert!(upstream.received().is_empty());
}

#[test]
fn a1_a3_a4_h_20_odd_framing_is_refused_or_reframed_and_never_smuggles() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let inner = "GET /things/smuggled HTTP/1.1\r\nhost: proxy\r\n\r\n";
    let chunked = format!("{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len());
    let cases = [
        "POST /things/search HTTP/1.1\r\nhost: proxy\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef".to_owned(),
        "POST /things/search HTTP/1.1\r\nhost: proxy\r\ncontent-length: 5, 6\r\n\r\nabcdef".to_owned(),
        "POST /things/search HTTP/1.1\r\nhost: proxy\r\ncontent-length: +5\r\n\r\nabcde".to_owned(),
        format!("POST /things/search HTTP/1.1\r\nhost: proxy\r\ntransfer-encoding: xchunked\r\n\r\n{chunked}"),
        format!("POST /things/search HTTP/1.1\r\nhost: proxy\r\ntransfer-encoding: chunked, gzip\r\n\r\n{chunked}"),
        format!("POST /things/search HTTP/1.1\r\nhost: proxy\r\ntransfer-encoding: gzip, chunked\r\n\r\n{chunked}"),
        format!("POST /things/search HTTP/1.0\r\nhost: proxy\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"),
        "GET /things/1 HTTP/1.1\r\nhost : proxy\r\n\r\n".to_owned(),
        "GET /things/1 HTTP/1.1\r\nhost: proxy\r\nhost: other\r\n\r\n".to_owned(),
        "GET /things/1 HTTP/1.1\r\n\r\n".to_owned(),
        "GET http://other/things/1 HTTP/1.1\r\nhost: proxy\r\n\r\n".to_owned(),
    ];
    for case in &cases {
        let mut agent = sidecar.agent();
        agent.raw(case.as_bytes());
        let answer = agent.answer("GET");
        assert!((400..=501).contains(&answer.status), "{case}: {}", answer.status);
    }
    assert!(upstream.received().is_empty(), "{:?}", upstream.received());

    // Both framings: read as chunked and sent on with one framing that is ours.
    let mut agent = sidecar.agent();
    agent.raw(
        format!(
            "POST /things/search HTTP/1.1\r\nhost: proxy\r\ncontent-length: 5\r\n\
             transfer-encoding: chunked\r\n\r\n{chunked}"
        )
        .as_bytes(),
    );
    let answer = agent.answer("POST");
    if answer.status == 200 {
        let received = upstream.only();
        assert_eq!(received.text(), inner);
        let framings = received
            .headers
            .iter()
            .filter(|(name, _)| name == "content-length" || name == "transfer-encoding")
            .count();
        assert_eq!(framings, 1);
    } else {
        assert_eq!(answer.status, 400);
    }
    assert!(upstream.received().iter().all(|received| !received.target.contains("smuggled")));
}

#[test]
fn a5_the_rest_of_a_refused_body_is_never_a_request() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    agent.raw(b"POST /things/..%2f HTTP/1.1\r\nhost: proxy\r\ncontent-length: 1000000\r\n\r\n");
    let answer = agent.answer("POST");
    assert_eq!(answer.status, 400);

    let _gone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        agent.raw(b"DELETE /things/1 HTTP/1.1\r\nhost: proxy\r\n\r\n");
    }));

    assert!(agent.is_closed() || agent.try_answer("DELETE").is_none());
    assert!(upstream.received().is_empty());
    assert!(sidecar.entries().is_empty());
}

#[test]
fn a7_h_9_expect_continue_is_answered_or_refused_and_nobody_waits() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);

    let mut refused = sidecar.agent();
    refused.raw(
        b"POST /things//x HTTP/1.1\r\nhost: proxy\r\nexpect: 100-continue\r\n\
          content-length: 10\r\n\r\n",
    );
    assert_eq!(refused.head().unwrap().status, 400);

    let mut taken = sidecar.agent();
    taken.raw(
        b"POST /things HTTP/1.1\r\nhost: proxy\r\nexpect: 100-continue\r\neffect-confirm: true\r\n\
          content-type: application/json\r\ncontent-length: 2\r\n\r\n",
    );
    assert_eq!(taken.head().unwrap().status, 100);
    taken.raw(b"{}");
    assert_eq!(taken.answer("POST").status, 200);
    assert_eq!(upstream.count("POST"), 1);
}

#[test]
fn b6_bodies_over_the_limit_are_refused_before_any_entry() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut declared = sidecar.agent();
    declared.raw(b"POST /things HTTP/1.1\r\nhost: proxy\r\ncontent-length: 99999999\r\n\r\n");
    let answer = declared.answer("POST");
    assert_eq!(answer.status, 413);
    assert_eq!(answer.code(), "body_too_large");

    let mut chunked = sidecar.agent();
    chunked.raw(b"POST /things HTTP/1.1\r\nhost: proxy\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..17 {
        chunked.raw(chunk.as_bytes());
    }
    assert_eq!(chunked.answer("POST").status, 413);
    assert!(upstream.received().is_empty());
    assert!(sidecar.entries().is_empty());
}

#[test]
fn a8_e1_e5_e6_bodies_that_cannot_be_read_are_refused() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();
    let confirm = ("effect-confirm", "true");
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, u16);
    let cases: [Case<'_>; 6] = [
        (&[confirm], r#"{"amount":1,"amount":100000}"#, 400),
        (&[confirm], "\u{feff}{}", 400),
        (&[confirm], r#"{"t":"\ud800"}"#, 400),
        (&[confirm], "{", 400),
        (&[confirm, ("content-encoding", "gzip")], "{}", 415),
        (
            &[confirm],
            "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
            400,
        ),
    ];
    for (headers, body, status) in cases {
        assert_eq!(agent.post("/things", headers, body).status, status, "{body}");
    }
    let utf16 = [("content-type", "application/json; charset=utf-16"), confirm];
    assert_eq!(agent.call("POST", "/things", &utf16, "{}").status, 415);
    assert!(upstream.received().is_empty());
    assert!(sidecar.entries().is_empty());
}

#[test]
fn h_1_h_8_headers_of_one_hop_and_reports_from_outside_do_not_pass() {
    let upstream = Upstream::start(|_| {
        Act::with(
            200,
            &[
                ("x-anvil-effect", "{\"class\":\"read\"}"),
                ("x_anvil_effect", "{}"),
                ("alt-svc", "h3=\":443\""),
                ("connection", "x-private"),
                ("x-private", "1"),
                ("set-cookie", "a=1"),
                ("set-cookie", "b=2"),
                ("idempotent-replayed", "true"),
            ],
            "",
        )
    });
    let sidecar = Sidecar::start(POLICY, &upstream);

    let headers =
        [("connection", "x-hop"), ("x-hop", "1"), ("x-anvil-effect", "{}"), ("te", "trailers")];
    let answer = sidecar.agent().call("GET", "/things/1", &headers, "");

    assert_eq!(answer.report()["operation"], "things.get");
    assert_eq!(answer.header("alt-svc"), None);
    assert_eq!(answer.header("x-private"), None);
    assert_eq!(answer.header("x_anvil_effect"), None);
    assert_eq!(answer.count("set-cookie"), 2);
    let received = upstream.only();
    for name in ["x-hop", "x-anvil-effect", "te", "connection"] {
        assert_eq!(received.header(name), None, "{name}");
    }
}

#[test]
fn h_12_head_204_and_304_keep_their_framing() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "HEAD" => Act::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n".to_vec()),
        _ if received.target.ends_with("/204") => {
            Act::Bytes(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())
        }
        _ => Act::Bytes(b"HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\n\r\n".to_vec()),
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let head = agent.call("HEAD", "/things/1", &[], "");
    let empty = agent.get("/things/204");
    let unmodified = agent.get("/things/304");

    assert_eq!(head.header("content-length"), Some("1234"));
    assert_eq!(head.report()["operation"], "things.get");
    assert_eq!((empty.status, unmodified.status), (204, 304));
    assert_eq!(unmodified.header("etag"), Some("\"x\""));
}

#[test]
fn b5_b9_the_upstreams_own_errors_and_redirects_pass_unchanged() {
    let upstream = Upstream::start(|received| match received.target.as_str() {
        "/things/500" => Act::json(500, r#"{"why":"broken"}"#),
        _ => Act::with(307, &[("location", "http://elsewhere/x")], ""),
    });
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let error = agent.get("/things/500");
    let redirect = agent.get("/things/307");

    assert_eq!((error.status, error.text().as_str()), (500, r#"{"why":"broken"}"#));
    assert_eq!(redirect.header("location"), Some("http://elsewhere/x"));
    assert_eq!(upstream.received().len(), 2);
}

#[test]
fn a_location_under_the_upstream_is_ours_and_a_base_path_prefixes() {
    let upstream = Upstream::start(|received| {
        let host = received.header("host").unwrap().to_owned();
        Act::with(302, &[("location", &format!("http://{host}/api/things/2"))], "")
    });
    let mut setup = Setup::new(POLICY);
    setup.base = "/api";
    let sidecar = setup.start(&upstream);

    let answer = sidecar.agent().get("/things/1");

    assert_eq!(upstream.only().target, "/api/things/1");
    assert_eq!(answer.header("location"), Some("http://proxy/things/2"));
}

#[test]
fn upgrades_are_refused_and_an_h2c_offer_is_dropped() {
    let upstream = echo();
    let sidecar = Sidecar::start(POLICY, &upstream);
    let mut agent = sidecar.agent();

    let offer = [
        ("connection", "Upgrade, HTTP2-Settings"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
    ];
    assert_eq!(agent.call("GET", "/things/1", &offer, "").status, 200);
    let socket = [("connection", "upgrade"), ("upgrade", "websocket")];
    let refused = sidecar.agent().call("GET", "/things/1", &socket, "");

    assert_eq!(refused.status, 501);
    assert_eq!(upstream.only().header("upgrade"), None);
}

#[test]
fn an_unreachable_upstream_is_told_apart_from_an_answer_that_was_lost() {
    let upstream = Upstream::start(|_| Act::Close);
    let sidecar = Sidecar::start(POLICY, &upstream);
    let lost = sidecar.agent().get("/things/1");
    assert_eq!(lost.status, 502);
    assert_eq!(lost.code(), "answer_lost");

    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let sidecar = Setup::new(POLICY).start_at(nobody);
    let unsent = sidecar.agent().get("/things/1");
    assert_eq!(unsent.status, 502);
    assert_eq!(unsent.code(), "not_sent");
}

#[test]
fn p5_the_in_flight_limit_is_one_for_all_connections_and_lasts_to_the_end_of_the_body() {
    let (go, wait) = std::sync::mpsc::channel();
    let wait = std::sync::Mutex::new(Some(wait));
    let upstream = Upstream::start(move |_| match wait.lock().unwrap().take() {
        Some(wait) => Act::After(wait, Box::new(Act::json(200, "{}"))),
        None => Act::json(200, "{}"),
    });
    let mut setup = Setup::new(POLICY);
    setup.places = 1;
    let sidecar = setup.start(&upstream);
    let mut first = sidecar.agent();
    first.send("GET", "/things/1", &[], "");
    crate::support::wait::until("the first call", || {
        (upstream.received().len() == 1).then_some(())
    });

    let second = sidecar.agent().get("/things/2");
    go.send(()).unwrap();

    assert_eq!(second.status, 503);
    assert_eq!(second.code(), "overloaded");
    assert_eq!(second.header("retry-after"), Some("1"));
    assert_eq!(first.answer("GET").status, 200);
    crate::support::wait::until("the place", || (sidecar.places.free() == 1).then_some(()));
}

#[test]
fn observe_mode_stops_nothing_and_says_what_it_would_have_done() {
    let upstream = echo();
    let mut setup = Setup::new(POLICY);
    setup.mode = Mode::Observe;
    let sidecar = setup.start(&upstream);
    let mut agent = sidecar.agent();

    let write = agent.call("DELETE", "/other", &[], "");
    let odd = agent.get("/things//1");

    assert_eq!(write.status, 200);
    assert_eq!(write.report()["would"], "confirmation_required");
    assert_eq!(odd.status, 200);
    assert_eq!(odd.report()["would"], "ambiguous_path");
    sidecar.wait_entries(&[("accepted", "")]);
}
