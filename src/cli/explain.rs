//! `takeback explain`: what one call would be, what it would need, and how it would be taken back.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};

use super::exit::{self, Failure, with_help};
use super::{Format, out};
use crate::call::refusal::Refusal;
use crate::contract::json::{Doc, Kind};
use crate::http::decode::{Decoded, decode};
use crate::http::headers::REPORT;
use crate::pipeline::foresee;
use crate::policy::{self, Explained, Snapshot};

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
            let arguments = tool_arguments(arguments)?;
            foresee::tool(&snapshot, name, arguments.root())
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
    let mut map = HeaderMap::new();
    for text in headers {
        let wrong = || {
            usage(&format!("--header `{}` is no header", out::clean(text)), "give `NAME: VALUE`")
        };
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let value = value.trim();
        let header = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| wrong())?;
        map.append(&header, HeaderValue::from_str(value).map_err(|_| wrong())?);
    }
    let bytes = body.map(read).transpose()?.unwrap_or_default();
    if !bytes.is_empty() && !map.contains_key(header::CONTENT_TYPE) {
        map.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let uri: Uri = target.parse().map_err(|_| {
        usage("the path is no target of a request", "percent-encode what a path cannot hold")
    })?;
    let decoded = decoded(&method, &uri, map);
    let mut told = foresee::http(snapshot, &method, &uri, decoded, &bytes);
    if uri.path() == DEFAULT_MCP_PATH || uri.path().starts_with("/call/") {
        let note = "a sidecar with this MCP path, or this call route, takes it for a tool's call: \
                    ask with --tool NAME --arguments JSON";
        told.lines.push(("note", note.to_owned()));
    }
    Ok(told)
}

/// Where tools are called unless `--mcp-path` says otherwise.
const DEFAULT_MCP_PATH: &str = "/mcp";

/// The call as the sidecar reads it, or what it would answer to one that it does not read.
pub(super) fn decoded(method: &Method, uri: &Uri, headers: HeaderMap) -> Result<Decoded, Refusal> {
    let mut request = http::Request::new(());
    *request.method_mut() = method.clone();
    *request.uri_mut() = uri.clone();
    *request.headers_mut() = headers;
    // Where it is sent is not asked about.
    let host = HeaderValue::from_static("localhost");
    request.headers_mut().entry(header::HOST).or_insert(host);
    let peer = HeaderValue::from_static("127.0.0.1");
    decode(request.into_parts().0, peer, &REPORT, "explain")
}

/// A tool's arguments: one JSON object.
fn tool_arguments(text: &str) -> Result<Doc, Failure> {
    let help = "give the tool's arguments as one JSON object: --arguments '{\"id\": 7}'";
    let doc = Doc::parse(text.to_owned())
        .map_err(|error| usage(&format!("--arguments is no JSON: {error}"), help))?;
    match doc.root().kind() {
        Kind::Object => Ok(doc),
        Kind::Array | Kind::Bool | Kind::Null | Kind::Number | Kind::String => {
            Err(usage("--arguments is no JSON object", help))
        }
    }
}

/// A body out of a file, or with `-` from standard input.
fn read(path: &Path) -> Result<Bytes, Failure> {
    let failed = |error: std::io::Error| {
        let message = format!("the body {} cannot be read: {error}", path.display());
        let help = "give a file that holds the call's body, or `-` for standard input";
        Failure::new(exit::IO, with_help(&message, help))
    };
    let mut bytes = Vec::new();
    let source: Box<dyn std::io::Read> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).map_err(failed)?)
    };
    source.take(MAX_BODY.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_BODY) {
        let help = "the sidecar refuses such a call with 413; see `max_body_bytes` and `limits`";
        return Err(usage(&format!("the body has over {MAX_BODY} bytes"), help));
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

    const POLICY: &str = "version: 1\n\
        operations:\n\
        \x20 pods.create:\n\
        \x20   match: { http: \"POST /ns/{ns}/pods\", where: { request.query.dryRun: \
        { absent: true } } }\n\
        \x20   effect:\n\
        \x20     class: compensable\n\
        \x20     compensate: { operation: pods.delete, arguments: \
        { ns: request.ns, name: response.name, query.note: request.body.note? } }\n\
        \x20 pods.try:\n\
        \x20   match: { http: \"POST /ns/{ns}/pods\", where: { request.query.dryRun: \
        { equals: All } } }\n\
        \x20   effect: { class: read }\n\
        \x20 pods.delete: { match: { http: \"DELETE /ns/{ns}/pods/{name}\" } }\n\
        \x20 run: { match: { http: GET /Run }, effect: { class: irreversible } }\n\
        \x20 tool: { match: { tool: t } }\n\
        \x20 tried: { match: { tool: u, where: { request.mode: { equals: try } } }, \
        effect: { class: read } }\n";

    fn told(method: &str, target: &str, body: Option<&str>) -> String {
        let compiled = policy::compile(vec![("a.yaml".to_owned(), POLICY.to_owned())]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), body.unwrap_or_default()).unwrap();
        let body = body.map(|_| file.path());
        let told = http(&compiled.snapshot.unwrap(), method, target, &[], body).unwrap();
        assert!(Doc::parse(told.json()).is_ok());
        told.human()
    }

    #[test]
    fn a_write_is_told_with_its_undo_and_the_rule_that_decided() {
        assert_eq!(
            told("POST", "/ns/a%20b/pods", Some("{}")),
            "operation     pods.create\n\
             declared      a.yaml:3\n\
             rule          it matches POST /ns/{ns}/pods\n\
             rule          and request.query.dryRun is absent\n\
             not           pods.try: it does not satisfy request.query.dryRun equals \"All\"\n\
             class         compensable\n\
             kind          mutation\n\
             confirm       none\n\
             mode          enforce\n\
             key           none; a lost answer is never sent again by itself\n\
             evidence      none\n\
             undo          compensate pods.delete: DELETE /ns/{ns}/pods/{name} with ns = \"a b\", \
             name = response.name, query.note = left out (request.body.note? names nothing)\n"
        );
    }

    #[test]
    fn a_variant_and_what_matches_none_are_told_apart() {
        assert!(told("POST", "/ns/a/pods?dryRun=All", None).contains("operation     pods.try"));
        let neither = told("POST", "/ns/a/pods?dryRun=All&dryRun=x", None);
        assert!(neither.contains("satisfies no variant"), "{neither}");
        assert!(neither.contains("class         irreversible"));
    }

    #[test]
    fn undeclared_calls_are_read_or_irreversible_by_method() {
        assert!(told("GET", "/other", None).contains("class         read"));
        assert!(told("POST", "/other", None).contains("confirm       challenge"));
        let folded = told("GET", "/run/", None);
        assert!(folded.contains("class         irreversible"), "{folded}");
    }

    #[test]
    fn a_tool_call_is_explained() {
        let compiled = policy::compile(vec![("a.yaml".to_owned(), POLICY.to_owned())]);
        let arguments = tool_arguments("{}").unwrap();
        let told = foresee::tool(&compiled.snapshot.unwrap(), "t", arguments.root());
        assert!(told.human().starts_with("operation     tool\n"));
        let compiled = policy::compile(vec![("a.yaml".to_owned(), POLICY.to_owned())]);
        let twins = tool_arguments(r#"{"mode":"try","Mode":"do"}"#).unwrap();
        let told = foresee::tool(&compiled.snapshot.unwrap(), "u", twins.root());
        assert!(told.human().starts_with("refused       400 ambiguous_member: "));
        for text in ["{", "[1]", "7"] {
            let failure = tool_arguments(text).unwrap_err();
            assert_eq!(failure.code, exit::USAGE);
            assert!(failure.message.contains("help: give the tool's arguments"), "{text}");
        }
    }

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
        let first = |headers: &[&str], body: &Path| {
            let headers: Vec<String> = headers.iter().map(|h| (*h).to_owned()).collect();
            let told = http(&snapshot(), "POST", "/a", &headers, Some(body)).unwrap();
            let (name, text) = told.lines.into_iter().next().unwrap();
            format!("{name} {text}")
        };
        let typed = ["Content-Type: application/x-www-form-urlencoded"];
        assert_eq!(first(&[], &json), "operation a");
        assert_eq!(first(&typed, &form), "operation a");
        assert!(first(&[], &form).starts_with("refused 400 invalid_json: "), "no JSON");
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
