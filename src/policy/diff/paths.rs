//! Sets of paths that can be met with each other, and one path out of each.
//!
//! Templates that take a common path meet in a set that is smaller than either. A path of it that has,
//! where the set leaves it open, a text which no template names is taken by the templates that take all
//! of the set, and by no other: one path says for the whole set how it is routed. Sets meet as lenient
//! upstreams compare paths (ASCII case, a trailing slash), because routing takes one spelling for the
//! other where that is the more severe; what comes of it is spelt as the second of the two.

use crate::contract::template::{Part, Template};
use crate::policy::route::normal;

/// Fills what a set leaves open; the first whose ends no template has in its text.
const FILLERS: [&str; 4] = ["~sample~", "_sample_", "x-sample-x", "0sample0"];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    /// Any text between a prefix and a suffix.
    Between(String, String),
    /// This text.
    Exactly(String),
}

/// A set of paths.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Paths {
    segments: Vec<Segment>,
    /// One segment or more follow.
    is_open: bool,
}

impl Paths {
    /// Those that a template takes, with the value that `fixed` gives a parameter, in its encoded form.
    pub(super) fn of(template: &Template, fixed: impl Fn(&str) -> Option<String>) -> Self {
        let mut paths = Self { segments: Vec::new(), is_open: false };
        for part in template.parts() {
            match part {
                Part::Literal(text) => paths.push(Segment::Exactly(normal(text).into_owned())),
                Part::Parameter { prefix, name, suffix } => {
                    let (prefix, suffix) = (normal(prefix), normal(suffix));
                    paths.push(match fixed(name) {
                        Some(value) => Segment::Exactly(format!("{prefix}{value}{suffix}")),
                        None => Segment::Between(prefix.into_owned(), suffix.into_owned()),
                    });
                }
                Part::Rest { name } => match fixed(name) {
                    Some(value) => paths.push(Segment::Exactly(value)),
                    None => paths.is_open = true,
                },
            }
        }
        paths
    }

    fn push(&mut self, segment: Segment) {
        self.segments.push(segment);
    }

    /// Its segments without the empty one of a trailing slash, and whether there is one.
    fn trimmed(&self) -> (&[Segment], bool) {
        match self.segments.split_last() {
            Some((Segment::Exactly(text), rest)) if text.is_empty() && !self.is_open => {
                (rest, true)
            }
            Some(_) | None => (&self.segments, false),
        }
    }

    /// The paths of both, spelt as the other's; `None` if there are none.
    pub(super) fn meet(&self, other: &Self) -> Option<Self> {
        let ((own, own_ends), (theirs, their_ends)) = (self.trimmed(), other.trimmed());
        let is_possible = match (self.is_open, other.is_open) {
            (true, true) => true,
            (true, false) => theirs.len() > own.len(),
            (false, true) => own.len() > theirs.len(),
            (false, false) => own.len() == theirs.len(),
        };
        if !is_possible {
            return None;
        }
        let mut segments = Vec::new();
        for position in 0..own.len().max(theirs.len()) {
            segments.push(match (own.get(position), theirs.get(position)) {
                (Some(own), Some(other)) => own.meet(other)?,
                (Some(only), None) | (None, Some(only)) => only.clone(),
                (None, None) => return None,
            });
        }
        if their_ends || (own_ends && other.is_open) {
            segments.push(Segment::Exactly(String::new()));
        }
        Some(Self { segments, is_open: self.is_open && other.is_open })
    }

    /// The same paths with a slash after them, where an open set takes those too.
    pub(super) fn slashed(&self) -> Option<Self> {
        let (_, ends) = self.trimmed();
        let mut slashed = self.clone();
        slashed.push(Segment::Exactly(String::new()));
        (!ends && !self.is_open && !self.segments.is_empty()).then_some(slashed)
    }

    /// The same paths with their fixed text in the other case.
    pub(super) fn respelt(&self) -> Self {
        let swap = |text: &String| -> String {
            let one = |character: char| match character.is_ascii_lowercase() {
                true => character.to_ascii_uppercase(),
                false => character.to_ascii_lowercase(),
            };
            text.chars().map(one).collect()
        };
        let segments = self.segments.iter().map(|segment| match segment {
            Segment::Between(prefix, suffix) => Segment::Between(swap(prefix), swap(suffix)),
            Segment::Exactly(text) => Segment::Exactly(swap(text)),
        });
        Self { segments: segments.collect(), is_open: self.is_open }
    }

    /// One path of the set; an open one's has more than `depth` segments.
    pub(super) fn sample(&self, filler: &str, depth: usize) -> String {
        let mut path = String::new();
        for segment in &self.segments {
            path.push('/');
            match segment {
                Segment::Between(prefix, suffix) => {
                    path.push_str(prefix);
                    path.push_str(filler);
                    path.push_str(suffix);
                }
                Segment::Exactly(text) => path.push_str(text),
            }
        }
        if self.is_open {
            for _ in self.segments.len()..=depth.max(self.segments.len()) {
                path.push('/');
                path.push_str(filler);
            }
        }
        path
    }
}

impl Segment {
    fn meet(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Exactly(own), Self::Exactly(text)) => {
                own.eq_ignore_ascii_case(text).then(|| other.clone())
            }
            (Self::Exactly(text), Self::Between(prefix, suffix)) => {
                let middle = between(text, prefix, suffix)?;
                Some(Self::Exactly(format!("{prefix}{middle}{suffix}")))
            }
            (Self::Between(prefix, suffix), Self::Exactly(text)) => {
                between(text, prefix, suffix).map(|_| other.clone())
            }
            (Self::Between(before, after), Self::Between(prefix, suffix)) => {
                let longer = match before.get(prefix.len()..) {
                    Some(more) if starts(before, prefix) => format!("{prefix}{more}"),
                    _ if starts(prefix, before) => prefix.clone(),
                    _ => return None,
                };
                let kept = after.len().checked_sub(suffix.len());
                let ends = match kept.and_then(|kept| after.split_at_checked(kept)) {
                    Some((more, end)) if end.eq_ignore_ascii_case(suffix) => {
                        format!("{more}{suffix}")
                    }
                    _ => {
                        let at = suffix.len().checked_sub(after.len())?;
                        let end = suffix.get(at..)?;
                        end.eq_ignore_ascii_case(after).then(|| suffix.clone())?
                    }
                };
                Some(Self::Between(longer, ends))
            }
        }
    }
}

fn starts(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// What is between a prefix and a suffix, if there is anything.
fn between<'t>(text: &'t str, prefix: &str, suffix: &str) -> Option<&'t str> {
    let end = text.len().checked_sub(suffix.len())?;
    let middle = text.get(prefix.len()..end).filter(|middle| !middle.is_empty())?;
    let ends = text.get(end..)?.eq_ignore_ascii_case(suffix);
    (ends && starts(text, prefix)).then_some(middle)
}

/// A text that none of the templates names.
pub(super) fn filler<'t>(templates: impl Iterator<Item = &'t Template> + Clone) -> &'static str {
    let is_free = |filler: &&&str| {
        let end = filler.get(..1).unwrap_or_default();
        templates.clone().all(|template| !template.as_str().contains(end))
    };
    FILLERS.iter().find(is_free).or(FILLERS.first()).copied().unwrap_or_default()
}
