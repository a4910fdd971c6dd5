//! Fields that several commands share: payloads, queues, times, retry policies, failures.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::domain::ids::TaskQueue;
use crate::domain::retry::Policy;
use crate::domain::session;
use crate::payload::{Codec, Payload, PayloadError};

use super::super::super::body;
use super::super::leases::MAX_ID;
use super::super::sessions::WorkerSessionOptions;
use super::{CommandRequest, MAX_MESSAGE, Reader};

/// Longest time that a command may name, in seconds: a hundred years.
const MAX_SECONDS: i64 = 3_155_760_000;
/// Longest name of an error, in characters.
const MAX_ERROR_NAME: usize = 512;

/// `retry_policy`
#[derive(Debug, Default, Deserialize)]
pub(super) struct RetryPolicyRequest {
    max_attempts: Option<i64>,
    backoff_seconds: Option<Vec<i64>>,
    non_retryable_error_types: Option<Vec<String>>,
}

/// Tells a field that was sent as null from one that was not sent.
pub(super) fn sent<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<String>>, D::Error> {
    Option::<String>::deserialize(deserializer).map(Some)
}

impl Reader<'_> {
    pub(super) fn name(&mut self, field: &str, value: Option<&str>) {
        let path = format_args!("{}.{field}", self.prefix);
        self.problems.required_text(path, value, MAX_ID);
    }

    pub(super) fn message(&mut self, message: Option<&str>) {
        match message {
            None => self.add("message", "is required"),
            Some(text) if text.len() > MAX_MESSAGE => {
                self.add("message", format!("must have at most {MAX_MESSAGE} bytes"));
            }
            Some(_) => {}
        }
    }

    pub(super) fn error_names(&mut self, command: &CommandRequest) {
        for (field, value) in [
            ("exception_type", &command.exception_type),
            ("exception_class", &command.exception_class),
        ] {
            if value
                .as_ref()
                .is_some_and(|text| text.chars().count() > MAX_ERROR_NAME)
            {
                self.add(
                    field,
                    format!("must have at most {MAX_ERROR_NAME} characters"),
                );
            }
        }
    }

    /// Arguments in either spelling: an envelope, or (as `input`) a plain list.
    pub(super) fn arguments(&mut self, command: &CommandRequest) -> Option<Payload> {
        match (&command.arguments, &command.input) {
            (Some(_), Some(_)) => {
                self.add(
                    "arguments",
                    "contradicts the other spelling of the same field",
                );
                None
            }
            (None, Some(input)) => match Payload::arguments_raw(input) {
                Ok(payload) => Some(payload),
                Err(error) => {
                    self.payload_problem("input", &error);
                    None
                }
            },
            (arguments, None) => self.payload(
                "arguments",
                arguments.as_deref(),
                command.payload_codec.as_deref(),
            ),
        }
    }

    pub(super) fn queue(&mut self, command: &CommandRequest) -> Option<TaskQueue> {
        let path = format_args!("{}.queue", self.prefix);
        let queue = self.problems.agree(
            path,
            command.queue.as_deref(),
            command.task_queue.as_deref(),
        )?;
        self.problems.text(path, queue, MAX_ID);
        Some(TaskQueue::from(queue))
    }

    /// The worker session of an activity.
    pub(super) fn worker_session(
        &mut self,
        command: &CommandRequest,
    ) -> Option<Arc<session::Options>> {
        let raw = command.worker_session.as_deref()?;
        if raw.get() == "null" {
            return None;
        }
        let asked: WorkerSessionOptions = self.object("worker_session", raw)?;
        let prefix = self.path("worker_session.");
        asked.read(self.problems, &prefix).map(Arc::new)
    }

    pub(super) fn seconds(&mut self, field: &str, value: Option<i64>, least: i64) -> Option<u64> {
        let value = value?;
        let path = self.path(field);
        self.problems.within(&path, value, least..=MAX_SECONDS);
        u64::try_from(value).ok()
    }

    pub(super) fn policy(&mut self, command: &CommandRequest) -> Option<Policy> {
        let start_to_close =
            self.seconds("start_to_close_timeout", command.start_to_close_timeout, 1);
        let schedule_to_start = self.seconds(
            "schedule_to_start_timeout",
            command.schedule_to_start_timeout,
            1,
        );
        let schedule_to_close = self.seconds(
            "schedule_to_close_timeout",
            command.schedule_to_close_timeout,
            1,
        );
        let heartbeat = self.seconds("heartbeat_timeout", command.heartbeat_timeout, 1);
        for (field, inner, outer, name) in [
            (
                "heartbeat_timeout",
                heartbeat,
                start_to_close,
                "start_to_close_timeout",
            ),
            (
                "start_to_close_timeout",
                start_to_close,
                schedule_to_close,
                "schedule_to_close_timeout",
            ),
            (
                "schedule_to_start_timeout",
                schedule_to_start,
                schedule_to_close,
                "schedule_to_close_timeout",
            ),
        ] {
            if let (Some(inner), Some(outer)) = (inner, outer)
                && inner > outer
            {
                self.add(field, format!("must not be longer than {name}"));
            }
        }
        let retry = self.retry_policy(command.retry_policy.as_deref());
        let timed = [
            start_to_close,
            schedule_to_start,
            schedule_to_close,
            heartbeat,
        ]
        .iter()
        .any(Option::is_some);
        (retry.is_some() || timed).then(|| Policy {
            start_to_close_timeout: start_to_close,
            schedule_to_start_timeout: schedule_to_start,
            schedule_to_close_timeout: schedule_to_close,
            heartbeat_timeout: heartbeat,
            ..retry.unwrap_or_else(|| Policy {
                snapshot_version: 1,
                max_attempts: 1,
                backoff_seconds: Vec::new(),
                start_to_close_timeout: None,
                schedule_to_start_timeout: None,
                schedule_to_close_timeout: None,
                heartbeat_timeout: None,
                non_retryable_error_types: Vec::new(),
            })
        })
    }

    /// An object inside a command; what is wrong with it is said by its path.
    fn object<T: DeserializeOwned>(&mut self, field: &str, raw: &RawValue) -> Option<T> {
        match body::typed(raw.get()) {
            Ok(object) => Some(object),
            Err((path, problem)) => {
                let field = match path.as_str() {
                    "" => field.to_owned(),
                    inner => format!("{field}.{inner}"),
                };
                self.add(&field, problem);
                None
            }
        }
    }

    /// The retry rule alone; an empty one counts as none.
    fn retry_policy(&mut self, raw: Option<&RawValue>) -> Option<Policy> {
        let raw = raw.filter(|raw| raw.get() != "null")?;
        let retry: RetryPolicyRequest = self.object("retry_policy", raw)?;
        if let Some(attempts) = retry.max_attempts {
            let path = self.path("retry_policy.max_attempts");
            self.problems
                .within(&path, attempts, 1..=i64::from(u32::MAX));
        }
        let mut backoff_seconds = Vec::new();
        for (place, seconds) in retry.backoff_seconds.iter().flatten().enumerate() {
            let path = self.path(&format!("retry_policy.backoff_seconds.{place}"));
            self.problems.within(&path, *seconds, 0..=MAX_SECONDS);
            backoff_seconds.push(u64::try_from(*seconds).unwrap_or(0));
        }
        let mut types: Vec<String> = Vec::new();
        for (place, kind) in retry.non_retryable_error_types.iter().flatten().enumerate() {
            let kind = kind.trim();
            if kind.is_empty() {
                self.add(
                    &format!("retry_policy.non_retryable_error_types.{place}"),
                    "must not be empty",
                );
            } else if !types.iter().any(|known| known == kind) {
                types.push(kind.to_owned());
            }
        }
        let named =
            retry.max_attempts.is_some() || !backoff_seconds.is_empty() || !types.is_empty();
        named.then(|| Policy {
            snapshot_version: 1,
            max_attempts: retry
                .max_attempts
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(1),
            backoff_seconds,
            start_to_close_timeout: None,
            schedule_to_start_timeout: None,
            schedule_to_close_timeout: None,
            heartbeat_timeout: None,
            non_retryable_error_types: types,
        })
    }

    pub(super) fn required_payload(
        &mut self,
        field: &str,
        raw: Option<&RawValue>,
        codec: Option<&str>,
    ) -> Option<Payload> {
        if raw.is_none_or(|raw| raw.get() == "null") {
            self.add(field, "is required");
            return None;
        }
        self.payload(field, raw, codec)
    }

    pub(super) fn payload(
        &mut self,
        field: &str,
        raw: Option<&RawValue>,
        codec: Option<&str>,
    ) -> Option<Payload> {
        let declared = match codec.map(Codec::parse).transpose() {
            Ok(declared) => declared.unwrap_or(Codec::Avro),
            Err(error) => {
                self.payload_problem("payload_codec", &error);
                return None;
            }
        };
        let raw = raw.filter(|raw| raw.get() != "null")?;
        match Payload::from_wire_raw(raw, declared) {
            Ok(payload) if payload.codec() == declared => Some(payload),
            Ok(_) => {
                self.add("payload_codec", format!("is not the codec of {field}"));
                None
            }
            Err(error) => {
                self.payload_problem(field, &error);
                None
            }
        }
    }

    pub(super) fn payload_problem(&mut self, field: &str, error: &PayloadError) {
        self.add(&format!("{field}{}", error.path()), error.to_string());
    }
}
