//! Operations that stand in each other's way: two that no rule separates, one that another always
//! beats, and a wildcard read over paths that open another protocol.

use std::collections::HashMap;
use std::sync::Arc;

use crate::contract::assertion::equal;
use crate::contract::class::Class;
use crate::contract::json::Doc;
use crate::contract::operation::{Condition, Operation, Target, Test};
use crate::contract::path::Path;
use crate::contract::template::{Part, Specificity, Template};

use super::Served;
use super::check;
use super::diagnostic::{At, Findings, Source};
use super::file::Declared;
use super::reading::Reading;
use super::route::{Group, Router};
use super::tree::Span;

/// The most variants of one target.
const MAX_VARIANTS: usize = 256;

/// The most literals that are held against each other for all variants together; each takes some tens
/// of nanoseconds. Variants that one would write take a few thousand.
const MAX_COMPARED: usize = 2_000_000;

/// The most paths with upgrades that are held against wildcards.
const MAX_UPGRADES: usize = 1_000;

/// Everything that was compiled.
pub(super) struct Whole<'a> {
    pub(super) sources: &'a [Source],
    pub(super) declared: &'a [Declared<'a>],
    pub(super) router: &'a Router,
    pub(super) operations: &'a [Arc<Served>],
}

impl<'a> Whole<'a> {
    pub(super) fn by_id(&self) -> HashMap<&'a str, &'a Declared<'a>> {
        self.declared.iter().map(|declared| (declared.id.as_str(), declared)).collect()
    }
}

/// Finds what no rule separates (variants of one target, templates of equal rank), and what another
/// operation always beats.
pub(super) fn check(findings: &mut Findings, all: &Whole<'_>) {
    let Whole { sources, router, operations, .. } = *all;
    let mut tell = Teller { findings, sources, by_id: all.by_id() };
    let mut budget = MAX_COMPARED;
    for group in router.all_groups().filter(|group| group.operations.len() <= MAX_VARIANTS) {
        variants(group, &mut budget, &mut tell);
        plain_form(group, &mut tell);
    }
    let (pairs, is_broken_off) = router.overlaps();
    let is_broken_off = is_broken_off || budget == 0;
    for (first, second) in pairs {
        let first = router.group(first).and_then(|group| group.operations.first());
        let second = router.group(second).and_then(|group| group.operations.first());
        if let (Some(first), Some(second)) = (first, second) {
            let (earlier, later) =
                if first.index < second.index { (first, second) } else { (second, first) };
            let is_same = specificity(&earlier.operation, &later.operation) == Specificity::Same;
            match is_same.then(|| beaten(earlier, later)).flatten() {
                Some((loser, winner)) => tell.unreachable(loser, winner),
                None => tell.overlap(earlier, later, Shared::Paths),
            }
        }
    }
    let crowded = router.crowded(MAX_VARIANTS).and_then(|group| group.operations.last());
    if let Some((mut reading, span)) = crowded.and_then(|served| tell.at(served)) {
        reading
            .error("policy/too_many_variants", span, "over 256 variants")
            .help("one target is at most 256 operations");
    }
    let first = operations.first().filter(|_| is_broken_off);
    if let Some((mut reading, _)) = first.and_then(|served| tell.at(served)) {
        reading
            .info(
                "policy/overlap_unchecked",
                Span::default(),
                "too many templates or values to compare them all",
            )
            .help(
                "overlaps may be missing from this list; at run time they are decided all the same",
            );
    }
}

/// What two operations have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shared {
    /// Some paths.
    Paths,
    /// The target.
    Target,
}

/// Writes findings about served operations.
struct Teller<'f, 'a> {
    findings: &'f mut Findings,
    sources: &'a [Source],
    by_id: HashMap<&'a str, &'a Declared<'a>>,
}

impl Teller<'_, '_> {
    /// Where findings about one go, and its `match`.
    fn at(&mut self, served: &Served) -> Option<(Reading<'_>, Span)> {
        let own = self.by_id.get(served.operation.id.as_str()).copied()?;
        let at = check::at(self.sources, own)?;
        Some((Reading { findings: self.findings, at }, own.match_span))
    }

    fn overlap(&mut self, earlier: &Served, later: &Served, shared: Shared) {
        let other = earlier.operation.id.clone();
        let (left, right) = (&earlier.operation, &later.operation);
        let is_harmless = match shared {
            Shared::Paths => is_gated_alike(left, right),
            Shared::Target => is_gated_alike(left, right) && is_undone_alike(left, right),
        };
        let Some((mut reading, span)) = self.at(later) else { return };
        let (message, help) = match shared {
            Shared::Target => (
                format!("no condition separates this from `{other}`"),
                "a call that satisfies both takes the more severe class; add a condition",
            ),
            Shared::Paths => (
                format!("some paths are this and `{other}` alike"),
                "such a call takes the more severe class; make one template more specific",
            ),
        };
        if is_harmless {
            reading.info("policy/overlap", span, message).help(help);
        } else {
            reading.warning("policy/overlap", span, message).help(help);
        }
    }

    fn plain_is_milder(&mut self, plain: &Served, variant: &Served, condition: &Condition) {
        let other = variant.operation.id.clone();
        let message = format!("a call that is not quite `{other}` is this, which is milder");
        let help = match condition.test {
            Test::Absent => format!(
                "`{}` with any value is this; give the milder operation the conditions, and this the \
                 severe terms",
                condition.path
            ),
            Test::Equals(_) | Test::Exists | Test::OneOf(_) => format!(
                "another value of `{0}` is this; add a variant as severe with `{0}: {{ exists: true }}`, \
                 or give the conditions to the milder one",
                condition.path
            ),
        };
        let Some((mut reading, span)) = self.at(plain) else { return };
        reading.warning("policy/plain_form_milder", span, message).help(help);
    }

    fn unreachable(&mut self, loser: &Served, winner: &Served) {
        let other = winner.operation.id.clone();
        let Some((mut reading, span)) = self.at(loser) else { return };
        reading
            .warning(
                "policy/unreachable",
                span,
                format!("every call that this matches is `{other}`"),
            )
            .help("remove one of the two, or add a condition");
    }

    fn contradictory(&mut self, served: &Served) {
        let Some((mut reading, span)) = self.at(served) else { return };
        reading
            .warning("policy/unreachable", span, "no call satisfies all of these conditions")
            .help("remove one of them");
    }
}

/// Whether the two ask for the same before they are sent. Paths that are two templates alike mostly
/// exist on paper only (an id that is spelt like a fixed part), so that this is all that counts there.
fn is_gated_alike(left: &Operation, right: &Operation) -> bool {
    (left.class, left.confirm, left.mode) == (right.class, right.confirm, right.mode)
}

/// Whether neither has a key or a call of its own to follow, which the other's call could get.
fn is_undone_alike(left: &Operation, right: &Operation) -> bool {
    let has_follow_up = |operation: &Operation| {
        operation.inverse.is_some()
            || operation.compensate.is_some()
            || operation.lookup.is_some()
            || operation.draft.is_some()
    };
    left.carrier.place == right.carrier.place && !has_follow_up(left) && !has_follow_up(right)
}

/// How many literals the conditions hold, and at least how many they are.
fn literals(operation: &Operation) -> usize {
    let of = |condition: &Condition| match &condition.test {
        Test::Absent | Test::Equals(_) | Test::Exists => 1,
        Test::OneOf(literals) => literals.len().max(1),
    };
    operation.conditions.iter().map(of).sum()
}

fn variants(group: &Group, budget: &mut usize, tell: &mut Teller<'_, '_>) {
    for (position, later) in group.operations.iter().enumerate() {
        if is_contradictory(&later.operation.conditions) {
            tell.contradictory(later);
            continue;
        }
        for earlier in group.operations.iter().take(position) {
            let cost = literals(&later.operation).saturating_mul(literals(&earlier.operation));
            *budget = budget.saturating_sub(cost);
            if *budget == 0 {
                return;
            }
            if let Some((loser, winner)) = beaten(earlier, later) {
                tell.unreachable(loser, winner);
                break;
            }
            let is_equal_rank =
                earlier.operation.conditions.len() == later.operation.conditions.len();
            if is_equal_rank && !is_separate(&earlier.operation, &later.operation) {
                tell.overlap(earlier, later, Shared::Target);
                break;
            }
        }
    }
}

/// Tells of the form without conditions if it is milder than a variant whose condition asks for a value:
/// one that the upstream reads as that value, and we do not, is served as the milder. A variant that is as
/// severe, and takes whatever is at the same places, leaves the plain form none of those calls.
fn plain_form(group: &Group, tell: &mut Teller<'_, '_>) {
    let plain = group.operations.iter().filter(|served| served.operation.conditions.is_empty());
    let rank = |served: &&Arc<Served>| (served.operation.class, served.operation.confirm);
    // Of two plain forms the more severe stands, and the earlier of equals.
    let Some(plain) = plain.rev().max_by_key(rank) else { return };
    let is_milder = |left: &Operation, right: &Operation| {
        left.class < right.class || left.confirm < right.confirm
    };
    for variant in &group.operations {
        let own = &variant.operation;
        let asks = own.conditions.iter().find(|own| !matches!(own.test, Test::Exists));
        let Some(condition) = asks else { continue };
        let is_taken = group.operations.iter().any(|other| {
            let other = &other.operation;
            let is_wider = other.conditions.iter().all(|other| {
                matches!(other.test, Test::Exists)
                    && own.conditions.iter().any(|own| own.path == other.path)
            });
            !other.conditions.is_empty() && is_wider && !is_milder(other, own)
        });
        let is_possible = !is_contradictory(&own.conditions);
        if is_milder(&plain.operation, own) && !is_taken && is_possible {
            tell.plain_is_milder(plain, variant, condition);
            return;
        }
    }
}

/// Which of two operations of one target never stands because the other always does.
fn beaten<'s>(earlier: &'s Served, later: &'s Served) -> Option<(&'s Served, &'s Served)> {
    let rank = |served: &Served| {
        let operation = &served.operation;
        (operation.conditions.len(), operation.class, operation.confirm)
    };
    let (loser, winner) =
        if rank(later) > rank(earlier) { (earlier, later) } else { (later, earlier) };
    let (loses, wins) = (&loser.operation.conditions, &winner.operation.conditions);
    let is_always = wins.iter().all(|wanted| loses.iter().any(|given| is_implied(given, wanted)));
    (is_always && !is_contradictory(wins)).then_some((loser, winner))
}

/// Whether whatever satisfies the one condition satisfies the other.
pub(super) fn is_implied(given: &Condition, wanted: &Condition) -> bool {
    let is_among = |literal: &Doc, literals: &[Arc<Doc>]| {
        literals.iter().any(|other| equal(literal.root(), other.root()))
    };
    given.path == wanted.path
        && match (&given.test, &wanted.test) {
            (Test::Absent, Test::Absent)
            | (Test::Equals(_) | Test::Exists | Test::OneOf(_), Test::Exists) => true,
            (Test::Equals(given), Test::Equals(wanted)) => equal(given.root(), wanted.root()),
            (Test::Equals(given), Test::OneOf(wanted)) => is_among(given, wanted),
            (Test::OneOf(given), Test::OneOf(wanted)) => {
                given.iter().all(|given| is_among(given, wanted))
            }
            (Test::OneOf(given), Test::Equals(wanted)) => {
                given.iter().all(|given| equal(given.root(), wanted.root()))
            }
            (Test::Absent, _) | (_, Test::Absent) | (Test::Exists, _) => false,
        }
}

/// Whether no request satisfies all of them.
fn is_contradictory(conditions: &[Condition]) -> bool {
    conditions.iter().enumerate().any(|(position, left)| {
        conditions.iter().skip(position.saturating_add(1)).any(|right| {
            (left.path == right.path && excludes(&left.test, &right.test))
                || is_inside_nothing(left, right)
                || is_inside_nothing(right, left)
        })
    })
}

/// Something is asked of a part of what must not be there.
fn is_inside_nothing(outer: &Condition, inner: &Condition) -> bool {
    let starts = |path: &Path, with: &Path| {
        path.root == with.root
            && path.segments.len() > with.segments.len()
            && path.segments.starts_with(&with.segments)
    };
    matches!(outer.test, Test::Absent)
        && !matches!(inner.test, Test::Absent)
        && starts(&inner.path, &outer.path)
}

/// Whether no request can satisfy both: they ask one path for different things.
fn is_separate(left: &Operation, right: &Operation) -> bool {
    left.conditions.iter().any(|left| {
        right
            .conditions
            .iter()
            .any(|right| left.path == right.path && excludes(&left.test, &right.test))
    })
}

fn excludes(left: &Test, right: &Test) -> bool {
    let literals = |test: &Test| match test {
        Test::Equals(literal) => Some(vec![Arc::clone(literal)]),
        Test::OneOf(literals) => Some(literals.clone()),
        Test::Absent | Test::Exists => None,
    };
    match (left, right) {
        (Test::Absent, Test::Absent) => false,
        (Test::Absent, _) | (_, Test::Absent) => true,
        (_, _) => match (literals(left), literals(right)) {
            (Some(left), Some(right)) => {
                !left.iter().any(|left| right.iter().any(|right| equal(left.root(), right.root())))
            }
            (_, _) => false,
        },
    }
}

fn specificity(left: &Operation, right: &Operation) -> Specificity {
    match (&left.target, &right.target) {
        (Target::Http { template: left, .. }, Target::Http { template: right, .. }) => {
            left.specificity(right)
        }
        (_, _) => Specificity::Incomparable,
    }
}

/// Finds reads by wildcard that take paths on which a GET opens another protocol: what is said over
/// such a connection (a shell in a pod) is no read. `more` are such paths of the catalogs.
pub(super) fn upgrades(findings: &mut Findings, all: &Whole<'_>, more: &[Template]) {
    let declared = all.declared.iter().filter(|declared| declared.opens_upgrade);
    let opened: Vec<&Template> = declared
        .filter_map(|declared| match &declared.target {
            Some(Target::Http { template, .. }) => Some(template),
            Some(Target::Tool { .. }) | None => None,
        })
        .chain(more)
        .take(MAX_UPGRADES)
        .collect();
    if opened.is_empty() {
        return;
    }
    let mut tell = Teller { findings, sources: all.sources, by_id: all.by_id() };
    for served in all.operations {
        let Target::Http { method, template } = &served.operation.target else { continue };
        let is_wildcard = template.parts().iter().any(|part| matches!(part, Part::Rest { .. }));
        if *method != http::Method::GET || served.operation.class != Class::Read || !is_wildcard {
            continue;
        }
        let taken = opened.iter().find(|opened| template.specificity(opened) == Specificity::Less);
        let Some(taken) = taken else { continue };
        let message = format!("a read of every path below takes GET {taken}, which is upgraded");
        let Some((mut reading, span)) = tell.at(served) else { continue };
        reading
            .warning("policy/upgrade_under_wildcard", span, message)
            .help("name the paths that are read; what an upgraded connection does is no read");
    }
}

/// Finds operations that may take longer than the sidecar's end waits for calls under way: their
/// writes are cut then, and unknown.
pub(super) fn beyond_grace(
    findings: &mut Findings,
    sources: &[Source],
    declared: &[Declared<'_>],
    grace: std::time::Duration,
) {
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    for own in declared {
        let Some(at) = check::at(sources, own) else { continue };
        beyond(findings, at, own, grace_ms);
    }
}

fn beyond(findings: &mut Findings, at: At<'_>, own: &Declared<'_>, grace_ms: u64) {
    let longest = own.timeout_spans.iter().filter(|(_, ms, _)| *ms > grace_ms);
    for (name, ms, span) in longest {
        let message = format!("`{name}` is {ms} ms, and the drain waits {grace_ms} ms");
        Reading { findings: &mut *findings, at }
            .warning("policy/timeout_beyond_grace", *span, message)
            .help("a write that is cut by the end is unknown; raise `drain.grace_ms` or wait less");
    }
}
