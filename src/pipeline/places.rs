//! Which places of a request an operation's rules read, and whether two readers can find two things there.
//!
//! A gateway may take a name that comes twice, or twice but for case, for the one or for the other. What
//! decides about a write, is mapped into a follow-up, or carries its key must have one reading (contract
//! section 2, Bodies).

use crate::call::refusal::Twofold;
use crate::contract::assertion::{Assertion, Check};
use crate::contract::key::Place;
use crate::contract::operation::{Argument, Condition, Mapping, Operation, Target, Verification};
use crate::contract::path::{Path, Root, Segment};
use crate::contract::plan::Stage;
use crate::contract::selector::Selector;
use crate::http::body::{BodyDoc, RequestDoc};
use crate::policy::{Elsewhere, Group};

/// A place that a rule reads: the section of an HTTP request, or `arguments`, and the names below it.
pub(super) type Read = (&'static str, Vec<String>);

/// Whether a call of a declared target may be a write: one is declared there, or each variant has
/// conditions, and a call that none of them takes is irreversible, whatever its method (contract section
/// 2, Variants).
pub(super) fn may_write(groups: &[&Group]) -> bool {
    let is_open = |group: &Group| {
        group.operations.iter().all(|served| !served.operation.conditions.is_empty())
    };
    groups.iter().any(|group| {
        group.operations.iter().any(|served| served.operation.class.is_write()) || is_open(group)
    })
}

/// Whether a condition reads what two readers resolve differently, at a target that may be a write.
pub(super) fn is_decided_by_twins(groups: &[&Group], is_twin: impl Fn(&Read) -> bool) -> bool {
    let mut operations = groups.iter().flat_map(|group| &group.operations);
    may_write(groups)
        && operations.any(|served| conditions(&served.operation).any(|read| is_twin(&read)))
}

/// As [`is_decided_by_twins`], of a plain HTTP call: a name twice, or in query and form both.
pub(super) fn decided_by_readers(groups: &[&Group], doc: &RequestDoc) -> Option<Twofold> {
    let operations = groups.iter().flat_map(|group| &group.operations);
    operations
        .filter(|_| may_write(groups))
        .flat_map(|served| conditions(&served.operation))
        .find_map(|(section, names)| {
            let twofold = doc.twofold(section, &names)?;
            let is_form = matches!(doc.body, BodyDoc::Form(..)) && section != "header";
            match twofold {
                Twofold::Twice => Some(twofold),
                Twofold::TwoPlaces => is_form.then_some(twofold),
                Twofold::Elsewhere => None,
            }
        })
}

/// Whether a condition reads what stands in two places.
pub(super) fn is_in_two_places(operation: &Operation, doc: &RequestDoc) -> bool {
    conditions(operation)
        .any(|(section, names)| doc.twofold(section, &names) == Some(Twofold::TwoPlaces))
}

/// What some reader finds for a condition elsewhere than it reads.
pub(super) fn elsewhere<'d>(
    operation: &Operation,
    condition: &Condition,
    doc: &'d RequestDoc,
) -> Elsewhere<'d> {
    match place_of(&condition.path, &operation.target) {
        Some((section, names)) => doc.elsewhere(section, &names),
        None => Elsewhere::Nowhere,
    }
}

/// How what a rule of the operation reads, other than a condition, has two readings that matter. A value
/// that stands only elsewhere, and without which the call cannot be taken back, is none: it is then asked
/// about as irreversible.
pub(super) fn twofold(operation: &Operation, doc: &RequestDoc) -> Option<Twofold> {
    others(operation).find_map(|((section, names), is_needed)| {
        let twofold = doc.twofold(section, &names)?;
        (twofold != Twofold::Elsewhere || !is_needed).then_some(twofold)
    })
}

/// Whether a rule of the operation reads a member of the body that is called `_method`, so that it is
/// the operation's own.
pub(super) fn reads_method(operation: &Operation) -> bool {
    readers(operation).any(|(section, names)| {
        section == "body" && names.first().is_some_and(|name| name.eq_ignore_ascii_case("_method"))
    })
}

/// Whether there is a member beside the carrier's place that a laxer upstream takes for the key.
pub(super) fn has_key_twin(operation: &Operation, doc: &RequestDoc) -> bool {
    match &operation.carrier.place {
        Place::BodyPointer { pointer, .. } => doc.has_twin("body", pointer.tokens()),
        Place::Query(name) => doc.has_twin("query", std::slice::from_ref(name)),
        Place::Argument(_) | Place::Header(_) | Place::Unsupported => false,
    }
}

/// The places of the request that the operation's rules read.
pub(super) fn readers(operation: &Operation) -> impl Iterator<Item = Read> + '_ {
    conditions(operation).chain(others(operation).map(|(read, _)| read))
}

/// The places that rules other than conditions read, and whether what is read there is needed for a way
/// back.
fn others(operation: &Operation) -> impl Iterator<Item = (Read, bool)> + '_ {
    let back = [&operation.inverse, &operation.compensate];
    let back = back.into_iter().flatten().flat_map(|call| &call.arguments);
    let before = operation.before.iter().flat_map(|before| &before.arguments);
    let lookups = operation.lookup.iter().flat_map(|lookup| &lookup.arguments);
    let drafts = operation.draft.iter().flat_map(|draft| &draft.arguments);
    let needed = back.chain(before).map(|argument| (argument, true));
    let arguments = needed.chain(lookups.chain(drafts).map(|argument| (argument, false)));
    let target = &operation.target;
    let mapped = arguments.filter_map(move |(argument, is_needed)| {
        let path = mapped_path(argument)?;
        Some((place_of(path, target)?, is_needed && !path.optional))
    });
    let assertions =
        assertions(operation).filter_map(|assertion| assertion_place(assertion, target));
    let carrier = match &operation.carrier.place {
        Place::BodyPointer { pointer, .. } => Some(("body", pointer.tokens().to_vec())),
        Place::Query(name) => Some(("query", vec![name.clone()])),
        Place::Argument(_) | Place::Header(_) | Place::Unsupported => None,
    };
    mapped.chain(assertions.chain(carrier).map(|read| (read, false)))
}

fn conditions(operation: &Operation) -> impl Iterator<Item = Read> + '_ {
    let paths = operation.conditions.iter().map(|condition| &condition.path);
    paths.filter_map(|path| place_of(path, &operation.target))
}

fn mapped_path(argument: &Argument) -> Option<&Path> {
    match &argument.mapping {
        Mapping::Path(path) => Some(path),
        Mapping::Const(_) => None,
    }
}

fn place_of(path: &Path, target: &Target) -> Option<Read> {
    if path.root != Root::Request {
        return None;
    }
    let name = |segment: &Segment| match segment {
        Segment::Name(name) => name.clone(),
        Segment::Index(index) => index.to_string(),
    };
    named(path.segments.iter().map(name).collect(), target)
}

/// What these names are in a request of the target. A path's parameters have one reading, or the path
/// is refused.
fn named(names: Vec<String>, target: &Target) -> Option<Read> {
    match target {
        // A tool's arguments have no sections, and may be called as those are.
        Target::Tool { .. } => Some(("arguments", names)),
        Target::Http { .. } => {
            let (section, rest) = names.split_first()?;
            let section = ["body", "header", "query"].into_iter().find(|known| known == section)?;
            Some((section, rest.to_vec()))
        }
    }
}

fn assertions(operation: &Operation) -> impl Iterator<Item = &Assertion> {
    let bound = match &operation.verification {
        Verification::ResponseBinding { assertions, .. } => assertions.as_slice(),
        Verification::None | Verification::Plan(_) => &[],
    };
    let staged: &[Stage] = match &operation.verification {
        Verification::Plan(plan) => &plan.stages,
        Verification::None | Verification::ResponseBinding { .. } => &[],
    };
    let staged = staged.iter().flat_map(|stage| &stage.assertions);
    operation.rejected_if.iter().chain(bound).chain(staged)
}

fn assertion_place(assertion: &Assertion, target: &Target) -> Option<Read> {
    let actual = match &assertion.check {
        Check::EqualsRequest { expected, .. } => {
            return named(expected.tokens().to_vec(), target);
        }
        Check::Absent(actual) | Check::Exists(actual) => actual,
        Check::EqualsLiteral { actual, .. } | Check::OneOf { actual, .. } => actual,
    };
    match actual {
        Selector::RequestBody(pointer) => Some(("body", pointer.tokens().to_vec())),
        Selector::HttpStatus
        | Selector::McpStructured(_)
        | Selector::ResponseBody(_)
        | Selector::ResponseHeader(_) => None,
    }
}
