//! How a row goes into a hash: every value with its length, in a fixed order, so that no two rows
//! read alike.

/// What a row of the history says of a step. It stays for as long as the chain does.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::ledger) struct Row<'a> {
    pub(in crate::ledger) seq: i64,
    /// What the store names the entry by; empty for a row of the ledger itself.
    pub(in crate::ledger) entry: &'a [u8],
    pub(in crate::ledger) previous: Option<i64>,
    pub(in crate::ledger) at_ms: i64,
    pub(in crate::ledger) from: Option<i64>,
    pub(in crate::ledger) to: i64,
    pub(in crate::ledger) attempt: u32,
    pub(in crate::ledger) cause: Option<&'a str>,
    pub(in crate::ledger) who: Option<&'a str>,
    pub(in crate::ledger) why: Option<&'a str>,
    pub(in crate::ledger) noted: Option<&'a str>,
    pub(in crate::ledger) disposition: Option<&'a str>,
    pub(in crate::ledger) verdict: Option<&'a str>,
    pub(in crate::ledger) upstream_status: Option<i64>,
    pub(in crate::ledger) undo_mark: Option<&'a [u8]>,
    pub(in crate::ledger) deadline_ms: Option<i64>,
    pub(in crate::ledger) detail: Option<&'a str>,
    /// Of what a finish's undo would change. A row without has none in its hash, as before there were any.
    pub(in crate::ledger) things: Option<&'a [u8]>,
}

/// What an entry is known by, for ever. Linked with the step that makes it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::ledger) struct First<'a> {
    pub(in crate::ledger) id: &'a [u8],
    pub(in crate::ledger) began_ms: i64,
    pub(in crate::ledger) weak: bool,
    pub(in crate::ledger) staged: bool,
    pub(in crate::ledger) principal: &'a str,
    pub(in crate::ledger) key: Option<&'a str>,
    pub(in crate::ledger) ledger_id: Option<&'a str>,
    pub(in crate::ledger) digest: &'a [u8],
    pub(in crate::ledger) mark: &'a [u8],
    pub(in crate::ledger) operation: &'a str,
    pub(in crate::ledger) transport: &'a str,
    pub(in crate::ledger) task: Option<&'a str>,
    pub(in crate::ledger) staged_for: Option<&'a str>,
    pub(in crate::ledger) repeats: Option<&'a [u8]>,
}

/// What an attempt was made with. The entry holds the newest attempt's.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::ledger) struct Attempt<'a> {
    pub(in crate::ledger) key_sent: bool,
    pub(in crate::ledger) fingerprint: &'a [u8],
    pub(in crate::ledger) policy_revision: &'a [u8],
    pub(in crate::ledger) class: &'a str,
    pub(in crate::ledger) kind: &'a str,
    pub(in crate::ledger) spent_ms: Option<i64>,
    pub(in crate::ledger) spent_nonce: Option<&'a [u8]>,
    /// Of what the call changes; as in [`Row`].
    pub(in crate::ledger) things: Option<&'a [u8]>,
    /// From here on it can be removed.
    pub(in crate::ledger) target: &'a str,
    pub(in crate::ledger) lookup: Option<&'a str>,
    pub(in crate::ledger) before: Option<&'a str>,
}

/// What the upstream told, and what follows from it. All of it can be removed.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::ledger) struct Told<'a> {
    pub(in crate::ledger) upstream_id: Option<&'a str>,
    pub(in crate::ledger) undo: Option<&'a str>,
    pub(in crate::ledger) compensate: Option<&'a str>,
    pub(in crate::ledger) undo_unavailable: Option<&'a str>,
    pub(in crate::ledger) status: Option<i64>,
    pub(in crate::ledger) headers: Option<&'a [u8]>,
    pub(in crate::ledger) body: Option<&'a [u8]>,
}

/// What a row holds of a call.
#[derive(Clone, Copy, Debug)]
pub(in crate::ledger) enum Content<'a> {
    /// It begins an attempt.
    Attempt(&'a Attempt<'a>),
    /// Nothing.
    None,
    /// It finishes one.
    Told(&'a Told<'a>),
}

impl Content<'_> {
    /// Whether what can be removed is not there.
    pub(in crate::ledger) fn is_removed(&self) -> bool {
        match self {
            Self::Attempt(attempt) => {
                attempt.target.is_empty() && attempt.lookup.is_none() && attempt.before.is_none()
            }
            Self::None => true,
            Self::Told(told) => {
                let texts = [told.upstream_id, told.undo, told.compensate, told.undo_unavailable];
                texts.iter().all(Option::is_none)
                    && told.status.is_none()
                    && told.headers.is_none()
                    && told.body.is_none()
            }
        }
    }
}

impl Row<'_> {
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        number(to, self.seq);
        bytes(to, Some(self.entry));
        maybe(to, self.previous);
        number(to, self.at_ms);
        maybe(to, self.from);
        number(to, self.to);
        number(to, self.attempt.into());
        for text in [
            self.cause,
            self.who,
            self.why,
            self.noted,
            self.disposition,
            self.verdict,
            self.detail,
        ] {
            bytes(to, text.map(str::as_bytes));
        }
        maybe(to, self.upstream_status);
        bytes(to, self.undo_mark);
        maybe(to, self.deadline_ms);
        if let Some(things) = self.things {
            // What follows a row begins with 0 or 1.
            to.push(2);
            bytes(to, Some(things));
        }
    }
}

impl First<'_> {
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        to.push(1);
        bytes(to, Some(self.id));
        number(to, self.began_ms);
        to.extend([u8::from(self.weak), u8::from(self.staged)]);
        for text in [
            Some(self.principal),
            self.key,
            self.ledger_id,
            Some(self.operation),
            Some(self.transport),
            self.task,
            self.staged_for,
        ] {
            bytes(to, text.map(str::as_bytes));
        }
        bytes(to, Some(self.digest));
        bytes(to, Some(self.mark));
        bytes(to, self.repeats);
    }
}

impl Attempt<'_> {
    /// The part that stays when the rest is removed.
    pub(super) fn write_lasting(&self, to: &mut Vec<u8>) {
        to.push(u8::from(self.key_sent));
        bytes(to, Some(self.fingerprint));
        bytes(to, Some(self.policy_revision));
        bytes(to, Some(self.class.as_bytes()));
        bytes(to, Some(self.kind.as_bytes()));
        maybe(to, self.spent_ms);
        bytes(to, self.spent_nonce);
        if self.things.is_some() {
            bytes(to, self.things);
        }
    }

    pub(super) fn write_removable(&self, to: &mut Vec<u8>) {
        to.push(b'a');
        for text in [Some(self.target), self.lookup, self.before] {
            bytes(to, text.map(str::as_bytes));
        }
    }
}

impl Told<'_> {
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        to.push(b't');
        for text in [self.upstream_id, self.undo, self.compensate, self.undo_unavailable] {
            bytes(to, text.map(str::as_bytes));
        }
        maybe(to, self.status);
        bytes(to, self.headers);
        bytes(to, self.body);
    }
}

fn number(to: &mut Vec<u8>, number: i64) {
    to.extend_from_slice(&number.to_be_bytes());
}

fn maybe(to: &mut Vec<u8>, value: Option<i64>) {
    match value {
        None => to.push(0),
        Some(value) => {
            to.push(1);
            number(to, value);
        }
    }
}

fn bytes(to: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => to.push(0),
        Some(value) => {
            to.push(1);
            to.extend_from_slice(&u64::try_from(value.len()).unwrap_or(u64::MAX).to_be_bytes());
            to.extend_from_slice(value);
        }
    }
}
