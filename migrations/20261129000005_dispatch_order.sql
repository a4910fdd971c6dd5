-- The order of hand-outs: classes for fair sharing, and the worker that keeps a run in memory.
--
-- Ready tasks of a class have an index of their own, so that those without one are found as before.
-- Lock and cost: columns without a rewrite; the index of ready tasks is built anew, which locks the
-- table for as long as it takes to read the tasks that are open.

alter table tasks alter column fairness_key type text collate "C";
-- Who is given the task if it polls, and until when it keeps the run.
alter table tasks add column preferred text collate "C", add column preferred_until timestamptz;

drop index tasks_ready;
create index tasks_ready on tasks (namespace, queue, kind, priority, visible_at, run_id, task_no)
    where state = 0 and session_id is null and fairness_key is null;
create index tasks_ready_of_class on tasks
    (namespace, queue, kind, priority, fairness_key, visible_at, run_id, task_no)
    where state = 0 and session_id is null and fairness_key is not null;
