//! Which templates take a path in common, as lenient upstreams compare paths.

use crate::contract::template::Template;

use super::Trie;
use super::spelling::folded_template;

/// Templates, found by the paths that they take.
#[derive(Debug, Default)]
pub(in crate::policy) struct Near(Trie);

impl Near {
    /// Adds a template under a number.
    pub(in crate::policy) fn add(&mut self, template: &Template, number: usize) {
        self.0.ends_of(&folded_template(template, false)).push(number);
    }

    /// The numbers of all that take a path which this one takes too, if case and a trailing slash do not
    /// count. `budget` is lowered by what is visited; at zero the search has been broken off.
    pub(in crate::policy) fn touching(
        &self,
        template: &Template,
        budget: &mut usize,
    ) -> Vec<usize> {
        let mut found = Vec::new();
        self.0.intersecting(&folded_template(template, true), &mut found, budget);
        *budget = budget.saturating_sub(found.len());
        found
    }
}
