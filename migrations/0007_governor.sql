-- Chapter 7: throttles and their governor. What people set, what the work itself says, who leads, and what was decided.

-- The last knobs of every throttle, from which an emptied Redis is restored.
create table flyball.knobs (
    throttle   text        primary key,
    fields     jsonb       not null,
    updated_at timestamptz not null default clock_timestamp()
);

-- What workers tell. Each worker counts how the jobs of each throttle ended and tells it with its heartbeat, so that a governor in
-- another process can hear of dearer jobs, refusals and failures within a second or two.
--
-- Counters begin at 0 when their row is made, and a worker that starts anew is another worker. They are as young as the heartbeat
-- of their worker: a row that did not change is not written again.
create table flyball.feedback (
    worker_id     int         not null,
    throttle      text        not null,
    completed     bigint      not null,
    failed        bigint      not null,
    refused       bigint      not null,
    busy_s        float8      not null,
    running       bigint      not null,
    created_at    timestamptz not null default clock_timestamp(),
    -- Those among `completed` that neither `busy_s` nor `durations` knows.
    untimed       bigint      not null default 0,
    -- Attempts that succeeded by how long they took, so that a governor can hold the slowest hundredth where it shall be: less than a
    -- millisecond first, and each bucket a fifth wider than the one before; buckets at the end that are 0 are left out.
    durations     bigint[]    not null default '{}',
    -- When an attempt last succeeded and last failed, and how many had failed by the last success; so whoever reads all rows of a
    -- throttle knows how many have failed since.
    succeeded_at  timestamptz,
    failed_at     timestamptz,
    failed_before bigint      not null default 0,
    primary key (worker_id, throttle)
) with (fillfactor = 50);

-- Who leads, under a term that only grows.
create table flyball.leader (
    name       text        primary key,
    holder     text        not null,
    term       bigint      not null,
    expires_at timestamptz not null
);

-- What the governor knows of a throttle.
create table flyball.governor (
    throttle   text        primary key,
    term       bigint      not null,
    state      jsonb       not null,
    updated_at timestamptz not null default clock_timestamp()
);

-- What it decided, and why.
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
