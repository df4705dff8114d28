//! Catalogs: where the shapes of operations come from (contract section 2).
//!
//! An OpenAPI 3.0 or 3.1 document gives `operationId` -> method and path, the inputs by place, the
//! body's media type and the schemas of request and answer; a saved `tools/list` answer (one page
//! or a list of pages) gives the same of tools. `x-obol-effect`, `x-anvil-effect` and
//! `x-obol-destructive` on an operation are its contract, unless a policy file declares one.
//!
//! Documents are read by the one JSON reader and looked into in place; what an operation needs is
//! taken out when it is compiled, and the document is dropped afterwards. A document that its owner
//! keeps as YAML is read as one, and findings in it then name no place.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read as _};
use std::path::Path;

use bytes::Bytes;
use http::Method;

use crate::contract::json::{Bounds, Doc, JsonError, Kind, MAX_TEXT, Value};
use crate::contract::operation::{BodyType, Target};
use crate::contract::template::{Part, Specificity, Template};
use crate::files;

use super::diagnostic::Source;
use super::effect_spec::Transport;
use super::route::normal;
use super::schema::Schemas;
use super::tree;

/// The longest catalog, in bytes.
pub const MAX_CATALOG: usize = MAX_TEXT;

/// The deepest nesting of a catalog; vendors' documents are deeper than calls.
const MAX_DEPTH: usize = 256;

/// What kind of catalog a file is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum CatalogKind {
    OpenApi,
    Tools,
}

/// The most bytes of all catalogs of one policy: they are compiled together.
pub(super) const MAX_CATALOGS: usize = 2 * MAX_CATALOG;

/// The most values of a catalog; GitHub's document of 13 MB has a million. Beside the text they cost 16
/// bytes each.
const MAX_VALUES: usize = 8 * 1024 * 1024;

/// From where on a text and its table of values get [`APART`].
const LARGE: usize = 1024 * 1024;

/// The room, in bytes, that a large text and its table are given at least. The usual allocator maps a
/// block above 32 MiB by itself and gives it back when it is freed; a smaller one comes out of a heap,
/// of which it gives nothing back from below what a compiled policy has put there since, so that a
/// sidecar would grow with every reload. What is not written to costs addresses only.
const APART: usize = 33 * 1024 * 1024;

/// Reads a catalog of at most `most` bytes from its file.
///
/// # Errors
///
/// What the system says; [`io::ErrorKind::FileTooLarge`], [`io::ErrorKind::InvalidData`] for what is
/// not UTF-8, [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub fn read_catalog(path: &Path, most: usize) -> io::Result<String> {
    let file = files::open(path)?;
    let length = file.metadata()?.len();
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(most);
    let room = if length > LARGE { APART.max(length.saturating_add(1)) } else { length };
    let mut bytes = Vec::with_capacity(room);
    let limit = u64::try_from(most).unwrap_or(u64::MAX);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        let message = if most < MAX_CATALOG {
            format!("the catalogs have over {MAX_CATALOGS} bytes together")
        } else {
            format!("it has over {most} bytes")
        };
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    files::text_of(bytes)
}

/// Reads a catalog's text.
///
/// # Errors
///
/// Why it is no document, in words.
pub(super) fn read_doc(source: &Source) -> Result<Doc, String> {
    if source.text.len() > MAX_CATALOG {
        return Err(format!("it has over {MAX_CATALOG} bytes"));
    }
    if source.name.ends_with(".json") {
        return parse(source.bytes())
            .map_err(|error| at(source, error.offset, &error.fault.to_string()));
    }
    let node = tree::read_large(&source.text, MAX_DEPTH)
        .map_err(|fault| at(source, fault.span.start, &fault.message))?;
    let mut json = String::with_capacity(if source.text.len() > LARGE { APART } else { 0 });
    node.write_json(&mut json);
    drop(node);
    // Its own places are not the file's.
    parse(json.into()).map_err(|error| error.fault.to_string())
}

fn at(source: &Source, offset: usize, what: &str) -> String {
    let (line, column) = source.position(offset);
    format!("{what} (line {line}, column {column})")
}

fn parse(text: Bytes) -> Result<Doc, JsonError> {
    let room = if text.len() > LARGE { APART / Doc::VALUE_BYTES } else { text.len() / 16 };
    let bounds = Bounds { depth: MAX_DEPTH, values: MAX_VALUES, room };
    Doc::parse_large(text, bounds)
}

/// Where an input goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum InputPlace {
    /// A tool's argument.
    Argument,
    /// A top-level member of the body.
    Body,
    Header,
    Path,
    Query,
}

/// One input of an operation.
#[derive(Clone, Debug)]
pub(super) struct Input<'d> {
    pub(super) name: String,
    pub(super) place: InputPlace,
    pub(super) is_required: bool,
    pub(super) schema: Option<Value<'d>>,
}

/// What a catalog says of one operation.
#[derive(Clone, Debug)]
pub(super) struct Interface<'d> {
    pub(super) schemas: Schemas<'d>,
    pub(super) transport: Transport,
    pub(super) inputs: Vec<Input<'d>>,
    /// The schema of the whole body, or of a tool's arguments.
    pub(super) request: Option<Value<'d>>,
    /// The request may have members that are not declared.
    pub(super) is_open: bool,
    /// An HTTP operation's parameters are listed.
    pub(super) has_parameters: bool,
    /// An HTTP operation takes a body.
    pub(super) has_body: bool,
    pub(super) body_type: BodyType,
    /// Where references of the answer's schema start.
    pub(super) response_schemas: Schemas<'d>,
    /// The schema of the accepted answer; `None` if the catalog gives none.
    pub(super) response: Option<Value<'d>>,
    /// The catalog says that the accepted answer has no body.
    pub(super) is_response_empty: bool,
}

impl InputPlace {
    /// The section of an HTTP request that it is in.
    pub(super) fn section(self) -> &'static str {
        match self {
            Self::Argument | Self::Body => "body",
            Self::Header => "header",
            Self::Path => "path",
            Self::Query => "query",
        }
    }
}

impl<'d> Interface<'d> {
    /// Every input of this name, in any place.
    pub(super) fn named(&self, name: &str) -> Vec<&Input<'d>> {
        self.inputs.iter().filter(|input| input.name == name).collect()
    }

    /// The input in this place.
    pub(super) fn input(&self, place: InputPlace, name: &str) -> Option<&Input<'d>> {
        self.inputs.iter().find(|input| input.place == place && input.name == name)
    }
}

/// One catalog.
pub(super) struct Catalog<'d> {
    schemas: Schemas<'d>,
    pub(super) entries: Vec<CatalogEntry<'d>>,
    by_id: HashMap<Cow<'d, str>, usize>,
    by_target: HashMap<String, Vec<usize>>,
    /// Ids that several operations have.
    twice: HashSet<String>,
    /// An operation of it declares its effect.
    pub(super) uses_effects: bool,
    /// What no policy can name, and so what no policy out of it will hold.
    pub(super) left_out: Vec<LeftOut>,
}

/// Something of a catalog that is no operation here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// What it is, as the catalog says it.
    pub(super) what: String,
    pub(super) why: &'static str,
    /// It declares its effect, which nothing will hold to.
    pub(super) has_effect: bool,
}

/// One operation or tool of a catalog.
pub(super) struct CatalogEntry<'d> {
    pub(super) id: Option<Cow<'d, str>>,
    pub(super) target: Target,
    /// The operation object, or the tool.
    pub(super) value: Value<'d>,
    /// The path item that it is in.
    pub(super) item: Option<Value<'d>>,
}

impl<'d> CatalogEntry<'d> {
    /// `x-obol-effect`
    pub(super) fn effect_spec(&self) -> Option<Value<'d>> {
        self.value.get("x-obol-effect")
    }

    /// `x-anvil-effect`
    pub(super) fn anvil_effect(&self) -> Option<Value<'d>> {
        self.value.get("x-anvil-effect")
    }

    /// Whether it is an HTTP request with a safe method.
    pub(super) fn is_safe(&self) -> bool {
        self.target.is_safe()
    }

    /// Whether the catalog declares its effect.
    pub(super) fn declares_effect(&self) -> bool {
        self.effect_spec().is_some() || self.anvil_effect().is_some()
    }

    /// `x-obol-destructive: true`, or the method DELETE beside an effect of the catalog's.
    pub(super) fn is_destructive(&self) -> bool {
        let is_said = self.value.get("x-obol-destructive").and_then(Value::as_bool) == Some(true);
        let is_delete = matches!(
            &self.target,
            Target::Http { method, .. } if *method == Method::DELETE
        );
        is_said || is_delete
    }
}

const METHODS: &[(&str, Method)] = &[
    ("get", Method::GET),
    ("put", Method::PUT),
    ("post", Method::POST),
    ("delete", Method::DELETE),
    ("options", Method::OPTIONS),
    ("head", Method::HEAD),
    ("patch", Method::PATCH),
];

/// Members of a path item that are no operations.
const NO_METHODS: &[&str] = &["$ref", "description", "parameters", "servers", "summary"];

impl<'d> Catalog<'d> {
    /// Looks through an OpenAPI document.
    ///
    /// # Errors
    ///
    /// Why it is none, in words.
    pub(super) fn open_api(doc: &'d Doc) -> Result<Self, String> {
        let root = doc.root();
        // In YAML an unquoted version is a number.
        let version = root.get("openapi");
        let version = version
            .and_then(|version| version.as_str().or(version.as_number().map(Cow::Borrowed)))
            .unwrap_or_default();
        if !version.starts_with("3.") {
            return Err(if root.get("swagger").is_some() {
                "it is OpenAPI 2.0; convert it to 3.0".to_owned()
            } else {
                "it is no OpenAPI 3 document".to_owned()
            });
        }
        if let Some(paths) = root.get("paths").filter(|paths| paths.kind() != Kind::Object) {
            let kind = kind_word(paths.kind());
            return Err(format!(
                "it is no OpenAPI 3 document: its `paths` is {kind}, and must be an object"
            ));
        }
        let schemas = Schemas::new(root);
        let mut catalog = Self::empty(schemas.clone());
        for path in root.get("paths").into_iter().flat_map(Value::members) {
            let name = path.name();
            if !name.starts_with("x-") {
                catalog.add_path(&name, path.value);
            }
        }
        Ok(catalog)
    }

    /// Looks through a saved `tools/list` answer, bare or in its JSON-RPC envelope, or a list of
    /// such pages.
    ///
    /// # Errors
    ///
    /// Why it is none, in words.
    pub(super) fn tools(doc: &'d Doc) -> Result<Self, String> {
        let root = doc.root();
        let mut catalog = Self::empty(Schemas::new(root));
        let pages: Vec<Value<'d>> =
            if root.members().next().is_some() { vec![root] } else { root.elements().collect() };
        let Some(last) = pages.last().copied() else {
            return Err("it is no tools/list answer".to_owned());
        };
        let last = last.get("result").unwrap_or(last);
        if last.get("nextCursor").is_some_and(|cursor| cursor.kind() != Kind::Null) {
            let why = "the list goes on (`nextCursor`): save those pages too, as one JSON array";
            catalog.leave_out("the tools after the last page".to_owned(), why, None);
        }
        for page in pages {
            let result = page.get("result").unwrap_or(page);
            let Some(tools) = result.get("tools") else {
                return Err("it is no tools/list answer: a page has no `tools`".to_owned());
            };
            if tools.kind() != Kind::Array {
                let kind = kind_word(tools.kind());
                return Err(format!(
                    "it is no tools/list answer: a page's `tools` is {kind}, and must be a list"
                ));
            }
            for tool in tools.elements() {
                catalog.add_tool(tool);
            }
        }
        Ok(catalog)
    }

    fn empty(schemas: Schemas<'d>) -> Self {
        Self {
            schemas,
            entries: Vec::new(),
            by_id: HashMap::new(),
            by_target: HashMap::new(),
            twice: HashSet::new(),
            uses_effects: false,
            left_out: Vec::new(),
        }
    }

    /// The operations of one path.
    fn add_path(&mut self, path: &str, value: Value<'d>) {
        let Some(item) = self.schemas.deref(value) else {
            return self.leave_out(
                path.to_owned(),
                "its `$ref` leads nowhere in this document",
                None,
            );
        };
        if item.kind() != Kind::Object {
            return self.leave_out(path.to_owned(), "it is no path item", None);
        }
        let template = Template::parse(path);
        for member in item.members() {
            let word = member.name();
            if word.starts_with("x-") || NO_METHODS.contains(&&*word) {
                continue;
            }
            let what = format!("{} {path}", word.to_ascii_uppercase());
            if word == "trace" {
                self.leave_out(what, "TRACE is always refused", Some(member.value));
                continue;
            }
            let method = METHODS.iter().find(|(known, _)| *known == word);
            let Some((_, method)) = method else {
                let why = "OpenAPI 3 has no such method (they are in lower case)";
                self.leave_out(what, why, Some(member.value));
                continue;
            };
            match &template {
                Err(error) => self.leave_out(what, error.reason, Some(member.value)),
                Ok(_) if member.value.kind() != Kind::Object => {
                    self.leave_out(what, "it is no operation", None);
                }
                Ok(template) => self.add(CatalogEntry {
                    id: member.value.get("operationId").and_then(Value::as_str),
                    target: Target::Http { method: method.clone(), template: template.clone() },
                    value: member.value,
                    item: Some(item),
                }),
            }
        }
    }

    fn add_tool(&mut self, tool: Value<'d>) {
        let nameless = "a tool without a name";
        let Some(name) = tool.get("name").and_then(Value::as_str) else {
            return self.leave_out(nameless.to_owned(), "it is called by its name", Some(tool));
        };
        if name.is_empty() {
            return self.leave_out(nameless.to_owned(), "its name is empty", Some(tool));
        }
        if self.by_id.contains_key(&name) {
            return self.leave_out(name.into_owned(), "a second tool of this name", Some(tool));
        }
        self.add(CatalogEntry {
            target: Target::Tool { name: name.as_ref().into() },
            id: Some(name),
            value: tool,
            item: None,
        });
    }

    fn leave_out(&mut self, what: String, why: &'static str, value: Option<Value<'d>>) {
        let has = |name: &str| value.is_some_and(|value| value.get(name).is_some());
        let has_effect = has("x-obol-effect") || has("x-anvil-effect");
        self.left_out.push(LeftOut { what, why, has_effect });
    }

    fn add(&mut self, entry: CatalogEntry<'d>) {
        let position = self.entries.len();
        if let Some(id) = &entry.id
            && *self.by_id.entry(id.clone()).or_insert(position) != position
        {
            self.twice.insert(id.to_string());
        }
        self.by_target.entry(target_key(&entry.target)).or_default().push(position);
        self.uses_effects |= entry.effect_spec().is_some();
        self.entries.push(entry);
    }

    /// The paths on which a GET opens another protocol: by a declared answer of 101, or by what
    /// Kubernetes' documents say of `exec`, `attach`, `portforward` and `proxy`.
    pub(super) fn upgraded(&self) -> impl Iterator<Item = &Template> {
        self.entries.iter().filter_map(|entry| match &entry.target {
            Target::Http { method, template } if *method == Method::GET => {
                let is_connect = entry.value.get("x-kubernetes-action").and_then(Value::as_str)
                    == Some(Cow::Borrowed("connect"));
                let has_101 =
                    || entry.value.get("responses").is_some_and(|all| all.get("101").is_some());
                (is_connect || has_101()).then_some(template)
            }
            Target::Http { .. } | Target::Tool { .. } => None,
        })
    }

    /// The operation with this `operationId`.
    pub(super) fn by_id(&self, id: &str) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// Whether several operations have this `operationId`, which then names none of them.
    pub(super) fn is_twice(&self, id: &str) -> bool {
        self.twice.contains(id)
    }

    /// Every `operationId`.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.by_id.keys().map(|id| &**id)
    }

    /// The operation with this target; parameters may have other names.
    pub(super) fn by_target(&self, target: &Target) -> Option<usize> {
        let candidates = self.by_target.get(&target_key(target))?;
        candidates.iter().copied().find(|position| {
            self.entries.get(*position).is_some_and(|entry| is_same(&entry.target, target))
        })
    }

    /// What the catalog says of one operation, its path parameters under the names that the policy
    /// gives them.
    pub(super) fn interface(&self, position: usize, target: &Target) -> Option<Interface<'d>> {
        let entry = self.entries.get(position)?;
        let schemas = self.schemas.clone();
        Some(match (&entry.target, target) {
            (Target::Http { template: theirs, .. }, Target::Http { template: ours, .. }) => {
                let mut interface = http_interface(&schemas, entry);
                for input in &mut interface.inputs {
                    let place = theirs.names().position(|name| name == input.name);
                    if let (InputPlace::Path, Some(place)) = (input.place, place)
                        && let Some(name) = ours.names().nth(place)
                    {
                        name.clone_into(&mut input.name);
                    }
                }
                interface
            }
            (Target::Http { .. }, Target::Tool { .. }) => http_interface(&schemas, entry),
            (Target::Tool { .. }, _) => tool_interface(schemas, entry.value),
        })
    }
}

/// Targets that are the same have one key: the method, and the template without its parameters' names.
fn target_key(target: &Target) -> String {
    let (method, template) = match target {
        Target::Tool { name } => return name.to_string(),
        Target::Http { method, template } => (method, template),
    };
    let mut key = method.to_string();
    for part in template.parts() {
        key.push('/');
        match part {
            Part::Literal(text) => key.push_str(&normal(text)),
            Part::Parameter { prefix, suffix, .. } => {
                key.push_str(&normal(prefix));
                key.push_str("{}");
                key.push_str(&normal(suffix));
            }
            Part::Rest { .. } => key.push_str("{*}"),
        }
    }
    key
}

fn is_same(left: &Target, right: &Target) -> bool {
    match (left, right) {
        (Target::Tool { name: left }, Target::Tool { name: right }) => left == right,
        (
            Target::Http { method: left_method, template: left },
            Target::Http { method: right_method, template: right },
        ) => left_method == right_method && left.specificity(right) == Specificity::Same,
        (Target::Http { .. }, Target::Tool { .. }) | (Target::Tool { .. }, Target::Http { .. }) => {
            false
        }
    }
}

fn http_interface<'d>(schemas: &Schemas<'d>, entry: &CatalogEntry<'d>) -> Interface<'d> {
    let mut inputs: Vec<Input<'d>> = Vec::new();
    let mut names: HashSet<(InputPlace, String)> = HashSet::new();
    let own = entry.value.get("parameters");
    let shared = entry.item.and_then(|item| item.get("parameters"));
    // An operation's own parameter replaces the path item's of the same name and place.
    for parameter in own.into_iter().chain(shared).flat_map(Value::elements) {
        let Some(parameter) = schemas.deref(parameter) else { continue };
        let text = |name: &str| parameter.get(name).and_then(Value::as_str);
        let (Some(name), Some(place)) = (text("name"), text("in")) else { continue };
        let place = match &*place {
            "path" => InputPlace::Path,
            "query" => InputPlace::Query,
            "header" => InputPlace::Header,
            _ => continue,
        };
        let name = if place == InputPlace::Header {
            super::headers::folded(&name)
        } else {
            name.into_owned()
        };
        if !names.insert((place, name.clone())) {
            continue;
        }
        let is_required = parameter.get("required").and_then(Value::as_bool) == Some(true);
        let schema = parameter.get("schema");
        inputs.push(Input { name, place, is_required, schema });
    }
    let body = entry.value.get("requestBody").and_then(|body| schemas.deref(body));
    let content = body.and_then(|body| body.get("content"));
    let (request, body_type) = content.map_or((None, BodyType::Json), request_of);
    let (members, is_open) =
        request.map_or((Vec::new(), body.is_some()), |schema| schemas.members(schema));
    let required = request.map(|schema| schemas.required(schema)).unwrap_or_default();
    let is_body_required =
        body.and_then(|body| body.get("required")).and_then(Value::as_bool) == Some(true);
    for (name, schema) in members {
        let is_required = is_body_required && required.contains(&name);
        inputs.push(Input { name, place: InputPlace::Body, is_required, schema: Some(schema) });
    }
    let (response, is_response_empty) = response_of(schemas, entry.value);
    Interface {
        schemas: schemas.clone(),
        transport: Transport::Http,
        inputs,
        request,
        is_open,
        has_parameters: own.or(shared).is_some(),
        has_body: body.is_some(),
        body_type,
        response_schemas: schemas.clone(),
        response,
        is_response_empty,
    }
}

/// The schema of the body in the type in which it is sent: JSON where it is taken, else a form.
fn request_of(content: Value<'_>) -> (Option<Value<'_>>, BodyType) {
    let of = |is_type: fn(&str) -> bool| {
        content.members().find(|member| is_type(&media_type(&member.name())))
    };
    if let Some(member) = of(is_json) {
        return (member.value.get("schema"), BodyType::Json);
    }
    if let Some(member) = of(|name| name == "application/x-www-form-urlencoded") {
        return (member.value.get("schema"), BodyType::Form);
    }
    (None, BodyType::Json)
}

fn media_type(name: &str) -> String {
    name.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn is_json(name: &str) -> bool {
    name == "application/json" || name.ends_with("+json")
}

/// The schema of the first success that has one, and whether no success has a body.
fn response_of<'d>(schemas: &Schemas<'d>, operation: Value<'d>) -> (Option<Value<'d>>, bool) {
    let Some(responses) = operation.get("responses") else { return (None, false) };
    let mut is_empty = false;
    let mut successes: Vec<_> = responses
        .members()
        .filter(|member| member.name().starts_with('2'))
        .map(|member| (member.name(), member.value))
        .collect();
    successes.sort_by(|(left, _), (right, _)| left.cmp(right));
    for (_, response) in successes {
        let Some(response) = schemas.deref(response) else { return (None, false) };
        let Some(content) = response.get("content") else {
            is_empty = true;
            continue;
        };
        let json = content.members().find(|member| is_json(&media_type(&member.name())));
        return (json.and_then(|member| member.value.get("schema")), false);
    }
    (None, is_empty)
}

fn tool_interface<'d>(schemas: Schemas<'d>, tool: Value<'d>) -> Interface<'d> {
    // A tool's schema is a document of its own; references start there.
    let input = tool.get("inputSchema");
    let output = tool.get("outputSchema");
    let response_schemas = output.map_or_else(|| schemas.clone(), Schemas::new);
    let schemas = input.map_or(schemas, Schemas::new);
    let (members, is_open) = input.map_or((Vec::new(), true), |schema| schemas.members(schema));
    let required = input.map(|schema| schemas.required(schema)).unwrap_or_default();
    let inputs = members
        .into_iter()
        .map(|(name, schema)| Input {
            is_required: required.contains(&name),
            name,
            place: InputPlace::Argument,
            schema: Some(schema),
        })
        .collect();
    Interface {
        schemas,
        transport: Transport::Tool,
        inputs,
        request: input,
        is_open,
        has_parameters: true,
        has_body: false,
        body_type: BodyType::Json,
        response_schemas,
        response: output,
        is_response_empty: false,
    }
}

/// A kind of value, as it is told.
fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Array => "a list",
        Kind::Bool => "a boolean",
        Kind::Null => "null",
        Kind::Number => "a number",
        Kind::Object => "an object",
        Kind::String => "a string",
    }
}
