//! `takeback import`: a skeleton policy out of what a gateway says of itself.

use std::path::Path;

use super::exit::{self, Failure, with_help};
use super::out;
use crate::policy::{Imported, MAX_CATALOG, import_openapi, import_tools, read_catalog};

/// What the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    OpenApi,
    Tools,
}

/// Prints a skeleton. The catalog is named in it as the file is, below the policy's folder.
pub(super) fn run(kind: Kind, path: &Path) -> Result<u8, Failure> {
    let failed = |why: String| {
        let message = format!("{} cannot be read: {why}", path.display());
        let help = match kind {
            Kind::OpenApi => "give an OpenAPI 3 document, in JSON or YAML",
            Kind::Tools => "give a saved tools/list answer, or a JSON list of its pages",
        };
        Failure::new(exit::DATA, with_help(&message, help))
    };
    let text = read_catalog(path, MAX_CATALOG).map_err(|error| failed(error.to_string()))?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let imported = match kind {
        Kind::OpenApi => import_openapi(&name, text),
        Kind::Tools => import_tools(&name, text),
    };
    let Imported { skeleton, operations, left_out } = imported.map_err(failed)?;
    out::print(skeleton.trim_end())?;
    if operations == 0 {
        out::complain("it holds no operation that a policy can name");
    }
    if !left_out.is_empty() {
        out::complain("left out, because no policy can name it:");
    }
    for line in left_out {
        out::complain(&format!("  {line}"));
    }
    Ok(exit::OK)
}
