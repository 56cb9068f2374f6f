-- Chapter 16: workers in other programs, which claim jobs over HTTP, and the results of their jobs.

-- A process that hands jobs to remote workers claims them as a worker of its own, the broker. Each
-- remote worker has a row as well: it holds the leases, and people see it. Only runners and brokers
-- claim, so only they count where lanes and jobs are divided.
alter table flyball.worker
    add column role text not null default 'runner' check (role in ('runner', 'broker', 'remote')),
    -- The tenant whose jobs alone a broker or a remote worker gets; null for all.
    add column tenant text;

-- One live row per name, so that repeated claims of one program are those of one worker.
create unique index worker_remote on flyball.worker (name, coalesce(tenant, '')) where role = 'remote' and stopped_at is null;

-- A lease of a remote worker expires by itself, because only the calls for its job show that the
-- work goes on. The columns are null in all other leases.
alter table flyball.lease
    -- The broker that counts the job towards the limits of concurrency.
    add column broker_id  int,
    -- Seconds by which each heartbeat extends the lease.
    add column lease_s    real,
    add column expires_at timestamptz,
    -- The tokens that the throttle charged for the job, and its real cost, as last reported.
    add column charged    float8,
    add column real_cost  float8;
create index lease_broker on flyball.lease (broker_id) where broker_id is not null;

-- Results of completed jobs, for a while.
create table flyball.result (
    job_id     bigint      primary key,
    result     jsonb       not null,
    kept_until timestamptz not null
);
create index result_kept on flyball.result (kept_until);
