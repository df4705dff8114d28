//! `takeback settle`, `takeback reconcile` and `takeback drain`: asking the running sidecar, which alone
//! writes the ledger.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::exit::{self, Failure, with_help};
use super::out::{self, Cell, Colour};
use super::{Format, entry_id};
use crate::admin::MAX_WHY;
use crate::admin::client::{ClientError, ask};
use crate::ledger::Part;

/// Records a person's decision.
pub(super) fn settle(
    socket: &Path,
    entry: &str,
    outcome: &str,
    why: &str,
    format: Format,
) -> Result<u8, Failure> {
    let id = entry_id(entry)?;
    let why = why.trim();
    if why.is_empty() || why.chars().count() > MAX_WHY {
        let message = format!("--why says why, in 1 to {MAX_WHY} characters");
        return Err(Failure::new(exit::USAGE, message));
    }
    let body = json!({ "outcome": outcome, "why": why }).to_string();
    let path = format!("/api/v1/entries/{id}/settle");
    let answer = request(socket, &path, Some(body))?;
    match format {
        Format::Json => out::print(&answer.to_string())?,
        Format::Text => {
            let state = answer.get("state").and_then(Value::as_str).unwrap_or(outcome);
            out::print(&format!("{id} is {state}"))?;
        }
    }
    Ok(exit::OK)
}

/// Has parts taken out of what an entry holds of its call.
pub(super) fn redact(
    socket: &Path,
    entry: &str,
    pointers: &[String],
    why: &str,
    format: Format,
) -> Result<u8, Failure> {
    let id = entry_id(entry)?;
    let why = why.trim();
    if why.is_empty() || why.chars().count() > MAX_WHY {
        let message = format!("--why says why, in 1 to {MAX_WHY} characters");
        return Err(Failure::new(exit::USAGE, message));
    }
    if let Some(odd) = pointers.iter().find(|pointer| Part::parse(pointer).is_none()) {
        let message = format!("`{}` names no part of an entry", out::clean(odd));
        let help = "give /target, /before/..., /answer/body/..., /answer, /upstream_id, /undo, \
                    /compensate or /lookup";
        return Err(Failure::new(exit::USAGE, with_help(&message, help)));
    }
    let body = json!({ "pointers": pointers, "why": why }).to_string();
    let answer = request(socket, &format!("/api/v1/entries/{id}/redact"), Some(body))?;
    match format {
        Format::Json => out::print(&answer.to_string())?,
        Format::Text => out::print(&format!("{id}: {} redacted", pointers.join(", ")))?,
    }
    Ok(exit::OK)
}

/// Has the sidecar record that what is wrong with its ledger's chain is known.
pub(super) fn acknowledge(socket: &Path, why: &str, format: Format) -> Result<u8, Failure> {
    let why = why.trim();
    if why.is_empty() || why.chars().count() > MAX_WHY {
        let message = format!("--why says why, in 1 to {MAX_WHY} characters");
        return Err(Failure::new(exit::USAGE, message));
    }
    let body = json!({ "why": why }).to_string();
    let answer = request(socket, "/api/v1/ledger/acknowledge", Some(body))?;
    if format == Format::Json {
        out::print(&answer.to_string())?;
        return Ok(exit::OK);
    }
    for broken in answer.get("breaks").and_then(Value::as_array).into_iter().flatten() {
        let text = |name: &str| broken.get(name).and_then(Value::as_str);
        let row = broken.get("row").and_then(Value::as_i64).unwrap_or_default();
        let entry = text("entry").map_or(String::new(), |entry| format!(" of entry {entry}"));
        out::print(&format!("row {row}{entry}: {}", text("why").unwrap_or_default()))?;
    }
    if answer.get("outdated").and_then(Value::as_bool) == Some(true) {
        out::print("the ledger lacks what was written here last")?;
    }
    out::print("acknowledged: writes are taken again")?;
    Ok(exit::OK)
}

/// How often unknown entries are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    /// Once.
    One,
    /// Again and again, until no lookup can settle more.
    UntilSettled,
}

/// How long it is waited between two runs.
const BETWEEN_RUNS: Duration = Duration::from_secs(2);

/// Has every unknown entry looked up.
pub(super) fn reconcile(socket: &Path, runs: Runs, format: Format) -> Result<u8, Failure> {
    loop {
        let answer = request(socket, "/api/v1/reconcile", None)?;
        let mut entries =
            answer.get("reconciled").and_then(Value::as_array).cloned().unwrap_or_default();
        let is = |entry: &Value, words: &[&str]| {
            entry.get("result").and_then(Value::as_str).is_some_and(|word| words.contains(&word))
        };
        let open = ["absent", "inconclusive", "not_recorded"];
        let is_last = runs == Runs::One || !entries.iter().any(|entry| is(entry, &open));
        if !is_last {
            // What is as open as before is told once, by the last run.
            entries.retain(|entry| !is(entry, &open) && !is(entry, &["no_lookup", "found_many"]));
        }
        if is_last || !entries.is_empty() {
            told(&entries, format)?;
        }
        if is_last {
            return Ok(exit::OK);
        }
        std::thread::sleep(BETWEEN_RUNS);
    }
}

fn told(entries: &[Value], format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => {
            for entry in entries {
                out::print(&entry.to_string())?;
            }
        }
        Format::Text if entries.is_empty() => out::complain("no unknown entries"),
        Format::Text => {
            let text = |entry: &Value, name: &str| entry.get(name)?.as_str().map(str::to_owned);
            let rows: Vec<Vec<Cell>> = entries
                .iter()
                .map(|entry| {
                    let of = |name: &str| text(entry, name).unwrap_or_default();
                    let colour = match of("result").as_str() {
                        "accepted" => Colour::Green,
                        "rejected" => Colour::Red,
                        _ => Colour::Yellow,
                    };
                    vec![
                        Cell::plain(of("entry")),
                        Cell::coloured(of("result"), colour),
                        Cell::plain(of("operation")),
                        Cell::plain(of("why")),
                    ]
                })
                .collect();
            let names = ["ENTRY", "RESULT", "OPERATION", "WHY"];
            out::print(&out::table(&names, &rows, out::is_coloured()))?;
        }
    }
    Ok(())
}

/// How far `drain` goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The sidecar was asked.
    Asked,
    /// It has ended.
    Ended,
}

/// How often a draining sidecar is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How long after the drain's own end a sidecar is waited for.
const LATE: Duration = Duration::from_secs(5);

/// Asks the sidecar to end in order.
pub(super) fn drain(socket: &Path, until: Until) -> Result<u8, Failure> {
    let answer = request(socket, "/api/v1/drain", None)?;
    if until == Until::Asked {
        out::print("draining")?;
        return Ok(exit::OK);
    }
    let grace_ms = answer.get("grace_ms").and_then(Value::as_u64).unwrap_or(0);
    let looks = Duration::from_millis(grace_ms).saturating_add(LATE).as_millis() / LOOK.as_millis();
    for _ in 0..looks {
        // Its last act is to remove its socket.
        if std::os::unix::net::UnixStream::connect(socket).is_err() {
            out::print("drained")?;
            return Ok(exit::OK);
        }
        std::thread::sleep(LOOK);
    }
    let message = "the sidecar was asked to end and still runs after its grace";
    Err(Failure::new(exit::SOFTWARE, with_help(message, "its log says what it waits for")))
}

fn request(socket: &Path, path: &str, body: Option<String>) -> Result<Value, Failure> {
    runtime()?.block_on(asked(socket, Method::POST, path, body))
}

/// Asks the sidecar; gives its JSON, or what it says is wrong.
pub(super) async fn asked(
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<Value, Failure> {
    let (status, bytes) = ask(socket, method, path, body).await.map_err(unreached)?;
    read(status, &bytes)
}

/// Asks for something; its text, in which numbers are as they were written.
pub(super) async fn fetched(socket: &Path, path: &str) -> Result<Bytes, Failure> {
    let (status, bytes) = ask(socket, Method::GET, path, None).await.map_err(unreached)?;
    if status.is_success() { Ok(bytes) } else { Err(refused(status, &bytes)) }
}

/// What a command waits in.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(exit::SYSTEM, format!("no runtime: {error}")))
}

fn unreached(error: ClientError) -> Failure {
    let (code, help) = match &error {
        ClientError::Denied { .. } => {
            (exit::PERMISSION, "run this as the user that the sidecar runs as")
        }
        ClientError::NotRunning { .. } => (
            exit::UNAVAILABLE,
            "only a running sidecar writes its ledger: start it with `takeback run`, or point at its \
             socket with --admin-socket PATH, --ledger FILE or --config FILE",
        ),
        ClientError::Broken { .. } | ClientError::Slow { .. } => (exit::UNAVAILABLE, ""),
    };
    Failure::new(code, with_help(&error.to_string(), help))
}

/// The answer's JSON, or what the sidecar says is wrong.
fn read(status: StatusCode, bytes: &Bytes) -> Result<Value, Failure> {
    if status.is_success() {
        Ok(serde_json::from_slice(bytes).unwrap_or_default())
    } else {
        Err(refused(status, bytes))
    }
}

/// What the sidecar says is wrong.
fn refused(status: StatusCode, bytes: &Bytes) -> Failure {
    let answer: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let said = answer.pointer("/error/message").and_then(Value::as_str);
    let message = said.map_or_else(|| format!("the sidecar answered {status}"), out::clean);
    let (code, help) = match status {
        StatusCode::NOT_FOUND => (exit::DATA, "`takeback ledger list --state unknown` shows them"),
        StatusCode::CONFLICT => (exit::DATA, ""),
        StatusCode::BAD_REQUEST => (exit::USAGE, ""),
        StatusCode::SERVICE_UNAVAILABLE => (exit::UNAVAILABLE, ""),
        _ => (exit::SOFTWARE, ""),
    };
    Failure::new(code, with_help(&message, help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_sidecar_is_told_with_its_exit_code() {
        let body =
            br#"{"error":{"code":"not_unknown","message":"the entry is accepted, not unknown"}}"#;
        let failure = read(StatusCode::CONFLICT, &Bytes::from_static(body)).unwrap_err();
        assert_eq!(failure.code, 65);
        assert_eq!(failure.message, "the entry is accepted, not unknown");
        assert_eq!(read(StatusCode::BAD_GATEWAY, &Bytes::new()).unwrap_err().code, 70);
        assert!(read(StatusCode::OK, &Bytes::from_static(b"{}")).is_ok());
    }

    #[test]
    fn without_a_sidecar_the_user_is_told_how_to_point_at_one() {
        let socket = Path::new("/nowhere/ledger.db.sock").to_owned();
        let failure = unreached(ClientError::NotRunning { socket });
        assert_eq!(failure.code, 69);
        assert!(failure.message.contains("/nowhere/ledger.db.sock"), "{}", failure.message);
        assert!(failure.message.contains("--admin-socket"), "{}", failure.message);
    }
}
