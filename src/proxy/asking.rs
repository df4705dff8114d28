//! A call of a session is held while its client is asked (2025-06-18 and 2025-11-25, standards MCP-36).
//!
//! The answer to the call begins at once as a stream; on it goes a question of ours, which the client
//! answers with a POST of its own. Then the call is made, or not, and its answer ends the stream. While
//! it is held nothing is sent: a client that leaves has called nothing. Comments keep the stream open
//! where nothing else goes on it. The status of the stream is out
//! by then, so what the upstream answers with another status comes as a JSON-RPC error.
//!
//! Limits: [`McpSettings::question`](crate::pipeline::McpSettings::question), after which the
//! refusal that a client gets which cannot be asked ends the stream; so it does when the session or
//! the process ends first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, header};

use super::{Asks, Edge, Voice};
use crate::call::payload::{Body, BodySender, Collected, Prefix, collect_prefix};
use crate::call::refusal::Refusal;
use crate::call::{Call, Head};
use crate::contract::class::Class;
use crate::contract::json::Doc;
use crate::contract::key::EntryId;
use crate::mcp::Era;
use crate::mcp::jsonrpc::{Id, code};
use crate::mcp::questions::{Modes, Outcome};
use crate::mcp::reply;
use crate::mcp::request::{Heard, ToolCall};
use crate::mcp::sessions::{SESSION, SessionKey};
use crate::mcp::sse::event;
use crate::pipeline::rounds::Question;
use crate::pipeline::settle::is_event_stream;
use crate::pipeline::step::Stage;
use crate::pipeline::{Answered, Refused, Reply, fill_random};
use crate::server::{Delivery, Peer};

/// Messages that wait between a held call and its client.
const CHANNEL: usize = 16;

/// The revision whose questions name no mode.
const FORM_ONLY: &[u8] = b"2025-06-18";

/// What no client takes for an event.
const COMMENT: Bytes = Bytes::from_static(b": held\n\n");

/// A call that can be held, as it came.
pub(super) struct Held {
    pub(super) call: Call,
    pub(super) id: Id,
    pub(super) session: SessionKey,
}

/// The entry of a held call, once it has one, and whether its answer comes elsewhere.
type Made = OnceLock<(EntryId, Option<Arc<AtomicBool>>)>;

impl<P: Stage<Box<Call>, Answer = Answered>> Edge<P> {
    /// The session of a call whose client can be asked while it is held.
    pub(super) fn may_hold(&self, head: &Head, call: &ToolCall) -> Option<SessionKey> {
        let shared = &self.cx.shared;
        if call.era() != Era::Legacy || !head.headers.contains_key(SESSION) {
            return None;
        }
        let takes_events =
            head.headers.get_all(header::ACCEPT).iter().any(|accept| {
                accept.to_str().is_ok_and(|accept| accept.contains("text/event-stream"))
            });
        let live = shared.policies.peek();
        let is_read = live.snapshot.find_tool(call.name()).is_some_and(|group| {
            group.operations.iter().all(|served| served.operation.class == Class::Read)
        });
        if !takes_events || is_read {
            return None;
        }
        let principal = shared.principal(head);
        let session = shared.session(head, &principal);
        shared.mcp.sessions.elicitation(&session).form.then_some(session)
    }

    /// Answers with a stream, asks on it, and makes the call if the answer is yes.
    pub(super) fn hold(
        self: &Arc<Self>,
        held: Held,
        question: Question,
        refused: Box<Refused>,
        body: Collected,
        peer: Arc<Peer>,
    ) -> Response<Body> {
        let (sender, stream) = Body::channel(CHANNEL);
        let made: Arc<Made> = Arc::default();
        let this = Arc::clone(self);
        let known = Arc::clone(&made);
        let permit = held.call.permit.clone();
        let _detached = self.cx.shared.tasks.spawn("held call", async move {
            this.held(held, question, refused, &sender, &known).await;
            sender.finish();
            // The call's body counts in the budget for as long as the call is held.
            drop(body);
        });
        let ledger = self.cx.shared.ledger.clone();
        let stream = stream.hold(permit);
        let stream = peer.delivery.follow(stream, move |delivery| {
            if let (Delivery::Delivered, Some((entry, elsewhere))) = (delivery, made.get()) {
                let is_in_it =
                    elsewhere.as_ref().is_none_or(|elsewhere| !elsewhere.load(Ordering::Acquire));
                if is_in_it {
                    ledger.delivered(*entry);
                }
            }
        });
        let mut response = Response::new(stream);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    async fn held(
        &self,
        held: Held,
        question: Question,
        refused: Box<Refused>,
        sender: &BodySender,
        made: &Made,
    ) {
        let Held { mut call, id, session } = held;
        let asked = self.asked(&call, &id, session, &question, sender);
        let outcome = match self.kept_open(sender, asked).await {
            Some(outcome) => outcome,
            // The client has left or has cancelled the call, and nothing was sent.
            None => return,
        };
        match outcome {
            Outcome::Heard(Heard::Accepted) => {
                call.control.confirm = Some(question.answer);
                let answered = self.pipeline.run(Box::new(call));
                match self.kept_open(sender, answered).await {
                    Ok(reply) => self.copied(reply, &id, sender, made).await,
                    Err(refused) => self.refused(refused, id, sender).await,
                }
            }
            Outcome::Heard(Heard::Declined) => {
                let refusal = Refusal::ConfirmationDeclined;
                let report = refused.report.map(|mut report| {
                    report.refused = Some(refusal.code().into());
                    report
                });
                let refused = Refused { refusal, report, ..*refused };
                self.refused(Box::new(refused), id, sender).await;
            }
            Outcome::Unavailable => self.refused(refused, id, sender).await,
        }
    }

    /// Waits for some work while comments go out, between events.
    async fn kept_open<T>(&self, sender: &BodySender, work: impl Future<Output = T>) -> T {
        let every = self.cx.shared.settings.mcp.keep_alive;
        let mut work = std::pin::pin!(work);
        loop {
            let rest = async {
                tokio::time::sleep(every).await;
                sender.reserve().await
            };
            tokio::select! {
                done = &mut work => return done,
                // Nothing is lost with it: a place in the stream that is not used is free again.
                slot = rest => match slot {
                    Some(slot) => slot.send(COMMENT),
                    // Whoever has left is told no more; the work ends by itself.
                    None => return work.await,
                },
            }
        }
    }

    /// Asks, and waits for an answer or the end of the time; `None` if the client leaves or
    /// cancels the call.
    async fn asked(
        &self,
        call: &Call,
        id: &Id,
        session: SessionKey,
        question: &Question,
        sender: &BodySender,
    ) -> Option<Outcome> {
        let shared = &self.cx.shared;
        let mut random = [0; 16];
        fill_random(&mut random);
        // A client that cancels the call takes it back before it was made.
        let flight = shared.mcp.flights.begin(session.clone(), id.clone(), Arc::default());
        let Some(mut asked) = shared.mcp.questions.ask(session, shared.sealer.question(random))
        else {
            return Some(Outcome::Unavailable);
        };
        let version = call.head.headers.get("mcp-protocol-version");
        let modes = match version.map(HeaderValue::as_bytes) {
            Some(FORM_ONLY) => Modes::FormOnly,
            Some(_) | None => Modes::Named,
        };
        let request = asked.request(&question.message, modes);
        sender.reserve().await?.send(event(&request));
        tokio::select! {
            biased;
            // Dropped by another branch: the client has left or cancelled, or the process ends, and
            // its answer matters no more.
            heard = tokio::time::timeout(shared.settings.mcp.question, asked.answer()) => {
                Some(heard.ok().flatten().unwrap_or(Outcome::Unavailable))
            }
            () = sender.closed() => None,
            () = flight.over(Duration::ZERO) => None,
            () = shared.tasks.hurried() => Some(Outcome::Unavailable),
        }
    }

    async fn refused(&self, refused: Box<Refused>, id: Id, sender: &BodySender) {
        let response = self.refuse(refused, Voice::Mcp(id.clone(), Era::Legacy, Asks::No));
        self.copied_body(response, &id, sender).await;
    }

    /// Puts the answer of the call on its stream.
    async fn copied(&self, reply: Reply, id: &Id, sender: &BodySender, made: &Made) {
        let Reply { response, entry, decision, metrics, elsewhere, .. } = reply;
        metrics.requests.count(decision);
        if let Some(entry) = entry {
            let _is_first = made.set((entry, elsewhere));
        }
        self.copied_body(response, id, sender).await;
    }

    async fn copied_body(&self, response: Response<Body>, id: &Id, sender: &BodySender) {
        let shared = &self.cx.shared;
        let (parts, mut body) = response.into_parts();
        if is_event_stream(&parts.headers) {
            use http_body::Body as _;
            loop {
                let frame =
                    std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await;
                let Some(Ok(frame)) = frame else { return };
                let Ok(bytes) = frame.into_data() else { continue };
                let Some(slot) = sender.reserve().await else { return };
                slot.send(bytes);
            }
        }
        let limit = shared.settings.limits.response_body_bytes;
        let text = match collect_prefix(body, limit, &shared.budget, None).await {
            Prefix::Whole(collected) => message_of(collected.bytes()),
            Prefix::Partial { .. } => None,
        };
        let text = text.unwrap_or_else(|| {
            let status = parts.status.as_u16();
            let text = format!(
                "the upstream answered the confirmed call with status {status} and no message that \
                 can be shown here"
            );
            reply::error(id, code::INTERNAL_ERROR, &text, None)
        });
        if let Some(slot) = sender.reserve().await {
            slot.send(event(&text));
        }
    }
}

/// A body that is one JSON-RPC message.
fn message_of(bytes: &Bytes) -> Option<String> {
    let doc = Doc::parse(bytes.clone()).ok()?;
    doc.root().get("jsonrpc")?;
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}
