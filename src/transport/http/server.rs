//! The listener: assembled from the planes, observed, and stopped in order.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::body::MessageBody;
use actix_web::dev::{Server, ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::{Next, from_fn};
use actix_web::web::{self, Data};
use actix_web::{App, HttpServer};
use tracing::Instrument;
use utoipa_actix_web::AppExt;

use super::api::Api;
use super::{control, docs, info, native};

/// Header with the id of a request, taken over from the caller or made here.
pub const REQUEST_ID: &str = "X-Request-Id";
/// Longest id that is taken over.
const MAX_REQUEST_ID: usize = 128;
/// Time that a client has to send its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that one thread holds.
const MAX_CONNECTIONS_PER_THREAD: usize = 25_000;

/// Starts serving on a listener. The future resolves when the server has stopped.
///
/// # Errors
/// The listener cannot be used.
pub fn serve(listener: TcpListener, api: Arc<Api>, threads: usize) -> std::io::Result<Server> {
    // The node keeps the time that requests are given; this one only has to be longer.
    let patience = api.settings.shutdown.grace_seconds + 1;
    let data = Data::from(api);
    let mut server = HttpServer::new(move || {
        let (app, _) = App::new()
            .into_utoipa_app()
            .app_data(data.clone())
            .service(native::routes())
            .service(control::routes())
            .service(info::metrics)
            .service(docs::page)
            .service(docs::asset)
            .split_for_parts();
        app.default_service(web::to(control::beside))
            .wrap(from_fn(observe))
    })
    // A client that has gone must not be given a task: its handler is dropped at once.
    .h1_allow_half_closed(false)
    .client_request_timeout(HEADER_TIMEOUT)
    .max_connections(MAX_CONNECTIONS_PER_THREAD)
    .backlog(4_096)
    .disable_signals()
    .shutdown_timeout(patience);
    if threads > 0 {
        server = server.workers(threads);
    }
    Ok(server.listen(listener)?.run())
}

/// Gives each request an id, a span and its metrics.
async fn observe<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, actix_web::Error> {
    let began = Instant::now();
    let id = request_id(&request);
    let method = request.method().clone();
    let span = tracing::info_span!("request", id = %id, method = %method);
    let mut response = next.call(request).instrument(span.clone()).await?;
    let route = response
        .request()
        .match_pattern()
        .unwrap_or_else(|| "unknown".to_owned());
    let status = response.status();
    let seconds = began.elapsed().as_secs_f64();
    let polled = route.ends_with("/poll");
    metrics::counter!("dw_requests_total", "method" => method.to_string(), "route" => route.clone(), "status" => status.as_u16().to_string())
        .increment(1);
    if !polled {
        metrics::histogram!("dw_request_seconds", "route" => route.clone()).record(seconds);
    }
    span.in_scope(|| {
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(route, status = status.as_u16(), seconds, "request failed");
        } else if status.is_server_error() {
            // Nobody answered in time, or the database is away: said to the caller, and no defect.
            tracing::warn!(
                route,
                status = status.as_u16(),
                seconds,
                "request not served"
            );
        } else {
            tracing::debug!(route, status = status.as_u16(), seconds, "request");
        }
    });
    if let Ok(value) = HeaderValue::from_str(&id) {
        response
            .headers_mut()
            .insert(HeaderName::from_static("x-request-id"), value);
    }
    Ok(response)
}

fn request_id(request: &ServiceRequest) -> String {
    request
        .headers()
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|id| {
            (1..=MAX_REQUEST_ID).contains(&id.len())
                && id
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
        })
        .map_or_else(|| uuid::Uuid::now_v7().to_string(), str::to_owned)
}
