//! The `takeback` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    takeback::cli::run()
}
