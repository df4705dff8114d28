//! Selectors, JSON pointers and header names, as files write them.

use crate::contract::pointer::{Pointer, PointerError};
use crate::contract::selector::Selector;

use super::reading::Reading;
use super::tree::Node;

/// A header name in any case; kept in lower case.
pub(super) fn header_name(
    reading: &mut Reading<'_>,
    node: &Node,
    what: &str,
) -> Option<http::HeaderName> {
    let text = reading.text(node, what)?;
    let name = http::HeaderName::from_bytes(text.as_bytes()).ok();
    if name.is_none() {
        reading
            .error("spec/invalid_header_name", node.span, format!("{what} is no header name"))
            .help("a header name is letters, digits and `-`");
    }
    name
}

/// A JSON pointer.
pub(super) fn pointer(reading: &mut Reading<'_>, node: &Node, what: &str) -> Option<Pointer> {
    let text = reading.text(node, what)?;
    match Pointer::parse(text) {
        Ok(pointer) => Some(pointer),
        Err(PointerError::TooLong) => {
            reading
                .error("spec/pointer_too_long", node.span, format!("{what} is over 512 bytes"))
                .help("point at a member that is nearer");
            None
        }
        Err(error @ (PointerError::Escape(_) | PointerError::Start)) => {
            let span = match error {
                PointerError::Escape(offset) => reading.inside(node, offset),
                PointerError::Start | PointerError::TooLong => node.span,
            };
            reading
                .error("spec/invalid_pointer", span, format!("{what}: {error}"))
                .help("a JSON pointer is written `/member/0/other`");
            None
        }
    }
}

/// `{ source, pointer?, header? }`
pub(super) fn selector(reading: &mut Reading<'_>, node: &Node, what: &str) -> Option<Selector> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Source {
        HttpStatus,
        McpStructured,
        RequestBody,
        ResponseBody,
        ResponseHeader,
    }
    let fields = reading.fields(node, "a selector", &["source", "pointer", "header"])?;
    let source_node = fields.require(reading, "source")?;
    let words = [
        ("request_body", Source::RequestBody),
        ("response_body", Source::ResponseBody),
        ("mcp_structured", Source::McpStructured),
        ("response_header", Source::ResponseHeader),
        ("http_status", Source::HttpStatus),
    ];
    let source = reading.word(source_node, "selector source", &words)?;
    let given = |name| fields.get(name).filter(|node| !node.is_null());
    let (pointer_node, header_node) = (given("pointer"), given("header"));
    let wanted = match source {
        Source::HttpStatus => (false, false),
        Source::ResponseHeader => (false, true),
        Source::McpStructured | Source::RequestBody | Source::ResponseBody => (true, false),
    };
    if (pointer_node.is_some(), header_node.is_some()) != wanted {
        let help = match wanted {
            (true, _) => "this source takes a `pointer` and no `header`",
            (false, true) => "this source takes a `header` and no `pointer`",
            (false, false) => "this source takes neither a `pointer` nor a `header`",
        };
        reading
            .error(
                "spec/invalid_selector_fields",
                node.span,
                format!("{what}: members that do not go with its source"),
            )
            .help(help);
        return None;
    }
    let at = |reading: &mut Reading<'_>| pointer(reading, pointer_node?, "`pointer`");
    match source {
        Source::HttpStatus => Some(Selector::HttpStatus),
        Source::McpStructured => at(reading).map(Selector::McpStructured),
        Source::RequestBody => at(reading).map(Selector::RequestBody),
        Source::ResponseBody => at(reading).map(Selector::ResponseBody),
        Source::ResponseHeader => {
            header_name(reading, header_node?, "`header`").map(Selector::ResponseHeader)
        }
    }
}
