//! Pollers: each holds one poll, does what the task asks for, reports, and polls again.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::api::{self, ActivityTask, QueryTask, ReadOn, Refused};
use crate::http::{Answer, Connection, Plane};
use crate::shape::{Shape, TIMER_SECONDS, WorkflowTask, fire_lateness};

use super::{AGAIN, Shared, lock, worker};

/// What is polled for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Workflow,
    Activity,
    Query,
}

/// Polls until it is dropped.
pub(super) async fn poll(shared: Arc<Shared>, slot: usize, kind: Kind) {
    let plan = &shared.plan;
    let mut connection = Connection::new(&plan.targets[slot % plan.targets.len()]);
    let at = slot % plan.queues.len();
    let (worker, queue) = (worker(plan, at), &plan.queues[at]);
    let (name, path) = match kind {
        Kind::Workflow => ("workflow poll", "/api/worker/workflow-tasks/poll"),
        Kind::Activity => ("activity poll", "/api/worker/activity-tasks/poll"),
        Kind::Query => ("query poll", "/api/worker/query-tasks/poll"),
    };
    let mut cuts = shared.cut.subscribe();
    // A poll whose answer was lost is repeated under its name, and gets the task that it was given.
    let mut n = 0_u64;
    loop {
        let id = format!("{worker}-{path}-{slot}-{n}");
        let body = api::poll_body(&worker, queue, plan.wait, &id, plan.page);
        let polled = tokio::select! {
            polled = api::call(&mut connection, name, Plane::Worker, "POST", path, &body) => Some(polled),
            () = told_to_cut(&mut cuts, slot) => None,
        };
        let lost = matches!(&polled, Some(Err(refused)) if refused.status == 0);
        n += u64::from(!lost);
        let Some(polled) = polled else {
            connection.cut();
            continue;
        };
        let report = match polled {
            Ok(answer) => prepare(&shared, kind, name, &answer),
            Err(refused) => Err(refused),
        };
        match report {
            Ok(Some(report)) => send_report(&shared, &mut connection, report).await,
            Ok(None) => {}
            Err(refused) => {
                if !shared.bears(&refused) {
                    shared.error(refused);
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Comes back when this poller's turn to vanish has come.
async fn told_to_cut(cuts: &mut tokio::sync::watch::Receiver<u64>, slot: usize) {
    loop {
        if cuts.changed().await.is_err() {
            return std::future::pending().await;
        }
        if *cuts.borrow_and_update() % 2 == slot as u64 % 2 {
            return;
        }
    }
}

/// A report that is ready to be sent, and what follows once it was taken.
struct Report {
    call: &'static str,
    kind: Kind,
    path: String,
    body: String,
    workflow: String,
    run: String,
    shape: Shape,
    ends: bool,
    waits: Option<usize>,
    activities: usize,
    /// Pages of history that the worker reads first.
    pages: Option<ReadOn>,
}

fn prepare(
    shared: &Shared,
    kind: Kind,
    name: &'static str,
    answer: &Answer<'_>,
) -> Result<Option<Report>, Refused> {
    let figures = &shared.figures;
    let plain = |call, (path, body), workflow: &str| Report {
        call,
        kind,
        path,
        body,
        workflow: workflow.to_owned(),
        run: String::new(),
        shape: Shape::Simple,
        ends: false,
        waits: None,
        activities: 0,
        pages: None,
    };
    match kind {
        Kind::Workflow => {
            let Some(task) = api::task::<WorkflowTask<'_>>(name, answer)? else {
                return Ok(None);
            };
            let shape = Shape::of(task.workflow_type)
                .ok_or_else(|| Refused::wrong(name, format!("type {}", task.workflow_type)))?;
            if let Some(waited) = shared.waited(task.workflow_id) {
                let fired = shape == Shape::Timer && task.total_history_events > 2;
                let histogram = if fired {
                    &figures.arrival_lateness
                } else {
                    &figures.workflow_wait
                };
                shared.note(histogram, waited.as_secs_f64());
            }
            if shape == Shape::Timer
                && let Some(late) = fire_lateness(&task.history_events)
                    .map_err(|wrong| Refused::wrong("lateness of a timer", wrong))?
            {
                shared.note(&figures.lateness, late);
            }
            let step = shape
                .step(&task)
                .map_err(|wrong| Refused::wrong("order of events", wrong))?;
            let ahead = if step.timer { TIMER_SECONDS } else { 0 };
            shared.mark(task.workflow_id, Duration::from_secs(ahead));
            let pages = if shared.plan.read_on {
                match lock(&shared.last_pages).get(task.run_id).cloned() {
                    Some(page) => Some(ReadOn::again(&task, page)),
                    None => ReadOn::rest(&task),
                }
            } else if shape.reads_everything() {
                ReadOn::rest(&task)
            } else {
                None
            };
            Ok(Some(Report {
                pages,
                run: task.run_id.to_owned(),
                shape,
                ends: step.ends,
                waits: step.waits,
                activities: step.activities,
                ..plain(
                    "workflow completion",
                    api::complete_workflow(&task, &step.commands),
                    task.workflow_id,
                )
            }))
        }
        Kind::Activity => {
            let Some(task) = api::task::<ActivityTask<'_>>(name, answer)? else {
                return Ok(None);
            };
            if let Some(waited) = shared.waited(task.workflow_id) {
                shared.note(&figures.activity_wait, waited.as_secs_f64());
            }
            shared.note(&figures.claim_call, answer.seconds);
            shared.mark(task.workflow_id, Duration::ZERO);
            Ok(Some(plain(
                "activity completion",
                api::complete_activity(&task),
                task.workflow_id,
            )))
        }
        Kind::Query => {
            let Some(task) = api::task::<QueryTask<'_>>(name, answer)? else {
                return Ok(None);
            };
            Ok(Some(plain(
                "query completion",
                api::complete_query(&task),
                "",
            )))
        }
    }
}

async fn send_report(shared: &Shared, connection: &mut Connection, mut report: Report) {
    let figures = &shared.figures;
    let read_on = shared.plan.read_on;
    let size = if read_on {
        Some(api::CYCLE)
    } else {
        shared.plan.page
    };
    if let Some(from) = report.pages.take() {
        match api::read_on(connection, from, report.shape, size).await {
            Ok(page) if read_on => {
                lock(&shared.last_pages).insert(report.run.clone(), page);
            }
            Ok(_) => {}
            Err(refused) => return shared.error(refused),
        }
    }
    loop {
        let sent = api::call(
            connection,
            report.call,
            Plane::Worker,
            "POST",
            &report.path,
            &report.body,
        )
        .await;
        match sent {
            Ok(answer) => {
                let histogram = match report.kind {
                    Kind::Workflow => &figures.workflow_call,
                    Kind::Activity => &figures.activity_call,
                    Kind::Query => return,
                };
                shared.note(histogram, answer.seconds);
                if report.activities > 1 {
                    let each = answer.seconds / report.activities as f64;
                    shared.note(&figures.scheduling, each);
                }
                break;
            }
            Err(refused) if shared.bears(&refused) => {
                tokio::time::sleep(AGAIN).await;
            }
            // The lease ran out while the server was away: the task is handed out again.
            Err(refused) if shared.plan.killed && matches!(refused.status, 404 | 409) => {
                figures.late_reports.fetch_add(1, Relaxed);
                return;
            }
            Err(refused) => return shared.error(refused),
        }
    }
    if report.kind == Kind::Activity {
        let done = shared.activities.fetch_add(1, Relaxed) + 1;
        if shared.plan.milestone > 0 && done.is_multiple_of(shared.plan.milestone) {
            lock(&shared.milestones).push(Instant::now());
        }
    }
    if report.ends {
        shared.lands(&report.workflow, &report.run, report.shape);
    } else if let Some(wait) = report.waits {
        if report.shape.is_pushed_by_others() {
            lock(&shared.held).push((report.workflow.clone(), report.run.clone()));
        }
        shared.tell(&report.workflow, wait);
    }
}
