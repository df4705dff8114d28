//! The real binary as a process of its own, to be killed, stopped and started again.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::{Agent, port, wait};

/// A directory with a policy, and where the ledger lies; outlives the processes that use it.
pub struct Home {
    directory: tempfile::TempDir,
    /// The upstream's URL.
    pub upstream: String,
    /// The URL of the ledger's database, if it is no file.
    database: Option<String>,
}

impl Home {
    pub fn new(policy: &str, upstream: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("policies")).unwrap();
        std::fs::write(directory.path().join("policies/test.yaml"), policy).unwrap();
        Self { directory, upstream: format!("http://{upstream}"), database: None }
    }

    /// As [`new`](Self::new), with its ledger in a database.
    pub fn on_database(policy: &str, upstream: SocketAddr, url: String) -> Self {
        Self { database: Some(url), ..Self::new(policy, upstream) }
    }

    /// Where its ledger is, as a flag says it.
    fn place(&self) -> String {
        self.database.clone().unwrap_or_else(|| self.ledger().to_str().unwrap().to_owned())
    }

    pub fn ledger(&self) -> PathBuf {
        self.directory.path().join("data/ledger.db")
    }

    /// A file beside the ledger.
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        super::certs::written(self.directory.path(), name, text)
    }

    /// Starts it with a file of settings.
    pub fn start_configured(&self, settings: &str) -> Process {
        let path = self.file("takeback.yaml", settings);
        self.start_with(&["--config", path.to_str().unwrap()])
    }

    /// What it says when it does not start with a file of settings, and its exit code.
    pub fn fails_configured(&self, settings: &str) -> (Option<i32>, String) {
        let path = self.file("takeback.yaml", settings);
        let (mut command, ..) = self.command(&[]);
        let output = command.args(["--config", path.to_str().unwrap()]).status().unwrap();
        (output.code(), self.log())
    }

    /// The folder of the policy.
    pub fn policies(&self) -> PathBuf {
        self.directory.path().join("policies")
    }

    /// Asks the admin API of the running sidecar: the status, and the answer's JSON.
    pub fn admin(&self, method: &str, path: &str) -> (u16, serde_json::Value) {
        let mut socket = self.ledger().into_os_string();
        socket.push(".sock");
        let mut stream = UnixStream::connect(socket).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n");
        write!(stream, "{head}content-length: 0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    /// The command that serves, on two free ports; `wrapper` comes before the binary.
    fn command(&self, wrapper: &[&str]) -> (Command, SocketAddr, SocketAddr) {
        let (data, telemetry) = (port::free(), port::free());
        let binary = env!("CARGO_BIN_EXE_takeback");
        let mut command = match wrapper.split_first() {
            None => Command::new(binary),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(binary);
                command
            }
        };
        command
            .arg("run")
            .args(["--upstream", &self.upstream])
            .arg("--policies")
            .arg(self.directory.path().join("policies"))
            .args(["--listen", &data.to_string()])
            .args(["--telemetry-listen", &telemetry.to_string()])
            .args(["--ledger", &self.place()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.directory.path().join("log")).unwrap());
        if self.database.is_some() {
            let socket = format!("{}.sock", self.ledger().display());
            command.args(["--admin-listen", &socket]);
        }
        (command, data, telemetry)
    }

    /// Starts it and does not wait until it serves.
    pub fn launch(&self) -> Process {
        let (mut command, data, telemetry) = self.command(&[]);
        let child = command.process_group(0).spawn().unwrap();
        Process { child, data, telemetry, ledger: self.ledger() }
    }

    pub fn start(&self) -> Process {
        self.start_with(&[])
    }

    /// Starts it with more flags.
    pub fn start_with(&self, flags: &[&str]) -> Process {
        let (mut command, data, telemetry) = self.command(&[]);
        command.args(flags);
        self.started(command, data, telemetry).expect("the sidecar starts")
    }

    /// Starts it with more flags; `None` if it ends before it serves.
    pub fn try_start_with(&self, flags: &[&str]) -> Option<Process> {
        let (mut command, data, telemetry) = self.command(&[]);
        command.args(flags);
        self.started(command, data, telemetry)
    }

    /// The folder that everything lies in.
    pub fn folder(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Starts it with settings as variables: their names without `TAKEBACK_`.
    pub fn start_set(&self, settings: &[(&str, &str)]) -> Process {
        let (mut command, data, telemetry) = self.command(&[]);
        for (name, value) in settings {
            command.env(format!("TAKEBACK_{name}"), value);
        }
        self.started(command, data, telemetry).expect("the sidecar starts")
    }

    /// Starts it with variables of others.
    pub fn start_env(&self, variables: &[(&str, &str)]) -> Process {
        self.try_start_env(variables).expect("the sidecar starts")
    }

    /// As `start_env`; `None` if it ends before it serves.
    pub fn try_start_env(&self, variables: &[(&str, &str)]) -> Option<Process> {
        let (mut command, data, telemetry) = self.command(&[]);
        command.envs(variables.iter().copied());
        self.started(command, data, telemetry)
    }

    /// Starts it with another filter of its log.
    pub fn start_logging(&self, filter: &str) -> Process {
        let (mut command, data, telemetry) = self.command(&[]);
        command.env("TAKEBACK_LOG", filter);
        self.started(command, data, telemetry).expect("the sidecar starts")
    }

    /// Starts it under a wrapper; `None` if it ends before it serves.
    pub fn start_under(&self, wrapper: &[&str]) -> Option<Process> {
        let (command, data, telemetry) = self.command(wrapper);
        self.started(command, data, telemetry)
    }

    fn started(
        &self,
        mut command: Command,
        data: SocketAddr,
        telemetry: SocketAddr,
    ) -> Option<Process> {
        // A group of its own, so that a wrapper's child dies with it.
        let mut child = command.process_group(0).spawn().unwrap();
        let is_up = wait::until("the sidecar's port", || {
            if child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            TcpStream::connect(data).is_ok().then_some(true)
        });
        is_up.then(|| Process { child, data, telemetry, ledger: self.ledger() })
    }

    /// Runs another command of the binary against this home.
    pub fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_takeback"))
            .args(arguments)
            .args(["--ledger", &self.place()])
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    /// What the ledger's view says, as a reader with SQL sees it.
    pub fn query(&self, sql: &str) -> Vec<String> {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let connection = rusqlite::Connection::open_with_flags(self.ledger(), flags).unwrap();
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, Option<String>>(0)).unwrap();
        rows.map(|row| row.unwrap().unwrap_or_default()).collect()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

pub struct Process {
    child: Child,
    pub data: SocketAddr,
    pub telemetry: SocketAddr,
    ledger: PathBuf,
}

impl Process {
    pub fn agent(&self) -> Agent {
        Agent::connect(self.data)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let group = rustix::process::Pid::from_raw(pid).unwrap();
        let _already_gone =
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        self.child.wait().unwrap();
        // The last of the group may outlive its leader for a moment, and holds the ledger's lock.
        let mut lock = self.ledger.clone().into_os_string();
        lock.push(".lock");
        if let Ok(lock) = std::fs::File::open(&lock) {
            wait::until("the ledger's lock", || lock.try_lock().ok());
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal)
            .unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        wait::until("the sidecar's end", || self.child.try_wait().unwrap())
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// A probe or the metrics.
    /// How many descriptors it has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// The memory that it has, in MiB.
    pub fn resident_mib(&self) -> i64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<i64>().unwrap() / 1024
    }

    pub fn telemetry(&self, path: &str) -> super::agent::Answer {
        Agent::connect(self.telemetry).get(path)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
