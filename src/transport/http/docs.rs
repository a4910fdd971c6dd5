//! The documents as the server serves them, and a page to browse them and to try requests. All of it
//! is part of the program and needs no credential: it shows nothing of the server but its versions.

use actix_web::http::StatusCode;
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use actix_web::web::{Data, Path};
use actix_web::{HttpResponse, get};
use serde_json::json;

use crate::protocol::CONTROL_PLANE_VERSION;
use crate::protocol::reason::Reason;

use super::api::Local;
use super::headers;

/// The page loads and calls nothing but this server, and nobody may put it into a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Files of the page: name, media type, content.
const ASSETS: [(&str, &str, &str); 2] = [
    (
        "page.js",
        "text/javascript; charset=utf-8",
        include_str!("docs/page.js"),
    ),
    (
        "page.css",
        "text/css; charset=utf-8",
        include_str!("docs/page.css"),
    ),
];

/// A plane's document, for the version that this server advertises.
#[utoipa::path(tag = "discovery", operation_id = "getDocument",
    params(("document" = String, Path, description = "A plane's name and a format.")),
    responses((status = 200, description = "The document."), (status = 404, description = "There is no such document.")))]
#[get("/openapi/{document}")]
pub async fn get_document(api: Data<Local>, name: Path<String>) -> HttpResponse {
    let documents = match api.documents.all(&api.advertised) {
        Ok(documents) => documents,
        Err(error) => {
            tracing::error!(error, "a document cannot be written");
            return HttpResponse::InternalServerError().json(json!({
                "reason": Reason::ServerError,
                "message": "The server failed; its log has the cause under this request's id.",
            }));
        }
    };
    let (plane, format) = name.rsplit_once('.').unwrap_or((&name, ""));
    let written = documents.iter().find(|one| one.name == plane);
    match (written, format) {
        (Some(written), "json") => file("application/json", written.json.clone()),
        (Some(written), "yaml") => file("application/yaml", written.yaml.clone()),
        _ => missing("There is no such document."),
    }
}

/// A page to browse the documents and to try requests.
#[utoipa::path(tag = "discovery", operation_id = "getDocumentationPage",
    responses((status = 200, description = "The page.", body = String, content_type = "text/html")))]
#[get("/docs")]
pub async fn page() -> HttpResponse {
    file("text/html; charset=utf-8", include_str!("docs/page.html"))
}

/// A file of the page.
#[utoipa::path(tag = "discovery", operation_id = "getDocumentationAsset",
    params(("asset" = String, Path, description = "Its name.")),
    responses((status = 200, description = "The file."), (status = 404, description = "There is no such file.")))]
#[get("/docs/{asset}")]
pub async fn asset(name: Path<String>) -> HttpResponse {
    match ASSETS.iter().find(|(asset, _, _)| *asset == *name) {
        Some((_, media, content)) => file(media, *content),
        None => missing("There is no such file."),
    }
}

fn missing(sentence: &str) -> HttpResponse {
    HttpResponse::build(StatusCode::NOT_FOUND)
        .insert_header((headers::CONTROL_PLANE.clone(), CONTROL_PLANE_VERSION))
        .json(json!({"reason": Reason::NotFound, "message": sentence}))
}

fn file(media: &str, content: impl Into<String>) -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, media))
        .insert_header((headers::CONTROL_PLANE.clone(), CONTROL_PLANE_VERSION))
        .insert_header((CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((REFERRER_POLICY, "no-referrer"))
        // Another version of the server has other files under these names.
        .insert_header((CACHE_CONTROL, "no-cache"))
        .body(content.into())
}
