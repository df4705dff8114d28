//! Reading the history of a database in the order of its steps, which is that of each of its chains.

use tokio_postgres::Row;
use uuid::Uuid;

use super::rows::{column, damaged, number};
use super::session::{Fault, Session};
use crate::ledger::chain::Keys;
use crate::ledger::chain::breaks::Tail;
use crate::ledger::chain::line::{Holder, Line, Linked, line_columns};
use crate::ledger::chain::verify::Verifier;

/// Rows in one read.
pub(super) const PAGE: i64 = 512;

/// One snapshot for all reads: a row of a lower number may be committed after one of a higher.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";

/// The columns of a [`Line`], in the order of [`line`].
macro_rules! lines {
    ($from:literal, $rest:literal) => {
        concat!(
            "SELECT ",
            line_columns!(),
            ", h.chain, h.place FROM ",
            $from,
            " LEFT JOIN takeback.entry e ON e.id = h.entry \
             LEFT JOIN takeback.image i ON i.entry = h.entry ",
            $rest
        )
    };
}

const LINES: &str = lines!("takeback.history h", "WHERE h.seq > $1 ORDER BY h.seq LIMIT $2");

/// The steps of entries up to these, oldest first.
pub(super) const LINES_OF: &str = lines!(
    "(WITH RECURSIVE step(seq) AS (SELECT unnest($1::int8[]) UNION ALL \
       SELECT p.previous FROM takeback.history p JOIN step USING (seq) \
       WHERE p.previous IS NOT NULL) \
     SELECT seq FROM step) s JOIN takeback.history h USING (seq)",
    "ORDER BY h.seq"
);

const STRAY: &str = "SELECT e.id FROM takeback.entry e LEFT JOIN takeback.history h \
     ON h.seq = e.version AND h.entry = e.id WHERE h.seq IS NULL LIMIT 1";

/// The rows behind `seq`.
pub(super) async fn page(session: &Session, seq: i64) -> Result<Vec<Line>, Fault> {
    session.query(LINES, &[&seq, &PAGE]).await?.iter().map(line).collect()
}

/// How many of the newest rows are followed at the start.
const TAIL: i64 = 1024;

/// Before the newest rows: a number of a row, or nothing if there are not more.
const BEFORE: &str = "SELECT seq FROM takeback.history ORDER BY seq DESC OFFSET $1 LIMIT 1";

/// Follows the ends of the chains, those that others write at this moment too.
pub(super) async fn tail(session: &Session, keys: &Keys, store: &[u8]) -> Result<Tail, Fault> {
    session.run(BEGIN).await?;
    let read = async {
        let rows = session.query(BEFORE, &[&TAIL]).await?;
        let mut seq = rows.first().map(|row| column(row, 0)).transpose()?.unwrap_or(i64::MIN);
        let mut lines = Vec::new();
        loop {
            let page = page(session, seq).await?;
            let Some(last) = page.last() else { break };
            seq = last.seq;
            lines.extend(page);
        }
        Ok(lines)
    };
    let read: Result<Vec<Line>, Fault> = read.await;
    session.run("COMMIT").await?;
    let (breaks, unknown) = Verifier::at_the_end(keys, store, &read?);
    if breaks.is_empty() && unknown > 0 {
        return Ok(Tail::without_a_key());
    }
    Ok(Tail::of(breaks))
}

/// See [`LINES_OF`].
pub(super) async fn lines_of(session: &Session, newest: &[i64]) -> Result<Vec<Line>, Fault> {
    session.query(LINES_OF, &[&newest]).await?.iter().map(line).collect()
}

/// An entry at whose newest step there is no row of it.
pub(super) async fn stray(session: &Session) -> Result<Option<Uuid>, Fault> {
    session.query(STRAY, &[]).await?.first().map(|row| column(row, 0)).transpose()
}

/// Reads the columns of [`LINES`].
pub(super) fn line(row: &Row) -> Result<Line, Fault> {
    let seal: Option<Vec<u8>> = column(row, 24)?;
    let link = match seal {
        None => None,
        Some(seal) => Some(Linked {
            chain: column(row, 56)?,
            place: u64::try_from(column::<i64>(row, 57)?).map_err(|_| damaged())?,
            seal,
        }),
    };
    let whole = |index: usize| column::<Option<i32>>(row, index).map(|n| n.map(i64::from));
    let small = |index: usize| column::<Option<i16>>(row, index).map(|n| n.map(i64::from));
    let holder = match column::<Option<Uuid>>(row, 25)? {
        None => None,
        Some(id) => Some(Box::new(Holder {
            id: id.as_bytes().to_vec(),
            version: column(row, 26)?,
            finish: column(row, 27)?,
            state: small(28)?.ok_or_else(damaged)?,
            attempt: number(row, 29)?,
            cause: column(row, 30)?,
            began_ms: column(row, 31)?,
            weak: column(row, 32)?,
            staged: column(row, 33)?,
            principal: column(row, 34)?,
            key: column(row, 35)?,
            ledger_id: column(row, 36)?,
            digest: column(row, 37)?,
            mark: column(row, 38)?,
            operation: column(row, 39)?,
            transport: column(row, 40)?,
            task: column(row, 41)?,
            staged_for: column(row, 42)?,
            repeats: column::<Option<Uuid>>(row, 43)?.map(|id| id.as_bytes().to_vec()),
            key_sent: column(row, 44)?,
            fingerprint: column(row, 45)?,
            policy_revision: column(row, 46)?,
            class: column(row, 47)?,
            kind: column(row, 48)?,
            spent_ms: column(row, 49)?,
            spent_nonce: column(row, 50)?,
            things: column(row, 55)?,
            target: column(row, 51)?,
            lookup: column(row, 52)?,
            before: column(row, 53)?,
        })),
    };
    let entry: Uuid = column(row, 1)?;
    Ok(Line {
        link,
        seq: column(row, 0)?,
        entry: if entry.is_nil() { Vec::new() } else { entry.as_bytes().to_vec() },
        previous: column(row, 2)?,
        at_ms: column(row, 3)?,
        from: small(4)?,
        to: small(5)?.ok_or_else(damaged)?,
        attempt: number(row, 6)?,
        cause: column(row, 7)?,
        who: column(row, 8)?,
        why: column(row, 9)?,
        noted: column(row, 10)?,
        disposition: column(row, 11)?,
        verdict: column(row, 12)?,
        upstream_status: whole(13)?,
        undo_mark: column(row, 14)?,
        deadline_ms: column(row, 15)?,
        detail: column(row, 16)?,
        things: column(row, 54)?,
        upstream_id: column(row, 17)?,
        undo: column(row, 18)?,
        compensate: column(row, 19)?,
        undo_unavailable: column(row, 20)?,
        status: whole(21)?,
        headers: column(row, 22)?,
        body: column(row, 23)?,
        holder,
    })
}
