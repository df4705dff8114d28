//! Policies on disk: which files of a directory are one policy, and which directories hold one.
//!
//! A directory with policy files of its own is one policy, and what lies in its folders are catalogs
//! at most. A directory without any may hold policies in its folders, one each: they are told apart
//! ([`folders`]) and never compiled together, because two gateways' policies have nothing in common.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::assemble::File;
use super::catalog::{self, MAX_CATALOGS};
use super::diagnostic::{At, Diagnostic, Findings, Severity, Source};
use super::tree::Span;
use super::{Compiled, compile_with};

/// The most files of one policy directory.
pub const MAX_FILES: usize = 1_000;

/// The most bytes of all files together: catalogs may lie among the policy files.
pub const MAX_TOTAL: usize = MAX_CATALOGS;

/// How deep policies are looked for below a directory; a circle of links ends here too.
const MAX_FOLDERS: usize = 8;

/// Compiles the `.yaml`, `.yml` and `.json` files of a directory, in letters of either case: not those of its folders, and
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
    let root = Root::of(directory);
    let mut compiled = match read_directory(&root) {
        Ok(files) => {
            let read = |name: &str, most: usize| catalog_below(&root, name, most);
            compile_with(files, &read, grace)
        }
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
        let name = entry.file_name().to_string_lossy().into_owned();
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
    let name = name.to_ascii_lowercase();
    let is_policy = [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end));
    is_policy && !name.starts_with('.')
}

/// A directory as it is when its reading begins.
///
/// The files of a mounted volume are links through `..data`, which is swapped for another revision at
/// any moment. It is followed once, so that all files are of one revision even if it is swapped, and
/// swapped back, meanwhile.
struct Root<'d> {
    directory: &'d Path,
    data: Option<PathBuf>,
}

impl<'d> Root<'d> {
    fn of(directory: &'d Path) -> Self {
        Self { directory, data: std::fs::read_link(directory.join("..data")).ok() }
    }

    /// Where a file below the directory is read.
    fn path(&self, below: &Path) -> PathBuf {
        self.pinned(below).unwrap_or_else(|| self.directory.join(below))
    }

    fn pinned(&self, below: &Path) -> Option<PathBuf> {
        let data = self.data.as_ref()?;
        let mut parts = below.components();
        let link = std::fs::read_link(self.directory.join(parts.next()?)).ok()?;
        let target = link.strip_prefix("..data").ok()?;
        let path = self.directory.join(data).join(target);
        let rest = parts.as_path();
        // Joined to nothing, a path would end in a slash: no file is there.
        Some(if rest.as_os_str().is_empty() { path } else { path.join(rest) })
    }
}

/// The text of a catalog of at most `most` bytes, or why it cannot be read.
fn catalog_below(root: &Root<'_>, name: &str, most: usize) -> Result<String, String> {
    let path = Path::new(name);
    // A policy file must not be able to have any file of the machine read and shown in a finding.
    let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_below {
        return Err("it is not below the policy directory".to_owned());
    }
    catalog::read_catalog(&root.path(path), most).map_err(|error| error.to_string())
}

/// The policy files of a directory: their names, and their texts or why they cannot be read. Or the name
/// and the reason of what cannot be read at all.
fn read_directory(root: &Root<'_>) -> Result<Vec<File>, (String, String)> {
    let shown = root.directory.display().to_string();
    let fault =
        |error: &std::io::Error| (shown.clone(), format!("the directory cannot be read: {error}"));
    let entries = std::fs::read_dir(root.directory).map_err(|error| fault(&error))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| fault(&error))?;
        match entry.file_name().into_string() {
            Ok(name) if is_policy_name(&name) => names.push(name),
            Err(name) if is_policy_name(&name.to_string_lossy()) => {
                let message = format!("the name of a file is not UTF-8: {}", name.display());
                return Err((shown, message));
            }
            Ok(_) | Err(_) => {}
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
        let path = root.path(Path::new(&name));
        if path.is_dir() {
            continue;
        }
        // It may be a catalog, which is large.
        let text = match catalog::read_catalog(&path, MAX_TOTAL.saturating_sub(total)) {
            Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => {
                let message = format!("the policy files have over {MAX_TOTAL} bytes together");
                return Err((shown, message));
            }
            Err(error) => Err(error.to_string()),
            Ok(text) => Ok(text),
        };
        total = total.saturating_add(text.as_ref().map_or(0, String::len));
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
    fn all_files_are_of_the_revision_that_was_there_when_the_reading_began() {
        use std::os::unix::fs::symlink;
        let directory = make(&[
            ("..1/a.yaml", "one a"),
            ("..1/catalog/b.json", "one b"),
            ("..2/a.yaml", "two a"),
            ("..2/catalog/b.json", "two b"),
            ("own.yaml", "own"),
        ]);
        let at = |name: &str| directory.path().join(name);
        symlink("..1", at("..data")).unwrap();
        symlink("..data/a.yaml", at("a.yaml")).unwrap();
        symlink("..data/catalog", at("catalog")).unwrap();
        let root = Root::of(directory.path());

        symlink("..2", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();

        let read = read_directory(&root).unwrap();
        let expected = [("a.yaml", "one a"), ("own.yaml", "own")];
        assert_eq!(read, expected.map(|(name, text)| (name.to_owned(), Ok(text.to_owned()))));
        assert_eq!(catalog_below(&root, "catalog/b.json", 100).unwrap(), "one b");
        let after = Root::of(directory.path());
        assert_eq!(catalog_below(&after, "catalog/b.json", 100).unwrap(), "two b");
    }

    #[test]
    fn a_file_that_cannot_be_read_does_not_hide_what_is_wrong_with_the_others() {
        let directory = make(&[("a.yaml", "version: 2\n"), ("c.yaml", "version: 3\n")]);
        std::fs::write(directory.path().join("b.yaml"), b"version: 1\n# \xff\n").unwrap();

        let compiled = load(directory.path());

        assert!(compiled.snapshot.is_none());
        let found: Vec<(&str, &str)> =
            compiled.diagnostics.iter().map(|found| (&*found.file, found.code)).collect();
        let expected = [
            ("a.yaml", "policy/version"),
            ("b.yaml", "policy/unreadable"),
            ("c.yaml", "policy/version"),
        ];
        assert_eq!(found, expected);
        assert!(compiled.human().contains("not UTF-8 in line 2"), "{}", compiled.human());
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

    #[test]
    fn a_policy_file_is_one_by_either_case_and_a_name_that_is_no_text_is_said() {
        use std::os::unix::ffi::OsStrExt as _;
        let directory = make(&[("A.YAML", POLICY)]);
        assert_eq!(folders(directory.path()), [directory.path().to_owned()]);
        assert_eq!(load(directory.path()).snapshot.unwrap().operations().len(), 1);
        let name = std::ffi::OsStr::from_bytes(b"b\xff.yaml");
        std::fs::write(directory.path().join(name), POLICY).unwrap();

        let compiled = load(directory.path());

        assert!(compiled.snapshot.is_none());
        assert!(compiled.human().contains("is not UTF-8"), "{}", compiled.human());
    }
}
