//! `takeback ledger verify`: follows the chain over the ledger's history, and names the first row that
//! does not fit.
//!
//! Reads beside a running sidecar or without one, row by row. Ends with 0 if the chain is whole; with
//! 65 if it is not, or does not have a head that was asked for; with 78 if a key is missing, so that
//! nothing can be said of what was written with it.

use serde::Serialize;

use super::Format;
use super::exit::{self, Failure, with_help};
use super::ledger::{json, open, unreadable};
use super::out;
use crate::admin::entries::time;
use crate::ledger::{Acknowledged, Broken, Flaw, Head, KeyId, Keys, Place, Verified};

/// What `ledger verify` is asked.
#[derive(Clone, Debug)]
pub(super) struct Verify<'a> {
    pub(super) heads: &'a [String],
    pub(super) format: Format,
}

/// What it prints as JSON.
#[derive(Debug, Serialize)]
struct Found {
    /// Whether everything fits.
    ok: bool,
    /// Rows that are linked and fit.
    rows: u64,
    /// Rows from before there was a chain.
    before_the_chain: u64,
    /// Rows whose content retention removed.
    removed: u64,
    /// Rows of whose content a part was redacted.
    redacted: u64,
    chains: Vec<Chain>,
    /// Heads that were asked for and that no chain has.
    missing_heads: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_bad: Option<Bad>,
    /// What does not fit, or is not there, and was acknowledged by a person.
    acknowledged: Vec<Known>,
}

#[derive(Debug, Serialize)]
struct Known {
    #[serde(skip_serializing_if = "Option::is_none")]
    broken: Option<Bad>,
    /// A head that was written here, and that the ledger lacked.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_head: Option<String>,
    who: String,
    why: String,
    at: String,
}

#[derive(Debug, Serialize)]
struct Chain {
    chain: i64,
    length: u64,
    head: String,
    key: Option<String>,
}

#[derive(Debug, Serialize)]
struct Bad {
    chain: i64,
    row: i64,
    entry: Option<String>,
    why: String,
}

/// Follows the chains of a ledger.
pub(super) fn run(place: &Place, keys: &Keys, asked: &Verify<'_>) -> Result<u8, Failure> {
    let mut heads = Vec::new();
    for text in asked.heads {
        heads.push(Head::parse(text).ok_or_else(|| {
            let message = format!("`{}` is no head", out::clean(text));
            let help = "give 64 hexadecimal digits, a colon and the length, as the log has them";
            Failure::new(exit::USAGE, with_help(&message, help))
        })?);
    }
    let found = open(place)?.verify(keys, &heads).map_err(unreadable)?;
    let code = match &found {
        Err(Broken { needs: Some(_), .. }) => exit::CONFIG,
        Err(_) => exit::DATA,
        Ok(verified) if verified.missing.is_empty() && !is_weak(verified, keys) => exit::OK,
        Ok(_) => exit::DATA,
    };
    match asked.format {
        Format::Json => out::print(&json(&document(&found, code))?)?,
        Format::Text => match &found {
            Ok(verified) => out::print(&text(verified, keys))?,
            Err(broken) => {
                let help = match broken.needs {
                    Some(_) => {
                        "give --ledger-mac-key-file with that key; older keys stand in it behind \
                         the one in use"
                    }
                    None => {
                        "the rows before it fit; keep the ledger for an inquiry, and compare it with \
                         a backup or an export"
                    }
                };
                let message = format!("{place} does not verify: {broken}");
                return Err(Failure::new(code, with_help(&message, help)));
            }
        },
    }
    if asked.format == Format::Text {
        complain(&found, keys);
    }
    Ok(code)
}

/// Whether a chain has parts that anybody can have written though there are keys.
fn is_weak(verified: &Verified, keys: &Keys) -> bool {
    keys.is_keyed() && verified.chains.iter().any(|chain| chain.key.is_none() || chain.was_weakened)
}

fn document(found: &Result<Verified, Broken>, code: u8) -> Found {
    let none = Verified::default();
    let verified = found.as_ref().unwrap_or(&none);
    let name = |key: KeyId| key.to_string();
    Found {
        ok: code == exit::OK,
        rows: verified.rows,
        before_the_chain: verified.before,
        removed: verified.removed,
        redacted: verified.redacted,
        chains: verified
            .chains
            .iter()
            .map(|state| Chain {
                chain: state.chain,
                length: state.head.length,
                head: state.head.to_string(),
                key: state.key.map(name),
            })
            .collect(),
        missing_heads: verified.missing.iter().map(Head::to_string).collect(),
        first_bad: found.as_ref().err().map(bad),
        acknowledged: verified.acknowledged.iter().map(known).collect(),
    }
}

fn bad(broken: &Broken) -> Bad {
    Bad {
        chain: broken.chain,
        row: broken.row,
        entry: broken.entry.map(|entry| entry.to_string()),
        why: broken.why.clone(),
    }
}

fn known(acknowledged: &Acknowledged) -> Known {
    let Acknowledged { what, who, why, at_ms } = acknowledged;
    let (broken, lost_head) = match what {
        Flaw::Broken(broken) => (Some(bad(broken)), None),
        Flaw::Lost(head) => (None, Some(head.to_string())),
    };
    Known { broken, lost_head, who: who.clone(), why: why.clone(), at: time(*at_ms) }
}

fn text(verified: &Verified, keys: &Keys) -> String {
    let mut lines = Vec::new();
    for state in &verified.chains {
        let key = match state.key {
            Some(key) => format!("keyed with {key}"),
            None => "without a key".to_owned(),
        };
        let (chain, head) = (state.chain, state.head);
        lines.push(format!("chain {chain}: {} rows, {key}, head {head}", head.length));
    }
    let is_whole = verified.missing.is_empty() && !is_weak(verified, keys);
    let fit = match (is_whole, verified.acknowledged.is_empty()) {
        (true, true) => "whole: ",
        (true, false) => "whole but for what was acknowledged: ",
        (false, _) => "",
    };
    lines.push(format!("{fit}{} rows fit", verified.rows));
    for (count, what) in [
        (verified.before, "rows are from before there was a chain: nothing protects them"),
        (verified.removed, "rows had their content removed by retention, as the chain says"),
        (verified.redacted, "rows had a part of their content redacted, as the chain says"),
    ] {
        if count > 0 {
            lines.push(format!("{count} {what}"));
        }
    }
    for Acknowledged { what, who, why, at_ms } in &verified.acknowledged {
        let what = match what {
            Flaw::Broken(broken) => format!("broken at {broken}"),
            Flaw::Lost(head) => format!("rows behind the head {head} are lost"),
        };
        let (at, why) = (time(*at_ms), out::clean(why));
        lines.push(format!("{what}\n  acknowledged by {who} at {at}: {why}"));
    }
    if !keys.is_keyed() {
        lines.push(
            "without a key this shows accidents, and not one who can write the ledger: give the \
             sidecar ledger_mac_key_file"
                .to_owned(),
        );
    }
    lines.join("\n")
}

fn complain(found: &Result<Verified, Broken>, keys: &Keys) {
    let Ok(verified) = found else { return };
    for head in &verified.missing {
        let message = format!("takeback: no chain has, or had, the head {head}");
        out::complain(&with_help(&message, "rows were cut off at the end, or written anew"));
    }
    for state in verified.chains.iter().filter(|_| is_weak(verified, keys)) {
        if state.key.is_none() || state.was_weakened {
            let chain = state.chain;
            let message = format!("takeback: chain {chain} was written without a key, in part");
            let help = "whoever can write the ledger can have written that part anew";
            out::complain(&with_help(&message, help));
        }
    }
}
