//! The binary: runs the command line and turns its error into an exit code.

use std::process::ExitCode;

/// Requests come and go with many small texts; this one hands them out in half the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match leasehold::cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}
