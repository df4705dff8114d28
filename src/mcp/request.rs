//! A `tools/call` as it was asked, and as it goes upstream.
//!
//! [`ToolCall`] is the checked call: its tool, its arguments, the controls that are for us, and the
//! text that its digest is made of. [`ToolCall::forwarded`] writes the body for the upstream by
//! splicing: controls out, key in, every other byte as it came (standards MCP-6, MCP-40).
//!
//! A body that changes an argument which the tool mirrors in an `Mcp-Param-` header needs that
//! header changed too (standards MCP-15); that needs the tool's schema and is not done here.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use bytes::Bytes;

use crate::contract::json::{Doc, Edits, Kind as JsonKind, Member, Value, write_string};
use crate::contract::key::Key;

use super::jsonrpc::{Id, Message, Rejection, code, has_disguised_member};
use super::{Era, META_CAPABILITIES, META_VERSION, TOOLS_CALL};

/// The longest task label, in characters.
pub const MAX_TASK: usize = 200;

/// The members of `_meta` that are for us and go no further.
const CONTROLS: &[&str] = &[KEY, STAGE, CONFIRM, TOKEN, TASK, EFFECT];
/// A report that an agent sends never passes as ours.
const EFFECT: &str = "effect";
const KEY: &str = "idempotency_key";
const STAGE: &str = "stage";
const CONFIRM: &str = "confirm";
const TOKEN: &str = "takeback/confirm";
const TASK: &str = "takeback/task";

/// The members of a call's `params` that have a meaning.
const PARAMS: &[&str] = &["_meta", "arguments", "inputResponses", "name", "requestState", "task"];

/// The controls that a caller puts into `_meta`; each is absent by default.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Controls {
    /// `idempotency_key`.
    pub key: Option<Key>,
    /// `stage`: the draft form is asked for.
    pub stage: bool,
    /// `confirm: true`: the caller's word.
    pub confirm: bool,
    /// `takeback/confirm`: the token out of a refusal.
    pub token: Option<String>,
    /// `takeback/task`: a label for the entries of one job, 1 to [`MAX_TASK`] characters.
    pub task: Option<String>,
}

impl fmt::Debug for Controls {
    /// Says what is there; the key and the token are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controls")
            .field("key", &self.key)
            .field("stage", &self.stage)
            .field("confirm", &self.confirm)
            .field("token", &self.token.is_some())
            .field("task", &self.task.is_some())
            .finish()
    }
}

/// A control in `_meta` that is not what it must be: the refusal `effect/invalid_meta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("_meta[\"{member}\"] {rule}")]
pub struct InvalidMeta {
    /// Which member.
    pub member: &'static str,
    /// What it must be.
    pub rule: &'static str,
}

/// Which elicitation modes a client declares (standards 1.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elicitation {
    /// A form in the client; `{}` means this.
    pub form: bool,
    /// A page that the person is asked to visit.
    pub url: bool,
}

impl Elicitation {
    /// Reads a client capabilities object, of `_meta` or of `initialize`.
    pub fn from_capabilities(capabilities: Value<'_>) -> Self {
        let Some(elicitation) = capabilities.get("elicitation") else {
            return Self::default();
        };
        if elicitation.kind() != JsonKind::Object {
            return Self::default();
        }
        let has = |mode| elicitation.get(mode).is_some_and(|v| v.kind() == JsonKind::Object);
        let is_empty = elicitation.members().next().is_none();
        Self { form: is_empty || has("form"), url: has("url") }
    }
}

/// What the body for the upstream changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes<'a> {
    /// An argument and the key that it is given; a present value is replaced.
    pub key: Option<(&'a str, &'a str)>,
    /// Arguments that the upstream does not know, such as our `confirm`.
    pub strip_arguments: &'a [&'a str],
    /// What becomes of our members of `_meta`.
    pub controls: ControlsFate,
    /// The trace context of the call's own span, for a `_meta` that there is.
    pub trace_parent: Option<&'a str>,
}

/// Whether the rounds of an upstream's own questions count in a digest (standards MCP-46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// They make another call of it.
    Count,
    /// The call goes on with the entry that it began, whatever was answered meanwhile.
    Ignore,
}

/// What becomes of our members of `_meta` (standards MCP-40).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlsFate {
    /// They go upstream, which understands them itself (`forward_controls: anvil`).
    Keep,
    /// They stay here.
    #[default]
    Strip,
}

/// What absent arguments are; it is what every such call has, so it is read once.
static NO_ARGUMENTS: LazyLock<Doc> = LazyLock::new(|| Doc::parse("{}").unwrap_or_default());

/// A `tools/call` whose shape was checked.
#[derive(Clone, Debug)]
pub struct ToolCall {
    message: Message,
    id: Id,
    name: String,
    era: Era,
    round: Option<Round>,
}

/// What our own state in `requestState` stood for (standards MCP-33, MCP-35).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// The upstream's own state, which goes on in the place of ours.
    pub upstream_state: Option<String>,
    /// We asked the client something: its answer is among the `inputResponses`, and stays here.
    pub is_asked: bool,
}

/// The name of our question among the `inputRequests` of a result.
pub const QUESTION: &str = "anvil.confirm";

/// What a client says to our question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It confirms: its word, and no proof that a person gave it (MCP-38). It never stands for the
    /// level `human`.
    Accepted,
    /// It does not.
    Declined,
}

impl Heard {
    /// Reads the result of an `elicitation/create`: only `accept` with `confirm: true` confirms
    /// (standards MCP-32).
    pub fn of(result: Value<'_>) -> Self {
        let action = result.get("action").and_then(Value::as_str);
        let word = result.get("content").and_then(|content| content.get("confirm"));
        let is_accepted =
            action.as_deref() == Some("accept") && word.and_then(Value::as_bool) == Some(true);
        if is_accepted { Self::Accepted } else { Self::Declined }
    }
}

impl ToolCall {
    /// Checks the shape of a call that [`Methods::route`](super::Methods::route) let through.
    ///
    /// # Errors
    ///
    /// 400 and -32602 (standards MCP-13) if `name` is missing, empty or no string, if `arguments`
    /// or `_meta` is there and no object, or if a member of `params` differs from one of the
    /// protocol only by case. 400 and -32600 for a message that is no request of `tools/call`.
    pub fn read(message: Message, era: Era) -> Result<Self, Rejection> {
        let id = match (message.method(), message.id()) {
            (Some(TOOLS_CALL), Some(id)) => id.clone(),
            (_, id) => {
                let text = "the message is no tools/call request; nothing was sent";
                return Err(Rejection::new(400, code::INVALID_REQUEST, text, id));
            }
        };
        let refuse = |text| Err(Rejection::new(400, code::INVALID_PARAMS, text, Some(&id)));
        let Some(params) = message.params() else {
            return refuse("params is missing; nothing was sent");
        };
        if has_disguised_member(params, PARAMS) {
            return refuse(
                "a member of params differs from one of MCP only by case; \
                           nothing was sent",
            );
        }
        let name = match params.get("name").and_then(Value::as_str) {
            Some(name) if !name.is_empty() => name.into_owned(),
            Some(_) | None => return refuse("params.name is not a tool's name; nothing was sent"),
        };
        let is_object = |name| params.get(name).is_none_or(|v| v.kind() == JsonKind::Object);
        if !is_object("arguments") {
            return refuse("params.arguments is not an object; nothing was sent");
        }
        if !is_object("_meta") {
            return refuse("params._meta is not an object; nothing was sent");
        }
        Ok(Self { message, id, name, era, round: None })
    }

    /// The id that the answer carries.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The tool's name, unescaped.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The protocol that the answer must speak.
    pub fn era(&self) -> Era {
        self.era
    }

    /// The version that a modern call names in `_meta`.
    pub fn version(&self) -> Option<Cow<'_, str>> {
        self.meta()?.get(META_VERSION)?.as_str()
    }

    /// The message that it came in.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The request that paths of the operation read: the arguments, `{}` where there are none
    /// (standards MCP-13).
    pub fn arguments(&self) -> Value<'_> {
        self.sent_arguments().unwrap_or_else(|| NO_ARGUMENTS.root())
    }

    fn sent_arguments(&self) -> Option<Value<'_>> {
        self.param("arguments")
    }

    /// One top-level argument.
    pub fn argument(&self, name: &str) -> Option<Value<'_>> {
        self.arguments().get(name)
    }

    /// `_meta`, an object.
    pub fn meta(&self) -> Option<Value<'_>> {
        self.message.meta()
    }

    /// The trace that the client says it belongs to; the protocol's own place for it.
    pub fn trace_parent(&self) -> Option<Cow<'_, str>> {
        self.meta()?.get("traceparent")?.as_str()
    }

    /// Whether the client asks for a task handle (2025-11-25). It changes nothing in what is gated.
    pub fn has_task(&self) -> bool {
        self.param("task").is_some()
    }

    /// The client's answers to an `input_required` (2026-07-28).
    pub fn input_responses(&self) -> Option<Value<'_>> {
        self.param("inputResponses")
    }

    /// The state of an `input_required` that this call goes on with (2026-07-28).
    pub fn request_state(&self) -> Option<Cow<'_, str>> {
        self.param("requestState")?.as_str()
    }

    /// What the client of a modern call declares. Legacy clients declare it in `initialize`.
    pub fn elicitation(&self) -> Elicitation {
        self.meta()
            .and_then(|meta| meta.get(META_CAPABILITIES))
            .map(Elicitation::from_capabilities)
            .unwrap_or_default()
    }

    /// The same request for another tool, or with other arguments (a JSON object's text). Its id,
    /// `_meta` and rounds stay; `None` if it would be no call.
    pub fn redirected(&self, name: &str, arguments: &str) -> Option<Self> {
        let mut quoted = String::new();
        write_string(name, &mut quoted);
        let mut edits = Edits::new();
        let set = [("name", quoted.as_str()), ("arguments", arguments)];
        edits.members(self.message.params()?, &[], &set);
        let message = Message::read(edits.apply(self.message.body()).into()).ok()?;
        let mut call = Self::read(message, self.era).ok()?;
        call.round.clone_from(&self.round);
        Some(call)
    }

    /// The call goes on with a state of ours, which stands for this.
    pub fn set_round(&mut self, round: Round) {
        self.round = Some(round);
    }

    /// What the client says to our question, if we asked one.
    pub fn heard(&self) -> Option<Heard> {
        let is_asked = self.round.as_ref().is_some_and(|round| round.is_asked);
        let answer = self.input_responses()?.get(QUESTION)?;
        is_asked.then(|| Heard::of(answer))
    }

    /// Whether the call goes on with a round of the upstream's own.
    pub fn has_upstream_round(&self) -> bool {
        match &self.round {
            None => self.param("requestState").is_some() || self.input_responses().is_some(),
            Some(round) => round.upstream_state.is_some() || self.other_responses() > 0,
        }
    }

    /// How many `inputResponses` are the upstream's.
    fn other_responses(&self) -> usize {
        let is_asked = self.round.as_ref().is_some_and(|round| round.is_asked);
        let Some(responses) = self.input_responses() else { return 0 };
        responses.members().filter(|member| !(is_asked && member.has_name(QUESTION))).count()
    }

    fn param(&self, name: &str) -> Option<Value<'_>> {
        self.message.params()?.get(name)
    }

    /// Reads the controls in `_meta`.
    ///
    /// # Errors
    ///
    /// The first control that is malformed (`effect/invalid_meta`): nothing may be sent then. In
    /// observe mode the caller takes [`Controls::default`] instead.
    pub fn controls(&self) -> Result<Controls, InvalidMeta> {
        if self.meta().is_none() {
            return Ok(Controls::default());
        }
        let text = |member| -> Result<Option<String>, InvalidMeta> {
            let rule = "is not a string";
            match self.meta().and_then(|meta| meta.get(member)) {
                None => Ok(None),
                Some(value) => {
                    let text = value.as_str().ok_or(InvalidMeta { member, rule })?;
                    Ok(Some(text.into_owned()))
                }
            }
        };
        let flag = |member| -> Result<bool, InvalidMeta> {
            match self.meta().and_then(|meta| meta.get(member)) {
                None => Ok(false),
                Some(value) => {
                    value.as_bool().ok_or(InvalidMeta { member, rule: "is not true or false" })
                }
            }
        };
        let key = match text(KEY)? {
            None => None,
            Some(key) => Some(Key::from_text(&key).map_err(|_| InvalidMeta {
                member: KEY,
                rule: "is not a key: 1 to 255 visible ASCII characters",
            })?),
        };
        let token = text(TOKEN)?;
        if token.as_ref().is_some_and(String::is_empty) {
            return Err(InvalidMeta { member: TOKEN, rule: "is empty" });
        }
        let task = text(TASK)?;
        if let Some(label) = &task {
            let is_label = (1..=MAX_TASK).contains(&label.chars().count())
                && !label.chars().any(char::is_control);
            if !is_label {
                let rule = "is not a label: 1 to 200 characters, none of them a control";
                return Err(InvalidMeta { member: TASK, rule });
            }
        }
        Ok(Controls { key, stage: flag(STAGE)?, confirm: flag(CONFIRM)?, token, task })
    }

    /// Feeds the text that identifies what is asked, for the digest (contract section 4; standards
    /// MCP-46): the tool, the arguments (absent ones are `{}`), whether the draft form is asked
    /// for, and every other member of `params` but `_meta`.
    ///
    /// `ignored_arguments` are left out: the argument that takes our confirmation, and the one that
    /// carries the caller's key. White space, member order and escapes make no difference; the
    /// spelling of numbers does. How the answer is to be given (`task`) makes none either. Our own
    /// question and state never count, so that a call and its confirmed form are one; the upstream's
    /// count as `rounds` says.
    pub fn canonical_call(
        &self,
        ignored_arguments: &[&str],
        rounds: Rounds,
        out: &mut impl FnMut(&[u8]),
    ) {
        let stage = self.meta().and_then(|meta| meta.get(STAGE)).and_then(Value::as_bool);
        let mut name = String::new();
        write_string(&self.name, &mut name);
        out(b"[");
        out(name.as_bytes());
        out(b",");
        canonical_without(self.arguments(), ignored_arguments, out);
        out(if stage == Some(true) { b",true," } else { b",false," });
        let params = self.message.params().unwrap_or_else(|| NO_ARGUMENTS.root());
        let Some(round) = &self.round else {
            canonical_without(params, &["_meta", "arguments", "name", "task"], out);
            out(b"]");
            return;
        };
        let ignored = ["_meta", "arguments", "inputResponses", "name", "requestState", "task"];
        canonical_without(params, &ignored, out);
        if rounds == Rounds::Count && self.has_upstream_round() {
            let mut state = String::from(",");
            write_string(round.upstream_state.as_deref().unwrap_or_default(), &mut state);
            state.push(',');
            out(state.as_bytes());
            if let Some(responses) = self.input_responses() {
                let ours: &[&str] = if round.is_asked { &[QUESTION] } else { &[] };
                canonical_without(responses, ours, out);
            }
        }
        out(b"]");
    }

    /// The body for the upstream.
    ///
    /// Without a change it is the very bytes that came. `_meta` is dropped when it held nothing but
    /// controls that are stripped; an `arguments` that is emptied stays as `{}`, and absent
    /// `arguments` stay absent unless a key goes in.
    pub fn forwarded(&self, changes: &Changes<'_>) -> Bytes {
        let Some(params) = self.message.params() else {
            return self.message.body().clone();
        };
        let mut edits = Edits::new();
        let mut removed: Vec<&str> = Vec::new();
        let trace_parent = changes.trace_parent.map(|parent| {
            let mut json = String::new();
            write_string(parent, &mut json);
            json
        });
        if let (ControlsFate::Strip, Some(meta)) = (changes.controls, self.meta()) {
            let is_ours = |member: Member<'_>| CONTROLS.iter().any(|ours| member.has_name(ours));
            let ours = meta.members().filter(|member| is_ours(*member)).count();
            if ours > 0 && ours == meta.members().count() {
                removed.push("_meta");
            } else {
                let own: Vec<(&str, &str)> =
                    trace_parent.iter().map(|json| ("traceparent", json.as_str())).collect();
                edits.members(meta, CONTROLS, &own);
            }
        }
        let key = changes.key.map(|(argument, key)| {
            let mut json = String::new();
            write_string(key, &mut json);
            (argument, json)
        });
        let set: Vec<(&str, &str)> =
            key.iter().map(|(argument, json)| (*argument, json.as_str())).collect();
        let mut added = Vec::new();
        match (self.sent_arguments(), &key) {
            (Some(arguments), _) => edits.members(arguments, changes.strip_arguments, &set),
            (None, Some((argument, json))) => {
                let mut object = String::from("{");
                write_string(argument, &mut object);
                object.push(':');
                object.push_str(json);
                object.push('}');
                added.push(object);
            }
            (None, None) => {}
        }
        let mut set: Vec<(&str, &str)> =
            added.iter().map(|object| ("arguments", object.as_str())).collect();
        let mut state = String::new();
        if let Some(round) = &self.round {
            match &round.upstream_state {
                None => removed.push("requestState"),
                Some(upstream) => {
                    write_string(upstream, &mut state);
                    set.push(("requestState", &state));
                }
            }
            if let (true, Some(responses)) = (round.is_asked, self.input_responses()) {
                if self.other_responses() == 0 {
                    removed.push("inputResponses");
                } else {
                    edits.members(responses, &[QUESTION], &[]);
                }
            }
        }
        edits.members(params, &removed, &set);
        if edits.is_empty() {
            self.message.body().clone()
        } else {
            edits.apply(self.message.body()).into()
        }
    }
}

/// The canonical form of an object without some of its members.
fn canonical_without(object: Value<'_>, ignored: &[&str], out: &mut impl FnMut(&[u8])) {
    let mut members: Vec<(Cow<'_, str>, Value<'_>)> = object
        .members()
        .map(|member| (member.name(), member.value))
        .filter(|(name, _)| !ignored.contains(&&**name))
        .collect();
    members.sort_by(|left, right| left.0.cmp(&right.0));
    out(b"{");
    for (position, (name, value)) in members.into_iter().enumerate() {
        let mut text = String::new();
        if position > 0 {
            text.push(',');
        }
        write_string(&name, &mut text);
        text.push(':');
        out(text.as_bytes());
        value.canonical(out);
    }
    out(b"}");
}

#[cfg(test)]
mod tests;
