//! Retry policies and timeouts of activities, and when the next attempt may run.

use serde::{Deserialize, Serialize};

/// What a command asked for, recorded with the activity and shown to workers.
///
/// The keys are those of the policy snapshot in history; a policy is recorded as soon as the
/// command names a retry rule or a timeout, and `max_attempts` is then at least 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Always 1.
    pub snapshot_version: u32,
    /// Attempts in all, the first included.
    pub max_attempts: u32,
    /// Seconds before attempt 2, 3 …; the last entry repeats. Empty means no delay.
    #[serde(default)]
    pub backoff_seconds: Vec<u64>,
    /// Seconds from hand-out to outcome.
    pub start_to_close_timeout: Option<u64>,
    /// Seconds from scheduling (or retry) to hand-out.
    pub schedule_to_start_timeout: Option<u64>,
    /// Seconds from scheduling to outcome, over all attempts.
    pub schedule_to_close_timeout: Option<u64>,
    /// Seconds between heartbeats.
    pub heartbeat_timeout: Option<u64>,
    /// Error types that end the activity at once.
    #[serde(default)]
    pub non_retryable_error_types: Vec<String>,
}

impl Policy {
    /// Seconds to wait after `failures` failed attempts; `None` when the budget is spent.
    pub fn backoff_after(&self, failures: u32) -> Option<u64> {
        if failures >= self.max_attempts {
            return None;
        }
        let place = usize::try_from(failures.saturating_sub(1)).unwrap_or(usize::MAX);
        Some(
            self.backoff_seconds
                .get(place)
                .or(self.backoff_seconds.last())
                .copied()
                .unwrap_or(0),
        )
    }

    /// Whether an error of this type or class is listed as final.
    pub fn is_final(&self, kind: Option<&str>, class: Option<&str>) -> bool {
        self.non_retryable_error_types
            .iter()
            .any(|listed| Some(listed.as_str()) == kind || Some(listed.as_str()) == class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(max_attempts: u32, backoff: &[u64]) -> Policy {
        Policy {
            snapshot_version: 1,
            max_attempts,
            backoff_seconds: backoff.to_vec(),
            start_to_close_timeout: None,
            schedule_to_start_timeout: None,
            schedule_to_close_timeout: None,
            heartbeat_timeout: None,
            non_retryable_error_types: vec!["Declined".to_owned()],
        }
    }

    #[test]
    fn backoff_is_a_list_whose_last_entry_repeats() {
        let policy = policy(5, &[1, 2]);
        let waits: Vec<_> = (1..=5)
            .map(|failures| policy.backoff_after(failures))
            .collect();
        assert_eq!(waits, [Some(1), Some(2), Some(2), Some(2), None]);
    }

    #[test]
    fn no_list_means_no_delay_and_one_attempt_means_no_retry() {
        assert_eq!(policy(2, &[]).backoff_after(1), Some(0));
        assert_eq!(policy(1, &[9]).backoff_after(1), None);
    }

    #[test]
    fn listed_types_match_exactly_by_type_or_class() {
        let policy = policy(2, &[]);
        assert!(policy.is_final(Some("Declined"), None));
        assert!(policy.is_final(None, Some("Declined")));
        assert!(!policy.is_final(Some("declined"), Some("other")));
    }
}
