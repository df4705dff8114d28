//! `github-mini` over plain HTTP: which request is which change of [`World`].
//!
//! Pure: a call in, a reply out; the sockets are in [`super::gateway`]. Idempotency keys are
//! honoured on comments and issues (GitHub itself honours none) and not on releases, so that both
//! kinds of carrier can be shown. `/_demo/...` is the stage machinery, which no real gateway has.

use http::Method;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::world::{self, Answer, Fault, IssueChange, Recall, ReleaseChange, World};

/// One request, as far as it matters here.
pub(super) struct Call<'a> {
    pub(super) method: &'a Method,
    /// The path without the query.
    pub(super) path: &'a str,
    /// `Idempotency-Key`
    pub(super) key: Option<&'a str>,
    pub(super) body: &'a [u8],
}

/// What becomes of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Reply {
    /// It is answered.
    Answer(Answer),
    /// It was performed, and the connection ends without an answer.
    Lost,
}

/// Performs one request.
pub(super) fn answer(world: &mut World, call: &Call<'_>) -> Reply {
    let before = world.effects();
    let answer = match keyed(call) {
        None => route(world, call),
        Some(key) => {
            let request = fingerprint(call);
            match world.recall(&key, &request) {
                Recall::Known(answer) => answer,
                Recall::OtherRequest => problem(422, "the key was used for another request"),
                Recall::First => {
                    let answer = route(world, call);
                    if world.effects() > before {
                        world.remember(&key, request, answer.clone());
                    }
                    answer
                }
            }
        }
    };
    if world.effects() > before && world.take_loss() { Reply::Lost } else { Reply::Answer(answer) }
}

/// The key under which the answer is kept, where keys are honoured.
fn keyed(call: &Call<'_>) -> Option<String> {
    let takes_keys = call.method == Method::POST
        && (call.path.ends_with("/issues") || call.path.ends_with("/comments"));
    let key = call.key.map(str::trim).filter(|key| takes_keys && !key.is_empty());
    key.map(|key| format!("http {key}"))
}

fn fingerprint(call: &Call<'_>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [call.method.as_str().as_bytes(), call.path.as_bytes(), call.body] {
        hash.update(part.len().to_string());
        hash.update(b":");
        hash.update(part);
    }
    hash.finalize().into()
}

fn route(world: &mut World, call: &Call<'_>) -> Answer {
    let decoded = call.path.split('/').skip(1).map(|segment| percent_decode_str(segment));
    let Ok(segments) = decoded.map(|segment| segment.decode_utf8()).collect::<Result<Vec<_>, _>>()
    else {
        return problem(400, "the path is not UTF-8");
    };
    let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    let (rest, is_known) = match segments.as_slice() {
        ["_demo", rest @ ..] => return control(world, call.method, rest),
        ["repos", owner, repository, rest @ ..] => {
            (rest, *owner == world::OWNER && *repository == world::REPOSITORY)
        }
        _ => return problem(404, "Not Found"),
    };
    if !is_known {
        return problem(404, "Not Found");
    }
    let done = match (call.method.as_str(), rest) {
        ("GET", []) => Ok((200, world.repository())),
        ("GET", ["issues"]) => Ok((200, world.issues())),
        ("POST", ["issues"]) => with_body(call, |body| {
            let title = text(body, "title")?.ok_or(Fault::Invalid("title is missing"))?;
            world.create_issue(title, text(body, "body")?).map(|issue| (201, issue))
        }),
        ("GET", ["issues", number]) => id(number).and_then(|n| world.issue(n)).map(|i| (200, i)),
        ("PATCH", ["issues", number]) => with_body(call, |body| {
            let change = IssueChange {
                title: text(body, "title")?,
                body: text(body, "body")?,
                state: text(body, "state")?,
            };
            world.update_issue(id(number)?, change).map(|issue| (200, issue))
        }),
        ("GET", ["issues", "comments", comment]) => {
            id(comment).and_then(|id| world.comment(id)).map(|comment| (200, comment))
        }
        ("DELETE", ["issues", "comments", comment]) => {
            id(comment).and_then(|id| world.delete_comment(id)).map(|()| (204, Value::Null))
        }
        ("GET", ["issues", number, "comments"]) => {
            id(number).and_then(|number| world.comments(number)).map(|comments| (200, comments))
        }
        ("POST", ["issues", number, "comments"]) => with_body(call, |body| {
            let text = text(body, "body")?.ok_or(Fault::Invalid("body is missing"))?;
            world.create_comment(id(number)?, text).map(|comment| (201, comment))
        }),
        ("POST", ["releases"]) => with_body(call, |body| {
            world.create_release(release(body)?).map(|release| (201, release))
        }),
        ("GET", ["releases", "tags", tag]) => world.release_by_tag(tag).map(|found| (200, found)),
        ("GET", ["releases", release]) => {
            id(release).and_then(|id| world.release(id)).map(|release| (200, release))
        }
        ("PATCH", ["releases", number]) => with_body(call, |body| {
            world.update_release(id(number)?, release(body)?).map(|release| (200, release))
        }),
        ("DELETE", ["releases", release]) => {
            id(release).and_then(|id| world.delete_release(id)).map(|()| (204, Value::Null))
        }
        _ => Err(Fault::NotFound),
    };
    match done {
        Ok((status, body)) => Answer { status, body },
        Err(fault) => {
            let status = match fault {
                Fault::Full | Fault::Invalid(_) => 422,
                Fault::NotFound => 404,
            };
            problem(status, &fault.to_string())
        }
    }
}

fn control(world: &mut World, method: &Method, rest: &[&str]) -> Answer {
    match (method.as_str(), rest) {
        ("GET", ["counts"]) => Answer { status: 200, body: world.counts() },
        ("POST", ["lose-next-answer"]) => {
            world.lose_next_answer();
            Answer { status: 204, body: Value::Null }
        }
        _ => problem(404, "Not Found"),
    }
}

fn problem(status: u16, message: &str) -> Answer {
    Answer { status, body: json!({"message": message, "status": status.to_string()}) }
}

type Done = Result<(u16, Value), Fault>;

fn with_body(call: &Call<'_>, perform: impl FnOnce(&Map<String, Value>) -> Done) -> Done {
    match serde_json::from_slice(call.body) {
        Ok(Value::Object(members)) => perform(&members),
        _ => Err(Fault::Invalid("the body is no JSON object")),
    }
}

fn text<'a>(body: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, Fault> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Fault::Invalid("an input is not text")),
    }
}

fn release(body: &Map<String, Value>) -> Result<ReleaseChange<'_>, Fault> {
    let draft = match body.get("draft") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(draft)) => Some(*draft),
        Some(_) => return Err(Fault::Invalid("draft is neither true nor false")),
    };
    Ok(ReleaseChange {
        tag: text(body, "tag_name")?,
        name: text(body, "name")?,
        body: text(body, "body")?,
        draft,
    })
}

/// A number out of a path; anything else names nothing.
fn id(text: &str) -> Result<u64, Fault> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain).ok_or(Fault::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(world: &mut World, method: &str, path: &str, body: &str) -> Answer {
        with_key(world, method, path, body, None)
    }

    fn with_key(
        world: &mut World,
        method: &str,
        path: &str,
        body: &str,
        key: Option<&str>,
    ) -> Answer {
        let method = method.parse().unwrap();
        match answer(world, &Call { method: &method, path, key, body: body.as_bytes() }) {
            Reply::Answer(answer) => answer,
            Reply::Lost => panic!("lost"),
        }
    }

    #[test]
    fn every_write_is_seen_by_a_read_and_counted() {
        let mut world = World::new();
        let steps = [
            ("GET", "/repos/octo/hello", "", 200),
            ("POST", "/repos/octo/hello/issues", r#"{"title":"t","body":"b"}"#, 201),
            ("GET", "/repos/octo/hello/issues/2", "", 200),
            ("PATCH", "/repos/octo/hello/issues/2", r#"{"state":"closed"}"#, 200),
            ("POST", "/repos/octo/hello/issues/2/comments", r#"{"body":"c"}"#, 201),
            ("GET", "/repos/octo/hello/issues/comments/101", "", 200),
            ("DELETE", "/repos/octo/hello/issues/comments/101", "", 204),
            ("GET", "/repos/octo/hello/issues/comments/101", "", 404),
            ("POST", "/repos/octo/hello/releases", r#"{"tag_name":"v1","draft":true}"#, 201),
            ("GET", "/repos/octo/hello/releases/tags/v1", "", 404),
            ("PATCH", "/repos/octo/hello/releases/102", r#"{"draft":false}"#, 200),
            ("GET", "/repos/octo/hello/releases/tags/v1", "", 200),
            ("POST", "/repos/octo/hello/releases", r#"{"tag_name":"v1"}"#, 422),
            ("DELETE", "/repos/octo/hello/releases/102", "", 204),
        ];

        for (method, path, body, status) in steps {
            assert_eq!(send(&mut world, method, path, body).status, status, "{method} {path}");
        }

        let counts = send(&mut world, "GET", "/_demo/counts", "").body;
        let expected = json!({
            "comments": {"created": 1, "updated": 0, "deleted": 1},
            "issues": {"created": 1, "updated": 1, "deleted": 0},
            "releases": {"created": 1, "updated": 1, "deleted": 1},
        });
        assert_eq!(counts, expected);
    }

    #[test]
    fn bad_input_has_no_effect() {
        let mut world = World::new();
        let cases = [
            ("POST", "/repos/octo/hello/issues", "{", 422),
            ("POST", "/repos/octo/hello/issues", "[]", 422),
            ("POST", "/repos/octo/hello/issues", r#"{"title":""}"#, 422),
            ("POST", "/repos/octo/hello/issues", r#"{"title":5}"#, 422),
            ("PATCH", "/repos/octo/hello/issues/1", r#"{"state":"gone"}"#, 422),
            ("PATCH", "/repos/octo/hello/issues/+1", r#"{"state":"closed"}"#, 404),
            ("POST", "/repos/octo/hello/issues/9/comments", r#"{"body":"c"}"#, 404),
            ("DELETE", "/repos/octo/hello/issues/comments/9", "", 404),
            ("POST", "/repos/octo/hello/releases", r#"{"draft":true}"#, 422),
            ("POST", "/repos/octo/hello/releases", r#"{"tag_name":"v","draft":"no"}"#, 422),
            ("POST", "/repos/octo/other/issues", r#"{"title":"t"}"#, 404),
            ("POST", "/repos/octo/%ff/issues", r#"{"title":"t"}"#, 400),
            ("PUT", "/repos/octo/hello/issues/1", r#"{"title":"t"}"#, 404),
            ("GET", "/", "", 404),
        ];

        for (method, path, body, status) in cases {
            assert_eq!(send(&mut world, method, path, body).status, status, "{method} {path}");
        }

        assert_eq!(world.effects(), 0);
    }

    #[test]
    fn a_key_stands_for_one_effect_and_one_answer() {
        let mut world = World::new();
        let path = "/repos/octo/hello/issues/1/comments";

        let first = with_key(&mut world, "POST", path, r#"{"body":"c"}"#, Some("k"));
        let again = with_key(&mut world, "POST", path, r#"{"body":"c"}"#, Some("k"));
        let other = with_key(&mut world, "POST", path, r#"{"body":"d"}"#, Some("k"));

        assert_eq!(first.status, 201);
        assert_eq!(again, first);
        assert_eq!(other.status, 422);
        assert_eq!(world.effects(), 1);
    }

    #[test]
    fn a_failed_request_does_not_use_its_key_up() {
        let mut world = World::new();
        let path = "/repos/octo/hello/issues";

        let failed = with_key(&mut world, "POST", path, "{}", Some("k"));
        let mended = with_key(&mut world, "POST", path, r#"{"title":"t"}"#, Some("k"));

        assert_eq!((failed.status, mended.status), (422, 201));
    }

    #[test]
    fn a_release_takes_no_key() {
        let mut world = World::new();
        let path = "/repos/octo/hello/releases";

        for _ in 0..2 {
            let body = r#"{"tag_name":"v1","draft":true}"#;
            assert_eq!(with_key(&mut world, "POST", path, body, Some("k")).status, 201);
        }

        assert_eq!(world.effects(), 2);
    }

    #[test]
    fn an_answer_is_lost_once_and_only_after_an_effect() {
        let mut world = World::new();
        let path = "/repos/octo/hello/issues";
        let method = Method::POST;
        let call = |body: &'static str| Call {
            method: &method,
            path,
            key: Some("k"),
            body: body.as_bytes(),
        };
        assert_eq!(send(&mut world, "POST", "/_demo/lose-next-answer", "").status, 204);

        let failed = answer(&mut world, &call("{}"));
        let lost = answer(&mut world, &call(r#"{"title":"t"}"#));
        let again = answer(&mut world, &call(r#"{"title":"t"}"#));

        assert!(matches!(failed, Reply::Answer(Answer { status: 422, .. })));
        assert_eq!(lost, Reply::Lost);
        assert!(matches!(again, Reply::Answer(Answer { status: 201, .. })));
        assert_eq!(world.effects(), 1);
    }

    #[test]
    fn state_is_bounded() {
        let mut world = World::new();
        let path = "/repos/octo/hello/issues";

        let mut last = 0;
        for n in 0..=world::MAX_ITEMS {
            let key = format!("k{n}");
            let body = r#"{"title":"t"}"#;
            last = with_key(&mut world, "POST", path, body, Some(&key)).status;
        }

        assert_eq!(last, 422);
    }
}
