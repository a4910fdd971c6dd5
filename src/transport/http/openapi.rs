//! The documents that the handlers generate, one per plane.

use actix_web::App;
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa_actix_web::AppExt;

use super::routes::RouteTable;
use super::{control, info, native};

/// The document of the worker plane.
pub fn worker_plane() -> OpenApi {
    let (_, document) = App::new()
        .into_utoipa_app()
        .service(native::routes())
        .split_for_parts();
    titled(document, "Leasehold worker plane")
}

/// The document of the control plane.
pub fn control_plane() -> OpenApi {
    let (_, document) = App::new()
        .into_utoipa_app()
        .service(control::routes())
        .service(info::metrics)
        .split_for_parts();
    titled(document, "Leasehold control plane")
}

fn titled(document: OpenApi, title: &str) -> OpenApi {
    let info = InfoBuilder::new()
        .title(title)
        .version(env!("CARGO_PKG_VERSION"))
        .license(Some(
            utoipa::openapi::LicenseBuilder::new()
                .name("Apache-2.0")
                .identifier(Some("Apache-2.0"))
                .build(),
        ))
        .build();
    OpenApiBuilder::from(document).info(info).build()
}

/// All routes that are served.
pub fn routes() -> RouteTable {
    RouteTable::of(&worker_plane()).and(RouteTable::of(&control_plane()))
}
