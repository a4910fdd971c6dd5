//! The sticky cache of a completion: a worker says that it keeps the run in memory (worker plane 1.14
//! to 1.20, section 8.3).

use actix_web::http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::domain::run::Keep;
use crate::domain::worker::Registration;
use crate::engine::Holder;
use crate::protocol::feature::{Feature, Negotiated};
use crate::protocol::reason::Reason;

use super::super::problems::Problems;
use super::answer::Failure;
use super::leases::MAX_ID;

/// Longest time that a worker may say it keeps a run, in seconds.
const MAX_TTL_SECONDS: i64 = 3_600;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    worker_id: String,
    workflow_id: String,
    run_id: String,
    #[serde(default)]
    build_id: Option<String>,
    ttl_seconds: i64,
    #[serde(default)]
    metrics: Option<Metrics>,
}

/// What became of the worker's cache since its last word.
#[derive(Debug, Default, Deserialize)]
struct Metrics {
    #[serde(default)]
    hit: u64,
    #[serde(default)]
    miss: u64,
    #[serde(default)]
    eviction: u64,
    #[serde(default)]
    forced_cold_replay: u64,
}

/// Whether the worker keeps the run, after every check. `workflow_id` is the run's.
///
/// # Errors
/// Fields, the gates of version and capability, and claims that are about something else.
pub fn read(
    raw: &RawValue,
    version: &Negotiated,
    worker: Option<&Registration>,
    holder: &Holder,
    workflow_id: Option<&str>,
) -> Result<Keep, Failure> {
    let refuse = |reason: Reason, sentence: String| {
        Failure::new(StatusCode::CONFLICT, reason, sentence)
            .with("task_id", holder.task.to_string())
            .with("workflow_task_attempt", holder.attempt)
            .with("outcome", "rejected")
            .with("recorded", false)
    };
    let feature = Feature::StickyExecution;
    if !version.allows(feature) {
        return Err(refuse(
            Reason::PortableWorkerAffinityProtocolFloorUnavailable,
            format!("This needs worker protocol {} or newer.", feature.floor()),
        )
        .with("requested_version", version.requested().to_string())
        .with("minimum_protocol_version", feature.floor().to_string())
        .with("remediation", "Upgrade the worker's SDK."));
    }
    let registered = worker
        .zip(feature.worker_capability())
        .filter(|(worker, capability)| worker.has(capability));
    let Some((worker, _)) = registered else {
        return Err(refuse(
            Reason::WorkerCapabilityNotSupported,
            "The worker did not register the capability sticky_execution.".to_owned(),
        )
        .with("required_capability", feature.worker_capability())
        .with(
            "remediation",
            "Register the capability that the completion needs.",
        ));
    };
    let claim: Claim = serde_json::from_str(raw.get())
        .map_err(|error| Problems::of("sticky_cache", error.to_string()))?;
    let mut problems = Problems::default();
    problems.within(
        "sticky_cache.ttl_seconds",
        claim.ttl_seconds,
        1..=MAX_TTL_SECONDS,
    );
    if claim.worker_id.chars().count() > MAX_ID {
        problems.add(
            "sticky_cache.worker_id",
            format!("must have at most {MAX_ID} characters"),
        );
    }
    problems.into_result()?;
    let said = &worker.description;
    let code = said.build_id.as_deref().or(said.sdk_version.as_deref());
    let is_this = claim.worker_id == holder.owner.as_str()
        && claim.run_id == holder.task.run.to_string()
        && workflow_id.is_none_or(|workflow_id| workflow_id == claim.workflow_id)
        && claim.build_id.as_deref() == code;
    if !is_this {
        return Err(refuse(
            Reason::StickyCacheIdentityMismatch,
            "sticky_cache names another worker, run or build than the task's.".to_owned(),
        ));
    }
    count(claim.metrics.unwrap_or_default());
    Ok(Keep {
        epoch: worker.epoch,
        ttl_seconds: claim.ttl_seconds.unsigned_abs(),
    })
}

fn count(metrics: Metrics) {
    for (outcome, times) in [
        ("hit", metrics.hit),
        ("miss", metrics.miss),
        ("eviction", metrics.eviction),
        ("forced_cold_replay", metrics.forced_cold_replay),
    ] {
        if times > 0 {
            metrics::counter!("dw_sticky_cache_total", "outcome" => outcome).increment(times);
        }
    }
}
