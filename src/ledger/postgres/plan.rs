//! What a [batch](super::batch) will write: the commands in it, judged, as arrays for its statements.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::batch::Fate;
use super::begun::{Inserts, Texts, again, keep_before};
use super::chained::Chained;
use super::look::{Finder, Repeats, number};
use super::outcome::Outcomes;
use super::rows::{self, text};
use super::session::{Fault, Param, Pipe};
use super::sql;
use super::step::{Step, Subject};
use crate::contract::key::EntryId;
use crate::ledger::chain::row::Content;
use crate::ledger::desk::command::{Done, Write};
use crate::ledger::entry::State;
use crate::ledger::{Begin, Begun, Guard};

/// A begin, and what it is judged by.
#[derive(Debug)]
pub(super) struct Judged<'a> {
    pub(super) begin: &'a Begin,
    place: usize,
    digest: Uuid,
    key: Option<Uuid>,
    /// Rows of the finder that this begin inserted: there is no earlier call with them.
    claims: Vec<Uuid>,
    /// Whether some of its rows were there before.
    pub(super) is_known: bool,
    /// A begin before it in the batch that this one depends on.
    met: Option<Met>,
    pub(super) repeats: Repeats,
    pub(super) is_stranger_open: bool,
    /// Whether its confirmation was used by it, now.
    has_spent: bool,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug)]
enum Met {
    /// With the same key, or the same digest and stage flag, of the same principal.
    Own(usize),
    /// With the same confirmation.
    Spend(usize),
    /// With the same key or digest of a weak stranger.
    Stranger(usize),
}

#[derive(Debug)]
enum Verdict {
    Changed,
    Deferred,
    NotFound,
    Refused,
    Spent,
    Started { attempt: u32, seq: i64, rerun: Option<Box<Subject>> },
}

/// The plan of one batch.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    /// Where its steps are linked, in the order of their numbers.
    pub(super) chain: &'a mut Chained,
    pub(super) finder: &'a Finder,
    pub(super) judged: Vec<Judged<'a>>,
    /// Entries that must be locked.
    pub(super) named: Vec<Uuid>,
    /// How many steps may be written.
    pub(super) steps: usize,
    /// Which begin a row of the finder belongs to.
    owners: HashMap<Uuid, usize>,
    subjects: HashMap<Uuid, Subject>,
    /// Numbers for steps, the lowest last.
    pub(super) numbers: Vec<i64>,
    /// Those that were given to a step.
    pub(super) used: Vec<i64>,
    pub(super) outcomes: Outcomes,
    /// What became of the commands that are no begins.
    pub(super) fates: HashMap<usize, Fate>,
    /// Entries that have a step in this batch, and those that must have another one after it.
    pub(super) stepped: HashSet<Uuid>,
    pub(super) deferred: HashSet<Uuid>,
    /// Which accepted entries are taken back: by which of the undoing calls, and their id, version and
    /// attempt.
    pub(super) targets: Vec<(usize, Uuid, i64, u32)>,
}

impl<'a> Plan<'a> {
    pub(super) fn of(finder: &'a Finder, chain: &'a mut Chained, writes: &'a [Write]) -> Self {
        let mut plan = Self {
            chain,
            finder,
            judged: Vec::new(),
            named: Vec::new(),
            steps: 0,
            owners: HashMap::new(),
            subjects: HashMap::new(),
            numbers: Vec::new(),
            used: Vec::new(),
            outcomes: Outcomes::default(),
            fates: HashMap::new(),
            stepped: HashSet::new(),
            deferred: HashSet::new(),
            targets: Vec::new(),
        };
        for (place, write) in writes.iter().enumerate() {
            match write {
                Write::Begin(begin, ..) => plan.add_begin(finder, place, begin),
                // A finish may take an earlier entry back.
                Write::Finish(finish, ..) => {
                    plan.named.push(rows::uuid(finish.entry));
                    plan.steps += 2;
                }
                // So may what is settled.
                Write::Settle(settle, _) => {
                    plan.named.push(rows::uuid(settle.entry));
                    plan.steps += 2;
                }
                Write::Note(note, _) => {
                    plan.named.push(rows::uuid(note.entry));
                    plan.steps += 1 + usize::from(note.outcome.is_some());
                }
                Write::TookBack(took_back, _) => {
                    plan.named.extend([took_back.entry, took_back.by].map(rows::uuid));
                    plan.steps += 1;
                }
                Write::Withdraw { entry, .. } => {
                    plan.named.push(rows::uuid(*entry));
                    plan.steps += 1;
                }
                // Some have transactions of their own.
                Write::Acknowledge(..)
                | Write::Delivered { .. }
                | Write::Heartbeat(..)
                | Write::Prune { .. }
                | Write::Redact(..)
                | Write::Spend(..) => {}
            }
        }
        plan.named.sort_unstable();
        plan.named.dedup();
        plan
    }

    fn add_begin(&mut self, finder: &Finder, place: usize, begin: &'a Begin) {
        let look = &begin.look;
        let principal = look.principal.id.as_str();
        let this = self.judged.len();
        let mut judged = Judged {
            begin,
            place,
            digest: finder.digest(principal, &look.digest, look.staged),
            key: look.key.as_ref().map(|key| finder.key(principal, key)),
            claims: Vec::new(),
            is_known: false,
            met: None,
            repeats: Repeats::default(),
            is_stranger_open: false,
            has_spent: false,
            verdict: Verdict::Deferred,
        };
        for hash in judged.hashes() {
            let owner = *self.owners.entry(hash).or_insert(this);
            if owner != this {
                judged.met = Some(Met::Own(owner));
            }
        }
        if judged.met.is_none() {
            judged.met = self.met_otherwise(begin);
        }
        if let Some(entry) = begin.rerun {
            self.named.push(rows::uuid(entry));
        }
        self.steps += 1;
        self.judged.push(judged);
    }

    /// Whether an earlier begin of this batch matters to this one though it is another call.
    fn met_otherwise(&self, begin: &Begin) -> Option<Met> {
        let look = &begin.look;
        for (place, other) in self.judged.iter().enumerate() {
            if begin.spend.is_some() && other.begin.spend == begin.spend {
                return Some(Met::Spend(place));
            }
            let theirs = &other.begin.look;
            let is_stranger = theirs.principal.weak && theirs.principal.id != look.principal.id;
            let is_alike =
                theirs.digest == look.digest || (look.key.is_some() && theirs.key == look.key);
            if is_stranger && is_alike {
                return Some(Met::Stranger(place));
            }
        }
        None
    }

    pub(super) fn add_subject(&mut self, subject: Subject) {
        self.subjects.insert(subject.id, subject);
    }

    /// Notes that an entry has made a step.
    pub(super) fn note_step(&mut self, id: Uuid, state: State, version: i64) {
        self.stepped.insert(id);
        if let Some(subject) = self.subjects.get_mut(&id) {
            subject.state = state;
            subject.version = version;
        }
    }

    pub(super) fn subject(&self, entry: EntryId) -> Option<&Subject> {
        self.subjects.get(&rows::uuid(entry))
    }

    /// The number of the next step.
    pub(super) fn next_number(&mut self) -> Result<i64, Fault> {
        // As many were asked for as there can be steps.
        let number = self.numbers.pop().ok_or_else(rows::damaged)?;
        self.used.push(number);
        Ok(number)
    }

    /// Adds what uses up the confirmations of the begins.
    pub(super) fn ask_spent(&self, pipe: &mut Pipe<'_>) -> Option<usize> {
        let (mut expires, mut nonces) = (Vec::new(), Vec::new());
        for judged in self.judged.iter().filter(|judged| judged.spends_first()) {
            if let Some(spend) = judged.begin.spend {
                expires.push(spend.expires_ms);
                nonces.push(spend.nonce.to_vec());
            }
        }
        let is_any = !nonces.is_empty();
        is_any.then(|| pipe.add(sql::SPEND, vec![Box::new(expires), Box::new(nonces)]))
    }

    pub(super) fn note_spent(&mut self, spent: &HashSet<Vec<u8>>) {
        for judged in &mut self.judged {
            let nonce = judged.begin.spend.map(|spend| spend.nonce);
            judged.has_spent =
                judged.spends_first() && nonce.is_some_and(|nonce| spent.contains(&nonce[..]));
        }
    }

    /// Adds what makes the finder's rows of the begins.
    pub(super) fn ask_claims(&self, pipe: &mut Pipe<'_>) -> Option<usize> {
        let (mut hashes, mut entries) = (Vec::new(), Vec::new());
        for (place, judged) in self.judged.iter().enumerate() {
            for hash in judged.hashes() {
                if self.owners.get(&hash) == Some(&place) {
                    hashes.push(hash);
                    entries.push(rows::uuid(judged.begin.subject()));
                }
            }
        }
        let is_any = !hashes.is_empty();
        is_any.then(|| pipe.add(sql::CLAIM, vec![Box::new(hashes), Box::new(entries)]))
    }

    pub(super) fn note_claims(&mut self, fresh: &HashSet<Uuid>) {
        for (place, judged) in self.judged.iter_mut().enumerate() {
            for hash in judged.hashes() {
                if self.owners.get(&hash) != Some(&place) {
                    continue;
                }
                if fresh.contains(&hash) {
                    judged.claims.push(hash);
                } else {
                    judged.is_known = true;
                }
            }
        }
    }

    /// The finder's rows that were there before.
    pub(super) fn known_hashes(&self) -> Vec<Uuid> {
        let known = self.judged.iter().filter(|judged| judged.is_known);
        known
            .flat_map(|judged| {
                judged.hashes().into_iter().filter(|hash| !judged.claims.contains(hash))
            })
            .collect()
    }

    /// Says what becomes of each begin.
    pub(super) fn judge(&mut self) -> Result<(), Fault> {
        for place in 0..self.judged.len() {
            let Some(judged) = self.judged.get(place) else { continue };
            let mut verdict = self.verdict(judged);
            if let Verdict::Started { seq, .. } = &mut verdict {
                *seq = self.next_number()?;
            }
            if let Some(judged) = self.judged.get_mut(place) {
                judged.verdict = verdict;
            }
        }
        Ok(())
    }

    fn verdict(&self, judged: &Judged<'_>) -> Verdict {
        let begin = judged.begin;
        let is_enforced = begin.guard == Guard::Enforced;
        let has_started = |place: usize| {
            self.judged
                .get(place)
                .is_some_and(|other| matches!(other.verdict, Verdict::Started { .. }))
        };
        match judged.met {
            // Nobody can have judged by a step that is written in this moment.
            Some(Met::Own(other)) if is_enforced && has_started(other) => return Verdict::Changed,
            Some(Met::Own(_)) => return Verdict::Deferred,
            Some(Met::Spend(other)) if has_started(other) => {}
            Some(Met::Spend(_)) => return Verdict::Deferred,
            Some(Met::Stranger(other))
                if is_enforced
                    && has_started(other)
                    && begin.expected.open_of_stranger.is_none() =>
            {
                return Verdict::Changed;
            }
            Some(Met::Stranger(_)) | None => {}
        }
        let by_key = judged.known_key();
        let by_digest = judged.known_digest();
        if is_enforced {
            let expected = &begin.expected;
            let is_stranger_new = judged.is_stranger_open && expected.open_of_stranger.is_none();
            if by_key.map(|prior| prior.version) != expected.by_key
                || by_digest.map(|prior| prior.version) != expected.by_digest
                || is_stranger_new
            {
                return Verdict::Changed;
            }
        }
        let rerun = match begin.rerun {
            None => None,
            Some(entry) => {
                let Some(subject) = self.subject(entry) else {
                    return Verdict::NotFound;
                };
                let is_judged =
                    [by_key, by_digest].iter().flatten().any(|prior| prior.entry == entry);
                let is_same = subject.principal == text(&begin.look.principal.id)
                    && subject.digest == begin.look.digest;
                if !is_judged || !is_same || !subject.state.may_become(State::Begun) {
                    return Verdict::Refused;
                }
                Some(Box::new(subject.clone()))
            }
        };
        let is_claimed = judged.repeats.claimed.is_some_and(|entry| Some(entry) != begin.rerun);
        if is_enforced && is_claimed {
            return Verdict::Refused;
        }
        if begin.spend.is_some() && !judged.has_spent {
            return Verdict::Spent;
        }
        let attempt = rerun.as_ref().map_or(1, |subject| subject.attempt.saturating_add(1));
        Verdict::Started { attempt, seq: 0, rerun }
    }

    /// Adds what the judged begins write.
    pub(super) fn write_begins(&mut self, pipe: &mut Pipe<'_>, owner: Uuid) -> Result<(), Fault> {
        let mut inserts = Inserts::default();
        let mut unclaimed: Vec<Uuid> = Vec::new();
        let (mut pointed, mut pointed_to) = (Vec::new(), Vec::new());
        let (mut unspent_ms, mut unspent) = (Vec::new(), Vec::new());
        let (mut things, mut touched_by): (Vec<Uuid>, Vec<Uuid>) = (Vec::new(), Vec::new());
        for judged in &self.judged {
            let begin = judged.begin;
            let texts = Texts::of(begin, self.finder);
            if matches!(judged.verdict, Verdict::Started { .. }) {
                things.extend(&texts.hashes);
                touched_by.extend(texts.hashes.iter().map(|_| rows::uuid(begin.subject())));
            }
            match &judged.verdict {
                Verdict::Started { attempt, seq, rerun: Some(subject) } => {
                    pipe.add(sql::UNPRUNE, vec![Box::new(subject.id)]);
                    let mut params = again(begin, subject, *attempt, *seq, owner);
                    params.push(Box::new(texts.things.clone()));
                    pipe.add(sql::AGAIN, params);
                    let step = Step {
                        attempt: *attempt,
                        detail: begin.authorization.as_deref(),
                        ..Step::of(subject, State::Begun)
                    };
                    let content = Content::Attempt(&texts.attempt(begin));
                    pipe.add(sql::STEP, step.params(self.chain, *seq, begin.now_ms, content));
                    keep_before(begin, pipe);
                }
                Verdict::Started { seq, rerun: None, .. } => {
                    let earlier = judged.known_digest().map(|prior| prior.entry);
                    inserts.add(begin, texts, self.chain, *seq, earlier);
                    keep_before(begin, pipe);
                    let known = judged.hashes().into_iter();
                    for hash in known.filter(|hash| !judged.claims.contains(hash)) {
                        pointed.push(hash);
                        pointed_to.push(rows::uuid(begin.entry));
                    }
                }
                Verdict::Changed
                | Verdict::Deferred
                | Verdict::NotFound
                | Verdict::Refused
                | Verdict::Spent => {
                    unclaimed.extend(&judged.claims);
                    if let (true, Some(spend)) = (judged.has_spent, begin.spend) {
                        unspent_ms.push(spend.expires_ms);
                        unspent.push(spend.nonce.to_vec());
                    }
                }
            }
        }
        if !inserts.ids.is_empty() {
            let (ids, seqs) = (inserts.ids.clone(), inserts.seqs.clone());
            let times = inserts.times.clone();
            let details = std::mem::take(&mut inserts.authorizations);
            let places = std::mem::take(&mut inserts.places);
            let seals = std::mem::take(&mut inserts.seals);
            pipe.add(sql::INSERT, inserts.params(owner));
            let first: Vec<Param> = vec![
                Box::new(seqs),
                Box::new(ids),
                Box::new(times),
                Box::new(details),
                Box::new(self.chain.number),
                Box::new(places),
                Box::new(seals),
            ];
            pipe.add(sql::FIRST_STEPS, first);
        }
        if !things.is_empty() {
            pipe.add(sql::TOUCH, vec![Box::new(things), Box::new(touched_by)]);
        }
        if !pointed.is_empty() {
            pipe.add(sql::POINT, vec![Box::new(pointed), Box::new(pointed_to)]);
        }
        if !unclaimed.is_empty() {
            pipe.add(sql::UNCLAIM, vec![Box::new(unclaimed)]);
        }
        if !unspent.is_empty() {
            pipe.add(sql::UNSPEND, vec![Box::new(unspent_ms), Box::new(unspent)]);
        }
        Ok(())
    }

    /// What became of each command.
    pub(super) fn fates(mut self, writes: &[Write]) -> (Vec<Fate>, Vec<i64>) {
        let mut fates: Vec<Fate> = (0..writes.len())
            .map(|place| self.fates.remove(&place).unwrap_or(Fate::Done(Done::Written)))
            .collect();
        for judged in &self.judged {
            let fate = match &judged.verdict {
                Verdict::Changed => Fate::Changed,
                Verdict::Deferred => Fate::Deferred,
                Verdict::NotFound => Fate::Done(Done::NotFound),
                Verdict::Refused => Fate::Done(Done::Refused),
                Verdict::Spent => Fate::Done(Done::Begun(Begun::Spent)),
                Verdict::Started { attempt, .. } => {
                    Fate::Done(Done::Begun(Begun::Started { attempt: *attempt }))
                }
            };
            if let Some(place) = fates.get_mut(judged.place) {
                *place = fate;
            }
        }
        (fates, self.used)
    }
}

impl Judged<'_> {
    fn hashes(&self) -> Vec<Uuid> {
        std::iter::once(self.digest).chain(self.key).collect()
    }

    /// Whether no begin before it in the batch brings the same confirmation.
    fn spends_first(&self) -> bool {
        self.begin.spend.is_some() && !matches!(self.met, Some(Met::Spend(_) | Met::Own(_)))
    }

    /// The entry with its key; a row that it made itself leads to none.
    fn known_key(&self) -> Option<&crate::ledger::Prior> {
        let is_fresh = self.key.is_some_and(|key| self.claims.contains(&key));
        self.repeats.by_key.as_ref().filter(|_| !is_fresh)
    }

    fn known_digest(&self) -> Option<&crate::ledger::Prior> {
        let is_fresh = self.claims.contains(&self.digest);
        self.repeats.by_digest.as_ref().filter(|_| !is_fresh)
    }
}

/// Adds what asks for the entries that accepted calls take back.
pub(super) fn ask_targets(
    undoing: &[super::outcome::Undoing],
    pipe: &mut Pipe<'_>,
) -> Option<usize> {
    let places: Vec<i32> = (0..undoing.len()).map(number).collect();
    let principals: Vec<String> = undoing.iter().map(|one| one.principal.clone()).collect();
    let marks: Vec<Vec<u8>> = undoing.iter().map(|one| one.mark.0.to_vec()).collect();
    let is_any = !places.is_empty();
    is_any.then(|| {
        pipe.add(sql::UNDO_TARGETS, vec![Box::new(places), Box::new(principals), Box::new(marks)])
    })
}
