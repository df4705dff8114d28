//! What a tool call is: its operation, the rounds that it is one of, and which of its arguments are ours.

use super::{Select, Selected};
use crate::call::digest::{HeadForm, RequestDigest};
use crate::call::refusal::{Refusal, Twofold};
use crate::call::{Confirmation, Control, Head, Oddity, Payload, Permit, Transport};
use crate::contract::class::{Class, Level, Mode};
use crate::contract::key::Place;
use crate::contract::path::{Request, Scope};
use crate::http::body::has_case_twin;
use crate::ledger::Spend;
use crate::mcp::catalog::CONFIRM;
use crate::mcp::request::{Heard, Round, Rounds, ToolCall};
use crate::pipeline::choose::{Chosen, known, tool_fault};
use crate::pipeline::confirmation::{Nonce, PREFIX, STATE_PREFIX};
use crate::pipeline::live::Live;
use crate::pipeline::places::{Read, is_decided_by_twins};
use crate::pipeline::rounds::State;
use crate::pipeline::{Form, Refused};
use crate::policy::{Choice, Found, choose};

/// Said of a tool that is not as its policy pins it.
pub const UNPINNED: &str = "the tool's live input schema does not match schema_sha256";

/// A refusal of a tool's call of which nothing but the tool is known: it names the operation, if the
/// tool can be only one.
pub fn refused_tool(live: &Live, tool: &str, refusal: Refusal) -> Box<Refused> {
    known(live, live.snapshot.find_tool(tool).as_slice(), refusal)
}

impl<R> Select<R> {
    pub(super) async fn tool(
        &self,
        head: Head,
        mut control: Control,
        mut call: Box<ToolCall>,
        oddity: Option<Oddity>,
        permit: Permit,
    ) -> Result<Selected, Box<Refused>> {
        let live = self.shared.policies.load();
        let mut chosen = self.choose_tool(&head, &call, &live).await?;
        let degraded = self.held_against_pin(&head, &call, &live, &mut chosen).await;
        let state = match self.opened_round(&head, &mut call) {
            Ok(state) => state,
            Err(refusal) => return Err(chosen.refused(refusal)),
        };
        match (&state.asked, call.heard()) {
            (Some(answer), Some(Heard::Accepted)) => control.confirm = Some(answer.clone()),
            (Some(answer), Some(Heard::Declined)) => {
                return Err(chosen.refused(self.declined(answer).await));
            }
            (Some(_), None) | (None, _) => {}
        }
        let mut would = None;
        if let Some(oddity) = oddity {
            let refusal = oddity.into_refusal();
            if chosen.mode == Mode::Enforce {
                return Err(chosen.refused(refusal));
            }
            would = Some(refusal.code());
        }
        let group = live.snapshot.find_tool(call.name());
        let groups = group.as_slice();
        let is_twin = |(_, names): &Read| has_case_twin(call.arguments(), names);
        let is_decided_by_twins = is_decided_by_twins(groups, is_twin);
        if is_decided_by_twins {
            if chosen.mode == Mode::Enforce {
                return Err(chosen.refused(Refusal::AmbiguousMember(Twofold::Twice)));
            }
            would = would.or(Some(Refusal::AmbiguousMember(Twofold::Twice).code()));
        }
        // A state counts for the call that it was given for: with another one the upstream would be
        // told to go on with what it does not belong to (standards MCP-34).
        if chosen.terms.class == Class::Read && state.open.is_some() {
            if chosen.mode == Mode::Enforce {
                return Err(chosen.refused(Refusal::StateInvalid));
            }
            would = would.or(Some(Refusal::StateInvalid.code()));
        }
        if chosen.terms.class == Class::Read {
            let payload = Payload::Mcp(call);
            return Ok(self.read(head, control, payload, permit, &live, chosen, would));
        }
        let operation = &chosen.served.operation;
        let mut ignored = Vec::new();
        match self.confirm_argument(&head, &call, &chosen).await {
            None => {}
            Some(given) => {
                control.confirm = given.or(control.confirm);
                ignored.push(CONFIRM.to_owned());
            }
        }
        if let Some(argument) = &operation.confirm_argument
            && control.confirm.is_none()
            && call.argument(argument).and_then(|value| value.as_bool()) == Some(true)
        {
            control.confirm = Some(Confirmation::Word);
        }
        if let Some(refusal) = tool_fault(operation, call.arguments(), &mut control) {
            if chosen.mode == Mode::Enforce {
                return Err(chosen.refused(refusal));
            }
            would = would.or(Some(refusal.code()));
        }
        let mut uncounted: Vec<&str> = ignored.iter().map(String::as_str).collect();
        if let Place::Argument(name) = &operation.carrier.place {
            uncounted.push(name);
        }
        let digest_of = |rounds| {
            RequestDigest::tool(
                head.uri.path_and_query().map_or("/", |target| target.as_str()),
                call.name(),
                HeadForm {
                    authority: head.authority.as_ref(),
                    headers: &head.headers,
                    vary_on: &operation.vary_on,
                },
                call.arguments(),
                &uncounted,
                |out| call.canonical_call(&uncounted, rounds, &mut |bytes| out(bytes)),
            )
        };
        let mut digest = digest_of(Rounds::Count);
        let mut continues = None;
        // What the entry was begun as: for a staged call that is its draft.
        let begun_as = match &operation.draft {
            Some(draft) if control.stage => {
                live.snapshot.operation(&draft.reference.operation).map(|s| s.operation.fingerprint)
            }
            Some(_) | None => Some(operation.fingerprint),
        };
        if let Some(open) = state.open {
            let first = digest_of(Rounds::Ignore);
            let whole = if control.stage { first.staged().whole } else { first.whole };
            if Some(open.operation) == begun_as && whole == open.digest {
                digest = first;
                continues = Some(open.entry);
            } else if chosen.mode == Mode::Enforce {
                return Err(chosen.refused(Refusal::StateInvalid));
            } else {
                would = would.or(Some(Refusal::StateInvalid.code()));
            }
        }
        let form = Form::Mcp { call, ignored };
        let mut selected = self.write(head, control, permit, live, chosen, digest, form, would);
        if let Selected::Write(write) = &mut selected {
            write.degraded = degraded;
            write.continues = continues;
        }
        Ok(selected)
    }

    /// The client was asked and said no: what a yes would have stood for confirms nothing any more.
    async fn declined(&self, answer: &Confirmation) -> Refusal {
        let nonce = match answer {
            Confirmation::Token(token) => self.shared.sealer.nonce(token),
            Confirmation::Word => None,
        };
        let Some(Nonce { nonce, expires_ms }) = nonce else {
            return Refusal::ConfirmationDeclined;
        };
        match self.shared.ledger.spend(Spend { nonce, expires_ms }).await {
            Ok(()) => Refusal::ConfirmationDeclined,
            Err(error) => {
                tracing::warn!(%error, "a confirmation was declined, and that could not be kept");
                Refusal::LedgerUnavailable
            }
        }
    }

    /// What our own state in a call's `requestState` holds; the call goes on with what it stood for.
    fn opened_round(&self, head: &Head, call: &mut ToolCall) -> Result<State, Refusal> {
        let Some(text) = call.request_state().filter(|text| text.starts_with(STATE_PREFIX)) else {
            return Ok(State::default());
        };
        let principal = self.shared.principal(head);
        let now_ms = self.shared.clock.now_ms();
        let state = State::open(&self.shared.sealer, &text, &principal.id, now_ms)
            .ok_or(Refusal::StateInvalid)?;
        drop(text);
        let upstream_state = state.upstream.clone();
        call.set_round(Round { upstream_state, is_asked: state.asked.is_some() });
        Ok(state)
    }

    /// Which operation a tool call is. An undeclared tool is a read only where the operator trusts
    /// the upstream's annotations and they say so (standards MCP-24).
    async fn choose_tool(
        &self,
        head: &Head,
        call: &ToolCall,
        live: &Live,
    ) -> Result<Chosen, Box<Refused>> {
        let group = live.snapshot.find_tool(call.name());
        let mut class = Class::Irreversible;
        if group.is_none() && self.shared.settings.mcp.trust_annotations {
            let principal = self.shared.principal(head);
            let tool = self.ask.tool(head, call, &principal).await;
            if tool.is_some_and(|tool| tool.is_read_only) {
                class = Class::Read;
            }
        }
        let choice = match live.snapshot.find_tool(call.name()) {
            Some(group) => {
                let request = Request::Arguments(call.arguments());
                choose(
                    &Found::One(group),
                    &Scope { before: None, request, response: None, key: None },
                )
            }
            None => Choice::Undeclared { strictest: None },
        };
        Chosen::of(&choice, Transport::Mcp, class, live, self.shared.settings.mode)
    }

    /// Holds the live tool against the schema that the policy pins. One that differs, or that nobody
    /// can see, is served as irreversible; the reason is given.
    async fn held_against_pin(
        &self,
        head: &Head,
        call: &ToolCall,
        live: &Live,
        chosen: &mut Chosen,
    ) -> Option<&'static str> {
        let pin = chosen.served.schema_sha256.as_ref()?;
        let principal = self.shared.principal(head);
        let tool = self.ask.tool(head, call, &principal).await;
        if tool.is_some_and(|tool| tool.matches(pin)) {
            return None;
        }
        chosen.serve_irreversible(live);
        Some(UNPINNED)
    }

    /// The argument `confirm`, if it is ours: a model can only set arguments. One that starts like our
    /// token is; any other is if the tool does not take it and `tools/list` shows it for us. The inner
    /// value is the confirmation, if it is one.
    async fn confirm_argument(
        &self,
        head: &Head,
        call: &ToolCall,
        chosen: &Chosen,
    ) -> Option<Option<Confirmation>> {
        let value = call.argument(CONFIRM)?;
        if let Some(token) = value.as_str().filter(|token| token.starts_with(PREFIX)) {
            return Some(Some(Confirmation::Token(token.into_owned())));
        }
        let operation = &chosen.served.operation;
        let is_shown = operation.id.as_str() != "_undeclared"
            && matches!(chosen.terms.level, Level::Caller | Level::Challenge);
        if !is_shown || operation.confirm_argument.as_deref() == Some(CONFIRM) {
            return None;
        }
        let is_word = value.as_bool() == Some(true);
        let principal = self.shared.principal(head);
        let tool = self.ask.tool(head, call, &principal).await?;
        if tool.has_confirm {
            return None;
        }
        Some(is_word.then_some(Confirmation::Word))
    }
}
