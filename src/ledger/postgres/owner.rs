//! Who has attempts under way: leases, and what becomes of the attempts of the dead.
//!
//! Each running sidecar has a row with a random id and a lease, which ends by the database's clock.
//! Every batch renews it, and so does a tick when nothing is written. A batch locks the row until it
//! is over; whoever takes a sidecar for dead must lock it too. So no attempt begins after its
//! sidecar was taken for dead, and none of a living one is touched.
//!
//! A sidecar that stood still until its lease ran out refuses begins until it has it again: under its
//! old id if nobody took it for dead, else under a new one.

use uuid::Uuid;

use super::chained::{Chained, Link, entry_bytes};
use super::rows::{code, column, damaged};
use super::session::{Fault, Session};
use crate::ledger::chain::row::{Content, Row};
use crate::ledger::entry::{Cause, State};

const RENEW: &str = "UPDATE takeback.owner \
     SET lease_until = clock_timestamp() + $2::float8 * interval '1 millisecond' \
     WHERE id = $1 RETURNING id";

const ENTER: &str = "INSERT INTO takeback.owner (id, lease_until, heartbeat_ms) \
     VALUES ($1, clock_timestamp() + $2::float8 * interval '1 millisecond', $3)";

const LEAVE: &str = "UPDATE takeback.owner SET lease_until = clock_timestamp() WHERE id = $1";

/// The dead, a few at a time; those that another sidecar is at are left to it.
const DEAD: &str = "SELECT id FROM takeback.owner WHERE lease_until <= clock_timestamp() \
     AND id <> $1 ORDER BY id LIMIT 16 FOR UPDATE SKIP LOCKED";

const BEGUN: &str = "SELECT id, version, attempt FROM takeback.entry \
     WHERE state <= 4 AND state = 2 AND owner = ANY($1) ORDER BY id LIMIT 10000 FOR UPDATE";

const NUMBERS: &str = "SELECT nextval('takeback.step') FROM generate_series(1, $1::int4)";

const STEPS: &str = "INSERT INTO takeback.history (seq, entry, previous, at_ms, from_state, \
     to_state, attempt, cause, chain, place, seal) SELECT t.seq, t.entry, t.previous, $1, $2, $3, \
     t.attempt, $4, $5, t.place, t.seal FROM unnest($6::int8[], $7::uuid[], $8::int8[], \
     $9::int4[], $10::int8[], $11::bytea[]) AS t(seq, entry, previous, attempt, place, seal)";

/// Whatever an earlier attempt was answered says nothing of this one.
const CRASHED: &str = "UPDATE takeback.entry e SET state = $1, version = t.seq, finish = t.seq, \
     finished_ms = $2, delivered = false, answered = false, kept = false, cause = $3, \
     undo_mark = NULL, verdict = NULL, tries = 0, \
     due_ms = CASE WHEN e.lookup IS NOT NULL THEN $2::int8 END FROM unnest($4::uuid[], $5::int8[]) AS t(id, seq) WHERE e.id = t.id";

const BURY: &str = "DELETE FROM takeback.owner WHERE id = ANY($1)";

const COMMITTED: &str = "SELECT 1 FROM takeback.history WHERE seq = ANY($1) LIMIT 1";

/// What a connection that writes prepares.
pub(super) const STATEMENTS: &[&str] =
    &[RENEW, ENTER, LEAVE, DEAD, BEGUN, NUMBERS, STEPS, CRASHED, BURY, COMMITTED];

/// Takes or renews the lease of `owner`; the id that holds it from here on.
pub(super) async fn enter(
    session: &Session,
    owner: Uuid,
    lease_ms: f64,
    now_ms: i64,
) -> Result<Uuid, Fault> {
    if !session.query(RENEW, &[&owner, &lease_ms]).await?.is_empty() {
        return Ok(owner);
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|_| Fault::Refused("the system gave no random bytes".to_owned()))?;
    let owner = uuid::Builder::from_random_bytes(random).into_uuid();
    session.query(ENTER, &[&owner, &lease_ms, &now_ms]).await?;
    Ok(owner)
}

/// Ends the lease: what this sidecar has begun and not finished is unknown to the next that looks.
pub(super) async fn leave(session: &Session, owner: Uuid) -> Result<(), Fault> {
    session.query(LEAVE, &[&owner]).await.map(drop)
}

/// Whether a transaction with these steps was committed. To be asked when [`enter`] has returned:
/// it waits for the lock that the transaction held, so that it is over.
pub(super) async fn was_committed(session: &Session, steps: &[i64]) -> Result<bool, Fault> {
    Ok(!session.query(COMMITTED, &[&steps]).await?.is_empty())
}

/// Makes the begun entries of the dead unknown; how many there were.
pub(super) async fn bury(
    session: &Session,
    owner: Uuid,
    chained: &mut Chained,
    now_ms: i64,
) -> Result<u64, Fault> {
    let mut count = 0;
    loop {
        session.run("BEGIN").await?;
        let mark = chained.mark();
        match try_bury(session, owner, chained, now_ms).await {
            Ok((entries, is_all)) => {
                // If its answer is lost, the chain is read again with the next connection.
                session.run("COMMIT").await?;
                chained.committed();
                count += entries;
                if is_all {
                    return Ok(count);
                }
            }
            Err(fault) => {
                chained.go_back(mark);
                // The connection may be gone; the roll-back then came of itself.
                drop(session.run("ROLLBACK").await);
                return Err(fault);
            }
        }
    }
}

/// One transaction of it: how many entries, and whether there are no more.
async fn try_bury(
    session: &Session,
    owner: Uuid,
    chained: &mut Chained,
    now_ms: i64,
) -> Result<(u64, bool), Fault> {
    let dead: Vec<Uuid> = session
        .query(DEAD, &[&owner])
        .await?
        .iter()
        .map(|row| column(row, 0))
        .collect::<Result<_, _>>()?;
    if dead.is_empty() {
        return Ok((0, true));
    }
    let begun = session.query(BEGUN, &[&dead]).await?;
    if begun.is_empty() {
        session.query(BURY, &[&dead]).await?;
        // There may be more dead than one transaction takes.
        return Ok((0, false));
    }
    let (mut ids, mut versions, mut attempts) = (Vec::new(), Vec::new(), Vec::new());
    for row in &begun {
        ids.push(column::<Uuid>(row, 0)?);
        versions.push(column::<i64>(row, 1)?);
        attempts.push(column::<i32>(row, 2)?);
    }
    let (from, to) = (code(State::Begun), code(State::Unknown));
    let cause = Cause::Crash.as_str();
    let count = i32::try_from(ids.len()).unwrap_or(i32::MAX);
    let mut seqs: Vec<i64> = session
        .query(NUMBERS, &[&count])
        .await?
        .iter()
        .map(|row| column(row, 0))
        .collect::<Result<_, _>>()?;
    seqs.sort_unstable();
    let (mut places, mut seals) = (Vec::new(), Vec::new());
    for (((seq, id), previous), attempt) in seqs.iter().zip(&ids).zip(&versions).zip(&attempts) {
        let row = Row {
            seq: *seq,
            entry: entry_bytes(id),
            previous: Some(*previous),
            at_ms: now_ms,
            from: Some(State::Begun.code()),
            to: State::Unknown.code(),
            attempt: u32::try_from(*attempt).map_err(|_| damaged())?,
            cause: Some(cause),
            ..Row::default()
        };
        let Link { place, seal } = chained.link(&row, None, Content::None);
        places.push(place);
        seals.push(seal);
    }
    session
        .query(
            STEPS,
            &[
                &now_ms,
                &from,
                &to,
                &cause,
                &chained.number,
                &seqs,
                &ids,
                &versions,
                &attempts,
                &places,
                &seals,
            ],
        )
        .await?;
    session.query(CRASHED, &[&to, &now_ms, &cause, &ids, &seqs]).await?;
    Ok((u64::try_from(ids.len()).unwrap_or(u64::MAX), false))
}
