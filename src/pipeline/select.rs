//! The first step: which operation a call is, and a write's body.
//!
//! The policy snapshot is pinned here: a reload cannot change a call between its confirmation and its
//! undo. Matching by method and path comes before the body is touched, so that `100 Continue` is only
//! sent when the body is really wanted (standards H-9). The body is read for writes, and for reads whose
//! conditions look into it; other reads stream.

mod tool;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ask::Ask;
use super::audit;
use super::back::{Terms, ways_back};
use super::choose::{Asked, Chosen, is_allowed, known, parameters, read_otherwise, write_fault};
use super::live::{Live, Matched};
use super::settle::Settled;
use super::step::{Next, Stage, Step};
use super::{Answered, Attempt, Form, Read, Refused, Shared, Write};
use crate::call::digest::{HeadForm, RequestDigest};
use crate::call::payload::{self, Body, CollectError, Collected};
use crate::call::refusal::Refusal;
use crate::call::{Call, Control, Head, Oddity, Payload, Permit, Transport, effective_mode};
use crate::contract::class::{Class, Mode};
use crate::contract::json::{Doc, Edits, Kind};
use crate::contract::key::Place;
use crate::contract::operation::Operation;
use crate::contract::prefill::WaysBack;
use crate::contract::report::Report;
use crate::http::body::{BodyDoc, RequestDoc, essence};
use crate::http::encode;
use crate::policy::{Found, Group};

pub use tool::{UNPINNED, refused_tool};

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
        let groups = found.groups();
        let operations = || groups.iter().flat_map(|group| &group.operations);
        let mode_of_unmatched = effective_mode(self.shared.settings.mode, live.undeclared_mode());
        let mode = operations()
            .map(|served| effective_mode(self.shared.settings.mode, served.operation.mode))
            .max()
            .unwrap_or(mode_of_unmatched);
        let odd = match oddity {
            Some(oddity) if !is_allowed(&oddity, groups) => Some(oddity.into_refusal()),
            Some(_) | None => read_otherwise(&live.snapshot, &head.method, head.path()),
        };
        let would = match odd {
            None => None,
            Some(refusal) => {
                if mode == Mode::Enforce {
                    turn_away(&head, body).await;
                    return Err(known(&live, groups, refusal));
                }
                Some(refusal.code())
            }
        };
        let asked = Asked::of(&head);
        let class = asked.undeclared_class(&live.snapshot);
        let chosen_of = |doc: &RequestDoc| {
            let choice = asked.choose(groups, doc);
            Chosen::of(&choice, Transport::Http, class, &live, self.shared.settings.mode)
        };
        if !asked.needs_body(&live.snapshot, groups) {
            let params = parameters(groups, head.path());
            let doc = RequestDoc::new(&params, head.query(), &head.headers, BodyDoc::None);
            let chosen = chosen_of(&doc)?;
            if chosen.terms.class == Class::Read {
                let mut would = would;
                if groups.is_empty() && !body.is_in_memory() {
                    if mode == Mode::Enforce {
                        turn_away(&head, body).await;
                        return Err(chosen.refused(Refusal::UndeclaredBody));
                    }
                    would = would.or(Some(Refusal::UndeclaredBody.code()));
                }
                let payload = Payload::Http(body);
                return Ok(self.read(head, control, payload, permit, &live, chosen, would));
            }
        }
        let most = limit(groups, &self.shared);
        let collected = match Box::pin(self.collect(&head, body, most)).await {
            Ok(collected) => collected,
            Err(refusal) => return Err(known(&live, groups, refusal)),
        };
        let (body_doc, would) = match BodyDoc::read(&head.headers, collected.bytes()) {
            Ok(doc) => (doc, would),
            Err(refusal) if mode == Mode::Enforce => {
                return Err(known(&live, groups, refusal));
            }
            Err(refusal) => (BodyDoc::Opaque, would.or(Some(refusal.code()))),
        };
        let params = parameters(groups, head.path());
        let doc = RequestDoc::new(&params, head.query(), &head.headers, body_doc);
        let chosen = chosen_of(&doc)?;
        let doc = asked.as_read_by(groups, &chosen.served.operation, doc);
        let would = match asked.match_fault(groups, chosen.declared(), &doc) {
            Some(refusal) if mode == Mode::Enforce => return Err(chosen.refused(refusal)),
            fault => would.or(fault.map(|refusal| refusal.code())).or(chosen.would),
        };
        drop(params);
        if chosen.terms.class == Class::Read {
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
        if let Some(refusal) = write_fault(operation, &head, &doc, &mut control) {
            if chosen.mode == Mode::Enforce {
                return Err(chosen.refused(refusal));
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
        let Chosen { served, metrics, terms, mode, would: chosen_would } = chosen;
        // The draft form is under its own operation's gates.
        let back = match control.stage {
            true => WaysBack::default(),
            false => ways_back(&live.snapshot, &served.operation, form.request()),
        };
        let Terms { class, level } = terms.with(&back, &live.snapshot);
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
            back,
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

fn limit(groups: &[&Group], shared: &Shared) -> usize {
    let own = groups
        .iter()
        .flat_map(|group| &group.operations)
        .filter_map(|served| served.operation.max_body_bytes)
        .max();
    own.unwrap_or(shared.settings.limits.request_body_bytes)
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
