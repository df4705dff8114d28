//! The chain of one sidecar in the database: its beginning, its rows, and reading it again.
//!
//! A batch links its rows in memory and writes them in its transaction. If that is rolled back, the
//! chain goes back too; if nobody knows, it is read again when the database is back. Nobody else
//! writes it: an owner that was taken for dead gets a new id, and with it a new chain.

use uuid::Uuid;

use super::rows::{self, column};
use super::session::{Fault, Param, Session};
use crate::ledger::OpenError;
use crate::ledger::chain::row::{Content, First, Row};
use crate::ledger::chain::verify::{CHAIN, beginning};
use crate::ledger::chain::{Chain, Head, Keys, Seal, seed};

const NUMBER: &str = "INSERT INTO takeback.chain (number, owner) \
     SELECT coalesce(max(number), 0) + 1, $1 FROM takeback.chain \
     ON CONFLICT DO NOTHING RETURNING number";

/// A row that belongs to no entry.
pub(super) const STEP: &str = "INSERT INTO takeback.history (seq, entry, at_ms, to_state, attempt, noted, \
     detail, chain, place, seal, who, why) \
     VALUES ($1, $2, $3, 0, 0, $4, $5, $6, $7, $8, $9, $10)";

const NEXT: &str = "SELECT nextval('takeback.step')";

/// Behind the newest row that is known: nothing of this chain lies before it.
const NEWEST: &str = "SELECT seq, place, seal FROM takeback.history \
     WHERE seq >= $1 AND chain = $2 ORDER BY seq DESC LIMIT 1";

/// What a connection that writes prepares.
pub(super) const STATEMENTS: &[&str] = &[NUMBER, STEP, NEXT, NEWEST];

/// How often a number is asked for: sidecars that start together meet in it.
const TRIES: usize = 100;

/// A chain that is being written.
#[derive(Debug)]
pub(super) struct Chained {
    pub(super) number: i64,
    chain: Chain,
    /// A row of it that was committed, the newest that is known.
    known: i64,
    /// The newest row that was linked.
    newest: i64,
}

/// Where a chain stood, to go back to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    head: Head,
    newest: i64,
}

/// What is stored beside a row.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) place: i64,
    pub(super) seal: Vec<u8>,
}

impl Chained {
    /// Begins the chain of a new owner.
    pub(super) async fn begin(
        session: &Session,
        owner: Uuid,
        keys: &Keys,
        store: &[u8],
        now_ms: i64,
    ) -> Result<Self, Fault> {
        for _ in 0..TRIES {
            session.run("BEGIN").await?;
            match Self::try_begin(session, owner, keys, store, now_ms).await {
                Ok(Some(chained)) => {
                    session.run("COMMIT").await?;
                    return Ok(chained);
                }
                Ok(None) | Err(Fault::Met) => session.run("ROLLBACK").await?,
                Err(fault) => {
                    // The connection may be gone; the roll-back then came of itself.
                    drop(session.run("ROLLBACK").await);
                    return Err(fault);
                }
            }
        }
        Err(Fault::Met)
    }

    /// `None`: another took the number.
    async fn try_begin(
        session: &Session,
        owner: Uuid,
        keys: &Keys,
        store: &[u8],
        now_ms: i64,
    ) -> Result<Option<Self>, Fault> {
        let rows = session.query(NUMBER, &[&owner]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let number: i64 = column(row, 0)?;
        let rows = session.query(NEXT, &[]).await?;
        let seq: i64 = column(rows.first().ok_or_else(rows::damaged)?, 0)?;
        let seed = seed().map_err(|error: OpenError| Fault::Refused(error.to_string()))?;
        let chain = Chain::new(keys.current(), None, seed);
        let mut chained = Self { number, chain, known: seq, newest: seq };
        let detail = beginning(number, chained.chain.key(), store);
        let row =
            Row { seq, at_ms: now_ms, noted: Some(CHAIN), detail: Some(&detail), ..Row::default() };
        let mut pipe = session.pipe();
        pipe.add(STEP, chained.own(&row));
        pipe.run_all().await?;
        Ok(Some(chained))
    }

    /// A number for a step; higher than all before.
    pub(super) async fn next_seq(&self, session: &Session) -> Result<i64, Fault> {
        let rows = session.query(NEXT, &[]).await?;
        column(rows.first().ok_or_else(rows::damaged)?, 0)
    }

    /// Commits to what is left of a content after a redaction.
    pub(super) fn commit(&mut self, content: Content<'_>) -> ([u8; 16], [u8; 32]) {
        self.chain.commit(content)
    }

    /// Links a row that belongs to no entry; as [`STEP`] takes it.
    pub(super) fn own(&mut self, row: &Row<'_>) -> Vec<Param> {
        let Link { place, seal } = self.link(row, None, Content::None);
        vec![
            Box::new(row.seq),
            Box::new(Uuid::nil()),
            Box::new(row.at_ms),
            Box::new(row.noted.map(str::to_owned)),
            Box::new(row.detail.map(str::to_owned)),
            Box::new(self.number),
            Box::new(place),
            Box::new(seal),
            Box::new(row.who.map(str::to_owned)),
            Box::new(row.why.map(str::to_owned)),
        ]
    }

    /// Where it ends, with what is linked and not yet committed.
    pub(super) fn head(&self) -> Head {
        self.chain.head()
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { head: self.chain.head(), newest: self.newest }
    }

    /// After a roll-back.
    pub(super) fn go_back(&mut self, mark: Mark) {
        self.chain.set_head(Some(mark.head));
        self.newest = mark.newest;
    }

    /// After a commit.
    pub(super) fn committed(&mut self) {
        self.known = self.newest;
    }

    /// Links a row.
    pub(super) fn link(
        &mut self,
        row: &Row<'_>,
        first: Option<&First<'_>>,
        content: Content<'_>,
    ) -> Link {
        self.newest = self.newest.max(row.seq);
        let seal = self.chain.seal(row, first, content).to_bytes();
        Link { place: i64::try_from(self.chain.head().length).unwrap_or(i64::MAX), seal }
    }

    /// Reads again where it ends: the answer to a commit was lost.
    pub(super) async fn read_again(&mut self, session: &Session) -> Result<(), Fault> {
        let rows = session.query(NEWEST, &[&self.known, &self.number]).await?;
        let row = rows.first().ok_or_else(rows::damaged)?;
        let (seq, place): (i64, i64) = (column(row, 0)?, column(row, 1)?);
        let seal: Vec<u8> = column(row, 2)?;
        let link = Seal::from_bytes(&seal).ok_or_else(rows::damaged)?.link;
        let length = u64::try_from(place).map_err(|_| rows::damaged())?;
        self.chain.set_head(Some(Head { link, length }));
        self.known = seq;
        self.newest = seq;
        Ok(())
    }
}

/// The name of an entry as the chain takes it.
pub(super) fn entry_bytes(id: &Uuid) -> &[u8] {
    id.as_bytes()
}
