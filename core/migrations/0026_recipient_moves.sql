-- Chapter 26: recipients: zones that exist, plans that are made anew, digests one at a time.

-- === Zones =======================================================================================

-- As in 0012, but exact. Postgres also takes rules in the form of POSIX, with anything for a name:
-- those have a digit. It takes abbreviations too: those have no slash. And it takes other files in its
-- folder of zones, which mean another time on the next machine. Only for a name without a slash the
-- folder is read, which takes as long as many profiles.
create or replace function flyball.is_zone(zone text) returns boolean
language plpgsql stable as $$
begin
    perform now() at time zone zone;
    return case
        when zone ~* '^(posix|right)/' or lower(zone) in ('localtime', 'posixrules', 'factory') then false
        when zone = 'UTC' then true
        when zone ~ '[0-9]' then zone ~* '^(Etc/)?GMT[+-]?0$' or zone ~* '^Etc/GMT(-([1-9]|1[0-4])|\+([1-9]|1[0-2]))$'
            or lower(zone) in ('est5edt', 'cst6cdt', 'mst7mdt', 'pst8pdt')
        when zone ~ '/' then zone ~ '^[A-Za-z]+(/[A-Za-z_+-]+){1,2}$'
        else exists (select from pg_catalog.pg_timezone_names n where lower(n.name) = lower(zone)) end;
exception when invalid_parameter_value then
    return false;
end $$;

-- === A recipient who moves =======================================================================

-- As in 0023, and open digests that quiet hours, a cap or their pool keep beyond their windows ask the
-- gates again: each counts as one message. A digest that somebody has locked keeps its time: its owner may
-- wait for another one that is locked here.
create or replace function flyball.replan(recipients uuid[]) returns bigint
language plpgsql volatile set enable_seqscan = off as $$
declare
    moved bigint := 0;
    more  bigint;
begin
    if recipients = '{}' then
        return 0;
    end if;
    for round in 1..2 loop
        update flyball.scheduled s
        set turn = s.priority - 4, run_at = least(s.run_at, now())
        from flyball.message_plan p
        where p.recipient = any (recipients) and p.state = 'held' and s.job_id = p.job_id and (s.turn >= 0 or s.run_at > now());
        get diagnostics more = row_count;
        moved := moved + more;
    end loop;
    if moved > 0 then
        perform pg_notify('flyball_plan', '');
    end if;
    -- One probe of the index for each type.
    with recursive types as (
        (select d.type from flyball.digest d order by d.type limit 1)
        union all
        select (select d.type from flyball.digest d where d.type > t.type order by d.type limit 1) from types t where t.type is not null
    ),
    kept as materialized (
        select d.id
        from types t
        join flyball.digest d on d.type = t.type and d.recipient = any (recipients)
        where d.gate <> '' and d.closes_at > now()
        for no key update of d skip locked
    )
    update flyball.digest d set closes_at = now() from kept k where d.id = k.id;
    get diagnostics more = row_count;
    return moved + more;
end $$;

create function flyball.replan_created() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform flyball.replan(array(
        select k.key from created c cross join lateral unnest(flyball.recipient_keys(c.tenant, c.id, '{}')) as k(key)));
    return null;
end $$;

-- The first profile of a recipient changes what held until then: the defaults of its tenant.
create trigger recipient_plans after insert on flyball.recipient
referencing new table as created for each statement execute function flyball.replan_created();

-- As in 0012, but once for all profiles that a statement changes.
create or replace function flyball.replan_recipient() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform flyball.replan(array(
        select k.key
        from after a
        join before b on b.tenant = a.tenant and b.id = a.id
        cross join lateral unnest(flyball.recipient_keys(a.tenant, a.id, '{}')) as k(key)
        where a.profile is distinct from b.profile));
    return null;
end $$;

drop trigger recipient_replans on flyball.recipient;

create trigger recipient_replans after update on flyball.recipient
referencing old table as before new table as after for each statement execute function flyball.replan_recipient();

-- === Plans and digests ===========================================================================

alter table flyball.message_plan
    -- The quarter of an hour in whose crowd it is counted; null for none.
    add column crowd_quarter bigint,
    -- The type and the key of the digest whose message it is; null for others.
    add column digest_type text,
    add column digest_key text;

-- The messages of digests. It names no state, so that a plan that changes its state stays where it is.
create index message_plan_digest on flyball.message_plan (recipient, digest_type, digest_key) where origin = 'digest';

-- The texts of each type of digest: `subject`, `body` and `html`. Null until a process has written
-- them that knows them.
alter table flyball.recipient_rules add column digest_texts jsonb;

-- As in 0006. A digest that is requeued takes the present texts of its type: it may have died of an
-- error in those that it had.
create or replace function flyball.record_requeued() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    insert into flyball.delivery as d (job_id, channel, pool, tenant, state, recipient_digest, recipient, category, requeued_at)
    select j.id, coalesce(j.args ->> 'channel', ''), j.throttle, j.tenant, 'queued', flyball.recipient_digest(j.args ->> 'channel', j.args ->> 'to'),
        coalesce(flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), ''), coalesce(j.args ->> 'category', ''), now()
    from (select * from deleted order by deleted.job_id) g
    cross join lateral (select * from flyball.job where job.id = g.job_id limit 1) j
    where j.kind = 'notification'
        and exists (select from flyball.ready r where r.lane_id = g.lane_id and r.priority = g.priority and r.job_id = g.job_id)
    on conflict on constraint delivery_pkey do update
    set state = case when d.state in ('failed', 'suppressed') then 'queued' else d.state end,
        last_outcome = null, unsent = false, requeued_at = excluded.requeued_at, updated_at = clock_timestamp();
    with digests as materialized (
        select p.job_id, r.digest_texts -> p.digest_type as texts
        from deleted g
        cross join lateral (select * from flyball.message_plan h where h.job_id = g.job_id limit 1) p
        join flyball.recipient_rules r on r.digest_texts ? p.digest_type
        where p.origin = 'digest'
            and exists (select from flyball.ready h where h.lane_id = g.lane_id and h.priority = g.priority and h.job_id = g.job_id)
    ),
    -- As `DigestTexts::template` in core/src/recipient/digest.rs makes it.
    present as materialized (
        select j.id, jsonb_strip_nulls(jsonb_build_object('body', d.texts -> 'body',
            'subject', case when j.args ->> 'channel' in ('email', 'push', 'inapp') then d.texts -> 'subject' end,
            'html', case when j.args ->> 'channel' = 'email' then d.texts -> 'html' end)) as template
        from digests d
        cross join lateral (select * from flyball.job where job.id = d.job_id limit 1) j
        where j.args ? 'template'
    )
    update flyball.job j
    set args = jsonb_set(j.args, '{template}', p.template)
    from present p
    where j.id = p.id and j.args -> 'template' <> p.template;
    return null;
end $$;

-- As in 0010, but a message that names an unknown type of digest is refused, once a process has written
-- the types.
create or replace function flyball.notify_many(messages jsonb)
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

revoke execute on function flyball.replan_created, flyball.replan_recipient from public;
