//! The headers that every request to the upstream carries: the gateway's credential, which agents
//! never hold. Out of a file of `Name: value` lines, swapped whole when it changes.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::headers::IDEMPOTENCY_KEY;

/// Headers that the proxy sets itself on every request, or that belong to one hop.
pub const NOT_TO_GIVE: [HeaderName; 8] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    IDEMPOTENCY_KEY,
];

/// One header that is given to every request; its value is marked sensitive.
pub type Line = (HeaderName, HeaderValue);

/// What is wrong with a line; never its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// From 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub help: &'static str,
}

/// Reads `Name: value` lines; empty lines and those that begin with `#` are left out.
///
/// # Errors
///
/// All that is wrong at once.
pub fn read(text: &str) -> Result<Vec<Line>, Vec<LineError>> {
    let mut headers: Vec<Line> = Vec::new();
    let mut errors = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut wrong = |what: String, help: &'static str| {
            errors.push(LineError { line: index.saturating_add(1), what, help });
        };
        let parts = line.split_once(':').and_then(|(name, value)| {
            let mut value = HeaderValue::from_str(value.trim()).ok()?;
            value.set_sensitive(true);
            Some((name.trim().parse::<HeaderName>().ok()?, value))
        });
        let Some((name, value)) = parts else {
            wrong("this line is no header".to_owned(), "write `Name: value`");
            continue;
        };
        if NOT_TO_GIVE.contains(&name) {
            wrong(format!("`{name}` is set by the proxy on every request"), "remove it");
        } else if headers.iter().any(|(known, _)| *known == name) {
            wrong(format!("`{name}` is given twice"), "give it once");
        } else {
            headers.push((name, value));
        }
    }
    if errors.is_empty() { Ok(headers) } else { Err(errors) }
}

/// The headers in force; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Injected {
    /// None where there never are any, which costs a call nothing.
    lines: Option<Arc<ArcSwap<Vec<Line>>>>,
}

impl Injected {
    /// These, until others are given.
    pub fn new(lines: Vec<Line>) -> Self {
        Self { lines: Some(Arc::new(ArcSwap::from_pointee(lines))) }
    }

    /// Gives others to the requests that come.
    pub fn replace(&self, lines: Vec<Line>) {
        if let Some(known) = &self.lines {
            known.store(Arc::new(lines));
        }
    }

    /// What is in force.
    pub fn load(&self) -> Option<Guard<Arc<Vec<Line>>>> {
        self.lines.as_ref().map(|lines| lines.load())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.load().map_or(0, |lines| lines.len())
    }

    /// Puts them into a request, in place of what it has under these names.
    pub fn put(&self, headers: &mut HeaderMap) {
        let Some(lines) = self.load() else { return };
        for (name, value) in lines.iter() {
            headers.insert(name.clone(), value.clone());
        }
    }
}
