//! JSON Schema and OpenAPI schemas, as far as contracts need them: what a path names, and of which
//! types it is.
//!
//! Three answers to "is there such a member": it is declared; it is missing, because its parent
//! declares its members and not this one; or the schema says nothing ([`Step::Opaque`]), because a
//! part of it is open, too deep or not in the document. Only the first two are judged.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use crate::contract::json::{Kind, Value};
use crate::contract::path::Segment;
use crate::contract::pointer::Pointer;

/// How many references and combinations are followed for one question.
const MAX_STEPS: usize = 2_000;

/// How many members are listed for all operations of one document together; beyond, their schemas
/// count as open. Documents of vendors' size need a tenth of it, and a schema of very many members that
/// very many operations refer to must not cost their product.
const MAX_LISTED: usize = 1_000_000;

/// How deep combinations are followed.
const MAX_NESTING: usize = 24;

/// What a schema says of a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'d> {
    /// It declares it, with this schema.
    Declared(Value<'d>),
    /// It declares its members, and not this one.
    Missing,
    /// It does not say.
    Opaque,
}

/// The JSON types that a schema allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const ARRAY: Self = Self(1);
    pub(super) const BOOLEAN: Self = Self(2);
    pub(super) const INTEGER: Self = Self(4);
    pub(super) const NULL: Self = Self(8);
    pub(super) const NUMBER: Self = Self(16);
    pub(super) const OBJECT: Self = Self(32);
    pub(super) const STRING: Self = Self(64);

    const NAMES: [(Self, &'static str); 7] = [
        (Self::ARRAY, "array"),
        (Self::BOOLEAN, "boolean"),
        (Self::INTEGER, "integer"),
        (Self::NULL, "null"),
        (Self::NUMBER, "number"),
        (Self::OBJECT, "object"),
        (Self::STRING, "string"),
    ];

    fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(types, _)| *types)
    }

    /// The type of one value; a number without fraction and exponent is an integer.
    pub(super) fn of(value: Value<'_>) -> Self {
        match value.kind() {
            Kind::Array => Self::ARRAY,
            Kind::Bool => Self::BOOLEAN,
            Kind::Null => Self::NULL,
            Kind::Number if value.raw().contains(['.', 'e', 'E']) => Self::NUMBER,
            Kind::Number => Self::INTEGER,
            Kind::Object => Self::OBJECT,
            Kind::String => Self::STRING,
        }
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether every value of these types is of the target's: an integer is a number, nothing else
    /// converts, and a null never arrives, because it names nothing.
    pub(super) fn fit(self, target: Self) -> bool {
        let mut wanted = target;
        if target.has(Self::NUMBER) {
            wanted = wanted.with(Self::INTEGER);
        }
        self.without(Self::NULL).without(wanted).is_empty()
    }

    /// The names, for messages.
    pub(super) fn words(self) -> String {
        let names: Vec<&str> = Self::NAMES
            .iter()
            .filter(|(types, _)| self.has(*types))
            .map(|(_, name)| *name)
            .collect();
        names.join(" or ")
    }
}

/// The schemas of one document.
#[derive(Clone, Debug)]
pub(super) struct Schemas<'d> {
    root: Value<'d>,
    /// The document's `components`, by reference: a large document has thousands, and members of a
    /// document are found by going through them.
    components: Arc<HashMap<String, Value<'d>>>,
    /// What is left of [`MAX_LISTED`].
    left: Rc<Cell<usize>>,
}

impl<'d> Schemas<'d> {
    pub(super) fn new(root: Value<'d>) -> Self {
        let mut components = HashMap::new();
        for section in root.get("components").into_iter().flat_map(Value::members) {
            for member in section.value.members() {
                let reference = format!("#/components/{}/{}", section.name(), member.name());
                components.insert(reference, member.value);
            }
        }
        let left = Rc::new(Cell::new(MAX_LISTED));
        Self { root, components: Arc::new(components), left }
    }

    /// The value that a `$ref` names, or the value itself; `None` if it is not in the document.
    pub(super) fn deref(&self, value: Value<'d>) -> Option<Value<'d>> {
        const MAX_CHAIN: usize = 16;
        let mut at = value;
        for _ in 0..MAX_CHAIN {
            let Some(reference) = at.get("$ref").and_then(|text| text.as_str()) else {
                return Some(at);
            };
            if let Some(component) = self.components.get(&*reference) {
                at = *component;
                continue;
            }
            let fragment = reference.strip_prefix('#')?;
            let decoded = percent_encoding::percent_decode_str(fragment).decode_utf8().ok()?;
            at = Pointer::parse(&decoded).ok()?.resolve(self.root)?;
        }
        None
    }

    /// What the schema says of a path into its values.
    pub(super) fn walk(&self, schema: Value<'d>, segments: &[Segment]) -> Step<'d> {
        let mut at = schema;
        let mut steps = MAX_STEPS;
        for segment in segments {
            match self.step(at, segment, 0, &mut steps) {
                Step::Declared(next) => at = next,
                other @ (Step::Missing | Step::Opaque) => return other,
            }
        }
        Step::Declared(at)
    }

    fn step(
        &self,
        schema: Value<'d>,
        segment: &Segment,
        nesting: usize,
        steps: &mut usize,
    ) -> Step<'d> {
        *steps = steps.saturating_sub(1);
        if *steps == 0 || nesting > MAX_NESTING {
            return Step::Opaque;
        }
        let Some(schema) = self.deref(schema) else { return Step::Opaque };
        if let Some(is_anything) = schema.as_bool() {
            return if is_anything { Step::Opaque } else { Step::Missing };
        }
        let own = own_step(schema, segment);
        if let Step::Declared(_) = own {
            return own;
        }
        let mut has_parts = false;
        let mut is_part_opaque = false;
        for combination in ["allOf", "anyOf", "oneOf"] {
            for part in schema.get(combination).into_iter().flat_map(Value::elements) {
                has_parts = true;
                match self.step(part, segment, nesting.saturating_add(1), steps) {
                    declared @ Step::Declared(_) => return declared,
                    Step::Missing => {}
                    Step::Opaque => is_part_opaque = true,
                }
            }
        }
        // A schema that says nothing itself says what its parts say.
        let is_silent = schema.get("properties").is_none() && schema.get("items").is_none();
        let is_own_opaque = matches!(own, Step::Opaque) && !(has_parts && is_silent);
        if is_own_opaque || is_part_opaque { Step::Opaque } else { Step::Missing }
    }

    /// The types that the schema allows; `None` if it does not say.
    pub(super) fn types(&self, schema: Value<'d>) -> Option<Types> {
        let mut steps = MAX_STEPS;
        self.types_of(schema, 0, &mut steps)
    }

    fn types_of(&self, schema: Value<'d>, nesting: usize, steps: &mut usize) -> Option<Types> {
        *steps = steps.checked_sub(1)?;
        if nesting > MAX_NESTING {
            return None;
        }
        let schema = self.deref(schema)?;
        if let Some(node) = schema.get("type") {
            let mut types = Types(0);
            let names = node.as_str().into_iter().chain(node.elements().filter_map(Value::as_str));
            for name in names {
                types = types.with(Types::from_name(&name)?);
            }
            return (!types.is_empty()).then_some(types);
        }
        let literals = schema
            .get("enum")
            .into_iter()
            .flat_map(Value::elements)
            .chain(schema.get("const"))
            .map(Types::of)
            .reduce(Types::with);
        if literals.is_some() {
            return literals;
        }
        if schema.get("properties").is_some() {
            return Some(Types::OBJECT);
        }
        let nested = nesting.saturating_add(1);
        for part in schema.get("allOf").into_iter().flat_map(Value::elements) {
            if let Some(types) = self.types_of(part, nested, steps) {
                return Some(types);
            }
        }
        for name in ["oneOf", "anyOf"] {
            let Some(parts) = schema.get(name) else { continue };
            let mut all = Types(0);
            for part in parts.elements() {
                all = all.with(self.types_of(part, nested, steps)?);
            }
            return (!all.is_empty()).then_some(all);
        }
        None
    }

    /// The names of an object schema's declared members, and whether there can be others.
    pub(super) fn members(&self, schema: Value<'d>) -> (Vec<(String, Value<'d>)>, bool) {
        let mut members = Members::default();
        let mut steps = MAX_STEPS;
        let is_open = self.gather(schema, 0, &mut steps, &mut members);
        (members.all, is_open)
    }

    fn gather(
        &self,
        schema: Value<'d>,
        nesting: usize,
        steps: &mut usize,
        members: &mut Members<'d>,
    ) -> bool {
        *steps = steps.saturating_sub(1);
        if *steps == 0 || nesting > MAX_NESTING {
            return true;
        }
        let Some(schema) = self.deref(schema) else { return true };
        let mut is_open = schema.as_bool().unwrap_or(false) || is_open(schema);
        let properties = schema.get("properties");
        for member in properties.into_iter().flat_map(Value::members) {
            let Some(left) = self.left.get().checked_sub(1) else { return true };
            self.left.set(left);
            let name = member.name().into_owned();
            if members.names.insert(name.clone()) {
                members.all.push((name, member.value));
            }
        }
        let mut has_parts = false;
        for name in ["allOf", "anyOf", "oneOf"] {
            for part in schema.get(name).into_iter().flat_map(Value::elements) {
                has_parts = true;
                is_open |= self.gather(part, nesting.saturating_add(1), steps, members);
            }
        }
        is_open || (properties.is_none() && !has_parts)
    }

    /// The names of the members that an object schema requires.
    pub(super) fn required(&self, schema: Value<'d>) -> HashSet<String> {
        let Some(schema) = self.deref(schema) else { return HashSet::new() };
        let parts = schema.get("allOf").into_iter().flat_map(Value::elements);
        let mut names = HashSet::new();
        for part in
            std::iter::once(Some(schema)).chain(parts.map(|part| self.deref(part))).flatten()
        {
            let required = part.get("required").into_iter().flat_map(Value::elements);
            names.extend(required.filter_map(Value::as_str).map(std::borrow::Cow::into_owned));
        }
        names
    }
}

/// Members as they are gathered, each once.
#[derive(Default)]
struct Members<'d> {
    all: Vec<(String, Value<'d>)>,
    names: HashSet<String>,
}

/// What the schema's own members say, its combinations aside.
fn own_step<'d>(schema: Value<'d>, segment: &Segment) -> Step<'d> {
    let type_name = schema.get("type").and_then(Value::as_str);
    match segment {
        Segment::Name(name) => {
            if let Some(properties) = schema.get("properties") {
                return match properties.get(name) {
                    Some(member) => Step::Declared(member),
                    None if is_open(schema) => Step::Opaque,
                    None => Step::Missing,
                };
            }
            match type_name.as_deref() {
                Some("object") | None => Step::Opaque,
                Some(_) => Step::Missing,
            }
        }
        Segment::Index(_) => {
            if let Some(items) = schema.get("items") {
                return Step::Declared(items);
            }
            if schema.get("properties").is_some() {
                return Step::Missing;
            }
            match type_name.as_deref() {
                Some("array") | None => Step::Opaque,
                Some(_) => Step::Missing,
            }
        }
    }
}

/// Whether an object may have members that are not declared, and the schema says so.
fn is_open(schema: Value<'_>) -> bool {
    let additional = schema.get("additionalProperties");
    additional.is_some_and(|value| value.as_bool() != Some(false))
        || schema.get("patternProperties").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::json::Doc;
    use crate::contract::path::Path;

    const DOCUMENT: &str = r##"{
        "components": { "schemas": {
            "Issue": { "type": "object", "required": ["id"], "properties": {
                "id": { "type": "integer" }, "title": { "type": ["string", "null"] },
                "user": { "$ref": "#/components/schemas/User" },
                "labels": { "type": "array", "items": { "oneOf": [
                    { "type": "string" }, { "type": "object", "properties": { "name": {} } } ] } },
                "meta": { "type": "object" },
                "open": { "properties": { "a": {} }, "additionalProperties": true } } },
            "User": { "allOf": [ { "$ref": "#/components/schemas/Base" },
                { "properties": { "login": { "enum": ["a", "b"] } }, "required": ["login"] } ] },
            "Base": { "type": "object", "properties": { "id": { "const": 1.5 } } },
            "Loop": { "$ref": "#/components/schemas/Loop" },
            "Deep": { "allOf": [ { "$ref": "#/components/schemas/Deep" } ] }
        } } }"##;

    fn walk(schema: &str, path: &str) -> String {
        let doc = Doc::parse(DOCUMENT.to_owned()).unwrap();
        let schemas = Schemas::new(doc.root());
        let schema = doc.root().get("components").unwrap().get("schemas").unwrap().get(schema);
        let path = Path::parse(&format!("response{path}")).unwrap();
        match schemas.walk(schema.unwrap(), &path.segments) {
            Step::Declared(schema) => {
                schemas.types(schema).map_or_else(|| "declared".to_owned(), Types::words)
            }
            Step::Missing => "missing".to_owned(),
            Step::Opaque => "opaque".to_owned(),
        }
    }

    #[test]
    fn paths_are_declared_missing_or_opaque() {
        let cases = [
            ("Issue", ".id", "integer"),
            ("Issue", ".title", "null or string"),
            ("Issue", ".nope", "missing"),
            ("Issue", "[0]", "missing"),
            ("Issue", ".user.login", "string"),
            ("Issue", ".user.id", "number"),
            ("Issue", ".user.nope", "missing"),
            ("Issue", ".labels[0].name", "declared"),
            ("Issue", ".labels.name", "missing"),
            ("Issue", ".meta.x", "opaque"),
            ("Issue", ".open.a", "declared"),
            ("Issue", ".open.b", "opaque"),
            ("Issue", ".id.x", "missing"),
            ("Loop", ".x", "opaque"),
            ("Deep", ".x", "opaque"),
        ];
        for (schema, path, expected) in cases {
            assert_eq!(walk(schema, path), expected, "{schema}{path}");
        }
    }

    #[test]
    fn an_integer_is_a_number_and_nothing_else_converts() {
        assert!(Types::INTEGER.fit(Types::NUMBER));
        assert!(!Types::NUMBER.fit(Types::INTEGER));
        assert!(!Types::INTEGER.fit(Types::STRING));
        assert!(Types::STRING.with(Types::NULL).fit(Types::STRING));
        assert!(!Types::STRING.with(Types::INTEGER).fit(Types::STRING));
        assert_eq!(Types::INTEGER.with(Types::STRING).words(), "integer or string");
    }

    #[test]
    fn members_and_requirements_come_through_combinations() {
        let doc = Doc::parse(DOCUMENT.to_owned()).unwrap();
        let schemas = Schemas::new(doc.root());
        let all = doc.root().get("components").unwrap().get("schemas").unwrap();
        let (members, is_open) = schemas.members(all.get("User").unwrap());
        let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["id", "login"]);
        assert!(!is_open);
        assert_eq!(schemas.required(all.get("User").unwrap()), HashSet::from(["login".to_owned()]));
        assert!(schemas.members(all.get("Deep").unwrap()).1);
    }
}
