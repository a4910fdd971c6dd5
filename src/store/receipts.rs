//! Callers' command keys: what a key stood for when it was first used.

use super::pool::PgPool;
use sqlx::FromRow;

use super::{run_id, unsigned};
use crate::domain::ids::{Namespace, RunId, WorkflowId};
use crate::domain::run::Digest;

/// What a key stood for.
#[derive(Clone, Debug)]
pub struct RequestReceipt {
    /// The run that took the command.
    pub run: RunId,
    /// Number of the command there.
    pub command: u64,
    /// Name of the signal or update.
    pub name: String,
    /// Digest of name and arguments.
    pub digest: Digest,
    /// The run that the caller named; empty when it named the workflow.
    pub run_target: String,
    /// Id of what the command made, for an update.
    pub made_id: Option<String>,
}

#[derive(FromRow)]
struct Row {
    run_id: String,
    command_no: i64,
    name: String,
    digest: i64,
    run_target: String,
    made_id: Option<String>,
}

/// What this key of this workflow stood for, if it has been used.
///
/// # Errors
/// The database cannot be reached.
pub async fn find(
    pool: &PgPool,
    namespace: &Namespace,
    workflow_id: &WorkflowId,
    kind: &str,
    request_id: &str,
) -> sqlx::Result<Option<RequestReceipt>> {
    let row: Option<Row> = sqlx::query_as(
        "select run_id, command_no, name, digest, run_target, made_id from request_receipts
         where namespace = $1 and workflow_id = $2 and kind = $3 and request_id = $4",
    )
    .bind(namespace.as_str())
    .bind(workflow_id.as_str())
    .bind(kind)
    .bind(request_id)
    .fetch_optional(pool)
    .await?;
    row.map(|row| {
        Ok(RequestReceipt {
            run: run_id(&row.run_id)?,
            command: unsigned(row.command_no),
            name: row.name,
            digest: Digest(row.digest.cast_unsigned()),
            run_target: row.run_target,
            made_id: row.made_id,
        })
    })
    .transpose()
}
