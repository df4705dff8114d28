//! Verification plans: evidence in stages (EffectSpec).
//!
//! Read here: what one plan says by itself. Whether its probes' targets are declared is for
//! [`super::check`], which knows all files.

use std::collections::HashSet;
use std::sync::Arc;

use crate::contract::class::Kind;
use crate::contract::operation::Verification;
use crate::contract::plan::{Input, Parameter, Plan, Probe, ProbeCall, Source, Stage};
use crate::contract::pointer::Pointer;
use crate::contract::template::Template;

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
    let read: Vec<Checked<'_>> = stages
        .iter()
        .take(MAX_STAGES)
        .filter_map(|node| stage(reading, node, kind, deadline.map(|(at, _)| at), &mut ids))
        .collect();
    let completion = fields.require(reading, "completion");
    let acceptable = completion.map(|node| acceptable(reading, node)).unwrap_or_default();
    if !acceptable.is_empty()
        && !read.is_empty()
        && !read.iter().any(|stage| acceptable.iter().any(|(claim, _)| claim == stage.claim))
    {
        reading
            .warning(
                "spec/claim_unreachable",
                stages_node.span,
                "no stage makes a claim that `completion` accepts; the plan never completes",
            )
            .help("let a stage claim what `completion.acceptable` names");
    }
    if read.iter().any(|stage| stage.ceiling == Ceiling::Webhook) {
        reading
            .warning("spec/plan_not_evaluated", node.span, "events are not heard here")
            .help("a `webhook` stage is reported as not evaluated; add a `readback` for its claim");
    }
    let is_empty = read.iter().all(|stage| stage.is_empty);
    let ceiling = read.iter().map(|stage| stage.ceiling).max().unwrap_or(Ceiling::None);
    let plan = Plan {
        deadline_ms: deadline.map_or(0, |(deadline_s, _)| deadline_s.saturating_mul(1000)),
        stages: read.into_iter().filter_map(|stage| stage.stage).collect(),
        acceptable,
    };
    Some(Evidence {
        verification: Verification::Plan(Arc::new(plan)),
        span: node.span,
        ceiling,
        // A plan without stages has its own error.
        is_empty: !stages.is_empty() && is_empty,
        is_none: false,
    })
}

/// A stage as it was read.
struct Checked<'t> {
    /// `None`: a part of it has an error of its own.
    stage: Option<Stage>,
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
) -> Option<Checked<'t>> {
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
    let mut after_ms = 0;
    if let Some(node) = fields.get("after_s") {
        let after_s = reading.integer(node, "`after_s`", 0);
        after_ms = after_s.unwrap_or(0).saturating_mul(1000);
        if let (Some(after_s), Some(deadline_s)) = (after_s, deadline_s)
            && after_s > deadline_s
        {
            reading
                .warning("spec/stage_after_deadline", node.span, "later than the deadline")
                .help("`after_s` is at most the plan's `deadline_s`");
        }
    }
    let source = match ceiling {
        Ceiling::Readback => {
            let node = fields.require(reading, "probe");
            let probe = node.and_then(|node| probe(reading, node));
            probe.map(|probe| Source::Readback { after_ms, probe })
        }
        Ceiling::Webhook => {
            event_types(reading, &fields, id);
            Some(Source::Webhook)
        }
        Ceiling::None | Ceiling::Response => Some(Source::Immediate),
    };
    let list = fields.require(reading, "assertions")?;
    let form = Form::Stage {
        is_immediate: ceiling == Ceiling::Response,
        is_delete: kind == Some(Kind::Delete),
    };
    let assertions = assertions(reading, list, form);
    let is_empty = list.as_sequence().is_some_and(<[Node]>::is_empty);
    let claim = claim?;
    let stage = id.zip(source).map(|(id, source)| Stage {
        id: id.to_owned(),
        claim: claim.to_owned(),
        source,
        assertions,
    });
    Some(Checked { stage, claim, ceiling, is_empty })
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

/// The claims that complete a plan, each with its trust.
fn acceptable(reading: &mut Reading<'_>, node: &Node) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let Some(fields) = reading.fields(node, "`completion`", &["acceptable"]) else {
        return pairs;
    };
    let Some(list) = fields.require(reading, "acceptable") else { return pairs };
    let Some(elements) = reading.sequence(list, "`acceptable`") else { return pairs };
    if elements.is_empty() {
        reading
            .error("spec/empty_completion_predicate", list.span, "the plan can never complete")
            .help("name at least one acceptable claim and its trust");
    }
    for element in elements {
        let Some(pair) = reading.fields(element, "an acceptable pair", &["claim", "trust"]) else {
            continue;
        };
        let claim = pair.require(reading, "claim");
        let claim = claim.and_then(|node| reading.text(node, "`claim`"));
        let trust = pair.require(reading, "trust");
        let text = trust.and_then(|node| reading.text(node, "`trust`"));
        if let (Some(node), Some("untrusted")) = (trust, text) {
            reading
                .error("spec/untrusted_cannot_verify", node.span, "`untrusted` proves nothing")
                .help("name a source that can be trusted, such as `gateway_observed`");
        }
        if let (Some(claim), Some(trust)) = (claim, text) {
            pairs.push((claim.to_owned(), trust.to_owned()));
        }
    }
    pairs
}

fn probe(reading: &mut Reading<'_>, node: &Node) -> Option<Probe> {
    let what = "a probe";
    let fields = reading.mapping(node, what)?;
    let transport_node = fields.require(reading, "transport")?;
    let words = [("http", Transport::Http), ("mcp", Transport::Tool)];
    let transport = reading.word(transport_node, "probe transport", &words)?;
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
    reading.fields(node, what, known)?;
    let target = fields.require(reading, "probe_target_id").and_then(|node| {
        let id = reading.text(node, "`probe_target_id`")?;
        let is_slug = id.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && id.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'));
        if !is_slug {
            probe_error(reading, node.span, "`probe_target_id` is no slug", "use `a-z0-9_-`");
        }
        Some(id.to_owned())
    });
    let mut count = 0_usize;
    let mut list = |reading: &mut Reading<'_>, name: &str| {
        parameters(reading, &fields, name, transport, &mut count)
    };
    let call = match transport {
        Transport::Http => {
            let is_get = fields.require(reading, "method").is_some_and(|node| {
                let method = reading.text(node, "`method`");
                if method.is_some_and(|method| method != "GET") {
                    probe_error(reading, node.span, "a probe changes nothing", "use `GET`");
                }
                method == Some("GET")
            });
            let template = fields.require(reading, "path_template").and_then(|node| {
                let path = reading.text(node, "`path_template`")?;
                if !path.starts_with('/') {
                    let help = "a probe stays on its target: write the path only";
                    probe_error(reading, node.span, "`path_template` must start with `/`", help);
                    return None;
                }
                match Template::parse(path) {
                    Ok(template) => Some((template, node.span)),
                    Err(error) => {
                        let help = "write `/v1/things/{id}`";
                        probe_error(reading, node.span, error.reason, help);
                        None
                    }
                }
            });
            let path = list(reading, "path_params");
            let query = list(reading, "query_params");
            if let Some((template, span)) = &template {
                let named = |name: &str| path.iter().any(|parameter| parameter.name == name);
                if template.names().any(|name| !named(name)) {
                    let message = "a parameter of `path_template` has no value";
                    probe_error(reading, *span, message, "name it in `path_params`");
                }
            }
            template.filter(|_| is_get).map(|(template, _)| ProbeCall::Http {
                template,
                path,
                query,
            })
        }
        Transport::Tool => {
            let name = fields.require(reading, "tool");
            let name = name.and_then(|node| reading.text(node, "`tool`"));
            let arguments = list(reading, "arguments");
            name.map(|name| ProbeCall::Tool { name: name.to_owned(), arguments })
        }
    };
    if count > MAX_PARAMETERS {
        probe_error(reading, node.span, "over 8 parameters", "at most 8");
    }
    let mut decisive_negative = Vec::new();
    if let Some(node) = fields.get("decisive_negative") {
        for element in reading.sequence(node, "`decisive_negative`").unwrap_or_default() {
            match &element.data {
                Data::Number(text) if text == "404" => decisive_negative.push(404),
                Data::Number(text) if text == "410" => decisive_negative.push(410),
                _ => {
                    let message = "only 404 and 410 say that something is not there";
                    probe_error(reading, element.span, message, "remove it");
                }
            }
        }
    }
    Some(Probe { target: target?, is_declared: false, call: call?, decisive_negative })
}

fn parameters(
    reading: &mut Reading<'_>,
    fields: &Fields<'_>,
    name: &str,
    transport: Transport,
    count: &mut usize,
) -> Vec<Parameter> {
    let Some(node) = fields.get(name) else { return Vec::new() };
    let elements = reading.sequence(node, "the parameters").unwrap_or_default();
    let mut names = HashSet::new();
    *count = count.saturating_add(elements.len());
    elements
        .iter()
        .filter_map(|element| parameter(reading, element, transport, &mut names))
        .collect()
}

fn parameter<'t>(
    reading: &mut Reading<'_>,
    node: &'t Node,
    transport: Transport,
    names: &mut HashSet<&'t str>,
) -> Option<Parameter> {
    #[derive(Clone, Copy)]
    enum From {
        Id,
        Literal,
        Request,
    }
    let fields = reading.fields(node, "a probe parameter", &["name", "input"])?;
    let name = fields.require(reading, "name").and_then(|node| {
        let name = reading.text(node, "`name`")?;
        if !names.insert(name) {
            probe_error(reading, node.span, "a parameter given twice", "keep one of them");
        }
        Some(name.to_owned())
    });
    let input = fields.require(reading, "input")?;
    let fields = reading.fields(input, "`input`", &["from", "pointer", "value"])?;
    let from = fields.require(reading, "from")?;
    let words =
        [("request_pointer", From::Request), ("upstream_id", From::Id), ("literal", From::Literal)];
    let input = match reading.word(from, "parameter source", &words)? {
        From::Id => Input::UpstreamId,
        From::Literal => Input::Literal(Arc::new(fields.require(reading, "value")?.to_doc()?)),
        From::Request => {
            if transport == Transport::Tool {
                let help = "use `upstream_id`; the request is not kept for it";
                let message = "an MCP probe argument fed from the request";
                probe_error(reading, from.span, message, help);
            }
            let node = fields.require(reading, "pointer")?;
            let text = reading.text(node, "`pointer`")?;
            match Pointer::parse(text) {
                Ok(pointer) => Input::Request(pointer),
                Err(_) => {
                    probe_error(reading, node.span, "not a JSON pointer", "write `/path/name`");
                    return None;
                }
            }
        }
    };
    Some(Parameter { name: name?, input })
}

fn probe_error(reading: &mut Reading<'_>, span: Span, message: &str, help: &str) {
    reading.error("spec/probe", span, message).help(help);
}
