-- Chapter 56: cascades of many jobs, and smaller repairs.

-- === Jobs that wait for jobs that wait ============================================================

-- Of a chain of jobs, each of which waits for the one before, one call cancelled one job: a chain of 1,500 took 1,501
-- calls. A call goes on to those that wait for what it has cancelled, up to its limit.
create or replace function flyball.release_waiting(ended bigint[] default null, most int default 1000,
    out released bigint, out lanes bigint[], out cancelled_jobs bigint[], out looked bigint[], out waiting boolean, out more boolean)
language plpgsql volatile set enable_seqscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
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
    chained   bigint[];
    causes    bigint[];
    gone_jobs bigint[];
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
                select s.job_id from flyball.scheduled s where s.job_id = a.job_id and coalesce(s.turn < -4, false) limit 1 for update skip locked
            ) w
            limit most
        ) h
    );
    if held = '{}' then
        return;
    end if;

    chained := held;
    causes := failed;
    loop
        with doomed as (
            select a.job_id, min(a.after_id) as after_id
            from flyball.job_after a
            where a.job_id = any(chained) and coalesce(a.after_id = any(causes), false) and not a.runs_anyway
            group by a.job_id
        ),
        gone as (
            delete from flyball.scheduled s where s.job_id = any(array(select d.job_id from doomed d)) returning s.job_id, s.attempt
        ),
        history as (
            insert into flyball.attempt (job_id, attempt, outcome, error)
            select g.job_id, g.attempt, 'cancelled', format('job %s, after which this one was to run, did not complete', d.after_id)
            from gone g join doomed d on d.job_id = g.job_id
        ),
        released_keys as (
            delete from flyball.unique_holder
            where digest = any(array(
                select u.digest from flyball.unique_holder u
                where u.expires_at is null and u.job_id = any(array(select g.job_id from gone g)) for update skip locked
            ))
        )
        select array(select g.job_id from gone g) into gone_jobs;
        cancelled_jobs := cancelled_jobs || gone_jobs;
        exit when gone_jobs = '{}' or cardinality(cancelled_jobs) >= most;
        -- On to those that wait for what has just been cancelled; those that run anyway are left to the next call.
        causes := gone_jobs;
        chained := array(
            select distinct h.job_id
            from (
                select w.job_id
                from (
                    select a.job_id
                    from unnest(causes) as e(id)
                    cross join lateral (
                        select o.job_id, o.runs_anyway from flyball.job_after o where o.after_id = e.id order by o.after_id, o.job_id
                    ) a
                    where not a.runs_anyway
                    limit 20 * most
                ) a
                cross join lateral (
                    select s.job_id from flyball.scheduled s where s.job_id = a.job_id and coalesce(s.turn < -4, false) limit 1 for update skip locked
                ) w
                limit most - cardinality(cancelled_jobs)
            ) h
        );
        exit when chained = '{}';
    end loop;

    delete from flyball.job_after a
    where a.job_id = any(held) and coalesce(a.after_id = any(completed || failed) or a.after_id = any(dead) and a.runs_anyway, false);
    free := array(
        select h.id from unnest(held) as h(id)
        where h.id <> all (cancelled_jobs) and (select 1 from flyball.job_after a where a.job_id = h.id limit 1) is null);
    due := array(
        select s.job_id
        from flyball.scheduled s
        cross join lateral (select o.kind, o.args from flyball.job o where o.id = s.job_id limit 1) j
        where s.job_id = any(free) and coalesce(s.run_at <= now(), false) and not flyball.needs_plan(j.kind, j.args)
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
    set turn = coalesce((
        select case when flyball.needs_plan(j.kind, j.args) then s.priority - 4 else flyball.turn_of(j.throttle, s.priority, false) end
        from flyball.job j where j.id = s.job_id limit 1), s.turn)
    where s.job_id = any(array(select f.id from unnest(free) as f(id) where f.id <> all (due)));
    if found then
        perform pg_notify('flyball_plan', '');
    end if;
    released := cardinality(free);
    more := true;
end $$;

-- === Names that are no zones ======================================================================

-- `localtime` is another zone on each machine, and `Factory` none.
do $migration$
declare
    was     constant text := $t$if time_zone is null or not exists$t$;
    becomes constant text := $t$if time_zone is null or time_zone ~* '^((posix|right)/|(localtime|posixrules|factory)$)' or not exists$t$;
    body    constant text := pg_get_functiondef('flyball.check_schedule'::regproc);
begin
    if length(body) - length(replace(body, was, '')) <> length(was) then
        raise exception 'flyball.check_schedule does not contain once: %', was;
    end if;
    execute replace(body, was, becomes);
end $migration$;
