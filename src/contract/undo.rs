//! Follow-ups: the call that takes an effect back, finds it, or makes its draft, filled with values
//! of one call (ADR-0030 sections 2 and 7, standards 5.2 to 5.4).
//!
//! A follow-up is complete or unavailable, never a call with a gap: the first argument in
//! declaration order that cannot be filled names itself as the reason. A deadline that names no
//! time makes the follow-up unavailable too, because a wrong deadline is worse than none. Reasons
//! name arguments and paths, which the policy wrote, and never values.
//!
//! What is built here is matched again by the caller: a value may make it another operation's call.

use std::fmt;

pub use super::deadline::is_passed;
use super::deadline::time_ms;
use super::key::OperationId;
use super::operation::{Argument, Before, Deadline, Draft, FollowUp, Lookup, Mapping, Reference};
use super::path::{Found, HTTP_SECTIONS, Path, Request, Root, Scope, Segment};
use super::pointer::Pointer;
use super::prefill::Prefill;
pub use super::slots::Unfit;
use super::slots::object;

/// A follow-up with everything that its call needs.
#[derive(Clone, PartialEq, Eq)]
pub struct Resolved {
    /// What is called.
    pub operation: OperationId,
    /// The tool to call, for an MCP target.
    pub tool: Option<String>,
    /// The method, and the path with its query, for an HTTP target; without the upstream's base
    /// path.
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
    /// The path that comes out is one that is refused here.
    #[error("its path would have a dot segment")]
    Path,
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
    let prefill = Prefill::begin(&follow_up.reference, &follow_up.arguments, scope);
    complete(follow_up, &prefill, scope, answered_ms, sensitive)
}

/// As [`resolve`], of a follow-up that is filled in part.
///
/// # Errors
///
/// The first argument that cannot be filled, or the deadline.
pub fn complete(
    follow_up: &FollowUp,
    prefill: &Prefill,
    scope: &Scope<'_>,
    answered_ms: i64,
    sensitive: &[Pointer],
) -> Result<Resolved, Unavailable> {
    let FollowUp { reference, arguments, deadline } = follow_up;
    let mut resolved = prefill.finish(reference, arguments, scope, sensitive)?;
    resolved.deadline_ms = match deadline {
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

/// Fills the read of the state before a call.
///
/// # Errors
///
/// The first argument that cannot be filled.
pub fn resolve_before(before: &Before, scope: &Scope<'_>) -> Result<Resolved, Unavailable> {
    fill(&before.reference, &before.arguments, scope, &[])
}

/// Fills the call that makes the draft.
///
/// # Errors
///
/// The first argument that cannot be filled.
pub fn resolve_draft(draft: &Draft, scope: &Scope<'_>) -> Result<Resolved, Unavailable> {
    fill(&draft.reference, &draft.arguments, scope, &[])
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

fn is_sensitive(path: &Path, request: Request<'_>, sensitive: &[Pointer]) -> bool {
    let sections = match request {
        Request::Arguments(_) => Sections::None,
        Request::Http { .. } | Request::Unreadable => Sections::Http,
    };
    is_hidden(path, sections, sensitive)
}

/// Whether a request has sections, as an HTTP request has, or is one object, as a tool's arguments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sections {
    /// `path`, `query`, `header` and `body`.
    Http,
    /// None.
    None,
}

/// Whether `sensitive` keeps a path's value out of every call that is made of it: the path names a part
/// that is hidden, something inside it, or something around it.
///
/// Pointers are over the request object. Over HTTP one that starts with none of its four members is
/// taken as one into the body: a list that was meant to hide something hides it.
pub fn is_hidden(path: &Path, sections: Sections, sensitive: &[Pointer]) -> bool {
    let is_before = match path.root {
        Root::Request => false,
        // What is hidden of a request is hidden of the state that it replaces.
        Root::Before => true,
        Root::Key | Root::Response => return false,
    };
    let is_http = sections == Sections::Http;
    let is_step = |segment: &Segment, token: &String| match segment {
        Segment::Index(position) => position.to_string() == *token,
        // Header names are the same in any case; nothing is lost by hiding too much elsewhere.
        Segment::Name(name) => name.eq_ignore_ascii_case(token),
    };
    sensitive.iter().any(|pointer| {
        let tokens = pointer.tokens();
        let mut segments = path.segments.as_slice();
        if is_before {
            let tokens = match tokens.split_first() {
                Some((first, rest)) if is_http && first == "body" => rest,
                Some(_) | None => tokens,
            };
            return segments.iter().zip(tokens).all(|(segment, token)| is_step(segment, token));
        }
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

/// What an argument is filled with; none for an optional one whose path names nothing.
pub(super) fn found<'a>(
    argument: &'a Argument,
    scope: &Scope<'a>,
) -> Result<Option<Found<'a>>, Unavailable> {
    match &argument.mapping {
        Mapping::Const(literal) => Ok(Some(Found::Value(literal.root()))),
        Mapping::Path(path) => match path.resolve(scope) {
            Some(found) => Ok(Some(found)),
            None if path.optional => Ok(None),
            None => {
                let lacking = lacking(path, scope);
                let (argument, path) = (argument.name.clone(), path.to_string());
                Err(Unavailable::NamesNothing { argument, path, lacking })
            }
        },
    }
}

fn fill(
    reference: &Reference,
    arguments: &[Argument],
    scope: &Scope<'_>,
    sensitive: &[Pointer],
) -> Result<Resolved, Unavailable> {
    Prefill::begin(reference, arguments, scope).finish(reference, arguments, scope, sensitive)
}

/// What a path looks into, if the call does not have it or nobody can read it.
fn lacking(path: &Path, scope: &Scope<'_>) -> Option<&'static str> {
    match path.root {
        Root::Before => scope.before.is_none().then_some("the state before the call was not read"),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::class::Class;
    use super::super::json::Doc;
    use super::super::operation::{Allow, BodyType, LookupBy, Slot, Target, TimeUnit};
    use super::super::template::Template;
    use super::*;

    const HEAD: &str = r#"{"path":{"owner":"octo","repo":"a b"},"query":{},
        "header":{"authorization":"canary"}}"#;
    const BODY: &str = r#"{"title":"hi","password":"canary","card":{"number":"4","last4":"1"}}"#;
    const ANSWER: &str = r#"{"id":100,"big":9007199254740993,"nul":null,
        "expires_at":"2026-12-01T00:00:00Z","when":1764547200,"list":[{"id":7}]}"#;

    fn reference(template: &str) -> Reference {
        Reference {
            operation: OperationId::new("comments.delete").unwrap(),
            target: Target::Http {
                method: http::Method::DELETE,
                template: Template::parse(template).unwrap(),
            },
            class: Class::Irreversible,
            body_type: BodyType::Json,
            allow: Allow::default(),
        }
    }

    fn argument(name: &str, mapping: &str) -> Argument {
        let slot = match name.split_once('.') {
            Some(("path", rest)) => Slot::Path(rest.to_owned()),
            Some(("query", rest)) => Slot::Query(rest.to_owned()),
            Some(("header", rest)) => Slot::Header(rest.parse().unwrap()),
            Some(("body", rest)) => Slot::Body(rest.split('.').map(str::to_owned).collect()),
            Some(_) | None => Slot::Argument(name.to_owned()),
        };
        let mapping = match mapping.strip_prefix("const ") {
            Some(json) => Mapping::Const(Arc::new(Doc::parse(json.to_owned()).unwrap())),
            None => Mapping::Path(Path::parse(mapping).unwrap()),
        };
        Argument { name: name.to_owned(), slot, mapping }
    }

    fn follow_up(template: &str, arguments: &[(&str, &str)]) -> FollowUp {
        let arguments = arguments.iter().map(|(name, mapping)| argument(name, mapping)).collect();
        FollowUp { reference: reference(template), arguments, deadline: None }
    }

    /// Resolves against the constants above, answered at 1000.
    fn resolved(follow_up: &FollowUp, sensitive: &[&str]) -> Result<Resolved, String> {
        let (head, body) = (Doc::parse(HEAD).unwrap(), Doc::parse(BODY).unwrap());
        let answer = Doc::parse(ANSWER).unwrap();
        let scope = Scope {
            before: None,
            request: Request::Http { head: head.root(), body: Some(body.root()), is_opaque: false },
            response: Some(answer.root()),
            key: None,
        };
        let sensitive: Vec<Pointer> =
            sensitive.iter().map(|pointer| Pointer::parse(pointer).unwrap()).collect();
        resolve(follow_up, &scope, 1_000, &sensitive).map_err(|reason| reason.to_string())
    }

    #[test]
    fn an_http_follow_up_is_filled_in_declaration_order() {
        let follow_up = follow_up(
            "/repos/{owner}/{repo}/comments/{id}",
            &[
                ("path.id", "response.id"),
                ("path.owner", "request.path.owner"),
                ("path.repo", "request.path.repo"),
                ("query.v", "response.big"),
                ("query.why", "const \"undo it\""),
                ("query.none", "response.none?"),
                ("header.if-match", "const \"*\""),
                ("body.note.title", "request.body.title"),
                ("body.note.card", "request.body.card"),
                ("body.nul", "const null"),
            ],
        );

        let call = resolved(&follow_up, &[]).unwrap();

        let path = "/repos/octo/a%20b/comments/100?v=9007199254740993&why=undo%20it";
        assert_eq!(call.http, Some((http::Method::DELETE, path.to_owned())));
        assert_eq!(call.headers.len(), 1);
        assert_eq!(
            call.body.as_deref(),
            Some(r#"{"note":{"title":"hi","card":{"number":"4","last4":"1"}},"nul":null}"#)
        );
        let names: Vec<&str> = call.arguments.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "path.id",
                "path.owner",
                "path.repo",
                "query.v",
                "query.why",
                "header.if-match",
                "body.note.title",
                "body.note.card",
                "body.nul",
            ]
        );
        assert_eq!(call.arguments[0].1, "100");
        assert_eq!(call.arguments[1].1, "\"octo\"");
        assert_eq!(call.deadline_ms, None);
        assert_eq!(call.tool, None);
    }

    #[test]
    fn a_form_target_gets_a_form_body() {
        let mut follow_up = follow_up(
            "/refunds",
            &[("body.charge", "response.id"), ("body.metadata.why", "request.body.title")],
        );
        follow_up.reference.body_type = BodyType::Form;

        let call = resolved(&follow_up, &[]).unwrap();

        assert_eq!(call.body.as_deref(), Some("charge=100&metadata[why]=hi"));
    }

    #[test]
    fn a_tool_follow_up_passes_values_as_they_are() {
        let answer = Doc::parse(ANSWER).unwrap();
        let arguments = Doc::parse(r#"{"owner":"octo","tags":["a",{"b":1.0}]}"#).unwrap();
        let mut follow_up = follow_up(
            "/",
            &[
                ("id", "response.list[0].id"),
                ("owner", "request.owner"),
                ("tags", "request.tags"),
                ("nul", "const null"),
                ("key", "request.idempotency?"),
            ],
        );
        follow_up.reference.target = Target::Tool { name: Arc::from("gh__delete") };
        let scope = Scope {
            before: None,
            request: Request::Arguments(arguments.root()),
            response: Some(answer.root()),
            key: None,
        };

        let call = resolve(&follow_up, &scope, 0, &[]).unwrap();

        assert_eq!(call.tool.as_deref(), Some("gh__delete"));
        assert_eq!((call.http.is_none(), call.body.is_none()), (true, true));
        assert_eq!(
            call.arguments_json(),
            r#"{"id":7,"owner":"octo","tags":["a",{"b":1.0}],"nul":null}"#
        );
    }

    #[test]
    fn p_4_the_first_argument_without_a_value_names_itself() {
        let all = follow_up(
            "/c/{id}",
            &[
                ("query.a", "response.none?"),
                ("path.id", "response.nul"),
                ("query.b", "response.gone"),
            ],
        );
        assert_eq!(
            resolved(&all, &[]).unwrap_err(),
            "path.id (response.nul) names nothing in this call"
        );
    }

    #[test]
    fn p_9_a_value_that_does_not_fit_names_its_argument_and_no_value() {
        let cases = [
            (
                "path.id",
                "request.body.card",
                "path.id (request.body.card) is no value for a path segment",
            ),
            ("path.id", "const \"..\"", "path.id (const) is no value for a path segment"),
            (
                "path.id",
                "const \"feature/x\"",
                "path.id (const) holds a slash, and the path of its call may not \
                 (allow.encoded_slash)",
            ),
            ("query.q", "request.body.card", "query.q (request.body.card) is no value for a query"),
            ("header.x", "response.id", "header.x (response.id) is no value for a header"),
            ("id", "response.id", "id (response.id) has no place in this call"),
        ];
        for (name, mapping, reason) in cases {
            let follow_up = follow_up("/c/{id}", &[(name, mapping)]);
            assert_eq!(resolved(&follow_up, &[]).unwrap_err(), reason);
        }
    }

    #[test]
    fn p_5_an_optional_path_parameter_without_a_value_leaves_no_gap() {
        let optional = follow_up("/c/{id}", &[("path.id", "response.none?")]);
        assert_eq!(
            resolved(&optional, &[]).unwrap_err(),
            "path parameter id has no value in this call"
        );
    }

    #[test]
    fn k_3_an_answer_without_a_body_is_the_reason() {
        let head = Doc::parse(HEAD).unwrap();
        let scope = Scope {
            before: None,
            request: Request::Http { head: head.root(), body: None, is_opaque: false },
            response: None,
            key: None,
        };
        let reason = |mapping| {
            let follow_up = follow_up("/c/{id}", &[("path.id", mapping)]);
            resolve(&follow_up, &scope, 0, &[]).unwrap_err().to_string()
        };
        assert_eq!(
            reason("response.id"),
            "path.id (response.id) names nothing in this call: \
             the answer has no body that can be read"
        );
        assert_eq!(
            reason("request.body.id"),
            "path.id (request.body.id) names nothing in this call: \
             the request has no body that can be read"
        );
        assert_eq!(
            reason("idempotency_key"),
            "path.id (idempotency_key) names nothing in this call: no key went upstream"
        );
        assert_eq!(
            reason("request.path.id"),
            "path.id (request.path.id) names nothing in this call"
        );
    }

    #[test]
    fn p_10_paths_at_in_and_around_a_sensitive_part_are_refused() {
        let cases: &[(&str, &[&str], bool)] = &[
            ("request.body.password", &["/body/password"], true),
            ("request.body.password", &["/password"], true),
            ("request.body.Password?", &["/body/password"], true),
            ("request.body", &["/body/password"], true),
            ("request.body", &["/password"], true),
            ("request.body.card.number", &["/body/card"], true),
            ("request.body.card", &["/body/card/number"], true),
            ("request.body.card.last4", &["/body/card/number"], false),
            ("request.body.title", &["/body/password", "/card"], false),
            ("request.body.title", &[""], true),
            ("request.path.owner", &["/password"], false),
            ("request.path.owner", &[""], true),
            ("request.path.owner", &["/path/owner"], true),
            ("request.header.authorization", &["/header/Authorization"], true),
            ("response.id", &["/body", "/id", ""], false),
        ];
        for (path, sensitive, is_refused) in cases {
            let follow_up = follow_up("/c", &[("body.x", path)]);
            let found = resolved(&follow_up, sensitive);
            let reason = format!("body.x ({path}) is sensitive");
            assert_eq!(found.err(), is_refused.then_some(reason), "{path} {sensitive:?}");
        }
    }

    #[test]
    fn p_10_tool_arguments_are_named_from_their_root() {
        let arguments = Doc::parse(r#"{"password":"x","list":[{"a":1}]}"#).unwrap();
        let scope = Scope {
            before: None,
            request: Request::Arguments(arguments.root()),
            response: None,
            key: None,
        };
        let check = |path, pointer: &str| {
            let sensitive = [Pointer::parse(pointer).unwrap()];
            check_sensitive(&[argument("x", path)], &scope, &sensitive).is_err()
        };
        assert!(check("request.password", "/password"));
        assert!(check("request.list[0]", "/list/0/a"));
        assert!(check("request.list", "/list/0"));
        assert!(!check("request.list[1]", "/list/0"));
        assert!(!check("request.body", "/password"));
    }

    #[test]
    fn deadlines_are_counted_from_the_answer_or_read_out_of_it() {
        let at = |path: &str, unit| Deadline::At { path: Path::parse(path).unwrap(), unit };
        let unreadable = || Err("deadline names no time".to_owned());
        let cases = [
            (Deadline::WithinMs(60_000), Ok(Some(61_000))),
            (Deadline::WithinMs(u64::MAX), Ok(Some(i64::MAX))),
            (at("response.expires_at", TimeUnit::Either), Ok(Some(1_796_083_200_000))),
            (at("response.when", TimeUnit::Seconds), Ok(Some(1_764_547_200_000))),
            (at("response.when", TimeUnit::Either), Ok(Some(1_764_547_200))),
            (at("response.when", TimeUnit::Iso8601), unreadable()),
            (at("response.none", TimeUnit::Either), unreadable()),
            (at("response.nul", TimeUnit::Either), unreadable()),
            (at("response.list", TimeUnit::Either), unreadable()),
        ];
        for (deadline, expected) in cases {
            let shown = format!("{deadline:?}");
            let mut follow_up = follow_up("/c/{id}", &[("path.id", "response.id")]);
            follow_up.deadline = Some(deadline);
            let found = resolved(&follow_up, &[]).map(|call| call.deadline_ms);
            assert_eq!(found, expected, "{shown}");
        }
    }

    #[test]
    fn the_vectors_of_a_deadline_after_the_answer_hold() {
        let vectors = Doc::parse(include_str!("../../tests/vectors/deadlines.json")).unwrap();
        let nothing = Doc::parse("{}").unwrap();
        let scope = Scope {
            before: None,
            request: Request::Arguments(nothing.root()),
            response: None,
            key: None,
        };
        let mut count = 0;
        for case in vectors.root().get("cases").unwrap().elements() {
            let number = |name| case.get(name).and_then(super::super::json::Value::as_i64);
            let Some(within_ms) = number("within_ms") else {
                continue;
            };
            let mut follow_up = follow_up("/c", &[]);
            follow_up.deadline = Some(Deadline::WithinMs(u64::try_from(within_ms).unwrap()));
            let call = resolve(&follow_up, &scope, number("answered_at_ms").unwrap(), &[]).unwrap();
            assert_eq!(call.deadline_ms, number("deadline_ms"));
            count += 1;
        }
        assert_eq!(count, 1);
    }

    #[test]
    fn lookups_read_the_key() {
        let lookup = Lookup {
            reference: Reference {
                allow: Allow { encoded_slash: true, ..Allow::default() },
                ..reference("/comments/{key}")
            },
            arguments: vec![argument("path.key", "idempotency_key")],
            by: LookupBy::IdempotencyKey,
            settle_ms: None,
            empty: None,
            matches: Vec::new(),
        };
        let scope =
            Scope { before: None, request: Request::Unreadable, response: None, key: Some("K/1") };

        let call = resolve_lookup(&lookup, &scope).unwrap();

        assert_eq!(call.http, Some((http::Method::DELETE, "/comments/K%2F1".to_owned())));
        assert_eq!(call.arguments, [("path.key".to_owned(), "\"K/1\"".to_owned())]);
        let without = Scope { key: None, ..scope };
        assert!(resolve_lookup(&lookup, &without).is_err());
    }

    #[test]
    fn drafts_read_the_request() {
        let arguments = Doc::parse(r#"{"tag":"v1"}"#).unwrap();
        let tool = Reference { target: Target::Tool { name: "r".into() }, ..reference("/") };
        let draft = Draft {
            reference: tool.clone(),
            arguments: vec![argument("tag", "request.tag"), argument("draft", "const true")],
            handle: Path::parse("response.id").unwrap(),
            promote: FollowUp { reference: tool, arguments: Vec::new(), deadline: None },
            discard: None,
        };
        let scope = Scope {
            before: None,
            request: Request::Arguments(arguments.root()),
            response: None,
            key: None,
        };

        let call = resolve_draft(&draft, &scope).unwrap();

        assert_eq!(call.arguments_json(), r#"{"tag":"v1","draft":true}"#);
    }

    #[test]
    fn debug_texts_hold_no_value() {
        let follow_up = follow_up("/c", &[("body.x", "request.body.password")]);
        let call = resolved(&follow_up, &[]).unwrap();
        assert!(call.body.as_deref().unwrap().contains("canary"));
        assert!(!format!("{call:?}").contains("canary"));
    }
}
