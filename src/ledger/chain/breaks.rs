//! What does not fit in a chain, and a person's word that it is known.
//!
//! A row that does not fit stays as it is: nothing is written anew, for the row is what an inquiry needs.
//! Who has looked at it can acknowledge it. That is a row of the chain itself, with who and why, and
//! names each break by its [`Mark`]; so the same row changed once more is not covered by it.
//!
//! The same row says that the ledger is known to be older than what was written last here: a backup that
//! was put back.

use std::collections::HashMap;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::line::Line;
use super::{Head, KeyId, Seal};
use crate::contract::key::EntryId;
use crate::ledger::{Integrity, Reason};

/// What [`Row::noted`](super::row::Row::noted) says of a row that acknowledges breaks.
pub(in crate::ledger) const ACKNOWLEDGED: &str = "acknowledged";

/// The most breaks that are noted; a ledger with more is no ledger any longer.
pub(in crate::ledger) const MAX_BREAKS: usize = 4096;

/// The most that one row acknowledges: what a person can have looked at.
pub(in crate::ledger) const MAX_ACKNOWLEDGED: usize = 256;

/// What tells a break from others: of the row as it stands, and what is wrong with it.
pub(in crate::ledger) type Mark = [u8; 16];

/// A row that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row}{}: {why}", of(*entry))]
pub struct Broken {
    /// The chain that it is in.
    pub chain: i64,
    /// Its number in the history.
    pub row: i64,
    /// The entry that it belongs to.
    pub entry: Option<EntryId>,
    /// What is wrong; names no value.
    pub why: String,
    /// The key that is needed to go on, if that is all.
    pub needs: Option<KeyId>,
    pub(in crate::ledger) mark: Mark,
}

fn of(entry: Option<EntryId>) -> String {
    entry.map_or_else(String::new, |entry| format!(" of entry {entry}"))
}

impl Broken {
    /// A break for which there is no row.
    pub(in crate::ledger) fn of_no_row(chain: i64, entry: Option<EntryId>, why: String) -> Self {
        let line = Line {
            entry: entry.map_or(Vec::new(), |id| id.as_bytes().to_vec()),
            ..Line::default()
        };
        let mark = mark_of(&line, chain, &why);
        Self { chain, row: 0, entry, why, needs: None, mark }
    }
}

/// The mark of what is wrong with a row.
pub(super) fn mark_of(line: &Line, chain: i64, why: &str) -> Mark {
    let mut bytes = Vec::new();
    line.row().write(&mut bytes);
    let seal = line.link.as_ref().and_then(|linked| Seal::from_bytes(&linked.seal));
    let seal = seal.map(|seal| line.held(|content| seal.complete(content)).unwrap_or(seal));
    let hash = Sha256::new_with_prefix(chain.to_be_bytes())
        .chain_update(why.as_bytes())
        .chain_update([0])
        .chain_update(&bytes)
        .chain_update(seal.map_or(Vec::new(), Seal::to_bytes))
        .finalize();
    hash.first_chunk().copied().unwrap_or_default()
}

/// What a look at the end of a ledger's chains found when it was opened.
#[derive(Debug, Default)]
pub(in crate::ledger) struct Tail {
    /// What does not fit, and nobody acknowledged.
    breaks: Vec<Broken>,
    /// Whether a part could not be followed, because a key is missing.
    lacks_key: bool,
}

impl Tail {
    pub(in crate::ledger) fn of(breaks: Vec<Broken>) -> Self {
        Self { breaks, lacks_key: false }
    }

    /// A key that is not there keeps nobody from writing on with another.
    pub(in crate::ledger) fn without_a_key() -> Self {
        tracing::warn!(
            "the end of the ledger's chain is not verified: it was written with another key"
        );
        Self { breaks: Vec::new(), lacks_key: true }
    }

    /// What follows from it, and from what the ledger lacks; says so in the log.
    pub(in crate::ledger) fn integrity(&self, lost: Option<&Head>, now_ms: i64) -> Integrity {
        let outdated = lost.map(|_| Reason::Outdated);
        if let Some(broken) = self.breaks.first() {
            tracing::error!(
                event = "ledger_chain_broken",
                %broken,
                more = self.breaks.len() - 1,
                "the end of the ledger's chain does not verify; writes are refused until somebody \
                 has looked at it: takeback ledger verify"
            );
            return Integrity { flaw: outdated.or(Some(Reason::Broken)), verified_ms: None };
        }
        let verified_ms = (!self.lacks_key).then_some(now_ms);
        Integrity { flaw: outdated, verified_ms }
    }
}

/// What a person acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// What it is.
    pub what: Flaw,
    /// Who.
    pub who: String,
    /// Why.
    pub why: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
}

/// What is wrong with a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A row does not fit.
    Broken(Broken),
    /// Rows behind this head, which were written here, are not there.
    Lost(Head),
}

/// The `detail` of a row that acknowledges.
#[derive(Debug, Deserialize)]
struct Detail {
    breaks: Vec<DetailRow>,
    lost: Option<String>,
}

#[derive(Debug, Deserialize)]
struct DetailRow {
    mark: String,
}

/// The `detail` of a row that acknowledges: the rows that do not fit, and the head that is not there.
pub(in crate::ledger) fn acknowledgement(breaks: &[Broken], lost: Option<Head>) -> String {
    let breaks: Vec<_> = breaks
        .iter()
        .map(|broken| {
            serde_json::json!({
                "chain": broken.chain, "row": broken.row, "mark": super::hex(&broken.mark),
            })
        })
        .collect();
    let lost = lost.map(|head| head.to_string());
    serde_json::json!({ "breaks": breaks, "lost": lost }).to_string()
}

/// The acknowledgements that were come by.
#[derive(Debug, Default)]
pub(super) struct Known {
    said: Vec<Said>,
    by_mark: HashMap<String, usize>,
    lost: Vec<(Head, usize)>,
}

#[derive(Debug)]
struct Said {
    who: String,
    why: String,
    at_ms: i64,
}

impl Known {
    /// Reads a row that acknowledges; `None`: it does not read.
    pub(super) fn take(&mut self, line: &Line) -> Option<()> {
        let detail: Detail = serde_json::from_str(line.detail.as_deref()?).ok()?;
        let index = self.said.len();
        for DetailRow { mark } in detail.breaks.into_iter().take(MAX_ACKNOWLEDGED) {
            self.by_mark.insert(mark, index);
        }
        if let Some(head) = detail.lost {
            self.lost.push((Head::parse(&head)?, index));
        }
        let (who, why) = (line.who.clone()?, line.why.clone()?);
        self.said.push(Said { who, why, at_ms: line.at_ms });
        Some(())
    }

    /// Tells breaks that nobody acknowledged from what was.
    pub(super) fn sort_out(&self, breaks: Vec<Broken>) -> (Vec<Broken>, Vec<Acknowledged>) {
        let (mut open, mut acknowledged) = (Vec::new(), Vec::new());
        let said = |what: Flaw, index: usize| {
            let Said { who, why, at_ms } = self.said.get(index)?;
            Some(Acknowledged { what, who: who.clone(), why: why.clone(), at_ms: *at_ms })
        };
        for broken in breaks {
            match self.by_mark.get(&super::hex(&broken.mark)) {
                Some(index) => acknowledged.extend(said(Flaw::Broken(broken), *index)),
                None => open.push(broken),
            }
        }
        acknowledged.extend(self.lost.iter().filter_map(|(head, i)| said(Flaw::Lost(*head), *i)));
        (open, acknowledged)
    }
}
