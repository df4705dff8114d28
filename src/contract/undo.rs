//! Follow-ups: the call that takes an effect back, finds it, or makes its draft, filled with values
//! of one call (ADR-0030 sections 2 and 7, standards 5.2 to 5.4).
//!
//! A follow-up is complete or unavailable, never a call with a gap: the first argument in declaration
//! order that cannot be filled names itself as the reason. A deadline that names no time makes the
//! follow-up unavailable too, because a wrong deadline is worse than none. Reasons name arguments and
//! paths, which the policy wrote, and never values.
//!
//! What is built here is matched again by the caller: a value may make it another operation's call.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::decimal::Decimal;
use super::json::{self, Doc, Kind, Value};
use super::key::OperationId;
use super::operation::{
    Argument, BodyType, Deadline, Draft, FollowUp, Lookup, Mapping, Reference, Slot, Target,
    TimeUnit,
};
use super::path::{Found, HTTP_SECTIONS, Path, Request, Root, Scope, Segment};
use super::pointer::Pointer;

/// The latest deadline, in milliseconds since 1970: the last millisecond of the year 9999.
pub const MAX_DEADLINE_MS: i64 = 253_402_300_799_999;

/// Everything but unreserved characters (RFC 3986 section 2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A follow-up with everything that its call needs.
#[derive(Clone, PartialEq, Eq)]
pub struct Resolved {
    /// What is called.
    pub operation: OperationId,
    /// The tool to call, for an MCP target.
    pub tool: Option<String>,
    /// The method, and the path with its query, for an HTTP target; without the upstream's base path.
    pub http: Option<(http::Method, String)>,
    /// The headers that arguments became.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// The arguments under the policy's names, each with its JSON text, in declaration order.
    pub arguments: Vec<(String, String)>,
    /// The body in the target's declared type, where an argument belongs in one.
    pub body: Option<String>,
    /// Until when it can be made, in milliseconds since 1970; see [`is_passed`].
    pub deadline_ms: Option<i64>,
}

impl Resolved {
    /// The arguments as one JSON object: what a tool is called with.
    pub fn arguments_json(&self) -> String {
        let members = self.arguments.iter().map(|(name, json)| (name.as_str(), json.as_str()));
        object(members)
    }
}

impl fmt::Debug for Resolved {
    /// Shows what is called and no value: arguments may hold what must not reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolved")
            .field("operation", &self.operation)
            .field("arguments", &self.arguments.len())
            .field("deadline_ms", &self.deadline_ms)
            .finish_non_exhaustive()
    }
}

/// Why a follow-up cannot be offered. The text is the report's `undo_unavailable`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The deadline has come.
    #[error("deadline passed")]
    DeadlinePassed,
    /// The deadline's path names nothing that is a time in its unit.
    #[error("deadline names no time")]
    DeadlineUnreadable,
    /// A required path names nothing; with what it looked into, if all of that was missing.
    #[error("{argument} ({path}) names nothing in this call{}", Suffix(*.lacking))]
    NamesNothing {
        /// The argument's name.
        argument: String,
        /// Its path.
        path: String,
        /// The part of the call that is not there or cannot be read.
        lacking: Option<&'static str>,
    },
    /// A parameter of the target's path has no value.
    #[error("path parameter {parameter} has no value in this call")]
    NoParameter {
        /// Its name.
        parameter: String,
    },
    /// The target is not there to be called.
    #[error("operation {operation} is not served here")]
    NotServed {
        /// The target's id.
        operation: OperationId,
    },
    /// With these values the call would be another operation's.
    #[error("its call would not be {operation}")]
    OtherOperation {
        /// The target's id.
        operation: OperationId,
    },
    /// A path names what the policy calls sensitive.
    #[error("{argument} ({path}) is sensitive")]
    Sensitive {
        /// The argument's name.
        argument: String,
        /// Its path.
        path: String,
    },
    /// A value does not fit its place.
    #[error("{argument} ({source_text}) {fault}")]
    Unfit {
        /// The argument's name.
        argument: String,
        /// Its path, or `const`.
        source_text: String,
        /// Why it does not fit.
        fault: Unfit,
    },
}

struct Suffix(Option<&'static str>);

impl fmt::Display for Suffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(text) => write!(f, ": {text}"),
            None => Ok(()),
        }
    }
}

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

/// Fills an inverse, a compensation, a promotion or a discard.
///
/// `answered_ms` is when the answer had arrived, in milliseconds since 1970. A deadline that has
/// already come is given as it is; the caller asks [`is_passed`] whenever it offers the call.
/// `sensitive` is the operation's list; give none to resolve for the ledger (standards P-10).
///
/// # Errors
///
/// The first argument that cannot be filled, or the deadline.
pub fn resolve(
    follow_up: &FollowUp,
    scope: &Scope<'_>,
    answered_ms: i64,
    sensitive: &[Pointer],
) -> Result<Resolved, Unavailable> {
    let mut resolved = fill(&follow_up.reference, &follow_up.arguments, scope, sensitive)?;
    resolved.deadline_ms = match &follow_up.deadline {
        None => None,
        Some(Deadline::WithinMs(within_ms)) => {
            let within_ms = i64::try_from(*within_ms).unwrap_or(i64::MAX);
            Some(answered_ms.saturating_add(within_ms))
        }
        Some(Deadline::At { path, unit }) => match path.resolve(scope) {
            Some(Found::Value(value)) => {
                Some(time_ms(value, *unit).ok_or(Unavailable::DeadlineUnreadable)?)
            }
            Some(Found::Key(_)) | None => return Err(Unavailable::DeadlineUnreadable),
        },
    };
    Ok(resolved)
}

/// Fills a lookup.
///
/// # Errors
///
/// The first argument that cannot be filled.
pub fn resolve_lookup(lookup: &Lookup, scope: &Scope<'_>) -> Result<Resolved, Unavailable> {
    fill(&lookup.reference, &lookup.arguments, scope, &[])
}

/// Fills the call that makes the draft.
///
/// # Errors
///
/// The first argument that cannot be filled.
pub fn resolve_draft(draft: &Draft, scope: &Scope<'_>) -> Result<Resolved, Unavailable> {
    fill(&draft.reference, &draft.arguments, scope, &[])
}

/// Whether a follow-up can no longer be made; at the deadline itself it cannot.
pub fn is_passed(deadline_ms: Option<i64>, now_ms: i64) -> bool {
    deadline_ms.is_some_and(|deadline_ms| now_ms >= deadline_ms)
}

/// The first argument that would copy something sensitive, as [`resolve`] refuses it.
///
/// For follow-ups that are resolved without the list, such as lookups, before they are reported.
///
/// # Errors
///
/// [`Unavailable::Sensitive`].
pub fn check_sensitive(
    arguments: &[Argument],
    scope: &Scope<'_>,
    sensitive: &[Pointer],
) -> Result<(), Unavailable> {
    for argument in arguments {
        if let Mapping::Path(path) = &argument.mapping
            && is_sensitive(path, scope.request, sensitive)
        {
            let (argument, path) = (argument.name.clone(), path.to_string());
            return Err(Unavailable::Sensitive { argument, path });
        }
    }
    Ok(())
}

/// Whether a path names a sensitive part of the request, something inside it, or something around it.
///
/// Pointers are over the request object. Over HTTP one that starts with none of its four members is
/// taken as one into the body: a list that was meant to hide something hides it.
fn is_sensitive(path: &Path, request: Request<'_>, sensitive: &[Pointer]) -> bool {
    if path.root != Root::Request {
        return false;
    }
    let is_http = match request {
        Request::Arguments(_) => false,
        Request::Http { .. } | Request::Unreadable => true,
    };
    let is_step = |segment: &Segment, token: &String| match segment {
        Segment::Index(position) => position.to_string() == *token,
        // Header names are the same in any case; nothing is lost by hiding too much elsewhere.
        Segment::Name(name) => name.eq_ignore_ascii_case(token),
    };
    sensitive.iter().any(|pointer| {
        let tokens = pointer.tokens();
        let mut segments = path.segments.as_slice();
        let is_bare = tokens.first().is_none_or(|t| !HTTP_SECTIONS.contains(&t.as_str()));
        if is_http && is_bare {
            match segments.split_first() {
                Some((Segment::Name(name), rest)) if name == "body" => segments = rest,
                Some(_) | None => return tokens.is_empty(),
            }
        }
        segments.iter().zip(tokens).all(|(segment, token)| is_step(segment, token))
    })
}

fn fill(
    reference: &Reference,
    arguments: &[Argument],
    scope: &Scope<'_>,
    sensitive: &[Pointer],
) -> Result<Resolved, Unavailable> {
    let mut call = Call::default();
    let mut reported = Vec::with_capacity(arguments.len());
    for argument in arguments {
        check_sensitive(std::slice::from_ref(argument), scope, sensitive)?;
        let found = match &argument.mapping {
            Mapping::Const(literal) => Found::Value(literal.root()),
            Mapping::Path(path) => match path.resolve(scope) {
                Some(found) => found,
                None if path.optional => continue,
                None => {
                    let lacking = lacking(path, scope);
                    let (argument, path) = (argument.name.clone(), path.to_string());
                    return Err(Unavailable::NamesNothing { argument, path, lacking });
                }
            },
        };
        call.place(reference, &argument.slot, found).map_err(|fault| Unavailable::Unfit {
            argument: argument.name.clone(),
            source_text: match &argument.mapping {
                Mapping::Const(_) => "const".to_owned(),
                Mapping::Path(path) => path.to_string(),
            },
            fault,
        })?;
        reported.push((argument.name.clone(), found.to_json().into_owned()));
    }
    let mut resolved = Resolved {
        operation: reference.operation.clone(),
        tool: None,
        http: None,
        headers: Vec::new(),
        arguments: reported,
        body: None,
        deadline_ms: None,
    };
    match &reference.target {
        Target::Tool { name } => resolved.tool = Some(name.to_string()),
        Target::Http { method, template } => {
            let value = |name: &str| {
                let found = call.path.iter().find(|(parameter, _)| parameter == name);
                found.map(|(_, value)| value.clone())
            };
            let Some(mut path) = template.build(value) else {
                let missing = template.names().find(|name| value(name).is_none());
                let parameter = missing.unwrap_or_default().to_owned();
                return Err(Unavailable::NoParameter { parameter });
            };
            for (position, (name, value)) in call.query.iter().enumerate() {
                path.push(if position == 0 { '?' } else { '&' });
                path.push_str(name);
                path.push('=');
                path.push_str(value);
            }
            resolved.http = Some((method.clone(), path));
            resolved.headers = call.headers;
            resolved.body = match reference.body_type {
                BodyType::Json => call.body.map(|body| body.to_json()),
                BodyType::Form => call.form.map(|pairs| pairs.join("&")),
            };
        }
    }
    Ok(resolved)
}

/// What a path looks into, if the call does not have it or nobody can read it.
fn lacking(path: &Path, scope: &Scope<'_>) -> Option<&'static str> {
    match path.root {
        Root::Key => scope.key.is_none().then_some("no key went upstream"),
        Root::Response => {
            scope.response.is_none().then_some("the answer has no body that can be read")
        }
        Root::Request => match scope.request {
            Request::Arguments(_) => None,
            Request::Http { body, .. } => {
                let is_body = matches!(path.segments.first(),
                    Some(Segment::Name(name)) if name == "body");
                (is_body && body.is_none()).then_some("the request has no body that can be read")
            }
            Request::Unreadable => Some("the request cannot be read"),
        },
    }
}

/// The parts of a call while its arguments are placed.
#[derive(Default)]
struct Call {
    path: Vec<(String, String)>,
    query: Vec<(String, String)>,
    headers: Vec<(http::HeaderName, http::HeaderValue)>,
    body: Option<Tree>,
    form: Option<Vec<String>>,
}

impl Call {
    fn place(&mut self, reference: &Reference, slot: &Slot, found: Found<'_>) -> Result<(), Unfit> {
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
enum Tree {
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

    fn to_json(&self) -> String {
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

fn object<'m>(members: impl Iterator<Item = (&'m str, &'m str)>) -> String {
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

/// A time in milliseconds since 1970, as a deadline's `at` names it (standards 5.4).
///
/// Fractions of a millisecond are cut off. `None` for anything that is no time in this unit, for
/// times before 1970, and for those after [`MAX_DEADLINE_MS`].
pub fn time_ms(value: Value<'_>, unit: TimeUnit) -> Option<i64> {
    let number = |shift| Decimal::of(value.as_number()?).whole_part(shift, MAX_DEADLINE_MS);
    match (unit, value.kind()) {
        (TimeUnit::Either | TimeUnit::Milliseconds, Kind::Number) => number(0),
        (TimeUnit::Seconds, Kind::Number) => number(3),
        (TimeUnit::Either | TimeUnit::Iso8601, Kind::String) => rfc3339_ms(&value.as_str()?),
        (
            TimeUnit::Either | TimeUnit::Iso8601 | TimeUnit::Milliseconds | TimeUnit::Seconds,
            Kind::Array | Kind::Bool | Kind::Null | Kind::Number | Kind::Object | Kind::String,
        ) => None,
    }
}

/// Reads an RFC 3339 date-time with a zone: no local times, no bare dates, no other separator than
/// `T`. The 60th second of a leap second is the next minute's first.
fn rfc3339_ms(text: &str) -> Option<i64> {
    let mut reader = Digits { bytes: text.as_bytes() };
    let year = reader.number(4)?;
    reader.one_of(b"-")?;
    let month = reader.number(2)?;
    reader.one_of(b"-")?;
    let day = reader.number(2)?;
    reader.one_of(b"Tt")?;
    let hour = reader.number(2)?;
    reader.one_of(b":")?;
    let minute = reader.number(2)?;
    reader.one_of(b":")?;
    let second = reader.number(2)?;
    let millisecond = if reader.one_of(b".").is_some() { reader.fraction_ms()? } else { 0 };
    let zone_minutes = match reader.one_of(b"Zz+-")? {
        sign @ (b'+' | b'-') => {
            let hours = reader.number(2)?;
            reader.one_of(b":")?;
            let minutes = reader.number(2)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            let offset = hours.saturating_mul(60).saturating_add(minutes);
            if sign == b'-' { offset.saturating_neg() } else { offset }
        }
        _ => 0,
    };
    if !reader.bytes.is_empty() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let narrow = |number: i64| i8::try_from(number).ok();
    let date = jiff::civil::Date::new(i16::try_from(year).ok()?, narrow(month)?, narrow(day)?);
    let midnight = jiff::tz::Offset::UTC.to_timestamp(date.ok()?.at(0, 0, 0, 0)).ok()?.as_second();
    let minutes = hour.saturating_mul(60).saturating_add(minute).saturating_sub(zone_minutes);
    let seconds = midnight.saturating_add(minutes.saturating_mul(60)).saturating_add(second);
    let ms = seconds.saturating_mul(1000).saturating_add(millisecond);
    (0..=MAX_DEADLINE_MS).contains(&ms).then_some(ms)
}

struct Digits<'t> {
    bytes: &'t [u8],
}

impl Digits<'_> {
    /// Exactly so many digits.
    fn number(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// One of these bytes.
    fn one_of(&mut self, wanted: &[u8]) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        if !wanted.contains(first) {
            return None;
        }
        self.bytes = rest;
        Some(*first)
    }

    /// One or more digits after the point, as whole milliseconds.
    fn fraction_ms(&mut self) -> Option<i64> {
        let mut ms = 0_i64;
        let mut count = 0_usize;
        while let Some(digit) = self.one_of(b"0123456789") {
            if count < 3 {
                ms = ms.saturating_mul(10).saturating_add(i64::from(digit.wrapping_sub(b'0')));
            }
            count = count.saturating_add(1);
        }
        match count {
            0 => None,
            1 => Some(ms.saturating_mul(100)),
            2 => Some(ms.saturating_mul(10)),
            _ => Some(ms),
        }
    }
}

/// Reads a JSON object's text that [`Resolved::arguments_json`] or a report wrote.
pub(super) fn parse_object(text: &str) -> Option<Doc> {
    Doc::parse(text.to_owned()).ok().filter(|doc| doc.root().kind() == Kind::Object)
}
