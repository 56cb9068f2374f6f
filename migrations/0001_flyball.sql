-- Flyball's house in Postgres 15 and newer. Chapter 1: the whole first schema.
--
-- The idea of the layout: a job is written once and never updated; what changes while it lives are narrow rows that are only
-- inserted and deleted (ready, lease, scheduled), so that vacuum has little to do and a long history costs a claim nothing.
-- A lane is an index prefix, so a lane that may not run costs nothing either: it is simply not asked for.

create schema if not exists flyball;

-- === Numbers =========================================================================================================

-- 38 bits of sequence under 15 bits of day: ids stay below 2^53 (exact in JavaScript), and a day is a range of ids.
create sequence flyball.job_seq as bigint maxvalue 274877906943 cycle cache 1;

create function flyball.day_of(at timestamptz) returns bigint
language sql immutable parallel safe
return floor(extract(epoch from at) / 86400)::bigint - 18262;

create function flyball.next_id() returns bigint
language sql volatile
return (flyball.day_of(now()) << 38) | nextval('flyball.job_seq');

-- A lane's id is a hash, not a row, so that producers of one lane never wait for each other.
create function flyball.lane_of(throttle text, key text) returns bigint
language sql immutable parallel safe
return ('x' || encode(substr(sha256(convert_to(throttle || chr(31) || key, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint;

create type flyball.outcome as enum
    ('completed', 'failed', 'throttled', 'snoozed', 'dead', 'cancelled', 'lost', 'handed_back');

-- === Jobs ============================================================================================================

-- Written once. Partitioned by day through the id; old days are truncated, not deleted row by row.
create table flyball.job (
    id           bigint      not null,
    lane_id      bigint      not null,
    priority     smallint    not null check (priority between 0 and 3),
    max_attempts smallint    not null check (max_attempts between 1 and 1000),
    cost         float8      not null check (cost > 0 and cost <= 1e9),
    created_at   timestamptz not null default now(),
    run_at       timestamptz,
    kind         text        not null check (octet_length(kind) between 1 and 128),
    throttle     text        not null check (octet_length(throttle) between 1 and 128),
    key          text        not null check (octet_length(key) <= 512),
    unique_key   bytea,
    args         jsonb       not null,
    primary key (id)
) partition by range (id);

-- What may run now. The index is the queue: one probe per lane, oldest first within a priority.
create table flyball.ready (
    lane_id  bigint   not null,
    priority smallint not null,
    job_id   bigint   not null,
    attempt  smallint not null default 0,
    cost     float8   not null
);
create unique index ready_lane on flyball.ready (lane_id, priority, job_id);

-- What is running. The fence is a random number chosen by the claiming worker: a sequence could repeat one after a crash.
create table flyball.lease (
    job_id     bigint      primary key,
    fence      bigint      not null,
    worker_id  int         not null,
    lane_id    bigint      not null,
    priority   smallint    not null,
    attempt    smallint    not null,
    cost       float8      not null,
    claimed_at timestamptz not null default clock_timestamp()
);
create index lease_worker on flyball.lease (worker_id);

-- What runs later: at a time its producer named (retry = false) or after a failed attempt (retry = true).
create table flyball.scheduled (
    job_id   bigint      primary key,
    run_at   timestamptz not null,
    lane_id  bigint      not null,
    priority smallint    not null,
    attempt  smallint    not null default 0,
    cost     float8      not null,
    retry    boolean     not null
);
create index scheduled_due on flyball.scheduled (run_at);

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
);

-- Unique keys that are taken: until expires_at, or until the job ends where that is null.
create table flyball.uniq (
    digest     bytea  primary key,
    job_id     bigint not null,
    expires_at timestamptz
);
create index uniq_job on flyball.uniq (job_id);

-- Running jobs that somebody wants stopped.
create table flyball.cancel (
    job_id       bigint      primary key,
    requested_at timestamptz not null default now()
);

-- Where long jobs leave their cursor.
create table flyball.checkpoint (
    job_id     bigint      primary key,
    cursor     jsonb       not null,
    done       bigint      not null,
    total      bigint,
    note       text        not null default '',
    updated_at timestamptz not null default clock_timestamp()
) with (fillfactor = 50);

-- === Who works =======================================================================================================

-- A fresh row per process start, never a host's name: a restarted worker must not inherit the leases of the dead one.
create table flyball.worker (
    id           int         generated always as identity primary key,
    name         text        not null,
    host         text        not null,
    pid          int         not null,
    started_at   timestamptz not null default clock_timestamp(),
    heartbeat_at timestamptz not null default clock_timestamp(),
    ttl          interval    not null,
    stopped_at   timestamptz,
    kinds        text[]      not null default '{}'
) with (fillfactor = 50);

-- The directory of lanes, written by whoever first sees a lane, never by enqueue.
create table flyball.lane (
    lane_id    bigint      primary key,
    throttle   text        not null,
    key        text        not null,
    first_seen timestamptz not null default now()
);

-- The kinds that some worker runs or that were registered by hand.
create table flyball.kind (
    name          text        primary key check (octet_length(name) between 1 and 128),
    registered_at timestamptz not null default now()
);
insert into flyball.kind (name) values ('http'), ('reindex');

create function flyball.register_kind(name text) returns void
language sql volatile
begin atomic
    insert into flyball.kind (name) values (register_kind.name) on conflict do nothing;
end;

-- Producers ring only while a dispatcher sleeps: a NOTIFY per insert would make all commits queue behind each other.
create unlogged table flyball.doorbell (
    one    boolean primary key default true check (one),
    asleep boolean not null default true
);
insert into flyball.doorbell default values;

-- === Governor ========================================================================================================

create table flyball.leader (
    name       text        primary key,
    holder     text        not null,
    term       bigint      not null,
    expires_at timestamptz not null
);

create table flyball.governor (
    throttle   text        primary key,
    term       bigint      not null,
    state      jsonb       not null,
    updated_at timestamptz not null default clock_timestamp()
);

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

-- The last knobs of every throttle, from which an emptied Redis is restored.
create table flyball.knobs (
    throttle   text        primary key,
    fields     jsonb       not null,
    updated_at timestamptz not null default clock_timestamp()
);

create table flyball.audit (
    id      bigint      generated always as identity primary key,
    at      timestamptz not null default clock_timestamp(),
    who     text        not null,
    action  text        not null,
    subject text        not null,
    before  jsonb,
    after   jsonb,
    why     text
);

-- === Vacuum ==========================================================================================================

-- Hot tables are vacuumed by count, not by share; truncating their tail would take a lock that stops every claim.
alter table flyball.ready set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000,
    vacuum_truncate = off);
alter table flyball.lease set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- === Days ============================================================================================================

-- Attaching a ready-made table locks the parent so lightly that workers and producers go on beside it.
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

-- Empties one day: rows of jobs that still live survive, everything else goes with one TRUNCATE.
create function flyball.prune_day(day bigint) returns bigint
language plpgsql set lock_timeout = '2s' as $$
declare
    kept  bigint;
    low   bigint := day << 38;
    high  bigint := (day + 1) << 38;
begin
    if to_regclass(format('flyball.job_%s', day)) is null then
        return 0;
    end if;
    execute format('lock table flyball.job_%1$s, flyball.attempt_%1$s in access exclusive mode', day);
    create temporary table flyball_live on commit drop as
        select job_id from flyball.ready where job_id >= low and job_id < high
        union select job_id from flyball.lease where job_id >= low and job_id < high
        union select job_id from flyball.scheduled where job_id >= low and job_id < high
        union select job_id from flyball.dead where job_id >= low and job_id < high;
    execute format('create temporary table flyball_jobs on commit drop as select j.* from flyball.job_%s j join flyball_live l on l.job_id = j.id', day);
    execute format('create temporary table flyball_attempts on commit drop as select a.* from flyball.attempt_%s a join flyball_live l using (job_id)', day);
    execute format('truncate flyball.job_%1$s, flyball.attempt_%1$s', day);
    execute format('insert into flyball.job_%s select * from flyball_jobs', day);
    get diagnostics kept = row_count;
    execute format('insert into flyball.attempt_%s select * from flyball_attempts', day);
    delete from flyball.checkpoint c where c.job_id >= low and c.job_id < high
        and not exists (select 1 from flyball_live l where l.job_id = c.job_id);
    if kept = 0 then
        -- Nothing lives here any more: the empty tables go too, so that the list of partitions does not grow for ever.
        execute format('drop table flyball.job_%1$s, flyball.attempt_%1$s', day);
    end if;
    drop table flyball_live, flyball_jobs, flyball_attempts;
    return kept;
end $$;

-- === The SQL front door ==============================================================================================

-- Says what is wrong with a job, or nothing. One place for SQL, HTTP and CLI alike.
create function flyball.check_job(
    kind text, args jsonb, throttle text, key text, priority int, max_attempts int,
    unique_key text, unique_for interval, cost float8, run_at timestamptz,
    out field text, out message text)
language plpgsql stable parallel safe as $$
#variable_conflict use_variable
declare
    known text;
begin
    field := 'kind';
    if kind is null or kind = '' then
        message := 'must name what runs the job, for instance ''http''';
        return;
    elsif octet_length(kind) > 128 then
        message := format('is %s bytes long; at most 128 are allowed', octet_length(kind));
        return;
    elsif not exists (select 1 from flyball.kind k where k.name = kind) then
        select string_agg(k.name, ', ' order by k.name) into known from flyball.kind k;
        message := format('%s is not a kind that any worker has registered; known kinds: %s', to_json(kind), known);
        return;
    end if;

    field := 'args';
    if args is null then
        message := 'must not be null; leave it out for {}';
        return;
    elsif pg_column_size(args) > 65536 and octet_length(args::text) > 262144 then
        message := format('is %s bytes long; at most 262144 (256 KiB) are allowed: store the data elsewhere and pass its address',
            octet_length(args::text));
        return;
    end if;

    field := 'throttle';
    if throttle is null or throttle !~ '^[A-Za-z0-9._/:{}-]+$' or octet_length(throttle) > 128 then
        message := format('%s is not a throttle''s name; use 1 to 128 letters, digits or any of . _ - / : { }',
            coalesce(to_json(left(throttle, 64))::text, 'null'));
        return;
    end if;

    field := 'key';
    if key is null or octet_length(key) > 512 then
        message := case when key is null then 'must not be null; leave it out for none'
                        else format('is %s bytes long; at most 512 are allowed', octet_length(key)) end;
        return;
    end if;

    field := 'priority';
    if priority is null or priority not between 0 and 3 then
        message := format('is %s; allowed are 0 (runs first), 1, 2 and 3 (runs last)', coalesce(priority::text, 'null'));
        return;
    end if;

    field := 'max_attempts';
    if max_attempts is null or max_attempts not between 1 and 1000 then
        message := format('is %s; allowed are 1 to 1000', coalesce(max_attempts::text, 'null'));
        return;
    end if;

    field := 'unique_key';
    if unique_key = '' or octet_length(unique_key) > 512 then
        message := format('is %s bytes long; allowed are 1 to 512, or null for none', octet_length(unique_key));
        return;
    end if;

    field := 'unique_for';
    if unique_for is not null and unique_key is null then
        message := 'needs a unique_key';
        return;
    elsif unique_for <= interval '0' or unique_for > interval '366 days' then
        message := format('is %s; allowed is more than 0 and at most 366 days', unique_for);
        return;
    end if;

    field := 'cost';
    if cost is null or cost = 'NaN'::float8 or cost <= 0 or cost > 1e9 then
        message := format('is %s; allowed is more than 0 and at most 1e9 tokens', coalesce(cost::text, 'null'));
        return;
    end if;

    field := 'run_at';
    if run_at < timestamptz '1970-01-01 00:00:00Z' or run_at > now() + interval '3660 days' then
        message := format('is %s; allowed are times from 1970 (at once) to ten years from now', run_at);
        return;
    end if;

    field := null;
end $$;

-- Enqueues one job in the caller's own transaction. It runs with the rights of the schema's owner, so that a role needs
-- nothing but `grant usage on schema flyball`: it can enqueue, and neither read nor change what others have enqueued.
create function flyball.enqueue(
    kind text,
    args jsonb default '{}',
    throttle text default 'default',
    key text default '',
    priority int default 1,
    run_at timestamptz default null,
    max_attempts int default 10,
    unique_key text default null,
    unique_for interval default null,
    cost float8 default 1,
    out job_id bigint,
    out duplicate boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    bad    record;
    lane   bigint;
    digest bytea;
begin
    select * into bad from flyball.check_job(kind, args, throttle, key, priority, max_attempts, unique_key, unique_for, cost, run_at);
    if bad.field is not null then
        raise exception using
            errcode = '22023',
            message = format('enqueue: %s: %s', bad.field, bad.message),
            column = bad.field,
            hint = 'Nothing was enqueued.';
    end if;

    job_id := flyball.next_id();
    duplicate := false;
    lane := flyball.lane_of(throttle, key);

    if unique_key is not null then
        digest := sha256(convert_to(kind || chr(31) || unique_key, 'UTF8'));
        -- A second producer of the same key waits here until the first has committed or rolled back.
        insert into flyball.uniq as u (digest, job_id, expires_at)
        values (digest, job_id, now() + unique_for)
        on conflict on constraint uniq_pkey do update
            set job_id = excluded.job_id, expires_at = excluded.expires_at
            where u.expires_at <= now();
        if not found then
            select u.job_id into job_id from flyball.uniq u where u.digest = digest;
            duplicate := true;
            return;
        end if;
    end if;

    if to_regclass('flyball.job_' || (job_id >> 38)) is null then
        perform flyball.ensure_day(job_id >> 38);
    end if;

    insert into flyball.job (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, unique_key, args)
    values (job_id, lane, priority, max_attempts, cost, run_at, kind, throttle, key, digest, args);

    if run_at is null or run_at <= now() then
        insert into flyball.ready (lane_id, priority, job_id, cost) values (lane, priority, job_id, cost);
        if coalesce((select d.asleep from flyball.doorbell d), true) then
            perform pg_notify('flyball', '');
        end if;
    else
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry)
        values (job_id, run_at, lane, priority, cost, false);
    end if;
end $$;

-- Enqueues many jobs, all or none, in the caller's own transaction; answers one row per job, in order.
create function flyball.enqueue_many(jobs jsonb)
returns table (job_id bigint, duplicate boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    allowed constant text[] := array['kind', 'args', 'throttle', 'key', 'priority', 'run_at', 'max_attempts',
                                     'unique_key', 'unique_for', 'cost'];
    j       jsonb;
    at      int := -1;
    name    text;
    value   jsonb;
    type    text;
    wanted  text;
    problem text;
    bad     record;
    has_unique boolean := false;
    first   bigint;
    today   bigint := flyball.day_of(now());
    v_run_at timestamptz;
    v_for    interval;
begin
    if jobs is null or jsonb_typeof(jobs) <> 'array' then
        raise exception using errcode = '22023', column = '',
            message = 'enqueue_many: jobs: must be a JSON array of jobs', hint = 'Nothing was enqueued.';
    elsif jsonb_array_length(jobs) > 10000 then
        raise exception using errcode = '22023', column = '',
            message = format('enqueue_many: jobs: has %s elements; at most 10000 are allowed', jsonb_array_length(jobs)),
            hint = 'Nothing was enqueued.';
    end if;

    for j in select e from jsonb_array_elements(jobs) as e loop
        at := at + 1;
        problem := null;
        name := '';
        if jsonb_typeof(j) <> 'object' then
            problem := 'must be an object';
        else
            for name, value in select e.key, e.value from jsonb_each(j) as e loop
                type := jsonb_typeof(value);
                wanted := case name
                    when 'kind' then 'string' when 'throttle' then 'string' when 'key' then 'string' when 'unique_key' then 'string'
                    when 'run_at' then 'string' when 'priority' then 'number' when 'max_attempts' then 'number' when 'cost' then 'number'
                    else null end;
                if not name = any(allowed) then
                    problem := format('is not a field of a job; allowed are %s', array_to_string(allowed, ', '));
                elsif type = 'null' and name in ('run_at', 'unique_key', 'unique_for') then
                    continue;
                elsif wanted is not null and type <> wanted then
                    problem := format('must be a %s, not %s', wanted, type);
                elsif name in ('priority', 'max_attempts') and (value::numeric <> trunc(value::numeric) or abs(value::numeric) > 1e9) then
                    problem := format('must be a whole number, not %s', left(value::text, 40));
                elsif name = 'cost' and value::numeric <> 0 and abs(value::numeric) not between 1e-300 and 1e300 then
                    problem := 'is out of range; allowed is more than 0 and at most 1e9 tokens';
                elsif name = 'unique_for' and type = 'number' and abs(value::numeric) > 1e9 then
                    problem := 'is out of range; allowed is more than 0 and at most 366 days (31622400 seconds)';
                elsif name = 'unique_for' and type not in ('number', 'string') then
                    problem := format('must be seconds or an interval text, not %s', type);
                end if;
                exit when problem is not null;
            end loop;
        end if;

        if problem is null then
            begin
                name := 'run_at';
                v_run_at := (j ->> 'run_at')::timestamptz;
                name := 'unique_for';
                v_for := case jsonb_typeof(j -> 'unique_for')
                    when 'number' then make_interval(secs => (j ->> 'unique_for')::float8)
                    else (j ->> 'unique_for')::interval end;
            exception when others then
                problem := case name when 'run_at' then format('"%s" is not a time; write it like 2026-11-20T14:00:00Z', j ->> name)
                    else format('"%s" is not a span; write seconds as a number, or a text like "10 minutes"', j ->> name) end;
            end;
        end if;

        if problem is null then
            select * into bad from flyball.check_job(
                j ->> 'kind', coalesce(j -> 'args', '{}'), coalesce(j ->> 'throttle', 'default'), coalesce(j ->> 'key', ''),
                coalesce((j ->> 'priority')::numeric::int, 1), coalesce((j ->> 'max_attempts')::numeric::int, 10), j ->> 'unique_key',
                v_for, coalesce((j ->> 'cost')::float8, 1), v_run_at);
            name := bad.field;
            problem := bad.message;
        end if;
        if problem is not null then
            raise exception using
                errcode = '22023',
                message = format('enqueue_many: jobs[%s]%s: %s', at, coalesce('.' || nullif(name, ''), ''), problem),
                column = name,
                table = at::text,
                hint = 'Nothing was enqueued.';
        end if;
        has_unique := has_unique or (j ->> 'unique_key') is not null;
    end loop;

    if has_unique then
        return query
            select e.job_id, e.duplicate
            from jsonb_array_elements(jobs) with ordinality as a(j, n)
            cross join lateral flyball.enqueue(
                a.j ->> 'kind', coalesce(a.j -> 'args', '{}'), coalesce(a.j ->> 'throttle', 'default'), coalesce(a.j ->> 'key', ''),
                coalesce((a.j ->> 'priority')::numeric::int, 1), (a.j ->> 'run_at')::timestamptz,
                coalesce((a.j ->> 'max_attempts')::numeric::int, 10), a.j ->> 'unique_key',
                case jsonb_typeof(a.j -> 'unique_for') when 'number' then make_interval(secs => (a.j ->> 'unique_for')::float8)
                    else (a.j ->> 'unique_for')::interval end,
                coalesce((a.j ->> 'cost')::float8, 1)) as e
            order by a.n;
        return;
    end if;

    if to_regclass('flyball.job_' || today) is null then
        perform flyball.ensure_day(today);
    end if;

    -- Without unique keys the whole batch is three statements' worth of rows in one.
    return query
        with fresh as materialized (
            select a.n, flyball.next_id() as id, a.j ->> 'kind' as kind, coalesce(a.j -> 'args', '{}') as args,
                coalesce(a.j ->> 'throttle', 'default') as throttle, coalesce(a.j ->> 'key', '') as key,
                coalesce((a.j ->> 'priority')::numeric::smallint, 1::smallint) as priority,
                coalesce((a.j ->> 'max_attempts')::numeric::smallint, 10::smallint) as max_attempts,
                (a.j ->> 'run_at')::timestamptz as run_at, coalesce((a.j ->> 'cost')::float8, 1) as cost
            from jsonb_array_elements(jobs) with ordinality as a(j, n)
        ),
        kept as (
            insert into flyball.job (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, args)
            select f.id, flyball.lane_of(f.throttle, f.key), f.priority, f.max_attempts, f.cost, f.run_at, f.kind, f.throttle, f.key, f.args
            from fresh f
            order by f.n
        ),
        waiting as (
            insert into flyball.ready (lane_id, priority, job_id, cost)
            select flyball.lane_of(f.throttle, f.key), f.priority, f.id, f.cost
            from fresh f
            where f.run_at is null or f.run_at <= now()
            order by f.n
        ),
        later as (
            insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry)
            select f.id, f.run_at, flyball.lane_of(f.throttle, f.key), f.priority, f.cost, false
            from fresh f
            where f.run_at > now()
        )
        select f.id, false from fresh f order by f.n;

    if coalesce((select d.asleep from flyball.doorbell d), true) then
        perform pg_notify('flyball', '');
    end if;
end $$;

comment on function flyball.enqueue is 'Enqueues one job in the caller''s own transaction. See the README for the meaning of each argument.';
comment on function flyball.enqueue_many is 'Enqueues up to 10,000 jobs, all or none; elements have the same field names as flyball.enqueue.';
