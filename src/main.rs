//! The binary: runs the command line and turns its error into an exit code.

use std::process::ExitCode;

/// Requests come and go with many small texts; this one hands them out in half the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long the allocator keeps what is free, in milliseconds, unless `MIMALLOC_PURGE_DELAY` says otherwise:
/// long enough for the next requests of a busy server, too short to hold what large ones have left.
const PURGE_DELAY_MS: std::ffi::c_long = 50;
/// What it is by default.
const DEFAULT_PURGE_DELAY_MS: std::ffi::c_long = 10;
/// `mi_option_purge_delay` of mimalloc's second version.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

#[allow(
    unsafe_code,
    reason = "options of the allocator can be set in C only, or with variables of the environment"
)]
fn keep_free_memory_for_a_moment() {
    // SAFETY: both take numbers only, and may be called at any time from any thread.
    unsafe {
        // Another value was set on purpose, or the number stands for another option by now.
        if libmimalloc_sys::mi_option_get(PURGE_DELAY) == DEFAULT_PURGE_DELAY_MS {
            libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
        }
    }
}

fn main() -> ExitCode {
    keep_free_memory_for_a_moment();
    match leasehold::cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}
