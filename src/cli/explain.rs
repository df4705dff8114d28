//! `takeback explain`: what one call would be, what it would need, and how it would be taken back.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use super::exit::{self, Failure, with_help};
use super::{Format, out};
use crate::call::refusal::Refusal;
use crate::contract::json::Doc;
use crate::http::body::BodyDoc;
use crate::http::decode::{Decoded, decode};
use crate::http::headers::REPORT;
use crate::pipeline::foresee;
use crate::policy::{self, Explained, Imagined, Snapshot};

/// The longest body that is read, in bytes; the sidecar's own limit.
const MAX_BODY: u64 = 4 * 1024 * 1024;

/// A call as it is given on the command line.
#[derive(Clone, Debug)]
pub(super) enum Asked<'a> {
    /// A plain HTTP request.
    Http { method: &'a str, target: &'a str, headers: &'a [String], body: Option<&'a Path> },
    /// A tool call.
    Tool { name: &'a str, arguments: &'a str },
}

/// Explains one call under the policy of a folder.
pub(super) fn run(folder: &Path, asked: &Asked<'_>, format: Format) -> Result<u8, Failure> {
    let snapshot = load(folder)?;
    let told = match asked {
        Asked::Http { method, target, headers, body } => {
            http(&snapshot, method, target, headers, *body)?
        }
        Asked::Tool { name, arguments } => {
            let arguments = Doc::parse((*arguments).to_owned())
                .map_err(|error| usage(&format!("--arguments is no JSON: {error}"), ""))?;
            policy::explain(&snapshot, &Imagined::Tool { name, arguments: &arguments })
        }
    };
    match format {
        Format::Json => out::print(&told.json())?,
        Format::Text => {
            for line in told.human().lines() {
                out::print(&out::clean(line))?;
            }
        }
    }
    Ok(exit::OK)
}

/// The policy of a folder as it would be served, with errors or without.
pub(super) fn load(folder: &Path) -> Result<Snapshot, Failure> {
    let compiled = policy::load(folder);
    let findings = compiled.human_errors();
    compiled.snapshot.ok_or_else(|| {
        let message = format!("{findings}the policy in {} cannot be served", folder.display());
        let help = "`takeback check DIR` says what is wrong with a policy";
        Failure::new(exit::CONFIG, with_help(&message, help))
    })
}

fn usage(message: &str, help: &str) -> Failure {
    Failure::new(exit::USAGE, with_help(message, help))
}

fn http(
    snapshot: &Snapshot,
    method: &str,
    target: &str,
    headers: &[String],
    body: Option<&Path>,
) -> Result<Explained, Failure> {
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| usage("the first argument is no method", "give GET, POST, ..."))?;
    if !target.starts_with('/') {
        let help = "give the path as the agent asks for it, with its query: /repos/a/b?page=2";
        return Err(usage("the path does not start with `/`", help));
    }
    let mut pairs = Vec::with_capacity(headers.len());
    let mut map = HeaderMap::new();
    for text in headers {
        let wrong = || {
            usage(&format!("--header `{}` is no header", out::clean(text)), "give `NAME: VALUE`")
        };
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let value = value.trim();
        let header = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| wrong())?;
        map.append(&header, HeaderValue::from_str(value).map_err(|_| wrong())?);
        pairs.push((header.as_str().to_owned(), value.to_owned()));
    }
    let bytes = body.map(read).transpose()?.unwrap_or_default();
    if !bytes.is_empty() && !map.contains_key(header::CONTENT_TYPE) {
        map.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let refused = refusal(snapshot, &method, target, map.clone(), &bytes);
    let body = BodyDoc::read(&map, &bytes).unwrap_or(BodyDoc::Opaque);
    let doc = match &body {
        BodyDoc::Json(doc) | BodyDoc::Form(doc, _) => Some(doc),
        BodyDoc::None | BodyDoc::Opaque => None,
    };
    let call = Imagined::Http { method: &method, target, headers: &pairs, body: doc };
    let mut told = policy::explain(snapshot, &call);
    if let Some(refusal) = refused {
        let why =
            format!("{} {}: {}", refusal.status(), refusal.envelope_code(), refusal.message());
        told.lines.insert(0, ("refused", why));
    }
    Ok(told)
}

/// What the sidecar would answer instead of sending the call on.
fn refusal(
    snapshot: &Snapshot,
    method: &Method,
    target: &str,
    headers: HeaderMap,
    bytes: &Bytes,
) -> Option<Refusal> {
    let mut request = http::Request::new(());
    *request.method_mut() = method.clone();
    *request.uri_mut() = target.parse().ok()?;
    *request.headers_mut() = headers;
    // Where it is sent is not asked about.
    let host = HeaderValue::from_static("localhost");
    request.headers_mut().entry(header::HOST).or_insert(host);
    let peer = HeaderValue::from_static("127.0.0.1");
    match decode(request.into_parts().0, peer, &REPORT, "explain") {
        Err(refusal) => Some(refusal),
        Ok(Decoded { head, control, oddity, .. }) => {
            foresee::refusal(snapshot, &head, control, oddity, bytes)
        }
    }
}

/// A body out of a file, or with `-` from standard input.
fn read(path: &Path) -> Result<Bytes, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(exit::IO, format!("the body {} cannot be read: {error}", path.display()))
    };
    let mut bytes = Vec::new();
    let source: Box<dyn std::io::Read> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).map_err(failed)?)
    };
    source.take(MAX_BODY.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_BODY) {
        return Err(usage(&format!("the body has over {MAX_BODY} bytes"), ""));
    }
    Ok(Bytes::from(bytes))
}

/// The folder that is asked about: the flag, or the sidecar's variable.
pub(super) fn folder(flag: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let variable = || std::env::var_os("TAKEBACK_POLICIES").map(PathBuf::from);
    flag.or_else(variable)
        .ok_or_else(|| usage("no policies are given", "give --policies DIR, or TAKEBACK_POLICIES"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let text = "version: 1\noperations:\n  a: { match: { http: \"POST /a\", where: { \
                    request.body.mode: { equals: try } } }, effect: { class: read } }\n";
        policy::compile(vec![("a.yaml".to_owned(), text.to_owned())]).snapshot.unwrap()
    }

    #[test]
    fn a_body_is_read_by_its_type() {
        let directory = tempfile::tempdir().unwrap();
        let (json, form) = (directory.path().join("json"), directory.path().join("form"));
        std::fs::write(&json, r#"{"mode":"try"}"#).unwrap();
        std::fs::write(&form, "mode=try").unwrap();
        let operation = |headers: &[&str], body: &Path| {
            let headers: Vec<String> = headers.iter().map(|h| (*h).to_owned()).collect();
            let told = http(&snapshot(), "POST", "/a", &headers, Some(body)).unwrap();
            let mut lines = told.lines.into_iter();
            lines.find(|(name, _)| *name == "operation").unwrap().1
        };
        let typed = ["Content-Type: application/x-www-form-urlencoded"];
        assert_eq!(operation(&[], &json), "a");
        assert_eq!(operation(&typed, &form), "a");
        assert_eq!(operation(&[], &form), "_undeclared", "no JSON");
    }

    #[test]
    fn what_would_be_refused_is_said_and_what_is_no_call_is_usage() {
        let told = http(&snapshot(), "POST", "/b/../a", &[], None).unwrap();
        assert_eq!(told.lines[0].0, "refused");
        assert!(told.lines[0].1.starts_with("400 ambiguous_path: "), "{:?}", told.lines[0]);
        for (method, target, header) in
            [("GE T", "/a", "a: b"), ("GET", "a", "a: b"), ("GET", "/a", "no header")]
        {
            let failure =
                http(&snapshot(), method, target, &[header.to_owned()], None).unwrap_err();
            assert_eq!(failure.code, exit::USAGE);
        }
    }
}
