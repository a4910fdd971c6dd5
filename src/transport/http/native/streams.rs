//! What a completion says about message streams: cursors and waits.

use std::collections::BTreeSet;
use std::sync::Arc;

use actix_web::http::StatusCode;
use serde_json::{Map, Value};

use crate::domain::run::StreamReport;
use crate::domain::worker::Registration;
use crate::engine::Holder;
use crate::protocol::feature::{Feature, Negotiated};
use crate::protocol::reason::Reason;

use super::super::problems::Problems;
use super::answer::Failure;

/// Streams that a completion may name in each list.
const MAX_STREAMS: usize = 100;

type Sent = Option<Vec<Value>>;

/// Whether a completion says anything about streams.
pub fn is_used(cursors: &Sent, waits: &Sent) -> bool {
    [cursors, waits]
        .iter()
        .any(|sent| sent.as_ref().is_some_and(|sent| !sent.is_empty()))
}

/// The gate of message streams.
///
/// # Errors
/// The refusal, when version or registration do not bring them along.
pub fn gate(
    offered: bool,
    version: &Negotiated,
    worker: Option<&Registration>,
    holder: &Holder,
) -> Result<(), Failure> {
    let feature = Feature::MessageStreams;
    let registered = worker
        .zip(feature.worker_capability())
        .is_some_and(|(worker, capability)| worker.has(capability));
    if offered && registered && version.allows(feature) {
        return Ok(());
    }
    Err(Failure::new(
        StatusCode::CONFLICT,
        Reason::MessageStreamsUnavailable,
        format!(
            "Message streams need worker protocol {} or newer, and a worker that registered them.",
            feature.floor()
        ),
    )
    .with("task_id", holder.task.to_string())
    .with("workflow_task_attempt", holder.attempt)
    .with("outcome", "rejected")
    .with("recorded", false)
    .with("requested_version", version.requested().to_string())
    .with("minimum_protocol_version", feature.floor().to_string())
    .with(
        "remediation",
        "Upgrade the worker's SDK, or register the capability message_streams.",
    ))
}

/// Reads both lists.
///
/// # Errors
/// What is wrong with them.
pub fn read(cursors: &Sent, waits: &Sent) -> Result<StreamReport, Problems> {
    let mut problems = Problems::default();
    let report = StreamReport {
        cursors: list(
            &mut problems,
            "message_stream_cursors",
            "through_position",
            cursors,
        ),
        waits: list(
            &mut problems,
            "message_stream_waits",
            "after_position",
            waits,
        ),
    };
    problems.into_result()?;
    Ok(report)
}

fn list(problems: &mut Problems, field: &str, number: &str, sent: &Sent) -> Vec<(Arc<str>, u64)> {
    let sent = sent.as_deref().unwrap_or_default();
    if sent.len() > MAX_STREAMS {
        problems.add(field, format!("must have at most {MAX_STREAMS} entries"));
        return Vec::new();
    }
    let mut named = BTreeSet::new();
    let mut read = Vec::new();
    for (place, entry) in sent.iter().enumerate() {
        let entry = entry.as_object().cloned().unwrap_or_default();
        let stream = name(problems, &format!("{field}.{place}"), &entry, number);
        let position = entry.get(number).and_then(Value::as_u64);
        if position.is_none() {
            problems.add(
                format!("{field}.{place}.{number}"),
                "must be a number from 0 on",
            );
        }
        if let (Some(stream), Some(position)) = (stream, position) {
            if !named.insert(stream.clone()) {
                problems.add(
                    format!("{field}.{place}.stream_name"),
                    "is named more than once",
                );
            }
            read.push((stream.into(), position));
        }
    }
    read
}

fn name(
    problems: &mut Problems,
    path: &str,
    entry: &Map<String, Value>,
    number: &str,
) -> Option<String> {
    for key in entry.keys() {
        if key != "stream_name" && key != number {
            problems.add(format!("{path}.{key}"), "is not known");
        }
    }
    let name = entry.get("stream_name").and_then(Value::as_str);
    let allowed = name.is_some_and(|name| {
        (1..=128).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
    });
    if !allowed {
        problems.add(
            format!("{path}.stream_name"),
            "must have 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', ':' and '-'",
        );
        return None;
    }
    name.map(str::to_owned)
}
