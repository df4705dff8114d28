//! What keeps the ledger's history honest, and for how long it keeps what calls held.

use std::time::Duration;

use super::given::{Origin, Reader, Sources};
use super::{ConfigErrors, shown};
use crate::files;
use crate::ledger::Keys;

/// The shortest retention: an hour. What is removed earlier is missing where an undo or a repeat of the
/// same minutes needs it.
const SHORTEST: Duration = Duration::from_secs(3_600);

/// The keys of the chain over the ledger's history, and nothing else of the settings; the file is held
/// to the closed list.
///
/// # Errors
///
/// All faults of this setting and of the file.
pub fn ledger_keys(sources: Sources) -> Result<Keys, ConfigErrors> {
    let mut reader = Reader::new(sources);
    let keys = keys(&mut reader);
    if reader.errors.is_empty() { Ok(keys) } else { Err(ConfigErrors(reader.errors)) }
}

pub(super) fn keys(reader: &mut Reader) -> Keys {
    let Some(path) = reader.path("ledger_mac_key_file") else { return Keys::default() };
    let origin = reader.list("ledger_mac_key_file").map_or(Origin::Nowhere, |given| given.origin);
    let help = "it holds one key on each line, such as `openssl rand -hex 32` prints: the one in \
                use first, then older ones";
    let text = match files::read_text(&path, files::MAX_SETTINGS) {
        Ok(text) => text,
        Err(error) => {
            let what = format!("{} cannot be read: {error}", path.display());
            reader.error(origin, what, help);
            return Keys::default();
        }
    };
    match Keys::parse(&text) {
        Ok(keys) => keys,
        Err(error) => {
            reader.error(origin, format!("{}: {error}", path.display()), help);
            Keys::default()
        }
    }
}

/// How long what a call held is kept after the call.
pub(super) fn retention(reader: &mut Reader) -> Option<Duration> {
    reader.read("ledger_retention", |text| {
        let help = "give a number and a unit, such as 30d or 72h; at least 1h".to_owned();
        let (count, unit) = text.split_at(text.len() - usize::from(text.ends_with(['d', 'h'])));
        let hours = match unit {
            "d" => 24,
            "h" => 1,
            _ => 0,
        };
        count
            .parse::<u32>()
            .ok()
            .map(|count| Duration::from_secs(u64::from(count) * hours * 3_600))
            .filter(|retention| *retention >= SHORTEST)
            .ok_or_else(|| (format!("is {}", shown(text)), help))
    })
}
