//! What a plain HTTP request says, in the one shape that paths, pointers and conditions read.
//!
//! A request is `{path, query, header, body}` (contract section 2). The head's three members are made
//! into one small document; the body is read by its type: JSON strictly, a form as an object of
//! strings, anything else not at all.

use std::collections::HashMap;

use bytes::Bytes;
use http::{HeaderMap, header};

use super::pairs;
use super::target::is_override;
use crate::call::digest::{BodyForm, is_credential};
use crate::call::refusal::{Refusal, Twofold};
use crate::contract::assertion::is_alike;
use crate::contract::json::{Doc, Value, folded, folds_onto, owner, write_string};
use crate::contract::path::Request;
use crate::policy::Elsewhere;

/// A request body by its type.
#[derive(Clone, Debug)]
pub enum BodyDoc {
    /// No body.
    None,
    /// `application/json` or `+json`.
    Json(Doc),
    /// `application/x-www-form-urlencoded`, as an object of strings, and the names that two readers
    /// could resolve differently, in lower case.
    Form(Doc, Vec<String>),
    /// Any other type, or a form whose text is JSON; paths into it name nothing.
    Opaque,
}

impl BodyDoc {
    /// Reads a body.
    ///
    /// # Errors
    ///
    /// 400 for JSON that is not strict, 415 for a charset other than UTF-8 or a coding on a type that
    /// is read here (cases A8, E6).
    pub fn read(headers: &HeaderMap, bytes: &Bytes) -> Result<Self, Refusal> {
        if bytes.is_empty() {
            return Ok(Self::None);
        }
        let kind = Type::of(headers);
        if kind == Type::Opaque {
            return if overrides_in_parts(headers, bytes) {
                Err(Refusal::MethodOverride)
            } else {
                Ok(Self::Opaque)
            };
        }
        let is_coded = headers
            .get_all(header::CONTENT_ENCODING)
            .iter()
            .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"));
        if is_coded {
            return Err(Refusal::ContentCoding);
        }
        if !has_utf8_charset(headers) {
            return Err(Refusal::MediaType);
        }
        match kind {
            Type::Json => Doc::parse(bytes.clone())
                .map(Self::Json)
                .map_err(|error| Refusal::InvalidJson(error.to_string())),
            Type::Form => form(bytes),
            Type::Opaque => Ok(Self::Opaque),
        }
    }

    /// The value that paths read.
    pub fn value(&self) -> Option<Value<'_>> {
        match self {
            Self::Json(doc) | Self::Form(doc, _) => Some(doc.root()),
            Self::None | Self::Opaque => None,
        }
    }

    /// How the digest sees it.
    pub fn form<'a>(&'a self, essence: &'a str, bytes: &'a [u8]) -> BodyForm<'a> {
        match self {
            Self::None => BodyForm::None,
            Self::Json(doc) => BodyForm::Json(essence, doc.root()),
            Self::Form(..) | Self::Opaque => BodyForm::Opaque(essence, bytes),
        }
    }
}

/// Whether a form in parts has a field that asks for another method (standards H-32).
fn overrides_in_parts(headers: &HeaderMap, bytes: &Bytes) -> bool {
    let is_in_parts =
        essence(headers).get(..10).is_some_and(|s| s.eq_ignore_ascii_case("multipart/"));
    let has = |needle: &[u8]| {
        bytes.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle))
    };
    is_in_parts && (has(b"name=\"_method\"") || has(b"name=_method"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Form,
    Json,
    Opaque,
}

impl Type {
    fn of(headers: &HeaderMap) -> Self {
        let essence = essence(headers);
        if is_json(essence) {
            Self::Json
        } else if essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            Self::Form
        } else {
            Self::Opaque
        }
    }
}

/// The media type without its parameters; empty where there is none.
pub fn essence(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let value = value.unwrap_or_default();
    let end = memchr::memchr(b';', value.as_bytes()).unwrap_or(value.len());
    value.get(..end).unwrap_or_default().trim()
}

/// Whether gateways may make parameters of a body that is not read here: of parts and XML they do, and of one
/// that says nothing of its type some do. Of pictures, bytes, YAML and protocol buffers none does.
fn may_be_parameters(headers: &HeaderMap) -> bool {
    let essence = essence(headers).to_ascii_lowercase();
    let is_opaque = ["audio/", "font/", "image/", "video/", "application/grpc"];
    let is_opaque = is_opaque.iter().any(|start| essence.starts_with(start))
        || essence == "application/octet-stream"
        || essence.contains("yaml")
        || essence.contains("protobuf");
    !is_opaque
}

/// Whether a media type is JSON: `application/json` or `*/*+json`.
pub fn is_json(essence: &str) -> bool {
    let json = "+json";
    essence.eq_ignore_ascii_case("application/json")
        || essence
            .len()
            .checked_sub(json.len())
            .and_then(|at| essence.get(at..))
            .is_some_and(|suffix| suffix.eq_ignore_ascii_case(json))
}

/// Whether a text that is to be JSON breaks off inside a value, or before one. A number at its end
/// may have been longer, which nothing tells.
pub fn is_cut_json(text: &[u8]) -> bool {
    let read = |text: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(text);
    let Err(error) = read(text) else { return false };
    // Inside a number it would have gone on with a digit.
    error.is_eof() || read(&[text, b"0"].concat()).map_or_else(|error| error.is_eof(), |_| true)
}

fn has_utf8_charset(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let parameters = value.unwrap_or_default().split(';').skip(1);
    parameters
        .filter_map(|parameter| parameter.split_once('='))
        .filter(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))
        .all(|(_, charset)| {
            let charset = charset.trim().trim_matches('"');
            charset.eq_ignore_ascii_case("utf-8") || charset.eq_ignore_ascii_case("utf8")
        })
}

/// A form or a query as decoded pairs; `None` if a name or value is not UTF-8.
fn pairs(text: &[u8]) -> Option<Vec<(String, String)>> {
    let pair = |pair: &[u8]| {
        let (name, value) = pairs::halves(pair);
        Some((pairs::decoded(name)?, pairs::decoded(value)?))
    };
    pairs::parted(text).map(pair).collect()
}

/// The values of each name, names in order of their first appearance.
fn grouped(pairs: &[(String, String)]) -> Vec<(&str, Vec<&str>)> {
    let mut places: HashMap<&str, usize> = HashMap::with_capacity(pairs.len());
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, value) in pairs {
        let place = *places.entry(name).or_insert(groups.len());
        match groups.get_mut(place) {
            Some((_, values)) => values.push(value),
            None => groups.push((name, vec![value])),
        }
    }
    groups
}

/// The most fields that a form may have: each costs more than its text.
const MAX_FIELDS: usize = 16 * 1024;

fn form(bytes: &Bytes) -> Result<BodyDoc, Refusal> {
    if bytes.iter().filter(|byte| matches!(**byte, b'&' | b';')).count() >= MAX_FIELDS {
        return Err(Refusal::InvalidJson("the form has too many fields".to_owned()));
    }
    let unreadable = || Refusal::InvalidJson("the form is not UTF-8".to_owned());
    let pairs = pairs(bytes).ok_or_else(unreadable)?;
    let mut further = pairs::further(bytes).map(pairs::name);
    if pairs.iter().any(|(name, _)| is_override(name)) || further.any(|name| is_override(&name)) {
        return Err(Refusal::MethodOverride);
    }
    // A reader who does not look at the type finds other members in it than a form's.
    let is_json_too = matches!(bytes.trim_ascii_start().first(), Some(b'{' | b'['))
        && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
    if is_json_too {
        return Ok(BodyDoc::Opaque);
    }
    let mut doubled = doubled(pairs.iter().map(|(name, _)| name.as_str()));
    doubled.extend(parted_further(bytes, &pairs));
    let mut json = String::from("{");
    for (index, (name, values)) in grouped(&pairs).into_iter().enumerate() {
        member(&mut json, index, name);
        write_string(values.first().copied().unwrap_or_default(), &mut json);
    }
    json.push('}');
    let doc = Doc::parse(json).map_err(|_| unreadable())?;
    Ok(BodyDoc::Form(doc, doubled))
}

/// Names that two of its readers resolve differently, folded: those that come twice once they are
/// folded, and `NAME` beside `NAME.x`.
fn doubled<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let mut folds: Vec<String> = names.clone().map(folded).collect();
    folds.sort();
    let mut doubled: Vec<String> = folds
        .windows(2)
        .filter_map(|pair| match pair {
            [left, right] if left == right => Some(left.clone()),
            _ => None,
        })
        .collect();
    doubled.extend(names.filter_map(owner).filter(|owner| folds.binary_search(owner).is_ok()));
    doubled
}

/// Names whose value is another to readers that part pairs at `;` too, before they decode or after it,
/// folded: a rule that reads such a name has two readings.
fn parted_further(text: &[u8], pairs: &[(String, String)]) -> Vec<String> {
    let raw = pairs::further(text).map(pairs::name);
    // Of `a;b=1` the name is `a;b`; of `a=1;b=2` the value is `1;b=2`.
    let behind = |text: &str| -> Vec<String> {
        let pieces = text.split(';').skip(1);
        pieces.map(|piece| piece.split('=').next().unwrap_or_default().to_owned()).collect()
    };
    let decoded = pairs.iter().flat_map(|(name, value)| [behind(name), behind(value)].concat());
    raw.chain(decoded).map(|name| folded(&name)).collect()
}

/// A plain HTTP request, as the policy reads it.
#[derive(Clone, Debug)]
pub struct RequestDoc {
    head: Doc,
    /// The body.
    pub body: BodyDoc,
    /// Query names that come twice but for case, or beside a `;`, folded.
    doubled_query: Vec<String>,
    is_readable: bool,
    /// Gateways make parameters of a body of its type.
    may_be_parameters: bool,
}

impl RequestDoc {
    /// Makes the document of a request. `parameters` are the template's, still encoded.
    ///
    /// Query values are strings; a name that comes again is an array. Headers are strings by their
    /// lower-case name; credentials are left out, and so are values that are not visible ASCII.
    pub fn new(
        parameters: &[(&str, &str)],
        query: Option<&str>,
        headers: &HeaderMap,
        body: BodyDoc,
    ) -> Self {
        let mut json = String::from("{\"path\":{");
        let mut is_readable = true;
        for (index, (name, value)) in parameters.iter().enumerate() {
            let decoded = percent_encoding::percent_decode_str(value).decode_utf8();
            let Ok(decoded) = decoded else {
                is_readable = false;
                continue;
            };
            member(&mut json, index, name);
            write_string(&decoded, &mut json);
        }
        json.push_str("},\"query\":{");
        let pairs = pairs(query.unwrap_or_default().as_bytes()).unwrap_or_else(|| {
            is_readable = false;
            Vec::new()
        });
        for (index, (name, values)) in grouped(&pairs).into_iter().enumerate() {
            member(&mut json, index, name);
            write_one_or_all(&values, &mut json);
        }
        json.push_str("},\"header\":{");
        let mut count = 0_usize;
        for name in headers.keys().filter(|name| !is_credential(name.as_str())) {
            let values: Option<Vec<&str>> =
                headers.get_all(name).iter().map(|value| value.to_str().ok()).collect();
            if let Some(values) = values {
                member(&mut json, count, name.as_str());
                count = count.saturating_add(1);
                write_one_or_all(&values, &mut json);
            }
        }
        json.push_str("}}");
        let doubled_query = {
            let mut distinct: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
            distinct.sort_unstable();
            distinct.dedup();
            let mut doubled = doubled(distinct.into_iter());
            doubled.extend(parted_further(query.unwrap_or_default().as_bytes(), &pairs));
            doubled
        };
        let may_be_parameters = matches!(body, BodyDoc::Opaque) && may_be_parameters(headers);
        let head = Doc::parse(json);
        is_readable = is_readable && head.is_ok();
        let head = head.or_else(|_| Doc::parse("{\"path\":{},\"query\":{},\"header\":{}}"));
        match head {
            Ok(head) => Self { head, body, doubled_query, is_readable, may_be_parameters },
            // The text above is JSON; this arm keeps the function total.
            Err(_) => Self {
                head: Doc::default(),
                body: BodyDoc::Opaque,
                doubled_query,
                is_readable: false,
                may_be_parameters,
            },
        }
    }

    /// The request as paths see it.
    pub fn request(&self) -> Request<'_> {
        if self.is_readable {
            let is_opaque = matches!(self.body, BodyDoc::Opaque);
            Request::Http { head: self.head.root(), body: self.body.value(), is_opaque }
        } else {
            Request::Unreadable
        }
    }

    /// How what a rule reads at this place can be resolved in two ways, if it can: a name that comes twice
    /// on the way to it, as readers compare names; or one that stands in query and body both (contract
    /// section 2, Bodies), in a JSON body with another value; or one that stands only in the other of the
    /// two; or a header that is there under a spelling with `_`.
    pub fn twofold(&self, section: &str, names: &[String]) -> Option<Twofold> {
        let (first, rest) = names.split_first()?;
        let folded = folded(first);
        let is_twice = match (section, &self.body) {
            ("query", _) => self.doubled_query.contains(&folded),
            ("body", BodyDoc::Form(_, doubled)) => doubled.contains(&folded),
            ("body", BodyDoc::Json(doc)) => has_case_twin(doc.root(), names),
            (_, _) => false,
        };
        if is_twice {
            return Some(Twofold::Twice);
        }
        let values = match self.elsewhere(section, names) {
            Elsewhere::Nowhere => return None,
            Elsewhere::Unknown => Vec::new(),
            Elsewhere::Values(values) => values,
        };
        let own = match section {
            "body" => self.body.value(),
            _ => self.head.root().get(section),
        };
        let is_own = |name: &str| match section {
            "header" => name == first,
            _ => folds_onto(name, &folded),
        };
        let own: Vec<Value<'_>> = own
            .into_iter()
            .flat_map(Value::members)
            .filter(|member| is_own(&member.name()))
            .map(|member| member.value)
            .collect();
        let is_form = matches!(self.body, BodyDoc::Form(..)) && section != "header";
        let is_same = rest.is_empty()
            && !values.is_empty()
            && own.iter().all(|own| values.iter().all(|value| is_alike(*own, *value)));
        match own.is_empty() {
            true => Some(Twofold::Elsewhere),
            false => (is_form || !is_same).then_some(Twofold::TwoPlaces),
        }
    }

    /// What some reader finds for a place that a rule reads elsewhere: in the body for the query and in the
    /// query for the body, because frameworks merge the two, and in a header with `_` for `-`.
    pub fn elsewhere(&self, section: &str, names: &[String]) -> Elsewhere<'_> {
        let Some((first, rest)) = names.split_first() else { return Elsewhere::Nowhere };
        let folded = folded(first);
        let other = match section {
            "query" => self.body.value(),
            "body" => self.head.root().get("query"),
            // Some readers take `_` in a header's name for `-`, and others drop such a header.
            "header" => self.head.root().get("header"),
            _ => None,
        };
        let is_hidden = match (section, &self.body) {
            ("query", BodyDoc::Form(_, doubled)) => doubled.contains(&folded),
            ("body", _) => self.doubled_query.contains(&folded),
            (_, _) => false,
        };
        if is_hidden {
            return Elsewhere::Unknown;
        }
        let dashed = first.replace('_', "-");
        let is_it = |name: &str| match section {
            "header" => name.contains('_') && name.replace('_', "-") == dashed,
            _ => folds_onto(name, &folded),
        };
        let members = other.into_iter().flat_map(Value::members);
        let values: Vec<Value<'_>> =
            members.filter(|member| is_it(&member.name())).map(|member| member.value).collect();
        match (values.is_empty(), rest) {
            (true, _) => Elsewhere::Nowhere,
            (false, []) => Elsewhere::Values(values),
            // Text is not what has members, and a reader may make it so.
            (false, _) => Elsewhere::Unknown,
        }
    }

    /// Whether there is a body that is not read here, and of which gateways make parameters.
    pub fn has_unread_parameters(&self) -> bool {
        matches!(self.body, BodyDoc::Opaque) && self.may_be_parameters
    }

    /// Whether its JSON body has a member under which frameworks take another method (standards H-32). In
    /// a form it is refused when the body is read.
    pub fn overrides_method(&self) -> bool {
        match &self.body {
            BodyDoc::Json(doc) => {
                doc.root().members().any(|member| folded(&member.name()) == "_method")
            }
            BodyDoc::Form(..) | BodyDoc::None | BodyDoc::Opaque => false,
        }
    }

    /// Whether there is a member beside the one at this place that a laxer reader takes for it.
    pub fn has_twin(&self, section: &str, names: &[String]) -> bool {
        let Some((last, parents)) = names.split_last() else {
            return false;
        };
        let root = match section {
            "body" => self.body.value(),
            _ => self.head.root().get(section),
        };
        let parent = parents.iter().try_fold(root, |at, name| Some(at?.get(name)));
        parent.flatten().is_some_and(|parent| parent.has_twin(last))
    }
}

/// Whether an object on the way along these names has two members that are equal but for case.
pub fn has_case_twin(value: Value<'_>, names: &[String]) -> bool {
    let mut at = value;
    for name in names {
        let folded = name.to_lowercase();
        let twins = at.members().filter(|member| member.name().to_lowercase() == folded).count();
        if twins > 1 {
            return true;
        }
        let position = name.parse::<usize>().ok();
        let next = at.get(name).or_else(|| position.and_then(|position| at.at(position)));
        match next {
            Some(next) => at = next,
            None => return false,
        }
    }
    false
}

fn member(json: &mut String, index: usize, name: &str) {
    if index > 0 {
        json.push(',');
    }
    write_string(name, json);
    json.push(':');
}

fn write_one_or_all(values: &[&str], json: &mut String) {
    if let [one] = values {
        write_string(one, json);
        return;
    }
    json.push('[');
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            json.push(',');
        }
        write_string(value, json);
    }
    json.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::path::{Path, Scope};

    fn headers(content_type: &str) -> HeaderMap {
        let mut map = HeaderMap::new();
        map.insert(header::CONTENT_TYPE, content_type.parse().unwrap());
        map
    }

    fn read(content_type: &str, body: &'static str) -> Result<BodyDoc, &'static str> {
        BodyDoc::read(&headers(content_type), &Bytes::from_static(body.as_bytes()))
            .map_err(|refusal| refusal.code())
    }

    fn text(doc: &RequestDoc, path: &str) -> Option<String> {
        let scope = Scope { before: None, request: doc.request(), response: None, key: None };
        Path::parse(path).unwrap().resolve(&scope).map(|found| found.to_json().into_owned())
    }

    #[test]
    fn json_that_breaks_off_is_told_from_json_that_is_whole_and_from_no_json() {
        let whole = r#"{"a":[1,"x\u00e9é",{"b":null}],"c":-1.5e3} "#;
        for end in 0..whole.len() {
            let is_whole = whole.as_bytes()[..end].ends_with(b"}") && end + 1 >= whole.len();
            assert_eq!(is_cut_json(&whole.as_bytes()[..end]), !is_whole, "{end}");
        }
        for (text, is_cut) in [
            (whole, false),
            ("", true),
            (" \n", true),
            ("tru", true),
            ("\"a", true),
            ("12", false),
            ("-", true),
            ("[1e", true),
            ("ok", false),
            ("done", false),
            ("<html>", false),
            ("{}\n{}", false),
            ("{} {", false),
        ] {
            assert_eq!(is_cut_json(text.as_bytes()), is_cut, "{text}");
        }
    }

    #[test]
    fn a_name_behind_a_semicolon_has_two_readings() {
        for (text, hidden) in [
            ("a=1&b=2", vec![]),
            ("a=1;force=true", vec!["a", "force"]),
            ("a;Force=true&b=1", vec!["a", "force"]),
            ("a=1;b.c=2;d", vec!["a", "b_c", "d"]),
            ("a=1&a=x%3Bforce=1", vec!["force"]),
        ] {
            let pairs = pairs(text.as_bytes()).unwrap();
            let mut found = parted_further(text.as_bytes(), &pairs);
            found.sort();
            found.dedup();
            assert_eq!(found, hidden, "{text}");
        }
    }

    #[test]
    fn e1_e5_e6_json_is_read_strictly_or_refused() {
        assert!(matches!(read("application/json", "{\"a\":1}"), Ok(BodyDoc::Json(_))));
        assert!(matches!(
            read("application/vnd.x+JSON; charset=\"UTF-8\"", "1"),
            Ok(BodyDoc::Json(_))
        ));
        assert!(matches!(read("text/plain", "{\"a\":1,\"a\":2}"), Ok(BodyDoc::Opaque)));
        assert!(matches!(read("application/json", ""), Ok(BodyDoc::None)));
        assert_eq!(read("application/json", "{\"a\":1,\"a\":2}").unwrap_err(), "invalid_json");
        assert_eq!(read("application/json", "\u{feff}{}").unwrap_err(), "invalid_json");
        assert_eq!(read("application/json; charset=utf-16", "{}").unwrap_err(), "media_type");
        assert_eq!(read("application/json; charset=iso-8859-1", "{}").unwrap_err(), "media_type");
    }

    #[test]
    fn a8_a_coded_body_that_must_be_read_is_refused() {
        let mut map = headers("application/json");
        map.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        let refused = BodyDoc::read(&map, &Bytes::from_static(b"{}")).unwrap_err();
        assert_eq!(refused.status(), 415);
        let mut opaque = headers("application/octet-stream");
        opaque.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        assert!(matches!(BodyDoc::read(&opaque, &Bytes::from_static(b"x")), Ok(BodyDoc::Opaque)));
    }

    #[test]
    fn paths_read_the_four_sections() {
        let body = read("application/json", "{\"a\":{\"b\":9007199254740993}}").unwrap();
        let mut map = headers("application/json");
        map.insert("x-tenant", "t".parse().unwrap());
        map.insert(header::AUTHORIZATION, "secret".parse().unwrap());
        let query = Some("q=a+b%21&r=1&r=2");
        let doc = RequestDoc::new(&[("owner", "oc%20to")], query, &map, body);

        assert_eq!(text(&doc, "request.path.owner").as_deref(), Some("\"oc to\""));
        assert_eq!(text(&doc, "request.query.q").as_deref(), Some("\"a b!\""));
        assert_eq!(text(&doc, "request.query.r").as_deref(), Some("[\"1\",\"2\"]"));
        assert_eq!(text(&doc, "request.header.x-tenant").as_deref(), Some("\"t\""));
        assert_eq!(text(&doc, "request.body.a.b").as_deref(), Some("9007199254740993"));
        assert_eq!(text(&doc, "request.header.authorization"), None);
    }

    #[test]
    fn k1_e8_forms_are_objects_of_strings_and_doubled_names_are_known() {
        let form = "application/x-www-form-urlencoded";
        let body = read(form, "amount=2000&currency=usd&metadata[key]=v").unwrap();
        let doc = RequestDoc::new(&[], None, &HeaderMap::new(), body);
        assert_eq!(text(&doc, "request.body.amount").as_deref(), Some("\"2000\""));
        assert_eq!(None, doc.twofold("body", &["amount".to_owned()]));

        for body in [
            "amount=1&amount=2",
            "amount=1&Amount=2",
            "amount=1&amount[0]=2",
            "amount=1&+amount=2",
            "amount=1&amount+=2",
            "amount=1&amount%00=2",
            "amount=1&amount%00x=2",
            "amount=1&amount.x=2",
        ] {
            let doc = RequestDoc::new(&[], None, &HeaderMap::new(), read(form, body).unwrap());
            assert!(doc.twofold("body", &["amount".to_owned()]).is_some(), "{body}");
        }
        let nested = read(form, "to.city=1&to.zip=2").unwrap();
        let nested = RequestDoc::new(&[], None, &HeaderMap::new(), nested);
        assert_eq!(None, nested.twofold("body", &["to.city".to_owned()]));
        let php = read(form, "to.city=1&to_city=2").unwrap();
        let php = RequestDoc::new(&[], None, &HeaderMap::new(), php);
        assert!(php.twofold("body", &["to.city".to_owned()]).is_some());
        let body = read(form, "amount=1").unwrap();
        let both = RequestDoc::new(&[], Some("AMOUNT=2"), &HeaderMap::new(), body);
        assert!(both.twofold("body", &["amount".to_owned()]).is_some());
        assert!(both.twofold("query", &["AMOUNT".to_owned()]).is_some());
        for name in ["_method", ".method", "+_method", "_method%00", "_method%5B0%5D"] {
            let body = format!("{name}=DELETE").leak();
            assert_eq!(read(form, body).unwrap_err(), "method_override");
        }
    }

    #[test]
    fn json_members_equal_but_for_case_are_ambiguous_where_they_are_read() {
        let body = read("application/json", "{\"a\":{\"b\":1,\"B\":2},\"c\":3}").unwrap();
        let doc = RequestDoc::new(&[], None, &HeaderMap::new(), body);
        assert!(doc.twofold("body", &["a".to_owned(), "b".to_owned()]).is_some());
        assert_eq!(None, doc.twofold("body", &["a".to_owned()]));
        assert_eq!(None, doc.twofold("body", &["c".to_owned()]));
    }
}
