//! A skeleton policy out of a catalog.
//!
//! Every operation is listed under an id of its own. Reads by method stand as they are; a write
//! gets no class, which makes it irreversible and confirmed, because whether a call can be taken
//! back is a claim that a person makes. What the document hints at is written beside it as a
//! comment: a DELETE on the path that a POST's answer completes, a draft flag, a place for a key, a
//! tool's own annotations.

use std::collections::HashSet;
use std::fmt::Write as _;

use crate::contract::json::{Doc, Value, write_string};
use crate::contract::operation::Target;
use crate::contract::template::{Part, Template};

use super::catalog::{self, Catalog, CatalogEntry, InputPlace, Interface};

/// Members that vendors take a key in.
const KEY_NAMES: &[&str] =
    &["idempotency_key", "idempotencyKey", "client_token", "clientToken", "dedup_key", "requestId"];

/// A skeleton for an OpenAPI document, whose name the skeleton gives as its catalog.
///
/// # Errors
///
/// Why the text is no such document, in words.
pub fn import_openapi(name: &str, text: &str) -> Result<String, String> {
    let doc = catalog::read_doc(name, text)?;
    let catalog = Catalog::open_api(&doc)?;
    Ok(skeleton(&catalog, "openapi", name))
}

/// A skeleton for a saved `tools/list` answer.
///
/// # Errors
///
/// As [`import_openapi`].
pub fn import_tools(name: &str, text: &str) -> Result<String, String> {
    let doc: Doc = catalog::read_doc(name, text)?;
    let catalog = Catalog::tools(&doc)?;
    Ok(skeleton(&catalog, "tools", name))
}

fn skeleton(catalog: &Catalog<'_>, member: &str, name: &str) -> String {
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
        let interface = catalog.interface(position, &entry.target);
        match (&entry.target, interface) {
            (Target::Http { .. }, Some(interface)) if !entry.is_safe() => {
                block.write_hints(catalog, &ids, entry, &interface);
            }
            (Target::Tool { .. }, Some(interface)) => block.tool_hints(entry, &interface),
            (_, _) => {}
        }
    }
    out
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

fn quoted(text: &str) -> String {
    let mut out = String::new();
    write_string(text, &mut out);
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
        let text: String =
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect();
        self.line(format_args!("    # {text}"));
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
        let text = import_openapi("api.json", API).unwrap();
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
        let text = import_openapi("api.json", API).unwrap();
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
        let text = import_openapi("api.json", API).unwrap();
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
        let text = import_tools("t.json", tools).unwrap();
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
        assert!(import_tools("t.json", "{}").is_err());
        assert!(import_openapi("a.json", "{\"swagger\":\"2.0\"}").is_err());
    }
}
