-- Chapter 33: work that no other role can stop, and repairs of schedules, retries and groups.

-- === Locks =======================================================================================

-- The locks of work that one process does at a time. Each is the lock of a row, because every role that
-- may connect can take an advisory lock, and keep it for as long as it stays connected. On this table
-- only its owner has rights.
create table flyball.mutex (
    name text primary key
);
insert into flyball.mutex (name) values ('ensure_day'), ('prune_day'), ('promote'), ('publications');

-- As in 0001, but for the lock.
create or replace function flyball.ensure_day(day bigint) returns void
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
                execute format('alter table flyball.%I attach partition flyball.%I for values from (%s) to (%s)',
                    parent, child, day << 38, (day + 1) << 38);
            end if;
        end if;
    end loop;
end $$;

-- As in 0020, but for the lock. A call that began before this migration has the lock of before: should it
-- meet another one on the same day, the locks on the tables of that day keep them apart.
create or replace function flyball.prune_day(day bigint, since timestamptz default 'infinity', max_jobs bigint default 20000) returns bigint
language plpgsql set lock_timeout = '100ms' set enable_hashjoin = off set enable_mergejoin = off as $$
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
    -- Kinds that are kept longer than all others: by their jobs' rows, of which only theirs are followed
    -- up.
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

-- === Schedules ===================================================================================

-- Refuses roles with a tenant. The jobs of schedules are the operators' own: they pass no limit of a
-- tenant, may be critical, and may name the secrets of operators.
create function flyball.refuse_tenant_role(entry_point text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    its_tenant constant text := case when not flyball.is_operator() then (flyball.role_tenant()).tenant end;
begin
    if its_tenant is not null then
        raise exception using errcode = '42501', column = 'tenant', hint = 'No schedule was changed.',
            message = format('%s: tenant: role %s belongs to tenant %s, and the jobs of schedules are the operators'' own; allowed are roles without a tenant',
                entry_point, to_json(flyball.caller()), to_json(its_tenant));
    end if;
end $$;

create function flyball.check_writer() returns trigger
language plpgsql as $$
begin
    perform flyball.refuse_tenant_role('schedule');
    return null;
end $$;

-- However the table is written, and whatever a role was granted.
create trigger check_writer before insert or update or delete on flyball.cron
for each statement execute function flyball.check_writer();

-- As in 0019, and it makes no job for a role with a tenant. With overlap `skip` an unfinished job of
-- another kind, which the schedule had before, blocks the next one too: the unique key of that job is
-- another one, because the kind is a part of it.
create or replace function flyball.enqueue_occurrence(name text, at timestamptz, out job_id bigint, out duplicate boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c          flyball.cron;
    unique_key constant text := 'cron:' || name;
begin
    if not has_table_privilege(flyball.caller(), 'flyball.cron'::regclass, 'UPDATE') then
        raise exception using errcode = '42501', message = format('role %s may not run schedules: it has no right to update flyball.cron',
            to_json(flyball.caller()));
    end if;
    perform flyball.refuse_tenant_role('run_schedule');
    select * into c from flyball.cron k where k.name = name;
    if not found then
        return;
    end if;
    if c.overlap = 'skip' and c.last_job_id is not null
        and exists (select from flyball.job j where j.id = c.last_job_id and j.kind <> c.kind)
        and flyball.job_state(c.last_job_id) in ('ready', 'scheduled', 'retryable', 'running')
    then
        job_id := c.last_job_id;
        duplicate := true;
        return;
    end if;
    select e.job_id, e.duplicate into job_id, duplicate
    from flyball.enqueue_rows_as('cron', true, array[c.kind], array[c.args], array[c.throttle], array[c.key], array[c.priority::int],
        array[at], array[c.max_attempts::int],
        array[case when c.overlap = 'skip' then unique_key when at is not null then unique_key || '@' || extract(epoch from at)::bigint end],
        array[case when c.overlap <> 'skip' and at is not null then 3600::float8 end],
        array[c.cost::float8], array[null::text], array[c.timeout_s::float8], array[null::float8], array[null::float8], array[false],
        options => array[flyball.options_of(jsonb_build_object('tags', c.tags, 'retry', c.retry))]) e;
end $$;

-- Finds schedules that were handled ahead of time.
create index cron_ahead on flyball.cron (last_at) where not paused;

alter table flyball.cron
    -- The occurrence that a process could not compute because it does not know the time zone, and the
    -- time of the next try by any process. Both hold while `problem` begins with `time_zone: `.
    add column missed_at timestamptz,
    add column retry_at timestamptz;

-- Counts schedules with a problem.
create index cron_problem on flyball.cron (name) where problem is not null and not paused;

-- As in 0027, but an occurrence that was handled when the clock of the server was ahead, by more than a
-- minute, holds up no other: occurrences are made by the clock as it is. A schedule whose time zone a
-- process does not know is left to others, which may know it.
create or replace function flyball.advance_schedule(
    name text, expression text, time_zone text, seen_next_at timestamptz,
    occurrences timestamptz[], next_at timestamptz, problem text)
returns table (made int, skipped int, refused text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c         flyball.cron;
    retries   boolean;
    at        timestamptz;
    job       record;
    last_id   bigint;
    last_at   timestamptz;
    -- The time up to which occurrences were handled; null if the clock was ahead then.
    handled   timestamptz;
    present   constant timestamptz := clock_timestamp() + interval '1 minute';
    -- The occurrence that was due.
    due_at    timestamptz;
    remaining timestamptz[];
begin
    select * into c from flyball.cron k
    where k.name = name and k.expression = expression and k.time_zone = time_zone
        and k.next_at is not distinct from seen_next_at and not k.paused
    for update skip locked;
    if not found then
        return;
    end if;
    made := 0;
    skipped := 0;
    refused := problem;
    due_at := coalesce(c.next_at, case when c.problem like 'time_zone: %' then c.missed_at end);
    if next_at is null and problem like 'time_zone: %' then
        update flyball.cron k
        set next_at = null, problem = problem, missed_at = due_at, retry_at = clock_timestamp() + interval '1 minute'
        where k.name = name;
        return next;
        return;
    end if;
    retries := c.catch_up = 'all' and due_at is not null;
    if retries and c.to_retry is not null then
        occurrences := array(
            select n.at
            from (
                select distinct o.at from unnest(c.to_retry || occurrences) as o(at) where o.at <= present order by o.at desc limit 100
            ) n
            order by n.at);
    end if;
    last_at := occurrences[cardinality(occurrences)];
    handled := case when c.last_at <= present then c.last_at end;
    foreach at in array occurrences loop
        continue when at <= handled;
        begin
            select m.job_id, m.duplicate into job from flyball.enqueue_occurrence(c.name, at) m;
        -- A full lane that refuses jobs (53400) is such a problem too, and not a failure of Postgres.
        exception when data_exception or integrity_constraint_violation or raise_exception or configuration_limit_exceeded or insufficient_privilege then
            refused := sqlerrm;
            if retries then
                remaining := array(select o.at from unnest(occurrences) as o(at) where o.at >= at order by o.at);
                last_at := (select max(o.at) from unnest(occurrences) as o(at) where o.at < at);
            end if;
            exit;
        end;
        if job.duplicate then
            skipped := skipped + 1;
        else
            made := made + 1;
            last_id := job.job_id;
        end if;
    end loop;
    update flyball.cron k
    set next_at = next_at,
        last_at = greatest(handled, last_at),
        last_job_id = coalesce(last_id, k.last_job_id),
        skipped_at = case when skipped > 0 then clock_timestamp() else k.skipped_at end,
        problem = refused,
        to_retry = remaining,
        missed_at = null,
        retry_at = null
    where k.name = name;
    return next;
end $$;

-- === Jobs that wait for others, and groups =======================================================

-- As in 0019, but jobs that other transactions hold do not count towards `most`, and those that may be
-- freed are read as far as they are needed.
create or replace function flyball.release_waiting(ended bigint[] default null, most int default 1000,
    out released bigint, out lanes bigint[], out cancelled_jobs bigint[], out looked bigint[], out waiting boolean, out more boolean)
language plpgsql volatile set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    place     bigint;
    rung      bigint;
    completed bigint[];
    failed    bigint[];
    dead      bigint[];
    due       bigint[];
    free      bigint[];
    held      bigint[];
begin
    released := 0;
    lanes := '{}';
    cancelled_jobs := '{}';
    looked := '{}';
    more := false;
    waiting := (select 1 from flyball.job_after a limit 1) is not null;
    if not waiting then
        return;
    elsif ended is not null then
        looked := array(
            select e.id from (select distinct unnest(ended) as id) e
            where (select 1 from flyball.job_after a where a.after_id = e.id limit 1) is not null);
    else
        select s.after_id into place from flyball.after_sweep s
        where s.at <= clock_timestamp() - interval '0.8 seconds'
        for update skip locked;
        if not found then
            return;
        end if;
        looked := array(
            with recursive hop as (
                (select a.after_id from flyball.job_after a where a.after_id > place order by a.after_id limit 1)
                union all
                select n.after_id
                from hop h
                cross join lateral (
                    select a.after_id from flyball.job_after a where a.after_id > h.after_id order by a.after_id limit 1
                ) n
            )
            select h.after_id from hop h limit most
        );
        update flyball.after_sweep s
        set after_id = case when cardinality(looked) < most then 0 else looked[cardinality(looked)] end, at = clock_timestamp()
        where s.one;
    end if;

    -- No end is taken back, except that of a dead letter.
    select array_agg(l.id) filter (where l.state = 'completed'), array_agg(l.id) filter (where l.state = 'dead'),
        array_agg(l.id) filter (where l.state = 'cancelled')
    into completed, dead, failed
    from (select e.job_id as id, e.state from flyball.ends_of(looked) e) l;
    -- The holder of the row in `scheduled` decides about the job; the others leave it alone.
    held := array(
        select distinct h.job_id
        from (
            select w.job_id
            from (
                select a.job_id
                from unnest(completed || failed || dead) as e(id)
                cross join lateral (
                    select o.job_id, o.runs_anyway from flyball.job_after o where o.after_id = e.id order by o.after_id, o.job_id
                ) a
                where a.runs_anyway or e.id <> all (coalesce(dead, '{}'))
                limit 20 * most
            ) a
            cross join lateral (
                select s.job_id from flyball.scheduled s where s.job_id = a.job_id and s.turn < -4 for update skip locked
            ) w
            limit most
        ) h
    );
    if held = '{}' then
        return;
    end if;

    with doomed as (
        select a.job_id, min(a.after_id) as after_id
        from flyball.job_after a
        where a.job_id = any(held) and a.after_id = any(failed) and not a.runs_anyway
        group by a.job_id
    ),
    gone as (
        delete from flyball.scheduled s using doomed d where s.job_id = d.job_id returning s.job_id, s.attempt, d.after_id
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome, error)
        select g.job_id, g.attempt, 'cancelled', format('job %s, after which this one was to run, did not complete', g.after_id) from gone g
    ),
    released_keys as (
        delete from flyball.unique_holder
        where digest = any(array(
            select u.digest from flyball.unique_holder u
            where u.expires_at is null and u.job_id = any(array(select g.job_id from gone g)) for update skip locked
        ))
    )
    select array(select g.job_id from gone g) into cancelled_jobs;

    delete from flyball.job_after a
    where a.job_id = any(held) and (a.after_id = any(completed || failed) or a.after_id = any(dead) and a.runs_anyway);
    free := array(
        select h.id from unnest(held) as h(id)
        where h.id <> all (cancelled_jobs) and (select 1 from flyball.job_after a where a.job_id = h.id limit 1) is null);
    due := array(
        select s.job_id
        from flyball.scheduled s
        cross join lateral (select o.kind, o.args from flyball.job o where o.id = s.job_id limit 1) j
        where s.job_id = any(free) and s.run_at <= now() and not flyball.needs_plan(j.kind, j.args)
    );
    with moved as (
        delete from flyball.scheduled s where s.job_id = any(due)
        returning s.lane_id, s.priority, s.job_id, s.attempt, s.cost, s.holds_unique
    ),
    arrived as (
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique) select * from moved on conflict do nothing
    ),
    pages as (
        select l.lane_id, row_number() over () / 370 as page from (select distinct m.lane_id from moved m) l
    )
    -- A notification holds 8,000 bytes.
    select coalesce((select array_agg(p.lane_id) from pages p), '{}'), count(pg_notify('flyball', b.lanes))
    into lanes, rung
    from (select string_agg(p.lane_id::text, ',') as lanes from pages p group by p.page) b;
    -- The others have a time of their own, or gates to pass.
    update flyball.scheduled s
    set turn = case when flyball.needs_plan(j.kind, j.args) then s.priority - 4 else flyball.turn_of(j.throttle, s.priority, false) end
    from unnest(free) as f(id)
    cross join lateral (select o.kind, o.args, o.throttle from flyball.job o where o.id = f.id limit 1) j
    where s.job_id = f.id and f.id <> all (due);
    if found then
        perform pg_notify('flyball_plan', '');
    end if;
    released := cardinality(free);
    more := true;
end $$;

-- As in 0019, but groups that other transactions hold do not count towards `most`, and neither do the
-- changes of one group.
create or replace function flyball.settle_groups(most int default 100, out ended int, out more boolean, out calls int)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    found_groups bigint[];
    tried_again  bigint[];
    one          bigint;
begin
    ended := 0;
    found_groups := array(
        with recursive hop as (
            (select d.group_id from flyball.group_change d order by d.group_id limit 1)
            union all
            select n.group_id
            from hop h
            cross join lateral (
                select d.group_id from flyball.group_change d where d.group_id > h.group_id order by d.group_id limit 1
            ) n
        )
        select g.id
        from (select h.group_id from hop h limit 10000) c
        cross join lateral (
            select j.id from flyball.job_group j where j.id = c.group_id for no key update skip locked
        ) g
        limit most
    );
    tried_again := array(
        select r.id from flyball.job_group r
        where r.retry_at <= clock_timestamp() and r.id <> all (found_groups)
        order by r.retry_at
        limit most
        for no key update skip locked
    );
    foreach one in array found_groups || tried_again loop
        if flyball.settle_group(one) then
            ended := ended + 1;
        end if;
    end loop;
    select e.enqueued, e.more or cardinality(found_groups) = most into calls, more from flyball.enqueue_calls() e;
end $$;

-- === Audit log ===================================================================================

-- Finds the lines of a tenant, newest first, and those that are too many.
create index audit_tenant on flyball.audit (tenant, id);

-- === A job that replaces another =================================================================

-- One line more where a waiting job gets the arguments of the one that replaces it: a request to cancel
-- was for the job that is gone. It is put into the function as it is, because nothing else of it changes.
do $$
declare
    rewrites constant text := 'perform flyball.rewrite_job(job, true);';
    body     constant text := pg_get_functiondef('flyball.admit_unchecked'::regproc);
begin
    if strpos(body, rewrites) = 0 then
        raise exception 'flyball.admit_unchecked does not contain: %', rewrites;
    end if;
    execute replace(body, rewrites, rewrites || E'\n        delete from flyball.cancel c where c.job_id = job_id;');
end $$;
