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

pub use super::deadline::is_passed;
use super::deadline::time_ms;
use super::key::OperationId;
use super::operation::{
    Argument, BodyType, Deadline, Draft, FollowUp, Lookup, Mapping, Reference, Target,
};
use super::path::{Found, HTTP_SECTIONS, Path, Request, Root, Scope, Segment};
use super::pointer::Pointer;
pub use super::slots::Unfit;
use super::slots::{Filled, object};

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
    let mut filled = Filled::default();
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
        filled.place(reference, &argument.slot, found).map_err(|fault| Unavailable::Unfit {
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
                let found = filled.path.iter().find(|(parameter, _)| parameter == name);
                found.map(|(_, value)| value.clone())
            };
            let Some(mut path) = template.build(value) else {
                let missing = template.names().find(|name| value(name).is_none());
                let parameter = missing.unwrap_or_default().to_owned();
                return Err(Unavailable::NoParameter { parameter });
            };
            for (position, (name, value)) in filled.query.iter().enumerate() {
                path.push(if position == 0 { '?' } else { '&' });
                path.push_str(name);
                path.push('=');
                path.push_str(value);
            }
            resolved.http = Some((method.clone(), path));
            resolved.headers = filled.headers;
            resolved.body = match reference.body_type {
                BodyType::Json => filled.body.map(|body| body.to_json()),
                BodyType::Form => filled.form.map(|pairs| pairs.join("&")),
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
