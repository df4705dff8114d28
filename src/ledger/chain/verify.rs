//! Following a chain from its first row, and naming the first that does not fit.
//!
//! Pure: a store reads its rows in the order of their numbers and hands each over with the entry that
//! it belongs to. What one row leaves open (that its content was removed, or redacted) is closed by a
//! later one, or the end finds it open.
//!
//! A row that does not fit is passed over, and the chain followed from the link that stands in it: so a
//! break that a person has [acknowledged](super::breaks) does not hide a later one.
//!
//! Memory: one state for each chain, one hash for each row that was redacted, [`MAX_BREAKS`] breaks.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::breaks::{ACKNOWLEDGED, Acknowledged, Broken, Known, MAX_BREAKS, mark_of};
use super::line::{Holder, Line};
use super::row::Content;
use super::{Hash, Head, KeyId, Keys, MacKey, NOTHING, Rest, Seal, from_hex, inner, link, outer};
use crate::contract::key::EntryId;
use crate::ledger::Noted;
use crate::ledger::entry::{Cause, State};

/// What [`Row::noted`] says of a row that begins a chain, or changes its key.
pub(in crate::ledger) const CHAIN: &str = "chain";

/// What [`Row::noted`] says of a row that notes what retention removed.
pub(in crate::ledger) const RETENTION: &str = "retention";

/// The `detail` of a row that begins a chain or changes its key.
#[derive(Debug, Deserialize)]
struct Beginning {
    chain: i64,
    key: Option<String>,
    store: String,
}

/// The `detail` of a row that begins a chain or changes its key.
pub(in crate::ledger) fn beginning(chain: i64, key: &MacKey, store: &[u8]) -> String {
    let key = key.id().map(|id| id.to_string());
    serde_json::json!({ "chain": chain, "key": key, "store": super::hex(store) }).to_string()
}

/// The `detail` of a row that notes what retention removed.
#[derive(Debug, Deserialize)]
struct Retention {
    removed_before_ms: i64,
}

/// The `detail` of a row that notes what retention removed: the contents of how many entries, all of
/// steps that were made before.
pub(in crate::ledger) fn retention(before_ms: i64, entries: usize) -> String {
    serde_json::json!({ "removed_before_ms": before_ms, "entries": entries }).to_string()
}

/// The `detail` of a redaction.
#[derive(Debug, Deserialize)]
struct Redaction {
    rows: Vec<RedactedRow>,
}

#[derive(Debug, Deserialize)]
struct RedactedRow {
    row: i64,
    now: String,
}

/// The `detail` of a redaction: where, and a commitment to what is left in each row.
pub(in crate::ledger) fn redaction(pointers: &[String], rows: &[(i64, Hash)]) -> String {
    let rows: Vec<_> = rows
        .iter()
        .map(|(row, now)| serde_json::json!({ "row": row, "now": super::hex(now) }))
        .collect();
    serde_json::json!({ "pointers": pointers, "rows": rows }).to_string()
}

/// A chain that was followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainState {
    /// Its number, from 1.
    pub chain: i64,
    /// Where it ends.
    pub head: Head,
    /// The key of its newest link; `None`: it has none.
    pub key: Option<KeyId>,
    /// Whether a part of it was written without a key after one that had one.
    pub was_weakened: bool,
}

/// What was found whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Rows that are linked.
    pub rows: u64,
    /// Rows from before there was a chain: nothing protects them.
    pub before: u64,
    /// Rows whose content retention removed.
    pub removed: u64,
    /// Rows of whose content a part was redacted.
    pub redacted: u64,
    /// The chains, by number.
    pub chains: Vec<ChainState>,
    /// Of the heads that were asked for, those that no chain has or had: rows were cut off.
    pub missing: Vec<Head>,
    /// What does not fit, or is not there, and was acknowledged by a person.
    pub acknowledged: Vec<Acknowledged>,
}

struct Followed {
    key: MacKey,
    link: Hash,
    length: u64,
    was_weakened: bool,
}

/// Follows the chains of one ledger.
pub(in crate::ledger) struct Verifier<'a> {
    keys: &'a Keys,
    store: &'a [u8],
    chains: BTreeMap<i64, Followed>,
    heads: Vec<Head>,
    verified: Verified,
    /// Redacted rows: what is left in them, by number.
    left: BTreeMap<i64, (Hash, Broken)>,
    /// What redactions say is left, by row.
    said: BTreeMap<i64, String>,
    /// The newest row whose content was removed, and what to say of it if nothing says so.
    removed: Option<(i64, Broken)>,
    removed_before_ms: Option<i64>,
    /// What did not fit so far, in the order of the rows.
    breaks: Vec<Broken>,
    known: Known,
    /// Whether it began with the first row.
    is_whole: bool,
}

impl<'a> Verifier<'a> {
    /// Begins with the first row of the ledger of this id. `heads` are looked for on the way.
    pub(in crate::ledger) fn new(keys: &'a Keys, store: &'a [u8], heads: &[Head]) -> Self {
        Self {
            keys,
            store,
            chains: BTreeMap::new(),
            heads: heads.to_vec(),
            verified: Verified::default(),
            left: BTreeMap::new(),
            said: BTreeMap::new(),
            removed: None,
            removed_before_ms: None,
            breaks: Vec::new(),
            known: Known::default(),
            is_whole: true,
        }
    }

    /// Goes on behind a link that is taken as it is; for a look at the end of a chain.
    pub(in crate::ledger) fn behind(
        keys: &'a Keys,
        store: &'a [u8],
        chain: i64,
        head: Head,
        key: MacKey,
    ) -> Self {
        let mut verifier = Self::new(keys, store, &[]);
        verifier.stand_at(chain, head, key);
        verifier.is_whole = false;
        verifier
    }

    /// As [`behind`](Self::behind), of several chains: the newest rows of a ledger, in order. What stands
    /// first in each chain is taken as it is. A chain of whose key nothing is known is not followed; how
    /// many there are of these.
    pub(in crate::ledger) fn at_the_end(
        keys: &'a Keys,
        store: &'a [u8],
        lines: &[Line],
    ) -> (Vec<Broken>, usize) {
        let mut verifier = Self::new(keys, store, &[]);
        verifier.is_whole = false;
        let mut first: BTreeMap<i64, &Line> = BTreeMap::new();
        let mut before: BTreeMap<i64, &Line> = BTreeMap::new();
        let mut found: BTreeMap<i64, MacKey> = BTreeMap::new();
        for line in lines {
            let Some(linked) = &line.link else { continue };
            first.entry(linked.chain).or_insert(line);
            if let Some(last) = before.insert(linked.chain, line)
                && !found.contains_key(&linked.chain)
                && let Some(key) = keys.all().find(|key| fits(key, last, line))
            {
                found.insert(linked.chain, key);
            }
        }
        let mut unknown = 0;
        for (chain, line) in &first {
            let Some(linked) = line.link.as_ref().filter(|linked| linked.place > 1) else {
                continue;
            };
            let seal = Seal::from_bytes(&linked.seal);
            match (found.get(chain), seal) {
                (Some(key), Some(seal)) => {
                    let head = Head { link: seal.link, length: linked.place };
                    verifier.stand_at(*chain, head, key.clone());
                }
                // A single row, of which nothing can be said.
                _ if std::ptr::eq(*line, before.get(chain).map_or(*line, |last| *last)) => {}
                _ => unknown += 1,
            }
        }
        let mut is_linked = false;
        for line in lines {
            let chain = line.link.as_ref().map(|linked| (linked.chain, linked.place));
            is_linked |= chain.is_some();
            let is_taken = match chain {
                None => is_linked,
                Some((_, 1)) => true,
                Some((chain, _)) => {
                    let is_first =
                        first.get(&chain).is_some_and(|first| std::ptr::eq(*first, line));
                    verifier.chains.contains_key(&chain) && !is_first
                }
            };
            // A key that is missing keeps nobody from writing on with another.
            if is_taken && verifier.take(line).is_err_and(|broken| broken.needs.is_some()) {
                unknown += 1;
            }
        }
        (verifier.open_breaks(), unknown)
    }

    fn stand_at(&mut self, chain: i64, head: Head, key: MacKey) {
        let Head { link, length } = head;
        self.chains.insert(chain, Followed { key, link, length, was_weakened: false });
    }

    /// Takes the next row. One that does not fit is noted.
    ///
    /// # Errors
    ///
    /// The row from which on nothing can be said: a key is missing, or too much does not fit.
    pub(in crate::ledger) fn take(&mut self, line: &Line) -> Result<(), Broken> {
        let Err(broken) = self.judge(line) else { return Ok(()) };
        if broken.needs.is_some() || self.breaks.len() >= MAX_BREAKS {
            return Err(broken);
        }
        self.breaks.push(broken);
        // Goes on behind it, from what stands there.
        if let Some(linked) = &line.link {
            let current = || Followed {
                key: self.keys.current(),
                link: NOTHING,
                length: 0,
                was_weakened: false,
            };
            let state = self.chains.entry(linked.chain).or_insert_with(current);
            state.link = Seal::from_bytes(&linked.seal).map_or(state.link, |seal| seal.link);
            state.length = linked.place;
        }
        Ok(())
    }

    /// What did not fit so far, without what was acknowledged.
    pub(in crate::ledger) fn open_breaks(mut self) -> Vec<Broken> {
        self.known.sort_out(std::mem::take(&mut self.breaks)).0
    }

    fn judge(&mut self, line: &Line) -> Result<(), Broken> {
        let chain = line.link.as_ref().map_or(0, |linked| linked.chain);
        let broken = |why: &str| broken(line, chain, why);
        let Some(linked) = &line.link else {
            // Chains begin while no row is written that has no link.
            if self.is_whole && self.chains.is_empty() {
                self.verified.before += 1;
                return Ok(());
            }
            return Err(broken("it has no link"));
        };
        let seal = Seal::from_bytes(&linked.seal).ok_or_else(|| broken("its link is damaged"))?;
        let seal = line.held(|content| seal.complete(content)).unwrap_or(seal);
        let is_beginning = line.entry.is_empty() && line.noted.as_deref() == Some(CHAIN);
        let beginning = is_beginning.then(|| self.beginning(line, chain)).transpose()?;
        let state = match self.chains.get_mut(&chain) {
            Some(state) => state,
            None => {
                let Some(key) = beginning.clone() else {
                    return Err(broken("the rows that begin its chain are gone"));
                };
                let (link, length) = (NOTHING, 0);
                let state = Followed { key, link, length, was_weakened: false };
                self.chains.entry(chain).or_insert(state)
            }
        };
        if linked.place != state.length + 1 {
            let gap = linked.place.saturating_sub(state.length + 1);
            return Err(broken(&match gap {
                0 => "it is not in its place".to_owned(),
                1 => "a row before it is gone".to_owned(),
                gap => format!("{gap} rows before it are gone"),
            }));
        }
        if let Some(key) = beginning {
            state.was_weakened |= key.id().is_none() && state.key.id().is_some();
            state.key = key;
        }
        let is_first = line.from.is_none() && line.is_begin();
        let holder = line.holder.as_deref();
        let first = holder.filter(|_| is_first).map(Holder::first);
        if is_first && first.is_none() {
            return Err(broken("its entry is gone"));
        }
        let mut scratch = Vec::new();
        let made = link(
            &state.key,
            &mut scratch,
            &state.link,
            linked.place,
            &line.row(),
            first.as_ref(),
            seal.commitment,
        );
        if made != seal.link {
            return Err(broken(
                "it, what it holds of the call, or what its entry is known by is not what was \
                 written, or not in its place",
            ));
        }
        state.link = made;
        state.length = linked.place;
        self.verified.rows += 1;
        let head = Head { link: made, length: linked.place };
        self.heads.retain(|wanted| *wanted != head);
        if line.entry.is_empty() {
            return self.of_the_ledger(line, chain);
        }
        if line.noted.as_deref() == Some(Noted::Redaction.as_str()) {
            let detail = line.detail.as_deref().unwrap_or_default();
            let redaction: Redaction =
                serde_json::from_str(detail).map_err(|_| broken("it does not read"))?;
            for RedactedRow { row, now } in redaction.rows {
                self.said.insert(row, now);
            }
        }
        let holder = holder.ok_or_else(|| broken("its entry is gone"))?;
        check_holder(line, holder).map_err(broken)?;
        self.content(line, holder, seal, chain)
    }

    /// The key that a row which begins a chain, or changes its key, names.
    fn beginning(&self, line: &Line, chain: i64) -> Result<MacKey, Broken> {
        let detail = line.detail.as_deref().unwrap_or_default();
        let beginning: Beginning =
            serde_json::from_str(detail).map_err(|_| broken(line, chain, "it does not read"))?;
        if beginning.chain != chain || beginning.store != super::hex(self.store) {
            return Err(broken(line, chain, "it begins another ledger's chain"));
        }
        let id = match beginning.key.as_deref().map(KeyId::parse) {
            None => None,
            Some(None) => return Err(broken(line, chain, "it does not read")),
            Some(id) => id,
        };
        self.keys.named(id).ok_or_else(|| {
            let why = format!(
                "from here on the chain is keyed with key {}, which was not given",
                id.map(|id| id.to_string()).unwrap_or_default()
            );
            Broken { needs: id, ..broken(line, chain, &why) }
        })
    }

    /// A row that belongs to no entry.
    fn of_the_ledger(&mut self, line: &Line, chain: i64) -> Result<(), Broken> {
        match line.noted.as_deref() {
            Some(CHAIN) => Ok(()),
            Some(RETENTION) => {
                let detail = line.detail.as_deref().unwrap_or_default();
                let retention: Retention = serde_json::from_str(detail)
                    .map_err(|_| broken(line, chain, "it does not read"))?;
                let before_ms = Some(retention.removed_before_ms);
                self.removed_before_ms = self.removed_before_ms.max(before_ms);
                Ok(())
            }
            Some(ACKNOWLEDGED) => {
                self.known.take(line).ok_or_else(|| broken(line, chain, "it does not read"))
            }
            _ => Err(broken(line, chain, "it belongs to no entry")),
        }
    }

    /// What a row holds of the call.
    fn content(
        &mut self,
        line: &Line,
        holder: &Holder,
        seal: Seal,
        chain: i64,
    ) -> Result<(), Broken> {
        let broken = |why: &str| broken(line, chain, why);
        let (attempt, told) = (holder.attempt(), line.told());
        let content = if line.is_begin() {
            if holder.attempt > line.attempt {
                // The entry holds what a later attempt was made with.
                return Ok(());
            }
            Content::Attempt(&attempt)
        } else if line.disposition.is_some() {
            Content::Told(&told)
        } else {
            return match seal.commitment {
                None => Ok(()),
                Some(_) => Err(broken("its link is damaged")),
            };
        };
        let (Some(commitment), Some(rest)) = (seal.commitment, seal.rest) else {
            return Err(broken("its link is damaged"));
        };
        let mut scratch = Vec::new();
        let first = match rest {
            Rest::Intact(salt) => inner(&mut scratch, &salt, content),
            Rest::Redacted(first, _) | Rest::Removed(first) => first,
        };
        if outer(&mut scratch, &first, content) != commitment {
            return Err(broken("what it holds of the call is not what was written"));
        }
        match rest {
            Rest::Intact(_) => {}
            Rest::Redacted(_, salt) => {
                let left = inner(&mut scratch, &salt, content);
                let why = "what it holds of the call was changed, and no redaction says so";
                self.left.insert(line.seq, (left, broken(why)));
                self.verified.redacted += 1;
            }
            Rest::Removed(_) => {
                if !content.is_removed() {
                    return Err(broken("something stands where its content was removed"));
                }
                if line.is_begin() && holder.state <= State::Unknown.code() {
                    return Err(broken("what an open entry needs was removed"));
                }
                let why = "what it held of the call was removed, and no retention says so";
                let newest = self.removed.as_ref().map(|(at_ms, _)| *at_ms);
                if newest < Some(line.at_ms) {
                    self.removed = Some((line.at_ms, broken(why)));
                }
                self.verified.removed += 1;
            }
        }
        Ok(())
    }

    /// After the last row. `stray` is an entry at whose newest step there is no row of it.
    ///
    /// # Errors
    ///
    /// The first row that does not fit and that nobody acknowledged.
    pub(in crate::ledger) fn end(self, stray: Option<EntryId>) -> Result<Verified, Broken> {
        let (verified, open) = self.end_with_all(stray);
        open.into_iter().next().map_or(Ok(verified), Err)
    }

    /// As [`end`](Self::end), with all that does not fit and that nobody acknowledged.
    pub(in crate::ledger) fn end_with_all(
        mut self,
        stray: Option<EntryId>,
    ) -> (Verified, Vec<Broken>) {
        let mut breaks = std::mem::take(&mut self.breaks);
        for (row, (left, broken)) in &self.left {
            let said = self.said.get(row).and_then(|said| from_hex(said));
            if said != Some(*left) {
                breaks.push(broken.clone());
            }
        }
        if let Some((at_ms, broken)) = self.removed
            && self.is_whole
            && self.removed_before_ms.is_none_or(|before_ms| at_ms >= before_ms)
        {
            breaks.push(broken);
        }
        let numbers: Vec<i64> = self.chains.keys().copied().collect();
        for (expected, number) in (1..).zip(&numbers) {
            if *number != expected && self.is_whole {
                let why = format!("chain {expected} is gone, whole");
                breaks.push(Broken::of_no_row(expected, None, why));
                break;
            }
        }
        if let Some(entry) = stray {
            let why = "no row of the history is its newest step: rows were cut off".to_owned();
            breaks.push(Broken::of_no_row(0, Some(entry), why));
        }
        let (open, acknowledged) = self.known.sort_out(breaks);
        self.verified.acknowledged = acknowledged;
        self.verified.missing = self.heads;
        self.verified.chains = self
            .chains
            .into_iter()
            .map(|(chain, state)| ChainState {
                chain,
                head: Head { link: state.link, length: state.length },
                key: state.key.id(),
                was_weakened: state.was_weakened,
            })
            .collect();
        (self.verified, open)
    }
}

/// Whether a row follows another in a chain under this key.
fn fits(key: &MacKey, before: &Line, line: &Line) -> bool {
    let seals = || {
        let (before, linked) = (before.link.as_ref()?, line.link.as_ref()?);
        let seal = Seal::from_bytes(&linked.seal)?;
        let seal = line.held(|content| seal.complete(content)).unwrap_or(seal);
        Some((Seal::from_bytes(&before.seal)?.link, linked.place, seal))
    };
    let Some((before, place, seal)) = seals() else { return false };
    let is_first = line.from.is_none() && line.is_begin();
    let first = line.holder.as_deref().filter(|_| is_first).map(Holder::first);
    let made =
        link(key, &mut Vec::new(), &before, place, &line.row(), first.as_ref(), seal.commitment);
    made == seal.link
}

/// Whether an entry stands where its history says.
fn check_holder(line: &Line, holder: &Holder) -> Result<(), &'static str> {
    if holder.version < line.seq {
        return Err("its entry does not know of it");
    }
    if holder.attempt < line.attempt || (line.is_finish() && holder.finish < line.seq) {
        return Err("its entry stands at an earlier step");
    }
    if holder.version == line.seq {
        let is_of_attempt = holder.attempt == line.attempt;
        if holder.state != line.to || !is_of_attempt {
            return Err("its entry is not in the state that it says");
        }
        let is_told = line.is_finish() || line.cause.as_deref() == Some(Cause::Settled.as_str());
        if is_told && holder.cause != line.cause {
            return Err("its entry does not have the cause that it says");
        }
    }
    Ok(())
}

fn broken(line: &Line, chain: i64, why: &str) -> Broken {
    let entry = line.holder.as_ref().and_then(|holder| holder.id.as_slice().try_into().ok());
    let mark = mark_of(line, chain, why);
    Broken {
        chain,
        row: line.seq,
        entry: entry.map(EntryId::from_bytes),
        why: why.to_owned(),
        needs: None,
        mark,
    }
}
