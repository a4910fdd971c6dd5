//! What workers declared of their workflow types: the names of queries, signals and updates.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;

use super::Engine;
use super::error::Fault;
use crate::domain::ids::Namespace;
use crate::domain::run::{Contract, RunState};
use crate::domain::worker::Registration;
use crate::store::workers;

/// Types that are remembered; beyond this everything is forgotten and learned again.
const KEPT: usize = 20_000;
/// Workers of a queue that are looked at when nothing is remembered of a type.
const WORKERS_READ: i64 = 200;

/// Contracts by namespace and workflow type, as the youngest registration told them.
#[derive(Debug, Default)]
pub(super) struct Contracts(Mutex<HashMap<Namespace, HashMap<String, Contract>>>);

impl Contracts {
    fn map(&self) -> MutexGuard<'_, HashMap<Namespace, HashMap<String, Contract>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn learn(&self, worker: &Registration) {
        let told = contracts(worker);
        if told.is_empty() {
            return;
        }
        let mut map = self.map();
        if map.values().map(HashMap::len).sum::<usize>() >= KEPT {
            map.clear();
        }
        map.entry(worker.namespace.clone())
            .or_default()
            .extend(told);
    }

    /// Another node has heard of a worker of this namespace.
    pub fn forget(&self, namespace: &Namespace) {
        self.map().remove(namespace);
    }

    pub fn known(&self, namespace: &Namespace, workflow_type: &str) -> Option<Contract> {
        self.map().get(namespace)?.get(workflow_type).cloned()
    }
}

#[derive(Deserialize)]
struct Told {
    queries: Option<Vec<Arc<str>>>,
    signals: Option<Vec<Arc<str>>>,
    updates: Option<Vec<Arc<str>>>,
    update_validators: Option<Vec<Arc<str>>>,
}

fn contracts(worker: &Registration) -> HashMap<String, Contract> {
    let told: BTreeMap<String, Told> = worker
        .description
        .contracts
        .as_ref()
        .and_then(|contracts| serde_json::from_str(contracts.get()).ok())
        .unwrap_or_default();
    let list = |names: Option<Vec<Arc<str>>>| names.map(Arc::from);
    told.into_iter()
        .map(|(workflow_type, told)| {
            let contract = Contract {
                queries: list(told.queries),
                signals: list(told.signals),
                updates: list(told.updates),
                update_validators: list(told.update_validators),
            };
            (workflow_type, contract)
        })
        .collect()
}

impl Engine {
    /// What the workers of a type have told this node; nothing when it has not heard of any.
    pub fn remembered_contract(&self, namespace: &Namespace, workflow_type: &str) -> Contract {
        let known = self.core.contracts.known(namespace, workflow_type);
        known.unwrap_or_default()
    }

    /// The contract of a run's type: of its workers now, else of those when it began.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn contract(&self, state: &RunState) -> Result<Contract, Fault> {
        let begun = &state.begun;
        let known =
            |core: &super::Core| core.contracts.known(&begun.namespace, &begun.workflow_type);
        if let Some(contract) = known(&self.core) {
            return Ok(contract);
        }
        let workers = workers::list(
            &self.core.store.reads,
            &begun.namespace,
            Some(&begun.queue),
            WORKERS_READ,
        )
        .await?;
        for worker in &workers {
            self.core.contracts.learn(worker);
        }
        Ok(known(&self.core).unwrap_or_else(|| begun.contract.clone()))
    }
}
