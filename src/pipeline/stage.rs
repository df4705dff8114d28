//! The third step: the form that will be sent, the operation itself or its draft. Before `confirm`,
//! because what is confirmed is what is sent.
//!
//! Staging an operation without a draft form is refused and never falls through to the real effect
//! (ADR-0030 section 7), in observe mode too. Drafts are declared, checked and reported in `check`; they
//! are not performed yet, and asking for one is refused.

use super::step::{Next, Stage, Step};
use super::{Answered, Fresh, Lane, Staged};
use crate::call::refusal::Refusal;

/// See the module's page.
#[derive(Clone, Debug)]
pub struct StageForm;

impl Step for StageForm {
    type In = Lane<Fresh>;
    type Out = Lane<Staged>;
    type Below = Answered;
    type Answer = Answered;

    async fn step<N: Stage<Lane<Staged>, Answer = Answered>>(
        &self,
        lane: Lane<Fresh>,
        next: Next<'_, N>,
    ) -> Answered {
        let fresh = match lane {
            Lane::Read(read) => return next.run(Lane::Read(read)).await,
            Lane::Write(fresh) => fresh,
        };
        if fresh.write.control.stage {
            let refusal = match fresh.write.operation().draft {
                Some(_) => Refusal::DraftUnavailable("drafts are not performed by this proxy"),
                None => Refusal::NoDraftForm,
            };
            return Err(fresh.write.refuse(refusal));
        }
        next.run(Lane::Write(Box::new(Staged(*fresh)))).await
    }
}
