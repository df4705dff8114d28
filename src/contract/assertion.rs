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

/// Whether a value is the other to a reader who has it as text: it is equal, has the same text, or is a
/// list of which each element is so. Neither is more than the other to such a reader.
pub fn is_alike(left: Value<'_>, right: Value<'_>) -> bool {
    let text = |value: Value<'_>| match value.kind() {
        Kind::String => value.as_str().map(|text| text.into_owned()),
        Kind::Bool | Kind::Number => Some(value.raw().to_owned()),
        Kind::Array | Kind::Null | Kind::Object => None,
    };
    let is_each = |list: Value<'_>, other: Value<'_>| {
        let mut elements = list.elements().peekable();
        elements.peek().is_some()
            && elements.all(|element| element.kind() != Kind::Array && is_alike(element, other))
    };
    equal(left, right)
        || text(left).is_some_and(|left| text(right) == Some(left))
        || (right.kind() != Kind::Array && is_each(left, right))
        || (left.kind() != Kind::Array && is_each(right, left))
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

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::path::Request;
    use super::*;

    const RESPONSE: &str = r#"{"s":"abc","n":1.0,"t":true,"f":false,"nul":null,"list":[1],
        "obj":{},"empty":"","five":"5","big":9007199254740993}"#;
    const REQUEST: &str = r#"{"s":"abc","n":1,"nul":null,"list":[1],"other":"x"}"#;

    fn body(pointer: &str) -> Selector {
        Selector::ResponseBody(Pointer::parse(pointer).unwrap())
    }

    fn literal(json: &str) -> Arc<Doc> {
        Arc::new(Doc::parse(json.to_owned()).unwrap())
    }

    fn outcome(check: Check) -> Passed {
        let response = Doc::parse(RESPONSE).unwrap();
        let request = Doc::parse(REQUEST).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-id", "5".parse().unwrap());
        headers.append("x-twice", "a".parse().unwrap());
        headers.append("x-twice", "b".parse().unwrap());
        let evidence = Evidence {
            status: 201,
            headers: &headers,
            response: Some(response.root()),
            request: Request::Arguments(request.root()),
        };
        check.evaluate(&evidence)
    }

    #[test]
    fn presence_follows_the_table() {
        use super::Passed::{Failed, Invalid, Missing, Passed};
        let cases = [
            ("/s", Passed, Failed),
            ("/empty", Passed, Failed),
            ("/n", Passed, Failed),
            ("/f", Passed, Failed),
            ("/nul", Missing, Passed),
            ("/none", Missing, Passed),
            ("/list", Invalid, Invalid),
            ("/obj", Invalid, Invalid),
            ("", Invalid, Invalid),
        ];
        for (pointer, exists, absent) in cases {
            assert_eq!(outcome(Check::Exists(body(pointer))), exists, "exists {pointer}");
            assert_eq!(outcome(Check::Absent(body(pointer))), absent, "absent {pointer}");
        }
        assert_eq!(outcome(Check::Exists(Selector::HttpStatus)), Passed);
    }

    #[test]
    fn comparison_follows_the_table() {
        use super::Passed::{Failed, Invalid, Missing, Passed};
        let header = |name| Selector::ResponseHeader(http::HeaderName::from_static(name));
        let cases = [
            (body("/s"), "\"abc\"", Passed),
            (body("/s"), "\"\\u0061bc\"", Passed),
            (body("/s"), "\"ABC\"", Failed),
            (body("/s"), "\" abc\"", Failed),
            (body("/n"), "1", Passed),
            (body("/n"), "1e0", Passed),
            (body("/n"), "\"1.0\"", Failed),
            (body("/big"), "9007199254740992", Failed),
            (body("/big"), "9007199254740993", Passed),
            (body("/five"), "5", Failed),
            (body("/t"), "true", Passed),
            (body("/t"), "\"true\"", Failed),
            (body("/t"), "1", Failed),
            (body("/nul"), "null", Passed),
            (body("/nul"), "false", Failed),
            (body("/s"), "null", Failed),
            (body("/s"), "[\"abc\"]", Failed),
            (body("/none"), "null", Missing),
            (body("/list"), "[1]", Invalid),
            (body("/obj"), "{}", Invalid),
            (Selector::HttpStatus, "201", Passed),
            (Selector::HttpStatus, "2.01e2", Passed),
            (Selector::HttpStatus, "\"201\"", Failed),
            (Selector::HttpStatus, "200", Failed),
            (header("x-id"), "\"5\"", Passed),
            (header("x-id"), "5", Failed),
            (header("x-none"), "\"5\"", Missing),
            (header("x-twice"), "\"a\"", Invalid),
        ];
        for (actual, expected, wanted) in cases {
            let check =
                Check::EqualsLiteral { actual: actual.clone(), expected: literal(expected) };
            assert_eq!(outcome(check), wanted, "{actual:?} equals {expected}");
            let allowed = vec![literal("\"no such\""), literal(expected)];
            let check = Check::OneOf { actual: actual.clone(), allowed };
            assert_eq!(outcome(check), wanted, "{actual:?} one of {expected}");
        }
        let nothing = Check::OneOf { actual: body("/s"), allowed: vec![] };
        assert_eq!(outcome(nothing), Failed);
    }

    #[test]
    fn equality_with_the_request_needs_a_scalar_there() {
        use super::Passed::{Failed, Invalid, Missing, Passed};
        let cases = [
            ("/s", "/s", Passed),
            ("/n", "/n", Passed),
            ("/s", "/other", Failed),
            ("/nul", "/nul", Passed),
            ("/s", "/nul", Failed),
            ("/s", "/none", Invalid),
            ("/s", "/list", Invalid),
            ("/none", "/none", Invalid),
            ("/none", "/s", Missing),
        ];
        for (actual, expected, wanted) in cases {
            let check = Check::EqualsRequest {
                actual: body(actual),
                expected: Pointer::parse(expected).unwrap(),
            };
            assert_eq!(outcome(check), wanted, "{actual} against {expected}");
        }
    }

    fn verdict(answer: &str, checks: Vec<Check>) -> Evaluation {
        let response = Doc::parse(answer.to_owned()).unwrap();
        let headers = HeaderMap::new();
        let evidence = Evidence {
            status: 200,
            headers: &headers,
            response: Some(response.root()),
            request: Request::Unreadable,
        };
        let named = checks.into_iter().enumerate();
        let assertions: Vec<Assertion> =
            named.map(|(n, check)| Assertion { name: format!("a{n}"), check }).collect();
        evaluate(&assertions, &evidence)
    }

    #[test]
    fn verdicts_take_the_worst_outcome() {
        let passes = || Check::Exists(body("/id"));
        let misses = || Check::Exists(body("/none"));
        let fails = || Check::Absent(body("/id"));
        let invalid = || Check::Exists(body(""));
        let cases = [
            (vec![], Verdict::Inconclusive),
            (vec![passes()], Verdict::Verified),
            (vec![passes(), misses()], Verdict::Inconclusive),
            (vec![invalid(), passes()], Verdict::Inconclusive),
            (vec![misses(), passes(), fails()], Verdict::Contradicted),
            (vec![invalid(), fails()], Verdict::Contradicted),
        ];
        for (checks, wanted) in cases {
            let names = format!("{checks:?}");
            assert_eq!(verdict("{\"id\":1}", checks).verdict, wanted, "{names}");
        }
    }

    #[test]
    fn j_1_a_success_that_says_it_failed_is_contradicted() {
        let ok = Check::EqualsLiteral { actual: body("/ok"), expected: literal("true") };

        let evaluation = verdict(r#"{"ok":false}"#, vec![ok]);

        assert_eq!(evaluation.verdict, Verdict::Contradicted);
        assert_eq!(evaluation.results, [("a0".to_owned(), Passed::Failed)]);
    }

    #[test]
    fn results_and_debug_texts_hold_no_compared_value() {
        let check = || Check::EqualsLiteral {
            actual: body("/id"),
            expected: literal("\"canary-in-policy\""),
        };

        let evaluation = verdict(r#"{"id":"canary-in-answer"}"#, vec![check()]);

        assert!(!format!("{evaluation:?} {:?}", check()).contains("canary"));
    }

    #[test]
    fn e_3_equality_is_deep_and_by_value() {
        let cases = [
            (r#"{"a":1,"b":[true,null]}"#, r#"{"b":[true,null],"a":1.0}"#, true),
            (r#"{"a":1}"#, r#"{"a":1,"b":2}"#, false),
            (r#"{"a":1,"b":2}"#, r#"{"a":1}"#, false),
            (r#"{"a":null}"#, "{}", false),
            ("[1,2]", "[2,1]", false),
            ("[1]", "[1,2]", false),
            ("[1,2]", "[1]", false),
            ("\"é\"", "\"\\u00e9\"", true),
            ("\"é\"", "\"e\\u0301\"", false),
            ("1", "true", false),
            ("0", "false", false),
            ("null", "0", false),
        ];
        for (left, right, expected) in cases {
            assert_eq!(
                equal(literal(left).root(), literal(right).root()),
                expected,
                "{left} and {right}"
            );
        }
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(|flag| json!(flag)),
            (0..3).prop_map(|number| json!(number)),
            "[ab]{0,1}".prop_map(|text| json!(text)),
        ];
        leaf.prop_recursive(3, 8, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(serde_json::Value::from),
                prop::collection::btree_map("[ab]", inner, 0..3)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn equality_agrees_with_another_reader(left in value(), right in value()) {
            let (a, b) = (literal(&left.to_string()), literal(&right.to_string()));

            prop_assert_eq!(equal(a.root(), b.root()), left == right);
            prop_assert!(equal(a.root(), a.root()));
        }
    }
}
