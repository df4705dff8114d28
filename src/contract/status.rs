//! What a status means: accepted, definitely rejected, or neither (EffectSpec `dispatch_statuses`).
//!
//! A status that no matcher takes is ambiguous. That is the point of the two lists: 408, 409, 425
//! and 429 may come after part of the work was done, and a 5xx or a redirect proves nothing.

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher() -> impl Strategy<Value = Matcher> {
        prop_oneof![
            (MIN_STATUS..=MAX_STATUS).prop_map(Matcher::Exact),
            (MIN_STATUS..=MAX_STATUS, 0_u16..=80)
                .prop_map(|(start, more)| Matcher::Range(start, (start + more).min(MAX_STATUS))),
        ]
    }

    /// The statuses that a matcher takes, written out.
    fn listed(matchers: &[Matcher]) -> Vec<u16> {
        let mut statuses = Vec::new();
        for matcher in matchers {
            match matcher {
                Matcher::Exact(status) => statuses.push(*status),
                Matcher::Range(start, end) => statuses.extend(*start..=*end),
            }
        }
        statuses.sort_unstable();
        statuses
    }

    #[test]
    fn default_of_a_write_leaves_what_may_have_acted_ambiguous() {
        let statuses = Statuses::for_write();
        for status in [408, 409, 425, 429, 100, 199, 300, 302, 399, 500, 502, 503, 504, 599] {
            assert_eq!(statuses.classify(status), Disposition::Ambiguous, "{status}");
        }
        for status in [400, 401, 403, 404, 405, 407, 410, 422, 424, 426, 428, 430, 451, 499] {
            assert_eq!(statuses.classify(status), Disposition::DefinitelyRejected, "{status}");
        }
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(statuses.classify(status), Disposition::Accepted, "{status}");
        }
        assert_eq!(statuses.first_overlap(), None);
    }

    #[test]
    fn default_of_a_read_rejects_every_error() {
        let statuses = Statuses::for_read();
        for status in [400, 408, 429, 500, 599] {
            assert_eq!(statuses.classify(status), Disposition::DefinitelyRejected, "{status}");
        }
        assert_eq!(statuses.classify(304), Disposition::Ambiguous);
        assert_eq!(statuses.first_overlap(), None);
    }

    #[test]
    fn overlap_is_found_within_one_list_and_across_both() {
        let within = Statuses {
            accepted: vec![Matcher::Range(200, 299), Matcher::Exact(204)],
            definitely_rejected: vec![],
        };
        let across = Statuses {
            accepted: vec![Matcher::Range(200, 404)],
            definitely_rejected: vec![Matcher::Range(404, 410)],
        };
        assert_eq!(within.first_overlap(), Some(204));
        assert_eq!(across.first_overlap(), Some(404));
        assert_eq!(across.classify(404), Disposition::Ambiguous);
    }

    proptest! {
        #[test]
        fn statuses_agree_with_written_out_lists(
            accepted in prop::collection::vec(matcher(), 0..4),
            definitely_rejected in prop::collection::vec(matcher(), 0..4),
        ) {
            let statuses = Statuses { accepted, definitely_rejected };
            let taken = listed(&statuses.accepted);
            let refused = listed(&statuses.definitely_rejected);
            let mut all = [taken.clone(), refused.clone()].concat();
            all.sort_unstable();
            let overlap = all.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);

            prop_assert_eq!(statuses.first_overlap(), overlap);
            for status in MIN_STATUS..=MAX_STATUS {
                let expected = match (taken.contains(&status), refused.contains(&status)) {
                    (true, false) => Disposition::Accepted,
                    (false, true) => Disposition::DefinitelyRejected,
                    _ => Disposition::Ambiguous,
                };
                prop_assert_eq!(statuses.classify(status), expected, "{}", status);
            }
        }
    }
}
