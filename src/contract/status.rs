//! What a status means: accepted, definitely rejected, or neither (EffectSpec `dispatch_statuses`).
//!
//! A status that no matcher takes is ambiguous. That is the point of the two lists: 408, 409, 425 and
//! 429 may come after part of the work was done, and a 5xx or a redirect proves nothing.

use super::class::Disposition;

/// The lowest status that a matcher may name.
pub const MIN_STATUS: u16 = 100;

/// The highest status that a matcher may name.
pub const MAX_STATUS: u16 = 599;

/// One status, or a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matcher {
    /// `{"type": "exact", "status": 404}`
    Exact(u16),
    /// `{"type": "range", "start": 200, "end": 299}`, both ends included.
    Range(u16, u16),
}

impl Matcher {
    /// Whether it takes this status.
    pub fn matches(self, status: u16) -> bool {
        match self {
            Self::Exact(only) => only == status,
            Self::Range(start, end) => (start..=end).contains(&status),
        }
    }
}

/// The statuses of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses {
    /// The upstream took the call.
    pub accepted: Vec<Matcher>,
    /// The upstream certainly did not do it.
    pub definitely_rejected: Vec<Matcher>,
}

impl Statuses {
    /// What a final status says of the dispatch; never [`Disposition::NotSent`].
    ///
    /// A status that both lists name, which compiled policies never have, is ambiguous.
    pub fn classify(&self, status: u16) -> Disposition {
        let is_in = |list: &[Matcher]| list.iter().any(|matcher| matcher.matches(status));
        match (is_in(&self.accepted), is_in(&self.definitely_rejected)) {
            (true, false) => Disposition::Accepted,
            (false, true) => Disposition::DefinitelyRejected,
            (true, true) | (false, false) => Disposition::Ambiguous,
        }
    }

    /// The default of a write (standards 5.8).
    pub fn for_write() -> Self {
        Self {
            accepted: vec![Matcher::Range(200, 299)],
            definitely_rejected: vec![
                Matcher::Range(400, 407),
                Matcher::Range(410, 424),
                Matcher::Range(426, 428),
                Matcher::Range(430, 499),
            ],
        }
    }

    /// The default of a read: a failed read changes nothing.
    pub fn for_read() -> Self {
        Self {
            accepted: vec![Matcher::Range(200, 299)],
            definitely_rejected: vec![Matcher::Range(400, 599)],
        }
    }

    /// The lowest status that two matchers take, across the lists or within one.
    pub fn first_overlap(&self) -> Option<u16> {
        (MIN_STATUS..=MAX_STATUS).find(|status| {
            let all = self.accepted.iter().chain(&self.definitely_rejected);
            all.filter(|matcher| matcher.matches(*status)).nth(1).is_some()
        })
    }
}
