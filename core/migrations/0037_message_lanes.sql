-- Chapter 37: a tenant's messages have a lane of their own in a pool, refusals that name the argument, and
-- complaints by tenant.

-- === Lanes of tenants ============================================================================

-- The key of a job in its throttle: a message of a tenant that names none has that of its tenant, so that
-- many messages of one tenant delay those of no other.
create function flyball.message_key(kind text, key text, tenant text) returns text
language sql immutable parallel safe
return case when kind = 'notification' and key = '' then tenant else key end;

-- As in 0019, but for the key of a message, and for the places in the queue of its tenant: those of many
-- messages are taken together, behind all their unique keys.
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
    owner_tenant constant text := flyball.tenant_of(owner);
    lane_key     constant text := flyball.message_key(kind, key, owner_tenant);
    lane         bigint := flyball.lane_of(throttle, lane_key);
    -- The lane in which a message of a tenant waits, unless the entry point took its slot.
    waiting_lane constant bigint := case when kind = 'notification' and owner_tenant <> '' and not admitted
        then flyball.lane_of(flyball.admission_throttle(owner_tenant), module) end;
    target_lane  constant bigint := coalesce(waiting_lane, lane);
    due_at       timestamptz := coalesce(now() + debounce, run_at);
    digest       bytea;
    until        timestamptz := now() + unique_for;
    burst_start  timestamptz := case when debounce is not null then now() end;
    replaces     constant boolean := replace or debounce is not null;
    awaited      constant bigint[] := case when options ? 'after' then flyball.awaited(options) end;
begin
    key := lane_key;
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
        due_at := least(due_at, burst_start + coalesce(debounce_max, debounce * 10));
        -- A job that replaces holds its key until it has ended. One that was taken for a time stays taken
        -- for it, but would be free too early if that time is over before the job can run.
        until := case when holder.expires_at > greatest(due_at, now()) then holder.expires_at end;
        update flyball.unique_holder as u set since = burst_start, expires_at = until
        where u.digest = digest and (u.since is distinct from burst_start or u.expires_at is distinct from until);
        select o.* into job from flyball.job o where o.id = job_id;
        job.unique_until := until;
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
        job.retry := flyball.retry_of(options);
        perform flyball.rewrite_job(job, true);
        -- A request to cancel was for the job that is gone.
        delete from flyball.cancel c where c.job_id = job_id;
    else
        if to_regclass('flyball.job_' || (job_id >> 38)) is null then
            perform flyball.ensure_day(job_id >> 38);
        end if;
        if awaited is null and (due_at is null or due_at <= now()) then
            backlog := flyball.check_backlog(entry_point, throttle, key, lane, 1);
        end if;
        if kind = 'notification' and owner_tenant <> '' and entry_point <> 'enqueue_many' then
            perform flyball.record_pending(entry_point, owner_tenant, array[job_id], priority = 0);
        end if;
        insert into flyball.job
            (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, tenant, unique_key, unique_until, args,
             traceparent, timeout_s, module, admission_lane, group_id, tags,
             after, after_failure, on_complete, on_dead, webhook_secret, retry)
        values (job_id, lane, priority, max_attempts, cost, due_at, kind, throttle, key, owner_tenant, digest, until, args,
            traceparent, extract(epoch from timeout), module, waiting_lane, group_id,
            -- A first call costs as much as the insert of a row, whatever it is given.
            case when options is not null then flyball.tags_of(options) end,
            case when options is not null then flyball.after_of(options) end, options ->> 'after_failure',
            options ->> 'on_complete', options ->> 'on_dead', options ->> 'webhook_secret',
            case when options is not null then flyball.retry_of(options) end);
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

-- As in 0019, but for the keys of messages, and for their places in the queue of the tenant, which are taken
-- behind all unique keys: a transaction that has the places waits for no key. And throttles that limit the
-- requests of an API are refused as those of the HTTP API are, see 0038.
create or replace function flyball.enqueue_rows_as(
    owner text, trusted boolean,
    kinds text[], args jsonb[], throttles text[], keys text[], priorities int[], run_ats timestamptz[], max_attempts int[],
    unique_keys text[], unique_fors float8[], costs float8[], traceparents text[], timeouts float8[],
    debounces float8[], debounce_maxes float8[], replaces boolean[], module text default '', admitted boolean default false,
    groups bigint[] default null, options jsonb[] default null)
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    size          constant int := coalesce(cardinality(kinds), 0);
    today         constant bigint := flyball.day_of(now());
    immediate     constant boolean := run_ats is not null and array_remove(run_ats, null) = '{}';
    plain         constant boolean := unique_keys is not null and array_remove(unique_keys, null) = '{}';
    untraced      constant boolean := array_remove(traceparents, null) = '{}';
    untimed       constant boolean := array_remove(timeouts, null) = '{}';
    -- Null if no job is to join a group.
    joins         constant bigint[] := case when array_remove(groups, null) <> '{}' then groups end;
    -- The options that are given: without nulls, which are like none. Null if no job has any.
    extras        jsonb[];
    -- For which others each job waits, as an array; null if none waits.
    waits         jsonb[];
    -- True if any job has webhooks.
    calls         boolean := false;
    owner_tenant  constant text := flyball.tenant_of(owner);
    sender_module constant text := module;
    messages      constant boolean := owner_tenant <> '' and 'notification' = any (kinds);
    -- The messages that must be planned; null if there are none.
    unplanned     boolean[] := case when 'notification' = any (kinds) then array(
        select flyball.needs_plan(g.kind, g.args) from unnest(kinds, args) with ordinality as g(kind, args, n) order by g.n) end;
    -- The lane in which messages of a tenant wait, unless the entry point took their slots.
    waiting_lane  constant bigint := case when messages and not admitted
        then flyball.lane_of(flyball.admission_throttle(owner_tenant), module) end;
    one           record;
    result        record;
    lane_backlog  jsonb;
    place         bigint;
    ids           bigint[];
    lanes         bigint[];
    -- The lanes in which the jobs stand first.
    target_lanes  bigint[];
    -- True if they all wait behind others, for which a worker comes anyway.
    all_behind    boolean := false;
    duplicates    boolean[];
    replacements  boolean[];
    backlogs      jsonb[];
begin
    if unplanned is not null and true <> all (unplanned) then
        unplanned := null;
    end if;
    if size > 10000 then
        raise exception using errcode = '22023', column = '',
            message = format('enqueue_many: jobs: has %s elements; at most 10000 are allowed', size),
            hint = 'Nothing was enqueued.';
    elsif array[cardinality(args), cardinality(throttles), cardinality(keys), cardinality(priorities), cardinality(run_ats),
            cardinality(max_attempts), cardinality(unique_keys), cardinality(unique_fors), cardinality(costs),
            cardinality(traceparents), cardinality(timeouts), cardinality(debounces), cardinality(debounce_maxes),
            cardinality(replaces)] is distinct from array_fill(size, array[14]) or cardinality(groups) <> size
        or cardinality(options) <> size
    then
        raise exception using errcode = '22023', column = '',
            message = 'enqueue_rows: every argument must be an array with one element for each job', hint = 'Nothing was enqueued.';
    elsif size = 0 then
        return;
    end if;

    if 'notification' = any (kinds) and 1 = any (priorities) then
        priorities := array(
            select case when g.kind = 'notification' and g.priority = 1 then flyball.notification_priority(g.args) else g.priority end
            from unnest(kinds, priorities, args) with ordinality as g(kind, priority, args, n)
            order by g.n);
    end if;
    if messages and '' = any (keys) then
        keys := array(
            select flyball.message_key(g.kind, g.key, owner_tenant) from unnest(kinds, keys) with ordinality as g(kind, key, n) order by g.n);
    end if;

    -- Each column is checked as a whole, which is far cheaper than checking each job. Only if a
    -- column holds a suspicious value are the jobs checked one by one.
    if (plain and immediate
        and array_remove(unique_fors, null) = '{}' and array_remove(debounces, null) = '{}' and array_remove(debounce_maxes, null) = '{}'
        and false = all (replaces)
        and case when kinds[1] = all (kinds) then exists (select from flyball.kind k where k.name = kinds[1] and (trusted or k.public))
                 else kinds <@ array(select k.name from flyball.kind k where k.name in (select distinct unnest(kinds)) and (trusted or k.public)) end
        and array_position(args, null) is null
        and 262144 >= all (select octet_length(a::text) from unnest(args) as a)
        and case when throttles[1] = all (throttles) then throttles[1] ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(throttles[1]) <= 128
                      and not flyball.is_of_admission(throttles[1])
                      and (trusted or left(throttles[1], 4) <> 'api:' and left(throttles[1], 6) <> 'limit:' and left(throttles[1], 7) not in ('notify:', 'tenant:'))
                 else true = all (select t ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(t) <= 128 and not flyball.is_of_admission(t)
                                      and (trusted or left(t, 4) <> 'api:' and left(t, 6) <> 'limit:' and left(t, 7) not in ('notify:', 'tenant:'))
                                  from (select distinct unnest(throttles) as t) as t) end
        and 512 >= all (select octet_length(k) from unnest(keys) as k)
        and 0 <= all (priorities) and 3 >= all (priorities)
        and (trusted or owner_tenant = '' or 0 <> all (priorities) or 'notification' <> all (kinds))
        and 1 <= all (max_attempts) and 1000 >= all (max_attempts)
        and 0 < all (costs) and 1 >= all (costs)
        and not exists (select from flyball.knobs b where b.throttle = any(array(select distinct unnest(throttles))) and b.fields ? 'max_cost')
        and (untraced or true = all (select flyball.is_traceparent(t) from unnest(array_remove(traceparents, null)) as t))
        and (untimed or 1e-6 <= all (array_remove(timeouts, null)) and 366 * 86400.0 >= all (array_remove(timeouts, null)))) is not true
    then
        for one in
            select g.n, c.field, c.message, c.code
            from unnest(kinds, args, throttles, keys, priorities, run_ats, max_attempts, unique_keys, unique_fors, costs,
                    traceparents, timeouts, debounces, debounce_maxes, replaces) with ordinality
                as g(kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost, traceparent,
                    timeout, debounce, debounce_max, replace, n)
            cross join lateral flyball.check_job(g.kind, g.args, g.throttle, g.key, g.priority, g.max_attempts, g.unique_key,
                flyball.span(g.unique_for), g.cost, g.run_at, g.traceparent, flyball.span(g.timeout), flyball.span(g.debounce),
                flyball.span(g.debounce_max), g.replace, owner, trusted) c
            where c.field is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, one.field, one.message, one.code);
        end loop;
    end if;

    if array_remove(options, null) <> '{}' then
        for one in
            select g.n, c.field, c.message
            from unnest(options) with ordinality as g(options, n)
            cross join lateral flyball.check_options(g.options) c
            where g.options is not null and c.field is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, one.field, one.message);
        end loop;
        -- A null within is like none, as well.
        extras := array(
            select nullif(nullif(jsonb_strip_nulls(g.options), '{}'), 'null') from unnest(options) with ordinality as g(options, n) order by g.n);
        extras := case when array_remove(extras, null) <> '{}' then extras end;
    end if;
    if extras is not null then
        for one in
            select g.n, c.field, c.message, c.code
            from unnest(extras, replaces, debounces) with ordinality as g(options, replace, debounce, n)
            cross join lateral flyball.check_webhooks(g.options, g.replace or g.debounce is not null, trusted) c
            where c.field is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, one.field, one.message, one.code);
        end loop;
        calls := exists (select from unnest(extras) as g(options) where g.options ?| array['on_complete', 'on_dead']);
    end if;

    if extras is not null and exists (select from unnest(extras) as g(options) where g.options ? 'after') then
        for one in
            select g.n, flyball.after_problem(g.absent, g.replaces) as message
            from (
                select a.n, a.replaces, case when (select 1 from flyball.job j where j.id = a.id and j.tenant = owner_tenant limit 1) is null
                    then a.id end as absent
                from (
                    select g.n, g.replace or g.debounce is not null as replaces, unnest(flyball.after_of(g.options)) as id
                    from unnest(extras, replaces, debounces) with ordinality as g(options, replace, debounce, n)
                    where g.options ? 'after'
                ) a
            ) g
            where g.absent is not null or g.replaces
            order by g.n, g.absent
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, 'after', one.message);
        end loop;
        with pairs as materialized (
            select g.n, g.options ->> 'after_failure' = 'run' as runs, unnest(flyball.after_of(g.options)) as id
            from unnest(extras, unique_keys) with ordinality as g(options, unique_key, n)
            where g.unique_key is null and g.options ? 'after'
        ),
        held as (
            select p.n, to_jsonb(array_agg(p.id order by p.id)) as ids
            from pairs p
            join flyball.ends_of(array(select distinct q.id from pairs q)) e on e.job_id = p.id
            where e.state = 'live' or e.state <> 'completed' and p.runs is not true
            group by p.n
        )
        select array_agg(h.ids order by k.n) into waits
        from generate_series(1, size) as k(n)
        left join held h on h.n = k.n;
        waits := case when array_remove(waits, null) <> '{}' then waits end;
    end if;

    if joins is not null then
        -- In the order of their numbers, as everywhere.
        for one in
            select g.n, c.message
            from (
                select j.id, bool_or(j.replaces) as replaces, coalesce(min(j.n) filter (where j.replaces), min(j.n)) as n
                from (
                    select u.id, u.n, u.replace or u.debounce is not null as replaces
                    from unnest(joins, replaces, debounces) with ordinality as u(id, replace, debounce, n)
                    where u.id is not null
                ) as j
                group by j.id
                order by j.id
            ) g
            cross join lateral flyball.check_group(g.id, owner, g.replaces) as c(message)
            where c.message is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, 'group', one.message);
        end loop;
    end if;

    if to_regclass('flyball.job_' || today) is null then
        perform flyball.ensure_day(today);
    end if;

    -- Each lane with a limit is checked once, before jobs are added to it.
    if exists (
        select from (select distinct unnest(throttles)) as t(name)
        join flyball.knobs b on b.throttle = t.name and b.fields ? 'max_backlog'
    ) then
        backlogs := array_fill(null::jsonb, array[size]);
        for one in
            select g.throttle, g.key, flyball.lane_of(g.throttle, g.key) as lane, array_agg(g.n) as places
            from unnest(throttles, keys, run_ats, unique_keys, waits) with ordinality as g(throttle, key, run_at, unique_key, waits, n)
            where g.unique_key is null and g.waits is null and (g.run_at is null or g.run_at <= now())
            group by 1, 2, 3
            order by 3
        loop
            lane_backlog := flyball.check_backlog('enqueue_many', one.throttle, one.key, one.lane, cardinality(one.places));
            if lane_backlog is not null then
                foreach place in array one.places loop
                    backlogs[place] := lane_backlog;
                end loop;
            end if;
        end loop;
    end if;

    ids := case when joins is null and not calls then array(select (today << 38) | (nextval('flyball.job_seq') << 1) from generate_series(1, size))
        else array(
            select (today << 38) | (nextval('flyball.job_seq') << 1)
                | (g.id is not null or coalesce(g.options ?| array['on_complete', 'on_dead'], false))::int
            from unnest(kinds, joins, extras) with ordinality as g(kind, id, options, n)
            order by g.n) end;
    lanes := case when throttles[1] = all (throttles) and keys[1] = all (keys)
        then array_fill(flyball.lane_of(throttles[1], keys[1]), array[size])
        else array(select flyball.lane_of(g.throttle, g.key) from (select unnest(throttles) as throttle, unnest(keys) as key) as g) end;

    target_lanes := case when waiting_lane is null then lanes
        else array(select case when g.kind = 'notification' then waiting_lane else g.lane end
                   from unnest(kinds, lanes) with ordinality as g(kind, lane, n) order by g.n) end;
    if waiting_lane is not null and 'notification' = all (kinds) then
        all_behind := flyball.has_waiting(owner_tenant, sender_module);
    end if;
    if messages and plain then
        perform flyball.record_pending('enqueue_many', owner_tenant, m.ids, m.urgent)
        from (
            select array_agg(g.id) as ids, bool_and(g.priority = 0) as urgent
            from unnest(ids, kinds, priorities) as g(id, kind, priority)
            where g.kind = 'notification'
        ) m
        where m.ids is not null;
    end if;

    if plain and immediate and untraced and untimed and not messages and unplanned is null and joins is null and extras is null then
        insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, tenant, args)
        select unnest(ids), unnest(lanes), unnest(priorities), unnest(max_attempts), unnest(costs), unnest(kinds), unnest(throttles),
            unnest(keys), owner_tenant, unnest(args);
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        select unnest(lanes), unnest(priorities), unnest(ids), unnest(costs), false;
    else
        insert into flyball.job
            (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, tenant, args, traceparent, timeout_s,
             module, admission_lane, group_id, tags,
             after, after_failure, on_complete, on_dead, webhook_secret, retry)
        select g.id, g.lane, g.priority, g.max_attempts, g.cost, g.run_at, g.kind, g.throttle, g.key, owner_tenant, g.args,
            g.traceparent, g.timeout, sender_module, case when g.kind = 'notification' then waiting_lane end, g.group_id,
            -- A first call costs as much as the insert of a row, whatever it is given.
            case when g.options is not null then flyball.tags_of(g.options) end,
            case when g.options is not null then flyball.after_of(g.options) end, g.options ->> 'after_failure',
            g.options ->> 'on_complete', g.options ->> 'on_dead', g.options ->> 'webhook_secret',
            case when g.options is not null then flyball.retry_of(g.options) end
        from (
            select unnest(ids) as id, unnest(lanes) as lane, unnest(priorities) as priority, unnest(max_attempts) as max_attempts,
                unnest(costs) as cost, unnest(run_ats) as run_at, unnest(kinds) as kind, unnest(throttles) as throttle,
                unnest(keys) as key, unnest(args) as args, unnest(traceparents) as traceparent, unnest(timeouts) as timeout,
                unnest(unique_keys) as unique_key, unnest(joins) as group_id,
                unnest(extras) as options
        ) as g
        where g.unique_key is null;
        if joins is not null then
            perform flyball.add_members(g.id, array_agg(g.job_id))
            from unnest(joins, ids, unique_keys) as g(id, job_id, unique_key)
            where g.id is not null and g.unique_key is null
            group by g.id;
        end if;
        if calls then
            insert into flyball.webhook_job (job_id)
            select g.id from unnest(ids, unique_keys, extras) as g(id, unique_key, options)
            where g.unique_key is null and g.options ?| array['on_complete', 'on_dead'];
        end if;
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        select g.lane, g.priority, g.id, g.cost, false
        from (
            select unnest(target_lanes) as lane, unnest(priorities) as priority, unnest(ids) as id, unnest(costs) as cost,
                unnest(run_ats) as run_at, unnest(unique_keys) as unique_key, unnest(unplanned) as unplanned, unnest(waits) as waits
        ) as g
        where g.unique_key is null and (g.run_at is null or g.run_at <= now()) and g.unplanned is not true
            and g.waits is null;
    end if;

    if not immediate or unplanned is not null or waits is not null then
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique, turn)
        select g.id, greatest(g.run_at, now()), g.lane, g.priority, g.cost, false, false, case when g.waits is not null then g.priority - 8
            when g.unplanned then g.priority - 4 else 0 end
        from unnest(ids, run_ats, target_lanes, priorities, costs, unique_keys, unplanned, waits)
            as g(id, run_at, lane, priority, cost, unique_key, unplanned, waits)
        where g.unique_key is null and (g.run_at > now() or g.unplanned or g.waits is not null);
    end if;
    if waits is not null then
        insert into flyball.job_after (job_id, after_id, runs_anyway)
        select g.id, e.id::bigint, coalesce(g.options ->> 'after_failure' = 'run', false)
        from unnest(ids, waits, extras) as g(id, waits, options)
        cross join lateral jsonb_array_elements_text(g.waits) as e(id)
        where g.waits is not null;
    end if;
    if unplanned is not null then
        perform pg_notify('flyball_plan', '');
    end if;

    if not all_behind and coalesce((select d.asleep from flyball.wakeup d), true) then
        -- No lane is named if several got jobs.
        perform pg_notify('flyball', case when min(g.lane) = max(g.lane) then min(g.lane)::text else '' end)
        from unnest(target_lanes, run_ats, unique_keys, unplanned, waits) as g(lane, run_at, unique_key, unplanned, waits)
        where g.unique_key is null and (g.run_at is null or g.run_at <= now()) and g.unplanned is not true and g.waits is null
        having count(*) > 0;
    end if;

    if plain then
        return query select unnest(ids), false, false, unnest(backlogs);
        return;
    end if;

    duplicates := array_fill(false, array[size]);
    replacements := array_fill(false, array[size]);
    backlogs := coalesce(backlogs, array_fill(null::jsonb, array[size]));
    -- Keys are taken in the order of their digests, as everywhere: transactions that want the same
    -- keys wait and never deadlock.
    for one in
        select g.*
        from unnest(kinds, args, throttles, keys, priorities, run_ats, max_attempts, unique_keys, unique_fors, costs, traceparents,
                timeouts, debounces, debounce_maxes, replaces, joins, extras) with ordinality
            as g(kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost, traceparent,
                timeout, debounce, debounce_max, replace, group_id, options, n)
        where g.unique_key is not null
        order by flyball.unique_digest(owner, g.kind, g.unique_key), g.n
    loop
        result := flyball.admit('enqueue_many', one.kind, one.args, one.throttle, one.key, one.priority, one.run_at,
            one.max_attempts, one.unique_key, flyball.span(one.unique_for), one.cost, one.traceparent, flyball.span(one.timeout),
            flyball.span(one.debounce), flyball.span(one.debounce_max), one.replace, owner, sender_module,
            admitted, one.group_id, one.options);
        ids[one.n] := result.job_id;
        duplicates[one.n] := result.duplicate;
        replacements[one.n] := result.replaced;
        backlogs[one.n] := result.backlog;
    end loop;
    if messages then
        perform flyball.record_pending('enqueue_many', owner_tenant, m.ids, m.urgent)
        from (
            select array_agg(g.id) as ids, bool_and(g.priority = 0) as urgent
            from unnest(ids, kinds, priorities, duplicates) as g(id, kind, priority, duplicate)
            where g.kind = 'notification' and not g.duplicate
        ) m
        where m.ids is not null;
    end if;
    return query select * from unnest(ids, duplicates, replacements, backlogs);
end $$;

revoke execute on function flyball.message_key from public;

-- As in 0010, but a key that the message names counts, unless the argument names another.
create or replace function flyball.notify(pool text, message jsonb, key text default '', run_at timestamptz default null,
    unique_key text default null, out id bigint, out status text, out held_until timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if message is null or jsonb_typeof(message) <> 'object' then
        perform flyball.refuse('notify', 'message', 'must be a JSON object');
    end if;
    select m.id, m.status, m.held_until into id, status, held_until
    from flyball.notify_many(jsonb_build_array(message || jsonb_build_object('pool', pool)
        || jsonb_strip_nulls(jsonb_build_object('key', nullif(key, ''), 'run_at', run_at, 'unique_key', unique_key)))) m;
end $$;

-- === Refusals ====================================================================================

-- As in 0019, but a priority or a number of attempts of any size is refused by its name, and throttles that
-- limit the requests of an API are refused as those of the HTTP API are, see 0038.
create or replace function flyball.enqueue(
    kind text,
    args jsonb default '{}',
    throttle text default 'default',
    key text default '',
    priority int default 1,
    run_at timestamptz default null,
    max_attempts int default 10,
    unique_key text default null,
    unique_for interval default null,
    cost float8 default 1,
    traceparent text default null,
    timeout interval default null,
    debounce interval default null,
    debounce_max interval default null,
    replace boolean default false,
    "group" bigint default null,
    tags text[] default null,
    after bigint[] default null,
    after_failure text default null,
    on_complete text default null,
    on_dead text default null,
    webhook_secret text default null,
    retry jsonb default null,
    out job_id bigint,
    out duplicate boolean,
    out replaced boolean,
    out backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    issue       record;
    must_notify boolean;
    options     jsonb;
begin
    if kind = 'notification' and priority = 1 then
        priority := flyball.notification_priority(args);
    end if;

    if run_at is null and unique_key is null and unique_for is null and debounce is null and debounce_max is null and not replace
        and "group" is null and tags is null and after is null and after_failure is null
        and on_complete is null and on_dead is null and webhook_secret is null and retry is null
        -- A number that does not fit into its column would fail before the condition below refuses it.
        and priority between 0 and 3 and max_attempts between 1 and 1000
    then
        -- The whole of a plain job. It inserts nothing if `check_job` might refuse, if today's
        -- partition is missing, or if the throttle limits its backlog or its costs. The length of
        -- the arguments' text is measured: their size as jsonb says little, because 1e100000 takes
        -- as much as 1.5, and a value from a table may be compressed.
        with inserted as (
            insert into flyball.job
                (id, lane_id, priority, max_attempts, cost, kind, throttle, key, tenant, args, traceparent, timeout_s)
            select flyball.next_id(), flyball.lane_of(throttle, key), priority, max_attempts, cost, kind, throttle, key,
                flyball.caller_tenant(), args, traceparent, extract(epoch from timeout)
            from flyball.kind k
            where k.name = kind and case when k.public then true else flyball.may_enqueue(kind) end
                and octet_length(args::text) <= 262144
                and throttle ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(throttle) <= 128 and left(throttle, 4) <> 'api:' and left(throttle, 6) <> 'limit:'
                and left(throttle, 7) not in ('notify:', 'tenant:') and (kind <> 'notification' or flyball.caller_tenant() = '' and not flyball.needs_plan(kind, args))
                and not flyball.is_of_admission(throttle)
                and octet_length(key) <= 512
                and cost > 0 and cost <= 1
                and (traceparent is null or flyball.is_traceparent(traceparent))
                and (timeout is null or timeout >= interval '1 microsecond' and timeout <= interval '366 days')
                and to_regclass('flyball.job_' || flyball.day_of(now())) is not null
                and not exists (select from flyball.knobs b where b.throttle = throttle and b.fields ?| array['max_backlog', 'max_cost'])
            returning id, lane_id
        )
        insert into flyball.ready as r (lane_id, priority, job_id, cost, holds_unique)
        select inserted.lane_id, priority, inserted.id, cost, false from inserted
        returning r.job_id, false, false, (select d.asleep from flyball.wakeup d) is distinct from false
        into job_id, duplicate, replaced, must_notify;
        if must_notify then
            perform pg_notify('flyball', flyball.lane_of(throttle, key)::text);
            return;
        elsif must_notify is not null then
            return;
        end if;
    end if;

    select * into issue from flyball.check_job(kind, args, throttle, key, priority, max_attempts, unique_key, unique_for, cost,
        run_at, traceparent, timeout, debounce, debounce_max, replace);
    if issue.field is null then
        options := flyball.options_of(jsonb_build_object('tags', tags, 'after', after, 'after_failure', after_failure,
            'on_complete', on_complete, 'on_dead', on_dead, 'webhook_secret', webhook_secret,
            'retry', retry));
        select o.field, o.message, '22023' as code into issue from flyball.check_options(options) o;
    end if;
    if issue.field is null and options ? 'after' then
        select 'after' as field, a.message, '22023' as code into issue
        from flyball.after_problem(flyball.absent_of(flyball.after_of(options), flyball.caller_tenant()),
            cardinality(flyball.after_of(options)) > 0 and (replace or debounce is not null)) as a(message)
        where a.message is not null;
    end if;
    if issue.field is null and options ?| array['on_complete', 'on_dead'] then
        select w.field, w.message, w.code into issue
        from flyball.check_webhooks(options, replace or debounce is not null, flyball.is_operator()) w;
    end if;
    if issue.field is null and "group" is not null then
        select 'group' as field, g.message, '22023' as code into issue
        from flyball.check_group("group", flyball.unique_owner(), replace or debounce is not null) as g(message)
        where g.message is not null;
    end if;
    if issue.field is not null then
        raise exception using
            errcode = issue.code,
            message = format('enqueue: %s: %s', issue.field, issue.message),
            column = issue.field,
            hint = 'Nothing was enqueued.';
    end if;
    select a.job_id, a.duplicate, a.replaced, a.backlog into job_id, duplicate, replaced, backlog
    from flyball.admit('enqueue', kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost,
        traceparent, timeout, debounce, debounce_max, replace, flyball.unique_owner(), flyball.caller_module(), group_id => "group",
        options => options) a;
    if flyball.needs_plan(kind, args) then
        perform flyball.refuse_capped(flyball.caller_tenant(), array[job_id], array[kind], array[args], array[coalesce(now() + debounce, run_at)],
            array[duplicate]);
    end if;
end $$;

-- As in 0019, but an array of arrays is refused.
create or replace function flyball.enqueue_rows(
    kinds text[], args jsonb[], throttles text[], keys text[], priorities int[], run_ats timestamptz[], max_attempts int[],
    unique_keys text[], unique_fors float8[], costs float8[], traceparents text[], timeouts float8[],
    debounces float8[], debounce_maxes float8[], replaces boolean[], groups bigint[] default null,
    options jsonb[] default null)
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ids       bigint[];
    repeats   boolean[];
    replaced  boolean[];
    backlogs  jsonb[];
begin
    if 1 < any (array[array_ndims(kinds), array_ndims(args), array_ndims(throttles), array_ndims(keys), array_ndims(priorities),
        array_ndims(run_ats), array_ndims(max_attempts), array_ndims(unique_keys), array_ndims(unique_fors), array_ndims(costs),
        array_ndims(traceparents), array_ndims(timeouts), array_ndims(debounces), array_ndims(debounce_maxes), array_ndims(replaces),
        array_ndims(groups), array_ndims(options)])
    then
        raise exception using errcode = '22023', column = '', hint = 'Nothing was enqueued.',
            message = 'enqueue_rows: every argument must be an array of one dimension, with one element for each job';
    end if;
    if kinds is null or 'notification' <> all (kinds) then
        return query select * from flyball.enqueue_rows_as(flyball.unique_owner(), flyball.is_operator(), kinds, args, throttles, keys, priorities,
            run_ats, max_attempts, unique_keys, unique_fors, costs, traceparents, timeouts, debounces, debounce_maxes, replaces,
            flyball.caller_module(), false, groups, options);
        return;
    end if;
    select array_agg(e.job_id order by e.n), array_agg(e.duplicate order by e.n), array_agg(e.replaced order by e.n), array_agg(e.backlog order by e.n)
    into ids, repeats, replaced, backlogs
    from flyball.enqueue_rows_as(flyball.unique_owner(), flyball.is_operator(), kinds, args, throttles, keys, priorities,
        run_ats, max_attempts, unique_keys, unique_fors, costs, traceparents, timeouts, debounces, debounce_maxes, replaces,
        flyball.caller_module(), false, groups, options) with ordinality as e(job_id, duplicate, replaced, backlog, n);
    perform flyball.refuse_capped(flyball.caller_tenant(), ids, kinds, args, run_ats, repeats);
    return query select * from unnest(ids, repeats, replaced, backlogs);
end $$;

-- An array of arrays of tags, and a text "infinity" where a number belongs, are refused by their names; the
-- bodies are otherwise as they stand.
do $do$
declare
    change record;
    body   text;
begin
    for change in
        select *
        from (values
            ('read_search', 1, 'elsif cardinality\(tags\) not between', 'elsif array_ndims(tags) > 1 then
        perform flyball.refuse(what, ''tags'', ''must be an array of one dimension, with 1 to 16 texts'');
    elsif cardinality(tags) not between'),
            ('enqueue_many', 2, 'exception when data_exception then(\s+is_valid := false)',
                'exception when data_exception or feature_not_supported then\1')
        ) as c(name, times, was, becomes)
    loop
        body := pg_get_functiondef(('flyball.' || change.name)::regproc);
        assert regexp_count(body, change.was) = change.times, change.name || ' has another body';
        execute regexp_replace(body, change.was, change.becomes, 'g');
    end loop;
end $do$;

-- === Requests that may be repeated ================================================================

-- Enqueues one job as flyball.enqueue_rows_as does, unless the request is a repeat: `digest` is that of the
-- sender and its idempotency key, `body` that of the body. `answer` is that of flyball.find_request; for
-- `replayed` the job is the one of the first request.
create function flyball.enqueue_once(
    digest bytea, body bytea, owner text, module text,
    kinds text[], args jsonb[], throttles text[], keys text[], priorities int[], run_ats timestamptz[], max_attempts int[],
    unique_keys text[], unique_fors float8[], costs float8[], traceparents text[], timeouts float8[],
    debounces float8[], debounce_maxes float8[], replaces boolean[], groups bigint[], options jsonb[],
    out answer text, out job_id bigint, out duplicate boolean, out replaced boolean, out backlog jsonb)
language plpgsql volatile as $$
#variable_conflict use_variable
begin
    select f.answer, f.job_id into answer, job_id from flyball.find_request(digest, body, true, true) f;
    if answer <> 'new' then
        return;
    end if;
    select e.job_id, e.duplicate, e.replaced, e.backlog into job_id, duplicate, replaced, backlog
    from flyball.enqueue_rows_as(owner, true, kinds, args, throttles, keys, priorities, run_ats, max_attempts, unique_keys, unique_fors,
        costs, traceparents, timeouts, debounces, debounce_maxes, replaces, module, false, groups, options) e;
    perform flyball.remember_request(digest, body, job_id, null);
end $$;

revoke execute on function flyball.enqueue_once from public;

-- === Complaints of tenants =======================================================================

-- What became of the messages of each tenant, by the hour in which it became known.
create table flyball.tenant_tally (
    tenant       text        not null,
    hour         timestamptz not null,
    accepted     bigint      not null default 0,
    bounced      bigint      not null default 0,
    complained   bigint      not null default 0,
    unsubscribed bigint      not null default 0,
    primary key (tenant, hour)
) with (fillfactor = 50);
create index tenant_tally_hour on flyball.tenant_tally (hour);
