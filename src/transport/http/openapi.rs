//! The documents that the handlers generate, one per plane.

mod complete;

use actix_web::App;
use utoipa::openapi::OpenApi;
use utoipa_actix_web::AppExt;
use yaml_serde::Value;

use crate::protocol::version::Advertised;

use super::documents::Written;
use super::routes::RouteTable;
use super::{control, docs, info, native};

/// A group of operations with a document of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// What workers call.
    Worker,
    /// What operators and clients call.
    Control,
}

impl Plane {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Worker, Self::Control];

    /// The name of its document.
    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker-plane",
            Self::Control => "control-plane",
        }
    }

    /// What the handlers say of themselves, with the paths that are routed.
    pub fn derived(self) -> OpenApi {
        match self {
            Self::Worker => worker_plane(),
            Self::Control => control_plane(),
        }
    }

    /// The document of a server that advertises this version of the worker protocol.
    ///
    /// # Errors
    /// The parts do not fit together, which is a defect.
    pub fn document(self, advertised: &Advertised) -> Result<Document, String> {
        complete::document(self, advertised).map(Document)
    }
}

/// A complete document.
#[derive(Clone, Debug)]
pub struct Document(Value);

impl Document {
    /// As JSON.
    ///
    /// # Errors
    /// It cannot be written, which is a defect.
    pub fn json(&self) -> Result<String, String> {
        serde_json::to_string(&self.0).map_err(|error| error.to_string())
    }

    /// As YAML.
    ///
    /// # Errors
    /// It cannot be written, which is a defect.
    pub fn yaml(&self) -> Result<String, String> {
        yaml_serde::to_string(&self.0).map_err(|error| error.to_string())
    }
}

/// What the handlers of the worker plane say.
pub fn worker_plane() -> OpenApi {
    let (_, document) = App::new()
        .into_utoipa_app()
        .service(native::routes())
        .split_for_parts();
    document
}

/// What the handlers of the control plane say.
pub fn control_plane() -> OpenApi {
    let (_, document) = App::new()
        .into_utoipa_app()
        .service(control::routes())
        .service(info::metrics)
        .service(docs::page)
        .service(docs::asset)
        .split_for_parts();
    document
}

/// All routes that are served.
pub fn routes() -> RouteTable {
    RouteTable::of(&worker_plane()).and(RouteTable::of(&control_plane()))
}

/// Writes all documents, to be served.
///
/// # Errors
/// The parts do not fit together, which is a defect.
pub fn write(advertised: &Advertised) -> Result<Vec<Written>, String> {
    let written = Plane::ALL.into_iter().map(|plane| {
        let document = plane.document(advertised)?;
        Ok(Written {
            name: plane.name(),
            json: document.json()?,
            yaml: document.yaml()?,
        })
    });
    written.collect()
}
