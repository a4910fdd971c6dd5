//! One node: connected, serving, and stopped in order.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::sync::watch;

use crate::config::{Settings, TaskLimits};
use crate::domain::admission;
use crate::domain::limits::Limits;
use crate::domain::run;
use crate::engine::{self, Engine};
use crate::maintenance;
use crate::store::{PoolSizes, Store, migrate};
use crate::telemetry::metrics;
use crate::transport::http::api::Api;
use crate::transport::http::{openapi, server};

/// How long maintenance is given to stop.
const MAINTENANCE_GRACE: Duration = Duration::from_secs(2);

/// A node that serves.
pub struct Node {
    api: Arc<Api>,
    store: Store,
    address: SocketAddr,
    server: actix_web::dev::ServerHandle,
    serving: std::thread::JoinHandle<std::io::Result<()>>,
    maintenance: tokio::task::JoinSet<()>,
    stop_maintenance: watch::Sender<bool>,
}

impl Node {
    /// Connects, migrates if that is wanted, and starts to serve.
    ///
    /// # Errors
    /// The text says what went wrong and what to do.
    pub async fn start(settings: Settings, options: PgConnectOptions) -> Result<Self, String> {
        if settings.database.migrate {
            migrate::run(&options)
                .await
                .map_err(|error| error.to_string())?;
        }
        let address = settings.address().map_err(|error| error.to_string())?;
        let listener = TcpListener::bind(address)
            .map_err(|error| format!("{address} cannot be listened on: {error}"))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let store = Store::new(
            options,
            PoolSizes {
                reads: settings.database.read_connections,
                hot: settings.database.hot_connections,
            },
        );
        let server_id = server_id(&settings);
        // Before the engine, which takes handles of its counters as it starts.
        let metrics = metrics::start();
        let engine = Engine::start(store.clone(), engine_settings(&settings, &server_id))
            .await
            .map_err(|fault| format!("the database cannot be used: {fault}"))?;
        let (stop_maintenance, shutdown) = watch::channel(false);
        let collected = metrics.clone();
        let add_up = move || metrics::add_up(&collected);
        let maintenance = maintenance::start(&engine, add_up, &shutdown);
        let threads = settings.http.threads;
        let api = Arc::new(Api::new(
            engine,
            settings,
            server_id,
            metrics,
            openapi::routes(),
            openapi::write,
        )?);
        let (server, serving) = start_listener(listener, Arc::clone(&api), threads)?;
        Ok(Self {
            api,
            store,
            address,
            server,
            serving,
            maintenance,
            stop_maintenance,
        })
    }

    /// The address that it listens on; with port 0 configured, the port that was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The use cases behind it.
    pub fn engine(&self) -> &Engine {
        &self.api.engine
    }

    /// Says in the log what it serves.
    pub fn announce(&self) {
        tracing::info!(
            address = %self.address,
            worker_protocol = %self.api.advertised,
            token = !self.api.gate.is_open(),
            "serving"
        );
        if self.api.gate.is_open() {
            tracing::warn!("no token is set: everybody who reaches this address has full access");
        }
    }

    /// Stops: no longer ready, parked polls answered, running requests finished, maintenance ended,
    /// connections closed.
    pub async fn stop(mut self) {
        tracing::info!("stopping");
        let grace = Duration::from_secs(self.api.settings.shutdown.grace_seconds);
        self.api.stop();
        self.api.engine.end_polls();
        let graceful = tokio::time::timeout(grace, self.server.stop(true)).await;
        if graceful.is_err() {
            tracing::warn!("requests were still running when the grace was over");
            self.server.stop(false).await;
        }
        let _ = self.stop_maintenance.send(true);
        let ended = async { while self.maintenance.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(MAINTENANCE_GRACE, ended).await;
        let _ = tokio::task::spawn_blocking(move || self.serving.join()).await;
        self.store.close().await;
        tracing::info!("stopped");
    }
}

fn engine_settings(settings: &Settings, server_id: &str) -> engine::Settings {
    engine::Settings {
        run: run::Settings {
            workflow_task_lease_ms: settings.leases.workflow_task_seconds * 1_000,
            activity_lease_ms: settings.leases.activity_seconds * 1_000,
            limits: Limits::default(),
        },
        stale_after_seconds: settings.workers.stale_after_seconds,
        max_parked_polls: settings.long_poll.max_parked,
        max_parked_queries: settings.long_poll.max_parked_queries,
        workflow_limits: task_limits(&settings.admission.workflow_tasks),
        activity_limits: task_limits(&settings.admission.activity_tasks),
        check_replays: settings.checks.replay,
        retention_interval_seconds: settings.retention.interval_seconds,
        query_timeout_ms: settings.queries.timeout_seconds * 1_000,
        lanes: usize::try_from(settings.database.commit_lanes).unwrap_or(1),
        commit_batch: usize::try_from(settings.database.commit_batch).unwrap_or(1),
        claim_batch: usize::try_from(settings.database.claim_batch).unwrap_or(1),
        heartbeat_batch: usize::try_from(settings.database.heartbeat_batch).unwrap_or(1),
        hand_off: settings.database.hand_off,
        low_water_marks: settings.database.low_water_marks,
        // Two nodes on one machine must not take each other's hints for their own.
        node: format!(
            "{server_id}:{}:{}",
            std::process::id(),
            uuid::Uuid::new_v4().simple()
        ),
    }
}

fn task_limits(limits: &TaskLimits) -> admission::Limits {
    let set = |limit: u64| (limit > 0).then_some(limit);
    admission::Limits {
        leases_per_queue: set(limits.max_active_leases_per_queue),
        leases_per_namespace: set(limits.max_active_leases_per_namespace),
        dispatches_per_queue: set(limits.max_dispatches_per_minute),
        dispatches_per_namespace: set(limits.max_dispatches_per_minute_per_namespace),
    }
}

fn server_id(settings: &Settings) -> String {
    if !settings.server_id.is_empty() {
        return settings.server_id.clone();
    }
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "leasehold".to_owned())
}

type Listening = (
    actix_web::dev::ServerHandle,
    std::thread::JoinHandle<std::io::Result<()>>,
);

/// Starts the listener on a thread and runtime of its own.
fn start_listener(
    listener: TcpListener,
    api: Arc<Api>,
    threads: usize,
) -> Result<Listening, String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let serving = std::thread::Builder::new()
        .name("leasehold-http".to_owned())
        .spawn(move || {
            actix_web::rt::System::new().block_on(async move {
                let server = server::serve(listener, api, threads)?;
                let _ = sender.send(server.handle());
                server.await
            })
        })
        .map_err(|error| format!("the listener cannot be started: {error}"))?;
    let handle = receiver
        .recv()
        .map_err(|_| "the listener did not start".to_owned())?;
    Ok((handle, serving))
}
