//! A person's word that it is known what is wrong with the chains.

use super::chained::{self, Chained};
use super::removal::Hand;
use super::session::Fault;
use crate::ledger::chain::breaks::{ACKNOWLEDGED, acknowledgement};
use crate::ledger::chain::row::Row;
use crate::ledger::desk::command::{Acknowledge, Done};

impl Hand<'_> {
    /// Records it, as a row of this sidecar's chain.
    pub(super) async fn acknowledge(
        &self,
        chained: &mut Chained,
        word: &Acknowledge,
    ) -> Result<Done, Fault> {
        self.in_transaction(chained, async |chained| {
            let seq = chained.next_seq(self.session).await?;
            // What a database lacks is told by the heads in the logs alone.
            let detail = acknowledgement(&word.breaks, None);
            let row = Row {
                seq,
                at_ms: word.now_ms,
                who: Some(&word.who),
                why: Some(&word.why),
                noted: Some(ACKNOWLEDGED),
                detail: Some(&detail),
                ..Row::default()
            };
            let mut pipe = self.session.pipe();
            pipe.add(chained::STEP, chained.own(&row));
            Ok((Done::Written, pipe))
        })
        .await
    }
}
