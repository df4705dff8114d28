//! What the upstream says of its tools: seen in `tools/list`, kept for the calls that come after.
//!
//! A call names a tool and its arguments; whether the tool has a `confirm` of its own, which
//! arguments it mirrors in headers (standards MCP-15), whether it still has the schema that a policy
//! pins, and whether it declares an output schema (MCP-25) stands in the list only. What one caller
//! is shown says nothing of what another would be shown (MCP-4), so there is one table for each
//! principal.
//!
//! Limits: [`MAX_CALLERS`] tables, the one unused longest goes first; [`MAX_TOOLS`] tools in each; a
//! schema above [`MAX_SCHEMA`] bytes is not kept, only its hash and flags. Nothing in here is trusted:
//! it can make a call stricter, or change where a key is written, and no more, unless the operator
//! says `trust_annotations`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderName;

use crate::contract::json::{Doc, Kind as JsonKind, Value};
use crate::contract::key::Digest;
use crate::contract::pin::schema_digest;

/// The callers whose lists are kept.
pub const MAX_CALLERS: usize = 64;

/// The tools that are kept of one caller's list.
pub const MAX_TOOLS: usize = 4096;

/// The longest schema that is kept, in bytes.
pub const MAX_SCHEMA: usize = 64 * 1024;

/// What a mirrored argument's header starts with.
const PARAM: &str = "mcp-param-";

/// The argument that takes a confirmation.
pub const CONFIRM: &str = "confirm";

/// One tool as it was listed.
#[derive(Clone, Debug)]
pub struct Tool {
    /// What a pin is held against.
    pub schema: Digest,
    /// The `inputSchema`; `None` if it was too long to keep.
    pub input_schema: Option<Doc>,
    /// It takes an argument named `confirm`.
    pub has_confirm: bool,
    /// It declares an `outputSchema`.
    pub has_output_schema: bool,
    /// `annotations.readOnlyHint` is `true`: a hint, trusted only where the operator says so.
    pub is_read_only: bool,
    /// The arguments that it mirrors in headers.
    pub mirrored: Vec<Mirrored>,
}

/// An argument that a tool wants in a header too (2026-07-28, `x-mcp-header`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrored {
    /// The names that lead to it, from `arguments`.
    pub path: Vec<String>,
    /// `Mcp-Param-` and the name.
    pub header: HeaderName,
}

impl Tool {
    /// Reads a tool's entry of a list; `None` if it has no name.
    pub fn read(tool: Value<'_>) -> Option<(String, Self)> {
        let name = tool.get("name")?.as_str()?.into_owned();
        let schema = tool.get("inputSchema");
        let mut input_schema = None;
        let mut mirrored = Vec::new();
        let mut has_confirm = false;
        if let Some(schema) = schema {
            if schema.raw().len() <= MAX_SCHEMA {
                input_schema = Doc::parse(schema.raw().to_owned()).ok();
            }
            has_confirm = schema.get("properties").and_then(|p| p.get(CONFIRM)).is_some();
            mirrors(schema, &mut Vec::new(), &mut mirrored);
        }
        let hint = tool.get("annotations").and_then(|hints| hints.get("readOnlyHint"));
        let tool = Self {
            schema: schema_digest(tool),
            input_schema,
            has_confirm,
            has_output_schema: tool.get("outputSchema").is_some_and(|schema| !schema.is_null()),
            is_read_only: hint.and_then(Value::as_bool) == Some(true),
            mirrored,
        };
        Some((name, tool))
    }

    /// Whether the live schema is the pinned one; a pin is in lower-case hexadecimal.
    pub fn matches(&self, pin: &str) -> bool {
        self.schema.to_hex() == pin
    }
}

/// How deep properties are searched for mirrored ones; the readers of JSON stop at 64.
const MAX_DEPTH: usize = 16;

/// The mirrored properties: those that `properties` alone lead to.
fn mirrors(schema: Value<'_>, path: &mut Vec<String>, out: &mut Vec<Mirrored>) {
    let Some(properties) = schema.get("properties") else { return };
    if properties.kind() != JsonKind::Object || path.len() >= MAX_DEPTH {
        return;
    }
    for member in properties.members() {
        path.push(member.name().into_owned());
        if let Some(name) = member.value.get("x-mcp-header").and_then(Value::as_str)
            && let Ok(header) = HeaderName::from_bytes(format!("{PARAM}{name}").as_bytes())
        {
            out.push(Mirrored { path: path.clone(), header });
        }
        mirrors(member.value, path, out);
        path.pop();
    }
}

/// The tools that were seen, by caller.
#[derive(Debug, Default)]
pub struct Catalog {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    callers: HashMap<Arc<str>, Caller>,
    /// Counts uses, so that the table unused longest is known.
    tick: u64,
}

#[derive(Debug, Default)]
struct Caller {
    /// Each with when it was seen.
    tools: HashMap<String, (Arc<Tool>, Instant)>,
    used: u64,
    /// When its list was asked for last, by us.
    asked: Option<Instant>,
}

impl Catalog {
    /// Takes one page of a list: the `result` of `tools/list`.
    pub fn learn(&self, caller: &Arc<str>, result: Value<'_>, now: Instant) {
        let Some(tools) = result.get("tools") else { return };
        let seen: Vec<(String, Tool)> = tools.elements().filter_map(Tool::read).collect();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let table = inner.table(caller);
        for (name, tool) in seen {
            if table.tools.len() < MAX_TOOLS || table.tools.contains_key(&name) {
                table.tools.insert(name, (Arc::new(tool), now));
            }
        }
    }

    /// Whether a caller's list may be asked for: not within `rests` of the last time. Says so once.
    pub fn may_ask(&self, caller: &Arc<str>, now: Instant, rests: Duration) -> bool {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let table = inner.table(caller);
        let may = table.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= rests);
        if may {
            table.asked = Some(now);
        }
        may
    }

    /// Whether anything was listed to this caller.
    pub fn knows(&self, caller: &str) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.callers.get(caller).is_some_and(|table| !table.tools.is_empty())
    }

    /// The upstream says that its tools changed: what was listed counts as old.
    pub fn forget(&self, caller: &str) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).callers.remove(caller);
    }

    /// A tool as this caller was shown it last, and when that was.
    pub fn tool(&self, caller: &str, name: &str) -> Option<(Arc<Tool>, Instant)> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let used = inner.next_tick();
        let table = inner.callers.get_mut(caller)?;
        table.used = used;
        table.tools.get(name).cloned()
    }
}

impl Inner {
    /// A caller's table; the one unused longest makes room for a further one.
    fn table(&mut self, caller: &Arc<str>) -> &mut Caller {
        let used = self.next_tick();
        if !self.callers.contains_key(caller) && self.callers.len() >= MAX_CALLERS {
            let oldest = self.callers.iter().min_by_key(|(_, caller)| caller.used);
            if let Some(oldest) = oldest.map(|(name, _)| Arc::clone(name)) {
                self.callers.remove(&oldest);
            }
        }
        let table = self.callers.entry(Arc::clone(caller)).or_default();
        table.used = used;
        table
    }

    fn next_tick(&mut self) -> u64 {
        self.tick = self.tick.wrapping_add(1);
        self.tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(json: &str) -> Doc {
        Doc::parse(json.to_owned()).unwrap()
    }

    #[test]
    fn mcp_15_mirrored_properties_are_found_through_properties_only() {
        let doc = page(
            r#"{"name":"t","inputSchema":{"type":"object","properties":{
                "key":{"type":"string","x-mcp-header":"Idempotency-Key"},
                "where":{"type":"object","properties":{"region":{"x-mcp-header":"Region"}}},
                "list":{"items":{"properties":{"no":{"x-mcp-header":"No"}}}},
                "bad":{"x-mcp-header":"not a name"}}}}"#,
        );
        let (name, tool) = Tool::read(doc.root()).unwrap();

        assert_eq!(name, "t");
        let found: Vec<_> =
            tool.mirrored.iter().map(|m| (m.path.join("."), m.header.as_str())).collect();
        assert_eq!(
            found,
            [
                ("key".to_owned(), "mcp-param-idempotency-key"),
                ("where.region".to_owned(), "mcp-param-region")
            ]
        );
    }

    #[test]
    fn mcp_4_one_caller_learns_nothing_of_what_another_is_shown() {
        let catalog = Catalog::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let doc = page(r#"{"tools":[{"name":"t","inputSchema":{"properties":{"confirm":{}}}}]}"#);
        catalog.learn(&a, doc.root(), crate::clock::Clock::system(0).instant());

        assert!(catalog.tool(&a, "t").unwrap().0.has_confirm);
        assert!(catalog.tool(&a, "u").is_none());
        assert!(catalog.tool(&b, "t").is_none());
    }

    #[test]
    fn the_tables_are_bounded_and_the_one_unused_longest_goes() {
        let catalog = Catalog::default();
        let doc = page(r#"{"tools":[{"name":"t"}]}"#);
        let names: Vec<Arc<str>> =
            (0..=MAX_CALLERS).map(|caller| Arc::from(format!("{caller}"))).collect();
        for name in &names {
            catalog.learn(name, doc.root(), crate::clock::Clock::system(0).instant());
            assert!(catalog.tool("0", "t").is_some());
        }
        assert!(catalog.tool("1", "t").is_none());
        assert!(catalog.tool(&names[MAX_CALLERS], "t").is_some());
    }

    #[test]
    fn a_pin_is_over_the_canonical_schema() {
        let one = page(r#"{"name":"t","inputSchema":{"a":1,"b":2}}"#);
        let two = page(r#"{"name":"t","inputSchema":{ "b":2, "a":1 }}"#);
        let three = page(r#"{"name":"t","inputSchema":{"a":1,"b":3}}"#);
        let pin = Tool::read(one.root()).unwrap().1.schema.to_hex();

        assert!(Tool::read(two.root()).unwrap().1.matches(&pin));
        assert!(!Tool::read(three.root()).unwrap().1.matches(&pin));
    }
}
