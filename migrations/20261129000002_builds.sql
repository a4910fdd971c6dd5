-- Builds: what operators decided about the builds of a queue; tokens of registrations; how many tasks
-- were handed out per minute, where that is limited.
--
-- Lock and cost: new tables, and one new column without a rewrite.

-- One row per build that an operator has spoken of. '' stands for workers without a build, which no
-- registration can be named.
create table build_id_rollouts (
    namespace          text collate "C" not null,
    queue              text collate "C" not null,
    build_id           text collate "C" not null,
    drain_intent       text not null,
    drained_at         timestamptz,
    promoted_at        timestamptz,
    rolled_back_at     timestamptz,
    new_start_selected boolean not null,
    first_seen_at      timestamptz not null,
    primary key (namespace, queue, build_id)
) with (fillfactor = 80);
create unique index build_id_rollouts_selected on build_id_rollouts (namespace, queue) where new_start_selected;

-- Drawn anew by each registration; one that was made before this has none.
alter table workers add column registration_token text collate "C";

-- What a deregistration by token came to, for a caller that missed the answer.
create table deregistrations (
    namespace          text collate "C" not null,
    worker_id          text collate "C" not null,
    registration_token text collate "C" not null,
    recovered          bigint not null,
    ended_at           timestamptz not null,
    primary key (namespace, worker_id, registration_token)
);
create index deregistrations_old on deregistrations (ended_at);

-- Counted only where a limit is set. A crash forgets the counts, which last a minute.
create unlogged table dispatches (
    namespace text collate "C" not null,
    kind      smallint not null,
    minute    timestamptz not null,
    queue     text collate "C" not null,
    count     bigint not null,
    primary key (namespace, kind, minute, queue)
) with (fillfactor = 60);
