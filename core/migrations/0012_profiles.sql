-- Chapter 12: profiles of recipients: the functions that write, show and erase them.
--
-- A profile is checked here as `Profile::parse` in core/src/recipient/profile.rs does it. No message and no
-- line of the audit log shows an address.

-- === Checks ======================================================================================

-- The tenant whose recipients the caller reads and changes. A role without one is refused, because
-- '' has the recipients of the operators.
create function flyball.recipient_tenant(what text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    tenant constant text := flyball.caller_tenant();
begin
    if tenant = '' and not flyball.is_operator() then
        raise exception using errcode = '42501', column = 'tenant', hint = 'Nothing was changed.',
            message = format('%s: tenant: role %s has no tenant; an operator gives it one in flyball.producer', what, to_json(flyball.caller()));
    end if;
    return tenant;
end $$;

-- The problem of the id of a recipient that no message could name, or that is the name of a route;
-- null for a sound one.
create function flyball.recipient_id_problem(id text) returns text
language sql immutable parallel safe
return case
    when id is null or octet_length(id) not between 1 and 128 or id ~ '[[:cntrl:]]' then 'must be a text of 1 to 128 bytes without control characters'
    when id in ('check', '.', '..') then 'must not be check, . or .., which cannot be in a path' end;

-- Refuses the id of a recipient.
create function flyball.check_recipient_id(what text, id text) returns void
language plpgsql stable as $$
begin
    if flyball.recipient_id_problem(check_recipient_id.id) is not null then
        perform flyball.refuse(what, 'id', flyball.recipient_id_problem(check_recipient_id.id));
    end if;
end $$;

-- Whether a text is the name of a time zone in the database of IANA.
create function flyball.is_zone(zone text) returns boolean
language plpgsql stable as $$
begin
    perform now() at time zone zone;
    -- Postgres also takes abbreviations and rules in the form of POSIX.
    return zone = 'UTC' or zone ~ '^[A-Za-z]+(/[A-Za-z0-9_+-]+){1,2}$' and zone !~ '^[A-Za-z]+[+-]'
        or exists (select from pg_catalog.pg_timezone_names n where lower(n.name) = lower(zone));
exception when invalid_parameter_value then
    return false;
end $$;

-- Everything that is wrong with a profile, or with defaults: the field and what is allowed instead.
-- `Profile::parse` is the law. SQL cannot read each address that programs can; those pass here.
-- `allowed` lists the fields. No row shows a value: it may be an address.
create function flyball.profile_problems(profile jsonb, allowed text[]) returns table (field text, problem text)
language plpgsql stable as $$
#variable_conflict use_column
declare
    channels    constant text[] := array['sms', 'email', 'push', 'chat', 'webhook', 'inapp'];
    hours       constant text[] := array['start', 'end', 'all_day', 'weekdays', 'dates'];
    days        constant text[] := array['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'];
    preferences constant text[] := array['all', 'categories', 'templates'];
    clock       constant text := '^([01][0-9]|2[0-3]):[0-5][0-9]$';
    clock_words constant text := 'a time of day as HH:MM, from 00:00 to 23:59';
begin
    if profile_problems.profile is null or jsonb_typeof(profile_problems.profile) <> 'object' then
        return query select 'profile', format('must be a JSON object; its fields are %s', array_to_string(allowed, ', '));
        return;
    end if;
    return query
    with top as materialized (
        select f.key, f.value, jsonb_typeof(f.value) as kind from jsonb_each(profile_problems.profile) f where jsonb_typeof(f.value) <> 'null'
    ),
    below as materialized (
        select t.key as part, f.key, f.value, jsonb_typeof(f.value) as kind
        from top t cross join lateral jsonb_each(case when t.kind = 'object' then t.value else '{}' end) f
    ),
    quiet as materialized (
        select 'quiet_hours.' || b.key as at, jsonb_strip_nulls(b.value) as value,
            coalesce(b.value -> 'all_day' = 'true', false) as all_day,
            nullif(b.value -> 'start', 'null') as "start", nullif(b.value -> 'end', 'null') as "end",
            coalesce(nullif(b.value -> 'weekdays', 'null'), '[]') as weekdays, coalesce(nullif(b.value -> 'dates', 'null'), '[]') as dates
        from below b
        where b.part = 'quiet_hours' and b.key = any (channels) and case when b.kind = 'object' then b.value - hours = '{}' else false end
    ),
    -- Choices for all messages, and for those of a category or template.
    choices as materialized (
        select 'preferences.all' as at, b.value, b.kind from below b where b.part = 'preferences' and b.key = 'all' and b.kind <> 'null'
        union all
        select 'preferences.' || b.key, f.value, jsonb_typeof(f.value) from below b cross join lateral jsonb_each(case when b.kind = 'object' then b.value else '{}' end) f
        where b.part = 'preferences' and b.key in ('categories', 'templates')
    )
    select t.key, format('is not a field of it; allowed are %s', array_to_string(allowed, ', ')) from top t where t.key <> all (allowed)
    union all
    select t.key, 'must be an object' from top t where t.key in ('addresses', 'quiet_hours', 'preferences') and t.kind <> 'object'
    union all
    select t.key, 'must be the IANA name of a time zone, such as Europe/Berlin' from top t
    where t.key in ('time_zone', 'device_time_zone')
        and case when t.kind = 'string' and octet_length(t.value #>> '{}') between 1 and 128 then not flyball.is_zone(t.value #>> '{}') else true end
    union all
    -- The name is not told: somebody may have written the address there.
    select b.part, format('has a name that is no channel; allowed are %s', array_to_string(channels, ', ')) from below b
    where b.part in ('addresses', 'quiet_hours') and b.key <> all (channels)
    union all
    select 'addresses.inapp', 'must be left out: the inbox is found by the id' from below b where b.part = 'addresses' and b.key = 'inapp' and b.kind <> 'null'
    union all
    select 'addresses.' || b.key, 'must be a text of 1 to 2048 bytes' from below b
    where b.part = 'addresses' and b.key = any (channels) and b.key <> 'inapp' and (b.kind <> 'string' or octet_length(b.value #>> '{}') not between 1 and 2048)
    union all
    select 'addresses.' || b.key, case b.key
        when 'sms' then 'must be a number in E.164 form, such as +15550100 or whatsapp:+15550100'
        when 'email' then 'must be exactly one mail address, such as ada@example.com or Ada <ada@example.com>'
        when 'push' then 'must be one device''s token, or /topics/ and a topic''s name'
        when 'chat' then 'must be one chat''s id, such as -100123 or C0123456789, or a name, such as @news'
        else 'must be a URL that begins with http:// or https://' end
    from below b
    where b.part = 'addresses' and b.key = any (channels) and b.key <> 'inapp' and b.kind = 'string' and octet_length(b.value #>> '{}') between 1 and 2048
        and flyball.normal_recipient(b.key, b.value #>> '{}') is null
        -- What programs may be able to read.
        and not (b.key in ('email', 'chat') and b.value #>> '{}' ~ '[^ -~]|xn--')
        and not (b.key = 'webhook' and b.value #>> '{}' ~* '^\s*https?://[^\s/]')
    union all
    select 'quiet_hours.' || b.key, format('must be an object; its fields are %s', array_to_string(hours, ', ')) from below b
    where b.part = 'quiet_hours' and b.key = any (channels) and case when b.kind = 'object' then b.value - hours <> '{}' else true end
    union all
    select q.at || '.' || w.name, 'must be ' || clock_words from quiet q
    cross join lateral (values ('start', q."start"), ('end', q."end")) as w(name, value)
    where w.value is not null and (jsonb_typeof(w.value) <> 'string' or w.value #>> '{}' !~ clock)
    union all
    select q.at || '.all_day', 'must be true or false' from quiet q where q.value ? 'all_day' and jsonb_typeof(q.value -> 'all_day') <> 'boolean'
    union all
    select q.at || '.all_day', 'must be left out beside start and end, or these beside it' from quiet q
    where q.all_day and (q."start" is not null or q."end" is not null)
    union all
    select q.at || case when q."start" is null then '.start' else '.end' end, 'must be given: ' || clock_words from quiet q
    where not q.all_day and (q."start" is null) <> (q."end" is null)
        or not q.all_day and q."start" is null and q."end" is null and coalesce(q.dates = '[]', true)
    union all
    select q.at || '.end', 'must differ from start; write all_day for days that are quiet as a whole' from quiet q where q."start" = q."end"
    union all
    select q.at || '.weekdays', format('must be a list of %s', array_to_string(days, ', ')) from quiet q
    where q.value ? 'weekdays' and (jsonb_typeof(q.value -> 'weekdays') <> 'array' or q.value -> 'weekdays' = '[]' or not q.value -> 'weekdays' <@ to_jsonb(days))
    union all
    select q.at || '.weekdays', 'must leave a day: to get nothing at all, opt out' from quiet q
    where q."start" is null and q."end" is null
        and (q.all_day and not q.value ? 'weekdays' or q.value ? 'weekdays' and jsonb_typeof(q.weekdays) = 'array' and q.weekdays @> to_jsonb(days))
    union all
    select q.at || '.dates', 'must be a list of at most 366 dates, such as 2026-12-25' from quiet q
    where q.value ? 'dates' and case when jsonb_typeof(q.value -> 'dates') <> 'array' or jsonb_array_length(q.value -> 'dates') > 366 then true
        else exists (
            select from jsonb_array_elements(q.value -> 'dates') d
            where jsonb_typeof(d.value) <> 'string' or not flyball.is_date(d.value #>> '{}')) end
    union all
    select 'preferences', format('must have the fields %s alone', array_to_string(preferences, ', ')) from below b
    where b.part = 'preferences' and b.key <> all (preferences)
    union all
    select 'preferences.' || b.key, 'must be an object of at most 200 names, each of 1 to 128 bytes' from below b
    where b.part = 'preferences' and b.key in ('categories', 'templates') and case when b.kind = 'null' then false when b.kind <> 'object' then true
        else (select count(*) > 200 or bool_or(octet_length(k.name) not between 1 and 128) from jsonb_object_keys(b.value) as k(name)) end
    union all
    select c.at, 'must be true or false, or one of these for each channel' from choices c
    where case when c.kind = 'boolean' then false when c.kind <> 'object' then true
        else exists (select from jsonb_each(c.value) f where f.key <> all (channels) or jsonb_typeof(f.value) <> 'boolean') end;
end $$;

-- Whether a text is a date as YYYY-MM-DD.
create function flyball.is_date(text text) returns boolean
language plpgsql immutable as $$
begin
    return is_date.text ~ '^\d{4}-\d\d-\d\d$' and make_date(left(is_date.text, 4)::int, substring(is_date.text from 6 for 2)::int,
        right(is_date.text, 2)::int) is not null;
exception when datetime_field_overflow then
    return false;
end $$;

-- Refuses a profile, with the first thing that is wrong.
create function flyball.check_profile(what text, profile jsonb, allowed text[]) returns void
language plpgsql stable as $$
declare
    first record;
begin
    select p.field, p.problem into first from flyball.profile_problems(check_profile.profile, check_profile.allowed) p order by p.field, p.problem limit 1;
    if found then
        perform flyball.refuse(what, first.field, first.problem);
    end if;
end $$;

-- The id of a recipient for the audit log, masked if it looks like an address.
create function flyball.shown_recipient(id text) returns text
language sql immutable parallel safe
return case
    when flyball.normal_recipient('email', id) is not null then flyball.mask_recipient('email', id)
    when flyball.normal_recipient('sms', id) is not null then flyball.mask_recipient('sms', id)
    when id ~ '@|://' then '***'
    else id end;

-- === Writing and reading =========================================================================

-- Writes profiles of a tenant that were checked; tells how many are new and how many others changed.
-- Ids occur once. One line of the audit log, and none if nothing changed.
create function flyball.put_recipients(tenant text, ids text[], profiles jsonb[], by text, why text, out created bigint, out changed bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    with put as (
        insert into flyball.recipient as r (tenant, id, profile, updated_by)
        select put_recipients.tenant, g.id, jsonb_strip_nulls(g.profile), left(split_part(flyball.audit_actor(by), chr(31), 1), 200)
        from unnest(put_recipients.ids, put_recipients.profiles) as g(id, profile)
        order by g.id
        on conflict on constraint recipient_pkey do update set profile = excluded.profile, updated_at = clock_timestamp(),
            updated_by = excluded.updated_by
        where r.profile <> excluded.profile
        returning xmax = 0 as is_new
    )
    select count(*) filter (where p.is_new), count(*) filter (where not p.is_new) into created, changed from put p;
    if created + changed > 0 and cardinality(ids) = 1 then
        perform flyball.write_audit(null, flyball.audit_actor(by), 'recipient.set', flyball.shown_recipient(ids[1]), null,
            jsonb_build_object('tenant', put_recipients.tenant, 'created', created = 1,
                'fields', (select coalesce(jsonb_agg(k.key order by k.key), '[]') from jsonb_object_keys(jsonb_strip_nulls(profiles[1])) as k(key)),
                'channels', (select coalesce(jsonb_agg(k.key order by k.key), '[]')
                    from jsonb_object_keys(coalesce(nullif(profiles[1] -> 'addresses', 'null'), '{}')) as k(key))),
            why);
    elsif created + changed > 0 then
        perform flyball.write_audit(null, flyball.audit_actor(by), 'recipient.import', put_recipients.tenant, null,
            jsonb_build_object('created', created, 'changed', changed), why);
    end if;
end $$;

-- Sets the profile of a recipient of the caller's tenant. True if it is new.
create function flyball.set_recipient(id text, profile jsonb, by text default null, why text default '') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    tenant constant text := flyball.recipient_tenant('set_recipient');
begin
    perform flyball.check_recipient_id('set_recipient', set_recipient.id);
    perform flyball.check_profile('set_recipient', set_recipient.profile,
        array['addresses', 'time_zone', 'device_time_zone', 'quiet_hours', 'preferences']);
    return p.created = 1 from flyball.put_recipients(tenant, array[set_recipient.id], array[set_recipient.profile],
        set_recipient.by, set_recipient.why) p;
end $$;

-- A recipient of the caller's tenant: its id, the fields of its profile, and the time of the last
-- change. Null if there is none.
create function flyball.recipient(id text) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    own_tenant constant text := flyball.recipient_tenant('recipient');
begin
    return (
        select jsonb_build_object('id', r.id) || r.profile || jsonb_build_object('updated_at', r.updated_at)
        from flyball.recipient r where r.tenant = own_tenant and r.id = recipient.id
    );
end $$;

-- Writes the defaults of a tenant that were checked. False if they were the same.
create function flyball.put_recipient_defaults(tenant text, profile jsonb, by text, why text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    before jsonb;
    after  constant jsonb := jsonb_strip_nulls(put_recipient_defaults.profile);
begin
    select d.profile into before from flyball.recipient_defaults d where d.tenant = put_recipient_defaults.tenant for update;
    if before = after then
        return false;
    end if;
    insert into flyball.recipient_defaults as d (tenant, profile, updated_by)
    values (put_recipient_defaults.tenant, after, left(split_part(flyball.audit_actor(by), chr(31), 1), 200))
    on conflict on constraint recipient_defaults_pkey do update
    set profile = excluded.profile, updated_at = clock_timestamp(), updated_by = excluded.updated_by;
    -- Defaults are about nobody, so the log has them as they were and are.
    perform flyball.write_audit(null, flyball.audit_actor(by), 'recipient.defaults', put_recipient_defaults.tenant, before, after, why);
    return true;
end $$;

-- Sets what holds for all recipients of the caller's tenant unless their profiles say otherwise.
-- False if nothing changed.
create function flyball.set_recipient_defaults(profile jsonb, by text default null, why text default '') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    tenant constant text := flyball.recipient_tenant('set_recipient_defaults');
begin
    perform flyball.check_profile('set_recipient_defaults', set_recipient_defaults.profile, array['time_zone', 'quiet_hours', 'preferences']);
    return flyball.put_recipient_defaults(tenant, set_recipient_defaults.profile, set_recipient_defaults.by, set_recipient_defaults.why);
end $$;

-- === Erasing =====================================================================================

-- The key of parts, as core/src/recipient/address.rs computes it: the first 16 bytes of the SHA-256 of the
-- parts, each with its length in bytes before it.
create function flyball.recipient_key(variadic parts text[]) returns uuid
language sql stable parallel safe
return (
    select encode(substring(sha256(string_agg(int8send(octet_length(b.bytes)::bigint) || b.bytes, ''::bytea order by p.n)) from 1 for 16), 'hex')::uuid
    from unnest(parts) with ordinality as p(part, n)
    cross join lateral convert_to(p.part, 'UTF8') as b(bytes)
);

-- The keys of a recipient: as a person on each channel, and of its addresses that SQL can read.
create function flyball.recipient_keys(tenant text, id text, profile jsonb) returns uuid[]
language sql stable parallel safe
return (
    select array_agg(k.key)
    from (
        select flyball.recipient_key('subscriber', tenant, c.channel, id) as key
        from unnest(array['sms', 'email', 'push', 'chat', 'webhook', 'inapp']) as c(channel)
        union
        select flyball.recipient_key('address', tenant, a.key, flyball.normal_recipient(a.key, a.value))
        from jsonb_each_text(coalesce(nullif(profile -> 'addresses', 'null'), '{}')) as a(key, value)
        where flyball.normal_recipient(a.key, a.value) is not null
    ) k
);

-- Attempts without the words of providers, which may quote the address.
create function flyball.without_reasons(attempts jsonb) returns jsonb
language sql immutable parallel safe
return (select coalesce(jsonb_agg(e.value || '{"reason": ""}' order by e.n), '[]') from jsonb_array_elements(attempts) with ordinality as e(value, n));

-- Whether an address of a channel is among these: normal forms, and spellings for what SQL cannot read.
create function flyball.is_addressed_to(channel text, address text, normals text[], spellings text[]) returns boolean
language sql immutable parallel safe
return coalesce(channel || chr(31) || address = any (spellings)
    or channel || chr(31) || flyball.normal_recipient(channel, address) = any (normals), false);

-- The name of an erased recipient in the audit log. Nobody can read the id from it, and who knows the
-- id can compute it.
create function flyball.erased_name(tenant text, id text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp
return 'erased:' || left(encode(flyball.keyed_digest(sha256(convert_to(tenant || chr(31) || id, 'UTF8'))), 'hex'), 16);

-- Ends messages of an erased recipient: those that wait and dead letters are cancelled, those that run
-- are asked to stop. Nothing that a person wrote or reads is left in their arguments. Returns the number
-- of those that will not be sent.
create function flyball.erase_messages(jobs bigint[]) returns bigint
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_column
declare
    ended bigint := 0;
    part  bigint;
begin
    -- A message may move from one table to another between two looks, as when a batch is cancelled.
    for look in 1..20 loop
        with members as materialized (
            select a.job_id, j.lane_id, j.admission_lane, j.priority
            from unnest(jobs) as a(job_id) cross join lateral (select * from flyball.job where id = a.job_id limit 1) j
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
            delete from flyball.scheduled s where s.job_id = any (jobs) returning s.job_id, s.attempt
        ),
        was_dead as (
            delete from flyball.dead d where d.job_id = any (jobs) returning d.job_id, d.attempt
        ),
        removed as (
            select * from was_ready union all select * from was_scheduled union all select * from was_dead
        ),
        history as (
            insert into flyball.attempt (job_id, attempt, outcome, error)
            select w.job_id, w.attempt, 'cancelled', 'its recipient was erased' from removed w
        ),
        released_keys as (
            delete from flyball.unique_holder
            where digest = any(array(
                select u.digest from flyball.unique_holder u
                where u.expires_at is null and u.job_id = any(array(select w.job_id from removed w)) for update skip locked
            ))
        ),
        of_batches as (
            update flyball.batch_message m set cancelled = true where m.job_id = any(array(select w.job_id from removed w))
        ),
        cancel_requests as (
            insert into flyball.cancel (job_id) select l.job_id from flyball.lease l where l.job_id = any (jobs) on conflict do nothing
        )
        select count(*) into part from removed;
        ended := ended + part;
        exit when not exists (
            select from unnest(jobs) as a(job_id) cross join lateral (select * from flyball.job where id = a.job_id limit 1) j
            where exists (
                    select from flyball.ready r
                    where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.id)
                or exists (select from flyball.scheduled s where s.job_id = j.id)
        );
        perform pg_sleep(0.005);
    end loop;
    update flyball.job j
    set args = j.args - array['to', 'from', 'recipient', 'subject', 'body', 'html', 'template', 'data', 'extra', 'actor', 'dedup_key']
    where j.id = any (jobs);
    update flyball.attempt a set error = null where a.job_id = any (jobs) and a.error <> 'its recipient was erased';
    delete from flyball.failure f where f.job_id = any (jobs);
    return ended;
end $$;

-- Erases a recipient of a tenant: its profile, what its caps and its dedup count, the items of its
-- open digests, its inbox, its messages that wait, the arguments of all, and its address in their records. `keys`
-- and `digests` add those that the caller computed: keys of recipients, and unkeyed digests of
-- addresses. Returns the numbers. It reads every message of the tenant that is kept. Suppressions stay:
-- they say that this address wants nothing, and nobody can read it there.
create function flyball.erase_recipient(tenant text, id text, keys uuid[], digests bytea[], by text, why text,
    out had_profile boolean, out caps bigint, out reservations bigint, out claims bigint, out digests_closed bigint, out items bigint, out messages bigint,
    out cancelled bigint, out arguments bigint, out inbox bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    old_profile  jsonb;
    all_keys     uuid[];
    all_digests  bytea[];
    current_type text;
    closed       bigint[] := '{}';
    more         bigint[];
    all_jobs     bigint[];
    of_records   bigint[];
    addresses    text[];
    spellings    text[];
    shown        constant text := flyball.shown_recipient(erase_recipient.id);
    erased       constant text := case when shown = erase_recipient.id then flyball.erased_name(erase_recipient.tenant, erase_recipient.id) else shown end;
begin
    delete from flyball.recipient r where r.tenant = erase_recipient.tenant and r.id = erase_recipient.id returning r.profile into old_profile;
    had_profile := old_profile is not null;
    all_keys := coalesce(keys, '{}') || flyball.recipient_keys(erase_recipient.tenant, erase_recipient.id, old_profile);
    select array_agg(flyball.keyed_digest(k.known)) into all_digests
    from (
        select unnest(digests) as known
        union
        select flyball.known_digest(a.key, a.value) from jsonb_each_text(coalesce(nullif(old_profile -> 'addresses', 'null'), '{}')) as a(key, value)
        union
        -- In the inbox the id is the address.
        select flyball.known_digest('inapp', erase_recipient.id)
    ) k
    where k.known is not null;

    select coalesce(array_agg(a.key || chr(31) || flyball.normal_recipient(a.key, a.value)) filter (where flyball.normal_recipient(a.key, a.value) is not null), '{}'),
        coalesce(array_agg(a.key || chr(31) || a.value), '{}')
    into addresses, spellings
    from jsonb_each_text(coalesce(nullif(old_profile -> 'addresses', 'null'), '{}') || jsonb_build_object('inapp', erase_recipient.id)) as a(key, value);

    with gone as (delete from flyball.cap c where c.recipient = any (all_keys) returning 1) select count(*) into caps from gone;
    with gone as (delete from flyball.cap_reservation c where c.recipient = any (all_keys) returning 1) select count(*) into reservations from gone;
    with gone as (delete from flyball.dedup d where d.recipient = any (all_keys) returning 1) select count(*) into claims from gone;

    -- The digests first, one probe of the index for each type: an item that is being put into one is
    -- committed when the lock of its digest is granted, so the next statement sees it.
    loop
        select d.type into current_type from flyball.digest d where current_type is null or d.type > current_type order by d.type limit 1;
        exit when not found;
        with gone as (delete from flyball.digest d where d.type = current_type and d.recipient = any (all_keys) returning d.id)
        select coalesce(array_agg(g.id), '{}') into more from gone g;
        closed := closed || more;
    end loop;
    digests_closed := cardinality(closed);
    with gone as (delete from flyball.digest_item i where i.digest_id = any (closed) returning i.job_id),
    ended as (
        update flyball.message_plan p set state = 'ended', gate = '', rule = '', reason = 'cancelled', holds = '[]', until = null
        where p.job_id = any (array(select g.job_id from gone g)) and p.state = 'collected'
    )
    select count(*) into items from gone;

    -- Two statements, because each has an index of its own.
    if erase_recipient.tenant = '' then
        with gone as (
            update flyball.delivery d
            set recipient = '', recipient_digest = null, reason = '', attempts = flyball.without_reasons(d.attempts)
            where d.tenant = '' and d.recipient_digest = any (all_digests) returning d.job_id
        )
        select coalesce(array_agg(g.job_id), '{}') into of_records from gone g;
        all_jobs := array(
            select j.id from flyball.job j
            where j.tenant = '' and j.kind = 'notification' and (j.args ->> 'recipient' = erase_recipient.id
                or flyball.is_addressed_to(j.args ->> 'channel', j.args ->> 'to', addresses, spellings)));
    else
        with gone as (
            update flyball.delivery d
            set recipient = '', recipient_digest = null, reason = '', attempts = flyball.without_reasons(d.attempts)
            where d.tenant = erase_recipient.tenant and d.tenant <> '' and d.recipient_digest = any (all_digests) returning d.job_id
        )
        select coalesce(array_agg(g.job_id), '{}') into of_records from gone g;
        all_jobs := array(
            select j.id from flyball.job j
            where j.tenant = erase_recipient.tenant and j.tenant <> '' and j.kind = 'notification' and (j.args ->> 'recipient' = erase_recipient.id
                or flyball.is_addressed_to(j.args ->> 'channel', j.args ->> 'to', addresses, spellings)));
    end if;
    messages := cardinality(of_records);
    select coalesce(array_agg(distinct u.id), '{}') into all_jobs from unnest(all_jobs || of_records) as u(id);
    arguments := cardinality(all_jobs);
    cancelled := flyball.erase_messages(all_jobs);
    -- A cancelled message has no record of its own, but one that was tried before has.
    update flyball.delivery d
    set recipient = '', recipient_digest = null, reason = case when s.is_cancelled then 'cancelled' else '' end,
        state = case when s.is_cancelled then 'failed' else d.state end, attempts = flyball.without_reasons(d.attempts)
    from (
        select h.job_id, h.state = 'queued' and not exists (select from flyball.lease l where l.job_id = h.job_id) as is_cancelled
        from flyball.delivery h where h.job_id = any (all_jobs)
    ) s
    where d.job_id = s.job_id;
    -- Recipients of batches that are still being enqueued.
    with left_out as (
        select b.id, (
            select coalesce(jsonb_agg(m.value order by m.n), '[]') from jsonb_array_elements(b.messages) with ordinality as m(value, n)
            where not coalesce(m.value -> 'args' ->> 'recipient' = erase_recipient.id, false)
                and not flyball.is_addressed_to(m.value -> 'args' ->> 'channel', m.value -> 'args' ->> 'to', addresses, spellings)) as messages
        from flyball.batch b where b.tenant = erase_recipient.tenant and b.messages <> '[]'
    ),
    changed as (
        update flyball.batch b
        set messages = l.messages, not_enqueued = b.not_enqueued + jsonb_array_length(b.messages) - jsonb_array_length(l.messages)
        from left_out l
        where b.id = l.id and jsonb_array_length(l.messages) < jsonb_array_length(b.messages)
        returning b.id, l.messages
    )
    select cancelled + coalesce(sum(jsonb_array_length(o.messages) - jsonb_array_length(c.messages)), 0) into cancelled
    from changed c join flyball.batch o on o.id = c.id;
    update flyball.message_plan p
    set recipient = '00000000-0000-0000-0000-000000000000',
        state = case when p.state = 'held' then 'ended' else p.state end, reason = case when p.state = 'held' then 'cancelled' else p.reason end,
        gate = case when p.state = 'held' then '' else p.gate end, rule = case when p.state = 'held' then '' else p.rule end,
        holds = '[]', until = null
    where p.recipient = any (all_keys) or p.job_id = any (all_jobs);
    delete from flyball.recipient_backoff r where r.recipient_digest = any (all_digests);
    update flyball.delivery_event e set recipient_digest = null, reason = ''
    where e.job_id = any (all_jobs) or e.job_id is null and e.recipient_digest = any (all_digests);
    -- Earlier lines of the log keep what was done, under a name that tells nobody.
    update flyball.audit a set subject = erased
    where a.action in ('recipient.set', 'recipient.delete', 'recipient.replan') and a.subject = erase_recipient.id and shown = erase_recipient.id
        and coalesce(a.after ->> 'tenant', a.tenant, erase_recipient.tenant) = erase_recipient.tenant;

    inbox := flyball.erase_inbox(erase_recipient.tenant, erase_recipient.id);

    if had_profile or caps + reservations + claims + digests_closed + items + messages + cancelled + inbox > 0 then
        perform flyball.write_audit(null, flyball.audit_actor(by), 'recipient.delete', erased, null,
            jsonb_build_object('tenant', erase_recipient.tenant, 'profile', had_profile, 'caps', caps, 'reservations', reservations, 'claims', claims,
                'digests', digests_closed, 'items', items, 'messages', messages, 'cancelled', cancelled, 'arguments', arguments, 'inbox', inbox),
            why);
    end if;
end $$;

-- Erases a recipient of the caller's tenant, with everything that is kept about it. Returns the
-- numbers; `profile` tells whether there was one.
create function flyball.delete_recipient(id text, by text default null, why text default '') returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    tenant constant text := flyball.recipient_tenant('delete_recipient');
begin
    perform flyball.check_recipient_id('delete_recipient', delete_recipient.id);
    return jsonb_build_object('profile', e.had_profile, 'caps', e.caps, 'reservations', e.reservations, 'claims', e.claims,
            'digests', e.digests_closed, 'items', e.items, 'messages', e.messages, 'cancelled', e.cancelled, 'arguments', e.arguments, 'inbox', e.inbox)
        from flyball.erase_recipient(tenant, delete_recipient.id, '{}', '{}', delete_recipient.by, delete_recipient.why) e;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.recipient_tenant, flyball.recipient_id_problem, flyball.check_recipient_id,
    flyball.is_zone, flyball.is_date, flyball.profile_problems, flyball.check_profile, flyball.shown_recipient,
    flyball.put_recipients, flyball.set_recipient, flyball.recipient(text), flyball.put_recipient_defaults, flyball.set_recipient_defaults,
    flyball.recipient_key, flyball.recipient_keys, flyball.without_reasons, flyball.is_addressed_to, flyball.erased_name,
    flyball.erase_messages, flyball.erase_recipient, flyball.delete_recipient
from public;

comment on function flyball.set_recipient is 'Sets the profile of a recipient of the caller''s tenant.';
comment on function flyball.recipient is 'The profile of a recipient of the caller''s tenant; null if there is none.';
comment on function flyball.delete_recipient is 'Erases a recipient of the caller''s tenant, with everything that is kept about it.';
comment on function flyball.set_recipient_defaults is 'Sets what holds for all recipients of the caller''s tenant unless their profiles say otherwise.';

-- === A recipient who moves =======================================================================

-- Lets the held messages of recipients be planned anew, as if all came now; returns their number.
create function flyball.replan(recipients uuid[]) returns bigint
language plpgsql volatile as $$
declare
    moved bigint;
begin
    update flyball.scheduled s
    set turn = s.priority - 4, run_at = least(s.run_at, now())
    from flyball.message_plan p
    where p.recipient = any (recipients) and p.state = 'held' and s.job_id = p.job_id and (s.turn >= 0 or s.run_at > now());
    get diagnostics moved = row_count;
    if moved > 0 then
        perform pg_notify('flyball_plan', '');
    end if;
    return moved;
end $$;

create function flyball.replan_recipient() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform flyball.replan(flyball.recipient_keys(new.tenant, new.id, '{}'));
    return null;
end $$;

-- A profile that changes by any door.
create trigger recipient_replans after update of profile on flyball.recipient
    for each row when (old.profile is distinct from new.profile) execute function flyball.replan_recipient();

revoke execute on function flyball.replan from public;
