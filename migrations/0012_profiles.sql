-- Chapter 12: profiles of recipients: the functions that write, show and erase them.
--
-- The shape of a profile is checked here; `Profile::parse` in src/recipient/profile.rs checks all of
-- it. No message and no line of the audit log shows an address.

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

-- Refuses the id of a recipient that no message could name, or that is the name of a route.
create function flyball.check_recipient_id(what text, id text) returns void
language plpgsql stable as $$
begin
    if check_recipient_id.id is null or octet_length(check_recipient_id.id) not between 1 and 128 or check_recipient_id.id ~ '[[:cntrl:]]' then
        perform flyball.refuse(what, 'id', 'must be a text of 1 to 128 bytes without control characters');
    elsif check_recipient_id.id in ('check', '.', '..') then
        perform flyball.refuse(what, 'id', 'must not be check, . or .., which cannot be in a path');
    end if;
end $$;

-- Refuses a profile of another shape; `allowed` lists its fields.
create function flyball.check_profile(what text, profile jsonb, allowed text[]) returns void
language plpgsql stable as $$
#variable_conflict use_column
declare
    channels    constant text[] := array['sms', 'email', 'push', 'chat', 'webhook'];
    hours       constant text[] := array['start', 'end', 'all_day', 'weekdays', 'dates'];
    preferences constant text[] := array['all', 'categories', 'templates'];
    field       text;
    problem     text;
    zone        text;
begin
    if check_profile.profile is null or jsonb_typeof(check_profile.profile) <> 'object' then
        perform flyball.refuse(what, 'profile', format('must be a JSON object; its fields are %s', array_to_string(allowed, ', ')));
    end if;
    with top as (
        select f.key, f.value, jsonb_typeof(f.value) as kind from jsonb_each(check_profile.profile) f where jsonb_typeof(f.value) <> 'null'
    ),
    below as (
        select t.key as part, f.key, f.value, jsonb_typeof(f.value) as kind
        from top t cross join lateral jsonb_each(case when t.kind = 'object' then t.value else '{}' end) f
    )
    select p.field, p.problem into field, problem
    from (
        select t.key as field, format('is not a field of it; allowed are %s', array_to_string(allowed, ', ')) as problem
        from top t where t.key <> all (allowed)
        union all
        select t.key, 'must be an object' from top t
        where t.key in ('addresses', 'quiet_hours', 'preferences') and t.kind <> 'object'
        union all
        select t.key, 'must be the IANA name of a time zone, such as Europe/Berlin' from top t
        where t.key in ('time_zone', 'device_time_zone') and (t.kind <> 'string' or octet_length(t.value #>> '{}') not between 1 and 128)
        union all
        -- The name is not told: somebody may have written the address there.
        select b.part, format('has a name that is no channel; allowed are %s', array_to_string(channels, ', ')) from below b
        where b.part in ('addresses', 'quiet_hours') and b.key <> all (channels)
        union all
        select 'addresses.' || b.key, 'must be a text of 1 to 2048 bytes' from below b
        where b.part = 'addresses' and b.key = any (channels) and (b.kind <> 'string' or octet_length(b.value #>> '{}') not between 1 and 2048)
        union all
        select 'quiet_hours.' || b.key, format('must be an object; its fields are %s', array_to_string(hours, ', ')) from below b
        where b.part = 'quiet_hours' and b.key = any (channels) and (b.kind <> 'object' or b.value - hours <> '{}')
        union all
        select 'preferences', format('must have the fields %s alone', array_to_string(preferences, ', ')) from below b
        where b.part = 'preferences' and b.key <> all (preferences)
    ) p
    order by p.field, p.problem limit 1;
    if field is not null then
        perform flyball.refuse(what, field, problem);
    end if;
    foreach field in array array['time_zone', 'device_time_zone'] loop
        zone := check_profile.profile ->> field;
        begin
            perform now() at time zone zone;
        exception when invalid_parameter_value then
            perform flyball.refuse(what, field, 'must be the IANA name of a time zone, such as Europe/Berlin');
        end;
    end loop;
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
        insert into flyball.recipient as r (tenant, id, profile)
        select put_recipients.tenant, g.id, jsonb_strip_nulls(g.profile)
        from unnest(put_recipients.ids, put_recipients.profiles) as g(id, profile)
        order by g.id
        on conflict on constraint recipient_pkey do update set profile = excluded.profile, updated_at = clock_timestamp()
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
    insert into flyball.recipient_defaults as d (tenant, profile) values (put_recipient_defaults.tenant, after)
    on conflict on constraint recipient_defaults_pkey do update set profile = excluded.profile, updated_at = clock_timestamp();
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

-- The key of parts, as src/recipient/address.rs computes it: the first 16 bytes of the SHA-256 of the
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
        from unnest(array['sms', 'email', 'push', 'chat', 'webhook']) as c(channel)
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

-- Erases a recipient of a tenant: its profile, what its caps and its dedup count, the items of its
-- open digests, and its address in the records of the tenant's messages. `keys` and `digests` add
-- those that the caller computed: keys of recipients, and unkeyed digests of addresses. Returns the
-- numbers. Suppressions stay: they say that this address wants nothing, and nobody can read it there.
create function flyball.erase_recipient(tenant text, id text, keys uuid[], digests bytea[], by text, why text,
    out had_profile boolean, out caps bigint, out reservations bigint, out claims bigint, out digests_closed bigint, out items bigint, out messages bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    old_profile  jsonb;
    all_keys     uuid[];
    all_digests  bytea[];
    current_type text;
    closed       bigint[] := '{}';
    more         bigint[];
begin
    delete from flyball.recipient r where r.tenant = erase_recipient.tenant and r.id = erase_recipient.id returning r.profile into old_profile;
    had_profile := old_profile is not null;
    all_keys := coalesce(keys, '{}') || flyball.recipient_keys(erase_recipient.tenant, erase_recipient.id, old_profile);
    select array_agg(flyball.keyed_digest(k.known)) into all_digests
    from (
        select unnest(digests) as known
        union
        select flyball.known_digest(a.key, a.value) from jsonb_each_text(coalesce(nullif(old_profile -> 'addresses', 'null'), '{}')) as a(key, value)
    ) k
    where k.known is not null;

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

    if erase_recipient.tenant = '' then
        with gone as (
            update flyball.delivery d
            set recipient = '', recipient_digest = null, reason = '', attempts = flyball.without_reasons(d.attempts)
            where d.tenant = '' and d.recipient_digest = any (all_digests) returning 1
        )
        select count(*) into messages from gone;
    else
        with gone as (
            update flyball.delivery d
            set recipient = '', recipient_digest = null, reason = '', attempts = flyball.without_reasons(d.attempts)
            where d.tenant = erase_recipient.tenant and d.tenant <> '' and d.recipient_digest = any (all_digests) returning 1
        )
        select count(*) into messages from gone;
    end if;

    if had_profile or caps + reservations + claims + digests_closed + items + messages > 0 then
        perform flyball.write_audit(null, flyball.audit_actor(by), 'recipient.delete', flyball.shown_recipient(erase_recipient.id), null,
            jsonb_build_object('tenant', erase_recipient.tenant, 'profile', had_profile, 'caps', caps, 'reservations', reservations, 'claims', claims,
                'digests', digests_closed, 'items', items, 'messages', messages),
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
            'digests', e.digests_closed, 'items', e.items, 'messages', e.messages)
        from flyball.erase_recipient(tenant, delete_recipient.id, '{}', '{}', delete_recipient.by, delete_recipient.why) e;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.recipient_tenant, flyball.check_recipient_id, flyball.check_profile, flyball.shown_recipient,
    flyball.put_recipients, flyball.set_recipient, flyball.recipient(text), flyball.put_recipient_defaults, flyball.set_recipient_defaults,
    flyball.recipient_key, flyball.recipient_keys, flyball.without_reasons, flyball.erase_recipient, flyball.delete_recipient
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
