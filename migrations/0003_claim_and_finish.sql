-- Chapter 3: what serves workers, who claim jobs and finish them. The statements themselves stand in src/jobs/postgres.

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
    kinds        text[]      not null default '{}',
    -- Whether its leases were given back after its end.
    rescued        boolean     not null default false,
    -- A worker whose permits are all in use looks after no lanes, and has no part in sharing them out.
    serves       boolean     not null default true,
    -- What it can run besides its kinds, each with a digest of the settings behind it: {"pool alerts": "1f0c...", "channel sms": ""}.
    offers       jsonb       not null default '{}'
) with (fillfactor = 50);
-- Live workers are few, those that have stopped may be many. Only starting and stopping touches this index.
create index worker_live on flyball.worker (id) where stopped_at is null;

-- Who looks after which lanes: the top six bits of a lane's id name its shard, so a shard is a range of the index. Ownership
-- only spares workers from looking at the same lanes; claims stay correct whoever makes them.
create table flyball.shard (
    shard      smallint    primary key check (shard between 0 and 63),
    worker_id  int,
    expires_at timestamptz not null default '-infinity'
) with (fillfactor = 50);
insert into flyball.shard (shard) select generate_series(0, 63);

-- Producers ring only while a dispatcher sleeps: a NOTIFY per insert would make all commits queue behind each other.
create unlogged table flyball.wakeup (
    one    boolean primary key default true check (one),
    asleep boolean not null default true
);
insert into flyball.wakeup default values;

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

-- === Turns ===========================================================================================================

-- A crowd that is due at once stands in nobody's way. Whatever waits for its time belongs to a turn: its throttle (one of 4095
-- groups), whether it is a retry, and its priority. Where more is due than one step moves, turns are served side by side.

-- Two throttles may share a group; they then share a turn, and nothing worse. Turns below 8 are of jobs whose throttle is not known.
create function flyball.turn_of(throttle text, priority smallint, retry boolean) returns smallint
language sql immutable parallel safe
return (coalesce(1 + (hashtext(throttle) & 2147483647) % 4095, 0) << 3 | case when retry then 0 else 4 end | priority)::smallint;

-- The throttle stands in the job's own row, which is written before it is scheduled.
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
