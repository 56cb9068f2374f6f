-- Chapter 22: changes of waiting jobs.

-- === A waiting job is rewritten ===================================================================
--
-- A job is written once, except while it waits: a job with `replace` or `debounce` takes the place of the
-- waiting one, and people change fields of one. Both take its row out of the queue, rewrite the job, and
-- put a new row in. The transaction that takes the row has the job, and only snapshots that see
-- the new row also see the job as it is now, so no claim runs a mix of the two.

-- Takes a waiting job out of its queue and returns its place; nulls if it does not wait. `run_at` is
-- null for one that was ready.
create function flyball.take_waiting(job_id bigint) returns flyball.scheduled
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    taken flyball.scheduled;
begin
    -- Promotion moves a job from here to `ready`, so this is the order of the search. The transaction that
    -- deletes the row has the job: a claim skips it or was faster.
    delete from flyball.scheduled s where s.job_id = job_id returning s.* into taken;
    if not found then
        delete from flyball.ready r
        where r.lane_id in ((select j.lane_id from flyball.job j where j.id = job_id),
                (select j.admission_lane from flyball.job j where j.id = job_id))
            and r.priority = (select j.priority from flyball.job j where j.id = job_id) and r.job_id = job_id
        returning r.job_id, null, r.lane_id, r.priority, r.attempt, r.cost, false, r.holds_unique, 0 into taken;
    end if;
    return taken;
end $$;

-- Writes all that can change in a job that was taken out of its queue. With new arguments the cursor of
-- the old ones is forgotten.
create function flyball.rewrite_job(job flyball.job, has_new_args boolean) returns void
language plpgsql volatile as $$
#variable_conflict use_variable
begin
    update flyball.job as j
    set lane_id = job.lane_id, priority = job.priority, max_attempts = job.max_attempts, cost = job.cost, run_at = job.run_at,
        throttle = job.throttle, key = job.key, args = job.args, traceparent = job.traceparent, timeout_s = job.timeout_s,
        module = job.module, admission_lane = job.admission_lane, tags = job.tags, after = job.after,
        after_failure = job.after_failure, on_complete = job.on_complete, on_dead = job.on_dead, webhook_secret = job.webhook_secret
    where j.id = job.id;
    if has_new_args then
        delete from flyball.checkpoint c where c.job_id = job.id;
    end if;
end $$;

-- Enqueues one job with validated arguments, by all rules except those of its throttle's knobs.
create or replace function flyball.admit_unchecked(
    entry_point text,
    kind text, args jsonb, throttle text, key text, priority int, run_at timestamptz, max_attempts int,
    unique_key text, unique_for interval, cost float8, traceparent text, timeout interval,
    debounce interval, debounce_max interval, replace boolean, owner text, module text default '', admitted boolean default false,
    group_id bigint default null, options jsonb default null,
    out job_id bigint, out duplicate boolean, out replaced boolean, out backlog jsonb)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    holder       record;
    holder_state record;
    taken        flyball.scheduled;
    job          flyball.job;
    lane         bigint := flyball.lane_of(throttle, key);
    owner_tenant constant text := flyball.tenant_of(owner);
    -- The lane in which a message of a tenant waits, unless the entry point took its slot.
    waiting_lane constant bigint := case when kind = 'notification' and owner_tenant <> '' and not admitted
        then flyball.lane_of(flyball.admission_throttle(owner_tenant), module) end;
    target_lane  constant bigint := coalesce(waiting_lane, lane);
    due_at       timestamptz := coalesce(now() + debounce, run_at);
    digest       bytea;
    until        constant timestamptz := now() + unique_for;
    burst_start  timestamptz := case when debounce is not null then now() end;
    replaces     constant boolean := replace or debounce is not null;
    awaited      constant bigint[] := case when options ? 'after' then flyball.awaited(options) end;
begin
    job_id := flyball.next_id() | (group_id is not null or coalesce(options ?| array['on_complete', 'on_dead'], false))::int;
    duplicate := false;
    replaced := false;

    if unique_key is not null then
        digest := flyball.unique_digest(owner, kind, unique_key);
        -- Each round takes the key, or takes the waiting job out of its queue, or has seen another
        -- transaction do so.
        for round in 1..1000 loop
            if round = 1000 then
                raise exception using errcode = '40001', message = format('%s: the job that holds the unique_key kept moving', entry_point),
                    hint = 'Nothing was enqueued. Try again.';
            end if;
            -- A second producer of the same new key waits here until the first commits or rolls
            -- back.
            insert into flyball.unique_holder as u (digest, job_id, expires_at, since) values (digest, job_id, until, burst_start)
            on conflict do nothing;
            exit when found;

            if replaces then
                -- Producers that replace run one after another, so that the key cannot pass to
                -- another job during the search for this one.
                select u.job_id, u.expires_at, u.since into holder from flyball.unique_holder u where u.digest = digest for update;
                continue when not found;
                taken := flyball.take_waiting(holder.job_id);
                replaced := taken.job_id is not null;
                exit when replaced;
            else
                select u.job_id, u.expires_at, u.since into holder from flyball.unique_holder u where u.digest = digest;
                continue when not found;
            end if;

            -- One statement and so one snapshot, in which a job is in one table only.
            select exists (select from flyball.scheduled s where s.job_id = holder.job_id)
                    or exists (
                        select from flyball.ready r
                        where r.lane_id in ((select j.lane_id from flyball.job j where j.id = holder.job_id),
                                (select j.admission_lane from flyball.job j where j.id = holder.job_id))
                            and r.priority = (select j.priority from flyball.job j where j.id = holder.job_id) and r.job_id = holder.job_id
                    ) as is_waiting,
                exists (select from flyball.lease l where l.job_id = holder.job_id) as is_running
            into holder_state;
            continue when replaces and holder_state.is_waiting;
            if not replaces and (holder.expires_at > now() or holder.expires_at is null and (holder_state.is_waiting or holder_state.is_running)) then
                job_id := holder.job_id;
                duplicate := true;
                return;
            end if;

            -- The key passes to the new job: it has expired, or the job that held it is running or
            -- has ended.
            update flyball.unique_holder as u set job_id = job_id, expires_at = until, since = burst_start
            where u.digest = digest and u.job_id = holder.job_id and u.expires_at is not distinct from holder.expires_at;
            exit when found;
        end loop;
    end if;

    if replaced then
        -- The waiting job keeps its place and its id and gets the new arguments. Workers read it
        -- only after they claim the row that is inserted below, so none can run it with the old
        -- arguments.
        job_id := holder.job_id;
        duplicate := true;
        -- The burst of the waiting job continues. A job that was not delayed is not a burst, and
        -- one that was tried and failed is over: then a new burst begins, with all attempts.
        if debounce is not null and taken.attempt = 0 then
            burst_start := coalesce(holder.since, burst_start);
        end if;
        update flyball.unique_holder as u set since = burst_start where u.digest = digest and u.since is distinct from burst_start;
        due_at := least(due_at, burst_start + coalesce(debounce_max, debounce * 10));
        select o.* into job from flyball.job o where o.id = job_id;
        job.lane_id := lane;
        job.priority := priority;
        job.max_attempts := max_attempts;
        job.cost := cost;
        job.run_at := due_at;
        job.throttle := throttle;
        job.key := key;
        job.args := args;
        job.traceparent := traceparent;
        job.timeout_s := extract(epoch from timeout);
        job.module := module;
        job.admission_lane := waiting_lane;
        job.tags := flyball.tags_of(options);
        job.after := null;
        job.after_failure := null;
        job.on_complete := null;
        job.on_dead := null;
        job.webhook_secret := null;
        perform flyball.rewrite_job(job, true);
    else
        if to_regclass('flyball.job_' || (job_id >> 38)) is null then
            perform flyball.ensure_day(job_id >> 38);
        end if;
        if awaited is null and (due_at is null or due_at <= now()) then
            backlog := flyball.check_backlog(entry_point, throttle, key, lane, 1);
        end if;
        if kind = 'notification' and owner_tenant <> '' then
            perform flyball.record_pending(entry_point, owner_tenant, array[job_id], priority = 0);
        end if;
        insert into flyball.job
            (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, tenant, unique_key, unique_until, args,
             traceparent, timeout_s, module, admission_lane, group_id, tags,
             after, after_failure, on_complete, on_dead, webhook_secret)
        values (job_id, lane, priority, max_attempts, cost, due_at, kind, throttle, key, owner_tenant, digest, until, args,
            traceparent, extract(epoch from timeout), module, waiting_lane, group_id,
            flyball.tags_of(options), flyball.after_of(options), options ->> 'after_failure',
            options ->> 'on_complete', options ->> 'on_dead', options ->> 'webhook_secret');
        if group_id is not null then
            perform flyball.add_members(group_id, array[job_id]);
        end if;
        if options ?| array['on_complete', 'on_dead'] then
            insert into flyball.webhook_job (job_id) values (job_id);
        end if;
    end if;

    if awaited is not null then
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique, turn)
        values (job_id, coalesce(due_at, now()), target_lane, priority, cost, false, unique_key is not null and unique_for is null,
            priority - 8);
        perform flyball.add_waits(job_id, awaited, options);
    elsif flyball.needs_plan(kind, args) then
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique, turn)
        values (job_id, greatest(due_at, now()), target_lane, priority, cost, false, unique_key is not null and unique_for is null,
            priority - 4);
        if due_at is null or due_at <= now() then
            perform pg_notify('flyball_plan', '');
        end if;
    elsif due_at is null or due_at <= now() then
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        values (target_lane, priority, job_id, cost, unique_key is not null and unique_for is null);
        -- Producers notify only while a dispatcher sleeps: an active one sees new jobs by their
        -- ids. A job with an old id that just came to this lane would be found late.
        if replaced and (taken.run_at is not null or taken.lane_id <> target_lane) or coalesce((select d.asleep from flyball.wakeup d), true) then
            perform pg_notify('flyball', target_lane::text);
        end if;
    else
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique)
        values (job_id, due_at, target_lane, priority, cost, false, unique_key is not null and unique_for is null);
    end if;
end $$;

-- === One waiting job is changed ===================================================================

-- Everything that is wrong with the changes of a job, each with its error code.
create function flyball.update_problems(
    job flyball.job, args jsonb, throttle text, key text, priority int, max_attempts int, cost float8, timeout interval, tags text[],
    clear text[])
returns table (field text, message text, code text)
language plpgsql stable as $$
#variable_conflict use_variable
declare
    -- The fields that are given.
    given constant text[] := array_remove(array[
        case when args is not null then 'args' end, case when throttle is not null then 'throttle' end,
        case when key is not null then 'key' end, case when priority is not null then 'priority' end,
        case when max_attempts is not null then 'max_attempts' end, case when cost is not null then 'cost' end,
        case when timeout is not null then 'timeout' end, case when tags is not null then 'tags' end], null);
    -- The throttle that charges the cost, unless its name is a fault of its own.
    charged constant text := case when throttle ~ '^[A-Za-z0-9._/:{}-]{1,128}$' is not false and not coalesce(flyball.is_of_admission(throttle), false)
        then coalesce(throttle, job.throttle) else 'default' end;
begin
    if given = '{}' and clear = '{}' then
        return query select '', 'nothing to change; give one or more of args, throttle, key, priority, max_attempts, cost, timeout, tags', '22023';
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
    select o.field, o.message, '22023' from flyball.check_options(jsonb_build_object('tags', tags)) o where o.field is not null
    union all
    select 'clear', case when c.name = any(given) then format('names %s, which is given as well', c.name)
            else format('names %s; allowed is timeout', coalesce(to_json(left(c.name, 64))::text, 'null')) end, '22023'
    from unnest(coalesce(clear, array[null])) as c(name)
    where c.name is distinct from 'timeout' or c.name = any(given);
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
    from flyball.update_problems(old, args, throttle, key, priority, max_attempts, cost, timeout, tags, clear) p;
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
    cross join unnest(array['throttle', 'key', 'priority', 'max_attempts', 'cost', 'timeout_s', 'tags']) as f(name)
    where b.was -> f.name is distinct from b.is_now -> f.name;
    if job.args is distinct from old.args then
        is_now := coalesce(is_now, '{}') || '{"args": "changed"}';
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(by), 'job.update', job_id::text, was, is_now, why);
    return 'updated';
end $$;

-- === Permissions ==================================================================================

revoke execute on function flyball.update_problems, flyball.update from public;

drop function flyball.replace_functions;

comment on function flyball.update is 'Changes fields of a waiting job.';
