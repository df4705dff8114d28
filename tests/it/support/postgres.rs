//! PostgreSQL for tests: one server that all tests of a run share, each with a database of its own,
//! and private servers for what is killed, stopped or encrypted.
//!
//! The shared one is started by whoever needs it first and ends some seconds after the last test that
//! used it: every test process holds a shared lock on a file, and a watcher waits for it. Included by
//! the library's own tests and by the benches too.

#![allow(dead_code, unreachable_pub, reason = "no user of this file uses all of it")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A database on the shared server; dropped with this.
pub struct Database {
    name: String,
}

impl Database {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{next}", std::process::id());
        psql(shared(), "postgres", &format!("CREATE DATABASE {name}"));
        Self { name }
    }

    /// With more time to connect than a sidecar allows by itself: how fast the machine is, is not what
    /// these tests are about.
    pub fn url(&self) -> String {
        url(shared(), &self.name) + "&connect_timeout=20"
    }

    /// What a query says, one text per row.
    pub fn query(&self, sql: &str) -> Vec<String> {
        psql(shared(), &self.name, sql)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        psql(shared(), "postgres", &format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// A server of its own; ends with this.
pub struct Server {
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts one with these settings, such as `fsync=on`.
    pub fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path());
        let server = Self { folder };
        server.start_again(settings);
        server
    }

    pub fn start_again(&self, settings: &[&str]) {
        start(self.folder.path(), settings);
    }

    /// Ends it in order; its data stay.
    pub fn stop(&self) {
        let mut command = run_as_owner("pg_ctl");
        expect(command.args(["stop", "-s", "-m", "fast", "-D"]).arg(self.data()));
    }

    /// Gives a file to the user that the server runs as, for its eyes only.
    pub fn own(&self, path: &Path) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        give(path);
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of its data.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn url(&self) -> String {
        url(self.folder.path(), "postgres")
    }

    pub fn query(&self, sql: &str) -> Vec<String> {
        psql(self.folder.path(), "postgres", sql)
    }

    /// `kill -9` of every process of it.
    pub fn kill(&self) {
        self.signal_all(rustix::process::Signal::KILL);
        let gone = || rustix::process::test_kill_process(self.postmaster()).is_err();
        while !gone() {
            std::thread::yield_now();
        }
        // What a start would take for a sign of life.
        std::fs::remove_file(self.data().join("postmaster.pid")).unwrap();
    }

    /// Stops every process of it where it stands.
    pub fn freeze(&self) {
        self.signal_all(rustix::process::Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal_all(rustix::process::Signal::CONT);
    }

    fn postmaster(&self) -> rustix::process::Pid {
        let text = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        let pid = text.lines().next().unwrap().trim().parse().unwrap();
        rustix::process::Pid::from_raw(pid).unwrap()
    }

    fn signal_all(&self, signal: rustix::process::Signal) {
        let postmaster = self.postmaster();
        // First of all the one that would start others again.
        rustix::process::kill_process(postmaster, signal).unwrap();
        let parent = postmaster.as_raw_nonzero().get();
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = process.file_name().to_string_lossy().parse::<i32>() else { continue };
            let Ok(stat) = std::fs::read_to_string(process.path().join("stat")) else { continue };
            let mut rest = stat.rsplit(") ").next().unwrap_or_default().split(' ');
            if rest.nth(1).and_then(|ppid| ppid.parse::<i32>().ok()) == Some(parent) {
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                // It may have ended by itself.
                let _gone = rustix::process::kill_process(pid, signal);
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.data().join("postmaster.pid").exists() {
            self.thaw();
            stop(self.folder.path());
        }
    }
}

/// The folder of the shared server.
fn shared() -> &'static Path {
    static SHARED: OnceLock<(PathBuf, File)> = OnceLock::new();
    let (folder, _held_until_the_process_ends) = SHARED.get_or_init(|| {
        let uid = rustix::process::geteuid().as_raw();
        let base = std::env::temp_dir().join(format!("takeback-postgres-{uid}"));
        let file = |suffix: &str| {
            let path = PathBuf::from(format!("{}.{suffix}", base.display()));
            let file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
            (path, file)
        };
        let (users_path, users) = file("users");
        users.lock_shared().unwrap();
        let (_, starting) = file("starting");
        starting.lock().unwrap();
        if !is_running(&base) {
            let _was_there = std::fs::remove_dir_all(&base);
            std::fs::create_dir(&base).unwrap();
            make(&base);
            start(&base, &["fsync=off", "full_page_writes=off"]);
            watch(&base, &users_path);
        }
        (base, users)
    });
    folder
}

/// Starts what ends the shared server when nobody uses it any more.
fn watch(base: &Path, users: &Path) {
    let mut stop = run_as_owner("pg_ctl");
    stop.args(["stop", "-s", "-m", "immediate", "-D"]).arg(base.join("data"));
    let words: Vec<String> = std::iter::once(stop.get_program())
        .chain(stop.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    let script = format!(
        "(exec 9>>'{}'; while sleep 20; do flock -n -x 9 && {{ {}; rm -rf '{}'; exit; }}; done) &",
        users.display(),
        words.join(" "),
        base.display(),
    );
    // The shell ends at once; what it leaves behind waits.
    let mut watcher = Command::new("sh");
    watcher.args(["-c", &script]).process_group(0).stderr(Stdio::null());
    expect(&mut watcher);
}

fn url(folder: &Path, database: &str) -> String {
    format!("postgres://takeback@/{database}?host={}", folder.display())
}

/// Makes an empty cluster in a folder, whose owner runs the server.
fn make(folder: &Path) {
    give(folder);
    let mut command = run_as_owner("initdb");
    command.args(["-A", "trust", "-U", "takeback", "--no-sync", "--locale=C", "-E", "UTF8", "-D"]);
    expect(command.arg(folder.join("data")));
}

/// Gives a file or folder to the user that the server runs as.
fn give(path: &Path) {
    if is_root() {
        let status = Command::new("chown").arg("postgres").arg(path).status().unwrap();
        assert!(status.success(), "the user `postgres` comes with the package `postgresql`");
    }
}

fn start(folder: &Path, settings: &[&str]) {
    let mut options = format!("-c listen_addresses= -k {}", folder.display());
    let ours = ["max_connections=300", "shared_buffers=64MB", "log_min_messages=fatal"];
    for setting in ours.iter().chain(settings) {
        options.push_str(&format!(" -c {setting}"));
    }
    let mut command = run_as_owner("pg_ctl");
    command.args(["start", "-s", "-w", "-D"]).arg(folder.join("data"));
    command.arg("-l").arg(folder.join("log")).args(["-o", &options]);
    expect(&mut command);
}

fn stop(folder: &Path) {
    let mut command = run_as_owner("pg_ctl");
    expect(command.args(["stop", "-s", "-m", "immediate", "-D"]).arg(folder.join("data")));
}

fn is_running(folder: &Path) -> bool {
    let mut command = run_as_owner("pg_ctl");
    command.args(["status", "-D"]).arg(folder.join("data"));
    command.output().unwrap().status.success()
}

fn psql(folder: &Path, database: &str, sql: &str) -> Vec<String> {
    let mut command = Command::new(programs().join("psql"));
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "takeback", "-h"]);
    command.arg(folder).args(["-d", database, "-c", sql]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn expect(command: &mut Command) {
    // A server would keep a pipe of ours open; what it says is in its log.
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// A program of the server, which refuses to run as root.
fn run_as_owner(program: &str) -> Command {
    let program = programs().join(program);
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
    command
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where Debian puts the server's programs; else they are in the path.
pub fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|version| version.path()).max_by_key(|path| number(path));
    newest.map_or_else(PathBuf::new, |path| path.join("bin"))
}
