//! Heartbeats: many activities are held, and their workers say, one after another and again, that they
//! go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::task::JoinSet;

use crate::api::{self, ActivityTask, Refused};
use crate::bench::{Bench, Round};
use crate::crew::{Shared, worker};
use crate::http::{Connection, Plane};
use crate::shape::Shape;

use super::backlog::{SCHEDULERS, fill, whole};

/// Connections that heartbeats come over.
const CONNECTIONS: usize = 64;
/// Seconds that a poll for one of the activities waits.
const WAIT: u64 = 5;
/// How long one connection may take to claim its share.
const PATIENCE: Duration = Duration::from_secs(120);
const HEARTBEAT: &str = "activity heartbeat";

/// An attempt that is held.
struct Attempt {
    task: String,
    attempt: String,
    path: String,
    /// Who heartbeats, the beginning of each body.
    holder: String,
    /// Heartbeats that were answered.
    heard: u64,
    /// Path and body of its completion.
    completion: (String, String),
    /// End of its lease, as the last answer said.
    renewed: String,
}

/// The answer to a heartbeat.
#[derive(Deserialize)]
struct Heard<'a> {
    task_id: &'a str,
    activity_attempt_id: &'a str,
    heartbeat_recorded: bool,
    can_continue: bool,
    cancel_requested: bool,
    lease_expires_at: Option<&'a str>,
}

impl Attempt {
    fn of(task: &ActivityTask<'_>) -> Self {
        let (id, attempt) = (task.task_id, task.activity_attempt_id);
        Self {
            task: id.to_owned(),
            attempt: attempt.to_owned(),
            path: format!("/api/worker/activity-tasks/{id}/heartbeat"),
            holder: format!(
                r#""lease_owner":"{}","activity_attempt_id":"{attempt}""#,
                task.lease_owner
            ),
            heard: 0,
            completion: api::complete_activity(task),
            renewed: String::new(),
        }
    }

    /// Takes an answer: it is about this attempt, which goes on, and its lease ends later than before.
    fn hears(&mut self, heard: &Heard<'_>) -> Result<(), String> {
        if heard.task_id != self.task || heard.activity_attempt_id != self.attempt {
            return Err("the answer is about another attempt".to_owned());
        }
        if !heard.heartbeat_recorded || !heard.can_continue || heard.cancel_requested {
            return Err("a live attempt is told to stop".to_owned());
        }
        // Times of one form compare as texts.
        match heard.lease_expires_at {
            Some(end) if *end > *self.renewed => end.clone_into(&mut self.renewed),
            _ => return Err("the lease was not renewed".to_owned()),
        }
        self.heard += 1;
        Ok(())
    }
}

/// A connection and the attempts that its worker holds.
struct Holder {
    connection: Connection,
    attempts: Vec<Attempt>,
}

impl Holder {
    /// Claims so many.
    async fn claim(shared: Arc<Shared>, slot: usize, share: usize) -> Result<Self, String> {
        const NAME: &str = "activity poll";
        let plan = &shared.plan;
        let mut connection = Connection::new(&plan.targets[slot % plan.targets.len()]);
        let mut attempts = Vec::with_capacity(share);
        let worker = worker(plan, 0);
        let end = Instant::now() + PATIENCE;
        for n in 0.. {
            if attempts.len() == share {
                break;
            }
            if Instant::now() > end {
                return Err(format!("{} of {share} were claimed", attempts.len()));
            }
            let id = format!("{worker}-hold-{slot}-{n}");
            let body = api::poll_body(&worker, &plan.queues[0], WAIT, &id, None);
            let path = "/api/worker/activity-tasks/poll";
            let answer = api::call(&mut connection, NAME, Plane::Worker, "POST", path, &body)
                .await
                .map_err(|refused| refused.to_string())?;
            let task = api::task::<ActivityTask<'_>>(NAME, &answer)
                .map_err(|refused| refused.to_string())?;
            attempts.extend(task.as_ref().map(Attempt::of));
        }
        Ok(Self {
            connection,
            attempts,
        })
    }

    /// Heartbeats in turn until it is told to stop, for each attempt once at the least. The first wrong
    /// answer is noted and ends it.
    async fn beat(mut self, shared: Arc<Shared>, going: Arc<AtomicBool>) -> Result<Self, String> {
        let mut turns = 0;
        'beating: while turns == 0 || going.load(Relaxed) {
            for attempt in &mut self.attempts {
                if turns > 0 && !going.load(Relaxed) {
                    break 'beating;
                }
                if let Err(refused) = beat(&mut self.connection, attempt, &shared).await {
                    shared.error(refused);
                    break 'beating;
                }
            }
            turns += 1;
        }
        Ok(self)
    }

    /// Completes them all.
    async fn complete(mut self, shared: Arc<Shared>) -> Result<Self, String> {
        const NAME: &str = "activity completion";
        for attempt in &self.attempts {
            let (path, body) = &attempt.completion;
            let sent = api::call(
                &mut self.connection,
                NAME,
                Plane::Worker,
                "POST",
                path,
                body,
            );
            match sent.await {
                Ok(_) => {
                    shared.activities.fetch_add(1, Relaxed);
                }
                Err(refused) => shared.error(refused),
            }
        }
        Ok(self)
    }
}

async fn beat(
    connection: &mut Connection,
    attempt: &mut Attempt,
    shared: &Shared,
) -> Result<(), Refused> {
    let path = &attempt.path;
    let body = format!(r#"{{{},"current":{}}}"#, attempt.holder, attempt.heard + 1);
    let answer = api::call(connection, HEARTBEAT, Plane::Worker, "POST", path, &body).await?;
    let heard: Heard<'_> = api::read(HEARTBEAT, &answer)?;
    attempt
        .hears(&heard)
        .map_err(|wrong| Refused::wrong(HEARTBEAT, wrong))?;
    shared.note(&shared.figures.heartbeat_call, answer.seconds);
    Ok(())
}

async fn all(mut tasks: JoinSet<Result<Holder, String>>) -> Result<Vec<Holder>, String> {
    let mut holders = Vec::new();
    while let Some(done) = tasks.join_next().await {
        holders.push(done.map_err(|error| error.to_string())??);
    }
    Ok(holders)
}

/// How many of `count` the connection of this place holds.
fn share(count: usize, connections: usize, slot: usize) -> usize {
    count / connections + usize::from(slot < count % connections)
}

/// Many held activities whose workers heartbeat.
pub async fn heartbeats(bench: &mut Bench) -> Result<(), String> {
    let count = whole(bench.options.count(1_000, 50));
    let round = Round::new("heartbeats", format!("attempts={count}"));
    let queue = format!("{}-heartbeats", bench.options.queue);
    let round = hold(bench, round, count, &queue).await?;
    bench.emit(round);
    Ok(())
}

/// The same on a queue of one's choice, for a round of any workload.
pub async fn hold(
    bench: &mut Bench,
    mut round: Round,
    count: usize,
    queue: &str,
) -> Result<Round, String> {
    let count = whole(count);
    let mut crew = fill(bench, count, queue, Shape::Beating).await?;
    let shared = Arc::clone(&crew.shared);
    let connections = bench.options.act_pollers.unwrap_or(CONNECTIONS);
    let connections = connections.clamp(1, count);
    let mut tasks = JoinSet::new();
    for slot in 0..connections {
        let share = share(count, connections, slot);
        tasks.spawn(Holder::claim(Arc::clone(&shared), slot, share));
    }
    let holders = all(tasks).await?;

    let going = Arc::new(AtomicBool::new(true));
    let mut tasks = JoinSet::new();
    for holder in holders {
        tasks.spawn(holder.beat(Arc::clone(&shared), Arc::clone(&going)));
    }
    tokio::time::sleep(bench.options.warmup()).await;
    let before = bench.meter.look().await?;
    crew.open_window();
    tokio::time::sleep(bench.options.secs()).await;
    crew.close_window();
    let costs = bench.meter.since(&before).await?;
    going.store(false, Relaxed);
    let holders = all(tasks).await?;

    let silent = holders.iter().flat_map(|holder| &holder.attempts);
    let silent = silent.filter(|attempt| attempt.heard == 0).count();
    round.must(silent == 0, || format!("{silent} attempts never heartbeat"));
    let mut tasks = JoinSet::new();
    for holder in holders {
        tasks.spawn(holder.complete(Arc::clone(&shared)));
    }
    all(tasks).await?;
    // The runs are told to end, and their histories are read: each activity has its last heartbeat there,
    // and is completed once.
    crew.work(SCHEDULERS, 0, 0);
    bench.finish(&mut round, crew).await;
    let reported = shared.activities.load(Relaxed);
    round.must(reported == count as u64, || {
        format!("{reported} of {count} activities were completed")
    });

    let calls = &shared.figures.heartbeat_call;
    let beats = calls.count() as f64;
    round.must(beats > 0.0, || "nothing heartbeat in the window".to_owned());
    round.add("connections", connections);
    round.add("heartbeats", beats);
    round.value("rate", beats / costs.seconds);
    round.value("p50_ms", calls.quantile(0.5));
    round.value("p99_ms", calls.quantile(0.99));
    round.costs(&costs, beats);
    Ok(round)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (count, connections) in [(1, 1), (7, 3), (50, 8), (1_000, 64)] {
            let shares: Vec<usize> = (0..connections)
                .map(|slot| share(count, connections, slot))
                .collect();
            assert_eq!(shares.iter().sum::<usize>(), count);
            let (least, most) = (shares.iter().min(), shares.iter().max());
            assert!(
                most.zip(least)
                    .is_some_and(|(most, least)| most - least <= 1),
                "{shares:?}"
            );
        }
    }

    #[test]
    fn an_answer_is_about_the_attempt_lets_it_go_on_and_renews_its_lease() {
        let mut attempt = Attempt::of(&ActivityTask {
            task_id: "t",
            workflow_id: "w",
            activity_attempt_id: "t-1",
            activity_type: "echo",
            lease_owner: "o",
            arguments: None,
        });
        let good = Heard {
            task_id: "t",
            activity_attempt_id: "t-1",
            heartbeat_recorded: true,
            can_continue: true,
            cancel_requested: false,
            lease_expires_at: Some("2026-01-01T00:00:10.000000Z"),
        };
        assert_eq!(attempt.hears(&good), Ok(()));
        assert_eq!(attempt.renewed, "2026-01-01T00:00:10.000000Z");
        // Each of these differs in one respect from an answer that would be taken.
        let next = || Heard {
            lease_expires_at: Some("2026-01-01T00:00:20.000000Z"),
            ..good
        };
        let wrong = [
            Heard {
                task_id: "u",
                ..next()
            },
            Heard {
                activity_attempt_id: "t-2",
                ..next()
            },
            Heard {
                heartbeat_recorded: false,
                ..next()
            },
            Heard {
                can_continue: false,
                ..next()
            },
            Heard {
                cancel_requested: true,
                ..next()
            },
            Heard {
                lease_expires_at: None,
                ..next()
            },
            Heard {
                lease_expires_at: good.lease_expires_at,
                ..next()
            },
        ];
        for heard in &wrong {
            assert!(attempt.hears(heard).is_err());
        }
        assert_eq!(attempt.hears(&next()), Ok(()));
        assert_eq!(attempt.heard, 2);
    }
}
