//! The fifth step: the confirmation that a call needs, bound to this very call.
//!
//! The level is the strictest of the operation's own and of what the call is to the calls before it (a
//! repeat, an unknown outcome, a stranger's twin). A refusal carries the challenge; the token comes back
//! with the identical call and is spent by `record`, in the transaction that begins the entry.
//!
//! A call whose operation has the state before it read is held against that state when it is there, after
//! its confirmation ([`after_image`]): if its undo lacks something of it, the call is asked about again,
//! as irreversible.

use std::sync::Arc;

use super::back::{self, Terms};
use super::confirmation::{Binding, Nonce};
use super::image::Image;
use super::rounds::{self, Question, State};
use super::step::{Next, Stage, Step};
use super::{Admitted, Answered, Carried, Form, Refused, Shared};
use crate::call::Confirmation;
use crate::call::refusal::{Challenge, Mismatch, Refusal};
use crate::contract::class::{Level, Mode};
use crate::contract::path::Scope;
use crate::metrics::ConfirmationResult;

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Confirm {
    /// What all workers share.
    pub shared: Arc<Shared>,
}

impl Step for Confirm {
    type In = Box<Carried>;
    type Out = Box<Admitted>;
    type Below = Answered;
    type Answer = Answered;

    async fn step<N: Stage<Box<Admitted>, Answer = Answered>>(
        &self,
        mut carried: Box<Carried>,
        next: Next<'_, N>,
    ) -> Answered {
        let span = carried.fresh.write.head.span.clone();
        let began = span.as_ref().map(|_| self.shared.clock.instant());
        let admitted = self.admit(&carried);
        if let (Some(span), Some(began)) = (span, began) {
            span.step("anvil.confirm", began, self.shared.clock.instant());
        }
        let spend = match admitted {
            Ok(spend) => spend,
            Err(refused) if carried.fresh.write.mode == Mode::Observe => {
                let write = &mut carried.fresh.write;
                write.would = write.would.or(Some(refused.refusal.code()));
                None
            }
            Err(refused) => return Err(refused),
        };
        next.run(Box::new(Admitted { carried: *carried, spend })).await
    }
}

impl Confirm {
    /// The nonce to spend, if a token was needed and counts.
    fn admit(&self, carried: &Carried) -> Result<Option<Nonce>, Box<Refused>> {
        let write = &carried.fresh.write;
        let level = carried.fresh.level();
        let counted = confirmed(&self.shared, carried);
        let mismatch = match counted {
            Ok(spend) => {
                if level != Level::None {
                    write.metrics.confirmations.count(ConfirmationResult::Accepted);
                }
                return Ok(spend);
            }
            Err(mismatch) => mismatch,
        };
        Err(challenge(&self.shared, carried, mismatch))
    }
}

/// Whether what came confirms the call: the nonce to spend, if a token was needed and counts. `Err` says
/// why a token does not, if one was looked at.
fn confirmed(shared: &Shared, carried: &Carried) -> Result<Option<Nonce>, Option<Mismatch>> {
    match (carried.fresh.level(), &carried.fresh.write.control.confirm) {
        (Level::None, _) | (Level::Caller, Some(Confirmation::Word)) => Ok(None),
        // Any other text is not the caller's word: `false` least of all.
        (Level::Caller, Some(Confirmation::Token(_)) | None) => Err(None),
        (Level::Challenge, Some(Confirmation::Token(token))) => {
            let now_ms = shared.clock.now_ms();
            shared.sealer.open(token, &binding(carried), now_ms).map(Some).map_err(Some)
        }
        (Level::Challenge, Some(Confirmation::Word) | None) | (Level::Human, _) => Err(None),
    }
}

/// Holds a call against the state that was read before it. One that lacks what its undo takes of that
/// state cannot be taken back: it is irreversible from here on, and goes on only if it was confirmed as
/// that. Observed calls go on all the same, and say so.
///
/// # Errors
///
/// A refusal with a challenge; nothing was spent.
pub fn after_image(
    shared: &Shared,
    admitted: &mut Admitted,
    image: &Image,
) -> Result<(), Box<Refused>> {
    let write = &mut admitted.carried.fresh.write;
    let (snapshot, request) = (&write.live.snapshot, write.form.request());
    let scope = Scope { before: Some(image.root()), request, response: None, key: None };
    back::with_before(snapshot, &write.served.operation, &mut write.back, &scope);
    let known = Terms { class: write.class, level: write.level };
    let terms = known.with(&write.back, snapshot);
    if terms == known {
        return Ok(());
    }
    (write.class, write.level) = (terms.class, terms.level);
    let carried = &mut admitted.carried;
    match confirmed(shared, carried) {
        Ok(spend) => {
            if admitted.spend.is_none() && carried.fresh.level() != Level::None {
                carried.fresh.write.metrics.confirmations.count(ConfirmationResult::Accepted);
            }
            admitted.spend = admitted.spend.or(spend);
            Ok(())
        }
        Err(mismatch) => {
            let refused = challenge(shared, carried, mismatch);
            if carried.fresh.write.mode == Mode::Enforce {
                return Err(refused);
            }
            let write = &mut carried.fresh.write;
            write.would = write.would.or(Some(refused.refusal.code()));
            Ok(())
        }
    }
}

/// Refuses with a fresh challenge.
pub fn challenge(shared: &Shared, carried: &Carried, mismatch: Option<Mismatch>) -> Box<Refused> {
    let write = &carried.fresh.write;
    let standing = &carried.fresh.standing;
    let level = carried.fresh.level();
    write.metrics.confirmations.count(match mismatch {
        None => ConfirmationResult::Required,
        Some(Mismatch::Expired) => ConfirmationResult::Expired,
        Some(Mismatch::Forged) => ConfirmationResult::Forged,
        Some(Mismatch::Spent) => ConfirmationResult::Reused,
        Some(
            Mismatch::Body
            | Mismatch::Class
            | Mismatch::Headers
            | Mismatch::NewerEntry
            | Mismatch::Operation
            | Mismatch::Principal
            | Mismatch::Target,
        ) => ConfirmationResult::Mismatched,
    });
    let mut challenge = Box::new(Challenge {
        level,
        operation: write.operation().id.clone(),
        class: write.class,
        digest: write.digest.whole.to_hex(),
        expires_at: None,
        token: None,
        argument: write.operation().confirm_argument.clone(),
        because: standing.because,
        lost: write.back.lost().map(ToString::to_string),
        unknown: carried.fresh.unknown.clone(),
    });
    if level == Level::Challenge {
        let mut nonce = [0; 16];
        super::fill_random(&mut nonce);
        let now_ms = shared.clock.now_ms();
        let (token, expires_ms) = shared.sealer.seal(&binding(carried), nonce, now_ms);
        challenge.token = Some(token);
        challenge.expires_at =
            jiff::Timestamp::from_millisecond(expires_ms).ok().map(|time| time.to_string());
    }
    let question = question(shared, carried, &challenge);
    let refusal = match mismatch {
        Some(mismatch) => Refusal::ConfirmationMismatch(mismatch, challenge),
        None => Refusal::ConfirmationRequired(challenge),
    };
    let mut refused = write.refuse(refusal);
    refused.question = question.map(Box::new);
    refused
}

/// What a client that can be asked is asked instead; `None` over HTTP, for a level that no client can
/// satisfy, and for a client that was asked already.
fn question(shared: &Shared, carried: &Carried, challenge: &Challenge) -> Option<Question> {
    let write = &carried.fresh.write;
    let Form::Mcp { call, .. } = &write.form else { return None };
    let answer = match (challenge.level, &challenge.token) {
        (Level::Caller, _) => Confirmation::Word,
        (Level::Challenge, Some(token)) => Confirmation::Token(token.clone()),
        (Level::Challenge, None) | (Level::Human | Level::None, _) => return None,
    };
    if call.heard().is_some() {
        return None;
    }
    let class = write.class.as_str();
    let mut message = rounds::question(write.operation(), class, call.name(), call.arguments());
    if let Some(reason) = challenge.reason() {
        message = format!("{reason} {message}");
    }
    if let Some(lost) = &challenge.lost {
        message = format!("Nothing takes this call back: {lost}. {message}");
    }
    // A round of the upstream's own would be lost between ours.
    let state = (!call.has_upstream_round()).then(|| {
        let state = State { asked: Some(answer.clone()), ..State::default() };
        state.seal(&shared.sealer, &write.principal.id, shared.clock.now_ms())
    });
    Some(Question { message, answer, state })
}

fn binding(carried: &Carried) -> Binding<'_> {
    let write = &carried.fresh.write;
    Binding {
        principal: &write.principal.id,
        operation: write.operation().fingerprint,
        class: write.class,
        digest: &write.digest,
        newest: carried.fresh.newest,
    }
}
