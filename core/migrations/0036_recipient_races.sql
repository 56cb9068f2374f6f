-- Chapter 36: recipients: refusals at the time at which a message may go, and erasing beside planners.

-- === Caps ========================================================================================

-- Whether one more message may go at `t` beside all of these times, earlier and later, in any order.
-- `CapRules::plan` has the same.
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
        select extract(epoch from m.midnight at time zone zone) as begins, extract(epoch from (m.midnight + interval '1 day') at time zone zone) as ends
    ) d
);

-- === Quiet hours =================================================================================

-- Whether a time of the recipient's clock is in its quiet hours on one channel, as `QuietHours` says.
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
            jsonb_typeof(hours -> 'weekdays') is distinct from 'array' or hours -> 'weekdays' ? to_char(clock - interval '1 day', 'dy') as yesterday
    ) h
), false);

-- The first instant after a quiet one that is not quiet: hours begin and end with a minute. Null if there
-- is none within eight days.
create function flyball.quiet_end(hours jsonb, at timestamptz, zone text) returns timestamptz
language sql stable
return (
    select m.minute
    from generate_series(date_trunc('minute', at) + interval '1 minute', at + interval '8 days', interval '1 minute') as m(minute)
    where not flyball.is_quiet(hours, m.minute at time zone zone)
    limit 1
);

-- === Refusals ====================================================================================

-- As in 0014, but a message that quiet hours hold is judged at the time at which it may go, a message for
-- which there is room goes whatever waits for later, and an item is left to its digest.
create or replace function flyball.refuse_capped(owner_tenant text, ids bigint[], kinds text[], args jsonb[], run_ats timestamptz[], duplicates boolean[])
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
        -- The zone matters to rules of the local day, and to quiet hours.
        zone := coalesce(
            (select coalesce(case when channel = 'push' then p.profile ->> 'device_time_zone' end, p.profile ->> 'time_zone')
             from flyball.recipient p where p.tenant = owner_tenant and p.id = person),
            (select d.profile ->> 'time_zone' from flyball.recipient_defaults d where d.tenant = owner_tenant), 'UTC');

        asked_at := clock_timestamp();
        -- A zone that was known when it was written, and is not any more, counts as UTC.
        if zone <> 'UTC' then
            begin
                perform asked_at at time zone zone;
            exception when invalid_parameter_value then
                zone := 'UTC';
            end;
        end if;
        judged_s := floor(extract(epoch from asked_at));
        mode := coalesce(category -> 'quiet' ->> channel, 'hold');
        hours := coalesce(
            (select nullif(p.profile -> 'quiet_hours' -> channel, 'null') from flyball.recipient p where p.tenant = owner_tenant and p.id = person),
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
            insert into flyball.cap_reservation (recipient, list, at_s, job_id)
            select recipient, (l.value ->> 'list')::int, ceil(extract(epoch from greatest(asked_at, clock_timestamp())))::bigint - 1577836800, one.id
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

-- === Erasing =====================================================================================

-- As in 0012, but it looks again for what planners and closers wrote meanwhile, and items in digests of
-- other keys end too.
create or replace function flyball.erase_recipient(tenant text, id text, keys uuid[], digests bytea[], by text, why text,
    out had_profile boolean, out caps bigint, out reservations bigint, out claims bigint, out digests_closed bigint, out items bigint, out messages bigint,
    out cancelled bigint, out arguments bigint, out inbox bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
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

    digests_closed := 0;
    cancelled := 0;
    -- Until nothing more is found: a planner writes what it found for its messages, and a closer the message
    -- of a digest, when they commit. The end of messages waits for those who have them, so another look
    -- sees what they wrote.
    for look in 1..10 loop
        -- The digests first, one probe of the index for each type: an item that is being put into one is
        -- committed when the lock of its digest is granted, so the next statement sees it.
        closed := '{}';
        current_type := null;
        loop
            select d.type into current_type from flyball.digest d where current_type is null or d.type > current_type order by d.type limit 1;
            exit when not found;
            with gone as (delete from flyball.digest d where d.type = current_type and d.recipient = any (all_keys) returning d.id)
            select coalesce(array_agg(g.id), '{}') into more from gone g;
            closed := closed || more;
        end loop;
        digests_closed := digests_closed + cardinality(closed);
        with gone as (delete from flyball.digest_item i where i.digest_id = any (closed) returning i.job_id)
        select coalesce(array_agg(g.job_id), '{}') into more from gone g;
        all_items := all_items || more;

        if look = 1 then
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
    end loop;
    messages := cardinality(of_records);
    arguments := cardinality(all_jobs);
    -- Items in digests of other keys, such as that of an address of before.
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

    with gone as (delete from flyball.cap c where c.recipient = any (all_keys) returning 1) select count(*) into caps from gone;
    with gone as (delete from flyball.cap_reservation c where c.recipient = any (all_keys) returning 1) select count(*) into reservations from gone;
    with gone as (delete from flyball.dedup d where d.recipient = any (all_keys) returning 1) select count(*) into claims from gone;

    -- A cancelled message has no record of its own, but one that was tried before has, and so has an item.
    update flyball.delivery d
    set recipient = '', recipient_digest = null, reason = case when s.is_cancelled then 'cancelled' else '' end,
        state = case when s.is_cancelled then 'failed' else d.state end, attempts = flyball.without_reasons(d.attempts)
    from (
        select h.job_id, h.state = 'queued' and not exists (select from flyball.lease l where l.job_id = h.job_id)
            or h.state = 'collected' and h.job_id = any (all_items) as is_cancelled
        from flyball.delivery h where h.job_id = any (all_jobs || all_items)
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

-- === Upkeep ======================================================================================

-- As in 0011, but a list or a claim that somebody has locked is left: it may be in use again.
create or replace function flyball.prune_recipients(part int, dedup_s float8, cap_s float8, max_rows int default 20000) returns bigint
language plpgsql volatile as $$
declare
    removed bigint;
    total   bigint := 0;
begin
    execute format('delete from flyball.dedup_%1$s where ctid = any(array(
        select d.ctid from flyball.dedup_%1$s d
        where d.at < clock_timestamp() - make_interval(secs => case when d.is_marked then $1 else greatest($1, 31 * 86400.0) end)
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
        delete from flyball.cap_reservation where ctid = any(array(
            select r.ctid from flyball.cap_reservation r
            where r.at_s < extract(epoch from clock_timestamp()) - 1577836800 - 86400
                and not exists (select from flyball.scheduled s where s.job_id = r.job_id)
                and not exists (select from flyball.lease l where l.job_id = r.job_id)
            limit max_rows));
        get diagnostics removed = row_count;
        total := total + removed;
    end if;
    return total;
end $$;

revoke execute on function flyball.cap_has_room, flyball.is_quiet, flyball.quiet_end from public;
