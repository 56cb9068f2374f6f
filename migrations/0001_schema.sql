-- Flyball in Postgres 15 and newer. Chapter 1: jobs, lanes and days.
--
-- The idea of the layout: a job is written once and never updated; what changes while it lives are narrow rows that are only
-- inserted and deleted (ready, lease, scheduled), so that vacuum has little to do and a long history costs a claim nothing.
-- A lane is an index prefix, so a lane that may not run costs nothing either: it is simply not asked for.

create schema if not exists flyball;

-- === Numbers =========================================================================================================

-- 38 bits of sequence under 15 bits of day: ids stay below 2^53 (exact in JavaScript), and a day is a range of ids.
create sequence flyball.job_seq as bigint maxvalue 274877906943 cycle cache 1;

-- The number of a day, in words that the planner can inline: a call of a function costs more than its work.
create function flyball.day_of(at timestamptz) returns bigint
language sql immutable parallel safe
return ((at at time zone 'UTC')::date - date '2020-01-01')::bigint;

-- The number of the next job.
create function flyball.next_id() returns bigint
language sql volatile
return (flyball.day_of(now()) << 38) | nextval('flyball.job_seq');

-- A lane's id is a hash, not a row, so that producers of one lane never wait for each other.
create function flyball.lane_of(throttle text, key text) returns bigint
language sql stable parallel safe
return ('x' || encode(substr(sha256(convert_to(throttle || chr(31) || key, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint;

-- How an attempt ends. `ambiguous`: the work was handed over and no answer came, so nobody knows whether it was done. `dropped`:
-- the job was over the limit of a throttle that drops, and ended without having run. `merged`: another job with the same unique
-- key took the place of this one while it waited.
create type flyball.outcome as enum
    ('completed', 'failed', 'throttled', 'snoozed', 'dead', 'cancelled', 'lost', 'handed_back', 'ambiguous', 'dropped', 'merged');

-- === Jobs ============================================================================================================

-- Written once. Partitioned by day through the id; old days are truncated, not deleted row by row.
--
-- The doors check every job, by name. Checked again here, each check would be parsed and compiled anew for every single insert,
-- which costs three times as much as the rest of it.
create table flyball.job (
    id           bigint      not null,
    lane_id      bigint      not null,
    priority     smallint    not null,
    max_attempts smallint    not null,
    cost         float8      not null,
    created_at   timestamptz not null default now(),
    run_at       timestamptz,
    kind         text        not null,
    throttle     text        not null,
    key          text        not null,
    unique_key   bytea,
    args         jsonb       not null,
    -- The caller's trace, handed on to the handler.
    traceparent  text,
    -- A time-out of this job alone, in seconds.
    timeout_s    real,
    -- When the job's unique key is free whether or not the job has ended; null where the job holds its key until it ends. It is
    -- kept beyond the key itself, so that a dead job that is to run again is known to have no claim on it.
    unique_until timestamptz,
    primary key (id)
) partition by range (id);

-- What may run now. The index is the queue: one probe per lane, oldest first within a priority.
--
-- Hot tables are vacuumed by count, not by share, which bounds what is dead in them between two vacuums; truncating their tail
-- would take a lock that stops every claim.
create table flyball.ready (
    lane_id      bigint   not null,
    priority     smallint not null,
    job_id       bigint   not null,
    attempt      smallint not null default 0,
    cost         float8   not null,
    -- Most jobs hold no unique key until they end; for those, finishing need not look for one.
    holds_unique boolean  not null default true
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000, vacuum_truncate = off);
create unique index ready_lane on flyball.ready (lane_id, priority, job_id);

-- What is running. The fence is a random number chosen by the claiming worker: a sequence could repeat one after a crash.
-- Leases of a dead worker are looked for once, when it is found dead, so finding them needs no index that every claim would
-- have to feed.
create table flyball.lease (
    job_id       bigint      primary key,
    fence        bigint      not null,
    worker_id    int         not null,
    lane_id      bigint      not null,
    priority     smallint    not null,
    attempt      smallint    not null,
    cost         float8      not null,
    claimed_at   timestamptz not null default clock_timestamp(),
    holds_unique boolean     not null default true
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000);

-- What runs later: at a time its producer named (retry = false) or after a failed attempt (retry = true).
create table flyball.scheduled (
    job_id       bigint      primary key,
    run_at       timestamptz not null,
    lane_id      bigint      not null,
    priority     smallint    not null,
    attempt      smallint    not null default 0,
    cost         float8      not null,
    retry        boolean     not null,
    holds_unique boolean     not null default true,
    -- Its turn among all that is due at once, which a trigger fills in.
    turn         smallint    not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000, vacuum_truncate = off);
create index scheduled_due on flyball.scheduled (run_at);
create index scheduled_turn on flyball.scheduled (turn, run_at);
-- A lane's scheduled jobs, for those who empty a lane.
create index scheduled_lane on flyball.scheduled (lane_id, job_id);

-- The dead letters: kept until somebody requeues or their day is pruned after requeueing.
create table flyball.dead (
    job_id   bigint      primary key,
    lane_id  bigint      not null,
    priority smallint    not null,
    attempt  smallint    not null,
    cost     float8      not null,
    died_at  timestamptz not null default now(),
    error    text
);
create index dead_at on flyball.dead (died_at);

-- One row per finished attempt, partitioned like the jobs.
create table flyball.attempt (
    job_id      bigint          not null,
    attempt     smallint        not null,
    outcome     flyball.outcome not null,
    worker_id   int,
    started_at  timestamptz,
    finished_at timestamptz     not null default clock_timestamp(),
    error       text
) partition by range (job_id);
create index attempt_job on flyball.attempt (job_id);

-- Recent failures for people who look; small, so that no page ever scans the history.
create table flyball.failure (
    id      bigint          generated always as identity primary key,
    job_id  bigint          not null,
    attempt smallint        not null,
    outcome flyball.outcome not null,
    at      timestamptz     not null default clock_timestamp(),
    error   text
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000);

-- Unique keys that are taken: until expires_at, or until the job ends where that is null.
create table flyball.unique_holder (
    digest     bytea  primary key,
    job_id     bigint not null,
    expires_at timestamptz,
    -- When the burst of enqueues began that a debounced job stands for; null where its job is not debounced.
    since      timestamptz
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
create index unique_holder_job on flyball.unique_holder (job_id);
-- Unique keys that expire by themselves are found without looking at all others.
create index unique_holder_expires on flyball.unique_holder (expires_at) where expires_at is not null;

-- === Lanes and kinds =================================================================================================

-- The directory of lanes, written by whoever first sees a lane, never by enqueue.
create table flyball.lane (
    lane_id    bigint      primary key,
    throttle   text        not null,
    key        text        not null,
    first_seen timestamptz not null default now(),
    -- Its share beside the other lanes of its throttle.
    weight     real        not null default 1 check (weight > 0 and weight <= 1000),
    -- How many ready jobs it held when it was last walked, and when that was written. Only changes are written, and at least once
    -- a day for a lane that still has jobs of any sort, so that one of long ago can be told from one that is in use.
    depth      bigint      not null default 0,
    depth_at   timestamptz not null default now()
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
-- Lanes with a weight of their own are few; everybody else has 1.
create index lane_weighted on flyball.lane (lane_id) where weight <> 1;
-- The lanes of a throttle in the order of their keys.
create index lane_throttle on flyball.lane (throttle, key);
-- The deepest lanes of a throttle. Empty lanes, which are most, stay out.
create index lane_deepest on flyball.lane (throttle, depth, lane_id) where depth > 0;

-- The kinds that some worker runs or that were registered by hand.
create table flyball.kind (
    name          text        primary key check (octet_length(name) between 1 and 128),
    registered_at timestamptz not null default now(),
    -- How many attempts have ended since this is counted, and what one of the last thousand or so cost in the mean, in tokens.
    attempts      bigint      not null default 0,
    mean_cost     float8,
    -- Whether every role may enqueue it.
    public        boolean     not null default true
);
insert into flyball.kind (name, public) values ('http', true), ('notification', true), ('reindex', false);

-- === Days ============================================================================================================

-- Makes the partitions of a day. Attaching a ready-made table locks the parent so lightly that workers and producers go on beside it.
create function flyball.ensure_day(day bigint) returns void
language plpgsql as $$
declare
    parent text;
    child  text;
begin
    foreach parent in array array['job', 'attempt'] loop
        child := format('%s_%s', parent, day);
        if to_regclass(format('flyball.%I', child)) is null then
            perform pg_advisory_xact_lock(hashtext('flyball.ensure_day'));
            if to_regclass(format('flyball.%I', child)) is null then
                execute format('create table flyball.%I (like flyball.%I including defaults including constraints)', child, parent);
                execute format('alter table flyball.%I attach partition flyball.%I for values from (%s) to (%s)',
                    parent, child, day << 38, (day + 1) << 38);
            end if;
        end if;
    end loop;
end $$;

do $$ begin perform flyball.ensure_day(flyball.day_of(now()) + i) from generate_series(-1, 7) as i; end $$;
