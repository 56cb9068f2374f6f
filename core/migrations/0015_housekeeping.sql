-- Chapter 15: tables that stay small: days past their retention are emptied with one TRUNCATE, and
-- kinds may be kept shorter or longer than all others.

-- === Days ========================================================================================

-- Empties one day with one TRUNCATE. Rows of jobs that are alive, that have an attempt that ended
-- after `since`, or whose kind is kept longer, are copied and survive. Claims read every partition,
-- so they wait while this one is locked. Therefore the lock timeout is short, the surviving rows
-- are collected before the lock is taken, and a day with more than `max_jobs` surviving jobs is not
-- emptied but returns -1; flyball.thin_day is for those. Null means that another process is working
-- on the day.
--
-- Collecting before locking is almost safe: a job of a past day can end meanwhile, and none can
-- begin, except a job that a transaction of that day enqueued and commits while the day is being
-- emptied. So there is a second look behind a lock that blocks writers and lets claims pass. Only
-- after it are readers blocked, for the duration of the TRUNCATE. If the last lock cannot be had,
-- the second one is released too: a producer may hold one and wait for the other. A job's arguments
-- can change, because a producer may replace it; rows that changed after they were copied are
-- copied again behind the lock.
create function flyball.prune_day(day bigint, since timestamptz default 'infinity', max_jobs bigint default 20000) returns bigint
language plpgsql set lock_timeout = '100ms' set enable_hashjoin = off set enable_mergejoin = off set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    live          bigint;
    added         bigint := 0;
    recent        bigint;
    lock_attempts int := 0;
    long_kinds    text[];
    retentions    interval[];
    low           bigint := prune_day.day << 38;
    high          bigint := (prune_day.day + 1) << 38;
begin
    perform from flyball.mutex m where m.name = 'prune_day' for update skip locked;
    if not found then
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
    -- Kinds that are kept longer than all others: by their jobs' rows, of which only theirs are
    -- followed up.
    select array_agg(k.kind order by k.kind), array_agg(k.retention order by k.kind) into long_kinds, retentions
    from flyball.kind_retention k where now() - k.retention < since;
    if live <= max_jobs and long_kinds is not null then
        execute format('
            insert into flyball_live
            select j.id from flyball.job_%1$s j
            where j.kind = any($2) and not exists (select 1 from flyball_live l where l.job_id = j.id)
                and exists (select 1 from flyball.attempt_%1$s a
                    where a.job_id = j.id and a.finished_at >= now() - ($3)[array_position($2, j.kind)])
            limit $1', prune_day.day)
        using max_jobs + 1 - live, long_kinds, retentions;
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
    execute format('
        create temporary table flyball_versions on commit drop as
        select j.id, j.xmin as version
        from flyball_live l join flyball.job_%s j on j.id = l.job_id', prune_day.day);
    execute format('
        create temporary table flyball_jobs on commit drop as
        select j.*
        from flyball_live l join flyball.job_%s j on j.id = l.job_id', prune_day.day);
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
    execute format('
        create temporary table flyball_replaced on commit drop as
        select j.*
        from flyball_versions v join flyball.job_%s j on j.id = v.id
        where j.xmin is distinct from v.version', prune_day.day);
    delete from flyball_jobs j using flyball_replaced r where j.id = r.id;
    execute format('
        create temporary table flyball_attempts on commit drop as
        select a.*
        from flyball_live l join flyball.attempt_%s a on a.job_id = l.job_id', prune_day.day);
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
-- previous step ended, and deletes those that are not alive, have no attempt that ended after
-- `since` and are of no kind that is kept longer, with their attempts. Locks only the rows that it
-- deletes. Returns where to continue, null at the end or if another process is working on the day.
create function flyball.thin_day(day bigint, since timestamptz, rows int, out deleted bigint, out next bigint)
language plpgsql as $$
declare
    start      bigint;
    long_kinds text[];
    retentions interval[];
begin
    deleted := 0;
    select d.next into start from flyball.day d where d.day = thin_day.day and d.next is not null for update skip locked;
    if not found then
        return;
    elsif to_regclass(format('flyball.job_%s', thin_day.day)) is null then
        delete from flyball.day d where d.day = thin_day.day;
        return;
    end if;
    select array_agg(k.kind order by k.kind), array_agg(k.retention order by k.kind) into long_kinds, retentions
    from flyball.kind_retention k where now() - k.retention < since;
    -- One probe per job and table: as a join, the planner might read all waiting jobs in each step.
    execute format('
        with page as materialized (
            select id, lane_id, admission_lane, priority, case when kind = any($4) then now() - ($5)[array_position($4, kind)] else $3 end as since
            from flyball.job_%1$s where id > $1 order by id limit $2
        ),
        expired as materialized (
            select p.id from page p
            where (select 1 from flyball.ready r
                    where r.lane_id in (p.lane_id, p.admission_lane) and r.priority = p.priority and r.job_id = p.id limit 1) is null
                and (select 1 from flyball.lease l where l.job_id = p.id limit 1) is null
                and (select 1 from flyball.scheduled s where s.job_id = p.id limit 1) is null
                and (select 1 from flyball.dead d where d.job_id = p.id limit 1) is null
                and (select 1 from flyball.attempt_%1$s a where a.job_id = p.id and a.finished_at >= p.since limit 1) is null
        ),
        attempts as (delete from flyball.attempt_%1$s a using expired g where a.job_id = g.id),
        cursors as (delete from flyball.checkpoint c using expired g where c.job_id = g.id),
        jobs as (delete from flyball.job_%1$s j using expired g where j.id = g.id returning 1)
        select (select count(*) from jobs), case when count(*) >= $2 then max(p.id) end from page p', thin_day.day)
    into deleted, next
    using start, thin_day.rows, thin_day.since, long_kinds, retentions;
    update flyball.day d set next = thin_day.next, pruned_at = now() where d.day = thin_day.day;
end $$;

-- === Retention by kind ===========================================================================

-- Sets how long finished jobs and dead letters of a kind are kept; null means as long as those of
-- all kinds. True if that is a change.
create function flyball.set_retention(kind text, retention interval default null, dead_retention interval default null) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    allowed constant text := 'allowed are 1 hour to 3650 days, or null for as long as those of all kinds';
    changed int;
begin
    if kind is null or octet_length(kind) not between 1 and 128 or kind = '*' then
        perform flyball.refuse('set_retention', 'kind', format('%s is not the name of a kind; allowed are 1 to 128 bytes other than "*"',
            coalesce(to_json(left(kind, 64))::text, 'null')));
    elsif retention not between interval '1 hour' and interval '3650 days' then
        perform flyball.refuse('set_retention', 'retention', format('is %s; %s', retention, allowed));
    elsif dead_retention not between interval '1 hour' and interval '3650 days' then
        perform flyball.refuse('set_retention', 'dead_retention', format('is %s; %s', dead_retention, allowed));
    end if;
    if retention is null and dead_retention is null then
        delete from flyball.kind_retention k where k.kind = set_retention.kind;
    else
        insert into flyball.kind_retention as k (kind, retention, dead_retention) values (kind, retention, dead_retention)
        on conflict on constraint kind_retention_pkey do update
        set retention = excluded.retention, dead_retention = excluded.dead_retention, next_job = 0, next_died_at = '-infinity',
            next_dead = 0
        where k.retention is distinct from excluded.retention or k.dead_retention is distinct from excluded.dead_retention;
    end if;
    get diagnostics changed = row_count;
    if changed > 0 then
        -- Jobs left to the kind's own retention are looked at again.
        update flyball.kind_retention k set next_died_at = '-infinity', next_dead = 0 where k.kind = '*';
        delete from flyball.unexpired u where u.kind = set_retention.kind;
    end if;
    return changed > 0;
end $$;
comment on function flyball.set_retention is 'Sets how long finished jobs and dead letters of a kind are kept; null for as long as those of all kinds.';

-- One step over the jobs of a kind that is kept shorter than all others: looks at up to `rows` jobs
-- of any kind from where the previous step ended, and at those of the kind that could not go
-- before. Deletes those of the kind that have ended long enough ago, with their attempts, results
-- and failures. Locks only the rows that it deletes. `more` says whether another step is due at
-- once.
create function flyball.expire_jobs(kind text, rows int default 5000, out deleted bigint, out more boolean)
language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    r         flyball.kind_retention;
    front     bigint;
    again     bigint[];
    found_ids bigint[];
    walked    bigint;
    walked_to bigint;
    low       bigint;
    high      bigint;
    failed    bigint[];
begin
    deleted := 0;
    more := false;
    select * into r from flyball.kind_retention k where k.kind = expire_jobs.kind and k.retention is not null for update skip locked;
    if not found then
        return;
    end if;
    front := flyball.id_at(now() - r.retention);
    -- A day without jobs may still get some.
    if front = (flyball.day_of(now() - r.retention) + 1) << 38 then
        front := flyball.day_of(now() - r.retention) << 38;
    end if;
    again := array(
        select u.job_id from flyball.unexpired u where u.kind = r.kind and u.look_at <= now() order by u.look_at limit rows
    );
    select count(*), max(w.id), array_agg(w.id) filter (where w.kind = r.kind) into walked, walked_to, found_ids
    from (select j.id, j.kind from flyball.job j where j.id > r.next_job and j.id < front order by j.id limit rows) w;
    -- Only the days between these are read: for an array alone, each day of the history would be.
    select min(u.id), max(u.id) into low, high from unnest(again || found_ids) as u(id);
    -- One probe per job and table: as a join, the planner might read all waiting jobs in each step.
    with looked as materialized (
        select c.id, j.id is null as gone, j.created_at,
            (select 1 from flyball.ready q
                where q.lane_id in (j.lane_id, j.admission_lane) and q.priority = j.priority and q.job_id = c.id limit 1) is not null
            or (select 1 from flyball.lease l where l.job_id = c.id limit 1) is not null
            or (select 1 from flyball.scheduled s where s.job_id = c.id limit 1) is not null
            or (select 1 from flyball.dead d where d.job_id = c.id limit 1) is not null as lives,
            (select max(a.finished_at) from flyball.attempt a where a.job_id = c.id) as ended_at
        from (select distinct u.id from unnest(again || found_ids) as u(id)) c
        left join lateral (select o.* from flyball.job o where o.id = c.id limit 1) j on true
    ),
    judged as materialized (
        select l.id, l.gone, case when l.gone then null when l.lives then now() + r.retention
            else coalesce(l.ended_at, l.created_at) + r.retention end as due
        from looked l
    ),
    expired as materialized (
        select g.id from judged g where g.gone or g.due <= now()
    ),
    attempts as (
        delete from flyball.attempt a
        where a.job_id >= low and a.job_id <= high and a.job_id = any(array(select e.id from expired e))
        returning a.job_id, a.outcome
    ),
    cursors as (
        delete from flyball.checkpoint c where c.job_id = any(array(select e.id from expired e))
    ),
    results as (
        delete from flyball.result o where o.job_id = any(array(select e.id from expired e))
    ),
    deleted_jobs as (
        delete from flyball.job j where j.id >= low and j.id <= high and j.id = any(array(select e.id from expired e)) returning 1
    ),
    looked_again as (
        delete from flyball.unexpired u where u.job_id = any(array(select e.id from expired e))
    ),
    kept as (
        insert into flyball.unexpired as u (job_id, kind, look_at)
        select g.id, r.kind, g.due from judged g where not g.gone and g.due > now()
        on conflict on constraint unexpired_pkey do update set look_at = excluded.look_at
    )
    select (select count(*) from deleted_jobs), array(select distinct a.job_id from attempts a where a.outcome <> 'completed')
    into deleted, failed;
    if cardinality(failed) > 0 then
        -- The newest ten thousand of all jobs, without an index by job.
        delete from flyball.failure f where f.job_id = any(failed);
    end if;
    update flyball.kind_retention k
    set next_job = case when walked = rows then walked_to else greatest(front - 1, r.next_job) end
    where k.kind = r.kind;
    more := walked = rows or cardinality(again) = rows;
end $$;

-- One step over the dead letters of a kind with a retention of its own, or, with '*', of all kinds
-- without one: discards those that died longer ago than `retention`.
create function flyball.expire_dead(kind text, retention interval, rows int default 5000, out deleted bigint, out more boolean)
language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    r      flyball.kind_retention;
    others text[];
    result record;
begin
    deleted := 0;
    more := false;
    insert into flyball.kind_retention as k (kind) select '*' where expire_dead.kind = '*' on conflict do nothing;
    select * into r from flyball.kind_retention k where k.kind = expire_dead.kind for update skip locked;
    if not found then
        return;
    end if;
    others := array(select k.kind from flyball.kind_retention k where k.dead_retention is not null and r.kind = '*');
    with walk as materialized (
        select d.job_id, d.died_at
        from flyball.dead d
        where d.died_at >= r.next_died_at and (d.died_at, d.job_id) > (r.next_died_at, r.next_dead) and d.died_at < now() - retention
        order by d.died_at, d.job_id
        limit rows
    ),
    old as materialized (
        select w.job_id
        from walk w
        cross join lateral (select j.kind from flyball.job j where j.id = w.job_id limit 1) j
        where case when r.kind = '*' then j.kind <> all(others) else j.kind = r.kind end
    ),
    removed as (
        delete from flyball.dead d where d.job_id = any(array(select o.job_id from old o)) returning d.job_id, d.attempt
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome, error)
        select x.job_id, x.attempt, 'cancelled', format('this dead letter expired after %s', justify_interval(retention)) from removed x
    )
    select (select count(*) from removed) as removed, (select count(*) from walk) as walked,
        (select w.died_at from walk w order by w.died_at desc, w.job_id desc limit 1) as died_at,
        (select w.job_id from walk w order by w.died_at desc, w.job_id desc limit 1) as job_id
    into result;
    deleted := result.removed;
    more := result.walked = rows;
    if result.walked > 0 then
        update flyball.kind_retention k set next_died_at = result.died_at, next_dead = result.job_id where k.kind = r.kind;
    end if;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.set_retention, flyball.expire_jobs, flyball.expire_dead
from public;
