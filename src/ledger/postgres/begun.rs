//! What begins write, as the database takes it: new entries column by column, further attempts one by one.
//!
//! Which of them are written is for the [plan](super::plan) to judge.

use uuid::Uuid;

use super::chained::{Chained, Link, entry_bytes};
use super::look::Finder;
use super::rows::{self, code, text};
use super::session::{Param, Pipe};
use super::sql;
use super::step::{Subject, attempts};
use crate::contract::key::{EntryId, Key, OperationId};
use crate::ledger::chain::row::{Attempt, Content, First, Row as ChainRow};
use crate::ledger::entry::State;
use crate::ledger::later::filed;
use crate::ledger::{Begin, Guard};

/// Keeps the state before the newest attempt. An attempt without one leaves none of an earlier
/// attempt's: it would pass for its own.
pub(super) fn keep_before(begin: &Begin, pipe: &mut Pipe<'_>) {
    let id = rows::uuid(begin.subject());
    if let Some(before) = &begin.before {
        pipe.add(sql::IMAGE, vec![Box::new(id), Box::new(text(before))]);
    } else if begin.rerun.is_some() {
        pipe.add(sql::UNIMAGE, vec![Box::new(id)]);
    }
}

/// The entry of a further attempt, as [`sql::AGAIN`] takes it.
pub(super) fn again(
    begin: &Begin,
    subject: &Subject,
    attempt: u32,
    seq: i64,
    owner: Uuid,
) -> Vec<Param> {
    vec![
        Box::new(subject.id),
        Box::new(seq),
        Box::new(attempts(attempt)),
        Box::new(owner),
        Box::new(begin.now_ms),
        Box::new(begin.key_sent),
        Box::new(twin(begin.guard, subject.id)),
        Box::new(begin.fingerprint.0.to_vec()),
        Box::new(begin.policy_revision.0.to_vec()),
        Box::new(begin.class.as_str()),
        Box::new(begin.kind.as_str()),
        Box::new(begin.spend.map(|spend| spend.expires_ms)),
        Box::new(begin.spend.map(|spend| spend.nonce.to_vec())),
        Box::new(begin.lookup.as_deref().map(text)),
        Box::new(code(subject.state)),
        Box::new(text(&begin.target)),
    ]
}

/// What of a begin is committed to, as the database takes it.
pub(super) struct Texts {
    target: String,
    lookup: Option<String>,
    before: Option<String>,
    pub(super) things: Option<Vec<u8>>,
    /// The same, for the index.
    pub(super) hashes: Vec<Uuid>,
}

impl Texts {
    pub(super) fn of(begin: &Begin, finder: &Finder) -> Self {
        let hashes: Vec<Uuid> = begin.things.iter().map(|thing| finder.thing(thing)).collect();
        Self {
            things: filed(hashes.iter().map(|hash| *hash.as_bytes())),
            hashes,
            target: text(&begin.target),
            lookup: begin.lookup.as_deref().map(text),
            before: begin.before.as_deref().map(text),
        }
    }

    pub(super) fn attempt<'a>(&'a self, begin: &'a Begin) -> Attempt<'a> {
        Attempt {
            target: &self.target,
            lookup: self.lookup.as_deref(),
            before: self.before.as_deref(),
            things: self.things.as_deref(),
            ..begin.as_linked()
        }
    }
}

/// What stands in `entry.twin`: its id keeps an entry out of the unique claim.
fn twin(guard: Guard, id: Uuid) -> Uuid {
    match guard {
        Guard::Enforced => Uuid::nil(),
        Guard::Observed => id,
    }
}

/// New entries, column by column.
#[derive(Default)]
pub(super) struct Inserts {
    pub(super) ids: Vec<Uuid>,
    pub(super) seqs: Vec<i64>,
    pub(super) times: Vec<i64>,
    weak: Vec<bool>,
    staged: Vec<bool>,
    key_sent: Vec<bool>,
    twins: Vec<Uuid>,
    principals: Vec<String>,
    keys: Vec<Option<String>>,
    ledger_ids: Vec<Option<String>>,
    digests: Vec<Vec<u8>>,
    marks: Vec<Vec<u8>>,
    operations: Vec<String>,
    fingerprints: Vec<Vec<u8>>,
    revisions: Vec<Vec<u8>>,
    classes: Vec<&'static str>,
    kinds: Vec<&'static str>,
    transports: Vec<&'static str>,
    targets: Vec<String>,
    tasks: Vec<Option<String>>,
    staged_for: Vec<Option<String>>,
    repeats: Vec<Option<Uuid>>,
    earlier: Vec<Option<Uuid>>,
    spent_ms: Vec<Option<i64>>,
    nonces: Vec<Option<Vec<u8>>>,
    lookups: Vec<Option<String>>,
    things: Vec<Option<Vec<u8>>>,
    /// Of their first steps.
    pub(super) authorizations: Vec<Option<String>>,
    pub(super) places: Vec<i64>,
    pub(super) seals: Vec<Vec<u8>>,
}

impl Inserts {
    /// Adds a new entry, and links its first step.
    pub(super) fn add(
        &mut self,
        begin: &Begin,
        texts: Texts,
        chain: &mut Chained,
        seq: i64,
        earlier: Option<EntryId>,
    ) {
        let look = &begin.look;
        let id = rows::uuid(begin.entry);
        let own_id = look.key.clone().unwrap_or_else(|| Key::from_entry(begin.entry));
        let name = OperationId::as_str;
        let ledger_id = Some(&begin.ledger_id).filter(|ledger_id| **ledger_id != own_id);
        let (principal, operation) = (text(&look.principal.id), text(name(&look.operation)));
        let task = begin.task.as_deref().map(text);
        let staged_for = begin.staged_for.as_ref().map(|id| text(name(id)));
        let authorization = begin.authorization.as_deref().map(text);
        let row = ChainRow {
            seq,
            entry: entry_bytes(&id),
            at_ms: begin.now_ms,
            to: State::Begun.code(),
            attempt: 1,
            detail: authorization.as_deref(),
            ..ChainRow::default()
        };
        let first = First {
            id: entry_bytes(&id),
            began_ms: begin.now_ms,
            weak: look.principal.weak,
            staged: look.staged,
            principal: &principal,
            key: look.key.as_ref().map(Key::as_str),
            ledger_id: ledger_id.map(Key::as_str),
            digest: &look.digest.0,
            mark: &look.mark.0,
            operation: &operation,
            transport: begin.transport,
            task: task.as_deref(),
            staged_for: staged_for.as_deref(),
            repeats: begin.repeats.as_ref().map(|entry| &entry.as_bytes()[..]),
        };
        let content = Content::Attempt(&texts.attempt(begin));
        let Link { place, seal } = chain.link(&row, Some(&first), content);
        self.places.push(place);
        self.seals.push(seal);
        self.ids.push(id);
        self.seqs.push(seq);
        self.times.push(begin.now_ms);
        self.weak.push(look.principal.weak);
        self.staged.push(look.staged);
        self.key_sent.push(begin.key_sent);
        self.twins.push(twin(begin.guard, id));
        self.principals.push(principal);
        self.keys.push(look.key.as_ref().map(|key| key.as_str().to_owned()));
        self.ledger_ids.push(ledger_id.map(|ledger_id| ledger_id.as_str().to_owned()));
        self.digests.push(look.digest.0.to_vec());
        self.marks.push(look.mark.0.to_vec());
        self.operations.push(operation);
        self.fingerprints.push(begin.fingerprint.0.to_vec());
        self.revisions.push(begin.policy_revision.0.to_vec());
        self.classes.push(begin.class.as_str());
        self.kinds.push(begin.kind.as_str());
        self.transports.push(begin.transport);
        self.targets.push(texts.target);
        self.tasks.push(task);
        self.staged_for.push(staged_for);
        self.repeats.push(begin.repeats.map(rows::uuid));
        self.earlier.push(earlier.map(rows::uuid));
        self.spent_ms.push(begin.spend.map(|spend| spend.expires_ms));
        self.nonces.push(begin.spend.map(|spend| spend.nonce.to_vec()));
        self.lookups.push(texts.lookup);
        self.things.push(texts.things);
        self.authorizations.push(authorization);
    }

    /// As [`sql::INSERT`] takes them.
    pub(super) fn params(self, owner: Uuid) -> Vec<Param> {
        vec![
            Box::new(owner),
            Box::new(self.ids),
            Box::new(self.seqs),
            Box::new(self.times),
            Box::new(self.weak),
            Box::new(self.staged),
            Box::new(self.key_sent),
            Box::new(self.twins),
            Box::new(self.principals),
            Box::new(self.keys),
            Box::new(self.ledger_ids),
            Box::new(self.digests),
            Box::new(self.marks),
            Box::new(self.operations),
            Box::new(self.fingerprints),
            Box::new(self.revisions),
            Box::new(self.classes),
            Box::new(self.kinds),
            Box::new(self.transports),
            Box::new(self.targets),
            Box::new(self.tasks),
            Box::new(self.staged_for),
            Box::new(self.repeats),
            Box::new(self.earlier),
            Box::new(self.spent_ms),
            Box::new(self.nonces),
            Box::new(self.lookups),
            Box::new(self.things),
        ]
    }
}
