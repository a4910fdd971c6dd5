//! Background work: what is due without anybody asking. Every pass is bounded and safe on all nodes
//! at once; a pass that fails is tried again by the next one.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::engine::{Engine, Fault, Swept, Walk};
use crate::store::notify::{Ear, Heard};

/// Longest pause between two looks at timers; this node's own are known to the millisecond.
const TIMER_PAUSE: Duration = Duration::from_millis(1_000);
/// Shortest pause between two looks at timers that found fewer than they could: what comes due meanwhile
/// is fired together.
const TIMER_INTERVAL: Duration = Duration::from_millis(20);
/// Longest pause between two looks at leases.
const LEASE_PAUSE: Duration = Duration::from_millis(1_000);
/// Pause between two looks for holders that are gone.
const ABSENT_PAUSE: Duration = Duration::from_millis(2_000);
/// Pause between two looks for relays that were left behind.
const RELAY_PAUSE: Duration = Duration::from_millis(2_000);
/// Pause between two looks for asks that nobody waits for.
const ASK_PAUSE: Duration = Duration::from_secs(10);
/// Pause between two looks at the fleet: ready tasks that nobody may take, decisions about builds, and
/// what nodes tell each other about queues.
const FLEET_PAUSE: Duration = Duration::from_secs(5);
/// Pause between two looks for runs in memory whose retention is over.
const FORGET_PAUSE: Duration = Duration::from_secs(30);
/// Retention rests so many times as long as its last step took: it has a fifth of one connection at
/// most, and less of a database that is busy.
const RETENTION_REST: u32 = 4;
/// Shortest rest between two steps of retention.
const RETENTION_REST_MIN: Duration = Duration::from_millis(20);
/// How often queues are looked through for those whose slow re-check is due.
const RECHECK_TICK: Duration = Duration::from_millis(250);
/// Hints that are gathered into one notification.
const HINT_INTERVAL: Duration = Duration::from_millis(10);
/// Pause between two times that measurements are added up.
const METRICS_PAUSE: Duration = Duration::from_secs(5);
/// Pause after a pass that failed.
const FAULT_PAUSE: Duration = Duration::from_millis(500);

/// Says when to stop.
pub type Shutdown = watch::Receiver<bool>;

/// Starts all background work on the current runtime, `add_up` for what was measured among it. The set is
/// empty once it has stopped.
pub fn start(
    engine: &Engine,
    add_up: impl Fn() + Send + 'static,
    shutdown: &Shutdown,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut start = |name: &'static str,
                     work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        let mut shutdown = shutdown.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = work => tracing::error!(name, "background work ended by itself"),
                _ = shutdown.wait_for(|stop| *stop) => {}
            }
        });
    };
    let of = || engine.clone();
    start("timers", Box::pin(timers(of())));
    start("leases", Box::pin(leases(of())));
    start("absent", Box::pin(absent(of())));
    start("relays", Box::pin(relays(of())));
    start("asks", Box::pin(asks(of())));
    start("fleet", Box::pin(fleet(of())));
    start("forget", Box::pin(forget(of())));
    if engine.settings().retention_interval_seconds > 0 {
        start("retention", Box::pin(retention(of())));
    }
    start("wakes", Box::pin(wakes(of())));
    start("recheck", Box::pin(recheck(of())));
    start("hints", Box::pin(hints(of())));
    start("ear", Box::pin(ear(of())));
    start("metrics", Box::pin(metrics(add_up)));
    tasks
}

/// How long to wait after a pass: not at all when there is more, a while when it failed.
fn pause(swept: &Result<Swept, Fault>, longest: Duration) -> Duration {
    match swept {
        Ok(swept) if swept.is_full() => Duration::ZERO,
        Ok(Swept {
            next_ms: Some(next),
            ..
        }) => longest.min(Duration::from_millis(*next)),
        Ok(_) => longest,
        Err(_) => FAULT_PAUSE,
    }
}

async fn timers(engine: Engine) {
    loop {
        let next = tokio::time::Instant::now() + TIMER_INTERVAL;
        let swept = engine.fire_timers().await;
        let is_full = swept.as_ref().is_ok_and(Swept::is_full);
        engine.timer_alarm(pause(&swept, TIMER_PAUSE)).await;
        if !is_full {
            tokio::time::sleep_until(next).await;
        }
    }
}

async fn metrics(add_up: impl Fn()) {
    loop {
        tokio::time::sleep(METRICS_PAUSE).await;
        add_up();
    }
}

async fn leases(engine: Engine) {
    loop {
        let swept = engine.end_leases().await;
        engine.lease_alarm(pause(&swept, LEASE_PAUSE)).await;
    }
}

async fn absent(engine: Engine) {
    loop {
        tokio::time::sleep(ABSENT_PAUSE).await;
        // A failed pass is tried again after the same pause.
        let _ = engine.give_back_from_absent().await;
    }
}

async fn relays(engine: Engine) {
    loop {
        let swept = engine.deliver_left_behind().await;
        tokio::time::sleep(pause(&swept, RELAY_PAUSE)).await;
    }
}

async fn asks(engine: Engine) {
    loop {
        tokio::time::sleep(ASK_PAUSE).await;
        // A failed pass is tried again after the same pause.
        let _ = engine.forget_old_asks().await;
        let _ = engine.forget_old_sessions().await;
        let _ = engine.forget_old_deregistrations().await;
        let _ = engine.forget_old_dispatches().await;
    }
}

async fn fleet(engine: Engine) {
    loop {
        // A failed pass is tried again after the same pause; what was found before stands until then.
        let _ = engine.look_for_unserved().await;
        let _ = engine.refresh_rollouts().await;
        let _ = engine.tell_flows().await;
        tokio::time::sleep(FLEET_PAUSE).await;
    }
}

async fn forget(engine: Engine) {
    loop {
        tokio::time::sleep(FORGET_PAUSE).await;
        // A failed pass is tried again after the same pause.
        let _ = engine.forget_expired().await;
    }
}

/// Removes runs whose time is over, step by step until none is left, and looks again after a while.
async fn retention(engine: Engine) {
    let interval = Duration::from_secs(engine.settings().retention_interval_seconds);
    let mut walk = Walk::default();
    loop {
        tokio::time::sleep(interval).await;
        loop {
            let begun = Instant::now();
            match engine.remove_expired(&mut walk).await {
                Ok(step) if step.more => {
                    let rest = begun.elapsed() * RETENTION_REST;
                    tokio::time::sleep(rest.max(RETENTION_REST_MIN)).await;
                }
                Ok(_) => break,
                Err(fault) => {
                    tracing::warn!(error = %fault, "closed runs could not be removed");
                    break;
                }
            }
        }
    }
}

async fn wakes(engine: Engine) {
    loop {
        engine.wake_queues().await;
    }
}

async fn recheck(engine: Engine) {
    loop {
        tokio::time::sleep(RECHECK_TICK).await;
        engine.recheck_queues().await;
    }
}

async fn hints(engine: Engine) {
    loop {
        engine.hints_waiting().await;
        tokio::time::sleep(HINT_INTERVAL).await;
        if engine.send_hints().await.is_err() {
            tokio::time::sleep(FAULT_PAUSE).await;
        }
    }
}

/// Hears the other nodes, and takes a lost connection for lost hints.
async fn ear(engine: Engine) {
    loop {
        if let Ok(mut ear) = engine.ear().await {
            mind_the_gap(&engine).await;
            hear(&engine, &mut ear).await;
        }
        tokio::time::sleep(FAULT_PAUSE).await;
    }
}

/// Acts as if everything that a hint may say had been said.
async fn mind_the_gap(engine: &Engine) {
    engine.heed(&Heard::Gap);
    // If this fails the polls end when their time is up.
    let _ = engine.look_after_polls().await;
}

async fn hear(engine: &Engine, ear: &mut Ear) {
    loop {
        match ear.hear().await {
            Ok(Heard::Gap) => mind_the_gap(engine).await,
            Ok(heard) => engine.heed(&heard),
            Err(error) => {
                tracing::warn!(error = %error, "hints: connection lost");
                return;
            }
        }
    }
}
