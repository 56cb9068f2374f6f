-- Chapter 22: changes of waiting jobs, and retries of one job.

-- === Retries of one job ===========================================================================

-- The waits of this job after failed attempts, instead of those of its kind, as `{"delay_s": 5,
-- "factor": 2, "max_delay_s": 600}`; null for those of its kind. Workers compute each wait.
alter table flyball.job add column retry jsonb;
alter table flyball.cron add column retry jsonb;

-- The waits among the options of a job, with what is not given; null for none.
create function flyball.retry_of(options jsonb) returns jsonb
language sql immutable parallel safe
return case when jsonb_typeof(options -> 'retry') = 'object' then (
    select jsonb_build_object('delay_s', trim_scale(r.delay_s), 'factor', coalesce(trim_scale(r.factor), 2),
        'max_delay_s', trim_scale(coalesce(r.max_delay_s, greatest(r.delay_s, 3600))))
    from jsonb_to_record(options -> 'retry') as r(delay_s numeric, factor numeric, max_delay_s numeric)
) end;

-- Returns all that is wrong with the waits of a job, or null.
create function flyball.retry_problem(retry jsonb) returns text
language sql immutable parallel safe
return case
    when retry is null or jsonb_typeof(retry) = 'null' then null
    when jsonb_typeof(retry) <> 'object'
        then format('must be an object such as {"delay_s": 5, "factor": 2, "max_delay_s": 600}, not %s', jsonb_typeof(retry))
    else (
        select string_agg(p.problem, '; ' order by p.n)
        from (
            select 0 as n, 'needs a delay_s: the longest wait after the first failure, 0.001 to 31622400 seconds (366 days)' as problem
            where coalesce(jsonb_typeof(retry -> 'delay_s'), 'null') = 'null'
            union all
            select b.n, format('%s is %s; allowed are %s', f.name,
                left(case when jsonb_typeof(f.value) = 'number' then trim_scale(f.value::numeric)::text else f.value::text end, 40), b.allowed)
            from jsonb_each(retry) as f(name, value)
            join (values (1, 'delay_s', 0.001, 31622400, '0.001 to 31622400 seconds (366 days)'),
                (2, 'factor', 1, 100, '1 (always the same) to 100'),
                (3, 'max_delay_s', 0.001, 31622400, '0.001 to 31622400 seconds (366 days)')) as b(n, name, low, high, allowed) on b.name = f.name
            where jsonb_typeof(f.value) <> 'null'
                and case when jsonb_typeof(f.value) = 'number' then f.value::numeric not between b.low and b.high else true end
            union all
            select 4, format('has %s; allowed are delay_s, factor, max_delay_s', to_json(left(f.name, 64)))
            from jsonb_object_keys(retry) as f(name) where f.name not in ('delay_s', 'factor', 'max_delay_s')
        ) p
    ) end;

-- The fields of a job that have no column of their own in enqueue_rows; null for none.
create or replace function flyball.options_of(job jsonb) returns jsonb
language sql immutable parallel safe
return nullif(jsonb_strip_nulls(jsonb_build_object('tags', job -> 'tags',
    'after', job -> 'after',
    'after_failure', job -> 'after_failure',
    'on_complete', job -> 'on_complete',
    'on_dead', job -> 'on_dead',
    'webhook_secret', job -> 'webhook_secret',
    'retry', job -> 'retry')), '{}');

-- Returns what is wrong with the options of a job, or nothing.
create or replace function flyball.check_options(options jsonb, out field text, out message text)
language plpgsql immutable as $$
#variable_conflict use_variable
declare
    tag  jsonb;
    ids  int;
begin
    if options is null or options in ('{}', 'null') then
        return;
    elsif jsonb_typeof(options) <> 'object' then
        field := 'options';
        message := format('must be an object, not %s', jsonb_typeof(options));
        return;
    end if;
    select format('%s is not an option of a job; allowed are tags, after, after_failure, on_complete, on_dead, webhook_secret, retry', to_json(left(o.name, 64))), 'options' into message, field
    from jsonb_object_keys(options) as o(name)
    where o.name not in ('tags', 'after', 'after_failure', 'on_complete', 'on_dead', 'webhook_secret', 'retry')
    limit 1;
    if found then
        return;
    end if;

    field := 'tags';
    if jsonb_typeof(options -> 'tags') not in ('array', 'null') then
        message := format('must be a list of texts, not %s', jsonb_typeof(options -> 'tags'));
        return;
    elsif jsonb_typeof(options -> 'tags') = 'array' then
        if jsonb_array_length(options -> 'tags') > 16 then
            message := format('has %s elements; at most 16 are allowed', jsonb_array_length(options -> 'tags'));
            return;
        end if;
        for tag in select t.value from jsonb_array_elements(options -> 'tags') t loop
            message := case
                when jsonb_typeof(tag) <> 'string' then format('has an element that is a %s; allowed are texts of 1 to 64 bytes', jsonb_typeof(tag))
                when octet_length(tag #>> '{}') not between 1 and 64
                    then format('has an element of %s bytes; allowed are texts of 1 to 64 bytes', octet_length(tag #>> '{}'))
                when tag #>> '{}' ~ '[\u0001-\u001f\u007f-\u009f]' then format('%s has a control character, which no tag may have', tag) end;
            if message is not null then
                return;
            end if;
        end loop;
    end if;

    field := 'after';
    if jsonb_typeof(options -> 'after') not in ('array', 'null') then
        message := format('must be a list of job numbers, not %s', jsonb_typeof(options -> 'after'));
        return;
    elsif jsonb_typeof(options -> 'after') = 'array' then
        ids := jsonb_array_length(options -> 'after');
        message := case when ids > 100 then format('has %s elements; at most 100 are allowed', ids) else (
            select format('has the element %s; allowed are the numbers of jobs', left(e.value::text, 40))
            from jsonb_array_elements(options -> 'after') e
            where case when jsonb_typeof(e.value) = 'number' then e.value::numeric <> trunc(e.value::numeric)
                or e.value::numeric not between 1 and 9007199254740991 else true end
            limit 1
        ) end;
        if message is not null then
            return;
        end if;
    end if;

    field := 'after_failure';
    if jsonb_typeof(options -> 'after_failure') <> 'null' then
        message := case
            when options -> 'after_failure' not in ('"cancel"', '"run"')
                then format('is %s; allowed are "cancel" and "run"', left((options -> 'after_failure')::text, 40))
            when coalesce(ids, 0) = 0 then 'needs an after' end;
        if message is not null then
            return;
        end if;
    end if;

    foreach field in array array['on_complete', 'on_dead'] loop
        message := case
            when jsonb_typeof(options -> field) = 'null' or not options ? field then null
            when jsonb_typeof(options -> field) <> 'string' then format('must be a URL, not %s', jsonb_typeof(options -> field))
            when octet_length(options ->> field) > 2048 then format('is %s bytes long; at most 2048 are allowed', octet_length(options ->> field))
            when options ->> field !~* '^https?://[!-"$-.0->A-[\]-~]+([/?#][!-~]*)?$'
                then 'must be a URL in ASCII that begins with https:// or http://, has a host, and has no blanks and no name or password' end;
        if message is not null then
            return;
        end if;
    end loop;

    field := 'webhook_secret';
    if options ? field and jsonb_typeof(options -> field) <> 'null' then
        message := case
            -- The secret itself may be here by mistake, so it is not shown.
            when jsonb_typeof(options -> field) <> 'string' or options ->> field !~ '^[A-Za-z0-9_]{1,64}$' or options ->> field like 'whsec\_%'
                then 'must be the name of a secret, 1 to 64 letters, digits or underscores: the secret itself is in the variable FLYBALL_WEBHOOK_SECRET_<NAME> of the workers'
            when coalesce(options ->> 'on_complete', options ->> 'on_dead') is null then 'needs an on_complete or an on_dead' end;
        if message is not null then
            return;
        end if;
    end if;

    field := 'retry';
    message := flyball.retry_problem(options -> 'retry');
    if message is not null then
        return;
    end if;

    field := null;
end $$;

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
        after_failure = job.after_failure, on_complete = job.on_complete, on_dead = job.on_dead, webhook_secret = job.webhook_secret,
        retry = job.retry
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
        job.retry := flyball.retry_of(options);
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
             after, after_failure, on_complete, on_dead, webhook_secret, retry)
        values (job_id, lane, priority, max_attempts, cost, due_at, kind, throttle, key, owner_tenant, digest, until, args,
            traceparent, extract(epoch from timeout), module, waiting_lane, group_id,
            flyball.tags_of(options), flyball.after_of(options), options ->> 'after_failure',
            options ->> 'on_complete', options ->> 'on_dead', options ->> 'webhook_secret', flyball.retry_of(options));
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

-- === Enqueue ======================================================================================

alter function flyball.enqueue rename to enqueue_before_22;

-- Enqueues one job in the caller's own transaction. It runs with the rights of the schema's owner,
-- so a role needs only `grant usage on schema flyball`: it can enqueue, and neither read nor change
-- what others have enqueued. The fast path is for jobs that every role may enqueue; all others are
-- checked in full. A message of the default priority gets the priority in its arguments.
create function flyball.enqueue(
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
                and throttle ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(throttle) <= 128 and left(throttle, 4) <> 'api:'
                and left(throttle, 7) not in ('notify:', 'tenant:') and (kind <> 'notification' or flyball.caller_tenant() = '' and not flyball.needs_plan(kind, args))
                and not flyball.is_of_admission(throttle)
                and octet_length(key) <= 512
                and priority between 0 and 3
                and max_attempts between 1 and 1000
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

-- Enqueues validated jobs for an owner of unique keys, which names the tenant of the jobs as well:
-- the functions below determine the caller; the HTTP API knows its tokens. It runs with the rights
-- of its caller, so calling it directly gains nothing.
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
                      and (trusted or left(throttles[1], 4) <> 'api:' and left(throttles[1], 7) not in ('notify:', 'tenant:'))
                 else true = all (select t ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(t) <= 128 and not flyball.is_of_admission(t)
                                      and (trusted or left(t, 4) <> 'api:' and left(t, 7) not in ('notify:', 'tenant:'))
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
    if messages then
        perform flyball.record_pending('enqueue_many', owner_tenant, m.ids, m.urgent)
        from (
            select array_agg(g.id) as ids, bool_and(g.priority = 0) as urgent
            from unnest(ids, kinds, priorities, unique_keys) as g(id, kind, priority, unique_key)
            where g.kind = 'notification' and g.unique_key is null
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
            flyball.tags_of(g.options), flyball.after_of(g.options), g.options ->> 'after_failure',
            g.options ->> 'on_complete', g.options ->> 'on_dead', g.options ->> 'webhook_secret',
            flyball.retry_of(g.options)
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
    return query select * from unnest(ids, duplicates, replacements, backlogs);
end $$;

-- Enqueues many jobs, all or none, in the caller's own transaction; returns one row per job, in
-- order.
create or replace function flyball.enqueue_many(jobs jsonb)
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    allowed           constant text[] := array['kind', 'args', 'throttle', 'key', 'priority', 'run_at', 'max_attempts', 'unique_key',
        'unique_for', 'cost', 'traceparent', 'timeout', 'debounce', 'debounce_max', 'replace', 'group',
        'tags', 'after', 'after_failure', 'on_complete', 'on_dead', 'webhook_secret', 'retry'];
    -- The fields with a column of their own; the others are the options of the job.
    plain_fields      constant text[] := allowed[:16];
    extra_fields      constant text[] := allowed[17:];
    duration_fields   constant text[] := array['unique_for', 'timeout', 'debounce', 'debounce_max'];
    is_valid          boolean := false;
    c                 record;
    j                 jsonb;
    at                int := -1;
    name              text;
    value             jsonb;
    type              text;
    expected_type     text;
    -- Timestamps as JSON writes a timestamptz, as Postgres prints it, and as RFC 3339 says;
    -- "yesterday" and "now" are not accepted.
    timestamp_pattern constant text := '^\d{4,6}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)? ?([Zz]|[+-]\d\d(:?\d\d)?)?$';
    out_of_range      text;
    problem           text;
begin
    if jobs is null or jsonb_typeof(jobs) <> 'array' then
        raise exception using errcode = '22023', column = '',
            message = 'enqueue_many: jobs: must be a JSON array of jobs', hint = 'Nothing was enqueued.';
    elsif jsonb_array_length(jobs) > 10000 then
        raise exception using errcode = '22023', column = '',
            message = format('enqueue_many: jobs: has %s elements; at most 10000 are allowed', jsonb_array_length(jobs)),
            hint = 'Nothing was enqueued.';
    elsif jsonb_array_length(jobs) = 0 then
        return;
    end if;

    -- All elements at once. Type errors are not reported yet at this point.
    begin
        select bool_and(
                a.j - allowed = '{}'
                and coalesce(jsonb_typeof(a.j -> 'kind') = 'string', false)
                and coalesce(jsonb_typeof(a.j -> 'throttle') = 'string', true)
                and coalesce(jsonb_typeof(a.j -> 'key') = 'string', true)
                and coalesce(jsonb_typeof(a.j -> 'priority') = 'number' and f.priority = trunc(f.priority), true)
                and coalesce(jsonb_typeof(a.j -> 'max_attempts') = 'number' and f.max_attempts = trunc(f.max_attempts), true)
                and coalesce(jsonb_typeof(a.j -> 'cost') = 'number', true)
                and coalesce(jsonb_typeof(a.j -> 'replace') = 'boolean', true)
                and coalesce(jsonb_typeof(a.j -> 'run_at') = 'null' or a.j ->> 'run_at' ~ timestamp_pattern, true)
                and coalesce(jsonb_typeof(a.j -> 'unique_key') in ('string', 'null'), true)
                and coalesce(jsonb_typeof(a.j -> 'traceparent') in ('string', 'null'), true)
                and coalesce(jsonb_typeof(a.j -> 'group') = 'null'
                    or jsonb_typeof(a.j -> 'group') = 'number' and f."group" = trunc(f."group") and f."group" between 1 and 1e15, true)
            ) as is_valid,
            array_agg(f.kind) as kinds, array_agg(coalesce(a.j -> 'args', '{}')) as args,
            array_agg(coalesce(f.throttle, 'default')) as throttles, array_agg(coalesce(f.key, '')) as keys,
            array_agg(coalesce(f.priority::int, 1)) as priorities, array_agg(f.run_at) as run_ats,
            array_agg(coalesce(f.max_attempts::int, 10)) as max_attempts, array_agg(f.unique_key) as unique_keys,
            array_agg(flyball.seconds_of(f.unique_for)) as unique_fors, array_agg(coalesce(f.cost, 1)) as costs,
            array_agg(f.traceparent) as traceparents, array_agg(flyball.seconds_of(f.timeout)) as timeouts,
            array_agg(flyball.seconds_of(f.debounce)) as debounces, array_agg(flyball.seconds_of(f.debounce_max)) as debounce_maxes,
            array_agg(coalesce(f.replace, false)) as replaces, array_agg(f."group"::bigint) as groups,
            array_agg(case when a.j ?| extra_fields then a.j - plain_fields end) as options
        into c
        from jsonb_array_elements(jobs) as a(j)
        cross join lateral jsonb_to_record(a.j) as f(kind text, throttle text, key text, priority numeric,
            run_at timestamptz, max_attempts numeric, unique_key text, unique_for jsonb, cost float8, traceparent text,
            timeout jsonb, debounce jsonb, debounce_max jsonb, replace boolean, "group" numeric);
        is_valid := c.is_valid and 1e9 >= all (array_remove(c.unique_fors || c.timeouts || c.debounces || c.debounce_maxes, null))
            and -1e9 <= all (array_remove(c.unique_fors || c.timeouts || c.debounces || c.debounce_maxes, null));
    exception when data_exception then
        is_valid := false;
    end;

    if not is_valid then
        for j in select e from jsonb_array_elements(jobs) as e loop
            at := at + 1;
            problem := null;
            name := '';
            if jsonb_typeof(j) <> 'object' then
                problem := 'must be an object';
            else
                for name, value in select e.key, e.value from jsonb_each(j) as e loop
                    type := jsonb_typeof(value);
                    out_of_range := format('is out of range; allowed is more than 0 and at most %s',
                        case name when 'debounce_max' then '3660 days (316224000 seconds)' else '366 days (31622400 seconds)' end);
                    expected_type := case
                        when name in ('kind', 'throttle', 'key', 'unique_key', 'run_at', 'traceparent') then 'string'
                        when name in ('priority', 'max_attempts', 'cost', 'group') then 'number'
                        when name = 'replace' then 'boolean'
                        else null end;
                    if not name = any(allowed) then
                        problem := format('is not a field of a job; allowed are %s', array_to_string(allowed, ', '));
                    elsif type = 'null' and (name in ('run_at', 'unique_key', 'traceparent', 'group') or name = any(duration_fields)) then
                        continue;
                    elsif expected_type is not null and type <> expected_type then
                        problem := format('must be a %s, not %s', expected_type, type);
                    elsif name in ('priority', 'max_attempts') and (value::numeric <> trunc(value::numeric) or abs(value::numeric) > 1e9) then
                        problem := format('must be a whole number, not %s', left(value::text, 40));
                    elsif name = 'group' and (value::numeric <> trunc(value::numeric) or value::numeric not between 1 and 1e15) then
                        problem := format('must be the number of a group, not %s', left(value::text, 40));
                    elsif name = 'cost' and value::numeric <> 0 and abs(value::numeric) not between 1e-300 and 1e300 then
                        problem := 'is out of range; allowed is more than 0 and at most 1e9 tokens';
                    elsif name = any(duration_fields) and type = 'number' and value::numeric <> 0 and abs(value::numeric) not between 1e-300 and 1e9 then
                        problem := out_of_range;
                    elsif name = any(duration_fields) and type not in ('number', 'string') then
                        problem := format('must be seconds or an interval text, not %s', type);
                    elsif name = 'run_at' or name = any(duration_fields) then
                        begin
                            if name = 'run_at' then
                                problem := case when (j ->> name)::timestamptz is null or j ->> name !~ timestamp_pattern
                                    then format('"%s" is not a time; write it like 2026-11-20T14:00:00Z', left(j ->> name, 64)) end;
                            elsif abs(flyball.seconds_of(value)) > 1e9 then
                                problem := out_of_range;
                            end if;
                        exception when data_exception then
                            problem := case name
                                when 'run_at' then format('"%s" is not a time; write it like 2026-11-20T14:00:00Z', left(j ->> name, 64))
                                else format('"%s" is not a span; write seconds as a number, or a text like "10 minutes"', j ->> name) end;
                        end;
                    end if;
                    exit when problem is not null;
                end loop;
            end if;
            if problem is null and j -> 'kind' is null then
                name := 'kind';
                problem := 'must name what runs the job, for instance ''http''';
            end if;
            if problem is not null then
                perform flyball.refuse_element(at, name, problem);
            end if;
        end loop;
        raise exception using errcode = '22023', column = '', message = 'enqueue_many: jobs: cannot be read',
            hint = 'Nothing was enqueued.';
    end if;

    return query select * from flyball.enqueue_rows(c.kinds, c.args, c.throttles, c.keys, c.priorities, c.run_ats, c.max_attempts,
        c.unique_keys, c.unique_fors, c.costs, c.traceparents, c.timeouts, c.debounces, c.debounce_maxes, c.replaces,
        case when array_remove(c.groups, null) <> '{}' then c.groups end, c.options);
end $$;

-- === Schedules ====================================================================================

alter function flyball.schedule rename to schedule_before_22;

-- Makes a schedule or replaces the one of this name; true if it is new. The same expression and
-- time zone keep the next occurrence, so a program may declare its schedules at each start. It runs
-- with the rights of its caller, which needs rights on flyball.cron.
create function flyball.schedule(
    name text,
    expression text,
    kind text,
    args jsonb default '{}',
    time_zone text default 'UTC',
    throttle text default 'default',
    key text default '',
    priority int default 1,
    max_attempts int default 10,
    cost float8 default 1,
    timeout interval default null,
    catch_up text default 'one',
    overlap text default 'skip',
    paused boolean default null,
    tags text[] default null,
    retry jsonb default null)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    issue  record;
    is_new boolean;
begin
    select c.field, c.message, '22023' as code into issue from flyball.check_schedule(name, expression, time_zone, catch_up, overlap) c;
    if issue.field is null then
        select * into issue from flyball.check_job(
            kind => kind, args => args, throttle => throttle, key => key, priority => priority, max_attempts => max_attempts,
            unique_key => null::text, unique_for => null::interval, cost => cost, run_at => null::timestamptz,
            timeout => timeout);
    end if;
    if issue.field is null and (tags is not null or retry is not null) then
        select o.field, o.message, '22023' as code into issue from flyball.check_options(jsonb_build_object('tags', tags, 'retry', retry)) o;
    end if;
    if issue.field is not null then
        raise exception using
            errcode = coalesce(issue.code, '22023'),
            message = format('schedule: %s: %s', issue.field, issue.message),
            column = issue.field,
            hint = 'No schedule was changed.';
    end if;

    insert into flyball.cron as c
        (name, expression, time_zone, kind, args, throttle, key, priority, max_attempts, cost, timeout_s, catch_up, overlap, paused,
         tags, retry)
    values
        (name, expression, time_zone, kind, args, throttle, key, priority, max_attempts, cost, extract(epoch from timeout), catch_up,
         overlap, coalesce(paused, false), flyball.tags_of(jsonb_build_object('tags', tags)),
         flyball.retry_of(jsonb_build_object('retry', retry)))
    on conflict on constraint cron_pkey do update
        set expression = excluded.expression, time_zone = excluded.time_zone, kind = excluded.kind, args = excluded.args,
            throttle = excluded.throttle, key = excluded.key, priority = excluded.priority, max_attempts = excluded.max_attempts,
            cost = excluded.cost, timeout_s = excluded.timeout_s, tags = excluded.tags, retry = excluded.retry, catch_up = excluded.catch_up, overlap = excluded.overlap,
            paused = coalesce(paused, c.paused),
            -- A schedule that was paused or had a problem starts afresh; one that only gets other
            -- arguments keeps its next occurrence.
            next_at = case when (c.expression, c.time_zone, c.paused) = (excluded.expression, excluded.time_zone, coalesce(paused, c.paused))
                           then c.next_at end,
            problem = null, updated_at = clock_timestamp()
    returning c.xmax = 0 into is_new;
    return is_new;
end $$;

-- Makes the job of one occurrence; `at` null is "now, by hand". With overlap `skip` the unique key
-- is the schedule's, so an unfinished job blocks the next one. With `allow` it is the occurrence's,
-- kept for an hour, so moving a schedule back does not make its job twice. It makes only the job in
-- the table, and only for roles that may change the table.
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
    select * into c from flyball.cron k where k.name = name;
    if not found then
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

-- === Reads ========================================================================================

-- A job with all that the API shows of it, under the same names; null if there is no such job.
-- `waiting` says no more than flyball.why_job.
create or replace function flyball.show_job(job_id bigint, tenant text default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('show_job', show_job.tenant);
    shown jsonb;
begin
    select jsonb_build_object('id', j.id, 'kind', j.kind, 'throttle', j.throttle, 'key', j.key, 'tenant', j.tenant,
            'state', flyball.job_state(j.id), 'priority', j.priority,
            'attempt', coalesce(l.attempt, r.attempt, s.attempt, d.attempt, a.attempt, 0), 'max_attempts', j.max_attempts, 'cost', j.cost,
            'created_at', flyball.time_text(j.created_at), 'due_at', flyball.time_text(case when s.turn >= -4 or s.run_at > now() then s.run_at end),
            'last_error', coalesce(d.error, a.error),
            'group', j.group_id, 'tags', coalesce(to_jsonb(j.tags), '[]'), 'args', flyball.shown_args(j.kind, j.args), 'unique', j.unique_key is not null)
        || jsonb_build_object('worker', w.name, 'heartbeat_at', flyball.time_text(w.heartbeat_at),
            'heartbeat_age_s', extract(epoch from clock_timestamp() - w.heartbeat_at), 'started_at', flyball.time_text(l.claimed_at),
            'timeout_s', j.timeout_s, 'traceparent', j.traceparent,
            'cancelling', l.job_id is not null and exists (select from flyball.cancel x where x.job_id = j.id),
            'progress', (
                select jsonb_build_object('done', c.done, 'total', c.total,
                    'percent', case when c.total > 0 then least(c.done::float8 / c.total * 100, 100) end, 'note', c.note,
                    'at', flyball.time_text(c.updated_at))
                from flyball.checkpoint c where c.job_id = j.id),
            'after', coalesce(to_jsonb(j.after), '[]'), 'after_failure', j.after_failure, 'waits_for', coalesce(case when s.turn < -4 then (
                select jsonb_agg(jsonb_build_object('id', o.after_id, 'state', coalesce(flyball.job_state(o.after_id), 'cancelled'))
                    order by o.after_id)
                from flyball.job_after o where o.job_id = j.id) end, '[]'),
            'on_complete', j.on_complete, 'on_dead', j.on_dead, 'webhook_secret', j.webhook_secret, 'retry', j.retry,
            'result', flyball.job_result(j.id, reads))
    into shown
    from flyball.job j
    left join flyball.lease l on l.job_id = j.id
    left join flyball.ready r on r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.id
    left join flyball.scheduled s on s.job_id = j.id
    left join flyball.dead d on d.job_id = j.id
    left join flyball.worker w on w.id = l.worker_id
    left join lateral (
        select t.attempt, t.error from flyball.attempt t where t.job_id = j.id order by t.finished_at desc limit 1
    ) a on true
    where j.id = show_job.job_id and (reads is null or j.tenant = reads);
    return shown || jsonb_build_object('waiting', flyball.why_job(show_job.job_id, reads), 'attempts', (
        select coalesce(jsonb_agg(jsonb_build_object('attempt', a.attempt, 'outcome', a.outcome, 'worker', a.worker,
            'started_at', flyball.time_text(a.started_at), 'finished_at', flyball.time_text(a.finished_at), 'error', a.error)
            order by a.finished_at), '[]')
        from flyball.list_attempts(show_job.job_id, null, 100, reads) a));
end $$;

-- === One waiting job is changed ===================================================================

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

select flyball.replace_functions(22);
drop function flyball.replace_functions;

comment on function flyball.enqueue is 'Enqueues one job in the caller''s own transaction. See the README for the meaning of each argument.';
comment on function flyball.schedule is 'Makes or replaces a schedule: a job at each time of a cron expression. See docs/reference/sql.md.';
comment on function flyball.update is 'Changes fields of a waiting job.';
