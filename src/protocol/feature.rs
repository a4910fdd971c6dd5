//! What depends on the worker protocol version: every feature with the version that introduced it,
//! and the one place that compares versions on behalf of the rest of the server.

use super::reason::Reason;
use super::version::{Advertised, ProtocolVersion, VersionRefusal, negotiate};

/// What happens to a request that uses a feature below the feature's version.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// It is served: the version only says since when the feature is published.
    Open,
    /// It is refused, or the field is treated as unknown.
    Closed,
}

/// Declares the enum, the list of all features and their versions from one table of
/// `Name: minor, gate`.
macro_rules! features {
    ($($(#[doc = $doc:literal])+ $name:ident: $minor:literal, $gate:ident;)+) => {
        /// Something the worker protocol may offer, finer than an endpoint and coarser than a field.
        ///
        /// Whether this build has it is another question, which
        /// [`Supported`](super::support::Supported) answers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Feature {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Feature {
            /// Every feature, in the order of the table.
            pub const ALL: &[Feature] = &[$(Feature::$name,)+];

            const fn minor(self) -> u64 {
                match self {
                    $(Feature::$name => $minor,)+
                }
            }

            const fn gate(self) -> Gate {
                match self {
                    $(Feature::$name => Gate::$gate,)+
                }
            }
        }
    };
}

features! {
    // Part of every version. They are listed because a build may lack them.

    /// Signals are stored and delivered.
    Signals: 0, Open;
    /// Updates, and the commands that answer them.
    Updates: 0, Open;
    /// Child workflows with their retries, timeouts and close policies.
    ChildWorkflows: 0, Open;
    /// Search attributes defined, set at start and used in list filters.
    SearchAttributes: 0, Open;
    /// Search attributes set by a workflow (`upsert_search_attributes`).
    SearchAttributeUpserts: 0, Open;
    /// Schedules.
    Schedules: 0, Open;
    /// History export as a replay bundle.
    HistoryExport: 0, Open;
    /// Closed runs are removed after their retention.
    HistoryRetention: 0, Open;
    /// Activity retry policies.
    ActivityRetryPolicy: 0, Open;
    /// The four activity timeouts.
    ActivityTimeouts: 0, Open;
    /// Failures and error types that are not retried.
    NonRetryableFailures: 0, Open;
    /// A repeated `poll_request_id` finds the task of the first poll.
    PollRequestIdempotency: 0, Open;
    /// Priority and fairness of tasks within a queue.
    PriorityFairness: 0, Open;
    /// Compressed answers, by `Accept-Encoding`.
    ResponseCompression: 0, Open;
    /// Compressed history pages, by `accept_history_encoding`.
    HistoryCompression: 0, Open;
    /// Activities confirmed and renewed by `renew-lease`.
    ActivityLeaseRenewal: 0, Open;
    /// Deregistration fenced by a token.
    FencedDeregistration: 0, Open;
    /// Trace context stored and passed on.
    ObservabilityContext: 0, Open;
    /// Tasks for workers that are no SDKs, through the external execution manifests.
    ExternalExecution: 0, Open;
    /// The bridge webhook and its outcome contract.
    BridgeAdapters: 0, Open;
    /// Replay verification by the server.
    ReplayVerification: 0, Open;

    // Introduced by a minor of the worker protocol.

    /// Payloads stored elsewhere, to which envelopes refer.
    ExternalPayloads: 3, Open;
    /// Query tasks.
    QueryTasks: 8, Open;
    /// Worker sessions: their endpoints, and `worker_session` on an activity.
    WorkerSessions: 8, Closed;
    /// Conditions awaited inside a workflow (`open_condition_wait`).
    ConditionWaits: 9, Open;
    /// Signals awaited inside a workflow (`open_signal_wait`).
    SignalWaits: 9, Open;
    /// Service operations (`start_service_operation`).
    ServiceOperations: 13, Open;
    /// Updates that a worker validates before they are accepted.
    UpdateValidation: 13, Closed;
    /// Memo changes by a workflow (`upsert_memo`).
    MemoUpserts: 14, Closed;
    /// Ordered message streams into a workflow.
    MessageStreams: 15, Closed;
    /// Declared types on search-attribute changes (`attribute_types`).
    TypedSearchAttributes: 16, Closed;
    /// Occurrence ids on condition waits, and histories that hold them.
    ConditionWaitOccurrenceIdentity: 17, Closed;
    /// The capability manifest of a registration, which is required where it is allowed.
    CapabilityManifest: 18, Closed;
    /// Local activities (`record_local_activity`).
    LocalActivities: 18, Closed;
    /// Worker sessions as a capability that a worker announces.
    PortableWorkerSessions: 18, Closed;
    /// Workers that keep a run in memory and are preferred for its next task.
    StickyExecution: 18, Closed;
    /// Reports of local attempts in which unknown keys are refused.
    StrictLocalReports: 19, Closed;
    /// Selection among operations, decided by the server.
    DurableSelection: 19, Closed;
    /// Cancellation that lets the workflow clean up.
    CooperativeCancellation: 20, Closed;
    /// The report that a cancelled activity's callback has ended.
    ActivityCancellationReceipts: 20, Closed;
    /// The state of an activity attempt, read without renewing it.
    ActivityStatus: 20, Closed;
    /// Local activities that are admitted attempt by attempt.
    PreparedLocalActivities: 20, Closed;
    /// The same for parallel groups.
    PreparedLocalActivityGroups: 20, Closed;
    /// Cancellation policies on prepared local activities.
    PreparedLocalActivityPolicies: 20, Closed;
    /// Cancellation scopes.
    CancellationScopes: 20, Closed;
    /// Query tasks with a deadline that a worker can check.
    QueryTaskAuthority: 20, Closed;
    /// Cancellation with cleanup across service operations.
    NexusCooperativeCancellation: 20, Closed;
}

impl Feature {
    /// The version that introduced the feature: below it as advertised version the feature is not
    /// announced, and in refusals it is the `minimum_protocol_version`.
    #[must_use]
    pub const fn floor(self) -> ProtocolVersion {
        ProtocolVersion::new(1, self.minor())
    }

    /// The capability a worker must have registered to use the feature or to be given a task that
    /// needs it, where there is one.
    #[must_use]
    pub const fn worker_capability(self) -> Option<&'static str> {
        Some(match self {
            Feature::QueryTasks => "query_tasks",
            Feature::UpdateValidation => "update_validation_tasks",
            Feature::MemoUpserts => "memo_upserts",
            Feature::MessageStreams => "message_streams",
            Feature::TypedSearchAttributes => "typed_search_attributes",
            Feature::LocalActivities => "local_activities",
            Feature::PortableWorkerSessions => "worker_sessions",
            Feature::StickyExecution => "sticky_execution",
            Feature::DurableSelection => "durable_selection",
            Feature::CooperativeCancellation => "cooperative_cancellation",
            Feature::PreparedLocalActivities => "prepared_local_activities",
            Feature::PreparedLocalActivityGroups => "prepared_local_activity_groups",
            Feature::PreparedLocalActivityPolicies => {
                "prepared_local_activity_cancellation_policies"
            }
            Feature::NexusCooperativeCancellation => "nexus_cooperative_cancellation",
            _ => return None,
        })
    }

    /// The reason a request gets that uses the feature below its version, where the contract names
    /// one. Without one the use is refused like an unknown command or field.
    #[must_use]
    pub const fn unavailable(self) -> Option<Reason> {
        Some(match self {
            Feature::WorkerSessions => Reason::WorkerSessionsUnavailable,
            Feature::UpdateValidation => Reason::UpdateValidationCapabilityNotAdvertised,
            Feature::MemoUpserts => Reason::WorkflowMemoUpdatesUnavailable,
            Feature::MessageStreams => Reason::MessageStreamsUnavailable,
            Feature::TypedSearchAttributes => Reason::TypedSearchAttributesUnavailable,
            Feature::ConditionWaitOccurrenceIdentity => {
                Reason::ConditionWaitOccurrenceIdentityUnavailable
            }
            Feature::LocalActivities
            | Feature::PortableWorkerSessions
            | Feature::StickyExecution => Reason::PortableWorkerAffinityProtocolFloorUnavailable,
            Feature::CooperativeCancellation => Reason::CooperativeCancellationNotSupported,
            Feature::ActivityStatus => Reason::ActivityAttemptStatusUnavailable,
            Feature::PreparedLocalActivities => Reason::PreparedLocalActivityNotSupported,
            Feature::CancellationScopes => Reason::CancellationScopeRequiresProtocol120,
            _ => return None,
        })
    }
}

/// The versions of one request: what the server advertises and what the request named.
///
/// The rest of the server asks it by feature name and never compares versions itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    advertised: Advertised,
    requested: ProtocolVersion,
}

impl Negotiated {
    /// Negotiates the version of a request from its version header.
    ///
    /// # Errors
    ///
    /// [`VersionRefusal`], see [`negotiate`].
    pub fn new(advertised: &Advertised, header: Option<&str>) -> Result<Self, VersionRefusal> {
        Ok(Self {
            requested: negotiate(advertised, header)?,
            advertised: advertised.clone(),
        })
    }

    /// The version every answer carries.
    #[must_use]
    pub const fn advertised(&self) -> &Advertised {
        &self.advertised
    }

    /// The version the request named, for refusals and for what is stored with a claim.
    #[must_use]
    pub const fn requested(&self) -> &ProtocolVersion {
        &self.requested
    }

    /// Whether the advertised version has the feature: below it, what requests say of it means nothing.
    #[must_use]
    pub fn knows(&self, feature: Feature) -> bool {
        feature.floor() <= *self.advertised.version()
    }

    /// Whether the version of the request lets it use the feature. Negotiation has already bounded
    /// the request by the advertised version, so a feature above that one is never allowed, unless
    /// it is one that no version is refused for.
    #[must_use]
    pub fn allows(&self, feature: Feature) -> bool {
        feature.gate() == Gate::Open || self.requested >= feature.floor()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn at(advertised: &str, requested: &str) -> Negotiated {
        Negotiated::new(&advertised.parse().unwrap(), Some(requested)).unwrap()
    }

    #[test]
    fn gated_features_begin_with_their_version() {
        let gates = [
            (Feature::WorkerSessions, 8),
            (Feature::UpdateValidation, 13),
            (Feature::MemoUpserts, 14),
            (Feature::MessageStreams, 15),
            (Feature::TypedSearchAttributes, 16),
            (Feature::ConditionWaitOccurrenceIdentity, 17),
            (Feature::CapabilityManifest, 18),
            (Feature::LocalActivities, 18),
            (Feature::PortableWorkerSessions, 18),
            (Feature::StickyExecution, 18),
            (Feature::StrictLocalReports, 19),
            (Feature::DurableSelection, 19),
            (Feature::CooperativeCancellation, 20),
            (Feature::ActivityCancellationReceipts, 20),
            (Feature::ActivityStatus, 20),
            (Feature::PreparedLocalActivities, 20),
            (Feature::PreparedLocalActivityGroups, 20),
            (Feature::PreparedLocalActivityPolicies, 20),
            (Feature::CancellationScopes, 20),
            (Feature::QueryTaskAuthority, 20),
            (Feature::NexusCooperativeCancellation, 20),
        ];
        for (feature, minor) in gates {
            assert_eq!(feature.floor(), ProtocolVersion::new(1, minor));
            for requested in 0..=20 {
                let allowed = at("1.20", &format!("1.{requested}")).allows(feature);
                assert_eq!(allowed, requested >= minor, "{feature:?} at 1.{requested}");
            }
        }
        let closed = Feature::ALL
            .iter()
            .filter(|f| f.gate() == Gate::Closed)
            .count();
        assert_eq!(closed, gates.len(), "a gated feature is missing above");
    }

    #[test]
    fn ungated_features_are_served_to_every_version() {
        let oldest = at("1.13", "1.0");
        for feature in [
            Feature::QueryTasks,
            Feature::ConditionWaits,
            Feature::SignalWaits,
            Feature::ServiceOperations,
            Feature::Updates,
        ] {
            assert!(oldest.allows(feature), "{feature:?}");
        }
    }

    #[test]
    fn the_advertised_version_bounds_what_a_request_can_reach() {
        let negotiated = at("1.13", "1.13");
        assert!(negotiated.allows(Feature::WorkerSessions));
        assert!(!negotiated.allows(Feature::MemoUpserts));
        assert!(Negotiated::new(negotiated.advertised(), Some("1.14")).is_err());
    }

    #[test]
    fn no_feature_is_newer_than_the_newest_version() {
        let newest: Advertised = "1.20".parse().unwrap();
        for feature in Feature::ALL {
            assert!(feature.floor() <= *newest.version(), "{feature:?}");
        }
    }
}
