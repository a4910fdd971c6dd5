//! The binary: runs the command line and turns its error into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    match leasehold::cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}
