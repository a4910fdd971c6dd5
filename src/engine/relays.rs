//! Relays: what a run told another one is delivered as soon as it is durable, and again by the sweep
//! when that was cut short. Whoever receives one twice takes it once.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::error::{ApplyError, Fault};
use super::{CancellationError, CommandError, CommandTarget, Core, Engine, Swept, runs};
use crate::domain::decision::{Relay, RunWrite};
use crate::domain::ids::RunId;
use crate::domain::run::{CancellationRequest, ChildClosed, CommandKind, Input, ObservedLease};
use crate::store::relays::{self, Waiting};

/// Relays that may wait for delivery; what is over is found by the sweep.
const OUTBOX_BOUND: usize = 16_384;
/// Relays that are removed in one statement.
const TAKEN_BATCH: usize = 256;
/// Relays that a sweep delivers.
const SWEEP_BATCH: i64 = 500;
/// A relay that has waited for so long was left behind.
const LEFT_BEHIND_MS: i64 = 5_000;

/// Where relays go once they are durable.
#[derive(Debug)]
pub(super) struct Outbox {
    waiting: mpsc::Sender<Waiting>,
    taken: mpsc::Sender<(RunId, u64)>,
}

/// The reading ends of an outbox.
pub(super) struct Ends {
    waiting: mpsc::Receiver<Waiting>,
    taken: mpsc::Receiver<(RunId, u64)>,
}

impl Outbox {
    pub fn new() -> (Self, Ends) {
        let (waiting, to_deliver) = mpsc::channel(OUTBOX_BOUND);
        let (taken, to_remove) = mpsc::channel(OUTBOX_BOUND);
        let ends = Ends {
            waiting: to_deliver,
            taken: to_remove,
        };
        (Self { waiting, taken }, ends)
    }

    /// Sends what this write told other runs.
    pub fn send(&self, write: &RunWrite) {
        for (event, relay) in write.effects.relays() {
            let _ = self.waiting.try_send(Waiting {
                from: write.next.id,
                event: *event,
                relay: relay.clone(),
            });
        }
    }
}

/// Delivers relays and removes those that were taken.
pub(super) async fn run(core: Arc<Core>, ends: Ends) {
    let Ends {
        mut waiting,
        mut taken,
    } = ends;
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            relay = waiting.recv() => {
                let Some(relay) = relay else { return };
                let core = Arc::clone(&core);
                core.clone().runtime.spawn(async move { deliver(&core, relay).await });
            }
            count = taken.recv_many(&mut batch, TAKEN_BATCH) => {
                if count == 0 {
                    return;
                }
                if let Err(error) = relays::taken(&core.store.hot, &batch).await {
                    tracing::warn!(error = %error, "relays could not be removed");
                }
                batch.clear();
            }
        }
    }
}

async fn deliver(core: &Arc<Core>, waiting: Waiting) {
    let kind = match &waiting.relay {
        Relay::ChildClosed { .. } => "child_closed",
        Relay::Close { .. } => "close",
        Relay::RequestCancellation { .. } => "request_cancellation",
    };
    let outcome = match take(core, waiting.relay).await {
        Ok(()) => {
            let _ = core.outbox.taken.send((waiting.from, waiting.event)).await;
            "delivered"
        }
        Err(fault) => {
            tracing::warn!(error = %fault, run = %waiting.from, kind, "a relay was not delivered");
            "failed"
        }
    };
    metrics::counter!("dw_relays_total", "kind" => kind, "outcome" => outcome).increment(1);
}

/// Gives a relay to its run. That the run has no use for it is an end too.
async fn take(core: &Arc<Core>, relay: Relay) -> Result<(), Fault> {
    match relay {
        Relay::ChildClosed {
            parent,
            step,
            child,
            outcome,
        } => {
            let closed = ChildClosed {
                step,
                child,
                outcome: *outcome,
            };
            match runs::apply(core, parent, Input::ChildClosed(closed)).await {
                Ok(_) | Err(ApplyError::Refused(_) | ApplyError::NoSuchRun) => Ok(()),
                Err(ApplyError::FenceLost) => Err(Fault::Contended),
                Err(ApplyError::Fault(fault)) => Err(fault),
            }
        }
        Relay::Close {
            namespace,
            workflow_id,
            terminate,
            reason,
        } => {
            let engine = Engine {
                core: Arc::clone(core),
            };
            let target = CommandTarget {
                namespace,
                workflow_id,
                run: None,
            };
            let kind = if terminate {
                CommandKind::Terminate
            } else {
                CommandKind::Cancel
            };
            match engine.close(&target, kind, Some(reason), None).await {
                Ok(_) => Ok(()),
                Err(CommandError::Fault(fault)) => Err(fault),
                Err(_) => Ok(()),
            }
        }
        Relay::RequestCancellation {
            namespace,
            workflow_id,
            context,
        } => {
            let engine = Engine {
                core: Arc::clone(core),
            };
            let target = CommandTarget {
                namespace,
                workflow_id,
                run: None,
            };
            let request = CancellationRequest {
                reason: None,
                cleanup_timeout_seconds: 0,
                parent: Some(context),
                lease: ObservedLease::Unknown,
            };
            match engine.request_cancellation(&target, &request).await {
                // Asked again by the sweep, until a worker that can cooperate holds the task or the
                // time for the cleanup is over.
                Err(CancellationError::ClaimCannotCooperate { .. }) => Err(Fault::Contended),
                Err(CancellationError::Command(CommandError::Fault(fault)))
                    if fault != Fault::Bug =>
                {
                    Err(fault)
                }
                _ => Ok(()),
            }
        }
    }
}

impl Engine {
    /// Delivers relays that were left behind, by a crash or while the database was away: each of them
    /// once, so that those that fail again hold nobody up.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn deliver_left_behind(&self) -> Result<Swept, Fault> {
        let core = &self.core;
        let mut after = None;
        loop {
            let store = &core.store.hot;
            let page = relays::waiting(store, LEFT_BEHIND_MS, after, SWEEP_BATCH).await?;
            let mut delivering = tokio::task::JoinSet::new();
            for relay in page.relays {
                let core = Arc::clone(core);
                delivering.spawn_on(
                    async move { deliver(&core, relay).await },
                    &self.core.runtime,
                );
            }
            while delivering.join_next().await.is_some() {}
            after = page.next;
            if after.is_none() {
                return Ok(Swept {
                    found: 0,
                    next_ms: None,
                });
            }
        }
    }
}
