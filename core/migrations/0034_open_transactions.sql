-- Chapter 34: open transactions of producers, for which nothing of the runner stands still.

-- === Requests to cancel ==========================================================================

-- As in 0004, but a request that is there already is left alone, so that an open transaction locks none
-- which the end of an attempt would delete.
create or replace function flyball.cancel(job_id bigint, by text default null, why text default '', tenant text default null) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
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

-- === Groups and webhooks ==========================================================================

-- As in 0027, but an open transaction that has locked what the callback needs, such as its unique_key,
-- puts the end of this group off, and of no other.
create or replace function flyball.settle_group(group_id bigint) returns boolean
language plpgsql as $$
#variable_conflict use_variable
declare
    g        flyball.job_group;
    enqueued record;
    callback bigint;
    patience constant text := current_setting('lock_timeout');
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
            perform set_config('lock_timeout', '100ms', true);
            select e.job_id, e.duplicate and not e.replaced as is_taken into enqueued
            from flyball.enqueue_json_rows(g.owner, g.module,
                jsonb_build_array(flyball.callback_with(g.callback, flyball.group_counts(g)))) e;
            if enqueued.is_taken then
                raise exception using errcode = '23505',
                    message = format('callback.unique_key: job %s holds it; the callback is enqueued when the key is free', enqueued.job_id);
            end if;
            callback := enqueued.job_id;
            perform set_config('lock_timeout', patience, true);
        end if;
    exception when data_exception or integrity_constraint_violation or raise_exception or configuration_limit_exceeded or insufficient_privilege
        or lock_not_available then
        update flyball.job_group u
        set callback_problem = case sqlstate
                when '55P03' then 'callback: an open transaction holds what it needs, such as its unique_key; it is enqueued when that is free'
                else left(sqlerrm, 1000) end,
            retry_at = clock_timestamp() + interval '10 seconds'
        where u.id = group_id;
        return false;
    end;
    update flyball.job_group u
    set ended_at = clock_timestamp(), callback_job_id = callback, callback_problem = null, retry_at = null
    where u.id = group_id;
    return true;
end $$;

-- As in 0019, but a call that would wait for an open transaction is put off, and no other.
create or replace function flyball.enqueue_calls(most integer default 500, out enqueued integer, out more boolean)
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    one    record;
    taken  bigint[];
    calls  bigint[];
    single bigint;
    patience constant text := current_setting('lock_timeout');
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
                perform set_config('lock_timeout', patience, true);
                delete from flyball.webhook_call c where c.id = any(calls);
                enqueued := enqueued + cardinality(calls);
                exit when single = 0;
            exception when data_exception or integrity_constraint_violation or raise_exception or configuration_limit_exceeded or insufficient_privilege
                or lock_not_available then
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

-- === Pending messages ============================================================================

-- As in 0024, but what another sweep has locked, which may be one within a transaction of a producer, is
-- left to it.
create or replace function flyball.sweep_pending_behind(tenant text, behind bigint, max_jobs integer, out removed bigint, out reached bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
declare
    gone bigint[];
    patience constant text := current_setting('lock_timeout');
begin
    with page as materialized (
        select q.ctid as tid, q.job_id from flyball.pending q where q.tenant = sweep_pending_behind.tenant and q.job_id > behind
        order by q.tenant, q.job_id limit max_jobs
    ),
    ended as materialized (
        select p.tid
        from page p
        left join lateral (
            select j.lane_id, j.admission_lane, j.priority from flyball.job j where j.id = p.job_id limit 1
        ) j on true
        where (select 1 from flyball.ready r
                where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = p.job_id limit 1) is null
            and (select 1 from flyball.lease l where l.job_id = p.job_id limit 1) is null
            and (select 1 from flyball.scheduled s where s.job_id = p.job_id limit 1) is null
            and (select 1 from flyball.digest_item i where i.job_id = p.job_id limit 1) is null
    ),
    deleted as (
        delete from flyball.pending
        where ctid = any(array(
            select q.ctid from flyball.pending q where q.ctid = any(array(select e.tid from ended e)) for update skip locked
        ))
        returning job_id
    )
    select array(select d.job_id from deleted d), case when count(*) = max_jobs then max(p.job_id) else 0 end into gone, reached from page p;
    removed := cardinality(gone);
    if removed > 0 then
        -- A bound that somebody else moves just now stays too high until the next count.
        update flyball.pending_count c
        set pending = greatest(c.pending - (select count(*) from unnest(gone) as g(job_id) where g.job_id <= c.counted_to), 0)
        where c.ctid = any(array(select q.ctid from flyball.pending_count q where q.tenant = sweep_pending_behind.tenant for update skip locked));
    end if;
    begin
        perform set_config('lock_timeout', '50ms', true);
        insert into flyball.tenant_drain as d (tenant, ended, swept_to) values (sweep_pending_behind.tenant, removed, reached)
        on conflict on constraint tenant_drain_pkey do update
        set ended = d.ended + removed, swept_to = reached, swept_at = clock_timestamp(),
            marked_at = case when d.marked_at < clock_timestamp() - interval '1 minute' then clock_timestamp() else d.marked_at end,
            marked = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.ended + removed else d.marked end,
            older_at = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.marked_at else d.older_at end,
            older = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.marked else d.older end;
        perform set_config('lock_timeout', patience, true);
    exception when lock_not_available then
        -- The figures of the other sweep do as well.
        null;
    end;
end $$;

-- === Messages in SQL ============================================================================

-- The time at which a message with these places in the queues of its module and its tenant can go, by all
-- windows and rates of both: the latest counts. Null while the tenant or everything is paused, because
-- nobody knows how long.
create function flyball.held_at(tenant text, place bigint, tenant_place bigint) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp set standard_conforming_strings = on set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    knobs jsonb;
begin
    if place is null then
        return null;
    end if;
    select k.fields into knobs
    from flyball.knobs k
    where k.throttle in (flyball.admission_throttle(held_at.tenant), 'notify:*')
    order by k.throttle = 'notify:*'
    limit 1;
    if exists (select from flyball.pause) or knobs ->> 'paused' = '1' or knobs ->> 'rps' ~ '^0+(\.0*)?$' then
        return null;
    end if;
    return now() + make_interval(secs => (
        -- At most a hundred years, which a time can express.
        select least(coalesce(max(floor((l.place - 1) / l.tokens) * l.span_s), 0), 3155760000)::float8
        from (
            select w.place, p.numbers[1]::numeric as tokens, p.numbers[2]::numeric as span_s
            from (values
                (held_at.place, knobs ->> 'key_windows'), (held_at.tenant_place, knobs ->> 'windows'),
                (held_at.place, (knobs ->> 'key_rps') || '/1'), (held_at.tenant_place, (knobs ->> 'rps') || '/1')) as w(place, windows)
            cross join lateral regexp_split_to_table(w.windows, '\s+') as t(word)
            cross join lateral (select regexp_match(t.word, '^(\d{1,9}(?:\.\d{1,9})?)/(\d{1,7}(?:\.\d{1,9})?)$') as numbers) p
            where p.numbers is not null
        ) l
        where l.tokens > 0
    ));
end $$;

revoke execute on function flyball.held_at from public;

-- As in 0010, with the times of the function above.
create or replace function flyball.held_until(job_id bigint) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_variable
begin
    return flyball.held_at(a.tenant, a.place, a.tenant_place) from flyball.admission_place(job_id) a;
end $$;

-- As in 0026, but the places of all new messages are read together, where one after another is
-- work that grows with the square of their number.
create or replace function flyball.notify_many(messages jsonb) returns table(id bigint, status text, held_until timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    job_fields constant text[] := array['pool', 'key', 'run_at', 'unique_key'];
    allowed    constant text[] := job_fields || array['channel', 'to', 'from', 'subject', 'body', 'html', 'template', 'data', 'priority',
        'category', 'provider', 'extra', 'valid_for_s', 'on_ambiguous', 'recipient', 'template_id', 'actor', 'digest', 'at_most', 'dedup_key'];
    one        record;
    name       text;
    field      text;
    problem    text;
    jobs       jsonb := '[]';
    ids        bigint[];
    duplicates boolean[];
    types      constant jsonb := (select r.digest_texts from flyball.recipient_rules r);
begin
    if messages is null or jsonb_typeof(messages) <> 'array' then
        raise exception using errcode = '22023', column = '',
            message = 'notify_many: messages: must be a JSON array of messages', hint = 'Nothing was enqueued.';
    end if;
    for one in select m.message, m.n from jsonb_array_elements(messages) with ordinality as m(message, n) loop
        problem := null;
        field := '';
        if jsonb_typeof(one.message) <> 'object' then
            problem := 'must be an object';
        else
            select k.key into name from jsonb_object_keys(one.message) as k(key) where k.key <> all (allowed) order by k.key limit 1;
            if name is not null then
                field := name;
                problem := format('is not a field of a message; allowed are %s', array_to_string(allowed, ', '));
            else
                -- What can be checked here is refused here; the rest ends as a dead letter with its reason.
                select f.key, format('must be %s, not %s', w.word, jsonb_typeof(f.value)) into field, problem
                from jsonb_each(one.message) as f
                cross join lateral (
                    select case when f.key in ('data', 'extra') then 'object' when f.key = 'valid_for_s' then 'number'
                        when f.key = 'template' then jsonb_typeof(f.value) else 'string' end as kind
                ) k
                cross join lateral (select case k.kind when 'string' then 'a text' when 'object' then 'an object' else 'a number' end as word) w
                where jsonb_typeof(f.value) not in ('null', k.kind)
                order by f.key limit 1;
            end if;
            if problem is not null then
                null;
            elsif coalesce(one.message ->> 'pool', '') = '' then
                field := 'pool';
                problem := 'must name the pool that sends the message';
            elsif coalesce(one.message ->> 'channel', '') not in ('sms', 'email', 'push', 'chat', 'webhook', 'inapp') then
                field := 'channel';
                problem := 'must be sms, email, push, chat, webhook or inapp';
            elsif coalesce(one.message ->> 'to', '') = '' and coalesce(one.message ->> 'recipient', '') = '' then
                field := 'to';
                problem := 'must be the address, or recipient the id of a recipient whose profile has it';
            -- In the inbox the id is the address.
            elsif coalesce(one.message ->> 'to', '') = '' and one.message ->> 'channel' <> 'inapp' and not exists (
                select from flyball.recipient r
                where r.tenant = flyball.caller_tenant() and r.id = one.message ->> 'recipient'
                    and r.profile -> 'addresses' ->> (one.message ->> 'channel') is not null
            ) then
                field := 'to';
                problem := case
                    when exists (select from flyball.recipient r where r.tenant = flyball.caller_tenant() and r.id = one.message ->> 'recipient')
                    then format('must be given, because the profile of the recipient has no address for %s', one.message ->> 'channel')
                    else 'must be given, because the recipient has no profile' end;
            elsif coalesce(one.message ->> 'priority', 'normal') not in ('critical', 'high', 'normal', 'low') then
                field := 'priority';
                problem := 'must be critical, high, normal or low';
            elsif coalesce((one.message ->> 'valid_for_s')::numeric, 1) not between 1 and 2592000 then
                field := 'valid_for_s';
                problem := 'must be a number of seconds from 1 to 2592000 (30 days)';
            elsif coalesce(one.message ->> 'on_ambiguous', 'retry') not in ('retry', 'dead') then
                field := 'on_ambiguous';
                problem := 'must be retry or dead';
            elsif not types ? (one.message ->> 'digest') then
                field := 'digest';
                problem := format('%s is not a known type of digest; allowed: %s', to_json(left(one.message ->> 'digest', 128)),
                    (select coalesce(string_agg(k.key, ', ' order by k.key), 'none') from jsonb_object_keys(types) as k(key)));
            end if;
        end if;
        if problem is not null then
            raise exception using errcode = '22023', column = field, table = (one.n - 1)::text, hint = 'Nothing was enqueued.',
                message = format('notify_many: messages[%s]%s: %s', one.n - 1, coalesce('.' || nullif(field, ''), ''), problem);
        end if;
    end loop;
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('kind', 'notification', 'throttle', m.message -> 'pool',
        'key', m.message -> 'key', 'run_at', m.message -> 'run_at', 'unique_key', m.message -> 'unique_key'))
        || jsonb_build_object('args', m.message - job_fields) order by m.n), '[]')
    into jobs
    from jsonb_array_elements(messages) with ordinality as m(message, n);
    select array_agg(e.job_id order by e.n), array_agg(e.duplicate order by e.n) into ids, duplicates
    from flyball.enqueue_many(jobs) with ordinality as e(job_id, duplicate, n);
    -- A statement of its own, so it sees the jobs that the first one enqueued. Those that were there
    -- before stand apart from the others.
    return query
    with created as materialized (
        select u.job_id, u.duplicate, u.n from unnest(ids, duplicates) with ordinality as u(job_id, duplicate, n)
    ),
    places as materialized (
        select p.job_id, p.place, p.tenant_place, p.tenant
        from flyball.admission_places(array(select c.job_id from created c where not c.duplicate)) p
        union all
        select p.job_id, p.place, p.tenant_place, p.tenant
        from flyball.admission_places(array(select distinct c.job_id from created c where c.duplicate
            and not exists (select from created o where o.job_id = c.job_id and not o.duplicate))) p
    )
    select c.job_id,
        case when c.duplicate then 'duplicate'
            when h.turn < 0 and h.run_at <= now() then 'planning'
            when h.job_id is not null then 'scheduled'
            when p.job_id is not null then 'held'
            else 'queued' end,
        flyball.held_at(p.tenant, p.place, p.tenant_place)
    from created c
    left join lateral (select s.job_id, s.turn, s.run_at from flyball.scheduled s where s.job_id = c.job_id limit 1) h on true
    left join places p on p.job_id = c.job_id
    order by c.n;
end $$;

-- === Parts of functions ==========================================================================

-- Each is put into its function as it is, because nothing else of it changes.
do $$
declare
    change record;
    body   text;
begin
    for change in
        select *
        from (values
            -- The lock under which messages of one tenant are counted one after another. As in 0033, it is the
            -- lock of a row, because every role that may connect can keep an advisory lock.
            ('flyball.record_pending',
                'perform pg_advisory_xact_lock(hashtextextended(''flyball.pending '' || record_pending.tenant, 0));',
                E'insert into flyball.mutex (name) values (''pending '' || record_pending.tenant) on conflict do nothing;\n'
                    || '        perform from flyball.mutex m where m.name = ''pending '' || record_pending.tenant for update;'),
            -- A message that is locked, such as one that a producer replaces, is left at a look: the cancellation
            -- of its batch or group looks again.
            ('flyball.cancel_live',
                'delete from flyball.scheduled s where s.job_id = any(array(select j.job_id from members j)) returning s.job_id, s.attempt',
                'delete from flyball.scheduled
        where ctid = any(array(
            select s.ctid from flyball.scheduled s
            where s.job_id = any(array(select j.job_id from members j)) order by s.job_id for update skip locked))
        returning job_id, attempt')
        ) as c(name, was, becomes)
    loop
        body := pg_get_functiondef(change.name::regproc);
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception '% does not contain once: %', change.name, change.was;
        end if;
        execute replace(body, change.was, change.becomes);
    end loop;
end $$;
