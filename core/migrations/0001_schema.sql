-- Flyball on Postgres 15 and newer. Chapter 1: jobs, lanes and days.
--
-- A job's row is written once and never updated. Its changing state is in narrow rows that are only
-- inserted and deleted (ready, lease, scheduled). So vacuum has little work, and a long history
-- does not slow down a claim. A lane is an index prefix: a lane that may not run is not queried and
-- costs nothing.

create schema if not exists flyball;

-- === Identifiers =================================================================================

-- 15 bits of day above 37 bits of sequence above one bit: ids stay below 2^53 (exact in JavaScript),
-- and a day is a range of ids. The last bit is set for members of groups, so that what ends a job can
-- tell from the id alone that no group counts it.
create sequence flyball.job_seq as bigint maxvalue 137438953471 cycle cache 1;

-- The number of a day. Written so that the planner can inline it: a function call would cost more
-- than its work.
create function flyball.day_of(at timestamptz) returns bigint
language sql immutable parallel safe
return ((at at time zone 'UTC')::date - date '2020-01-01')::bigint;

-- The id of the next job that belongs to no group.
create function flyball.next_id() returns bigint
language sql volatile
return (flyball.day_of(now()) << 38) | (nextval('flyball.job_seq') << 1);

-- A lane's id is a hash and not a row, so producers of one lane never wait for each other.
create function flyball.lane_of(throttle text, key text) returns bigint
language sql stable parallel safe
return ('x' || encode(substr(sha256(convert_to(throttle || chr(31) || key, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint;

-- How an attempt ends. `ambiguous`: the request was sent and no response came, so it may or may not
-- have been processed. `dropped`: the job exceeded the limit of a throttle that drops, and never
-- ran. `merged`: another job with the same unique key replaced it while it waited.
create type flyball.outcome as enum
    ('completed', 'failed', 'throttled', 'snoozed', 'dead', 'cancelled', 'lost', 'handed_back', 'ambiguous', 'dropped', 'merged');

-- === Jobs ========================================================================================

-- Written once. Partitioned by day through the id; old days are truncated, not deleted row by row.
--
-- The functions that enqueue check every job. Check constraints here would be parsed and compiled
-- again for each insert, which takes three times as long as the rest of the insert.
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
    -- The tenant that owns the job; '' for the operators' own.
    tenant       text        not null default '',
    unique_key   bytea,
    args         jsonb       not null,
    -- The caller's trace context, passed to the handler.
    traceparent  text,
    -- Timeout of this job, in seconds; null for that of its kind.
    timeout_s    real,
    -- Time at which the unique key expires whether or not the job has ended; null if the job holds
    -- its key until it ends. Kept after the key itself has expired: a dead job that is requeued
    -- then does not take the key again.
    unique_until timestamptz,
    -- The module of the tenant that sent the job; '' for none.
    module       text        not null default '',
    -- The lane in which a message of a tenant waits until its limits admit it to the lane above;
    -- null if it was admitted at once.
    admission_lane bigint,
    primary key (id)
) partition by range (id);
-- A tenant's own jobs, newest or oldest first, whatever the others have. The operators' jobs are
-- left out, so an installation without tenants pays nothing.
create index job_tenant on flyball.job (tenant, id) where tenant <> '';

-- Jobs that may run now. The index is the queue: one probe per lane, oldest first within a
-- priority.
--
-- Hot tables are vacuumed by row count and not by fraction, which bounds the dead rows between two
-- vacuums. Truncating their tail would take a lock that blocks every claim.
create table flyball.ready (
    lane_id      bigint   not null,
    priority     smallint not null,
    job_id       bigint   not null,
    attempt      smallint not null default 0,
    cost         float8   not null,
    -- Most jobs hold no unique key until they end; for those, finishing does not look for one.
    holds_unique boolean  not null default true
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000, vacuum_truncate = off);
create unique index ready_lane on flyball.ready (lane_id, priority, job_id);

-- Running jobs. The fence is a random number chosen by the worker that claims: a sequence could
-- repeat a number after a crash. The leases of a dead worker are searched once, when it is found
-- dead, so this needs no index that every claim would have to maintain.
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

-- Jobs that run later: at a time chosen by the producer (retry = false) or after a failed attempt
-- (retry = true).
create table flyball.scheduled (
    job_id       bigint      primary key,
    run_at       timestamptz not null,
    lane_id      bigint      not null,
    priority     smallint    not null,
    attempt      smallint    not null default 0,
    cost         float8      not null,
    retry        boolean     not null,
    holds_unique boolean     not null default true,
    -- The promotion group among all jobs that are due at once; set by a trigger. Below 0 for messages
    -- that are not planned yet, which no promotion moves.
    turn         smallint    not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000, vacuum_truncate = off);
create index scheduled_due on flyball.scheduled (run_at) where turn >= 0;
create index scheduled_turn on flyball.scheduled (turn, run_at);
-- A lane's scheduled jobs, for purging a lane.
create index scheduled_lane on flyball.scheduled (lane_id, job_id);

-- Dead letters: kept until they are requeued or discarded; a requeued one is pruned with its day.
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

-- Recent failures for dashboards and the CLI. Small, so that no page scans the history.
create table flyball.failure (
    id      bigint          generated always as identity primary key,
    job_id  bigint          not null,
    attempt smallint        not null,
    outcome flyball.outcome not null,
    at      timestamptz     not null default clock_timestamp(),
    error   text
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000);

-- Unique keys in use: until expires_at, or until the job ends if expires_at is null.
create table flyball.unique_holder (
    digest     bytea  primary key,
    job_id     bigint not null,
    expires_at timestamptz,
    -- Start of the burst of enqueues that a debounced job stands for; null if the job is not
    -- debounced.
    since      timestamptz
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
create index unique_holder_job on flyball.unique_holder (job_id);
-- Finds expired unique keys without reading the others.
create index unique_holder_expires on flyball.unique_holder (expires_at) where expires_at is not null;

-- === Lanes and kinds =============================================================================

-- The directory of lanes, written by the worker that first sees a lane and never by enqueue.
create table flyball.lane (
    lane_id    bigint      primary key,
    throttle   text        not null,
    key        text        not null,
    first_seen timestamptz not null default now(),
    -- Share relative to the other lanes of its throttle.
    weight     real        not null default 1 check (weight > 0 and weight <= 1000),
    -- Number of ready jobs when the lane was last walked, and the time of that write. Only changes
    -- are written, and at least once a day for a lane that still has jobs, so that unused lanes can
    -- be distinguished from used ones.
    depth      bigint      not null default 0,
    depth_at   timestamptz not null default now()
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
-- Few lanes have a weight of their own; all others have 1.
create index lane_weighted on flyball.lane (lane_id) where weight <> 1;
-- Lists the lanes of a throttle in the order of their keys.
create index lane_throttle on flyball.lane (throttle, key);
-- Finds the deepest lanes of a throttle. Empty lanes, the majority, are left out.
create index lane_deepest on flyball.lane (throttle, depth, lane_id) where depth > 0;

-- The kinds that some worker runs or that were registered by hand.
create table flyball.kind (
    name          text        primary key check (octet_length(name) between 1 and 128),
    registered_at timestamptz not null default now(),
    -- Number of attempts that have ended since counting began, and the mean cost in tokens of about
    -- the last thousand.
    attempts      bigint      not null default 0,
    mean_cost     float8,
    -- Whether every role may enqueue it.
    public        boolean     not null default true
);
insert into flyball.kind (name, public) values ('http', true), ('notification', true), ('reindex', false);

-- === Days ========================================================================================

-- Creates the partitions of a day. Attaching an existing table takes such a weak lock on the parent
-- that workers and producers continue.
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
