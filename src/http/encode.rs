//! A call into the request for the upstream, and the key into its place.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version, header};

use super::grpc::is_grpc;
use super::headers::IDEMPOTENCY_KEY;
use super::injected::Injected;
use super::pairs;
use crate::call::refusal::Refusal;
use crate::call::{Head, has_any};
use crate::contract::json::{Doc, Edits, Kind, Value, write_string};
use crate::contract::key::{Carrier, Key, KeyError, Place};

const FORWARDED_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers that each request gets: `Via`, `Host`, three of `X-Forwarded-`, and its framing.
const OWN: usize = 6;

/// Where requests go, as every request says it; made once.
#[derive(Clone, Debug)]
pub struct Hop {
    base: String,
    injected: Injected,
    host: Option<HeaderValue>,
    /// For HTTP/1.0, HTTP/1.1 and HTTP/2.
    via: [Option<HeaderValue>; 3],
}

impl Hop {
    /// `authority` is the upstream's, `base` the path under which its own paths lie, `pseudonym` our
    /// name in `Via`; every request carries what is `injected`.
    pub fn new(authority: &str, base: &str, pseudonym: &str, injected: &Injected) -> Self {
        let via = |version| HeaderValue::from_str(&format!("{version} {pseudonym}")).ok();
        Self {
            base: base.to_owned(),
            injected: injected.clone(),
            host: HeaderValue::from_str(authority).ok(),
            via: [via("1.0"), via("1.1"), via("2.0")],
        }
    }

    fn via(&self, version: Version) -> Option<&HeaderValue> {
        let [http10, http11, http2] = &self.via;
        let via = match version {
            Version::HTTP_10 => http10,
            Version::HTTP_2 => http2,
            _ => http11,
        };
        via.as_ref()
    }
}

/// The request head for the upstream: end-to-end headers, ours, and the target under the base path.
///
/// # Errors
///
/// Only if the base path and the target together are no target, which a checked configuration and a
/// decoded request rule out.
pub fn request_head(
    head: &Head,
    mut headers: HeaderMap,
    path_and_query: Option<&str>,
    hop: &Hop,
) -> Result<http::request::Parts, Refusal> {
    let asked = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let asked = path_and_query.unwrap_or(asked);
    let target = if hop.base.is_empty() && path_and_query.is_none() {
        head.uri.path_and_query().cloned()
    } else {
        PathAndQuery::try_from(format!("{}{asked}", hop.base)).ok()
    };
    let target = target.ok_or(Refusal::AmbiguousPath("no target"))?;
    // Once for all of ours, or the usual short list of headers would grow by each of them.
    headers.reserve(OWN.saturating_add(hop.injected.count()));
    if let Some(via) = hop.via(head.version) {
        headers.append(header::VIA, via.clone());
    }
    if let Some(host) = &hop.host {
        headers.insert(header::HOST, host.clone());
    }
    if head.origin.is_listed {
        append_forwarded(head, &mut headers);
    } else {
        // What a peer that is not listed says of others is not passed on (standards H-6).
        if has_any(&headers, &[header::FORWARDED, FORWARDED_PORT, REAL_IP]) {
            headers.remove(header::FORWARDED);
            headers.remove(FORWARDED_PORT);
            headers.remove(REAL_IP);
        }
        if head.origin.is_tls {
            // The handshake was with us: nobody in between can have seen a client's certificate.
            headers.remove(FORWARDED_CERT);
        }
        headers.insert(FORWARDED_FOR, head.peer.clone());
        headers.insert(FORWARDED_PROTO, scheme(head));
        if let Some(authority) = &head.authority {
            headers.insert(FORWARDED_HOST, authority.clone());
        }
    }
    let has_doubles = headers.len() > headers.keys_len();
    if has_doubles && headers.get_all(header::COOKIE).iter().nth(1).is_some() {
        join_cookies(&mut headers);
    }
    if is_grpc(&headers) {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    hop.injected.put(&mut headers);
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.method = head.method.clone();
    parts.uri = Uri::from(target);
    parts.headers = headers;
    Ok(parts)
}

fn scheme(head: &Head) -> HeaderValue {
    HeaderValue::from_static(if head.origin.is_tls { "https" } else { "http" })
}

/// Adds a listed peer to what it says of those before it; what it leaves out is as it looks from
/// here (standards H-6).
fn append_forwarded(head: &Head, headers: &mut HeaderMap) {
    let peer = head.peer.to_str().unwrap_or("unknown");
    if headers.contains_key(header::FORWARDED) {
        // An IPv6 address is quoted and bracketed (RFC 7239 section 6).
        let node =
            if peer.contains(':') { format!("for=\"[{peer}]\"") } else { format!("for={peer}") };
        append(headers, &header::FORWARDED, &node);
    }
    append(headers, &FORWARDED_FOR, peer);
    headers.entry(FORWARDED_PROTO).or_insert_with(|| scheme(head));
    if let Some(authority) = &head.authority {
        headers.entry(FORWARDED_HOST).or_insert_with(|| authority.clone());
    }
}

/// Adds an element to a list, which becomes one line.
fn append(headers: &mut HeaderMap, name: &HeaderName, element: &str) {
    let mut list: Vec<u8> = Vec::new();
    for value in headers.get_all(name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(element.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(name.clone(), value);
    }
}

/// Joins the crumbs that HTTP/2 may split `Cookie` into (standards H-8).
fn join_cookies(headers: &mut HeaderMap) {
    let joined: Vec<u8> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect::<Vec<_>>()
        .join(b"; ".as_slice());
    if let Ok(value) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, value);
    }
}

/// The key that is already in the carrier's place: the caller's (contract section 3, Keys).
///
/// # Errors
///
/// [`Refusal::KeyConflict`] for a value that is no string, [`Refusal::InvalidKey`] for one that is no
/// key, [`Refusal::DuplicateHeader`] for a carrier header that comes twice.
pub fn carried_key(
    carrier: &Carrier,
    head: &Head,
    body: Option<Value<'_>>,
) -> Result<Option<Key>, Refusal> {
    match &carrier.place {
        Place::Header(name) => {
            if head.nominated.contains(name) {
                return Err(Refusal::Framing("`Connection` names the carrier of the key"));
            }
            let is_misspelt = |other: &HeaderName| {
                other != name && other.as_str().replace('_', "-") == name.as_str().replace('_', "-")
            };
            if head.headers.keys().any(is_misspelt) {
                // Some servers read both names as one.
                return Err(Refusal::DuplicateHeader("that carries the key"));
            }
            let mut values = head.headers.get_all(name).iter();
            let Some(value) = values.next() else {
                return Ok(None);
            };
            if values.next().is_some() {
                return Err(Refusal::DuplicateHeader("that carries the key"));
            }
            match Key::from_header(value.as_bytes()) {
                Ok(key) => Ok(Some(key)),
                Err(KeyError::Empty) => Ok(None),
                Err(error) => Err(Refusal::InvalidKey(error)),
            }
        }
        Place::Query(name) => {
            let query = head.query().unwrap_or_default().as_bytes();
            if pairs::further(query).any(|pair| pairs::name(pair) == *name) {
                return Err(Refusal::KeyConflict);
            }
            let values = query_values(query, name);
            match values.as_slice() {
                [] => Ok(None),
                [value] if value.is_empty() => Ok(None),
                [value] => Key::from_text(value).map(Some).map_err(Refusal::InvalidKey),
                _ => Err(Refusal::KeyConflict),
            }
        }
        Place::BodyPointer { pointer, .. } => match body.and_then(|body| pointer.resolve(body)) {
            None => Ok(None),
            Some(value) => key_value(value),
        },
        Place::Argument(_) | Place::Unsupported => Ok(None),
    }
}

/// A key as a JSON value: null and `""` count as none.
///
/// # Errors
///
/// As [`carried_key`].
pub fn key_value(value: Value<'_>) -> Result<Option<Key>, Refusal> {
    match value.kind() {
        Kind::Null => Ok(None),
        Kind::String => match value.as_str() {
            Some(text) if !text.is_empty() => {
                Key::from_text(&text).map(Some).map_err(Refusal::InvalidKey)
            }
            Some(_) | None => Ok(None),
        },
        Kind::Array | Kind::Bool | Kind::Number | Kind::Object => Err(Refusal::KeyConflict),
    }
}

fn query_values(query: &[u8], name: &str) -> Vec<String> {
    let named = pairs::parted(query).filter(|pair| pairs::name(pair) == name);
    named.map(|pair| lossy(pairs::halves(pair).1)).collect()
}

/// A value as it is meant; what is not UTF-8 in it makes it no key.
fn lossy(value: &[u8]) -> String {
    pairs::decoded(value).unwrap_or_else(|| char::REPLACEMENT_CHARACTER.to_string())
}

fn is_named(pair: &str, name: &str) -> bool {
    pairs::name(pair.as_bytes()) == name
}

/// A query with one parameter set; every other pair stays as it came.
fn query_with(query: Option<&str>, name: &str, value: &str) -> String {
    let mut pairs: Vec<&str> = query
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .filter(|pair| !is_named(pair, name))
        .collect();
    let encode =
        |text| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC);
    let own = format!("{}={}", encode(name), encode(value));
    pairs.push(&own);
    pairs.join("&")
}

/// The path and query without the key's own parameter: what the digest sees.
pub fn path_and_query_without_key(head: &Head, carrier: &Carrier) -> Option<String> {
    let Place::Query(name) = &carrier.place else {
        return None;
    };
    let query = head.query()?;
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_named(pair, name)).collect();
    Some(format!("{}?{}", head.path(), kept.join("&")))
}

/// What puts the key in: a changed target or body, or a changed header.
#[derive(Debug, Default)]
pub struct Carriage {
    /// The path and query, if the key is in there.
    pub path_and_query: Option<String>,
    /// The body, if the key is in there.
    pub body: Option<Bytes>,
}

/// Puts the key into its place.
///
/// # Errors
///
/// [`Refusal::CarrierTooShort`] if it does not fit, [`Refusal::CarrierAbsent`] if its place is not in
/// the request and may not be made.
pub fn carry(
    carrier: &Carrier,
    key: &Key,
    head: &Head,
    headers: &mut HeaderMap,
    body: Option<&Doc>,
) -> Result<Carriage, Refusal> {
    let written = carrier.written(key).ok_or(Refusal::CarrierTooShort)?;
    let mut carriage = Carriage::default();
    match &carrier.place {
        Place::Header(name) => {
            let value = HeaderValue::from_str(&written).map_err(|_| Refusal::CarrierTooShort)?;
            headers.insert(name.clone(), value);
        }
        Place::Query(name) => {
            let query = query_with(head.query(), name, &written);
            carriage.path_and_query = Some(format!("{}?{query}", head.path()));
        }
        Place::BodyPointer { pointer, create } => {
            let doc = body.ok_or(Refusal::CarrierAbsent("a member of a JSON body"))?;
            let mut json = String::new();
            write_string(&written, &mut json);
            let mut edits = Edits::new();
            match pointer.resolve(doc.root()) {
                Some(value) => edits.replace(value, json),
                None if *create => {
                    let (last, parents) = pointer
                        .tokens()
                        .split_last()
                        .ok_or(Refusal::CarrierAbsent("a member of the body's object"))?;
                    let parent = parents
                        .iter()
                        .try_fold(doc.root(), |at, token| {
                            let position = token.parse::<usize>().ok();
                            at.get(token).or_else(|| position.and_then(|p| at.at(p)))
                        })
                        .filter(|parent| parent.kind() == Kind::Object)
                        .ok_or(Refusal::CarrierAbsent(
                            "an object of the body, which is not there",
                        ))?;
                    edits.members(parent, &[], &[(last, &json)]);
                }
                None => {
                    let place =
                        "a member of the body that must be there (null or \"\" is replaced)";
                    return Err(Refusal::CarrierAbsent(place));
                }
            }
            carriage.body = Some(edits.apply(doc.text()).into());
        }
        Place::Argument(_) | Place::Unsupported => {}
    }
    Ok(carriage)
}

/// The headers that go on: the caller's own `Idempotency-Key` stays here where the policy names another
/// place for it, or none (standards I-5).
pub fn forwarded_headers(headers: &HeaderMap, carrier: &Carrier, is_declared: bool) -> HeaderMap {
    let mut headers = headers.clone();
    let is_carrier = matches!(&carrier.place, Place::Header(name) if *name == IDEMPOTENCY_KEY);
    if is_declared && !is_carrier {
        headers.remove(&IDEMPOTENCY_KEY);
    }
    headers
}

/// Says that the body is new: its length is ours, and what was computed over the old one is void
/// (standards H-45).
pub fn mark_rewritten(headers: &mut HeaderMap) {
    headers.remove(header::CONTENT_LENGTH);
    for name in ["content-digest", "content-md5", "digest", "repr-digest"] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {

    use http::Method;

    use super::*;
    use crate::contract::pointer::Pointer;

    fn head(target: &str) -> Head {
        Head {
            method: Method::POST,
            uri: target.parse().unwrap(),
            version: Version::HTTP_11,
            headers: HeaderMap::new(),
            authority: Some(HeaderValue::from_static("proxy:8080")),
            peer: HeaderValue::from_static("127.0.0.1"),
            nominated: Vec::new(),
            expects_continue: false,
            origin: crate::call::Origin::default(),
            span: None,
        }
    }

    fn pointer(text: &str, create: bool) -> Carrier {
        let place = Place::BodyPointer { pointer: Pointer::parse(text).unwrap(), create };
        Carrier { place, ..Carrier::unsupported() }
    }

    fn carried(carrier: &Carrier, body: &str) -> Result<String, &'static str> {
        let doc = Doc::parse(body.to_owned()).unwrap();
        let key = Key::from_text("K1").unwrap();
        carry(carrier, &key, &head("/a"), &mut HeaderMap::new(), Some(&doc))
            .map(|carriage| String::from_utf8(carriage.body.unwrap().to_vec()).unwrap())
            .map_err(|refusal| refusal.code())
    }

    #[test]
    fn h_4_h_15_every_request_says_who_sends_it() {
        let hop = Hop::new("up:1", "/api", "takeback-1", &Injected::default());
        let mut from = HeaderMap::new();
        from.insert(header::VIA, "1.0 fred".parse().unwrap());
        from.insert("x-forwarded-for", "6.6.6.6".parse().unwrap());
        from.insert("x-real-ip", "6.6.6.6".parse().unwrap());
        from.append(header::COOKIE, "a=1".parse().unwrap());
        from.append(header::COOKIE, "b=2".parse().unwrap());

        let parts = request_head(&head("/a?b=1"), from, None, &hop).unwrap();

        assert_eq!(parts.uri, "/api/a?b=1");
        let via: Vec<_> = parts.headers.get_all(header::VIA).iter().collect();
        assert_eq!(via, ["1.0 fred", "1.1 takeback-1"]);
        assert_eq!(parts.headers[header::HOST], "up:1");
        assert_eq!(parts.headers["x-forwarded-for"], "127.0.0.1");
        assert!(!parts.headers.contains_key("x-real-ip"));
        assert_eq!(parts.headers["x-forwarded-host"], "proxy:8080");
        assert_eq!(parts.headers[header::COOKIE], "a=1; b=2");
    }

    #[test]
    fn i_6_k6_a_body_pointer_is_replaced_and_made_only_where_the_policy_says_so() {
        let body = r#"{"n":1.000,"meta":{"key":null}, "x":12345678901234567890}"#;
        assert_eq!(
            carried(&pointer("/meta/key", false), body).unwrap(),
            r#"{"n":1.000,"meta":{"key":"K1"}, "x":12345678901234567890}"#
        );
        assert_eq!(
            carried(&pointer("/dedup_key", true), r#"{"a":1}"#).unwrap(),
            r#"{"a":1,"dedup_key":"K1"}"#
        );
        let absent = Err("idempotency_carrier_absent");
        assert_eq!(carried(&pointer("/dedup_key", false), r#"{"a":1}"#), absent);
        assert_eq!(carried(&pointer("/payload/dedup_key", true), r#"{"a":1}"#), absent);
        assert_eq!(carried(&pointer("/a/dedup_key", true), r#"{"a":1}"#), absent);
    }

    #[test]
    fn the_key_in_the_carriers_place_is_the_callers() {
        let doc = Doc::parse(r#"{"k":"mine","n":null,"e":"","o":{}}"#).unwrap();
        let found = |text| {
            carried_key(&pointer(text, false), &head("/a"), Some(doc.root()))
                .map(|key| key.map(|key| key.as_str().to_owned()))
                .map_err(|refusal| refusal.code())
        };
        assert_eq!(found("/k"), Ok(Some("mine".to_owned())));
        assert_eq!(found("/n"), Ok(None));
        assert_eq!(found("/e"), Ok(None));
        assert_eq!(found("/absent"), Ok(None));
        assert_eq!(found("/o"), Err("idempotency_key_conflict"));
    }

    #[test]
    fn a_query_carrier_sets_its_own_parameter_and_leaves_the_others() {
        let carrier = Carrier { place: Place::Query("rid".to_owned()), ..Carrier::unsupported() };
        let key = Key::from_text("K 1").unwrap();
        let asked = head("/a?x=%2f+&rid=&y");
        let carriage = carry(&carrier, &key, &asked, &mut HeaderMap::new(), None).unwrap();
        assert_eq!(carriage.path_and_query.as_deref(), Some("/a?x=%2f+&y&rid=K%201"));
        assert_eq!(carried_key(&carrier, &asked, None), Ok(None));
        let given = head("/a?rid=mine");
        assert_eq!(carried_key(&carrier, &given, None).unwrap().unwrap().as_str(), "mine");
        for twice in ["/a?rid=1&rid=2", "/a?x=1;rid=2", "/a?rid=1;rid=2"] {
            assert_eq!(carried_key(&carrier, &head(twice), None), Err(Refusal::KeyConflict));
        }
    }

    #[test]
    fn h_20_a_header_that_some_servers_take_for_the_carrier_is_refused() {
        let carrier = Carrier {
            place: Place::Header(HeaderName::from_static("x-req-key")),
            ..Carrier::unsupported()
        };
        for (name, is_refused) in [("x-req-key", false), ("x_req_key", true), ("x_req-key", true)] {
            let mut asked = head("/a");
            asked.headers.insert(HeaderName::from_static(name), HeaderValue::from_static("mine"));
            let found = carried_key(&carrier, &asked, None);
            assert_eq!(found.is_err(), is_refused, "{name}");
        }
    }
}
