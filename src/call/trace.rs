//! Trace context: who a call belongs to in somebody's traces (W3C Trace Context).
//!
//! ```text
//! traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//!              version, trace id, the caller's span id, flags
//! ```
//!
//! Over HTTP it is a header, over MCP also `_meta.traceparent`, which is nearer to the call and wins.
//! Without an exporter both pass as they came: a span id of ours that nobody exports would cut the
//! trace in two. A value that is malformed names no trace; it passes all the same, as the standard
//! lets an intermediary do, and is read by nobody here.

use std::fmt;

use http::{HeaderMap, HeaderName};

use crate::contract::key::from_hex;

/// The header, and the member of `_meta`.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What vendors add to it; it passes as it came.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// A trace's id: 32 lower-case hexadecimal digits, not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

/// A span's id: 16 lower-case hexadecimal digits, not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: TraceId,
    /// The span that sent it.
    pub span: SpanId,
    /// Whether the sender records the trace.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Reads the text of one; `None` if it is malformed.
    ///
    /// A version above 00 is read by the part that it shares with 00, as the standard says.
    pub fn parse(text: &[u8]) -> Option<Self> {
        const LENGTH: usize = 55;
        let (known, rest) = text.split_at_checked(LENGTH)?;
        let mut parts = known.split(|byte| *byte == b'-');
        let mut part = || parts.next();
        let (version, trace, span, flags) = (part()?, part()?, part()?, part()?);
        // The standard takes lower case only.
        if known.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        let [version] = from_hex(version)?;
        let is_form_right = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        let (trace, span) = (from_hex::<16>(trace)?, from_hex::<8>(span)?);
        let [flags] = from_hex(flags)?;
        let is_right = is_form_right && trace != [0; 16] && span != [0; 8] && part().is_none();
        let is_sampled = flags & 1 == 1;
        is_right.then_some(Self { trace: TraceId(trace), span: SpanId(span), is_sampled })
    }

    /// The one that a request's headers hold; `None` if there is none, two, or a malformed one.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Self::parse(value.as_bytes()),
            (_, _) => None,
        }
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, span, is_sampled } = self;
        write!(f, "00-{trace}-{span}-{:02x}", u8::from(*is_sampled))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_traceparent_is_read_as_the_standard_says() {
        let table = [
            (format!("00-{TRACE}-{SPAN}-01"), Some(true)),
            (format!("00-{TRACE}-{SPAN}-00"), Some(false)),
            (format!("00-{TRACE}-{SPAN}-ff"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01-what-ever"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01.what"), None),
            (format!("00-{TRACE}-{SPAN}-01-more"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00-{TRACE}0-{SPAN}-1"), None),
            (format!("00_{TRACE}_{SPAN}_01"), None),
            (format!("00-{TRACE}-{SPAN}"), None),
            (String::new(), None),
        ];
        for (text, right) in table {
            let read = TraceParent::parse(text.as_bytes());
            assert_eq!(read.map(|read| read.is_sampled), right, "{text}");
            if let Some(read) = read {
                assert_eq!(
                    (read.trace.to_string(), read.span.to_string()),
                    (TRACE.into(), SPAN.into())
                );
            }
        }
    }

    #[test]
    fn two_headers_name_no_trace() {
        let mut headers = HeaderMap::new();
        let value = format!("00-{TRACE}-{SPAN}-01");
        headers.append(TRACEPARENT, value.parse().unwrap());
        assert!(TraceParent::of(&headers).is_some());
        headers.append(TRACEPARENT, value.parse().unwrap());
        assert!(TraceParent::of(&headers).is_none());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(trace: [u8; 16], span: [u8; 8], is_sampled: bool) {
            prop_assume!(trace != [0; 16] && span != [0; 8]);
            let parent = TraceParent { trace: TraceId(trace), span: SpanId(span), is_sampled };
            prop_assert_eq!(TraceParent::parse(parent.to_string().as_bytes()), Some(parent));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _read = TraceParent::parse(&bytes);
        }
    }
}
