//! The door with one fence or one order taken away: the hammer must notice each. What it cannot
//! notice is listed with the reason.

use futures_util::{StreamExt, stream};
use leasehold::store::door::{Door, TEMPLATE};

use crate::hammer::{Force, hammer};

/// Name, the text that is taken away, and what stands there instead.
type Mutant = (&'static str, &'static str, &'static str);

/// Taken away fences, which show within a few goes.
///
/// Left out, because no caller can tell the difference:
/// - `order by` of the headers and of the leases, taken away without a replacement: the arrays come
///   sorted already. Another order in its place is in the list.
/// - the locks of task rows that no fence names: `fences` has a test of its own for them.
/// - `(select a from pre)` in front of workflow ids: a start has no other fence.
/// - `order by` of the request keys: two runs never claim the same key at once, because only one run
///   of a workflow is open.
/// - the dependencies between the three steps: locks are taken in some uniform order without them, too.
const FENCES: &[Mutant] = &[
    (
        "any version",
        "i.version > 0 and r.version = i.version",
        "i.version > 0",
    ),
    (
        "live: any worker",
        "when 0 then t.lease_owner = f.owner and t.attempt",
        "when 0 then t.attempt",
    ),
    (
        "live: any hand-out",
        "when 0 then t.lease_owner = f.owner and t.attempt = f.attempt and",
        "when 0 then t.lease_owner = f.owner and",
    ),
    (
        "live: run out",
        "f.attempt and t.lease_expires_at > clock_timestamp()",
        "f.attempt",
    ),
    (
        "seen: any worker",
        "when 1 then t.lease_owner = f.owner and t.attempt",
        "when 1 then t.attempt",
    ),
    (
        "seen: any hand-out",
        "when 1 then t.lease_owner = f.owner and t.attempt = f.attempt",
        "when 1 then t.lease_owner = f.owner",
    ),
    (
        "overdue: any worker",
        "when 2 then t.lease_owner = f.owner and t.attempt",
        "when 2 then t.attempt",
    ),
    (
        "overdue: any hand-out",
        "when 2 then t.lease_owner = f.owner and t.attempt = f.attempt",
        "when 2 then t.lease_owner = f.owner",
    ),
    (
        "overdue: in time",
        "and least(t.lease_expires_at, t.start_to_close_at, t.heartbeat_due_at) <= clock_timestamp()",
        "",
    ),
    (
        "a taken workflow id counts",
        " where w.run_id in (select run_id from wi)",
        "",
    ),
    (
        "keys claimed whatever the fences say",
        "from q where (select a from pre)[ord] and",
        "from q where",
    ),
    (
        "a taken key counts",
        " where q.run_id in (select run_id from qi)",
        "",
    ),
    (
        "headers made unfenced",
        "where (select a from ok)[n.ord]",
        "",
    ),
    (
        "headers changed unfenced",
        "where r.run_id = u.run_id and (select a from ok)[u.ord]",
        "where r.run_id = u.run_id",
    ),
    (
        "workflow ids moved unfenced",
        "w.workflow_id = m.workflow_id and (select a from ok)[m.ord]",
        "w.workflow_id = m.workflow_id",
    ),
    (
        "history appended unfenced",
        "where (select a from ok)[h.ord]",
        "",
    ),
    (
        "tasks closed unfenced",
        "t.task_no = c.task_no and (select a from ok)[c.ord]",
        "t.task_no = c.task_no",
    ),
    (
        "tasks made ready unfenced",
        "t.task_no = g.task_no and (select a from ok)[g.ord]",
        "t.task_no = g.task_no",
    ),
    ("tasks opened unfenced", "where ok.a[t.ord]", ""),
    (
        "timers set unfenced",
        "where (select a from ok)[s.ord]",
        "where true",
    ),
    (
        "timers cancelled unfenced",
        "t.no = c.no and (select a from ok)[c.ord]",
        "t.no = c.no",
    ),
];

/// Taken away locks and orders show in races only.
const LOCKS: &[Mutant] = &[
    (
        "headers not locked",
        "order by r.run_id for no key update of r)",
        "order by r.run_id)",
    ),
    (
        "headers locked in an order of each session's own",
        "order by r.run_id for no key update of r)",
        "order by md5(r.run_id || pg_backend_pid()) for no key update of r)",
    ),
    (
        "leases not locked",
        "order by t.run_id, t.task_no for update of t)",
        "order by t.run_id, t.task_no)",
    ),
    (
        "leases locked in an order of each session's own",
        "order by t.run_id, t.task_no for update of t)",
        "order by md5(t.run_id || pg_backend_pid()) for update of t)",
    ),
    (
        "workflow ids claimed out of order",
        "    order by namespace, workflow_id\n    on conflict",
        "    on conflict",
    ),
];

const FORCE: Force = Force {
    connections: 4,
    statements: 30,
    runs_per_statement: 24,
    starts_per_statement: 6,
    near: 48,
};
/// Few runs that everybody writes show most in locks and their order.
const CROWD: Force = Force {
    connections: 4,
    statements: 60,
    runs_per_statement: 16,
    starts_per_statement: 2,
    near: 16,
};
/// Many starts show most in the order of their workflow ids.
const STARTS: Force = Force {
    connections: 4,
    statements: 30,
    runs_per_statement: 0,
    starts_per_statement: 24,
    near: 48,
};
/// A mutant that only shows in a race may need more than one go.
const GOES: u64 = 40;
/// Hammers that run side by side.
const AT_ONCE: usize = 3;

/// Hammers each mutant until it is noticed, and names those that were not.
async fn survivors(mutants: &[Mutant]) -> Vec<&'static str> {
    let began = std::time::Instant::now();
    let mut hammering = stream::iter(mutants)
        .map(async |&(name, from, to)| {
            assert_eq!(
                TEMPLATE.matches(from).count(),
                1,
                "{name}: the text is in the door once"
            );
            let door = Door::new(&TEMPLATE.replacen(from, to, 1));
            let force = match name.split(' ').nth(1) {
                Some("locked" | "not") => CROWD,
                Some("ids") if name.contains("order") => STARTS,
                _ => FORCE,
            };
            for go in 0..GOES {
                if let Err(why) = hammer(door, force, go).await {
                    return (name, Some((go, why)));
                }
            }
            (name, None)
        })
        .buffer_unordered(AT_ONCE);
    let mut survivors = Vec::new();
    while let Some((name, caught)) = hammering.next().await {
        match caught {
            Some((go, why)) => println!("mutant {name}: {why} (go {go})"),
            None => survivors.push(name),
        }
    }
    println!(
        "mutants: {} in {:.1} s",
        mutants.len(),
        began.elapsed().as_secs_f64()
    );
    survivors
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fence_that_is_taken_away_is_missed() {
    assert_eq!(survivors(FENCES).await, Vec::<&str>::new());
}

// cargo test --test store -- --ignored every_lock --nocapture
#[tokio::test(flavor = "multi_thread")]
#[ignore = "races take up to a minute to show"]
async fn every_lock_and_every_order_that_is_taken_away_is_missed() {
    assert_eq!(survivors(LOCKS).await, Vec::<&str>::new());
}
