//! The guided run: what an agent sees of its own calls, chapter by chapter.
//!
//! The guide is an ordinary agent with an ordinary client. It checks every step against what its
//! text says, so a demo that runs to its end is a test that passed; a step that does something else
//! ends it with [`Failed`].

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::client::{Answer, Ask, Client, ClientError};
use super::gateway::MCP_PATH;
use super::screen::Screen;
use crate::admin;

const COMMENTS: &str = "/repos/octo/hello/issues/1/comments";
const RELEASES: &str = "/repos/octo/hello/releases";
const ISSUES: &str = "/repos/octo/hello/issues";

/// The header of the report, under its default name.
const REPORT: &str = "x-anvil-effect";

/// How often the admin API is asked for the same, and how long apart.
const ATTEMPTS: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);

const MCP_VERSION: &str = "2026-07-28";

/// Why the guided run ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    /// A request got no answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The output is gone.
    #[error("the output cannot be written")]
    Screen(#[from] io::Error),
    /// The admin API cannot be reached.
    #[error(transparent)]
    Admin(#[from] admin::client::ClientError),
    /// A step did something else than its text says.
    #[error("this step did not do what it says: {0}")]
    Step(String),
}

/// A guided run.
pub(super) struct Guide<W> {
    /// An agent's connection, to the sidecar.
    pub(super) agent: Client,
    /// Straight to the gateway: only to lose an answer and to count effects.
    pub(super) gateway: Client,
    /// The sidecar's admin socket, for what an operator does.
    pub(super) admin: PathBuf,
    pub(super) screen: Screen<W>,
}

impl<W: Write> Guide<W> {
    /// A read.
    pub(super) async fn read(&mut self) -> Result<(), Failed> {
        self.screen.chapter(1, "A read passes")?;
        let answer = self.show(&Ask::new(Method::GET, "/repos/octo/hello")).await?;
        let report = self.report(&answer, &["class", "operation"])?;
        expect(&answer, StatusCode::OK)?;
        equal("class", report.get("class"), "read")?;
        self.say(
            "A read streams through and leaves no entry in the ledger. Every answer carries the \
             report; over HTTP it is the header X-Anvil-Effect.",
        )
    }

    /// A reversible write, and its undo.
    pub(super) async fn reversible(&mut self) -> Result<(), Failed> {
        self.screen.chapter(2, "A reversible write names the call that undoes it")?;
        let body = json!({"body": "Hello from an agent"});
        let answer = self.show(&Ask::post(COMMENTS, &body)).await?;
        let members = ["class", "operation", "idempotency_key", "undo", "outcome", "verdict"];
        let report = self.report(&answer, &members)?;
        expect(&answer, StatusCode::CREATED)?;
        equal("class", report.get("class"), "reversible")?;
        equal("outcome", report.get("outcome"), "accepted")?;
        equal("verdict", report.get("verdict"), "verified")?;
        self.say(
            "The entry was durable before the request left. The proxy sent a key with it, held the \
             answer against the request (verified), and filled in the undo from both.",
        )?;

        self.screen.space()?;
        let undo = FollowUp::read(&report)?;
        let refused = self.show(&undo.ask()).await?;
        let token = self.token(&refused)?;
        let deleted = self.show(&undo.ask().with("effect-confirm", token)).await?;
        self.report(&deleted, &["class", "operation", "outcome"])?;
        expect(&deleted, StatusCode::NO_CONTENT)?;
        let left = self.agent.send(&Ask::new(Method::GET, COMMENTS)).await?;
        check("the comment is gone", left.body == json!([]))?;
        self.say(
            "The undo is an ordinary call with a class of its own: nothing brings a deleted \
             comment back, so it asks, as every irreversible write does. The first entry is marked \
             undone.",
        )
    }

    /// A compensable write, and its compensation.
    pub(super) async fn compensable(&mut self) -> Result<(), Failed> {
        self.screen.chapter(3, "A compensable write names the call that cancels it")?;
        let body = json!({"title": "Opened by mistake"});
        let answer = self.show(&Ask::post(ISSUES, &body)).await?;
        let report = self.report(&answer, &["class", "operation", "undo", "outcome", "verdict"])?;
        expect(&answer, StatusCode::CREATED)?;
        equal("class", report.get("class"), "compensable")?;
        let undo = FollowUp::read(&report)?;
        equal("kind", report.pointer("/undo/kind"), "compensate")?;

        self.screen.space()?;
        let closed = self.show(&undo.ask()).await?;
        self.report(&closed, &["class", "operation", "outcome", "verdict"])?;
        expect(&closed, StatusCode::OK)?;
        equal("state", closed.body.get("state"), "closed")?;
        self.say(
            "An issue can be closed and not deleted: a trace stays, and the report says \
             \"compensate\" and not \"inverse\". Neither call needed a confirmation.",
        )
    }

    /// An irreversible write: refused, then confirmed.
    pub(super) async fn irreversible(&mut self) -> Result<(), Failed> {
        self.screen.chapter(4, "An irreversible write waits for a confirmation")?;
        let body = json!({"tag_name": "v1.0", "name": "First release"});
        let refused = self.show(&Ask::post(RELEASES, &body)).await?;
        self.report(&refused, &["class", "operation", "refused"])?;
        let token = self.token(&refused)?;
        self.counts("releases", "created", 0).await?;
        self.say("428, and nothing was sent. The refusal holds a token for this very call.")?;

        self.screen.space()?;
        let answer = self.show(&Ask::post(RELEASES, &body).with("effect-confirm", token)).await?;
        let report = self.report(&answer, &["class", "operation", "undo", "outcome", "verdict"])?;
        expect(&answer, StatusCode::CREATED)?;
        equal("outcome", report.get("outcome"), "accepted")?;
        check("an irreversible write has no undo", report.get("undo") == Some(&Value::Null))?;
        self.counts("releases", "created", 1).await?;
        self.say(
            "The token fits this request only, works once, and expires in ten minutes. It stops \
             accidents and loops; an agent that means it is stopped by the level `human`.",
        )
    }

    /// The same key twice.
    pub(super) async fn repeated(&mut self) -> Result<(), Failed> {
        self.screen.chapter(5, "The same key twice is one effect")?;
        let body = json!({"body": "Once, whatever happens"});
        let ask = Ask::post(COMMENTS, &body).with("idempotency-key", "demo-key-1");
        let first = self.show(&ask).await?;
        expect(&first, StatusCode::CREATED)?;
        let again = self.show(&ask).await?;
        let report = self.report(&again, &["operation", "ledger_id", "outcome", "replayed"])?;
        expect(&again, StatusCode::CREATED)?;
        check("the answer is the first one", again.body == first.body)?;
        check("the report says replayed", report.get("replayed") == Some(&json!(true)))?;

        let other = json!({"body": "Something else"});
        let ask = Ask::post(COMMENTS, &other).with("idempotency-key", "demo-key-1");
        let refused = self.show(&ask).await?;
        self.report(&refused, &["operation", "refused"])?;
        expect(&refused, StatusCode::UNPROCESSABLE_ENTITY)?;
        self.counts("comments", "created", 2).await?;
        self.say(
            "Two comments in all: the one of chapter 2, and one here. The second answer came out \
             of the ledger, and another request under the key is refused.",
        )
    }

    /// A lost answer, as far as the call itself knows.
    pub(super) async fn lost(&mut self) -> Result<(), Failed> {
        self.screen.chapter(6, "An answer is lost")?;
        self.gateway.send(&Ask::new(Method::POST, "/_demo/lose-next-answer")).await?;
        let body = json!({"tag_name": "v1.1", "name": "Second release"});
        let refused = self.agent.send(&Ask::post(RELEASES, &body)).await?;
        let token = token(&refused)?;
        let lost = self.show(&Ask::post(RELEASES, &body).with("effect-confirm", token)).await?;
        let report = self.report(&lost, &["class", "outcome", "undo", "lookup"])?;
        expect(&lost, StatusCode::BAD_GATEWAY)?;
        equal("outcome", report.get("outcome"), "unknown")?;
        check("the report names a lookup", report.pointer("/lookup/http/path").is_some())?;
        self.say(
            "Confirmed as before; but the gateway published the release and cut the connection \
             before it answered. The proxy does not guess: the outcome is unknown, and the report \
             names the read that can tell.",
        )?;

        let entry = report.get("entry").and_then(Value::as_str).unwrap_or_default();
        let path = format!("/api/v1/entries/{entry}");
        let is = |shown: &Value, states: &[&str]| {
            let state = shown.get("state").and_then(Value::as_str);
            state.is_some_and(|state| states.contains(&state))
        };
        // On disk: what is queued no lookup sees.
        self.until(Method::GET, &path, |shown| is(shown, &["unknown", "accepted"])).await?;

        self.screen.space()?;
        let repeat = self.show(&Ask::post(RELEASES, &body)).await?;
        self.report(&repeat, &["operation", "refused"])?;
        expect(&repeat, StatusCode::CONFLICT)?;
        equal("code", repeat.body.pointer("/error/code"), "answer_not_kept")?;
        self.counts("releases", "created", 2).await?;
        self.say(
            "The agent tries again. Before anything is sent the proxy makes that read, with the \
             agent's own credential: the release is there. A second one is what must not be.",
        )?;

        self.screen.space()?;
        self.screen.command(&format!("takeback ledger show {entry}"))?;
        let shown = self.until(Method::GET, &path, |shown| is(shown, &["accepted"])).await?;
        self.screen.part("settled", &shown, &["entry", "operation", "state", "cause"])?;
        self.say(
            "The entry is settled as accepted. Where nobody tries again the proxy makes the lookup \
             of itself, a few seconds later and then less and less often; `takeback reconcile` has \
             it made at once.",
        )
    }

    /// The same over MCP.
    pub(super) async fn mcp(&mut self) -> Result<(), Failed> {
        self.screen.chapter(7, "The same over MCP")?;
        let arguments = json!({"owner": "octo", "repo": "hello", "tag_name": "v2.0"});
        let refused = self.tool("github__create_release", &arguments, None).await?;
        check("a refusal is an error result", refused.get("isError") == Some(&json!(true)))?;
        let text = refused.pointer("/content/0/text").and_then(Value::as_str).unwrap_or_default();
        let envelope: Value = serde_json::from_str(text).unwrap_or_default();
        let error = envelope.get("error").cloned().unwrap_or_default();
        self.screen.part("error", &error, &["code", "message"])?;
        equal("code", error.get("code"), "confirmation_required")?;
        let token = error.pointer("/details/confirm/token").and_then(Value::as_str);
        let token = token.ok_or_else(|| Failed::Step("the refusal has no token".to_owned()))?;
        self.counts("releases", "created", 2).await?;
        self.say(
            "A refusal is a result with isError, which every client hands to its model. The text \
             says that nothing was sent, and how to confirm.",
        )?;

        self.screen.space()?;
        let done = self.tool("github__create_release", &arguments, Some(token)).await?;
        let effect = self.effect(&done, &["class", "operation", "outcome", "verdict"])?;
        equal("outcome", effect.get("outcome"), "accepted")?;
        self.counts("releases", "created", 3).await?;

        self.screen.space()?;
        let arguments = json!({
            "owner": "octo", "repo": "hello", "issue_number": 1, "body": "Hello from a tool"
        });
        let done = self.tool("github__create_comment", &arguments, None).await?;
        let effect = self.effect(&done, &["class", "undo", "outcome", "verdict"])?;
        equal("tool", effect.pointer("/undo/tool"), "github__delete_comment")?;
        self.say(
            "The report is `_meta.effect` of the result, and the undo names a tool with its \
             arguments.",
        )
    }

    /// What the ledger has of all that.
    pub(super) async fn ledger(&mut self) -> Result<(), Failed> {
        self.screen.chapter(8, "The ledger has every write, and no read")?;
        self.screen.command("takeback ledger list")?;
        let states = |listed: &Value| -> Vec<String> {
            let entries = listed.get("entries").and_then(Value::as_array);
            let states = entries.into_iter().flatten().filter_map(|entry| entry.get("state"));
            states.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        // Newest first: two calls of tools, the lost release, the keyed comment, the release, the
        // closed issue and the issue, the deleted comment and the comment.
        let expected = [
            "accepted", "accepted", "accepted", "accepted", "accepted", "accepted", "undone",
            "accepted", "undone",
        ];
        let listed =
            self.until(Method::GET, "/api/v1/entries", |listed| states(listed) == expected);
        let listed = listed.await?;
        let entries = listed.get("entries").and_then(Value::as_array).cloned().unwrap_or_default();
        self.screen.table(&entries, &["entry", "state", "class", "operation"])?;
        check("the ledger has the nine writes of this run", states(&listed) == expected)?;
        self.say(
            "One entry for each effect that reached the gateway; refusals and replays have none. \
             The file is SQLite, with views that the sqlite3 shell can query.",
        )
    }

    /// Asks the admin API, as the commands of an operator do, until its answer is what is waited
    /// for: an entry's end is durable a moment after its answer. Gives the last answer all the
    /// same.
    async fn until(
        &self,
        method: Method,
        path: &str,
        is_there: impl Fn(&Value) -> bool,
    ) -> Result<Value, Failed> {
        let mut last = Value::Null;
        for _ in 0..ATTEMPTS {
            let asked = admin::client::ask(&self.admin, method.clone(), path, None);
            let (status, body) = asked.await?;
            check("the admin API answers 200", status == StatusCode::OK)?;
            last = serde_json::from_slice(&body).unwrap_or_default();
            if is_there(&last) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(last)
    }

    /// Calls a tool, in the form of MCP 2026-07-28; gives the result.
    async fn tool(
        &mut self,
        name: &str,
        arguments: &Value,
        confirm: Option<&str>,
    ) -> Result<Value, Failed> {
        let mut meta = Map::new();
        let mut shown = Map::new();
        shown.insert("name".to_owned(), name.into());
        shown.insert("arguments".to_owned(), arguments.clone());
        if let Some(token) = confirm {
            meta.insert("takeback/confirm".to_owned(), token.into());
            shown.insert("_meta".to_owned(), meta.clone().into());
        }
        self.screen.request("tools/call", &[], Some(&Value::Object(shown)))?;
        meta.insert("io.modelcontextprotocol/protocolVersion".to_owned(), MCP_VERSION.into());
        meta.insert("io.modelcontextprotocol/clientCapabilities".to_owned(), json!({}));
        let body = json!({
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments, "_meta": meta},
        });
        let ask = Ask::post(MCP_PATH, &body)
            .with("mcp-protocol-version", MCP_VERSION)
            .with("mcp-method", "tools/call")
            .with("mcp-name", name);
        let answer = self.agent.send(&ask).await?;
        self.screen.status(answer.status)?;
        expect(&answer, StatusCode::OK)?;
        let result = answer.body.get("result").cloned();
        let result = result.ok_or_else(|| Failed::Step("there is no result".to_owned()))?;
        self.screen.part("result", &result, &["isError"])?;
        Ok(result)
    }

    /// Sends a request and shows it with its status.
    async fn show(&mut self, ask: &Ask<'_>) -> Result<Answer, Failed> {
        let line = format!("{} {}", ask.method, ask.path);
        self.screen.request(&line, &ask.headers, ask.body)?;
        let answer = self.agent.send(ask).await?;
        self.screen.status(answer.status)?;
        Ok(answer)
    }

    /// Shows a part of the report of an HTTP answer; gives all of it.
    fn report(&mut self, answer: &Answer, members: &[&str]) -> Result<Value, Failed> {
        let report = answer.report(REPORT);
        self.screen.part("effect", &report, members)?;
        check("every answer has a report", report.is_object())?;
        Ok(report)
    }

    /// The same for an MCP result.
    fn effect(&mut self, result: &Value, members: &[&str]) -> Result<Value, Failed> {
        let effect = result.pointer("/_meta/effect").cloned().unwrap_or_default();
        self.screen.part("_meta.effect", &effect, members)?;
        check("every result has a report", effect.is_object())?;
        Ok(effect)
    }

    /// Shows the challenge of a refusal; gives its token.
    fn token(&mut self, refused: &Answer) -> Result<String, Failed> {
        let confirm = refused.body.get("confirm").cloned().unwrap_or_default();
        self.screen.part("confirm", &confirm, &["level", "expires_at", "token"])?;
        token(refused)
    }

    /// Asks the gateway how often it did something, and shows it.
    async fn counts(&mut self, what: &str, how: &str, expected: u64) -> Result<(), Failed> {
        let counts = self.gateway.send(&Ask::new(Method::GET, "/_demo/counts")).await?;
        let found = counts.body.pointer(&format!("/{what}/{how}")).and_then(Value::as_u64);
        let shown = json!({what: {how: found}});
        self.screen.part("at the gateway", &shown, &[what])?;
        check(&format!("the gateway has {expected} {what} {how}"), found == Some(expected))
    }

    fn say(&mut self, text: &str) -> Result<(), Failed> {
        self.screen.say(text)?;
        Ok(self.screen.flush()?)
    }
}

/// A follow-up out of a report, as an agent makes it: what to dial, and the body of its arguments.
struct FollowUp {
    method: Method,
    path: String,
    body: Option<Value>,
}

impl FollowUp {
    fn read(report: &Value) -> Result<Self, Failed> {
        let text = |pointer: &str| report.pointer(pointer).and_then(Value::as_str);
        let method = text("/undo/http/method").and_then(|method| method.parse().ok());
        let (Some(method), Some(path)) = (method, text("/undo/http/path")) else {
            return Err(Failed::Step("the report has no undo".to_owned()));
        };
        let arguments = report.pointer("/undo/arguments").and_then(Value::as_object);
        let body: Map<String, Value> = arguments
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| Some((name.strip_prefix("body.")?.to_owned(), value)))
            .map(|(name, value)| (name, value.clone()))
            .collect();
        let body = (!body.is_empty()).then_some(Value::Object(body));
        Ok(Self { method, path: path.to_owned(), body })
    }

    fn ask(&self) -> Ask<'_> {
        let body = self.body.as_ref();
        Ask { body, ..Ask::new(self.method.clone(), &self.path) }
    }
}

fn token(refused: &Answer) -> Result<String, Failed> {
    expect(refused, StatusCode::PRECONDITION_REQUIRED)?;
    let token = refused.body.pointer("/confirm/token").and_then(Value::as_str);
    token.map(str::to_owned).ok_or_else(|| Failed::Step("the refusal has no token".to_owned()))
}

fn expect(answer: &Answer, status: StatusCode) -> Result<(), Failed> {
    check(&format!("the status is {}", status.as_u16()), answer.status == status)
}

fn equal<'a>(
    name: &str,
    found: Option<&Value>,
    expected: impl Into<Option<&'a str>>,
) -> Result<(), Failed> {
    let expected = expected.into();
    let is_equal = expected.is_some() && found.and_then(Value::as_str) == expected;
    check(&format!("`{name}` is {}", expected.unwrap_or("given")), is_equal)
}

fn check(claim: &str, is_true: bool) -> Result<(), Failed> {
    if is_true { Ok(()) } else { Err(Failed::Step(claim.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::gateway::Gateway;
    use crate::demo::screen::Colour;
    use crate::tasks::Tasks;

    #[tokio::test]
    async fn a_step_that_does_something_else_than_it_says_ends_the_run() {
        let tasks = Tasks::new();
        let gateway = Gateway::start(&tasks).await.unwrap();
        // No sidecar: nothing is refused, and no answer has a report.
        let mut guide = Guide {
            agent: Client::new(gateway.address(), &tasks),
            gateway: Client::new(gateway.address(), &tasks),
            admin: PathBuf::new(),
            screen: Screen::new(Vec::new(), 80, Colour::Off),
        };

        assert!(matches!(guide.read().await, Err(Failed::Step(_))));
        assert!(matches!(guide.reversible().await, Err(Failed::Step(_))));
        assert!(matches!(guide.irreversible().await, Err(Failed::Step(_))));
        assert!(matches!(guide.lost().await, Err(Failed::Client(_))));
        assert!(matches!(guide.mcp().await, Err(Failed::Step(_))));
        assert!(matches!(guide.ledger().await, Err(Failed::Admin(_))));
    }
}
