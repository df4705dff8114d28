//! What a call is to the calls before it: new, a repeat, or an answer that is already there.
//!
//! One pure function, [`judge`], is the whole table of contract section 3 ("Same key again", "No key or
//! a new key, same call again"). `replay` asks it before anything else; `record` asks it again when the
//! ledger says that somebody was faster.
//!
//! The one direction: whatever cannot be told from a second effect is refused or asked about. A key is a
//! claim to one call, a digest is a guess; so a key that matches gets the recorded answer, and a digest
//! that matches gets a question.

use crate::call::refusal::{Because, Refusal};
use crate::contract::class::{Class, Level, OnUnknown, Repeat};
use crate::contract::key::{Digest, EntryId, OperationId};
use crate::contract::operation::Operation;
use crate::ledger::{Cause, Prior, Priors, State};

/// How long an answer that was not delivered is given to a repeat, in milliseconds (standards 8.2).
pub const UNDELIVERED_WINDOW_MS: i64 = 24 * 60 * 60 * 1000;

/// The call that is judged.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The id of the operation that is performed: the draft's, where the draft form is asked for.
    pub id: &'a OperationId,
    /// The operation.
    pub operation: &'a Operation,
    /// Its class for this call.
    pub class: Class,
    /// The request digest.
    pub digest: Digest,
    /// Whether the caller gave a key.
    pub has_key: bool,
    /// Whether the draft form is asked for.
    pub is_staged: bool,
    /// The entry whose call this is a further round of.
    pub continues: Option<EntryId>,
    /// The time, in milliseconds since 1970.
    pub now_ms: i64,
}

/// What a call is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It may go on.
    Go(Standing),
    /// Its recorded answer is given.
    Replay(EntryId),
    /// It is refused.
    Refuse(Refusal),
}

/// How a call that may go on stands to the calls before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The entry that it continues as a further attempt.
    pub rerun: Option<EntryId>,
    /// Why it needs a fresh confirmation beyond its operation's level.
    pub because: Option<Because>,
    /// The level that it needs at least.
    pub level: Option<Level>,
    /// The accepted entry that it repeats.
    pub repeats: Option<EntryId>,
    /// The entry that it continues is of unknown outcome.
    pub after_unknown: bool,
    /// It is a further round of the entry's call, which was confirmed with the first.
    pub is_round: bool,
}

/// Judges a call by the entries before it.
pub fn judge(asked: &Asked<'_>, priors: &Priors) -> Judgement {
    let judgement = match &priors.by_key {
        Some(prior) => by_key(asked, prior),
        None => match &priors.by_digest {
            Some(prior) => by_digest(asked, prior, priors),
            None => Judgement::Go(Standing::default()),
        },
    };
    match judgement {
        Judgement::Go(standing)
            if standing.because.is_none() && priors.open_of_stranger.is_some() =>
        {
            Judgement::Go(Standing {
                because: Some(Because::Stranger),
                level: Some(Level::Challenge),
                ..standing
            })
        }
        other @ (Judgement::Go(_) | Judgement::Replay(_) | Judgement::Refuse(_)) => other,
    }
}

/// A call whose entry waits: the next round goes on with it, and so does the very call after a page was
/// visited, since the upstream did nothing before.
fn waiting(asked: &Asked<'_>, prior: &Prior) -> Option<Standing> {
    if prior.state != State::Waiting {
        return None;
    }
    let is_round = asked.continues == Some(prior.entry);
    let is_after_visit = prior.cause == Some(Cause::UrlElicitation);
    (is_round || is_after_visit).then(|| Standing {
        rerun: Some(prior.entry),
        is_round,
        ..Standing::default()
    })
}

fn by_key(asked: &Asked<'_>, prior: &Prior) -> Judgement {
    let is_same = prior.operation == *asked.id
        && prior.digest == asked.digest
        && prior.staged == asked.is_staged;
    if !is_same {
        return Judgement::Refuse(Refusal::KeyReused(prior.entry, prior.operation.clone()));
    }
    if let Some(standing) = waiting(asked, prior) {
        return Judgement::Go(standing);
    }
    match prior.state {
        // The recorded handle or question.
        State::Waiting if prior.is_answer_kept => Judgement::Replay(prior.entry),
        State::Begun | State::Waiting => Judgement::Refuse(Refusal::InFlight(prior.entry)),
        State::Accepted => recorded(prior),
        State::Undone => Judgement::Refuse(Refusal::Undone(prior.entry)),
        State::Rejected => {
            Judgement::Go(Standing { rerun: Some(prior.entry), ..Standing::default() })
        }
        State::Unknown => {
            if asked.operation.carrier.allows_redispatch(prior.began_ms, asked.now_ms) {
                Judgement::Go(Standing {
                    rerun: Some(prior.entry),
                    after_unknown: true,
                    ..Standing::default()
                })
            } else {
                unknown(asked, prior)
            }
        }
    }
}

fn by_digest(asked: &Asked<'_>, prior: &Prior, priors: &Priors) -> Judgement {
    if let Some(standing) = waiting(asked, prior) {
        return Judgement::Go(standing);
    }
    match prior.state {
        State::Begun | State::Waiting => Judgement::Refuse(Refusal::InFlight(prior.entry)),
        State::Rejected | State::Undone => Judgement::Go(Standing::default()),
        State::Unknown => unknown(asked, prior),
        State::Accepted => {
            // A move back and a staged entry are no repeats.
            if priors.undoes.is_some() || prior.staged {
                return Judgement::Go(Standing::default());
            }
            let finished_ms = prior.finished_ms.unwrap_or(prior.began_ms);
            let is_recent = asked.now_ms.saturating_sub(finished_ms) < UNDELIVERED_WINDOW_MS;
            if !prior.delivered && is_recent {
                return recorded(prior);
            }
            if asked.has_key {
                return Judgement::Go(Standing::default());
            }
            let repeats = Some(prior.entry);
            match asked.operation.repeat {
                Repeat::Allow => Judgement::Go(Standing { repeats, ..Standing::default() }),
                Repeat::Refuse => Judgement::Refuse(Refusal::RepeatRefused(prior.entry)),
                Repeat::Replay => recorded(prior),
                Repeat::Confirm => Judgement::Go(Standing {
                    because: Some(Because::Repeats(prior.entry)),
                    level: Some(Level::Challenge),
                    repeats,
                    ..Standing::default()
                }),
            }
        }
    }
}

/// The same call is of unknown outcome. What the agent saw the answer of, it may ask about; what was
/// lost is refused until it is settled.
fn unknown(asked: &Asked<'_>, prior: &Prior) -> Judgement {
    let refused = Refusal::OutcomeUnknown(prior.entry, prior.lookup.clone());
    if !prior.answered {
        return Judgement::Refuse(refused);
    }
    let level = match asked.operation.on_unknown {
        OnUnknown::Refuse => return Judgement::Refuse(refused),
        OnUnknown::Challenge => Level::Challenge,
        OnUnknown::Human => Level::Human,
    };
    Judgement::Go(Standing {
        rerun: Some(prior.entry),
        because: Some(Because::Unknown(prior.entry)),
        level: Some(level),
        repeats: None,
        after_unknown: true,
        is_round: false,
    })
}

fn recorded(prior: &Prior) -> Judgement {
    if prior.is_answer_kept {
        Judgement::Replay(prior.entry)
    } else {
        Judgement::Refuse(Refusal::AnswerNotKept(prior.entry))
    }
}
