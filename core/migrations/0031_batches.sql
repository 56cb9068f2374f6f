-- Chapter 31: batches end with what became of all their messages; keys of senders without a tenant.

-- === Messages of senders without a tenant =========================================================

-- As in 0029, and also for a sender without a tenant: then `owner` is the owner of its unique keys, and
-- no slot is taken.
drop function flyball.accept_message(text, text, bytea, bytea, boolean, boolean, jsonb, text, text, int, timestamptz, text, text);
create function flyball.accept_message(
    tenant text, module text, digest bytea, body bytea, has_key boolean, admitted boolean,
    args jsonb, throttle text, key text, priority int, run_at timestamptz, unique_key text, traceparent text,
    owner text default null,
    out answer text, out job_id bigint, out batch_id bigint, out duplicate boolean, out held boolean, out backlog jsonb)
language plpgsql volatile set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
begin
    select f.answer, f.job_id, f.batch_id into answer, job_id, batch_id
    from flyball.find_request(digest, body, has_key, true) f;
    if answer <> 'new' then
        return;
    end if;
    admitted := admitted and (priority = 0 or not flyball.has_waiting(tenant, module));
    select e.job_id, e.duplicate, e.backlog into job_id, duplicate, backlog
    from flyball.enqueue_rows_as(coalesce(owner, 'tenant:' || tenant), true, array['notification'], array[args], array[throttle],
        array[key], array[priority], array[run_at], array[10], array[unique_key], array[null::float8], array[1::float8],
        array[traceparent], array[null::float8], array[null::float8], array[null::float8], array[false], module, admitted) e;
    if flyball.needs_plan('notification', args) then
        perform flyball.refuse_capped(tenant, array[job_id], array['notification'], array[args], array[run_at], array[duplicate]);
    end if;
    held := flyball.awaits_admission(job_id);
    if admitted then
        perform flyball.record_module(tenant, module);
    end if;
    if digest is not null and (has_key or held and coalesce(run_at <= now(), true)) then
        perform flyball.remember_request(digest, body, job_id, null);
    end if;
end $$;

revoke execute on function flyball.accept_message from public;

-- === Batches whose messages cannot be enqueued ====================================================

alter table flyball.batch
    -- The job that enqueues the messages; null if it is not known, because an older program accepted
    -- the batch.
    add column expansion_job_id bigint,
    -- Why the messages were not enqueued; null if they were.
    add column problem text;
create index batch_expanding on flyball.batch (id) where state = 'expanding';

-- As in 0009, and the batch knows its job.
create or replace function flyball.enqueue_expansion(batch_id bigint) returns void
language plpgsql volatile as $$
#variable_conflict use_column
declare
    expansion bigint;
begin
    select e.job_id into expansion
    from flyball.enqueue_rows_as('', true, array['batch'], array[jsonb_build_object('batch', enqueue_expansion.batch_id)],
        array['default'], array[''], array[1], array[null::timestamptz], array[20], array['batch:' || enqueue_expansion.batch_id],
        array[null::float8], array[1::float8], array[null::text], array[null::float8], array[null::float8], array[null::float8],
        array[false]) e;
    update flyball.batch b set expansion_job_id = expansion where b.id = enqueue_expansion.batch_id;
end $$;

-- Gives back the places in the queue of the messages of a batch that were not enqueued.
create function flyball.free_places(batch flyball.batch) returns void
language sql volatile as $$
    delete from flyball.pending p
    where p.tenant = batch.tenant
        and p.job_id = any(array(select flyball.place_in_queue(batch.id, n) from generate_series(1, batch.recipients) n))
$$;

-- Looks at batches whose messages have not been enqueued for a while, the oldest first. If the job that
-- was to enqueue them is a dead letter or was cancelled, the batch ends, as if it was cancelled then. If
-- that job is over otherwise, another one is enqueued: it met a pause of the batch that has ended, or its
-- row is gone. Returns the numbers of batches that ended and of jobs that were enqueued.
create function flyball.settle_expansions(older_than interval default '1 minute', most int default 100, out ended int, out enqueued int)
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    batch flyball.batch;
    job   bigint;
    fate  text;
    why   text;
begin
    ended := 0;
    enqueued := 0;
    for batch in
        select b.* from flyball.batch b
        where b.state = 'expanding' and b.updated_at < now() - older_than
        order by b.id
        limit most
        for update skip locked
    loop
        job := coalesce(batch.expansion_job_id,
            (select u.job_id from flyball.unique_holder u where u.digest = flyball.unique_digest('', 'batch', 'batch:' || batch.id)));
        fate := coalesce(flyball.job_state(job), 'deleted');
        if fate in ('dead', 'cancelled') then
            why := format('its messages could not be enqueued: job %s of the kind batch %s', job,
                case fate when 'dead' then 'is a dead letter' else 'was cancelled' end);
            perform flyball.free_places(batch);
            update flyball.batch b
            set state = 'cancelled', not_enqueued = b.not_enqueued + jsonb_array_length(b.messages), messages = '[]', problem = why,
                updated_at = now()
            where b.id = batch.id;
            perform flyball.write_audit(null, flyball.audit_actor('flyball'), 'batch.cancel', batch.id::text,
                jsonb_build_object('state', batch.state),
                jsonb_build_object('state', 'cancelled', 'cancelled', batch.not_enqueued + jsonb_array_length(batch.messages)), why);
            ended := ended + 1;
        elsif fate in ('completed', 'deleted') then
            perform flyball.enqueue_expansion(batch.id);
            update flyball.batch b set updated_at = now() where b.id = batch.id;
            enqueued := enqueued + 1;
        end if;
    end loop;
end $$;

-- === Items of cancelled batches ===================================================================

-- Withdraws those of these messages that are items of open digests, and returns them. A digest that is
-- empty then sends nothing at its time: it stays, because one whose type lets the first item go at once
-- says when that may happen again.
create function flyball.withdraw_items(jobs bigint[]) returns bigint[]
language plpgsql volatile set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_variable
declare
    items     constant bigint[] := array(select i.job_id from flyball.digest_item i where i.job_id = any (jobs));
    withdrawn bigint[];
begin
    if items = '{}' then
        return items;
    end if;
    -- As planners lock them: claims before digests, each in the order of their keys.
    perform from flyball.message_plan p
    join flyball.dedup d on d.recipient = p.recipient and d.job_id = p.job_id
    where p.job_id = any (items)
    order by d.recipient, d.content
    for update of d;
    -- Such a digest cannot close, and gets no item, until this is through.
    perform from flyball.digest d
    where d.id = any (array(select i.digest_id from flyball.digest_item i where i.job_id = any (items)))
    order by d.type, d.recipient, d.key
    for no key update;
    with removed as (
        delete from flyball.digest_item i where i.job_id = any (items) returning i.digest_id, i.job_id
    ),
    fewer as (
        update flyball.digest d
        set items = d.items - (select count(*) from removed r where r.digest_id = d.id)
        where d.id = any (array(select r.digest_id from removed r))
    ),
    planned as (
        update flyball.message_plan p
        set state = 'ended', reason = 'cancelled', until = null, digest_id = null, since = clock_timestamp()
        where p.job_id = any (array(select r.job_id from removed r))
        returning p.recipient, p.job_id
    ),
    -- An equal message that comes later is no duplicate of one that nobody sees.
    claims as (
        delete from flyball.dedup d using planned p where d.recipient = p.recipient and d.job_id = p.job_id
    ),
    delivered as (
        update flyball.delivery d
        set state = 'failed', last_outcome = 'cancelled', reason = 'cancelled', updated_at = clock_timestamp()
        where d.job_id = any (array(select r.job_id from removed r)) and d.state = 'collected'
    )
    select array(select r.job_id from removed r) into withdrawn;
    return withdrawn;
end $$;

-- As in 0009, and withdraws the items of its messages from open digests. A message whose records were
-- deleted after their retention is `forgotten`: nobody knows how it ended.
create or replace function flyball.cancel_batch(tenant text, batch_id bigint, by text default null, why text default '',
    out state text, out sent int, out cancelled int, out too_late int, out ended jsonb)
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    batch   flyball.batch;
    was     text;
    members int;
    gone    bigint[];
begin
    select b.* into batch from flyball.batch b
    where b.id = batch_id and (cancel_batch.tenant is null or b.tenant = cancel_batch.tenant) for update;
    if not found then
        return;
    end if;
    was := batch.state;
    update flyball.batch b
    set state = 'cancelled', not_enqueued = b.not_enqueued + jsonb_array_length(b.messages), messages = '[]', updated_at = now()
    where b.id = batch_id
    returning b.* into batch;
    perform flyball.free_places(batch);
    -- A message may be on its way at each look: from the lane of its admission to that of its pool, to a
    -- worker, or back. So look again until each has ended, is asked to stop, or is cancelled.
    for look in 1..20 loop
        select c.cancelled_jobs into gone
        from flyball.cancel_live(array(select j.job_id from flyball.batch_jobs(batch_id) j)) c;
        update flyball.batch_message m set cancelled = true where m.job_id = any(gone);
        exit when not exists (
            select from flyball.batch_jobs(batch_id) j
            where exists (
                    select from flyball.ready r
                    where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.job_id)
                or exists (select from flyball.scheduled s where s.job_id = j.job_id)
                or exists (select from flyball.lease l where l.job_id = j.job_id)
                    and not exists (select from flyball.cancel c where c.job_id = j.job_id)
        );
        perform pg_sleep(0.005);
    end loop;
    -- Nothing of it becomes an item from here on.
    gone := flyball.withdraw_items(array(
        select m.job_id from flyball.batch_message m where m.batch_id = cancel_batch.batch_id and not m.cancelled));
    update flyball.batch_message m set cancelled = true where m.job_id = any(gone);
    state := 'cancelled';
    with found as materialized (
        select case
                when m.cancelled or n.state = 'failed' and n.reason = 'cancelled' then 'cancelled'
                when n.state = 'queued' and (
                    exists (select from flyball.lease l where l.job_id = j.job_id)
                    or exists (select from flyball.scheduled s where s.job_id = j.job_id)
                    or exists (
                        select from flyball.ready r
                        where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.job_id)) then 'too_late'
                -- A job that has completed was sent, also without a record of its delivery.
                when n.state in ('queued', 'sent', 'delivered') then 'sent'
                else coalesce(n.state, 'forgotten') end as state
        from flyball.batch_message m
        left join flyball.batch_jobs(batch_id) j on j.job_id = m.job_id
        left join lateral (select v.state, v.reason from flyball.notification v where v.job_id = m.job_id limit 1) n on true
        where m.batch_id = cancel_batch.batch_id
    ),
    counted as (
        select f.state, count(*)::int as messages from found f group by 1
    )
    select coalesce(sum(c.messages) filter (where c.state = 'sent'), 0),
        coalesce(sum(c.messages) filter (where c.state = 'cancelled'), 0) + batch.not_enqueued,
        coalesce(sum(c.messages) filter (where c.state = 'too_late'), 0),
        coalesce(jsonb_object_agg(c.state, c.messages) filter (where c.state not in ('sent', 'cancelled', 'too_late')), '{}'),
        coalesce(sum(c.messages), 0)
    into sent, cancelled, too_late, ended, members
    from counted c;
    -- Another message holds the unique keys of the rest.
    if batch.recipients > members + batch.not_enqueued then
        ended := jsonb_set(ended, '{duplicate}',
            to_jsonb(coalesce((ended ->> 'duplicate')::int, 0) + batch.recipients - members - batch.not_enqueued));
    end if;
    if was <> 'cancelled' then
        perform flyball.write_audit(null, flyball.audit_actor(cancel_batch.by), 'batch.cancel', batch_id::text,
            jsonb_build_object('state', was),
            jsonb_build_object('state', state, 'sent', sent, 'cancelled', cancelled, 'too_late', too_late, 'ended', ended), cancel_batch.why);
    end if;
end $$;

-- === Retention ====================================================================================

-- The last batch at which the deletion of old ones looked; 0 at its beginning.
create table flyball.batch_walk (
    one       boolean primary key default true check (one),
    walked_to bigint  not null default 0
) with (fillfactor = 50);
insert into flyball.batch_walk default values;

-- One step over batches older than this many days: deletes those of which no message has a record any
-- more. A message has one while its job or its delivery is kept, so a batch stays as long as the last of
-- its messages, whatever the retention of their kind. One process at a time; `more` is false at the end.
create function flyball.forget_batches(days int, most int default 50, out deleted bigint, out more boolean)
language plpgsql volatile set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_variable
declare
    behind  bigint;
    reached bigint;
    gone    bigint[];
begin
    deleted := 0;
    more := false;
    select w.walked_to into behind from flyball.batch_walk w for update skip locked;
    if not found then
        return;
    end if;
    with page as materialized (
        select b.id, b.created_at, b.updated_at, b.messages = '[]' as is_enqueued
        from flyball.batch b
        where b.id > behind
        order by b.id
        limit most
    ),
    old as materialized (
        select p.id, p.is_enqueued and p.updated_at < now() - make_interval(days => days) as is_still
        from page p
        where p.created_at < now() - make_interval(days => days)
    )
    select count(*) = most, max(o.id),
        array(
            select f.id from old f
            where f.is_still and (
                select 1 from flyball.batch_message m
                where m.batch_id = f.id
                    and ((select 1 from flyball.job j where j.id = m.job_id limit 1) is not null
                        or (select 1 from flyball.delivery d where d.job_id = m.job_id limit 1) is not null)
                limit 1
            ) is null
        )
    into more, reached, gone
    from old o;
    delete from flyball.batch_message m where m.batch_id = any (gone);
    delete from flyball.batch b where b.id = any (gone);
    deleted := cardinality(gone);
    update flyball.batch_walk w set walked_to = case when more then reached else 0 end
    where w.walked_to <> case when more then reached else 0 end;
end $$;

-- === The queue of a tenant ========================================================================

-- As in 0024, with three changes. A small addition of several messages counts only the newer ones where
-- sixteen such additions at once have room, because none of them sees the others. The places of batches
-- whose messages are not enqueued yet have numbers below 0, so they are counted beside the bound. And the
-- bound does not move on to the newest messages: one that was enqueued before them may be committed
-- after them, and would be missing.
create or replace function flyball.record_pending(entry_point text, tenant text, ids bigint[], urgent boolean) returns void
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    cap           int;
    pending_count bigint;
    adding        constant int := cardinality(ids);
    -- The messages behind the bound and the places of batches; at most newer_most of each are read.
    newer_most    constant int := 2000;
    -- The newest messages, which the bound leaves out.
    unsettled     constant int := 50;
    bound         bigint;
    newer         bigint;
    places        bigint;
    most          bigint;
    drained       float8;
    after         int;
begin
    select l.max_pending into cap from flyball.tenant_limit l
    where l.tenant in (record_pending.tenant, '*') order by l.tenant = '*' limit 1;
    if cap is null then
        insert into flyball.pending (tenant, job_id) select record_pending.tenant, unnest(ids);
        return;
    end if;
    cap := case when urgent then cap + cap / 10 else cap end;
    if cap >= 1000 and adding <= 100 then
        select greatest(c.counted_to, 0), n.newer, w.places, c.pending + n.newer + w.places into bound, newer, places, most
        from flyball.pending_count c
        cross join lateral (
            select count(*) as newer
            from (
                select from flyball.pending p where p.tenant = c.tenant and p.job_id > greatest(c.counted_to, 0)
                order by p.tenant, p.job_id limit newer_most
            ) as page
        ) n
        cross join lateral (
            select count(*) as places
            from (
                select from flyball.pending p where p.tenant = c.tenant and p.job_id < 0
                order by p.tenant, p.job_id limit newer_most
            ) as page
        ) w
        where c.tenant = record_pending.tenant and c.counted_at > now() - interval '10 minutes';
        if newer + places < newer_most and most + adding <= cap * 0.9 and (adding = 1 or most + 16 * adding <= cap) then
            -- One transaction at a time moves the bound on; the others do not wait for it.
            if newer >= 2 * unsettled
                and pg_try_advisory_xact_lock(hashtextextended('flyball.pending_count ' || record_pending.tenant, 0))
            then
                update flyball.pending_count c set counted_to = s.job_id, pending = c.pending + s.jobs
                from (
                    select max(page.job_id) as job_id, count(*) as jobs
                    from (
                        select p.job_id from flyball.pending p where p.tenant = record_pending.tenant and p.job_id > bound
                        order by p.tenant, p.job_id limit newer - unsettled
                    ) as page
                ) s
                where c.tenant = record_pending.tenant and greatest(c.counted_to, 0) = bound and s.jobs > 0;
            end if;
            insert into flyball.pending (tenant, job_id) select record_pending.tenant, unnest(ids);
            return;
        end if;
    end if;

    if adding = 1 then
        select count(*) into pending_count
        from (select from flyball.pending p where p.tenant = record_pending.tenant limit cap + 1) as page;
    end if;
    if adding > 1 or pending_count + adding > cap * 0.9 then
        perform pg_advisory_xact_lock(hashtextextended('flyball.pending ' || record_pending.tenant, 0));
        select count(*) into pending_count
        from (select from flyball.pending p where p.tenant = record_pending.tenant limit cap + 1) as page;
    end if;
    if pending_count + adding > cap and not exists (
        select from flyball.tenant_drain d
        where d.tenant = record_pending.tenant and d.swept_at > clock_timestamp() - interval '1 second'
    ) then
        perform flyball.sweep_pending(record_pending.tenant);
        select count(*) into pending_count
        from (select from flyball.pending p where p.tenant = record_pending.tenant limit cap + 1) as page;
    end if;
    if pending_count + adding > cap then
        select (d.ended - d.older) / greatest(extract(epoch from clock_timestamp() - d.older_at), 1) into drained
        from flyball.tenant_drain d where d.tenant = record_pending.tenant;
        after := case when coalesce(drained, 0) > 0 then least(greatest(ceil((pending_count + adding - cap) / drained), 1), 300) else 300 end;
        raise exception using
            errcode = '53400',
            message = format('%s: the queue of tenant %s is full: %s of its messages are pending%s; the limit is %s', entry_point,
                to_json(record_pending.tenant), pending_count, case when adding > 1 then format(' and %s more were sent', adding) else '' end, cap),
            hint = format('Nothing was enqueued. Try again in %s s.', after),
            constraint = 'tenant_queue', schema = record_pending.tenant, datatype = format('%s/%s/%s', pending_count, cap, after);
    end if;
    if cap >= 1000 and adding <= 100 and (newer is null or newer >= newer_most / 2 or most - pending_count >= cap / 20)
        and pg_try_advisory_xact_lock(hashtextextended('flyball.pending_count ' || record_pending.tenant, 0))
    then
        insert into flyball.pending_count as c (tenant, counted_to, pending)
        select record_pending.tenant, s.job_id, (
            select count(*) from flyball.pending p where p.tenant = record_pending.tenant and p.job_id > 0 and p.job_id <= s.job_id
        )
        from (
            select coalesce((
                select p.job_id from flyball.pending p where p.tenant = record_pending.tenant and p.job_id > 0
                order by p.tenant desc, p.job_id desc offset unsettled limit 1
            ), 0) as job_id
        ) s
        on conflict on constraint pending_count_pkey do update
        set counted_to = excluded.counted_to, pending = excluded.pending, counted_at = now();
    end if;
    insert into flyball.pending (tenant, job_id) select record_pending.tenant, unnest(ids);
end $$;

revoke execute on function flyball.withdraw_items, flyball.free_places, flyball.settle_expansions, flyball.forget_batches
from public;
