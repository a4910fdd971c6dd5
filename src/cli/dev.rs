//! `leasehold dev`: a node with a private PostgreSQL of its own.

use super::DevArgs;

pub(super) fn run(_args: &DevArgs) -> Result<(), String> {
    Err("not yet".to_owned())
}
