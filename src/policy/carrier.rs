//! The carrier of the key: where an upstream takes it, in what form, and what it promises about a
//! key that comes again (contract section 9, standards I-2, I-6, I-12).
//!
//! A carrier that cannot hold an entry's id is an error: a call without a key of its own is keyed
//! by that id.

use crate::contract::key::{Carrier, Format, OnMismatch, Place, ReplayRule};

use super::effect_spec::Transport;
use super::headers;
use super::reading::{Fields, Reading};
use super::selectors::{header_name, pointer};
use super::tree::Node;

/// The length of our own ids, which are keys where the caller gives none.
const ENTRY_ID: usize = 36;

/// Reads the carrier of the key.
pub(super) fn read(
    reading: &mut Reading<'_>,
    node: &Node,
    transport: Transport,
) -> Option<Carrier> {
    #[derive(Clone, Copy)]
    enum Type {
        Header,
        Query,
        BodyPointer,
        Argument,
        Unsupported,
    }
    let what = "`idempotency`";
    let fields = reading.mapping(node, what)?;
    let type_node = fields.require(reading, "type")?;
    let words = [
        ("header", Type::Header),
        ("query", Type::Query),
        ("body_pointer", Type::BodyPointer),
        ("argument", Type::Argument),
        ("unsupported", Type::Unsupported),
    ];
    let kind = reading.word(type_node, "carrier type", &words)?;
    let own: &[&'static str] = match kind {
        Type::Header | Type::Query | Type::Argument => &["name"],
        Type::BodyPointer => &["pointer", "create"],
        Type::Unsupported => &[],
    };
    let shared: &[&'static str] = match kind {
        Type::Unsupported => &["type"],
        Type::Header | Type::Query | Type::Argument | Type::BodyPointer => {
            &["type", "format", "max_len", "retention", "replay", "on_mismatch"]
        }
    };
    let known: Vec<&'static str> = shared.iter().chain(own).copied().collect();
    reading.fields(node, what, &known)?;
    let is_right_transport = match kind {
        Type::Header | Type::Query | Type::BodyPointer => transport == Transport::Http,
        Type::Argument => transport == Transport::Tool,
        Type::Unsupported => true,
    };
    if !is_right_transport {
        let (message, help) = match transport {
            Transport::Http => {
                ("an HTTP request has no arguments", "use `header`, `query` or `body_pointer`")
            }
            Transport::Tool => ("a tool takes its key as an argument", "use `argument`"),
        };
        reading.error("effect/carrier_transport", type_node.span, message).help(help);
        return None;
    }
    let place = match kind {
        Type::Header => Place::Header(carrier_header(reading, &fields)?),
        Type::Query => Place::Query(carrier_name(reading, &fields)?),
        Type::Argument => Place::Argument(carrier_name(reading, &fields)?),
        Type::BodyPointer => {
            let node = fields.require(reading, "pointer")?;
            let pointer = pointer(reading, node, "`idempotency.pointer`")?;
            if pointer.tokens().is_empty() || pointer.tokens().iter().any(|token| token == "-") {
                reading
                    .error("effect/carrier_pointer", node.span, "the pointer names no member")
                    .help("name the member that holds the key, such as `/dedup_key`");
                return None;
            }
            let create = fields.get("create").and_then(|node| reading.flag(node, "`create`"));
            Place::BodyPointer { pointer, create: create.unwrap_or(false) }
        }
        Type::Unsupported => Place::Unsupported,
    };
    Some(Carrier { place, ..carrier_rules(reading, &fields) })
}

/// The members that every carrier may have; the place is filled in by the caller.
fn carrier_rules(reading: &mut Reading<'_>, fields: &Fields<'_>) -> Carrier {
    let mut carrier = Carrier::unsupported();
    if let Some(node) = fields.get("format") {
        let words = [("raw", Format::Raw), ("sf_string", Format::SfString)];
        carrier.format = reading.word(node, "key format", &words).unwrap_or(Format::Raw);
    }
    if let Some(node) = fields.get("max_len") {
        carrier.max_len =
            reading.integer(node, "`max_len`", 1).and_then(|length| usize::try_from(length).ok());
        if carrier.max_len.is_some_and(|length| length < ENTRY_ID) {
            reading
                .error("effect/carrier_too_short", node.span, "the carrier cannot hold our ids")
                .help("a call without a key of its own is keyed by its entry id of 36 characters");
        }
    }
    if let Some(node) = fields.get("retention") {
        carrier.retention_ms = reading.duration_ms(node, "`retention`");
    }
    if let Some(node) = fields.get("replay") {
        let words = [
            ("full", ReplayRule::Full),
            ("latest", ReplayRule::Latest),
            ("success_only", ReplayRule::SuccessOnly),
            ("dedup_only", ReplayRule::DedupOnly),
        ];
        carrier.replay = reading.word(node, "replay rule", &words);
    }
    if let Some(node) = fields.get("on_mismatch") {
        let words = [
            ("error", OnMismatch::Error),
            ("replay", OnMismatch::Replay),
            ("new_operation", OnMismatch::NewOperation),
        ];
        carrier.on_mismatch = reading.word(node, "mismatch rule", &words);
    }
    carrier
}

fn carrier_name(reading: &mut Reading<'_>, fields: &Fields<'_>) -> Option<String> {
    let node = fields.require(reading, "name")?;
    let name = reading.text(node, "`idempotency.name`")?;
    if name.is_empty() {
        reading
            .error("effect/carrier_name", node.span, "the carrier's name is empty")
            .help("name the parameter that holds the key");
        return None;
    }
    Some(name.to_owned())
}

fn carrier_header(reading: &mut Reading<'_>, fields: &Fields<'_>) -> Option<http::HeaderName> {
    let node = fields.require(reading, "name")?;
    let name = header_name(reading, node, "`idempotency.name`")?;
    if headers::is_refused_carrier(name.as_str()) {
        reading
            .error(
                "spec/protected_header",
                node.span,
                format!("`{name}` cannot carry a key (standards I-6)"),
            )
            .help("name the header in which this API takes an idempotency key");
        return None;
    }
    Some(name)
}
