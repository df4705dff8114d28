//! Which arguments of a tool say what it changes, out of how the policy hands values from call to call.
//!
//! A tool has no path. But a policy says which arguments mean the same: `before` reads the thing that the
//! call will change, by the call's own arguments, and an undo is told by the answer what was made. So
//! arguments that such mappings join are one *name*, across tools. A name counts as one of things if a
//! `before` is given it, or an answer says it; what an undo only repeats of its call (a text, a flag) counts
//! for tools that have no such argument.
//!
//! ```text
//!   update.id ── before ── get.id ── before ── delete.id ── inverse ── create: response.id
//! ```
//!
//! A call is filed under those of its own arguments that are names; one of a tool that no mapping joins to
//! others, an undeclared one above all, under every set of names that other tools have and its arguments
//! hold. An undo would change what its own arguments name, and the same under the names that other tools have
//! for it. So a later `delete` of what an `update` changed is found, and a newer policy with more operations
//! does not make another thing of an old one. Things of two kinds whose tools take the same names and that
//! have the same values count as one: in doubt an undo is not clean.
//!
//! Limits: [`MAX_SETS`] sets of names for one call or undo. Values are compared as text, lists and objects by their
//! canonical form; `null` is none. A call that holds no name is filed nowhere by its arguments: only its
//! operation's `upstream_id` tells then, and `check` says so (`effect/tool_without_thing`).

use std::collections::{BTreeMap, HashMap};

use crate::contract::json::{Doc, Kind, Value};
use crate::contract::operation::{Argument, FollowUp, Mapping, Operation, Target};
use crate::contract::path::{Root, Segment};
use crate::contract::thing::Thing;

/// The most sets of names that one call or undo is filed under; more are in no policy of one gateway.
const MAX_SETS: usize = 32;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Things {
    /// By tool; in the order of the arguments' paths.
    tools: BTreeMap<String, Vec<Named>>,
    /// The sets of names that tools have, each once.
    sets: Vec<Vec<Vec<String>>>,
}

/// An argument that is joined to others.
#[derive(Debug)]
struct Named {
    /// Its steps.
    path: Vec<String>,
    /// Which name it is.
    name: usize,
    /// Whether it says what is changed.
    counts: bool,
}

impl Things {
    /// Of these operations.
    pub(super) fn of<'o>(operations: impl Iterator<Item = &'o Operation>) -> Self {
        let mut joins = Joins::default();
        for operation in operations {
            let Target::Tool { name: own } = &operation.target else { continue };
            let follow_ups = [&operation.inverse, &operation.compensate];
            for FollowUp { reference, arguments, .. } in follow_ups.into_iter().flatten() {
                joins.add(operation, own, &reference.target, arguments, false);
            }
            if let Some(before) = &operation.before {
                joins.add(operation, own, &before.reference.target, &before.arguments, true);
            }
        }
        joins.into_things()
    }

    /// What a call of a tool changes.
    pub(super) fn of_call(&self, tool: &str, arguments: Value<'_>) -> Vec<Thing> {
        self.named(tool, |path| text_at(arguments, path))
    }

    /// What a call of a tool changes whose arguments have these texts.
    fn named(&self, tool: &str, text: impl Fn(&[String]) -> Option<String>) -> Vec<Thing> {
        match self.tools.get(tool) {
            Some(named) => {
                let counts = named.iter().filter(|named| named.counts);
                thing(counts.map(|named| (&*named.path, text(&named.path)))).into_iter().collect()
            }
            None => {
                let values =
                    |set: &[Vec<String>]| thing(set.iter().map(|path| (&**path, text(path))));
                self.sets.iter().filter_map(|set| values(set)).take(MAX_SETS).collect()
            }
        }
    }

    /// What an undo that calls a tool would change, under all names that it has. Each argument is JSON text.
    pub(super) fn of_undo(&self, tool: &str, arguments: &[(String, String)]) -> Vec<Thing> {
        let text = |path: &[String]| {
            let (name, steps) = path.split_first()?;
            let (_, json) = arguments.iter().find(|(other, _)| other == name)?;
            text_at(Doc::parse(json.clone()).ok()?.root(), steps)
        };
        let mut things = self.named(tool, text);
        let mut values: HashMap<usize, String> = HashMap::new();
        for named in self.tools.get(tool).into_iter().flatten() {
            if let Some(value) = text(&named.path) {
                values.entry(named.name).or_insert(value);
            }
        }
        let others = self.tools.iter().filter(|(other, _)| *other != tool);
        for (_, named) in others {
            let counts = named.iter().filter(|named| named.counts);
            let other = thing(counts.map(|named| (&*named.path, values.get(&named.name).cloned())));
            things.extend(other.filter(|other| !things.contains(other)));
        }
        things.truncate(MAX_SETS);
        things
    }

    /// Whether something is known of what a tool changes.
    pub(super) fn knows(&self, tool: &str) -> bool {
        self.tools.get(tool).is_some_and(|named| named.iter().any(|named| named.counts))
    }
}

/// The thing that arguments name; `None` if one of them is not there, or there is none.
fn thing<'p>(named: impl Iterator<Item = (&'p [String], Option<String>)>) -> Option<Thing> {
    let pairs: Option<Vec<(String, String)>> =
        named.map(|(path, value)| Some((path.join("."), value?))).collect();
    let pairs = pairs.filter(|pairs| !pairs.is_empty())?;
    Some(Thing::of_arguments(pairs.iter().map(|(name, value)| (&**name, &**value))))
}

/// The text of a value; `1`, `1.0` and `"1"` are one, and so are an object's members in any order.
fn text_at(arguments: Value<'_>, path: &[String]) -> Option<String> {
    let value = path.iter().try_fold(arguments, |value, step| value.get(step))?;
    match value.kind() {
        Kind::String => value.as_str().map(|text| text.into_owned()),
        Kind::Bool => Some(value.raw().to_owned()),
        Kind::Number => Some(number(value.raw())),
        Kind::Array | Kind::Object => {
            let mut text = Vec::new();
            value.canonical(&mut |bytes| text.extend_from_slice(bytes));
            String::from_utf8(text).ok()
        }
        Kind::Null => None,
    }
}

/// A number's text as an integer has it, where it is one; at the precision of a 64-bit float where
/// it is written with a point or an exponent.
fn number(raw: &str) -> String {
    let is_plain = !raw.contains(['.', 'e', 'E']);
    match raw.parse::<f64>() {
        Ok(0.0) => "0".to_owned(),
        Ok(value) if !is_plain => value.to_string(),
        Ok(_) | Err(_) => raw.to_owned(),
    }
}

/// What is joined to what while the policy is read.
#[derive(Default)]
struct Joins {
    /// By tool and argument: its place.
    arguments: BTreeMap<(String, Vec<String>), usize>,
    /// By operation and path of its answer.
    answers: HashMap<(String, Vec<String>), usize>,
    /// The place that each is joined to, itself for the first of a name.
    joined: Vec<usize>,
    /// Whether a place makes its name one of things.
    is_name: Vec<bool>,
}

impl Joins {
    fn add(
        &mut self,
        operation: &Operation,
        own: &str,
        target: &Target,
        arguments: &[Argument],
        is_before: bool,
    ) {
        let Target::Tool { name: tool } = target else { return };
        for argument in arguments {
            let Mapping::Path(path) = &argument.mapping else { continue };
            let Some(steps) = names(&path.segments) else { continue };
            let source = match path.root {
                Root::Request => self.argument(own, steps),
                Root::Response => self.answer(operation, steps),
                Root::Before | Root::Key => continue,
            };
            let to = self.argument(tool, vec![argument.name.clone()]);
            self.join(source, to);
            if is_before && let Some(is_name) = self.is_name.get_mut(to) {
                *is_name = true;
            }
        }
    }

    fn argument(&mut self, tool: &str, path: Vec<String>) -> usize {
        let next = self.joined.len();
        let place = *self.arguments.entry((tool.to_owned(), path)).or_insert(next);
        self.place(place, false)
    }

    fn answer(&mut self, operation: &Operation, path: Vec<String>) -> usize {
        let next = self.joined.len();
        let name = operation.id.as_str().to_owned();
        let place = *self.answers.entry((name, path)).or_insert(next);
        self.place(place, true)
    }

    fn place(&mut self, place: usize, is_name: bool) -> usize {
        if place == self.joined.len() {
            self.joined.push(place);
            self.is_name.push(is_name);
        }
        place
    }

    /// The first of the name that a place is joined to.
    fn first(&self, mut place: usize) -> usize {
        while let Some(next) = self.joined.get(place).copied().filter(|next| *next != place) {
            place = next;
        }
        place
    }

    fn join(&mut self, one: usize, other: usize) {
        let (first, second) = (self.first(one), self.first(other));
        // Towards the lower, so that it ends; the ways there are shortened as they are gone.
        for place in [one, other, first, second] {
            if let Some(joined) = self.joined.get_mut(place) {
                *joined = first.min(second);
            }
        }
    }

    fn into_things(self) -> Things {
        let mut is_name = vec![false; self.joined.len()];
        for place in (0..self.joined.len()).filter(|place| self.is_name.get(*place) == Some(&true))
        {
            if let Some(first) = is_name.get_mut(self.first(place)) {
                *first = true;
            }
        }
        let mut tools: BTreeMap<String, Vec<Named>> = BTreeMap::new();
        for ((tool, path), place) in &self.arguments {
            let name = self.first(*place);
            let counts = is_name.get(name) == Some(&true);
            let named = Named { path: path.clone(), name, counts };
            tools.entry(tool.clone()).or_default().push(named);
        }
        for named in tools.values_mut() {
            if named.iter().all(|named| !named.counts) {
                named.iter_mut().for_each(|named| named.counts = true);
            }
        }
        let mut sets: Vec<Vec<Vec<String>>> = tools
            .values()
            .map(|named| {
                let counts = named.iter().filter(|named| named.counts);
                counts.map(|named| named.path.clone()).collect()
            })
            .collect();
        sets.sort_unstable();
        sets.dedup();
        Things { tools, sets }
    }
}

/// The steps of a path that has no positions in lists.
fn names(segments: &[Segment]) -> Option<Vec<String>> {
    segments
        .iter()
        .map(|segment| match segment {
            Segment::Index(_) => None,
            Segment::Name(name) => Some(name.clone()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Snapshot, compile};

    const NOTES: &str = r#"
version: 1
operations:
  get: { match: { tool: get }, effect: { class: read } }
  create:
    match: { tool: create }
    effect:
      class: reversible
      kind: create
      inverse: { operation: delete, arguments: { id: response.id } }
  update:
    match: { tool: update }
    before: { operation: get, arguments: { id: request.id } }
    effect:
      class: reversible
      kind: update
      inverse: { operation: update, arguments: { id: request.id, text: before.text } }
  delete:
    match: { tool: delete }
    before: { operation: get, arguments: { id: request.id } }
    effect:
      class: reversible
      kind: delete
      inverse: { operation: create, arguments: { text: before.text, old: request.id } }
  star:
    match: { tool: star }
    effect:
      class: reversible
      kind: update
      inverse: { operation: unstar, arguments: { page: request.page, how: request.how } }
  unstar: { match: { tool: unstar }, effect: { class: irreversible, kind: update } }
  close:
    match: { tool: close }
    effect:
      class: compensable
      kind: update
      compensate: { operation: reopen, arguments: { note: request.note, item: request.item.id } }
  reopen:
    match: { tool: reopen }
    before: { operation: get, arguments: { id: request.item } }
    effect:
      class: reversible
      kind: update
      inverse: { operation: close, arguments: { note: { const: x } } }
  alone: { match: { tool: alone }, effect: { class: irreversible, kind: update } }
"#;

    fn snapshot() -> Snapshot {
        let compiled = compile(vec![("a.yaml".to_owned(), NOTES.to_owned())]);
        compiled.snapshot.unwrap_or_else(|| panic!("{:?}", compiled.diagnostics))
    }

    fn of_call(things: &Things, tool: &str, arguments: &str) -> Vec<Thing> {
        things.of_call(tool, Doc::parse(arguments.to_owned()).unwrap().root())
    }

    fn of_undo(things: &Things, tool: &str, arguments: &str) -> Vec<Thing> {
        let all = Doc::parse(arguments.to_owned()).unwrap();
        let members = all.root().members();
        let each = members.map(|one| (one.name().into_owned(), one.value.raw().to_owned()));
        things.of_undo(tool, &each.collect::<Vec<_>>())
    }

    fn meet(undo: &[Thing], call: &[Thing]) -> bool {
        call.iter().any(|thing| undo.contains(thing))
    }

    #[test]
    fn a_later_call_of_any_tool_that_takes_the_same_name_is_found() {
        let snapshot = snapshot();
        let things = &snapshot.things;
        let undo = of_undo(things, "update", r#"{"id":2,"text":"old"}"#);
        for (tool, arguments) in [
            ("update", r#"{"id":2,"text":"new"}"#),
            ("update", r#"{"text":"new","id":"2"}"#),
            ("delete", r#"{"id":2}"#),
            ("reopen", r#"{"item":2,"note":"so"}"#),
            ("close", r#"{"item":{"id":2},"note":"other"}"#),
            ("undeclared", r#"{"how":"hard","id":2}"#),
            ("undeclared", r#"{"item":2}"#),
            ("alone", r#"{"id":2}"#),
        ] {
            assert!(meet(&undo, &of_call(things, tool, arguments)), "{tool} {arguments}");
        }
        for (tool, arguments) in [
            ("update", r#"{"id":3,"text":"old"}"#),
            ("delete", r#"{"id":22}"#),
            ("star", r#"{"page":2,"how":"x"}"#),
            ("undeclared", r#"{"id":3,"text":"old","page":2}"#),
        ] {
            assert!(!meet(&undo, &of_call(things, tool, arguments)), "{tool} {arguments}");
        }
        // What was made is named by the answer, which its undo is told.
        let made = of_undo(things, "delete", r#"{"id":2}"#);
        assert!(meet(&made, &of_call(things, "update", r#"{"id":2}"#)));
    }

    #[test]
    fn a_value_of_any_type_names_a_thing_in_all_its_spellings() {
        let snapshot = snapshot();
        let things = &snapshot.things;
        let of = |id: &str| of_call(things, "update", &format!("{{\"id\":{id}}}"));
        let spellings: [&[&str]; 5] = [
            &["1", "1.0", "1e0", "\"1\""],
            &["0", "-0", "0.0", "-0e3"],
            &["1.5", "1.50", "15e-1"],
            &["[1, 2]", "[1,2]"],
            &[r#"{"a":1,"b":"\u0061"}"#, r#"{ "b": "a", "a": 1 }"#],
        ];
        for (place, same) in spellings.iter().enumerate() {
            for id in *same {
                assert!(meet(&of(same[0]), &of(id)), "{id}");
                let others = spellings.iter().enumerate().filter(|(other, _)| *other != place);
                assert!(others.into_iter().all(|(_, other)| !meet(&of(other[0]), &of(id))), "{id}");
            }
        }
    }

    #[test]
    fn what_names_nothing_is_filed_nowhere() {
        let snapshot = snapshot();
        let things = &snapshot.things;
        for (tool, arguments) in [
            ("alone", r#"{"number":2}"#),
            ("undeclared", r#"{"page":2}"#),
            ("update", r#"{"text":"new"}"#),
            ("update", r#"{"id":null}"#),
            ("update", "[]"),
        ] {
            assert!(of_call(things, tool, arguments).is_empty(), "{tool} {arguments}");
        }
        assert!(things.knows("update") && !things.knows("alone"));
        assert!(of_undo(things, "alone", r#"{"number":2}"#).is_empty());
    }

    #[test]
    fn a_tool_without_a_name_of_things_is_known_by_all_that_its_undo_repeats() {
        let snapshot = snapshot();
        let things = &snapshot.things;
        let undo = of_undo(things, "unstar", r#"{"page":7,"how":"x"}"#);
        assert!(meet(&undo, &of_call(things, "star", r#"{"page":7,"how":"x"}"#)));
        assert!(!meet(&undo, &of_call(things, "star", r#"{"page":7,"how":"y"}"#)));
    }
}
