//! The state before a call: read after the call is confirmed, last before its entry begins.
//!
//! An operation that declares `before` is taken back by putting back what it replaced, which only this
//! read knows. So a call whose state before cannot be read, or cannot be kept, is not sent: it could
//! not be undone, and was declared as one that can. Observed calls pass all the same.
//!
//! The read carries the caller's own credential: it shows what the caller may see. What is kept, with
//! the entry, is its body and its entity tag, at most [`MAX_BEFORE`] bytes, and `null` in the place of
//! whatever the operation calls sensitive.

use http::{HeaderValue, header};

use super::fetch::{Credential, Fetch, Target};
use super::settle::is_what_it_says;
use super::{Form, Write};
use crate::call::refusal::Refusal;
use crate::contract::class::Mode;
use crate::contract::json::{Doc, Kind, Value, write_string};
use crate::contract::operation::Before;
use crate::contract::path::{HTTP_SECTIONS, Scope};
use crate::contract::pointer::Pointer;
use crate::contract::undo::resolve_before;
use crate::http::body::{essence, is_json};
use crate::ledger::MAX_BEFORE;
use crate::metrics::Purpose;

/// The state before one call.
pub struct Image {
    doc: Doc,
    etag: Option<HeaderValue>,
    path: Option<String>,
    kept: String,
}

impl std::fmt::Debug for Image {
    /// Shows no value.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("bytes", &self.kept.len()).finish_non_exhaustive()
    }
}

impl Image {
    /// What paths of the root `before` read.
    pub fn root(&self) -> Value<'_> {
        self.doc.root()
    }

    /// What the ledger keeps: `{"etag": text or null, "body": the state}`.
    pub fn kept(&self) -> &str {
        &self.kept
    }

    /// Whether a call to this path is one to the resource that was read, which names its states by
    /// strong entity tags: such a resource takes `If-Match` (RFC 9110 section 13.1.1).
    pub fn takes_if_match(&self, path_and_query: &str) -> bool {
        let path = path_and_query.split('?').next();
        self.etag.as_ref().is_some_and(is_strong) && path.is_some() && path == self.path.as_deref()
    }
}

/// Whether an entity tag is one that `If-Match` can match.
pub fn is_strong(etag: &HeaderValue) -> bool {
    etag.as_bytes().starts_with(b"\"")
}

/// Reads the state before a call, where its operation declares that.
///
/// # Errors
///
/// [`Refusal::BeforeUnread`].
pub async fn take(fetch: &Fetch, write: &Write) -> Result<Option<Image>, Refusal> {
    let Some(before) = &write.operation().before else { return Ok(None) };
    match read(fetch, write, before).await {
        Ok(image) => Ok(Some(image)),
        Err(why) => {
            let operation = &write.operation().id;
            tracing::warn!(%operation, why, "the state before a call was not read");
            match write.mode {
                Mode::Enforce => Err(Refusal::BeforeUnread(why)),
                Mode::Observe => Ok(None),
            }
        }
    }
}

async fn read(fetch: &Fetch, write: &Write, before: &Before) -> Result<Image, String> {
    let scope = Scope { before: None, request: write.request(), response: None, key: None };
    let resolved = resolve_before(before, &scope).map_err(|why| why.to_string())?;
    is_what_it_says(&write.live, &before.reference, &resolved).map_err(|why| why.to_string())?;
    let name = &before.reference.operation;
    let (got, path) = match (&resolved.http, &resolved.tool) {
        (Some((_, target)), _) => {
            let path = target.split('?').next().map(str::to_owned);
            let target =
                Target { path_and_query: target.clone(), headers: resolved.headers.clone() };
            let credential = Credential::Caller(&write.head.headers);
            (fetch.get(&target, credential, Purpose::Before).await, path)
        }
        (None, Some(tool)) => {
            let arguments = resolved.arguments_json();
            (fetch.call_for(write, tool, &arguments).await, None)
        }
        (None, None) => (Err("it names nothing to read".to_owned()), None),
    };
    let got = got.map_err(|why| format!("{name}: {why}"))?;
    if !(200..=299).contains(&got.status) {
        return Err(format!("{name}: the answer's status is {}", got.status));
    }
    if !is_json(essence(&got.headers)) || got.headers.contains_key(header::CONTENT_ENCODING) {
        return Err(format!("{name}: the answer is not JSON"));
    }
    let etag = got.headers.get(header::ETAG).filter(|_| is_single(&got.headers)).cloned();
    let doc = Doc::parse(got.body)
        .map_err(|error| format!("{name}: the answer cannot be read: {error}"))?;
    let is_http = matches!(write.form, Form::Http { .. });
    let kept = kept(doc.root(), etag.as_ref(), &write.operation().sensitive, is_http);
    if kept.len() > MAX_BEFORE {
        return Err(format!("{name}: the answer is longer than {MAX_BEFORE} bytes"));
    }
    Ok(Image { doc, etag, path, kept })
}

fn is_single(headers: &http::HeaderMap) -> bool {
    headers.get_all(header::ETAG).iter().count() == 1
}

fn kept(
    root: Value<'_>,
    etag: Option<&HeaderValue>,
    sensitive: &[Pointer],
    is_http: bool,
) -> String {
    let mut text = String::from("{\"etag\":");
    match etag.and_then(|etag| etag.to_str().ok()) {
        Some(etag) => write_string(etag, &mut text),
        None => text.push_str("null"),
    }
    text.push_str(",\"body\":");
    let hidden: Vec<&[String]> =
        sensitive.iter().filter_map(|pointer| in_body(pointer.tokens(), is_http)).collect();
    write_without(root, &hidden, &mut text);
    text.push('}');
    text
}

/// What a pointer over the request object hides of the state that the request replaces.
fn in_body(tokens: &[String], is_http: bool) -> Option<&[String]> {
    match tokens.split_first() {
        Some((first, rest)) if is_http && first == "body" => Some(rest),
        Some((first, _)) if is_http && HTTP_SECTIONS.contains(&first.as_str()) => None,
        Some(_) | None => Some(tokens),
    }
}

/// Writes a value with `null` in the place of what is hidden.
fn write_without(value: Value<'_>, hidden: &[&[String]], out: &mut String) {
    if hidden.is_empty() {
        out.push_str(value.raw());
        return;
    }
    if hidden.iter().any(|tokens| tokens.is_empty()) {
        out.push_str("null");
        return;
    }
    match value.kind() {
        Kind::Object => {
            out.push('{');
            for (position, member) in value.members().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                let name = member.name();
                write_string(&name, out);
                out.push(':');
                let hidden = below(hidden, |token| name.eq_ignore_ascii_case(token));
                write_without(member.value, &hidden, out);
            }
            out.push('}');
        }
        Kind::Array => {
            out.push('[');
            for (position, element) in value.elements().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                let hidden = below(hidden, |token| token == position.to_string());
                write_without(element, &hidden, out);
            }
            out.push(']');
        }
        Kind::Bool | Kind::Null | Kind::Number | Kind::String => out.push_str(value.raw()),
    }
}

/// What is hidden inside one member or element.
fn below<'t>(hidden: &[&'t [String]], is_it: impl Fn(&str) -> bool) -> Vec<&'t [String]> {
    let inside = |tokens: &&'t [String]| match tokens.split_first() {
        Some((first, rest)) if is_it(first) => Some(rest),
        Some(_) | None => None,
    };
    hidden.iter().filter_map(inside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(sensitive: &[&str], is_http: bool) -> String {
        let state = r#"{"title":"old","Secret":{"a":1},"list":[{"k":1},{"k":2}],"n":1.0}"#;
        let doc = Doc::parse(state.to_owned()).unwrap();
        let sensitive: Vec<Pointer> =
            sensitive.iter().map(|pointer| Pointer::parse(pointer).unwrap()).collect();
        let etag = HeaderValue::from_static("\"v1\"");
        kept(doc.root(), Some(&etag), &sensitive, is_http)
    }

    #[test]
    fn what_is_sensitive_is_not_kept_and_the_rest_is_as_it_came() {
        let with = |body: &str| format!("{{\"etag\":\"\\\"v1\\\"\",\"body\":{body}}}");
        let whole = r#"{"title":"old","Secret":{"a":1},"list":[{"k":1},{"k":2}],"n":1.0}"#;
        assert_eq!(shown(&[], true), with(whole));
        assert_eq!(shown(&["/path/id", "/header/x"], true), with(whole));
        let hidden = r#"{"title":"old","Secret":null,"list":[{"k":1},{"k":null}],"n":1.0}"#;
        assert_eq!(shown(&["/body/secret", "/body/list/1/k"], true), with(hidden));
        assert_eq!(shown(&["/secret", "/list/1/k"], true), with(hidden));
        assert_eq!(shown(&["/secret", "/secret/a", "/list/1/k"], false), with(hidden));
        assert_eq!(shown(&[""], true), with("null"));
        assert_eq!(shown(&["/body"], true), with("null"));
    }

    #[test]
    fn only_strong_tags_of_the_very_resource_count() {
        let image = |etag: &'static str| Image {
            doc: Doc::parse("{}".to_owned()).unwrap(),
            etag: Some(HeaderValue::from_static(etag)),
            path: Some("/c/1".to_owned()),
            kept: String::new(),
        };
        assert!(image("\"a\"").takes_if_match("/c/1?x=1"));
        assert!(!image("\"a\"").takes_if_match("/c/2"));
        assert!(!image("W/\"a\"").takes_if_match("/c/1"));
    }
}
