//! The documents that the handlers generate, one per plane.

use actix_web::App;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder, PathItem, ResponseBuilder};
use utoipa_actix_web::AppExt;

use super::routes::RouteTable;
use super::{control, info, native};

/// Answers that a request may get from the checks in front of every handler, or from any handler
/// whose database or code fails. What a handler says of them itself goes first.
const ANYWHERE: [(&str, &str); 7] = [
    (
        "400",
        "The request's version is missing or not served, or the request is malformed.",
    ),
    ("401", "There is no credential, or a wrong one."),
    ("403", "The role of the credential may not do this."),
    ("404", "The namespace does not exist."),
    ("422", "Fields."),
    ("500", "A defect of the server."),
    (
        "503",
        "The database is away or too contended; repeat after `Retry-After`.",
    ),
];
/// The same for requests with a body.
const WITH_BODY: [(&str, &str); 2] = [
    ("413", "The body is too large."),
    ("415", "The body is not JSON."),
];
/// Routes that are not of a plane and say themselves what they answer.
const APART: [&str; 4] = ["/api/health", "/api/ready", "/api/cluster/info", "/metrics"];

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

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.post,
        &mut item.put,
        &mut item.delete,
        &mut item.patch,
    ]
    .into_iter()
    .flatten()
}

/// Adds the answers that no handler needs to name.
fn with_common_answers(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        if APART.contains(&path.as_str()) {
            continue;
        }
        for operation in operations(item) {
            let with_body = operation.request_body.is_some();
            let more = WITH_BODY.iter().filter(|_| with_body);
            for (status, description) in ANYWHERE.iter().chain(more) {
                let answers = &mut operation.responses.responses;
                answers.entry((*status).to_owned()).or_insert_with(|| {
                    ResponseBuilder::new()
                        .description(*description)
                        .build()
                        .into()
                });
            }
        }
    }
}

fn titled(mut document: OpenApi, title: &str) -> OpenApi {
    with_common_answers(&mut document);
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
