//! The listener: assembled from the planes, observed, and stopped in order.

use std::cell::Cell;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use actix_web::body::MessageBody;
use actix_web::dev::{Server, ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::HeaderValue;
use actix_web::middleware::{Next, from_fn};
use actix_web::web::{self, Data};
use actix_web::{App, HttpServer};
use tracing::Instrument;
use utoipa_actix_web::AppExt;

use super::api::{Api, Local};
use super::{control, docs, headers, info, metrics, native};

/// Longest id that is taken over.
const MAX_REQUEST_ID: usize = 128;
/// Time that a client has to send its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an idle connection is kept: longer than clients keep theirs (90 seconds are usual), so that
/// it is the client who closes it, and no request is sent into a connection that is just being closed.
const IDLE_CONNECTION: Duration = Duration::from_secs(100);
/// Connections that one thread holds.
const MAX_CONNECTIONS_PER_THREAD: usize = 25_000;

/// Starts serving on a listener. The future resolves when the server has stopped.
///
/// # Errors
/// The listener cannot be used.
pub fn serve(listener: TcpListener, api: Arc<Api>, threads: usize) -> std::io::Result<Server> {
    // The node keeps the time that requests are given; this one only has to be longer.
    let patience = api.settings.shutdown.grace_seconds + 1;
    let mut server = HttpServer::new(move || {
        let (app, _) = App::new()
            .into_utoipa_app()
            .app_data(Data::new(Local::new(Arc::clone(&api))))
            .service(native::routes())
            .service(control::routes())
            .service(info::metrics)
            .service(docs::page)
            .service(docs::asset)
            .split_for_parts();
        app.default_service(web::to(control::beside))
            .wrap(from_fn(observe))
    })
    // An answer of several pieces must not wait for the client to acknowledge the first (RFC 9293, 3.7.4).
    .on_connect(|connection, _| {
        if let Some(stream) = connection.downcast_ref::<actix_web::rt::net::TcpStream>()
            && let Err(error) = stream.set_nodelay(true)
        {
            tracing::debug!(error = %error, "a connection keeps its delay");
        }
    })
    // A client that has gone must not be given a task: its handler is dropped at once. Reading bodies relies on it, too.
    .h1_allow_half_closed(false)
    .client_request_timeout(HEADER_TIMEOUT)
    .keep_alive(IDLE_CONNECTION)
    .max_connections(MAX_CONNECTIONS_PER_THREAD)
    .backlog(4_096)
    .disable_signals()
    .shutdown_timeout(patience);
    if threads > 0 {
        server = server.workers(threads);
    }
    Ok(server.listen(listener)?.run())
}

/// Gives each request an id and its metrics, and logs what went wrong.
async fn observe<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, actix_web::Error> {
    let began = Instant::now();
    let header = request_id(&request);
    let id = header.to_str().unwrap_or_default();
    let method = metrics::method(request.method());
    // Nobody looks at it on the default level, and then it costs nothing.
    let span = tracing::debug_span!("request", id = %id, method);
    let answered = next.call(request);
    let mut response = if span.is_disabled() {
        answered.await?
    } else {
        answered.instrument(span).await?
    };
    let status = response.status();
    let took = began.elapsed();
    let seconds = took.as_secs_f64();
    let done = response.request();
    let route = done
        .app_data::<Data<Local>>()
        .and_then(|api| api.routes.find(done.path()));
    metrics::answered(route, method, status, took);
    let route = route.map_or(metrics::UNKNOWN, |(_, pattern)| pattern);
    let status_code = status.as_u16();
    if status == StatusCode::INTERNAL_SERVER_ERROR {
        tracing::error!(
            id,
            method,
            route,
            status = status_code,
            seconds,
            "request failed"
        );
    } else if status.is_server_error() {
        // Nobody answered in time, or the database is away: said to the caller, and no defect.
        tracing::warn!(
            id,
            method,
            route,
            status = status_code,
            seconds,
            "request not served"
        );
    } else {
        tracing::debug!(id, route, status = status_code, seconds, "request");
    }
    response
        .headers_mut()
        .insert(headers::REQUEST_ID.clone(), header);
    Ok(response)
}

fn request_id(request: &ServiceRequest) -> HeaderValue {
    let given = request.headers().get(&headers::REQUEST_ID);
    let usable = |id: &&HeaderValue| {
        (1..=MAX_REQUEST_ID).contains(&id.len())
            && id
                .as_bytes()
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(byte))
    };
    given.filter(usable).cloned().unwrap_or_else(new_request_id)
}

/// An id that no other request has: a UUID of version 7 whose random bits come from one draw of the
/// thread and a counter, since asking the system for each costs more than the rest of the id.
fn new_request_id() -> HeaderValue {
    thread_local! {
        static DRAWN: Cell<u128> = Cell::new(uuid::Uuid::new_v4().as_u128());
    }
    let next = DRAWN.get().wrapping_add(1);
    DRAWN.set(next);
    let millis = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
    let mut random = [0; 10];
    random.copy_from_slice(&next.to_be_bytes()[6..]);
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
    let mut text = uuid::Uuid::encode_buffer();
    // Digits and hyphens are a value.
    HeaderValue::from_str(id.hyphenated().encode_lower(&mut text))
        .unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn requests_have_ids_of_their_own() {
        let ids: HashSet<HeaderValue> = (0..1_000).map(|_| new_request_id()).collect();
        assert_eq!(ids.len(), 1_000);
        for id in ids {
            let id = uuid::Uuid::parse_str(id.to_str().unwrap_or_default());
            assert_eq!(id.map(|id| id.get_version_num()), Ok(7));
        }
    }
}
