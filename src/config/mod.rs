//! Settings: what an operator may set, from where, and what is checked before anything starts.
//!
//! A flag wins over the environment, the environment over the file, the file over the default.

mod admission;
mod check;
mod secret;

pub use admission::{Admission, TaskLimits};
pub use secret::Secret;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Map};
use figment::{Figment, Metadata, Profile, Provider, Source};
use serde::{Deserialize, Serialize};

/// All settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Address to listen on.
    pub listen: String,
    /// Worker protocol version that is advertised, `1.N`.
    pub worker_protocol: String,
    /// Namespace of requests that name none.
    pub default_namespace: String,
    /// Name of this node; empty for the host name.
    pub server_id: String,
    /// Who may call.
    pub auth: Auth,
    /// The database.
    pub database: Database,
    /// Long polls.
    pub long_poll: LongPoll,
    /// Workers.
    pub workers: Workers,
    /// Leases.
    pub leases: Leases,
    /// How many tasks may be held and handed out.
    pub admission: Admission,
    /// Queries.
    pub queries: Queries,
    /// History pages.
    pub history: History,
    /// Retention of closed runs.
    pub retention: Retention,
    /// Requests.
    pub http: Http,
    /// Stopping.
    pub shutdown: Shutdown,
    /// Logs.
    pub log: Log,
    /// Checks for tests and doubts.
    pub checks: Checks,
}

/// Who may call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// One token with full access; without it only loopback is served.
    pub token: Option<Secret>,
    /// Serve without a token beyond loopback.
    pub insecure_no_auth: bool,
}

/// The database.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    /// `postgres://user:password@host:port/database`.
    pub url: Option<Secret>,
    /// Connections for callers' reads.
    pub read_connections: u32,
    /// Connections for claims, heartbeats and sweeps.
    pub hot_connections: u32,
    /// Commit lanes, each with a connection of its own.
    pub commit_lanes: u32,
    /// Decisions that one commit writes at most. This and the three below are for a fault that is
    /// hunted, and to measure what each is worth: 1 or `false` takes one step out of the way.
    pub commit_batch: u32,
    /// Waiting polls that one claim serves at most.
    pub claim_batch: u32,
    /// Heartbeats that one statement writes at most.
    pub heartbeat_batch: u32,
    /// A commit gives the tasks that it opens to polls that wait; otherwise all are claimed.
    pub hand_off: bool,
    /// Claims go on where the last one of their queue ended; otherwise each begins at the oldest task.
    pub low_water_marks: bool,
    /// Bring the schema up to date at start.
    pub migrate: bool,
}

/// Most decisions of one commit: what the door takes.
pub const MAX_COMMIT_BATCH: u32 = 128;
/// Most polls that one claim serves.
pub const MAX_CLAIM_BATCH: u32 = 128;
/// Most heartbeats of one statement.
pub const MAX_HEARTBEAT_BATCH: u32 = 256;

/// Long polls.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongPoll {
    /// Seconds that a poll which names no wait is held.
    pub default_seconds: u64,
    /// Polls that a node holds, those for queries apart.
    pub max_parked: usize,
    /// Polls for queries that a node holds.
    pub max_parked_queries: usize,
}

/// Longest wait of a poll, in seconds; fixed by the contract.
pub const MAX_POLL_SECONDS: u64 = 60;

/// Workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workers {
    /// Seconds between heartbeats, as workers are told.
    pub heartbeat_interval_seconds: u64,
    /// Seconds of silence after which a worker counts as gone.
    pub stale_after_seconds: u64,
}

/// Checks for tests and doubts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checks {
    /// Compare every written run with its stored history, which costs a read of it per write.
    pub replay: bool,
}

/// Queries.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queries {
    /// Seconds that a caller waits for a worker's answer.
    pub timeout_seconds: u64,
}

/// Longest wait for the answer to a query, in seconds: clients give up after 60.
pub const MAX_QUERY_SECONDS: u64 = 55;

/// Leases.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leases {
    /// Seconds of a workflow-task lease.
    pub workflow_task_seconds: u64,
    /// Seconds of an activity lease whose attempt has no longer limit.
    pub activity_seconds: u64,
}

/// History pages.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Events of a page that names no size.
    pub page_size_default: u32,
    /// Events of the largest page.
    pub page_size_max: u32,
}

/// Retention of closed runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Seconds between two looks for runs whose time is over; 0 for a node that removes none.
    pub interval_seconds: u64,
}

/// Requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Bytes of the largest body.
    pub max_body_bytes: usize,
    /// Compress answers for clients that accept it.
    pub compression: bool,
    /// Threads that serve requests; 0 for one per core.
    pub threads: usize,
}

/// Stopping.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    /// Seconds that running requests are given.
    pub grace_seconds: u64,
}

/// Logs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// `text` or `json`.
    pub format: String,
    /// Directives such as `info` or `leasehold=debug`.
    pub filter: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            worker_protocol: "1.13".to_owned(),
            default_namespace: "default".to_owned(),
            server_id: String::new(),
            auth: Auth::default(),
            database: Database {
                url: None,
                read_connections: 8,
                hot_connections: 6,
                commit_lanes: 1,
                commit_batch: MAX_COMMIT_BATCH,
                claim_batch: MAX_CLAIM_BATCH,
                heartbeat_batch: MAX_HEARTBEAT_BATCH,
                hand_off: true,
                low_water_marks: true,
                migrate: true,
            },
            long_poll: LongPoll {
                default_seconds: 30,
                max_parked: 20_000,
                max_parked_queries: 20_000,
            },
            workers: Workers {
                heartbeat_interval_seconds: 10,
                stale_after_seconds: 60,
            },
            leases: Leases {
                workflow_task_seconds: 30,
                activity_seconds: 300,
            },
            admission: Admission::default(),
            queries: Queries {
                timeout_seconds: 30,
            },
            history: History {
                page_size_default: 500,
                page_size_max: 1_000,
            },
            retention: Retention {
                interval_seconds: 60,
            },
            http: Http {
                max_body_bytes: 3 << 20,
                compression: true,
                threads: 0,
            },
            shutdown: Shutdown { grace_seconds: 8 },
            log: Log {
                format: "text".to_owned(),
                filter: "info".to_owned(),
            },
            checks: Checks::default(),
        }
    }
}

/// Names from the environment that stand for a setting each, beside `DW_<SECTION>__<KEY>`.
const ALIASES: &[(&str, &str)] = &[
    ("DATABASE_URL", "database.url"),
    ("DW_AUTH_TOKEN", "auth.token"),
    ("DW_LISTEN", "listen"),
    ("DW_WORKER_PROTOCOL_VERSION", "worker_protocol"),
    ("DW_DEFAULT_NAMESPACE", "default_namespace"),
    ("DW_SERVER_ID", "server_id"),
    ("DW_WORKER_POLL_TIMEOUT", "long_poll.default_seconds"),
    (
        "DW_WORKER_STALE_AFTER_SECONDS",
        "workers.stale_after_seconds",
    ),
    (
        "DW_WORKER_HEARTBEAT_INTERVAL_SECONDS",
        "workers.heartbeat_interval_seconds",
    ),
    ("DW_QUERY_TASK_TIMEOUT", "queries.timeout_seconds"),
    ("DW_COMPRESSION_ENABLED", "http.compression"),
    ("DW_WORKFLOW_TASK_TIMEOUT", "leases.workflow_task_seconds"),
    ("DW_ACTIVITY_TASK_TIMEOUT", "leases.activity_seconds"),
    ("RUST_LOG", "log.filter"),
];

/// The settings do not make sense.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value cannot be read; says which key and where it came from.
    #[error("configuration: {0}")]
    Unreadable(Box<figment::Error>),
    /// A value is not possible.
    #[error("configuration: {key}: {problem}")]
    Impossible {
        /// The setting.
        key: &'static str,
        /// What is wrong with it, and what to do.
        problem: String,
    },
}

/// Settings and where each came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    figment: Figment,
}

/// Values from the command line, by key.
pub type Flags = BTreeMap<&'static str, String>;

/// A value from outside the file: a text that may stand for a number or a switch as well.
struct Given {
    /// Where it came from, in words.
    source: String,
    key: String,
    value: String,
}

impl Provider for Given {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.source.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let nested = figment::util::nest(&self.key, self.value.clone().into());
        let fields = nested.into_dict().unwrap_or_default();
        Ok(Profile::Default.collect(fields))
    }
}

/// Reads all settings.
///
/// # Errors
/// [`ConfigError`] names the key and its source.
pub fn load(flags: &Flags) -> Result<Loaded, ConfigError> {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    load_from(&environment, flags)
}

fn load_from(environment: &BTreeMap<String, String>, flags: &Flags) -> Result<Loaded, ConfigError> {
    let mut figment = Figment::from(Serialized::defaults(Settings::default()));
    let file = environment.get("DW_CONFIG");
    let path = file.map_or("config/local.toml", String::as_str);
    if file.is_some() || Path::new(path).exists() {
        figment = figment.merge(Toml::file_exact(path));
    }
    let from = |name: &str, key: &str, value: &str| Given {
        source: format!("environment, {name}"),
        key: key.to_owned(),
        value: value.to_owned(),
    };
    if let Some(port) = environment.get("PORT") {
        // Hosting platforms set PORT alone and expect every address.
        figment = figment.merge(from("PORT", "listen", &format!("0.0.0.0:{port}")));
    }
    for (name, value) in environment {
        let sections = name.strip_prefix("DW_").filter(|key| key.contains("__"));
        if let Some(sections) = sections {
            let key = sections.to_lowercase().replace("__", ".");
            figment = figment.merge(from(name, &key, value));
        }
    }
    for (name, key) in ALIASES.iter().chain(admission::ALIASES) {
        if let Some(value) = environment.get(*name) {
            figment = figment.merge(from(name, key, value));
        }
    }
    for (key, value) in flags {
        figment = figment.merge(Given {
            source: "flag".to_owned(),
            key: (*key).to_owned(),
            value: value.clone(),
        });
    }
    let settings: Settings = figment
        .extract_lossy()
        .map_err(|error| ConfigError::Unreadable(Box::new(error)))?;
    check::check(&settings)?;
    Ok(Loaded { settings, figment })
}

impl Loaded {
    /// Where a setting came from, in words.
    pub fn source(&self, key: &str) -> String {
        let Some(metadata) = self.figment.find_metadata(key) else {
            return "default".to_owned();
        };
        match &metadata.source {
            Some(Source::File(path)) => path.display().to_string(),
            _ if metadata.name.starts_with("environment") || metadata.name == "flag" => {
                metadata.name.to_string()
            }
            _ => "default".to_owned(),
        }
    }
}

impl Settings {
    /// The address to listen on.
    ///
    /// # Errors
    /// It is not an address.
    pub fn address(&self) -> Result<SocketAddr, ConfigError> {
        self.listen.parse().map_err(|_| ConfigError::Impossible {
            key: "listen",
            problem: format!("{:?} is not an address such as 127.0.0.1:8080", self.listen),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_make_sense() -> Result<(), ConfigError> {
        check::check(&Settings::default())
    }

    #[test]
    fn beyond_loopback_a_token_is_needed() {
        let mut settings = Settings {
            listen: "0.0.0.0:8080".to_owned(),
            ..Settings::default()
        };
        let refused = check::check(&settings)
            .map_err(|error| error.to_string())
            .err();
        assert!(refused.is_some_and(|why| why.contains("DW_AUTH_TOKEN")));
        settings.auth.insecure_no_auth = true;
        assert!(check::check(&settings).is_ok());
        settings.auth.insecure_no_auth = false;
        settings.auth.token = Some(Secret::new("long-enough"));
        assert!(check::check(&settings).is_ok());
    }

    #[test]
    fn secrets_do_not_print() {
        let settings = Settings {
            auth: Auth {
                token: Some(Secret::new("hunter2")),
                insecure_no_auth: false,
            },
            ..Settings::default()
        };
        let shown = format!(
            "{settings:?} {}",
            serde_json::to_string(&settings).unwrap_or_default()
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    fn loaded(environment: &[(&str, &str)], flags: &Flags) -> Result<Loaded, ConfigError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut environment: BTreeMap<_, _> = environment.iter().map(owned).collect();
        environment.insert("DW_CONFIG".to_owned(), "/dev/null".to_owned());
        load_from(&environment, flags)
    }

    #[test]
    fn texts_stay_texts_and_become_numbers_and_switches_where_those_are_wanted()
    -> Result<(), ConfigError> {
        let environment = [
            ("DW_WORKER_PROTOCOL_VERSION", "1.20"),
            ("DW_AUTH_TOKEN", "12345"),
            ("DW_SERVER_ID", "true"),
            ("DW_WORKER_POLL_TIMEOUT", "20"),
            ("DW_DATABASE__COMMIT_LANES", "3"),
            ("DW_DATABASE__MIGRATE", "false"),
            ("DW_CI", "not a setting"),
        ];
        let flags = Flags::from([("auth.insecure_no_auth", "true".to_owned())]);
        let loaded = loaded(&environment, &flags)?;
        let settings = &loaded.settings;
        assert_eq!(settings.worker_protocol, "1.20");
        assert_eq!(settings.auth.token, Some(Secret::new("12345")));
        assert_eq!(settings.server_id, "true");
        assert_eq!(settings.long_poll.default_seconds, 20);
        assert_eq!(settings.database.commit_lanes, 3);
        assert!(!settings.database.migrate && settings.auth.insecure_no_auth);
        assert_eq!(
            loaded.source("database.commit_lanes"),
            "environment, DW_DATABASE__COMMIT_LANES"
        );
        assert_eq!(loaded.source("auth.insecure_no_auth"), "flag");
        assert_eq!(loaded.source("listen"), "default");
        Ok(())
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_a_named_variable_over_the_port()
    -> Result<(), ConfigError> {
        let environment = [("PORT", "9000"), ("DW_AUTH_TOKEN", "x")];
        assert_eq!(
            loaded(&environment, &Flags::new())?.settings.listen,
            "0.0.0.0:9000"
        );
        let environment = [("PORT", "9000"), ("DW_LISTEN", "127.0.0.1:9001")];
        assert_eq!(
            loaded(&environment, &Flags::new())?.settings.listen,
            "127.0.0.1:9001"
        );
        let flags = Flags::from([("listen", "127.0.0.1:9002".to_owned())]);
        assert_eq!(
            loaded(&environment, &flags)?.settings.listen,
            "127.0.0.1:9002"
        );
        Ok(())
    }

    #[test]
    fn what_is_no_setting_is_refused_by_name() {
        for (name, value) in [("DW_LONG_POLL__LONGEST", "3"), ("DW_HTTP__THREADS", "many")] {
            let refused = loaded(&[(name, value)], &Flags::new())
                .err()
                .map(|error| error.to_string());
            assert!(
                refused.as_ref().is_some_and(|why| why.contains(name)),
                "{refused:?}"
            );
        }
    }

    /// The least and the most that a setting may be are taken, what lies beyond is refused by its name.
    #[track_caller]
    fn is_bounded(name: &str, key: &str, most: u32) {
        for value in [0, most + 1] {
            let refused = loaded(&[(name, &value.to_string())], &Flags::new())
                .err()
                .map(|error| error.to_string());
            assert!(
                refused.as_ref().is_some_and(|why| why.contains(key)),
                "{key} = {value}: {refused:?}"
            );
        }
        for value in [1, most] {
            let taken = loaded(&[(name, &value.to_string())], &Flags::new());
            assert!(taken.is_ok(), "{key} = {value}: {taken:?}");
        }
    }

    #[test]
    fn a_commit_batch_is_within_what_the_door_takes() {
        assert_eq!(MAX_COMMIT_BATCH as usize, crate::store::commit::MAX_BATCH);
        is_bounded(
            "DW_DATABASE__COMMIT_BATCH",
            "database.commit_batch",
            MAX_COMMIT_BATCH,
        );
    }

    #[test]
    fn a_claim_batch_is_within_its_bound() {
        assert_eq!(MAX_CLAIM_BATCH as usize, crate::engine::MAX_CLAIM_BATCH);
        is_bounded(
            "DW_DATABASE__CLAIM_BATCH",
            "database.claim_batch",
            MAX_CLAIM_BATCH,
        );
    }

    #[test]
    fn a_heartbeat_batch_is_within_its_bound() {
        assert_eq!(
            MAX_HEARTBEAT_BATCH as usize,
            crate::engine::MAX_HEARTBEAT_BATCH
        );
        is_bounded(
            "DW_DATABASE__HEARTBEAT_BATCH",
            "database.heartbeat_batch",
            MAX_HEARTBEAT_BATCH,
        );
    }

    #[test]
    fn hand_off_and_low_water_marks_are_switches() -> Result<(), ConfigError> {
        let database = |name, value| {
            loaded(&[(name, value)], &Flags::new()).map(|loaded| loaded.settings.database)
        };
        let usual = database("DW_DATABASE__MIGRATE", "true")?;
        assert!(usual.hand_off && usual.low_water_marks);
        assert!(!database("DW_DATABASE__HAND_OFF", "false")?.hand_off);
        assert!(!database("DW_DATABASE__LOW_WATER_MARKS", "false")?.low_water_marks);
        for name in ["DW_DATABASE__HAND_OFF", "DW_DATABASE__LOW_WATER_MARKS"] {
            assert!(database(name, "2").is_err());
        }
        Ok(())
    }
}
