//! Many timers that come due at once.

use serde_json::{Value, json};

use crate::support::{TestServer, eventually, text};

/// Runs, and timers of each: more in all than one pass looks at, and more than it leaves in the air.
const RUNS: usize = 4;
const TIMERS: usize = 400;

/// Rule: each timer fires once, in its run, not before its time, however many come due together.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_timers_fires_each_of_them_once() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let mut runs = Vec::new();
    for n in 0..RUNS {
        let run = client.start(&format!("wf-{n}"), "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let timer = json!({"type": "start_timer", "delay_seconds": 1});
        let timers: Vec<&Value> = std::iter::repeat_n(&timer, TIMERS).collect();
        client.complete(&task, json!(timers)).await.expect(200);
        runs.push(run);
    }
    for (n, run) in runs.iter().enumerate() {
        let workflow = format!("wf-{n}");
        let fired = eventually("all timers have fired", 30, async || {
            let events = client.history(&workflow, run).await;
            let fired: Vec<Value> = events
                .into_iter()
                .filter(|event| event["event_type"] == "TimerFired")
                .collect();
            (fired.len() >= TIMERS).then_some(fired)
        })
        .await;
        let mut ids: Vec<&str> = fired
            .iter()
            .map(|event| text(&event["payload"], "timer_id"))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((fired.len(), ids.len()), (TIMERS, TIMERS));
        for event in &fired {
            let (due, at) = (
                text(&event["payload"], "fire_at"),
                text(event, "recorded_at"),
            );
            assert!(due <= at, "{at} is before {due}");
        }
    }
    server.stop().await;
}
