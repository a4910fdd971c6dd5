//! The changing parts of cluster info: limits, the worker fleet, repair work and health, as plain
//! data that the caller measured.

use serde::Serialize;
use serde_json::{Value, json};

/// Rows of each fleet list at most; the counts stay exact.
pub const FLEET_ROWS: usize = 100;

/// Every size and count limit that clients are told, each in one place only. The defaults are the
/// contract's. Zero switches a structural count off; sizes are at least 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedLimits {
    /// Bytes of one payload's blob.
    pub payload_bytes: u64,
    /// Bytes of an encoded memo.
    pub memo_bytes: u64,
    /// Search attributes of one run.
    pub search_attributes: u64,
    /// Characters of a search attribute's name.
    pub search_attribute_key_length: u64,
    /// Bytes of one search attribute's value.
    pub search_attribute_value_bytes: u64,
    /// Bytes of all search attributes of one run together.
    pub search_attribute_bytes: u64,
    /// Characters of a signal, query or update name.
    pub operation_name_length: u64,
    /// Open activities of one run.
    pub pending_activities: u64,
    /// Open children of one run.
    pub pending_children: u64,
    /// Open timers of one run.
    pub pending_timers: u64,
    /// Signals of one run that no workflow task has seen.
    pub pending_signals: u64,
    /// Open updates of one run.
    pub pending_updates: u64,
    /// Commands of one workflow task completion.
    pub commands_per_completion: u64,
    /// History events that one commit may append.
    pub events_per_commit: u64,
    /// Share of a limit, in percent, from which a warning is given.
    pub warning_percent: u64,
}

impl Default for AnnouncedLimits {
    fn default() -> Self {
        Self {
            payload_bytes: 2_097_152,
            memo_bytes: 262_144,
            search_attributes: 100,
            search_attribute_key_length: 128,
            search_attribute_value_bytes: 2_048,
            search_attribute_bytes: 40_960,
            operation_name_length: 256,
            pending_activities: 2_000,
            pending_children: 2_000,
            pending_timers: 2_000,
            pending_signals: 5_000,
            pending_updates: 500,
            commands_per_completion: 1_000,
            events_per_commit: 5_000,
            warning_percent: 80,
        }
    }
}

impl AnnouncedLimits {
    /// The `limits` object: what a single request may hold.
    pub(super) fn requests(&self) -> Value {
        json!({
            "max_payload_bytes": self.payload_bytes,
            "max_memo_bytes": self.memo_bytes,
            "max_search_attributes": self.search_attributes,
            "max_search_attribute_key_length": self.search_attribute_key_length,
            "max_search_attribute_value_bytes": self.search_attribute_value_bytes,
            "max_operation_name_length": self.operation_name_length,
            "max_pending_activities": self.pending_activities,
            "max_pending_children": self.pending_children,
        })
    }

    /// The `structural_limits` object, by the limit kinds that refusals name.
    pub(super) fn structural(&self) -> Value {
        json!({
            "payload_size": self.payload_bytes,
            "memo_size": self.memo_bytes,
            "search_attribute_size": self.search_attribute_bytes,
            "pending_activity_count": self.pending_activities,
            "pending_child_count": self.pending_children,
            "pending_timer_count": self.pending_timers,
            "pending_signal_count": self.pending_signals,
            "pending_update_count": self.pending_updates,
            "command_batch_size": self.commands_per_completion,
            "history_transaction_size": self.events_per_commit,
            "warning_threshold_percent": self.warning_percent,
        })
    }
}

/// The workers of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerFleet {
    /// The namespace.
    pub namespace: String,
    /// Workers that are neither stale nor deregistered.
    pub active_workers: u64,
    /// The same by queue and build.
    pub active_worker_scopes: Vec<FleetScope>,
    /// Queues that active workers serve.
    pub queues: Vec<String>,
    /// Builds that active workers announced.
    pub build_ids: Vec<String>,
    /// The workers themselves.
    pub workers: Vec<FleetWorker>,
}

/// Active workers of one queue and build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FleetScope {
    /// The queue.
    pub task_queue: String,
    /// The build; null for workers without one.
    pub build_id: Option<String>,
    /// How many there are.
    pub active_workers: u64,
}

/// One worker of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FleetWorker {
    /// Its id within the namespace.
    pub worker_id: String,
    /// The queues it registered for.
    pub task_queues: Vec<String>,
    /// Its build; null when it announced none.
    pub build_id: Option<String>,
    /// The SDK family it runs on.
    pub runtime: String,
    /// `active` or `draining`.
    pub status: String,
    /// Its last sign of life, UTC with microseconds.
    pub last_heartbeat_at: String,
}

impl WorkerFleet {
    /// The object with every list cut at [`FLEET_ROWS`], and whether that cut anything.
    pub(super) fn bounded(&self) -> Value {
        fn head<T>(rows: &[T]) -> &[T] {
            &rows[..rows.len().min(FLEET_ROWS)]
        }
        let longest = self
            .workers
            .len()
            .max(self.active_worker_scopes.len())
            .max(self.queues.len())
            .max(self.build_ids.len());
        json!({
            "namespace": self.namespace,
            "active_workers": self.active_workers,
            "active_worker_scopes": head(&self.active_worker_scopes),
            "queues": head(&self.queues),
            "build_ids": head(&self.build_ids),
            "workers": head(&self.workers),
            "truncated": longest > FLEET_ROWS,
        })
    }
}

/// What maintenance repairs, and by which rules (repair objects).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskRepair {
    /// The rules.
    pub policy: RepairPolicy,
    /// What the last pass found.
    pub candidates: RepairCandidates,
}

/// The rules of the repair pass. The defaults are the contract's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepairPolicy {
    /// Age from which a task may be dispatched again.
    pub redispatch_after_seconds: u64,
    /// Pause between two passes.
    pub loop_throttle_seconds: u64,
    /// Candidates of one pass.
    pub scan_limit: u64,
    /// How a pass divides its candidates; one value is defined.
    pub scan_strategy: &'static str,
    /// Longest pause after repeated failures.
    pub failure_backoff_max_seconds: u64,
    /// How the pause grows; one value is defined.
    pub failure_backoff_strategy: &'static str,
}

impl Default for RepairPolicy {
    fn default() -> Self {
        Self {
            redispatch_after_seconds: 3,
            loop_throttle_seconds: 5,
            scan_limit: 25,
            scan_strategy: SCAN_STRATEGY,
            failure_backoff_max_seconds: 60,
            failure_backoff_strategy: "exponential_by_repair_count",
        }
    }
}

const SCAN_STRATEGY: &str = "scope_fair_round_robin";

/// What the repair pass has in front of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepairCandidates {
    /// Tasks whose lease ran out or whose holder is gone.
    pub existing_task_candidates: u64,
    /// Open runs that have work and no task.
    pub missing_task_candidates: u64,
    /// Both together.
    pub total_candidates: u64,
    /// Candidates of one pass.
    pub scan_limit: u64,
    /// How a pass divides its candidates.
    pub scan_strategy: &'static str,
    /// The same by queue.
    pub scopes: Vec<RepairScope>,
}

impl Default for RepairCandidates {
    fn default() -> Self {
        Self {
            existing_task_candidates: 0,
            missing_task_candidates: 0,
            total_candidates: 0,
            scan_limit: RepairPolicy::default().scan_limit,
            scan_strategy: SCAN_STRATEGY,
            scopes: Vec::new(),
        }
    }
}

/// Repair candidates of one queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepairScope {
    /// Identity of the scope within the namespace.
    pub scope_key: String,
    /// The queue.
    pub queue: Option<String>,
    /// The build its tasks are pinned to.
    pub compatibility: Option<String>,
    /// As in [`RepairCandidates`].
    pub existing_task_candidates: u64,
    /// As in [`RepairCandidates`].
    pub missing_task_candidates: u64,
    /// As in [`RepairCandidates`].
    pub total_candidates: u64,
}

/// One thing this node has checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What was checked, in snake case.
    pub name: &'static str,
    /// Whether it is as it should be.
    pub healthy: bool,
}

/// The `coordination_health` object: healthy when all checks are.
pub(super) fn coordination_health(checks: &[HealthCheck]) -> Value {
    let status = |healthy| if healthy { "ok" } else { "degraded" };
    let rows: Vec<_> = checks
        .iter()
        .map(|check| json!({"name": check.name, "status": status(check.healthy)}))
        .collect();
    json!({
        "schema": "durable-workflow.v2.coordination-health.contract",
        "version": 1,
        "status": status(checks.iter().all(|check| check.healthy)),
        "checks": rows,
    })
}
