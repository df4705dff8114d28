//! Assertions, as files write them: EffectSpec's closed language, in the three places that have it.

use std::collections::HashSet;
use std::sync::Arc;

use crate::contract::assertion::{Assertion, Check};
use crate::contract::json::{Doc, Value};
use crate::contract::selector::Selector;

use super::reading::Reading;
use super::selectors::{pointer, selector};
use super::tree::{Node, Span};

/// The most assertions in one binding or stage.
const MAX_ASSERTIONS: usize = 32;
/// The longest assertion name, in characters.
const MAX_NAME: usize = 256;
/// The most values that `one_of` allows.
const MAX_ALLOWED: usize = 32;
/// The longest literal as compact JSON, in bytes; ours, the source gives no number.
const MAX_LITERAL: usize = 4096;
/// The deepest literal; ours, the source gives no number.
const MAX_LITERAL_DEPTH: usize = 8;

/// Where a list of assertions stands, which decides what they may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A response binding: four variants.
    Binding,
    /// A lookup's `match`: all five, over the lookup's answer. The request is gone then.
    Lookup,
    /// `rejected_if`: all five, over the answer at hand.
    Own,
    /// A plan's stage: five variants, with rules.
    Stage { is_immediate: bool, is_delete: bool },
}

pub(super) fn assertions(reading: &mut Reading<'_>, node: &Node, form: Form) -> Vec<Assertion> {
    let Some(elements) = reading.sequence(node, "`assertions`") else { return Vec::new() };
    if let Some(first_over) = elements.get(MAX_ASSERTIONS) {
        let message = format!("{} assertions in one list", elements.len());
        reading
            .error("spec/too_many_assertions", first_over.span, message)
            .help("at most 32; assert what proves the effect");
    }
    let mut names = HashSet::new();
    let mut all = Vec::new();
    for element in elements.iter().take(MAX_ASSERTIONS) {
        if let Some(assertion) = assertion(reading, element, form, &mut names) {
            all.push(assertion);
        }
    }
    if !all.is_empty()
        && !matches!(form, Form::Lookup | Form::Own)
        && all.iter().all(|assertion| *actual(&assertion.check) == Selector::HttpStatus)
    {
        reading
            .warning("spec/tautology", node.span, "every assertion only repeats the status")
            .help("assert something of the answer, or say why not with `no_evidence`");
    }
    all
}

fn actual(check: &Check) -> &Selector {
    match check {
        Check::Absent(actual)
        | Check::Exists(actual)
        | Check::EqualsLiteral { actual, .. }
        | Check::EqualsRequest { actual, .. }
        | Check::OneOf { actual, .. } => actual,
    }
}

fn assertion<'t>(
    reading: &mut Reading<'_>,
    node: &'t Node,
    form: Form,
    names: &mut HashSet<&'t str>,
) -> Option<Assertion> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Type {
        Absent,
        EqualsLiteral,
        EqualsRequest,
        Exists,
        OneOf,
    }
    let what = "an assertion";
    let fields = reading.mapping(node, what)?;
    let type_node = fields.require(reading, "type")?;
    let mut words = vec![
        ("exists", Type::Exists),
        ("equals_request", Type::EqualsRequest),
        ("equals_literal", Type::EqualsLiteral),
        ("one_of", Type::OneOf),
    ];
    if form != Form::Binding {
        words.push(("absent", Type::Absent));
    }
    let kind = reading.word(type_node, "assertion here", &words)?;
    let own: &[&'static str] = match kind {
        Type::Absent | Type::Exists => &["type", "name", "actual"],
        Type::EqualsLiteral => &["type", "name", "actual", "expected"],
        Type::EqualsRequest => &["type", "name", "actual", "expected_request"],
        Type::OneOf => &["type", "name", "actual", "allowed"],
    };
    reading.fields(node, what, own)?;
    let name = fields.require(reading, "name").and_then(|node| {
        let name = reading.text(node, "`name`")?;
        if name.is_empty() {
            reading
                .error("spec/empty_assertion_name", node.span, "an assertion without a name")
                .help("results carry the name and nothing else; give it one");
        } else if name.chars().count() > MAX_NAME {
            reading
                .error("spec/assertion_name_too_long", node.span, "a name over 256 characters")
                .help("give it a short name");
        } else if !names.insert(name) {
            let message = format!("a second assertion is named `{name}`");
            reading
                .error("spec/duplicate_assertion_name", node.span, message)
                .help("names are unique within one list");
        }
        Some((name, node.span))
    });
    let actual =
        fields.require(reading, "actual").and_then(|node| selector(reading, node, "`actual`"));
    let check = match kind {
        Type::Absent => actual.map(Check::Absent),
        Type::Exists => actual.map(Check::Exists),
        Type::EqualsLiteral => {
            let expected =
                fields.require(reading, "expected").and_then(|node| literal(reading, node));
            actual.zip(expected).map(|(actual, expected)| Check::EqualsLiteral { actual, expected })
        }
        Type::EqualsRequest => {
            let expected = fields
                .require(reading, "expected_request")
                .and_then(|node| pointer(reading, node, "`expected_request`"));
            actual.zip(expected).map(|(actual, expected)| Check::EqualsRequest { actual, expected })
        }
        Type::OneOf => {
            let allowed =
                fields.require(reading, "allowed").and_then(|node| allowed(reading, node));
            actual.zip(allowed).map(|(actual, allowed)| Check::OneOf { actual, allowed })
        }
    };
    let (name, span) = name?;
    let check = check?;
    match form {
        Form::Stage { is_immediate, is_delete } => {
            placement(reading, &check, name, span, is_immediate, is_delete);
        }
        Form::Lookup => in_lookup(reading, &check, name, span),
        Form::Binding | Form::Own => {}
    }
    Some(Assertion { name: name.to_owned(), check })
}

/// What an assertion may read of a lookup's answer. A lookup may be made days later, by another
/// process: of the request no more is kept than its own arguments.
fn in_lookup(reading: &mut Reading<'_>, check: &Check, name: &str, span: Span) {
    if matches!(check, Check::EqualsRequest { .. }) {
        let message = format!("`{name}` compares with the request, which a lookup no longer has");
        reading
            .error("spec/equals_request_outside_immediate", span, message)
            .help("pass the value as an argument of the lookup, and assert what it answers");
    }
    if matches!(actual(check), Selector::RequestBody(_)) {
        let message = format!("`{name}` reads the request, which a lookup no longer has");
        reading
            .error("spec/request_selector_outside_immediate", span, message)
            .help("read the lookup's own answer");
    }
}

/// What an assertion may read in its stage.
fn placement(
    reading: &mut Reading<'_>,
    check: &Check,
    name: &str,
    span: Span,
    is_immediate: bool,
    is_delete: bool,
) {
    if !is_immediate {
        if matches!(check, Check::EqualsRequest { .. }) {
            let message = format!("`{name}` compares with the request in a later stage");
            reading
                .error("spec/equals_request_outside_immediate", span, message)
                .help("the request is no longer in memory then; compare in an immediate stage");
        }
        if matches!(actual(check), Selector::RequestBody(_)) {
            let message = format!("`{name}` reads the request in a later stage");
            reading
                .error("spec/request_selector_outside_immediate", span, message)
                .help("read the stage's own answer");
        }
    }
    if matches!(check, Check::Absent(_)) && !is_delete {
        let message = format!("`{name}` asserts absence of something that is not deleted");
        reading
            .error("spec/absent_requires_delete", span, message)
            .help("`absent` goes with `kind: delete` only");
    }
}

fn allowed(reading: &mut Reading<'_>, node: &Node) -> Option<Vec<Arc<Doc>>> {
    let elements = reading.sequence(node, "`allowed`")?;
    if elements.len() > MAX_ALLOWED {
        reading
            .error("spec/too_many_allowed_values", node.span, "over 32 allowed values")
            .help("at most 32");
    }
    if elements.is_empty() {
        reading
            .warning("spec/never_passes", node.span, "no value is allowed; this can never pass")
            .help("list the values that prove the effect");
    }
    elements.iter().take(MAX_ALLOWED).map(|element| literal(reading, element)).collect()
}

/// A literal within the bounds.
fn literal(reading: &mut Reading<'_>, node: &Node) -> Option<Arc<Doc>> {
    let doc = node.to_doc()?;
    if doc.text().len() > MAX_LITERAL || depth(doc.root()) > MAX_LITERAL_DEPTH {
        reading
            .error("spec/verification_value_out_of_bounds", node.span, "the literal is too large")
            .help("at most 4096 bytes as JSON, and 8 levels");
        return None;
    }
    if !doc.root().is_scalar() {
        reading
            .warning("spec/never_passes", node.span, "a composite literal; this can never pass")
            .help("only scalars compare; assert each member by itself");
    }
    Some(Arc::new(doc))
}

fn depth(value: Value<'_>) -> usize {
    if value.is_scalar() {
        return 0;
    }
    let elements = value.elements().map(depth).max();
    let members = value.members().map(|member| depth(member.value)).max();
    elements.max(members).unwrap_or(0).saturating_add(1)
}
