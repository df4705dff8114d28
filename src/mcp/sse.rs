//! Server-sent events as bytes: split into frames, and one frame's data replaced.
//!
//! A stream of events passes through us as it came (standards MCP-18, MCP-19, H-50). [`Splitter`]
//! cuts it where a client dispatches, at blank lines, under any chunking, and the frames put
//! together are the input again, byte for byte. Only the frame that holds the answer is written
//! anew, by [`Frame::with_data`]: its `id`, `event`, `retry` and comments stay as they are and in
//! place.
//!
//! A frame goes out as soon as its blank line has come. Two things go out sooner, so that nothing
//! is held that a client waits for: a comment line before any field, and the LF of a CRLF that was
//! cut in two after an event.
//!
//! Limits: a frame is held up to a limit ([`MAX_FRAME`] by default); of a longer one the bytes go
//! out unseen up to its blank line ([`Frame::is_unseen`]), and the next frame is looked into again.
//! Nothing is decoded: what is not UTF-8 passes, and is refused where its data is read as JSON.

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

use super::answer::Answer;
use super::jsonrpc::{Id, holds};
use super::reply::single_line;

/// The longest frame that is looked into, in bytes.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const CRLF: &[u8] = b"\r\n";
const LF: &[u8] = b"\n";

/// Cuts a stream of bytes into frames.
///
/// ```text
/// splitter.push(chunk);
/// while let Some(frame) = splitter.next_frame() { … }
/// … at the end of the stream:
/// if let Some(frame) = splitter.finish() { … }
/// ```
#[derive(Debug)]
pub struct Splitter {
    held: BytesMut,
    /// Where the search for a line end goes on.
    scanned: usize,
    /// Where the line begins that is being read.
    line: usize,
    /// The frame has no field so far.
    is_comment: bool,
    is_first: bool,
    /// Inside a frame that is too long.
    passing: Option<Passing>,
    limit: usize,
}

/// How far in a line the search is for the end of a frame that is too long to be held.
#[derive(Clone, Copy, Debug)]
struct Passing {
    /// The line has no byte so far, so that its end is the frame's.
    is_empty: bool,
    /// The last byte was a CR: a LF behind it ends nothing.
    is_after_cr: bool,
}

impl Default for Splitter {
    fn default() -> Self {
        Self::with_limit(MAX_FRAME)
    }
}

impl Splitter {
    /// A splitter at the start of a stream, for frames up to `limit` bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self {
            held: BytesMut::new(),
            scanned: 0,
            line: 0,
            is_comment: true,
            is_first: true,
            passing: None,
            limit,
        }
    }

    /// Takes the next bytes of the stream. They are copied once at most.
    pub fn push(&mut self, chunk: Bytes) {
        if self.held.is_empty() {
            self.held = BytesMut::from(chunk);
        } else {
            self.held.extend_from_slice(&chunk);
        }
    }

    /// The next frame, as soon as it is whole; `None` until more bytes have come.
    pub fn next_frame(&mut self) -> Option<Frame> {
        if self.held.is_empty() {
            return None;
        }
        if let Some(at) = self.passing {
            return Some(self.pass(at, 0));
        }
        loop {
            let rest = self.held.get(self.scanned..).unwrap_or_default();
            let Some(offset) = memchr2(b'\n', b'\r', rest) else {
                self.scanned = self.held.len();
                return self.is_over(self.held.len()).then(|| self.give_up());
            };
            let at = self.scanned.saturating_add(offset);
            let mut end = at.saturating_add(1);
            match self.held.get(at) {
                Some(b'\r') if self.held.get(end) == Some(&b'\n') => end = end.saturating_add(1),
                // The CR of this LF ended a line already. After a CR that ended a frame, the LF is
                // an empty line, and goes out by itself.
                Some(b'\n') if at == self.line && self.is_after_cr(at) => {
                    (self.scanned, self.line) = (end, end);
                    continue;
                }
                Some(_) | None => {}
            }
            if self.is_over(end) {
                return Some(self.give_up());
            }
            let mut line = self.held.get(self.line..at).unwrap_or_default();
            if self.is_first && self.line == 0 {
                line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
            }
            if line.is_empty() || (self.is_comment && line.starts_with(b":")) {
                return Some(self.take(end, Extent::Whole));
            }
            self.is_comment = false;
            (self.scanned, self.line) = (end, end);
        }
    }

    /// The rest at the end of the stream, once [`Splitter::next_frame`] gives nothing more: an
    /// event without its blank line, which no client dispatches.
    pub fn finish(mut self) -> Option<Frame> {
        let extent = if self.passing.is_some() { Extent::Unseen } else { Extent::Cut };
        let length = self.held.len();
        (length > 0).then(|| self.take(length, extent))
    }

    fn is_after_cr(&self, at: usize) -> bool {
        at.checked_sub(1).and_then(|before| self.held.get(before)) == Some(&b'\r')
    }

    fn is_over(&self, length: usize) -> bool {
        length > self.limit
    }

    /// The frame is too long to be held: what there is of it.
    fn give_up(&mut self) -> Frame {
        let is_after_cr = self.is_after_cr(self.line);
        self.pass(Passing { is_empty: true, is_after_cr }, self.line)
    }

    /// The bytes of a long frame, up to its blank line if that has come. The search goes on at
    /// `from`.
    fn pass(&mut self, mut at: Passing, from: usize) -> Frame {
        let mut end = None;
        for (index, byte) in self.held.iter().enumerate().skip(from) {
            match byte {
                b'\n' if at.is_after_cr => at.is_after_cr = false,
                b'\n' | b'\r' if at.is_empty => {
                    end = Some(index.saturating_add(1));
                    break;
                }
                b'\n' | b'\r' => at = Passing { is_empty: true, is_after_cr: *byte == b'\r' },
                _ => at = Passing { is_empty: false, is_after_cr: false },
            }
        }
        self.passing = if end.is_none() { Some(at) } else { None };
        self.take(end.unwrap_or(self.held.len()), Extent::Unseen)
    }

    fn take(&mut self, length: usize, extent: Extent) -> Frame {
        let raw = self.held.split_to(length).freeze();
        let has_mark = self.is_first && raw.starts_with(BYTE_ORDER_MARK);
        self.is_first = false;
        self.is_comment = true;
        (self.scanned, self.line) = (0, 0);
        Frame { raw, start: if has_mark { BYTE_ORDER_MARK.len() } else { 0 }, extent }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// The stream ended before the blank line.
    Cut,
    /// Bytes of a stream that is not looked into.
    Unseen,
    /// An event with its blank line, or lines that are no part of one.
    Whole,
}

/// A piece of a stream: an event with its blank line, or bytes between events.
#[derive(Clone, Debug)]
pub struct Frame {
    raw: Bytes,
    /// Where the lines begin, after a byte order mark.
    start: usize,
    extent: Extent,
}

impl Frame {
    /// The bytes as they came.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The bytes as they came.
    pub fn into_raw(self) -> Bytes {
        self.raw
    }

    /// Whether the stream ended before the event did: no client has seen it, though the ledger may
    /// use it.
    pub fn is_cut(&self) -> bool {
        self.extent == Extent::Cut
    }

    /// Whether it is a part of a frame that is too long to be looked into.
    pub fn is_unseen(&self) -> bool {
        self.extent == Extent::Unseen
    }

    /// The event's data, its lines joined by LF; `None` if it is empty, as a client dispatches
    /// nothing then.
    pub fn data(&self) -> Option<Bytes> {
        let mut values = self.lines().filter_map(|line| line.value_of(b"data"));
        let first = values.next()?;
        let Some(second) = values.next() else {
            return (!first.is_empty()).then(|| self.raw.slice_ref(first));
        };
        let mut data = [first, second].join(&b'\n');
        for value in values {
            data.push(b'\n');
            data.extend_from_slice(value);
        }
        Some(data.into())
    }

    /// The event's id, which is the client's cursor; the last one counts, and one with a NUL is
    /// none.
    pub fn event_id(&self) -> Option<&[u8]> {
        self.lines()
            .filter_map(|line| line.value_of(b"id"))
            .filter(|value| !value.contains(&0))
            .last()
    }

    /// After how many milliseconds a client comes back for the rest of the stream, where the frame says.
    pub fn retry_ms(&self) -> Option<u64> {
        let value = self.lines().filter_map(|line| line.value_of(b"retry")).last()?;
        std::str::from_utf8(value).ok()?.parse().ok()
    }

    /// The answer to the request with this id, if this event holds it, whatever its `event` is.
    pub fn answer_to(&self, id: &Id) -> Option<Answer> {
        let data = self.data()?;
        may_have_id(&data).then(|| Answer::from_event(&data, id)).flatten()
    }

    /// The frame with other data, on one `data: ` line in the place of the first one; the frame as
    /// it is if it has no data.
    ///
    /// All other lines stay, and so do LF and CRLF. A bare CR becomes the CRLF that the frame uses,
    /// or a LF, and a byte order mark goes, since clients fail on them (MCP-19). A cut event gets
    /// its blank line. `json` must be JSON: line breaks in it are white space then, and become
    /// spaces.
    pub fn with_data(&self, json: &str) -> Bytes {
        let has_data = self.lines().any(|line| line.value_of(b"data").is_some());
        if !has_data {
            return self.raw.clone();
        }
        let has_crlf = self.lines().any(|line| line.end == CRLF);
        let own_end = if has_crlf { CRLF } else { LF };
        let mut out = Vec::with_capacity(self.raw.len().saturating_add(json.len()));
        let mut is_written = false;
        for line in self.lines() {
            if line.value_of(b"data").is_none() {
                out.extend_from_slice(line.text);
                out.extend_from_slice(if line.end == LF { LF } else { own_end });
            } else if !is_written {
                is_written = true;
                out.extend_from_slice(b"data: ");
                out.extend_from_slice(single_line(json).as_bytes());
                out.extend_from_slice(own_end);
            }
        }
        if self.is_cut() {
            out.extend_from_slice(own_end);
        }
        out.into()
    }

    /// The frame without its data, which no client dispatches; its id stays the client's cursor.
    pub fn without_data(&self) -> Bytes {
        let kept = self.lines().filter(|line| line.value_of(b"data").is_none());
        kept.flat_map(|line| [line.text, line.end]).flatten().copied().collect()
    }

    fn lines(&self) -> Lines<'_> {
        let rest = match self.extent {
            Extent::Cut | Extent::Whole => self.raw.get(self.start..).unwrap_or_default(),
            Extent::Unseen => &[],
        };
        Lines { rest }
    }
}

/// Whether a message may have an id, spelt plainly or with escapes; most events are notifications,
/// which have none.
pub fn may_have_id(data: &[u8]) -> bool {
    holds(data, "\"id\"") || holds(data, "\\u")
}

/// An event of our own with this JSON text as its data, without an id (standards MCP-36).
pub fn event(json: &str) -> Bytes {
    format!("event: message\ndata: {}\n\n", single_line(json)).into()
}

struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let length = memchr2(b'\n', b'\r', self.rest).unwrap_or(self.rest.len());
        let (text, after) = self.rest.split_at_checked(length)?;
        let end = if after.starts_with(CRLF) { 2 } else { after.len().min(1) };
        let (end, rest) = after.split_at_checked(end)?;
        self.rest = rest;
        Some(Line { text, end })
    }
}

#[derive(Clone, Copy)]
struct Line<'a> {
    text: &'a [u8],
    /// LF, CRLF, CR, or nothing where the stream was cut.
    end: &'a [u8],
}

impl<'a> Line<'a> {
    /// The value, if this is the field with this name: what follows the colon and one space.
    fn value_of(self, name: &[u8]) -> Option<&'a [u8]> {
        let rest = self.text.strip_prefix(name)?;
        if rest.is_empty() {
            return Some(rest);
        }
        let value = rest.strip_prefix(b":")?;
        Some(value.strip_prefix(b" ").unwrap_or(value))
    }
}

#[cfg(test)]
mod tests;
