//! The native worker plane, below `/api/worker`.

mod activity_tasks;
mod answer;
mod asks;
mod call;
mod cancellations;
mod commands;
mod leases;
mod page_tokens;
mod polls;
mod registrations;
mod sessions;
mod sticky;
mod streams;
mod tasks;
mod unbuilt;
mod workers;
mod workflow_tasks;

use actix_web::http::StatusCode;
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, web};
use utoipa_actix_web::scope;

use crate::protocol::reason::Reason;

use super::api::Local;
pub use cancellations::request_object as cancellation_request;
pub use commands::{CommandRequest, read as read_commands};
pub use page_tokens::{position, read_position};
pub use sessions::snapshot as session_snapshot;

use answer::{Failure, Native};
use call::{AnyRole, preamble};

/// The path of this plane.
pub const PREFIX: &str = "/api/worker";

/// The routes of this plane.
pub fn routes() -> scope::Scope<
    impl actix_web::dev::ServiceFactory<
        actix_web::dev::ServiceRequest,
        Config = (),
        Response = actix_web::dev::ServiceResponse,
        Error = actix_web::Error,
        InitError = (),
    >,
> {
    // Routes are tried in this order, so the busy ones come first.
    scope::scope(PREFIX)
        .service(workflow_tasks::poll_workflow_task)
        .service(activity_tasks::poll_activity_task)
        .service(workflow_tasks::complete_workflow_task)
        .service(activity_tasks::complete_activity_task)
        .service(activity_tasks::heartbeat_activity_task)
        .service(workflow_tasks::heartbeat_workflow_task)
        .service(workers::heartbeat_worker)
        .service(workers::register_worker)
        .service(registrations::deregister_worker)
        .service(registrations::deregister_registration)
        .service(sessions::create_worker_session)
        .service(sessions::heartbeat_worker_session)
        .service(sessions::close_worker_session)
        .service(workflow_tasks::get_workflow_task_history_page)
        .service(workflow_tasks::fail_workflow_task)
        .service(asks::poll_query_task)
        .service(asks::complete_query_task)
        .service(asks::fail_query_task)
        .service(asks::get_query_task_status)
        .service(asks::poll_update_validation_task)
        .service(asks::approve_update_validation_task)
        .service(asks::reject_update_validation_task)
        .service(cancellations::deliver_cancellation)
        .service(cancellations::get_activity_attempt_status)
        .service(cancellations::acknowledge_activity_cancellation)
        .service(activity_tasks::fail_activity_task)
        .map(|scope| scope.default_service(web::to(no_such_route)))
}

/// A path or method that is not served: the checks of every request, then 404 or 405.
async fn no_such_route(request: HttpRequest, api: Data<Local>, mut payload: Payload) -> Native {
    let refused = async {
        call::read(&api, &request, &mut payload).await?;
        let (_, version, _) = preamble(&api, &request, <AnyRole as call::Allowed>::ROLES).await?;
        let methods = api.routes.methods(request.path());
        Err::<std::convert::Infallible, Failure>(if methods.is_empty() {
            unbuilt::refusal(&request, &version).unwrap_or_else(|| {
                Failure::new(
                    StatusCode::NOT_FOUND,
                    Reason::NotFound,
                    "There is no such route.",
                )
            })
        } else {
            Failure::new(
                StatusCode::METHOD_NOT_ALLOWED,
                Reason::MethodNotAllowed,
                format!("This path takes {}.", methods.join(", ")),
            )
            .allow(&methods)
        })
    };
    Native(match refused.await {
        Err(failure) => Err(failure),
        Ok(never) => match never {},
    })
}
