-- Chapter 13: channels: publications, their history, tickets of connections.
--
-- `flyball.publish` appends in the caller's transaction, so a rollback publishes nothing. A
-- collector moves what is committed into the history and gives each message its offset; it holds
-- one lock until its commit, so offsets are dense and `seq` grows in the order of commits.

-- === Publishing ==================================================================================

-- The problem of a channel's name; null if it is sound. `ChannelName::parse` in
-- core/src/gateway/channel_name.rs checks the same.
create function flyball.channel_problem(channel text) returns text
language sql immutable as $$
    select case when channel is null or channel !~ '^[A-Za-z0-9._/{}@=+~-]{1,128}$'
        then 'must be 1 to 128 letters, digits or any of . _ / { } @ = + ~ -' end
$$;

-- The publications of a tenant that may wait.
create function flyball.queue_max(tenant text) returns bigint
language plpgsql stable as $$
#variable_conflict use_column
begin
    return coalesce((
        select l.max_pending from flyball.tenant_limit l where l.tenant in (queue_max.tenant, '*') order by l.tenant = '*' limit 1), 10000);
end $$;

-- Publishes in the caller's transaction: the message goes out after the commit, within the limit of
-- the tenant, and a rollback publishes nothing. Refused where the tenant's queue is full.
--
-- The numbers of publications grow, and the oldest of a tenant goes first. So no more of them wait
-- than there are numbers from the tenant's oldest to the new one, which one probe of an index tells.
-- Only where that is no answer they are counted, once in a transaction: for a tenant with a full
-- queue, and for one whose publications came between many of others or of transactions that were
-- rolled back. What is counted stands in the row, where the next call of the transaction finds it;
-- a setting of the session could be written by the caller. A session plans the probes once, perhaps
-- while the table is empty, and then would read all of it each time without the settings here.
--
-- In a transaction SERIALIZABLE Postgres remembers every read, and those that publish at the same
-- time would read where the others write and fail with 40001. The size of the table tells without a
-- read that so many cannot wait, because no row takes less than 48 bytes; only a table of that size
-- is read.
create function flyball.publish(channel text, data jsonb, out id bigint)
language plpgsql volatile security definer set enable_seqscan = off set enable_bitmapscan = off set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_column
declare
    problem   text := flyball.channel_problem(publish.channel);
    sender    text := flyball.caller_tenant();
    queue_max bigint;
    room      bigint;
    woken     text;
begin
    if sender = '' then
        sender := flyball.recipient_tenant('publish');
    end if;
    if problem is not null then
        perform flyball.refuse('publish', 'channel', problem);
    elsif publish.data is null then
        perform flyball.refuse('publish', 'data', 'must be a JSON value; null is written as ''null''::jsonb');
    elsif octet_length(publish.data::text) > 65536 then
        perform flyball.refuse('publish', 'data', format('has %s bytes as text; at most 65536 are allowed',
            octet_length(publish.data::text)));
    end if;

    queue_max := flyball.queue_max(sender);
    insert into flyball.publication (id, room, tenant, channel, data) overriding system value
    select q.id, case when not q.is_small then q.room - 1 end, sender, publish.channel, publish.data
    from (
        select n.id, n.is_small, case when not n.is_small then (
            select p.room from flyball.publication p
            where p.tenant = sender and p.id >= n.id - 100 and p.xmin = pg_current_xact_id()::xid
            order by p.tenant desc, p.id desc limit 1) end as room
        from (
            select m.id, case when current_setting('transaction_isolation') = 'serializable'
                    and pg_relation_size('flyball.publication') < queue_max * 48 then true
                else not exists (select from flyball.publication p where p.tenant = sender and p.id <= m.id - queue_max) end
                as is_small
            from (select nextval('flyball.publication_id_seq') as id offset 0) m
            offset 0
        ) n
        offset 0
    ) q
    where q.is_small or q.room > 0
    returning publication.id, pg_notify('flyball_publish', flyball.tenant_mark(sender))::text into publish.id, woken;
    if found then
        return;
    end if;

    room := queue_max - (select count(*) from (select from flyball.publication p where p.tenant = sender limit queue_max) as page);
    if room <= 0 then
        raise exception using errcode = '53400', column = 'channel',
            constraint = 'tenant_queue', schema = sender, datatype = format('%s/%s/1', queue_max, queue_max),
            message = format('publish: %s messages of the tenant wait already (setting tenant_queue_max)', queue_max),
            hint = 'Nothing was published.';
    end if;
    insert into flyball.publication (room, tenant, channel, data) values (room - 1, sender, publish.channel, publish.data)
    returning publication.id, pg_notify('flyball_publish', flyball.tenant_mark(sender))::text into publish.id, woken;
end $$;
comment on function flyball.publish is 'Publishes a message to the subscribers of a channel in the caller''s own transaction.';

-- Whether as many publications of a tenant wait as may.
create function flyball.is_publication_full(tenant text) returns boolean
language sql stable as $$
    select case when pg_relation_size('flyball.publication') < l.queue_max * 48 then false
        else exists (select from flyball.publication p where p.tenant = is_publication_full.tenant offset l.queue_max - 1 limit 1) end
    from (select flyball.queue_max(is_publication_full.tenant) as queue_max) l
$$;

-- === Maintenance =================================================================================

-- Deletes messages whose time is over, and tickets that were not used. The caller holds the lock of
-- the collectors.
create function flyball.prune_channel_messages(most int, out messages bigint)
language plpgsql volatile as $$
#variable_conflict use_column
begin
    delete from flyball.gateway_report where reported_at < now() - interval '1 hour';
    delete from flyball.connection_ticket
    where digest = any(array(
        select t.digest from flyball.connection_ticket t where t.expires_at < now() limit most for update skip locked));
    with gone as (
        delete from flyball.channel_message
        where ctid = any(array(select m.ctid from flyball.channel_message m where m.expires_at < now() order by m.expires_at limit most))
        returning tenant, channel, epoch, "offset"
    ),
    moved as (
        update flyball.channel c
        set first_offset = greatest(c.first_offset, g.last_offset + 1)
        from (select tenant, channel, epoch, max("offset") as last_offset from gone where "offset" > 0 group by 1, 2, 3) g
        where c.tenant = g.tenant and c.name = g.channel and c.epoch = g.epoch
    )
    select count(*) into messages from gone;
end $$;

-- Forgets channels after a place in the order of their keys that have no message and were not used
-- for long; returns the next place, or nulls at the end. The caller holds the lock of the
-- collectors.
create function flyball.forget_channels(after_tenant text, after_name text, most int, out next_tenant text, out next_name text,
    out forgotten bigint)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    seen  bigint;
    names text[];
    owner text[];
begin
    with page as (
        select c.tenant, c.name, c.used_at, c.kept_s, row_number() over (order by c.tenant, c.name) as n
        from flyball.channel c
        where (c.tenant, c.name) > (after_tenant, after_name)
        order by c.tenant, c.name
        limit most
    ),
    unused as (
        select p.tenant, p.name from page p
        where p.used_at < now() - make_interval(secs => 2 * p.kept_s + 3600)
          and not exists (
              select from flyball.channel_message m
              where m.tenant = p.tenant and m.channel = p.name and m."offset" > 0
          )
    )
    select (select count(*) from page), (select p.tenant from page p order by p.n desc limit 1),
        (select p.name from page p order by p.n desc limit 1),
        (select array_agg(u.tenant) from unused u), (select array_agg(u.name) from unused u)
    into seen, next_tenant, next_name, owner, names;
    forgotten := coalesce(cardinality(names), 0);
    if forgotten > 0 then
        perform nextval('flyball.channel_epoch');
        delete from flyball.channel c using unnest(owner, names) as u(tenant, name) where c.tenant = u.tenant and c.name = u.name;
    end if;
    if seen < most then
        next_tenant := null;
        next_name := null;
    end if;
end $$;

-- Whether a channel lacks a message that a gateway has read, by its epoch, offset and number: the
-- end of the history has gone back, as after a failover to a copy that lacks it. The place of the
-- message may be that of another by now. A channel that is not there and was not forgotten was made
-- in the part that is missing.
create function flyball.channel_went_back(tenant text, channel text, epoch bigint, read_offset bigint, read_seq bigint) returns boolean
language sql stable as $$
    select case
        when c.epoch is null then e.last_value <= channel_went_back.epoch
        when c.epoch <> channel_went_back.epoch then c.epoch < channel_went_back.epoch
        when c.last_offset < read_offset then true
        else coalesce((
            select m.seq <> read_seq from flyball.channel_message m
            where m.tenant = channel_went_back.tenant and m.channel = channel_went_back.channel and m."offset" > 0
                and m."offset" = read_offset
                and m.epoch = channel_went_back.epoch
            limit 1
        ), false) end
    from flyball.channel_epoch e
    left join flyball.channel c on c.tenant = channel_went_back.tenant and c.name = channel_went_back.channel
$$;

-- Gives all channels a new epoch if the end of the history has gone back, because offsets that
-- clients have mean other messages now. Returns whether it did. The caller holds the lock of the
-- collectors.
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

revoke execute on function flyball.queue_max, flyball.is_publication_full, flyball.prune_channel_messages, flyball.forget_channels,
    flyball.channel_went_back, flyball.renew_channels
from public;
