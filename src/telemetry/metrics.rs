//! Metrics: every name with its help text, in the Prometheus text format.

use std::sync::OnceLock;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Upper bounds of request durations, in seconds.
const SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
/// Upper bounds of batch sizes.
const ITEMS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// Starts collecting, once per process. The handle renders what was collected.
pub fn start() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(install).clone()
}

/// Adds up what was measured since the last time; due every few seconds. Until then each single measurement is
/// kept, for ever if nobody reads the metrics.
pub fn add_up(handle: &PrometheusHandle) {
    handle.run_upkeep();
}

fn install() -> PrometheusHandle {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Suffix("_items".to_owned()), ITEMS)
        })
        .unwrap_or_default()
        .build_recorder();
    let handle = recorder.handle();
    if metrics::set_global_recorder(recorder).is_err() {
        tracing::warn!("metrics are collected by somebody else in this process");
    }
    describe();
    handle
}

fn describe() {
    describe_counter!(
        "dw_requests_total",
        "HTTP requests by method, route and status."
    );
    describe_histogram!(
        "dw_request_seconds",
        Unit::Seconds,
        "Duration of HTTP requests by route; polls excluded."
    );
    describe_gauge!(
        "dw_parked_polls",
        "Long polls that wait for a task on this node."
    );
    describe_counter!(
        "dw_polls_throttled_total",
        "Polls that ended without a task because a limit of their queue or namespace was reached."
    );
    describe_gauge!(
        "dw_unserved_tasks",
        "Ready tasks that no live worker may take, among the first of every queue."
    );
    describe_counter!("dw_claims_total", "Tasks taken from a backlog, by kind.");
    describe_counter!(
        "dw_handoffs_total",
        "Tasks handed to a waiting poll in the commit that opened them, by kind."
    );
    describe_counter!(
        "dw_sticky_cache_total",
        "What workers say became of the runs that they keep, by outcome."
    );
    describe_counter!(
        "dw_polls_abandoned_total",
        "Tasks given back because nobody received the answer."
    );
    describe_counter!("dw_commits_total", "Decisions by outcome of their commit.");
    describe_counter!(
        "dw_commit_statements_total",
        "Commit statements; each carries one or more decisions."
    );
    describe_histogram!(
        "dw_commit_batch_items",
        Unit::Count,
        "Decisions in one commit statement."
    );
    describe_counter!(
        "dw_commit_conflicts_total",
        "Decisions that lost a race and were made again."
    );
    describe_counter!(
        "dw_lease_expiries_total",
        "Leases that ran out without a report."
    );
    describe_counter!(
        "dw_leases_lost_total",
        "Tasks made ready again after their lease was lost, by kind."
    );
    describe_counter!(
        "dw_tasks_given_up_total",
        "Tasks that were handed out too often without a report."
    );
    describe_counter!("dw_timers_fired_total", "Timer rows that came due.");
    describe_histogram!(
        "dw_timer_lateness_seconds",
        Unit::Seconds,
        "From when a timer was due to the commit that fired it."
    );
    describe_counter!(
        "dw_run_loads_total",
        "Reads of a run's history because memory did not have it."
    );
    describe_counter!(
        "dw_runs_removed_total",
        "Closed runs removed because their retention was over."
    );
    describe_counter!(
        "dw_history_rows_removed_total",
        "Rows of history removed after their runs."
    );
    describe_counter!(
        "dw_relays_total",
        "Messages from one run to another, by kind and outcome of their delivery."
    );
    describe_counter!(
        "dw_replay_checks_total",
        "Written runs compared with their stored history, by outcome; only with checks.replay."
    );
}
