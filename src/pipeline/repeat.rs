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
        Some(prior) => beside_an_open_twin(by_key(asked, prior), prior, priors),
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

/// A key may only be run again while no other entry of the same call is open: that one may have happened.
fn beside_an_open_twin(judgement: Judgement, prior: &Prior, priors: &Priors) -> Judgement {
    let twin = priors.by_digest.as_ref().filter(|twin| twin.entry != prior.entry);
    match (judgement, twin) {
        (Judgement::Go(_), Some(twin)) if twin.state.is_in_flight() => {
            Judgement::Refuse(Refusal::InFlight(twin.entry))
        }
        (Judgement::Go(_), Some(twin)) if twin.state.is_open() => {
            Judgement::Refuse(Refusal::OutcomeUnknown(twin.entry, twin.lookup.clone()))
        }
        (judgement, _) => judgement,
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
            // A move back and a staged entry are no repeats. The call that a repeat's undo would make
            // is the same call: to take that one back it would have to say so, by a key.
            if priors.undoes.is_some_and(|undone| undone != prior.entry) || prior.staged {
                return Judgement::Go(Standing::default());
            }
            let finished_ms = prior.finished_ms.unwrap_or(prior.began_ms);
            let is_recent = asked.now_ms.saturating_sub(finished_ms) < UNDELIVERED_WINDOW_MS;
            // What was settled later was delivered as unknown: its agent has no answer of the upstream.
            let has_answer = prior.delivered && prior.answered;
            if !has_answer && is_recent {
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
        Judgement::Refuse(Refusal::AnswerNotKept(prior.entry, prior.removed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::class::Mode;
    use crate::contract::key::{Carrier, Key, OperationId, Place, ReplayRule};
    use crate::ledger::{Cause, Principal, Stranger};

    const NOW: i64 = 1_800_000_000_000;

    fn operation(class: Class) -> Operation {
        Operation::undeclared(class, Level::Challenge, Mode::Enforce)
    }

    fn asked(operation: &Operation, has_key: bool) -> Asked<'_> {
        Asked {
            id: &operation.id,
            operation,
            class: operation.class,
            digest: Digest([1; 32]),
            has_key,
            is_staged: false,
            continues: None,
            now_ms: NOW,
        }
    }

    fn prior(byte: u8, state: State) -> Prior {
        let entry = EntryId::from_bytes([byte; 16]);
        Prior {
            entry,
            version: 1,
            state,
            cause: None::<Cause>,
            operation: OperationId::undeclared(),
            digest: Digest([1; 32]),
            staged: false,
            key: None,
            ledger_id: Key::from_entry(entry),
            attempt: 1,
            began_ms: NOW - 1000,
            finished_ms: Some(NOW - 500),
            delivered: true,
            answered: true,
            is_answer_kept: true,
            removed: None,
            lookup: None,
            principal: Principal { id: "anonymous".to_owned(), weak: true },
        }
    }

    fn key(prior: Prior) -> Priors {
        Priors { by_key: Some(prior), ..Priors::default() }
    }

    fn digest(prior: Prior) -> Priors {
        Priors { by_digest: Some(prior), ..Priors::default() }
    }

    fn entry(byte: u8) -> EntryId {
        EntryId::from_bytes([byte; 16])
    }

    #[test]
    fn i_8_the_same_key_again() {
        let operation = operation(Class::Irreversible);
        let asked = asked(&operation, true);
        let rerun = Standing { rerun: Some(entry(7)), ..Standing::default() };
        let unkept = Prior { is_answer_kept: false, ..prior(7, State::Accepted) };
        let unseen = Prior { is_answer_kept: false, ..prior(7, State::Waiting) };
        let cases = [
            (prior(7, State::Begun), Judgement::Refuse(Refusal::InFlight(entry(7)))),
            (prior(7, State::Waiting), Judgement::Replay(entry(7))),
            (unseen, Judgement::Refuse(Refusal::InFlight(entry(7)))),
            (prior(7, State::Accepted), Judgement::Replay(entry(7))),
            (unkept, Judgement::Refuse(Refusal::AnswerNotKept(entry(7), None))),
            (prior(7, State::Undone), Judgement::Refuse(Refusal::Undone(entry(7)))),
            (prior(7, State::Rejected), Judgement::Go(rerun)),
        ];
        for (prior, expected) in cases {
            assert_eq!(judge(&asked, &key(prior)), expected);
        }
        for other in [
            Prior { digest: Digest([2; 32]), ..prior(7, State::Accepted) },
            Prior { staged: true, ..prior(7, State::Accepted) },
            Prior { operation: OperationId::new("a.b").unwrap(), ..prior(7, State::Rejected) },
        ] {
            let refused = judge(&asked, &key(other));
            assert!(matches!(refused, Judgement::Refuse(Refusal::KeyReused(..))));
        }
    }

    #[test]
    fn i_12_an_unknown_key_is_sent_again_only_where_the_carrier_makes_it_safe() {
        let mut operation = operation(Class::Irreversible);
        let lost = Prior { answered: false, ..prior(7, State::Unknown) };
        let refused = judge(&asked(&operation, true), &key(lost.clone()));
        assert_eq!(refused, Judgement::Refuse(Refusal::OutcomeUnknown(entry(7), None)));

        operation.carrier = Carrier {
            place: Place::Header(http::HeaderName::from_static("idempotency-key")),
            retention_ms: Some(60_000),
            replay: Some(ReplayRule::Full),
            ..Carrier::unsupported()
        };
        let Judgement::Go(standing) = judge(&asked(&operation, true), &key(lost)) else {
            panic!("it may be sent again under its key");
        };
        assert_eq!(standing.rerun, Some(entry(7)));
        assert!(standing.after_unknown);
    }

    #[test]
    fn a_key_is_not_run_again_beside_an_open_entry_of_the_same_call() {
        let operation = operation(Class::Irreversible);
        let beside = |state| Priors {
            by_key: Some(prior(7, State::Rejected)),
            by_digest: Some(prior(8, state)),
            ..Priors::default()
        };
        let asked = asked(&operation, true);
        assert_eq!(
            judge(&asked, &beside(State::Begun)),
            Judgement::Refuse(Refusal::InFlight(entry(8)))
        );
        assert_eq!(
            judge(&asked, &beside(State::Unknown)),
            Judgement::Refuse(Refusal::OutcomeUnknown(entry(8), None))
        );
        assert!(matches!(judge(&asked, &beside(State::Accepted)), Judgement::Go(_)));
    }

    #[test]
    fn the_same_call_again_without_a_key() {
        let irreversible = operation(Class::Irreversible);
        let reversible = operation(Class::Reversible);
        let without = asked(&irreversible, false);
        for state in [State::Begun, State::Waiting] {
            let refused = Judgement::Refuse(Refusal::InFlight(entry(7)));
            assert_eq!(judge(&without, &digest(prior(7, state))), refused);
        }
        for state in [State::Rejected, State::Undone] {
            let new = Judgement::Go(Standing::default());
            assert_eq!(judge(&without, &digest(prior(7, state))), new);
        }
        let lost = Prior { answered: false, ..prior(7, State::Unknown) };
        let refused = Judgement::Refuse(Refusal::OutcomeUnknown(entry(7), None));
        assert_eq!(judge(&without, &digest(lost.clone())), refused);
        assert_eq!(judge(&asked(&irreversible, true), &digest(lost)), refused, "f10");

        let Judgement::Go(seen) = judge(&without, &digest(prior(7, State::Unknown))) else {
            panic!("its answer was seen, so it may be asked about");
        };
        assert_eq!(seen.because, Some(Because::Unknown(entry(7))));
        assert_eq!((seen.rerun, seen.level), (Some(entry(7)), Some(Level::Challenge)));

        let undelivered = Prior { delivered: false, ..prior(7, State::Accepted) };
        assert_eq!(judge(&without, &digest(undelivered.clone())), Judgement::Replay(entry(7)));
        let long_ago = Prior { finished_ms: Some(NOW - UNDELIVERED_WINDOW_MS), ..undelivered };
        assert!(matches!(judge(&without, &digest(long_ago)), Judgement::Go(_)));

        let Judgement::Go(again) = judge(&without, &digest(prior(7, State::Accepted))) else {
            panic!("a second intent may be confirmed");
        };
        assert_eq!(again.because, Some(Because::Repeats(entry(7))));
        let Judgement::Go(keyed) =
            judge(&asked(&irreversible, true), &digest(prior(7, State::Accepted)))
        else {
            panic!("a new key is a new intent");
        };
        assert_eq!(keyed, Standing::default());
        let Judgement::Go(through) =
            judge(&asked(&reversible, false), &digest(prior(7, State::Accepted)))
        else {
            panic!("a reversible one goes through");
        };
        assert_eq!((through.because, through.repeats), (None, Some(entry(7))));
    }

    #[test]
    fn mcp_35_a_further_round_goes_on_with_its_own_entry_only() {
        let operation = operation(Class::Irreversible);
        let round = |number| Asked { continues: Some(entry(number)), ..asked(&operation, false) };
        let own = Standing { rerun: Some(entry(7)), is_round: true, ..Standing::default() };
        let waiting = prior(7, State::Waiting);

        assert_eq!(judge(&round(7), &digest(waiting.clone())), Judgement::Go(own.clone()));
        assert_eq!(judge(&round(7), &key(waiting.clone())), Judgement::Go(own));
        let in_flight = Judgement::Refuse(Refusal::InFlight(entry(7)));
        assert_eq!(judge(&round(8), &digest(waiting)), in_flight);
        assert_eq!(judge(&round(7), &digest(prior(7, State::Begun))), in_flight);
        let over = judge(&round(7), &digest(prior(7, State::Accepted)));
        assert!(matches!(over, Judgement::Go(standing) if !standing.is_round));

        let visited = Prior { cause: Some(Cause::UrlElicitation), ..prior(7, State::Waiting) };
        let again = Standing { rerun: Some(entry(7)), ..Standing::default() };
        let asked = asked(&operation, false);
        assert_eq!(judge(&asked, &digest(visited)), Judgement::Go(again));
    }

    #[test]
    fn moves_back_and_strangers() {
        let irreversible = operation(Class::Irreversible);
        let without = asked(&irreversible, false);
        let back = Priors { undoes: Some(entry(9)), ..digest(prior(7, State::Accepted)) };
        assert_eq!(judge(&without, &back), Judgement::Go(Standing::default()));

        let itself = Priors { undoes: Some(entry(7)), ..back };
        let Judgement::Go(standing) = judge(&without, &itself) else {
            panic!("a repeat is asked about");
        };
        assert_eq!(standing.repeats, Some(entry(7)));
        assert_eq!(standing.level, Some(Level::Challenge));

        let twin = Priors { open_of_stranger: Some(Stranger), ..Priors::default() };
        let Judgement::Go(standing) = judge(&without, &twin) else {
            panic!("a stranger's twin is asked about");
        };
        assert_eq!(standing.because, Some(Because::Stranger));
        assert_eq!(standing.level, Some(Level::Challenge));
    }
}
