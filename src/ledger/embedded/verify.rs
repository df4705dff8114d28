//! Reading the history of a file in the order of its chain.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::contract::key::EntryId;
use crate::ledger::chain::breaks::Tail;
use crate::ledger::chain::line::{Holder, Line, Linked, line_columns};
use crate::ledger::chain::verify::Verifier;
use crate::ledger::chain::{Broken, Head, KeyId, Keys, NOTHING, Verified};

use super::store::chained;

/// Rows in one read: few enough that a writer is not kept from copying its log for long.
const PAGE: i64 = 512;

/// How many of the newest rows are followed at the start.
const TAIL: i64 = 1024;

/// The columns of a [`Line`], in the order of [`line`].
macro_rules! lines {
    ($from:literal, $rest:literal) => {
        concat!(
            "SELECT ",
            line_columns!(),
            " FROM ",
            $from,
            " LEFT JOIN entry e ON e.number = h.entry LEFT JOIN image i ON i.entry = h.entry ",
            $rest
        )
    };
}

const LINES: &str = lines!("history h", "WHERE h.seq > ?1 ORDER BY h.seq LIMIT ?2");

const LINES_OF: &str = lines!(
    "(WITH RECURSIVE step(seq) AS (VALUES(?1) UNION ALL \
       SELECT p.previous FROM history p JOIN step USING (seq) WHERE p.previous IS NOT NULL) \
     SELECT seq FROM step) s JOIN history h USING (seq)",
    "ORDER BY h.seq"
);

/// The steps of an entry up to this one, oldest first.
pub(super) fn lines_of(conn: &Connection, newest: i64) -> rusqlite::Result<Vec<Line>> {
    let from = chained::begins_at(conn)?.unwrap_or(i64::MAX);
    conn.prepare_cached(LINES_OF)?.query_map([newest], |row| line(row, from))?.collect()
}

/// Follows the whole chain, with the file's rows as they are on disk.
pub(super) fn whole(
    conn: &Connection,
    keys: &Keys,
    heads: &[Head],
) -> rusqlite::Result<Result<Verified, Broken>> {
    let store = store_of(conn)?;
    let mut verifier = Verifier::new(keys, &store, heads);
    if let Err(broken) = follow(conn, &mut verifier, 0)? {
        return Ok(Err(broken));
    }
    Ok(verifier.end(stray(conn)?))
}

fn store_of(conn: &Connection) -> rusqlite::Result<[u8; 16]> {
    conn.query_row("SELECT value FROM meta WHERE name = 'store'", [], |row| row.get(0))
}

/// An entry at whose newest step there is no row of it. One whose newest step is of before the chain is
/// taken as it is.
fn stray(conn: &Connection) -> rusqlite::Result<Option<EntryId>> {
    conn.query_row(
        "SELECT e.id FROM entry e LEFT JOIN history h ON h.seq = e.version \
         AND h.entry = e.number WHERE h.seq IS NULL LIMIT 1",
        [],
        |row| row.get(0).map(EntryId::from_bytes),
    )
    .optional()
}

/// All that does not fit, and that nobody acknowledged.
///
/// # Errors
///
/// The row from which on a key is missing.
pub(super) fn breaks(
    conn: &Connection,
    keys: &Keys,
) -> rusqlite::Result<Result<Vec<Broken>, Broken>> {
    let store = store_of(conn)?;
    let mut verifier = Verifier::new(keys, &store, &[]);
    if let Err(broken) = follow(conn, &mut verifier, 0)? {
        return Ok(Err(broken));
    }
    Ok(Ok(verifier.end_with_all(stray(conn)?).1))
}

/// Follows the end of the chain.
pub(super) fn tail(conn: &Connection, keys: &Keys, store: &[u8]) -> rusqlite::Result<Tail> {
    let Some(from) = chained::begins_at(conn)? else { return Ok(Tail::default()) };
    let newest: i64 =
        conn.query_row("SELECT coalesce(max(seq), 0) FROM history", [], |row| row.get(0))?;
    let before = newest.saturating_sub(TAIL);
    let name: Vec<u8> =
        conn.query_row("SELECT value FROM meta WHERE name = 'chain_key'", [], |row| row.get(0))?;
    let id = name.try_into().ok().map(KeyId);
    let Some(key) = keys.named(id) else { return Ok(Tail::without_a_key()) };
    let (mut verifier, before) = if before < from {
        (Verifier::new(keys, store, &[]), from - 1)
    } else {
        // One that does not read fits no row behind it.
        let link = chained::link_at(conn, chained::place(before, from))?.flatten();
        let link = link.unwrap_or(NOTHING);
        let head = Head { link, length: chained::place(before, from) };
        (Verifier::behind(keys, store, chained::NUMBER, head, key), before)
    };
    // What a later row would have to say is not looked for: `ledger verify` does that.
    Ok(match follow(conn, &mut verifier, before)? {
        Err(Broken { needs: Some(_), .. }) => Tail::without_a_key(),
        Err(broken) => Tail::of(vec![broken]),
        Ok(()) => Tail::of(verifier.open_breaks()),
    })
}

/// Hands over the rows behind `seq`.
fn follow(
    conn: &Connection,
    verifier: &mut Verifier<'_>,
    mut seq: i64,
) -> rusqlite::Result<Result<(), Broken>> {
    let from = chained::begins_at(conn)?.unwrap_or(i64::MAX);
    let mut statement = conn.prepare(LINES)?;
    loop {
        let mut rows = statement.query(params![seq, PAGE])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            let line = line(row, from)?;
            seq = line.seq;
            count += 1;
            if let Err(broken) = verifier.take(&line) {
                return Ok(Err(broken));
            }
        }
        if count < PAGE {
            return Ok(Ok(()));
        }
    }
}

/// Reads the columns of [`LINES`].
pub(super) fn line(row: &Row<'_>, from: i64) -> rusqlite::Result<Line> {
    let seq: i64 = row.get(0)?;
    let number: i64 = row.get(1)?;
    let seal: Option<Vec<u8>> = row.get(24)?;
    // A row of the chain that has no link any more has its place all the same.
    let seal = seal.or_else(|| (seq >= from).then(Vec::new));
    let link =
        seal.map(|seal| Linked { chain: chained::NUMBER, place: chained::place(seq, from), seal });
    let holder = match row.get::<_, Option<Vec<u8>>>(25)? {
        None => None,
        Some(id) => Some(Box::new(Holder {
            id,
            version: row.get(26)?,
            finish: row.get(27)?,
            state: row.get(28)?,
            attempt: row.get(29)?,
            cause: row.get(30)?,
            began_ms: row.get(31)?,
            weak: row.get(32)?,
            staged: row.get(33)?,
            principal: row.get(34)?,
            key: row.get(35)?,
            ledger_id: row.get(36)?,
            digest: row.get(37)?,
            mark: row.get(38)?,
            operation: row.get(39)?,
            transport: row.get(40)?,
            task: row.get(41)?,
            staged_for: row.get(42)?,
            repeats: row.get(43)?,
            key_sent: row.get(44)?,
            fingerprint: row.get(45)?,
            policy_revision: row.get(46)?,
            class: row.get(47)?,
            kind: row.get(48)?,
            spent_ms: row.get(49)?,
            spent_nonce: row.get(50)?,
            things: row.get(55)?,
            target: row.get(51)?,
            lookup: row.get(52)?,
            before: row.get(53)?,
        })),
    };
    Ok(Line {
        link,
        seq,
        entry: if number == 0 { Vec::new() } else { number.to_be_bytes().to_vec() },
        previous: row.get(2)?,
        at_ms: row.get(3)?,
        from: row.get(4)?,
        to: row.get(5)?,
        attempt: row.get(6)?,
        cause: row.get(7)?,
        who: row.get(8)?,
        why: row.get(9)?,
        noted: row.get(10)?,
        disposition: row.get(11)?,
        verdict: row.get(12)?,
        upstream_status: row.get(13)?,
        undo_mark: row.get(14)?,
        deadline_ms: row.get(15)?,
        detail: row.get(16)?,
        things: row.get(54)?,
        upstream_id: row.get(17)?,
        undo: row.get(18)?,
        compensate: row.get(19)?,
        undo_unavailable: row.get(20)?,
        status: row.get(21)?,
        headers: row.get(22)?,
        body: row.get(23)?,
        holder,
    })
}
