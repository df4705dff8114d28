//! `takeback check`: compiles policies and says what is wrong with them.
//!
//! A folder with policy files is one policy; one without is walked, and each folder below that has
//! some is a policy of its own. Files are named as they can be opened from here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::exit::{self, Failure, with_help};
use super::{CheckFormat, out};
use crate::policy::{self, Ceiling, Compiled, Diagnostic, Served, Severity, Snapshot};

/// What is checked, and how it is told.
#[derive(Clone, Debug)]
pub(super) struct Check<'a> {
    pub(super) folders: &'a [PathBuf],
    pub(super) format: CheckFormat,
    /// Warnings count as errors.
    pub(super) is_strict: bool,
    /// How long the sidecar's end waits for calls.
    pub(super) grace: Option<Duration>,
}

/// Checks each folder; 1 if any has an error, or strictly a warning.
pub(super) fn run(check: &Check<'_>) -> Result<u8, Failure> {
    let mut is_failed = false;
    let mut all = Vec::new();
    for folder in check.folders {
        let mut policies = policy::folders(folder);
        if policies.is_empty() {
            // What is wrong with it is a finding.
            policies.push(folder.clone());
        }
        for folder in policies {
            let mut compiled = policy::load_within(&folder, check.grace);
            name_from_here(&mut compiled, &folder);
            let counts = Counts::of(&compiled);
            is_failed |= counts.errors > 0 || (check.is_strict && counts.warnings > 0);
            match check.format {
                CheckFormat::Human => human(&folder, &compiled, &counts)?,
                CheckFormat::Json => {
                    for line in compiled.json_lines().lines() {
                        out::print(line)?;
                    }
                }
                CheckFormat::Sarif => all.extend(compiled.diagnostics),
            }
        }
    }
    if check.format == CheckFormat::Sarif {
        out::print(&sarif(&all).to_string())?;
    }
    Ok(if is_failed { exit::FINDINGS } else { exit::OK })
}

/// Tells more about one code.
pub(super) fn explain(code: &str, format: CheckFormat) -> Result<u8, Failure> {
    let Some(text) = policy::explain_code(code) else {
        let message = format!("there is no code `{}`", out::clean(code));
        let help = "findings carry it in brackets, such as `effect/operation_missing`";
        return Err(Failure::new(exit::CHECK_USAGE, with_help(&message, help)));
    };
    match format {
        CheckFormat::Human => out::print(&format!("{code}\n\n{text}"))?,
        CheckFormat::Json | CheckFormat::Sarif => {
            out::print(&json!({ "code": code, "explanation": text }).to_string())?;
        }
    }
    Ok(exit::OK)
}

/// Names files as they are found from the working directory, so that a terminal can open them.
fn name_from_here(compiled: &mut Compiled, folder: &Path) {
    let whole = folder.display().to_string();
    let renamed = |name: &Arc<str>| -> Arc<str> {
        if **name == *whole {
            return Arc::clone(name);
        }
        folder.join(&**name).display().to_string().into()
    };
    for source in &mut compiled.sources {
        let name = renamed(&source.name);
        for found in compiled.diagnostics.iter_mut().filter(|found| found.file == source.name) {
            found.file = Arc::clone(&name);
        }
        source.name = name;
    }
}

fn human(folder: &Path, compiled: &Compiled, counts: &Counts) -> Result<(), Failure> {
    let findings = compiled.human();
    if !findings.is_empty() {
        out::print(findings.trim_end())?;
        out::print("")?;
    }
    let snapshot = compiled.snapshot.as_ref();
    let operations = snapshot.map_or(&[][..], Snapshot::operations);
    for served in operations.iter().filter(|served| served.is_degraded()) {
        out::print(&degraded(served))?;
    }
    out::print(&summary(folder, snapshot.map(|_| operations.len()), counts))?;
    match evidence(operations) {
        Some(line) => out::print(&line),
        None => Ok(()),
    }
}

/// How many writes can be proved, and by what at best.
fn evidence(operations: &[Arc<Served>]) -> Option<String> {
    let mut counts: BTreeMap<Ceiling, usize> = BTreeMap::new();
    for served in operations.iter().filter(|served| served.operation.class.is_write()) {
        let count = counts.entry(served.ceiling).or_default();
        *count = count.saturating_add(1);
    }
    let words = |(ceiling, count): (&Ceiling, &usize)| format!("{count} {}", ceiling.as_str());
    let all: Vec<String> = counts.iter().rev().map(words).collect();
    (!all.is_empty()).then(|| format!("  evidence of its writes, at best: {}", all.join(", ")))
}

/// The review note of an operation that is served as less than it was declared.
fn degraded(served: &Served) -> String {
    let note = served.notes.first().map_or("degraded", String::as_str);
    format!("note: {}: {note}", served.operation.id)
}

#[derive(Debug, Default)]
struct Counts {
    errors: usize,
    warnings: usize,
    notes: usize,
}

impl Counts {
    fn of(compiled: &Compiled) -> Self {
        let count = |severity| {
            compiled.diagnostics.iter().filter(|found| found.severity == severity).count()
        };
        Self {
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
            notes: count(Severity::Info),
        }
    }
}

fn summary(folder: &Path, operations: Option<usize>, counts: &Counts) -> String {
    let many =
        |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let operations = match operations {
        Some(count) => many(count, "operation"),
        None => "cannot be served".to_owned(),
    };
    format!(
        "{}: {operations}, {}, {}, {}",
        folder.display(),
        many(counts.errors, "error"),
        many(counts.warnings, "warning"),
        many(counts.notes, "note"),
    )
}

/// The findings as SARIF 2.1.0, for what shows findings beside code.
fn sarif(findings: &[Diagnostic]) -> Value {
    let mut codes: Vec<&str> = findings.iter().map(|found| found.code).collect();
    codes.sort_unstable();
    codes.dedup();
    let rule = |code: &&str| {
        let text = policy::explain_code(code).unwrap_or_default();
        json!({ "id": code, "fullDescription": { "text": text } })
    };
    let rules: Vec<Value> = codes.iter().map(rule).collect();
    let results: Vec<Value> = findings.iter().map(sarif_result).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "takeback",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            } },
            // Columns count characters, not UTF-16 units.
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn sarif_result(found: &Diagnostic) -> Value {
    let level = match found.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    };
    let text = match &found.help {
        Some(help) => format!("{}\n{help}", found.message),
        None => found.message.clone(),
    };
    json!({
        "ruleId": found.code,
        "level": level,
        "message": { "text": text },
        "locations": [{ "physicalLocation": {
            "artifactLocation": { "uri": uri(&found.file) },
            "region": { "startLine": found.line, "startColumn": found.column },
        } }],
    })
}

/// A path as the reference that SARIF wants.
fn uri(path: &str) -> String {
    use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
    const ODD: &AsciiSet =
        &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'\\');
    let path = path.strip_prefix("./").unwrap_or(path);
    utf8_percent_encode(path, ODD).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_name_files_as_they_are_opened_from_here() {
        let directory = tempfile::tempdir().unwrap();
        let text = "version: 1\noperations: { a: { match: { tool: a }, confrim: none } }\n";
        std::fs::write(directory.path().join("a.yaml"), text).unwrap();
        let mut compiled = policy::load(directory.path());

        name_from_here(&mut compiled, directory.path());

        let place = format!("{}:2:", directory.path().join("a.yaml").display());
        assert!(compiled.human().contains(&place), "{}", compiled.human());
        let none = directory.path().join("none");
        let mut missing = policy::load(&none);
        name_from_here(&mut missing, &none);
        assert_eq!(&*missing.diagnostics[0].file, none.display().to_string());
    }

    #[test]
    fn sarif_has_a_rule_for_each_code_and_a_place_for_each_finding() {
        let compiled = policy::compile(vec![(
            "my policies/a.yaml".to_owned(),
            "version: 1\noperations: { a: { match: { tool: a }, confrim: none } }\n".to_owned(),
        )]);

        let log = sarif(&compiled.diagnostics);

        let run = &log["runs"][0];
        assert_eq!(run["tool"]["driver"]["rules"][0]["id"], "policy/unknown_member");
        let result = &run["results"][0];
        assert_eq!(result["level"], "error");
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "my%20policies/a.yaml");
        assert_eq!(place["region"]["startLine"], 2);
    }
}
