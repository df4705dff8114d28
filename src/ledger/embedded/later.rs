//! Whether another entry stands in the way of an undo: a later one, or one that was under way at the same
//! time.

use std::collections::HashSet;

use rusqlite::{Connection, params};

use super::rows;
use crate::contract::key::EntryId;
use crate::ledger::MAX_LATER;
use crate::ledger::entry::State;

/// The first later entry, accepted or open, that is of the resource which this entry's undo changes; those
/// of `beside` are passed over. Else the newest earlier one of it that was not over when this began, if
/// this entry's undo puts back what was read before it.
pub(super) fn superseded(
    conn: &Connection,
    entry: EntryId,
    beside: &HashSet<EntryId>,
) -> rusqlite::Result<Option<EntryId>> {
    let Some(number) = rows::number_of(conn, entry)? else { return Ok(None) };
    let Some(record) = rows::record_of(conn, entry)? else { return Ok(None) };
    let Some(finish) = record.finish.filter(|_| record.prior.state == State::Accepted) else {
        return Ok(None);
    };
    let path = finish.undo_path();
    let id = finish.upstream_id;
    if path.is_none() && id.is_none() {
        return Ok(None);
    }
    let mut statement = conn.prepare_cached(
        "SELECT e.id, e.target, e.transport, f.upstream_id FROM entry e \
         LEFT JOIN history f ON f.seq = e.finish \
         WHERE e.number > ?1 AND e.state NOT IN (6, 7) ORDER BY e.number LIMIT ?2",
    )?;
    let limit = i64::try_from(MAX_LATER).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![number, limit])?;
    while let Some(row) = rows.next()? {
        let target: String = row.get(1)?;
        let transport: String = row.get(2)?;
        // Method and path; a tool has no path.
        let is_same_path = path
            .as_deref()
            .is_some_and(|path| target.split_once(' ').is_some_and(|(_, theirs)| theirs == path));
        // Over HTTP the path says which thing it is; ids of different kinds of things may be equal.
        let is_same_thing = path.is_none()
            && transport == record.transport
            && id.is_some()
            && row.get::<_, Option<String>>(3)? == id;
        let later = EntryId::from_bytes(row.get(0)?);
        if (is_same_path || is_same_thing) && !beside.contains(&later) {
            return Ok(Some(later));
        }
    }
    match path {
        Some(path) if rows::before(conn, entry)?.is_some() => {
            overlapping(conn, number, record.prior.version, &path)
        }
        Some(_) | None => Ok(None),
    }
}

/// The newest earlier entry of a path that was not over when this one began. What was read before this
/// one may lack its effect, so that putting it back would take that away too.
fn overlapping(
    conn: &Connection,
    number: i64,
    version: i64,
    path: &str,
) -> rusqlite::Result<Option<EntryId>> {
    let steps = rows::history(conn, version)?;
    let Some(began) = steps.iter().rev().find(|step| step.to == State::Begun) else {
        return Ok(None);
    };
    let mut statement = conn.prepare_cached(
        "SELECT e.id, e.target FROM (SELECT * FROM entry WHERE number < ?1 \
           ORDER BY number DESC LIMIT ?2) e \
         WHERE e.state NOT IN (6, 7) AND (e.state <= 4 OR e.finish > ?3 \
           OR (e.cause = 'settled' AND e.version > ?3)) ORDER BY e.number DESC",
    )?;
    let limit = i64::try_from(MAX_LATER).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![number, limit, began.seq])?;
    while let Some(row) = rows.next()? {
        let target: String = row.get(1)?;
        if target.split_once(' ').is_some_and(|(_, theirs)| theirs == path) {
            return Ok(Some(EntryId::from_bytes(row.get(0)?)));
        }
    }
    Ok(None)
}
