//! The path grammar of mappings (ADR-0030 section 2, standards 5.1 and 5.2).
//!
//! ```text
//! path    = ( ( "request" | "response" | "before" ) segment { segment } | "idempotency_key" ) [ "?" ]
//! segment = "." name | "[" index "]"
//! name    = ( letter | "_" | "$" ) { letter | digit | "_" | "$" | "-" }
//! index   = 1 to 9 digits
//! ```
//!
//! There are no wildcards, filters or quotes, so members such as `@id` or `a.b` cannot be named. A
//! name enters only an object and an index only an array; anything else names nothing, and so does
//! a final `null`. A path is ASCII and at most [`MAX_PATH`] bytes long.

use std::borrow::Cow;
use std::fmt;

use super::json::{self, Value};
use super::pointer::{self, Pointer};

/// The longest path that is read, in bytes.
pub const MAX_PATH: usize = 512;

/// Where a path starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Root {
    /// `before`: what the state was before the call, where the operation declares that it be read.
    Before,
    /// `idempotency_key`: what went upstream as the key.
    Key,
    /// `request`: what the caller meant.
    Request,
    /// `response`: the accepted answer.
    Response,
}

impl Root {
    /// The word that a path starts with.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Key => "idempotency_key",
            Self::Request => "request",
            Self::Response => "response",
        }
    }
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// `[n]`: an element of an array.
    Index(usize),
    /// `.name`: a member of an object.
    Name(String),
}

/// A path that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Where it starts.
    pub root: Root,
    /// Its steps; none for [`Root::Key`], at least one otherwise.
    pub segments: Vec<Segment>,
    /// It ends with `?`: the argument is left out where it names nothing.
    pub optional: bool,
}

/// Why a text is no path, and at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at byte {offset}")]
pub struct PathError {
    /// The zero-based offset of the byte that cannot be.
    pub offset: usize,
    /// What is wrong there.
    pub reason: &'static str,
}

/// The request of a call, as paths and pointers see it.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// An MCP call's `arguments`.
    Arguments(Value<'a>),
    /// A plain HTTP call.
    Http {
        /// `{"path": {...}, "query": {...}, "header": {...}}`
        head: Value<'a>,
        /// The body, where it is JSON or a form.
        body: Option<Value<'a>>,
        /// There is a body, and it cannot be read.
        is_opaque: bool,
    },
    /// Nothing of it can be read; every path into it names nothing.
    Unreadable,
}

/// The four members that a plain HTTP call's request has.
pub const HTTP_SECTIONS: [&str; 4] = ["path", "query", "header", "body"];

impl<'a> Request<'a> {
    /// The value that a pointer over the request object names: over the `arguments` of an MCP call,
    /// over `{path, query, header, body}` of a plain HTTP call.
    ///
    /// The whole HTTP request (`""`) is given as its head, which is as composite as the whole.
    pub fn pointer(self, pointer: &Pointer) -> Option<Value<'a>> {
        match self {
            Self::Arguments(arguments) => pointer.resolve(arguments),
            Self::Http { head, body, .. } => match pointer.tokens().split_first() {
                None => Some(head),
                Some((first, rest)) if first == "body" => pointer::walk(rest, body?),
                Some(_) => pointer.resolve(head),
            },
            Self::Unreadable => None,
        }
    }

    /// What `request_body` selectors read: the arguments of an MCP call, the body of a plain one.
    pub fn body(self) -> Option<Value<'a>> {
        match self {
            Self::Arguments(arguments) => Some(arguments),
            Self::Http { body, .. } => body,
            Self::Unreadable => None,
        }
    }

    fn walk(self, segments: &[Segment]) -> Option<Value<'a>> {
        match self {
            Self::Arguments(arguments) => walk(segments, arguments),
            Self::Http { head, body, .. } => match segments.split_first()? {
                (Segment::Name(name), rest) if name == "body" => walk(rest, body?),
                (Segment::Name(_), _) => walk(segments, head),
                (Segment::Index(_), _) => None,
            },
            Self::Unreadable => None,
        }
    }
}

/// What paths of one call are resolved against.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The request, before a key was put in or a control taken out.
    pub request: Request<'a>,
    /// The accepted, readable answer; absent for anything else.
    pub response: Option<Value<'a>>,
    /// The state before the call, if it was read.
    pub before: Option<Value<'a>>,
    /// The key that went upstream, if one did.
    pub key: Option<&'a str>,
}

/// What a path names.
#[derive(Clone, Copy)]
pub enum Found<'a> {
    /// The key.
    Key(&'a str),
    /// A value that is not null.
    Value(Value<'a>),
}

impl fmt::Debug for Found<'_> {
    /// Shows which it is; keys and values never reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key",
            Self::Value(_) => "Value",
        })
    }
}

impl<'a> Found<'a> {
    /// Its JSON text: a value's as it was written.
    pub fn to_json(self) -> Cow<'a, str> {
        match self {
            Self::Key(key) => {
                let mut text = String::with_capacity(key.len().saturating_add(2));
                json::write_string(key, &mut text);
                Cow::Owned(text)
            }
            Self::Value(value) => Cow::Borrowed(value.raw()),
        }
    }

    /// Its content, if it is a string.
    pub fn as_str(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Key(key) => Some(Cow::Borrowed(key)),
            Self::Value(value) => value.as_str(),
        }
    }
}

impl Path {
    /// Reads a path.
    ///
    /// # Errors
    ///
    /// The first byte that cannot be, and why.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.len() > MAX_PATH {
            return Err(PathError { offset: MAX_PATH, reason: "a path is at most 512 bytes long" });
        }
        let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
        let root = reader.root()?;
        let mut segments = Vec::new();
        while let Some(segment) = reader.segment()? {
            segments.push(segment);
        }
        match root {
            Root::Key if !segments.is_empty() => {
                let offset = Root::Key.as_str().len();
                return Err(PathError { offset, reason: "`idempotency_key` has no members" });
            }
            Root::Before | Root::Request | Root::Response if segments.is_empty() => {
                return Err(reader.error("a `.name` or `[index]` must follow"));
            }
            Root::Before | Root::Key | Root::Request | Root::Response => {}
        }
        let optional = reader.take(b'?');
        match reader.peek() {
            None => Ok(Self { root, segments, optional }),
            Some(_) if optional => Err(reader.error("`?` must be last")),
            Some(_) => Err(reader.error("expected `.name`, `[index]` or `?`")),
        }
    }

    /// What it names in this call; `None` for nothing and for `null` (standards P-1, P-2).
    pub fn resolve<'a>(&self, scope: &Scope<'a>) -> Option<Found<'a>> {
        let value = match self.root {
            Root::Before => walk(&self.segments, scope.before?)?,
            Root::Key => return scope.key.map(Found::Key),
            Root::Request => scope.request.walk(&self.segments)?,
            Root::Response => walk(&self.segments, scope.response?)?,
        };
        (!value.is_null()).then_some(Found::Value(value))
    }
}

fn walk<'a>(segments: &[Segment], value: Value<'a>) -> Option<Value<'a>> {
    segments.iter().try_fold(value, |at, segment| match segment {
        Segment::Index(position) => at.at(*position),
        Segment::Name(name) => at.get(name),
    })
}

impl fmt::Display for Path {
    /// The canonical text: indices without leading zeros.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.root.as_str())?;
        for segment in &self.segments {
            match segment {
                Segment::Index(position) => write!(f, "[{position}]")?,
                Segment::Name(name) => write!(f, ".{name}")?,
            }
        }
        f.write_str(if self.optional { "?" } else { "" })
    }
}

struct Reader<'t> {
    bytes: &'t [u8],
    at: usize,
}

impl Reader<'_> {
    fn root(&mut self) -> Result<Root, PathError> {
        let word = self.take_while(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        for root in [Root::Before, Root::Key, Root::Request, Root::Response] {
            if root.as_str().as_bytes() == word {
                return Ok(root);
            }
        }
        let reason = "a path starts with `request`, `response`, `before` or `idempotency_key`";
        Err(PathError { offset: 0, reason })
    }

    fn segment(&mut self) -> Result<Option<Segment>, PathError> {
        if self.take(b'.') {
            if !self.peek().is_some_and(|b| b.is_ascii_alphabetic() || matches!(b, b'_' | b'$')) {
                return Err(self.error("a name starts with a letter, `_` or `$`"));
            }
            let name =
                self.take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'-'));
            return Ok(Some(Segment::Name(String::from_utf8_lossy(name).into_owned())));
        }
        if self.take(b'[') {
            let start = self.at;
            let digits = self.take_while(|byte| byte.is_ascii_digit());
            let position = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            let (Some(position), true) = (position, digits.len() <= 9) else {
                return Err(PathError { offset: start, reason: "an index is 1 to 9 digits" });
            };
            if !self.take(b']') {
                return Err(self.error("`]` must follow the index"));
            }
            return Ok(Some(Segment::Index(position)));
        }
        Ok(None)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        if is_next {
            self.at = self.at.saturating_add(1);
        }
        is_next
    }

    fn take_while(&mut self, accepts: impl Fn(u8) -> bool) -> &[u8] {
        let start = self.at;
        while self.peek().is_some_and(&accepts) {
            self.at = self.at.saturating_add(1);
        }
        self.bytes.get(start..self.at).unwrap_or_default()
    }

    fn error(&self, reason: &'static str) -> PathError {
        PathError { offset: self.at, reason }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::json::Doc;
    use super::*;

    fn described(path: &Path) -> String {
        let segments: Vec<String> = path
            .segments
            .iter()
            .map(|segment| match segment {
                Segment::Index(position) => position.to_string(),
                Segment::Name(name) => format!("\"{name}\""),
            })
            .collect();
        let (root, optional) = (path.root.as_str(), path.optional);
        format!("{root} [{}] {optional}", segments.join(", "))
    }

    #[test]
    fn every_vector_holds() {
        let vectors = Doc::parse(include_str!("../../tests/vectors/paths.json")).unwrap();
        let documents = vectors.root().get("documents").unwrap();
        let document = |case: Value<'_>, member: &str| {
            let named = case.get(member).unwrap();
            let text = match named.as_str() {
                Some(name) => documents.get(&name).unwrap().raw(),
                None => named.raw(),
            };
            Doc::parse(text.to_owned()).unwrap()
        };
        let mut counts = (0, 0, 0);
        for case in vectors.root().get("cases").unwrap().elements() {
            let text = case.get("path").unwrap().as_str().unwrap();
            let Ok(path) = Path::parse(&text) else {
                assert!(case.get("parse_error").is_some(), "{text} is a path");
                counts.0 += 1;
                continue;
            };
            let parse = case.get("parse").unwrap_or_else(|| panic!("{text} is no path"));
            let segments: Vec<&str> =
                parse.get("segments").unwrap().elements().map(Value::raw).collect();
            let expected = format!(
                "{} [{}] {}",
                parse.get("root").unwrap().as_str().unwrap(),
                segments.join(", "),
                parse.get("optional").unwrap().raw()
            );
            assert_eq!(described(&path), expected);

            let request = document(case, "request");
            let response = document(case, "response");
            let key = case.get("key").unwrap().as_str();
            let scope = Scope {
                before: None,
                request: Request::Arguments(request.root()),
                response: (!response.root().is_null()).then(|| response.root()),
                key: key.as_deref(),
            };
            let expect = case.get("expect").unwrap();
            let found = path.resolve(&scope).map(|found| found.to_json().into_owned());
            assert_eq!(found.as_deref(), expect.get("value").map(Value::raw), "{text}");
            match found {
                Some(_) => counts.2 += 1,
                None => {
                    let word = if path.optional { "omitted" } else { "follow_up_unavailable" };
                    assert_eq!(expect.get("argument").unwrap().as_str().as_deref(), Some(word));
                    counts.1 += 1;
                }
            }
        }
        assert_eq!(counts, (26, 18, 10), "errors, misses, values");
    }

    #[test]
    fn texts_that_are_no_paths_say_where() {
        let longest = format!("request.{}", "a".repeat(MAX_PATH - 8));
        let cases = [
            ("", Some(0)),
            ("request", Some(7)),
            ("response?", Some(8)),
            ("request.", Some(8)),
            ("request..a", Some(8)),
            ("request.a??", Some(10)),
            ("request.a?.b", Some(10)),
            ("request[", Some(8)),
            ("request[]", Some(8)),
            ("request[1234567890]", Some(8)),
            ("request['a']", Some(8)),
            ("request[0", Some(9)),
            ("request.é", Some(8)),
            ("request.a.é", Some(10)),
            (" request.a", Some(0)),
            ("idempotency_key.x", Some(15)),
            ("idempotency_key[0]", Some(15)),
            ("request[000000007].a", None),
            (&longest, None),
            (&format!("{longest}a"), Some(512)),
        ];
        for (text, expected) in cases {
            assert_eq!(Path::parse(text).err().map(|error| error.offset), expected, "{text}");
        }
    }

    #[test]
    fn p_7_http_requests_have_exactly_four_members() {
        let head = Doc::parse(
            r#"{"path":{"id":"7"},"query":{"tag":["a","b"],"body":"q"},"header":{"if-match":"x"}}"#,
        )
        .unwrap();
        let body = Doc::parse(r#"{"amount":"2000","path":{"id":"8"},"list":[null,1]}"#).unwrap();
        let scope = Scope {
            before: None,
            request: Request::Http { head: head.root(), body: Some(body.root()), is_opaque: false },
            response: None,
            key: None,
        };
        let cases = [
            ("request.path.id", Some("\"7\"")),
            ("request.query.tag[1]", Some("\"b\"")),
            ("request.query.body", Some("\"q\"")),
            ("request.header.if-match", Some("\"x\"")),
            ("request.header.If-Match", None),
            ("request.body.amount", Some("\"2000\"")),
            ("request.body.path.id", Some("\"8\"")),
            ("request.body", Some(body.root().raw())),
            ("request.body.list[0]", None),
            ("request.amount", None),
            ("request[0]", None),
        ];
        for (text, expected) in cases {
            let path = Path::parse(text).unwrap();
            let found = path.resolve(&scope).map(|found| found.to_json().into_owned());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn paths_into_an_opaque_body_name_nothing() {
        let head = Doc::parse(r#"{"path":{"id":"7"},"query":{},"header":{}}"#).unwrap();
        let opaque = Request::Http { head: head.root(), body: None, is_opaque: false };
        let named = |text: &str, request| {
            let scope = Scope { before: None, request, response: None, key: None };
            Path::parse(text).unwrap().resolve(&scope).is_some()
        };

        assert!(named("request.path.id", opaque));
        assert!(!named("request.body", opaque));
        assert!(!named("request.body.id", opaque));
        assert!(!named("request.path.id", Request::Unreadable));
    }

    #[test]
    fn pointers_over_an_http_request_reach_all_four_members() {
        let head = Doc::parse(r#"{"path":{"id":"7"},"query":{},"header":{}}"#).unwrap();
        let body = Doc::parse(r#"{"sha":"abc"}"#).unwrap();
        let request =
            Request::Http { head: head.root(), body: Some(body.root()), is_opaque: false };
        let cases = [
            ("/path/id", Some("\"7\"")),
            ("/body/sha", Some("\"abc\"")),
            ("/body", Some(body.root().raw())),
            ("/sha", None),
            ("", Some(head.root().raw())),
        ];
        for (text, expected) in cases {
            let found = request.pointer(&Pointer::parse(text).unwrap());
            assert_eq!(found.map(Value::raw), expected, "{text}");
        }
    }

    fn path() -> impl Strategy<Value = Path> {
        let segment = prop_oneof![
            (0_usize..1_000_000_000).prop_map(Segment::Index),
            "[A-Za-z_$][A-Za-z0-9_$-]{0,6}".prop_map(Segment::Name),
        ];
        let root = prop_oneof![Just(Root::Request), Just(Root::Response)];
        let scoped = (root, prop::collection::vec(segment, 1..6), any::<bool>())
            .prop_map(|(root, segments, optional)| Path { root, segments, optional });
        let key = any::<bool>().prop_map(|optional| Path {
            root: Root::Key,
            segments: Vec::new(),
            optional,
        });
        prop_oneof![9 => scoped, 1 => key]
    }

    proptest! {
        #[test]
        fn written_paths_read_back(path in path()) {
            prop_assert_eq!(Path::parse(&path.to_string()), Ok(path));
        }

        #[test]
        fn any_text_is_read_or_refused(
            text in "(request|response|idempotency_key)?[.\\[\\]?a-c0-2$é -]{0,12}",
        ) {
            match Path::parse(&text) {
                // Only leading zeros of an index may differ from the canonical text.
                Ok(path) => {
                    let again = Path::parse(&path.to_string()).unwrap();
                    prop_assert_eq!(&again, &path);
                    prop_assert!(path.to_string().len() <= text.len());
                }
                Err(error) => prop_assert!(error.offset <= text.len()),
            }
        }
    }
}
