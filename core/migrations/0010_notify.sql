-- Chapter 10: messages by SQL, for every role that may enqueue.

-- The earliest time at which the limits of its tenant let a waiting message go, judged by its place and
-- the recorded knobs alone: Postgres does not know what was sent within the last minute, so the
-- message may wait up to a window longer.
create function flyball.held_until(job_id bigint) returns timestamptz
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    limit_re constant text := '^(\d{1,7})/(\d{1,7})$';
    waiting record;
    rule record;
begin
    select a.place, a.tenant_place, a.tenant into waiting from flyball.admission_place(job_id) a;
    if waiting.place is null then
        return null;
    end if;
    select regexp_match(k.fields ->> 'key_windows', limit_re)::bigint[] as of_module,
        regexp_match(k.fields ->> 'windows', limit_re)::bigint[] as of_tenant into rule
    from flyball.knobs k
    where k.throttle in (flyball.admission_throttle(waiting.tenant), 'notify:*')
    order by k.throttle = 'notify:*'
    limit 1;
    return now() + make_interval(secs => greatest(0,
        (waiting.place - 1) / greatest(rule.of_module[1], 1) * rule.of_module[2],
        (waiting.tenant_place - 1) / greatest(rule.of_tenant[1], 1) * rule.of_tenant[2]));
end $$;

-- Sends many messages, at most 10,000, all or none, in the caller's own transaction; returns one
-- row for each, in order. An element has the fields of a message over HTTP and `pool`, the name of
-- the pool that sends it. The status is `queued` for its pool, `planning` while the gates of its
-- recipient have not seen it, `held` while it waits for the limits
-- of its tenant, `scheduled`, or `duplicate` for a unique key that another message holds. A message
-- without an address for a recipient whose profile has none is refused, and one over a cap whose
-- category refuses more, with 53400, the rule and the time at which there is room.
create function flyball.notify_many(messages jsonb)
returns table (id bigint, status text, held_until timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
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
    -- Each lookup is a statement of its own, so it sees the jobs that the first one enqueued.
    for one in select e.job_id, e.duplicate from flyball.enqueue_many(jobs) as e loop
        id := one.job_id;
        status := case when one.duplicate then 'duplicate'
            when exists (select from flyball.scheduled h where h.job_id = one.job_id and h.turn < 0 and h.run_at <= now()) then 'planning'
            when exists (select from flyball.scheduled h where h.job_id = one.job_id) then 'scheduled'
            when flyball.awaits_admission(one.job_id) then 'held'
            else 'queued' end;
        held_until := flyball.held_until(one.job_id);
        return next;
    end loop;
end $$;

-- Sends one message in the caller's own transaction.
create function flyball.notify(pool text, message jsonb, key text default '', run_at timestamptz default null,
    unique_key text default null, out id bigint, out status text, out held_until timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if message is null or jsonb_typeof(message) <> 'object' then
        perform flyball.refuse('notify', 'message', 'must be a JSON object');
    end if;
    select m.id, m.status, m.held_until into id, status, held_until
    from flyball.notify_many(jsonb_build_array(message || jsonb_build_object('pool', pool, 'key', key)
        || jsonb_strip_nulls(jsonb_build_object('run_at', run_at, 'unique_key', unique_key)))) m;
end $$;

revoke execute on function flyball.held_until from public;

comment on function flyball.notify is 'Sends one message in the caller''s own transaction, within the limits of its tenant.';
comment on function flyball.notify_many is 'Sends up to 10,000 messages, all or none, within the limits of their tenant.';
