//! What a call may repeat: the lookups of many calls in one pipe.
//!
//! By key and by digest the [finder](Finder) says which entry is the newest; the open ones are found
//! by their own small indexes. An attempt that was not sent is no earlier call, so such an entry
//! leads on to the one before it.

use std::collections::HashMap;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio_postgres::Row;
use uuid::Uuid;

use super::rows::{self, column, prior_columns};
use super::session::{Answers, Fault, Param, Pipe, Session, whole};
use crate::contract::key::{Digest, EntryId, Key};
use crate::contract::thing::Thing;
use crate::ledger::entry::{Cause, State};
use crate::ledger::{Look, MAX_UNKNOWN_NAMED, Prior, Priors, Stranger};

const NEWEST: &str = concat!(
    "SELECT t.i, ",
    prior_columns!(),
    " FROM unnest($1::int4[], $2::uuid[]) AS t(i, hash) \
     JOIN takeback.finder f ON f.hash = t.hash JOIN takeback.entry e ON e.id = f.entry"
);

const EARLIER: &str =
    concat!("SELECT ", prior_columns!(), " FROM takeback.entry e WHERE e.id = ANY($1)");

// Mine: the newest open one, and the one with the claim, which may be another in observe mode.
const OPEN: &str = concat!(
    "SELECT t.i, e.twin, ",
    prior_columns!(),
    " FROM unnest($1::int4[], $2::bytea[], $3::text[], $4::bool[]) \
     AS t(i, digest, principal, staged) CROSS JOIN LATERAL (\
     (SELECT * FROM takeback.entry o WHERE o.digest = t.digest AND o.principal = t.principal \
       AND o.staged = t.staged AND o.state <= 4 ORDER BY o.number DESC LIMIT 1) \
     UNION \
     (SELECT * FROM takeback.entry o WHERE o.digest = t.digest AND o.principal = t.principal \
       AND o.staged = t.staged AND o.state <= 4 \
       AND o.twin = '00000000-0000-0000-0000-000000000000' LIMIT 1)) e"
);

const STRANGERS: &str = "SELECT t.i FROM unnest($1::int4[], $2::bytea[], $3::text[], $4::text[]) \
     AS t(i, digest, principal, key) WHERE EXISTS (\
     SELECT 1 FROM takeback.entry e WHERE e.digest = t.digest AND e.state <= 4 AND e.weak \
       AND e.principal <> t.principal) \
     OR EXISTS (SELECT 1 FROM takeback.entry e WHERE e.key = t.key AND e.state <= 4 AND e.weak \
       AND e.key IS NOT NULL AND e.principal <> t.principal)";

const UNDOES: &str = "SELECT t.i, x.id FROM unnest($1::int4[], $2::text[], $3::bytea[]) \
     AS t(i, principal, mark) CROSS JOIN LATERAL (\
     SELECT e.id FROM takeback.entry e WHERE e.principal = t.principal AND e.undo_mark = t.mark \
       AND e.state = 5 AND e.undo_mark IS NOT NULL ORDER BY e.number DESC LIMIT 1) x";

const UNKNOWN: &str = "SELECT t.i, x.id FROM unnest($1::int4[], $2::text[], $3::text[]) \
     AS t(i, principal, operation) CROSS JOIN LATERAL (\
     SELECT e.id, e.number FROM takeback.entry e WHERE e.principal = t.principal \
       AND e.operation = t.operation AND e.state = 4 ORDER BY e.number DESC LIMIT $4) x \
     ORDER BY t.i, x.number DESC";

/// What a connection that looks prepares.
pub(super) const STATEMENTS: &[&str] = &[NEWEST, EARLIER, OPEN, STRANGERS, UNDOES, UNKNOWN];

/// Makes the hashes of the finder.
#[derive(Clone)]
pub(super) struct Finder {
    mac: Hmac<Sha256>,
}

impl std::fmt::Debug for Finder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Finder")
    }
}

impl Finder {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        let mut block = [0; 64];
        for (byte, secret) in block.iter_mut().zip(secret) {
            *byte = *secret;
        }
        Self { mac: Hmac::new(&block.into()) }
    }

    pub(super) fn key(&self, principal: &str, key: &Key) -> Uuid {
        self.hash(b'k', principal, key.as_str().as_bytes())
    }

    pub(super) fn digest(&self, principal: &str, digest: &Digest, is_staged: bool) -> Uuid {
        self.hash(if is_staged { b's' } else { b'd' }, principal, &digest.0)
    }

    /// The hash of what entries change, whoever calls.
    pub(super) fn thing(&self, thing: &Thing) -> Uuid {
        self.hash(b't', "", &thing.0.0)
    }

    fn hash(&self, kind: u8, principal: &str, value: &[u8]) -> Uuid {
        let mut mac = self.mac.clone();
        mac.update(&[kind]);
        mac.update(&u64::try_from(principal.len()).unwrap_or(u64::MAX).to_be_bytes());
        mac.update(principal.as_bytes());
        mac.update(value);
        let hash = mac.finalize().into_bytes();
        let mut bytes = [0; 16];
        for (byte, hashed) in bytes.iter_mut().zip(hash) {
            *byte = hashed;
        }
        Uuid::from_bytes(bytes)
    }
}

/// What a call may repeat, as far as a begin is judged by it.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    pub(super) by_key: Option<Prior>,
    pub(super) by_digest: Option<Prior>,
    /// The entry that holds the unique claim on principal, digest and stage flag.
    pub(super) claimed: Option<EntryId>,
}

/// The lookups of some calls, on their way.
pub(super) struct Search<'a> {
    looks: Vec<&'a Look>,
    newest: usize,
    open: usize,
}

impl<'a> Search<'a> {
    /// Adds to a pipe what finds the repeats of these calls but for strangers.
    pub(super) fn add(finder: &Finder, looks: Vec<&'a Look>, pipe: &mut Pipe<'_>) -> Self {
        let mut indices = Vec::new();
        let mut hashes = Vec::new();
        for (index, look) in looks.iter().enumerate() {
            let principal = look.principal.id.as_str();
            indices.push(number(2 * index));
            hashes.push(finder.digest(principal, &look.digest, look.staged));
            if let Some(key) = &look.key {
                indices.push(number(2 * index + 1));
                hashes.push(finder.key(principal, key));
            }
        }
        let newest = pipe.add(NEWEST, vec![Box::new(indices), Box::new(hashes)]);
        let staged: Vec<bool> = looks.iter().map(|look| look.staged).collect();
        let open = pipe
            .add(OPEN, vec![places(&looks), digests(&looks), principals(&looks), Box::new(staged)]);
        Self { looks, newest, open }
    }

    /// Reads what came back.
    pub(super) async fn read(
        self,
        session: &Session,
        answers: &[Vec<Row>],
    ) -> Result<Vec<Repeats>, Fault> {
        let mut found: Vec<Repeats> = self.looks.iter().map(|_| Repeats::default()).collect();
        for row in answers.get(self.newest).into_iter().flatten() {
            let place: i32 = column(row, 0)?;
            let place = usize::try_from(place).map_err(|_| rows::damaged())?;
            let (Some(look), Some(repeats)) = (self.looks.get(place / 2), found.get_mut(place / 2))
            else {
                continue;
            };
            let (prior, earlier) = prior_at(row, 1)?;
            if prior.principal.id != rows::text(&look.principal.id) {
                continue;
            }
            if place % 2 == 1 {
                repeats.by_key = Some(prior);
            } else if is_earlier_call(&prior) {
                repeats.by_digest = Some(prior);
            } else {
                repeats.by_digest = lead_on(session, earlier).await?;
            }
        }
        let mut newest_open: Vec<Option<i64>> = self.looks.iter().map(|_| None).collect();
        for row in answers.get(self.open).into_iter().flatten() {
            let place: i32 = column(row, 0)?;
            let twin: Uuid = column(row, 1)?;
            let (prior, _) = prior_at(row, 2)?;
            let number: i64 = column(row, 2 + rows::PRIOR - 2)?;
            let place = usize::try_from(place).map_err(|_| rows::damaged())?;
            let (Some(repeats), Some(newest)) = (found.get_mut(place), newest_open.get_mut(place))
            else {
                continue;
            };
            if twin.is_nil() {
                repeats.claimed = Some(prior.entry);
            }
            // The newest open one goes before every one that is not.
            if newest.is_none_or(|newest| newest < number) {
                *newest = Some(number);
                repeats.by_digest = Some(prior);
            }
        }
        Ok(found)
    }
}

/// Follows entries that were not sent to the call before them.
async fn lead_on(session: &Session, from: Option<Uuid>) -> Result<Option<Prior>, Fault> {
    let mut next = from;
    // Each entry names one that was an earlier call when it began; more than a few in a row that are
    // none any more would be odd, and a bound is a bound.
    for _ in 0..64 {
        let Some(id) = next else { return Ok(None) };
        let rows = session.query(EARLIER, &[&vec![id]]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (prior, earlier) = prior_at(row, 0)?;
        if is_earlier_call(&prior) {
            return Ok(Some(prior));
        }
        next = earlier;
    }
    Ok(None)
}

/// An attempt that was not sent is no earlier call: nothing of it happened.
fn is_earlier_call(prior: &Prior) -> bool {
    !(prior.state == State::Rejected && prior.cause == Some(Cause::NotSent))
}

/// Adds to a pipe what says of which of these calls a stranger has an open entry.
pub(super) fn ask_strangers(looks: &[&Look], pipe: &mut Pipe<'_>) -> usize {
    let keys: Vec<Option<String>> =
        looks.iter().map(|look| look.key.as_ref().map(|key| key.as_str().to_owned())).collect();
    pipe.add(STRANGERS, vec![places(looks), digests(looks), principals(looks), Box::new(keys)])
}

/// The places in the question of the calls that an answer names.
pub(super) fn named(rows: &[Row]) -> Result<Vec<usize>, Fault> {
    rows.iter()
        .map(|row| {
            let place: i32 = column(row, 0)?;
            usize::try_from(place).map_err(|_| rows::damaged())
        })
        .collect()
}

/// What [`Ledger::look`](crate::ledger::Ledger::look) answers, for many calls at once.
pub(super) async fn look(
    session: &Session,
    finder: &Finder,
    looks: Vec<&Look>,
) -> Result<Vec<Priors>, Fault> {
    let mut pipe = session.pipe();
    let search = Search::add(finder, looks.clone(), &mut pipe);
    let strangers = ask_strangers(&looks, &mut pipe);
    let marks: Vec<Vec<u8>> = looks.iter().map(|look| look.mark.0.to_vec()).collect();
    let undoes = pipe.add(UNDOES, vec![places(&looks), principals(&looks), Box::new(marks)]);
    let operations: Vec<String> =
        looks.iter().map(|look| look.operation.as_str().to_owned()).collect();
    let limit: Param = Box::new(rows::limit_of(MAX_UNKNOWN_NAMED));
    let unknown =
        pipe.add(UNKNOWN, vec![places(&looks), principals(&looks), Box::new(operations), limit]);
    let answers: Answers = pipe.run().await?;
    let answers = whole(answers)?;

    let found = search.read(session, &answers).await?;
    let mut priors: Vec<Priors> = found
        .into_iter()
        .map(|repeats| Priors {
            by_key: repeats.by_key,
            by_digest: repeats.by_digest,
            ..Priors::default()
        })
        .collect();
    for place in named(answers.get(strangers).map_or(&[], Vec::as_slice))? {
        if let Some(priors) = priors.get_mut(place) {
            priors.open_of_stranger = Some(Stranger);
        }
    }
    let mut by_place: HashMap<usize, Vec<EntryId>> = HashMap::new();
    for row in answers.get(unknown).into_iter().flatten() {
        let place: i32 = column(row, 0)?;
        let place = usize::try_from(place).map_err(|_| rows::damaged())?;
        by_place.entry(place).or_default().push(rows::entry_id(column(row, 1)?));
    }
    for (place, entries) in by_place {
        if let Some(priors) = priors.get_mut(place) {
            priors.unknown_of_operation = entries;
        }
    }
    for row in answers.get(undoes).into_iter().flatten() {
        let place: i32 = column(row, 0)?;
        let entry = rows::entry_id(column(row, 1)?);
        if let Some(priors) = usize::try_from(place).ok().and_then(|i| priors.get_mut(i)) {
            priors.undoes = Some(entry);
        }
    }
    Ok(priors)
}

/// Reads a prior whose columns begin at `from`, and the entry before it.
fn prior_at(row: &Row, from: usize) -> Result<(Prior, Option<Uuid>), Fault> {
    let prior = rows::prior(row, from)?;
    let earlier = column(row, from + rows::PRIOR - 1)?;
    Ok((prior, earlier))
}

fn places(looks: &[&Look]) -> Param {
    Box::new((0..looks.len()).map(number).collect::<Vec<i32>>())
}

fn digests(looks: &[&Look]) -> Param {
    Box::new(looks.iter().map(|look| look.digest.0.to_vec()).collect::<Vec<_>>())
}

fn principals(looks: &[&Look]) -> Param {
    Box::new(looks.iter().map(|look| rows::text(&look.principal.id)).collect::<Vec<_>>())
}

/// A place in a question; far below the limit of the type.
pub(super) fn number(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(i32::MAX)
}
