//! `takeback diff`: what changes between two policies, weakenings first.

use std::path::Path;

use super::Format;
use super::exit::{self, Failure};
use super::explain::load;
use super::out::{self, Cell, Colour};
use crate::admin::policy::ChangeJson;
use crate::policy::{Change, diff};

/// Compares two folders; 1 if anything differs, as `diff` itself ends.
pub(super) fn run(old: &Path, new: &Path, format: Format) -> Result<u8, Failure> {
    let trouble = |failure: Failure| Failure { code: exit::CHECK_USAGE, ..failure };
    let before = load(old).map_err(trouble)?;
    let after = load(new).map_err(trouble)?;
    let changes = diff(&before, &after);
    match format {
        Format::Json => {
            for change in &changes {
                let json = serde_json::to_string(&ChangeJson::of(change)).map_err(|error| {
                    Failure::new(exit::SOFTWARE, format!("no JSON could be written: {error}"))
                })?;
                out::print(&json)?;
            }
        }
        Format::Text if changes.is_empty() => out::complain("no change"),
        Format::Text => {
            let rows: Vec<Vec<Cell>> = changes.iter().map(row).collect();
            let names = ["", "OPERATION", "WHAT", "BEFORE", "AFTER"];
            out::print(&out::table(&names, &rows, out::is_coloured()))?;
        }
    }
    Ok(if changes.is_empty() { exit::OK } else { exit::FINDINGS })
}

fn row(change: &Change) -> Vec<Cell> {
    let Change { operation, what, calls_of, before, after, is_weaker } = change;
    let what = match calls_of {
        Some(target) => format!("{what} of {target}"),
        None => (*what).to_owned(),
    };
    let operation = operation.as_ref().map_or("undeclared calls", |id| id.as_str());
    vec![
        if *is_weaker { Cell::coloured("weaker", Colour::Red) } else { Cell::plain("") },
        Cell::plain(operation),
        Cell::plain(what),
        Cell::plain(before),
        Cell::plain(after),
    ]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue, Method, Uri, header};
    use proptest::prelude::*;
    use proptest::sample::select;
    use proptest::test_runner::RngSeed;

    use super::super::explain::decoded;
    use super::*;
    use crate::contract::class::{Class, Level};
    use crate::contract::json::Doc;
    use crate::pipeline::foresee;
    use crate::policy::{Explained, Snapshot, compile};

    const TARGETS: &[&str] = &[
        "http: \"POST /i/{id}\"",
        "http: \"POST /i/{id}:go\"",
        "http: POST /i/purge",
        "http: POST /I/purge",
        "http: \"POST /{a}/purge\"",
        "http: \"POST /{a}/x/{b}\"",
        "http: \"POST /i/{*all}\"",
        "http: \"GET /i/{id}\"",
        "http: GET /i/Purge",
        "http: GET /i/purge/",
        "http: \"GET /{a}/{b}\"",
        "http: \"HEAD /i/{id}\"",
        "http: \"OPTIONS /i/{id}\"",
        "tool: t",
    ];

    const TESTS: &[&str] = &[
        "exists: true",
        "absent: true",
        "equals: \"1\"",
        "equals: 1",
        "one_of: [\"1\", \"2\"]",
        "one_of: [a, true]",
    ];

    const TERMS: &[&str] = &[
        "effect: { class: read, kind: read }",
        "effect: { class: irreversible, kind: update }",
        "confirm: human, effect: { class: irreversible, kind: delete }",
        "confirm: none, effect: { class: irreversible, kind: update }",
        "mode: enforce",
    ];

    const DEFAULTS: &[&str] =
        &["", "undeclared: human", "undeclared: refuse", "undeclared_get: irreversible"];

    /// A target, the place and test of each condition, and the terms.
    type Declared = (&'static str, Vec<(&'static str, &'static str)>, &'static str);

    fn declared() -> impl Strategy<Value = Declared> {
        let places = select(vec!["query.p", "query.q", "body.p", "body.p.q", "path.id", "path.b"]);
        let condition = (places, select(TESTS));
        (select(TARGETS), proptest::collection::vec(condition, 0..3), select(TERMS))
    }

    fn written(defaults: &str, operations: &[Declared]) -> String {
        let mut text = format!("version: 1\ndefaults: {{ {defaults} }}\noperations:\n");
        for (position, (target, conditions, terms)) in operations.iter().enumerate() {
            let is_tool = target.starts_with("tool");
            let mut places = Vec::new();
            let mut tests = Vec::new();
            for (place, test) in conditions {
                let place = if is_tool { place.replace("query.", "") } else { (*place).to_owned() };
                let is_there = !place.starts_with("path.")
                    || target.contains(&format!("{{{}}}", place.replace("path.", "")));
                if is_there && !places.contains(&place) {
                    tests.push(format!("request.{place}: {{ {test} }}"));
                    places.push(place);
                }
            }
            let tests = match tests.as_slice() {
                [] => String::new(),
                tests => format!(", where: {{ {} }}", tests.join(", ")),
            };
            text.push_str(&format!("  o{position}: {{ match: {{ {target}{tests} }}, {terms} }}\n"));
        }
        text
    }

    fn served(text: &str) -> Option<Snapshot> {
        compile(vec![("a.yaml".to_owned(), text.to_owned())]).snapshot
    }

    const BODIES: &[&str] = &[
        "",
        "{}",
        "{\"p\":\"1\"}",
        "{\"p\":1}",
        "{\"p\":\"2\"}",
        "{\"p\":\"A\"}",
        "{\"p\":null}",
        "{\"p\":true,\"body\":{\"p\":\"1\"}}",
        "{\"p\":{\"q\":\"1\"}}",
        "{\"q\":\"2\",\"body\":{\"p\":{\"q\":1}}}",
        "{\"p\":[{\"q\":1}]}",
        "[]",
    ];

    fn asked(snapshot: &Snapshot, call: &(&str, &str, &str, &str)) -> Explained {
        let (method, path, query, body) = call;
        if *method == "tool" {
            let arguments = if body.starts_with('{') { *body } else { "{}" };
            return foresee::tool(snapshot, "t", Doc::parse(arguments.to_owned()).unwrap().root());
        }
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let uri: Uri = format!("{path}{query}").parse().unwrap();
        let mut headers = HeaderMap::new();
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let decoded = decoded(&method, &uri, headers);
        foresee::http(snapshot, &method, &uri, decoded, &Bytes::from((*body).to_owned()))
    }

    fn line<'t>(told: &'t Explained, name: &str) -> Option<&'t str> {
        told.lines.iter().find(|(own, _)| *own == name).map(|(_, text)| text.as_str())
    }

    /// Class, level, and whether it is refused for being undeclared; `None` where its form is.
    fn judged(told: &Explained) -> Option<(Class, Level, bool)> {
        let refused = line(told, "refused");
        if refused.is_some_and(|why| !why.contains("undeclared_operation")) {
            return None;
        }
        let class = Class::from_name(line(told, "class").unwrap()).unwrap();
        let level = line(told, "confirm").and_then(Level::from_name).unwrap_or(Level::Human);
        let level = if class.is_write() { level } else { Level::None };
        Some((class, level, refused.is_some()))
    }

    proptest! {
        // One seed: what tells a rare sort of call apart is looked for with `PROPTEST_CASES`, by hand.
        #![proptest_config(ProptestConfig {
            cases: 400,
            rng_seed: RngSeed::Fixed(8),
            ..ProptestConfig::default()
        })]
        #[test]
        fn a_call_that_explain_calls_milder_is_in_a_diff_that_calls_the_policy_weaker(
            old_defaults in select(DEFAULTS),
            new_defaults in select(DEFAULTS),
            operations in proptest::collection::vec(declared(), 1..6),
            changes in proptest::collection::vec((0..6usize, 0..3u8, declared()), 0..3),
            calls in proptest::collection::vec(
                (
                    select(vec!["GET", "HEAD", "OPTIONS", "POST", "tool"]),
                    select(vec![
                        "/i/5", "/i/1", "/i/purge", "/I/purge", "/i/Purge", "/i/purge/", "/i/x/1",
                        "/i/5:go", "/i/x/2", "/i/purge.", "/i/purge%20", "/i/a/b/c", "/z/purge", "/z/1", "/I/5",
                    ]),
                    select(vec!["", "?p=1", "?p=2", "?p=a", "?q=1", "?p=1&p=2", "?q=2&p=3"]),
                    select(BODIES),
                ),
                40,
            ),
        ) {
            let mut after = operations.clone();
            for (position, how, other) in changes {
                let position = position % after.len().max(1);
                match (after.get_mut(position), how) {
                    (Some(own), 0) => own.0 = other.0,
                    (Some(own), 1) => own.1 = other.1,
                    (Some(_), 2) => drop(after.remove(position)),
                    (_, _) => after.push(other),
                }
            }
            let (old, new) = (written(old_defaults, &operations), written(new_defaults, &after));
            let (Some(before), Some(after)) = (served(&old), served(&new)) else {
                return Ok(());
            };
            let is_weaker = diff(&before, &after).iter().any(|change| change.is_weaker);
            for call in &calls {
                let (was, is) = (asked(&before, call), asked(&after, call));
                let (Some(was_judged), Some(is_judged)) = (judged(&was), judged(&is)) else {
                    continue;
                };
                let is_let_through = was_judged.2 && !is_judged.2;
                let is_less = is_judged.0 < was_judged.0 || is_judged.1 < was_judged.1;
                let is_milder = !is_judged.2 && (is_let_through || is_less);
                prop_assert!(
                    is_weaker || !is_milder,
                    "{call:?}\n{old}{}\n{new}{}",
                    was.human(),
                    is.human()
                );
            }
        }
    }
}
