//! Whether a value fits a tool's input schema, as far as a small part of JSON Schema tells.
//!
//! Understood: `type`, `enum`, `const`, `required`, `properties`, `additionalProperties`, `items`,
//! `minimum`, `maximum`, `minLength`, `maxLength`, `minItems`, `maxItems` and `allOf`. Every other
//! keyword is taken to hold, `$ref`, `anyOf`, `oneOf`, `not`, `pattern` and `format` among them: what
//! is found here is surely wrong, and what passes may still be refused by the tool.
//!
//! A fault names the place and the rule, never a value.

use crate::contract::assertion::equal;
use crate::contract::json::{Kind, Value};

/// How deep a value is looked into.
const MAX_DEPTH: usize = 32;

/// The first fault of a value; `None` if none is found.
pub fn fault(schema: Value<'_>, value: Value<'_>) -> Option<String> {
    let mut place = String::new();
    fault_at(schema, value, &mut place, 0).map(|rule| {
        let place = if place.is_empty() { "the arguments".to_owned() } else { place };
        format!("{place} {rule}")
    })
}

fn fault_at(
    schema: Value<'_>,
    value: Value<'_>,
    place: &mut String,
    depth: usize,
) -> Option<String> {
    if depth > MAX_DEPTH {
        return None;
    }
    if schema.kind() == Kind::Bool {
        return (schema.as_bool() == Some(false)).then(|| "is not taken".to_owned());
    }
    if let Some(types) = schema.get("type")
        && !fits_type(types, value)
    {
        return Some(format!("is not of the type {}", types.raw().replace('"', "")));
    }
    if let Some(literal) = schema.get("const")
        && !equal(literal, value)
    {
        return Some("is not the one value that is taken".to_owned());
    }
    if let Some(literals) = schema.get("enum")
        && !literals.elements().any(|literal| equal(literal, value))
    {
        return Some("is not one of the values that are taken".to_owned());
    }
    bounds(schema, value)
        .or_else(|| object_fault(schema, value, place, depth))
        .or_else(|| array_fault(schema, value, place, depth))
        .or_else(|| {
            let all = schema.get("allOf").into_iter().flat_map(Value::elements);
            all.into_iter().find_map(|part| fault_at(part, value, place, depth.saturating_add(1)))
        })
}

fn fits_type(types: Value<'_>, value: Value<'_>) -> bool {
    let fits = |name: &str| match name {
        "array" => value.kind() == Kind::Array,
        "boolean" => value.kind() == Kind::Bool,
        "integer" => {
            value.kind() == Kind::Number
                && value
                    .as_number()
                    .and_then(|n| n.parse::<f64>().ok())
                    .is_some_and(|n| n.fract() == 0.0)
        }
        "null" => value.is_null(),
        "number" => value.kind() == Kind::Number,
        "object" => value.kind() == Kind::Object,
        "string" => value.kind() == Kind::String,
        _ => true,
    };
    match types.kind() {
        Kind::String => types.as_str().is_none_or(|name| fits(&name)),
        Kind::Array => types.elements().any(|name| name.as_str().is_none_or(|name| fits(&name))),
        Kind::Bool | Kind::Null | Kind::Number | Kind::Object => true,
    }
}

fn bounds(schema: Value<'_>, value: Value<'_>) -> Option<String> {
    let limit = |name: &str| schema.get(name).and_then(Value::as_number)?.parse::<f64>().ok();
    let size = match value.kind() {
        Kind::Number => value.as_number()?.parse::<f64>().ok()?,
        Kind::String => count(value.as_str()?.chars().count()),
        Kind::Array => count(value.elements().count()),
        Kind::Bool | Kind::Null | Kind::Object => return None,
    };
    let (least, most) = match value.kind() {
        Kind::Number => ("minimum", "maximum"),
        Kind::String => ("minLength", "maxLength"),
        Kind::Array | Kind::Bool | Kind::Null | Kind::Object => ("minItems", "maxItems"),
    };
    if limit(least).is_some_and(|limit| size < limit) {
        return Some(format!("is below its {least}"));
    }
    limit(most).is_some_and(|limit| size > limit).then(|| format!("is above its {most}"))
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn object_fault(
    schema: Value<'_>,
    value: Value<'_>,
    place: &mut String,
    depth: usize,
) -> Option<String> {
    if value.kind() != Kind::Object {
        return None;
    }
    for name in schema.get("required").into_iter().flat_map(Value::elements) {
        if let Some(name) = name.as_str()
            && value.get(&name).is_none()
        {
            enter(place, &name);
            return Some("is missing".to_owned());
        }
    }
    let properties = schema.get("properties");
    let has_patterns = schema.get("patternProperties").is_some();
    for member in value.members() {
        let name = member.name();
        let rule = match properties.and_then(|properties| properties.get(&name)) {
            Some(rule) => Some(rule),
            None if has_patterns => None,
            None => schema.get("additionalProperties"),
        };
        let Some(rule) = rule else { continue };
        let length = place.len();
        enter(place, &name);
        if let Some(fault) = fault_at(rule, member.value, place, depth.saturating_add(1)) {
            return Some(fault);
        }
        place.truncate(length);
    }
    None
}

fn array_fault(
    schema: Value<'_>,
    value: Value<'_>,
    place: &mut String,
    depth: usize,
) -> Option<String> {
    let items = schema.get("items").filter(|items| items.kind() == Kind::Object)?;
    if value.kind() != Kind::Array {
        return None;
    }
    for (position, element) in value.elements().enumerate() {
        let length = place.len();
        place.push_str(&format!("[{position}]"));
        if let Some(fault) = fault_at(items, element, place, depth.saturating_add(1)) {
            return Some(fault);
        }
        place.truncate(length);
    }
    None
}

fn enter(place: &mut String, name: &str) {
    if !place.is_empty() {
        place.push('.');
    }
    place.push_str(name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::json::Doc;

    #[test]
    fn faults_are_found_and_named_by_place() {
        let schema = r#"{"type":"object","required":["name"],"additionalProperties":false,
            "properties":{"name":{"type":"string","minLength":2,"maxLength":4},
            "n":{"type":["integer","null"],"maximum":5},"draft":{"const":true},
            "to":{"type":"array","maxItems":2,"items":{"type":"object","properties":{"x":{"enum":[1,"a"]}}}},
            "free":{"$ref":"elsewhere"}}}"#;
        let cases = [
            (r#"{"name":"ab"}"#, None),
            (r#"{"name":"ab","n":5.0,"draft":true,"to":[{"x":1.0},{}],"free":[]}"#, None),
            (r#"{"name":"ab","n":null}"#, None),
            ("[]", Some("the arguments is not of the type object")),
            ("{}", Some("name is missing")),
            (r#"{"name":1}"#, Some("name is not of the type string")),
            (r#"{"name":"a"}"#, Some("name is below its minLength")),
            (r#"{"name":"abcde"}"#, Some("name is above its maxLength")),
            (r#"{"name":"ab","n":1.5}"#, Some("n is not of the type [integer,null]")),
            (r#"{"name":"ab","n":6}"#, Some("n is above its maximum")),
            (r#"{"name":"ab","draft":false}"#, Some("draft is not the one value that is taken")),
            (r#"{"name":"ab","more":1}"#, Some("more is not taken")),
            (r#"{"name":"ab","to":[{},{},{}]}"#, Some("to is above its maxItems")),
            (
                r#"{"name":"ab","to":[{},{"x":2}]}"#,
                Some("to[1].x is not one of the values that are taken"),
            ),
        ];
        let schema = Doc::parse(schema.to_owned()).unwrap();
        for (value, expected) in cases {
            let value = Doc::parse(value.to_owned()).unwrap();
            assert_eq!(fault(schema.root(), value.root()).as_deref(), expected, "{value:?}");
        }
    }
}
