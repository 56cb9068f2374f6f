-- Chapter 15: inboxes: the messages of the channel `inapp`, kept for each recipient.
--
-- Whatever changes an inbox locks its row in `inbox_count` first. So the counts are right at every
-- commit, the ids of an inbox grow in the order of commits, and what is told on the channel of the
-- inbox comes in the same order.

-- === Tables ======================================================================================

create table flyball.inbox_message (
    tenant      text        not null,
    recipient   text        not null,
    id          bigint      generated always as identity,
    -- The job that wrote it: a job that runs again writes it no second time.
    job_id      bigint      not null unique,
    category    text        not null,
    template_id text,
    actor       text,
    subject     text,
    body        text        not null,
    data        jsonb       not null,
    created_at  timestamptz not null default clock_timestamp(),
    seen_at     timestamptz,
    read_at     timestamptz,
    archived_at timestamptz,
    -- No index on the id alone: a page of one inbox never walks through those of others.
    primary key (tenant, recipient, id),
    check (read_at is null or seen_at is not null)
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index inbox_message_list on flyball.inbox_message (tenant, recipient, id) where archived_at is null;
create index inbox_message_unread on flyball.inbox_message (tenant, recipient, id) where read_at is null and archived_at is null;
create index inbox_message_unseen on flyball.inbox_message (tenant, recipient, id) where seen_at is null and archived_at is null;
create index inbox_message_created on flyball.inbox_message (created_at);
create index inbox_message_archived on flyball.inbox_message (tenant, recipient, id) where archived_at is not null;

-- Archived messages do not count.
create table flyball.inbox_count (
    tenant    text   not null,
    recipient text   not null,
    unseen    bigint not null default 0 check (unseen >= 0),
    unread    bigint not null default 0 check (unread >= unseen),
    primary key (tenant, recipient)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

comment on table flyball.inbox_message is 'The inboxes of recipients: messages of the channel inapp with their states.';
comment on table flyball.inbox_count is 'Unseen and unread messages of each inbox, kept in the transactions that change it.';

-- === Writing =====================================================================================

-- A time in UTC as RFC 3339, without zeros at its end, as the API writes it.
create function flyball.time_text(moment timestamptz) returns text
language sql immutable parallel safe as $$
    select rtrim(rtrim(to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.') || 'Z'
$$;

-- A message as every door shows it.
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

-- Whether as many publications of a tenant wait as may.
create function flyball.is_publication_full(tenant text) returns boolean
language sql stable as $$
    select exists (select from flyball.publication p where p.tenant = is_publication_full.tenant offset greatest(l.max_pending, 1) - 1 limit 1)
    from (
        select coalesce((select t.max_pending from flyball.tenant_limit t where t.tenant in (is_publication_full.tenant, '*')
            order by t.tenant = '*' limit 1), 10000)::bigint as max_pending
    ) l
$$;

-- Writes the messages of jobs into the inboxes of their recipients and tells of them; returns a row
-- for each whose job is there. `kept` is false for those of a tenant of whom too many publications
-- wait: nothing was written. A job whose message is there already writes nothing.
create function flyball.deliver_inbox(jobs bigint[], recipients text[], subjects text[], bodies text[])
returns table (job_id bigint, kept boolean)
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_column
declare
    full_tenants text[];
    written      bigint[];
begin
    insert into flyball.inbox_count as c (tenant, recipient)
    select distinct j.tenant, g.recipient
    from unnest(jobs, recipients) as g(job_id, recipient)
    cross join lateral (select h.tenant from flyball.job h where h.id = g.job_id limit 1) j
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
    select g.job_id, j.tenant <> all (full_tenants)
    from unnest(jobs) as g(job_id)
    cross join lateral (select h.tenant from flyball.job h where h.id = g.job_id limit 1) j;
end $$;

-- === Marking =====================================================================================

-- Marks messages of an inbox, at most `most`, and tells its devices; `more` if others are left.
-- `mark` is seen, read, unread, archived or unarchived; `ids` names messages, or else all up to an id
-- and a time are meant, of which at least one is given. Without `ids` archived messages stay as they
-- are, unless the mark is unarchived.
create function flyball.mark_inbox_messages(tenant text, recipient text, mark text, ids bigint[], up_to bigint, up_to_time timestamptz, most int,
    out changed bigint, out more boolean, out unseen bigint, out unread bigint)
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_column
declare
    last_id   constant bigint := coalesce(up_to, 9223372036854775807);
    last_time constant timestamptz := coalesce(up_to_time, 'infinity');
begin
    changed := 0;
    more := false;
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
         where ids is not null and m.id = any (ids) and m.tenant = mark_inbox_messages.tenant and m.recipient = mark_inbox_messages.recipient
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
            archived_at = case mark when 'archived' then coalesce(m.archived_at, clock_timestamp()) when 'unarchived' then null else m.archived_at end
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
    -- The inbox is right without the news; a device that lists it again sees that.
    if not flyball.is_publication_full(mark_inbox_messages.tenant) then
        insert into flyball.publication (tenant, channel, data)
        values (mark_inbox_messages.tenant, '$inbox/' || mark_inbox_messages.recipient,
            jsonb_build_object('type', 'counts', 'unseen', unseen, 'unread', unread, 'as', mark,
                'ids', (select jsonb_agg(i.id::text order by i.n) from unnest(ids) with ordinality as i(id, n)),
                'all_up_to', coalesce(up_to::text, flyball.time_text(up_to_time))));
        perform pg_notify('flyball_publish', '');
    end if;
end $$;

-- === Doors =======================================================================================

-- The messages of an inbox of the caller's tenant, newest first: those that are not archived, or those
-- in a state (unseen, seen, read, unread, archived). `before` is the last id of the page before.
create function flyball.inbox(recipient text, in_state text default null, in_category text default null, before bigint default null, most int default 50)
returns table (id bigint, job_id bigint, category text, template_id text, actor text, subject text, body text, data jsonb, state text,
    created_at timestamptz, seen_at timestamptz, read_at timestamptz, archived_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
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

-- A page of an inbox, newest first.
create function flyball.inbox_page(tenant text, recipient text, state text, category text, before bigint, most int)
returns setof flyball.inbox_message
language plpgsql stable set enable_seqscan = off as $$
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

-- The unseen and unread messages in an inbox of the caller's tenant; archived ones do not count.
create function flyball.inbox_counts(recipient text, out unseen bigint, out unread bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    own_tenant constant text := flyball.recipient_tenant('inbox_counts');
begin
    perform flyball.check_recipient_id('inbox_counts', inbox_counts.recipient);
    select coalesce(sum(c.unseen), 0), coalesce(sum(c.unread), 0) into unseen, unread from flyball.inbox_count c
    where c.tenant = own_tenant and c.recipient = inbox_counts.recipient;
end $$;

-- Marks messages in an inbox of the caller's tenant: those of `ids`, or all up to an id, a time or
-- both. Returns how many changed, and the counts.
create function flyball.mark_inbox(recipient text, mark text, ids bigint[] default null, up_to bigint default null, up_to_time timestamptz default null,
    out changed bigint, out unseen bigint, out unread bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
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
        select * into step from flyball.mark_inbox_messages(own_tenant, mark_inbox.recipient, mark, ids, up_to, up_to_time, 10000);
        changed := changed + step.changed;
        exit when not step.more;
    end loop;
    unseen := step.unseen;
    unread := step.unread;
end $$;

-- === Upkeep ======================================================================================

-- Deletes messages that are older than some days, at most `most`, oldest first; returns their number.
create function flyball.prune_inbox(days int, most int default 5000) returns bigint
language plpgsql volatile as $$
#variable_conflict use_column
declare
    old     bigint[];
    removed bigint;
begin
    select array_agg(m.job_id) into old
    from (
        select h.job_id from flyball.inbox_message h where h.created_at < now() - make_interval(days => days)
        order by h.created_at limit most
    ) m;
    if old is null then
        return 0;
    end if;
    perform from flyball.inbox_count c
    join (select distinct m.tenant, m.recipient from flyball.inbox_message m where m.job_id = any (old)) a
        on a.tenant = c.tenant and a.recipient = c.recipient
    order by c.tenant, c.recipient for update of c;
    with gone as (
        delete from flyball.inbox_message m where m.job_id = any (old)
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

-- Erases the inbox of a recipient, and what its channel keeps of it; returns the number of messages.
-- The caller commits soon, because a message to this recipient waits until then.
create function flyball.erase_inbox(tenant text, recipient text) returns bigint
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_column
declare
    own_channel constant text := '$inbox/' || erase_inbox.recipient;
    removed     bigint;
begin
    perform from flyball.inbox_count c where c.tenant = erase_inbox.tenant and c.recipient = erase_inbox.recipient for update;
    delete from flyball.inbox_message m where m.tenant = erase_inbox.tenant and m.recipient = erase_inbox.recipient;
    get diagnostics removed = row_count;
    delete from flyball.inbox_count c where c.tenant = erase_inbox.tenant and c.recipient = erase_inbox.recipient;
    -- What waits comes first: a collector that moves it meanwhile has committed when the next
    -- statement begins.
    delete from flyball.publication p where p.tenant = erase_inbox.tenant and p.channel = own_channel;
    delete from flyball.channel_message m where m.tenant = erase_inbox.tenant and m.channel = own_channel and m."offset" > 0;
    update flyball.channel c set first_offset = c.last_offset + 1 where c.tenant = erase_inbox.tenant and c.name = own_channel;
    return removed;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.time_text, flyball.inbox_entry, flyball.is_publication_full, flyball.deliver_inbox, flyball.mark_inbox_messages, flyball.inbox,
    flyball.inbox_page, flyball.inbox_counts, flyball.mark_inbox, flyball.prune_inbox, flyball.erase_inbox
from public;

comment on function flyball.inbox is 'The messages in the inbox of a recipient of the caller''s tenant, newest first.';
comment on function flyball.inbox_counts is 'The unseen and unread messages in the inbox of a recipient of the caller''s tenant.';
comment on function flyball.mark_inbox is 'Marks messages in the inbox of a recipient of the caller''s tenant as seen, read, unread, archived or unarchived.';
