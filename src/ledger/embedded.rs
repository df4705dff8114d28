//! The embedded store: one SQLite file, one thread that writes it.
//!
//! What a caller meets is the [desk](super::desk), which puts commands into the writer's queue and
//! waits for the answer. The [writer] runs them in order, many to a commit; the [store] is the SQL,
//! the [finder] the index for keys and digests, [the file](mod@file) what makes a path into a
//! ledger.

pub(in crate::ledger) mod ahead;
pub(in crate::ledger) mod file;
mod finder;
mod known;
mod later;
mod newest;
mod read;
mod rows;
mod store;
mod touched;
mod verify;
mod writer;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use super::chain;
use super::desk::command::{Failure, Inbox};
use super::desk::{Desk, Shared};
use super::{Counts, Head, Integrity, Keys, LedgerError, Pending, Reason, Record};
use crate::contract::key::EntryId;
use file::Identity;
use store::Store;
use writer::{Batch, Retry, Writer};

pub(super) use known::{Coming, Known};
pub(super) use read::FileReader;

/// How the embedded ledger is set up.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The most that the file may take, in bytes. Begins are refused at 85 % of it, the rest is for
    /// finishes. Should be below the volume's size.
    pub size_cap_bytes: Option<u64>,
    /// How long this sidecar's attempts are its own without a sign of life, in a database that it
    /// shares; `None`: 30 s. A file has no use for it.
    pub lease: Option<Duration>,
    /// The keys of the chain over its history.
    pub keys: Keys,
    /// How long what calls held is kept; `None`: for ever.
    pub retention: Option<Duration>,
}

/// What opening found to repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Entries that were begun when their process died, and are unknown since.
    pub unknown: u64,
}

/// Why a ledger could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The database holds no ledger; a sidecar makes one when it starts.
    #[error("the database holds no ledger")]
    Absent,
    /// The file does not read as what was written.
    #[error("the ledger is damaged: {0}")]
    Damaged(String),
    /// The database refused.
    #[error("the database refused: {0}")]
    Database(String),
    /// The file is something else.
    #[error("the file is not a takeback ledger")]
    Foreign,
    /// The folder or file could not be made or read.
    #[error("the ledger's file could not be opened")]
    Io(#[source] std::io::Error),
    /// Another process has it open.
    #[error("another takeback process has the ledger open")]
    Locked,
    /// There was a ledger, and it is gone or empty.
    #[error("the ledger that was here is gone: {traces}")]
    Lost {
        /// What is left of it.
        traces: String,
    },
    /// A later version of takeback wrote it.
    #[error(
        "the ledger has version {found}, and this takeback knows up to {known}: use a newer one"
    )]
    Newer {
        /// The file's version.
        found: i64,
        /// The newest that this program knows.
        known: i64,
    },
    /// It has a version that this takeback can no longer bring up to date.
    #[error("the ledger has version {found}, and this takeback needs {known}")]
    Older {
        /// The file's version.
        found: i64,
        /// The version that this program needs.
        known: i64,
    },
    /// The system gave no random bytes for the ledger's secrets.
    #[error("the system gave no random bytes")]
    Random,
    /// Its volume or folder is read-only, and its log holds entries or a sidecar writes it.
    #[error("the ledger's folder is read-only, and what is in its log can only be read beside it")]
    ReadOnly,
    /// SQLite refused.
    #[error("the ledger could not be read")]
    Sql(#[source] rusqlite::Error),
    /// The database does not answer; it may later.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    /// The ledger's files are not as they were left, or cannot be written.
    #[error("the ledger cannot be used: {0}")]
    Unusable(Reason),
}

impl OpenError {
    /// Whether the same may succeed later, with nothing changed by anybody.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Failure> for OpenError {
    fn from(failure: Failure) -> Self {
        Self::Unusable(failure.reason)
    }
}

/// What opening the file gave.
struct Opening {
    sealing_key: [u8; 32],
    identity: Identity,
    known: Arc<Known>,
    page_bytes: u64,
    /// `None`: its volume has no room, and it is taken up when there is some.
    store: Option<Store>,
    taken: Option<TakenUp>,
}

/// What taking up a ledger found.
struct TakenUp {
    integrity: Integrity,
    /// What was written last here and is not in it.
    lost: Option<Head>,
    /// Entries that were begun when their process died.
    unknown: u64,
}

impl Opening {
    fn take(path: &Path, options: &Options, lock: &File, now_ms: i64) -> Result<Self, OpenError> {
        let (conn, identity) = file::open(path, options)?;
        let sealing_key = file::secret(&conn, "sealing_key")?;
        let page_bytes = file::page_bytes(&conn)?;
        let known = Arc::new(Known::new(file::secret(&conn, "finder_key")?));
        let mut store = Store::new(conn, &options.keys, chain::seed()?, Arc::clone(&known))?;
        let taken = Some(TakenUp::of(&mut store, &identity, options, lock, now_ms)?);
        Ok(Self { sealing_key, identity, known, page_bytes, store: Some(store), taken })
    }

    /// Without writing anything. `error` is why not.
    fn put_off(path: &Path, error: OpenError) -> Result<Self, OpenError> {
        // One that cannot be read as it is cannot be taken up.
        let Ok(opening) = Self::peek(path) else { return Err(error) };
        tracing::error!(
            %error,
            "the ledger's volume is full: reads are served, and writes are refused until there is room"
        );
        Ok(opening)
    }

    fn peek(path: &Path) -> Result<Self, OpenError> {
        let (conn, identity) = file::peek(path)?;
        Ok(Self {
            sealing_key: file::secret(&conn, "sealing_key")?,
            identity,
            // Filled by the store that takes it up; until then nothing is called new.
            known: Arc::new(Known::new(file::secret(&conn, "finder_key")?)),
            page_bytes: file::page_bytes(&conn)?,
            store: None,
            taken: None,
        })
    }
}

impl TakenUp {
    /// Looks at the end of the chain, goes on with it, and makes what is begun unknown.
    fn of(
        store: &mut Store,
        identity: &Identity,
        options: &Options,
        lock: &File,
        now_ms: i64,
    ) -> rusqlite::Result<Self> {
        let tail = verify::tail(store.conn(), &options.keys, &identity.store())?;
        let lost = newest::lost(lock, store.conn(), &identity.store())?;
        let integrity = tail.integrity(lost.as_ref(), now_ms);
        store.conn().execute_batch("BEGIN IMMEDIATE")?;
        store.begin_chain(&identity.store(), now_ms)?;
        let unknown = store.recover(now_ms)?;
        store.conn().execute_batch("COMMIT")?;
        Ok(Self { integrity, lost, unknown })
    }
}

/// A handle to an open ledger file. Clones share it; when the last one goes, what is queued is
/// written and the file is let go.
#[derive(Clone)]
pub struct Embedded {
    desk: Desk,
    path: PathBuf,
    /// What reads beside the writer, while nobody reads: opening a file costs more than most reads.
    reader: Arc<Mutex<Option<Beside>>>,
}

/// A connection that reads, and the files that it is to.
struct Beside {
    files: file::Files,
    ledger: FileReader,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded")
            .field("path", &self.path)
            .field("health", &self.desk.health())
            .finish_non_exhaustive()
    }
}

impl Embedded {
    /// Opens the ledger at `path` and makes it where there never was one: the folder with mode 0700, the
    /// file with 0600. Takes the lock `<path>.lock`, checks the file within bounds, makes every
    /// entry that it finds begun unknown, and starts the writer's thread. Blocks; for the start.
    ///
    /// A ledger that was there before and whose volume has no room is opened all the same: it is down, as
    /// one whose volume fills while it is in use, until there is room.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(
        path: &Path,
        options: Options,
        now_ms: i64,
    ) -> Result<(Self, Recovered), OpenError> {
        // One file has one lock, whatever link it is reached by.
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        file::check_lost(path)?;
        let lock = file::lock(path)?;
        let claimed = path.exists().then(|| file::claim(path)).transpose()?;
        let opening = match Opening::take(path, &options, &lock, now_ms) {
            // What is made by half would be taken for one that was lost.
            Err(error) if claimed.is_none() => {
                file::unmake(path);
                return Err(error);
            }
            // What was there before serves reads, and takes writes when there is room.
            Err(error) if claimed.is_some() && file::is_full(&error, path) => {
                Opening::put_off(path, error)?
            }
            taken => taken?,
        };
        let claim = claimed.map_or_else(|| file::claim(path), Ok)?;
        let Opening { sealing_key, identity, known, page_bytes, store, taken } = opening;
        let recovered = Recovered { unknown: taken.as_ref().map_or(0, |taken| taken.unknown) };
        let shared = Arc::new(Shared::new(sealing_key, now_ms));
        match (&taken, &store) {
            (Some(taken), Some(store)) => {
                shared.set_head(store.head());
                shared.set_integrity(taken.integrity);
            }
            _ => shared.set_down(Some(Reason::Full)),
        }
        let prune_at = options.retention.map(|_| writer::now());
        // Bounded by `turns` and `PENDING`; the channel itself need not block anybody.
        let (commands, queue) = mpsc::channel();
        let mut writer = Writer {
            path: path.to_owned(),
            options,
            shared: Arc::clone(&shared),
            known: Arc::clone(&known),
            commands: queue,
            durable_seq: store.as_ref().map_or(0, Store::newest_seq),
            is_taken_up: taken.is_some(),
            page_bytes,
            store,
            identity,
            log_bytes: file::log_bytes(path),
            is_log_short: Some(false),
            file_bytes: file::length(path),
            newest: newest::Newest::new(taken.and_then(|taken| taken.lost)),
            is_over_cap: false,
            lock,
            claim,
            batch: Batch::default(),
            backlog: VecDeque::new(),
            retry: Retry::new(),
            prune_at,
            dirt: 0,
            commits: 0,
        };
        writer.remember(newest::When::Now);
        std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || writer.run())
            .map_err(OpenError::Io)?;
        let desk = Desk { commands: Inbox::Thread(commands), shared, known: Some(known) };
        Ok((Self { desk, path: path.to_owned(), reader: Arc::default() }, recovered))
    }

    pub(super) async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Pending>, LedgerError> {
        self.read_beside(move |ledger| ledger.due(now_ms, limit)).await
    }

    pub(super) async fn pending(&self, entry: EntryId) -> Result<Option<Pending>, LedgerError> {
        self.read_beside(move |ledger| ledger.pending(entry)).await
    }

    pub(super) async fn superseded(
        &self,
        entry: EntryId,
        beside: HashSet<EntryId>,
    ) -> Result<Option<super::Obstacle>, LedgerError> {
        self.read_beside(move |ledger| ledger.superseded(entry, &beside)).await
    }

    pub(super) async fn obstacles(
        &self,
        plan: Vec<super::Planned>,
    ) -> Result<HashMap<EntryId, super::Obstacle>, LedgerError> {
        self.read_beside(move |ledger| ledger.obstacles(&plan)).await
    }

    pub(super) async fn unknowns(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        self.read_beside(move |ledger| ledger.unknowns(limit)).await
    }

    pub(super) async fn waiting(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        let state = Some(super::State::Waiting);
        let filter = super::Filter { state, limit, ..super::Filter::default() };
        self.read_beside(move |ledger| ledger.list(&filter)).await
    }

    pub(super) async fn counts(&self) -> Result<Counts, LedgerError> {
        self.read_beside(|ledger| ledger.counts()).await
    }

    /// The front.
    pub(super) fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Lets go of what reads beside the writer.
    pub(super) fn stop_reading(&self) {
        drop(kept(&self.reader));
    }

    /// Reads on a connection of its own, so that a long read keeps nobody waiting. It is kept for the
    /// next read of the same files; of two at once one is made for the while.
    async fn read_beside<T: Send + 'static>(
        &self,
        read: impl FnOnce(&FileReader) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let (path, reader, shared) =
            (self.path.clone(), Arc::clone(&self.reader), Arc::clone(&self.desk.shared));
        let reading = tokio::task::spawn_blocking(move || {
            // Before it is opened: files that take their place meanwhile are told apart next time.
            let files = file::Files::at(&path);
            let beside = match kept(&reader).filter(|beside| beside.files == files) {
                Some(beside) => beside,
                None => {
                    let ledger = FileReader::open(&path)
                        .map_err(|_| LedgerError::Unavailable(Reason::Failed))?;
                    Beside { files, ledger }
                }
            };
            // After a failure the next read opens the file anew.
            let answer = read(&beside.ledger)?;
            if shared.health().down != Some(Reason::Closed) {
                *reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(beside);
            }
            Ok(answer)
        });
        reading.await.unwrap_or(Err(LedgerError::Unavailable(Reason::Failed)))
    }
}

fn kept(reader: &Mutex<Option<Beside>>) -> Option<Beside> {
    reader.lock().unwrap_or_else(PoisonError::into_inner).take()
}
