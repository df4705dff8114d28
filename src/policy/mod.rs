//! Policies: from files that people write to what every call is decided by.
//!
//! [`load`] reads a directory, [`compile`] texts; both give every finding about them and, if all
//! files could be read into operations, a [`Snapshot`]. The steps, one file each: text to a tree
//! with positions (`tree`), tree to declarations by closed lists (`file`, `effect`,
//! `effect_spec`), declarations against each other (`check`, `link`),
//! declarations to [`Operation`]s and a router (`assemble`, `route`).
//!
//! Two kinds of error are told apart. A file that cannot be read into operations gives no snapshot:
//! at start that is fatal, at a reload the last good one stays. An operation whose contract is
//! wrong is served all the same, degraded: irreversible (or a read), every follow-up removed,
//! confirmation tightened, and a note of why ([`Served::notes`]); it is never dropped to
//! undeclared, and never left at its former class.

mod assemble;
mod assertions;
mod carrier;
mod catalog;
mod check;
mod codes;
mod diagnostic;
mod diff;
mod effect;
mod effect_spec;
mod explain;
mod file;
mod folder;
mod headers;
mod import;
mod interface;
mod link;
mod never;
mod overlap;
mod paths;
mod plan;
mod reading;
mod route;
mod schema;
mod selectors;
pub mod settings;
mod things;
mod tree;
mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use crate::contract::class::{Class, Level, Mode};
use crate::contract::json::Value;
use crate::contract::key::{Digest, OperationId};
use crate::contract::operation::{Operation, is_safe};
use crate::contract::thing::Thing;

pub use catalog::{MAX_CATALOG, read_catalog};
pub use codes::{codes, explain_code};
pub use diagnostic::{Diagnostic, Severity, Source};
pub use diff::{Change, diff};
pub use effect_spec::Ceiling;
pub use explain::{Explained, Imagined, explain, explain_unmatched};
pub use file::Undeclared;
pub use folder::{MAX_FILES, MAX_TOTAL, folders, load, load_within};
pub use import::{Imported, import_openapi, import_tools};
pub use route::{
    Choice, Elsewhere, Found, Group, choose, choose_each, is_satisfied, is_worse_elsewhere,
};
pub use tree::{MAX_FILE, Span};
pub use watch::{Faulty, Poll, READ_EVERY, Watch};

use diagnostic::Findings;
use route::Router;
use things::Things;

/// JSON Schema of a policy file, for editors. What it takes and `check` refuses is what needs more
/// than one place of a file to see.
pub const JSON_SCHEMA: &str = include_str!("policy.schema.json");

/// One operation as it is served.
#[derive(Debug)]
pub struct Served {
    /// The operation; degraded if its contract has an error.
    pub operation: Operation,
    /// Its position among all; dense, for metrics.
    pub index: usize,
    /// Why it is served as less than it was declared; empty if it is not.
    pub notes: Vec<String>,
    /// The report of every call of a read, as a header.
    pub read_header: HeaderValue,
    /// The best evidence that it can reach.
    pub ceiling: Ceiling,
    /// The hash that its tool's live schema must have, in lower-case hexadecimal.
    pub schema_sha256: Option<String>,
    /// The file that declares it.
    pub file: Arc<str>,
    /// The line on which its id stands.
    pub line: usize,
}

impl Served {
    /// Whether it is served as less than it was declared.
    pub fn is_degraded(&self) -> bool {
        !self.notes.is_empty()
    }
}

/// One compiled set of policy files. Never changed; a reload swaps the whole.
#[derive(Debug)]
pub struct Snapshot {
    revision: Digest,
    operations: Vec<Arc<Served>>,
    by_id: HashMap<OperationId, usize>,
    router: Router,
    things: Things,
    undeclared: Undeclared,
    undeclared_mode: Mode,
    get_writes: bool,
}

impl Snapshot {
    /// SHA-256 over the files' names and contents, in name order.
    pub fn revision(&self) -> Digest {
        self.revision
    }

    /// Every operation, in file order.
    pub fn operations(&self) -> &[Arc<Served>] {
        &self.operations
    }

    /// The operation with this id.
    pub fn operation(&self, id: &OperationId) -> Option<&Arc<Served>> {
        self.operations.get(*self.by_id.get(id)?)
    }

    /// What is declared for this method and path. The path is as it is forwarded to the upstream's
    /// base, without query; a HEAD that is not declared matches as a GET.
    pub fn find_http(&self, method: &http::Method, path: &str) -> Found<'_> {
        self.router.find_http(method, path, !self.get_writes)
    }

    /// What a call of a tool changes, by its arguments; empty where they do not say.
    pub fn things_of_call(&self, tool: &str, arguments: Value<'_>) -> Vec<Thing> {
        self.things.of_call(tool, arguments)
    }

    /// What an undo that calls a tool would change; empty where its arguments, each with its JSON text, do not
    /// say.
    pub fn things_of_undo(&self, tool: &str, arguments: &[(String, String)]) -> Vec<Thing> {
        self.things.of_undo(tool, arguments)
    }

    /// What is declared for this tool; the name is exact.
    pub fn find_tool(&self, name: &str) -> Option<&Group> {
        self.router.find_tool(name)
    }

    /// Whether a reader who takes escapes off before he looks would take the path for another
    /// operation's, and the call so for another than it is.
    pub fn is_ambiguous(&self, method: &http::Method, path: &str) -> bool {
        self.router.is_ambiguous(method, path, !self.get_writes)
    }

    /// What an undeclared write needs: never less than the strictest level that any operation uses.
    pub fn undeclared(&self) -> Undeclared {
        self.undeclared
    }

    /// The confirmation of an undeclared write, where it is not refused.
    pub fn undeclared_level(&self) -> Level {
        match self.undeclared {
            Undeclared::Confirm(level) => level,
            Undeclared::Refuse => Level::Challenge,
        }
    }

    /// Whether the rules stop undeclared calls; of all files the strictest holds.
    pub fn undeclared_mode(&self) -> Mode {
        self.undeclared_mode
    }

    /// Whether an undeclared GET, HEAD or OPTIONS is irreversible (`undeclared_get`).
    pub fn undeclared_get_writes(&self) -> bool {
        self.get_writes
    }

    /// What a call is where nothing is declared for its target: a safe method's is a read, unless the
    /// policy says otherwise, or the path folds onto a declared write (contract section 1).
    pub fn undeclared_class(&self, method: &http::Method, path: &str) -> Class {
        if !is_safe(method) {
            return Class::Irreversible;
        }
        let otherwise = if self.get_writes { Class::Irreversible } else { Class::Read };
        self.folds_onto_write(method, path).map_or(otherwise, |(class, _)| class)
    }

    /// What an undeclared call is if it is spelt like one that is declared for its method and writes, but
    /// for case, a slash at the end, and the like: a lenient upstream would run it. A HEAD is a GET too.
    pub fn folds_onto_write(&self, method: &http::Method, path: &str) -> Option<(Class, Level)> {
        self.router.folds_onto_write(method, path)
    }
}

/// What became of a set of policy files.
#[derive(Debug)]
pub struct Compiled {
    /// The result; `None` if a file could not be read into operations.
    pub snapshot: Option<Snapshot>,
    /// Every finding, in file order and then by position.
    pub diagnostics: Vec<Diagnostic>,
    /// The files, for drawing findings.
    pub sources: Vec<Source>,
}

impl Compiled {
    /// Whether any finding is an error.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|found| found.severity == Severity::Error)
    }

    /// All findings for people, a blank line after each.
    pub fn human(&self) -> String {
        self.drawn(|_| true)
    }

    /// The errors alone, as [`human`](Self::human): why a policy cannot be served.
    pub fn human_errors(&self) -> String {
        self.drawn(|severity| severity == Severity::Error)
    }

    fn drawn(&self, is_shown: impl Fn(Severity) -> bool) -> String {
        let mut out = String::new();
        for found in self.diagnostics.iter().filter(|found| is_shown(found.severity)) {
            let source = self.sources.iter().find(|source| source.name == found.file);
            out.push_str(&found.human(source));
            out.push_str("\n\n");
        }
        out
    }

    /// All findings for programs, one JSON object on each line.
    pub fn json_lines(&self) -> String {
        let mut out = String::new();
        for found in &self.diagnostics {
            out.push_str(&found.json());
            out.push('\n');
        }
        out
    }
}

/// Compiles files given as names and texts. The order of the names decides the order of findings
/// and of operations. A file that another names as its catalog is that, and no policy file.
pub fn compile(files: Vec<(String, String)>) -> Compiled {
    let files = files.into_iter().map(|(name, text)| (name, Ok(text))).collect();
    compile_with(files, &|_, _| Err("there is no such file".to_owned()), None)
}

/// As [`compile`]; catalogs that are not among the files are read by `read`. `grace` is how long the
/// sidecar's end waits for calls.
fn compile_with(
    files: Vec<assemble::File>,
    read: &assemble::ReadCatalog<'_>,
    grace: Option<Duration>,
) -> Compiled {
    let files = assemble::Files::gather(files, read);
    let revision = files.revision();
    let mut findings = Findings::with_policies(files.policies());
    let snapshot = assemble::compile(&mut findings, &files, revision, grace);
    Compiled { snapshot, diagnostics: findings.finish(), sources: files.into_sources() }
}

#[cfg(test)]
mod tests;
