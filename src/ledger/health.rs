//! Whether the ledger takes writes, why not, and what it counted.

/// What the ledger counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits made.
    pub commits: u64,
    /// Finishes for another attempt, or of a step that is not legal; not written.
    pub refused: u64,
    /// Finishes that found no room in memory while the store was down: those entries stay begun
    /// and become unknown at the next start.
    pub lost: u64,
    /// Finishes whose answer found no room in memory; the rest of them was kept.
    pub shortened: u64,
    /// Entries of other owners that were begun when their lease ran out, and were made unknown here
    /// since the ledger was opened.
    pub recovered: u64,
    /// Finishes that wait for a commit.
    pub pending: u64,
}

/// What is known of the chain over the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Integrity {
    /// Why begins are refused until somebody acknowledges it: [`Reason::Broken`] or
    /// [`Reason::Outdated`].
    pub flaw: Option<Reason>,
    /// When the end of the chain last verified, or what does not was acknowledged; milliseconds since
    /// 1970. `None`: not since it was opened, since a key was missing.
    pub verified_ms: Option<i64>,
}

/// Whether the store takes writes. Cheap to read; no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// `None`: it does.
    pub down: Option<Reason>,
    /// Since when, by the newest time that a command brought; milliseconds since 1970.
    pub since_ms: i64,
}

impl Health {
    /// Whether the store takes writes, as far as anybody knows.
    pub fn is_ok(&self) -> bool {
        self.down.is_none()
    }
}

/// Why the store takes no writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The end of the chain over its history does not verify, and nobody acknowledged it.
    #[error(
        "its history is not what was written: `takeback ledger verify` says where, and with \
         --acknowledge --why it is used on"
    )]
    Broken,
    /// The ledger was closed.
    #[error("it is closed")]
    Closed,
    /// The file does not read as what was written.
    #[error("its file is damaged")]
    Corrupt,
    /// The volume, or the ledger's own size limit, is full.
    #[error("its volume or its size limit is full")]
    Full,
    /// The device reported an error.
    #[error("its device reports an error")]
    Io,
    /// The lease on the database ran out before it was renewed: others may have taken this sidecar
    /// for dead.
    #[error("its lease has run out")]
    Lease,
    /// Another program holds a write lock on the file.
    #[error("another program holds a lock on its file")]
    Locked,
    /// It does not hold what was written here last, and nobody acknowledged it.
    #[error(
        "it is an older copy, or another ledger, than was written here last: put the newest back, or \
         acknowledge it with `takeback ledger verify --acknowledge --why`"
    )]
    Outdated,
    /// The path holds a file that is not this ledger, or an older copy of it.
    #[error("its file was replaced")]
    Replaced,
    /// The file is not at its path.
    #[error("its file is not at its path")]
    Removed,
    /// No answer in time: the device stands still, or the queue does not move.
    #[error("it did not answer in time")]
    Stalled,
    /// The database cannot be reached, or broke the connection.
    #[error("the database cannot be reached")]
    Unreachable,
    /// Something else; the log has the words.
    #[error("it failed")]
    Failed,
}

impl Reason {
    /// The name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Closed => "closed",
            Self::Corrupt => "corrupt",
            Self::Failed => "failed",
            Self::Full => "full",
            Self::Io => "io",
            Self::Lease => "lease",
            Self::Locked => "locked",
            Self::Outdated => "outdated",
            Self::Removed => "removed",
            Self::Replaced => "replaced",
            Self::Stalled => "stalled",
            Self::Unreachable => "unreachable",
        }
    }
}
