//! The gate table: for each feature the version that brings it, the capability that it needs, how it
//! is used, and what comes of a use that lacks either.

use leasehold::protocol::feature::Feature;
use serde_json::{Value, json};

use super::uses::{self, local, selected, task};
use super::world::{Seen, Step, World};
use crate::support::{envelope, merged};

/// What a use comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It works, and its effect can be seen.
    Served,
    /// The request is served as if the use were not there.
    Ignored,
    /// A refusal by its reason; nothing is changed.
    Refused(u16, &'static str),
    /// The named field is refused; nothing is changed.
    Invalid(&'static str),
    /// There is nothing to be used yet.
    Nowhere,
}

/// How a feature is used.
pub enum How {
    /// A workflow task is completed with these commands, which leaves an event of this type.
    Commands(Value, &'static str),
    /// A worker registers that it has this capability.
    Registers(&'static str),
    /// What is at this place of the discovery document says that the feature is there.
    Announced(&'static str),
    /// A request on the control plane, which knows no version of a worker's request.
    Control(fn(World, Value) -> Step<Seen>),
    /// Requests of a worker.
    Worker(fn(World, Value) -> Step<Seen>),
}

pub struct Use {
    pub what: &'static str,
    /// What has to be there before; its result is handed to the use.
    pub prepare: fn(World) -> Step<Value>,
    pub how: How,
    /// Older requests meet the gate of another feature.
    pub since: u64,
    /// The advertised version does not know the feature.
    pub absent: Outcome,
    /// The version of the request does not.
    pub below: Outcome,
    /// Both do.
    pub from: Outcome,
    /// The worker did not register the capability.
    pub without: Outcome,
}

/// A use that is served everywhere, until it is said otherwise.
fn used(what: &'static str, prepare: fn(World) -> Step<Value>, how: How) -> Use {
    Use {
        what,
        prepare,
        how,
        since: 0,
        absent: Outcome::Served,
        below: Outcome::Served,
        from: Outcome::Served,
        without: Outcome::Served,
    }
}

impl Use {
    fn absent(self, absent: Outcome) -> Self {
        Self { absent, ..self }
    }

    fn below(self, below: Outcome) -> Self {
        Self { below, ..self }
    }

    fn from(self, from: Outcome) -> Self {
        Self { from, ..self }
    }

    fn without(self, without: Outcome) -> Self {
        Self { without, ..self }
    }

    fn since(self, since: u64) -> Self {
        Self { since, ..self }
    }

    /// The same refusal for whatever is too old.
    fn too_old(self, refusal: Outcome) -> Self {
        self.absent(refusal).below(refusal)
    }
}

pub struct Row {
    /// Minor that brings the feature.
    pub introduced: u64,
    /// The capability that a worker must have registered.
    pub capability: Option<&'static str>,
    /// Whether this server has the feature at all.
    pub is_built: bool,
    pub uses: Vec<Use>,
}

fn built(introduced: u64, uses: Vec<Use>) -> Row {
    Row {
        introduced,
        capability: None,
        is_built: true,
        uses,
    }
}

/// A feature that this server lacks: it is absent, also where the versions know it.
fn unbuilt(introduced: u64, mut uses: Vec<Use>) -> Row {
    for use_ in &mut uses {
        if use_.from == Outcome::Served {
            use_.from = use_.absent;
        }
    }
    Row {
        is_built: false,
        ..built(introduced, uses)
    }
}

fn needing(capability: &'static str, row: Row) -> Row {
    Row {
        capability: Some(capability),
        ..row
    }
}

/// Completing a task with one command.
fn command(what: &'static str, command: Value, event: &'static str) -> Use {
    used(what, task, How::Commands(json!([command]), event))
}

/// The place of discovery that tells of a feature.
fn told(pointer: &'static str) -> Use {
    used("discovery", uses::nothing, How::Announced(pointer)).absent(Outcome::Ignored)
}

fn registers(capability: &'static str) -> Use {
    let how = How::Registers(capability);
    used("registration of the capability", uses::nothing, how)
}

/// A history that holds the feature is handed to those only who can replay it.
fn replayed(prepare: fn(World) -> Step<Value>) -> Use {
    let how = How::Worker(uses::poll_workflow);
    used("history that holds it", prepare, how).absent(Outcome::Nowhere)
}

fn act(fields: Value) -> Value {
    merged(
        json!({"type": "schedule_activity", "activity_type": "act"}),
        fields,
    )
}

fn child(fields: Value) -> Value {
    let base =
        json!({"type": "start_child_workflow", "workflow_type": "kid", "task_queue": "none"});
    merged(base, fields)
}

/// The table. A feature without a row does not compile.
#[allow(clippy::too_many_lines, reason = "one row for each feature")]
pub fn row(feature: Feature) -> Row {
    use How::{Control, Worker};
    use Outcome::{Ignored, Invalid, Nowhere, Refused};

    let unknown_route = Refused(404, "not_found");
    match feature {
        // Part of every version.
        Feature::Signals => built(
            0,
            vec![
                used(
                    "history with a signal",
                    uses::signalled,
                    Worker(uses::poll_workflow),
                ),
                told("/capabilities/signals"),
            ],
        ),
        Feature::Updates => built(
            0,
            vec![
                used(
                    "complete_update",
                    uses::updated,
                    Worker(uses::complete_update),
                ),
                told("/capabilities/updates"),
            ],
        ),
        Feature::ChildWorkflows => built(
            0,
            vec![
                command(
                    "start_child_workflow",
                    child(json!({})),
                    "ChildWorkflowScheduled",
                ),
                told("/capabilities/child_workflows"),
            ],
        ),
        Feature::SearchAttributes => unbuilt(
            0,
            vec![
                used("definitions", uses::nothing, Control(uses::list_attributes))
                    .absent(unknown_route),
                told("/capabilities/search_attributes"),
            ],
        ),
        Feature::SearchAttributeUpserts => built(
            0,
            vec![command(
                "upsert_search_attributes",
                json!({"type": "upsert_search_attributes", "attributes": {"A": 1}}),
                "SearchAttributesUpserted",
            )],
        ),
        Feature::Schedules => unbuilt(
            0,
            vec![
                used("schedules", uses::nothing, Control(uses::list_schedules))
                    .absent(unknown_route),
                told("/capabilities/schedules"),
            ],
        ),
        Feature::HistoryExport => built(
            0,
            vec![
                used("export", task, Control(uses::export)),
                told("/capabilities/history_export"),
            ],
        ),
        Feature::HistoryRetention => built(0, vec![told("/capabilities/history_retention")]),
        Feature::ActivityRetryPolicy => built(
            0,
            vec![
                used(
                    "an attempt fails",
                    uses::retried,
                    Worker(uses::fail_activity),
                ),
                told("/capabilities/activity_retry_policy"),
            ],
        ),
        Feature::ActivityTimeouts => built(
            0,
            vec![
                used("a time limit", uses::limited, Worker(uses::poll_limited)),
                told("/capabilities/activity_timeouts"),
            ],
        ),
        Feature::NonRetryableFailures => built(
            0,
            vec![
                used(
                    "the last failure",
                    uses::retried,
                    Worker(uses::fail_for_good),
                ),
                told("/capabilities/non_retryable_failures"),
            ],
        ),
        Feature::PollRequestIdempotency => built(
            0,
            vec![
                used(
                    "a repeated poll",
                    uses::polled_by_id,
                    Worker(uses::poll_again),
                ),
                told("/worker_protocol/server_capabilities/workflow_task_poll_request_idempotency"),
            ],
        ),
        Feature::PriorityFairness => built(
            0,
            vec![
                used("a backlog", uses::ranked, Worker(uses::poll_urgent)),
                used("its view", uses::ranked, Control(uses::view_classes)),
                told(
                    "/worker_protocol/server_capabilities/task_queue_priority_fairness/fields/priority/lower_is_more_urgent",
                ),
            ],
        ),
        Feature::ResponseCompression => built(
            0,
            vec![
                used(
                    "a compressed answer",
                    uses::nothing,
                    Control(uses::compressed_answer),
                ),
                told("/worker_protocol/server_capabilities/response_compression"),
            ],
        ),
        Feature::HistoryCompression => built(
            0,
            vec![
                used(
                    "a compressed history",
                    uses::long,
                    Worker(uses::poll_compressed),
                ),
                told(
                    "/worker_protocol/server_capabilities/history_compression/supported_encodings",
                ),
            ],
        ),
        Feature::ActivityLeaseRenewal => unbuilt(
            0,
            vec![
                used("renewal", uses::nothing, Worker(uses::renew_lease)).absent(unknown_route),
                told("/worker_protocol/server_capabilities/activity_lease_renewal"),
            ],
        ),
        Feature::FencedDeregistration => built(
            0,
            vec![
                used("deregistration", uses::token, Worker(uses::deregister)),
                told(
                    "/worker_protocol/server_capabilities/worker_deregistration_fencing/supported",
                ),
            ],
        ),
        Feature::ObservabilityContext => unbuilt(
            0,
            vec![told(
                "/worker_protocol/server_capabilities/observability_context/supported",
            )],
        ),
        Feature::ExternalExecution => unbuilt(
            0,
            vec![told(
                "/worker_protocol/server_capabilities/external_execution_surface/supported",
            )],
        ),
        Feature::BridgeAdapters => unbuilt(
            0,
            vec![
                used("webhook", uses::nothing, Control(uses::webhook)).absent(unknown_route),
                told("/bridge_adapter_outcome_contract/supported"),
            ],
        ),
        Feature::ReplayVerification => {
            unbuilt(0, vec![told("/replay_verification_contract/supported")])
        }

        // Introduced by a minor, and served to every version.
        Feature::ExternalPayloads => unbuilt(
            3,
            vec![
                command(
                    "an external reference",
                    json!({
                        "type": "record_side_effect",
                        "result": {"codec": "avro", "external_payload": {}},
                    }),
                    "",
                )
                .absent(Invalid("commands.0.result.external_payload")),
                told("/worker_protocol/server_capabilities/runtime_external_payload_transport"),
            ],
        ),
        Feature::QueryTasks => needing(
            "query_tasks",
            built(
                8,
                vec![
                    used("a query", uses::waiting, Control(uses::query))
                        .without(Refused(409, "query_worker_incompatible")),
                    used("a poll", uses::asked, Worker(uses::poll_query)).without(Nowhere),
                    told("/capabilities/queries"),
                ],
            ),
        ),
        Feature::ConditionWaits => built(
            9,
            vec![command(
                "open_condition_wait",
                json!({"type": "open_condition_wait", "condition_key": "k"}),
                "ConditionWaitOpened",
            )],
        ),
        Feature::SignalWaits => built(
            9,
            vec![command(
                "open_signal_wait",
                json!({"type": "open_signal_wait", "signal_name": "go"}),
                "SignalWaitOpened",
            )],
        ),
        Feature::ServiceOperations => unbuilt(
            13,
            vec![
                command(
                    "start_service_operation",
                    json!({"type": "start_service_operation"}),
                    "",
                )
                .absent(Invalid("commands.0.type")),
            ],
        ),

        // Introduced by a minor, and refused below it.
        Feature::WorkerSessions => {
            let refusal = Refused(409, "worker_sessions_unavailable");
            built(
                8,
                vec![
                    used("create", uses::registered, Worker(uses::create_session)).too_old(refusal),
                    used("heartbeat", uses::session, Worker(uses::renew_session)).too_old(refusal),
                    used("close", uses::session, Worker(uses::close_session)).too_old(refusal),
                    command(
                        "worker_session of schedule_activity",
                        act(json!({"worker_session": {"session_id": "s"}})),
                        "ActivityScheduled",
                    )
                    .too_old(refusal),
                    used(
                        "its activity",
                        uses::session_activity,
                        Worker(uses::poll_activity),
                    )
                    .below(Ignored),
                    told("/worker_protocol/server_capabilities/worker_sessions/supported"),
                ],
            )
        }
        Feature::UpdateValidation => {
            let refusal = Refused(409, "update_validation_capability_not_advertised");
            let validates = |use_: Use| use_.too_old(refusal).without(refusal);
            needing(
                "update_validation_tasks",
                built(
                    13,
                    vec![
                        validates(used(
                            "task_kinds",
                            uses::registered,
                            Worker(uses::poll_kinds),
                        )),
                        validates(used(
                            "poll",
                            uses::registered,
                            Worker(uses::poll_validation),
                        )),
                        told("/worker_protocol/server_capabilities/update_validation_tasks"),
                    ],
                ),
            )
        }
        Feature::MemoUpserts => needing(
            "memo_upserts",
            built(
                14,
                vec![
                    command(
                        "upsert_memo",
                        json!({"type": "upsert_memo", "entries": envelope(json!({"a": 1}))}),
                        "MemoUpserted",
                    )
                    .absent(Invalid("commands.0.type"))
                    .below(Refused(409, "workflow_memo_updates_unavailable"))
                    .without(Refused(409, "workflow_metadata_capability_not_advertised")),
                    registers("memo_upserts").too_old(Refused(
                        409,
                        "workflow_metadata_capability_protocol_mismatch",
                    )),
                    replayed(uses::memo).without(Ignored),
                    told("/worker_protocol/server_capabilities/workflow_memo_updates/supported"),
                ],
            ),
        ),
        Feature::MessageStreams => {
            let refusal = Refused(409, "message_streams_unavailable");
            needing(
                "message_streams",
                built(
                    15,
                    vec![
                        used("message_stream_cursors", task, Worker(uses::cursors))
                            .too_old(refusal)
                            .without(refusal),
                        used("message_stream_waits", task, Worker(uses::stream_waits))
                            .too_old(refusal)
                            .without(refusal),
                        used("append", task, Control(uses::append))
                            .absent(Refused(409, "message_stream_not_supported")),
                        registers("message_streams").too_old(refusal),
                        replayed(uses::stream_history).without(Ignored),
                        told("/worker_protocol/server_capabilities/message_streams/supported"),
                    ],
                ),
            )
        }
        Feature::TypedSearchAttributes => needing(
            "typed_search_attributes",
            built(
                16,
                vec![
                    command("attribute_types", uses::typed(), "SearchAttributesUpserted")
                        .too_old(Refused(409, "typed_search_attributes_unavailable"))
                        .without(Refused(409, "workflow_metadata_capability_not_advertised")),
                    registers("typed_search_attributes").too_old(Refused(
                        409,
                        "workflow_metadata_capability_protocol_mismatch",
                    )),
                    replayed(uses::typed_history).without(Ignored),
                    told("/worker_protocol/server_capabilities/typed_search_attributes/supported"),
                ],
            ),
        ),
        Feature::ConditionWaitOccurrenceIdentity => {
            let refusal = Refused(409, "condition_wait_occurrence_identity_unavailable");
            let wait = |id: Value| {
                json!({
                    "type": "open_condition_wait", "condition_key": "k",
                    "condition_wait_occurrence_id": id,
                })
            };
            built(
                17,
                vec![
                    command("an id", wait(json!("o")), "ConditionWaitOpened").too_old(refusal),
                    command("null", wait(json!(null)), "ConditionWaitOpened").too_old(refusal),
                    replayed(uses::occurrence).below(Ignored),
                    told(
                        "/worker_protocol/server_capabilities/condition_wait_occurrence_identity/supported",
                    ),
                ],
            )
        }
        Feature::CapabilityManifest => built(
            18,
            vec![
                used(
                    "its absence",
                    uses::nothing,
                    Worker(uses::register_without_manifest),
                )
                .from(Invalid("capability_manifest")),
            ],
        ),
        Feature::LocalActivities => needing(
            "local_activities",
            built(
                18,
                vec![
                    command(
                        "record_local_activity",
                        local(json!({})),
                        "ActivityCompleted",
                    )
                    .absent(Invalid("commands.0.type"))
                    .below(Refused(
                        409,
                        "portable_worker_affinity_protocol_floor_unavailable",
                    ))
                    .without(Refused(409, "worker_capability_not_supported")),
                    registers("local_activities")
                        .below(Refused(409, "worker_capability_protocol_floor_mismatch")),
                    told("/worker_protocol/server_capabilities/local_activities/supported"),
                ],
            ),
        ),
        Feature::PortableWorkerSessions => needing(
            "worker_sessions",
            built(
                18,
                vec![
                    command(
                        "worker_session of schedule_activity",
                        act(json!({"worker_session": {"session_id": "s"}})),
                        "ActivityScheduled",
                    )
                    .since(8)
                    .without(Refused(409, "worker_capability_not_supported")),
                    registers("worker_sessions")
                        .below(Refused(409, "worker_capability_protocol_floor_mismatch")),
                ],
            ),
        ),
        Feature::StickyExecution => needing(
            "sticky_execution",
            built(
                18,
                vec![
                    used("sticky_cache", task, Worker(uses::keep))
                        .absent(Ignored)
                        .below(Refused(
                            409,
                            "portable_worker_affinity_protocol_floor_unavailable",
                        ))
                        .without(Refused(409, "worker_capability_not_supported")),
                    registers("sticky_execution")
                        .below(Refused(409, "worker_capability_protocol_floor_mismatch")),
                    told("/worker_protocol/server_capabilities/sticky_execution/supported"),
                ],
            ),
        ),
        Feature::StrictLocalReports => built(
            19,
            vec![
                command(
                    "an unknown key",
                    local(json!({"attempts": [
                        {"attempt_number": 1, "outcome": "completed", "extra": 1},
                    ]})),
                    "ActivityCompleted",
                )
                .since(18)
                .absent(Outcome::Served)
                .from(Invalid("commands.0.attempts.0.extra")),
            ],
        ),
        Feature::DurableSelection => needing(
            "durable_selection",
            built(
                19,
                vec![
                    command("parallel_group_mode", selected(), "ActivityScheduled")
                        .too_old(Invalid("commands.0.parallel_group_mode")),
                    used(
                        "cancel_selection_operation",
                        uses::resolved,
                        Worker(uses::give_up),
                    )
                    .too_old(Invalid("commands.0.type"))
                    .without(Nowhere),
                    replayed(uses::selection_history).without(Ignored),
                ],
            ),
        ),
        Feature::CooperativeCancellation => {
            let policy = Refused(409, "child_cancellation_policy_not_supported");
            let unavailable = Refused(409, "cooperative_cancellation_not_supported");
            let claim = Refused(409, "active_claim_cancellation_not_supported");
            let gated = |use_: Use| use_.too_old(policy).without(policy);
            needing(
                "cooperative_cancellation",
                built(
                    20,
                    vec![
                        used(
                            "request-cancellation",
                            task,
                            Control(uses::request_cancellation),
                        )
                        .absent(unavailable)
                        .without(claim),
                        used(
                            "deliver-cancellation",
                            uses::cancelled,
                            Worker(uses::deliver),
                        )
                        .too_old(unavailable)
                        .without(claim),
                        replayed(uses::cancel_pending)
                            .below(Ignored)
                            .without(Ignored),
                        gated(command(
                            "cancellation_policy of a child",
                            child(json!({"cancellation_policy": "try_cancel"})),
                            "ChildWorkflowScheduled",
                        )),
                        gated(command(
                            "parent_close_policy",
                            child(json!({"parent_close_policy": "request_cancellation"})),
                            "ChildWorkflowScheduled",
                        )),
                        gated(command(
                            "cancellation_policy of an activity",
                            act(json!({"cancellation_policy": "wait_cancellation_completed"})),
                            "ActivityScheduled",
                        )),
                        told("/worker_protocol/server_capabilities/cooperative_cancellation"),
                    ],
                ),
            )
        }
        Feature::ActivityCancellationReceipts => built(
            20,
            vec![
                used(
                    "acknowledge-cancellation",
                    uses::stopped,
                    Worker(uses::acknowledge),
                )
                .too_old(Refused(409, "cooperative_cancellation_not_supported")),
                told("/worker_protocol/server_capabilities/activity_cancellation_acknowledgement"),
            ],
        ),
        Feature::ActivityStatus => built(
            20,
            vec![
                used("status", uses::held_activity, Worker(uses::activity_status))
                    .too_old(Refused(422, "activity_attempt_status_unavailable")),
            ],
        ),
        Feature::PreparedLocalActivities => unbuilt(
            20,
            vec![
                used("prepare", task, Worker(uses::prepare_local))
                    .absent(Refused(409, "prepared_local_activity_not_supported")),
                told("/worker_protocol/server_capabilities/prepared_local_activities"),
            ],
        ),
        Feature::PreparedLocalActivityGroups => unbuilt(
            20,
            vec![
                used("checkpoint-group", task, Worker(uses::checkpoint_group))
                    .absent(Refused(409, "prepared_local_activity_not_supported")),
                told("/worker_protocol/server_capabilities/prepared_local_activity_groups"),
            ],
        ),
        Feature::PreparedLocalActivityPolicies => unbuilt(
            20,
            vec![told(
                "/worker_protocol/server_capabilities/prepared_local_activity_cancellation_policies",
            )],
        ),
        Feature::CancellationScopes => unbuilt(
            20,
            vec![
                used("open", task, Worker(uses::open_scope))
                    .absent(Refused(409, "cancellation_scope_requires_protocol_1_20"))
                    .from(Refused(409, "cancellation_scope_opening_unavailable")),
                command(
                    "cancellation_scope_id",
                    act(json!({"cancellation_scope_id": "inner"})),
                    "",
                )
                .absent(Invalid("commands.0.cancellation_scope_id")),
            ],
        ),
        Feature::QueryTaskAuthority => built(
            20,
            vec![
                used("status", uses::held_query, Worker(uses::query_status)).too_old(unknown_route),
                told("/worker_protocol/server_capabilities/query_task_authority"),
            ],
        ),
        Feature::NexusCooperativeCancellation => unbuilt(
            20,
            vec![told(
                "/worker_protocol/server_capabilities/nexus_cooperative_cancellation",
            )],
        ),
    }
}
