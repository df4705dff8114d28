//! What of two contracts is compared beside class, confirmation and mode: each term as it is told, and
//! whether the new one protects less.

use std::fmt::Write as _;

use crate::contract::assertion::{Assertion, Check};
use crate::contract::class::IsError;
use crate::contract::key::{Carrier, OnMismatch, Place, ReplayRule};
use crate::contract::operation::{
    Argument, Deadline, FollowUp, Lookup, Mapping, Operation, Timeouts, Trust, Verification,
};
use crate::contract::pointer::Pointer;
use crate::contract::selector::Selector;
use crate::contract::status::{MAX_STATUS, MIN_STATUS, Matcher, Statuses};

use crate::policy::Served;

/// One term before and after.
pub(super) struct Term {
    pub(super) what: &'static str,
    pub(super) before: String,
    pub(super) after: String,
    pub(super) is_weaker: bool,
}

/// Every term, changed or not.
pub(super) fn all(before: &Served, after: &Served) -> Vec<Term> {
    let (old, new) = (&before.operation, &after.operation);
    let mut terms = Vec::new();
    let mut add = |what, before, after, is_weaker| {
        terms.push(Term { what, before, after, is_weaker });
    };
    let served = |served: &Served| {
        if served.is_degraded() { "degraded, its contract has errors" } else { "as declared" }
            .to_owned()
    };
    add("served", served(before), served(after), false);
    // A read's kind goes with its class.
    if old.class.is_write() == new.class.is_write() {
        add("kind", old.kind.to_string(), new.kind.to_string(), false);
    }
    let destroys = |operation: &Operation| operation.destructive.to_string();
    add("destructive", destroys(old), destroys(new), false);
    add("carrier", carrier(&old.carrier), carrier(&new.carrier), sends_again(old, new));
    add("inverse", follow_up(old.inverse.as_ref()), follow_up(new.inverse.as_ref()), false);
    add(
        "compensate",
        follow_up(old.compensate.as_ref()),
        follow_up(new.compensate.as_ref()),
        false,
    );
    add("lookup", lookup(old.lookup.as_ref()), lookup(new.lookup.as_ref()), settles_more(old, new));
    add("draft", draft(old), draft(new), false);
    add("before", state_before(old), state_before(new), false);
    let ceilings = (before.ceiling.as_str(), after.ceiling.as_str());
    let proves_less = after.ceiling < before.ceiling;
    add("evidence", ceilings.0.to_owned(), ceilings.1.to_owned(), proves_less);
    let (was, is) = (&old.verification, &new.verification);
    let believes_more = trust(was) == Some(Trust::GatewayObservedOnly)
        && trust(is) == Some(Trust::AllowConnectorAttested);
    add("trust", trust_word(was), trust_word(is), believes_more);
    let (was, is) = (checks(was), checks(is));
    let asks_less = was.iter().any(|(name, _)| is.iter().all(|(other, _)| other != name));
    let names = |checks: &[(String, String)]| listed(checks.iter().map(|(name, _)| name.clone()));
    add("assertions", names(&was), names(&is), asks_less);
    for (name, before) in &was {
        let after = is.iter().find(|(other, _)| other == name);
        if let Some((_, after)) = after.filter(|(_, after)| after != before) {
            add("assertion", format!("{name}: {before}"), format!("{name}: {after}"), false);
        }
    }
    let id = |operation: &Operation| operation.upstream_id.as_ref().map_or_else(none, selector);
    add("upstream_id", id(old), id(new), false);
    // A read's lists are others: a read that failed changed nothing.
    if old.class.is_write() && new.class.is_write() {
        let accepted = |statuses: &Statuses| matchers(&statuses.accepted);
        add("accepted statuses", accepted(&old.statuses), accepted(&new.statuses), false);
        let rejected = |statuses: &Statuses| matchers(&statuses.definitely_rejected);
        let frees = frees_more(&old.statuses, &new.statuses);
        add("rejected statuses", rejected(&old.statuses), rejected(&new.statuses), frees);
    }
    let word = |rule: IsError| rule.to_string();
    let is_freed = old.is_error == IsError::Ambiguous && new.is_error == IsError::Rejected;
    add("is_error", word(old.is_error), word(new.is_error), is_freed);
    let (was, is) = (old.rejected_if.len(), new.rejected_if.len());
    add("rejected_if", counted(was, "assertion"), counted(is, "assertion"), was == 0 && is > 0);
    let pointers = |operation: &Operation| {
        listed(operation.sensitive.iter().map(|pointer| match pointer.as_str() {
            "" => "all of it".to_owned(),
            pointer => pointer.to_owned(),
        }))
    };
    let is_kept_back = |pointer: &Pointer| {
        new.sensitive.iter().any(|above| pointer.tokens().starts_with(above.tokens()))
    };
    let shows = !old.sensitive.iter().all(is_kept_back);
    add("sensitive", pointers(old), pointers(new), shows);
    let headers = |operation: &Operation| {
        listed(operation.vary_on.iter().map(|name| name.as_str().to_owned()))
    };
    let ignores = old.vary_on.iter().any(|name| !new.vary_on.contains(name));
    add("vary_on", headers(old), headers(new), ignores);
    let takes = |operation: &Operation| {
        let allow = operation.allow;
        let names =
            [(allow.encoded_slash, "encoded_slash"), (allow.empty_segments, "empty_segments")];
        listed(names.iter().filter(|(is_so, _)| *is_so).map(|(_, name)| (*name).to_owned()))
    };
    let takes_more = (new.allow.encoded_slash && !old.allow.encoded_slash)
        || (new.allow.empty_segments && !old.allow.empty_segments);
    add("allow", takes(old), takes(new), takes_more);
    add("timeout", timeouts(old.timeouts), timeouts(new.timeouts), false);
    let limit = |operation: &Operation| number(operation.max_body_bytes);
    add("max_body_bytes", limit(old), limit(new), false);
    let argument = |operation: &Operation| operation.confirm_argument.clone().unwrap_or_else(none);
    add("confirm_argument", argument(old), argument(new), false);
    let pin = |served: &Served| served.schema_sha256.clone().unwrap_or_else(none);
    let is_unpinned = before.schema_sha256.is_some() && after.schema_sha256.is_none();
    add("schema_sha256", pin(before), pin(after), is_unpinned);
    terms
}

fn trust(verification: &Verification) -> Option<Trust> {
    match verification {
        Verification::ResponseBinding { trust, .. } => Some(*trust),
        Verification::None | Verification::Plan(_) => None,
    }
}

fn trust_word(verification: &Verification) -> String {
    trust(verification).map_or_else(none, |trust| {
        match trust {
            Trust::GatewayObservedOnly => "gateway_observed_only",
            Trust::AllowConnectorAttested => "allow_connector_attested",
        }
        .to_owned()
    })
}

/// Every assertion: its name, and what it checks.
fn checks(verification: &Verification) -> Vec<(String, String)> {
    let one = |stage: &str, assertion: &Assertion| {
        (format!("{stage}{}", assertion.name), written(&assertion.check))
    };
    match verification {
        Verification::None => Vec::new(),
        Verification::ResponseBinding { assertions, .. } => {
            assertions.iter().map(|assertion| one("", assertion)).collect()
        }
        Verification::Plan(plan) => plan
            .stages
            .iter()
            .flat_map(|stage| {
                let id = format!("{}.", stage.id);
                stage.assertions.iter().map(move |assertion| one(&id, assertion))
            })
            .collect(),
    }
}

fn written(check: &Check) -> String {
    match check {
        Check::EqualsLiteral { actual, expected } => {
            format!("{} equals {}", selector(actual), expected.root().raw())
        }
        Check::EqualsRequest { actual, expected } => {
            format!("{} equals the request's {}", selector(actual), expected.as_str())
        }
        Check::Exists(actual) => format!("{} exists", selector(actual)),
        Check::Absent(actual) => format!("{} is absent", selector(actual)),
        Check::OneOf { actual, allowed } => {
            let allowed: Vec<&str> = allowed.iter().map(|one| one.root().raw()).collect();
            format!("{} is one of {}", selector(actual), allowed.join(", "))
        }
    }
}

fn selector(selector: &Selector) -> String {
    match selector {
        Selector::HttpStatus => "http_status".to_owned(),
        Selector::McpStructured(pointer) => format!("mcp_structured {}", pointer.as_str()),
        Selector::RequestBody(pointer) => format!("request_body {}", pointer.as_str()),
        Selector::ResponseBody(pointer) => format!("response_body {}", pointer.as_str()),
        Selector::ResponseHeader(name) => format!("response_header {name}"),
    }
}

fn none() -> String {
    "none".to_owned()
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    if names.is_empty() { none() } else { names.join(", ") }
}

fn number(number: Option<usize>) -> String {
    number.map_or_else(none, |number| number.to_string())
}

fn counted(count: usize, what: &str) -> String {
    match count {
        0 => none(),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// Whether a lost answer's call may be sent again by itself where it was not before, or no key goes
/// upstream any more.
fn sends_again(old: &Operation, new: &Operation) -> bool {
    let retention = |carrier: &Carrier| {
        let is_full = carrier.replay == Some(ReplayRule::Full);
        carrier.retention_ms.filter(|_| is_full).unwrap_or(0)
    };
    let loses_key = new.carrier.place == Place::Unsupported;
    loses_key || retention(&new.carrier) > retention(&old.carrier)
}

fn carrier(carrier: &Carrier) -> String {
    let mut text = match &carrier.place {
        Place::Header(name) => format!("header {name}"),
        Place::Query(name) => format!("query {name}"),
        Place::BodyPointer { pointer, .. } => format!("body {}", pointer.as_str()),
        Place::Argument(name) => format!("argument {name}"),
        Place::Unsupported => return none(),
    };
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let written = write!(text, ", {name} {value}");
            debug_assert!(written.is_ok());
        }
    };
    add("kept", carrier.retention_ms.map(|ms| format!("{ms} ms")));
    add("replay", carrier.replay.map(replays));
    add("on_mismatch", carrier.on_mismatch.map(mismatches));
    add("max_len", carrier.max_len.map(|length| length.to_string()));
    text
}

fn replays(rule: ReplayRule) -> String {
    match rule {
        ReplayRule::DedupOnly => "dedup_only",
        ReplayRule::Full => "full",
        ReplayRule::Latest => "latest",
        ReplayRule::SuccessOnly => "success_only",
    }
    .to_owned()
}

fn mismatches(rule: OnMismatch) -> String {
    match rule {
        OnMismatch::Error => "error",
        OnMismatch::NewOperation => "new_operation",
        OnMismatch::Replay => "replay",
    }
    .to_owned()
}

fn arguments(arguments: &[Argument]) -> String {
    let one = |argument: &Argument| {
        let value = match &argument.mapping {
            Mapping::Const(doc) => doc.root().raw().to_owned(),
            Mapping::Path(path) => path.to_string(),
        };
        format!("{}: {value}", argument.name)
    };
    let all: Vec<String> = arguments.iter().map(one).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

fn follow_up(call: Option<&FollowUp>) -> String {
    let Some(call) = call else { return none() };
    let until = match &call.deadline {
        None => String::new(),
        Some(Deadline::WithinMs(ms)) => format!(", within {ms} ms"),
        Some(Deadline::At { path, .. }) => format!(", until {path}"),
    };
    format!("{}{}{until}", call.reference.operation, arguments(&call.arguments))
}

fn lookup(lookup: Option<&Lookup>) -> String {
    let Some(lookup) = lookup else { return none() };
    let settles = lookup.settle_ms.map(|ms| format!(", settles after {ms} ms"));
    format!(
        "{}{}{}{}{}",
        lookup.reference.operation,
        arguments(&lookup.arguments),
        lookup.empty.as_ref().map(|path| format!(", empty at {path}")).unwrap_or_default(),
        match lookup.matches.len() {
            0 => String::new(),
            count => format!(", matched by {}", counted(count, "assertion")),
        },
        settles.unwrap_or_default()
    )
}

/// Whether "absent" settles an entry, and so lets its call run again, where or when it did not.
fn settles_more(old: &Operation, new: &Operation) -> bool {
    let settle = |operation: &Operation| operation.lookup.as_ref()?.settle_ms;
    settle(new).is_some_and(|new| settle(old).is_none_or(|old| new < old))
}

fn draft(operation: &Operation) -> String {
    let Some(draft) = &operation.draft else { return none() };
    let promote = follow_up(Some(&draft.promote));
    format!("{}{}, then {promote}", draft.reference.operation, arguments(&draft.arguments))
}

fn state_before(operation: &Operation) -> String {
    let Some(before) = &operation.before else { return none() };
    format!("{}{}", before.reference.operation, arguments(&before.arguments))
}

fn matchers(matchers: &[Matcher]) -> String {
    listed(matchers.iter().map(|matcher| match matcher {
        Matcher::Exact(status) => status.to_string(),
        Matcher::Range(start, end) => format!("{start}-{end}"),
    }))
}

/// Whether a status says "definitely rejected", after which the call may run again, that did not.
fn frees_more(old: &Statuses, new: &Statuses) -> bool {
    let is_in = |statuses: &Statuses, status: u16| {
        statuses.definitely_rejected.iter().any(|matcher| matcher.matches(status))
    };
    (MIN_STATUS..=MAX_STATUS).any(|status| is_in(new, status) && !is_in(old, status))
}

fn timeouts(timeouts: Timeouts) -> String {
    let Timeouts { head_ms, idle_ms, total_ms } = timeouts;
    let all = [("head_ms", head_ms), ("idle_ms", idle_ms), ("total_ms", total_ms)];
    let given = all.iter().filter_map(|(name, ms)| ms.map(|ms| format!("{name} {ms}")));
    listed(given)
}
