-- Chapter 7: throttles and their governor: recorded knobs, feedback of the workers, leadership,
-- state and decisions.

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
