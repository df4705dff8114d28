//! Verification plans: evidence in stages (EffectSpec).
//!
//! A plan is checked whole and not evaluated; the verdict of its operation is inconclusive.

use std::collections::HashSet;

use crate::contract::class::Kind;
use crate::contract::operation::Verification;
use crate::contract::pointer::Pointer;

use super::assertions::{Form, assertions};
use super::effect_spec::{Ceiling, Evidence, Transport};
use super::reading::{Fields, Reading};
use super::tree::{Data, Node, Span};

/// The most stages of a plan.
const MAX_STAGES: usize = 8;
/// The most parameters of a probe.
const MAX_PARAMETERS: usize = 8;

const PLAN: &[&str] = &["schema_version", "deadline_s", "stages", "completion"];

pub(super) fn read(reading: &mut Reading<'_>, node: &Node, kind: Option<Kind>) -> Option<Evidence> {
    let fields = reading.fields(node, "a verification plan", PLAN)?;
    if let Some(node) = fields.require(reading, "schema_version")
        && reading.integer(node, "`schema_version`", 0).is_some_and(|version| version != 1)
    {
        reading
            .error("spec/unsupported_plan_version", node.span, "an unknown plan version")
            .help("this reads `schema_version: 1`");
    }
    let deadline = fields
        .require(reading, "deadline_s")
        .and_then(|node| Some((reading.integer(node, "`deadline_s`", 0)?, node.span)));
    if let Some((0, span)) = deadline {
        reading
            .warning("spec/deadline_zero", span, "the plan's deadline has passed when it starts")
            .help("give the seconds that the last stage may need");
    }
    let stages_node = fields.require(reading, "stages")?;
    let stages = reading.sequence(stages_node, "`stages`")?;
    if stages.is_empty() {
        reading
            .error("spec/plan_without_stages", stages_node.span, "a plan without stages")
            .help("write `verification: {type: none}`");
    }
    if let Some(first_over) = stages.get(MAX_STAGES) {
        reading.error("spec/too_many_stages", first_over.span, "over 8 stages").help("at most 8");
    }
    let mut ids = HashSet::new();
    let read: Vec<Stage<'_>> = stages
        .iter()
        .take(MAX_STAGES)
        .filter_map(|node| stage(reading, node, kind, deadline.map(|(at, _)| at), &mut ids))
        .collect();
    let completion = fields.require(reading, "completion");
    let accepted_claims = completion.map(|node| completion_claims(reading, node));
    if let Some(claims) = accepted_claims.filter(|claims| !claims.is_empty())
        && !read.is_empty()
        && !read.iter().any(|stage| claims.contains(&stage.claim))
    {
        reading
            .warning(
                "spec/claim_unreachable",
                stages_node.span,
                "no stage makes a claim that `completion` accepts; the plan never completes",
            )
            .help("let a stage claim what `completion.acceptable` names");
    }
    reading
        .warning("spec/plan_not_evaluated", node.span, "plans are checked and not evaluated here")
        .help("the verdict is inconclusive; use a `response_binding` for what the answer shows");
    Some(Evidence {
        verification: Verification::Plan,
        span: node.span,
        ceiling: read.iter().map(|stage| stage.ceiling).max().unwrap_or(Ceiling::None),
        // A plan without stages has its own error.
        is_empty: !stages.is_empty() && read.iter().all(|stage| stage.is_empty),
        is_none: false,
    })
}

struct Stage<'t> {
    claim: &'t str,
    ceiling: Ceiling,
    is_empty: bool,
}

fn stage<'t>(
    reading: &mut Reading<'_>,
    node: &'t Node,
    kind: Option<Kind>,
    deadline_s: Option<u64>,
    ids: &mut HashSet<&'t str>,
) -> Option<Stage<'t>> {
    let what = "a stage";
    let fields = reading.mapping(node, what)?;
    let kind_node = fields.require(reading, "kind")?;
    let words = [
        ("immediate", Ceiling::Response),
        ("readback", Ceiling::Readback),
        ("webhook", Ceiling::Webhook),
    ];
    let ceiling = reading.word(kind_node, "stage kind", &words)?;
    let known: &[&'static str] = match ceiling {
        Ceiling::None | Ceiling::Response => &["stage_id", "claim", "kind", "assertions"],
        Ceiling::Readback => &["stage_id", "claim", "kind", "after_s", "probe", "assertions"],
        Ceiling::Webhook => {
            &["stage_id", "claim", "kind", "event_types", "signature_profile", "assertions"]
        }
    };
    reading.fields(node, what, known)?;
    let id = fields.require(reading, "stage_id").and_then(|node| {
        let id = reading.text(node, "`stage_id`")?;
        if id.is_empty() {
            reading
                .error("spec/empty_stage_id", node.span, "a stage without an id")
                .help("give it one");
        } else if !ids.insert(id) {
            reading
                .error("spec/duplicate_stage_id", node.span, format!("a second stage `{id}`"))
                .help("ids are unique within a plan");
        }
        Some(id)
    });
    let claim = fields.require(reading, "claim").and_then(|node| reading.text(node, "`claim`"));
    if let Some(node) = fields.get("after_s") {
        let after_s = reading.integer(node, "`after_s`", 0);
        if let (Some(after_s), Some(deadline_s)) = (after_s, deadline_s)
            && after_s > deadline_s
        {
            reading
                .warning("spec/stage_after_deadline", node.span, "later than the deadline")
                .help("`after_s` is at most the plan's `deadline_s`");
        }
    }
    match ceiling {
        Ceiling::Readback => {
            if let Some(node) = fields.require(reading, "probe") {
                probe(reading, node);
            }
        }
        Ceiling::Webhook => event_types(reading, &fields, id),
        Ceiling::None | Ceiling::Response => {}
    }
    let list = fields.require(reading, "assertions")?;
    let form = Form::Stage {
        is_immediate: ceiling == Ceiling::Response,
        is_delete: kind == Some(Kind::Delete),
    };
    let _checked = assertions(reading, list, form);
    let is_empty = list.as_sequence().is_some_and(<[Node]>::is_empty);
    Some(Stage { claim: claim?, ceiling, is_empty })
}

fn event_types(reading: &mut Reading<'_>, fields: &Fields<'_>, id: Option<&str>) {
    let types = fields.get("event_types");
    let is_empty = match types {
        Some(node) => reading.sequence(node, "`event_types`").is_some_and(<[Node]>::is_empty),
        None => true,
    };
    if is_empty {
        let span = types.map_or(fields.node.span, |node| node.span);
        let message = format!("webhook stage `{}` has no event types", id.unwrap_or_default());
        reading
            .error("spec/webhook_without_event_types", span, message)
            .help("list the events that carry the evidence");
    }
}

/// The claims that complete a plan.
fn completion_claims<'t>(reading: &mut Reading<'_>, node: &'t Node) -> Vec<&'t str> {
    let mut claims = Vec::new();
    let Some(fields) = reading.fields(node, "`completion`", &["acceptable"]) else {
        return claims;
    };
    let Some(list) = fields.require(reading, "acceptable") else { return claims };
    let Some(elements) = reading.sequence(list, "`acceptable`") else { return claims };
    if elements.is_empty() {
        reading
            .error("spec/empty_completion_predicate", list.span, "the plan can never complete")
            .help("name at least one acceptable claim and its trust");
    }
    for element in elements {
        let Some(pair) = reading.fields(element, "an acceptable pair", &["claim", "trust"]) else {
            continue;
        };
        if let Some(node) = pair.require(reading, "claim") {
            claims.extend(reading.text(node, "`claim`"));
        }
        if let Some(node) = pair.require(reading, "trust")
            && reading.text(node, "`trust`") == Some("untrusted")
        {
            reading
                .error("spec/untrusted_cannot_verify", node.span, "`untrusted` proves nothing")
                .help("name a source that can be trusted, such as `gateway_observed`");
        }
    }
    claims
}

fn probe(reading: &mut Reading<'_>, node: &Node) {
    let what = "a probe";
    let Some(fields) = reading.mapping(node, what) else { return };
    let Some(transport_node) = fields.require(reading, "transport") else { return };
    let words = [("http", Transport::Http), ("mcp", Transport::Tool)];
    let Some(transport) = reading.word(transport_node, "probe transport", &words) else { return };
    let known: &[&'static str] = match transport {
        Transport::Http => &[
            "transport",
            "probe_target_id",
            "method",
            "path_template",
            "path_params",
            "query_params",
            "decisive_negative",
        ],
        Transport::Tool => {
            &["transport", "probe_target_id", "tool", "arguments", "decisive_negative"]
        }
    };
    if reading.fields(node, what, known).is_none() {
        return;
    }
    if let Some(node) = fields.require(reading, "probe_target_id") {
        let is_slug = reading.text(node, "`probe_target_id`").is_none_or(|id| {
            id.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && id.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
        });
        if !is_slug {
            probe_error(reading, node.span, "`probe_target_id` is no slug", "use `a-z0-9_-`");
        }
    }
    let lists: &[&str] = match transport {
        Transport::Http => {
            if let Some(node) = fields.require(reading, "method") {
                let _ = reading.text(node, "`method`");
            }
            if let Some(node) = fields.require(reading, "path_template")
                && reading.text(node, "`path_template`").is_some_and(|path| !path.starts_with('/'))
            {
                let help = "a probe stays on its target: write the path only";
                probe_error(reading, node.span, "`path_template` must start with `/`", help);
            }
            &["path_params", "query_params"]
        }
        Transport::Tool => {
            if let Some(node) = fields.require(reading, "tool") {
                let _ = reading.text(node, "`tool`");
            }
            &["arguments"]
        }
    };
    let mut count = 0_usize;
    for list in lists {
        let Some(node) = fields.get(list) else { continue };
        let Some(elements) = reading.sequence(node, "the parameters") else { continue };
        let mut names = HashSet::new();
        for element in elements {
            count = count.saturating_add(1);
            parameter(reading, element, transport, &mut names);
        }
    }
    if count > MAX_PARAMETERS {
        probe_error(reading, node.span, "over 8 parameters", "at most 8");
    }
    if let Some(node) = fields.get("decisive_negative") {
        for element in reading.sequence(node, "`decisive_negative`").unwrap_or_default() {
            let is_known =
                matches!(&element.data, Data::Number(text) if text == "404" || text == "410");
            if !is_known {
                let message = "only 404 and 410 say that something is not there";
                probe_error(reading, element.span, message, "remove it");
            }
        }
    }
}

fn parameter<'t>(
    reading: &mut Reading<'_>,
    node: &'t Node,
    transport: Transport,
    names: &mut HashSet<&'t str>,
) {
    let Some(fields) = reading.fields(node, "a probe parameter", &["name", "input"]) else {
        return;
    };
    if let Some(node) = fields.require(reading, "name")
        && reading.text(node, "`name`").is_some_and(|name| !names.insert(name))
    {
        probe_error(reading, node.span, "a parameter given twice", "keep one of them");
    }
    let Some(input) = fields.require(reading, "input") else { return };
    let Some(input_fields) = reading.fields(input, "`input`", &["from", "pointer", "value"]) else {
        return;
    };
    let Some(from) = input_fields.require(reading, "from") else { return };
    let words = [("request_pointer", true), ("upstream_id", false), ("literal", false)];
    if reading.word(from, "parameter source", &words) == Some(true) {
        if transport == Transport::Tool {
            let help = "use `upstream_id`; the request is not kept for it";
            probe_error(reading, from.span, "an MCP probe argument fed from the request", help);
        }
        let text = input_fields
            .require(reading, "pointer")
            .and_then(|node| Some((reading.text(node, "`pointer`")?, node.span)));
        if let Some((text, span)) = text
            && Pointer::parse(text).is_err()
        {
            probe_error(reading, span, "not a JSON pointer", "write `/path/name`");
        }
    }
}

fn probe_error(reading: &mut Reading<'_>, span: Span, message: &str, help: &str) {
    reading.error("spec/probe", span, message).help(help);
}
