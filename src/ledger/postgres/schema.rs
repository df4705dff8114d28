//! The schema: made where there is none, brought up to date, refused where it is newer.
//!
//! The version stands in `takeback.version`, one row that is locked while anything is changed; so of
//! sidecars that start together one makes the tables, and the others wait and find them.

use crate::ledger::{OpenError, Reason};

use super::session::{Fault, Session};
use crate::ledger::desk::command::Failure;

/// The schema version of this program.
pub(super) const VERSION: i64 = 4;

/// The steps from each older version to the next, from 1 on.
const UPGRADES: &[&str] =
    &[include_str!("to_2.sql"), include_str!("to_3.sql"), include_str!("to_4.sql")];

/// How often the making is tried: sidecars that start together meet in it.
const TRIES: usize = 10;

const EXISTS: &str = "SELECT 1 FROM pg_catalog.pg_class c \
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = 'takeback' AND c.relname = 'version'";

const MAKE: &str = "CREATE SCHEMA IF NOT EXISTS takeback; \
     CREATE TABLE IF NOT EXISTS takeback.version (\
       one boolean PRIMARY KEY DEFAULT true CHECK (one), version bigint NOT NULL); \
     INSERT INTO takeback.version (one, version) VALUES (true, 0) ON CONFLICT DO NOTHING";

const READ: &str = "SELECT version FROM takeback.version";

const READ_LOCKED: &str = "SELECT version FROM takeback.version FOR UPDATE";

const SET_VERSION: &str = "UPDATE takeback.version SET version = $1";

const NEWEST: &str = "SELECT at_ms FROM takeback.history ORDER BY seq DESC LIMIT 1";

const SECRET: &str =
    "INSERT INTO takeback.meta (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";

const META: &str = "SELECT value FROM takeback.meta WHERE name = $1";

/// Makes or brings up to date what is there.
///
/// # Errors
///
/// [`OpenError::Newer`] and [`OpenError::Older`]; what the database says.
pub(super) async fn bring_up(session: &Session) -> Result<(), OpenError> {
    if version(session).await? == Some(VERSION) {
        return Ok(());
    }
    let mut met = 0;
    loop {
        match try_bring_up(session).await {
            Ok(()) => return Ok(()),
            Err(Step::Open(error)) => return Err(error),
            // Two that make the same name at the same moment: the loser's error has many codes.
            Err(Step::Fault(Fault::Met | Fault::Refused(_))) if met < TRIES => {
                met += 1;
                session.run("ROLLBACK").await?;
            }
            Err(Step::Fault(fault)) => return Err(fault.into()),
        }
    }
}

enum Step {
    Fault(Fault),
    Open(OpenError),
}

impl From<Fault> for Step {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

async fn try_bring_up(session: &Session) -> Result<(), Step> {
    if session.query(EXISTS, &[]).await?.is_empty() {
        session.run(MAKE).await?;
    }
    session.run("BEGIN").await?;
    let rows = session.query(READ_LOCKED, &[]).await?;
    let found: i64 = match rows.first() {
        Some(row) => super::rows::column(row, 0)?,
        None => return Err(Step::Open(OpenError::Foreign)),
    };
    if found == 0 {
        session.run(include_str!("schema.sql")).await?;
        for name in ["store", "sealing_key", "finder_key"] {
            let mut secret = [0; 32];
            getrandom::fill(&mut secret).map_err(|_| Step::Open(OpenError::Random))?;
            session.query(SECRET, &[&name, &&secret[..]]).await?;
        }
        finish(session).await?;
    } else if found != VERSION {
        let done = usize::try_from(found).ok().and_then(|found| found.checked_sub(1));
        let Some(steps) = done.and_then(|done| UPGRADES.get(done..)).filter(|_| found < VERSION)
        else {
            session.run("ROLLBACK").await?;
            return Err(Step::Open(mismatch(found)));
        };
        for step in steps {
            // An index over many entries takes its time.
            session.run_long(step).await?;
        }
        finish(session).await?;
        tracing::info!(from = found, to = VERSION, "the ledger was brought up to date");
    }
    session.run("COMMIT").await?;
    Ok(())
}

/// Makes the views and notes the version.
async fn finish(session: &Session) -> Result<(), Fault> {
    session.run(include_str!("views.sql")).await?;
    session.query(SET_VERSION, &[&VERSION]).await.map(drop)
}

/// The newest time that the history knows, of whatever version; 0 if there is none.
pub(super) async fn newest_ms(session: &Session) -> Result<i64, OpenError> {
    if session.query(EXISTS, &[]).await?.is_empty() {
        return Ok(0);
    }
    let rows = session.query(NEWEST, &[]).await?;
    Ok(rows.first().map(|row| super::rows::column(row, 0)).transpose()?.unwrap_or(0))
}

/// Fails unless the schema is there and of this version; changes nothing.
pub(super) async fn check(session: &Session) -> Result<(), OpenError> {
    match version(session).await? {
        Some(VERSION) => Ok(()),
        Some(0) | None => Err(OpenError::Absent),
        Some(found) => Err(mismatch(found)),
    }
}

/// The version that is there.
async fn version(session: &Session) -> Result<Option<i64>, OpenError> {
    if session.query(EXISTS, &[]).await?.is_empty() {
        return Ok(None);
    }
    let rows = session.query(READ, &[]).await?;
    match rows.first() {
        Some(row) => Ok(Some(super::rows::column(row, 0)?)),
        None => Ok(None),
    }
}

fn mismatch(found: i64) -> OpenError {
    if found > VERSION {
        OpenError::Newer { found, known: VERSION }
    } else {
        OpenError::Older { found, known: VERSION }
    }
}

/// One of the ledger's secrets.
pub(super) async fn secret(session: &Session, name: &'static str) -> Result<[u8; 32], Fault> {
    let rows = session.query(META, &[&name]).await?;
    let value: Option<Vec<u8>> = rows.first().map(|row| super::rows::column(row, 0)).transpose()?;
    let secret = value.and_then(|value| value.try_into().ok());
    let absent = || Failure::new(Reason::Corrupt, "one of its secrets is not there");
    secret.ok_or_else(|| Fault::Down(absent()))
}

const DURABILITY: &str =
    "SELECT current_setting('synchronous_commit', true), current_setting('fsync', true)";

/// Makes sure that a commit is durable when it is acknowledged, as far as a client can.
pub(super) async fn insist_on_durability(session: &Session) -> Result<(), Fault> {
    let rows = session.query(DURABILITY, &[]).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let commit: Option<String> = super::rows::column(row, 0)?;
    let fsync: Option<String> = super::rows::column(row, 1)?;
    // Stronger settings stay.
    if commit.as_deref() == Some("off") {
        session.run("SET synchronous_commit = on").await?;
    }
    if fsync.as_deref() == Some("off") {
        tracing::warn!("the database runs with fsync off: a power failure loses entries");
    }
    Ok(())
}
