//! How values stand in the tables, and reading them back.

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql};
use uuid::Uuid;

use super::session::{Fault, Session};
use crate::contract::class::{Class, Disposition, Kind, Verdict};
use crate::contract::key::{Digest, EntryId, Key, OperationId};
use crate::ledger::desk::command::Failure;
use crate::ledger::entry::{Cause, State};
use crate::ledger::{
    Answer, Counts, Filter, FinishRecord, Noted, Pending, Principal, Prior, Reason, Record,
    Removed, Shown, Step, Tally,
};

/// The columns of [`Prior`], in the order of [`prior`].
macro_rules! prior_columns {
    () => {
        "e.id, e.version, e.state, e.cause, e.operation, e.digest, e.staged, e.key, e.ledger_id, \
         e.attempt, e.began_ms, e.finished_ms, e.delivered, e.answered, e.kept, e.lookup, \
         e.principal, e.weak, e.removed, e.number, e.earlier"
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
             FROM takeback.entry e LEFT JOIN takeback.history f ON f.seq = e.finish \
             LEFT JOIN takeback.history n ON n.seq = e.version AND n.noted IS NOT NULL ",
            $rest
        )
    };
}

const RECORD: &str = record_query!("WHERE e.id = $1");

const UNKNOWNS: &str = record_query!("WHERE e.state = 4 ORDER BY e.number LIMIT $1");

const LIST_OPEN: &str = record_query!(
    "WHERE e.state <= 4 AND e.state = $2 AND e.id < $1 AND ($3::text IS NULL OR e.operation = $3) \
     AND ($5::text IS NULL OR e.task = $5) AND ($6::text IS NULL OR e.principal = $6) \
     AND e.id >= $7 ORDER BY e.id DESC LIMIT $4"
);

const LIST: &str = record_query!(
    "WHERE e.id < $1 AND ($2::int2 IS NULL OR e.state = $2) \
     AND ($3::text IS NULL OR e.operation = $3) AND ($5::text IS NULL OR e.task = $5) \
     AND ($6::text IS NULL OR e.principal = $6) AND e.id >= $7 ORDER BY e.id DESC LIMIT $4"
);

const IS_THERE: &str = "SELECT 1 FROM takeback.entry WHERE id = $1";

/// The steps of an entry. Each names the one before, so no index on the entry is needed.
pub(super) const HISTORY: &str = "WITH RECURSIVE step(seq) AS (SELECT $1::int8 UNION ALL \
     SELECT h.previous FROM takeback.history h JOIN step USING (seq) \
     WHERE h.previous IS NOT NULL) \
     SELECT h.seq, h.at_ms, h.from_state, h.to_state, h.attempt, h.cause, h.who, h.why, h.noted, \
     h.detail, h.verdict, h.disposition, h.upstream_status \
     FROM step JOIN takeback.history h USING (seq) ORDER BY h.seq";

const ANSWER: &str = "SELECT f.status, f.headers, f.body FROM takeback.entry e \
     JOIN takeback.history f ON f.seq = e.finish WHERE e.id = $1 AND e.kept";

const DUE: &str = record_query!(
    "WHERE e.due_ms IS NOT NULL AND e.due_ms <= $1 AND e.state IN (4, 5) \
     ORDER BY e.due_ms, e.number LIMIT $2"
);

const PENDING: &str = record_query!("WHERE e.id = $1 AND e.state IN (4, 5)");

const BEFORE: &str = "SELECT before FROM takeback.image WHERE entry = $1";

const COUNTS: &str = "SELECT state, count(*), min(began_ms) FROM takeback.entry \
     WHERE state <= 4 GROUP BY state";

/// What a connection that reads prepares.
pub(super) const STATEMENTS: &[&str] =
    &[RECORD, UNKNOWNS, LIST_OPEN, LIST, IS_THERE, HISTORY, ANSWER, COUNTS, DUE, PENDING, BEFORE];

/// An entry's id as the database has it.
pub(super) fn uuid(entry: EntryId) -> Uuid {
    Uuid::from_bytes(*entry.as_bytes())
}

/// An id as the ledger has it.
pub(super) fn entry_id(id: Uuid) -> EntryId {
    EntryId::from_bytes(*id.as_bytes())
}

/// Text as the database takes it: it has no NUL.
pub(super) fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Reads the columns of [`prior_columns`], which begin at `from`.
pub(super) fn prior(row: &Row, from: usize) -> Result<Prior, Fault> {
    let entry = entry_id(column(row, from)?);
    let state = state(row, from + 2)?;
    let is_begun = state == State::Begun;
    let key = optional(row, from + 7, |text: String| Key::from_text(&text).ok())?;
    let ledger_id = optional(row, from + 8, |text: String| Key::from_text(&text).ok())?;
    Ok(Prior {
        entry,
        version: column(row, from + 1)?,
        state,
        cause: if is_begun { None } else { cause(row, from + 3)? },
        operation: required(row, from + 4, |text: String| OperationId::new(&text))?,
        digest: digest(row, from + 5)?,
        staged: column(row, from + 6)?,
        ledger_id: ledger_id.or(key.clone()).unwrap_or_else(|| Key::from_entry(entry)),
        key,
        attempt: number(row, from + 9)?,
        began_ms: column(row, from + 10)?,
        finished_ms: if is_begun { None } else { Some(column(row, from + 11)?) },
        delivered: column(row, from + 12)?,
        answered: column(row, from + 13)?,
        is_answer_kept: !is_begun && column(row, from + 14)?,
        lookup: column(row, from + 15)?,
        principal: Principal { id: column(row, from + 16)?, weak: column(row, from + 17)? },
        removed: Removed::from_code(column::<i16>(row, from + 18)?.into()),
    })
}

/// How many columns [`prior`] reads, `number` and `earlier` after them.
pub(super) const PRIOR: usize = 21;

/// Reads the columns of [`record_query`].
fn record(row: &Row) -> Result<Record, Fault> {
    let at = |index: usize| PRIOR + index;
    let prior = prior(row, 0)?;
    let disposition = optional(row, at(13), |text: String| Disposition::from_name(&text))?;
    let finish = match disposition {
        None => None,
        Some(disposition) => {
            let finish = FinishRecord {
                attempt: number(row, at(12))?,
                disposition,
                verdict: optional(row, at(14), |text: String| Verdict::from_name(&text))?,
                upstream_status: optional(row, at(15), |status: i32| u16::try_from(status).ok())?,
                upstream_id: column(row, at(16))?,
                undo: column(row, at(17))?,
                compensate: column(row, at(18))?,
                deadline_ms: column(row, at(19))?,
                undo_unavailable: column::<Option<String>>(row, at(20))?
                    .or_else(|| prior.undo_gone()),
                evidence: column(row, at(21))?,
            };
            Some(finish.shown_in(prior.state))
        }
    };
    Ok(Record {
        prior,
        attempted_ms: column(row, at(0))?,
        class: required(row, at(1), |text: String| Class::from_name(&text))?,
        kind: required(row, at(2), |text: String| Kind::from_name(&text))?,
        transport: column(row, at(3))?,
        target: column(row, at(4))?,
        task: column(row, at(5))?,
        staged_for: optional(row, at(6), |text: String| OperationId::new(&text))?,
        key_sent: column(row, at(7))?,
        repeats: column::<Option<Uuid>>(row, at(8))?.map(entry_id),
        mark: digest(row, at(9))?,
        fingerprint: digest(row, at(10))?,
        policy_revision: digest(row, at(11))?,
        confirmed: column(row, at(22))?,
        due_ms: column(row, at(23))?,
        tries: number(row, at(24))?,
        finish,
    })
}

/// One entry, by its id.
pub(super) async fn record_of(session: &Session, entry: EntryId) -> Result<Option<Record>, Fault> {
    session.query(RECORD, &[&uuid(entry)]).await?.first().map(record).transpose()
}

/// The unknown entries, oldest first.
pub(super) async fn unknowns(session: &Session, limit: usize) -> Result<Vec<Record>, Fault> {
    session.query(UNKNOWNS, &[&limit_of(limit)]).await?.iter().map(record).collect()
}

/// The entries that a filter takes, newest first.
pub(super) async fn list(session: &Session, filter: &Filter) -> Result<Vec<Record>, Fault> {
    let before = match filter.before {
        None => Uuid::max(),
        Some(entry) => {
            let id = uuid(entry);
            if session.query(IS_THERE, &[&id]).await?.is_empty() {
                return Ok(Vec::new());
            }
            id
        }
    };
    let state = filter.state.map(code);
    let operation = filter.operation.as_ref().map(OperationId::as_str);
    let limit = limit_of(filter.limit);
    let (task, principal) = (&filter.task, &filter.principal);
    let since = filter.since_ms.map_or(Uuid::nil(), first_id_at);
    // The open entries are few, and have an index.
    let rows = match state.filter(|_| filter.state.is_some_and(State::is_open)) {
        Some(state) => {
            let params: &[&(dyn ToSql + Sync)] =
                &[&before, &state, &operation, &limit, task, principal, &since];
            session.query(LIST_OPEN, params).await?
        }
        None => {
            let params: &[&(dyn ToSql + Sync)] =
                &[&before, &state, &operation, &limit, task, principal, &since];
            session.query(LIST, params).await?
        }
    };
    rows.iter().map(record).collect()
}

/// One entry and its history.
pub(super) async fn show(session: &Session, entry: EntryId) -> Result<Option<Shown>, Fault> {
    let Some(record) = record_of(session, entry).await? else {
        return Ok(None);
    };
    let rows = session.query(HISTORY, &[&record.prior.version]).await?;
    let history = rows.iter().map(step).collect::<Result<_, Fault>>()?;
    let before = session.query(BEFORE, &[&uuid(entry)]).await?;
    let before = before.first().map(|row| column(row, 0)).transpose()?;
    Ok(Some(Shown { record, history, before }))
}

/// Reads the columns of [`record_query`], and the newest note's.
fn pending(row: &Row) -> Result<Pending, Fault> {
    Ok(Pending { record: record(row)?, last: column(row, PRIOR + 25)? })
}

/// The entries that are due, the one due longest first.
pub(super) async fn due(
    session: &Session,
    now_ms: i64,
    limit: usize,
) -> Result<Vec<Pending>, Fault> {
    session.query(DUE, &[&now_ms, &limit_of(limit)]).await?.iter().map(pending).collect()
}

/// One entry, as [`due`] gives it.
pub(super) async fn pending_of(
    session: &Session,
    entry: EntryId,
) -> Result<Option<Pending>, Fault> {
    session.query(PENDING, &[&uuid(entry)]).await?.first().map(pending).transpose()
}

/// The lowest id that an entry of this time, in milliseconds since 1970, can have.
fn first_id_at(ms: i64) -> Uuid {
    let ms = u128::try_from(ms.clamp(0, (1 << 48) - 1)).unwrap_or(0);
    Uuid::from_u128(ms << 80)
}

/// Reads a row of [`HISTORY`].
pub(super) fn step(row: &Row) -> Result<Step, Fault> {
    Ok(Step {
        seq: column(row, 0)?,
        at_ms: column(row, 1)?,
        from: optional(row, 2, state_of)?,
        to: state(row, 3)?,
        attempt: number(row, 4)?,
        cause: cause(row, 5)?,
        who: column(row, 6)?,
        why: column(row, 7)?,
        noted: optional(row, 8, |text: String| Noted::from_name(&text))?,
        detail: column(row, 9)?,
        verdict: optional(row, 10, |text: String| Verdict::from_name(&text))?,
        disposition: optional(row, 11, |text: String| Disposition::from_name(&text))?,
        upstream_status: optional(row, 12, |status: i32| u16::try_from(status).ok())?,
    })
}

/// The kept answer of an entry.
pub(super) async fn answer(session: &Session, entry: EntryId) -> Result<Option<Answer>, Fault> {
    let rows = session.query(ANSWER, &[&uuid(entry)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Answer {
        status: required(row, 0, |status: i32| u16::try_from(status).ok())?,
        headers: headers(&column::<Vec<u8>>(row, 1)?)?,
        body: column(row, 2)?,
    }))
}

/// Open entries by state.
pub(super) async fn counts(session: &Session) -> Result<Counts, Fault> {
    let mut counts = Counts::default();
    for row in session.query(COUNTS, &[]).await? {
        let count: i64 = column(&row, 1)?;
        let oldest_ms = Some(column(&row, 2)?);
        let tally = Tally { count: count.try_into().unwrap_or(0), oldest_ms };
        match state(&row, 0)? {
            State::Begun => counts.begun = tally,
            State::Unknown => counts.unknown = tally,
            State::Waiting => counts.waiting = tally,
            State::Accepted | State::Rejected | State::Undone => {}
        }
    }
    Ok(counts)
}

fn headers(blob: &[u8]) -> Result<Vec<(String, Vec<u8>)>, Fault> {
    let mut parts = blob.split(|byte| *byte == 0);
    let mut headers = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        let name = String::from_utf8(name.to_vec()).map_err(|_| damaged())?;
        headers.push((name, value.to_vec()));
    }
    Ok(headers)
}

/// The code of a state in a column.
pub(super) fn code(state: State) -> i16 {
    i16::try_from(state.code()).unwrap_or(i16::MAX)
}

fn state_of(code: i16) -> Option<State> {
    State::from_code(code.into())
}

/// The state in a column.
pub(super) fn state(row: &Row, index: usize) -> Result<State, Fault> {
    required(row, index, state_of)
}

/// The state in a column that may be empty.
pub(super) fn state_or_none(row: &Row, index: usize) -> Result<Option<State>, Fault> {
    optional(row, index, state_of)
}

/// The cause in a column.
pub(super) fn cause(row: &Row, index: usize) -> Result<Option<Cause>, Fault> {
    optional(row, index, |text: String| Cause::from_name(&text))
}

/// The digest in a column.
pub(super) fn digest(row: &Row, index: usize) -> Result<Digest, Fault> {
    required(row, index, |bytes: Vec<u8>| bytes.try_into().ok().map(Digest))
}

/// The digest in a column that may be empty.
pub(super) fn digest_or_none(row: &Row, index: usize) -> Result<Option<Digest>, Fault> {
    optional(row, index, |bytes: Vec<u8>| bytes.try_into().ok().map(Digest))
}

/// The count in a column.
pub(super) fn number(row: &Row, index: usize) -> Result<u32, Fault> {
    required(row, index, |number: i32| u32::try_from(number).ok())
}

/// The value in a column.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, Fault> {
    row.try_get(index).map_err(|_| damaged())
}

fn required<'a, S: FromSql<'a>, T>(
    row: &'a Row,
    index: usize,
    read: impl FnOnce(S) -> Option<T>,
) -> Result<T, Fault> {
    read(column(row, index)?).ok_or_else(damaged)
}

fn optional<'a, S: FromSql<'a>, T>(
    row: &'a Row,
    index: usize,
    read: impl FnOnce(S) -> Option<T>,
) -> Result<Option<T>, Fault> {
    match column::<Option<S>>(row, index)? {
        None => Ok(None),
        Some(stored) => read(stored).map(Some).ok_or_else(damaged),
    }
}

/// A value that this program never writes.
pub(super) fn damaged() -> Fault {
    Fault::Down(Failure::new(Reason::Corrupt, "a row does not read as what was written"))
}

pub(super) fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
