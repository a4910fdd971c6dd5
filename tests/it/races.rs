//! Requests that meet: whatever the order, one outcome, and every answer tells the truth about it.

use serde_json::{Value, json};

use crate::support::{Client, TestServer, envelope, text};

const ENDS: [&str; 5] = [
    "WorkflowCompleted",
    "WorkflowFailed",
    "WorkflowCancelled",
    "WorkflowTerminated",
    "WorkflowContinuedAsNew",
];

/// Two clients, each of a node of its own on one database.
async fn two_nodes() -> (TestServer, leasehold::node::Node, [Client; 2]) {
    let server = TestServer::start().await;
    let (other, there) = server.other_node().await;
    let clients = [server.client.clone(), there];
    (server, other, clients)
}

fn ends(events: &[String]) -> Vec<&str> {
    events
        .iter()
        .map(String::as_str)
        .filter(|kind| ENDS.contains(kind))
        .collect()
}

/// Rule: a completion and a cancel of the same run: one closes it, the other is told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_meets_a_cancel() {
    let (server, other, [here, there]) = two_nodes().await;
    here.register("w", "q", &["flow"], &[]).await;
    let mut outcomes = [0, 0];
    for n in 0..20 {
        let id = format!("wf{n}");
        let run = here.start(&id, "flow", "q").await;
        let task = here.poll("workflow", "w", "q", 5).await;
        let path = format!("/workflows/{id}/cancel");
        let complete = here.complete(&task, json!([{"type": "complete_workflow"}]));
        let (completed, cancelled) =
            futures_util::future::join(complete, there.post(&path, json!({}))).await;
        let completed = completed.expect(200);
        let events = there.events(&id, &run).await;
        let described = there.get(&format!("/workflows/{id}")).await.expect(200);
        if completed["recorded"] == true {
            cancelled.refused(409, "run_not_active");
            assert_eq!(ends(&events), ["WorkflowCompleted"]);
            assert_eq!(described["status"], "completed");
            outcomes[0] += 1;
        } else {
            cancelled.expect(200);
            assert_eq!(completed["outcome"], "ignored");
            assert_eq!(ends(&events), ["WorkflowCancelled"]);
            assert_eq!(described["status"], "cancelled");
            outcomes[1] += 1;
        }
        assert!(ENDS.contains(&events.last().unwrap().as_str()));
    }
    assert_eq!(outcomes[0] + outcomes[1], 20);
    other.stop().await;
    server.stop().await;
}

/// Rule: an activity's outcome and a terminate: the outcome is recorded before the end, or refused.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_meets_a_terminate() {
    let (server, other, [here, there]) = two_nodes().await;
    for n in 0..20 {
        let id = format!("wf{n}");
        let activity = here.activity_of(&id, json!({})).await;
        let path = format!("/workflows/{id}/terminate");
        let complete = here.report(&activity, "complete", json!({"result": n}));
        let (completed, terminated) =
            futures_util::future::join(complete, there.post(&path, json!({}))).await;
        terminated.expect(200);
        let events = here.events(&id, text(&activity, "run_id")).await;
        let recorded = events.iter().any(|kind| kind == "ActivityCompleted");
        match completed.status.as_u16() {
            200 => assert!(recorded && completed.body["recorded"] == true, "{events:?}"),
            _ => {
                completed.refused(409, "run_terminated");
                assert!(!recorded, "{events:?}");
            }
        }
        assert_eq!(events.last().unwrap(), "WorkflowTerminated");
        let cancelled = events
            .iter()
            .filter(|kind| *kind == "ActivityCancelled")
            .count();
        assert_eq!(cancelled, usize::from(!recorded));
    }
    other.stop().await;
    server.stop().await;
}

/// Rule: every signal that was accepted is in the history of a run of its workflow, once; every one
/// that was refused is not.
#[tokio::test(flavor = "multi_thread")]
async fn signals_meet_the_tasks_of_their_run() {
    let (server, other, clients) = two_nodes().await;
    let here = &clients[0];
    here.register("w", "q", &["flow"], &[]).await;
    here.start("wf", "flow", "q").await;
    let send = |n: usize| {
        let client = clients[n % 2].clone();
        async move {
            client
                .post(
                    &format!("/workflows/wf/signal/s{n}"),
                    json!({"request_id": format!("k{n}")}),
                )
                .await
        }
    };
    let work = async {
        let mut runs = Vec::new();
        for n in 0..12 {
            let task = here.poll("workflow", "w", "q", 5).await;
            if task.is_null() {
                break;
            }
            if runs.last() != Some(&task["run_id"]) {
                runs.push(task["run_id"].clone());
            }
            let commands = match n {
                11 => json!([{"type": "complete_workflow"}]),
                _ if n % 4 == 3 => json!([{"type": "continue_as_new"}]),
                _ => json!([]),
            };
            clients[n % 2].complete(&task, commands).await.expect(200);
        }
        runs
    };
    let sends = async {
        let mut answers = Vec::new();
        for group in 0..15 {
            answers
                .extend(futures_util::future::join_all((0..4).map(|n| send(group * 4 + n))).await);
        }
        answers
    };
    let (runs, answers) = futures_util::future::join(work, sends).await;
    let mut accepted = Vec::new();
    for (n, answer) in answers.into_iter().enumerate() {
        if answer.status == 202 {
            accepted.push(format!("s{n}"));
        } else {
            answer.refused(409, "run_not_active");
        }
    }
    // Whatever waits for a task that nobody has taken is recorded before the end.
    if here.get("/workflows/wf").await.expect(200)["is_terminal"] == false {
        here.post("/workflows/wf/terminate", json!({}))
            .await
            .expect(200);
    }
    let listed = here.get("/workflows/wf/runs").await.expect(200);
    assert!(listed["runs"].as_array().unwrap().len() >= runs.len());
    let mut recorded = Vec::new();
    for row in listed["runs"].as_array().unwrap() {
        for event in here.history("wf", text(row, "run_id")).await {
            if event["event_type"] == "SignalReceived" {
                recorded.push(text(&event["payload"], "signal_name").to_owned());
            }
        }
    }
    let order = recorded.clone();
    recorded.sort_unstable();
    accepted.sort_unstable();
    assert_eq!(recorded, accepted, "{order:?}");
    other.stop().await;
    server.stop().await;
}

/// Rule: the same report at two nodes at once is applied once, and both are told of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_reaches_two_nodes() {
    let (server, other, clients) = two_nodes().await;
    let here = &clients[0];
    for n in 0..10 {
        let id = format!("wf{n}");
        let activity = here.activity_of(&id, json!({})).await;
        let reports =
            (0..6).map(|n| clients[n % 2].report(&activity, "complete", json!({"result": 1})));
        let answers = futures_util::future::join_all(reports).await;
        let bodies: Vec<Value> = answers
            .into_iter()
            .map(|answer| answer.expect(200))
            .collect();
        assert_eq!(
            bodies
                .iter()
                .filter(|body| body["duplicate"] == false)
                .count(),
            1
        );
        assert!(
            bodies
                .iter()
                .all(|body| body["next_task_id"] == bodies[0]["next_task_id"])
        );
        let task = clients[1].poll("workflow", &id, &id, 5).await;
        let finish = json!([{"type": "complete_workflow", "result": envelope(json!(n))}]);
        let reports = (0..6).map(|n| clients[n % 2].complete(&task, finish.clone()));
        let answers = futures_util::future::join_all(reports).await;
        let bodies: Vec<Value> = answers
            .into_iter()
            .map(|answer| answer.expect(200))
            .collect();
        assert_eq!(
            bodies
                .iter()
                .filter(|body| body["duplicate"] == false)
                .count(),
            1
        );
        assert_eq!(
            ends(&here.events(&id, text(&task, "run_id")).await),
            ["WorkflowCompleted"]
        );
    }
    other.stop().await;
    server.stop().await;
}

/// Rule: starts of one id at two nodes make one run.
#[tokio::test(flavor = "multi_thread")]
async fn starts_reach_two_nodes() {
    let (server, other, clients) = two_nodes().await;
    for id in ["a", "b", "c"] {
        let body =
            json!({"workflow_id": id, "workflow_type": "flow", "duplicate_policy": "use-existing"});
        let starts = (0..12).map(|n| clients[n % 2].post("/workflows", body.clone()));
        let answers = futures_util::future::join_all(starts).await;
        assert_eq!(
            answers.iter().filter(|answer| answer.status == 201).count(),
            1
        );
        for answer in &answers {
            assert_eq!(answer.body["run_id"], answers[0].body["run_id"]);
            assert!(
                answer.status == 200 || answer.status == 201,
                "{:#}",
                answer.body
            );
        }
    }
    assert_eq!(
        clients[1].get("/workflows").await.expect(200)["workflow_count"],
        3
    );
    other.stop().await;
    server.stop().await;
}

/// Rule: a worker that registers again and again while it polls never holds a task twice, and every
/// task is handed out.
#[tokio::test(flavor = "multi_thread")]
async fn registrations_meet_polls() {
    let (server, other, clients) = two_nodes().await;
    let here = &clients[0];
    here.register("w", "q", &["flow"], &[]).await;
    let finished = std::sync::atomic::AtomicUsize::new(0);
    let started = async {
        for n in 0..20 {
            here.start(&format!("wf{n}"), "flow", "q").await;
        }
    };
    let registering = async {
        for n in 0..10 {
            clients[n % 2].register("w", "q", &["flow"], &[]).await;
        }
    };
    let work = async |client: &Client| {
        for _ in 0..400 {
            if finished.load(std::sync::atomic::Ordering::Relaxed) == 20 {
                return;
            }
            let task = client.poll("workflow", "w", "q", 1).await;
            if task.is_null() {
                continue;
            }
            let answer = client
                .complete(&task, json!([{"type": "complete_workflow"}]))
                .await;
            if answer.status == 200 {
                assert_eq!(answer.body["recorded"], true);
                if answer.body["duplicate"] == false {
                    finished.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            } else {
                // Its registration came between the hand-out and the report.
                assert_eq!(answer.status, 409, "{:#}", answer.body["reason"]);
            }
        }
    };
    futures_util::future::join4(started, registering, work(here), work(&clients[1])).await;
    assert_eq!(finished.load(std::sync::atomic::Ordering::Relaxed), 20);
    for n in 0..20 {
        let described = here.get(&format!("/workflows/wf{n}")).await.expect(200);
        assert_eq!(described["status"], "completed");
    }
    other.stop().await;
    server.stop().await;
}

/// Rule: different reports under one fence: one is recorded, and the others are told which.
#[tokio::test(flavor = "multi_thread")]
async fn contradicting_reports_meet() {
    let (server, other, clients) = two_nodes().await;
    let here = &clients[0];
    here.register("w", "q", &["flow"], &[]).await;
    for n in 0..10 {
        let id = format!("wf{n}");
        let run = here.start(&id, "flow", "q").await;
        let task = here.poll("workflow", "w", "q", 5).await;
        let reports = (0..6).map(|n| {
            let result = envelope(json!(n));
            clients[n % 2].complete(
                &task,
                json!([{"type": "complete_workflow", "result": result}]),
            )
        });
        let answers = futures_util::future::join_all(reports).await;
        let (taken, refused): (Vec<_>, Vec<_>) = answers
            .into_iter()
            .enumerate()
            .partition(|(_, answer)| answer.status == 200);
        assert_eq!(taken.len(), 1);
        for (_, answer) in refused {
            let body = answer.refused(409, "task_not_leased");
            assert_eq!(body["recorded"], false);
        }
        let described = there_is_one_end(here, &id, &run).await;
        assert_eq!(described["output"], taken[0].0);
    }
    other.stop().await;
    server.stop().await;
}

async fn there_is_one_end(client: &Client, id: &str, run: &str) -> Value {
    assert_eq!(ends(&client.events(id, run).await), ["WorkflowCompleted"]);
    client.get(&format!("/workflows/{id}")).await.expect(200)
}
