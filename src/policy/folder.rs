//! Policies on disk: which files of a directory are one policy, and which directories hold one.
//!
//! A directory with policy files of its own is one policy, and what lies in its folders are catalogs
//! at most. A directory without any may hold policies in its folders, one each: they are told apart
//! ([`folders`]) and never compiled together, because two gateways' policies have nothing in common.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::catalog::MAX_CATALOG;
use super::diagnostic::{At, Diagnostic, Findings, Severity, Source};
use super::tree::Span;
use super::{Compiled, compile_with};
use crate::files;

/// The most files of one policy directory.
pub const MAX_FILES: usize = 1_000;

/// The most bytes of all files together.
pub const MAX_TOTAL: usize = 64 * 1024 * 1024;

/// How deep policies are looked for below a directory; a circle of links ends here too.
const MAX_FOLDERS: usize = 8;

/// Compiles the `.yaml`, `.yml` and `.json` files of a directory: not those of its folders, and
/// none whose name starts with a dot, so that a Kubernetes volume is read once. Catalogs are read
/// from where the files name them, below the directory. Files that declare no operation are no
/// policy: nothing would be told apart from what is undeclared.
pub fn load(directory: &Path) -> Compiled {
    load_within(directory, None)
}

/// As [`load`], for a sidecar whose end waits so long for calls under way (`drain.grace_ms`): an
/// operation that may take longer is a finding.
pub fn load_within(directory: &Path, grace: Option<Duration>) -> Compiled {
    let shown = directory.display().to_string();
    let mut compiled = match read_directory(directory) {
        Ok(files) => compile_with(files, &|name| read_catalog(directory, name), grace),
        Err((name, message)) => {
            let help = "a policy is a directory of .yaml, .yml and .json files";
            let (source, found) = about_all(&name, "policy/unreadable", message, help);
            return Compiled { snapshot: None, diagnostics: vec![found], sources: vec![source] };
        }
    };
    if compiled.snapshot.as_ref().is_some_and(|snapshot| snapshot.operations().is_empty()) {
        let below = folders(directory);
        let names: Vec<String> = below
            .iter()
            .filter(|folder| *folder != directory)
            .map(|folder| format!("`{}`", folder.display()))
            .collect();
        let help = if names.is_empty() {
            "declare at least one under `operations`".to_owned()
        } else {
            format!("each of these folders is a policy: {}", names.join(", "))
        };
        let message = "no operation is declared, so every call would be undeclared";
        let (source, found) = about_all(&shown, "policy/empty", message.to_owned(), &help);
        compiled.snapshot = None;
        compiled.diagnostics.push(found);
        compiled.sources.push(source);
    }
    compiled
}

/// A finding about a directory.
fn about_all(name: &str, code: &'static str, message: String, help: &str) -> (Source, Diagnostic) {
    let source = Source::new(name, "");
    let mut findings = Findings::default();
    let at = At { file: 0, source: &source, operation: None };
    let found = findings.add(at, Severity::Error, code, Span::default(), message);
    found.help(help);
    let found = found.clone();
    (source, found)
}

/// The directories that hold a policy: the given one if it has policy files, else those of its
/// folders that do, or that cannot be read, in name order. Empty if there is none. Names that start
/// with a dot are left out.
pub fn folders(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(directory, MAX_FOLDERS, &mut found);
    found
}

fn walk(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        // Loading it says why; left out, it would pass for clean.
        found.push(directory.to_owned());
        return;
    };
    let mut folders = Vec::new();
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if path.is_dir() && !name.starts_with('.') {
            folders.push(path);
        } else if is_policy_name(&name) {
            found.push(directory.to_owned());
            return;
        }
    }
    folders.sort();
    if let Some(depth) = depth.checked_sub(1) {
        for folder in folders {
            walk(&folder, depth, found);
        }
    }
}

fn is_policy_name(name: &str) -> bool {
    let is_policy = [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end));
    is_policy && !name.starts_with('.')
}

/// A catalog's text, or why it cannot be read.
fn read_catalog(directory: &Path, name: &str) -> Result<String, String> {
    let path = Path::new(name);
    // A policy file must not be able to have any file of the machine read and shown in a finding.
    let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_below {
        return Err("it is not below the policy directory".to_owned());
    }
    let path = directory.join(path);
    let most = u64::try_from(MAX_CATALOG).unwrap_or(u64::MAX);
    files::read_text(&path, most).map_err(|error| error.to_string())
}

/// The policy files of a directory, or the name and the reason of what could not be read.
fn read_directory(directory: &Path) -> Result<Vec<(String, String)>, (String, String)> {
    let shown = directory.display().to_string();
    let fault = |name: &str, what: &str, error: &std::io::Error| {
        (name.to_owned(), format!("{what}: {error}"))
    };
    let entries = std::fs::read_dir(directory)
        .map_err(|error| fault(&shown, "the directory cannot be read", &error))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| fault(&shown, "the directory cannot be read", &error))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if is_policy_name(&name) {
            names.push(name);
        }
    }
    names.sort();
    if names.len() > MAX_FILES {
        let message = format!("{} policy files; at most {MAX_FILES} are read", names.len());
        return Err((shown, message));
    }
    let mut read = Vec::with_capacity(names.len());
    let mut total: usize = 0;
    for name in names {
        let path = directory.join(&name);
        if path.is_dir() {
            continue;
        }
        let left = u64::try_from(MAX_TOTAL.saturating_sub(total)).unwrap_or(u64::MAX);
        let text = match files::read_text(&path, left) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => {
                let message = format!("the policy files have over {MAX_TOTAL} bytes together");
                return Err((shown, message));
            }
            Err(error) => return Err(fault(&name, "the file cannot be read", &error)),
        };
        total = total.saturating_add(text.len());
        read.push((name, text));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "version: 1\noperations: { a: { match: { tool: a } } }";

    fn make(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        directory
    }

    #[test]
    fn each_folder_with_policy_files_is_a_policy_and_what_lies_below_it_is_not() {
        let directory = make(&[
            ("b/one.yaml", POLICY),
            ("b/catalog/tools.json", "{}"),
            ("a/deep/two.yml", POLICY),
            ("a/notes.txt", ""),
            (".git/three.yaml", POLICY),
            ("none/.hidden.yaml", POLICY),
        ]);
        let root = directory.path();

        let found = folders(root);

        assert_eq!(found, [root.join("a/deep"), root.join("b")]);
        assert_eq!(folders(&root.join("b")), [root.join("b")]);
        assert!(folders(&root.join("none")).is_empty());
        assert_eq!(folders(&root.join("nowhere")), [root.join("nowhere")]);
    }

    #[test]
    fn a_directory_that_declares_nothing_is_no_policy_and_says_where_some_are() {
        let directory = make(&[("mine/one.yaml", POLICY)]);
        let compiled = load(directory.path());
        assert!(compiled.snapshot.is_none());
        let [found] = compiled.diagnostics.as_slice() else { panic!("{}", compiled.human()) };
        assert_eq!(found.code, "policy/empty");
        assert!(found.help.as_ref().unwrap().contains("mine"), "{found:?}");

        let empty = make(&[("one.yaml", "version: 1\noperations: {}")]);
        let compiled = load(empty.path());
        assert!(compiled.snapshot.is_none() && compiled.has_errors());
        assert!(compiled.human().contains("error[policy/empty]"), "{}", compiled.human());
        assert!(load(&directory.path().join("mine")).snapshot.is_some());
    }
}
