//! Sees that policy files have changed, as Kubernetes changes them and as people do.
//!
//! A poll, not a notification: a mounted ConfigMap is swapped by renaming one symbolic link
//! (`..data`), editors replace files, and notifications run out. Each poll compares the link's
//! target and every file's name, size and time; only if one of them is another is anything read,
//! and every [`READ_EVERY`] polls everything is, for a change that left no trace there. What
//! decides is the content: the same content under another link is no change, and is not compiled
//! again.
//!
//! One revision is read whole: what is seen before and after reading must be the same, else it is
//! read again. A directory that keeps changing is tried at the next poll.
//!
//! The caller polls (every second or two), swaps the snapshot and says so; nothing runs here.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use super::diff::{Change, diff};
use super::{Compiled, Snapshot, load_within};
use crate::contract::key::Digest;
use crate::files;

/// Every so many polls everything is read, whatever the files' times say.
pub const READ_EVERY: u32 = 30;

/// How often a directory that changes while it is read is read again at once.
const ATTEMPTS: u32 = 3;

/// How deep folders are looked into, and how many files are looked at: a policy directory has a few.
const MAX_FOLDERS: usize = 4;
const MAX_SEEN: usize = 4_096;

/// The most of a file that is hashed, in bytes; a longer one is refused when it is loaded.
const MAX_READ: u64 = 64 * 1024 * 1024;

/// What a poll saw.
#[derive(Debug)]
pub enum Poll {
    /// The files changed while they were read, each time; look again.
    Restless,
    /// The policy that is in force, or the fault that was reported before.
    Unchanged,
    /// Another policy; ready to be swapped in.
    Changed {
        /// The new policy; its snapshot is there.
        compiled: Compiled,
        /// What the new policy protects less.
        weakened: Vec<Change>,
    },
    /// Files that cannot be read into operations; the last good policy stays.
    Rejected(Compiled),
}

/// What becomes of a policy whose files can be read, but whose contracts have an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Faulty {
    /// It is rejected, as one that cannot be read (`--strict`).
    Rejected,
    /// It is served, the operations with errors degraded.
    #[default]
    Served,
}

/// Watches one directory.
#[derive(Debug)]
pub struct Watch {
    directory: PathBuf,
    faulty: Faulty,
    grace: Option<Duration>,
    seen: Option<Seen>,
    /// The hash of what was last compiled.
    content: Option<Digest>,
    polls: u32,
    /// The findings of the last rejected content, so that it is reported once.
    rejected: Option<Vec<super::Diagnostic>>,
}

/// What a directory looks like from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    link: Option<PathBuf>,
    files: Vec<(PathBuf, u64, Option<SystemTime>)>,
}

impl Watch {
    /// Watches a directory whose policy is in force.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            faulty: Faulty::Served,
            grace: None,
            seen: None,
            content: None,
            polls: 0,
            rejected: None,
        }
    }

    /// Says what becomes of a policy with errors in its contracts.
    pub fn with_faulty(mut self, faulty: Faulty) -> Self {
        self.faulty = faulty;
        self
    }

    /// Says how long the sidecar's end waits for calls, for the findings that depend on it.
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Reads the first policy. What it gives is what the next poll compares with.
    pub fn first(&mut self) -> Compiled {
        let before = look(&self.directory);
        let content = content(&before);
        let compiled = load_within(&self.directory, self.grace);
        // Of files that changed meanwhile the first poll says more.
        if look(&self.directory) == before {
            self.seen = Some(before);
            self.content = Some(content);
        }
        compiled
    }

    /// Whether the files that were last read are none that can be served.
    pub fn is_rejected(&self) -> bool {
        self.rejected.is_some()
    }

    /// Looks once. `current` is the policy in force. Blocks on the file system.
    pub fn poll(&mut self, current: &Snapshot) -> Poll {
        self.polls = self.polls.wrapping_add(1);
        let before = look(&self.directory);
        if self.seen.as_ref() == Some(&before) && !self.polls.is_multiple_of(READ_EVERY) {
            return Poll::Unchanged;
        }
        self.read(before, current)
    }

    /// Reads whatever the files look like: what SIGHUP asks for.
    pub fn reread(&mut self, current: &Snapshot) -> Poll {
        self.rejected = None;
        self.content = None;
        let before = look(&self.directory);
        self.read(before, current)
    }

    fn read(&mut self, mut before: Seen, current: &Snapshot) -> Poll {
        for _ in 0..ATTEMPTS {
            let content = content(&before);
            let compiled =
                (self.content != Some(content)).then(|| load_within(&self.directory, self.grace));
            let after = look(&self.directory);
            if before == after {
                self.seen = Some(after);
                self.content = Some(content);
                return match compiled {
                    Some(compiled) => self.judge(compiled, current),
                    None => Poll::Unchanged,
                };
            }
            before = after;
        }
        self.seen = None;
        Poll::Restless
    }

    fn judge(&mut self, compiled: Compiled, current: &Snapshot) -> Poll {
        let is_refused = self.faulty == Faulty::Rejected && compiled.has_errors();
        let Some(snapshot) = compiled.snapshot.as_ref().filter(|_| !is_refused) else {
            if self.rejected.as_ref() == Some(&compiled.diagnostics) {
                return Poll::Unchanged;
            }
            self.rejected = Some(compiled.diagnostics.clone());
            return Poll::Rejected(compiled);
        };
        self.rejected = None;
        if snapshot.revision() == current.revision() {
            return Poll::Unchanged;
        }
        let mut weakened = diff(current, snapshot);
        weakened.retain(|change| change.is_weaker);
        Poll::Changed { compiled, weakened }
    }
}

/// The link's target, and every file, those of folders too: catalogs lie there.
fn look(directory: &Path) -> Seen {
    let link = std::fs::read_link(directory.join("..data")).ok();
    let mut files = Vec::new();
    list(directory, MAX_FOLDERS, &mut files);
    files.sort();
    Seen { link, files }
}

/// SHA-256 over the names and contents of what was seen.
fn content(seen: &Seen) -> Digest {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    for (path, _, _) in &seen.files {
        let name = path.as_os_str().as_encoded_bytes();
        hash.update(name.len().to_be_bytes());
        hash.update(name);
        let mut length: u64 = 0;
        let mut file = files::open(path).ok();
        // What cannot be read is hashed as far as it can, and reported by the load.
        while let Some(count) = file.as_mut().and_then(|file| file.read(&mut buffer).ok())
            && let Some(read) = buffer.get(..count)
            && !read.is_empty()
            && length <= MAX_READ
        {
            hash.update(read);
            length = length.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        }
        hash.update(length.to_be_bytes());
    }
    Digest(hash.finalize().into())
}

fn list(directory: &Path, depth: usize, found: &mut Vec<(PathBuf, u64, Option<SystemTime>)>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if found.len() >= MAX_SEEN {
            return;
        }
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let path = entry.path();
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if metadata.is_dir() {
            if let Some(depth) = depth.checked_sub(1) {
                list(&path, depth, found);
            }
        } else {
            // What is no file too: loading it is a finding.
            found.push((path, metadata.len(), metadata.modified().ok()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::policy::load;

    const READ: &str =
        "version: 1\noperations: { a: { match: { tool: a }, effect: { class: read } } }";
    const WRITE: &str = "version: 1\noperations: { a: { match: { tool: a } } }";
    const BROKEN: &str = "version: 1\noperation: {}";

    struct Mounted {
        directory: tempfile::TempDir,
        count: u32,
    }

    impl Mounted {
        fn new(text: &str) -> Self {
            let directory = tempfile::tempdir().unwrap();
            symlink("..data/a.yaml", directory.path().join("a.yaml")).unwrap();
            let mut mounted = Self { directory, count: 0 };
            mounted.swap(text);
            mounted
        }

        /// What the kubelet does: a new folder, a new link, one rename over the old link.
        fn swap(&mut self, text: &str) {
            self.count += 1;
            let name = format!("..{}", self.count);
            let path = self.directory.path();
            std::fs::create_dir(path.join(&name)).unwrap();
            std::fs::write(path.join(&name).join("a.yaml"), text).unwrap();
            symlink(&name, path.join("..data_tmp")).unwrap();
            std::fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
        }

        fn load(&self) -> Snapshot {
            load(self.directory.path()).snapshot.unwrap()
        }
    }

    #[test]
    fn a_swap_is_seen_and_its_weakenings_are_named() {
        let mut mounted = Mounted::new(WRITE);
        let current = mounted.load();
        let mut watch = Watch::new(mounted.directory.path());
        assert!(matches!(watch.poll(&current), Poll::Unchanged));

        mounted.swap(READ);

        let Poll::Changed { compiled, weakened } = watch.poll(&current) else {
            panic!("not seen");
        };
        let texts: Vec<String> = weakened.iter().map(ToString::to_string).collect();
        assert!(texts.contains(&"a: class: irreversible -> read (weaker)".to_owned()), "{texts:?}");
        let current = compiled.snapshot.unwrap();
        assert!(matches!(watch.poll(&current), Poll::Unchanged));
    }

    #[test]
    fn what_the_first_policy_was_read_from_is_not_compiled_again() {
        let mut mounted = Mounted::new(WRITE);
        let mut watch = Watch::new(mounted.directory.path());
        let current = watch.first().snapshot.unwrap();
        assert!(matches!(watch.poll(&current), Poll::Unchanged));
        mounted.swap(READ);
        assert!(matches!(watch.poll(&current), Poll::Changed { .. }));
    }

    #[test]
    fn the_same_content_under_another_link_is_no_change() {
        let mut mounted = Mounted::new(WRITE);
        let current = mounted.load();
        let mut watch = Watch::new(mounted.directory.path());
        mounted.swap(WRITE);
        assert!(matches!(watch.poll(&current), Poll::Unchanged));
    }

    #[test]
    fn broken_files_are_rejected_once_and_the_next_good_ones_are_taken() {
        let mut mounted = Mounted::new(WRITE);
        let current = mounted.load();
        let mut watch = Watch::new(mounted.directory.path());
        mounted.swap(BROKEN);
        assert!(matches!(watch.poll(&current), Poll::Rejected(_)));
        mounted.swap(BROKEN);
        assert!(matches!(watch.poll(&current), Poll::Unchanged));
        assert!(matches!(watch.reread(&current), Poll::Rejected(_)));
        assert!(watch.is_rejected());
        mounted.swap(READ);
        assert!(matches!(watch.poll(&current), Poll::Changed { .. }));
        assert!(!watch.is_rejected());
        mounted.swap(BROKEN);
        assert!(matches!(watch.poll(&current), Poll::Rejected(_)));
        mounted.swap(WRITE);
        assert!(matches!(watch.poll(&current), Poll::Unchanged));
        assert!(!watch.is_rejected(), "the files are those in force again");
    }

    #[test]
    fn a_catalog_that_changes_in_its_folder_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("catalog/deep");
        std::fs::create_dir_all(&folder).unwrap();
        let tools = |name: &str| format!("{{\"tools\":[{{\"name\":\"{name}\"}}]}}");
        std::fs::write(folder.join("tools.json"), tools("a")).unwrap();
        let text = "version: 1\ncatalog: { tools: catalog/deep/tools.json }\noperations: { a: { \
                    match: { tool: a } } }";
        std::fs::write(directory.path().join("a.yaml"), text).unwrap();
        let current = load(directory.path()).snapshot.unwrap();
        let mut watch = Watch::new(directory.path());
        assert!(matches!(watch.poll(&current), Poll::Unchanged));

        std::fs::write(folder.join("tools.json"), tools("other")).unwrap();

        assert!(matches!(watch.poll(&current), Poll::Changed { .. }));
    }

    #[test]
    fn errors_of_a_contract_are_served_degraded_or_rejected_as_asked() {
        let faulty = "version: 1\noperations: { a: { match: { tool: a }, effect: { class: \
                      reversible } } }";
        let mut mounted = Mounted::new(WRITE);
        let current = mounted.load();
        let (mut lenient, mut strict) = (
            Watch::new(mounted.directory.path()),
            Watch::new(mounted.directory.path()).with_faulty(Faulty::Rejected),
        );
        mounted.swap(faulty);

        let Poll::Changed { compiled, .. } = lenient.poll(&current) else { panic!("not served") };
        assert!(compiled.snapshot.unwrap().operations()[0].is_degraded());
        assert!(matches!(strict.poll(&current), Poll::Rejected(_)));
        assert!(matches!(strict.reread(&current), Poll::Rejected(_)));
    }

    #[test]
    fn i2_files_that_are_deleted_leave_the_last_good_policy_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        std::fs::write(&path, WRITE).unwrap();
        let current = load(directory.path()).snapshot.unwrap();
        let mut watch = Watch::new(directory.path());

        std::fs::remove_file(&path).unwrap();
        assert!(matches!(watch.poll(&current), Poll::Rejected(_)));
        std::fs::write(&path, READ).unwrap();
        assert!(matches!(watch.poll(&current), Poll::Changed { .. }));
    }

    #[test]
    fn a_change_that_leaves_no_trace_outside_is_seen_in_time() {
        let mounted = Mounted::new(WRITE);
        let current = mounted.load();
        let mut watch = Watch::new(mounted.directory.path());
        assert!(matches!(watch.poll(&current), Poll::Unchanged));
        let path = mounted.directory.path().join("a.yaml");
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        let same_length = WRITE.replace("tool: a", "tool: b");
        std::fs::write(&path, same_length).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();

        let seen = (0..READ_EVERY).any(|_| matches!(watch.poll(&current), Poll::Changed { .. }));

        assert!(seen);
    }

    #[test]
    fn a_directory_that_is_gone_is_rejected() {
        let mounted = Mounted::new(WRITE);
        let current = mounted.load();
        let mut watch = Watch::new(&mounted.directory.path().join("none"));
        assert!(matches!(watch.poll(&current), Poll::Rejected(_)));
    }
}
