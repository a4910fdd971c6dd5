//! Every machine-readable refusal code this server answers, on either plane. Clients branch on
//! these strings, so they are spelled in one place only. Statuses and bodies are the bindings'.

use std::fmt;

use serde::{Serialize, Serializer};

/// Declares the enum, its strings and the list of all of them from one table.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal,)+) => {
        /// A stable code in the `reason` field of a refusal. Serializes to the code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &[Reason] = &[$(Reason::$name,)+];

            /// The code as it stands on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Reason::$name => $code,)+
                }
            }
        }
    };
}

reasons! {
    // The request itself, before any handler sees it.

    /// The body is not JSON.
    MalformedJson = "malformed_json",
    /// The body is larger than the body limit.
    PayloadTooLarge = "payload_too_large",
    /// The body is of another media type than JSON.
    UnsupportedMediaType = "unsupported_media_type",
    /// A field is missing, of the wrong type, or out of its range.
    ValidationFailed = "validation_failed",
    /// No worker protocol version on a worker request.
    MissingProtocolVersion = "missing_protocol_version",
    /// A worker protocol version that is malformed or not served.
    UnsupportedProtocolVersion = "unsupported_protocol_version",
    /// No control-plane version on a control-plane request.
    MissingControlPlaneVersion = "missing_control_plane_version",
    /// A control-plane version other than the one served.
    UnsupportedControlPlaneVersion = "unsupported_control_plane_version",
    /// No credential, or a wrong one.
    Unauthorized = "unauthorized",
    /// The credential's role may not do this.
    Forbidden = "forbidden",
    /// The namespace does not exist.
    NamespaceNotFound = "namespace_not_found",
    /// No route of this path.
    NotFound = "not_found",
    /// The route does not have this method.
    MethodNotAllowed = "method_not_allowed",

    // The server's own condition.

    /// The authentication driver has no usable secret.
    ServerError = "server_error",
    /// A defect, or a failure with no better name, on the control plane.
    ControlPlaneInternalError = "control_plane_internal_error",
    /// The database is away and the outcome of the request is unknown.
    BackendUnavailable = "backend_unavailable",
    /// The database is too contended; the request was not applied.
    BackendLockPressure = "backend_lock_pressure",
    /// Storage is full; the request was not admitted.
    StoragePressure = "storage_pressure",
    /// The database takes no writes; the request was not admitted.
    StorageAdmissionUnavailable = "storage_admission_unavailable",
    /// The server has not finished its start.
    WorkflowV2Blocked = "workflow_v2_blocked",
    /// This node does not play the role that the route needs.
    TopologyRoleUnavailable = "topology_role_unavailable",
    /// The node holds as many idle polls as it may.
    LongPollCapacityExhausted = "long_poll_capacity_exhausted",

    // Payloads and limits.

    /// A payload names a codec that is not served.
    UnsupportedPayloadCodec = "unsupported_payload_codec",
    /// A referenced payload does not have the announced size or hash.
    ExternalPayloadIntegrityFailed = "external_payload_integrity_failed",
    /// A referenced payload cannot be reached.
    ExternalPayloadStorageUnavailable = "external_payload_storage_unavailable",
    /// A count or size limit of a run would be exceeded.
    StructuralLimitExceeded = "structural_limit_exceeded",

    // Workers: registration, heartbeat, deregistration.

    /// The worker is not registered in this namespace (poll, heartbeat, session).
    WorkerNotRegistered = "worker_not_registered",
    /// No registration to remove.
    WorkerNotFound = "worker_not_found",
    /// The registration's leases were taken back because it was silent for too long.
    WorkerRegistrationSuperseded = "worker_registration_superseded",
    /// A newer registration of the same worker id has taken over.
    WorkerRegistrationLostAuthority = "worker_registration_lost_authority",
    /// No registration has this token.
    WorkerRegistrationTokenNotFound = "worker_registration_token_not_found",
    /// The token's deregistration was too long ago to repeat its answer.
    WorkerRegistrationReceiptExpired = "worker_registration_receipt_expired",
    /// An active worker announced another fingerprint for a type.
    WorkflowDefinitionChanged = "workflow_definition_changed",
    /// An active worker left out the fingerprint of a type it had announced.
    WorkflowDefinitionFingerprintMissing = "workflow_definition_fingerprint_missing",
    /// The flat capability list and the capability manifest contradict each other.
    WorkerCapabilityManifestMismatch = "worker_capability_manifest_mismatch",
    /// A manifest entry demands a version that the request or the server does not have.
    WorkerCapabilityProtocolFloorMismatch = "worker_capability_protocol_floor_mismatch",
    /// A memo or attribute capability announced below its version.
    WorkflowMetadataCapabilityProtocolMismatch = "workflow_metadata_capability_protocol_mismatch",

    // Worker sessions.

    /// Fields of a session's options.
    InvalidWorkerSession = "invalid_worker_session",
    /// The session is another queue's, or the worker does not serve its queue.
    SessionQueueMismatch = "session_queue_mismatch",
    /// No session of this id.
    SessionNotFound = "session_not_found",
    /// The session has no owner now.
    SessionNotActive = "session_not_active",
    /// The caller does not own the session.
    SessionOwnerMismatch = "session_owner_mismatch",
    /// No session of this id, and none may be made.
    SessionMissing = "session_missing",
    /// The worker lacks capabilities that the session needs.
    SessionRequirementsNotMet = "session_requirements_not_met",
    /// The worker owns as many sessions as it may.
    WorkerSessionLimitExceeded = "worker_session_limit_exceeded",
    /// Another worker owns the session.
    SessionOwnedByAnotherWorker = "session_owned_by_another_worker",
    /// As many activities run in the session as may.
    SessionActivityLimitExceeded = "session_activity_limit_exceeded",
    /// The session was closed.
    SessionClosed = "session_closed",
    /// The session was lost and may not be owned again.
    SessionReacquireDisallowed = "session_reacquire_disallowed",

    // Polls: refusals, and why a poll has no task.

    /// The worker is not registered for this queue.
    TaskQueueMismatch = "task_queue_mismatch",
    /// The request's build id is not the registered one.
    BuildIdMismatch = "build_id_mismatch",
    /// The worker is draining and gets no new task.
    WorkerDraining = "worker_draining",
    /// The worker's registration is gone, replaced or silent for too long.
    StaleWorkerRegistration = "stale_worker_registration",
    /// The worker registered no workflow type.
    NoWorkflowCapability = "no_workflow_capability",
    /// The worker registered no activity type.
    NoActivityCapability = "no_activity_capability",
    /// A ready task is pinned to another build, or a start names one that drains.
    CompatibilityBlocked = "compatibility_blocked",
    /// No live worker can take what is ready.
    NoCompatibleWorker = "no_compatible_worker",
    /// A limit of the queue or its namespace is reached.
    Throttled = "throttled",
    /// The same poll id was used with another set of task kinds.
    PollRequestTaskKindsConflict = "poll_request_task_kinds_conflict",
    /// The same poll id was given a task of a kind that is not asked for now.
    PollCachedTaskKindConflict = "poll_cached_task_kind_conflict",
    /// A poll asks for update validations without having announced that it can do them.
    UpdateValidationCapabilityNotAdvertised = "update_validation_capability_not_advertised",

    // Leases of any task.

    /// No such task in this namespace.
    TaskNotFound = "task_not_found",
    /// Nobody holds the task.
    TaskNotLeased = "task_not_leased",
    /// The lease has run out.
    LeaseExpired = "lease_expired",
    /// Another worker holds the lease.
    LeaseOwnerMismatch = "lease_owner_mismatch",

    // Workflow tasks.

    /// The attempt is not the one that was handed out last.
    WorkflowTaskAttemptMismatch = "workflow_task_attempt_mismatch",
    /// The task is of another kind.
    TaskNotWorkflow = "task_not_workflow",
    /// A page token that this server did not make.
    InvalidPageToken = "invalid_page_token",
    /// The history of the run cannot be read any more.
    HistoryNotAvailable = "history_not_available",
    /// The commands contradict each other or the run.
    InvalidCommands = "invalid_commands",
    /// The run of the task was closed before the report came.
    RunClosed = "run_closed",
    /// The run closed while the report was being applied.
    RunAlreadyClosed = "run_already_closed",
    /// The run passed its deadline and is closed as timed out.
    RunTimedOut = "run_timed_out",
    /// The run was cancelled.
    RunCancelled = "run_cancelled",
    /// The run was terminated.
    RunTerminated = "run_terminated",
    /// The run completed.
    RunCompleted = "run_completed",
    /// The run failed.
    RunFailed = "run_failed",

    // Version and capability gates of commands.

    /// Sessions need a newer request version.
    WorkerSessionsUnavailable = "worker_sessions_unavailable",
    /// Memo updates need a newer request version.
    WorkflowMemoUpdatesUnavailable = "workflow_memo_updates_unavailable",
    /// Message streams need a newer version on either side.
    MessageStreamsUnavailable = "message_streams_unavailable",
    /// The server does not serve message streams.
    MessageStreamNotSupported = "message_stream_not_supported",
    /// Attribute types need a newer request version.
    TypedSearchAttributesUnavailable = "typed_search_attributes_unavailable",
    /// The entries of a memo cannot be merged (1.14).
    WorkflowMemoValidationFailed = "workflow_memo_validation_failed",
    /// The worker did not announce the memo or attribute capability it uses.
    WorkflowMetadataCapabilityNotAdvertised = "workflow_metadata_capability_not_advertised",
    /// Occurrence ids of condition waits need a newer request version.
    ConditionWaitOccurrenceIdentityUnavailable = "condition_wait_occurrence_identity_unavailable",
    /// Local activities, sessions and the sticky cache need a newer request version.
    PortableWorkerAffinityProtocolFloorUnavailable = "portable_worker_affinity_protocol_floor_unavailable",
    /// A sticky-cache claim that is about another worker, run or build.
    StickyCacheIdentityMismatch = "sticky_cache_identity_mismatch",
    /// The worker did not announce the affinity capability it uses.
    WorkerCapabilityNotSupported = "worker_capability_not_supported",
    /// Cancellation with cleanup is off, or needs a newer version.
    CooperativeCancellationNotSupported = "cooperative_cancellation_not_supported",
    /// A child's cancellation policy needs cancellation with cleanup.
    ChildCancellationPolicyNotSupported = "child_cancellation_policy_not_supported",
    /// Observing an activity attempt needs a newer request version.
    ActivityAttemptStatusUnavailable = "activity_attempt_status_unavailable",
    /// Prepared local activities are off, or need a newer version.
    PreparedLocalActivityNotSupported = "prepared_local_activity_not_supported",
    /// Cancellation scopes need a newer version.
    CancellationScopeRequiresProtocol120 = "cancellation_scope_requires_protocol_1_20",
    /// This server opens no cancellation scopes.
    CancellationScopeOpeningUnavailable = "cancellation_scope_opening_unavailable",

    // Activity tasks.

    /// No such attempt.
    AttemptNotFound = "attempt_not_found",
    /// The attempt belongs to another task.
    TaskMismatch = "task_mismatch",
    /// The attempt was superseded, or its outcome is already known.
    StaleAttempt = "stale_attempt",
    /// The task was superseded.
    StaleTask = "stale_task",
    /// The attempt is over.
    AttemptClosed = "attempt_closed",
    /// The activity is not running.
    ActivityNotRunning = "activity_not_running",
    /// The activity was cancelled.
    ActivityCancelled = "activity_cancelled",
    /// The task was cancelled.
    TaskCancelled = "task_cancelled",

    // Query tasks.

    /// No such query task, or it is forgotten.
    QueryTaskNotFound = "query_task_not_found",
    /// The query's deadline has passed.
    QueryTaskTimedOut = "query_task_timed_out",
    /// Nobody holds the query task, or it is answered already.
    QueryTaskNotLeased = "query_task_not_leased",
    /// The attempt is not the one that was handed out last.
    QueryTaskAttemptMismatch = "query_task_attempt_mismatch",
    /// The workflow has no query of this name.
    RejectedUnknownQuery = "rejected_unknown_query",
    /// The arguments do not fit the query.
    InvalidQueryArguments = "invalid_query_arguments",
    /// The query's handler refused or raised.
    QueryRejected = "query_rejected",
    /// A ready workflow task of the run goes before the query.
    WorkflowTaskPending = "workflow_task_pending",
    /// A leased workflow task of the run goes before the query.
    WorkflowTaskLeased = "workflow_task_leased",
    /// A query waits on the queue that this poll cannot take.
    QueryTaskPending = "query_task_pending",

    // Update validation tasks.

    /// No such validation task.
    UpdateValidationTaskNotFound = "update_validation_task_not_found",
    /// The same validation was reported before.
    DuplicateUpdateValidationCompletion = "duplicate_update_validation_completion",
    /// The report belongs to an attempt that is over.
    StaleUpdateValidationCompletion = "stale_update_validation_completion",
    /// Nobody holds the validation task.
    UpdateValidationTaskNotLeased = "update_validation_task_not_leased",
    /// Another worker holds the validation task.
    UpdateValidationLeaseOwnerMismatch = "update_validation_lease_owner_mismatch",
    /// The validation lease has run out.
    UpdateValidationLeaseExpired = "update_validation_lease_expired",
    /// The worker that held the validation is gone.
    UpdateValidatorWorkerLost = "update_validator_worker_lost",
    /// The validator said no.
    UpdateValidatorRejected = "update_validator_rejected",
    /// No worker took the validation in time.
    UpdateValidationTaskNotClaimed = "update_validation_task_not_claimed",
    /// A worker took the validation and did not answer in time.
    UpdateValidationExecutionTimeout = "update_validation_execution_timeout",
    /// No live worker can validate.
    UpdateValidatorWorkerUnavailable = "update_validator_worker_unavailable",
    /// No worker of the queue announced that it can validate.
    UpdateValidationCapabilityUnsupported = "update_validation_capability_unsupported",
    /// Live workers can validate, but none this run.
    UpdateValidatorWorkerIncompatible = "update_validator_worker_incompatible",
    /// The request id was used for another validation.
    UpdateValidationIdempotencyConflict = "update_validation_idempotency_conflict",

    // Control plane: workflows and their commands.

    /// No workflow of this id in the namespace.
    InstanceNotFound = "instance_not_found",
    /// The workflow has no such run.
    RunNotFound = "run_not_found",
    /// The workflow id is in use, or was used before.
    InstanceAlreadyStarted = "instance_already_started",
    /// The workflow id is reserved but has no run yet.
    InstanceNotStarted = "instance_not_started",
    /// The queue has only draining workers for the type.
    TaskQueueDraining = "task_queue_draining",
    /// The build cannot be promoted: nobody has heard of it on this queue.
    UnknownDeployment = "unknown_deployment",
    /// The build cannot be promoted: its policy does not fit the queue's.
    IncompatiblePolicy = "incompatible_policy",
    /// The build cannot be promoted: it drains, or all its live workers do.
    FleetIsDraining = "fleet_is_draining",
    /// The build cannot be promoted: it has no workers.
    NoCompatibleWorkers = "no_compatible_workers",
    /// The build cannot be promoted: its workers have been silent for too long.
    MissingWorkerHeartbeat = "missing_worker_heartbeat",
    /// The build cannot be promoted: its workers define a workflow type differently.
    FingerprintMismatch = "fingerprint_mismatch",
    /// The build cannot be promoted: its code could not replay the history of open runs.
    ReplaySafetyFailed = "replay_safety_failed",
    /// No deployment of this name.
    DeploymentNotFound = "deployment_not_found",
    /// The deployment's name is of another namespace than the request.
    NamespaceMismatch = "namespace_mismatch",
    /// The run is closed.
    RunNotActive = "run_not_active",
    /// The run is still open.
    RunNotClosed = "run_not_closed",
    /// The named run is not the workflow's current one.
    SelectedRunNotCurrent = "selected_run_not_current",
    /// The request id belongs to another command.
    RequestIdConflict = "request_id_conflict",
    /// The request id matches several commands.
    RequestIdAmbiguous = "request_id_ambiguous",
    /// The run's contract has no signal of this name.
    UnknownSignal = "unknown_signal",
    /// The arguments do not fit the signal.
    InvalidSignalArguments = "invalid_signal_arguments",
    /// The worker that holds the task cannot take part in a cancellation.
    ActiveClaimCancellationNotSupported = "active_claim_cancellation_not_supported",
    /// The message id stands for another content.
    MessageIdentityConflict = "message_identity_conflict",
    /// The workflow has no such stream.
    StreamNotFound = "stream_not_found",
    /// The workers of the type declared no update of this name.
    UnknownUpdate = "unknown_update",
    /// The arguments do not fit the update.
    InvalidUpdateArguments = "invalid_update_arguments",
    /// The handler of the update failed, or the run closed before it ran.
    UpdateFailed = "update_failed",
    /// An update with a validator needs a request id.
    UpdateValidationRequestIdRequired = "update_validation_request_id_required",
    /// The worker could not run the validator.
    UpdateValidationWorkerFailed = "update_validation_worker_failed",
    /// No live worker polls the run's queue.
    QueryWorkerUnavailable = "query_worker_unavailable",
    /// Live workers poll the queue, and none can answer for this run.
    QueryWorkerIncompatible = "query_worker_incompatible",
    /// Too many queries wait on the queue.
    QueryTaskQueueFull = "query_task_queue_full",
    /// No worker took the query in time.
    QueryTaskNotClaimed = "query_task_not_claimed",
    /// A worker took the query and did not answer in time.
    QueryWorkerExecutionTimeout = "query_worker_execution_timeout",
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_snake_case() {
        let mut seen = BTreeSet::new();
        for reason in Reason::ALL {
            let code = reason.as_str();
            assert!(seen.insert(code), "{code} is there twice");
            let snake_case = code
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
            assert!(snake_case, "{code}");
            assert!(code.len() <= 64, "{code} is too long for a label");
        }
    }

    #[test]
    fn a_reason_shows_and_serializes_as_its_code() {
        let json = serde_json::to_value(Reason::LeaseExpired);
        assert_eq!(json.ok(), Some("lease_expired".into()));
        assert_eq!(Reason::LeaseExpired.to_string(), "lease_expired");
    }
}
