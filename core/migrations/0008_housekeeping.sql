-- Chapter 8: depth without counting, and tables that stay small. One process at a time walks the
-- waiting jobs in short slices and records what it found, so reading the depth of a queue never
-- counts rows.

-- === Depth =======================================================================================

-- One row for each throttle that has or had jobs.
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
    walked_at  timestamptz,
    duration_s float8      not null default 0
) with (fillfactor = 50);
insert into flyball.sweep default values;

-- === Days ========================================================================================

-- Days past their retention that could not be dropped because some of their jobs are alive or ended
-- recently; they are emptied again once a day. `next` is where the thinning of such a day
-- continues, null at its end; `pruned_at` is the time of its last step.
create table flyball.day (
    day       bigint      primary key,
    pruned_at timestamptz not null default now(),
    remaining bigint      not null,
    next      bigint
);

-- Empties one day with one TRUNCATE. Rows of jobs that are alive, or that have an attempt that
-- ended after `since`, are copied and survive. Claims read every partition, so they wait while this
-- one is locked. Therefore the lock timeout is short, the surviving rows are collected before the
-- lock is taken, and a day with more than `max_jobs` surviving jobs is not emptied but returns -1;
-- flyball.thin_day is for those. Null means that another process is working on the day.
--
-- Collecting before locking is almost safe: a job of a past day can end meanwhile, and none can
-- begin, except a job that a transaction of that day enqueued and commits while the day is being
-- emptied. So there is a second look behind a lock that blocks writers and lets claims pass. Only
-- after it are readers blocked, for the duration of the TRUNCATE. If the last lock cannot be had,
-- the second one is released too: a producer may hold one and wait for the other. A job's arguments
-- can change, because a producer may replace it; rows that changed after they were copied are
-- copied again behind the lock.
create function flyball.prune_day(day bigint, since timestamptz default 'infinity', max_jobs bigint default 20000) returns bigint
language plpgsql set lock_timeout = '100ms' set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    live          bigint;
    added         bigint := 0;
    recent        bigint;
    lock_attempts int := 0;
    low           bigint := prune_day.day << 38;
    high          bigint := (prune_day.day + 1) << 38;
begin
    if not pg_try_advisory_xact_lock(hashtext('flyball.prune_day')) then
        return null;
    end if;
    if to_regclass(format('flyball.job_%s', prune_day.day)) is null then
        delete from flyball.day d where d.day = prune_day.day;
        return 0;
    end if;
    create temporary table flyball_live on commit drop as
        select job_id from (
            select job_id from flyball.ready where job_id >= low and job_id < high
            union all select job_id from flyball.lease where job_id >= low and job_id < high
            union all select job_id from flyball.scheduled where job_id >= low and job_id < high
            union all select job_id from flyball.dead where job_id >= low and job_id < high
        ) l
        limit max_jobs + 1;
    get diagnostics live = row_count;
    create index on flyball_live (job_id);
    -- After the look at the living jobs, so that a job that ends in between is seen by one of the
    -- two.
    if live <= max_jobs then
        execute format('
            insert into flyball_live
            select a.job_id from (select distinct job_id from flyball.attempt_%s where finished_at >= $1) a
            where not exists (select 1 from flyball_live l where l.job_id = a.job_id)
            limit $2', prune_day.day)
        using since, max_jobs + 1 - live;
        get diagnostics recent = row_count;
        live := live + recent;
    end if;
    if live > max_jobs then
        drop table flyball_live;
        insert into flyball.day as d (day, remaining, next) values (prune_day.day, -1, low)
        on conflict on constraint day_pkey do update set remaining = -1, next = coalesce(d.next, excluded.next);
        return -1;
    end if;
    analyze flyball_live;
    execute format('create temporary table flyball_versions on commit drop as select j.id, j.xmin as version from flyball_live l join flyball.job_%s j on j.id = l.job_id', prune_day.day);
    execute format('create temporary table flyball_jobs on commit drop as select j.* from flyball_live l join flyball.job_%s j on j.id = l.job_id', prune_day.day);
    create index on flyball_jobs (id);
    create temporary table flyball_added (job_id bigint) on commit drop;
    loop
        begin
            -- When this lock is granted, all transactions that enqueued into this day have ended,
            -- and no new one can; claims continue.
            execute format('lock table flyball.job_%s in share row exclusive mode', prune_day.day);
            insert into flyball_added
            select l.job_id from (
                select job_id from flyball.ready where job_id >= low and job_id < high
                union all select job_id from flyball.lease where job_id >= low and job_id < high
                union all select job_id from flyball.scheduled where job_id >= low and job_id < high
                union all select job_id from flyball.dead where job_id >= low and job_id < high
            ) l
            where not exists (select 1 from flyball_live k where k.job_id = l.job_id)
            limit max_jobs + 1;
            get diagnostics added = row_count;
            exit when live + added > max_jobs;
            execute format('lock table flyball.job_%1$s, flyball.attempt_%1$s in access exclusive mode', prune_day.day);
            exit;
        exception when lock_not_available then
            -- The locks are released and what was collected is dropped.
            lock_attempts := lock_attempts + 1;
            if lock_attempts >= 20 then
                raise;
            end if;
            -- Transactions that waited behind this go first.
            perform pg_sleep(0.2 + random() * 0.2);
        end;
    end loop;
    if live + added > max_jobs then
        drop table flyball_live, flyball_versions, flyball_jobs, flyball_added;
        insert into flyball.day as d (day, remaining, next) values (prune_day.day, -1, low)
        on conflict on constraint day_pkey do update set remaining = -1, next = coalesce(d.next, excluded.next);
        return -1;
    end if;
    insert into flyball_live select job_id from flyball_added;
    insert into flyball_versions select job_id, null from flyball_added;
    -- Jobs may have been replaced, and attempts added, until now.
    execute format('create temporary table flyball_replaced on commit drop as select j.* from flyball_versions v join flyball.job_%s j on j.id = v.id where j.xmin is distinct from v.version', prune_day.day);
    delete from flyball_jobs j using flyball_replaced r where j.id = r.id;
    execute format('create temporary table flyball_attempts on commit drop as select a.* from flyball_live l join flyball.attempt_%s a on a.job_id = l.job_id', prune_day.day);
    execute format('truncate flyball.job_%1$s, flyball.attempt_%1$s', prune_day.day);
    execute format('insert into flyball.job_%s select * from flyball_jobs union all select * from flyball_replaced', prune_day.day);
    get diagnostics live = row_count;
    execute format('insert into flyball.attempt_%s select * from flyball_attempts', prune_day.day);
    delete from flyball.checkpoint c where c.job_id >= low and c.job_id < high
        and not exists (select 1 from flyball_live l where l.job_id = c.job_id);
    insert into flyball.day as d (day, remaining) values (prune_day.day, live)
    on conflict on constraint day_pkey do update set pruned_at = now(), remaining = excluded.remaining, next = null;
    if live = 0 then
        -- No living job is left: the empty tables are dropped too, so that the list of partitions
        -- does not grow without end. This locks the parents for a moment; if they are busy, the
        -- empty tables stay for another day.
        begin
            execute format('drop table flyball.job_%1$s, flyball.attempt_%1$s', prune_day.day);
            delete from flyball.day d where d.day = prune_day.day;
        exception when lock_not_available then
            null;
        end;
    end if;
    drop table flyball_live, flyball_versions, flyball_jobs, flyball_replaced, flyball_attempts, flyball_added;
    return live;
end $$;

-- One step through a day that prune_day left alone: looks at up to `rows` jobs from where the
-- previous step ended, and deletes those that are not alive and have no attempt that ended after
-- `since`, with their attempts. Locks only the rows that it deletes. Returns where to continue,
-- null at the end or if another process is working on the day.
create function flyball.thin_day(day bigint, since timestamptz, rows int, out deleted bigint, out next bigint)
language plpgsql as $$
declare
    start bigint;
begin
    deleted := 0;
    select d.next into start from flyball.day d where d.day = thin_day.day and d.next is not null for update skip locked;
    if not found then
        return;
    elsif to_regclass(format('flyball.job_%s', thin_day.day)) is null then
        delete from flyball.day d where d.day = thin_day.day;
        return;
    end if;
    -- One probe per job and table: as a join, the planner might read all waiting jobs in each step.
    execute format('
        with page as materialized (
            select id, lane_id, admission_lane, priority from flyball.job_%1$s where id > $1 order by id limit $2
        ),
        expired as materialized (
            select p.id from page p
            where (select 1 from flyball.ready r
                    where r.lane_id in (p.lane_id, p.admission_lane) and r.priority = p.priority and r.job_id = p.id limit 1) is null
                and (select 1 from flyball.lease l where l.job_id = p.id limit 1) is null
                and (select 1 from flyball.scheduled s where s.job_id = p.id limit 1) is null
                and (select 1 from flyball.dead d where d.job_id = p.id limit 1) is null
                and (select 1 from flyball.attempt_%1$s a where a.job_id = p.id and a.finished_at >= $3 limit 1) is null
        ),
        attempts as (delete from flyball.attempt_%1$s a using expired g where a.job_id = g.id),
        cursors as (delete from flyball.checkpoint c using expired g where c.job_id = g.id),
        jobs as (delete from flyball.job_%1$s j using expired g where j.id = g.id returning 1)
        select (select count(*) from jobs), case when count(*) >= $2 then max(p.id) end from page p', thin_day.day)
    into deleted, next
    using start, thin_day.rows, thin_day.since;
    update flyball.day d set next = thin_day.next, pruned_at = now() where d.day = thin_day.day;
end $$;
