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
    let Change { operation, what, before, after, is_weaker } = change;
    let operation = operation.as_ref().map_or("undeclared calls", |id| id.as_str());
    vec![
        if *is_weaker { Cell::coloured("weaker", Colour::Red) } else { Cell::plain("") },
        Cell::plain(operation),
        Cell::plain(what),
        Cell::plain(before),
        Cell::plain(after),
    ]
}
