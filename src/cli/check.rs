//! `takeback check`: compiles policies and says what is wrong with them.

use std::path::{Path, PathBuf};

use super::exit::{self, Failure};
use super::{Format, out};
use crate::policy::{self, Compiled, Severity};

/// Checks each folder; 1 if any has an error, or with `is_strict` a warning.
pub(super) fn run(folders: &[PathBuf], format: Format, is_strict: bool) -> Result<u8, Failure> {
    let mut is_failed = false;
    for folder in folders {
        let compiled = policy::load(folder);
        let counts = Counts::of(&compiled);
        let operations =
            compiled.snapshot.as_ref().map_or(0, |snapshot| snapshot.operations().len());
        let is_empty = compiled.snapshot.is_some() && operations == 0;
        is_failed |= counts.errors > 0 || is_empty || (is_strict && counts.warnings > 0);
        match format {
            Format::Json => {
                for line in compiled.json_lines().lines() {
                    out::print(line)?;
                }
            }
            Format::Text => {
                let findings = compiled.human();
                if !findings.is_empty() {
                    out::print(findings.trim_end())?;
                    out::print("")?;
                }
                out::print(&summary(folder, operations, &counts))?;
            }
        }
        if is_empty && counts.errors == 0 {
            out::complain(&format!("takeback: no operation is declared in {}", folder.display()));
        }
    }
    Ok(if is_failed { exit::FINDINGS } else { exit::OK })
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

fn summary(folder: &Path, operations: usize, counts: &Counts) -> String {
    let many =
        |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    format!(
        "{}: {}, {}, {}, {}",
        folder.display(),
        many(operations, "operation"),
        many(counts.errors, "error"),
        many(counts.warnings, "warning"),
        many(counts.notes, "note"),
    )
}
