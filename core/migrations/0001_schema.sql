-- Flyball on Postgres 15 and newer. Chapter 1: the schema: types, tables and days. The chapters
-- behind it hold the functions, by topic.
--
-- A job's row is written once and never updated. Its changing state is in narrow rows that are only
-- inserted and deleted (ready, lease, scheduled). So vacuum has little work, and a long history
-- does not slow down a claim. A lane is an index prefix: a lane that may not run is not queried and
-- costs nothing.

create schema if not exists flyball;

-- === Programs ====================================================================================

-- A program works beside a schema that has migrations which it does not know, as long as it knows
-- `oldest_program`: the migration that is the newest one of the oldest program that may run. A
-- migration that only adds leaves the number alone. One that takes away what such a program uses
-- raises it, and is released one version after the program that has stopped using it.
create table flyball.compatibility (
    one            boolean primary key default true check (one),
    oldest_program bigint  not null
);
insert into flyball.compatibility (oldest_program) values (15);

-- === Identifiers =================================================================================

-- 15 bits of day above 37 bits of sequence above one bit: ids stay below 2^53 (exact in
-- JavaScript), and a day is a range of ids. The last bit is set for members of groups, so that what
-- ends a job can tell from the id alone that no group counts it.
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

-- The ends of an attempt. `ambiguous`: the request was sent and no response came, so it may or may
-- not have been processed. `dropped`: the job exceeded the limit of a throttle that drops, and
-- never ran. `merged`: another job with the same unique key replaced it while it waited.
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
    cost         float8      not null,
    created_at   timestamptz not null default now(),
    priority     smallint    not null,
    max_attempts smallint    not null,
    -- Timeout of this job, in seconds; null for that of its kind.
    timeout_s    real,
    run_at       timestamptz,
    -- Time at which the unique key expires whether or not the job has ended; null if the job holds
    -- its key until it ends. Kept after the key itself has expired: a dead job that is requeued
    -- then does not take the key again.
    unique_until timestamptz,
    -- The lane in which a message of a tenant waits until its limits admit it to the lane above;
    -- null if it was admitted at once.
    admission_lane bigint,
    -- The group of the job; null for none.
    group_id     bigint,
    kind         text        not null,
    throttle     text        not null,
    key          text        not null,
    -- The tenant that owns the job; '' for the operators' own.
    tenant       text        not null default '',
    unique_key   bytea,
    args         jsonb       not null,
    -- The caller's trace context, passed to the handler.
    traceparent  text,
    -- The module of the tenant that sent the job; '' for none.
    module       text        not null default '',
    -- Short texts by which people find jobs; null for none.
    tags         text[],
    -- The jobs after which it runs, as it was given; null for none. Without `after_failure` it is
    -- cancelled if one of them does not complete.
    after        bigint[],
    after_failure text,
    -- Webhooks: URLs that are called when it has completed and when it is dead, and the name of the
    -- secret that signs the calls; null for none.
    on_complete  text,
    on_dead      text,
    webhook_secret text,
    -- The waits of this job after failed attempts, instead of those of its kind, as `{"delay_s": 5,
    -- "factor": 2, "max_delay_s": 600}`; null for those of its kind. Workers compute each wait.
    retry        jsonb,
    primary key (id)
) partition by range (id);
-- A tenant's own jobs, newest or oldest first, whatever the others have. The operators' jobs are
-- left out, so an installation without tenants pays nothing.
create index job_tenant on flyball.job (tenant, id) where tenant <> '';
-- Lists the jobs of a group. The others are left out.
create index job_in_group on flyball.job (group_id, id) where group_id is not null;
-- Finds jobs by their tags. Jobs without are left out, so they cost it nothing; the list of pending
-- entries is off, because a search that reads it would take a time without a bound.
create index job_tags on flyball.job using gin (tags) with (fastupdate = off) where tags is not null;

-- Jobs that may run now. The index is the queue: one probe per lane, oldest first within a
-- priority.
--
-- Hot tables are vacuumed by row count and not by fraction, which bounds the dead rows between two
-- vacuums. Truncating their tail would take a lock that blocks every claim.
--
-- The columns stand in the order of their alignment, widest first, as those of other tables with a
-- row for each job or message: Postgres fills the space before a wide column that follows a narrow
-- one, in the table and in the log. With `priority` before `job_id`, and `attempt` before `cost`, a
-- row here would have twelve bytes more.
create table flyball.ready (
    lane_id      bigint   not null,
    job_id       bigint   not null,
    cost         float8   not null,
    priority     smallint not null,
    attempt      smallint not null default 0,
    -- Most jobs hold no unique key until they end; for those, finishing does not look for one.
    holds_unique boolean  not null default true
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000, vacuum_truncate = off);
create unique index ready_lane on flyball.ready (lane_id, priority, job_id);
-- Beside a publication of all tables, as tools for change data capture make it, Postgres refuses to
-- change rows that a subscriber cannot find, which would stop every claim. So each table without a
-- primary key says what its rows are found by. Only `wal_level = logical` writes that to the log.
alter table flyball.ready replica identity using index ready_lane;

-- Running jobs. The fence is a random number chosen by the worker that claims: a sequence could
-- repeat a number after a crash. The leases of a dead worker are searched once, when it is found
-- dead, so this needs no index that every claim would have to maintain.
create table flyball.lease (
    job_id       bigint      primary key,
    fence        bigint      not null,
    lane_id      bigint      not null,
    cost         float8      not null,
    claimed_at   timestamptz not null default clock_timestamp(),
    worker_id    int         not null,
    priority     smallint    not null,
    attempt      smallint    not null,
    holds_unique boolean     not null default true,
    -- A lease of a remote worker expires by itself, because only the calls for its job show that
    -- the work goes on. The columns from here on are null in all other leases. This one is the
    -- broker that counts the job towards the limits of concurrency.
    broker_id    int,
    -- Seconds by which each heartbeat extends the lease.
    lease_s      real,
    expires_at   timestamptz,
    -- The tokens that the throttle charged for the job, and its real cost, as last reported.
    charged      float8,
    real_cost    float8,
    -- Seconds after which the attempt is over, by its job or its kind; null for none.
    timeout_s    real
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000);
create index lease_broker on flyball.lease (broker_id) where broker_id is not null;

-- Jobs that run later: at a time chosen by the producer (retry = false) or after a failed attempt
-- (retry = true).
create table flyball.scheduled (
    job_id       bigint      primary key,
    run_at       timestamptz not null,
    lane_id      bigint      not null,
    cost         float8      not null,
    priority     smallint    not null,
    attempt      smallint    not null default 0,
    -- The promotion group among all jobs that are due at once; set by a trigger. Below 0 for
    -- messages that are not planned yet, which no promotion moves.
    turn         smallint    not null default 0,
    retry        boolean     not null,
    holds_unique boolean     not null default true
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000, vacuum_truncate = off);
create index scheduled_due on flyball.scheduled (run_at) where turn >= 0;
create index scheduled_turn on flyball.scheduled (turn, run_at);
-- A lane's scheduled jobs, for purging a lane. Its condition always holds, as that of other indexes
-- here: a plan that is made while a table is empty finds two indexes equally good for the same row,
-- that of its key, and one that has the key behind another column and is then read from end to end.
-- Postgres uses an index with such a condition only if a query names its first column.
create index scheduled_lane on flyball.scheduled (lane_id, job_id) where lane_id is not null;

-- Dead letters: kept until they are requeued or discarded; a requeued one is pruned with its day.
create table flyball.dead (
    job_id   bigint      primary key,
    lane_id  bigint      not null,
    cost     float8      not null,
    died_at  timestamptz not null default now(),
    priority smallint    not null,
    attempt  smallint    not null,
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
alter table flyball.attempt replica identity full;

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
    job_id     bigint not null,
    expires_at timestamptz,
    -- Start of the burst of enqueues that a debounced job stands for; null if the job is not
    -- debounced.
    since      timestamptz,
    digest     bytea  primary key
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
create index unique_holder_job on flyball.unique_holder (job_id);
-- Finds expired unique keys without reading the others.
create index unique_holder_expires on flyball.unique_holder (expires_at) where expires_at is not null;

-- Running jobs that were asked to stop.
create table flyball.cancel (
    job_id       bigint      primary key,
    requested_at timestamptz not null default now()
);

-- Cursors of long jobs.
create table flyball.checkpoint (
    job_id     bigint      primary key,
    cursor     jsonb       not null,
    done       bigint      not null,
    total      bigint,
    note       text        not null default '',
    updated_at timestamptz not null default clock_timestamp()
) with (fillfactor = 50);

-- Results of completed jobs, for a while.
create table flyball.result (
    job_id     bigint      primary key,
    kept_until timestamptz not null,
    result     jsonb       not null
);
create index result_kept on flyball.result (kept_until);

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
insert into flyball.kind (name, public) values ('http', true), ('notification', true), ('reindex', false), ('batch', false);

-- Permissions of roles beyond those of every role with usage on the schema. A row also holds for
-- the members of its role.
create table flyball.producer (
    role   text   primary key check (octet_length(role) between 1 and 63),
    kinds  text[] not null default '{}',
    tenant text   check (tenant ~ '^[A-Za-z0-9._/:{}-]{1,64}$'),
    module text   check (octet_length(module) between 1 and 64),
    critical boolean not null default false,
    check (module is null or tenant is not null)
);
comment on table flyball.producer is 'Roles that may enqueue kinds that are not public, and the tenant and module of their jobs.';
comment on column flyball.producer.kinds is 'Kinds that members of the role may enqueue in addition to the public ones.';
comment on column flyball.producer.tenant is 'Tenant that owns its jobs and their unique keys, shared with the API''s tokens of that tenant. Null: no tenant; its unique keys are the role''s own.';
comment on column flyball.producer.critical is 'Whether it may send critical messages, which do not wait for the limits of the tenant.';
comment on column flyball.producer.module is 'Module of the tenant. Null: what the role gives to flyball.as_tenant, else its own name.';

-- === Workers =====================================================================================

-- A new row per process start and never the host's name: a restarted worker must not inherit the
-- leases of the dead one.
create table flyball.worker (
    id           int         generated always as identity primary key,
    name         text        not null,
    host         text        not null,
    pid          int         not null,
    started_at   timestamptz not null default clock_timestamp(),
    heartbeat_at timestamptz not null default clock_timestamp(),
    ttl          interval    not null,
    stopped_at   timestamptz,
    kinds        text[]      not null default '{}',
    -- Whether its leases were given back after it ended.
    rescued      boolean     not null default false,
    -- Whether it takes part in sharing out lanes. A worker whose slots are all in use serves none.
    serves       boolean     not null default true,
    -- Capabilities besides kinds, each with a digest of the settings behind it: {"pool alerts":
    -- "1f0c...", "channel sms": ""}.
    capabilities jsonb       not null default '{}',
    -- The throttles that it was told to serve, as patterns; empty for all.
    throttles    text[]      not null default '{}',
    -- Time at which it last met a ready job that it does not serve.
    met_unserved_at timestamptz,
    -- A process that hands jobs to remote workers claims them as a worker of its own, the broker.
    -- Each remote worker has a row as well: it holds the leases, and people see it. Only runners
    -- and brokers claim, so only they count where lanes and jobs are divided.
    role         text        not null default 'runner' check (role in ('runner', 'broker', 'remote')),
    -- The tenant whose jobs alone a broker or a remote worker gets; null for all.
    tenant       text,
    -- Time at which its claims failed last, if they had failed for some seconds by then, and why.
    claims_failed_at timestamptz,
    claims_error text
) with (fillfactor = 50);
-- Live workers are few, stopped ones may be many. Only starting and stopping updates this index.
create index worker_live on flyball.worker (id) where stopped_at is null;
-- One live row per name, so that repeated claims of one program are those of one worker.
create unique index worker_remote on flyball.worker (name, coalesce(tenant, '')) where role = 'remote' and stopped_at is null;

-- Settings that all workers must share, by subject ("pool sms") and field, each value as a digest.
-- A worker is refused at its start if it differs from a live one. Apart from the worker's row,
-- which each heartbeat rewrites.
create table flyball.worker_settings (
    worker_id int   not null references flyball.worker on delete cascade,
    subject   text  not null,
    fields    jsonb not null,
    primary key (worker_id, subject)
);

-- Ready jobs that no live worker serves, as last counted, by what they need. Throttles that no live
-- worker serves come from the depths.
create table flyball.unserved (
    throttle  text   not null,
    kind      text   not null,
    needs     text[] not null,
    jobs      bigint not null,
    oldest_at timestamptz,
    primary key (throttle, kind, needs)
);

-- Which worker serves which lanes: the top six bits of a lane's id are its shard, so a shard is a
-- range of the index. Ownership only saves workers from querying the same lanes; claims are correct
-- without it.
create table flyball.shard (
    shard      smallint    primary key check (shard between 0 and 63),
    worker_id  int,
    expires_at timestamptz not null default '-infinity'
) with (fillfactor = 50);
insert into flyball.shard (shard) select generate_series(0, 63);

-- Producers notify only while a dispatcher sleeps: a NOTIFY per insert would serialise all commits.
create unlogged table flyball.wakeup (
    one    boolean primary key default true check (one),
    asleep boolean not null default true
);
insert into flyball.wakeup default values;

-- The locks of work that one process does at a time. Each is the lock of a row, because every role
-- that may connect can take an advisory lock, and keep it for as long as it stays connected. On
-- this table only its owner has rights.
create table flyball.mutex (
    name text primary key
);
insert into flyball.mutex (name) values ('ensure_day'), ('prune_day'), ('promote'), ('publications'), ('expire_waiting');

-- === Jobs that wait for others, webhooks and groups ==============================================

-- Jobs that wait, and those that they wait for.
create table flyball.job_after (
    job_id      bigint  not null,
    after_id    bigint  not null,
    -- True if the job runs after any end of the other one.
    runs_anyway boolean not null,
    primary key (job_id, after_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
create index job_after_after on flyball.job_after (after_id, job_id) where after_id is not null;

-- The place of the look at all jobs that others wait for, and its time.
create table flyball.after_sweep (
    one      boolean     primary key default true check (one),
    after_id bigint      not null default 0,
    at       timestamptz not null default '-infinity'
) with (fillfactor = 50);
insert into flyball.after_sweep default values;

-- Jobs with webhooks that have not ended for good. So a copy of an attempt, as when a day is
-- pruned, calls nobody.
create table flyball.webhook_job (
    job_id bigint primary key
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);

-- Calls that are to be enqueued, written by what ends the job and in its transaction.
create table flyball.webhook_call (
    id       bigint      generated always as identity primary key,
    job_id   bigint      not null,
    event    text        not null,
    at       timestamptz not null default clock_timestamp(),
    -- The reason for which it could not be enqueued; null before the first try.
    problem  text,
    -- The time of the next try, and so in the future for those that were refused alone.
    retry_at timestamptz not null default now()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
create index webhook_call_retry on flyball.webhook_call (retry_at, id);

-- Groups of jobs, with their counts.
create table flyball.job_group (
    id          bigint      generated always as identity primary key,
    -- The owner of the group and of its callback: '' for operators, a tenant, or a role.
    owner       text        not null default '',
    -- The tenant of its jobs; '' for the operators' own.
    tenant      text        not null default '',
    module      text        not null default '',
    name        text        not null default '',
    -- The job that is enqueued when all have ended, with the fields of a job; null for none.
    callback    jsonb,
    -- Its jobs, and those that have ended. A dead job that is requeued is not dead any more.
    jobs        bigint      not null default 0,
    completed   bigint      not null default 0,
    dead        bigint      not null default 0,
    cancelled   bigint      not null default 0,
    created_at  timestamptz not null default clock_timestamp(),
    -- Time from which no job can join.
    sealed_at   timestamptz,
    cancelled_at timestamptz,
    ended_at    timestamptz,
    callback_job_id bigint,
    -- The reason for which the callback could not be enqueued, and the time of the next try.
    callback_problem text,
    retry_at    timestamptz
) with (fillfactor = 50);
create index job_group_tenant on flyball.job_group (tenant, id) where tenant <> '';
create index job_group_ended on flyball.job_group (ended_at) where ended_at is not null;
create index job_group_retry on flyball.job_group (retry_at) where retry_at is not null;
-- Counts the groups that have not ended.
create index job_group_open on flyball.job_group (id) where ended_at is null;
-- Lists the groups of one role or tenant. Those of operators are left out.
create index job_group_owner on flyball.job_group (owner, id) where owner <> '';
-- Finds the groups that are not sealed, oldest first.
create index job_group_unsealed on flyball.job_group (id) where sealed_at is null;

-- Members that have not ended for good: those that wait or run, and dead ones.
create table flyball.group_member (
    job_id   bigint  primary key,
    group_id bigint  not null,
    dead     boolean not null default false
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
create index group_member_group on flyball.group_member (group_id, job_id) where group_id is not null;

-- Changes of counts that are not in the group's row yet.
create table flyball.group_change (
    group_id  bigint not null,
    jobs      bigint not null default 0,
    completed bigint not null default 0,
    dead      bigint not null default 0,
    cancelled bigint not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
create index group_change_group on flyball.group_change (group_id);
alter table flyball.group_change replica identity full;

-- === Operators ===================================================================================

-- A row means that everything is paused: no worker claims until it is deleted.
create table flyball.pause (
    one   boolean     primary key default true check (one),
    since timestamptz not null default now(),
    by    text        not null default '',
    why   text        not null default ''
);

-- The audit log.
create table flyball.audit (
    id      bigint      generated always as identity primary key,
    at      timestamptz not null default clock_timestamp(),
    actor   text        not null,
    action  text        not null,
    subject text        not null,
    before  jsonb,
    after   jsonb,
    why     text,
    -- The HTTP API's token, by its name in the settings, and its tenant; null for other entry
    -- points.
    token   text,
    tenant  text
);
-- Finds the lines of a tenant, newest first, and those that are too many.
create index audit_tenant on flyball.audit (tenant, id);

-- Browser sessions that were ended before they expired. A session is a signed cookie without a row
-- of its own; the digest of a revoked one is kept here until it expires, so that every process
-- refuses it.
create table flyball.revoked_session (
    digest  text   primary key,
    until_s bigint not null
);

-- The filters of all entry points besides the place, the state and the time of a job. Nulls match
-- all.
create type flyball.job_search as (
    "group"    bigint,
    error_like text,
    -- The trace id of `traceparent`.
    trace      text,
    unique_key text,
    -- The owners of the unique key that are meant, for jobs of no tenant.
    key_owners text[],
    args       jsonb,
    args_path  jsonpath,
    -- All of them.
    tags       text[]
);

create type flyball.job_filter as (
    states         text[],
    kind           text,
    throttle       text,
    key            text,
    tenant         text,
    created_after  timestamptz,
    created_before timestamptz,
    search         flyball.job_search
);

-- A job of a list.
create type flyball.listed_job as (
    id           bigint,
    kind         text,
    throttle     text,
    key          text,
    tenant       text,
    group_id     bigint,
    priority     smallint,
    max_attempts smallint,
    cost         float8,
    created_at   timestamptz,
    due_at       timestamptz,
    attempt      smallint,
    last_error   text,
    state        text,
    tags         text[],
    ended_at     timestamptz
);

-- Indexes over jobs that an operator has added: by the value at a path of the arguments, or by the
-- trace id where `path` is null. Made by `flyball index create`, without a lock that stops the
-- queue.
create table flyball.job_index (
    name       text        primary key,
    path       text[]      unique,
    created_at timestamptz not null default now(),
    check (cardinality(path) between 1 and 8)
);

-- === Schedules ===================================================================================

-- Schedules: the job that each makes, its times, and its next occurrence.
create table flyball.cron (
    name         text        primary key,
    expression   text        not null,
    time_zone    text        not null default 'UTC',
    kind         text        not null,
    args         jsonb       not null default '{}',
    throttle     text        not null default 'default',
    key          text        not null default '',
    priority     int         not null default 1,
    max_attempts int         not null default 10,
    cost         float8      not null default 1,
    timeout_s    float8      check (timeout_s > 0),
    -- Policy for occurrences that were missed while no worker ran, and for one that is due while
    -- the last job is unfinished.
    catch_up     text        not null default 'one' check (catch_up in ('one', 'all', 'none')),
    overlap      text        not null default 'skip' check (overlap in ('skip', 'allow')),
    paused       boolean     not null default false,
    -- The next occurrence. Null: a worker computes it, because only workers evaluate expressions
    -- and time zones in full.
    next_at      timestamptz,
    -- The last occurrence that was handled; none is handled twice.
    last_at      timestamptz,
    last_job_id  bigint,
    skipped_at   timestamptz,
    -- The reason why it makes no jobs, or made none the last time.
    problem      text,
    updated_at   timestamptz not null default clock_timestamp(),
    -- Tags of its jobs and their waits after failed attempts; null for none.
    tags         text[],
    retry        jsonb,
    -- Occurrences of a schedule with catch_up `all` that were refused; the next one tries them
    -- again.
    to_retry     timestamptz[],
    -- The occurrence that a process could not compute because it does not know the time zone, and
    -- the time of the next try by any process. Both hold while `problem` begins with `time_zone: `.
    missed_at    timestamptz,
    retry_at     timestamptz,
    check (catch_up <> 'all' or overlap = 'allow')
) with (fillfactor = 50);
create index cron_due on flyball.cron (next_at) where not paused;
-- Finds schedules that were handled ahead of time.
create index cron_ahead on flyball.cron (last_at) where not paused;
-- Counts schedules with a problem.
create index cron_problem on flyball.cron (name) where problem is not null and not paused;

-- === Throttles and their governor ================================================================

-- The last knobs of every throttle, from which an emptied Redis is restored.
create table flyball.knobs (
    throttle   text        primary key,
    fields     jsonb       not null,
    updated_at timestamptz not null default clock_timestamp()
);

-- Feedback of the workers. Each worker counts how the jobs of each throttle end and writes the
-- counts with its heartbeat, so that a governor in another process sees higher costs, refusals and
-- failures within one or two seconds.
--
-- Counters start at 0 when their row is inserted, and a restarted worker is a new worker. Their age
-- is that of the worker's heartbeat: a row without changes is not written again.
create table flyball.feedback (
    worker_id     int         not null,
    throttle      text        not null,
    completed     bigint      not null,
    failed        bigint      not null,
    refused       bigint      not null,
    busy_s        float8      not null,
    running       bigint      not null,
    created_at    timestamptz not null default clock_timestamp(),
    -- Completed attempts without a known duration: not in `busy_s`, not in `durations`.
    untimed       bigint      not null default 0,
    -- Histogram of the durations of successful attempts, from which the governor estimates the p99.
    -- The first bucket is below a millisecond, and each bucket is a fifth wider than the one
    -- before. Trailing empty buckets are left out.
    durations     bigint[]    not null default '{}',
    -- Times of the last success and the last failure, and the number of failures up to the last
    -- success. From all rows of a throttle together follows how many attempts have failed since.
    succeeded_at  timestamptz,
    failed_at     timestamptz,
    failed_before bigint      not null default 0,
    primary key (worker_id, throttle)
) with (fillfactor = 50);

-- Leaders, each under a term that only grows.
create table flyball.leader (
    name       text        primary key,
    holder     text        not null,
    term       bigint      not null,
    expires_at timestamptz not null
);

-- State of the governor per throttle.
create table flyball.governor (
    throttle   text        primary key,
    term       bigint      not null,
    state      jsonb       not null,
    updated_at timestamptz not null default clock_timestamp()
);

-- Decisions of the governor and their reasons.
create table flyball.decision (
    id           bigint      generated always as identity primary key,
    throttle     text        not null,
    at           timestamptz not null default clock_timestamp(),
    rps          float8      not null,
    previous_rps float8,
    breaker      text        not null,
    mode         text        not null,
    limiting     text        not null,
    reason       text        not null,
    terms        jsonb       not null default '{}'
);
create index decision_throttle on flyball.decision (throttle, id desc);

-- === Depth and retention =========================================================================

-- One row for each throttle that has or had jobs. One process at a time walks the waiting jobs in
-- short slices and records what it found, so reading the depth of a queue never counts rows.
create table flyball.depth (
    throttle        text        primary key,
    ready           bigint      not null default 0,
    scheduled       bigint      not null default 0,
    running         bigint      not null default 0,
    dead            bigint      not null default 0,
    oldest_ready_at timestamptz,
    counted_at      timestamptz not null default clock_timestamp()
) with (fillfactor = 50);

-- Age of the figures: those of throttles are no older than `at`, those of lanes no older than
-- `lanes_at`, and every lane that had jobs at `walked_at` was visited since then. Null until the
-- first walk is complete.
create table flyball.sweep (
    one        boolean     primary key default true check (one),
    at         timestamptz,
    lanes_at   timestamptz,
    walked_at  timestamptz
) with (fillfactor = 50);
insert into flyball.sweep default values;

-- Days past their retention that could not be dropped because some of their jobs are alive or ended
-- recently; they are emptied again once a day. `next` is where the thinning of such a day
-- continues, null at its end; `pruned_at` is the time of its last step.
create table flyball.day (
    day       bigint      primary key,
    pruned_at timestamptz not null default now(),
    remaining bigint      not null,
    next      bigint
);

-- Kinds whose finished jobs or dead letters are kept shorter or longer than all others, and how far
-- housekeeping has come with each. The row '*' is for the dead letters of all other kinds.
create table flyball.kind_retention (
    kind           text        primary key check (octet_length(kind) between 1 and 128),
    -- From the end of a job; null for that of all kinds.
    retention      interval    check (retention between interval '1 hour' and interval '3650 days'),
    -- From the death of a job; null for that of all kinds.
    dead_retention interval    check (dead_retention between interval '1 hour' and interval '3650 days'),
    next_job       bigint      not null default 0,
    next_died_at   timestamptz not null default '-infinity',
    next_dead      bigint      not null default 0
);

-- Jobs of a kind that is kept shorter, which had not expired when housekeeping came by, and the
-- time of the next look: the earliest at which they can expire.
create table flyball.unexpired (
    job_id  bigint      primary key,
    kind    text        not null,
    look_at timestamptz not null
);
create index unexpired_look on flyball.unexpired (kind, look_at);

-- === Digests of recipients =======================================================================

-- An unkeyed digest of a phone number is as good as the number, because all numbers can be tried.
-- So every digest is an HMAC-SHA-256 over the digest that a program computes, under a key that is
-- made here and never leaves this database.

-- The HMAC key: 32 random bytes, padded and combined with the two constants of HMAC.
create table flyball.digest_key (
    is_only   boolean primary key default true check (is_only),
    inner_pad bytea   not null check (length(inner_pad) = 64),
    outer_pad bytea   not null check (length(outer_pad) = 64)
);

-- A role that may read all tables of the schema still reads nothing here; one function of its owner
-- does.
alter table flyball.digest_key enable row level security;
revoke all on flyball.digest_key from public;

do $$
declare
    -- Four random UUIDs hold 488 bits from Postgres' strong random source; this needs no extension.
    key       constant bytea := sha256(decode(replace(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text
        || gen_random_uuid()::text, '-', ''), 'hex'));
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
begin
    for n in 0..31 loop
        inner_pad := set_byte(inner_pad, n, get_byte(inner_pad, n) # get_byte(key, n));
        outer_pad := set_byte(outer_pad, n, get_byte(outer_pad, n) # get_byte(key, n));
    end loop;
    insert into flyball.digest_key (inner_pad, outer_pad) values (inner_pad, outer_pad);
end $$;

-- === Messages ====================================================================================

-- The delivery record of a message. A message without a row is queued, or its job ended before any
-- attempt.
create table flyball.delivery (
    job_id           bigint      primary key,
    created_at       timestamptz not null default clock_timestamp(),
    updated_at       timestamptz not null default clock_timestamp(),
    -- Number of all attempts, of which `attempts` has the last.
    attempt_count    int         not null default 0,
    complained       boolean     not null default false,
    -- Whether it died because no account was available.
    unsent           boolean     not null default false,
    requeued_at      timestamptz,
    channel          text        not null,
    pool             text        not null,
    -- The tenant that owns the message, from its job; '' for the operators' own.
    tenant           text        not null default '',
    provider         text        not null default '',
    account          text,
    state            text        not null check (state in ('queued', 'sent', 'delivered', 'failed', 'bounced', 'suppressed', 'collected',
                         'opted_out', 'duplicate', 'capped', 'quiet', 'unreachable')),
    provider_id      text,
    recipient_digest bytea,
    -- The masked form.
    recipient        text        not null default '',
    category         text        not null default '',
    -- The last 50 attempts, oldest first: at, account, outcome, status, reason, ms.
    attempts         jsonb       not null default '[]',
    last_outcome     text,
    reason           text        not null default ''
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
create index delivery_provider_id on flyball.delivery (pool, provider_id) where provider_id is not null;
create index delivery_unsent on flyball.delivery (pool, job_id) where unsent;
-- A tenant's own messages, also those whose jobs were deleted.
create index delivery_tenant on flyball.delivery (tenant, job_id) where tenant <> '';

-- One row per event. An event that arrives before its message is recorded waits without a job.
create table flyball.delivery_event (
    at               timestamptz not null,
    received_at      timestamptz not null default clock_timestamp(),
    job_id           bigint,
    pool             text        not null,
    event_id         text        not null,
    account          text        not null,
    channel          text        not null,
    provider_id      text        not null,
    event_type       text        not null check (event_type in ('sent', 'delivered', 'bounced', 'failed', 'complained', 'unsubscribed')),
    recipient_digest bytea,
    reason           text        not null default '',
    primary key (pool, event_id)
);
create index delivery_event_waiting on flyball.delivery_event (pool, provider_id) where job_id is null;
create index delivery_event_unmatched on flyball.delivery_event (received_at) where job_id is null;
create index delivery_event_received on flyball.delivery_event (received_at);

-- Tokens of signatures that do not cover the body: a token that was used is accepted again only
-- with the same body.
create table flyball.event_token (
    digest      bytea       primary key,
    body_digest bytea       not null,
    expires_at  timestamptz not null
);
create index event_token_expires on flyball.event_token (expires_at);

-- Counts per account, by the hour in which the event was received.
create table flyball.account_tally (
    pool         text        not null,
    account      text        not null,
    hour         timestamptz not null,
    accepted     bigint      not null default 0,
    delivered    bigint      not null default 0,
    bounced      bigint      not null default 0,
    complained   bigint      not null default 0,
    unsubscribed bigint      not null default 0,
    primary key (pool, account, hour)
) with (fillfactor = 50);
create index account_tally_hour on flyball.account_tally (hour);

-- State changes of accounts' breakers, each once, for the dashboard and for alerts.
create table flyball.account_event (
    id         bigint generated always as identity primary key,
    pool       text        not null,
    account    text        not null,
    from_state text        not null,
    to_state   text        not null,
    reason     text        not null,
    changed_at timestamptz not null,
    created_at timestamptz not null default clock_timestamp()
);
create index account_event_of_pool on flyball.account_event (pool, id desc);
create index account_event_created on flyball.account_event (created_at);

-- The fates of the messages of each tenant, by the hour in which they became known.
create table flyball.tenant_tally (
    tenant       text        not null,
    hour         timestamptz not null,
    accepted     bigint      not null default 0,
    bounced      bigint      not null default 0,
    complained   bigint      not null default 0,
    unsubscribed bigint      not null default 0,
    primary key (tenant, hour)
) with (fillfactor = 50);
create index tenant_tally_hour on flyball.tenant_tally (hour);

-- Suppressed recipients, by the keyed digest of the address.
create table flyball.suppression (
    channel          text        not null,
    recipient_digest bytea       not null,
    reason           text        not null,
    -- The account whose event or response caused it; null if a person did.
    pool             text,
    account          text,
    created_at       timestamptz not null default clock_timestamp(),
    primary key (channel, recipient_digest)
);

-- Backoff of recipients that could not take a message: its end, which holds for all messages, and
-- the number of failed attempts in a row.
create table flyball.recipient_backoff (
    channel          text        not null,
    recipient_digest bytea       not null,
    failures         int         not null,
    backoff_until    timestamptz not null,
    -- Until this time, one message probes whether the recipient is available again.
    first_backoff_until timestamptz not null default '-infinity',
    primary key (channel, recipient_digest)
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
create index recipient_backoff_until on flyball.recipient_backoff (backoff_until);
comment on table flyball.recipient_backoff is 'Recipients that could not take a message, and the end of their backoff.';

-- === Admission ===================================================================================

-- The most messages of a tenant that may be pending; the row '*' is for all tenants without one.
create table flyball.tenant_limit (
    tenant      text primary key check (octet_length(tenant) between 1 and 64),
    max_pending int  not null check (max_pending between 1 and 10000000)
);
comment on table flyball.tenant_limit is 'The most pending messages of a tenant; the row * is for all tenants without a row.';

-- Messages that were accepted and may not have ended yet. A row is deleted some time after its
-- message has ended, and at once if it would make the queue look full: the end of a message writes
-- nothing here.
create table flyball.pending (
    tenant text   not null,
    job_id bigint not null,
    primary key (tenant, job_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- A bound of the pending messages of a tenant up to one of them: as many as were counted, less
-- those that were swept since. A message that was enqueued before that one and committed later is
-- missing, so all are counted again after ten minutes.
create table flyball.pending_count (
    tenant     text        primary key,
    counted_to bigint      not null,
    pending    bigint      not null,
    counted_at timestamptz not null default now()
) with (fillfactor = 50);

-- The ends of a tenant's messages, as far as they were noticed, for the rate at which its queue
-- drains: the count now, and at two earlier times at least a minute apart.
create table flyball.tenant_drain (
    tenant    text        primary key,
    swept_at  timestamptz not null default clock_timestamp(),
    ended     bigint      not null default 0,
    marked_at timestamptz not null default clock_timestamp(),
    marked    bigint      not null default 0,
    older_at  timestamptz not null default clock_timestamp(),
    older     bigint      not null default 0,
    -- The last message that the sweep of a tenant looked at; 0 at its beginning.
    swept_to  bigint      not null default 0
) with (fillfactor = 50);

-- Accepted requests, by the digest of the sender and the idempotency key, or of the sender and the
-- body for a message that had to wait and has no key.
create table flyball.idempotency (
    digest     bytea       primary key,
    body       bytea       not null,
    job_id     bigint,
    batch_id   bigint,
    expires_at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
create index idempotency_expires on flyball.idempotency (expires_at);

-- Batches: one request with many recipients. `messages` are those that are not enqueued yet, each
-- with its arguments, key and unique key; a job of the kind `batch` enqueues them.
create table flyball.batch (
    id         bigint      generated always as identity primary key,
    tenant     text        not null,
    module     text        not null,
    state      text        not null check (state in ('expanding', 'running', 'paused', 'cancelled')),
    pool       text        not null,
    priority   smallint    not null,
    run_at     timestamptz,
    recipients int         not null check (recipients > 0),
    messages   jsonb       not null,
    -- The recipients whose messages were cancelled before they were enqueued.
    not_enqueued int       not null default 0,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    -- True while the batch is paused by operators.
    paused_by_operators boolean not null default false,
    -- The job that enqueues the messages; null if all were enqueued at once.
    expansion_job_id bigint,
    -- Why the messages were not enqueued; null if they were.
    problem    text
) with (fillfactor = 70);
create index batch_expanding on flyball.batch (id) where state = 'expanding';
create index batch_tenant on flyball.batch (tenant, id) where tenant is not null;

-- The messages of batches that were enqueued.
create table flyball.batch_message (
    job_id    bigint  primary key,
    batch_id  bigint  not null,
    cancelled boolean not null default false,
    -- The time and the turn to which it goes back when its batch is resumed; the time is null
    -- unless it was put aside, and the turn unless it was scheduled then.
    resumes_at timestamptz,
    resumes_turn smallint
) with (fillfactor = 80);
create index batch_message_batch on flyball.batch_message (batch_id, job_id) where batch_id is not null;

-- The last batch at which the deletion of old ones looked; 0 at its beginning.
create table flyball.batch_walk (
    one       boolean primary key default true check (one),
    walked_to bigint  not null default 0
) with (fillfactor = 50);
insert into flyball.batch_walk default values;

-- === Recipients ==================================================================================

-- The profiles of a tenant's recipients, with the fields of `PUT /api/v1/recipients/{id}`.
create table flyball.recipient (
    tenant     text        not null,
    id         text        not null,
    profile    jsonb       not null,
    updated_at timestamptz not null default clock_timestamp(),
    -- The author of the last change, as the audit log names it.
    updated_by text        not null default '',
    primary key (tenant, id)
) with (fillfactor = 85);
comment on table flyball.recipient is 'Profiles of recipients: addresses, time zone, quiet hours, preferences.';

-- Defaults of a tenant for all its recipients; a field of a profile goes before them.
create table flyball.recipient_defaults (
    tenant     text        primary key,
    profile    jsonb       not null,
    updated_at timestamptz not null default clock_timestamp(),
    updated_by text        not null default ''
);

-- The rules in force, as far as SQL needs them: the caps over which messages are refused. Every
-- process with a file of rules writes them when it starts and when the file changes; the last one
-- counts.
create table flyball.recipient_rules (
    one        boolean     primary key default true check (one),
    -- The file as its process names it; '' for the rules that ship.
    file       text        not null,
    -- The time of its last change; null for no file.
    changed_at timestamptz,
    -- By category, null for one that refuses nothing: caps by channel, those for each actor, and
    -- over which of them it refuses; `other` has those of categories that are not listed.
    refusing   jsonb       not null,
    -- The texts of each type of digest: `subject`, `body` and `html`.
    digest_texts jsonb     not null
);
comment on table flyball.recipient_rules is 'The rules for recipients in force, as far as SQL needs them.';

-- The newest messages that went, by recipient and list: seconds since 2020, oldest first. Both are
-- digests; the address of a recipient cannot be read from them.
create table flyball.cap (
    recipient uuid   not null,
    list      int    not null,
    sent      int4[] not null,
    primary key (recipient, list)
) partition by hash (recipient);

-- The seconds at which messages are to go that have a cap. That of a held message is a time that was
-- told, so it outlives a crash. That of one that goes at once is needed until its attempt begins,
-- where `cap` decides, so it is worth no log.
create table flyball.cap_reservation (
    recipient uuid    not null,
    list      int     not null,
    at_s      int     not null,
    job_id    bigint  not null,
    is_held   boolean not null
) partition by list (is_held);
create index cap_reservation_list on flyball.cap_reservation (recipient, list);
create unlogged table flyball.cap_reservation_ready partition of flyball.cap_reservation for values in (false)
    with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create table flyball.cap_reservation_held partition of flyball.cap_reservation for values in (true)
    with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
alter table flyball.cap_reservation_held replica identity full;

-- Messages that went, or are to go, by their content. A claim counts while its job lives; one that
-- is marked counts from the time at which a provider accepted the message. As each message writes
-- one, a row is 20 bytes, and its only index has 8:
--   claim  the first 24 bits of the recipient's key, so that its claims lie together, and 40 of a
--          keyed hash of the content. Two messages of a recipient that has thirty claims have the
--          same one by chance once in some thirty thousand million; then the later one ends as a
--          duplicate.
--   at_s   seconds since 2020, rounded up: positive for the time of the claim, and negative for
--          that of the mark.
-- The columns of 8 bytes are first, so that nothing is lost between them.
create table flyball.dedup (
    claim  bigint primary key,
    job_id bigint not null,
    at_s   int    not null
) partition by range (claim);

do $$
begin
    for part in 0..15 loop
        execute format('create table flyball.cap_%s partition of flyball.cap for values with (modulus 16, remainder %s)
            with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)', part, part);
        -- Equal parts of all numbers, so that the claims of a recipient are in one.
        execute format('create table flyball.dedup_%s partition of flyball.dedup for values from (%s) to (%s)
            with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)', part,
            case part when 0 then 'minvalue' else ((part - 8)::bigint << 60)::text end,
            case part when 15 then 'maxvalue' else ((part - 7)::bigint << 60)::text end);
    end loop;
end $$;

-- The result of the last look of the gates at a message, and the slots that it has used up. A
-- message that goes at once, and has no slot of a cap, has no row.
create table flyball.message_plan (
    job_id     bigint      primary key,
    since      timestamptz not null default clock_timestamp(),
    recipient  uuid        not null,
    until      timestamptz,
    -- The time that was told first.
    planned_at timestamptz,
    -- The other message, of a duplicate.
    other_job  bigint,
    -- The digest that has it, or that it closes.
    digest_id  bigint,
    -- The quarter of an hour in whose crowd it is counted; null for none.
    crowd_quarter bigint,
    coalesces  boolean     not null default false,
    -- sender, digest, or item: one of a closed digest that goes alone.
    origin     text        not null default 'sender' check (origin in ('sender', 'digest', 'item')),
    -- sending, held, collected or ended.
    state      text        not null default 'sending' check (state in ('sending', 'held', 'collected', 'ended')),
    -- The gate that decided; '' for none.
    gate       text        not null default '',
    rule       text        not null default '',
    -- Why it ended: cancelled, expired, unreachable, suppressed, opted_out, duplicate, quiet or
    -- capped.
    reason     text        not null default '',
    -- All waits of a held message in their order: gate, rule, until.
    holds      jsonb       not null default '[]',
    -- The slots that it took: list n at second n.
    slot_lists int[]       not null default '{}',
    slot_s     int[]       not null default '{}',
    -- The type and the key of the digest whose message it is; null for others.
    digest_type text,
    digest_key  text
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
-- The messages of digests. It names no state, so that a plan that changes its state stays where it
-- is.
create index message_plan_digest on flyball.message_plan (recipient, digest_type, digest_key) where origin = 'digest';
-- It names no state, so that a plan that changes its state stays where it is.
create index message_plan_recipient on flyball.message_plan (recipient, job_id) where recipient is not null;

-- Messages that were held until one quarter of an hour, by pool: the crowd of a release. Only
-- counts up, so that the messages of a recipient stay in order.
create table flyball.held_crowd (
    throttle text   not null,
    quarter  bigint not null,
    messages bigint not null,
    primary key (throttle, quarter)
) with (fillfactor = 50);

create sequence flyball.digest_seq;

-- Open digests: one for each type, recipient and key.
create table flyball.digest (
    id           bigint      primary key default nextval('flyball.digest_seq'),
    opened_at    timestamptz not null default clock_timestamp(),
    last_at      timestamptz not null default clock_timestamp(),
    closes_at    timestamptz not null,
    -- The number of items. The close fails if it finds others.
    items        int         not null,
    recipient    uuid        not null,
    tenant       text        not null,
    module       text        not null default '',
    type         text        not null,
    -- The actor, of a type that has one digest for each; else ''.
    key          text        not null default '',
    -- The recipient's id; '' if the tenant names none.
    recipient_id text        not null default '',
    category     text        not null default '',
    channel      text        not null,
    -- The address of the newest item; null if it comes from the profile.
    address      text,
    -- The pool that sends it, and the key in its throttle.
    throttle     text        not null,
    throttle_key text        not null default '',
    -- The gate that keeps it open beyond its window; '' for none.
    gate         text        not null default '',
    rule         text        not null default '',
    unique (type, recipient, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
create index digest_closes on flyball.digest (closes_at, id);
create index digest_tenant on flyball.digest (tenant, closes_at, id);
comment on table flyball.digest is 'Open digests, with the time at which each closes.';

-- The items of open digests. An item belongs to the digest into which it was put, whatever its
-- time.
create table flyball.digest_item (
    digest_id bigint      not null,
    -- The message that became the item.
    job_id    bigint      not null,
    at        timestamptz not null,
    -- Its arguments: it may go alone, long after its job is gone.
    item      jsonb       not null,
    primary key (digest_id, job_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index digest_item_job on flyball.digest_item (job_id);

-- === Channels ====================================================================================

create table flyball.publication (
    id         bigint generated always as identity primary key,
    created_at timestamptz not null default clock_timestamp(),
    -- The further messages of the tenant that fitted as its transaction knew, where it has counted
    -- them.
    room       int,
    tenant     text not null,
    channel    text not null,
    data       jsonb not null
) with (fillfactor = 100, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000);
create index publication_tenant on flyball.publication (tenant, id);
comment on table flyball.publication is 'Messages of channels that no collector has moved yet, because they are new or because their tenant is at its limit.';

create table flyball.channel (
    tenant       text not null,
    name         text not null,
    epoch        bigint not null,
    last_offset  bigint not null,
    first_offset bigint not null default 1,
    kept_s       int not null,
    used_at      timestamptz not null,
    primary key (tenant, name)
) with (fillfactor = 70);
comment on table flyball.channel is 'Channels with a history: the offsets of the first and the last message that are kept.';
comment on column flyball.channel.epoch is 'Changes when the channel is forgotten and made again; offsets of different epochs cannot be compared.';

create table flyball.channel_message (
    seq        bigint generated always as identity primary key,
    epoch      bigint not null,
    "offset"   bigint not null,
    id         bigint not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    tenant     text not null,
    channel    text not null,
    data       jsonb not null
);
create index channel_message_history on flyball.channel_message (tenant, channel, "offset") where "offset" > 0;
create index channel_message_expiry on flyball.channel_message (expires_at);
comment on table flyball.channel_message is 'The history of channels, and for half a minute the messages of channels without one (offset 0).';

-- The epoch of channels that are made now. It grows before a channel is forgotten, so a channel
-- that is not there has the same epoch as long as none was forgotten.
create sequence flyball.channel_epoch;
select nextval('flyball.channel_epoch');

create table flyball.connection_ticket (
    digest     bytea primary key,
    "grant"    jsonb not null,
    expires_at timestamptz not null
);
comment on table flyball.connection_ticket is 'Tickets with which a browser opens one connection; the digest stands for the secret.';

create table flyball.channel_usage (
    tenant     text primary key,
    messages   bigint not null default 0,
    limited    bigint not null default 0,
    limited_at timestamptz
) with (fillfactor = 50);
comment on table flyball.channel_usage is 'Messages of the channels of each tenant, and how often it reached its limit.';

create table flyball.gateway_report (
    tenant      text not null,
    process     text not null,
    connections int not null,
    warnings    bigint not null,
    reported_at timestamptz not null,
    primary key (tenant, process)
) with (fillfactor = 50);
comment on table flyball.gateway_report is 'Open connections of each tenant in each process, and the warnings that they got; a process reports every few seconds.';

-- === Inboxes =====================================================================================

create table flyball.inbox_message (
    id          bigint      generated always as identity,
    -- The job that wrote it: a job that runs again writes it no second time.
    job_id      bigint      not null unique,
    created_at  timestamptz not null default clock_timestamp(),
    seen_at     timestamptz,
    read_at     timestamptz,
    archived_at timestamptz,
    tenant      text        not null,
    recipient   text        not null,
    category    text        not null,
    template_id text,
    actor       text,
    subject     text,
    body        text        not null,
    data        jsonb       not null,
    -- No index on the id alone: a page of one inbox never walks through those of others.
    primary key (tenant, recipient, id),
    check (read_at is null or seen_at is not null)
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index inbox_message_list on flyball.inbox_message (tenant, recipient, id) where archived_at is null;
create index inbox_message_unread on flyball.inbox_message (tenant, recipient, id) where read_at is null and archived_at is null;
create index inbox_message_unseen on flyball.inbox_message (tenant, recipient, id) where seen_at is null and archived_at is null;
create index inbox_message_created on flyball.inbox_message (created_at);
create index inbox_message_archived on flyball.inbox_message (tenant, recipient, id) where archived_at is not null;
comment on table flyball.inbox_message is 'The inboxes of recipients: messages of the channel inapp with their states.';

-- Archived messages do not count.
create table flyball.inbox_count (
    tenant    text   not null,
    recipient text   not null,
    unseen    bigint not null default 0 check (unseen >= 0),
    unread    bigint not null default 0 check (unread >= unseen),
    primary key (tenant, recipient)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
comment on table flyball.inbox_count is 'Unseen and unread messages of each inbox, kept in the transactions that change it.';

-- === Days ========================================================================================

-- Creates the partitions of a day, one process at a time. Attaching an existing table takes such a
-- weak lock on the parent that workers and producers continue.
create function flyball.ensure_day(day bigint) returns void
language plpgsql as $$
declare
    parent text;
    child  text;
begin
    foreach parent in array array['job', 'attempt'] loop
        child := format('%s_%s', parent, day);
        if to_regclass(format('flyball.%I', child)) is null then
            perform from flyball.mutex m where m.name = 'ensure_day' for update;
            if to_regclass(format('flyball.%I', child)) is null then
                execute format('create table flyball.%I (like flyball.%I including defaults including constraints)', child, parent);
                if parent = 'attempt' then
                    -- A partition does not take this from its parent.
                    execute format('alter table flyball.%I replica identity full', child);
                end if;
                execute format('alter table flyball.%I attach partition flyball.%I for values from (%s) to (%s)',
                    parent, child, day << 38, (day + 1) << 38);
            end if;
        end if;
    end loop;
end $$;

do $$ begin perform flyball.ensure_day(flyball.day_of(now()) + i) from generate_series(-1, 7) as i; end $$;
