//! Clients that hang up while or just when they are given a task: the task goes to somebody who is
//! there, at once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::holds::{hold_workflow_id, until_commit_waits};
use crate::raw::{self, HangUp};
use crate::support::{TestServer, eventually, text};

/// How soon a task must reach somebody who is there; a lease would cost thirty seconds and more.
const AT_ONCE: Duration = Duration::from_secs(1);

async fn until_parked(server: &TestServer, polls: usize) {
    eventually("polls are parked", 5, async || {
        (server.node.engine().parked_polls() == polls).then_some(())
    })
    .await;
}

/// Polls until a task comes, and sees that it came at once.
async fn at_once(server: &TestServer, kind: &str, worker: &str, queue: &str) -> Value {
    let began = Instant::now();
    let task = server.client.poll(kind, worker, queue, 5).await;
    assert!(!task.is_null(), "no task came");
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn fc_01_a_client_that_hung_up_while_it_waited_takes_no_task() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("gone", "q", &["greet"], &[]).await;
    client.register("there", "q", &["greet"], &[]).await;
    for round in 0..50 {
        let how = if round % 2 == 0 {
            HangUp::Fin
        } else {
            HangUp::Rst
        };
        let waiting = raw::poll(&server.url, "workflow", "gone", &["q"], 20).await;
        until_parked(&server, 1).await;
        waiting.hang_up(how);
        until_parked(&server, 0).await;
        let workflow = format!("wf-{round}");
        // In odd pairs somebody waits already, in even ones the task stays ready until somebody comes.
        let task = if round % 4 < 2 {
            let other = raw::poll(&server.url, "workflow", "there", &["q"], 20).await;
            until_parked(&server, 1).await;
            client.start(&workflow, "greet", "q").await;
            let (status, mut body) = other.answer(AT_ONCE).await.unwrap();
            assert_eq!(status, 200);
            body["task"].take()
        } else {
            client.start(&workflow, "greet", "q").await;
            let mut connection = server.db.connect().await;
            let row: (i16, i32) = sqlx::query_as("select state, attempt from tasks")
                .fetch_one(&mut connection)
                .await
                .unwrap();
            assert_eq!(row, (0, 0), "ready, never handed out");
            at_once(&server, "workflow", "there", "q").await
        };
        assert_eq!(task["workflow_task_attempt"], 1, "{how:?}");
        assert_eq!(task["lease_owner"], "there");
        client
            .complete(&task, json!([{"type": "complete_workflow"}]))
            .await
            .expect(200);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_poll_that_was_hung_up_takes_no_task() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("gone", "q", &[], &["hello"]).await;
    client.register("there", "q", &["greet"], &["hello"]).await;
    for how in [HangUp::Fin, HangUp::Rst] {
        let waiting = raw::poll(&server.url, "activity", "gone", &["q"], 20).await;
        until_parked(&server, 1).await;
        waiting.hang_up(how);
        until_parked(&server, 0).await;
        client.start(&format!("{how:?}"), "greet", "q").await;
        let task = at_once(&server, "workflow", "there", "q").await;
        let schedule = json!([{"type": "schedule_activity", "activity_type": "hello"}]);
        client.complete(&task, schedule).await.expect(200);
        let activity = at_once(&server, "activity", "there", "q").await;
        assert_eq!(activity["attempt"], 1, "{how:?}");
        client
            .report(&activity, "complete", json!({"result": null}))
            .await
            .expect(200);
        let task = at_once(&server, "workflow", "there", "q").await;
        client
            .complete(&task, json!([{"type": "complete_workflow"}]))
            .await
            .expect(200);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_while_its_task_is_committed_gives_it_back() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("gone", "q", &["greet"], &[]).await;
    client.register("there", "q", &["greet"], &[]).await;
    let mut holder = server.db.connect().await;
    let mut watcher = server.db.connect().await;
    let mut taken_back = 0;
    for round in 0..8 {
        let how = if round % 2 == 0 {
            HangUp::Fin
        } else {
            HangUp::Rst
        };
        let workflow = format!("wf-{round}");
        let waiting = raw::poll(&server.url, "workflow", "gone", &["q"], 20).await;
        until_parked(&server, 1).await;
        hold_workflow_id(&mut holder, &workflow).await;
        let starting = tokio::spawn({
            let (client, workflow) = (client.clone(), workflow.clone());
            async move { client.start(&workflow, "greet", "q").await }
        });
        until_commit_waits(&mut watcher).await;
        waiting.hang_up(how);
        until_parked(&server, 0).await;
        sqlx::query("rollback").execute(&mut holder).await.unwrap();
        starting.await.unwrap();
        let task = at_once(&server, "workflow", "there", "q").await;
        assert_eq!(task["workflow_id"], workflow.as_str());
        // A poll that was just looking for itself is not promised anything; the task then stays ready.
        taken_back += u32::from(task["workflow_task_attempt"] == 2);
        client
            .complete(&task, json!([{"type": "complete_workflow"}]))
            .await
            .expect(200);
    }
    assert!(
        taken_back > 0,
        "no task was on its way to a client that hung up"
    );
    holder.close().await.unwrap();
    watcher.close().await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_given_back_in_the_end_although_the_database_could_not_just_then() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("gone", "q", &["greet"], &[]).await;
    client.register("there", "q", &["greet"], &[]).await;
    let mut holder = server.db.connect().await;
    let mut table = server.db.connect().await;
    let mut watcher = server.db.connect().await;
    let mut met = false;
    for round in 0..8 {
        let workflow = format!("wf-{round}");
        let waiting = raw::poll(&server.url, "workflow", "gone", &["q"], 20).await;
        until_parked(&server, 1).await;
        hold_workflow_id(&mut holder, &workflow).await;
        let starting = tokio::spawn({
            let (client, workflow) = (client.clone(), workflow.clone());
            async move { client.start(&workflow, "greet", "q").await }
        });
        until_commit_waits(&mut watcher).await;
        waiting.hang_up(HangUp::Fin);
        until_parked(&server, 0).await;
        // In line behind the commit, and in front of whoever gives its task back.
        let locking = tokio::spawn(async move {
            sqlx::query("begin").execute(&mut table).await.unwrap();
            sqlx::query("lock table tasks in share mode")
                .execute(&mut table)
                .await
                .unwrap();
            table
        });
        until_table_waits(&mut watcher, true).await;
        sqlx::query("rollback").execute(&mut holder).await.unwrap();
        starting.await.unwrap();
        table = locking.await.unwrap();
        let owner: Option<String> = sqlx::query_scalar("select lease_owner from tasks")
            .fetch_one(&mut watcher)
            .await
            .unwrap();
        met = owner.as_deref() == Some("gone");
        if met {
            // The give-back waits for the table, and is given up by the database.
            until_table_waits(&mut watcher, true).await;
            until_table_waits(&mut watcher, false).await;
        }
        sqlx::query("rollback").execute(&mut table).await.unwrap();
        let task = client.poll("workflow", "there", "q", 5).await;
        assert_eq!(
            task["workflow_task_attempt"],
            if met { 2 } else { 1 },
            "{task:#}"
        );
        client
            .complete(&task, json!([{"type": "complete_workflow"}]))
            .await
            .expect(200);
        if met {
            break;
        }
    }
    assert!(met, "no task was on its way to the client that hung up");
    drop((holder, table, watcher));
    server.stop().await;
}

/// Waits until somebody waits for the table of tasks, or nobody does.
async fn until_table_waits(watcher: &mut PgConnection, wanted: bool) {
    eventually("the table is waited for, or no more", 10, async || {
        let waiting: bool = sqlx::query_scalar(
            "select exists (select from pg_locks where not granted and relation = 'tasks'::regclass)",
        )
        .fetch_one(&mut *watcher)
        .await
        .unwrap();
        (waiting == wanted).then_some(())
    })
    .await;
}

/// A request that keeps the only thread that serves requests busy for a moment.
fn laborious() -> Value {
    let command =
        json!({"type": "schedule_activity", "activity_type": "hello", "arguments": [1, 2, 3]});
    json!({"lease_owner": "busy", "workflow_task_attempt": 1, "commands": vec![command; 30_000]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_when_its_answer_is_written_gives_the_task_back() {
    const ROUNDS: usize = 6;
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("gone", "q", &["greet"], &[]).await;
    client.register("there", "q", &["greet"], &[]).await;
    let mut holder = server.db.connect().await;
    let mut watcher = server.db.connect().await;
    let (laborious, probe) = (laborious(), json!({"worker_id": "nobody"}));
    let mut met = 0;
    for round in 0..ROUNDS {
        let how = if round % 3 == 2 {
            HangUp::Rst
        } else {
            HangUp::Fin
        };
        let workflow = format!("wf-{round}");
        let waiting = raw::poll(&server.url, "workflow", "gone", &["q"], 20).await;
        until_parked(&server, 1).await;
        let path = "/worker/workflow-tasks/01ARZ3NDEKTSV4RRFFQ69G5FAV-1/complete";
        let mut busy = raw::ask_all_but_the_end(&server.url, path, &laborious).await;
        hold_workflow_id(&mut holder, &workflow).await;
        let starting = tokio::spawn({
            let (client, workflow) = (client.clone(), workflow.clone());
            async move { client.start(&workflow, "greet", "q").await }
        });
        until_commit_waits(&mut watcher).await;
        // The thread is busy from here on: the task is handed out, its client goes, and only then is
        // the thread free to write the answer.
        busy.end().await;
        let probe = raw::ask(&server.url, "/worker/heartbeat", &probe).await;
        let mut was_busy = !probe.is_answered(Duration::from_millis(20)).await;
        sqlx::query("rollback").execute(&mut holder).await.unwrap();
        eventually("the task is handed out", 5, async || {
            sqlx::query_scalar::<_, String>(
                "select lease_owner from tasks where lease_owner is not null",
            )
            .fetch_optional(&mut watcher)
            .await
            .unwrap()
        })
        .await;
        waiting.hang_up(how);
        was_busy &= !busy.is_answered(Duration::from_millis(1)).await;
        busy.answer(Duration::from_secs(20)).await.unwrap();
        starting.await.unwrap();
        if was_busy {
            met += 1;
            let task = at_once(&server, "workflow", "there", "q").await;
            assert_eq!(text(&task, "workflow_id"), workflow);
            assert_eq!(task["workflow_task_attempt"], 2);
            client
                .complete(&task, json!([{"type": "complete_workflow"}]))
                .await
                .expect(200);
        } else {
            // The answer was written before its client went; nobody can tell that from a client that
            // has read it.
            let terminate = format!("/workflows/{workflow}/terminate");
            client.post(&terminate, json!({})).await.expect(200);
        }
    }
    println!("hang-ups at the answer: {met} of {ROUNDS} met, all taken back");
    assert!(met > ROUNDS / 3, "{met}");
    holder.close().await.unwrap();
    watcher.close().await.unwrap();
    server.stop().await;
}
