-- Chapter 14: inboxes: the messages of the channel `inapp`, kept for each recipient.
--
-- Each change of an inbox locks its row in `inbox_count` first. So the counts are right at every
-- commit, the ids of an inbox grow in the order of commits, and what is told on the channel of the
-- inbox comes in the same order.

-- === Writing =====================================================================================

-- A message as every entry point shows it.
create function flyball.inbox_entry(message flyball.inbox_message) returns jsonb
language sql immutable parallel safe as $$
    select jsonb_build_object('id', message.id::text, 'notification_id', message.job_id, 'category', message.category,
        'template_id', message.template_id, 'actor', message.actor, 'subject', message.subject, 'body', message.body, 'data', message.data,
        'state', case when message.archived_at is not null then 'archived' when message.read_at is not null then 'read'
            when message.seen_at is not null then 'seen' else 'unseen' end,
        'created_at', flyball.time_text(message.created_at),
        'seen_at', flyball.time_text(message.seen_at),
        'read_at', flyball.time_text(message.read_at),
        'archived_at', flyball.time_text(message.archived_at))
$$;

-- Locks those of these inboxes that no other transaction has locked, and returns the others. One that
-- is not there yet is in neither.
create function flyball.lock_free_inboxes(tenants text[], recipients text[], out busy_tenants text[], out busy_recipients text[])
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
begin
    with inbox as materialized (
        select i.tenant, i.recipient from unnest(tenants, recipients) as i(tenant, recipient)
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
end $$;

-- Writes the messages of jobs into the inboxes of their recipients and tells of them; returns a row
-- for each whose job is there. `kept` is false for those of a tenant of whom too many publications
-- wait: nothing was written. A job whose message is there already writes nothing.
--
-- An inbox that another transaction has locked is left out unless it is to be waited for: `kept` of
-- its messages is null, and nothing was written. So a transaction that marks messages and stays
-- open delays none of others. Every lock is waited for a second at most.
create function flyball.deliver_inboxes(jobs bigint[], recipients text[], subjects text[], bodies text[], waits boolean)
returns table (job_id bigint, kept boolean)
language plpgsql volatile set enable_seqscan = off set lock_timeout = '1s' set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
declare
    busy_tenants    text[] := '{}';
    busy_recipients text[] := '{}';
    full_tenants    text[];
    written         bigint[];
begin
    if not waits then
        select b.busy_tenants, b.busy_recipients into busy_tenants, busy_recipients
        from (
            select array_agg(o.tenant) as tenants, array_agg(o.recipient) as recipients
            from (
                select distinct j.tenant, g.recipient
                from unnest(jobs, recipients) as g(job_id, recipient)
                cross join lateral (select h.tenant from flyball.job h where h.id = g.job_id limit 1) j
            ) o
        ) i
        cross join lateral flyball.lock_free_inboxes(i.tenants, i.recipients) b;
    end if;

    insert into flyball.inbox_count as c (tenant, recipient)
    select distinct j.tenant, g.recipient
    from unnest(jobs, recipients) as g(job_id, recipient)
    cross join lateral (select h.tenant from flyball.job h where h.id = g.job_id limit 1) j
    where not exists (
        select from unnest(busy_tenants, busy_recipients) as b(tenant, recipient)
        where b.tenant = j.tenant and b.recipient = g.recipient)
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
        select j.tenant, g.recipient, g.job_id, coalesce(j.args ->> 'category', 'transactional'), j.args ->> 'template_id',
            j.args ->> 'actor',
            g.subject, g.body,
            case when jsonb_typeof(j.args -> 'data') = 'object' and octet_length((j.args -> 'data')::text) <= 32768
                then j.args -> 'data' else '{}' end
        from unnest(jobs, recipients, subjects, bodies) with ordinality as g(job_id, recipient, subject, body, n)
        cross join lateral (select h.tenant, h.args from flyball.job h where h.id = g.job_id limit 1) j
        where j.tenant <> all (full_tenants)
            and not exists (
                select from unnest(busy_tenants, busy_recipients) as b(tenant, recipient)
                where b.tenant = j.tenant and b.recipient = g.recipient)
        order by g.n
        on conflict on constraint inbox_message_job_id_key do nothing
        returning job_id
    )
    select array_agg(a.job_id) into written from added a;

    if written is not null then
        -- Each has its row, which is locked.
        insert into flyball.inbox_count as c (tenant, recipient, unseen, unread)
        select m.tenant, m.recipient, count(*), count(*)
        from unnest(written) as w(job_id)
        cross join lateral (select h.tenant, h.recipient from flyball.inbox_message h where h.job_id = w.job_id limit 1) m
        group by m.tenant, m.recipient
        on conflict on constraint inbox_count_pkey do update set unseen = c.unseen + excluded.unseen, unread = c.unread + excluded.unread;

        insert into flyball.publication (tenant, channel, data)
        select (f.m).tenant, '$inbox/' || (f.m).recipient,
            jsonb_build_object('type', 'message', 'message', flyball.inbox_entry(f.m), 'unseen', c.unseen, 'unread', c.unread)
        from unnest(written) as w(job_id)
        cross join lateral (select h from flyball.inbox_message h where h.job_id = w.job_id limit 1) as f(m)
        cross join lateral (
            select k.unseen, k.unread from flyball.inbox_count k
            where k.tenant = (f.m).tenant and k.recipient = (f.m).recipient limit 1
        ) c
        order by (f.m).id;
        perform pg_notify('flyball_publish', '');
    end if;

    return query
    select g.job_id, case
        when not exists (
            select from unnest(busy_tenants, busy_recipients) as b(tenant, recipient)
            where b.tenant = j.tenant and b.recipient = g.recipient)
        then j.tenant <> all (full_tenants) end
    from unnest(jobs, recipients) as g(job_id, recipient)
    cross join lateral (select h.tenant from flyball.job h where h.id = g.job_id limit 1) j;
end $$;

-- === Marking =====================================================================================

-- Marks messages of an inbox, at most `most`, and tells its devices; `more` if others are left.
-- `mark` is seen, read, unread, archived or unarchived; `ids` names messages, or else all up to an
-- id and a time are meant, of which at least one is given. Without `ids` archived messages stay as
-- they are, unless the mark is unarchived.
--
-- The devices are told of it only while fewer than `told_max` publications of the tenant wait. A
-- mark that is to be told while an earlier one of the inbox waits takes its place, so however often
-- messages are marked, one publication of the inbox waits. An inbox that another transaction has
-- locked is waited for three seconds. With null every mark is told by itself and waits as long as
-- it takes: the caller's transaction may last, and a collector would wait for what it replaces.
create function flyball.mark_inbox_messages(tenant text, recipient text, mark text, ids bigint[], up_to bigint,
    up_to_time timestamptz, most int, told_max bigint,
    out changed bigint, out more boolean, out unseen bigint, out unread bigint)
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
declare
    last_id     constant bigint := coalesce(up_to, 9223372036854775807);
    last_time   constant timestamptz := coalesce(up_to_time, 'infinity');
    own_channel constant text := '$inbox/' || mark_inbox_messages.recipient;
    told_ids    jsonb := (select jsonb_agg(i.id::text order by i.n) from unnest(ids) with ordinality as i(id, n));
    -- What one text cannot say is not named, as several marks are not: a device lists again.
    told_all    text := case when up_to is null or up_to_time is null then coalesce(up_to::text,
        case when isfinite(up_to_time) then flyball.time_text(up_to_time) end) end;
    told_mark   text := case when coalesce(told_ids::text, told_all) is not null then mark end;
    earlier     record;
begin
    changed := 0;
    more := false;
    if told_max is not null then
        -- A connection for a mark is not one that claims jobs.
        perform set_config('lock_timeout', '3s', true);
    end if;
    select c.unseen, c.unread into unseen, unread from flyball.inbox_count c
    where c.tenant = mark_inbox_messages.tenant and c.recipient = mark_inbox_messages.recipient for update;
    if not found then
        unseen := 0;
        unread := 0;
        return;
    end if;
    -- A branch for each mark, because each has an index of its own.
    with target as materialized (
        (select m.id, m.seen_at, m.read_at, m.archived_at from flyball.inbox_message m
         where ids is not null and m.id = any (ids) and m.tenant = mark_inbox_messages.tenant
             and m.recipient = mark_inbox_messages.recipient
             and case mark when 'seen' then m.seen_at is null when 'read' then m.read_at is null when 'unread' then m.read_at is not null
                 when 'archived' then m.archived_at is null else m.archived_at is not null end)
        union all
        (select m.id, m.seen_at, m.read_at, m.archived_at from flyball.inbox_message m
         where ids is null and mark = 'seen' and m.tenant = mark_inbox_messages.tenant and m.recipient = mark_inbox_messages.recipient
             and m.seen_at is null and m.archived_at is null and m.id <= last_id and m.created_at <= last_time
         order by m.id limit most)
        union all
        (select m.id, m.seen_at, m.read_at, m.archived_at from flyball.inbox_message m
         where ids is null and mark = 'read' and m.tenant = mark_inbox_messages.tenant and m.recipient = mark_inbox_messages.recipient
             and m.read_at is null and m.archived_at is null and m.id <= last_id and m.created_at <= last_time
         order by m.id limit most)
        union all
        (select m.id, m.seen_at, m.read_at, m.archived_at from flyball.inbox_message m
         where ids is null and mark in ('unread', 'archived') and m.tenant = mark_inbox_messages.tenant
             and m.recipient = mark_inbox_messages.recipient and m.archived_at is null and (mark = 'archived' or m.read_at is not null)
             and m.id <= last_id and m.created_at <= last_time
         order by m.id limit most)
        union all
        (select m.id, m.seen_at, m.read_at, m.archived_at from flyball.inbox_message m
         where ids is null and mark = 'unarchived' and m.tenant = mark_inbox_messages.tenant and m.recipient = mark_inbox_messages.recipient
             and m.archived_at is not null and m.id <= last_id and m.created_at <= last_time
         order by m.id limit most)
    ),
    marked as (
        update flyball.inbox_message m
        set seen_at = case when mark in ('seen', 'read', 'archived') then coalesce(m.seen_at, clock_timestamp()) else m.seen_at end,
            read_at = case mark when 'read' then coalesce(m.read_at, clock_timestamp()) when 'unread' then null else m.read_at end,
            archived_at = case mark
                when 'archived' then coalesce(m.archived_at, clock_timestamp()) when 'unarchived' then null else m.archived_at end
        from target t
        where m.tenant = mark_inbox_messages.tenant and m.recipient = mark_inbox_messages.recipient and m.id = t.id
        returning (m.seen_at is null and m.archived_at is null)::int - (t.seen_at is null and t.archived_at is null)::int as unseen,
            (m.read_at is null and m.archived_at is null)::int - (t.read_at is null and t.archived_at is null)::int as unread
    )
    select count(*), mark_inbox_messages.unseen + coalesce(sum(k.unseen), 0), mark_inbox_messages.unread + coalesce(sum(k.unread), 0)
    into changed, unseen, unread
    from marked k;
    if changed = 0 then
        return;
    end if;
    more := ids is null and changed >= most;
    update flyball.inbox_count c set unseen = mark_inbox_messages.unseen, unread = mark_inbox_messages.unread
    where c.tenant = mark_inbox_messages.tenant and c.recipient = mark_inbox_messages.recipient;
    -- The inbox is right without the news; a device that lists it again sees that, and the next
    -- mark that is told has the counts.
    if flyball.is_publication_full(mark_inbox_messages.tenant) or told_max is not null and exists (
        select from flyball.publication p where p.tenant = mark_inbox_messages.tenant offset greatest(told_max, 1) - 1 limit 1
    ) then
        return;
    end if;
    if told_max is not null then
        -- One that waits still is replaced: its counts are of the past. A collector that has it is
        -- not waited for.
        with newest as materialized (
            select p.ctid as tid, p.channel from flyball.publication p
            where p.tenant = mark_inbox_messages.tenant order by p.tenant desc, p.id desc limit 200
        ),
        waiting as materialized (
            select p.ctid as tid, p.id, p.data from flyball.publication p
            where p.ctid = any (array(select n.tid from newest n where n.channel = own_channel)) and p.data ->> 'type' = 'counts'
            for update of p skip locked
        ),
        gone as (
            delete from flyball.publication p where p.ctid = any (array(select w.tid from waiting w))
        )
        select bool_and(coalesce(w.data ->> 'as' = mark and jsonb_typeof(w.data -> 'ids') = 'array', false)) as has_ids,
            bool_and(coalesce(w.data ->> 'as' = mark and w.data ->> 'all_up_to' = told_all, false)) as is_same,
            (
                select jsonb_agg(i.id order by e.id, i.n) from waiting e
                cross join lateral jsonb_array_elements_text(case jsonb_typeof(e.data -> 'ids') when 'array'
                    then e.data -> 'ids' else '[]' end)
                    with ordinality as i(id, n)
                where told_ids is null or not told_ids ? i.id
            ) as ids
        into earlier
        from waiting w;
        if told_ids is not null and earlier.has_ids
            and jsonb_array_length(told_ids) + coalesce(jsonb_array_length(earlier.ids), 0) <= 1000
        then
            told_ids := coalesce(earlier.ids, '[]') || told_ids;
        elsif not earlier.is_same then
            -- Several marks: a device lists again.
            told_mark := null;
            told_ids := null;
            told_all := null;
        end if;
    end if;
    insert into flyball.publication (tenant, channel, data)
    values (mark_inbox_messages.tenant, own_channel,
        jsonb_build_object('type', 'counts', 'unseen', unseen, 'unread', unread, 'as', told_mark, 'ids', told_ids, 'all_up_to', told_all));
    perform pg_notify('flyball_publish', '');
end $$;

-- === Entry points ================================================================================

-- A page of an inbox, newest first.
create function flyball.inbox_page(tenant text, recipient text, state text, category text, before bigint, most int)
returns setof flyball.inbox_message
language plpgsql stable set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
declare
    first_id constant bigint := coalesce(before, 9223372036854775807);
begin
    -- A statement for each index.
    case coalesce(inbox_page.state, 'kept')
    when 'unseen' then
        return query select m.* from flyball.inbox_message m
        where m.tenant = inbox_page.tenant and m.recipient = inbox_page.recipient and m.id < first_id
            and m.seen_at is null and m.archived_at is null and (inbox_page.category is null or m.category = inbox_page.category)
        order by m.id desc limit most;
    when 'unread' then
        return query select m.* from flyball.inbox_message m
        where m.tenant = inbox_page.tenant and m.recipient = inbox_page.recipient and m.id < first_id
            and m.read_at is null and m.archived_at is null and (inbox_page.category is null or m.category = inbox_page.category)
        order by m.id desc limit most;
    when 'seen' then
        return query select m.* from flyball.inbox_message m
        where m.tenant = inbox_page.tenant and m.recipient = inbox_page.recipient and m.id < first_id
            and m.read_at is null and m.archived_at is null and m.seen_at is not null
            and (inbox_page.category is null or m.category = inbox_page.category)
        order by m.id desc limit most;
    when 'archived' then
        return query select m.* from flyball.inbox_message m
        where m.tenant = inbox_page.tenant and m.recipient = inbox_page.recipient and m.id < first_id
            and m.archived_at is not null and (inbox_page.category is null or m.category = inbox_page.category)
        order by m.id desc limit most;
    else
        return query select m.* from flyball.inbox_message m
        where m.tenant = inbox_page.tenant and m.recipient = inbox_page.recipient and m.id < first_id
            and m.archived_at is null and (inbox_page.state is null or m.read_at is not null)
            and (inbox_page.category is null or m.category = inbox_page.category)
        order by m.id desc limit most;
    end case;
end $$;

-- The messages of an inbox of the caller's tenant, newest first: those that are not archived, or
-- those in a state (unseen, seen, read, unread, archived). `before` is the last id of the page
-- before.
create function flyball.inbox(recipient text, in_state text default null, in_category text default null,
    before bigint default null, most int default 50)
returns table (id bigint, job_id bigint, category text, template_id text, actor text, subject text, body text, data jsonb, state text,
    created_at timestamptz, seen_at timestamptz, read_at timestamptz, archived_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_column
declare
    own_tenant constant text := flyball.recipient_tenant('inbox');
begin
    perform flyball.check_recipient_id('inbox', inbox.recipient);
    if inbox.in_state not in ('unseen', 'seen', 'read', 'unread', 'archived') then
        perform flyball.refuse('inbox', 'in_state', 'must be unseen, seen, read, unread or archived');
    elsif inbox.most is null or inbox.most not between 1 and 1000 then
        perform flyball.refuse('inbox', 'most', 'must be a whole number from 1 to 1000');
    end if;
    return query
    select m.id, m.job_id, m.category, m.template_id, m.actor, m.subject, m.body, m.data, flyball.inbox_entry(m) ->> 'state',
        m.created_at, m.seen_at, m.read_at, m.archived_at
    from flyball.inbox_page(own_tenant, inbox.recipient, inbox.in_state, inbox.in_category, inbox.before, inbox.most) m;
end $$;
comment on function flyball.inbox is 'The messages in the inbox of a recipient of the caller''s tenant, newest first.';

-- The unseen and unread messages in an inbox of the caller's tenant; archived ones do not count.
create function flyball.inbox_counts(recipient text, out unseen bigint, out unread bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    own_tenant constant text := flyball.recipient_tenant('inbox_counts');
begin
    perform flyball.check_recipient_id('inbox_counts', inbox_counts.recipient);
    select coalesce(sum(c.unseen), 0), coalesce(sum(c.unread), 0) into unseen, unread from flyball.inbox_count c
    where c.tenant = own_tenant and c.recipient = inbox_counts.recipient;
end $$;
comment on function flyball.inbox_counts is 'The unseen and unread messages in the inbox of a recipient of the caller''s tenant.';

-- Marks messages in an inbox of the caller's tenant: those of `ids`, or all up to an id, a time or
-- both. Returns how many changed, and the counts.
create function flyball.mark_inbox(recipient text, mark text, ids bigint[] default null, up_to bigint default null,
    up_to_time timestamptz default null,
    out changed bigint, out unseen bigint, out unread bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    own_tenant constant text := flyball.recipient_tenant('mark_inbox');
    step       record;
begin
    perform flyball.check_recipient_id('mark_inbox', mark_inbox.recipient);
    if mark is null or mark not in ('seen', 'read', 'unread', 'archived', 'unarchived') then
        perform flyball.refuse('mark_inbox', 'mark', 'must be seen, read, unread, archived or unarchived');
    elsif (ids is null) = (up_to is null and up_to_time is null) then
        perform flyball.refuse('mark_inbox', 'ids', 'must be given, or else up_to or up_to_time');
    elsif cardinality(ids) > 1000 then
        perform flyball.refuse('mark_inbox', 'ids', format('must be at most 1000 ids, not %s', cardinality(ids)));
    end if;
    changed := 0;
    loop
        select * into step from flyball.mark_inbox_messages(own_tenant, mark_inbox.recipient, mark, ids, up_to, up_to_time, 10000, null);
        changed := changed + step.changed;
        exit when not step.more;
    end loop;
    unseen := step.unseen;
    unread := step.unread;
end $$;
comment on function flyball.mark_inbox is 'Marks messages in the inbox of a recipient of the caller''s tenant as seen, read, unread, archived or unarchived.';

-- === Maintenance =================================================================================

-- Deletes messages that are older than some days, at most `most`, oldest first; returns their
-- number. The messages of an inbox that another transaction has locked stay until the next time:
-- the locks of all others are held meanwhile.
create function flyball.prune_inbox(days int, most int default 5000) returns bigint
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
    select b.busy_tenants, b.busy_recipients into busy_tenants, busy_recipients
    from (
        select array_agg(o.tenant) as tenants, array_agg(o.recipient) as recipients
        from (select distinct m.tenant, m.recipient from flyball.inbox_message m where m.job_id = any (old)) o
    ) i
    cross join lateral flyball.lock_free_inboxes(i.tenants, i.recipients) b;
    with gone as (
        delete from flyball.inbox_message m
        where m.job_id = any (old)
            and not exists (
                select from unnest(busy_tenants, busy_recipients) as b(tenant, recipient)
                where b.tenant = m.tenant and b.recipient = m.recipient)
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

-- Erases the inbox of a recipient, and what its channel keeps of it; returns the number of
-- messages. The caller commits soon, because a message to this recipient waits until then. Open
-- devices are told to list it again by a notification with a mark: a publication would keep the
-- name of the recipient. The channel has this name too, so it counts as long unused: the next round
-- of `forget_channels` forgets it.
create function flyball.erase_inbox(tenant text, recipient text) returns bigint
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
declare
    own_channel constant text := '$inbox/' || erase_inbox.recipient;
    removed     bigint;
begin
    perform from flyball.inbox_count c where c.tenant = erase_inbox.tenant and c.recipient = erase_inbox.recipient for update;
    delete from flyball.inbox_message m where m.tenant = erase_inbox.tenant and m.recipient = erase_inbox.recipient;
    get diagnostics removed = row_count;
    delete from flyball.inbox_count c where c.tenant = erase_inbox.tenant and c.recipient = erase_inbox.recipient;
    -- Publications that wait come first: a collector that moves it meanwhile has committed when the
    -- next statement begins.
    delete from flyball.publication p where p.tenant = erase_inbox.tenant and p.channel = own_channel;
    delete from flyball.channel_message m where m.tenant = erase_inbox.tenant and m.channel = own_channel and m."offset" > 0;
    -- Beyond the next message: a device that was away and has all messages must list again as well.
    update flyball.channel c set first_offset = c.last_offset + 2, used_at = 'epoch'
    where c.tenant = erase_inbox.tenant and c.name = own_channel;
    if removed > 0 then
        perform pg_notify('flyball_channel', 'erased ' || flyball.tenant_mark(erase_inbox.tenant || chr(31) || own_channel));
    end if;
    return removed;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.inbox_entry, flyball.lock_free_inboxes, flyball.deliver_inboxes, flyball.mark_inbox_messages,
    flyball.inbox_page, flyball.inbox, flyball.inbox_counts, flyball.mark_inbox, flyball.prune_inbox,
    flyball.erase_inbox
from public;
