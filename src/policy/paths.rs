//! Paths in their place: which roots it allows, and whether the request or the answer has what they
//! name (standards 5.1 to 5.3).
//!
//! Over HTTP a flat name (`request.owner`) is put under its section (`request.path.owner`). Without
//! a catalog only the parameters of the path template are known by name; with one, a path that its
//! schema does not declare is an error, and one that its schema leaves open is said to be
//! unverified.

use crate::contract::path::{Path, Root, Segment};
use crate::contract::template::Template;

use super::catalog::{InputPlace, Interface};
use super::effect_spec::Transport;
use super::headers;
use super::reading::{Reading, list};
use super::schema::Step;
use super::tree::{Node, Span};

/// What an operation's request and answer look like, for the paths into them.
#[derive(Clone, Copy)]
pub(super) enum Shape<'s> {
    /// A plain HTTP request with this template.
    Http(&'s Template, Option<&'s Interface<'s>>),
    /// A tool's call.
    Tool(Option<&'s Interface<'s>>),
    /// Not known here, or not at all because the operation's `match` could not be read.
    Unknown,
}

impl<'s> Shape<'s> {
    pub(super) fn transport(self) -> Transport {
        match self {
            Self::Http(..) | Self::Unknown => Transport::Http,
            Self::Tool(_) => Transport::Tool,
        }
    }

    fn interface(self) -> Option<&'s Interface<'s>> {
        match self {
            Self::Http(_, interface) | Self::Tool(interface) => interface,
            Self::Unknown => None,
        }
    }
}

/// Which roots a place allows (standards 5.3).
#[derive(Clone, Copy)]
pub(super) struct Roots {
    before: bool,
    key: bool,
    request: bool,
    response: bool,
    place: &'static str,
}

impl Roots {
    pub(super) const FOLLOW_UP: Self =
        Self { before: true, key: false, request: true, response: true, place: "a follow-up" };
    /// What a draft's follow-ups read is the draft call, which has no state before it.
    pub(super) const BRANCH: Self =
        Self { before: false, place: "a draft's follow-up", ..Self::FOLLOW_UP };
    pub(super) const LOOKUP_BY_KEY: Self =
        Self { before: false, key: true, request: true, response: false, place: "a lookup by key" };
    pub(super) const LOOKUP_BY_ID: Self =
        Self { before: false, key: true, request: true, response: true, place: "a lookup" };
    pub(super) const REQUEST: Self =
        Self { before: false, key: false, request: true, response: false, place: "this place" };
    pub(super) const DRAFT: Self =
        Self { before: false, key: false, request: true, response: false, place: "a draft" };
    pub(super) const RESPONSE: Self =
        Self { before: false, key: false, request: false, response: true, place: "this place" };

    fn allows(self, root: Root) -> bool {
        match root {
            Root::Before => self.before,
            Root::Key => self.key,
            Root::Request => self.request,
            Root::Response => self.response,
        }
    }

    fn words(self) -> String {
        let roots = [
            (self.request, "request"),
            (self.response, "response"),
            (self.before, "before"),
            (self.key, "idempotency_key"),
        ];
        let allowed: Vec<&str> =
            roots.iter().filter(|(is_allowed, _)| *is_allowed).map(|(_, word)| *word).collect();
        list(&allowed)
    }
}

/// A path that may start at these roots.
pub(super) fn read(
    reading: &mut Reading<'_>,
    node: &Node,
    shape: Shape<'_>,
    roots: Roots,
) -> Option<Path> {
    read_with(reading, node, shape, roots, "effect/path_root_not_allowed")
}

/// As [`read`], with the code of a root that is not allowed.
pub(super) fn read_with(
    reading: &mut Reading<'_>,
    node: &Node,
    shape: Shape<'_>,
    roots: Roots,
    root_code: &'static str,
) -> Option<Path> {
    let text = reading.text(node, "a path")?;
    let path = match Path::parse(text) {
        Ok(path) => path,
        Err(error) => {
            let span = reading.inside(node, error.offset);
            reading
                .error("effect/path_invalid", span, error.reason)
                .help("a path is written `request.name`, `response.items[0].id` or `response.id?`");
            return None;
        }
    };
    if !roots.allows(path.root) {
        let message = format!("{} cannot read `{}`", roots.place, path.root.as_str());
        reading.error(root_code, node.span, message).help(format!("it may read {}", roots.words()));
        return None;
    }
    in_shape(reading, node.span, path, shape)
}

/// Puts a path into the form in which it is resolved, and looks for what it names.
pub(super) fn in_shape(
    reading: &mut Reading<'_>,
    span: Span,
    path: Path,
    shape: Shape<'_>,
) -> Option<Path> {
    match (path.root, shape) {
        // Whether there is a state before, only all files together show.
        (Root::Before | Root::Key, _) | (_, Shape::Unknown) => Some(path),
        (Root::Response, _) => in_answer(reading, span, path, shape),
        (Root::Request, Shape::Http(template, interface)) => {
            http_request(reading, span, path, template, interface)
        }
        (Root::Request, Shape::Tool(None)) => Some(path),
        (Root::Request, Shape::Tool(Some(interface))) => {
            let Some(schema) = interface.request else { return unverified(reading, span, path) };
            let step = interface.schemas.walk(schema, &path.segments);
            judged(reading, span, path, step)
        }
    }
}

/// Looks for what a path names in the answer of a call.
pub(super) fn in_answer(
    reading: &mut Reading<'_>,
    span: Span,
    path: Path,
    shape: Shape<'_>,
) -> Option<Path> {
    let Some(interface) = shape.interface() else { return Some(path) };
    let Some(schema) = interface.response else {
        if interface.is_response_empty {
            reading
                .error("effect/path_unresolved", span, "the accepted answer has no body")
                .help("map it from the request");
            return None;
        }
        return unverified(reading, span, path);
    };
    let step = interface.response_schemas.walk(schema, &path.segments);
    judged(reading, span, path, step)
}

fn http_request(
    reading: &mut Reading<'_>,
    span: Span,
    mut path: Path,
    template: &Template,
    interface: Option<&Interface<'_>>,
) -> Option<Path> {
    let Some(Segment::Name(section)) = path.segments.first() else {
        let help = "its members are `path`, `query`, `header` and `body`".to_owned();
        return unresolved(reading, span, "an HTTP request is no list".to_owned(), help);
    };
    match section.as_str() {
        "body" => body(reading, span, path, interface),
        "query" => {
            let Some(Segment::Name(name)) = path.segments.get(1) else { return Some(path) };
            let is_declared = interface.is_none_or(|interface| {
                !interface.has_parameters || interface.input(InputPlace::Query, name).is_some()
            });
            if is_declared {
                return Some(path);
            }
            let message = format!("no query parameter `{name}` is declared");
            unresolved(reading, span, message, "see the catalog for its parameters".to_owned())
        }
        "path" => {
            let name = match path.segments.get(1) {
                Some(Segment::Name(name)) => name.clone(),
                Some(Segment::Index(_)) => String::new(),
                // The whole set of parameters.
                None => return Some(path),
            };
            if template.names().any(|known| known == name) {
                return Some(path);
            }
            let message = format!("the path has no parameter `{name}`");
            unresolved(reading, span, message, parameters_help(template))
        }
        "header" => header(reading, span, path),
        name if template.names().any(|known| known == name) => {
            path.segments.insert(0, Segment::Name("path".to_owned()));
            Some(path)
        }
        name => {
            let found = interface.map(|interface| interface.named(name)).unwrap_or_default();
            let section = match found.as_slice() {
                [only] => only.place.section(),
                [] => {
                    let message = format!("`{name}` is no input that is known by name");
                    let help = format!("write `request.query.{name}` or `request.body.{name}`");
                    return unresolved(reading, span, message, help);
                }
                [_, _, ..] => {
                    let message = format!("`{name}` is the name of several inputs");
                    let help = format!("write `request.query.{name}` or `request.body.{name}`");
                    return unresolved(reading, span, message, help);
                }
            };
            path.segments.insert(0, Segment::Name(section.to_owned()));
            http_request(reading, span, path, template, interface)
        }
    }
}

fn body(
    reading: &mut Reading<'_>,
    span: Span,
    path: Path,
    interface: Option<&Interface<'_>>,
) -> Option<Path> {
    let Some(interface) = interface else { return Some(path) };
    let inner = path.segments.get(1..).unwrap_or_default();
    if !interface.has_body {
        let help = "see the catalog for its inputs".to_owned();
        return unresolved(reading, span, "the request has no body".to_owned(), help);
    }
    let Some(schema) = interface.request else { return unverified(reading, span, path) };
    let step = interface.schemas.walk(schema, inner);
    judged(reading, span, path, step)
}

fn header(reading: &mut Reading<'_>, span: Span, mut path: Path) -> Option<Path> {
    let Some(Segment::Name(name)) = path.segments.get_mut(1) else {
        let help = "write `request.header.x-tenant`".to_owned();
        return unresolved(reading, span, "which header is not said".to_owned(), help);
    };
    *name = headers::folded(name);
    if headers::is_credential(name) || headers::is_control(name) {
        reading
            .error(
                "effect/credential_mapped",
                span,
                "a credential or control header cannot be read by a path",
            )
            .help("the caller gives it with each call; it is kept nowhere");
        return None;
    }
    Some(path)
}

fn judged(reading: &mut Reading<'_>, span: Span, path: Path, step: Step<'_>) -> Option<Path> {
    match step {
        Step::Declared(_) => Some(path),
        Step::Missing => {
            let message = format!("the catalog declares no `{path}`");
            unresolved(reading, span, message, "see the catalog for what there is".to_owned())
        }
        Step::Opaque => unverified(reading, span, path),
    }
}

fn unresolved(
    reading: &mut Reading<'_>,
    span: Span,
    message: String,
    help: String,
) -> Option<Path> {
    reading.error("effect/path_unresolved", span, message).help(help);
    None
}

fn unverified(reading: &mut Reading<'_>, span: Span, path: Path) -> Option<Path> {
    reading
        .info("effect/path_unverified", span, format!("the catalog does not say what `{path}` is"))
        .help("the schema is open here; try it against the gateway");
    Some(path)
}

/// What a template's parameters are, for a help line.
pub(super) fn parameters_help(template: &Template) -> String {
    let names: Vec<&str> = template.names().collect();
    if names.is_empty() {
        "its template has no parameters".to_owned()
    } else {
        format!("its parameters are {}", list(&names))
    }
}
