//! Database sessions that hold what a commit needs, so that it is met in the middle.

use sqlx::PgConnection;

use crate::support::eventually;

/// A session that claims a workflow id and has not decided yet whether it keeps it: a start of that
/// id waits in the middle of its commit.
pub async fn hold_workflow_id(connection: &mut PgConnection, workflow: &str) {
    sqlx::query("begin")
        .execute(&mut *connection)
        .await
        .unwrap();
    sqlx::query("insert into workflow_instances values ('default', $1, 'x', 1)")
        .bind(workflow)
        .execute(connection)
        .await
        .unwrap();
}

/// A session that holds the header of a run: a write of that run waits in the middle of its commit.
pub async fn hold_header(connection: &mut PgConnection, run: &str) {
    sqlx::query("begin")
        .execute(&mut *connection)
        .await
        .unwrap();
    sqlx::query("select 1 from workflow_runs where run_id = $1 for update")
        .bind(run)
        .execute(connection)
        .await
        .unwrap();
}

/// Waits until a commit waits for such a session.
pub async fn until_commit_waits(watcher: &mut PgConnection) {
    eventually("the commit is under way", 5, async || {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .fetch_one(&mut *watcher)
        .await
        .unwrap();
        (waiting >= 1).then_some(())
    })
    .await;
}
