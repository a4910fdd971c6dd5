//! Worker sessions, as operators see them (worker plane, section 9.4).

use actix_web::get;
use actix_web::http::StatusCode;
use actix_web::web::Path;
use serde_json::{Value, json};

use crate::protocol::reason::Reason;

use super::super::native::session_snapshot;
use super::answer::{Answer, Control};
use super::call::{Call, Nothing, OperatorOrAdmin};

/// Lists sessions, with their counts by status.
#[utoipa::path(tag = "workers", operation_id = "listWorkerSessions",
    responses((status = 200, description = "The sessions.")))]
#[get("/worker-sessions")]
pub async fn list_worker_sessions(call: Box<Call<OperatorOrAdmin, Nothing>>) -> Control {
    Control(list(call).await)
}

async fn list(call: Box<Call<OperatorOrAdmin, Nothing>>) -> Result<Answer, Answer> {
    let sessions = call.api.engine.sessions(&call.namespace).await?;
    let count = |status: &str| {
        sessions
            .iter()
            .filter(|view| view.session.status.as_str() == status)
            .count()
    };
    let shown: Vec<Value> = sessions.iter().map(session_snapshot).collect();
    Ok(Answer::ok(json!({
        "namespace": call.namespace.as_str(),
        "metrics": {
            "total": sessions.len(),
            "active": count("active"),
            "closed": count("closed"),
            "expired": count("expired"),
            "failed": count("failed"),
            "orphaned": count("orphaned"),
        },
        "sessions": shown,
    })))
}

/// Describes a session.
#[utoipa::path(tag = "workers", operation_id = "getWorkerSession",
    params(("sessionId" = String, Path, description = "The session.")),
    responses((status = 200, description = "The session."), (status = 404, description = "There is no such session.")))]
#[get("/worker-sessions/{sessionId}")]
pub async fn get_worker_session(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    session: Path<String>,
) -> Control {
    Control(describe(call, &session).await)
}

async fn describe(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    session: &str,
) -> Result<Answer, Answer> {
    let found = call.api.engine.session(&call.namespace, session).await?;
    let view = found.ok_or_else(|| {
        Answer::refuse(
            StatusCode::NOT_FOUND,
            Reason::SessionNotFound,
            "There is no such session.",
        )
        .with("session_id", session)
    })?;
    Ok(Answer::ok(json!({
        "namespace": call.namespace.as_str(),
        "session": session_snapshot(&view),
    })))
}
