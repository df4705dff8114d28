use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use super::*;
use crate::config::Sources;

const POLICY: &str =
    "version: 1\noperations:\n  notes.list:\n    match: { http: \"GET /notes\" }\n";

/// A folder with a policy, and the configuration of a sidecar in it; nobody is the upstream.
fn bench(policy: &str) -> (tempfile::TempDir, Config) {
    let folder = tempfile::tempdir().unwrap();
    let policies = folder.path().join("policies");
    std::fs::create_dir(&policies).unwrap();
    std::fs::write(policies.join("a.yaml"), policy).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let config = Config::load(Sources::of(&[
        ("upstream.url", "http://127.0.0.1:1"),
        ("policies", &path(&policies)),
        ("ledger", &path(&folder.path().join("data/ledger.db"))),
        ("listen", "127.0.0.1:0"),
        ("telemetry_listen", "127.0.0.1:0"),
        ("drain.min_ms", "0"),
        ("limits.workers", "2"),
    ]))
    .unwrap();
    (folder, config)
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_sidecar_starts_serves_and_ends() {
    let (_folder, config) = bench(POLICY);
    let again = config.clone();

    let running = start(config, Signals::Ignored).unwrap();

    for probe in ["/livez", "/readyz", "/startupz"] {
        let answer = get(running.telemetry, probe);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{probe}: {answer}");
        assert!(answer.contains(r#""status":"ok""#), "{probe}: {answer}");
    }
    let scraped = get(running.telemetry, "/metrics");
    assert!(scraped.contains("takeback_ready{check=\"ledger\"} 1"), "{scraped}");
    assert!(scraped.contains("takeback_policy_operations{class=\"read\"} 1"), "{scraped}");
    assert!(
        scraped.contains("takeback_requests_total{transport=\"http\",operation=\"notes.list\"")
    );
    let answer = get(running.data, "/notes");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let other = start(again.clone(), Signals::Ignored).unwrap_err();
    assert!(matches!(&other, AppError::Ledger { source: OpenError::Locked, .. }), "{other}");

    running.stop();
    assert_eq!(running.join().unwrap(), Ended { forced: 0 });

    assert!(!again.admin_listen.exists());
    drop(start(again, Signals::Ignored).unwrap());
}

#[test]
fn telemetry_serves_nothing_but_its_four_pages() {
    let (_folder, config) = bench(POLICY);
    let running = start(config, Signals::Ignored).unwrap();

    assert!(get(running.telemetry, "/api/v1/entries").starts_with("HTTP/1.1 404 "));
    let mut stream = TcpStream::connect(running.telemetry).unwrap();
    write!(stream, "POST /livez HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 405");
}

#[test]
fn a_first_policy_that_is_bad_or_empty_is_fatal_and_leaves_nothing_behind() {
    let bad = "version: 1\noperations:\n  a:\n    match: { http: GET }\n    efect: {}\n";
    for policy in [bad, "version: 1\noperations: {}\n"] {
        let (_folder, config) = bench(policy);
        let (policies, again) = (config.policies.clone(), config.clone());

        let error = start(config, Signals::Ignored).unwrap_err();

        assert!(matches!(error, AppError::Policy { .. }), "{error}");
        std::fs::write(policies.join("a.yaml"), POLICY).unwrap();
        drop(start(again, Signals::Ignored).unwrap());
    }
}

#[test]
fn seconds_keep_their_milliseconds() {
    assert!((seconds(1_764_489_600_250) - 1_764_489_600.25).abs() < 1e-6);
    assert!(seconds(-5).abs() < f64::EPSILON);
}
