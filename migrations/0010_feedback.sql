-- Chapter 11: what the work itself says. Each worker counts how the jobs of each throttle ended and tells it with its heartbeat, so
-- that a governor in another process can hear of dearer jobs, refusals and failures within a second or two.

-- Counters begin at 0 when their row is made, and a worker that starts anew is another worker. They are as young as the heartbeat
-- of their worker: a row that did not change is not written again.
create table flyball.feedback (
    worker_id  int         not null,
    throttle   text        not null,
    completed  bigint      not null,
    failed     bigint      not null,
    refused    bigint      not null,
    busy_s     float8      not null,
    running    bigint      not null,
    created_at timestamptz not null default clock_timestamp(),
    primary key (worker_id, throttle)
) with (fillfactor = 50);
