//! The answer of a tool call that comes on a stream of events.
//!
//! All bytes pass as they came and as soon as they came; the one event that answers the call is settled
//! and written anew with the report in it. A read's stream is rewritten where it is read, in the
//! connection's own future. A write's stream is pumped by its task into a bounded channel: if the agent
//! leaves, or takes nothing for a while ([`McpSettings::stall`](super::McpSettings::stall)), the pump reads
//! on to the answer or the deadline and discards the bytes, so that the entry is finished with what really
//! happened.
//!
//! A stream that ends without the answer gets one from us, saying that the outcome is unknown:
//! clients wait for ever otherwise. If the upstream gave an event an id, the client may come back
//! for the rest (2025-11-25), so nothing is added then. An event that was cut is none for a client,
//! and would swallow ours: it goes out only where nothing is added.
//!
//! An event above the limit of answers is not looked into. Of a read's stream it passes, with claims in
//! it renamed ([`renaming`](crate::mcp::renaming)); of a write's it is dropped, since it may hold an answer with a report that is not ours, and the
//! outcome is unknown unless the answer comes in another event. So it is with an event that may be
//! the answer and is no JSON of one meaning: a client with a laxer reader would take it for a
//! success of which nobody here knows.
//!
//! A response to another request than the stream's own has no place on it, and goes no further: a
//! client would take it for the answer to another call of its own. One whose id is only spelt
//! otherwise passes on a read's stream, since there are clients that read it; of a write, it would be
//! a success of which nobody here knows.
//!
//! An array of messages in an event (2025-03-26) is taken apart: each is treated as it would be
//! alone.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderValue, Response, header};
use http_body::{Body as _, Frame as BodyFrame, SizeHint};

use super::settle::Tail;
use crate::call::payload::{Body, BodyError, PolledFrame, Source};
use crate::contract::json::Doc;
use crate::mcp::answer::{Answer, Reports, Told};
use crate::mcp::claims::{Claim, claim};
use crate::mcp::jsonrpc::{Id, holds};
use crate::mcp::renaming::EventRenamer;
use crate::mcp::sse::{Frame, Splitter, event, may_have_id};

/// Frames that wait between the pump and the agent.
const CHANNEL: usize = 16;

/// What becomes of the event that holds an answer.
#[derive(Debug)]
pub enum Rewrite {
    /// It goes on with this message instead.
    Data(Bytes),
    /// It goes on as it came.
    Keep,
    /// It goes on with this report in it, and the upstream's own treated so.
    Report(String, Reports),
}

impl Rewrite {
    /// The message that goes on in the answer's place; `None`: the answer as it came.
    pub fn apply(self, answer: &Answer) -> Option<Bytes> {
        match self {
            Self::Data(data) => Some(data),
            Self::Keep => None,
            Self::Report(report, reports) => {
                let spliced = answer.with_report_as(&report, reports);
                if spliced.unplaced.is_none() {
                    return Some(spliced.body);
                }
                match claim(answer.body(), reports) {
                    Claim::Taken(message) => Some(message),
                    Claim::None | Claim::Unread => None,
                }
            }
        }
    }
}

/// How a stream ended that held no answer.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// A clock ended it.
    pub is_timeout: bool,
    /// An event had an id, so that the client may come back for the rest.
    pub has_event_id: bool,
    /// An event was dropped that may have been the answer: it was too large to be looked into.
    pub is_too_large: bool,
    /// One that may have been the answer is no JSON of one meaning; its place is taken by ours.
    pub is_unreadable: bool,
}

/// The end of a stream.
#[derive(Debug)]
pub struct End {
    /// What goes out last.
    pub bytes: Option<Bytes>,
    /// Nothing is missing for the client, however the stream ended: it has its answer, or ours.
    pub is_whole: bool,
}

/// What looks at the events of a stream.
pub trait Watch: Send + Sync + 'static {
    /// What goes out for a frame.
    fn frame(&mut self, frame: Frame) -> Bytes;

    /// Whether nothing more of the stream matters to the ledger.
    fn is_answered(&self) -> bool;

    /// The end of the stream, with what was left of an event, and whether a clock ended it.
    fn end(&mut self, cut: Option<Frame>, is_timeout: bool) -> End;
}

/// What is done with an answer.
pub type AtAnswer = Box<dyn FnOnce(&Answer, bool) -> Rewrite + Send + Sync>;

/// What is done with the one answer of a call's stream.
pub struct Watched {
    /// The id of the call.
    pub id: Id,
    /// What becomes of reports that the upstream puts into other messages.
    pub reports: Reports,
    /// Settles the answer; the flag says whether the stream has event ids.
    pub at_answer: AtAnswer,
    /// Settles a stream that ended without the answer, and gives our message if one is called for.
    pub at_end: Box<dyn FnOnce(Ended) -> Option<String> + Send + Sync>,
}

/// What becomes of an event that may be the answer and cannot be read: it is too long, or no JSON
/// that has one meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    Drop,
    Pass,
}

struct OneAnswer {
    id: Id,
    reports: Reports,
    watched: Option<Watched>,
    unread: Unread,
    has_event_id: bool,
    /// An event that may have been the answer passed, and could not be read.
    has_passed_unread: bool,
    /// One was dropped.
    has_dropped: bool,
    /// One was dropped whose id is another spelling of the call's.
    has_near: bool,
    /// Of what passes and is not looked into.
    renamer: Option<EventRenamer>,
}

/// Renames what claims a report in events that are not looked into; `None` where claims stay.
pub fn renamer(reports: Reports) -> Option<EventRenamer> {
    (reports != Reports::Trust).then(EventRenamer::default)
}

impl OneAnswer {
    fn new(watched: Watched, unread: Unread) -> Self {
        let renamer = renamer(watched.reports);
        Self {
            id: watched.id.clone(),
            reports: watched.reports,
            watched: Some(watched),
            unread,
            has_event_id: false,
            has_passed_unread: false,
            has_dropped: false,
            has_near: false,
            renamer,
        }
    }

    fn message(&mut self, data: &Bytes) -> Goes {
        // Most messages are notifications, without an id.
        let told = if may_have_id(data) { Told::by(data, &self.id) } else { Told::Other };
        match (told, self.unread) {
            (Told::Answer(answer), _) => match self.watched.take() {
                // A call has one answer; another one under its id is nobody's.
                None => Goes::Nowhere,
                Some(watched) => {
                    let rewrite = (watched.at_answer)(&answer, self.has_event_id);
                    rewrite.apply(&answer).map_or(Goes::AsItCame, Goes::Anew)
                }
            },
            (Told::Stray { is_near: true }, Unread::Pass) => {
                self.has_passed_unread = true;
                Goes::unclaimed(data, self.reports)
            }
            (Told::Stray { is_near }, _) => {
                self.has_near = self.has_near || is_near;
                Goes::Nowhere
            }
            (Told::Other, _) => Goes::unclaimed(data, self.reports),
        }
    }

    /// A part of an event that is too long.
    fn unseen(&mut self, frame: Frame) -> Bytes {
        let Some(renamer) = &mut self.renamer else {
            self.has_passed_unread = true;
            return frame.into_raw();
        };
        let was_torn = renamer.is_torn();
        let goes = renamer.push(frame.raw());
        // Nobody reads one that is torn as an answer.
        self.has_passed_unread = !(renamer.is_torn() || was_torn);
        goes
    }

    fn ended(&self, is_timeout: bool) -> Ended {
        Ended {
            is_timeout,
            has_event_id: self.has_event_id,
            is_too_large: self.has_dropped,
            is_unreadable: self.has_near,
        }
    }
}

/// Whether data that is no strict JSON may be read as an answer by a laxer reader.
fn may_be_an_answer(data: &[u8]) -> bool {
    names(data, "result") || names(data, "error")
}

/// Whether a text may name this member, spelt plainly or with escapes.
pub fn names(data: &[u8], name: &str) -> bool {
    holds(data, name) || holds(data, "\\u00")
}

impl Watch for OneAnswer {
    fn frame(&mut self, frame: Frame) -> Bytes {
        if frame.is_unseen() {
            match self.unread {
                Unread::Drop => {
                    self.has_dropped = true;
                    return Bytes::new();
                }
                Unread::Pass => return self.unseen(frame),
            }
        }
        self.has_event_id = self.has_event_id || frame.event_id().is_some();
        let Some(data) = frame.data() else { return frame.into_raw() };
        if may_have_id(&data) && may_be_an_answer(&data) && Doc::parse(data.clone()).is_err() {
            if self.unread == Unread::Pass && !names(&data, "effect") {
                self.has_passed_unread = true;
                return frame.into_raw();
            }
            // A laxer reader would take it for the answer, and a report in it for ours.
            let ended = Ended { is_unreadable: true, has_event_id: false, ..self.ended(false) };
            let ours = self.watched.take().and_then(|watched| (watched.at_end)(ended));
            return ours.map_or_else(Bytes::new, |message| frame.with_data(&message));
        }
        each_message(frame, &data, |message| self.message(message))
    }

    fn is_answered(&self) -> bool {
        self.watched.is_none()
    }

    fn end(&mut self, cut: Option<Frame>, is_timeout: bool) -> End {
        // Complete but for its blank line, the answer is one for the ledger, and is made one for
        // the client.
        let cut = match cut {
            Some(frame) if frame.answer_to(&self.id).is_some() && self.watched.is_some() => {
                return End { bytes: Some(self.frame(frame)), is_whole: true };
            }
            other => other,
        };
        let was_answered = self.is_answered();
        let ended = self.ended(is_timeout);
        let ours = self.watched.take().and_then(|watched| (watched.at_end)(ended));
        // Two answers under one id would contradict each other.
        match ours.filter(|_| !self.has_passed_unread) {
            Some(message) => End { bytes: Some(event(&message)), is_whole: true },
            None => {
                let cut = cut.map(|frame| unclaimed(frame, self.reports));
                End { bytes: cut, is_whole: was_answered }
            }
        }
    }
}

/// What becomes of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goes {
    /// It goes on as this.
    Anew(Bytes),
    /// It goes on.
    AsItCame,
    /// It does not go on.
    Nowhere,
}

impl Goes {
    /// A message that answers no call, without a report that it claims (standards MCP-39).
    pub fn unclaimed(message: &Bytes, reports: Reports) -> Self {
        match claim(message, reports) {
            Claim::None => Self::AsItCame,
            Claim::Taken(message) => Self::Anew(message),
            Claim::Unread => Self::Nowhere,
        }
    }
}

/// A frame with what becomes of its message, or of each in its batch (2025-03-26).
pub fn each_message(frame: Frame, data: &Bytes, mut becomes: impl FnMut(&Bytes) -> Goes) -> Bytes {
    let batch =
        data.trim_ascii_start().starts_with(b"[").then(|| Doc::parse(data.clone()).ok()).flatten();
    let Some(batch) = batch else {
        return match becomes(data) {
            Goes::Anew(message) => rewritten(frame, Some(message)),
            Goes::AsItCame => frame.into_raw(),
            Goes::Nowhere => frame.without_data(),
        };
    };
    let mut is_changed = false;
    let mut kept = Vec::new();
    for message in batch.root().elements() {
        let message = Bytes::copy_from_slice(message.raw().as_bytes());
        match becomes(&message) {
            Goes::AsItCame => kept.push(message),
            Goes::Anew(other) => {
                is_changed = true;
                kept.push(other);
            }
            Goes::Nowhere => is_changed = true,
        }
    }
    match (is_changed, kept.is_empty()) {
        (false, _) => frame.into_raw(),
        (true, true) => frame.without_data(),
        (true, false) => {
            let batch = [b"[", kept.join(&b',').as_slice(), b"]"].concat();
            rewritten(frame, Some(batch.into()))
        }
    }
}

/// A frame that answers no call, without reports that it claims.
fn unclaimed(frame: Frame, reports: Reports) -> Bytes {
    match frame.data() {
        None => frame.into_raw(),
        Some(data) => each_message(frame, &data, |message| Goes::unclaimed(message, reports)),
    }
}

/// A frame with another message in it.
fn rewritten(frame: Frame, message: Option<Bytes>) -> Bytes {
    match message.as_deref().map(std::str::from_utf8) {
        Some(Ok(text)) => frame.with_data(text),
        Some(Err(_)) | None => frame.into_raw(),
    }
}

/// The rewriting of one stream.
struct Rewriter {
    splitter: Splitter,
    watch: Box<dyn Watch>,
}

impl Rewriter {
    /// A rewriter that looks into events up to `limit` bytes.
    fn new(watch: Box<dyn Watch>, limit: usize) -> Self {
        Self { splitter: Splitter::with_limit(limit), watch }
    }

    fn is_answered(&self) -> bool {
        self.watch.is_answered()
    }

    /// Takes bytes, gives what goes out for them.
    fn push(&mut self, bytes: Bytes, out: &mut VecDeque<Bytes>) {
        self.splitter.push(bytes);
        while let Some(frame) = self.splitter.next_frame() {
            let piece = self.watch.frame(frame);
            if !piece.is_empty() {
                out.push_back(piece);
            }
        }
    }

    /// The end of the stream; `error` is how it broke. Gives whether the stream is whole for the
    /// client in spite of an error: it has its answer, or ours in its place.
    fn end(&mut self, error: Option<&BodyError>, out: &mut VecDeque<Bytes>) -> bool {
        let splitter = std::mem::take(&mut self.splitter);
        let is_timeout = matches!(error, Some(BodyError::Idle | BodyError::Total));
        let end = self.watch.end(splitter.finish(), is_timeout);
        out.extend(end.bytes);
        end.is_whole
    }
}

fn stream_head(mut parts: Parts) -> Parts {
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    parts
}

/// A stream with one answer that is rewritten where it is read, until `stop` ends it. Events are
/// looked into up to `limit` bytes.
pub fn read_answer(
    parts: Parts,
    body: Body,
    watched: Watched,
    limit: usize,
    stop: Stop,
) -> Response<Body> {
    let watch = OneAnswer::new(watched, Unread::Pass);
    watched_stream(stream_head(parts), body, Box::new(watch), limit, Some(stop))
}

/// A stream that passes as it came, until `stop` ends it: while nothing comes, and with an end that is
/// no break, so that a client of events may come back to another replica.
pub fn until(parts: Parts, body: Body, stop: Stop) -> Response<Body> {
    let source = Until { inner: Some(body), stop };
    Response::from_parts(parts, Body::source(Box::new(source)))
}

struct Until {
    inner: Option<Body>,
    stop: Stop,
}

impl Source for Until {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(inner).poll_frame(cx);
        if polled.is_pending() && self.stop.as_mut().poll(cx).is_ready() {
            self.inner = None;
            return Poll::Ready(None);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }

    fn finish(self: Box<Self>) {}
}

/// What ends a stream that has no end of its own.
pub type Stop = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// A stream whose events are looked at where they are read, until it ends or is stopped.
pub fn watched_stream(
    parts: Parts,
    body: Body,
    watch: Box<dyn Watch>,
    limit: usize,
    stop: Option<Stop>,
) -> Response<Body> {
    let source = Rewritten {
        stop,
        inner: Some(body),
        rewriter: Rewriter::new(watch, limit),
        ready: VecDeque::new(),
        failed: None,
    };
    Response::from_parts(parts, Body::source(Box::new(source)))
}

/// A stream that is rewritten as it is read.
struct Rewritten {
    inner: Option<Body>,
    stop: Option<Stop>,
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
            let polled = Pin::new(inner).poll_frame(cx);
            if let (Poll::Pending, Some(stop)) = (&polled, &mut self.stop)
                && stop.as_mut().poll(cx).is_ready()
            {
                // Between two events: a client sees a stream that ended and may open another.
                self.inner = None;
                self.rewriter.end(None, &mut self.ready);
                continue;
            }
            match ready!(polled) {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.rewriter.push(bytes, &mut self.ready);
                    }
                }
                Some(Err(error)) => {
                    self.inner = None;
                    if !self.rewriter.end(Some(&error), &mut self.ready) {
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
/// `stall` is how long it waits for an agent; `stop` ends the pump before the answer came.
pub fn write_answer(
    parts: Parts,
    body: Body,
    watched: Watched,
    limit: usize,
    stall: Duration,
    mut stop: Stop,
) -> (Response<Body>, Tail) {
    let (sender, receiver) = Body::channel(CHANNEL);
    let pump = async move {
        let mut body = body;
        let watch = OneAnswer::new(watched, Unread::Drop);
        let mut rewriter = Rewriter::new(Box::new(watch), limit);
        let mut out = VecDeque::new();
        let mut sender = Some(sender);
        loop {
            // Lost by a stop: what the upstream would still have said.
            let frame = tokio::select! {
                biased;
                frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)) => frame,
                () = stop.as_mut() => None,
            };
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
                let is_there = match tokio::time::timeout(stall, open.reserve()).await {
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
