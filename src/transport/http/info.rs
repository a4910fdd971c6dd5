//! What the server says about itself: health, readiness, discovery, metrics.

use actix_web::http::StatusCode;
use actix_web::http::header::CONTENT_TYPE;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, get};
use serde_json::json;

use crate::auth::Role;
use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::worker::Registration;
use crate::protocol::manifests::{
    AnnouncedLimits, ClusterFacts, FLEET_ROWS, FleetWorker, HealthCheck, TaskRepair, WorkerFleet,
    cluster_info as discovery,
};
use crate::protocol::reason::Reason;
use crate::protocol::{CONTROL_PLANE_HEADER, CONTROL_PLANE_VERSION};

use super::api::{Api, Local};
use super::headers;
use super::identify::{self, NotAdmitted};

/// Roles that may look at the server.
const ANY: &[Role] = &[Role::Worker, Role::Operator, Role::Admin];

/// Whether the server works.
#[utoipa::path(tag = "discovery", operation_id = "getHealth",
    responses((status = 200, description = "It serves."), (status = 503, description = "It cannot reach its database.")))]
#[get("/health")]
pub async fn health(api: Data<Local>) -> HttpResponse {
    let database = api.engine.database_is_ready().await;
    let (status, word) = if database {
        (StatusCode::OK, "serving")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "degraded")
    };
    plain(status).json(json!({
        "status": word,
        "timestamp": api.engine.clock().now(),
        "checks": {"database": database},
        "topology": {"current_shape": "standalone_server"},
    }))
}

/// Whether the server wants requests.
#[utoipa::path(tag = "discovery", operation_id = "getReadiness",
    responses((status = 200, description = "It does."), (status = 503, description = "It does not, now.")))]
#[get("/ready")]
pub async fn ready(api: Data<Local>) -> HttpResponse {
    let database = api.engine.database_is_ready().await;
    let stopping = api.is_stopping();
    let default = Namespace::from(api.settings.default_namespace.as_str());
    let namespace = database && api.engine.namespace_exists(&default).await.unwrap_or(false);
    let ready = namespace && !stopping;
    let (status, word) = if ready {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not_ready")
    };
    plain(status).json(json!({
        "status": word,
        "timestamp": api.engine.clock().now(),
        "checks": {
            "database": database,
            "migrations": database,
            "default_namespace": namespace,
            "cache": true,
            "auth": true,
            "workflow_v2": !stopping,
        },
        "topology": {"current_shape": "standalone_server"},
    }))
}

/// Tells clients what the server speaks and can do.
#[utoipa::path(tag = "discovery", operation_id = "getClusterInfo",
    responses((status = 200, description = "Versions, capabilities, limits."), (status = 400, description = "The control-plane version is not served."),
        (status = 401, description = "No valid token."), (status = 403, description = "The role of the credential may not do this.")))]
#[get("/cluster/info")]
pub async fn cluster_info(request: HttpRequest, api: Data<Local>) -> HttpResponse {
    if let Err(refused) = identify::admit(&api, &request, ANY) {
        let (status, reason) = match refused {
            NotAdmitted::Unauthorized => (StatusCode::UNAUTHORIZED, Reason::Unauthorized),
            NotAdmitted::Forbidden { .. } => (StatusCode::FORBIDDEN, Reason::Forbidden),
        };
        return plain(status).json(json!({
            "reason": reason,
            "message": "A valid bearer token is needed.",
        }));
    }
    let header = request.headers().get(&headers::CONTROL_PLANE);
    let version = header.map(|value| value.to_str().unwrap_or("\u{fffd}").trim());
    if let Some(other) = version.filter(|version| *version != CONTROL_PLANE_VERSION) {
        return plain(StatusCode::BAD_REQUEST).json(json!({
            "reason": Reason::UnsupportedControlPlaneVersion,
            "message": "The control-plane version is not supported.",
            "supported_version": CONTROL_PLANE_VERSION,
            "requested_version": other,
            "remediation": format!("Send {CONTROL_PLANE_HEADER}: {CONTROL_PLANE_VERSION}, or leave it out."),
        }));
    }
    let namespace = identify::namespace(&api, &request)
        .unwrap_or_else(|| Namespace::from(api.settings.default_namespace.as_str()));
    let body = document(&api, &namespace).await.to_string();
    let mut response = plain(StatusCode::OK);
    response.insert_header((CONTENT_TYPE, "application/json"));
    api.finish(&request, response, body.into_bytes())
}

fn plain(status: StatusCode) -> actix_web::HttpResponseBuilder {
    let mut response = HttpResponse::build(status);
    response.insert_header((headers::CONTROL_PLANE.clone(), CONTROL_PLANE_VERSION));
    response
}

async fn document(api: &Api, namespace: &Namespace) -> serde_json::Value {
    let rows = i64::try_from(FLEET_ROWS).unwrap_or(100);
    // Discovery answers while the database is away: clients need it to know what to do.
    let workers = api.engine.list_workers(namespace, None, rows).await;
    let healthy = workers.is_ok();
    let fleet = fleet(api, namespace, &workers.unwrap_or_default());
    let limits = limits(api);
    let checks = [HealthCheck {
        name: "database",
        healthy,
    }];
    let facts = ClusterFacts {
        server_id: &api.server_id,
        version: env!("CARGO_PKG_VERSION"),
        default_namespace: &api.settings.default_namespace,
        advertised: &api.advertised,
        supported: &api.supported,
        timing: &api.timing,
        limits: &limits,
        worker_fleet: &fleet,
        task_repair: &TaskRepair::default(),
        checks: &checks,
    };
    discovery(&facts)
}

fn fleet(api: &Api, namespace: &Namespace, workers: &[Registration]) -> WorkerFleet {
    let live: Vec<&Registration> = workers
        .iter()
        .filter(|worker| !api.engine.is_stale(worker))
        .collect();
    let sorted = |mut names: Vec<String>| {
        names.sort_unstable();
        names.dedup();
        names
    };
    WorkerFleet {
        namespace: namespace.to_string(),
        active_workers: live.len() as u64,
        queues: sorted(
            live.iter()
                .flat_map(|worker| worker.description.queues.iter().map(TaskQueue::to_string))
                .collect(),
        ),
        build_ids: sorted(
            live.iter()
                .filter_map(|worker| worker.description.build_id.as_deref().map(str::to_owned))
                .collect(),
        ),
        workers: live
            .iter()
            .map(|worker| FleetWorker {
                worker_id: worker.worker_id.to_string(),
                task_queues: worker
                    .description
                    .queues
                    .iter()
                    .map(TaskQueue::to_string)
                    .collect(),
                build_id: worker.description.build_id.as_deref().map(str::to_owned),
                runtime: worker.description.runtime.clone(),
                status: worker.status.as_str().to_owned(),
                last_heartbeat_at: worker.last_heartbeat_at.to_string(),
            })
            .collect(),
        ..WorkerFleet::default()
    }
}

/// The limits that are announced are those that are enforced.
fn limits(api: &Api) -> AnnouncedLimits {
    let enforced = &api.engine.settings().run.limits;
    AnnouncedLimits {
        payload_bytes: enforced.payload_bytes,
        memo_bytes: enforced.memo_bytes,
        search_attribute_bytes: enforced.search_attribute_bytes,
        pending_activities: enforced.pending_activities,
        pending_children: enforced.pending_children,
        pending_timers: enforced.pending_timers,
        pending_signals: enforced.pending_signals,
        pending_updates: enforced.pending_updates,
        commands_per_completion: enforced.command_batch,
        events_per_commit: enforced.events_per_transaction,
        ..AnnouncedLimits::default()
    }
}

/// Metrics in the Prometheus text format.
#[utoipa::path(tag = "system", operation_id = "metrics", responses((status = 200, description = "Metrics.", content_type = "text/plain"),
    (status = 401, description = "There is no credential, or a wrong one.")))]
#[get("/metrics")]
pub async fn metrics(request: HttpRequest, api: Data<Local>) -> HttpResponse {
    if identify::admit(&api, &request, ANY).is_err() {
        return plain(StatusCode::UNAUTHORIZED).json(json!({
            "reason": Reason::Unauthorized,
            "message": "A valid bearer token is needed.",
        }));
    }
    ::metrics::gauge!("dw_parked_polls").set(api.engine.parked_polls() as f64);
    let mut response = HttpResponse::Ok();
    response.insert_header((CONTENT_TYPE, "text/plain; version=0.0.4"));
    api.finish(&request, response, api.metrics.render().into_bytes())
}
