//! `takeback undo`: taking back what a task did.
//!
//! `plan` asks the running sidecar. `run` makes the plan's calls itself, through the data port as any
//! agent does, newest first: each is matched, confirmed as its own class asks, recorded and reported.
//! Its key is the undone entry's ledger id and `-undo`, so that a second run repeats nothing: what was
//! answered is replayed, and what is unknown stays refused until it is settled.
//!
//! | what happens to a call | what `run` says |
//! |---|---|
//! | accepted | `undone` |
//! | refused for a confirmation that nobody gave here | `not confirmed`; nothing was sent |
//! | refused otherwise, or rejected by the gateway | `failed`, with the reason |
//! | its answer was lost | `unknown`, with its entry |
//! | the sidecar could not be reached, or gave no answer | `failed` |
//!
//! One that fails stops none of the others. If the caller is another principal than the agent, the
//! sidecar is told afterwards which entry each call took back; it checks that against its own record.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use percent_encoding::AsciiSet;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::exit::{self, Failure, with_help};
use super::out::{self, Cell, Colour};
use super::remote::{asked, fetched, runtime};
use super::{Format, entry_id};
use crate::admin::client::exchange;
use crate::call::payload::Body;
use crate::config::{self, Places};
use crate::upstream::Authority;

/// How long a connection to the data port may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How long one call may take; longer than the sidecar gives its upstream by default.
const CALL: Duration = Duration::from_secs(600);

/// What is encoded in a segment of a path: all but the unreserved characters of RFC 3986.
const SEGMENT: &AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What `undo run` is told.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) task: &'a str,
    /// Only these entries; empty: all.
    pub(super) entries: &'a [String],
    pub(super) through: Option<&'a str>,
    pub(super) headers_file: Option<&'a Path>,
    /// Confirm without asking.
    pub(super) yes: bool,
    pub(super) format: Format,
    pub(super) places: Places,
}

/// The plan as the sidecar gives it; its entries read, or as they were written.
#[derive(Debug, serde::Deserialize)]
struct Plan<T> {
    truncated: bool,
    entries: Vec<T>,
}

#[derive(Debug, serde::Deserialize)]
struct Planned {
    entry: String,
    standing: String,
    why: Option<String>,
    class: String,
    operation: String,
    target: String,
    key: String,
    kind: Option<String>,
    undone_by: Option<String>,
    call: Option<Call>,
}

/// An HTTP request, or a tool's call. Not an enum of both: serde reads those through a form in which
/// a value's own text is gone.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    #[serde(default)]
    method: String,
    #[serde(default)]
    target: String,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    tool: Option<String>,
    #[serde(default)]
    arguments: Option<Box<RawValue>>,
}

impl Call {
    /// What it is, without its values in a body.
    fn summary(&self) -> String {
        let Self { method, target, .. } = self;
        self.tool.clone().unwrap_or_else(|| format!("{method} {target}"))
    }
}

/// What became of one entry of a run.
#[derive(Debug, Serialize)]
struct Outcome {
    entry: String,
    operation: String,
    result: &'static str,
    /// The entry of the call that was made.
    by: Option<String>,
    why: Option<String>,
}

fn path_of(task: &str) -> String {
    let task = percent_encoding::utf8_percent_encode(task, SEGMENT);
    format!("/api/v1/undo?task={task}")
}

/// One entry of a task's plan, as it stands now; `None` if it is gone.
async fn of_now(socket: &Path, task: &str, entry: &str) -> Result<Option<Planned>, Failure> {
    let answer = fetched(socket, &format!("{}&entry={entry}", path_of(task))).await?;
    let plan: Plan<Planned> = read(&answer)?;
    Ok(plan.entries.into_iter().next())
}

/// Shows what taking a task back would be.
pub(super) fn plan(socket: &Path, task: &str, format: Format) -> Result<u8, Failure> {
    let answer = runtime()?.block_on(fetched(socket, &path_of(task)))?;
    let tell_truncated = |is_truncated| {
        if is_truncated {
            out::complain("the task has more that is not taken back; these are the newest");
        }
    };
    if format == Format::Json {
        // A value that was read and written again would not hold every number.
        let plan: Plan<Box<RawValue>> = read(&answer)?;
        for entry in &plan.entries {
            out::print(entry.get())?;
        }
        tell_truncated(plan.truncated);
        return Ok(exit::OK);
    }
    let plan: Plan<Planned> = read(&answer)?;
    tell_truncated(plan.truncated);
    if plan.entries.is_empty() {
        out::complain("no writes of this task had or may have an effect");
        return Ok(exit::OK);
    }
    let rows: Vec<Vec<Cell>> = plan.entries.iter().map(row).collect();
    let names = ["ENTRY", "STANDING", "CLASS", "OPERATION", "TARGET", "UNDO"];
    out::print(&out::table(&names, &rows, out::is_coloured()))?;
    Ok(exit::OK)
}

fn row(planned: &Planned) -> Vec<Cell> {
    let colour = match planned.standing.as_str() {
        "available" | "undone" => Colour::Green,
        "unknown" | "under_way" => Colour::Yellow,
        _ => Colour::Red,
    };
    let undo = match (&planned.call, &planned.why, &planned.undone_by) {
        (Some(call), _, _) => {
            format!("{}: {}", planned.kind.as_deref().unwrap_or("undo"), call.summary())
        }
        (None, Some(why), _) => why.clone(),
        (None, None, Some(by)) => format!("by {by}"),
        (None, None, None) => "-".to_owned(),
    };
    vec![
        Cell::plain(&planned.entry),
        Cell::coloured(&planned.standing, colour),
        Cell::plain(&planned.class),
        Cell::plain(&planned.operation),
        Cell::plain(&planned.target),
        Cell::plain(undo),
    ]
}

fn read<T: serde::de::DeserializeOwned>(answer: &[u8]) -> Result<Plan<T>, Failure> {
    serde_json::from_slice(answer).map_err(|_| {
        let message = "the sidecar's plan cannot be read";
        let help = "is the sidecar of this version? `takeback --version` says which this is";
        Failure::new(exit::SOFTWARE, with_help(message, help))
    })
}

/// Makes the calls of a task's plan.
pub(super) fn run(asked_for: &Run<'_>) -> Result<u8, Failure> {
    for entry in asked_for.entries {
        entry_id(entry)?;
    }
    let port = Port::of(asked_for)?;
    let runtime = runtime()?;
    let socket = &asked_for.places.admin_listen;
    let answer = runtime.block_on(fetched(socket, &path_of(asked_for.task)))?;
    let plan: Plan<Planned> = read(&answer)?;
    if plan.truncated {
        out::complain(
            "the task has more that is not taken back; only the newest are now: run it again",
        );
    }
    let is_wanted = |planned: &&Planned| {
        let wanted = asked_for.entries;
        wanted.is_empty() || wanted.iter().any(|entry| entry.eq_ignore_ascii_case(&planned.entry))
    };
    let wanted: Vec<&Planned> = plan.entries.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        out::complain("nothing to take back");
        return Ok(exit::OK);
    }
    let mut is_whole = true;
    let mut rows = Vec::new();
    for planned in wanted {
        // Since the plan was made another write may have come, or the undo of a newer one failed.
        let of_now = match &planned.call {
            Some(_) => runtime.block_on(of_now(socket, asked_for.task, &planned.entry))?,
            None => None,
        };
        let outcome = match (&planned.call, of_now) {
            (Some(_), None) => Outcome {
                entry: planned.entry.clone(),
                operation: planned.operation.clone(),
                result: "left",
                by: None,
                why: Some("its entry is no longer there".to_owned()),
            },
            (_, of_now) => runtime.block_on(port.taken(of_now.as_ref().unwrap_or(planned))),
        };
        is_whole &= matches!(outcome.result, "undone" | "left");
        match asked_for.format {
            // As it happens: a run that is ended half-way has said what it did.
            Format::Json => out::print(&serde_json::to_string(&outcome).unwrap_or_default())?,
            Format::Text => rows.push(result_row(&outcome)),
        }
    }
    if asked_for.format == Format::Text {
        let names = ["ENTRY", "RESULT", "OPERATION", "BY", "WHY"];
        out::print(&out::table(&names, &rows, out::is_coloured()))?;
    }
    Ok(if is_whole { exit::OK } else { exit::FINDINGS })
}

fn result_row(outcome: &Outcome) -> Vec<Cell> {
    let colour = match outcome.result {
        "undone" => Colour::Green,
        "left" | "under way" | "unknown" => Colour::Yellow,
        _ => Colour::Red,
    };
    vec![
        Cell::plain(&outcome.entry),
        Cell::coloured(outcome.result, colour),
        Cell::plain(&outcome.operation),
        Cell::plain(outcome.by.as_deref().unwrap_or("-")),
        Cell::plain(outcome.why.as_deref().unwrap_or("-")),
    ]
}

/// The sidecar's data port, as this command calls it.
struct Port<'a> {
    authority: Authority,
    host: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    run: &'a Run<'a>,
}

/// One answer of the data port, as far as it decides what follows.
struct Answer {
    status: StatusCode,
    /// The report.
    report: Value,
    /// The body, if it is JSON.
    body: Value,
}

impl Answer {
    fn of(head: &Parts, body: &Bytes) -> Self {
        // The report is the header whose value is an object with a class, whatever its name is.
        let reports = head.headers.values().filter_map(|value| {
            let report: Value = serde_json::from_slice(value.as_bytes()).ok()?;
            report.get("class").is_some().then_some(report)
        });
        let report = reports.into_iter().next().unwrap_or_default();
        let body = serde_json::from_slice(body).unwrap_or_default();
        Self { status: head.status, report, body }
    }

    fn report(&self, member: &str) -> Option<String> {
        self.report.get(member)?.as_str().map(str::to_owned)
    }

    /// The confirmation that it asks for: its level, and the token.
    fn confirm(&self) -> Option<(String, Option<String>)> {
        let nested = self.body.pointer("/error/details/confirm");
        let confirm = self.body.get("confirm").or(nested)?;
        let text = |name: &str| confirm.get(name)?.as_str().map(str::to_owned);
        Some((text("level")?, text("token")))
    }

    fn said(&self) -> String {
        let said = self.body.pointer("/error/message").and_then(Value::as_str);
        said.map_or_else(|| format!("it was answered with {}", self.status), out::clean)
    }
}

impl<'a> Port<'a> {
    fn of(run: &'a Run<'a>) -> Result<Self, Failure> {
        let wrong = || {
            let message = "--through is no address of a data port";
            Failure::new(exit::USAGE, with_help(message, "give http://HOST:PORT"))
        };
        let host = match run.through {
            Some(url) => {
                let host = url.strip_prefix("http://").ok_or_else(wrong)?;
                host.trim_end_matches('/').to_owned()
            }
            None => reachable(run.places.listen),
        };
        let has_port = !host.ends_with(']') && host.contains(':');
        let full = if has_port { host.clone() } else { format!("{host}:80") };
        let authority = full.parse().map_err(|_| wrong())?;
        let headers = match run.headers_file {
            None => Vec::new(),
            Some(path) => config::headers_file(path).map_err(super::misconfigured)?,
        };
        Ok(Self { authority, host, headers, run })
    }

    /// Takes one entry back, if it can be.
    async fn taken(&self, planned: &Planned) -> Outcome {
        match &planned.call {
            Some(call) => self.take_back(planned, call).await,
            None => Outcome {
                entry: planned.entry.clone(),
                operation: planned.operation.clone(),
                result: match planned.standing.as_str() {
                    "undone" => "undone",
                    // Its finish may be written in a moment: whoever asks again takes it back too.
                    "under_way" => "under way",
                    _ => "left",
                },
                by: planned.undone_by.clone(),
                why: planned.why.clone(),
            },
        }
    }

    /// Makes the call of one entry, with a confirmation where it needs one and is given one.
    async fn take_back(&self, planned: &Planned, call: &Call) -> Outcome {
        let outcome = |result, by, why| Outcome {
            entry: planned.entry.clone(),
            operation: planned.operation.clone(),
            result,
            by,
            why,
        };
        let mut answer = match self.send(planned, call, None).await {
            Ok(answer) => answer,
            Err(why) => return outcome("failed", None, Some(why)),
        };
        if answer.status == StatusCode::PRECONDITION_REQUIRED
            && let Some((level, token)) = answer.confirm()
        {
            let word = match (level.as_str(), token) {
                ("caller", _) => "true".to_owned(),
                ("challenge", Some(token)) => token,
                _ => {
                    let why = format!("it needs a confirmation of level {level}");
                    return outcome("not confirmed", None, Some(why));
                }
            };
            if !self.is_confirmed(planned, call) {
                let why = "nothing was sent; give --yes to confirm".to_owned();
                return outcome("not confirmed", None, Some(why));
            }
            answer = match self.send(planned, call, Some(&word)).await {
                Ok(answer) => answer,
                Err(why) => return outcome("failed", None, Some(why)),
            };
        }
        let by = answer.report("entry");
        match answer.report("outcome").as_deref() {
            Some("accepted") if answer.report("verdict").as_deref() == Some("contradicted") => {
                let why = "the gateway accepted it, and its answer contradicts that".to_owned();
                outcome("failed", by, Some(why))
            }
            Some("accepted") => {
                let why = match &by {
                    Some(by) => self.link(planned, by).await.err(),
                    None => None,
                };
                let is_old =
                    answer.report.get("replayed").is_some_and(|is| *is == Value::Bool(true));
                // An answer of before, to a call that did not take this entry back.
                let result = if is_old && why.is_some() { "failed" } else { "undone" };
                outcome(result, by, why)
            }
            Some("unknown") => {
                let why = "its answer was lost; settle its entry before another try".to_owned();
                outcome("unknown", by, Some(why))
            }
            _ => outcome("failed", by, Some(answer.said())),
        }
    }

    /// Asks the person at the terminal, unless told that all is confirmed.
    fn is_confirmed(&self, planned: &Planned, call: &Call) -> bool {
        if self.run.yes {
            return true;
        }
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return false;
        }
        let asks = format!(
            "take back {} ({}) by {}? [y/N] ",
            planned.entry,
            out::clean(&planned.target),
            out::clean(&call.summary())
        );
        let mut screen = io::stderr().lock();
        let asked = screen.write_all(asks.as_bytes()).and_then(|()| screen.flush());
        let mut line = String::new();
        asked.is_ok()
            && stdin.lock().read_line(&mut line).is_ok()
            && matches!(line.trim(), "y" | "Y" | "yes")
    }

    /// Sends the call once. `Err` says why there is no answer.
    async fn send(
        &self,
        planned: &Planned,
        call: &Call,
        confirm: Option<&str>,
    ) -> Result<Answer, String> {
        let unreached = || format!("the data port at {} did not answer", self.host);
        let request = self.request(planned, call, confirm)?;
        let authority = self.authority.to_string();
        let stream = match timeout(CONNECT, TcpStream::connect(authority)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(_)) | Err(_) => {
                return Err(format!("the data port at {} cannot be reached", self.host));
            }
        };
        match timeout(CALL, exchange(stream, request)).await {
            Ok(Some((head, body))) => Ok(Answer::of(&head, &body)),
            Ok(None) | Err(_) => {
                let hint = "`takeback ledger list` shows whether it was recorded";
                Err(format!("{}; {hint}", unreached()))
            }
        }
    }

    fn request(
        &self,
        planned: &Planned,
        call: &Call,
        confirm: Option<&str>,
    ) -> Result<Request<Body>, String> {
        let wrong = |_| "its call cannot be written".to_owned();
        let mut headers = HeaderMap::new();
        let (method, target, body) = match &call.tool {
            None => {
                for (name, value) in &call.headers {
                    let name: HeaderName = name.parse().map_err(|_| wrong(()))?;
                    headers.append(name, value.parse().map_err(|_| wrong(()))?);
                }
                (call.method.as_str(), call.target.clone(), call.body.clone())
            }
            Some(tool) => {
                let kind = HeaderValue::from_static("application/json");
                headers.insert(header::CONTENT_TYPE, kind);
                let tool = percent_encoding::utf8_percent_encode(tool, SEGMENT);
                let arguments = call.arguments.as_ref().map_or("{}", |arguments| arguments.get());
                ("POST", format!("/call/{tool}"), Some(format!("{{\"arguments\":{arguments}}}")))
            }
        };
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        let mut set = |name: &'static str, value: &str| -> Result<(), String> {
            headers.insert(name, value.parse().map_err(|_| wrong(()))?);
            Ok(())
        };
        set("host", &self.host)?;
        set("idempotency-key", &planned.key)?;
        // A label travels as a header; one that none can hold is left away, for it decides nothing.
        set("effect-task", self.run.task).unwrap_or_default();
        if let Some(word) = confirm {
            set("effect-confirm", word)?;
        }
        let body = body.map_or_else(Body::empty, Body::full);
        let request = Request::builder().method(method).uri(target).body(body);
        let mut request = request.map_err(|_| wrong(()))?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Tells the sidecar what the call took back. Where the caller is the agent's own principal, it has
    /// seen that by itself, and this changes nothing.
    async fn link(&self, planned: &Planned, by: &str) -> Result<(), String> {
        let path = format!("/api/v1/entries/{}/undone", planned.entry);
        let socket = &self.run.places.admin_listen;
        let body = serde_json::json!({ "by": by }).to_string();
        let linked = asked(socket, Method::POST, &path, Some(body)).await;
        linked.map(drop).map_err(|error| {
            format!("its entry does not show it: {}", error.message.replace('\n', " "))
        })
    }
}

/// Where a listener's address can be called: one on all addresses is on this one too.
fn reachable(listen: std::net::SocketAddr) -> String {
    let mut address = listen;
    if listen.ip().is_unspecified() {
        address.set_ip(match listen {
            std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_asked_for_as_one_value() {
        assert_eq!(path_of("a&b=c d"), "/api/v1/undo?task=a%26b%3Dc%20d");
    }

    #[test]
    fn a_listener_on_all_addresses_is_called_on_this_machine() {
        assert_eq!(reachable("0.0.0.0:8080".parse().unwrap()), "127.0.0.1:8080");
        assert_eq!(reachable("[::]:8080".parse().unwrap()), "[::1]:8080");
        assert_eq!(reachable("10.0.0.7:80".parse().unwrap()), "10.0.0.7:80");
    }

    #[test]
    fn the_confirmation_is_found_in_a_problem_and_in_an_envelope() {
        let answer = |body: &str| Answer {
            status: StatusCode::PRECONDITION_REQUIRED,
            report: Value::Null,
            body: serde_json::from_str(body).unwrap(),
        };
        let problem = answer(r#"{"confirm":{"level":"challenge","token":"t"}}"#);
        let envelope = answer(r#"{"error":{"details":{"confirm":{"level":"human"}}}}"#);
        let none = answer(r#"{"error":{"message":"no"}}"#);

        assert_eq!(problem.confirm(), Some(("challenge".to_owned(), Some("t".to_owned()))));
        assert_eq!(envelope.confirm(), Some(("human".to_owned(), None)));
        assert_eq!(none.confirm(), None);
        assert_eq!(none.said(), "no");
    }
}
