//! Leases: who may still speak for a task.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::sent;
use crate::support::{Client, TestServer, envelope, eventually, merged, only, text};

/// Starts so many workflows `wf{n}` and schedules an activity of each, with worker `w` of queue `q`.
async fn make_activities(client: &Client, count: usize, fields: Value) {
    for n in 0..count {
        client.start(&format!("wf{n}"), "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let act = json!({"type": "schedule_activity", "activity_type": "act"});
        let act = merged(act, fields.clone());
        client.complete(&task, json!([act])).await.expect(200);
    }
}

fn count(events: &[Value], kind: &str) -> usize {
    events
        .iter()
        .filter(|event| event["event_type"] == kind)
        .count()
}

/// Rule: owner, attempt and lease are checked in the statement that writes the outcome: a late report
/// of a former holder is refused, before, after and at the same moment as that of the new one.
#[tokio::test(flavor = "multi_thread")]
async fn fc_06_a_late_completion_changes_nothing() {
    const ROUNDS: usize = 60;
    let server = TestServer::with(|settings| settings.leases.activity_seconds = 1).await;
    let (node, there) = server.other_node().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    client.register("v", "q", &["flow"], &["act"]).await;
    make_activities(client, ROUNDS, json!({})).await;
    let mut first = Vec::new();
    for _ in 0..ROUNDS {
        first.push(client.poll("activity", "w", "q", 5).await);
    }
    for round in 0..ROUNDS {
        // Its lease ends unheard of, and it comes back.
        let new = client.poll("activity", "v", "q", 20).await;
        let old = first
            .iter()
            .find(|old| old["task_id"] == new["task_id"])
            .expect("a task that was held");
        assert_eq!(new["attempt"], 2);
        let late = || there.report(old, "complete", json!({"result": "late"}));
        let mine = || client.report(&new, "complete", json!({"result": "mine"}));
        let (late, mine) = match round % 3 {
            0 => {
                let mine = mine().await;
                (late().await, mine)
            }
            1 => (late().await, mine().await),
            _ => futures_util::future::join(late(), mine()).await,
        };
        late.refused(409, "stale_attempt");
        let body = mine.expect(200);
        assert_eq!(body["recorded"], true);
        let id = text(&new, "workflow_id");
        let history = client.history(id, text(&new, "run_id")).await;
        let outcome = only(&history, "ActivityCompleted");
        let attempt = &outcome["payload"]["activity_attempt_id"];
        assert_eq!(*attempt, new["activity_attempt_id"]);
        let mut connection = server.db.connect().await;
        let open: i64 =
            sqlx::query_scalar("select count(*) from tasks where run_id = $1 and kind = 0")
                .bind(text(&new, "run_id"))
                .fetch_one(&mut connection)
                .await
                .unwrap();
        assert_eq!(open, 1, "one workflow task follows");
    }
    node.stop().await;
    server.stop().await;
}

/// Rule: fencing numbers never repeat: what a worker says under its former attempt is refused although
/// it holds the task again, whatever took the first lease from it.
#[tokio::test(flavor = "multi_thread")]
async fn fc_07_a_former_attempt_never_fits_again() {
    #[derive(Debug, PartialEq)]
    enum Lost {
        Expired,
        RegisteredAgain,
        Restarted,
    }
    for how in [Lost::Expired, Lost::RegisteredAgain, Lost::Restarted] {
        let short = |settings: &mut leasehold::config::Settings| {
            settings.leases.activity_seconds = 1;
        };
        let mut server = TestServer::with(short).await;
        let first = server
            .client
            .first_activity(json!({"retry_policy": {"max_attempts": 3}}))
            .await;
        match how {
            Lost::Expired => {}
            Lost::RegisteredAgain => {
                server.client.register("w", "q", &["flow"], &["act"]).await;
            }
            Lost::Restarted => {
                let db = server.stop_keeping().await;
                server = TestServer::on(db, short).await;
            }
        }
        let client = &server.client;
        let second = client.poll("activity", "w", "q", 20).await;
        assert_eq!(second["task_id"], first["task_id"], "{how:?}");
        assert_eq!(second["attempt"], 2);
        client
            .report(&first, "complete", json!({"result": "old"}))
            .await
            .refused(409, "stale_attempt");
        let body = client
            .report(&first, "heartbeat", json!({}))
            .await
            .expect(200);
        assert_eq!(body["heartbeat_recorded"], false);
        assert_eq!(body["can_continue"], false);
        assert_eq!(body["reason"], "stale_attempt");
        // A failure counts on as well.
        client
            .report(&second, "fail", json!({"failure": {"message": "x"}}))
            .await
            .expect(200);
        let third = client.poll("activity", "w", "q", 20).await;
        assert_eq!(third["attempt"], 3);
        client
            .report(&second, "complete", json!({"result": "old"}))
            .await
            .refused(409, "stale_attempt");
        client
            .report(&third, "complete", json!({"result": "new"}))
            .await
            .expect(200);
        server.stop().await;
    }
}

/// Rule: zero rows changed is an error: nobody reports on a task that nobody holds, in either spelling.
#[tokio::test(flavor = "multi_thread")]
async fn fc_08_a_task_that_nobody_claimed_has_no_outcome() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let act = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    let body = client.complete(&task, act).await.expect(200);
    let id = body["created_task_ids"][0].as_str().expect("a task");
    let before = server.db.contents().await;
    for (report, fields) in [
        ("complete", json!({"result": 1})),
        ("fail", json!({"message": "m"})),
        ("heartbeat", json!({})),
    ] {
        let path = format!("/worker/activity-tasks/{id}/{report}");
        for fence in [
            json!({"worker_id": "w"}),
            json!({"lease_owner": "w", "activity_attempt_id": format!("{id}-1")}),
        ] {
            let answer = client.post(&path, merged(fields.clone(), fence)).await;
            answer.refused(404, "attempt_not_found");
        }
    }
    assert_eq!(server.db.contents().await, before);
    // The same for a workflow task.
    client.start("other", "flow", "q").await;
    let mut connection = server.db.connect().await;
    let run: String = sqlx::query_scalar("select run_id from tasks where kind = 0 and state = 0")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let before = server.db.contents().await;
    for (report, fields) in [
        ("complete", json!({"commands": []})),
        ("fail", json!({"failure": {"message": "m"}})),
        ("heartbeat", json!({})),
    ] {
        let path = format!("/worker/workflow-tasks/{run}-1/{report}");
        let fence = json!({"worker_id": "w"});
        let answer = client.post(&path, merged(fields, fence)).await;
        answer.refused(409, "task_not_leased");
    }
    assert_eq!(server.db.contents().await, before);
    // Both are as free as before.
    let activity = client.poll("activity", "w", "q", 5).await;
    assert_eq!(activity["task_id"], id);
    assert_eq!(activity["attempt"], 1);
    server.stop().await;
}

/// Rule: terminal calls are idempotent per task, holder and attempt, and the first one wins: a repeat
/// of a completion whose answer was lost is told the recorded outcome by any node; anything else under
/// its fence changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn fc_09_a_completion_whose_answer_was_lost_is_repeated() {
    let server = TestServer::start().await;
    let (node, there) = server.other_node().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    client.register("v", "q", &["flow"], &["act"]).await;
    for round in 0..10 {
        let id = format!("wf{round}");
        let run = client.start(&id, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let commands = json!([{"type": "complete_workflow", "result": envelope(json!(round))}]);
        let body = json!({
            "lease_owner": "w", "workflow_task_attempt": 1, "commands": commands,
        });
        let path = format!("/worker/workflow-tasks/{}/complete", text(&task, "task_id"));
        let cut = sent(client, &path, &body).await;
        drop(cut);
        let repeats = [client, &there, client].map(|client| client.post(&path, body.clone()));
        let mut answers = futures_util::future::join_all(repeats).await;
        for client in [client, &there] {
            answers.push(client.post(&path, body.clone()).await);
        }
        for answer in answers {
            let body = answer.expect(200);
            assert_eq!(body["outcome"], "completed");
            assert_eq!(body["recorded"], true);
        }
        let last = there.post(&path, body.clone()).await.expect(200);
        assert_eq!(last["duplicate"], true);
        let before = server.db.contents().await;
        for client in [client, &there] {
            let body = client
                .complete(&task, json!([]))
                .await
                .refused(409, "task_not_leased");
            assert_eq!(body["recorded_outcome"], "completed");
            let fail = json!({"failure": {"message": "m"}});
            let body = client.task(&task, "fail", fail).await;
            let body = body.refused(409, "task_not_leased");
            assert_eq!(body["recorded_outcome"], "completed");
            for fence in [
                json!({"lease_owner": "v"}),
                json!({"workflow_task_attempt": 2}),
            ] {
                let answer = client.post(&path, merged(body_of(&commands), fence)).await;
                assert_eq!(answer.status, 409, "{:#}", answer.body["reason"]);
                assert_eq!(answer.body["recorded"], false);
            }
        }
        assert_eq!(server.db.contents().await, before);
        let events = client.events(&id, &run).await;
        let end = ["WorkflowCompleted".to_owned()];
        assert!(events.ends_with(&end), "{events:?}");
        let ends = events.iter().filter(|kind| **kind == end[0]);
        assert_eq!(ends.count(), 1);
    }
    node.stop().await;
    server.stop().await;
}

fn body_of(commands: &Value) -> Value {
    json!({"lease_owner": "w", "workflow_task_attempt": 1, "commands": commands})
}

/// Rule: every background write repeats its condition: a lease that is about to end and a completion
/// come to one outcome, and an accepted completion is never undone or handed out again.
#[tokio::test(flavor = "multi_thread")]
async fn fc_10_the_end_of_a_lease_undoes_no_completion() {
    const ACTIVITIES: usize = 200;
    const WORKERS: usize = 40;
    let short = |settings: &mut leasehold::config::Settings| settings.leases.activity_seconds = 1;
    let server = TestServer::with(short).await;
    let mut settings = crate::support::settings();
    short(&mut settings);
    let node = leasehold::node::Node::start(settings, server.db.options.clone())
        .await
        .expect("the other node");
    let there = Client::new(&format!("http://{}", node.address()), "1.13");
    let clients = [server.client.clone(), there];
    let client = &clients[0];
    client.register("w", "q", &["flow"], &["act"]).await;
    make_activities(client, ACTIVITIES, json!({})).await;
    let accepted: Mutex<HashSet<String>> = Mutex::default();
    let work = |n: usize| {
        let (client, accepted) = (&clients[n % 2], &accepted);
        async move {
            let mut tries = 0;
            while accepted.lock().unwrap().len() < ACTIVITIES {
                tries += 1;
                assert!(tries < 200, "the activities do not end");
                let task = client.poll("activity", "w", "q", 1).await;
                if task.is_null() {
                    continue;
                }
                let id = text(&task, "task_id").to_owned();
                assert!(!accepted.lock().unwrap().contains(&id), "handed out again");
                // The work takes as long as the lease lasts, a little more or less; a task that was
                // lost is done at once, because its next hand-out would come late.
                if task["attempt"] == 1 {
                    let wanted = 950 + (tries * 37 + n * 13) % 100;
                    tokio::time::sleep(Duration::from_millis(wanted as u64)).await;
                }
                let answer = client.report(&task, "complete", json!({})).await;
                if answer.status == 200 {
                    assert_eq!(answer.body["recorded"], true);
                    assert!(accepted.lock().unwrap().insert(id), "accepted twice");
                } else {
                    answer.refused(409, "stale_attempt");
                }
            }
        }
    };
    futures_util::future::join_all((0..WORKERS).map(work)).await;
    for n in 0..ACTIVITIES {
        let id = format!("wf{n}");
        let described = client.get(&format!("/workflows/{id}")).await.expect(200);
        let history = client.history(&id, text(&described, "run_id")).await;
        assert_eq!(count(&history, "ActivityCompleted"), 1);
        assert_eq!(count(&history, "ActivityTimedOut"), 0);
    }
    assert!(client.poll("activity", "w", "q", 0).await.is_null());
    node.stop().await;
    server.stop().await;
}

/// Rule: a heartbeat only moves the deadline: each one ends later, and nobody else gets the task.
#[tokio::test(flavor = "multi_thread")]
async fn fc_11_a_heartbeat_hands_nothing_out() {
    let server = TestServer::with(|settings| settings.leases.activity_seconds = 2).await;
    let client = &server.client;
    client.register("v", "q", &[], &["act"]).await;
    let activity = client.first_activity(json!({})).await;
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.poll_whole("activity", "v", "q", 4).await })
    };
    super::parked(&server, 1).await;
    let mut last = text(&activity, "lease_expires_at").to_owned();
    let mut beats = 0;
    // As long as the other worker waits, which is longer than the first lease.
    while !waiting.is_finished() {
        let fields = if beats % 2 == 0 {
            json!({"progress": {"n": beats}})
        } else {
            json!({})
        };
        let body = client
            .report(&activity, "heartbeat", fields)
            .await
            .expect(200);
        assert_eq!(body["heartbeat_recorded"], true);
        assert_eq!(body["can_continue"], true);
        let end = text(&body, "lease_expires_at").to_owned();
        assert!(end > last, "{end} after {last}");
        last = end;
        beats += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(beats >= 10);
    let other = waiting.await.unwrap().expect(200);
    assert_eq!(other["task"], Value::Null);
    assert_eq!(other["poll_status"], "timeout");
    let body = client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    assert_eq!(body["recorded"], true);
    let run = text(&activity, "run_id");
    let history = client.history("wf", run).await;
    let outcome = only(&history, "ActivityCompleted");
    assert_eq!(outcome["payload"]["attempt_number"], 1);
    server.stop().await;
}

/// Rule: a refusal tells apart "you are done", "somebody else has it" and "never heard of it"; two
/// heartbeats at once do not conflict.
#[tokio::test(flavor = "multi_thread")]
async fn fc_12_a_heartbeat_is_told_why_it_is_late() {
    let server = TestServer::start().await;
    let (node, there) = server.other_node().await;
    let client = &server.client;
    let task = client.first_task().await;
    let act = json!({"type": "schedule_activity", "activity_type": "act"});
    client.complete(&task, json!([act, act])).await.expect(200);
    let done = client.poll("activity", "w", "q", 5).await;
    let taken = client.poll("activity", "w", "q", 5).await;
    let beats = [client, &there, client, &there]
        .map(|client| client.report(&done, "heartbeat", json!({"details": {"n": 1}})));
    for answer in futures_util::future::join_all(beats).await {
        let body = answer.expect(200);
        assert_eq!(body["heartbeat_recorded"], true);
        assert_eq!(body["reason"], Value::Null);
    }
    client
        .report(&done, "complete", json!({}))
        .await
        .expect(200);
    client.register("v", "q", &[], &["act"]).await;
    client.delete("/worker/registrations/w").await.expect(200);
    let again = client.poll("activity", "v", "q", 5).await;
    assert_eq!(again["task_id"], taken["task_id"]);
    for client in [client, &there] {
        let reason = async |task: &Value| {
            let body = client
                .report(task, "heartbeat", json!({}))
                .await
                .expect(200);
            assert_eq!(body["heartbeat_recorded"], false);
            assert_eq!(body["can_continue"], false);
            text(&body, "reason").to_owned()
        };
        assert_eq!(reason(&done).await, "attempt_closed");
        assert_eq!(reason(&taken).await, "stale_attempt");
        let mut unknown = done.clone();
        let id = format!("{}-99", text(&done, "run_id"));
        unknown["activity_attempt_id"] = format!("{id}-1").into();
        unknown["task_id"] = id.into();
        client
            .report(&unknown, "heartbeat", json!({}))
            .await
            .refused(404, "task_not_found");
    }
    node.stop().await;
    server.stop().await;
}

/// Rule: a hand-out is counted when it happens: an attempt that takes its worker down ends at the
/// policy's last, as timed out, and ordinary activities are handed out in between.
#[tokio::test(flavor = "multi_thread")]
async fn fc_14_a_task_that_kills_its_worker_ends() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act", "ok"]).await;
    let run = client.start("wf", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    let deadly = json!({
        "type": "schedule_activity", "activity_type": "act", "start_to_close_timeout": 1,
        "retry_policy": {"max_attempts": 3},
    });
    let ordinary = json!({"type": "schedule_activity", "activity_type": "ok"});
    let mut commands = vec![deadly];
    commands.extend(std::iter::repeat_n(ordinary, 10));
    client.complete(&task, json!(commands)).await.expect(200);
    let mut attempts = Vec::new();
    let mut ended = 0;
    eventually("the attempts are over", 30, async || {
        let activity = client.poll("activity", "w", "q", 1).await;
        if activity["activity_type"] == "ok" {
            ended += 1;
            client
                .report(&activity, "complete", json!({}))
                .await
                .expect(200);
        } else if activity.is_object() {
            attempts.push(activity["attempt"].clone());
        }
        let events = client.events("wf", &run).await;
        events
            .iter()
            .any(|kind| kind == "ActivityTimedOut")
            .then_some(())
    })
    .await;
    assert_eq!(attempts, [1, 2, 3]);
    assert_eq!(ended, 10);
    assert!(client.poll("activity", "w", "q", 0).await.is_null());
    let history = client.history("wf", &run).await;
    assert_eq!(
        only(&history, "ActivityTimedOut")["payload"]["attempt_number"],
        3
    );
    let task = client.poll("workflow", "w", "q", 5).await;
    assert_eq!(task["run_id"], run);
    server.stop().await;
}
