-- Chapter 12: recipients: what protects the people who get messages, and the functions that write,
-- show and erase their profiles.
--
-- A message that names a category, a recipient or anything else that gates look at stands in
-- `scheduled` with a turn below 0 until a planner has taken it through the gates: then it is ready,
-- or scheduled for the time at which it may go, or an item of a digest, or it has ended. So it is a
-- scheduled job for every operation, and what a producer writes is a row of its own, whatever else
-- goes to the same recipient.
--
-- A profile is checked here as `Profile::parse` in core/src/recipient/profile.rs does it. No
-- message and no line of the audit log shows an address.

-- === Checks ======================================================================================

-- The tenant whose recipients the caller reads and changes. A role without one is refused, because
-- '' has the recipients of the operators.
create function flyball.recipient_tenant(what text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    tenant constant text := flyball.caller_tenant();
begin
    if tenant = '' and not flyball.is_operator() then
        raise exception using errcode = '42501', column = 'tenant', hint = 'Nothing was changed.',
            message = format('%s: tenant: role %s has no tenant; an operator gives it one in flyball.producer', what,
                to_json(flyball.caller()));
    end if;
    return tenant;
end $$;

-- The problem of the id of a recipient that no message could name, or that is the name of a route;
-- null for a sound one.
create function flyball.recipient_id_problem(id text) returns text
language sql immutable parallel safe
return case
    when id is null or octet_length(id) not between 1 and 128 or id ~ '[[:cntrl:]]'
        then 'must be a text of 1 to 128 bytes without control characters'
    when id in ('check', '.', '..') then 'must not be check, . or .., which cannot be in a path' end;

-- Refuses the id of a recipient. The functions of inboxes call it recipient.
create function flyball.check_recipient_id(what text, id text)
returns void
language plpgsql stable as $$
begin
    if flyball.recipient_id_problem(check_recipient_id.id) is not null then
        perform flyball.refuse(what, case when what in ('inbox', 'inbox_counts', 'mark_inbox') then 'recipient' else 'id' end,
            flyball.recipient_id_problem(check_recipient_id.id));
    end if;
end $$;

-- Whether a text is a date as YYYY-MM-DD.
create function flyball.is_date(text text) returns boolean
language plpgsql immutable set standard_conforming_strings = on as $$
begin
    return is_date.text ~ '^\d{4}-\d\d-\d\d$' and make_date(left(is_date.text, 4)::int, substring(is_date.text from 6 for 2)::int,
        right(is_date.text, 2)::int) is not null;
exception when datetime_field_overflow then
    return false;
end $$;

-- Everything that is wrong with a profile, or with defaults: the field and what is allowed instead.
-- `Profile::parse` is the law. SQL cannot read each address that programs can; those pass here.
-- `allowed` lists the fields. No row shows a value: it may be an address.
create function flyball.profile_problems(profile jsonb, allowed text[]) returns table (field text, problem text)
language plpgsql stable set standard_conforming_strings = on as $$
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
        select f.key, f.value, jsonb_typeof(f.value) as kind
        from jsonb_each(profile_problems.profile) f
        where jsonb_typeof(f.value) <> 'null'
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
        select 'preferences.' || b.key, f.value, jsonb_typeof(f.value)
        from below b
        cross join lateral jsonb_each(case when b.kind = 'object' then b.value else '{}' end) f
        where b.part = 'preferences' and b.key in ('categories', 'templates')
    )
    select t.key, format('is not a field of it; allowed are %s', array_to_string(allowed, ', ')) from top t where t.key <> all (allowed)
    union all
    select t.key, 'must be an object' from top t where t.key in ('addresses', 'quiet_hours', 'preferences') and t.kind <> 'object'
    union all
    select t.key, 'must be the IANA name of a time zone, such as Europe/Berlin' from top t
    where t.key in ('time_zone', 'device_time_zone')
        and case when t.kind = 'string' and octet_length(t.value #>> '{}') between 1 and 128
            then not flyball.is_zone(t.value #>> '{}') else true end
    union all
    -- The name is not shown: it may be the address.
    select b.part, format('has a name that is no channel; allowed are %s', array_to_string(channels, ', ')) from below b
    where b.part in ('addresses', 'quiet_hours') and b.key <> all (channels)
    union all
    select 'addresses.inapp', 'must be left out: the inbox is found by the id' from below b
    where b.part = 'addresses' and b.key = 'inapp'
    union all
    select 'addresses.' || b.key, 'must be a text of 1 to 2048 bytes' from below b
    where b.part = 'addresses' and b.key = any (channels) and b.key <> 'inapp'
        and (b.kind <> 'string' or octet_length(b.value #>> '{}') not between 1 and 2048)
    union all
    select 'addresses.' || b.key, case b.key
        when 'sms' then 'must be a number in E.164 form, such as +15550100 or whatsapp:+15550100'
        when 'email' then 'must be exactly one mail address, such as ada@example.com or Ada <ada@example.com>'
        when 'push' then 'must be one device''s token, or /topics/ and a topic''s name'
        when 'chat' then 'must be one chat''s id, such as -100123 or C0123456789, or a name, such as @news'
        else 'must be a URL that begins with http:// or https://' end
    from below b
    where b.part = 'addresses' and b.key = any (channels) and b.key <> 'inapp' and b.kind = 'string'
        and octet_length(b.value #>> '{}') between 1 and 2048
        and flyball.normal_recipient(b.key, b.value #>> '{}') is null
        -- Some of these programs can read.
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
    select q.at || '.all_day', 'must be true or false' from quiet q
    where q.value ? 'all_day' and jsonb_typeof(q.value -> 'all_day') <> 'boolean'
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
    where q.value ? 'weekdays' and (jsonb_typeof(q.value -> 'weekdays') <> 'array' or q.value -> 'weekdays' = '[]'
        or not q.value -> 'weekdays' <@ to_jsonb(days))
    union all
    select q.at || '.weekdays', 'must leave a day: to get nothing at all, opt out' from quiet q
    where q."start" is null and q."end" is null
        and (q.all_day and not q.value ? 'weekdays' or q.value ? 'weekdays' and jsonb_typeof(q.weekdays) = 'array'
            and q.weekdays @> to_jsonb(days))
    union all
    select q.at || '.dates', 'must be a list of at most 366 dates, such as 2026-12-25' from quiet q
    where q.value ? 'dates' and case when jsonb_typeof(q.value -> 'dates') <> 'array'
        or jsonb_array_length(q.value -> 'dates') > 366 then true
        else exists (
            select from jsonb_array_elements(q.value -> 'dates') d
            where jsonb_typeof(d.value) <> 'string' or not flyball.is_date(d.value #>> '{}')) end
    union all
    select 'preferences', format('must have the fields %s alone', array_to_string(preferences, ', ')) from below b
    where b.part = 'preferences' and b.key <> all (preferences)
    union all
    select 'preferences.' || b.key, 'must be an object of at most 200 names, each of 1 to 128 bytes' from below b
    where b.part = 'preferences' and b.key in ('categories', 'templates')
        and case when b.kind = 'null' then false when b.kind <> 'object' then true
        else (select count(*) > 200 or bool_or(octet_length(k.name) not between 1 and 128) from jsonb_object_keys(b.value) as k(name)) end
    union all
    select c.at, 'must be true or false, or one of these for each channel' from choices c
    where case when c.kind = 'boolean' then false when c.kind <> 'object' then true
        else exists (select from jsonb_each(c.value) f where f.key <> all (channels) or jsonb_typeof(f.value) <> 'boolean') end;
end $$;

-- Refuses a profile, with the first thing that is wrong.
create function flyball.check_profile(what text, profile jsonb, allowed text[]) returns void
language plpgsql stable as $$
declare
    first record;
begin
    select p.field, p.problem into first
    from flyball.profile_problems(check_profile.profile, check_profile.allowed) p
    order by p.field, p.problem limit 1;
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

-- === Profiles ====================================================================================

-- Writes profiles of a tenant that were checked; tells how many are new and how many others
-- changed. Ids occur once. One line of the audit log, and none if nothing changed.
create function flyball.put_recipients(tenant text, ids text[], profiles jsonb[], by text, why text, out created bigint, out changed bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
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
                'fields', (select coalesce(jsonb_agg(k.key order by k.key), '[]')
                    from jsonb_object_keys(jsonb_strip_nulls(profiles[1])) as k(key)),
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
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    tenant constant text := flyball.recipient_tenant('set_recipient');
begin
    perform flyball.check_recipient_id('set_recipient', set_recipient.id);
    perform flyball.check_profile('set_recipient', set_recipient.profile,
        array['addresses', 'time_zone', 'device_time_zone', 'quiet_hours', 'preferences']);
    return p.created = 1 from flyball.put_recipients(tenant, array[set_recipient.id], array[set_recipient.profile],
        set_recipient.by, set_recipient.why) p;
end $$;
comment on function flyball.set_recipient is 'Sets the profile of a recipient of the caller''s tenant.';

-- A recipient of the caller's tenant: its id, the fields of its profile, and the time of the last
-- change. Null if there is none.
create function flyball.recipient(id text) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    own_tenant constant text := flyball.recipient_tenant('recipient');
begin
    return (
        select jsonb_build_object('id', r.id) || r.profile || jsonb_build_object('updated_at', r.updated_at)
        from flyball.recipient r where r.tenant = own_tenant and r.id = recipient.id
    );
end $$;
comment on function flyball.recipient is 'The profile of a recipient of the caller''s tenant; null if there is none.';

-- Writes the defaults of a tenant that were checked. False if they were the same.
create function flyball.put_recipient_defaults(tenant text, profile jsonb, by text, why text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
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
    -- Defaults are about no person, so the log has them as they were and are.
    perform flyball.write_audit(null, flyball.audit_actor(by), 'recipient.defaults', put_recipient_defaults.tenant, before, after, why);
    return true;
end $$;

-- Sets what holds for all recipients of the caller's tenant unless their profiles say otherwise.
-- False if nothing changed.
create function flyball.set_recipient_defaults(profile jsonb, by text default null, why text default '') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    tenant constant text := flyball.recipient_tenant('set_recipient_defaults');
begin
    perform flyball.check_profile('set_recipient_defaults', set_recipient_defaults.profile,
        array['time_zone', 'quiet_hours', 'preferences']);
    return flyball.put_recipient_defaults(tenant, set_recipient_defaults.profile, set_recipient_defaults.by, set_recipient_defaults.why);
end $$;
comment on function flyball.set_recipient_defaults is 'Sets what holds for all recipients of the caller''s tenant unless their profiles say otherwise.';

-- Everything that is wrong with recipients to set: the index of each from 0, its field, and what is
-- allowed instead. No row shows a value.
create function flyball.recipient_problems(recipients jsonb) returns table (index int, field text, problem text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    allowed constant text[] := array['addresses', 'time_zone', 'device_time_zone', 'quiet_hours', 'preferences'];
begin
    if recipients is null or jsonb_typeof(recipients) <> 'array' or jsonb_array_length(recipients) not between 1 and 1000 then
        return query select null::int, 'recipients',
            'must be a JSON array of 1 to 1000 recipients, each an object with an id and the fields of a profile';
        return;
    end if;
    return query
    with given as materialized (
        select (g.n - 1)::int as at, g.value, jsonb_typeof(g.value) = 'object' as is_object,
            row_number() over (partition by g.value ->> 'id' order by g.n) > 1 as is_repeated
        from jsonb_array_elements(recipients) with ordinality as g(value, n)
    )
    select p.at, p.field, p.problem
    from (
        select g.at, '' as field, 'must be an object with an id and the fields of a profile' as problem from given g where not g.is_object
        union all
        select g.at, 'id', coalesce(case when jsonb_typeof(g.value -> 'id') is distinct from 'string'
                then 'must be a text of 1 to 128 bytes without control characters' end,
            flyball.recipient_id_problem(g.value ->> 'id'), case when g.is_repeated then 'must differ from those before it' end)
        from given g where g.is_object
        union all
        select g.at, w.field, w.problem
        from given g
        cross join lateral flyball.profile_problems(g.value - 'id', allowed) w
        where g.is_object
    ) p
    where p.problem is not null
    order by p.at, p.field, p.problem;
end $$;
comment on function flyball.recipient_problems is 'Everything that is wrong with recipients to set, one row each.';

-- Sets the profiles of 1 to 1,000 recipients of the caller's tenant, all or none: a JSON array of
-- objects with an `id` and the fields of a profile. Tells how many are new and how many others
-- changed. An error names the first thing that is wrong; its detail has all of them, up to 100.
create function flyball.set_recipients(recipients jsonb, by text default null, why text default '', out created bigint, out changed bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    tenant constant text := flyball.recipient_tenant('set_recipients');
    first  record;
    lines  text;
begin
    select p.index, p.field, p.problem into first from flyball.recipient_problems(set_recipients.recipients) p limit 1;
    if found then
        select string_agg(
                format('recipients%s%s: %s', '[' || p.index || ']', coalesce('.' || nullif(nullif(p.field, ''), 'recipients'), ''),
                    p.problem),
                E'\n' order by p.index, p.field, p.problem)
        into lines
        from (select * from flyball.recipient_problems(set_recipients.recipients) q where q.index is not null limit 100) p;
        raise exception using errcode = '22023', column = first.field, table = coalesce(first.index::text, ''),
            message = format('set_recipients: recipients%s%s: %s', coalesce('[' || first.index || ']', ''),
                coalesce('.' || nullif(nullif(first.field, ''), 'recipients'), ''), first.problem),
            detail = coalesce(lines, ''), hint = 'Nothing was changed.';
    end if;
    select p.created, p.changed into created, changed
    from flyball.put_recipients(tenant,
        array(select g.value ->> 'id' from jsonb_array_elements(set_recipients.recipients) with ordinality as g(value, n) order by g.n),
        array(select g.value - 'id' from jsonb_array_elements(set_recipients.recipients) with ordinality as g(value, n) order by g.n),
        set_recipients.by, set_recipients.why) p;
end $$;
comment on function flyball.set_recipients is 'Sets the profiles of up to 1,000 recipients of the caller''s tenant, all or none.';

-- === Keys ========================================================================================

-- The key of parts, as core/src/recipient/address.rs computes it: the first 16 bytes of the SHA-256
-- of the parts, each with its length in bytes before it.
create function flyball.recipient_key(variadic parts text[]) returns uuid
language sql stable parallel safe
return (
    select encode(substring(sha256(string_agg(int8send(octet_length(b.bytes)::bigint) || b.bytes, ''::bytea order by p.n))
        from 1 for 16), 'hex')::uuid
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

-- === Quiet hours =================================================================================

-- Whether a time of the recipient's clock is in its quiet hours on one channel, as `QuietHours`
-- says.
create function flyball.is_quiet(hours jsonb, clock timestamp) returns boolean
language sql immutable parallel safe
return coalesce(hours -> 'dates' ? to_char(clock, 'YYYY-MM-DD'), false) or coalesce((
    select case
        -- Without times, whole days.
        when h.starts is null then (hours -> 'weekdays') ? to_char(clock, 'dy')
        when h.starts < h.ends then h.minute >= h.starts and h.minute < h.ends and h.today
        else h.minute >= h.starts and h.today or h.minute < h.ends and h.yesterday end
    from (
        select to_char(clock, 'HH24:MI') as minute, hours ->> 'start' as starts, hours ->> 'end' as ends,
            jsonb_typeof(hours -> 'weekdays') is distinct from 'array' or hours -> 'weekdays' ? to_char(clock, 'dy') as today,
            jsonb_typeof(hours -> 'weekdays') is distinct from 'array'
                or hours -> 'weekdays' ? to_char(clock - interval '1 day', 'dy') as yesterday
    ) h
), false);

-- The first instant after a quiet one that is not quiet: hours begin and end with a minute. Null if
-- there is none within eight days.
create function flyball.quiet_end(hours jsonb, at timestamptz, zone text) returns timestamptz
language sql stable
return (
    select m.minute
    from generate_series(date_trunc('minute', at) + interval '1 minute', at + interval '8 days', interval '1 minute') as m(minute)
    where not flyball.is_quiet(hours, m.minute at time zone zone)
    limit 1
);

-- === Caps ========================================================================================

-- The key of a list of sends, as `RecipientKey::list` computes it.
create function flyball.list_key(key uuid, kind text, name text) returns uuid
language sql stable parallel safe
return (
    select encode(substring(sha256(string_agg(int8send(octet_length(p.part)::bigint) || p.part, ''::bytea order by p.n))
        from 1 for 16), 'hex')::uuid
    from unnest(array['list'::bytea, uuid_send(key), convert_to(kind, 'UTF8'), convert_to(name, 'UTF8')]) with ordinality as p(part, n)
);

-- The number under which a list is stored: the first four bytes of its key.
create function flyball.list_number(key uuid) returns int
language sql immutable parallel safe
return ('x' || left(key::text, 8))::bit(32)::int;

-- The sender's own cap in the form of the rules in force; null if it has another form.
create function flyball.sender_cap(rule text) returns jsonb
language sql immutable parallel safe
return (
    select jsonb_build_object('rule', 'at_most ' || r.shown, 'shown', r.shown, 'most', r.most, 'span_s', r.span_s)
    from (
        select n.most, n.span_s, n.most || ' per ' || coalesce(n.span_s / u.length || u.unit, 'local_day') as shown
        from (
            select m[1]::int as most, m[3]::bigint * case m[4] when 's' then 1 when 'm' then 60 when 'h' then 3600 when 'd' then 86400
                when 'w' then 604800 end as span_s
            from regexp_match(rule, '^\s*(\d{1,4}) per \s*(?:(local_day)|(\d{1,9})([smhdw]))\s*$') as m
        ) n
        left join lateral (
            select * from (values ('w', 604800), ('d', 86400), ('h', 3600), ('m', 60), ('s', 1)) as v(unit, length)
            where n.span_s % v.length = 0 limit 1
        ) u on true
    ) r
    where r.most between 1 and 1000 and coalesce(r.span_s, 1) between 1 and 31622400
);

-- The first second, not before `t`, at which the rules of a list let one more message go, by
-- ascending times; and the rule that makes it wait. `CapRules::next` is the law.
create function flyball.cap_next(rules jsonb, times bigint[], t bigint, zone text, out at_s bigint, out rule text)
language plpgsql stable as $$
declare
    one      jsonb;
    had      constant int := cardinality(times);
    oldest   bigint;
    midnight timestamp;
    next_s   bigint;
begin
    at_s := t;
    -- The day is judged at the time that the other rules allow.
    for one in select r.value from jsonb_array_elements(rules) with ordinality as r(value, n)
        order by r.value ->> 'span_s' is null, r.n loop
        continue when had < (one ->> 'most')::int;
        oldest := times[had - (one ->> 'most')::int + 1];
        if one ->> 'span_s' is not null then
            next_s := oldest + (one ->> 'span_s')::bigint;
        else
            midnight := date_trunc('day', to_timestamp(at_s) at time zone zone);
            next_s := case when oldest >= extract(epoch from midnight at time zone zone)
                then extract(epoch from (midnight + interval '1 day') at time zone zone)::bigint else at_s end;
        end if;
        if next_s > at_s then
            at_s := next_s;
            rule := one ->> 'rule';
        end if;
    end loop;
end $$;

-- Whether one more message may go at `t` beside all of these times, earlier and later, in any
-- order. `CapRules::plan` has the same.
create function flyball.cap_has_room(rules jsonb, times bigint[], t bigint, zone text) returns boolean
language sql stable
return (
    select coalesce(bool_and(case
        -- Each window of the rule that holds `t` has fewer than the most.
        when r.span_s is not null then not exists (
            select from (
                select u.s, lead(u.s, r.most) over (order by u.s) as last
                from unnest(times || t) as u(s) where abs(u.s - t) < r.span_s
            ) w
            where w.last - w.s < r.span_s)
        else (select count(*) from unnest(times) as u(s) where u.s >= d.begins and u.s < d.ends) < r.most end), true)
    from jsonb_array_elements(rules) as e(rule)
    cross join lateral (select (e.rule ->> 'most')::int as most, (e.rule ->> 'span_s')::bigint as span_s) r
    cross join lateral (select date_trunc('day', to_timestamp(t) at time zone zone) as midnight) m
    cross join lateral (
        select extract(epoch from m.midnight at time zone zone) as begins,
            extract(epoch from (m.midnight + interval '1 day') at time zone zone) as ends
    ) d
);

-- Refuses jobs, just enqueued in this transaction, that are messages over a cap whose category
-- refuses more; the others reserve their second, so that the next call sees them. A message for
-- later, and one whose address SQL cannot read, is left to the planner, as is one of two
-- transactions that take the last room at the same time. A message that quiet hours hold is judged
-- at the time at which it may go, a message for which there is room goes whatever waits for later,
-- and an item is left to its digest. One with a local time is left to the planner, which knows the
-- instant. An inbox interrupts no one, so it has no caps of actors; `cap_lists` in
-- core/src/recipient/gates.rs has the same.
create function flyball.refuse_capped(owner_tenant text, ids bigint[], kinds text[], args jsonb[], run_ats timestamptz[],
    duplicates boolean[])
returns void
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    refusing  jsonb;
    one       record;
    list      record;
    category  jsonb;
    channel   text;
    person    text;
    recipient uuid;
    base      uuid;
    zones     text[];
    zone      text;
    lists     jsonb;
    at_most   jsonb;
    sent      bigint[];
    reserved  bigint[];
    planned   record;
    latest_s  bigint;
    latest    text;
    refuses   boolean;
    judged_s  bigint;
    collected jsonb;
    urgency   int;
    hours     jsonb;
    mode      text;
    asked_at  timestamptz;
begin
    for one in
        select g.n, g.id, g.args
        from unnest(ids, kinds, args, run_ats, duplicates) with ordinality as g(id, kind, args, run_at, duplicate, n)
        where flyball.needs_plan(g.kind, g.args) and not g.duplicate and (g.run_at is null or g.run_at <= now())
            and g.args ->> 'local_time' is null
        order by g.n
    loop
        if refusing is null then
            -- Types that collect a message by its name, and by its template.
            select r.refusing, jsonb_build_array(r.digest_texts, r.refusing -> 'collected') into refusing, collected
            from flyball.recipient_rules r;
            exit when not found;
        end if;
        category := case when refusing -> 'categories' ? coalesce(one.args ->> 'category', 'transactional')
            then refusing -> 'categories' -> coalesce(one.args ->> 'category', 'transactional') else refusing -> 'other' end;
        channel := one.args ->> 'channel';
        continue when category is null or jsonb_typeof(category) <> 'object' or channel is null;
        person := coalesce(one.args ->> 'recipient', case when channel = 'inapp' then one.args ->> 'to' end);
        recipient := case when person is not null
            then flyball.recipient_key('subscriber', owner_tenant, channel, person)
            else (select flyball.recipient_key('address', owner_tenant, channel, n)
                  from flyball.normal_recipient(channel, one.args ->> 'to') as n where n is not null) end;
        continue when recipient is null;
        urgency := (select j.priority from flyball.job j where j.id = one.id);
        -- An item is judged with its digest.
        continue when urgency >= 2
            and coalesce(collected -> 0 ? (one.args ->> 'digest') or collected -> 1 ? (one.args ->> 'template_id'), false);

        base := flyball.list_key(recipient, 'category', coalesce(one.args ->> 'category', 'transactional'));
        lists := jsonb_build_array(jsonb_build_object('list', flyball.list_number(base), 'rules', category -> 'caps' -> channel,
            'refuses', category -> 'refuses'));
        if one.args ->> 'actor' is not null and channel <> 'inapp' then
            lists := lists || jsonb_build_object('list', flyball.list_number(flyball.list_key(base, 'actor', one.args ->> 'actor')),
                'rules', category -> 'actor_caps', 'refuses', category -> 'actor_refuses');
        end if;
        at_most := flyball.sender_cap(one.args ->> 'at_most');
        if at_most is not null and one.args ->> 'template_id' is not null then
            lists := lists || jsonb_build_object('list', flyball.list_number(flyball.list_key(
                    flyball.list_key(recipient, 'template', one.args ->> 'template_id'), 'at_most', at_most ->> 'shown')),
                'rules', jsonb_build_array(at_most), 'refuses', category -> 'refuses');
        end if;
        -- The zone matters to rules of the local day, and to quiet hours.
        zones := array_remove(
            coalesce(
                (select array[case when channel = 'push' then p.profile ->> 'device_time_zone' end, p.profile ->> 'time_zone']
                 from flyball.recipient p where p.tenant = owner_tenant and p.id = person),
                '{}')
            || (select d.profile ->> 'time_zone' from flyball.recipient_defaults d where d.tenant = owner_tenant) || 'UTC'::text, null);

        asked_at := clock_timestamp();
        -- A zone that was known when it was written, and is not any more, counts as absent: the planner
        -- takes the next one too.
        foreach zone in array zones loop
            exit when zone = 'UTC';
            begin
                perform asked_at at time zone zone;
                exit;
            exception when invalid_parameter_value then
                null;
            end;
        end loop;
        judged_s := floor(extract(epoch from asked_at));
        mode := coalesce(category -> 'quiet' ->> channel, 'hold');
        hours := coalesce(
            (select nullif(p.profile -> 'quiet_hours' -> channel, 'null')
             from flyball.recipient p where p.tenant = owner_tenant and p.id = person),
            (select nullif(d.profile -> 'quiet_hours' -> channel, 'null') from flyball.recipient_defaults d where d.tenant = owner_tenant));
        -- Presets are for the planner.
        continue when channel = 'sms' and coalesce((category ->> 'has_presets')::boolean, false);
        if urgency > 0 and mode <> 'always' and flyball.is_quiet(hours, asked_at at time zone zone) then
            -- It ends, or caps judge the digest that it may become when it wakes.
            continue when mode = 'drop' or mode = 'digest_on_wake' and urgency >= 2;
            -- Caps judge it at the time at which it may go.
            asked_at := flyball.quiet_end(hours, asked_at, zone);
            continue when asked_at is null;
            judged_s := ceil(extract(epoch from asked_at));
        end if;
        latest_s := null;
        for list in
            select (l.value ->> 'list')::int as number, l.value -> 'rules' as rules,
                coalesce((l.value ->> 'refuses')::boolean, false) as refuses
            from jsonb_array_elements(lists) l where jsonb_array_length(coalesce(nullif(l.value -> 'rules', 'null'), '[]')) > 0
        loop
            sent := array(
                select s.second + 1577836800::bigint from flyball.cap c cross join lateral unnest(c.sent) as s(second)
                where c.recipient = recipient and c.list = list.number);
            reserved := array(
                select r.at_s + 1577836800::bigint from flyball.cap_reservation r
                where r.recipient = recipient and r.list = list.number and r.job_id <> one.id
                    and (exists (select from flyball.scheduled s where s.job_id = r.job_id offset 0)
                        or exists (
                            select from (select o.* from flyball.job o where o.id = r.job_id limit 1) j
                            cross join lateral (
                                select from flyball.ready h
                                where h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = j.id limit 1
                            ) h
                            offset 0)
                        or exists (select from flyball.lease l where l.job_id = r.job_id offset 0))
                order by r.at_s);
            select n.at_s, n.rule into planned
            from flyball.cap_next(list.rules, array(select u from unnest(sent || reserved) u order by u), judged_s, zone) n;
            -- A message that finds no place beside all that wait goes behind the last of them.
            if planned.at_s > judged_s and reserved[cardinality(reserved)] > judged_s then
                continue when flyball.cap_has_room(list.rules, sent || reserved, judged_s, zone);
                select n.at_s, coalesce(n.rule, planned.rule) as rule into planned
                from flyball.cap_next(list.rules, array(select u from unnest(sent || reserved) u order by u),
                    reserved[cardinality(reserved)], zone) n;
            end if;
            if planned.at_s > judged_s and planned.at_s > coalesce(latest_s, 0) then
                latest_s := planned.at_s;
                latest := planned.rule;
                refuses := list.refuses;
            end if;
        end loop;
        if latest_s is null then
            insert into flyball.cap_reservation (recipient, list, at_s, job_id, is_held)
            select recipient, (l.value ->> 'list')::int,
                ceil(extract(epoch from greatest(asked_at, clock_timestamp())))::bigint - 1577836800, one.id, asked_at > clock_timestamp()
            from jsonb_array_elements(lists) l where jsonb_array_length(coalesce(nullif(l.value -> 'rules', 'null'), '[]')) > 0;
        elsif refuses then
            raise exception using
                errcode = '53400',
                message = format('the recipient got as many messages as the rule %s allows; there is room at %s', latest,
                    to_char(to_timestamp(latest_s) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
                hint = 'RECIPIENT_CAPPED: nothing was enqueued.',
                constraint = 'recipient_capped', schema = latest, table = (one.n - 1)::text,
                datatype = to_char(to_timestamp(latest_s) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
        end if;
    end loop;
end $$;

-- Gives back what the gates took for a message whose waiting job gets another one: its claim, so
-- that an equal message is no duplicate of what never goes, and its places in the lists of sends.
-- What may have arrived keeps its claim, and the slots of an attempt wait for the next one. SQL
-- cannot read each address; its plan names the recipient as well, unless the message was to go at
-- once.
create function flyball.give_back_replaced(job flyball.job) returns void
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
declare
    channel constant text := job.args ->> 'channel';
    person  constant text := coalesce(job.args ->> 'recipient', case when channel = 'inapp' then job.args ->> 'to' end);
    keys    constant uuid[] := array[
        (select p.recipient from flyball.message_plan p where p.job_id = job.id limit 1),
        case when person is not null then flyball.recipient_key('subscriber', job.tenant, channel, person)
            else (select flyball.recipient_key('address', job.tenant, channel, n)
                  from flyball.normal_recipient(channel, job.args ->> 'to') as n where n is not null) end];
    claims  constant bigint[] := array(
        select distinct c.claim from unnest(keys) as k(key) cross join lateral flyball.claims_of(k.key, array[job.id]) as c(claim));
begin
    if claims <> '{}' and not exists (
        select from flyball.delivery d where d.job_id = job.id and d.attempts @> '[{"outcome": "ambiguous"}]' offset 0)
    then
        -- The caller has locked other jobs, so it waits for no planner.
        delete from flyball.dedup d
        where d.claim = any(array(
            select o.claim from flyball.dedup o
            where o.claim = any (claims) and o.job_id = job.id and o.at_s >= 0 order by o.claim for update skip locked));
    end if;
    delete from flyball.cap_reservation r where r.recipient = any (keys) and r.job_id = job.id;
end $$;

-- === Planners ====================================================================================

-- Takes messages out of the queue whose plan is due, at most `most`, the most urgent first, but
-- none that anybody has touched since it was scheduled: its row is locked or was, or its deletion
-- is under way. The caller puts each where its plan says, in the same transaction.
--
-- To lock the row first would write a record of the log for each message. Instead a planner has all
-- messages of a few runs of ids, as long as its transaction lasts: two of them that found the same
-- row would wait for each other. Should another transaction touch a row after it was found, this
-- waits for 50 ms and then fails, and the caller takes rows by locks.
create function flyball.take_unplanned(most bigint) returns setof flyball.scheduled
language plpgsql volatile set enable_seqscan = off set lock_timeout = '50ms' set search_path = pg_catalog, pg_temp set jit = off as $$
begin
    return query
    delete from flyball.scheduled s
    where s.ctid = any(array(
            select d.tid
            from (values (-4::smallint), (-3::smallint), (-2::smallint), (-1::smallint)) as p(turn)
            cross join lateral (
                select q.ctid as tid from flyball.scheduled q
                where (q.turn, q.run_at) >= (p.turn, '-infinity') and (q.turn, q.run_at) <= (p.turn, now())
                    and case when q.xmax = 0
                        then pg_try_advisory_xact_lock(hashtext('flyball.plan'), (q.job_id >> 9 & 255)::int) else false end
                order by q.turn, q.run_at
                limit most
            ) d
            limit most
        ))
        -- Again, for a row that was moved meanwhile.
        and coalesce(s.turn between -4 and -1 and s.run_at <= now(), false)
    returning s.*;
end $$;
comment on function flyball.take_unplanned is 'Takes messages whose plan is due out of the queue.';

-- === Planning again ==============================================================================

-- Lets held messages of recipients be planned again; returns their number. A planner that has taken
-- such a message out of the queue puts it back in a new row, which the second round sees. Open
-- digests that quiet hours, a cap or their pool keep beyond their windows ask the gates again: each
-- counts as one message. A digest that another transaction has locked keeps its time: its owner may
-- wait for another one that is locked here.
--
-- A message that somebody put off beyond the end of its hold keeps its time: its attempt asks the
-- gates. Those of a paused batch stay aside as well, because each would use a slot of its tenant to
-- wait at its pool: they are planned when it is resumed.
create function flyball.replan(recipients uuid[]) returns bigint
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
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
        where s.job_id = any(array(
                select p.job_id from (select distinct unnest(recipients) as recipient) r
                cross join lateral (
                    select h.job_id from flyball.message_plan h where h.recipient = r.recipient and h.state = 'held' offset 0
                ) p))
            and (s.turn >= 0 or s.run_at > now())
            and not exists (
                select from flyball.message_plan h where h.job_id = s.job_id and s.run_at > h.until + interval '1 minute' offset 0);
        get diagnostics more = row_count;
        moved := moved + more;
    end loop;
    if moved > 0 then
        perform pg_notify('flyball_plan', '');
    end if;
    -- Whoever has locked one resumes or cancels its batch, and may wait for what is locked here.
    with aside as materialized (
        select m.job_id, s.priority
        from (select distinct unnest(recipients) as recipient) r
        cross join lateral (
            select h.job_id, h.until from flyball.message_plan h where h.recipient = r.recipient and h.state = 'held' offset 0
        ) p
        cross join lateral (
            select q.priority from flyball.scheduled q where q.job_id = p.job_id and q.run_at >= now() + interval '3000 days' limit 1
        ) s
        cross join lateral (
            select b.job_id from flyball.batch_message b
            where b.job_id = p.job_id and b.resumes_at <= p.until + interval '1 minute' limit 1 for update skip locked
        ) m
    )
    update flyball.batch_message m
    set resumes_at = least(m.resumes_at, now()), resumes_turn = a.priority - 4
    from aside a
    where m.job_id = a.job_id;
    -- One probe of the index for each type.
    with recursive types as (
        (select d.type from flyball.digest d order by d.type limit 1)
        union all
        select (select d.type from flyball.digest d where d.type > t.type order by d.type limit 1) from types t where t.type is not null
    ),
    kept as materialized (
        select k.tid
        from types t
        cross join (select distinct unnest(recipients) as recipient) r
        cross join lateral (
            select d.ctid as tid from flyball.digest d
            where d.type = t.type and d.recipient = r.recipient and d.gate <> '' and coalesce(d.closes_at > now(), false)
            for no key update skip locked
        ) k
    )
    update flyball.digest d set closes_at = now() where d.ctid = any(array(select k.tid from kept k));
    get diagnostics more = row_count;
    return moved + more;
end $$;

-- The first profile of a recipient lets its held messages be planned again.
create function flyball.replan_created() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    perform flyball.replan(array(
        select k.key from created c cross join lateral unnest(flyball.recipient_keys(c.tenant, c.id, '{}')) as k(key)));
    return null;
end $$;

-- The first profile of a recipient changes what held until then: the defaults of its tenant.
create trigger recipient_plans after insert on flyball.recipient
referencing new table as created for each statement execute function flyball.replan_created();

-- A profile that changes lets the held messages of its recipient be planned again, once for all
-- profiles that a statement changes.
create function flyball.replan_recipient() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    perform flyball.replan(array(
        select k.key
        from after a
        join before b on b.tenant = a.tenant and b.id = a.id
        cross join lateral unnest(flyball.recipient_keys(a.tenant, a.id, '{}')) as k(key)
        where a.profile is distinct from b.profile));
    return null;
end $$;

-- A change by any entry point.
create trigger recipient_replans after update on flyball.recipient
referencing old table as before new table as after for each statement execute function flyball.replan_recipient();

-- === Erasing =====================================================================================

-- Attempts without the words of providers, which may quote the address.
create function flyball.without_reasons(attempts jsonb) returns jsonb
language sql immutable parallel safe
return (select coalesce(jsonb_agg(e.value || '{"reason": ""}' order by e.n), '[]')
    from jsonb_array_elements(attempts) with ordinality as e(value, n));

-- Whether an address of a channel is among these: normal forms, and spellings for what SQL cannot
-- read.
create function flyball.is_addressed_to(channel text, address text, normals text[], spellings text[]) returns boolean
language sql immutable parallel safe
return coalesce(channel || chr(31) || address = any (spellings)
    or channel || chr(31) || flyball.normal_recipient(channel, address) = any (normals), false);

-- The name of an erased recipient in the audit log. Nobody can read the id from it, and who knows
-- the id can compute it.
create function flyball.erased_name(tenant text, id text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
return 'erased:' || left(encode(flyball.keyed_digest(sha256(convert_to(tenant || chr(31) || id, 'UTF8'))), 'hex'), 16);

-- Ends messages of an erased recipient: those that wait and dead letters are cancelled, those that
-- run are asked to stop. Nothing that a person wrote or reads is left in their arguments. Returns
-- the number of those that will not be sent.
create function flyball.erase_messages(jobs bigint[]) returns bigint
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
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

-- Deletes the claims that jobs have among those of recipients, and those whose jobs are not kept
-- any more: nobody can tell whose they are, and in most databases no other key begins like theirs.
-- Returns their number. They are locked in the order of their numbers, as planners lock them. The
-- limit keeps Postgres from reading all jobs.
create function flyball.erase_claims(keys uuid[], jobs bigint[]) returns bigint
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
declare
    wanted constant bigint[] := array(
        select distinct c.claim
        from unnest(keys) as k(key)
        cross join lateral (
            select d.claim from flyball.dedup d
            where d.claim between flyball.first_claim(k.key) and (flyball.first_claim(k.key) | 1099511627775)
                and (d.job_id = any (jobs) or (select true from flyball.job j where j.id = d.job_id limit 1) is null)
        ) c);
    erased bigint;
begin
    perform from flyball.dedup d where d.claim = any (wanted) order by d.claim for update;
    delete from flyball.dedup d
    where d.claim = any (wanted)
        and (d.job_id = any (jobs) or (select true from flyball.job j where j.id = d.job_id limit 1) is null);
    get diagnostics erased = row_count;
    return erased;
end $$;

-- Erases a recipient of a tenant: its profile, what its caps and its dedup count, the items of its
-- open digests, its inbox, its messages that wait, the arguments of all, and its address in their
-- records. `keys` and `digests` add those that the caller computed: keys of recipients, and unkeyed
-- digests of addresses. Returns the numbers. It reads every message of the tenant that is kept, and
-- looks again for what planners and closers wrote meanwhile; items in digests of other keys end
-- too. Suppressions stay: they say that this address wants nothing, and the address cannot be read
-- there. It locks batches before their messages, as their cancellation does, then in the order of
-- planners, which take messages, then claims, lists and digests, and changes records at the end, as
-- planners and closers do: so none waits for the other. A digest that closes meanwhile leaves
-- messages, which the next look finds.
create function flyball.erase_recipient(tenant text, id text, keys uuid[], digests bytea[], by text, why text,
    out had_profile boolean, out caps bigint, out reservations bigint, out claims bigint, out digests_closed bigint,
    out items bigint, out messages bigint,
    out cancelled bigint, out arguments bigint, out inbox bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_column
declare
    old_profile  jsonb;
    all_keys     uuid[];
    all_digests  bytea[];
    current_type text;
    closed       bigint[];
    more         bigint[];
    all_jobs     bigint[] := '{}';
    fresh        bigint[];
    all_items    bigint[] := '{}';
    holding      bigint[];
    more_digests bigint;
    of_records   bigint[];
    addresses    text[];
    spellings    text[];
    shown        constant text := flyball.shown_recipient(erase_recipient.id);
    erased       constant text := case when shown = erase_recipient.id
        then flyball.erased_name(erase_recipient.tenant, erase_recipient.id) else shown end;
begin
    delete from flyball.recipient r where r.tenant = erase_recipient.tenant and r.id = erase_recipient.id
    returning r.profile into old_profile;
    had_profile := old_profile is not null;
    all_keys := coalesce(keys, '{}') || flyball.recipient_keys(erase_recipient.tenant, erase_recipient.id, old_profile);
    select array_agg(flyball.keyed_digest(k.known)) into all_digests
    from (
        select unnest(digests) as known
        union
        select flyball.known_digest(a.key, a.value)
        from jsonb_each_text(coalesce(nullif(old_profile -> 'addresses', 'null'), '{}')) as a(key, value)
        union
        -- In the inbox the id is the address.
        select flyball.known_digest('inapp', erase_recipient.id)
    ) k
    where k.known is not null;

    select coalesce(array_agg(a.key || chr(31) || flyball.normal_recipient(a.key, a.value))
            filter (where flyball.normal_recipient(a.key, a.value) is not null), '{}'),
        coalesce(array_agg(a.key || chr(31) || a.value), '{}')
    into addresses, spellings
    from jsonb_each_text(coalesce(nullif(old_profile -> 'addresses', 'null'), '{}')
        || jsonb_build_object('inapp', erase_recipient.id)) as a(key, value);

    digests_closed := 0;
    claims := 0;
    caps := 0;
    closed := '{}';
    cancelled := 0;
    -- Batches that are still being enqueued. What one has enqueued is committed when its row is
    -- locked, so the looks find it; what is left is left out here.
    perform from flyball.batch b where b.tenant = erase_recipient.tenant and b.messages <> '[]' order by b.id for update;
    with left_out as (
        select b.id, (
            select coalesce(jsonb_agg(m.value order by m.n), '[]') from jsonb_array_elements(b.messages) with ordinality as m(value, n)
            where not coalesce(m.value -> 'args' ->> 'recipient' = erase_recipient.id, false)
                and not flyball.is_addressed_to(
                    m.value -> 'args' ->> 'channel', m.value -> 'args' ->> 'to', addresses, spellings)) as messages
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
    -- Until nothing more is found: a planner writes what it found for its messages, and a closer
    -- the message of a digest, when they commit. The end of messages waits for those who have them,
    -- so another look sees what they wrote.
    for look in 1..10 loop
        if look = 1 then
            -- Two statements, because each has an index of its own.
            if erase_recipient.tenant = '' then
                of_records := array(
                    select d.job_id from flyball.delivery d where d.tenant = '' and d.recipient_digest = any (all_digests));
                all_jobs := array(
                    select j.id from flyball.job j
                    where j.tenant = '' and j.kind = 'notification' and (j.args ->> 'recipient' = erase_recipient.id
                        or flyball.is_addressed_to(j.args ->> 'channel', j.args ->> 'to', addresses, spellings)));
            else
                of_records := array(
                    select d.job_id from flyball.delivery d
                    where d.tenant = erase_recipient.tenant and d.tenant <> '' and d.recipient_digest = any (all_digests));
                all_jobs := array(
                    select j.id from flyball.job j
                    where j.tenant = erase_recipient.tenant and j.tenant <> '' and j.kind = 'notification'
                        and (j.args ->> 'recipient' = erase_recipient.id
                        or flyball.is_addressed_to(j.args ->> 'channel', j.args ->> 'to', addresses, spellings)));
            end if;
            select coalesce(array_agg(distinct u.id), '{}') into fresh from unnest(all_jobs || of_records) as u(id);
            all_jobs := fresh;
        else
            fresh := array(
                select p.job_id from flyball.message_plan p
                where p.recipient = any (all_keys) and exists (select from flyball.job j where j.id = p.job_id)
                    and not exists (select from unnest(all_jobs) as u(id) where u.id = p.job_id));
            exit when fresh = '{}' and closed = '{}';
            all_jobs := all_jobs || fresh;
        end if;
        cancelled := cancelled + flyball.erase_messages(fresh);
        claims := claims + flyball.erase_claims(all_keys, all_jobs);
        perform from flyball.cap c where c.recipient = any (all_keys) order by c.recipient, c.list for update;
        with gone as (delete from flyball.cap c where c.recipient = any (all_keys) returning 1) select caps + count(*) into caps from gone;
        -- One probe of the index for each type: an item that is being put into one is
        -- committed when the lock of its digest is granted, so the next statement sees it.
        closed := '{}';
        current_type := null;
        loop
            select d.type into current_type from flyball.digest d
            where current_type is null or d.type > current_type
            order by d.type limit 1;
            exit when not found;
            with gone as (delete from flyball.digest d where d.type = current_type and d.recipient = any (all_keys) returning d.id)
            select coalesce(array_agg(g.id), '{}') into more from gone g;
            closed := closed || more;
        end loop;
        digests_closed := digests_closed + cardinality(closed);
        with gone as (delete from flyball.digest_item i where i.digest_id = any (closed) returning i.job_id)
        select coalesce(array_agg(g.job_id), '{}') into more from gone g;
        all_items := all_items || more;
    end loop;
    messages := cardinality(of_records);
    arguments := cardinality(all_jobs);
    -- Items in digests of other keys, such as that of an earlier address.
    holding := array(select distinct i.digest_id from flyball.digest_item i where i.job_id = any (all_jobs));
    if holding <> '{}' then
        all_items := all_items || flyball.withdraw_items(all_jobs);
        delete from flyball.digest d where d.id = any (holding) and d.items = 0;
        get diagnostics more_digests = row_count;
        digests_closed := digests_closed + more_digests;
    end if;
    items := cardinality(all_items);
    update flyball.message_plan p set state = 'ended', gate = '', rule = '', reason = 'cancelled', holds = '[]', until = null
    where p.job_id = any (all_items) and p.state = 'collected';

    with gone as (delete from flyball.cap c where c.recipient = any (all_keys) returning 1) select caps + count(*) into caps from gone;
    with gone as (delete from flyball.cap_reservation c where c.recipient = any (all_keys) returning 1)
    select count(*) into reservations from gone;
    claims := claims + flyball.erase_claims(all_keys, all_jobs);

    -- A cancelled message has no record of its own, but one that was tried before has, and so has
    -- an item.
    update flyball.delivery d
    set recipient = '', recipient_digest = null, reason = case when s.is_cancelled then 'cancelled' else '' end,
        state = case when s.is_cancelled then 'failed' else d.state end, attempts = flyball.without_reasons(d.attempts)
    from (
        select h.job_id, h.state = 'queued' and not exists (select from flyball.lease l where l.job_id = h.job_id)
            or h.state = 'collected' and h.job_id = any (all_items) as is_cancelled
        from flyball.delivery h where h.job_id = any (all_jobs || all_items)
    ) s
    where d.job_id = s.job_id;
    update flyball.message_plan p
    set recipient = '00000000-0000-0000-0000-000000000000',
        state = case when p.state = 'held' then 'ended' else p.state end,
        reason = case when p.state = 'held' then 'cancelled' else p.reason end,
        gate = case when p.state = 'held' then '' else p.gate end, rule = case when p.state = 'held' then '' else p.rule end,
        holds = '[]', until = null
    where p.recipient = any (all_keys) or p.job_id = any (all_jobs);
    delete from flyball.recipient_backoff r where r.recipient_digest = any (all_digests);
    update flyball.delivery_event e set recipient_digest = null, reason = ''
    where e.job_id = any (all_jobs) or e.job_id is null and e.recipient_digest = any (all_digests);
    -- Earlier lines of the log keep what was done, under a name that does not reveal the recipient.
    update flyball.audit a set subject = erased
    where a.action in ('recipient.set', 'recipient.delete', 'recipient.replan') and a.subject = erase_recipient.id
        and shown = erase_recipient.id
        and coalesce(a.after ->> 'tenant', a.tenant, erase_recipient.tenant) = erase_recipient.tenant;

    inbox := flyball.erase_inbox(erase_recipient.tenant, erase_recipient.id);

    if had_profile or caps + reservations + claims + digests_closed + items + messages + cancelled + inbox > 0 then
        perform flyball.write_audit(null, flyball.audit_actor(by), 'recipient.delete', erased, null,
            jsonb_build_object('tenant', erase_recipient.tenant, 'profile', had_profile, 'caps', caps, 'reservations', reservations,
                'claims', claims, 'digests', digests_closed, 'items', items, 'messages', messages, 'cancelled', cancelled,
                'arguments', arguments, 'inbox', inbox),
            why);
    end if;
end $$;

-- Erases a recipient of the caller's tenant, with everything that is kept about it. Returns the
-- numbers; `profile` tells whether there was one.
create function flyball.delete_recipient(id text, by text default null, why text default '') returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    tenant constant text := flyball.recipient_tenant('delete_recipient');
begin
    perform flyball.check_recipient_id('delete_recipient', delete_recipient.id);
    return jsonb_build_object('profile', e.had_profile, 'caps', e.caps, 'reservations', e.reservations, 'claims', e.claims,
            'digests', e.digests_closed, 'items', e.items, 'messages', e.messages, 'cancelled', e.cancelled,
            'arguments', e.arguments, 'inbox', e.inbox)
        from flyball.erase_recipient(tenant, delete_recipient.id, '{}', '{}', delete_recipient.by, delete_recipient.why) e;
end $$;
comment on function flyball.delete_recipient is 'Erases a recipient of the caller''s tenant, with everything that is kept about it.';

-- === Maintenance =================================================================================

-- Deletes what no rule looks at any more, in one of 16 parts, in a bounded step; returns the number
-- of rows. `dedup_s` and `cap_s` are the longest windows of the rules, in seconds. A list or a
-- claim that another transaction has locked is left: it may be in use again.
create function flyball.prune_recipients(part int, dedup_s float8, cap_s float8, max_rows int default 20000) returns bigint
language plpgsql volatile as $$
declare
    of_messages text;
    removed     bigint;
    total       bigint := 0;
begin
    execute format('delete from flyball.dedup_%1$s where ctid = any(array(
        select d.ctid from flyball.dedup_%1$s d
        where abs(d.at_s) < extract(epoch from clock_timestamp()) - 1577836800
            - case when d.at_s < 0 then $1 else greatest($1, 31 * 86400.0) end
        limit $2 for update skip locked))', part)
    using dedup_s, max_rows;
    get diagnostics removed = row_count;
    total := total + removed;
    -- Seconds since 2020.
    execute format('delete from flyball.cap_%1$s where ctid = any(array(
        select c.ctid from flyball.cap_%1$s c
        where coalesce(c.sent[cardinality(c.sent)], 0) < extract(epoch from clock_timestamp()) - 1577836800 - $1
        limit $2 for update skip locked))', part)
    using cap_s, max_rows;
    get diagnostics removed = row_count;
    total := total + removed;
    if part = 0 then
        delete from flyball.held_crowd c where c.quarter < extract(epoch from clock_timestamp())::bigint / 900 - 96;
        delete from flyball.message_plan where ctid = any(array(
            select p.ctid from flyball.message_plan p
            where p.job_id < (flyball.day_of(now()) - 1) << 38 and not exists (select from flyball.job j where j.id = p.job_id)
            order by p.job_id limit max_rows));
        get diagnostics removed = row_count;
        total := total + removed;
        foreach of_messages in array array['ready', 'held'] loop
            execute format('delete from flyball.cap_reservation_%1$s where ctid = any(array(
                select r.ctid from flyball.cap_reservation_%1$s r
                where r.at_s < extract(epoch from clock_timestamp()) - 1577836800 - 86400
                    and not exists (select from flyball.scheduled s where s.job_id = r.job_id)
                    and not exists (select from flyball.lease l where l.job_id = r.job_id)
                limit $1))', of_messages)
            using max_rows;
            get diagnostics removed = row_count;
            total := total + removed;
        end loop;
    end if;
    return total;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.recipient_tenant, flyball.recipient_id_problem, flyball.check_recipient_id, flyball.is_date,
    flyball.profile_problems, flyball.check_profile, flyball.shown_recipient, flyball.put_recipients,
    flyball.set_recipient, flyball.recipient, flyball.put_recipient_defaults, flyball.set_recipient_defaults, flyball.recipient_problems,
    flyball.set_recipients, flyball.recipient_key, flyball.recipient_keys, flyball.is_quiet, flyball.quiet_end, flyball.list_key,
    flyball.list_number, flyball.sender_cap, flyball.cap_next, flyball.cap_has_room, flyball.refuse_capped,
    flyball.give_back_replaced, flyball.take_unplanned, flyball.replan, flyball.replan_created, flyball.replan_recipient,
    flyball.without_reasons, flyball.is_addressed_to, flyball.erased_name, flyball.erase_messages, flyball.erase_claims, flyball.erase_recipient, flyball.delete_recipient, flyball.prune_recipients
from public;
