//! Commands of a completion on the wire: shapes, field scopes and ranges, each problem by its path.

mod attributes;
mod fields;
mod gates;
mod group;
mod local;
mod scope;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::domain::command::{
    CancellationPolicy, ClosePolicy, Command, ContinueAsNew, End, Failure as WorkflowFailure,
    OpenConditionWait, OpenSignalWait, ScheduleActivity, StartChild, StartTimer, UpdateAnswer,
    VersionMarker,
};
use crate::domain::event::Json;
use crate::protocol::feature::{Feature, Negotiated};

use super::super::fields::Int;
use super::super::problems::Problems;
use super::leases::MAX_ID;

pub use gates::{gate, needs_registration};

/// Longest type, name or message of a command.
const MAX_MESSAGE: usize = 65_536;

type Raw = Option<Box<RawValue>>;

/// One command, as it is sent: its type and the fields of all types.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct CommandRequest {
    /// What is asked for.
    #[serde(rename = "type")]
    kind: Option<String>,
    activity_type: Option<String>,
    workflow_type: Option<String>,
    #[schema(value_type = Option<serde_json::Value>)]
    arguments: Raw,
    #[schema(value_type = Option<serde_json::Value>)]
    input: Raw,
    #[schema(value_type = Option<serde_json::Value>)]
    result: Raw,
    payload_codec: Option<String>,
    queue: Option<String>,
    task_queue: Option<String>,
    #[schema(value_type = Option<serde_json::Value>)]
    retry_policy: Raw,
    start_to_close_timeout: Option<i64>,
    schedule_to_start_timeout: Option<i64>,
    schedule_to_close_timeout: Option<i64>,
    heartbeat_timeout: Option<i64>,
    #[schema(value_type = Option<serde_json::Value>)]
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
    #[schema(value_type = Option<serde_json::Value>)]
    exception: Raw,
    non_retryable: Option<bool>,
    failed_step_sequence: Option<i64>,
    failed_activity_execution_id: Option<String>,
    update_id: Option<String>,
    condition_key: Option<String>,
    condition_definition_fingerprint: Option<String>,
    /// Present even when it is null: that it was sent is what its version gate asks.
    #[serde(default, deserialize_with = "fields::sent")]
    #[schema(value_type = Option<String>)]
    condition_wait_occurrence_id: Option<Option<String>>,
    signal_name: Option<String>,
    #[schema(value_type = Option<serde_json::Value>)]
    attributes: Raw,
    #[schema(value_type = Option<serde_json::Value>)]
    attribute_types: Raw,
    #[schema(value_type = Option<serde_json::Value>)]
    entries: Raw,
    outcome: Option<String>,
    execution_mode: Option<String>,
    timeout_kind: Option<String>,
    #[schema(value_type = Option<serde_json::Value>)]
    attempts: Raw,
    selection_group_id: Option<String>,
    #[schema(value_type = Option<serde_json::Value>)]
    member_key: Option<serde_json::Value>,
    member_index: Option<Int>,
    member_base_sequence: Option<Int>,
    member_size: Option<Int>,
    operation_kind: Option<String>,
    operation_identity: Option<String>,
    parallel_group_id: Option<String>,
    parallel_group_kind: Option<String>,
    parallel_group_base_sequence: Option<i64>,
    parallel_group_size: Option<i64>,
    parallel_group_index: Option<i64>,
    parallel_group_mode: Option<String>,
    parallel_group_path: Option<Vec<group::PathEntryRequest>>,
    #[schema(value_type = Option<serde_json::Value>)]
    selection_member_key: Option<serde_json::Value>,
    selection_member_index: Option<i64>,
    selection_member_base_sequence: Option<i64>,
    selection_member_size: Option<i64>,
    selection_member_kind: Option<String>,
    cancellation_scope_id: Option<String>,
    #[schema(value_type = Option<serde_json::Value>)]
    workflow_stream: Raw,
}

impl CommandRequest {
    fn is(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }
}

/// Reads the commands of a completion.
///
/// # Errors
/// Everything that is wrong with any of them, keyed `commands.{index}.{field}`.
pub fn read(
    commands: Vec<CommandRequest>,
    version: &Negotiated,
    offered: &[&'static str],
) -> Result<Vec<Command>, Problems> {
    let mut problems = Problems::default();
    let mut read = Vec::with_capacity(commands.len());
    for (place, command) in commands.into_iter().enumerate() {
        let mut reader = Reader {
            prefix: format!("commands.{place}"),
            problems: &mut problems,
            version,
            offered,
        };
        read.extend(reader.command(command));
    }
    problems.into_result()?;
    Ok(read)
}

struct Reader<'a> {
    prefix: String,
    problems: &'a mut Problems,
    version: &'a Negotiated,
    offered: &'a [&'static str],
}

impl Reader<'_> {
    fn add(&mut self, field: &str, problem: impl Into<String>) {
        self.problems
            .add(format_args!("{}.{field}", self.prefix), problem);
    }

    fn path(&self, field: &str) -> String {
        format!("{}.{field}", self.prefix)
    }

    fn command(&mut self, command: CommandRequest) -> Option<Command> {
        let Some(kind) = command.kind.clone() else {
            self.add("type", "is required");
            return None;
        };
        if !self.offered.contains(&kind.as_str()) || self.is_too_new(&kind) {
            let shown: String = kind.chars().take(64).collect();
            self.add(
                "type",
                format!("{shown} is not a command that this server supports"),
            );
            return None;
        }
        self.check_scopes(&kind, &command);
        match kind.as_str() {
            "schedule_activity" => self
                .schedule_activity(command)
                .map(Command::ScheduleActivity),
            "record_local_activity" => self
                .local_activity(command)
                .map(Command::RecordLocalActivity),
            "start_timer" => self.start_timer(command).map(Command::StartTimer),
            "start_child_workflow" => self.start_child(command).map(Command::StartChild),
            "open_condition_wait" => self.condition_wait(command).map(Command::OpenConditionWait),
            "open_signal_wait" => self.signal_wait(command).map(Command::OpenSignalWait),
            "record_side_effect" => self.side_effect(&command),
            "record_version_marker" => self
                .version_marker(command)
                .map(Command::RecordVersionMarker),
            "upsert_search_attributes" => self
                .search_attributes(&command)
                .map(Command::UpsertSearchAttributes),
            "upsert_memo" => {
                let entries = self.required_payload("entries", command.entries.as_deref(), None)?;
                Some(Command::UpsertMemo { entries })
            }
            "cancel_selection_operation" => self.cancel_selection(command),
            "complete_update" | "fail_update" => self.update_answer(command),
            "complete_workflow" => {
                let result = self.result(&command);
                Some(Command::End(End::Complete { result }))
            }
            "fail_workflow" => self
                .fail_workflow(command)
                .map(|failure| Command::End(End::Fail(failure))),
            "continue_as_new" => Some(Command::End(End::ContinueAsNew(
                self.continue_as_new(command),
            ))),
            // Offered, and not read here: a defect that every completion would show.
            _ => None,
        }
    }

    /// Commands without a refusal of their own below their version are unknown there.
    fn is_too_new(&self, kind: &str) -> bool {
        kind == "cancel_selection_operation" && !self.version.allows(Feature::DurableSelection)
    }

    fn result(&mut self, command: &CommandRequest) -> Option<crate::payload::Payload> {
        self.payload(
            "result",
            command.result.as_deref(),
            command.payload_codec.as_deref(),
        )
    }

    fn side_effect(&mut self, command: &CommandRequest) -> Option<Command> {
        if command.workflow_stream.is_some() {
            self.add(
                "workflow_stream",
                "workflow streams are not supported by this server",
            );
        }
        let result = self.required_payload(
            "result",
            command.result.as_deref(),
            command.payload_codec.as_deref(),
        )?;
        Some(Command::RecordSideEffect { result })
    }

    fn schedule_activity(&mut self, command: CommandRequest) -> Option<ScheduleActivity> {
        self.name("activity_type", command.activity_type.as_deref());
        let policy = self.policy(&command);
        let session = self.worker_session(&command);
        let cancellation = self.cancellation_policy(&command);
        if cancellation == Some(CancellationPolicy::Abandon)
            && command.schedule_to_close_timeout.is_none()
        {
            self.add(
                "schedule_to_close_timeout",
                "is required with cancellation_policy abandon",
            );
        }
        let arguments = self.arguments(&command);
        let queue = self.queue(&command);
        let group = self.group(&command);
        Some(ScheduleActivity {
            activity_type: command.activity_type?.into(),
            arguments,
            queue,
            policy,
            cancellation,
            session,
            path: group,
        })
    }

    fn start_timer(&mut self, command: CommandRequest) -> Option<StartTimer> {
        if command.delay_seconds.is_none() {
            self.add("delay_seconds", "is required");
        }
        let delay_seconds = self.seconds("delay_seconds", command.delay_seconds, 0);
        self.only_root_scope(&command);
        let path = self.group(&command);
        Some(StartTimer {
            delay_seconds: delay_seconds?,
            path,
        })
    }

    fn start_child(&mut self, command: CommandRequest) -> Option<StartChild> {
        self.name("workflow_type", command.workflow_type.as_deref());
        let close_policy = match command.parent_close_policy.as_deref() {
            None => Some(ClosePolicy::default()),
            Some(word) => {
                let policy = ClosePolicy::from_word(word);
                if policy.is_none() {
                    self.add(
                        "parent_close_policy",
                        "must be abandon, request_cancel, request_cancellation or terminate",
                    );
                }
                policy
            }
        };
        let cancellation = self.cancellation_policy(&command);
        let execution = self.seconds(
            "execution_timeout_seconds",
            command.execution_timeout_seconds,
            1,
        );
        let run = self.seconds("run_timeout_seconds", command.run_timeout_seconds, 1);
        if let (Some(run), Some(execution)) = (run, execution)
            && run > execution
        {
            self.add(
                "run_timeout_seconds",
                "must not be longer than execution_timeout_seconds",
            );
        }
        let policy = self.policy(&command);
        let arguments = self.arguments(&command);
        let queue = self.queue(&command);
        let path = self.group(&command);
        Some(StartChild {
            workflow_type: command.workflow_type?.into(),
            arguments,
            queue,
            close_policy: close_policy?,
            cancellation,
            policy,
            execution_timeout_seconds: execution,
            run_timeout_seconds: run,
            path,
        })
    }

    fn condition_wait(&mut self, command: CommandRequest) -> Option<OpenConditionWait> {
        for (field, value) in [
            ("condition_key", &command.condition_key),
            (
                "condition_definition_fingerprint",
                &command.condition_definition_fingerprint,
            ),
            (
                "condition_wait_occurrence_id",
                command
                    .condition_wait_occurrence_id
                    .as_ref()
                    .unwrap_or(&None),
            ),
        ] {
            if value
                .as_ref()
                .is_some_and(|text| text.chars().count() > MAX_ID)
            {
                self.add(field, format!("must have at most {MAX_ID} characters"));
            }
        }
        let timeout_seconds = self.seconds("timeout_seconds", command.timeout_seconds, 0);
        let path = self.group(&command);
        Some(OpenConditionWait {
            key: command.condition_key.map(Into::into),
            fingerprint: command.condition_definition_fingerprint.map(Into::into),
            occurrence: command
                .condition_wait_occurrence_id
                .flatten()
                .map(Into::into),
            timeout_seconds,
            path,
        })
    }

    fn signal_wait(&mut self, command: CommandRequest) -> Option<OpenSignalWait> {
        self.name("signal_name", command.signal_name.as_deref());
        let timeout_seconds = self.seconds("timeout_seconds", command.timeout_seconds, 0);
        let path = self.group(&command);
        Some(OpenSignalWait {
            name: command.signal_name?.into(),
            timeout_seconds,
            path,
        })
    }

    fn version_marker(&mut self, command: CommandRequest) -> Option<VersionMarker> {
        self.name("change_id", command.change_id.as_deref());
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

    fn update_answer(&mut self, command: CommandRequest) -> Option<Command> {
        self.name("update_id", command.update_id.as_deref());
        let answer = if command.is("complete_update") {
            UpdateAnswer::Completed(self.result(&command))
        } else {
            self.message(command.message.as_deref());
            self.error_names(&command);
            UpdateAnswer::Failed(WorkflowFailure {
                message: command.message?,
                kind: command.exception_type,
                class: command.exception_class,
                non_retryable: command.non_retryable.unwrap_or(false),
                ..WorkflowFailure::default()
            })
        };
        Some(Command::AnswerUpdate {
            update_id: command.update_id?.into(),
            answer,
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
        let message = structured.message.or_else(|| command.message.clone());
        self.message(message.as_deref());
        self.error_names(&command);
        let failed_step = self.failed_step(&command);
        Some(WorkflowFailure {
            message: message?,
            kind: structured.kind.or(command.exception_type),
            class: structured.class.or(command.exception_class),
            code: structured.code,
            non_retryable: command.non_retryable.unwrap_or(false),
            exception: command.exception.map(Json::from),
            details: None,
            failed_step,
        })
    }

    /// Both fields that name the failed activity, or none.
    fn failed_step(&mut self, command: &CommandRequest) -> Option<(u32, String)> {
        let step = command.failed_step_sequence;
        let activity = command.failed_activity_execution_id.as_deref();
        if let Some(step) = step {
            let path = self.path("failed_step_sequence");
            self.problems.within(&path, step, 1..=i64::from(u32::MAX));
        }
        match (step, activity) {
            (None, None) => None,
            (Some(step), Some(activity)) => {
                self.name("failed_activity_execution_id", Some(activity));
                Some((u32::try_from(step).ok()?, activity.to_owned()))
            }
            (None, Some(_)) => {
                self.add(
                    "failed_step_sequence",
                    "is required with failed_activity_execution_id",
                );
                None
            }
            (Some(_), None) => {
                self.add(
                    "failed_activity_execution_id",
                    "is required with failed_step_sequence",
                );
                None
            }
        }
    }

    fn continue_as_new(&mut self, command: CommandRequest) -> ContinueAsNew {
        let arguments = self.arguments(&command);
        let queue = self.queue(&command);
        if let Some(kind) = &command.workflow_type {
            self.name("workflow_type", Some(kind));
        }
        ContinueAsNew {
            arguments,
            workflow_type: command.workflow_type.map(Into::into),
            queue,
        }
    }
}
