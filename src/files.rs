//! Reading files that others name: policies, catalogs, settings, headers.
//!
//! Only regular files are read, and opening never waits: a pipe that nobody writes to would hold its
//! reader for ever, a device might give bytes without end. Links are followed, because a mounted
//! ConfigMap is made of them. What is read is bounded by the caller.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The most bytes of a file of settings or headers: a few lines.
pub const MAX_SETTINGS: u64 = 1024 * 1024;

/// Opens a regular file for reading.
///
/// # Errors
///
/// What the system says, and [`io::ErrorKind::InvalidInput`] for a folder, a pipe, a socket or a device.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
///
/// As [`open`], and [`io::ErrorKind::FileTooLarge`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= most) {
        return Ok(bytes);
    }
    let message = format!("it has over {most} bytes");
    Err(io::Error::new(io::ErrorKind::FileTooLarge, message))
}

/// Reads a regular file of text.
///
/// # Errors
///
/// As [`read`], and [`io::ErrorKind::InvalidData`] for bytes that are not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    text_of(read(path, most)?)
}

/// Bytes of a file as text.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidData`], with the line of the first byte that is not UTF-8.
pub fn text_of(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let sound = error.utf8_error().valid_up_to();
        let before = error.as_bytes().get(..sound).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count().saturating_add(1);
        let message = format!("it is not UTF-8 in line {line}");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, pipe) = (folder.path().join("plain"), folder.path().join("pipe"));
        std::fs::write(&plain, "text").unwrap();
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&plain, &link).unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();

        assert_eq!(read_text(&plain, 4).unwrap(), "text");
        assert_eq!(read_text(&link, 4).unwrap(), "text");
        let wrong = text_of(b"a\nb\n\xff".to_vec()).unwrap_err();
        assert_eq!(wrong.to_string(), "it is not UTF-8 in line 3");
        assert_eq!(read(&plain, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        for odd in [&pipe, &socket, folder.path(), Path::new("/dev/zero")] {
            assert!(read(odd, 4).is_err(), "{}", odd.display());
        }
    }
}
