//! Where the arguments of a follow-up go: path, query, headers and body (standards P-9).
//!
//! Every value that would change the shape of the call instead of filling its place is refused: an
//! empty path segment, `..`, an object in a query, a line feed in a header.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::json::{self, Kind};
use super::operation::{BodyType, Reference, Slot, Target};
use super::path::Found;

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
    /// Empty, `.`, `..`, null, an object or an array.
    #[error("is no value for a path segment")]
    Path,
    /// The kind of target has no such place.
    #[error("has no place in this call")]
    Place,
    /// Null, an object, an empty array, or an array of anything but scalars.
    #[error("is no value for a query")]
    Query,
}

/// The parts of a call while its arguments are placed.
#[derive(Default)]
pub(super) struct Filled {
    pub(super) path: Vec<(String, String)>,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: Vec<(http::HeaderName, http::HeaderValue)>,
    pub(super) body: Option<Tree>,
    pub(super) form: Option<Vec<String>>,
}

impl Filled {
    /// Puts a value in its place; what a header or a segment cannot hold is refused.
    pub(super) fn place(
        &mut self,
        reference: &Reference,
        slot: &Slot,
        found: Found<'_>,
    ) -> Result<(), Unfit> {
        match (&reference.target, slot) {
            (Target::Tool { .. }, Slot::Argument(_)) => {}
            (Target::Tool { .. }, _) | (Target::Http { .. }, Slot::Argument(_)) => {
                return Err(Unfit::Place);
            }
            (Target::Http { .. }, Slot::Path(name)) => {
                let text = plain(found).ok_or(Unfit::Path)?;
                if matches!(text.as_str(), "" | "." | "..") {
                    return Err(Unfit::Path);
                }
                self.path.push((name.clone(), encode(&text)));
            }
            (Target::Http { .. }, Slot::Query(name)) => {
                for text in query_values(found).ok_or(Unfit::Query)? {
                    self.query.push((encode(name), encode(&text)));
                }
            }
            (Target::Http { .. }, Slot::Header(name)) => {
                let text = found.as_str().ok_or(Unfit::Header)?;
                let is_visible = !text.is_empty()
                    && text.trim() == text
                    && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
                match http::HeaderValue::from_str(&text) {
                    Ok(value) if is_visible => self.headers.push((name.clone(), value)),
                    Ok(_) | Err(_) => return Err(Unfit::Header),
                }
            }
            (Target::Http { .. }, Slot::Body(members)) => {
                let body = self.body.take();
                self.body = Some(Tree::insert(body, members, &found.to_json())?);
                if reference.body_type == BodyType::Form {
                    let pairs = self.form.get_or_insert_default();
                    form_pairs(members, found, pairs)?;
                }
            }
        }
        Ok(())
    }
}

/// A scalar's plain text: a string's content, a number and a truth value as they are written.
fn plain(found: Found<'_>) -> Option<String> {
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

fn encode(text: &str) -> String {
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
