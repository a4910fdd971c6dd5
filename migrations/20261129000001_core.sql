-- The core: runs, their history, open tasks, timers, callers' keys, workers.
--
-- Keys begin with the run or the namespace, and nothing crosses runs: no sequence, no foreign key.
-- Identifiers compare bytewise (collate "C"), so that the lock order of a batch is the order of its
-- texts. Lock and cost: new tables only.

create table namespaces (
    name           text collate "C" primary key,
    description    text,
    retention_days integer not null default 30,
    created_at     timestamptz not null default clock_timestamp(),
    updated_at     timestamptz not null default clock_timestamp()
);
insert into namespaces (name, description) values ('default', 'Default namespace');

-- Header of one run: what lists and fences need. Written in the commit that writes the history.
-- No index holds a column that an update changes, so that updates stay on the page.
create table workflow_runs (
    run_id            text collate "C" primary key,
    namespace         text collate "C" not null,
    workflow_id       text collate "C" not null,
    run_number        integer not null,
    workflow_type     text collate "C" not null,
    queue             text collate "C" not null,
    business_key      text,
    build_id          text,
    version           bigint not null,
    next_event_id     bigint not null,
    status            smallint not null,
    closed_reason     text,
    started_at        timestamptz not null,
    last_progress_at  timestamptz not null,
    closed_at         timestamptz,
    archived          boolean not null default false,
    memo              text not null,
    search_attributes text not null
) with (fillfactor = 70);
create index workflow_runs_newest on workflow_runs (namespace, started_at desc, run_id desc);
create index workflow_runs_newest_of_type on workflow_runs (namespace, workflow_type, started_at desc, run_id desc);
create index workflow_runs_of_workflow on workflow_runs (namespace, workflow_id, run_number);

-- Which run a workflow id stands for.
create table workflow_instances (
    namespace   text collate "C" not null,
    workflow_id text collate "C" not null,
    run_id      text collate "C" not null,
    run_number  integer not null,
    primary key (namespace, workflow_id)
) with (fillfactor = 80);

-- One row per commit of a run. Events are JSON objects separated by commas, served as they are; the
-- journal holds facts that only the fold reads. Two writers of one version collide on the key.
create table history_batches (
    run_id         text collate "C" not null,
    first_event_id bigint not null,
    version        bigint not null,
    event_count    integer not null,
    events         text not null,
    journal        text not null,
    recorded_at    timestamptz not null,
    primary key (run_id, first_event_id, version)
);

-- Open workflow and activity tasks only; the row goes when the task closes.
create table tasks (
    run_id            text collate "C" not null,
    task_no           integer not null,
    kind              smallint not null,
    namespace         text collate "C" not null,
    queue             text collate "C" not null,
    task_type         text collate "C" not null,
    priority          smallint not null,
    fairness_key      text,
    fairness_weight   smallint not null,
    build_id          text,
    needs             bigint not null,
    state             smallint not null,
    visible_at        timestamptz not null,
    attempt           integer not null,
    lease_owner       text collate "C",
    lease_ms          bigint not null,
    lease_expires_at  timestamptz,
    start_to_close_ms bigint,
    start_to_close_at timestamptz,
    heartbeat_ms      bigint,
    heartbeat_due_at  timestamptz,
    heartbeat_at      timestamptz,
    heartbeat         text,
    poll_request_id   text,
    seen_event_id     bigint,
    holder_knows      bigint,
    cancel_requested  boolean not null default false,
    blocked_by        text,
    session           text,
    session_id        text collate "C",
    primary key (run_id, task_no)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index tasks_ready on tasks (namespace, queue, kind, priority, visible_at, run_id, task_no)
    where state = 0 and session_id is null;
-- Ready and held tasks of worker sessions, which are few and are claimed one by one.
create index tasks_in_sessions on tasks (namespace, queue, session_id) where session_id is not null;
-- Held tasks by key. No deadline is in it, so a heartbeat stays on the page; holders are few.
create index tasks_leased on tasks (run_id, task_no) where state = 1;
-- Tasks whose history some code could not replay, for the day when other code registers.
create index tasks_blocked on tasks (namespace, queue) where blocked_by is not null;

create table timers (
    run_id text collate "C" not null,
    kind   smallint not null,
    no     integer not null,
    due_at timestamptz not null,
    primary key (run_id, kind, no)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index timers_due on timers (due_at, run_id);

-- What one run has to tell another and has not been taken yet; numbered by the event that says so.
create table relays (
    run_id     text collate "C" not null,
    event_id   bigint not null,
    body       text not null,
    created_at timestamptz not null,
    primary key (run_id, event_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Callers' command keys and what each stood for.
create table request_receipts (
    namespace   text collate "C" not null,
    workflow_id text collate "C" not null,
    kind        text collate "C" not null,
    request_id  text collate "C" not null,
    run_id      text collate "C" not null,
    command_no  bigint not null,
    name        text not null,
    digest      bigint not null,
    run_target  text not null,
    made_id     text,
    accepted_at timestamptz not null,
    primary key (namespace, workflow_id, kind, request_id)
);

-- Questions to workers: queries, and whether an update may be accepted. Their askers wait; nothing
-- is lost with them that the askers do not notice.
create unlogged table asks (
    run_id           text collate "C" not null,
    no               integer not null,
    kind             smallint not null,
    namespace        text collate "C" not null,
    queue            text collate "C" not null,
    task_type        text collate "C" not null,
    build_id         text,
    needs            bigint not null,
    name             text not null,
    arguments        text not null,
    seen_event_id    bigint not null,
    node             text not null,
    asked_at         timestamptz not null,
    deadline_at      timestamptz not null,
    state            smallint not null,
    attempt          integer not null,
    lease_owner      text collate "C",
    lease_expires_at timestamptz,
    answer           text,
    primary key (run_id, no)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index asks_ready on asks (namespace, queue, kind, asked_at) where state = 0;
create index asks_old on asks (deadline_at);

create table workers (
    namespace                        text collate "C" not null,
    worker_id                        text collate "C" not null,
    epoch                            bigint not null,
    status                           text not null,
    task_queues                      text[] not null,
    runtime                          text not null,
    sdk_version                      text,
    build_id                         text,
    workflow_types                   text[] not null,
    activity_types                   text[] not null,
    workflow_definition_fingerprints text not null,
    workflow_command_contracts       text not null,
    capabilities                     text[] not null,
    capability_manifest              text,
    max_concurrent_workflow_tasks    integer not null,
    max_concurrent_activity_tasks    integer not null,
    max_concurrent_worker_sessions   integer not null,
    task_slots                       text,
    process_metrics                  text,
    heartbeat_interval_seconds       integer,
    registered_at                    timestamptz not null,
    updated_at                       timestamptz not null,
    last_heartbeat_at                timestamptz not null,
    primary key (namespace, worker_id)
) with (fillfactor = 70);

create table worker_sessions (
    namespace                     text collate "C" not null,
    session_id                    text collate "C" not null,
    options                       text not null,
    queue                         text collate "C" not null,
    status                        text not null,
    lease_owner                   text collate "C" not null,
    lease_expires_at              timestamptz not null,
    ttl_expires_at                timestamptz not null,
    closed_at                     timestamptz,
    failure_reason                text,
    last_heartbeat_at             timestamptz not null,
    created_at                    timestamptz not null,
    updated_at                    timestamptz not null,
    primary key (namespace, session_id)
) with (fillfactor = 70);
create index worker_sessions_owned on worker_sessions (namespace, lease_owner) where status = 'active';
