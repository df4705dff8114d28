//! The sidecar's own configuration: static, read once, checked whole.
//!
//! A setting comes from a flag, else from its `TAKEBACK_*` variable, else from the file
//! (`--config`), else it has a default. The list of settings is closed ([`MEMBERS`]): an unknown one
//! in the file is an error that names the nearest known one. All errors are told at once, each with
//! where it is and what to do. What calls may do is not here but in the policy files.
//!
//! ```yaml
//! listen: 127.0.0.1:8080
//! upstream: { url: "http://127.0.0.1:9000/api", headers_file: /etc/takeback/upstream-headers }
//! policies: /etc/takeback/policies
//! ledger: /var/lib/takeback/ledger.db
//! ```

pub mod callers;
mod given;
mod integrity;
pub mod secure;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, header};

use crate::contract::class::Mode;
use crate::contract::json::MAX_TEXT;
use crate::http::headers as own_headers;
use crate::http::injected::{Injected, NOT_TO_GIVE};
use crate::http::target::oddity;
use crate::ledger::{Address, Keys, Place};
use crate::mcp::answer::Reports;
use crate::pipeline::CallRoute;
use crate::tls::{ClientTls, ServerTls};
use crate::upstream::{Authority, Protocol};

use callers::PrincipalConfig;
pub use given::{ConfigError, ConfigErrors, MEMBERS, Origin, PASSWORD, Sources};
use given::{Reader, shown};
pub use integrity::ledger_keys;
use secure::Loaded;
pub use secure::headers_file;

/// The longest path of a Unix socket that Linux takes, in bytes; short of 108 by the end mark and
/// the suffix under which it is made.
const MAX_SOCKET_PATH: usize = 100;

/// A sidecar's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where agents connect. Default `127.0.0.1:8080`: loopback, so that nothing is exposed unasked.
    pub listen: SocketAddr,
    /// Where probes and metrics are read. Default `127.0.0.1:9464`, the port that OpenTelemetry's
    /// Prometheus exporters use.
    pub telemetry_listen: SocketAddr,
    /// The Unix socket of the admin API. Default: the ledger's path and `.sock`, so that whoever may
    /// read the ledger finds it, and nobody else reaches it. With a database for a ledger it is
    /// `takeback-data/admin.sock`.
    pub admin_listen: PathBuf,
    /// Where the admin API is on the network too: `admin_listen` with an address. Default: nowhere.
    pub admin_network: Option<AdminNetwork>,
    /// The gateway.
    pub upstream: UpstreamConfig,
    /// TLS on the data port. Default none: on loopback there is nothing to protect it from.
    pub tls: Option<Loaded<Arc<ServerTls>>>,
    /// What says who calls, beside the credentials. Default nothing: principals are weak.
    pub principal: PrincipalConfig,
    /// The folder of policy files. No default: nothing is served under no policy.
    pub policies: PathBuf,
    /// The ledger: a file, or the URL of a PostgreSQL database. Default `takeback-data/ledger.db` in
    /// the working directory: a folder of its own, because three more files and the socket lie beside
    /// it. The password of a database may stand in `PGPASSWORD`.
    pub ledger: Place,
    /// The keys of the chain over the ledger's history, out of `ledger_mac_key_file`. Default: none,
    /// so that the chain shows accidents, and not one who can write the ledger.
    pub ledger_keys: Keys,
    /// How long what calls and answers held is kept in the ledger after a call. Default: for ever,
    /// because nobody but the operator can say when it is no longer evidence.
    pub ledger_retention: Option<Duration>,
    /// MCP.
    pub mcp: McpConfig,
    /// Whether the rules stop calls. Default `enforce`.
    pub mode: Mode,
    /// The header that carries the report. Default `X-Anvil-Effect`, ADR-0030's.
    pub report_header: HeaderName,
    /// Limits.
    pub limits: LimitsConfig,
    /// Clocks.
    pub timeouts: TimeoutsConfig,
    /// The end.
    pub drain: DrainConfig,
    /// Whether a finding of level error in a policy refuses the start. Default `false`: that
    /// operation is served degraded. Only by the flag `--strict`.
    pub is_strict: bool,
    /// What was odd, and no error.
    pub warnings: Vec<String>,
    /// Where all this came from, to be compared with later.
    pub source: Source,
}

/// The admin API on a network address, beside its socket.
#[derive(Clone, Debug)]
pub struct AdminNetwork {
    /// Where it listens.
    pub address: SocketAddr,
    /// The certificate; always there where other hosts reach the address.
    pub tls: Option<Loaded<Arc<ServerTls>>>,
    /// Who may ask: lines of a name, a role (`read`, `operate`) and a token.
    pub tokens_file: PathBuf,
}

/// The gateway that calls are forwarded to.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// Where it is.
    pub authority: Authority,
    /// The value of `Host`: the authority as it was written.
    pub host: String,
    /// The path under which its own paths lie; empty, or without a trailing slash.
    pub base: String,
    /// How it is spoken to. By its URL: `http`, `https`, or `h2c` for plain HTTP/2.
    pub protocol: Protocol,
    /// The files behind the certificates, for `https`. Default: the system's roots, the URL's host as
    /// the name, no client certificate.
    pub tls: Option<Loaded<Arc<ClientTls>>>,
    /// Headers that every request to it carries. Default none.
    pub headers: Option<Loaded<Injected>>,
}

/// Where and how MCP is spoken.
#[derive(Clone, Debug)]
pub struct McpConfig {
    /// Paths that speak MCP, exact. Default `/mcp`. It is never guessed from a body.
    pub paths: Vec<String>,
    /// Methods beside the protocol's own that pass. Default none: an unknown method could run a
    /// tool under another name.
    pub allow_methods: Vec<String>,
    /// `readOnlyHint: true` of the upstream makes an undeclared tool a read. Default false.
    pub trust_annotations: bool,
    /// What becomes of the reports that the upstream sends. Default `replace`.
    pub reports: Reports,
    /// Who serves `POST /call/<tool>`. Default `bridge`: we do, while the policy declares a tool.
    pub call_route: CallRoute,
}

/// What one sidecar may take at once.
#[derive(Clone, Copy, Debug)]
pub struct LimitsConfig {
    /// Calls in flight. Default 1024: as many as the ledger's queue, and 1024 × 64 KiB of heads is
    /// what a small pod has.
    pub inflight: usize,
    /// Connections. Default 1024; more wait in the kernel.
    pub connections: usize,
    /// The longest request body that is read, in bytes. Default 4 MiB.
    pub request_body_bytes: usize,
    /// The longest answer that is read to be settled, in bytes. Default 4 MiB; a longer one passes.
    pub response_body_bytes: usize,
    /// What all bodies that are held may take together, in bytes. Default 256 MiB: 1024 calls of
    /// 4 MiB each would be 4 GiB.
    pub body_budget_bytes: usize,
    /// Worker threads. Default: the processors that this process may use.
    pub workers: NonZeroUsize,
}

/// Clocks; those of the upstream can be changed by operation.
#[derive(Clone, Copy, Debug)]
pub struct TimeoutsConfig {
    /// Until a connection to the upstream stands. Default 3000 ms, at most 4500: a write whose first
    /// byte is not out 5 s after its begin counts as not sent.
    pub connect: Duration,
    /// From the request's end to the answer's head. Default 60000 ms, as nginx waits.
    pub head: Duration,
    /// Between two pieces of an answer. Default 60000 ms.
    pub idle: Duration,
    /// The whole call. Default 300000 ms: a lookup that finds nothing counts only after it.
    pub total: Duration,
    /// How long after an outcome became unknown its lookup is first made; later ones come after twice
    /// that and so on, up to an hour. Default 5000 ms: most upstreams show an effect by then.
    pub lookup: Duration,
    /// From the first byte of a request's head to its last. Default 10000 ms.
    pub request_head: Duration,
    /// Between two pieces of a request's body. Default 30000 ms.
    pub request_idle: Duration,
    /// How long an agent's connection is kept without a request. Default 75000 ms, above the minute
    /// after which an answer counts as delivered.
    pub keep_alive: Duration,
}

/// How the sidecar ends.
#[derive(Clone, Copy, Debug)]
pub struct DrainConfig {
    /// How long it still takes calls after SIGTERM, while load balancers learn that it goes. Default
    /// 5000 ms. A SIGINT skips it: a person waits.
    pub min: Duration,
    /// From the signal until the rest is cut, `min` included. Default 25000 ms: Kubernetes kills
    /// after 30 s, and the last batch of the ledger needs a part of the rest.
    pub grace: Duration,
}

/// Where the ledger and the admin socket of a sidecar are: what the other commands need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The ledger.
    pub ledger: Place,
    /// The admin socket.
    pub admin_listen: PathBuf,
    /// Where agents connect.
    pub listen: SocketAddr,
}

impl Config {
    /// Reads the configuration out of its sources. Reads the certificates, keys and credentials that
    /// they name too; nothing else of the file system.
    ///
    /// # Errors
    ///
    /// All faults at once.
    pub fn load(sources: Sources) -> Result<Self, ConfigErrors> {
        let mut reader = Reader::new(sources.clone());
        let telemetry = telemetry_listen(&mut reader);
        let places = places(&mut reader);
        let admin_network = admin_network(&mut reader);
        let ledger_keys = integrity::keys(&mut reader);
        let ledger_retention = integrity::retention(&mut reader);
        let upstream = upstream(&mut reader);
        let tls = secure::server(&mut reader);
        let has_client_ca = reader.list("tls.client_ca_file").is_some();
        let principal = callers::principal(&mut reader, has_client_ca);
        let policies = reader.path("policies");
        if policies.is_none() && reader.list("policies").is_none() {
            let help = "give --policies DIR, TAKEBACK_POLICIES or `policies` in the file; \
                        `takeback check DIR` tries one";
            reader.error(Origin::Nowhere, "no policies are given", help);
        }
        let mcp = mcp(&mut reader);
        let mode = reader.read("mode", |text| {
            let help = "give `enforce` or `observe`".to_owned();
            Mode::from_name(text).ok_or_else(|| (format!("is {}", shown(text)), help))
        });
        let report_header = reader.read("report_header", report_header);
        let limits = limits(&mut reader);
        let timeouts = timeouts(&mut reader);
        let drain = drain(&mut reader);
        let (Some(upstream), Some(policies), true) = (upstream, policies, reader.errors.is_empty())
        else {
            return Err(ConfigErrors(reader.errors));
        };
        Ok(Self {
            listen: places.listen,
            telemetry_listen: telemetry,
            admin_listen: places.admin_listen,
            admin_network,
            upstream,
            tls,
            principal,
            policies,
            ledger: places.ledger,
            ledger_keys,
            ledger_retention,
            mcp,
            mode: mode.unwrap_or(Mode::Enforce),
            report_header: report_header.unwrap_or(own_headers::REPORT),
            limits,
            timeouts,
            drain,
            is_strict: false,
            source: Source { given: reader.effective(), sources },
            warnings: reader.warnings,
        })
    }
}

/// Where the settings of a process came from.
#[derive(Clone, Default)]
pub struct Source {
    sources: Sources,
    given: BTreeMap<&'static str, Vec<String>>,
}

impl std::fmt::Debug for Source {
    /// Shows no value: one may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source(..)")
    }
}

impl Source {
    /// The settings that the file gives another value than the process was started with, in the order of
    /// their names. Flags and variables cannot change under a process, and still win over the file. A
    /// file that is named by a setting counts by its name alone, not by what it holds.
    ///
    /// # Errors
    ///
    /// All faults of the settings as they are now: a start would fail with them.
    pub fn changed(&self) -> Result<Vec<&'static str>, ConfigErrors> {
        let Some((path, _)) = &self.sources.file else { return Ok(Vec::new()) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            let message =
                format!("the file of settings {} cannot be read: {error}", path.display());
            ConfigErrors(vec![ConfigError {
                origin: Origin::Nowhere,
                message,
                help: String::new(),
            }])
        })?;
        let sources = Sources { file: Some((path.clone(), text)), ..self.sources.clone() };
        let now = Config::load(sources)?.source.given;
        let names: BTreeSet<&'static str> = self.given.keys().chain(now.keys()).copied().collect();
        Ok(names.into_iter().filter(|name| self.given.get(name) != now.get(name)).collect())
    }
}

/// Where probes are read: what a health check needs; the other settings are not looked at.
///
/// # Errors
///
/// All faults of this setting and of the file.
pub fn telemetry_address(sources: Sources) -> Result<SocketAddr, ConfigErrors> {
    let mut reader = Reader::new(sources);
    let address = telemetry_listen(&mut reader);
    if reader.errors.is_empty() { Ok(address) } else { Err(ConfigErrors(reader.errors)) }
}

fn telemetry_listen(reader: &mut Reader) -> SocketAddr {
    address(reader, "telemetry_listen", SocketAddr::from(([127, 0, 0, 1], 9464)))
}

impl Places {
    /// Where the ledger and the admin socket are; the other settings are not looked at, but the file
    /// is held to the closed list.
    ///
    /// # Errors
    ///
    /// All faults of these two settings and of the file.
    pub fn load(sources: Sources) -> Result<Self, ConfigErrors> {
        let mut reader = Reader::new(sources);
        let places = places(&mut reader);
        if reader.errors.is_empty() { Ok(places) } else { Err(ConfigErrors(reader.errors)) }
    }
}

fn address(reader: &mut Reader, member: &'static str, default: SocketAddr) -> SocketAddr {
    let value = reader.read(member, |text| {
        let help = "give an address and a port, such as 127.0.0.1:8080 or [::1]:8080".to_owned();
        text.parse().map_err(|_| (format!("is {}", shown(text)), help))
    });
    value.unwrap_or(default)
}

fn places(reader: &mut Reader) -> Places {
    let listen = address(reader, "listen", SocketAddr::from(([127, 0, 0, 1], 8080)));
    let ledger = match reader.text("ledger") {
        Some((origin, text)) if Place::is_remote(&text) => {
            match Address::parse(&text, reader.password()) {
                Ok(address) => Some(Place::Postgres(Box::new(address))),
                Err(error) => {
                    reader.error(origin, format!("`ledger` {error}"), error.help());
                    None
                }
            }
        }
        _ => reader.path("ledger").map(Place::File),
    };
    let ledger = ledger.unwrap_or_else(|| Place::File(PathBuf::from("takeback-data/ledger.db")));
    let admin_listen = match reader.text("admin_listen") {
        // It is on the network beside its socket, which the commands use.
        Some((_, text)) if text.parse::<SocketAddr>().is_ok() => None,
        _ => reader.path("admin_listen"),
    };
    let admin_listen = match admin_listen {
        Some(path) => match path.to_str().and_then(|path| path.strip_prefix("unix:")) {
            Some(rest) => PathBuf::from(rest),
            None => path,
        },
        None => match &ledger {
            Place::File(path) => beside(path),
            Place::Postgres(_) => PathBuf::from("takeback-data/admin.sock"),
        },
    };
    if admin_listen.as_os_str().len() > MAX_SOCKET_PATH {
        let origin = reader.list("admin_listen").map_or(Origin::Nowhere, |given| given.origin);
        let what = format!(
            "the admin socket's path has {} bytes; {MAX_SOCKET_PATH} are possible",
            admin_listen.as_os_str().len()
        );
        reader.error(origin, what, "give a shorter `admin_listen`");
    }
    Places { ledger, admin_listen, listen }
}

/// The admin API's network address, which needs tokens; and tokens, which need an address.
fn admin_network(reader: &mut Reader) -> Option<AdminNetwork> {
    let given = reader.text("admin_listen");
    let address = given.as_ref().and_then(|(_, text)| text.parse::<SocketAddr>().ok());
    let tokens_file = reader.path("admin.tokens_file");
    let has_cert = reader.list("admin.cert_file").is_some();
    let tls = secure::admin(reader);
    if let (None, true) = (address, has_cert) {
        let given = reader.list("admin.cert_file");
        let origin = given.map_or(Origin::Nowhere, |given| given.origin);
        let what = "`admin.cert_file` is given, and `admin_listen` is no network address";
        reader.error(origin, what, "give an address such as 0.0.0.0:9465, or remove it");
    }
    match (given, address, tokens_file) {
        (Some((origin, _)), Some(address), _) if !address.ip().is_loopback() && !has_cert => {
            let what = "`admin_listen` is an address that other hosts reach, and there is no \
                        certificate: tokens would go over the network in clear";
            let help = "give `admin.cert_file` and `admin.key_file`, a loopback address, or the \
                        path of a Unix socket";
            reader.error(origin, what, help);
            None
        }
        (Some((origin, _)), Some(_), None) => {
            let what = "`admin_listen` is a network address, which the agent may reach too, and \
                        there are no tokens";
            reader.error(origin, what, "give `admin.tokens_file`, or the path of a Unix socket");
            None
        }
        (_, Some(address), Some(tokens_file)) => Some(AdminNetwork { address, tls, tokens_file }),
        (_, None, Some(_)) => {
            let given = reader.list("admin.tokens_file");
            let origin = given.map_or(Origin::Nowhere, |given| given.origin);
            let what = "`admin.tokens_file` is given, and `admin_listen` is no network address";
            reader.error(origin, what, "give an address such as 127.0.0.1:9465, or remove it");
            None
        }
        (_, None, None) | (None, Some(_), None) => None,
    }
}

/// The socket beside a ledger.
fn beside(ledger: &Path) -> PathBuf {
    let mut path = ledger.as_os_str().to_owned();
    path.push(".sock");
    PathBuf::from(path)
}

fn upstream(reader: &mut Reader) -> Option<UpstreamConfig> {
    if reader.list("upstream.url").is_none() {
        let help = "give --upstream http://HOST:PORT, TAKEBACK_UPSTREAM_URL or `upstream.url` in \
                    the file";
        reader.error(Origin::Nowhere, "no upstream is given", help);
    }
    let url = reader.read("upstream.url", upstream_url);
    let headers = secure::headers(reader);
    let scheme = url.as_ref().map(|url| url.scheme);
    let host = url.as_ref().filter(|url| url.scheme == UrlScheme::Https).map(Url::bare_host);
    let tls = if scheme.is_some() { secure::client(reader, host) } else { None };
    let Url { scheme, authority, host, base } = url?;
    let protocol = match (scheme, &tls) {
        (UrlScheme::Http, _) => Protocol::Clear,
        (UrlScheme::H2c, _) => Protocol::ClearHttp2,
        (UrlScheme::Https, Some(tls)) => Protocol::Tls(Arc::clone(&tls.value)),
        // What is wrong was told.
        (UrlScheme::Https, None) => return None,
    };
    Some(UpstreamConfig { authority, host, base, protocol, tls, headers })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlScheme {
    H2c,
    Http,
    Https,
}

struct Url {
    scheme: UrlScheme,
    authority: Authority,
    /// As it was written, in lower case.
    host: String,
    base: String,
}

impl Url {
    /// The host without its port.
    fn bare_host(&self) -> &str {
        match self.host.rsplit_once(':') {
            Some((host, _)) if !self.host.ends_with(']') => host,
            Some(_) | None => &self.host,
        }
    }
}

fn upstream_url(text: &str) -> Result<Url, (String, String)> {
    let form = || "give https://HOST, http://HOST:PORT or http://HOST:PORT/BASE".to_owned();
    // A URL that holds a user may hold a password; it is not shown.
    let wrong = |what: &str| (what.to_owned(), form());
    let schemes = [
        ("http://", UrlScheme::Http, 80),
        ("https://", UrlScheme::Https, 443),
        ("h2c://", UrlScheme::H2c, 80),
    ];
    let found = schemes
        .iter()
        .find_map(|(prefix, scheme, port)| Some((text.strip_prefix(prefix)?, *scheme, *port)));
    let Some((rest, scheme, port)) = found else {
        return Err(wrong("is not an http:// or https:// address"));
    };
    if rest.contains('@') {
        let help = "put the credential into `upstream.headers_file`".to_owned();
        return Err(("names a user".to_owned(), help));
    }
    if rest.contains(['?', '#']) {
        return Err(wrong("has a query or a fragment"));
    }
    let (host, base) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, ""),
    };
    let has_port = !host.ends_with(']') && host.rsplit_once(':').is_some();
    let full = if has_port { host.to_owned() } else { format!("{host}:{port}") };
    let authority: Authority =
        full.parse().map_err(|_| wrong(&format!("has the host {}", shown(host))))?;
    let base = base.trim_end_matches('/');
    let is_odd = !base.is_empty()
        && (oddity(base).is_some() || base.parse::<http::uri::PathAndQuery>().is_err());
    if is_odd {
        return Err(wrong(&format!("has the base path {}", shown(base))));
    }
    Ok(Url { scheme, authority, host: host.to_ascii_lowercase(), base: base.to_owned() })
}

fn mcp(reader: &mut Reader) -> McpConfig {
    let mut paths = vec!["/mcp".to_owned()];
    if let Some(given) = reader.list("mcp.paths") {
        for path in &given.values {
            if oddity(path).is_some() || path.contains('?') {
                let what = format!("`mcp.paths` holds {}", shown(path));
                let help = "give plain paths, such as /mcp; they are compared exactly";
                reader.error(given.origin.clone(), what, help);
            }
        }
        paths = given.values;
    }
    let methods = reader.list("mcp.allow_methods").map(|given| given.values).unwrap_or_default();
    if methods.iter().any(|method| method == "tools/call") {
        let origin = reader.list("mcp.allow_methods").map_or(Origin::Nowhere, |g| g.origin);
        let what = "`mcp.allow_methods` holds `tools/call`";
        reader.error(origin, what, "a tool's call is what the policy decides; remove it");
    }
    let trust_annotations = reader.read("mcp.trust_annotations", |text| match text {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err((format!("is {}", shown(other)), "give `true` or `false`".to_owned())),
    });
    let reports = reader.read("mcp.reports", |text| {
        let help = "give `replace`, `trust` or `ignore`".to_owned();
        Reports::from_name(text).ok_or_else(|| (format!("is {}", shown(text)), help))
    });
    let call_route = reader.read("mcp.call_route", |text| {
        let help = "give `bridge` or `forward`".to_owned();
        CallRoute::from_name(text).ok_or_else(|| (format!("is {}", shown(text)), help))
    });
    McpConfig {
        paths,
        allow_methods: methods,
        trust_annotations: trust_annotations.unwrap_or(false),
        reports: reports.unwrap_or(Reports::Replace),
        call_route: call_route.unwrap_or(CallRoute::Bridge),
    }
}

fn report_header(text: &str) -> Result<HeaderName, (String, String)> {
    let help = || "give a name of your own, such as X-Anvil-Effect".to_owned();
    let name: HeaderName = text
        .parse()
        .map_err(|_| (format!("is {}, which is no header name", shown(text)), help()))?;
    let controls = [
        own_headers::EFFECT_CONFIRM,
        own_headers::EFFECT_STAGE,
        own_headers::EFFECT_TASK,
        own_headers::REPLAYED,
        header::AUTHORIZATION,
        header::CONTENT_ENCODING,
        header::CONTENT_TYPE,
        header::COOKIE,
        header::DATE,
        header::LOCATION,
        header::SET_COOKIE,
        header::VIA,
    ];
    if NOT_TO_GIVE.contains(&name) || controls.contains(&name) {
        return Err((format!("is `{name}`, which has a meaning of its own"), help()));
    }
    Ok(name)
}

fn limits(reader: &mut Reader) -> LimitsConfig {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    let longest = u64::try_from(MAX_TEXT).unwrap_or(64 * MIB);
    let request = reader.number("limits.request_body_bytes", 4 * MIB, KIB..=longest);
    let response = reader.number("limits.response_body_bytes", 4 * MIB, KIB..=longest);
    let budget = reader.number("limits.body_budget_bytes", 256 * MIB, KIB..=64 * KIB * MIB);
    if budget < request.max(response) {
        let origin =
            reader.list("limits.body_budget_bytes").map_or(Origin::Nowhere, |given| given.origin);
        let what = format!("`limits.body_budget_bytes` is {budget}, less than one body may have");
        reader.error(origin, what, "raise it, or lower the limits of bodies");
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let cores = u64::try_from(cores).unwrap_or(1).min(1024);
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let workers = size(reader.number("limits.workers", cores, 1..=1024));
    LimitsConfig {
        inflight: size(reader.number("limits.inflight", 1024, 1..=1_000_000)),
        connections: size(reader.number("limits.connections", 1024, 1..=1_000_000)),
        request_body_bytes: size(request),
        response_body_bytes: size(response),
        body_budget_bytes: size(budget),
        workers: NonZeroUsize::new(workers).unwrap_or(NonZeroUsize::MIN),
    }
}

/// The longest clock: a day.
const DAY_MS: u64 = 86_400_000;

fn timeouts(reader: &mut Reader) -> TimeoutsConfig {
    let mut clock =
        |member, default, bounds| Duration::from_millis(reader.number(member, default, bounds));
    TimeoutsConfig {
        connect: clock("timeouts.connect_ms", 3_000, 1..=4_500),
        head: clock("timeouts.head_ms", 60_000, 1..=DAY_MS),
        idle: clock("timeouts.idle_ms", 60_000, 1..=DAY_MS),
        total: clock("timeouts.total_ms", 300_000, 1..=DAY_MS),
        lookup: clock("timeouts.lookup_ms", 5_000, 1..=DAY_MS),
        request_head: clock("timeouts.request_head_ms", 10_000, 100..=600_000),
        request_idle: clock("timeouts.request_idle_ms", 30_000, 100..=600_000),
        keep_alive: clock("timeouts.keep_alive_ms", 75_000, 61_000..=DAY_MS),
    }
}

fn drain(reader: &mut Reader) -> DrainConfig {
    let min = reader.number("drain.min_ms", 5_000, 0..=DAY_MS);
    let grace = reader.number("drain.grace_ms", 25_000, 0..=DAY_MS);
    if grace < min {
        let given = reader.list("drain.grace_ms").or_else(|| reader.list("drain.min_ms"));
        let origin = given.map_or(Origin::Nowhere, |given| given.origin);
        let what = format!("`drain.grace_ms` is {grace}, less than `drain.min_ms` ({min})");
        reader.error(origin, what, "the grace counts from the signal and includes the minimum");
    }
    DrainConfig { min: Duration::from_millis(min), grace: Duration::from_millis(grace) }
}

#[cfg(test)]
mod tests;
