//! Makes the log longer before SQLite writes there.
//!
//! A flush of bytes that overwrite others is one write to the disk. A flush of bytes that make a file
//! longer is a commit of the file system's journal as well: half as much again on an idle machine, and
//! milliseconds where other programs write. SQLite appends to its log until all of it is copied, and
//! then begins anew over what is there; so only a log that never was as long costs the more. Here zeros
//! are put behind its end, while nobody waits. To SQLite they are what any log that began anew has
//! behind its end: frames without its salt, where it stops reading.
//!
//! Limits: [`MOST`] bytes; none where the volume or the ledger's own limit has little room. What fails is
//! not tried again until the ledger is opened anew: the log grows without it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::file::log_path;

/// A log of this length is left alone: somewhat more than what is written between two copies.
const MOST: u64 = 18 * 1024 * 1024;

/// How long a log is at least.
const FIRST: u64 = 1024 * 1024;

/// How much is added at a time: enough that few commits come after it, little enough that one which
/// does waits some milliseconds.
const STEP: u64 = 2 * 1024 * 1024;

/// How much a log has left when it is made longer: what many begins write.
const LEFT: u64 = 512 * 1024;

/// The header of a log, and of each page in it, in bytes.
const HEADERS: (u64, u64) = (32, 24);

/// The least that the volume must have free.
const FREE: u64 = 512 * 1024 * 1024;

/// What one call of the system writes.
const CHUNK: usize = 256 * 1024;

/// Whether the log of the ledger at `path`, `length` bytes long, is nearly written to its end.
pub(super) fn is_short(path: &Path, length: u64, page_bytes: u64) -> bool {
    if length >= MOST {
        return false;
    }
    let frame_bytes = page_bytes.saturating_add(HEADERS.1);
    let Some(room) = length.checked_sub(LEFT + HEADERS.0) else { return true };
    let at = HEADERS.0 + room / frame_bytes * frame_bytes;
    // A page's header begins with its number, and there is no page 0.
    let mut number = [0; 4];
    let read = File::open(log_path(path)).and_then(|log| log.read_exact_at(&mut number, at));
    read.is_ok() && number != [0; 4]
}

/// Puts zeros behind the end of a log that is `length` bytes long, if there is room for them; how long
/// it is then. `cap_bytes` is the ledger's own limit.
pub(super) fn lengthen(path: &Path, length: u64, cap_bytes: Option<u64>) -> io::Result<u64> {
    let to = if length < FIRST { FIRST } else { (length + STEP).min(MOST) };
    let volume = rustix::fs::statvfs(path)?;
    let is_tight = volume.f_bavail.saturating_mul(volume.f_frsize) < FREE
        || cap_bytes.is_some_and(|cap| to > cap / 16);
    if is_tight {
        return Err(io::ErrorKind::StorageFull.into());
    }
    append(path, length, to)?;
    Ok(to)
}

/// Puts zeros behind the end of a log that is `length` bytes long, up to `to`.
pub(in crate::ledger) fn append(path: &Path, length: u64, to: u64) -> io::Result<()> {
    // Not made here: a log that is gone is for others to notice. Each write goes where the file ends: one
    // that is cut off meanwhile stays too short, which the next commit sees.
    let mut log = OpenOptions::new().append(true).open(log_path(path))?;
    if log.metadata()?.len() != length {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let zeros = vec![0; CHUNK];
    let mut at = length;
    while at < to {
        let count = usize::try_from(to - at).unwrap_or(CHUNK).min(CHUNK);
        log.write_all(zeros.get(..count).unwrap_or_default())?;
        at += u64::try_from(count).unwrap_or(0);
    }
    log.sync_data()
}
