//! The chain in the file: where it ends, where it began, and a look at its end.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::ledger::chain::breaks::{ACKNOWLEDGED, acknowledgement};
use crate::ledger::chain::row::{Content, Row};
use crate::ledger::chain::verify::{CHAIN, beginning};
use crate::ledger::chain::{Head, NOTHING, Seal};
use crate::ledger::desk::command::{Acknowledge, Done};

use super::Store;

/// The number of the file's chain: it has one.
pub(in crate::ledger::embedded) const NUMBER: i64 = 1;

/// Where the chain ends, as the file has it; `None`: it has none.
pub(super) fn newest(conn: &Connection) -> rusqlite::Result<Option<Head>> {
    let Some(from) = begins_at(conn)? else { return Ok(None) };
    let mut statement = conn.prepare_cached("SELECT seq, seal FROM history ORDER BY seq DESC")?;
    let mut rows = statement.query([])?;
    let mut newest = None;
    let mut link = NOTHING;
    while let Some(row) = rows.next()? {
        let seq = *newest.get_or_insert(row.get::<_, i64>(0)?);
        let seal: Option<Vec<u8>> = row.get(1)?;
        // A link that does not read was changed. It is passed over, as whoever verifies does.
        if let Some(seal) = seal.as_deref().and_then(Seal::from_bytes) {
            link = seal.link;
            break;
        }
        if seq.saturating_sub(row.get(0)?) > PASSED_OVER {
            break;
        }
    }
    Ok(newest.map(|seq| Head { link, length: place(seq, from) }))
}

/// The link of the row in a place: `None` if there is no such row, and within if it does not read.
pub(in crate::ledger::embedded) fn link_at(
    conn: &Connection,
    length: u64,
) -> rusqlite::Result<Option<Option<[u8; 32]>>> {
    let Some(from) = begins_at(conn)? else { return Ok(None) };
    let behind = i64::try_from(length).unwrap_or(i64::MAX);
    let seq = from.saturating_add(behind).saturating_sub(1);
    let seal: Option<Option<Vec<u8>>> = conn
        .query_row("SELECT seal FROM history WHERE seq = ?1", [seq], |row| row.get(0))
        .optional()?;
    let link = |seal: Vec<u8>| Seal::from_bytes(&seal).map(|seal| seal.link);
    Ok(seal.map(|seal| seal.and_then(link)))
}

/// How many rows without a link that reads are looked behind.
const PASSED_OVER: i64 = 1024;

/// The number of the first row that is linked.
pub(in crate::ledger::embedded) fn begins_at(conn: &Connection) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT value FROM meta WHERE name = 'chain_from'")?
        .query_row([], |row| row.get(0))
        .optional()
}

/// The place of a row in the chain: the file's rows are numbered without gaps.
pub(in crate::ledger::embedded) fn place(seq: i64, from: i64) -> u64 {
    u64::try_from(seq.saturating_sub(from).saturating_add(1)).unwrap_or(0)
}

impl Store {
    /// Where the chain ends.
    pub(in crate::ledger::embedded) fn head(&self) -> Head {
        self.chain.head()
    }

    /// Begins the chain where there is none, and notes where its key changes.
    pub(in crate::ledger::embedded) fn begin_chain(
        &mut self,
        store: &[u8],
        now_ms: i64,
    ) -> rusqlite::Result<()> {
        let name = self.chain.key().id().map_or(Vec::new(), |id| id.0.to_vec());
        let before: Option<Vec<u8>> = self
            .conn
            .query_row("SELECT value FROM meta WHERE name = 'chain_key'", [], |row| row.get(0))
            .optional()?;
        if before.as_ref() == Some(&name) {
            return Ok(());
        }
        if before.is_some_and(|before| !before.is_empty()) && name.is_empty() {
            tracing::warn!(
                "the ledger's chain had a key and has none from here on: give ledger_mac_key_file"
            );
        }
        let seq = self.next_seq;
        let detail = beginning(NUMBER, self.chain.key(), store);
        self.ledger_step(&Row {
            at_ms: now_ms,
            noted: Some(CHAIN),
            detail: Some(&detail),
            ..Row::default()
        })?;
        self.conn.execute(
            "INSERT INTO meta (name, value) VALUES ('chain_key', ?1) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            [name],
        )?;
        self.conn
            .execute("INSERT OR IGNORE INTO meta (name, value) VALUES ('chain_from', ?1)", [seq])?;
        Ok(())
    }

    /// Writes a row that belongs to no entry: its time, who, why, `noted` and `detail`.
    pub(super) fn ledger_step(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        let seq = self.next_seq;
        self.next_seq += 1;
        let row = Row { seq, ..*row };
        let seal = self.chain.seal(&row, None, Content::None);
        self.conn
            .prepare_cached(
                "INSERT INTO history (seq, entry, at_ms, to_state, attempt, who, why, noted, detail, \
                 seal) VALUES (?1, 0, ?2, 0, 0, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                seq,
                row.at_ms,
                row.who,
                row.why,
                row.noted,
                row.detail,
                seal.to_bytes()
            ])?;
        Ok(())
    }

    /// Records that a person knows what is wrong with the ledger.
    pub(in crate::ledger::embedded) fn acknowledge(
        &mut self,
        word: &Acknowledge,
        lost: Option<Head>,
    ) -> rusqlite::Result<Done> {
        let detail = acknowledgement(&word.breaks, lost);
        self.ledger_step(&Row {
            at_ms: word.now_ms,
            who: Some(&word.who),
            why: Some(&word.why),
            noted: Some(ACKNOWLEDGED),
            detail: Some(&detail),
            ..Row::default()
        })?;
        Ok(Done::Written)
    }
}
