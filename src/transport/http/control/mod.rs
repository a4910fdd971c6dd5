//! The control plane, below `/api`: start and watch workflows, look at workers and queues.

mod answer;
mod call;
mod cancellations;
mod canonical;
mod commands;
mod describe;
mod fleet;
mod history;
mod inputs;
mod operation;
mod queries;
mod rollouts;
mod sessions;
mod start;
mod streams;
mod task_queues;

use actix_web::http::StatusCode;
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, web};
use utoipa_actix_web::scope;

use crate::protocol::reason::Reason;

use super::api::Local;
use super::{docs, info};
use answer::{Answer, Control};
use call::{Allowed, OperatorOrAdmin, preamble};

/// The path of this plane.
pub const PREFIX: &str = "/api";

/// The routes of this plane. The worker plane is a scope of its own and must be registered first.
pub fn routes() -> scope::Scope<
    impl actix_web::dev::ServiceFactory<
        actix_web::dev::ServiceRequest,
        Config = (),
        Response = actix_web::dev::ServiceResponse,
        Error = actix_web::Error,
        InitError = (),
    >,
> {
    // Routes are tried in this order, so the busy one comes first.
    scope::scope(PREFIX)
        .service(start::start_workflow)
        .service(info::health)
        .service(info::ready)
        .service(info::cluster_info)
        .service(docs::get_document)
        .service(describe::list_workflows)
        .service(history::get_workflow_history)
        .service(history::export_workflow_history)
        .service(inputs::signal_workflow)
        .service(inputs::signal_workflow_run)
        .service(inputs::update_workflow)
        .service(inputs::update_workflow_run)
        .service(streams::append_message)
        .service(streams::list_message_streams)
        .service(streams::describe_message_stream)
        .service(queries::query_workflow)
        .service(queries::query_workflow_run)
        .service(cancellations::request_workflow_cancellation)
        .service(cancellations::request_workflow_run_cancellation)
        .service(commands::cancel_workflow)
        .service(commands::cancel_workflow_run)
        .service(commands::terminate_workflow)
        .service(commands::terminate_workflow_run)
        .service(commands::repair_workflow)
        .service(commands::archive_workflow)
        .service(commands::archive_workflow_run)
        .service(describe::list_workflow_runs)
        .service(describe::describe_workflow_run)
        .service(describe::describe_workflow)
        .service(fleet::list_workers)
        .service(fleet::describe_worker)
        .service(fleet::delete_worker)
        .service(sessions::list_worker_sessions)
        .service(sessions::get_worker_session)
        .service(task_queues::list_task_queues)
        .service(rollouts::list_build_ids)
        .service(rollouts::drain_build_id)
        .service(rollouts::resume_build_id)
        .service(rollouts::promote_build_id)
        .service(task_queues::describe_priority_fairness)
        .service(task_queues::describe_task_queue)
        .service(rollouts::list_deployments)
        .service(rollouts::promote_deployment)
        .service(rollouts::drain_deployment)
        .service(rollouts::resume_deployment)
        .service(rollouts::rollback_deployment)
        .service(rollouts::describe_deployment)
        .map(|scope| scope.default_service(web::to(no_such_route)))
}

/// A path or method that is not served: the checks of every request, then 404 or 405.
async fn no_such_route(request: HttpRequest, api: Data<Local>, mut payload: Payload) -> Control {
    let methods = api.routes.methods(request.path());
    if !methods.is_empty() && is_open(request.path()) {
        return Control(Err(method_not_allowed(&methods)));
    }
    let refused = async {
        call::read(&api, &request, &mut payload).await?;
        preamble(&api, &request, OperatorOrAdmin::ROLES).await?;
        Ok::<Answer, Answer>(if methods.is_empty() {
            Answer::refuse(
                StatusCode::NOT_FOUND,
                Reason::NotFound,
                "There is no such route.",
            )
        } else {
            method_not_allowed(&methods)
        })
    };
    Control(refused.await)
}

/// A path whose requests need not name the version of this plane; so neither need wrong ones.
fn is_open(path: &str) -> bool {
    ["/api/health", "/api/ready", "/api/cluster/info"].contains(&path)
        || path.starts_with("/api/openapi/")
}

fn method_not_allowed(methods: &[&str]) -> Answer {
    Answer::refuse(
        StatusCode::METHOD_NOT_ALLOWED,
        Reason::MethodNotAllowed,
        format!("This path takes {}.", methods.join(", ")),
    )
    .allow(methods)
}

/// A request beside all planes: the wrong method for what is there, or nothing.
pub async fn beside(request: HttpRequest, api: Data<Local>) -> Control {
    let methods = api.routes.methods(request.path());
    Control(Err(if methods.is_empty() {
        Answer::refuse(
            StatusCode::NOT_FOUND,
            Reason::NotFound,
            "There is no such route.",
        )
    } else {
        method_not_allowed(&methods)
    }))
}
