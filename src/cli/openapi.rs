//! `leasehold openapi`: the documents that the handlers generate.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::common::say;
use crate::protocol::version::Advertised;
use crate::transport::http::openapi::Plane;

/// Flags of `openapi`.
#[derive(Debug, Args)]
pub(super) struct OpenapiArgs {
    /// Which document to print.
    #[arg(long, value_enum, default_value = "worker-plane")]
    plane: PlaneName,
    /// Write all documents into this folder instead.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Compare the documents in a folder with the code; fail when they differ.
    #[arg(long, num_args = 0..=1, default_missing_value = "openapi")]
    check: Option<PathBuf>,
    /// Worker protocol version of the document to print; the default one when it is left out.
    #[arg(long, conflicts_with_all = ["write", "check"])]
    worker_protocol: Option<Advertised>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PlaneName {
    WorkerPlane,
    ControlPlane,
}

impl From<PlaneName> for Plane {
    fn from(name: PlaneName) -> Self {
        match name {
            PlaneName::WorkerPlane => Self::Worker,
            PlaneName::ControlPlane => Self::Control,
        }
    }
}

/// File of a plane's document.
fn file(plane: Plane) -> String {
    format!("{}.openapi.yaml", plane.name())
}

fn text(plane: Plane, advertised: &Advertised) -> Result<String, String> {
    plane.document(advertised)?.yaml()
}

pub(super) fn run(args: &OpenapiArgs) -> Result<(), String> {
    if let Some(folder) = &args.check {
        return check(folder);
    }
    if let Some(folder) = &args.write {
        for plane in Plane::ALL {
            let path = folder.join(file(plane));
            std::fs::write(&path, text(plane, &Advertised::default())?)
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        return Ok(());
    }
    let advertised = args.worker_protocol.clone().unwrap_or_default();
    say(text(args.plane.into(), &advertised)?.trim_end());
    Ok(())
}

fn check(folder: &Path) -> Result<(), String> {
    for plane in Plane::ALL {
        let path = folder.join(file(plane));
        let kept = std::fs::read_to_string(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        if kept != text(plane, &Advertised::default())? {
            return Err(format!(
                "{} differs from what the handlers generate. Run `cargo run -- openapi --write {}` and look at the change.",
                path.display(),
                folder.display()
            ));
        }
    }
    say("The documents are those that the handlers generate.");
    Ok(())
}
