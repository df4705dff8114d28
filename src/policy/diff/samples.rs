//! Requests that tell conditions apart.
//!
//! Conditions look at a value for whether it is there, equals a literal, or would be taken for one by a
//! laxer reader. For each place that any of them reads there is a value of every sort between which they
//! can tell: nothing, null, each literal, each literal spelt otherwise, another value of its kind, and a
//! value of a kind that no literal has. All combinations of these are all requests, as far as the choice
//! of an operation goes.

use std::collections::BTreeMap;

use crate::contract::assertion::equal;
use crate::contract::json::{Doc, Kind, write_string};
use crate::contract::operation::{Condition, Test};
use crate::contract::path::Segment;

/// The most requests for the conditions of one target; five places with a literal each fit.
const MAX_REQUESTS: usize = 8_192;

/// The highest position in an array for which a request is made; it has all elements before that one.
const MAX_INDEX: usize = 32;

/// The most literals of which every two are given to one query name.
const MAX_PAIRED: usize = 4;

/// One request, without the parameters of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// `"query":{...},"header":{...}`, or a tool's arguments.
    pub(super) head: String,
    pub(super) body: Body,
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Json(String),
    /// None is sent, or a tool is called.
    None,
    /// There is one, which cannot be read.
    Opaque,
}

/// How a request is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Http,
    Tool,
}

/// A value at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Put {
    /// Nothing.
    Absent,
    /// This JSON text.
    Json(String),
    /// This JSON text, or whatever else is there.
    Other(String),
    /// What is around the place is of a kind that has no members, so that nobody can say what is there.
    Obscured,
}

/// Requests of every sort that the conditions tell apart; `None` if they are too many.
pub(super) fn all(conditions: &[&Condition], layout: Layout) -> Option<Vec<Sample>> {
    let mut places: Vec<&[Segment]> = Vec::new();
    for condition in conditions {
        let place = condition.path.segments.as_slice();
        // What is in the path is a matter of which path it is.
        let is_of_path = layout == Layout::Http && is_in(place, "path");
        if !is_of_path && !places.contains(&place) {
            places.push(place);
        }
    }
    // What is around a place is put before it.
    places.sort_by_key(|place| place.len());
    let mut choices: Vec<Vec<Put>> = Vec::new();
    let mut count: usize = 1;
    for place in &places {
        if place.iter().any(|step| matches!(step, Segment::Index(at) if *at > MAX_INDEX)) {
            return None;
        }
        let own = puts(place, conditions, layout);
        count = count.saturating_mul(own.len());
        if count > MAX_REQUESTS {
            return None;
        }
        choices.push(own);
    }
    let mut samples = Vec::new();
    for number in 0..count {
        let mut left = number;
        let mut tree = Tree::Members(BTreeMap::new());
        let is_whole = places.iter().zip(&choices).all(|(place, own)| {
            let put = own.get(left.checked_rem(own.len()).unwrap_or_default());
            left = left.checked_div(own.len()).unwrap_or_default();
            put.is_some_and(|put| tree.put(place, put))
        });
        if is_whole {
            samples.push(sample(&tree, layout));
        }
    }
    let reads_body = places.iter().any(|place| is_in(place, "body"));
    if layout == Layout::Http && reads_body {
        let unread: Vec<Sample> = samples
            .iter()
            .flat_map(|sample| {
                [Body::Opaque, Body::Json("[]".to_owned())]
                    .map(|body| Sample { head: sample.head.clone(), body })
            })
            .collect();
        for sample in unread {
            if samples.len() > MAX_REQUESTS.saturating_mul(2) {
                return None;
            }
            samples.push(sample);
        }
    }
    let mut distinct = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for sample in samples {
        if seen.insert(format!("{}{:?}", sample.head, sample.body)) {
            distinct.push(sample);
        }
    }
    Some(distinct)
}

fn is_in(place: &[Segment], section: &str) -> bool {
    matches!(place.first(), Some(Segment::Name(name)) if name == section)
}

/// The values of every sort for one place.
fn puts(place: &[Segment], conditions: &[&Condition], layout: Layout) -> Vec<Put> {
    let is_query = layout == Layout::Http && is_in(place, "query");
    let is_text = is_query || (layout == Layout::Http && is_in(place, "header"));
    let literals = literals(place, conditions);
    let is_known = |text: &str| {
        let doc = Doc::parse(text.to_owned());
        doc.is_ok_and(|doc| literals.iter().any(|known| equal(known.root(), doc.root())))
    };
    let kinds: Vec<Kind> = literals.iter().map(|literal| literal.root().kind()).collect();
    let mut puts = vec![Put::Absent];
    let told = told_apart(place, conditions, &literals);
    for literal in &told {
        let is_string = literal.root().kind() == Kind::String;
        if !is_text || is_string {
            puts.push(Put::Json(literal.root().raw().to_owned()));
        }
        if let Some(text) = literal.root().as_str() {
            puts.extend(otherwise(&text, is_known).map(Put::Json));
        }
    }
    let other = |kind: Kind| others(kind).into_iter().filter(|text| !is_known(text));
    let string = || other(Kind::String).next();
    if is_text {
        puts.extend(string().map(|text| Put::Other(text.to_owned())));
        let texts: Vec<String> = told
            .iter()
            .filter(|literal| literal.root().kind() == Kind::String)
            .map(|literal| literal.root().raw().to_owned())
            .collect();
        puts.extend(string().map(|other| Put::Json(format!("[{other},{other}]"))));
        for (position, text) in texts.iter().enumerate() {
            puts.extend(string().map(|other| Put::Json(format!("[{text},{other}]"))));
            for second in texts.iter().take(MAX_PAIRED).skip(position.saturating_add(1)) {
                puts.push(Put::Json(format!("[{text},{second}]")));
            }
        }
        return puts;
    }
    puts.push(Put::Json("null".to_owned()));
    const KINDS: [Kind; 5] = [Kind::String, Kind::Number, Kind::Bool, Kind::Object, Kind::Array];
    for kind in KINDS.iter().filter(|kind| kinds.contains(kind)) {
        puts.extend(other(*kind).map(|text| Put::Other(text.to_owned())));
    }
    let foreign = KINDS.iter().find(|kind| !kinds.contains(kind));
    puts.extend(
        foreign.and_then(|kind| other(*kind).next()).map(|text| Put::Other(text.to_owned())),
    );
    let outer = if layout == Layout::Http { 2 } else { 1 };
    if place.len() > outer {
        puts.push(Put::Obscured);
    }
    puts
}

/// The literals that conditions ask for at a place, each once.
fn literals<'c>(place: &[Segment], conditions: &[&'c Condition]) -> Vec<&'c Doc> {
    let mut found: Vec<&Doc> = Vec::new();
    for condition in conditions.iter().filter(|condition| condition.path.segments == place) {
        let own = match &condition.test {
            Test::Absent | Test::Exists => &[],
            Test::Equals(literal) => std::slice::from_ref(literal),
            Test::OneOf(literals) => literals.as_slice(),
        };
        for literal in own {
            if !found.iter().any(|known| equal(known.root(), literal.root())) {
                found.push(literal);
            }
        }
    }
    found
}

/// One literal for all that the same conditions hold of, and that are of one kind.
fn told_apart<'c>(
    place: &[Segment],
    conditions: &[&Condition],
    literals: &[&'c Doc],
) -> Vec<&'c Doc> {
    let mut seen: Vec<(Kind, Vec<bool>)> = Vec::new();
    let mut told = Vec::new();
    for literal in literals {
        let holds = |condition: &&&Condition| match &condition.test {
            Test::Absent | Test::Exists => false,
            Test::Equals(own) => equal(own.root(), literal.root()),
            Test::OneOf(own) => own.iter().any(|own| equal(own.root(), literal.root())),
        };
        let own = conditions.iter().filter(|condition| condition.path.segments == place);
        let own: Vec<bool> = own.map(|condition| holds(&condition)).collect();
        let sort = (literal.root().kind(), own);
        if !seen.contains(&sort) {
            seen.push(sort);
            told.push(*literal);
        }
    }
    told
}

/// A string that a laxer reader takes for this one.
fn otherwise(text: &str, is_known: impl Fn(&str) -> bool) -> Option<String> {
    let spelt = [
        text.to_ascii_uppercase(),
        text.to_ascii_lowercase(),
        format!("{text} "),
        format!(" {text}"),
        format!(" {text} "),
        format!("  {text}  "),
    ];
    let quoted = |text: &String| {
        let mut json = String::new();
        write_string(text, &mut json);
        json
    };
    spelt.iter().map(quoted).find(|json| !is_known(json))
}

/// Values of a kind, of which literals seldom name one.
fn others(kind: Kind) -> Vec<&'static str> {
    match kind {
        Kind::Array => vec!["[]", "[[]]"],
        Kind::Bool => vec!["true", "false"],
        Kind::Null => vec!["null"],
        Kind::Number => vec!["271828.25"],
        Kind::Object => vec!["{}"],
        Kind::String => vec!["\"~sample~\""],
    }
}

/// A request under way.
enum Tree {
    Elements(Vec<Option<Tree>>),
    Leaf(Put),
    Members(BTreeMap<String, Tree>),
}

impl Tree {
    /// Puts a value at a place; false if another value is in the way.
    fn put(&mut self, place: &[Segment], value: &Put) -> bool {
        let Some((step, rest)) = place.split_first() else {
            // What was put below it stays: longer places come later.
            *self = Self::Leaf(value.clone());
            return true;
        };
        if *value == Put::Absent {
            return true;
        }
        if *value == Put::Obscured && rest.is_empty() {
            let is_free = self.is_empty()
                || matches!(self, Self::Leaf(leaf) if matches!(leaf, Put::Obscured | Put::Other(_)));
            if is_free {
                *self = Self::Leaf(Put::Obscured);
            }
            return is_free;
        }
        if let Self::Leaf(Put::Other(_)) = self {
            *self = match step {
                Segment::Index(_) => Self::Elements(Vec::new()),
                Segment::Name(_) => Self::Members(BTreeMap::new()),
            };
        }
        let empty = || match rest.first() {
            Some(Segment::Index(_)) => Self::Elements(Vec::new()),
            Some(Segment::Name(_)) | None => Self::Members(BTreeMap::new()),
        };
        match (step, self) {
            (Segment::Name(name), Self::Members(members)) => {
                members.entry(name.clone()).or_insert_with(empty).put(rest, value)
            }
            (Segment::Index(at), Self::Elements(elements)) => {
                while elements.len() <= *at {
                    elements.push(None);
                }
                let slot = elements.get_mut(*at);
                slot.is_some_and(|slot| slot.get_or_insert_with(empty).put(rest, value))
            }
            // An object that is asked for by position, or the reverse.
            (Segment::Index(_), here @ Self::Members(_)) if here.is_empty() => {
                *here = Self::Elements(Vec::new());
                here.put(place, value)
            }
            (_, _) => false,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Elements(elements) => elements.is_empty(),
            Self::Leaf(_) => false,
            Self::Members(members) => members.is_empty(),
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Leaf(Put::Json(json) | Put::Other(json)) => out.push_str(json),
            // Neither an object nor a list with anything in it.
            Self::Leaf(Put::Absent | Put::Obscured) => out.push_str("\"~\""),
            Self::Elements(elements) => {
                out.push('[');
                for (position, element) in elements.iter().enumerate() {
                    out.push_str(if position > 0 { "," } else { "" });
                    match element {
                        Some(element) => element.write(out),
                        None => out.push_str("null"),
                    }
                }
                out.push(']');
            }
            Self::Members(members) => {
                out.push('{');
                for (position, (name, member)) in members.iter().enumerate() {
                    out.push_str(if position > 0 { "," } else { "" });
                    write_string(name, out);
                    out.push(':');
                    member.write(out);
                }
                out.push('}');
            }
        }
    }
}

fn sample(tree: &Tree, layout: Layout) -> Sample {
    let mut head = String::new();
    if layout == Layout::Tool {
        tree.write(&mut head);
        return Sample { head, body: Body::None };
    }
    let Tree::Members(sections) = tree else { return Sample { head, body: Body::None } };
    for (position, name) in ["query", "header"].into_iter().enumerate() {
        head.push_str(if position > 0 { ",\"" } else { "\"" });
        head.push_str(name);
        head.push_str("\":");
        match sections.get(name) {
            Some(section) => section.write(&mut head),
            None => head.push_str("{}"),
        }
    }
    let body = sections.get("body").map_or(Body::None, |body| {
        let mut json = String::new();
        body.write(&mut json);
        Body::Json(json)
    });
    Sample { head, body }
}
