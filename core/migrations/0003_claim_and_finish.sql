-- Chapter 3: tables of the workers, which claim and finish jobs. The statements are in
-- core/src/jobs/postgres.

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
    met_unserved_at timestamptz
) with (fillfactor = 50);
-- Live workers are few, stopped ones may be many. Only starting and stopping updates this index.
create index worker_live on flyball.worker (id) where stopped_at is null;

-- Settings that all workers must share, by subject ("pool sms") and field, each value as a digest.
-- A worker is refused at its start if it differs from a live one. Apart from the worker's row, which
-- each heartbeat rewrites.
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

-- === Promotion ===================================================================================

-- A crowd of jobs that is due at once does not delay other jobs. Every scheduled job belongs to a
-- group: its throttle (one of 4095 hash values), whether it is a retry, and its priority. If more
-- jobs are due than one step promotes, the groups are served side by side.

-- Two throttles with the same hash share a group, which costs only fairness between them. Groups
-- below 8 hold jobs with an unknown throttle.
create function flyball.turn_of(throttle text, priority smallint, retry boolean) returns smallint
language sql immutable parallel safe
return (coalesce(1 + (hashtext(throttle) & 2147483647) % 4095, 0) << 3 | case when retry then 0 else 4 end | priority)::smallint;

-- The throttle is in the job's own row, which is written before the job is scheduled.
create function flyball.take_turn() returns trigger
language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        new.turn := flyball.turn_of((select j.throttle from flyball.job j where j.id = new.job_id), new.priority, new.retry);
    else
        new.turn := (new.turn & ~4) | case when new.retry then 0 else 4 end;
    end if;
    return new;
end $$;

create trigger scheduled_takes_turn before insert on flyball.scheduled
    for each row when (new.turn = 0) execute function flyball.take_turn();
create trigger scheduled_changes_turn before update of retry on flyball.scheduled
    for each row when (new.retry <> old.retry) execute function flyball.take_turn();
