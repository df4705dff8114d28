//! A skeleton policy out of a catalog.
//!
//! Every operation is listed under an id of its own. Reads by method stand as they are; a write
//! gets no class, which makes it irreversible and confirmed, because whether a call can be taken
//! back is a claim that a person makes. What the document hints at is written beside it as a
//! comment: a DELETE on the path that a POST's answer completes, a draft flag, a place for a key, a
//! tool's own annotations, another server. What no policy can name (a path that is no template, a tool
//! without a name) is left out, and said: what is not declared is undeclared, and whoever reviews the
//! skeleton must know that something is missing from it.

use std::collections::HashSet;
use std::fmt::Write as _;

use crate::contract::json::{Value, write_string};
use crate::contract::operation::Target;
use crate::contract::pin::schema_digest;
use crate::contract::template::{Part, Template};

use super::catalog::{self, Catalog, CatalogEntry, InputPlace, Interface};
use super::diagnostic::Source;
use super::tree::is_unseen;

/// Members that vendors take a key in.
const KEY_NAMES: &[&str] =
    &["idempotency_key", "idempotencyKey", "client_token", "clientToken", "dedup_key", "requestId"];

/// How many of the operations that are left out are named, each; a document that is no such document
/// could fill a terminal.
const MAX_NAMED: usize = 200;

/// What came of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The policy file.
    pub skeleton: String,
    /// How many operations it declares.
    pub operations: usize,
    /// What of the document is not in it, with the reason; a line each. The skeleton says it too.
    pub left_out: Vec<String>,
}

/// A skeleton for an OpenAPI document, whose name the skeleton gives as its catalog.
///
/// # Errors
///
/// Why the text is no such document, in words.
pub fn import_openapi(name: &str, text: impl Into<String>) -> Result<Imported, String> {
    let doc = catalog::read_doc(&Source::new(name, text))?;
    let catalog = Catalog::open_api(&doc)?;
    let mut imported = skeleton(&catalog, "openapi", name);
    imported.skeleton.insert_str(0, &base_paths(doc.root()));
    Ok(imported)
}

/// A skeleton for a saved `tools/list` answer.
///
/// # Errors
///
/// As [`import_openapi`].
pub fn import_tools(name: &str, text: impl Into<String>) -> Result<Imported, String> {
    let doc = catalog::read_doc(&Source::new(name, text))?;
    let catalog = Catalog::tools(&doc)?;
    Ok(skeleton(&catalog, "tools", name))
}

fn skeleton(catalog: &Catalog<'_>, member: &str, name: &str) -> Imported {
    let mut out = format!("version: 1\ncatalog: {{ {member}: {} }}\noperations:", quoted(name));
    if catalog.entries.is_empty() {
        out.push_str(" {}");
    }
    out.push('\n');
    let mut used = HashSet::new();
    let ids: Vec<String> = catalog.entries.iter().map(|entry| id_of(entry, &mut used)).collect();
    for (position, (entry, id)) in catalog.entries.iter().zip(&ids).enumerate() {
        let mut block = Block { out: &mut out };
        block.head(id, entry);
        block.elsewhere(entry);
        if entry.declares_effect() {
            // Its class is the document's, written by whoever wrote the document.
            block.comment(
                "The document declares its effect, which holds while no `effect` stands here:",
            );
            block.comment("`takeback explain` says what that makes of a call. Review it.");
            continue;
        }
        let interface = catalog.interface(position, &entry.target);
        match (&entry.target, interface) {
            (Target::Http { .. }, Some(interface)) if !entry.is_safe() => {
                block.write_hints(catalog, &ids, entry, &interface);
            }
            (Target::Tool { .. }, Some(interface)) => block.tool_hints(entry, &interface),
            (_, _) => {}
        }
    }
    let left_out = left_out(catalog);
    if !left_out.is_empty() {
        out.push_str(
            "\n# Left out. What is undeclared is irreversible, or a read where its method is GET, HEAD or \
             OPTIONS:\n",
        );
        let mut block = Block { out: &mut out };
        for line in &left_out {
            block.remark("", line);
        }
    }
    Imported { skeleton: out, operations: ids.len(), left_out }
}

/// A line for each thing that no policy can name.
fn left_out(catalog: &Catalog<'_>) -> Vec<String> {
    let named = catalog.left_out.iter().take(MAX_NAMED);
    let mut lines: Vec<String> = named
        .map(|left| {
            let what: String = left.what.chars().take(200).map(shown).collect();
            format!("{what}: {}", left.why)
        })
        .collect();
    let more = catalog.left_out.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// What the document's servers say of the path before all paths, as a comment: a policy's templates
/// come after the base path of `upstream.url`.
fn base_paths(root: Value<'_>) -> String {
    let mut out = String::new();
    for url in servers(root) {
        let authority = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let path = authority.find('/').and_then(|at| authority.get(at..)).unwrap_or_default();
        if !path.trim_end_matches('/').is_empty() {
            let mut block = Block { out: &mut out };
            block.remark("", &format!("The document's server is {url}."));
            block.remark(
                "",
                "If upstream.url does not end in its path, add that to each path here.",
            );
            break;
        }
    }
    out
}

/// The URLs of the `servers` of a document, a path or an operation.
fn servers(value: Value<'_>) -> Vec<String> {
    let all = value.get("servers").into_iter().flat_map(Value::elements).take(8);
    all.filter_map(|server| Some(server.get("url")?.as_str()?.into_owned())).collect()
}

/// A character as it may stand in a comment and on a terminal.
fn shown(character: char) -> char {
    if character.is_control() || is_unseen(character) { ' ' } else { character }
}

/// An id out of the catalog's own name, or the target; unique.
fn id_of(entry: &CatalogEntry<'_>, used: &mut HashSet<String>) -> String {
    let name = match (&entry.id, &entry.target) {
        (Some(id), _) => id.to_string(),
        (None, Target::Http { method, template }) => format!("{method}.{template}"),
        (None, Target::Tool { name }) => name.to_string(),
    };
    let mut id: String = name
        .chars()
        .take(150)
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' => c,
            '/' => '.',
            _ => '-',
        })
        .collect();
    // Ids that start with `_` are ours, and an id is not empty.
    if !id.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        id.insert(0, 'x');
    }
    let base = id.clone();
    let mut count = 1_u32;
    while !used.insert(id.clone()) {
        count = count.saturating_add(1);
        id = format!("{base}.{count}");
    }
    id
}

/// A text in quotes, in which whatever is not shown is an escape.
fn quoted(text: &str) -> String {
    let mut json = String::new();
    write_string(text, &mut json);
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_control() || is_unseen(character) {
            // Writing to a string cannot fail.
            let written = write!(out, "\\U{:08x}", u32::from(character));
            debug_assert!(written.is_ok());
        } else {
            out.push(character);
        }
    }
    out
}

/// One operation's lines.
struct Block<'o> {
    out: &'o mut String,
}

impl Block<'_> {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let written = writeln!(self.out, "{text}");
        debug_assert!(written.is_ok());
    }

    /// A comment; what comes out of a document cannot end it.
    fn comment(&mut self, text: &str) {
        self.remark("    ", text);
    }

    fn remark(&mut self, indent: &str, text: &str) {
        let text: String = text.chars().map(shown).take(400).collect();
        self.line(format_args!("{indent}# {text}"));
    }

    /// A server of its own is not the one that the sidecar stands before.
    fn elsewhere(&mut self, entry: &CatalogEntry<'_>) {
        let own = servers(entry.value);
        let shared = || entry.item.map(servers).unwrap_or_default();
        if let Some(url) = own.into_iter().next().or_else(|| shared().into_iter().next()) {
            self.comment(&format!("It is served at {url}: does your gateway send it there?"));
        }
    }

    fn head(&mut self, id: &str, entry: &CatalogEntry<'_>) {
        self.line(format_args!("  {}:", quoted(id)));
        match &entry.target {
            Target::Http { method, template } => {
                let target = quoted(&format!("{method} {template}"));
                self.line(format_args!("    match: {{ http: {target} }}"));
            }
            Target::Tool { name } => {
                self.line(format_args!("    match: {{ tool: {} }}", quoted(name)));
            }
        }
    }

    fn write_hints(
        &mut self,
        catalog: &Catalog<'_>,
        ids: &[String],
        entry: &CatalogEntry<'_>,
        interface: &Interface<'_>,
    ) {
        self.comment("No class yet: irreversible, and confirmed.");
        if let Some((undo, parameter)) = completing_delete(catalog, entry) {
            let id = ids.get(undo).map_or("", String::as_str);
            let member = answer_member(interface, &parameter);
            self.comment("If this call is undone by deleting what it made:");
            self.comment(&format!(
                "effect: {{ class: reversible, kind: create, inverse: {{ operation: {id}, \
                 arguments: {{ {} }} }} }}",
                arguments(entry, &parameter, &member)
            ));
        }
        self.shared_hints(interface, InputPlace::Body);
    }

    fn tool_hints(&mut self, entry: &CatalogEntry<'_>, interface: &Interface<'_>) {
        let hint = |name: &str| entry.value.get("annotations")?.get(name).and_then(Value::as_bool);
        if hint("readOnlyHint") == Some(true) {
            self.comment("The server says that it changes nothing. If so:");
            self.comment("effect: { class: read }");
        } else {
            self.comment("No class yet: irreversible, and confirmed.");
        }
        if hint("destructiveHint") == Some(true) {
            self.comment("The server says that it destroys. If so:");
            self.comment("destructive: true");
        }
        self.shared_hints(interface, InputPlace::Argument);
        self.comment("To serve it as irreversible when its schema is another than this one:");
        let pin = schema_digest(entry.value).to_hex();
        self.comment(&format!("schema_sha256: \"{pin}\""));
    }

    fn shared_hints(&mut self, interface: &Interface<'_>, place: InputPlace) {
        if interface.input(place, "draft").is_some() {
            self.comment("It takes `draft`: see `draft` for a form that can be thrown away.");
        }
        let header = interface
            .inputs
            .iter()
            .find(|input| input.place == InputPlace::Header && input.name.contains("idempotency"));
        let member = KEY_NAMES.iter().find(|name| interface.input(place, name).is_some());
        let carrier = match (header, member, place) {
            (Some(header), _, _) => format!("{{ type: header, name: {} }}", header.name),
            (None, Some(member), InputPlace::Argument) => {
                format!("{{ type: argument, name: {member} }}")
            }
            (None, Some(member), _) => format!("{{ type: body_pointer, pointer: /{member} }}"),
            (None, None, _) => return,
        };
        self.comment("It seems to take a key; find out what it does with one that comes again:");
        self.comment(&format!("effect: {{ idempotency: {carrier} }}"));
    }
}

/// The DELETE whose path is a POST's path and one parameter more.
fn completing_delete(catalog: &Catalog<'_>, entry: &CatalogEntry<'_>) -> Option<(usize, String)> {
    let Target::Http { method, template } = &entry.target else { return None };
    if *method != http::Method::POST {
        return None;
    }
    for (position, other) in catalog.entries.iter().enumerate() {
        let Target::Http { method, template: longer } = &other.target else { continue };
        if *method != http::Method::DELETE {
            continue;
        }
        if let Some(parameter) = extends(longer, template) {
            return Some((position, parameter.to_owned()));
        }
    }
    None
}

fn extends<'t>(longer: &'t Template, template: &Template) -> Option<&'t str> {
    let (last, first) = longer.parts().split_last()?;
    let is_same = first.len() == template.parts().len()
        && first.iter().zip(template.parts()).all(|(left, right)| match (left, right) {
            (Part::Literal(left), Part::Literal(right)) => left == right,
            (Part::Parameter { .. }, Part::Parameter { .. }) => true,
            (_, _) => false,
        });
    match last {
        Part::Parameter { name, .. } if is_same => Some(name),
        Part::Parameter { .. } | Part::Literal(_) | Part::Rest { .. } => None,
    }
}

/// The member of the answer that a parameter is probably called after.
fn answer_member(interface: &Interface<'_>, parameter: &str) -> String {
    let members = interface
        .response
        .map(|schema| interface.response_schemas.members(schema).0)
        .unwrap_or_default();
    let has = |name: &str| members.iter().any(|(known, _)| known == name);
    let short = parameter.rsplit(['_', '-']).next().unwrap_or(parameter);
    let candidates = [parameter, short, "id"];
    (*candidates.iter().find(|name| has(name)).unwrap_or(&"id")).to_owned()
}

fn arguments(entry: &CatalogEntry<'_>, parameter: &str, member: &str) -> String {
    let Target::Http { template, .. } = &entry.target else { return String::new() };
    let mut all: Vec<String> =
        template.names().map(|name| format!("path.{name}: request.path.{name}")).collect();
    all.push(format!("path.{parameter}: response.{member}"));
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::class::Class;
    use crate::contract::key::OperationId;
    use crate::policy::compile;

    const API: &str = r#"{"openapi":"3.0.0","paths":{
        "/c/{owner}/comments":{
            "get":{"operationId":"c/list","responses":{}},
            "post":{"operationId":"c/create","requestBody":{"content":{"application/json":{"schema":
                {"type":"object","properties":{"draft":{"type":"boolean"},
                "idempotency_key":{"type":"string"}}}}}},
                "responses":{"201":{"content":{"application/json":{"schema":
                {"type":"object","properties":{"id":{"type":"integer"}}}}}}}}},
        "/c/{owner}/comments/{comment_id}":{"delete":{"operationId":"c/create","responses":{}}},
        "/x#\n":{"post":{}},
        "/y":{"put":{"operationId":"evil: \"\n  b"}}}}"#;

    #[test]
    fn a_skeleton_compiles_and_gives_no_write_a_class() {
        let text = import_openapi("api.json", API).unwrap().skeleton;
        let files =
            vec![("a.yaml".to_owned(), text.clone()), ("api.json".to_owned(), API.to_owned())];
        let compiled = compile(files);
        assert!(!compiled.has_errors(), "{text}\n{}", compiled.human());
        let snapshot = compiled.snapshot.unwrap();
        for served in snapshot.operations() {
            let is_read = served.operation.id.as_str() == "c.list";
            let class = if is_read { Class::Read } else { Class::Irreversible };
            assert_eq!(served.operation.class, class, "{}", served.operation.id);
        }
        assert!(snapshot.operation(&OperationId::new("c.create.2").unwrap()).is_some());
    }

    #[test]
    fn what_the_document_hints_at_is_a_comment() {
        let text = import_openapi("api.json", API).unwrap().skeleton;
        let hint = "    # effect: { class: reversible, kind: create, inverse: { operation: \
            c.create.2, arguments: { path.owner: request.path.owner, path.comment_id: response.id \
            } } }\n";
        assert!(text.contains(hint), "{text}");
        assert!(text.contains("# It takes `draft`"));
        assert!(text.contains(
            "# effect: { idempotency: { type: body_pointer, pointer: /idempotency_key } }"
        ));
    }

    #[test]
    fn a_hint_compiles_when_a_person_takes_it() {
        let text = import_openapi("api.json", API).unwrap().skeleton;
        let taken = text.replacen(
            "    # effect: { class: reversible",
            "    effect: { class: reversible",
            1,
        );
        let compiled =
            compile(vec![("a.yaml".to_owned(), taken), ("api.json".to_owned(), API.to_owned())]);
        assert!(!compiled.has_errors(), "{}", compiled.human());
        let snapshot = compiled.snapshot.unwrap();
        let create = snapshot.operation(&OperationId::new("c.create").unwrap()).unwrap();
        assert_eq!(create.operation.class, Class::Reversible);
    }

    #[test]
    fn tools_are_listed_with_their_servers_word_as_a_comment() {
        let tools = r#"{"tools":[
            {"name":"read file","inputSchema":{},"annotations":{"readOnlyHint":true}},
            {"name":"drop","inputSchema":{},"annotations":{"destructiveHint":true}}]}"#;
        let text = import_tools("t.json", tools).unwrap().skeleton;
        let files =
            vec![("a.yaml".to_owned(), text.clone()), ("t.json".to_owned(), tools.to_owned())];
        let compiled = compile(files);
        assert!(!compiled.has_errors(), "{}", compiled.human());
        let snapshot = compiled.snapshot.unwrap();
        assert!(
            snapshot
                .operations()
                .iter()
                .all(|served| served.operation.class == Class::Irreversible)
        );
        assert!(text.contains("    # effect: { class: read }\n"));
        assert!(text.contains("    # destructive: true\n"));
        let pinned = text.replace("    # schema_sha256", "    schema_sha256");
        let compiled =
            compile(vec![("a.yaml".to_owned(), pinned), ("t.json".to_owned(), tools.to_owned())]);
        assert!(!compiled.has_errors(), "{}", compiled.human());
        let pins = |snapshot: &crate::policy::Snapshot| {
            snapshot.operations().iter().filter(|served| served.schema_sha256.is_some()).count()
        };
        assert_eq!(pins(&compiled.snapshot.unwrap()), 2);
        assert!(import_tools("t.json", "{}").is_err());
        // What has the member, and not in it what the document has there, would be an empty skeleton.
        for (text, why) in [
            ("{\"tools\":{}}", "a page's `tools` is an object, and must be a list"),
            ("{\"result\":{\"tools\":null}}", "a page's `tools` is null, and must be a list"),
            (
                "[{\"tools\":[]},{\"tools\":\"a\"}]",
                "a page's `tools` is a string, and must be a list",
            ),
        ] {
            let told = import_tools("t.json", text).unwrap_err();
            assert_eq!(told, format!("it is no tools/list answer: {why}"), "{text}");
        }
        for (paths, kind) in [("[]", "a list"), ("null", "null"), ("7", "a number")] {
            let text = format!("{{\"openapi\":\"3.0.0\",\"paths\":{paths}}}");
            let why = format!("its `paths` is {kind}, and must be an object");
            let told = import_openapi("a.json", text).unwrap_err();
            assert_eq!(told, format!("it is no OpenAPI 3 document: {why}"));
        }
        assert!(import_openapi("a.json", "{\"swagger\":\"2.0\"}").is_err());
    }

    #[test]
    fn what_no_policy_can_name_is_left_out_and_said() {
        let api = r##"{"openapi":"3.0.0","servers":[{"url":"https://api.example/api/v3/"}],"paths":{
            "x-note":{"post":{}},
            "b":{"get":{}},
            "/c/{x}/{x}":{"get":{}},
            "/e//f":{"post":{}},
            "/{*r}/x":{"post":{},"summary":"s"},
            "/h":{"$ref":"#/paths/~1h"},
            "/i":{"POST":{"operationId":"UP"},"trace":{},"query":{},"x-foo":{},"parameters":[]},
            "/j":{"post":[]},
            "/k":7,
            "/l\u2028evil: 1":{"put":{}},
            "/m":{"post":{"servers":[{"url":"https://uploads.example"}]}}}}"##;

        let Imported { skeleton, left_out, .. } = import_openapi("api.json", api).unwrap();

        let expected = [
            "GET b: a template starts with `/`",
            "GET /c/{x}/{x}: a parameter's name is used twice",
            "POST /e//f: only a trailing segment may be empty",
            "POST /{*r}/x: `{*name}` must be the last segment",
            "/h: its `$ref` leads nowhere in this document",
            "POST /i: OpenAPI 3 has no such method (they are in lower case)",
            "TRACE /i: TRACE is always refused",
            "QUERY /i: OpenAPI 3 has no such method (they are in lower case)",
            "POST /j: it is no operation",
            "/k: it is no path item",
            "PUT /l evil: 1: only visible ASCII can stand in a path; encode the rest",
        ];
        assert_eq!(left_out, expected);
        for line in expected {
            assert!(skeleton.contains(&format!("\n# {line}\n")), "{skeleton}");
        }
        assert!(skeleton.starts_with("# The document's server is https://api.example/api/v3/.\n"));
        assert!(skeleton.contains("    # It is served at https://uploads.example: does"));
        let files = vec![("a.yaml".to_owned(), skeleton), ("api.json".to_owned(), api.to_owned())];
        let compiled = compile(files);
        assert!(!compiled.has_errors(), "{}", compiled.human());
        assert_eq!(compiled.snapshot.unwrap().operations().len(), 1);
    }

    #[test]
    fn a_tool_that_no_call_can_name_is_left_out_and_said() {
        let odd = "a\\u0085b\\u2028c\\ufeffd\\u007fe\\u0000f";
        let tools = format!(
            r#"[{{"tools":[{{"name":""}},{{"name":5}},{{}},{{"name":"ok"}},{{"name":"yes"}}]}},
                {{"tools":[{{"name":"ok"}},{{"name":"{odd}"}},{{"name":"{}"}}]}}]"#,
            "n".repeat(5_000)
        );

        let Imported { skeleton, left_out, .. } = import_tools("t.json", tools.as_str()).unwrap();

        let expected = [
            "a tool without a name: its name is empty",
            "a tool without a name: it is called by its name",
            "a tool without a name: it is called by its name",
            "ok: a second tool of this name",
        ];
        assert_eq!(left_out, expected);
        let files = vec![("a.yaml".to_owned(), skeleton.clone()), ("t.json".to_owned(), tools)];
        let compiled = compile(files);
        assert!(!compiled.has_errors(), "{skeleton}{}", compiled.human());
        let snapshot = compiled.snapshot.unwrap();
        assert_eq!(snapshot.operations().len(), 4);
        let odd = "a\u{85}b\u{2028}c\u{feff}d\u{7f}e\u{0}f";
        assert!(snapshot.find_tool(odd).is_some(), "{skeleton}");
    }

    #[test]
    fn what_the_document_declares_is_not_said_to_have_no_class() {
        let api = r#"{"openapi":"3.1.0","info":{},"paths":{"/a":{"post":{"operationId":"a",
            "x-anvil-effect":{"class":"read"}},"get":{"operationId":"b"}}}}"#;
        let text = import_openapi("api.json", api).unwrap().skeleton;
        assert!(!text.contains("No class yet"), "{text}");
        assert_eq!(text.matches("The document declares its effect").count(), 1, "{text}");
    }

    #[test]
    fn a_list_that_goes_on_says_so() {
        let page = r#"{"tools":[{"name":"a","inputSchema":{}}],"nextCursor":"2"}"#;
        let last = r#"{"tools":[{"name":"b","inputSchema":{}}]}"#;
        for (text, goes_on) in
            [(page.to_owned(), true), (format!("[{page},{last}]"), false), (last.to_owned(), false)]
        {
            let imported = import_tools("tools.json", text).unwrap();
            let is_said = imported.left_out.iter().any(|line| line.contains("nextCursor"));
            assert_eq!(is_said, goes_on, "{:?}", imported.left_out);
        }
    }
}
