-- Chapter 32: inboxes in which nobody waits for another, and channels whose end has gone back.

-- === Deliveries ==================================================================================

-- As `deliver_inbox` in 0015, but an inbox that another transaction has locked is left out unless it is to be
-- waited for: `kept` of its messages is null, and nothing was written. So a transaction that marks messages
-- and stays open delays none of others. Every lock is waited for a second at most.
create function flyball.deliver_inboxes(jobs bigint[], recipients text[], subjects text[], bodies text[], waits boolean)
returns table (job_id bigint, kept boolean)
language plpgsql volatile set enable_seqscan = off set lock_timeout = '1s' as $$
#variable_conflict use_column
declare
    busy_tenants    text[] := '{}';
    busy_recipients text[] := '{}';
    full_tenants    text[];
    written         bigint[];
begin
    if not waits then
        with inbox as materialized (
            select distinct j.tenant, g.recipient
            from unnest(jobs, recipients) as g(job_id, recipient)
            cross join lateral (select h.tenant from flyball.job h where h.id = g.job_id limit 1) j
        ),
        known as materialized (
            select i.tenant, i.recipient from inbox i
            cross join lateral (select from flyball.inbox_count c where c.tenant = i.tenant and c.recipient = i.recipient limit 1) c
        ),
        free as materialized (
            select l.tenant, l.recipient from inbox i
            cross join lateral (
                select c.tenant, c.recipient from flyball.inbox_count c where c.tenant = i.tenant and c.recipient = i.recipient
                limit 1 for update skip locked
            ) l
        )
        select coalesce(array_agg(k.tenant), '{}'), coalesce(array_agg(k.recipient), '{}') into busy_tenants, busy_recipients
        from known k
        where not exists (select from free f where f.tenant = k.tenant and f.recipient = k.recipient);
    end if;

    insert into flyball.inbox_count as c (tenant, recipient)
    select distinct j.tenant, g.recipient
    from unnest(jobs, recipients) as g(job_id, recipient)
    cross join lateral (select h.tenant from flyball.job h where h.id = g.job_id limit 1) j
    where not exists (select from unnest(busy_tenants, busy_recipients) as b(tenant, recipient) where b.tenant = j.tenant and b.recipient = g.recipient)
    order by 1, 2
    -- An inbox that is known is locked and not changed.
    on conflict on constraint inbox_count_pkey do update set unseen = c.unseen where false;

    select coalesce(array_agg(t.tenant), '{}') into full_tenants
    from (
        select distinct j.tenant from unnest(jobs) as g(job_id)
        cross join lateral (select h.tenant from flyball.job h where h.id = g.job_id limit 1) j
    ) t
    where flyball.is_publication_full(t.tenant);

    with added as (
        insert into flyball.inbox_message (tenant, recipient, job_id, category, template_id, actor, subject, body, data)
        select j.tenant, g.recipient, g.job_id, coalesce(j.args ->> 'category', 'transactional'), j.args ->> 'template_id', j.args ->> 'actor',
            g.subject, g.body,
            case when jsonb_typeof(j.args -> 'data') = 'object' and octet_length((j.args -> 'data')::text) <= 32768
                then j.args -> 'data' else '{}' end
        from unnest(jobs, recipients, subjects, bodies) with ordinality as g(job_id, recipient, subject, body, n)
        cross join lateral (select h.tenant, h.args from flyball.job h where h.id = g.job_id limit 1) j
        where j.tenant <> all (full_tenants)
            and not exists (select from unnest(busy_tenants, busy_recipients) as b(tenant, recipient) where b.tenant = j.tenant and b.recipient = g.recipient)
        order by g.n
        on conflict on constraint inbox_message_job_id_key do nothing
        returning job_id
    )
    select array_agg(a.job_id) into written from added a;

    if written is not null then
        update flyball.inbox_count c set unseen = c.unseen + m.messages, unread = c.unread + m.messages
        from (select h.tenant, h.recipient, count(*) as messages from flyball.inbox_message h where h.job_id = any (written) group by 1, 2) m
        where c.tenant = m.tenant and c.recipient = m.recipient;

        insert into flyball.publication (tenant, channel, data)
        select m.tenant, '$inbox/' || m.recipient,
            jsonb_build_object('type', 'message', 'message', flyball.inbox_entry(m), 'unseen', c.unseen, 'unread', c.unread)
        from flyball.inbox_message m
        join flyball.inbox_count c on c.tenant = m.tenant and c.recipient = m.recipient
        where m.job_id = any (written)
        order by m.id;
        perform pg_notify('flyball_publish', '');
    end if;

    return query
    select g.job_id, case when not exists (select from unnest(busy_tenants, busy_recipients) as b(tenant, recipient) where b.tenant = j.tenant and b.recipient = g.recipient)
        then j.tenant <> all (full_tenants) end
    from unnest(jobs, recipients) as g(job_id, recipient)
    cross join lateral (select h.tenant from flyball.job h where h.id = g.job_id limit 1) j;
end $$;

-- As in 0015: an inbox that another transaction has locked is waited for.
create or replace function flyball.deliver_inbox(jobs bigint[], recipients text[], subjects text[], bodies text[])
returns table (job_id bigint, kept boolean)
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_column
begin
    insert into flyball.inbox_count as c (tenant, recipient)
    select distinct j.tenant, g.recipient
    from unnest(jobs, recipients) as g(job_id, recipient)
    cross join lateral (select h.tenant from flyball.job h where h.id = g.job_id limit 1) j
    order by 1, 2
    on conflict on constraint inbox_count_pkey do update set unseen = c.unseen where false;
    return query select f.job_id, f.kept from flyball.deliver_inboxes(jobs, recipients, subjects, bodies, true) f;
end $$;

-- === Marks =======================================================================================

-- As `mark_inbox_messages` in 0015, and the devices are told of it only while fewer than `told_max`
-- publications of the tenant wait. A mark that is to be told while an earlier one of the inbox waits takes
-- its place, so however often messages are marked, one publication of the inbox waits. An inbox that another
-- transaction has locked is waited for three seconds. With null every mark is told by itself and waits as long
-- as it takes: the caller's transaction may last, and a collector would wait for what it replaces.
create function flyball.mark_inbox_within(tenant text, recipient text, mark text, ids bigint[], up_to bigint, up_to_time timestamptz, most int, told_max bigint,
    out changed bigint, out more boolean, out unseen bigint, out unread bigint)
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_column
declare
    last_id     constant bigint := coalesce(up_to, 9223372036854775807);
    last_time   constant timestamptz := coalesce(up_to_time, 'infinity');
    own_channel constant text := '$inbox/' || mark_inbox_within.recipient;
    told_mark   text := mark;
    told_ids    jsonb := (select jsonb_agg(i.id::text order by i.n) from unnest(ids) with ordinality as i(id, n));
    told_all    text := coalesce(up_to::text, flyball.time_text(up_to_time));
    earlier     record;
begin
    changed := 0;
    more := false;
    if told_max is not null then
        -- A connection for a mark is not one that claims jobs.
        perform set_config('lock_timeout', '3s', true);
    end if;
    select c.unseen, c.unread into unseen, unread from flyball.inbox_count c
    where c.tenant = mark_inbox_within.tenant and c.recipient = mark_inbox_within.recipient for update;
    if not found then
        unseen := 0;
        unread := 0;
        return;
    end if;
    -- A branch for each mark, because each has an index of its own.
    with target as materialized (
        (select m.id, m.seen_at, m.read_at, m.archived_at from flyball.inbox_message m
         where ids is not null and m.id = any (ids) and m.tenant = mark_inbox_within.tenant and m.recipient = mark_inbox_within.recipient
             and case mark when 'seen' then m.seen_at is null when 'read' then m.read_at is null when 'unread' then m.read_at is not null
                 when 'archived' then m.archived_at is null else m.archived_at is not null end)
        union all
        (select m.id, m.seen_at, m.read_at, m.archived_at from flyball.inbox_message m
         where ids is null and mark = 'seen' and m.tenant = mark_inbox_within.tenant and m.recipient = mark_inbox_within.recipient
             and m.seen_at is null and m.archived_at is null and m.id <= last_id and m.created_at <= last_time
         order by m.id limit most)
        union all
        (select m.id, m.seen_at, m.read_at, m.archived_at from flyball.inbox_message m
         where ids is null and mark = 'read' and m.tenant = mark_inbox_within.tenant and m.recipient = mark_inbox_within.recipient
             and m.read_at is null and m.archived_at is null and m.id <= last_id and m.created_at <= last_time
         order by m.id limit most)
        union all
        (select m.id, m.seen_at, m.read_at, m.archived_at from flyball.inbox_message m
         where ids is null and mark in ('unread', 'archived') and m.tenant = mark_inbox_within.tenant
             and m.recipient = mark_inbox_within.recipient and m.archived_at is null and (mark = 'archived' or m.read_at is not null)
             and m.id <= last_id and m.created_at <= last_time
         order by m.id limit most)
        union all
        (select m.id, m.seen_at, m.read_at, m.archived_at from flyball.inbox_message m
         where ids is null and mark = 'unarchived' and m.tenant = mark_inbox_within.tenant and m.recipient = mark_inbox_within.recipient
             and m.archived_at is not null and m.id <= last_id and m.created_at <= last_time
         order by m.id limit most)
    ),
    marked as (
        update flyball.inbox_message m
        set seen_at = case when mark in ('seen', 'read', 'archived') then coalesce(m.seen_at, clock_timestamp()) else m.seen_at end,
            read_at = case mark when 'read' then coalesce(m.read_at, clock_timestamp()) when 'unread' then null else m.read_at end,
            archived_at = case mark when 'archived' then coalesce(m.archived_at, clock_timestamp()) when 'unarchived' then null else m.archived_at end
        from target t
        where m.tenant = mark_inbox_within.tenant and m.recipient = mark_inbox_within.recipient and m.id = t.id
        returning (m.seen_at is null and m.archived_at is null)::int - (t.seen_at is null and t.archived_at is null)::int as unseen,
            (m.read_at is null and m.archived_at is null)::int - (t.read_at is null and t.archived_at is null)::int as unread
    )
    select count(*), mark_inbox_within.unseen + coalesce(sum(k.unseen), 0), mark_inbox_within.unread + coalesce(sum(k.unread), 0)
    into changed, unseen, unread
    from marked k;
    if changed = 0 then
        return;
    end if;
    more := ids is null and changed >= most;
    update flyball.inbox_count c set unseen = mark_inbox_within.unseen, unread = mark_inbox_within.unread
    where c.tenant = mark_inbox_within.tenant and c.recipient = mark_inbox_within.recipient;
    -- The inbox is right without the news; a device that lists it again sees that, and the next mark that
    -- is told has the counts.
    if flyball.is_publication_full(mark_inbox_within.tenant) or told_max is not null and exists (
        select from flyball.publication p where p.tenant = mark_inbox_within.tenant offset greatest(told_max, 1) - 1 limit 1
    ) then
        return;
    end if;
    if told_max is not null then
        -- One that waits still is replaced: its counts are of the past. A collector that has it is not
        -- waited for.
        with newest as materialized (
            select p.id, p.channel from flyball.publication p
            where p.tenant = mark_inbox_within.tenant order by p.tenant desc, p.id desc limit 200
        ),
        waiting as materialized (
            select p.id, p.data from flyball.publication p
            where p.id = any (array(select n.id from newest n where n.channel = own_channel)) and p.data ->> 'type' = 'counts'
            for update of p skip locked
        ),
        gone as (
            delete from flyball.publication p using waiting w where p.id = w.id
        )
        select bool_and(coalesce(w.data ->> 'as' = mark and jsonb_typeof(w.data -> 'ids') = 'array', false)) as has_ids,
            bool_and(coalesce(w.data ->> 'as' = mark and w.data ->> 'all_up_to' = told_all, false)) as is_same,
            (
                select jsonb_agg(i.id order by e.id, i.n) from waiting e
                cross join lateral jsonb_array_elements_text(case jsonb_typeof(e.data -> 'ids') when 'array' then e.data -> 'ids' else '[]' end)
                    with ordinality as i(id, n)
                where told_ids is null or not told_ids ? i.id
            ) as ids
        into earlier
        from waiting w;
        if told_ids is not null and earlier.has_ids and jsonb_array_length(told_ids) + coalesce(jsonb_array_length(earlier.ids), 0) <= 1000 then
            told_ids := coalesce(earlier.ids, '[]') || told_ids;
        elsif not earlier.is_same then
            -- Several marks: a device lists again.
            told_mark := null;
            told_ids := null;
            told_all := null;
        end if;
    end if;
    insert into flyball.publication (tenant, channel, data)
    values (mark_inbox_within.tenant, own_channel,
        jsonb_build_object('type', 'counts', 'unseen', unseen, 'unread', unread, 'as', told_mark, 'ids', told_ids, 'all_up_to', told_all));
    perform pg_notify('flyball_publish', '');
end $$;

-- As in 0015.
create or replace function flyball.mark_inbox_messages(tenant text, recipient text, mark text, ids bigint[], up_to bigint, up_to_time timestamptz, most int,
    out changed bigint, out more boolean, out unseen bigint, out unread bigint)
language sql volatile as $$
    select w.changed, w.more, w.unseen, w.unread from flyball.mark_inbox_within(tenant, recipient, mark, ids, up_to, up_to_time, most, null) w
$$;

-- === Upkeep ======================================================================================

-- As in 0015, but the messages of an inbox that another transaction has locked stay until the next time:
-- the locks of all others are held meanwhile.
create or replace function flyball.prune_inbox(days int, most int default 5000) returns bigint
language plpgsql volatile as $$
#variable_conflict use_column
declare
    old             bigint[];
    busy_tenants    text[];
    busy_recipients text[];
    removed         bigint;
begin
    select array_agg(m.job_id) into old
    from (
        select h.job_id from flyball.inbox_message h where h.created_at < now() - make_interval(days => days)
        order by h.created_at limit most
    ) m;
    if old is null then
        return 0;
    end if;
    with inbox as materialized (
        select distinct m.tenant, m.recipient from flyball.inbox_message m where m.job_id = any (old)
    ),
    known as materialized (
        select i.tenant, i.recipient from inbox i
        cross join lateral (select from flyball.inbox_count c where c.tenant = i.tenant and c.recipient = i.recipient limit 1) c
    ),
    free as materialized (
        select l.tenant, l.recipient from inbox i
        cross join lateral (
            select c.tenant, c.recipient from flyball.inbox_count c where c.tenant = i.tenant and c.recipient = i.recipient
            limit 1 for update skip locked
        ) l
    )
    select coalesce(array_agg(k.tenant), '{}'), coalesce(array_agg(k.recipient), '{}') into busy_tenants, busy_recipients
    from known k
    where not exists (select from free f where f.tenant = k.tenant and f.recipient = k.recipient);
    with gone as (
        delete from flyball.inbox_message m
        where m.job_id = any (old)
            and not exists (select from unnest(busy_tenants, busy_recipients) as b(tenant, recipient) where b.tenant = m.tenant and b.recipient = m.recipient)
        returning m.tenant, m.recipient, (m.seen_at is null and m.archived_at is null)::int as unseen,
            (m.read_at is null and m.archived_at is null)::int as unread
    ),
    counted as (
        update flyball.inbox_count c set unseen = c.unseen - g.unseen, unread = c.unread - g.unread
        from (select tenant, recipient, sum(unseen) as unseen, sum(unread) as unread from gone group by 1, 2) g
        where c.tenant = g.tenant and c.recipient = g.recipient
    )
    select count(*) into removed from gone;
    return removed;
end $$;

-- === Channels ====================================================================================

-- Whether a channel lacks a message that a gateway has read, by its epoch, offset and number: the end of
-- the history has gone back, as after a failover to a copy that lacks it. The place of the message may be
-- that of another by now. A channel that is not there and was not forgotten was made in the part that is
-- missing.
create function flyball.channel_went_back(tenant text, channel text, epoch bigint, read_offset bigint, read_seq bigint) returns boolean
language sql stable as $$
    select case
        when c.epoch is null then e.last_value <= channel_went_back.epoch
        when c.epoch <> channel_went_back.epoch then c.epoch < channel_went_back.epoch
        when c.last_offset < read_offset then true
        else coalesce((
            select m.seq <> read_seq from flyball.channel_message m
            where m.tenant = channel_went_back.tenant and m.channel = channel_went_back.channel and m."offset" > 0 and m."offset" = read_offset
                and m.epoch = channel_went_back.epoch
            limit 1
        ), false) end
    from flyball.channel_epoch e
    left join flyball.channel c on c.tenant = channel_went_back.tenant and c.name = channel_went_back.channel
$$;

-- Gives all channels a new epoch if the end of the history has gone back, because offsets that clients have
-- mean other messages now. Returns whether it did. The caller holds the lock of the collectors.
create function flyball.renew_channels(tenant text, channel text, epoch bigint, read_offset bigint, read_seq bigint) returns boolean
language plpgsql volatile as $$
#variable_conflict use_column
declare
    new_epoch bigint;
begin
    if not flyball.channel_went_back(renew_channels.tenant, renew_channels.channel, renew_channels.epoch, read_offset, read_seq) then
        return false;
    end if;
    -- Epochs that are missing too were given before.
    select setval('flyball.channel_epoch', e.last_value + 1000) into new_epoch from flyball.channel_epoch e;
    update flyball.channel c set epoch = new_epoch, first_offset = c.last_offset + 1;
    return true;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.channel_went_back, flyball.deliver_inboxes, flyball.mark_inbox_within, flyball.renew_channels from public;
