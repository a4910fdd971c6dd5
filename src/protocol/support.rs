//! What this build of the server really does, whole. Capability documents are computed from it, so
//! they stay true; a finished feature becomes visible by one more line in `BUILD`.

use super::feature::Feature;
use super::version::Advertised;

/// The features this build implements completely. Nothing else may be announced: the SDKs act on an
/// announcement, and half a feature is worse for them than none.
const BUILD: &[Feature] = &[
    Feature::Signals,
    Feature::Updates,
    Feature::ChildWorkflows,
    Feature::SearchAttributeUpserts,
    Feature::HistoryExport,
    Feature::HistoryRetention,
    Feature::ActivityRetryPolicy,
    Feature::ActivityTimeouts,
    Feature::NonRetryableFailures,
    Feature::QueryTasks,
    Feature::ResponseCompression,
    Feature::HistoryCompression,
    Feature::WorkerSessions,
    Feature::PortableWorkerSessions,
    Feature::StickyExecution,
    Feature::ConditionWaits,
    Feature::SignalWaits,
    Feature::UpdateValidation,
    Feature::MemoUpserts,
    Feature::MessageStreams,
    Feature::TypedSearchAttributes,
    Feature::ConditionWaitOccurrenceIdentity,
    Feature::CapabilityManifest,
    Feature::LocalActivities,
    Feature::StrictLocalReports,
    Feature::DurableSelection,
    Feature::CooperativeCancellation,
    Feature::ActivityCancellationReceipts,
    Feature::ActivityStatus,
    Feature::QueryTaskAuthority,
    Feature::PollRequestIdempotency,
    Feature::PriorityFairness,
    Feature::FencedDeregistration,
];

/// A set of features; by default those of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supported {
    /// One bit per feature, at the feature's place in [`Feature::ALL`].
    bits: u64,
}

// One bit per feature has to be enough.
const _: () = assert!(Feature::ALL.len() <= u64::BITS as usize);

impl Supported {
    /// The features of this build.
    #[must_use]
    pub const fn build() -> Self {
        Self::of(BUILD)
    }

    /// Exactly these features.
    #[must_use]
    pub const fn of(features: &[Feature]) -> Self {
        let mut set = Self { bits: 0 };
        let mut at = 0;
        while at < features.len() {
            set = set.with(features[at]);
            at += 1;
        }
        set
    }

    /// The set and one more feature.
    #[must_use]
    pub const fn with(self, feature: Feature) -> Self {
        Self {
            bits: self.bits | 1 << feature as u64,
        }
    }

    /// The set less one feature, for features that the configuration switches off.
    #[must_use]
    pub const fn without(self, feature: Feature) -> Self {
        Self {
            bits: self.bits & !(1 << feature as u64),
        }
    }

    /// Whether the feature is implemented, at whatever version.
    #[must_use]
    pub const fn has(self, feature: Feature) -> bool {
        self.bits & 1 << feature as u64 != 0
    }

    /// Whether a server that advertises this version announces the feature: it must be implemented,
    /// and the advertised version must know it.
    #[must_use]
    pub fn offers(self, advertised: &Advertised, feature: Feature) -> bool {
        self.has(feature) && feature.floor() <= *advertised.version()
    }

    /// The commands a workflow task may be completed with, in the order they are announced
    /// (`supported_workflow_task_commands`).
    pub fn commands(self, advertised: &Advertised) -> impl Iterator<Item = &'static str> {
        COMMANDS
            .iter()
            .filter(move |(_, needed)| needed.is_none_or(|needed| self.offers(advertised, needed)))
            .map(|(command, _)| *command)
    }
}

impl Default for Supported {
    fn default() -> Self {
        Self::build()
    }
}

/// Every command of the protocol with the feature that brings it; the core has none.
const COMMANDS: &[(&str, Option<Feature>)] = &[
    ("complete_workflow", None),
    ("fail_workflow", None),
    ("continue_as_new", None),
    ("schedule_activity", None),
    ("start_timer", None),
    ("start_child_workflow", Some(Feature::ChildWorkflows)),
    ("start_service_operation", Some(Feature::ServiceOperations)),
    ("complete_update", Some(Feature::Updates)),
    ("fail_update", Some(Feature::Updates)),
    ("record_side_effect", None),
    ("record_version_marker", None),
    (
        "upsert_search_attributes",
        Some(Feature::SearchAttributeUpserts),
    ),
    ("open_condition_wait", Some(Feature::ConditionWaits)),
    ("open_signal_wait", Some(Feature::SignalWaits)),
    ("upsert_memo", Some(Feature::MemoUpserts)),
    ("record_local_activity", Some(Feature::LocalActivities)),
    (
        "cancel_selection_operation",
        Some(Feature::DurableSelection),
    ),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn commands(supported: Supported, advertised: &str) -> Vec<&'static str> {
        supported.commands(&advertised.parse().unwrap()).collect()
    }

    #[test]
    fn each_feature_is_its_own_bit() {
        for (place, feature) in Feature::ALL.iter().enumerate() {
            assert_eq!(*feature as usize, place);
            let single = Supported::of(&[*feature]);
            assert!(
                Feature::ALL
                    .iter()
                    .all(|other| single.has(*other) == (other == feature))
            );
            assert_eq!(single.without(*feature), Supported::of(&[]));
        }
    }

    #[test]
    fn the_core_commands_need_no_feature() {
        let core = [
            "complete_workflow",
            "fail_workflow",
            "continue_as_new",
            "schedule_activity",
            "start_timer",
            "record_side_effect",
            "record_version_marker",
        ];
        assert_eq!(commands(Supported::of(&[]), "1.20"), core);
    }

    #[test]
    fn each_feature_of_the_build_is_listed_once() {
        for (place, feature) in BUILD.iter().enumerate() {
            assert!(!BUILD[..place].contains(feature), "{feature:?}");
        }
    }

    #[test]
    fn commands_appear_with_their_version() {
        let all = Supported::of(Feature::ALL);
        assert_eq!(commands(all, "1.20").len(), 17);
        assert_eq!(commands(all, "1.13").len(), 14);
        for (command, first) in [
            ("open_condition_wait", 9),
            ("start_service_operation", 13),
            ("upsert_memo", 14),
            ("record_local_activity", 18),
            ("cancel_selection_operation", 19),
        ] {
            assert!(commands(all, &format!("1.{first}")).contains(&command));
            assert!(!commands(all, &format!("1.{}", first - 1)).contains(&command));
        }
    }

    #[test]
    fn a_feature_is_offered_when_it_is_built_and_known() {
        let without_memo = Supported::build().without(Feature::MemoUpserts);
        let newest: Advertised = "1.20".parse().unwrap();
        assert!(without_memo.offers(&newest, Feature::Signals));
        assert!(!without_memo.offers(&newest, Feature::MemoUpserts));
        let with_memo = without_memo.with(Feature::MemoUpserts);
        assert!(with_memo.offers(&newest, Feature::MemoUpserts));
        assert!(!with_memo.offers(&Advertised::default(), Feature::MemoUpserts));
    }
}
