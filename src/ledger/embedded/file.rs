//! The file: its lock, its making, the settings of a connection, its version and its identity.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};

use crate::ledger::Reason;

use super::super::desk::command::Failure;
use super::{OpenError, Options, touched};

/// Marks a SQLite file as a ledger of ours ("tkbk").
const APPLICATION_ID: i64 = 0x746b_626b;

/// The schema version that this program reads and writes.
pub(super) const VERSION: i64 = 5;

/// The steps from each older version to the next, from 1 on.
const STEPS: &[&str] = &[
    include_str!("to_2.sql"),
    include_str!("to_3.sql"),
    include_str!("to_4.sql"),
    include_str!("to_5.sql"),
];

/// How long a command waits for another program's lock on the file.
const BUSY: Duration = Duration::from_millis(500);

/// Page cache in KiB.
const CACHE_KIB: i64 = 16 * 1024;

/// The log is cut back to this size when it starts anew.
const LOG_BYTES: i64 = 32 * 1024 * 1024;

/// Files up to this size are checked whole at the start, larger ones at their end.
const WHOLE_CHECK_BYTES: u64 = 16 * 1024 * 1024;

/// How many of the newest steps are read at the start of a larger file.
const TAIL: i64 = 1024;

/// Which file it is: device and inode of the database and of its log, and the ledger's own id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    file: (u64, u64),
    log: (u64, u64),
    store: [u8; 16],
}

impl Identity {
    fn of(path: &Path, store: [u8; 16]) -> Result<Self, Failure> {
        Ok(Self { file: inode(path)?, log: inode(&beside(path, "-wal"))?, store })
    }

    /// The ledger's own id.
    pub(super) fn store(&self) -> [u8; 16] {
        self.store
    }

    /// Whether file and log are still at their paths; how long the log is. Two `stat` calls.
    pub(super) fn check(&self, path: &Path) -> Result<u64, Failure> {
        let file = inode(path)?;
        let (log, log_bytes) = place(&log_path(path))?;
        if (Self { file, log, store: self.store }) == *self {
            Ok(log_bytes)
        } else {
            Err(Failure::new(Reason::Replaced, "another file is at its path"))
        }
    }
}

/// The files at a ledger's path: device and inode of database, log and index, where there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Files([Option<(u64, u64)>; 3]);

impl Files {
    /// Three `stat` calls.
    pub(super) fn at(path: &Path) -> Self {
        Self(["", "-wal", "-shm"].map(|suffix| inode(&beside(path, suffix)).ok()))
    }
}

/// Removes a ledger that was being made, and all that was made beside it.
pub(super) fn unmake(path: &Path) {
    let beside = TRACES.iter().map(|suffix| beside(path, suffix));
    for path in std::iter::once(path.to_owned()).chain(beside) {
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(%error, "a part of a ledger that could not be made stays");
        }
    }
}

/// What a ledger leaves beside its file.
const TRACES: [&str; 4] = ["-wal", "-shm", ".lock", ".sock"];

/// Refuses to make a ledger where one was: an empty one would know no key, and the same key would make
/// a second effect. A file without a byte is a ledger that was lost, too.
pub(super) fn check_lost(path: &Path) -> Result<(), OpenError> {
    let name = |path: &Path| path.display().to_string();
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() && metadata.len() == 0 => {
            Err(OpenError::Lost { traces: name(path) })
        }
        // SQLite takes the index away before the log: an index alone is left by whoever removed the log,
        // or did not bring it along, and what was in it would be sent again.
        Ok(_) if beside(path, "-shm").exists() && !beside(path, "-wal").exists() => {
            let (index, log) = (beside(path, "-shm"), beside(path, "-wal"));
            Err(OpenError::Lost { traces: format!("{} without {}", name(&index), name(&log)) })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let beside = TRACES.iter().map(|suffix| beside(path, suffix));
            let traces: Vec<String> =
                beside.filter(|path| path.symlink_metadata().is_ok()).map(|p| name(&p)).collect();
            if traces.is_empty() {
                Ok(())
            } else {
                Err(OpenError::Lost { traces: traces.join(", ") })
            }
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Takes the lock on the file itself, by whatever name or mount it is reached: the one beside it belongs
/// to a path, and can be removed. To be held until no connection of this process is left, since closing
/// any descriptor of the file drops the locks that SQLite holds on it.
pub(super) fn claim(path: &Path) -> Result<File, OpenError> {
    let file = File::open(path).map_err(OpenError::Io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked),
        Err(TryLockError::Error(error)) => Err(OpenError::Io(error)),
    }
}

/// Makes the folder and takes the lock that admits one writer.
pub(super) fn lock(path: &Path) -> Result<File, OpenError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(OpenError::Io)?;
    }
    // Purposefully not the database itself: closing any descriptor of that would drop the locks
    // that SQLite holds on it.
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(beside(path, ".lock"))
        .map_err(OpenError::Io)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked),
        Err(TryLockError::Error(error)) => Err(OpenError::Io(error)),
    }
}

/// Opens the ledger at its path, and makes it where there is none.
pub(super) fn open(path: &Path, options: &Options) -> Result<(Connection, Identity), OpenError> {
    let is_new = match OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Ok(_file) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(OpenError::Io(error)),
    };
    let conn = connect(path)?;
    let version: i64 = pragma(&conn, "user_version")?;
    let application: i64 = pragma(&conn, "application_id")?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if is_new {
        make(&conn)?;
        tracing::warn!(path = %path.display(), "there was no ledger here; a new, empty one was made");
    } else if version == 0 && application == 0 && tables == 0 {
        return Err(OpenError::Lost { traces: path.display().to_string() });
    } else if application != APPLICATION_ID {
        return Err(OpenError::Foreign);
    } else if version > VERSION {
        return Err(OpenError::Newer { found: version, known: VERSION });
    }
    settle(&conn, options)?;
    check(&conn, path)?;
    if !is_new && version < VERSION {
        bring_up(&conn, version)?;
    }
    let identity = identify(&conn, path)?;
    Ok((conn, identity))
}

/// Opens a ledger again that failed while it was in use; it must be the same one.
pub(super) fn reopen(
    path: &Path,
    options: &Options,
    before: &Identity,
) -> Result<(Connection, Identity), Failure> {
    inode(path)?;
    let conn = connect(path)?;
    let version: i64 = pragma(&conn, "user_version")?;
    let application: i64 = pragma(&conn, "application_id")?;
    if application != APPLICATION_ID || version != VERSION {
        return Err(Failure::new(Reason::Replaced, "another kind of file is at its path"));
    }
    settle(&conn, options)?;
    let identity = identify(&conn, path)?;
    if identity.store != before.store {
        return Err(Failure::new(Reason::Replaced, "another ledger is at its path"));
    }
    Ok((conn, identity))
}

/// Opens a ledger of this version as a file that nobody changes: what stands in its log is not seen. For
/// one that is there and cannot be written.
pub(super) fn peek(path: &Path) -> Result<(Connection, Identity), OpenError> {
    let conn = checked(Connection::open_with_flags(unchanging(path), UNCHANGING)?)?;
    let store =
        conn.query_row("SELECT value FROM meta WHERE name = 'store'", [], |row| row.get(0))?;
    // Its log may not be there: file and log are looked at again before anything is written.
    let identity = Identity { file: (0, 0), log: (0, 0), store };
    Ok((conn, identity))
}

/// Whether a ledger could not be opened because its volume has no room.
pub(super) fn is_full(error: &OpenError, path: &Path) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match error {
        OpenError::Sql(error) => Failure::of(error).is_some_and(|failure| {
            failure.reason == Reason::Full || (failure.reason == Reason::Io && is_nearly_full(path))
        }),
        OpenError::Unusable(reason) => *reason == Reason::Full,
        OpenError::Io(error) => matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull),
        _ => false,
    }
}

/// The newest time that a ledger of this or an older version knows, in milliseconds since 1970.
pub(super) fn newest_ms(path: &Path) -> Result<i64, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY)?;
    if pragma::<i64>(&conn, "application_id")? != APPLICATION_ID {
        return Err(OpenError::Foreign);
    }
    let newest: Option<i64> =
        conn.query_row("SELECT max(seq), at_ms FROM history", [], |row| row.get(1))?;
    Ok(newest.unwrap_or(0))
}

/// Opens the ledger for reading, beside a running writer or without one.
///
/// A reader beside a writer needs a shared index beside the file. Where that cannot be made, because the
/// volume or the folder is read-only, the file is read as one that nobody changes: only if nobody writes
/// it and its log is empty.
pub(super) fn open_read_only(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    match checked(conn) {
        Err(OpenError::Sql(error))
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::CannotOpen) =>
        {
            open_unchanging(path)
        }
        opened => opened,
    }
}

/// Opens a ledger that nobody writes, without touching anything beside it.
pub(in crate::ledger) fn open_unchanging(path: &Path) -> Result<Connection, OpenError> {
    let has_log = log_bytes(path) > 0;
    let is_written = File::open(beside(path, ".lock"))
        .is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)));
    if has_log || is_written {
        return Err(OpenError::ReadOnly);
    }
    checked(Connection::open_with_flags(unchanging(path), UNCHANGING)?)
}

/// How a file that nobody changes is opened.
const UNCHANGING: OpenFlags = OpenFlags::SQLITE_OPEN_READ_ONLY
    .union(OpenFlags::SQLITE_OPEN_NO_MUTEX)
    .union(OpenFlags::SQLITE_OPEN_URI);

/// Its name then.
fn unchanging(path: &Path) -> String {
    let name = percent_encoding::percent_encode(
        path.as_os_str().as_encoded_bytes(),
        percent_encoding::NON_ALPHANUMERIC,
    );
    format!("file:{name}?immutable=1")
}

/// A connection to a ledger of this version.
fn checked(conn: Connection) -> Result<Connection, OpenError> {
    conn.busy_timeout(BUSY)?;
    let version: i64 = pragma(&conn, "user_version")?;
    if pragma::<i64>(&conn, "application_id")? != APPLICATION_ID {
        return Err(OpenError::Foreign);
    }
    match version {
        VERSION => Ok(conn),
        found if found > VERSION => Err(OpenError::Newer { found, known: VERSION }),
        found => Err(OpenError::Older { found, known: VERSION }),
    }
}

/// How many pages of the log are not copied into the file.
pub(super) fn uncopied(conn: &Connection) -> usize {
    let pages: rusqlite::Result<(i64, i64)> = conn
        .prepare_cached("PRAGMA wal_checkpoint(NOOP)")
        .and_then(|mut noop| noop.query_row([], |row| Ok((row.get(1)?, row.get(2)?))));
    // If it cannot tell, all of them are.
    pages.map_or(usize::MAX, |(log, copied)| usize::try_from(log - copied).unwrap_or(0))
}

/// Where the log is.
pub(super) fn log_path(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

/// The length of the log; 0 if there is none.
pub(super) fn log_bytes(path: &Path) -> u64 {
    std::fs::metadata(log_path(path)).map_or(0, |metadata| metadata.len())
}

/// Refuses a log that is shorter than it was after the last commit: SQLite would write on behind the
/// gap, and what was in it would be gone at the next start. It is cut by ourselves to [`LOG_BYTES`] at
/// the least.
pub(super) fn check_log(path: &Path, before_bytes: u64) -> Result<(), Failure> {
    let least = before_bytes.min(LOG_BYTES.unsigned_abs());
    // One that is not there is for `Identity::check` to name.
    match std::fs::metadata(beside(path, "-wal")) {
        Ok(log) if log.len() < least => Err(Failure::new(Reason::Corrupt, "its log was cut off")),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// How long the file is; 0 if there is none.
pub(super) fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Refuses a file that is shorter than it was: it never shrinks. SQLite notices only when it reads a page
/// that it does not hold, and would write on around the gap.
pub(super) fn check_length(path: &Path, before_bytes: u64) -> Result<(), Failure> {
    // One that is not there is for `Identity::check` to name.
    match std::fs::metadata(path) {
        Ok(file) if file.len() < before_bytes => {
            Err(Failure::new(Reason::Corrupt, "its file was cut off"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// What of a volume is kept for finishes and for the log's own copying, at most: what all finishes that
/// wait in memory may hold.
const ROOM_BYTES: u64 = 64 * 1024 * 1024;

/// Whether the volume is nearly full, so that only finishes are still taken: one that found no room
/// would leave a call that was answered as accepted begun in the ledger. Of a small volume a sixteenth is
/// kept.
pub(super) fn is_nearly_full(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|volume| {
        let total = volume.f_blocks.saturating_mul(volume.f_frsize);
        is_low(volume.f_bavail.saturating_mul(volume.f_frsize), total)
    })
}

fn is_low(free_bytes: u64, total_bytes: u64) -> bool {
    // A volume of no known size is none that fills.
    total_bytes > 0 && free_bytes < ROOM_BYTES.min(total_bytes / 16)
}

/// A secret that the ledger keeps.
pub(super) fn secret(conn: &Connection, name: &str) -> rusqlite::Result<[u8; 32]> {
    conn.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get(0))
}

/// What the ledger takes on its volume, in bytes: pages in use, and the log.
pub(super) fn used_bytes(conn: &Connection, path: &Path) -> rusqlite::Result<u64> {
    let pages: u64 = pragma::<i64>(conn, "page_count")?
        .saturating_sub(pragma(conn, "freelist_count")?)
        .try_into()
        .unwrap_or(0);
    Ok(pages.saturating_mul(page_bytes(conn)?).saturating_add(log_bytes(path)))
}

/// The size of a page.
pub(super) fn page_bytes(conn: &Connection) -> rusqlite::Result<u64> {
    Ok(pragma::<i64>(conn, "page_size")?.try_into().unwrap_or(0))
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    // Not created here: a ledger that vanished must not come back empty.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY)?;
    // Closing would remove the log by its path, which may be another's by then.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // Without it every value bound to some statements makes SQLite parse and plan them again.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.set_prepared_statement_cache_capacity(96);
    Ok(conn)
}

fn make(conn: &Connection) -> Result<(), OpenError> {
    let mut random = [0; 80];
    getrandom::fill(&mut random).map_err(|_| OpenError::Random)?;
    let (store, keys) = random.split_at(16);
    let (sealing, finder) = keys.split_at(32);
    conn.execute_batch("BEGIN IMMEDIATE")?;
    conn.execute_batch(include_str!("schema.sql"))?;
    conn.execute_batch(include_str!("views.sql"))?;
    conn.execute(
        "INSERT INTO meta (name, value) VALUES ('store', ?1), ('sealing_key', ?2), \
         ('finder_key', ?3), ('indexed_to', 0), ('indexed', 0), ('filed_to', 0), \
         ('heartbeat_ms', 0)",
        (store, sealing, finder),
    )?;
    conn.pragma_update(None, "application_id", APPLICATION_ID)?;
    conn.pragma_update(None, "user_version", VERSION)?;
    conn.execute_batch("COMMIT")?;
    Ok(())
}

/// Brings an older ledger up to this version, whole or not at all.
fn bring_up(conn: &Connection, found: i64) -> Result<(), OpenError> {
    let done = usize::try_from(found).ok().and_then(|found| found.checked_sub(1));
    let steps = done.and_then(|done| STEPS.get(done..));
    let steps = steps.ok_or(OpenError::Older { found, known: VERSION })?;
    conn.execute_batch("BEGIN IMMEDIATE")?;
    for step in steps {
        conn.execute_batch(step)?;
    }
    touched::move_rows(conn)?;
    conn.execute_batch(include_str!("views.sql"))?;
    conn.pragma_update(None, "user_version", VERSION)?;
    conn.execute_batch("COMMIT")?;
    tracing::info!(from = found, to = VERSION, "the ledger was brought up to date");
    Ok(())
}

fn settle(conn: &Connection, options: &Options) -> rusqlite::Result<()> {
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(rusqlite::Error::InvalidParameterName("journal_mode".to_owned()));
    }
    // FULL: the log is flushed at every commit. NORMAL would lose begins with the power.
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
    if let Some(cap) = options.size_cap_bytes {
        let page_bytes: i64 = pragma(conn, "page_size")?;
        let pages = i64::try_from(cap).unwrap_or(i64::MAX) / page_bytes.max(1);
        conn.pragma_update(None, "max_page_count", pages.max(1))?;
    }
    Ok(())
}

/// A bounded check: the whole file if it is small, else the newest steps and their entries.
fn check(conn: &Connection, path: &Path) -> Result<(), OpenError> {
    let is_small = std::fs::metadata(path).map_err(OpenError::Io)?.len() <= WHOLE_CHECK_BYTES;
    if is_small {
        let verdict: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        return if verdict == "ok" { Ok(()) } else { Err(OpenError::Damaged(verdict)) };
    }
    let strays: i64 = conn.query_row(
        "SELECT count(*) FROM (SELECT seq, entry FROM history ORDER BY seq DESC LIMIT ?1) h \
         LEFT JOIN entry e ON e.number = h.entry \
         WHERE h.entry <> 0 AND (e.number IS NULL OR e.version < h.seq OR length(e.id) <> 16)",
        [TAIL],
        |row| row.get(0),
    )?;
    if strays == 0 {
        Ok(())
    } else {
        Err(OpenError::Damaged(format!("{strays} of the newest steps do not fit their entries")))
    }
}

fn identify(conn: &Connection, path: &Path) -> Result<Identity, Failure> {
    let store: Option<[u8; 16]> = conn
        .query_row("SELECT value FROM meta WHERE name = 'store'", [], |row| row.get(0))
        .optional()?;
    let store = store.ok_or_else(|| Failure::new(Reason::Corrupt, "it has no id"))?;
    Identity::of(path, store)
}

fn pragma<T: rusqlite::types::FromSql>(conn: &Connection, name: &str) -> rusqlite::Result<T> {
    conn.prepare_cached(&format!("PRAGMA {name}"))?.query_row([], |row| row.get(0))
}

fn inode(path: &Path) -> Result<(u64, u64), Failure> {
    place(path).map(|(inode, _)| inode)
}

/// Device and inode of the file at a path, and its length.
fn place(path: &Path) -> Result<((u64, u64), u64), Failure> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(((metadata.dev(), metadata.ino()), metadata.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Failure::new(Reason::Removed, "no file is at its path"))
        }
        Err(error) => Err(Failure::new(Reason::Io, &error.to_string())),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h1_a_part_of_the_volume_is_kept_for_finishes() {
        let mib = 1024 * 1024;
        for (free, total, expected) in [
            (64 * mib, 1024 * mib, false),
            (64 * mib - 1, 1024 * mib, true),
            (63 * mib, 100_000 * mib, true),
            (mib / 16, mib, false),
            (mib / 16 - 1, mib, true),
            (0, mib, true),
            (0, 0, false),
        ] {
            assert_eq!(is_low(free, total), expected, "{free} of {total}");
        }
    }
}
