//! The third step: the form that will be sent, the operation itself or its draft. Before `confirm`,
//! because what is confirmed is what is sent.
//!
//! Staging an operation without a draft form is refused and never falls through to the real effect
//! (ADR-0030 section 7), in observe mode too. Drafts are declared, checked and reported in `check`; they
//! are not performed yet, and asking for one is refused.

use super::step::{Next, Stage, Step};
use super::{Answered, Fresh, Staged};
use crate::call::refusal::Refusal;

/// See the module's page.
#[derive(Clone, Debug)]
pub struct StageForm;

impl Step for StageForm {
    type In = Box<Fresh>;
    type Out = Box<Staged>;
    type Below = Answered;
    type Answer = Answered;

    async fn step<N: Stage<Box<Staged>, Answer = Answered>>(
        &self,
        fresh: Box<Fresh>,
        next: Next<'_, N>,
    ) -> Answered {
        if fresh.write.control.stage {
            let refusal = match fresh.write.operation().draft {
                Some(_) => Refusal::DraftUnavailable("drafts are not performed by this proxy"),
                None => Refusal::NoDraftForm,
            };
            return Err(fresh.write.refuse(refusal));
        }
        next.run(Box::new(Staged(*fresh))).await
    }
}
