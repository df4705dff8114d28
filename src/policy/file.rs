//! One policy file: its closed lists, and each operation as far as it can be read by itself.
//!
//! Nothing here looks at another operation; references are looked up in [`super::check`].

use std::sync::Arc;

use crate::contract::assertion::Assertion;
use crate::contract::class::{Class, IsError, Level, Mode, OnUnknown, Repeat, ResponseSource};
use crate::contract::json::{Doc, Kind as JsonKind};
use crate::contract::key::OperationId;
use crate::contract::operation::{Allow, Condition, Target, Test, Timeouts};
use crate::contract::path::{Path, Root, Segment};
use crate::contract::pointer::Pointer;
use crate::contract::template::Template;

use super::assertions;
use super::catalog::{Catalog, CatalogEntry, CatalogKind, Interface};
use super::diagnostic::{At, Findings, Source};
use super::effect::{self, Effect, RawReference};
use super::headers;
use super::paths::{self, Roots, Shape};
use super::reading::{Fields, Reading, Spanned, words_of};
use super::selectors;
use super::tree::{self, Entry, Node, Span};

pub(super) const FILE: &[&str] = &["version", "catalog", "defaults", "probe_targets", "operations"];
pub(super) const DEFAULTS: &[&str] =
    &["irreversible", "destructive", "undeclared", "undeclared_get", "mode"];
pub(super) const OPERATION: &[&str] = &[
    "match",
    "effect",
    "destructive",
    "confirm",
    "confirm_argument",
    "repeat",
    "on_unknown",
    "mode",
    "response",
    "is_error",
    "rejected_if",
    "before",
    "sensitive",
    "vary_on",
    "allow",
    "timeout",
    "max_body_bytes",
    "schema_sha256",
];

/// What undeclared calls need: a level, or nothing will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Undeclared {
    /// This confirmation.
    Confirm(Level),
    /// They are refused.
    Refuse,
}

/// A file's `defaults`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defaults {
    pub(super) irreversible: Option<Spanned<Level>>,
    pub(super) destructive: Option<Spanned<Level>>,
    pub(super) undeclared: Option<Spanned<Undeclared>>,
    /// GET, HEAD and OPTIONS without a declaration are irreversible.
    pub(super) get_writes: bool,
    pub(super) mode: Option<Mode>,
}

/// One file as it was read.
pub(super) struct File<'d> {
    pub(super) defaults: Defaults,
    /// The ids of probe targets that are this upstream.
    pub(super) probe_targets: Vec<String>,
    pub(super) operations: Vec<Declared<'d>>,
}

/// A catalog and where it stands among the sources.
pub(super) struct Linked<'c, 'd> {
    pub(super) catalog: &'c Catalog<'d>,
    /// The position of its text among the sources.
    pub(super) source: usize,
    /// Its text.
    pub(super) text: &'c Source,
}

/// The catalogs of one file.
#[derive(Clone, Copy)]
struct Catalogs<'l, 'c, 'd> {
    /// Those that could be read.
    linked: &'l [Linked<'c, 'd>],
    /// The file names some; of those that could not be read it is told there.
    are_named: bool,
}

/// One operation as it was read.
pub(super) struct Declared<'d> {
    /// Which file it is in, by position.
    pub(super) file: usize,
    /// Which file its effect block is in; a catalog's, where the policy gives none.
    pub(super) effect_file: usize,
    /// The file whose defaults hold for it.
    pub(super) defaults: usize,
    /// What its catalog says of it.
    pub(super) interface: Option<Interface<'d>>,
    pub(super) id: OperationId,
    pub(super) id_span: Span,
    pub(super) target: Option<Target>,
    pub(super) match_span: Span,
    pub(super) conditions: Vec<Condition>,
    pub(super) effect: Option<Effect>,
    pub(super) destructive: Option<Spanned<bool>>,
    pub(super) confirm: Option<Spanned<Level>>,
    pub(super) confirm_argument: Option<String>,
    pub(super) repeat: Option<Repeat>,
    pub(super) on_unknown: Option<OnUnknown>,
    pub(super) mode: Option<Mode>,
    pub(super) response: ResponseSource,
    pub(super) is_error: IsError,
    pub(super) rejected_if: Vec<Assertion>,
    pub(super) before: Option<RawReference>,
    pub(super) sensitive: Vec<Pointer>,
    pub(super) vary_on: Vec<http::HeaderName>,
    pub(super) allow: Allow,
    /// `allow: { upgrade: true }`: its connections are meant to be upgraded.
    pub(super) opens_upgrade: bool,
    pub(super) timeouts: Timeouts,
    /// Its time-outs by name, in milliseconds, and where they stand.
    pub(super) timeout_spans: Vec<(&'static str, u64, Span)>,
    pub(super) max_body_bytes: Option<usize>,
    /// The hash that a tool's live schema must have.
    pub(super) schema_sha256: Option<String>,
    /// The block as JSON, for the fingerprint.
    pub(super) written: String,
}

impl<'d> Declared<'d> {
    /// An operation of which nothing is known but its id and place.
    pub(super) fn new(id: OperationId, file: usize, id_span: Span) -> Self {
        Self {
            file,
            effect_file: file,
            defaults: file,
            interface: None,
            id,
            id_span,
            target: None,
            match_span: id_span,
            conditions: Vec::new(),
            effect: None,
            destructive: None,
            confirm: None,
            confirm_argument: None,
            repeat: None,
            on_unknown: None,
            mode: None,
            response: ResponseSource::Json,
            is_error: IsError::Ambiguous,
            rejected_if: Vec::new(),
            before: None,
            sensitive: Vec::new(),
            vary_on: Vec::new(),
            allow: Allow::default(),
            opens_upgrade: false,
            timeouts: Timeouts::default(),
            timeout_spans: Vec::new(),
            max_body_bytes: None,
            schema_sha256: None,
            written: String::new(),
        }
    }

    pub(super) fn shape(&self) -> Shape<'_> {
        let interface = self.interface.as_ref();
        match &self.target {
            Some(Target::Http { template, .. }) => Shape::Http(template, interface),
            Some(Target::Tool { .. }) => Shape::Tool(interface),
            None => Shape::Unknown,
        }
    }
}

/// The catalogs that a file names, without a word about what is wrong with the rest.
pub(super) fn catalog_names(tree: &Node) -> Vec<(CatalogKind, &str, Span)> {
    let Some(catalog) = tree.get("catalog") else { return Vec::new() };
    let mut names = Vec::new();
    for (member, kind) in [("openapi", CatalogKind::OpenApi), ("tools", CatalogKind::Tools)] {
        let Some(node) = catalog.get(member) else { continue };
        let nodes = node.as_sequence().unwrap_or(std::slice::from_ref(node));
        names.extend(nodes.iter().filter_map(|node| Some((kind, node.as_str()?, node.span))));
    }
    names
}

/// Reads one file; `None` if it is no policy at all.
pub(super) fn read<'d>(
    findings: &mut Findings,
    file: usize,
    source: &Source,
    tree: &Node,
    linked: &[Linked<'_, 'd>],
) -> Option<File<'d>> {
    let at = At { file, source, operation: None };
    let mut reading = Reading { findings, at };
    let fields = reading.fields(tree, "a policy file", FILE)?;
    let catalogs = Catalogs { linked, are_named: fields.get("catalog").is_some() };
    if let Some(node) = fields.require(&mut reading, "version")
        && reading.integer(node, "`version`", 0).is_some_and(|version| version != 1)
    {
        reading
            .error("policy/version", node.span, "an unknown version of the policy format")
            .help("this reads `version: 1`");
    }
    if let Some(node) = fields.get("catalog")
        && let Some(catalog) = reading.fields(node, "`catalog`", &["openapi", "tools"])
    {
        for name in ["openapi", "tools"] {
            let Some(node) = catalog.get(name) else { continue };
            for node in node.as_sequence().unwrap_or(std::slice::from_ref(node)) {
                let _ = reading.text(node, "a catalog's name");
            }
        }
    }
    let mut targets = Vec::new();
    if let Some(node) = fields.get("probe_targets") {
        targets = probe_targets(&mut reading, node);
    }
    let defaults =
        fields.get("defaults").and_then(|node| defaults(&mut reading, node)).unwrap_or_default();
    let mut operations = Vec::new();
    if let Some(node) = fields.get("operations").filter(|node| !node.is_null())
        && let Some(mapping) = reading.mapping(node, "`operations`")
    {
        for entry in mapping.node.entries() {
            let at = At { operation: None, ..at };
            operations.extend(operation(findings, at, entry, catalogs));
        }
    }
    Some(File { defaults, probe_targets: targets, operations })
}

fn defaults(reading: &mut Reading<'_>, node: &Node) -> Option<Defaults> {
    let fields = reading.fields(node, "`defaults`", DEFAULTS)?;
    let mut level = |name: &str| {
        let node = fields.get(name)?;
        let value = reading.word(node, "level", &words_of!(Level))?;
        Some(Spanned { value, span: node.span })
    };
    let irreversible = level("irreversible");
    let destructive = level("destructive");
    let undeclared = fields.get("undeclared").and_then(|node| {
        let mut words: Vec<(&'static str, Undeclared)> =
            Level::ALL.iter().map(|level| (level.as_str(), Undeclared::Confirm(*level))).collect();
        words.push(("refuse", Undeclared::Refuse));
        let value = reading.word(node, "level for undeclared calls", &words)?;
        Some(Spanned { value, span: node.span })
    });
    let get_writes = fields.get("undeclared_get").and_then(|node| {
        let words = [(Class::Read.as_str(), false), (Class::Irreversible.as_str(), true)];
        reading.word(node, "class for undeclared reads", &words)
    });
    let mode = fields.get("mode").and_then(|node| reading.word(node, "mode", &words_of!(Mode)));
    Some(Defaults {
        irreversible,
        destructive,
        undeclared,
        get_writes: get_writes.unwrap_or(false),
        mode,
    })
}

/// Where probes of verification plans go: the ids of those that are this upstream.
///
/// A target is written by its id, or in a list with `probe_target_id`. One that says more than its
/// `type` is another host, which nobody here reads.
fn probe_targets(reading: &mut Reading<'_>, node: &Node) -> Vec<String> {
    let mut targets = Vec::new();
    let mut target = |reading: &mut Reading<'_>, id: Option<&str>, node: &Node| {
        let Some(fields) = reading.mapping(node, "a probe target") else { return };
        if let Some(node) = fields.require(reading, "type") {
            let _ = reading.word(node, "type of probe target", &[("http", ()), ("mcp", ())]);
        }
        let id = id.or_else(|| fields.get("probe_target_id")?.as_str());
        let own = ["type", "probe_target_id"];
        let is_elsewhere =
            fields.node.entries().iter().any(|entry| !own.contains(&entry.name.as_str()));
        if is_elsewhere {
            reading
                .warning("spec/probe_target_elsewhere", node.span, "probes go to the upstream only")
                .help("its stages are reported as not evaluated");
        } else {
            targets.extend(id.map(str::to_owned));
        }
    };
    if let Some(elements) = node.as_sequence() {
        for element in elements {
            target(reading, None, element);
        }
    } else if let Some(mapping) = reading.mapping(node, "`probe_targets`") {
        for entry in mapping.node.entries() {
            target(reading, Some(entry.name.as_str()), &entry.value);
        }
    }
    targets
}

fn operation<'d>(
    findings: &mut Findings,
    at: At<'_>,
    entry: &Entry,
    catalogs: Catalogs<'_, '_, 'd>,
) -> Option<Declared<'d>> {
    let Some(id) = OperationId::new(&entry.name) else {
        let mut reading = Reading { findings, at };
        reading
            .error("policy/operation_id", entry.span, "not an operation id")
            .help("1 to 200 bytes without white space, such as `github.comments.create`");
        return None;
    };
    let mut reading = Reading { findings, at: At { operation: Some(&entry.name), ..at } };
    if entry.name.starts_with('_') {
        reading
            .error("policy/operation_id", entry.span, "ids that start with `_` are reserved")
            .help("`_undeclared` is what undeclared calls are reported as");
    }
    let fields = reading.fields(&entry.value, "an operation", OPERATION)?;
    let mut declared = Declared::new(id, at.file, entry.span);
    entry.value.write_json(&mut declared.written);
    let match_node = fields.require(&mut reading, "match");
    if let Some(node) = match_node {
        declared.match_span = node.span;
        declared.target = target(&mut reading, node, catalogs);
    }
    let known = declared.target.as_ref().and_then(|target| {
        let known = in_catalog(&mut reading, declared.match_span, target, catalogs.linked)?;
        declared.interface = known.0.catalog.interface(known.1, target);
        Some(known)
    });
    if let Some(node) = match_node.and_then(|node| node.get("where")) {
        declared.conditions = conditions(&mut reading, node, declared.shape());
    }
    behaviour(&mut reading, &fields, &mut declared);
    limits(&mut reading, &fields, &mut declared);
    let known_entry = known
        .as_ref()
        .and_then(|(linked, position)| Some((*linked, linked.catalog.entries.get(*position)?)));
    if let Some((_, entry)) = known_entry {
        pin(&mut reading, &fields, &declared, entry);
        if declared.destructive.is_none() && entry.declares_effect() && entry.is_destructive() {
            declared.destructive = Some(Spanned { value: true, span: declared.id_span });
        }
    }
    if let Some(node) = fields.get("effect") {
        // A block that could not be read is an error of the file; the operation goes on without it
        // only so that the rest is checked too.
        let anchor = declared.id_span;
        declared.effect = effect::read(&mut reading, node, declared.shape(), anchor);
    } else if let Some((linked, entry)) = known_entry {
        catalog_effect(reading.findings, &mut declared, linked, entry);
    }
    Some(declared)
}

/// The catalog's operation of this target, if the file has a catalog of its transport.
fn in_catalog<'l, 'c, 'd>(
    reading: &mut Reading<'_>,
    span: Span,
    target: &Target,
    catalogs: &'l [Linked<'c, 'd>],
) -> Option<(&'l Linked<'c, 'd>, usize)> {
    let mut has_catalog = false;
    for linked in catalogs {
        has_catalog |= linked.catalog.entries.first().is_some_and(|entry| {
            matches!(
                (&entry.target, target),
                (Target::Http { .. }, Target::Http { .. })
                    | (Target::Tool { .. }, Target::Tool { .. })
            )
        });
        if let Some(position) = linked.catalog.by_target(target) {
            return Some((linked, position));
        }
    }
    if has_catalog {
        reading
            .warning("policy/not_in_catalog", span, "the catalog has no such operation")
            .help("no call may ever be this operation; compare the method, path and name");
    }
    None
}

/// A tool's pinned schema against the saved one.
fn pin(
    reading: &mut Reading<'_>,
    fields: &Fields<'_>,
    declared: &Declared<'_>,
    entry: &CatalogEntry<'_>,
) {
    let (Some(pinned), Some(node)) = (&declared.schema_sha256, fields.get("schema_sha256")) else {
        return;
    };
    let actual = crate::contract::pin::schema_digest(entry.value).to_hex();
    if *pinned != actual {
        reading
            .error("effect/schema_pin", node.span, "the catalog's schema is another")
            .help(format!("compare what changed; then pin {actual}"));
    }
}

/// Takes the effect that a catalog declares; its findings are in the catalog.
fn catalog_effect<'d>(
    findings: &mut Findings,
    declared: &mut Declared<'d>,
    linked: &Linked<'_, 'd>,
    entry: &CatalogEntry<'d>,
) {
    if !entry.declares_effect() {
        return;
    }
    let node = |value: Option<crate::contract::json::Value<'_>>| value.map(tree::from_value);
    let (spec, contract) = (node(entry.effect_spec()), node(entry.anvil_effect()));
    for node in [&spec, &contract].into_iter().flatten() {
        node.write_json(&mut declared.written);
    }
    let id = declared.id.clone();
    let at = At { file: linked.source, source: linked.text, operation: Some(id.as_str()) };
    let mut reading = Reading { findings, at };
    let shape = declared.shape();
    let read = effect::read_catalog(&mut reading, spec.as_ref(), contract.as_ref(), shape);
    declared.effect_file = linked.source;
    // What a catalog declares wrongly is no read and undoes nothing.
    declared.effect = Some(read.unwrap_or_default());
}

/// An operation that only a catalog declares.
pub(super) fn from_catalog<'d>(
    findings: &mut Findings,
    linked: &Linked<'_, 'd>,
    position: usize,
    defaults: usize,
) -> Option<Declared<'d>> {
    let entry = linked.catalog.entries.get(position)?;
    let id = OperationId::new(entry.id.as_deref()?).filter(|id| !id.as_str().starts_with('_'))?;
    let start = entry.value.span().start;
    let span = Span { start, end: start.saturating_add(1) };
    let mut declared = Declared::new(id, linked.source, span);
    declared.defaults = defaults;
    declared.target = Some(entry.target.clone());
    declared.interface = linked.catalog.interface(position, &entry.target);
    if entry.is_destructive() {
        declared.destructive = Some(Spanned { value: true, span });
    }
    catalog_effect(findings, &mut declared, linked, entry);
    Some(declared)
}

/// `match: { http | tool | operation_id }`
fn target(
    reading: &mut Reading<'_>,
    node: &Node,
    catalogs: Catalogs<'_, '_, '_>,
) -> Option<Target> {
    let fields = reading.fields(node, "`match`", &["http", "tool", "operation_id", "where"])?;
    let given: Vec<&Entry> =
        ["http", "tool", "operation_id"].iter().filter_map(|name| fields.entry(name)).collect();
    let [entry] = given.as_slice() else {
        let message = if given.is_empty() { "`match` names no target" } else { "two targets" };
        reading
            .error("policy/match_target", node.span, message)
            .help("give exactly one of `http`, `tool` and `operation_id`");
        return None;
    };
    let value = &entry.value;
    match entry.name.as_str() {
        "http" => http_target(reading, value),
        "tool" => {
            let name = reading.text(value, "`match.tool`")?;
            if name.is_empty() {
                reading
                    .error("policy/match_tool", value.span, "the tool's name is empty")
                    .help("give the name as the gateway lists it");
                return None;
            }
            Some(Target::Tool { name: name.into() })
        }
        _ => catalog_target(reading, entry, catalogs),
    }
}

/// `match: { operation_id }`
fn catalog_target(
    reading: &mut Reading<'_>,
    entry: &Entry,
    catalogs: Catalogs<'_, '_, '_>,
) -> Option<Target> {
    let id = reading.text(&entry.value, "`match.operation_id`")?;
    let mut ids = Vec::new();
    let mut found = None;
    for linked in catalogs.linked {
        let is_http = |entry: &&CatalogEntry<'_>| matches!(entry.target, Target::Http { .. });
        let known = linked.catalog.by_id(id).and_then(|at| linked.catalog.entries.get(at));
        if linked.catalog.is_twice(id) {
            let message = format!("the catalog has more than one operation `{id}`");
            reading
                .error("policy/catalog_operation", entry.value.span, message)
                .help("name the request itself: `http: \"POST /path/{name}\"`");
            return None;
        }
        if let Some(known) = known.filter(is_http) {
            if found.is_some() {
                let message = format!("more than one catalog has an operation `{id}`");
                reading
                    .error("policy/catalog_operation", entry.value.span, message)
                    .help("name the request itself: `http: \"POST /path/{name}\"`");
                return None;
            }
            found = Some(known.target.clone());
        }
        ids.extend(linked.catalog.ids());
    }
    if found.is_some() {
        return found;
    }
    if catalogs.linked.is_empty() && catalogs.are_named {
        return None;
    }
    if catalogs.linked.is_empty() {
        reading
            .error("policy/catalog_required", entry.span, "`operation_id` needs a catalog")
            .help("name the request itself: `http: \"POST /path/{name}\"`");
        return None;
    }
    ids.sort_unstable();
    let near = if reading.findings.is_full() { None } else { super::link::near(id, ids) };
    let help = near.map_or_else(
        || "see the catalog's `operationId`s".to_owned(),
        |near| format!("did you mean `{near}`?"),
    );
    reading
        .error("policy/catalog_operation", entry.value.span, format!("no operation `{id}`"))
        .help(help);
    None
}

fn http_target(reading: &mut Reading<'_>, node: &Node) -> Option<Target> {
    let text = reading.text(node, "`match.http`")?;
    let help = "write a method, a space and a path: `POST /repos/{owner}/issues`";
    let Some((word, path)) = text.split_once(' ') else {
        reading.error("policy/match_http", node.span, "not a method and a path").help(help);
        return None;
    };
    let method = http::Method::from_bytes(word.as_bytes())
        .ok()
        .filter(|_| word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-'));
    // Both are refused whatever a policy says.
    let is_served = |method: &http::Method| !matches!(method.as_str(), "CONNECT" | "TRACE");
    let Some(method) = method.filter(is_served) else {
        let span = reading.inside(node, 0);
        let span = Span { end: span.start.saturating_add(word.len()).min(span.end), ..span };
        reading
            .error("policy/match_http", span, format!("`{word}` is no method that can be matched"))
            .help("methods are written in upper case; CONNECT and TRACE are refused always");
        return None;
    };
    let offset = word.len().saturating_add(1);
    match Template::parse(path) {
        Ok(template) => Some(Target::Http { method, template }),
        Err(error) => {
            let span = reading.inside(node, offset.saturating_add(error.offset));
            reading.error("policy/template", span, error.reason).help(help);
            None
        }
    }
}

/// `where: { PATH: { equals | one_of | exists | absent } }`
fn conditions(reading: &mut Reading<'_>, node: &Node, shape: Shape<'_>) -> Vec<Condition> {
    let Some(mapping) = reading.mapping(node, "`where`") else { return Vec::new() };
    let mut conditions = Vec::new();
    for entry in mapping.node.entries() {
        if let Some(condition) = condition(reading, entry, shape) {
            conditions.push(condition);
        }
    }
    conditions
}

fn condition(reading: &mut Reading<'_>, entry: &Entry, shape: Shape<'_>) -> Option<Condition> {
    // The name is read as a value is, so that its faults are shown inside it.
    let name = Node { span: entry.span, data: tree::Data::String(entry.name.clone()) };
    let path = paths::read(reading, &name, shape, Roots::REQUEST)?;
    if path.optional {
        reading
            .error("effect/path_invalid", entry.span, "a condition's path has no `?`")
            .help("use `absent` or `exists`");
        return None;
    }
    let fields = reading.fields(&entry.value, "a condition", TESTS)?;
    let [test] = fields.node.entries() else {
        reading
            .error("policy/condition", entry.value.span, "a condition has exactly one test")
            .help("give one of `equals`, `one_of`, `exists` and `absent`");
        return None;
    };
    let literal = |reading: &mut Reading<'_>, node: &Node| {
        let doc = node.to_doc()?;
        never_equal(reading, node, &doc, &path, shape);
        Some(Arc::new(doc))
    };
    let test = match test.name.as_str() {
        "equals" => Test::Equals(literal(reading, &test.value)?),
        "one_of" => {
            let elements = reading.sequence(&test.value, "`one_of`")?;
            if elements.is_empty() {
                reading
                    .warning("policy/condition_never", test.value.span, "nothing is one of none")
                    .help("list the values for which this variant stands");
            }
            let literals = elements.iter().map(|element| literal(reading, element));
            Test::OneOf(literals.collect::<Option<Vec<_>>>()?)
        }
        "exists" | "absent" => {
            if !reading.flag(&test.value, "the test")? {
                reading
                    .error("policy/condition", test.value.span, "this test is `true` or not there")
                    .help("`exists` and `absent` are each other's opposite");
                return None;
            }
            if test.name == "exists" { Test::Exists } else { Test::Absent }
        }
        // An unknown member, which is reported.
        _ => return None,
    };
    Some(Condition { path, test })
}

const TESTS: &[&str] = &["equals", "one_of", "exists", "absent"];

/// Literals that no request can have where they are looked for.
fn never_equal(reading: &mut Reading<'_>, node: &Node, doc: &Doc, path: &Path, shape: Shape<'_>) {
    let kind = doc.root().kind();
    if kind == JsonKind::Null {
        reading
            .warning("policy/condition_never", node.span, "a path never names null")
            .help("use `absent`");
        return;
    }
    let is_text_only = match (shape, path.segments.first()) {
        (Shape::Http(..), Some(Segment::Name(section))) => {
            matches!(section.as_str(), "path" | "query" | "header")
        }
        (Shape::Http(..) | Shape::Tool(_) | Shape::Unknown, _) => false,
    };
    if is_text_only && path.root == Root::Request && kind != JsonKind::String {
        reading
            .warning("policy/condition_never", node.span, "this part of a request is always text")
            .help("quote it");
    }
}

/// What decides how calls of the operation are treated.
fn behaviour(reading: &mut Reading<'_>, fields: &Fields<'_>, declared: &mut Declared<'_>) {
    if let Some(node) = fields.get("destructive") {
        declared.destructive =
            reading.flag(node, "`destructive`").map(|value| Spanned { value, span: node.span });
    }
    if let Some(node) = fields.get("confirm") {
        declared.confirm = reading
            .word(node, "level", &words_of!(Level))
            .map(|value| Spanned { value, span: node.span });
    }
    if let Some(entry) = fields.entry("confirm_argument") {
        let name = reading.text(&entry.value, "`confirm_argument`").filter(|name| !name.is_empty());
        declared.confirm_argument = name.map(str::to_owned);
        if name.is_some() && matches!(declared.shape(), Shape::Http(..)) {
            reading
                .error("policy/confirm_argument", entry.span, "an HTTP request has no arguments")
                .help("over HTTP the caller's word is the header `Effect-Confirm: true`");
        }
    }
    if let Some(node) = fields.get("repeat") {
        declared.repeat = reading.word(node, "repeat rule", &words_of!(Repeat));
    }
    if let Some(node) = fields.get("on_unknown") {
        declared.on_unknown =
            reading.word(node, "rule for unknown outcomes", &words_of!(OnUnknown));
    }
    if let Some(node) = fields.get("mode") {
        declared.mode = reading.word(node, "mode", &words_of!(Mode));
    }
    if let Some(node) = fields.get("response") {
        let word = reading.word(node, "response source", &words_of!(ResponseSource));
        declared.response = word.unwrap_or(ResponseSource::Json);
    }
    if let Some(node) = fields.get("is_error") {
        let word = reading.word(node, "reading of `isError`", &words_of!(IsError));
        declared.is_error = word.unwrap_or(IsError::Ambiguous);
    }
    if let Some(node) = fields.get("rejected_if") {
        declared.rejected_if = assertions::assertions(reading, node, assertions::Form::Own);
        if node.as_sequence().is_some_and(<[Node]>::is_empty) {
            reading
                .error("policy/rejected_if", node.span, "`rejected_if` without assertions")
                .help("all of none hold on every answer; list what says that nothing was done");
        }
    }
    if let Some(node) = fields.get("before")
        && let Some(before) = reading.fields(node, "`before`", &["operation", "arguments"])
    {
        declared.before = effect::reference(reading, &before, declared.shape(), Roots::REQUEST);
    }
}

/// What is kept out, let through, and waited for.
fn limits(reading: &mut Reading<'_>, fields: &Fields<'_>, declared: &mut Declared<'_>) {
    if let Some(node) = fields.get("sensitive").filter(|node| node.as_sequence().is_none()) {
        // All of it: the pointer to the whole request.
        if reading.flag(node, "`sensitive`") == Some(true) {
            declared.sensitive.extend(Pointer::parse(""));
        }
    } else if let Some(node) = fields.get("sensitive") {
        for element in reading.sequence(node, "`sensitive`").unwrap_or_default() {
            declared.sensitive.extend(selectors::pointer(reading, element, "`sensitive`"));
        }
    }
    if let Some(node) = fields.get("vary_on") {
        for element in reading.sequence(node, "`vary_on`").unwrap_or_default() {
            let Some(name) = selectors::header_name(reading, element, "`vary_on`") else {
                continue;
            };
            if headers::is_credential(name.as_str()) || headers::is_control(name.as_str()) {
                reading
                    .error("policy/vary_on", element.span, "a credential or control header")
                    .help("the principal is part of every digest already");
                continue;
            }
            declared.vary_on.push(name);
        }
    }
    if let Some(allow) = fields.get("allow").and_then(|node| {
        reading.fields(node, "`allow`", &["encoded_slash", "empty_segments", "upgrade"])
    }) {
        let mut flag = |name: &'static str| {
            let node = allow.get(name)?;
            Some((reading.flag(node, name)?, node.span))
        };
        declared.allow = Allow {
            encoded_slash: flag("encoded_slash").is_some_and(|(value, _)| value),
            empty_segments: flag("empty_segments").is_some_and(|(value, _)| value),
        };
        if let Some((true, span)) = flag("upgrade") {
            declared.opens_upgrade = true;
            reading
                .warning("policy/upgrade_refused", span, "upgrades are refused with 501")
                .help("send such connections to the gateway directly");
        }
    }
    if let Some(timeout) = fields
        .get("timeout")
        .and_then(|node| reading.fields(node, "`timeout`", &["head_ms", "idle_ms", "total_ms"]))
    {
        let spans = &mut declared.timeout_spans;
        let mut milliseconds = |name: &'static str| {
            let node = timeout.get(name)?;
            let ms = reading.integer(node, name, 1)?;
            spans.push((name, ms, node.span));
            Some(ms)
        };
        declared.timeouts = Timeouts {
            head_ms: milliseconds("head_ms"),
            idle_ms: milliseconds("idle_ms"),
            total_ms: milliseconds("total_ms"),
        };
    }
    if let Some(node) = fields.get("max_body_bytes") {
        declared.max_body_bytes = reading
            .integer(node, "`max_body_bytes`", 1)
            .and_then(|bytes| usize::try_from(bytes).ok());
    }
    if let Some(node) = fields.get("schema_sha256") {
        let text = reading.text(node, "`schema_sha256`").unwrap_or_default();
        let is_hash =
            text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_hash {
            declared.schema_sha256 = Some(text.to_owned());
        } else if node.as_str().is_some() {
            reading
                .error("policy/schema_sha256", node.span, "not a SHA-256 value")
                .help("64 hexadecimal digits in lower case");
        }
    }
}
