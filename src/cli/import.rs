//! `takeback import`: a skeleton policy out of what a gateway says of itself.

use std::path::Path;

use super::exit::{self, Failure, with_help};
use super::out;
use crate::files;
use crate::policy::{MAX_CATALOG, import_openapi, import_tools};

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
    let most = u64::try_from(MAX_CATALOG).unwrap_or(u64::MAX);
    let text = files::read_text(path, most).map_err(|error| failed(error.to_string()))?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let skeleton = match kind {
        Kind::OpenApi => import_openapi(&name, &text),
        Kind::Tools => import_tools(&name, &text),
    };
    out::print(skeleton.map_err(failed)?.trim_end())?;
    Ok(exit::OK)
}
