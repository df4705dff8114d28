//! The demo's own folder: policies, ledger, admin socket.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

/// The policies of the example gateway, built in.
const POLICIES: &[(&str, &str)] = &[
    ("github.yaml", include_str!("../../policies/github-mini/github.yaml")),
    ("github-mcp.yaml", include_str!("../../policies/github-mini/github-mcp.yaml")),
];

/// A fresh folder that only this user can read; its drop removes it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes it, with the policies in it.
    pub(super) fn new() -> io::Result<Self> {
        let name = format!("takeback-demo-{}", uuid::Uuid::now_v7().simple());
        let path = std::env::temp_dir().join(name);
        // Not recursive: a name that exists already, or a link, is an error.
        DirBuilder::new().mode(0o700).create(&path)?;
        let folder = Self { path };
        fs::create_dir(folder.policies())?;
        for (name, text) in POLICIES {
            fs::write(folder.policies().join(name), text)?;
        }
        Ok(folder)
    }

    /// The policy directory.
    pub(super) fn policies(&self) -> PathBuf {
        self.path.join("policies")
    }

    /// The ledger's file; nothing is there yet.
    pub(super) fn ledger(&self) -> PathBuf {
        self.path.join("ledger.db")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is the temporary directory's to clean up.
        drop(fs::remove_dir_all(&self.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_folder_is_private_holds_the_policies_and_is_removed() {
        let folder = Folder::new().unwrap();
        let path = folder.path.clone();

        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let compiled = crate::policy::load(&folder.policies());
        assert!(compiled.diagnostics.is_empty() && compiled.snapshot.is_some());
        drop(folder);

        assert!(!path.exists());
    }
}
