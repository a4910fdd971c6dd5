//! Limits on held and handed-out tasks.

use serde::{Deserialize, Serialize};

/// How many tasks may be held and handed out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admission {
    /// Workflow tasks.
    pub workflow_tasks: TaskLimits,
    /// Activity tasks.
    pub activity_tasks: TaskLimits,
}

/// Limits for one kind of task; 0 for none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskLimits {
    /// Tasks of one queue that workers hold at once.
    pub max_active_leases_per_queue: u64,
    /// Tasks of one namespace that workers hold at once.
    pub max_active_leases_per_namespace: u64,
    /// Tasks of one queue that are handed out in a minute.
    pub max_dispatches_per_minute: u64,
    /// Tasks of one namespace that are handed out in a minute.
    pub max_dispatches_per_minute_per_namespace: u64,
}

/// Names from the environment that stand for a limit each.
pub(super) const ALIASES: &[(&str, &str)] = &[
    (
        "DW_WORKFLOW_TASK_MAX_ACTIVE_LEASES_PER_QUEUE",
        "admission.workflow_tasks.max_active_leases_per_queue",
    ),
    (
        "DW_WORKFLOW_TASK_MAX_ACTIVE_LEASES_PER_NAMESPACE",
        "admission.workflow_tasks.max_active_leases_per_namespace",
    ),
    (
        "DW_WORKFLOW_TASK_MAX_DISPATCHES_PER_MINUTE",
        "admission.workflow_tasks.max_dispatches_per_minute",
    ),
    (
        "DW_WORKFLOW_TASK_MAX_DISPATCHES_PER_MINUTE_PER_NAMESPACE",
        "admission.workflow_tasks.max_dispatches_per_minute_per_namespace",
    ),
    (
        "DW_ACTIVITY_TASK_MAX_ACTIVE_LEASES_PER_QUEUE",
        "admission.activity_tasks.max_active_leases_per_queue",
    ),
    (
        "DW_ACTIVITY_TASK_MAX_ACTIVE_LEASES_PER_NAMESPACE",
        "admission.activity_tasks.max_active_leases_per_namespace",
    ),
    (
        "DW_ACTIVITY_TASK_MAX_DISPATCHES_PER_MINUTE",
        "admission.activity_tasks.max_dispatches_per_minute",
    ),
    (
        "DW_ACTIVITY_TASK_MAX_DISPATCHES_PER_MINUTE_PER_NAMESPACE",
        "admission.activity_tasks.max_dispatches_per_minute_per_namespace",
    ),
];
