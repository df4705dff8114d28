//! The third step: the form that will be sent, the operation itself or its draft. Before `confirm`,
//! because what is confirmed is what is sent.
//!
//! A staged call is the call of the draft operation, under that operation's own gates; the caller's key
//! and confirmation carry over (ADR-0030 section 7). The call that was asked for stays known: the report
//! is of its effect, and the draft is promoted or discarded with its arguments. Staging an operation
//! without a draft form is refused and never falls through to the real effect, in observe mode too.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Uri, header};

use super::ask::Ask;
use super::back::{is_what_it_says, media_type};
use super::step::{Next, Stage, Step};
use super::{Answered, Form, Fresh, Refused, Shared, Staged, StagedFor};
use crate::call::payload::{self, Body};
use crate::call::refusal::Refusal;
use crate::call::{Head, effective_mode};
use crate::contract::json::Doc;
use crate::contract::operation::{Draft, Target};
use crate::contract::path::Scope;
use crate::contract::undo::{Resolved, resolve_draft};
use crate::http::body::{BodyDoc, RequestDoc};
use crate::mcp::headers::mirrored_value;
use crate::mcp::request::ToolCall;
use crate::mcp::schema;
use crate::policy::Served;

const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// See the module's page.
#[derive(Clone, Debug)]
pub struct StageForm {
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// Reads the upstream's tools, for the draft tool's schema.
    pub ask: Ask,
}

impl Step for StageForm {
    type In = Box<Fresh>;
    type Out = Box<Staged>;
    type Below = Answered;
    type Answer = Answered;

    async fn step<N: Stage<Box<Staged>, Answer = Answered>>(
        &self,
        fresh: Box<Fresh>,
        next: Next<'_, N>,
    ) -> Answered {
        let mut fresh = fresh;
        if fresh.write.control.stage {
            self.stage(&mut fresh).await?;
        }
        next.run(Box::new(Staged(*fresh))).await
    }
}

impl StageForm {
    /// Turns a call into the call of its draft.
    async fn stage(&self, fresh: &mut Fresh) -> Result<(), Box<Refused>> {
        let write = &fresh.write;
        let Some(draft) = &write.operation().draft else {
            return Err(write.refuse(Refusal::NoDraftForm));
        };
        let wanted = &draft.reference.operation;
        let known = write.live.snapshot.operation(wanted);
        let Some((served, metrics)) =
            known.and_then(|served| Some((Arc::clone(served), write.live.metrics(served)?)))
        else {
            let what = format!("its operation {wanted} is not served here");
            return Err(write.refuse(Refusal::DraftUnavailable(what)));
        };
        let scope = Scope { before: None, request: write.request(), response: None, key: None };
        let resolved = resolve_draft(draft, &scope)
            .map_err(|missing| write.refuse(Refusal::DraftArgumentMissing(missing.to_string())))?;
        is_what_it_says(&write.live.snapshot, &draft.reference, &resolved)
            .map_err(|other| write.refuse(Refusal::DraftUnavailable(other.to_string())))?;
        let built = match &write.form {
            Form::Http { .. } => self.http(&write.head, draft, &served, &resolved).await,
            Form::Mcp { call, .. } => self.tool(fresh, call, &resolved).await,
        };
        let (head, form) = built.map_err(|refusal| write.refuse(refusal))?;
        let write = &mut fresh.write;
        write.class = served.operation.class;
        write.level = served.operation.confirm;
        write.mode = effective_mode(self.shared.settings.mode, served.operation.mode);
        write.metrics = metrics;
        write.head = head;
        let asked = std::mem::replace(&mut write.form, form);
        let served = std::mem::replace(&mut write.served, served);
        write.staged_for = Some(Box::new(StagedFor { served, form: asked }));
        // A draft takes nothing back.
        fresh.undoes = None;
        Ok(())
    }

    async fn http(
        &self,
        head: &Head,
        draft: &Draft,
        served: &Served,
        resolved: &Resolved,
    ) -> Result<(Head, Form), Refusal> {
        let unavailable = |what: &str| Refusal::DraftUnavailable(what.to_owned());
        let Some((method, target)) = &resolved.http else {
            return Err(unavailable("its operation is a tool, which a plain call cannot reach"));
        };
        let uri: Uri = target.parse().map_err(|_| unavailable("its path is not a target"))?;
        let mut headers = head.headers.clone();
        for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::CONTENT_ENCODING] {
            headers.remove(name);
        }
        for (name, value) in &resolved.headers {
            headers.insert(name.clone(), value.clone());
        }
        if resolved.body.is_some() {
            let kind = HeaderValue::from_static(media_type(draft.reference.body_type));
            headers.insert(header::CONTENT_TYPE, kind);
        }
        let bytes = Bytes::from(resolved.body.clone().unwrap_or_default());
        let limits = &self.shared.settings.limits;
        let body = payload::collect(
            Body::full(bytes),
            limits.request_body_bytes,
            &self.shared.budget,
            limits.request_idle,
        )
        .await
        .map_err(|_| unavailable("its body is too long"))?;
        let document = BodyDoc::read(&headers, body.bytes())?;
        let params = match &served.operation.target {
            Target::Http { template, .. } => template.matches(uri.path()).unwrap_or_default(),
            Target::Tool { .. } => Vec::new(),
        };
        let doc = RequestDoc::new(&params, uri.query(), &headers, document);
        let head = Head { method: method.clone(), uri: uri.clone(), headers, ..head.clone() };
        Ok((head, Form::Http { doc, body }))
    }

    /// The draft's tool call: the call as it came with another name and other arguments, which the
    /// draft tool's live schema must take before anything runs.
    async fn tool(
        &self,
        fresh: &Fresh,
        call: &ToolCall,
        resolved: &Resolved,
    ) -> Result<(Head, Form), Refusal> {
        let write = &fresh.write;
        let unavailable = |what: &str| Refusal::DraftUnavailable(what.to_owned());
        let Some(name) = &resolved.tool else {
            return Err(unavailable("its operation is no tool, which a tool call cannot reach"));
        };
        let (head, principal) = (&write.head, &write.principal);
        let Some(tool) = self.ask.tool_named(head, call, principal, name).await else {
            return Err(unavailable("the upstream does not list its tool to this caller"));
        };
        // The answer is the draft tool's, and clients hold it against the schema of the tool that
        // they called (standards MCP-25).
        if name != call.name() {
            let called = self.ask.tool(head, call, principal).await;
            if called.is_some_and(|called| called.has_output_schema) {
                return Err(Refusal::DraftOutputSchema);
            }
        }
        let arguments = resolved.arguments_json();
        let document = Doc::parse(arguments.clone())
            .map_err(|_| unavailable("its arguments cannot be written"))?;
        if let Some(schema) = &tool.input_schema
            && let Some(fault) = schema::fault(schema.root(), document.root())
        {
            return Err(Refusal::DraftInputInvalid(fault));
        }
        let draft = call
            .redirected(name, &arguments)
            .ok_or_else(|| unavailable("its call cannot be written"))?;
        let mut head = head.clone();
        if head.headers.contains_key(NAME) {
            head.headers.insert(NAME, mirrored_value(name));
        }
        let mirrored: Vec<HeaderName> = head
            .headers
            .keys()
            .filter(|name| name.as_str().starts_with("mcp-param-"))
            .cloned()
            .collect();
        for name in mirrored {
            head.headers.remove(name);
        }
        Ok((head, Form::Mcp { call: Box::new(draft), ignored: Vec::new() }))
    }
}
