//! What calls become: the same call, asked of two policies.
//!
//! Operations compared by their ids say what an operation is now; they do not say where the calls of one
//! that moved, narrowed or left go, nor whose calls one that came or widened takes. So every call that
//! the two policies could judge otherwise is asked of both, by the choice that calls are served by
//! ([`choose`]): one path of each set in which a template that changed meets the others (`paths`), with
//! requests of every sort that the conditions there tell apart (`samples`). Where that would be too many,
//! what cannot be ruled out is said.
//!
//! Not asked about: whether a call is refused for its form, and what its ways back lack.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::contract::class::{Class, Level, Mode, OnUnknown, Repeat};
use crate::contract::json::{Doc, write_string};
use crate::contract::key::{OperationId, Place};
use crate::contract::operation::{Condition, Operation, Target, Test};
use crate::contract::path::{Request, Scope, Segment};
use crate::contract::template::{Specificity, Template};
use crate::policy::explain::words;
use crate::policy::route::{Choice, Found, Group, Near, choose, choose_each};
use crate::policy::{Served, Snapshot, Undeclared};

use super::paths::{self, Paths};
use super::samples::{self, Body, Layout, Sample};
use super::{target, terms};

/// The most sets of paths that are met for one comparison; a policy that is read by people has a few for
/// each template that changed.
const MAX_MEETINGS: usize = 2_000_000;

/// The most calls that are asked about, each some microseconds.
const MAX_CALLS: usize = 200_000;

/// The most templates that one which changed is met with, and the sets that come of it.
const MAX_SETS: usize = 4_096;

/// The most values of a path's parameter that conditions ask for.
const MAX_FIXED: usize = 64;

/// What is escaped in a value that is one segment: all but unreserved characters.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Calls that the new policy judges milder, as another operation's.
#[derive(Debug)]
pub(super) struct Moved {
    /// Which calls: a target, as it is told.
    pub(super) calls: String,
    /// What they were; `None` if nothing took them.
    pub(super) was: Option<OperationId>,
    /// What they are.
    pub(super) is: Option<OperationId>,
    pub(super) before: String,
    pub(super) after: String,
}

/// What came of the comparison.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub(super) moved: Vec<Moved>,
    /// There was too much to ask about.
    pub(super) is_in_part: bool,
}

/// What a call is.
#[derive(Clone, Copy)]
struct Outcome<'a> {
    served: Option<&'a Arc<Served>>,
    class: Class,
    level: Level,
    mode: Mode,
    is_refused: bool,
}

/// Every call that is another operation's, or nobody's, and judged milder.
pub(super) fn compare(old: &Snapshot, new: &Snapshot) -> Compared {
    let mut asking = Asking {
        old,
        new,
        seen: HashSet::new(),
        compared: Compared::default(),
        calls_left: MAX_CALLS,
    };
    asking.tools();
    asking.paths();
    let mut compared = asking.compared;
    // Of a call that only seemed to be a declared one: the line of those that were says the same.
    let told: HashSet<Option<OperationId>> = compared
        .moved
        .iter()
        .filter(|moved| moved.was.is_some())
        .map(|moved| moved.is.clone())
        .collect();
    compared.moved.retain(|moved| moved.was.is_some() || !told.contains(&moved.is));
    compared
}

/// A template of one of the policies.
struct Known<'a> {
    method: &'a Method,
    template: &'a Template,
    sets: Vec<Paths>,
    has_changed: bool,
    /// Some operation of it, of either policy, is a write.
    is_write: bool,
}

struct Asking<'a> {
    old: &'a Snapshot,
    new: &'a Snapshot,
    seen: HashSet<(String, Option<OperationId>, Option<OperationId>)>,
    compared: Compared,
    calls_left: usize,
}

impl<'a> Asking<'a> {
    fn tools(&mut self) {
        let mut names: BTreeMap<&str, [Vec<String>; 2]> = BTreeMap::new();
        for (side, snapshot) in [self.old, self.new].into_iter().enumerate() {
            for served in snapshot.operations() {
                if let Target::Tool { name } = &served.operation.target {
                    let sides = names.entry(name).or_default();
                    sides.get_mut(side).into_iter().for_each(|own| own.push(signature(served)));
                }
            }
        }
        for (name, [before, after]) in names {
            if before == after {
                continue;
            }
            let found =
                |snapshot: &'a Snapshot| snapshot.find_tool(name).map_or(Found::None, Found::One);
            self.ask(None, &found(self.old), &found(self.new), || format!("tool {name}"));
        }
    }

    fn paths(&mut self) {
        let known = self.known();
        if known.iter().all(|known| !known.has_changed) {
            return;
        }
        let mut near: BTreeMap<&str, Near> = BTreeMap::new();
        for (number, own) in known.iter().enumerate() {
            near.entry(own.method.as_str()).or_default().add(own.template, number);
        }
        let filler = paths::filler(known.iter().map(|known| known.template));
        let depth = known.iter().map(|known| known.template.parts().len()).max().unwrap_or(0);
        let mut budget = MAX_MEETINGS;
        let mut asked: HashSet<(Method, String)> = HashSet::new();
        for own in known.iter().filter(|known| known.has_changed) {
            // A HEAD that is not declared is a GET, and one that is may fold onto a GET that writes.
            let methods: &[Method] = match *own.method {
                Method::GET | Method::HEAD => &[Method::GET, Method::HEAD],
                _ => std::slice::from_ref(own.method),
            };
            let tries = methods.iter().filter_map(|method| near.get(method.as_str()));
            let touching: Vec<&Known<'_>> = tries
                .flat_map(|near| near.touching(own.template, &mut budget))
                .filter_map(|number| known.get(number))
                .collect();
            // One that stays and says more of its paths beats this one there, before and after; but a
            // path that folds onto its own is this one's, unless that would be milder.
            let (beating, others): (Vec<_>, Vec<_>) = touching.into_iter().partition(|other| {
                !other.has_changed
                    && other.method == own.method
                    && other.template.specificity(own.template) == Specificity::More
            });
            let (mut sets, is_whole) = meetings(own, &others, &mut budget);
            self.compared.is_in_part |= !is_whole;
            let folding = beating.iter().chain(&others).filter(|other| other.is_write);
            let folding = folding.flat_map(|other| &other.sets);
            for set in folding {
                let spelt = set.respelt();
                for met in own.sets.iter().filter_map(|own| spelt.meet(own)) {
                    sets.extend(met.slashed());
                    sets.push(met);
                }
            }
            for set in sets {
                let path = set.sample(filler, depth);
                for method in methods.iter().filter(|method| near.contains_key(method.as_str())) {
                    if asked.insert((method.clone(), path.clone())) {
                        self.ask_path(method, own.template, &path);
                    }
                }
            }
            if budget == 0 {
                self.compared.is_in_part = true;
                return;
            }
        }
    }

    /// Every template of the two policies, once for each method.
    fn known(&self) -> Vec<Known<'a>> {
        let mut all: BTreeMap<(&str, &str), Known<'a>> = BTreeMap::new();
        let mut signatures: BTreeMap<(&str, Paths), [Vec<String>; 2]> = BTreeMap::new();
        for (side, snapshot) in [self.old, self.new].into_iter().enumerate() {
            for served in snapshot.operations() {
                let Target::Http { method, template } = &served.operation.target else { continue };
                let whole = Paths::of(template, |_| None);
                let sides = signatures.entry((method.as_str(), whole.clone())).or_default();
                sides.get_mut(side).into_iter().for_each(|own| own.push(signature(served)));
                let known = all.entry((method.as_str(), template.as_str())).or_insert_with(|| {
                    let sets = vec![whole];
                    Known { method, template, sets, has_changed: false, is_write: false }
                });
                known.is_write |= served.operation.class.is_write();
                for condition in &served.operation.conditions {
                    add_fixed(known, condition);
                }
            }
        }
        let mut known: Vec<Known<'a>> = all.into_values().collect();
        for own in &mut known {
            let whole = Paths::of(own.template, |_| None);
            let sides = signatures.get(&(own.method.as_str(), whole));
            own.has_changed = sides.is_some_and(|[before, after]| before != after);
        }
        known
    }

    fn ask_path(&mut self, method: &Method, template: &Template, path: &str) {
        let (old, new) = (self.old, self.new);
        let found = (old.find_http(method, path), new.find_http(method, path));
        let (before, after) = (&found.0, &found.1);
        // What holds where nothing is declared is compared by itself.
        let is_of_defaults = before.groups().is_empty()
            && after.groups().is_empty()
            && old.folds_onto_write(method, path).is_none();
        if !is_of_defaults {
            self.ask(Some((method, path)), before, after, || format!("{method} {template}"));
        }
    }

    fn ask(
        &mut self,
        http: Option<(&Method, &str)>,
        before: &Found<'a>,
        after: &Found<'a>,
        calls: impl Fn() -> String,
    ) {
        let groups = || before.groups().iter().chain(after.groups());
        let operations = groups().flat_map(|group| &group.operations);
        let conditions: Vec<&Condition> =
            operations.flat_map(|served| &served.operation.conditions).collect();
        let layout = if http.is_some() { Layout::Http } else { Layout::Tool };
        let samples = samples::all(&conditions, layout);
        let samples = samples.filter(|samples| samples.len() <= self.calls_left);
        let Some(samples) = samples else {
            let (was, is) = self.in_doubt(http, before, after);
            self.tell(&was, &is, &calls);
            return;
        };
        self.calls_left = self.calls_left.saturating_sub(samples.len());
        for sample in &samples {
            let was = outcome(self.old, http, before, sample);
            let is = outcome(self.new, http, after, sample);
            self.tell(&was, &is, &calls);
        }
    }

    /// The most severe thing that calls of a target may have been, and the mildest that they may be.
    fn in_doubt(
        &self,
        http: Option<(&Method, &str)>,
        before: &Found<'a>,
        after: &Found<'a>,
    ) -> (Outcome<'a>, Outcome<'a>) {
        let all = |snapshot: &'a Snapshot, found: &Found<'a>| {
            let strictest = found.groups().iter().map(|group| group.strictest).max();
            let declared: Vec<Outcome<'a>> = found
                .groups()
                .iter()
                .flat_map(|group| &group.operations)
                .map(Outcome::declared)
                .collect();
            let undeclared = Outcome::undeclared(snapshot, http, strictest);
            (declared, undeclared)
        };
        let ((old, none_before), (new, none_after)) = (all(self.old, before), all(self.new, after));
        let rank = |outcome: &Outcome<'a>| (outcome.class, outcome.level, outcome.mode);
        (
            old.into_iter().max_by_key(rank).unwrap_or(none_before),
            new.into_iter().min_by_key(rank).unwrap_or(none_after),
        )
    }

    fn tell(&mut self, was: &Outcome<'a>, is: &Outcome<'a>, calls: impl Fn() -> String) {
        let id = |outcome: &Outcome<'_>| outcome.served.map(|served| served.operation.id.clone());
        let (own, other) = (id(was), id(is));
        // What an operation that keeps its calls is now is told of the operation.
        if own.is_some() && own == other {
            return;
        }
        let lost = less(was, is);
        if !is_milder(was, is) && lost.is_empty() {
            return;
        }
        let calls = match (was.served, is.served) {
            (Some(served), _) | (None, Some(served)) => target(&served.operation),
            (None, None) => calls(),
        };
        if self.seen.insert((calls.clone(), own.clone(), other.clone())) {
            let mut after = is.told(was);
            if !lost.is_empty() {
                after.push_str(", less by its ");
                after.push_str(&lost.join(", "));
            }
            let before = was.told(is);
            self.compared.moved.push(Moved { calls, was: own, is: other, before, after });
        }
    }
}

/// What of an operation decides which calls are its own, and what they are.
fn signature(served: &Served) -> String {
    let Operation { id, class, confirm, mode, conditions, carrier, .. } = &served.operation;
    let conditions: Vec<String> = conditions.iter().map(words).collect();
    let is_keyed = carrier.place != Place::Unsupported;
    format!("{id} {class} {confirm} {mode} {is_keyed} {}", conditions.join(" and "))
}

/// Adds the paths that have the values which a condition asks of a parameter, and of each one that does not
/// quite.
fn add_fixed(known: &mut Known<'_>, condition: &Condition) {
    let [Segment::Name(section), Segment::Name(name)] = condition.path.segments.as_slice() else {
        return;
    };
    let literals = match &condition.test {
        Test::Absent | Test::Exists => return,
        Test::Equals(literal) => std::slice::from_ref(literal),
        Test::OneOf(literals) => literals.as_slice(),
    };
    if section != "path" {
        return;
    }
    for text in literals.iter().filter_map(|literal| literal.root().as_str()) {
        for text in [text.to_string(), text.to_ascii_uppercase(), text.to_ascii_lowercase()] {
            let value = utf8_percent_encode(&text, ENCODED).to_string();
            let set = Paths::of(known.template, |own| (own == name).then(|| value.clone()));
            if known.sets.len() < MAX_FIXED && !value.is_empty() && !known.sets.contains(&set) {
                known.sets.push(set);
            }
        }
    }
}

/// The sets of paths in which a template meets others, and those in which these meet; and whether these
/// are all.
fn meetings(own: &Known<'_>, others: &[&Known<'_>], budget: &mut usize) -> (Vec<Paths>, bool) {
    // A path that folds onto its own is routed otherwise than that one.
    let respelt = own.sets.iter().map(Paths::respelt);
    let mut known: BTreeSet<Paths> = own.sets.iter().cloned().chain(respelt).collect();
    let mut found: Vec<Paths> = known.iter().cloned().collect();
    for other in others.iter().flat_map(|other| &other.sets) {
        for position in 0..found.len() {
            *budget = budget.saturating_sub(1);
            if *budget == 0 || found.len() > MAX_SETS {
                return (found, false);
            }
            let met = found.get(position).and_then(|set| set.meet(other));
            let Some(met) = met else { continue };
            for set in [met.slashed(), Some(met)].into_iter().flatten() {
                if known.insert(set.clone()) {
                    found.push(set);
                }
            }
        }
    }
    (found, true)
}

impl<'a> Outcome<'a> {
    fn declared(served: &'a Arc<Served>) -> Self {
        let Operation { class, confirm, mode, .. } = &served.operation;
        let (class, level, mode) = (*class, *confirm, *mode);
        Self { served: Some(served), class, level, mode, is_refused: false }
    }

    fn undeclared(
        snapshot: &Snapshot,
        http: Option<(&Method, &str)>,
        strictest: Option<Level>,
    ) -> Self {
        let class = match (http, strictest) {
            (Some((method, path)), None) => snapshot.undeclared_class(method, path),
            (_, _) => Class::Irreversible,
        };
        let level = snapshot.undeclared_level();
        let level = strictest.map_or(level, |strictest| level.max(strictest));
        let is_refused = class.is_write() && snapshot.undeclared() == Undeclared::Refuse;
        let level = if class.is_write() { level } else { Level::None };
        Self { served: None, class, level, mode: snapshot.undeclared_mode(), is_refused }
    }

    fn is_keyed(&self) -> bool {
        self.served.is_some_and(|served| served.operation.carrier.place != Place::Unsupported)
    }

    /// Its operation, and what differs from the other.
    fn told(&self, other: &Self) -> String {
        let mut text = match self.served {
            Some(served) => format!("{} (", served.operation.id),
            None => "undeclared (".to_owned(),
        };
        text.push_str(self.class.as_str());
        text.push_str(", ");
        text.push_str(if self.is_refused { "refused" } else { self.level.as_str() });
        if self.mode != other.mode {
            text.push_str(", ");
            text.push_str(self.mode.as_str());
        }
        if self.class.is_write() && self.is_keyed() != other.is_keyed() {
            text.push_str(if self.is_keyed() { ", keyed" } else { ", no key" });
        }
        text.push(')');
        text
    }
}

/// Whether a call is let through, confirmed or recorded by less than it was.
fn is_milder(was: &Outcome<'_>, is: &Outcome<'_>) -> bool {
    if is.is_refused || (was.served.is_none() && !was.class.is_write()) {
        return false;
    }
    let loses_key = was.class.is_write() && was.is_keyed() && !is.is_keyed();
    was.is_refused
        || is.class < was.class
        || is.level < was.level
        || is.mode < was.mode
        || loses_key
}

/// The terms by which one operation protects less than another that is as severe and as strict. Of one
/// that is stricter, the terms are not those of the same effect.
fn less(was: &Outcome<'_>, is: &Outcome<'_>) -> Vec<&'static str> {
    let (Some(before), Some(after)) = (was.served, is.served) else { return Vec::new() };
    let is_alike = (was.class, was.level, was.mode) == (is.class, is.level, is.mode);
    if !is_alike || !was.class.is_write() {
        return Vec::new();
    }
    let (old, new) = (&before.operation, &after.operation);
    let mut less = Vec::new();
    if old.repeat != Repeat::Allow && new.repeat == Repeat::Allow {
        less.push("repeat");
    }
    let strictness = |rule| match rule {
        OnUnknown::Challenge => 0,
        OnUnknown::Human => 1,
        OnUnknown::Refuse => 2,
    };
    if strictness(new.on_unknown) < strictness(old.on_unknown) {
        less.push("on_unknown");
    }
    let terms = terms::all(before, after).into_iter();
    let is_less = |term: &terms::Term| term.is_weaker && term.before != term.after;
    less.extend(terms.filter(is_less).map(|term| term.what));
    less
}

/// What a request is under a policy.
fn outcome<'a>(
    snapshot: &Snapshot,
    http: Option<(&Method, &str)>,
    found: &Found<'a>,
    sample: &Sample,
) -> Outcome<'a> {
    let choice = match http {
        None => choose_tool(found, sample),
        Some((_, path)) => choose_http(found, path, sample),
    };
    match choice {
        Choice::Declared(served) => Outcome::declared(served),
        Choice::Undeclared { strictest } => Outcome::undeclared(snapshot, http, strictest),
    }
}

fn choose_tool<'a>(found: &Found<'a>, sample: &Sample) -> Choice<'a> {
    let doc = Doc::parse(sample.head.clone());
    let request = match &doc {
        Ok(doc) => Request::Arguments(doc.root()),
        Err(_) => Request::Unreadable,
    };
    choose(found, &Scope { before: None, request, response: None, key: None })
}

fn choose_http<'a>(found: &Found<'a>, path: &str, sample: &Sample) -> Choice<'a> {
    let groups = found.groups();
    let heads: Vec<Option<Doc>> = groups.iter().map(|group| head(group, path, sample)).collect();
    let body = match &sample.body {
        Body::Json(json) => Doc::parse(json.clone()).ok(),
        Body::None | Body::Opaque => None,
    };
    let is_opaque = sample.body == Body::Opaque;
    let scopes: Vec<Scope<'_>> = heads
        .iter()
        .map(|head| {
            let body = body.as_ref().map(Doc::root);
            let request = head.as_ref().map_or(Request::Unreadable, |head| Request::Http {
                head: head.root(),
                body,
                is_opaque,
            });
            Scope { before: None, request, response: None, key: None }
        })
        .collect();
    match (groups, scopes.as_slice()) {
        ([group], [scope]) => choose(&Found::One(group), scope),
        ([], _) => Choice::Undeclared { strictest: None },
        (groups, scopes) => {
            let asked: Vec<(&'a Group, &Scope<'_>)> = groups.iter().copied().zip(scopes).collect();
            choose_each(&asked)
        }
    }
}

/// The head of a request, with the parameters that a group's template reads of its path.
fn head(group: &Group, path: &str, sample: &Sample) -> Option<Doc> {
    let mut json = String::from("{\"path\":{");
    if let Some(Target::Http { template, .. }) =
        group.operations.first().map(|served| &served.operation.target)
    {
        let values = template.matches(path).unwrap_or_default();
        for (position, (name, value)) in values.into_iter().enumerate() {
            json.push_str(if position > 0 { "," } else { "" });
            write_string(name, &mut json);
            json.push(':');
            let value = percent_encoding::percent_decode_str(value).decode_utf8().ok()?;
            write_string(&value, &mut json);
        }
    }
    json.push_str("},");
    json.push_str(&sample.head);
    json.push('}');
    Doc::parse(json).ok()
}
