//! What a write changes: one name of it, by which a later write of the same thing is known.
//!
//! An undo that something came after would take that away too. So each write is filed under the thing that
//! it changes, and an undo under the thing that it would change; both by a digest, made here and nowhere
//! else.
//!
//! **Over HTTP** a thing is the nearest item of the path: its segments up to the last `{parameter}` of the
//! operation's template, without the text behind the parameter; the whole path where there is none. So
//! `/things/2`, `/things/2/state` and `/things/2:cancel` are one thing, while `/things` is another, and so is
//! `/things/2/labels/7`. A write to a part of an item counts as one to the item, in doubt too often; an item
//! in an item is not the other, because nearly all that an account holds lies below the account. Of a path
//! that nobody declared it is not known where an item ends: such a write changes what the path names, and
//! what the path without its last segment names.
//!
//! Spellings of a path that some server takes for the same count as the same: escapes are taken off, letters
//! count in lower case, a trailing slash does not count. What is in query or body is no part of it.
//!
//! **Over MCP** a tool says by its arguments what it changes; which of them do is known from the policy (see
//! [`Snapshot::things_of_call`](crate::policy::Snapshot::things_of_call)). Those arguments, by name and value,
//! are a thing whatever tool takes them, as is what the upstream's own id names.

use std::fmt;

use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};

use super::key::Digest;
use super::template::{Part, Template};

/// The digest of a thing's name. The ledger keeps no more than a keyed hash of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Thing(pub Digest);

impl fmt::Debug for Thing {
    /// Shows nothing: a short name could be guessed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Thing")
    }
}

impl Thing {
    /// What a call to `path` changes, which `template` takes. The path is as it was sent, without the
    /// upstream's base path; a query is passed over.
    pub fn of_path(template: &Template, path: &str) -> Self {
        let segments = segments(path);
        let parts = template.parts();
        let last = parts.iter().rposition(|part| part.name().is_some());
        let Some((last, part)) = last.and_then(|last| Some((last, parts.get(last)?))) else {
            return Self::of_segments(&segments);
        };
        let (suffix, is_rest) = match part {
            Part::Parameter { suffix, .. } => (folded(suffix), false),
            Part::Rest { .. } | Part::Literal(_) => (String::new(), true),
        };
        let end = if is_rest { segments.len() } else { last.saturating_add(1) };
        let mut segments = segments.get(..end).unwrap_or(&segments).to_vec();
        if let Some(item) = segments.last_mut()
            && let Some(plain) = item.strip_suffix(&suffix)
        {
            *item = plain.to_owned();
        }
        Self::of_segments(&segments)
    }

    /// What a call to a path that nobody declared changes.
    pub fn of_undeclared(path: &str) -> Vec<Self> {
        let segments = segments(path);
        let above = segments.split_last().map(|(_, above)| above).filter(|above| !above.is_empty());
        std::iter::once(&segments[..]).chain(above).map(Self::of_segments).collect()
    }

    /// What a tool changes, by the arguments that say so: their names in order, and their values as text.
    pub fn of_arguments<'a>(arguments: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut sha = Sha256::new_with_prefix(b"takeback/1 thing\0tool\0");
        for (name, value) in arguments {
            text(&mut sha, name);
            text(&mut sha, value);
        }
        Self(Digest(sha.finalize().into()))
    }

    /// What the upstream names by this id, of the things that tools change.
    pub fn of_upstream_id(id: &str) -> Self {
        let mut sha = Sha256::new_with_prefix(b"takeback/1 thing\0id\0");
        text(&mut sha, id);
        Self(Digest(sha.finalize().into()))
    }

    fn of_segments(segments: &[String]) -> Self {
        let mut sha = Sha256::new_with_prefix(b"takeback/1 thing\0http\0");
        for segment in segments {
            text(&mut sha, segment);
        }
        Self(Digest(sha.finalize().into()))
    }
}

/// The segments of a path, each in the one spelling that all its spellings have in common.
fn segments(path: &str) -> Vec<String> {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut segments: Vec<String> =
        path.strip_prefix('/').unwrap_or(path).split('/').map(folded).collect();
    while segments.last().is_some_and(String::is_empty) {
        segments.pop();
    }
    segments
}

fn folded(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8_lossy().to_lowercase()
}

fn text(sha: &mut Sha256, text: &str) {
    sha.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
    sha.update(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(template: &str, path: &str) -> Thing {
        let template = Template::parse(template).unwrap();
        assert!(template.matches(path).is_some(), "{path} is none of {}", template.as_str());
        Thing::of_path(&template, path)
    }

    #[test]
    fn a_thing_is_the_nearest_item_of_the_path_however_it_is_spelt() {
        let item = of("/things/{id}", "/things/2");
        for (template, path) in [
            ("/things/{id}", "/things/%32"),
            ("/th%69ngs/{id}", "/things/2"),
            ("/Things/{id}", "/Things/2"),
            ("/things/{id}/", "/things/2/"),
            ("/things/{id}/state", "/things/2/state"),
            ("/things/{id}/a/b", "/things/2/a/b"),
            ("/things/{id}:cancel", "/things/2:cancel"),
            ("/things/{id}.json", "/things/2.json"),
            ("/{*rest}", "/things/2"),
        ] {
            assert!(of(template, path) == item, "{template} {path}");
        }
        assert!(Thing::of_path(&Template::parse("/things/{id}").unwrap(), "/things/2?a=1") == item);
        for (template, path) in [
            ("/things", "/things"),
            ("/things/{id}", "/things/20"),
            ("/issues/{id}", "/issues/2"),
            ("/things/{id}/labels/{label}", "/things/2/labels/7"),
            ("/{*rest}", "/things/2/state"),
            ("/things/{id}", "/things/%252"),
        ] {
            assert!(of(template, path) != item, "{template} {path}");
        }
        assert!(of("/a/{b}", "/a/Caf%C3%A9") == of("/a/{b}", "/a/CAF%c3%89"));
        // What an escape hides is not taken for a border.
        assert!(of("/a/{b}/{c}", "/a/b/c") != of("/a/{b}", "/a/b%2Fc"));
    }

    #[test]
    fn an_undeclared_path_is_a_thing_and_perhaps_a_part_of_the_one_above() {
        let item = of("/things/{id}", "/things/2");
        assert!(Thing::of_undeclared("/things/2/publish").contains(&item));
        assert!(Thing::of_undeclared("/things/2/").contains(&item));
        assert!(Thing::of_undeclared("/things/%32").contains(&item));
        assert!(!Thing::of_undeclared("/things/2/a/b").contains(&item));
        assert!(!Thing::of_undeclared("/things").contains(&item));
        assert_eq!(Thing::of_undeclared("/").len(), 1);
    }

    #[test]
    fn a_tools_thing_is_its_arguments_and_an_id_is_its_own() {
        let of =
            |pairs: &[(&'static str, &'static str)]| Thing::of_arguments(pairs.iter().copied());
        let one = of(&[("id", "2")]);
        assert!(one == of(&[("id", "2")]));
        for other in [
            of(&[("id", "22")]),
            of(&[("i", "d2")]),
            of(&[("id", "2"), ("no", "")]),
            of(&[]),
            Thing::of_upstream_id("2"),
        ] {
            assert!(one != other);
        }
        assert_eq!(format!("{one:?}"), "Thing");
    }
}
