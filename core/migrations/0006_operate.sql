-- Chapter 6: operations on existing jobs. Functions on one job run with the rights of the schema's
-- owner, so a single grant gives a role one of them; functions on many jobs run with the caller's
-- rights. By default only the owner may call them. A role with a tenant changes the jobs of its
-- tenant alone, whatever it was granted.
--
-- A function that walks over many rows reads a bounded number of them and returns where to
-- continue, so no call holds locks for long and none becomes slower with the size of the queue.

-- === One job =====================================================================================

-- An operation for a tenant reaches the jobs of that tenant, and one of a role with a tenant those
-- of the role's; others are not found, as if they did not exist. Without either it reaches all
-- jobs. It is volatile as flyball.ends_of is.
create function flyball.is_of_tenant(job_id bigint, tenant text) returns boolean
language sql volatile
return (is_of_tenant.tenant is null
        or exists (select from flyball.job j where j.id = is_of_tenant.job_id and j.tenant = is_of_tenant.tenant))
    and (flyball.bound_tenant() is null
        or exists (select from flyball.job j where j.id = is_of_tenant.job_id and j.tenant = flyball.bound_tenant()));

-- The state of a job; null if there is no such job. A job is in one table at a time, and in none
-- once it has ended. It is volatile as flyball.ends_of is.
create function flyball.job_state(job_id bigint) returns text
language sql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
    select case
        when exists (select from flyball.lease l where l.job_id = j.id) then 'running'
        when exists (
            select from flyball.ready r
            where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.id) then 'ready'
        when exists (select from flyball.scheduled s where s.job_id = j.id and s.retry) then 'retryable'
        when exists (select from flyball.scheduled s where s.job_id = j.id) then 'scheduled'
        when exists (select from flyball.dead d where d.job_id = j.id) then 'dead'
        when (select a.outcome from flyball.attempt a where a.job_id = j.id order by a.finished_at desc limit 1)
            in ('cancelled', 'dropped') then 'cancelled'
        else 'completed' end
    from flyball.job j
    where j.id = job_state.job_id
$$;
comment on function flyball.job_state is 'The state of a job: scheduled, ready, running, retryable, completed, cancelled or dead; null if there is no such job.';

-- Cancels a waiting job at once and asks a running one to stop. Returns 'cancelled', 'requested',
-- 'already completed' (or cancelled, or dead), or 'not found'. A request that is there already is
-- left alone, so that an open transaction locks none which the end of an attempt would delete.
create function flyball.cancel(job_id bigint, by text default null, why text default '', tenant text default null) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set standard_conforming_strings = on
set jit = off as $$
#variable_conflict use_column
declare
    result record;
    state  text;
begin
    if not flyball.is_of_tenant(cancel.job_id, cancel.tenant) then
        return 'not found';
    end if;
    -- A job may be claimed or come back between two looks, so look again before reporting that it
    -- ended.
    for i in 1..20 loop
        with target as (
            select j.id, j.lane_id, j.admission_lane, j.priority from flyball.job j where j.id = cancel.job_id
        ),
        was_ready as (
            -- By values and not by a join, which the planner may reverse if it believes that
            -- nothing waits.
            delete from flyball.ready r
            where r.lane_id in ((select n.lane_id from target n), (select n.admission_lane from target n))
                and r.priority = (select n.priority from target n)
                and r.job_id = cancel.job_id
            returning r.job_id, r.attempt
        ),
        was_scheduled as (
            delete from flyball.scheduled s where s.job_id = cancel.job_id
            returning s.job_id, s.attempt
        ),
        waiting as (
            select * from was_ready union all select * from was_scheduled
        ),
        history as (
            insert into flyball.attempt (job_id, attempt, outcome)
            select w.job_id, w.attempt, 'cancelled' from waiting w
        ),
        released_keys as (
            -- A key that a producer holds at this moment passes to its job; waiting for it here
            -- could deadlock.
            delete from flyball.unique_holder
            where digest = any(array(
                select u.digest from flyball.unique_holder u
                where u.expires_at is null and u.job_id = any(array(select w.job_id from waiting w))
                for update skip locked
            ))
        ),
        cancel_requests as (
            insert into flyball.cancel (job_id)
            select l.job_id from flyball.lease l where l.job_id = cancel.job_id
            on conflict on constraint cancel_pkey do nothing
        )
        select exists (select from target) as found, exists (select from waiting) as cancelled,
            exists (select from flyball.lease l where l.job_id = cancel.job_id) as requested
        into result;

        if result.cancelled or result.requested then
            perform flyball.write_audit(null, flyball.audit_actor(by), 'job.cancel', cancel.job_id::text, null,
                jsonb_build_object('state', case when result.cancelled then 'cancelled' else 'asked to stop' end), why);
            return case when result.cancelled then 'cancelled' else 'requested' end;
        elsif not result.found then
            return 'not found';
        end if;
        state := flyball.job_state(cancel.job_id);
        if state in ('completed', 'cancelled', 'dead') then
            return 'already ' || state;
        end if;
    end loop;
    raise exception using errcode = '40001', message = format('cancel: job %s moves faster than it can be caught; try again', job_id);
end $$;
comment on function flyball.cancel is 'Cancels a waiting job at once and asks a running one to stop.';

-- Takes the unique keys of dead jobs that are requeued, as far as they are free, and returns the
-- jobs whose keys other jobs hold until they end. If several jobs have one key, the newest gets it.
-- A key with a duration of its own (unique_for) neither ends nor restarts with its job.
create function flyball.lock_unique_keys(jobs bigint[]) returns bigint[]
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
declare
    ids     bigint[];
    digests bytea[];
begin
    select array_agg(w.id order by w.digest), array_agg(w.digest order by w.digest) into ids, digests
    from (
        select distinct on (j.unique_key) j.id, j.unique_key as digest
        from unnest(jobs) as d(id)
        cross join lateral (select * from flyball.job where job.id = d.id limit 1) j
        where j.unique_key is not null and j.unique_until is null
        order by j.unique_key, j.id desc
    ) w;
    if ids is null then
        return '{}';
    end if;
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u where u.digest = any(digests) and coalesce(u.expires_at <= now(), false)
        for update skip locked
    ));
    -- Like a second producer, this waits for a first one that has not committed; in the order in
    -- which every transaction takes many keys.
    insert into flyball.unique_holder (digest, job_id) select unnest(digests), unnest(ids) on conflict do nothing;
    return array(
        select u.job_id from flyball.unique_holder u where u.digest = any(digests) and u.job_id = any(ids) and u.expires_at is null);
end $$;

-- Makes a dead, retryable or scheduled job ready now. A dead one starts over with all its attempts
-- unless they are kept, and takes its unique key again; if another job holds the key, it becomes
-- ready without it. Returns 'ready', 'already ready' (or completed, or cancelled), 'still running',
-- or 'not found'.
create function flyball.retry(job_id bigint, keep_attempts boolean default false, by text default null, why text default '',
    tenant text default null)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_column
declare
    lane  bigint;
    state text;
begin
    if not flyball.is_of_tenant(retry.job_id, retry.tenant) then
        return 'not found';
    end if;
    for i in 1..20 loop
        with was_dead as (
            delete from flyball.dead d where d.job_id = retry.job_id
            returning d.lane_id, d.priority, d.job_id, case when coalesce(keep_attempts, false) then d.attempt else 0 end as attempt, d.cost
        ),
        was_scheduled as (
            delete from flyball.scheduled s where s.job_id = retry.job_id
            returning s.lane_id, s.priority, s.job_id, s.attempt, s.cost, s.holds_unique
        ),
        forgotten as (
            delete from flyball.cancel
            where job_id = any(array(
                select c.job_id from flyball.cancel c where c.job_id = any(array(select d.job_id from was_dead d)) for update skip locked
            ))
        ),
        requeued as (
            insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
            select coalesce((select w.lane_id from flyball.await_admission(array[d.job_id]) w), d.lane_id), d.priority, d.job_id,
                d.attempt, d.cost, d.job_id = any(flyball.lock_unique_keys(array[d.job_id]))
            from was_dead d
            union all
            select * from was_scheduled
            on conflict do nothing
            returning flyball.ready.lane_id
        )
        select a.lane_id into lane from requeued a;

        if lane is not null then
            perform flyball.write_audit(null, flyball.audit_actor(by), 'job.retry', retry.job_id::text, null, null, why);
            perform pg_notify('flyball', lane::text);
            return 'ready';
        end if;
        state := flyball.job_state(retry.job_id);
        if state is null then
            return 'not found';
        elsif state = 'running' then
            return 'still running';
        elsif state in ('ready', 'completed', 'cancelled') then
            return 'already ' || state;
        end if;
    end loop;
    raise exception using errcode = '40001', message = format('retry: job %s moves faster than it can be caught; try again', job_id);
end $$;
comment on function flyball.retry is 'Makes a dead, retryable or scheduled job ready now.';

-- Moves a waiting job to a time. Returns 'scheduled', 'still running', 'already completed' (or
-- cancelled, or dead), or 'not found'.
create function flyball.reschedule(job_id bigint, run_at timestamptz, by text default null, why text default '',
    tenant text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_column
declare
    moved boolean;
    state text;
begin
    if reschedule.run_at is null or reschedule.run_at < timestamptz '1970-01-01 00:00:00Z'
        or reschedule.run_at > now() + interval '3660 days'
    then
        perform flyball.refuse('reschedule', 'run_at',
            format('is %s; allowed are times from 1970 (at once) to ten years from now', coalesce(reschedule.run_at::text, 'null')));
    end if;
    if not flyball.is_of_tenant(reschedule.job_id, reschedule.tenant) then
        return 'not found';
    end if;
    for i in 1..20 loop
        with target as (
            select j.id, j.lane_id, j.admission_lane, j.priority from flyball.job j where j.id = reschedule.job_id
        ),
        was_ready as (
            delete from flyball.ready r
            where r.lane_id in ((select n.lane_id from target n), (select n.admission_lane from target n))
                and r.priority = (select n.priority from target n)
                and r.job_id = reschedule.job_id
            returning r.job_id, r.lane_id, r.priority, r.attempt, r.cost, r.holds_unique
        ),
        postponed as (
            insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique)
            select w.job_id, reschedule.run_at, w.lane_id, w.priority, w.attempt, w.cost, false, w.holds_unique from was_ready w
            on conflict do nothing
            returning flyball.scheduled.job_id
        ),
        rescheduled as (
            update flyball.scheduled s set run_at = reschedule.run_at, retry = false where s.job_id = reschedule.job_id
            returning s.job_id
        )
        select exists (select from postponed) or exists (select from rescheduled) into moved;

        if moved then
            -- A held message counts for its caps at the time at which it now goes; one that names a
            -- time after 2088, at the last second that a reservation can tell.
            update flyball.cap_reservation r
            set at_s = least(ceil(extract(epoch from greatest(p.until, reschedule.run_at))) - 1577836800, 2147483647)::int
            from flyball.message_plan p
            where p.job_id = reschedule.job_id and p.state = 'held' and p.until < 'infinity'
                and r.recipient = p.recipient and r.job_id = p.job_id;
            perform flyball.write_audit(null, flyball.audit_actor(by), 'job.reschedule', reschedule.job_id::text, null,
                jsonb_build_object('run_at', reschedule.run_at), why);
            return 'scheduled';
        end if;
        state := flyball.job_state(reschedule.job_id);
        if state is null then
            return 'not found';
        elsif state = 'running' then
            return 'still running';
        elsif state in ('completed', 'cancelled', 'dead') then
            return 'already ' || state;
        end if;
    end loop;
    raise exception using errcode = '40001', message = format('reschedule: job %s moves faster than it can be caught; try again', job_id);
end $$;
comment on function flyball.reschedule is 'Moves a waiting job to a time.';

-- Discards a dead job: it ends as cancelled. Returns 'cancelled', 'already completed' (or
-- cancelled), 'still running' (or ready, scheduled, retryable), or 'not found'.
create function flyball.discard(job_id bigint, by text default null, why text default '', tenant text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_column
declare
    discarded boolean;
    state     text;
begin
    if not flyball.is_of_tenant(discard.job_id, discard.tenant) then
        return 'not found';
    end if;
    for i in 1..20 loop
        with was_dead as (
            delete from flyball.dead d where d.job_id = discard.job_id
            returning d.job_id, d.attempt
        ),
        history as (
            insert into flyball.attempt (job_id, attempt, outcome)
            select w.job_id, w.attempt, 'cancelled' from was_dead w
        )
        select exists (select from was_dead) into discarded;

        if discarded then
            perform flyball.write_audit(null, flyball.audit_actor(by), 'job.discard', discard.job_id::text, null, null, why);
            return 'cancelled';
        end if;
        state := flyball.job_state(discard.job_id);
        if state is null then
            return 'not found';
        elsif state in ('completed', 'cancelled') then
            return 'already ' || state;
        elsif state <> 'dead' then
            return 'still ' || state;
        end if;
    end loop;
    raise exception using errcode = '40001', message = format('discard: job %s moves faster than it can be caught; try again', job_id);
end $$;
comment on function flyball.discard is 'Discards a dead job.';

-- === Changes of a waiting job ====================================================================

-- Everything that is wrong with the changes of a job, each with its error code.
create function flyball.update_problems(
    job flyball.job, args jsonb, throttle text, key text, priority int, max_attempts int, cost float8, timeout interval, tags text[],
    retry jsonb, clear text[])
returns table (field text, message text, code text)
language plpgsql stable as $$
#variable_conflict use_variable
declare
    -- The fields that are given.
    given constant text[] := array_remove(array[
        case when args is not null then 'args' end, case when throttle is not null then 'throttle' end,
        case when key is not null then 'key' end, case when priority is not null then 'priority' end,
        case when max_attempts is not null then 'max_attempts' end, case when cost is not null then 'cost' end,
        case when timeout is not null then 'timeout' end, case when tags is not null then 'tags' end,
        case when retry is not null then 'retry' end], null);
    -- The throttle that charges the cost, unless its name is a fault of its own.
    charged constant text := case when throttle ~ '^[A-Za-z0-9._/:{}-]{1,128}$' is not false
        and not coalesce(flyball.is_of_admission(throttle), false)
        then coalesce(throttle, job.throttle) else 'default' end;
begin
    if given = '{}' and clear = '{}' then
        return query select '', 'nothing to change; give one or more of args, throttle, key, priority, max_attempts, cost, timeout, tags, retry', '22023';
        return;
    end if;
    return query
    -- One field at a time, beside values that are always acceptable; and the cost that it has in a
    -- new throttle.
    select f.name, case when job.kind = 'notification' and f.name in ('args', 'throttle', 'key', 'priority')
            then 'cannot be changed: the job is a message; cancel it and send another one' else c.message end,
        case when job.kind = 'notification' and c.code is null then '22023' else coalesce(c.code, '22023') end
    from unnest(array['kind', 'args', 'throttle', 'key', 'priority', 'max_attempts', 'cost', 'timeout']) with ordinality as f(name, n)
    left join lateral flyball.check_job(kind => job.kind, args => case when f.name = 'args' then args else '{}' end,
        throttle => case f.name when 'throttle' then throttle when 'cost' then charged else 'default' end,
        key => case when f.name = 'key' then key else '' end, priority => case when f.name = 'priority' then priority else 1 end,
        max_attempts => case when f.name = 'max_attempts' then max_attempts else 10 end, unique_key => null::text,
        unique_for => null::interval, cost => case when f.name = 'cost' then coalesce(cost, job.cost) else 1e-3 end,
        run_at => null::timestamptz, timeout => case when f.name = 'timeout' then timeout end,
        trusted => f.name = 'cost' or flyball.is_operator()) c on c.field = f.name
    where (f.name = any(given) or f.name = 'kind' or f.name = 'cost' and throttle is not null)
        and (c.message is not null or job.kind = 'notification' and f.name in ('args', 'throttle', 'key', 'priority')
            and f.name = any(given))
    order by f.n;
    return query
    select o.field, o.message, '22023'
    from (values (jsonb_build_object('tags', tags)), (jsonb_build_object('retry', retry))) as g(options)
    cross join lateral flyball.check_options(g.options) o where o.field is not null
    union all
    select 'clear', case when c.name = any(given) then format('names %s, which is given as well', c.name)
            else format('names %s; allowed are timeout, retry', coalesce(to_json(left(c.name, 64))::text, 'null')) end, '22023'
    from unnest(coalesce(clear, array[null])) as c(name)
    where c.name is null or c.name not in ('timeout', 'retry') or c.name = any(given);
end $$;

-- Changes fields of a waiting job; those that are null stay as they are, and those that `clear`
-- names go back to what the kind has. The job keeps its number, its time, its attempts and its
-- unique key. Returns 'updated', 'still running', 'already completed' (or cancelled, or dead), or
-- 'not found'.
create function flyball.update(
    job_id bigint,
    args jsonb default null,
    throttle text default null,
    key text default null,
    priority int default null,
    max_attempts int default null,
    cost float8 default null,
    timeout interval default null,
    tags text[] default null,
    retry jsonb default null,
    clear text[] default '{}',
    by text default null,
    why text default '',
    tenant text default null)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_variable
declare
    old      flyball.job;
    job      flyball.job;
    taken    flyball.scheduled;
    waits    flyball.job_after[];
    issue    record;
    was      jsonb;
    is_now   jsonb;
    state    text;
begin
    select j.* into old from flyball.job j where j.id = job_id and flyball.is_of_tenant(job_id, tenant);
    if not found then
        return 'not found';
    end if;
    select (array_agg(p.field))[1] as field, string_agg(concat_ws(': ', 'update', nullif(p.field, ''), p.message), E'\n') as message,
        max(p.code) as code
    into issue
    from flyball.update_problems(old, args, throttle, key, priority, max_attempts, cost, timeout, tags, retry, clear) p;
    if issue.field is not null then
        raise exception using errcode = issue.code, column = issue.field, message = issue.message, hint = 'Nothing was changed.';
    end if;

    for i in 1..20 loop
        -- A job that waits for others is not freed while this holds its place.
        perform from flyball.scheduled s where s.job_id = job_id for update;
        waits := array(select a from flyball.job_after a where a.job_id = job_id);
        taken := flyball.take_waiting(job_id);
        exit when taken.job_id is not null;
        state := flyball.job_state(job_id);
        if state is null then
            return 'not found';
        elsif state = 'running' then
            return 'still running';
        elsif state in ('completed', 'cancelled', 'dead') then
            return 'already ' || state;
        end if;
    end loop;
    if taken.job_id is null then
        raise exception using errcode = '40001', message = format('update: job %s moves faster than it can be caught; try again', job_id);
    end if;

    -- Anew, because another change may have gone first.
    select j.* into old from flyball.job j where j.id = job_id;
    job := old;
    job.args := coalesce(args, old.args);
    job.throttle := coalesce(throttle, old.throttle);
    job.key := coalesce(key, old.key);
    if (throttle is not null or key is not null) and job.throttle = 'webhooks'
        and job.key not in ('', coalesce(tenant, case when not flyball.is_operator() then flyball.caller_tenant() end))
    then
        perform flyball.refuse('update', 'key',
            'names the calls of others in throttle "webhooks"; leave it empty, or name a throttle of your own');
    elsif job.kind = 'notification' and cost > 10 and (tenant is not null or not flyball.is_operator()) then
        perform flyball.refuse('update', 'cost',
            format('is %s; a message costs at most 10 tokens, unless an operator enqueues it', cost));
    end if;
    job.lane_id := flyball.lane_of(job.throttle, job.key);
    job.priority := coalesce(priority, old.priority);
    job.max_attempts := coalesce(max_attempts, old.max_attempts);
    job.cost := coalesce(cost, old.cost);
    job.timeout_s := case when 'timeout' = any(clear) then null else coalesce(extract(epoch from timeout), old.timeout_s) end;
    job.tags := case when tags is null then old.tags else flyball.tags_of(jsonb_build_object('tags', tags)) end;
    job.retry := case when 'retry' = any(clear) then null
        else coalesce(flyball.retry_of(jsonb_build_object('retry', retry)), old.retry) end;
    perform flyball.rewrite_job(job, job.args is distinct from old.args);

    if taken.lane_id = old.lane_id then
        taken.lane_id := job.lane_id;
    end if;
    if taken.run_at is null then
        if job.lane_id <> old.lane_id then
            perform flyball.check_backlog('update', job.throttle, job.key, job.lane_id, 1);
        end if;
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
        values (taken.lane_id, job.priority, job_id, taken.attempt, job.cost, taken.holds_unique);
        -- Its number is old, so a dispatcher that looks at new numbers only would find it late.
        perform pg_notify('flyball', taken.lane_id::text);
    else
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique, turn)
        values (job_id, taken.run_at, taken.lane_id, job.priority, taken.attempt, job.cost, taken.retry, taken.holds_unique,
            case when taken.turn < -4 then job.priority - 8 when taken.turn < 0 then job.priority - 4 else 0 end);
        if taken.turn < -4 then
            insert into flyball.job_after select w.* from unnest(waits) w;
        end if;
    end if;

    -- The arguments may be long and secret.
    select jsonb_object_agg(f.name, b.was -> f.name), jsonb_object_agg(f.name, b.is_now -> f.name) into was, is_now
    from (select to_jsonb(old) - 'args' as was, to_jsonb(job) - 'args' as is_now) b
    cross join unnest(array['throttle', 'key', 'priority', 'max_attempts', 'cost', 'timeout_s', 'tags', 'retry']) as f(name)
    where b.was -> f.name is distinct from b.is_now -> f.name;
    if job.args is distinct from old.args then
        is_now := coalesce(is_now, '{}') || '{"args": "changed"}';
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(by), 'job.update', job_id::text, was, is_now, why);
    return 'updated';
end $$;
comment on function flyball.update is 'Changes fields of a waiting job.';

-- === Filters =====================================================================================

-- Returns true if a job holds or held a unique key, of which only the digest is known.
create function flyball.has_unique_key(digest bytea, kind text, tenant text, owners text[], key text) returns boolean
language sql immutable parallel safe
return digest = any(array(
    select flyball.unique_digest(o.owner, has_unique_key.kind, has_unique_key.key)
    from unnest(case when has_unique_key.tenant <> '' then array['tenant:' || has_unique_key.tenant]
        else has_unique_key.owners end) as o(owner)
));

-- The arguments that a filter looks at: without what readers see masked, because a filter would
-- tell it letter by letter. A URL is the one that they see.
create function flyball.searched_args(kind text, args jsonb) returns jsonb
language sql immutable parallel safe
return (
    select case
        when jsonb_typeof(s.args) <> 'object' then s.args
        when kind = 'notification' then s.args - array['to', 'subject', 'body', 'html', 'template', 'data', 'extra']
        when kind = 'http' then s.args - 'headers'
            || case when jsonb_typeof(s.args -> 'url') = 'string'
                then jsonb_build_object('url', flyball.shown_url(s.args ->> 'url')) else '{}' end
        else s.args end
    from (select flyball.without_secrets(searched_args.args) as args) s
);

-- Returns true if a job's row fits a search; its error is in other tables. Written so that the
-- planner can inline it, and so that arguments are read only where a filter asks for them.
create function flyball.fits_search(
    search flyball.job_search, kind text, tenant text, group_id bigint, traceparent text, unique_key bytea, args jsonb, tags text[]
) returns boolean
language sql immutable parallel safe
return ((search)."group" is null or group_id = (search)."group")
    and ((search).tags is null or tags @> (search).tags)
    and ((search).trace is null or substr(traceparent, 4, 32) = (search).trace)
    and ((search).unique_key is null or unique_key is not null
        and flyball.has_unique_key(unique_key, kind, tenant, (search).key_owners, (search).unique_key))
    -- The whole arguments come first, because few contain the object. A path with != or || may fit
    -- them by a secret, so it looks at nothing but what is searched.
    and ((search).args is null or args @> (search).args and flyball.searched_args(kind, args) @> (search).args)
    and ((search).args_path is null or jsonb_path_match(flyball.searched_args(kind, args), (search).args_path, '{}', true));

-- Returns true if a look at one job may take long: at up to 256 KiB of arguments, or at the digests
-- of a key with up to 1100 owners.
create function flyball.is_expensive(search flyball.job_search) returns boolean
language sql immutable parallel safe
return (search).args is not null or (search).args_path is not null or (search).unique_key is not null;

-- Whether a job in this state fits a filter.
create function flyball.fits_filter(
    filter flyball.job_filter, lane bigint, kind text, throttle text, key text, admission_lane bigint, tenant text,
    created_at timestamptz, group_id bigint, traceparent text, unique_key bytea, args jsonb, tags text[]
) returns boolean
language sql immutable parallel safe
return ((filter).kind is null or kind = (filter).kind)
    and (((filter).throttle is null or throttle = (filter).throttle) and ((filter).key is null or key = (filter).key)
        or admission_lane = lane)
    and ((filter).tenant is null or tenant = (filter).tenant)
    and ((filter).created_after is null or created_at >= (filter).created_after)
    and ((filter).created_before is null or created_at < (filter).created_before)
    and flyball.fits_search((filter).search, kind, tenant, group_id, traceparent, unique_key, args, tags);

-- A path of a filter: comparisons of one path with one value, joined by && and ||. Nothing else,
-- because a comparison of two paths can take hours over one job, as can a regular expression.
create function flyball.read_args_path(what text, args_path text) returns jsonpath
language plpgsql immutable set standard_conforming_strings = on as $$
#variable_conflict use_variable
declare
    quoted  constant text := '"[^"\\\u0001-\u001f]*"';
    path    constant text := format('\$(\.([A-Za-z_][A-Za-z0-9_]*|%s)|\[(\*|0|[1-9][0-9]{0,5})\])*', quoted);
    value   constant text := format('(-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?|%s|true|false|null)', quoted);
    term    constant text := format('(%1$s *(==|!=|<>|<=|<|>=|>) *%2$s|%1$s starts with %3$s|exists *\(%1$s\))', path, value, quoted);
begin
    if args_path is null then
        return null;
    elsif octet_length(args_path) not between 1 and 500 then
        perform flyball.refuse(what, 'args_path', format('is %s bytes long; allowed are 1 to 500', octet_length(args_path)));
    elsif args_path !~ format('^%1$s( *(&&|\|\|) *%1$s)*$', term) then
        perform flyball.refuse(what, 'args_path',
            format('%s is not allowed; allowed are comparisons of a path with a value, joined by && and ||, '
            'such as $.customer.id == 17, $.items[*].sku starts with "A" and exists($.coupon)', to_json(left(args_path, 100))));
    end if;
    return args_path::jsonpath;
end $$;

-- The owners of the unique keys of jobs of no tenant: operators, schedules and roles.
create function flyball.usual_key_owners() returns text[]
language sql stable
return array['', 'cron'] || array(select 'role:' || p.role from flyball.producer p where p.tenant is null order by p.role limit 100);

-- Checks the values of a search.
create function flyball.read_search(
    what text, "group" bigint, error_like text, trace text, unique_key text, key_owners text[], args jsonb, args_path text,
    tags text[]
) returns flyball.job_search
language plpgsql stable set standard_conforming_strings = on as $$
#variable_conflict use_variable
declare
    search flyball.job_search;
begin
    if "group" < 1 then
        perform flyball.refuse(what, 'group', format('%s is not the number of a group; allowed are whole numbers from 1', "group"));
    elsif octet_length(error_like) > 500 or length(error_like) - length(replace(error_like, '%', '')) > 5 then
        perform flyball.refuse(what, 'error_like',
            'is too long or has more than five %; allowed are patterns of LIKE up to 500 bytes with up to five %');
    elsif error_like ~ '(^|[^\\])(\\\\)*\\$' then
        perform flyball.refuse(what, 'error_like', 'ends with a lone backslash; write \\ for a backslash itself');
    elsif trace !~ '^([0-9a-f]{32}|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})$' then
        perform flyball.refuse(what, 'trace',
            format('%s is not the id of a trace; allowed are 32 hexadecimal digits, or a whole traceparent',
            to_json(left(trace, 64))));
    elsif octet_length(unique_key) not between 1 and 512 then
        perform flyball.refuse(what, 'unique_key', format('is %s bytes long; allowed are 1 to 512', octet_length(unique_key)));
    elsif cardinality(key_owners) > 1000 then
        perform flyball.refuse(what, 'key_owners', format('are %s; at most 1000 are allowed', cardinality(key_owners)));
    elsif jsonb_typeof(args) <> 'object' or args = '{}' then
        perform flyball.refuse(what, 'args',
            format('is %s; allowed is a JSON object with what the arguments must contain, such as {"customer": {"id": 17}}',
            case when args = '{}' then 'empty' else jsonb_typeof(args) end));
    elsif octet_length(args::text) > 2000 then
        perform flyball.refuse(what, 'args', format('is %s bytes long; at most 2000 are allowed', octet_length(args::text)));
    elsif array_ndims(tags) > 1 then
        perform flyball.refuse(what, 'tags', 'must be an array of one dimension, with 1 to 16 texts');
    elsif cardinality(tags) not between 1 and 16 or array_position(tags, null) is not null then
        perform flyball.refuse(what, 'tags', format('has %s elements, or nulls; allowed are 1 to 16 texts', cardinality(tags)));
    end if;
    search."group" := "group";
    search.error_like := error_like;
    search.trace := case when length(trace) = 32 then trace else substr(trace, 4, 32) end;
    search.unique_key := unique_key;
    if unique_key is not null then
        search.key_owners := flyball.usual_key_owners() || coalesce(key_owners, '{}');
    end if;
    search.args := args;
    search.args_path := flyball.read_args_path(what, args_path);
    search.tags := tags;
    return search;
end $$;

-- Reads a filter from JSON.
create function flyball.read_filter(what text, filter jsonb, tenant text) returns flyball.job_filter
language plpgsql stable as $$
#variable_conflict use_variable
declare
    known   constant text[] := array['state', 'kind', 'throttle', 'key', 'tenant', 'group', 'error_like', 'trace', 'unique_key',
        'key_owners', 'args', 'args_path', 'tags', 'created_after', 'created_before'];
    words   constant text[] := array['scheduled', 'ready', 'running', 'retryable', 'completed', 'cancelled', 'dead', 'ended'];
    other   text;
    result  flyball.job_filter;
    field   text;
begin
    if filter is null or jsonb_typeof(filter) <> 'object' then
        perform flyball.refuse(what, 'filter', format('must be a JSON object such as {"state": "dead"}, not %s',
            coalesce(jsonb_typeof(filter), 'null')));
    end if;
    select o.key into other from jsonb_object_keys(filter) as o(key) where o.key <> all(known) order by o.key limit 1;
    if other is not null then
        perform flyball.refuse(what, left(other, 60), format('is not a known filter; allowed are %s', array_to_string(known, ', ')));
    end if;
    foreach field in array array['state', 'kind', 'throttle', 'key', 'tenant', 'error_like', 'trace', 'unique_key',
        'args_path', 'created_after', 'created_before'] loop
        if jsonb_typeof(filter -> field) not in ('string', 'null') then
            perform flyball.refuse(what, field, format('must be a text, not %s', jsonb_typeof(filter -> field)));
        end if;
    end loop;
    if filter ->> 'state' <> all(words) then
        perform flyball.refuse(what, 'state', format('%s is not a state; allowed are %s', to_json(left(filter ->> 'state', 40)),
            array_to_string(words, ', ')));
    elsif jsonb_typeof(filter -> 'group') not in ('number', 'null') or filter ->> 'group' !~ '^[0-9]{1,16}$' then
        perform flyball.refuse(what, 'group', 'is not the number of a group; allowed are whole numbers from 1');
    elsif jsonb_typeof(filter -> 'key_owners') not in ('array', 'null') then
        perform flyball.refuse(what, 'key_owners', format('must be an array of texts, not %s', jsonb_typeof(filter -> 'key_owners')));
    elsif jsonb_typeof(filter -> 'tags') not in ('array', 'null') then
        perform flyball.refuse(what, 'tags', format('must be an array of texts, not %s', jsonb_typeof(filter -> 'tags')));
    elsif octet_length(filter ->> 'kind') > 128 then
        perform flyball.refuse(what, 'kind', format('is %s bytes long; at most 128 are allowed', octet_length(filter ->> 'kind')));
    elsif octet_length(filter ->> 'key') > 512 then
        perform flyball.refuse(what, 'key', format('is %s bytes long; at most 512 are allowed', octet_length(filter ->> 'key')));
    elsif octet_length(filter ->> 'throttle') > 128 then
        perform flyball.refuse(what, 'throttle', format('is %s bytes long; at most 128 are allowed', octet_length(filter ->> 'throttle')));
    end if;
    foreach field in array array['created_after', 'created_before'] loop
        begin
            if field = 'created_after' then
                result.created_after := (filter ->> field)::timestamptz;
            else
                result.created_before := (filter ->> field)::timestamptz;
            end if;
        exception when data_exception then
            perform flyball.refuse(what, field, format('%s is not a time; write it like 2026-11-20T14:00:00Z',
                to_json(left(filter ->> field, 60))));
        end;
    end loop;
    if result.created_after >= result.created_before then
        perform flyball.refuse(what, 'created_after', format('is %s, which is not before created_before, %s',
            result.created_after, result.created_before));
    end if;
    result.states := case when filter ->> 'state' = 'ended' then array['completed', 'cancelled', 'dead']
        when filter ->> 'state' is not null then array[filter ->> 'state'] end;
    result.kind := filter ->> 'kind';
    result.throttle := filter ->> 'throttle';
    result.key := filter ->> 'key';
    result.tenant := coalesce(tenant, filter ->> 'tenant');
    result.search := flyball.read_search(what, (filter ->> 'group')::bigint, filter ->> 'error_like', filter ->> 'trace',
        filter ->> 'unique_key',
        case when jsonb_typeof(filter -> 'key_owners') = 'array' then array(select jsonb_array_elements_text(filter -> 'key_owners')) end,
        nullif(filter -> 'args', 'null'), filter ->> 'args_path',
        case when jsonb_typeof(filter -> 'tags') = 'array' then array(select jsonb_array_elements_text(filter -> 'tags')) end);
    return result;
end $$;

-- A search as the audit log tells it: without values of arguments and keys, which may be addresses.
create function flyball.search_text(search flyball.job_search) returns jsonb
language sql stable
return jsonb_strip_nulls(jsonb_build_object('group', (search)."group", 'error_like', (search).error_like, 'trace', (search).trace,
    'unique_key', case when (search).unique_key is not null then '***' end, 'args', case when (search).args is not null then '***' end,
    'args_path', case when (search).args_path is not null then '***' end, 'tags', to_jsonb((search).tags)));

-- === Many jobs ===================================================================================

-- Validates the arguments of a walk.
create function flyball.check_walk(what text, max_jobs int, start text, shape text, low timestamptz, high timestamptz,
    low_name text, high_name text)
returns void
language plpgsql as $$
begin
    if max_jobs is null or max_jobs not between 1 and 10000 then
        perform flyball.refuse(what, 'max_jobs', format('is %s; allowed are 1 to 10000: call again for more',
            coalesce(max_jobs::text, 'null')));
    elsif start !~ shape then
        perform flyball.refuse(what, 'start', format('%s is not a place to go on from; give what "next" answered, or null to begin',
            to_json(left(start, 60))));
    elsif split_part(start, '/', 2) ~ '^-?[0-9]+$'
        and split_part(start, '/', 2)::numeric not between -9223372036854775808 and 9223372036854775807 then
        perform flyball.refuse(what, 'start', format('%s names no lane; give what "next" answered, or null to begin',
            to_json(left(start, 60))));
    elsif low >= high then
        perform flyball.refuse(what, low_name, format('is %s, which is not before %s, %s', low, high_name, high));
    end if;
end $$;

-- Refuses the name of a lane, by the rules of enqueue.
create function flyball.check_lane(what text, throttle text, key text) returns void
language plpgsql as $$
begin
    if check_lane.throttle is null or check_lane.throttle !~ '^[A-Za-z0-9._/:{}-]+$' or octet_length(check_lane.throttle) > 128 then
        perform flyball.refuse(what, 'throttle',
            format('%s is not a throttle''s name; use 1 to 128 letters, digits or any of . _ - / : { }',
            coalesce(to_json(left(check_lane.throttle, 64))::text, 'null')));
    elsif check_lane.key is null then
        perform flyball.refuse(what, 'key', 'must not be null; '''' is the lane of jobs without a key');
    elsif octet_length(check_lane.key) > 512 then
        perform flyball.refuse(what, 'key', format('is %s bytes long; at most 512 are allowed', octet_length(check_lane.key)));
    end if;
end $$;

-- Cancels jobs wherever they are: those that wait end, and those that run are asked to stop, unless
-- only waiting ones are meant. Returns the ids of the ones that ended, and how many were asked. A
-- job may be on its way from one place to another, and one that is locked, such as one that a
-- producer replaces, is left at a look; so the caller looks again.
create function flyball.cancel_live(jobs bigint[], asks_running boolean default true,
    out cancelled_jobs bigint[], out requested bigint)
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    with members as materialized (
        select a.job_id, j.lane_id, j.admission_lane, j.priority
        from unnest(jobs) as a(job_id)
        cross join lateral (select o.lane_id, o.admission_lane, o.priority from flyball.job o where o.id = a.job_id limit 1) j
    ),
    was_ready as (
        delete from flyball.ready
        where ctid = any(array(
            select r.tid from members j
            cross join lateral (
                select q.ctid as tid from flyball.ready q
                where q.lane_id in (j.lane_id, j.admission_lane) and q.priority = j.priority and q.job_id = j.job_id
                limit 1 for update skip locked
            ) r
        ))
        returning job_id, attempt
    ),
    was_scheduled as (
        delete from flyball.scheduled
        where ctid = any(array(
            select s.ctid from flyball.scheduled s
            where s.job_id = any(array(select j.job_id from members j)) order by s.job_id for update skip locked))
        returning job_id, attempt
    ),
    removed as (
        select * from was_ready union all select * from was_scheduled
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome) select w.job_id, w.attempt, 'cancelled' from removed w
    ),
    released_keys as (
        delete from flyball.unique_holder
        where digest = any(array(
            select u.digest from flyball.unique_holder u
            where u.expires_at is null and u.job_id = any(array(select w.job_id from removed w)) for update skip locked
        ))
    ),
    cancel_requests as (
        insert into flyball.cancel (job_id)
        select l.job_id from members j cross join lateral (select h.job_id from flyball.lease h where h.job_id = j.job_id limit 1) l
        where asks_running
        on conflict do nothing
        returning flyball.cancel.job_id
    )
    select array(select w.job_id from removed w), (select count(*) from cancel_requests) into cancelled_jobs, requested;
end $$;

-- The walk of cancel_jobs and purge_lane: ready jobs in the order of their lanes, then scheduled
-- ones, then running ones. The walked rows are materialized in the order of an index, and a lateral
-- with a limit runs once per row in that order: so `matched` stops at its limit without sorting,
-- and its last row is where the next call continues.
--
-- A walk has many rows and waits for none, in whatever order producers take theirs: one that has a
-- row and wants another of the walk would wait for it without end. What is locked is looked at
-- again for a third of a second, and a job whose transaction is still open then is left as it is.
create function flyball.cancel_walk(
    what text, action text, subject text, kind text, throttle text, key text, states text[],
    created_after timestamptz, created_before timestamptz, max_jobs int, dry_run boolean, start text, by text, why text, tenant text,
    search flyball.job_search default null,
    out cancelled bigint, out requested bigint, out next text)
language plpgsql volatile set enable_seqscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    -- Rows read per call, so that a call ends within a fraction of a second with any filter.
    walk_rows   constant bigint := case when flyball.is_expensive(search) then 1000 else 10000 end;
    shape       constant text := case when cancel_walk.tenant is not null then '^(jobs/[0-9]{1,18})(#[0-9]{1,18})?$' else
        '^((ready/-?[0-9]{1,19}/[0-9]/[0-9]{1,18})|(scheduled/-?[0-9]{1,19}/[0-9]{1,18})|(running/[0-9]{1,18}))(#[0-9]{1,18})?$' end;
    lane_low    bigint := -9223372036854775808;
    lane_high   bigint := 9223372036854775807;
    id_low      bigint := 0;
    id_high     bigint := 9007199254740992;
    filter      constant flyball.job_filter := row(null, kind, throttle, key, tenant, created_after, created_before, search);
    lane        constant bigint := flyball.lane_of(throttle, key);
    -- False if the rows of the states' own tables tell all.
    by_job      constant boolean := kind is not null or created_after is not null or created_before is not null
        or (throttle is null) <> (key is null) or not (search is null);
    error_like  constant text := search.error_like;
    phase       text := 'ready';
    part        text[];
    at_lane     bigint;
    at_priority smallint := -1;
    at_id       bigint := 0;
    operation   bigint;
    rows_left   bigint := walk_rows;
    jobs_left   bigint := max_jobs;
    result      record;
    again       record;
    left_over   bigint[];
begin
    if dry_run is null then
        perform flyball.refuse(what, 'dry_run', 'must be true or false, not null');
    end if;
    perform flyball.check_walk(what, max_jobs, start, shape, created_after, created_before, 'created_after', 'created_before');
    cancelled := 0;
    requested := 0;
    if lane is not null then
        lane_low := lane;
        lane_high := lane;
    end if;
    -- An id begins with its day.
    if created_after > timestamptz '2020-01-01 00:00:00Z' then
        id_low := least(flyball.day_of(least(created_after, timestamptz '2100-01-01 00:00:00Z')), 32000) << 38;
    end if;
    if created_before < timestamptz '2100-01-01 00:00:00Z' then
        id_high := (greatest(flyball.day_of(greatest(created_before, timestamptz '2020-01-01 00:00:00Z')), 0) + 1) << 38;
    end if;
    at_lane := lane_low;
    if start is not null then
        operation := nullif(split_part(start, '#', 2), '')::bigint;
        part := string_to_array(split_part(start, '#', 1), '/');
        phase := part[1];
        at_id := part[array_length(part, 1)]::bigint;
        if phase in ('ready', 'scheduled') then
            at_lane := part[2]::bigint;
        end if;
        if phase = 'ready' then
            at_priority := part[3]::smallint;
        end if;
        -- The position may come from another walk: if it is before the named lane, the walk begins
        -- at that lane.
        if at_lane < lane_low then
            at_lane := lane_low;
            at_priority := -1;
            at_id := 0;
        end if;
    end if;

    if cancel_walk.tenant is not null then
        phase := 'jobs';
    end if;

    loop
        exit when phase is null or rows_left <= 0 or jobs_left <= 0;
        if phase = 'jobs' then
            -- A tenant's jobs in any state by their ids: the position tells nothing about the jobs
            -- of others.
            with walk as materialized (
                select j.id, j.lane_id, j.admission_lane, j.priority,
                    flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                        j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as fits
                from flyball.job j
                where j.tenant = cancel_walk.tenant and j.tenant <> '' and j.id > at_id and j.id >= id_low and j.id < id_high
                order by j.id
                limit rows_left
            ),
            matched as materialized (
                select w.id, r.tid as ready_at, s.job_id as scheduled, l.job_id as running
                from walk w
                left join lateral (
                    select q.ctid as tid from flyball.ready q
                    where q.lane_id in (w.lane_id, w.admission_lane) and q.priority = w.priority and q.job_id = w.id limit 1
                ) r on true
                left join lateral (select h.job_id, h.retry from flyball.scheduled h where h.job_id = w.id limit 1) s on true
                left join lateral (select h.job_id from flyball.lease h where h.job_id = w.id limit 1) l on true
                left join lateral (
                    select a.error from flyball.attempt a where error_like is not null and a.job_id = w.id
                    order by a.finished_at desc limit 1
                ) e on true
                where w.fits and (error_like is null or e.error like error_like)
                    and (r.tid is not null and 'ready' = any(states)
                        or s.job_id is not null and case when s.retry then 'retryable' else 'scheduled' end = any(states)
                        or l.job_id is not null and 'running' = any(states))
                limit jobs_left
            ),
            was_ready as (
                delete from flyball.ready r
                where r.ctid = any(array(
                    select q.ctid from flyball.ready q
                    where not dry_run and q.ctid = any(array(select m.ready_at from matched m where m.ready_at is not null))
                    for update skip locked))
                returning r.job_id, r.attempt, r.holds_unique
            ),
            was_scheduled as (
                delete from flyball.scheduled s
                where s.ctid = any(array(
                    select q.ctid from flyball.scheduled q
                    where not dry_run and q.job_id = any(array(select m.scheduled from matched m))
                    for update skip locked))
                returning s.job_id, s.attempt, s.holds_unique
            ),
            removed as (
                select * from was_ready union all select * from was_scheduled
            ),
            history as (
                insert into flyball.attempt (job_id, attempt, outcome)
                select t.job_id, t.attempt, 'cancelled' from removed t
            ),
            released_keys as (
                delete from flyball.unique_holder
                where digest = any(array(
                    select u.digest from flyball.unique_holder u
                    where u.job_id = any(array(select t.job_id from removed t where t.holds_unique)) and u.expires_at is null
                    for update skip locked
                ))
            ),
            cancel_requests as (
                insert into flyball.cancel (job_id)
                select m.running from matched m where not dry_run and m.running is not null
                on conflict on constraint cancel_pkey do nothing
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched,
                (select count(*) from removed) as removed,
                (select count(*) from matched m where m.running is not null) as requested,
                array(
                    select m.id from matched m where not dry_run and m.running is null except all select t.job_id from removed t
                ) as moved,
                case when (select count(*) from matched) = jobs_left then (select max(m.id) from matched m)
                    else (select max(w.id) from walk w) end as job_id
            into result;
            cancelled := cancelled + case when dry_run then result.matched - result.requested else result.removed end;
            requested := requested + result.requested;
        elsif phase = 'ready' and 'ready' = any(states) then
            with walk as materialized (
                select r.ctid as tid, r.lane_id, r.priority, r.job_id, row_number() over () as place
                from (
                    select q.ctid, q.lane_id, q.priority, q.job_id
                    from flyball.ready q
                    where (q.lane_id, q.priority, q.job_id) > (at_lane, at_priority, at_id)
                        and q.lane_id >= lane_low and q.lane_id <= lane_high
                    order by q.lane_id, q.priority, q.job_id
                    limit rows_left
                ) r
            ),
            matched as materialized (
                select w.*
                from walk w
                left join lateral (
                    select flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                        j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as fits
                    from flyball.job j where by_job and j.id = w.job_id limit 1
                ) j on true
                left join lateral (
                    select a.error from flyball.attempt a where error_like is not null and a.job_id = w.job_id
                    order by a.finished_at desc limit 1
                ) e on true
                where w.job_id >= id_low and w.job_id < id_high
                    and (error_like is null or e.error like error_like)
                    and (not by_job or j.fits)
                limit jobs_left
            ),
            removed as (
                delete from flyball.ready r
                where r.ctid = any(array(
                    select q.ctid from flyball.ready q where not dry_run and q.ctid = any(array(select m.tid from matched m))
                    for update skip locked))
                returning r.job_id, r.attempt, r.holds_unique
            ),
            history as (
                insert into flyball.attempt (job_id, attempt, outcome)
                select t.job_id, t.attempt, 'cancelled' from removed t
            ),
            released_keys as (
                delete from flyball.unique_holder
                where digest = any(array(
                    select u.digest from flyball.unique_holder u
                    where u.job_id = any(array(select t.job_id from removed t where t.holds_unique)) and u.expires_at is null
                    for update skip locked
                ))
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched,
                (select count(*) from removed) as removed,
                array(select m.job_id from matched m where not dry_run except all select t.job_id from removed t) as moved,
                last.lane_id, last.priority, last.job_id
            from (select 1) one
            left join lateral (
                select w.lane_id, w.priority, w.job_id from walk w
                where w.place <= case when (select count(*) from matched) = jobs_left then (select max(m.place) from matched m)
                    else rows_left end
                order by w.place desc limit 1
            ) last on true
            into result;
            cancelled := cancelled + case when dry_run then result.matched else result.removed end;
            at_lane := result.lane_id;
            at_priority := result.priority;
        elsif phase = 'scheduled' and states && array['scheduled', 'retryable'] then
            with walk as materialized (
                select s.lane_id, s.job_id, s.retry, row_number() over () as place
                from (
                    select q.lane_id, q.job_id, q.retry
                    from flyball.scheduled q
                    where (q.lane_id, q.job_id) > (at_lane, at_id)
                        and q.lane_id >= lane_low and q.lane_id <= lane_high
                    order by q.lane_id, q.job_id
                    limit rows_left
                ) s
            ),
            matched as materialized (
                select w.*
                from walk w
                left join lateral (
                    select flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                        j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as fits
                    from flyball.job j where by_job and j.id = w.job_id limit 1
                ) j on true
                left join lateral (
                    select a.error from flyball.attempt a where error_like is not null and a.job_id = w.job_id
                    order by a.finished_at desc limit 1
                ) e on true
                where w.job_id >= id_low and w.job_id < id_high and case when w.retry then 'retryable' else 'scheduled' end = any(states)
                    and (error_like is null or e.error like error_like)
                    and (not by_job or j.fits)
                limit jobs_left
            ),
            removed as (
                delete from flyball.scheduled s
                where s.ctid = any(array(
                    select q.ctid from flyball.scheduled q where not dry_run and q.job_id = any(array(select m.job_id from matched m))
                    for update skip locked))
                returning s.job_id, s.attempt, s.holds_unique
            ),
            history as (
                insert into flyball.attempt (job_id, attempt, outcome)
                select t.job_id, t.attempt, 'cancelled' from removed t
            ),
            released_keys as (
                delete from flyball.unique_holder
                where digest = any(array(
                    select u.digest from flyball.unique_holder u
                    where u.job_id = any(array(select t.job_id from removed t where t.holds_unique)) and u.expires_at is null
                    for update skip locked
                ))
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched,
                (select count(*) from removed) as removed,
                array(select m.job_id from matched m where not dry_run except all select t.job_id from removed t) as moved,
                last.lane_id, 0::smallint as priority, last.job_id
            from (select 1) one
            left join lateral (
                select w.lane_id, w.job_id from walk w
                where w.place <= case when (select count(*) from matched) = jobs_left then (select max(m.place) from matched m)
                    else rows_left end
                order by w.place desc limit 1
            ) last on true
            into result;
            cancelled := cancelled + case when dry_run then result.matched else result.removed end;
            at_lane := result.lane_id;
        elsif phase = 'running' and 'running' = any(states) then
            with walk as materialized (
                select l.job_id, l.lane_id
                from flyball.lease l
                where l.job_id > at_id
                order by l.job_id
                limit rows_left
            ),
            matched as materialized (
                select w.*
                from walk w
                left join lateral (
                    select flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                        j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as fits
                    from flyball.job j where by_job and j.id = w.job_id limit 1
                ) j on true
                left join lateral (
                    select a.error from flyball.attempt a where error_like is not null and a.job_id = w.job_id
                    order by a.finished_at desc limit 1
                ) e on true
                where w.job_id >= id_low and w.job_id < id_high and w.lane_id between lane_low and lane_high
                    and (error_like is null or e.error like error_like)
                    and (not by_job or j.fits)
                limit jobs_left
            ),
            cancel_requests as (
                insert into flyball.cancel (job_id)
                select m.job_id from matched m where not dry_run
                on conflict on constraint cancel_pkey do nothing
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched, 0::bigint as removed,
                '{}'::bigint[] as moved, 0::bigint as lane_id, 0::smallint as priority,
                case when (select count(*) from matched) = jobs_left then (select max(m.job_id) from matched m)
                    else (select max(w.job_id) from walk w) end as job_id
            into result;
            requested := requested + result.matched;
        else
            select 0::bigint as walked, 0::bigint as matched, 0::bigint as removed, '{}'::bigint[] as moved, null::bigint as lane_id,
                null::smallint as priority, null::bigint as job_id into result;
        end if;

        -- Another transaction has these, or has moved them, as the admission of a message, a
        -- promotion or an update does. Where they are then the walk may have been already, so it
        -- looks again.
        left_over := result.moved;
        for look in 1..16 loop
            exit when left_over = '{}';
            select * into again from flyball.cancel_live(left_over, phase = 'jobs' and 'running' = any(states));
            cancelled := cancelled + cardinality(again.cancelled_jobs);
            requested := requested + again.requested;
            left_over := array(
                select u.id
                from unnest(left_over) as u(id)
                cross join lateral (select o.lane_id, o.admission_lane, o.priority from flyball.job o where o.id = u.id limit 1) j
                where u.id <> all (again.cancelled_jobs)
                    and ((select 1 from flyball.scheduled s where s.job_id = u.id limit 1) is not null
                        or (select 1 from flyball.ready r
                            where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = u.id limit 1)
                            is not null)
            );
            if left_over <> '{}' then
                perform pg_sleep(least(look * 0.005, 0.025));
            end if;
        end loop;

        if result.walked < rows_left and result.matched < jobs_left then
            phase := case phase when 'ready' then 'scheduled' when 'scheduled' then 'running' end;
            at_lane := lane_low;
            at_id := 0;
        else
            at_id := result.job_id;
        end if;
        rows_left := rows_left - result.walked;
        jobs_left := jobs_left - result.matched;
    end loop;

    if not dry_run and cancelled + requested > 0 then
        operation := flyball.write_audit(operation, flyball.audit_actor(by), action, subject, null,
            jsonb_build_object('cancelled', cancelled, 'requested', requested, 'filter', jsonb_strip_nulls(jsonb_build_object(
                'kind', kind, 'throttle', throttle, 'key', key, 'states', to_jsonb(states), 'created_after', created_after,
                'created_before', created_before)) || flyball.search_text(search)), why);
    end if;
    next := case phase
        when 'ready' then format('ready/%s/%s/%s', at_lane, at_priority, at_id)
        when 'scheduled' then format('scheduled/%s/%s', at_lane, at_id)
        when 'running' then format('running/%s', at_id)
        when 'jobs' then format('jobs/%s', at_id) end || coalesce('#' || operation, '');
end $$;

-- Cancels up to max_jobs jobs that match the filter: waiting ones at once, running ones are asked
-- to stop. While `next` is not null there may be more: call again with `start` set to it. With
-- dry_run nothing changes and the numbers say what would change.
create function flyball.cancel_jobs(
    kind text default null, throttle text default null, key text default null, state text default null,
    created_after timestamptz default null, created_before timestamptz default null,
    max_jobs int default 1000, dry_run boolean default false, start text default null, by text default null, why text default '',
    tenant text default null,
    "group" bigint default null, error_like text default null, trace text default null, unique_key text default null,
    key_owners text[] default null, args jsonb default null, args_path text default null, tags text[] default null,
    out cancelled bigint, out requested bigint, out next text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    known  constant text[] := array['ready', 'scheduled', 'retryable', 'running'];
    search flyball.job_search;
begin
    if coalesce(kind, throttle, key, state, created_after::text, created_before::text, "group"::text, error_like, trace, unique_key,
        args::text, args_path, tags::text) is null then
        perform flyball.refuse('cancel_jobs', 'state',
            'is missing, as is every other filter; name at least one of kind, throttle, key, state, created_after, created_before, '
            'group, error_like, trace, unique_key, args, args_path, tags');
    elsif state <> all(known) then
        perform flyball.refuse('cancel_jobs', 'state', format('%s is not a state that can be cancelled; allowed are %s',
            to_json(left(state, 40)), array_to_string(known, ', ')));
    end if;
    search := flyball.read_search('cancel_jobs', "group", error_like, trace, unique_key, key_owners, args, args_path, tags);
    select w.cancelled, w.requested, w.next into cancel_jobs.cancelled, cancel_jobs.requested, cancel_jobs.next
    from flyball.cancel_walk('cancel_jobs', 'jobs.cancel', coalesce(throttle || coalesce('/' || nullif(key, ''), ''), kind, 'jobs'),
        kind, throttle, key, case when state is null then known else array[state] end, created_after, created_before, max_jobs, dry_run,
        start, by, why, cancel_jobs.tenant, search) w;
end $$;
comment on function flyball.cancel_jobs is 'Cancels up to max_jobs jobs that match a filter; call again with start => next for more.';

-- Cancels up to max_jobs waiting jobs of one lane, the oldest first; running ones continue. While
-- `next` is not null there may be more.
create function flyball.purge_lane(
    throttle text, key text, max_jobs int default 10000, dry_run boolean default false, start text default null,
    by text default null, why text default '', tenant text default null,
    out cancelled bigint, out next text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    perform flyball.check_lane('purge_lane', throttle, key);
    select w.cancelled, w.next into purge_lane.cancelled, purge_lane.next
    from flyball.cancel_walk('purge_lane', 'lane.purge', throttle || coalesce('/' || nullif(key, ''), ''), null, throttle, key,
        array['ready', 'scheduled', 'retryable'], null, null, max_jobs, dry_run, start, by, why, purge_lane.tenant) w;
end $$;
comment on function flyball.purge_lane is 'Cancels up to max_jobs waiting jobs of one lane; call again for more.';

-- The walk of requeue_dead and discard_dead, the oldest job first.
create function flyball.dead_walk(
    what text, action text, discard boolean, kind text, throttle text, key text, error_like text,
    died_after timestamptz, died_before timestamptz, keep_attempts boolean, max_jobs int, dry_run boolean, start text, by text, why text,
    tenant text,
    search flyball.job_search default null,
    out jobs bigint, out next text)
language plpgsql volatile set enable_seqscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    filter    constant flyball.job_filter := row(null, kind, throttle, key, tenant, null, null, search);
    lane      constant bigint := flyball.lane_of(throttle, key);
    -- False if the rows of dead letters tell all.
    by_job    constant boolean := kind is not null or (throttle is null) <> (key is null) or not (search is null);
    walk_rows constant bigint := case when flyball.is_expensive(search) then 1000 else 10000 end;
    at_id     bigint := 0;
    operation bigint;
    result    record;
begin
    if dry_run is null then
        perform flyball.refuse(what, 'dry_run', 'must be true or false, not null');
    elsif keep_attempts is null then
        perform flyball.refuse(what, 'keep_attempts', 'must be true or false, not null');
    end if;
    perform flyball.check_walk(what, max_jobs, start, '^dead/[0-9]{1,18}(#[0-9]{1,18})?$', died_after, died_before,
        'died_after', 'died_before');
    perform flyball.read_search(what, null, error_like, null, null, null, null, null, null);
    if not by_job and coalesce(throttle, error_like, died_after::text, died_before::text) is null then
        perform flyball.refuse(what, 'error_like', 'is missing, as is every other filter; name at least one of kind, throttle, key, '
            'error_like, died_after, died_before, group, trace, unique_key, args, args_path, tags; ''%'' names every error');
    end if;
    if start is not null then
        operation := nullif(split_part(start, '#', 2), '')::bigint;
        at_id := split_part(split_part(start, '#', 1), '/', 2)::bigint;
    end if;

    -- All dead jobs, or those of a tenant among its jobs: the position tells nothing about the jobs
    -- of others.
    with walk as materialized (
        (select d.job_id, d.lane_id, d.died_at, d.error
         from flyball.dead d
         where dead_walk.tenant is null and d.job_id > at_id
         order by d.job_id
         limit walk_rows)
        union all
        (select j.id, d.lane_id, d.died_at, d.error
         from (
             select o.id from flyball.job o
             where o.tenant = dead_walk.tenant and o.tenant <> '' and o.id > at_id
             order by o.id
             limit walk_rows
         ) j
         left join lateral (select h.lane_id, h.died_at, h.error from flyball.dead h where h.job_id = j.id limit 1) d on true)
    ),
    matched as materialized (
        select w.job_id
        from walk w
        left join lateral (
            select flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as fits
            from flyball.job j where by_job and j.id = w.job_id limit 1
        ) j on true
        where w.lane_id is not null and (lane is null or w.lane_id = lane)
            and (died_after is null or w.died_at >= died_after) and (died_before is null or w.died_at < died_before)
            and (error_like is null or coalesce(w.error, '') like error_like)
            and (not by_job or j.fits)
        limit max_jobs
    ),
    removed as (
        delete from flyball.dead d
        where not dry_run and d.job_id = any(array(select m.job_id from matched m))
        returning d.*
    ),
    held as materialized (
        select unnest(flyball.lock_unique_keys(array(select t.job_id from removed t))) as job_id
    ),
    waiting as materialized (
        select w.job_id, w.lane_id from flyball.await_admission(array(select t.job_id from removed t where not discard)) w
    ),
    forgotten as (
        delete from flyball.cancel
        where job_id = any(array(
            select c.job_id from flyball.cancel c where c.job_id = any(array(select t.job_id from removed t)) for update skip locked
        ))
    ),
    requeued as (
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
        select coalesce(w.lane_id, t.lane_id), t.priority, t.job_id, case when keep_attempts then t.attempt else 0 end, t.cost,
            t.job_id in (select h.job_id from held h)
        from removed t
        left join waiting w on w.job_id = t.job_id
        where not discard
        on conflict do nothing
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome)
        select t.job_id, t.attempt, 'cancelled' from removed t where discard
    )
    select (select count(*) from walk) as walked, (select count(*) from matched) as matched, (select count(*) from removed) as removed,
        (select max(w.job_id) from walk w) as walked_to, (select max(m.job_id) from matched m) as matched_to,
        (
            select left(string_agg(distinct coalesce(w.lane_id, t.lane_id)::text, ','), 7900)
            from removed t left join waiting w on w.job_id = t.job_id
        ) as lanes
    into result;

    jobs := case when dry_run then result.matched else result.removed end;
    if not dry_run and jobs > 0 then
        operation := flyball.write_audit(operation, flyball.audit_actor(by), action,
            coalesce(throttle || coalesce('/' || nullif(key, ''), ''), kind, 'dead letters'), null,
            jsonb_build_object('jobs', jobs, 'filter', jsonb_strip_nulls(jsonb_build_object('kind', kind, 'throttle', throttle, 'key', key,
                'error_like', error_like, 'died_after', died_after, 'died_before', died_before,
                'keep_attempts', case when not discard then keep_attempts end)) || flyball.search_text(search)), why);
        if not discard then
            -- At most as many lanes as a notification can carry; the next sweep finds the others.
            perform pg_notify('flyball', result.lanes);
        end if;
    end if;
    next := case when result.matched = max_jobs then 'dead/' || result.matched_to
        when result.walked = walk_rows then 'dead/' || result.walked_to end || coalesce('#' || operation, '');
end $$;

-- Makes up to max_jobs dead jobs ready again, each with its unique key if the key is free.
-- error_like is a pattern of LIKE: 'timeout%' begins with, '%timeout%' contains.
create function flyball.requeue_dead(
    kind text default null, throttle text default null, key text default null, error_like text default null,
    max_jobs int default 1000, died_after timestamptz default null, died_before timestamptz default null,
    keep_attempts boolean default false, dry_run boolean default false, start text default null,
    by text default null, why text default '', tenant text default null,
    "group" bigint default null, trace text default null, unique_key text default null, key_owners text[] default null,
    args jsonb default null, args_path text default null, tags text[] default null,
    out jobs bigint, out next text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
    select w.jobs, w.next
    from flyball.dead_walk('requeue_dead', 'dead.requeue', false, kind, throttle, key, error_like, died_after, died_before,
        keep_attempts, max_jobs, dry_run, start, by, why, tenant,
        flyball.read_search('requeue_dead', "group", null, trace, unique_key, key_owners, args, args_path, tags)) w
$$;
comment on function flyball.requeue_dead is 'Makes up to max_jobs dead jobs that match a filter ready again; call again with start => next for more.';

-- Discards up to max_jobs dead jobs; they end as cancelled.
create function flyball.discard_dead(
    kind text default null, throttle text default null, key text default null, error_like text default null,
    max_jobs int default 1000, died_after timestamptz default null, died_before timestamptz default null,
    dry_run boolean default false, start text default null, by text default null, why text default '', tenant text default null,
    "group" bigint default null, trace text default null, unique_key text default null, key_owners text[] default null,
    args jsonb default null, args_path text default null, tags text[] default null,
    out jobs bigint, out next text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
    select w.jobs, w.next
    from flyball.dead_walk('discard_dead', 'dead.discard', true, kind, throttle, key, error_like, died_after, died_before,
        false, max_jobs, dry_run, start, by, why, tenant,
        flyball.read_search('discard_dead', "group", null, trace, unique_key, key_owners, args, args_path, tags)) w
$$;
comment on function flyball.discard_dead is 'Discards up to max_jobs dead jobs that match a filter.';

-- === Pause of everything =========================================================================

-- Stops all claiming until resume_all; running jobs continue. False if everything is paused
-- already; that pause is kept.
create function flyball.pause_all(why text default '', by text default null) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    insert into flyball.pause (by, why)
    values (left(split_part(flyball.audit_actor(pause_all.by), chr(31), 1), 200), left(coalesce(pause_all.why, ''), 1000))
    on conflict do nothing;
    if not found then
        return false;
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(pause_all.by), 'all.pause', 'everything', null, null, pause_all.why);
    return true;
end $$;
comment on function flyball.pause_all is 'Stops all claiming until flyball.resume_all().';

-- Ends the pause of everything. False if there is none.
create function flyball.resume_all(why text default '', by text default null) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    ended jsonb;
begin
    delete from flyball.pause p returning jsonb_build_object('since', p.since, 'by', p.by, 'why', p.why) into ended;
    if ended is null then
        return false;
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(resume_all.by), 'all.resume', 'everything', ended, null, resume_all.why);
    perform pg_notify('flyball', '');
    return true;
end $$;
comment on function flyball.resume_all is 'Ends the pause of everything.';

-- === Lanes =======================================================================================

-- Sets a lane's share relative to the other lanes of its throttle. Returns the previous weight.
create function flyball.set_weight(throttle text, key text, weight float8, by text default null, why text default '') returns float8
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    previous_weight float8;
begin
    perform flyball.check_lane('set_weight', set_weight.throttle, set_weight.key);
    if set_weight.weight is null or set_weight.weight = 'NaN'::float8 or set_weight.weight < 0.001 or set_weight.weight > 1000 then
        perform flyball.refuse('set_weight', 'weight',
            format('is %s; allowed are 0.001 to 1000, and 1 is the weight of a lane that has none',
            coalesce(set_weight.weight::text, 'null')));
    end if;
    select l.weight into previous_weight
    from flyball.lane l
    where l.lane_id = flyball.lane_of(set_weight.throttle, set_weight.key)
    for update;
    insert into flyball.lane as l (lane_id, throttle, key, weight)
    values (flyball.lane_of(set_weight.throttle, set_weight.key), set_weight.throttle, set_weight.key, set_weight.weight)
    on conflict on constraint lane_pkey do update set weight = excluded.weight;
    perform flyball.write_audit(null, flyball.audit_actor(set_weight.by), 'lane.weight', throttle || coalesce('/' || nullif(key, ''), ''),
        jsonb_build_object('weight', coalesce(previous_weight, 1)), jsonb_build_object('weight', set_weight.weight), set_weight.why);
    return coalesce(previous_weight, 1);
end $$;
comment on function flyball.set_weight is 'Sets a lane''s share relative to the other lanes of its throttle.';

-- === Permissions =================================================================================

revoke execute on function flyball.is_of_tenant, flyball.job_state, flyball.cancel, flyball.lock_unique_keys, flyball.retry,
    flyball.reschedule, flyball.discard, flyball.update_problems, flyball.update, flyball.has_unique_key, flyball.searched_args,
    flyball.fits_search, flyball.is_expensive, flyball.fits_filter, flyball.read_args_path, flyball.usual_key_owners, flyball.read_search,
    flyball.read_filter, flyball.search_text, flyball.check_walk, flyball.check_lane, flyball.cancel_live, flyball.cancel_walk,
    flyball.cancel_jobs, flyball.purge_lane, flyball.dead_walk, flyball.requeue_dead, flyball.discard_dead, flyball.pause_all,
    flyball.resume_all,
    flyball.set_weight
from public;
