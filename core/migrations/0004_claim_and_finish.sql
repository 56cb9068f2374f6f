-- Chapter 4: what workers do with jobs besides the statements in core/src/jobs/postgres, which
-- claim and finish: the order of promotion, jobs that wait for others, and webhooks.

-- === Promotion ===================================================================================

-- A crowd of jobs that is due at once does not delay other jobs. Every scheduled job belongs to a
-- group: its throttle (one of 4095 hash values), whether it is a retry, and its priority. If more
-- jobs are due than one step promotes, the groups are served side by side.

-- Two throttles with the same hash share a group, which costs only fairness between them. Groups
-- below 8 hold jobs with an unknown throttle.
create function flyball.turn_of(throttle text, priority smallint, retry boolean) returns smallint
language sql immutable parallel safe
return (coalesce(1 + (hashtext(throttle) & 2147483647) % 4095, 0) << 3 | case when retry then 0 else 4 end | priority)::smallint;

-- Puts a scheduled job into its group. The throttle is in the job's own row, which is written
-- before the job is scheduled.
create function flyball.take_turn() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
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

-- === Jobs that wait for others ===================================================================

-- The states of jobs: 'live' until they have ended, else 'completed', 'dead' or 'cancelled'. One
-- that is gone counts as cancelled. One statement and so one snapshot, in which a job stands in one
-- place; and one plan for all of them. It is volatile, so that it takes its view after it has
-- waited for a day that is being emptied: one that is stable reads with the older view of its
-- caller, and finds that day without jobs.
create function flyball.ends_of(jobs bigint[]) returns table (job_id bigint, state text)
language plpgsql volatile set enable_seqscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select u.id, case
            when l.job_id is not null or r.job_id is not null or s.job_id is not null then 'live'
            when d.job_id is not null then 'dead'
            when j.id is null or a.outcome in ('cancelled', 'dropped') then 'cancelled'
            else 'completed' end
    from unnest(jobs) as u(id)
    left join lateral (select o.id, o.lane_id, o.admission_lane, o.priority from flyball.job o where o.id = u.id limit 1) j on true
    left join lateral (select h.job_id from flyball.lease h where h.job_id = u.id limit 1) l on true
    left join lateral (
        select h.job_id from flyball.ready h
        where h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = u.id limit 1
    ) r on true
    left join lateral (select h.job_id from flyball.scheduled h where h.job_id = u.id limit 1) s on true
    left join lateral (select h.job_id from flyball.dead h where h.job_id = u.id limit 1) d on true
    left join lateral (
        select h.outcome from flyball.attempt h where h.job_id = u.id order by h.finished_at desc limit 1
    ) a on true;
end $$;

-- The first of the jobs after which one runs that is not there for this tenant; null for none. It
-- is volatile as flyball.ends_of is.
create function flyball.absent_of(jobs bigint[], tenant text) returns bigint
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    return (
        select a.id from unnest(jobs) as a(id)
        where (select 1 from flyball.job j where j.id = a.id and j.tenant = tenant limit 1) is null
        order by a.id
        limit 1);
end $$;

-- Those of the jobs after which one runs for which it waits now; null for none. A dead letter is
-- waited for, because it may be requeued and complete, unless the job runs after any end.
create function flyball.awaited(options jsonb) returns bigint[]
language plpgsql stable as $$
begin
    return (
        select array_agg(e.job_id order by e.job_id)
        from flyball.ends_of(flyball.after_of(options)) e
        where e.state = 'live' or e.state <> 'completed' and options ->> 'after_failure' is distinct from 'run');
end $$;

-- Records for which jobs one waits, in the transaction that enqueues it.
create function flyball.add_waits(job_id bigint, awaited bigint[], options jsonb) returns void
language sql volatile as $$
    insert into flyball.job_after (job_id, after_id, runs_anyway)
    select add_waits.job_id, a.id, coalesce(add_waits.options ->> 'after_failure' = 'run', false) from unnest(add_waits.awaited) as a(id);
$$;

-- A job leaves its place: it is free, or it was cancelled, started by hand, or replaced.
create function flyball.forget_waits() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    delete from flyball.job_after a where a.job_id = old.job_id;
    return null;
end $$;

-- Jobs that wait for no other cost one comparison.
create trigger job_waits_no_more after delete on flyball.scheduled
    for each row when (old.turn < -4) execute function flyball.forget_waits();

-- Frees jobs for which all others have ended, and cancels those for which one did not complete. It
-- looks at jobs that have `ended`; without, at the next of all that are waited for, at most once a
-- second for all workers together. Returns how many jobs are free and their lanes, the jobs that
-- were cancelled, those that it looked at, whether jobs wait at all, and whether to look at them
-- again.
--
-- Jobs that another transaction holds are left to the next call and do not count towards `most`;
-- those that may be freed are read as far as they are needed. The state of what they waited for is
-- read anew then, so none is forgotten. A call goes on to those that wait for what it has
-- cancelled, up to its limit, so a long chain of jobs, each of which waits for the one before, does
-- not take a call for each.
create function flyball.release_waiting(ended bigint[] default null, most int default 1000,
    out released bigint, out lanes bigint[], out cancelled_jobs bigint[], out looked bigint[], out waiting boolean, out more boolean)
language plpgsql volatile set enable_seqscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    place     bigint;
    notified  bigint;
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
                select s.job_id from flyball.scheduled s where s.job_id = a.job_id and coalesce(s.turn < -4, false)
                limit 1 for update skip locked
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
        -- On to those that wait for what has just been cancelled; those that run anyway are left to
        -- the next call.
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
                    select s.job_id from flyball.scheduled s where s.job_id = a.job_id and coalesce(s.turn < -4, false)
                    limit 1 for update skip locked
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
    into lanes, notified
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

-- === Ends of members and of jobs with webhooks ===================================================

-- A member of a group, or a job with webhooks, has ended for good. Their rows are there once, so a
-- copy of its last attempt, as when a day is pruned, counts and calls nothing.
create function flyball.count_ended_member() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    with ended as (
        delete from flyball.group_member m where m.job_id = new.job_id returning m.group_id, m.dead
    )
    insert into flyball.group_change (group_id, completed, dead, cancelled)
    select e.group_id, (new.outcome = 'completed')::int, -(e.dead::int), (new.outcome <> 'completed')::int from ended e;
    delete from flyball.webhook_job w where w.job_id = new.job_id;
    if found and new.outcome = 'completed' then
        insert into flyball.webhook_call (job_id, event)
        select j.id, 'completed' from flyball.job j where j.id = new.job_id and j.on_complete is not null;
    end if;
    return null;
end $$;

-- Each end of a job writes one of these rows. The last bit of the id is set for members alone, so a
-- job of no group costs one comparison.
create trigger attempt_ends_member after insert on flyball.attempt
    for each row when (new.job_id & 1 = 1 and new.outcome in ('completed', 'cancelled', 'dropped'))
    execute function flyball.count_ended_member();

-- A member, or a job with webhooks, has become a dead letter, or is one no longer.
create function flyball.count_dead_member() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    is_dead constant boolean := tg_op = 'INSERT';
    member  constant bigint := case when tg_op = 'INSERT' then new.job_id else old.job_id end;
begin
    with changed as (
        update flyball.group_member m set dead = is_dead where m.job_id = member and m.dead <> is_dead returning m.group_id
    )
    insert into flyball.group_change (group_id, dead)
    select c.group_id, case when is_dead then 1 else -1 end from changed c;
    if is_dead then
        insert into flyball.webhook_call (job_id, event)
        select j.id, 'dead'
        from flyball.webhook_job w
        cross join lateral (select o.id from flyball.job o where o.id = w.job_id and o.on_dead is not null limit 1) j
        where w.job_id = member;
    end if;
    return null;
end $$;

create trigger dead_member after insert on flyball.dead
    for each row when (new.job_id & 1 = 1) execute function flyball.count_dead_member();
create trigger revived_member after delete on flyball.dead
    for each row when (old.job_id & 1 = 1) execute function flyball.count_dead_member();

-- === Webhooks ====================================================================================

-- The rate-limit key of calls: a tenant has one for all of its own, however many hosts it names;
-- the operators have one for each host.
create function flyball.webhook_key(tenant text, url text) returns text
language sql immutable parallel safe
return case when tenant <> '' then tenant else left(lower(substring(url from '^[a-zA-Z]+://([^/?#]+)')), 128) end;

-- The job that calls a webhook.
create function flyball.webhook_job_of(c flyball.webhook_call, j flyball.job) returns jsonb
language sql stable
return (
    select jsonb_build_object('kind', 'http', 'throttle', 'webhooks', 'key', flyball.webhook_key((j).tenant, t.url),
        'max_attempts', 15, 'tags', coalesce(to_jsonb((j).tags), '[]'),
        'args', jsonb_strip_nulls(jsonb_build_object('method', 'POST', 'url', t.url, 'secret', (j).webhook_secret))
            || jsonb_build_object('body', jsonb_build_object(
                'type', 'job.' || (c).event, 'timestamp', flyball.time_text((c).at),
                'data', jsonb_build_object(
                        'id', (j).id, 'kind', (j).kind, 'throttle', (j).throttle, 'key', (j).key,
                        'tags', coalesce(to_jsonb((j).tags), '[]'),
                        'group', (j).group_id, 'attempt', coalesce(a.attempt, 0), 'max_attempts', (j).max_attempts,
                        'created_at', flyball.time_text((j).created_at), 'started_at', flyball.time_text(a.started_at),
                        'ended_at', flyball.time_text((c).at))
                    || case when (c).event = 'dead' then jsonb_build_object('error', t.error)
                        when r.result is not null then jsonb_build_object('result', r.result) else '{}' end)))
    from (select 1) one
    left join lateral (
        select b.attempt, b.outcome, b.started_at, b.error
        from flyball.attempt b where b.job_id = (j).id and b.finished_at <= (c).at + interval '1 second'
        order by b.finished_at desc limit 1
    ) a on true
    left join lateral (
        select o.result from flyball.result o where o.job_id = (j).id and octet_length(o.result::text) <= 16384 limit 1
    ) r on true
    cross join lateral (
        -- The class of the error and not its text, which may repeat what others answered.
        select case (c).event when 'dead' then (j).on_dead else (j).on_complete end as url,
            coalesce(substring(a.error from '^answered [1-5][0-9][0-9]'), case a.outcome when 'dead' then 'failed' else a.outcome::text end,
                'failed') as error
    ) t
);

-- Enqueues up to `most` calls, each in one transaction with the end of its row; returns how many,
-- and whether there may be more. One that is refused, for instance by a full lane, is tried again
-- for three days; each time it waits as long again as it has waited so far, at least ten seconds
-- and at most an hour. Calls that another transaction holds are left to it, and a call that would
-- wait for an open transaction is put off, and no other.
create function flyball.enqueue_calls(most integer default 500, out enqueued integer, out more boolean)
language plpgsql set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    one            record;
    taken          bigint[];
    calls          bigint[];
    single         bigint;
    caller_timeout constant text := current_setting('lock_timeout');
begin
    enqueued := 0;
    taken := array(
        select c.id from flyball.webhook_call c
        where c.retry_at <= now()
        order by c.retry_at, c.id
        limit most
        for update skip locked
    );
    more := cardinality(taken) = most;
    if taken = '{}' then
        return;
    end if;
    delete from flyball.webhook_call c
    where c.id = any(taken) and (select 1 from flyball.job j where j.id = c.job_id limit 1) is null;
    for one in
        select case when j.tenant <> '' then 'tenant:' || j.tenant else '' end as owner, j.module, array_agg(c.id order by c.id) as ids
        from flyball.webhook_call c
        cross join lateral (select o.tenant, o.module from flyball.job o where o.id = c.job_id limit 1) j
        where c.id = any(taken)
        group by 1, 2
    loop
        -- All at once, and one by one if that is refused.
        foreach single in array array[0::bigint] || one.ids loop
            calls := case when single = 0 then one.ids else array[single] end;
            begin
                perform set_config('lock_timeout', '100ms', true);
                perform flyball.enqueue_json_as(one.owner, one.module, (
                    select jsonb_agg(flyball.webhook_job_of(c, j) order by c.id)
                    from flyball.webhook_call c
                    cross join lateral (select o from flyball.job o where o.id = c.job_id limit 1) as f(j)
                    where c.id = any(calls)));
                perform set_config('lock_timeout', caller_timeout, true);
                delete from flyball.webhook_call c where c.id = any(calls);
                enqueued := enqueued + cardinality(calls);
                exit when single = 0;
            exception when data_exception or integrity_constraint_violation or raise_exception or configuration_limit_exceeded
                or insufficient_privilege or lock_not_available then
                if single <> 0 then
                    update flyball.webhook_call c
                    set problem = left(sqlerrm, 1000), retry_at = clock_timestamp()
                        + greatest(interval '10 seconds', least(clock_timestamp() - c.at, interval '1 hour'))
                    where c.id = single and c.at > clock_timestamp() - interval '3 days';
                    if not found then
                        delete from flyball.webhook_call c where c.id = single;
                    end if;
                end if;
            end;
        end loop;
    end loop;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.ends_of, flyball.absent_of, flyball.awaited, flyball.add_waits, flyball.forget_waits,
    flyball.release_waiting, flyball.count_ended_member, flyball.count_dead_member, flyball.webhook_key, flyball.webhook_job_of,
    flyball.enqueue_calls
from public;
