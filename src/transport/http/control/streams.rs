//! Message streams: appending a message, and how a stream stands.

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::web::Path;
use actix_web::{get, post};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::domain::ids::WorkflowId;
use crate::domain::run::{CommandKind, MessageRequest, Stream};
use crate::engine::MessageError;
use crate::protocol::feature::Feature;
use crate::protocol::reason::Reason;

use super::super::body;
use super::super::problems::Problems;
use super::answer::{Answer, Control};
use super::call::{Call, Nothing, OperatorOrAdmin};
use super::commands::{check_request_id, refusal, target};
use super::start::input;

/// Longest name of a stream.
const MAX_STREAM: usize = 128;
/// Longest name of a message.
const MAX_MESSAGE_ID: usize = 191;

/// A message.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageBody {
    /// The caller's name for the message; sent again it has no further effect.
    message_id: Option<String>,
    /// Its content: a plain list, or an envelope.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
    /// The caller's key, for its own records.
    request_id: Option<String>,
}

/// Appends a message to a stream of a workflow.
#[utoipa::path(tag = "message-streams", operation_id = "appendMessage", request_body = MessageBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("streamName" = String, Path, description = "The stream.")),
    responses((status = 202, description = "Taken."), (status = 200, description = "It had been taken before."),
        (status = 404, description = "There is no such workflow."), (status = 409, description = "The run is closed, the name stands for another content, a limit is reached, or streams are not offered."),
        (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/message-streams/{streamName}/messages")]
pub async fn append_message(
    call: Box<Call<OperatorOrAdmin, MessageBody>>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, stream) = path.into_inner();
    Control(append(call, workflow_id, stream).await)
}

fn is_name(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
}

async fn append(
    call: Box<Call<OperatorOrAdmin, MessageBody>>,
    workflow_id: String,
    stream: String,
) -> Result<Answer, Answer> {
    let mut problems = Problems::default();
    let allowed =
        |max| format!("must have 1 to {max} characters of A-Z, a-z, 0-9, '.', '_', ':' and '-'");
    if !is_name(&stream, MAX_STREAM) {
        problems.add("stream_name", allowed(MAX_STREAM));
    }
    let message_id = call.body.message_id.clone().unwrap_or_default();
    if !is_name(&message_id, MAX_MESSAGE_ID) {
        problems.add("message_id", allowed(MAX_MESSAGE_ID));
    }
    check_request_id(&mut problems, call.body.request_id.as_deref());
    let limit = call.api.engine.settings().run.limits.payload_bytes;
    let payload = input(&mut problems, "input", call.body.input.as_deref(), limit);
    problems.into_result()?;
    let supported = &call.api.supported;
    if !supported.offers(&call.api.advertised, Feature::MessageStreams) {
        return Err(Answer::refuse(
            StatusCode::CONFLICT,
            Reason::MessageStreamNotSupported,
            "This server does not offer message streams.",
        )
        .with(
            "detail",
            "The advertised worker protocol is older than 1.15.",
        )
        .with(
            "remediation",
            "Set DW_WORKER_PROTOCOL_VERSION to 1.15 or newer.",
        ));
    }
    let target = target(&call, workflow_id, None);
    let request = MessageRequest {
        stream: stream.as_str().into(),
        id: message_id.as_str().into(),
        digest: body::digest(payload.blob().as_bytes()),
        payload,
    };
    let taken = call.api.engine.append_message(&target, &request).await;
    let taken = taken.map_err(|error| match error {
        MessageError::IdentityConflict { position } => Answer::refuse(
            StatusCode::CONFLICT,
            Reason::MessageIdentityConflict,
            "The message id stands for another content.",
        )
        .with("position", position)
        .with("stream_name", stream.as_str())
        .with("message_id", message_id.as_str()),
        MessageError::Command(error) => {
            let request_id = call.body.request_id.as_deref();
            refusal(error, &target, CommandKind::Message, request_id)
        }
    })?;
    let cursor = taken
        .state
        .streams
        .get(&request.stream)
        .map_or(0, |stream| stream.cursor);
    let status = if taken.duplicate {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    Ok(Answer::new(
        status,
        json!({
            "accepted": true,
            "duplicate": taken.duplicate,
            "workflow_id": target.workflow_id.as_str(),
            "run_id": taken.run,
            "stream_name": stream,
            "message_id": message_id,
            "position": taken.position,
            "cursor_position": cursor,
            "outcome": if taken.duplicate { "duplicate" } else { "accepted" },
            "reason": null,
        }),
    ))
}

/// The streams of a workflow.
#[utoipa::path(tag = "message-streams", operation_id = "listMessageStreams",
    params(("workflowId" = String, Path, description = "The workflow.")),
    responses((status = 200, description = "The streams."), (status = 404, description = "There is no such workflow.")))]
#[get("/workflows/{workflowId}/message-streams")]
pub async fn list_message_streams(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    let workflow_id = WorkflowId::from(path.into_inner());
    let view = call
        .api
        .engine
        .describe(&call.namespace, &workflow_id, None)
        .await;
    Control(view.map_err(Answer::from).map(|view| {
        let streams: Vec<Value> = view
            .state
            .streams
            .iter()
            .map(|(name, stream)| Value::Object(shown(name, stream, &view.state.id.to_string())))
            .collect();
        Answer::ok(json!({
            "workflow_id": workflow_id.as_str(),
            "run_id": view.state.id,
            "streams": streams,
        }))
    }))
}

/// One stream of a workflow.
#[utoipa::path(tag = "message-streams", operation_id = "describeMessageStream",
    params(("workflowId" = String, Path, description = "The workflow."), ("streamName" = String, Path, description = "The stream.")),
    responses((status = 200, description = "The stream."), (status = 404, description = "There is no such workflow or stream.")))]
#[get("/workflows/{workflowId}/message-streams/{streamName}")]
pub async fn describe_message_stream(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, name) = path.into_inner();
    let workflow_id = WorkflowId::from(workflow_id);
    let view = call
        .api
        .engine
        .describe(&call.namespace, &workflow_id, None)
        .await;
    Control(view.map_err(Answer::from).and_then(|view| {
        let stream = view.state.streams.get(&*name).ok_or_else(|| {
            Answer::refuse(
                StatusCode::NOT_FOUND,
                Reason::StreamNotFound,
                "The workflow has no such stream.",
            )
            .with("stream_name", name.as_str())
        })?;
        let mut fields = shown(
            &Arc::from(name.as_str()),
            stream,
            &view.state.id.to_string(),
        );
        fields.insert("workflow_id".to_owned(), workflow_id.as_str().into());
        fields.insert("run_id".to_owned(), view.state.id.to_string().into());
        Ok(Answer::ok(Value::Object(fields)))
    }))
}

/// A stream as it is shown; contents never are.
fn shown(name: &Arc<str>, stream: &Stream, run: &str) -> Map<String, Value> {
    let outcome = stream.last_id.as_ref().map(|_| {
        if stream.last_was_duplicate {
            "duplicate"
        } else {
            "accepted"
        }
    });
    let fields = json!({
        "stream_name": name,
        "last_position": stream.last,
        "cursor_position": stream.cursor,
        "pending_count": stream.pending.len(),
        "pending_wait": stream.wait.as_ref().map(|wait| json!({
            "run_id": run,
            "after_position": wait.after,
            "since": wait.since,
        })),
        "duplicate_count": stream.duplicates,
        "malformed_count": 0,
        "last_input_outcome": outcome,
        "last_input_message_id": stream.last_id,
        "last_input_at": stream.last_at,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
