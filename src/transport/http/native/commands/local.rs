//! `record_local_activity`: the whole story of an activity that its worker ran itself.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::domain::command::{Failure, LocalActivity, LocalAttempt, LocalEnd};
use crate::domain::event::Json;
use crate::protocol::feature::Feature;

use super::super::super::fields::Int;
use super::super::leases::MAX_ID;
use super::{CommandRequest, MAX_MESSAGE, Reader};

/// Attempts that one command may tell.
const MAX_ATTEMPTS: usize = 100;
/// Heartbeats that one command may tell.
const MAX_HEARTBEATS: usize = 1_000;

const ATTEMPT_KEYS: [&str; 10] = [
    "attempt_number",
    "attempt_id",
    "outcome",
    "duration_ms",
    "message",
    "exception_type",
    "non_retryable",
    "timeout_kind",
    "retry_reason",
    "backoff_seconds",
];
const POLICY_KEYS: [&str; 3] = [
    "max_attempts",
    "backoff_seconds",
    "non_retryable_error_types",
];

#[derive(Debug, Default, Deserialize)]
struct AttemptRequest {
    attempt_number: Option<Int>,
    attempt_id: Option<String>,
    outcome: Option<String>,
    message: Option<String>,
    exception_type: Option<String>,
    non_retryable: Option<bool>,
    timeout_kind: Option<String>,
    retry_reason: Option<String>,
    backoff_seconds: Option<Int>,
    heartbeats: Option<Vec<HeartbeatRequest>>,
}

#[derive(Debug, Default, Deserialize)]
struct HeartbeatRequest {
    elapsed_ms: Option<Int>,
    details: Option<Box<RawValue>>,
}

impl Reader<'_> {
    pub(super) fn local_activity(&mut self, command: CommandRequest) -> Option<LocalActivity> {
        self.name("activity_type", command.activity_type.as_deref());
        if command
            .execution_mode
            .as_deref()
            .is_some_and(|mode| mode != "local")
        {
            self.add("execution_mode", "must be local");
        }
        let policy = self.policy(&command);
        if self.version.allows(Feature::StrictLocalReports) {
            self.only_known_keys(
                "retry_policy",
                command.retry_policy.as_deref(),
                &POLICY_KEYS,
            );
        }
        let arguments = self.arguments(&command);
        let attempts = self.attempts(command.attempts.as_deref());
        let allowed = policy.as_ref().map_or(1, |policy| policy.max_attempts);
        if attempts.len() > usize::try_from(allowed).unwrap_or(usize::MAX) {
            self.add(
                "attempts",
                format!("must be at most {allowed}, as the retry policy says"),
            );
        }
        let last = attempts.last().and_then(|attempt| attempt.outcome.clone());
        if last.is_some() && last != command.outcome {
            self.add("outcome", "must be the outcome of the last attempt");
        }
        let end = self.local_end(&command);
        let attempts = attempts
            .into_iter()
            .map(|attempt| LocalAttempt {
                worker_attempt_id: attempt.attempt_id.map(Into::into),
                heartbeats: attempt
                    .heartbeats
                    .into_iter()
                    .flatten()
                    .map(|beat| beat.details.map(Json::from))
                    .collect(),
                failure: Failure {
                    message: attempt.message.unwrap_or_default(),
                    kind: attempt.exception_type,
                    non_retryable: attempt.non_retryable.unwrap_or(false),
                    ..Failure::default()
                },
                timeout_kind: attempt.timeout_kind.map(Into::into),
                retry_reason: attempt.retry_reason.map(Into::into),
                backoff_seconds: attempt
                    .backoff_seconds
                    .and_then(|Int(n)| u64::try_from(n).ok())
                    .unwrap_or(0),
            })
            .collect();
        Some(LocalActivity {
            activity_type: command.activity_type?.into(),
            arguments,
            policy,
            attempts,
            end: end?,
        })
    }

    fn local_end(&mut self, command: &CommandRequest) -> Option<LocalEnd> {
        let outcome = command.outcome.as_deref();
        let message = command.message.clone();
        if matches!(outcome, Some("failed" | "timed_out" | "cancelled")) {
            self.message(message.as_deref());
        }
        match outcome {
            Some("completed") => Some(LocalEnd::Completed(self.result(command))),
            Some("failed") => {
                self.error_names(command);
                Some(LocalEnd::Failed(Failure {
                    message: message?,
                    kind: command.exception_type.clone(),
                    class: command.exception_class.clone(),
                    non_retryable: command.non_retryable.unwrap_or(false),
                    ..Failure::default()
                }))
            }
            Some("timed_out") => {
                let kind = command.timeout_kind.as_deref();
                if !matches!(
                    kind,
                    Some("start_to_close" | "schedule_to_close" | "heartbeat")
                ) {
                    self.add(
                        "timeout_kind",
                        "must be start_to_close, schedule_to_close or heartbeat",
                    );
                }
                Some(LocalEnd::TimedOut {
                    kind: kind?.into(),
                    message: message?,
                })
            }
            Some("cancelled") => Some(LocalEnd::Cancelled { message: message? }),
            _ => {
                self.add(
                    "outcome",
                    "must be completed, failed, timed_out or cancelled",
                );
                None
            }
        }
    }

    fn attempts(&mut self, raw: Option<&RawValue>) -> Vec<AttemptRequest> {
        let Some(raw) = raw else {
            self.add("attempts", "is required");
            return Vec::new();
        };
        let Ok(attempts) = serde_json::from_str::<Vec<AttemptRequest>>(raw.get()) else {
            self.add("attempts", "must be a list of attempts");
            return Vec::new();
        };
        if attempts.is_empty() || attempts.len() > MAX_ATTEMPTS {
            self.add("attempts", format!("must be 1 to {MAX_ATTEMPTS} attempts"));
            return Vec::new();
        }
        let strict = self.version.allows(Feature::StrictLocalReports);
        if strict {
            self.strict_attempts(raw);
        }
        let beats = attempts.iter().filter_map(|a| a.heartbeats.as_ref());
        if beats.map(Vec::len).sum::<usize>() > MAX_HEARTBEATS {
            self.add(
                "attempts",
                format!("must tell at most {MAX_HEARTBEATS} heartbeats"),
            );
        }
        let last = attempts.len() - 1;
        for (place, attempt) in attempts.iter().enumerate() {
            self.attempt(place, place == last, attempt, strict);
        }
        attempts
    }

    fn attempt(&mut self, place: usize, last: bool, attempt: &AttemptRequest, strict: bool) {
        let field = |name: &str| format!("attempts.{place}.{name}");
        let number = i64::try_from(place + 1).unwrap_or(i64::MAX);
        if attempt.attempt_number.map(|Int(n)| n) != Some(number) {
            self.add(&field("attempt_number"), format!("must be {number}"));
        }
        let fits = match attempt.outcome.as_deref() {
            Some("failed" | "timed_out") => true,
            Some("completed" | "cancelled") => last,
            _ => false,
        };
        if !fits {
            self.add(
                &field("outcome"),
                "must be failed or timed_out; of the last attempt also completed or cancelled",
            );
        }
        for (name, value) in [
            ("attempt_id", &attempt.attempt_id),
            ("exception_type", &attempt.exception_type),
            ("timeout_kind", &attempt.timeout_kind),
        ] {
            if value
                .as_ref()
                .is_some_and(|text| text.chars().count() > MAX_ID)
            {
                self.add(
                    &field(name),
                    format!("must have at most {MAX_ID} characters"),
                );
            }
        }
        if attempt
            .message
            .as_ref()
            .is_some_and(|text| text.len() > MAX_MESSAGE)
        {
            self.add(
                &field("message"),
                format!("must have at most {MAX_MESSAGE} bytes"),
            );
        }
        if !matches!(
            attempt.retry_reason.as_deref(),
            None | Some("failure" | "timeout" | "cold_replay")
        ) {
            self.add(
                &field("retry_reason"),
                "must be failure, timeout or cold_replay",
            );
        }
        if let Some(Int(seconds)) = attempt.backoff_seconds {
            let path = self.path(&field("backoff_seconds"));
            self.problems.within(&path, seconds, 0..=3_155_760_000);
        }
        for (beat, told) in attempt.heartbeats.iter().flatten().enumerate() {
            if strict && told.elapsed_ms.is_none() {
                self.add(
                    &field(&format!("heartbeats.{beat}.elapsed_ms")),
                    "is required",
                );
            }
            let composite = told.details.as_ref().is_none_or(|details| {
                details.get().starts_with(['{', '[']) || details.get() == "null"
            });
            if !composite {
                self.add(
                    &field(&format!("heartbeats.{beat}.details")),
                    "must be an object or a list",
                );
            }
        }
    }

    /// From 1.19 on a key that is not known is a problem.
    fn strict_attempts(&mut self, raw: &RawValue) {
        let attempts: Vec<Map<String, Value>> = serde_json::from_str(raw.get()).unwrap_or_default();
        for (place, attempt) in attempts.iter().enumerate() {
            for key in attempt.keys() {
                if key != "heartbeats" && !ATTEMPT_KEYS.contains(&key.as_str()) {
                    self.add(&format!("attempts.{place}.{key}"), "is not known");
                }
            }
            let beats = attempt.get("heartbeats").and_then(Value::as_array);
            for (beat, told) in beats.into_iter().flatten().enumerate() {
                for key in told.as_object().into_iter().flat_map(Map::keys) {
                    if !matches!(key.as_str(), "elapsed_ms" | "details") {
                        self.add(
                            &format!("attempts.{place}.heartbeats.{beat}.{key}"),
                            "is not known",
                        );
                    }
                }
            }
        }
    }

    fn only_known_keys(&mut self, field: &str, raw: Option<&RawValue>, known: &[&str]) {
        let object: Option<Map<String, Value>> =
            raw.and_then(|raw| serde_json::from_str(raw.get()).ok());
        for key in object.iter().flat_map(Map::keys) {
            if !known.contains(&key.as_str()) {
                self.add(&format!("{field}.{key}"), "is not known");
            }
        }
    }
}
