//! The chain in the file: where it ends, where it began, and a look at its end.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::ledger::chain::row::{Content, Row};
use crate::ledger::chain::verify::{CHAIN, beginning};
use crate::ledger::chain::{Head, Seal};

use super::Store;

/// The number of the file's chain: it has one.
pub(in crate::ledger::embedded) const NUMBER: i64 = 1;

/// Where the chain ends, as the file has it; `None`: it has none.
pub(super) fn newest(conn: &Connection) -> rusqlite::Result<Option<Head>> {
    let Some(from) = begins_at(conn)? else { return Ok(None) };
    let (seq, seal): (i64, Option<Vec<u8>>) = conn
        .prepare_cached("SELECT seq, seal FROM history ORDER BY seq DESC LIMIT 1")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let seal = seal.as_deref().and_then(Seal::from_bytes);
    let seal = seal.ok_or_else(|| super::rows::damaged(1))?;
    Ok(Some(Head { link: seal.link, length: place(seq, from) }))
}

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
        self.ledger_step(CHAIN, &detail, now_ms)?;
        self.conn.execute(
            "INSERT INTO meta (name, value) VALUES ('chain_key', ?1) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            [name],
        )?;
        self.conn
            .execute("INSERT OR IGNORE INTO meta (name, value) VALUES ('chain_from', ?1)", [seq])?;
        Ok(())
    }

    /// Writes a row that belongs to no entry.
    pub(super) fn ledger_step(
        &mut self,
        noted: &str,
        detail: &str,
        now_ms: i64,
    ) -> rusqlite::Result<()> {
        let seq = self.next_seq;
        self.next_seq += 1;
        let row =
            Row { seq, at_ms: now_ms, noted: Some(noted), detail: Some(detail), ..Row::default() };
        let seal = self.chain.seal(&row, None, Content::None);
        self.conn
            .prepare_cached(
                "INSERT INTO history (seq, entry, at_ms, to_state, attempt, noted, detail, seal) \
                 VALUES (?1, 0, ?2, 0, 0, ?3, ?4, ?5)",
            )?
            .execute(params![seq, now_ms, noted, detail, seal.to_bytes()])?;
        Ok(())
    }
}
