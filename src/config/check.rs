//! What settings must be, alone and together.

use super::{
    ConfigError, MAX_CLAIM_BATCH, MAX_COMMIT_BATCH, MAX_HEARTBEAT_BATCH, MAX_POLL_SECONDS,
    MAX_QUERY_SECONDS, Settings,
};

pub(super) fn check(settings: &Settings) -> Result<(), ConfigError> {
    let address = settings.address()?;
    let impossible = |key, problem: String| Err(ConfigError::Impossible { key, problem });
    match &settings.auth.token {
        Some(token) if token.reveal().is_empty() => {
            return impossible(
                "auth.token",
                "the token is empty; leave it out or set one".to_owned(),
            );
        }
        None if !address.ip().is_loopback() && !settings.auth.insecure_no_auth => {
            return impossible(
                "listen",
                format!(
                    "{address} can be reached from other machines, and no token is set. Set DW_AUTH_TOKEN, \
                     listen on 127.0.0.1, or pass --insecure-no-auth"
                ),
            );
        }
        _ => {}
    }
    let positive: [(&'static str, u64); 10] = [
        ("queries.timeout_seconds", settings.queries.timeout_seconds),
        (
            "long_poll.default_seconds",
            settings.long_poll.default_seconds,
        ),
        (
            "workers.heartbeat_interval_seconds",
            settings.workers.heartbeat_interval_seconds,
        ),
        (
            "workers.stale_after_seconds",
            settings.workers.stale_after_seconds,
        ),
        (
            "leases.workflow_task_seconds",
            settings.leases.workflow_task_seconds,
        ),
        ("leases.activity_seconds", settings.leases.activity_seconds),
        (
            "history.page_size_default",
            settings.history.page_size_default.into(),
        ),
        (
            "database.read_connections",
            settings.database.read_connections.into(),
        ),
        (
            "database.hot_connections",
            settings.database.hot_connections.into(),
        ),
        (
            "database.commit_lanes",
            settings.database.commit_lanes.into(),
        ),
    ];
    for (key, value) in positive {
        if value == 0 {
            return impossible(key, "must be at least 1".to_owned());
        }
    }
    let database = &settings.database;
    let batches: [(&'static str, u32, u32); 3] = [
        (
            "database.commit_batch",
            database.commit_batch,
            MAX_COMMIT_BATCH,
        ),
        (
            "database.claim_batch",
            database.claim_batch,
            MAX_CLAIM_BATCH,
        ),
        (
            "database.heartbeat_batch",
            database.heartbeat_batch,
            MAX_HEARTBEAT_BATCH,
        ),
    ];
    for (key, value, most) in batches {
        if !(1..=most).contains(&value) {
            return impossible(key, format!("must be 1 to {most}"));
        }
    }
    if settings.long_poll.default_seconds > MAX_POLL_SECONDS {
        return impossible(
            "long_poll.default_seconds",
            format!("must be at most {MAX_POLL_SECONDS}"),
        );
    }
    if settings.queries.timeout_seconds > MAX_QUERY_SECONDS {
        return impossible(
            "queries.timeout_seconds",
            format!("must be at most {MAX_QUERY_SECONDS}"),
        );
    }
    if settings.history.page_size_default > settings.history.page_size_max {
        return impossible(
            "history.page_size_default",
            "is larger than page_size_max".to_owned(),
        );
    }
    if settings.default_namespace.is_empty()
        || settings.default_namespace != settings.default_namespace.to_lowercase()
    {
        return impossible(
            "default_namespace",
            "must be lower case and not empty".to_owned(),
        );
    }
    if !matches!(settings.log.format.as_str(), "text" | "json") {
        return impossible("log.format", "must be text or json".to_owned());
    }
    Ok(())
}
