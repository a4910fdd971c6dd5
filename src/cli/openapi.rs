//! `leasehold openapi`: the documents that the handlers generate.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use utoipa::openapi::OpenApi;

use super::common::say;
use crate::transport::http::openapi as documents;

/// Flags of `openapi`.
#[derive(Debug, Args)]
pub(super) struct OpenapiArgs {
    /// Which document to print.
    #[arg(long, value_enum, default_value = "worker-plane")]
    plane: Plane,
    /// Write all documents into this folder instead.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Compare the documents in a folder with the code; fail when they differ.
    #[arg(long, num_args = 0..=1, default_missing_value = "openapi")]
    check: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Plane {
    WorkerPlane,
    ControlPlane,
}

impl Plane {
    const ALL: [Self; 2] = [Self::WorkerPlane, Self::ControlPlane];

    fn document(self) -> OpenApi {
        match self {
            Self::WorkerPlane => documents::worker_plane(),
            Self::ControlPlane => documents::control_plane(),
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::WorkerPlane => "worker-plane.openapi.yaml",
            Self::ControlPlane => "control-plane.openapi.yaml",
        }
    }

    fn text(self) -> Result<String, String> {
        self.document()
            .to_yaml()
            .map_err(|error| format!("the document cannot be written: {error}"))
    }
}

pub(super) fn run(args: &OpenapiArgs) -> Result<(), String> {
    if let Some(folder) = &args.check {
        return check(folder);
    }
    if let Some(folder) = &args.write {
        for plane in Plane::ALL {
            let path = folder.join(plane.file());
            std::fs::write(&path, plane.text()?)
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        return Ok(());
    }
    say(args.plane.text()?.trim_end());
    Ok(())
}

fn check(folder: &Path) -> Result<(), String> {
    for plane in Plane::ALL {
        let path = folder.join(plane.file());
        let kept = std::fs::read_to_string(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        if kept != plane.text()? {
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
