-- Chapter 13: channels: publications, their history, tickets of connections.
--
-- `flyball.publish` appends in the caller's transaction, so a rollback publishes nothing. A collector
-- moves what is committed into the history and gives each message its offset; it holds one lock
-- until its commit, so offsets are dense and `seq` grows in the order of commits.

-- === Tables ======================================================================================

create table flyball.publication (
    id         bigint generated always as identity primary key,
    tenant     text not null,
    channel    text not null,
    data       jsonb not null,
    created_at timestamptz not null default clock_timestamp()
) with (fillfactor = 100, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000);
comment on table flyball.publication is 'Messages of channels that no collector has moved yet, because they are new or because their tenant is at its limit.';
create index publication_tenant on flyball.publication (tenant, id);

create table flyball.channel (
    tenant       text not null,
    name         text not null,
    epoch        bigint not null,
    last_offset  bigint not null,
    first_offset bigint not null default 1,
    kept_s       int not null,
    used_at      timestamptz not null,
    primary key (tenant, name)
) with (fillfactor = 70);
comment on table flyball.channel is 'Channels with a history: the offsets of the first and the last message that are kept.';
comment on column flyball.channel.epoch is 'Changes when the channel is forgotten and made anew; offsets of different epochs cannot be compared.';

create table flyball.channel_message (
    seq        bigint generated always as identity primary key,
    tenant     text not null,
    channel    text not null,
    epoch      bigint not null,
    "offset"   bigint not null,
    id         bigint not null,
    data       jsonb not null,
    created_at timestamptz not null,
    expires_at timestamptz not null
);
comment on table flyball.channel_message is 'The history of channels, and for half a minute the messages of channels without one (offset 0).';
create index channel_message_history on flyball.channel_message (tenant, channel, "offset") where "offset" > 0;
create index channel_message_expiry on flyball.channel_message (expires_at);

-- The epoch of channels that are made now. It grows before a channel is forgotten, so a channel
-- that is not there has the same epoch as long as none was forgotten.
create sequence flyball.channel_epoch;
select nextval('flyball.channel_epoch');

create table flyball.connection_ticket (
    digest     bytea primary key,
    "grant"    jsonb not null,
    expires_at timestamptz not null
);
comment on table flyball.connection_ticket is 'Tickets with which a browser opens one connection; the digest stands for the secret.';

create table flyball.channel_usage (
    tenant     text primary key,
    messages   bigint not null default 0,
    limited    bigint not null default 0,
    limited_at timestamptz
) with (fillfactor = 50);
comment on table flyball.channel_usage is 'Messages of the channels of each tenant, and how often it reached its limit.';

create table flyball.gateway_report (
    tenant      text not null,
    process     text not null,
    connections int not null,
    warnings    bigint not null,
    reported_at timestamptz not null,
    primary key (tenant, process)
) with (fillfactor = 50);
comment on table flyball.gateway_report is 'Open connections of each tenant in each process, and the warnings that they got; a process reports every few seconds.';

-- === Publishing ==================================================================================

-- The problem of a channel's name; null if it is sound. `ChannelName::parse` in
-- core/src/gateway/channel_name.rs checks the same.
create function flyball.channel_problem(channel text) returns text
language sql immutable as $$
    select case when channel is null or channel !~ '^[A-Za-z0-9._/{}@=+~-]{1,128}$'
        then 'must be 1 to 128 letters, digits or any of . _ / { } @ = + ~ -' end
$$;

-- Publishes in the caller's transaction: the message goes out after the commit, within the limit of
-- the tenant, and a rollback publishes nothing.
create function flyball.publish(channel text, data jsonb, out id bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    tenant  constant text := flyball.recipient_tenant('publish');
    problem text := flyball.channel_problem(publish.channel);
begin
    if problem is not null then
        perform flyball.refuse('publish', 'channel', problem);
    elsif publish.data is null then
        perform flyball.refuse('publish', 'data', 'must be a JSON value; null is written as ''null''::jsonb');
    elsif octet_length(publish.data::text) > 65536 then
        perform flyball.refuse('publish', 'data', format('has %s bytes as text; at most 65536 are allowed', octet_length(publish.data::text)));
    end if;
    id := flyball.append_publication(tenant, publish.channel, publish.data);
end $$;

-- Appends a publication and wakes the collectors; refuses it where the tenant's queue is full.
create function flyball.append_publication(tenant text, channel text, data jsonb, out id bigint)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    queue_max bigint;
begin
    select l.max_pending into queue_max from flyball.tenant_limit l
    where l.tenant in (append_publication.tenant, '*') order by l.tenant = '*' limit 1;
    queue_max := coalesce(queue_max, 10000);
    if exists (select from flyball.publication p where p.tenant = append_publication.tenant offset greatest(queue_max, 1) - 1 limit 1) then
        raise exception using errcode = '53400', column = 'channel',
            constraint = 'tenant_queue', schema = append_publication.tenant, datatype = format('%s/%s/1', queue_max, queue_max),
            message = format('publish: %s messages of the tenant wait already (setting tenant_queue_max)', queue_max),
            hint = 'Nothing was published.';
    end if;
    insert into flyball.publication (tenant, channel, data)
    values (append_publication.tenant, append_publication.channel, append_publication.data)
    returning publication.id into append_publication.id;
    perform pg_notify('flyball_publish', '');
end $$;

revoke execute on function flyball.append_publication from public;

comment on function flyball.publish is 'Publishes a message to the subscribers of a channel in the caller''s own transaction.';

-- === Upkeep ======================================================================================

-- Deletes messages whose time is over, and tickets that nobody used. The caller holds the lock of
-- the collectors.
create function flyball.prune_channel_messages(most int, out messages bigint)
language plpgsql volatile as $$
#variable_conflict use_column
begin
    delete from flyball.gateway_report where reported_at < now() - interval '1 hour';
    delete from flyball.connection_ticket
    where digest = any(array(select t.digest from flyball.connection_ticket t where t.expires_at < now() limit most for update skip locked));
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
-- for long; returns the next place, or nulls at the end. The caller holds the lock of the collectors.
create function flyball.forget_channels(after_tenant text, after_name text, most int, out next_tenant text, out next_name text, out forgotten bigint)
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
    select (select count(*) from page), (select p.tenant from page p order by p.n desc limit 1), (select p.name from page p order by p.n desc limit 1),
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

revoke execute on function flyball.prune_channel_messages, flyball.forget_channels from public;
