//! The lookup itself: its request out of what the entry kept, and what its answer says.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};

use super::{Told, Work};
use crate::contract::assertion::{Passed, evaluate};
use crate::contract::class::Verdict;
use crate::contract::json::{Doc, Kind, Value};
use crate::contract::key::OperationId;
use crate::contract::operation::{Lookup, LookupBy, Operation, Slot};
use crate::contract::path::{self, Path, Segment};
use crate::contract::selector::Evidence;
use crate::http::body::{essence, is_json};
use crate::metrics::{Purpose, ReconcileResult};
use crate::pipeline::fetch::{Credential, Target};
use crate::pipeline::live::Live;
use crate::policy::Group;

/// What a lookup asks for.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// A `GET`.
    Http(Target),
    /// A tool, and its arguments as JSON.
    Tool(String, String),
}

/// Takes the target out of what the entry kept, if the policy still means the same by it.
pub(super) fn target(kept: Value<'_>, lookup: &Lookup) -> Result<Asked, Told> {
    let text = |value: Option<Value<'_>>| value.and_then(Value::as_str).map(|s| s.into_owned());
    let is_same = text(kept.get("operation")).as_deref()
        == Some(lookup.reference.operation.as_str())
        && text(kept.get("by")).as_deref() == Some(lookup.by.as_str());
    if !is_same {
        return Err(Told::none("the operation declares another lookup than when the entry began"));
    }
    let Some(http) = kept.get("http").filter(|http| !http.is_null()) else {
        let tool = text(kept.get("tool"));
        let tool =
            tool.ok_or_else(|| Told::none("the lookup that the entry kept cannot be read"))?;
        let arguments = kept.get("arguments").map_or("{}", Value::raw).to_owned();
        return Ok(Asked::Tool(tool, arguments));
    };
    let is_get = text(http.get("method")).as_deref() == Some(Method::GET.as_str());
    if !is_get {
        return Err(Told::inconclusive("its lookup is no GET, and only a read is made"));
    }
    let path_and_query = text(http.get("path"))
        .ok_or_else(|| Told::none("the lookup that the entry kept cannot be read"))?;
    let mut headers = Vec::new();
    for argument in &lookup.arguments {
        let value = kept.get("arguments").and_then(|arguments| arguments.get(&argument.name));
        let Some(value) = value else { continue };
        match &argument.slot {
            Slot::Header(name) => {
                let value = value.as_str().map_or_else(|| value.raw().to_owned(), Into::into);
                let value = HeaderValue::from_str(&value)
                    .map_err(|_| Told::inconclusive("a header of its lookup cannot be written"))?;
                headers.push((name.clone(), value));
            }
            Slot::Body(_) => {
                return Err(Told::inconclusive("its lookup has a body, which a read has not"));
            }
            Slot::Argument(_) | Slot::Path(_) | Slot::Query(_) => {}
        }
    }
    Ok(Asked::Http(Target { path_and_query, headers }))
}

/// A built call is matched again: one that is another operation's is not made (contract section 2).
pub(super) fn is_what_it_says(live: &Live, asked: &Asked, wanted: &OperationId) -> bool {
    let is_it = |group: &Group| group.operations.iter().any(|s| s.operation.id == *wanted);
    let target = match asked {
        Asked::Http(target) => target,
        Asked::Tool(tool, _) => return live.snapshot.find_tool(tool).is_some_and(is_it),
    };
    let path = target.path_and_query.split('?').next().unwrap_or_default();
    let found = live.snapshot.find_http(&Method::GET, path);
    found.groups().iter().any(|group| is_it(group))
}

/// Whether the effect is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing.
    Absent,
    /// It, once.
    Found,
    /// It, or what looks like it, so often.
    Many(usize),
}

/// Sends the lookup once and reads its answer. `Err`: it could not tell.
pub(super) async fn look(
    work: &Work<'_>,
    asked: &Asked,
    operation: &Operation,
    lookup: &Lookup,
) -> Result<Answer, Told> {
    let name = &lookup.reference.operation;
    let got = match (asked, work.repeat) {
        (Asked::Http(target), _) => {
            work.fetch.get(target, work.credential(), Purpose::Lookup).await
        }
        (Asked::Tool(tool, arguments), Some(write)) => {
            work.fetch.call_for(write, tool, arguments).await
        }
        (Asked::Tool(tool, arguments), None) => work.fetch.call(work.live, tool, arguments).await,
    };
    let got = got.map_err(|what| Told {
        result: ReconcileResult::Error,
        ..Told::inconclusive(format!("{name} failed: {what}"))
    })?;
    let found = Found { status: got.status, headers: &got.headers };
    interpret(operation, lookup, &found, &got.body).map_err(|what| {
        let is_locked_out = matches!(got.status, 401 | 403);
        let help = match work.credential() {
            Credential::Own if is_locked_out => {
                "; give lookups a credential with `upstream.headers_file`, or repeat the call"
            }
            Credential::Caller(_) | Credential::Own => "",
        };
        Told::inconclusive(format!("{name} could not tell: {what}{help}"))
    })
}

/// The head of a lookup's answer.
pub(super) struct Found<'a> {
    pub(super) status: u16,
    pub(super) headers: &'a HeaderMap,
}

/// What a lookup's answer says; `Err`: it cannot tell, because.
pub(super) fn interpret(
    operation: &Operation,
    lookup: &Lookup,
    found: &Found<'_>,
    body: &Bytes,
) -> Result<Answer, String> {
    match found.status {
        404 | 410 => return Ok(Answer::Absent),
        200..=299 => {}
        status => return Err(format!("the answer's status is {status}")),
    }
    if !is_json(essence(found.headers)) || found.headers.contains_key(header::CONTENT_ENCODING) {
        return Err("the answer is not JSON".to_owned());
    }
    let doc =
        Doc::parse(body.clone()).map_err(|error| format!("the answer cannot be read: {error}"))?;
    let (value, hits) = match &lookup.empty {
        None => (doc.root(), doc.root()),
        Some(path) => {
            let value = walk(path, doc.root())
                .ok_or_else(|| format!("the answer has nothing at {path}"))?;
            // What is not a list or an object only says that something is there.
            let is_container = matches!(value.kind(), Kind::Array | Kind::Object);
            (value, if is_container { value } else { doc.root() })
        }
    };
    let count = match value.kind() {
        Kind::Null => 0,
        Kind::String if value.as_str().is_some_and(|text| text.is_empty()) => 0,
        Kind::Object if value.members().next().is_none() => 0,
        Kind::Array => count(lookup, found, hits)?,
        Kind::Object | Kind::String => match judge(lookup, found, hits) {
            Hit::Is => 1,
            Hit::IsNot => 0,
            Hit::Lacks | Hit::Unreadable => {
                return Err("the answer lacks what `match` reads".to_owned());
            }
        },
        Kind::Bool | Kind::Number => return Err("the answer is no list and no object".to_owned()),
    };
    // A page that is not the last says nothing about what is not on it.
    if count <= 1 && value.kind() == Kind::Array && has_next_page(found.headers) {
        return Err("the answer is one page of several".to_owned());
    }
    match count {
        0 => Ok(Answer::Absent),
        _ if !is_proof(operation, lookup) => {
            let what = "a hit by the request's data may be another call's; \
                        declare `match` or `upstream_id`";
            Err(what.to_owned())
        }
        1 => Ok(Answer::Found),
        many => Ok(Answer::Many(many)),
    }
}

/// Whether a hit is this call's effect (contract section 9, `lookup`).
fn is_proof(operation: &Operation, lookup: &Lookup) -> bool {
    match lookup.by {
        LookupBy::IdempotencyKey => true,
        LookupBy::Id => !lookup.matches.is_empty() || operation.upstream_id.is_some(),
    }
}

/// How one value stands to `match`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hit {
    Is,
    IsNot,
    /// It has no such member.
    Lacks,
    /// It has another form than `match` can compare.
    Unreadable,
}

fn judge(lookup: &Lookup, found: &Found<'_>, value: Value<'_>) -> Hit {
    if lookup.matches.is_empty() {
        return Hit::Is;
    }
    // The value as a document of its own: pointers of `match` start at it.
    let Ok(doc) = Doc::parse(value.raw().to_owned()) else { return Hit::Unreadable };
    let evaluation = evaluate(
        &lookup.matches,
        &Evidence {
            status: found.status,
            headers: found.headers,
            response: Some(doc.root()),
            request: path::Request::Unreadable,
        },
    );
    let has = |wanted: Passed| evaluation.results.iter().any(|(_, outcome)| *outcome == wanted);
    match evaluation.verdict {
        Verdict::Verified => Hit::Is,
        Verdict::Contradicted => Hit::IsNot,
        Verdict::Inconclusive if has(Passed::Invalid) => Hit::Unreadable,
        Verdict::Inconclusive => Hit::Lacks,
    }
}

/// How many elements of a list are the effect. One that lacks what `match` reads is another thing;
/// one that cannot be compared could be it.
fn count(lookup: &Lookup, found: &Found<'_>, list: Value<'_>) -> Result<usize, String> {
    let mut count: usize = 0;
    for element in list.elements() {
        match judge(lookup, found, element) {
            Hit::Is => count = count.saturating_add(1),
            Hit::IsNot | Hit::Lacks => {}
            Hit::Unreadable => return Err("an element cannot be held against `match`".to_owned()),
        }
    }
    Ok(count)
}

/// The value at a path, `null` too; `None` if the answer has nothing there.
fn walk<'a>(path: &Path, root: Value<'a>) -> Option<Value<'a>> {
    let mut value = root;
    for segment in &path.segments {
        value = match segment {
            Segment::Index(index) => value.at(*index)?,
            Segment::Name(name) => value.get(name)?,
        };
    }
    Some(value)
}

/// Whether a `Link` header names a next page (RFC 8288).
fn has_next_page(headers: &HeaderMap) -> bool {
    headers.get_all(header::LINK).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        let value = value.to_ascii_lowercase();
        value.contains("rel=next") || value.contains("rel=\"next\"")
    })
}
