//! Files that are read again while the process runs: certificates, keys, credentials.
//!
//! A poll, as for policies (`policy::watch`): a mounted Secret is swapped by renaming one symbolic
//! link, tools replace files, and notifications run out. The files are few and small, so a poll reads
//! them whole; what decides is the content. Files that belong together are taken only when two
//! readings in a row agree, so that a new certificate does not meet the old key; and what is wrong is
//! told only when a second poll sees the same, for the same reason.
//!
//! The last good content stays in force whatever happens to the files. The caller polls
//! ([`Reread::poll`]); nothing runs here.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::files;

/// The most of a file that is read, in bytes: a bundle of all public authorities is 250 KiB.
const MAX_FILE: u64 = 1024 * 1024;

/// How often files that change while they are read are read again at once.
const ATTEMPTS: u32 = 3;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses.
    #[error("{} cannot be read: {}", path.display(), source.kind())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder, a pipe, a socket or a device.
    #[error("{} is not a regular file", .0.display())]
    NotRegular(PathBuf),
    /// It is longer than anything it may be.
    #[error("{} is longer than 1 MiB", .0.display())]
    TooLong(PathBuf),
}

impl FileError {
    /// What to do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Read { source, .. } => match source.kind() {
                ErrorKind::NotFound => "look at the path; is the volume mounted?",
                ErrorKind::PermissionDenied => "let the user that this process runs as read it",
                _ => "give a file",
            },
            Self::NotRegular(_) | Self::TooLong(_) => "give the right file",
        }
    }
}

/// What files hold, in the order of their paths.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Contents {
    /// Reads files whole.
    ///
    /// # Errors
    ///
    /// For the first that cannot be read.
    pub fn read(paths: &[PathBuf]) -> Result<Self, FileError> {
        let files = paths.iter().map(|path| Ok((path.clone(), read(path)?)));
        Ok(Self { files: files.collect::<Result<_, FileError>>()? })
    }

    /// One file's path and bytes; nothing for a number that there is not.
    pub fn at(&self, index: usize) -> (&Path, &[u8]) {
        match self.files.get(index) {
            Some((path, bytes)) => (path, bytes),
            None => (Path::new(""), &[]),
        }
    }

    /// How many files there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for (_, bytes) in &self.files {
            hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(bytes);
        }
        hash.finalize().into()
    }
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.files.iter().map(|(path, _)| path)).finish()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    files::read(path, MAX_FILE).map_err(|source| match source.kind() {
        ErrorKind::FileTooLarge => FileError::TooLong(path.to_owned()),
        ErrorKind::InvalidInput => FileError::NotRegular(path.to_owned()),
        _ => FileError::Read { path: path.to_owned(), source },
    })
}

/// What is done with changed content: it is put in force, or is wrong; the text is for people, and
/// holds nothing of the content.
pub type Apply = Box<dyn FnMut(&Contents) -> Result<(), String> + Send>;

/// What a poll came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The new content is in force.
    Applied,
    /// The content cannot be used; the last good one stays. Told once for one content.
    Rejected(String),
    /// Nothing to tell.
    Unchanged,
}

/// Files that are read again.
pub struct Reread {
    /// What they are, for the log and the metrics: one word of a fixed list.
    pub name: &'static str,
    paths: Vec<PathBuf>,
    apply: Apply,
    /// The hash of what is in force.
    in_force: [u8; 32],
    /// What was found wrong by the last poll, and whether it was told.
    wrong: Option<(Wrong, bool)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wrong {
    Content([u8; 32]),
    File(String),
}

impl Reread {
    /// Watches files whose `contents` are in force.
    pub fn new(
        name: &'static str,
        paths: Vec<PathBuf>,
        contents: &Contents,
        apply: impl FnMut(&Contents) -> Result<(), String> + Send + 'static,
    ) -> Self {
        Self { name, paths, apply: Box::new(apply), in_force: contents.hash(), wrong: None }
    }

    /// Reads once and puts in force what has changed. Blocks on the file system.
    pub fn poll(&mut self) -> Seen {
        let contents = match self.settled() {
            Ok(Some(contents)) => contents,
            Ok(None) => return Seen::Unchanged,
            Err(error) => {
                let text = error.to_string();
                return self.is_wrong(Wrong::File(text.clone()), text);
            }
        };
        let hash = contents.hash();
        if hash == self.in_force {
            self.wrong = None;
            return Seen::Unchanged;
        }
        let was_told = matches!(&self.wrong, Some((Wrong::Content(told), true)) if *told == hash);
        if was_told {
            return Seen::Unchanged;
        }
        match (self.apply)(&contents) {
            Ok(()) => {
                self.in_force = hash;
                self.wrong = None;
                Seen::Applied
            }
            Err(text) => self.is_wrong(Wrong::Content(hash), text),
        }
    }

    /// The content that two readings in a row agree on; none while the files keep changing.
    fn settled(&self) -> Result<Option<Contents>, FileError> {
        let mut before = Contents::read(&self.paths)?;
        if before.hash() == self.in_force {
            return Ok(Some(before));
        }
        for _ in 0..ATTEMPTS {
            let after = Contents::read(&self.paths)?;
            if before == after {
                return Ok(Some(after));
            }
            before = after;
        }
        Ok(None)
    }

    fn is_wrong(&mut self, wrong: Wrong, text: String) -> Seen {
        let (is_second, was_told) = match &self.wrong {
            Some((known, was_told)) => (*known == wrong, *was_told),
            None => (false, false),
        };
        self.wrong = Some((wrong, is_second));
        if is_second && !was_told { Seen::Rejected(text) } else { Seen::Unchanged }
    }
}

impl std::fmt::Debug for Reread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reread").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn watched(paths: &[PathBuf]) -> (Reread, mpsc::Receiver<Vec<u8>>) {
        let (told, applied) = mpsc::channel();
        let contents = Contents::read(paths).unwrap();
        let reread = Reread::new("test", paths.to_vec(), &contents, move |contents| {
            let (_, bytes) = contents.at(0);
            if bytes.starts_with(b"bad") {
                return Err("it is bad".to_owned());
            }
            told.send(bytes.to_vec()).unwrap();
            Ok(())
        });
        (reread, applied)
    }

    #[test]
    fn changed_content_is_applied_once_and_the_same_content_never() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        std::fs::write(&path, "one").unwrap();
        let (mut reread, applied) = watched(std::slice::from_ref(&path));
        assert_eq!(reread.poll(), Seen::Unchanged);

        std::fs::write(&path, "two").unwrap();
        assert_eq!(reread.poll(), Seen::Applied);
        assert_eq!(reread.poll(), Seen::Unchanged);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "two").unwrap();
        assert_eq!(reread.poll(), Seen::Unchanged);

        assert_eq!(applied.try_iter().collect::<Vec<_>>(), [b"two".to_vec()]);
    }

    #[test]
    fn bad_content_is_told_at_the_second_poll_and_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        std::fs::write(&path, "one").unwrap();
        let (mut reread, applied) = watched(std::slice::from_ref(&path));

        std::fs::write(&path, "bad").unwrap();
        assert_eq!(reread.poll(), Seen::Unchanged);
        assert_eq!(reread.poll(), Seen::Rejected("it is bad".to_owned()));
        assert_eq!(reread.poll(), Seen::Unchanged);
        std::fs::write(&path, "bad in another way").unwrap();
        assert_eq!(reread.poll(), Seen::Unchanged);
        assert_eq!(reread.poll(), Seen::Rejected("it is bad".to_owned()));
        std::fs::write(&path, "good").unwrap();
        assert_eq!(reread.poll(), Seen::Applied);

        assert_eq!(applied.try_iter().collect::<Vec<_>>(), [b"good".to_vec()]);
    }

    #[test]
    fn what_is_no_regular_file_is_said_to_be_none() {
        let directory = tempfile::tempdir().unwrap();
        let error = Contents::read(&[directory.path().to_owned()]).unwrap_err();
        assert!(matches!(error, FileError::NotRegular(_)), "{error}");
    }

    #[test]
    fn a_file_that_is_gone_or_too_long_leaves_the_last_content_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        std::fs::write(&path, "one").unwrap();
        let (mut reread, _applied) = watched(std::slice::from_ref(&path));

        std::fs::remove_file(&path).unwrap();
        assert_eq!(reread.poll(), Seen::Unchanged);
        assert!(matches!(reread.poll(), Seen::Rejected(text) if text.contains("cannot be read")));
        std::fs::write(&path, vec![b' '; (1 << 20) + 1]).unwrap();
        assert_eq!(reread.poll(), Seen::Unchanged);
        assert!(matches!(reread.poll(), Seen::Rejected(text) if text.contains("longer")));
        std::fs::write(&path, "one").unwrap();
        assert_eq!(reread.poll(), Seen::Unchanged);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(reread.poll(), Seen::Unchanged);
        assert!(matches!(reread.poll(), Seen::Rejected(_)), "it is told again");
    }
}
