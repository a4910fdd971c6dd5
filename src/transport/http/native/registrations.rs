//! The end of a registration: plain, or fenced by the token of the registration.

use actix_web::http::StatusCode;
use actix_web::web::Path;
use actix_web::{delete, post};
use serde::Deserialize;
use serde_json::json;

use crate::domain::ids::WorkerId;
use crate::engine::DeregisterError;
use crate::protocol::reason::Reason;

use super::super::problems::Problems;
use super::answer::{Answer, Failure, Native};
use super::call::{Call, WorkerOnly};
use super::workers::lifecycle_fault;

/// Characters of a registration's token: lower-case hexadecimal.
const TOKEN_LENGTH: usize = 32;

/// No fields are read.
#[derive(Debug, Deserialize)]
pub struct Nothing {}

/// Removes a worker and gives back what it holds.
#[utoipa::path(tag = "worker-lifecycle", operation_id = "deregisterWorker",
    params(("workerId" = String, Path, description = "The worker.")),
    responses((status = 200, description = "It is gone."), (status = 404, description = "It was not registered."),
        (status = 409, description = "It may not be removed now; part of the contract, never answered by this server.")))]
#[delete("/registrations/{workerId}")]
pub async fn deregister_worker(
    call: Box<Call<WorkerOnly, Nothing>>,
    worker: Path<String>,
) -> Native {
    Native(deregister(call, worker.into_inner()).await)
}

async fn deregister(
    call: Box<Call<WorkerOnly, Nothing>>,
    worker_id: String,
) -> Result<Answer, Failure> {
    let recovered = call
        .api
        .engine
        .deregister_worker(call.namespace.clone(), WorkerId::from(worker_id.as_str()))
        .await
        .map_err(|fault| lifecycle_fault(fault, "deregister_worker", &worker_id, None))?;
    let Some(recovered) = recovered else {
        return Err(Failure::new(
            StatusCode::NOT_FOUND,
            Reason::WorkerNotFound,
            "There is no such worker.",
        )
        .with("worker_id", worker_id));
    };
    Answer::of(&json!({
        "worker_id": worker_id,
        "outcome": "deregistered",
        "recovered_workflow_task_count": recovered,
    }))
}

/// `WorkerDeregistrationRequest`
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerDeregistrationRequest {
    /// The token that the registration was answered with.
    registration_token: Option<String>,
}

/// Removes a worker unless it has registered anew since, and gives back what it holds. Repeated with
/// the same token, it gets the first answer.
#[utoipa::path(tag = "worker-lifecycle", operation_id = "deregisterWorkerRegistration",
    request_body = WorkerDeregistrationRequest,
    params(("workerId" = String, Path, description = "The worker.")),
    responses((status = 200, description = "It is gone."), (status = 404, description = "No registration has this token."),
        (status = 409, description = "The worker has registered anew."), (status = 410, description = "It was done long ago."),
        (status = 422, description = "Fields.")))]
#[post("/registrations/{workerId}/deregister")]
pub async fn deregister_registration(
    call: Box<Call<WorkerOnly, WorkerDeregistrationRequest>>,
    worker: Path<String>,
) -> Native {
    Native(fenced(call, worker.into_inner()).await)
}

async fn fenced(
    call: Box<Call<WorkerOnly, WorkerDeregistrationRequest>>,
    worker_id: String,
) -> Result<Answer, Failure> {
    let token = call.body.registration_token.clone().unwrap_or_default();
    let is_token = token.len() == TOKEN_LENGTH
        && token
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if !is_token {
        return Err(Problems::of(
            "registration_token",
            "must be the token that the registration was answered with",
        )
        .into());
    }
    let done = call
        .api
        .engine
        .deregister_by_token(
            call.namespace.clone(),
            WorkerId::from(worker_id.as_str()),
            token.as_str().into(),
        )
        .await;
    let refused = match done {
        Ok(recovered) => {
            return Answer::of(&json!({
                "worker_id": worker_id,
                "registration_token": token,
                "outcome": "deregistered",
                "recovered_workflow_task_count": recovered,
            }));
        }
        Err(DeregisterError::LostAuthority) => Failure::new(
            StatusCode::CONFLICT,
            Reason::WorkerRegistrationLostAuthority,
            "The worker has registered anew; this token is of an older registration.",
        ),
        Err(DeregisterError::UnknownToken) => Failure::new(
            StatusCode::NOT_FOUND,
            Reason::WorkerRegistrationTokenNotFound,
            "No registration has this token.",
        ),
        Err(DeregisterError::ReceiptExpired) => Failure::new(
            StatusCode::GONE,
            Reason::WorkerRegistrationReceiptExpired,
            "The deregistration was too long ago to repeat its answer.",
        ),
        Err(DeregisterError::Fault(fault)) => {
            lifecycle_fault(fault, "deregister_worker", &worker_id, None).with("outcome", "unknown")
        }
    };
    Err(refused
        .with("worker_id", worker_id)
        .with("registration_token", token))
}
