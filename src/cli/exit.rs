//! Exit codes, by `sysexits.h`, so that a supervisor can tell a bad setting from a busy port.
//!
//! A policy that cannot be served, unreadable folders included, is [`CONFIG`] for the commands that need
//! one (`run`, `explain`); for the two that are made to judge policies it is a finding of `check`
//! ([`FINDINGS`]) and trouble of `diff` ([`CHECK_USAGE`]), as linters and `diff` itself end.

use std::process::ExitCode;

use crate::app::AppError;
use crate::demo::DemoError;
use crate::ledger::OpenError;

/// All went well.
pub(super) const OK: u8 = 0;
/// `check` found an error, `diff` a change.
pub(super) const FINDINGS: u8 = 1;
/// `check` or `diff` was called wrongly, or `diff` has nothing to compare; linters use it so.
pub(super) const CHECK_USAGE: u8 = 2;
/// `EX_USAGE`: the command was called wrongly.
pub(super) const USAGE: u8 = 64;
/// `EX_DATAERR`: the entry is not there, or the ledger's file or a catalog is not what it should be.
pub(super) const DATA: u8 = 65;
/// `EX_UNAVAILABLE`: no sidecar is running, an address is in use, or the ledger takes no writes.
pub(super) const UNAVAILABLE: u8 = 69;
/// `EX_SOFTWARE`: a defect of takeback.
pub(super) const SOFTWARE: u8 = 70;
/// `EX_OSERR`: the system gives no threads, or no randomness.
pub(super) const SYSTEM: u8 = 71;
/// `EX_CANTCREAT`: a file or socket cannot be made.
pub(super) const CANNOT_CREATE: u8 = 73;
/// `EX_IOERR`: reading or writing failed.
pub(super) const IO: u8 = 74;
/// `EX_TEMPFAIL`: another process has the ledger or the socket; try again later.
pub(super) const TEMPORARY: u8 = 75;
/// `EX_NOPERM`: this user may not.
pub(super) const PERMISSION: u8 = 77;
/// `EX_CONFIG`: the configuration is wrong, or the policy cannot be served.
pub(super) const CONFIG: u8 = 78;

/// A command that ends with a message.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: u8,
    /// For people; what is wrong and what to do.
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<AppError> for Failure {
    fn from(error: AppError) -> Self {
        let (code, help) = match &error {
            AppError::Admin { source, .. } => match source.kind() {
                std::io::ErrorKind::AddrInUse => {
                    (TEMPORARY, "give this sidecar another --ledger or --admin-listen")
                }
                std::io::ErrorKind::PermissionDenied => (PERMISSION, ""),
                _ => (CANNOT_CREATE, "give another --admin-listen"),
            },
            AppError::AdminAddress { .. } => {
                (UNAVAILABLE, "is another process there, or give another --admin-listen")
            }
            AppError::Spans(_) => {
                (CONFIG, "give OTEL_EXPORTER_OTLP_ENDPOINT as http://HOST:4318, or none")
            }
            AppError::Tokens(_) => (CONFIG, "each line is NAME read|operate TOKEN"),
            AppError::Bind(_) => {
                (UNAVAILABLE, "is another process there, or give another --listen")
            }
            AppError::Ledger { source, .. } => open_error(source),
            AppError::Policy { .. } => {
                (CONFIG, "`takeback check DIR` says what is wrong with a policy")
            }
            AppError::Runtime(_) => (SYSTEM, ""),
            AppError::Telemetry { .. } => {
                (UNAVAILABLE, "is another process there, or give another --telemetry-listen")
            }
            AppError::Thread => (SOFTWARE, ""),
        };
        Self::new(code, with_help(&chain(&error), help))
    }
}

impl From<DemoError> for Failure {
    fn from(error: DemoError) -> Self {
        let text = chain(&error);
        let (code, help) = match error {
            DemoError::App(error) => return error.into(),
            DemoError::Config(_) => (SOFTWARE, "is TMPDIR very long? the admin socket lies in it"),
            DemoError::Folder(_) => (CANNOT_CREATE, "may TMPDIR be written?"),
            DemoError::Gateway(_) => (SYSTEM, ""),
            DemoError::Output(_) => (IO, ""),
            DemoError::Step(_) => (SOFTWARE, ""),
        };
        Self::new(code, with_help(&text, help))
    }
}

/// The exit code of a ledger that does not open, and what to do.
pub(super) fn open_error(error: &OpenError) -> (u8, &'static str) {
    match error {
        OpenError::Absent => (DATA, "a sidecar makes one when it starts with this --ledger"),
        OpenError::Database(_) => (
            CONFIG,
            "are user, password and database right, and is the server's certificate one that \
             `sslrootcert` or the system trusts?",
        ),
        OpenError::Damaged(_) | OpenError::Foreign => {
            (DATA, "keep the file for an inquiry, and give another --ledger")
        }
        OpenError::Io(_) => (CANNOT_CREATE, "is the folder there, and may it be written?"),
        OpenError::Locked => (
            TEMPORARY,
            "one sidecar has one ledger: stop the other, or give this one another --ledger",
        ),
        OpenError::Lost { .. } => (
            DATA,
            "restore it from a backup with its -wal, which knows nothing of the calls made since: a \
             repeat of those is sent again; to begin with an empty one, which knows no key, no \
             unknown outcome and no undo, remove what is named",
        ),
        OpenError::Newer { .. } => (DATA, "use the takeback that wrote it, or a later one"),
        OpenError::Older { .. } => (DATA, "use the takeback that wrote it, or another --ledger"),
        OpenError::Random => (SYSTEM, "is /dev/urandom there?"),
        OpenError::ReadOnly => {
            (IO, "copy the ledger with its -wal into a folder that may be written, and read that")
        }
        OpenError::Sql(error)
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) =>
        {
            (DATA, "is it a ledger? keep the file for an inquiry, and give another --ledger")
        }
        OpenError::Sql(error)
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) =>
        {
            (
                IO,
                "make room on the ledger's volume; reads are served without it by a sidecar that has a ledger",
            )
        }
        OpenError::Sql(error)
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseCorrupt) =>
        {
            (DATA, "keep the file for an inquiry, and restore it from a backup with its -wal")
        }
        OpenError::Sql(error)
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::SystemIoFailure) =>
        {
            (IO, "look at the ledger's volume: is it there, writable and not full?")
        }
        OpenError::Sql(error)
            if matches!(
                error.sqlite_error_code(),
                Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
            ) =>
        {
            (TEMPORARY, "another program holds it, a shell or a backup: end that, and start again")
        }
        OpenError::Sql(_) => {
            (IO, "is it a file, not a folder, and may this user read it and what is beside it?")
        }
        OpenError::Unusable(_) => (IO, "look at its volume: is it there, writable and not full?"),
        OpenError::Unreachable(_) => (UNAVAILABLE, "does the database run, and at this address?"),
    }
}

/// An error and its causes on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

pub(super) fn with_help(message: &str, help: &str) -> String {
    if help.is_empty() { message.to_owned() } else { format!("{message}\n  help: {help}") }
}

/// Turns a command's result into the process's end.
pub(super) fn end(result: Result<u8, Failure>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, message }) => {
            super::out::complain(&format!("takeback: {message}"));
            ExitCode::from(code)
        }
    }
}
