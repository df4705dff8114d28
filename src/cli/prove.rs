//! `takeback prove`: the promises, tried against faults.

use super::exit::{self, Failure};
use super::out::{self, Cell, Colour};
use super::{Format, chain};
use crate::prove::{Fault, Kind, Options, ProveError, Row, prove};

/// Proves, prints what came out, and says whether it holds.
pub(super) fn run(options: &Options, format: Format) -> Result<u8, Failure> {
    let mut failed = None;
    let tell = |row: &Row| {
        if format == Format::Json {
            let line = serde_json::to_string(row).unwrap_or_default();
            failed = failed.take().or(out::print(&line).err());
        } else if Kind::from_name(row.kind) == Some(Kind::Keyed) {
            out::complain(&format!("{} ...", row.fault));
        }
    };
    let rows = prove(options, tell).map_err(unproved)?;
    if let Some(failure) = failed {
        return Err(failure);
    }
    let is_proved = rows.iter().all(Row::holds);
    if format == Format::Text {
        out::print(&table(&rows))?;
        out::print(&summary(&rows))?;
    }
    Ok(if is_proved { exit::OK } else { exit::FINDINGS })
}

fn table(rows: &[Row]) -> String {
    let names = [
        "FAULT", "WRITES", "INTENDED", "ONCE", "NEVER", "TWICE", "WRONG", "UNKNOWN", "SETTLED",
        "STUCK", "SLOWEST", "",
    ];
    let number = |number: u32| Cell::plain(number.to_string());
    let lines: Vec<Vec<Cell>> = rows
        .iter()
        .map(|row| {
            vec![
                Cell::plain(row.fault),
                Cell::plain(row.kind),
                number(row.intended),
                number(row.once),
                number(row.never),
                number(row.more),
                number(row.wrong),
                number(row.unknown),
                number(row.settled),
                number(row.stuck),
                Cell::plain(format!("{} ms", row.slowest_ms)),
                if row.holds() {
                    Cell::coloured("holds", Colour::Green)
                } else {
                    Cell::coloured("BROKEN", Colour::Red)
                },
            ]
        })
        .collect();
    out::table(&names, &lines, out::is_coloured())
}

fn summary(rows: &[Row]) -> String {
    let sum = |of: fn(&Row) -> u32| rows.iter().map(|row| u64::from(of(row))).sum::<u64>();
    let held = rows.iter().filter(|row| row.holds()).count();
    format!(
        "{} second effects and {} wrong outcomes in {} intended calls; {} answers were lost and \
         settled, {} stay unknown and are refused; {held} of {} rows hold.",
        sum(|row| row.more),
        sum(|row| row.wrong),
        sum(|row| row.intended),
        sum(|row| row.settled),
        sum(|row| row.unknown),
        rows.len()
    )
}

/// The faults with these names.
pub(super) fn faults(names: &[String]) -> Result<Vec<Fault>, Failure> {
    names
        .iter()
        .map(|name| {
            Fault::from_name(name).ok_or_else(|| {
                let known: Vec<&str> = Fault::ALL.iter().map(|fault| fault.as_str()).collect();
                let message = format!("there is no fault `{}`", out::clean(name));
                let help = format!("give {}", known.join(", "));
                Failure::new(exit::USAGE, exit::with_help(&message, &help))
            })
        })
        .collect()
}

fn unproved(error: ProveError) -> Failure {
    let code = match &error {
        ProveError::Database => exit::USAGE,
        ProveError::Folder(_) => exit::CANNOT_CREATE,
        ProveError::Gateway(_) | ProveError::Process(_) => exit::SYSTEM,
        ProveError::Silent { .. } => exit::UNAVAILABLE,
    };
    Failure::new(code, chain(&error))
}
