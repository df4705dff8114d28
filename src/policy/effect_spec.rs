//! EffectSpec: what is dispatched how, and what proves it (source 002; standards 5.8).
//!
//! The same members are read in two strictnesses. A block with `schema_version` is a whole
//! EffectSpec: its members are required and its cross rules hold, as that project's validator has
//! them. Without it each member stands alone beside ADR-0030's, and what is missing takes the
//! default. Codes are the validator's variant names in snake case under `spec/`
//! (`MutationWithoutAssertions` is `spec/mutation_without_assertions`); what its deserialiser would
//! refuse is refused as `policy/wrong_type`, `policy/unknown_member`, `policy/unknown_word` or
//! `policy/missing_member`. The rules that no validator checks are findings here too.
//!
//! Plans are read by [`super::plan`].

use crate::contract::class::Kind;
use crate::contract::key::Carrier;
use crate::contract::operation::{Trust, Verification};
use crate::contract::selector::Selector;
use crate::contract::status::{MAX_STATUS, MIN_STATUS, Matcher, Statuses};

use super::assertions::{Form, assertions};
use super::carrier;
use super::plan;
use super::reading::{Fields, Reading, Spanned};
use super::selectors::selector;
use super::tree::{Data, Node, Span};

/// The best evidence that an operation can reach (its ceiling).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ceiling {
    /// Nothing proves it.
    None,
    /// The answer itself.
    Response,
    /// A read afterwards.
    Readback,
    /// A signed event.
    Webhook,
}

impl Ceiling {
    /// The word in `check`, `explain` and `tools/list`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Response => "response",
            Self::Readback => "readback",
            Self::Webhook => "webhook",
        }
    }
}

/// What is proven how, as it was read.
pub(super) struct Evidence {
    pub(super) verification: Verification,
    pub(super) span: Span,
    pub(super) ceiling: Ceiling,
    /// It is `none`, or has no assertion.
    pub(super) is_empty: bool,
    /// It is written `{type: none}`.
    pub(super) is_none: bool,
}

/// The EffectSpec members of one `effect` block.
#[derive(Default)]
pub(super) struct Spec {
    /// The block is a whole EffectSpec.
    pub(super) is_whole: bool,
    pub(super) kind: Option<Spanned<Kind>>,
    pub(super) carrier: Option<(Carrier, Span)>,
    /// With where each matcher stands, the accepted ones first.
    pub(super) statuses: Option<(Statuses, Vec<Span>)>,
    pub(super) upstream_id: Option<(Selector, Span)>,
    pub(super) evidence: Option<Evidence>,
    pub(super) no_evidence: Option<Span>,
}

/// Whether the operation is an HTTP request or an MCP tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Http,
    Tool,
}

/// The members of a whole EffectSpec.
pub(super) const MEMBERS: &[&str] = &[
    "schema_version",
    "kind",
    "idempotency",
    "dispatch_statuses",
    "upstream_id",
    "verification",
    "no_evidence",
];

/// Reads the EffectSpec members out of an `effect` block.
pub(super) fn read(reading: &mut Reading<'_>, fields: &Fields<'_>, transport: Transport) -> Spec {
    let version = fields.get("schema_version");
    read_as(reading, fields, transport, version.is_some())
}

/// As [`read`], with the strictness given: `x-obol-effect` is whole even without a version.
pub(super) fn read_as(
    reading: &mut Reading<'_>,
    fields: &Fields<'_>,
    transport: Transport,
    is_whole: bool,
) -> Spec {
    let member = |reading: &mut Reading<'_>, name: &str| {
        if is_whole { fields.require(reading, name) } else { fields.get(name) }
    };
    if let Some(node) = member(reading, "schema_version")
        && reading.integer(node, "`schema_version`", 0).is_some_and(|version| version != 1)
    {
        reading
            .error("spec/unsupported_spec_version", node.span, "an unknown EffectSpec version")
            .help("this reads `schema_version: 1`");
    }
    let kind = member(reading, "kind").and_then(|node| {
        let words: Vec<(&str, Kind)> = Kind::ALL
            .iter()
            .filter(|kind| !is_whole || **kind != Kind::Mutation)
            .map(|kind| (kind.as_str(), *kind))
            .collect();
        let value = reading.word(node, "kind", &words)?;
        Some(Spanned { value, span: node.span })
    });
    let carrier = member(reading, "idempotency")
        .and_then(|node| Some((carrier::read(reading, node, transport)?, node.span)));
    let statuses = member(reading, "dispatch_statuses").and_then(|node| statuses(reading, node));
    let upstream_id = member(reading, "upstream_id")
        .filter(|node| !node.is_null())
        .and_then(|node| Some((selector(reading, node, "`upstream_id`")?, node.span)));
    let evidence = member(reading, "verification")
        .and_then(|node| verification(reading, node, kind.map(|kind| kind.value), transport));
    let no_evidence = fields.get("no_evidence").filter(|node| !node.is_null()).and_then(|node| {
        let words = [
            ("empty_response_body", ()),
            ("no_readback_endpoint", ()),
            ("effect_leaves_vendor_state", ()),
            ("write_only_transport", ()),
        ];
        reading.word(node, "reason for no evidence", &words)?;
        Some(node.span)
    });
    Spec { is_whole, kind, carrier, statuses, upstream_id, evidence, no_evidence }
}

/// The rules across members, once it is known whether the operation is a read.
pub(super) fn check(reading: &mut Reading<'_>, spec: &Spec, is_read: bool, at: Span) {
    if let Some(span) = spec.no_evidence {
        if is_read {
            reading
                .error("spec/no_evidence_on_read", span, "`no_evidence` on a read")
                .help("a read has no effect to prove; remove it");
        }
        if spec.evidence.as_ref().is_some_and(|evidence| !evidence.is_none) {
            reading
                .error(
                    "spec/no_evidence_with_verification",
                    span,
                    "`no_evidence` beside a verification",
                )
                .help("keep one: `verification: {type: none}` goes with `no_evidence`");
        }
    }
    if !is_read && spec.no_evidence.is_none() {
        match &spec.evidence {
            Some(evidence) if evidence.is_empty && (spec.is_whole || !evidence.is_none) => {
                reading
                    .error(
                        "spec/mutation_without_assertions",
                        evidence.span,
                        "a write whose verification asserts nothing",
                    )
                    .help("assert something of the answer, or say why not with `no_evidence`");
            }
            Some(evidence) if evidence.is_empty => unverified(reading, evidence.span),
            Some(_) => {}
            None if spec.is_whole => {}
            None => unverified(reading, at),
        }
    }
    if !is_read && let Some((statuses, spans)) = &spec.statuses {
        lint_statuses(reading, statuses, spans);
    }
}

fn unverified(reading: &mut Reading<'_>, span: Span) {
    reading
        .info("spec/unverified", span, "nothing proves this effect; its verdict is inconclusive")
        .help("add a `verification`, or say why there is none with `no_evidence`");
}

fn lint_statuses(reading: &mut Reading<'_>, statuses: &Statuses, spans: &[Span]) {
    let (accepted, rejected) = spans.split_at(statuses.accepted.len().min(spans.len()));
    let first = |list: &[Matcher], spans: &[Span], status| -> Option<Span> {
        list.iter().zip(spans).find(|(matcher, _)| matcher.matches(status)).map(|(_, span)| *span)
    };
    if let Some(at) = (300..=499).find_map(|status| first(&statuses.accepted, accepted, status)) {
        reading
            .warning("spec/accepted_not_success", at, "a 3xx or 4xx status counts as accepted")
            .help("a redirect or a client error proves no effect; leave it ambiguous");
    }
    for status in [408, 409, 425, 429] {
        if let Some(at) = first(&statuses.definitely_rejected, rejected, status) {
            let message = format!("{status} counts as definitely rejected for a write");
            reading
                .warning("spec/rejected_not_definite", at, message)
                .help("part of the work may have been done; leave it in neither list");
            break;
        }
    }
}

fn statuses(reading: &mut Reading<'_>, node: &Node) -> Option<(Statuses, Vec<Span>)> {
    let known = ["accepted", "definitely_rejected"];
    let fields = reading.fields(node, "`dispatch_statuses`", &known)?;
    let mut spans = Vec::new();
    let mut list = |reading: &mut Reading<'_>, name: &'static str| {
        let node = fields.require(reading, name)?;
        let mut matchers = Vec::new();
        for element in reading.sequence(node, name)? {
            if let Some(matcher) = matcher(reading, element) {
                matchers.push(matcher);
                spans.push((matcher, element.span));
            }
        }
        Some(matchers)
    };
    let accepted = list(reading, "accepted");
    let definitely_rejected = list(reading, "definitely_rejected");
    let statuses = Statuses { accepted: accepted?, definitely_rejected: definitely_rejected? };
    if let Some(status) = statuses.first_overlap() {
        let span = spans
            .iter()
            .filter(|(matcher, _)| matcher.matches(status))
            .nth(1)
            .map_or(node.span, |(_, span)| *span);
        reading
            .error("spec/overlapping_status", span, format!("{status} is matched twice"))
            .help("no status may be matched by two entries, across the lists or within one");
        return None;
    }
    Some((statuses, spans.into_iter().map(|(_, span)| span).collect()))
}

fn matcher(reading: &mut Reading<'_>, node: &Node) -> Option<Matcher> {
    let what = "a status matcher";
    let fields = reading.mapping(node, what)?;
    let type_node = fields.require(reading, "type")?;
    let is_range = reading.word(type_node, what, &[("exact", false), ("range", true)])?;
    let known: &[&'static str] =
        if is_range { &["type", "start", "end"] } else { &["type", "status"] };
    reading.fields(node, what, known)?;
    let status = |reading: &mut Reading<'_>, name: &str| {
        let node = fields.require(reading, name)?;
        let Data::Number(text) = &node.data else {
            reading.wrong_type(node, &format!("`{name}`"), "a status");
            return None;
        };
        // What no status can be is out of range however it is written.
        Some((text.parse::<u16>().unwrap_or(0), node.span))
    };
    let is_status = |status: u16| (MIN_STATUS..=MAX_STATUS).contains(&status);
    if is_range {
        let start = status(reading, "start");
        let end = status(reading, "end");
        let ((start, _), (end, _)) = (start?, end?);
        if start > end || !is_status(start) || !is_status(end) {
            reading
                .error("spec/invalid_status_range", node.span, "not a range of statuses")
                .help("`start` and `end` are from 100 to 599, `start` not above `end`");
            return None;
        }
        return Some(Matcher::Range(start, end));
    }
    let (status, span) = status(reading, "status")?;
    if !is_status(status) {
        reading.error("spec/invalid_status", span, "not a status").help("it is from 100 to 599");
        return None;
    }
    Some(Matcher::Exact(status))
}

fn verification(
    reading: &mut Reading<'_>,
    node: &Node,
    kind: Option<Kind>,
    transport: Transport,
) -> Option<Evidence> {
    let what = "`verification`";
    let fields = reading.mapping(node, what)?;
    if fields.get("stages").is_some() {
        return plan::read(reading, node, kind);
    }
    let type_node = fields.require(reading, "type")?;
    let words = [("none", false), ("response_binding", true)];
    let is_binding = reading.word(type_node, "verification type", &words)?;
    if !is_binding {
        reading.fields(node, what, &["type"])?;
        return Some(Evidence {
            verification: Verification::None,
            span: node.span,
            ceiling: Ceiling::None,
            is_empty: true,
            is_none: true,
        });
    }
    reading.fields(node, what, &["type", "config"])?;
    let config = fields.require(reading, "config")?;
    let config_fields = reading.fields(config, "`config`", &["trust", "assertions"])?;
    let trust = config_fields.require(reading, "trust").and_then(|node| {
        let words = [
            ("gateway_observed_only", Trust::GatewayObservedOnly),
            ("allow_connector_attested", Trust::AllowConnectorAttested),
        ];
        let trust = reading.word(node, "trust", &words)?;
        if trust == Trust::AllowConnectorAttested && transport == Transport::Tool {
            reading
                .error(
                    "spec/remote_mcp_cannot_attest",
                    node.span,
                    "a remote MCP server's own claim cannot prove an effect",
                )
                .help("use `gateway_observed_only`");
        }
        Some(trust)
    });
    let list = config_fields.require(reading, "assertions")?;
    let assertions = assertions(reading, list, Form::Binding);
    let is_empty = list.as_sequence().is_some_and(<[Node]>::is_empty);
    Some(Evidence {
        verification: Verification::ResponseBinding { trust: trust?, assertions },
        span: node.span,
        ceiling: if is_empty { Ceiling::None } else { Ceiling::Response },
        is_empty,
        is_none: false,
    })
}
