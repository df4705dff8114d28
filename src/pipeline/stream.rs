//! The answer of a tool call that comes on a stream of events.
//!
//! All bytes pass as they came and as soon as they came; the one event that answers the call is settled
//! and written anew with the report in it. A read's stream is rewritten where it is read, in the
//! connection's own future. A write's stream is pumped by its task into a bounded channel: if the agent
//! leaves, or is slower than 30 s, the pump reads on to the answer or the deadline and discards the
//! bytes, so that the entry is finished with what really happened.
//!
//! A stream that ends without the answer gets one from us, saying that the outcome is unknown: clients
//! wait for ever otherwise. If the upstream gave an event an id, the client may come back for the rest
//! (2025-11-25), so nothing is added then.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderValue, Response, header};
use http_body::{Body as _, Frame as BodyFrame, SizeHint};

use super::settle::Tail;
use crate::call::payload::{Body, BodyError, PolledFrame, Source};
use crate::mcp::answer::Answer;
use crate::mcp::jsonrpc::Id;
use crate::mcp::sse::{Frame, Splitter, event};

/// Frames that wait between the pump and the agent.
const CHANNEL: usize = 16;

/// How long the pump waits for an agent that takes nothing.
const STALL: Duration = Duration::from_secs(30);

/// What is done with a write's stream.
pub struct Watched {
    /// The id of the call.
    pub id: Id,
    /// Settles the answer and gives the report's JSON.
    pub at_answer: Box<dyn FnOnce(&Answer) -> String + Send + Sync>,
    /// Settles a stream that ended without the answer (whether by a clock) and gives our message.
    pub at_end: Box<dyn FnOnce(bool) -> String + Send + Sync>,
}

/// The rewriting of one stream.
struct Rewriter {
    splitter: Splitter,
    watched: Option<Watched>,
    has_event_id: bool,
}

impl Rewriter {
    fn new(watched: Watched) -> Self {
        Self { splitter: Splitter::default(), watched: Some(watched), has_event_id: false }
    }

    fn is_answered(&self) -> bool {
        self.watched.is_none()
    }

    /// Takes bytes, gives what goes out for them.
    fn push(&mut self, bytes: Bytes, out: &mut VecDeque<Bytes>) {
        self.splitter.push(bytes);
        while let Some(frame) = self.splitter.next_frame() {
            let piece = self.frame(frame);
            out.push_back(piece);
        }
    }

    /// The end of the stream; `error` is how it broke.
    fn end(&mut self, error: Option<&BodyError>, out: &mut VecDeque<Bytes>) {
        let splitter = std::mem::take(&mut self.splitter);
        if let Some(frame) = splitter.finish() {
            let piece = self.frame(frame);
            out.push_back(piece);
        }
        if let Some(watched) = self.watched.take() {
            let is_timeout = matches!(error, Some(BodyError::Idle | BodyError::Total));
            let message = (watched.at_end)(is_timeout);
            if !self.has_event_id {
                out.push_back(event(&message));
            }
        }
    }

    fn frame(&mut self, frame: Frame) -> Bytes {
        self.has_event_id = self.has_event_id || frame.event_id().is_some();
        let answer = self.watched.as_ref().and_then(|watched| frame.answer_to(&watched.id));
        match (answer, self.watched.take()) {
            (Some(answer), Some(watched)) => {
                let report = (watched.at_answer)(&answer);
                let spliced = answer.with_report(&report);
                match std::str::from_utf8(&spliced.body) {
                    Ok(text) if spliced.unplaced.is_none() => frame.with_data(text),
                    Ok(_) | Err(_) => frame.into_raw(),
                }
            }
            (_, watched) => {
                self.watched = watched;
                frame.into_raw()
            }
        }
    }
}

fn stream_head(mut parts: Parts) -> Parts {
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    parts
}

/// A read's stream, rewritten where it is read.
pub fn read_answer(
    parts: Parts,
    body: Body,
    id: Id,
    report: String,
    lost: String,
) -> Response<Body> {
    let watched =
        Watched { id, at_answer: Box::new(move |_| report), at_end: Box::new(move |_| lost) };
    let source = Rewritten {
        inner: Some(body),
        rewriter: Rewriter::new(watched),
        ready: VecDeque::new(),
        failed: None,
    };
    Response::from_parts(stream_head(parts), Body::source(Box::new(source)))
}

/// A stream that is rewritten as it is read.
struct Rewritten {
    inner: Option<Body>,
    rewriter: Rewriter,
    ready: VecDeque<Bytes>,
    failed: Option<BodyError>,
}

impl Source for Rewritten {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(BodyFrame::data(bytes))));
            }
            if let Some(error) = self.failed.take() {
                return Poll::Ready(Some(Err(error)));
            }
            let Some(inner) = &mut self.inner else {
                return Poll::Ready(None);
            };
            match ready!(Pin::new(inner).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.rewriter.push(bytes, &mut self.ready);
                    }
                }
                Some(Err(error)) => {
                    self.inner = None;
                    let was_answered = self.rewriter.is_answered();
                    self.rewriter.end(Some(&error), &mut self.ready);
                    // With the answer, or ours in its place, the stream is whole for the client.
                    if !was_answered && self.rewriter.has_event_id {
                        self.failed = Some(error);
                    }
                }
                None => {
                    self.inner = None;
                    self.rewriter.end(None, &mut self.ready);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_none() && self.ready.is_empty() && self.failed.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }

    fn finish(self: Box<Self>) {}
}

/// A write's stream: what the agent reads, and the pump that the write's task runs.
pub fn write_answer(parts: Parts, body: Body, watched: Watched) -> (Response<Body>, Tail) {
    let (sender, receiver) = Body::channel(CHANNEL);
    let pump = async move {
        let mut body = body;
        let mut rewriter = Rewriter::new(watched);
        let mut out = VecDeque::new();
        let mut sender = Some(sender);
        loop {
            let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
            let is_over = match frame {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        rewriter.push(bytes, &mut out);
                    }
                    false
                }
                Some(Err(error)) => {
                    rewriter.end(Some(&error), &mut out);
                    true
                }
                None => {
                    rewriter.end(None, &mut out);
                    true
                }
            };
            if let Some(bytes) = joined(&mut out)
                && let Some(open) = &sender
            {
                // Dropping the wait loses nothing but the agent, who is taken for gone.
                let is_there = match tokio::time::timeout(STALL, open.reserve()).await {
                    Ok(Some(slot)) => {
                        slot.send(bytes);
                        true
                    }
                    Ok(None) | Err(_) => false,
                };
                if !is_there {
                    sender = None;
                }
            }
            if sender.as_ref().is_some_and(crate::call::payload::BodySender::is_closed) {
                sender = None;
            }
            if is_over {
                break;
            }
            if sender.is_none() && rewriter.is_answered() {
                return;
            }
        }
        if let Some(open) = sender {
            open.finish();
        }
    };
    (Response::from_parts(stream_head(parts), receiver), Box::pin(pump))
}

/// All that is ready, in one piece; copied only where there is more than one.
fn joined(out: &mut VecDeque<Bytes>) -> Option<Bytes> {
    let first = out.pop_front()?;
    if out.is_empty() {
        return Some(first);
    }
    let mut all = BytesMut::from(first);
    for bytes in out.drain(..) {
        all.extend_from_slice(&bytes);
    }
    Some(all.freeze())
}
