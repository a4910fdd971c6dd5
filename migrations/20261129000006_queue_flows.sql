-- What each node saw of a queue in the last minute, for operators: each node writes its own rows, every
-- few seconds and only while something happens. A crash forgets them.
--
-- Lock and cost: a new table.

create unlogged table queue_flows (
    namespace  text collate "C" not null,
    queue      text collate "C" not null,
    node       text collate "C" not null,
    added      bigint not null,
    dispatched bigint not null,
    noted_at   timestamptz not null,
    primary key (namespace, queue, node)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
