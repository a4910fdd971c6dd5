//! A database that drops connections or goes away: callers are told to come back, nothing that was
//! acknowledged is lost, and the server recovers by itself.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold::config::Settings;
use leasehold::managed_pg::testing::scratch_dir;
use leasehold::managed_pg::{self, Cluster, Durability};
use leasehold::node::Node;
use reqwest::StatusCode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::load::{Crew, Found, Load};
use crate::proxy::Proxy;
use crate::raw;
use crate::support::{Answer, Client, TestDb, TestServer, eventually, settings};

const CREW: Crew = Crew {
    starters: 2,
    pace: Duration::from_millis(25),
    workflow_pollers: 3,
    activity_pollers: 3,
};
/// How long what was started may take to end once the database is back.
const TO_THE_END: Duration = Duration::from_secs(60);

/// Leases that a lost answer keeps for a moment only.
fn short_leases(settings: &mut Settings) {
    settings.leases.workflow_task_seconds = 2;
    settings.leases.activity_seconds = 2;
}

fn assert_whole(found: &Found) {
    assert_eq!(found.lost, Vec::<String>::new());
    assert_eq!(found.doubled, Vec::<String>::new());
    assert_eq!(found.stuck, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_killed_under_load_lose_and_double_nothing() {
    const KILLS: u32 = 12;
    let server = TestServer::with(short_leases).await;
    let load = Load::start(&server.url, CREW);
    let mut killer = server.db.connect().await;
    let mut killed = 0;
    for _ in 0..KILLS {
        let before = load.acknowledged();
        eventually("starts are acknowledged", 20, async || {
            (load.acknowledged() > before + 5).then_some(())
        })
        .await;
        killed += sqlx::query_scalar::<_, i64>(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity
             where datname = current_database() and pid <> pg_backend_pid()",
        )
        .fetch_one(&mut killer)
        .await
        .unwrap();
    }
    drop(killer);
    let found = load.settle(TO_THE_END).await;
    println!("killed {killed} connections in {KILLS} strokes: {found:?}");
    assert_whole(&found);
    server.stop().await;
}

/// A durable server of its own, which may be stopped and started again.
struct Database {
    dir: PathBuf,
    cluster: Option<Cluster>,
}

fn start_cluster(dir: &Path) -> Cluster {
    let settings = managed_pg::Settings {
        dir: dir.to_path_buf(),
        bin_dir: None,
        durability: Durability::Durable,
        max_connections: 60,
    };
    Cluster::start(&settings).unwrap_or_else(|error| panic!("{error}"))
}

impl Database {
    async fn start(name: &str) -> Self {
        let dir = scratch_dir(name).unwrap();
        let mut database = Self { dir, cluster: None };
        database.up().await;
        database
    }

    async fn up(&mut self) {
        let dir = self.dir.clone();
        self.cluster = Some(
            tokio::task::spawn_blocking(move || start_cluster(&dir))
                .await
                .unwrap(),
        );
    }

    /// Stops it in order: sessions are told so.
    async fn down(&mut self) {
        let cluster = self.cluster.take().unwrap();
        tokio::task::spawn_blocking(move || cluster.stop())
            .await
            .unwrap()
            .unwrap();
    }

    /// Stops it as a crash does: what is not in the log is not there afterwards.
    async fn crash(&mut self) {
        let mut cluster = self.cluster.take().unwrap();
        let pid = Pid::from_raw(cluster.pid().cast_signed()).unwrap();
        kill_process(pid, Signal::QUIT).unwrap();
        eventually("the database is gone", 20, async || {
            cluster.exit_status().unwrap()
        })
        .await;
    }

    fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().unwrap()
    }
}

async fn readiness(url: &str) -> (u16, Value) {
    let answer = reqwest::get(format!("{url}/api/ready"))
        .await
        .expect("the server answers");
    (
        answer.status().as_u16(),
        answer.json().await.expect("an object"),
    )
}

/// What everybody is told who asks for something while the database is away.
#[track_caller]
fn assert_told_to_come_back(answer: &Answer) {
    let body = &answer.body;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{body:#}");
    assert_eq!(body["reason"], "backend_unavailable", "{body:#}");
    assert_eq!(body["retryable"], true, "{body:#}");
    assert_eq!(body["retry_after_seconds"], 1, "{body:#}");
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_goes_away_and_comes_back_under_load_loses_nothing() {
    let mut database = Database::start("outage").await;
    let mut settings = settings();
    short_leases(&mut settings);
    settings.database.migrate = true;
    let node = Node::start(settings, database.cluster().connect_options("postgres"))
        .await
        .unwrap();
    let url = format!("http://{}", node.address());
    let client = Client::new(&url, "1.13");
    // Somebody whose queue nobody serves: the parked poll outlives the outages.
    client.register("patient", "quiet", &["greet"], &[]).await;
    let patient = raw::poll(&url, "workflow", "patient", &["quiet"], 60).await;
    let load = Load::start(&url, CREW);
    for crash in [false, true] {
        let before = load.acknowledged();
        eventually("starts are acknowledged", 30, async || {
            (load.acknowledged() > before + 30).then_some(())
        })
        .await;
        assert_eq!(readiness(&url).await.0, 200);
        if crash {
            database.crash().await;
        } else {
            database.down().await;
        }
        let began = Instant::now();
        let body = eventually("the server is not ready", 10, async || {
            let (status, body) = readiness(&url).await;
            (status == 503).then_some(body)
        })
        .await;
        assert_eq!(body["status"], "not_ready");
        assert_eq!(body["checks"]["database"], false);
        let noticed = began.elapsed();
        refused_while_away(&client).await;
        let refused: u64 = load.unavailable().values().sum();
        eventually("the load is refused", 20, async || {
            (load.unavailable().values().sum::<u64>() >= refused + 20).then_some(())
        })
        .await;
        database.up().await;
        let began = Instant::now();
        eventually("the server is ready again", 15, async || {
            (readiness(&url).await.0 == 200).then_some(())
        })
        .await;
        let ready = began.elapsed();
        let before = load.acknowledged();
        eventually("starts are acknowledged again", 15, async || {
            (load.acknowledged() > before).then_some(())
        })
        .await;
        println!(
            "outage (crash: {crash}): noticed after {:.0} ms, ready {:.0} ms and serving {:.0} ms after it came back",
            noticed.as_secs_f64() * 1_000.0,
            ready.as_secs_f64() * 1_000.0,
            began.elapsed().as_secs_f64() * 1_000.0
        );
    }
    let found = load.settle(TO_THE_END).await;
    assert_whole(&found);
    client.start("for-the-patient", "greet", "quiet").await;
    let (status, body) = patient.answer(Duration::from_secs(5)).await.unwrap();
    assert_eq!(status, 200);
    assert_eq!(body["task"]["workflow_id"], "for-the-patient", "{body:#}");
    node.stop().await;
    database.down().await;
}

/// Every kind of request, while the database is away.
async fn refused_while_away(client: &Client) {
    let start = json!({"workflow_id": "while-away", "workflow_type": "greet", "task_queue": "q"});
    assert_told_to_come_back(&client.post("/workflows", start).await);
    assert_told_to_come_back(&client.get("/workflows/load-0-0").await);
    assert_told_to_come_back(
        &client
            .post("/workflows/load-0-0/signal/go", json!({"input": []}))
            .await,
    );
    let register = json!({
        "worker_id": "while-away",
        "task_queue": "q",
        "runtime": "external",
        "supported_workflow_types": ["greet"],
        "supported_activity_types": [],
        "capability_manifest": {},
    });
    assert_told_to_come_back(&client.post("/worker/register", register).await);
    for kind in ["workflow", "activity"] {
        let poll = json!({
            "worker_id": "unknown",
            "task_queue": "q",
            "timeout_seconds": 0,
            "poll_request_id": "the same",
        });
        let polled = client
            .post(&format!("/worker/{kind}-tasks/poll"), poll)
            .await;
        assert_told_to_come_back(&polled);
        let body = &polled.body;
        assert_eq!(body["operation"], format!("poll_{kind}_task"), "{body:#}");
        assert_eq!(body["outcome"], "unknown");
        assert_eq!(body["poll_status"], "backend_unavailable");
        assert_eq!(body["poll_request_id"], "the same");
        assert_eq!(body["retry_same_poll_request_id"], true);
        assert!(body["task"].is_null());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_opening_commit_nobody_heard_of_does_not_wait_for_its_lease() {
    let db = TestDb::new().await;
    let proxy = Proxy::start(&db.options, "unheard");
    let node = Node::start(settings(), proxy.options.clone())
        .await
        .unwrap();
    let url = format!("http://{}", node.address());
    let client = Client::new(&url, "1.13");
    client.register("w", "q", &["greet"], &[]).await;
    // A first start, so that the next one is one exchange with the database and no more.
    client.start("before", "greet", "elsewhere").await;
    client.start("before-2", "greet", "elsewhere").await;
    let waiting = raw::poll(&url, "workflow", "w", &["q"], 30).await;
    eventually("the poll is parked", 5, async || {
        (node.engine().parked_polls() == 1).then_some(())
    })
    .await;
    let mut watcher = db.connect().await;
    let mut written = false;
    for n in 0..20 {
        // What operators decided about builds is doubted after a cut, and would be read by the start.
        eventually("decisions about builds are known", 10, async || {
            node.engine().refresh_rollouts().await.ok()
        })
        .await;
        proxy.cut_at_answers();
        let workflow = format!("wf-{n}");
        let start = json!({"workflow_id": workflow, "workflow_type": "greet", "task_queue": "q"});
        assert_told_to_come_back(&client.post("/workflows", start).await);
        proxy.pass();
        written = sqlx::query_scalar(
            "select exists (select from workflow_instances where workflow_id = $1)",
        )
        .bind(&workflow)
        .fetch_one(&mut watcher)
        .await
        .unwrap();
        if written {
            break;
        }
        // That lane had no connection to lose; the next try finds it connected again.
        eventually("commits work again", 10, async || {
            let start = json!({"workflow_type": "greet", "task_queue": "elsewhere"});
            (client.post("/workflows", start).await.status == 201).then_some(())
        })
        .await;
    }
    assert!(written, "no commit was cut off after it was made");
    let began = Instant::now();
    let (status, body) = waiting.answer(Duration::from_secs(10)).await.unwrap();
    assert_eq!(status, 200);
    assert_eq!(body["task"]["workflow_task_attempt"], 2, "{body:#}");
    println!(
        "unheard of commit: its task reached somebody {:.1} s later",
        began.elapsed().as_secs_f64()
    );
    node.stop().await;
    drop(watcher);
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_fall_silent_are_given_up_and_everything_goes_on() {
    let db = TestDb::new().await;
    let proxy = Proxy::start(&db.options, "fallen-silent");
    let mut settings = settings();
    settings.leases.workflow_task_seconds = 1;
    let node = Node::start(settings, proxy.options.clone()).await.unwrap();
    let url = format!("http://{}", node.address());
    let client = Client::new(&url, "1.13");
    client.register("w", "q", &["greet"], &["hello"]).await;
    client.start("before", "greet", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    let commands = json!([
        {"type": "schedule_activity", "activity_type": "hello"},
        {"type": "start_timer", "delay_seconds": 3},
    ]);
    client.complete(&task, commands).await.expect(200);
    let activity = client.poll("activity", "w", "q", 5).await;
    proxy.fall_silent();
    // Everything that there is a connection for, and what sweeps by itself.
    let mut asked = tokio::task::JoinSet::new();
    for n in 0..12 {
        let (client, activity) = (client.clone(), activity.clone());
        asked.spawn(async move {
            let workflow = format!("silent-{n}");
            match n % 4 {
                0 => {
                    let start = json!({"workflow_id": workflow, "workflow_type": "greet", "task_queue": "q"});
                    client.post("/workflows", start).await.status
                }
                1 => client.report(&activity, "heartbeat", json!({})).await.status,
                2 => client.get("/workflows/nobody").await.status,
                _ => {
                    let poll = json!({"worker_id": "w", "task_queue": "q", "timeout_seconds": 2});
                    client.post("/worker/workflow-tasks/poll", poll).await.status
                }
            }
        });
    }
    // So long does the silence last.
    tokio::time::sleep(Duration::from_secs(5)).await;
    proxy.pass();
    let began = Instant::now();
    while let Some(status) = asked.join_next().await {
        let status = status.unwrap().as_u16();
        assert!([200, 201, 404, 503].contains(&status), "{status}");
    }
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    println!(
        "silence: everybody was answered {:.1} s after it ended",
        began.elapsed().as_secs_f64()
    );
    // The timer fired, a lease that nobody reports on runs out, heartbeats are taken.
    let task = eventually("the timer wakes the workflow", 40, async || {
        let task = client.poll("workflow", "w", "q", 2).await;
        (task["workflow_id"] == "before").then_some(task)
    })
    .await;
    eventually(
        "the lease runs out and the task comes back",
        20,
        async || {
            let again = client.poll("workflow", "w", "q", 2).await;
            (again["task_id"] == task["task_id"]).then_some(())
        },
    )
    .await;
    client
        .report(&activity, "heartbeat", json!({}))
        .await
        .expect(200);
    println!(
        "silence: everything went on {:.1} s after it ended",
        began.elapsed().as_secs_f64()
    );
    node.stop().await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_stops_in_order_while_its_database_is_away() {
    let mut database = Database::start("stop-in-outage").await;
    let mut settings = settings();
    settings.database.migrate = true;
    let node = Node::start(settings, database.cluster().connect_options("postgres"))
        .await
        .unwrap();
    let url = format!("http://{}", node.address());
    let client = Client::new(&url, "1.13");
    client.register("w", "q", &["greet"], &[]).await;
    let waiting = raw::poll(&url, "workflow", "w", &["q"], 60).await;
    eventually("the poll is parked", 5, async || {
        (node.engine().parked_polls() == 1).then_some(())
    })
    .await;
    database.down().await;
    let began = Instant::now();
    node.stop().await;
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(waiting.answer(Duration::from_secs(1)).await.unwrap().0, 200);
}

/// Rule: a database that only reads is no outage: what would write is refused as not admitted, what
/// reads is answered, and nothing that was given is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_takes_no_writes_admits_nothing_and_is_read() {
    let mut database = Database::start("fenced").await;
    let mut settings = settings();
    settings.database.migrate = true;
    let options = database.cluster().connect_options("postgres");
    let node = Node::start(settings, options.clone()).await.unwrap();
    let client = Client::new(&format!("http://{}", node.address()), "1.13");
    client.register("w", "q", &["greet"], &[]).await;
    client.start("held", "greet", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    client.start("ready", "greet", "q").await;
    let mut admin = <sqlx::PgConnection as sqlx::Connection>::connect_with(&options)
        .await
        .unwrap();
    let mut fence = async |word: &str| {
        let change = format!("alter system set default_transaction_read_only = {word}");
        for statement in [change.as_str(), "select pg_reload_conf()"] {
            sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
                .execute(&mut admin)
                .await
                .unwrap();
        }
    };
    fence("on").await;
    let reason = "storage_admission_unavailable";
    let mut starts = 0;
    let mut start = async || {
        starts += 1;
        let body = json!({"workflow_id": format!("wf-{starts}"), "workflow_type": "greet", "task_queue": "other"});
        client.post("/workflows", body).await
    };
    // Each session hears of it by itself, the lanes' too.
    eventually("starts are not admitted", 10, async || {
        for _ in 0..8 {
            if start().await.status != 503 {
                return None;
            }
        }
        Some(())
    })
    .await;
    let poll = json!({
        "worker_id": "w", "task_queue": "q", "timeout_seconds": 0, "poll_request_id": "p1",
    });
    let polled = eventually("polls are not admitted", 10, async || {
        let answer = client
            .post("/worker/workflow-tasks/poll", poll.clone())
            .await;
        (answer.status == 503).then_some(answer)
    })
    .await;
    assert_eq!(polled.body["poll_status"], reason);
    assert_eq!(polled.body["claim_admitted"], false);
    assert!(polled.body["task"].is_null());
    assert_eq!(polled.body["poll_request_id"], "p1");
    assert_eq!(polled.body["retry_same_poll_request_id"], true);
    let complete = json!([{"type": "complete_workflow"}]);
    let completed = client.complete(&task, complete.clone()).await;
    assert_eq!(completed.body["operation"], "complete_workflow_task");
    assert_eq!(completed.body["task_id"], task["task_id"]);
    for answer in [start().await, polled, completed] {
        let body = &answer.body;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{body:#}");
        assert_eq!(body["reason"], reason, "{body:#}");
        assert_eq!(body["storage_state"], "fenced");
        assert_eq!(body["request_admitted"], false);
        assert_eq!(body["retryable"], true);
        assert_eq!(answer.headers["retry-after"], "5");
    }
    assert_eq!(
        client.get("/workflows/held").await.expect(200)["workflow_id"],
        "held"
    );
    fence("off").await;
    eventually("starts are admitted again", 10, async || {
        (start().await.status == 201).then_some(())
    })
    .await;
    let ready = eventually("polls are admitted again", 10, async || {
        let answer = client
            .post("/worker/workflow-tasks/poll", poll.clone())
            .await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert_eq!(ready.body["task"]["workflow_id"], "ready");
    eventually("the completion is taken", 10, async || {
        let answer = client.complete(&task, complete.clone()).await;
        (answer.status == 200).then_some(())
    })
    .await;
    node.stop().await;
    drop(admin);
    database.down().await;
}
