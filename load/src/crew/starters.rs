//! Starters: each keeps one workflow open, or starts one whenever it is time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::api;
use crate::http::{Connection, Target};
use crate::payload::{Chance, text_blob};
use crate::shape::{SIGNAL_BYTES, Shape};

use super::{AGAIN, Flight, Plan, Shared, Stage};

fn target(plan: &Plan, slot: usize) -> &Target {
    let targets = plan.started_at.as_ref().unwrap_or(&plan.targets);
    &targets[slot % targets.len()]
}

/// Keeps one workflow open.
pub(super) async fn keep_open(shared: Arc<Shared>, slot: usize) {
    let plan = &shared.plan;
    let mut connection = Connection::new(target(plan, slot));
    let queue = &plan.queues[slot % plan.queues.len()];
    while shared.starting.load(Relaxed) {
        let (sender, mut stages) = mpsc::unbounded_channel();
        let n = shared.next.fetch_add(1, Relaxed);
        if n >= plan.limit {
            return;
        }
        let shape = shared.shape(n);
        let workflow = format!("{}-{n}", plan.name);
        let now = Instant::now();
        let begun = start(
            &shared,
            &mut connection,
            (n, shape, &workflow),
            queue,
            now,
            Some(sender),
        );
        if !begun.await {
            continue;
        }
        while let Some(stage) = stages.recv().await {
            let wait = match stage {
                Stage::Done => break,
                Stage::Waits(wait) => wait,
            };
            if plan.leave_open {
                break;
            }
            if shape.is_pushed_by_others() {
                continue;
            }
            push_on(&shared, &mut connection, &workflow, wait).await;
        }
    }
}

/// Sends the signal that a workflow waits for.
async fn push_on(shared: &Shared, connection: &mut Connection, workflow: &str, wait: usize) {
    let blob = text_blob(&Chance::new(wait as u64 + 1).text(SIGNAL_BYTES));
    let (name, request) = (format!("s{wait}"), format!("{workflow}-s{wait}"));
    shared.mark(workflow, Duration::ZERO);
    loop {
        match api::signal(connection, workflow, &name, &blob, &request).await {
            Ok(seconds) => return shared.note(&shared.figures.signal_call, seconds),
            Err(refused) if shared.bears(&refused) => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(refused) => return shared.error(refused),
        }
    }
}

async fn start(
    shared: &Shared,
    connection: &mut Connection,
    (n, shape, workflow): (u64, Shape, &str),
    queue: &str,
    scheduled: Instant,
    starter: Option<mpsc::UnboundedSender<Stage>>,
) -> bool {
    let counted = shared.window.load(Relaxed);
    shared.takes_off(
        workflow,
        Flight {
            n,
            scheduled,
            mark: Instant::now(),
            counted,
            starter,
        },
    );
    let mut tried = false;
    loop {
        match api::start(connection, workflow, shape, queue, shared.input(shape, n)).await {
            Ok((_, seconds)) => {
                shared.note(&shared.figures.start_call, seconds);
                return true;
            }
            // An earlier try was faster than its answer.
            Err(refused) if tried && refused.reason == "instance_already_started" => return true,
            Err(refused) if refused.status == 0 && shared.bears(&refused) => {
                tried = true;
                tokio::time::sleep(AGAIN).await;
            }
            Err(refused) => {
                shared.did_not_take_off(workflow);
                if !shared.bears(&refused) {
                    shared.error(refused);
                }
                tokio::time::sleep(AGAIN).await;
                return false;
            }
        }
    }
}

/// Takes tickets, each with a time, and starts a workflow then.
pub(super) async fn at_rate(
    shared: Arc<Shared>,
    slot: usize,
    rate: f64,
    began: Instant,
    ticket: Arc<AtomicU64>,
) {
    let plan = &shared.plan;
    let mut connection = Connection::new(target(plan, slot));
    loop {
        let n = ticket.fetch_add(1, Relaxed);
        let scheduled = began + Duration::from_secs_f64(n as f64 / rate);
        tokio::time::sleep_until(scheduled.into()).await;
        if !shared.starting.load(Relaxed) {
            return;
        }
        let shape = shared.shape(n);
        let workflow = format!("{}-{n}", plan.name);
        let queue = &plan.queues[(n % plan.queues.len() as u64) as usize];
        start(
            &shared,
            &mut connection,
            (n, shape, &workflow),
            queue,
            scheduled,
            None,
        )
        .await;
    }
}
