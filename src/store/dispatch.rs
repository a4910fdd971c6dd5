//! Claims where classes take turns or workers keep runs in memory: a look at what is ready, and the
//! taking of what was chosen from it. In between, `domain::dispatch` chooses.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{FromRow, PgExecutor};

use super::claim::{Claimed, ClaimedRow};
use super::{run_id, unsigned, unsigned32};
use crate::domain::dispatch::{Candidate, Class, Position, Window};
use crate::domain::ids::{Namespace, TaskId, TaskQueue};
use crate::domain::routing::{Poller, Profile, TaskKind};
use crate::domain::time::Timestamp;

/// Classes, each of one priority, that one look goes through.
const CLASSES: i32 = 256;
/// Tasks with a fairness key that one look takes, but one of each class at least.
const TASKS: i64 = 1_024;
/// Tasks of each class that one look takes at least while there are few classes, so that a worker finds
/// those that it keeps in memory.
const LOOK_AHEAD: i64 = 32;

/// Where the next look at a queue with very many classes begins: after this class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    /// Its priority, the most urgent that has any.
    pub priority: u8,
    /// Its key.
    pub class: String,
}

/// Where a look begins.
#[derive(Clone, Copy, Debug)]
pub struct Begin<'a> {
    /// Among the classes, where there are very many; `None` for the first.
    pub after: Option<&'a After>,
    /// Among the tasks without a class.
    pub from: Position,
}

/// What a look found.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The ready tasks.
    pub window: Window,
    /// Where the next look should begin; `None` for the beginning.
    pub after: Option<After>,
    /// Tasks with a fairness key are ready or will be.
    pub classes: bool,
    /// When it looked.
    pub at: Option<Timestamp>,
}

#[derive(FromRow)]
struct Row {
    at: chrono::DateTime<chrono::Utc>,
    pairs: i64,
    first_priority: Option<i16>,
    last_priority: Option<i16>,
    last_class: Option<String>,
    depth: i64,
    rotated: bool,
    run_id: Option<String>,
    task_no: Option<i32>,
    priority: Option<i16>,
    fairness_key: Option<String>,
    fairness_weight: Option<i16>,
    visible_at: Option<chrono::DateTime<chrono::Utc>>,
    preferred: Option<String>,
}

impl Row {
    fn candidate(self) -> sqlx::Result<Option<Candidate>> {
        let (Some(run), Some(no), Some(ready_at)) = (self.run_id, self.task_no, self.visible_at)
        else {
            return Ok(None);
        };
        Ok(Some(Candidate {
            task: TaskId {
                run: run_id(&run)?,
                no: unsigned32(no),
            },
            priority: tier(self.priority),
            class: self.fairness_key.map(Into::into),
            weight: self
                .fairness_weight
                .and_then(|weight| u16::try_from(weight).ok())
                .unwrap_or(1),
            ready_at: ready_at.into(),
            preferred: self.preferred.map(Into::into),
        }))
    }
}

fn tier(priority: Option<i16>) -> u8 {
    priority
        .and_then(|priority| u8::try_from(priority).ok())
        .unwrap_or(u8::MAX)
}

/// What this profile may take and is ready: of each class, and of the tasks without one, some that have
/// waited longest; at least `want` of each while there are few classes. Goes from class to class by the
/// index, the most urgent first, so that a long backlog of one class hides no other. Tasks without a class
/// are looked at from a position on.
///
/// # Errors
/// The database cannot be reached.
pub async fn look<'e>(
    executor: impl PgExecutor<'e>,
    kind: TaskKind,
    namespace: &Namespace,
    queue: &TaskQueue,
    profile: &Profile,
    want: usize,
    begin: Begin<'_>,
) -> sqlx::Result<Seen> {
    let want = i64::try_from(want)
        .unwrap_or(TASKS)
        .clamp(LOOK_AHEAD, TASKS);
    let rows: Vec<Row> = sqlx::query_as(
        "with recursive n as materialized (select clock_timestamp() as now),
         f as materialized (
             select priority from tasks where state = 0 and session_id is null and fairness_key is not null
                 and namespace = $1 and queue = $2 and kind = $3 order by priority, fairness_key limit 1),
         c as (
             (select t.priority, t.fairness_key, 1 as n from f cross join lateral (
                 select t.priority, t.fairness_key from tasks t
                 where t.state = 0 and t.session_id is null and t.fairness_key is not null
                   and t.namespace = $1 and t.queue = $2 and t.kind = $3
                   and (t.priority, t.fairness_key) > (f.priority, case when f.priority = $8 then $9::text else '' end)
                 order by t.priority, t.fairness_key limit 1) t)
             union all
             select t.priority, t.fairness_key, c.n + 1 from c cross join lateral (
                 select t.priority, t.fairness_key from tasks t
                 where t.state = 0 and t.session_id is null and t.fairness_key is not null
                   and t.namespace = $1 and t.queue = $2 and t.kind = $3
                   and (t.priority, t.fairness_key) > (c.priority, c.fairness_key)
                 order by t.priority, t.fairness_key limit 1) t
             where c.n < $10),
         s as materialized (
             select count(*) as pairs, greatest(1, least($7, $11 / greatest(count(*), 1))) as depth from c),
         o as (
             select t.* from (
                 select run_id, task_no, priority, fairness_key, fairness_weight, visible_at, preferred, preferred_until
                 from tasks where state = 0 and session_id is null and fairness_key is null
                   and namespace = $1 and queue = $2 and kind = $3
                   and (priority, visible_at) >= ($12, $13) and visible_at <= (select now from n)
                   and task_type = any($4) and (build_id is null or build_id = $5) and (needs & ~$6::bigint) = 0
                 order by priority, visible_at, run_id, task_no limit $7) t
             union all
             select t.* from c cross join lateral (
                 select run_id, task_no, priority, fairness_key, fairness_weight, visible_at, preferred, preferred_until
                 from tasks t where t.state = 0 and t.session_id is null and t.fairness_key is not null
                   and t.namespace = $1 and t.queue = $2 and t.kind = $3
                   and t.priority = c.priority and t.fairness_key = c.fairness_key and t.visible_at <= clock_timestamp()
                   and t.task_type = any($4) and (t.build_id is null or t.build_id = $5) and (t.needs & ~$6::bigint) = 0
                 order by t.visible_at, t.run_id, t.task_no limit (select depth from s)) t)
         select n.now as at, s.pairs, s.depth, (select priority from f) as first_priority,
             coalesce((select priority from f) = $8, false) as rotated,
             (select priority from c order by n desc limit 1) as last_priority,
             (select fairness_key from c order by n desc limit 1) as last_class,
             o.run_id, o.task_no, o.priority, o.fairness_key, o.fairness_weight, o.visible_at,
             case when o.preferred_until > clock_timestamp() then o.preferred end as preferred
         from n cross join s left join o on true",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .bind(kind.number())
    .bind(&*profile.types)
    .bind(profile.build_id.as_deref())
    .bind(profile.knows)
    .bind(want)
    .bind(begin.after.map(|after| i16::from(after.priority)))
    .bind(begin.after.map(|after| after.class.as_str()))
    .bind(CLASSES)
    .bind(TASKS)
    .bind(i16::from(begin.from.priority))
    .bind(begin.from.ready_at.to_chrono())
    .fetch_all(executor)
    .await?;
    seen(rows, unsigned(want))
}

/// Puts a look together. What it did not reach is marked, so that nothing is chosen before it.
fn seen(rows: Vec<Row>, want: u64) -> sqlx::Result<Seen> {
    let mut seen = Seen::default();
    let mut through = None;
    let mut depth = 0;
    for row in &rows {
        depth = unsigned(row.depth);
        seen.at = Some(row.at.into());
        seen.classes = row.first_priority.is_some();
        let is_full = row.pairs >= i64::from(CLASSES);
        if row.rotated {
            // The classes of this priority before the beginning come with the next look.
            through = Some(tier(row.first_priority));
        } else if is_full {
            through = Some(tier(row.last_priority));
        }
        if is_full && row.first_priority == row.last_priority {
            seen.after = row.last_class.clone().map(|class| After {
                priority: tier(row.last_priority),
                class,
            });
        }
    }
    let mut counts: BTreeMap<(u8, Class), u64> = BTreeMap::new();
    let (mut plain, mut last_plain) = (0, 0);
    for row in rows {
        let Some(candidate) = row.candidate()? else {
            continue;
        };
        if candidate.class.is_none() {
            plain += 1;
            last_plain = last_plain.max(candidate.priority);
        } else {
            let class = (candidate.priority, candidate.class.clone());
            *counts.entry(class).or_default() += 1;
        }
        seen.window.candidates.push(candidate);
    }
    let cut: BTreeSet<(u8, Class)> = counts
        .into_iter()
        .filter(|(_, count)| *count >= depth)
        .map(|(class, _)| class)
        .collect();
    seen.window.cut = cut;
    if plain >= want {
        seen.window.cut.insert((last_plain, None));
        through = Some(through.map_or(last_plain, |last: u8| last.min(last_plain)));
    }
    seen.window.through = through;
    Ok(seen)
}

/// Gives ready tasks to polls, each to its own. Leaves out those that somebody else has taken, is about
/// to take, or that are no longer for this profile.
///
/// # Errors
/// The database cannot be reached.
pub async fn take<'e>(
    from: impl PgExecutor<'e>,
    profile: &Profile,
    chosen: &[(TaskId, &Poller)],
) -> sqlx::Result<Vec<Claimed>> {
    let runs: Vec<String> = chosen
        .iter()
        .map(|(task, _)| task.run.to_string())
        .collect();
    let tasks: Vec<i32> = chosen
        .iter()
        .map(|(task, _)| task.no.cast_signed())
        .collect();
    let owners: Vec<&str> = chosen
        .iter()
        .map(|(_, poller)| poller.owner.as_str())
        .collect();
    let polls: Vec<Option<&str>> = chosen
        .iter()
        .map(|(_, poller)| poller.poll_request_id.as_deref())
        .collect();
    let rows: Vec<ClaimedRow> = sqlx::query_as(
        "with n as materialized (select clock_timestamp() as now),
         p as materialized (
             select t.run_id, t.task_no, w.owner, w.poll, w.place
             from unnest($1::text[], $2::int[], $3::text[], $4::text[])
                 with ordinality as w(run_id, task_no, owner, poll, place)
             join tasks t on t.run_id = w.run_id and t.task_no = w.task_no
             where t.run_id = any($1) and t.state = 0 and t.visible_at <= clock_timestamp()
               and (t.needs & ~$5::bigint) = 0
             for update of t skip locked)
         update tasks t set state = 1, attempt = t.attempt + 1, lease_owner = p.owner,
             lease_expires_at = n.now + t.lease_ms * interval '1 ms',
             start_to_close_at = n.now + t.start_to_close_ms * interval '1 ms',
             heartbeat_due_at = n.now + t.heartbeat_ms * interval '1 ms',
             heartbeat_at = null, heartbeat = null, poll_request_id = p.poll, holder_knows = $5,
             seen_event_id = case when t.kind = 0 then r.next_event_id - 1 end
         from n, p join workflow_runs r on r.run_id = p.run_id
         where t.run_id = any($1) and t.run_id = p.run_id and t.task_no = p.task_no
         returning t.run_id, t.task_no, p.place, t.attempt, t.seen_event_id, n.now as leased_at,
             t.lease_expires_at, t.start_to_close_at, t.heartbeat_due_at",
    )
    .bind(runs)
    .bind(tasks)
    .bind(owners)
    .bind(polls)
    .bind(profile.knows)
    .fetch_all(from)
    .await?;
    rows.into_iter().map(Claimed::try_from).collect()
}
