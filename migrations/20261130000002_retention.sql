-- Retention: closed runs are removed when their namespace's time is over, headers first and histories in parts.
--
-- Lock and cost: a new table; writes of request keys wait while their index is built. Nothing is added to
-- the headers of runs, whose changes must stay on their page: what is due is found by when runs began.

-- Runs that are gone and whose history is still to be removed. Whoever found such a run just before may
-- read on for a while, and whoever removes histories may be killed in between.
create table removed_runs (
    removed_at timestamptz not null,
    run_id     text collate "C" not null,
    -- How often the run was written, which is how many rows its history has.
    batches    bigint not null,
    primary key (removed_at, run_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The keys of a run, which are free again when it is gone. A workflow that goes on for years has many more.
create index request_receipts_of_run on request_receipts (run_id);
