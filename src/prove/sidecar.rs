//! The sidecar of [`prove`](super): this very program as a process of its own, so that it can be killed.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::database::Relay;
use super::{Fault, ProveError};
use crate::admin::client::ask;
use crate::config::PASSWORD;
use crate::ledger::{Address, Place};

/// How long a start may take.
const START: Duration = Duration::from_secs(30);

/// How often what is unknown is looked up.
const LOOKUPS: Duration = Duration::from_millis(250);

/// How long the sidecar lives between two kills.
const LIFE: Duration = Duration::from_millis(80);

/// What the gateway offers. The clocks are short so that lost answers are lost soon.
const POLICY: &str = r#"version: 1
operations:
  prove.keyed:
    match: { http: "POST /keyed" }
    effect:
      class: irreversible
      kind: create
      idempotency: { type: header, name: Idempotency-Key, retention: 24h, replay: full }
    confirm: none
    timeout: { head_ms: 500, total_ms: 800 }
  prove.looked_up:
    match: { http: "POST /looked-up" }
    effect:
      class: irreversible
      kind: create
      lookup:
        operation: prove.find
        by: id
        arguments: { path.call: request.body.call }
        settle_ms: 200
        match:
          - { type: exists, name: has_call, actual: { source: response_body, pointer: /call } }
    confirm: none
    timeout: { head_ms: 500, total_ms: 800 }
  prove.find:
    match: { http: "GET /effects/{call}" }
    effect: { class: read }
  prove.bare:
    match: { http: "POST /bare" }
    effect: { class: irreversible, kind: external_side_effect }
    confirm: none
    timeout: { head_ms: 500, total_ms: 800 }
"#;

/// A fresh folder that only this user can read; its drop removes it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn new() -> io::Result<Self> {
        let name = format!("takeback-prove-{}", uuid::Uuid::now_v7().simple());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        let folder = Self { path };
        fs::create_dir(folder.path.join("policies"))?;
        fs::write(folder.path.join("policies/prove.yaml"), POLICY)?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is the temporary directory's to clean up.
        drop(fs::remove_dir_all(&self.path));
    }
}

/// The sidecar: how it is started, and the process that is there now.
#[derive(Debug)]
pub(super) struct Sidecar {
    data: SocketAddr,
    telemetry: SocketAddr,
    socket: PathBuf,
    ledger: String,
    policies: PathBuf,
    log: PathBuf,
    upstream: String,
    /// What tells its calls from those of an earlier fault in the same ledger.
    run: String,
    /// The password of its database, if it has one.
    password: Option<OsString>,
    /// What stands before its database.
    relay: Option<Relay>,
    child: Mutex<Option<Process>>,
}

/// The database that a ledger is in, if it can be made to die at a commit.
pub(super) fn database(ledger: Option<&str>) -> Option<Address> {
    let url = ledger.filter(|ledger| Place::is_remote(ledger))?;
    let password = std::env::var(PASSWORD).ok();
    Address::parse(url, password.as_deref()).ok().filter(|address| address.endpoint().is_some())
}

/// Ports below those that the system gives of itself (32,768 and above): one of these could be given to a
/// connection while the sidecar that had it is killed and not yet there again.
const PORTS: (u16, u16) = (12_000, 20_000);

/// A port that is free at this moment.
fn free() -> io::Result<SocketAddr> {
    for _ in 0..PORTS.1 {
        let mut random = [0; 2];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let port = PORTS.0 + u16::from_be_bytes(random) % PORTS.1;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener.local_addr();
        }
    }
    Err(io::Error::from(io::ErrorKind::AddrInUse))
}

impl Sidecar {
    pub(super) async fn start(
        folder: &Folder,
        upstream: SocketAddr,
        fault: Fault,
        ledger: Option<&str>,
    ) -> Result<Self, ProveError> {
        let path = &folder.path;
        let own = || path.join("ledger.db").display().to_string();
        let mut ledger = ledger.map_or_else(own, str::to_owned);
        let mut password = std::env::var_os(PASSWORD).filter(|_| Place::is_remote(&ledger));
        let mut relay = None;
        if fault == Fault::DatabaseKilled
            && let Some(address) = database(Some(&ledger))
            && let Some(started) = Relay::start(path, &address).map_err(ProveError::Process)?
        {
            let (url, secret) = address.behind(path);
            ledger = url;
            password = secret.map(OsString::from_vec);
            relay = Some(started);
        }
        let scheme = if fault.is_of_streams() { "h2c" } else { "http" };
        let sidecar = Self {
            data: free().map_err(ProveError::Process)?,
            telemetry: free().map_err(ProveError::Process)?,
            socket: path.join("admin.sock"),
            ledger,
            policies: path.join("policies"),
            log: path.join("log"),
            upstream: format!("{scheme}://{upstream}"),
            run: uuid::Uuid::now_v7().simple().to_string(),
            password,
            relay,
            child: Mutex::new(None),
        };
        sidecar.ensure().await?;
        if let Some(relay) = &sidecar.relay {
            relay.arm(true);
        }
        Ok(sidecar)
    }

    /// Its database dies no more.
    pub(super) fn let_live(&self) {
        if let Some(relay) = &self.relay {
            relay.arm(false);
            tracing::debug!(deaths = relay.deaths(), "the database lives from here on");
        }
    }

    pub(super) fn data(&self) -> SocketAddr {
        self.data
    }

    /// What tells its calls from others of the same ledger.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Starts the process if it is not there, and waits until it serves.
    pub(super) async fn ensure(&self) -> Result<(), ProveError> {
        let mut child = self.child.lock().await;
        let is_there = match child.as_mut() {
            Some(child) => child.end().map_err(ProveError::Process)?.is_none(),
            None => false,
        };
        if !is_there {
            *child = Some(self.spawn().map_err(ProveError::Process)?);
        }
        let serving = async {
            loop {
                if TcpStream::connect(self.data).await.is_ok() {
                    return true;
                }
                let ended = child.as_mut().map(Process::end);
                if matches!(ended, Some(Ok(Some(_)) | Err(_)) | None) {
                    return false;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        match timeout(START, serving).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().rev().take(20).collect();
                let log = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
                Err(ProveError::Silent { log })
            }
        }
    }

    fn spawn(&self) -> io::Result<Process> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["run", "--strict"])
            .args(["--upstream", &self.upstream])
            .arg("--policies")
            .arg(&self.policies)
            .args(["--ledger", &self.ledger])
            .arg("--admin-listen")
            .arg(&self.socket)
            .args(["--listen", &self.data.to_string()])
            .args(["--telemetry-listen", &self.telemetry.to_string()])
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(password) = &self.password {
            command.env(PASSWORD, password);
        }
        command.spawn().map(Process)
    }

    /// `kill -9`, and its end.
    async fn kill(&self) {
        if let Some(child) = self.child.lock().await.as_mut() {
            child.kill();
        }
    }

    /// Ends it; nothing of it is needed any more.
    pub(super) async fn stop(&self) {
        self.kill().await;
    }

    /// Asks its admin API; `None` if it is not there.
    pub(super) async fn admin(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Option<(StatusCode, Bytes)> {
        ask(&self.socket, method, path, body).await.ok()
    }
}

/// Has what is unknown looked up, again and again.
pub(super) async fn settle_all(sidecar: Arc<Sidecar>) {
    loop {
        sleep(LOOKUPS).await;
        // One that is not there, or is at it already, is asked again.
        drop(sidecar.admin(Method::POST, "/api/v1/reconcile", None).await);
    }
}

/// Kills it and starts it, until this is dropped.
pub(super) async fn kill_again_and_again(sidecar: Arc<Sidecar>) {
    loop {
        sleep(LIFE).await;
        sidecar.kill().await;
        if sidecar.ensure().await.is_err() {
            return;
        }
    }
}

/// A process that is gone when this is.
///
/// Not tokio's own: its driver would look for ended processes each time a worker of `run` goes to sleep.
#[derive(Debug)]
struct Process(Child);

impl Process {
    fn end(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Kills it and takes its end, which the system brings about at once.
    fn kill(&mut self) {
        // It may have ended by itself; it is gone either way.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
