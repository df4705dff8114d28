//! Assertions: what an accepted answer must say for the effect to count as proven (EffectSpec).
//!
//! A closed language over scalars: no arithmetic, tolerance, folding or coercion. Results carry a
//! name and an outcome and never a compared value, because they go into reports, records and logs.
//!
//! | selected | `exists` | `absent` | `equals_*`, `one_of` |
//! |---|---|---|---|
//! | string, number, truth value | passed | failed | compared |
//! | `null` | missing | passed | passed by a `null` operand, else failed |
//! | nothing | missing | passed | missing |
//! | object, array, unreadable body, several header lines | invalid | invalid | invalid |

use std::sync::Arc;

use super::class::{Verdict, words};
use super::decimal::Decimal;
use super::json::{Doc, Kind, Member, Value};
use super::pointer::Pointer;
use super::selector::{Evidence, Selected, Selector};

/// One named check.
#[derive(Clone, Debug)]
pub struct Assertion {
    /// Its name; unique within its list.
    pub name: String,
    /// What must hold.
    pub check: Check,
}

/// What an assertion checks.
#[derive(Clone, Debug)]
pub enum Check {
    /// Nothing is there, or `null`.
    Absent(Selector),
    /// The value equals a literal.
    EqualsLiteral {
        /// What is read.
        actual: Selector,
        /// What it must be.
        expected: Arc<Doc>,
    },
    /// The value equals one of the request.
    EqualsRequest {
        /// What is read.
        actual: Selector,
        /// Over the request object; see [`super::path::Request::pointer`].
        expected: Pointer,
    },
    /// A value is there, and is not `null`.
    Exists(Selector),
    /// The value equals one of some literals.
    OneOf {
        /// What is read.
        actual: Selector,
        /// What it may be.
        allowed: Vec<Arc<Doc>>,
    },
}

words! {
    /// The outcome of one assertion.
    Passed {
        /// The evidence says otherwise.
        Failed = "failed",
        /// The evidence is of a form that says nothing.
        Invalid = "invalid",
        /// The evidence is not there.
        Missing = "missing",
        /// It holds.
        Passed = "passed",
    }
}

/// The outcome of a list of assertions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// Each assertion's name and outcome, in order.
    pub results: Vec<(String, Passed)>,
    /// What they say together. `Verified` means that all passed and there was at least one.
    pub verdict: Verdict,
}

/// Checks all assertions against what was observed.
///
/// Call it only for an accepted dispatch: a rejected one has no verdict, and an ambiguous one's is
/// inconclusive without looking.
pub fn evaluate(assertions: &[Assertion], evidence: &Evidence<'_>) -> Evaluation {
    let results: Vec<(String, Passed)> = assertions
        .iter()
        .map(|assertion| (assertion.name.clone(), assertion.check.evaluate(evidence)))
        .collect();
    let has = |wanted: Passed| results.iter().any(|(_, outcome)| *outcome == wanted);
    let verdict = if has(Passed::Failed) {
        Verdict::Contradicted
    } else if has(Passed::Missing) || has(Passed::Invalid) || results.is_empty() {
        Verdict::Inconclusive
    } else {
        Verdict::Verified
    };
    Evaluation { results, verdict }
}

impl Check {
    fn evaluate(&self, evidence: &Evidence<'_>) -> Passed {
        match self {
            Self::Absent(actual) => match actual.select(evidence) {
                Selected::Invalid => Passed::Invalid,
                Selected::Missing => Passed::Passed,
                Selected::Value(value) if value.is_null() => Passed::Passed,
                Selected::Status(_) | Selected::Text(_) | Selected::Value(_) => Passed::Failed,
            },
            Self::Exists(actual) => match actual.select(evidence) {
                Selected::Invalid => Passed::Invalid,
                Selected::Missing => Passed::Missing,
                Selected::Value(value) if value.is_null() => Passed::Missing,
                Selected::Status(_) | Selected::Text(_) | Selected::Value(_) => Passed::Passed,
            },
            Self::EqualsLiteral { actual, expected } => {
                compare(&actual.select(evidence), |value| value.equals(expected.root()))
            }
            Self::OneOf { actual, allowed } => compare(&actual.select(evidence), |value| {
                allowed.iter().any(|literal| value.equals(literal.root()))
            }),
            Self::EqualsRequest { actual, expected } => {
                match evidence.request.pointer(expected).filter(|operand| operand.is_scalar()) {
                    Some(operand) => {
                        compare(&actual.select(evidence), |value| value.equals(operand))
                    }
                    None => Passed::Invalid,
                }
            }
        }
    }
}

fn compare(selected: &Selected<'_>, is_equal: impl FnOnce(&Selected<'_>) -> bool) -> Passed {
    match selected {
        Selected::Invalid => Passed::Invalid,
        Selected::Missing => Passed::Missing,
        Selected::Status(_) | Selected::Text(_) | Selected::Value(_) => {
            if is_equal(selected) {
                Passed::Passed
            } else {
                Passed::Failed
            }
        }
    }
}

impl Selected<'_> {
    /// Whether this scalar equals an operand. A composite operand equals nothing.
    fn equals(&self, operand: Value<'_>) -> bool {
        match self {
            Selected::Invalid | Selected::Missing => false,
            Selected::Status(status) => operand
                .as_number()
                .is_some_and(|number| Decimal::of(&status.to_string()) == Decimal::of(number)),
            Selected::Text(text) => operand.as_str().is_some_and(|operand| operand == *text),
            Selected::Value(value) => equal(*value, operand),
        }
    }
}

/// Whether two values are equal: the same type, strings by code points, numbers by exact decimal
/// value, arrays in order, objects whatever the order of their members.
pub fn equal(left: Value<'_>, right: Value<'_>) -> bool {
    if left.kind() != right.kind() {
        return false;
    }
    match left.kind() {
        Kind::Null => true,
        Kind::Bool => left.raw() == right.raw(),
        Kind::Number => Decimal::of(left.raw()) == Decimal::of(right.raw()),
        Kind::String => left.as_str() == right.as_str(),
        Kind::Array => {
            let (mut lefts, mut rights) = (left.elements(), right.elements());
            loop {
                match (lefts.next(), rights.next()) {
                    (Some(left), Some(right)) if equal(left, right) => {}
                    (None, None) => return true,
                    (Some(_), _) | (None, Some(_)) => return false,
                }
            }
        }
        Kind::Object => {
            let (lefts, rights) = (sorted(left), sorted(right));
            lefts.len() == rights.len()
                && lefts.iter().zip(&rights).all(|(left, right)| {
                    left.name() == right.name() && equal(left.value, right.value)
                })
        }
    }
}

/// Sorted, so that two objects with very many members are not compared member by member squared.
fn sorted(object: Value<'_>) -> Vec<Member<'_>> {
    let mut members: Vec<Member<'_>> = object.members().collect();
    members.sort_by(|left, right| left.name().cmp(&right.name()));
    members
}
