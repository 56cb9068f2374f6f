-- Chapter 14: recipients by SQL: refusals before anything is accepted, and many profiles at once.

-- === Rules =======================================================================================

-- The rules in force, as far as SQL needs them: the caps over which messages are refused. Every process
-- with a file of rules writes them when it starts and when the file changes; the last one counts.
create table flyball.recipient_rules (
    one        boolean     primary key default true check (one),
    -- The file as its process names it; '' for the rules that ship.
    file       text        not null,
    -- The time of its last change; null for no file.
    changed_at timestamptz,
    -- By category, null for one that refuses nothing: caps by channel, those for each actor, and over
    -- which of them it refuses; `other` has those of categories that are not listed.
    refusing   jsonb       not null,
    loaded_at  timestamptz not null default clock_timestamp()
);

-- === Caps ========================================================================================

-- The key of a list of sends, as `RecipientKey::list` computes it.
create function flyball.list_key(key uuid, kind text, name text) returns uuid
language sql stable parallel safe
return (
    select encode(substring(sha256(string_agg(int8send(octet_length(p.part)::bigint) || p.part, ''::bytea order by p.n)) from 1 for 16), 'hex')::uuid
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

-- The first second, not before `t`, at which the rules of a list let one more message go, by ascending
-- times; and the rule that makes it wait. `CapRules::next` is the law.
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
    for one in select r.value from jsonb_array_elements(rules) with ordinality as r(value, n) order by r.value ->> 'span_s' is null, r.n loop
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

-- Refuses jobs, just enqueued in this transaction, that are messages over a cap whose category refuses
-- more; the others reserve their second, so that the next call sees them. A message for later, and one
-- whose address SQL cannot read, is left to the planner, as is one of two transactions that take the
-- last room at the same time.
create function flyball.refuse_capped(owner_tenant text, ids bigint[], kinds text[], args jsonb[], run_ats timestamptz[], duplicates boolean[])
returns void
language plpgsql volatile set enable_seqscan = off as $$
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
begin
    for one in
        select g.n, g.id, g.args
        from unnest(ids, kinds, args, run_ats, duplicates) with ordinality as g(id, kind, args, run_at, duplicate, n)
        where flyball.needs_plan(g.kind, g.args) and not g.duplicate and (g.run_at is null or g.run_at <= now())
        order by g.n
    loop
        if refusing is null then
            select r.refusing into refusing from flyball.recipient_rules r;
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

        base := flyball.list_key(recipient, 'category', coalesce(one.args ->> 'category', 'transactional'));
        lists := jsonb_build_array(jsonb_build_object('list', flyball.list_number(base), 'rules', category -> 'caps' -> channel,
            'refuses', category -> 'refuses'));
        if one.args ->> 'actor' is not null then
            lists := lists || jsonb_build_object('list', flyball.list_number(flyball.list_key(base, 'actor', one.args ->> 'actor')),
                'rules', category -> 'actor_caps', 'refuses', category -> 'actor_refuses');
        end if;
        at_most := flyball.sender_cap(one.args ->> 'at_most');
        if at_most is not null and one.args ->> 'template_id' is not null then
            lists := lists || jsonb_build_object('list', flyball.list_number(flyball.list_key(
                    flyball.list_key(recipient, 'template', one.args ->> 'template_id'), 'at_most', at_most ->> 'shown')),
                'rules', jsonb_build_array(at_most), 'refuses', category -> 'refuses');
        end if;
        -- The zone matters to rules of the local day alone.
        zone := coalesce(
            (select coalesce(case when channel = 'push' then p.profile ->> 'device_time_zone' end, p.profile ->> 'time_zone')
             from flyball.recipient p where p.tenant = owner_tenant and p.id = person),
            (select d.profile ->> 'time_zone' from flyball.recipient_defaults d where d.tenant = owner_tenant), 'UTC');

        judged_s := floor(extract(epoch from clock_timestamp()));
        latest_s := null;
        for list in
            select (l.value ->> 'list')::int as number, l.value -> 'rules' as rules, coalesce((l.value ->> 'refuses')::boolean, false) as refuses
            from jsonb_array_elements(lists) l where jsonb_array_length(coalesce(nullif(l.value -> 'rules', 'null'), '[]')) > 0
        loop
            sent := array(
                select s.second + 1577836800::bigint from flyball.cap c cross join lateral unnest(c.sent) as s(second)
                where c.recipient = recipient and c.list = list.number);
            reserved := array(
                select r.at_s + 1577836800::bigint from flyball.cap_reservation r
                where r.recipient = recipient and r.list = list.number and r.job_id <> one.id
                    and (exists (select from flyball.scheduled s where s.job_id = r.job_id)
                        or exists (
                            select from flyball.job j
                            join flyball.ready h on h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = j.id
                            where j.id = r.job_id)
                        or exists (select from flyball.lease l where l.job_id = r.job_id))
                order by r.at_s);
            select n.at_s, n.rule into planned
            from flyball.cap_next(list.rules, array(select u from unnest(sent || reserved) u order by u), judged_s, zone) n;
            -- A message that finds no place now goes behind the last that waits.
            if planned.at_s > judged_s and reserved[cardinality(reserved)] > judged_s then
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
            insert into flyball.cap_reservation (recipient, list, at_s, job_id)
            select recipient, (l.value ->> 'list')::int, ceil(extract(epoch from clock_timestamp()))::bigint - 1577836800, one.id
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

-- === Many profiles ===============================================================================

-- Everything that is wrong with recipients to set: the index of each from 0, its field, and what is
-- allowed instead. No row shows a value.
create function flyball.recipient_problems(recipients jsonb) returns table (index int, field text, problem text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    allowed constant text[] := array['addresses', 'time_zone', 'device_time_zone', 'quiet_hours', 'preferences'];
begin
    if recipients is null or jsonb_typeof(recipients) <> 'array' or jsonb_array_length(recipients) not between 1 and 1000 then
        return query select null::int, 'recipients', 'must be a JSON array of 1 to 1000 recipients, each an object with an id and the fields of a profile';
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
        select g.at, w.field, w.problem from given g cross join lateral flyball.profile_problems(g.value - 'id', allowed) w where g.is_object
    ) p
    where p.problem is not null
    order by p.at, p.field, p.problem;
end $$;

-- Sets the profiles of 1 to 1,000 recipients of the caller's tenant, all or none: a JSON array of
-- objects with an `id` and the fields of a profile. Tells how many are new and how many others changed.
-- An error names the first thing that is wrong; its detail has all of them, up to 100.
create function flyball.set_recipients(recipients jsonb, by text default null, why text default '', out created bigint, out changed bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    tenant constant text := flyball.recipient_tenant('set_recipients');
    first  record;
    lines  text;
begin
    select p.index, p.field, p.problem into first from flyball.recipient_problems(set_recipients.recipients) p limit 1;
    if found then
        select string_agg(format('recipients%s%s: %s', '[' || p.index || ']', coalesce('.' || nullif(nullif(p.field, ''), 'recipients'), ''), p.problem),
                E'\n' order by p.index, p.field, p.problem)
        into lines
        from (select * from flyball.recipient_problems(set_recipients.recipients) q where q.index is not null limit 100) p;
        raise exception using errcode = '22023', column = first.field, table = coalesce(first.index::text, ''),
            message = format('set_recipients: recipients%s%s: %s', coalesce('[' || first.index || ']', ''),
                coalesce('.' || nullif(nullif(first.field, ''), 'recipients'), ''), first.problem),
            detail = coalesce(lines, ''), hint = 'Nothing was changed.';
    end if;
    select p.created, p.changed into created, changed
    from flyball.put_recipients(tenant, array(select g.value ->> 'id' from jsonb_array_elements(set_recipients.recipients) with ordinality as g(value, n) order by g.n),
        array(select g.value - 'id' from jsonb_array_elements(set_recipients.recipients) with ordinality as g(value, n) order by g.n),
        set_recipients.by, set_recipients.why) p;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.list_key, flyball.list_number, flyball.sender_cap, flyball.cap_next, flyball.refuse_capped,
    flyball.recipient_problems, flyball.set_recipients
from public;

comment on table flyball.recipient_rules is 'The rules for recipients in force, as far as SQL needs them.';
comment on function flyball.set_recipients is 'Sets the profiles of up to 1,000 recipients of the caller''s tenant, all or none.';
comment on function flyball.recipient_problems is 'Everything that is wrong with recipients to set, one row each.';
