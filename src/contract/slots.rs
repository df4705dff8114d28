//! Where the arguments of a follow-up go: path, query, headers and body (standards P-9).
//!
//! Every value that would change the shape of the call instead of filling its place is refused: an
//! empty path segment, `..`, an object in a query, a line feed in a header. So is one whose path this
//! proxy itself would refuse, such as an encoded slash without leave.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::json::{self, Kind};
use super::operation::{Allow, BodyType, Reference, Slot, Target};
use super::path::Found;
use super::template::Template;
use super::undo::Unavailable;

/// Everything but unreserved characters (RFC 3986 section 2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Why a value does not fit its place (standards P-9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Two arguments want one place of the body.
    #[error("has the same place as another argument")]
    Clash,
    /// Not a scalar, in a form body.
    #[error("is no value for a form")]
    Form,
    /// Not a string of visible ASCII.
    #[error("is no value for a header")]
    Header,
    /// Empty, `.`, `..`, null, an object or an array; or it holds what no path may hold here.
    #[error("is no value for a path segment")]
    Path,
    /// The kind of target has no such place.
    #[error("has no place in this call")]
    Place,
    /// Null, an object, an empty array, or an array of anything but scalars.
    #[error("is no value for a query")]
    Query,
    /// A slash, which the target's `allow` does not admit.
    #[error("holds a slash, and the path of its call may not (allow.encoded_slash)")]
    Slash,
}

/// A value in the form of its place.
#[derive(Clone)]
pub(super) enum Fit {
    /// A tool takes it as it is.
    Argument,
    /// Its JSON text, and its pairs where the body is a form.
    Body { json: String, pairs: Vec<String> },
    /// A header's value.
    Header(http::HeaderValue),
    /// A segment's encoded text.
    Path(String),
    /// Encoded values of one name.
    Query(Vec<String>),
}

/// Brings a value into the form of its place; what a header or a segment cannot hold is refused.
pub(super) fn fit(reference: &Reference, slot: &Slot, found: Found<'_>) -> Result<Fit, Unfit> {
    match (&reference.target, slot) {
        (Target::Tool { .. }, Slot::Argument(_)) => Ok(Fit::Argument),
        (Target::Tool { .. }, _) | (Target::Http { .. }, Slot::Argument(_)) => Err(Unfit::Place),
        (Target::Http { .. }, Slot::Path(_)) => {
            let text = plain(found).ok_or(Unfit::Path)?;
            check_segment(&text, reference.allow)?;
            Ok(Fit::Path(encode(&text)))
        }
        (Target::Http { .. }, Slot::Query(_)) => {
            let values = query_values(found).ok_or(Unfit::Query)?;
            Ok(Fit::Query(values.iter().map(|text| encode(text)).collect()))
        }
        (Target::Http { .. }, Slot::Header(_)) => {
            let text = found.as_str().ok_or(Unfit::Header)?;
            let is_visible = !text.is_empty()
                && text.trim() == text
                && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
            match http::HeaderValue::from_str(&text) {
                Ok(value) if is_visible => Ok(Fit::Header(value)),
                Ok(_) | Err(_) => Err(Unfit::Header),
            }
        }
        (Target::Http { .. }, Slot::Body(members)) => {
            let mut pairs = Vec::new();
            if reference.body_type == BodyType::Form {
                form_pairs(members, found, &mut pairs)?;
            }
            Ok(Fit::Body { json: found.to_json().into_owned(), pairs })
        }
    }
}

/// The parts of a call while its arguments are placed.
#[derive(Default)]
pub(super) struct Filled {
    pub(super) path: Vec<(String, String)>,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: Vec<(http::HeaderName, http::HeaderValue)>,
    pub(super) body: Option<Tree>,
    pub(super) form: Vec<String>,
}

impl Filled {
    /// Puts a value in the place that it was made to fit.
    pub(super) fn put(&mut self, slot: &Slot, fit: Fit) -> Result<(), Unfit> {
        match (slot, fit) {
            (Slot::Argument(_), Fit::Argument) => {}
            (Slot::Path(name), Fit::Path(text)) => self.path.push((name.clone(), text)),
            (Slot::Query(name), Fit::Query(values)) => {
                let name = encode(name);
                self.query.extend(values.into_iter().map(|text| (name.clone(), text)));
            }
            (Slot::Header(name), Fit::Header(value)) => self.headers.push((name.clone(), value)),
            (Slot::Body(members), Fit::Body { json, pairs }) => {
                let body = self.body.take();
                self.body = Some(Tree::insert(body, members, &json)?);
                self.form.extend(pairs);
            }
            (_, _) => return Err(Unfit::Place),
        }
        Ok(())
    }

    /// The call's path, with its query.
    ///
    /// # Errors
    ///
    /// A parameter without a value, or a path that is refused here.
    pub(super) fn target(&self, template: &Template) -> Result<String, Unavailable> {
        let value = |name: &str| {
            let found = self.path.iter().find(|(parameter, _)| parameter == name);
            found.map(|(_, value)| value.clone())
        };
        let Some(mut target) = template.build(value) else {
            let missing = template.names().find(|name| value(name).is_none());
            let parameter = missing.unwrap_or_default().to_owned();
            return Err(Unavailable::NoParameter { parameter });
        };
        // Text beside a parameter may make one: `/.{name}` with `.`.
        if target.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err(Unavailable::Path);
        }
        for (position, (name, value)) in self.query.iter().enumerate() {
            target.push(if position == 0 { '?' } else { '&' });
            target.push_str(name);
            target.push('=');
            target.push_str(value);
        }
        Ok(target)
    }

    /// The call's body in its declared type, where an argument belongs in one.
    pub(super) fn body(&self, body_type: BodyType) -> Option<String> {
        let body = self.body.as_ref()?;
        Some(match body_type {
            BodyType::Form => self.form.join("&"),
            BodyType::Json => body.to_json(),
        })
    }
}

/// The path rules that hold for a caller's own call (contract section 3.1), held against a value that a
/// follow-up's path is made of: a call that we would refuse is not offered, and above all not made with
/// the operator's credential.
fn check_segment(text: &str, allow: Allow) -> Result<(), Unfit> {
    let is_odd = |c: char| matches!(c, '\\' | ';') || c.is_ascii_control();
    let has_dots = text.split('/').any(|part| matches!(part, "." | ".."));
    if text.is_empty() || has_dots || text.contains(is_odd) {
        return Err(Unfit::Path);
    }
    if text.contains('/') && !allow.encoded_slash { Err(Unfit::Slash) } else { Ok(()) }
}

/// A scalar's plain text: a string's content, a number and a truth value as they are written.
pub(super) fn plain(found: Found<'_>) -> Option<String> {
    match found {
        Found::Key(key) => Some(key.to_owned()),
        Found::Value(value) => match value.kind() {
            Kind::String => value.as_str().map(Into::into),
            Kind::Bool | Kind::Number => Some(value.raw().to_owned()),
            Kind::Array | Kind::Null | Kind::Object => None,
        },
    }
}

fn query_values(found: Found<'_>) -> Option<Vec<String>> {
    if let Found::Value(value) = found
        && value.kind() == Kind::Array
    {
        let values: Option<Vec<String>> =
            value.elements().map(|element| plain(Found::Value(element))).collect();
        return values.filter(|values| !values.is_empty());
    }
    Some(vec![plain(found)?])
}

pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Adds a body argument to a form: `a[b]=value`. The whole body is an object of scalars.
fn form_pairs(members: &[String], found: Found<'_>, pairs: &mut Vec<String>) -> Result<(), Unfit> {
    let Some((first, rest)) = members.split_first() else {
        let Found::Value(whole) = found else {
            return Err(Unfit::Form);
        };
        if whole.kind() != Kind::Object {
            return Err(Unfit::Form);
        }
        for member in whole.members() {
            let text = plain(Found::Value(member.value)).ok_or(Unfit::Form)?;
            pairs.push(format!("{}={}", encode(&member.name()), encode(&text)));
        }
        return Ok(());
    };
    let text = plain(found).ok_or(Unfit::Form)?;
    let mut name = encode(first);
    for member in rest {
        name.push('[');
        name.push_str(&encode(member));
        name.push(']');
    }
    pairs.push(format!("{name}={}", encode(&text)));
    Ok(())
}

/// A JSON body under construction.
pub(super) enum Tree {
    Leaf(String),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    fn insert(tree: Option<Self>, members: &[String], json: &str) -> Result<Self, Unfit> {
        let Some((first, rest)) = members.split_first() else {
            return if tree.is_none() {
                Ok(Self::Leaf(json.to_owned()))
            } else {
                Err(Unfit::Clash)
            };
        };
        let mut object = match tree {
            None => Vec::new(),
            Some(Self::Object(object)) => object,
            Some(Self::Leaf(_)) => return Err(Unfit::Clash),
        };
        match object.iter().position(|(name, _)| name == first) {
            None => object.push((first.clone(), Self::insert(None, rest, json)?)),
            Some(position) => {
                let (name, inner) = object.remove(position);
                object.insert(position, (name, Self::insert(Some(inner), rest, json)?));
            }
        }
        Ok(Self::Object(object))
    }

    pub(super) fn to_json(&self) -> String {
        match self {
            Self::Leaf(json) => json.clone(),
            Self::Object(members) => {
                let texts: Vec<(&str, String)> =
                    members.iter().map(|(name, tree)| (name.as_str(), tree.to_json())).collect();
                object(texts.iter().map(|(name, json)| (*name, json.as_str())))
            }
        }
    }
}

/// An object's text from its members' names and texts.
pub(super) fn object<'m>(members: impl Iterator<Item = (&'m str, &'m str)>) -> String {
    let mut out = String::from("{");
    for (position, (name, json)) in members.enumerate() {
        if position > 0 {
            out.push(',');
        }
        json::write_string(name, &mut out);
        out.push(':');
        out.push_str(json);
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::class::Class;
    use super::super::json::Doc;
    use super::super::key::OperationId;
    use super::*;

    fn reference(body_type: BodyType) -> Reference {
        Reference {
            operation: OperationId::new("notes.delete").unwrap(),
            target: Target::Http {
                method: http::Method::POST,
                template: Template::parse("/notes").unwrap(),
            },
            class: Class::Irreversible,
            body_type,
            allow: Allow::default(),
        }
    }

    impl Filled {
        fn place(
            &mut self,
            reference: &Reference,
            slot: &Slot,
            found: Found<'_>,
        ) -> Result<(), Unfit> {
            self.put(slot, fit(reference, slot, found)?)
        }
    }

    fn place(filled: &mut Filled, slot: Slot, json: &str) -> Result<(), Unfit> {
        place_typed(filled, BodyType::Json, slot, json)
    }

    fn place_typed(
        filled: &mut Filled,
        body_type: BodyType,
        slot: Slot,
        json: &str,
    ) -> Result<(), Unfit> {
        let doc = Doc::parse(json.to_owned()).unwrap();
        filled.place(&reference(body_type), &slot, Found::Value(doc.root()))
    }

    #[test]
    fn p_9_path_values_fill_one_segment_or_are_refused() {
        let cases = [
            ("\"octo\"", Some("octo")),
            ("\"a/b\"", None),
            ("\"a\\\\b\"", None),
            ("\"a;b=1\"", None),
            ("\"a/../b\"", None),
            ("\"a?b#c%2Fd\"", Some("a%3Fb%23c%252Fd")),
            ("\"é\"", Some("%C3%A9")),
            ("\"a\\u0000\"", None),
            ("\"a\\n\"", None),
            ("\"-._~\"", Some("-._~")),
            ("\"...\"", Some("...")),
            ("100", Some("100")),
            ("-1.50", Some("-1.50")),
            ("1E+2", Some("1E%2B2")),
            ("12345678901234567890", Some("12345678901234567890")),
            ("true", Some("true")),
            ("false", Some("false")),
            ("\"\"", None),
            ("\".\"", None),
            ("\"..\"", None),
            ("\"\\u002e\"", None),
            ("null", None),
            ("{}", None),
            ("[\"a\"]", None),
        ];
        for (json, expected) in cases {
            let mut filled = Filled::default();
            let placed = place(&mut filled, Slot::Path("id".to_owned()), json);
            assert_eq!(placed.is_ok(), expected.is_some(), "{json}");
            let value = filled.path.first().map(|(_, value)| value.as_str());
            assert_eq!(value, expected, "{json}");
        }
    }

    #[test]
    fn p_9_a_slash_needs_the_targets_leave_and_dots_have_none() {
        let mut target = reference(BodyType::Json);
        target.allow.encoded_slash = true;
        let place = |target: &Reference, json: &str| {
            let doc = Doc::parse(json.to_owned()).unwrap();
            let mut filled = Filled::default();
            let slot = Slot::Path("id".to_owned());
            filled.place(target, &slot, Found::Value(doc.root())).map(|()| filled.path)
        };
        let path = place(&target, "\"feature/x\"").unwrap();
        assert_eq!(path, [("id".to_owned(), "feature%2Fx".to_owned())]);
        assert_eq!(place(&target, "\"a/../b\""), Err(Unfit::Path));
        assert_eq!(place(&reference(BodyType::Json), "\"a/b\""), Err(Unfit::Slash));
    }

    #[test]
    fn p_9_queries_repeat_an_array_of_scalars() {
        let cases = [
            ("\"a b&c=d\"", Some("n=a%20b%26c%3Dd")),
            ("\"\"", Some("n=")),
            ("7", Some("n=7")),
            ("true", Some("n=true")),
            ("[\"a\",1,false]", Some("n=a n=1 n=false")),
            ("[]", None),
            ("[null]", None),
            ("[[1]]", None),
            ("null", None),
            ("{}", None),
        ];
        for (json, expected) in cases {
            let mut filled = Filled::default();
            let placed = place(&mut filled, Slot::Query("n".to_owned()), json);
            assert_eq!(placed.is_ok(), expected.is_some(), "{json}");
            let pairs: Vec<String> =
                filled.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert_eq!(pairs.join(" "), expected.unwrap_or_default(), "{json}");
        }
    }

    #[test]
    fn p_9_headers_take_visible_ascii_strings_only() {
        let cases = [
            ("\"\\\"etag\\\"\"", true),
            ("\"a b\"", true),
            ("\"\"", false),
            ("\" a\"", false),
            ("\"a\\r\\nx: y\"", false),
            ("\"a\\tb\"", false),
            ("\"é\"", false),
            ("\"\\u007f\"", false),
            ("5", false),
            ("true", false),
            ("null", false),
            ("[\"a\"]", false),
        ];
        for (json, is_fit) in cases {
            let mut filled = Filled::default();
            let slot = Slot::Header(http::HeaderName::from_static("if-match"));
            assert_eq!(place(&mut filled, slot, json).is_ok(), is_fit, "{json}");
            assert_eq!(filled.headers.len(), usize::from(is_fit), "{json}");
        }
    }

    fn member(path: &str) -> Slot {
        Slot::Body(path.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    #[test]
    fn json_bodies_nest_in_declaration_order_and_keep_the_text() {
        let mut filled = Filled::default();
        for (path, json) in
            [("z.b", "1.0"), ("a", "null"), ("z.a", "{ \"x\" : 1e2 }"), ("z.c.d", "\"\\u0061\"")]
        {
            place(&mut filled, member(path), json).unwrap();
        }

        let body = filled.body.unwrap().to_json();

        assert_eq!(body, r#"{"z":{"b":1.0,"a":{ "x" : 1e2 },"c":{"d":"\u0061"}},"a":null}"#);
    }

    #[test]
    fn a_whole_body_is_passed_as_it_was_written() {
        let mut filled = Filled::default();
        place(&mut filled, member(""), "[ 1 , 2 ]").unwrap();
        assert_eq!(filled.body.unwrap().to_json(), "[ 1 , 2 ]");
    }

    #[test]
    fn two_arguments_for_one_place_of_the_body_are_refused() {
        for (first, second) in [("", "a"), ("a", ""), ("a", "a"), ("a", "a.b"), ("a.b", "a")] {
            let mut filled = Filled::default();
            place(&mut filled, member(first), "{}").unwrap();
            let clash = place(&mut filled, member(second), "{}");
            assert_eq!(clash, Err(Unfit::Clash), "{first} and {second}");
        }
    }

    #[test]
    fn k_1_forms_nest_with_brackets_and_take_scalars_only() {
        let mut filled = Filled::default();
        let form = BodyType::Form;
        for (path, json) in
            [("amount", "2000"), ("metadata.order id", "\"a&b é\""), ("flags.x.y", "true")]
        {
            place_typed(&mut filled, form, member(path), json).unwrap();
        }
        let pairs = filled.form.join("&");
        assert_eq!(pairs, "amount=2000&metadata[order%20id]=a%26b%20%C3%A9&flags[x][y]=true");

        for json in ["null", "{}", "[1]"] {
            let mut filled = Filled::default();
            let placed = place_typed(&mut filled, form, member("a"), json);
            assert_eq!(placed, Err(Unfit::Form), "{json}");
        }
    }

    #[test]
    fn k_1_a_whole_form_body_is_an_object_of_scalars() {
        let cases = [
            (r#"{"a":"1","m[k]":"v w"}"#, Some("a=1&m%5Bk%5D=v%20w")),
            ("{}", Some("")),
            (r#"{"a":{"b":1}}"#, None),
            (r#"{"a":null}"#, None),
            ("[1]", None),
            ("\"a=1\"", None),
        ];
        for (json, expected) in cases {
            let mut filled = Filled::default();
            let placed = place_typed(&mut filled, BodyType::Form, member(""), json);
            match expected {
                Some(pairs) => assert_eq!(filled.form.join("&"), pairs, "{json}"),
                None => assert_eq!(placed, Err(Unfit::Form), "{json}"),
            }
        }
    }

    #[test]
    fn places_that_a_target_does_not_have_are_refused() {
        let doc = Doc::parse("1").unwrap();
        let found = Found::Value(doc.root());
        let tool = Reference {
            target: Target::Tool { name: Arc::from("notes__delete") },
            ..reference(BodyType::Json)
        };
        let mut filled = Filled::default();

        let argument = Slot::Argument("id".to_owned());
        assert_eq!(filled.place(&tool, &argument, found), Ok(()));
        assert_eq!(filled.place(&tool, &Slot::Path("id".to_owned()), found), Err(Unfit::Place));
        let http = reference(BodyType::Json);
        assert_eq!(filled.place(&http, &argument, found), Err(Unfit::Place));
    }

    proptest! {
        #[test]
        fn p_9_any_string_is_one_segment_or_refused(text in any::<String>()) {
            let mut json = String::new();
            json::write_string(&text, &mut json);
            let mut filled = Filled::default();
            if place(&mut filled, Slot::Path("id".to_owned()), &json).is_ok() {
                let value = &filled.path[0].1;
                let decoded = percent_encoding::percent_decode_str(value).decode_utf8().unwrap();
                prop_assert_eq!(decoded.as_ref(), text.as_str());
                prop_assert!(!value.contains(['/', '?', '#', '\\', ';']));
                prop_assert!(!matches!(value.as_str(), "" | "." | ".."));
            } else {
                let is_odd = |c: char| matches!(c, '/' | '\\' | ';' | '\0'..='\x1f' | '\x7f');
                prop_assert!(matches!(text.as_str(), "" | "." | "..") || text.contains(is_odd));
            }
        }
    }
}
