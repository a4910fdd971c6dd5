//! Database: what survives when PostgreSQL or the network does not.

use std::time::Duration;

use leasehold::managed_pg::testing::TestCluster;
use leasehold::store::migrate;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::parked;
use crate::support::{TestServer, eventually};

/// Rule: notifications are only hints: a node whose listening connection is ended goes on, and a poll
/// that waited through it is given the task.
#[tokio::test(flavor = "multi_thread")]
async fn fc_15_a_lost_listener_is_replaced() {
    const ROUNDS: u64 = 12;
    let server = TestServer::start().await;
    let (node, there) = server.other_node().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let mut connection = server.db.connect().await;
    for round in 0..ROUNDS {
        let waiting = {
            let client = client.clone();
            tokio::spawn(async move { client.poll("workflow", "w", "q", 30).await })
        };
        parked(&server, 1).await;
        let ended: i64 = sqlx::query_scalar(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity
             where datname = current_database() and query ilike 'listen%'",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        assert!(ended >= 1, "a listener was ended");
        // The start comes at any moment of the recovery.
        tokio::time::sleep(Duration::from_millis(round * 500 / ROUNDS)).await;
        let id = format!("wf{round}");
        there.start(&id, "flow", "q").await;
        let task = waiting.await.unwrap();
        assert_eq!(task["workflow_id"], id);
        assert_eq!(task["workflow_task_attempt"], 1);
        let finish = json!([{"type": "complete_workflow"}]);
        client.complete(&task, finish).await.expect(200);
        eventually("every node listens again", 10, async || {
            let listening: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity
                 where datname = current_database() and query ilike 'listen%'",
            )
            .fetch_one(&mut connection)
            .await
            .unwrap();
            (listening == 2).then_some(())
        })
        .await;
    }
    node.stop().await;
    server.stop().await;
}

/// Rule: migrations run under one lock, and what is applied is read after the lock is held: nodes that
/// start at once on an empty database all come up, and one set of migrations is recorded.
#[tokio::test(flavor = "multi_thread")]
async fn fc_17_nodes_that_start_at_once_migrate_once() {
    let cluster = TestCluster::shared().expect("a PostgreSQL");
    let mut admin = PgConnection::connect_with(&cluster.admin_options())
        .await
        .unwrap();
    for round in 0..5 {
        let name = format!("leasehold_migrated_{}_{round}", std::process::id());
        let make = format!("create database {name}");
        sqlx::raw_sql(AssertSqlSafe(make))
            .execute(&mut admin)
            .await
            .unwrap();
        let options = cluster.admin_options().database(&name);
        let all = futures_util::future::join_all((0..4).map(|_| migrate::run(&options))).await;
        for outcome in all {
            outcome.expect("migrated");
        }
        let mut connection = PgConnection::connect_with(&options).await.unwrap();
        let recorded = async |connection: &mut PgConnection| -> i64 {
            sqlx::query_scalar("select count(*) from _sqlx_migrations")
                .fetch_one(connection)
                .await
                .unwrap()
        };
        let once = recorded(&mut connection).await;
        assert!(once >= 1);
        migrate::run(&options).await.expect("nothing to do");
        assert_eq!(recorded(&mut connection).await, once);
        let locks: i64 = sqlx::query_scalar(
            "select count(*) from pg_locks l join pg_database d on d.oid = l.database
             where l.locktype = 'advisory' and d.datname = current_database()",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        assert_eq!(locks, 0);
        drop(connection);
        let drop = format!("drop database {name} with (force)");
        sqlx::raw_sql(AssertSqlSafe(drop))
            .execute(&mut admin)
            .await
            .unwrap();
    }
}
