//! Who else changed what an undo would change, by the index of `touched`.
//!
//! Ids sort by the clocks of the sidecars that made them, numbers by the order of beginning. So the
//! newest entries of a thing are read by their ids, and told apart by their numbers.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;

use tokio_postgres::Row;
use uuid::Uuid;

use super::rows::{self, column, entry_id, limit_of, number, state, step, uuid};
use super::session::{Fault, Session};
use crate::contract::key::EntryId;
use crate::ledger::entry::{Cause, State};
use crate::ledger::later::{self, Candidate, Course, Planned, Subject, of_told};
use crate::ledger::{MAX_LATER, Obstacle, Step};

/// Of accepted entries with an undo: their first and newest step, what the undo would change, and
/// whether the state before is there.
const SUBJECTS: &str = "SELECT e.id, e.number, e.version, f.things, \
     EXISTS (SELECT 1 FROM takeback.image i WHERE i.entry = e.id) \
     FROM takeback.entry e JOIN takeback.history f ON f.seq = e.finish \
     WHERE e.id = ANY($1) AND e.state = 5 AND f.undo IS NOT NULL";

/// The newest entries of a thing.
pub(in crate::ledger) const TOUCHED: &str = "SELECT e.id, e.number, e.state, e.attempt, e.finish, \
     e.version, e.cause, \
     CASE WHEN e.state = 7 THEN (SELECT h.why FROM takeback.history h WHERE h.seq = e.version) END \
     FROM (SELECT entry FROM takeback.touched WHERE thing = $1 \
     ORDER BY entry DESC LIMIT $2) t JOIN takeback.entry e ON e.id = t.entry";

/// What a connection that reads prepares.
pub(super) const STATEMENTS: &[&str] = &[SUBJECTS, TOUCHED];

/// How many entries of a plan are asked about in one pipe: their answers are held at once, and each
/// may be as long as [`MAX_LATER`].
const TOGETHER: usize = 16;

/// What is known of an entry whose undo is asked about.
enum Found {
    Known { subject: Subject, later: Vec<Candidate>, earlier: Vec<Candidate> },
    Untold,
}

/// What stands in the way of an entry's undo.
pub(super) async fn superseded(
    session: &Session,
    entry: EntryId,
    beside: &HashSet<EntryId>,
) -> Result<Option<Obstacle>, Fault> {
    let mut found = find(session, &[entry]).await?;
    Ok(found.remove(&entry).and_then(|found| obstacle(found, beside)))
}

/// What stands in the way of the undos of a plan.
pub(super) async fn obstacles(
    session: &Session,
    plan: &[Planned],
) -> Result<HashMap<EntryId, Obstacle>, Fault> {
    let mut course = Course::of(plan);
    for part in plan.chunks(TOGETHER) {
        let taken = part.iter().filter(|planned| matches!(planned, Planned::Taken(_)));
        let taken: Vec<EntryId> = taken.map(|planned| planned.entry()).collect();
        let mut found = find(session, &taken).await?;
        course.go::<Fault>(part, |entry, beside| {
            Ok(found.remove(&entry).and_then(|found| obstacle(found, beside)))
        })?;
    }
    Ok(course.end())
}

fn obstacle(found: Found, beside: &HashSet<EntryId>) -> Option<Obstacle> {
    match found {
        Found::Known { subject, later, earlier } => {
            let Ok(found) = later::obstacle::<Infallible>(subject, &later, || Ok(earlier), beside);
            found
        }
        Found::Untold => Some(Obstacle::Untold),
    }
}

/// Reads what decides about entries; of one that has no undo there is nothing.
async fn find(session: &Session, entries: &[EntryId]) -> Result<HashMap<EntryId, Found>, Fault> {
    let ids: Vec<Uuid> = entries.iter().map(|entry| uuid(*entry)).collect();
    let rows = session.query(SUBJECTS, &[&ids]).await?;
    let mut found = HashMap::new();
    let mut pipe = session.pipe();
    let mut asked = Vec::new();
    // Those of a plan often change one thing.
    let mut by_thing: HashMap<Uuid, usize> = HashMap::new();
    for row in &rows {
        let entry: Uuid = column(row, 0)?;
        let Some(told) = column::<Option<Vec<u8>>>(row, 3)? else {
            found.insert(entry_id(entry), Found::Untold);
            continue;
        };
        let version: i64 = column(row, 2)?;
        let history = pipe.add(rows::HISTORY, vec![Box::new(version)]);
        let things: Vec<usize> = of_told(&told)
            .map(Uuid::from_bytes)
            .map(|thing| {
                *by_thing.entry(thing).or_insert_with(|| {
                    let limit = limit_of(MAX_LATER.saturating_add(1));
                    pipe.add(TOUCHED, vec![Box::new(thing), Box::new(limit)])
                })
            })
            .collect();
        asked.push((entry_id(entry), row, history, things));
    }
    let answers = pipe.run_all().await?;
    for (entry, row, history, things) in asked {
        let steps = answers.get(history).into_iter().flatten().map(step);
        let steps: Vec<Step> = steps.collect::<Result<_, _>>()?;
        let began = steps.iter().rev().find(|step| step.to == State::Begun);
        let Some(began) = began.map(|step| step.seq) else { continue };
        let number: i64 = column(row, 1)?;
        let has_before = column(row, 4)?;
        let mut subject = Subject { number, began, has_before, is_cut: false };
        let (mut later, mut earlier) = (Vec::new(), Vec::new());
        for thing in things {
            let rows = answers.get(thing).map_or(&[][..], Vec::as_slice);
            let mut found: Vec<Candidate> = rows.iter().map(candidate).collect::<Result<_, _>>()?;
            found.retain(|other| other.entry != entry);
            let is_later = |other: &Candidate| other.number > number;
            subject.is_cut |= found.len() >= MAX_LATER && found.iter().all(is_later);
            let (after, before): (Vec<_>, Vec<_>) = found.into_iter().partition(is_later);
            later.extend(after);
            earlier.extend(before);
        }
        earlier.sort_unstable_by_key(|other: &Candidate| std::cmp::Reverse(other.number));
        found.insert(entry, Found::Known { subject, later, earlier });
    }
    Ok(found)
}

fn candidate(row: &Row) -> Result<Candidate, Fault> {
    let is_settled = column::<Option<String>>(row, 6)?.as_deref() == Some(Cause::Settled.as_str());
    let version: i64 = column(row, 5)?;
    let why: Option<String> = column(row, 7)?;
    Ok(Candidate {
        entry: entry_id(column(row, 0)?),
        number: column(row, 1)?,
        state: state(row, 2)?,
        attempt: number(row, 3)?,
        finish: column(row, 4)?,
        settled: is_settled.then_some(version),
        undone_by: why.and_then(|why| EntryId::parse(&why)),
    })
}
