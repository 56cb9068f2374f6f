-- Chapter 22: changes of waiting jobs.

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
    charged constant text := case when throttle ~ '^[A-Za-z0-9._/:{}-]{1,128}$' is not false and not coalesce(flyball.is_of_admission(throttle), false)
        then coalesce(throttle, job.throttle) else 'default' end;
begin
    if given = '{}' and clear = '{}' then
        return query select '', 'nothing to change; give one or more of args, throttle, key, priority, max_attempts, cost, timeout, tags, retry', '22023';
        return;
    end if;
    return query
    -- One field at a time, beside values that are always acceptable; and the cost that it has in a new
    -- throttle.
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
        and (c.message is not null or job.kind = 'notification' and f.name in ('args', 'throttle', 'key', 'priority') and f.name = any(given))
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

-- Changes fields of a waiting job; those that are null stay as they are, and those that `clear` names go
-- back to what the kind has. The job keeps its number, its time, its attempts and its unique key. Returns
-- 'updated', 'still running', 'already completed' (or cancelled, or dead), or 'not found'.
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
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
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
    select j.* into old from flyball.job j where j.id = job_id and (tenant is null or j.tenant = tenant);
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
        -- Nobody frees a job that waits for others while this holds its place.
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
    job.lane_id := flyball.lane_of(job.throttle, job.key);
    job.priority := coalesce(priority, old.priority);
    job.max_attempts := coalesce(max_attempts, old.max_attempts);
    job.cost := coalesce(cost, old.cost);
    job.timeout_s := case when 'timeout' = any(clear) then null else coalesce(extract(epoch from timeout), old.timeout_s) end;
    job.tags := case when tags is null then old.tags else flyball.tags_of(jsonb_build_object('tags', tags)) end;
    job.retry := case when 'retry' = any(clear) then null else coalesce(flyball.retry_of(jsonb_build_object('retry', retry)), old.retry) end;
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

-- === Permissions ==================================================================================

revoke execute on function flyball.update_problems, flyball.update from public;

comment on function flyball.update is 'Changes fields of a waiting job.';
