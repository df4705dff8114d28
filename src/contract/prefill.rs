//! A follow-up while it is filled: from the request before the call is made, from the state before it
//! where that is read, and from the answer in the end.
//!
//! What is there early is filled early, and once. So it is known before a byte is sent whether a call
//! lacks what its undo takes: such a call cannot be taken back, whatever its class says
//! ([`WaysBack::lost`]). Arguments keep their places, so that a call comes out as its policy wrote it,
//! in whatever order its values came; of several that cannot be filled the first one written is told.

use std::fmt;

use super::operation::{Argument, FollowUp, Mapping, Operation, Reference, Target};
use super::path::{Root, Scope};
use super::pointer::Pointer;
use super::slots::{Filled, Fit, Unfit, fit};
use super::undo::{Resolved, Unavailable, check_sensitive, found};

/// A follow-up as far as it is filled. It belongs to one reference and its arguments, which every step
/// is given again.
#[derive(Clone)]
pub struct Prefill {
    /// One for each argument, in declaration order.
    parts: Vec<Part>,
    /// Why the call that comes out is none, whatever its arguments.
    rejected: Option<Unavailable>,
}

/// One argument.
#[derive(Clone)]
enum Part {
    /// It cannot be filled.
    Faulty(Unavailable),
    /// In the form of its place, and its JSON text for the report.
    Filled(Fit, String),
    /// It is optional, and its path names nothing.
    LeftOut,
    /// What it reads is not there yet.
    Open,
}

impl fmt::Debug for Prefill {
    /// Shows no value: arguments never reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefill").field("arguments", &self.parts.len()).finish_non_exhaustive()
    }
}

impl Prefill {
    /// Fills what the request gives, and literals.
    pub fn begin(reference: &Reference, arguments: &[Argument], scope: &Scope<'_>) -> Self {
        let part = |argument: &Argument| match root(argument) {
            None | Some(Root::Request) => Part::of(reference, argument, scope),
            Some(Root::Before | Root::Key | Root::Response) => Part::Open,
        };
        Self { parts: arguments.iter().map(part).collect(), rejected: None }
    }

    /// Fills what the state before the call gives.
    fn read_before(&mut self, reference: &Reference, arguments: &[Argument], scope: &Scope<'_>) {
        for (part, argument) in self.parts.iter_mut().zip(arguments) {
            if root(argument) == Some(Root::Before) {
                *part = Part::of(reference, argument, scope);
            }
        }
    }

    /// Why there is no such call, whatever else is still to come: the first argument that cannot be
    /// filled, or what was said with [`Prefill::reject`].
    pub fn fault(&self) -> Option<&Unavailable> {
        let faults = self.parts.iter().filter_map(|part| match part {
            Part::Faulty(why) => Some(why),
            Part::Filled(..) | Part::LeftOut | Part::Open => None,
        });
        faults.chain(&self.rejected).next()
    }

    /// Whether nothing is still to come.
    pub fn is_whole(&self) -> bool {
        !self.parts.iter().any(|part| matches!(part, Part::Open))
    }

    /// The call that comes out cannot be made.
    pub fn reject(&mut self, why: Unavailable) {
        self.rejected = Some(why);
    }

    /// Fills the rest, and puts the call together. Its deadline is the caller's to add.
    ///
    /// # Errors
    ///
    /// The first argument that cannot be filled, or that `sensitive` keeps out.
    pub fn finish(
        &self,
        reference: &Reference,
        arguments: &[Argument],
        scope: &Scope<'_>,
        sensitive: &[Pointer],
    ) -> Result<Resolved, Unavailable> {
        let mut filled = Filled::default();
        let mut reported = Vec::with_capacity(arguments.len());
        for (part, argument) in self.parts.iter().zip(arguments) {
            check_sensitive(std::slice::from_ref(argument), scope, sensitive)?;
            let part = match part {
                Part::Open => Part::of(reference, argument, scope),
                known @ (Part::Faulty(_) | Part::Filled(..) | Part::LeftOut) => known.clone(),
            };
            match part {
                Part::Faulty(why) => return Err(why),
                Part::Filled(fit, json) => {
                    filled.put(&argument.slot, fit).map_err(|fault| unfit(argument, fault))?;
                    reported.push((argument.name.clone(), json));
                }
                Part::LeftOut | Part::Open => {}
            }
        }
        if let Some(why) = &self.rejected {
            return Err(why.clone());
        }
        let mut resolved = Resolved {
            operation: reference.operation.clone(),
            tool: None,
            http: None,
            headers: Vec::new(),
            arguments: reported,
            body: None,
            deadline_ms: None,
        };
        match &reference.target {
            Target::Tool { name } => resolved.tool = Some(name.to_string()),
            Target::Http { method, template } => {
                resolved.http = Some((method.clone(), filled.target(template)?));
                resolved.body = filled.body(reference.body_type);
                resolved.headers = filled.headers;
            }
        }
        Ok(resolved)
    }
}

impl Part {
    fn of(reference: &Reference, argument: &Argument, scope: &Scope<'_>) -> Self {
        match found(argument, scope) {
            Err(why) => Self::Faulty(why),
            Ok(None) => Self::LeftOut,
            Ok(Some(found)) => match fit(reference, &argument.slot, found) {
                Ok(fit) => Self::Filled(fit, found.to_json().into_owned()),
                Err(fault) => Self::Faulty(unfit(argument, fault)),
            },
        }
    }
}

/// What an argument reads; `None` for a literal.
fn root(argument: &Argument) -> Option<Root> {
    match &argument.mapping {
        Mapping::Const(_) => None,
        Mapping::Path(path) => Some(path.root),
    }
}

fn unfit(argument: &Argument, fault: Unfit) -> Unavailable {
    Unavailable::Unfit {
        argument: argument.name.clone(),
        source_text: match &argument.mapping {
            Mapping::Const(_) => "const".to_owned(),
            Mapping::Path(path) => path.to_string(),
        },
        fault,
    }
}

/// The ways back from one call, its inverse and its compensation, as far as they are filled.
#[derive(Clone, Debug, Default)]
pub struct WaysBack {
    inverse: Option<Prefill>,
    compensate: Option<Prefill>,
}

impl WaysBack {
    /// Fills what the request gives.
    pub fn begin(operation: &Operation, scope: &Scope<'_>) -> Self {
        let begin = |call: &FollowUp| Prefill::begin(&call.reference, &call.arguments, scope);
        Self {
            inverse: operation.inverse.as_ref().map(begin),
            compensate: operation.compensate.as_ref().map(begin),
        }
    }

    /// Fills what the state before the call gives.
    pub fn read_before(&mut self, operation: &Operation, scope: &Scope<'_>) {
        for (call, way) in self.each(operation) {
            way.read_before(&call.reference, &call.arguments, scope);
        }
    }

    /// Each way with its declaration.
    pub fn each<'w>(
        &'w mut self,
        operation: &'w Operation,
    ) -> impl Iterator<Item = (&'w FollowUp, &'w mut Prefill)> {
        let inverse = operation.inverse.as_ref().zip(self.inverse.as_mut());
        inverse.into_iter().chain(operation.compensate.as_ref().zip(self.compensate.as_mut()))
    }

    /// The inverse.
    pub fn inverse(&self) -> Option<&Prefill> {
        self.inverse.as_ref()
    }

    /// The compensation.
    pub fn compensate(&self) -> Option<&Prefill> {
        self.compensate.as_ref()
    }

    /// Why the call cannot be taken back, though its operation declares how: each way lacks something
    /// of what is there before the call is made. `None` while one is open, and where none is declared.
    pub fn lost(&self) -> Option<&Unavailable> {
        let mut ways = self.inverse.iter().chain(&self.compensate).map(Prefill::fault);
        let first = ways.next()??;
        ways.all(|fault| fault.is_some()).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::class::{Class, Level, Mode};
    use super::super::json::Doc;
    use super::super::key::OperationId;
    use super::super::operation::{Allow, BodyType, Slot};
    use super::super::path::{Path, Request};
    use super::super::template::Template;
    use super::super::undo::resolve;
    use super::*;

    fn follow_up(arguments: &[(&str, &str)]) -> FollowUp {
        let reference = Reference {
            operation: OperationId::new("notes.put").unwrap(),
            target: Target::Http {
                method: http::Method::PUT,
                template: Template::parse("/notes/{id}").unwrap(),
            },
            class: Class::Irreversible,
            body_type: BodyType::Json,
            allow: Allow::default(),
        };
        let argument = |(name, mapping): &(&str, &str)| Argument {
            name: (*name).to_owned(),
            slot: match name.split_once('.') {
                Some(("path", rest)) => Slot::Path(rest.to_owned()),
                Some(("query", rest)) => Slot::Query(rest.to_owned()),
                Some((_, rest)) => Slot::Body(vec![rest.to_owned()]),
                None => Slot::Argument((*name).to_owned()),
            },
            mapping: match mapping.strip_prefix("const ") {
                Some(json) => Mapping::Const(Arc::new(Doc::parse(json.to_owned()).unwrap())),
                None => Mapping::Path(Path::parse(mapping).unwrap()),
            },
        };
        FollowUp { reference, arguments: arguments.iter().map(argument).collect(), deadline: None }
    }

    struct Docs {
        request: Doc,
        before: Doc,
        answer: Doc,
    }

    fn docs(request: &str, before: &str, answer: &str) -> Docs {
        let doc = |text: &str| Doc::parse(text.to_owned()).unwrap();
        Docs { request: doc(request), before: doc(before), answer: doc(answer) }
    }

    impl Docs {
        fn request(&self) -> Scope<'_> {
            let request = Request::Arguments(self.request.root());
            Scope { before: None, request, response: None, key: None }
        }

        fn with_before(&self) -> Scope<'_> {
            Scope { before: Some(self.before.root()), ..self.request() }
        }

        fn whole(&self) -> Scope<'_> {
            Scope { response: Some(self.answer.root()), ..self.with_before() }
        }
    }

    fn operation(inverse: Option<FollowUp>, compensate: Option<FollowUp>) -> Operation {
        let undeclared = Operation::undeclared(Class::Reversible, Level::None, Mode::Enforce);
        Operation { inverse, compensate, ..undeclared }
    }

    #[test]
    fn a_call_that_is_filled_in_three_steps_is_the_call_that_is_filled_at_once() {
        let call = follow_up(&[
            ("query.b", "response.b"),
            ("path.id", "request.id"),
            ("query.a", "request.a"),
            ("body.old", "before.old"),
            ("body.first", "response.b?"),
            ("body.none", "request.none?"),
            ("body.last", "const 1"),
        ]);
        let docs = docs(r#"{"id":"n1","a":["x","y"]}"#, r#"{"old":{"t":1.0}}"#, r#"{"b":7}"#);
        let mut known = Prefill::begin(&call.reference, &call.arguments, &docs.request());
        assert_eq!((known.is_whole(), known.fault()), (false, None));
        known.read_before(&call.reference, &call.arguments, &docs.with_before());
        assert_eq!((known.is_whole(), known.fault()), (false, None));

        let made = known.finish(&call.reference, &call.arguments, &docs.whole(), &[]).unwrap();

        assert_eq!(Ok(&made), resolve(&call, &docs.whole(), 0, &[]).as_ref());
        assert_eq!(made.http.unwrap().1, "/notes/n1?b=7&a=x&a=y", "in declaration order");
        assert_eq!(made.body.unwrap(), r#"{"old":{"t":1.0},"first":7,"last":1}"#);
    }

    #[test]
    fn p_4_the_first_fault_as_written_is_told_whichever_step_found_it() {
        let call = follow_up(&[
            ("path.id", "response.id"),
            ("body.a", "before.a"),
            ("body.b", "request.b"),
        ]);
        let docs = docs("{}", "{}", "{}");
        let reason = |known: &Prefill| known.fault().unwrap().to_string();
        let mut known = Prefill::begin(&call.reference, &call.arguments, &docs.request());
        assert!(reason(&known).starts_with("body.b (request.b)"));
        known.read_before(&call.reference, &call.arguments, &docs.with_before());
        assert!(reason(&known).starts_with("body.a (before.a)"));
        let made = known.finish(&call.reference, &call.arguments, &docs.whole(), &[]);
        assert!(made.unwrap_err().to_string().starts_with("path.id (response.id)"));
    }

    #[test]
    fn a_call_is_lost_when_each_of_its_ways_back_is() {
        let docs = docs(r#"{"id":"n1"}"#, r#"{"old":null}"#, "{}");
        let good = || Some(follow_up(&[("path.id", "request.id")]));
        let bad = || Some(follow_up(&[("path.id", "request.none")]));
        let open = || Some(follow_up(&[("path.id", "response.id")]));
        let later = || Some(follow_up(&[("path.id", "request.id"), ("body.o", "before.old")]));
        // Inverse, compensation, lost at first, lost once the state before is read.
        let cases = [
            (None, None, false, false),
            (good(), None, false, false),
            (bad(), None, true, true),
            (bad(), good(), false, false),
            (bad(), open(), false, false),
            (bad(), bad(), true, true),
            (None, bad(), true, true),
            (open(), bad(), false, false),
            (later(), None, false, true),
            (later(), bad(), false, true),
            (later(), good(), false, false),
        ];
        for (position, (inverse, compensate, is_lost, is_lost_then)) in
            cases.into_iter().enumerate()
        {
            let operation = operation(inverse, compensate);
            let mut ways = WaysBack::begin(&operation, &docs.request());
            assert_eq!(ways.lost().is_some(), is_lost, "{position}");
            ways.read_before(&operation, &docs.with_before());
            assert_eq!(ways.lost().is_some(), is_lost_then, "{position}");
        }
        assert!(
            !format!("{:?}", WaysBack::begin(&operation(good(), None), &docs.request()))
                .contains("n1")
        );
    }

    proptest! {
        /// Filling in steps comes to what filling at once comes to, faults included.
        #[test]
        fn steps_change_nothing(
            roots in proptest::collection::vec(0_usize..4, 0..6),
            names in proptest::collection::vec(0_usize..3, 6),
        ) {
            let docs = docs(r#"{"m0":1,"m1":"x"}"#, r#"{"m0":2,"m1":null}"#, r#"{"m0":[3]}"#);
            let texts: Vec<(String, String)> = roots.iter().zip(&names).enumerate().map(
                |(position, (root, name))| {
                    let root = ["request", "before", "response", "const"][*root];
                    let mapping = match root {
                        "const" => "const 4".to_owned(),
                        root => format!("{root}.m{name}"),
                    };
                    let place = if position == 0 { "path.id" } else { "body.p" };
                    (format!("{place}{}", if position == 0 { "" } else { &"abcdef"[..position] }),
                     mapping)
                }).collect();
            let arguments: Vec<(&str, &str)> =
                texts.iter().map(|(name, mapping)| (name.as_str(), mapping.as_str())).collect();
            let call = follow_up(&arguments);
            let mut known = Prefill::begin(&call.reference, &call.arguments, &docs.request());
            known.read_before(&call.reference, &call.arguments, &docs.with_before());
            let stepped = known.finish(&call.reference, &call.arguments, &docs.whole(), &[]);
            prop_assert_eq!(stepped, resolve(&call, &docs.whole(), 0, &[]));
        }
    }
}
