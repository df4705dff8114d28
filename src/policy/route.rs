//! From a request to the operations that it may be, and from those to the one that it is.
//!
//! Paths are matched by a trie of segments per method: literals are looked up, parameters with text
//! beside them are tried, and all templates that match are found, of which the most specific are
//! kept. Which of a template's variants a call is depends on its conditions ([`choose`]); that is a
//! second step because it may need the body.
//!
//! Paths come as they are forwarded, without query; odd ones (dot or empty segments, encoded
//! slashes) are refused before they get here. As templates do, the trie compares paths in a form in
//! which only unreserved characters are decoded. On the usual path nothing is allocated.

mod near;
mod spelling;

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::contract::assertion::{equal, is_alike};
use crate::contract::class::{Class, Level};
use crate::contract::json::{Kind, Value};
use crate::contract::operation::{Condition, Operation, Target, Test, is_get, is_safe};
use crate::contract::path::{Found as PathFound, Request, Root, Scope, Segment};
use crate::contract::template::{Part, Specificity, Template};

use super::Served;
pub(super) use near::Near;
pub(super) use spelling::normal;
use spelling::{Escapes, escaped, folded, folded_template, has_escape};

/// The operations of one method and template, or of one tool.
#[derive(Debug)]
pub struct Group {
    /// The variants; one without conditions is the plain form.
    pub operations: Vec<Arc<Served>>,
    /// A condition reads the body, so the variant is known only once it is read.
    pub reads_body: bool,
    /// The strictest confirmation of any variant.
    pub strictest: Level,
    /// A variant has conditions.
    pub has_conditions: bool,
    /// Its template as lenient upstreams compare it, if another template of its method is more severe
    /// and takes paths that are spelt nearly as its own.
    near_severer: Option<Template>,
}

impl Group {
    fn new() -> Self {
        Self {
            operations: Vec::new(),
            reads_body: false,
            strictest: Level::None,
            has_conditions: false,
            near_severer: None,
        }
    }

    fn add(&mut self, served: Arc<Served>) {
        let operation = &served.operation;
        self.strictest = self.strictest.max(operation.confirm);
        self.has_conditions |= !operation.conditions.is_empty();
        self.reads_body |= operation.conditions.iter().any(reads_body);
        self.operations.push(served);
    }

    fn template(&self) -> Option<&Template> {
        match &self.operations.first()?.operation.target {
            Target::Http { template, .. } => Some(template),
            Target::Tool { .. } => None,
        }
    }

    /// Whether each variant has conditions, so that a call may be none of them.
    fn is_open(&self) -> bool {
        self.operations.iter().all(|served| !served.operation.conditions.is_empty())
    }

    /// The most severe class that a call of it may get, and the strictest level.
    fn worst(&self) -> (Class, Level) {
        let classes = self.operations.iter().map(|served| served.operation.class);
        let class = classes.max().filter(|_| !self.is_open()).unwrap_or(Class::Irreversible);
        (class, self.strictest)
    }

    /// Whether a call of it may get a milder class, or a weaker level, than one of the other.
    fn may_be_milder(&self, other: &Self) -> bool {
        let (class, level) = other.worst();
        self.operations
            .iter()
            .map(|served| severity(served))
            .any(|own| is_worse((class, level), own))
    }
}

fn reads_body(condition: &Condition) -> bool {
    condition.reads("body")
}

/// What the router knows of a method and path.
#[derive(Debug)]
pub enum Found<'a> {
    /// Nothing is declared here.
    None,
    /// The operations of one template.
    One(&'a Group),
    /// Operations of templates of which none is more specific than the others.
    Several(Vec<&'a Group>),
}

impl<'a> Found<'a> {
    /// The groups, in the order of declaration.
    pub fn groups(&self) -> &[&'a Group] {
        match self {
            Self::None => &[],
            Self::One(group) => std::slice::from_ref(group),
            Self::Several(groups) => groups,
        }
    }
}

/// Which operation a call is.
#[derive(Clone, Debug)]
pub enum Choice<'a> {
    /// This one.
    Declared(&'a Arc<Served>),
    /// None: irreversible.
    Undeclared {
        /// The strictest confirmation among the variants that it is none of.
        strictest: Option<Level>,
    },
}

/// The operation that a call is, of those that its target may be.
///
/// The variant with the most conditions, all satisfied, is the most specific; a variant without
/// conditions is the least. Of two that this leaves, the more severe class stands, then the
/// stricter level, then the earlier declaration. A call that satisfies no variant is undeclared.
/// Conditions separate variants of one target; of two templates that no rule separates, each gives
/// its own, and the more severe one stands, however many conditions the milder one has: that no
/// variant of the other takes the call is the most severe of all.
///
/// A request that cannot be read satisfies no condition. It is then the plain form only where that
/// is at least as severe and strict as every variant: a body that we cannot read and the upstream
/// can must not be a way to a milder class. The same holds of a value that a laxer reader takes for
/// the one that a variant asks for (`may_be_satisfied`).
pub fn choose<'a>(found: &Found<'a>, scope: &Scope<'_>) -> Choice<'a> {
    match found {
        Found::None => Choice::Undeclared { strictest: None },
        Found::One(group) => {
            let best = most_specific(group, scope);
            judged(best, [(*group, scope)].into_iter(), false)
        }
        Found::Several(groups) => {
            let asked: Vec<(&Group, &Scope<'_>)> =
                groups.iter().map(|group| (*group, scope)).collect();
            choose_each(&asked)
        }
    }
}

/// As [`choose`] of several templates, each asked with the request as its own parameters read it.
pub fn choose_each<'a>(asked: &[(&'a Group, &Scope<'_>)]) -> Choice<'a> {
    let own: Vec<(&'a Group, Option<&'a Arc<Served>>)> =
        asked.iter().map(|(group, scope)| (*group, most_specific(group, scope))).collect();
    let mut best: Option<&'a Arc<Served>> = None;
    let mut is_open = false;
    let mut strictest = Level::None;
    for (group, _) in &own {
        // Templates that are the same but for the names of their parameters are one target.
        let of_target = own.iter().filter(|(other, _)| is_same(other, group));
        let taken = of_target
            .filter_map(|(_, served)| *served)
            .reduce(|known, other| if beats(other, known) { other } else { known });
        is_open |= taken.is_none();
        let Some(served) = taken else { continue };
        strictest = strictest.max(served.operation.confirm);
        let rank = |served: &Served| (severity(served), served.operation.mode);
        if best.is_none_or(|best| rank(served) > rank(best)) {
            best = Some(served);
        }
    }
    // The more severe class of the one, and the stricter level of another: neither alone is enough.
    is_open |= best.is_some_and(|best| best.operation.confirm < strictest);
    judged(best, asked.iter().copied(), is_open)
}

/// What was found, unless the call may be something more severe: `is_open` says that no variant of some
/// target takes it.
fn judged<'a, 's>(
    best: Option<&'a Arc<Served>>,
    asked: impl Iterator<Item = (&'a Group, &'s Scope<'s>)> + Clone,
    is_open: bool,
) -> Choice<'a> {
    let strictest = asked.clone().map(|(group, _)| group.strictest).max();
    let Some(best) = best else { return Choice::Undeclared { strictest } };
    let own = severity(best);
    let is_milder = |other: (Class, Level)| is_worse(other, own);
    let may_be_worse = (is_open && is_milder((Class::Irreversible, strictest.unwrap_or(own.1))))
        || asked.into_iter().filter(|(group, _)| group.has_conditions).any(|(group, scope)| {
            let is_own = group.operations.iter().any(|other| std::ptr::eq(&**other, &**best));
            group.operations.iter().any(|other| {
                // One with fewer conditions is beaten, whether the call satisfies them or not.
                let (count, most) =
                    (other.operation.conditions.len(), best.operation.conditions.len());
                is_milder(severity(other))
                    && (!is_own || count >= most)
                    && may_be_taken_for(other, scope)
            })
        });
    if may_be_worse { Choice::Undeclared { strictest } } else { Choice::Declared(best) }
}

fn severity(served: &Served) -> (Class, Level) {
    (served.operation.class, served.operation.confirm)
}

/// Whether one class and level is more severe, or stricter, than the other.
fn is_worse((class, level): (Class, Level), than: (Class, Level)) -> bool {
    class > than.0 || level > than.1
}

/// More specific first, then more severe; equal ranks keep the earlier one.
fn rank(served: &Served) -> (usize, Class, Level) {
    let operation = &served.operation;
    (operation.conditions.len(), operation.class, operation.confirm)
}

/// The variant of one target that a request is.
fn most_specific<'a>(group: &'a Group, scope: &Scope<'_>) -> Option<&'a Arc<Served>> {
    let mut best: Option<&Arc<Served>> = None;
    for served in &group.operations {
        if served.operation.conditions.iter().all(|condition| is_satisfied(condition, scope))
            && best.is_none_or(|best| rank(served) > rank(best))
        {
            best = Some(served);
        }
    }
    best
}

fn beats(left: &Served, right: &Served) -> bool {
    (rank(left), std::cmp::Reverse(left.index)) > (rank(right), std::cmp::Reverse(right.index))
}

/// Whether two groups are one target: their templates take the same paths.
fn is_same(left: &Group, right: &Group) -> bool {
    match (left.template(), right.template()) {
        (Some(left), Some(right)) => left.specificity(right) == Specificity::Same,
        (_, _) => std::ptr::eq(left, right),
    }
}

/// Whether a request satisfies a condition (contract section 2, Variants).
pub fn is_satisfied(condition: &Condition, scope: &Scope<'_>) -> bool {
    if matches!(scope.request, Request::Unreadable) {
        return false;
    }
    let found = condition.path.resolve(scope);
    let Some(PathFound::Value(value)) = found else {
        return matches!(condition.test, Test::Absent) && is_surely_absent(condition, scope);
    };
    if is_query_parameter(condition, scope) && value.kind() == Kind::Array {
        // A name that is given several times must satisfy the test with every value.
        return value.elements().all(|value| holds(&condition.test, value))
            && value.elements().next().is_some();
    }
    holds(&condition.test, value)
}

/// Whether a laxer reader takes a call for a variant that it is not: it satisfies each condition or seems
/// to, and one only seems to be satisfied.
fn may_be_taken_for(served: &Served, scope: &Scope<'_>) -> bool {
    let mut seems = false;
    let is_possible = served.operation.conditions.iter().all(|condition| {
        is_satisfied(condition, scope) || {
            seems = true;
            may_be_satisfied(condition, scope)
        }
    });
    is_possible && seems
}

/// Whether a laxer reader may take a condition for satisfied that is not: it reads a body that we do not,
/// finds the name in the first object of a list or under another spelling, takes one of several query
/// values, or converts a value to the kind that it expects.
fn may_be_satisfied(condition: &Condition, scope: &Scope<'_>) -> bool {
    if let Some(PathFound::Value(value)) = condition.path.resolve(scope) {
        if is_query_parameter(condition, scope) && value.kind() == Kind::Array {
            return value.elements().any(|value| seems_to_hold(&condition.test, value));
        }
        return seems_to_hold(&condition.test, value);
    }
    !is_surely_absent(condition, scope)
}

fn seems_to_hold(test: &Test, value: Value<'_>) -> bool {
    match test {
        Test::Absent => false,
        Test::Exists => true,
        Test::Equals(literal) => seems_equal(value, literal.root()),
        Test::OneOf(literals) => literals.iter().any(|literal| seems_equal(value, literal.root())),
    }
}

/// Whether two values are equal, may be once one is converted, or differ in case and outer white space.
fn seems_equal(left: Value<'_>, right: Value<'_>) -> bool {
    match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => left.trim().eq_ignore_ascii_case(right.trim()),
        (_, _) => left.kind() != right.kind() || equal(left, right),
    }
}

/// Whether no reader can find what the condition's path names: the request could be read, every step
/// on the way is an object, and none of them has a member that a laxer reader takes for the named one.
fn is_surely_absent(condition: &Condition, scope: &Scope<'_>) -> bool {
    let (mut at, mut segments) = match scope.request {
        Request::Arguments(arguments) => (Some(arguments), condition.path.segments.as_slice()),
        Request::Http { head, body, is_opaque } => match condition.path.segments.split_first() {
            Some((Segment::Name(section), rest)) if section == "body" => {
                if is_opaque {
                    return false;
                }
                (body, rest)
            }
            Some(_) | None => (Some(head), condition.path.segments.as_slice()),
        },
        Request::Unreadable => return false,
    };
    while let (Some(value), Some((segment, rest))) = (at, segments.split_first()) {
        match segment {
            Segment::Name(name) => {
                if value.kind() != Kind::Object || value.has_twin(name) {
                    return false;
                }
                at = value.get(name).filter(|value| !value.is_null());
            }
            Segment::Index(index) => {
                if value.kind() != Kind::Array {
                    return false;
                }
                at = value.at(*index).filter(|value| !value.is_null());
            }
        }
        segments = rest;
    }
    true
}

fn holds(test: &Test, value: Value<'_>) -> bool {
    match test {
        Test::Absent => false,
        Test::Exists => true,
        Test::Equals(literal) => equal(value, literal.root()),
        Test::OneOf(literals) => literals.iter().any(|literal| equal(value, literal.root())),
    }
}

fn is_query_parameter(condition: &Condition, scope: &Scope<'_>) -> bool {
    let is_query = matches!(
        condition.path.segments.as_slice(),
        [Segment::Name(section), Segment::Name(_)] if section == "query"
    );
    is_query
        && condition.path.root == Root::Request
        && matches!(scope.request, Request::Http { .. })
}

/// What some reader finds for a condition elsewhere than it reads, or under another spelling.
#[derive(Clone, Debug)]
pub enum Elsewhere<'v> {
    /// Nothing.
    Nowhere,
    /// Something that is not known here, or is not what the condition can be asked of.
    Unknown,
    /// These values, of which a reader takes one.
    Values(Vec<Value<'v>>),
}

/// Whether a call is more severe, or needs a stricter confirmation, to some reader who finds what
/// conditions read elsewhere than they do; `chosen` is what it is to the policy.
pub fn is_worse_elsewhere<'v>(
    asked: &[(&Group, &Scope<'_>)],
    chosen: &Operation,
    elsewhere: impl Fn(&Operation, &Condition) -> Elsewhere<'v>,
) -> bool {
    let own = (chosen.class, chosen.confirm);
    // Whether it may be this variant, and whether it surely is.
    let reading = |operation: &Operation, scope: &Scope<'_>| {
        let mut is_touched = false;
        let (mut may, mut must) = (true, true);
        for condition in &operation.conditions {
            let elsewhere = elsewhere(operation, condition);
            is_touched |= !matches!(elsewhere, Elsewhere::Nowhere);
            let (may_hold, may_fail) = readings(condition, scope, &elsewhere);
            may &= may_hold;
            must &= !may_fail;
        }
        (is_touched, may, must)
    };
    asked.iter().any(|(group, _)| {
        // Templates that are the same but for the names of their parameters are one target.
        let of_target = asked.iter().filter(|(other, _)| is_same(other, group));
        let variants = of_target.flat_map(|(group, scope)| {
            let operations = group.operations.iter().map(|served| &served.operation);
            operations.map(|operation| (operation, reading(operation, scope)))
        });
        let variants: Vec<(&Operation, (bool, bool, bool))> = variants.collect();
        if variants.iter().all(|(_, (is_touched, ..))| !is_touched) {
            return false;
        }
        let sure = variants.iter().filter(|(_, (.., must))| *must);
        let most = sure.map(|(operation, _)| operation.conditions.len()).max();
        let mut possible = variants.iter().filter(|(operation, (_, may, _))| {
            *may && most.is_none_or(|most| operation.conditions.len() >= most)
        });
        // None of them is what nothing at a declared target is milder than.
        let is_open = most.is_none() && is_worse((Class::Irreversible, group.strictest), own);
        is_open
            || possible.any(|(operation, _)| is_worse((operation.class, operation.confirm), own))
    })
}

/// Whether a condition holds to some reader, and whether it fails to some.
fn readings(condition: &Condition, scope: &Scope<'_>, elsewhere: &Elsewhere<'_>) -> (bool, bool) {
    let holds = is_satisfied(condition, scope);
    let may_hold = holds || may_be_satisfied(condition, scope);
    let values = match elsewhere {
        Elsewhere::Nowhere => return (may_hold, !holds),
        Elsewhere::Unknown => return (true, true),
        Elsewhere::Values(values) => values,
    };
    let test = &condition.test;
    let may = |value: &Value<'_>| match test {
        Test::Absent => value.is_null(),
        _ => !value.is_null() && seems_to_hold(test, *value),
    };
    let must = |value: &Value<'_>| match test {
        Test::Absent => value.is_null(),
        Test::Exists => !value.is_null(),
        Test::Equals(literal) => is_alike(*value, literal.root()),
        Test::OneOf(literals) => literals.iter().any(|literal| is_alike(*value, literal.root())),
    };
    (may_hold || values.iter().any(may), !holds || !values.iter().all(must))
}

/// What a path is that two readers may take for two: all that either takes it for, of which the most
/// severe stands. What is declared for one and not for the other is undeclared, unless that would be
/// milder (`is_read`).
fn join<'a>(left: Found<'a>, right: Found<'a>, is_read: bool) -> Found<'a> {
    match (left.groups(), right.groups()) {
        ([], []) => Found::None,
        (_, []) if is_read => left,
        ([], _) if is_read => right,
        ([], _) | (_, []) => Found::None,
        (known, more) => {
            let mut groups = known.to_vec();
            for group in more {
                if !groups.iter().any(|known| std::ptr::eq(*known, *group)) {
                    groups.push(group);
                }
            }
            match groups.as_slice() {
                [only] => Found::One(only),
                _ => Found::Several(groups),
            }
        }
    }
}

/// How many templates that take the same paths under other names are searched for one's own.
const MAX_SAME: usize = 512;

/// The most pairs of overlapping templates that are told.
const MAX_PAIRS: usize = 4_096;

/// The most nodes that are visited to compare templates with each other; a policy of any sane shape needs
/// a fraction of it.
const MAX_STEPS: usize = 2_000_000;

/// Templates in the form in which lenient upstreams compare them, and those groups that are not only read.
#[derive(Debug, Default)]
struct Folded {
    trie: Trie,
    /// By the group's position.
    templates: HashMap<usize, Template>,
}

impl Folded {
    /// The groups whose templates take a folded path, by their positions, with those templates.
    fn find(&self, path: &str) -> Vec<(usize, &Template)> {
        let mut matches = Matches::default();
        self.trie.find(path, &mut matches);
        let found =
            matches.iter().filter_map(|(group, _)| Some((group, self.templates.get(&group)?)));
        found.filter(|(_, template)| template.matches(path).is_some()).collect()
    }
}

/// Finds groups by method and path, and by tool.
#[derive(Debug, Default)]
pub(super) struct Router {
    methods: Vec<(http::Method, Trie)>,
    /// What is not only read, of each method, by its folded templates ([`Folded`]).
    folded: Vec<(http::Method, Folded)>,
    /// A template has an escape of its own, so that paths are also looked up with more escapes.
    has_escapes: bool,
    groups: Vec<(Option<Template>, Group)>,
    tools: HashMap<Arc<str>, Group>,
}

impl Router {
    /// Adds an operation.
    pub(super) fn add(&mut self, served: Arc<Served>) {
        match &served.operation.target {
            Target::Tool { name } => {
                let group = self.tools.entry(Arc::clone(name)).or_insert_with(Group::new);
                group.add(Arc::clone(&served));
            }
            Target::Http { method, template } => {
                let position = self.methods.iter().position(|(known, _)| known == method);
                let position = position.unwrap_or_else(|| {
                    self.methods.push((method.clone(), Trie::default()));
                    self.methods.len().saturating_sub(1)
                });
                let Some((_, trie)) = self.methods.get_mut(position) else { return };
                self.has_escapes |= template.parts().iter().any(has_escape);
                let ends = trie.ends_of(template);
                // More than this many is refused afterwards, and costs no search until then.
                let known = ends.iter().take(MAX_SAME).copied().find(|group| {
                    self.groups
                        .get(*group)
                        .and_then(|(known, _)| known.as_ref())
                        .is_some_and(|known| known.names().eq(template.names()))
                });
                let group = known.unwrap_or_else(|| {
                    let group = self.groups.len();
                    self.groups.push((Some(template.clone()), Group::new()));
                    ends.push(group);
                    group
                });
                if let Some((_, group)) = self.groups.get_mut(group) {
                    group.add(Arc::clone(&served));
                }
            }
        }
    }

    pub(super) fn find_tool(&self, name: &str) -> Option<&Group> {
        self.tools.get(name)
    }

    /// `undeclared_reads`: nothing declared means a read where the method is safe.
    pub(super) fn find_http(
        &self,
        method: &http::Method,
        path: &str,
        undeclared_reads: bool,
    ) -> Found<'_> {
        let found = self.find_either(method, path, undeclared_reads);
        self.with_folded(found, method, path)
    }

    /// Whether the path is another operation's to one reader than to the other; see
    /// [`Snapshot::is_ambiguous`](super::Snapshot::is_ambiguous).
    pub(super) fn is_ambiguous(
        &self,
        method: &http::Method,
        path: &str,
        undeclared_reads: bool,
    ) -> bool {
        if !self.has_escapes && !path.contains('%') {
            return false;
        }
        let found = self.find_spelt(method, path);
        let either = self.find_either(method, path, undeclared_reads);
        let (found, either) = (found.groups(), either.groups());
        let is_same = found.len() == either.len()
            && found.iter().zip(either).all(|(left, right)| std::ptr::eq(*left, *right));
        // Whichever read it is, nothing is lost.
        let is_read = |group: &&Group| {
            group.operations.iter().all(|served| served.operation.class == Class::Read)
        };
        let is_harmless =
            undeclared_reads && is_safe(method) && found.iter().chain(either).all(is_read);
        !is_same && !is_harmless
    }

    /// What is declared for a path as either of two readers reads it: the other one takes escapes off
    /// first, of the path and of what he routes by.
    fn find_either(&self, method: &http::Method, path: &str, undeclared_reads: bool) -> Found<'_> {
        let found = self.find_spelt(method, path);
        if !self.has_escapes && !path.contains('%') {
            return found;
        }
        let mut other = self.find_spelt(method, &escaped(path, Escapes::Less));
        if self.has_escapes {
            let more = self.find_spelt(method, &escaped(path, Escapes::More));
            other = join(other, more, true);
        }
        join(found, other, undeclared_reads && is_safe(method))
    }

    /// What is declared for a path as one reader reads it.
    fn find_spelt(&self, method: &http::Method, path: &str) -> Found<'_> {
        let found = self.find_method(method, path);
        // A HEAD asks for what a GET would do, unless it is declared by itself.
        if matches!(found, Found::None) && *method == http::Method::HEAD {
            return self.find_method(&http::Method::GET, path);
        }
        found
    }

    /// Knows which templates have more severe ones beside them that a lenient upstream may take their
    /// paths for; to be called once all operations are there.
    pub(super) fn seal(&mut self) {
        for (method, _) in &self.methods {
            let groups = self.groups_of(method);
            let severe = groups.filter(|(_, _, group)| {
                group.is_open() || group.worst() > (Class::Read, Level::None)
            });
            let mut folded = Folded::default();
            for (position, template, _) in severe {
                let template = folded_template(template, false);
                folded.trie.ends_of(&template).push(position);
                folded.templates.insert(position, template);
            }
            if !folded.templates.is_empty() {
                self.folded.push((method.clone(), folded));
            }
        }
        let mut milder = Vec::new();
        let mut budget = MAX_STEPS;
        for (method, _) in &self.methods {
            for (position, template, group) in self.groups_of(method) {
                if self.has_severer(method, (position, template, group), &mut budget) {
                    milder.push(position);
                }
            }
        }
        for position in milder {
            if let Some((Some(template), group)) = self.groups.get_mut(position) {
                group.near_severer = Some(folded_template(template, false));
            }
        }
    }

    /// The templates of a method.
    fn groups_of(&self, method: &http::Method) -> impl Iterator<Item = (usize, &Template, &Group)> {
        let tries = self.methods.iter().filter(move |(known, _)| known == method);
        let mut positions: Vec<usize> = tries.flat_map(|(_, trie)| trie.groups()).collect();
        positions.sort_unstable();
        positions.dedup();
        positions.into_iter().filter_map(|position| {
            let (template, group) = self.groups.get(position)?;
            Some((position, template.as_ref()?, group))
        })
    }

    /// Whether a template has a more severe one beside it; if the search is broken off, it has.
    fn has_severer(
        &self,
        method: &http::Method,
        (position, template, group): (usize, &Template, &Group),
        budget: &mut usize,
    ) -> bool {
        let wide = folded_template(template, true);
        // A HEAD may be this GET, and what is declared for HEAD beside it.
        let method = if is_get(method) { &http::Method::HEAD } else { method };
        self.folded_of(method).any(|folded| {
            let mut touched = Vec::new();
            folded.trie.intersecting(&wide, &mut touched, budget);
            *budget = budget.saturating_sub(touched.len());
            *budget == 0
                || touched.into_iter().any(|other| {
                    other != position
                        && self.group(other).is_some_and(|other| group.may_be_milder(other))
                })
        })
    }

    /// What a method's calls may be if they are spelt otherwise: a HEAD asks for what a GET would do.
    fn folded_of(&self, method: &http::Method) -> impl Iterator<Item = &Folded> {
        let of_get = (*method == http::Method::HEAD).then_some(&http::Method::GET);
        let known = self.folded.iter();
        known
            .filter(move |(known, _)| known == method || Some(known) == of_get)
            .map(|(_, folded)| folded)
    }

    /// Adds what a lenient upstream may take the path for, if it is more severe than what is declared for
    /// the path as it is: one that takes `/x/ADMIN` for `/x/admin` would run that. What is declared for
    /// this very spelling, or for less of it, is not taken for something else.
    fn with_folded<'a>(&'a self, found: Found<'a>, method: &http::Method, path: &str) -> Found<'a> {
        if found.groups().iter().all(|group| group.near_severer.is_none()) {
            return found;
        }
        let path = folded(path);
        let own: Vec<&Template> = found
            .groups()
            .iter()
            .filter_map(|group| group.near_severer.as_ref())
            .filter(|template| template.matches(&path).is_some())
            .collect();
        let mut severer = Vec::new();
        for folded in self.folded_of(method) {
            for (position, template) in folded.find(&path) {
                let is_beaten = own.iter().any(|own| {
                    matches!(own.specificity(template), Specificity::More | Specificity::Same)
                });
                let Some(other) = self.group(position) else { continue };
                let is_severer = found.groups().iter().any(|group| group.may_be_milder(other));
                if !is_beaten && is_severer {
                    severer.push(other);
                }
            }
        }
        if severer.is_empty() { found } else { join(found, Found::Several(severer), false) }
    }

    fn find_method(&self, method: &http::Method, path: &str) -> Found<'_> {
        let Some((_, trie)) = self.methods.iter().find(|(known, _)| known == method) else {
            return Found::None;
        };
        let mut matches = Matches::default();
        trie.find(path, &mut matches);
        matches.retain(|group| {
            self.template(group).is_some_and(|template| template.matches(path).is_some())
        });
        self.most_specific(&matches)
    }

    fn most_specific(&self, matches: &Matches) -> Found<'_> {
        let is_beaten = |group: usize| {
            matches.iter().any(|other| {
                other.0 != group
                    && match (self.template(other.0), self.template(group)) {
                        (Some(other), Some(own)) => other.specificity(own) == Specificity::More,
                        (_, _) => false,
                    }
            })
        };
        let is_only = matches.len() == 1;
        let mut kept = matches.iter().map(|(group, _)| group).filter(|g| is_only || !is_beaten(*g));
        let (first, second) = (kept.next(), kept.next());
        let group = |position: usize| self.groups.get(position).map(|(_, group)| group);
        match (first.and_then(group), second) {
            (None, _) => Found::None,
            (Some(only), None) => Found::One(only),
            (Some(first), Some(second)) => {
                let mut groups = vec![first];
                groups.extend(group(second));
                groups.extend(kept.filter_map(group));
                Found::Several(groups)
            }
        }
    }

    fn template(&self, group: usize) -> Option<&Template> {
        self.groups.get(group).and_then(|(template, _)| template.as_ref())
    }

    /// The most severe class, and the strictest level, of what is declared for this method and is not
    /// only read, that this path would be to a lenient upstream.
    pub(super) fn folds_onto_write(
        &self,
        method: &http::Method,
        path: &str,
    ) -> Option<(Class, Level)> {
        let mut folds = self.folded_of(method).peekable();
        folds.peek()?;
        let path = folded(path);
        // To some upstreams a rest may be empty.
        let below = format!("{}/_", path.trim_end_matches('/'));
        let depth = below.matches('/').count();
        let is_empty_rest = |position: &usize| {
            let parts = self.template(*position).map(Template::parts).unwrap_or_default();
            parts.len() == depth && matches!(parts.last(), Some(Part::Rest { .. }))
        };
        folds
            .flat_map(|folded| {
                let of_rest = folded.find(&below).into_iter().map(|(position, _)| position);
                let found = folded.find(&path).into_iter().map(|(position, _)| position);
                found.chain(of_rest.filter(is_empty_rest)).collect::<Vec<_>>()
            })
            .filter_map(|position| Some(self.group(position)?.worst()))
            .filter(|(class, _)| class.is_write())
            .reduce(|(class, level), (other, stricter)| (class.max(other), level.max(stricter)))
    }

    /// Pairs of templates of one method that take a common path and of which neither is more
    /// specific, each pair once, as positions of a first operation of each; and whether the search
    /// was broken off.
    pub(super) fn overlaps(&self) -> (Vec<(usize, usize)>, bool) {
        let mut budget = MAX_STEPS;
        let mut pairs = Vec::new();
        for (_, trie) in &self.methods {
            for own in trie.groups() {
                if budget == 0 || pairs.len() >= MAX_PAIRS {
                    return (pairs, true);
                }
                let Some(template) = self.template(own) else { continue };
                let mut touched = Vec::new();
                trie.intersecting(template, &mut touched, &mut budget);
                budget = budget.saturating_sub(touched.len());
                for other in touched {
                    let is_later = other > own;
                    let is_equal = self.template(other).is_some_and(|other| {
                        matches!(
                            template.specificity(other),
                            Specificity::Same | Specificity::Incomparable
                        )
                    });
                    if is_later && is_equal {
                        pairs.push((own, other));
                    }
                }
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        (pairs, budget == 0)
    }

    /// A group of a target that has more than so many others, if there is one: templates that take
    /// the same paths, or variants of one.
    pub(super) fn crowded(&self, most: usize) -> Option<&Group> {
        let tries = self.methods.iter().map(|(_, trie)| trie);
        let same = tries
            .flat_map(|trie| &trie.nodes)
            .find_map(|node| node.ends.get(most).or_else(|| node.rests.get(most)));
        let variants = self.all_groups().find(|group| group.operations.len() > most);
        same.and_then(|group| self.group(*group)).or(variants)
    }

    /// A group by position.
    pub(super) fn group(&self, position: usize) -> Option<&Group> {
        self.groups.get(position).map(|(_, group)| group)
    }

    /// Every group.
    pub(super) fn all_groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().map(|(_, group)| group).chain(self.tools.values())
    }
}

/// Groups that match, and whether that is only likely; few enough to need no memory of their own.
#[derive(Debug, Default)]
struct Matches {
    first: [(usize, bool); 8],
    len: usize,
    more: Vec<(usize, bool)>,
}

impl Matches {
    fn push(&mut self, group: usize, is_likely: bool) {
        match self.first.get_mut(self.len) {
            Some(slot) => *slot = (group, is_likely),
            None => self.more.push((group, is_likely)),
        }
        self.len = self.len.saturating_add(1);
    }

    fn len(&self) -> usize {
        self.len
    }

    fn iter(&self) -> impl Iterator<Item = (usize, bool)> {
        self.first.iter().take(self.len).chain(&self.more).copied()
    }

    /// Keeps those that are certain, and the likely ones that hold.
    fn retain(&mut self, holds: impl Fn(usize) -> bool) {
        if self.iter().all(|(_, is_likely)| !is_likely) {
            return;
        }
        let mut kept = Self::default();
        for (group, is_likely) in self.iter() {
            if !is_likely || holds(group) {
                kept.push(group, false);
            }
        }
        *self = kept;
    }
}

/// A trie of segments; nodes by position, the root first.
#[derive(Debug)]
struct Trie {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    /// Children by fixed text, normalised.
    literals: HashMap<Box<str>, usize, BuildHasherDefault<Short>>,
    /// Children by parameters with text beside them: prefix, suffix.
    texts: Vec<(Box<str>, Box<str>, usize)>,
    /// The same, to be found by that text as one would write it, while the trie is made.
    by_text: HashMap<Box<str>, usize>,
    /// The child for a bare parameter.
    bare: Option<usize>,
    /// Groups of templates whose rest starts here.
    rests: Vec<usize>,
    /// Groups of templates that end here.
    ends: Vec<usize>,
}

/// Hashes segments, which are short (FNV-1a). The keys are the policy's own, so nobody who calls can
/// make them collide, and the library's hash against that would cost more than the rest of the walk.
#[derive(Debug)]
struct Short(u64);

impl Default for Short {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Short {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl Default for Trie {
    fn default() -> Self {
        Self { nodes: vec![Node::default()] }
    }
}

impl Trie {
    /// The list of groups for this template, making the way to it.
    fn ends_of(&mut self, template: &Template) -> &mut Vec<usize> {
        let mut at = 0_usize;
        let mut is_rest = false;
        for part in template.parts() {
            let fresh = self.nodes.len();
            let Some(node) = self.nodes.get_mut(at) else { break };
            let next = match part {
                Part::Rest { .. } => {
                    is_rest = true;
                    break;
                }
                Part::Literal(text) => *node.literals.entry(normal(text).into()).or_insert(fresh),
                Part::Parameter { prefix, suffix, .. }
                    if prefix.is_empty() && suffix.is_empty() =>
                {
                    *node.bare.get_or_insert(fresh)
                }
                Part::Parameter { prefix, suffix, .. } => {
                    let (prefix, suffix) = (normal(prefix), normal(suffix));
                    // No text beside a parameter has a brace.
                    let written = format!("{prefix}{{}}{suffix}");
                    *node.by_text.entry(written.into()).or_insert_with(|| {
                        node.texts.push((prefix.into(), suffix.into(), fresh));
                        fresh
                    })
                }
            };
            if next == fresh {
                self.nodes.push(Node::default());
            }
            at = next;
        }
        // `at` is the root or a child that was found or made above.
        if self.nodes.len() <= at {
            at = 0;
        }
        let node = &mut self.nodes;
        match node.get_mut(at) {
            Some(node) if is_rest => &mut node.rests,
            Some(node) => &mut node.ends,
            None => unreachable!("a trie has a root"),
        }
    }

    fn find(&self, path: &str, matches: &mut Matches) {
        if let (Some(root), Some(rest)) = (self.nodes.first(), path.strip_prefix('/')) {
            self.walk(root, Some(rest), false, matches);
        }
    }

    /// `is_likely`: a parameter's text was compared on the normal form, in which an encoded
    /// character is three; the template itself has to be asked.
    fn walk(&self, node: &Node, rest: Option<&str>, is_likely: bool, matches: &mut Matches) {
        let Some(rest) = rest else {
            for group in &node.ends {
                matches.push(*group, is_likely);
            }
            return;
        };
        if !rest.is_empty() && !rest.starts_with('/') {
            for group in &node.rests {
                matches.push(*group, is_likely);
            }
        }
        // By bytes: the library's search sets itself up for texts longer than a segment.
        let (segment, following) = match rest.bytes().position(|byte| byte == b'/') {
            Some(end) => (rest.get(..end).unwrap_or_default(), rest.get(end.saturating_add(1)..)),
            None => (rest, None),
        };
        let has_encoded = segment.bytes().any(|byte| byte == b'%');
        let segment = if has_encoded { normal(segment) } else { Cow::Borrowed(segment) };
        let child = |position: usize| self.nodes.get(position);
        if let Some(node) = node.literals.get(&*segment).and_then(|at| child(*at)) {
            self.walk(node, following, is_likely, matches);
        }
        if segment.is_empty() {
            return;
        }
        for (prefix, suffix, at) in &node.texts {
            let is_long = segment.len() > prefix.len().saturating_add(suffix.len());
            if is_long
                && segment.starts_with(&**prefix)
                && segment.ends_with(&**suffix)
                && let Some(node) = child(*at)
            {
                self.walk(node, following, is_likely || has_encoded, matches);
            }
        }
        if let Some(node) = node.bare.and_then(child) {
            self.walk(node, following, is_likely, matches);
        }
    }

    /// Every group.
    fn groups(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().flat_map(|node| node.ends.iter().chain(&node.rests).copied())
    }

    /// The groups whose templates take a path that this one takes too.
    fn intersecting(&self, template: &Template, found: &mut Vec<usize>, budget: &mut usize) {
        if let Some(root) = self.nodes.first() {
            self.meet(root, template.parts(), found, budget);
        }
    }

    fn meet(&self, node: &Node, parts: &[Part], found: &mut Vec<usize>, budget: &mut usize) {
        *budget = budget.saturating_sub(1);
        if *budget == 0 {
            return;
        }
        let Some((part, following)) = parts.split_first() else {
            found.extend(&node.ends);
            return;
        };
        let is_empty_literal = matches!(part, Part::Literal(text) if text.is_empty());
        if !is_empty_literal {
            found.extend(&node.rests);
        }
        let literals = node.literals.iter().map(|(text, at)| (&**text, *at));
        let parameters = node
            .texts
            .iter()
            .map(|(prefix, suffix, at)| ((&**prefix, &**suffix), *at))
            .chain(node.bare.map(|at| (("", ""), at)));
        // What is compared counts as what is visited does: a node may have very many children.
        let compared = match part {
            Part::Literal(_) => node.texts.len(),
            Part::Parameter { .. } | Part::Rest { .. } => {
                node.texts.len().saturating_add(node.literals.len())
            }
        };
        *budget = budget.saturating_sub(compared);
        match part {
            Part::Literal(text) => {
                let text = normal(text);
                if let Some(node) = node.literals.get(&*text).and_then(|at| self.nodes.get(*at)) {
                    self.meet(node, following, found, budget);
                }
                for ((prefix, suffix), at) in parameters {
                    if !text.is_empty()
                        && is_between(&text, prefix, suffix)
                        && let Some(node) = self.nodes.get(at)
                    {
                        self.meet(node, following, found, budget);
                    }
                }
            }
            Part::Parameter { prefix, suffix, .. } => {
                let (prefix, suffix) = (normal(prefix), normal(suffix));
                let literals = literals
                    .filter(|(text, _)| !text.is_empty() && is_between(text, &prefix, &suffix));
                let parameters = parameters.filter(|((before, after), _)| {
                    (before.starts_with(&*prefix) || prefix.starts_with(before))
                        && (after.ends_with(&*suffix) || suffix.ends_with(after))
                });
                for at in literals.map(|(_, at)| at).chain(parameters.map(|(_, at)| at)) {
                    if let Some(node) = self.nodes.get(at) {
                        self.meet(node, following, found, budget);
                    }
                }
            }
            Part::Rest { .. } => {
                for at in literals.map(|(_, at)| at).chain(parameters.map(|(_, at)| at)) {
                    if let Some(node) = self.nodes.get(at) {
                        self.below(node, found, budget);
                    }
                }
            }
        }
    }

    fn below(&self, node: &Node, found: &mut Vec<usize>, budget: &mut usize) {
        *budget = budget.saturating_sub(1);
        if *budget == 0 {
            return;
        }
        found.extend(&node.ends);
        found.extend(&node.rests);
        let children =
            node.literals.values().chain(node.texts.iter().map(|(_, _, at)| at)).chain(&node.bare);
        for at in children {
            if let Some(node) = self.nodes.get(*at) {
                self.below(node, found, budget);
            }
        }
    }
}

fn is_between(text: &str, prefix: &str, suffix: &str) -> bool {
    text.len() > prefix.len().saturating_add(suffix.len())
        && text.starts_with(prefix)
        && text.ends_with(suffix)
}

#[cfg(test)]
mod tests;
