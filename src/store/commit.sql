-- The door: every write to runs and tasks, one statement, one snapshot, one autocommit.
--
-- ord = 1..n is an item's place in the batch; a run is in a batch once, a workflow id is claimed in
-- it once. Everything is decided before anything is written: headers are locked in key order, then
-- task rows in key order, then keys are claimed, and each write reads the outcome. need counts the
-- fences of an item; an item writes if and only if all of them held. Lines between `--? part` and `--.`
-- are left out when no item needs that part.
--
-- Statistics may say at any moment that tasks or timers are empty, and then it seems cheaper to walk a
-- whole index than to look up some keys. So the runs are a condition of the table itself as well, wherever
-- rows are found by key.
with i as materialized (
    select run_id, version, pre, need, ord
    from unnest({items:text,bigint,int,int}) with ordinality as i(run_id, version, pre, need, ord)),
--? fenced
-- Fence 1: run headers. A row that changed while we waited is judged in its newest version.
lr as materialized (
    select i.ord from i join workflow_runs r on r.run_id = i.run_id
    where i.version > 0 and r.version = i.version
    order by r.run_id for no key update of r),
-- Fence 2: leases, addressed by primary key only, after all headers. Tasks that an item closes or
-- makes ready again without a fence are locked here as well (mode 4), so that every task row is
-- locked in key order, and renewals in the same order never meet a commit crosswise.
f as materialized (
    select * from unnest({fences:int,text,int,smallint,text,int}) f(ord, run_id, task_no, mode, owner, attempt)),
lt as materialized (
    select f.ord, f.mode from f join tasks t on t.run_id = f.run_id and t.task_no = f.task_no
    where t.run_id = any (array(select run_id from f)) and case f.mode
            when 0 then t.lease_owner = f.owner and t.attempt = f.attempt and t.lease_expires_at > clock_timestamp()
            when 1 then t.lease_owner = f.owner and t.attempt = f.attempt
            when 2 then t.lease_owner = f.owner and t.attempt = f.attempt
                and least(t.lease_expires_at, t.start_to_close_at, t.heartbeat_due_at) <= clock_timestamp()
            when 3 then t.lease_owner is null
            else true
          end
      and (select count(*) from lr) >= 0
    order by t.run_id, t.task_no for update of t),
--.
pre as materialized (
    select array_agg(n = 0 order by ord) as a from (
        select ord, sum(n) as n from (
            select ord, -pre as n from i
--? fenced
            union all select ord, 1 from lr union all select ord, 1 from lt where mode < 4
--.
        ) u
        group by ord) z),
-- Fence 3: keys. Last, because a claim is itself a write; so an item claims at most one.
--? workflows
w as materialized (
    select * from unnest({workflows:int,text,text,text}) w(ord, namespace, workflow_id, run_id)),
wi as (
    insert into workflow_instances (namespace, workflow_id, run_id, run_number)
    select namespace, workflow_id, run_id, 1 from w where (select a from pre)[ord]
    order by namespace, workflow_id
    on conflict do nothing returning run_id),
--.
--? requests
q as materialized (
    select * from unnest({requests:int,text,text,text,text,text,bigint,text,bigint,text,text})
        q(ord, namespace, workflow_id, kind, request_id, run_id, command_no, name, digest, run_target, made_id)),
qi as (
    insert into request_receipts (namespace, workflow_id, kind, request_id, run_id, command_no, name, digest, run_target, made_id, accepted_at)
    select namespace, workflow_id, kind, request_id, run_id, command_no, name, digest, run_target, made_id, clock_timestamp()
    from q where (select a from pre)[ord] and (select count(*) from wi) >= 0
    order by namespace, workflow_id, kind, request_id
    on conflict do nothing returning run_id),
--.
-- ok.a[ord]; made without a join between CTEs, so that nothing is quadratic in the batch.
ok as materialized (
    select array_agg(n = 0 order by ord) as a, clock_timestamp() as now from (
        select ord, sum(n) as n from (
            select ord, -need as n from i
--? fenced
            union all select ord, 1 from lr union all select ord, 1 from lt where mode < 4
--.
--? workflows
            union all select w.ord, 1 from w where w.run_id in (select run_id from wi)
--.
--? requests
            union all select q.ord, 1 from q where q.run_id in (select run_id from qi)
--.
        ) u
        group by ord) z),
--? created
w1 as (
    insert into workflow_runs (run_id, namespace, workflow_id, run_number, workflow_type, queue, business_key, build_id,
        version, next_event_id, status, started_at, last_progress_at, memo, search_attributes)
    select run_id, namespace, workflow_id, run_number, workflow_type, queue, business_key, build_id,
        1, next_event_id, status, started_at, started_at, memo, search_attributes
    from unnest({created:int,text,text,text,int,text,text,text,text,bigint,smallint,timestamptz,text,text})
        n(ord, run_id, namespace, workflow_id, run_number, workflow_type, queue, business_key, build_id, next_event_id,
          status, started_at, memo, search_attributes)
    where (select a from ok)[n.ord]),
--.
--? changed
w2 as (
    update workflow_runs r set version = u.version, next_event_id = u.next_event_id, status = u.status,
        closed_reason = u.closed_reason, closed_at = u.closed_at, last_progress_at = u.last_progress_at, archived = u.archived,
        memo = coalesce(u.memo, r.memo), search_attributes = coalesce(u.search_attributes, r.search_attributes)
    from unnest({changed:int,text,bigint,bigint,smallint,text,timestamptz,timestamptz,boolean,text,text})
        u(ord, run_id, version, next_event_id, status, closed_reason, closed_at, last_progress_at, archived, memo, search_attributes)
    where r.run_id = u.run_id and (select a from ok)[u.ord]),
--.
--? family
w3 as (
    update workflow_instances w set run_id = m.run_id, run_number = m.run_number
    from unnest({moved:int,text,text,text,int}) m(ord, namespace, workflow_id, run_id, run_number)
    where w.namespace = m.namespace and w.workflow_id = m.workflow_id and (select a from ok)[m.ord]),
-- Workflow ids that the server makes are free.
w3b as (
    insert into workflow_instances (namespace, workflow_id, run_id, run_number)
    select namespace, workflow_id, run_id, 1 from unnest({made:int,text,text,text}) m(ord, namespace, workflow_id, run_id)
    where (select a from ok)[m.ord]),
--.
--? closed
c as materialized (
    select * from unnest({tasks_closed:int,text,int}) c(ord, run_id, task_no)),
w5 as (
    delete from tasks t using c
    where t.run_id = any (array(select run_id from c)) and t.run_id = c.run_id and t.task_no = c.task_no and (select a from ok)[c.ord]),
--.
--? touched
g as materialized (
    select * from unnest({tasks_again:int,text,int,timestamptz,text}) g(ord, run_id, task_no, visible_at, blocked_by)),
w6 as (
    update tasks t set state = 0, visible_at = g.visible_at, lease_owner = null, lease_expires_at = null,
        start_to_close_at = null, heartbeat_due_at = null, heartbeat_at = null, heartbeat = null,
        poll_request_id = null, seen_event_id = null, holder_knows = null, blocked_by = g.blocked_by
    from g
    where t.run_id = any (array(select run_id from g)) and t.run_id = g.run_id and t.task_no = g.task_no and (select a from ok)[g.ord]),
--.
--? opened
w7 as (
    insert into tasks (run_id, task_no, kind, namespace, queue, task_type, priority, fairness_key, fairness_weight, build_id,
        needs, session, session_id, preferred, preferred_until, state, visible_at, attempt, lease_owner, lease_ms, lease_expires_at, start_to_close_ms, start_to_close_at,
        heartbeat_ms, heartbeat_due_at, poll_request_id, seen_event_id, holder_knows)
    select run_id, task_no, kind, namespace, queue, task_type, priority, fairness_key, fairness_weight, build_id,
        needs, session, session_id, preferred, preferred_until, case when owner is null then 0 else 1 end, visible_at, case when owner is null then 0 else 1 end, owner, lease_ms,
        case when owner is not null then ok.now + lease_ms * interval '1 ms' end,
        start_to_close_ms, case when owner is not null then ok.now + start_to_close_ms * interval '1 ms' end,
        heartbeat_ms, case when owner is not null then ok.now + heartbeat_ms * interval '1 ms' end,
        poll_request_id, seen_event_id, holder_knows
    from ok, unnest({tasks_opened:int,text,int,smallint,text,text,text,smallint,text,smallint,text,bigint,text,text,text,timestamptz,timestamptz,text,bigint,bigint,bigint,text,bigint,bigint})
        t(ord, run_id, task_no, kind, namespace, queue, task_type, priority, fairness_key, fairness_weight, build_id, needs,
          session, session_id, preferred, preferred_until, visible_at, owner, lease_ms, start_to_close_ms, heartbeat_ms, poll_request_id, seen_event_id, holder_knows)
    where ok.a[t.ord]),
--.
--? timers
w8 as (
    insert into timers as r (run_id, kind, no, due_at)
    select run_id, kind, no, due_at from unnest({timers_set:int,text,smallint,int,timestamptz}) s(ord, run_id, kind, no, due_at)
    where (select a from ok)[s.ord]
    on conflict (run_id, kind, no) do update set due_at = excluded.due_at),
x as materialized (
    select * from unnest({timers_cancelled:int,text,smallint,int}) c(ord, run_id, kind, no)),
w9 as (
    delete from timers t using x c
    where t.run_id = any (array(select run_id from x)) and t.run_id = c.run_id and t.kind = c.kind and t.no = c.no and (select a from ok)[c.ord]),
--.
--? touched
m as materialized (
    select * from unnest({tasks_marked:int,text,int,bigint,boolean}) m(ord, run_id, task_no, needs, cancel)),
w9b as (
    update tasks t set needs = coalesce(m.needs, t.needs), cancel_requested = t.cancel_requested or m.cancel
    from m
    where t.run_id = any (array(select run_id from m)) and t.run_id = m.run_id and t.task_no = m.task_no and (select a from ok)[m.ord]),
--.
--? family
w10 as (
    insert into relays (run_id, event_id, body, created_at)
    select run_id, event_id, body, (select now from ok) from unnest({relays:int,text,bigint,text}) l(ord, run_id, event_id, body)
    where (select a from ok)[l.ord]),
--.
w4 as (
    insert into history_batches (run_id, first_event_id, version, event_count, events, journal, recorded_at)
    select run_id, first_event_id, version, event_count, events, journal, (select now from ok)
    from unnest({history:int,text,bigint,bigint,int,bytea,bytea}) h(ord, run_id, first_event_id, version, event_count, events, journal)
    where (select a from ok)[h.ord])
select a, now from ok
