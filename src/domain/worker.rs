//! Workers: registrations, what a new one means for an older one, and freshness.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::event::Json;
use super::features;
use super::ids::{Namespace, TaskQueue, WorkerId};
use super::time::Timestamp;

/// Whether a worker may take new tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerStatus {
    /// It may.
    Active,
    /// It finishes what it holds.
    Draining,
}

impl WorkerStatus {
    /// The word on the wire and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
        }
    }
}

/// What a worker says about itself.
#[derive(Clone, Debug)]
pub struct Description {
    /// Queues that it serves; at least one.
    pub queues: Vec<TaskQueue>,
    /// `python`, `rust`, …
    pub runtime: String,
    /// Version of its SDK.
    pub sdk_version: Option<String>,
    /// Its code's version; `None` when it has none.
    pub build_id: Option<Arc<str>>,
    /// Workflow types that it runs.
    pub workflow_types: Arc<[String]>,
    /// Activity types that it runs.
    pub activity_types: Arc<[String]>,
    /// Workflow type → fingerprint of its definition.
    pub fingerprints: BTreeMap<String, String>,
    /// Workflow type → its commands' contracts, a JSON object.
    pub contracts: Option<Json>,
    /// What it can do, as it said it.
    pub capabilities: Vec<String>,
    /// Structured capabilities, a JSON object.
    pub capability_manifest: Option<Json>,
    /// Workflow tasks at once.
    pub max_workflow_tasks: u32,
    /// Activity tasks at once.
    pub max_activity_tasks: u32,
    /// Sessions at once.
    pub max_sessions: u32,
    /// Free slots, a JSON object.
    pub slots: Option<Json>,
    /// About its process, a JSON object.
    pub process_metrics: Option<Json>,
    /// Seconds between its heartbeats, as it means to keep them.
    pub heartbeat_interval_seconds: Option<u32>,
}

/// A registered worker.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Namespace.
    pub namespace: Namespace,
    /// The worker.
    pub worker_id: WorkerId,
    /// Raised by each registration; an older process is told apart by it.
    pub epoch: u64,
    /// Whether it may take new tasks.
    pub status: WorkerStatus,
    /// What it said about itself.
    pub description: Description,
    /// Names this registration when the worker leaves; another one has another.
    pub token: Option<Arc<str>>,
    /// When it registered.
    pub registered_at: Timestamp,
    /// When anything about it changed.
    pub updated_at: Timestamp,
    /// When it was last heard of.
    pub last_heartbeat_at: Timestamp,
}

impl Registration {
    /// The code that it runs for a workflow type: its build and its definition.
    pub fn code_of(&self, workflow_type: &str) -> Arc<str> {
        let said = &self.description;
        let fingerprint = said.fingerprints.get(workflow_type);
        format!(
            "{}\u{1f}{}",
            said.build_id.as_deref().unwrap_or_default(),
            fingerprint.map(String::as_str).unwrap_or_default()
        )
        .into()
    }

    /// Bits of the history features that it says it can replay, see [`features`].
    pub fn knows(&self) -> i64 {
        knows(&self.description.capabilities)
    }

    /// What routing looks at.
    pub fn shape(&self) -> Shape {
        let said = &self.description;
        Shape {
            namespace: self.namespace.clone(),
            queues: said.queues.clone(),
            workflow_types: Arc::clone(&said.workflow_types),
            activity_types: Arc::clone(&said.activity_types),
            build_id: said.build_id.clone(),
            capabilities: said.capabilities.clone(),
        }
    }

    /// Whether it registered a capability of this name.
    pub fn has(&self, capability: &str) -> bool {
        let listed = &self.description.capabilities;
        listed.iter().any(|listed| listed == capability)
    }

    /// Whether it has been silent for too long.
    pub fn is_stale(&self, now: Timestamp, stale_after_seconds: u64) -> bool {
        self.last_heartbeat_at.plus_seconds(stale_after_seconds) <= now
    }
}

fn knows(capabilities: &[String]) -> i64 {
    let says = |name: &str, bit: i64| {
        let listed = capabilities.iter().any(|said| said == name);
        if listed { bit } else { 0 }
    };
    says("memo_upserts", features::MEMO)
        | says("typed_search_attributes", features::TYPED_ATTRIBUTES)
        | says("durable_selection", features::SELECTION)
        | says("message_streams", features::STREAMS)
        | says("cooperative_cancellation", features::CANCELLATION)
        | says("worker_sessions", features::SESSIONS)
}

/// What routing looks at in a worker; the workers of a fleet have few shapes.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Namespace.
    pub namespace: Namespace,
    /// Queues that it serves.
    pub queues: Vec<TaskQueue>,
    /// Workflow types that it runs.
    pub workflow_types: Arc<[String]>,
    /// Activity types that it runs.
    pub activity_types: Arc<[String]>,
    /// Its build.
    pub build_id: Option<Arc<str>>,
    /// What it can do.
    pub capabilities: Vec<String>,
}

impl Shape {
    /// Bits of the history features that it says it can replay.
    pub fn knows(&self) -> i64 {
        knows(&self.capabilities)
    }
}

/// Why a registration is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A live worker of this id runs another definition of this type.
    DefinitionChanged {
        /// The type.
        workflow_type: String,
    },
    /// A live worker of this id named a fingerprint for this type, the new one names others only.
    FingerprintMissing {
        /// The type.
        workflow_type: String,
    },
}

/// What the server adds to a registration.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Whether the worker's build drains.
    pub status: WorkerStatus,
    /// Names the registration.
    pub token: Arc<str>,
}

/// Registers a worker, new or again. A registration is a process boundary: whatever an older one of
/// the same id held is given back by the caller.
///
/// # Errors
/// [`Refused`] when a live worker of the same id runs another workflow definition.
pub fn register(
    existing: Option<&Registration>,
    namespace: Namespace,
    worker_id: WorkerId,
    mut description: Description,
    standing: Standing,
    now: Timestamp,
) -> Result<Registration, Refused> {
    if let Some(old) = existing.filter(|old| old.status == WorkerStatus::Active) {
        let sent = !description.fingerprints.is_empty();
        let kept = |workflow_type: &String| description.workflow_types.contains(workflow_type);
        for workflow_type in old
            .description
            .fingerprints
            .keys()
            .filter(|kind| kept(kind))
        {
            if sent && !description.fingerprints.contains_key(workflow_type) {
                return Err(Refused::FingerprintMissing {
                    workflow_type: workflow_type.clone(),
                });
            }
        }
        for (workflow_type, fingerprint) in &old.description.fingerprints {
            match description.fingerprints.get(workflow_type) {
                Some(new) if new != fingerprint => {
                    return Err(Refused::DefinitionChanged {
                        workflow_type: workflow_type.clone(),
                    });
                }
                None if description.workflow_types.contains(workflow_type) => {
                    description
                        .fingerprints
                        .insert(workflow_type.clone(), fingerprint.clone());
                }
                _ => {}
            }
        }
        if description.contracts.is_none() {
            description.contracts.clone_from(&old.description.contracts);
        }
    }
    Ok(Registration {
        namespace,
        worker_id,
        epoch: existing.map_or(1, |old| old.epoch + 1),
        status: standing.status,
        description,
        token: Some(standing.token),
        registered_at: existing.map_or(now, |old| old.registered_at),
        updated_at: now,
        last_heartbeat_at: now,
    })
}

/// What a heartbeat changes; a field that was not sent stays.
#[derive(Clone, Debug, Default)]
pub struct Beat {
    /// Free slots, a JSON object; keys that it does not name stay.
    pub slots: Option<String>,
    /// About the process, a JSON object.
    pub process_metrics: Option<String>,
    /// Seconds between heartbeats.
    pub heartbeat_interval_seconds: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(fingerprints: &[(&str, &str)]) -> Description {
        Description {
            queues: vec!["q".into()],
            runtime: "python".to_owned(),
            sdk_version: None,
            build_id: None,
            workflow_types: vec!["a".to_owned(), "b".to_owned()].into(),
            activity_types: Arc::new([]),
            fingerprints: fingerprints
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            contracts: None,
            capabilities: Vec::new(),
            capability_manifest: None,
            max_workflow_tasks: 1,
            max_activity_tasks: 1,
            max_sessions: 1,
            slots: None,
            process_metrics: None,
            heartbeat_interval_seconds: None,
        }
    }

    fn standing(status: WorkerStatus) -> Standing {
        Standing {
            status,
            token: "t".into(),
        }
    }

    fn again(old: &Registration, fingerprints: &[(&str, &str)]) -> Result<Registration, Refused> {
        register(
            Some(old),
            "default".into(),
            "w".into(),
            description(fingerprints),
            standing(old.status),
            Timestamp::from_micros(2),
        )
    }

    #[test]
    fn another_definition_under_a_live_id_is_refused() -> Result<(), Refused> {
        let first = register(
            None,
            "default".into(),
            "w".into(),
            description(&[("a", "1"), ("b", "1")]),
            standing(WorkerStatus::Active),
            Timestamp::from_micros(1),
        )?;
        assert_eq!(first.epoch, 1);
        let refused = again(&first, &[("a", "2"), ("b", "1")]).err();
        assert_eq!(
            refused,
            Some(Refused::DefinitionChanged {
                workflow_type: "a".to_owned()
            })
        );
        let refused = again(&first, &[("a", "1")]).err();
        assert_eq!(
            refused,
            Some(Refused::FingerprintMissing {
                workflow_type: "b".to_owned()
            })
        );
        let kept = again(&first, &[])?;
        assert_eq!(kept.epoch, 2);
        assert_eq!(kept.description.fingerprints.len(), 2);
        let draining = Registration {
            status: WorkerStatus::Draining,
            ..first
        };
        assert_eq!(
            again(&draining, &[("a", "2")])?.status,
            WorkerStatus::Draining
        );
        Ok(())
    }

    #[test]
    fn silence_is_inclusive() -> Result<(), Refused> {
        let worker = register(
            None,
            "d".into(),
            "w".into(),
            description(&[]),
            standing(WorkerStatus::Active),
            Timestamp::from_micros(0),
        )?;
        assert!(!worker.is_stale(Timestamp::from_micros(59_999_999), 60));
        assert!(worker.is_stale(Timestamp::from_micros(60_000_000), 60));
        Ok(())
    }
}
