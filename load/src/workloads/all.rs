//! Every workload in turn, round after round, and the table of goals.

use crate::bench::{Bench, short};

use super::{backlog, closed, growth, heartbeats, idle, nodes, pressure, steps};

/// Sizes of the growth goals, and of a quick look at the same code.
struct Sizes {
    small_backlog: usize,
    large_backlog: usize,
    polls: usize,
    wide: [usize; 2],
    cycles: usize,
    pages: [usize; 2],
    queues: usize,
    timers: usize,
    big: usize,
    minutes: usize,
}

const FULL: Sizes = Sizes {
    small_backlog: 1_000,
    large_backlog: 1_000_000,
    polls: 10_000,
    wide: [100, 1_000],
    cycles: 5_000,
    // The last that a workflow can still close with below its limit of 50,000 events.
    pages: [500, 49_000],
    queues: 1_000,
    timers: 10_000,
    big: 1 << 20,
    minutes: 30,
};
const QUICK: Sizes = Sizes {
    small_backlog: 100,
    large_backlog: 500,
    polls: 100,
    wide: [10, 50],
    cycles: 30,
    pages: [500, 1_000],
    queues: 10,
    timers: 50,
    big: 65_536,
    minutes: 2,
};

/// Workloads by name, in their order, and whether one round of them is enough.
const ORDER: [(&str, bool); 25] = [
    ("one-activity", false),
    ("ungrouped", false),
    ("simple", false),
    ("five-activities", false),
    ("timer", false),
    ("signal", false),
    ("fan-out", false),
    ("replay", false),
    ("query", false),
    ("mixed", false),
    ("wide", false),
    ("long-loop", false),
    ("hot-run", false),
    ("history-page", false),
    ("idle-polls", false),
    ("wake", false),
    ("disconnect", false),
    ("many-queues", false),
    ("two-nodes", false),
    ("big-payload", false),
    ("heartbeats", false),
    ("steps", false),
    ("backlog", true),
    ("pressure", true),
    ("crash", true),
];

/// Runs the workloads of one round.
///
/// # Errors
/// One of them cannot be run.
pub async fn round(bench: &mut Bench, number: usize, only: &[String]) -> Result<(), String> {
    for (name, once) in ORDER {
        let wanted = only.is_empty() || only.iter().any(|only| only == name);
        if !wanted || (once && number > 0) {
            continue;
        }
        eprintln!("-- {name}");
        one(bench, name)
            .await
            .map_err(|problem| format!("{name}: {problem}"))?;
    }
    Ok(())
}

async fn one(bench: &mut Bench, name: &str) -> Result<(), String> {
    let quick = bench.options.quick;
    let sizes = if quick { &QUICK } else { &FULL };
    match name {
        "one-activity" => {
            let opens: &[usize] = if quick {
                &[256]
            } else {
                &[256, 1_024, 1, 64, 8]
            };
            for open in opens {
                closed::one_activity(bench, *open).await?;
            }
            Ok(())
        }
        "ungrouped" => {
            for open in if quick { vec![8] } else { vec![256, 1] } {
                nodes::ungrouped(bench, open).await?;
            }
            Ok(())
        }
        "simple" => closed::simple(bench).await,
        "five-activities" => closed::five_activities(bench).await,
        "timer" => {
            closed::timer(bench, 250).await?;
            closed::timer(bench, sizes.timers).await
        }
        "signal" => closed::signal(bench).await,
        "fan-out" => closed::fan_out(bench).await,
        "replay" => closed::replay(bench).await,
        "query" => growth::query(bench).await,
        "mixed" => closed::mixed(bench).await,
        "wide" => {
            for count in sizes.wide {
                growth::wide(bench, count).await?;
            }
            Ok(())
        }
        "long-loop" => growth::long_loop(bench, sizes.cycles).await,
        "hot-run" => growth::hot_run(bench).await,
        "history-page" => {
            for count in sizes.pages {
                growth::history_page(bench, count).await?;
            }
            Ok(())
        }
        "idle-polls" => {
            with_count(bench, sizes.polls);
            let done = idle::idle_polls(bench, 1).await;
            bench.options.count = None;
            done
        }
        "wake" => {
            idle::wake(bench, 1, false).await?;
            idle::wake(bench, sizes.polls, false).await?;
            nodes::wake_other_node(bench, 1).await
        }
        "disconnect" => idle::disconnect(bench).await,
        "many-queues" => {
            for queues in [1, sizes.queues] {
                pressure::many_queues(bench, queues).await?;
            }
            Ok(())
        }
        "two-nodes" => nodes::two_nodes(bench).await,
        "heartbeats" => heartbeats::heartbeats(bench).await,
        "steps" => steps::round(bench, &[]).await,
        "big-payload" => pressure::big_payload(bench, sizes.big).await,
        "backlog" => {
            backlog::backlog(bench, sizes.small_backlog, "").await?;
            backlog::backlog(bench, sizes.large_backlog, "").await?;
            backlog::neighbour(bench).await?;
            backlog::old_snapshot(bench).await
        }
        "pressure" => {
            pressure::overload(bench).await?;
            pressure::churn(bench, sizes.minutes).await
        }
        "crash" => nodes::crash(bench).await,
        _ => Err("there is no such workload".to_owned()),
    }
}

fn with_count(bench: &mut Bench, count: usize) {
    bench.options.count = Some(count);
}

/// Whether more or less of a figure is better.
#[derive(Clone, Copy)]
enum Better {
    More,
    Less,
}

struct Goal {
    name: &'static str,
    what: &'static str,
    better: Better,
    must: f64,
    aim: f64,
    reached: Option<(f64, bool)>,
}

/// A figure over another one.
fn over(one: Option<(f64, bool)>, other: Option<(f64, bool)>) -> Option<(f64, bool)> {
    let ((one, first), (other, second)) = (one?, other?);
    (other > 0.0).then_some((one / other, first || second))
}

fn times(figure: Option<(f64, bool)>, factor: f64) -> Option<(f64, bool)> {
    figure.map(|(value, disturbed)| (value * factor, disturbed))
}

/// Prints the goals as a table.
pub fn table(bench: &Bench) {
    eprintln!(
        "\n{:<4} {:<52} {:>10} {:>10} {:>10}  verdict",
        "goal", "figure", "must", "aim", "reached"
    );
    for goal in performance(bench).into_iter().chain(growth_goals(bench)) {
        let sign = match goal.better {
            Better::More => "≥",
            Better::Less => "≤",
        };
        let limit = |value: f64| format!("{sign} {}", short(value));
        let meets = |reached: f64, limit: f64| match goal.better {
            Better::More => reached >= limit,
            Better::Less => reached <= limit,
        };
        let (reached, verdict) = match goal.reached {
            None => ("-".to_owned(), "not taken"),
            Some((value, true)) if meets(value, goal.must) => {
                (short(value), "disturbed (would pass)")
            }
            Some((value, true)) => (short(value), "disturbed (would miss)"),
            Some((value, false)) if meets(value, goal.aim) => (short(value), "aim"),
            Some((value, false)) if meets(value, goal.must) => (short(value), "pass"),
            Some((value, false)) => (short(value), "MISSED"),
        };
        eprintln!(
            "{:<4} {:<52} {:>10} {:>10} {:>10}  {verdict}",
            goal.name,
            goal.what,
            limit(goal.must),
            limit(goal.aim),
            reached
        );
    }
}

fn goal(
    (name, what): (&'static str, &'static str),
    better: Better,
    (must, aim): (f64, f64),
    reached: Option<(f64, bool)>,
) -> Goal {
    Goal {
        name,
        what,
        better,
        must,
        aim,
        reached,
    }
}

fn performance(bench: &Bench) -> Vec<Goal> {
    use Better::{Less, More};
    let reference = |name| bench.median("reference", "", name);
    let one = |open: usize, name| bench.median("one-activity", &format!("open={open}"), name);
    let bare = |open: usize| bench.median("ungrouped", &format!("open={open}"), "rate");
    let simple = bench.median("simple", "open=64", "rate");
    let five = times(bench.median("five-activities", "open=64", "rate"), 5.0);
    vec![
        goal(
            ("P1", "one-activity rate, open 256 / bound"),
            More,
            (0.20, 0.35),
            over(one(256, "rate"), reference("bound")),
        ),
        goal(
            ("P2", "one-activity rate, open 1024 / bound"),
            More,
            (0.20, 0.40),
            over(one(1_024, "rate"), reference("bound")),
        ),
        goal(
            ("P3", "rate grouped / ungrouped, open 256"),
            More,
            (2.5, 4.0),
            over(one(256, "rate"), bare(256)),
        ),
        goal(
            ("P4", "rate grouped / ungrouped, open 1"),
            More,
            (0.95, 1.0),
            over(one(1, "rate"), bare(1)),
        ),
        goal(
            ("P5", "p50 at open 1 / floor latency"),
            Less,
            (4.0, 2.5),
            over(one(1, "p50_ms"), reference("floor_ms")),
        ),
        goal(
            ("P6", "p99 / p50 at open 64"),
            Less,
            (4.0, 2.5),
            over(one(64, "p99_ms"), one(64, "p50_ms")),
        ),
        goal(
            ("P7", "database CPU per workflow / store"),
            Less,
            (5.0, 3.0),
            over(one(256, "postgres_cpu_us"), reference("store_cpu_us")),
        ),
        goal(
            ("P8", "server CPU per workflow / 7 echoes"),
            Less,
            (6.0, 4.0),
            over(
                one(256, "server_cpu_us"),
                times(reference("echo_cpu_us"), 7.0),
            ),
        ),
        goal(
            ("P9", "WAL per workflow / store"),
            Less,
            (2.0, 1.5),
            over(one(256, "wal_bytes"), reference("store_wal_bytes")),
        ),
        goal(
            ("P10", "transactions per workflow, open 256"),
            Less,
            (1.0, 0.5),
            one(256, "transactions"),
        ),
        goal(
            ("P11", "simple rate / one-activity rate"),
            More,
            (1.6, 2.0),
            over(simple, one(64, "rate")),
        ),
        goal(
            ("P12", "five-activities cycles / one-activity rate"),
            More,
            (0.9, 1.2),
            over(five, one(64, "rate")),
        ),
    ]
}

fn growth_goals(bench: &Bench) -> Vec<Goal> {
    use Better::{Less, More};
    let of = |workload, variant: &str, name| bench.median(workload, variant, name);
    let sizes = &FULL;
    let backlog = |count: usize, name| of("backlog", &format!("tasks={count}"), name);
    let (small, large) = (sizes.small_backlog, sizes.large_backlog);
    let claims = |name| over(backlog(large, name), backlog(small, name));
    let churn = format!("minutes={}", sizes.minutes);
    let pages = |count: usize, name| of("history-page", &format!("events={count}"), name);
    let (short_run, long_run) = (sizes.pages[0], sizes.pages[1]);
    let idle = format!("polls={} queues=1", sizes.polls);
    let wake =
        |polls: usize, node: &str, name| of("wake", &format!("polls={polls} node={node}"), name);
    let wide = |count: usize| {
        of(
            "wide",
            &format!("activities={count}"),
            "schedule_us_per_activity",
        )
    };
    let queues = |count: usize| of("many-queues", &format!("queues={count}"), "rate");
    let nodes = |count: usize| of("two-nodes", &format!("nodes={count}"), "rate");
    let timer = |name| of("timer", &format!("open={}", sizes.timers), name);
    let snapshot = |held: bool| of("backlog", &format!("tasks=100000 snapshot={held}"), "rate");
    let steady = |held: &str| of("old-snapshot", held, "rate_last_seconds");
    let crash = |name| of("crash", "kills=3", name);
    vec![
        goal(
            ("S1", "backlog claim p50, 1M / 1k"),
            Less,
            (1.5, 1.15),
            claims("claim_p50_ms"),
        ),
        goal(
            ("S1b", "backlog claim p99, 1M / 1k"),
            Less,
            (2.0, 1.5),
            claims("claim_p99_ms"),
        ),
        goal(
            ("S2", "backlog rate, last tenth / first tenth"),
            More,
            (0.7, 0.9),
            backlog(large, "last_tenth_ratio"),
        ),
        goal(
            ("S3", "churn p50, minute 10 / minute 1"),
            Less,
            (1.5, 1.15),
            of("churn", &churn, "p50_ratio"),
        ),
        goal(
            ("S3b", "churn blocks hit, minute 10 / minute 1"),
            Less,
            (1.5, 1.15),
            of("churn", &churn, "blocks_ratio"),
        ),
        goal(
            ("S4", "last page of 50k events / first of 500, time"),
            Less,
            (1.5, 1.2),
            over(
                pages(long_run, "last_page_ms"),
                pages(short_run, "first_page_ms"),
            ),
        ),
        goal(
            ("S4b", "same, blocks hit"),
            Less,
            (1.5, 1.2),
            over(
                pages(long_run, "last_page_blocks"),
                pages(short_run, "first_page_blocks"),
            ),
        ),
        goal(
            ("S5", "long-loop server CPU, last cycles / first"),
            Less,
            (1.5, 1.2),
            of(
                "long-loop",
                &format!("cycles={}", sizes.cycles),
                "server_cpu_ratio",
            ),
        ),
        goal(
            ("S6", "10k idle polls: transactions/s above idle"),
            Less,
            (5.0, 1.0),
            of("idle-polls", &idle, "transactions_above_idle"),
        ),
        goal(
            ("S7", "10k idle polls: server CPU, cores"),
            Less,
            (0.02, 0.005),
            of("idle-polls", &idle, "server_cores"),
        ),
        goal(
            ("S7b", "10k idle polls: KiB per held poll"),
            Less,
            (48.0, 24.0),
            of("idle-polls", &idle, "kib_per_poll"),
        ),
        goal(
            ("S8", "wake p50, 10k held / 1 held"),
            Less,
            (2.0, 1.2),
            over(
                wake(sizes.polls, "same", "wake_p50_ms"),
                wake(1, "same", "wake_p50_ms"),
            ),
        ),
        goal(
            ("S9", "wake p50, same node / p50(commit1)"),
            Less,
            (10.0, 5.0),
            over(
                wake(1, "same", "wake_p50_ms"),
                of("reference", "", "commit1_p50_ms"),
            ),
        ),
        goal(
            ("S10", "wake on another node, p50 ms"),
            Less,
            (30.0, 12.0),
            wake(1, "other", "wake_p50_ms"),
        ),
        goal(
            ("S10b", "wake on another node, p99 ms"),
            Less,
            (1_100.0, 50.0),
            wake(1, "other", "wake_p99_ms"),
        ),
        goal(
            ("S11", "control-plane p99, 10k held / none"),
            Less,
            (2.0, 1.2),
            of("idle-polls", &idle, "call_p99_ratio"),
        ),
        goal(
            ("S12", "many-queues rate, 1000 / 1"),
            More,
            (0.6, 0.85),
            over(queues(sizes.queues), queues(1)),
        ),
        goal(
            ("S13", "neighbour p99 of B, beside / alone"),
            Less,
            (8.0, 3.0),
            of("neighbour", "tasks=100000", "p99_ratio"),
        ),
        goal(
            ("S14", "overload rate / maximum"),
            More,
            (0.8, 0.95),
            of("overload", "", "rate_ratio"),
        ),
        goal(
            ("S15", "two-nodes rate / one node"),
            More,
            (0.85, 1.0),
            over(nodes(2), nodes(1)),
        ),
        goal(
            ("S16", "wide, time per activity, 1000 / 100"),
            Less,
            (1.5, 1.1),
            over(wide(sizes.wide[1]), wide(sizes.wide[0])),
        ),
        goal(
            ("S17", "timer 10k: lateness of the fire, p99 ms"),
            Less,
            (1_000.0, 100.0),
            timer("late_p99_ms"),
        ),
        goal(
            ("S17a", "the same, commits that the server counted"),
            Less,
            (1_000.0, 100.0),
            timer("commit_late_p99_below_ms"),
        ),
        goal(
            ("S17b", "timer 10k: transactions per workflow"),
            Less,
            (1.0, 0.1),
            timer("transactions"),
        ),
        goal(
            ("S18", "memory per open 1 MiB request / payload"),
            Less,
            (4.0, 2.5),
            of(
                "big-payload",
                &format!("bytes={}", sizes.big),
                "memory_ratio",
            ),
        ),
        goal(
            ("S19", "crash: lost steps"),
            Less,
            (0.0, 0.0),
            crash("lost"),
        ),
        goal(
            ("S19b", "crash: restart to first claim, s"),
            Less,
            (3.0, 1.0),
            crash("first_claim_s"),
        ),
        goal(
            ("S20", "memory growth in 30 min after minute 5"),
            Less,
            (0.05, 0.01),
            of("churn", &churn, "memory_growth"),
        ),
        goal(
            ("S21", "one-activity under an old snapshot / without"),
            More,
            (0.8, 0.95),
            over(steady("snapshot"), steady("none")),
        ),
        goal(
            ("S21b", "backlog under an old snapshot / without"),
            More,
            (0.6, 0.85),
            over(snapshot(true), snapshot(false)),
        ),
    ]
}
