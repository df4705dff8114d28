//! `github-mini` over MCP: its tools, and what their calls do to [`World`].
//!
//! Pure; the protocol around it is in [`super::mcp`]. Creating tools take an `idempotency_key`
//! argument and honour it: the same call under it has one effect and one answer. The others take
//! none, for the reason that [`super::rest`] gives.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::world::{self, Answer, Fault, IssueChange, Recall, ReleaseChange, World};

/// What became of a tool's call.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    /// `isError: false`, with this result.
    Done(Value),
    /// `isError: true`, with this text: the tool ran, and could not.
    Failed(String),
    /// `-32602`: there is no such tool, or its arguments are not what its schema says.
    Invalid(&'static str),
    /// It was performed, and the connection ends without an answer.
    Lost,
}

struct Tool {
    name: &'static str,
    description: &'static str,
    /// Beside `owner` and `repo`: name, JSON type, and whether it must be there.
    inputs: &'static [(&'static str, &'static str, Need)],
    effect: Effect,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Optional,
    Required,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Adds,
    Destroys,
    None,
}

const KEY: &str = "idempotency_key";

const TOOLS: &[Tool] = &[
    Tool {
        name: "github__get_issue",
        description: "One issue of a repository.",
        inputs: &[("issue_number", "integer", Need::Required)],
        effect: Effect::None,
    },
    Tool {
        name: "github__list_comments",
        description: "The comments of an issue, oldest first.",
        inputs: &[("issue_number", "integer", Need::Required)],
        effect: Effect::None,
    },
    Tool {
        name: "github__get_release_by_tag",
        description: "The published release of a tag; drafts are not found.",
        inputs: &[("tag", "string", Need::Required)],
        effect: Effect::None,
    },
    Tool {
        name: "github__create_comment",
        description: "Comments on an issue.",
        inputs: &[
            ("issue_number", "integer", Need::Required),
            ("body", "string", Need::Required),
            (KEY, "string", Need::Optional),
        ],
        effect: Effect::Adds,
    },
    Tool {
        name: "github__delete_comment",
        description: "Deletes a comment for good.",
        inputs: &[("comment_id", "integer", Need::Required)],
        effect: Effect::Destroys,
    },
    Tool {
        name: "github__create_issue",
        description: "Opens an issue.",
        inputs: &[
            ("title", "string", Need::Required),
            ("body", "string", Need::Optional),
            (KEY, "string", Need::Optional),
        ],
        effect: Effect::Adds,
    },
    Tool {
        name: "github__close_issue",
        description: "Closes an issue.",
        inputs: &[("issue_number", "integer", Need::Required)],
        effect: Effect::Adds,
    },
    Tool {
        name: "github__reopen_issue",
        description: "Opens a closed issue again.",
        inputs: &[("issue_number", "integer", Need::Required)],
        effect: Effect::Adds,
    },
    Tool {
        name: "github__create_release",
        description: "Publishes a release; with `draft: true` only drafts it.",
        inputs: &[
            ("tag_name", "string", Need::Required),
            ("name", "string", Need::Optional),
            ("body", "string", Need::Optional),
            ("draft", "boolean", Need::Optional),
        ],
        effect: Effect::Adds,
    },
    Tool {
        name: "github__publish_release",
        description: "Publishes a release that was drafted.",
        inputs: &[("release_id", "integer", Need::Required)],
        effect: Effect::Adds,
    },
    Tool {
        name: "github__delete_release",
        description: "Deletes a release, drafted or published, for good.",
        inputs: &[("release_id", "integer", Need::Required)],
        effect: Effect::Destroys,
    },
];

impl Tool {
    fn all_inputs(&self) -> impl Iterator<Item = (&'static str, &'static str, Need)> {
        let place = [("owner", "string", Need::Required), ("repo", "string", Need::Required)];
        place.into_iter().chain(self.inputs.iter().copied())
    }

    fn to_json(&self) -> Value {
        let mut properties = Map::new();
        for (name, kind, _) in self.all_inputs() {
            properties.insert(name.to_owned(), json!({"type": kind}));
        }
        let required: Vec<&str> = self
            .all_inputs()
            .filter(|(_, _, need)| *need == Need::Required)
            .map(|(name, _, _)| name)
            .collect();
        json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": false,
            },
            "annotations": {
                "readOnlyHint": self.effect == Effect::None,
                "destructiveHint": self.effect == Effect::Destroys,
            },
        })
    }

    fn check(&self, arguments: &Map<String, Value>) -> Result<(), &'static str> {
        for (name, kind, need) in self.all_inputs() {
            let is_fit = match arguments.get(name) {
                None => need == Need::Optional,
                Some(value) => match kind {
                    "boolean" => value.is_boolean(),
                    "integer" => value.as_u64().is_some(),
                    _ => value.is_string(),
                },
            };
            if !is_fit {
                return Err("an argument is missing or of the wrong type");
            }
        }
        let is_known = |name: &String| self.all_inputs().any(|(known, _, _)| known == name);
        if arguments.keys().all(is_known) { Ok(()) } else { Err("an argument is not known") }
    }
}

/// The tools, as `tools/list` shows them.
pub(super) fn list() -> Value {
    TOOLS.iter().map(Tool::to_json).collect()
}

/// Performs one call.
pub(super) fn call(world: &mut World, name: &str, arguments: &Map<String, Value>) -> Outcome {
    let Some(tool) = TOOLS.iter().find(|tool| tool.name == name) else {
        return Outcome::Invalid("no tool has this name");
    };
    if let Err(reason) = tool.check(arguments) {
        return Outcome::Invalid(reason);
    }
    let before = world.effects();
    let outcome = match arguments.get(KEY).and_then(Value::as_str).filter(|key| !key.is_empty()) {
        None => perform(world, tool, arguments),
        Some(key) => keyed(world, tool, arguments, key),
    };
    if world.effects() > before && world.take_loss() { Outcome::Lost } else { outcome }
}

fn keyed(world: &mut World, tool: &Tool, arguments: &Map<String, Value>, key: &str) -> Outcome {
    let key = format!("mcp {key}");
    let request = fingerprint(tool.name, arguments);
    match world.recall(&key, &request) {
        Recall::Known(answer) => Outcome::Done(answer.body),
        Recall::OtherRequest => Outcome::Failed("the key was used for another call".to_owned()),
        Recall::First => {
            let outcome = perform(world, tool, arguments);
            if let Outcome::Done(value) = &outcome {
                world.remember(&key, request, Answer { status: 200, body: value.clone() });
            }
            outcome
        }
    }
}

/// A hash of the call, whatever the order of its arguments.
fn fingerprint(name: &str, arguments: &Map<String, Value>) -> [u8; 32] {
    let mut members: Vec<(&String, &Value)> = arguments.iter().collect();
    members.sort_unstable_by_key(|(name, _)| *name);
    let mut hash = Sha256::new();
    hash.update(name);
    for (name, value) in members {
        hash.update(b"\0");
        hash.update(name);
        hash.update(b"\0");
        hash.update(value.to_string());
    }
    hash.finalize().into()
}

fn perform(world: &mut World, tool: &Tool, arguments: &Map<String, Value>) -> Outcome {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    // Checked before; a number that is absent names nothing.
    let number = |name: &str| arguments.get(name).and_then(Value::as_u64).unwrap_or(0);
    if text("owner") != Some(world::OWNER) || text("repo") != Some(world::REPOSITORY) {
        return Outcome::Failed(Fault::NotFound.to_string());
    }
    let state = |state| IssueChange { state: Some(state), ..IssueChange::default() };
    let done = match tool.name {
        "github__get_issue" => world.issue(number("issue_number")),
        "github__list_comments" => {
            world.comments(number("issue_number")).map(|comments| json!({"comments": comments}))
        }
        "github__get_release_by_tag" => world.release_by_tag(text("tag").unwrap_or_default()),
        "github__create_comment" => {
            world.create_comment(number("issue_number"), text("body").unwrap_or_default())
        }
        "github__delete_comment" => {
            let id = number("comment_id");
            world.delete_comment(id).map(|()| json!({"deleted": id}))
        }
        "github__create_issue" => {
            world.create_issue(text("title").unwrap_or_default(), text("body"))
        }
        "github__close_issue" => world.update_issue(number("issue_number"), state("closed")),
        "github__reopen_issue" => world.update_issue(number("issue_number"), state("open")),
        "github__create_release" => world.create_release(ReleaseChange {
            tag: text("tag_name"),
            name: text("name"),
            body: text("body"),
            draft: arguments.get("draft").and_then(Value::as_bool),
        }),
        "github__publish_release" => {
            let publish = ReleaseChange { draft: Some(false), ..ReleaseChange::default() };
            world.update_release(number("release_id"), publish)
        }
        "github__delete_release" => {
            let id = number("release_id");
            world.delete_release(id).map(|()| json!({"deleted": id}))
        }
        _ => return Outcome::Invalid("no tool has this name"),
    };
    match done {
        Ok(value) => Outcome::Done(value),
        Err(fault) => Outcome::Failed(fault.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(more: Value) -> Map<String, Value> {
        let mut all = Map::from_iter([
            ("owner".to_owned(), json!("octo")),
            ("repo".to_owned(), json!("hello")),
        ]);
        all.extend(more.as_object().unwrap().clone());
        all
    }

    fn done(world: &mut World, name: &str, more: Value) -> Value {
        match call(world, name, &arguments(more)) {
            Outcome::Done(value) => value,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn every_tool_that_is_listed_can_be_called() {
        let mut world = World::new();
        let comment = json!({"issue_number": 1, "body": "c"});
        let calls = [
            ("github__create_comment", comment),
            ("github__list_comments", json!({"issue_number": 1})),
            ("github__delete_comment", json!({"comment_id": 100})),
            ("github__create_issue", json!({"title": "t", "body": "b"})),
            ("github__close_issue", json!({"issue_number": 2})),
            ("github__get_issue", json!({"issue_number": 2})),
            ("github__reopen_issue", json!({"issue_number": 2})),
            ("github__create_release", json!({"tag_name": "v1", "draft": true})),
            ("github__publish_release", json!({"release_id": 102})),
            ("github__get_release_by_tag", json!({"tag": "v1"})),
            ("github__delete_release", json!({"release_id": 102})),
        ];

        for (name, more) in &calls {
            done(&mut world, name, more.clone());
        }

        let mut listed: Vec<Value> =
            list().as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
        let mut called: Vec<Value> = calls.iter().map(|(name, _)| json!(name)).collect();
        listed.sort_by_key(Value::to_string);
        called.sort_by_key(Value::to_string);
        assert_eq!(listed, called);
    }

    #[test]
    fn arguments_that_the_schema_does_not_allow_have_no_effect() {
        let mut world = World::new();
        let name = "github__create_comment";
        let cases = [
            json!({"issue_number": 1}),
            json!({"issue_number": "1", "body": "c"}),
            json!({"issue_number": 1.5, "body": "c"}),
            json!({"issue_number": 1, "body": null}),
            json!({"issue_number": 1, "body": "c", "more": 1}),
        ];

        for more in cases {
            let outcome = call(&mut world, name, &arguments(more.clone()));
            assert!(matches!(outcome, Outcome::Invalid(_)), "{more}");
        }

        assert!(matches!(call(&mut world, "github__nothing", &Map::new()), Outcome::Invalid(_)));
        assert_eq!(world.effects(), 0);
    }

    #[test]
    fn a_key_stands_for_one_effect_and_one_answer() {
        let mut world = World::new();
        let name = "github__create_comment";
        let sent = json!({"issue_number": 1, "body": "c", "idempotency_key": "k"});
        let other = json!({"issue_number": 1, "body": "d", "idempotency_key": "k"});

        let first = done(&mut world, name, sent.clone());
        let again = done(&mut world, name, sent);
        let refused = call(&mut world, name, &arguments(other));

        assert_eq!(again, first);
        assert!(matches!(refused, Outcome::Failed(_)));
        assert_eq!(world.effects(), 1);
    }

    #[test]
    fn an_answer_is_lost_after_the_effect() {
        let mut world = World::new();
        world.lose_next_answer();

        let read = call(&mut world, "github__get_issue", &arguments(json!({"issue_number": 1})));
        let lost = call(&mut world, "github__create_issue", &arguments(json!({"title": "t"})));

        assert!(matches!(read, Outcome::Done(_)));
        assert_eq!(lost, Outcome::Lost);
        assert_eq!(world.effects(), 1);
    }
}
