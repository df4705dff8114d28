//! The first step: which operation a call is, and a write's body.
//!
//! The policy snapshot is pinned here: a reload cannot change a call between its confirmation and its
//! undo. Matching by method and path comes before the body is touched, so that `100 Continue` is only
//! sent when the body is really wanted (standards H-9). The body is read for writes, and for reads whose
//! conditions look into it; other reads stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;

use super::ask::Ask;
use super::audit;
use super::confirmation::{PREFIX, STATE_PREFIX};
use super::live::{Live, Matched};
use super::rounds::State;
use super::settle::Settled;
use super::step::{Next, Stage, Step};
use super::{Answered, Attempt, Form, Read, Refused, Shared, Write};
use crate::call::digest::{HeadForm, RequestDigest};
use crate::call::payload::{self, Body, CollectError, Collected};
use crate::call::refusal::Refusal;
use crate::call::{
    Call, Confirmation, Control, Head, Oddity, Payload, Permit, Transport, effective_mode,
};
use crate::contract::assertion::{Assertion, Check};
use crate::contract::class::{Class, Level, Mode};
use crate::contract::json::{Doc, Edits, Kind};
use crate::contract::key::{Key, Place};
use crate::contract::operation::{Argument, Mapping, Operation, Target};
use crate::contract::path::{Path, Request, Root, Scope, Segment};
use crate::contract::report::Report;
use crate::contract::selector::Selector;
use crate::contract::undo::check_request;
use crate::http::body::{BodyDoc, RequestDoc, essence, has_case_twin};
use crate::http::encode;
use crate::mcp::catalog::CONFIRM;
use crate::mcp::request::{Heard, Round, Rounds, ToolCall};
use crate::metrics::OperationMetrics;
use crate::policy::{Choice, Found, Group, Served, Undeclared, choose};

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Select<R> {
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// Reads the upstream's tools, where a call's tool must be known.
    pub ask: Ask,
    /// Where reads go on: they leave the way of the writes here.
    pub reads: R,
}

/// What a call is.
enum Selected {
    Read(Read),
    Write(Box<Write>),
}

impl<R: Stage<Attempt, Answer = Settled>> Step for Select<R> {
    type In = Box<Call>;
    type Out = Box<Write>;
    type Below = Answered;
    type Answer = Answered;

    async fn step<N: Stage<Box<Write>, Answer = Answered>>(
        &self,
        call: Box<Call>,
        next: Next<'_, N>,
    ) -> Answered {
        let plain = match call.payload {
            Payload::Http(_) => self.plain_read(call),
            Payload::Mcp(_) => self.plain_tool(call),
        };
        let call = match plain {
            Ok(read) => return Ok(self.reads.run(Attempt::Read(read)).await.reply),
            Err(call) => call,
        };
        let is_staged = call.control.stage;
        let span = call.head.span.clone();
        let began = span.as_ref().map(|_| self.shared.clock.instant());
        // Boxed, or every read's future would have room for all that other calls may wait for.
        let selected = Box::pin(self.select(call)).await?;
        if let (Some(span), Some(began)) = (span, began) {
            let (served, class) = match &selected {
                Selected::Read(read) => (&read.matched.served, Class::Read),
                Selected::Write(write) => (&write.served, write.class),
            };
            audit::describe(&span, &served.operation, class);
            span.step("anvil.classify", began, self.shared.clock.instant());
        }
        match selected {
            // A read has no draft, and a call that asks for one must not be made as it is.
            Selected::Read(read) if is_staged => Err(Box::new(Refused {
                refusal: Refusal::NoDraftForm,
                report: Some(Report {
                    refused: Some(Refusal::NoDraftForm.code().into()),
                    ..Report::for_read(read.matched.served.operation.id.clone())
                }),
                metrics: Some(Arc::clone(&read.matched.metrics)),
                class: Class::Read,
                question: None,
                caller: None,
            })),
            Selected::Read(read) => Ok(self.reads.run(Attempt::Read(read)).await.reply),
            Selected::Write(write) => Box::pin(next.run(write)).await,
        }
    }
}

/// Said of a tool that is not as its policy pins it.
pub const UNPINNED: &str = "the tool's live input schema does not match schema_sha256";

/// What a call was matched to.
struct Chosen {
    served: Arc<Served>,
    metrics: Arc<OperationMetrics>,
    class: Class,
    level: Level,
    mode: Mode,
    /// Why it would be refused, were the rules enforced.
    would: Option<&'static str>,
}

impl Chosen {
    /// Serves it as what nothing takes back, whatever was declared.
    fn serve_irreversible(&mut self, live: &Live, transport: Transport) {
        self.class = Class::Irreversible;
        if let Some((undeclared, _)) = live.undeclared(transport, Class::Irreversible) {
            self.level = self.level.max(undeclared.operation.confirm);
        }
    }
}

/// A write that is declared to be taken back by values of its request, and lacks them, is irreversible:
/// that is known before it is sent, so it is asked about (contract section 1).
fn as_it_can_be_undone(
    mut chosen: Chosen,
    form: &Form,
    live: &Live,
    transport: Transport,
) -> Chosen {
    let operation = &chosen.served.operation;
    let mut follow_ups = operation.inverse.iter().chain(&operation.compensate).peekable();
    let scope = Scope { before: None, request: form.request(), response: None, key: None };
    let is_lost = chosen.class != Class::Irreversible
        && follow_ups.peek().is_some()
        && follow_ups.all(|follow_up| check_request(follow_up, &scope).is_err());
    if is_lost {
        chosen.serve_irreversible(live, transport);
    }
    chosen
}

impl<R> Select<R> {
    /// The usual read: one operation, no condition, nothing odd. It streams, and nothing is waited
    /// for. Any other call is given back.
    fn plain_read(&self, call: Box<Call>) -> Result<Read, Box<Call>> {
        if !is_plain(&call) {
            return Err(call);
        }
        let live = self.shared.policies.peek();
        let found = live.snapshot.find_http(&call.head.method, call.head.path());
        if let Found::One(group) = &found
            && let [served] = group.operations.as_slice()
            && served.operation.class == Class::Read
            && served.operation.conditions.is_empty()
            && let Some(matched) = live.matched(served)
        {
            drop(found);
            self.count(&call.permit, Class::Read);
            return Ok(Read { call, matched, would: None });
        }
        drop(found);
        Err(call)
    }

    /// The usual read of a tool: declared without a condition or a pin, and no round of an earlier call.
    /// Any other call is given back.
    fn plain_tool(&self, call: Box<Call>) -> Result<Read, Box<Call>> {
        let Payload::Mcp(tool) = &call.payload else { return Err(call) };
        if !is_plain(&call) || tool.request_state().is_some() {
            return Err(call);
        }
        let live = self.shared.policies.peek();
        if let Some(group) = live.snapshot.find_tool(tool.name())
            && let [served] = group.operations.as_slice()
            && served.operation.class == Class::Read
            && served.operation.conditions.is_empty()
            && served.schema_sha256.is_none()
            && let Some(matched) = live.matched(served)
        {
            self.count(&call.permit, Class::Read);
            return Ok(Read { call, matched, would: None });
        }
        Err(call)
    }

    async fn select(&self, call: Box<Call>) -> Result<Selected, Box<Refused>> {
        let Call { head, control, payload, oddity, permit } = *call;
        match payload {
            Payload::Http(body) => self.http(head, control, body, oddity, permit).await,
            Payload::Mcp(call) => Box::pin(self.tool(head, control, call, oddity, permit)).await,
        }
    }

    /// A read, with the body or tool call that it is forwarded with.
    #[expect(clippy::too_many_arguments, reason = "the parts of one read, each named once")]
    fn read(
        &self,
        head: Head,
        control: Control,
        payload: Payload,
        permit: Permit,
        live: &Live,
        chosen: Chosen,
        would: Option<&'static str>,
    ) -> Selected {
        self.count(&permit, Class::Read);
        let Chosen { served, metrics, .. } = chosen;
        let declared = live.matched(&served);
        let matched = declared.unwrap_or_else(|| Arc::new(Matched::new(served, metrics)));
        let call = Box::new(Call { head, control, payload, oddity: None, permit });
        Selected::Read(Read { call, matched, would })
    }

    async fn http(
        &self,
        head: Head,
        control: Control,
        body: Body,
        oddity: Option<Oddity>,
        permit: Permit,
    ) -> Result<Selected, Box<Refused>> {
        let live = self.shared.policies.peek();
        let found = live.snapshot.find_http(&head.method, head.path());
        let groups: Vec<&Group> = match &found {
            Found::None => Vec::new(),
            Found::One(group) => vec![*group],
            Found::Several(groups) => groups.clone(),
        };
        let operations = || groups.iter().flat_map(|group| &group.operations);
        let mode_of_unmatched = effective_mode(self.shared.settings.mode, live.undeclared_mode());
        let mode = operations()
            .map(|served| effective_mode(self.shared.settings.mode, served.operation.mode))
            .max()
            .unwrap_or(mode_of_unmatched);
        let would = match oddity {
            None => None,
            Some(oddity) if is_allowed(&oddity, &groups) => None,
            Some(oddity) => {
                let refusal = oddity.into_refusal();
                if mode == Mode::Enforce {
                    turn_away(&head, body).await;
                    return Err(known(&live, &groups, refusal));
                }
                Some(refusal.code())
            }
        };
        let is_safe = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let needs_body = if groups.is_empty() {
            !is_safe || self.undeclared_read(&head, &live) != Class::Read
        } else {
            operations().any(|served| served.operation.class.is_write())
                || groups.iter().any(|group| group.reads_body)
        };
        if !needs_body {
            let params = parameters(&groups, head.path());
            let doc = RequestDoc::new(&params, head.query(), &head.headers, BodyDoc::None);
            let chosen = self.choose_http(&head, &live, &groups, &doc)?;
            if chosen.class == Class::Read {
                let mut would = would;
                if groups.is_empty() && !body.is_in_memory() {
                    if mode == Mode::Enforce {
                        turn_away(&head, body).await;
                        return Err(Refusal::UndeclaredBody.into());
                    }
                    would = would.or(Some(Refusal::UndeclaredBody.code()));
                }
                let payload = Payload::Http(body);
                return Ok(self.read(head, control, payload, permit, &live, chosen, would));
            }
        }
        let most = limit(&groups, &self.shared);
        let collected = match Box::pin(self.collect(&head, body, most)).await {
            Ok(collected) => collected,
            Err(refusal) => return Err(known(&live, &groups, refusal)),
        };
        let (body_doc, would) = match BodyDoc::read(&head.headers, collected.bytes()) {
            Ok(doc) => (doc, would),
            Err(refusal) if mode == Mode::Enforce => {
                return Err(known(&live, &groups, refusal));
            }
            Err(refusal) => (BodyDoc::Opaque, would.or(Some(refusal.code()))),
        };
        let params = parameters(&groups, head.path());
        let doc = RequestDoc::new(&params, head.query(), &head.headers, body_doc);
        let chosen = self.choose_http(&head, &live, &groups, &doc)?;
        // What decides between a read and a write may not be read in two ways, whatever it decided.
        let fault = if is_decided_by_twins(&groups, &doc) {
            Some(Refusal::AmbiguousMember)
        } else if doc.overrides_method() && !reads_method(&chosen.served.operation) {
            Some(Refusal::MethodOverride)
        } else {
            None
        };
        let would = match fault {
            Some(refusal) if mode == Mode::Enforce => return Err(refused(&chosen, refusal)),
            fault => would.or(fault.map(|refusal| refusal.code())).or(chosen.would),
        };
        drop(params);
        drop(groups);
        if chosen.class == Class::Read {
            let payload = Payload::Http(collected.into());
            return Ok(self.read(head, control, payload, permit, &live, chosen, would));
        }
        self.http_write(head, control, permit, Arc::clone(&live), chosen, doc, collected, would)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one write, each named once")]
    fn http_write(
        &self,
        head: Head,
        mut control: Control,
        permit: Permit,
        live: Arc<Live>,
        chosen: Chosen,
        doc: RequestDoc,
        body: Collected,
        mut would: Option<&'static str>,
    ) -> Result<Selected, Box<Refused>> {
        let operation = &chosen.served.operation;
        let mut faults = Vec::new();
        match encode::carried_key(&operation.carrier, &head, doc.body.value()) {
            Ok(carried) => merge_key(&mut control, carried, &mut faults),
            Err(refusal) => faults.push(refusal),
        }
        if is_ambiguous(operation, &doc) || has_key_twin(operation, &doc) {
            faults.push(Refusal::AmbiguousMember);
        }
        if let Some(refusal) = faults.into_iter().next() {
            if chosen.mode == Mode::Enforce {
                return Err(refused(&chosen, refusal));
            }
            would = would.or(Some(refusal.code()));
        }
        let asked = encode::path_and_query_without_key(&head, &operation.carrier);
        let whole = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let target = asked.as_deref().unwrap_or(whole);
        let kind = essence(&head.headers).to_owned();
        let unkeyed = body_without_key(operation, &doc.body);
        let counted = unkeyed.as_ref().unwrap_or(&doc.body);
        let mut headers = head.headers.clone();
        if let Place::Header(name) = &operation.carrier.place {
            headers.remove(name);
        }
        let digest = RequestDigest::http(
            &head.method,
            target,
            HeadForm {
                authority: head.authority.as_ref(),
                headers: &headers,
                vary_on: &operation.vary_on,
            },
            counted.form(&kind, body.bytes()),
        );
        let form = Form::Http { doc, body };
        Ok(self.write(head, control, permit, live, chosen, digest, form, would))
    }

    async fn tool(
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
            Err(refusal) => return Err(refused(&chosen, refusal)),
        };
        match (&state.asked, call.heard()) {
            (Some(answer), Some(Heard::Accepted)) => control.confirm = Some(answer.clone()),
            (Some(_), Some(Heard::Declined)) => {
                return Err(refused(&chosen, Refusal::ConfirmationDeclined));
            }
            (Some(_), None) | (None, _) => {}
        }
        let mut would = None;
        if let Some(oddity) = oddity {
            let refusal = oddity.into_refusal();
            if chosen.mode == Mode::Enforce {
                return Err(refused(&chosen, refusal));
            }
            would = Some(refusal.code());
        }
        let is_decided_by_twins = live.snapshot.find_tool(call.name()).is_some_and(|group| {
            group.operations.iter().any(|served| served.operation.class.is_write())
                && group
                    .operations
                    .iter()
                    .flat_map(|served| &served.operation.conditions)
                    .filter_map(|condition| request_place(&condition.path))
                    .any(|(_, names)| has_case_twin(call.arguments(), &names))
        });
        if is_decided_by_twins {
            if chosen.mode == Mode::Enforce {
                return Err(refused(&chosen, Refusal::AmbiguousMember));
            }
            would = would.or(Some(Refusal::AmbiguousMember.code()));
        }
        // A state counts for the call that it was given for: with another one the upstream would be
        // told to go on with what it does not belong to (standards MCP-34).
        if chosen.class == Class::Read && state.open.is_some() {
            if chosen.mode == Mode::Enforce {
                return Err(refused(&chosen, Refusal::StateInvalid));
            }
            would = would.or(Some(Refusal::StateInvalid.code()));
        }
        if chosen.class == Class::Read {
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
        let mut faults = Vec::new();
        if let Place::Argument(name) = &operation.carrier.place {
            match call.argument(name).map_or(Ok(None), encode::key_value) {
                Ok(carried) => merge_key(&mut control, carried, &mut faults),
                Err(refusal) => faults.push(refusal),
            }
        }
        let is_ambiguous =
            readers(operation).any(|(_, names)| has_case_twin(call.arguments(), &names));
        let has_key_twin = matches!(&operation.carrier.place, Place::Argument(name)
            if call.arguments().has_twin(name));
        if is_ambiguous || has_key_twin {
            faults.push(Refusal::AmbiguousMember);
        }
        if let Some(refusal) = faults.into_iter().next() {
            if chosen.mode == Mode::Enforce {
                return Err(refused(&chosen, refusal));
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
                return Err(refused(&chosen, Refusal::StateInvalid));
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
        self.chosen(choice, Transport::Mcp, class, live)
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
        chosen.serve_irreversible(live, Transport::Mcp);
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
            && matches!(chosen.level, Level::Caller | Level::Challenge);
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

    #[expect(clippy::too_many_arguments, reason = "the parts of one write, each named once")]
    fn write(
        &self,
        head: Head,
        control: Control,
        permit: Permit,
        live: Arc<Live>,
        chosen: Chosen,
        digest: RequestDigest,
        form: Form,
        would: Option<&'static str>,
    ) -> Selected {
        let transport = match &form {
            Form::Http { .. } => Transport::Http,
            Form::Mcp { .. } => Transport::Mcp,
        };
        // The draft form is under its own operation's gates.
        let chosen = match control.stage {
            true => chosen,
            false => as_it_can_be_undone(chosen, &form, &live, transport),
        };
        let Chosen { served, metrics, class, level, mode, would: chosen_would } = chosen;
        let would = would.or(chosen_would);
        let digest = if control.stage { digest.staged() } else { digest };
        self.count(&permit, class);
        let principal = self.shared.principal(&head);
        let arrived: Instant = self.shared.clock.instant();
        Selected::Write(Box::new(Write {
            id: self.shared.entry_id(),
            head,
            control,
            permit,
            live,
            served,
            metrics,
            class,
            level,
            mode,
            principal,
            digest,
            form,
            would,
            degraded: None,
            continues: None,
            staged_for: None,
            arrived,
        }))
    }

    fn count(&self, permit: &Permit, class: Class) {
        permit.count_in(&self.shared.metrics.common().inflight, class);
    }

    /// The class of an undeclared safe method: a read, unless the policy says otherwise, or unless the
    /// path folds onto a declared write (contract section 1).
    fn undeclared_read(&self, head: &Head, live: &Live) -> Class {
        let folded = live.snapshot.folds_onto_write(head.path()).map(|(class, _)| class);
        folded.unwrap_or_else(|| {
            if live.snapshot.undeclared_get_writes() { Class::Irreversible } else { Class::Read }
        })
    }

    fn choose_http(
        &self,
        head: &Head,
        live: &Live,
        groups: &[&Group],
        doc: &RequestDoc,
    ) -> Result<Chosen, Box<Refused>> {
        let is_safe = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let choice = match groups {
            [] => Choice::Undeclared { strictest: None },
            [group] => {
                let scope =
                    Scope { before: None, request: doc.request(), response: None, key: None };
                choose(&Found::One(group), &scope)
            }
            groups => choose_among(groups, head, doc),
        };
        let class = match (&choice, is_safe) {
            (Choice::Undeclared { strictest: None }, true) => self.undeclared_read(head, live),
            _ => Class::Irreversible,
        };
        self.chosen(choice, Transport::Http, class, live)
    }

    fn chosen(
        &self,
        choice: Choice<'_>,
        transport: Transport,
        undeclared: Class,
        live: &Live,
    ) -> Result<Chosen, Box<Refused>> {
        let sidecar = self.shared.settings.mode;
        match choice {
            Choice::Declared(served) => {
                let operation = &served.operation;
                let metrics = live.metrics(served).ok_or(Refusal::PolicyChanged)?;
                Ok(Chosen {
                    served: Arc::clone(served),
                    metrics,
                    class: operation.class,
                    level: operation.confirm,
                    mode: effective_mode(sidecar, operation.mode),
                    would: None,
                })
            }
            Choice::Undeclared { strictest } => {
                let (served, metrics) =
                    live.undeclared(transport, undeclared).ok_or(Refusal::PolicyChanged)?;
                let mode = effective_mode(sidecar, live.undeclared_mode());
                let level = served.operation.confirm;
                let level = strictest.map_or(level, |strictest| level.max(strictest));
                let is_refused =
                    undeclared.is_write() && live.snapshot.undeclared() == Undeclared::Refuse;
                let would = is_refused.then(|| Refusal::Undeclared.code());
                let chosen = Chosen { served, metrics, class: undeclared, level, mode, would };
                if is_refused && mode == Mode::Enforce {
                    return Err(refused(&chosen, Refusal::Undeclared));
                }
                Ok(chosen)
            }
        }
    }

    async fn collect(&self, head: &Head, body: Body, limit: usize) -> Result<Collected, Refusal> {
        use http_body::Body as _;
        if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
            turn_away(head, body).await;
            return Err(Refusal::BodyTooLarge(limit));
        }
        let settings = &self.shared.settings;
        let (idle, total) = (settings.limits.request_idle, settings.timeouts.total);
        let collected =
            payload::collect_within(body, limit, &self.shared.budget, idle, total).await;
        collected.map_err(|error| match error {
            CollectError::Broken(_) => Refusal::BodyBroken,
            CollectError::Budget => Refusal::Overloaded,
            CollectError::Idle => Refusal::BodySlow,
            CollectError::TooLarge { limit_bytes } => Refusal::BodyTooLarge(limit_bytes),
        })
    }
}

/// Nothing about a call is odd, and nobody is told what it is matched to.
fn is_plain(call: &Call) -> bool {
    call.oddity.is_none() && !call.control.stage && call.head.span.is_none()
}

/// Reads on a little before a refusal that did not need the body, so that the caller, who is still
/// sending, gets to read it (pitfall P22). A body that is waited for is never asked for.
async fn turn_away(head: &Head, body: Body) {
    if !head.expects_continue && !body.is_in_memory() {
        let _is_read_to_its_end = payload::discard(body, TURNED_AWAY_BYTES, TURNED_AWAY).await;
    }
}

/// What is read of a body that is not wanted: what a client sends before it looks for an answer, and no
/// more.
const TURNED_AWAY_BYTES: usize = 16 * 1024 * 1024;

/// How long it is waited for.
const TURNED_AWAY: Duration = Duration::from_secs(1);

/// A refusal before a call was matched to one operation, with what is known: its operation where the
/// target has only one.
fn known(live: &Live, groups: &[&Group], refusal: Refusal) -> Box<Refused> {
    let mut operations = groups.iter().flat_map(|group| &group.operations);
    let (Some(served), None) = (operations.next(), operations.next()) else {
        return refusal.into();
    };
    let operation = &served.operation;
    let mut report = Report::new(operation.class, operation.id.clone());
    report.refused = Some(refusal.code().into());
    Box::new(Refused {
        refusal,
        report: Some(report),
        metrics: live.metrics(served),
        class: operation.class,
        question: None,
        caller: None,
    })
}

/// Whether a condition reads what two readers resolve differently, at a target that may be a write.
pub(super) fn is_decided_by_twins(groups: &[&Group], doc: &RequestDoc) -> bool {
    let operations = || groups.iter().flat_map(|group| &group.operations);
    operations().any(|served| served.operation.class.is_write())
        && operations()
            .flat_map(|served| &served.operation.conditions)
            .filter_map(|condition| request_place(&condition.path))
            .any(|(section, names)| doc.is_ambiguous(&section, &names))
}

/// Whether a rule of the operation reads what two readers resolve differently.
pub(super) fn is_ambiguous(operation: &Operation, doc: &RequestDoc) -> bool {
    readers(operation).any(|(section, names)| doc.is_ambiguous(&section, &names))
}

/// Whether a rule of the operation reads a member of the body that is called `_method`, so that it is
/// the operation's own.
pub(super) fn reads_method(operation: &Operation) -> bool {
    readers(operation).any(|(section, names)| {
        section == "body" && names.first().is_some_and(|name| name.eq_ignore_ascii_case("_method"))
    })
}

/// Whether there is a member beside the carrier's place that a laxer upstream takes for the key.
pub(super) fn has_key_twin(operation: &Operation, doc: &RequestDoc) -> bool {
    match &operation.carrier.place {
        Place::BodyPointer { pointer, .. } => doc.has_twin("body", pointer.tokens()),
        Place::Query(name) => doc.has_twin("query", std::slice::from_ref(name)),
        Place::Argument(_) | Place::Header(_) | Place::Unsupported => false,
    }
}

fn refused(chosen: &Chosen, refusal: Refusal) -> Box<Refused> {
    let mut report = Report::new(chosen.class, chosen.served.operation.id.clone());
    report.refused = Some(refusal.code().into());
    Box::new(Refused {
        refusal,
        report: Some(report),
        metrics: Some(Arc::clone(&chosen.metrics)),
        class: chosen.class,
        question: None,
        caller: None,
    })
}

/// The caller's key, from wherever it came; two that differ are a conflict.
pub(super) fn merge_key(control: &mut Control, carried: Option<Key>, faults: &mut Vec<Refusal>) {
    match (&control.key, carried) {
        (Some(given), Some(carried)) if *given != carried => faults.push(Refusal::KeyConflict),
        (None, Some(carried)) => control.key = Some(carried),
        (_, _) => {}
    }
}

/// Whether every operation that the path may be allows what is odd about it.
pub(super) fn is_allowed(oddity: &Oddity, groups: &[&Group]) -> bool {
    let mut operations = groups.iter().flat_map(|group| &group.operations).peekable();
    operations.peek().is_some()
        && operations.all(|served| match oddity {
            Oddity::EncodedSlash => served.operation.allow.encoded_slash,
            Oddity::EmptySegment => served.operation.allow.empty_segments,
            Oddity::Other(_) => false,
        })
}

fn limit(groups: &[&Group], shared: &Shared) -> usize {
    let own = groups
        .iter()
        .flat_map(|group| &group.operations)
        .filter_map(|served| served.operation.max_body_bytes)
        .max();
    own.unwrap_or(shared.settings.limits.request_body_bytes)
}

/// The template's parameters of the first group, still encoded.
pub(super) fn parameters<'a>(groups: &[&'a Group], path: &'a str) -> Vec<(&'a str, &'a str)> {
    let first = groups.first().and_then(|group| group.operations.first());
    match first.map(|served| &served.operation.target) {
        Some(Target::Http { template, .. }) => template.matches(path).unwrap_or_default(),
        Some(Target::Tool { .. }) | None => Vec::new(),
    }
}

/// Several templates match and none is more specific: each is asked with its own parameters, and the
/// most severe class that answers is taken (contract section 2, Variants).
pub(super) fn choose_among<'a>(groups: &[&'a Group], head: &Head, doc: &RequestDoc) -> Choice<'a> {
    let mut declared: Option<&'a Arc<Served>> = None;
    let mut strictest: Option<Level> = None;
    for group in groups {
        let params = parameters(std::slice::from_ref(group), head.path());
        let own = RequestDoc::new(&params, head.query(), &head.headers, doc.body.clone());
        let scope = Scope { before: None, request: own.request(), response: None, key: None };
        match choose(&Found::One(group), &scope) {
            Choice::Declared(served) => {
                let is_worse =
                    declared.is_none_or(|known| known.operation.class < served.operation.class);
                if is_worse {
                    declared = Some(served);
                }
            }
            Choice::Undeclared { strictest: level } => strictest = strictest.max(level),
        }
    }
    match declared {
        Some(served) => Choice::Declared(served),
        None => Choice::Undeclared { strictest },
    }
}

/// The body as the digest sees it: a key in the carrier's place is no part of what is asked.
fn body_without_key(operation: &Operation, body: &BodyDoc) -> Option<BodyDoc> {
    let (Place::BodyPointer { pointer, .. }, BodyDoc::Json(doc)) = (&operation.carrier.place, body)
    else {
        return None;
    };
    let value = pointer.resolve(doc.root())?;
    if value.kind() != Kind::String {
        return None;
    }
    let mut edits = Edits::new();
    edits.replace(value, "null");
    Doc::parse(edits.apply(doc.text())).ok().map(BodyDoc::Json)
}

/// The places of the request that the operation's rules read: section and names.
fn readers(operation: &Operation) -> impl Iterator<Item = (String, Vec<String>)> + '_ {
    let conditions = operation.conditions.iter().map(|condition| &condition.path);
    let follow_ups = [&operation.inverse, &operation.compensate];
    let follow_ups = follow_ups.into_iter().flatten().flat_map(|call| &call.arguments);
    let lookups = operation.lookup.iter().flat_map(|lookup| &lookup.arguments);
    let drafts = operation.draft.iter().flat_map(|draft| &draft.arguments);
    let mapped = follow_ups.chain(lookups).chain(drafts).filter_map(mapped_path);
    let paths = conditions.chain(mapped).filter_map(request_place);
    let assertions = assertions(operation).filter_map(assertion_place);
    let carrier = match &operation.carrier.place {
        Place::BodyPointer { pointer, .. } => Some(("body".to_owned(), pointer.tokens().to_vec())),
        Place::Query(name) => Some(("query".to_owned(), vec![name.clone()])),
        Place::Argument(_) | Place::Header(_) | Place::Unsupported => None,
    };
    paths.chain(assertions).chain(carrier)
}

fn mapped_path(argument: &Argument) -> Option<&Path> {
    match &argument.mapping {
        Mapping::Path(path) => Some(path),
        Mapping::Const(_) => None,
    }
}

fn request_place(path: &Path) -> Option<(String, Vec<String>)> {
    if path.root != Root::Request {
        return None;
    }
    let names: Vec<String> = path
        .segments
        .iter()
        .map(|segment| match segment {
            Segment::Name(name) => name.clone(),
            Segment::Index(index) => index.to_string(),
        })
        .collect();
    let (section, rest) = names.split_first()?;
    match section.as_str() {
        "body" | "query" => Some((section.clone(), rest.to_vec())),
        "path" | "header" => None,
        // A tool's arguments have no sections.
        _ => Some(("arguments".to_owned(), names.clone())),
    }
}

fn assertions(operation: &Operation) -> impl Iterator<Item = &Assertion> {
    use crate::contract::operation::Verification;
    use crate::contract::plan::Stage;
    let bound = match &operation.verification {
        Verification::ResponseBinding { assertions, .. } => assertions.as_slice(),
        Verification::None | Verification::Plan(_) => &[],
    };
    let staged: &[Stage] = match &operation.verification {
        Verification::Plan(plan) => &plan.stages,
        Verification::None | Verification::ResponseBinding { .. } => &[],
    };
    let staged = staged.iter().flat_map(|stage| &stage.assertions);
    operation.rejected_if.iter().chain(bound).chain(staged)
}

fn assertion_place(assertion: &Assertion) -> Option<(String, Vec<String>)> {
    let (actual, expected) = match &assertion.check {
        Check::Absent(actual) | Check::Exists(actual) => (actual, None),
        Check::EqualsLiteral { actual, .. } | Check::OneOf { actual, .. } => (actual, None),
        Check::EqualsRequest { actual, expected } => (actual, Some(expected)),
    };
    if let Some(expected) = expected {
        let (section, rest) = expected.tokens().split_first()?;
        return match section.as_str() {
            "body" | "query" => Some((section.clone(), rest.to_vec())),
            "path" | "header" => None,
            _ => Some(("arguments".to_owned(), expected.tokens().to_vec())),
        };
    }
    match actual {
        Selector::RequestBody(pointer) => Some(("body".to_owned(), pointer.tokens().to_vec())),
        Selector::HttpStatus
        | Selector::McpStructured(_)
        | Selector::ResponseBody(_)
        | Selector::ResponseHeader(_) => None,
    }
}
