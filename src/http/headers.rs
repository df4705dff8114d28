//! Which headers belong to whom: one hop, this proxy, a credential, or the two ends.
//!
//! [`sift`] takes a request's headers apart in one pass: it refuses what two readers could read
//! differently, takes our controls out, and leaves what is forwarded. Decisions are made on what is
//! left, so that a header which `Connection` names can never be decided on and then not sent
//! (standards H-3). Names count with `_` as `-`, because many gateways fold them.
//!
//! [`sift_answer`] does the same for an answer's head and [`sift_trailers`] for the fields after its
//! body: what only we may say, or only a caller may ask of us, never passes as an upstream's word
//! (standards MCP-39). An upstream's own `Idempotent-Replayed` is lost with it, on purpose: the reader
//! of an answer could not tell which of the two stores of recorded answers it speaks of.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::call::digest::is_credential;
use crate::call::refusal::Refusal;
use crate::call::{Confirmation, Control};
use crate::contract::key::Key;
use crate::contract::overrides;

/// The caller's idempotency key.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The caller's confirmation.
pub const EFFECT_CONFIRM: HeaderName = HeaderName::from_static("effect-confirm");
/// Asks for the draft form.
pub const EFFECT_STAGE: HeaderName = HeaderName::from_static("effect-stage");
/// The task's label.
pub const EFFECT_TASK: HeaderName = HeaderName::from_static("effect-task");
/// The report, unless the configuration names another header.
pub const REPORT: HeaderName = HeaderName::from_static("x-anvil-effect");
/// Marks a recorded answer.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The longest task label, in bytes.
const MAX_TASK: usize = 200;

const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Fields of one hop (standards H-2), always removed.
const HOP_BY_HOP: [HeaderName; 10] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HTTP2_SETTINGS,
    KEEP_ALIVE,
    PROXY_CONNECTION,
];

/// A header that this proxy or HTTP itself gives a meaning, so that nothing else may be told by it.
pub fn has_meaning(name: &HeaderName) -> bool {
    !matches!(class_of(name.as_str(), &REPORT), NameClass::EndToEnd)
        || [header::COOKIE, header::VIA, header::FORWARDED, REPLAYED].contains(name)
        || name.as_str().starts_with("x-forwarded-")
}

/// What [`sift`] found.
#[derive(Debug, Default)]
pub struct Sifted {
    /// What was asked of us.
    pub control: Control,
    /// What `Connection` named; it is gone.
    pub nominated: Vec<HeaderName>,
    /// How many headers that only we may set were removed.
    pub stripped: u32,
    /// The request asks for an upgrade that is not the harmless `h2c` offer.
    pub upgrade: bool,
    /// The request asks for `TE: trailers`.
    pub te_trailers: bool,
    /// The request expects `100 Continue` before it sends its body.
    pub expects_continue: bool,
    /// It says which proxies it came through.
    pub has_via: bool,
    /// What two readers could read differently: refused where the rules are enforced.
    pub oddity: Option<Refusal>,
}

/// Takes a request's headers apart; what is left in `headers` is forwarded.
///
/// # Errors
///
/// A refusal for a message that is malformed as HTTP. What is merely odd (a malformed or doubled control,
/// a doubled credential, a mis-spelt or overriding header, an expectation that nobody knows) is told in
/// [`Sifted::oddity`], so that observe mode can pass it.
pub fn sift(headers: &mut HeaderMap, report: &HeaderName) -> Result<Sifted, Refusal> {
    let mut sifted = Sifted::default();
    let mut has_hop = false;
    let mut has_control = false;
    let mut has_expect = false;
    let has_doubles = headers.len() > headers.keys_len();
    let mut reserved: Vec<HeaderName> = Vec::new();
    for name in headers.keys() {
        match class_of(name.as_str(), report) {
            NameClass::EndToEnd => {}
            NameClass::Expect => has_expect = true,
            NameClass::Hop => has_hop = true,
            NameClass::Single(word) => {
                has_control |= is_control(word);
                if has_doubles && headers.get_all(name).iter().nth(1).is_some() {
                    let refusal = Refusal::DuplicateHeader(word);
                    if matches!(word, "host" | "content-length" | "content-type") {
                        return Err(refusal);
                    }
                    sifted.oddity.get_or_insert(refusal);
                }
            }
            NameClass::Override => {
                sifted.oddity.get_or_insert(Refusal::MethodOverride);
            }
            NameClass::Reserved => reserved.push(name.clone()),
            NameClass::Misspelt(word) => {
                sifted.oddity.get_or_insert(Refusal::ReservedHeader(word));
            }
            NameClass::Via => sifted.has_via = true,
        }
    }
    for name in reserved {
        sifted.stripped = sifted.stripped.saturating_add(1);
        headers.remove(name);
    }
    if has_hop {
        hops(headers, &mut sifted)?;
    }
    if has_expect {
        // Any other expectation passes as it came where the rules are only observed.
        if headers
            .get(header::EXPECT)
            .is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
        {
            headers.remove(header::EXPECT);
            sifted.expects_continue = true;
        } else {
            sifted.oddity.get_or_insert(Refusal::Expectation);
        }
    }
    if has_control {
        sifted.control = controls(headers, &mut sifted.oddity);
    }
    Ok(sifted)
}

/// Takes an answer's headers apart: fields of one hop, what `Connection` names, reports and controls
/// that are not ours, and `Alt-Svc`, which would lead callers around us (standards H-16). Returns how
/// many headers that only we may set were removed.
pub fn sift_answer(headers: &mut HeaderMap, report: &HeaderName) -> u32 {
    let mut removed: Vec<HeaderName> = Vec::new();
    let mut stripped = 0_u32;
    let mut has_hop = false;
    for name in headers.keys() {
        match class_of(name.as_str(), report) {
            NameClass::Hop => has_hop = true,
            class => {
                let is_ours = is_ours(&class, name, report);
                if is_ours || *name == header::ALT_SVC {
                    stripped = stripped.saturating_add(u32::from(is_ours));
                    removed.push(name.clone());
                }
            }
        }
    }
    for name in removed {
        headers.remove(name);
    }
    if has_hop {
        for name in nominated(headers) {
            headers.remove(name);
        }
        for name in HOP_BY_HOP.iter().filter(|name| **name != header::TRAILER) {
            headers.remove(name);
        }
        if headers.contains_key(header::TRAILER) {
            sift_announced(headers, report);
        }
    }
    stripped
}

/// Takes out of an answer's trailers what may not come after a body: reports and controls, and whatever
/// frames, routes or dates the message (RFC 9110 section 6.5.1).
pub fn sift_trailers(trailers: &mut HeaderMap, report: &HeaderName) {
    let names: Vec<HeaderName> =
        trailers.keys().filter(|name| !may_trail(name, report)).cloned().collect();
    for name in names {
        trailers.remove(name);
    }
}

/// Leaves in `Trailer` only what [`sift_trailers`] passes.
fn sift_announced(headers: &mut HeaderMap, report: &HeaderName) {
    let announced: Vec<HeaderName> = headers
        .get_all(header::TRAILER)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| may_trail(name, report))
        .collect();
    let text = announced.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ");
    match HeaderValue::from_str(&text) {
        Ok(value) if !text.is_empty() => headers.insert(header::TRAILER, value),
        Ok(_) | Err(_) => headers.remove(header::TRAILER),
    };
}

fn may_trail(name: &HeaderName, report: &HeaderName) -> bool {
    let class = class_of(name.as_str(), report);
    matches!(class, NameClass::EndToEnd)
        && !is_ours(&class, name, report)
        && *name != header::ALT_SVC
        && *name != header::SET_COOKIE
}

/// Whether only we may say it, or only a caller may ask it of us.
fn is_ours(class: &NameClass, name: &HeaderName, report: &HeaderName) -> bool {
    match class {
        NameClass::Reserved => true,
        NameClass::Single(word) | NameClass::Misspelt(word) => is_control(word),
        NameClass::EndToEnd
        | NameClass::Expect
        | NameClass::Hop
        | NameClass::Override
        | NameClass::Via => folded_eq(name.as_str(), report.as_str()),
    }
}

fn is_control(word: &str) -> bool {
    word.starts_with("effect-") || word == "idempotency-key"
}

enum NameClass {
    /// Forwarded.
    EndToEnd,
    /// `Expect`.
    Expect,
    /// Of one hop.
    Hop,
    /// May come once only; the word names it.
    Single(&'static str),
    /// Asks for another method or path.
    Override,
    /// Ours to set: removed.
    Reserved,
    /// Spelt with `_` so that a gateway may fold it onto the named header.
    Misspelt(&'static str),
    /// `Via`: forwarded, once it is known that we are not in it.
    Via,
}

fn class_of(name: &str, report: &HeaderName) -> NameClass {
    if name.contains('_') {
        let folded = name.replace('_', "-");
        return match plain_class(&folded, report) {
            NameClass::EndToEnd | NameClass::Expect | NameClass::Via => NameClass::EndToEnd,
            NameClass::Override => NameClass::Override,
            NameClass::Reserved => NameClass::Reserved,
            NameClass::Single(word) => NameClass::Misspelt(word),
            NameClass::Hop | NameClass::Misspelt(_) => NameClass::Misspelt("a hop-by-hop field"),
        };
    }
    plain_class(name, report)
}

fn plain_class(name: &str, report: &HeaderName) -> NameClass {
    match name {
        "connection"
        | "http2-settings"
        | "keep-alive"
        | "proxy-authenticate"
        | "proxy-authorization"
        | "proxy-connection"
        | "te"
        | "trailer"
        | "transfer-encoding"
        | "upgrade" => NameClass::Hop,
        "content-length" => NameClass::Single("content-length"),
        "content-type" => NameClass::Single("content-type"),
        "effect-confirm" => NameClass::Single("effect-confirm"),
        "effect-stage" => NameClass::Single("effect-stage"),
        "effect-task" => NameClass::Single("effect-task"),
        "host" => NameClass::Single("host"),
        "idempotency-key" => NameClass::Single("idempotency-key"),
        "idempotent-replayed" => NameClass::Reserved,
        // Crumbs of HTTP/2 are several lines by right.
        "cookie" => NameClass::EndToEnd,
        "expect" => NameClass::Expect,
        "via" => NameClass::Via,
        _ if overrides::is_header(name) => NameClass::Override,
        _ if is_credential(name) => NameClass::Single("a credential header"),
        _ if name.starts_with("x-anvil-") || name == report.as_str() => NameClass::Reserved,
        _ => NameClass::EndToEnd,
    }
}

fn folded_eq(left: &str, right: &str) -> bool {
    left.len() == right.len()
        && left.bytes().zip(right.bytes()).all(|(left, right)| {
            let left = if left == b'_' { b'-' } else { left };
            left == right
        })
}

fn hops(headers: &mut HeaderMap, sifted: &mut Sifted) -> Result<(), Refusal> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !is_chunked || codings.next().is_some() {
            return Err(Refusal::Framing("only the transfer coding `chunked` is understood"));
        }
    }
    sifted.te_trailers = headers.get_all(header::TE).iter().any(|value| {
        value.to_str().is_ok_and(|te| te.split(',').any(|te| te.trim() == "trailers"))
    });
    sifted.upgrade = headers.get_all(header::UPGRADE).iter().any(|value| {
        // JDK clients offer h2c on every call; dropping the offer is an answer (contract section 9).
        !value.as_bytes().eq_ignore_ascii_case(b"h2c")
    });
    for name in nominated(headers) {
        let is_depended_on = matches!(
            plain_class(name.as_str(), &REPORT),
            NameClass::Single(_) | NameClass::Override
        );
        if is_depended_on || name == header::COOKIE || name.as_str().starts_with("mcp-") {
            return Err(Refusal::Framing("`Connection` names a header that a rule depends on"));
        }
        headers.remove(&name);
        sifted.nominated.push(name);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    Ok(())
}

/// The field names in `Connection`, its own options aside.
fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|option| {
            !option.eq_ignore_ascii_case("close")
                && !option.eq_ignore_ascii_case("keep-alive")
                && !option.eq_ignore_ascii_case("upgrade")
                && !option.eq_ignore_ascii_case("te")
                && !option.eq_ignore_ascii_case("http2-settings")
        })
        .filter_map(|option| HeaderName::from_bytes(option.as_bytes()).ok())
        .collect()
}

/// Reads the controls and takes out those that are only ours; one that is malformed counts as not given
/// and is an oddity. `Idempotency-Key` stays where it is: whether it goes on is the carrier's business.
fn controls(headers: &mut HeaderMap, oddity: &mut Option<Refusal>) -> Control {
    let mut control = Control::default();
    if let Some(value) = headers.get(&IDEMPOTENCY_KEY) {
        match Key::from_header(value.as_bytes()) {
            Ok(key) => control.key = Some(key),
            Err(error) => {
                oddity.get_or_insert(Refusal::InvalidKey(error));
            }
        }
    }
    let mut odd = |what| {
        oddity.get_or_insert(Refusal::InvalidMeta(what));
    };
    if let Some(value) = headers.remove(&EFFECT_CONFIRM) {
        control.confirm = confirmation(&value);
        if control.confirm.is_none() {
            odd("Effect-Confirm is `true` or a token");
        }
    }
    if let Some(value) = headers.remove(&EFFECT_STAGE) {
        match value.as_bytes() {
            b"true" => control.stage = true,
            b"false" => {}
            _ => odd("Effect-Stage is `true` or `false`"),
        }
    }
    if let Some(value) = headers.remove(&EFFECT_TASK) {
        let label = value.to_str().ok().filter(|label| {
            !label.is_empty() && label.len() <= MAX_TASK && label.bytes().all(|b| b >= b' ')
        });
        control.task = label.map(str::to_owned);
        if control.task.is_none() {
            odd("Effect-Task is 1 to 200 visible characters");
        }
    }
    control
}

fn confirmation(value: &HeaderValue) -> Option<Confirmation> {
    match value.to_str().unwrap_or_default().trim() {
        "true" => Some(Confirmation::Word),
        "" => None,
        token => Some(Confirmation::Token(token.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn refusal(lines: &[(&str, &str)]) -> Option<&'static str> {
        match sift(&mut headers(lines), &REPORT) {
            Ok(sifted) => sifted.oddity.map(|refusal| refusal.code()),
            Err(refusal) => Some(refusal.code()),
        }
    }

    #[test]
    fn h_1_what_connection_names_is_removed_with_the_fields_of_one_hop() {
        let mut map = headers(&[
            ("connection", "close, X-Foo"),
            ("connection", "keep-alive , x-bar"),
            ("x-foo", "1"),
            ("x-bar", "2"),
            ("keep-alive", "5"),
            ("proxy-authorization", "s"),
            ("te", "trailers"),
            ("x-kept", "3"),
        ]);

        let sifted = sift(&mut map, &REPORT).unwrap();

        let names: Vec<_> = map.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-kept"]);
        assert_eq!(sifted.nominated.len(), 2);
        assert!(sifted.te_trailers);
    }

    #[test]
    fn h_3_connection_may_not_name_what_a_rule_depends_on() {
        for name in
            ["Authorization", "Idempotency-Key", "Effect-Confirm", "Host", "Mcp-Name", "Cookie"]
        {
            assert_eq!(refusal(&[("connection", name)]), Some("framing"), "{name}");
        }
    }

    #[test]
    fn h_20c_only_chunked_is_a_transfer_coding() {
        assert_eq!(refusal(&[("transfer-encoding", "chunked")]), None);
        for coding in ["gzip, chunked", "xchunked", "chunked, chunked", "identity", "\"chunked\""] {
            assert_eq!(refusal(&[("transfer-encoding", coding)]), Some("framing"), "{coding}");
        }
        let twice = [("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")];
        assert_eq!(refusal(&twice), Some("framing"));
    }

    #[test]
    fn c5_h_32_method_overrides_are_refused() {
        for name in [
            "X-HTTP-Method-Override",
            "x-http-method",
            "X-Method-Override",
            "x_http_method",
            "_method",
        ] {
            assert_eq!(refusal(&[(name, "DELETE")]), Some("method_override"), "{name}");
        }
    }

    #[test]
    fn doubled_and_misspelt_headers_are_refused() {
        let doubled = [("idempotency-key", "a"), ("idempotency-key", "b")];
        assert_eq!(refusal(&doubled), Some("duplicate_header"));
        assert_eq!(refusal(&[("host", "a"), ("host", "b")]), Some("duplicate_header"));
        let types = [("content-type", "a/b"), ("content-type", "a/b")];
        assert_eq!(refusal(&types), Some("duplicate_header"));
        assert_eq!(
            refusal(&[("authorization", "a"), ("authorization", "b")]),
            Some("duplicate_header")
        );
        assert_eq!(refusal(&[("idempotency_key", "a")]), Some("reserved_header"));
        assert_eq!(refusal(&[("content_length", "1")]), Some("reserved_header"));
        assert_eq!(refusal(&[("transfer_encoding", "chunked")]), Some("reserved_header"));
        assert_eq!(refusal(&[("x_custom", "1")]), None);
    }

    #[test]
    fn h_8b_reports_from_outside_never_pass() {
        let own = HeaderName::from_static("x-own-report");
        let lines = [("x-anvil-effect", "{}"), ("X_Anvil_Effect", "{}"), ("x-own-report", "{}")];
        let mut request = headers(&lines);
        let mut answer = headers(&lines);
        answer.insert("idempotent_replayed", "true".parse().unwrap());
        answer.insert(REPLAYED, "true".parse().unwrap());

        assert_eq!(sift(&mut request, &own).unwrap().stripped, 3);
        assert_eq!(sift_answer(&mut answer, &own), 5);

        assert!(request.is_empty());
        assert!(answer.is_empty());
    }

    #[test]
    fn mcp_39_controls_from_an_upstream_never_pass_in_its_head_or_its_trailers() {
        let lines = [
            ("effect-confirm", "true"),
            ("Effect_Stage", "true"),
            ("effect-task", "t"),
            ("idempotency-key", "k"),
            ("Idempotent_Replayed", "true"),
            ("x-anvil-effect", "{}"),
            ("x-kept", "1"),
        ];
        let (mut answer, mut trailers) = (headers(&lines), headers(&lines));
        trailers.insert("content-length", "1".parse().unwrap());
        trailers.insert("grpc-status", "0".parse().unwrap());

        assert_eq!(sift_answer(&mut answer, &REPORT), 6);
        sift_trailers(&mut trailers, &REPORT);

        assert_eq!(answer.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept"]);
        let mut kept: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
        kept.sort_unstable();
        assert_eq!(kept, ["grpc-status", "x-kept"]);
    }

    #[test]
    fn h_13_only_trailers_that_pass_are_announced() {
        let own = HeaderName::from_static("x-own-report");
        let announced = |lines: &[(&str, &str)]| {
            let mut answer = headers(lines);
            sift_answer(&mut answer, &own);
            answer.get("trailer").map(|value| value.to_str().unwrap().to_owned())
        };
        let mixed = [("trailer", "X-Own-Report, X-Sum"), ("trailer", "X_Anvil_Effect,Grpc-Status")];
        assert_eq!(announced(&mixed).as_deref(), Some("x-sum, grpc-status"));
        assert_eq!(announced(&[("trailer", "X-Anvil-Effect")]), None);
    }

    #[test]
    fn h_16_alt_svc_is_dropped_and_trailer_kept_in_answers() {
        let mut answer = headers(&[
            ("alt-svc", "h3=\":443\""),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("trailer", "grpc-status"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
        ]);

        sift_answer(&mut answer, &REPORT);

        let mut names: Vec<_> = answer.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["set-cookie", "trailer"]);
        assert_eq!(answer.get_all("set-cookie").iter().count(), 2);
    }

    #[test]
    fn controls_are_read_and_taken_out() {
        let mut map = headers(&[
            ("effect-confirm", "tbc1_x"),
            ("effect-stage", "true"),
            ("effect-task", "t 1"),
            ("idempotency-key", "\"k\""),
        ]);

        let control = sift(&mut map, &REPORT).unwrap().control;

        assert_eq!(control.confirm, Some(Confirmation::Token("tbc1_x".to_owned())));
        assert!(control.stage);
        assert_eq!(control.task.as_deref(), Some("t 1"));
        assert_eq!(control.key.unwrap().as_str(), "k");
        assert_eq!(map.len(), 1);
        assert_eq!(refusal(&[("effect-stage", "yes")]), Some("effect/invalid_meta"));
        assert_eq!(refusal(&[("idempotency-key", "a,b")]), Some("idempotency_key_invalid"));
        assert_eq!(refusal(&[("expect", "200-ok")]), Some("expectation_failed"));
    }
}
