//! Declarations to operations: degrades those with errors, links references, builds the router.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::contract::class::{Class, Kind, Level, Mode, OnUnknown, Repeat};
use crate::contract::json::Doc;
use crate::contract::key::{Carrier, Digest, OperationId};
use crate::contract::operation::{
    Before, BodyType, Deadline, Draft, FollowUp, Lookup, Operation, Reference, Target, Verification,
};
use crate::contract::plan::{Plan, Source as StageSource};
use crate::contract::report::static_read_header;
use crate::contract::status::Statuses;
use crate::contract::template::Template;

use super::catalog::{self, Catalog, CatalogEntry, CatalogKind, MAX_CATALOG, MAX_CATALOGS};
use super::check::{self, Index, Linked, Links, Resolved};
use super::diagnostic::{At, Findings, Severity, Source};
use super::effect_spec::{Ceiling, Spec};
use super::file::{self, Declared, Defaults, Undeclared};
use super::overlap::{self, Whole};
use super::reading::Reading;
use super::route::Router;
use super::things::Things;
use super::tree::{self, Fault, Format, Node, Span};
use super::{Served, Snapshot};

/// The most operations of one policy. Each has some ten metric series and ten kilobytes; the largest
/// documents of vendors have a tenth of this.
const MAX_OPERATIONS: usize = 20_000;

/// A file's name, and its text or why it cannot be read.
pub(super) type File = (String, Result<String, String>);

/// Reads the catalog of this name, of at most so many bytes; or says why not.
pub(super) type ReadCatalog<'a> = dyn Fn(&str, usize) -> Result<String, String> + 'a;

/// The files of one policy: policy files, and the catalogs that they name.
pub(super) struct Files {
    /// Policy files by name, then catalogs.
    sources: Vec<Source>,
    trees: Vec<Result<Node, Fault>>,
    catalogs: Vec<NamedCatalog>,
}

/// One naming of a catalog by a policy file.
struct NamedCatalog {
    /// The policy file, by position.
    file: usize,
    kind: CatalogKind,
    /// Where it is named.
    span: Span,
    /// The position of its text among the sources and its document, or why there is none.
    read: Result<(usize, Arc<Doc>), String>,
}

impl Files {
    /// Reads policy files into trees, and gets the catalogs that they name.
    pub(super) fn gather(mut files: Vec<File>, read: &ReadCatalog<'_>) -> Self {
        files.sort();
        let tree = |(name, text): &File| match text {
            Ok(text) => tree::read(text, Format::of(name)),
            Err(why) => Err(Fault::unreadable(why)),
        };
        let trees: Vec<Result<Node, Fault>> = files.iter().map(tree).collect();
        let mut named: Vec<(String, CatalogKind, String, Span)> = Vec::new();
        for ((name, _), tree) in files.iter().zip(&trees) {
            let Ok(tree) = tree else { continue };
            for (kind, catalog, span) in file::catalog_names(tree) {
                named.push((name.clone(), kind, catalog.to_owned(), span));
            }
        }
        let is_catalog =
            |file: &str| named.iter().any(|(by, _, catalog, _)| catalog == file && by != file);
        let mut sources = Vec::new();
        let mut policy_trees = Vec::new();
        let mut texts: HashMap<String, Result<String, String>> = HashMap::new();
        for ((name, text), tree) in files.into_iter().zip(trees) {
            if is_catalog(&name) {
                texts.insert(name, text);
            } else {
                sources.push(Source::new(&name, text.unwrap_or_default()));
                policy_trees.push(tree);
            }
        }
        let mut docs: HashMap<String, Result<(usize, Arc<Doc>), String>> = HashMap::new();
        let mut catalogs = Vec::new();
        let mut total: usize = 0;
        for (by, kind, name, span) in &named {
            let Some(file) = sources.iter().position(|source| *source.name == **by) else {
                continue;
            };
            if !docs.contains_key(name) {
                let left = MAX_CATALOGS.saturating_sub(total);
                let text = texts.remove(name).unwrap_or_else(|| read(name, left.min(MAX_CATALOG)));
                total = total.saturating_add(text.as_ref().map_or(0, String::len));
                let doc = text.and_then(|text| {
                    let source = Source::new(name, text);
                    let doc = Arc::new(catalog::read_doc(&source)?);
                    sources.push(source);
                    Ok((sources.len().saturating_sub(1), doc))
                });
                docs.insert(name.clone(), doc);
            }
            let read = docs.get(name).cloned().unwrap_or_else(|| Err(String::new()));
            catalogs.push(NamedCatalog { file, kind: *kind, span: *span, read });
        }
        Self { sources, trees: policy_trees, catalogs }
    }

    /// How many of the sources are policy files.
    pub(super) fn policies(&self) -> usize {
        self.trees.len()
    }

    /// SHA-256 over all names and texts.
    pub(super) fn revision(&self) -> Digest {
        let mut hash = Sha256::new();
        for source in &self.sources {
            for part in [&*source.name, source.text.as_str()] {
                hash.update(part.len().to_be_bytes());
                hash.update(part.as_bytes());
            }
        }
        Digest(hash.finalize().into())
    }

    pub(super) fn into_sources(self) -> Vec<Source> {
        self.sources
    }
}

/// Opens every catalog that is named; what cannot be opened is a finding where it is named.
fn open_catalogs<'f>(
    findings: &mut Findings,
    files: &'f Files,
) -> Vec<(usize, usize, Rc<Catalog<'f>>)> {
    let mut opened = Vec::new();
    // Many files may name one catalog.
    let mut known: HashMap<(usize, CatalogKind), Result<Rc<Catalog<'f>>, String>> = HashMap::new();
    for named in &files.catalogs {
        let Some(source) = files.sources.get(named.file) else { continue };
        let result = match &named.read {
            Err(why) => Err(why.clone()),
            Ok((position, doc)) => {
                let open = || {
                    Ok(Rc::new(match named.kind {
                        CatalogKind::OpenApi => Catalog::open_api(doc)?,
                        CatalogKind::Tools => Catalog::tools(doc)?,
                    }))
                };
                let catalog = known.entry((*position, named.kind)).or_insert_with(open).clone();
                catalog.map(|catalog| (*position, catalog))
            }
        };
        match result {
            Ok((position, catalog)) => {
                let at = At { file: named.file, source, operation: None };
                left_out(&mut Reading { findings: &mut *findings, at }, named.span, &catalog);
                opened.push((named.file, position, catalog));
            }
            Err(why) => {
                let at = At { file: named.file, source, operation: None };
                Reading { findings, at }
                    .error(
                        "policy/catalog",
                        named.span,
                        format!("the catalog cannot be read: {why}"),
                    )
                    .help("an OpenAPI 3 document or a saved tools/list answer, below the policies");
            }
        }
    }
    opened
}

/// Says where a catalog is named what of it no policy can name.
fn left_out(reading: &mut Reading<'_>, span: Span, catalog: &Catalog<'_>) {
    let left = &catalog.left_out;
    let Some(first) = left.iter().find(|left| left.has_effect).or(left.first()) else { return };
    let message = match left.len() {
        1 => format!("no policy can name `{}` of it: {}", first.what, first.why),
        count => format!(
            "no policy can name {count} of its operations, such as `{}`: {}",
            first.what, first.why
        ),
    };
    let code = "policy/catalog_left_out";
    if first.has_effect {
        reading
            .warning(code, span, message)
            .help("what it declares of their effect is not held to");
    } else {
        reading.info(code, span, message).help("`takeback import` lists them; they are undeclared");
    }
}

/// Compiles all files; `None` if one cannot be read into operations.
pub(super) fn compile(
    findings: &mut Findings,
    files: &Files,
    revision: Digest,
    grace: Option<Duration>,
) -> Option<Snapshot> {
    let sources = files.sources.as_slice();
    let catalogs = open_catalogs(findings, files);
    let linked_by = |file: usize| -> Vec<file::Linked<'_, '_>> {
        catalogs
            .iter()
            .filter(|(by, _, _)| *by == file)
            .filter_map(|(_, source, catalog)| {
                Some(file::Linked { catalog, source: *source, text: sources.get(*source)? })
            })
            .collect()
    };
    let mut defaults = Vec::with_capacity(sources.len());
    let mut declared = Vec::new();
    let mut probe_targets: HashSet<String> = HashSet::new();
    for (position, (source, tree)) in sources.iter().zip(&files.trees).enumerate() {
        let file = match tree {
            Ok(tree) => file::read(findings, position, source, tree, &linked_by(position)),
            Err(fault) => {
                let at = At { file: position, source, operation: None };
                let mut reading = Reading { findings: &mut *findings, at };
                let diagnostic = reading.error(fault.code, fault.span, fault.message.clone());
                if let Some(help) = fault.help {
                    diagnostic.help(help);
                }
                None
            }
        };
        defaults.push(file.as_ref().map(|file| file.defaults).unwrap_or_default());
        if let Some(file) = file {
            probe_targets.extend(file.probe_targets);
            declared.extend(file.operations);
        }
    }
    // Once for each catalog, however many files name it.
    let mut done: HashSet<*const Catalog<'_>> = HashSet::new();
    for position in 0..files.trees.len() {
        for linked in linked_by(position) {
            if done.insert(std::ptr::from_ref(linked.catalog)) {
                declare_from(findings, &linked, position, &mut declared);
            }
        }
    }
    too_many(findings, sources, &mut declared);
    let index = Index::new(findings, sources, &declared, &defaults, probe_targets);
    let links: Vec<Links> = (0..declared.len())
        .map(|position| check::operation(findings, sources, &index, position))
        .collect();
    let upgraded: Vec<Template> =
        catalogs.iter().flat_map(|(_, _, catalog)| catalog.upgraded()).cloned().collect();
    let faulty = check::faulty(findings);
    let served_as = served_as(findings, &index, &links, &faulty, &defaults);

    let mut operations = Vec::with_capacity(declared.len());
    let mut router = Router::default();
    for (position, (own, links)) in declared.iter().zip(&links).enumerate() {
        let maker = Maker { index: &index, served_as: &served_as, defaults: &defaults };
        let Some(operation) = maker.operation(position, own, links) else { continue };
        let notes = notes(findings, own, &served_as, position);
        let source = sources.get(own.file);
        let served = Arc::new(Served {
            read_header: static_read_header(&operation.id),
            ceiling: if notes.is_empty() { ceiling(own) } else { Ceiling::None },
            index: operations.len(),
            notes,
            schema_sha256: own.schema_sha256.clone(),
            file: source.map_or_else(|| Arc::from(""), |source| Arc::clone(&source.name)),
            line: source.map_or(0, |source| source.position(own.id_span.start).0),
            operation,
        });
        router.add(Arc::clone(&served));
        operations.push(served);
    }
    router.seal();
    let all = Whole { sources, declared: &declared, router: &router, operations: &operations };
    overlap::check(findings, &all);
    overlap::upgrades(findings, &all, &upgraded);
    if let Some(grace) = grace {
        overlap::beyond_grace(findings, sources, &declared, grace);
    }
    let things = Things::of(operations.iter().map(|served| &served.operation));
    without_thing(findings, &all, &things);
    let undeclared = undeclared(findings, sources, &defaults, &operations);
    let modes = defaults.iter().map(|defaults| defaults.mode.unwrap_or(Mode::Enforce));
    let undeclared_mode = modes.max().unwrap_or(Mode::Enforce);
    let get_writes = defaults.iter().any(|defaults| defaults.get_writes);
    let by_id = operations
        .iter()
        .map(|served| (served.operation.id.clone(), served.index))
        .collect::<HashMap<OperationId, usize>>();
    findings.is_readable().then_some(Snapshot {
        revision,
        operations,
        by_id,
        router,
        things,
        undeclared,
        undeclared_mode,
        get_writes,
    })
}

/// Says of which tools nobody could tell that something came after their undo.
fn without_thing(findings: &mut Findings, all: &Whole<'_>, things: &Things) {
    let by_id = all.by_id();
    for served in all.operations {
        let operation = &served.operation;
        let is_tool = matches!(operation.target, Target::Tool { .. });
        let undo = operation.inverse.as_ref().or(operation.compensate.as_ref());
        let undo = undo.filter(|_| is_tool).map(|undo| &undo.reference.target);
        let Some(Target::Tool { name }) = undo else { continue };
        if things.knows(name) || operation.upstream_id.is_some() {
            continue;
        }
        let own = by_id.get(operation.id.as_str());
        if let Some((own, at)) = own.and_then(|own| Some((own, check::at(all.sources, own)?))) {
            let message = "nothing says which thing it changes";
            Reading { findings: &mut *findings, at }
                .info("effect/tool_without_thing", own.id_span, message)
                .help(
                    "name it: by `before`, an undo that is told the answer's id, or `upstream_id`",
                );
        }
    }
}

/// Refuses what is beyond [`MAX_OPERATIONS`], and looks no further at it.
fn too_many(findings: &mut Findings, sources: &[Source], declared: &mut Vec<Declared<'_>>) {
    let first_over = declared.get(MAX_OPERATIONS);
    if let Some((own, at)) = first_over.and_then(|own| Some((own, check::at(sources, own)?))) {
        let code = "policy/too_many_operations";
        let message = format!("over {MAX_OPERATIONS} operations");
        findings
            .add(At { operation: None, ..at }, Severity::Error, code, own.id_span, message)
            .help("declare what agents call; the rest is safe undeclared");
        declared.truncate(MAX_OPERATIONS);
    }
}

/// Adds what a catalog declares and no policy file does, and says what it leaves undeclared.
fn declare_from<'f>(
    findings: &mut Findings,
    linked: &file::Linked<'_, 'f>,
    defaults: usize,
    declared: &mut Vec<Declared<'f>>,
) {
    let known: HashSet<usize> = declared
        .iter()
        .filter_map(|declared| linked.catalog.by_target(declared.target.as_ref()?))
        .collect();
    for (position, entry) in linked.catalog.entries.iter().enumerate() {
        if known.contains(&position) {
            continue;
        }
        if entry.declares_effect() {
            let own = file::from_catalog(findings, linked, position, defaults);
            if own.is_none() {
                nameless(findings, linked, entry);
            }
            declared.extend(own);
        } else if linked.catalog.uses_effects && !entry.is_safe() {
            let start = entry.value.span().start;
            let span = Span { start, end: start.saturating_add(1) };
            let at = At { file: linked.source, source: linked.text, operation: None };
            let id = entry.id.as_deref().unwrap_or("an operation");
            Reading { findings: &mut *findings, at }
                .warning(
                    "policy/catalog_effect_missing",
                    span,
                    format!("`{id}` has no `x-obol-effect`, and others have"),
                )
                .help("without one it is undeclared: irreversible, and confirmed");
        }
    }
}

/// Says of an operation with an effect that it has no id to be served under.
fn nameless(findings: &mut Findings, linked: &file::Linked<'_, '_>, entry: &CatalogEntry<'_>) {
    let start = entry.value.span().start;
    let span = Span { start, end: start.saturating_add(1) };
    let at = At { file: linked.source, source: linked.text, operation: None };
    Reading { findings, at }
        .warning(
            "policy/catalog_left_out",
            span,
            "an operation declares its effect and has no `operationId` that can be one here",
        )
        .help("declare it in a policy file; until then it is undeclared");
}

/// What each operation is served as, and whether that is less than it was declared.
struct ServedAs {
    resolved: Resolved,
    is_degraded: bool,
}

fn served_as(
    findings: &Findings,
    index: &Index<'_>,
    links: &[Links],
    faulty: &HashSet<String>,
    defaults: &[Defaults],
) -> Vec<ServedAs> {
    // A read stays one only if nothing is wrong with its contract as ADR-0030 has it: an entry that
    // contradicts itself may be a write that somebody wrote down wrong (case J5).
    let contradicted: HashSet<&str> = findings
        .iter()
        .filter(|found| found.severity == Severity::Error && !found.code.starts_with("spec/"))
        .filter_map(|found| found.operation.as_deref())
        .collect();
    index
        .declared
        .iter()
        .zip(&index.resolved)
        .zip(links)
        .map(|((declared, resolved), links)| {
            let id = declared.id.as_str();
            let mut resolved = *resolved;
            let is_degraded = faulty.contains(id);
            if is_degraded {
                if resolved.class != Class::Read || contradicted.contains(id) {
                    resolved.class = Class::Irreversible;
                    let defaults = defaults.get(declared.defaults).copied().unwrap_or_default();
                    let is_destructive = declared.destructive.is_some_and(|flag| flag.value);
                    let by_class = check::level_by_class(resolved.class, is_destructive, &defaults);
                    resolved.confirm = resolved.confirm.max(by_class).max(Level::Challenge);
                    if resolved.kind == Kind::Read {
                        resolved.kind = Kind::Mutation;
                    }
                }
            } else if resolved.confirm == Level::None && resolved.class != Class::Read {
                // A staged call is confirmed through this operation (ADR-0030 section 3).
                let draft = links.draft.as_ref().and_then(|link| index.resolved.get(link.target));
                resolved.confirm = draft.map_or(Level::None, |draft| draft.confirm);
            }
            ServedAs { resolved, is_degraded }
        })
        .collect()
}

/// Why an operation is served degraded.
fn notes(
    findings: &Findings,
    declared: &Declared<'_>,
    served_as: &[ServedAs],
    position: usize,
) -> Vec<String> {
    let Some(served) = served_as.get(position).filter(|served| served.is_degraded) else {
        return Vec::new();
    };
    let mut notes = vec![format!(
        "served as {} with confirmation {} and without follow-ups, because its contract has errors",
        served.resolved.class, served.resolved.confirm
    )];
    let own = findings.iter().filter(|found| {
        found.severity == Severity::Error
            && found.operation.as_deref() == Some(declared.id.as_str())
    });
    notes.extend(own.map(|found| {
        format!("{}:{}:{}: {}: {}", found.file, found.line, found.column, found.code, found.message)
    }));
    notes
}

fn ceiling(declared: &Declared<'_>) -> Ceiling {
    declared
        .effect
        .as_ref()
        .and_then(|effect| effect.spec.evidence.as_ref())
        .map_or(Ceiling::None, |evidence| evidence.ceiling)
}

struct Maker<'a> {
    index: &'a Index<'a>,
    served_as: &'a [ServedAs],
    defaults: &'a [Defaults],
}

impl Maker<'_> {
    fn operation(&self, position: usize, own: &Declared<'_>, links: &Links) -> Option<Operation> {
        let served = self.served_as.get(position)?;
        let Resolved { class, kind, confirm } = served.resolved;
        let effect = own.effect.as_ref().filter(|_| !served.is_degraded);
        let spec = own.effect.as_ref().map(|effect| &effect.spec);
        let defaults = self.defaults.get(own.defaults).copied().unwrap_or_default();
        let is_read = class == Class::Read;
        let default_statuses = if is_read { Statuses::for_read } else { Statuses::for_write };
        let default_repeat = match class {
            Class::Read | Class::Reversible => Repeat::Allow,
            Class::Compensable | Class::Irreversible => Repeat::Confirm,
        };
        let mut operation = Operation {
            id: own.id.clone(),
            target: own.target.clone()?,
            conditions: own.conditions.clone(),
            class,
            kind,
            destructive: own.destructive.is_some_and(|flag| flag.value),
            confirm,
            confirm_argument: own.confirm_argument.clone(),
            repeat: own.repeat.unwrap_or(default_repeat),
            on_unknown: own.on_unknown.unwrap_or(OnUnknown::Challenge),
            mode: own.mode.or(defaults.mode).unwrap_or(Mode::Enforce),
            response: own.response,
            is_error: own.is_error,
            rejected_if: own.rejected_if.clone(),
            inverse: effect.and_then(|effect| {
                self.follow_up(links.inverse.as_ref()?, effect.inverse.as_ref()?.deadline.clone())
            }),
            compensate: effect.and_then(|effect| {
                let deadline = effect.compensate.as_ref()?.deadline.clone();
                self.follow_up(links.compensate.as_ref()?, deadline)
            }),
            lookup: effect.and_then(|effect| {
                let raw = effect.lookup.as_ref()?;
                let link = links.lookup.as_ref()?;
                Some(Lookup {
                    reference: self.reference(link)?,
                    arguments: link.arguments.clone(),
                    by: raw.by.value,
                    settle_ms: raw.settle_ms,
                    empty: raw.empty.clone(),
                    matches: raw.matches.clone(),
                })
            }),
            draft: effect.and_then(|effect| {
                let raw = effect.draft.as_ref()?;
                let link = links.draft.as_ref()?;
                let discard = raw.discard.as_ref().and_then(|discard| {
                    self.follow_up(links.discard.as_ref()?, discard.deadline.clone())
                });
                Some(Draft {
                    reference: self.reference(link)?,
                    arguments: link.arguments.clone(),
                    handle: raw.handle.clone(),
                    promote: self
                        .follow_up(links.promote.as_ref()?, raw.promote.deadline.clone())?,
                    discard,
                })
            }),
            carrier: carrier(spec),
            statuses: spec
                .and_then(|spec| spec.statuses.clone())
                .map(|(statuses, _)| statuses)
                .unwrap_or_else(default_statuses),
            upstream_id: spec
                .and_then(|spec| spec.upstream_id.clone())
                .map(|(selector, _)| selector),
            verification: self.verification(spec),
            before: links.before.as_ref().and_then(|link| {
                Some(Before { reference: self.reference(link)?, arguments: link.arguments.clone() })
            }),
            sensitive: own.sensitive.clone(),
            vary_on: own.vary_on.clone(),
            allow: own.allow,
            timeouts: own.timeouts,
            max_body_bytes: own.max_body_bytes,
            body_type: body_type(own),
            fingerprint: Digest([0; 32]),
        };
        operation.fingerprint = fingerprint(&operation, own);
        Some(operation)
    }

    fn verification(&self, spec: Option<&Spec>) -> Verification {
        let evidence = spec.and_then(|spec| spec.evidence.as_ref());
        match evidence.map(|evidence| &evidence.verification) {
            None => Verification::None,
            Some(Verification::Plan(plan)) => {
                let mut plan = Plan::clone(plan);
                for stage in &mut plan.stages {
                    if let StageSource::Readback { probe, .. } = &mut stage.source {
                        probe.is_declared = self.index.probe_targets.contains(&probe.target);
                    }
                }
                Verification::Plan(Arc::new(plan))
            }
            Some(verification) => verification.clone(),
        }
    }

    fn follow_up(&self, link: &Linked, deadline: Option<Deadline>) -> Option<FollowUp> {
        Some(FollowUp {
            reference: self.reference(link)?,
            arguments: link.arguments.clone(),
            deadline,
        })
    }

    fn reference(&self, link: &Linked) -> Option<Reference> {
        let target = self.index.declared.get(link.target)?;
        Some(Reference {
            operation: target.id.clone(),
            target: target.target.clone()?,
            class: self.served_as.get(link.target)?.resolved.class,
            body_type: body_type(target),
            allow: target.allow,
        })
    }
}

/// The type in which an operation takes its body: its catalog's word, else JSON.
fn body_type(declared: &Declared<'_>) -> BodyType {
    declared.interface.as_ref().map_or(BodyType::Json, |interface| interface.body_type)
}

fn carrier(spec: Option<&Spec>) -> Carrier {
    spec.and_then(|spec| spec.carrier.as_ref())
        .map_or_else(Carrier::unsupported, |(carrier, _)| carrier.clone())
}

/// What a confirmation is bound to: the block as it was written, and all that other blocks and the
/// defaults decide about it.
fn fingerprint(operation: &Operation, own: &Declared<'_>) -> Digest {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update(text.len().to_be_bytes());
        hash.update(text.as_bytes());
    };
    part("takeback operation 1");
    part(operation.id.as_str());
    part(&own.written);
    part(operation.class.as_str());
    part(operation.kind.as_str());
    part(operation.confirm.as_str());
    part(operation.mode.as_str());
    let references = [
        operation.inverse.as_ref().map(|follow_up| &follow_up.reference),
        operation.compensate.as_ref().map(|follow_up| &follow_up.reference),
        operation.lookup.as_ref().map(|lookup| &lookup.reference),
        operation.draft.as_ref().map(|draft| &draft.reference),
        operation.draft.as_ref().map(|draft| &draft.promote.reference),
        operation
            .draft
            .as_ref()
            .and_then(|draft| draft.discard.as_ref())
            .map(|follow_up| &follow_up.reference),
        operation.before.as_ref().map(|before| &before.reference),
    ];
    for reference in references {
        match reference {
            None => part(""),
            Some(reference) => {
                part(reference.operation.as_str());
                part(reference.class.as_str());
                match &reference.target {
                    Target::Http { method, template } => {
                        part(method.as_str());
                        part(template.as_str());
                    }
                    Target::Tool { name } => part(name),
                }
            }
        }
    }
    Digest(hash.finalize().into())
}

/// What undeclared calls need: of all files the strictest, and never less than any operation uses.
fn undeclared(
    findings: &mut Findings,
    sources: &[Source],
    defaults: &[Defaults],
    operations: &[Arc<Served>],
) -> Undeclared {
    let strictest = operations.iter().map(|served| served.operation.confirm).max();
    let by_class = defaults
        .iter()
        .filter_map(|defaults| defaults.irreversible.map(|level| level.value))
        .max()
        .unwrap_or(Level::Challenge);
    let floor = strictest.unwrap_or(Level::None).max(by_class);
    // That declared writes are not asked about says nothing of those that nobody declared.
    let is_said = defaults.iter().any(|own| own.undeclared.is_some());
    let unsaid = if floor == Level::None && !is_said { Level::Challenge } else { floor };
    let mut level = Undeclared::Confirm(unsaid);
    for (position, own) in defaults.iter().enumerate() {
        let Some(declared) = own.undeclared else { continue };
        if let Undeclared::Confirm(weaker) = declared.value
            && weaker < floor
            && let Some(source) = sources.get(position)
        {
            let at = super::diagnostic::At { file: position, source, operation: None };
            let message = format!(
                "undeclared calls would need `{weaker}`, and a declared one needs `{floor}`"
            );
            let code = "policy/undeclared_weaker_than_declared";
            Reading { findings: &mut *findings, at }
                .warning(code, declared.span, message)
                .help(format!("`{floor}` holds; say so, or `refuse`"));
        }
        level = level.max(declared.value);
    }
    level
}
