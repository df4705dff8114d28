//! The layers of `src/`: a module uses lower ones, never its equals and never higher ones.
//!
//! The compiler does not check this inside one crate (cycles of modules are legal), so this test reads
//! the sources for every `crate::MODULE`. It is blind to globs and to braces after `crate::`; both are
//! refused, so that it and a reader see every use.

use std::fs;
use std::path::{Path, PathBuf};

/// The layer of each module. A module that is not here fails the test.
const LAYERS: &[(&str, u8)] = &[
    ("clock", 0),
    ("contract", 0),
    ("files", 0),
    ("tasks", 0),
    ("ledger", 1),
    ("mcp", 1),
    ("metrics", 1),
    ("policy", 1),
    ("reread", 1),
    ("call", 2),
    ("tls", 2),
    ("admit", 3),
    ("http", 3),
    ("principal", 3),
    ("server", 3),
    ("upstream", 3),
    ("pipeline", 4),
    ("admin", 5),
    ("proxy", 5),
    ("app", 6),
    ("config", 5),
    ("cli", 8),
    ("demo", 7),
    ("prove", 7),
    ("lib", 8),
    ("main", 8),
];

/// The one place that may make a `Recorded`.
const MAKES_RECORDED: &str = "pipeline/record.rs";

/// A source file, with its lines that are not comments.
struct Source {
    /// Below `src/`.
    path: String,
    /// The module of the crate's root that it belongs to.
    module: String,
    lines: Vec<(usize, String)>,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn sources() -> Vec<Source> {
    let src = root().join("src");
    let mut paths = Vec::new();
    files(&src, &mut paths);
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    paths.sort();
    let source = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let path = path.strip_prefix(&src).unwrap().to_str().unwrap().replace('\\', "/");
        let module = path.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
        let lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .map(|(index, line)| (index + 1, line.to_owned()))
            .collect();
        Source { path, module, lines }
    };
    let sources: Vec<Source> = paths.iter().map(source).collect();
    assert!(sources.len() > 50, "the sources were found");
    sources
}

fn layer(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|(_, layer)| *layer)
}

/// The modules that a line names after `crate::`; an empty one for braces or a glob.
fn uses(line: &str) -> Vec<&str> {
    let after_crate = |(at, found): (usize, &str)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            return None;
        }
        let rest = line.get(at + found.len()..)?;
        let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_'));
        rest.get(..end.unwrap_or(rest.len()))
    };
    line.match_indices("crate::").filter_map(after_crate).collect()
}

/// What is wrong with a line of a module.
fn fault(module: &str, line: &str) -> Option<String> {
    for used in uses(line) {
        if used.is_empty() {
            return Some(
                "`crate::` is followed by something that this test cannot see through".into(),
            );
        }
        if used == module {
            continue;
        }
        let Some(theirs) = layer(used) else {
            return Some(format!("`{used}` has no layer"));
        };
        if module == "contract" {
            return Some(format!("`contract` uses nothing of the crate, and this is `{used}`"));
        }
        let ours = layer(module)?;
        if theirs >= ours {
            return Some(format!("`{module}` (layer {ours}) uses `{used}` (layer {theirs})"));
        }
    }
    None
}

#[test]
fn modules_use_lower_layers_only() {
    let mut faults = Vec::new();
    for source in sources() {
        assert!(layer(&source.module).is_some(), "src/{} has no layer", source.path);
        for (number, line) in &source.lines {
            if let Some(fault) = fault(&source.module, line) {
                faults.push(format!("src/{}:{number}: {fault}", source.path));
            }
        }
    }

    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn the_layer_scan_sees_what_it_must() {
    let refused = [
        ("call", "use crate::http::headers;"),
        ("call", "use crate::pipeline::{Reply, Shared};"),
        ("http", "    crate::upstream::Sent::Lost(reason) => reason,"),
        ("contract", "use crate::clock::Clock;"),
        ("policy", "use crate::{contract, ledger};"),
        ("policy", "pub(in crate::ledger) fn a() {}"),
        ("policy", "use crate::nowhere::Thing;"),
    ];
    for (module, line) in refused {
        assert!(fault(module, line).is_some(), "{module}: {line}");
    }
    let allowed = [
        ("call", "use crate::contract::key::Key;"),
        ("call", "use crate::call::Head;"),
        ("contract", "use crate::contract::json::Doc;"),
        ("http", "use tokio::time::Instant;"),
        ("ledger", "use mycrate::pipeline::Thing;"),
    ];
    for (module, line) in allowed {
        assert_eq!(fault(module, line), None, "{module}: {line}");
    }
}

#[test]
fn own_modules_are_not_imported_by_globs() {
    let mut faults = Vec::new();
    for source in sources() {
        for (number, line) in &source.lines {
            let import = line.trim_start();
            let is_glob = import.starts_with("use ") || import.starts_with("pub use ");
            let is_glob = is_glob && import.trim_end().ends_with("*;");
            // A test module sees all of what it tests; proptest's prelude is meant to be taken whole.
            let is_usual =
                ["use super::*;", "use proptest::prelude::*;"].contains(&import.trim_end());
            if is_glob && !is_usual {
                faults.push(format!("src/{}:{number}: {import}", source.path));
            }
        }
    }

    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn only_record_makes_a_recorded_write() {
    let mut makers = Vec::new();
    for source in sources() {
        for (number, line) in &source.lines {
            let is_named = line.match_indices("Recorded {").any(|(at, _)| {
                let before = line.get(..at).unwrap_or_default();
                let is_whole = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
                let kept = ["struct ", "impl ", "for "];
                is_whole && !kept.iter().any(|keyword| before.ends_with(keyword))
            });
            if is_named {
                makers.push((source.path.clone(), *number));
            }
        }
    }

    assert!(makers.iter().any(|(path, _)| path == MAKES_RECORDED), "the scan finds the maker");
    makers.retain(|(path, _)| path != MAKES_RECORDED);
    assert!(makers.is_empty(), "`Recorded` is made or taken apart elsewhere: {makers:?}");
}

#[test]
fn no_file_holds_a_path_of_one_machine() {
    // Put together here, so that this file does not hold what it looks for.
    let absolute = |parts: &[&str]| format!("/{}/", parts.join("/"));
    let refused = [absolute(&["work"]), absolute(&["root"]), absolute(&["home"])];
    let mut paths = Vec::new();
    let tops = ["benches", "deploy", "fuzz", "policies", "src", "tests", ".ci", ".config"];
    for top in tops.iter().map(|top| root().join(top)).filter(|top| top.is_dir()) {
        files(&top, &mut paths);
    }
    paths.extend(["Cargo.toml", "README.md", ".deny.toml", ".clippy.toml"].map(|f| root().join(f)));
    let is_source = |path: &PathBuf| {
        let name = path.to_string_lossy();
        !name.contains("/target/") && !name.contains("/node_modules/") && !name.contains("/corpus/")
    };
    let mut faults = Vec::new();
    for path in paths.into_iter().filter(is_source) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (index, line) in text.lines().enumerate() {
            if refused.iter().any(|machine| line.contains(machine.as_str())) {
                faults.push(format!("{}:{}: {line}", path.display(), index + 1));
            }
        }
    }

    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
