//! TLS in front and behind by the real binary, with files that change under it, and the principals
//! that come of it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::support::certs::{Authority, Pair};
use crate::support::process::{Home, Process};
use crate::support::secure::{self, Client, Got, runtime};
use crate::support::{Act, Upstream, wait};

const POLICY: &str = r#"
version: 1
operations:
  things.get:
    match: { http: "GET /things" }
    effect: { class: read }
  things.create:
    match: { http: "POST /things" }
    effect: { class: irreversible, kind: create }
    confirm: caller
"#;

const JSON: (&str, &str) = ("content-type", "application/json");
const CONFIRM: (&str, &str) = ("effect-confirm", "true");

/// A folder as the kubelet mounts a Secret: its files are links through `..data`.
struct Mounted {
    path: PathBuf,
    count: u32,
}

impl Mounted {
    fn new(path: PathBuf, files: &[(&str, &str)]) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        for (name, _) in files {
            symlink(format!("..data/{name}"), path.join(name)).unwrap();
        }
        let mut mounted = Self { path, count: 0 };
        mounted.swap(files);
        mounted
    }

    fn swap(&mut self, files: &[(&str, &str)]) {
        self.count += 1;
        let name = format!("..{}", self.count);
        std::fs::create_dir(self.path.join(&name)).unwrap();
        for (file, text) in files {
            std::fs::write(self.path.join(&name).join(file), text).unwrap();
        }
        let new = self.path.join("..data_tmp");
        symlink(&name, &new).unwrap();
        std::fs::rename(&new, self.path.join("..data")).unwrap();
    }
}

fn home(upstream: std::net::SocketAddr) -> Home {
    Home::new(POLICY, upstream)
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The `tls` member of a file of settings, with files beside it.
fn tls(home: &Home, pair: &Pair, ca: Option<&str>) -> String {
    let cert = home.file("server.pem", &pair.cert);
    let key = home.file("server.key", &pair.key);
    let ca = ca.map(|ca| home.file("clients.pem", ca));
    let ca = ca.map(|ca| format!(", client_ca_file: {}", shown(&ca))).unwrap_or_default();
    format!("tls: {{ cert_file: {}, key_file: {}{ca} }}\n", shown(&cert), shown(&key))
}

fn call(process: &Process, client: &Client, method: &str, body: &str) -> Option<Got> {
    let headers = [JSON, CONFIRM];
    runtime().block_on(client.call(process.data, method, "/things", &headers, body))
}

fn metric(process: &Process, line: &str) -> Option<f64> {
    let text = process.telemetry("/metrics").text();
    let found = text.lines().find_map(|known| known.strip_prefix(line));
    found.and_then(|rest| rest.trim().parse().ok())
}

fn principals(home: &Home) -> Vec<String> {
    home.query("SELECT DISTINCT principal FROM entry ORDER BY 1")
}

#[test]
fn reads_and_writes_pass_through_tls_on_both_sides_in_both_protocols() {
    let authority = Authority::new();
    let (front, behind) = (authority.pair(&["proxy.test"]), authority.pair(&["localhost"]));
    let mutual = authority.pair(&["spiffe://mesh/sidecar"]);
    let table: [(&[&str], http::Version); 2] =
        [(&["h2", "http/1.1"], http::Version::HTTP_2), (&[], http::Version::HTTP_11)];
    for (theirs, version) in table {
        let upstream = secure::Upstream::start(&behind, Some(&authority.pem), theirs);
        let mut home = home(upstream.address);
        home.upstream = format!("https://localhost:{}/base", upstream.address.port());
        let ca = home.file("ca.pem", &authority.pem);
        let cert = home.file("own.pem", &mutual.cert);
        let key = home.file("own.key", &mutual.key);
        let settings = format!(
            "{}upstream: {{ ca_file: {}, cert_file: {}, key_file: {} }}\n",
            tls(&home, &front, None),
            shown(&ca),
            shown(&cert),
            shown(&key)
        );
        let process = home.start_configured(&settings);

        for ours in [["h2"], ["http/1.1"]] {
            let client = Client::new(&authority.pem, None, &ours);
            let read = call(&process, &client, "GET", "").unwrap();
            assert_eq!(read.status, 201);
            let written = call(&process, &client, "POST", &format!("{{\"a\":\"{}\"}}", ours[0]));
            let written = written.unwrap();
            assert_eq!((written.status, &*written.body), (201, r#"{"id":1}"#));
            assert!(written.headers.contains_key("x-anvil-effect"));
        }
        for seen in upstream.seen() {
            assert_eq!(seen.version, version);
            assert_eq!(seen.headers["x-forwarded-proto"], "https");
            let name = format!("localhost:{}", upstream.address.port());
            if version == http::Version::HTTP_2 {
                assert_eq!(seen.target, format!("https://{name}/base/things"));
                assert!(!seen.headers.contains_key("host"));
            } else {
                assert_eq!(
                    (seen.target.as_str(), seen.headers["host"].to_str().unwrap()),
                    ("/base/things", &*name)
                );
            }
            let own = CertificateDer::from_pem_slice(mutual.cert.as_bytes()).unwrap();
            assert_eq!(seen.certificate.as_ref(), Some(&own));
        }
        wait::until("the finishes", || {
            (home.query("SELECT CAST(state AS TEXT) FROM entry") == ["5", "5"]).then_some(())
        });
    }
}

#[test]
fn curl_speaks_http_2_and_http_1_through_tls() {
    let authority = Authority::new();
    let upstream = Upstream::start(|_| Act::json(200, r#"{"id":1}"#));
    let home = home(upstream.address);
    let settings = tls(&home, &authority.pair(&["proxy.test"]), None);
    let process = home.start_configured(&settings);
    let ca = home.file("ca.pem", &authority.pem);
    for (flag, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let port = process.data.port();
        let output = Command::new("curl")
            .args(["--silent", "--show-error", flag, "--cacert", shown(&ca)])
            .args(["--resolve", &format!("proxy.test:{port}:127.0.0.1")])
            .args(["--write-out", " %{http_version} %{http_code}"])
            .arg(format!("https://proxy.test:{port}/things"))
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(told, format!("{{\"id\":1}} {version} 200"), "{output:?}");
    }
}

#[test]
fn an_upstream_that_nothing_vouches_for_is_not_sent_to() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let upstream = secure::Upstream::start(&stranger.pair(&["localhost"]), None, &["h2"]);
    let mut home = home(upstream.address);
    home.upstream = format!("https://localhost:{}", upstream.address.port());
    let ca = home.file("ca.pem", &authority.pem);
    let process = home.start_configured(&format!("upstream: {{ ca_file: {} }}\n", shown(&ca)));

    let answer = process.agent().post("/things", &[CONFIRM], "{}");

    assert_eq!((answer.status, &*answer.code()), (502, "not_sent"));
    wait::until("the finish", || {
        (home.query("SELECT cause FROM entry") == ["not_sent"]).then_some(())
    });
    assert!(upstream.seen().is_empty());
    let errors = "takeback_upstream_connect_errors_total{reason=\"tls\"}";
    assert_eq!(metric(&process, errors), Some(1.0));
    // The name in the certificate is checked too; `server_name` says which one it is.
    let upstream = secure::Upstream::start(&authority.pair(&["inner.test"]), None, &["h2"]);
    let mut home = self::home(upstream.address);
    home.upstream = format!("https://localhost:{}", upstream.address.port());
    let ca = home.file("ca.pem", &authority.pem);
    let wrong = format!("upstream: {{ ca_file: {} }}\n", shown(&ca));
    let right = format!("upstream: {{ ca_file: {}, server_name: inner.test }}\n", shown(&ca));
    for (settings, status) in [(wrong, 502), (right, 201)] {
        let mut process = home.start_configured(&settings);
        assert_eq!(process.agent().get("/things").status, status);
        process.kill();
    }
}

#[test]
fn what_is_wrong_with_tls_at_the_start_is_said_with_its_setting_and_what_to_do() {
    let authority = Authority::new();
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let home = home(upstream.address);
    let pair = authority.pair(&["proxy.test"]);
    let old = authority.pair_with(&["proxy.test"], |params| {
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    let other = authority.pair(&["proxy.test"]);
    let mismatched = Pair { cert: pair.cert.clone(), key: other.key };
    let table = [
        (tls(&home, &old, None), "`tls.cert_file`: the certificate in", "has expired"),
        (
            "tls: { cert_file: none.pem, key_file: none.key }\n".to_owned(),
            "`tls.cert_file`: ",
            "none.pem cannot be read",
        ),
        (
            "tls: { cert_file: server.pem }\n".to_owned(),
            "`tls.cert_file` is given without `tls.key_file`",
            "go together",
        ),
        (
            "upstream: { server_name: a }\n".to_owned(),
            "`upstream.server_name` is for an https:// upstream",
            "https:// URL",
        ),
        (
            "principal: { mtls: spiffe }\n".to_owned(),
            "`principal.mtls` needs verified client certificates",
            "tls.client_ca_file",
        ),
        (
            "principal: { headers: { name: X-Agent } }\n".to_owned(),
            "`principal.headers.name` is given without `principal.headers.from`",
            "every caller can send a header",
        ),
        (
            "principal: { jwt: { issuer: https://idp, jwks_file: x } }\n".to_owned(),
            "`principal.jwt` needs an issuer and an audience",
            "no proof here",
        ),
    ];
    for (settings, what, help) in table {
        let (code, told) = home.fails_configured(&settings);
        assert_eq!(code, Some(78), "{told}");
        assert!(told.contains(what) && told.contains(help), "{told}");
        assert!(told.contains("takeback.yaml:1:"), "{told}");
    }
    let (_, told) = home.fails_configured(&tls(&home, &mismatched, None));
    assert!(told.contains("`tls.key_file`: the key in"), "{told}");
    assert!(!told.contains("PRIVATE") && !told.contains("MII"), "{told}");
}

#[test]
fn a_certificate_that_is_swapped_is_shown_and_one_that_is_wrong_is_not() {
    let authority = Authority::new();
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let home = home(upstream.address);
    let first = authority.pair(&["proxy.test"]);
    let folder = home.file("secret/.keep", "").parent().unwrap().to_owned();
    let files = |pair: &Pair| [("tls.crt", pair.cert.clone()), ("tls.key", pair.key.clone())];
    let mut mounted = {
        let [(_, cert), (_, key)] = &files(&first);
        Mounted::new(folder.clone(), &[("tls.crt", cert), ("tls.key", key)])
    };
    let process = home.start_configured(&format!(
        "tls: {{ cert_file: {0}/tls.crt, key_file: {0}/tls.key }}\n",
        shown(&folder)
    ));
    let client = Client::new(&authority.pem, None, &["http/1.1"]);
    let certificate = |pair: &Pair| CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap();
    let get = || call(&process, &client, "GET", "").expect("no call fails");
    assert_eq!(get().shown, certificate(&first));

    let second = authority.pair(&["proxy.test"]);
    mounted.swap(&[("tls.crt", &second.cert), ("tls.key", &second.key)]);
    wait::until("the second certificate", || (get().shown == certificate(&second)).then_some(()));

    let old = authority.pair_with(&["proxy.test"], |params| {
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    mounted.swap(&[("tls.crt", &old.cert), ("tls.key", &old.key)]);
    let rejected = "takeback_file_reloads_total{file=\"server_certificate\",result=\"rejected\"}";
    wait::until("the refusal", || (metric(&process, rejected) == Some(1.0)).then_some(()));
    assert_eq!(get().shown, certificate(&second));
    assert!(home.log().contains("file_rejected") && home.log().contains("has expired"));

    let third = authority.pair(&["proxy.test"]);
    mounted.swap(&[("tls.crt", &third.cert), ("tls.key", &third.key)]);
    wait::until("the third certificate", || (get().shown == certificate(&third)).then_some(()));
    let expiry = "takeback_certificate_expiry_timestamp_seconds{certificate=\"server\"}";
    assert!(metric(&process, expiry).unwrap() > 1_700_000_000.0);
    let applied = "takeback_file_reloads_total{file=\"server_certificate\",result=\"applied\"}";
    assert_eq!(metric(&process, applied), Some(2.0));
}

#[test]
fn the_gateways_credential_replaces_the_agents_and_follows_its_file() {
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let home = home(upstream.address);
    let path = home.file("headers", "Authorization: Bearer one\n");
    let process =
        home.start_configured(&format!("upstream: {{ headers_file: {} }}\n", shown(&path)));
    let mut agent = process.agent();
    let mut get = || {
        assert_eq!(
            agent.call("GET", "/things", &[("authorization", "Bearer agent")], "").status,
            200
        );
        let last = upstream.last();
        let sent: Vec<_> =
            last.headers.iter().filter(|(name, _)| name == "authorization").cloned().collect();
        assert_eq!(sent.len(), 1, "replaced, not doubled");
        sent[0].1.clone()
    };
    assert_eq!(get(), "Bearer one");

    home.file("headers", "Authorization: Bearer two\n");
    wait::until("the new credential", || (get() == "Bearer two").then_some(()));

    home.file("headers", "Authorization Bearer three\n");
    wait::until("the refusal", || home.log().contains("file_rejected").then_some(()));
    assert_eq!(get(), "Bearer two");
    assert!(home.log().contains("line 1: this line is no header"));
    assert!(!home.log().contains("three"));
}

#[test]
fn mcp_49_a_client_certificate_is_the_principal() {
    let authority = Authority::new();
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = home(upstream.address);
    let settings = tls(&home, &authority.pair(&["proxy.test"]), Some(&authority.pem));
    let process = home.start_configured(&format!("{settings}principal: {{ mtls: spiffe }}\n"));
    let agent = authority.pair(&["spiffe://mesh/agent"]);
    let renewed = authority.pair(&["spiffe://mesh/agent"]);
    let unnamed = authority.pair(&["agent.test"]);
    let client = |own| Client::new(&authority.pem, own, &["h2"]);

    assert!(call(&process, &client(None), "POST", "{}").is_none(), "no certificate, no connection");
    let nobody = call(&process, &client(Some(&unnamed)), "POST", "{}").unwrap();
    assert_eq!(nobody.status, 401);
    assert_eq!(nobody.headers["www-authenticate"], "Bearer");
    assert!(nobody.body.contains("\"unauthenticated\""), "{}", nobody.body);
    assert!(upstream.received().is_empty());
    for (own, body) in [(&agent, r#"{"a":1}"#), (&renewed, r#"{"a":2}"#)] {
        assert_eq!(call(&process, &client(Some(own)), "POST", body).unwrap().status, 201);
    }

    assert_eq!(principals(&home), ["mtls:spiffe://mesh/agent"]);
}

/// A signer of tokens, and its key set.
struct Issuer {
    key: Ed25519KeyPair,
    kid: &'static str,
}

impl Issuer {
    fn new(kid: &'static str) -> Self {
        Self { key: Ed25519KeyPair::generate().unwrap(), kid }
    }

    fn set(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.key.public_key());
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": self.kid, "x": x}]}).to_string()
    }

    fn bearer(&self, sub: &str, more: &Value) -> String {
        let mut claims =
            json!({"iss": "https://idp", "aud": "takeback", "sub": sub, "exp": 4_000_000_000_u64});
        for (name, value) in more.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let header = json!({"alg": "EdDSA", "kid": self.kid}).to_string();
        let signed =
            [header, claims.to_string()].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        let signature = URL_SAFE_NO_PAD.encode(self.key.sign(signed.as_bytes()));
        format!("Bearer {signed}.{signature}")
    }
}

#[test]
fn mcp_49_a_token_is_the_principal_and_an_invalid_one_is_refused_with_nothing_sent() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = home(upstream.address);
    let issuer = Issuer::new("one");
    let path = home.file("jwks.json", issuer.set());
    let process = home.start_configured(&format!(
        "principal: {{ jwt: {{ issuer: \"https://idp\", audience: [takeback], jwks_file: {}, \
         required: true }} }}\n",
        shown(&path)
    ));
    let mut agent = process.agent();
    let mut write = |bearer: &str, body: &str| {
        agent.post("/things", &[CONFIRM, ("authorization", bearer)], body)
    };

    let none = json!({});
    for (sub, body) in [("a", r#"{"n":1}"#), ("b", r#"{"n":2}"#), ("a", r#"{"n":3}"#)] {
        let more = json!({"iat": body.len()});
        assert_eq!(write(&issuer.bearer(sub, &more), body).status, 201);
    }
    assert_eq!(principals(&home), ["jwt:https:%2F%2Fidp/a", "jwt:https:%2F%2Fidp/b"]);
    let sent = upstream.received().len();
    let stranger = Issuer::new("one");
    let unknown = Issuer::new("two");
    for (bearer, what) in [
        (stranger.bearer("a", &none), "signature"),
        (unknown.bearer("a", &none), "names a key"),
        (issuer.bearer("a", &json!({"exp": 1_000_000})), "expired"),
        (issuer.bearer("a", &json!({"aud": "other"})), "audience"),
        (issuer.bearer("a", &json!({"iss": "https://other"})), "issuer"),
        ("Basic YTpi".to_owned(), "bearer token is required"),
    ] {
        let refused = write(&bearer, "{}");
        assert_eq!((refused.status, &*refused.code()), (401, "unauthenticated"));
        assert!(refused.text().contains(what), "{}", refused.text());
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(upstream.received().len(), sent);
    home.file("jwks.json", unknown.set());
    wait::until("the new keys", || {
        let answer = write(&unknown.bearer("c", &none), r#"{"n":4}"#);
        (answer.status == 201).then_some(())
    });
    assert_eq!(write(&issuer.bearer("a", &none), "{}").status, 401, "its key is gone");
}

#[test]
fn keys_of_a_url_are_fetched_at_the_start_and_for_a_key_that_is_not_known() {
    let (first, second) = (Issuer::new("one"), Issuer::new("two"));
    let sets = [first.set(), second.set()];
    let is_changed = Arc::new(AtomicBool::new(false));
    let changed = Arc::clone(&is_changed);
    let publisher = Upstream::start(move |_| {
        Act::json(200, &sets[usize::from(changed.load(Ordering::Relaxed))])
    });
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let home = home(upstream.address);
    let process = home.start_configured(&format!(
        "principal: {{ jwt: {{ issuer: \"https://idp\", audience: [takeback], jwks_url: \
         \"http://{}/keys\", required: true }} }}\n",
        publisher.address
    ));
    let none = json!({});
    let mut agent = process.agent();
    let mut get = |issuer: &Issuer| {
        let bearer = issuer.bearer("a", &none);
        agent.call("GET", "/things", &[("authorization", &bearer)], "").status
    };

    let applied = "takeback_file_reloads_total{file=\"token_keys\",result=\"applied\"}";
    wait::until("the first keys", || (metric(&process, applied) == Some(1.0)).then_some(()));
    assert_eq!(get(&first), 201);
    assert_eq!(publisher.only().target, "/keys");
    is_changed.store(true, Ordering::Relaxed);
    assert_eq!(get(&second), 201, "the call waited for the keys that it needed");
    assert_eq!(get(&first), 401, "a key that is gone is not asked for again within the floor");
    assert_eq!(publisher.received().len(), 2);
}

#[test]
fn h_6_mcp_49_a_header_is_believed_from_listed_peers_only() {
    let upstream = Upstream::start(|_| Act::json(201, "{}"));
    let chain = [
        ("x-agent-id", "agent-7"),
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "public.test"),
        ("forwarded", "for=203.0.113.9;proto=https"),
    ];
    let started = |from: &str| {
        let home = home(upstream.address);
        let settings =
            format!("principal: {{ headers: {{ name: X-Agent-Id, from: [{from}] }} }}\n");
        let process = home.start_configured(&settings);
        let headers: Vec<_> = chain.into_iter().chain([CONFIRM]).collect();
        assert_eq!(process.agent().post("/things", &headers, "{}").status, 201);
        (principals(&home), upstream.last())
    };

    let (names, sent) = started("127.0.0.0/8");
    assert_eq!(names, ["header:agent-7"]);
    assert_eq!(sent.header("x-agent-id"), Some("agent-7"));
    assert_eq!(sent.header("x-forwarded-for"), Some("203.0.113.9, 127.0.0.1"));
    assert_eq!(sent.header("x-forwarded-proto"), Some("https"));
    assert_eq!(sent.header("x-forwarded-host"), Some("public.test"));
    assert_eq!(sent.header("forwarded"), Some("for=203.0.113.9;proto=https, for=127.0.0.1"));

    let (names, sent) = started("10.0.0.0/8");
    assert_eq!(names, ["anonymous"]);
    assert_eq!(sent.header("x-agent-id"), None);
    assert_eq!(sent.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(sent.header("x-forwarded-proto"), Some("http"));
    assert_eq!(sent.header("x-forwarded-host"), Some("proxy"));
    assert_eq!(sent.header("forwarded"), None);
}

#[test]
fn the_admin_api_on_a_network_speaks_tls_and_asks_for_the_certificate_and_the_token() {
    let authority = Authority::new();
    let upstream = Upstream::start(|_| Act::json(200, "{}"));
    let home = home(upstream.address);
    let token = "operator-0123456789-0123456789-012345";
    let tokens = home.file("tokens", format!("o operate {token}\n"));
    let server = authority.pair(&["admin.test"]);
    let cert = home.file("admin.pem", &server.cert);
    let key = home.file("admin.key", &server.key);
    let ca = home.file("ca.pem", &authority.pem);
    let client = authority.pair(&["console.test"]);
    let client_cert = home.file("console.pem", &client.cert);
    let client_key = home.file("console.key", &client.key);
    let port = std::net::TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    let _process = home.start_configured(&format!(
        "admin_listen: 0.0.0.0:{port}\nadmin: {{ tokens_file: {}, cert_file: {}, key_file: {}, \
         client_ca_file: {} }}\n",
        shown(&tokens),
        shown(&cert),
        shown(&key),
        shown(&ca)
    ));
    let curl = |scheme: &str, more: &[&str]| {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--cacert", shown(&ca)])
            .args(["--resolve", &format!("admin.test:{port}:127.0.0.1")])
            .args(["--write-out", " %{http_version} %{http_code}", "--output"])
            .arg(home.folder().join("answer"))
            .args(more)
            .arg(format!("{scheme}://admin.test:{port}/api/v1/policy"))
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.success(), told)
    };
    let bearer = format!("authorization: Bearer {token}");
    let pair = ["--cert", shown(&client_cert), "--key", shown(&client_key)];
    let with_token = ["--header", bearer.as_str()];

    assert_eq!(curl("https", &[pair.as_slice(), &with_token].concat()), (true, "1.1 200".into()));
    assert_eq!(curl("https", &pair), (true, "1.1 401".into()), "a certificate is no token");
    assert!(!curl("https", &with_token).0, "a token is no certificate");
    assert!(!curl("http", &[pair.as_slice(), &with_token].concat()).0, "nothing in clear");
    let page = "origin: https://evil.example";
    let from_page = [pair.as_slice(), &with_token, &["--header", page]].concat();
    assert_eq!(curl("https", &from_page), (true, "1.1 403".into()));
}
