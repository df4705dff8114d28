//! What the process and the ledger's volume take, read from the system every few seconds.
//!
//! The names of the process's families are Prometheus's own. What cannot be read is left out rather
//! than shown as 0: `/proc` may be hidden, and a ledger in a database has no volume. A read may hang
//! with the volume, so it runs on a thread that nobody waits for, one at a time.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::{Resource, getrlimit};

/// The newest sample.
#[derive(Debug, Default)]
pub(super) struct Host {
    volume: OnceLock<PathBuf>,
    text: Mutex<String>,
    sampling: Mutex<()>,
}

impl Host {
    /// Watches the volume that this file lies on. Only the first call counts.
    pub(super) fn watch_volume(&self, file: &Path) {
        let folder = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| Path::new(".")).to_owned();
        // A second one would be the same ledger.
        drop(self.volume.set(folder));
    }

    /// Reads anew; does nothing while an earlier reading hangs.
    pub(super) fn sample(&self) {
        let Ok(_sampling) = self.sampling.try_lock() else { return };
        let mut text = String::new();
        process(&mut text);
        if let Some(folder) = self.volume.get() {
            volume(&mut text, folder);
        }
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// The families of the newest sample.
    pub(super) fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Writes a family of one series.
pub(super) fn family(text: &mut String, name: &str, kind: &str, help: &str, series: &str) {
    text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{series}\n\n"));
}

fn number(text: &mut String, name: &str, kind: &str, help: &str, value: Option<String>) {
    if let Some(value) = value {
        family(text, name, kind, help, &format!(" {value}"));
    }
}

fn process(text: &mut String) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let stat = Stat::read(&stat);
    let ticks = rustix::param::clock_ticks_per_second();
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    let hundredths = |ticks_used: u64| {
        let hundredths = ticks_used.saturating_mul(100).checked_div(ticks)?;
        Some(format!("{}.{:02}", hundredths / 100, hundredths % 100))
    };
    let of = |read: fn(&Stat) -> u64| stat.as_ref().map(read);
    number(
        text,
        "process_cpu_seconds_total",
        "counter",
        "Time on processors, in the program and in the system for it.",
        of(|stat| stat.cpu_ticks).and_then(hundredths),
    );
    number(
        text,
        "process_resident_memory_bytes",
        "gauge",
        "Memory in use.",
        of(|stat| stat.resident_pages).map(|pages| pages.saturating_mul(page).to_string()),
    );
    number(
        text,
        "process_virtual_memory_bytes",
        "gauge",
        "Memory that is addressed.",
        of(|stat| stat.virtual_bytes).map(|bytes| bytes.to_string()),
    );
    number(
        text,
        "process_open_fds",
        "gauge",
        "Open files and sockets.",
        // One of them is the listing itself.
        std::fs::read_dir("/proc/self/fd").ok().map(|fds| fds.skip(1).count().to_string()),
    );
    number(
        text,
        "process_max_fds",
        "gauge",
        "How many may be open.",
        getrlimit(Resource::Nofile).current.map(|most| most.to_string()),
    );
}

fn volume(text: &mut String, folder: &Path) {
    let Ok(stat) = rustix::fs::statvfs(folder) else { return };
    let bytes = |blocks: u64| Some(blocks.saturating_mul(stat.f_frsize).to_string());
    number(
        text,
        "takeback_ledger_volume_free_bytes",
        "gauge",
        "Room on the ledger's volume.",
        bytes(stat.f_bavail),
    );
    number(
        text,
        "takeback_ledger_volume_size_bytes",
        "gauge",
        "Size of the ledger's volume.",
        bytes(stat.f_blocks),
    );
}

/// Of `/proc/self/stat` what is shown; proc(5) numbers its fields.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// The program's name, in parentheses, may hold anything; fields are counted from behind it.
    fn read(text: &str) -> Option<Self> {
        let (_, behind) = text.rsplit_once(')')?;
        let fields: Vec<&str> = behind.split_ascii_whitespace().collect();
        // The state, field 3, is the first behind the name.
        let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)?.saturating_add(field(15)?),
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_a_name_that_looks_like_fields() {
        let text = "7 (a) R (b 1) S 1 7 7 0 -1 0 10 11 12 13 250 50 0 0 20 0 9 0 88 4096 3 99";
        let stat = Stat { cpu_ticks: 300, virtual_bytes: 4096, resident_pages: 3 };
        assert_eq!(Stat::read(text), Some(stat));
        assert_eq!(Stat::read("7 (a"), None);
        assert_eq!(Stat::read("7 (a) S 1 2"), None);
    }

    #[test]
    fn a_sample_shows_the_process_and_the_volume_of_the_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::default();
        host.sample();
        assert!(!host.text().contains("volume"), "a ledger without a volume has no such family");

        host.watch_volume(&folder.path().join("ledger.db"));
        host.sample();

        let text = host.text();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse::<f64>().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e5);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("takeback_ledger_volume_free_bytes") > 0.0);
        let size = value("takeback_ledger_volume_size_bytes");
        assert!(size >= value("takeback_ledger_volume_free_bytes"));
    }

    #[test]
    fn a_volume_that_is_gone_is_left_out() {
        let host = Host::default();
        host.watch_volume(Path::new("/nowhere/at/all/ledger.db"));
        host.sample();
        assert!(!host.text().contains("volume"));
    }
}
