-- Chapter 27: schedules that were refused a part, and callbacks whose unique key another job holds.

-- === Schedules ===================================================================================

-- Occurrences of a schedule with catch_up `all` that were refused; the next one tries them again.
alter table flyball.cron add column to_retry timestamptz[];

-- As in 0005, but each occurrence stands for itself: after one that is refused, the jobs made before it
-- stay. With catch_up `all` the refused one and those after it are tried again with the next one, at
-- most the newest 100. A schedule that was paused, or got other times, has no next occurrence here and
-- forgets them.
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
    retries := c.catch_up = 'all' and c.next_at is not null;
    if retries and c.to_retry is not null then
        occurrences := array(
            select n.at
            from (select distinct o.at from unnest(c.to_retry || occurrences) as o(at) order by o.at desc limit 100) n
            order by n.at);
    end if;
    last_at := occurrences[cardinality(occurrences)];
    foreach at in array occurrences loop
        continue when at <= c.last_at;
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
        last_at = greatest(k.last_at, last_at),
        last_job_id = coalesce(last_id, k.last_job_id),
        skipped_at = case when skipped > 0 then clock_timestamp() else k.skipped_at end,
        problem = refused,
        to_retry = remaining
    where k.name = name;
    return next;
end $$;

-- === Callbacks ====================================================================================

-- As flyball.enqueue_json_as in 0019, and says which jobs took the place of a waiting one.
create function flyball.enqueue_json_rows(owner text, module text, jobs jsonb, group_id bigint default null)
returns table (job_id bigint, duplicate boolean, replaced boolean)
language sql volatile as $$
    select e.job_id, e.duplicate, e.replaced
    from (
        select array_agg(f.kind order by a.n) as kinds, array_agg(coalesce(a.j -> 'args', '{}') order by a.n) as args,
            array_agg(coalesce(f.throttle, 'default') order by a.n) as throttles, array_agg(coalesce(f.key, '') order by a.n) as keys,
            array_agg(coalesce(f.priority, 1) order by a.n) as priorities, array_agg(f.run_at order by a.n) as run_ats,
            array_agg(coalesce(f.max_attempts, 10) order by a.n) as max_attempts, array_agg(f.unique_key order by a.n) as unique_keys,
            array_agg(flyball.seconds_of(f.unique_for) order by a.n) as unique_fors, array_agg(coalesce(f.cost, 1) order by a.n) as costs,
            array_agg(f.traceparent order by a.n) as traceparents, array_agg(flyball.seconds_of(f.timeout) order by a.n) as timeouts,
            array_agg(flyball.seconds_of(f.debounce) order by a.n) as debounces,
            array_agg(flyball.seconds_of(f.debounce_max) order by a.n) as debounce_maxes,
            array_agg(coalesce(f.replace, false) order by a.n) as replaces, array_agg(enqueue_json_rows.group_id) as groups,
            array_agg(flyball.options_of(a.j) order by a.n) as options
        from jsonb_array_elements(enqueue_json_rows.jobs) with ordinality as a(j, n)
        cross join lateral jsonb_to_record(a.j) as f(kind text, throttle text, key text, priority int,
            run_at timestamptz, max_attempts int, unique_key text, unique_for jsonb, cost float8, traceparent text,
            timeout jsonb, debounce jsonb, debounce_max jsonb, replace boolean)
        having count(*) > 0
    ) c
    cross join lateral flyball.enqueue_rows_as(enqueue_json_rows.owner, true, c.kinds, c.args, c.throttles, c.keys, c.priorities, c.run_ats,
        c.max_attempts, c.unique_keys, c.unique_fors, c.costs, c.traceparents, c.timeouts, c.debounces, c.debounce_maxes, c.replaces,
        enqueue_json_rows.module, false, c.groups, c.options) e
$$;

create or replace function flyball.enqueue_json_as(owner text, module text, jobs jsonb, group_id bigint default null)
returns table (job_id bigint, duplicate boolean)
language sql volatile as $$
    select e.job_id, e.duplicate
    from flyball.enqueue_json_rows(enqueue_json_as.owner, enqueue_json_as.module, enqueue_json_as.jobs, enqueue_json_as.group_id) e
$$;

-- As in 0017, but a callback whose unique key another job holds is refused as well: that job is not the
-- callback, and may have run before the group has ended.
create or replace function flyball.settle_group(group_id bigint) returns boolean
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    g        flyball.job_group;
    enqueued record;
    callback bigint;
begin
    with folded as (
        delete from flyball.group_change c
        where c.ctid = any(array(select d.ctid from flyball.group_change d where d.group_id = group_id limit 50000))
        returning c.*
    )
    update flyball.job_group u
    set jobs = u.jobs + s.jobs, completed = u.completed + s.completed, dead = u.dead + s.dead, cancelled = u.cancelled + s.cancelled
    from (
        select sum(f.jobs) as jobs, sum(f.completed) as completed, sum(f.dead) as dead, sum(f.cancelled) as cancelled
        from folded f having count(*) > 0
    ) s
    where u.id = group_id;
    select * into g from flyball.job_group u where u.id = group_id;
    if g.sealed_at is null or g.ended_at is not null or g.jobs > g.completed + g.dead + g.cancelled
        or exists (select from flyball.group_change c where c.group_id = group_id)
    then
        return false;
    end if;
    begin
        if g.callback is not null then
            select e.job_id, e.duplicate and not e.replaced as is_taken into enqueued
            from flyball.enqueue_json_rows(g.owner, g.module,
                jsonb_build_array(flyball.callback_with(g.callback, flyball.group_counts(g)))) e;
            if enqueued.is_taken then
                raise exception using errcode = '23505',
                    message = format('callback.unique_key: job %s holds it; the callback is enqueued when the key is free', enqueued.job_id);
            end if;
            callback := enqueued.job_id;
        end if;
    exception when data_exception or integrity_constraint_violation or raise_exception or configuration_limit_exceeded or insufficient_privilege then
        update flyball.job_group u set callback_problem = left(sqlerrm, 1000), retry_at = clock_timestamp() + interval '10 seconds'
        where u.id = group_id;
        return false;
    end;
    update flyball.job_group u
    set ended_at = clock_timestamp(), callback_job_id = callback, callback_problem = null, retry_at = null
    where u.id = group_id;
    return true;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.enqueue_json_rows from public;
