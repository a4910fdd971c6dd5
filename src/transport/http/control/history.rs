//! Histories: page by page, and whole as an export bundle.

use std::time::Duration;

use actix_web::get;
use actix_web::http::StatusCode;
use actix_web::web::Path;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::domain::ids::WorkflowId;
use crate::engine::{Export, Fault};
use crate::protocol::reason::Reason;

use super::super::fields;
use super::super::problems::Problems;
use super::answer::{Answer, Control};
use super::call::{Call, Nothing, OperatorOrAdmin};
use super::canonical;

/// Events of one page, and when a request names no size.
const PAGE: (i64, i64) = (1_000, 100);

/// Gives a page of a run's history.
#[utoipa::path(tag = "workflows", operation_id = "getWorkflowHistory",
    params(("workflowId" = String, Path, description = "The workflow."), ("runId" = String, Path, description = "The run."),
        ("page_size" = Option<u32>, Query, description = "1 to 1000; 100 when left out."),
        ("next_page_token" = Option<String>, Query, description = "Where the page begins."),
        ("wait_new_event" = Option<bool>, Query, description = "Hold the request until there is an event.")),
    responses((status = 200, description = "A page."), (status = 400, description = "The token is not one."),
        (status = 404, description = "There is no such workflow or run."), (status = 422, description = "A parameter is wrong.")))]
#[get("/workflows/{workflowId}/runs/{runId}/history")]
pub async fn get_workflow_history(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, run) = path.into_inner();
    Control(history(call, workflow_id.into(), &run).await)
}

async fn history(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    workflow_id: WorkflowId,
    run: &str,
) -> Result<Answer, Answer> {
    let mut problems = Problems::default();
    let size = match call
        .query
        .get("page_size")
        .map(|text| fields::query_int(text))
    {
        None => PAGE.1,
        Some(Ok(size)) => {
            problems.within("page_size", size, 1..=PAGE.0);
            size
        }
        Some(Err(problem)) => {
            problems.add("page_size", problem);
            PAGE.1
        }
    };
    let follow = match call
        .query
        .get("wait_new_event")
        .map(|text| fields::query_bool(text))
    {
        None => false,
        Some(Ok(follow)) => follow,
        Some(Err(problem)) => {
            problems.add("wait_new_event", problem);
            false
        }
    };
    problems.into_result()?;
    let token = call
        .query
        .get("next_page_token")
        .filter(|token| !token.is_empty());
    let after = match token {
        None => 0,
        Some(token) => super::super::native::read_position(token).ok_or_else(|| {
            Answer::refuse(
                StatusCode::BAD_REQUEST,
                Reason::InvalidPageToken,
                "The page token is not one of this server's.",
            )
        })?,
    };
    let wait = follow.then(|| Duration::from_secs(call.api.settings.long_poll.default_seconds));
    let size = u64::try_from(size).unwrap_or(1);
    let engine = &call.api.engine;
    let (page, state) = engine
        .history(&call.namespace, &workflow_id, run, after, size, wait)
        .await?;
    let last = page.next_after.or_else(|| {
        // A follower of an open run goes on from where it is.
        (follow && state.close.is_none()).then(|| after.saturating_add(page.count))
    });
    Ok(Answer::ok(json!({
        "workflow_id": workflow_id.as_str(),
        "run_id": state.id,
        "next_page_token": last.map(super::super::native::position),
    }))
    .with_raw("events", format!("[{}]", page.events)))
}

/// Exports a run as a replay bundle.
#[utoipa::path(tag = "workflows", operation_id = "exportWorkflowHistory",
    params(("workflowId" = String, Path, description = "The workflow."), ("runId" = String, Path, description = "The run.")),
    responses((status = 200, description = "The bundle."), (status = 404, description = "There is no such workflow or run.")))]
#[get("/workflows/{workflowId}/runs/{runId}/history/export")]
pub async fn export_workflow_history(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, run) = path.into_inner();
    let workflow_id = WorkflowId::from(workflow_id);
    let export = call
        .api
        .engine
        .export(&call.namespace, &workflow_id, Some(&run))
        .await;
    let exported_at = call.api.engine.clock().now().to_string();
    Control(match export {
        Ok(export) => bundle(&export, &exported_at),
        Err(error) => Err(error.into()),
    })
}

fn bundle(export: &Export, exported_at: &str) -> Result<Answer, Answer> {
    let view = &export.view;
    let state = &*view.state;
    let begun = &state.begun;
    let close = state.close.as_deref();
    let output = close.and_then(|close| close.output.as_ref());
    let mut events: Vec<Value> =
        serde_json::from_str(&format!("[{}]", export.page.events)).map_err(Fault::from)?;
    for event in &mut events {
        // A bundle calls it `type`, and readers refuse both names at once.
        if let Some(fields) = event.as_object_mut()
            && let Some(event_type) = fields.remove("event_type")
        {
            fields.insert("type".to_owned(), event_type);
        }
    }
    let mut bundle = json!({
        "schema": "durable-workflow.v2.history-export",
        "schema_version": 1,
        "exported_at": exported_at,
        "dedupe_key": format!("{}:{}", state.id, state.last_event()),
        "history_complete": close.is_some(),
        "workflow": {
            "instance_id": begun.workflow_id.as_str(),
            "run_id": state.id,
            "run_number": begun.run_number,
            "is_current_run": view.is_current,
            "current_run_id": view.current,
            "current_run_source": "workflow_instances",
            "workflow_type": begun.workflow_type,
            "workflow_class": begun.workflow_type,
            "business_key": begun.business_key,
            "visibility_labels": [],
            "memo": state.memo.shown,
            "search_attributes": state.attributes.shown,
            "status": state.status().as_str(),
            "status_bucket": state.status().bucket(),
            "closed_reason": close.map(|close| close.reason.as_str()),
            "last_history_sequence": state.last_event(),
        },
        "payloads": {
            "codec": "avro",
            "arguments": {"available": true, "data": begun.input},
            "output": {"available": output.is_some(), "data": output},
        },
        "summary": {"status": state.status().as_str(), "history_events": state.last_event()},
        "selected_run": {},
        "history_events": events,
        "waits": [],
        "timeline": [],
        "linked_intakes_scope": null,
        "linked_intakes": [],
        "commands": [],
        "signals": [],
        "updates": [],
        "tasks": [],
        "activities": [],
        "timers": [],
        "failures": [],
        "links": {"projection_source": null, "parents": [], "children": []},
        "codec_schemas": {},
        "payload_manifest": {"version": 1, "entries": []},
        "redaction": {"applied": false, "policy": null, "paths": []},
    });
    let checksum = Sha256::digest(canonical::text(&bundle));
    let checksum: String = checksum.iter().map(|byte| format!("{byte:02x}")).collect();
    bundle["integrity"] = json!({
        "canonicalization": "json-recursive-ksort-v1",
        "checksum_algorithm": "sha256",
        "checksum": checksum,
        "signature": null,
    });
    Ok(Answer::ok(bundle).bare())
}
