//! How values stand in the tables: reading rows back, and the words and blobs in them.

use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::contract::class::{Class, Disposition, Kind, Verdict};
use crate::contract::key::{Digest, EntryId, Key, OperationId};
use crate::ledger::entry::{Cause, State};
use crate::ledger::{
    Answer, Filter, FinishRecord, Noted, Pending, Principal, Prior, Record, Removed, Step,
};

/// The columns of [`Prior`], in the order of [`prior`].
macro_rules! prior_columns {
    () => {
        "e.id, e.version, e.state, e.cause, e.operation, e.digest, e.staged, e.key, e.ledger_id, \
         e.attempt, e.began_ms, e.finished_ms, e.delivered, e.answered, e.kept, e.lookup, \
         e.principal, e.weak, e.removed"
    };
}
pub(super) use prior_columns;

/// The columns of [`Record`], in the order of [`record`], and where they come from.
macro_rules! record_query {
    ($rest:literal) => {
        concat!(
            "SELECT ",
            prior_columns!(),
            ", e.attempted_ms, e.class, e.kind, e.transport, e.target, e.task, e.staged_for, \
             e.key_sent, e.repeats, e.mark, e.fingerprint, e.policy_revision, f.attempt, \
             f.disposition, coalesce(e.verdict, f.verdict), f.upstream_status, f.upstream_id, \
             f.undo, f.compensate, f.deadline_ms, f.undo_unavailable, f.detail, \
             e.spent_nonce IS NOT NULL, e.due_ms, e.tries, n.detail \
             FROM entry e LEFT JOIN history f ON f.seq = e.finish \
             LEFT JOIN history n ON n.seq = e.version AND n.noted IS NOT NULL ",
            $rest
        )
    };
}

/// Reads the columns of [`prior_columns`].
pub(super) fn prior(row: &Row<'_>) -> rusqlite::Result<Prior> {
    let entry = EntryId::from_bytes(row.get(0)?);
    let state = state(row, 2)?;
    let is_begun = state == State::Begun;
    let key = optional(row, 7, |text: String| Key::from_text(&text).ok())?;
    let ledger_id = optional(row, 8, |text: String| Key::from_text(&text).ok())?;
    Ok(Prior {
        entry,
        version: row.get(1)?,
        state,
        cause: if is_begun { None } else { cause(row, 3)? },
        operation: required(row, 4, |text: String| OperationId::new(&text))?,
        digest: Digest(row.get(5)?),
        staged: row.get(6)?,
        ledger_id: ledger_id.or(key.clone()).unwrap_or_else(|| Key::from_entry(entry)),
        key,
        attempt: row.get(9)?,
        began_ms: row.get(10)?,
        finished_ms: if is_begun { None } else { Some(row.get(11)?) },
        delivered: row.get(12)?,
        answered: row.get(13)?,
        is_answer_kept: !is_begun && row.get(14)?,
        lookup: row.get(15)?,
        principal: Principal { id: row.get(16)?, weak: row.get(17)? },
        removed: Removed::from_code(row.get(18)?),
    })
}

/// Reads the columns of [`record_query`].
pub(super) fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let prior = prior(row)?;
    let disposition = optional(row, 32, |text: String| Disposition::from_name(&text))?;
    let finish = match disposition {
        None => None,
        Some(disposition) => {
            let finish = FinishRecord {
                attempt: row.get(31)?,
                disposition,
                verdict: optional(row, 33, |text: String| Verdict::from_name(&text))?,
                upstream_status: row.get(34)?,
                upstream_id: row.get(35)?,
                undo: row.get(36)?,
                compensate: row.get(37)?,
                deadline_ms: row.get(38)?,
                undo_unavailable: row.get::<_, Option<String>>(39)?.or_else(|| prior.undo_gone()),
                evidence: row.get(40)?,
            };
            Some(finish.shown_in(prior.state))
        }
    };
    Ok(Record {
        prior,
        attempted_ms: row.get(19)?,
        class: required(row, 20, |text: String| Class::from_name(&text))?,
        kind: required(row, 21, |text: String| Kind::from_name(&text))?,
        transport: row.get(22)?,
        target: row.get(23)?,
        task: row.get(24)?,
        staged_for: optional(row, 25, |text: String| OperationId::new(&text))?,
        key_sent: row.get(26)?,
        repeats: row.get::<_, Option<[u8; 16]>>(27)?.map(EntryId::from_bytes),
        mark: Digest(row.get(28)?),
        fingerprint: Digest(row.get(29)?),
        policy_revision: Digest(row.get(30)?),
        confirmed: row.get(41)?,
        due_ms: row.get(42)?,
        tries: row.get(43)?,
        finish,
    })
}

/// Reads the columns of [`record_query`], and the newest note's.
fn pending(row: &Row<'_>) -> rusqlite::Result<Pending> {
    Ok(Pending { record: record(row)?, last: row.get(44)? })
}

/// The entries that are due, the one due longest first.
pub(super) fn due(conn: &Connection, now_ms: i64, limit: usize) -> rusqlite::Result<Vec<Pending>> {
    conn.prepare_cached(record_query!(
        "WHERE e.number IN (SELECT number FROM entry INDEXED BY due \
         WHERE due_ms IS NOT NULL AND due_ms <= ?1 AND state IN (4, 5) \
         ORDER BY due_ms LIMIT ?2) ORDER BY e.due_ms, e.number"
    ))?
    .query_map(params![now_ms, limit_of(limit)], pending)?
    .collect()
}

/// One entry, as [`due`] gives it.
pub(super) fn pending_of(conn: &Connection, entry: EntryId) -> rusqlite::Result<Option<Pending>> {
    let Some(number) = number_of(conn, entry)? else {
        return Ok(None);
    };
    conn.prepare_cached(record_query!("WHERE e.number = ?1 AND e.state IN (4, 5)"))?
        .query_row([number], pending)
        .optional()
}

/// The state before an entry's newest attempt.
pub(super) fn before(conn: &Connection, entry: EntryId) -> rusqlite::Result<Option<String>> {
    let Some(number) = number_of(conn, entry)? else {
        return Ok(None);
    };
    conn.prepare_cached("SELECT before FROM image WHERE entry = ?1")?
        .query_row([number], |row| row.get(0))
        .optional()
}

/// The numbers that an entry with this id can have: 43 bits of its id's milliseconds, then the
/// order of beginning within that millisecond. So entries lie in the order of their time, and are
/// found by their id without an index on it.
pub(super) fn numbers(entry: EntryId) -> (i64, i64) {
    let [time @ .., _, _, _, _, _, _, _, _, _, _] = *entry.as_bytes();
    let ms = time.iter().fold(0_i64, |ms, byte| ms << 8 | i64::from(*byte)) & ((1 << 43) - 1);
    (ms << 20, ms << 20 | ((1 << 20) - 1))
}

/// The number of an entry.
pub(super) fn number_of(conn: &Connection, entry: EntryId) -> rusqlite::Result<Option<i64>> {
    let (first, last) = numbers(entry);
    conn.prepare_cached("SELECT number FROM entry WHERE number BETWEEN ?1 AND ?2 AND id = ?3")?
        .query_row(params![first, last, entry.as_bytes()], |row| row.get(0))
        .optional()
}

/// One entry, by its id.
pub(super) fn record_of(conn: &Connection, entry: EntryId) -> rusqlite::Result<Option<Record>> {
    let Some(number) = number_of(conn, entry)? else {
        return Ok(None);
    };
    conn.prepare_cached(record_query!("WHERE e.number = ?1"))?
        .query_row([number], record)
        .optional()
}

/// The unknown entries, oldest first.
pub(super) fn unknowns(conn: &Connection, limit: usize) -> rusqlite::Result<Vec<Record>> {
    conn.prepare_cached(record_query!(
        "WHERE e.number IN (SELECT number FROM entry INDEXED BY unknown_of WHERE state = 4 \
         ORDER BY number LIMIT ?1) ORDER BY e.number"
    ))?
    .query_map([limit_of(limit)], record)?
    .collect()
}

/// The entries that a filter takes, newest first.
pub(super) fn list(conn: &Connection, filter: &Filter) -> rusqlite::Result<Vec<Record>> {
    let before: i64 = match filter.before {
        None => i64::MAX,
        Some(entry) => number_of(conn, entry)?.unwrap_or(0),
    };
    let state = filter.state.map(State::code);
    let operation = filter.operation.as_ref().map(OperationId::as_str);
    // The open entries are few, and have an index.
    let query = if filter.state.is_some_and(State::is_open) {
        record_query!(
            "WHERE e.number < ?1 AND e.number IN \
             (SELECT number FROM entry INDEXED BY one_open WHERE state <= 4 AND state = ?2) \
             AND (?3 IS NULL OR e.operation = ?3) AND (?5 IS NULL OR e.task = ?5) \
             AND (?6 IS NULL OR e.principal = ?6) AND e.number >= ?7 ORDER BY e.number DESC LIMIT ?4"
        )
    } else {
        record_query!(
            "WHERE e.number < ?1 AND (?2 IS NULL OR e.state = ?2) \
             AND (?3 IS NULL OR e.operation = ?3) AND (?5 IS NULL OR e.task = ?5) \
             AND (?6 IS NULL OR e.principal = ?6) AND e.number >= ?7 ORDER BY e.number DESC LIMIT ?4"
        )
    };
    let since = filter.since_ms.map_or(0, |ms| ms.clamp(0, (1 << 43) - 1) << 20);
    let limit = limit_of(filter.limit);
    let (task, principal) = (&filter.task, &filter.principal);
    conn.prepare_cached(query)?
        .query_map((before, state, operation, limit, task, principal, since), record)?
        .collect()
}

/// The steps that lead to the step `newest`, oldest first.
pub(super) fn history(conn: &Connection, newest: i64) -> rusqlite::Result<Vec<Step>> {
    // Each step names the one before, so no index on the entry is needed.
    conn.prepare_cached(
        "WITH RECURSIVE step(seq) AS (VALUES(?1) UNION ALL \
         SELECT h.previous FROM history h JOIN step USING (seq) WHERE h.previous IS NOT NULL) \
         SELECT h.seq, h.at_ms, h.from_state, h.to_state, h.attempt, h.cause, h.who, h.why, \
         h.noted, h.detail, h.verdict, h.disposition, h.upstream_status FROM step JOIN history h USING (seq) ORDER BY h.seq",
    )?
    .query_map([newest], |row| {
        Ok(Step {
            seq: row.get(0)?,
            at_ms: row.get(1)?,
            from: optional(row, 2, State::from_code)?,
            to: state(row, 3)?,
            attempt: row.get(4)?,
            cause: cause(row, 5)?,
            who: row.get(6)?,
            why: row.get(7)?,
            noted: optional(row, 8, |text: String| Noted::from_name(&text))?,
            detail: row.get(9)?,
            verdict: optional(row, 10, |text: String| Verdict::from_name(&text))?,
            disposition: optional(row, 11, |text: String| Disposition::from_name(&text))?,
            upstream_status: row.get(12)?,
        })
    })?
    .collect()
}

/// The kept answer of an entry.
pub(super) fn answer(conn: &Connection, entry: EntryId) -> rusqlite::Result<Option<Answer>> {
    let Some(number) = number_of(conn, entry)? else {
        return Ok(None);
    };
    conn.prepare_cached(
        "SELECT f.status, f.headers, f.body FROM entry e JOIN history f ON f.seq = e.finish \
         WHERE e.number = ?1 AND e.kept = 1",
    )?
    .query_row([number], |row| {
        Ok(Answer { status: row.get(0)?, headers: headers(row, 1)?, body: row.get(2)? })
    })
    .optional()
}

/// Headers as they stand in `finish.headers`: name, NUL, value, NUL; neither can hold a NUL.
pub(super) fn headers_blob(headers: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut blob = Vec::new();
    for (name, value) in headers {
        blob.extend_from_slice(name.as_bytes());
        blob.push(0);
        blob.extend_from_slice(value);
        blob.push(0);
    }
    blob
}

fn headers(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<(String, Vec<u8>)>> {
    let blob: Vec<u8> = row.get(column)?;
    let mut parts = blob.split(|byte| *byte == 0);
    let mut headers = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        let name = String::from_utf8(name.to_vec()).map_err(|_| damaged(column))?;
        headers.push((name, value.to_vec()));
    }
    Ok(headers)
}

/// The state in a column.
pub(super) fn state(row: &Row<'_>, column: usize) -> rusqlite::Result<State> {
    required(row, column, State::from_code)
}

/// The cause in a column.
pub(super) fn cause(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Cause>> {
    optional(row, column, |text: String| Cause::from_name(&text))
}

fn required<S: rusqlite::types::FromSql, T>(
    row: &Row<'_>,
    column: usize,
    read: impl FnOnce(S) -> Option<T>,
) -> rusqlite::Result<T> {
    read(row.get(column)?).ok_or_else(|| damaged(column))
}

fn optional<S: rusqlite::types::FromSql, T>(
    row: &Row<'_>,
    column: usize,
    read: impl FnOnce(S) -> Option<T>,
) -> rusqlite::Result<Option<T>> {
    match row.get::<_, Option<S>>(column)? {
        None => Ok(None),
        Some(stored) => read(stored).map(Some).ok_or_else(|| damaged(column)),
    }
}

/// A value that this program never writes.
pub(super) fn damaged(column: usize) -> rusqlite::Error {
    let source = Box::new(FromSqlError::InvalidType);
    rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, source)
}

fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
