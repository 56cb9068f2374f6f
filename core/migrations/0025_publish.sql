-- Chapter 25: a publication counts the waiting ones only where the queue may be full.
--
-- The numbers of publications grow, and the oldest of a tenant goes first. So no more of them wait
-- than there are numbers from its oldest to its newest, which two probes of an index tell. Only where
-- that is no answer they are counted: for a tenant with a full queue, and for one whose publications
-- came between many of others.

-- As in 0013, but for the probes. A session plans them once, perhaps while the table is empty, and then
-- would read all of it each time.
create or replace function flyball.append_publication(tenant text, channel text, data jsonb, out id bigint)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    queue_max bigint;
    numbers   bigint;
begin
    select l.max_pending into queue_max from flyball.tenant_limit l
    where l.tenant in (append_publication.tenant, '*') order by l.tenant = '*' limit 1;
    queue_max := greatest(coalesce(queue_max, 10000), 1);
    numbers := (select p.id from flyball.publication p where p.tenant = append_publication.tenant order by p.tenant desc, p.id desc limit 1)
        - (select p.id from flyball.publication p where p.tenant = append_publication.tenant order by p.tenant, p.id limit 1) + 1;
    if numbers >= queue_max and exists (
        select from flyball.publication p where p.tenant = append_publication.tenant offset queue_max - 1 limit 1
    ) then
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
