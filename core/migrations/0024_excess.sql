-- Chapter 24: messages that a tenant sends beyond its limit, accepted and placed together.

-- A bound of the pending messages of a tenant up to one of them: as many as were counted, less those
-- that were swept since. A message that was enqueued before that one and committed later is missing,
-- so all are counted again after ten minutes.
create table flyball.pending_count (
    tenant     text        primary key,
    counted_to bigint      not null,
    pending    bigint      not null,
    counted_at timestamptz not null default now()
) with (fillfactor = 50);

-- As before, but a small addition to a long queue counts only the messages since the last count. The
-- function before names its parameters by its own name, so it cannot be renamed and called.
create or replace function flyball.record_pending(entry_point text, tenant text, ids bigint[], urgent boolean) returns void
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    cap           int;
    pending_count bigint;
    adding        constant int := cardinality(ids);
    -- The messages behind the bound, and the last of them; at most newer_most are read.
    newer_most    constant int := 2000;
    newer         bigint;
    newest        bigint;
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
        select n.newer, n.newest, c.pending + n.newer into newer, newest, most
        from flyball.pending_count c
        cross join lateral (
            select count(*) as newer, max(page.job_id) as newest
            from (
                select p.job_id from flyball.pending p where p.tenant = c.tenant and p.job_id > c.counted_to
                order by p.tenant, p.job_id limit newer_most
            ) as page
        ) n
        where c.tenant = record_pending.tenant and c.counted_at > now() - interval '10 minutes';
        if newer < newer_most and most + adding <= cap * 0.9 then
            -- One transaction at a time moves the bound on; the others do not wait for it.
            if newer >= 100 and pg_try_advisory_xact_lock(hashtextextended('flyball.pending_count ' || record_pending.tenant, 0)) then
                update flyball.pending_count c set counted_to = newest, pending = most where c.tenant = record_pending.tenant;
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
    if cap >= 1000 and adding <= 100 and (newer is null or newer = newer_most or most - pending_count >= cap / 20)
        and pg_try_advisory_xact_lock(hashtextextended('flyball.pending_count ' || record_pending.tenant, 0))
    then
        insert into flyball.pending_count as c (tenant, counted_to, pending)
        select record_pending.tenant, coalesce(max(p.job_id), 0), count(*) from flyball.pending p where p.tenant = record_pending.tenant
        on conflict on constraint pending_count_pkey do update
        set counted_to = excluded.counted_to, pending = excluded.pending, counted_at = now();
    end if;
    insert into flyball.pending (tenant, job_id) select record_pending.tenant, unnest(ids);
end $$;

-- The last message that the sweep of a tenant looked at; 0 at its beginning.
alter table flyball.tenant_drain add column swept_to bigint not null default 0;

-- Forgets pending messages of a tenant that have ended, of the first max_jobs behind a message.
-- `reached` is the last message that was looked at, or 0 if there is none behind it. Nothing is
-- locked but what is deleted, because most messages still wait.
create function flyball.sweep_pending_behind(tenant text, behind bigint, max_jobs int, out removed bigint, out reached bigint)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
declare
    gone bigint[];
begin
    with page as materialized (
        select q.ctid as tid, q.job_id from flyball.pending q where q.tenant = sweep_pending_behind.tenant and q.job_id > behind
        order by q.tenant, q.job_id limit max_jobs
    ),
    ended as materialized (
        select p.tid
        from page p
        left join lateral (
            select j.lane_id, j.admission_lane, j.priority from flyball.job j where j.id = p.job_id limit 1
        ) j on true
        where (select 1 from flyball.ready r
                where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = p.job_id limit 1) is null
            and (select 1 from flyball.lease l where l.job_id = p.job_id limit 1) is null
            and (select 1 from flyball.scheduled s where s.job_id = p.job_id limit 1) is null
            and (select 1 from flyball.digest_item i where i.job_id = p.job_id limit 1) is null
    ),
    deleted as (
        delete from flyball.pending where ctid = any(array(select e.tid from ended e)) returning job_id
    )
    select array(select d.job_id from deleted d), case when count(*) = max_jobs then max(p.job_id) else 0 end into gone, reached from page p;
    removed := cardinality(gone);
    if removed > 0 then
        -- A bound that somebody else moves just now stays too high until the next count.
        update flyball.pending_count c
        set pending = greatest(c.pending - (select count(*) from unnest(gone) as g(job_id) where g.job_id <= c.counted_to), 0)
        where c.ctid = any(array(select q.ctid from flyball.pending_count q where q.tenant = sweep_pending_behind.tenant for update skip locked));
    end if;
    insert into flyball.tenant_drain as d (tenant, ended, swept_to) values (sweep_pending_behind.tenant, removed, reached)
    on conflict on constraint tenant_drain_pkey do update
    set ended = d.ended + removed, swept_to = reached, swept_at = clock_timestamp(),
        marked_at = case when d.marked_at < clock_timestamp() - interval '1 minute' then clock_timestamp() else d.marked_at end,
        marked = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.ended + removed else d.marked end,
        older_at = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.marked_at else d.older_at end,
        older = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.marked else d.older end;
end $$;

create or replace function flyball.sweep_pending(tenant text, max_jobs int default 20000) returns bigint
language sql volatile as $$
    select removed from flyball.sweep_pending_behind(tenant, 0, max_jobs)
$$;

-- Sweeps every tenant that has pending messages; returns the number forgotten. A long queue in which
-- most messages wait is swept a part at a time, because each look at it takes time from the others.
create or replace function flyball.sweep_all_pending() returns bigint
language plpgsql volatile as $$
declare
    part           constant int := 1000;
    current_tenant text;
    swept          record;
    removed        bigint := 0;
begin
    loop
        -- One probe of the index for each tenant.
        select p.tenant into current_tenant from flyball.pending p where current_tenant is null or p.tenant > current_tenant order by p.tenant limit 1;
        exit when not found;
        for n in 1 .. 10 loop
            swept := flyball.sweep_pending_behind(current_tenant,
                coalesce((select d.swept_to from flyball.tenant_drain d where d.tenant = current_tenant), 0), part);
            removed := removed + swept.removed;
            exit when swept.reached = 0 or swept.removed < part / 2;
        end loop;
    end loop;
    return removed;
end $$;

-- As before, in a language that keeps its plan.
create or replace function flyball.record_module(tenant text, module text) returns void
language plpgsql volatile as $$
#variable_conflict use_column
declare
    admission constant text := flyball.admission_throttle(record_module.tenant);
begin
    insert into flyball.lane (lane_id, throttle, key)
    values (flyball.lane_of(admission, record_module.module), admission, record_module.module)
    on conflict do nothing;
end $$;

-- Remembers requests that made messages for a day. They come in the order in which they were locked.
create function flyball.remember_requests(digests bytea[], bodies bytea[], job_ids bigint[]) returns void
language plpgsql volatile as $$
#variable_conflict use_column
begin
    insert into flyball.idempotency as i (digest, body, job_id, batch_id, expires_at)
    select g.digest, g.body, g.job_id, null, now() + interval '1 day'
    from unnest(digests, bodies, job_ids) as g(digest, body, job_id)
    on conflict on constraint idempotency_pkey do update
    set body = excluded.body, job_id = excluded.job_id, batch_id = excluded.batch_id, expires_at = excluded.expires_at;
end $$;

-- The lock of a request, as flyball.find_request takes it.
create function flyball.request_lock(digest bytea) returns bigint
language sql immutable parallel safe
return hashtextextended('flyball.request ' || encode(digest, 'hex'), 0);

-- Accepts messages of one module for which the entry point took no slot, as flyball.accept_message
-- accepts each. Element n of every array belongs to message n, and the rows come in that order. If
-- one is refused, none is accepted.
create function flyball.accept_excess(
    tenant text, module text, digests bytea[], bodies bytea[], have_keys boolean[],
    args jsonb[], throttles text[], keys text[], priorities int[], traceparents text[])
returns table (answer text, job_id bigint, batch_id bigint, held boolean)
language plpgsql volatile set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    size     constant int := coalesce(cardinality(args), 0);
    -- True for each request that is this transaction's; the others are running elsewhere.
    taken    boolean[];
    -- The digests of earlier requests.
    known    bytea[];
    -- The messages that repeat no earlier request.
    fresh    int[] := '{}';
    ids      bigint[] := array_fill(null::bigint, array[size]);
    answers  text[] := array_fill(null::text, array[size]);
    batches  bigint[] := array_fill(null::bigint, array[size]);
    new_args jsonb[] := args;
    new_size int;
    new_ids  bigint[];
    found    record;
begin
    taken := array(
        select case when g.digest is null then true when g.has_key then pg_try_advisory_xact_lock(flyball.request_lock(g.digest))
            else pg_advisory_xact_lock(flyball.request_lock(g.digest)) is not null end
        from unnest(digests, have_keys) with ordinality as g(digest, has_key, n) order by g.n);
    known := array(select i.digest from flyball.idempotency i where i.digest = any (digests));
    for n in 1 .. size loop
        -- A request that comes twice is a repeat of its first one, which is remembered below.
        continue when digests[n] is not null and array_position(digests, digests[n]) < n;
        if not taken[n] then
            answers[n] := 'running';
        elsif digests[n] = any (known) then
            found := flyball.find_request(digests[n], bodies[n], have_keys[n], true);
            answers[n] := found.answer;
            ids[n] := found.job_id;
            batches[n] := found.batch_id;
        else
            answers[n] := 'new';
        end if;
        if answers[n] = 'new' then
            fresh := fresh || n;
        end if;
    end loop;

    new_size := cardinality(fresh);
    if new_size > 0 then
        if new_size < size then
            select array_agg(g.args order by g.n), array_agg(g.throttle order by g.n), array_agg(g.key order by g.n),
                array_agg(g.priority order by g.n), array_agg(g.traceparent order by g.n)
            into new_args, throttles, keys, priorities, traceparents
            from unnest(args, throttles, keys, priorities, traceparents) with ordinality as g(args, throttle, key, priority, traceparent, n)
            where g.n = any (fresh);
        end if;
        new_ids := array(
            select e.job_id
            from flyball.enqueue_rows_as('tenant:' || tenant, true, array_fill('notification'::text, array[new_size]), new_args, throttles,
                keys, priorities, array_fill(null::timestamptz, array[new_size]), array_fill(10, array[new_size]),
                array_fill(null::text, array[new_size]), array_fill(null::float8, array[new_size]), array_fill(1::float8, array[new_size]),
                traceparents, array_fill(null::float8, array[new_size]), array_fill(null::float8, array[new_size]),
                array_fill(null::float8, array[new_size]), array_fill(false, array[new_size]), module, false)
                with ordinality as e(job_id, duplicate, replaced, backlog, n)
            order by e.n);
        for n in 1 .. new_size loop
            ids[fresh[n]] := new_ids[n];
        end loop;
        if true = any (select flyball.needs_plan('notification', g.args) from unnest(new_args) as g(args)) then
            perform flyball.refuse_capped(tenant, new_ids, array_fill('notification'::text, array[new_size]), new_args,
                array_fill(null::timestamptz, array[new_size]), array_fill(false, array[new_size]));
        end if;
        perform flyball.remember_requests(
            array_agg(g.digest order by g.n), array_agg(g.body order by g.n), array_agg(g.id order by g.n))
        from unnest(digests, bodies, ids) with ordinality as g(digest, body, id, n)
        where g.n = any (fresh) and g.digest is not null
        having count(*) > 0;
    end if;

    for n in 1 .. size loop
        continue when answers[n] is not null;
        found := flyball.find_request(digests[n], bodies[n], have_keys[n], true);
        answers[n] := found.answer;
        ids[n] := found.job_id;
        batches[n] := found.batch_id;
    end loop;
    -- Without a slot every new message waits.
    return query select g.answer, g.id, g.batch_id, g.answer = 'new' from unnest(answers, ids, batches) as g(answer, id, batch_id);
end $$;

-- The places of those of the messages that wait for their admission, as flyball.admission_place
-- tells them. That counts up to 10,000 messages, so it is asked for the last one of each lane and
-- priority; the others stand before that one. `front` is the first message of the lane, or null if
-- that one has another priority.
create function flyball.admission_places(job_ids bigint[])
returns table (
    job_id bigint, place bigint, tenant_place bigint, tenant text, module text, priority smallint, lane bigint, front bigint)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
    return query
    with waiting as materialized (
        select j.id, j.admission_lane as lane, j.priority,
            row_number() over (partition by j.admission_lane, j.priority order by j.id desc) - 1 as behind
        from flyball.job j
        where j.id = any (admission_places.job_ids) and exists (
            select from flyball.ready r where r.lane_id = j.admission_lane and r.priority = j.priority and r.job_id = j.id)
    ),
    last as materialized (
        select w.lane, w.priority as waiting_priority, p.*, case when f.priority = w.priority then f.job_id end as front
        from waiting w
        cross join lateral (
            select r.priority, r.job_id from flyball.ready r where r.lane_id = w.lane
            order by r.lane_id, r.priority, r.job_id limit 1
        ) f
        cross join lateral flyball.admission_place(w.id) p
        where w.behind = 0
    )
    select w.id, greatest(l.place - w.behind, 1), greatest(l.tenant_place - w.behind, 1), l.tenant, l.module, l.priority,
        l.lane, l.front
    from waiting w
    join last l on l.lane = w.lane and l.waiting_priority = w.priority
    where l.place is not null;
end $$;

-- The messages behind one whose place was counted, in order; none if the lane has another front by
-- now, because then messages have left it, or more urgent ones have come.
create function flyball.places_behind(lane bigint, priority smallint, front bigint, counted bigint) returns setof bigint
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_variable
declare
    first record;
begin
    select r.priority, r.job_id into first from flyball.ready r where r.lane_id = lane
    order by r.lane_id, r.priority, r.job_id limit 1;
    if first.priority = priority and first.job_id = front then
        return query
        select r.job_id from flyball.ready r where r.lane_id = lane and r.priority = places_behind.priority and r.job_id > counted
        order by r.lane_id, r.priority, r.job_id limit 1000;
    end if;
end $$;

revoke execute on function flyball.accept_excess, flyball.admission_places, flyball.places_behind, flyball.remember_requests,
    flyball.request_lock, flyball.sweep_pending_behind
from public;
