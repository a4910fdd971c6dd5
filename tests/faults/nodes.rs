//! Two nodes on one database: no node is special, and what one of them does the other heeds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold::node::Node;
use serde_json::{Value, json};
use sqlx::Connection;

use crate::raw;
use crate::support::{Client, TestServer, eventually, settings, text};

/// How soon one node must heed the other, in the middle of many tries.
const AT_ONCE: Duration = Duration::from_millis(250);

struct Two {
    first: TestServer,
    second: Node,
    second_url: String,
    a: Client,
    b: Client,
}

impl Two {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl Fn(&mut leasehold::config::Settings)) -> Self {
        let first = TestServer::with(&change).await;
        let mut settings = settings();
        change(&mut settings);
        let second = Node::start(settings, first.db.options.clone())
            .await
            .expect("the second node");
        let second_url = format!("http://{}", second.address());
        Self {
            a: first.client.clone(),
            b: Client::new(&second_url, "1.13"),
            first,
            second,
            second_url,
        }
    }

    async fn until_parked(&self, on_first: usize, on_second: usize) {
        eventually("polls are parked", 5, async || {
            let parked = (
                self.first.node.engine().parked_polls(),
                self.second.engine().parked_polls(),
            );
            (parked == (on_first, on_second)).then_some(())
        })
        .await;
    }

    async fn stop(self) {
        self.second.stop().await;
        self.first.stop().await;
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn finish() -> Value {
    json!([{"type": "complete_workflow"}])
}

fn schedule() -> Value {
    json!([{"type": "schedule_activity", "activity_type": "hello"}])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_one_node_wakes_a_poll_that_is_parked_on_the_other() {
    let two = Two::start().await;
    // Registered on one node, polling on the other.
    two.a.register("w", "q", &["greet"], &[]).await;
    let mut times = Vec::new();
    for round in 0..21 {
        let waiting = raw::poll(&two.second_url, "workflow", "w", &["q"], 20).await;
        two.until_parked(0, 1).await;
        let began = Instant::now();
        two.a.start(&format!("wf-{round}"), "greet", "q").await;
        let (status, mut body) = waiting.answer(Duration::from_secs(5)).await.unwrap();
        times.push(began.elapsed());
        assert_eq!(status, 200);
        let task = body["task"].take();
        assert_eq!(task["workflow_task_attempt"], 1);
        // Claimed on one node, completed on the other.
        two.a.complete(&task, finish()).await.expect(200);
    }
    let (middle, worst) = (median(times.clone()), times.into_iter().max().unwrap());
    println!(
        "start on one node to a poll on the other: p50 {:.1} ms, worst {:.1} ms",
        middle.as_secs_f64() * 1_000.0,
        worst.as_secs_f64() * 1_000.0
    );
    assert!(middle < AT_ONCE, "{middle:?}");
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_on_one_node_ends_the_older_process_s_poll_on_the_other() {
    let two = Two::start().await;
    two.a.register("w", "q", &["greet"], &[]).await;
    let waiting = raw::poll(&two.second_url, "workflow", "w", &["q"], 30).await;
    two.until_parked(0, 1).await;
    let began = Instant::now();
    two.a.register("w", "q", &["greet"], &[]).await;
    let (status, body) = waiting.answer(Duration::from_secs(2)).await.unwrap();
    println!(
        "registration to the end of the older poll elsewhere: {:.1} ms",
        began.elapsed().as_secs_f64() * 1_000.0
    );
    assert_eq!(status, 200);
    assert_eq!(body["poll_status"], "stale_worker_registration");
    // Its successor polls there.
    let waiting = raw::poll(&two.second_url, "workflow", "w", &["q"], 30).await;
    two.until_parked(0, 1).await;
    two.a.start("wf", "greet", "q").await;
    let (_, body) = waiting.answer(Duration::from_secs(5)).await.unwrap();
    assert_eq!(body["task"]["workflow_id"], "wf");
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_older_process_held_through_one_node_is_given_back_by_a_registration_on_the_other()
{
    let two = Two::start().await;
    two.a.register("w", "q", &["greet"], &[]).await;
    two.a.start("wf", "greet", "q").await;
    let task = two.b.poll("workflow", "w", "q", 5).await;
    assert_eq!(task["workflow_task_attempt"], 1);
    two.a.register("w", "q", &["greet"], &[]).await;
    let again = two.a.poll("workflow", "w", "q", 5).await;
    assert_eq!(again["task_id"], task["task_id"]);
    assert_eq!(again["workflow_task_attempt"], 2);
    // The older process's report comes too late on either node.
    two.b.complete(&task, finish()).await.expect(409);
    two.b.complete(&again, finish()).await.expect(200);
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_runs_out_is_ended_by_whichever_node_looks_first_and_once() {
    let two = Two::with(|settings| settings.leases.workflow_task_seconds = 1).await;
    two.a.register("slow", "q", &["greet"], &[]).await;
    two.a.register("quick", "q", &["greet"], &[]).await;
    for round in 0..3 {
        let (holding, other) = if round % 2 == 0 {
            (&two.a, &two.b)
        } else {
            (&two.b, &two.a)
        };
        two.a.start(&format!("wf-{round}"), "greet", "q").await;
        let task = holding.poll("workflow", "slow", "q", 5).await;
        let began = Instant::now();
        let again = other.poll("workflow", "quick", "q", 10).await;
        let took = began.elapsed();
        assert_eq!(again["task_id"], task["task_id"]);
        assert_eq!(
            again["workflow_task_attempt"], 2,
            "lost once, handed out once"
        );
        assert!(took < Duration::from_secs(3), "{took:?}");
        holding.complete(&task, finish()).await.expect(409);
        other.complete(&again, finish()).await.expect(200);
    }
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_fire_once_although_both_nodes_sweep() {
    const RUNS: usize = 40;
    let two = Two::start().await;
    let mut runs = BTreeMap::new();
    for n in 0..RUNS {
        let client = if n % 2 == 0 { &two.a } else { &two.b };
        // A queue of its own: timers of earlier runs may fire meanwhile, and make tasks.
        let (worker, queue) = (format!("w-{n}"), format!("q-{n}"));
        client.register(&worker, &queue, &["greet"], &[]).await;
        let workflow = format!("wf-{n}");
        let run = client.start(&workflow, "greet", &queue).await;
        let task = client.poll("workflow", &worker, &queue, 5).await;
        assert_eq!(task["run_id"], run.as_str());
        let timers = json!([
            {"type": "start_timer", "delay_seconds": 1},
            {"type": "start_timer", "delay_seconds": 1},
        ]);
        client.complete(&task, timers).await.expect(200);
        runs.insert(workflow, run);
    }
    for (workflow, run) in &runs {
        let events = eventually("both timers fire", 10, async || {
            let events = two.b.events(workflow, run).await;
            (events.iter().filter(|event| *event == "TimerFired").count() >= 2).then_some(events)
        })
        .await;
        assert_eq!(
            events,
            [
                "StartAccepted",
                "WorkflowStarted",
                "TimerScheduled",
                "TimerScheduled",
                "TimerFired",
                "TimerFired"
            ]
        );
    }
    let mut connection = two.first.db.connect().await;
    let left: i64 = sqlx::query_scalar("select count(*) from timers")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(left, 0);
    connection.close().await.unwrap();
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_moves_between_nodes() {
    let two = Two::start().await;
    two.a.register("w", "q", &["greet"], &["hello"]).await;
    two.a.start("wf", "greet", "q").await;
    let task = two.b.poll("workflow", "w", "q", 5).await;
    two.a.complete(&task, schedule()).await.expect(200);
    let activity = two.a.poll("activity", "w", "q", 5).await;
    let beat = two
        .b
        .report(&activity, "heartbeat", json!({"details": {"done": 1}}))
        .await
        .expect(200);
    assert_eq!(beat["cancel_requested"], false);
    two.b
        .report(&activity, "complete", json!({"result": 1}))
        .await
        .expect(200);
    // The same again, on the other node, finds what was recorded.
    two.a
        .report(&activity, "complete", json!({"result": 1}))
        .await
        .expect(200);
    let task = two.a.poll("workflow", "w", "q", 5).await;
    two.b.complete(&task, finish()).await.expect(200);
    let run = text(&task, "run_id");
    for client in [&two.a, &two.b] {
        let events = client.events("wf", run).await;
        assert_eq!(
            events
                .iter()
                .filter(|event| *event == "ActivityCompleted")
                .count(),
            1,
            "{events:?}"
        );
        assert_eq!(events.last().unwrap(), "WorkflowCompleted");
    }
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_on_one_node_is_seen_after_a_task_that_is_held_through_the_other() {
    let two = Two::start().await;
    two.a.register("w", "q", &["greet"], &[]).await;
    let run = two.a.start("wf", "greet", "q").await;
    let task = two.b.poll("workflow", "w", "q", 5).await;
    let signal = json!({"input": ["x"], "request_id": "once"});
    for client in [&two.a, &two.b] {
        let accepted = client.post("/workflows/wf/signal/go", signal.clone()).await;
        assert!(accepted.status.is_success(), "{:#}", accepted.body);
    }
    let timer = json!([{"type": "start_timer", "delay_seconds": 600}]);
    two.b.complete(&task, timer).await.expect(200);
    let next = two.a.poll("workflow", "w", "q", 5).await;
    let events = two.b.events("wf", &run).await;
    assert_eq!(
        events
            .iter()
            .filter(|event| *event == "SignalReceived")
            .count(),
        1,
        "{events:?}"
    );
    two.b.complete(&next, finish()).await.expect(200);
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_under_a_lease_that_a_cancel_elsewhere_cut_off_is_told_so() {
    let two = Two::start().await;
    two.a.register("w", "q", &["greet"], &[]).await;
    for (round, verb) in ["cancel", "terminate"].into_iter().enumerate() {
        let workflow = format!("wf-{round}");
        let run = two.a.start(&workflow, "greet", "q").await;
        let task = two.b.poll("workflow", "w", "q", 5).await;
        let closed = two
            .a
            .post(&format!("/workflows/{workflow}/{verb}"), json!({}))
            .await;
        assert!(closed.status.is_success(), "{:#}", closed.body);
        let late = two.b.complete(&task, schedule()).await.expect(200);
        assert_eq!(late["recorded"], false, "{late:#}");
        let events = two.b.events(&workflow, &run).await;
        assert!(
            !events.iter().any(|event| event == "ActivityScheduled"),
            "{events:?}"
        );
        // Somebody who never held it is refused.
        let mut other = task.clone();
        other["workflow_task_attempt"] = 7.into();
        two.b.complete(&other, finish()).await.expect(409);
    }
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_give_each_task_once_to_many_polls() {
    const RUNS: usize = 120;
    let two = Two::start().await;
    two.a.register("w", "q", &["greet"], &[]).await;
    let mut polls = tokio::task::JoinSet::new();
    for n in 0..16 {
        let client = if n % 2 == 0 {
            two.a.clone()
        } else {
            two.b.clone()
        };
        polls.spawn(async move {
            let mut found = Vec::new();
            loop {
                let task = client.poll("workflow", "w", "q", 2).await;
                if task.is_null() {
                    return found;
                }
                assert_eq!(task["workflow_task_attempt"], 1);
                found.push(text(&task, "workflow_id").to_owned());
                client.complete(&task, finish()).await.expect(200);
            }
        });
    }
    for n in 0..RUNS {
        let client = if n % 3 == 0 { &two.a } else { &two.b };
        client.start(&format!("wf-{n}"), "greet", "q").await;
    }
    let mut found = Vec::new();
    while let Some(polled) = polls.join_next().await {
        found.extend(polled.unwrap());
    }
    found.sort_unstable();
    let mut wanted: Vec<String> = (0..RUNS).map(|n| format!("wf-{n}")).collect();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    two.stop().await;
}
