//! Whether a value fits a tool's input schema (JSON Schema 2020-12), before a draft is sent.
//!
//! A draft must be taken by its tool before anything runs (ADR-0030 section 7), so there are three
//! answers: it fits, it does not, or that cannot be told here. The last is refused like the second and
//! says which rule it was: what is not understood never passes as valid.
//!
//! Understood: `type`, `enum`, `const`; the bounds of numbers, strings, arrays and objects, `uniqueItems`
//! and `multipleOf` of whole numbers; `properties`, `required`, `additionalProperties`,
//! `propertyNames`, `dependentRequired`, `dependentSchemas`; `items`, `prefixItems`, `contains`; `allOf`,
//! `anyOf`, `oneOf`, `not`, `if`; `$ref` within the schema. `format` and all unknown words are notes by
//! the specification. Not understood, where they bear upon the value: `pattern`, `patternProperties`,
//! `unevaluatedItems`, `unevaluatedProperties`, `$dynamicRef`, a `$ref` to elsewhere, and the forms of
//! older drafts that mean something else.
//!
//! A fault names the place and the rule, never a value. Limits: [`MAX_DEPTH`] and [`MAX_STEPS`].

use crate::contract::assertion::equal;
use crate::contract::json::{Doc, Kind, Value, write_string};
use crate::contract::pointer::Pointer;

/// How deep rules are followed into each other.
pub const MAX_DEPTH: usize = 64;

/// How many rules are applied to one value: a schema can branch without end.
pub const MAX_STEPS: usize = 20_000;

/// The elements that are compared with each other for `uniqueItems`.
const MAX_COMPARED: usize = 256;

/// Whole numbers below it are exact as doubles, and no other number is read as one of them.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Rules that are not understood, and the kind of value that they bear upon.
const FOREIGN: &[(&str, Option<Kind>)] = &[
    ("$dynamicRef", None),
    ("$recursiveRef", None),
    ("additionalItems", Some(Kind::Array)),
    ("dependencies", Some(Kind::Object)),
    ("disallow", None),
    ("divisibleBy", Some(Kind::Number)),
    ("extends", None),
    ("pattern", Some(Kind::String)),
    ("unevaluatedItems", Some(Kind::Array)),
    ("unevaluatedProperties", Some(Kind::Object)),
];

/// The first fault of a value; `None` if it fits.
pub fn fault(schema: Value<'_>, value: Value<'_>) -> Option<String> {
    let mut judge = Judge { root: schema, place: String::new(), steps: 0 };
    let fault = judge.judge(schema, value, 0).err()?;
    let (place, rule) = match &fault {
        Fault::Unjudged { place, rule } => {
            (place, format!("is under {rule}, which is not judged here"))
        }
        Fault::Wrong { place, rule } => (place, rule.clone()),
    };
    let place = if place.is_empty() { "the arguments" } else { place };
    Some(format!("{place} {rule}"))
}

/// Why a value is not known to fit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// It may or may not fit: a rule is not understood.
    Unjudged { place: String, rule: String },
    /// It does not fit.
    Wrong { place: String, rule: String },
}

type Judged = Result<(), Fault>;

struct Judge<'a> {
    root: Value<'a>,
    place: String,
    steps: usize,
}

impl<'a> Judge<'a> {
    fn wrong(&self, rule: impl Into<String>) -> Judged {
        Err(Fault::Wrong { place: self.place.clone(), rule: rule.into() })
    }

    fn unjudged(&self, rule: impl Into<String>) -> Judged {
        Err(Fault::Unjudged { place: self.place.clone(), rule: rule.into() })
    }

    /// Judges a part of the value, which has a place of its own.
    fn within(&mut self, step: &str, judge: impl FnOnce(&mut Self) -> Judged) -> Judged {
        let length = self.place.len();
        if !self.place.is_empty() && !step.starts_with('[') {
            self.place.push('.');
        }
        self.place.push_str(step);
        let judged = judge(self);
        self.place.truncate(length);
        judged
    }

    fn judge(&mut self, schema: Value<'a>, value: Value<'_>, depth: usize) -> Judged {
        self.steps = self.steps.saturating_add(1);
        if depth > MAX_DEPTH || self.steps > MAX_STEPS {
            return self.unjudged("more rules than are followed");
        }
        match schema.kind() {
            Kind::Bool if schema.as_bool() == Some(true) => return Ok(()),
            Kind::Bool => return self.wrong("is not taken"),
            Kind::Object => {}
            Kind::Array | Kind::Null | Kind::Number | Kind::String => {
                return self.unjudged("a rule that is no schema");
            }
        }
        for (name, kind) in FOREIGN {
            let bears = kind.is_none_or(|kind| kind == value.kind());
            let says_nothing = |rule: Value<'_>| rule.as_bool() == Some(true);
            if bears && schema.get(name).is_some_and(|rule| !says_nothing(rule)) {
                return self.unjudged(format!("the rule `{name}`"));
            }
        }
        self.literal(schema, value)?;
        self.bounds(schema, value)?;
        self.object(schema, value, depth)?;
        self.array(schema, value, depth)?;
        self.combined(schema, value, depth)
    }

    fn literal(&self, schema: Value<'a>, value: Value<'_>) -> Judged {
        if let Some(types) = schema.get("type") {
            let names: Vec<_> = match types.kind() {
                Kind::Array => types.elements().map(Value::as_str).collect(),
                Kind::Bool | Kind::Null | Kind::Number | Kind::Object | Kind::String => {
                    vec![types.as_str()]
                }
            };
            let fits: Option<Vec<bool>> =
                names.iter().map(|name| has_type(name.as_deref()?, value)).collect();
            match fits {
                None => return self.unjudged("a `type` that is none"),
                Some(fits) if !fits.contains(&true) => {
                    let names = types.raw().replace('"', "");
                    return self.wrong(format!("is not of the type {names}"));
                }
                Some(_) => {}
            }
        }
        if schema.get("const").is_some_and(|literal| !equal(literal, value)) {
            return self.wrong("is not the one value that is taken");
        }
        match schema.get("enum") {
            Some(literals) if !literals.elements().any(|literal| equal(literal, value)) => {
                self.wrong("is not one of the values that are taken")
            }
            Some(_) | None => Ok(()),
        }
    }

    fn bounds(&self, schema: Value<'a>, value: Value<'_>) -> Judged {
        let number = |value: Value<'_>| value.as_number()?.parse::<f64>().ok();
        let size = match value.kind() {
            Kind::Array => Some(count(value.elements().count())),
            Kind::Number => number(value),
            Kind::Object => Some(count(value.members().count())),
            Kind::String => value.as_str().map(|text| count(text.chars().count())),
            Kind::Bool | Kind::Null => return Ok(()),
        };
        let names: &[&str] = match value.kind() {
            Kind::Array => &["minItems", "maxItems"],
            Kind::Number => {
                &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
            }
            Kind::Object => &["minProperties", "maxProperties"],
            Kind::Bool | Kind::Null | Kind::String => &["minLength", "maxLength"],
        };
        for name in names {
            let Some(rule) = schema.get(name) else { continue };
            let (Some(limit), Some(size)) = (number(rule), size) else {
                return self.unjudged(format!("a form of `{name}`"));
            };
            // A double tells whole numbers below 2^53 apart, and few bounds of real tools lie beyond.
            if limit.abs() >= MAX_EXACT || size.abs() >= MAX_EXACT {
                return self.unjudged(format!("`{name}` of a number this large"));
            }
            let fits = match *name {
                "exclusiveMaximum" => size < limit,
                "exclusiveMinimum" => size > limit,
                "multipleOf" if limit.fract() == 0.0 && limit > 0.0 => size % limit == 0.0,
                "multipleOf" => return self.unjudged("a form of `multipleOf`"),
                _ if name.starts_with("max") => size <= limit,
                _ => size >= limit,
            };
            match fits {
                true => {}
                false if *name == "multipleOf" => {
                    return self.wrong("is no multiple as it must be");
                }
                false if name.contains("ax") => return self.wrong(format!("is above its {name}")),
                false => return self.wrong(format!("is below its {name}")),
            }
        }
        Ok(())
    }

    fn object(&mut self, schema: Value<'a>, value: Value<'_>, depth: usize) -> Judged {
        if value.kind() != Kind::Object {
            return Ok(());
        }
        let deeper = depth.saturating_add(1);
        for name in schema.get("required").into_iter().flat_map(Value::elements) {
            self.must_have(name, value)?;
        }
        for rule in schema.get("dependentRequired").into_iter().flat_map(Value::members) {
            if value.get(&rule.name()).is_some() {
                for name in rule.value.elements() {
                    self.must_have(name, value)?;
                }
            }
        }
        for rule in schema.get("dependentSchemas").into_iter().flat_map(Value::members) {
            if value.get(&rule.name()).is_some() {
                self.judge(rule.value, value, deeper)?;
            }
        }
        let properties = schema.get("properties");
        let has_patterns =
            schema.get("patternProperties").is_some_and(|rules| rules.members().count() > 0);
        for member in value.members() {
            let name = member.name();
            if let Some(rule) = schema.get("propertyNames") {
                let mut text = String::new();
                write_string(&name, &mut text);
                if let Ok(doc) = Doc::parse(text) {
                    self.within(&name, |judge| judge.judge(rule, doc.root(), deeper))?;
                }
            }
            if has_patterns {
                return self.unjudged("the rule `patternProperties`");
            }
            let own = properties.and_then(|properties| properties.get(&name));
            if let Some(rule) = own.or_else(|| schema.get("additionalProperties")) {
                self.within(&name, |judge| judge.judge(rule, member.value, deeper))?;
            }
        }
        Ok(())
    }

    fn must_have(&mut self, name: Value<'a>, value: Value<'_>) -> Judged {
        match name.as_str() {
            Some(name) if value.get(&name).is_none() => {
                self.within(&name, |judge| judge.wrong("is missing"))
            }
            Some(_) => Ok(()),
            None => self.unjudged("a name that is no text"),
        }
    }

    fn array(&mut self, schema: Value<'a>, value: Value<'_>, depth: usize) -> Judged {
        if value.kind() != Kind::Array {
            return Ok(());
        }
        let deeper = depth.saturating_add(1);
        let first: Vec<Value<'a>> =
            schema.get("prefixItems").into_iter().flat_map(Value::elements).collect();
        let rest = schema.get("items");
        for (position, element) in value.elements().enumerate() {
            if let Some(rule) = first.get(position).copied().or(rest) {
                let step = format!("[{position}]");
                self.within(&step, |judge| judge.judge(rule, element, deeper))?;
            }
        }
        if schema.get("uniqueItems").and_then(Value::as_bool) == Some(true) {
            let elements: Vec<_> = value.elements().collect();
            if elements.len() > MAX_COMPARED {
                return self.unjudged("`uniqueItems` of a list this long");
            }
            let has_twin = elements.iter().enumerate().any(|(position, left)| {
                elements.iter().skip(position.saturating_add(1)).any(|right| equal(*left, *right))
            });
            if has_twin {
                return self.wrong("holds a value twice");
            }
        }
        let Some(rule) = schema.get("contains") else { return Ok(()) };
        let mut found = 0;
        for element in value.elements() {
            match self.judge(rule, element, deeper) {
                Ok(()) => found += 1,
                Err(Fault::Wrong { .. }) => {}
                Err(unjudged @ Fault::Unjudged { .. }) => return Err(unjudged),
            }
        }
        let limit = |name: &str| schema.get(name).map(Value::as_i64);
        let is_few = match limit("minContains") {
            None => found < 1,
            Some(Some(least)) => found < least,
            Some(None) => return self.unjudged("a form of `minContains`"),
        };
        let is_many = match limit("maxContains") {
            None => false,
            Some(Some(most)) => found > most,
            Some(None) => return self.unjudged("a form of `maxContains`"),
        };
        if is_few || is_many { self.wrong("does not hold what it must") } else { Ok(()) }
    }

    /// The rules that are made of schemas for the same value.
    fn combined(&mut self, schema: Value<'a>, value: Value<'_>, depth: usize) -> Judged {
        let deeper = depth.saturating_add(1);
        if let Some(reference) = schema.get("$ref") {
            let Some(target) = self.target(reference) else {
                return self.unjudged("a `$ref` to elsewhere");
            };
            self.judge(target, value, deeper)?;
        }
        for part in schema.get("allOf").into_iter().flat_map(Value::elements) {
            self.judge(part, value, deeper)?;
        }
        for name in ["anyOf", "oneOf"] {
            let Some(parts) = schema.get(name) else { continue };
            let (mut fitting, mut unjudged) = (0, None);
            for part in parts.elements() {
                match self.judge(part, value, deeper) {
                    Ok(()) => fitting += 1,
                    Err(Fault::Wrong { .. }) => {}
                    Err(fault @ Fault::Unjudged { .. }) => unjudged = Some(fault),
                }
            }
            let is_one = name == "oneOf";
            match (fitting, unjudged) {
                (1, None) => {}
                (1.., _) if !is_one => {}
                (2.., _) => return self.wrong("fits more than one form of which it must fit one"),
                (_, Some(fault)) => return Err(fault),
                (_, None) => return self.wrong("fits none of the forms that are taken"),
            }
        }
        if let Some(part) = schema.get("not") {
            match self.judge(part, value, deeper) {
                Ok(()) => return self.wrong("has a form that is not taken"),
                Err(Fault::Wrong { .. }) => {}
                Err(unjudged @ Fault::Unjudged { .. }) => return Err(unjudged),
            }
        }
        let Some(condition) = schema.get("if") else { return Ok(()) };
        let branch = match self.judge(condition, value, deeper) {
            Ok(()) => schema.get("then"),
            Err(Fault::Wrong { .. }) => schema.get("else"),
            Err(unjudged @ Fault::Unjudged { .. }) => return Err(unjudged),
        };
        branch.map_or(Ok(()), |branch| self.judge(branch, value, deeper))
    }

    /// The schema that a `$ref` names: the whole, or a place in it.
    fn target(&self, reference: Value<'a>) -> Option<Value<'a>> {
        let reference = reference.as_str()?;
        let pointer = reference.strip_prefix('#')?;
        if pointer.is_empty() {
            return Some(self.root);
        }
        let pointer = percent_encoding::percent_decode_str(pointer).decode_utf8().ok()?;
        Pointer::parse(&pointer).ok()?.resolve(self.root)
    }
}

/// Whether a value has a type; `None` for a name that is no type.
fn has_type(name: &str, value: Value<'_>) -> Option<bool> {
    Some(match name {
        "array" => value.kind() == Kind::Array,
        "boolean" => value.kind() == Kind::Bool,
        "integer" => {
            let number = value.as_number().and_then(|text| text.parse::<f64>().ok());
            value.kind() == Kind::Number && number.is_some_and(|number| number.fract() == 0.0)
        }
        "null" => value.is_null(),
        "number" => value.kind() == Kind::Number,
        "object" => value.kind() == Kind::Object,
        "string" => value.kind() == Kind::String,
        _ => return None,
    })
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
