//! Which fields belong to which commands (worker plane, command grammar): a field that is sent with
//! another command is a problem.

use crate::domain::command::CancellationPolicy;

use super::{CommandRequest, Reader};

/// Fields that only some types of command may carry, and which.
type Scope = (
    &'static str,
    fn(&CommandRequest) -> bool,
    &'static [&'static str],
);

const ACTIVITIES: &[&str] = &["schedule_activity", "record_local_activity"];
const FAILURES: &[&str] = &["fail_workflow", "fail_update", "record_local_activity"];
const SELECTION: &[&str] = &["cancel_selection_operation"];

const SCOPES: &[Scope] = &[
    (
        "retry_policy",
        |c| c.retry_policy.is_some(),
        &[
            "schedule_activity",
            "record_local_activity",
            "start_child_workflow",
        ],
    ),
    (
        "start_to_close_timeout",
        |c| c.start_to_close_timeout.is_some(),
        ACTIVITIES,
    ),
    (
        "schedule_to_start_timeout",
        |c| c.schedule_to_start_timeout.is_some(),
        &["schedule_activity"],
    ),
    (
        "schedule_to_close_timeout",
        |c| c.schedule_to_close_timeout.is_some(),
        ACTIVITIES,
    ),
    (
        "heartbeat_timeout",
        |c| c.heartbeat_timeout.is_some(),
        ACTIVITIES,
    ),
    (
        "worker_session",
        |c| c.worker_session.is_some(),
        &["schedule_activity"],
    ),
    (
        "execution_timeout_seconds",
        |c| c.execution_timeout_seconds.is_some(),
        &["start_child_workflow"],
    ),
    (
        "run_timeout_seconds",
        |c| c.run_timeout_seconds.is_some(),
        &["start_child_workflow"],
    ),
    (
        "parent_close_policy",
        |c| c.parent_close_policy.is_some(),
        &["start_child_workflow"],
    ),
    ("non_retryable", |c| c.non_retryable.is_some(), FAILURES),
    (
        "cancellation_policy",
        |c| c.cancellation_policy.is_some(),
        &["schedule_activity", "start_child_workflow"],
    ),
    ("exception", |c| c.exception.is_some(), &["fail_workflow"]),
    (
        "failed_step_sequence",
        |c| c.failed_step_sequence.is_some(),
        &["fail_workflow"],
    ),
    (
        "failed_activity_execution_id",
        |c| c.failed_activity_execution_id.is_some(),
        &["fail_workflow"],
    ),
    (
        "delay_seconds",
        |c| c.delay_seconds.is_some(),
        &["start_timer"],
    ),
    (
        "timeout_seconds",
        |c| c.timeout_seconds.is_some(),
        &["open_condition_wait", "open_signal_wait"],
    ),
    (
        "condition_wait_occurrence_id",
        |c| matches!(c.condition_wait_occurrence_id, Some(Some(_))),
        &["open_condition_wait"],
    ),
    (
        "attributes",
        |c| c.attributes.is_some(),
        &["upsert_search_attributes"],
    ),
    (
        "attribute_types",
        |c| c.attribute_types.is_some(),
        &["upsert_search_attributes"],
    ),
    ("entries", |c| c.entries.is_some(), &["upsert_memo"]),
    (
        "attempts",
        |c| c.attempts.is_some(),
        &["record_local_activity"],
    ),
    (
        "execution_mode",
        |c| c.execution_mode.is_some(),
        &["record_local_activity", "schedule_activity"],
    ),
    (
        "selection_group_id",
        |c| c.selection_group_id.is_some(),
        SELECTION,
    ),
    ("member_key", |c| c.member_key.is_some(), SELECTION),
    ("operation_kind", |c| c.operation_kind.is_some(), SELECTION),
    (
        "workflow_stream",
        |c| c.workflow_stream.is_some(),
        &["record_side_effect"],
    ),
    (
        "payload_codec",
        |c| c.payload_codec.is_some(),
        &[
            "complete_workflow",
            "schedule_activity",
            "record_local_activity",
            "start_child_workflow",
            "continue_as_new",
            "complete_update",
            "record_side_effect",
            "start_service_operation",
            "record_version_marker",
        ],
    ),
];

impl Reader<'_> {
    pub(super) fn check_scopes(&mut self, kind: &str, command: &CommandRequest) {
        for (field, present, owners) in SCOPES {
            if present(command) && !owners.contains(&kind) {
                self.add(field, format!("does not belong to {kind}"));
            }
        }
    }

    /// What a cancellation does to the operation, if the command says so.
    pub(super) fn cancellation_policy(
        &mut self,
        command: &CommandRequest,
    ) -> Option<CancellationPolicy> {
        self.only_root_scope(command);
        let word = command.cancellation_policy.as_deref()?;
        let policy = CancellationPolicy::from_word(word);
        if policy.is_none() {
            self.add(
                "cancellation_policy",
                "must be try_cancel, wait_cancellation_completed or abandon",
            );
        }
        policy
    }

    pub(super) fn only_root_scope(&mut self, command: &CommandRequest) {
        if command
            .cancellation_scope_id
            .as_deref()
            .is_some_and(|scope| scope != "root")
        {
            self.add(
                "cancellation_scope_id",
                "cancellation scopes are not supported by this server",
            );
        }
    }
}
