//! Verification plans: evidence in stages, some of which comes after the answer (EffectSpec).
//!
//! A stage claims something, and its assertions prove it. What is `immediate` reads the answer itself,
//! a `readback` makes a probe some time later, and a `webhook` waits for an event, which nobody here
//! hears: such a stage is never evaluated. A plan is complete when a stage that was proven makes a claim
//! that [`Plan::acceptable`] names with the trust that this sidecar's own sight has.
//!
//! A probe is filled once, when the call was answered: each value becomes one segment of its path or
//! one value of its query, percent-encoded, so that no value can change where the probe goes.

use std::sync::Arc;

use super::assertion::Assertion;
use super::json::Doc;
use super::path::{Found, Request};
use super::pointer::Pointer;
use super::slots::{encode, object, plain};
use super::template::Template;

/// The trust of what this sidecar saw itself.
pub const OBSERVED: &str = "gateway_observed";

/// The longest path and query of a probe, in bytes: what servers take.
pub const MAX_PROBE: usize = 8 * 1024;

/// A plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long after the answer evidence counts, in milliseconds.
    pub deadline_ms: u64,
    /// Its stages, at least one.
    pub stages: Vec<Stage>,
    /// What completes it: pairs of a claim and the trust that it needs.
    pub acceptable: Vec<(String, String)>,
}

/// A stage of a plan.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Its id; unique in its plan.
    pub id: String,
    /// What it claims when it is proven.
    pub claim: String,
    /// Where its evidence comes from.
    pub source: Source,
    /// All must pass.
    pub assertions: Vec<Assertion>,
}

/// Where a stage's evidence comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The answer of the call.
    Immediate,
    /// A read afterwards.
    Readback {
        /// How long after the answer it is first made, in milliseconds.
        after_ms: u64,
        /// The read.
        probe: Probe,
    },
    /// An event that the upstream sends.
    Webhook,
}

impl Source {
    /// The word in plans and records.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Immediate => "immediate",
            Self::Readback { .. } => "readback",
            Self::Webhook => "webhook",
        }
    }
}

/// A read that proves an effect.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The id of where it goes.
    pub target: String,
    /// Whether the policy declares that target, and as this upstream; a probe without is not made.
    pub is_declared: bool,
    /// What is read.
    pub call: ProbeCall,
    /// Statuses that say for certain that the resource is not there: 404, 410.
    pub decisive_negative: Vec<u16>,
}

/// What a probe reads.
#[derive(Clone, Debug)]
pub enum ProbeCall {
    /// A `GET`.
    Http {
        /// Its path.
        template: Template,
        /// Values of the path's parameters.
        path: Vec<Parameter>,
        /// Values of its query.
        query: Vec<Parameter>,
    },
    /// A tool's call.
    Tool {
        /// The tool.
        name: String,
        /// Its arguments.
        arguments: Vec<Parameter>,
    },
}

/// One value of a probe.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Where its value comes from.
    pub input: Input,
}

/// Where a probe's value comes from.
#[derive(Clone, Debug)]
pub enum Input {
    /// The policy.
    Literal(Arc<Doc>),
    /// The call's request.
    Request(Pointer),
    /// The effect's identifier in the answer.
    UpstreamId,
}

/// A probe, filled.
#[derive(Clone, PartialEq, Eq)]
pub enum Filled {
    /// Path and query, without the upstream's base path.
    Http(String),
    /// A tool and its arguments, JSON.
    Tool(String, String),
}

impl std::fmt::Debug for Filled {
    /// Shows no value.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Http(_) => "Http(..)",
            Self::Tool(..) => "Tool(..)",
        })
    }
}

/// Why a probe cannot be made. Names parameters and no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfilled {
    /// A parameter names nothing.
    #[error("its parameter {0} has no value in this call")]
    Missing(String),
    /// The whole is longer than [`MAX_PROBE`].
    #[error("its path is longer than 8192 bytes")]
    TooLong,
    /// A value that would change the path.
    #[error("its parameter {0} has a value that cannot stand in a path or query")]
    Unfit(String),
}

impl Probe {
    /// Fills it with values of one call.
    ///
    /// # Errors
    ///
    /// See [`Unfilled`]; the first parameter that cannot be filled.
    pub fn fill(&self, request: Request<'_>, id: Option<&str>) -> Result<Filled, Unfilled> {
        match &self.call {
            ProbeCall::Http { template, path, query } => {
                let mut values = Vec::with_capacity(path.len());
                for parameter in path {
                    let text = parameter.text(request, id)?;
                    if matches!(text.as_str(), "" | "." | "..") {
                        return Err(Unfilled::Unfit(parameter.name.clone()));
                    }
                    values.push((parameter.name.as_str(), encode(&text)));
                }
                let value = |name: &str| {
                    let found = values.iter().find(|(known, _)| *known == name);
                    found.map(|(_, value)| value.clone())
                };
                let missing = || {
                    let name = template.names().find(|name| value(name).is_none());
                    Unfilled::Missing(name.unwrap_or_default().to_owned())
                };
                let mut target = template.build(value).ok_or_else(missing)?;
                for (position, parameter) in query.iter().enumerate() {
                    target.push(if position == 0 { '?' } else { '&' });
                    target.push_str(&encode(&parameter.name));
                    target.push('=');
                    target.push_str(&encode(&parameter.text(request, id)?));
                }
                if target.len() > MAX_PROBE {
                    return Err(Unfilled::TooLong);
                }
                Ok(Filled::Http(target))
            }
            ProbeCall::Tool { name, arguments } => {
                let mut filled = Vec::with_capacity(arguments.len());
                for parameter in arguments {
                    let found = parameter.find(request, id)?;
                    filled.push((parameter.name.as_str(), found.to_json().into_owned()));
                }
                let members = filled.iter().map(|(name, json)| (*name, json.as_str()));
                Ok(Filled::Tool(name.clone(), object(members)))
            }
        }
    }
}

impl Parameter {
    fn find<'a>(
        &'a self,
        request: Request<'a>,
        id: Option<&'a str>,
    ) -> Result<Found<'a>, Unfilled> {
        let found = match &self.input {
            Input::Literal(literal) => Some(Found::Value(literal.root())),
            Input::Request(pointer) => request.pointer(pointer).map(Found::Value),
            Input::UpstreamId => id.map(Found::Key),
        };
        found.ok_or_else(|| Unfilled::Missing(self.name.clone()))
    }

    fn text(&self, request: Request<'_>, id: Option<&str>) -> Result<String, Unfilled> {
        plain(self.find(request, id)?).ok_or_else(|| Unfilled::Unfit(self.name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(template: &str, query: &[&str]) -> Probe {
        let template = Template::parse(template).unwrap();
        let parameter = |name: &str| Parameter {
            name: name.to_owned(),
            input: match name {
                "id" => Input::UpstreamId,
                "v" => Input::Literal(Arc::new(Doc::parse("2".to_owned()).unwrap())),
                name => Input::Request(Pointer::parse(&format!("/path/{name}")).unwrap()),
            },
        };
        let path = template.names().map(parameter).collect();
        let query = query.iter().map(|name| parameter(name)).collect();
        Probe {
            target: "pt".to_owned(),
            is_declared: true,
            call: ProbeCall::Http { template, path, query },
            decisive_negative: Vec::new(),
        }
    }

    fn filled(probe: &Probe, id: Option<&str>) -> Result<String, String> {
        let head = Doc::parse(
            r#"{"path":{"object":"a/../b","dots":"..","empty":"","list":[1]},"query":{}}"#
                .to_owned(),
        )
        .unwrap();
        let request = Request::Http { head: head.root(), body: None, is_opaque: false };
        match probe.fill(request, id) {
            Ok(Filled::Http(target)) => Ok(target),
            Ok(Filled::Tool(..)) => panic!("it is no tool"),
            Err(why) => Err(why.to_string()),
        }
    }

    #[test]
    fn each_value_is_one_segment_or_one_query_value() {
        let found = filled(&probe("/v2/objects/{object}/{id}", &["id", "v"]), Some("7?x=1&y#z"));
        let right = "/v2/objects/a%2F..%2Fb/7%3Fx%3D1%26y%23z?id=7%3Fx%3D1%26y%23z&v=2";
        assert_eq!(found.as_deref(), Ok(right));
    }

    #[test]
    fn a_value_that_would_change_the_path_or_is_not_there_leaves_the_probe_unmade() {
        let unfit = |name: &str| {
            format!("its parameter {name} has a value that cannot stand in a path or query")
        };
        for name in ["dots", "empty", "list"] {
            let found = filled(&probe(&format!("/x/{{{name}}}"), &[]), None);
            assert_eq!(found, Err(unfit(name)));
        }
        let missing = |name: &str| format!("its parameter {name} has no value in this call");
        assert_eq!(filled(&probe("/x/{id}", &[]), None), Err(missing("id")));
        assert_eq!(filled(&probe("/x/{gone}", &[]), None), Err(missing("gone")));
        assert_eq!(filled(&probe("/x/{id}", &[]), Some("..")), Err(unfit("id")));
        let long = "x".repeat(MAX_PROBE);
        let too_long = filled(&probe("/x/{id}", &[]), Some(&long));
        assert_eq!(too_long, Err("its path is longer than 8192 bytes".to_owned()));
    }
}
