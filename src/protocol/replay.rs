//! How a worker says that it cannot replay a history, or that there was nothing to do.

/// The type of a report that means: nothing to do until there is new history.
pub const WAITING_FOR_HISTORY: &str = "WorkflowTaskWaitingForHistory";

/// Reasons that say that a worker cannot replay the history.
const BLOCKING_REASONS: &[&str] = &[
    "activity_execution_mode_mismatch",
    "activity_identity_mismatch",
    "activity_retry_policy_mismatch",
    "activity_task_queue_mismatch",
    "activity_worker_session_mismatch",
    "child_workflow_identity_mismatch",
    "condition_wait_definition_history_mismatch",
    "condition_wait_definition_invalid",
    "condition_wait_id_mismatch",
    "condition_wait_id_missing",
    "condition_wait_key_mismatch",
    "condition_wait_occurrence_history_mismatch",
    "condition_wait_occurrence_id_missing",
    "condition_wait_occurrence_mismatch",
    "condition_wait_predicate_fingerprint_missing",
    "condition_wait_predicate_mismatch",
    "condition_wait_reopened_after_timeout",
    "condition_wait_terminal_conflict",
    "condition_wait_timeout_delay_mismatch",
    "condition_wait_timeout_history_invalid",
    "condition_wait_timeout_identity_mismatch",
    "condition_wait_timeout_mismatch",
    "continue_as_new_sequence_missing",
    "duplicate_memo_upsert_record",
    "duplicate_version_marker",
    "duplicate_version_marker_record",
    "durable_command_sequence_collision",
    "durable_command_sequence_invalid",
    "durable_command_sequence_mismatch",
    "durable_command_sequence_missing",
    "memo_entries_invalid",
    "memo_entries_missing",
    "memo_merged_projection_invalid",
    "memo_merged_projection_missing",
    "memo_sequence_invalid",
    "memo_sequence_missing",
    "memo_update_mismatch",
    "parallel_group_history_conflict",
    "parallel_group_metadata_invalid",
    "parallel_group_metadata_missing",
    "parallel_group_missing_from_workflow",
    "parallel_group_partially_scheduled",
    "parallel_group_shape_mismatch",
    "recorded_command_detail_mismatch",
    "recorded_command_mismatch",
    "recorded_commands_unconsumed",
    "recorded_continue_as_new_unconsumed",
    "search_attribute_type_mismatch",
    "search_attribute_update_missing",
    "search_attribute_value_mismatch",
    "side_effect_result_missing",
    "side_effect_type_mismatch",
    "signal_wait_identity_mismatch",
    "signal_wait_name_missing",
    "timer_delay_mismatch",
    "timer_history_delay_mismatch",
    "timer_history_field_missing",
    "timer_identity_mismatch",
    "unsupported_payload_codec",
    "version_change_id_invalid",
    "version_change_id_mismatch",
    "version_marker_field_missing",
    "version_marker_history_range_invalid",
    "version_marker_incompatible_range",
    "version_marker_kind_mismatch",
    "version_marker_sequence_invalid",
    "version_range_invalid",
    "workflow_entry_arguments_mismatch",
    "workflow_nondeterministic",
];

/// Texts in a type or message that say the same, in lower case.
const BLOCKING_TEXTS: &[&str] = &[
    "nondetermin",
    "non-determin",
    "determinism",
    "replay error",
    "replay failed",
    "history shape",
    "history mismatch",
    "invalidargument",
    "servererror",
    "unexpected history",
    "validationexception",
    "cannot decode workflow start input",
    "cannot replay workflow history",
    "unsupported payload codec",
    "unsupported_payload_codec",
    "workflow task completion failed after commands were produced",
    "no workflow registered",
];

/// The part of a type or message that is looked at.
const LOOKED_AT: (usize, usize) = (512, 4_096);

fn looked_at(kind: &str, message: &str) -> String {
    let cut = |text: &str, most: usize| text.chars().take(most).collect::<String>();
    format!("{} {}", cut(kind, LOOKED_AT.0), cut(message, LOOKED_AT.1)).to_lowercase()
}

/// Whether a failure report means that there was nothing to do.
pub fn is_waiting(kind: &str, message: &str) -> bool {
    kind.eq_ignore_ascii_case(WAITING_FOR_HISTORY)
        || looked_at(kind, message).contains("workflow task waiting for scheduled history")
}

/// Whether a failure report means that the worker cannot replay the history.
pub fn is_blocked(reason: Option<&str>, kind: &str, message: &str) -> bool {
    if reason.is_some_and(|reason| BLOCKING_REASONS.contains(&reason)) {
        return true;
    }
    let text = looked_at(kind, message);
    BLOCKING_TEXTS.iter().any(|marker| text.contains(marker))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_told_by_type_or_sentence() {
        assert!(is_waiting("workflowtaskwaitingforhistory", ""));
        assert!(is_waiting(
            "Other",
            "Workflow task waiting for scheduled history."
        ));
        assert!(!is_waiting("Other", "waiting"));
    }

    #[test]
    fn blocked_is_told_by_reason_type_or_sentence() {
        assert!(is_blocked(Some("timer_delay_mismatch"), "", ""));
        assert!(is_blocked(None, "NonDeterministicError", ""));
        assert!(is_blocked(None, "", "No workflow registered for x"));
        assert!(!is_blocked(Some("other"), "RuntimeError", "boom"));
    }
}
