//! Commands of a completion on the wire: shapes, field scopes and ranges, each problem by its path.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::domain::command::{
    Command, ContinueAsNew, End, Failure as WorkflowFailure, ScheduleActivity, StartTimer,
    VersionMarker,
};
use crate::domain::event::Json;
use crate::domain::ids::{Step, TaskQueue};
use crate::domain::parallel::{Path, PathEntry};
use crate::domain::retry::Policy;
use crate::payload::{Codec, Payload, PayloadError};

use super::super::problems::Problems;
use super::leases::MAX_ID;

/// Longest type, name or message of a command.
const MAX_MESSAGE: usize = 65_536;
/// Longest time that a command may name, in seconds: a hundred years.
const MAX_SECONDS: i64 = 3_155_760_000;
/// Largest parallel group.
const MAX_GROUP: i64 = 1_000;

type Raw = Option<Box<RawValue>>;

/// One command, as it is sent: its type and the fields of all types.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct CommandRequest {
    /// What is asked for.
    #[serde(rename = "type")]
    kind: Option<String>,
    activity_type: Option<String>,
    workflow_type: Option<String>,
    #[schema(value_type = Option<Object>)]
    arguments: Raw,
    #[schema(value_type = Option<Object>)]
    input: Raw,
    #[schema(value_type = Option<Object>)]
    result: Raw,
    payload_codec: Option<String>,
    queue: Option<String>,
    task_queue: Option<String>,
    #[schema(value_type = Option<Object>)]
    retry_policy: Option<RetryPolicyRequest>,
    start_to_close_timeout: Option<i64>,
    schedule_to_start_timeout: Option<i64>,
    schedule_to_close_timeout: Option<i64>,
    heartbeat_timeout: Option<i64>,
    #[schema(value_type = Option<Object>)]
    worker_session: Raw,
    delay_seconds: Option<i64>,
    timeout_seconds: Option<i64>,
    execution_timeout_seconds: Option<i64>,
    run_timeout_seconds: Option<i64>,
    parent_close_policy: Option<String>,
    cancellation_policy: Option<String>,
    change_id: Option<String>,
    version: Option<i64>,
    min_supported: Option<i64>,
    max_supported: Option<i64>,
    message: Option<String>,
    exception_type: Option<String>,
    exception_class: Option<String>,
    #[schema(value_type = Option<Object>)]
    exception: Raw,
    non_retryable: Option<bool>,
    parallel_group_id: Option<String>,
    parallel_group_kind: Option<String>,
    parallel_group_base_sequence: Option<i64>,
    parallel_group_size: Option<i64>,
    parallel_group_index: Option<i64>,
    parallel_group_mode: Option<String>,
    parallel_group_path: Option<Vec<PathEntryRequest>>,
    cancellation_scope_id: Option<String>,
}

/// `retry_policy`
#[derive(Debug, Default, Deserialize)]
pub struct RetryPolicyRequest {
    max_attempts: Option<i64>,
    backoff_seconds: Option<Vec<i64>>,
    non_retryable_error_types: Option<Vec<String>>,
}

/// One level of `parallel_group_path`.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct PathEntryRequest {
    parallel_group_id: Option<String>,
    parallel_group_kind: Option<String>,
    parallel_group_base_sequence: Option<i64>,
    parallel_group_size: Option<i64>,
    parallel_group_index: Option<i64>,
    parallel_group_mode: Option<String>,
}

/// Reads the commands of a completion.
///
/// # Errors
/// Everything that is wrong with any of them, keyed `commands.{index}.{field}`.
pub fn read(commands: Vec<CommandRequest>) -> Result<Vec<Command>, Problems> {
    let mut problems = Problems::default();
    let mut read = Vec::with_capacity(commands.len());
    for (place, command) in commands.into_iter().enumerate() {
        let mut reader = Reader {
            prefix: format!("commands.{place}"),
            problems: &mut problems,
        };
        read.extend(reader.command(command));
    }
    problems.into_result()?;
    Ok(read)
}

struct Reader<'a> {
    prefix: String,
    problems: &'a mut Problems,
}

/// Fields that only some types of command may carry, and which.
type Scope = (
    &'static str,
    fn(&CommandRequest) -> bool,
    &'static [&'static str],
);

const SCOPES: &[Scope] = &[
    (
        "retry_policy",
        |c| c.retry_policy.is_some(),
        &["schedule_activity", "start_child_workflow"],
    ),
    (
        "start_to_close_timeout",
        |c| c.start_to_close_timeout.is_some(),
        &["schedule_activity"],
    ),
    (
        "schedule_to_start_timeout",
        |c| c.schedule_to_start_timeout.is_some(),
        &["schedule_activity"],
    ),
    (
        "schedule_to_close_timeout",
        |c| c.schedule_to_close_timeout.is_some(),
        &["schedule_activity"],
    ),
    (
        "heartbeat_timeout",
        |c| c.heartbeat_timeout.is_some(),
        &["schedule_activity"],
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
    (
        "non_retryable",
        |c| c.non_retryable.is_some(),
        &["fail_workflow", "fail_update"],
    ),
    ("exception", |c| c.exception.is_some(), &["fail_workflow"]),
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
        "payload_codec",
        |c| c.payload_codec.is_some(),
        &[
            "complete_workflow",
            "schedule_activity",
            "start_child_workflow",
            "continue_as_new",
            "complete_update",
            "record_side_effect",
            "start_service_operation",
            "record_version_marker",
        ],
    ),
];

/// Values of `cancellation_policy` that mean what an activity does anyway.
const DEFAULT_CANCELLATION_POLICY: &str = "try_cancel";

impl Reader<'_> {
    fn add(&mut self, field: &str, problem: impl Into<String>) {
        self.problems
            .add(&format!("{}.{field}", self.prefix), problem);
    }

    fn path(&self, field: &str) -> String {
        format!("{}.{field}", self.prefix)
    }

    fn command(&mut self, command: CommandRequest) -> Option<Command> {
        let Some(kind) = command.kind.clone() else {
            self.add("type", "is required");
            return None;
        };
        for (field, present, owners) in SCOPES {
            if present(&command) && !owners.contains(&kind.as_str()) {
                self.add(field, format!("does not belong to {kind}"));
            }
        }
        match kind.as_str() {
            "schedule_activity" => self
                .schedule_activity(command)
                .map(Command::ScheduleActivity),
            "start_timer" => self.start_timer(command).map(Command::StartTimer),
            "record_side_effect" => {
                let result = self.required_payload(
                    "result",
                    command.result.as_deref(),
                    command.payload_codec.as_deref(),
                )?;
                Some(Command::RecordSideEffect { result })
            }
            "record_version_marker" => self
                .version_marker(command)
                .map(Command::RecordVersionMarker),
            "complete_workflow" => {
                let result = self.payload(
                    "result",
                    command.result.as_deref(),
                    command.payload_codec.as_deref(),
                );
                Some(Command::End(End::Complete { result }))
            }
            "fail_workflow" => self
                .fail_workflow(command)
                .map(|failure| Command::End(End::Fail(failure))),
            "continue_as_new" => Some(Command::End(End::ContinueAsNew(
                self.continue_as_new(command),
            ))),
            other => {
                let shown: String = other.chars().take(64).collect();
                self.add(
                    "type",
                    format!("{shown} is not a command that this server supports"),
                );
                None
            }
        }
    }

    fn schedule_activity(&mut self, command: CommandRequest) -> Option<ScheduleActivity> {
        let path = self.path("activity_type");
        self.problems
            .required_text(&path, command.activity_type.as_deref(), MAX_ID);
        let policy = self.policy(&command);
        if command.worker_session.is_some() {
            self.add(
                "worker_session",
                "worker sessions are not supported by this server",
            );
        }
        self.only_default_cancellation(&command);
        let arguments = self.arguments(&command);
        let queue = self.queue(&command);
        let group = self.group(&command);
        Some(ScheduleActivity {
            activity_type: command.activity_type?.into(),
            arguments,
            queue,
            policy,
            path: group,
        })
    }

    fn only_default_cancellation(&mut self, command: &CommandRequest) {
        if let Some(policy) = &command.cancellation_policy
            && policy != DEFAULT_CANCELLATION_POLICY
        {
            self.add(
                "cancellation_policy",
                "cooperative cancellation is not supported by this server",
            );
        }
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

    /// Arguments in either spelling: an envelope, or (as `input`) a plain list.
    fn arguments(&mut self, command: &CommandRequest) -> Option<Payload> {
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

    fn start_timer(&mut self, command: CommandRequest) -> Option<StartTimer> {
        if command.delay_seconds.is_none() {
            self.add("delay_seconds", "is required");
        }
        let delay_seconds = self.seconds("delay_seconds", command.delay_seconds, 0);
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
        let path = self.group(&command);
        Some(StartTimer {
            delay_seconds: delay_seconds?,
            path,
        })
    }

    fn version_marker(&mut self, command: CommandRequest) -> Option<VersionMarker> {
        let path = self.path("change_id");
        self.problems
            .required_text(&path, command.change_id.as_deref(), MAX_ID);
        for (field, value) in [
            ("version", command.version),
            ("min_supported", command.min_supported),
            ("max_supported", command.max_supported),
        ] {
            if value.is_none() {
                self.add(field, "is required");
            }
        }
        Some(VersionMarker {
            change_id: command.change_id?,
            version: command.version?,
            min_supported: command.min_supported?,
            max_supported: command.max_supported?,
        })
    }

    fn fail_workflow(&mut self, command: CommandRequest) -> Option<WorkflowFailure> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Exception {
            message: Option<String>,
            #[serde(rename = "type")]
            kind: Option<String>,
            class: Option<String>,
            code: Option<i64>,
        }
        let structured: Option<Exception> = match command.exception.as_deref() {
            None => None,
            Some(raw) => match serde_json::from_str(raw.get()) {
                Ok(exception) => Some(exception),
                Err(_) => {
                    self.add("exception", "must be an object with text fields");
                    None
                }
            },
        };
        let structured = structured.unwrap_or_default();
        let message = structured.message.or(command.message);
        if message.is_none() {
            self.add("message", "is required");
        }
        if message
            .as_ref()
            .is_some_and(|message| message.len() > MAX_MESSAGE)
        {
            self.add("message", format!("must have at most {MAX_MESSAGE} bytes"));
        }
        let kind = structured.kind.or(command.exception_type);
        let class = structured.class.or(command.exception_class);
        for (field, value) in [("exception_type", &kind), ("exception_class", &class)] {
            if value
                .as_ref()
                .is_some_and(|text| text.chars().count() > 512)
            {
                self.add(field, "must have at most 512 characters");
            }
        }
        Some(WorkflowFailure {
            message: message?,
            kind,
            class,
            code: structured.code,
            non_retryable: command.non_retryable.unwrap_or(false),
            exception: command.exception.map(Json::from),
            details: None,
        })
    }

    fn continue_as_new(&mut self, command: CommandRequest) -> ContinueAsNew {
        let arguments = self.arguments(&command);
        let queue = self.queue(&command);
        if let Some(kind) = &command.workflow_type {
            let path = self.path("workflow_type");
            self.problems.text(&path, kind, MAX_ID);
        }
        ContinueAsNew {
            arguments,
            workflow_type: command.workflow_type.map(Into::into),
            queue,
        }
    }

    fn queue(&mut self, command: &CommandRequest) -> Option<TaskQueue> {
        let path = self.path("queue");
        let queue = self.problems.agree(
            &path,
            command.queue.as_deref(),
            command.task_queue.as_deref(),
        )?;
        self.problems.text(&path, queue, MAX_ID);
        Some(TaskQueue::from(queue))
    }

    fn seconds(&mut self, field: &str, value: Option<i64>, least: i64) -> Option<u64> {
        let value = value?;
        let path = self.path(field);
        self.problems.within(&path, value, least..=MAX_SECONDS);
        u64::try_from(value).ok()
    }

    fn policy(&mut self, command: &CommandRequest) -> Option<Policy> {
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
        let retry = command.retry_policy.as_ref();
        let max_attempts = retry.and_then(|retry| retry.max_attempts);
        if let Some(attempts) = max_attempts {
            let path = self.path("retry_policy.max_attempts");
            self.problems
                .within(&path, attempts, 1..=i64::from(u32::MAX));
        }
        let mut backoff_seconds = Vec::new();
        for (place, seconds) in retry
            .and_then(|retry| retry.backoff_seconds.as_ref())
            .into_iter()
            .flatten()
            .enumerate()
        {
            let path = self.path(&format!("retry_policy.backoff_seconds.{place}"));
            self.problems.within(&path, *seconds, 0..=MAX_SECONDS);
            backoff_seconds.push(u64::try_from(*seconds).unwrap_or(0));
        }
        let mut types: Vec<String> = Vec::new();
        for (place, kind) in retry
            .and_then(|retry| retry.non_retryable_error_types.as_ref())
            .into_iter()
            .flatten()
            .enumerate()
        {
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
        let named = max_attempts.is_some() || !backoff_seconds.is_empty() || !types.is_empty();
        let timed = [
            start_to_close,
            schedule_to_start,
            schedule_to_close,
            heartbeat,
        ]
        .iter()
        .any(Option::is_some);
        (named || timed).then(|| Policy {
            snapshot_version: 1,
            max_attempts: max_attempts
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(1),
            backoff_seconds,
            start_to_close_timeout: start_to_close,
            schedule_to_start_timeout: schedule_to_start,
            schedule_to_close_timeout: schedule_to_close,
            heartbeat_timeout: heartbeat,
            non_retryable_error_types: types,
        })
    }

    fn required_payload(
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

    fn payload(
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
            Ok(payload) if payload.codec == declared => Some(payload),
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

    fn payload_problem(&mut self, field: &str, error: &PayloadError) {
        self.add(&format!("{field}{}", error.path()), error.to_string());
    }

    /// Group metadata: all of it or none, the flat fields equal to the innermost level.
    fn group(&mut self, command: &CommandRequest) -> Option<Path> {
        let flat = PathEntryRequest {
            parallel_group_id: command.parallel_group_id.clone(),
            parallel_group_kind: command.parallel_group_kind.clone(),
            parallel_group_base_sequence: command.parallel_group_base_sequence,
            parallel_group_size: command.parallel_group_size,
            parallel_group_index: command.parallel_group_index,
            parallel_group_mode: command.parallel_group_mode.clone(),
        };
        let any = flat.parallel_group_id.is_some()
            || flat.parallel_group_kind.is_some()
            || flat.parallel_group_base_sequence.is_some()
            || flat.parallel_group_size.is_some()
            || flat.parallel_group_index.is_some()
            || command.parallel_group_path.is_some();
        if command.parallel_group_mode.is_some() {
            self.add(
                "parallel_group_mode",
                "durable selection is not supported by this server",
            );
        }
        if !any {
            return None;
        }
        let inner = self.path_entry("", &flat);
        let Some(sent) = &command.parallel_group_path else {
            self.add(
                "parallel_group_path",
                "is required with the other fields of a parallel group",
            );
            return None;
        };
        let mut entries = Vec::new();
        for (place, entry) in sent.iter().enumerate() {
            entries.extend(self.path_entry(&format!("parallel_group_path.{place}."), entry));
        }
        let inner = inner?;
        if entries.last() != Some(&inner) {
            self.add(
                "parallel_group_path",
                "must end with the level that the other fields describe",
            );
            return None;
        }
        Path::new(entries)
    }

    fn path_entry(&mut self, prefix: &str, entry: &PathEntryRequest) -> Option<PathEntry> {
        let before = self.problems.clone();
        let field = |name: &str| format!("{prefix}{name}");
        if entry.parallel_group_mode.is_some() && !prefix.is_empty() {
            self.add(
                &field("parallel_group_mode"),
                "durable selection is not supported by this server",
            );
        }
        let prefixes: &[&str] = match entry.parallel_group_kind.as_deref() {
            Some("activity") => &["parallel-activities"],
            Some("child") => &["parallel-children"],
            Some("timer") => &["parallel-timers"],
            Some("mixed") => &["parallel-calls"],
            Some(_) => {
                self.add(
                    &field("parallel_group_kind"),
                    "must be activity, child, timer or mixed",
                );
                &[]
            }
            None => {
                self.add(&field("parallel_group_kind"), "is required");
                &[]
            }
        };
        let base = self.group_number(
            &field("parallel_group_base_sequence"),
            entry.parallel_group_base_sequence,
            1,
            i64::from(u32::MAX) / 2,
        );
        let size = self.group_number(
            &field("parallel_group_size"),
            entry.parallel_group_size,
            1,
            MAX_GROUP,
        );
        let highest = i64::from(size.unwrap_or(1)) - 1;
        let index = self.group_number(
            &field("parallel_group_index"),
            entry.parallel_group_index,
            0,
            highest,
        );
        match (&entry.parallel_group_id, base, size) {
            (None, ..) => self.add(&field("parallel_group_id"), "is required"),
            (Some(id), Some(base), Some(size))
                if !prefixes.is_empty()
                    && !prefixes
                        .iter()
                        .any(|prefix| *id == format!("{prefix}:{base}:{size}")) =>
            {
                self.add(
                    &field("parallel_group_id"),
                    "does not match kind, base and size of the group",
                );
            }
            _ => {}
        }
        if *self.problems != before {
            return None;
        }
        Some(PathEntry {
            parallel_group_id: entry.parallel_group_id.clone()?,
            parallel_group_kind: entry.parallel_group_kind.clone()?,
            parallel_group_base_sequence: base?,
            parallel_group_size: size?,
            parallel_group_index: index?,
        })
    }

    fn group_number(
        &mut self,
        field: &str,
        value: Option<i64>,
        least: i64,
        most: i64,
    ) -> Option<Step> {
        let Some(value) = value else {
            self.add(field, "is required");
            return None;
        };
        let path = self.path(field);
        self.problems.within(&path, value, least..=most);
        u32::try_from(value).ok()
    }
}
