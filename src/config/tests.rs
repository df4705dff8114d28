use super::*;

const UPSTREAM: (&str, &str) = ("upstream.url", "http://127.0.0.1:9000");
const POLICIES: (&str, &str) = ("policies", "p");

fn file(text: &str) -> Sources {
    Sources {
        file: Some((PathBuf::from("etc/takeback.yaml"), text.to_owned())),
        ..Sources::default()
    }
}

fn with_required(mut sources: Sources) -> Sources {
    sources.flags.extend(Sources::of(&[UPSTREAM, POLICIES]).flags);
    sources
}

fn faults(sources: Sources) -> String {
    Config::load(sources).unwrap_err().to_string()
}

#[test]
fn defaults_are_those_of_the_contract() {
    let config = Config::load(Sources::of(&[UPSTREAM, POLICIES])).unwrap();

    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.telemetry_listen.to_string(), "127.0.0.1:9464");
    assert_eq!(config.ledger.file(), Some(Path::new("takeback-data/ledger.db")));
    assert_eq!(config.admin_listen, Path::new("takeback-data/ledger.db.sock"));
    assert_eq!(config.mcp.paths, ["/mcp"]);
    assert_eq!(config.mode, Mode::Enforce);
    assert_eq!(config.report_header, "x-anvil-effect");
    assert_eq!(config.limits.request_body_bytes, 4 * 1024 * 1024);
    assert_eq!(config.upstream.authority.to_string(), "127.0.0.1:9000");
    assert_eq!(config.upstream.base, "");
    assert!(config.warnings.is_empty());
}

#[test]
fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
    let mut sources = with_required(file(
        "listen: 127.0.0.1:1\ntelemetry_listen: 127.0.0.1:1\nadmin_listen: a.sock\n",
    ));
    sources.flags.push(("listen", "--listen", "127.0.0.1:3".to_owned()));
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    sources.environment = vec![
        variable("TAKEBACK_LISTEN", "127.0.0.1:2"),
        variable("TAKEBACK_TELEMETRY_LISTEN", "127.0.0.1:2"),
        variable("TAKEBACK_MCP_PATHS", "/a, /b"),
        variable("TAKEBACK_LIMITS_INFLIGHT", "7"),
        variable("HOME", "/root"),
    ];

    let config = Config::load(sources).unwrap();

    assert_eq!(config.listen.port(), 3);
    assert_eq!(config.telemetry_listen.port(), 2);
    assert_eq!(config.admin_listen, Path::new("etc/a.sock"));
    assert_eq!(config.mcp.paths, ["/a", "/b"]);
    assert_eq!(config.limits.inflight, 7);
}

#[test]
fn every_fault_is_told_at_once_with_its_place_and_what_to_do() {
    let text = "listne: 127.0.0.1:1\n\
                timeouts:\n  connect_ms: 9000\n  conect_ms: 1\n\
                limits: 5\n\
                mode: strict\n\
                tls: { cert_file: a }\n\
                upstream:\n  url: https://gateway.example\n";

    let faults = faults(file(text));

    for (place, words) in [
        ("etc/takeback.yaml:1:1:", "did you mean `listen`?"),
        ("etc/takeback.yaml:3:3:", "from 1 to 4500"),
        ("etc/takeback.yaml:4:3:", "did you mean `timeouts.connect_ms`?"),
        ("etc/takeback.yaml:5:1:", "its members are inflight"),
        ("etc/takeback.yaml:6:1:", "give `enforce` or `observe`"),
        ("configuration:", "no policies are given"),
    ] {
        assert!(faults.contains(place), "{place} is not in:\n{faults}");
        assert!(faults.contains(words), "{words} is not in:\n{faults}");
    }
}

#[test]
fn a_network_address_of_the_admin_api_and_its_tokens_need_each_other() {
    let both = file("admin_listen: 127.0.0.1:9000\nadmin: { tokens_file: tokens }");
    let config = Config::load(with_required(both)).unwrap();
    let network = config.admin_network.unwrap();
    assert_eq!(network.address.to_string(), "127.0.0.1:9000");
    assert_eq!(network.tokens_file, Path::new("etc/tokens"));
    assert!(config.admin_listen.to_str().unwrap().ends_with(".sock"), "the socket stays");

    for (text, words) in [
        ("admin_listen: 127.0.0.1:9000", "there are no tokens"),
        ("admin: { tokens_file: tokens }", "is no network address"),
        ("admin_listen: 10.0.0.1:9000\nadmin: { tokens_file: tokens }", "tokens would go over"),
        ("admin: { cert_file: c, key_file: k }", "is no network address"),
        ("admin: { cert_file: c }", "`admin.key_file`"),
        ("admin: { client_ca_file: c }", "is given without a certificate"),
    ] {
        let faults = faults(with_required(file(text)));
        assert!(faults.contains(words), "{text}: {faults}");
        assert!(faults.contains("etc/takeback.yaml:1:"), "{text}: {faults}");
    }
}

#[test]
fn an_upstream_is_an_http_address_with_an_optional_base_path() {
    let table = [
        ("http://gw", Some(("gw:80", "gw", ""))),
        ("http://GW:81/", Some(("gw:81", "gw:81", ""))),
        ("http://[::1]/api/v1/", Some(("[::1]:80", "[::1]", "/api/v1"))),
        ("http://[::1]:82/a", Some(("[::1]:82", "[::1]:82", "/a"))),
        ("gw:81", None),
        ("http://", None),
        ("http://gw:0", None),
        ("http://gw/a/../b", None),
        ("http://gw/a//b", None),
        ("http://gw/a?b", None),
        ("http://gw/a b", None),
    ];
    for (text, right) in table {
        let got = Config::load(Sources::of(&[("upstream.url", text), POLICIES]))
            .ok()
            .map(|c| (c.upstream.authority.to_string(), c.upstream.host.clone(), c.upstream.base));
        let right = right.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(got, right, "{text}");
    }
}

#[test]
fn a_password_in_the_upstreams_address_is_refused_and_not_repeated() {
    let faults = faults(Sources::of(&[("upstream.url", "http://u:hunter2@gw"), POLICIES]));
    assert!(faults.contains("upstream.headers_file"), "{faults}");
    assert!(!faults.contains("hunter2"), "{faults}");
}

#[test]
fn upstream_headers_come_from_their_file_and_are_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("headers");
    std::fs::write(&path, "# the gateway's\nAuthorization: Bearer hunter2\n\nX-Team:  a \n")
        .unwrap();
    let path = path.to_str().unwrap();

    let settings = [UPSTREAM, POLICIES, ("upstream.headers_file", path)];
    let config = Config::load(Sources::of(&settings)).unwrap();

    let injected = config.upstream.headers.as_ref().unwrap().value.clone();
    let lines = injected.load().unwrap();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0].1, "Bearer hunter2");
    assert_eq!(lines[1].1, "a");
    assert!(!format!("{lines:?}").contains("hunter2"));
    assert!(!format!("{config:?}").contains("hunter2"));

    std::fs::write(path, "Authorization Bearer hunter2\nHost: gw\nX-A: 1\nx-a: 2\n").unwrap();
    let faults = faults(Sources::of(&settings));
    assert!(faults.contains("headers:1:1: this line is no header"), "{faults}");
    assert!(faults.contains("headers:2:1: `host` is set by the proxy"), "{faults}");
    assert!(faults.contains("headers:4:1: `x-a` is given twice"), "{faults}");
    assert!(!faults.contains("hunter2"), "{faults}");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let table = [
        (&[("drain.min_ms", "10"), ("drain.grace_ms", "9")][..], "less than `drain.min_ms`"),
        (&[("limits.body_budget_bytes", "2048")][..], "less than one body may have"),
        (&[("mcp.paths", "mcp")][..], "`mcp.paths` holds `mcp`"),
        (&[("mcp.allow_methods", "tools/call")][..], "`mcp.allow_methods` holds"),
        (&[("mcp.reports", "meta")][..], "give `replace`, `trust` or `ignore`"),
        (&[("mcp.call_route", "true")][..], "give `bridge` or `forward`"),
        (&[("mcp.trust_annotations", "yes")][..], "give `true` or `false`"),
        (&[("report_header", "Host")][..], "has a meaning of its own"),
        (&[("listen", "8080")][..], "`listen` is `8080`"),
        (&[("limits.workers", "0")][..], "`limits.workers` is `0`"),
        (&[("listen", "127.0.0.1:1"), ("listen", "127.0.0.1:2")][..], "`listen` is given twice"),
    ];
    for (settings, words) in table {
        let faults = faults(with_required(Sources::of(settings)));
        assert!(faults.contains(words), "{settings:?}: {faults}");
    }
}

#[test]
fn an_unknown_variable_is_a_warning_and_one_of_kubernetes_is_nothing() {
    let mut sources = Sources::of(&[UPSTREAM, POLICIES]);
    let names = ["TAKEBACK_LISTN", "TAKEBACK_PORT", "TAKEBACK_SERVICE_HOST", "TAKEBACK_LOG"];
    sources.environment = names.map(|name| (name.to_owned(), "x".to_owned())).to_vec();

    let config = Config::load(sources).unwrap();

    assert_eq!(config.warnings, ["TAKEBACK_LISTN is not a setting; did you mean TAKEBACK_LISTEN?"]);
}

#[test]
fn every_setting_has_a_variable_and_is_read() {
    let values = [
        ("listen", "127.0.0.1:1"),
        ("telemetry_listen", "127.0.0.1:1"),
        ("admin_listen", "/s"),
        UPSTREAM,
        POLICIES,
        ("ledger", "/l"),
        ("mcp.paths", "/m"),
        ("mcp.allow_methods", "a/b"),
        ("mcp.trust_annotations", "true"),
        ("mcp.reports", "trust"),
        ("mcp.call_route", "forward"),
        ("mode", "observe"),
        ("report_header", "X-R"),
    ];
    for member in MEMBERS {
        let known = values.iter().find(|(name, _)| name == member);
        // A value that cannot be right for a setting that is read is a fault that names it.
        let wrong = with_required(Sources {
            environment: vec![(given::variable(member), "\u{1}".to_owned())],
            ..Sources::default()
        });
        if known.is_none() {
            let faults = faults(wrong);
            let place = given::variable(member);
            assert!(faults.contains(&place), "{member}: {faults}");
        }
    }
    let config = Config::load(Sources::of(&values)).unwrap();
    assert_eq!((config.ledger.file(), config.mode), (Some(Path::new("/l")), Mode::Observe));
    assert_eq!(config.admin_listen, Path::new("/s"));
    assert_eq!(config.mcp.allow_methods, ["a/b"]);
    assert!(config.mcp.trust_annotations);
    assert_eq!(config.mcp.reports, Reports::Trust);
    assert_eq!(config.mcp.call_route, CallRoute::Forward);
}

#[test]
fn the_other_commands_need_only_the_places() {
    let places = Places::load(file("ledger: data/l.db\nupstream: { url: http://gw }\n")).unwrap();
    assert_eq!(places.ledger.file(), Some(Path::new("etc/data/l.db")));
    assert_eq!(places.admin_listen, Path::new("etc/data/l.db.sock"));

    let long = "x".repeat(200);
    let faults = Places::load(Sources::of(&[("ledger", &long)])).unwrap_err().to_string();
    assert!(faults.contains("give a shorter `admin_listen`"), "{faults}");
}

#[test]
fn a_ledger_in_a_database_is_read_with_its_password_and_never_shown_with_it() {
    let environment = vec![
        ("TAKEBACK_LEDGER".to_owned(), "postgres://ann@db.example/takeback".to_owned()),
        (PASSWORD.to_owned(), "s3cret".to_owned()),
    ];
    let config =
        Config::load(with_required(Sources { environment, ..Sources::default() })).unwrap();
    assert_eq!(config.ledger.to_string(), "postgres://ann@db.example:5432/takeback");
    assert_eq!(config.admin_listen, Path::new("takeback-data/admin.sock"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert!(!format!("{config:?}").contains("s3cret"));

    let plain = "ledger: \"postgres://ann:s3cret@db.example/l?sslmode=disable\"";
    let faults = faults(with_required(file(plain)));
    assert!(faults.contains("in plain text"), "{faults}");
    assert!(!faults.contains("s3cret"), "{faults}");
}
